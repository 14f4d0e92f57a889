package tier_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// traceLines is how much of its trace a failing seed prints.
var traceLines = 60

const (
	worldNodes   = 3
	segmentBytes = 2 << 10
)

// A node is one machine.
type node struct {
	n       int
	fs      *logtest.FS
	manager *tier.Manager
	reps    []*replica // of each shard; nil: it has none
	away    bool       // its tier does not run

	done   int          // facts that it has acted on
	image  atomic.Int64 // facts that its tier is told of
	speaks atomic.Bool  // it takes itself for the one that speaks for the cluster
}

// A replica is what a node has of one partition.
type replica struct {
	log  *log.Log
	part *tier.Partition
	hw   atomic.Int64 // high watermark as this node knows it
}

// A shard is one partition, as all nodes together should see it.
type shard struct {
	i      int
	topic  *topic
	id     log.PartitionID
	policy tier.PartitionOptions
	leader int
	epoch  log.Epoch
	end    log.Offset            // committed end
	values map[log.Offset]string // of all written offsets
	wrote  map[log.Offset]wrote  // by base offset of a batch
}

// A wrote is one batch on the leader.
type wrote struct {
	bytes int64
	at    time.Time
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
	shards []*shard // of all topics, also of deleted ones
	topics []*topic // the last of each name
	oracle *oracle
	start  log.Offset // of the tier log, as last seen
	quiet  atomic.Bool
	down   bool
	evDown bool
	files  bool          // nodes keep their states in files
	inline int64         // largest state of a checkpoint event
	window time.Duration // how long deleted ranges are kept; negative: not at all
	calm   int           // steps before the first deletion of a topic

	mu     sync.Mutex // for what the managers' goroutines use
	faults *rand.Rand
	counts map[string]int
	trace  []string
	facts  []fact // of the cluster's metadata, in order
}

// shard returns one by chance: of a topic that is there, or whose leader has not heard
// of its deletion.
func (w *world) shard() *shard {
	var some []*shard
	for _, s := range w.shards {
		if n := w.nodes[s.leader]; n.reps[s.i] != nil && !(s.topic.deleted() && n.away) {
			some = append(some, s)
		}
	}
	return some[w.r.IntN(len(some))]
}

// first returns the leader's replica of a shard.
func (w *world) first(s *shard) *replica { return w.nodes[s.leader].reps[s.i] }

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
		t: t, ctx: t.Context(), r: r, seed: seed, mem: mem, events: &tiertest.Events{},
		counts: map[string]int{}, faults: rand.New(rand.NewPCG(seed, 98)),
	}
	w.calm = r.IntN(scheduleSteps)
	w.window = -1
	if seed%3 == 1 {
		w.window = backupWindow
	}
	w.oracle = newOracle(mem, w.window, w.say)
	w.store = tiertest.NewFaulty(watchedStore{mem, w.oracle})
	w.events.SetCommitted(w.oracle.committed)
	w.files = seed%4 != 0
	w.inline = tier.MaxInlineState
	if seed%3 == 0 {
		w.inline = 200
	}
	fault := func(p int, kind string, f tiertest.Fault) (tiertest.Fault, bool) {
		if w.dice(100) >= p {
			return tiertest.Fault{}, false
		}
		w.count(kind, 1)
		return f, true
	}
	w.store.SetFault(func(op tiertest.Op) tiertest.Fault {
		if w.quiet.Load() || op.Kind == "put" && (op.Key == tier.OwnerKey("p") || op.Key == tier.WriterKey("p")) {
			return tiertest.Fault{}
		}
		switch op.Kind {
		case "put":
			w.count("put started", 1)
			for _, c := range []struct {
				p    int
				kind string
				f    tiertest.Fault
			}{
				{8, "put lost", tiertest.Fault{Err: tier.ErrUnavailable}},
				{8, "put reply lost", tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: true}},
				{16, "put late", tiertest.Fault{Late: true}},
				{5, "put throttled", tiertest.Fault{Err: &tier.ThrottledError{RetryAfter: time.Second}}},
				{6, "put conflict", tiertest.Fault{Err: tier.ErrConflict}},
				{10, "put slow", tiertest.Fault{Delay: time.Duration(w.dice(90)) * time.Second}},
			} {
				if f, ok := fault(c.p, c.kind, c.f); ok {
					if f.Late {
						// A request may linger, but not for ever: see lateGrace.
						wait := time.Duration(1+w.dice(100)) * time.Millisecond // it is on its way by then
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
		if w.oracle.err() != nil {
			return tiertest.EventLost // or what is wrong may go on for ever before anybody looks
		}
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
		w.boot(w.nodes[i])
	}
	t.Cleanup(func() {
		for _, n := range w.nodes {
			if n != nil && n.manager != nil {
				_ = n.manager.Close()
				for r := range n.replicas() {
					_ = r.log.Close()
				}
			}
		}
	})
	w.speak(0)
	names, partitions := 1, 1+r.IntN(2)+r.IntN(2)
	if r.IntN(2) == 0 {
		names, partitions = partitions, 1
	}
	for range names {
		w.topics = append(w.topics, nil)
		w.create(len(w.topics)-1, partitions, 0)
	}
	for _, n := range w.nodes {
		w.hearAll(n)
	}
	return w
}

// newShard makes a partition of a topic, with a policy by chance.
func (w *world) newShard(t *topic) *shard {
	s := &shard{
		i: len(w.shards), topic: t, id: log.PartitionID{Topic: t.id, Index: int32(len(t.shards))},
		values: map[log.Offset]string{}, wrote: map[log.Offset]wrote{},
		policy: tier.PartitionOptions{Tiered: true},
	}
	switch w.r.IntN(4) {
	case 0:
		s.policy.RetentionBytes = 8 << 10
	case 1:
		s.policy.RetentionAge = 20 * time.Minute
	}
	switch w.r.IntN(4) {
	case 0:
		s.policy.LocalRetentionBytes = 6 << 10
	case 1:
		s.policy.LocalRetentionAge = 3 * time.Minute
	}
	w.oracle.add(s)
	t.shards = append(t.shards, s)
	w.shards = append(w.shards, s)
	for _, n := range w.nodes {
		n.reps = append(n.reps, nil)
	}
	return s
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

const (
	uploadDeadline   = 10 * time.Minute
	checkpointEvents = 8
	keptEvents       = 5 * checkpointEvents // that the tier log has at most when all is quiet: twice what the rules add up to
)

// dir is where a node keeps its states, and its logs below it.
const dir = "data"

func (w *world) boot(n *node) {
	w.t.Helper()
	if err := n.fs.MkdirAll(dir); err != nil {
		w.fail("node %d: %v", n.n, err)
	}
	if err := n.fs.SyncDir("."); err != nil {
		w.fail("node %d: %v", n.n, err)
	}
	o := tier.Options{
		CheckpointEvents: checkpointEvents, CheckpointInterval: 3 * time.Minute, BackupWindow: w.window, ReaderGrace: -1,
		Writer: n.speaks.Load, Deleted: func(id log.TopicID) ([]log.Epoch, bool) { return w.deletedTopic(n, id) },
		Store: w.store, Events: w.events, Cluster: tier.ID{1}, Prefix: "p", ChunkBytes: 4 << 10, CacheBytes: 16 << 10,
		UploadDeadline: uploadDeadline, Interval: time.Minute,
		Logger: slog.New(slog.NewTextHandler(traceWriter{w, n.n}, nil)),
		Hooks: tier.Hooks{
			Missing: func(m *tier.MissingError) { w.t.Errorf("seed %d: node %d: %v", w.seed, n.n, m) },
		},
	}
	if w.files {
		o.StateFS, o.StateDir = n.fs, dir
	}
	if start, err := w.events.Start(w.ctx); err == nil && start > 0 {
		w.count("begun above the beginning", 1)
	}
	var err error
	if n.manager, err = tier.NewManager(tier.WithInlineState(o, w.inline)); err != nil {
		w.fail("manager %d: %v", n.n, err)
	}
	n.away = false
	for _, s := range w.shards {
		if n.reps[s.i] != nil {
			w.open(n, s)
		}
	}
}

// open opens a node's replica of a shard: its log, and its tier.
func (w *world) open(n *node, s *shard) {
	w.t.Helper()
	l, err := log.Open(w.ctx, dir+"/"+s.id.String(), log.Options{FS: n.fs, Partition: s.id, SegmentBytes: segmentBytes})
	if err != nil {
		w.fail("open log %d of %d: %v", s.i, n.n, err)
	}
	if r := l.Recovery(); r.Lossy {
		w.fail("node %d: log %d lost committed records: %+v: %v; segments %+v", n.n, s.i, r, r.Corruption[0], l.Segments())
	}
	r := &replica{log: l}
	if old := n.reps[s.i]; old != nil {
		r.hw.Store(min(old.hw.Load(), int64(l.End())))
	}
	n.reps[s.i] = r
	po := s.policy
	po.HighWatermark = func() log.Offset { return log.Offset(r.hw.Load()) }
	if r.part, err = n.manager.Open(s.id, l, po); err != nil {
		w.fail("open %d of %d: %v", s.i, n.n, err)
	}
}

// stop ends a node's tier and logs. A crash is the loss of power before it.
func (w *world) stop(n *node) {
	w.leave(n)
	for r := range n.replicas() {
		_ = r.log.Close() // fails after a crash
	}
}

// leave ends a node's tier only: its logs go on.
func (w *world) leave(n *node) {
	if n.away {
		return
	}
	n.away = true
	for r := range n.replicas() {
		r.part.Close()
	}
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
	w.loseStates(n)
	for r := range n.replicas() {
		_ = r.log.Close()
	}
	w.boot(n)
}

// loseStates takes a node's file of states, at times.
func (w *world) loseStates(n *node) {
	if _, err := n.fs.Stat(dir + "/tier-state"); err == nil && w.r.IntN(2) == 0 {
		w.count("file of states lost", 1)
		if err := n.fs.Remove(dir + "/tier-state"); err != nil {
			w.fail("node %d: %v", n.n, err)
		}
	}
}

func (w *world) collect(n *node) {
	s := n.manager.Stats()
	w.count("uploads", int(s.Uploads))
	w.count("deletes", int(s.Deletes))
	w.count("fetches", int(s.Fetches))
	w.count("checkpoints", int(s.Checkpoints))
}

func (w *world) crash(n *node) {
	w.count("crash", 1)
	w.say("crash %d", n.n)
	after := n.fs.Crash(logtest.CrashRandom)
	w.stop(n)
	n.fs = after
	w.loseStates(n)
	if n.done > 0 && w.r.IntN(3) == 0 {
		n.image.Store(int64(n.done) - 1) // it reads the metadata again
	}
	w.boot(n)
	for _, s := range w.shards {
		if n.reps[s.i] == nil {
			continue
		}
		if end := n.reps[s.i].log.End(); end < s.end {
			w.fail("node %d came back with end %d of shard %d, committed %d", n.n, end, s.i, s.end)
		}
		if n.n == s.leader && !s.topic.deleted() {
			w.lead(s, (s.leader+w.r.IntN(worldNodes))%worldNodes)
		} else {
			w.align(s, n)
		}
	}
}

// wipe replaces a node's disk by an empty one, and gives it what a leader would: the
// records from its local start or from the tier end on. What it led, another leads before.
func (w *world) wipe(n *node) {
	w.back(n)
	if !w.hearAll(n) {
		return
	}
	for _, s := range w.shards {
		if s.leader == n.n && n.reps[s.i] != nil {
			if w.lead(s, (n.n+1+w.r.IntN(worldNodes-1))%worldNodes); s.leader == n.n {
				return
			}
		}
	}
	views := make([]tier.View, len(w.shards))
	for i, r := range n.reps {
		if r != nil {
			views[i] = r.part.View()
		}
	}
	w.leave(n) // nothing drops records any more
	from := make([]begin, len(w.shards))
	for i, s := range w.shards {
		if n.reps[i] == nil {
			continue
		}
		var ok bool
		if from[i], ok = w.begin(s, n.reps[i].log, views[i]); !ok {
			w.back(n)
			return
		}
	}
	w.count("wiped", 1)
	w.say("wipe %d", n.n)
	w.stop(n)
	n.fs = logtest.NewFS(w.seed*10 + uint64(n.n))
	w.boot(n)
	for i, s := range w.shards {
		if n.reps[i] != nil {
			w.fill(n, s, from[i])
		}
	}
}

// fill gives a node's new replica what it begins with.
func (w *world) fill(n *node, s *shard, b begin) {
	r := n.reps[s.i]
	r.hw.Store(0)
	if b.at > 0 {
		if err := r.log.Reset(w.ctx, b.at, b.chain, b.producers); err != nil {
			w.fail("start node %d's shard %d at %d: %v", n.n, s.i, b.at, err)
		}
	}
	for _, batches := range b.batches {
		if _, err := r.log.AppendReplicated(batches); err != nil {
			w.fail("replicate: %v", err)
		}
	}
	if end, err := r.log.Sync(w.ctx); err != nil || end != s.end {
		w.fail("node %d's shard %d has [%d, %d) of %d: %v", n.n, s.i, b.at, end, s.end, err)
	}
}

// A begin is what a replica that has nothing begins with.
type begin struct {
	at        log.Offset
	chain     []log.EpochStart
	producers []byte
	batches   [][]byte
}

// begin reads it from a log that has all that is committed. Neither the local start nor
// the tier end must be inside of a batch, where a request for deletion can have put it.
func (w *world) begin(s *shard, l *log.Log, v tier.View) (begin, bool) {
	at := []log.Offset{l.LocalStart()}
	if v.Known {
		at = append(at, max(at[0], min(v.TierEnd, s.end)))
	}
	w.r.Shuffle(len(at), func(i, j int) { at[i], at[j] = at[j], at[i] })
	for _, at := range at {
		producers, err := l.ProducerSnapshot(w.ctx, at)
		if errors.Is(err, log.ErrOffsetOutOfRange) {
			continue
		}
		b := begin{at: at, producers: producers}
		b.chain = slices.DeleteFunc(slices.Clone(l.EpochChain()), func(e log.EpochStart) bool { return e.Start >= at })
		for at < s.end && err == nil {
			var slice *log.Slice
			if slice, err = l.ReadBelow(w.ctx, at, s.end, 64<<10); err == nil {
				b.batches = append(b.batches, bytes.Clone(slice.Bytes()))
				at = w.endOf(slice.Bytes())
				slice.Release()
			}
		}
		if errors.Is(err, log.ErrBelowLocalStart) || errors.Is(err, log.ErrOffsetOutOfRange) && at < l.Start() {
			continue // the leader drops it at this moment
		}
		if err != nil {
			w.fail("read shard %d from %d on: %v", s.i, at, err)
		}
		return b, true
	}
	return begin{}, false
}

// endOf returns the end of batches.
func (w *world) endOf(batches []byte) (end log.Offset) {
	for len(batches) > 0 {
		b, rest, err := record.Next(batches, 1<<20)
		if err != nil {
			w.fail("%v", err)
		}
		end, batches = b.NextOffset(), rest
	}
	return end
}

// align cuts what a node has above the committed end.
func (w *world) align(s *shard, n *node) {
	if n.reps[s.i] == nil {
		return
	}
	if l := n.reps[s.i].log; l.End() > s.end {
		if _, err := l.TruncateTo(w.ctx, s.end); err != nil {
			w.fail("truncate %d: %v", n.n, err)
		}
	}
}

// lead makes a node the leader of a shard's next epoch. The others stop at once, or the
// old one goes on for a while in the belief that it leads. One that can't have a replica
// now does not become leader: it remains who it is.
func (w *world) lead(s *shard, i int) {
	w.back(w.nodes[i])
	for w.nodes[i].reps[s.i] == nil {
		if !w.hear(w.nodes[i]) {
			i = s.leader
			w.back(w.nodes[i])
		}
	}
	w.count("lead", 1)
	s.epoch++
	zombie := i != s.leader && w.r.IntN(3) == 0
	w.say("node %d leads %d in epoch %d, zombie %v", i, s.i, s.epoch, zombie)
	if zombie {
		w.count("zombie", 1)
	}
	for _, n := range w.nodes {
		if n.reps[s.i] != nil && n.n != i && !(zombie && n.n == s.leader) {
			n.reps[s.i].part.Follow()
		}
		w.align(s, n)
	}
	s.leader = i
	w.first(s).part.Lead(s.epoch)
}

// append writes records on the leader, copies them to the others and commits them.
func (w *world) append(s *shard) {
	w.count("append", 1)
	lead := w.first(s)
	for range 1 + w.r.IntN(8) {
		var b record.Builder
		base := lead.log.End()
		values := map[log.Offset]string{}
		for i := range 1 + w.r.IntN(3) {
			v := fmt.Sprintf("%d:%d:%d:%s", s.i, base+log.Offset(i), s.epoch, strings.Repeat("x", w.r.IntN(300)))
			values[base+log.Offset(i)] = v
			if err := b.Append(log.Record{Value: []byte(v), Timestamp: time.Now().Add(producerClock(base))}); err != nil {
				w.fail("build: %v", err)
			}
		}
		batch, err := b.Build()
		if err != nil {
			w.fail("build: %v", err)
		}
		if _, err := lead.log.Write(s.epoch, batch.Bytes()); err != nil {
			w.fail("write: %v", err)
		}
		maps.Copy(s.values, values)
		w.oracle.wrote(s, base, int64(batch.Size()))
		if w.r.IntN(20) == 0 {
			return // written and not committed yet: the next leader may cut it
		}
	}
	w.commit(s)
}

// producerClock is how far the clock of whoever wrote at an offset is from ours.
func producerClock(at log.Offset) time.Duration { return time.Duration(at/64%3-1) * 24 * time.Hour }

// copy copies a shard up to end to a replica, durably.
func (w *world) copy(s *shard, r *replica, end log.Offset) {
	lead := w.first(s)
	for r.log.End() < end {
		b, err := lead.log.ReadBelow(w.ctx, r.log.End(), end, 4<<10)
		if err != nil {
			w.fail("replicate from %d: %v", r.log.End(), err)
		}
		if _, err := r.log.AppendReplicated(b.Bytes()); err != nil {
			w.fail("replicate: %v", err)
		}
		b.Release()
	}
	if _, err := r.log.Sync(w.ctx); err != nil {
		w.fail("sync: %v", err)
	}
}

func (w *world) commit(s *shard) {
	lead := w.first(s)
	end := lead.log.End()
	for _, n := range w.nodes {
		if r := n.reps[s.i]; r != nil {
			w.copy(s, r, end)
		}
	}
	w.oracle.commit(s, end)
	lead.hw.Store(int64(end))
	lead.part.Kick()
	for _, n := range w.nodes {
		if r := n.reps[s.i]; w.r.IntN(3) > 0 && r != nil {
			r.hw.Store(int64(end)) // the others may hear later
			r.part.Kick()
		}
	}
}

// read checks some offsets on a node. Errors that mean "retry" are fine.
func (w *world) read(s *shard, n *node, from log.Offset) {
	w.t.Helper()
	v := n.reps[s.i].part.View()
	if !v.Known || from < v.LogStart {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Minute)
	defer cancel()
	for range 3 {
		var ok bool
		if from, ok = w.step(ctx, s, n, from, false); !ok || from >= s.end {
			return
		}
	}
}

// readAll checks all offsets on a node. No error is fine.
func (w *world) readAll(s *shard, n *node) {
	w.t.Helper()
	v := n.reps[s.i].part.View()
	if !v.Known {
		w.fail("node %d, shard %d: view unknown", n.n, s.i)
	}
	for from := v.LogStart; from < s.end; {
		from, _ = w.step(w.ctx, s, n, from, true)
	}
}

// step reads some batches and checks them, and returns where they end; false after an
// error that is fine.
func (w *world) step(ctx context.Context, s *shard, n *node, from log.Offset, strict bool) (log.Offset, bool) {
	w.t.Helper()
	rep := n.reps[s.i]
	v := rep.part.View()
	// What a node reads of a topic that the tier log has forgotten, and that it has not
	// heard of, is what its local log has.
	over := s.topic.deleted() && w.oracle.forgot(s)
	var batches []byte
	hot, err := rep.log.ReadBelow(ctx, from, s.end, 3<<10)
	switch {
	case err == nil:
		w.count("hot read", 1)
		batches = bytes.Clone(hot.Bytes())
		hot.Release()
	case errors.Is(err, log.ErrBelowLocalStart):
		cold, err := rep.part.Read(ctx, from, 3<<10)
		if err != nil {
			switch {
			case over && errors.Is(err, tier.ErrNotTiered):
			case !strict && errors.Is(err, log.ErrOffsetOutOfRange) && rep.part.View().LogStart > from:
			case !strict && (errors.Is(err, tier.ErrUnavailable) || errors.Is(err, tier.ErrCorrupt) || errors.Is(err, context.DeadlineExceeded)):
			default:
				w.fail("node %d, shard %d: cold read of %d in %+v: %v", n.n, s.i, from, v, err)
			}
			return from, false
		}
		w.count("cold read", 1)
		batches = cold.Bytes()
	case !strict && errors.Is(err, log.ErrOffsetOutOfRange):
		if rep.part.View().LogStart <= from && !over {
			w.fail("node %d, shard %d: hot read of %d: %v", n.n, s.i, from, err)
		}
		return from, false
	default:
		w.fail("node %d, shard %d: hot read of %d: %v", n.n, s.i, from, err)
	}
	first := true
	for len(batches) > 0 {
		b, rest, err := record.Next(batches, 1<<20)
		if err == nil {
			err = b.Verify()
		}
		if err != nil {
			w.fail("node %d, shard %d: batch at %d: %v", n.n, s.i, from, err)
		}
		batches = rest
		if first && (b.BaseOffset() > from || b.NextOffset() <= from) || !first && b.BaseOffset() != from {
			w.fail("node %d, shard %d: batch [%d, %d) at %d", n.n, s.i, b.BaseOffset(), b.NextOffset(), from)
		}
		first = false
		for r, err := range b.Records() {
			if err != nil {
				w.fail("node %d, shard %d: records at %d: %v", n.n, s.i, from, err)
			}
			if got, want := string(r.Value), s.values[r.Offset]; got != want {
				w.fail("node %d, shard %d: offset %d is %.30q, want %.30q", n.n, s.i, r.Offset, got, want)
			}
		}
		from = b.NextOffset()
	}
	return from, true
}
