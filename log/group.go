package log

import (
	"context"
	"fmt"
	"math"

	"github.com/cordwood-io/cordwood/log/record"
)

// Group commit: appends that wait at the same time share one write and one sync.
// The append that leads does the work.

// An appendRequest is one call of Append in the queue.
type appendRequest struct {
	b     []byte
	state uint8 // under Log.mu
	done  chan struct{}
	lead  bool // the call must lead the next group; set before done is signalled
	res   Appended
	err   error
}

const (
	requestQueued uint8 = iota
	requestTaken        // a leader reads the bytes
	requestWritten
)

const (
	maxFreeRequests = 64

	stageBytes = 1 << 20  // of a group that is put together
	stageBatch = 64 << 10 // larger batches are written from where they are
)

func (l *Log) append(ctx context.Context, b []byte) (Appended, error) {
	if err := l.inspect(b, false, false); err != nil {
		return Appended{}, err
	}
	if n := int64(int32(be.Uint32(b[8:]))) + 12; n != int64(len(b)) {
		return Appended{}, fmt.Errorf("%w: more than one batch", ErrInvalidBatch)
	}
	return l.appendChecked(ctx, b)
}

// appendChecked is append of one batch that was checked, or has just been built. When
// it returns, nobody uses the bytes any more.
func (l *Log) appendChecked(ctx context.Context, b []byte) (Appended, error) {
	if err := ctx.Err(); err != nil {
		return Appended{}, context.Cause(ctx)
	}
	l.mu.Lock()
	r := l.requestLocked()
	*r = appendRequest{b: b, done: r.done}
	l.queue = append(l.queue, r)
	first := !l.leading
	l.leading = true
	l.mu.Unlock()
	if first {
		l.leadGroup(ctx, r)
	} else {
		if err := l.await(ctx, r); err != nil {
			return Appended{}, err
		}
		if r.lead {
			l.leadGroup(ctx, r)
		}
	}
	a, err := r.res, r.err
	l.mu.Lock()
	r.b = nil
	if len(l.free) < maxFreeRequests {
		l.free = append(l.free, r)
	}
	l.mu.Unlock()
	if err == nil && !a.Duplicate {
		l.appended(a, nil)
	}
	return a, err
}

// requestLocked returns a request that nobody uses.
func (l *Log) requestLocked() *appendRequest {
	if n := len(l.free); n > 0 {
		r := l.free[n-1]
		l.free = l.free[:n-1]
		return r
	}
	return &appendRequest{done: make(chan struct{}, 1)}
}

// await waits until a leader has served r or hands the lead to it.
func (l *Log) await(ctx context.Context, r *appendRequest) error {
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	for {
		select {
		case <-r.done:
			l.mu.Unlock()
			return nil
		default:
		}
		switch r.state {
		case requestQueued:
			for i, q := range l.queue {
				if q == r {
					l.queue = append(l.queue[:i:i], l.queue[i+1:]...)
					break
				}
			}
			l.mu.Unlock()
			return context.Cause(ctx)
		case requestWritten:
			l.mu.Unlock()
			return context.Cause(ctx)
		}
		ch := waiterLocked(&l.groupOut)
		l.mu.Unlock()
		select {
		case <-ch:
		case <-r.done:
			return nil
		}
		l.mu.Lock()
	}
}

// leadGroup writes and syncs the requests that wait, mine among them, and then
// hands the lead on. While a sync is under way a group gathers behind it; a lone
// append finds none and waits for nothing.
func (l *Log) leadGroup(ctx context.Context, mine *appendRequest) {
	l.mu.Lock()
	for l.syncing && l.failed == nil {
		ch := waiterLocked(&l.syncDone)
		l.mu.Unlock()
		<-ch
		l.mu.Lock()
	}
	l.mu.Unlock()
	l.gate <- struct{}{}
	l.mu.Lock()
	n, bytes := 0, 0
	for n < len(l.queue) && (n == 0 || bytes+len(l.queue[n].b) <= stageBytes) {
		bytes += len(l.queue[n].b)
		l.queue[n].state = requestTaken
		n++
	}
	var one [1]*appendRequest
	var group []*appendRequest
	if n == 1 {
		one[0] = l.queue[0]
		group = one[:]
	} else {
		group = append(group, l.queue[:n]...)
	}
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	var target uint64
	l.mu.Unlock()

	l.synchronous = true
	wrote := l.writeGroup(group)
	l.synchronous = false

	l.mu.Lock()
	for _, r := range group {
		r.state = requestWritten
	}
	l.wakeLocked(&l.groupOut)
	if wrote {
		target = l.writes
	}
	l.mu.Unlock()
	l.unlockGate()

	_, err := l.syncTo(context.Background(), target)

	// The next leader goes first: its group waits for this one's sync only.
	l.mu.Lock()
	var next *appendRequest
	if len(l.queue) > 0 {
		next = l.queue[0]
		next.lead = true
		next.state = requestTaken
	} else {
		l.leading = false
	}
	l.mu.Unlock()
	if next != nil {
		next.done <- struct{}{}
	}
	for _, r := range group {
		if err != nil && r.err == nil {
			r.res, r.err = Appended{}, err
		}
		if r != mine {
			r.done <- struct{}{}
		}
	}
}

// writeGroup judges each request and writes those that pass; small ones together.
// It reports whether anything new was written, or a duplicate must be durable.
// Requires: gate.
func (l *Log) writeGroup(group []*appendRequest) bool {
	epoch := max(l.chain.last(), l.o.Epoch)
	if len(group) == 1 {
		r := group[0]
		r.res, r.err = l.writeGated(epoch, r.b)
		return r.err == nil
	}
	any := false
	for len(group) > 0 {
		n, bytes := 1, len(group[0].b)
		for n < len(group) && len(group[n].b) <= stageBatch && bytes+len(group[n].b) <= stageBytes {
			bytes += len(group[n].b)
			n++
		}
		if n > 1 {
			l.writeStaged(group[:n], epoch, bytes)
		} else {
			group[0].res, group[0].err = l.writeGated(epoch, group[0].b)
		}
		for _, r := range group[:n] {
			any = any || r.err == nil
		}
		group = group[n:]
	}
	return any
}

// writeStaged judges each of the requests behind those before it, and writes those
// that are new by one call: all of these or none. Requires: gate.
func (l *Log) writeStaged(group []*appendRequest, epoch Epoch, bytes int) {
	err := l.writable()
	buf := getBuffer(bytes)
	defer buf.put()
	b := buf.b[:0]
	l.clearScratch()
	end, next := l.end, l.end
	now := nowMs()
	for _, r := range group {
		if err != nil {
			r.res, r.err = Appended{}, err
			continue
		}
		batch, _, bad := record.Next(r.b, math.MaxInt)
		if bad != nil {
			r.res, r.err = Appended{}, fmt.Errorf("%w: %w", ErrInvalidBatch, bad)
			continue
		}
		dup, bad := l.stamp(epoch, batch, next, now)
		switch {
		case bad != nil:
			r.res, r.err = Appended{}, bad
		case dup != nil:
			r.res, r.err = Appended{Base: dup.base, End: dup.last + 1, Epoch: -1, Duplicate: true}, nil
		default:
			r.res, r.err = Appended{Base: next, End: batch.LastOffset() + 1, Epoch: epoch}, nil
			next = r.res.End
			b = append(b, r.b...)
			if id := batch.ProducerID(); id >= 0 {
				l.remember(id, batch, now)
			}
		}
	}
	if len(b) == 0 {
		return
	}
	if err := l.placeAll(b); err != nil {
		for _, r := range group {
			// A duplicate of one in this group is as little in the log as that is.
			if r.err == nil && r.res.End > end {
				r.res, r.err = Appended{}, err
			}
		}
	}
}
