package tier

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"sort"
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
	id     ID
	part   int32
	lo, hi int32 // the piece of the chunk; 0 for the whole
}

func chunkKey(id ID, i int) partKey { return partKey{id: id, part: int32(i)} }
func tailKey(id ID) partKey         { return partKey{id: id, part: tailPart} }

const tailPart int32 = -1

// A part is one immutable piece of an object in memory.
type part struct {
	key     partKey
	tail    *objectTail // of the tail
	batches []byte      // of a chunk
	size    int64

	guess   int64     // guarded by coldReader.mu: what it counts in guessed, 0 once somebody asked for it
	guessed time.Time // when it came
}

// A flight is one fetch that any number of readers wait for.
type flight struct {
	done chan struct{} // closed when part and err are set
	part *part
	err  error

	guess int64 // guarded by coldReader.mu: as part.guess
}

// A coldReader fetches, checks and caches parts of objects. Lock order: mu is
// taken last but for those of the budgets, and never held over a wait.
type coldReader struct {
	o        *Options
	life     context.Context // of the manager
	wg       *sync.WaitGroup
	requests *budget
	bytes    *budget
	disk     *diskCache // or nil
	widest   int        // readahead of one reader, in chunks

	mu      sync.Mutex
	closed  bool
	flights map[partKey]*flight
	cache   map[partKey]*list.Element // of *part
	recent  *list.List                // front: used last
	cached  int64
	guessed int64 // bytes that were fetched ahead and that nobody has asked for yet, and how many parts
	guesses int
	stats   coldStats
}

type coldStats struct {
	hits, misses, fetches, bytes, failures, corrupt, missing, ahead int64
}

func newColdReader(life context.Context, wg *sync.WaitGroup, o *Options) *coldReader {
	return &coldReader{
		o: o, life: life, wg: wg, widest: widest(o),
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
		p := e.Value.(*part)
		c.settleLocked(&p.guess)
		c.recent.MoveToFront(e)
		c.stats.hits++
		c.mu.Unlock()
		return p, nil
	}
	c.stats.misses++
	f, err := c.flightLocked(key, load)
	if err == nil {
		c.settleLocked(&f.guess)
	}
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
			f.part.guess, f.part.guessed, f.guess = f.guess, time.Now(), 0
			c.addLocked(f.part)
		} else {
			c.settleLocked(&f.guess)
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
	if e, ok := c.cache[p.key]; ok || p.size > c.o.CacheBytes {
		c.settleLocked(&p.guess)
		if ok {
			c.recent.MoveToFront(e)
		}
		return
	}
	c.cache[p.key] = c.recent.PushFront(p)
	c.cached += p.size
	// What was fetched ahead goes last: it is at most half, and dropping it before it
	// is read would have it fetched twice.
	for spared := 0; c.cached > c.o.CacheBytes || len(c.cache) > c.o.CacheChunks; {
		e := c.recent.Back()
		if e.Value.(*part).guess > 0 && spared < len(c.cache) {
			spared++
			c.recent.MoveToFront(e)
			continue
		}
		c.dropLocked(e)
	}
}

func (c *coldReader) dropLocked(e *list.Element) {
	p := e.Value.(*part)
	c.recent.Remove(e)
	delete(c.cache, p.key)
	c.cached -= p.size
	c.settleLocked(&p.guess)
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

// fromDisk makes a part of what the disk cache has of it, n bytes, within the budget; more
// is what that takes besides. nil means that the store has to be asked.
func (c *coldReader) fromDisk(ctx context.Context, k partKey, n, more int64, use func([]byte) (*part, error)) *part {
	if !c.disk.has(k, n) || c.bytes.acquire(ctx, n+more) != nil {
		return nil
	}
	defer c.bytes.release(n + more)
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
	p, err := c.get(ctx, tailKey(o.ID), c.loadTail(o))
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
		if o.whole(c.o.ChunkBytes) {
			from, more = 0, more+o.BatchBytes
		}
		tailAt := o.ObjectBytes - o.TailBytes
		if p := c.fromDisk(ctx, tailKey(o.ID), o.TailBytes, o.TailBytes, func(b []byte) (*part, error) { return c.openTail(o, b, tailAt) }); p != nil {
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
	c.disk.put(tailKey(o.ID), b[tailAt:])
	if from == 0 {
		for i := range t.chunks {
			ch := &t.chunks[i]
			stored := b[ch.pos : ch.pos+int64(ch.stored) : ch.pos+int64(ch.stored)]
			raw, err := ch.unpack(stored)
			if err != nil {
				continue // its reader will see
			}
			k := chunkKey(o.ID, i)
			c.disk.put(k, stored)
			// Copied, so that each part can be let go of by itself, and a small one does not keep
			// a long tail in memory.
			if ch.codec == codecNone && (len(t.chunks) > 1 || 2*len(raw) < len(b)) {
				raw = bytes.Clone(raw)
			}
			c.add(&part{key: k, batches: raw, size: int64(len(raw))})
		}
	}
	return &part{key: tailKey(o.ID), tail: t, size: t.memory}, nil
}

// chunk returns the batches of one chunk.
func (c *coldReader) chunk(ctx context.Context, o object, t *objectTail, i int) ([]byte, error) {
	p, err := c.get(ctx, chunkKey(o.ID, i), c.loadChunk(o, t, i))
	if err != nil {
		return nil, err
	}
	return p.batches, nil
}

func (c *coldReader) loadChunk(o object, t *objectTail, i int) func(context.Context) (*part, error) {
	ch, k := &t.chunks[i], chunkKey(o.ID, i)
	unpack := func(b []byte) (*part, error) {
		batches, err := ch.unpack(b)
		if err != nil {
			return nil, c.corrupt(o.key, ch.pos, err)
		}
		return &part{key: k, batches: batches, size: int64(len(batches))}, nil
	}
	return func(ctx context.Context) (*part, error) {
		if p := c.fromDisk(ctx, k, int64(ch.stored), ch.memory()-int64(ch.stored), unpack); p != nil {
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

// A coldRead is what a read found, and where.
type coldRead struct {
	s *Slice
	t *objectTail
	i int   // of the chunk
	w piece // that was read of it; zero: the whole
}

// read returns whole batches from the one that holds from on, within one chunk. before is
// the stream that goes on with this read, if there is one.
func (c *coldReader) read(ctx context.Context, o object, from log.Offset, maxBytes int, before stream) (r coldRead, err error) {
	if r.t, err = c.tail(ctx, o); err != nil {
		return r, err
	}
	r.i = r.t.find(from)
	ch := &r.t.chunks[r.i]
	k := chunkKey(o.ID, r.i)
	var batches []byte
	if ch.codec == codecNone && before.inPieces(k, c.holds(k, ch)) {
		if r.w = before.piece; before.at != k || from < r.w.base || from >= r.w.end {
			r.w = ch.pieceAt(from, max(maxBytes, int(c.o.ChunkBytes/4)))
		}
		batches, err = c.piece(ctx, o, r.t, r.i, r.w)
		if err == nil {
			batches = batches[ch.seek(from)-r.w.lo:]
		}
	} else {
		batches, err = c.chunk(ctx, o, r.t, r.i)
		if err == nil {
			batches = batches[ch.seek(from):]
		}
	}
	if err != nil {
		return r, err
	}
	if r.s, err = cut(batches, from, maxBytes); err != nil {
		return r, c.corrupt(o.key, ch.pos, err)
	}
	return r, nil
}

// holds says whether a chunk is had without asking the store, or on its way.
func (c *coldReader) holds(k partKey, ch *chunk) bool {
	c.mu.Lock()
	_, cached := c.cache[k]
	_, coming := c.flights[k]
	c.mu.Unlock()
	return cached || coming || c.disk.has(k, int64(ch.stored))
}

// A piece is a run of the batches of a chunk that is not compressed, between two that the
// index has.
type piece struct {
	lo, hi    int // in the chunk
	base, end log.Offset
}

// pieceAt returns the piece that begins with the last batch of the index at or before off
// and has as much as fits into n bytes, but the batch with off at least.
func (c *chunk) pieceAt(off log.Offset, n int) piece {
	bound := func(i int) (int, log.Offset) { // entry i, counted from the begin of the chunk on
		switch {
		case i == 0:
			return 0, c.base
		case i > len(c.offsets):
			return c.length, c.end
		}
		return int(c.offsets[i-1].pos), c.base + log.Offset(c.offsets[i-1].delta)
	}
	first := sort.Search(len(c.offsets), func(i int) bool { return c.base+log.Offset(c.offsets[i].delta) > off })
	var p piece
	p.lo, p.base = bound(first)
	n = min(n, c.length)
	last := sort.Search(len(c.offsets), func(i int) bool { return int(c.offsets[i].pos) > p.lo+n })
	if last == len(c.offsets) && c.length <= p.lo+n {
		last++
	}
	p.hi, p.end = bound(max(last, first+1))
	return p
}

// piece returns the batches of a piece of a chunk.
func (c *coldReader) piece(ctx context.Context, o object, t *objectTail, i int, w piece) ([]byte, error) {
	k := chunkKey(o.ID, i)
	k.lo, k.hi = int32(w.lo), int32(w.hi)
	p, err := c.get(ctx, k, func(ctx context.Context) (*part, error) {
		at := t.chunks[i].pos + int64(w.lo)
		return c.fetch(ctx, o.key, at, int64(w.hi-w.lo), 0, func(b []byte) (*part, error) {
			if err := w.check(b, t.epochs); err != nil {
				return nil, c.corrupt(o.key, at, err)
			}
			return &part{key: k, batches: b, size: int64(len(b))}, nil
		})
	})
	if err != nil {
		return nil, err
	}
	return p.batches, nil
}

// check does for a piece what the checksum does for a whole chunk: each batch has its own,
// and what that does not cover is known from the tail.
func (w *piece) check(b []byte, epochs []log.EpochStart) error {
	at := w.base
	for len(b) > 0 {
		batch, rest, err := record.Next(b, maxBatchBytes)
		if err == nil {
			err = batch.Verify()
		}
		if err != nil {
			return err
		}
		i := sort.Search(len(epochs), func(i int) bool { return epochs[i].Start > at })
		if batch.BaseOffset() != at || i == 0 || batch.LeaderEpoch() != epochs[i-1].Epoch {
			return fmt.Errorf("%w: batch at %d of epoch %d, want one at %d", ErrInvalidObject, batch.BaseOffset(), batch.LeaderEpoch(), at)
		}
		at, b = batch.NextOffset(), rest
	}
	if at != w.end {
		return fmt.Errorf("%w: the batches end at %d, want %d", ErrInvalidObject, at, w.end)
	}
	return nil
}

// cut finds the batch that holds from and takes whole batches from there on.
func cut(rest []byte, from log.Offset, maxBytes int) (*Slice, error) {
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
