package tier_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
)

// TestReadAnewWithProposal: a leader whose event is in the tier log, but not read back when
// it begins to read anew, finds out that it can't be, and goes on: it neither sends that
// event for ever nor gives up its leadership.
func TestReadAnewWithProposal(t *testing.T) {
	// overtake writes a checkpoint as another node may, and trims the tier log to it.
	overtake := func(d *duo) {
		d.t.Helper()
		s, known := d.other.part.State()
		if !known {
			d.t.Fatal("the follower does not know the state")
		}
		b, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: s.Epoch(), Seq: s.Seq() + 1, Body: tier.CheckpointOf(s)})
		if err != nil {
			d.t.Fatal(err)
		}
		end, err := d.events.End(d.t.Context())
		if err == nil {
			err = d.events.Append(d.t.Context(), testPartition, b)
		}
		if err == nil {
			err = d.events.Trim(d.t.Context(), end)
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		d.fill(100)
		d.same("before")
		d.leader.events.stalled.Store(true)
		synctest.Wait()
		trimmed := make(chan error, 1)
		go func() { trimmed <- d.leader.part.TrimTo(t.Context(), 30, "") }()
		time.Sleep(time.Second)
		synctest.Wait()
		if v := d.other.part.View(); v.LogStart != 30 {
			t.Fatalf("the follower has not read the event: %+v", v)
		}
		overtake(d)
		d.leader.events.stalled.Store(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		select {
		case err := <-trimmed:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the event is still in flight")
		}
		if leading, _, blocked := d.leader.part.Status(); !leading || blocked != nil {
			t.Errorf("leading %v, blocked %v", leading, blocked)
		}
		end, err := d.events.End(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		before := d.leader.part.View()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if now, err := d.events.End(t.Context()); err != nil || now-end > 3 {
			t.Errorf("%d events in ten minutes without appends, %v", now-end, err)
		}
		d.fill(100)
		d.same("after")
		if v := d.leader.part.View(); v.TierEnd <= before.TierEnd || v.LogStart != 30 {
			t.Errorf("%+v, was %+v", v, before)
		}
	})
}

// TestOverrun: a proposal that the state ignores is decided once a state that is the
// tier log's has ignored it, and not while that is being read.
func TestOverrun(t *testing.T) {
	state := func(epoch log.Epoch, events int) *tier.State {
		s := &tier.State{}
		s.Apply(tier.Event{Partition: testPartition, Epoch: epoch, Body: tier.Barrier{}})
		for i := range events {
			s.Apply(tier.Event{Partition: testPartition, Epoch: epoch, Seq: uint64(i + 1), Body: tier.LogStart{Start: log.Offset(i + 1), Cause: tier.Cause{Kind: tier.CauseRequest}}})
		}
		return s
	}
	for _, c := range []struct {
		name    string
		state   *tier.State
		settled bool
		decided bool
		lost    bool // without a verdict
	}{
		{"next", state(3, 4), true, true, false},
		{"next, while reading", state(3, 4), false, true, false},
		{"events before it are lost", state(3, 2), true, true, true},
		{"events before it come yet", state(3, 2), false, false, false},
		{"the barrier is lost", state(2, 9), true, true, true},
		{"the barrier comes yet", state(2, 9), false, false, false},
		{"it was passed", state(3, 7), false, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			decided, err := tier.Decides(c.state, tier.Event{Partition: testPartition, Epoch: 3, Seq: 5, Body: tier.LogStart{Start: 50, Cause: tier.Cause{Kind: tier.CauseRequest}}}, c.settled)
			if decided != c.decided || (err != nil) != c.lost {
				t.Errorf("decided %v, %v", decided, err)
			}
		})
	}
}

// TestOverrunShows: of an event whose place has passed unseen the state can tell that it
// took effect.
func TestOverrunShows(t *testing.T) {
	s := &tier.State{}
	first, second := tier.ID{1}, tier.ID{2}
	started := func(id tier.ID, base log.Offset) tier.Body {
		return tier.CopyStarted{ID: id, Base: base, End: base + 10, Deadline: time.UnixMilli(1000)}
	}
	finished := func(id tier.ID, base log.Offset) tier.Body {
		return tier.CopyFinished{
			ID: id, BatchBytes: 10, ObjectBytes: 20, TailBytes: 5, MaxTimestamp: time.UnixMilli(5), Sealed: time.UnixMilli(6),
			Lineage: []log.EpochStart{{Epoch: 3, Start: base}},
		}
	}
	for i, b := range []tier.Body{tier.Barrier{}, started(first, 0), finished(first, 0), started(second, 10)} {
		if v := s.Apply(tier.Event{Partition: testPartition, Epoch: 3, Seq: uint64(i), Body: b}); v != tier.Applied {
			t.Fatalf("event %d: %v", i, v)
		}
	}
	for _, c := range []struct {
		name  string
		seq   uint64
		body  tier.Body
		shows bool
	}{
		{"begun and finished", 1, started(first, 0), true},
		{"finished", 2, finished(first, 0), true},
		{"begun", 3, started(second, 10), true},
		{"another has begun", 3, started(tier.ID{3}, 10), false},
		{"begun but not finished", 3, finished(second, 10), false},
		{"what leaves no trace", 3, tier.LogStart{Start: 5, Cause: tier.Cause{Kind: tier.CauseRequest}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			decided, err := tier.Decides(s, tier.Event{Partition: testPartition, Epoch: 3, Seq: c.seq, Body: c.body}, false)
			if !decided || (err == nil) != c.shows {
				t.Errorf("decided %v, %v", decided, err)
			}
		})
	}
}
