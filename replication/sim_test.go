package replication

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// The simulation: several cores, each over a real log on a disk that crashes, a
// network and a controller, in virtual time on one goroutine. Everything that
// happens follows from the seed and the script, so a failing run can be repeated,
// and shortened by leaving operations of the script out. Invariants are checked
// after every event; see check and heal.

var simPartition = log.PartitionID{Topic: log.TopicID{0xc0, 0x4d}, Index: 3}

var simStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// An op is one line of a script.
type op struct {
	At   time.Duration
	Kind string
	Node int // 0: none; for "append": any that leads
	Arg  int64
}

func (o op) String() string { return fmt.Sprintf("%v %s %d %d", o.At, o.Kind, o.Node, o.Arg) }

func parseScript(text string) (seed uint64, ops []op, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if _, err := fmt.Sscanf(line, "seed %d", &seed); err == nil {
			continue
		}
		var o op
		var at string
		if _, err := fmt.Sscanf(line, "%s %s %d %d", &at, &o.Kind, &o.Node, &o.Arg); err != nil {
			return 0, nil, fmt.Errorf("line %q: %w", line, err)
		}
		if o.At, err = time.ParseDuration(at); err != nil {
			return 0, nil, err
		}
		ops = append(ops, o)
	}
	return seed, ops, nil
}

func formatScript(seed uint64, ops []op) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", seed)
	for _, o := range ops {
		fmt.Fprintln(&b, o)
	}
	return b.String()
}

// simFor is how long faults happen; after that the world heals.
const simFor = 3 * time.Second

// randomScript draws what happens to the world of a seed.
func randomScript(seed uint64) []op {
	rng := rand.New(rand.NewPCG(seed, 1))
	n := 3
	if rng.IntN(5) == 0 {
		n = 4 + rng.IntN(2)
	}
	ops := []op{{0, "nodes", n, int64(2)}}
	if rng.IntN(6) == 0 {
		ops[0].Arg = 1 + rng.Int64N(int64(n))
	}
	if rng.IntN(2) == 0 {
		ops = append(ops, op{0, "tiered", 0, 0})
	}
	node := func() int { return 1 + rng.IntN(n) }
	at := time.Duration(0)
	faults := rng.IntN(4) != 0
	for at < simFor {
		at += time.Duration(rng.Int64N(int64(24 * time.Millisecond)))
		switch p := rng.IntN(100); {
		case p < 52:
			ops = append(ops, op{at, "append", 0, rng.Int64N(6)})
		case p < 55:
			ops = append(ops, op{at, "append", node(), rng.Int64N(6)})
		case p < 60:
			ops = append(ops, op{at, "hint", node(), 0})
		case p < 66:
			ops = append(ops, op{at, "tier", 0, 0})
		case p < 71:
			ops = append(ops, op{at, "drop-local", node(), 0})
		case p < 72:
			ops = append(ops, op{at, "trim", 0, 0})
		case !faults:
		case p < 77:
			ops = append(ops, op{at, "crash", node(), rng.Int64N(4)})
		case p < 78:
			for i := range n { // the whole rack loses power
				ops = append(ops, op{at, "crash", i + 1, rng.Int64N(2) * 3})
			}
		case p < 80:
			ops = append(ops, op{at, "kill", node(), 0})
		case p < 82:
			a := node()
			b := node()
			ops = append(ops, op{at, "cut", a, int64(b)}, op{at + time.Duration(rng.IntN(800))*time.Millisecond, "join", a, int64(b)})
		case p < 84:
			ops = append(ops, op{at, "isolate", node(), int64(rng.IntN(900))})
		case p < 86:
			ops = append(ops, op{at, "lone", node(), int64(rng.IntN(900))}) // only from the controller
		case p < 88:
			ops = append(ops, op{at, "pause", node(), int64(rng.IntN(900))})
		case p < 89:
			ops = append(ops, op{at, "stall", node(), int64(rng.IntN(1500))})
		case p < 90:
			ops = append(ops, op{at, "wipe", node(), 0})
		case p < 92:
			ops = append(ops, op{at, []string{"rollback", "rollback", "rollback", "rot", "lossy"}[rng.IntN(5)], node(), 0})
		case p < 93:
			ops = append(ops, op{at, "fail", node(), 0})
		case p < 94:
			ops = append(ops, op{at, "reregister", node(), 0})
		case p < 95:
			ops = append(ops, op{at, "move", 0, rng.Int64N(100)})
		case p < 97:
			ops = append(ops, op{at, "net", 0, rng.Int64N(5)})
		default:
			ops = append(ops, op{at, "answers", 0, rng.Int64N(3)})
		}
	}
	slices.SortStableFunc(ops, func(a, b op) int { return cmp.Compare(a.At, b.At) })
	return ops
}

// An entry is one batch of a log as the checker sees it.
type entry struct {
	base, end log.Offset
	epoch     log.Epoch
	crc       uint32
	id        uint64 // of the append; 0 for control batches
}

func entries(b []byte) []entry {
	var es []entry
	for len(b) > 0 {
		batch, rest, err := record.Next(b, 1<<30)
		if err != nil {
			panic(err)
		}
		b = rest
		e := entry{base: batch.BaseOffset(), end: batch.NextOffset(), epoch: batch.LeaderEpoch(),
			crc: binary.BigEndian.Uint32(batch.Bytes()[17:])}
		if !batch.IsControl() {
			for r, err := range batch.Records() {
				if err != nil {
					panic(err)
				}
				e.id = binary.BigEndian.Uint64(r.Value)
				break
			}
		}
		es = append(es, e)
	}
	return es
}

// A shadow is what the checker knows a log to hold.
type shadow []entry

func (s shadow) find(off log.Offset) (entry, bool) {
	i := sort.Search(len(s), func(i int) bool { return s[i].end > off })
	if i < len(s) && s[i].base <= off {
		return s[i], true
	}
	return entry{}, false
}

func (s shadow) cut(end log.Offset) shadow {
	i := len(s)
	for i > 0 && s[i-1].end > end {
		i--
	}
	return s[:i]
}

type simAppend struct {
	id       uint64
	node     *simNode
	life     int
	base     log.Offset
	need     log.Offset
	batch    []byte
	producer int64
	seq      int32
	records  int
	acked    bool
	offset   log.Offset
	waiting  bool
	deadline time.Time
}

type simEvent struct {
	at  time.Time
	seq int
	fn  func()
}

type simHeap []*simEvent

func (h simHeap) Len() int { return len(h) }
func (h simHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}
func (h simHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *simHeap) Push(x any)   { *h = append(*h, x.(*simEvent)) }
func (h *simHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

type simNode struct {
	w      *world
	id     NodeID
	fs     *logtest.FS
	old    *logtest.FS // an earlier image of the disk, for rollback
	up     bool
	rotten bool // a bit of its disk was flipped
	silent bool // its disk has lost something and does not say so; until the leader has seen it
	wiped  bool // its next registration comes with a new directory id
	life   int
	l      *log.Log
	c      *core
	hint   hint

	shadow  shadow
	durable log.Offset // when it died
	epoch   int64      // broker epoch of this life; -1 until registered

	parked    []fetchRequestFrom
	asked     bool // a fetch is under way
	following NodeID
	askedAt   int
	busy      bool // the write turn is taken
	due       time.Time
	waits     []*simAppend

	paused  time.Time
	stalled time.Time
	view    TierView
}

type fetchRequestFrom struct {
	from Member
	q    fetchRequest
}

type world struct {
	rng    *rand.Rand
	now    time.Time
	events simHeap
	seq    int
	steps  int
	still  int // events at the same moment
	nodes  []*simNode
	ctl    *simController
	tiered bool

	cut      map[[2]NodeID]bool
	isolated map[NodeID]time.Time // from everybody
	lone     map[NodeID]time.Time // from the controller
	net      int64                // 0 good .. 3 bad
	answers  int64

	counts  map[string]int
	trace   []string
	failure string
	healing bool

	// the truth
	committed shadow
	trueHW    log.Offset
	logStart  log.Offset
	tierEnd   log.Offset
	nextID    uint64
	appends   []*simAppend
	producers []*simProducer
	byID      map[uint64]entry
}

type simProducer struct {
	id      int64
	seq     int32
	pending *simAppend // the same batch is tried until it is acked
}

func (w *world) logf(format string, args ...any) {
	if len(w.trace) > 4000 {
		w.trace = append(w.trace[:0], w.trace[2000:]...)
	}
	// The tail of the trace shows how it came to a failure.
	w.trace = append(w.trace, fmt.Sprintf("%9.3f  ", w.now.Sub(simStart).Seconds()*1000)+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
		w.logf("FAILURE: %s", w.failure)
		w.logf("controller: %+v ELR %v", w.ctl.a, w.ctl.elr)
		for _, n := range w.nodes {
			if !n.up {
				w.logf("node %d is down", n.id)
				continue
			}
			w.logf("node %d: %+v next %v asked %v busy %v last fetch %+v", n.id, n.c.status(w.now), n.c.Deadline(w.now).Sub(simStart), n.asked, n.busy, n.c.follow)
			for _, m := range w.nodes {
				if f := n.c.lead.followers[m.id]; f != nil {
					w.logf("  of node %d: %+v", m.id, *f)
				}
			}
		}
	}
}

func (w *world) count(what string) { w.counts[what]++ }

func (w *world) at(t time.Time, fn func()) {
	if t.Before(w.now) {
		t = w.now
	}
	w.seq++
	heap.Push(&w.events, &simEvent{t, w.seq, fn})
}

func (w *world) after(d time.Duration, fn func()) { w.at(w.now.Add(d), fn) }

func (w *world) rand(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

// latency of a message; lost and again say what the network does to it.
func (w *world) latency() (d time.Duration, lost, again bool) {
	d = 100*time.Microsecond + w.rand(300*time.Microsecond)
	switch w.net {
	case 1:
		d += w.rand(5 * time.Millisecond)
	case 2:
		d += w.rand(20 * time.Millisecond)
		again = w.rng.IntN(5) == 0
	case 3, 4:
		d += w.rand(60 * time.Millisecond)
		lost, again = w.rng.IntN(6) == 0, w.rng.IntN(6) == 0
	}
	return d, lost, again
}

func (w *world) linked(a, b NodeID) bool {
	if w.now.Before(w.isolated[a]) || w.now.Before(w.isolated[b]) {
		return false
	}
	return !w.cut[[2]NodeID{min(a, b), max(a, b)}]
}

// ctlLinked: a node reaches the controller.
func (w *world) ctlLinked(n *simNode) bool {
	return n.up && !w.now.Before(w.isolated[n.id]) && !w.now.Before(w.lone[n.id]) && !w.now.Before(n.paused)
}

// send delivers fn at node to, if nothing comes between.
func (w *world) send(from, to *simNode, fn func()) {
	if !w.linked(from.id, to.id) {
		w.count("net-cut")
		return
	}
	d, lost, again := w.latency()
	if lost {
		w.count("net-lost")
		return
	}
	life := to.life
	deliver := func() {
		if !to.up || to.life != life || !w.linked(from.id, to.id) {
			return
		}
		to.whenAwake(fn)
	}
	w.after(d, deliver)
	if again {
		w.count("net-duplicated")
		w.after(d+w.rand(100*time.Millisecond), deliver)
	}
}

// whenAwake runs fn now, or when the pause of the process ends.
func (n *simNode) whenAwake(fn func()) {
	if n.w.now.Before(n.paused) {
		life := n.life
		n.w.at(n.paused, func() {
			if n.up && n.life == life {
				n.whenAwake(fn)
			}
		})
		return
	}
	fn()
}

// mine runs fn on this life of the node after d.
func (n *simNode) mine(d time.Duration, fn func()) {
	life := n.life
	n.w.after(d, func() {
		if n.up && n.life == life {
			n.whenAwake(fn)
		}
	})
}

func newWorld(seed uint64) *world {
	return &world{rng: rand.New(rand.NewPCG(seed, 2)), now: simStart, cut: map[[2]NodeID]bool{}, isolated: map[NodeID]time.Time{},
		lone: map[NodeID]time.Time{}, counts: map[string]int{}, byID: map[uint64]entry{}}
}

func simLogOptions(fs log.FS) log.Options {
	return log.Options{FS: fs, Partition: simPartition, SegmentBytes: 2 << 10, ProducerExpiry: -1}
}

var simConfig = config{LagMax: 400 * time.Millisecond, AckLatency: 60 * time.Millisecond, Retry: 10 * time.Millisecond}

const simFetchWait = 50 * time.Millisecond

// run plays a script to its end and heals the world. It returns what failed.
func (w *world) run(ops []op) {
	defer w.close()
	var nodes, minISR = 3, 2
	for _, o := range ops {
		switch o.Kind {
		case "nodes":
			nodes, minISR = o.Node, int(o.Arg)
		case "tiered":
			w.tiered = true
		}
	}
	w.ctl = newSimController(w, nodes, minISR)
	for i := range nodes {
		n := &simNode{w: w, id: NodeID(i + 1), fs: logtest.NewFS(uint64(i + 1))}
		w.nodes = append(w.nodes, n)
		n.start()
	}
	w.producers = []*simProducer{{id: 10}, {id: 11}}
	w.ctl.tick()
	for _, o := range ops {
		if o.At >= simFor {
			continue
		}
		w.at(simStart.Add(o.At), func() { w.do(o) })
	}
	w.drain(simStart.Add(simFor))
	if w.failure == "" {
		w.heal()
	}
}

// drain runs all events up to t.
func (w *world) drain(t time.Time) {
	for w.failure == "" && len(w.events) > 0 && !w.events[0].at.After(t) {
		e := heap.Pop(&w.events).(*simEvent)
		if e.at.Equal(w.now) {
			if w.still++; w.still > 20000 {
				w.fail("time stands still")
			}
		} else {
			w.still = 0
		}
		w.now = e.at
		w.steps++
		e.fn()
		w.check()
	}
	if w.failure == "" {
		w.now = t
	}
}

func (w *world) close() {
	for _, n := range w.nodes {
		if n.l != nil {
			n.l.Close()
			n.l = nil
		}
	}
}

func (w *world) node(i int) *simNode { return w.nodes[min(max(i, 1), len(w.nodes))-1] }

func (w *world) do(o op) {
	w.logf("script: %v", o)
	ms := time.Duration(o.Arg) * time.Millisecond
	switch o.Kind {
	case "nodes", "tiered":
	case "append":
		w.append(o)
	case "hint":
		if n := w.node(o.Node); n.up && n.c.hw != n.hint.last {
			n.hint.write(n.c.hw)
		}
	case "tier":
		w.tier()
	case "drop-local":
		w.node(o.Node).dropLocal()
	case "trim":
		w.trim()
	case "crash":
		if n := w.node(o.Node); n.up {
			w.count("crash")
			mode := []logtest.CrashMode{logtest.CrashLoseAll, logtest.CrashKeepAll, logtest.CrashLoseSome(uint64(w.rng.Uint32())), logtest.CrashLoseAll}[o.Arg%4]
			n.stop(func() *logtest.FS { return n.fs.Crash(mode) })
			n.restartIn(10*time.Millisecond + w.rand(600*time.Millisecond))
		}
	case "kill":
		if n := w.node(o.Node); n.up {
			w.count("kill")
			n.stop(func() *logtest.FS { return n.fs.Kill() })
			n.restartIn(5*time.Millisecond + w.rand(100*time.Millisecond))
		}
	case "wipe":
		// A new disk. Only safe to do to one that nobody counts on: the operator
		// looks first.
		n := w.node(o.Node)
		if n.up && w.ctl.spare(n.id) {
			w.count("wipe")
			n.stop(func() *logtest.FS { n.fs.Kill(); return logtest.NewFS(uint64(n.id) + 100) })
			n.durable, n.wiped = 0, true
			n.restartIn(w.rand(200 * time.Millisecond))
		}
	case "rollback":
		// The disk lies: after a crash it is as it was some time ago. Lossy, and not
		// told by the log, so the leader has to see it.
		n := w.node(o.Node)
		if n.up && n.old == nil {
			n.old = n.fs.Fork(logtest.CrashLoseAll)
		}
		if !n.up || n.old == nil || !w.ctl.othersHave(n) || w.rng.IntN(2) == 0 {
			return
		}
		w.count("rollback")
		n.stop(func() *logtest.FS { n.fs.Kill(); return n.old.Crash(logtest.CrashLoseAll) })
		n.old, n.silent = nil, true
		n.restartIn(w.rand(50 * time.Millisecond))
	case "rot":
		// A bit flips below the durable end while the process is down.
		n := w.node(o.Node)
		if !n.up || !w.ctl.othersHave(n) || n.l.DurableEnd() <= n.l.LocalStart()+2 {
			return
		}
		at := n.l.LocalStart()
		n.stop(func() *logtest.FS { return n.fs.Crash(logtest.CrashLoseAll) })
		if err := n.fs.Corrupt(fmt.Sprintf("/log/%020d.log", at), 70, 1); err == nil {
			w.count("rot")
			n.rotten = true
		}
		n.restartIn(w.rand(50 * time.Millisecond))
	case "lossy":
		// A read finds damage while the process runs.
		if n := w.node(o.Node); n.up && w.ctl.othersHave(n) && !n.busy {
			w.count("lossy")
			n.step(evLossy{Damaged: true, Now: w.now})
		}
	case "fail":
		if n := w.node(o.Node); n.up && !n.c.failed {
			w.count("disk-fails")
			n.step(evFailed{w.now})
			n.mine(200*time.Millisecond+w.rand(300*time.Millisecond), func() {
				n.stop(func() *logtest.FS { return n.fs.Crash(logtest.CrashLoseAll) })
				n.restartIn(w.rand(200 * time.Millisecond))
			})
		}
	case "reregister":
		if n := w.node(o.Node); w.ctlLinked(n) {
			w.count("reregister")
			w.ctl.register(n)
		}
	case "cut":
		if o.Node != int(o.Arg) {
			w.count("cut")
			w.cut[[2]NodeID{min(NodeID(o.Node), NodeID(o.Arg)), max(NodeID(o.Node), NodeID(o.Arg))}] = true
		}
	case "join":
		delete(w.cut, [2]NodeID{min(NodeID(o.Node), NodeID(o.Arg)), max(NodeID(o.Node), NodeID(o.Arg))})
	case "isolate":
		w.count("isolate")
		w.isolated[NodeID(o.Node)] = w.now.Add(ms)
	case "lone":
		w.count("lone")
		w.lone[NodeID(o.Node)] = w.now.Add(ms)
	case "pause":
		w.count("pause")
		w.node(o.Node).paused = w.now.Add(ms)
	case "stall":
		w.count("stall")
		w.node(o.Node).stalled = w.now.Add(ms)
	case "move":
		w.ctl.move(o.Arg)
	case "net":
		w.net = o.Arg
	case "answers":
		w.answers = o.Arg
	default:
		w.fail("unknown operation %q", o.Kind)
	}
}

// Nodes.

func (n *simNode) start() {
	w := n.w
	n.life++
	n.up, n.epoch, n.busy, n.asked, n.parked, n.due = true, -1, false, false, nil, time.Time{}
	n.view = TierView{}
	l, err := log.Open(context.Background(), "/log", simLogOptions(n.fs))
	if err != nil {
		w.fail("node %d: open: %v", n.id, err)
		n.up = false
		return
	}
	n.l = l
	n.hint = hint{fs: n.fs, dir: "/log", id: simPartition}
	hw, err := n.hint.read()
	if err != nil {
		w.fail("node %d: hint: %v", n.id, err)
	}
	rec := l.Recovery()
	if rec.Lossy {
		w.count("log-says-lossy")
		if !n.rotten {
			w.fail("node %d: the log says that it has lost records, but no bit was flipped: %+v", n.id, rec)
		}
	}
	n.c = newCore(simConfig, Member{n.id, -1})
	n.readShadow()
	w.logf("node %d starts: [%d %d %d) durable %d hint %d lossy %v chain %v", n.id, l.Start(), l.LocalStart(), l.End(), l.DurableEnd(), hw, rec.Lossy, l.EpochChain())
	n.step(evOpened{Start: l.Start(), LocalStart: l.LocalStart(), End: l.End(), Durable: l.DurableEnd(), Chain: l.EpochChain(),
		Hint: hw, Lossy: rec.Lossy, Damaged: rec.Lossy, Tiered: w.tiered})
	if n.rotten && !rec.Lossy {
		n.step(evLossy{Damaged: true, Now: w.now})
	}
	n.mine(w.rand(5*time.Millisecond), n.tryRegister)
}

// readShadow reads the whole log.
func (n *simNode) readShadow() {
	n.shadow = nil
	for off := n.l.LocalStart(); off < n.l.End(); {
		s, err := n.l.Read(context.Background(), off, 1<<20)
		if err != nil {
			if n.rotten {
				n.w.count("rot-found-by-reading")
				n.shadow = nil
				return
			}
			n.w.fail("node %d: read at %d of [%d, %d): %v", n.id, off, n.l.LocalStart(), n.l.End(), err)
			return
		}
		n.shadow = append(n.shadow, entries(s.Bytes())...)
		off = s.End()
		s.Release()
	}
}

func (n *simNode) tryRegister() {
	if n.w.ctlLinked(n) {
		n.w.ctl.register(n)
		return
	}
	n.mine(20*time.Millisecond, n.tryRegister)
}

// stop ends the process; image gives what is left of the disk.
func (n *simNode) stop(image func() *logtest.FS) {
	if !n.up {
		return
	}
	n.durable = n.l.DurableEnd()
	n.up = false
	n.w.logf("node %d dies: end %d durable %d hw %d", n.id, n.l.End(), n.durable, n.c.hw)
	n.failWaits()
	n.fs = image()
	n.l.Close()
	n.l = nil
	n.w.ctl.died(n)
}

func (n *simNode) restartIn(d time.Duration) {
	life := n.life
	n.w.after(d, func() {
		if !n.up && n.life == life {
			n.start()
		}
	})
}

func (n *simNode) failWaits() {
	for _, a := range n.waits {
		if a.waiting {
			a.waiting = false
			n.w.count("append-indeterminate")
		}
	}
	n.waits = nil
}

// step gives the core an event and carries out the effects, except the one that
// asks for something to be done by the caller: that is returned.
func (n *simNode) step(ev any) (special effect) {
	w := n.w
	for _, e := range slices.Clone(n.c.Step(ev)) {
		switch e := e.(type) {
		case effAppend, effTruncate, effReset, effAnswer, effFetch:
			special = e
		case effCommit:
			n.committed(e.HW)
		case effWake:
			parked := n.parked
			n.parked = nil
			for _, p := range parked {
				n.serve(p.from, p.q)
			}
		case effLead:
			w.count("leader")
			w.logf("node %d leads epoch %d", n.id, e.Epoch)
			n.mine(w.rand(2*time.Millisecond), n.startEpoch)
		case effReady:
			w.count("ready")
		case effLost:
			w.count("leadership-lost")
			n.failWaits()
		case effRefetch:
			if e.Pause {
				w.count("fetch-paused")
				n.fetchAfter(5*time.Millisecond + w.rand(20*time.Millisecond))
			} else {
				n.fetchAfter(0)
			}
		case effFollow:
			if id, _, ok := n.c.fetchFrom(); ok && (id != n.following || !n.asked) {
				n.following = id
				n.fetchAfter(0)
			}
		case effAlter:
			n.alter(e.Change)
		case effProgress:
			me := n.c.self
			if leader := n.c.a.Leader.ID; leader >= 1 {
				to := w.node(int(leader))
				w.send(n, to, func() {
					w.count("progress")
					to.step(evProgress{me, e.P, w.now})
				})
			}
		case effTrim:
			if !n.busy {
				if err := n.l.TrimTo(context.Background(), e.To); err != nil {
					w.fail("node %d: trim to %d: %v", n.id, e.To, err)
				}
				w.count("log-start-from-leader")
				n.bounds()
			}
		case effReadable:
		case effUnhealthy:
			w.count("unhealthy")
			w.logf("node %d: %v", n.id, e.Err)
			if errors.Is(e.Err, ErrQuarantined) {
				w.fail("node %d was quarantined", n.id) // nothing here should ever ask for it
			}
		}
	}
	n.schedule()
	return special
}

func (n *simNode) schedule() {
	at := n.c.Deadline(n.w.now)
	if at.IsZero() || !n.due.IsZero() && !at.Before(n.due) {
		return
	}
	n.due = at
	life := n.life
	n.w.at(at, func() {
		if n.up && n.life == life && n.due.Equal(at) {
			n.whenAwake(func() {
				n.due = time.Time{}
				n.step(evTick{n.w.now})
			})
		}
	})
}
