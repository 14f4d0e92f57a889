package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// A Replica is this node's copy of one partition.
type Replica struct {
	m     *Manager
	id    log.PartitionID
	l     *log.Log
	tier  func() TierView
	alarm alarm
	lead  alarm // retry of the epoch-start record

	// turn is the right to change the log: full = taken. See core's rules.
	turn chan struct{}
	// closing is closed when the replica closes; done when nothing uses the log.
	ctx    context.Context
	cancel context.CancelFunc

	hw    atomic.Int64  // copy of core.hw for readers without a lock
	hintw chan struct{} // right to use hint: full = taken
	hint  hint

	mu      sync.Mutex
	core    *core
	edge    edge // of the local start that it names; kept, since it takes a read
	closed  bool
	err     error         // first failure of the log
	all     pendingQueue  // waits for the high watermark
	local   pendingQueue  // waits for the durable end
	changed chan struct{} // closed when something that waiters look at changes; nil: nobody waits
	parked  map[*session]struct{}
	fetcher *fetcher
	catchUp bool // fetches in the catch-up class
	full    int  // answers in a row that did not reach the leader's end
	stopISR context.CancelFunc
	users   int           // calls that use the log
	idle    chan struct{} // closed when closed and users is 0
}

func newReplica(m *Manager, l *log.Log, h hint, o ReplicaOptions) *Replica {
	r := &Replica{
		m: m, id: l.Partition(), l: l, tier: o.Tier, hint: h,
		turn: make(chan struct{}, 1), hintw: make(chan struct{}, 1),
		parked: make(map[*session]struct{}), catchUp: true, idle: make(chan struct{}),
	}
	r.ctx, r.cancel = context.WithCancel(m.ctx)
	r.alarm.fn = func() { r.step(evTick{time.Now()}) }
	r.lead.fn = func() { m.enqueueLead(r) }
	return r
}

// Partition names the partition.
func (r *Replica) Partition() log.PartitionID { return r.id }

// Log returns the log beneath, for reading and for moving its starts.
func (r *Replica) Log() *log.Log { return r.l }

// use counts a caller that uses the log; Close waits for it.
func (r *Replica) use() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	r.users++
	return nil
}

func (r *Replica) unuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users--
	if r.closed && r.users == 0 {
		close(r.idle)
	}
}

func (r *Replica) take(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.ctx.Done():
		return ErrClosed
	}
}

func (r *Replica) give() { <-r.turn }

// An outcome is what a step leaves to be done without the lock.
type outcome struct {
	alter     *ISRChange
	answer    fetchAnswer
	fetch     fetchRequest
	hasFetch  bool
	action    effect // effAppend, effTruncate or effReset
	trim      log.Offset
	progress  progressEntry
	tell      bool // progress
	to        peer
	self      Member
	hw        log.Offset
	hwMoved   bool
	ready     log.Epoch
	lost      log.Epoch
	unhealthy error
}

// step takes one event and does what follows from it.
func (r *Replica) step(ev any) outcome {
	r.mu.Lock()
	o := r.stepLocked(ev)
	r.mu.Unlock()
	r.after(o)
	return o
}

// stepLocked does what needs the lock; the caller passes the rest to after.
func (r *Replica) stepLocked(ev any) (o outcome) {
	o.ready, o.lost, o.trim = noEpoch, noEpoch, -1
	if r.closed {
		return o
	}
	now := time.Now()
	for _, e := range r.core.Step(ev) {
		switch e := e.(type) {
		case effCommit:
			r.hw.Store(int64(e.HW))
			if r.core.role == RoleLeader {
				r.all.reach(e.HW)
			}
			r.signal()
			o.hw, o.hwMoved = e.HW, true
			r.m.hintLater(r, now)
		case effReadable:
			r.local.reach(r.core.durable)
			r.signal()
		case effWake:
			for s := range r.parked {
				s.ready(r.id)
			}
		case effLead:
			r.m.enqueueLead(r)
		case effReady:
			o.ready = e.Epoch
			r.signal()
		case effLost:
			o.lost = e.Epoch
			err := errLeadershipLost
			if r.err != nil {
				err = r.err
			}
			r.all.fail(err)
			r.local.fail(err)
			r.signal()
		case effFollow:
			r.refetchFromLocked()
		case effRefetch:
			if r.fetcher != nil {
				r.fetcher.again(r, e.Pause)
			}
		case effAlter:
			o.alter = &e.Change
		case effAnswer:
			o.answer = e.Ans
		case effFetch:
			o.fetch, o.hasFetch = e.Req, true
		case effAppend, effTruncate, effReset:
			o.action = e
		case effTrim:
			o.trim = e.To
		case effProgress:
			if r.fetcher != nil {
				o.progress, o.tell, o.to, o.self = e.P, true, r.fetcher.peer, r.core.self
				r.fetcher.soon(r)
			}
		case effUnhealthy:
			o.unhealthy = e.Err
		}
	}
	if hw := int64(r.core.hw); hw != r.hw.Load() {
		r.hw.Store(hw)
	}
	if r.core.role == RoleLeader || r.core.lead.inflight || !r.core.lead.pauseTo.IsZero() {
		if at := r.core.Deadline(now); !at.IsZero() {
			r.m.clock.before(&r.alarm, at)
		}
	}
	return o
}

// signal wakes everybody who waits for a change.
func (r *Replica) signal() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// wait returns a channel that is closed at the next change. Requires: mu is held.
func (r *Replica) waitLocked() <-chan struct{} {
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// refetchFromLocked moves the replica to the fetcher that it belongs to now.
func (r *Replica) refetchFromLocked() {
	leader, inSync, ok := r.core.fetchFrom()
	if inSync {
		r.catchUp = false
	}
	r.m.fetchVia(r, peer{leader, r.catchUp}, ok && !r.closed)
}

// after does what follows from a step and needs no lock.
func (r *Replica) after(o outcome) {
	h := &r.m.opt.Hooks
	if o.tell {
		msg := progressMessage{CatchUp: o.to.catchUp, Epoch: o.self.Epoch, Parts: []progressEntry{o.progress}}
		r.m.opt.Network.Progress(o.to.node, msg.encode(nil))
	}
	if o.alter != nil {
		r.alter(*o.alter)
	}
	if o.lost != noEpoch && h.Lost != nil {
		h.Lost(r.id, o.lost)
	}
	if o.hwMoved && h.HighWatermark != nil {
		h.HighWatermark(r.id, o.hw)
	}
	if o.ready != noEpoch && h.Led != nil {
		h.Led(r.id, o.ready)
	}
	if o.unhealthy != nil {
		r.m.opt.Logger.Error("replica unhealthy", slog.String("partition", r.id.String()), slog.Any("err", o.unhealthy))
		if h.Unhealthy != nil {
			h.Unhealthy(r.id, o.unhealthy)
		}
	}
}

// alter sends a change of the in-sync set. A later one of the same partition ends
// the wait for the answer of an earlier one, which no longer matters.
func (r *Replica) alter(ch ISRChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if r.stopISR != nil {
		r.stopISR()
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.m.opt.FetchTimeout)
	r.stopISR = cancel
	r.users++
	r.m.run("replication-isr", func(context.Context) {
		defer r.unuse()
		defer cancel()
		a, err := r.m.opt.Controller.AlterISR(ctx, ch)
		ev := evISRAnswer{Change: ch, Now: time.Now()}
		switch {
		case err == nil:
			ev.Outcome, ev.A = isrMade, a
		case errors.Is(err, ErrStale):
			ev.Outcome = isrRefused
		}
		r.step(ev)
	})
}

// fail records a final error of the log.
func (r *Replica) fail(err error) {
	r.mu.Lock()
	if r.err == nil && !r.closed {
		r.err = err
	} else {
		err = nil
	}
	o := r.stepLocked(evFailed{time.Now()})
	r.mu.Unlock()
	if err != nil {
		o.unhealthy = err
	}
	r.after(o)
}

// damagedBy tells whether err is damage of the log, and acts on it.
func (r *Replica) damagedBy(err error) bool {
	var c *log.CorruptionError
	if !errors.As(err, &c) {
		return false
	}
	r.step(evLossy{Damaged: true, Now: time.Now()})
	return true
}

// durable passes on the log's durable end; it is what SyncLater calls.
func (r *Replica) durable(_ log.Offset, err error) {
	if err != nil {
		if !errors.Is(err, log.ErrClosed) {
			r.fail(err)
		}
		return
	}
	r.mu.Lock()
	// What the log says now, not the argument: a cut may have come between.
	o := r.stepLocked(evDurable{r.l.DurableEnd(), time.Now()})
	r.mu.Unlock()
	r.after(o)
}

// syncLater has the log synced in the background.
func (r *Replica) syncLater() { r.l.SyncLater(r.durable) }

// Apply takes an assignment from the cluster's metadata. It may be called with any
// of them in any order, again and again: what is older than the newest seen, by
// partition epoch, is ignored. It does not block. An assignment of another partition
// is ignored.
func (r *Replica) Apply(a Assignment) {
	if a.Partition != r.id {
		return
	}
	a.Replicas, a.ELR = slices.Clone(a.Replicas), slices.Clone(a.ELR)
	a.ISR, a.Live = slices.Clone(a.ISR), slices.Clone(a.Live)
	r.observe()
	r.step(evAssign{a, time.Now()})
}

// observe passes on what others know or have changed: the tier and the starts.
func (r *Replica) observe() {
	start, localStart := r.l.Start(), r.l.LocalStart()
	var v TierView
	if r.tier != nil {
		v = r.tier()
	}
	r.mu.Lock()
	o := r.stepLocked(evBounds{start, localStart})
	var o2 outcome
	if r.tier != nil {
		o2 = r.stepLocked(evTier{v})
		o.hw, o.hwMoved = max(o.hw, o2.hw), o.hwMoved || o2.hwMoved
		if o2.ready != noEpoch {
			o.ready = o2.ready
		}
	}
	r.mu.Unlock()
	r.after(o)
}

// startEpoch writes the epoch-start record of the present epoch if this replica
// leads and has not yet.
func (r *Replica) startEpoch(ctx context.Context) {
	if r.use() != nil {
		return
	}
	defer r.unuse()
	if r.take(ctx) != nil {
		return
	}
	err := r.startEpochInTurn()
	r.give()
	if err != nil && r.l.Err() == nil && !errors.Is(err, log.ErrClosed) {
		r.m.clock.before(&r.lead, time.Now().Add(r.m.backoff(5)))
	}
}

func (r *Replica) startEpochInTurn() error {
	r.mu.Lock()
	epoch, due, replicas := r.core.epoch, r.core.role == RoleLeader && r.core.lead.leso < 0, r.core.a.Replicas
	self := r.core.self
	r.mu.Unlock()
	if !due {
		return nil
	}
	voters := make([]int32, len(replicas))
	for i, id := range replicas {
		voters[i] = int32(id)
	}
	app, err := r.l.WriteControl(epoch, record.LeaderChange(epoch, int32(self.ID), voters, time.Now()))
	if err != nil {
		r.m.opt.Logger.Warn("epoch start not written", slog.String("partition", r.id.String()), slog.Any("err", err))
		if r.l.Err() != nil {
			r.fail(err)
		}
		return err
	}
	r.observe()
	r.step(evEpochStarted{Epoch: epoch, Base: app.Base, End: r.l.End(), Durable: r.l.DurableEnd(), Chain: r.l.EpochChain(), Now: time.Now()})
	r.syncLater()
	return nil
}

// mayAppendLocked tells whether an append is taken now; start says that the
// epoch-start record must be written first.
func (r *Replica) mayAppendLocked(acks Acks) (start bool, err error) {
	c := r.core
	switch {
	case r.closed:
		return false, ErrClosed
	case c.role != RoleLeader:
		if c.lossy && c.a.Leader == c.self {
			return false, ErrLossy
		}
		e := &NotLeaderError{Leader: c.a.Leader.ID, Epoch: c.a.LeaderEpoch}
		if c.a.Leader.ID == c.self.ID {
			e.Leader = -1 // an earlier life of this process, or one that can't lead
		}
		return false, e
	case acks == AcksAll && len(c.a.ISR) < c.a.minISR():
		return false, ErrNotEnoughReplicas
	}
	return c.lead.leso < 0, nil
}

// write appends by put, which is given the epoch, and registers the wait.
func (r *Replica) write(ctx context.Context, put func(log.Epoch) (log.Appended, error), acks Acks) (*Pending, error) {
	if err := r.take(ctx); err != nil {
		return nil, err
	}
	defer r.give()
	r.mu.Lock()
	start, err := r.mayAppendLocked(acks)
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if start {
		if err := r.startEpochInTurn(); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	start, err = r.mayAppendLocked(acks)
	epoch := r.core.epoch
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if start {
		return nil, &NotLeaderError{Leader: -1, Epoch: epoch} // the epoch has changed just now
	}
	base := r.l.End()
	app, err := put(epoch)
	if err != nil {
		if r.l.Err() != nil {
			// Part of it may be in the file, and come back at the next start.
			r.fail(err)
			return nil, &IndeterminateError{Epoch: epoch, Base: base, End: base, Err: err}
		}
		return nil, err
	}
	p := &Pending{app: app, need: app.End, done: make(chan struct{})}
	end := r.l.End()
	r.mu.Lock()
	var o outcome
	if end > base {
		p.need = max(p.need, end)
		o = r.stepLocked(evWrote{Epoch: epoch, Base: base, End: end, Now: time.Now()})
	}
	switch {
	case r.closed:
		p.err = p.open(ErrClosed)
		close(p.done)
	case r.core.role != RoleLeader || r.core.epoch != epoch:
		p.err = p.open(errLeadershipLost)
		close(p.done)
	case acks == AcksAll && r.core.hw >= p.need, acks == AcksLeader && r.core.durable >= p.need, acks == AcksNone:
		close(p.done)
	case acks == AcksAll:
		r.all.push(p)
	default:
		r.local.push(p)
	}
	r.mu.Unlock()
	r.after(o)
	return p, nil
}

// Append appends one or more whole batches and waits as acks says. The batches are
// stamped in place and may be used again when it returns.
//
// Errors that say nothing was appended: [*NotLeaderError], [ErrNotEnoughReplicas]
// (only with [AcksAll]; may be tried again), [ErrLossy], [ErrClosed], those of
// [log.Log.Write], and ctx's if it ends before the write. After the write every
// error is an [*IndeterminateError]. A duplicate of an earlier append is answered
// with the offsets of that, once they are committed.
//
// Appends to one replica are written in the order in which they get the write turn;
// callers that need an order of their own submit one after the other with
// [Replica.Submit]. Safe for concurrent use; concurrent appends share syncs.
func (r *Replica) Append(ctx context.Context, batches []byte, acks Acks) (log.Appended, error) {
	if err := r.use(); err != nil {
		return log.Appended{}, err
	}
	defer r.unuse()
	p, err := r.write(ctx, func(e log.Epoch) (log.Appended, error) { return r.l.Write(e, batches) }, acks)
	if err != nil {
		return log.Appended{}, err
	}
	if acks != AcksNone && r.l.DurableEnd() < p.need {
		// The appender that leads the group does the sync: no goroutine is woken.
		if _, err := r.l.Sync(ctx); err == nil {
			r.durable(0, nil)
		} else if ctx.Err() != nil {
			r.syncLater() // it was written, so it must become durable all the same
		} else {
			r.durable(0, err)
		}
	} else if acks == AcksNone {
		r.syncLater()
	} else {
		r.durable(0, nil) // as in Submit
	}
	return p.Wait(ctx)
}

// Submit is [Replica.Append] without the wait: it returns when the batches are
// written to the leader's log, so that a caller can have several in flight in order.
// Its errors say that nothing was appended, or are an [*IndeterminateError].
func (r *Replica) Submit(ctx context.Context, batches []byte, acks Acks) (*Pending, error) {
	if err := r.use(); err != nil {
		return nil, err
	}
	defer r.unuse()
	return r.submit(ctx, func(e log.Epoch) (log.Appended, error) { return r.l.Write(e, batches) }, acks)
}

// SubmitControl is [Replica.Submit] for the marker that ends a producer's transaction
// in this partition: see [log.Log.WriteControl]. Its records count as decided once the
// marker is committed: see [Replica.LastStable].
func (r *Replica) SubmitControl(ctx context.Context, batch record.Batch, acks Acks) (*Pending, error) {
	if err := r.use(); err != nil {
		return nil, err
	}
	defer r.unuse()
	if t, err := batch.ControlType(); err != nil || t == record.ControlLeaderChange {
		return nil, fmt.Errorf("%w: not the end of a transaction", log.ErrInvalidBatch)
	}
	return r.submit(ctx, func(e log.Epoch) (log.Appended, error) { return r.l.WriteControl(e, batch) }, acks)
}

func (r *Replica) submit(ctx context.Context, put func(log.Epoch) (log.Appended, error), acks Acks) (*Pending, error) {
	p, err := r.write(ctx, put, acks)
	if err != nil {
		return nil, err
	}
	if r.l.DurableEnd() < p.need {
		r.syncLater()
	} else {
		// A sync for another came between the write and its registration: whoever it
		// told counted no further than the end known then.
		r.durable(0, nil)
	}
	return p, nil
}

// Read returns whole batches that are committed and durable here, from the one that
// holds offset from on, up to maxBytes but at least one. Every role serves it: what
// it returns is never taken back by a clean election.
//
// Errors: [ErrNotYetAvailable] if from is not below the high watermark of this
// replica, [ErrLossy], [ErrQuarantined], [ErrClosed], and those of [log.Log.Read]:
// log.ErrBelowLocalStart for what only the tier has.
func (r *Replica) Read(ctx context.Context, from log.Offset, maxBytes int) (*log.Slice, error) {
	if err := r.use(); err != nil {
		return nil, err
	}
	defer r.unuse()
	r.mu.Lock()
	below, err := r.readableLocked()
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if from >= below {
		return nil, ErrNotYetAvailable
	}
	s, err := r.l.ReadBelow(ctx, from, below, maxBytes)
	if err != nil {
		r.damagedBy(err)
		return nil, err
	}
	if s.Len() == 0 {
		s.Release()
		return nil, ErrNotYetAvailable
	}
	return s, nil
}

// LastStable returns the last stable offset below what [Replica.Read] serves: the
// first record of the oldest transaction whose marker is not below that. A reader of
// committed records stops there, and leaves out the aborted transactions that overlap
// what it has read ([log.Log.AbortedTransactions]). Errors: those of Read.
func (r *Replica) LastStable(ctx context.Context) (log.Offset, error) {
	if err := r.use(); err != nil {
		return 0, err
	}
	defer r.unuse()
	r.mu.Lock()
	below, err := r.readableLocked()
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return r.l.LastStableBelow(ctx, below)
}

func (r *Replica) readableLocked() (log.Offset, error) {
	switch {
	case r.closed:
		return 0, ErrClosed
	case r.core.lossy:
		return 0, ErrLossy
	case r.core.quarantined:
		return 0, ErrQuarantined
	}
	return min(r.core.hw, r.core.durable), nil
}

// Wait returns nil once offset off may be read here: at once, or when it gets there.
// Errors: [ErrLossy], [ErrQuarantined], [ErrClosed], or ctx's.
func (r *Replica) Wait(ctx context.Context, off log.Offset) error {
	for {
		r.mu.Lock()
		below, err := r.readableLocked()
		if err != nil || off < below {
			r.mu.Unlock()
			return err
		}
		changed := r.waitLocked()
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// WaitReady returns the leader epoch once this replica leads and the epoch's first
// record is committed: from then on its high watermark is not below that of any
// leader before. Errors: [ErrClosed] or ctx's.
func (r *Replica) WaitReady(ctx context.Context) (log.Epoch, error) {
	for {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return noEpoch, ErrClosed
		}
		if r.core.role == RoleLeader && r.core.lead.ready {
			epoch := r.core.epoch
			r.mu.Unlock()
			return epoch, nil
		}
		changed := r.waitLocked()
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return noEpoch, context.Cause(ctx)
		}
	}
}

// HighWatermark returns the offset below which everything is committed, as far as
// this replica knows. It takes no lock.
func (r *Replica) HighWatermark() log.Offset { return log.Offset(r.hw.Load()) }

// Lossy tells that this replica has lost records that it had reported durable, and
// has not been filled again. A host reports it to the controller: such a replica
// must not be elected.
func (r *Replica) Lossy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.lossy
}

// Healthy tells that this replica could lead: its log has not failed, it is neither
// lossy nor quarantined.
func (r *Replica) Healthy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.closed && !r.core.failed && !r.core.lossy && !r.core.quarantined
}

// writeHint notes the high watermark.
func (r *Replica) writeHint(ctx context.Context) {
	if r.use() != nil {
		return
	}
	defer r.unuse()
	select {
	case r.hintw <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-r.hintw }()
	if hw := r.HighWatermark(); hw != r.hint.last {
		if err := r.hint.write(hw); err != nil {
			r.m.opt.Logger.Warn("high watermark not noted", slog.String("partition", r.id.String()), slog.Any("err", err))
		}
	}
}

// lowerHint notes a lower high watermark durably, before what was above it is cut.
func (r *Replica) lowerHint(ctx context.Context, to log.Offset) error {
	select {
	case r.hintw <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-r.hintw }()
	return r.hint.lower(to)
}

// close ends the replica; see Manager.Close.
func (r *Replica) close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		<-r.idle
		return nil
	}
	r.closed = true
	r.m.fetchVia(r, peer{}, false)
	r.all.fail(ErrClosed)
	r.local.fail(ErrClosed)
	r.signal()
	parked := make([]*session, 0, len(r.parked))
	for s := range r.parked {
		parked = append(parked, s)
	}
	clear(r.parked)
	r.m.clock.stop(&r.alarm)
	r.m.clock.stop(&r.lead)
	hw := r.core.hw
	if r.users == 0 {
		close(r.idle)
	}
	r.mu.Unlock()
	r.cancel()
	for _, s := range parked {
		s.ready(r.id) // answers that this node has the partition no longer
	}
	<-r.idle
	r.m.mu.Lock()
	if r.m.replicas[r.id] == r {
		delete(r.m.replicas, r.id)
	}
	delete(r.m.hints, r)
	r.m.mu.Unlock()
	r.hintw <- struct{}{}
	defer func() { <-r.hintw }()
	if hw == r.hint.last {
		return nil
	}
	return r.hint.write(hw)
}
