package log

import (
	"context"
	"errors"
	"io/fs"
	"runtime/pprof"
	"sync"
)

// Chores are what a log leaves for the background: to seal a segment that has a
// successor, to ready a freed file for its next life or to remove it, and to make the
// next file in advance. One goroutine at a time does those of one log.

const maxChoreWorkers = 4

// aheadFactor is how much more room than it takes a file that is made in advance
// must find above the disk's reserve.
const aheadFactor = 4

// chores are the logs of a Disk that have some.
type chores struct {
	mu      sync.Mutex
	queue   []*Log
	workers int
}

// chore queues a log. A log is queued at most once at a time.
func (d *Disk) chore(l *Log) {
	c := &d.chores
	c.mu.Lock()
	c.queue = append(c.queue, l)
	start := c.workers < maxChoreWorkers
	if start {
		c.workers++
		d.wg.Add(1)
	}
	c.mu.Unlock()
	if start {
		go pprof.Do(context.Background(), pprof.Labels("cordwood", "log-chores"), func(context.Context) { d.doChores() })
	}
}

// doChores serves the queue and ends when it is empty.
func (d *Disk) doChores() {
	defer d.wg.Done()
	c := &d.chores
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.queue = nil
			c.workers--
			c.mu.Unlock()
			return
		}
		l := c.queue[0]
		c.queue = c.queue[1:]
		c.mu.Unlock()
		l.runChores()
	}
}

// A freedFile is that of a segment below the start, which nobody reads any more.
type freedFile struct {
	name string // a spare one
	size int64  // of its batches
	gone bool   // it is to be removed
}

// choreLocked queues the log for a worker if there is something to do and it isn't
// queued. The caller calls disk.chore without mu if the result is true.
func (l *Log) choreLocked() bool {
	if l.choreQueued || l.choresHeld || !l.choresLocked() {
		return false
	}
	l.choreQueued = true
	return true
}

// choresLocked reports whether there is something to do.
func (l *Log) choresLocked() bool {
	return l.sealableLocked() != nil || len(l.freed) > 0 || l.wantNext
}

// sealableLocked returns the oldest segment to seal, unless a full disk has kept it
// from being sealed.
func (l *Log) sealableLocked() *sealing {
	if l.failed != nil || len(l.sealings) == 0 || l.sealings[0].stuck {
		return nil
	}
	return l.sealings[0]
}

// startChores queues the log if it has chores. Locks are free.
func (l *Log) startChores() {
	l.mu.Lock()
	queue := l.choreLocked()
	l.mu.Unlock()
	if queue {
		l.disk.chore(l)
	}
}

// runChores does what there is; a worker of the disk calls it.
func (l *Log) runChores() {
	l.mu.Lock()
	for !l.choresHeld && l.choresLocked() {
		if l.choring {
			// Somebody who has the gate seals: he looks again when he is done.
			break
		}
		l.choring = true
		s := l.sealableLocked()
		var freed freedFile
		prepare := false
		switch {
		case s != nil:
		case len(l.freed) > 0:
			freed = l.freed[0]
			l.freed = l.freed[1:]
		default:
			prepare, l.wantNext = true, false
		}
		stop := l.closing || l.failed != nil
		l.mu.Unlock()
		switch {
		case s != nil:
			l.seal(s) //nolint:errcheck // the log has failed, or the disk is full and it stays to be done
		case freed.name != "":
			l.doRecycle(freed, stop || freed.gone)
			l.mu.Lock()
			l.freeing--
			l.mu.Unlock()
		case prepare && !stop:
			l.doPrepare()
		}
		l.mu.Lock()
		l.choring = false
		l.wakeLocked(&l.choreIdle)
	}
	l.choreQueued = false
	l.wakeLocked(&l.choreIdle)
	l.mu.Unlock()
}

// holdChores waits for the chore that is being done and keeps others from being
// begun until resumeChores. Requires: gate, not the sync token.
func (l *Log) holdChores() {
	l.mu.Lock()
	l.choresHeld = true
	l.waitChoreLocked()
	l.mu.Unlock()
}

func (l *Log) waitChoreLocked() {
	for l.choring {
		ch := waiterLocked(&l.choreIdle)
		l.mu.Unlock()
		<-ch
		l.mu.Lock()
	}
}

func (l *Log) resumeChores() {
	l.mu.Lock()
	l.choresHeld = false
	l.mu.Unlock()
	l.startChores()
}

// settle seals what is to be sealed. ErrDiskFull means that there was no room; other
// errors, that the log has failed. Requires: gate, not the sync token.
func (l *Log) settle() error {
	l.mu.Lock()
	for {
		l.waitChoreLocked()
		if l.failed != nil {
			err := l.failed
			l.mu.Unlock()
			return err
		}
		if len(l.sealings) == 0 {
			l.mu.Unlock()
			l.startChores()
			return nil
		}
		s := l.sealings[0]
		l.choring = true
		l.mu.Unlock()
		err := l.seal(s)
		l.mu.Lock()
		l.choring = false
		l.wakeLocked(&l.choreIdle)
		if err != nil {
			l.mu.Unlock()
			l.startChores()
			return err
		}
	}
}

// waitSealed waits until the files beside all segments up to base are written, unless
// a full disk has no room for them.
func (l *Log) waitSealed(ctx context.Context, base Offset) error {
	for {
		l.mu.Lock()
		s := l.sealableLocked()
		if s == nil || s.seg.base > base {
			l.mu.Unlock()
			return nil
		}
		ch := waiterLocked(&l.choreIdle)
		l.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// doRecycle readies a freed file, or removes it.
func (l *Log) doRecycle(freed freedFile, remove bool) {
	var s *spare
	var err error
	if !remove {
		if s, err = l.recycle(freed.name, freed.size); err == nil {
			l.disk.keepSpare(s)
			return
		}
	}
	// It can be done without. What is left is removed at the next Open.
	if rerr := l.fs.Remove(freed.name); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil && !full(err) && !errors.Is(err, fs.ErrNotExist) {
		l.o.Logger.Warn("segment file not recycled", "path", freed.name, "err", err)
	}
}

// doPrepare makes the next file in advance if there is none.
func (l *Log) doPrepare() {
	if recycled, prepared := l.disk.countSpares(l); recycled+prepared > 0 {
		return
	}
	alloc := slotPosition(l.o.SegmentBytes)
	if l.room(aheadFactor*(alloc+slotArea)) != nil {
		return // the log may want the room for its present segment first
	}
	s, err := l.makeSpare(alloc)
	switch {
	case err == nil:
		l.disk.keepSpare(s)
	case !full(err):
		// The roll meets the same error, or it doesn't.
		l.o.Logger.Warn("next segment file not made in advance", "dir", l.dir, "err", err)
	}
}

// prepareLocked orders the next file if the n bytes just written bring the active
// segment over half of its size. The caller calls disk.chore without mu if the
// result is true.
func (l *Log) prepareLocked(n int64) bool {
	if half := l.o.SegmentBytes / 2; l.size < half || l.size-n >= half {
		return false
	}
	l.wantNext = true
	return l.choreLocked()
}
