package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// A scan checks the batches of a segment.
type scan struct {
	seg        *segment
	limit      int64  // of the file
	durable    Offset // records below were durable
	durablePos int64  // where they end, -1 if unknown
	epoch      Epoch  // of the last of them, -1 if unknown
	sum        uint32 // over their headers, if durablePos >= 0 and checkSum
	checkSum   bool
	groupEnd   Offset // where the group behind them ends, 0 if unknown
	groupSum   uint32 // over all headers below it
	note       bool   // batches change chain and producers
	sealed     bool   // nothing is expected behind durable
	bounded    bool   // nothing behind bound, which is durable or above, is believed
	bound      Offset

	chain     epochChain
	producers *producerTable

	x    index
	end  Offset
	at   int64 // position of the end
	torn error // why the scan ended before limit, if not by damage

	before struct { // the batch before, if it began an epoch
		base  Offset
		at    int64
		valid bool
	}
}

// recant takes back the epoch that the batch before began, because the next one
// has a lower epoch again: one of both is damaged, and it is the one that stands
// alone. It reports whether that is so.
func (r *scan) recant(h header) bool {
	n := len(r.chain)
	if !r.before.valid || h.base >= r.durable || n > 1 && r.chain[n-2].Epoch > h.epoch {
		return false
	}
	r.chain = r.chain[: n-1 : n-1]
	r.seg.damage = append(r.seg.damage, damage{from: r.before.base, to: h.base, position: r.before.at, resume: r.at, err: errEpoch})
	r.before.valid = false
	return true
}

// forget takes back the epochs that began at off or later, because one of them is
// damaged: a raised one would make all that follows look too old.
func (r *scan) forget(off Offset) {
	if r.note {
		r.chain = r.chain.truncate(off)
	}
}

// scan reads a segment, notes its batches and its damage, and stops at the first
// bad bytes that were not known durable.
func (l *Log) scan(r *scan) error {
	f, err := r.seg.h.acquire()
	if err != nil {
		return err
	}
	defer r.seg.h.release()
	r.x = newIndex()
	r.end = r.seg.base
	sc := newScanner(l.disk, f, 0, r.limit)
	sc.gaps = l.foreign.gaps
	defer sc.close()
	anchor := func(p int64) bool { return r.durablePos > 0 && p == r.durablePos }
	now := nowMs()
	summed := !r.checkSum
	for {
		r.at = sc.at
		if !summed && r.end >= r.durable {
			summed = true
			if len(r.seg.damage) == 0 && (r.end != r.durable || r.x.headerSum != r.sum) {
				// Every batch is whole and they follow each other: what is left is an epoch.
				r.seg.damage = append(r.seg.damage, damage{from: r.seg.base, to: r.durable, position: 0, resume: sc.at, err: errEpoch})
				r.forget(r.seg.base)
			}
		}
		if r.sealed && r.end >= r.durable {
			return nil
		}
		if r.groupEnd > r.durable && r.end == r.groupEnd && len(r.seg.damage) == 0 && r.x.headerSum != r.groupSum {
			r.seg.damage = append(r.seg.damage, damage{from: r.durable, to: r.end, position: max(0, r.durablePos), resume: sc.at, err: errEpoch})
			r.forget(r.durable)
		}
		if r.bounded && r.end >= r.bound {
			return nil
		}
		b, h, err := sc.next()
		if errors.Is(err, io.EOF) {
			if r.end < r.durable && !l.foreign.gaps {
				r.seg.damage = append(r.seg.damage, damage{from: r.end, to: r.durable, position: sc.at, resume: r.limit, err: errShort})
				r.end = r.durable
			}
			return nil
		}
		if err == nil {
			switch {
			case !l.follows(h.base, r.end):
				err = errFollows
			case r.note && h.epoch < r.chain.last(), r.note && r.epoch >= 0 && h.base < r.durable && h.epoch > r.epoch,
				!r.note && h.last >= l.start && h.epoch != r.chain.at(h.base):
				err = errEpoch
			}
			if errors.Is(err, errEpoch) && r.note && h.epoch < r.chain.last() && r.recant(h) {
				err = nil
			}
			if err == nil {
				l.noteForeign(r.seg, h, r.end)
				r.x.note(r.seg.base, b.Bytes()[:21], h.last, h.maxTimestamp, r.at, h.size)
				if r.note {
					r.before.base, r.before.at, r.before.valid = h.base, r.at, h.epoch > r.chain.last()
					r.chain = r.chain.assign(h.epoch, h.base)
					if ended, ok := r.producers.note(b, now, l.o.ProducerExpiry); ok {
						r.x.noteEnd(ended)
					}
				}
				r.end = h.last + 1
				continue
			}
			sc.at = r.at
		}
		if !bytesBad(err) {
			return err
		}
		if r.end >= r.durable {
			r.torn = err
			return nil
		}
		d := damage{from: r.end, position: sc.at, err: err}
		if errors.Is(err, errEpoch) && h.base == r.end {
			// The batch is whole but for its epoch, so the next one stands behind it.
			d.to, d.resume = h.last+1, sc.at+h.size
		} else {
			p, next, ok, err := sc.resync(sc.at, r.end-1, r.durable, r.durable, anchor)
			if err != nil {
				return err
			}
			if !ok {
				d.to, d.resume = r.durable, r.limit
				if r.durablePos > sc.at {
					d.resume = min(r.durablePos, r.limit)
				}
				if d.resume != r.durablePos {
					r.seg.damage = append(r.seg.damage, d)
					r.end = r.durable
					r.at = d.resume
					return nil
				}
				// What stands behind may have been acknowledged.
			} else {
				d.to, d.resume = next.base, p
			}
		}
		r.seg.damage = append(r.seg.damage, d)
		r.end = d.to
		sc.at = d.resume
	}
}

// openActive reads the active segment and cuts its torn tail.
func (l *Log) openActive(floor Offset) error {
	seg := l.active()
	f, err := seg.h.acquire()
	if err != nil {
		return err
	}
	defer seg.h.release()
	size, err := f.Size()
	if err != nil {
		return err
	}
	r := scan{seg: seg, limit: size, durable: max(seg.base, floor), durablePos: -1, epoch: -1, chain: l.chain, producers: &l.producers, note: true}
	if l.meta.floorBase == seg.base {
		r.durable = max(r.durable, l.meta.floor)
	}
	s, written, slots, err := newestSlot(f, size, l.id, seg.base)
	if err != nil {
		return err
	}
	switch {
	case slots && s.durable >= r.durable:
		r.durable, r.durablePos, r.sum, r.checkSum, r.epoch = s.durable, s.position, s.headers, true, s.epoch
		r.groupEnd, r.groupSum = s.end, s.endHeaders
	case !slots:
		// A crash between the cut of a file that was being sealed and its successor.
		if payload, err := readSide(l.fs, seg.path(sealSuffix), sealMagic, sealVersion); err == nil {
			if f, err := decodeSeal(payload); err == nil && f.id == l.id && f.info.base == seg.base && f.info.size == size {
				r.durable = max(r.durable, f.info.end)
			}
		}
	}
	l.stated = max(l.stated, r.durable)
	if e := &l.lastEntry; e.end > r.durable {
		r.durable, r.durablePos, r.sum, r.checkSum, r.epoch = e.end, e.position+int64(e.size), e.headers, true, e.epoch
		s.firstAppendMs = e.firstAppendMs
	}
	if l.journaled > r.durable {
		r.durable, r.durablePos, r.checkSum, r.epoch = l.journaled, -1, false, -1
	}
	if l.stale, l.spared, err = readMark(f, size, l.id); err != nil {
		return err
	}
	var least int64 // bytes to keep aside
	if l.stale > 0 {
		// See spare.go: bytes of an earlier life may look like anything.
		r.bounded, r.bound = true, r.durable
		if slots && s.end > r.durable {
			least = tornBytes
			whole, err := l.groupWhole(f, size, s)
			if err != nil {
				return err
			}
			if whole {
				r.bound, least = s.end, 0
			}
		}
	}
	if err := l.scan(&r); err != nil {
		return err
	}
	l.chain = r.chain
	l.x, l.end, l.size = r.x, r.end, r.at
	l.ended.from = l.end
	l.recovery.DurableEnd = r.durable
	l.durable, l.durablePos, l.durableSum = seg.base, 0, 0
	l.slotSeq = s.sequence
	l.firstMs = s.firstAppendMs
	if l.firstMs == 0 && l.size > 0 {
		l.firstMs = nowMs()
	}
	if len(seg.damage) > 0 || l.unsure && !l.o.ReadOnly {
		l.durable, l.durablePos = l.end, l.size
		if l.journaled > 0 {
			return l.keepFloor()
		}
		return nil // read-only: nothing is touched
	}
	if l.o.ReadOnly {
		return l.finishReadOnly(f, size)
	}
	if r.durablePos >= 0 {
		l.durable, l.durablePos, l.durableSum = r.durable, r.durablePos, r.sum
	}
	if size > l.size {
		if l.alloc, err = l.cutTail(f, size, least, written); err != nil {
			return fmt.Errorf("cut the tail of %s: %w", seg.h.name, err)
		}
	}
	if s.near > l.size {
		l.near.newest, l.near.leave = s.near, true
	}
	l.writes++
	if l.alloc == 0 && l.size > 0 {
		if err := l.keepFloor(); err != nil {
			return err
		}
		if err := l.grow(f, l.size); err != nil && !errors.Is(err, ErrDiskFull) {
			return err
		}
	}
	if _, err := l.syncFileTo(context.Background(), l.writes); err != nil {
		return err
	}
	l.counts = Stats{}
	return nil
}

// keepFloor puts the known durable end into the meta file, before a change of the
// active file's size takes away what states it. A full disk must not keep the log
// closed.
func (l *Log) keepFloor() error {
	m := l.meta
	base, floor := l.active().base, l.recovery.DurableEnd
	if floor <= base || m.floorBase == base && m.floor >= floor {
		return nil
	}
	m.floorBase, m.floor = base, floor
	err := l.commitOpen(m)
	if err == nil {
		l.stated = max(l.stated, floor)
		return nil
	}
	if !full(err) {
		return fmt.Errorf("replace %s in %s: %w", metaName, l.dir, err)
	}
	return nil
}

// cutTail removes what stands behind the last whole batch: nothing if that is only
// preallocated space, whose slots it then returns the position of. Slots that say that
// more was written are removed, too: the next ones must not stand below that.
func (l *Log) cutTail(f File, size, least, written int64) (int64, error) {
	seg := l.active()
	var keep int64
	var err error
	if l.stale > 0 {
		keep, err = l.tornEnd(f, l.size, size)
		keep = min(max(keep, l.size+least), size)
	} else {
		keep, err = l.lastByte(f, l.size, size)
	}
	if err != nil {
		return 0, err
	}
	if keep == l.size && l.stale == 0 && written <= l.size {
		for _, p := range slotPositions(size) {
			if p+slotArea == size && p >= l.size {
				return p, nil
			}
		}
	} else if keep > l.size {
		l.recovery.CutBytes = keep - l.size
		path := joinPath(l.dir, fmt.Sprintf("%020d.%d%s", int64(seg.base), l.size, cutSuffix))
		tail := make([]byte, min(keep-l.size, maxCutBytes))
		if err := readAt(f, tail, l.size); err != nil {
			return 0, err
		}
		err := writeNew(l.fs, path, tail, true)
		switch {
		case err == nil:
			l.recovery.CutPath = path
			if err := l.dropOldCuts(path); err != nil {
				return 0, err
			}
		case !full(err):
			return 0, err
		default:
			l.fs.Remove(path) //nolint:errcheck // a full disk must not keep the log closed
		}
	}
	if err := l.keepFloor(); err != nil {
		return 0, err
	}
	l.spared, l.stale = false, 0
	if err := f.Truncate(l.size); err != nil {
		return 0, err
	}
	if err := l.disk.syncFile(f); err != nil {
		return 0, err
	}
	return 0, l.disk.syncDir(l.dir)
}

// lastByte returns the position behind the last byte in [at, size) that is neither
// zero nor of a slot; at if there is none.
func (l *Log) lastByte(f File, at, size int64) (int64, error) {
	keep := at
	for ; at < size; at += scanBytes {
		buf := getBuffer(int(min(scanBytes, size-at)))
		if err := readAt(f, buf.b, at); err != nil {
			buf.put()
			return 0, err
		}
		l.blankSlots(buf.b, at, size)
		for i, c := range buf.b {
			if c != 0 {
				keep = at + int64(i) + 1
			}
		}
		buf.put()
	}
	return keep, nil
}

// tornEnd is lastByte for a recycled file, in which anything may lie behind the last
// batch: it returns where the last batch ends that began to be written at the end of
// the log or above, by what its header says; at if there is none within reach.
func (l *Log) tornEnd(f File, at, size int64) (int64, error) {
	keep := at
	sc := newScanner(l.disk, f, at, min(size, at+tornReach))
	defer sc.close()
	for p := at; p+record.HeaderBytes <= sc.limit; p++ {
		b, err := sc.window(p, record.HeaderBytes)
		if err != nil {
			return 0, err
		}
		if b[16] != 2 || b[0] != 0 {
			continue
		}
		if h, err := parseHeader(b); err == nil && h.base >= l.end && h.base-l.end < tornReach {
			keep = min(max(keep, p+h.size), size)
		}
	}
	return keep, nil
}

// tornReach bounds, in bytes and in offsets, how far behind the end of the log what
// was written last is looked for.
const tornReach = 8 << 20

// tornBytes are kept aside of a group of which no header may be left.
const tornBytes = 64 << 10

// maxCutBytes bounds the copy of a torn tail.
const maxCutBytes = 64 << 20

// blankSlots zeroes the valid slots in b, which starts at position at.
func (l *Log) blankSlots(b []byte, at, size int64) {
	for p := at / slotGap * slotGap; p < at+int64(len(b)); p += slotGap {
		for _, q := range [2]int64{p + nearOffset, p + nearOffset + nearGap} {
			if q >= at && q+slotBytes <= at+int64(len(b)) {
				if s, ok := decodeSlot(b[q-at:]); ok && s.id == l.id {
					clear(b[q-at:][:slotBytes])
				}
			}
		}
	}
	for _, p := range slotPositions(size) {
		for _, q := range [2]int64{p, p + slotGap} {
			if q >= at && q+slotBytes <= at+int64(len(b)) {
				if s, ok := decodeSlot(b[q-at:]); ok && s.id == l.id {
					clear(b[q-at:][:slotBytes])
				}
			}
			if q += markOffset; q >= at && q+markBytes <= at+int64(len(b)) {
				if _, ok := decodeMark(b[q-at:], l.id); ok {
					clear(b[q-at:][:markBytes])
				}
			}
		}
	}
}

// dropOldCuts keeps the number of copies small, the newest beside those to keep.
func (l *Log) dropOldCuts(keep ...string) error {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return err
	}
	type cut struct {
		path string
		made time.Time
	}
	var cuts []cut
	for _, n := range names {
		path := joinPath(l.dir, n)
		if _, suffix, ok := parseName(n); !ok || suffix != cutSuffix || slices.Contains(keep, path) {
			continue
		}
		fi, err := l.fs.Stat(path)
		if err != nil {
			return err
		}
		cuts = append(cuts, cut{path, fi.ModTime})
	}
	slices.SortStableFunc(cuts, func(a, b cut) int { return a.made.Compare(b.made) })
	for len(cuts) >= maxCutFiles {
		if err := l.fs.Remove(cuts[0].path); err != nil {
			return err
		}
		cuts = cuts[1:]
	}
	return nil
}
