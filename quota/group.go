package quota

import (
	"fmt"
	"math"
	"time"
)

// Defaults of [Rule].
const (
	DefaultPeriod     = 250 * time.Millisecond
	DefaultLease      = 2 * time.Second
	DefaultFloor      = 0.02
	DefaultLazyFactor = 2
	DefaultLazyBelow  = BelowQuota
	// BelowQuota is the part of its quota up to which a tenant counts as below it, so that a delay is unfair. It is not 1 because a tenant kept at
	// its quota swings around it.
	BelowQuota = 0.98
)

// Rule says how a quota is shared by the brokers of a cluster. All of a cluster must agree on it. The zero value of each field means its
// default.
type Rule struct {
	// Period is the time between two reports of a broker and between two divisions: the quality of sharing depends on it more than on
	// anything else. Default 250 ms.
	Period time.Duration
	// Lease is how long a broker keeps its shares without hearing from the coordinator; then it goes to the static split in as much time again
	// for a cut and three times as much for a raise. At least 4 Periods. Default 2 s.
	Lease time.Duration
	// Floor is the part of the static split that a broker without traffic keeps while others have some, in (0, 1]: where its demand grows from.
	// It strands Floor*(N-1)/N of the quota at most. Default 0.02.
	Floor float64
	// LazyFactor is what a broker multiplies its share by while the tenant uses less than LazyBelow of its quota cluster-wide, >= 1; 1 turns lazy
	// throttling off. Its burst there grows alike. Default 2.
	LazyFactor float64
	// LazyBelow is that part, in (0, 1]. Default [BelowQuota]: nobody below its quota is throttled knowingly. It can be
	// so high because LazyBurst bounds what it costs.
	LazyBelow float64
	// LazyBurst bounds what lazy throttling admits above the quota, as time at the quota's rate: the cluster saves what it does not use up to that
	// much, and where nothing is saved there is no laziness. Default 3 s.
	LazyBurst time.Duration
}

func (r Rule) withDefaults() (Rule, error) {
	def := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	if r.Period == 0 {
		r.Period = DefaultPeriod
	}
	if r.Lease == 0 {
		r.Lease = max(DefaultLease, 4*r.Period)
	}
	if r.LazyBurst == 0 {
		r.LazyBurst = DefaultBurst
	}
	def(&r.Floor, DefaultFloor)
	def(&r.LazyFactor, DefaultLazyFactor)
	def(&r.LazyBelow, DefaultLazyBelow)
	if r.Period < 0 || r.LazyBurst < 0 || r.Lease < 4*r.Period || !(r.Floor > 0 && r.Floor <= 1) || !(r.LazyFactor >= 1 && r.LazyFactor < 1e6) ||
		!(r.LazyBelow > 0 && r.LazyBelow <= 1) {
		return r, fmt.Errorf("%w: rule %+v is out of range", ErrInvalid, r)
	}
	return r, nil
}

// Group shares one quota of one tenant over brokers: the rule of the coordinator without time, names and messages. Brokers are numbered
// from 0. Between two Steps the owner reports what is known of each broker; after a Step, Limit says what each may use.
//
// A limit that is lowered takes effect only when the broker has it; until then others are not raised (cuts before raises). So the limits in
// force at any moment, however late messages are, add up to at most the quota: Held is the sum of the largest limits that brokers may still
// be using, and Step never raises anything while it would exceed the quota. Only a lower quota makes it exceed for a while, and the
// owner who says [Group.Lost] or [Group.Found] of a broker.
//
// Not safe for concurrent use.
//
// Source: the reference's rule WF2, our own.
type Group struct {
	rule    Rule
	members []member
	parts   []float64 // scratch
	order   []int32   // scratch
	weights []float64 // of the members; nil: equal
	active  []float64 // scratch: weights of those in parts
	use     float64   // of the whole cluster, at the last Step
	seq     uint64    // of the last Step
	saved   float64   // what the cluster may use above the quota at present; negative: it has used too much
	lazy    bool
}

type member struct {
	used      float64 // per second, in the last period
	target    float64 // of the last Step
	granted   float64 // the limit that the broker was told last
	held      float64 // Invariant: >= granted, >= what the broker has in force, unless lost
	seq       uint64  // of the Step that set granted
	report    uint64  // number of the last report that named the group, for the coordinator
	throttled uint8   // reports in a row that said so
	quiet     uint8   // reports in a row without any use
	lost      bool    // out of reach, or without a lease and not known to have got one: it counts with held, whatever it is told
}

// NewGroup returns a group of n brokers that all have the static split of the quota: what a broker uses that was told nothing.
func NewGroup(rule Rule, n int, quota float64) (*Group, error) {
	rule, err := rule.withDefaults()
	if err != nil {
		return nil, err
	}
	if n < 1 || n > 1<<20 {
		return nil, fmt.Errorf("%w: %d brokers", ErrInvalid, n)
	}
	return newGroup(rule, n, quota), nil
}

func newGroup(rule Rule, n int, quota float64) *Group {
	g := &Group{rule: rule, members: make([]member, n), parts: make([]float64, n), order: make([]int32, n)}
	for i := range g.members {
		g.members[i].granted, g.members[i].held = quota/float64(n), quota/float64(n)
		g.members[i].quiet = quietAfter
	}
	g.saved = quota * rule.LazyBurst.Seconds()
	return g
}

// quietAfter is how many reports without use make a broker idle: one quiet period is no sign of an end.
const quietAfter = 3

// Report tells that a broker admitted used units per second in its last period, whether it was in debt for any part of it, and that it has
// applied the limits of the Steps up to applied.
func (g *Group) Report(broker int, used float64, throttled bool, applied uint64) {
	m := &g.members[broker]
	if m.used = used; used < 0 {
		m.used = 0
	}
	if !throttled {
		m.throttled = 0
	} else if m.throttled < maxEscalation {
		m.throttled++
	}
	if used > 0 || throttled {
		m.quiet = 0
	} else if m.quiet < quietAfter {
		m.quiet++
	}
	if applied >= m.seq {
		m.held, m.lost = m.granted, false
	}
}

// Lost tells that a broker is out of reach and may have up to held in force until the owner knows better. It
// must be found before its reports count.
func (g *Group) Lost(broker int, held float64) {
	m := &g.members[broker]
	*m = member{held: held, granted: held, lost: true, seq: max(m.seq, g.seq+1), report: m.report}
}

// Found tells that a broker which has no valid lease is in reach: it has limit in force now, and may get to held before it hears of the next
// Step. Whatever it was told before doesn't count. It is told to keep its limit, and until it confirms that, it counts with held: it may be
// able to speak but not to hear, and then go to the static split.
func (g *Group) Found(broker int, limit, held float64) {
	m := &g.members[broker]
	m.lost = true
	m.granted, m.held = limit, max(limit, held)
	m.seq = g.seq + 1 // to be told at the next Step, and not confirmed by an older one
}

// Step divides the quota by what was reported. seq numbers the Steps, starting above 0 and growing; it comes back in Report. With learn
// it lowers but raises nothing: for a coordinator that doesn't yet know what all brokers have in force.
func (g *Group) Step(quota float64, seq uint64, learn bool) {
	g.seq = seq
	n := float64(len(g.members))
	floor := g.rule.Floor * quota / n
	avail, active := quota, 0
	use, wanted := 0.0, 0.0
	for i := range g.members {
		m := &g.members[i]
		switch {
		case m.lost:
			avail -= m.held
			use += m.used
		case m.quiet < quietAfter:
			use += m.used
			d := demand(quota, m.used, m.granted, m.throttled)
			if d < floor {
				d = floor
			}
			wanted += d
			g.parts[active] = d
			if g.weights != nil {
				g.active[active] = g.weights[i]
			}
			active++
		default:
			avail -= floor
		}
	}
	g.use = use
	g.saved = min(g.saved+(quota-g.use)*g.rule.Period.Seconds(), quota*g.rule.LazyBurst.Seconds())
	g.lazy = g.rule.LazyFactor > 1 && g.use < g.rule.LazyBelow*quota && g.saved > 0
	idle := floor
	if active > 0 {
		var weights []float64
		if g.weights != nil {
			weights = g.active[:active]
		}
		// What is left may be nothing while lost brokers hold too much; a limit of 0 would block, so it is a hair more.
		divide(g.parts[:active], wanted, max(avail, float64(active)*floor*floor/quota), weights, g.order[:active])
	} else {
		idle = 0 // nobody uses anything: the reachable ones share alike, as if no Step had been
		reach := 0
		for i := range g.members {
			if !g.members[i].lost {
				reach++
				idle += floor
			}
		}
		if reach > 0 {
			idle = max(0, idle+avail) / float64(reach)
		}
	}

	// Cuts first. What is held falls only when the broker reports that it has applied the cut. Here and below, what is as likely as not is
	// written without branches: this runs for every broker of every tenant.
	held, want := 0.0, 0.0
	at := 0
	for i := range g.members {
		m := &g.members[i]
		held += m.held
		if m.lost {
			continue
		}
		target := idle
		if m.quiet < quietAfter {
			target = g.parts[at]
			at++
		}
		m.target = target
		set := m.seq
		if target < m.granted {
			set = seq
		}
		m.granted, m.seq = min(m.granted, target), set
		want += target - min(m.held, target)
	}
	// Then raises: up to what a broker is counted with anyway, and out of what nobody holds. Neither while more is held than there is: then what
	// brokers are counted with is not theirs.
	free := quota - held
	if learn || free < -1e-9*quota {
		return
	}
	part := 0.0
	if want > 0 {
		part = min(1, max(0, free)/want)
	}
	for i := range g.members {
		m := &g.members[i]
		if m.lost {
			continue
		}
		// granted <= held, and <= target since the cuts: so this lowers nothing.
		counted := min(m.held, m.target)
		raise := (m.target - counted) * part
		limit, set := counted+raise, m.seq
		if limit > m.granted {
			set = seq
		}
		m.granted, m.held, m.seq = limit, m.held+raise, set
	}
}

// Limit returns the limit that a broker has to be told, in units per second, and the Step that set it.
func (g *Group) Limit(broker int) (limit float64, seq uint64) {
	return g.members[broker].granted, g.members[broker].seq
}

// SetWeight makes a broker's part under contention proportional to weight, > 0, which else is 1: more for one with more capacity.
func (g *Group) SetWeight(broker int, weight float64) {
	if g.weights == nil {
		g.weights, g.active = make([]float64, len(g.members)), make([]float64, len(g.members))
		for i := range g.weights {
			g.weights[i] = 1
		}
	}
	g.weights[broker] = weight
}

// Use returns what all brokers used per second by their last reports, as of the last Step.
func (g *Group) Use() float64 { return g.use }

// Lazy reports whether brokers may use LazyFactor times their limit until the next Step, as nothing is in danger while the tenant is below
// its quota.
func (g *Group) Lazy() bool { return g.lazy }

// Held returns the sum of the largest limits that brokers may have in force. It is at most the quota; see [Group] for when it is not.
func (g *Group) Held() float64 {
	held := 0.0
	for i := range g.members {
		held += g.members[i].held
	}
	return held
}

// idle reports whether no broker uses anything and all are known to have about the static split, so that the group may be forgotten.
func (g *Group) idle(quota float64) bool {
	even := quota / float64(len(g.members))
	for i := range g.members {
		m := &g.members[i]
		if m.quiet < quietAfter || m.held != m.granted || math.Abs(m.held-even) > 1e-9*quota {
			return false
		}
	}
	return true
}

// LazyOverrun returns how much all brokers together may admit above quota*T in any time T, as time at the quota's rate: what their buckets
// hold when doubled, what the cluster may have saved, and what passes before the end of laziness is in force everywhere, if messages take
// at most delay from a report to the grant in force. To it comes one request in flight on each broker. It is a bound; in the simulated
// traffic of examples/simulate the excess stays below half of it.
func LazyOverrun(r Rule, burst time.Duration, brokers int, delay time.Duration) time.Duration {
	r, err := r.withDefaults()
	if err != nil {
		return 0
	}
	if burst == 0 {
		burst = DefaultBurst
	}
	over := burst
	if r.LazyFactor > 1 {
		// Two periods: one until the excess is reported, one of staleness of the reports that differ in phase.
		factor := min(r.LazyFactor, float64(brokers))
		over = time.Duration(float64(burst)*factor) + r.LazyBurst + time.Duration((factor-1)*float64(2*r.Period+delay))
	}
	return over
}
