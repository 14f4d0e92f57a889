package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
)

// maxSealings bounds the segments of a log that wait to be sealed.
const maxSealings = 16

// A sealing is a segment that is being sealed: it has a successor, or the log is
// being closed. What its files are made from was taken when its last batch was
// written.
type sealing struct {
	seg    *segment
	info   segmentInfo
	x      index
	chain  epochChain
	beside []newFile // the state at its end, and Kafka's snapshot of it
	target uint64    // writes that are in it
	alloc  int64     // position of its slots
	first  int64     // Log.firstMs

	// Under Log.mu:
	pinned  bool // the file holds a use because it has unsynced writes
	durable bool // noted that it is
	stuck   bool // the disk was full
}

// newSealing describes the active segment. Requires: gate.
func (l *Log) newSealing(sealedMs int64) *sealing {
	s := &sealing{seg: l.active(), info: l.activeInfoLocked(), x: l.x, chain: l.chain.clone(), alloc: l.alloc, first: l.firstMs}
	s.info.sealedMs = sealedMs
	s.info.setAborted(s.x.aborted)
	s.x.noteTime(s.seg.base) // Kafka closes a time index with the last maximum
	state := encodeState(l.id, s.info.end, l.chain, &l.producers, nowMs(), l.o.ProducerExpiry)
	s.beside = []newFile{{joinPath(l.dir, segmentName(s.info.end, stateSuffix)), state}, l.kafkaSnapshot(s.info.end)}
	return s
}

// roomBytes bounds what the files beside the segment will take on the disk.
func (s *sealing) roomBytes() int64 {
	const block = 4096
	entries := int64(len(s.x.offsets) + len(s.x.times) + len(s.x.aborted) + len(s.chain))
	for _, f := range s.beside {
		entries += int64(len(f.content)) / 16
	}
	return 64*entries + 14*block
}

// unsyncedLocked returns the segment that has a successor and is not durable. There
// is one at most.
func (l *Log) unsyncedLocked() *sealing {
	if n := len(l.sealings); n > 0 && l.sealings[n-1].target > min(l.synced, l.filed) {
		return l.sealings[n-1]
	}
	return nil
}

// syncSealed makes the segments that have a successor durable. Requires: gate, not
// the sync token; or choring.
func (l *Log) syncSealed() error {
	l.mu.Lock()
	for l.failed == nil && l.unsyncedLocked() != nil {
		if l.syncing {
			ch := waiterLocked(&l.syncDone)
			l.mu.Unlock()
			<-ch
		} else {
			l.syncing = true
			l.fileRound() // gives mu back
		}
		l.mu.Lock()
	}
	defer l.mu.Unlock()
	if l.failed != nil {
		return l.failed
	}
	return nil
}

// seal does what is left of a roll:
//
//  1. The segment's batches are made durable. No sync of its successor, and no slot
//     in it, comes before: see syncRound.
//  2. Indexes, seal and state are written and synced, and with the folder their
//     names and the successor's.
//  3. The file is cut to its length, slots and all. From 2 on the seal says what they
//     did.
//
// ErrDiskFull means that it is to be tried again; the segment is durable then. Other
// errors mean that the log has failed. Requires: choring.
func (l *Log) seal(s *sealing) error {
	if err := l.syncSealed(); err != nil {
		return err
	}
	err := l.writeHelpers(s)
	if err != nil {
		if full(err) {
			l.mu.Lock()
			s.stuck = true
			l.mu.Unlock()
			return fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return l.fail("seal "+s.seg.h.name, err)
	}
	for _, name := range l.helperNames(s.seg, s.info) {
		if err = l.disk.syncName(name); err != nil {
			break
		}
	}
	if err == nil {
		err = l.disk.syncDir(l.dir)
	}
	if err != nil {
		// They can be made again, so an error costs a longer recovery at most; but the
		// slots have to stay.
		l.o.Logger.Warn("helper file not synced", "path", s.seg.path(sealSuffix), "err", err)
	} else if err := l.cutSealed(s); err != nil {
		return l.fail("cut "+s.seg.h.name, err)
	}
	if j := l.disk.journal; j != nil && err == nil {
		j.settle(l) // what earlier lives have left of it is of this segment or lower ones
	}
	l.mu.Lock()
	if i := slices.Index(l.sealings, s); i >= 0 {
		l.sealings = slices.Delete(l.sealings, i, i+1)
	}
	l.mu.Unlock()
	return nil
}

// cutSealed cuts a sealed segment's file to its length.
func (l *Log) cutSealed(s *sealing) error {
	f, err := s.seg.h.acquire()
	if err != nil {
		return err
	}
	defer s.seg.h.release()
	// A flush that began while it was active would write its slot behind the end.
	l.mu.Lock()
	for l.flushed == s.seg {
		ch := waiterLocked(&l.syncDone)
		l.mu.Unlock()
		<-ch
		l.mu.Lock()
	}
	l.mu.Unlock()
	l.disk.enter()
	err = f.Truncate(s.info.size)
	l.disk.leave()
	if err != nil {
		return err
	}
	return l.disk.syncFile(f)
}

// writeHelpers writes what stands beside a segment, and the state at its end; not
// synced.
func (l *Log) writeHelpers(s *sealing) error {
	ib := appendIndex(nil, s.x.offsets)
	tb := appendTimeIndex(nil, s.x.times)
	f := sealFile{id: l.id, info: s.info, indexSum: crcUpdate(0, ib), timeIndexSum: crcUpdate(0, tb)}
	f.headers = append(slices.Clone(s.x.headers), s.x.headerSum)
	files := []newFile{{s.seg.path(indexSuffix), ib}, {s.seg.path(timeIndexSuffix), tb}, {s.seg.path(sealSuffix), f.encode()}}
	if s.info.aborted > 0 {
		files = append(files, newFile{s.seg.path(txnIndexSuffix), appendTxnIndex(nil, s.x.aborted)})
	}
	state := s.beside[0]
	if s.info.end > s.seg.base {
		files = append(files, s.beside...)
	} else if _, err := readState(l.fs, l.dir, l.id, s.info.end); err != nil {
		// Never without one: it may be all that is left of what was before.
		if _, err := replaceFile(l.fs, state.name, state.content); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := writeNew(l.fs, f.name, f.content, false); err != nil {
			return err
		}
	}
	return l.writeCheckpoint(s.chain)
}

// helperNames returns the files that are synced after writeHelpers: not the
// snapshot, which is for Kafka's tools only and has a checksum of its own.
func (l *Log) helperNames(seg *segment, info segmentInfo) []string {
	names := []string{
		joinPath(l.dir, segmentName(info.end, stateSuffix)), seg.path(sealSuffix), seg.path(indexSuffix), seg.path(timeIndexSuffix),
	}
	if info.aborted > 0 {
		names = append(names, seg.path(txnIndexSuffix))
	}
	return names
}

// writeCheckpoint writes Kafka's epoch file if it is not up to date. Requires: gate
// or choring, and with the gate no chore under way.
func (l *Log) writeCheckpoint(c epochChain) error {
	if l.savedChain != nil && slices.Equal(l.savedChain, c) {
		return nil
	}
	if _, err := replaceFile(l.fs, joinPath(l.dir, epochFileName), c.appendCheckpoint(nil)); err != nil {
		return err
	}
	l.savedChain = append(epochChain{}, c...)
	return nil
}

// forgetSealingsLocked takes the segments with an end above off, which are about to
// go or to be active again, off the list and returns those whose file holds a use.
// Requires: chores held.
func (l *Log) forgetSealingsLocked(off Offset) (pinned []*segment) {
	l.sealings = slices.DeleteFunc(l.sealings, func(s *sealing) bool {
		if s.info.end <= off {
			return false
		}
		if s.pinned {
			pinned = append(pinned, s.seg)
		}
		return true
	})
	return pinned
}

// judgeSuccessor decides after a crash whether the last segment stands. While no
// group in it was synced, which a file that was made in advance shows by its mark
// and by having no slot of its base, nothing says that the segment before is whole:
// its own slots and its batches do. If it isn't, what follows was never
// acknowledged and goes.
func (l *Log) judgeSuccessor() error {
	n := len(l.segs)
	if n < 2 {
		return nil
	}
	old, last := l.segs[n-2], l.segs[n-1]
	f, err := last.h.acquire()
	if err != nil {
		return err
	}
	defer last.h.release()
	size, err := f.Size()
	if err != nil {
		return err
	}
	_, marked, err := readMark(f, size, l.id)
	if err != nil || !marked {
		return err
	}
	if _, _, slots, err := newestSlot(f, size, l.id, last.base); err != nil || slots {
		return err
	}
	whole, err := l.reaches(old, last.base)
	if err == nil && !l.o.ReadOnly {
		err = l.beginChange()
	}
	if err != nil {
		return err
	}
	if !whole {
		l.segs = l.segs[:n-1]
		l.stated = old.base
		if l.o.ReadOnly {
			last.h.drop()
			return nil
		}
		return l.dropSuccessor(last)
	}
	if l.o.ReadOnly {
		return nil
	}
	// Both are from now on what they would be after a sync.
	if err := l.disk.syncName(old.h.name); err != nil {
		return err
	}
	for _, at := range slotPositions(size) {
		if at+slotArea == size {
			s := slot{id: l.id, base: last.base, sequence: 1, durable: last.base, end: last.base, epoch: -1}
			if err := l.writeSlot(f, s, at); err != nil {
				return err
			}
			return l.disk.syncFile(f)
		}
	}
	return nil
}

// reaches reports whether a segment is known to be whole up to offset end.
func (l *Log) reaches(seg *segment, end Offset) (bool, error) {
	f, err := seg.h.acquire()
	if err != nil {
		return false, err
	}
	defer seg.h.release()
	size, err := f.Size()
	if err != nil {
		return false, err
	}
	payload, err := readSide(l.fs, seg.path(sealSuffix), sealMagic, sealVersion)
	if err == nil {
		s, err := decodeSeal(payload)
		if err == nil && s.id == l.id && s.info.base == seg.base && s.info.end == end && s.info.size <= size {
			return true, nil
		}
	} else if err := sideError(err); err != nil {
		return false, err
	}
	stale, _, err := readMark(f, size, l.id)
	if err != nil {
		return false, err
	}
	s, _, slots, err := newestSlot(f, size, l.id, seg.base)
	if err != nil {
		return false, err
	}
	if slots && s.durable >= end {
		return true, nil
	}
	if stale > 0 {
		if !slots || s.end != end {
			return false, nil
		}
		return l.groupWhole(f, size, s)
	}
	sc := newScanner(l.disk, f, 0, size)
	defer sc.close()
	for next := seg.base; next < end; {
		_, h, err := sc.next()
		switch {
		case err == nil && h.base == next:
			next = h.last + 1
		case err == nil, errors.Is(err, io.EOF), bytesBad(err):
			return false, nil
		default:
			return false, err
		}
	}
	return true, nil
}

// groupWhole reports whether the group that a slot speaks of is there, and is what
// the slot says it is.
func (l *Log) groupWhole(f File, size int64, s slot) (bool, error) {
	sc := newScanner(l.disk, f, min(s.position, size), size)
	defer sc.close()
	sum := s.headers
	for next := s.durable; next < s.end; {
		b, h, err := sc.next()
		switch {
		case err == nil && h.base == next && h.last < s.end:
			next = h.last + 1
			sum = crcUpdate(sum, b.Bytes()[:21])
		case err == nil, errors.Is(err, io.EOF), bytesBad(err):
			return false, nil
		default:
			return false, err
		}
	}
	return sum == s.endHeaders, nil
}

// dropSuccessor removes what was the last segment, the files beside it first: they
// say what the log was at an offset that it will come to again.
func (l *Log) dropSuccessor(last *segment) error {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		base, suffix, ok := parseName(name)
		if !ok || base <= l.active().base || suffix == cutSuffix || suffix == logSuffix {
			continue
		}
		if err := l.fs.Remove(joinPath(l.dir, name)); err != nil {
			return err
		}
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	last.h.drop()
	if err := l.fs.Remove(last.h.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.fs.SyncDir(l.dir)
}
