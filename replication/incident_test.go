package replication

import (
	"testing"

	"github.com/cordwood-io/cordwood/log"
)

// TestIncident1: a leader whose disk has lost the head of its log must not take the
// followers along (Kora, Povzner et al., VLDB 2023, table 1). Where there is a tier, a
// log start is a committed event, which each node reads by itself: what a leader says
// moves nothing, and a follower begins anew only where the tier has all that is below.
func TestIncident1(t *testing.T) {
	follower := func(v TierView) *fixture {
		f := newFixture(t, 50, 50, 50, at(4, 0))
		f.c.tiered = true
		f.step(evTier{v})
		f.follow(nil)
		return f
	}
	view := TierView{Known: true, LogStart: 10, TierEnd: 30, Lineage: []log.EpochStart{{Epoch: 4, Start: 0}}}
	for name, v := range map[string]TierView{"known": view, "unknown": {}} {
		t.Run(name, func(t *testing.T) {
			f := follower(v)
			es := f.step(evResponse{fetchAnswer{Seq: f.ask().Seq, LeaderEpoch: 5, PrevEpoch: 4, HW: 50, LogStart: 40}, f.now})
			if trim, ok := find[effTrim](es); ok {
				t.Errorf("the log start goes to %d on the leader's word", trim.To)
			}
		})
	}
	for _, x := range []struct {
		start log.Offset
		reset bool
	}{{60, false}, {31, false}} {
		f := follower(view)
		f.step(evBounds{0, 0})
		es := f.step(evResponse{fetchAnswer{Status: statusTierStart, Seq: f.ask().Seq, LeaderEpoch: 5, Start: x.start, LogStart: x.start}, f.now})
		if _, ok := find[effReset](es); ok != x.reset {
			t.Errorf("the tier ends at 30, the leader says begin at %d: reset %v", x.start, ok)
		}
	}
	// An empty follower begins at the tier end, and leaves its log start to the tier.
	f := newFixture(t, 0, 0, 0)
	f.c.tiered = true
	f.step(evTier{view})
	f.follow(nil)
	for _, x := range []struct {
		start log.Offset
		reset bool
	}{{31, false}, {30, true}} {
		es := f.step(evResponse{fetchAnswer{Status: statusTierStart, Seq: f.ask().Seq, LeaderEpoch: 5, Start: x.start, LogStart: x.start}, f.now})
		reset, ok := find[effReset](es)
		if ok != x.reset || reset.LogStart != 0 {
			t.Errorf("an empty log, the leader says begin at %d: %+v, %v", x.start, reset, ok)
		}
	}
}
