package log

import (
	"cmp"
	"context"
	"slices"
	"sort"

	"github.com/cordwood-io/cordwood/log/record"
)

// An AbortedTxn is a transaction that ended in an abort, in one partition. Whoever
// reads committed records only leaves out the transactional ones of Producer from
// First to Last.
type AbortedTxn struct {
	Producer int64
	First    Offset // of its first record
	Last     Offset // of the marker that aborted it

	// LastStable is the last stable offset right behind the marker: the first record
	// of the oldest transaction that was open then, or Last + 1. A transaction that
	// ends later begins there or later.
	LastStable Offset
}

// overlaps reports whether a record of the transaction may lie in [from, to).
func (a AbortedTxn) overlaps(from, to Offset) bool { return a.First < to && a.Last >= from }

// A txnEnd is a transaction that a marker has ended.
type txnEnd struct {
	AbortedTxn
	aborted bool // else it was committed
}

// A marker is what a control batch that ends a transaction says.
type marker struct {
	commit           bool
	coordinatorEpoch int32
}

// markerOf reads an end-of-transaction marker; false for any other control batch.
func markerOf(b record.Batch) (marker, bool) {
	kind, err := b.ControlType()
	if err != nil || kind != record.ControlCommit && kind != record.ControlAbort {
		return marker{}, false
	}
	for r, err := range b.Records() {
		if err != nil || len(r.Value) < 6 {
			break
		}
		return marker{kind == record.ControlCommit, int32(be.Uint32(r.Value[2:]))}, true
	}
	return marker{}, false
}

// Kafka's transaction index, <base>.txnindex, has 34 bytes per transaction whose
// abort marker is in the segment, in the order of markers; big-endian:
//
//	offset  size  field
//	0       2     version: 0
//	2       8     producer id
//	10      8     first offset of the transaction
//	18      8     offset of the marker
//	26      8     last stable offset behind the marker
//
// A segment without such a marker has no file. It has no checksum of its own: the
// seal or the marker of a clean close holds it, and a file that does not agree is
// taken for absent, and its content found by reading the segment.
const (
	txnIndexSuffix     = ".txnindex"
	txnIndexEntryBytes = 34
)

func appendTxnIndex(b []byte, txns []AbortedTxn) []byte {
	for _, a := range txns {
		b = be.AppendUint16(b, 0)
		b = be.AppendUint64(b, uint64(a.Producer))
		b = be.AppendUint64(b, uint64(a.First))
		b = be.AppendUint64(b, uint64(a.Last))
		b = be.AppendUint64(b, uint64(a.LastStable))
	}
	return b
}

// parseTxnIndex decodes the transaction index of a segment with offsets [base, end).
func parseTxnIndex(b []byte, base, end Offset) ([]AbortedTxn, error) {
	if len(b)%txnIndexEntryBytes != 0 {
		return nil, errDamaged
	}
	out := make([]AbortedTxn, 0, len(b)/txnIndexEntryBytes)
	last := base - 1
	for d := (decoder{b: b}); len(d.b) > 0; {
		version := d.u16()
		a := AbortedTxn{Producer: d.i64(), First: d.off(), Last: d.off(), LastStable: d.off()}
		if version != 0 || a.Producer < 0 || a.First < 0 || a.First >= a.Last || a.Last <= last || a.Last >= end ||
			a.LastStable < 0 || a.LastStable > a.Last+1 {
			return nil, errDamaged
		}
		last = a.Last
		out = append(out, a)
	}
	return out, nil
}

// setAborted notes what the transaction index of the segment holds.
func (s *segmentInfo) setAborted(txns []AbortedTxn) {
	s.aborted, s.abortedSum = int32(len(txns)), crcUpdate(0, appendTxnIndex(nil, txns))
}

// readTxnIndex reads the file, which must be what the segment's info says.
func readTxnIndex(fsys FS, dir string, info *segmentInfo) ([]AbortedTxn, error) {
	if info.aborted == 0 {
		return nil, nil
	}
	b, err := readFile(fsys, joinPath(dir, segmentName(info.base, txnIndexSuffix)), maxSideBytes)
	if err != nil {
		return nil, err
	}
	if info.aborted < 0 || int64(len(b)) != int64(info.aborted)*txnIndexEntryBytes || crcUpdate(0, b) != info.abortedSum {
		return nil, errDamaged
	}
	return parseTxnIndex(b, info.base, info.end)
}

// abortedIn returns the transactions whose abort markers are in the sealed segment
// segs[i]: from its file, or from its batches.
func (l *Log) abortedIn(segs []*segment, i int) ([]AbortedTxn, error) {
	s := segs[i]
	if t := s.aborts.Load(); t != nil {
		return *t, nil
	}
	txns, err := readTxnIndex(l.fs, l.dir, &s.segmentInfo)
	if err == nil {
		return txns, nil
	}
	if err := sideError(err); err != nil {
		return nil, err
	}
	producers, err := l.producersAt(segs, i)
	if err != nil {
		return nil, err
	}
	r, err := l.replay(s, s.size, s.end, producers)
	if err != nil {
		return nil, err
	}
	if s.aborted >= 0 && len(r.x.aborted) != int(s.aborted) {
		l.o.Logger.Warn("transaction index differs from the segment", "dir", l.dir, "segment", int64(s.base), "had", s.aborted, "has", len(r.x.aborted))
	}
	s.aborts.Store(&r.x.aborted)
	return r.x.aborted, nil
}

func (l *Log) abortedTransactions(ctx context.Context, from, to Offset) ([]AbortedTxn, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		l.mu.Lock()
		err := l.readableLocked(from)
		to := min(to, l.end)
		v, active := l.tableViewLocked(from), activeTxns{l.active().aborted < 0, l.x.aborted, l.size, l.end}
		l.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if to <= from {
			return nil, nil
		}
		out, err := l.abortedFrom(v, active, from, to)
		l.mu.Lock()
		again := l.movedLocked(v, err)
		l.mu.Unlock()
		if !again {
			return out, err
		}
	}
}

// readableLocked says whether records from off on can be asked for.
func (l *Log) readableLocked(off Offset) error {
	switch {
	case l.closing:
		return ErrClosed
	case off < l.local || off > l.end:
		return l.rangeErrorLocked(off)
	}
	return nil
}

// activeTxns is what abortedFrom needs of the active segment, taken under mu.
type activeTxns struct {
	unknown bool // the aborted ones must be read from its batches
	aborted []AbortedTxn
	size    int64
	end     Offset
}

// abortedFrom looks from the segment that holds from on until no transaction that
// ends later can begin below to.
func (l *Log) abortedFrom(v tableView, active activeTxns, from, to Offset) ([]AbortedTxn, error) {
	var out []AbortedTxn
	for i := v.i; i < len(v.segs); i++ {
		txns := active.aborted
		switch {
		case i < len(v.segs)-1:
			var err error
			if txns, err = l.abortedIn(v.segs, i); err != nil {
				return nil, err
			}
		case active.unknown:
			r, err := l.tableAt(tableView{segs: v.segs, i: i, limit: active.size}, active.end)
			if err != nil {
				return nil, err
			}
			txns = r.x.aborted
		}
		for _, a := range txns {
			if a.overlaps(from, to) {
				out = append(out, a)
			}
			if a.LastStable >= to {
				return sortAborted(out), nil
			}
		}
	}
	return sortAborted(out), nil
}

func sortAborted(txns []AbortedTxn) []AbortedTxn {
	slices.SortFunc(txns, func(a, b AbortedTxn) int { return cmp.Compare(a.First, b.First) })
	return txns
}

// endedTxns remembers the transactions that ended last, so that a last stable
// offset below an offset near the end can be told without reading.
//
// Invariant: list holds, ascending by last, all that ended at or above from; spans
// of a table that knows the log up to its end.
type endedTxns struct {
	from Offset
	list []txnSpan

	// The answer of the last question that needed a read, in generation gen.
	asked, answer Offset
	gen           uint64
	answered      bool
}

type txnSpan struct{ first, last Offset }

// maxEndedTxns bounds the list: 16 KiB.
const maxEndedTxns = 1024

func (e *endedTxns) add(t txnEnd) {
	if len(e.list) == maxEndedTxns {
		n := maxEndedTxns / 2
		e.from = e.list[n-1].last + 1
		e.list = append(e.list[:0], e.list[n:]...)
	}
	e.list = append(e.list, txnSpan{t.First, t.Last})
}

// cut forgets what ended at or above end, the new end of the log.
func (e *endedTxns) cut(end Offset) {
	n := sort.Search(len(e.list), func(i int) bool { return e.list[i].last >= end })
	e.list = e.list[:n]
	e.from = min(e.from, end)
}

// first returns the lowest first offset of those that ended at or above high, or
// high.
func (e *endedTxns) first(high Offset) Offset {
	low := high
	for i := len(e.list) - 1; i >= 0 && e.list[i].last >= high; i-- {
		low = min(low, e.list[i].first)
	}
	return low
}

func (l *Log) lastStableBelow(ctx context.Context, high Offset) (Offset, error) {
	for {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		l.mu.Lock()
		high := min(high, l.end)
		if high >= l.ended.from {
			low := min(l.ended.first(high), l.producers.lastStable(high))
			l.mu.Unlock()
			return low, nil
		}
		if l.ended.answered && l.ended.asked == high && l.ended.gen == l.gen {
			low := l.ended.answer
			l.mu.Unlock()
			return low, nil
		}
		err := l.readableLocked(high)
		v := l.tableViewLocked(high)
		l.mu.Unlock()
		if err != nil {
			return 0, err
		}
		r, err := l.tableAt(v, high)
		l.mu.Lock()
		again := l.movedLocked(v, err)
		low := min(high, r.producers.lastStable(high))
		if err == nil && !again {
			l.ended.asked, l.ended.answer, l.ended.gen, l.ended.answered = high, low, l.gen, true
		}
		l.mu.Unlock()
		if !again {
			if err != nil {
				return 0, err
			}
			return low, nil
		}
	}
}
