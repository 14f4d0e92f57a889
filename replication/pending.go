package replication

import (
	"context"
	"slices"

	"github.com/cordwood-io/cordwood/log"
)

// A Pending is an append that has been written to the leader's log and waits for
// what its [Acks] ask. It is safe for concurrent use.
type Pending struct {
	app  log.Appended
	need log.Offset // done when the watched end reaches this
	done chan struct{}
	err  error // set before done is closed
}

// Done is closed when the outcome is known; [Pending.Wait] then returns at once.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait returns where the append went once that is certain, or an
// [*IndeterminateError]. ctx ends the wait, not the append: it may be waited for
// again.
func (p *Pending) Wait(ctx context.Context) (log.Appended, error) {
	select {
	case <-p.done:
	default:
		select {
		case <-p.done:
		case <-ctx.Done():
			return p.app, p.open(context.Cause(ctx))
		}
	}
	return p.app, p.err
}

func (p *Pending) open(err error) error {
	return &IndeterminateError{Epoch: p.app.Epoch, Base: p.app.Base, End: p.app.End, Err: err}
}

// A pendingQueue holds appends in the order of their ends.
type pendingQueue struct{ q []*Pending }

func (q *pendingQueue) push(p *Pending) {
	i := len(q.q)
	for i > 0 && q.q[i-1].need > p.need {
		i-- // a duplicate waits for an end below those of later appends
	}
	q.q = slices.Insert(q.q, i, p)
}

// reach completes what waits for ends up to end.
func (q *pendingQueue) reach(end log.Offset) {
	n := 0
	for n < len(q.q) && q.q[n].need <= end {
		close(q.q[n].done)
		q.q[n] = nil
		n++
	}
	if n == len(q.q) {
		q.q = q.q[:0]
		return
	}
	q.q = q.q[n:]
}

// fail ends all waits.
func (q *pendingQueue) fail(err error) {
	for _, p := range q.q {
		p.err = p.open(err)
		close(p.done)
	}
	q.q = nil
}
