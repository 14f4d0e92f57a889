package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// scratchProducer is a producer's state in the middle of a call with several
// batches.
type scratchProducer struct {
	id int64
	p  producer
}

// inspect checks what can be checked of batches without the log's state.
func (l *Log) inspect(b []byte, control, replicated bool) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: no bytes", ErrInvalidBatch)
	}
	limit := l.o.MaxBatchBytes
	if replicated {
		limit = maxBatchBytesOnDisk
	}
	for rest := b; len(rest) > 0; {
		if len(rest) >= record.HeaderBytes && rest[16] == 2 {
			if n := int64(int32(be.Uint32(rest[8:]))) + 12; n > int64(limit) {
				return fmt.Errorf("%w: %d bytes, limit is %d", ErrTooLarge, n, limit)
			}
		}
		batch, r, err := record.Next(rest, limit)
		if err != nil {
			return fmt.Errorf("%w: at byte %d: %w", ErrInvalidBatch, len(b)-len(rest), err)
		}
		if err := batch.Verify(); err != nil {
			return fmt.Errorf("%w: at byte %d: %w", ErrInvalidBatch, len(b)-len(rest), err)
		}
		if _, err := parseHeader(batch.Bytes()); err != nil && replicated {
			return fmt.Errorf("%w: at byte %d: %w", ErrInvalidBatch, len(b)-len(rest), err)
		}
		if d := int32(be.Uint32(rest[23:])); d < 0 || !replicated && int(d) != batch.Count()-1 {
			return fmt.Errorf("%w: at byte %d: %d records, last offset delta %d", ErrInvalidBatch, len(b)-len(rest), batch.Count(), d)
		}
		if !replicated {
			switch {
			case batch.IsControl() && !control:
				return ErrControlBatch
			case !batch.IsControl() && control:
				return fmt.Errorf("%w: not a control batch", ErrInvalidBatch)
			case batch.ProducerID() >= 0 && !control && (batch.BaseSequence() < 0 || batch.ProducerEpoch() < 0):
				return fmt.Errorf("%w: producer %d with sequence %d, epoch %d", ErrInvalidBatch, batch.ProducerID(), batch.BaseSequence(), batch.ProducerEpoch())
			}
		}
		rest = r
	}
	return nil
}

func (l *Log) write(epoch Epoch, batches []byte, control bool) (Appended, error) {
	if err := l.inspect(batches, control, false); err != nil {
		return Appended{}, err
	}
	l.gate <- struct{}{}
	a, err := l.writeGated(epoch, batches)
	l.unlockGate()
	l.appended(a, err)
	return a, err
}

// appended tells the hook.
func (l *Log) appended(a Appended, err error) {
	if err == nil && !a.Duplicate && l.o.Hooks.Appended != nil {
		l.o.Hooks.Appended(a.End)
	}
}

// writable says whether records can be added. Requires: gate.
func (l *Log) writable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usableLocked(); err != nil {
		return err
	}
	if l.readOnly {
		return ErrReadOnly
	}
	return nil
}

// writeGated stamps and writes batches that inspect has passed. Requires: gate.
func (l *Log) writeGated(epoch Epoch, b []byte) (Appended, error) {
	if err := l.writable(); err != nil {
		return Appended{}, err
	}
	if last := l.chain.last(); epoch < last || epoch < 0 {
		return Appended{}, fmt.Errorf("%w: epoch %d, last is %d", ErrFenced, epoch, last)
	}
	a, err := l.sequence(epoch, b)
	if err != nil || a.Duplicate {
		return a, err
	}
	end := l.end
	for _, r := range l.runs {
		if err := l.place(b[r[0]:r[1]]); err != nil {
			return Appended{}, l.takeBack(end, err)
		}
	}
	return a, nil
}

// sequence judges the batches, stamps those that are new and notes them in runs.
// Requires: gate.
func (l *Log) sequence(epoch Epoch, b []byte) (Appended, error) {
	a := Appended{Base: -1, Epoch: epoch, Duplicate: true}
	l.runs = l.runs[:0]
	clear(l.scratch)
	l.scratch = l.scratch[:0]
	next := l.end
	now := nowMs()
	for at := 0; at < len(b); {
		batch, rest, err := record.Next(b[at:], math.MaxInt)
		if err != nil {
			return Appended{}, fmt.Errorf("%w: %w", ErrInvalidBatch, err)
		}
		from := at
		at = len(b) - len(rest)
		base, end := next, next+Offset(be.Uint32(b[from+23:]))+1
		if id := batch.ProducerID(); id >= 0 {
			p := l.lookup(id, now)
			dup, err := p.check(batch)
			if err != nil {
				return Appended{}, err
			}
			if dup != nil {
				if a.Base < 0 {
					a.Base = dup.base
				}
				a.End = dup.last + 1
				continue
			}
		}
		if a.Base < 0 {
			a.Base = base
		}
		a.End = end
		a.Duplicate = false
		if l.o.LogAppendTime && !batch.IsControl() {
			batch.SetLogAppendTime(now)
		}
		batch.SetBaseOffset(base)
		batch.SetLeaderEpoch(epoch)
		next = end
		if n := len(l.runs); n > 0 && l.runs[n-1][1] == from {
			l.runs[n-1][1] = at
		} else {
			l.runs = append(l.runs, [2]int{from, at})
		}
		if id := batch.ProducerID(); id >= 0 && at < len(b) {
			l.remember(id, batch, now)
		}
	}
	if a.Duplicate {
		a.Epoch = -1
	}
	return a, nil
}

func (l *Log) lookup(id, now int64) *producer {
	for i := range l.scratch {
		if l.scratch[i].id == id {
			return &l.scratch[i].p
		}
	}
	return l.producers.get(id, now, l.o.ProducerExpiry)
}

func (l *Log) remember(id int64, b record.Batch, now int64) {
	p := l.lookup(id, now)
	for i := range l.scratch {
		if l.scratch[i].id == id {
			l.scratch[i].p.note(b, now)
			return
		}
	}
	s := scratchProducer{id: id}
	if p != nil {
		s.p = *p
	} else {
		s.p = producer{epoch: b.ProducerEpoch(), txnFirst: -1}
	}
	s.p.note(b, now)
	l.scratch = append(l.scratch, s)
}

func (l *Log) appendReplicated(b []byte) (Appended, error) {
	if err := l.inspect(b, false, true); err != nil {
		return Appended{}, err
	}
	l.gate <- struct{}{}
	a, err := l.replicateGated(b)
	l.unlockGate()
	l.appended(a, err)
	return a, err
}

func (l *Log) replicateGated(b []byte) (Appended, error) {
	if err := l.writable(); err != nil {
		return Appended{}, err
	}
	next, epoch := l.end, l.chain.last()
	for at := 0; at < len(b); {
		h, err := parseHeader(b[at:])
		if err != nil {
			return Appended{}, fmt.Errorf("%w: %w", ErrInvalidBatch, err)
		}
		if h.base != next {
			return Appended{}, fmt.Errorf("%w: base offset %d, expected %d", ErrNotContiguous, h.base, next)
		}
		if h.epoch < epoch || h.epoch < 0 {
			return Appended{}, fmt.Errorf("%w: epoch %d after %d", ErrNotContiguous, h.epoch, epoch)
		}
		next, epoch = h.last+1, h.epoch
		at += int(h.size)
	}
	a := Appended{Base: l.end, End: next, Epoch: epoch}
	end := l.end
	if err := l.place(b); err != nil {
		return Appended{}, l.takeBack(end, err)
	}
	return a, nil
}

// takeBack removes what a call has written before one of its parts met a full
// disk, and returns the error to give. Requires: gate.
func (l *Log) takeBack(end Offset, err error) error {
	if errors.Is(err, ErrDiskFull) {
		l.mu.Lock()
		l.counts.DiskFull++
		l.mu.Unlock()
	}
	if l.end == end || l.Err() != nil {
		return err
	}
	if _, terr := l.truncateGated(end); terr != nil {
		return l.fail("take back a part of an append in "+l.dir, errors.Join(err, terr))
	}
	return err
}

// place writes stamped batches at the end of the log, over segments as they fit.
// Requires: gate.
func (l *Log) place(b []byte) error {
	for len(b) > 0 {
		if err := l.prepare(b); err != nil {
			return err
		}
		n := l.fit(b)
		if err := l.put(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// prepare seals the active segment if the first batch of b does not go into it,
// and readies the log for a change.
func (l *Log) prepare(b []byte) error {
	h, err := parseHeader(b)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidBatch, err)
	}
	if l.size > 0 && (l.size+h.size > l.o.SegmentBytes || h.last-l.active().base > math.MaxInt32 || l.aged()) {
		if err := l.rollGated(); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) aged() bool {
	return l.o.SegmentAge > 0 && l.firstMs > 0 && nowMs()-l.firstMs >= l.o.SegmentAge.Milliseconds()
}

// fit returns how many bytes of whole batches go into the active segment: at least
// one batch.
func (l *Log) fit(b []byte) int {
	n := 0
	for n < len(b) {
		h, err := parseHeader(b[n:])
		if err != nil || n > 0 && (l.size+int64(n)+h.size > l.o.SegmentBytes || h.last-l.active().base > math.MaxInt32) {
			break
		}
		n += int(h.size)
	}
	return n
}

// put writes batches that fit into the active segment and notes them.
func (l *Log) put(b []byte) error {
	seg := l.active()
	f, err := seg.h.acquire()
	if err != nil {
		return l.fail("open "+seg.h.name, err)
	}
	if err := l.makeRoom(f, l.size+int64(len(b))); err != nil {
		seg.h.release()
		return err
	}
	l.disk.enter()
	_, err = f.WriteAt(b, l.size)
	l.disk.leave()
	if err != nil {
		if !full(err) {
			seg.h.release()
			return l.fail("write "+seg.h.name, err)
		}
		rerr := l.rollBack(f)
		seg.h.release()
		if rerr != nil {
			return rerr
		}
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	now := nowMs()
	l.mu.Lock()
	l.noteLocked(seg, b, now)
	l.writes++
	keep := l.pinLocked()
	l.wakeLocked(&l.endMoved)
	l.mu.Unlock()
	if !keep {
		seg.h.release()
	}
	return nil
}

// noteLocked takes batches that are in the active file into the log's state.
func (l *Log) noteLocked(seg *segment, b []byte, now int64) {
	if l.size == 0 {
		l.firstMs = now
	}
	l.counts.AppendBytes += int64(len(b))
	for len(b) > 0 {
		batch, rest, err := record.Next(b, math.MaxInt)
		if err != nil {
			panic("log: a batch that was checked does not parse: " + err.Error())
		}
		n := int64(len(b) - len(rest))
		l.take(seg.base, batch, l.size, now)
		l.end = batch.LastOffset() + 1
		l.size += n
		l.counts.Appends++
		b = rest
	}
}

// take notes one batch of the active segment at position.
func (l *Log) take(base Offset, b record.Batch, position, now int64) {
	l.x.note(base, b.Bytes()[:21], b.LastOffset(), b.MaxTimestamp(), position, int64(b.Size()))
	l.chain = l.chain.assign(b.LeaderEpoch(), b.BaseOffset())
	l.producers.note(b, now, l.o.ProducerExpiry)
}

// makeRoom readies the active file for bytes up to need: the marker of a clean
// close is gone and there are slots behind. Requires: gate.
func (l *Log) makeRoom(f File, need int64) error {
	for {
		limit, pending := l.roomLimit()
		if need <= limit {
			break
		}
		if pending {
			if _, err := l.syncTo(context.Background(), l.writesNow()); err != nil {
				return err
			}
			continue
		}
		if err := l.grow(f, need); err != nil {
			return err
		}
	}
	// Grow early, so that a sync that comes anyway makes the new slots durable and
	// nobody has to wait for one.
	if l.changed && need > l.alloc-l.alloc/4 && l.alloc < l.o.SegmentBytes {
		if _, pending := l.roomLimit(); !pending {
			if err := l.grow(f, l.alloc+1); err != nil && !errors.Is(err, ErrDiskFull) {
				return err
			}
		}
	}
	return l.beginChange()
}

// roomLimit returns up to where batches may be written now. While new slots are
// not durable yet (pending), that is the old ones.
func (l *Log) roomLimit() (limit int64, pending bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.growth != 0 {
		return l.allocBefore, true
	}
	return l.alloc, false
}

func (l *Log) writesNow() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writes
}

// grow preallocates the active file for need bytes of batches and writes slots
// behind them; the next sync makes both durable. Requires: gate. Errors:
// ErrDiskFull with nothing changed, or the log has failed.
func (l *Log) grow(f File, need int64) error {
	to := slotPosition(need)
	from := l.size
	if l.alloc > 0 {
		from = l.alloc + slotArea
	}
	if err := l.reserve(to + slotArea - from); err != nil {
		return err
	}
	name := l.active().h.name
	l.disk.enter()
	err := f.Preallocate(from, to+slotArea-from)
	l.disk.leave()
	if err != nil {
		if full(err) {
			return fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return l.fail("preallocate "+name, err)
	}
	l.mu.Lock()
	s := l.slotLocked(l.active())
	l.slotSeq += 2
	seq := l.slotSeq
	l.mu.Unlock()
	for i := range uint64(2) {
		s.sequence = seq - 1 + i
		if err := l.writeSlot(f, s, to); err != nil {
			return l.fail("write "+name, err)
		}
	}
	l.mu.Lock()
	l.allocBefore, l.alloc = l.alloc, to
	l.writes++
	if l.size > 0 {
		l.growth = l.writes
	}
	keep := l.pinLocked()
	l.mu.Unlock()
	if keep {
		// The use of the caller stays its own: take another one for the pin.
		if _, err := l.active().h.acquire(); err != nil {
			return l.fail("open "+name, err)
		}
	}
	return nil
}

// reserve says whether the disk has n bytes for this log.
func (l *Log) reserve(n int64) error {
	keep := l.disk.o.ReserveBytes
	if keep == 0 || l.o.UseReserve {
		return nil
	}
	free, err := l.fs.FreeBytes(l.dir)
	if err != nil {
		return l.fail("free space of "+l.dir, err)
	}
	if free-n < keep {
		return fmt.Errorf("%w: %d bytes free, %d are wanted and %d kept in reserve", ErrDiskFull, free, n, keep)
	}
	return nil
}

// rollBack removes what a failed write left behind the end of the log. Requires:
// gate. An error means that the log has failed.
func (l *Log) rollBack(f File) error {
	if err := l.takeSync(); err != nil {
		return err
	}
	defer l.freeSync()
	name := l.active().h.name
	l.disk.enter()
	err := f.Truncate(l.size)
	l.disk.leave()
	if err == nil {
		err = l.disk.syncFile(f)
	}
	if err != nil {
		return l.fail("roll back in "+name, err)
	}
	l.mu.Lock()
	l.alloc, l.growth = 0, 0
	l.synced = l.writes
	l.durable, l.durablePos, l.durableSum = l.end, l.size, l.x.headerSum
	unpin := l.pinned
	l.pinned = false
	l.wakeLocked(&l.durMoved)
	l.mu.Unlock()
	if unpin {
		l.active().h.release()
	}
	return nil
}

// beginChange removes the marker of a clean close, durably. Requires: gate.
func (l *Log) beginChange() error {
	if l.changed {
		return nil
	}
	name := joinPath(l.dir, cleanName)
	if err := l.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l.fail("remove "+name, err)
	}
	if err := l.disk.syncDir(l.dir); err != nil {
		return l.fail("sync "+l.dir, err)
	}
	l.changed = true
	return nil
}

// Group commit.

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

	wrote := l.writeGroup(group)

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
		if n > 1 && l.writeStaged(group[:n], epoch, bytes) {
			any = true
		} else {
			for _, r := range group[:n] {
				r.res, r.err = l.writeGated(epoch, r.b)
				any = any || r.err == nil
			}
		}
		group = group[n:]
	}
	return any
}

// writeStaged writes requests by one call if none of them needs a judgement of its
// own: no producer state is asked. It reports whether it did.
func (l *Log) writeStaged(group []*appendRequest, epoch Epoch, bytes int) bool {
	for _, r := range group {
		if be.Uint64(r.b[43:])>>63 == 0 {
			return false
		}
	}
	buf := getBuffer(bytes)
	defer buf.put()
	b := buf.b[:0]
	for _, r := range group {
		b = append(b, r.b...)
	}
	a, err := l.writeGated(epoch, b)
	if err != nil {
		for _, r := range group {
			r.res, r.err = Appended{}, err
		}
		return true
	}
	next := a.Base
	for _, r := range group {
		end := next + Offset(be.Uint32(r.b[23:])) + 1
		r.res = Appended{Base: next, End: end, Epoch: epoch}
		next = end
	}
	return true
}

func (l *Log) appendRecords(ctx context.Context, records []record.Record) (Appended, error) {
	if len(records) == 0 {
		return Appended{}, fmt.Errorf("%w: no records", ErrInvalidBatch)
	}
	var b record.Builder
	var now time.Time
	for _, r := range records {
		if r.Timestamp.IsZero() {
			if now.IsZero() {
				now = time.Now()
			}
			r.Timestamp = now
		}
		if err := b.Append(r); err != nil {
			return Appended{}, fmt.Errorf("%w: %w", ErrInvalidBatch, err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		return Appended{}, fmt.Errorf("%w: %w", ErrInvalidBatch, err)
	}
	return l.append(ctx, batch.Bytes())
}
