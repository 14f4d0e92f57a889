package tier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A Partition is the cold half of one partition on this node. Make one with
// [Manager.Open]. It is safe for concurrent use.
type Partition struct {
	m      *Manager
	id     log.PartitionID
	log    *log.Log // nil: it stands for what is left of a deleted topic, see remains.go
	read   batchReader
	ledger *ledger
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	known  atomic.Bool
	kicked atomic.Bool    // a control task is due because of Kick and has not begun
	wg     sync.WaitGroup // tasks; Add only under Manager.mu while not closed

	// All that follows is guarded by Manager.mu.
	o           PartitionOptions
	closed      bool
	lead        *leadership // nil for a follower
	last        *leadership // the present or the last one
	tasks       [taskKinds]task
	dueAt       time.Time // of the next control task, if heapIndex >= 0
	heapIndex   int
	lastControl time.Time
	failures    int   // of control tasks, in a row
	blocked     error // why nothing is uploaded, or nil

	readers readerRing
}

// A leadership is one epoch in which this node leads a partition.
type leadership struct {
	epoch  log.Epoch
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // tasks; Add only under Manager.mu while it is Partition.lead
	token  chan struct{}  // holds one token while no event is in flight
	ahead  *objectPlan    // of the next range, or nil; only the upload task uses it

	// Guarded by Manager.mu.
	barrier      bool  // read back
	err          error // why it can do nothing any more
	strangers    int   // events of this epoch that it did not write
	job          *uploadJob
	failures     int // of uploads, in a row
	uploadAt     time.Time
	deleted      map[ID]time.Time // pending deletions that the store confirmed
	refused      map[ID]refusal   // and those that it failed to do
	delFailed    int              // failures of deletions in a row
	deleteAt     time.Time
	trims        []*trimRequest
	checkpointAt time.Time // not before: the store refused a manifest
	sweepAt      time.Time // not before: the last sweep of what is left of a deleted topic
	sweepFailed  int       // failures of such sweeps in a row
	quietAt      time.Time // not before, either: a manifest that was put may land until then
	manifests    []ID      // that newer ones have replaced; deleted when there is an occasion
}

type trimRequest struct {
	start log.Offset
	cause Cause
	done  chan error // capacity 1
}

// strangersAllowed is how many foreign events of its own epoch a leader takes for
// its own of an earlier call of Lead with the same epoch.
const strangersAllowed = 8

// ID returns the partition's name.
func (p *Partition) ID() log.PartitionID { return p.id }

// Log returns the local log.
func (p *Partition) Log() *log.Log { return p.log }

// Lead makes this node the leader in an epoch, which whoever grants epochs must
// have granted to this process alone. In the background a barrier is appended and
// read back, and then ranges are uploaded, retention is applied and objects are
// deleted. An epoch that is not above that of the present leadership changes
// nothing; a higher one ends that first, as [Partition.Follow] does.
func (p *Partition) Lead(epoch log.Epoch) {
	m := p.m
	for {
		m.mu.Lock()
		old := p.lead
		if p.closed || old != nil && old.epoch >= epoch {
			m.mu.Unlock()
			return
		}
		if old == nil {
			l := &leadership{epoch: epoch, token: make(chan struct{}, 1), deleted: map[ID]time.Time{}, refused: map[ID]refusal{}}
			l.token <- struct{}{}
			l.ctx, l.cancel = context.WithCancelCause(p.ctx)
			p.lead, p.last = l, l
			m.enqueueLocked(taskControl, p)
			m.mu.Unlock()
			return
		}
		p.lead = nil
		m.mu.Unlock()
		old.stop()
	}
}

// Follow ends the leadership, if there is one. It returns when no upload reads
// the local log any more; an event that was in flight may still be committed and
// take effect, until a barrier of a higher epoch is.
func (p *Partition) Follow() {
	p.m.mu.Lock()
	last := p.last
	p.lead = nil
	p.m.mu.Unlock()
	if last != nil {
		last.stop()
	}
}

// stop ends the leadership and waits for its tasks. Requires: it is not
// Partition.lead any more.
func (l *leadership) stop() {
	l.cancel(ErrNotLeader)
	l.wg.Wait()
}

// Close ends the partition on this node: tasks are cut off and waited for, calls
// that wait return [ErrClosed]. Its state is kept and can be opened again. It can
// be called again.
func (p *Partition) Close() {
	m := p.m
	m.mu.Lock()
	if !p.closed {
		p.closed = true
		if m.parts[p.id] == p {
			delete(m.parts, p.id)
			m.dropLedgerLocked(p.id)
		}
		if p.heapIndex >= 0 {
			m.removeDueLocked(p)
		}
		m.unaimed = slices.DeleteFunc(m.unaimed, func(o *Partition) bool { return o == p })
	}
	p.lead = nil
	m.mu.Unlock()
	p.cancel(ErrClosed)
	p.wg.Wait()
	m.dropLedger(p.id) // a proposal may have been in the way until now
}

// Kick has what can be done be done at once: call it when a segment was sealed or
// the high watermark moved. It costs next to nothing, and never blocks.
func (p *Partition) Kick() {
	if p.kicked.Swap(true) {
		return // a control task that has not begun yet will see what this is about
	}
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if wait := time.Until(p.lastControl.Add(kickPause)); wait > 0 {
		m.atLocked(p, time.Now().Add(wait))
		return
	}
	m.enqueueLocked(taskControl, p)
}

// SetOptions replaces the options. A change of retention is applied at once.
func (p *Partition) SetOptions(o PartitionOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.o = o
	p.m.enqueueLocked(taskControl, p)
	return nil
}

func (p *Partition) options() PartitionOptions {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	o := p.o
	o.Paused = o.Paused || p.m.paused
	return o
}

// View returns what this node knows of the partition's tier now. It costs little.
func (p *Partition) View() View {
	p.ledger.mu.RLock()
	defer p.ledger.mu.RUnlock()
	return p.ledger.state.view(p.isKnown())
}

// isKnown says whether the state is that of the tier log. Whoever uses the state on the
// strength of it asks under ledger.mu: the manager may begin anew at any time.
func (p *Partition) isKnown() bool {
	return p.known.Load() && p.m.ctx.Err() == nil && !p.m.tentative.Load() && !p.ledger.unclear.Load()
}

// unknownErr is [ErrUnknown], with the reason if there is more to it than that the tier
// log has not been read. Requires: ledger.mu.
func (p *Partition) unknownErr() error {
	if m := p.ledger.missing; m != nil && m.err != nil {
		// Not wrapped: that the manifest is not found says nothing of records.
		return fmt.Errorf("%w: what the last checkpoint names can't be read: %v", ErrUnknown, m.err)
	}
	return ErrUnknown
}

// WaitKnown returns nil once the view is known. Errors: [ErrClosed], that of a
// manager which stopped, or ctx's, with what is in the way if it is the store.
func (p *Partition) WaitKnown(ctx context.Context) error {
	for tries := 0; !p.isKnown(); tries++ {
		tctx, cancel := context.WithTimeout(ctx, p.m.o.EventTimeout)
		stop := context.AfterFunc(p.ctx, cancel)
		err := p.m.catchUp(tctx)
		stop()
		cancel()
		switch {
		case p.ctx.Err() != nil:
			return p.closedErr()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			if p.setKnown(); p.isKnown() {
				return nil
			}
		}
		// The tier log can't be read, or a manifest in the store.
		if sleep(ctx, backoff(tries, &p.m.o, err)) != nil {
			p.ledger.mu.RLock()
			defer p.ledger.mu.RUnlock()
			return fmt.Errorf("%w (%w)", context.Cause(ctx), p.unknownErr())
		}
	}
	return nil
}

func (p *Partition) closedErr() error {
	if err := p.m.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// State returns a copy of the whole state and whether it is known; see [View].
func (p *Partition) State() (s *State, known bool) {
	p.ledger.mu.RLock()
	defer p.ledger.mu.RUnlock()
	return p.ledger.state.Clone(), p.isKnown()
}

// Status says whether this node leads the partition in the tier, and why nothing
// is uploaded or deleted if something keeps it from that: on a follower too, if the
// state is not known because the manifest of the last checkpoint can't be read
// ([ErrUnknown]).
func (p *Partition) Status() (leading bool, epoch log.Epoch, blocked error) {
	var unknown error
	p.ledger.mu.RLock()
	if m := p.ledger.missing; m != nil && m.err != nil {
		unknown = p.unknownErr()
	}
	p.ledger.mu.RUnlock()
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if p.lead == nil {
		return false, -1, unknown
	}
	if p.lead.err != nil {
		return false, p.lead.epoch, p.lead.err
	}
	return p.lead.barrier, p.lead.epoch, cmp.Or(unknown, p.blocked)
}

func (p *Partition) setKnown() {
	if p.known.Swap(true) {
		return
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.m.enqueueLocked(taskControl, p)
}

// applied reacts to an event that changed, or may have changed, the state.
func (p *Partition) applied(v View) {
	m := p.m
	m.mu.Lock()
	l := p.lead
	if l != nil && l.job != nil && l.job.end <= v.LogStart {
		l.job.cancel(errObsolete)
	}
	m.enqueueLocked(taskControl, p)
	m.mu.Unlock()
	if l != nil && v.Epoch > l.epoch {
		_ = p.endLead(l, ErrFenced)
	}
}

// Backlog returns what is sealed and committed but not in the store: bytes of
// batches and number of ranges to upload. It is computed from state and local
// segments, whatever the uploads do, also while they are paused; 0 while the view is
// unknown or the partition is not tiered.
func (p *Partition) Backlog() (bytes int64, ranges int) {
	b := p.backlog()
	return b.bytes, b.ranges
}

// A backlogged is what a partition has to upload.
type backlogged struct {
	bytes   int64
	ranges  int
	oldest  time.Time // when the first of it was sealed, if ranges > 0
	unknown bool      // the view is: there may be a backlog
}

func (p *Partition) backlog() (b backlogged) {
	v := p.View()
	o := p.options()
	if !v.Known || !o.Tiered {
		return backlogged{unknown: o.Tiered}
	}
	limit, err := p.uploadLimit()
	if err != nil {
		limit = min(o.HighWatermark(), p.log.LastStable())
	}
	for _, s := range p.log.Segments() {
		if s.Sealed && s.End > v.TierEnd && s.End <= limit {
			if b.ranges == 0 {
				b.oldest = s.SealedAt
			}
			b.bytes += share(s, v.TierEnd)
			b.ranges++
		}
	}
	return b
}

// share returns the bytes of a segment from an offset on, rounded down.
func share(s log.Segment, from log.Offset) int64 {
	if from <= s.Base {
		return s.Bytes
	}
	if from >= s.End {
		return 0
	}
	return int64(float64(s.Bytes) * (float64(s.End-from) / float64(s.End-s.Base)))
}

// TrimTo moves the log start up to start on request of a user: every replica
// drops what lies below, and the objects are deleted. It returns nil once the
// move is committed, or if the log start is there already. note goes into the
// cause. Only the leader can do it.
//
// Errors: [ErrNotLeader] and log.ErrOffsetOutOfRange (start is above the high
// watermark): nothing happened. [ErrUnknownOutcome], [ErrFenced], [ErrClosed] and
// ctx's: it may still happen.
func (p *Partition) TrimTo(ctx context.Context, start log.Offset, note string) error {
	if len(note) > MaxCauseNoteBytes {
		return fmt.Errorf("tier: note of %d bytes", len(note))
	}
	return p.trimTo(ctx, start, Cause{Kind: CauseRequest, Note: note})
}

func (p *Partition) trimTo(ctx context.Context, start log.Offset, cause Cause) error {
	m := p.m
	if start > p.options().HighWatermark() {
		return fmt.Errorf("tier: trim to %d: %w", start, log.ErrOffsetOutOfRange)
	}
	r := &trimRequest{start: start, cause: cause, done: make(chan error, 1)}
	m.mu.Lock()
	lead := p.lead
	if p.closed || lead == nil {
		m.mu.Unlock()
		return ErrNotLeader
	}
	if lead.err != nil {
		m.mu.Unlock()
		return fmt.Errorf("%w: %w", ErrNotLeader, lead.err)
	}
	lead.trims = append(lead.trims, r)
	m.enqueueLocked(taskControl, p)
	m.mu.Unlock()
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-lead.ctx.Done():
	}
	select {
	case err := <-r.done:
		return err
	default:
	}
	if p.ctx.Err() != nil {
		return p.closedErr()
	}
	return fmt.Errorf("tier: trim to %d: leadership ended: %w", start, ErrUnknownOutcome)
}

// Read returns whole batches from the object store or its cache: the one that
// holds from first, all of one chunk, up to maxBytes but at least one batch.
//
// Errors: [ErrUnknown] while the view is unknown: retry. [ErrNotTiered] at and
// above the tier end. log.ErrOffsetOutOfRange below the log start. A
// [*MissingError] or [*CorruptionError] for lost or damaged objects. Those of the
// store, after some tries, [ErrClosed], and ctx's. ctx ends the wait, not the
// fetch, which others may share.
func (p *Partition) Read(ctx context.Context, from log.Offset, maxBytes int) (*Slice, error) {
	m := p.m
	var missed ID
	for {
		o, err := p.lookup(from)
		if err != nil {
			return nil, err
		}
		r, err := m.cold.read(ctx, o, from, maxBytes, p.readers.find(from))
		if err == nil {
			// The log start may have passed the reader meanwhile: then these records
			// are deleted, and whether they are still in a cache must not matter.
			if v := p.View(); v.LogStart > from {
				return nil, belowStart(from, v.LogStart)
			}
			if window := p.readers.window(r.s.base, r.s.end, from, chunkKey(o.ID, r.i), r.w, m.cold.widest); window > 0 {
				m.cold.ahead(o, r.t, r.i, window, func(o object) (object, bool) {
					n, err := p.lookup(o.End)
					return n, err == nil
				})
			}
			return r.s, nil
		}
		if !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		if err := p.notFound(ctx, o, from, &missed); err != nil {
			return nil, err
		}
	}
}

// notFound settles that the store has no such object. nil means that the state was read
// again: look the offset up once more, it may be below the log start now or in another
// object. If the state still counts on the same one, that is the alarm of a lost object.
// missed is the caller's memory of this, zero at first.
func (p *Partition) notFound(ctx context.Context, o object, from log.Offset, missed *ID) error {
	m := p.m
	if *missed == o.ID {
		lost := &MissingError{Partition: p.id, Key: o.key, Base: max(o.Base, from), End: o.End}
		m.cold.mu.Lock()
		m.cold.stats.missing++
		m.cold.mu.Unlock()
		m.o.Logger.Error("object lost", "partition", p.id.String(), "key", o.key)
		if m.o.Hooks.Missing != nil {
			m.o.Hooks.Missing(lost)
		}
		return lost
	}
	*missed = o.ID
	tctx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
	defer cancel()
	if err := m.catchUp(tctx); err != nil {
		return fmt.Errorf("object %s not found, and the state can't be read again: %w: %w", o.key, ErrUnavailable, err)
	}
	return nil
}

func belowStart(from, start log.Offset) error {
	return fmt.Errorf("tier: offset %d is below the log start %d: %w", from, start, log.ErrOffsetOutOfRange)
}

// lookup finds the object with an offset.
func (p *Partition) lookup(off log.Offset) (object, error) {
	if p.ctx.Err() != nil {
		return object{}, p.closedErr()
	}
	p.ledger.mu.RLock()
	defer p.ledger.mu.RUnlock()
	s := &p.ledger.state
	switch {
	case !p.isKnown():
		return object{}, p.unknownErr()
	case off < s.logStart:
		return object{}, belowStart(off, s.logStart)
	case off >= s.tierEnd:
		return object{}, fmt.Errorf("tier: offset %d, tier end %d: %w", off, s.tierEnd, ErrNotTiered)
	}
	r, ok := s.Lookup(off)
	if !ok {
		return object{}, &MissingError{Partition: p.id, Base: off, End: s.tierEnd}
	}
	return object{r, p.key(r.ID, r.Base, r.End, r.Epoch)}, nil
}

func (p *Partition) key(id ID, base, end log.Offset, epoch log.Epoch) string {
	return Key{Partition: p.id, Base: base, End: end, Epoch: epoch, ID: id}.Path(p.m.o.Prefix)
}

// OffsetForTime returns the offset of the first record in the object store whose
// time is t or later, in the order of offsets; false if there is none. Control
// batches don't count. Errors are those of [Partition.Read].
func (p *Partition) OffsetForTime(ctx context.Context, t time.Time) (log.Offset, bool, error) {
	return p.offsetForTime(ctx, t, 1<<63-1)
}

// offsetForTime looks at offsets below a bound only.
func (p *Partition) offsetForTime(ctx context.Context, t time.Time, below log.Offset) (log.Offset, bool, error) {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++ // record times are in milliseconds
	}
	var missed ID
	for at := log.Offset(0); ; {
		p.ledger.mu.RLock()
		at = max(at, p.ledger.state.logStart)
		r, ok := p.ledger.state.newerThan(at, ms)
		var unknown error
		if !p.isKnown() {
			unknown = p.unknownErr()
		}
		p.ledger.mu.RUnlock()
		if unknown != nil {
			return 0, false, unknown
		}
		if !ok || r.Base >= below {
			return 0, false, nil
		}
		o := object{r, p.key(r.ID, r.Base, r.End, r.Epoch)}
		off, found, err := p.timeInObject(ctx, o, at, ms)
		if errors.Is(err, ErrNotFound) {
			if err = p.notFound(ctx, o, at, &missed); err == nil {
				continue
			}
		}
		if err != nil || found {
			return off, found && off < below, err
		}
		at = r.End
	}
}

func (p *Partition) timeInObject(ctx context.Context, o object, from log.Offset, ms int64) (log.Offset, bool, error) {
	t, err := p.m.cold.tail(ctx, o)
	if err != nil {
		return 0, false, err
	}
	for i := range t.chunks {
		c := &t.chunks[i]
		if c.maxTimestampMs < ms || c.end <= from {
			continue
		}
		batches, err := p.m.cold.chunk(ctx, o, t, i)
		if err != nil {
			return 0, false, err
		}
		at := c.base
		for _, e := range c.times {
			if e.timestampMs >= ms {
				break
			}
			at = c.base + log.Offset(e.delta)
		}
		for at = max(at, from); at < c.end; {
			s, err := cut(batches[c.seek(at):], at, scanBytes)
			if err != nil {
				return 0, false, p.m.cold.corrupt(o.key, c.pos, err)
			}
			for b, err := range s.Batches() {
				if err != nil {
					return 0, false, p.m.cold.corrupt(o.key, c.pos, err)
				}
				if b.IsControl() || b.MaxTimestamp() < ms {
					continue
				}
				for r, err := range b.Records() {
					if err != nil {
						return 0, false, p.m.cold.corrupt(o.key, c.pos, err)
					}
					if r.Offset >= from && r.Timestamp.UnixMilli() >= ms {
						return r.Offset, true, nil
					}
				}
			}
			at = s.end
		}
	}
	return 0, false, nil
}

// AbortedTransactions returns the aborted transactions that overlap [from, to),
// ascending by first offset, wherever records and markers are: in the object store or
// in the local log, whose [log.Log.AbortedTransactions] it is otherwise. to is at most
// a last stable offset.
//
// Errors: log.ErrOffsetOutOfRange below the log start and above the end; those of
// [Partition.Read], [ErrNotTiered] if what is missing on the local disk is not in the
// store either, and those of [log.Log.Read].
func (p *Partition) AbortedTransactions(ctx context.Context, from, to log.Offset) ([]log.AbortedTxn, error) {
	for {
		if v := p.View(); v.Known && from < v.LogStart {
			return nil, belowStart(from, v.LogStart)
		}
		if to <= from {
			return nil, nil
		}
		local := p.log.LocalStart()
		seam := max(from, min(to, local))
		var hot []log.AbortedTxn
		if seam < to {
			var err error
			hot, err = p.log.AbortedTransactions(ctx, seam, to)
			if errors.Is(err, log.ErrBelowLocalStart) && p.log.LocalStart() != local {
				continue // it has turned cold between the two looks
			}
			if err != nil || seam == from {
				return hot, err
			}
		}
		cold, err := p.coldAborted(ctx, from, seam)
		if err != nil {
			return nil, err
		}
		return mergeAborted(cold, hot, from, to), nil
	}
}

// coldAborted asks the objects that hold [from, to).
func (p *Partition) coldAborted(ctx context.Context, from, to log.Offset) ([]log.AbortedTxn, error) {
	var out []log.AbortedTxn
	var missed ID
	for at := from; at < to; {
		o, err := p.lookup(at)
		if err != nil {
			return nil, err
		}
		t, err := p.m.cold.tail(ctx, o)
		if errors.Is(err, ErrNotFound) {
			if err = p.notFound(ctx, o, at, &missed); err == nil {
				continue
			}
			return nil, err
		}
		if err != nil {
			return nil, err
		}
		out = mergeAborted(out, t.aborted, from, to)
		at = o.End
	}
	return out, nil
}

// mergeAborted adds those of more that overlap [from, to) and are not in out yet.
// Both ascend by first offset, which no two transactions share.
func mergeAborted(out, more []log.AbortedTxn, from, to log.Offset) []log.AbortedTxn {
	for _, a := range more {
		if a.First >= to || a.Last < from {
			continue
		}
		i, found := slices.BinarySearchFunc(out, a.First, func(b log.AbortedTxn, first log.Offset) int { return cmp.Compare(b.First, first) })
		if !found {
			out = slices.Insert(out, i, a)
		}
	}
	return out
}
