package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// A Log is one partition's log. Its methods are safe for concurrent use.
//
// Order of locks: repairs, gate, then the sync token (syncing), then mu. mu is held for
// moments only, never over I/O, channels or hooks.
type Log struct {
	disk  *Disk
	owned bool // disk is private to this log
	fs    FS
	dir   string
	o     Options
	claim io.Closer

	// Fixed after Open:
	id        logID
	partition PartitionID
	recovery  Recovery
	foreign   foreign

	replayedFrom Offset // what chain and producers know of records above comes from batches that recovery read

	// gate is held by whoever changes what is written: one token. Readers and syncs
	// don't need it.
	gate chan struct{}

	// repairs is held by a Repair: one token, taken before the gate.
	repairs chan struct{}

	// Under gate:
	changed     bool              // the marker of a clean close is gone
	synchronous bool              // who brought what is written is told after a sync: it may be held back, see behind.go
	marked      bool              // the meta file names the journal in its present life
	scratch     []scratchProducer // producers of a call with several batches
	rolled      []Segment         // for the hook, when the gate is free again
	spared      bool              // the active file was a spare one: its mark stays at its slots
	stale       int64             // in it, bytes below may be of an earlier life
	found       []*spare          // by Open
	lost        map[Offset]string // names of segments that are found under a spare one, in a read-only log

	// Under gate while no chore is under way, or choring:
	savedChain epochChain // in Kafka's checkpoint

	mu sync.Mutex
	// Under mu, changed only under gate too (so that the gate's holder may read them
	// without mu):
	meta        meta
	segs        []*segment // oldest first, the last one is active; the array is never changed in place
	start       Offset
	local       Offset
	end         Offset
	size        int64 // of batches in the active file, with those that are held back from it
	chain       epochChain
	producers   producerTable
	ended       endedTxns
	x           index // of the active segment
	alloc       int64 // position of the slots in the active file; 0 if there are none
	allocBefore int64 // the one before, while growth != 0
	firstMs     int64 // first append to the active segment, ms since 1970; 0 if it is empty
	readOnly    bool
	gen         uint64     // counts truncations and resets
	swaps       uint64     // counts files that were put in the place of others
	cuts        []cutPoint // the lowest offset cut since each generation; see cutSince
	writes      uint64     // counts writes to the active file
	closed      bool
	loaded      []*segment // with indexes in memory, most recently loaded last

	// Under mu:
	durable     Offset
	durablePos  int64
	durableSum  uint32  // headers at durablePos
	synced      uint64  // writes that are durable
	filed       uint64  // writes that are durable in the segment files
	stated      Offset  // durable end that is stated elsewhere than in the journal
	journaled   Offset  // highest end of an entry in the journal
	tail        *buffer // bytes from tailFrom to the end, if tailWhole; nil if there are none
	tailFrom    Offset
	tailWhole   bool
	partial     bool   // what is written ends with a part of a call
	growth      uint64 // writes value after the slots moved; 0 when that is durable
	slotSeq     uint64
	syncing     bool     // somebody has the sync token
	filing      bool     // somebody syncs the active file; who takes it while holding the sync token waits
	flushed     *segment // while filing is for a flush of it
	pinned      bool     // the active file holds a use because it has unsynced writes
	failed      *FailedError
	syncDone    chan struct{} // closed when the sync token is free; nil if nobody waits
	endMoved    chan struct{} // closed when end moves; nil if nobody waits
	durMoved    chan struct{} // the same for durable
	later       []func(Offset, error)
	laterQueued bool
	laterIdle   chan struct{}           // closed when laterQueued falls; nil if nobody waits
	stopRepair  context.CancelCauseFunc // of the Repair under way
	sealings    []*sealing              // oldest first; all but the last are durable
	freed       []freedFile
	wantNext    bool          // the next file is to be made in advance
	choring     bool          // somebody does a chore
	choreQueued bool          // for a worker of the disk
	choresHeld  bool          // no chore may begin
	choreIdle   chan struct{} // closed when choring or choreQueued falls; nil if nobody waits
	spareSeq    uint64        // number of the last spare file
	freeing     int           // freed files that are not ready yet
	slotted     bool          // the active file has a durable slot of its base
	near        nearSlots
	closing     bool
	closeDone   chan struct{}
	closeErr    error
	queue       []*appendRequest
	leading     bool
	free        []*appendRequest
	groupOut    chan struct{} // closed when the leader is done with the bytes of its group
	counts      Stats

	request   journalRequest // of the holder of the sync token
	asked     useNumber      // the journal's use, 1 before the first, when the request under way was made; 0 if none is
	requests  [1]*journalRequest
	waiter    journalWaiter
	part      journalPart  // the journal's
	lastEntry journalEntry // the highest in the active segment; of recovery
	unsure    bool         // records may have been lost with the journal
}

// A cutPoint says that a truncation or reset made generation gen and removed the
// records from off on.
type cutPoint struct {
	gen uint64
	off Offset
}

// cutLocked notes a truncation. cuts ascends in both fields: a lower cut makes the
// higher ones before it needless.
func (l *Log) cutLocked(off Offset) {
	l.gen++
	for len(l.cuts) > 0 && l.cuts[len(l.cuts)-1].off >= off {
		l.cuts = l.cuts[:len(l.cuts)-1]
	}
	l.cuts = append(l.cuts, cutPoint{l.gen, off})
	// Who follows the log waits for an end that may never come.
	l.wakeLocked(&l.endMoved)
	l.wakeLocked(&l.durMoved)
}

// cutErrorLocked is the error for a reader that goes on at off, when what it has
// read before was cut.
func (l *Log) cutErrorLocked(off Offset, o bounds) error {
	if !o.follows {
		return nil
	}
	if cut := l.cutSinceLocked(o.gen); cut < off {
		return fmt.Errorf("%w: at %d, cut at %d", ErrTruncated, off, cut)
	}
	return nil
}

// cutSinceLocked returns the lowest offset that was cut after generation gen.
func (l *Log) cutSinceLocked(gen uint64) Offset {
	for _, c := range l.cuts {
		if c.gen > gen {
			return c.off
		}
	}
	return maxOffset
}

func (l *Log) active() *segment { return l.segs[len(l.segs)-1] }

func nowMs() int64 { return time.Now().UnixMilli() }

func (l *Log) lockGate(ctx context.Context) error {
	select {
	case l.gate <- struct{}{}:
		return nil
	default:
	}
	select {
	case l.gate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unlockGate frees the gate and then tells the hook of what was sealed under it.
func (l *Log) unlockGate() {
	rolled := l.rolled
	l.rolled = nil
	<-l.gate
	l.tellRolled(rolled)
}

func (l *Log) tellRolled(rolled []Segment) {
	if l.o.Hooks.Rolled != nil {
		for _, s := range rolled {
			l.o.Hooks.Rolled(s)
		}
	}
}

// usableLocked says whether the log takes changes.
func (l *Log) usableLocked() error {
	switch {
	case l.failed != nil:
		return l.failed
	case l.closing:
		return ErrClosed
	default:
		return nil
	}
}

// fail makes the log fail for good and returns the first cause. Locks are free.
func (l *Log) fail(op string, err error) error {
	l.mu.Lock()
	first := l.failed == nil
	if first {
		l.failed = &FailedError{Op: op, Cause: err}
	}
	f := l.failed
	l.wakeLocked(&l.syncDone)
	l.wakeLocked(&l.endMoved)
	l.wakeLocked(&l.durMoved)
	l.mu.Unlock()
	if first && l.disk.journal != nil {
		l.disk.journal.abandon(l)
	}
	if first {
		l.o.Logger.Error("log failed", "dir", l.dir, "op", op, "err", err)
		if l.o.Hooks.Failed != nil {
			l.o.Hooks.Failed(f)
		}
	}
	return f
}

func (l *Log) wakeLocked(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// waiterLocked returns a channel that the next wakeLocked closes.
func waiterLocked(c *chan struct{}) chan struct{} {
	if *c == nil {
		*c = make(chan struct{})
	}
	return *c
}

func (l *Log) wait(ctx context.Context, off Offset, o bounds) error {
	for {
		l.mu.Lock()
		if err := l.cutErrorLocked(off, o); err != nil {
			l.mu.Unlock()
			return err
		}
		var ch chan struct{}
		switch {
		case o.durable && l.durable > off, !o.durable && l.end > off:
			l.mu.Unlock()
			return nil
		case l.closing:
			l.mu.Unlock()
			return ErrClosed
		case l.failed != nil:
			err := l.failed
			l.mu.Unlock()
			return err
		case o.durable:
			ch = waiterLocked(&l.durMoved)
		default:
			ch = waiterLocked(&l.endMoved)
		}
		l.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sync and its parts.

func (l *Log) sync(ctx context.Context) (Offset, error) {
	l.mu.Lock()
	if err := l.usableLocked(); err != nil {
		l.mu.Unlock()
		return 0, err
	}
	target := l.writes
	l.mu.Unlock()
	return l.syncTo(ctx, target)
}

// syncTo returns when the writes up to target are durable. The caller may hold the
// gate, not the sync token.
func (l *Log) syncTo(ctx context.Context, target uint64) (Offset, error) {
	return l.syncUntil(ctx, target, false)
}

// syncFileTo is syncTo without the journal.
func (l *Log) syncFileTo(ctx context.Context, target uint64) (Offset, error) {
	return l.syncUntil(ctx, target, true)
}

func (l *Log) syncUntil(ctx context.Context, target uint64, file bool) (Offset, error) {
	l.mu.Lock()
	for {
		if l.failed != nil {
			err := l.failed
			l.mu.Unlock()
			return 0, err
		}
		// A flush in the background files what does not count as durable yet.
		if l.synced >= target && (!file || l.filed >= target) {
			d := l.durable
			l.mu.Unlock()
			return d, nil
		}
		if l.closed {
			l.mu.Unlock()
			return 0, ErrClosed
		}
		if !l.syncing {
			l.syncing = true
			l.syncRound(file) // gives mu back
			l.mu.Lock()
			continue
		}
		ch := waiterLocked(&l.syncDone)
		l.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		l.mu.Lock()
	}
}

// syncRound makes what is written durable, by the journal if that may be, and frees
// the sync token. Requires: mu, and the sync token. Unlocks mu.
func (l *Log) syncRound(file bool) {
	if !file && l.journalRound() {
		return
	}
	l.fileRound()
}

// fileRound is syncRound by a sync of the file: of that of the segment before the
// active one as long as it isn't durable. No slot is written and nothing synced in a
// segment before all before it is durable, since recovery counts on that.
func (l *Log) fileRound() {
	for l.filing {
		ch := waiterLocked(&l.syncDone)
		l.mu.Unlock()
		<-ch
		l.mu.Lock()
	}
	l.filing = true
	r := l.captureLocked()
	l.slotWrittenLocked(r)
	l.placeSlotLocked(&r)
	l.cutTailLocked(r.end)
	l.tailWhole = r.end == l.end
	l.mu.Unlock()

	err := l.syncActive(r)
	if err != nil {
		l.fail("sync "+r.seg.h.name, err)
		l.freeSync()
		return
	}
	l.mu.Lock()
	unpin := l.filedLocked(r)
	moved := l.durableLocked(r)
	if r.state && r.seg == l.active() {
		l.slotted = true
	}
	old := l.endSealedLocked()
	l.filing = false
	l.syncing = false
	l.wakeLocked(&l.syncDone)
	l.mu.Unlock()
	l.afterRound(r, unpin, moved)
	l.tellSealed(old)
}

// endSealedLocked is called when a round or a flush ends. If the segment before the
// active one has become durable by it, it notes that and returns what tellSealed needs.
func (l *Log) endSealedLocked() (old sealedNow) {
	n := len(l.sealings)
	if n == 0 || l.sealings[n-1].durable || l.unsyncedLocked() != nil {
		return old
	}
	s := l.sealings[n-1]
	s.durable = true
	l.durablePos, l.durableSum = 0, 0
	l.stated = max(l.stated, s.info.end)
	if s.pinned {
		s.pinned = false
		old.unpin = s.seg
	}
	old.rolled = []Segment{s.seg.public(s.info)}
	return old
}

// sealedNow is what is left to do for a segment that has become durable.
type sealedNow struct {
	unpin  *segment
	rolled []Segment
}

// tellSealed does that. Locks are free.
func (l *Log) tellSealed(old sealedNow) {
	if old.unpin != nil {
		old.unpin.h.release()
	}
	l.tellRolled(old.rolled)
}

// A round is what one sync covers.
type round struct {
	seg    *segment
	target uint64 // writes
	end    Offset
	size   int64
	sum    uint32
	slot   slot
	at     int64 // of the slots, 0 for none
	near   int64 // of the slot, if it is a near one
	state  bool  // a slot is to be written
	use    useNumber
}

func (l *Log) captureLocked() round {
	r := round{seg: l.active(), target: l.writes, end: l.end, size: l.size, sum: l.x.headerSum, at: l.alloc}
	first := l.firstMs
	if s := l.unsyncedLocked(); s != nil {
		r = round{seg: s.seg, target: s.target, end: s.info.end, size: s.info.size, sum: s.x.headerSum, at: s.alloc}
		first = s.first
	}
	r.slot = l.slotLocked(r.seg)
	r.slot.firstAppendMs = first
	r.slot.sequence, r.slot.end, r.slot.endHeaders, r.slot.written = l.slotSeq+1, r.end, r.sum, r.size
	r.state = r.at > 0 && (r.end > l.durable || l.durable > l.stated || l.near.leave && r.seg == l.active())
	if l.disk.journal != nil {
		r.use = max(1, l.disk.journal.use())
		if l.asked != 0 {
			// Its entry may be durable by now, in a use before the present one, and the
			// durable end does not say so yet.
			r.use = min(r.use, l.asked)
		}
	}
	return r
}

// slotWrittenLocked counts the round's slot if it is going to be written. Only these
// count: two slots are used in turn, and the older one is what a torn write of the
// other leaves.
func (l *Log) slotWrittenLocked(r round) {
	if r.state {
		l.slotSeq = r.slot.sequence
	}
}

// filedLocked notes that the file was synced. It reports whether the caller must
// end the use that unsynced writes have of it.
func (l *Log) filedLocked(r round) bool {
	l.filed = max(l.filed, r.target)
	if r.state {
		l.stated = max(l.stated, r.slot.durable)
		if r.seg == l.active() {
			l.near.newest, l.near.next = r.near, 0
			l.near.leave = l.near.leave && r.near > 0
		}
	}
	if l.growth != 0 && l.growth <= r.target && r.seg == l.active() {
		l.growth = 0
	}
	if l.journaled > 0 && l.disk.journal != nil {
		switch {
		case l.journaled <= l.stated:
			l.journaled = 0
			l.disk.journal.release(l, 0)
		case r.slot.durable <= l.stated:
			// Entries of later requests are in the use of then or later ones.
			l.disk.journal.release(l, r.use)
		}
	}
	unpin := l.pinned && l.writes == r.target && r.seg == l.active()
	if unpin {
		l.pinned = false
	}
	return unpin
}

// durableLocked notes that all up to the round's end is durable and reports whether
// the durable end moved.
func (l *Log) durableLocked(r round) bool {
	l.synced = max(l.synced, r.target)
	moved := r.end > l.durable
	if moved {
		l.durable, l.durablePos, l.durableSum = r.end, r.size, r.sum
		l.wakeLocked(&l.durMoved)
	}
	l.counts.Syncs++
	return moved
}

func (l *Log) afterRound(r round, unpin, moved bool) {
	if unpin {
		r.seg.h.release()
	}
	if moved && l.o.Hooks.Durable != nil {
		l.o.Hooks.Durable(r.end)
	}
}

// slotLocked returns a slot that states the durable end and speaks of no group.
func (l *Log) slotLocked(seg *segment) slot {
	s := slot{
		id: l.id, base: seg.base, firstAppendMs: l.firstMs,
		durable: l.durable, position: l.durablePos, headers: l.durableSum, epoch: l.durableEpochLocked(),
		end: l.durable, endHeaders: l.durableSum, written: l.durablePos,
	}
	if seg == l.active() {
		s.written = max(s.written, l.size)
	}
	return s
}

// durableEpochLocked returns the epoch of the last durable batch.
func (l *Log) durableEpochLocked() Epoch {
	if l.durable == 0 {
		return -1
	}
	return l.chain.at(l.durable - 1)
}

func (l *Log) syncActive(r round) error {
	f, err := r.seg.h.acquire()
	if err != nil {
		return err
	}
	defer r.seg.h.release()
	if r.state {
		at := r.near
		if at == 0 {
			at = r.slot.place(r.at)
		}
		if err := l.writeSlotAt(f, r.slot, at); err != nil {
			return err
		}
	}
	return l.disk.syncFile(f)
}

// writeSlot writes that of the two slots at a position whose turn it is.
func (l *Log) writeSlot(f File, s slot, at int64) error { return l.writeSlotAt(f, s, s.place(at)) }

func (l *Log) writeSlotAt(f File, s slot, at int64) error {
	b := getBuffer(slotBytes)
	defer b.put()
	s.encode((*[slotBytes]byte)(b.b))
	l.disk.enter()
	defer l.disk.leave()
	_, err := f.WriteAt(b.b, at)
	return err
}

// syncWrites is syncTo for callers that only want to know whether it went well.
func (l *Log) syncWrites(target uint64) error {
	_, err := l.syncTo(context.Background(), target)
	return err
}

// takeSync takes the sync token and that of the file, so that no sync is under way.
// Requires: gate.
func (l *Log) takeSync() error {
	for {
		l.mu.Lock()
		if l.failed != nil {
			err := l.failed
			l.mu.Unlock()
			return err
		}
		if !l.syncing && !l.filing {
			l.syncing, l.filing = true, true
			l.mu.Unlock()
			return nil
		}
		ch := waiterLocked(&l.syncDone)
		l.mu.Unlock()
		<-ch
	}
}

func (l *Log) freeSync() {
	l.mu.Lock()
	l.syncing, l.filing = false, false
	l.wakeLocked(&l.syncDone)
	l.mu.Unlock()
}

func (l *Log) syncLater(done func(Offset, error)) {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		done(0, ErrClosed)
		return
	}
	l.later = append(l.later, done)
	queue := l.laterLocked()
	l.mu.Unlock()
	if queue {
		l.disk.later(l)
	}
}

// laterLocked queues the log for a worker if it isn't. The caller calls disk.later
// without mu if the result is true.
func (l *Log) laterLocked() bool {
	queue := !l.laterQueued
	l.laterQueued = true
	return queue
}

// runLater serves the callbacks that wait; a worker of the disk calls it.
func (l *Log) runLater() {
	l.mu.Lock()
	calls := l.later
	l.later = nil
	target := l.writes
	l.mu.Unlock()
	if len(calls) > 0 {
		end, err := l.syncTo(context.Background(), target)
		for _, done := range calls {
			done(end, err)
		}
	}
	l.endLater()
}

// endLater ends what runLater does: the log is queued again if more has come.
func (l *Log) endLater() {
	l.mu.Lock()
	again := len(l.later) > 0
	if !again {
		l.laterQueued = false
		l.wakeLocked(&l.laterIdle)
	}
	l.mu.Unlock()
	if again {
		l.disk.later(l)
	}
}

func (l *Log) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.counts
	s.Start, s.LocalStart, s.End, s.DurableEnd = l.start, l.local, l.end, l.durable
	s.Segments = len(l.segs)
	for _, seg := range l.segs {
		s.LocalBytes += seg.size
	}
	s.LocalBytes += l.size
	s.Chores = len(l.freed)
	if l.sealableLocked() != nil {
		s.Chores += len(l.sealings)
	}
	if l.wantNext || l.choring && s.Chores == 0 {
		s.Chores++
	}
	s.Producers = len(l.producers.m)
	return s
}

func (l *Log) activeInfoLocked() segmentInfo {
	return segmentInfo{base: l.active().base, end: l.end, size: l.size, maxTimestamp: l.x.maxTimestamp, maxAt: l.x.maxAt}
}

func (l *Log) segments() []Segment {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Segment, len(l.segs))
	for i, s := range l.segs {
		if s.sealed {
			out[i] = s.public(s.segmentInfo)
			if u := l.unsyncedLocked(); u != nil && u.seg == s {
				out[i].Sealed = false
			}
		} else {
			out[i] = s.public(l.activeInfoLocked())
		}
	}
	return out
}

// close is what [Log.Close] does.
func (l *Log) close() error {
	l.mu.Lock()
	if l.closing {
		ch := l.closeDone
		l.mu.Unlock()
		<-ch
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.closeErr
	}
	l.closing = true
	l.closeDone = make(chan struct{})
	l.wakeLocked(&l.endMoved)
	l.wakeLocked(&l.durMoved)
	if l.stopRepair != nil {
		l.stopRepair(ErrClosed)
	}
	l.mu.Unlock()

	l.repairs <- struct{}{} // a Repair that was stopped gives up
	<-l.repairs
	l.gate <- struct{}{} // who writes now finishes; who comes later sees closing
	l.mu.Lock()
	failed := l.failed
	l.mu.Unlock()
	var err error
	if failed != nil {
		err = failed // also when others were told: this caller may go by a nil for what it wrote
	} else {
		err = l.closeClean()
	}
	// Callbacks that wait are served by the sync above, or by its error.
	for {
		l.mu.Lock()
		if !l.laterQueued {
			l.mu.Unlock()
			break
		}
		ch := waiterLocked(&l.laterIdle)
		l.mu.Unlock()
		<-ch
	}
	l.mu.Lock()
	for l.choring || l.choreQueued {
		ch := waiterLocked(&l.choreIdle)
		l.mu.Unlock()
		<-ch
		l.mu.Lock()
	}
	l.mu.Unlock()
	l.leaveSpares()
	// A failed log may still have a sync under way.
	for {
		l.mu.Lock()
		if !l.syncing && !l.filing {
			l.closed = true
			l.wakeLocked(&l.syncDone)
			unpin := l.forgetSealingsLocked(-1)
			if l.pinned {
				l.pinned = false
				unpin = append(unpin, l.active())
			}
			segs := l.segs
			l.cutTailLocked(l.end)
			l.mu.Unlock()
			for _, s := range unpin {
				s.h.release()
			}
			for _, s := range segs {
				s.h.drop()
			}
			break
		}
		ch := waiterLocked(&l.syncDone)
		l.mu.Unlock()
		<-ch
	}
	l.unlockGate()
	if j := l.disk.journal; j != nil {
		j.abandon(l)
	}
	err = errors.Join(err, l.claim.Close())
	if l.owned {
		err = errors.Join(err, l.disk.Close())
	}
	l.mu.Lock()
	l.closeErr = err
	close(l.closeDone)
	l.mu.Unlock()
	return err
}

// pinLocked notes an unsynced write of the active file, whose handle must stay
// open until it is synced: the error of a write-back that nobody has open may
// never be reported. It returns whether the caller must keep its own use for it.
func (l *Log) pinLocked() bool {
	if l.pinned {
		return false
	}
	l.pinned = true
	return true
}

func appendSegment(segs []*segment, s *segment) []*segment {
	out := slices.Clone(segs)
	return append(out, s)
}
