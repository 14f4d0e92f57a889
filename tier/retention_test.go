package tier_test

import (
	"errors"
	"fmt"
	"runtime"
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

func TestRetention(t *testing.T) {
	tests := []struct {
		name  string
		o     tier.PartitionOptions
		check func(t *testing.T, r *rig, v tier.View)
		cause tier.CauseKind
	}{
		{"bytes", tier.PartitionOptions{RetentionBytes: 15_000, Note: "policy 7"}, func(t *testing.T, r *rig, v tier.View) {
			total := v.Bytes + r.hot.Stats().LocalBytes
			if total < 15_000 || total > 15_000+5000 {
				t.Errorf("%d bytes are left", total)
			}
		}, tier.CauseBytes},
		{"age", tier.PartitionOptions{RetentionAge: time.Hour}, func(t *testing.T, r *rig, v tier.View) {
			if v.Ranges != 0 || v.LogStart == 0 {
				t.Errorf("%d ranges are left after two hours, log start %d", v.Ranges, v.LogStart)
			}
		}, tier.CauseAge},
		{"none", tier.PartitionOptions{}, func(t *testing.T, r *rig, v tier.View) {
			if v.LogStart != 0 {
				t.Errorf("log start %d without a policy", v.LogStart)
			}
		}, tier.CauseNone},
		{"negative", tier.PartitionOptions{RetentionAge: -1, RetentionBytes: -1}, func(t *testing.T, r *rig, v tier.View) {
			if v.LogStart != 0 {
				t.Errorf("log start %d without a policy", v.LogStart)
			}
		}, tier.CauseNone},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				causes := map[tier.CauseKind]int{}
				r := newRig(t, tier.Options{Partition: test.o, Hooks: tier.Hooks{Applied: func(a tier.AppliedInfo) {
					if b, ok := a.Event.Body.(tier.LogStart); ok {
						causes[b.Cause.Kind]++
						if b.Cause.Note != test.o.Note {
							t.Errorf("cause %+v", b.Cause)
						}
					}
				}}})
				r.fill(400)
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				v := r.tier.Partition().View()
				test.check(t, r, v)
				if want := min(1, int(test.cause)); len(causes) != want || want == 1 && causes[test.cause] == 0 {
					t.Errorf("causes %v", causes)
				}
				if r.hot.Start() != v.LogStart || r.mem.Len() != v.Ranges+1 {
					t.Errorf("local log start %d, state %d; %d objects for %d ranges", r.hot.Start(), v.LogStart, r.mem.Len(), v.Ranges)
				}
				if v.LogStart > 0 {
					if _, err := r.tier.Read(t.Context(), v.LogStart-1, 1); !errors.Is(err, log.ErrOffsetOutOfRange) {
						t.Errorf("read below the log start: %v", err)
					}
				}
				r.check(v.LogStart)
				r.close()
			})
		})
	}
}

func TestLocalRetention(t *testing.T) {
	tests := []struct {
		name  string
		o     tier.PartitionOptions
		check func(t *testing.T, r *rig, local int64)
	}{
		{"none", tier.PartitionOptions{}, func(t *testing.T, r *rig, local int64) {
			if r.hot.LocalStart() != r.tier.Partition().View().TierEnd {
				t.Errorf("local start %d", r.hot.LocalStart())
			}
		}},
		{"bytes", tier.PartitionOptions{LocalRetentionBytes: 12_000}, func(t *testing.T, r *rig, local int64) {
			if local < 12_000 || local > 12_000+5000 {
				t.Errorf("%d local bytes", local)
			}
		}},
		{"age", tier.PartitionOptions{LocalRetentionAge: time.Hour}, func(t *testing.T, r *rig, local int64) {
			if r.hot.LocalStart() != 0 {
				t.Errorf("local start %d after a second", r.hot.LocalStart())
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if r.hot.LocalStart() != r.tier.Partition().View().TierEnd {
				t.Errorf("local start %d after an hour", r.hot.LocalStart())
			}
		}},
		{"all", tier.PartitionOptions{LocalRetentionBytes: -1}, func(t *testing.T, r *rig, local int64) {
			if r.hot.LocalStart() != 0 {
				t.Errorf("local start %d", r.hot.LocalStart())
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.Options{Partition: test.o})
				r.fill(400)
				settle()
				test.check(t, r, r.hot.Stats().LocalBytes)
				r.check(0)
				r.close()
			})
		})
	}
}

// TestSevenDays: a week of virtual time over a thousand partitions costs a pass an
// interval, and no goroutine a partition.
func TestSevenDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		disk, err := log.NewDisk(log.DiskOptions{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		store := tiertest.NewFaulty(memstore.New())
		events := &tiertest.Events{}
		const interval, week = 5 * time.Minute, 7 * 24 * time.Hour
		m, err := tier.NewManager(tier.Options{Store: store, Events: events, Cluster: tier.ID{1}, Interval: interval})
		if err != nil {
			t.Fatal(err)
		}
		const n = 200
		var logs []*log.Log
		var asked atomic.Int64 // for a high watermark
		before := runtime.NumGoroutine()
		for i := range n {
			id := log.PartitionID{Topic: log.TopicID{1}, Index: int32(i)}
			l, err := log.Open(t.Context(), fmt.Sprintf("p%d", i), log.Options{Disk: disk, Partition: id, SegmentBytes: 1 << 10})
			if err != nil {
				t.Fatal(err)
			}
			logs = append(logs, l)
			hw := func() log.Offset { asked.Add(1); return l.DurableEnd() }
			p, err := m.Open(id, l, tier.PartitionOptions{Tiered: true, HighWatermark: hw, RetentionAge: 24 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			p.Lead(1)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := runtime.NumGoroutine() - before; got > 10 {
			t.Errorf("%d idle partitions have %d goroutines", n, got)
		}
		if events.Len() != n {
			t.Errorf("%d events, want a barrier each", events.Len())
		}
		asked.Store(0)
		time.Sleep(week)
		synctest.Wait()
		if got, passes := asked.Load(), int64(n*(week/interval+1)); got > 3*passes {
			t.Errorf("a week asked for %d high watermarks, want at most 3 for each of %d passes", got, passes)
		}
		if c := store.Counts(); c != (tiertest.Counts{Put: 1}) || events.Len() != n {
			t.Errorf("a quiet week: %+v, %d events", c, events.Len())
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		for _, l := range logs {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestSlowSegmentsAgeIntoTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		l, err := log.Open(t.Context(), "data", log.Options{FS: fs, Partition: testPartition, SegmentAge: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		events, err := tier.OpenLocalEvents(t.Context(), "events", tier.LocalOptions{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		tl, err := tier.Open(t.Context(), l, tier.Options{Store: memstore.New(), Events: events, Interval: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tl.AppendRecords(t.Context(), log.Record{Value: []byte("alone")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		if v := tl.Partition().View(); v.TierEnd != 1 || l.LocalStart() != 1 {
			t.Errorf("tier end %d, local start %d: a record of 12 minutes is not in the store", v.TierEnd, l.LocalStart())
		}
		if err := errors.Join(tl.Close(), events.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestAdoptedLogStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, fs: logtest.NewFS(1), mem: memstore.New()}
		r.store = tiertest.NewFaulty(r.mem)
		l, err := log.Open(t.Context(), "data", log.Options{FS: r.fs, Partition: testPartition, SegmentBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		for ; r.next < 200; r.next++ {
			if _, err := l.AppendRecords(t.Context(), log.Record{Value: value(r.next)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.TrimTo(t.Context(), 90); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		r.open(tier.Options{})
		settle()
		if v := r.tier.Partition().View(); v.LogStart != 90 || v.Ranges == 0 {
			t.Errorf("view %+v", v)
		}
		r.check(90)
		r.close()
	})
}

// TestRetentionStaysBelowTheHighWatermark: retention never deletes what is not
// committed, however small the limit.
func TestRetentionStaysBelowTheHighWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPair(t)
		if err := w.parts[0].SetOptions(tier.PartitionOptions{
			HighWatermark: func() log.Offset { return log.Offset(w.hw[0].Load()) }, RetentionBytes: 1, RetentionAge: time.Minute,
		}); err != nil {
			t.Fatal(err)
		}
		w.lead(0, 1)
		for i := range 100 {
			if _, err := w.logs[0].AppendRecords(t.Context(), log.Record{Value: value(i)}); err != nil {
				t.Fatal(err)
			}
		}
		w.hw[0].Store(30)
		w.parts[0].Kick()
		time.Sleep(time.Hour)
		if s := w.parts[0].View().LogStart; s == 0 || s > 30 {
			t.Errorf("log start %d at a high watermark of 30", s)
		}
		w.close(t)
	})
}
