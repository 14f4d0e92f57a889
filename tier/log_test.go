package tier_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

var testPartition = log.PartitionID{Topic: log.TopicID{1, 2, 3}, Index: 7}

// A rig is a tiered log with all it stands on.
type rig struct {
	t      *testing.T
	fs     log.FS
	mem    *memstore.Store
	store  *tiertest.Faulty
	events *tier.LocalEvents
	hot    *log.Log
	tier   *tier.Log
	next   int // number of the next record

	segmentBytes int64 // of the log; 0: 4 KiB
}

func newRig(t *testing.T, o tier.Options) *rig {
	t.Helper()
	mem := memstore.New()
	r := &rig{t: t, fs: logtest.NewFS(1), mem: mem, store: tiertest.NewFaulty(mem)}
	r.open(o)
	return r
}

func (r *rig) open(o tier.Options) {
	r.t.Helper()
	var err error
	if r.hot, err = log.Open(r.t.Context(), "data", log.Options{FS: r.fs, Partition: testPartition, SegmentBytes: cmp.Or(r.segmentBytes, 4<<10)}); err != nil {
		r.t.Fatal(err)
	}
	if r.events, err = tier.OpenLocalEvents(r.t.Context(), "events", tier.LocalOptions{FS: r.fs}); err != nil {
		r.t.Fatal(err)
	}
	o.Store, o.Events = r.store, r.events
	if o.BackupWindow == 0 && o.ReaderGrace == 0 {
		o.BackupWindow, o.ReaderGrace = -1, -1 // objects go when they may
	}
	if o.ChunkBytes == 0 {
		o.ChunkBytes = 4 << 10
	}
	if r.tier, err = tier.Open(r.t.Context(), r.hot, o); err != nil {
		r.t.Fatal(err)
	}
	if r.t.Failed() {
		return
	}
	tiered, events, hot := r.tier, r.events, r.hot
	r.t.Cleanup(func() { _ = errors.Join(tiered.Close(), events.Close(), hot.Close()) }) // after a failure
}

func (r *rig) close() {
	r.t.Helper()
	if err := errors.Join(r.tier.Close(), r.events.Close(), r.hot.Close()); err != nil {
		r.t.Error(err)
	}
	if err := r.mem.Check(); err != nil {
		r.t.Error(err)
	}
}

func value(i int) []byte {
	return fmt.Appendf(nil, "record %06d %s", i, bytes.Repeat([]byte{byte('a' + i%26)}, 80))
}

// fill appends n records, one a batch.
func (r *rig) fill(n int) {
	r.t.Helper()
	for range n {
		if _, err := r.tier.AppendRecords(r.t.Context(), log.Record{Value: value(r.next)}); err != nil {
			r.t.Fatal(err)
		}
		r.next++
	}
}

// check reads everything from an offset on.
func (r *rig) check(from log.Offset) {
	r.t.Helper()
	at := from
	for rec, err := range r.tier.Records(r.t.Context(), from) {
		if err != nil {
			r.t.Fatalf("read at offset %d: %v", at, err)
		}
		if rec.Offset != at || !bytes.Equal(rec.Value, value(int(at))) {
			r.t.Fatalf("offset %d: got %d, %.30q", at, rec.Offset, rec.Value)
		}
		at++
	}
	if at != log.Offset(r.next) {
		r.t.Fatalf("read up to offset %d, want %d", at, r.next)
	}
}

func (r *rig) stats() tier.Stats { return r.tier.Manager().Stats() }

func TestLogAgesIntoTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(500)
		time.Sleep(time.Second)
		synctest.Wait()
		v := r.tier.Partition().View()
		if v.Ranges < 10 || r.hot.LocalStart() != v.TierEnd {
			t.Errorf("%d ranges up to %d, local start %d", v.Ranges, v.TierEnd, r.hot.LocalStart())
		}
		r.check(0)
		r.check(77)
		if s := r.stats(); s.Fetches == 0 || s.Uploads != int64(v.Ranges) || r.mem.Len() != v.Ranges+1 {
			t.Errorf("%d fetches, %d uploads, %d ranges, %d objects", s.Fetches, s.Uploads, v.Ranges, r.mem.Len())
		}
		r.close()
		r.open(tier.Options{})
		r.fill(100)
		time.Sleep(time.Second)
		r.check(0)
		r.close()
	})
}

func TestReadErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(200)
		time.Sleep(time.Second)
		p := r.tier.Partition()
		if _, err := p.Read(t.Context(), r.hot.End(), 1); !errors.Is(err, tier.ErrNotTiered) {
			t.Errorf("cold read at the end: %v", err)
		}
		if _, err := r.tier.Read(t.Context(), r.hot.End()+1, 1); !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("read above the end: %v", err)
		}
		if s, err := r.tier.Read(t.Context(), r.hot.End(), 1); err != nil || s.Len() != 0 {
			t.Errorf("read at the end: %v", err)
		}
		if err := r.tier.TrimTo(t.Context(), 60); err != nil {
			t.Fatal(err)
		}
		for _, off := range []log.Offset{0, 59, -1} {
			if _, err := r.tier.Read(t.Context(), off, 1); !errors.Is(err, log.ErrOffsetOutOfRange) {
				t.Errorf("read at %d below the log start: %v", off, err)
			}
		}
		r.check(60)
		if err := r.tier.TrimTo(t.Context(), r.hot.End()+1); !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("trim above the end: %v", err)
		}
		r.close()
		if _, err := r.tier.Read(t.Context(), 70, 1); !errors.Is(err, tier.ErrClosed) && !errors.Is(err, log.ErrClosed) {
			t.Errorf("read after Close: %v", err)
		}
	})
}

func TestContextEndsTheWaitNotTheFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{ChunkBytes: 64 << 10})
		r.fill(200)
		time.Sleep(time.Second)
		r.store.SetDelay(10 * time.Second)
		before := r.store.Counts().Get
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.tier.Read(ctx, 0, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("read with a short deadline: %v", err)
		}
		began := time.Now()
		for range 5 {
			if _, err := r.tier.Read(t.Context(), 0, 1); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 9*time.Second {
			t.Errorf("the next read waited %v, want the rest of the first fetch", took)
		}
		if n := r.store.Counts().Get - before; n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
		r.close()
	})
}
