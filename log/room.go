package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// maxRoomWaits bounds the syncs and steps that one call waits for. One sync makes all
// slots durable that are written, and one step is enough for any need.
const maxRoomWaits = 8

var errRoom = errors.New("slots are not durable though they were synced")

// makeRoom readies the active file for bytes up to need: the marker of a clean
// close is gone and there are slots behind. Requires: gate.
func (l *Log) makeRoom(f File, need int64) error {
	for waits := 0; ; waits++ {
		limit, pending := l.roomLimit(need)
		if need <= limit {
			break
		}
		if waits > maxRoomWaits {
			return l.fail("make room in "+l.active().h.name, errRoom)
		}
		if pending {
			if _, err := l.syncFileTo(context.Background(), l.writesNow()); err != nil {
				return err
			}
			continue
		}
		if err := l.grow(f, need); err != nil {
			return err
		}
	}
	// Grow early, so that a sync that comes anyway makes the new slots durable and
	// nobody has to wait for one. The journal leaves such syncs to the background, where
	// many logs may be in line: earlier, and fewer and larger steps.
	early := l.alloc - l.alloc/4
	if l.marked {
		early = l.alloc / 2
	}
	if l.changed && need > early && l.alloc < l.o.SegmentBytes {
		if _, pending := l.roomLimit(0); !pending {
			to := l.alloc + 1
			if l.marked {
				to = max(to, min(2*to, l.o.SegmentBytes))
			}
			if err := l.grow(f, to); err != nil && !errors.Is(err, ErrDiskFull) {
				return err
			}
		}
	}
	return l.beginChange()
}

// roomLimit returns up to where batches may be written now, of bytes up to need.
// While new slots are not durable yet (pending), that is the old ones.
func (l *Log) roomLimit(need int64) (limit int64, pending bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit = l.alloc
	if l.growth != 0 {
		limit, pending = l.allocBefore, true
	}
	if at := l.near.lowest(); at > 0 && at < min(need, limit) {
		// The next sync writes a slot at the end.
		l.near.leave, l.near.reach = true, nearRest
		l.writes++
		return at, true
	}
	return limit, pending
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
	// Its slots would say that all before is durable.
	if err := l.syncSealed(); err != nil {
		return err
	}
	name := l.active().h.name
	l.disk.enter()
	err := f.Preallocate(from, to+slotArea-from)
	if err != nil && full(err) && l.disk.freeSpares() {
		err = f.Preallocate(from, to+slotArea-from)
	}
	l.disk.leave()
	if err == nil && l.spared {
		err = l.writeMarks(f, to, l.stale)
	}
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
	// For the pin, since the use of the caller stays its own; before it is noted, since a
	// sync may end it at once.
	seg := l.active()
	if _, err := seg.h.acquire(); err != nil {
		return l.fail("open "+name, err)
	}
	l.mu.Lock()
	l.allocBefore, l.alloc = l.alloc, to
	l.writes++
	soon := false
	if l.size > 0 {
		l.growth = l.writes
		soon = l.marked
	}
	keep := l.pinLocked()
	l.mu.Unlock()
	if !keep {
		seg.h.release()
	}
	if soon {
		l.disk.journal.flushSoon(l)
	}
	return nil
}

// reserve says whether the disk has n bytes for this log, if need be when the
// background is done, and without the spare files. Requires: gate, not the sync
// token.
func (l *Log) reserve(n int64) error {
	err := l.room(n)
	if errors.Is(err, ErrDiskFull) {
		if err := l.settle(); err != nil && !full(err) {
			return err
		}
		err = l.room(n)
	}
	if errors.Is(err, ErrDiskFull) && l.disk.freeSpares() {
		err = l.room(n)
	}
	return err
}

// room is reserve that leaves the spare files alone.
func (l *Log) room(n int64) error {
	keep := l.disk.o.ReserveBytes
	if keep == 0 || l.o.UseReserve {
		return nil
	}
	l.mu.Lock()
	for _, s := range l.sealings {
		n += s.roomBytes()
	}
	l.mu.Unlock()
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
	l.disk.freeSpares() // for who tries again
	if err := l.syncSealed(); err != nil {
		return err
	}
	if err := l.takeSync(); err != nil {
		return err
	}
	defer l.freeSync()
	name := l.active().h.name
	err := l.nameActive()
	if err == nil {
		l.disk.enter()
		err = f.Truncate(l.size)
		l.disk.leave()
	}
	if err == nil {
		err = l.disk.syncFile(f)
	}
	if err != nil {
		return l.fail("roll back in "+name, err)
	}
	l.mu.Lock()
	l.alloc, l.spared, l.stale, l.growth = 0, false, 0, 0
	l.near = nearSlots{}
	l.synced, l.filed = l.writes, l.writes
	l.durable, l.durablePos, l.durableSum = l.end, l.size, l.x.headerSum
	l.stated = l.active().base
	l.cutTailLocked(l.end)
	unpin := l.pinned
	l.pinned = false
	l.wakeLocked(&l.durMoved)
	l.mu.Unlock()
	if unpin {
		l.active().h.release()
	}
	return nil
}

// nameActive makes the name of the active file durable, before the mark goes by which
// it is found under its older one. Requires: gate.
func (l *Log) nameActive() error {
	if !l.spared {
		return nil
	}
	return l.disk.syncDir(l.dir)
}

// beginChange removes the marker of a clean close, durably. Requires: gate.
func (l *Log) beginChange() error {
	if l.changed {
		return nil
	}
	if err := l.unmarkJournal(); err != nil {
		if full(err) {
			return fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return l.fail("replace "+metaName+" in "+l.dir, err)
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
