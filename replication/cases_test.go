package replication

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// fixture is one core with what is needed to talk to it.
type fixture struct {
	t   *testing.T
	c   *core
	now time.Time
	seq uint64
}

var (
	self  = Member{1, 10}
	two   = Member{2, 20}
	three = Member{3, 30}
)

func newFixture(t *testing.T, end, durable, hw log.Offset, chain ...log.EpochStart) *fixture {
	f := &fixture{t: t, c: newCore(config{LagMax: 10 * time.Second, AckLatency: 500 * time.Millisecond, Retry: 50 * time.Millisecond}, self), now: simStart}
	f.step(evOpened{End: end, Durable: durable, Chain: chain, Hint: hw})
	return f
}

func (f *fixture) step(ev any) []effect { return slices.Clone(f.c.Step(ev)) }

func (f *fixture) assign(change func(*Assignment)) []effect {
	a := f.c.a
	if !f.c.assigned {
		a = Assignment{Replicas: []NodeID{1, 2, 3}, Leader: self, LeaderEpoch: 5, PartitionEpoch: 6,
			ISR: []Member{self, two, three}, Live: []Member{self, two, three}, MinISR: 2}
	}
	a.PartitionEpoch++
	if change != nil {
		change(&a)
	}
	return f.step(evAssign{a, f.now})
}

// lead makes the core the leader of epoch 5 with its epoch-start record at its end.
func (f *fixture) lead(change func(*Assignment)) {
	f.assign(change)
	base := f.c.end
	f.step(evEpochStarted{Epoch: f.c.epoch, Base: base, End: base + 1, Durable: f.c.durable, Chain: f.c.chain.add(f.c.epoch, base), Now: f.now})
}

func (f *fixture) follow(change func(*Assignment)) {
	f.assign(func(a *Assignment) {
		a.Leader = two
		if change != nil {
			change(a)
		}
	})
}

func (f *fixture) write(n log.Offset) {
	f.step(evWrote{Epoch: f.c.epoch, Base: f.c.end, End: f.c.end + n, Now: f.now})
}

func (f *fixture) sync() { f.step(evDurable{f.c.end, f.now}) }

func (f *fixture) fetch(m Member, pos, durable log.Offset, last log.Epoch) fetchAnswer {
	f.seq++
	for _, e := range f.step(evFetch{m, fetchRequest{Seq: f.seq, LeaderEpoch: f.c.epoch, Pos: pos, Durable: durable, LastEpoch: last}, edge{f.c.localStart, f.c.localStart}, f.now}) {
		if e, ok := e.(effAnswer); ok {
			return e.Ans
		}
	}
	f.t.Fatal("no answer")
	return fetchAnswer{}
}

func (f *fixture) ask() fetchRequest {
	q, _ := find[effFetch](f.step(evNextFetch{}))
	return q.Req
}

func find[E effect](es []effect) (got E, ok bool) {
	for _, e := range es {
		if e, is := e.(E); is {
			return e, true
		}
	}
	return got, false
}

func (f *fixture) wantHW(want log.Offset, why string) {
	f.t.Helper()
	if f.c.hw != want {
		f.t.Errorf("high watermark is %d, want %d: %s", f.c.hw, want, why)
	}
}

func at(e log.Epoch, start log.Offset) log.EpochStart { return log.EpochStart{Epoch: e, Start: start} }

// cases of reference/replication.md section 3 that concern the data plane; the list
// in testdata/cases.txt names all.
var cases = map[string]func(t *testing.T){
	// Acked record lost after a double failover: a restarted follower must not cut to
	// its stale high watermark, only where the leader's epochs say.
	"KIP-101": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.follow(nil)
		if q := f.ask(); q.Pos != 10 || q.LastEpoch != 4 {
			t.Errorf("restarted follower asks from %d epoch %d, want its log end", q.Pos, q.LastEpoch)
		}
	},
	// Logs differ for ever after fast elections: iterate to the common epoch.
	"KIP-279": func(t *testing.T) {
		f := newFixture(t, 30, 30, 5, at(1, 0), at(3, 10), at(4, 20))
		f.follow(nil)
		q := f.ask()
		// The leader has epochs 1 and 2 only: it answers (2, 15), which we lack.
		es := f.step(evResponse{fetchAnswer{Seq: q.Seq, Status: statusDiverging, LeaderEpoch: 5, DivergeEpoch: 2, DivergeEnd: 15}, f.now})
		cut, ok := find[effTruncate](es)
		if !ok || cut.To != 10 {
			t.Fatalf("cuts to %v, want 10, the end of epoch 1", cut)
		}
		f.step(evCut{End: 10, Durable: 10, Chain: []log.EpochStart{at(1, 0)}})
		if q := f.ask(); q.Pos != 10 || q.LastEpoch != 1 {
			t.Errorf("next round asks %+v", q)
		}
	},
	// An epoch without records that its leader did not record: the epoch-start record
	// comes first, and nothing is counted or served before it.
	"KAFKA-7415": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		if _, ok := find[effLead](f.assign(nil)); !ok {
			t.Fatal("no epoch-start ordered")
		}
		if a := f.fetch(two, 10, 10, 4); a.Status != statusStarting {
			t.Errorf("fetch before the epoch start is answered with %v", a.Status)
		}
		f.wantHW(3, "nothing counts before the epoch start")
	},
	// No bytes to cut, but the chain is: an empty last epoch must go, or the follower
	// diverges for ever.
	"KAFKA-10706": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0), at(5, 10))
		f.follow(func(a *Assignment) { a.LeaderEpoch = 7 })
		q := f.ask()
		es := f.step(evResponse{fetchAnswer{Seq: q.Seq, Status: statusDiverging, LeaderEpoch: 7, DivergeEpoch: 4, DivergeEnd: 12}, f.now})
		if cut, ok := find[effTruncate](es); !ok || cut.To != 10 {
			t.Errorf("got %v, want a cut at 10 that trims the chain", es)
		}
	},
	// High watermark covers records that a diverging follower does not have.
	"KAFKA-13141": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(3, 0), at(4, 8))
		f.lead(nil)
		f.sync()
		f.fetch(three, 11, 11, 5)
		if a := f.fetch(two, 11, 11, 3); a.Status != statusDiverging {
			t.Fatalf("status %v", a.Status)
		}
		f.wantHW(3, "what a diverging follower says is not recorded")
		f.step(evProgress{two, progressEntry{LeaderEpoch: 5, Seq: f.seq, Durable: 11}, f.now})
		f.wantHW(3, "nor its progress")
		before := f.seq
		f.fetch(two, 8, 8, 3) // it has cut
		f.wantHW(8, "verified again")
		f.step(evProgress{two, progressEntry{LeaderEpoch: 5, Seq: before, Durable: 11}, f.now})
		f.wantHW(8, "progress that was sent before the cut")
		f.step(evProgress{two, progressEntry{LeaderEpoch: 5, Seq: f.seq, Durable: 11}, f.now})
		f.wantHW(11, "progress that was sent after it")
	},
	// No cut below the own high watermark; the replica stops and tells.
	"KAFKA-12460": func(t *testing.T) {
		f := newFixture(t, 10, 10, 8, at(3, 0), at(4, 5))
		f.follow(nil)
		q := f.ask()
		es := f.step(evResponse{fetchAnswer{Seq: q.Seq, Status: statusDiverging, LeaderEpoch: 5, DivergeEpoch: 3, DivergeEnd: 5}, f.now})
		if _, cuts := find[effTruncate](es); cuts || !f.c.quarantined {
			t.Errorf("cuts: %v", es)
		}
		// Unless an unclean election has given that part up.
		g := newFixture(t, 10, 10, 8, at(3, 0), at(4, 5))
		g.follow(func(a *Assignment) { a.LastUncleanEpoch = 5 })
		q = g.ask()
		es = g.step(evResponse{fetchAnswer{Seq: q.Seq, Status: statusDiverging, LeaderEpoch: 5, DivergeEpoch: 3, DivergeEnd: 5}, g.now})
		if cut, ok := find[effTruncate](es); !ok || cut.To != 5 || !cut.LowerHW {
			t.Errorf("got %v", es)
		}
	},
	// An answer to a question about another state of the log is dropped.
	"KAFKA-13207": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.follow(nil)
		q := f.ask()
		f.step(evWrote{Epoch: 4, Base: 10, End: 12, Now: f.now}) // the last append of its own leadership
		es := f.step(evResponse{fetchAnswer{Seq: q.Seq, LeaderEpoch: 5, PrevEpoch: 4, PayloadBytes: 1, HW: 12}, f.now})
		if _, ok := find[effAppend](es); ok || f.c.hw != 3 {
			t.Errorf("taken: %v, high watermark %d", es, f.c.hw)
		}
		q = f.ask()
		f.step(evResponse{fetchAnswer{Seq: q.Seq, LeaderEpoch: 5, PrevEpoch: 4, HW: 12}, f.now})
		f.step(evResponse{fetchAnswer{Seq: q.Seq, Status: statusDiverging, LeaderEpoch: 5, DivergeEpoch: 3, DivergeEnd: 12}, f.now})
		if f.c.follow.busy {
			t.Error("a second answer to one question is taken")
		}
	},
	// Reader sees uncommitted data: divergence discards the high watermark.
	"KAFKA-14704": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.follow(nil)
		q := f.ask()
		f.step(evResponse{fetchAnswer{Seq: q.Seq, Status: statusDiverging, LeaderEpoch: 5, DivergeEpoch: 3, DivergeEnd: 8, HW: 9}, f.now})
		f.wantHW(3, "high watermark of a diverging answer")
	},
	// An empty answer must not clear the last fetched epoch.
	"KAFKA-15510": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.follow(nil)
		q := f.ask()
		f.step(evResponse{fetchAnswer{Seq: q.Seq, LeaderEpoch: 5, PrevEpoch: 4, HW: 10, End: 10}, f.now})
		f.wantHW(10, "an empty answer brings the high watermark")
		if q := f.ask(); q.LastEpoch != 4 {
			t.Errorf("last epoch is %d after an empty answer", q.LastEpoch)
		}
	},
	// Full truncation moved the log start, not the high watermark.
	"KAFKA-9491": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.step(evBounds{7, 7})
		f.wantHW(7, "never below the log start")
	},
	// Tiered partition stuck after the hint was lost: raised to the tier's end, as far
	// as it is the same log.
	"KAFKA-16452": func(t *testing.T) {
		f := newFixture(t, 10, 10, 0, at(3, 0), at(4, 8))
		f.step(evTier{TierView{Known: true, TierEnd: 9, Lineage: []log.EpochStart{at(3, 0)}}})
		f.wantHW(8, "common part of log and tier")
		g := newFixture(t, 10, 10, 0, at(3, 0))
		g.step(evTier{TierView{Known: true, TierEnd: 6, Lineage: []log.EpochStart{at(3, 0)}}})
		g.wantHW(6, "tier end")
	},
	// Rebooted empty follower joins the in-sync set: one snapshot, an epoch per member.
	"KAFKA-15221": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(func(a *Assignment) { a.ISR = []Member{self, three}; a.Live = []Member{self, two, three} })
		f.sync()
		f.fetch(three, 11, 11, 5)
		reborn := Member{2, 21}
		f.fetch(two, 11, 11, 5) // proposes {2 20}
		p := f.c.lead.proposals[0]
		if a := f.fetch(reborn, 0, 0, noEpoch); a.Status != statusOK {
			t.Fatalf("status %v", a.Status)
		}
		if m, ok := hasMember(p.ISR, 2); !ok || m.Epoch != 20 {
			t.Errorf("proposal names %v: the controller can't tell the lives apart", p.ISR)
		}
		if a := f.fetch(two, 11, 11, 5); a.Status != statusFencedReplica {
			t.Errorf("an earlier life gets %v", a.Status)
		}
	},
	// A reboot that metadata has not told of yet: what the new life has does not count
	// for the member that the old one was.
	"KIP-903": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(func(a *Assignment) { a.ISR = []Member{self, two} })
		f.sync()
		f.fetch(Member{2, 21}, 11, 11, 5)
		f.wantHW(3, "the member of the in-sync set is {2 20}")
	},
	// A disk that has lost what it reported, without saying so, leaves the set and is
	// named, so that it becomes no eligible leader.
	"KAFKA-18106": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(nil)
		f.sync()
		f.fetch(two, 11, 11, 5)
		f.fetch(two, 8, 8, 4)
		if n := len(f.c.lead.proposals); n != 1 || !slices.Equal(f.c.lead.proposals[0].Lossy, []Member{two}) {
			t.Errorf("proposals %+v", f.c.lead.proposals)
		}
		// But one that was told to cut has lost nothing.
		g := newFixture(t, 10, 10, 3, at(3, 0), at(4, 8))
		g.lead(nil)
		g.fetch(two, 9, 9, 4)
		if a := g.fetch(two, 10, 10, 3); a.Status != statusDiverging {
			t.Fatalf("status %v", a.Status)
		}
		g.fetch(two, 8, 8, 3)
		if len(g.c.lead.proposals) != 0 {
			t.Errorf("proposes %+v", g.c.lead.proposals)
		}
	},
	// Fenced or stopping node is not proposed.
	"KIP-841": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(func(a *Assignment) { a.ISR = []Member{self, three}; a.Live = []Member{self, three} })
		f.sync()
		f.fetch(three, 11, 11, 5)
		f.fetch(two, 11, 11, 5)
		if len(f.c.lead.proposals) != 0 {
			t.Errorf("proposes %v", f.c.lead.proposals)
		}
		f.wantHW(11, "a fenced follower holds nobody up")

		// The answer to a change overtaken by the metadata, which has it and says that
		// node 2 is back: that must not be forgotten again.
		g := newFixture(t, 10, 10, 3, at(4, 0))
		g.lead(func(a *Assignment) { a.ISR = []Member{self}; a.Live = []Member{self, three} })
		g.sync()
		g.fetch(three, 11, 11, 5)
		if len(g.c.lead.proposals) != 1 {
			t.Fatalf("proposes %v, want node 3", g.c.lead.proposals)
		}
		ch, made := g.c.lead.proposals[0], g.c.a
		made.PartitionEpoch++
		made.ISR = []Member{self, three}
		newer := made
		newer.Live = []Member{self, two, three}
		g.step(evAssign{newer, g.now})
		g.step(evISRAnswer{Change: ch, Outcome: isrMade, A: made, Now: g.now})
		g.fetch(two, 11, 11, 5)
		if len(g.c.lead.proposals) != 1 {
			t.Errorf("proposes %v, want node 2", g.c.lead.proposals)
		}
	},
	// Committed records lost right after the in-sync set grew: proposed members count
	// from the moment the proposal is sent, until a definite answer.
	"KIP-497": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(func(a *Assignment) { a.ISR = []Member{self, three} })
		f.sync()
		f.fetch(three, 11, 11, 5)
		f.fetch(two, 11, 11, 5)
		if len(f.c.lead.proposals) != 1 {
			t.Fatal("no proposal")
		}
		ch := f.c.lead.proposals[0]
		f.write(4)
		f.sync()
		f.now = f.now.Add(time.Second) // node 2 falls back
		f.fetch(three, 15, 15, 5)
		f.step(evTick{f.now})
		f.wantHW(11, "node 2 may be in the in-sync set")
		f.step(evISRAnswer{Change: ch, Outcome: isrUnknown, Now: f.now})
		f.step(evISRAnswer{Change: ch, Outcome: isrRefused, Now: f.now})
		f.wantHW(11, "refused, but an earlier attempt may have got through")
		f.assign(nil)
		f.wantHW(15, "a newer assignment settles it")
	},
	// High watermark frozen after a shrink; and it must not move below MinISR.
	"KAFKA-13091": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(nil)
		f.sync()
		f.fetch(three, 11, 11, 5)
		f.wantHW(3, "node 2 is in sync and has not fetched")
		f.assign(func(a *Assignment) { a.ISR = []Member{self, three} })
		f.wantHW(11, "the shrink lets it move")
		f.write(1)
		f.assign(func(a *Assignment) { a.ISR = []Member{self} })
		f.sync()
		f.wantHW(11, "one in sync, MinISR 2")
	},
	// Appends time out in a rolling restart: who can't join holds nobody up.
	"KAFKA-15021": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(func(a *Assignment) { a.ISR = []Member{self, three}; a.Live = []Member{self, {2, 21}, three} })
		f.sync()
		f.fetch(three, 11, 11, 5)
		f.fetch(Member{2, 21}, 5, 5, 4)
		f.wantHW(11, "node 2 is far behind")
	},
	// Power loss of the last in-sync member erases acked data: below MinISR nothing is
	// committed, so there is nothing to lose.
	"KIP-966": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(func(a *Assignment) { a.ISR = []Member{self} })
		f.sync()
		f.wantHW(3, "a set of one commits nothing when MinISR is 2")
	},
	// A lossy restart is told, and counts for nothing until the leader gives leave.
	"KAFKA-18635": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.step(evLossy{Damaged: true, Now: f.now})
		f.follow(nil)
		q := f.ask()
		if !q.Lossy {
			t.Fatal("asks as if nothing had happened")
		}
		if _, ok := find[effReset](f.step(evResponse{fetchAnswer{Seq: q.Seq, Status: statusRetry, LeaderEpoch: 5}, f.now})); ok {
			t.Error("cuts without leave")
		}
		q = f.ask()
		f.step(evResponse{fetchAnswer{Seq: q.Seq, Status: statusMayCut, LeaderEpoch: 5}, f.now})
		if _, ok := find[effReset](f.step(evNextFetch{})); !ok {
			t.Error("does not begin anew")
		}
	},
	// MinISR is part of the assignment, so that it can't differ between nodes.
	"KAFKA-16540": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(func(a *Assignment) { a.ISR = []Member{self, three}; a.MinISR = 3 })
		f.sync()
		f.fetch(three, 11, 11, 5)
		f.wantHW(3, "MinISR 3")
		f.assign(func(a *Assignment) { a.MinISR = 2 })
		f.wantHW(11, "MinISR lowered in the same record")
	},
	// A parked fetch delays the high watermark: the leader answers when it has moved.
	"KAFKA-14145": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(func(a *Assignment) { a.ISR = []Member{self, two} })
		f.sync()
		f.fetch(two, 11, 11, 5)
		f.wantHW(11, "both have it")
		if a, data, moved := f.c.serve(two, fetchRequest{LeaderEpoch: 5, Pos: 11, HWKnown: 3}); data || !moved || a.HW != 11 {
			t.Errorf("parks though the high watermark moved: %+v", a)
		}
		if _, _, moved := f.c.serve(two, fetchRequest{LeaderEpoch: 5, Pos: 11, HWKnown: 11}); moved {
			t.Error("answers though nothing moved")
		}
	},
	// New leader offers deleted data: log start is taken from what the leader tells.
	"KAFKA-15351": func(t *testing.T) {
		f := newFixture(t, 10, 10, 10, at(4, 0))
		f.follow(nil)
		q := f.ask()
		es := f.step(evResponse{fetchAnswer{Seq: q.Seq, LeaderEpoch: 5, PrevEpoch: 4, HW: 10, LogStart: 6}, f.now})
		if trim, ok := find[effTrim](es); !ok || trim.To != 6 {
			t.Errorf("log start is not taken: %v", es)
		}
		// And where the leader's chain no longer tells what came before its log start, a
		// follower that ends just there begins anew.
		g := newFixture(t, 0, 0, 0)
		g.step(evOpened{Start: 10, LocalStart: 10, End: 10, Durable: 10})
		g.lead(nil)
		if a := g.fetch(two, 10, 10, 4); a.Status != statusTierStart || a.Start != 10 {
			t.Errorf("at the log start: %+v", a)
		}
	},
	// Moved replica misses data: it begins at what the tier has, never above, and an
	// unknown tier is no reason to begin anywhere.
	"REDPANDA-26803": func(t *testing.T) {
		f := newFixture(t, 50, 50, 50, at(4, 0))
		f.c.tiered = true
		f.step(evBounds{0, 20})
		f.lead(nil)
		if a := f.fetch(two, 0, 0, noEpoch); a.Status != statusRetry {
			t.Errorf("answers %v though its view is unknown", a.Status)
		}
		f.step(evTier{TierView{Known: true, TierEnd: 30, Lineage: []log.EpochStart{at(4, 0)}}})
		if a := f.fetch(two, 0, 0, noEpoch); a.Status != statusTierStart || a.Start != 30 {
			t.Errorf("begins at %d (%v), the tier ends at 30", a.Start, a.Status)
		}
	},
	// Acked loss after one power cut: only what is durable counts, the leader's own too.
	"NATS-7564": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.lead(func(a *Assignment) { a.ISR = []Member{self, two} })
		f.write(5)
		f.fetch(two, 16, 11, 5)
		f.step(evDurable{12, f.now})
		f.wantHW(11, "node 2 has 16 written, 11 durable")
		f.fetch(two, 16, 16, 5)
		f.wantHW(12, "the leader has 16 written, 12 durable")
	},
	// Commit stuck since two notions of the flushed end differ: there is one source,
	// and a missed progress message is made good by the next fetch.
	"REDPANDA-2932": func(t *testing.T) {
		f := newFixture(t, 10, 10, 3, at(4, 0))
		f.follow(nil)
		q := f.ask()
		f.step(evResponse{fetchAnswer{Seq: q.Seq, LeaderEpoch: 5, PrevEpoch: 4, PayloadBytes: 1, HW: 3}, f.now})
		f.step(evReplicated{End: 12, Runs: []log.EpochStart{at(5, 10)}})
		if q := f.ask(); q.Pos != 12 || q.Durable != 10 {
			t.Errorf("tells %+v", q)
		}
		if p, ok := find[effProgress](f.step(evDurable{12, f.now})); !ok || p.P.Durable != 12 {
			t.Error("no progress")
		}
		if q := f.ask(); q.Durable != 12 {
			t.Errorf("the next fetch tells %d", q.Durable)
		}
	},
}

func TestCase(t *testing.T) {
	b, err := os.ReadFile("testdata/cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.SplitN(line, "\t", 4)
		if len(f) < 4 {
			t.Fatalf("testdata/cases.txt: %q", line)
		}
		id, kind := f[1], f[2]
		listed[id] = true
		switch run := cases[id]; {
		case kind == "here" && run == nil:
			t.Errorf("case %s has no test", id)
		case kind == "here":
			t.Run(id, run)
		case kind == "sim" || kind == "other" || kind == "never":
		default:
			t.Errorf("case %s: kind %q", id, kind)
		}
	}
	for id := range cases {
		if !listed[id] {
			t.Errorf("case %s is not in testdata/cases.txt", id)
		}
	}
}

// A durable end that is reported while a cut is under way speaks of records that
// are going, also when this replica is elected meanwhile.
func TestDurableDuringCut(t *testing.T) {
	f := newFixture(t, 20, 10, 3, at(3, 0), at(4, 5))
	f.follow(nil)
	q := f.ask()
	f.step(evResponse{fetchAnswer{Seq: q.Seq, Status: statusDiverging, LeaderEpoch: 5, DivergeEpoch: 3, DivergeEnd: 5}, f.now})
	f.assign(func(a *Assignment) { a.Leader, a.LeaderEpoch = self, 6 })
	f.step(evDurable{20, f.now})
	if f.c.durable != 10 {
		t.Errorf("durable end is %d while the log is cut to 5", f.c.durable)
	}
	f.step(evCut{End: 5, Durable: 5, Chain: []log.EpochStart{at(3, 0)}})
	if f.c.durable != 5 || f.c.end != 5 {
		t.Errorf("after the cut: durable %d, end %d", f.c.durable, f.c.end)
	}
}

// The high watermark waits for a follower that is about to join, within the latency
// budget: else it would always be just above what that follower has.
func TestWaitsForJoiner(t *testing.T) {
	f := newFixture(t, 10, 10, 3, at(4, 0))
	f.lead(func(a *Assignment) { a.ISR = []Member{self, three} })
	f.sync()
	f.fetch(two, 11, 11, 5)
	f.fetch(three, 11, 11, 5)
	f.c.lead.proposals = nil // nothing proposed counts for what follows
	f.write(1)
	f.sync()
	f.fetch(three, 12, 12, 5)
	f.wantHW(11, "node 2 is about to join and has 11")
	f.now = f.now.Add(time.Second)
	f.step(evTick{f.now})
	f.wantHW(12, "node 2 has had its time")
}

// What is written down may be above a log that has lost its unsynced end.
func TestHintAboveLog(t *testing.T) {
	f := newFixture(t, 10, 10, 15, at(4, 0))
	f.wantHW(10, "the log ends at 10")
}

// Epochs of fetched batches lie between the log's last and the leader's.
func TestCheckBatches(t *testing.T) {
	var b []byte
	for i, epoch := range []log.Epoch{3, 3, 5} {
		x := record.LeaderChange(epoch, 1, nil, simStart)
		x.SetBaseOffset(log.Offset(10 + i))
		x.SetLeaderEpoch(epoch)
		b = append(b, x.Bytes()...)
	}
	for _, c := range []struct {
		name string
		e    effAppend
		good bool
	}{
		{"fits", effAppend{Pos: 10, Last: 2, Epoch: 5}, true},
		{"below the last", effAppend{Pos: 10, Last: 4, Epoch: 5}, false},
		{"above the leader's", effAppend{Pos: 10, Last: 2, Epoch: 4}, false},
		{"elsewhere", effAppend{Pos: 9, Last: 2, Epoch: 5}, false},
	} {
		runs, err := checkBatches(b, c.e)
		if (err == nil) != c.good {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.good && !slices.Equal(runs, []log.EpochStart{at(3, 10), at(5, 12)}) {
			t.Errorf("%s: runs %v", c.name, runs)
		}
	}
}

// A session that is closed while it takes a request is not kept by the replicas that the
// request names.
func TestClosedSessionIsNotParked(t *testing.T) {
	r := &Replica{parked: map[*session]struct{}{}}
	s := &session{stop: make(chan struct{}), parts: map[log.PartitionID]*sessionPart{}}
	s.parkAt(r)
	if len(r.parked) != 1 {
		t.Fatal("an open session is not parked")
	}
	r.unpark(s)
	s.close()
	s.parkAt(r)
	if len(r.parked) != 0 {
		t.Error("a closed session stays parked")
	}
}
