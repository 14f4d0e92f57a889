package tier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// What is left of a deleted topic: its partitions have no replicas and no leaders any
// more, but objects, and a place in the tier log. The node that speaks for the cluster
// clears them away. For each it opens a Partition without a log and leads it in the
// epoch that the deletion has fixed:
//
//  1. A barrier in that epoch is read back: no event of an earlier leader counts from
//     there on, and all that did are known.
//  2. Deleted is committed. No offset is readable any more; ranges are kept for the
//     backup window.
//  3. Unfinished uploads at once, and ranges when their time has come: DeleteStarted,
//     the objects, DeleteFinished, as for any partition.
//  4. When no object is known any more, the prefix is listed, not before the last write
//     that an earlier leader began can have ended, or a manifest that was put meanwhile,
//     here or by who cleared up before. What is found is deleted, and the prefix listed
//     again later. Until a listing finds nothing, the state is the anchor: it says that
//     there may be objects, and where.
//  5. Forgotten is committed. Each node drops the ledger, and the tier log is not held
//     for it any more. What lands later still is found by Manager.SweepDeleted.
//
// Each step is derived from the applied state, so that the next node goes on where one
// was cut off. Two nodes that both take themselves for the one that speaks do the same
// in the same epoch: each event takes effect once, whoever wrote it, and the other
// looks again.

// TopicsDeleted tells the manager that Options.Deleted may know of more topics, so that
// it need not wait for Options.Interval. It never blocks.
func (m *Manager) TopicsDeleted() {
	select {
	case m.tend <- struct{}{}:
	default:
	}
}

// tendRemains opens what is left of deleted topics while this node speaks for the
// cluster, and closes what is done.
func (m *Manager) tendRemains(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	speaks := m.o.Writer != nil && m.o.Writer()
	m.mu.Lock()
	ledgers := maps.Clone(m.ledgers)
	var done []*Partition
	for _, p := range m.parts {
		if p.log != nil {
			continue
		}
		// The tier log may have been trimmed past a Forgotten that this node had not read
		// yet: then nothing in it speaks of the partition any more.
		p.ledger.mu.RLock()
		gone := p.ledger.gone || p.ledger.unused() && !m.tentative.Load()
		p.ledger.mu.RUnlock()
		if !speaks || gone {
			done = append(done, p)
		}
	}
	m.mu.Unlock()
	for _, p := range done {
		p.Close()
	}
	if !speaks {
		return
	}
	for id, l := range ledgers {
		if epochs, ok := m.deleted(id.Topic); ok && int(id.Index) < len(epochs) {
			m.openRemains(id, epochs[id.Index])
		} else {
			m.unpin(ctx, id, l)
		}
	}
}

func (m *Manager) deleted(t log.TopicID) (epochs []log.Epoch, ok bool) {
	if m.o.Deleted == nil {
		return nil, false
	}
	return m.o.Deleted(t)
}

// openRemains begins to clear a partition away, unless that is under way, or there is
// nothing, or its replica here is still open.
func (m *Manager) openRemains(id log.PartitionID, epoch log.Epoch) {
	p := &Partition{m: m, id: id, heapIndex: -1, o: PartitionOptions{HighWatermark: func() log.Offset { return 0 }}}
	p.ctx, p.cancel = context.WithCancelCause(m.ctx)
	m.mu.Lock()
	l := m.ledgers[id]
	nothing := l == nil
	if l != nil {
		l.mu.RLock()
		nothing = l.unused() // what is late of a partition that is forgotten has one for a moment
		l.mu.RUnlock()
	}
	// While the manifest is being looked for, nothing is begun that might prove needless.
	if m.closed || m.err != nil || m.parts[id] != nil || nothing || l.unclear.Load() {
		m.mu.Unlock()
		p.cancel(ErrClosed)
		return
	}
	m.addLocked(p)
	m.mu.Unlock()
	p.Lead(epoch)
}

// clearStep does for what is left of a deleted topic what leaderStep does for a
// partition. Requires: the barrier was read back.
func (p *Partition) clearStep(lead *leadership, next *wish) error {
	m := p.m
	p.ledger.mu.RLock()
	deleted, gone := p.ledger.state.deleted, p.ledger.gone
	p.ledger.mu.RUnlock()
	if gone {
		m.TopicsDeleted() // closes it
		return nil
	}
	now := time.Now()
	m.mu.Lock()
	if lead.quietAt.IsZero() {
		if lead.quietAt = now; deleted { // by who cleared it away before
			lead.quietAt = now.Add(m.o.manifestLands())
		}
	}
	m.mu.Unlock()
	if !deleted {
		_, err := p.propose(lead, Deleted{
			Until: m.o.keepUntil(now),
			Quiet: time.UnixMilli(now.Add(m.o.manifestLands()).UnixMilli()),
		})
		if err != nil {
			return fmt.Errorf("deleted: %w", err)
		}
	}
	if err := p.startDeletes(lead, next); err != nil {
		return err
	}
	p.ledger.mu.RLock()
	s := &p.ledger.state
	_, manifest := s.Manifest()
	empty, at := s.empty(), timeFromMs(s.quietMs)
	p.ledger.mu.RUnlock()
	// The last listing takes manifests with it: nobody may need one then.
	if err := p.checkpoint(lead, next, empty && manifest); err != nil {
		return err
	}
	if !empty || manifest || p.ledger.unclear.Load() {
		return nil // the event that changes it brings us here again
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range []time.Time{lead.quietAt, lead.sweepAt} {
		if t.After(at) {
			at = t
		}
	}
	if at.After(time.Now()) {
		next.add(at)
		return nil
	}
	m.enqueueLocked(taskDelete, p)
	return nil
}

// lastSweep lists what there is under the prefix of a partition of which no object is
// known any more. It deletes what it finds, and forgets the partition when that is
// nothing.
func (p *Partition) lastSweep(lead *leadership) {
	m := p.m
	now := time.Now()
	p.ledger.mu.RLock()
	s := &p.ledger.state
	_, manifest := s.Manifest()
	ready := s.deleted && s.empty() && !manifest && !p.ledger.gone && !timeFromMs(s.quietMs).After(now)
	p.ledger.mu.RUnlock()
	m.mu.Lock()
	ready = ready && lead.err == nil && !lead.sweepAt.After(now) && !lead.quietAt.After(now)
	m.mu.Unlock()
	if !ready || lead.ctx.Err() != nil {
		return
	}
	found, err := p.sweepAll(lead)
	if err == nil && found == 0 {
		_, err = p.propose(lead, Forgotten{})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && lead.ctx.Err() == nil && lead.sweepFailed == 0 {
		m.logger(p).Warn("sweep of a deleted topic", "error", err)
	}
	if err != nil {
		lead.sweepAt = time.Now().Add(backoff(lead.sweepFailed, &m.o, err))
		lead.sweepFailed++
	} else if lead.sweepFailed = 0; found > 0 {
		lead.sweepAt = time.Now().Add(m.o.MinBackoff)
	}
}

// sweepAll deletes all objects of the partition and returns how many there were. Of a
// listing that took too long, or failed, what it had goes, so that the next has less.
func (p *Partition) sweepAll(lead *leadership) (found int, err error) {
	m := p.m
	r := &SweepReport{}
	ctx, cancel := context.WithTimeout(lead.ctx, m.o.StoreTimeout)
	objects, err := listSegments(ctx, m.o.Store, m.o.Prefix, PartitionPrefix(m.o.Prefix, p.id))
	cancel()
	for _, o := range objects {
		r.Orphans = append(r.Orphans, o.info)
	}
	err = errors.Join(err, deleteOrphans(lead.ctx, m.o.Store, m.o.StoreTimeout, r))
	m.mu.Lock()
	m.stats.Deletes += int64(r.Deleted)
	m.stats.DeleteFailures += int64(len(r.Failed))
	m.mu.Unlock()
	for _, f := range r.Failed {
		err = errors.Join(err, f.Err)
	}
	return len(objects), err
}

// unpin writes the checkpoint of a partition that holds up the tier log and whose
// leader does not see to it: it has none, or that one is away. Any node may: a
// checkpoint changes no state, and an event of a leader that loses its place to it is
// sent again. Of a deleted topic that this node has not heard of, it is for the node that
// clears it away, which waits for its own manifests only.
func (m *Manager) unpin(ctx context.Context, id log.PartitionID, l *ledger) {
	m.mu.Lock()
	end, partitions := m.applied, len(m.ledgers)
	p := m.parts[id]
	led := p != nil && p.lead != nil && p.lead.err == nil
	m.mu.Unlock()
	now := time.Now()
	l.mu.Lock()
	if l.saved.IsZero() {
		l.saved = now // what other nodes did is not known here
	}
	due := l.pinned && l.state.opened && !l.state.deleted && l.missing == nil && !led && !m.tentative.Load() &&
		checkpointDue(&m.o, 0, now.Sub(l.saved)-strayCheckpoints*m.o.CheckpointInterval, int64(end-l.pin), partitions)
	e := Event{Partition: id, Epoch: l.state.epoch, Seq: l.state.seq + 1}
	if due {
		l.saved = now // the next try
	}
	l.mu.Unlock()
	if !due {
		return
	}
	c, err := m.makeCheckpoint(ctx, id, l, false)
	l.mu.RLock()
	same := l.state.epoch == e.Epoch && l.state.seq+1 == e.Seq
	l.mu.RUnlock()
	if !same {
		return // something happened: its writer is there, and sees to it
	}
	if err == nil {
		e.Body = c
		var b []byte
		if b, err = EncodeEvent(e); err == nil {
			ctx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
			err = m.o.Events.Append(ctx, id, b)
			cancel()
		}
	}
	if err != nil && ctx.Err() == nil {
		m.o.Logger.Warn("checkpoint for a partition without a leader", "partition", id.String(), "error", err)
	}
}

// strayCheckpoints is for how many checkpoint intervals longer than its leader would
// a partition may hold up the tier log.
const strayCheckpoints = 2
