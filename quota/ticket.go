package quota

import (
	"context"
	"io"
	"sync"
	"time"
)

// Ticket accounts one request of a party from [Limiter.Admit] to [Ticket.Done]. Safe for concurrent use.
type Ticket struct {
	l   *Limiter
	s   *shard
	a   *account
	key Key
	ctx context.Context // ends the waits of Reader and Writer, whose interfaces have no room for it

	released bool // guarded by s.mu: a is no longer held

	mu       sync.Mutex
	busy     Instant            // since when request time runs, if running
	spent    Instant            // request time before busy
	paused   int                // nested Pause calls
	reserved [kinds + 1]int64   // charged in advance, not yet used
	charged  [kinds + 1]float64 // used so far, for Cancel
	done     bool
}

// Admit starts the account of one request. It never blocks and never refuses; what to do with a party in debt is the host's choice: ask
// [Ticket.RetryAfter] and answer "too many requests", or [Ticket.Wait]. ctx is that of the request and ends the waits of the ticket's Reader
// and Writer. Call [Ticket.Done] once the answer is out: until then the party's state is held in memory, and the request time runs.
func (l *Limiter) Admit(ctx context.Context, key Key) *Ticket {
	now := l.Now()
	s := l.shard(key.Tenant)
	s.mu.Lock()
	a := s.lookup(l, key, now)
	a.holds++
	s.mu.Unlock()
	return &Ticket{l: l, s: s, a: a, key: key, ctx: ctx, busy: now}
}

// account returns the ticket's account, or after Done the one that has its key now. Requires s.mu.
func (t *Ticket) account(now Instant) *account {
	if t.released {
		return t.s.lookup(t.l, t.key, now)
	}
	return t.a
}

// Charge charges n units of kind, first out of what the ticket has reserved, and returns the delay of the party's next request. See
// [Limiter.Charge]. After Done it still charges (the bytes did flow).
func (t *Ticket) Charge(kind Kind, n int64) time.Duration {
	mustFlow(kind)
	t.mu.Lock()
	t.charged[kind] += float64(n)
	if n > 0 {
		use := min(n, t.reserved[kind])
		t.reserved[kind] -= use
		n -= use
	}
	t.mu.Unlock()
	now := t.l.Now()
	t.s.mu.Lock()
	d := t.l.charge(t.s, t.account(now), kind, n, now)
	t.s.mu.Unlock()
	return t.l.capped(d)
}

// Reserve charges n units in advance if no level is in debt, and returns true; otherwise it charges nothing and returns how long to wait. What
// Charge doesn't use of it, Done gives back. Requests of one party that run at once should reserve an estimate, such as the largest size of
// the answer: a request that reserved is seen by the next one.
func (t *Ticket) Reserve(kind Kind, n int64) (time.Duration, bool) {
	mustFlow(kind)
	now := t.l.Now()
	t.s.mu.Lock()
	a := t.account(now)
	d := t.l.delay(a, kind, now)
	if d == 0 {
		t.l.charge(t.s, a, kind, n, now)
	}
	t.s.mu.Unlock()
	if d > 0 {
		return t.l.capped(d), false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reserved[kind] += n
	return 0, true
}

// RetryAfter returns for how long the party is in debt of any kind: the largest delay, not their sum. Zero means go on. This is what HTTP's
// Retry-After and Kafka's throttle_time_ms say.
func (t *Ticket) RetryAfter() time.Duration {
	now := t.l.Now()
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.retryAfter(t.account(now), now)
}

func (t *Ticket) retryAfter(a *account, now Instant) (d time.Duration) {
	for kind := Ingress; kind < PartitionMutations; kind++ {
		d = max(d, t.l.delay(a, kind, now))
	}
	return t.l.capped(d)
}

// Wait sleeps until the debt is paid that the party has now, and returns nil, or a [*ThrottledError] if ctx ends first. The wait is not
// counted as request time.
func (t *Ticket) Wait(ctx context.Context) error {
	t.Pause()
	defer t.Resume()
	for kind := Ingress; kind < PartitionMutations; kind++ {
		if err := t.wait(ctx, kind, 0); err != nil {
			return err
		}
	}
	return nil
}

func (t *Ticket) wait(ctx context.Context, kind Kind, n int64) error {
	now := t.l.Now()
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.l.turn(ctx, t.s, t.account(now), t.key, kind, n, now)
}

// Pause stops the request time, and Resume lets it run again, around waits that are not the tenant's doing: for replication, for data to
// arrive. Pairs may nest and overlap.
func (t *Ticket) Pause() {
	now := t.l.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.paused == 0 && !t.done {
		t.spent += now - t.busy
	}
	t.paused++
}

// Resume ends the effect of one Pause.
func (t *Ticket) Resume() {
	now := t.l.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.paused > 0 {
		if t.paused--; t.paused == 0 {
			t.busy = now
		}
	}
}

// Done ends the account: it charges the request time, gives back what was reserved and not used, and returns the delay for which the host
// should read nothing more of the party (the largest of all kinds). Calls after the first only return the delay.
func (t *Ticket) Done() time.Duration { return t.finish(false) }

// Cancel is Done for a request that failed before it had any effect: bytes are given back, only request time stays charged.
func (t *Ticket) Cancel() time.Duration { return t.finish(true) }

func (t *Ticket) finish(cancel bool) time.Duration {
	now := t.l.Now()
	t.mu.Lock()
	first := !t.done
	t.done = true
	if first && t.paused == 0 {
		t.spent += now - t.busy
	}
	spent, back := t.spent, [kinds + 1]int64{}
	for kind := range back {
		back[kind] = t.reserved[kind]
		if cancel {
			back[kind] += int64(t.charged[kind])
		}
		t.reserved[kind], t.charged[kind] = 0, 0
	}
	t.mu.Unlock()

	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	a := t.account(now)
	if first {
		t.l.charge(t.s, a, RequestTime, max(0, int64(spent)), now)
		for kind, n := range back {
			if n != 0 {
				t.l.charge(t.s, a, Kind(kind), -n, now)
			}
		}
	}
	d := t.retryAfter(a, now)
	if first {
		a.holds--
		t.released = true
	}
	return d
}

// Reader returns a reader that charges what it reads from r as [Ingress], and waits out the party's debt before it reads more. It reads at
// most a [Quantum] at a time, so that a small quota is met in small steps. A wait that the ticket's context ends returns a
// [*ThrottledError]. The time in r.Read is not request time: it is the client's. Not safe for concurrent use.
func (t *Ticket) Reader(r io.Reader) io.Reader { return &reader{t, r} }

// Writer returns a writer that charges what it writes to w as [Egress], like [Ticket.Reader]. A large Write goes out in pieces of a
// [Quantum], so a short count may come with the error of a wait.
func (t *Ticket) Writer(w io.Writer) io.Writer { return &writer{t, w} }

// Quantum is how much a [Ticket]'s Reader and Writer pass at once.
const Quantum = 64 << 10

type reader struct {
	t *Ticket
	r io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	return r.t.pass(Ingress, r.r.Read, p[:min(len(p), Quantum)])
}

type writer struct {
	t *Ticket
	w io.Writer
}

func (w *writer) Write(p []byte) (int, error) {
	written := 0
	for {
		n, err := w.t.pass(Egress, w.w.Write, p[written:min(len(p), written+Quantum)])
		written += n
		if err != nil || written >= len(p) {
			return written, err
		}
	}
}

// pass charges all of p, waits for earlier debt, and gives back what f then did not use.
func (t *Ticket) pass(kind Kind, f func([]byte) (int, error), p []byte) (int, error) {
	t.Pause()
	defer t.Resume()
	if err := t.wait(t.ctx, kind, int64(len(p))); err != nil {
		return 0, err
	}
	n, err := f(p)
	t.mu.Lock()
	t.charged[kind] += float64(n)
	t.mu.Unlock()
	if unused := int64(len(p) - n); unused != 0 {
		now := t.l.Now()
		t.s.mu.Lock()
		t.l.charge(t.s, t.account(now), kind, -unused, now)
		t.s.mu.Unlock()
	}
	return n, err
}
