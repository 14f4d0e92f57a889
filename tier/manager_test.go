package tier_test

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// settle lets the background get done what it can at once.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// TestOperationCounts holds the cost model: n ranges are n requests to write, and
// nothing is ever listed or asked about.
func TestOperationCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{ChunkBytes: 4 << 10, CacheBytes: 1 << 20, Interval: time.Second})
		r.fill(400)
		settle()
		time.Sleep(time.Hour)
		ranges := r.tier.Partition().View().Ranges
		c := r.store.Counts()
		if ranges < 8 || c != (tiertest.Counts{Put: ranges + 1}) { // and the owner
			t.Errorf("%d ranges took %+v", ranges, c)
		}
		// One reader of everything: each part of each object once.
		r.check(0)
		state, _ := r.tier.Partition().State()
		parts := 0
		for _, o := range state.Ranges() {
			parts += 1 + int((o.BatchBytes+4<<10-1)/(4<<10))
		}
		if got := r.store.Counts().Get; got > parts {
			t.Errorf("a sequential read took %d requests for %d parts", got, parts)
		}
		before := r.store.Counts()
		r.check(0)
		if after := r.store.Counts(); after != before {
			t.Errorf("a second read from the cache took requests: %+v after %+v", after, before)
		}
		if err := r.tier.TrimTo(t.Context(), state.Ranges()[2].End); err != nil {
			t.Fatal(err)
		}
		settle()
		if c := r.store.Counts(); c.Delete != 3 || c.List != 0 || c.Head != 0 {
			t.Errorf("deletion of 3 ranges: %+v", c)
		}
		r.close()
	})
}

// TestManyReadersOfOneRange: m readers at once take one request a part.
func TestManyReadersOfOneRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{ChunkBytes: 4 << 10})
		r.fill(100)
		settle()
		r.store.SetDelay(50 * time.Millisecond)
		before := r.store.Counts().Get
		var wg sync.WaitGroup
		const readers = 64
		end := r.tier.Partition().View().TierEnd
		var failed atomic.Int32
		for range readers {
			wg.Go(func() {
				for at := log.Offset(0); at < end; {
					s, err := r.tier.Read(t.Context(), at, 1<<20)
					if err != nil {
						failed.Add(1)
						return
					}
					at = s.End()
				}
			})
		}
		wg.Wait()
		state, _ := r.tier.Partition().State()
		parts := 0
		for _, o := range state.Ranges() {
			parts += 1 + int((o.BatchBytes+4<<10-1)/(4<<10))
		}
		if got := r.store.Counts().Get - before; got > parts || failed.Load() > 0 {
			t.Errorf("%d readers took %d requests for %d parts, %d failed", readers, got, parts, failed.Load())
		}
		r.close()
	})
}

func TestStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		r := &rig{t: t, fs: logtest.NewFS(1), mem: mem, store: tiertest.NewFaulty(mem)}
		r.store.SetDown(true)
		began := time.Now()
		r.open(tier.Options{})
		r.fill(300)
		r.check(0)
		if took := time.Since(began); took > time.Second {
			t.Errorf("appends and hot reads took %v while the store was down", took)
		}
		time.Sleep(3 * time.Hour)
		bytes, ranges := r.tier.Partition().Backlog()
		if s := r.stats(); ranges < 5 || bytes < 10_000 || s.BacklogRanges != ranges || s.OwnerChecked || s.OwnerError == nil {
			t.Errorf("backlog of %d bytes in %d ranges, %+v", bytes, ranges, s)
		}
		if r.hot.LocalStart() != 0 {
			t.Error("records that are nowhere else were dropped")
		}
		// The requests in three hours are bounded by the backoff.
		if c := r.store.Counts(); c.Put > 3*3600/7 {
			t.Errorf("%+v in three hours", c)
		}
		r.store.SetDown(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, ranges := r.tier.Partition().Backlog(); ranges != 0 {
			t.Errorf("a backlog of %d ranges a minute after the store came back", ranges)
		}
		r.check(0)

		// Down again, with an upload begun: a bounded number of unfinished uploads.
		r.store.SetDown(true)
		r.fill(300)
		time.Sleep(24 * time.Hour)
		state, _ := r.tier.Partition().State()
		if n := len(state.Pending()); n > 2 {
			t.Errorf("%d unfinished uploads after a day without a store", n)
		}
		if leading, _, err := r.tier.Partition().Status(); !leading || !errors.Is(err, tier.ErrUnavailable) && err != nil {
			t.Errorf("status: leading %v, %v", leading, err)
		}
		r.store.SetDown(false)
		time.Sleep(3 * time.Hour)
		if state, _ := r.tier.Partition().State(); len(state.Pending()) > 0 || r.mem.Len() != state.Len()+1 {
			t.Errorf("%d pending, %d objects, %d ranges", len(state.Pending()), r.mem.Len(), state.Len())
		}
		r.check(0)
		r.close()
	})
}

func TestForeignStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		store := tiertest.NewFaulty(mem)
		events := &tiertest.Events{}
		first, err := tier.NewManager(tier.Options{Store: store, Events: events, Cluster: tier.ID{1}, Prefix: "a"})
		if err != nil {
			t.Fatal(err)
		}
		settle()
		if s := first.Stats(); !s.OwnerChecked || s.OwnerError != nil {
			t.Errorf("the first cluster: %+v", s)
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		r := &rig{t: t, fs: logtest.NewFS(1), mem: mem, store: store}
		r.open(tier.Options{Prefix: "a"})
		r.fill(200)
		settle()
		if s := r.stats(); s.OwnerChecked || !errors.Is(s.OwnerError, tier.ErrForeignStore) || s.BacklogRanges == 0 {
			t.Errorf("another cluster's prefix: %+v", s)
		}
		if mem.Len() != 1 {
			t.Errorf("%d objects under another cluster's prefix", mem.Len())
		}
		if _, err := r.tier.Partition().Sweep(t.Context(), tier.SweepOptions{}); !errors.Is(err, tier.ErrForeignStore) || !errors.Is(err, tier.ErrUnknown) {
			t.Errorf("a sweep of another cluster's prefix: %v", err)
		}
		if _, err := r.tier.Manager().SweepDeleted(t.Context(), tier.SweepOptions{}); !errors.Is(err, tier.ErrForeignStore) || !errors.Is(err, tier.ErrUnknown) {
			t.Errorf("a sweep of another cluster's prefix for deleted topics: %v", err)
		}
		r.check(0)
		r.close()
		r.open(tier.Options{Prefix: "b"})
		settle()
		if s := r.stats(); !s.OwnerChecked || s.BacklogRanges != 0 {
			t.Errorf("a prefix of its own: %+v", s)
		}
		r.close()
	})
}

// TestUnknownViewBlocks: while the tier log can't be read, the view is unknown,
// and what depends on it waits; the rest goes on.
func TestUnknownViewBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		l, err := log.Open(t.Context(), "data", log.Options{FS: fs, Partition: testPartition, SegmentBytes: 1 << 10})
		if err != nil {
			t.Fatal(err)
		}
		events := &tiertest.Events{}
		events.SetDown(true)
		store := tiertest.NewFaulty(memstore.New())
		m, err := tier.NewManager(tier.Options{Store: store, Events: events, Cluster: tier.ID{1}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Open(testPartition, l, tier.PartitionOptions{Tiered: true, HighWatermark: l.DurableEnd, RetentionBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		p.Lead(3)
		for range 100 {
			if _, err := l.AppendRecords(t.Context(), log.Record{Value: make([]byte, 100)}); err != nil {
				t.Fatal(err)
			}
		}
		p.Kick()
		time.Sleep(time.Hour)
		synctest.Wait()
		if v := p.View(); v.Known || v.Presence() != tier.Unknown {
			t.Errorf("view %+v", v)
		}
		if _, err := p.Read(t.Context(), 0, 1); !errors.Is(err, tier.ErrUnknown) {
			t.Errorf("cold read: %v", err)
		}
		if _, _, err := p.OffsetForTime(t.Context(), time.Now()); !errors.Is(err, tier.ErrUnknown) {
			t.Errorf("time lookup: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := p.WaitKnown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitKnown: %v", err)
		}
		cancel()
		if c := store.Counts(); c.Put != 1 || l.LocalStart() != 0 || l.Start() != 0 {
			t.Errorf("%+v, local start %d, log start %d", c, l.LocalStart(), l.Start())
		}
		events.SetDown(false)
		if err := p.WaitKnown(t.Context()); err != nil {
			t.Error(err)
		}
		if v := p.View(); !v.Known || v.Presence() != tier.Empty {
			t.Errorf("view %+v", v)
		}
		time.Sleep(time.Minute)
		if v := p.View(); v.Presence() == tier.Unknown || v.LogStart == 0 {
			t.Errorf("view %+v", v)
		}
		if err := errors.Join(m.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestEventOfNewerReleaseStops: an intact event that this release doesn't know
// stops the manager with a clear error; nothing is skipped.
func TestEventOfNewerReleaseStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		l, err := log.Open(t.Context(), "data", log.Options{FS: fs, Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		events := &tiertest.Events{}
		m, err := tier.NewManager(tier.Options{Store: memstore.New(), Events: events, Cluster: tier.ID{1}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Open(testPartition, l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.WaitKnown(t.Context()); err != nil {
			t.Fatal(err)
		}
		b, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Body: tier.Barrier{}})
		if err != nil {
			t.Fatal(err)
		}
		binary.BigEndian.PutUint16(b[6:], 99)
		table := crc32.MakeTable(crc32.Castagnoli)
		binary.BigEndian.PutUint32(b[12:], crc32.Update(crc32.Checksum(b[:12], table), table, b[16:]))
		if err := events.Append(t.Context(), testPartition, b); err != nil {
			t.Fatal(err)
		}
		<-m.Done()
		var v *tier.VersionError
		if err := m.Err(); !errors.As(err, &v) || v.Version != 99 {
			t.Errorf("Err: %v", err)
		}
		if p.View().Known {
			t.Error("a view is known after the manager stopped")
		}
		if _, err := p.Read(t.Context(), 0, 1); !errors.As(err, &v) {
			t.Errorf("read: %v", err)
		}
		if _, err := m.Open(log.PartitionID{Index: 1}, l, tier.PartitionOptions{HighWatermark: l.DurableEnd}); !errors.As(err, &v) {
			t.Errorf("open: %v", err)
		}
		if err := errors.Join(m.Close(), m.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestLostObjectIsAnAlarm: an object that is gone is looked up once more in the
// state, and then reported, not retried for ever.
func TestLostObjectIsAnAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var alarms atomic.Int32
		r := newRig(t, tier.Options{Hooks: tier.Hooks{Missing: func(*tier.MissingError) { alarms.Add(1) }}})
		r.fill(200)
		settle()
		state, _ := r.tier.Partition().State()
		x := state.Ranges()[1]
		key := tier.Key{Partition: testPartition, Base: x.Base, End: x.End, Epoch: x.Epoch, ID: x.ID}.Path("")
		if d := r.mem.Delete(t.Context(), []string{key}); d[0].Err != nil {
			t.Fatal(d[0].Err)
		}
		before := r.store.Counts().Get
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Key == key && r.store.Counts().Get-before > 10 {
				return tiertest.Fault{Err: tier.ErrDenied} // or it might be asked for for ever
			}
			return tiertest.Fault{}
		})
		_, err := r.tier.Read(t.Context(), x.Base+1, 1)
		var missing *tier.MissingError
		if !errors.As(err, &missing) || missing.Key != key || missing.Base != x.Base+1 || missing.End != x.End || !errors.Is(err, tier.ErrNotFound) {
			t.Errorf("read of a lost object: %v", err)
		}
		if n := r.store.Counts().Get - before; n != 2 || alarms.Load() != 1 || r.stats().Missing != 1 {
			t.Errorf("%d requests, %d alarms, %+v", n, alarms.Load(), r.stats().Missing)
		}
		if _, err := r.tier.Read(t.Context(), x.End, 1); err != nil {
			t.Errorf("the range after it: %v", err)
		}
		r.close()
	})
}

// TestDamagedChunkIsReported: bits that flip in the store are noticed, those that
// flip on the way are read again.
func TestDamagedChunkIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(200)
		settle()
		state, _ := r.tier.Partition().State()
		x := state.Ranges()[1]
		key := tier.Key{Partition: testPartition, Base: x.Base, End: x.End, Epoch: x.Epoch, ID: x.ID}.Path("")
		var flips atomic.Int32
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			return tiertest.Fault{Flip: op.Kind == "get" && op.Key == key && flips.Add(1) <= 2}
		})
		if _, err := r.tier.Read(t.Context(), x.Base, 1); err != nil || flips.Load() < 3 {
			t.Errorf("bits flipped on the way: %v", err)
		}
		if s := r.stats(); s.Corrupt != 2 {
			t.Errorf("%d damaged parts were noticed, want 2", s.Corrupt)
		}
		r.close()

		r.mem.Corrupt(key, 500)
		r.open(tier.Options{})
		_, err := r.tier.Read(t.Context(), x.Base, 1)
		var c *tier.CorruptionError
		if !errors.As(err, &c) || c.Key != key || !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("bits flipped in the store: %v", err)
		}
		if _, err := r.tier.Read(t.Context(), x.End, 1); err != nil {
			t.Errorf("the range after it: %v", err)
		}
		_ = errors.Join(r.tier.Close(), r.events.Close(), r.hot.Close())
	})
}

// TestLeadAgainInTheSameEpoch: an event of the first leadership that lands late
// takes a sequence number of the second; the second goes on behind it.
func TestLeadAgainInTheSameEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		l, err := log.Open(t.Context(), "data", log.Options{FS: fs, Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if _, err := l.AppendRecords(t.Context(), log.Record{Value: make([]byte, 100)}); err != nil {
				t.Fatal(err)
			}
		}
		events := &tiertest.Events{}
		m, err := tier.NewManager(tier.Options{Store: memstore.New(), Events: events, Cluster: tier.ID{1}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Open(testPartition, l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
		if err != nil {
			t.Fatal(err)
		}
		p.Lead(5)
		settle()
		events.SetFault(func(log.PartitionID) tiertest.EventFault { return tiertest.EventLate })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := p.TrimTo(ctx, 10, "first"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("trim whose event is late: %v", err)
		}
		cancel()
		p.Follow()
		p.Lead(5)
		done := make(chan error, 1)
		go func() { done <- p.TrimTo(t.Context(), 20, "second") }()
		time.Sleep(10 * time.Millisecond)
		events.SetFault(nil)
		events.Land(nil)
		if err := <-done; err != nil {
			t.Errorf("trim of the second leadership: %v", err)
		}
		if v := p.View(); v.LogStart != 20 || v.Epoch != 5 {
			t.Errorf("view %+v", v)
		}

		if err := errors.Join(m.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestTwoWriters: a process that writes in another's epoch is noticed, and the
// leader stops rather than fight.
func TestTwoWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(100)
		settle()
		var on atomic.Bool
		on.Store(true)
		events := &tiertest.Events{}
		for _, b := range []tier.Event{{Partition: testPartition, Body: tier.Barrier{}}} {
			raw, err := tier.EncodeEvent(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := events.Append(t.Context(), testPartition, raw); err != nil {
				t.Fatal(err)
			}
		}
		r.close()
		l, err := log.Open(t.Context(), "data", log.Options{FS: r.fs, Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		m, err := tier.NewManager(tier.Options{Store: memstore.New(), Events: events, Cluster: tier.ID{1}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Open(testPartition, l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
		if err != nil {
			t.Fatal(err)
		}
		p.Lead(3)
		settle()
		// Just before each event of the leader the other one takes its place.
		seq := uint64(0)
		events.SetFault(func(log.PartitionID) tiertest.EventFault {
			if !on.CompareAndSwap(true, false) {
				return tiertest.EventCommitted
			}
			seq++
			raw, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: 3, Seq: seq,
				Body: tier.DeleteStarted{IDs: []tier.ID{{0xee}}}})
			if err != nil {
				t.Error(err)
			}
			_ = events.Append(t.Context(), testPartition, raw)
			on.Store(true)
			return tiertest.EventCommitted
		})
		if err := p.TrimTo(t.Context(), p.Log().LocalStart()+1, ""); !errors.Is(err, tier.ErrTwoWriters) {
			t.Errorf("trim: %v, want ErrTwoWriters", err)
		}
		if leading, _, err := p.Status(); leading || !errors.Is(err, tier.ErrTwoWriters) {
			t.Errorf("status: leading %v, %v", leading, err)
		}
		if _, err := p.Sweep(t.Context(), tier.SweepOptions{}); !errors.Is(err, tier.ErrTwoWriters) || errors.Is(err, tier.ErrNotLeader) {
			t.Errorf("sweep: %v, want ErrTwoWriters", err)
		}
		events.SetFault(nil)
		p.Follow()
		if _, err := p.Sweep(t.Context(), tier.SweepOptions{}); !errors.Is(err, tier.ErrNotLeader) {
			t.Errorf("sweep of who does not lead any more: %v, want ErrNotLeader", err)
		}
		p.Lead(4)
		settle()
		if leading, _, err := p.Status(); !leading || err != nil {
			t.Errorf("status in the next epoch: leading %v, %v", leading, err)
		}
		if err := errors.Join(m.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestFollowWaitsForTheUpload: after Follow nothing reads the local log.
func TestFollowWaitsForTheUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		stall := make(chan struct{})
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && !strings.HasSuffix(op.Key, "owner") {
				return tiertest.Fault{Stall: stall}
			}
			return tiertest.Fault{}
		})
		r.fill(100)
		settle()
		if s := r.stats(); s.Uploading != 1 || r.store.Active() != 1 {
			t.Errorf("%d uploads, %d operations", s.Uploading, r.store.Active())
		}
		r.tier.Partition().Follow()
		if r.store.Active() != 0 {
			t.Error("an upload is under way after Follow")
		}
		if state, _ := r.tier.Partition().State(); len(state.Pending()) != 1 {
			t.Errorf("pending %v", state.Pending())
		}
		close(stall)
		r.tier.Partition().Lead(50)
		settle()
		r.check(0)
		time.Sleep(2 * time.Hour)
		if state, _ := r.tier.Partition().State(); len(state.Pending()) != 0 || r.mem.Len() != state.Len()+1 {
			t.Errorf("pending %v, %d objects", state.Pending(), r.mem.Len())
		}
		r.close()
	})
}

func TestOffsetForTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		began := time.Now()
		for range 300 {
			r.fill(1)
			time.Sleep(time.Second)
		}
		settle()
		if v := r.tier.Partition().View(); v.TierEnd < 200 {
			t.Fatalf("tier end %d", v.TierEnd)
		}
		for _, i := range []int{0, 1, 17, 100, 199, 250, 299} {
			for _, back := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond} {
				off, ok, err := r.tier.OffsetForTime(t.Context(), began.Add(time.Duration(i)*time.Second-back))
				if off != log.Offset(i) || !ok || err != nil {
					t.Errorf("second %d less %v: %d, %v, %v", i, back, off, ok, err)
				}
			}
		}
		if _, ok, err := r.tier.OffsetForTime(t.Context(), began.Add(time.Hour)); ok || err != nil {
			t.Errorf("a time to come: %v, %v", ok, err)
		}
		if err := r.tier.TrimTo(t.Context(), 55); err != nil {
			t.Fatal(err)
		}
		if off, ok, err := r.tier.OffsetForTime(t.Context(), began); off != 55 || !ok || err != nil {
			t.Errorf("from the beginning: %d, %v, %v, want the log start", off, ok, err)
		}
		r.close()
	})
}

func TestOptionErrors(t *testing.T) {
	_, err := tier.NewManager(tier.Options{ChunkBytes: 5, MinBackoff: time.Hour, MaxBackoff: time.Second, Prefix: "a//b", Uploads: -1})
	for _, want := range []string{"Store", "Events", "Cluster", "ChunkBytes", "MinBackoff", "Prefix", "Uploads"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// TestReplicaStaysBelowItsHighWatermark: what a replica has not committed yet is
// neither dropped nor trimmed there, whatever the state says.
func TestReplicaStaysBelowItsHighWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPair(t)
		w.lead(0, 1)
		for range 100 {
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
		}
		w.hw[0].Store(100)
		w.hw[1].Store(30)
		w.parts[0].Kick()
		settle()
		if v := w.parts[1].View(); v.TierEnd < 60 {
			t.Fatalf("tier end %d", v.TierEnd)
		}
		if s := w.logs[1].LocalStart(); s > 30 || s == 0 {
			t.Errorf("local start %d at a high watermark of 30", s)
		}
		if err := w.parts[0].TrimTo(t.Context(), 50, ""); err != nil {
			t.Fatal(err)
		}
		settle()
		if s := w.logs[1].Start(); s > 30 {
			t.Errorf("log start %d at a high watermark of 30", s)
		}
		w.hw[1].Store(100)
		w.parts[1].Kick()
		settle()
		if s := w.logs[1].Start(); s != 50 {
			t.Errorf("log start %d when the high watermark has passed it", s)
		}
		if s, want := w.logs[1].LocalStart(), w.parts[1].View().TierEnd; s != want {
			t.Errorf("local start %d when the high watermark has passed the tier end %d", s, want)
		}
		w.close(t)
	})
}

// TestLogStartPassesAReader: a read that was under way when the log start passed it
// gets no records, also if they still came from the store.
func TestLogStartPassesAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(200)
		settle()
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			return tiertest.Fault{Delay: time.Duration(boolInt(op.Kind == "get")) * time.Second}
		})
		done := make(chan error, 1)
		go func() {
			_, err := r.tier.Partition().Read(t.Context(), 3, 1)
			done <- err
		}()
		time.Sleep(500 * time.Millisecond)
		if err := r.tier.TrimTo(t.Context(), 5); err != nil { // the object stays
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("read that the log start passed: %v", err)
		}
		r.close()
	})
}

// TestObsoleteUploadIsCutOff: when the log start passes a range, its upload ends at
// once, however slow the store is, and the object goes.
func TestObsoleteUploadIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		stall := make(chan struct{})
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && isSegment(op) {
				return tiertest.Fault{Stall: stall}
			}
			return tiertest.Fault{}
		})
		r.fill(100)
		settle()
		if r.store.Active() != 1 {
			t.Fatalf("%d operations under way", r.store.Active())
		}
		if err := r.tier.TrimTo(t.Context(), r.hot.End()); err != nil {
			t.Fatal(err)
		}
		settle()
		if n := r.store.Active(); n != 0 || r.hot.Start() != r.hot.End() {
			t.Errorf("%d operations under way, log start %d of %d", n, r.hot.Start(), r.hot.End())
		}
		close(stall)
		time.Sleep(2 * time.Hour)
		if state, _ := r.tier.Partition().State(); len(state.Pending()) != 0 || r.mem.Len() != 1 {
			t.Errorf("pending %+v, %d objects", state.Pending(), r.mem.Len())
		}
		r.close()
	})
}

// TestManyDeletions: of very many ranges below the log start only so many are under
// deletion at once, since each event looks through them; all go in the end.
func TestManyDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ranges = 3000
		events := &tiertest.Events{}
		seq := uint64(0)
		emit := func(body tier.Body) {
			t.Helper()
			b, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: 1, Seq: seq, Body: body})
			if err == nil {
				err = events.Append(t.Context(), testPartition, b)
			}
			if err != nil {
				t.Fatal(err)
			}
			seq++
		}
		emit(tier.Barrier{})
		for i := range ranges {
			id := tier.ID{1, byte(i), byte(i >> 8)}
			emit(tier.CopyStarted{ID: id, Base: log.Offset(i), End: log.Offset(i + 1), Deadline: time.UnixMilli(1)})
			emit(tier.CopyFinished{ID: id, BatchBytes: 1, ObjectBytes: 3, TailBytes: 1, MaxTimestamp: time.UnixMilli(1), Sealed: time.UnixMilli(1)})
		}
		emit(tier.LogStart{Start: ranges, Cause: tier.Cause{Kind: tier.CauseRequest}})
		store := tiertest.NewFaulty(memstore.New())
		m, err := tier.NewManager(tier.Options{Store: store, Events: events, Cluster: tier.ID{1}})
		if err != nil {
			t.Fatal(err)
		}
		l, err := log.Open(t.Context(), "data", log.Options{FS: logtest.NewFS(1), Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = errors.Join(m.Close(), l.Close()) }()
		time.Sleep(time.Second) // the owner is known
		store.SetDown(true)
		p, err := m.Open(testPartition, l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
		if err != nil {
			t.Fatal(err)
		}
		p.Lead(2)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s, _ := p.State(); len(s.Pending()) == 0 || len(s.Pending()) > 1024 || len(s.Pending())+len(s.Expired(ranges)) != ranges {
			t.Errorf("%d under deletion, %d wait", len(s.Pending()), len(s.Expired(ranges)))
		}
		store.SetDown(false)
		time.Sleep(time.Hour)
		synctest.Wait()
		if s, _ := p.State(); len(s.Pending()) > 0 || len(s.Expired(1)) > 0 {
			t.Errorf("%d under deletion, %d wait", len(s.Pending()), len(s.Expired(ranges)))
		}
	})
}
