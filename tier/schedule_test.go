package tier_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// The schedules: seeded lives of one partition on three nodes with one object
// store and one tier log between them. The log's own replication is played by the
// test, synchronously: an offset is committed when it is durable on all nodes. So
// what can go wrong here is the tier's alone.
//
// Oracle, after every step on the leader and at times on the others: a read of any
// offset from the log start to the committed end gives the right bytes, or an
// error that says "retry" while the store or the tier log is down. At the end, when
// faults are over: all nodes have the same state, the store holds the finished
// ranges and nothing else, and everything is readable everywhere.
//
// CORDWOOD_SEEDS=from-to runs other seeds than the default ones.
func TestSchedules(t *testing.T) {
	from, to := uint64(1), uint64(60)
	if testing.Short() {
		to = 12
	}
	if s := os.Getenv("CORDWOOD_SEEDS"); s != "" {
		a, b, _ := strings.Cut(s, "-")
		var err1, err2 error
		from, err1 = strconv.ParseUint(a, 10, 64)
		to, err2 = strconv.ParseUint(b, 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("CORDWOOD_SEEDS=%s: want from-to", s)
		}
	}
	total := map[string]int{}
	for seed := from; seed <= to; seed++ {
		ok := t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newWorld(t, seed).run(120, total) })
		})
		if !ok {
			return
		}
	}
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%-24s %6d", k, total[k])
	}
	if to-from >= 50 {
		for _, k := range []string{
			"append", "crash", "lead", "zombie", "store down", "put lost", "put reply lost", "put late", "put landed late",
			"delete lost", "event lost", "event reply lost", "event late", "event landed late", "trim", "cold read", "hot read",
			"uploads", "deletes", "fenced", "checkpoints", "trimmed", "begun above the beginning", "manifests", "applied", "ignored: epoch", "ignored: sequence", "get lost",
			"away", "sweep", "audit",
		} {
			if total[k] < 30 {
				t.Errorf("%q happened %d times only", k, total[k])
			}
		}
		for _, k := range []string{"file of states lost", "swept"} {
			if total[k] < 5 {
				t.Errorf("%q happened %d times only", k, total[k])
			}
		}
	}
}

// traceLines is how much of its trace a failing seed prints.
var traceLines = 60

const worldNodes = 3

// A node is one machine.
type node struct {
	n       int
	fs      *logtest.FS
	log     *log.Log
	manager *tier.Manager
	part    *tier.Partition
	hw      atomic.Int64 // high watermark as this node knows it
	away    bool         // its tier does not run
}

// A world is all of them.
type world struct {
	t      *testing.T
	ctx    context.Context
	r      *rand.Rand
	seed   uint64
	mem    *memstore.Store
	store  *tiertest.Faulty
	events *tiertest.Events
	nodes  [worldNodes]*node
	leader int
	epoch  log.Epoch
	values map[log.Offset]string // of all written offsets
	end    log.Offset            // committed end
	quiet  atomic.Bool
	down   bool
	evDown bool
	policy tier.PartitionOptions
	files  bool  // nodes keep their states in files
	inline int64 // largest state of a checkpoint event

	mu     sync.Mutex // for what the managers' goroutines use
	faults *rand.Rand
	counts map[string]int
	trace  []string
}

// dice throws for the faults, apart from the dice of the steps.
func (w *world) dice(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.faults.IntN(n)
}

func (w *world) count(kind string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[kind] += n
}

func newWorld(t *testing.T, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 99))
	mem := memstore.New()
	w := &world{
		t: t, ctx: t.Context(), r: r, seed: seed, mem: mem, store: tiertest.NewFaulty(mem), events: &tiertest.Events{},
		values: map[log.Offset]string{}, counts: map[string]int{}, faults: rand.New(rand.NewPCG(seed, 98)),
	}
	w.policy = tier.PartitionOptions{Tiered: true}
	w.files = seed%2 == 0
	w.inline = tier.MaxInlineState
	if seed%3 == 0 {
		w.inline = 200
	}
	switch r.IntN(4) {
	case 0:
		w.policy.RetentionBytes = 20 << 10
	case 1:
		w.policy.RetentionAge = 20 * time.Minute
	}
	switch r.IntN(4) {
	case 0:
		w.policy.LocalRetentionBytes = 6 << 10
	case 1:
		w.policy.LocalRetentionAge = 3 * time.Minute
	}
	fault := func(p int, kind string, f tiertest.Fault) (tiertest.Fault, bool) {
		if w.dice(100) >= p {
			return tiertest.Fault{}, false
		}
		w.count(kind, 1)
		return f, true
	}
	w.store.SetFault(func(op tiertest.Op) tiertest.Fault {
		if w.quiet.Load() || strings.HasSuffix(op.Key, "owner") && op.Kind == "put" {
			return tiertest.Fault{}
		}
		switch op.Kind {
		case "put":
			for _, c := range []struct {
				p    int
				kind string
				f    tiertest.Fault
			}{
				{8, "put lost", tiertest.Fault{Err: tier.ErrUnavailable}},
				{8, "put reply lost", tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: true}},
				{8, "put late", tiertest.Fault{Late: true}},
				{5, "put throttled", tiertest.Fault{Err: &tier.ThrottledError{RetryAfter: time.Second}}},
				{4, "put conflict", tiertest.Fault{Err: tier.ErrConflict}},
				{10, "put slow", tiertest.Fault{Delay: time.Duration(w.dice(90)) * time.Second}},
			} {
				if f, ok := fault(c.p, c.kind, c.f); ok {
					if f.Late {
						// A request may linger, but not for ever: see lateGrace.
						wait := time.Duration(w.dice(100)) * time.Millisecond
						if w.dice(2) == 0 {
							wait *= 500
						}
						time.AfterFunc(wait, func() { w.count("put landed late", w.store.Land(w.ctx)) })
					}
					return f
				}
			}
		case "get":
			if f, ok := fault(5, "get lost", tiertest.Fault{Err: tier.ErrUnavailable}); ok {
				return f
			}
			if f, ok := fault(3, "get flipped", tiertest.Fault{Flip: true}); ok {
				return f
			}
			f, _ := fault(5, "get slow", tiertest.Fault{Delay: time.Duration(w.dice(3000)) * time.Millisecond})
			return f
		case "delete":
			if f, ok := fault(10, "delete lost", tiertest.Fault{Err: tier.ErrUnavailable}); ok {
				return f
			}
			f, _ := fault(10, "delete reply lost", tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: true})
			return f
		}
		return tiertest.Fault{}
	})
	w.events.SetFault(func(log.PartitionID) tiertest.EventFault {
		if w.quiet.Load() {
			return tiertest.EventCommitted
		}
		switch n := w.dice(100); {
		case n < 6:
			w.count("event lost", 1)
			return tiertest.EventLost
		case n < 12:
			w.count("event reply lost", 1)
			return tiertest.EventReplyLost
		case n < 20:
			w.count("event late", 1)
			return tiertest.EventLate
		}
		return tiertest.EventCommitted
	})
	for i := range w.nodes {
		w.nodes[i] = &node{n: i, fs: logtest.NewFS(seed*10 + uint64(i))}
		w.start(w.nodes[i])
	}
	t.Cleanup(func() {
		for _, n := range w.nodes {
			if n != nil && n.manager != nil {
				_ = n.manager.Close()
				_ = n.log.Close()
			}
		}
	})
	w.lead(0)
	return w
}

func (w *world) say(format string, a ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, fmt.Sprintf("%v ", time.Now().Format("15:04:05.000"))+fmt.Sprintf(format, a...))
}

type traceWriter struct {
	w *world
	n int
}

func (t traceWriter) Write(b []byte) (int, error) {
	t.w.say("  node %d: %s", t.n, bytes.TrimSpace(b))
	return len(b), nil
}

func (w *world) fail(format string, a ...any) {
	w.t.Helper()
	w.mu.Lock()
	trace := slices.Clone(w.trace[max(0, len(w.trace)-traceLines):])
	w.mu.Unlock()
	w.t.Fatalf("seed %d: %s\n%s", w.seed, fmt.Sprintf(format, a...), strings.Join(trace, "\n"))
}

const uploadDeadline = 10 * time.Minute

func (w *world) start(n *node) {
	w.t.Helper()
	var err error
	if n.log, err = log.Open(w.ctx, "data", log.Options{FS: n.fs, Partition: testPartition, SegmentBytes: 2 << 10}); err != nil {
		w.fail("open log %d: %v", n.n, err)
	}
	if r := n.log.Recovery(); r.Lossy {
		w.fail("node %d: the log lost committed records: %+v: %v; segments %+v", n.n, r, r.Corruption[0], n.log.Segments())
	}
	o := tier.Options{
		CheckpointEvents: 8, CheckpointInterval: 3 * time.Minute,
		Store: w.store, Events: w.events, Cluster: tier.ID{1}, Prefix: "p", ChunkBytes: 4 << 10, CacheBytes: 16 << 10,
		UploadDeadline: uploadDeadline, Interval: time.Minute,
		Logger: slog.New(slog.NewTextHandler(traceWriter{w, n.n}, nil)),
		Hooks: tier.Hooks{
			Applied: func(a tier.AppliedInfo) {
				if c, ok := a.Event.Body.(tier.Checkpoint); ok && c.Manifest != (tier.ID{}) {
					w.count("manifests", 1)
				}
				if n.n == 0 {
					w.say("  event %d %T epoch %d seq %d: %v", a.Offset, a.Event.Body, a.Event.Epoch, a.Event.Seq, a.Verdict)
				}
			},
			Missing: func(m *tier.MissingError) { w.t.Errorf("seed %d: node %d: %v", w.seed, n.n, m) },
		},
	}
	if w.files {
		o.StateFS, o.StateDir = n.fs, "data"
	}
	if start, err := w.events.Start(w.ctx); err == nil && start > 0 {
		w.count("begun above the beginning", 1)
	}
	if n.manager, err = tier.NewManager(tier.WithInlineState(o, w.inline)); err != nil {
		w.fail("manager %d: %v", n.n, err)
	}
	n.away = false
	n.hw.Store(min(n.hw.Load(), int64(n.log.End())))
	po := w.policy
	po.HighWatermark = func() log.Offset { return log.Offset(n.hw.Load()) }
	if n.part, err = n.manager.Open(testPartition, n.log, po); err != nil {
		w.fail("open %d: %v", n.n, err)
	}
}

// stop ends a node's tier and log. A crash is the loss of power before it.
func (w *world) stop(n *node) {
	w.leave(n)
	_ = n.log.Close() // fails after a crash
}

// leave ends a node's tier only: its log goes on.
func (w *world) leave(n *node) {
	if n.away {
		return
	}
	n.away = true
	n.part.Close()
	w.collect(n)
	if err := n.manager.Close(); err != nil {
		w.fail("close manager %d: %v", n.n, err)
	}
}

// back starts the tier of a node that was away, at times without its file of states.
func (w *world) back(n *node) {
	if !n.away {
		return
	}
	w.say("node %d is back", n.n)
	if _, err := n.fs.Stat("data/tier-state"); err == nil && w.r.IntN(2) == 0 {
		w.count("file of states lost", 1)
		if err := n.fs.Remove("data/tier-state"); err != nil {
			w.fail("node %d: %v", n.n, err)
		}
	}
	_ = n.log.Close()
	w.start(n)
}

func (w *world) collect(n *node) {
	s := n.manager.Stats()
	w.count("uploads", int(s.Uploads))
	w.count("deletes", int(s.Deletes))
	w.count("fetches", int(s.Fetches))
	w.count("checkpoints", int(s.Checkpoints))
	for v, c := range s.Events {
		w.count(tier.Verdict(v).String(), int(c))
	}
}

func (w *world) crash(n *node) {
	w.count("crash", 1)
	w.say("crash %d", n.n)
	after := n.fs.Crash(logtest.CrashRandom)
	w.stop(n)
	n.fs = after
	w.start(n)
	if n.log.End() < w.end {
		w.fail("node %d came back with end %d, committed %d", n.n, n.log.End(), w.end)
	}
	if n.n == w.leader {
		w.lead((w.leader + w.r.IntN(worldNodes)) % worldNodes)
	} else {
		w.align(n)
	}
}

// align cuts what a node has above the committed end.
func (w *world) align(n *node) {
	if n.log.End() > w.end {
		if _, err := n.log.TruncateTo(w.ctx, w.end); err != nil {
			w.fail("truncate %d: %v", n.n, err)
		}
	}
}

// lead makes a node the leader of the next epoch. The others stop at once, or the
// old one goes on for a while in the belief that it leads.
func (w *world) lead(i int) {
	w.count("lead", 1)
	w.epoch++
	zombie := i != w.leader && w.r.IntN(3) == 0
	w.say("node %d leads in epoch %d, zombie %v", i, w.epoch, zombie)
	if zombie {
		w.count("zombie", 1)
	}
	for _, n := range w.nodes {
		if n.n != i && !(zombie && n.n == w.leader) {
			n.part.Follow()
		}
		w.align(n)
	}
	w.leader = i
	w.back(w.nodes[i])
	w.align(w.nodes[i])
	w.nodes[i].part.Lead(w.epoch)
}

// append writes records on the leader, copies them to the others and commits them.
func (w *world) append() {
	w.count("append", 1)
	lead := w.nodes[w.leader]
	for range 1 + w.r.IntN(8) {
		var b record.Builder
		base := lead.log.End()
		values := map[log.Offset]string{}
		for i := range 1 + w.r.IntN(3) {
			v := fmt.Sprintf("%d:%d:%s", base+log.Offset(i), w.epoch, strings.Repeat("x", w.r.IntN(300)))
			values[base+log.Offset(i)] = v
			if err := b.Append(log.Record{Value: []byte(v), Timestamp: time.Now()}); err != nil {
				w.fail("build: %v", err)
			}
		}
		batch, err := b.Build()
		if err != nil {
			w.fail("build: %v", err)
		}
		if _, err := lead.log.Write(w.epoch, batch.Bytes()); err != nil {
			w.fail("write: %v", err)
		}
		maps.Copy(w.values, values)
		if w.r.IntN(20) == 0 {
			return // written and not committed yet: the next leader may cut it
		}
	}
	w.commit()
}

func (w *world) commit() {
	lead := w.nodes[w.leader]
	end := lead.log.End()
	for _, n := range w.nodes {
		for n.log.End() < end {
			s, err := lead.log.Read(w.ctx, n.log.End(), 4<<10)
			if err != nil {
				w.fail("replicate from %d: %v", n.log.End(), err)
			}
			if _, err := n.log.AppendReplicated(s.Bytes()); err != nil {
				w.fail("replicate: %v", err)
			}
			s.Release()
		}
		if _, err := n.log.Sync(w.ctx); err != nil {
			w.fail("sync: %v", err)
		}
	}
	w.end = end
	lead.hw.Store(int64(end))
	lead.part.Kick()
	for _, n := range w.nodes {
		if w.r.IntN(3) > 0 {
			n.hw.Store(int64(end)) // the others may hear later
			n.part.Kick()
		}
	}
}

// read checks offsets on a node. Errors that mean "retry" are fine unless strict.
func (w *world) read(n *node, from log.Offset, strict bool) {
	w.t.Helper()
	v := n.part.View()
	if !v.Known {
		if strict {
			w.fail("node %d: view unknown", n.n)
		}
		return
	}
	if from < v.LogStart || from >= w.end {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Minute)
	defer cancel()
	for range 3 {
		var batches []byte
		hot, err := n.log.ReadBelow(ctx, from, w.end, 3<<10)
		switch {
		case err == nil:
			w.count("hot read", 1)
			batches = bytes.Clone(hot.Bytes())
			hot.Release()
		case errors.Is(err, log.ErrBelowLocalStart):
			s, err := n.part.Read(ctx, from, 3<<10)
			if err != nil {
				switch {
				case errors.Is(err, log.ErrOffsetOutOfRange) && n.part.View().LogStart > from:
				case !strict && (errors.Is(err, tier.ErrUnavailable) || errors.Is(err, tier.ErrCorrupt) || errors.Is(err, context.DeadlineExceeded)):
				default:
					w.fail("node %d: cold read of %d in %+v: %v", n.n, from, v, err)
				}
				return
			}
			w.count("cold read", 1)
			batches = s.Bytes()
		case errors.Is(err, log.ErrOffsetOutOfRange):
			if n.part.View().LogStart <= from {
				w.fail("node %d: hot read of %d: %v", n.n, from, err)
			}
			return
		default:
			w.fail("node %d: hot read of %d: %v", n.n, from, err)
		}
		first := true
		for len(batches) > 0 {
			b, rest, err := record.Next(batches, 1<<20)
			if err == nil {
				err = b.Verify()
			}
			if err != nil {
				w.fail("node %d: batch at %d: %v", n.n, from, err)
			}
			batches = rest
			if first && (b.BaseOffset() > from || b.NextOffset() <= from) || !first && b.BaseOffset() != from {
				w.fail("node %d: batch [%d, %d) at %d", n.n, b.BaseOffset(), b.NextOffset(), from)
			}
			first = false
			for r, err := range b.Records() {
				if err != nil {
					w.fail("node %d: records at %d: %v", n.n, from, err)
				}
				if got, want := string(r.Value), w.values[r.Offset]; got != want {
					w.fail("node %d: offset %d is %.30q, want %.30q", n.n, r.Offset, got, want)
				}
			}
			from = b.NextOffset()
		}
		if from >= w.end {
			return
		}
	}
}

func (w *world) run(steps int, total map[string]int) {
	for range steps {
		switch n := w.r.IntN(100); {
		case n < 40:
			w.append()
		case n < 47:
			w.crash(w.nodes[w.r.IntN(worldNodes)])
		case n < 55:
			w.lead(w.r.IntN(worldNodes))
		case n < 60:
			w.down = !w.down
			w.store.SetDown(w.down)
			w.say("store down %v", w.down)
			if w.down {
				w.count("store down", 1)
			}
		case n < 62:
			w.evDown = !w.evDown
			w.events.SetDown(w.evDown)
			w.say("tier log down %v", w.evDown)
		case n < 67:
			w.count("trim", 1)
			n := w.nodes[w.leader]
			v := n.part.View()
			to := v.LogStart + log.Offset(w.r.Int64N(int64(max(1, (w.end-v.LogStart)/3))))
			w.say("trim to %d", to)
			ctx, cancel := context.WithTimeout(w.ctx, time.Second)
			err := n.part.TrimTo(ctx, to, "test")
			cancel()
			if err == nil && n.part.View().LogStart < to {
				w.fail("trimmed to %d, log start %d", to, n.part.View().LogStart)
			}
		case n < 77:
			if k := w.events.Land(w.r.Perm); k > 0 {
				w.count("event landed late", k)
				w.say("%d events landed", k)
			}
		case n < 80:
			if err := w.nodes[w.leader].log.Roll(w.ctx); err != nil {
				w.fail("roll: %v", err)
			}
			w.nodes[w.leader].part.Kick()
		case n < 90:
			n := w.nodes[w.r.IntN(worldNodes)]
			n.hw.Store(max(n.hw.Load(), int64(min(n.log.End(), w.end))))
			n.part.Kick()
			time.Sleep(time.Duration(w.r.IntN(200)) * time.Second)
		default:
			time.Sleep(time.Duration(w.r.IntN(3000)) * time.Millisecond)
		}
		w.more()
		synctest.Wait()
		for _, n := range w.nodes {
			if n.n == w.leader || w.r.IntN(4) == 0 {
				v := n.part.View()
				w.read(n, v.LogStart, false)
				if w.end > v.LogStart {
					w.read(n, v.LogStart+log.Offset(w.r.Int64N(int64(w.end-v.LogStart))), false)
				}
			}
			if _, _, err := n.part.Status(); errors.Is(err, tier.ErrFenced) {
				w.count("fenced", 1)
			}
		}
	}
	w.settle()
	for k, n := range w.counts {
		total[k] += n
	}
}

// more does what does not happen at every step: nodes whose tier is away for long, also
// while the tier log is trimmed, sweeps without grace and audits of what is alive.
func (w *world) more() {
	switch n := w.r.IntN(60); {
	case n < 2:
		if n := w.nodes[w.r.IntN(worldNodes)]; n.n != w.leader {
			w.count("away", 1)
			w.say("node %d is away", n.n)
			w.leave(n)
		}
	case n < 5:
		w.back(w.nodes[w.r.IntN(worldNodes)])
	case n < 10:
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		n := w.nodes[w.leader]
		if w.r.IntN(4) == 0 {
			n = w.nodes[w.r.IntN(worldNodes)] // who may believe that it leads
		}
		r, err := n.part.Sweep(ctx, tier.SweepOptions{MinAge: -1})
		w.say("sweep of node %d: %+v, %v", n.n, r, err)
		if err == nil {
			w.count("sweep", 1)
			w.count("swept", r.Deleted)
		}
	case n < 12 && !w.evDown:
		a, err := tier.Audit(w.ctx, tier.AuditOptions{Store: w.mem, Prefix: "p", Events: tier.ReadToEnd(w.ctx, w.events)})
		if err != nil {
			if !errors.Is(err, tier.ErrNotFound) { // no owner yet
				w.fail("audit: %v", err)
			}
			return
		}
		w.count("audit", 1)
		for _, f := range a.Findings {
			if f.Kind != tier.FindingOrphan {
				w.fail("audit: %v", f)
			}
		}
	}
}

// settle ends the faults and holds the world against the oracle.
func (w *world) settle() {
	w.say("quiet")
	w.quiet.Store(true)
	w.store.SetDown(false)
	w.events.SetDown(false)
	w.store.Land(w.ctx)
	w.events.Land(nil)
	time.Sleep(time.Minute)
	for _, n := range w.nodes {
		w.back(n)
	}
	w.lead(w.leader)
	for range 3 {
		w.append()
	}
	if w.nodes[w.leader].log.End() > w.end {
		w.commit()
	}
	if err := w.nodes[w.leader].log.Roll(w.ctx); err != nil {
		w.fail("roll: %v", err)
	}
	for _, n := range w.nodes {
		n.hw.Store(int64(w.end))
		n.part.Kick()
	}
	time.Sleep(2*uploadDeadline + 10*time.Minute)
	synctest.Wait()
	lead := w.nodes[w.leader]
	state, known := lead.part.State()
	if !known || len(state.Pending()) > 0 {
		w.fail("after all is quiet: known %v, %d pending", known, len(state.Pending()))
	}
	if ok, epoch, err := lead.part.Status(); !ok || epoch != w.epoch || err != nil {
		w.fail("after all is quiet: leading %v in epoch %d of %d: %v", ok, epoch, w.epoch, err)
	}
	if _, n := lead.part.Backlog(); n > 0 {
		w.fail("after all is quiet: a backlog of %d ranges", n)
	}
	// Manifests whose event never came, or that could not be deleted, are what a sweep
	// is for.
	if _, err := lead.part.Sweep(w.ctx, tier.SweepOptions{MinAge: -1}); err != nil {
		w.fail("sweep: %v", err)
	}
	if state, known = lead.part.State(); !known {
		w.fail("after the sweep: view unknown")
	}
	want := map[string]bool{tier.OwnerKey("p"): true}
	if id, ok := state.Manifest(); ok {
		want[tier.ManifestKey("p", testPartition, id)] = true
	}
	if start, err := w.events.Start(w.ctx); err != nil {
		w.fail("%v", err)
	} else if start > 0 {
		w.count("trimmed", 1)
	}
	for _, r := range state.Ranges() {
		want[tier.Key{Partition: testPartition, Base: r.Base, End: r.End, Epoch: r.Epoch, ID: r.ID}.Path("p")] = true
	}
	for _, r := range state.Expired(10) {
		w.fail("range [%d, %d) is below the log start %d and still there", r.Base, r.End, state.LogStart())
	}
	for info, err := range w.mem.List(w.ctx, "", "") {
		if err != nil {
			w.fail("list: %v", err)
		}
		if !want[info.Key] {
			w.fail("orphan %s", info.Key)
		}
		delete(want, info.Key)
	}
	if len(want) > 0 {
		w.fail("missing objects %v", want)
	}
	if err := w.mem.Check(); err != nil {
		w.fail("%v", err)
	}
	for _, n := range w.nodes {
		s, _ := n.part.State()
		if !s.Equal(state) {
			w.fail("node %d has another state: %+v, leader %+v", n.n, n.part.View(), lead.part.View())
		}
		if n.log.Start() != state.LogStart() {
			w.fail("node %d: local log start %d, state %d", n.n, n.log.Start(), state.LogStart())
		}
		for off := state.LogStart(); off < w.end; off += 3 {
			w.read(n, off, true)
		}
	}
	synctest.Wait() // for readahead
	if w.store.Active() != 0 {
		w.fail("%d operations of the store are still under way", w.store.Active())
	}
	for _, n := range w.nodes {
		if s := n.manager.Stats(); s.Missing > 0 {
			w.fail("node %d: %d alarms of lost objects", n.n, s.Missing)
		}
		w.stop(n)
	}
}
