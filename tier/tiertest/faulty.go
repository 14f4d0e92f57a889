package tiertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/tier"
)

// An Op is one call of a [tier.ObjectStore].
type Op struct {
	Kind string // "put", "get", "head", "list" or "delete"
	Key  string // the prefix of a list; one key of a delete at a time
	N    int    // how many operations of this kind came before it
}

// A Fault is what happens to one operation. The zero Fault does nothing.
type Fault struct {
	// Delay comes before the operation; ctx ends it early.
	Delay time.Duration

	// Err is returned. Unless Done is set, the operation does not happen. So
	// [tier.ErrConflict] is a 409, [tier.ErrExists] with Done a 412 for a condition
	// that the caller's own write has made false.
	Err error

	// Done: the operation happens, and Err is returned all the same: a reply that
	// was lost.
	Done bool

	// Late makes a put return Err, by default [tier.ErrUnknownOutcome], while the
	// object comes into being with the next [Faulty.Land].
	Late bool

	// Stall holds the operation until the channel is closed or ctx ends.
	Stall <-chan struct{}

	// Hang holds the operation until the channel is closed, whatever ctx says: a
	// store that is broken. What comes after it is as without Hang.
	Hang <-chan struct{}

	// Panic, if not nil, is what the operation panics with.
	Panic any

	// After makes Delay, Stall, Hang, Panic and Err of a put come when that many
	// bytes of its source have been read.
	After int64

	// BytesPerSecond is how fast the bytes of a put or a get flow; 0 means at once.
	BytesPerSecond int64

	// Short makes a get return one byte less than asked, which a sound store never
	// does, wrapped as the store's error: [tier.ErrCorrupt].
	Short bool

	// Flip returns a get's bytes with one bit changed, as a store or a network
	// without checksums may.
	Flip bool
}

// Counts are numbers of operations that reached the wrapper, failed ones
// included. A delete counts once per key.
type Counts struct {
	Put, Get, Head, List, Delete int
}

// A Faulty is a store with faults. Make one with [NewFaulty]. It is safe for
// concurrent use.
type Faulty struct {
	store tier.ObjectStore

	mu     sync.Mutex
	down   bool
	full   bool
	busy   time.Time // throttled until then
	page   int       // keys of a page; 0 means the store's
	delay  time.Duration
	fault  func(Op) Fault
	put    int64 // bytes
	got    int64
	counts Counts
	active int
	caps   *tier.Capabilities
	late   []latePut
}

type latePut struct {
	key  string
	data []byte
	o    tier.PutOptions
}

// Land lets the late puts so far happen, in order, and returns how many of them
// made an object.
func (f *Faulty) Land(ctx context.Context) int {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	n := 0
	for _, p := range late {
		if f.store.Put(ctx, p.key, bytes.NewReader(p.data), int64(len(p.data)), p.o) == nil {
			n++
		}
	}
	return n
}

// NewFaulty wraps a store. Without faults it is the store.
func NewFaulty(s tier.ObjectStore) *Faulty { return &Faulty{store: s} }

// SetDown makes every operation fail with [tier.ErrUnavailable], or ends that.
func (f *Faulty) SetDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

// SetFull makes every put that has bytes fail with [tier.ErrUnavailable] after it has
// read its source, or ends that. Nothing else is concerned.
func (f *Faulty) SetFull(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

// SetThrottled makes every operation of the next d fail with a [*tier.ThrottledError]
// that names no time.
func (f *Faulty) SetThrottled(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy = time.Now().Add(d)
}

// SetPageKeys makes listings fetch pages of n keys, each of which is an operation of
// its own, with faults of its own. 0 makes a listing one operation again.
func (f *Faulty) SetPageKeys(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.page = n
}

// SetDelay delays every operation.
func (f *Faulty) SetDelay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// SetFault asks fn about each operation. It is called without locks held,
// concurrently. nil ends that.
func (f *Faulty) SetFault(fn func(Op) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fn
}

// SetCapabilities makes the wrapper claim other capabilities than the store's.
// With IfAbsent false, a conditional Put replaces, as a store without conditions
// does.
func (f *Faulty) SetCapabilities(c tier.Capabilities) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.caps = &c
}

// Counts returns the operations so far.
func (f *Faulty) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts
}

// Bytes returns how many bytes were put and got by operations that succeeded in the
// store behind the wrapper.
func (f *Faulty) Bytes() (put, got int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.put, f.got
}

// Active returns how many operations are under way.
func (f *Faulty) Active() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active
}

// begin counts an operation and applies what comes before it.
func (f *Faulty) begin(ctx context.Context, kind, key string) (Fault, func(), error) {
	f.mu.Lock()
	var n *int
	switch kind {
	case "put":
		n = &f.counts.Put
	case "get":
		n = &f.counts.Get
	case "head":
		n = &f.counts.Head
	case "list":
		n = &f.counts.List
	default:
		n = &f.counts.Delete
	}
	op := Op{Kind: kind, Key: key, N: *n}
	*n++
	f.active++
	down, delay, fn := f.down, f.delay, f.fault
	busy := time.Now().Before(f.busy)
	f.mu.Unlock()
	end := func() {
		f.mu.Lock()
		f.active--
		f.mu.Unlock()
	}
	var fault Fault
	if fn != nil {
		fault = fn(op)
	}
	over := true // by a panic
	defer func() {
		if over {
			end()
		}
	}()
	if delay > 0 {
		if err := pause(ctx, delay); err != nil {
			over = false
			return fault, end, fmt.Errorf("%s %s: %w: %w", kind, key, tier.ErrUnavailable, err)
		}
	}
	if kind != "put" || fault.After == 0 {
		if err := fault.strike(ctx, kind, key); err != nil {
			over = false
			return fault, end, err
		}
	}
	over = false
	switch {
	case down:
		return fault, end, fmt.Errorf("%s %s: %w", kind, key, tier.ErrUnavailable)
	case busy:
		return fault, end, fmt.Errorf("%s %s: %w", kind, key, &tier.ThrottledError{})
	case fault.fails() && fault.After == 0:
		return fault, end, fault.Err
	}
	return fault, end, nil
}

// fails says whether the operation does not happen.
func (f *Fault) fails() bool { return f.Err != nil && !f.Done && !f.Late }

// strike is what comes before the operation.
func (f *Fault) strike(ctx context.Context, kind, key string) error {
	if f.Hang != nil {
		<-f.Hang
	}
	if f.Panic != nil {
		panic(f.Panic)
	}
	err := pause(ctx, f.Delay)
	if err == nil && f.Stall != nil {
		select {
		case <-f.Stall:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w: %w", kind, key, tier.ErrUnavailable, err)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// transfer is the time that n bytes take.
func (f *Fault) transfer(n int64) time.Duration {
	if f.BytesPerSecond <= 0 {
		return 0
	}
	return time.Duration(float64(n) / float64(f.BytesPerSecond) * float64(time.Second))
}

// A source is what a put is given, with the faults that come as it is read.
type source struct {
	r     io.ReaderAt
	ctx   context.Context
	fault *Fault
	key   string

	mu   sync.Mutex
	read int64
	err  error // of the fault
}

var errFull = fmt.Errorf("%w: the store is full", tier.ErrUnavailable)

// ReadAt implements [io.ReaderAt].
func (s *source) ReadAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	// What comes before the fault is read for the fault's sake only.
	if left := s.fault.After - s.read; s.fault.After > 0 && left < int64(len(p)) {
		n, err := s.r.ReadAt(p[:max(left, 0)], off)
		if err != nil {
			return n, err
		}
		s.read = s.fault.After
		if s.err = s.fault.strike(s.ctx, "put", s.key); s.err == nil && s.fault.fails() {
			s.err = s.fault.Err
		}
		if s.err != nil {
			return n, s.err
		}
		s.fault = &Fault{BytesPerSecond: s.fault.BytesPerSecond}
	}
	n, err := s.r.ReadAt(p, off)
	s.read += int64(n)
	if s.err = pause(s.ctx, s.fault.transfer(int64(n))); s.err != nil {
		s.err = fmt.Errorf("put %s: %w: %w", s.key, tier.ErrUnavailable, s.err)
		return n, s.err
	}
	return n, err
}

// Put implements [tier.ObjectStore].
func (f *Faulty) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	fault, end, err := f.begin(ctx, "put", key)
	defer end()
	if err != nil {
		return err
	}
	if !f.Capabilities().IfAbsent {
		o.IfAbsent = false
	}
	if fault.After > 0 || fault.BytesPerSecond > 0 {
		r = &source{r: r, ctx: ctx, fault: &fault, key: key}
	}
	f.mu.Lock()
	full := f.full
	f.mu.Unlock()
	if full && size > 0 {
		data := make([]byte, size)
		if n, err := r.ReadAt(data, 0); int64(n) < size {
			return err
		}
		return fmt.Errorf("put %s: %w", key, errFull)
	}
	if fault.Late {
		data := make([]byte, size)
		if n, err := r.ReadAt(data, 0); int64(n) < size {
			return err
		}
		f.mu.Lock()
		f.late = append(f.late, latePut{key, data, o})
		f.mu.Unlock()
		if fault.Err == nil {
			fault.Err = fmt.Errorf("put %s: %w", key, tier.ErrUnknownOutcome)
		}
		return fault.Err
	}
	if err := f.store.Put(ctx, key, r, size, o); err != nil {
		return err
	}
	f.mu.Lock()
	f.put += size
	f.mu.Unlock()
	return fault.Err
}

// GetRange implements [tier.ObjectStore].
func (f *Faulty) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	fault, end, err := f.begin(ctx, "get", key)
	defer end()
	if err != nil {
		return nil, err
	}
	b, err := f.store.GetRange(ctx, key, off, n)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.got += n
	f.mu.Unlock()
	if err := pause(ctx, fault.transfer(n)); err != nil {
		return nil, fmt.Errorf("get %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	if fault.Short {
		return nil, fmt.Errorf("get %s: %d bytes instead of %d: %w", key, n-1, n, tier.ErrCorrupt)
	}
	if fault.Flip {
		b[len(b)/2] ^= 0x10
	}
	return b, fault.Err
}

// Head implements [tier.ObjectStore].
func (f *Faulty) Head(ctx context.Context, key string) (tier.ObjectInfo, error) {
	fault, end, err := f.begin(ctx, "head", key)
	defer end()
	if err != nil {
		return tier.ObjectInfo{}, err
	}
	info, err := f.store.Head(ctx, key)
	return info, errors.Join(err, fault.Err)
}

// List implements [tier.ObjectStore]. It counts once per iteration, or per page; see
// [Faulty.SetPageKeys].
func (f *Faulty) List(ctx context.Context, prefix, after string) iter.Seq2[tier.ObjectInfo, error] {
	return func(yield func(tier.ObjectInfo, error) bool) {
		for last, more := after, true; more; {
			last, more = f.list(ctx, prefix, last, yield)
		}
	}
}

// list yields one page, and returns its last key and whether there is another page.
func (f *Faulty) list(ctx context.Context, prefix, after string, yield func(tier.ObjectInfo, error) bool) (last string, more bool) {
	fault, end, err := f.begin(ctx, "list", prefix)
	defer end()
	if err != nil {
		yield(tier.ObjectInfo{}, err)
		return after, false
	}
	f.mu.Lock()
	page := f.page
	f.mu.Unlock()
	n := 0
	for info, err := range f.store.List(ctx, prefix, after) {
		if page > 0 && n == page {
			more = true
			break
		}
		if !yield(info, err) || err != nil {
			return after, false
		}
		n++
		last = info.Key
	}
	if fault.Err != nil {
		yield(tier.ObjectInfo{}, fault.Err)
		return last, false
	}
	return last, more
}

// Delete implements [tier.ObjectStore].
func (f *Faulty) Delete(ctx context.Context, keys []string) []tier.DeleteResult {
	results := make([]tier.DeleteResult, 0, len(keys))
	for _, key := range keys {
		fault, end, err := f.begin(ctx, "delete", key)
		if err != nil {
			results = append(results, tier.DeleteResult{Key: key, Err: err})
			end()
			continue
		}
		r := f.store.Delete(ctx, []string{key})
		if fault.Err != nil && r[0].Err == nil {
			r[0].Err = fault.Err
		}
		results = append(results, r...)
		end()
	}
	return results
}

// Capabilities implements [tier.ObjectStore].
func (f *Faulty) Capabilities() tier.Capabilities {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.caps != nil {
		return *f.caps
	}
	return f.store.Capabilities()
}
