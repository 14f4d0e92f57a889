package tier

import (
	"context"
	"sync"
)

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

// spare says whether n could be had without waiting, and a quarter would be left for
// those who wait; or all of it is free.
func (b *budget) spare(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) == 0 && (b.used == 0 || b.used+n <= b.size-b.size/4)
}
