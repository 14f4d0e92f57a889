package metadata

import "sync"

// A queue hands values from any goroutine to one that takes them, in order. The
// channel ready gets a token whenever values may be waiting.
type queue[T any] struct {
	ready chan struct{}
	limit int // push refuses beyond; 0 = no limit

	mu    sync.Mutex
	items []T
}

func newQueue[T any](limit int) *queue[T] {
	return &queue[T]{ready: make(chan struct{}, 1), limit: limit}
}

// push appends a value and never blocks. It reports whether there was room.
func (q *queue[T]) push(v T) bool {
	q.mu.Lock()
	if q.limit > 0 && len(q.items) >= q.limit {
		q.mu.Unlock()
		return false
	}
	q.items = append(q.items, v)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return true
}

// take returns all values that wait.
func (q *queue[T]) take() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	return items
}
