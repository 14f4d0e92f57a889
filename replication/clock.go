package replication

import (
	"container/heap"
	"sync"
	"time"
)

// A clock runs functions at their times, on one goroutine and with one timer for
// the whole manager; with nothing due it has no timer at all.
type clock struct {
	mu     sync.Mutex
	alarms alarmHeap
	kick   chan struct{} // capacity 1: the first alarm has changed
}

// An alarm is one function with a time. fn must not block.
type alarm struct {
	at    time.Time
	index int // in the heap, from 1; 0 = not set
	fn    func()
}

func newClock() *clock { return &clock{kick: make(chan struct{}, 1)} }

// before sets a to ring at t, unless it rings before that anyway.
func (c *clock) before(a *alarm, t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case a.index == 0:
		a.at = t
		heap.Push(&c.alarms, a)
	case t.Before(a.at):
		a.at = t
		heap.Fix(&c.alarms, a.index-1)
	default:
		return
	}
	if c.alarms[0] == a {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
}

func (c *clock) stop(a *alarm) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.index > 0 {
		heap.Remove(&c.alarms, a.index-1)
	}
}

// run rings alarms until done is closed.
func (c *clock) run(done <-chan struct{}) {
	var timer *time.Timer
	for {
		var ring *alarm
		wait := time.Duration(-1)
		c.mu.Lock()
		if len(c.alarms) > 0 {
			wait = max(time.Until(c.alarms[0].at), 0)
			if wait == 0 {
				ring = heap.Pop(&c.alarms).(*alarm)
			}
		}
		c.mu.Unlock()
		if ring != nil {
			ring.fn()
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			if timer == nil {
				timer = time.NewTimer(wait)
			} else {
				timer.Reset(wait)
			}
			due = timer.C
		}
		select {
		case <-done:
			if timer != nil {
				timer.Stop()
			}
			return
		case <-c.kick:
		case <-due:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

type alarmHeap []*alarm

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

func (h *alarmHeap) Push(x any) {
	a := x.(*alarm)
	*h = append(*h, a)
	a.index = len(*h)
}

func (h *alarmHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	a.index = 0
	return a
}
