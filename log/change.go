package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// Changes of more than one file. Each is one replacement of the meta file, which
// is the point after which a crash is safe: recovery finishes what it says. See
// meta.go for its fields.

// begin takes the gate and says whether the log takes changes. A nil error means
// that the caller has the gate.
func (l *Log) begin(ctx context.Context) error {
	if err := l.lockGate(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	err := l.usableLocked()
	l.mu.Unlock()
	if err == nil && l.o.ReadOnly {
		err = ErrOpenedReadOnly
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.unlockGate()
	}
	return err
}

// commit replaces the meta file. ErrDiskFull means that the old one stands.
// Requires: gate.
func (l *Log) commit(m meta) error {
	renamed, err := l.replaceMeta(m)
	if err == nil || l.Err() != nil {
		return err
	}
	if !renamed && full(err) {
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	return l.fail("replace "+metaName+" in "+l.dir, err)
}

// conclude replaces the meta file after what it said was under way is done. There
// is no way back. Requires: gate.
func (l *Log) conclude(op string, m meta) error {
	if _, err := l.replaceMeta(m); err != nil {
		return l.fail(op+" "+l.dir, err)
	}
	return nil
}

func (l *Log) replaceMeta(m meta) (renamed bool, err error) {
	if err := l.beginChange(); err != nil {
		return false, err
	}
	renamed, err = replaceFile(l.fs, joinPath(l.dir, metaName), m.encode())
	if err == nil {
		err = l.disk.syncDir(l.dir)
	}
	if err == nil {
		l.mu.Lock()
		l.meta = m
		l.mu.Unlock()
	}
	return renamed, err
}

// Reset.

func (l *Log) reset(ctx context.Context, start Offset, epochs []EpochStart, producers []byte) error {
	if start < 0 {
		return fmt.Errorf("%w: reset to %d", ErrOffsetOutOfRange, start)
	}
	c := epochChain(slices.Clone(epochs))
	if !c.valid(start) {
		return fmt.Errorf("%w: epoch chain is not ascending below %d", ErrInvalidBatch, start)
	}
	var t producerTable
	if producers != nil {
		at, table, err := decodeSnapshot(producers)
		if _, ok := errors.AsType[*VersionError](err); ok {
			return err
		}
		if err == nil && at != start {
			err = fmt.Errorf("it is for offset %d", at)
		}
		if err != nil {
			return fmt.Errorf("%w: producer snapshot: %w", ErrInvalidBatch, err)
		}
		t = table
	}
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.unlockGate()
	l.holdChores()
	defer l.resumeChores()
	if err := l.takeSync(); err != nil {
		return err
	}
	defer l.freeSync()
	return l.resetSynced(start, c, t)
}

// resetSynced replaces the log. Requires: gate and the sync token, chores held.
func (l *Log) resetSynced(start Offset, c epochChain, t producerTable) error {
	m := l.nextGeneration()
	m.pending, m.pendingTo, m.resetChain, m.resetTable = changeReset, start, c, t
	if err := l.commit(m); err != nil {
		return err
	}
	// Offsets may go back below those in recycled files, so these go as well, in
	// finishReset.
	l.disk.takeSpares(l)
	l.mu.Lock()
	gone := l.segs
	unpin := l.forgetSealingsLocked(-1)
	if l.pinned {
		l.pinned = false
		unpin = append(unpin, l.active())
	}
	freed := len(l.freed)
	l.freed = slices.DeleteFunc(l.freed, func(f freedFile) bool { return !f.gone })
	l.freeing -= freed - len(l.freed)
	l.wantNext = false
	low := min(start, l.local)
	next := l.disk.newSegment(l.dir, start)
	l.segs = []*segment{next}
	l.start = min(l.start, start)
	l.local, l.end = start, start
	l.chain, l.producers = c, t
	l.ended = endedTxns{from: start}
	l.freshActiveLocked()
	l.cutLocked(low)
	l.readOnly, l.unsure = false, false
	l.loaded = nil
	l.mu.Unlock()
	for _, s := range unpin {
		s.h.release()
	}
	for _, s := range gone {
		s.h.drop()
	}
	m, err := finishReset(l.fs, l.dir, m)
	if err != nil {
		return l.fail("reset "+l.dir, err)
	}
	if err := l.conclude("reset", m); err != nil {
		return err
	}
	l.forgetJournal()
	return nil
}

// finishReset does what a meta file with a reset under way says and returns the
// one without. It can be done again. All is durable when it returns.
func finishReset(fsys FS, dir string, m meta) (meta, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return m, err
	}
	for _, name := range slices.Backward(names) {
		_, suffix, ok := parseName(name)
		if _, spare := parseSpare(name); spare || ok && suffix != cutSuffix {
			if err := fsys.Remove(joinPath(dir, name)); err != nil {
				return m, err
			}
		}
	}
	start := m.pendingTo
	state := encodeState(m.id, start, m.resetChain, &m.resetTable, nowMs(), -1)
	if err := writeNew(fsys, joinPath(dir, segmentName(start, stateSuffix)), state, true); err != nil {
		return m, err
	}
	if start > 0 {
		// For Kafka's tools: it needs no sync, since it has a checksum of its own.
		snapshot := m.resetTable.appendKafkaSnapshot(nil, nowMs(), -1)
		if err := writeNew(fsys, joinPath(dir, segmentName(start, snapshotSuffix)), snapshot, false); err != nil {
			return m, err
		}
	}
	if err := writeNew(fsys, joinPath(dir, segmentName(start, logSuffix)), nil, true); err != nil {
		return m, err
	}
	if _, err := replaceFile(fsys, joinPath(dir, epochFileName), m.resetChain.appendCheckpoint(nil)); err != nil {
		return m, err
	}
	if err := fsys.SyncDir(dir); err != nil {
		return m, err
	}
	m.start = min(m.start, start)
	m.local = start
	m.floorBase, m.floor = start, start
	m.pending, m.pendingTo, m.resetChain, m.resetTable = changeNone, 0, nil, producerTable{}
	return m, nil
}

// Moves of the start.

func (l *Log) trimTo(ctx context.Context, start Offset) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.unlockGate()
	if start <= l.start {
		return nil
	}
	if start > l.end {
		return fmt.Errorf("%w: trim to %d, end is %d", ErrOffsetOutOfRange, start, l.end)
	}
	// A start above the durable end would be above the end after a crash.
	if _, err := l.syncTo(ctx, l.writesNow()); err != nil {
		return err
	}
	return l.moveStart(start, max(l.local, start))
}

func (l *Log) dropLocal(ctx context.Context, to Offset) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.unlockGate()
	if err := l.syncSealed(); err != nil {
		return err
	}
	local := l.local
	for _, s := range l.segs {
		if !s.sealed || s.end > to {
			break
		}
		local = max(local, s.end)
	}
	if local == l.local && (len(l.segs) == 1 || l.segs[0].end > local) {
		return nil
	}
	return l.moveStart(l.start, local)
}

// moveStart moves log start and local start up and deletes the segments below.
// Requires: gate.
func (l *Log) moveStart(start, local Offset) error {
	// On a full disk what is to be sealed just goes.
	if err := l.settle(); err != nil && !full(err) {
		return err
	}
	n := 0
	for n < len(l.segs)-1 && l.segs[n].end <= local {
		n++
	}
	if n > 0 {
		if err := l.beginChange(); err != nil {
			return err
		}
		if err := l.keepState(n); err != nil {
			return err
		}
	}
	m := l.meta
	m.start, m.local = start, local
	if err := l.commit(m); err != nil {
		return err
	}
	l.holdChores()
	defer l.resumeChores()
	l.mu.Lock()
	gone := l.segs[:n]
	l.segs = slices.Clone(l.segs[n:])
	l.start, l.local = start, local
	l.chain = l.chain.trim(start)
	l.loaded = slices.DeleteFunc(l.loaded, func(s *segment) bool { return slices.Contains(gone, s) })
	l.readOnly = l.readOnly && l.damagedLocked()
	l.sealings = slices.DeleteFunc(l.sealings, func(s *sealing) bool { return s.info.end <= l.segs[0].base }) // all durable
	l.mu.Unlock()
	for _, s := range gone {
		for _, suffix := range segmentSuffixes[1:] { // the first is that of the segment itself
			if err := l.fs.Remove(s.path(suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return l.fail("remove "+s.path(suffix), err)
			}
		}
		if err := l.freeSegment(s); err != nil {
			return l.fail("remove "+s.h.name, err)
		}
	}
	return nil
}

// freeSegment gives the file of a segment below the start to the background to recycle, or
// deletes it. The start is durable, so a crash leaves a file that Open deletes
// under either name. Requires: gate.
func (l *Log) freeSegment(s *segment) error {
	recycled, _ := l.disk.countSpares(l)
	l.mu.Lock()
	if len(s.damage) > 0 || s.size == 0 || slotPosition(s.size)+slotArea > l.disk.o.RecycledBytes || recycled+l.freeing >= maxLogSpares {
		l.mu.Unlock()
		s.h.drop()
		if err := l.fs.Remove(s.h.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	l.freeing++
	name := l.spareNameLocked()
	l.mu.Unlock()
	if err := l.fs.Rename(s.h.name, name); err != nil {
		return err
	}
	// Who has the file open reads it under its old name for as long as he likes.
	s.h.dropThen(func() {
		l.mu.Lock()
		if l.closing {
			l.mu.Unlock()
			return
		}
		l.freed = append(l.freed, freedFile{name: name, size: s.size})
		queue := l.choreLocked()
		l.mu.Unlock()
		if queue {
			l.disk.chore(l)
		}
	})
	return nil
}

// keepState makes the state at the base of segs[n] durable, so that what lies
// before it may go. Requires: gate.
func (l *Log) keepState(n int) error {
	base := l.segs[n].base
	name := joinPath(l.dir, segmentName(base, stateSuffix))
	_, err := readState(l.fs, l.dir, l.id, base)
	if err == nil {
		err = l.disk.rewriteFile(name)
	} else if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
		var producers producerTable
		if producers, err = l.producersAt(l.segs, n); err == nil {
			_, err = replaceFile(l.fs, name, encodeState(l.id, base, l.chain.truncate(base), &producers, nowMs(), l.o.ProducerExpiry))
		}
	}
	switch _, corrupt := errors.AsType[*CorruptionError](err); {
	case err == nil:
		return nil // the folder is synced with the meta file
	case corrupt:
		return err
	case full(err):
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	default:
		return l.fail("keep "+name, err)
	}
}

func syncName(fsys FS, name string) error {
	f, err := fsys.Open(name, true)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
