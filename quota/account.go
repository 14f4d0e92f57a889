package quota

import (
	"math"
	"time"
)

// meter is one bucket with what is counted about it. Guarded by its shard's mu. It fills a size class of the allocator (80 bytes) exactly: a node
// may hold hundreds of thousands.
type meter struct {
	Bucket
	quota     *Quota  // that applies, as configured: for a tenant of several nodes the cluster-wide one; nil: none since the last change
	used      float64 // charged since the meter was made, less what was given back; whole numbers. Of a gauge: held at present
	reported  float64 // used when last reported to the coordinator
	throttled time.Duration
	unfair    time.Duration // the part of throttled while the tenant was below its quota cluster-wide
	refused   uint32        // by a gauge
	below     bool          // the cluster-wide use of the tenant was below its quota when last heard of
	owed      bool          // was in debt since the last report
	turned    bool          // refused something since the last report
}

// settle is Bucket.settle that also counts the time in debt.
func (m *meter) settle(now Instant) {
	if m.tokens < 0 && now > m.last {
		debt := time.Duration(now - m.last)
		if m.rate > 0 {
			debt = min(debt, debtDelay(-m.tokens, m.rate))
		}
		if m.rate >= 0 {
			m.throttled += debt
			m.owed = true
			if m.below {
				m.unfair += debt
			}
		}
	}
	m.Bucket.settle(now)
}

func (m *meter) charge(n int64, now Instant) time.Duration {
	m.settle(now)
	m.take(n)
	m.used += float64(n)
	return m.delay(0)
}

// remaining is how long one sleeps who charged when used was mark: what was charged behind a sleeper doesn't delay it. Whoever gives
// something back shortens at most the wait of those behind.
func (m *meter) remaining(mark float64, now Instant) time.Duration {
	m.settle(now)
	return m.delay(max(0, m.used-mark))
}

// account is one party of a level: a tenant, a principal of it, or a client id. Guarded by its shard's mu.
type account struct {
	key     Key
	parent  *account // the level above; nil for a tenant
	lender  *account // holds the buckets that a client shares over all principals; nil if there are none
	changed chan struct{}
	meters  [kinds + 1]*meter // made at the first charge; entries of lender are shared with it
	limited uint8             // bit per kind that some quota applies to at this level
	listed  bool              // in the shard's list of tenants with use to report
	holds   int32             // tickets, sleepers, connections, accounts below and borrowers: the account must stay
}

// Requires: one bit per kind.
var _ [8 - kinds - 1]struct{}

func (a *account) level() int {
	switch {
	case a.key.Client != "":
		return 2
	case a.key.Principal != "":
		return 1
	}
	return 0
}

// wake makes all sleepers of the account ask for their delay again.
func (a *account) wake() {
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// at returns the account's meter of the kind, or nil if no quota applies.
func (l *Limiter) at(a *account, kind Kind, now Instant) *meter {
	m := a.meters[kind]
	if m != nil && m.quota != nil {
		return m
	}
	if a.limited&(1<<kind) == 0 {
		return nil
	}
	return l.makeMeter(a, kind, now)
}

// makeMeter makes the meter at its first use. It is full, as if the party had been idle until now; but a strict kind's is as full as it could
// be if it was empty when the limiter was made, so that a restart gives no second burst.
func (l *Limiter) makeMeter(a *account, kind Kind, now Instant) *meter {
	own, shared := l.table.resolve(a.key, a.level())
	q := own[kind]
	if q == nil && a.lender != nil {
		m := l.at(a.lender, kind, now)
		a.meters[kind] = m
		return m
	}
	if q == nil {
		q = shared[kind]
	}
	if q == nil {
		return nil
	}
	rate, burst, below := l.applied(a, kind, *q, now)
	m := &meter{Bucket: NewBucket(rate, burst, burst, now), quota: q, below: below}
	if kind == PartitionMutations {
		m.Bucket = NewBucket(rate, burst, 0, 0)
		m.settle(now)
	}
	a.meters[kind] = m
	return m
}

// applied is the rate and the burst in tokens of the account on this node under the quota q, which for a tenant may be cluster-wide, and
// whether the tenant is known to be below its quota cluster-wide.
func (l *Limiter) applied(a *account, kind Kind, q Quota, now Instant) (rate Rate, burst float64, below bool) {
	rate = q.Rate
	if a.parent == nil && q.Rate > 0 && kind != PartitionMutations {
		if l.agent != nil {
			rate, below = l.agent.local(groupID{a.key.Tenant, kind}, q.Rate, now)
		}
		if kind != Connections {
			rate *= Rate(l.pressure.factor(kind))
		}
	}
	return rate, max(0, float64(rate)) * q.burst().Seconds(), below
}

// set applies a quota to the meter, settled at the old rate up to now, and reports whether sleepers must look again.
func (l *Limiter) set(a *account, kind Kind, q *Quota, now Instant) bool {
	m := a.meters[kind]
	if m == nil {
		return false
	}
	m.settle(now)
	m.quota = q
	if q == nil {
		m.Bucket.Set(Unlimited, 0, now)
		return true
	}
	rate, burst, below := l.applied(a, kind, *q, now)
	m.below = below
	if float64(rate) == m.rate && burst == m.burst {
		return false
	}
	m.Bucket.Set(rate, burst, now)
	return true
}

// refresh resolves the account's quotas anew after a change of the settings.
func (l *Limiter) refresh(s *shard, a *account, now Instant) {
	a.holds++ // making a lender may sweep the shard
	defer func() { a.holds-- }()
	own, shared := l.table.resolve(a.key, a.level())
	borrows := false
	a.limited = 0
	lends := a.key.Principal == "" // its buckets are those shared by all principals
	changed := false
	for kind := Ingress; int(kind) <= kinds; kind++ {
		q := own[kind]
		if q == nil {
			q = shared[kind]
		}
		if q != nil {
			a.limited |= 1 << kind
		}
		borrowed := own[kind] == nil && shared[kind] != nil && !lends
		borrows = borrows || borrowed
		if borrowed || a.lender != nil && a.meters[kind] == a.lender.meters[kind] {
			a.meters[kind] = nil // look it up again at the next charge
			changed = true
			continue
		}
		changed = l.set(a, kind, q, now) || changed
	}
	if changed {
		a.wake()
		if a.lender != nil {
			a.lender.wake() // who sleeps on a borrowed bucket waits there
		}
	}
	switch {
	case borrows && a.lender == nil:
		a.lender = s.account(l, Key{Tenant: a.key.Tenant, Client: a.key.Client}, now)
		a.lender.holds++
	case !borrows && a.lender != nil:
		a.lender.holds--
		a.lender = nil
	}
}

// idle reports whether the account may be forgotten: nobody holds it, all that was used is reported, and every bucket is full, so that a new
// account is the same. Expiring any earlier would forgive debt.
func (l *Limiter) idle(a *account, now Instant) bool {
	if a.holds > 0 || a.listed {
		return false
	}
	for kind, m := range a.meters {
		if m == nil || a.lender != nil && a.lender.meters[kind] == m {
			continue
		}
		m.settle(now)
		if Kind(kind) == Connections {
			if m.used > 0 {
				return false
			}
		} else if !m.Bucket.Full(now) || l.agent != nil && a.parent == nil && m.used != m.reported {
			return false
		}
	}
	return true
}

// chain returns the account of each level, nil where there is none.
func (a *account) chain() (levels [3]*account) {
	levels[a.level()] = a
	for p := a.parent; p != nil; p = p.parent {
		levels[p.level()] = p
	}
	return levels
}

const noMark = math.MaxFloat64
