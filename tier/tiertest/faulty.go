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

	// Err is returned. Unless Done is set, the operation does not happen.
	Err error

	// Done: the operation happens, and Err is returned all the same: a reply that
	// was lost.
	Done bool

	// Late makes a put return Err, by default [tier.ErrUnknownOutcome], while the
	// object comes into being with the next [Faulty.Land].
	Late bool

	// Stall holds the operation until the channel is closed or ctx ends.
	Stall <-chan struct{}

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
	delay  time.Duration
	fault  func(Op) Fault
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
	if d := delay + fault.Delay; d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return fault, end, fmt.Errorf("%s %s: %w: %w", kind, key, tier.ErrUnavailable, ctx.Err())
		}
	}
	if fault.Stall != nil {
		select {
		case <-fault.Stall:
		case <-ctx.Done():
			return fault, end, fmt.Errorf("%s %s: %w: %w", kind, key, tier.ErrUnavailable, ctx.Err())
		}
	}
	if down {
		return fault, end, fmt.Errorf("%s %s: %w", kind, key, tier.ErrUnavailable)
	}
	if fault.Err != nil && !fault.Done && !fault.Late {
		return fault, end, fault.Err
	}
	return fault, end, nil
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

// List implements [tier.ObjectStore]. It counts once per iteration.
func (f *Faulty) List(ctx context.Context, prefix, after string) iter.Seq2[tier.ObjectInfo, error] {
	return func(yield func(tier.ObjectInfo, error) bool) {
		fault, end, err := f.begin(ctx, "list", prefix)
		defer end()
		if err != nil {
			yield(tier.ObjectInfo{}, err)
			return
		}
		for info, err := range f.store.List(ctx, prefix, after) {
			if !yield(info, err) {
				return
			}
		}
		if fault.Err != nil {
			yield(tier.ObjectInfo{}, fault.Err)
		}
	}
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
