package log

import (
	"context"
	"errors"
	"slices"
)

func (l *Log) roll(ctx context.Context) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	target := l.writesNow()
	err := l.rollGated()
	l.unlockGate()
	if err != nil {
		return err
	}
	return l.syncWrites(target)
}

func (l *Log) rollAged(ctx context.Context) (bool, error) {
	if err := l.begin(ctx); err != nil {
		return false, err
	}
	if l.size == 0 || !l.aged() {
		l.unlockGate()
		return false, nil
	}
	target := l.writesNow()
	err := l.rollGated()
	l.unlockGate()
	if err != nil {
		return true, err
	}
	return true, l.syncWrites(target)
}

const nextSuffix = ".next" // of a segment file that has not got its name yet, in logs of earlier versions

// rollGated begins a new segment and leaves it to the background to seal the old
// one. With a spare file at hand that takes no sync and no new file. Requires:
// gate. ErrDiskFull means that nothing was changed.
func (l *Log) rollGated() error {
	if l.readOnly {
		return ErrReadOnly
	}
	if l.size == 0 {
		return nil
	}
	if err := l.beginChange(); err != nil {
		return err
	}
	if err := l.leaveJournal(); err != nil {
		return err
	}
	if err := l.writeHeld(); err != nil {
		return err
	}
	// The segment before this one must be durable, so that after a crash only the last
	// two are in question. Mostly it is, long since.
	if err := l.syncSealed(); err != nil {
		return err
	}
	l.mu.Lock()
	waiting := len(l.sealings)
	l.mu.Unlock()
	if waiting >= maxSealings {
		if err := l.settle(); err != nil {
			return err
		}
	}
	sp, nf, err := l.openNext()
	if err != nil {
		return err
	}
	seg := l.active()
	next := l.disk.newSegment(l.dir, l.end)
	if err := l.fs.Rename(sp.name, next.h.name); err != nil {
		return l.fail("roll "+seg.h.name, errors.Join(err, nf.Close()))
	}
	next.h.adopt(nf)
	s := l.newSealing(nowMs())
	info := s.info
	l.mu.Lock()
	// Readers know base without mu.
	seg.end, seg.size, seg.maxTimestamp, seg.maxAt, seg.sealedMs = info.end, info.size, info.maxTimestamp, info.maxAt, info.sealedMs
	seg.aborted, seg.abortedSum = info.aborted, info.abortedSum
	seg.aborts.Store(&s.x.aborted)
	seg.sealed = true
	s.target = l.writes
	s.pinned, l.pinned = l.pinned, false
	l.segs = appendSegment(l.segs, next)
	l.sealings = append(l.sealings, s)
	l.producers.expire(info.sealedMs, l.o.ProducerExpiry)
	l.size, l.firstMs = 0, 0
	l.x = newIndex()
	l.alloc, l.spared, l.stale, l.allocBefore, l.growth = sp.alloc, true, sp.stale, 0, 0
	l.slotted = false
	l.near = nearSlots{}
	l.cutTailLocked(l.end)
	if l.unsyncedLocked() == nil {
		l.durable, l.durablePos, l.durableSum = l.end, 0, 0
		l.stated = l.end
		s.durable = true
		l.rolled = append(l.rolled, seg.public(info))
	} else {
		l.tailWhole = false // until the segment is synced
	}
	l.counts.Rolls++
	if sp.recycled() {
		l.counts.Recycled++
	}
	old := l.keepIndexLocked(seg, &s.x)
	queue := l.choreLocked()
	l.mu.Unlock()
	if old != nil && old != seg {
		old.indexes.Store(nil)
	}
	if queue {
		l.disk.chore(l)
	}
	next.h.release()
	return nil
}

// leaveJournal makes sure that no entry of the journal is needed any more, because
// each is stated durable in the active segment: it is about to have a successor, and
// entries speak of the last segment only. Logs that sync their own files have none.
// Requires: gate.
func (l *Log) leaveJournal() error {
	l.mu.Lock()
	needed := l.journaled > 0
	if needed {
		l.writes++ // for a round that writes a slot
	}
	target := l.writes
	l.mu.Unlock()
	if !needed {
		return nil
	}
	_, err := l.syncFileTo(context.Background(), target)
	return err
}

// openNext returns a spare file, which it makes if there is none, open. Requires:
// gate.
func (l *Log) openNext() (*spare, File, error) {
	s := l.disk.takeSpare(l)
	if s == nil {
		err := l.reserve(slotFirst + slotArea)
		if err == nil {
			s, err = l.makeSpare(slotFirst)
		}
		if err != nil {
			if full(err) || l.Err() != nil {
				return nil, nil, err
			}
			return nil, nil, l.fail("make the next file in "+l.dir, err)
		}
	}
	l.disk.enter()
	f, err := l.fs.Open(s.name, true)
	l.disk.leave()
	if err != nil {
		return nil, nil, l.fail("open "+s.name, err)
	}
	return s, f, nil
}

// cutTo cuts a segment file; not synced.
func (l *Log) cutTo(seg *segment, size int64) error {
	f, err := seg.h.acquire()
	if err != nil {
		return err
	}
	defer seg.h.release()
	l.disk.enter()
	defer l.disk.leave()
	return f.Truncate(size)
}

// freshActiveLocked sets the state of an active segment that has no batches.
func (l *Log) freshActiveLocked() {
	l.size, l.firstMs = 0, 0
	l.x = newIndex()
	l.alloc, l.spared, l.stale, l.allocBefore, l.growth = 0, false, 0, 0, 0
	l.near = nearSlots{}
	l.durable, l.durablePos, l.durableSum = l.end, 0, 0
	l.synced, l.filed = l.writes, l.writes
	l.stated = l.end
	l.cutTailLocked(l.end)
}

// closeClean makes all durable and leaves the marker. Requires: gate.
func (l *Log) closeClean() error {
	if _, err := l.syncFileTo(context.Background(), l.writesNow()); err != nil {
		return err
	}
	if l.readOnly || !l.changed && l.recovery.Clean {
		return nil
	}
	if err := l.beginChange(); err != nil {
		return err
	}
	if err := l.settle(); err != nil {
		if full(err) {
			return nil
		}
		return err
	}
	if err := l.takeSync(); err != nil {
		return err
	}
	defer l.freeSync()
	seg := l.active()
	now := nowMs()
	mark := cleanMarker{id: l.id, closedMs: now, end: l.end, firstAppendMs: l.firstMs}
	for _, s := range l.segs {
		if s.sealed {
			mark.segments = append(mark.segments, s.segmentInfo)
		}
	}
	s := l.newSealing(0)
	info := s.info
	mark.segments = append(mark.segments, info)
	err := l.writeHelpers(s)
	for _, name := range l.helperNames(seg, info) {
		if err == nil {
			err = l.disk.syncName(name)
		}
	}
	if err == nil {
		// From here on the seal states the durable end in place of the slots.
		err = l.disk.syncDir(l.dir)
	}
	if err == nil {
		err = l.cutTo(seg, l.size)
	}
	if err == nil {
		err = l.disk.syncName(seg.h.name)
	}
	if err == nil {
		err = l.dropOldStates()
	}
	if err == nil {
		_, err = replaceFile(l.fs, joinPath(l.dir, cleanName), mark.encode())
	}
	if err == nil {
		err = l.disk.syncDir(l.dir)
	}
	if err != nil {
		// Everything is durable; the next Open just has to read more.
		if full(err) {
			return nil
		}
		return l.fail("close "+l.dir, err)
	}
	l.forgetJournal()
	return nil
}

// dropOldStates removes the state files and snapshots of earlier closes.
func (l *Log) dropOldStates() error {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		at, suffix, ok := parseName(name)
		if !ok || suffix != stateSuffix && suffix != snapshotSuffix || at == l.end || slices.ContainsFunc(l.segs, func(s *segment) bool { return s.base == at }) {
			continue
		}
		if err := l.fs.Remove(joinPath(l.dir, name)); err != nil {
			return err
		}
	}
	return nil
}
