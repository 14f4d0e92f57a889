package tier

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// readAttempts bounds how often one part of an object is asked for before its
// readers are told.
const readAttempts = 3

// A partKey names a cached part of an object: a chunk by its number, or the tail.
type partKey struct {
	id   ID
	part int32
}

const tailPart int32 = -1

// A part is one immutable piece of an object in memory.
type part struct {
	key     partKey
	tail    *objectTail // of the tail
	batches []byte      // of a chunk
	size    int64
}

// A flight is one fetch that any number of readers wait for.
type flight struct {
	done chan struct{} // closed when part and err are set
	part *part
	err  error
}

// A coldReader fetches, checks and caches parts of objects. Lock order: mu is
// taken last, and never held over a wait.
type coldReader struct {
	o        *Options
	life     context.Context // of the manager
	wg       *sync.WaitGroup
	requests *budget
	bytes    *budget
	disk     *diskCache // or nil

	mu      sync.Mutex
	closed  bool
	flights map[partKey]*flight
	cache   map[partKey]*list.Element // of *part
	recent  *list.List                // front: used last
	cached  int64
	stats   coldStats
}

type coldStats struct {
	hits, misses, fetches, bytes, failures, corrupt, missing, ahead int64
}

func newColdReader(life context.Context, wg *sync.WaitGroup, o *Options) *coldReader {
	return &coldReader{
		o: o, life: life, wg: wg,
		requests: newBudget(int64(o.Reads)), bytes: newBudget(o.ReadBytes),
		flights: map[partKey]*flight{}, cache: map[partKey]*list.Element{}, recent: list.New(),
	}
}

// close refuses new flights. Those under way end with the manager's life.
func (c *coldReader) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// get returns a part: from the cache, from a flight under way, or by a new one.
// The flight belongs to the manager: it goes on when the caller's ctx ends, since
// others may wait for it and the next reader will want it.
func (c *coldReader) get(ctx context.Context, key partKey, load func(context.Context) (*part, error)) (*part, error) {
	c.mu.Lock()
	if e, ok := c.cache[key]; ok {
		c.recent.MoveToFront(e)
		c.stats.hits++
		c.mu.Unlock()
		return e.Value.(*part), nil
	}
	c.stats.misses++
	f, err := c.flightLocked(key, load)
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-f.done:
		return f.part, f.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// start begins a flight that nobody waits for, if there is room in the budgets
// now.
func (c *coldReader) start(key partKey, bytes int64, load func(context.Context) (*part, error)) {
	if !c.requests.free(1) || !c.bytes.free(bytes) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.cache[key]; ok || c.closed {
		return
	}
	if _, ok := c.flights[key]; ok {
		return
	}
	c.stats.ahead++
	_, _ = c.flightLocked(key, load)
}

func (c *coldReader) flightLocked(key partKey, load func(context.Context) (*part, error)) (*flight, error) {
	if f, ok := c.flights[key]; ok {
		return f, nil
	}
	if c.closed {
		return nil, ErrClosed
	}
	f := &flight{done: make(chan struct{})}
	c.flights[key] = f
	c.wg.Go(func() {
		pprof.Do(c.life, pprof.Labels("cordwood", "tier-read"), func(ctx context.Context) {
			f.part, f.err = c.retry(ctx, load)
		})
		c.mu.Lock()
		delete(c.flights, key)
		if f.err == nil {
			c.addLocked(f.part)
		} else {
			c.stats.failures++
		}
		c.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// add puts parts that came along with another into the cache.
func (c *coldReader) add(parts ...*part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range parts {
		c.addLocked(p)
	}
}

func (c *coldReader) addLocked(p *part) {
	if p.size > c.o.CacheBytes {
		return
	}
	if e, ok := c.cache[p.key]; ok {
		c.recent.MoveToFront(e)
		return
	}
	c.cache[p.key] = c.recent.PushFront(p)
	c.cached += p.size
	for c.cached > c.o.CacheBytes || len(c.cache) > c.o.CacheChunks {
		c.dropLocked(c.recent.Back())
	}
}

func (c *coldReader) dropLocked(e *list.Element) {
	p := e.Value.(*part)
	c.recent.Remove(e)
	delete(c.cache, p.key)
	c.cached -= p.size
}

// retry asks again after errors that pass.
func (c *coldReader) retry(ctx context.Context, load func(context.Context) (*part, error)) (*part, error) {
	for attempt := 0; ; attempt++ {
		p, err := load(ctx)
		if err == nil {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, ErrClosed
		}
		if attempt+1 == readAttempts || errors.Is(err, ErrNotFound) || errors.Is(err, ErrDenied) || errors.Is(err, ErrRange) {
			return nil, err
		}
		if sleep(ctx, backoff(attempt, c.o, err)) != nil {
			return nil, ErrClosed
		}
	}
}

// fetch gets bytes of an object within the budgets, and has use make a part of them.
// more is what that takes besides these bytes.
func (c *coldReader) fetch(ctx context.Context, key string, off, n, more int64, use func([]byte) (*part, error)) (*part, error) {
	if err := c.bytes.acquire(ctx, n+more); err != nil {
		return nil, err
	}
	defer c.bytes.release(n + more)
	b, err := c.request(ctx, key, off, n)
	if err != nil {
		return nil, err
	}
	return use(b)
}

// fromDisk makes a part of what the disk cache has of it, within the budget. nil means
// that the store has to be asked.
func (c *coldReader) fromDisk(ctx context.Context, k partKey, n int64, use func([]byte) (*part, error)) *part {
	if !c.disk.has(k) || c.bytes.acquire(ctx, n) != nil {
		return nil
	}
	defer c.bytes.release(n)
	b, ok := c.disk.get(k)
	if !ok {
		return nil
	}
	p, err := use(b)
	if err != nil {
		c.disk.drop(k)
		return nil
	}
	return p
}

func (c *coldReader) request(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := c.requests.acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer c.requests.release(1)
	ctx, cancel := context.WithTimeout(ctx, c.o.StoreTimeout)
	defer cancel()
	b, err := c.o.Store.GetRange(ctx, key, off, n)
	c.mu.Lock()
	c.stats.fetches++
	c.stats.bytes += int64(len(b))
	c.mu.Unlock()
	if err == nil && int64(len(b)) != n {
		err = fmt.Errorf("%w: the store gave %d bytes of %d", ErrCorrupt, len(b), n)
	}
	if err != nil {
		return nil, fmt.Errorf("read %d bytes at %d of %s: %w", n, off, key, err)
	}
	return b, nil
}

func (c *coldReader) corrupt(key string, off int64, err error) error {
	c.mu.Lock()
	c.stats.corrupt++
	c.mu.Unlock()
	return &CorruptionError{Key: key, Offset: off, Err: err}
}

// An object is a range of a partition and where it is.
type object struct {
	Range
	key string
}

// tail returns the parsed tail of an object.
func (c *coldReader) tail(ctx context.Context, o object) (*objectTail, error) {
	p, err := c.get(ctx, partKey{o.ID, tailPart}, c.loadTail(o))
	if err != nil {
		return nil, err
	}
	return p.tail, nil
}

// loadTail fetches the tail, and with it the whole of an object that is no larger
// than a chunk: that saves a request.
func (c *coldReader) loadTail(o object) func(context.Context) (*part, error) {
	return func(ctx context.Context) (*part, error) {
		from, more := o.ObjectBytes-o.TailBytes, o.TailBytes
		if max(o.ObjectBytes, o.BatchBytes) <= c.o.ChunkBytes {
			from, more = 0, more+o.BatchBytes
		}
		tailAt := o.ObjectBytes - o.TailBytes
		if p := c.fromDisk(ctx, partKey{o.ID, tailPart}, 2*o.TailBytes, func(b []byte) (*part, error) { return c.openTail(o, b, tailAt) }); p != nil {
			return p, nil
		}
		return c.fetch(ctx, o.key, from, o.ObjectBytes-from, more, func(b []byte) (*part, error) {
			return c.openTail(o, b, from)
		})
	}
}

// openTail reads the tail of an object and the chunks that came with it; b is the
// object from byte from on.
func (c *coldReader) openTail(o object, b []byte, from int64) (*part, error) {
	tailAt := o.ObjectBytes - o.TailBytes - from
	if int64(len(b)) != tailAt+o.TailBytes {
		return nil, c.corrupt(o.key, from, fmt.Errorf("%w: tail of %d bytes", ErrInvalidObject, int64(len(b))-tailAt))
	}
	t, err := parseObjectTail(b[tailAt:])
	if err == nil && (t.id != o.ID || t.base != o.Base || t.end != o.End || t.batchBytes != o.BatchBytes) {
		err = fmt.Errorf("%w: it is %v with [%d, %d)", ErrInvalidObject, t.id, t.base, t.end)
	}
	if err == nil {
		if last := t.chunks[len(t.chunks)-1]; last.pos+int64(last.stored) != o.ObjectBytes-o.TailBytes {
			err = fmt.Errorf("%w: its chunks end at %d", ErrInvalidObject, last.pos+int64(last.stored))
		}
	}
	if err != nil {
		return nil, c.corrupt(o.key, from+tailAt, err)
	}
	c.disk.put(partKey{o.ID, tailPart}, b[tailAt:])
	if from == 0 {
		for i := range t.chunks {
			ch := &t.chunks[i]
			stored := b[ch.pos : ch.pos+int64(ch.stored) : ch.pos+int64(ch.stored)]
			raw, err := ch.unpack(stored)
			if err != nil {
				continue // its reader will see
			}
			k := partKey{o.ID, int32(i)}
			c.disk.put(k, stored)
			// Copied, so that each part can be let go of by itself.
			if len(t.chunks) > 1 && ch.codec == codecNone {
				raw = bytes.Clone(raw)
			}
			c.add(&part{key: k, batches: raw, size: int64(len(raw))})
		}
	}
	return &part{key: partKey{o.ID, tailPart}, tail: t, size: t.memory}, nil
}

// chunk returns the batches of one chunk.
func (c *coldReader) chunk(ctx context.Context, o object, t *objectTail, i int) ([]byte, error) {
	p, err := c.get(ctx, partKey{o.ID, int32(i)}, c.loadChunk(o, t, i))
	if err != nil {
		return nil, err
	}
	return p.batches, nil
}

func (c *coldReader) loadChunk(o object, t *objectTail, i int) func(context.Context) (*part, error) {
	ch, k := &t.chunks[i], partKey{o.ID, int32(i)}
	unpack := func(b []byte) (*part, error) {
		batches, err := ch.unpack(b)
		if err != nil {
			return nil, c.corrupt(o.key, ch.pos, err)
		}
		return &part{key: k, batches: batches, size: int64(len(batches))}, nil
	}
	return func(ctx context.Context) (*part, error) {
		if p := c.fromDisk(ctx, k, ch.memory(), unpack); p != nil {
			return p, nil
		}
		return c.fetch(ctx, o.key, ch.pos, int64(ch.stored), ch.memory()-int64(ch.stored), func(b []byte) (*part, error) {
			p, err := unpack(b)
			if err == nil {
				c.disk.put(k, b)
			}
			return p, err
		})
	}
}

// read returns whole batches from the one that holds from on, within one chunk.
func (c *coldReader) read(ctx context.Context, o object, from log.Offset, maxBytes int) (s *Slice, t *objectTail, i int, err error) {
	if t, err = c.tail(ctx, o); err != nil {
		return nil, nil, 0, err
	}
	i = t.find(from)
	batches, err := c.chunk(ctx, o, t, i)
	if err != nil {
		return nil, nil, 0, err
	}
	s, err = cut(batches, &t.chunks[i], from, maxBytes)
	if err != nil {
		return nil, nil, 0, c.corrupt(o.key, t.chunks[i].pos, err)
	}
	return s, t, i, nil
}

// cut finds the batch that holds from in a chunk and takes whole batches from
// there on.
func cut(batches []byte, c *chunk, from log.Offset, maxBytes int) (*Slice, error) {
	rest := batches[c.seek(from):]
	s := &Slice{}
	for at := 0; at < len(rest); {
		b, _, err := record.Next(rest[at:], maxBatchBytes)
		if err != nil {
			return nil, err
		}
		if s.b == nil {
			if b.NextOffset() > from {
				if b.BaseOffset() > from {
					return nil, fmt.Errorf("%w: no batch with offset %d", ErrInvalidObject, from)
				}
				s.b, s.base, s.end = rest[at:at+b.Size():at+b.Size()], b.BaseOffset(), b.NextOffset()
				rest, at = rest[at:], 0
			}
		} else {
			if len(s.b)+b.Size() > maxBytes || b.BaseOffset() != s.end || b.NextOffset() <= s.end {
				break
			}
			s.b, s.end = rest[:at+b.Size():at+b.Size()], b.NextOffset()
		}
		at += b.Size()
	}
	if s.b == nil {
		return nil, fmt.Errorf("%w: no batch with offset %d", ErrInvalidObject, from)
	}
	return s, nil
}

// ahead begins to fetch what a sequential reader wants after chunk i: the next
// chunk, or the first of the next object.
func (c *coldReader) ahead(o object, t *objectTail, i int, next func() (object, bool)) {
	if i+1 < len(t.chunks) {
		c.start(partKey{o.ID, int32(i + 1)}, t.chunks[i+1].memory(), c.loadChunk(o, t, i+1))
		return
	}
	n, ok := next()
	if !ok {
		return
	}
	if max(n.ObjectBytes, n.BatchBytes) <= c.o.ChunkBytes {
		c.start(partKey{n.ID, tailPart}, n.ObjectBytes, c.loadTail(n))
		return
	}
	tail := c.loadTail(n)
	c.start(partKey{n.ID, tailPart}, n.TailBytes, func(ctx context.Context) (*part, error) {
		p, err := tail(ctx)
		if err == nil {
			c.start(partKey{n.ID, 0}, p.tail.chunks[0].memory(), c.loadChunk(n, p.tail, 0))
		}
		return p, err
	})
}

// A budget is a counting semaphore with weights, first come first served. A
// request above the whole is cut to the whole.
type budget struct {
	mu    sync.Mutex
	size  int64
	used  int64
	queue []*budgetWaiter
}

type budgetWaiter struct {
	n     int64
	ready chan struct{}
}

func newBudget(size int64) *budget { return &budget{size: size} }

func (b *budget) acquire(ctx context.Context, n int64) error {
	b.mu.Lock()
	n = min(n, b.size)
	if len(b.queue) == 0 && b.used+n <= b.size {
		b.used += n
		b.mu.Unlock()
		return nil
	}
	w := &budgetWaiter{n: n, ready: make(chan struct{})}
	b.queue = append(b.queue, w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready: // it was granted meanwhile: give it back
		b.used -= n
	default:
		for i, q := range b.queue {
			if q == w {
				b.queue = append(b.queue[:i], b.queue[i+1:]...)
				break
			}
		}
	}
	b.grantLocked()
	return context.Cause(ctx)
}

func (b *budget) release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= min(n, b.size)
	b.grantLocked()
}

func (b *budget) grantLocked() {
	for len(b.queue) > 0 && b.used+b.queue[0].n <= b.size {
		b.used += b.queue[0].n
		close(b.queue[0].ready)
		b.queue = b.queue[1:]
	}
}

// free says whether n could be had without waiting.
func (b *budget) free(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) == 0 && b.used+min(n, b.size) <= b.size
}

// backoff returns the wait after the given number of failures before err: equal
// jitter over an exponential, and at least what a throttling store asked for.
func backoff(failures int, o *Options, err error) time.Duration {
	d := o.MaxBackoff
	if failures < 30 {
		d = min(d, o.MinBackoff<<failures)
	}
	if d <= 0 {
		d = o.MaxBackoff
	}
	d = d/2 + rand.N(d/2+1)
	var t *ThrottledError
	if errors.As(err, &t) {
		d = max(d, min(t.RetryAfter, maxRetryAfter))
	}
	return d
}

// maxRetryAfter bounds how long a store can hold us off.
const maxRetryAfter = 5 * time.Minute

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
