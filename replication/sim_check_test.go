package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A simController is the cluster's metadata for one partition: fencing, elections
// and changes of the in-sync set, by the rules of KIP-497, 841 and 966.
type simController struct {
	w         *world
	a         Assignment
	elr       []NodeID
	brokers   map[NodeID]*simBroker
	lastEpoch int64
	// leaders of each epoch, for S5
	leaders map[log.Epoch]Member
}

type simBroker struct {
	epoch int64
	live  bool
	lossy bool
	seen  time.Time
	node  *simNode
	life  int
}

func newSimController(w *world, nodes, minISR int) *simController {
	c := &simController{w: w, brokers: map[NodeID]*simBroker{}, leaders: map[log.Epoch]Member{}}
	c.a = Assignment{Partition: simPartition, Leader: Member{ID: -1}, MinISR: minISR}
	for i := range nodes {
		c.a.Replicas = append(c.a.Replicas, NodeID(i+1))
		c.elr = append(c.elr, NodeID(i+1)) // all empty, so all equal
	}
	return c
}

// tick looks after sessions and tells everybody what is.
func (c *simController) tick() {
	w := c.w
	for _, id := range c.a.Replicas {
		b := c.brokers[id]
		if b == nil {
			continue
		}
		if w.ctlLinked(b.node) && b.node.life == b.life {
			b.seen = w.now
			if b.lossy != b.node.c.lossy {
				b.lossy = b.node.c.lossy // heartbeats report it
				if b.lossy {
					w.count("lossy-reported")
					c.drop(id, []Member{{id, b.epoch}})
				}
			}
			if !b.live && !b.node.c.failed {
				b.live = true
				w.count("unfenced")
				c.changed(false)
			}
		} else if b.live && w.now.Sub(b.seen) > 250*time.Millisecond {
			w.count("fenced")
			w.logf("controller fences %d", id)
			c.fence(id)
		}
	}
	c.elect()
	c.tell()
	w.after(50*time.Millisecond, c.tick)
}

func (c *simController) live() (ms []Member) {
	for _, id := range c.a.Replicas {
		if b := c.brokers[id]; b != nil && b.live {
			ms = append(ms, Member{id, b.epoch})
		}
	}
	return ms
}

// changed publishes a change; bump says that the partition's record changed.
func (c *simController) changed(bump bool) {
	if bump {
		c.a.PartitionEpoch++
	}
	c.a.Live = c.live()
	c.tell()
}

func (c *simController) snapshot() Assignment {
	a := c.a
	a.ISR, a.Live, a.ELR = slices.Clone(a.ISR), slices.Clone(a.Live), slices.Clone(c.elr)
	return a
}

func (c *simController) tell() {
	w := c.w
	a := c.snapshot()
	for _, n := range w.nodes {
		b := c.brokers[n.id]
		if b == nil || b.life != n.life || !w.ctlLinked(n) {
			continue
		}
		self := Member{n.id, b.epoch}
		n.mine(w.rand(8*time.Millisecond), func() {
			if !w.ctlLinked(n) {
				return
			}
			if n.epoch != self.Epoch && self.Epoch > n.epoch {
				n.epoch = self.Epoch
				n.step(evSelf{self, w.now})
			}
			n.observe()
			n.step(evAssign{a, w.now})
		})
	}
}

// setISR applies the rules for eligible leader replicas.
func (c *simController) setISR(isr []Member, lossy []Member) {
	old := slices.Clone(c.elr)
	for _, m := range c.a.ISR {
		if !slices.Contains(old, m.ID) {
			old = append(old, m.ID)
		}
	}
	c.a.ISR = slices.Clone(isr)
	c.elr = nil
	if len(isr) >= c.a.minISR() {
		return
	}
	for _, id := range old {
		_, in := hasMember(isr, id)
		_, bad := hasMember(lossy, id)
		if !in && !bad {
			c.elr = append(c.elr, id)
		}
	}
}

func (c *simController) without(id NodeID) []Member {
	return slices.DeleteFunc(slices.Clone(c.a.ISR), func(m Member) bool { return m.ID == id })
}

// drop takes a broker out of the in-sync set and of leadership.
func (c *simController) drop(id NodeID, lossy []Member) {
	_, in := hasMember(c.a.ISR, id)
	leads := c.a.Leader.ID == id
	if len(lossy) > 0 {
		c.elr = slices.DeleteFunc(c.elr, func(x NodeID) bool { return x == id })
	}
	if in {
		c.setISR(c.without(id), lossy)
	}
	if leads {
		c.a.Leader = Member{ID: -1}
		c.a.LeaderEpoch++
	}
	if in || leads || len(lossy) > 0 {
		c.changed(true)
	}
	c.elect()
}

func (c *simController) fence(id NodeID) {
	c.brokers[id].live = false
	c.drop(id, nil)
	c.changed(false)
}

// register gives a process life a broker epoch; its earlier lives lose everything.
func (c *simController) register(n *simNode) {
	b := c.brokers[n.id]
	if b == nil {
		b = &simBroker{}
		c.brokers[n.id] = b
	}
	c.lastEpoch++
	*b = simBroker{epoch: c.lastEpoch, live: false, lossy: n.c.lossy, seen: c.w.now, node: n, life: n.life}
	var lossy []Member
	if n.c.lossy || n.wiped {
		n.wiped = false
		lossy = []Member{{n.id, b.epoch}}
	}
	c.w.logf("controller registers %d as %d (lossy %v)", n.id, b.epoch, n.c.lossy)
	c.drop(n.id, lossy)
	if !n.c.failed {
		b.live = true
	}
	c.changed(false)
	c.elect()
}

// died: evidence of death, sometimes.
func (c *simController) died(n *simNode) {
	life := n.life
	if c.w.rng.IntN(2) == 0 {
		c.w.after(c.w.rand(5*time.Millisecond), func() {
			if b := c.brokers[n.id]; b != nil && b.life == life && b.live && !n.up {
				c.w.count("evidence-of-death")
				c.fence(n.id)
			}
		})
	}
}

// elect: a live member of the in-sync set, else a live eligible replica.
func (c *simController) elect() {
	if c.a.Leader.ID >= 0 {
		return
	}
	fit := func(id NodeID) bool {
		b := c.brokers[id]
		return b != nil && b.live && !b.lossy && b.node.up && b.node.life == b.life && !b.node.c.lossy && !b.node.c.failed &&
			!b.node.silent // nobody could know: one such loss at a time, and no other failure before it is seen
	}
	for _, m := range c.a.ISR {
		if fit(m.ID) && c.brokers[m.ID].epoch == m.Epoch {
			c.lead(Member{m.ID, m.Epoch})
			return
		}
	}
	if len(c.a.ISR) > 0 {
		return
	}
	for _, id := range c.elr {
		if fit(id) {
			c.w.count("elected-eligible")
			m := Member{id, c.brokers[id].epoch}
			c.setISR([]Member{m}, nil)
			c.lead(m)
			return
		}
	}
}

// candidate: somebody could lead who has lost nothing.
func (c *simController) candidate() bool {
	for _, id := range c.a.Replicas {
		n := c.w.node(int(id))
		if _, in := hasMember(c.a.ISR, id); (in || slices.Contains(c.elr, id)) && !n.silent && !n.c.lossy {
			return true
		}
	}
	return false
}

func (c *simController) lead(m Member) {
	c.a.Leader = m
	c.a.LeaderEpoch++
	c.w.logf("controller elects %v in epoch %d, ISR %v ELR %v", m, c.a.LeaderEpoch, c.a.ISR, c.elr)
	c.changed(true)
}

// move gives leadership to another member of the in-sync set.
func (c *simController) move(arg int64) {
	if arg < 30 && c.a.Leader.ID >= 0 {
		c.w.count("leader-again")
		c.lead(c.a.Leader) // as when a replica leaves the assignment
		return
	}
	for _, m := range c.a.ISR {
		b := c.brokers[m.ID]
		if m.ID != c.a.Leader.ID && c.a.Leader.ID >= 0 && b.live && b.epoch == m.Epoch && !b.lossy && c.w.rng.IntN(2) == 0 {
			c.w.count("leadership-moved")
			c.lead(m)
			return
		}
	}
}

var errSimRefused = errors.New("refused")

func (c *simController) alterISR(ch ISRChange) (Assignment, error) {
	if ch.Leader != c.a.Leader || ch.LeaderEpoch != c.a.LeaderEpoch || ch.PartitionEpoch != c.a.PartitionEpoch {
		return Assignment{}, errSimRefused
	}
	selfLossy := false
	for _, m := range ch.Lossy {
		selfLossy = selfLossy || m.ID == ch.Leader.ID
	}
	if _, in := hasMember(ch.ISR, ch.Leader.ID); !in {
		// The leader gives up.
		c.w.count("resigned")
		c.drop(ch.Leader.ID, ch.Lossy)
		return c.snapshot(), nil
	}
	for _, m := range ch.ISR {
		b := c.brokers[m.ID]
		if !slices.Contains(c.a.Replicas, m.ID) || b == nil || !b.live || b.epoch != m.Epoch {
			return Assignment{}, errSimRefused
		}
	}
	for _, m := range ch.ISR {
		if _, in := hasMember(c.a.ISR, m.ID); !in {
			c.w.count("isr-grows")
			c.w.node(int(m.ID)).silent = false
		}
	}
	if len(ch.ISR) < len(c.a.ISR) {
		c.w.count("isr-shrinks")
	}
	if len(ch.Lossy) > 0 {
		c.w.count("lossy-named")
		for _, m := range ch.Lossy {
			c.w.node(int(m.ID)).silent = false
		}
		c.elr = slices.DeleteFunc(c.elr, func(id NodeID) bool { _, bad := hasMember(ch.Lossy, id); return bad })
	}
	c.setISR(ch.ISR, ch.Lossy)
	c.w.logf("controller sets ISR %v ELR %v", c.a.ISR, c.elr)
	c.changed(true)
	return c.snapshot(), nil
}

// spare: nobody counts on this node's data.
func (c *simController) spare(id NodeID) bool {
	_, in := hasMember(c.a.ISR, id)
	return !in && !slices.Contains(c.elr, id)
}

// othersHave: the protocol bears MinISR-1 lossy restarts; so a disk may lose
// something only while the others are in sync and have a leader.
func (c *simController) othersHave(n *simNode) bool {
	if c.a.Leader.ID < 0 || c.a.minISR() < 2 {
		return false
	}
	others := 0
	for _, m := range c.a.ISR {
		if o := c.w.node(int(m.ID)); o != n && o.up && o.life == c.lifeOf(m.ID) && o.epoch == m.Epoch && !o.c.lossy && !o.silent && !o.c.failed {
			others++
		}
	}
	if others < c.a.minISR()-1 || others == 0 {
		return false
	}
	l := c.w.node(int(c.a.Leader.ID))
	return c.lifeOf(n.id) == n.life && l.up && l.c.role == RoleLeader && l.c.lead.ready && l.c.epoch == c.a.LeaderEpoch
}

// Checks.

// commit adds to the truth what a leader says is committed.
func (w *world) commit(n *simNode, hw log.Offset) {
	if hw <= w.trueHW {
		return
	}
	for off := w.trueHW; off < hw; {
		e, ok := n.shadow.find(off)
		if !ok || e.base != off {
			w.fail("S1: leader %d commits up to %d, but has no batch at %d", n.id, hw, off)
			return
		}
		if len(w.committed) > 0 && w.committed[len(w.committed)-1].end != e.base {
			w.fail("committed log has a gap at %d", e.base)
		}
		if e.id != 0 {
			if first, dup := w.byID[e.id]; dup {
				w.fail("S21: append %d is committed at %d and at %d", e.id, first.base, e.base)
			}
			w.byID[e.id] = e
		}
		w.committed = append(w.committed, e)
		off = e.end
	}
	w.trueHW = hw
	if n.c.durable < hw {
		w.fail("leader %d commits %d above its own durable end %d", n.id, hw, n.c.durable)
	}
	// S10: as many durable copies as promised. The log itself is asked, not the core.
	copies := 0
	for _, m := range w.nodes {
		d := m.durable
		if m.up {
			d = m.l.DurableEnd()
		}
		if d >= hw {
			copies++
		}
	}
	if copies < n.c.a.minISR() {
		w.fail("S10: %d durable copies up to %d, MinISR is %d", copies, hw, n.c.a.minISR())
	}
}

func (w *world) acked(n *simNode, a *simAppend) {
	e, ok := w.byID[a.id]
	if !ok || e.base != a.offset {
		w.fail("S9: append %d is acknowledged at %d, the truth is %v %v", a.id, a.offset, ok, e)
	}
}

// leaderElected: S1, the new leader holds all that is committed.
func (w *world) leaderElected(n *simNode) {
	m := Member{n.id, n.epoch}
	if was, ok := w.ctl.leaders[n.c.epoch]; ok && was != m {
		w.fail("S5: %v and %v lead epoch %d", was, m, n.c.epoch)
	}
	w.ctl.leaders[n.c.epoch] = m
	if n.c.role != RoleLeader || n.c.a.PartitionEpoch < w.ctl.a.PartitionEpoch && n.c.epoch < w.ctl.a.LeaderEpoch {
		return // it has been replaced since
	}
	w.holds(n, w.trueHW, "S1: new leader")
}

// holds: the node has every committed batch below end, here or in the tier.
func (w *world) holds(n *simNode, end log.Offset, what string) {
	if n.l.End() < end {
		w.fail("%s %d ends at %d, committed is %d", what, n.id, n.l.End(), end)
		return
	}
	w.same(n, end, what)
}

// same: S2, what the node has below end is what is committed.
func (w *world) same(n *simNode, end log.Offset, what string) {
	for i := len(n.shadow) - 1; i >= 0; i-- {
		e := n.shadow[i]
		if e.end > end {
			continue
		}
		if c, ok := w.committed.find(e.base); !ok || c != e {
			w.fail("%s %d has %v where committed is %v", what, n.id, e, c)
		}
		// One committed batch that is equal makes all before it equal, since an epoch
		// has one leader; S2 is checked in full at the end.
		return
	}
}

// check looks at the world after every event.
func (w *world) check() {
	if w.failure != "" {
		return
	}
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		c := n.c
		// S16, with the tier's end where the view is known.
		if !(c.start <= c.localStart && c.localStart <= c.hw && c.hw <= c.end && c.durable <= c.end) && !c.follow.busyCut {
			w.fail("S16: node %d: start %d local %d hw %d durable %d end %d", n.id, c.start, c.localStart, c.hw, c.durable, c.end)
		}
		if !n.busy && !c.follow.busyCut {
			if c.end != n.l.End() || c.durable > n.l.DurableEnd() {
				w.fail("node %d: core says end %d durable %d, log %d %d", n.id, c.end, c.durable, n.l.End(), n.l.DurableEnd())
			}
			if c.chain.last() != n.l.LastEpoch() {
				w.fail("node %d: core's last epoch is %d, log's %d", n.id, c.chain.last(), n.l.LastEpoch())
			}
			// S6
			if k := len(n.shadow); k >= 2 && n.shadow[k-1].epoch < n.shadow[k-2].epoch {
				w.fail("S6: node %d: epochs fall: %v", n.id, n.shadow[k-2:])
			}
		}
		// S2 and S8: below min(HW, true HW) all logs are equal.
		if !c.lossy {
			if c.hw > w.trueHW {
				w.fail("S7: node %d has high watermark %d above the true one %d", n.id, c.hw, w.trueHW)
			}
			if !c.follow.busyCut {
				w.same(n, min(c.hw, n.l.End()), "S2: node")
			}
		}
		// S4
		if c.role == RoleLeader && c.lead.leso >= 0 && c.epoch == w.ctl.a.LeaderEpoch && c.self == w.ctl.a.Leader && len(c.a.ISR) >= c.a.minISR() {
			for _, m := range w.ctl.a.ISR {
				in := m == c.self
				for x := range c.maximal {
					in = in || x == m
				}
				if !in {
					w.fail("S4: leader %d does not count %v of the controller's in-sync set", n.id, m)
				}
			}
		}
	}
	// S3: who counts as in sync has all that is committed.
	for _, m := range w.ctl.a.ISR {
		n := w.node(int(m.ID))
		if b := w.ctl.brokers[m.ID]; n.up && n.life == b.life && b.epoch == m.Epoch && (!n.c.lossy || n.c.pardoned) {
			if n.l.DurableEnd() < w.trueHW && !n.c.follow.busyCut {
				w.fail("S3: in-sync node %d is durable up to %d, committed is %d", n.id, n.l.DurableEnd(), w.trueHW)
			}
			w.holds(n, w.trueHW, "S3: in-sync node")
		}
	}
	for _, id := range w.ctl.elr {
		if n := w.node(int(id)); n.up && (!n.c.lossy || n.c.pardoned) && !n.silent && n.life == w.ctl.lifeOf(id) {
			w.holds(n, w.trueHW, "S3: eligible node")
		}
	}
	// S12
	if len(w.ctl.elr) > 0 && len(w.ctl.a.ISR) >= w.ctl.a.minISR() {
		w.fail("S12: ISR %v is large enough, ELR is %v", w.ctl.a.ISR, w.ctl.elr)
	}
}

func (c *simController) lifeOf(id NodeID) int {
	if b := c.brokers[id]; b != nil {
		return b.life
	}
	return -1
}

// heal ends all faults and checks that everything comes to its end.
func (w *world) heal() {
	w.logf("healing")
	w.healing = true
	clear(w.cut)
	clear(w.isolated)
	clear(w.lone)
	w.net, w.answers = 0, 0
	for _, n := range w.nodes {
		n.paused, n.stalled = time.Time{}, time.Time{}
		if !n.up {
			n.start()
		}
	}
	deadline := w.now.Add(20 * time.Second)
	for w.failure == "" && w.now.Before(deadline) {
		w.tier()
		w.do(op{Kind: "append", Arg: 9})
		w.drain(w.now.Add(200 * time.Millisecond))
		if w.settled() == "" {
			break
		}
	}
	if w.failure != "" {
		return
	}
	if w.ctl.a.Leader.ID < 0 && !w.ctl.candidate() {
		w.count("no-candidate-left") // more losses than MinISR bears
		return
	}
	if why := w.settled(); why != "" {
		w.fail("%s, after healing", why)
		return
	}
	// Retries of what is still open, then the final comparison.
	for i := range w.producers {
		w.do(op{Kind: "append", Arg: int64(i)})
	}
	w.drain(w.now.Add(time.Second))
	if w.failure != "" {
		return
	}
	if why := w.settled(); why != "" {
		w.fail("%s, at the end", why)
		return
	}
	for _, n := range w.nodes {
		n.readShadow()
		for _, e := range n.shadow {
			if c, ok := w.committed.find(e.base); !ok || c != e {
				w.fail("S2: at the end node %d has %v, committed is %v", n.id, e, c)
			}
		}
	}
	for _, a := range w.appends {
		if a.waiting {
			w.fail("L3: append %d still waits", a.id)
		}
		if a.acked {
			w.acked(a.node, a)
		}
	}
	// S22: what is known of producers follows from the log.
	at := w.nodes[0].l.End()
	var first []string
	for _, n := range w.nodes {
		p, err := n.l.ProducerSnapshot(context.Background(), at)
		if err != nil {
			w.fail("node %d: producers: %v", n.id, err)
			return
		}
		known := producersFrom(p, w.logStart)
		if first == nil {
			first = known
		} else if !slices.Equal(first, known) {
			w.fail("S22: node %d knows other producers than node 1:\n%v\n%v", n.id, known, first)
		}
	}
}

// settled says what is not as it should be when nothing disturbs: L1, L2, L4, L9.
func (w *world) settled() string {
	c := w.ctl
	if c.a.Leader.ID < 0 {
		return "L1: no leader"
	}
	if len(c.a.ISR) != len(c.a.Replicas) {
		return "L2: ISR " + sprint(c.a.ISR)
	}
	leader := w.node(int(c.a.Leader.ID))
	for _, n := range w.nodes {
		if !n.up {
			return "a node is down"
		}
		if n.c.lead.inflight {
			return "L4: change of the ISR in flight"
		}
		if n.c.hw != leader.c.end || n.c.end != leader.c.end {
			return "L9: node " + sprint(n.id, n.c.hw, n.c.end, leader.c.end)
		}
		if n.c.lossy {
			return "lossy"
		}
	}
	if !leader.c.lead.ready {
		return "leader not ready"
	}
	return ""
}

// producersFrom lists what a snapshot of producers says about batches at or above
// start: sequences and offsets by producer. What lies below the log start is
// forgotten by each replica in its own time.
func producersFrom(p []byte, start log.Offset) (known []string) {
	const envelope, at, count, head, times, window = 20, 8, 4, 22, 16, 32
	be := binary.BigEndian
	for b := p[min(envelope+at+count, len(p)):]; len(b) >= head+times+1; {
		id, n := be.Uint64(b), int(b[head+times])
		b = b[head+times+1:]
		for ; n > 0; n-- {
			if base := log.Offset(be.Uint64(b[8:])); base >= start {
				known = append(known, sprint(id, be.Uint32(b), be.Uint32(b[4:]), base, be.Uint64(b[16:])))
			}
			b = b[window:]
		}
	}
	return known
}
