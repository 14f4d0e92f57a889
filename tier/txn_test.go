package tier_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
)

// A txnWriter writes the same transactions to a tiered log and to a plain one,
// which says what is right.
type txnWriter struct {
	*rig
	plain *log.Log
	next  map[int64]int32
}

func (w *txnWriter) produce(id int64, records int) {
	w.t.Helper()
	var b record.Builder
	b.SetProducer(id, 0, w.next[id])
	b.SetTransactional()
	for range records {
		if err := b.Append(record.Record{Timestamp: time.UnixMilli(1), Value: value(int(id))}); err != nil {
			w.t.Fatal(err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		w.t.Fatal(err)
	}
	w.next[id] += int32(records)
	_, err = w.tier.Append(w.t.Context(), batch.Clone().Bytes())
	_, perr := w.plain.Append(w.t.Context(), batch.Bytes())
	if err := errors.Join(err, perr); err != nil {
		w.t.Fatal(err)
	}
}

func (w *txnWriter) end(id int64, commit bool) {
	w.t.Helper()
	marker := record.EndTxn(commit, id, 0, 1, time.UnixMilli(1))
	_, err := w.tier.AppendControl(w.t.Context(), marker.Clone())
	_, perr := w.plain.WriteControl(0, marker)
	if err := errors.Join(err, perr); err != nil {
		w.t.Fatal(err)
	}
}

// check compares the aborted transactions of some ranges.
func (w *txnWriter) check(r *rand.Rand, n int) {
	w.t.Helper()
	ctx := w.t.Context()
	end := w.plain.LastStable()
	if got, err := w.tier.LastStable(ctx); err != nil || got != end {
		w.t.Fatalf("last stable offset %d, %v, want %d", got, err, end)
	}
	for range n {
		from := log.Offset(r.Int64N(int64(end)))
		to := from + log.Offset(r.Int64N(int64(end-from)+1))
		want, err := w.plain.AbortedTransactions(ctx, from, to)
		if err != nil {
			w.t.Fatal(err)
		}
		if got, err := w.tier.AbortedTransactions(ctx, from, to); err != nil || !slices.Equal(got, want) {
			w.t.Fatalf("aborted in [%d, %d): %v, %v, want %v", from, to, got, err, want)
		}
	}
}

// TestAbortedTransactionsInTheStore: what overlaps a range is found over objects and
// local segments, wherever its marker is, and nothing undecided is uploaded.
func TestAbortedTransactionsInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, err := log.Open(t.Context(), "plain", log.Options{FS: logtest.NewFS(2)})
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close() //nolint:errcheck // thrown away
		w := &txnWriter{rig: newRig(t, tier.Options{}), plain: plain, next: map[int64]int32{}}
		r := rand.New(rand.NewPCG(1, 2))
		open := map[int64]bool{}
		some := func(n int) {
			for range n {
				id := int64(1 + r.IntN(4))
				if open[id] && r.IntN(3) == 0 {
					w.end(id, r.IntN(3) == 0)
					delete(open, id)
					continue
				}
				w.produce(id, 1+r.IntN(3))
				open[id] = true
			}
		}
		settle := func() {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		some(100)
		w.produce(99, 2) // stays open over many segments
		first := plain.End() - 2
		some(300)
		settle()
		v := w.tier.Partition().View()
		if v.TierEnd == 0 || v.TierEnd > plain.LastStable() || plain.LastStable() > first {
			t.Fatalf("tier end %d, last stable offset %d, a transaction is open since %d", v.TierEnd, plain.LastStable(), first)
		}
		w.rig.tier.Partition().Kick()
		w.check(r, 200)
		w.end(99, false)
		for id := range open {
			w.end(id, false)
		}
		clear(open)
		some(30)
		settle()
		v = w.tier.Partition().View()
		if v.TierEnd <= first || w.hot.LocalStart() <= first {
			t.Fatalf("tier end %d, local start %d, no transaction is open below %d", v.TierEnd, w.hot.LocalStart(), plain.LastStable())
		}
		w.check(r, 300)
		// The long one is known in each object that it overlaps, however far the marker.
		for at := first; at < v.TierEnd; at += 20 {
			got, err := w.tier.AbortedTransactions(t.Context(), at, at+1)
			if err != nil || !slices.ContainsFunc(got, func(a log.AbortedTxn) bool { return a.Producer == 99 && a.First == first }) && at < first+20 {
				t.Fatalf("aborted at %d: %v, %v", at, got, err)
			}
		}
		if _, err := w.tier.AbortedTransactions(t.Context(), plain.End()+1, plain.End()+2); !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("above the end: %v", err)
		}
		// A log start inside of it all, and another life.
		start := v.TierEnd / 2
		if err := w.tier.TrimTo(t.Context(), start); err != nil {
			t.Fatal(err)
		}
		if _, err := w.tier.AbortedTransactions(t.Context(), start-1, start+5); !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("below the log start: %v", err)
		}
		w.close()
		w.open(tier.Options{})
		want, err := plain.AbortedTransactions(t.Context(), start, plain.LastStable())
		if err != nil || len(want) < 10 {
			t.Fatalf("%d aborted, %v", len(want), err)
		}
		if got, err := w.tier.AbortedTransactions(t.Context(), start, plain.LastStable()); err != nil || !slices.Equal(got, want) {
			t.Errorf("after a restart: %v, %v, want %v", got, err, want)
		}
		w.close()
	})
}

// TestUploadWaitsForMarkerBelowHighWatermark: a marker that may still be truncated
// decides nothing, so that no object says aborted of what is committed later.
func TestUploadWaitsForMarkerBelowHighWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		w := &txnWriter{rig: newRig(t, tier.Options{}), next: map[int64]int32{}}
		var err error
		if w.plain, err = log.Open(ctx, "plain", log.Options{FS: logtest.NewFS(2)}); err != nil {
			t.Fatal(err)
		}
		defer w.plain.Close() //nolint:errcheck // thrown away
		var high atomic.Int64
		high.Store(2) // the segment's end; the marker will be at 2
		o := tier.PartitionOptions{Tiered: true, HighWatermark: func() log.Offset { return log.Offset(high.Load()) }}
		if err := w.tier.Partition().SetOptions(o); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // nobody goes by the log's own end any more
		w.produce(1, 2)
		if err := w.tier.Roll(ctx); err != nil {
			t.Fatal(err)
		}
		w.end(1, false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if v := w.tier.Partition().View(); v.TierEnd != 0 {
			t.Errorf("tier end %d while the marker is at the high watermark", v.TierEnd)
		}
		high.Store(3)
		w.tier.Partition().Kick()
		time.Sleep(time.Minute)
		synctest.Wait()
		if v := w.tier.Partition().View(); v.TierEnd != 2 {
			t.Errorf("tier end %d, want 2", v.TierEnd)
		}
		w.close()
	})
}
