package tier_test

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// Each test here is for one guard in testdata/mutations.txt that nothing else notices.

// What is in the store under the key of an upload is not taken for the object, even if
// the store says that there is one already: the range goes up again, under another key.
func TestOtherContentUnderTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		var taken atomic.Pointer[string]
		d.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if _, ok := tier.ParseKey("", op.Key); !ok || op.Kind != "put" || !taken.CompareAndSwap(nil, &op.Key) {
				return tiertest.Fault{}
			}
			other := make([]byte, 1<<20)
			if err := d.mem.Put(t.Context(), op.Key, bytes.NewReader(other), int64(len(other)), tier.PutOptions{}); err != nil {
				t.Error(err)
			}
			return tiertest.Fault{Err: tier.ErrExists}
		})
		d.fill(100)
		time.Sleep(3 * time.Hour) // above the upload deadline, after which the other is deleted
		state, known := d.leader.part.State()
		if !known || len(state.Ranges()) == 0 {
			t.Fatalf("known %v, %d ranges", known, len(state.Ranges()))
		}
		for _, r := range state.Ranges() {
			s, err := d.leader.part.Read(t.Context(), r.Base, 1<<10)
			if err != nil {
				t.Errorf("range [%d, %d): %v", r.Base, r.End, err)
				continue
			}
			s.Release()
		}
		if _, err := d.mem.Head(t.Context(), *taken.Load()); !errors.Is(err, tier.ErrNotFound) {
			t.Errorf("the other object: %v", err)
		}
	})
}

// A store that says of each deletion that there is nothing has deleted all the same.
func TestDeletedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		d.fill(100)
		d.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "delete" {
				return tiertest.Fault{Err: tier.ErrNotFound, Done: true}
			}
			return tiertest.Fault{}
		})
		if err := d.leader.part.TrimTo(t.Context(), d.leader.part.View().TierEnd, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(tier.DefaultBackupWindow + time.Hour)
		state, _ := d.leader.part.State()
		if s := d.leader.manager.Stats(); s.PendingDeletions != 0 || s.Parked != 0 || len(state.Kept()) != 0 || s.Deletes == 0 {
			t.Errorf("%d deletions pending, %d parked, %d ranges kept, %d deleted", s.PendingDeletions, s.Parked, len(state.Kept()), s.Deletes)
		}
	})
}

// A leader that has read a higher barrier leads no more, though it has nothing to say.
func TestHigherBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		d.fill(100)
		if leading, epoch, err := d.leader.part.Status(); !leading || epoch != 1 {
			t.Fatalf("leading %v in epoch %d: %v", leading, epoch, err)
		}
		b, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: 2, Body: tier.Barrier{}})
		if err == nil {
			err = d.events.Append(t.Context(), testPartition, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if leading, _, err := d.leader.part.Status(); leading || !errors.Is(err, tier.ErrFenced) {
			t.Errorf("leading %v: %v", leading, err)
		}
	})
}

// A leader whose log is of older epochs than the tier's last range sends nothing there
// and announces nothing, and says why.
func TestLeaderOfAnotherLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		for seq, body := range []tier.Body{
			tier.Barrier{},
			tier.CopyStarted{ID: tier.ID{1}, End: 10, Deadline: time.Now().Add(time.Hour)},
			tier.CopyFinished{
				ID: tier.ID{1}, BatchBytes: 10, ObjectBytes: 20, TailBytes: 5, MaxTimestamp: time.Now(), Sealed: time.Now(),
				Lineage: []log.EpochStart{{Epoch: 5}},
			},
		} {
			b, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: 5, Seq: uint64(seq), Body: body})
			if err == nil {
				err = d.events.Append(t.Context(), testPartition, b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		d.leader.part.Follow()
		d.leader.part.Lead(6)
		var sent atomic.Int64
		d.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if _, ok := tier.ParseKey("", op.Key); ok && op.Kind == "put" {
				sent.Add(1)
			}
			return tiertest.Fault{}
		})
		d.fill(100) // in epoch 0
		if v := d.leader.part.View(); !v.Known || v.TierEnd != 10 || d.leader.log.LastEpoch() >= 5 {
			t.Fatalf("view %+v, epoch %d", v, d.leader.log.LastEpoch())
		}
		time.Sleep(time.Hour)
		for at, b := range d.events.All() {
			e, err := tier.DecodeEvent(b)
			if err != nil {
				t.Fatal(err)
			}
			if c, ok := e.Body.(tier.CopyStarted); ok && e.Epoch > 5 {
				t.Errorf("event %d: an upload of [%d, %d) was announced", at, c.Base, c.End)
			}
		}
		if n := sent.Load(); n > 0 {
			t.Errorf("%d objects were sent", n)
		}
		leading, _, blocked := d.leader.part.Status()
		if !leading || blocked == nil || !strings.Contains(blocked.Error(), "not one log") {
			t.Errorf("leading %v, blocked by %v", leading, blocked)
		}
	})
}

// A leader writes checkpoints by the number of events and, after fewer, by time.
func TestCheckpointsComeDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false) // CheckpointEvents: 10
		d.fill(200)
		byNumber := d.leader.manager.Stats().Checkpoints
		if byNumber == 0 {
			t.Errorf("no checkpoint in %d events", d.events.Len())
		}
		state, _ := d.leader.part.State()
		if err := d.leader.part.TrimTo(t.Context(), state.LogStart()+1, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * tier.DefaultCheckpointInterval)
		if n := d.leader.manager.Stats().Checkpoints; n <= byNumber {
			t.Errorf("%d checkpoints, and %d after an event and a long time", byNumber, n)
		}
	})
}

// A search by time that finds nothing in the store looks there again if what it asks
// the local log for has turned cold meanwhile.
func TestSearchWhileRecordsTurnCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		late := time.Now().Add(24 * time.Hour)
		add := func(n int, when time.Time) log.Offset {
			var at log.Appended
			var err error
			for range n {
				if at, err = r.tier.AppendRecords(t.Context(), log.Record{Value: value(0), Timestamp: when}); err != nil {
					t.Fatal(err)
				}
			}
			return at.Base
		}
		// The range that the log start cuts has a late record below it only, so that it is
		// read in vain.
		cut := add(1, late)
		add(100, time.Now())
		settle()
		if err := r.tier.TrimTo(t.Context(), cut+1); err != nil {
			t.Fatal(err)
		}
		settle()
		o := tier.PartitionOptions{Tiered: true, HighWatermark: r.hot.DurableEnd}
		paused := o
		paused.Paused = true
		if err := r.tier.Partition().SetOptions(paused); err != nil {
			t.Fatal(err)
		}
		want := add(1, late)
		add(100, time.Now())
		settle()
		if r.hot.LocalStart() > want {
			t.Fatalf("the local log begins at %d, above %d", r.hot.LocalStart(), want)
		}
		var once atomic.Bool
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "get" && !once.Swap(true) {
				if err := r.tier.Partition().SetOptions(o); err != nil {
					t.Error(err)
				}
				time.Sleep(5 * time.Second)
			}
			return tiertest.Fault{}
		})
		off, ok, err := r.tier.OffsetForTime(t.Context(), late)
		if r.hot.LocalStart() <= want || !once.Load() {
			t.Fatalf("%d did not turn cold: the local log begins at %d", want, r.hot.LocalStart())
		}
		if err != nil || !ok || off != want {
			t.Errorf("got offset %d, %v, %v; want %d", off, ok, err, want)
		}
		r.close()
	})
}

// A search by time finds nothing below the log start, also while the local log has not
// followed it yet.
func TestSearchBelowLogStart(t *testing.T) {
	r := newRig(t, tier.Options{Partition: tier.PartitionOptions{Paused: true}})
	began := time.Now()
	r.fill(300)
	for start := log.Offset(5); start < 300; start += 5 {
		done := make(chan error, 1)
		go func() { done <- r.tier.TrimTo(t.Context(), start) }()
		for going := true; going; {
			select {
			case err := <-done:
				if going = false; err != nil {
					t.Fatal(err)
				}
			default:
			}
			low := r.tier.Start()
			if off, ok, err := r.tier.OffsetForTime(t.Context(), began.Add(-time.Second)); off < low || !ok || err != nil {
				t.Fatalf("got offset %d, %v, %v; the log starts at %d", off, ok, err, low)
			}
		}
	}
	r.close()
}

// Retention by age goes by when a segment was sealed here, whatever the producers' clocks
// say: what seems old stays, and what seems to be of tomorrow goes.
func TestRetentionIgnoresProducersClocks(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"behind": -1000 * time.Hour, "ahead": 1000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.Options{Partition: tier.PartitionOptions{RetentionAge: time.Hour}})
				for i := range 200 {
					if _, err := r.tier.AppendRecords(t.Context(), log.Record{Value: value(i), Timestamp: time.Now().Add(wrong)}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(30 * time.Minute)
				v := r.tier.Partition().View()
				if v.LogStart != 0 || v.TierEnd == 0 {
					t.Errorf("after half an hour: log start %d, tier end %d", v.LogStart, v.TierEnd)
				}
				time.Sleep(time.Hour)
				if start := r.tier.Partition().View().LogStart; start < v.TierEnd || v.TierEnd == 0 {
					t.Errorf("after an hour and a half: log start %d, tier end %d", start, v.TierEnd)
				}
				r.close()
			})
		})
	}
}

// A write whose outcome is unknown may land when its object, written again, has been
// deleted already: it is deleted once more when no write can be under way.
func TestLateCopyOfADeletedRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		var late atomic.Pointer[string]
		d.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			_, ok := tier.ParseKey("", op.Key)
			return tiertest.Fault{Late: ok && op.Kind == "put" && late.CompareAndSwap(nil, &op.Key)}
		})
		there := func() bool {
			_, err := d.mem.Head(t.Context(), *late.Load())
			if err != nil && !errors.Is(err, tier.ErrNotFound) {
				t.Fatal(err)
			}
			return err == nil
		}
		d.fill(100)
		if v := d.leader.part.View(); v.TierEnd == 0 || !there() {
			t.Fatalf("nothing was written again: %+v", v)
		}
		if err := d.leader.part.TrimTo(t.Context(), d.leader.part.View().TierEnd, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if there() {
			t.Fatal("the object was not deleted")
		}
		if n := d.store.Land(t.Context()); n != 1 || !there() {
			t.Fatalf("%d writes landed", n)
		}
		time.Sleep(tier.DefaultUploadDeadline + time.Hour)
		if there() {
			t.Error("what landed late is still there")
		}
		if state, _ := d.leader.part.State(); len(state.Pending()) > 0 {
			t.Errorf("pending: %+v", state.Pending())
		}
	})
}
