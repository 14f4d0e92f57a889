package tier

import (
	"container/heap"
	"context"
	"time"
)

// taskKind separates what may wait for the store for long from what may not.
type taskKind uint8

const (
	taskControl taskKind = iota // events and local files
	taskUpload                  // one object
	taskDelete                  // of objects
	taskKinds
)

var taskLabels = [taskKinds]string{"tier-control", "tier-upload", "tier-delete"}

// controlWorkers and deleteWorkers bound the partitions whose tasks run at once.
const (
	controlWorkers = 4
	deleteWorkers  = 2
)

// manifestReads bounds the manifests that are read at once, each of which is in memory
// whole. manifestWrites bounds those that are written: a store that hangs must leave
// control workers for what needs no store.
const (
	manifestReads  = 4
	manifestWrites = controlWorkers / 2
)

// kickPause is the least time between two control tasks of one partition that are
// only kicked, so that a kick per append costs next to nothing.
const kickPause = 10 * time.Millisecond

type queue struct {
	limit   int
	running int
	list    []*Partition
}

// schedule starts what is due, and a pass over all partitions each Interval.
func (m *Manager) schedule(ctx context.Context) {
	pass := time.NewTimer(m.o.Interval)
	defer pass.Stop()
	next := time.NewTimer(time.Hour)
	defer next.Stop()
	for {
		m.mu.Lock()
		now := time.Now()
		for len(m.due) > 0 && !m.due[0].dueAt.After(now) {
			p := heap.Pop(&m.due).(*Partition)
			m.enqueueLocked(taskControl, p)
		}
		wait := time.Hour
		if len(m.due) > 0 {
			wait = m.due[0].dueAt.Sub(now)
		}
		m.mu.Unlock()
		next.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-next.C:
		case <-pass.C:
			pass.Reset(m.o.Interval)
			m.mu.Lock()
			m.passLocked(time.Now())
			m.mu.Unlock()
		}
	}
}

// passLocked has the control task of each partition run once within the interval:
// of a few at once, of many at the moment that each has in it.
func (m *Manager) passLocked(now time.Time) {
	for _, p := range m.parts {
		if len(m.parts) <= controlWorkers {
			m.enqueueLocked(taskControl, p)
		} else {
			m.atLocked(p, now.Add(phase(p.id, m.o.Interval)))
		}
	}
}

// atLocked has a partition's control task run at t, or before.
func (m *Manager) atLocked(p *Partition, t time.Time) {
	if p.closed {
		return
	}
	switch {
	case p.heapIndex < 0:
		p.dueAt = t
		heap.Push(&m.due, p)
	case t.Before(p.dueAt):
		p.dueAt = t
		heap.Fix(&m.due, p.heapIndex)
	default:
		return
	}
	if p.heapIndex == 0 {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// enqueueLocked has a task of a partition run soon, once more if it runs now.
func (m *Manager) enqueueLocked(k taskKind, p *Partition) {
	if m.closed || m.err != nil || p.closed {
		return
	}
	t := &p.tasks[k]
	if t.running {
		t.again = true
		return
	}
	if t.queued {
		return
	}
	t.queued = true
	q := &m.queues[k]
	q.list = append(q.list, p)
	if q.running < q.limit {
		q.running++
		m.run(taskLabels[k], func(ctx context.Context) { m.work(ctx, k) })
	}
}

// work runs tasks until there are none. So an idle manager has no workers.
func (m *Manager) work(ctx context.Context, k taskKind) {
	q := &m.queues[k]
	m.mu.Lock()
	for len(q.list) > 0 && ctx.Err() == nil {
		p := q.list[0]
		q.list = q.list[1:]
		t := &p.tasks[k]
		t.queued = false
		if p.closed {
			continue
		}
		t.running = true
		lead := p.lead
		p.wg.Add(1)
		if lead != nil {
			lead.wg.Add(1)
		}
		if k == taskControl {
			p.lastControl = time.Now()
			p.kicked.Store(false)
		}
		m.mu.Unlock()
		switch {
		case k == taskControl:
			p.control(lead)
		case lead == nil:
		case k == taskUpload:
			p.upload(lead)
		default:
			p.delete(lead)
		}
		m.mu.Lock()
		if lead != nil {
			lead.wg.Done()
		}
		p.wg.Done()
		t.running = false
		if t.again {
			t.again = false
			m.enqueueLocked(k, p)
		}
	}
	q.running--
	m.mu.Unlock()
}

// dueHeap orders partitions by the time of their next control task.
type dueHeap []*Partition

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].dueAt.Before(h[j].dueAt) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}
func (h *dueHeap) Push(x any) {
	p := x.(*Partition)
	p.heapIndex = len(*h)
	*h = append(*h, p)
}
func (h *dueHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	p.heapIndex = -1
	return p
}

// A task is the place of one kind of work of one partition in its queue.
type task struct{ queued, running, again bool }
