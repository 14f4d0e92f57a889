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

func (l *Log) truncateTo(ctx context.Context, off Offset) (Offset, error) {
	if err := l.begin(ctx); err != nil {
		return 0, err
	}
	defer l.unlockGate()
	return l.truncateGated(off, true)
}

// A replayed is the state of a segment up to some position.
type replayed struct {
	x         index
	size      int64
	end       Offset
	producers producerTable
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
		if err == nil && !l.follows(h.base, r.end) {
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
		if ended, ok := r.producers.note(b, now, l.o.ProducerExpiry); ok {
			r.x.noteEnd(ended)
		}
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
		switch {
		case base == 0:
			return producerTable{}, nil
		case l.o.ReadOnly:
			return l.kafkaProducers(base)
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

// truncateGated is TruncateTo. If not atomic, a crash may leave a part of what was
// to go, and no room on the disk is needed. Requires: gate.
func (l *Log) truncateGated(off Offset, atomic bool) (Offset, error) {
	if off < l.local {
		return 0, fmt.Errorf("%w: truncation to %d, local start is %d", ErrOffsetOutOfRange, off, l.local)
	}
	if off >= l.end && !l.readOnly {
		return l.end, l.truncateChain()
	}
	off = min(off, l.end)
	if off >= l.end && !l.unsure {
		return l.end, nil
	}
	l.holdChores()
	defer l.resumeChores()
	if err := l.syncSealed(); err != nil {
		return 0, err
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

	m := l.nextGeneration()
	m.pending, m.pendingTo = changeTruncate, r.end
	m.floorBase, m.floor = seg.base, min(r.end, max(l.durable, seg.base))
	if atomic {
		// Entries in the journal do not count any more then, so what stays must do
		// without.
		if err := l.syncJournaled(); err != nil {
			return 0, err
		}
		if err := l.commit(m); err != nil {
			return 0, err
		}
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
	durable := min(l.durable, r.end)
	l.freshActiveLocked()
	l.size, l.x = r.size, r.x
	l.durable = durable // until what stays is synced
	l.durablePos, l.durableSum = r.size, r.x.headerSum
	if l.size > 0 {
		l.firstMs = nowMs()
	}
	l.ended.cut(r.end)
	if !atomic {
		l.stated = active.base
	}
	l.cutLocked(r.end)
	l.unsure = false
	l.readOnly = l.damagedLocked()
	unpin := l.forgetSealingsLocked(seg.base)
	if l.pinned {
		l.pinned = false
		unpin = append(unpin, was)
	}
	l.mu.Unlock()
	for _, s := range unpin {
		if s.h == active.h {
			defer s.h.release() // a part of what stays may still be held, see behind.go
		} else {
			s.h.release()
		}
	}
	for _, s := range gone {
		s.h.drop()
	}
	if err := l.finishTruncation(active, r.size, !atomic); err != nil {
		return 0, l.fail("truncate "+l.dir, err)
	}
	l.mu.Lock()
	l.durable = r.end
	l.wakeLocked(&l.durMoved)
	l.mu.Unlock()
	if !atomic {
		return r.end, nil
	}
	m.pending, m.pendingTo = changeNone, 0
	m.floor = r.end
	if err := l.conclude("truncate", m); err != nil {
		return 0, err
	}
	l.forgetJournal()
	return r.end, nil
}

// nextGeneration returns the meta file after a suffix discard. Requires: gate.
func (l *Log) nextGeneration() meta {
	m := l.meta
	m.generation++
	if !l.marked {
		m.journal, m.journalLife = journalID{}, 0
	}
	return m
}

// damagedLocked reports whether a part of the log can't be read.
func (l *Log) damagedLocked() bool { return l.damagedIn(l.segs) }

func (l *Log) damagedIn(segs []*segment) bool {
	for i, s := range segs {
		if len(s.damage) > 0 || i > 0 && segs[i-1].end != s.base {
			return true
		}
	}
	return l.unsure || segs[0].base > l.local || l.end < l.local
}

// finishTruncation cuts the file and removes what lies behind it, last first. It
// can be done again. The names are durable when it returns. With first they are so
// before the file is cut: else a crash would leave what followed the part that goes,
// or, with its mark cut off, the file under the older name of a spare one.
func (l *Log) finishTruncation(active *segment, size int64, first bool) error {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Backward(names) {
		base, suffix, ok := parseName(name)
		if !ok {
			continue
		}
		first = first || base == active.base && suffix == sealSuffix
		switch {
		case base > active.base && suffix != cutSuffix,
			base == active.base && (suffix == indexSuffix || suffix == timeIndexSuffix || suffix == txnIndexSuffix || suffix == sealSuffix):
			if err := l.fs.Remove(joinPath(l.dir, name)); err != nil {
				return err
			}
		}
	}
	if first {
		// Also if there was a seal: it says more than the file is about to hold.
		if err := l.disk.syncDir(l.dir); err != nil {
			return err
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

// A tableView is what is needed to find the producers as of an offset, taken under
// mu.
type tableView struct {
	segs  []*segment
	i     int   // segment that holds the offset
	limit int64 // of its batches
	gen   uint64
	swaps uint64
}

func (l *Log) tableViewLocked(at Offset) tableView {
	v := tableView{segs: l.segs, i: len(l.segs) - 1, gen: l.gen, swaps: l.swaps}
	for v.i > 0 && v.segs[v.i].base > at {
		v.i--
	}
	v.limit = v.segs[v.i].size
	if !v.segs[v.i].sealed {
		v.limit = l.size
	}
	return v
}

// tableAt returns the state as of the batch that holds at or begins there.
func (l *Log) tableAt(v tableView, at Offset) (replayed, error) {
	producers, err := l.producersAt(v.segs, v.i)
	if err != nil {
		return replayed{}, err
	}
	return l.replay(v.segs[v.i], v.limit, at, producers)
}

// movedLocked reports whether what was read by a view, with err, may be wrong
// because the log has changed, so that it must be read again.
func (l *Log) movedLocked(v tableView, err error) bool {
	return l.gen != v.gen || l.swaps != v.swaps || errors.Is(err, fs.ErrNotExist) && !slices.Equal(l.segs[max(0, len(l.segs)-len(v.segs)):], v.segs)
}

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
		// The local start may lie inside a batch, whose segment is kept.
		if at < min(l.local, l.segs[0].base) || at > l.end {
			err := fmt.Errorf("%w: producer snapshot at %d, log is [%d, %d]", ErrOffsetOutOfRange, at, l.local, l.end)
			l.mu.Unlock()
			return nil, err
		}
		if at == l.end {
			b := encodeSnapshot(at, &l.producers, nowMs(), l.o.ProducerExpiry)
			l.mu.Unlock()
			return b, nil
		}
		v := l.tableViewLocked(at)
		l.mu.Unlock()
		r, err := l.tableAt(v, at)
		l.mu.Lock()
		again := l.movedLocked(v, err)
		l.mu.Unlock()
		switch {
		case again:
		case err != nil:
			return nil, err
		case r.end != at:
			return nil, fmt.Errorf("%w: producer snapshot at %d, which is inside the batch at %d", ErrOffsetOutOfRange, at, r.end)
		default:
			return encodeSnapshot(at, &r.producers, nowMs(), l.o.ProducerExpiry), nil
		}
	}
}
