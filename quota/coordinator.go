package quota

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"time"
)

// BrokerID names a broker of the cluster.
type BrokerID int32

// Report is what a broker tells a coordinator each period: a plain value that the host carries. Its slices must not be changed.
type Report struct {
	From BrokerID
	To   BrokerID
	Term uint64  // of the sender's view of the cluster
	Seq  uint64  // grows with each report of the sender in a term; a late one is ignored
	At   Instant // on the sender's clock; comes back in [Grant.ReportAt]
	// Applied is the last [Grant.Seq] of this coordinator, in this term, that the sender has in force; 0 for none.
	Applied uint64
	// Full says that Uses holds all shares that the sender has in force, whoever gave them: while it has no valid lease of this coordinator.
	Full bool
	// Uses has the tenants of this coordinator with any use in the period, or with Full any share. A tenant that is missing used nothing.
	Uses []Use
}

// Use is what one tenant did on one broker in a period.
type Use struct {
	Tenant    string
	Kind      Kind
	Rate      float64 // units per second admitted
	Throttled bool    // in debt for any part of the period
	Limit     float64 // in force, without lazy doubling
}

// Grant is what a coordinator tells a broker each period in answer to its reports: a plain value. Its slices must not be changed.
type Grant struct {
	From     BrokerID
	To       BrokerID
	Term     uint64
	Seq      uint64
	ReportAt Instant // of the last report that the sender had, on the receiver's clock: the lease runs from then
	Lease    time.Duration
	// Shares has every share that the receiver has not confirmed, so that a lost grant does no harm, and those of all tenants in its last report.
	Shares []Share
}

// Share is what one broker may use of a tenant's quota.
type Share struct {
	Tenant string
	Kind   Kind
	Limit  float64 // units per second
	Use    float64 // what all brokers use, as a part of the quota: below [BelowQuota] a delay is unfair
	Lazy   bool    // use Rule.LazyFactor times the limit while this is fresh
}

// Members is what all nodes know of the cluster.
type Members struct {
	// Term grows with every change, also when a broker has come back in a new life.
	Term uint64
	// Brokers are those that serve tenants: the static split is by their number.
	Brokers []BrokerID
	// Coordinators are those among which tenants are spread for coordination. Every broker sends a report to each in every period, so a few do.
	// Empty means all brokers.
	Coordinators []BrokerID
	// Weights are the brokers' weights under contention, > 0, where they differ from 1. The map must not be changed.
	Weights map[BrokerID]float64
}

func (m Members) normal() Members {
	m.Brokers = slices.Compact(slices.Sorted(slices.Values(m.Brokers)))
	m.Coordinators = slices.Compact(slices.Sorted(slices.Values(m.Coordinators)))
	if len(m.Coordinators) == 0 {
		m.Coordinators = m.Brokers
	}
	return m
}

// CoordinatorFor returns the broker that coordinates a tenant, by rendezvous hashing: every node that knows the same brokers finds the
// same one, and when a broker comes or goes only the tenants move that it has or had. It returns false if there are no brokers. The hash is
// fixed: nodes of different versions must agree.
//
// Source: Thaler and Ravishankar, "A Name-Based Mapping Scheme for Rendezvous", 1996; the hash is FNV-1a with a final mix as in MurmurHash3.
func CoordinatorFor(tenant string, brokers []BrokerID) (BrokerID, bool) {
	h := fnv.New64a()
	h.Write([]byte(tenant))
	name := h.Sum64()
	best, bestWeight := BrokerID(0), uint64(0)
	for i, b := range brokers {
		w := mix(name ^ mix(uint64(uint32(b))+0x9e3779b97f4a7c15))
		if i == 0 || w > bestWeight || w == bestWeight && b < best {
			best, bestWeight = b, w
		}
	}
	return best, len(brokers) > 0
}

func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Coordinator divides the quotas of the tenants that hash to one broker. It has no clock, goroutine or network: the owner passes reports in,
// calls Step every [Rule.Period], and carries the grants. Not safe for concurrent use.
//
// What it loses when it stops, it learns again: the brokers' first reports to it say what they have in force, and until all have reported,
// or all leases of its predecessor must have run out, it raises nothing.
type Coordinator struct {
	self    BrokerID
	rule    Rule
	quota   func(tenant string, kind Kind) Rate
	members Members
	seq     uint64
	since   Instant // of the term
	brokers []peer  // sorted by id
	groups  map[groupID]*sharedGroup
	order   []*sharedGroup // the same, sorted by id
}

type groupID struct {
	tenant string
	kind   Kind
}

func (g groupID) compare(o groupID) int {
	return cmp.Or(cmp.Compare(g.tenant, o.tenant), cmp.Compare(g.kind, o.kind))
}

type sharedGroup struct {
	*Group
	id    groupID
	quota float64
}

type peer struct {
	id       BrokerID
	heard    bool    // in this term
	lost     bool    // its lease has run out
	at       Instant // of its last report, here
	reportAt Instant // the same on its clock
	seq      uint64  // of its last report
	applied  uint64
}

// NewCoordinator returns a coordinator on the broker self. quota gives the cluster-wide rate of a tenant, or [Unlimited] where it has none;
// [Limiter.TenantRate] does, on a node whose settings are the cluster's.
func NewCoordinator(self BrokerID, rule Rule, quota func(tenant string, kind Kind) Rate) (*Coordinator, error) {
	rule, err := rule.withDefaults()
	if err != nil {
		return nil, err
	}
	if quota == nil {
		return nil, fmt.Errorf("%w: no quota function", ErrInvalid)
	}
	return &Coordinator{self: self, rule: rule, quota: quota, groups: make(map[groupID]*sharedGroup)}, nil
}

// SetMembers says what the cluster consists of. An older term than the last is ignored.
func (c *Coordinator) SetMembers(m Members, now Instant) {
	if m.Term <= c.members.Term {
		return
	}
	c.members, c.since = m.normal(), now
	c.brokers = nil
	for _, id := range c.members.Brokers {
		c.brokers = append(c.brokers, peer{id: id, at: now})
	}
	// Who coordinates what, and the static split, have changed: begin with what the brokers say they have.
	clear(c.groups)
	c.order = nil
}

func find(peers []peer, id BrokerID) (int, bool) {
	return slices.BinarySearchFunc(peers, id, func(p peer, id BrokerID) int { return cmp.Compare(p.id, id) })
}

// owns reports whether the tenant is this coordinator's.
func (c *Coordinator) owns(tenant string) bool {
	b, ok := CoordinatorFor(tenant, c.members.Coordinators)
	return ok && b == c.self
}

// group returns the group of a tenant's quota, made if need be, or nil if there is no such quota.
func (c *Coordinator) group(id groupID) *sharedGroup {
	if g := c.groups[id]; g != nil {
		return g
	}
	q := c.quota(id.tenant, id.kind)
	if q <= 0 || !c.owns(id.tenant) {
		return nil
	}
	g := &sharedGroup{newGroup(c.rule, len(c.brokers), float64(q)), id, float64(q)}
	for i, p := range c.brokers {
		if w := c.members.Weights[p.id]; w > 0 && w <= 1e9 {
			g.SetWeight(i, w)
		}
		if p.lost || !p.heard {
			g.Lost(i, c.even(g))
		}
	}
	c.groups[id] = g
	at, _ := slices.BinarySearchFunc(c.order, id, func(g *sharedGroup, id groupID) int { return g.id.compare(id) })
	c.order = slices.Insert(c.order, at, g)
	return g
}

// even is the static split: what a broker uses that has been told nothing.
func (c *Coordinator) even(g *sharedGroup) float64 { return g.quota / float64(len(c.brokers)) }

// Report takes a broker's report in. Reports of another term, of unknown brokers, and such that were overtaken by later ones are ignored.
func (c *Coordinator) Report(r Report, now Instant) {
	i, ok := find(c.brokers, r.From)
	if !ok || r.Term != c.members.Term || r.To != c.self {
		return
	}
	p := &c.brokers[i]
	back := !p.heard || p.lost
	if r.Seq <= p.seq || back && !r.Full {
		return // without a full one first, what the broker has in force is not known
	}
	p.seq = r.Seq
	p.heard, p.lost = true, false
	p.at, p.reportAt, p.applied = now, r.At, r.Applied

	for _, u := range r.Uses {
		if !finite(u.Rate) || !finite(u.Limit) || !u.Kind.valid() {
			continue // from a broken broker; as if it used nothing
		}
		g := c.group(groupID{u.Tenant, u.Kind})
		if g == nil {
			continue
		}
		if r.Full {
			c.found(g, i, u.Limit, back)
		}
		g.Report(i, u.Rate, u.Throttled, r.Applied)
		g.members[i].report = r.Seq
	}
	for _, g := range c.order {
		if g.members[i].report == r.Seq {
			continue
		}
		if r.Full {
			c.found(g, i, c.even(g), back)
		}
		g.Report(i, 0, false, r.Applied)
	}
}

// finite reports whether v is a rate.
func finite(v float64) bool { return v >= 0 && v <= 1e18 }

// found takes in that a broker has no valid lease and what it has in force. It is on its way to the static split, and, unless it was out of reach
// so long that it can't obey that any more, may yet get what it was told before.
func (c *Coordinator) found(g *sharedGroup, i int, limit float64, back bool) {
	held := max(limit, c.even(g))
	if !back {
		held = max(held, g.members[i].held)
	}
	g.Found(i, limit, held)
}

// Step divides all quotas and returns a grant for every broker that is in reach. Call it every [Rule.Period].
func (c *Coordinator) Step(now Instant) []Grant {
	c.seq++
	learn := false
	for i := range c.brokers {
		p := &c.brokers[i]
		if !p.heard {
			// Leases of a coordinator before this term end within one Lease after it, and the ways to the static split within three more.
			learn = learn || now-c.since < Instant(4*c.rule.Lease)
			continue
		}
		if !p.lost && now-p.at > Instant(c.rule.Lease) {
			p.lost = true
			for _, g := range c.order {
				g.Lost(i, max(g.members[i].held, c.even(g)))
			}
		}
	}
	c.order = slices.DeleteFunc(c.order, func(g *sharedGroup) bool {
		q := float64(c.quota(g.id.tenant, g.id.kind))
		if q <= 0 || g.idle(q) && g.quota == q {
			delete(c.groups, g.id) // the brokers block, or stay at the static split, by themselves
			return true
		}
		g.quota = q
		g.Step(q, c.seq, learn)
		return false
	})

	grants := make([]Grant, 0, len(c.brokers))
	for i := range c.brokers {
		p := &c.brokers[i]
		if !p.heard || p.lost {
			continue
		}
		shares := make([]Share, 0, len(c.order))
		for _, g := range c.order {
			if m := &g.members[i]; m.seq > p.applied || m.report == p.seq {
				shares = append(shares, Share{g.id.tenant, g.id.kind, m.granted, g.use / g.quota, g.lazy})
			}
		}
		grants = append(grants, Grant{c.self, p.id, c.members.Term, c.seq, p.reportAt, c.rule.Lease, shares})
	}
	return grants
}

// Quota returns the present division of one quota: the limits of all brokers as told, and what they use together. ok is false if nobody used
// it lately.
func (c *Coordinator) Quota(tenant string, kind Kind) (limits map[BrokerID]float64, use float64, ok bool) {
	g := c.groups[groupID{tenant, kind}]
	if g == nil {
		return nil, 0, false
	}
	limits = make(map[BrokerID]float64, len(c.brokers))
	for i, p := range c.brokers {
		limits[p.id], _ = g.Limit(i)
	}
	return limits, g.use, true
}
