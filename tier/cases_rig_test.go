package tier_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

type countingEvents struct {
	*tiertest.Events
	ends atomic.Int32
}

func (c *countingEvents) End(ctx context.Context) (log.Offset, error) {
	c.ends.Add(1)
	return c.Events.End(ctx)
}

// emptyBodies is a store that answers each read with nothing and no error.
type emptyBodies struct{ *memstore.Store }

func (e emptyBodies) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if strings.HasSuffix(key, "owner") {
		return e.Store.GetRange(ctx, key, off, n)
	}
	return nil, nil
}

// A pair is two replicas of a partition on two nodes. What is filled in is on both
// and committed.
type pair struct {
	mem      *memstore.Store
	store    *tiertest.Faulty
	events   *tiertest.Events
	logs     [2]*log.Log
	managers [2]*tier.Manager
	parts    [2]*tier.Partition
	hw       [2]atomic.Int64
}

func newPair(t *testing.T) *pair {
	t.Helper()
	w := &pair{mem: memstore.New(), events: &tiertest.Events{}}
	w.store = tiertest.NewFaulty(w.mem)
	for i := range w.logs {
		var err error
		w.logs[i], err = log.Open(t.Context(), "data", log.Options{FS: logtest.NewFS(uint64(i)), Partition: testPartition, SegmentBytes: 2 << 10})
		if err != nil {
			t.Fatal(err)
		}
		w.managers[i], err = tier.NewManager(tier.Options{Store: w.store, Events: w.events, Cluster: tier.ID{1}, ChunkBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		w.reopen(t, i)
	}
	t.Cleanup(func() { // after a failure
		for i := range w.logs {
			_ = errors.Join(w.managers[i].Close(), w.logs[i].Close())
		}
	})
	return w
}

func (w *pair) reopen(t *testing.T, i int) {
	t.Helper()
	var err error
	w.parts[i], err = w.managers[i].Open(testPartition, w.logs[i], tier.PartitionOptions{
		Tiered: true, HighWatermark: func() log.Offset { return log.Offset(w.hw[i].Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (w *pair) lead(i int, epoch log.Epoch) { w.parts[i].Lead(epoch) }

func (w *pair) fill(t *testing.T, n int) {
	t.Helper()
	for range n {
		from := w.logs[0].End()
		if _, err := w.logs[0].AppendRecords(t.Context(), log.Record{Value: value(int(from))}); err != nil {
			t.Fatal(err)
		}
		s, err := w.logs[0].Read(t.Context(), from, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.logs[1].AppendReplicated(s.Bytes()); err != nil {
			t.Fatal(err)
		}
		s.Release()
		if _, err := w.logs[1].Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range w.hw {
		w.hw[i].Store(int64(w.logs[i].End()))
		w.parts[i].Kick()
	}
}

// noOrphans holds the store against the state: the finished ranges and nothing else.
func (w *pair) noOrphans(t *testing.T, i int) {
	t.Helper()
	state, known := w.parts[i].State()
	if !known || len(state.Pending()) > 0 || w.mem.Len() != state.Len()+1 || state.Len() == 0 {
		t.Errorf("known %v, pending %+v, %d objects for %d ranges", known, state.Pending(), w.mem.Len(), state.Len())
	}
	if err := w.mem.Check(); err != nil {
		t.Error(err)
	}
}

func (w *pair) close(t *testing.T) {
	t.Helper()
	for i := range w.logs {
		if err := errors.Join(w.managers[i].Close(), w.logs[i].Close()); err != nil {
			t.Error(err)
		}
	}
}
