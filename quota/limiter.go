package quota

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"
)

// Options configure a [Limiter]. The zero value is usable: no settings, so nothing is limited until [Limiter.Alter].
type Options struct {
	// Settings are in force from the start.
	Settings []Setting
	// MaxDelay, if positive, caps the delays that Charge, Reserve and Ticket return, for hosts whose clients give up on a request after some
	// time. Debt is kept, so a client that comes back too early is delayed again and still gets its rate on average. Default 0: no cap.
	// Wait and the Listener are not capped.
	MaxDelay time.Duration
}

// Limiter holds the quotas of one node and the use of every tenant, principal and client id that it has lately served. It owns no goroutine
// and needs no Close. Safe for concurrent use.
//
// All levels that apply to a [Key] are charged, from the tenant down to the client id, in one step; the delay is the largest of theirs.
type Limiter struct {
	start    time.Time // of Now; with its monotonic reading
	maxDelay time.Duration
	seed     maphash.Seed
	table    table
	alter    sync.Mutex // one change of settings or shares at a time; taken before any shard's mu
	agent    *Agent     // gives the tenants' rates on this node; nil: the node has all of each quota. Set before the first use
	pressure pressed
	shards   [64]shard
}

// shard holds the tenants that hash to it, whole: all levels of a key are under one lock, which makes their check and charge one step.
type shard struct {
	mu                sync.Mutex
	depth             int                 // levels of a key that can have quotas, as in table.depth
	tenants           map[string]*account // by tenant
	below             map[Key]*account    // principals and client ids
	used              []*account          // tenants with use to report; kept only with an agent
	sweepAt           int                 // number of accounts at which the next sweep is due
	throttled, unfair time.Duration       // of tenants forgotten
}

// NewLimiter returns a limiter with the settings of o in force, or an error that names every mistake in them.
func NewLimiter(o Options) (*Limiter, error) {
	l := &Limiter{start: time.Now(), maxDelay: o.MaxDelay, seed: maphash.MakeSeed()}
	l.table.settings = make(map[Entity]*quotaSet)
	for i := range l.shards {
		s := &l.shards[i]
		s.depth, s.sweepAt = 1, sweepMin
		s.tenants, s.below = make(map[string]*account), make(map[Key]*account)
	}
	alterations := make([]Alteration, len(o.Settings))
	for i := range o.Settings {
		alterations[i] = Alteration{o.Settings[i].Entity, o.Settings[i].Kind, &o.Settings[i].Quota}
	}
	err := l.Alter(alterations, false, 0)
	if o.MaxDelay < 0 {
		err = fmt.Errorf("%w: MaxDelay %v is negative", ErrInvalid, o.MaxDelay)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Now returns the present time on the limiter's clock, which is monotonic: steps of the wall clock don't show. In a testing/synctest bubble
// in which the limiter was made it is virtual.
func (l *Limiter) Now() Instant { return Instant(time.Since(l.start)) }

func (l *Limiter) shard(tenant string) *shard {
	return &l.shards[maphash.String(l.seed, tenant)%uint64(len(l.shards))]
}

const sweepMin = 64

// lookup returns the account of the deepest level of key that can have a quota. Requires mu.
func (s *shard) lookup(l *Limiter, key Key, now Instant) *account {
	if s.depth == 1 || key.Principal == "" && key.Client == "" {
		if a := s.tenants[key.Tenant]; a != nil {
			return a
		}
		return s.account(l, Key{Tenant: key.Tenant}, now)
	}
	if s.depth == 2 {
		key.Client = ""
	}
	return s.account(l, key, now)
}

// account returns the account of exactly key, made if need be with those above it. Requires mu.
func (s *shard) account(l *Limiter, key Key, now Instant) *account {
	isTenant := key.Principal == "" && key.Client == ""
	if isTenant {
		if a := s.tenants[key.Tenant]; a != nil {
			return a
		}
	} else if a := s.below[key]; a != nil {
		return a
	}
	if len(s.tenants)+len(s.below) >= s.sweepAt {
		s.sweep(l, now)
	}
	a := &account{key: key}
	switch {
	case isTenant:
		s.tenants[key.Tenant] = a
	case key.Client != "" && key.Principal != "":
		a.parent = s.account(l, Key{Tenant: key.Tenant, Principal: key.Principal}, now)
	default:
		a.parent = s.account(l, Key{Tenant: key.Tenant}, now)
	}
	if a.parent != nil {
		a.parent.holds++
		s.below[key] = a
	}
	l.refresh(s, a, now)
	return a
}

// sweep forgets what is idle and decides when to look again, so that names which clients make up cost bounded memory and constant time
// each. Requires mu.
func (s *shard) sweep(l *Limiter, now Instant) (removed int) {
	// Client ids first, since they hold principals, which hold tenants; borrowers before lenders, which have no principal.
	for pass := range 3 {
		for key, a := range s.below {
			rank := 2 - a.level()
			if a.level() == 2 && key.Principal == "" {
				rank = 1
			}
			if rank <= pass && l.idle(a, now) {
				a.parent.holds--
				if a.lender != nil {
					a.lender.holds--
				}
				delete(s.below, key)
				removed++
			}
		}
	}
	for tenant, a := range s.tenants {
		if l.idle(a, now) {
			for _, m := range a.meters {
				if m != nil {
					s.throttled += m.throttled
					s.unfair += m.unfair
				}
			}
			delete(s.tenants, tenant)
			removed++
		}
	}
	s.sweepAt = max(sweepMin, 2*(len(s.tenants)+len(s.below)))
	return removed
}

// Expire forgets every party whose buckets are all full and that nobody holds, and returns how many that were. The limiter does the same
// by itself as new parties come; call this now and then to give memory back after a peak.
func (l *Limiter) Expire(now Instant) int {
	removed := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		removed += s.sweep(l, now)
		s.mu.Unlock()
	}
	return removed
}

// charge charges every level and returns the largest delay. Requires the shard's mu.
func (l *Limiter) charge(s *shard, a *account, kind Kind, n int64, now Instant) (delay time.Duration) {
	for ; a != nil; a = a.parent {
		if m := l.at(a, kind, now); m != nil {
			delay = max(delay, m.charge(n, now))
			if a.parent == nil && l.agent != nil {
				s.list(a)
			}
		}
	}
	return delay
}

// list notes that the tenant has something to report.
func (s *shard) list(a *account) {
	if !a.listed {
		a.listed = true
		s.used = append(s.used, a)
	}
}

// delay returns the largest delay of all levels. Requires the shard's mu.
func (l *Limiter) delay(a *account, kind Kind, now Instant) (delay time.Duration) {
	for ; a != nil; a = a.parent {
		if m := l.at(a, kind, now); m != nil {
			m.settle(now)
			delay = max(delay, m.Bucket.delay(0))
		}
	}
	return delay
}

// mustFlow panics on a kind that has no rate: a mistake in the caller's code.
func mustFlow(kind Kind) {
	if kind < Ingress || kind >= Connections {
		panic("quota: " + kind.String() + " can't be charged")
	}
}

func (l *Limiter) capped(d time.Duration) time.Duration {
	if l.maxDelay > 0 {
		return min(d, l.maxDelay)
	}
	return d
}

// Charge charges n units of kind to every level of key that has a quota, after the fact, and returns for how long the host should ask
// nothing more of that party: it answers the request at once, then reads no further request for that long (KIP-219). A negative n gives
// back. n may be larger than the burst. kind must not be [Connections], which [Limiter.Acquire] counts.
//
// It never blocks and does not allocate for a party already known. It returns [Forever] under a blocked rate.
//
// Source: KIP-219 for the meaning of the delay, KIP-599 for the bucket; that all levels are charged is our own.
func (l *Limiter) Charge(key Key, kind Kind, n int64, now Instant) time.Duration {
	mustFlow(kind)
	s := l.shard(key.Tenant)
	s.mu.Lock()
	d := l.charge(s, s.lookup(l, key, now), kind, n, now)
	s.mu.Unlock()
	return l.capped(d)
}

// Delay returns for how long the party is in debt, without charging anything.
func (l *Limiter) Delay(key Key, kind Kind, now Instant) time.Duration {
	mustFlow(kind)
	s := l.shard(key.Tenant)
	s.mu.Lock()
	d := l.delay(s.lookup(l, key, now), kind, now)
	s.mu.Unlock()
	return l.capped(d)
}

// Reserve charges n if no level of key is in debt, and returns true. Otherwise it charges nothing and returns how long to wait. Use it for
// what is refused rather than delayed ([PartitionMutations]: KIP-599's strict quota, one call per topic in the order of the request), and to
// charge an estimate before the work where many requests of one party run at once (a later [Limiter.Charge] of the difference, maybe
// negative, puts it right): check and charge are one step, so they can't all pass one check (KAFKA-19968).
func (l *Limiter) Reserve(key Key, kind Kind, n int64, now Instant) (time.Duration, bool) {
	mustFlow(kind)
	s := l.shard(key.Tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.lookup(l, key, now)
	if d := l.delay(a, kind, now); d > 0 {
		return l.capped(d), false
	}
	l.charge(s, a, kind, n, now)
	return 0, true
}

// Wait charges n and returns nil once all the debt up to and with that charge is paid on every level; what others charge later doesn't
// prolong it. A change of the quota re-times it. When ctx ends first, it gives n back and returns a [*ThrottledError] that wraps
// the cause. With n = 0 it waits for the debt of others only.
//
// It reads the limiter's own clock.
func (l *Limiter) Wait(ctx context.Context, key Key, kind Kind, n int64) error {
	mustFlow(kind)
	now := l.Now()
	s := l.shard(key.Tenant)
	s.mu.Lock()
	a := s.lookup(l, key, now)
	if l.charge(s, a, kind, n, now) == 0 {
		s.mu.Unlock()
		return nil
	}
	a.holds++
	err := l.sleep(ctx, s, a, kind, l.marks(a, kind, now))
	if err != nil {
		now = l.Now()
		l.charge(s, a, kind, -n, now)
		err = &ThrottledError{Key: key, Kind: kind, RetryAfter: l.capped(l.delay(a, kind, now)), Err: err}
	}
	a.holds--
	s.mu.Unlock()
	return err
}

// turn charges n and waits for the debt from before: in the order of the calls, so that none is overtaken for ever, and with the charge made
// before the check, so that calls at once can't all pass it. If ctx ends first it gives n back. Requires s.mu, which it gives up while it waits.
func (l *Limiter) turn(ctx context.Context, s *shard, a *account, key Key, kind Kind, n int64, now Instant) error {
	owes := l.delay(a, kind, now) > 0
	marks := l.marks(a, kind, now)
	l.charge(s, a, kind, n, now)
	if !owes {
		return nil
	}
	a.holds++
	defer func() { a.holds-- }()
	if err := l.sleep(ctx, s, a, kind, marks); err != nil {
		now = l.Now()
		l.charge(s, a, kind, -n, now)
		return &ThrottledError{Key: key, Kind: kind, RetryAfter: l.capped(l.delay(a, kind, now)), Err: err}
	}
	return nil
}

// marks returns how much every level has been charged. Requires the shard's mu.
func (l *Limiter) marks(a *account, kind Kind, now Instant) (marks [3]float64) {
	for i, a := range a.chain() {
		marks[i] = noMark
		if a != nil {
			if m := l.at(a, kind, now); m != nil {
				marks[i] = m.used
			}
		}
	}
	return marks
}

// sleep waits until all that was charged up to marks is paid. Requires the shard's mu, which it gives up while it sleeps and holds when it
// returns; and that a is held.
func (l *Limiter) sleep(ctx context.Context, s *shard, a *account, kind Kind, marks [3]float64) error {
	levels, now := a.chain(), l.Now()
	var timer *time.Timer
	for {
		var remaining time.Duration
		var changed [3]chan struct{}
		for i, a := range levels {
			if a == nil {
				continue
			}
			if m := l.at(a, kind, now); m != nil {
				remaining = max(remaining, m.remaining(marks[i], now))
			}
			if a.lender != nil {
				a = a.lender // shared buckets change there, and a refresh of the borrower wakes it too
			}
			if a.changed == nil {
				a.changed = make(chan struct{})
			}
			changed[i] = a.changed
		}
		if remaining == 0 {
			return nil
		}
		s.mu.Unlock()
		if timer == nil {
			timer = time.NewTimer(remaining)
			defer timer.Stop()
		} else {
			timer.Reset(remaining)
		}
		var err error
		select {
		case <-timer.C:
		case <-changed[0]:
		case <-changed[1]:
		case <-changed[2]:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		s.mu.Lock()
		if err != nil {
			return err
		}
		now = l.Now()
	}
}

// Alter makes all alterations in one step, or none: it returns an error that names every mistake and wraps [ErrInvalid]. With validateOnly it
// only checks. Buckets keep their debt; time up to now counts at the old rate, and everybody who sleeps in [Limiter.Wait] gets the delay of
// the new one. It takes time in proportion to the parties known.
//
// Source: KIP-546 for the shape of the call.
func (l *Limiter) Alter(alterations []Alteration, validateOnly bool, now Instant) error {
	if err := check(alterations); err != nil || validateOnly || len(alterations) == 0 {
		return err
	}
	l.alter.Lock()
	defer l.alter.Unlock()
	l.table.apply(alterations)
	depth := l.table.depth()
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		s.depth = depth
		s.refreshAll(l, now)
		s.mu.Unlock()
	}
	return nil
}

func (s *shard) refreshAll(l *Limiter, now Instant) {
	for _, a := range s.tenants {
		l.refresh(s, a, now)
	}
	// A refresh may add lenders; what is added during the range may be visited or not, and is fresh either way.
	for _, a := range s.below {
		l.refresh(s, a, now)
	}
}

// Describe returns the settings whose entities match, sorted: named before default before absent, then by name and kind.
//
// Source: KIP-546.
func (l *Limiter) Describe(f Filter) []Setting { return l.table.describe(f) }

// TenantRate returns the rate of the quota that applies to a tenant as a whole, over all brokers, or [Unlimited] if there is none.
func (l *Limiter) TenantRate(tenant string, kind Kind) Rate {
	if !kind.valid() {
		return Unlimited
	}
	own, shared := l.table.resolve(Key{Tenant: tenant}, 0)
	if q := cmp.Or(own[kind], shared[kind]); q != nil {
		return q.Rate
	}
	return Unlimited
}

// Levels returns how many levels of a key can be charged by the present settings: 1 for tenants alone, 2 with principals, 3 with client ids.
func (l *Limiter) Levels() int { return l.table.depth() }

// Usage is what is known of one bucket.
type Usage struct {
	Rate      Rate          // in force here, with what coordination and backpressure make of the quota
	Tokens    float64       // what may be used at once; negative: debt
	Used      int64         // charged since the party's state was made, less what was given back; of [Connections]: open
	Refused   int64         // connections refused by a gauge
	Throttled time.Duration // in debt since the party's state was made
	Unfair    time.Duration // the part of Throttled while the tenant was known to be below its quota cluster-wide ([BelowQuota])
}

// Usage returns what is known of the deepest level that key names, or false if no quota of the kind applies there. It makes no state.
func (l *Limiter) Usage(key Key, kind Kind, now Instant) (Usage, bool) {
	if !kind.valid() {
		return Usage{}, false
	}
	s := l.shard(key.Tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.tenants[key.Tenant]
	if key.Principal != "" || key.Client != "" {
		a = s.below[key]
	}
	if a == nil {
		return Usage{}, false
	}
	m := l.at(a, kind, now)
	if m == nil {
		return Usage{}, false
	}
	m.settle(now)
	return Usage{Rate(m.rate), m.tokens, int64(m.used), int64(m.refused), m.throttled, m.unfair}, true
}

// Stats counts what a limiter holds.
type Stats struct {
	Tenants int // with state
	Below   int // principals and client ids with state
	// Throttled and Unfair are the sums over all tenants since the limiter was made, all kinds.
	Throttled time.Duration
	Unfair    time.Duration
}

// Stats walks all that the limiter holds.
func (l *Limiter) Stats(now Instant) (stats Stats) {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		stats.Tenants += len(s.tenants)
		stats.Below += len(s.below)
		stats.Throttled += s.throttled
		stats.Unfair += s.unfair
		for _, a := range s.tenants {
			for _, m := range a.meters {
				if m != nil {
					m.settle(now)
					stats.Throttled += m.throttled
					stats.Unfair += m.unfair
				}
			}
		}
		s.mu.Unlock()
	}
	return stats
}
