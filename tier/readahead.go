package tier

import (
	"context"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A stream is a reader that goes on where it stopped.
type stream struct {
	end    log.Offset // where it stopped
	at     partKey    // the chunk that it read last
	window int        // how many chunks it wants to have ahead
	pieces int        // how many chunks from this one on it reads in pieces
	piece  piece      // that it read last; zero: a whole chunk
}

// pieceChunks is how many chunks are read in pieces before another is tried whole: so a
// cache that stays too small costs one chunk in as many, and one that has room again is
// soon used.
const pieceChunks = 8

// advance returns the stream after a read up to end, in the chunk at. The window
// begins with one chunk and doubles with each chunk that the reader comes to, up to
// most: who reads a little pays for a little. Who reads in pieces has nothing ahead: it
// would be gone before it is read.
func (s stream) advance(end log.Offset, at partKey, w piece, most int) stream {
	switch {
	case w.hi > 0 && s.pieces == 0:
		s.pieces = pieceChunks
	case s.pieces > 0 && at != s.at:
		s.pieces--
	}
	switch {
	case s.pieces > 0:
		s.window = 0
	case s.window == 0:
		s.window = 1
	case at != s.at:
		s.window *= 2
	}
	return stream{end: end, at: at, window: max(0, min(s.window, most)), pieces: s.pieces, piece: w}
}

// inPieces says whether a read of the chunk at is of a piece of it: the stream has been in
// it, and it has fallen out of the cache since; or that was so with one shortly before.
func (s stream) inPieces(at partKey, held bool) bool {
	return !held && (s.at == at || s.pieces > 1)
}

// widest returns how many chunks one reader may have ahead: a part of each budget, so
// that a few readers find room beside each other.
func widest(o *Options) int {
	return int(max(1, min(int64(o.Reads)/2, o.ReadBytes/(2*o.ChunkBytes), o.CacheBytes/(4*o.ChunkBytes))))
}

// A readerRing remembers where the last readers stopped, so that readahead is for
// those who go on from there and not for those who jump.
type readerRing struct {
	mu      sync.Mutex
	streams [64]stream
	next    int
}

// find returns the stream that goes on at from, the zero one if there is none.
func (r *readerRing) find(from log.Offset) stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.streams {
		if s.end == from && s.end != 0 {
			return s
		}
	}
	return stream{}
}

// window notes a read of [base, end) in the chunk at that asked for from, in its piece w
// or the whole, and returns how many chunks to fetch ahead: none for a reader that did
// not go on where an earlier one stopped.
func (r *readerRing) window(base, end, from log.Offset, at partKey, w piece, most int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.streams {
		if s.end == from && s.end != 0 || s.end > base && s.end <= from {
			r.streams[i] = s.advance(end, at, w, most)
			return r.streams[i].window
		}
	}
	r.streams[r.next] = stream{end: end, at: at}
	r.next = (r.next + 1) % len(r.streams)
	return 0
}

// ahead begins to fetch the window of chunks that a sequential reader wants after chunk
// i of o, on into the objects behind it, which next finds. It stops where the budgets
// have no room.
func (c *coldReader) ahead(o object, t *objectTail, i, window int, next func(object) (object, bool)) {
	for window > 0 {
		if i++; t != nil && i < len(t.chunks) {
			if !c.start(chunkKey(o.ID, i), t.chunks[i].memory(), c.loadChunk(o, t, i)) {
				return
			}
			window--
			continue
		}
		n, ok := next(o)
		if !ok {
			return
		}
		load, left := c.loadTail(n), window
		if n.whole(c.o.ChunkBytes) {
			// The tail brings the chunks along.
			if !c.start(tailKey(n.ID), n.ObjectBytes+n.BatchBytes, load) {
				return
			}
			o, t, i = n, nil, 0
			window--
			continue
		}
		if t = c.cachedTail(n); t != nil {
			o, i = n, -1
			continue
		}
		c.start(tailKey(n.ID), 2*n.TailBytes, func(ctx context.Context) (*part, error) {
			p, err := load(ctx)
			if err == nil {
				c.ahead(n, p.tail, -1, left, next)
			}
			return p, err
		})
		return
	}
}

// whole says whether the object is read in one request.
func (o *object) whole(chunkBytes int64) bool { return max(o.ObjectBytes, o.BatchBytes) <= chunkBytes }

// cachedTail returns the tail of an object if it is in memory.
func (c *coldReader) cachedTail(o object) *objectTail {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.cache[tailKey(o.ID)]; ok {
		return e.Value.(*part).tail
	}
	return nil
}

// start begins a flight that nobody waits for. It returns false if there is no room:
// a quarter of the budgets is for readers that wait, and parts that nobody has asked
// for yet fill at most half of the cache.
func (c *coldReader) start(key partKey, bytes int64, load func(context.Context) (*part, error)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	if _, ok := c.cache[key]; ok {
		return true
	}
	if _, ok := c.flights[key]; ok {
		return true
	}
	if !c.requests.spare(1) || !c.bytes.spare(bytes) {
		return false
	}
	if c.guessed+bytes > c.o.CacheBytes/2 || c.guesses >= max(1, c.o.CacheChunks/2) {
		c.forgetGuessesLocked()
		if c.guesses > 0 { // a single one that is too large is let through
			return false
		}
	}
	f, err := c.flightLocked(key, load)
	if err != nil {
		return false
	}
	c.stats.ahead++
	f.guess = max(1, bytes)
	c.guessed += f.guess
	c.guesses++
	return true
}

// guessLife is how long parts that were fetched ahead are kept for their reader.
const guessLife = 10 * time.Second

// forgetGuessesLocked gives parts up whose reader does not seem to come.
func (c *coldReader) forgetGuessesLocked() {
	e := c.recent.Back()
	for range 64 {
		if e == nil {
			return
		}
		if p := e.Value.(*part); p.guess > 0 && time.Since(p.guessed) > guessLife {
			c.settleLocked(&p.guess)
		}
		e = e.Prev()
	}
}

// settleLocked ends a guess: somebody asked for the part, or it is gone.
func (c *coldReader) settleLocked(guess *int64) {
	if *guess > 0 {
		c.guessed -= *guess
		c.guesses--
		*guess = 0
	}
}
