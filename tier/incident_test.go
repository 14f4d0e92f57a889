package tier_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
)

// The incidents are those that the Kora paper lists (Povzner et al., VLDB 2023, table
// 1): records that were lost although replication worked. Each is brought about here,
// and prevented, or noticed at once. Incident 1 has a test in package replication too,
// incident 4 is what TestSchedules is about as well.

// Storage corruption at the leader trims its log prefix, and the followers follow. They
// don't: only the tier log moves a log start. The leader notices that it can't upload.
func TestIncident1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPair(t)
		w.store.SetDown(true) // nothing is in the store yet
		w.lead(0, 1)
		w.fill(t, 100)
		settle()
		if err := w.logs[0].TrimTo(t.Context(), 60); err != nil {
			t.Fatal(err)
		}
		w.store.SetDown(false)
		w.fill(t, 20)
		time.Sleep(time.Hour)
		settle()
		for i, p := range w.parts {
			if v := p.View(); !v.Known || v.LogStart != 0 {
				t.Errorf("node %d: the log start has moved: %+v", i, v)
			}
		}
		if start := w.logs[1].LocalStart(); start > w.parts[1].View().TierEnd {
			t.Errorf("the follower's log begins at %d, tier end %d", start, w.parts[1].View().TierEnd)
		}
		if _, _, err := w.parts[0].Status(); err == nil {
			t.Error("the leader does not notice")
		}
		// The other has it all, and goes on.
		w.parts[0].Follow()
		w.lead(1, 2)
		time.Sleep(time.Hour)
		settle()
		if _, _, err := w.parts[1].Status(); err != nil {
			t.Errorf("the next leader: %v", err)
		}
		if v := w.parts[1].View(); v.LogStart != 0 || v.TierEnd <= 60 {
			t.Errorf("the next leader has %+v", v)
		}
		for off := log.Offset(0); off < w.parts[1].View().TierEnd; {
			s, err := w.parts[1].Read(t.Context(), off, 1<<20)
			if err != nil {
				t.Fatalf("offset %d: %v", off, err)
			}
			off = s.End()
			s.Release()
		}
		w.close(t)
	})
}

// Tier metadata diverges between leader and followers after an update was not persisted.
// The replica that misses an event notices with the next one, goes by its own state
// meanwhile, and stops at the first checkpoint of another epoch.
func TestIncident2(t *testing.T) {
	for name, lost := range map[string]func(tier.Event) bool{
		"finished":  func(e tier.Event) bool { _, ok := e.Body.(tier.CopyFinished); return ok },
		"log start": func(e tier.Event) bool { _, ok := e.Body.(tier.LogStart); return ok },
		"barrier":   func(e tier.Event) bool { _, ok := e.Body.(tier.Barrier); return ok && e.Epoch == 2 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDuo(t, tier.MaxInlineState, false)
				d.fill(60)
				d.same("at first")
				n := 0
				d.other.events.lose.Store(new(func(e tier.Event) bool {
					if !lost(e) || n > 0 {
						return false
					}
					n++
					return true
				}))
				d.leader.part.Follow()
				d.leader.part.Lead(2)
				if err := d.leader.part.TrimTo(t.Context(), 7, ""); err != nil {
					t.Fatal(err)
				}
				d.fill(30)
				if n != 1 {
					t.Fatalf("%d events were lost", n)
				}
				s := d.other.manager.Stats()
				if s.Gaps == 0 {
					t.Error("the lost event is not noticed")
				}
				v := d.other.part.View()
				if start := d.other.log.LocalStart(); start > v.TierEnd {
					t.Errorf("the local log begins at %d, the tier ends at %d here", start, v.TierEnd)
				}
				if d.leader.manager.Stats().Gaps != 0 {
					t.Error("the leader misses something")
				}
				for epoch := log.Epoch(3); epoch < 6; epoch++ {
					d.leader.part.Lead(epoch)
					d.fill(60)
				}
				if err := d.other.manager.Err(); !errors.Is(err, tier.ErrCorrupt) {
					t.Errorf("the replica goes on with another state: %v", err)
				}
				if d.other.part.View().Known || d.leader.manager.Err() != nil {
					t.Errorf("known %v, the leader stopped with %v", d.other.part.View().Known, d.leader.manager.Err())
				}
			})
		})
	}
}

// A bug in applying configuration changes the retention of some topics, and records go
// early. A follower's policy moves nothing. A leader's does, but nothing moves without a
// committed cause, which says by which policy, and objects are deleted only then.
func TestIncident3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		var causes []tier.Cause
		d.events.SetCommitted(func(c tier.Committed) {
			e, err := tier.DecodeEvent(c.Event)
			if err != nil {
				t.Error(err)
			}
			if s, ok := e.Body.(tier.LogStart); ok {
				causes = append(causes, s.Cause)
			}
		})
		d.fill(100)
		mutated := tier.PartitionOptions{Tiered: true, RetentionBytes: 1, RetentionAge: time.Second, Note: "policy 7"}
		mutated.HighWatermark = d.other.log.DurableEnd
		if err := d.other.part.SetOptions(mutated); err != nil {
			t.Fatal(err)
		}
		d.fill(100)
		if v := d.other.part.View(); v.LogStart != 0 || len(causes) > 0 || d.store.Counts().Delete > 0 {
			t.Errorf("a follower's policy counts: %+v, %+v, %d deletions", v, causes, d.store.Counts().Delete)
		}
		mutated.HighWatermark = d.leader.log.DurableEnd
		if err := d.leader.part.SetOptions(mutated); err != nil {
			t.Fatal(err)
		}
		d.fill(100)
		if len(causes) == 0 {
			t.Fatal("the leader's policy does not count")
		}
		for _, c := range causes {
			if c.Kind != tier.CauseBytes && c.Kind != tier.CauseAge || c.Note != "policy 7" {
				t.Errorf("cause %+v", c)
			}
		}
		// Without a cause there is no event.
		if _, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: 1, Seq: 1, Body: tier.LogStart{Start: 5}}); err == nil {
			t.Error("a log start without a cause can be written")
		}
		d.events.SetCommitted(nil)
	})
}

// A race of whatever moves the log start: retention by bytes and by age, requests, and
// changes of the leader, whose old one goes on. It never moves down, and never above
// what a policy or a request allows; see oracle.judgeStart.
func TestIncident4(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	moves := map[string]int{}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1e6+seed)
			for _, s := range w.shards {
				s.policy.RetentionBytes, s.policy.RetentionAge = 12<<10, 4*time.Minute
				for _, r := range w.nodes {
					o := s.policy
					rep := r.reps[s.i]
					o.HighWatermark = func() log.Offset { return log.Offset(rep.hw.Load()) }
					if err := rep.part.SetOptions(o); err != nil {
						t.Fatal(err)
					}
				}
			}
			starts := make([]log.Offset, len(w.shards))
			for range 60 {
				s := w.shard()
				switch n := w.r.IntN(10); {
				case n < 4:
					w.append(s)
				case n < 7:
					w.trim(s)
				case n < 8:
					w.lead(s, w.r.IntN(worldNodes))
				default:
					time.Sleep(time.Duration(w.r.IntN(60)) * time.Second)
				}
				synctest.Wait()
				w.check()
				for i, s := range w.shards {
					if v := w.first(s).part.View(); v.Known {
						if v.LogStart < starts[i] {
							w.fail("the log start of shard %d moves from %d to %d", i, starts[i], v.LogStart)
						}
						starts[i] = v.LogStart
					}
				}
			}
			w.settle()
			w.oracle.addTo(moves)
		})
	}
	for _, k := range []string{"log start: bytes", "log start: age", "log start: request"} {
		if moves[k] == 0 && !testing.Short() {
			t.Errorf("%q never happened", k)
		}
	}
}
