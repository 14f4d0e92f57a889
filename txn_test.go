package cordwood_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/replication"
)

// TestTransactionOverFailover: a transaction that a client began through one leader is
// still open at the next, holds up readers of committed records and uploads, and is
// known to be aborted afterwards, on disk and in the store.
func TestTransactionOverFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 2 << 10})
		topic := c.Host().Tenant("").Topic("t")
		appendRange(t, topic, 0, 50, 10)
		leader := func() *cordwood.Replica {
			t.Helper()
			r, err := c.Node(c.Leader("t", 0)).Replica("t", 0)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		var b record.Builder
		b.SetProducer(1<<40, 2, 0)
		b.SetTransactional()
		for range 3 {
			if err := b.Append(record.Record{Value: []byte("void")}); err != nil {
				t.Fatal(err)
			}
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		// A handle of a tenant would give it a producer id that nobody ends.
		if _, err := topic.Append(ctx, 0, batch.Clone()); !errors.Is(err, cordwood.ErrInvalidBatch) {
			t.Errorf("transactional batch through a topic: %v", err)
		}
		r := leader()
		a, err := r.Append(ctx, batch.Clone(), replication.AcksAll)
		if err != nil {
			t.Fatal(err)
		}
		b.Reset()
		b.SetProducer(1<<40, 2, 3)
		if err := b.Append(record.Record{Value: []byte("outside")}); err != nil {
			t.Fatal(err)
		}
		outside, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Append(ctx, outside, replication.AcksAll); !errors.Is(err, log.ErrTxnState) {
			t.Errorf("batch outside of the open transaction: %v", err)
		}
		appendRange(t, topic, 50, 300, 10)
		c.Roll("t", 0)
		old := c.Leader("t", 0)
		c.PowerOff(old, logtest.CrashLoseAll)
		appendRange(t, topic, 300, 350, 10)
		r = leader()
		if low, err := r.LastStable(ctx); err != nil || low != a.Base {
			t.Errorf("last stable offset %d, %v, want %d", low, err, a.Base)
		}
		if _, err := r.EndTransaction(ctx, true, 1<<40, 1, 5, replication.AcksAll); !errors.Is(err, log.ErrProducerFenced) {
			t.Errorf("marker of an old producer epoch: %v", err)
		}
		m, err := r.EndTransaction(ctx, false, 1<<40, 2, 5, replication.AcksAll)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.EndTransaction(ctx, true, 1<<40, 2, 4, replication.AcksAll); !errors.Is(err, log.ErrCoordinatorFenced) {
			t.Errorf("marker of an old coordinator: %v", err)
		}
		check := func(when string) {
			t.Helper()
			r := leader()
			low, err := r.LastStable(ctx)
			if err != nil || low <= m.Base {
				t.Errorf("%s: last stable offset %d, %v, the marker is at %d", when, low, err, m.Base)
			}
			for _, from := range []log.Offset{0, a.Base + 1, m.Base} {
				got, err := r.AbortedTransactions(ctx, from, low)
				if want := []log.AbortedTxn{{Producer: 1 << 40, First: a.Base, Last: m.Base, LastStable: m.Base + 1}}; err != nil || !slices.Equal(got, want) {
					t.Errorf("%s: aborted from %d: %v, %v, want %v", when, from, got, err, want)
				}
			}
			if got, err := r.AbortedTransactions(ctx, 0, a.Base); err != nil || len(got) > 0 {
				t.Errorf("%s: aborted below %d: %v, %v", when, a.Base, got, err)
			}
		}
		check("on disk")
		c.Restart(old)
		waitInSync(t, c, "t", 3)
		appendRange(t, topic, 350, 400, 10)
		c.Roll("t", 0)
		c.WaitTiered("t", 0, m.End)
		check("in the store")
		c.PowerOff(c.Leader("t", 0), logtest.CrashLoseAll)
		appendRange(t, topic, 400, 410, 10)
		check("at a third leader")
	})
}

// TestCompressedBatch: what a builder compresses a handle takes.
func TestCompressedBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{Nodes: 1})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Host().Tenant("").Topic("t")
		want := bytes.Repeat([]byte("x"), 10_000)
		codecs := []record.Compression{record.Gzip, record.Snappy, record.LZ4, record.Zstd}
		for _, codec := range codecs {
			b := record.Builder{Compression: codec}
			if err := b.Append(record.Record{Value: want}); err != nil {
				t.Fatal(err)
			}
			batch, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := topic.Append(t.Context(), 0, batch); err != nil {
				t.Errorf("%v: %v", codec, err)
			}
		}
		n := 0
		for r, err := range topic.Records(t.Context(), 0, 0) {
			if err != nil || !bytes.Equal(r.Value, want) {
				t.Fatalf("record %d: %d bytes, %v", n, len(r.Value), err)
			}
			if n++; n == len(codecs) {
				break
			}
		}
	})
}

// TestUnknownProducer: a client's producer that the partition has forgotten goes on
// only where the host says so.
func TestUnknownProducer(t *testing.T) {
	for _, admit := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := cordwoodtest.Start(t, cordwoodtest.Options{Nodes: 1, Configure: func(_ int, o *cordwood.Options) { o.AdmitUnknownProducers = admit }})
			c.CreateTopic("t", cordwood.TopicConfig{})
			if _, err := c.Host().Tenant("").Topic("t").Append(t.Context(), 0, batchOf(t, 0, 1)); err != nil {
				t.Fatal(err)
			}
			r, err := c.Node(c.Leader("t", 0)).Replica("t", 0)
			if err != nil {
				t.Fatal(err)
			}
			b := batchOf(t, 1, 2)
			b.SetProducer(1<<40, 0, 17)
			_, err = r.Append(t.Context(), b, replication.AcksAll)
			if admit && err != nil || !admit && !errors.Is(err, log.ErrUnknownProducer) {
				t.Errorf("admit %v: %v", admit, err)
			}
		})
	}
}
