package tier_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// stored counts the segment objects of a rig.
func (r *rig) stored() (n int) {
	r.t.Helper()
	for info, err := range r.mem.List(r.t.Context(), "", "") {
		if err != nil {
			r.t.Fatal(err)
		}
		if _, ok := tier.ParseKey("", info.Key); ok {
			n++
		}
	}
	return n
}

// Objects of deleted ranges are kept for the window, or at least for the grace of
// readers, by the time in the event: not by the options of whoever leads later.
func TestBackupWindow(t *testing.T) {
	for _, test := range []struct {
		name          string
		window, grace time.Duration
		want          time.Duration
	}{
		{"window", 48 * time.Hour, 10 * time.Minute, 48 * time.Hour},
		{"grace", -1, 10 * time.Minute, 10 * time.Minute},
		{"default", 0, -1, tier.DefaultBackupWindow},
		{"default grace", -1, 0, tier.DefaultReaderGrace},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.Options{BackupWindow: test.window, ReaderGrace: test.grace, Interval: time.Hour})
				for i := range 100 {
					if _, err := r.tier.AppendRecords(t.Context(), log.Record{Value: value(i)}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				p := r.tier.Partition()
				all, start := r.stored(), p.View().TierEnd
				if all < 3 {
					t.Fatalf("%d objects", all)
				}
				if err := r.tier.TrimTo(t.Context(), start); err != nil {
					t.Fatal(err)
				}
				deleted := time.Now()
				time.Sleep(test.want - time.Second)
				synctest.Wait()
				if n := r.stored(); n != all {
					t.Errorf("%d objects of %d within the window", n, all)
				}
				s, _ := p.State()
				for _, k := range s.Kept() {
					if got := k.Until().Sub(deleted).Round(time.Second); got != test.want {
						t.Errorf("kept for %v, want %v", got, test.want)
					}
				}
				if n := len(s.Kept()); n != all {
					t.Errorf("%d ranges are kept, want %d", n, all)
				}
				sweep, err := p.Sweep(t.Context(), tier.SweepOptions{MinAge: -1})
				if err != nil || len(sweep.Orphans) != 0 {
					t.Errorf("sweep within the window: %+v, %v", sweep, err)
				}
				a, err := tier.Audit(t.Context(), tier.AuditOptions{Store: r.mem, Events: tier.ReadToEnd(t.Context(), r.events)})
				if err != nil || !a.Clean() || a.Backup != all || a.Expired != 0 {
					t.Errorf("audit within the window: %+v, %v", a, err)
				}
				// Another life with other options keeps to the time in the state.
				r.close()
				r.open(tier.Options{BackupWindow: 1000 * time.Hour})
				time.Sleep(time.Hour)
				synctest.Wait()
				if n := r.stored(); n != 0 {
					t.Errorf("%d objects after the window", n)
				}
				r.close()
			})
		})
	}
}

// TestPoison: objects that can't be deleted hold up no others, neither deletions nor
// uploads; they are parked, shown, and deleted when the store relents.
func TestPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{Interval: time.Minute, UploadDeadline: 10 * time.Minute})
		defer r.close()
		fill := func(n int) {
			for i := range n {
				if _, err := r.tier.AppendRecords(t.Context(), log.Record{Value: value(i)}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
		}
		fill(200)
		p := r.tier.Partition()
		s, _ := p.State()
		poison := map[tier.ID]bool{}
		for i, x := range s.Ranges() {
			if i%2 == 0 {
				poison[x.ID] = true
			}
		}
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if k, ok := tier.ParseKey("", op.Key); ok && op.Kind == "delete" && poison[k.ID] {
				return tiertest.Fault{Err: fmt.Errorf("%s: %w", op.Key, tier.ErrDenied)}
			}
			return tiertest.Fault{}
		})
		if err := r.tier.TrimTo(t.Context(), p.View().TierEnd); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if n := r.stored(); n != len(poison) {
			t.Errorf("%d objects are left, want the %d that can't be deleted", n, len(poison))
		}
		if got := r.tier.Manager().Stats(); got.Parked != len(poison) || got.PendingDeletions != len(poison) {
			t.Errorf("%d parked of %d pending, want %d", got.Parked, got.PendingDeletions, len(poison))
		}
		failures := r.tier.Manager().Stats().DeleteFailures
		fill(200)
		if err := r.tier.TrimTo(t.Context(), p.View().TierEnd); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := r.stored(); n != len(poison) {
			t.Errorf("%d objects are left after later ones were deleted, want %d", n, len(poison))
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n := r.tier.Manager().Stats().DeleteFailures - failures; n > 60*int64(len(poison)) {
			t.Errorf("%d requests a day for %d objects that can't be deleted", n, len(poison))
		}
		r.store.SetFault(nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := r.tier.Manager().Stats(); r.stored() != 0 || got.Parked != 0 || got.PendingDeletions != 0 {
			t.Errorf("%d objects, %d parked, %d pending after the store has relented", r.stored(), got.Parked, got.PendingDeletions)
		}
	})
}

// A partition that nobody leads does not hold the tier log for ever: whoever speaks for
// the cluster writes its checkpoint, and who reads anew knows it by that.
func TestLeaderlessPin(t *testing.T) {
	t.Run("left", func(t *testing.T) { leaderlessPin(t, func(y *yard) { y.nodes[0].part.Follow() }) })
	t.Run("fenced", func(t *testing.T) {
		leaderlessPin(t, func(y *yard) { // the one who speaks has led it, until a leader came who is gone
			b, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: 2, Body: tier.Barrier{}})
			if err == nil {
				err = y.events.Append(t.Context(), testPartition, b)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	})
}

func leaderlessPin(t *testing.T, leave func(*yard)) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, func(o *tier.Options) { o.CheckpointEvents = 40 }) // no checkpoint of its own
		defer y.close()
		y.fill(60)
		before, _ := y.nodes[1].part.State()
		leave(y) // and nobody leads any more
		// Other partitions go on.
		other := log.PartitionID{Topic: log.TopicID{0xaa}}
		for epoch := range log.Epoch(300) {
			b, err := tier.EncodeEvent(tier.Event{Partition: other, Epoch: epoch, Body: tier.Barrier{}})
			if err == nil {
				err = y.events.Append(t.Context(), other, b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		y.rest(3 * time.Hour)
		start, err := y.events.Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if start == 0 {
			t.Errorf("the tier log begins at %d: %+v", start, y.nodes[0].manager.Stats())
		}
		after, known := y.nodes[1].part.State()
		if !known || after.TierEnd() != before.TierEnd() || after.Len() != before.Len() {
			t.Errorf("known %v: %d ranges up to %d, had %d up to %d", known, after.Len(), after.TierEnd(), before.Len(), before.TierEnd())
		}
		y.nodes[1].part.Lead(3)
		y.rest(time.Minute)
		if leading, _, err := y.nodes[1].part.Status(); !leading {
			t.Errorf("the next leader: %v", err)
		}
	})
}
