package tier

import (
	"context"
	"hash/fnv"
	"io"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A pacer spaces bytes so that in any time t at most rate*t of them and one
// paceBurst pass. It is pure: time comes in.
//
// Source: the generic cell rate algorithm; the numbers are our own.
type pacer struct {
	rate int64     // bytes per second, above 0
	free time.Time // when all that was taken has passed at that rate
}

const (
	// paceBurst is how much time that nobody used is made up for.
	paceBurst = 100 * time.Millisecond

	// paceBytes is how much is asked for at a time: the limit holds within an object,
	// and uploads that share it take turns.
	paceBytes = 64 << 10
)

// take adds n bytes and returns how long they must wait.
func (p *pacer) take(n int64, now time.Time) time.Duration {
	if earliest := now.Add(-paceBurst); p.free.Before(earliest) {
		p.free = earliest
	}
	wait := max(0, p.free.Sub(now))
	p.free = p.free.Add(paceTime(n, p.rate))
	return wait
}

// paceTime is the time that n bytes take at a rate, at most a day.
func paceTime(n, rate int64) time.Duration {
	s := float64(n) / float64(rate)
	return time.Duration(min(s, 24*3600) * float64(time.Second))
}

// A throttle is a pacer that many share. nil lets everything through.
type throttle struct {
	mu    sync.Mutex
	pacer pacer
}

func newThrottle(bytesPerSecond int64) *throttle {
	if bytesPerSecond <= 0 {
		return nil
	}
	return &throttle{pacer: pacer{rate: bytesPerSecond}}
}

// wait returns when n more bytes may pass. Bytes whose wait was cut off by ctx count
// all the same.
func (t *throttle) wait(ctx context.Context, n int64) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	d := t.pacer.take(n, time.Now())
	t.mu.Unlock()
	if d == 0 {
		return nil
	}
	return sleep(ctx, d)
}

// reader makes reads of r pass through the throttle.
func (t *throttle) reader(ctx context.Context, r io.ReaderAt) io.ReaderAt {
	if t == nil {
		return r
	}
	return &pacedReader{ctx, t, r}
}

type pacedReader struct {
	ctx context.Context // of the upload
	t   *throttle
	r   io.ReaderAt
}

// ReadAt implements [io.ReaderAt].
func (r *pacedReader) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && err == nil {
		b := p[n:min(len(p), n+paceBytes)]
		if err = r.t.wait(r.ctx, int64(len(b))); err != nil {
			break
		}
		var m int
		m, err = r.r.ReadAt(b, off+int64(n))
		n += m
	}
	return n, err
}

// batches makes reads of a log pass through the throttle. A wait comes before a read,
// for what was read before: nothing is held meanwhile.
func (t *throttle) batches(read batchReader) batchReader {
	if t == nil {
		return read
	}
	var last int64
	return func(ctx context.Context, from, below log.Offset, maxBytes int) ([]byte, func(), error) {
		if err := t.wait(ctx, last); err != nil {
			return nil, nil, err
		}
		b, release, err := read(ctx, from, below, maxBytes)
		last = int64(len(b))
		return b, release, err
	}
}

// phase is where in the interval a partition has its turn, always the same: what was
// made at the same moment does not reach its age, and the store, at the same moment.
func phase(id log.PartitionID, interval time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write(id.Topic[:])
	h.Write([]byte{byte(id.Index >> 24), byte(id.Index >> 16), byte(id.Index >> 8), byte(id.Index)})
	// The high bits of FNV hardly depend on the last bytes: mix them.
	x := h.Sum64()
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	return time.Duration(float64(x>>11) / (1 << 53) * float64(interval))
}
