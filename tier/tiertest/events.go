package tiertest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
)

// ErrEvents is what a faulty append of [Events] returns.
var ErrEvents = errors.New("tiertest: append failed")

// An EventFault is what happens to one append. The zero value commits it.
type EventFault uint8

// The faults.
const (
	EventCommitted EventFault = iota // no fault
	EventLost                        // not committed; the caller gets an error
	EventReplyLost                   // committed; the caller gets an error
	EventLate                        // an error now, committed with the next Land
)

// Events is a tier log in memory, shared by the managers of a test. The zero value
// is empty and ready. It is safe for concurrent use.
type Events struct {
	mu     sync.Mutex
	list   [][]byte
	start  int // of list, what was trimmed
	late   [][]byte
	grown  chan struct{} // closed when list grows
	fault  func(p log.PartitionID) EventFault
	told   func(tier.Committed)
	closed bool
}

var _ tier.Events = (*Events)(nil)

// SetFault asks fn about each append; nil ends that.
func (e *Events) SetFault(fn func(p log.PartitionID) EventFault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fault = fn
}

// SetCommitted has fn told of each event from now on as it is committed, in order. It is
// called with the lock held: it must not call Events. nil ends that.
func (e *Events) SetCommitted(fn func(tier.Committed)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = fn
}

// SetDown makes every call fail, or ends that. Readers at the end go on waiting.
func (e *Events) SetDown(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = down
}

// Land commits the late events, in the order in which perm puts them; nil keeps
// theirs. It returns their number.
func (e *Events) Land(perm func(n int) []int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	late := e.late
	e.late = nil
	order := make([]int, len(late))
	for i := range order {
		order[i] = i
	}
	if perm != nil {
		order = perm(len(late))
	}
	for _, i := range order {
		e.commitLocked(late[i])
	}
	return len(late)
}

func (e *Events) commitLocked(b []byte) {
	if e.told != nil {
		e.told(tier.Committed{Offset: log.Offset(len(e.list)), Event: b})
	}
	e.list = append(e.list, b)
	if e.grown != nil {
		close(e.grown)
		e.grown = nil
	}
}

// Len returns the number of committed events.
func (e *Events) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.list)
}

// All returns the committed events, the trimmed ones too.
func (e *Events) All() [][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

// Append implements [tier.Events].
func (e *Events) Append(ctx context.Context, p log.PartitionID, event []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	fn := e.fault
	e.mu.Unlock()
	fault := EventCommitted
	if fn != nil {
		fault = fn(p)
	}
	b := slices.Clone(event)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("%w: down", ErrEvents)
	}
	switch fault {
	case EventLost:
		return ErrEvents
	case EventLate:
		e.late = append(e.late, b)
		return ErrEvents
	}
	e.commitLocked(b)
	if fault == EventReplyLost {
		return ErrEvents
	}
	return nil
}

// Read implements [tier.Events].
func (e *Events) Read(ctx context.Context, from log.Offset) iter.Seq2[tier.Committed, error] {
	return func(yield func(tier.Committed, error) bool) {
		for at := from; ; {
			e.mu.Lock()
			if int64(at) < int64(e.start) {
				start := e.start
				e.mu.Unlock()
				yield(tier.Committed{}, fmt.Errorf("tiertest: offset %d, start %d: %w", at, start, log.ErrOffsetOutOfRange))
				return
			}
			if int64(at) < int64(len(e.list)) {
				b := slices.Clone(e.list[at])
				e.mu.Unlock()
				if !yield(tier.Committed{Offset: at, Event: b}, nil) {
					return
				}
				at++
				continue
			}
			if e.grown == nil {
				e.grown = make(chan struct{})
			}
			grown := e.grown
			e.mu.Unlock()
			select {
			case <-grown:
			case <-ctx.Done():
				yield(tier.Committed{}, context.Cause(ctx))
				return
			}
		}
	}
}

// End implements [tier.Events].
func (e *Events) End(ctx context.Context) (log.Offset, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return 0, fmt.Errorf("%w: down", ErrEvents)
	}
	return log.Offset(len(e.list)), nil
}

// Start implements [tier.Events].
func (e *Events) Start(ctx context.Context) (log.Offset, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return 0, fmt.Errorf("%w: down", ErrEvents)
	}
	return log.Offset(e.start), ctx.Err()
}

// Trim implements [tier.Events]: every node may.
func (e *Events) Trim(ctx context.Context, to log.Offset) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("%w: down", ErrEvents)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.start = max(e.start, min(int(to), len(e.list)))
	return nil
}
