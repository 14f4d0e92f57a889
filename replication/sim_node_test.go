package replication

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// The simulated driver: it does what Replica does, one thing at a time.

func (n *simNode) bounds() { n.step(evBounds{n.l.Start(), n.l.LocalStart()}) }

func (n *simNode) observe() {
	n.bounds()
	if n.w.tiered {
		n.step(evTier{n.view})
	}
}

// inTurn runs fn when the write turn is free.
func (n *simNode) inTurn(fn func()) {
	if n.busy {
		n.mine(100*time.Microsecond, func() { n.inTurn(fn) })
		return
	}
	fn()
}

// slowly runs fn, which changes the log, now or a little later; meanwhile the turn is
// taken.
func (n *simNode) slowly(fn func()) {
	if n.w.rng.IntN(2) == 0 {
		fn()
		return
	}
	n.busy = true
	n.mine(n.w.rand(3*time.Millisecond), func() {
		n.busy = false
		fn()
	})
}

func (n *simNode) startEpoch() {
	n.inTurn(func() {
		if n.c.role != RoleLeader || n.c.lead.leso >= 0 {
			return
		}
		epoch := n.c.epoch
		app, err := n.l.WriteControl(epoch, record.LeaderChange(epoch, int32(n.id), []int32{1, 2, 3}, n.w.now))
		if err != nil {
			n.w.fail("node %d: epoch start of %d: %v", n.id, epoch, err)
			return
		}
		n.wrote(app.Base)
		n.observe()
		n.step(evEpochStarted{Epoch: epoch, Base: app.Base, End: n.l.End(), Durable: n.l.DurableEnd(), Chain: n.l.EpochChain(), Now: n.w.now})
		n.w.leaderElected(n)
		n.syncLater()
	})
}

// wrote brings the shadow up to the log's end from base on.
func (n *simNode) wrote(base log.Offset) {
	n.shadow = n.shadow.cut(base)
	for off := base; off < n.l.End(); {
		s, err := n.l.Read(context.Background(), off, 1<<20)
		if err != nil {
			n.w.fail("node %d: read at %d: %v", n.id, off, err)
			return
		}
		es := entries(s.Bytes())
		n.shadow = append(n.shadow, es...)
		off = s.End()
		s.Release()
	}
}

// syncLater makes durable what is written, a little later or when the stall ends.
func (n *simNode) syncLater() {
	d := n.w.rand(2 * time.Millisecond)
	if n.w.now.Before(n.stalled) {
		d += n.stalled.Sub(n.w.now)
		n.w.count("sync-stalled")
	}
	n.mine(d, func() {
		if n.w.now.Before(n.stalled) {
			n.syncLater()
			return
		}
		if _, err := n.l.Sync(context.Background()); err != nil {
			n.w.fail("node %d: sync: %v", n.id, err)
			return
		}
		n.step(evDurable{n.l.DurableEnd(), n.w.now})
	})
}

// fetchAfter has the follower ask its leader after d.
func (n *simNode) fetchAfter(d time.Duration) {
	n.asked = false
	n.askedAt++
	this := n.askedAt
	n.mine(d, func() {
		if n.askedAt == this {
			n.fetch()
		}
	})
}

func (n *simNode) fetch() {
	w := n.w
	if n.busy {
		n.fetchAfter(200 * time.Microsecond)
		return
	}
	switch e := n.step(evNextFetch{}).(type) {
	case effReset:
		n.act(e, nil)
	case effFetch:
		n.asked = true
		n.askedAt++
		this := n.askedAt
		leader, _, ok := n.c.fetchFrom()
		if !ok || leader < 1 {
			return
		}
		to, me := w.node(int(leader)), n.c.self
		w.send(n, to, func() { to.judge(me, e.Req) })
		n.mine(simFetchWait+100*time.Millisecond, func() {
			if n.askedAt == this {
				w.count("fetch-timeout")
				n.fetch()
			}
		})
	}
}

func (n *simNode) judge(from Member, q fetchRequest) {
	n.observe()
	w := n.w
	edge, err := edgeOf(context.Background(), n.l, n.l.LocalStart())
	if err != nil {
		w.count("edge-not-read")
	}
	e, _ := n.step(evFetch{from, q, edge, w.now}).(effAnswer)
	switch a := e.Ans; a.Status {
	case statusOK:
		n.serve(from, q)
	case statusStarting:
		n.park(from, q)
	default:
		w.count("answer-" + statusName(a.Status))
		if a.Status == statusTierStart {
			p, err := n.l.ProducerSnapshot(context.Background(), a.Start)
			if err != nil {
				w.fail("node %d: producers at %d: %v", n.id, a.Start, err)
			}
			a.Producers = p
		}
		n.respond(from, a, nil)
	}
}

func statusName(s fetchStatus) string {
	return [...]string{"ok", "diverging", "tier-start", "not-leader", "fenced-epoch", "unknown-epoch", "unknown-replica", "fenced-replica",
		"unknown-partition", "retry", "stale", "starting", "limit", "may-cut"}[s]
}

func (n *simNode) park(from Member, q fetchRequest) {
	n.parked = append(n.parked, fetchRequestFrom{from, q})
	n.mine(simFetchWait, func() {
		i := slices.IndexFunc(n.parked, func(p fetchRequestFrom) bool { return p.from == from && p.q.Seq == q.Seq })
		if i >= 0 {
			n.parked = slices.Delete(n.parked, i, i+1)
			a, _, _ := n.c.serve(from, q)
			if a.Status == statusOK {
				n.respond(from, a, nil)
			}
		}
	})
}

func (n *simNode) serve(from Member, q fetchRequest) {
	a, data, moved := n.c.serve(from, q)
	switch {
	case a.Status == statusOK && data:
		s, err := n.l.Read(context.Background(), max(q.Pos, n.l.LocalStart()), 1+n.w.rng.IntN(2000))
		if err != nil {
			a.Status = statusRetry
			n.respond(from, a, nil)
			return
		}
		b := bytes.Clone(s.Bytes())
		s.Release()
		a.PayloadBytes = int32(len(b))
		n.respond(from, a, b)
	case a.Status == statusOK && moved:
		n.w.count("hw-only")
		n.respond(from, a, nil)
	case a.Status == statusOK:
		n.park(from, q)
	case a.Status == statusStarting:
		n.park(from, q)
	default:
		n.judge(from, q) // something has changed
	}
}

func (n *simNode) respond(to Member, a fetchAnswer, payload []byte) {
	f := n.w.node(int(to.ID))
	// Through the codec, as on the wire.
	m, err := decodeAnswer((&answerMessage{Parts: []fetchAnswer{a}}).encode(nil))
	if err != nil {
		n.w.fail("codec: %v", err)
		return
	}
	a = m.Parts[0]
	n.w.send(n, f, func() { f.inTurn(func() { f.take(a, payload) }) })
}

func (n *simNode) take(a fetchAnswer, payload []byte) {
	if a.Status == statusDiverging || a.Status == statusTierStart {
		n.observe()
	}
	if e := n.step(evResponse{a, n.w.now}); e != nil {
		n.act(e, payload)
	}
}

func (n *simNode) act(e effect, payload []byte) {
	w, ctx := n.w, context.Background()
	facts := func() {
		n.step(evCut{Start: n.l.Start(), LocalStart: n.l.LocalStart(), End: n.l.End(), Durable: n.l.DurableEnd(), Chain: n.l.EpochChain()})
	}
	switch e := e.(type) {
	case effAppend:
		n.slowly(func() {
			runs, err := checkBatches(payload, e)
			if err == nil {
				_, err = n.l.AppendReplicated(payload)
			}
			if err != nil {
				w.count("append-rejected")
				w.logf("node %d: rejects: %v", n.id, err)
				n.step(evRejected{})
				return
			}
			n.wrote(e.Pos)
			w.count("replicated")
			n.step(evReplicated{End: n.l.End(), Runs: runs})
			n.syncLater()
		})
	case effTruncate:
		w.count("truncate")
		n.mayCut(e.To, e.LowerHW)
		n.slowly(func() {
			if e.LowerHW {
				w.count("lower-hw")
				n.hint.lower(e.To)
			}
			end, err := n.l.TruncateTo(ctx, e.To)
			w.logf("node %d cuts to %d: %d %v", n.id, e.To, end, err)
			if err != nil {
				w.fail("node %d: cut to %d: %v", n.id, e.To, err)
			}
			n.shadow = n.shadow.cut(end)
			facts()
		})
	case effReset:
		w.count("reset")
		n.mayCut(e.Start, e.LowerHW)
		n.slowly(func() {
			if e.LowerHW {
				w.count("lower-hw")
				n.hint.lower(e.Start)
			}
			err := n.l.Reset(ctx, e.Start, e.Chain, e.Producers)
			if err == nil && e.LogStart > n.l.Start() {
				err = n.l.TrimTo(ctx, e.LogStart)
			}
			w.logf("node %d resets to %d: %v", n.id, e.Start, err)
			if err != nil {
				w.fail("node %d: reset to %d: %v", n.id, e.Start, err)
			}
			n.shadow, n.rotten = nil, false
			facts()
		})
	}
}

// mayCut: S20, no cut below the own high watermark but by a lossy replica whose
// removal is committed.
func (n *simNode) mayCut(to log.Offset, lower bool) {
	if to < n.c.hw && !(n.c.lossy && n.c.pardoned) {
		n.w.fail("S20: node %d cuts to %d below its high watermark %d (lower %v)", n.id, to, n.c.hw, lower)
	}
}

// alter sends a change to the controller.
func (n *simNode) alter(ch ISRChange) {
	w := n.w
	w.count("alter-isr")
	w.logf("node %d proposes ISR %v lossy %v on %d", n.id, ch.ISR, ch.Lossy, ch.PartitionEpoch)
	done := false
	answer := func(ev evISRAnswer) {
		if !done {
			done = true
			ev.Change, ev.Now = ch, w.now
			n.step(ev)
		}
	}
	n.mine(150*time.Millisecond, func() {
		if !done {
			w.count("alter-unknown")
			answer(evISRAnswer{Outcome: isrUnknown})
		}
	})
	late := time.Duration(0)
	if w.answers == 2 && w.rng.IntN(3) == 0 {
		late = w.rand(400 * time.Millisecond) // so late that a retry comes first
	}
	w.after(w.rand(3*time.Millisecond)+late, func() {
		if !w.ctlLinked(n) {
			return
		}
		a, err := w.ctl.alterISR(ch)
		if w.answers > 0 && w.rng.IntN(3) == 0 {
			w.count("alter-answer-lost")
			return
		}
		n.mine(w.rand(3*time.Millisecond), func() {
			switch {
			case err == nil:
				w.count("alter-made")
				answer(evISRAnswer{Outcome: isrMade, A: a})
			default:
				w.count("alter-refused")
				answer(evISRAnswer{Outcome: isrRefused})
			}
		})
	})
}

// append is a client that appends at whoever says that it leads.
func (w *world) append(o op) {
	var n *simNode
	for _, m := range w.nodes {
		if m.up && m.c.role == RoleLeader && !w.now.Before(m.paused) && (n == nil || w.rng.IntN(2) == 0) {
			n = m
		}
	}
	if o.Node > 0 {
		n = w.node(o.Node)
	}
	if n == nil || !n.up {
		w.count("append-no-leader")
		return
	}
	var p *simProducer
	if o.Arg < int64(len(w.producers)) {
		p = w.producers[o.Arg]
	}
	var a *simAppend
	if p != nil && p.pending != nil {
		if p.pending.waiting {
			return
		}
		if p.pending.acked {
			p.seq += int32(p.pending.records)
			p.pending = nil
		} else {
			w.count("append-retried")
			a = p.pending
		}
	}
	if a == nil {
		w.nextID++
		a = &simAppend{id: w.nextID, records: 1 + w.rng.IntN(3), producer: -1}
		var b record.Builder
		for range a.records {
			v := make([]byte, 8+w.rng.IntN(200))
			binary.BigEndian.PutUint64(v, a.id)
			if err := b.Append(record.Record{Value: v, Timestamp: w.now}); err != nil {
				w.fail("build: %v", err)
			}
		}
		batch, err := b.Build()
		if err != nil {
			w.fail("build: %v", err)
			return
		}
		if p != nil {
			a.producer, a.seq = p.id, p.seq
			batch.SetProducer(p.id, 0, p.seq)
			p.pending = a
		}
		a.batch = bytes.Clone(batch.Bytes())
		w.appends = append(w.appends, a)
	}
	life := n.life
	n.inTurn(func() {
		if n.life == life && !a.acked && !a.waiting {
			n.append(a)
		}
	})
}

func (n *simNode) append(a *simAppend) {
	w := n.w
	c := n.c
	if c.role != RoleLeader || c.lead.leso < 0 {
		w.count("append-not-leader")
		return
	}
	if len(c.a.ISR) < c.a.minISR() {
		w.count("append-not-enough")
		return
	}
	base := n.l.End()
	app, err := n.l.Write(c.epoch, bytes.Clone(a.batch))
	if err != nil {
		if errors.Is(err, log.ErrUnknownProducer) || errors.Is(err, log.ErrOutOfOrderSequence) {
			// A leader that has been replaced may not have what the producer appended
			// elsewhere. The present one has: nothing but one batch is in flight.
			if c.self != w.ctl.a.Leader || c.epoch != w.ctl.a.LeaderEpoch {
				w.count("append-refused")
				return
			}
			w.fail("node %d: append %d of producer %d seq %d: %v", n.id, a.id, a.producer, a.seq, err)
			return
		}
		w.fail("node %d: append: %v", n.id, err)
		return
	}
	a.node, a.life, a.base, a.need, a.waiting = n, n.life, app.Base, app.End, true
	a.deadline = w.now.Add(2 * time.Second)
	if app.Duplicate {
		w.count("append-duplicate")
	} else {
		w.count("append")
		n.wrote(base)
		n.step(evWrote{Epoch: c.epoch, Base: base, End: n.l.End(), Now: w.now})
	}
	if c.role == RoleLeader && c.hw >= a.need {
		n.ack(a)
		return
	}
	n.waits = append(n.waits, a)
	n.syncLater()
}

// committed is told of a risen high watermark.
func (n *simNode) committed(hw log.Offset) {
	if n.c.role != RoleLeader || n.c.lead.leso < 0 {
		return
	}
	n.w.commit(n, hw)
	keep := n.waits[:0]
	for _, a := range n.waits {
		if a.need <= hw {
			n.ack(a)
		} else {
			keep = append(keep, a)
		}
	}
	n.waits = keep
}

func (n *simNode) ack(a *simAppend) {
	w := n.w
	a.waiting = false
	if a.acked {
		w.fail("append %d acknowledged twice", a.id)
	}
	a.acked, a.offset = true, a.base
	w.count("acked")
	w.acked(n, a)
}

// dropLocal is what the tier's manager does on each replica.
func (n *simNode) dropLocal() {
	if !n.up || !n.w.tiered || !n.view.Known || n.busy {
		return
	}
	if start := min(n.view.LogStart, n.c.hw); start > n.l.Start() {
		if err := n.l.TrimTo(context.Background(), start); err != nil {
			n.w.fail("node %d: trim to %d: %v", n.id, start, err)
			return
		}
	}
	to := min(n.view.TierEnd, n.c.hw)
	was := n.l.LocalStart()
	if err := n.l.DropLocal(context.Background(), to); err != nil {
		n.w.fail("node %d: drop local below %d: %v", n.id, to, err)
		return
	}
	if n.l.LocalStart() > was {
		n.w.count("drop-local")
	}
	n.bounds()
}

// tier: the leader uploads what is sealed and committed, and tells.
func (w *world) tier() {
	if !w.tiered {
		return
	}
	for _, n := range w.nodes {
		if !n.up || n.c.role != RoleLeader || !n.c.lead.ready || n.c.epoch != w.ctl.a.LeaderEpoch {
			continue
		}
		for _, s := range n.l.Segments() {
			if s.Sealed && s.End <= n.c.hw && s.End > w.tierEnd {
				w.tierEnd = s.End
				w.count("tiered")
			}
		}
	}
	view := TierView{Known: true, LogStart: w.logStart, TierEnd: w.tierEnd, Lineage: w.lineage()}
	for _, n := range w.nodes {
		w.after(w.rand(100*time.Millisecond), func() {
			if w.ctlLinked(n) && n.view.TierEnd <= view.TierEnd {
				n.view = view
				n.step(evTier{view})
			}
		})
	}
}

// lineage is the epoch chain of what is in the tier.
func (w *world) lineage() (c []log.EpochStart) {
	for _, e := range w.committed {
		if e.base < w.tierEnd && (len(c) == 0 || c[len(c)-1].Epoch != e.epoch) {
			c = append(c, log.EpochStart{Epoch: e.epoch, Start: e.base})
		}
	}
	return c
}

// trim moves the log start, on the leader first; without a tier the others learn it
// from the leader.
func (w *world) trim() {
	for _, n := range w.nodes {
		if n.up && n.c.role == RoleLeader && n.c.lead.ready && !n.busy && n.c.epoch == w.ctl.a.LeaderEpoch {
			to := n.c.hw / 2
			if w.tiered {
				to = min(to, w.tierEnd)
			}
			if e, ok := n.shadow.find(to); ok && to%2 == 0 {
				to = e.base // else it may lie inside a batch
			}
			if to <= w.logStart {
				return
			}
			w.logStart = to
			if err := n.l.TrimTo(context.Background(), to); err != nil {
				w.fail("node %d: trim to %d: %v", n.id, to, err)
				return
			}
			w.count("trim")
			n.bounds()
			return
		}
	}
}
