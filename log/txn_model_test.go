package log_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// A txnBatch is a batch in a dumb model of a log with producers: what is known of
// them is found by going through all batches every time.
type txnBatch struct {
	base, end log.Offset
	id        int64
	epoch     int16
	coord     int32
	first     int32
	kind      batchKind
}

type batchKind int

const (
	kindPlain batchKind = iota // idempotent, outside of a transaction
	kindTxn
	kindCommit
	kindAbort
	kindOther // no producer
)

func (b txnBatch) last() int32 { return b.first + int32(b.end-b.base) - 1 }

// bytes returns the batch as a producer or a coordinator sends it.
func (b txnBatch) bytes() record.Batch {
	if b.kind == kindCommit || b.kind == kindAbort {
		return record.EndTxn(b.kind == kindCommit, b.id, b.epoch, b.coord, time.UnixMilli(5))
	}
	var w record.Builder
	if b.kind != kindOther {
		w.SetProducer(b.id, b.epoch, b.first)
	}
	if b.kind == kindTxn {
		w.SetTransactional()
	}
	for i := b.base; i < b.end; i++ {
		if err := w.Append(record.Record{Timestamp: time.UnixMilli(int64(i)), Value: fmt.Appendf(nil, "%d %0*d", b.id, int(b.epoch)*100%300, i)}); err != nil {
			panic(err)
		}
	}
	x, err := w.Build()
	if err != nil {
		panic(err)
	}
	return x
}

type txnModel struct {
	batches []txnBatch
	local   log.Offset
	end     log.Offset
	acked   log.Offset
}

// A txnState is what the model knows of one producer.
type txnState struct {
	epoch  int16
	coord  int32
	window []txnBatch
	open   log.Offset // first of the open transaction, or -1
}

func (m *txnModel) producers(below log.Offset) map[int64]*txnState {
	all := map[int64]*txnState{}
	for _, b := range m.batches {
		if b.end > below || b.kind == kindOther {
			continue
		}
		s := all[b.id]
		if s == nil {
			s = &txnState{epoch: b.epoch, coord: -1, open: -1}
			all[b.id] = s
		}
		if s.epoch != b.epoch {
			s.epoch, s.window = b.epoch, nil
		}
		switch b.kind {
		case kindCommit, kindAbort:
			s.open, s.coord = -1, b.coord
			continue
		case kindTxn:
			if s.open < 0 {
				s.open = b.base
			}
		}
		s.window = append(s.window, b)
	}
	return all
}

func (m *txnModel) lastStable(below log.Offset) log.Offset {
	low := min(below, m.end)
	for _, s := range m.producers(below) {
		if s.open >= 0 {
			low = min(low, s.open)
		}
	}
	return low
}

func (m *txnModel) aborted(from, to log.Offset) []log.AbortedTxn {
	to = min(to, m.end)
	var out []log.AbortedTxn
	for _, b := range m.batches {
		if b.kind != kindAbort {
			continue
		}
		s := m.producers(b.base)[b.id]
		if s != nil && s.open >= 0 && s.open < to && b.base >= from && from < to {
			out = append(out, log.AbortedTxn{Producer: b.id, First: s.open, Last: b.base, LastStable: m.lastStable(b.end)})
		}
	}
	slices.SortFunc(out, func(a, b log.AbortedTxn) int { return int(a.First - b.First) })
	return out
}

// verdict says what a log answers to a batch, and the original of a duplicate.
func (m *txnModel) verdict(b txnBatch) (txnBatch, error) {
	s := m.producers(m.end)[b.id]
	control := b.kind == kindCommit || b.kind == kindAbort
	switch {
	case s != nil && b.epoch < s.epoch:
		return txnBatch{}, log.ErrProducerFenced
	case control && s != nil && b.coord < s.coord:
		return txnBatch{}, log.ErrCoordinatorFenced
	case control:
		return txnBatch{}, nil
	case s == nil && b.first != 0:
		return txnBatch{}, log.ErrUnknownProducer
	case s == nil:
		return txnBatch{}, nil
	}
	next := int32(0)
	if s.epoch == b.epoch {
		for _, w := range s.window[max(0, len(s.window)-5):] {
			if w.first == b.first && w.last() == b.last() {
				return w, nil
			}
			next = w.last() + 1
		}
	}
	switch {
	case b.first == next && s.open >= 0 && b.kind == kindPlain:
		return txnBatch{}, log.ErrTxnState
	case b.first == next:
		return txnBatch{}, nil
	case b.last() < next:
		return txnBatch{}, log.ErrDuplicateUnknownOffset
	}
	return txnBatch{}, log.ErrOutOfOrderSequence
}

func (m *txnModel) cut(off log.Offset) {
	m.batches = slices.DeleteFunc(m.batches, func(b txnBatch) bool { return b.end > off })
	m.end = min(m.end, off)
	m.acked = min(m.acked, m.end)
}

// bound is a batch's end at or above the local start.
func (m *txnModel) bound(t *rapid.T, name string) log.Offset {
	all := []log.Offset{m.local}
	for _, b := range m.batches {
		if b.end > m.local {
			all = append(all, b.end)
		}
	}
	return rapid.SampledFrom(all).Draw(t, name)
}

// TestTxnModel runs producers and transactions on a log and on the model.
func TestTxnModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		fs := logtest.NewFS(rapid.Uint64().Draw(t, "seed"))
		o := log.Options{SegmentBytes: rapid.SampledFrom([]int64{1 << 10, 3 << 10, 100 << 10}).Draw(t, "segment"), ProducerExpiry: -1}
		open := func() *log.Log {
			o.FS = fs
			l, err := log.Open(ctx, "/data/p", o)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return l
		}
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		l := open()
		m := &txnModel{}
		id := rapid.Int64Range(1, 4)
		epochOf := func(t *rapid.T, id int64) int16 {
			s := m.producers(m.end)[id]
			if s == nil {
				return 3
			}
			return s.epoch + rapid.SampledFrom([]int16{0, 0, 0, 0, 0, 0, 1, -1}).Draw(t, "epoch")
		}
		write := func(t *rapid.T, b txnBatch) {
			original, want := m.verdict(b)
			var a log.Appended
			var err error
			if b.kind == kindCommit || b.kind == kindAbort {
				a, err = l.WriteControl(0, b.bytes())
			} else {
				a, err = l.Write(0, b.bytes().Bytes())
			}
			switch {
			case want != nil:
				if !errors.Is(err, want) {
					t.Fatalf("%+v: got %+v, %v, want %v", b, a, err, want)
				}
			case original.end > 0:
				if err != nil || !a.Duplicate || a.Base != original.base || a.End != original.end {
					t.Fatalf("%+v: got %+v, %v, want a duplicate of %+v", b, a, err, original)
				}
			default:
				if err != nil || a.Duplicate || a.Base != b.base || a.End != b.end {
					t.Fatalf("%+v: got %+v, %v", b, a, err)
				}
				m.batches = append(m.batches, b)
				m.end = b.end
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"produce": func(t *rapid.T) {
				b := txnBatch{base: m.end, id: id.Draw(t, "id"), kind: kindTxn}
				b.epoch = epochOf(t, b.id)
				n := log.Offset(rapid.IntRange(1, 3).Draw(t, "records"))
				if s := m.producers(m.end)[b.id]; s != nil && s.epoch == b.epoch && len(s.window) > 0 {
					b.first = s.window[len(s.window)-1].last() + 1
					switch rapid.IntRange(0, 9).Draw(t, "sequence") {
					case 0:
						b.first += int32(rapid.IntRange(1, 3).Draw(t, "gap"))
					case 1:
						w := rapid.SampledFrom(s.window).Draw(t, "again")
						b.first, n = w.first, w.end-w.base
					case 2:
						b.first = max(0, b.first-int32(rapid.IntRange(1, 3).Draw(t, "back")))
					}
				}
				if rapid.IntRange(0, 3).Draw(t, "plain") == 0 {
					b.kind = kindPlain
				}
				b.end = b.base + n
				write(t, b)
			},
			"end": func(t *rapid.T) {
				b := txnBatch{base: m.end, end: m.end + 1, id: id.Draw(t, "id"), kind: rapid.SampledFrom([]batchKind{kindAbort, kindAbort, kindCommit}).Draw(t, "kind")}
				b.epoch = epochOf(t, b.id)
				b.coord = int32(rapid.SampledFrom([]int{5, 5, 5, 5, 6, 4}).Draw(t, "coordinator"))
				write(t, b)
			},
			"other": func(t *rapid.T) {
				write(t, txnBatch{base: m.end, end: m.end + 2, id: -1, kind: kindOther})
			},
			"roll": func(t *rapid.T) { must(l.Roll(ctx)); m.acked = m.end },
			"sync": func(t *rapid.T) {
				_, err := l.Sync(ctx)
				must(err)
				m.acked = m.end
			},
			"truncate": func(t *rapid.T) {
				off := m.bound(t, "to")
				end, err := l.TruncateTo(ctx, off)
				must(err)
				m.cut(off)
				if off < m.end {
					m.acked = m.end
				}
				if end != m.end {
					t.Fatalf("got end %d, want %d", end, m.end)
				}
			},
			"trim": func(t *rapid.T) {
				off := m.bound(t, "to")
				must(l.TrimTo(ctx, off))
				if off > m.local {
					m.local, m.acked = off, m.end
				}
			},
			"drop": func(t *rapid.T) {
				must(l.DropLocal(ctx, m.bound(t, "to")))
				m.local = l.LocalStart()
			},
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
					return
				}
				// As a replica that starts from the tier: what is open stays open.
				at := m.bound(t, "at")
				snapshot, err := l.ProducerSnapshot(ctx, at)
				must(err)
				must(l.Reset(ctx, at, nil, snapshot))
				m.cut(at)
				m.local, m.acked = at, at
			},
			"close": func(t *rapid.T) {
				must(l.Close())
				m.acked = m.end
				l = open()
				if r := l.Recovery(); !r.Clean {
					t.Fatalf("got %+v", r)
				}
			},
			"lose a cache": func(t *rapid.T) {
				// Kafka's files and the indexes say nothing that can't be found again.
				must(l.Close())
				m.acked = m.end
				names := slices.DeleteFunc(fs.Names(), func(n string) bool {
					return !slices.ContainsFunc([]string{".txnindex", ".snapshot", ".index", ".seal"}, func(s string) bool { return len(n) > len(s) && n[len(n)-len(s):] == s })
				})
				if len(names) > 0 {
					must(fs.Remove(rapid.SampledFrom(names).Draw(t, "name")))
				}
				l = open()
			},
			"crash": func(t *rapid.T) {
				old := l
				fs = fs.Crash(logtest.CrashRandom)
				old.Close() //nolint:errcheck // its disk is gone
				l = open()
				if r := l.Recovery(); r.Lossy || l.End() < m.acked || l.End() > m.end {
					t.Fatalf("got %+v, want an end in [%d, %d]", r, m.acked, m.end)
				}
				m.cut(l.End())
				m.acked = m.end
			},
			"": func(t *rapid.T) {
				if l.End() != m.end || l.LocalStart() != m.local {
					t.Fatalf("got [%d, %d), want [%d, %d)", l.LocalStart(), l.End(), m.local, m.end)
				}
				if got, want := l.LastStable(), m.lastStable(m.end); got != want {
					t.Fatalf("got last stable offset %d, want %d", got, want)
				}
				high := m.bound(t, "high")
				if got, err := l.LastStableBelow(ctx, high); err != nil || got != m.lastStable(high) {
					t.Fatalf("got last stable offset %d, %v below %d, want %d", got, err, high, m.lastStable(high))
				}
				from := log.Offset(rapid.Int64Range(int64(m.local), int64(m.end)).Draw(t, "from"))
				to := log.Offset(rapid.Int64Range(int64(from), int64(m.end)+2).Draw(t, "to"))
				if got, err := l.AbortedTransactions(ctx, from, to); err != nil || !slices.Equal(got, m.aborted(from, to)) {
					t.Fatalf("got aborted %v, %v in [%d, %d), want %v", got, err, from, to, m.aborted(from, to))
				}
			},
		})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
