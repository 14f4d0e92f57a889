package log

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
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
			case control && batch.ProducerID() >= 0:
				if _, ok := markerOf(batch); !ok {
					return fmt.Errorf("%w: control batch of producer %d is no end of a transaction", ErrInvalidBatch, batch.ProducerID())
				}
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
	return l.writeChecked(epoch, batches)
}

// writeChecked is write of batches that were checked, or have just been built.
func (l *Log) writeChecked(epoch Epoch, batches []byte) (Appended, error) {
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
	if l.o.ReadOnly {
		return ErrOpenedReadOnly
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
	switch {
	case err != nil:
	case !a.Duplicate:
		err = l.placeAll(b)
	case !l.synchronous:
		err = l.writeHeld()
	}
	if err != nil {
		return Appended{}, err
	}
	return a, nil
}

// sequence judges the batches and stamps them if they are new. Requires: gate.
func (l *Log) sequence(epoch Epoch, b []byte) (Appended, error) {
	a := Appended{Base: -1, Epoch: epoch}
	l.clearScratch()
	next := l.end
	now := nowMs()
	var dup *producedBatch // of the last batch
	for at := 0; at < len(b); {
		batch, rest, err := record.Next(b[at:], math.MaxInt)
		if err != nil {
			return Appended{}, fmt.Errorf("%w: %w", ErrInvalidBatch, err)
		}
		from := at
		at = len(b) - len(rest)
		base, end := next, next+Offset(be.Uint32(b[from+23:]))+1
		was := dup
		if dup, err = l.stamp(epoch, batch, base, now); err != nil {
			return Appended{}, err
		}
		if from > 0 && (was == nil) != (dup == nil) {
			return Appended{}, fmt.Errorf("%w: the batch at byte %d", ErrPartlyDuplicate, from)
		}
		if dup != nil {
			base, end = dup.base, dup.last+1
		}
		if a.Base < 0 {
			a.Base = base
		}
		a.End = max(a.End, end)
		if dup != nil {
			continue
		}
		next = end
		if id := batch.ProducerID(); id >= 0 && at < len(b) {
			l.remember(id, batch, now)
		}
	}
	if dup != nil {
		a.Epoch, a.Duplicate = -1, true
	}
	return a, nil
}

// stamp judges one batch, behind those that scratch holds, and stamps it for base
// unless it is a duplicate, which it returns. Requires: gate.
func (l *Log) stamp(epoch Epoch, batch record.Batch, base Offset, now int64) (*producedBatch, error) {
	if id := batch.ProducerID(); id >= 0 {
		dup, err := l.lookup(id, now).check(batch, l.o.AdmitUnknownProducers)
		if err != nil || dup != nil {
			return dup, err
		}
	}
	if l.o.LogAppendTime && !batch.IsControl() {
		batch.SetLogAppendTime(now)
	}
	batch.SetBaseOffset(base)
	batch.SetLeaderEpoch(epoch)
	return nil, nil
}

func (l *Log) clearScratch() {
	clear(l.scratch)
	l.scratch = l.scratch[:0]
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
		s.p = newProducer(b.ProducerEpoch())
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
	if err := l.placeAll(b); err != nil {
		return Appended{}, err
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
	// Nobody was told of the part, so a crash may leave it: the truncation need not be
	// atomic, and so needs none of the room that there isn't.
	if _, terr := l.truncateGated(end, false); terr != nil {
		return l.fail("take back a part of an append in "+l.dir, terr)
	}
	return err
}

// placeAll writes stamped batches at the end of the log: all of them or none.
// Requires: gate.
func (l *Log) placeAll(b []byte) error {
	end := l.end
	defer l.endPartial()
	if err := l.place(b); err != nil {
		return l.takeBack(end, err)
	}
	return nil
}

// place writes stamped batches at the end of the log, over segments as they fit.
// Requires: gate.
func (l *Log) place(b []byte) error {
	for len(b) > 0 {
		if err := l.prepare(b); err != nil {
			return err
		}
		n := l.fit(b)
		if n < len(b) {
			l.setPartial(true)
		}
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
	if err := l.markJournal(); err != nil {
		seg.h.release()
		return err
	}
	if !l.hold(f, b) {
		l.disk.enter()
		_, err = f.WriteAt(b, l.size)
		l.disk.leave()
	}
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
	l.keepTailLocked(b)
	l.writes++
	keep := l.pinLocked()
	l.wakeLocked(&l.endMoved)
	queue := l.prepareLocked(int64(len(b)))
	l.mu.Unlock()
	if queue {
		l.disk.chore(l)
	}
	if !keep {
		seg.h.release()
	}
	return nil
}

// hold leaves b, which is to stand at the end, to the sync before which who brought it
// is not told, if it may. Requires: gate.
func (l *Log) hold(f File, b []byte) bool {
	if !l.synchronous && !l.disk.holdAll || len(b) > behindBytes/2 {
		return false
	}
	behind, ok := f.(*behindFile)
	return ok && behind.hold(b, l.size)
}

// writeHeld writes what is held of the active segment, for a caller that is told of it
// without a sync, or goes on behind it in the next one. ErrDiskFull means that it is
// held still. Requires: gate.
func (l *Log) writeHeld() error {
	l.mu.Lock()
	pinned := l.pinned // else there is none
	l.mu.Unlock()
	if !pinned || !l.disk.holds {
		return nil
	}
	seg := l.active()
	f, err := seg.h.acquire()
	if err != nil {
		return l.fail("open "+seg.h.name, err)
	}
	defer seg.h.release()
	behind, ok := f.(*behindFile)
	if !ok {
		return nil
	}
	l.disk.enter()
	err = behind.write()
	l.disk.leave()
	switch {
	case err == nil:
		return nil
	case full(err):
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	default:
		return l.fail("write "+seg.h.name, err)
	}
}

// noteLocked takes batches that are in the active file, or held for it, into the log's
// state.
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
	if ended, ok := l.producers.note(b, now, l.o.ProducerExpiry); ok {
		l.x.noteEnd(ended)
		l.ended.add(ended)
	}
}

// builders are memory only: dropping all of it changes nothing.
var builders = sync.Pool{New: func() any { return new(record.Builder) }}

// maxKeptBuilder is the size of a batch whose builder is not kept for later ones.
const maxKeptBuilder = 1 << 20

func giveBuilder(b *record.Builder) {
	if b.Size() <= maxKeptBuilder {
		b.Reset()
		builders.Put(b)
	}
}

// build makes a batch of records. Its checksum is computed here, so that whoever
// writes it need not check it: that would find nothing.
func (l *Log) build(b *record.Builder, records []record.Record) ([]byte, error) {
	if len(records) == 0 {
		return nil, fmt.Errorf("%w: no records", ErrInvalidBatch)
	}
	var now time.Time
	for _, r := range records {
		if r.Timestamp.IsZero() {
			if now.IsZero() {
				now = time.Now()
			}
			r.Timestamp = now
		}
		if err := b.Append(r); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidBatch, err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidBatch, err)
	}
	if n := batch.Size(); n > l.o.MaxBatchBytes {
		return nil, fmt.Errorf("%w: %d bytes, limit is %d", ErrTooLarge, n, l.o.MaxBatchBytes)
	}
	return batch.Bytes(), nil
}

func (l *Log) appendRecords(ctx context.Context, records []record.Record) (Appended, error) {
	b := builders.Get().(*record.Builder)
	defer giveBuilder(b)
	batch, err := l.build(b, records)
	if err != nil {
		return Appended{}, err
	}
	return l.appendChecked(ctx, batch)
}

func (l *Log) writeRecords(epoch Epoch, records []record.Record) (Appended, error) {
	b := builders.Get().(*record.Builder)
	defer giveBuilder(b)
	batch, err := l.build(b, records)
	if err != nil {
		return Appended{}, err
	}
	return l.writeChecked(epoch, batch)
}
