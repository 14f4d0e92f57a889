package balance

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Signal is something by which a broker can be slower than its peers.
type Signal uint8

// The signals. They index [Observation.Signals].
const (
	// ServiceTime is the time that a unit of work takes, without the wait for it: waits are load.
	ServiceTime Signal = iota
	// FlushTime is a high percentile of the time that a flush to storage takes.
	FlushTime
	// ProbeTime is the latency of probes from outside.
	ProbeTime
	// AckTime is the time that followers wait for the broker's replies, as its peers report it.
	AckTime

	numSignals = 4
)

var signalNames = [...]string{"service time", "flush time", "probe time", "ack time"}

// String returns the name of the signal.
func (s Signal) String() string {
	if int(s) < len(signalNames) {
		return signalNames[s]
	}
	return fmt.Sprintf("Signal(%d)", uint8(s))
}

// Observation is what is known of one broker in one round. Whoever observes fills in what it has: a
// broker that does not answer is judged by what others see of it.
type Observation struct {
	Broker BrokerID
	Zone   string
	// Registered says that the broker holds a session with the controller.
	Registered bool
	// Outside says that a probe from outside or a request of a client reached the broker since the last
	// round.
	Outside bool
	// NoOutside says that nothing outside watches the broker, so that Outside means nothing.
	NoOutside bool
	// StoragePending says that storage operations wait, StorageProgress that at least one was
	// completed since the last round.
	StoragePending, StorageProgress bool
	// Signals are the latencies of the round, each a mean or a percentile of Samples operations; 0 is
	// not known.
	Signals [numSignals]time.Duration
	// Samples is the number of operations behind Signals.
	Samples int
	// Load is the broker's load, 0 to 1.
	Load float64
	// Leads is the number of partitions that it leads, Sole the number of those that no other
	// eligible replica could lead.
	Leads, Sole int
}

// Defaults of [HealthOptions]. The times are for rounds of ten seconds. What they cost in false alarms and in
// delay on noisy latencies is measured by "go run . balance" in bench.
const (
	DefaultOutsideTimeout = 30 * time.Second
	DefaultStorageTimeout = 15 * time.Second
	DefaultHoldOff        = 5 * time.Minute
	DefaultMaxHoldOff     = 24 * time.Hour
	DefaultPageAfter      = 10 * time.Minute
	DefaultMaxLoad        = 0.95
	DefaultMinOperations  = 20
)

// Thresholds of the comparison with peers. The evidence is the logarithm of the ratio to the median
// broker, averaged over the signals and, exponentially, over rounds: quickly to see what is five
// times slower within a minute, slowly to see what is twice as slow within five. Each is judged
// against the spread of the same average over all brokers, three times: against that of this round, against
// its mean over the last hour or so, which few brokers cannot distort and which noise that is
// correlated over rounds raises, and against a floor, since the spread of healthy brokers that are all
// alike is next to nothing. Where there are enough, a broker is judged against the others alone: among five a sick one
// would widen the spread by which it is judged.
const (
	quickGain   = 0.5
	slowGain    = 0.08
	quickFloor  = 0.27 // zLimit of it is a ratio to the median of 2.6, and of 1.5 for the slow average: the least that is called slow
	slowFloor   = 0.12
	zLimit      = 3.5  // of the spread of this round, and of the floor
	zHistory    = 5.5  // of the mean spread
	zFew        = 4.65 // of it and of the error of the median, which is large where brokers are few
	historyGain = 1.0 / 360
	plainlySlow = 1.25 // times a limit: such a round counts twice
	nearlySlow  = 0.6  // of a limit: such a round is no evidence, and does not take any away
	confirmAt   = 3    // rounds of evidence, on balance, that confirm
	clearAfter  = 18   // clean rounds in a row until probation
	minPeers    = 3
	minOthers   = 4 // brokers whose spread says enough to judge one by the others alone
	madToSigma  = 1.4826
	maxDoubling = 12
)

// HealthOptions configure a [Monitor]. The zero value is safe.
type HealthOptions struct {
	// OutsideTimeout is how long nothing from outside may reach a registered broker; 0 means
	// [DefaultOutsideTimeout].
	OutsideTimeout time.Duration
	// StorageTimeout is how long storage may have work and make no progress; 0 means
	// [DefaultStorageTimeout].
	StorageTimeout time.Duration
	// Floors are the latencies below which a broker is never slow, whatever its peers are; 0 is no
	// floor.
	Floors [numSignals]time.Duration
	// MinOperations is the least number of samples of a round that count; 0 means
	// [DefaultMinOperations].
	MinOperations int
	// HoldOff is the least time that a broker stays mitigated; it doubles each time that the broker
	// falls ill again, up to MaxHoldOff, and is forgotten after MaxHoldOff of health. 0 means
	// [DefaultHoldOff] and [DefaultMaxHoldOff].
	HoldOff, MaxHoldOff time.Duration
	// PageAfter is how long a mitigated broker may keep leaderships before a human is called; 0
	// means [DefaultPageAfter].
	PageAfter time.Duration
	// MaxLoad is the mean load of the remaining brokers up to which one may be taken out; 0 means
	// [DefaultMaxLoad].
	MaxLoad float64
	// Off is the kill switch: what would be decided is reported as Suppressed, and nothing is to be
	// done.
	Off bool
}

func (o HealthOptions) withDefaults() HealthOptions {
	set := func(v *time.Duration, def time.Duration) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&o.OutsideTimeout, DefaultOutsideTimeout)
	set(&o.StorageTimeout, DefaultStorageTimeout)
	set(&o.HoldOff, DefaultHoldOff)
	set(&o.MaxHoldOff, DefaultMaxHoldOff)
	set(&o.PageAfter, DefaultPageAfter)
	o.MaxHoldOff = max(o.MaxHoldOff, o.HoldOff)
	if o.MaxLoad <= 0 {
		o.MaxLoad = DefaultMaxLoad
	}
	if o.MinOperations <= 0 {
		o.MinOperations = DefaultMinOperations
	}
	return o
}

// HealthState is where a broker stands.
type HealthState uint8

// The states of a broker. A broker that no round has seen is Healthy.
const (
	Healthy HealthState = iota
	// Suspect has evidence against it that is not confirmed, or confirmed but held back.
	Suspect
	// Mitigating is decided on and still leads something.
	Mitigating
	// Mitigated leads nothing any more.
	Mitigated
	// Probation is given back; evidence now acts at once.
	Probation
)

// String returns the name of the state.
func (s HealthState) String() string {
	names := [...]string{"healthy", "suspect", "mitigating", "mitigated", "probation"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("HealthState(%d)", uint8(s))
}

// Ailment is what is wrong with a broker.
type Ailment uint8

// The ailments, the gravest first where several are there.
const (
	NoAilment Ailment = iota
	// StorageStuck: storage has work and makes no progress.
	StorageStuck
	// OutsideLost: registered, but nothing from outside arrives.
	OutsideLost
	// Slow: slower than its peers.
	Slow
)

// String returns the name of the ailment.
func (a Ailment) String() string {
	names := [...]string{"none", "storage stuck", "outside lost", "slow"}
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("Ailment(%d)", uint8(a))
}

// Action is what a [Decision] asks for.
type Action uint8

// The actions.
const (
	// Demote takes all leaderships off the broker, by a flag that elections, preferred-leader logic and the
	// planner honour ([Broker.DemotedUntil]). No data moves.
	Demote Action = iota + 1
	// Fence ends the broker's session: it leads nothing and leaves every in-sync set until its storage
	// works again.
	Fence
	// LeaveISR takes the broker out of the in-sync sets while it goes on replicating, and its
	// leaderships off it.
	LeaveISR
	// Release gives the broker back. Leaderships return little by little.
	Release
	// Page calls a human.
	Page
)

// String returns the name of the action.
func (a Action) String() string {
	names := [...]string{"", "demote", "fence", "leave ISR", "release", "page"}
	if int(a) < len(names) && a > 0 {
		return names[a]
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

// Decision is an event of a [Monitor]: an order to the host, or the report of one that was held back.
// Carrying it out never needs an answer from the broker.
type Decision struct {
	Broker  BrokerID // [NoBroker] when it is about a zone
	Zone    string
	Action  Action
	Ailment Ailment
	// Until is when a Demote, Fence or LeaveISR ends by itself if it is not renewed; the monitor
	// renews it, as another Decision, while the broker is ill.
	Until time.Time
	// Renewal says that the decision prolongs one that is in force.
	Renewal bool
	// Suppressed says why nothing is to be done: the kill switch, or a page follows with the reason. It is
	// empty for an order.
	Suppressed string
	// Reason is for people.
	Reason string
}

// BrokerHealth is what a [Monitor] holds of a broker.
type BrokerHealth struct {
	Broker  BrokerID
	State   HealthState
	Ailment Ailment
	// Score counts rounds of evidence, less rounds without.
	Score int
	// Ratio is the slow average of the ratio to the median broker.
	Ratio float64
	// Until is the end of the mitigation; Relapses counts earlier ones that are not forgotten.
	Until    time.Time
	Relapses int
}

// Monitor judges brokers round by round and keeps what it must remember between. It is not safe for
// concurrent use.
//
// A broker is taken out only if all of this holds: at least N - max(1, N/10) of the N registered brokers stay
// healthy; the mean load of the rest stays within MaxLoad; it leads no partition alone; and no broker of another
// zone is out already. If half of a zone's brokers, and at least two, ail at once, the zone's network is the
// likelier cause: nothing is done and a human is called. What is held back is reported once.
//
// Source: the three ailments and what is done about them are Kora, section 4.5.3; budget, zones, hold-off
// and the statistics are our own, with the score of Cruise Control.
type Monitor struct {
	o       HealthOptions
	brokers map[BrokerID]*patient
	zones   map[string]bool // paged as a whole
	history [2]spreadHistory
}

// spreadHistory is the mean over rounds of the spread of an average.
type spreadHistory struct {
	mean   float64
	rounds int
}

type patient struct {
	BrokerHealth
	zone                    string
	seen                    time.Time // first round
	outside, storage        time.Time // last sign of life
	quick, slow             float64   // averaged evidence
	have                    bool      // evidence exists
	clean                   int       // rounds without evidence in a row
	mitigated               time.Time
	released                time.Time
	renewed                 time.Time
	paged, held             bool
	heldReason              string
	load                    float64
	leads, sole             int
	registered, slowNow     bool
	plainly                 bool // so slow that the round counts twice
	nearly                  bool // not slow in this round, but not clear of it either
	logRatio                float64
	hasRatio, floorExceeded bool
}

// NewMonitor returns a monitor.
func NewMonitor(o HealthOptions) *Monitor {
	return &Monitor{o: o.withDefaults(), brokers: map[BrokerID]*patient{}, zones: map[string]bool{}}
}

// Kill turns the kill switch on or off.
func (m *Monitor) Kill(off bool) { m.o.Off = off }

// Health returns what is held of all brokers, by id.
func (m *Monitor) Health() []BrokerHealth {
	out := make([]BrokerHealth, 0, len(m.brokers))
	for _, p := range m.brokers {
		out = append(out, p.BrokerHealth)
	}
	slices.SortFunc(out, func(a, b BrokerHealth) int { return cmp.Compare(a.Broker, b.Broker) })
	return out
}

// Round takes the observations of one round, at most one for each broker, and returns the decisions, by broker.
// Rounds should follow each other evenly; ten seconds is what the defaults are for. A broker without an
// observation keeps its state, and one that was never seen or is forgotten by [Monitor.Forget] has none.
func (m *Monitor) Round(observations []Observation, now time.Time) []Decision {
	obs := slices.Clone(observations)
	slices.SortFunc(obs, func(a, b Observation) int { return cmp.Compare(a.Broker, b.Broker) })
	seen := make([]*patient, 0, len(obs))
	for i := range obs {
		seen = append(seen, m.observe(&obs[i], now))
	}
	m.compare(obs, seen)
	for _, p := range seen {
		m.score(p, now)
	}
	var out []Decision
	correlated := m.correlated(seen, &out)
	for _, p := range seen {
		m.step(p, correlated[p.zone], now, &out)
	}
	if m.o.Off {
		for i := range out {
			if out[i].Suppressed == "" {
				out[i].Suppressed = "kill switch"
			}
		}
	}
	return out
}

// Forget drops a broker that is gone.
func (m *Monitor) Forget(id BrokerID) { delete(m.brokers, id) }

func (m *Monitor) observe(o *Observation, now time.Time) *patient {
	p := m.brokers[o.Broker]
	if p == nil {
		p = &patient{BrokerHealth: BrokerHealth{Broker: o.Broker, Ratio: 1}, seen: now, outside: now, storage: now}
		m.brokers[o.Broker] = p
	}
	p.zone, p.load, p.leads, p.sole, p.registered = o.Zone, o.Load, o.Leads, o.Sole, o.Registered
	if o.Outside || o.NoOutside || !o.Registered {
		p.outside = now
	}
	if o.StorageProgress || !o.StoragePending {
		p.storage = now
	}
	return p
}

// compare brings the evidence of slowness up to date for all brokers seen.
func (m *Monitor) compare(obs []Observation, seen []*patient) {
	for _, p := range seen {
		p.logRatio, p.hasRatio, p.floorExceeded, p.slowNow, p.plainly, p.nearly = 0, false, false, false, false, false
	}
	sum := make([]float64, len(obs))
	count := make([]int, len(obs))
	values := make([]float64, 0, len(obs))
	for sig := range numSignals {
		values = values[:0]
		for i := range obs {
			if m.usable(&obs[i], sig) {
				values = append(values, math.Log(float64(obs[i].Signals[sig])))
			}
		}
		if len(values) < minPeers {
			continue
		}
		mid := medianOf(values)
		for i := range obs {
			if m.usable(&obs[i], sig) {
				sum[i] += math.Log(float64(obs[i].Signals[sig])) - mid
				count[i]++
				if obs[i].Signals[sig] > m.o.Floors[sig] {
					seen[i].floorExceeded = true
				}
			}
		}
	}
	for i, p := range seen {
		if count[i] == 0 {
			continue
		}
		p.logRatio, p.hasRatio = sum[i]/float64(count[i]), true
		if !p.have {
			p.have = true // the averages start at zero: one bad first round proves nothing
		}
		p.quick += quickGain * (p.logRatio - p.quick)
		p.slow += slowGain * (p.logRatio - p.slow)
		p.Ratio = math.Exp(p.slow)
	}
	judge := func(get func(*patient) float64, h *spreadHistory, floor float64, quick bool) {
		values = values[:0]
		for _, p := range seen {
			if p.hasRatio {
				values = append(values, get(p))
			}
		}
		if len(values) < minPeers {
			return
		}
		mid := medianOf(values) // sorts them
		now := spreadOf(values, -1, mid)
		h.rounds++
		h.mean += max(historyGain, 1/float64(h.rounds)) * (now - h.mean)
		least := max(zLimit*floor, max(zHistory, zFew*medianError(len(values)))*h.mean)
		for _, p := range seen {
			if !p.hasRatio || !p.floorExceeded {
				continue
			}
			mid, now := mid, now
			if len(values) > minOthers {
				i, _ := slices.BinarySearch(values, get(p))
				mid, now = medianWithout(values, i), 0
				if get(p)-mid > nearlySlow*least { // what is not can't be slow
					now = spreadOf(values, i, mid)
				}
			}
			limit := max(zLimit*now, least)
			p.slowNow = p.slowNow || get(p)-mid > limit
			p.plainly = p.plainly || quick && get(p)-mid > plainlySlow*limit
			p.nearly = p.nearly || get(p)-mid > nearlySlow*limit
		}
	}
	judge(func(p *patient) float64 { return p.quick }, &m.history[0], quickFloor, true)
	judge(func(p *patient) float64 { return p.slow }, &m.history[1], slowFloor, false)
}

func (m *Monitor) usable(o *Observation, sig int) bool {
	return o.Signals[sig] > 0 && o.Samples >= m.o.MinOperations
}

// smallSample returns the factor by which the median distance of n normal values falls short of that of
// many: with three brokers the spread would come out a third too small.
//
// Source: Croux and Rousseeuw 1992.
func smallSample(n int) float64 {
	factors := [...]float64{0, 0, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107}
	if n < len(factors) {
		return factors[n]
	}
	return float64(n) / (float64(n) - 0.8)
}

// medianError returns how much more a broker's distance from the median of n-1 others varies than the broker itself: the median of a few
// has an error of its own, whose variance for normal values is pi/2 of that of their mean.
func medianError(n int) float64 { return math.Sqrt(1 + math.Pi/2/float64(n-1)) }

// spreadOf returns the spread of sorted values around mid, as that of a normal distribution; the i-th is left out if i is
// not negative.
func spreadOf(sorted []float64, i int, mid float64) float64 {
	away := make([]float64, 0, len(sorted))
	for k, v := range sorted {
		if k != i {
			away = append(away, math.Abs(v-mid))
		}
	}
	return madToSigma * smallSample(len(away)) * medianOf(away)
}

// medianWithout returns the median of sorted values without the i-th.
func medianWithout(sorted []float64, i int) float64 {
	at := func(k int) float64 {
		if k >= i {
			k++
		}
		return sorted[k]
	}
	n := len(sorted) - 1
	if n%2 == 1 {
		return at(n / 2)
	}
	return (at(n/2-1) + at(n/2)) / 2
}

// medianOf sorts values and returns the median.
func medianOf(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	if n%2 == 1 {
		return values[n/2]
	}
	return (values[n/2-1] + values[n/2]) / 2
}

// score turns the round's evidence into ailment and score.
func (m *Monitor) score(p *patient, now time.Time) {
	ailment := NoAilment
	switch {
	case now.Sub(p.storage) >= m.o.StorageTimeout:
		ailment = StorageStuck
	case p.registered && now.Sub(p.outside) >= m.o.OutsideTimeout:
		ailment = OutsideLost
	case p.slowNow:
		ailment = Slow
	}
	if ailment == NoAilment {
		if p.nearly && p.Score > 0 {
			return
		}
		p.clean++
		p.Score = max(p.Score-1, 0)
		return
	}
	p.clean = 0
	p.Ailment = ailment
	if ailment == Slow {
		p.Score = min(p.Score+1, confirmAt+2)
		if p.plainly {
			p.Score = min(p.Score+1, confirmAt+2)
		}
	} else {
		p.Score = confirmAt + 2 // the time-out was the confirmation
	}
}

func (p *patient) out() bool { return p.State == Mitigating || p.State == Mitigated }

// correlated finds the zones that ail as a whole, and pages for them once.
func (m *Monitor) correlated(seen []*patient, out *[]Decision) map[string]bool {
	total, ill := map[string]int{}, map[string]int{}
	var names []string
	for _, p := range seen {
		if total[p.zone]++; total[p.zone] == 1 {
			names = append(names, p.zone)
		}
		if p.Score >= confirmAt-1 || p.out() {
			ill[p.zone]++
		}
	}
	slices.Sort(names)
	bad := map[string]bool{}
	for _, z := range names {
		if ill[z] < 2 || 2*ill[z] < total[z] || len(names) < 2 {
			delete(m.zones, z)
			continue
		}
		bad[z] = true
		confirmed := 0
		for _, p := range seen {
			if p.zone == z && p.Score >= confirmAt {
				confirmed++
			}
		}
		if confirmed >= 2 && !m.zones[z] {
			m.zones[z] = true
			*out = append(*out, Decision{Broker: NoBroker, Zone: z, Action: Page,
				Reason: fmt.Sprintf("%d of %d brokers of the zone ail at once: nothing is done", ill[z], total[z])})
		}
	}
	return bad
}

// step moves one broker through its states.
func (m *Monitor) step(p *patient, zoneIll bool, now time.Time, out *[]Decision) {
	switch p.State {
	case Healthy, Suspect, Probation:
		m.stepIn(p, zoneIll, now, out)
	case Mitigating, Mitigated:
		m.stepOut(p, now, out)
	}
}

func (m *Monitor) stepIn(p *patient, zoneIll bool, now time.Time, out *[]Decision) {
	need := confirmAt
	if p.State == Probation {
		need = 1
	}
	if p.Score >= need {
		if why := m.refused(p, zoneIll); why != "" {
			if p.State != Probation {
				p.State = Suspect
			}
			if !p.held || p.heldReason != why {
				p.held, p.heldReason = true, why
				*out = append(*out, Decision{Broker: p.Broker, Zone: p.zone, Action: p.action(), Ailment: p.Ailment, Suppressed: why, Reason: p.describe()})
				if !zoneIll {
					*out = append(*out, Decision{Broker: p.Broker, Zone: p.zone, Action: Page, Ailment: p.Ailment, Reason: p.describe() + ", and " + why})
				}
			}
			return
		}
		if m.o.Off {
			if !p.held {
				p.held, p.heldReason = true, "kill switch"
				*out = append(*out, Decision{Broker: p.Broker, Zone: p.zone, Action: p.action(), Ailment: p.Ailment, Suppressed: "kill switch", Reason: p.describe()})
			}
			p.State = Suspect
			return
		}
		if !p.released.IsZero() && now.Sub(p.released) < m.o.MaxHoldOff {
			p.Relapses = min(p.Relapses+1, maxDoubling)
		} else {
			p.Relapses = 0
		}
		p.State = Mitigating
		p.mitigated, p.renewed, p.paged, p.held = now, now, false, false
		p.Until = now.Add(m.hold(p))
		*out = append(*out, Decision{Broker: p.Broker, Zone: p.zone, Action: p.action(), Ailment: p.Ailment, Until: p.Until, Reason: p.describe()})
		return
	}
	switch {
	case p.Score > 0 && p.State == Healthy:
		p.State = Suspect
	case p.Score == 0 && p.State == Suspect:
		p.State, p.Ailment, p.held = Healthy, NoAilment, false
	case p.State == Probation && now.Sub(p.released) >= m.hold(p):
		p.State, p.Ailment, p.held = Healthy, NoAilment, false
	}
}

func (m *Monitor) stepOut(p *patient, now time.Time, out *[]Decision) {
	if p.leads == 0 {
		p.State = Mitigated
	} else if !p.paged && now.Sub(p.mitigated) >= m.o.PageAfter {
		p.paged = true
		*out = append(*out, Decision{Broker: p.Broker, Zone: p.zone, Action: Page, Ailment: p.Ailment,
			Reason: fmt.Sprintf("still leads %d partitions %v after the decision", p.leads, now.Sub(p.mitigated))})
	}
	if p.clean >= clearAfter && !now.Before(p.Until) {
		p.State, p.released, p.Score = Probation, now, 0
		*out = append(*out, Decision{Broker: p.Broker, Zone: p.zone, Action: Release, Ailment: p.Ailment, Reason: fmt.Sprintf("healthy for %d rounds", p.clean)})
		return
	}
	// Renew before the flag runs out while there is no proof of health.
	if hold := m.hold(p); p.Until.Sub(now) < hold/2 && p.clean < clearAfter {
		p.Until = now.Add(hold)
		*out = append(*out, Decision{Broker: p.Broker, Zone: p.zone, Action: p.action(), Ailment: p.Ailment, Until: p.Until, Renewal: true, Reason: p.describe()})
	}
}

// hold returns how long the present mitigation lasts at least.
func (m *Monitor) hold(p *patient) time.Duration {
	d := m.o.HoldOff
	for range p.Relapses {
		if d *= 2; d >= m.o.MaxHoldOff {
			return m.o.MaxHoldOff
		}
	}
	return d
}

func (p *patient) action() Action {
	switch p.Ailment {
	case StorageStuck:
		return Fence
	case OutsideLost:
		return Demote
	}
	return LeaveISR
}

func (p *patient) describe() string {
	if p.Ailment == Slow {
		return fmt.Sprintf("%.3g times as slow as the median broker", math.Exp(p.quick))
	}
	return p.Ailment.String()
}

// refused returns why the broker must not be taken out, or "".
func (m *Monitor) refused(p *patient, zoneIll bool) string {
	if zoneIll {
		return "its whole zone ails"
	}
	n, out, load := 0, 0, 0.0
	other := false
	for _, id := range m.ids() {
		q := m.brokers[id]
		if !q.registered && q != p {
			continue
		}
		n++
		load += q.load
		if q == p {
			continue
		}
		if q.out() {
			out++
			other = other || q.zone != p.zone
		}
	}
	allowed := max(1, n/10)
	switch {
	case n < 2:
		return "it is the only broker"
	case out+1 > allowed:
		return fmt.Sprintf("%d of %d brokers are out, %d may be", out, n, allowed)
	case other:
		return "a broker of another zone is out already"
	case p.sole > 0:
		return fmt.Sprintf("%d partitions have no other eligible replica", p.sole)
	case n-out-1 < 1 || load/float64(n-out-1) > m.o.MaxLoad:
		return "the rest could not carry its load"
	}
	return ""
}

func (m *Monitor) ids() []BrokerID {
	ids := make([]BrokerID, 0, len(m.brokers))
	for id := range m.brokers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// OutlierLimit returns the largest z that one outlier among n values can have when the spread is the
// standard deviation of all n: sqrt(n-1). A rule of 1.9 standard deviations never fires for four
// values or fewer, one of 3.5 for none below 14: that is why this package measures the spread by
// the median.
func OutlierLimit(n int) float64 { return math.Sqrt(float64(max(n-1, 0))) }

// Outliers returns the z of each value: the distance of its logarithm from the median one, over
// 1.4826 times the median distance, or over floor if that is larger. Values that are not positive have a z of
// 0. With fewer than three positive values all are 0.
func Outliers(values []float64, floor float64) []float64 {
	z := make([]float64, len(values))
	var logs []float64
	for _, v := range values {
		if v > 0 {
			logs = append(logs, math.Log(v))
		}
	}
	if len(logs) < minPeers {
		return z
	}
	mid := medianOf(logs)
	for i := range logs {
		logs[i] = math.Abs(logs[i] - mid)
	}
	spread := max(madToSigma*medianOf(logs), floor)
	if !(spread > 0) {
		return z
	}
	for i, v := range values {
		if v > 0 {
			z[i] = (math.Log(v) - mid) / spread
		}
	}
	return z
}
