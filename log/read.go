package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"sort"

	"github.com/cordwood-io/cordwood/log/record"
)

// A view is what a reader needs of one segment, taken under mu.
type view struct {
	seg     *segment
	sealed  bool
	end     Offset // of the segment
	size    int64
	entries []indexEntry // of the active segment
	times   []timeEntry
	chain   epochChain
	start   Offset // of the log: the chain knows nothing below
	gen     uint64
	swaps   uint64
}

// viewLocked returns the view of the segment that holds off, or of the last one
// that begins at or below it.
func (l *Log) viewLocked(off Offset) view {
	i := sort.Search(len(l.segs), func(i int) bool { return l.segs[i].base > off })
	return l.viewAtLocked(max(i-1, 0))
}

func (l *Log) viewAtLocked(i int) view {
	seg := l.segs[i]
	v := view{seg: seg, sealed: seg.sealed, end: seg.end, size: seg.size, chain: l.chain, start: l.start, gen: l.gen, swaps: l.swaps}
	if !seg.sealed {
		v.end, v.size, v.entries, v.times = l.end, l.size, l.x.offsets, l.x.times
	}
	return v
}

// slackBytes is how much is read in front of the wanted batch rather than looked
// at by a call of its own.
const slackBytes = 16 << 10

// bounds say what a reader may get.
type bounds struct {
	below   Offset // batches that end here at most
	durable bool   // and are durable
	follows bool   // the reader has read what lies before, at generation gen
	gen     uint64
}

func (l *Log) read(ctx context.Context, from Offset, maxBytes int, o bounds) (*Slice, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		l.mu.Lock()
		if l.closing {
			l.mu.Unlock()
			return nil, ErrClosed
		}
		// Judged anew after each cut: what is at from now may follow other records than
		// those that the reader has.
		if err := l.cutErrorLocked(from, o); err != nil {
			l.mu.Unlock()
			return nil, err
		}
		if from < l.start || from > l.end || from < l.local {
			err := l.rangeErrorLocked(from)
			l.mu.Unlock()
			return nil, err
		}
		below := min(o.below, l.end)
		if o.durable {
			below = min(below, l.durable)
		}
		if from >= below {
			l.mu.Unlock()
			return &Slice{base: from, end: from}, nil
		}
		v := l.viewLocked(from)
		if from < v.seg.base || from >= v.end {
			err := l.gapLocked(v, from)
			l.mu.Unlock()
			return nil, err
		}
		l.mu.Unlock()

		s, err := l.readView(v, from, below, maxBytes)
		if err == nil && s.Len() == 0 && s.end > from {
			from = s.end // a gap up to the segment's end
			s.Release()
			continue
		}

		l.mu.Lock()
		again := l.gen != v.gen && l.cutSinceLocked(v.gen) < v.end ||
			l.swaps != v.swaps && !slices.Contains(l.segs, v.seg) ||
			errors.Is(err, fs.ErrNotExist) && (from < l.local || !slices.Contains(l.segs, v.seg))
		closing := l.closing
		if err == nil && !again {
			s.gen = v.gen
			l.counts.Reads++
			l.counts.ReadBytes += int64(len(s.b))
		}
		l.mu.Unlock()
		if !again {
			if err != nil && closing {
				return nil, ErrClosed
			}
			return s, err
		}
		// The segment was cut, replaced or deleted under the reader: what was read may be a mix.
		if s != nil {
			s.Release()
		}
	}
}

// gapLocked is the error for an offset that no segment file holds.
func (l *Log) gapLocked(v view, from Offset) error {
	c := &CorruptionError{Path: l.dir, Offset: min(l.local, v.seg.base), End: v.seg.base, Err: errGap}
	if from >= v.end {
		c.Path, c.Offset, c.End, c.Position = v.seg.path(logSuffix), v.end, l.end, v.size
		if i := slices.Index(l.segs, v.seg); i+1 < len(l.segs) {
			c.End = l.segs[i+1].base
		}
	}
	return c
}

func (l *Log) rangeErrorLocked(from Offset) error {
	if from >= l.start && from < l.local {
		return fmt.Errorf("%w: %d, local start is %d", ErrBelowLocalStart, from, l.local)
	}
	return fmt.Errorf("%w: %d is not in [%d, %d]", ErrOffsetOutOfRange, from, l.start, l.end)
}

// readView reads whole batches from the one that holds from on.
func (l *Log) readView(v view, from, below Offset, maxBytes int) (*Slice, error) {
	f, err := v.seg.h.acquire()
	if err != nil {
		return nil, err
	}
	defer v.seg.h.release()
	entries := v.entries
	if v.sealed {
		x, err := l.loadIndex(v.seg, f)
		if err != nil {
			return nil, err
		}
		entries = x.offsets
	}
	for _, d := range v.seg.damage {
		if from >= d.from && from < d.to {
			return nil, v.seg.corruption(d)
		}
	}
	at, next := find(entries, v.seg.base, from)
	if next < 0 {
		next = v.size
	}
	for _, d := range v.seg.damage {
		if d.to <= from && d.resume > at {
			at = d.resume
		}
	}
	if next-at > slackBytes {
		if at, err = l.walk(f, v, at, from); err != nil {
			return nil, err
		}
	}
	want := max(maxBytes, record.HeaderBytes)
	n := min(v.size-at, int64(max(want, slackBytes)))
	for {
		buf := getBuffer(int(n))
		l.disk.enter()
		err := readAt(f, buf.b, at)
		l.disk.leave()
		if err != nil {
			buf.put()
			if !bytesBad(err) {
				return nil, err
			}
			return nil, v.seg.corruption(damage{from: from, position: at, err: err})
		}
		s, need, err := l.cut(buf, v, at, from, below, maxBytes)
		if need = min(need, v.size-at); need > n {
			buf.put()
			n = need
			continue
		}
		if err == nil && need > 0 {
			err = errShort
		}
		if err != nil {
			buf.put()
			if !bytesBad(err) {
				return nil, err
			}
			return l.readPast(f, v, from, below, maxBytes, entries, err)
		}
		return s, nil
	}
}

func (s *segment) corruption(d damage) error {
	return &CorruptionError{Path: s.path(logSuffix), Position: d.position, Offset: d.from, End: d.to, Err: d.err}
}

// walk steps over large batches by their headers and returns the position of the
// batch that holds off, or of one shortly before it.
func (l *Log) walk(f File, v view, at int64, off Offset) (int64, error) {
	b := getBuffer(record.HeaderBytes)
	defer b.put()
	next := Offset(-1)
	for at+record.HeaderBytes <= v.size {
		l.disk.enter()
		err := readAt(f, b.b, at)
		l.disk.leave()
		if err != nil {
			return at, err
		}
		h, err := parseHeader(b.b)
		if err != nil || next >= 0 && !l.follows(h.base, next) || h.last >= off || at+h.size > v.size {
			return at, nil // cut judges it
		}
		next = h.last + 1
		at += h.size
	}
	return at, nil
}

// cut makes a Slice of the batches in buf, which starts at position at with a
// batch at or before the one that holds from. If need is not 0, the first batch
// wants that many bytes from at on.
func (l *Log) cut(buf *buffer, v view, at int64, from, below Offset, maxBytes int) (s *Slice, need int64, err error) {
	b := buf.b
	pos, first := 0, -1
	next := Offset(-1)
	out := &Slice{buf: buf, base: from, end: from}
	for at+int64(pos) < v.size {
		if len(b)-pos < record.HeaderBytes {
			if first < 0 {
				return nil, int64(pos) + max(int64(maxBytes), record.HeaderBytes), nil
			}
			break
		}
		h, err := parseHeader(b[pos:])
		if err == nil {
			err = l.judge(h, v, at+int64(pos), next)
		}
		if err != nil {
			if first >= 0 {
				break
			}
			return nil, 0, err
		}
		if first < 0 && h.last < from {
			next = h.last + 1
			pos += int(h.size)
			if pos > len(b) {
				return nil, int64(pos) + max(int64(maxBytes), record.HeaderBytes), nil
			}
			continue
		}
		if h.last >= below {
			break
		}
		if first < 0 && h.base > from && !l.foreign.gaps {
			return nil, 0, errFollows
		}
		if first >= 0 && pos-first+int(h.size) > maxBytes {
			break
		}
		if int64(len(b)-pos) < h.size {
			if first >= 0 {
				break
			}
			return nil, int64(pos) + max(h.size, int64(min(maxBytes, 1<<30))), nil
		}
		if !l.o.SkipReadChecksums {
			batch, _, err := record.Next(b[pos:pos+int(h.size)], maxBatchBytesOnDisk)
			if err == nil && batch.Verify() != nil {
				err = errChecksum
			} else if err != nil {
				err = errHeader
			}
			if err != nil {
				if first >= 0 {
					break
				}
				return nil, 0, err
			}
		}
		if first < 0 {
			first = pos
			out.base = h.base
		}
		next = h.last + 1
		out.end = next
		pos += int(h.size)
	}
	if first < 0 {
		if below < v.end {
			buf.put()
			return &Slice{base: from, end: from}, 0, nil
		}
		if l.foreign.gaps {
			buf.put()
			return &Slice{base: v.end, end: v.end}, 0, nil
		}
		return nil, 0, errShort
	}
	out.b = b[first:pos:pos]
	return out, 0, nil
}

// judge checks the fields of a header that the batch's checksum doesn't cover
// against what is known of them.
func (l *Log) judge(h header, v view, position int64, next Offset) error {
	switch {
	case next >= 0 && !l.follows(h.base, next), h.base < v.seg.base, h.last >= v.end, position+h.size > v.size:
		return errFollows
	case position == 0 && !l.follows(h.base, v.seg.base):
		return errFollows
	case h.last >= v.start && h.epoch != v.chain.at(h.base):
		return errEpoch
	}
	return nil
}

// readPast serves a read that met damage: from the start of the segment, which has
// a known offset, it goes over whole batches, and over damage to the next of them.
func (l *Log) readPast(f File, v view, from, below Offset, maxBytes int, entries []indexEntry, cause error) (*Slice, error) {
	sc := newScanner(l.disk, f, 0, v.size)
	sc.gaps = l.foreign.gaps
	defer sc.close()
	anchor := func(p int64) bool {
		i := sort.Search(len(entries), func(i int) bool { return int64(entries[i].position) >= p })
		return p == v.size || i < len(entries) && int64(entries[i].position) == p
	}
	low := v.seg.base - 1
	good := low + 1
	near := true // good is where the batch before ends
	for {
		_, h, err := sc.next()
		if err == nil {
			if err = l.judge(h, v, sc.at-h.size, good); err != nil {
				sc.at -= h.size
			}
		}
		switch {
		case err == nil && from <= h.last && (h.base <= from || near && l.foreign.gaps):
			// The damage lies before the batch, or is gone: read it alone.
			v2 := v
			buf := getBuffer(int(h.size))
			if err := readAt(f, buf.b, sc.at-h.size); err != nil {
				buf.put()
				return nil, err
			}
			s, need, err := l.cut(buf, v2, sc.at-h.size, from, below, maxBytes)
			if err != nil || need > 0 {
				buf.put()
				return nil, v.seg.corruption(damage{from: from, position: sc.at - h.size, err: errors.Join(err, cause)})
			}
			return s, nil
		case err == nil && h.last < from:
			low, good, near = h.last, h.last+1, true
			continue
		case err != nil && !bytesBad(err) && !errors.Is(err, io.EOF):
			return nil, err
		}
		bad := sc.at
		to := v.end
		if err == nil {
			to = h.base // a whole batch, but above from
		} else if !errors.Is(err, io.EOF) {
			cause = err
			p, rh, ok, rerr := sc.resync(bad, low, v.end, v.end, anchor)
			if rerr != nil {
				return nil, rerr
			}
			if ok && rh.base <= from {
				sc.at, good, near = p, rh.base, false
				continue
			}
			if ok {
				to = rh.base
			}
		}
		return nil, v.seg.corruption(damage{from: min(max(good, v.seg.base), from), to: to, position: bad, err: cause})
	}
}

// recordsBytes is how much Records reads at a time.
const recordsBytes = 256 << 10

func (l *Log) records(ctx context.Context, from Offset, follow bool) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		at := from
		o := bounds{below: maxOffset, durable: true}
		for {
			s, err := l.read(ctx, at, recordsBytes, o)
			if err != nil {
				yield(Record{}, err)
				return
			}
			if s.Len() == 0 {
				s.Release()
				if at = s.End(); !follow {
					return
				}
				if err := l.wait(ctx, at, o); err != nil {
					yield(Record{}, err)
					return
				}
				continue
			}
			for b, err := range s.Batches() {
				if err != nil {
					yield(Record{}, err)
					return
				}
				if b.IsControl() {
					continue
				}
				for r, err := range b.Records() {
					if err != nil {
						yield(Record{}, &CorruptionError{Path: l.dir, Offset: b.BaseOffset(), End: b.NextOffset(), Err: err})
						return
					}
					if r.Offset < at {
						continue
					}
					if !yield(r, nil) {
						return
					}
				}
			}
			at, o.follows, o.gen = s.End(), true, s.gen
			// The records may share the Slice's bytes, so it is left to the collector.
		}
	}
}
