package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
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

// Roll.

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
//  4. the sealed file is cut to its length and synced,
//  5. the next file gets its name, and the folder is synced.
//
// Up to 3 a full disk leaves everything as it was. Requires: gate.
func (l *Log) rollGated() error {
	if l.readOnly {
		return ErrReadOnly
	}
	if l.size == 0 {
		return nil
	}
	if _, err := l.syncTo(context.Background(), l.writesNow()); err != nil {
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
	if err := l.writeHelpers(seg, info); err != nil {
		nf.Close()        //nolint:errcheck // never used
		l.fs.Remove(temp) //nolint:errcheck // removed at the next Open
		if full(err) {
			return fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return l.fail("seal "+seg.h.name, err)
	}
	f, err := seg.h.acquire()
	if err == nil {
		l.disk.enter()
		err = f.Truncate(l.size)
		l.disk.leave()
		if err == nil {
			err = l.disk.syncFile(f)
		}
		seg.h.release()
	}
	if err == nil {
		err = l.fs.Rename(temp, next.h.name)
	}
	if err == nil {
		err = l.disk.syncDir(l.dir)
	}
	if err != nil {
		return l.fail("roll "+seg.h.name, errors.Join(err, nf.Close()))
	}
	next.h.adopt(nf)
	l.mu.Lock()
	// Readers know base without mu.
	seg.end, seg.size, seg.maxTimestamp, seg.maxAt, seg.sealedMs = info.end, info.size, info.maxTimestamp, info.maxAt, info.sealedMs
	seg.sealed = true
	l.segs = appendSegment(l.segs, next)
	l.producers.expire(info.sealedMs, l.o.ProducerExpiry)
	l.freshActiveLocked()
	l.alloc = slotFirst
	l.counts.Rolls++
	public := seg.public(info)
	l.helpers = append(l.helpers, l.helperNames(seg, info.end)...)
	queue := l.laterLocked()
	l.mu.Unlock()
	if queue {
		l.disk.later(l)
	}
	next.h.release()
	l.rolled = append(l.rolled, public)
	return nil
}

// freshActiveLocked sets the state of an active segment that has no batches.
func (l *Log) freshActiveLocked() {
	l.size, l.firstMs = 0, 0
	l.x = newIndex()
	l.alloc, l.allocBefore, l.growth = 0, 0, 0
	l.durable, l.durablePos, l.durableSum = l.end, 0, 0
	l.synced = l.writes
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
	if info.end > seg.base {
		files = append(files, state)
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

func (l *Log) helperNames(seg *segment, end Offset) []string {
	return []string{
		joinPath(l.dir, segmentName(end, stateSuffix)), seg.path(sealSuffix), seg.path(indexSuffix), seg.path(timeIndexSuffix),
	}
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

// Truncation.

func (l *Log) truncateTo(ctx context.Context, off Offset) (Offset, error) {
	if err := l.begin(ctx); err != nil {
		return 0, err
	}
	defer l.unlockGate()
	return l.truncateGated(off)
}

// A replayed is the state of a segment up to some position.
type replayed struct {
	x         index
	size      int64
	end       Offset
	producers producerTable
	firstMs   int64
}

// replay reads a segment from its start up to the batch that holds off or begins
// there, on top of the producers as of its base. limit is the end of its batches.
func (l *Log) replay(seg *segment, limit int64, off Offset, producers producerTable) (replayed, error) {
	r := replayed{x: newIndex(), end: seg.base, producers: producers}
	if off <= seg.base {
		return r, nil
	}
	f, err := seg.h.acquire()
	if err != nil {
		return r, err
	}
	defer seg.h.release()
	sc := newScanner(l.disk, f, 0, limit)
	defer sc.close()
	now := nowMs()
	for r.end < off {
		b, h, err := sc.next()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err == nil && h.base != r.end {
			err = errFollows
		}
		if err != nil {
			if bytesBad(err) {
				return r, seg.corruption(damage{from: r.end, to: r.end, position: sc.at, err: err})
			}
			return r, err
		}
		if h.last >= off {
			return r, nil
		}
		r.x.note(seg.base, b.Bytes()[:21], h.last, h.maxTimestamp, r.size, h.size)
		r.producers.note(b, now, l.o.ProducerExpiry)
		r.size += h.size
		r.end = h.last + 1
	}
	return r, nil
}

// producersAt returns the producers as of the base of segs[i]: from its state
// file, or from an earlier one and the batches between.
func (l *Log) producersAt(segs []*segment, i int) (producerTable, error) {
	base := segs[i].base
	s, err := readState(l.fs, l.dir, l.id, base)
	if err == nil {
		return s.producers, nil
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDamaged) {
		return producerTable{}, err
	}
	if i == 0 {
		if base == 0 {
			return producerTable{}, nil
		}
		return producerTable{}, &CorruptionError{Path: segs[i].path(stateSuffix), Offset: base, Err: err}
	}
	before, err := l.producersAt(segs, i-1)
	if err != nil {
		return producerTable{}, err
	}
	r, err := l.replay(segs[i-1], segs[i-1].size, base, before)
	return r.producers, err
}

// truncateGated is TruncateTo. Requires: gate.
func (l *Log) truncateGated(off Offset) (Offset, error) {
	if off < l.local {
		return 0, fmt.Errorf("%w: truncation to %d, local start is %d", ErrOffsetOutOfRange, off, l.local)
	}
	if off >= l.end && !l.readOnly {
		return l.end, l.truncateChain()
	}
	off = min(off, l.end)
	if off >= l.end {
		return l.end, nil
	}
	if err := l.takeSync(); err != nil {
		return 0, err
	}
	defer l.freeSync()

	// Everything that can go wrong without a change comes first.
	i := len(l.segs) - 1
	for i > 0 && l.segs[i].base > off {
		i--
	}
	seg := l.segs[i]
	limit := seg.size
	if !seg.sealed {
		limit = l.size
	}
	producers, err := l.producersAt(l.segs, i)
	if c, ok := errors.AsType[*CorruptionError](err); ok {
		// What producers did before is lost; those that go on must begin anew.
		l.o.Logger.Warn("producer state lost", "dir", l.dir, "offset", int64(off), "err", c)
		producers, err = producerTable{}, nil
	}
	if err != nil {
		return 0, err
	}
	r, err := l.replay(seg, limit, off, producers)
	if err != nil {
		return 0, err
	}
	if r.end < l.local {
		// The local start lies inside the first batch that stays or goes: nothing that
		// can be read is left.
		if err := l.resetSynced(l.local, l.chain.truncate(l.local), r.producers); err != nil {
			return 0, err
		}
		return l.end, nil
	}

	m := l.meta
	m.pending, m.pendingTo = changeTruncate, r.end
	m.floorBase, m.floor = seg.base, min(r.end, max(l.durable, seg.base))
	if err := l.commit(m); err != nil {
		return 0, err
	}
	// Readers see the new end before bytes go.
	l.mu.Lock()
	gone := l.segs[i+1:]
	was := l.active()
	active := &segment{dir: seg.dir, h: seg.h, segmentInfo: segmentInfo{base: seg.base, end: seg.base, maxTimestamp: -1, maxAt: -1}}
	active.damage = slices.DeleteFunc(slices.Clone(seg.damage), func(d damage) bool { return d.from >= r.end })
	l.segs = append(slices.Clone(l.segs[:i]), active)
	l.end = r.end
	l.chain = l.chain.truncate(r.end)
	l.producers = r.producers
	l.freshActiveLocked()
	l.size, l.x = r.size, r.x
	l.durablePos, l.durableSum = r.size, r.x.headerSum
	if l.size > 0 {
		l.firstMs = nowMs()
	}
	l.cutLocked(r.end)
	l.readOnly = l.damagedLocked()
	unpin := l.pinned
	l.pinned = false
	l.mu.Unlock()
	if unpin {
		was.h.release()
	}
	for _, s := range gone {
		s.h.drop()
	}
	if err := l.finishTruncation(active, r.size); err != nil {
		return 0, l.fail("truncate "+l.dir, err)
	}
	m.pending, m.pendingTo = changeNone, 0
	m.floor = r.end
	if err := l.conclude("truncate", m); err != nil {
		return 0, err
	}
	return r.end, nil
}

// damagedLocked reports whether a part of the log can't be read.
func (l *Log) damagedLocked() bool {
	for i, s := range l.segs {
		if len(s.damage) > 0 || i > 0 && l.segs[i-1].end != s.base {
			return true
		}
	}
	return l.segs[0].base > l.local || l.end < l.local
}

// finishTruncation cuts the file and removes what lies behind it, last first. It
// can be done again. The names are durable when it returns.
func (l *Log) finishTruncation(active *segment, size int64) error {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Backward(names) {
		base, suffix, ok := parseName(name)
		if !ok {
			continue
		}
		switch {
		case base > active.base && suffix != cutSuffix,
			base == active.base && (suffix == indexSuffix || suffix == timeIndexSuffix || suffix == sealSuffix):
			if err := l.fs.Remove(joinPath(l.dir, name)); err != nil {
				return err
			}
		}
	}
	f, err := active.h.acquire()
	if err != nil {
		return err
	}
	defer active.h.release()
	l.disk.enter()
	err = f.Truncate(size)
	l.disk.leave()
	if err == nil {
		err = l.disk.syncFile(f)
	}
	if err == nil {
		err = l.disk.syncDir(l.dir)
	}
	return err
}

// truncateChain drops epochs that begin at the end or later: epochs without a
// record (KAFKA-10706). Requires: gate.
func (l *Log) truncateChain() error {
	c := l.chain.truncate(l.end)
	if len(c) == len(l.chain) {
		return nil
	}
	if l.end != l.active().base {
		// The state file is older; records decide what the chain is.
		l.mu.Lock()
		l.chain = c
		l.mu.Unlock()
		return nil
	}
	if err := l.beginChange(); err != nil {
		return err
	}
	name := joinPath(l.dir, segmentName(l.end, stateSuffix))
	renamed, err := replaceFile(l.fs, name, encodeState(l.id, l.end, c, &l.producers, nowMs(), l.o.ProducerExpiry))
	if err == nil {
		err = l.disk.syncDir(l.dir)
	}
	if err != nil {
		if !renamed && full(err) {
			return fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return l.fail("replace "+name, err)
	}
	l.mu.Lock()
	l.chain = c
	l.mu.Unlock()
	return nil
}

// parseName splits the name of a file of a segment or an offset.
func parseName(name string) (Offset, string, bool) {
	i := strings.IndexByte(name, '.')
	if i != 20 {
		return 0, "", false
	}
	n, err := strconv.ParseInt(name[:i], 10, 64)
	if err != nil || n < 0 {
		return 0, "", false
	}
	suffix := name[i:]
	if j := strings.LastIndexByte(suffix, '.'); j > 0 && suffix[j:] == cutSuffix {
		suffix = cutSuffix
	}
	return Offset(n), suffix, true
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
	if err := l.takeSync(); err != nil {
		return err
	}
	defer l.freeSync()
	return l.resetSynced(start, c, t)
}

// resetSynced replaces the log. Requires: gate and the sync token.
func (l *Log) resetSynced(start Offset, c epochChain, t producerTable) error {
	m := l.meta
	m.pending, m.pendingTo, m.resetChain, m.resetTable = changeReset, start, c, t
	if err := l.commit(m); err != nil {
		return err
	}
	l.mu.Lock()
	gone := l.segs
	unpin := l.pinned
	l.pinned = false
	low := min(start, l.local)
	next := l.disk.newSegment(l.dir, start)
	l.segs = []*segment{next}
	l.start = min(l.start, start)
	l.local, l.end = start, start
	l.chain, l.producers = c, t
	l.freshActiveLocked()
	l.cutLocked(low)
	l.readOnly = false
	l.loaded = nil
	l.wakeLocked(&l.endMoved)
	l.wakeLocked(&l.durMoved)
	l.mu.Unlock()
	if unpin {
		gone[len(gone)-1].h.release()
	}
	for _, s := range gone {
		s.h.drop()
	}
	m, err := finishReset(l.fs, l.dir, m)
	if err != nil {
		return l.fail("reset "+l.dir, err)
	}
	return l.conclude("reset", m)
}

// finishReset does what a meta file with a reset under way says and returns the
// one without. It can be done again. All is durable when it returns.
func finishReset(fsys FS, dir string, m meta) (meta, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return m, err
	}
	for _, name := range slices.Backward(names) {
		if _, suffix, ok := parseName(name); ok && suffix != cutSuffix {
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
	n := 0
	for n < len(l.segs)-1 && l.segs[n].end <= local {
		n++
	}
	if n > 0 {
		if err := l.keepState(n); err != nil {
			return err
		}
	}
	m := l.meta
	m.start, m.local = start, local
	if err := l.commit(m); err != nil {
		return err
	}
	l.mu.Lock()
	gone := l.segs[:n]
	l.segs = slices.Clone(l.segs[n:])
	l.start, l.local = start, local
	l.chain = l.chain.trim(start)
	l.loaded = slices.DeleteFunc(l.loaded, func(s *segment) bool { return slices.Contains(gone, s) })
	l.readOnly = l.readOnly && l.damagedLocked()
	l.mu.Unlock()
	for _, s := range gone {
		s.h.drop()
		for _, suffix := range []string{logSuffix, indexSuffix, timeIndexSuffix, sealSuffix, stateSuffix} {
			if err := l.fs.Remove(s.path(suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return l.fail("remove "+s.path(suffix), err)
			}
		}
	}
	return nil
}

// keepState makes the state at the base of segs[n] durable, so that what lies
// before it may go. Requires: gate.
func (l *Log) keepState(n int) error {
	base := l.segs[n].base
	name := joinPath(l.dir, segmentName(base, stateSuffix))
	_, err := readState(l.fs, l.dir, l.id, base)
	if err == nil {
		err = l.disk.syncName(name)
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

// Producer snapshots.

func (l *Log) producerSnapshot(ctx context.Context, at Offset) ([]byte, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		l.mu.Lock()
		if l.closing {
			l.mu.Unlock()
			return nil, ErrClosed
		}
		if at < l.local || at > l.end {
			err := fmt.Errorf("%w: producer snapshot at %d, log is [%d, %d]", ErrOffsetOutOfRange, at, l.local, l.end)
			l.mu.Unlock()
			return nil, err
		}
		if at == l.end {
			b := encodeSnapshot(at, &l.producers, nowMs(), l.o.ProducerExpiry)
			l.mu.Unlock()
			return b, nil
		}
		segs, gen := l.segs, l.gen
		i := len(segs) - 1
		for i > 0 && segs[i].base > at {
			i--
		}
		limit := segs[i].size
		if !segs[i].sealed {
			limit = l.size
		}
		l.mu.Unlock()
		b, err := l.snapshotFrom(segs, i, limit, at)
		l.mu.Lock()
		again := l.gen != gen || errors.Is(err, fs.ErrNotExist) && !slices.Equal(l.segs[max(0, len(l.segs)-len(segs)):], segs)
		l.mu.Unlock()
		if !again {
			return b, err
		}
	}
}

func (l *Log) snapshotFrom(segs []*segment, i int, limit int64, at Offset) ([]byte, error) {
	producers, err := l.producersAt(segs, i)
	if err != nil {
		return nil, err
	}
	r, err := l.replay(segs[i], limit, at, producers)
	if err != nil {
		return nil, err
	}
	if r.end != at {
		return nil, fmt.Errorf("%w: producer snapshot at %d, which is inside the batch at %d", ErrOffsetOutOfRange, at, r.end)
	}
	return encodeSnapshot(at, &r.producers, nowMs(), l.o.ProducerExpiry), nil
}

// Close.

// closeClean makes all durable and leaves the marker. Requires: gate.
func (l *Log) closeClean() error {
	if _, err := l.syncTo(context.Background(), l.writesNow()); err != nil {
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
	mark.segments = append(mark.segments, l.activeInfoLocked())
	err := l.writeHelpers(seg, l.activeInfoLocked())
	for _, name := range l.helperNames(seg, l.end) {
		if err == nil {
			err = l.disk.syncName(name)
		}
	}
	if err == nil {
		var f File
		if f, err = seg.h.acquire(); err == nil {
			l.disk.enter()
			err = f.Truncate(l.size)
			l.disk.leave()
			if err == nil {
				err = l.disk.syncFile(f)
			}
			seg.h.release()
		}
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
	return nil
}

// dropOldStates removes the state files of earlier closes.
func (l *Log) dropOldStates() error {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		at, suffix, ok := parseName(name)
		if !ok || suffix != stateSuffix || at == l.end || slices.ContainsFunc(l.segs, func(s *segment) bool { return s.base == at }) {
			continue
		}
		if err := l.fs.Remove(joinPath(l.dir, name)); err != nil {
			return err
		}
	}
	return nil
}
