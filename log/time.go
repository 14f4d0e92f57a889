package log

import (
	"context"
	"sort"
	"time"
)

func (l *Log) offsetForTime(ctx context.Context, low Offset, t time.Time) (Offset, bool, error) {
	ms := t.UnixMilli()
	if time.UnixMilli(ms).Before(t) {
		ms++ // records have whole milliseconds
	}
	from := low
	for {
		if ctx.Err() != nil {
			return 0, false, context.Cause(ctx)
		}
		l.mu.Lock()
		if l.closing {
			l.mu.Unlock()
			return 0, false, ErrClosed
		}
		from = max(from, l.local)
		var v view
		found := false
		for i, s := range l.segs {
			info := s.segmentInfo
			if !s.sealed {
				info = l.activeInfoLocked()
			}
			if info.end > from && info.maxTimestamp >= ms {
				v, found = l.viewAtLocked(i), true
				break
			}
		}
		l.mu.Unlock()
		if !found {
			return 0, false, nil
		}
		off, ok, err := l.timeIn(ctx, v, from, ms)
		l.mu.Lock()
		moved := l.gen != v.gen && l.cutSinceLocked(v.gen) < v.end || l.local > from && (err != nil || ok && off < l.local)
		l.mu.Unlock()
		switch {
		case moved:
			from = low // cut or deleted meanwhile: what is there now is what counts
		case err != nil || ok:
			return off, ok, err
		default:
			from = v.end
		}
	}
}

// timeIn returns the first record of one segment, at or after from, whose time is at
// least ms.
func (l *Log) timeIn(ctx context.Context, v view, from Offset, ms int64) (Offset, bool, error) {
	at, err := l.timeStart(v, ms)
	if err != nil {
		return 0, false, err
	}
	for at = max(at, from); at < v.end; {
		s, err := l.read(ctx, at, recordsBytes, bounds{below: maxOffset})
		if err != nil {
			return 0, false, err
		}
		off, ok, err := firstAt(s, from, ms)
		at = s.End()
		empty := s.Len() == 0
		s.Release()
		if err != nil || ok {
			return off, ok, err
		}
		if empty {
			break
		}
	}
	return 0, false, nil
}

// timeStart returns an offset below which no record of the segment has time ms or
// later.
func (l *Log) timeStart(v view, ms int64) (Offset, error) {
	times := v.times
	if v.sealed {
		f, err := v.seg.h.acquire()
		if err != nil {
			return 0, err
		}
		defer v.seg.h.release()
		x, err := l.loadIndex(v.seg, f)
		if err != nil {
			return 0, err
		}
		times = x.times
	}
	i := sort.Search(len(times), func(i int) bool { return times[i].timestamp >= ms })
	if i == 0 {
		return v.seg.base, nil
	}
	return v.seg.base + Offset(times[i-1].offset), nil
}

// firstAt returns the offset of the first record at or after from whose time is at
// least ms.
func firstAt(s *Slice, from Offset, ms int64) (Offset, bool, error) {
	for b, err := range s.Batches() {
		if err != nil {
			return 0, false, err
		}
		if b.IsControl() || b.MaxTimestamp() < ms {
			continue
		}
		for r, err := range b.Records() {
			if err != nil {
				return 0, false, &CorruptionError{Offset: b.BaseOffset(), End: b.NextOffset(), Err: err}
			}
			if r.Offset >= from && r.Timestamp.UnixMilli() >= ms {
				return r.Offset, true, nil
			}
		}
	}
	return 0, false, nil
}
