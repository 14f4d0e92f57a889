package tier

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// lateGrace is how long after the deadline of an upload its object is deleted for
// the last time: for clocks that differ and requests that linger.
const lateGrace = time.Minute

// deleteBatch bounds the objects of one delete event and of one request.
const deleteBatch = 256

// pendingDeletes bounds the deletions that are begun and not finished: what an event
// costs its reader grows with them.
const pendingDeletes = 4 * deleteBatch

// removeDueLocked takes a partition out of the schedule.
func (m *Manager) removeDueLocked(p *Partition) { heap.Remove(&m.due, p.heapIndex) }

// A wish is the earliest time at which something wants a control task to run.
type wish struct{ at time.Time }

func (w *wish) add(t time.Time) {
	if w.at.IsZero() || t.Before(w.at) {
		w.at = t
	}
}

// control does what needs no object store: local files on every replica, events
// on the leader. Everything is derived from the applied state, so that it can be
// cut off anywhere and run again.
func (p *Partition) control(lead *leadership) {
	m := p.m
	var next wish
	var err error
	if p.log != nil {
		err = p.local(lead, &next)
	}
	if lead != nil {
		err = errors.Join(err, p.leaderStep(lead, &next))
	}
	if p.ctx.Err() != nil {
		return
	}
	stopped := lead != nil && lead.ctx.Err() != nil
	if errors.Is(err, log.ErrClosed) {
		return // the owner closes the partition next
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && !stopped && !errors.Is(err, errStranger) {
		next.add(time.Now().Add(backoff(p.failures, &m.o, err)))
		if p.failures == 0 {
			m.logger(p).Warn("tier", "error", err)
		}
		p.failures++
	} else {
		p.failures = 0
		if errors.Is(err, errStranger) {
			next.add(time.Now().Add(kickPause))
		}
	}
	if !next.at.IsZero() {
		m.atLocked(p, next.at)
	}
}

// local brings the local files in line with the applied state.
func (p *Partition) local(lead *leadership, next *wish) error {
	l := p.log
	if _, err := l.RollAged(p.ctx); err != nil {
		return fmt.Errorf("roll: %w", err)
	}
	v := p.View()
	if !v.Known {
		return nil
	}
	o := p.options()
	hw := o.HighWatermark()

	// The log start is the state's word. What this replica has not committed yet
	// stays: it is not known to be the log that the state speaks of.
	if start := min(v.LogStart, hw, l.End()); start > l.Start() {
		if base, end, ok := p.pinned(lead); ok && base < start && start < end {
			start = base // the upload reads it; the rest goes when it has finished
		}
		if start > l.Start() {
			if err := l.TrimTo(p.ctx, start); err != nil {
				return fmt.Errorf("trim to %d: %w", start, err)
			}
		}
	}

	if !o.Tiered || o.Paused {
		return nil // local retention is for what goes on into the store
	}
	// Invariant: only offsets below the tier end applied here and below the own
	// high watermark go. An upload reads offsets above the tier end only.
	to := min(v.TierEnd, hw)
	segments := l.Segments()
	var total int64
	for _, s := range segments {
		total += s.Bytes
	}
	now := time.Now()
	drop := log.Offset(-1)
	for _, s := range segments {
		if !s.Sealed || s.End > to {
			break
		}
		if !keepsNothing(o) {
			cause, at := log.Retention{Bytes: o.LocalRetentionBytes, Age: o.LocalRetentionAge}.Expires(s, total, now)
			if cause == log.RetentionNone {
				if !at.IsZero() {
					next.add(at)
				}
				break
			}
		}
		total -= s.Bytes
		drop = s.End
	}
	if drop > l.LocalStart() {
		if err := l.DropLocal(p.ctx, drop); err != nil {
			return fmt.Errorf("drop local records below %d: %w", drop, err)
		}
	}
	return nil
}

func keepsNothing(o PartitionOptions) bool {
	return o.LocalRetentionBytes == 0 && o.LocalRetentionAge == 0
}

// pinned returns the range that an upload of this leadership reads.
func (p *Partition) pinned(lead *leadership) (base, end log.Offset, ok bool) {
	if lead == nil {
		return 0, 0, false
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if lead.job == nil {
		return 0, 0, false
	}
	return lead.job.from, lead.job.end, true
}

// leaderStep does what only a leader may.
func (p *Partition) leaderStep(lead *leadership, next *wish) error {
	m := p.m
	m.mu.Lock()
	barrier, failed := lead.barrier, lead.err
	m.mu.Unlock()
	if failed != nil || lead.ctx.Err() != nil {
		return nil
	}
	if m.tentative.Load() || p.ledger.unclear.Load() {
		return nil // what is here is not the state yet: its coming brings us back
	}
	if !barrier {
		// Whoever has read its barrier back has read everything before it, and no
		// event of an earlier leader takes effect after it.
		if _, err := p.propose(lead, Barrier{}); err != nil {
			return fmt.Errorf("barrier: %w", err)
		}
		m.mu.Lock()
		lead.barrier = true
		m.enqueueLocked(taskControl, p) // local files, now that the view is known
		m.mu.Unlock()
		p.setKnown()
	}
	if p.log == nil {
		return p.clearStep(lead, next)
	}
	if err := p.serveTrims(lead); err != nil {
		return err
	}
	if err := p.retention(lead, next); err != nil {
		return err
	}
	if err := p.startDeletes(lead, next); err != nil {
		return err
	}
	if err := p.checkpoint(lead, next, false); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if lead.job != nil || p.o.Tiered {
		if lead.uploadAt.After(time.Now()) {
			next.add(lead.uploadAt)
		} else {
			m.enqueueLocked(taskUpload, p)
		}
	}
	return nil
}

// serveTrims moves the log start for those who asked.
func (p *Partition) serveTrims(lead *leadership) error {
	for {
		p.m.mu.Lock()
		if len(lead.trims) == 0 {
			p.m.mu.Unlock()
			return nil
		}
		r := lead.trims[0]
		p.m.mu.Unlock()
		if r.start > p.View().LogStart {
			if _, err := p.propose(lead, LogStart{Start: r.start, Cause: r.cause, Until: p.m.o.keepUntil(time.Now())}); err != nil {
				return fmt.Errorf("trim: %w", err)
			}
		}
		// A refusal means that the log start is there already.
		p.m.mu.Lock()
		if len(lead.trims) > 0 && lead.trims[0] == r {
			lead.trims = lead.trims[1:]
			r.done <- nil
		}
		p.m.mu.Unlock()
	}
}

// retention moves the log start as far as the policy says. It is the committed
// event that does it: files and objects follow the state.
func (p *Partition) retention(lead *leadership, next *wish) error {
	o := p.options()
	if o.RetentionBytes <= 0 && o.RetentionAge <= 0 {
		return nil
	}
	hw := o.HighWatermark()
	segments := p.log.Segments()
	now := time.Now()

	p.ledger.mu.RLock()
	s := &p.ledger.state
	start, tierEnd := s.logStart, s.tierEnd
	total := s.liveBytes
	for _, seg := range segments {
		total += share(seg, max(tierEnd, start))
	}
	var cause Cause
	// one looks at the oldest unit that is left and says whether it goes.
	rules := log.Retention{Bytes: max(o.RetentionBytes, 0), Age: max(o.RetentionAge, 0)}
	one := func(end log.Offset, bytes int64, sealed time.Time) bool {
		if end > hw {
			return false
		}
		rule, at := rules.Expires(log.Segment{End: end, Bytes: bytes, SealedAt: sealed, Sealed: true}, total, now)
		switch rule {
		case log.RetentionBytes:
			cause = Cause{Kind: CauseBytes, Bytes: o.RetentionBytes, Note: o.Note}
		case log.RetentionAge:
			cause = Cause{Kind: CauseAge, Age: o.RetentionAge.Truncate(time.Millisecond), Note: o.Note}
		default:
			if !at.IsZero() {
				next.add(at)
			}
			return false
		}
		total -= bytes
		start = end
		return true
	}
	more := true
	for _, r := range s.ranges[s.live:] {
		if more = one(r.End, r.BatchBytes, r.Sealed()); !more {
			break
		}
	}
	p.ledger.mu.RUnlock()
	for _, seg := range segments {
		if !more || !seg.Sealed {
			break
		}
		if seg.End <= max(tierEnd, start) {
			continue
		}
		more = one(seg.End, share(seg, max(tierEnd, start)), seg.SealedAt)
	}
	if cause.Kind == CauseNone {
		return nil
	}
	if _, err := p.propose(lead, LogStart{Start: start, Cause: cause, Until: p.m.o.keepUntil(now)}); err != nil {
		return fmt.Errorf("log start %d: %w", start, err)
	}
	return nil
}

// startDeletes commits that objects will be deleted: those wholly below the log
// start, and those of uploads that nobody finishes any more. The deletion itself
// is another task's.
func (p *Partition) startDeletes(lead *leadership, next *wish) error {
	m := p.m
	for {
		m.mu.Lock()
		parked := 0
		for _, r := range lead.refused {
			if r.parked() {
				parked++ // they take no place from others
			}
		}
		m.mu.Unlock()
		p.ledger.mu.RLock()
		pending := p.ledger.state.Pending()
		expired, due := p.ledger.state.due(time.Now(), max(0, min(deleteBatch, pendingDeletes+parked-len(pending))))
		p.ledger.mu.RUnlock()
		if !due.IsZero() {
			next.add(due)
		}
		var ids []ID
		for _, r := range expired {
			ids = append(ids, r.ID)
		}
		m.mu.Lock()
		var job ID
		if lead.job != nil {
			job = lead.job.plan.info.ID
		}
		m.mu.Unlock()
		// The job is looked at after the state: one that is given up in between
		// stays pending until the next time, one that begins is not in it yet.
		var uploads []ID
		for _, c := range pending {
			if !c.Deleting && c.ID != job && len(ids)+len(uploads) < deleteBatch {
				uploads = append(uploads, c.ID)
			}
		}
		if len(ids)+len(uploads) == 0 {
			p.wantDeletes(lead, pending, next)
			return nil
		}
		v, err := p.proposeMade(lead, func() (Body, error) {
			// One that has finished in between is a range now, and not to be deleted.
			p.ledger.mu.RLock()
			defer p.ledger.mu.RUnlock()
			for _, id := range uploads {
				if p.ledger.state.findPending(id) >= 0 {
					ids = append(ids, id)
				}
			}
			if len(ids) == 0 {
				return nil, errNothingDue
			}
			return DeleteStarted{IDs: ids}, nil
		})
		if errors.Is(err, errNothingDue) {
			continue
		}
		if err != nil {
			return fmt.Errorf("delete started: %w", err)
		}
		if v != Applied {
			return nil // the state has moved on: its event brings us here again
		}
	}
}

var errNothingDue = errors.New("tier: nothing is to be deleted any more")

// deleteDue says what is to be done about a pending deletion: ask the store, and
// whether it can be closed when the store has confirmed.
func deleteDue(c Pending, confirmed time.Time, now time.Time) (ask, finish bool, again time.Time) {
	if !c.Deleting {
		return false, false, time.Time{}
	}
	last := c.Deadline.Add(lateGrace)
	switch {
	case confirmed.IsZero():
		return true, false, time.Time{}
	case c.Deadline.IsZero() || !confirmed.Before(last):
		return false, true, time.Time{}
	case now.Before(last):
		// A byte of its upload may still be on the way.
		return false, false, last
	}
	return true, false, time.Time{}
}

// A refusal is how often in a row the store has failed to delete an object.
type refusal struct {
	n    int
	hard int       // of these, how often for a reason that is the object's, not the store's
	at   time.Time // of the next try, once it is parked
}

// again returns the refusal after one more failure.
func (r refusal) again(err error, now time.Time) refusal {
	r.n++
	r.at = now.Add(parkPause)
	_, throttled := errors.AsType[*ThrottledError](err)
	if !throttled && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnknownOutcome) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		r.hard++
	}
	return r
}

// parkAfter is how many failures make an object one that holds up nothing any more:
// it is tried again each parkPause, and counted in [Stats].
const (
	parkAfter = 8
	parkPause = 30 * time.Minute
)

func (r refusal) parked() bool { return r.hard >= parkAfter }

// ready says whether the object may be asked for again.
func (r refusal) ready(now time.Time) bool { return !r.parked() || !r.at.After(now) }

// choose picks up to deleteBatch of the pending deletions that the store is to be
// asked for: those that it has failed at least often first, so that some which can't
// be deleted hold up no others.
func choose(pending []Pending, confirmed map[ID]time.Time, refused map[ID]refusal, now time.Time) []Pending {
	var ask []Pending
	for _, c := range pending {
		if yes, _, _ := deleteDue(c, confirmed[c.ID], now); yes && refused[c.ID].ready(now) {
			ask = append(ask, c)
		}
	}
	slices.SortStableFunc(ask, func(a, b Pending) int { return cmp.Compare(refused[a.ID].n, refused[b.ID].n) })
	return ask[:min(len(ask), deleteBatch)]
}

// wantDeletes starts the delete task if there is something for it.
func (p *Partition) wantDeletes(lead *leadership, pending []Pending, next *wish) {
	m := p.m
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	due := false
	for _, c := range pending {
		ask, finish, again := deleteDue(c, lead.deleted[c.ID], now)
		if r := lead.refused[c.ID]; ask && !r.ready(now) {
			ask, again = false, r.at
		}
		due = due || ask || finish
		if !again.IsZero() {
			next.add(again)
		}
	}
	if !due {
		return
	}
	if lead.deleteAt.After(now) {
		next.add(lead.deleteAt)
		return
	}
	m.enqueueLocked(taskDelete, p)
}

// delete removes objects from the store and commits that they are gone.
func (p *Partition) delete(lead *leadership) {
	m := p.m
	if !m.ours() || lead.ctx.Err() != nil {
		return
	}
	p.ledger.mu.RLock()
	pending := p.ledger.state.Pending()
	p.ledger.mu.RUnlock()
	now := time.Now()
	m.mu.Lock()
	if !lead.barrier || lead.err != nil {
		m.mu.Unlock()
		return
	}
	known := make(map[ID]bool, len(pending))
	for _, c := range pending {
		known[c.ID] = true
	}
	maps.DeleteFunc(lead.deleted, func(id ID, _ time.Time) bool { return !known[id] })
	maps.DeleteFunc(lead.refused, func(id ID, _ refusal) bool { return !known[id] })
	ask := choose(pending, lead.deleted, lead.refused, now)
	m.mu.Unlock()

	p.deleteManifests(lead)
	failed := false
	if len(ask) > 0 {
		keys := make([]string, len(ask))
		for i, c := range ask {
			keys[i] = p.key(c.ID, c.Base, c.End, c.Epoch)
		}
		ctx, cancel := context.WithTimeout(lead.ctx, m.o.StoreTimeout)
		results := m.o.Store.Delete(ctx, keys)
		cancel()
		now = time.Now()
		m.mu.Lock()
		for i, c := range ask {
			err := ErrUnknownOutcome
			if i < len(results) && results[i].Key == keys[i] {
				err = results[i].Err
			}
			if err == nil || errors.Is(err, ErrNotFound) {
				lead.deleted[c.ID] = now
				delete(lead.refused, c.ID)
				m.stats.Deletes++
				continue
			}
			// One that can't be deleted must not hold up the others.
			m.stats.DeleteFailures++
			before := lead.refused[c.ID]
			r := before.again(err, now)
			lead.refused[c.ID] = r
			if r.parked() && !before.parked() {
				m.logger(p).Error("object can't be deleted, and is left for later", "key", keys[i], "error", err)
			}
			failed = failed || !r.parked()
			if lead.delFailed == 0 && lead.ctx.Err() == nil {
				m.logger(p).Warn("delete object", "key", keys[i], "error", err)
			}
		}
		m.mu.Unlock()
	}

	var ids []ID
	m.mu.Lock()
	for _, c := range pending {
		if _, finish, _ := deleteDue(c, lead.deleted[c.ID], now); finish && len(ids) < deleteBatch {
			ids = append(ids, c.ID)
		}
	}
	if failed {
		lead.deleteAt = time.Now().Add(backoff(lead.delFailed, &m.o, nil))
		lead.delFailed++
	} else {
		lead.delFailed, lead.deleteAt = 0, time.Time{}
	}
	m.mu.Unlock()
	if len(ids) > 0 {
		if _, err := p.propose(lead, DeleteFinished{IDs: ids}); err != nil {
			if lead.ctx.Err() == nil {
				m.logger(p).Warn("delete finished", "error", err)
			}
		}
	}
	if p.log == nil && !failed {
		p.lastSweep(lead)
	}
	m.mu.Lock()
	m.enqueueLocked(taskControl, p) // for the rest, or the time of the next try
	m.mu.Unlock()
}
