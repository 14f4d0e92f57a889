package tier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A ledger is the state of one partition, whether it is open here or not.
type ledger struct {
	mu       sync.RWMutex
	state    State
	proposal *proposal // of this node, waiting to be read back; or nil

	// pin is the offset in the tier log of what this partition needs of it: of its last
	// checkpoint, or of its first event while it has none.
	pin    log.Offset
	pinned bool      // pin is set
	gone   bool      // a Forgotten event was taken: nothing of it is needed any more
	since  int       // events taken since the last checkpoint
	saved  time.Time // when this node applied the last checkpoint

	// missing is the checkpoint whose manifest is being read; state is not that of the
	// tier log until then.
	missing *missingState
	unclear atomic.Bool // missing != nil
}

// A missingState waits for a manifest, with the events that came since.
type missingState struct {
	event  Event
	at     Committed
	held   []heldEvent
	err    error // of the last try to read the manifest, or nil; guarded by ledger.mu
	newest State // epoch and sequence number only: where event and held lead to
}

// hold keeps an event for when the state is there.
func (s *missingState) hold(c Committed, e Event) {
	s.held = append(s.held, heldEvent{c, e})
	switch n := &s.newest; {
	case e.Seq == 0 && e.Epoch > n.epoch:
		n.epoch, n.seq = e.Epoch, 0
	case e.Seq > 0 && e.Epoch == n.epoch && e.Seq == n.seq+1:
		n.seq = e.Seq
	}
}

type heldEvent struct {
	c Committed
	e Event
}

type appliedWaiter struct {
	target log.Offset
	ready  chan struct{}
}

// feed follows the tier log and applies it.
func (m *Manager) feed(ctx context.Context) {
	at := m.loadStates()
	fresh := true // where to begin is to be found out
	doubts := 0   // how often the next event was refused
	for failures := 0; ctx.Err() == nil; failures++ {
		if fresh {
			start, err := m.begin(ctx, at, failures >= patience)
			if err != nil {
				if ctx.Err() == nil && failures == 0 {
					m.o.Logger.Warn("begin to read the tier log", "error", err)
				}
				if sleep(ctx, backoff(failures, &m.o, err)) != nil {
					return
				}
				continue
			}
			at, fresh, failures = start, false, 0
		}
		for c, err := range m.o.Events.Read(ctx, at) {
			if err != nil {
				// It was trimmed past this reader.
				if fresh = errors.Is(err, log.ErrOffsetOutOfRange); fresh {
					failures = 0 // those of reading it use up no patience
				}
				if ctx.Err() == nil {
					m.o.Logger.Warn("read the tier log", "offset", int64(at), "error", err)
				}
				break
			}
			failures = 0
			if c.Offset < at {
				continue
			}
			if c.Event != nil {
				e, err := DecodeEvent(c.Event)
				if err == nil {
					err = m.apply(c, e)
				}
				if errors.Is(err, errUnheard) && doubts < patience {
					failures = doubts
					doubts++
					break // this node may not have heard yet that the topic is deleted
				}
				if err != nil {
					m.fail(fmt.Errorf("tier log at offset %d: %w", c.Offset, err))
					return
				}
			}
			doubts = 0
			at = c.Offset + 1
			m.reached(at)
		}
		if sleep(ctx, backoff(failures, &m.o, nil)) != nil {
			return
		}
	}
}

// patience is how often a tier log that ends below what was read of it is asked again: a
// leader that has just begun may not know yet how far it is committed. And how often a
// checkpoint of which this node has nothing is looked at again.
const patience = 12

// begin returns where to read from, given that the states are as of at: there, if the
// tier log has it, else at its start, and then with empty states, which the
// checkpoints fill. force takes a tier log that ends below at for what it says.
func (m *Manager) begin(ctx context.Context, at log.Offset, force bool) (log.Offset, error) {
	ctx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
	defer cancel()
	start, err := m.o.Events.Start(ctx)
	if err != nil {
		return 0, fmt.Errorf("start of the tier log: %w", err)
	}
	if at == 0 && start == 0 {
		return 0, nil
	}
	end, err := m.o.Events.End(ctx)
	if err != nil {
		return 0, fmt.Errorf("end of the tier log: %w", err)
	}
	if at >= start && at <= end {
		m.reached(at)
		return at, nil
	}
	if at > end && !force {
		return 0, fmt.Errorf("the tier log ends at %d, below %d, which was read of it", end, at)
	}
	if at > end {
		m.o.Logger.Error("the tier log ends below what was read of it", "read", int64(at), "end", int64(end))
	}
	m.mu.Lock()
	m.tentative.Store(true) // before any state is empty that was known
	for id, l := range m.ledgers {
		l.mu.Lock()
		l.state, l.pinned, l.since, l.missing, l.gone = State{}, false, 0, nil, false
		l.unclear.Store(false)
		l.mu.Unlock()
		if m.parts[id] == nil && l.proposal == nil {
			delete(m.ledgers, id)
		}
	}
	m.applied, m.target = start, max(start, end)
	m.mu.Unlock()
	m.reached(start)
	return start, nil
}

// apply takes one event into its ledger and tells who is concerned. An error ends the
// manager.
func (m *Manager) apply(c Committed, e Event) error {
	deleted := false
	if _, ok := e.Body.(Checkpoint); ok {
		_, deleted = m.deleted(e.Partition.Topic) // without locks held
	}
	m.mu.Lock()
	l := m.ledgerLocked(e.Partition)
	p := m.parts[e.Partition]
	l.mu.Lock() // before m.mu goes, or a Close could drop the ledger without the event
	m.mu.Unlock()
	gap := !m.tentative.Load() && l.missing == nil && l.state.misses(e)
	v, wait, err := m.take(l, c, e)
	if errors.Is(err, errOtherState) {
		if deleted || l.state.deleted {
			l.since++ // it comes late, see errOtherState
			err = nil
		} else {
			l.state.seq-- // or it would not be its turn any more when it is looked at again
		}
	}
	if err != nil || wait {
		l.mu.Unlock()
		return err
	}
	if l.unused() {
		defer m.dropLedger(e.Partition)
	}
	if l.proposal != nil && l.proposal.meets(&l.state, e, v, c.Event, !m.tentative.Load()) {
		l.proposal = nil
	}
	view := l.state.view(p != nil && p.isKnown())
	l.mu.Unlock()
	if gap && !v.Taken() {
		m.gap(c, e)
	}
	m.told(p, c, e, v, view)
	return nil
}

// unused says whether nothing would be lost with a ledger: the partition is
// forgotten, or no event of it ever counted. Requires: ledger.mu.
func (l *ledger) unused() bool { return !l.pinned && l.missing == nil }

// dropLedger removes a ledger that is unused, unless its partition is open.
func (m *Manager) dropLedger(id log.PartitionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropLedgerLocked(id)
}

func (m *Manager) dropLedgerLocked(id log.PartitionID) {
	l := m.ledgers[id]
	if l == nil || m.parts[id] != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unused() && l.proposal == nil {
		delete(m.ledgers, id)
	}
}

// take applies an event to a ledger. wait is true if it is kept for when the state has
// been read from a manifest. Requires: ledger.mu.
func (m *Manager) take(l *ledger, c Committed, e Event) (v Verdict, wait bool, err error) {
	if l.gone {
		// Another node may have written a checkpoint after it. That makes nothing known
		// again, and need not be of the state here, which may be Forgotten's word alone.
		return l.state.Apply(e), false, nil
	}
	if !l.pinned && (l.state.opened || e.Seq == 0) {
		l.pin, l.pinned = c.Offset, true
	}
	if _, ok := e.Body.(Forgotten); ok && (m.tentative.Load() || l.missing != nil) {
		// As with a checkpoint, its word counts; and what a manifest had is of no use.
		newest := &l.state
		if l.missing != nil {
			newest = &l.missing.newest
		}
		if newest.newer(e) {
			l.state = State{opened: true, deleted: true, epoch: e.Epoch, seq: e.Seq}
			l.forget()
			return Applied, false, nil
		}
	}
	cp, ok := e.Body.(Checkpoint)
	if ok && (m.tentative.Load() || l.missing != nil) {
		// What came before may not have been seen: the checkpoint's word counts, unless it
		// is an old one that came late.
		newest := &l.state
		if l.missing != nil {
			newest = &l.missing.newest
		}
		if newest.newer(e) {
			if cp.State == nil {
				if !l.pinned {
					l.pin, l.pinned = c.Offset, true
				}
				l.missing = &missingState{event: e, at: c, newest: State{opened: true, epoch: e.Epoch, seq: e.Seq}}
				l.unclear.Store(true)
				m.load(l)
				return 0, true, nil
			}
			if err := l.state.load(e, cp.State); err != nil {
				return 0, false, err
			}
			l.checkpointed(c.Offset)
			return Applied, false, nil
		}
	}
	if l.missing != nil {
		l.missing.hold(c, e)
		return 0, true, nil
	}
	v = l.state.Apply(e)
	switch {
	case v == RefusedState:
		err := errOtherState
		if l.state.tierEnd == 0 && l.state.logStart == 0 {
			err = errUnheard
		}
		return v, false, fmt.Errorf("%w: %w of partition %v", ErrCorrupt, err, e.Partition)
	case ok && v == Applied:
		l.checkpointed(c.Offset)
	case v == Applied && e.Body.kind() == kindForgotten:
		l.forget()
	case v.Taken() && e.Seq > 0: // a barrier alone makes no checkpoint worth while
		l.since++
	}
	return v, false, nil
}

// A checkpoint of another state than the ledger's, which ends the manager. Not if it is
// one that came late of a deleted topic, after its end: by events that came late, too, or
// since it began anew, this node knows an older state again, or none. It is cleared away;
// nobody reads any of it.
var (
	errOtherState = errors.New("the state here is not that of the checkpoint")
	errUnheard    = fmt.Errorf("%w, but almost none", errOtherState) // as if it began there: of a deleted topic it may
)

// gap tells that an event is missing before e. The state stays as it was, which is a
// state that the partition has had; the next checkpoint that it takes will show that it
// is another than that of its writer.
func (m *Manager) gap(c Committed, e Event) {
	m.mu.Lock()
	m.stats.Gaps++
	m.mu.Unlock()
	m.o.Logger.Error("an event of the tier log is missing", "partition", e.Partition.String(), "offset", int64(c.Offset),
		"epoch", int(e.Epoch), "seq", e.Seq)
}

// checkpointed notes that a checkpoint counts. Requires: ledger.mu.
func (l *ledger) checkpointed(at log.Offset) {
	l.pin, l.pinned, l.since, l.saved = at, true, 0, time.Now()
	l.missing = nil
	l.unclear.Store(false)
}

// forget notes that nothing of the partition is needed any more. Requires: ledger.mu.
func (l *ledger) forget() {
	l.gone, l.pinned, l.since = true, false, 0
	l.missing = nil
	l.unclear.Store(false)
}

// told tells of an event that has been applied.
func (m *Manager) told(p *Partition, c Committed, e Event, v Verdict, view View) {
	m.mu.Lock()
	m.stats.Events[v]++
	m.mu.Unlock()
	if v != Applied && v != IgnoredBarrier && v != IgnoredSeq && !m.tentative.Load() {
		m.o.Logger.Warn("tier event without effect", "partition", e.Partition.String(), "offset", int64(c.Offset),
			"epoch", int(e.Epoch), "seq", e.Seq, "verdict", v.String())
	}
	if p == nil {
		return
	}
	p.applied(view)
	if m.o.Hooks.Applied != nil {
		m.o.Hooks.Applied(AppliedInfo{Partition: e.Partition, Offset: c.Offset, Event: e, Verdict: v, View: view})
	}
}

// reached notes that everything below at is applied.
func (m *Manager) reached(at log.Offset) {
	m.mu.Lock()
	m.applied = at
	if m.tentative.Load() && at >= m.target {
		m.tentative.Store(false)
		for _, p := range m.parts {
			m.enqueueLocked(taskControl, p)
		}
	}
	waiters := m.waiters[:0]
	for _, w := range m.waiters {
		if w.target <= at {
			close(w.ready)
		} else {
			waiters = append(waiters, w)
		}
	}
	clear(m.waiters[len(waiters):])
	m.waiters = waiters
	m.mu.Unlock()
}

// catchUp returns when this node has applied everything that was committed when
// it was called.
func (m *Manager) catchUp(ctx context.Context) error {
	end, err := m.o.Events.End(ctx)
	if err != nil {
		return fmt.Errorf("end of the tier log: %w", err)
	}
	return m.waitApplied(ctx, end)
}

func (m *Manager) waitApplied(ctx context.Context, target log.Offset) error {
	m.mu.Lock()
	if m.applied >= target {
		m.mu.Unlock()
		return nil
	}
	w := appliedWaiter{target, make(chan struct{})}
	m.waiters = append(m.waiters, w)
	m.mu.Unlock()
	var err error
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-m.ctx.Done():
		err = m.closedErr()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, o := range m.waiters {
		if o.ready == w.ready {
			m.waiters = append(m.waiters[:i], m.waiters[i+1:]...)
			break
		}
	}
	return err
}

// aimLocked has a partition's view become known once the tier log is applied up
// to where it stands now. One goroutine asks for all that wait.
func (m *Manager) aimLocked(p *Partition) {
	m.unaimed = append(m.unaimed, p)
	if m.aiming {
		return
	}
	m.aiming = true
	m.run("tier-aim", m.aim)
}

func (m *Manager) aim(ctx context.Context) {
	for failures := 0; ; failures++ {
		m.mu.Lock()
		parts := m.unaimed
		m.unaimed = nil
		if len(parts) == 0 {
			m.aiming = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		tctx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
		end, err := m.o.Events.End(tctx)
		cancel()
		if err == nil {
			err = m.waitApplied(ctx, end)
		}
		if err != nil {
			m.mu.Lock()
			m.unaimed = append(m.unaimed, parts...)
			m.mu.Unlock()
			if ctx.Err() != nil {
				return
			}
			m.o.Logger.Debug("tier state not known yet", "error", err)
			if sleep(ctx, backoff(failures, &m.o, err)) != nil {
				return
			}
			continue
		}
		failures = -1
		for _, p := range parts {
			p.setKnown()
		}
	}
}
