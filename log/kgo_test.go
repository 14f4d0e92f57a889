package log_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// TestReadCommittedByKgo serves a log to franz-go's consumer as a broker does, in
// fetches of any size: bytes below the last stable offset, with the aborted
// transactions that overlap them. It must deliver what was committed and nothing
// else, and everything where it asks for that.
func TestReadCommittedByKgo(t *testing.T) {
	ctx := t.Context()
	r := rand.New(rand.NewPCG(3, 4))
	l := open(t, logtest.NewFS(1), log.Options{SegmentBytes: 2 << 10})
	defer mustClose(t, l)
	var all, committed []int64
	inTxn := map[int64][]int64{} // offsets of open transactions
	next := map[int64]int32{}
	end := func(id int64, commit bool) {
		if _, err := l.WriteControl(0, record.EndTxn(commit, id, 0, 1, time.UnixMilli(1))); err != nil {
			t.Fatal(err)
		}
		if commit {
			committed = append(committed, inTxn[id]...)
		}
		delete(inTxn, id)
	}
	for range 600 {
		id := int64(1 + r.IntN(5))
		if _, open := inTxn[id]; open && r.IntN(3) == 0 {
			end(id, r.IntN(2) == 0)
			continue
		}
		at := l.End()
		b := txnBatch{base: at, end: at + 1 + log.Offset(r.IntN(3)), id: id, first: next[id], kind: kindTxn}
		if r.IntN(6) == 0 {
			b.kind = kindOther
		}
		if _, err := l.Write(0, b.bytes().Bytes()); err != nil {
			t.Fatal(err)
		}
		for o := b.base; o < b.end; o++ {
			all = append(all, int64(o))
			if b.kind == kindOther {
				committed = append(committed, int64(o))
			} else {
				inTxn[id] = append(inTxn[id], int64(o))
			}
		}
		if b.kind == kindTxn {
			next[id] += int32(b.end - b.base)
		}
	}
	for id := range next {
		if len(inTxn[id]) > 0 {
			end(id, false)
		}
	}
	slices.Sort(committed)
	for _, high := range []log.Offset{l.End(), l.End() / 2} {
		stable, err := l.LastStableBelow(ctx, high)
		if err != nil {
			t.Fatal(err)
		}
		below := func(all []int64) []int64 {
			return slices.DeleteFunc(slices.Clone(all), func(o int64) bool { return o >= int64(stable) })
		}
		for _, level := range []struct {
			isolation kgo.IsolationLevel
			want      []int64
			aborted   bool
		}{{kgo.ReadCommitted(), below(committed), true}, {kgo.ReadUncommitted(), below(all), false}} {
			var got []int64
			for at := log.Offset(0); at < stable; {
				s, err := l.ReadBelow(ctx, at, stable, 1+r.IntN(3000))
				if err != nil {
					t.Fatal(err)
				}
				p := kmsg.NewFetchResponseTopicPartition()
				p.RecordBatches, p.HighWatermark, p.LastStableOffset = s.Bytes(), int64(high), int64(stable)
				if level.aborted {
					txns, err := l.AbortedTransactions(ctx, at, s.End())
					if err != nil {
						t.Fatal(err)
					}
					for _, a := range txns {
						p.AbortedTransactions = append(p.AbortedTransactions, kmsg.FetchResponseTopicPartitionAbortedTransaction{ProducerID: a.Producer, FirstOffset: int64(a.First)})
					}
				}
				f, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Offset: int64(at), IsolationLevel: level.isolation, Topic: "t"}, &p, kgo.DefaultDecompressor(), nil)
				if f.Err != nil {
					t.Fatal(f.Err)
				}
				for _, k := range f.Records {
					got = append(got, k.Offset)
				}
				at = s.End()
				s.Release()
			}
			if !slices.Equal(got, level.want) {
				t.Errorf("below %d, aborted transactions asked for: %v: got %d records, want %d", stable, level.aborted, len(got), len(level.want))
			}
		}
	}
}

// TestBatchWithoutSequence: Kafka's group coordinator writes batches of a transaction
// without sequence numbers. A replica takes them; a producer may not send them.
func TestBatchWithoutSequence(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	b, _, err := record.Next((txnBatch{end: 2, id: 4, epoch: 1, kind: kindTxn}).bytes().Bytes(), 0)
	if err != nil {
		t.Fatal(err)
	}
	b.SetProducer(4, 1, -1)
	b.SetLeaderEpoch(0)
	if _, err := l.Write(0, b.Clone().Bytes()); err == nil {
		t.Error("a producer's batch without sequence numbers was taken")
	}
	if _, err := l.AppendReplicated(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if l.LastStable() != 0 {
			t.Errorf("got last stable offset %d", l.LastStable())
		}
		if err := l.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
		l = open(t, fs, log.Options{})
	}
	if a, err := l.Write(0, (txnBatch{base: 2, end: 3, id: 4, epoch: 1, kind: kindTxn}).bytes().Bytes()); err != nil || a.Base != 2 {
		t.Errorf("first batch with a sequence number: %+v, %v", a, err)
	}
	mustClose(t, l)
}
