package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
)

// A RepairSource gives batches of the same log from where else it is stored: a
// replica, the tier, a backup. It returns whole batches as they are on disk, the
// first of which begins at from and none of which goes past to; at least one, and
// about maxBytes at most. The log reads the bytes until the next call and does not
// change them. [Log.ReadBelow] of a replica is one.
type RepairSource func(ctx context.Context, from, to Offset, maxBytes int) ([]byte, error)

// Repaired is what [Log.Repair] did.
type Repaired struct {
	Damage  []*CorruptionError // what was damaged and is not any more, ascending
	Kept    []string           // files that keep the damaged bytes as they were
	Batches int                // taken from the source
	Bytes   int64
}

// errChanged says that the segment is no longer the one that was looked at.
var errChanged = errors.New("log: segment changed under its repair")

// repairBytes is what is asked of a source at a time.
const repairBytes = 1 << 20

func (l *Log) repair(ctx context.Context, lo, hi Offset, source RepairSource) (Repaired, error) {
	if lo < 0 || hi < lo {
		return Repaired{}, fmt.Errorf("%w: repair of [%d, %d)", ErrOffsetOutOfRange, lo, hi)
	}
	if l.o.ReadOnly {
		return Repaired{}, ErrOpenedReadOnly
	}
	select {
	case l.repairs <- struct{}{}:
	case <-ctx.Done():
		return Repaired{}, context.Cause(ctx)
	}
	defer func() { <-l.repairs }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l.mu.Lock()
	err := l.usableLocked()
	if err == nil {
		l.stopRepair = stop
	}
	l.mu.Unlock()
	if err != nil {
		return Repaired{}, err
	}
	defer func() {
		l.mu.Lock()
		l.stopRepair = nil
		l.mu.Unlock()
	}()
	r := repairer{l: l, ctx: ctx, source: source}
	for at := lo; at < hi; {
		l.mu.Lock()
		v := l.viewLocked(at)
		r.before, r.after = l.epochsAroundLocked(v)
		uncertain := l.readOnly && v.end > l.replayedFrom
		readOnly, gap := l.readOnly, l.segs[0].base
		if gap <= l.local {
			gap = 0
		}
		l.mu.Unlock()
		if at < gap {
			return r.done, &CorruptionError{Path: l.dir, Offset: at, End: gap, Err: errGap}
		}
		if v.seg.base >= hi || at >= v.end {
			break
		}
		err := r.segment(v, readOnly, uncertain)
		if errors.Is(err, errChanged) {
			continue
		}
		if err != nil {
			return r.done, err
		}
		at = v.end
	}
	return r.done, nil
}

// A repairer is one call of Repair.
type repairer struct {
	l      *Log
	ctx    context.Context //nolint:containedctx // one call's
	source RepairSource
	done   Repaired

	before, after Epoch // of the records around the segment at hand, -1 if unknown
}

// epochsAroundLocked returns the epochs of the records before and after a segment,
// as far as they are known.
func (l *Log) epochsAroundLocked(v view) (before, after Epoch) {
	before, after = -1, -1
	if v.seg.base > 0 {
		before = l.chain.at(v.seg.base - 1)
	}
	if i := slices.Index(l.segs, v.seg) + 1; i < len(l.segs) && l.end > v.end {
		if s := l.segs[i]; s.base == v.end && (len(s.damage) == 0 || s.damage[0].from > s.base) {
			after = l.chain.at(v.end)
		}
	}
	return before, after
}

func (r *repairer) step(Offset, int64) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	return nil
}

// segment repairs all damage of one segment:
//
//  1. the damage is found, by reading the segment,
//  2. a new file is made under another name: the whole batches of the old one, and
//     between them those of the source; it is read and judged as a whole, also
//     against the sums that are known of the old one, and synced,
//  3. the damaged bytes are copied aside, durably,
//  4. the new file takes the name of the old one, which is the one step that a crash
//     can't divide.
//
// Nothing that readers and appends need is held before 4.
func (r *repairer) segment(v view, readOnly, uncertain bool) error {
	l := r.l
	f, err := v.seg.h.acquire()
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return r.moved(v, err)
		}
		return err
	}
	defer v.seg.h.release()
	old := check{l: l, v: v, step: r.step}
	var seal sealFile
	switch {
	case v.sealed:
		seal = (&verifier{l: l}).seal(&old, func(string, error) {})
	case readOnly:
		if err := r.slotSums(f, &old); err != nil {
			return err
		}
	}
	if err := old.run(f); err != nil {
		return r.moved(v, err)
	}
	bad := joinDamage(old.damage, v.seg.damage)
	if len(bad) == 0 {
		return nil
	}
	if !v.sealed && !readOnly {
		if err := l.roll(r.ctx); err != nil {
			return err
		}
		return errChanged
	}

	name := v.seg.h.name + sideTempSuffix
	swapped := false
	defer func() {
		if !swapped {
			l.fs.Remove(name) //nolint:errcheck // the next Open removes what is left
		}
	}()
	next, err := r.build(f, v, bad, name)
	if err != nil {
		return r.moved(v, err)
	}
	defer func() {
		if next.f != nil {
			next.f.Close() //nolint:errcheck // not used
		}
	}()
	now := check{
		l: l, v: v, step: r.step, rising: uncertain, before: r.before,
		known: old.known, sums: old.sums, entries: old.entries, times: old.times,
	}
	now.v.size = next.at
	if err := r.judge(&now, next.f, seal); err != nil {
		return r.moved(v, err)
	}
	alloc := int64(0)
	if !v.sealed {
		if alloc, err = r.slots(next.f, &now); err != nil {
			return err
		}
	}
	if err := l.disk.syncFile(next.f); err != nil {
		return r.room(err)
	}
	err, next.f = next.f.Close(), nil
	if err != nil {
		return r.room(err)
	}
	kept, err := r.keep(f, v, bad)
	if err != nil {
		return err
	}
	if err := r.swap(v, name, &now, seal, alloc); err != nil {
		return err
	}
	swapped = true
	for _, d := range bad {
		r.done.Damage = append(r.done.Damage, v.seg.corruption(d).(*CorruptionError))
	}
	if kept != "" {
		r.done.Kept = append(r.done.Kept, kept)
	}
	r.done.Batches += next.batches
	r.done.Bytes += next.bytes
	l.o.Logger.Warn("segment repaired", "path", v.seg.h.name, "ranges", len(bad), "kept", kept)
	return nil
}

// moved returns errChanged in place of an error that comes of a deletion.
func (r *repairer) moved(v view, err error) error {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if r.l.closing {
		return ErrClosed
	}
	if !slices.Contains(r.l.segs, v.seg) {
		return errChanged
	}
	return err
}

func (r *repairer) room(err error) error {
	if full(err) {
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	return err
}

// slotSums reads what the slots of the active file say of its batches.
func (r *repairer) slotSums(f File, c *check) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	s, _, ok, err := newestSlot(f, size, r.l.id, c.v.seg.base)
	if err != nil || !ok {
		return err
	}
	c.sums = append(c.sums, offsetSum{s.durable, s.headers})
	if s.end > s.durable {
		c.sums = append(c.sums, offsetSum{s.end, s.endHeaders})
	}
	return nil
}

// A segmentBuilder writes the file that is to take a segment's place.
type segmentBuilder struct {
	l       *Log
	f       File
	at      int64
	batches int // from the source
	bytes   int64
}

func (w *segmentBuilder) write(b []byte) error {
	if w.at+int64(len(b)) > math.MaxInt32 {
		return fmt.Errorf("%w: what is missing does not fit into the segment", ErrTooLarge)
	}
	w.l.disk.enter()
	_, err := w.f.WriteAt(b, w.at)
	w.l.disk.leave()
	w.at += int64(len(b))
	return err
}

// copy takes the bytes [from, to) of the old file.
func (w *segmentBuilder) copy(f File, from, to int64) error {
	for from < to {
		buf := getBuffer(int(min(scanBytes, to-from)))
		w.l.disk.enter()
		err := readAt(f, buf.b, from)
		w.l.disk.leave()
		if err == nil {
			err = w.write(buf.b)
		}
		from += int64(len(buf.b))
		buf.put()
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *repairer) build(f File, v view, bad []damage, name string) (_ *segmentBuilder, err error) {
	l := r.l
	if err := l.reserve(v.size); err != nil {
		return nil, err
	}
	if err := l.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	w := &segmentBuilder{l: l}
	if w.f, err = l.fs.Create(name); err != nil {
		return nil, r.room(err)
	}
	defer func() {
		if err != nil {
			w.f.Close() //nolint:errcheck // not used
		}
	}()
	at := int64(0)
	for _, d := range bad {
		if err := w.copy(f, at, d.position); err != nil {
			return nil, r.room(err)
		}
		if err := r.fetch(w, d); err != nil {
			return nil, err
		}
		at = d.resume
	}
	if err := w.copy(f, at, v.size); err != nil {
		return nil, r.room(err)
	}
	return w, nil
}

// fetch takes the batches of damage from the source.
func (r *repairer) fetch(w *segmentBuilder, d damage) error {
	for next := d.from; next < d.to; {
		if err := r.step(0, 0); err != nil {
			return err
		}
		b, err := r.source(r.ctx, next, d.to, repairBytes)
		if err != nil {
			if r.ctx.Err() != nil {
				return context.Cause(r.ctx)
			}
			return fmt.Errorf("log: repair [%d, %d): source at %d: %w", d.from, d.to, next, err)
		}
		if err := r.l.inspect(b, false, true); err != nil {
			return fmt.Errorf("%w: at %d: %w", ErrRepairSource, next, err)
		}
		for rest := b; len(rest) > 0; {
			h, err := parseHeader(rest)
			if err != nil || h.base != next || h.last >= d.to {
				return fmt.Errorf("%w: offsets [%d, %d) at %d, wanted are [%d, %d)", ErrRepairSource, h.base, h.last+1, next, d.from, d.to)
			}
			next = h.last + 1
			rest = rest[h.size:]
			w.batches++
		}
		if err := w.write(b); err != nil {
			return r.room(err)
		}
		w.bytes += int64(len(b))
	}
	return nil
}

// judge reads the new file as a whole.
func (r *repairer) judge(c *check, f File, seal sealFile) error {
	if err := c.run(f); err != nil {
		return err
	}
	if len(c.damage) > 0 {
		d := c.damage[0]
		return fmt.Errorf("%w: offsets [%d, %d): %w", ErrRepairSource, d.from, d.to, d.err)
	}
	if seal.headers != nil && seal.info.size != c.v.size {
		return fmt.Errorf("%w: the segment would have %d bytes, it had %d", ErrRepairSource, c.v.size, seal.info.size)
	}
	if c.rising && r.after >= 0 && c.lastEpoch > r.after {
		return fmt.Errorf("%w: epoch %d before %d", ErrRepairSource, c.lastEpoch, r.after)
	}
	return nil
}

// slots readies the new file for appends: with room, and the known durable end.
func (r *repairer) slots(f File, c *check) (int64, error) {
	l := r.l
	alloc := slotPosition(c.v.size)
	if err := l.reserve(alloc + slotArea - c.v.size); err != nil {
		return 0, err
	}
	l.disk.enter()
	err := f.Preallocate(c.v.size, alloc+slotArea-c.v.size)
	l.disk.leave()
	if err != nil {
		return 0, r.room(err)
	}
	l.mu.Lock()
	s := l.slotLocked(c.v.seg)
	l.slotSeq += 2
	seq := l.slotSeq
	l.mu.Unlock()
	s.durable, s.position, s.headers, s.epoch = c.v.end, c.v.size, c.x.headerSum, c.lastEpoch
	s.end, s.endHeaders, s.written = s.durable, s.headers, s.position
	for i := range uint64(2) {
		s.sequence = seq - 1 + i
		if err := l.writeSlot(f, s, alloc); err != nil {
			return 0, r.room(err)
		}
	}
	return alloc, nil
}

// keep copies the damaged bytes aside, and of the active file what lies behind.
func (r *repairer) keep(f File, v view, bad []damage) (string, error) {
	l := r.l
	from, to := bad[0].position, int64(0)
	for _, d := range bad {
		to = max(to, d.resume)
	}
	to = min(to, v.size)
	if !v.sealed {
		size, err := f.Size()
		if err != nil {
			return "", err
		}
		end, err := l.lastByte(f, v.size, size)
		if err != nil {
			return "", err
		}
		if end > v.size {
			to = end
		}
	}
	if to <= from {
		return "", nil // nothing is there
	}
	b := make([]byte, min(to-from, maxCutBytes))
	for at := 0; at < len(b); at += 4096 {
		part := b[at:min(at+4096, len(b))]
		if err := readAt(f, part, from+int64(at)); err != nil {
			clear(part) // the disk can't read it
		}
	}
	name := joinPath(l.dir, fmt.Sprintf("%020d.%d%s", int64(v.seg.base), from, cutSuffix))
	if err := writeNew(l.fs, name, b, true); err != nil {
		l.fs.Remove(name) //nolint:errcheck // as far as it was written
		return "", r.room(err)
	}
	if err := l.dropOldCuts(append(r.done.Kept, name)...); err != nil {
		return "", err
	}
	return name, l.disk.syncDir(l.dir)
}

// swap puts the new file in the place of the old one, and lifts the read-only state
// if that was the last damage.
func (r *repairer) swap(v view, name string, c *check, seal sealFile, alloc int64) error {
	l := r.l
	if err := l.begin(r.ctx); err != nil {
		return err
	}
	defer l.unlockGate()
	if err := l.settle(); err != nil {
		return err
	}
	if err := l.takeSync(); err != nil {
		return err
	}
	defer l.freeSync()
	l.mu.Lock()
	i := slices.Index(l.segs, v.seg)
	same := i >= 0 && v.sealed == v.seg.sealed && l.cutSinceLocked(v.gen) >= v.end &&
		(v.sealed || l.readOnly && l.end == v.end && l.size == v.size)
	l.mu.Unlock()
	if !same {
		return errChanged
	}
	if err := l.beginChange(); err != nil {
		return err
	}
	if err := l.fs.Rename(name, v.seg.h.name); err != nil {
		return l.fail("repair "+v.seg.h.name, err)
	}
	if err := l.disk.syncDir(l.dir); err != nil {
		return l.fail("repair "+v.seg.h.name, err)
	}
	next := l.disk.newSegment(l.dir, v.seg.base)
	if v.sealed {
		next.segmentInfo = v.seg.segmentInfo
		next.size, next.maxTimestamp, next.maxAt = c.v.size, c.x.maxTimestamp, c.x.maxAt
		next.sealed = true
	} else {
		next.aborted = v.seg.aborted
	}
	segs := slices.Clone(l.segs)
	segs[i] = next
	size, x := l.size, l.x
	if !v.sealed {
		size, x = c.v.size, c.x
	}
	lifted := l.readOnly && !l.damagedIn(segs)
	chain, producers := l.chain, l.producers
	var corrupt error
	if lifted {
		// What recovery made of the batches had holes.
		var err error
		chain, producers, x, err = l.reread(segs, size)
		if _, ok := errors.AsType[*CorruptionError](err); ok {
			lifted, corrupt = false, err
			chain, producers = l.chain, l.producers
			x = l.x
			if !v.sealed {
				x = c.x
			}
		} else if err != nil {
			return l.fail("repair "+l.dir, err)
		}
	}
	l.mu.Lock()
	l.segs = segs
	l.swaps++
	l.loaded = slices.DeleteFunc(l.loaded, func(s *segment) bool { return s == v.seg })
	if !v.sealed {
		l.size, l.x = size, x
		l.alloc, l.allocBefore, l.growth = alloc, 0, 0
		l.spared, l.stale = false, 0
		l.durable, l.durablePos, l.durableSum = l.end, size, x.headerSum
		l.synced, l.filed = l.writes, l.writes
		l.stated = l.end // by the slots of the new file
		l.cutTailLocked(l.end)
	}
	if lifted {
		l.readOnly = false
		l.chain, l.producers, l.x = chain, producers, x
		l.ended = endedTxns{from: l.end}
		if !v.sealed {
			next.aborted = 0
		}
	}
	l.mu.Unlock()
	if !v.sealed {
		l.forgetJournal()
	}
	v.seg.h.drop()
	if v.sealed && (seal.headers == nil || c.badIndex || c.badTimes || c.entries == nil || c.times == nil) {
		l.remakeHelpers(next, &scan{x: c.x}, false)
	}
	return corrupt
}

// reread finds epoch chain and producers from the newest state, and the index of
// the active segment. Requires: gate.
func (l *Log) reread(segs []*segment, size int64) (epochChain, producerTable, index, error) {
	from, state, err := l.newestState()
	if err != nil {
		return nil, producerTable{}, index{}, err
	}
	chain, producers := state.chain, state.producers
	var x index
	for _, s := range segs[from:] {
		limit, end := s.size, s.end
		if !s.sealed {
			limit, end = size, l.end
		}
		part := &segment{dir: s.dir, h: s.h, segmentInfo: segmentInfo{base: s.base, end: end}}
		r := scan{seg: part, limit: limit, durable: end, sealed: true, durablePos: -1, epoch: -1, chain: chain, producers: &producers, note: true}
		if err := l.scan(&r); err != nil {
			return nil, producerTable{}, index{}, err
		}
		if len(part.damage) > 0 {
			return nil, producerTable{}, index{}, part.corruption(part.damage[0])
		}
		chain, x = r.chain, r.x
	}
	return chain.trim(l.start), producers, x, nil
}
