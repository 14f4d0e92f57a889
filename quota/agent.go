package quota

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
)

// Agent is a broker's side of shared quotas: it reports the use of a [Limiter]'s tenants and puts the shares that come back in force there. It has
// no goroutine and no network: the owner calls Reports and Tick every [Rule.Period], carries the reports, and passes grants to Apply. Only
// the quotas of whole tenants are shared, and not [PartitionMutations], which the one controller enforces. Safe for concurrent use.
// A tenant delayed while the broker presses back ([Backpressure]) is not reported as throttled, since no share could help it there.
//
// What a tenant may use here: without a share, the static split, quota/brokers. With one, its limit, times [Rule.LazyFactor] (but
// never more than the whole quota) while the share says so and is at most three periods old. When the lease runs out, the way back
// to the static split: a limit above it falls to it within one [Rule.Lease], a limit below it rises to it in the third lease after, when the
// others have fallen. So the loss of coordinators never lets more through than the quota, unless brokers' leases end more than a Lease
// apart.
type Agent struct {
	self BrokerID
	rule Rule
	l    *Limiter

	// mu is taken with a shard's mu held, never the other way round.
	mu       sync.Mutex
	members  Members
	sessions map[BrokerID]*session
	shares   map[groupID]*localShare
	reported Instant // when Reports was last called
	seq      uint64
}

// session is what a broker has from one coordinator in one term.
type session struct {
	applied uint64
	expires Instant
}

type localShare struct {
	limit   float64
	use     float64
	lazy    bool
	at      Instant // when it was received
	expires Instant // as of its own session; never falls
	from    BrokerID
}

// NewAgent returns an agent of the broker self and makes it the judge of tenants' quotas in l, which must be new: not yet used, and with no
// other agent. Until [Agent.SetMembers] is called, the node has all of each quota.
func NewAgent(self BrokerID, l *Limiter, rule Rule) (*Agent, error) {
	rule, err := rule.withDefaults()
	if err != nil {
		return nil, err
	}
	if l.agent != nil {
		return nil, fmt.Errorf("%w: the limiter has an agent", ErrInvalid)
	}
	l.agent = &Agent{self: self, rule: rule, l: l, sessions: make(map[BrokerID]*session), shares: make(map[groupID]*localShare)}
	return l.agent, nil
}

// SetMembers says what the cluster consists of. An older term than the last is ignored. Shares in force stay until their lease runs out or a
// coordinator of the new term replaces them.
func (a *Agent) SetMembers(m Members, now Instant) {
	a.mu.Lock()
	if m.Term <= a.members.Term {
		a.mu.Unlock()
		return
	}
	a.members = m.normal()
	clear(a.sessions)
	a.seq = 0
	a.mu.Unlock()
	a.l.reapplyAll(now) // the static split has changed
}

// even is the static split of q. Requires mu.
func (a *Agent) even(q float64) float64 { return q / float64(max(1, len(a.members.Brokers))) }

// local returns the rate that a tenant has here under the quota q, and whether the tenant is known to be below the quota cluster-wide.
func (a *Agent) local(id groupID, q Rate, now Instant) (rate Rate, below bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	limit, s := a.limit(id, float64(q), now)
	if s == nil || now > s.at+3*Instant(a.rule.Period) {
		return Rate(limit), false
	}
	if s.lazy && id.kind != Connections {
		limit = min(limit*a.rule.LazyFactor, float64(q))
	}
	return Rate(limit), s.use < BelowQuota
}

// limit returns the limit in force and the share that it came from, if any. Requires mu.
func (a *Agent) limit(id groupID, q float64, now Instant) (float64, *localShare) {
	even := a.even(q)
	s := a.shares[id]
	if s == nil {
		return even, nil
	}
	limit := min(s.limit, q)
	if now <= s.expires {
		return limit, s
	}
	// Cuts come first here too: while one lease passes, and raises only in the third, so that a broker whose lease ends up to one later than this
	// one's has finished its cut.
	leases := float64(now-s.expires) / float64(a.rule.Lease)
	if limit < even {
		leases -= 2
	}
	return limit + (even-limit)*min(1, max(0, leases)), s
}

// Limit returns what a tenant may use here by its share, without lazy doubling and backpressure, and whether a valid lease says so. It returns
// false if the tenant has no quota of the kind, or a blocked one.
func (a *Agent) Limit(tenant string, kind Kind, now Instant) (limit float64, leased, ok bool) {
	q := a.l.TenantRate(tenant, kind)
	if q <= 0 {
		return 0, false, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	limit, s := a.limit(groupID{tenant, kind}, float64(q), now)
	return limit, s != nil && now <= s.expires, true
}

// Reports returns the reports of the period since the last call, one for each coordinator, which the owner carries to Report.To.
func (a *Agent) Reports(now Instant) []Report {
	a.mu.Lock()
	period := now - a.reported
	a.reported = now
	a.mu.Unlock()

	var uses []Use
	for i := range a.l.shards {
		uses = a.l.shards[i].uses(a, uses, period, now)
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	a.seq++
	reports := make([]Report, len(a.members.Coordinators))
	index := make(map[BrokerID]int, len(reports))
	for i, c := range a.members.Coordinators {
		reports[i] = Report{From: a.self, To: c, Term: a.members.Term, Seq: a.seq, At: now, Full: true}
		if s := a.sessions[c]; s != nil && now <= s.expires {
			reports[i].Applied, reports[i].Full = s.applied, false
		}
		index[c] = i
	}
	add := func(u Use, fullOnly bool) {
		c, ok := CoordinatorFor(u.Tenant, a.members.Coordinators)
		if r := index[c]; ok && (!fullOnly || reports[r].Full) {
			reports[r].Uses = append(reports[r].Uses, u)
		}
	}
	named := make(map[groupID]bool, len(uses))
	for _, u := range uses {
		named[groupID{u.Tenant, u.Kind}] = true
		add(u, false)
	}
	if slices.ContainsFunc(reports, func(r Report) bool { return r.Full }) {
		for id := range a.shares {
			if q := a.l.TenantRate(id.tenant, id.kind); q > 0 && !named[id] {
				limit, _ := a.limit(id, float64(q), now)
				add(Use{Tenant: id.tenant, Kind: id.kind, Limit: limit}, true)
			}
		}
	}
	for i := range reports {
		slices.SortFunc(reports[i].Uses, func(a, b Use) int { return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Kind, b.Kind)) })
	}
	return reports
}

// uses appends what the shard's tenants did in the period.
func (s *shard) uses(a *Agent, all []Use, period Instant, now Instant) []Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := s.used[:0]
	for _, acct := range s.used {
		more := false
		for kind := Ingress; int(kind) <= kinds; kind++ {
			m := acct.meters[kind]
			if m == nil || m.quota == nil || m.quota.Rate <= 0 || kind == PartitionMutations {
				continue
			}
			m.settle(now)
			u := Use{Tenant: acct.key.Tenant, Kind: kind, Throttled: m.owed || m.turned}
			if kind != Connections && a.l.pressure.factor(kind) < 1 {
				// What limits it is this broker: a larger share would help nobody, and take from brokers that could use it.
				u.Throttled = false
			}
			if kind == Connections {
				u.Rate = m.used
				more = more || m.used > 0
			} else if period > 0 {
				u.Rate = max(0, m.used-m.reported) * 1e9 / float64(period)
				more = more || m.tokens < 0
			}
			m.reported, m.owed, m.turned = m.used, false, false
			if u.Rate == 0 && !u.Throttled {
				continue
			}
			a.mu.Lock()
			u.Limit, _ = a.limit(groupID{u.Tenant, kind}, float64(m.quota.Rate), now)
			a.mu.Unlock()
			all = append(all, u)
		}
		if more {
			keep = append(keep, acct)
		} else {
			acct.listed = false
		}
	}
	clear(s.used[len(keep):])
	s.used = keep
	return all
}

// Apply puts a grant in force. Grants that are late, not for this broker, or of another term are ignored.
func (a *Agent) Apply(g Grant, now Instant) {
	a.mu.Lock()
	expires := g.ReportAt + Instant(g.Lease)
	s := a.sessions[g.From]
	if g.To != a.self || g.Term != a.members.Term || now > expires || g.ReportAt > now || s != nil && g.Seq <= s.applied {
		a.mu.Unlock()
		return
	}
	if s == nil {
		s = &session{}
		a.sessions[g.From] = s
	}
	s.applied, s.expires = g.Seq, max(s.expires, expires)
	var touched []groupID
	for _, share := range g.Shares {
		if !finite(share.Limit) || !finite(share.Use) || !share.Kind.valid() {
			continue // from a broken coordinator
		}
		if c, _ := CoordinatorFor(share.Tenant, a.members.Coordinators); c != g.From {
			continue
		}
		id := groupID{share.Tenant, share.Kind}
		if q := float64(a.l.TenantRate(share.Tenant, share.Kind)); share.Use == 0 && math.Abs(share.Limit-a.even(q)) <= 1e-6*q {
			delete(a.shares, id) // nobody uses it: the same as no share
			touched = append(touched, id)
			continue
		}
		a.shares[id] = &localShare{share.Limit, share.Use, share.Lazy, now, s.expires, g.From}
		touched = append(touched, id)
	}
	a.mu.Unlock()
	for _, id := range touched {
		a.l.reapply(id, now)
	}
}

// Tick lets time pass for the shares: leases that were renewed, ways to the static split, laziness that is no longer fresh. Call it every
// [Rule.Period].
func (a *Agent) Tick(now Instant) {
	var touched []groupID
	a.mu.Lock()
	for id, s := range a.shares {
		if live := a.sessions[s.from]; live != nil {
			s.expires = max(s.expires, live.expires)
		}
		stale := now > s.at+3*Instant(a.rule.Period)
		if s.lazy && stale {
			s.lazy = false
			touched = append(touched, id)
		}
		switch {
		case now > s.expires+3*Instant(a.rule.Lease):
			delete(a.shares, id)
			touched = append(touched, id)
		case now > s.expires:
			touched = append(touched, id)
		}
	}
	a.mu.Unlock()
	for _, id := range touched {
		a.l.reapply(id, now)
	}
}

// reapply puts the rate in force that the agent and the pressure now give a tenant.
func (l *Limiter) reapply(id groupID, now Instant) {
	s := l.shard(id.tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	if acct := s.tenants[id.tenant]; acct != nil {
		if m := acct.meters[id.kind]; m != nil && m.quota != nil && l.set(acct, id.kind, m.quota, now) {
			acct.wake()
		}
	}
}

func (l *Limiter) reapplyAll(now Instant) {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for _, acct := range s.tenants {
			changed := false
			for kind, m := range acct.meters {
				if m != nil && m.quota != nil {
					changed = l.set(acct, Kind(kind), m.quota, now) || changed
				}
			}
			if changed {
				acct.wake()
			}
		}
		s.mu.Unlock()
	}
}
