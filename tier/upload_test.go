package tier_test

import (
	"bytes"
	"errors"
	"fmt"
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

// A crowd is a node with many partitions, all of which it leads.
type crowd struct {
	t       *testing.T
	mem     *memstore.Store
	store   *tiertest.Faulty
	events  *tiertest.Events
	manager *tier.Manager
	logs    []*log.Log
	parts   []*tier.Partition

	mu      sync.Mutex
	uploads []upload
}

type upload struct {
	at time.Time
	tier.UploadedInfo
}

// newCrowd opens n partitions. change may be nil.
func newCrowd(t *testing.T, n int, o tier.Options, change func(*log.Options)) *crowd {
	t.Helper()
	c := &crowd{t: t, mem: memstore.New(), events: &tiertest.Events{}}
	c.store = tiertest.NewFaulty(c.mem)
	o.Store, o.Events, o.Cluster, o.ChunkBytes = c.store, c.events, tier.ID{1}, 4<<10
	o.BackupWindow, o.ReaderGrace = -1, -1
	o.Hooks.Uploaded = func(i tier.UploadedInfo) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.uploads = append(c.uploads, upload{time.Now(), i})
	}
	var err error
	if c.manager, err = tier.NewManager(o); err != nil {
		t.Fatal(err)
	}
	fs := logtest.NewFS(1)
	for i := range n {
		id := log.PartitionID{Topic: testPartition.Topic, Index: int32(i)}
		lo := log.Options{FS: fs, Partition: id, SegmentBytes: 4 << 10}
		if change != nil {
			change(&lo)
		}
		l, err := log.Open(t.Context(), fmt.Sprintf("data/%d", i), lo)
		if err != nil {
			t.Fatal(err)
		}
		c.logs = append(c.logs, l)
		p, err := c.manager.Open(id, l, tier.PartitionOptions{HighWatermark: l.DurableEnd, Tiered: true})
		if err != nil {
			t.Fatal(err)
		}
		p.Lead(1)
		c.parts = append(c.parts, p)
	}
	t.Cleanup(c.close)
	return c
}

func (c *crowd) close() {
	_ = c.manager.Close()
	for _, l := range c.logs {
		_ = l.Close()
	}
}

// fill appends n records of size bytes to partition i, one a batch.
func (c *crowd) fill(i, n, size int) {
	c.t.Helper()
	for range n {
		v := bytes.Repeat([]byte{byte(c.logs[i].End())}, size)
		if _, err := c.logs[i].AppendRecords(c.t.Context(), log.Record{Value: v}); err != nil {
			c.t.Fatal(err)
		}
	}
	c.parts[i].Kick()
}

// seen returns the finished uploads so far.
func (c *crowd) seen() []upload {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]upload(nil), c.uploads...)
}

// TestUploadRate: all uploads together keep to the rate, whatever the size of an
// object and the number of partitions; nothing but uploads is slowed down, and the
// deadline grants the time that it takes.
func TestUploadRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { uploadRate(t, 8, 12, 20<<10) })
}

func uploadRate(t *testing.T, parts, segments, segmentBytes int) {
	const rate = 100 << 10
	c := newCrowd(t, parts, tier.Options{UploadBytesPerSecond: rate, UploadDeadline: time.Second}, func(o *log.Options) {
		o.SegmentBytes = int64(segmentBytes)
	})
	began := time.Now()
	for i := range parts {
		c.fill(i, (segments+1)*segmentBytes/(8<<10), 8<<10)
	}
	if took := time.Since(began); took > 0 {
		t.Errorf("appends took %v", took)
	}
	for range 200 {
		time.Sleep(500 * time.Millisecond)
		put, _ := c.store.Bytes()
		if most := int64(rate*(time.Since(began)+time.Second).Seconds()) + int64(segmentBytes); put > most {
			t.Fatalf("%d bytes after %v", put, time.Since(began))
		}
	}
	ups := c.seen()
	if len(ups) < parts*segments {
		t.Fatalf("%d uploads in %v, %+v", len(ups), time.Since(began), c.manager.Stats())
	}
	total := int64(0)
	for _, u := range ups {
		total += u.Bytes
	}
	want := time.Duration(float64(total) / rate * float64(time.Second))
	// The first is planned before anything flows, at the same rate.
	if last := ups[len(ups)-1].at.Sub(began); last < want-time.Second || last > 2*want {
		t.Errorf("%d bytes took %v, the rate says %v", total, last, want)
	}
	if s := c.manager.Stats(); s.UploadFailures > 0 {
		t.Errorf("%+v", s)
	}
}

// TestPlanAhead: while an object is on its way the next one, and no other, is read from
// the log and planned, and what was planned is not read for that again.
func TestPlanAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 1, tier.Options{}, func(o *log.Options) { o.SegmentBytes = 64 << 10 })
		for !c.manager.Stats().OwnerChecked {
			time.Sleep(time.Second)
		}
		c.store.SetDelay(time.Minute)
		c.manager.Pause() // no segment is sealed after the first upload has looked for the next
		c.fill(0, 70, 4<<10)
		puts := c.store.Counts().Put
		c.manager.Resume()
		var sealed []int64
		for _, s := range c.logs[0].Segments() {
			if s.Sealed {
				sealed = append(sealed, s.Bytes)
			}
		}
		if len(sealed) < 3 {
			t.Fatalf("%d sealed segments", len(sealed))
		}
		for c.store.Counts().Put == puts {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		// The first chunk of the first object is read a second time, to be sent.
		read, least := c.logs[0].Stats().ReadBytes, sealed[0]+sealed[1]
		if read < least || read > least+8<<10 {
			t.Errorf("during the first upload %d bytes were read of the log, the first two objects have %d", read, least)
		}
		for len(c.seen()) < len(sealed) {
			time.Sleep(time.Second)
		}
		var total int64
		for _, n := range sealed {
			total += n
		}
		if read := c.logs[0].Stats().ReadBytes; read != 2*total {
			t.Errorf("%d bytes were read of the log, want all %d twice", read, total)
		}
	})
}

// TestUploadRateIsShared: a large object does not hold up the small ones of others.
func TestUploadRateIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2, tier.Options{UploadBytesPerSecond: 100 << 10}, func(o *log.Options) {
			o.SegmentBytes = 32 << 10
			if o.Partition.Index == 0 {
				o.SegmentBytes = 4 << 20
			}
		})
		c.fill(0, 600, 8<<10) // 41 s to plan, 41 s to send
		time.Sleep(time.Minute)
		began := time.Now()
		c.fill(1, 6, 8<<10)
		time.Sleep(10 * time.Second)
		if ups := c.seen(); len(ups) != 1 || ups[0].Partition.Index != 1 {
			t.Errorf("after %v: %+v", time.Since(began), ups)
		}
		time.Sleep(time.Minute)
		if ups := c.seen(); len(ups) != 2 || ups[1].Partition.Index != 0 {
			t.Errorf("after %v: %+v", time.Since(began), ups)
		}
	})
}

// TestAgeIsSpread: partitions that were made at the same moment reach the store one by
// one over the interval, and all of them do.
func TestAgeIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parts, age, interval = 64, 10 * time.Minute, time.Minute
		c := newCrowd(t, parts, tier.Options{Interval: interval}, func(o *log.Options) { o.SegmentAge = age })
		began := time.Now()
		for i := range parts {
			c.fill(i, 1, 100)
		}
		time.Sleep(age - time.Second)
		if ups := c.seen(); len(ups) > 0 {
			t.Fatalf("before their age: %d", len(ups))
		}
		time.Sleep(time.Second + 2*interval)
		ups := c.seen()
		if len(ups) != parts {
			t.Fatalf("%d of %d are in the store %v after their age", len(ups), parts, 2*interval)
		}
		var slots [8]int
		for _, u := range ups {
			slots[int(u.at.Sub(began)%interval*8/interval)]++
		}
		for i, n := range slots {
			if n == 0 || n > parts/2 {
				t.Errorf("slot %d of the interval has %d of %d: %v", i, n, parts, slots)
			}
		}
	})
}

// TestUploadsHang: a store whose calls never return costs an upload its deadline, and
// then the place is free again: other partitions, and the same, go on. What the store
// does later with the bytes that it has counts for nothing.
func TestUploadsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 3, tier.Options{Uploads: 2, UploadDeadline: 10 * time.Minute}, nil)
		hang := make(chan struct{})
		var hung atomic.Int32
		c.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if k, ok := tier.ParseKey("", op.Key); op.Kind == "put" && ok && k.Partition.Index < 2 && hung.Load() < 2 {
				hung.Add(1)
				return tiertest.Fault{Hang: hang, After: 1000}
			}
			return tiertest.Fault{}
		})
		c.fill(0, 50, 100)
		c.fill(1, 50, 100)
		settle()
		c.fill(2, 50, 100)
		time.Sleep(9 * time.Minute)
		if s := c.manager.Stats(); s.Uploading != 2 || s.Uploads > 0 || s.StoreHangs > 0 || s.BacklogRanges < 3 {
			t.Errorf("both places are taken: %+v", s)
		}
		time.Sleep(2 * time.Minute)
		if s := c.manager.Stats(); s.StoreHangs != 2 || s.StoreAbandoned != 2 || s.BacklogRanges != 0 || s.UploadFailures != 2 {
			t.Errorf("after the deadline: %+v", s)
		}
		close(hang)
		time.Sleep(time.Hour)
		if s := c.manager.Stats(); s.StoreHangs != 0 || s.StoreAbandoned != 2 || s.PendingDeletions > 0 {
			t.Errorf("after the calls have returned: %+v", s)
		}
		objects := 0
		for _, p := range c.parts {
			s, _ := p.State()
			objects += s.Len()
		}
		if n := c.mem.Len(); n != objects+1 {
			t.Errorf("%d objects for %d ranges", n, objects)
		}
		if err := c.mem.Check(); err != nil {
			t.Error(err)
		}
		if n := c.store.Active(); n != 0 {
			t.Errorf("%d operations are under way", n)
		}
	})
}

// TestEverythingHangs: a store that never returns from anything holds a bounded
// number of goroutines; Follow and Close are through soon, and hot reads don't notice.
func TestEverythingHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parts = 18
		c := newCrowd(t, parts, tier.Options{Uploads: 8, UploadDeadline: time.Minute, StoreTimeout: time.Second}, nil)
		for i := range c.parts {
			c.fill(i, 50, 100)
		}
		settle()
		c.mu.Lock()
		tiered := len(c.uploads)
		c.mu.Unlock()
		if tiered < parts {
			t.Fatalf("%d uploads", tiered)
		}
		hang := make(chan struct{})
		c.store.SetFault(func(op tiertest.Op) tiertest.Fault { return tiertest.Fault{Hang: hang} })
		for i := range c.parts {
			c.fill(i, 50, 100)
			if err := c.parts[i].TrimTo(t.Context(), 10, ""); err != nil {
				t.Fatal(err)
			}
		}
		for i := range parts {
			if _, err := c.parts[i].Read(t.Context(), 10, 1); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("a cold read: %v", err)
			}
		}
		time.Sleep(10 * time.Minute)
		s := c.manager.Stats()
		if s.StoreHangs < 16 || s.StoreHangs > 5*16 || c.store.Active() != s.StoreHangs {
			t.Errorf("%d calls hang, %d operations: %+v", s.StoreHangs, c.store.Active(), s)
		}
		if s.BacklogRanges < parts {
			t.Errorf("backlog %+v", s)
		}
		began := time.Now()
		c.parts[0].Follow()
		c.close()
		if took := time.Since(began); took > time.Minute {
			t.Errorf("Follow and Close took %v", took)
		}
		close(hang)
		synctest.Wait()
		if n := c.store.Active(); n != 0 {
			t.Errorf("%d operations are under way", n)
		}
	})
}

// TestStorePanics: a store that panics fails the call, and what it is for; nothing
// else.
func TestStorePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2, tier.Options{}, nil)
		var broken atomic.Bool
		broken.Store(true)
		c.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if k, ok := tier.ParseKey("", op.Key); ok && k.Partition.Index == 0 && broken.Load() {
				return tiertest.Fault{Panic: "a bug of the store", After: 500 * int64(op.N%2)}
			}
			return tiertest.Fault{}
		})
		for i := range c.parts {
			c.fill(i, 50, 100)
		}
		time.Sleep(time.Minute)
		if v := c.parts[1].View(); v.TierEnd == 0 {
			t.Error("the other partition is held up")
		}
		_, _, blocked := c.parts[0].Status()
		if s := c.manager.Stats(); s.StorePanics < 3 || s.StoreHangs > 0 || blocked == nil || c.parts[0].View().TierEnd != 0 {
			t.Errorf("%+v, blocked by %v", s, blocked)
		}
		broken.Store(false)
		time.Sleep(time.Hour)
		if s := c.manager.Stats(); s.BacklogRanges != 0 || s.PendingDeletions != 0 {
			t.Errorf("%+v", s)
		}
		broken.Store(true)
		if _, err := c.parts[0].Read(t.Context(), 0, 1); !errors.Is(err, tier.ErrUnavailable) {
			t.Errorf("a cold read: %v", err)
		}
	})
}

// TestPause: while it lasts no upload begins, the backlog shows what waits, nothing
// is dropped; then everything goes on.
func TestPause(t *testing.T) {
	pauses := map[string]func(c *crowd, paused bool){
		"node": func(c *crowd, paused bool) {
			if paused {
				c.manager.Pause()
			} else {
				c.manager.Resume()
			}
		},
		"partition": func(c *crowd, paused bool) {
			for i, p := range c.parts {
				if err := p.SetOptions(tier.PartitionOptions{HighWatermark: c.logs[i].DurableEnd, Tiered: true, Paused: paused, LocalRetentionAge: 10 * time.Minute}); err != nil {
					c.t.Error(err)
				}
			}
		},
	}
	for name, pause := range pauses {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t, 2, tier.Options{}, nil)
				for i, p := range c.parts {
					o := tier.PartitionOptions{HighWatermark: c.logs[i].DurableEnd, Tiered: true, LocalRetentionAge: 10 * time.Minute}
					if err := p.SetOptions(o); err != nil {
						t.Fatal(err)
					}
					c.fill(i, 60, 100)
				}
				settle()
				pause(c, true)
				settle()
				puts := c.store.Counts().Put
				local := c.logs[0].LocalStart()
				var sealed time.Time
				for i := range c.parts {
					c.fill(i, 200, 100)
				}
				sealed = time.Now()
				time.Sleep(time.Hour)
				s := c.manager.Stats()
				if s.Paused != (name == "node") || c.store.Counts().Put > puts || s.BacklogRanges < 4 || s.BacklogOldest.After(sealed) || s.BacklogOldest.IsZero() {
					t.Errorf("paused: %+v, %d puts", s, c.store.Counts().Put-puts)
				}
				if at := c.logs[0].LocalStart(); at != local || at != 0 || c.parts[0].View().TierEnd == 0 {
					t.Errorf("local start %d, %d before, tier end %d", at, local, c.parts[0].View().TierEnd)
				}
				// A request is served.
				if err := c.parts[0].TrimTo(t.Context(), c.parts[0].View().TierEnd, ""); err != nil {
					t.Error(err)
				}
				settle()
				if n := c.store.Counts().Delete; n == 0 {
					t.Error("deletions are paused too")
				}
				pause(c, false)
				settle()
				if s := c.manager.Stats(); s.BacklogRanges != 0 || !s.BacklogOldest.IsZero() || s.Paused {
					t.Errorf("resumed: %+v", s)
				}
				for i, l := range c.logs {
					if l.LocalStart() != c.parts[i].View().TierEnd {
						t.Errorf("local start %d, tier end %d", l.LocalStart(), c.parts[i].View().TierEnd)
					}
				}
			})
		})
	}
}

// TestPauseLetsAnUploadEnd: one that is under way goes on.
func TestPauseLetsAnUploadEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 1, tier.Options{}, nil)
		c.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			return tiertest.Fault{BytesPerSecond: 100}
		})
		c.fill(0, 200, 100)
		settle()
		c.manager.Pause()
		time.Sleep(time.Hour)
		if v := c.parts[0].View(); v.Ranges != 1 {
			t.Errorf("%d ranges", v.Ranges)
		}
	})
}

// TestBackfill: what was there before tiering was switched on goes into the store,
// from the log start on.
func TestBackfill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 1, tier.Options{}, nil)
		off := tier.PartitionOptions{HighWatermark: c.logs[0].DurableEnd}
		if err := c.parts[0].SetOptions(off); err != nil {
			t.Fatal(err)
		}
		c.fill(0, 300, 100)
		if err := c.parts[0].TrimTo(t.Context(), 20, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if b, n := c.parts[0].Backlog(); b != 0 || n != 0 || len(c.seen()) > 0 || c.logs[0].LocalStart() != 20 {
			t.Errorf("not tiered: backlog %d, %d uploads, local start %d", n, len(c.seen()), c.logs[0].LocalStart())
		}
		on := off
		on.Tiered = true
		if err := c.parts[0].SetOptions(on); err != nil {
			t.Fatal(err)
		}
		settle()
		v := c.parts[0].View()
		if v.LogStart != 20 || v.TierEnd < 250 || v.Ranges < 5 || c.logs[0].LocalStart() != v.TierEnd {
			t.Errorf("%+v, local start %d", v, c.logs[0].LocalStart())
		}
		for at := log.Offset(20); at < v.TierEnd; {
			s, err := c.parts[0].Read(t.Context(), at, 1)
			if err != nil {
				t.Fatal(err)
			}
			at = s.End()
			s.Release()
		}
	})
}
