package replication

import (
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// becomeLeader begins a leader epoch. Nothing is counted before the epoch-start
// record is written.
func (c *core) becomeLeader(now time.Time) {
	c.lead.leso, c.lead.ready = -1, false
	c.lead.followers = make(map[NodeID]*follower)
	c.expectMembers(now)
	c.emit(effLead{c.epoch})
}

// expectMembers gives members of the in-sync set that have not been heard of in
// this epoch a full grace period from now on.
func (c *core) expectMembers(now time.Time) {
	for _, m := range c.a.ISR {
		if m.ID != c.self.ID && c.lead.followers[m.ID] == nil {
			c.lead.followers[m.ID] = &follower{epoch: m.Epoch, durable: -1, pos: -1, reported: -1, caughtUp: now, mark: -1}
		}
	}
}

func (c *core) epochStarted(ev evEpochStarted) {
	c.end, c.chain = ev.End, slices.Clone(ev.Chain)
	c.durable = min(ev.Durable, ev.End)
	c.hw = min(c.hw, c.end)
	if c.role != RoleLeader || ev.Epoch != c.epoch || c.lead.leso >= 0 {
		return
	}
	c.lead.leso = ev.Base
	for _, f := range c.lead.followers {
		f.caughtUp, f.markAt = ev.Now, ev.Now
		f.mark = c.end
	}
	c.tierView(c.tier)
	c.emit(effWake{})
	c.review(ev.Now)
}

func (c *core) wrote(ev evWrote) {
	c.chain = c.chain.add(ev.Epoch, ev.Base)
	was := c.end
	c.end = max(c.end, ev.End)
	if c.role != RoleLeader || c.lead.leso < 0 {
		return
	}
	for _, f := range c.lead.followers {
		if f.verified && f.durable >= was {
			f.caughtUp, f.mark, f.markAt = ev.Now, c.end, ev.Now
		}
	}
	c.emit(effWake{})
}

func (c *core) durableTo(off log.Offset, now time.Time) {
	off = min(off, c.end)
	if off <= c.durable || c.follow.busyCut {
		return
	}
	c.durable = off
	c.emit(effReadable{})
	switch c.role {
	case RoleLeader:
		c.advance(now)
	case RoleFollower:
		c.tellProgress()
	}
}

// known returns the highest broker epoch of a replica that this leader has seen.
func (c *core) known(id NodeID) int64 {
	e := int64(-1)
	if m, ok := hasMember(c.a.ISR, id); ok {
		e = max(e, m.Epoch)
	}
	if m, ok := hasMember(c.a.Live, id); ok {
		e = max(e, m.Epoch)
	}
	if f := c.lead.followers[id]; f != nil {
		e = max(e, f.epoch)
	}
	return e
}

// fetch is the leader's side of a fetch: the steps of the protocol in their order.
// The answer says what is known at once; data, a moved high watermark and waiting
// are serve's.
func (c *core) fetch(from Member, q fetchRequest, edge edge, now time.Time) fetchAnswer {
	a := fetchAnswer{Partition: q.Partition, Seq: q.Seq, Leader: c.a.Leader.ID, LeaderEpoch: c.a.LeaderEpoch}
	refuse := func(s fetchStatus) fetchAnswer { a.Status = s; return a }
	// 1. Is it mine, and the same epoch? Before membership (KAFKA-14078).
	if c.role != RoleLeader {
		return refuse(statusNotLeader)
	}
	if q.LeaderEpoch < c.epoch {
		return refuse(statusFencedEpoch)
	}
	if q.LeaderEpoch > c.epoch {
		return refuse(statusUnknownEpoch)
	}
	if c.lead.leso < 0 {
		return refuse(statusStarting)
	}
	// 2. Who asks?
	if !slices.Contains(c.a.Replicas, from.ID) || from.ID == c.self.ID {
		return refuse(statusUnknownReplica)
	}
	if from.Epoch < c.known(from.ID) {
		return refuse(statusFencedReplica)
	}
	f := c.lead.followers[from.ID]
	if f == nil {
		f = &follower{epoch: from.Epoch, durable: -1, pos: -1, mark: -1, reported: -1}
		c.lead.followers[from.ID] = f
	}
	if f.epoch != from.Epoch {
		*f = follower{epoch: from.Epoch, durable: -1, pos: -1, mark: -1, reported: f.reported, lossy: f.lossy}
	}
	if q.Seq <= f.seq {
		return refuse(statusStale)
	}
	if q.Durable > q.Pos || q.Pos < 0 || edge.localStart != c.localStart || edge.base > edge.localStart {
		return refuse(statusRetry)
	}
	c.lead.edge = edge
	f.seq = q.Seq
	// 3. Has its disk lost what it reported?
	if q.Lossy {
		f.verified, f.durable, f.reported = false, -1, -1
		counted := slices.Contains(c.a.ELR, from.ID)
		for m := range c.maximal {
			counted = counted || m.ID == from.ID
		}
		if !counted {
			return refuse(statusMayCut)
		}
		f.lossy = true
		c.review(now)
		return refuse(statusRetry)
	}
	if q.Pos < f.reported {
		f.verified, f.durable, f.reported = false, -1, q.Pos
		// Outside the in-sync set it matters only where it may be an eligible leader.
		if _, in := hasMember(c.a.ISR, from.ID); in || slices.Contains(c.a.ELR, from.ID) {
			f.lossy = true
		}
	}
	// 4. Range, before divergence (KAFKA-12996).
	empty := q.LastEpoch == noEpoch
	// At the log start the chain may no longer tell what came before; then nothing that
	// the follower has is part of the log any more, so it begins anew.
	untold := !empty && q.Pos <= c.start && c.chain.below(q.Pos).last() == noEpoch
	at := edge.base
	// A tier end that is the log start may lie inside a batch, of which nothing is there.
	if tierEnd := min(c.tier.TierEnd, c.hw); c.tiered && c.tier.Known && c.tier.TierEnd > c.tier.LogStart && tierEnd > c.localStart {
		at = tierEnd
	}
	if q.Pos < edge.base || untold || empty && q.Pos < at {
		if c.tiered && !c.tier.Known {
			f.verified, f.durable = false, -1
			c.review(now)
			return refuse(statusRetry)
		}
		f.verified, f.durable, f.reported = false, -1, -1
		// The log start follows with the high watermark, if it is above.
		a.Status, a.Start, a.LogStart, a.Chain = statusTierStart, at, min(c.start, at), c.chain.below(at)
		c.review(now)
		return a
	}
	// 5. Divergence. An empty log has nothing that could differ.
	e, end := c.chain.endFor(q.LastEpoch, c.end)
	if empty {
		e, end = noEpoch, c.end
	}
	if e < q.LastEpoch || end < q.Pos {
		// Nothing it says is recorded (KAFKA-13141).
		f.verified, f.durable, f.reported = false, -1, -1
		a.Status, a.DivergeEpoch, a.DivergeEnd = statusDiverging, e, end
		c.review(now)
		return a
	}
	// 6. Record, review, advance.
	if !f.verified {
		f.since = q.Seq
	}
	f.verified, f.pos = true, q.Pos
	c.acked(f, q.Durable, now)
	c.review(now)
	a.Status = statusOK
	return a
}

// serve tells what there is to send for a fetch that was answered with statusOK:
// data is true when there are batches at its position, moved when the high
// watermark is above what it knows. Anything but statusOK means that the fetch must
// be judged again.
func (c *core) serve(from Member, q fetchRequest) (a fetchAnswer, data, moved bool) {
	a = fetchAnswer{Partition: q.Partition, Seq: q.Seq, Leader: c.a.Leader.ID, LeaderEpoch: c.a.LeaderEpoch}
	f := c.lead.followers[from.ID]
	switch {
	case c.role != RoleLeader:
		a.Status = statusNotLeader
	case q.LeaderEpoch != c.epoch:
		a.Status = statusFencedEpoch
	case c.lead.leso < 0:
		a.Status = statusStarting
	case f == nil || f.epoch != from.Epoch || !f.verified || f.pos != q.Pos:
		a.Status = statusStale
	case q.Pos < c.localStart && (c.lead.edge.localStart != c.localStart || q.Pos < c.lead.edge.base):
		a.Status = statusRetry
	default:
		a.HW, a.LogStart, a.End = c.hw, c.start, c.end
		a.PrevEpoch = c.chain.below(q.Pos).last()
		return a, q.Pos < c.end, q.HWKnown < min(c.hw, q.Pos)
	}
	return a, false, false
}

// acked takes a durable end of a verified follower.
func (c *core) acked(f *follower, durable log.Offset, now time.Time) {
	f.durable = max(f.durable, min(durable, c.end))
	f.reported = max(f.reported, f.durable)
	if f.mark < 0 {
		f.mark, f.markAt = c.end, now
	}
	if f.durable >= f.mark {
		if f.markAt.After(f.caughtUp) {
			f.caughtUp = f.markAt
		}
		f.mark, f.markAt = c.end, now
	}
	if f.durable >= c.end {
		f.caughtUp = now
	}
}

func (c *core) progress(from Member, p progressEntry, now time.Time) {
	f := c.lead.followers[from.ID]
	if c.role != RoleLeader || p.LeaderEpoch != c.epoch || c.lead.leso < 0 || f == nil ||
		f.epoch != from.Epoch || !f.verified || p.Seq < f.since || p.Durable > c.end {
		return
	}
	c.acked(f, p.Durable, now)
	c.review(now)
}

// lag is for how long a follower has not held all that the leader has.
func (c *core) lag(f *follower, now time.Time) time.Duration {
	if f.verified && f.durable >= c.end {
		return 0
	}
	if f.caughtUp.IsZero() {
		return 1<<63 - 1
	}
	return now.Sub(f.caughtUp)
}

// eligible: the controller would let it in, as far as this node knows (KIP-841).
func (c *core) eligible(id NodeID, f *follower) bool {
	m, live := hasMember(c.a.Live, id)
	return live && m.Epoch == f.epoch && f.verified && !f.lossy && slices.Contains(c.a.Replicas, id)
}

// maximal calls yield for every other replica whose acknowledgement is required:
// the committed in-sync set and all that a proposal may have put into it.
func (c *core) maximal(yield func(Member) bool) {
	for _, m := range c.a.ISR {
		if m.ID != c.self.ID && !yield(m) {
			return
		}
	}
	for _, p := range c.lead.proposals {
		for _, m := range p.ISR {
			if m.ID != c.self.ID && !yield(m) {
				return
			}
		}
	}
}

// advance moves the high watermark to the smallest durable end over the maximal
// in-sync set and those about to join, if the committed set is large enough.
func (c *core) advance(now time.Time) {
	if c.role != RoleLeader || c.lead.leso < 0 || len(c.a.ISR) < c.a.minISR() {
		return
	}
	hw := c.durable
	for m := range c.maximal {
		f := c.lead.followers[m.ID]
		if f == nil || f.epoch != m.Epoch || !f.verified {
			return
		}
		hw = min(hw, f.durable)
	}
	// Without waiting for those about to join, the high watermark would always be
	// just above what they have. Only those who may join, or an ineligible one would
	// stall everybody (KAFKA-15021); only within the latency budget.
	for id, f := range c.lead.followers {
		if c.eligible(id, f) && c.lag(f, now) <= c.cfg.AckLatency {
			hw = min(hw, f.durable)
		}
	}
	if hw > c.hw {
		c.hw = hw
		c.committed()
	}
}

// review proposes a change of the in-sync set if one is due, and advances.
func (c *core) review(now time.Time) {
	c.propose(now)
	c.advance(now)
}

func (c *core) propose(now time.Time) {
	if c.role != RoleLeader || c.lead.leso < 0 || c.lead.inflight || now.Before(c.lead.pauseTo) {
		return
	}
	var lossy []Member
	isr := make([]Member, 0, len(c.a.ISR)+1)
	type slow struct {
		m   Member
		lag time.Duration
	}
	var late []slow
	changed := false
	for _, m := range c.a.ISR {
		f := c.lead.followers[m.ID]
		switch {
		case m.ID == c.self.ID:
			isr = append(isr, m)
		case f == nil:
			isr = append(isr, m)
		case f.lossy:
			lossy = append(lossy, Member{m.ID, max(m.Epoch, f.epoch)})
			changed = true
		case c.lag(f, now) > c.cfg.LagMax:
			changed = true
		default:
			isr = append(isr, m)
			if lag := c.lag(f, now); lag > c.cfg.AckLatency {
				late = append(late, slow{m, lag})
			}
		}
	}
	for _, id := range c.a.Replicas {
		if _, in := hasMember(c.a.ISR, id); !in && c.lead.followers[id] != nil && c.lead.followers[id].lossy {
			lossy = append(lossy, Member{id, c.lead.followers[id].epoch})
			changed = true
		}
	}
	slices.SortStableFunc(late, func(a, b slow) int { return int(min(max(b.lag-a.lag, -1), 1)) })
	for _, s := range late {
		if len(isr)-1 < c.a.minISR() {
			break
		}
		isr = slices.DeleteFunc(isr, func(m Member) bool { return m.ID == s.m.ID })
		changed = true
	}
	for _, id := range c.a.Replicas {
		f := c.lead.followers[id]
		if f == nil || !c.eligible(id, f) {
			continue
		}
		// Three conditions: it holds all that may be committed, it holds this epoch's
		// first record, it was verified in this epoch. And it must not be one that
		// would be taken out again at once.
		budget := c.cfg.AckLatency
		if len(c.a.ISR) < c.a.minISR() {
			budget = c.cfg.LagMax
		}
		if f.durable < c.hw || f.durable <= c.lead.leso || c.lag(f, now) > budget {
			continue
		}
		if m, in := hasMember(c.a.ISR, id); in && m.Epoch == f.epoch {
			continue
		}
		isr = slices.DeleteFunc(isr, func(m Member) bool { return m.ID == id })
		isr = append(isr, Member{id, f.epoch})
		changed = true
	}
	if !changed {
		return
	}
	ch := ISRChange{Partition: c.a.Partition, Leader: c.self, LeaderEpoch: c.epoch, PartitionEpoch: c.a.PartitionEpoch,
		ISR: isr, Lossy: lossy}
	c.send(ch)
}

// send sends a proposal; from now on its members count.
func (c *core) send(ch ISRChange) {
	c.lead.proposals = append(c.lead.proposals, ch)
	c.lead.inflight, c.lead.tries, c.lead.retryAt = true, 0, time.Time{}
	c.emit(effAlter{ch})
}

// resign asks to be taken out: this process can't lead, though it is told to.
func (c *core) resign(now time.Time) {
	if c.lead.inflight || now.Before(c.lead.pauseTo) {
		return
	}
	if _, in := hasMember(c.a.ISR, c.self.ID); !in {
		return
	}
	ch := ISRChange{Partition: c.a.Partition, Leader: c.self, LeaderEpoch: c.a.LeaderEpoch, PartitionEpoch: c.a.PartitionEpoch}
	for _, m := range c.a.ISR {
		if m.ID != c.self.ID {
			ch.ISR = append(ch.ISR, m)
		}
	}
	if c.lossy {
		ch.Lossy = []Member{c.self}
	}
	c.send(ch)
}

func (c *core) isrAnswer(ev evISRAnswer) {
	if ev.Outcome == isrMade && (!c.assigned || ev.A.PartitionEpoch > c.a.PartitionEpoch) {
		// It settles all proposals. One that is known already came with the metadata,
		// which may have learnt since then who is live.
		c.assign(ev.A, ev.Now)
	}
	n := len(c.lead.proposals)
	if !c.lead.inflight || n == 0 {
		return
	}
	p := c.lead.proposals[n-1]
	if p.PartitionEpoch != ev.Change.PartitionEpoch || p.LeaderEpoch != ev.Change.LeaderEpoch {
		return
	}
	c.lead.pauses = min(c.lead.pauses+1, 6)
	pause := c.cfg.Retry << (c.lead.pauses - 1)
	switch ev.Outcome {
	case isrUnknown:
		c.lead.tries++
		c.lead.retryAt = ev.Now.Add(pause)
	default:
		c.lead.inflight = false
		c.lead.pauseTo = ev.Now.Add(pause)
		for _, m := range p.Lossy {
			if _, in := hasMember(c.a.ISR, m.ID); !in && c.lead.followers[m.ID] != nil {
				c.lead.followers[m.ID].lossy = false // the controller does not care; don't ask for ever
			}
		}
		if c.lead.tries == 0 {
			// The only attempt was refused, so it was not made. After an unknown
			// outcome an earlier attempt may still reach the controller: then the
			// members count until a newer assignment settles it.
			c.lead.proposals = c.lead.proposals[:n-1]
			c.advance(ev.Now)
		}
	}
}

func (c *core) tick(now time.Time) {
	if c.lead.inflight && !c.lead.retryAt.IsZero() && !now.Before(c.lead.retryAt) {
		c.lead.retryAt = time.Time{}
		c.emit(effAlter{c.lead.proposals[len(c.lead.proposals)-1]})
	}
	if !c.lead.pauseTo.IsZero() && !now.Before(c.lead.pauseTo) {
		c.lead.pauseTo = time.Time{}
		if c.role != RoleLeader {
			c.decide(now)
		}
	}
	c.review(now)
}
