package tier_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
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

// stalledEvents is a tier log whose reader can be held back.
type stalledEvents struct {
	*tiertest.Events
	stalled atomic.Bool
	lose    atomic.Pointer[func(tier.Event) bool] // says which events are left out
}

func (e *stalledEvents) Read(ctx context.Context, from log.Offset) iter.Seq2[tier.Committed, error] {
	return func(yield func(tier.Committed, error) bool) {
		if e.stalled.Load() {
			yield(tier.Committed{}, errors.New("stalled"))
			return
		}
		for c, err := range e.Events.Read(ctx, from) {
			if e.stalled.Load() {
				yield(tier.Committed{}, errors.New("stalled"))
				return
			}
			if lose := e.lose.Load(); lose != nil && err == nil {
				if ev, err := tier.DecodeEvent(c.Event); err == nil && (*lose)(ev) {
					continue
				}
			}
			if !yield(c, err) {
				return
			}
		}
	}
}

// A duo is a leader that writes checkpoints often, and a follower.
type duo struct {
	t      *testing.T
	store  *tiertest.Faulty
	mem    *memstore.Store
	events *tiertest.Events
	leader *duoNode
	other  *duoNode
}

type duoNode struct {
	fs      *logtest.FS
	events  *stalledEvents
	log     *log.Log
	manager *tier.Manager
	part    *tier.Partition
}

func newDuo(t *testing.T, inline int64, files bool) *duo {
	mem := memstore.New()
	d := &duo{t: t, mem: mem, store: tiertest.NewFaulty(mem), events: &tiertest.Events{}}
	d.leader, d.other = &duoNode{fs: logtest.NewFS(1)}, &duoNode{fs: logtest.NewFS(2)}
	d.open(d.leader, inline, files)
	d.open(d.other, inline, files)
	d.leader.part.Lead(1)
	return d
}

func (d *duo) open(n *duoNode, inline int64, files bool) {
	d.t.Helper()
	var err error
	if n.log, err = log.Open(d.t.Context(), "data", log.Options{FS: n.fs, Partition: testPartition, SegmentBytes: 2 << 10}); err != nil {
		d.t.Fatal(err)
	}
	n.events = &stalledEvents{Events: d.events}
	o := tier.Options{Store: d.store, Events: n.events, Cluster: tier.ID{1}, ChunkBytes: 4 << 10, CheckpointEvents: 10, BackupWindow: -1, ReaderGrace: -1}
	if files {
		o.StateFS, o.StateDir = n.fs, "data"
	}
	if n.manager, err = tier.NewManager(tier.WithInlineState(o, inline)); err != nil {
		d.t.Fatal(err)
	}
	l := n.log
	n.part, err = n.manager.Open(testPartition, l, tier.PartitionOptions{Tiered: true, HighWatermark: l.DurableEnd})
	if err != nil {
		d.t.Fatal(err)
	}
	m, p := n.manager, n.part
	d.t.Cleanup(func() { p.Close(); _ = errors.Join(m.Close(), l.Close()) })
}

func (d *duo) close(n *duoNode) {
	d.t.Helper()
	n.part.Close()
	if err := errors.Join(n.manager.Close(), n.log.Close()); err != nil {
		d.t.Error(err)
	}
}

// fill appends on the leader and lets it go into the store.
func (d *duo) fill(n int) {
	d.t.Helper()
	for i := range n {
		if _, err := d.leader.log.AppendRecords(d.t.Context(), log.Record{Value: value(i)}); err != nil {
			d.t.Fatal(err)
		}
	}
	d.leader.part.Kick()
	time.Sleep(2 * time.Minute)
	synctest.Wait()
}

// same checks that both know the same state.
func (d *duo) same(what string) {
	d.t.Helper()
	s, known := d.leader.part.State()
	o, otherKnown := d.other.part.State()
	if !known || !otherKnown || !s.Equal(o) {
		d.t.Errorf("%s: the follower knows %v: %+v, the leader %v: %+v", what, otherKnown, d.other.part.View(), known, d.leader.part.View())
	}
}

func (d *duo) start() log.Offset {
	d.t.Helper()
	start, err := d.events.Start(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return start
}

// TestTrimmedPast: a reader past which the tier log was trimmed knows nothing until it
// has read on from the checkpoints, does not lead before, and then knows all; whether
// states are in events or in manifests.
func TestTrimmedPast(t *testing.T) {
	for _, inline := range []int64{tier.MaxInlineState, 100} {
		t.Run(fmt.Sprint(inline), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDuo(t, inline, false)
				d.fill(100)
				d.same("before")
				d.other.events.stalled.Store(true)
				before := d.start()
				for range 4 {
					d.fill(100)
				}
				if d.start() <= before {
					t.Fatalf("the tier log starts at %d", d.start())
				}
				// It goes on at a moment when nothing can be read.
				d.events.SetDown(true)
				d.other.events.stalled.Store(false)
				time.Sleep(time.Minute)
				d.events.SetDown(false)
				d.store.SetDown(true)
				time.Sleep(time.Minute)
				synctest.Wait()
				if known := d.other.part.View().Known; known != (inline > 100) {
					t.Errorf("with the store down the state is known: %v", known)
				}
				if inline == 100 {
					d.other.part.Lead(9)
					time.Sleep(time.Minute)
					if leading, _, _ := d.other.part.Status(); leading {
						t.Error("a node leads that has no state")
					}
					d.other.part.Follow()
				}
				d.store.SetDown(false)
				time.Sleep(time.Minute)
				synctest.Wait()
				d.same("after")
				d.fill(100)
				d.same("later")
			})
		})
	}
}

// TestTurnPassedUnseen: a leader that reads on from a checkpoint behind its own event,
// which another node has written, does not wait for that event for ever; what the state
// shows of it counts as done.
func TestTurnPassedUnseen(t *testing.T) {
	for _, upload := range []bool{false, true} {
		t.Run(fmt.Sprintf("upload=%v", upload), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDuo(t, tier.MaxInlineState, false)
				d.fill(100)
				d.leader.events.stalled.Store(true)
				done := make(chan error, 1)
				if upload {
					d.fill(40)
				} else {
					go func() { done <- d.leader.part.TrimTo(t.Context(), 10, "") }()
				}
				time.Sleep(time.Second)
				synctest.Wait()
				var s tier.State
				for _, b := range d.events.All() {
					if e, err := tier.DecodeEvent(b); err == nil {
						s.Apply(e)
					}
				}
				if before, _ := d.leader.part.State(); before.Seq() != s.Seq()-1 {
					t.Fatalf("the leader has read up to event %d of %d", before.Seq(), s.Seq())
				}
				b, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: s.Epoch(), Seq: s.Seq() + 1, Body: tier.CheckpointOf(&s)})
				if err == nil {
					err = d.events.Append(t.Context(), testPartition, b)
				}
				if err == nil {
					err = d.events.Trim(t.Context(), log.Offset(d.events.Len()-1))
				}
				if err != nil {
					t.Fatal(err)
				}
				d.leader.events.stalled.Store(false)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if !upload {
					select {
					case err := <-done:
						if err != nil {
							t.Errorf("trim: %v", err)
						}
					default:
						t.Error("the trim has not returned")
					}
				}
				d.same("after")
				if _, n := d.leader.part.Backlog(); n > 0 {
					t.Errorf("%d ranges are not uploaded", n)
				}
				if n := d.leader.manager.Stats().Events[tier.RefusedID]; n > 0 {
					t.Errorf("%d events were refused", n)
				}
			})
		})
	}
}

// TestUnknownWhileBehind: from the moment that a reader learns that it is behind the
// start until it has come to the end, its view is unknown.
func TestUnknownWhileBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		d.fill(100)
		d.other.events.stalled.Store(true)
		for range 4 {
			d.fill(100)
		}
		var wrong atomic.Int64
		stop := make(chan struct{})
		go func() {
			want, _ := d.leader.part.State()
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				if s, known := d.other.part.State(); known && s.LogStart() == 0 && s.TierEnd() < want.TierEnd() && d.other.manager.Stats().Applied >= d.start() {
					wrong.Add(1)
				}
			}
		}()
		d.other.events.stalled.Store(false)
		time.Sleep(time.Minute)
		close(stop)
		synctest.Wait()
		if wrong.Load() > 0 {
			t.Errorf("an old state passed for known %d times", wrong.Load())
		}
		d.same("after")
	})
}

// TestStateFileWhileUnclear: what is not the tier log's state is not saved for it.
func TestStateFileWhileUnclear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, 100, true)
		for range 4 {
			d.fill(100)
		}
		d.close(d.other)
		if err := d.other.fs.Remove("data/tier-state"); err != nil {
			t.Fatal(err)
		}
		d.store.SetDown(true)
		d.open(d.other, 100, true)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if d.other.part.View().Known {
			t.Error("known without its manifest")
		}
		d.close(d.other)
		if _, err := d.other.fs.Stat("data/tier-state"); err == nil {
			t.Error("an unclear state was saved")
		}
		d.store.SetDown(false)
		d.open(d.other, 100, true)
		time.Sleep(time.Minute)
		synctest.Wait()
		d.same("after")
	})
}

// TestStateFile: with it, a restart reads nothing again; without it, damaged, or with
// another cluster's, the restart comes to the same state.
func TestStateFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, true)
		for range 3 {
			d.fill(100)
		}
		for _, hurt := range []struct {
			name string
			do   func(fs *logtest.FS) error
		}{
			{"intact", func(*logtest.FS) error { return nil }},
			{"gone", func(fs *logtest.FS) error { return fs.Remove("data/tier-state") }},
			{"damaged", func(fs *logtest.FS) error {
				f, err := fs.Open("data/tier-state", true)
				if err == nil {
					_, err = f.WriteAt([]byte("x"), 60)
					err = errors.Join(err, f.Close())
				}
				return err
			}},
			{"empty", func(fs *logtest.FS) error {
				f, err := fs.Open("data/tier-state", true)
				if err == nil {
					err = errors.Join(f.Truncate(0), f.Close())
				}
				return err
			}},
		} {
			d.close(d.other)
			if err := hurt.do(d.other.fs); err != nil {
				t.Fatal(err)
			}
			d.open(d.other, tier.MaxInlineState, true)
			time.Sleep(time.Minute)
			synctest.Wait()
			d.same(hurt.name)
			var taken int64
			for _, n := range d.other.manager.Stats().Events {
				taken += n
			}
			if hurt.name == "intact" && taken > 0 {
				t.Errorf("%s: %d events were read again", hurt.name, taken)
			}
			if hurt.name != "intact" && taken == 0 {
				t.Errorf("%s: nothing was read again", hurt.name)
			}
		}
	})
}

// TestManifests: one manifest a partition, also after many checkpoints, and audits know
// it and miss it.
func TestManifests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, 100, false)
		for range 5 {
			d.fill(100)
		}
		n, key := 0, ""
		for info, err := range d.mem.List(t.Context(), "", "") {
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(info.Key, "/manifest-") {
				n, key = n+1, info.Key
			}
		}
		if s := d.leader.manager.Stats(); n != 1 || s.Checkpoints < 3 || s.PinnedBy != testPartition || s.Pin < s.LogStart || s.LogStart == 0 {
			t.Errorf("%d manifests after %d checkpoints; the tier log starts at %d, pinned at %d by %v", n, s.Checkpoints, s.LogStart, s.Pin, s.PinnedBy)
		}
		audit := func() *tier.AuditReport {
			t.Helper()
			events := func(yield func(tier.Committed, error) bool) {
				all := d.events.All()
				for at := int(d.start()); at < len(all); at++ {
					if !yield(tier.Committed{Offset: log.Offset(at), Event: all[at]}, nil) {
						return
					}
				}
			}
			a, err := tier.Audit(t.Context(), tier.AuditOptions{Store: d.mem, Events: events, Depth: tier.AuditBytes})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		if a := audit(); !a.Clean() || a.Ranges != d.leader.part.View().Ranges {
			t.Errorf("audit of a trimmed tier log: %+v", a)
		}
		if r := d.mem.Delete(t.Context(), []string{key}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		found := false
		for _, f := range audit().Findings {
			found = found || f.Kind == tier.FindingManifest && f.Key == key
		}
		if !found {
			t.Error("audit does not miss the manifest")
		}
	})
}

// TestIdlePartitionsUnpin: partitions that nothing happens to don't keep the tier log
// long, and their checkpoints don't keep each other busy.
func TestIdlePartitionsUnpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = 30
		mem := memstore.New()
		events := &tiertest.Events{}
		fs := logtest.NewFS(1)
		m, err := tier.NewManager(tier.Options{Store: mem, Events: events, Cluster: tier.ID{1}, CheckpointEvents: 20})
		if err != nil {
			t.Fatal(err)
		}
		var logs []*log.Log
		for i := range idle + 1 {
			id := log.PartitionID{Topic: log.TopicID{1}, Index: int32(i)}
			l, err := log.Open(t.Context(), fmt.Sprintf("p%d", i), log.Options{FS: fs, Partition: id, SegmentBytes: 1 << 10})
			if err != nil {
				t.Fatal(err)
			}
			logs = append(logs, l)
			p, err := m.Open(id, l, tier.PartitionOptions{Tiered: true, HighWatermark: l.DurableEnd})
			if err != nil {
				t.Fatal(err)
			}
			p.Lead(1)
		}
		busy := m.Get(log.PartitionID{Topic: log.TopicID{1}, Index: idle})
		for range 400 {
			if _, err := busy.Log().AppendRecords(t.Context(), log.Record{Value: make([]byte, 600)}); err != nil {
				t.Fatal(err)
			}
			busy.Kick()
			time.Sleep(30 * time.Second)
		}
		time.Sleep(time.Hour)
		s := m.Stats()
		if length := int64(events.Len()) - int64(s.LogStart); s.LogStart == 0 || length > 3*4*(idle+1) {
			t.Errorf("%d entries of the tier log are kept, from %d on, pinned by %v", length, s.LogStart, s.PinnedBy)
		}
		before := events.Len()
		time.Sleep(7 * 24 * time.Hour)
		if n := events.Len() - before; n > 2*(idle+1) {
			t.Errorf("a quiet week has %d events", n)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		for _, l := range logs {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
