package replication

import (
	"slices"

	"github.com/cordwood-io/cordwood/log"
)

// maxRounds bounds answers "diverging" in a row. Each lowers (last epoch, end), so
// there can be no more than the chain has epochs; beyond that something is wrong.
const maxRounds = 1000

func (c *core) nextFetch() {
	if _, _, ok := c.fetchFrom(); !ok || c.follow.busy {
		return
	}
	if c.damaged && c.pardoned {
		// The log takes nothing until it is replaced; nothing in it counts any more.
		c.follow.busy, c.follow.busyCut = true, true
		c.emit(effReset{Start: 0, LowerHW: true})
		return
	}
	c.follow.seq++
	c.follow.out = fetchRequest{Partition: c.a.Partition, Seq: c.follow.seq, LeaderEpoch: c.epoch, Pos: c.end,
		LastEpoch: c.chain.last(), Durable: c.durable, LogStart: c.start, HWKnown: c.hw,
		Lossy: c.lossy && !c.pardoned}
	c.emit(effFetch{c.follow.out})
}

func (c *core) tellProgress() {
	if _, _, ok := c.fetchFrom(); !ok || c.follow.out.Seq == 0 || c.lossy && !c.pardoned {
		return
	}
	c.emit(effProgress{progressEntry{Partition: c.a.Partition, Seq: c.follow.out.Seq, LeaderEpoch: c.epoch, Durable: c.durable}})
}

// response is the follower's side of an answer.
func (c *core) response(a fetchAnswer) {
	out := c.follow.out
	// 1. Only the answer to the last question, and only if nothing changed meanwhile
	// (KAFKA-13207). Another answer to it is under way, or none was asked.
	if _, _, ok := c.fetchFrom(); !ok || c.follow.busy || out.Pos < 0 || a.Seq != out.Seq {
		return
	}
	if out.LeaderEpoch != c.epoch || out.Pos != c.end || out.LastEpoch != c.chain.last() {
		c.emit(effRefetch{})
		return
	}
	c.follow.out.Pos = -1 // answered: a second copy is not taken; Seq stays, for progress
	// 2. What is not data: its high watermark and log start are not looked at
	// (KAFKA-14704).
	switch a.Status {
	case statusOK:
		if out.Lossy {
			c.emit(effRefetch{Pause: true})
			return
		}
	case statusMayCut:
		if out.Lossy && c.lossy && a.LeaderEpoch == c.epoch {
			c.pardoned = true
		}
		c.emit(effRefetch{})
		return
	case statusDiverging:
		if a.LeaderEpoch != c.epoch {
			c.emit(effRefetch{Pause: true})
			return
		}
		c.diverged(a)
		return
	case statusTierStart:
		if a.LeaderEpoch != c.epoch {
			c.emit(effRefetch{Pause: true})
			return
		}
		c.tierStart(a)
		return
	default:
		c.emit(effRefetch{Pause: a.Status != statusStale})
		return
	}
	if a.LeaderEpoch != c.epoch || c.chain.last() != noEpoch && a.PrevEpoch != c.chain.last() || a.HW < 0 || a.LogStart < 0 {
		c.emit(effRefetch{Pause: true})
		return
	}
	c.follow.rounds = 0
	if a.PayloadBytes > 0 {
		c.follow.busy = true
		c.follow.respHW, c.follow.respStart = a.HW, a.LogStart
		c.emit(effAppend{Pos: c.end, Last: c.chain.last(), Epoch: c.epoch})
		return
	}
	c.learn(a.HW, a.LogStart)
	c.emit(effRefetch{})
}

// learn takes the leader's high watermark and log start (KAFKA-7104). Where there is a
// tier, the log start is its committed word, which this node reads by itself: a leader
// that has lost its prefix must not take ours along (Kora, table 1).
func (c *core) learn(hw, start log.Offset) {
	c.raise(hw)
	if c.tiered {
		return
	}
	if start = min(start, c.hw); start > c.start {
		c.emit(effTrim{start})
	}
}

func (c *core) replicated(ev evReplicated) {
	c.follow.busy = false
	for _, r := range ev.Runs {
		c.chain = c.chain.add(r.Epoch, r.Start)
	}
	c.end = max(c.end, ev.End)
	if c.role != RoleFollower {
		return
	}
	c.learn(c.follow.respHW, c.follow.respStart)
	c.emit(effRefetch{})
}

// mayLower: this replica may cut below its own high watermark, since what it holds
// counts for nobody (see pardoned) or an unclean election
// has given up part of the log.
func (c *core) mayLower() bool {
	return c.lossy && c.pardoned || c.chain.last() < c.a.LastUncleanEpoch
}

func (c *core) diverged(a fetchAnswer) {
	_, lend := c.chain.endFor(a.DivergeEpoch, c.end)
	to := min(a.DivergeEnd, lend)
	c.follow.rounds++
	shrinks := to < c.end || c.chain.below(to).last() < c.chain.last()
	if !shrinks || c.follow.rounds > maxRounds || to < c.hw && !c.mayLower() {
		c.quarantine()
		return
	}
	c.follow.busy, c.follow.busyCut = true, true
	if to < c.localStart {
		// Nothing of what is here stays: begin again from the leader's start.
		c.emit(effReset{Start: 0, LowerHW: true})
		return
	}
	c.emit(effTruncate{To: to, LowerHW: to < c.hw})
}

func (c *core) quarantine() {
	c.quarantined = true
	c.emit(effUnhealthy{ErrQuarantined})
	c.emit(effFollow{})
}

func (c *core) tierStart(a fetchAnswer) {
	if a.Start < c.end && !c.mayLower() || a.Start < 0 || a.LogStart > a.Start || a.LogStart < 0 ||
		!slices.IsSortedFunc(a.Chain, func(x, y log.EpochStart) int { return int(x.Epoch) - int(y.Epoch) }) {
		c.emit(effRefetch{Pause: true})
		return
	}
	start := a.LogStart
	if c.tiered {
		if c.tier.Known && a.Start > c.tier.TierEnd {
			// What lies between is in no store that this node knows of: either its view is
			// behind, or the leader has lost records.
			c.emit(effRefetch{Pause: true})
			return
		}
		start = 0 // as in learn
	}
	c.follow.busy, c.follow.busyCut = true, true
	c.emit(effReset{Start: a.Start, LogStart: start, Chain: a.Chain, Producers: a.Producers, LowerHW: a.Start < c.hw})
}

// wasCut takes the log's facts after a cut or a reset.
func (c *core) wasCut(ev evCut) {
	c.follow.busy, c.follow.busyCut = false, false
	c.damaged = false
	c.start, c.localStart, c.end, c.durable = ev.Start, ev.LocalStart, ev.End, ev.Durable
	c.chain = slices.Clone(ev.Chain)
	c.hw = min(c.hw, c.end)
	c.raise(c.localStart)
	c.emit(effRefetch{})
}
