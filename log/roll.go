package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

func (l *Log) roll(ctx context.Context) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.unlockGate()
	return l.rollGated()
}

func (l *Log) rollAged(ctx context.Context) (bool, error) {
	if err := l.begin(ctx); err != nil {
		return false, err
	}
	defer l.unlockGate()
	if l.size == 0 || !l.aged() {
		return false, nil
	}
	return true, l.rollGated()
}

const nextSuffix = ".next" // of a segment file that has not got its name yet

// rollGated seals the active segment. The order makes sure that a segment that
// has a successor is whole and durable:
//
//  1. all batches are durable,
//  2. the next file exists under another name, with room for batches,
//  3. indexes, seal and state are written (not synced: they can be made again),
//  4. the next file gets its name, and the folder is synced,
//  5. the sealed file is cut to its length, slots and all. Before 4 that would take
//     the known durable end away; after it, that is the end of the segment.
//
// Up to 3 a full disk leaves everything as it was. Requires: gate.
func (l *Log) rollGated() error {
	if l.readOnly {
		return ErrReadOnly
	}
	if l.size == 0 {
		return nil
	}
	if _, err := l.syncFileTo(context.Background(), l.writesNow()); err != nil {
		return err
	}
	if err := l.beginChange(); err != nil {
		return err
	}
	if err := l.takeSync(); err != nil {
		return err
	}
	defer l.freeSync()
	seg := l.active()
	next := l.disk.newSegment(l.dir, l.end)
	temp := next.path(nextSuffix)
	nf, err := l.createNext(temp)
	if err != nil {
		return err
	}
	info := l.activeInfoLocked()
	info.sealedMs = nowMs()
	info.setAborted(l.x.aborted)
	if err := l.writeHelpers(seg, info); err != nil {
		nf.Close()        //nolint:errcheck // never used
		l.fs.Remove(temp) //nolint:errcheck // removed at the next Open
		if full(err) {
			return fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return l.fail("seal "+seg.h.name, err)
	}
	size := l.size
	err = l.fs.Rename(temp, next.h.name)
	if err == nil {
		err = l.disk.syncDir(l.dir)
	}
	if err != nil {
		return l.fail("roll "+seg.h.name, errors.Join(err, nf.Close()))
	}
	next.h.adopt(nf)
	l.forgetJournal()
	l.mu.Lock()
	// Readers know base without mu.
	seg.end, seg.size, seg.maxTimestamp, seg.maxAt, seg.sealedMs = info.end, info.size, info.maxTimestamp, info.maxAt, info.sealedMs
	seg.aborted, seg.abortedSum = info.aborted, info.abortedSum
	seg.sealed = true
	l.segs = appendSegment(l.segs, next)
	l.producers.expire(info.sealedMs, l.o.ProducerExpiry)
	l.freshActiveLocked()
	l.alloc = slotFirst
	l.counts.Rolls++
	public := seg.public(info)
	l.helpers = append(l.helpers, l.helperNames(seg, info)...)
	l.helpers = append(l.helpers, seg.h.name)
	queue := l.laterLocked()
	l.mu.Unlock()
	if queue {
		l.disk.later(l)
	}
	next.h.release()
	l.rolled = append(l.rolled, public)
	if err := l.cutTo(seg, size); err != nil {
		return l.fail("cut "+seg.h.name, err)
	}
	return nil
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
	l.alloc, l.allocBefore, l.growth = 0, 0, 0
	l.durable, l.durablePos, l.durableSum = l.end, 0, 0
	l.synced, l.filed = l.writes, l.writes
	l.stated = l.end
	l.cutTailLocked(l.end)
}

func (l *Log) createNext(temp string) (File, error) {
	if err := l.reserve(slotFirst + slotArea); err != nil {
		return nil, err
	}
	if err := l.fs.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, l.fail("remove "+temp, err)
	}
	f, err := l.fs.Create(temp)
	if err == nil {
		if err = f.Preallocate(0, slotFirst+slotArea); err == nil {
			return f, nil
		}
		f.Close()         //nolint:errcheck // never used
		l.fs.Remove(temp) //nolint:errcheck // removed at the next Open
	}
	if full(err) {
		return nil, fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	return nil, l.fail("create "+temp, err)
}

// writeHelpers writes what stands beside a segment that is being sealed, and the
// state at its end. Requires: gate and the sync token.
func (l *Log) writeHelpers(seg *segment, info segmentInfo) error {
	x := l.x
	x.noteTime(seg.base) // Kafka closes a time index with the last maximum
	ib := appendIndex(nil, x.offsets)
	tb := appendTimeIndex(nil, x.times)
	s := sealFile{id: l.id, info: info, indexSum: crcUpdate(0, ib), timeIndexSum: crcUpdate(0, tb)}
	s.headers = append(slices.Clone(x.headers), x.headerSum)
	files := []newFile{{seg.path(indexSuffix), ib}, {seg.path(timeIndexSuffix), tb}, {seg.path(sealSuffix), s.encode()}}
	state := newFile{joinPath(l.dir, segmentName(info.end, stateSuffix)), encodeState(l.id, info.end, l.chain, &l.producers, nowMs(), l.o.ProducerExpiry)}
	if info.aborted > 0 {
		files = append(files, newFile{seg.path(txnIndexSuffix), appendTxnIndex(nil, x.aborted)})
	}
	if info.end > seg.base {
		files = append(files, state, l.kafkaSnapshot(info.end))
	} else if _, err := readState(l.fs, l.dir, l.id, info.end); err != nil {
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
	return l.writeCheckpoint()
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

// writeCheckpoint writes Kafka's epoch file if it is not up to date.
func (l *Log) writeCheckpoint() error {
	if l.savedChain != nil && slices.Equal(l.savedChain, l.chain) {
		return nil
	}
	if _, err := replaceFile(l.fs, joinPath(l.dir, epochFileName), l.chain.appendCheckpoint(nil)); err != nil {
		return err
	}
	l.savedChain = append(epochChain{}, l.chain...)
	return nil
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
	info := l.activeInfoLocked()
	info.setAborted(l.x.aborted)
	mark.segments = append(mark.segments, info)
	err := l.writeHelpers(seg, info)
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
