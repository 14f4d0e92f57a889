package tier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// storeGrace is how long after the end of its context a call of the store is waited
// for. After that it is given up: whatever it returns later is ignored.
const storeGrace = 10 * time.Second

// hungCalls bounds the calls of one kind that were given up and have not returned.
// Each holds a goroutine, and whatever the store holds.
const hungCalls = 16

type storeOp uint8

const (
	opPut storeOp = iota
	opGet
	opHead
	opList
	opDelete
	storeOps
)

var storeOpNames = [storeOps]string{"put", "get", "head", "list", "delete"}

// A callTally counts the calls of one kind that have not returned though they were
// given up, and says whether another may go out.
type callTally struct {
	hung      int   // now
	abandoned int64 // ever
	panics    int64
}

func (c *callTally) admits() bool { return c.hung < hungCalls }

func (c *callTally) abandon() {
	c.hung++
	c.abandoned++
}

// end takes in the return of a call.
func (c *callTally) end(abandoned, panicked bool) {
	if abandoned {
		c.hung--
	}
	if panicked {
		c.panics++
	}
}

// A guard is a store that returns soon after ctx has ended and does not panic,
// whatever the store behind it does. So a call that never returns costs the one who
// made it its time, and nobody else anything.
type guard struct {
	store  ObjectStore
	logger *slog.Logger

	mu    sync.Mutex
	calls [storeOps]callTally
}

func newGuard(s ObjectStore, logger *slog.Logger) *guard { return &guard{store: s, logger: logger} }

var errHung = errors.New("tier: the store does not return")

// A guardedCall is one call of the store, in a goroutine of its own.
type guardedCall struct {
	done chan struct{} // closed when the store has returned; err is set before
	err  error         // why it returned nothing of use

	ended, abandoned bool // guarded by guard.mu
}

// start calls f in a goroutine. An error means that f is not called.
func (g *guard) start(op storeOp, key string, f func()) (*guardedCall, error) {
	g.mu.Lock()
	ok := g.calls[op].admits()
	g.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("%s %s: %w: %d calls hang", storeOpNames[op], key, ErrUnavailable, hungCalls)
	}
	c := &guardedCall{done: make(chan struct{})}
	go func() {
		returned := false
		defer func() {
			if !returned {
				cause := recover() // nil if the goroutine was ended
				c.err = fmt.Errorf("tier: the store panicked: %v", cause)
				g.logger.Error("the store panicked", "op", storeOpNames[op], "key", key, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			}
			g.mu.Lock()
			c.ended = true
			g.calls[op].end(c.abandoned, !returned)
			g.mu.Unlock()
			close(c.done)
		}()
		f()
		returned = true
	}()
	return c, nil
}

// await waits for a call, for storeGrace beyond ctx. With errHung, what the call
// returns, if it ever does, must not be touched.
func (g *guard) await(ctx context.Context, op storeOp, key string, c *guardedCall) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	t := time.NewTimer(storeGrace)
	defer t.Stop()
	select {
	case <-c.done:
		return c.err
	case <-t.C:
	}
	g.mu.Lock()
	late := !c.ended
	if late {
		c.abandoned = true
		g.calls[op].abandon()
	}
	g.mu.Unlock()
	if !late {
		<-c.done
		return c.err
	}
	g.logger.Error("a call of the store does not return", "op", storeOpNames[op], "key", key)
	return fmt.Errorf("%w: %w", errHung, context.Cause(ctx))
}

// call is start and await. unclear says that a call without an answer may have had
// an effect, or may have it later.
func (g *guard) call(ctx context.Context, op storeOp, key string, unclear bool, f func()) error {
	c, err := g.start(op, key, f)
	if err != nil {
		return err
	}
	if err := g.await(ctx, op, key, c); err != nil {
		kind := ErrUnavailable
		if unclear {
			kind = ErrUnknownOutcome
		}
		return fmt.Errorf("%s %s: %w: %w", storeOpNames[op], key, kind, err)
	}
	return nil
}

// stats returns the sums over all kinds.
func (g *guard) stats() (all callTally) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.calls {
		all.hung += c.hung
		all.abandoned += c.abandoned
		all.panics += c.panics
	}
	return all
}

// A lease gives a store the source of a Put until that has ended, and not longer.
type lease struct {
	mu sync.RWMutex
	r  io.ReaderAt // nil when it has ended
}

var errLeaseEnded = errors.New("tier: the upload has ended")

// ReadAt implements [io.ReaderAt].
func (l *lease) ReadAt(p []byte, off int64) (int, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.r == nil {
		return 0, errLeaseEnded
	}
	return l.r.ReadAt(p, off)
}

// end returns when nobody reads the source any more.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.r = nil
}

// Put implements [ObjectStore].
func (g *guard) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o PutOptions) error {
	source := &lease{r: r}
	defer source.end()
	var err error
	if failed := g.call(ctx, opPut, key, true, func() { err = g.store.Put(ctx, key, source, size, o) }); failed != nil {
		return failed
	}
	return err
}

// GetRange implements [ObjectStore].
func (g *guard) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	var b []byte
	var err error
	if failed := g.call(ctx, opGet, key, false, func() { b, err = g.store.GetRange(ctx, key, off, n) }); failed != nil {
		return nil, failed
	}
	return b, err
}

// Head implements [ObjectStore].
func (g *guard) Head(ctx context.Context, key string) (ObjectInfo, error) {
	var info ObjectInfo
	var err error
	if failed := g.call(ctx, opHead, key, false, func() { info, err = g.store.Head(ctx, key) }); failed != nil {
		return ObjectInfo{}, failed
	}
	return info, err
}

// List implements [ObjectStore].
func (g *guard) List(ctx context.Context, prefix, after string) iter.Seq2[ObjectInfo, error] {
	type item struct {
		info ObjectInfo
		err  error
	}
	return func(yield func(ObjectInfo, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		items := make(chan item)
		c, err := g.start(opList, prefix, func() {
			for info, err := range g.store.List(ctx, prefix, after) {
				select {
				case items <- item{info, err}:
				case <-ctx.Done():
					return
				}
			}
		})
		for err == nil {
			select {
			case it := <-items:
				if !yield(it.info, it.err) {
					cancel()
					_ = g.await(ctx, opList, prefix, c)
					return
				}
				continue
			case <-c.done:
				if err = c.err; err == nil && ctx.Err() == nil {
					return
				}
			case <-ctx.Done():
				err = g.await(ctx, opList, prefix, c)
			}
			err = fmt.Errorf("list %s: %w: %w", prefix, ErrUnavailable, errors.Join(err, ctx.Err()))
		}
		yield(ObjectInfo{}, err)
	}
}

// Delete implements [ObjectStore].
func (g *guard) Delete(ctx context.Context, keys []string) []DeleteResult {
	if len(keys) == 0 {
		return nil
	}
	var results []DeleteResult
	if failed := g.call(ctx, opDelete, keys[0], true, func() { results = g.store.Delete(ctx, keys) }); failed != nil {
		unclear := make([]DeleteResult, len(keys)) // results may still be set
		for i, key := range keys {
			unclear[i] = DeleteResult{key, failed}
		}
		return unclear
	}
	return results
}

// Capabilities implements [ObjectStore].
func (g *guard) Capabilities() Capabilities { return g.store.Capabilities() }
