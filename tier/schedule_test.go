package tier_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
)

// The schedules: seeded lives of some partitions on three nodes with one object
// store and one tier log between them. The log's own replication is played by the
// test, synchronously: an offset is committed when it is durable on all nodes. So
// what can go wrong here is the tier's alone.
//
// Oracle, at each event and each change of the store: see oracle. After every step on
// the leader and at times on the others: a read of any offset from the log start to the
// committed end gives the right bytes, or an error that says "retry" while the store or
// the tier log is down. At the end, when faults are over: all nodes have the same state,
// the store holds the finished ranges and nothing else, and everything is readable
// everywhere.
//
// CORDWOOD_SEEDS=from-to runs other seeds than the default ones.
func TestSchedules(t *testing.T) {
	last := uint64(defaultSchedules)
	if testing.Short() {
		last = 12
	}
	from, to := seeds(t, 1, last)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a fifth less time
	total := map[string]int{}
	for seed := from; seed <= to; seed++ {
		ok := t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newWorld(t, seed).run(scheduleSteps, total) })
		})
		if !ok {
			return
		}
	}
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%-28s %8d", k, total[k])
	}
	// How often something happens grows with the number of schedules.
	if to-from+1 < defaultSchedules {
		return
	}
	for _, k := range scheduleEvents {
		if total[k] < 100 {
			t.Errorf("%q happened %d times only", k, total[k])
		}
	}
}

// defaultSchedules is how many are run by default, and scheduleSteps the length of one.
const (
	defaultSchedules = 100
	scheduleSteps    = 100
)

// scheduleEvents are what must happen in the default schedules, each 100 times at least.
var scheduleEvents = []string{
	// Events of the tier log that were committed, by kind, and what became of them.
	"Barrier", "CopyStarted", "CopyFinished", "DeleteStarted", "DeleteFinished", "LogStart", "Checkpoint", "manifests",
	"log start: bytes", "log start: age", "log start: request", "applied", "ignored: epoch", "ignored: sequence", "ignored: barrier",
	"event lost", "event reply lost", "event late", "event landed late", "tier log down",
	// The store.
	"put started", "put landed", "put lost", "put reply lost", "put late", "put landed late", "put slow", "put throttled", "put conflict",
	"delete lost", "delete reply lost", "get lost", "get slow", "get flipped", "store down", "stray", "swept", "sweep", "audit",
	// The nodes.
	"append", "roll", "crash", "wiped", "lead", "zombie", "fenced", "away", "trim", "hot read", "cold read", "uploads", "deletes", "tick",
	// The tier log gets shorter, and is read again.
	"checkpoints", "trimmed", "begun above the beginning", "file of states lost",
	// Topics are deleted and made anew.
	"topic deleted", "topic made anew", "deletion heard", "Deleted", "Forgotten", "put of a deleted topic", "delete of a deleted topic",
	"kept for undelete", "speaker", "two speakers",
}

func (w *world) run(steps int, total map[string]int) {
	for range steps {
		w.topic()
		s := w.shard()
		switch n := w.r.IntN(100); {
		case n < 40:
			w.append(s)
		case n < 46:
			w.crash(w.nodes[w.r.IntN(worldNodes)])
		case n < 48:
			w.wipe(w.nodes[w.r.IntN(worldNodes)])
		case n < 55:
			if !s.topic.deleted() {
				w.lead(s, w.r.IntN(worldNodes))
			}
		case n < 60:
			w.down = !w.down
			w.store.SetDown(w.down)
			w.say("store down %v", w.down)
			if w.down {
				w.count("store down", 1)
			}
		case n < 63:
			w.evDown = !w.evDown
			w.events.SetDown(w.evDown)
			w.say("tier log down %v", w.evDown)
			if w.evDown {
				w.count("tier log down", 1)
			}
		case n < 68:
			w.trim(s)
		case n < 77:
			if k := w.events.Land(w.r.Perm); k > 0 {
				w.count("event landed late", k)
				w.say("%d events landed", k)
			}
		case n < 80:
			w.count("roll", 1)
			if err := w.first(s).log.Roll(w.ctx); err != nil {
				w.fail("roll: %v", err)
			}
			w.first(s).part.Kick()
		case n < 90:
			w.count("tick", 1)
			if r := w.nodes[w.r.IntN(worldNodes)].reps[s.i]; r != nil {
				r.hw.Store(max(r.hw.Load(), int64(min(r.log.End(), s.end))))
				r.part.Kick()
			}
			time.Sleep(time.Duration(w.r.IntN(200)) * time.Second)
		default:
			time.Sleep(time.Duration(w.r.IntN(3000)) * time.Millisecond)
		}
		w.more()
		synctest.Wait()
		w.check()
	}
	w.settle()
	w.oracle.addTo(w.counts)
	for k, n := range w.counts {
		total[k] += n
	}
}

// check holds the world against the oracle while it goes on.
func (w *world) check() {
	for _, s := range w.shards {
		for _, n := range w.nodes {
			r := n.reps[s.i]
			if r == nil {
				continue
			}
			w.oracle.local(s, n.n, r.log)
			if n.n == s.leader || w.r.IntN(4) == 0 {
				v := r.part.View()
				if s.end > v.LogStart {
					w.read(s, n, v.LogStart)
					w.read(s, n, v.LogStart+log.Offset(w.r.Int64N(int64(s.end-v.LogStart))))
				}
			}
			if _, _, err := r.part.Status(); errors.Is(err, tier.ErrFenced) {
				w.count("fenced", 1)
			}
		}
	}
	if start, err := w.events.Start(w.ctx); err == nil && start > w.start {
		w.start = start
		w.count("trimmed", 1)
	}
	if err := w.oracle.err(); err != nil {
		w.fail("%v", err)
	}
}

// trim asks for records to be deleted.
func (w *world) trim(s *shard) {
	w.count("trim", 1)
	part := w.first(s).part
	v := part.View()
	to := v.LogStart + log.Offset(w.r.Int64N(int64(max(1, (s.end-v.LogStart)/3))))
	w.say("trim %d to %d", s.i, to)
	ctx, cancel := context.WithTimeout(w.ctx, time.Second)
	err := part.TrimTo(ctx, to, "test")
	cancel()
	if err == nil && part.View().LogStart < to {
		w.fail("trimmed to %d, log start %d", to, part.View().LogStart)
	}
}

// more does what does not happen at every step: nodes whose tier is away for long, also
// while the tier log is trimmed, objects of nobody, sweeps without grace and audits of
// what is alive.
func (w *world) more() {
	switch n := w.r.IntN(60); {
	case n < 3:
		n := w.nodes[w.r.IntN(worldNodes)]
		if slices.ContainsFunc(w.shards, func(s *shard) bool { return s.leader == n.n && !s.topic.deleted() }) {
			return
		}
		w.count("away", 1)
		w.say("node %d is away", n.n)
		w.leave(n)
	case n < 7:
		w.back(w.nodes[w.r.IntN(worldNodes)])
	case n < 12:
		w.stray(w.shard())
	case n < 19:
		s := w.shard()
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		n := w.nodes[s.leader]
		if w.r.IntN(4) == 0 {
			n = w.nodes[w.r.IntN(worldNodes)] // who may believe that it leads
		}
		if n.reps[s.i] == nil {
			return
		}
		r, err := n.reps[s.i].part.Sweep(ctx, tier.SweepOptions{MinAge: -1})
		w.say("sweep of node %d: %+v, %v", n.n, r, err)
		if err == nil {
			w.count("sweep", 1)
			w.count("swept", r.Deleted)
		}
	case n < 22 && !w.evDown:
		w.audit()
	}
}

// strayID begins the ids of stray objects.
const strayID = 0xee

// stray puts an object that nobody announced beside those of a shard, as a store does
// that takes a write long after it was given up; not so late that the tier log has
// declared its topic deleted, since that waits for writes.
func (w *world) stray(s *shard) {
	if !w.oracle.alive(s) {
		return
	}
	w.count("stray", 1)
	base := log.Offset(w.r.Int64N(int64(s.end) + 1))
	k := tier.Key{Partition: s.id, Base: base, End: base + 1 + log.Offset(w.r.IntN(20)), Epoch: s.epoch, ID: tier.ID{strayID}}
	for i := 8; i < len(k.ID); i++ {
		k.ID[i] = byte(w.r.IntN(256))
	}
	w.oracle.stray(s, k.Path("p"))
	if err := w.mem.Put(w.ctx, k.Path("p"), bytes.NewReader([]byte("stray")), 5, tier.PutOptions{IfAbsent: true}); err != nil {
		w.fail("%v", err)
	}
}

// audit audits the store. Nothing but what is nobody's may be found.
func (w *world) audit() {
	a, err := tier.Audit(w.ctx, tier.AuditOptions{Store: w.mem, Prefix: "p", Events: tier.ReadToEnd(w.ctx, w.events)})
	if err != nil {
		// No owner yet, or the tier log was trimmed meanwhile.
		if !errors.Is(err, tier.ErrNotFound) && !errors.Is(err, log.ErrOffsetOutOfRange) {
			w.fail("audit: %v", err)
		}
		return
	}
	w.count("audit", 1)
	for _, f := range a.Findings {
		// A late checkpoint can be all that the tier log still says of such a topic.
		if w.forgot(f.Partition) {
			continue
		}
		// A stray object of a shard that has no event yet is in a folder that nobody knows.
		k, _ := tier.ParseKey("p", f.Key)
		if f.Kind != tier.FindingOrphan && (f.Kind != tier.FindingForeign || k.ID[0] != strayID) {
			w.fail("audit: %v", f)
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
	w.speakAlone(w.r.IntN(worldNodes))
	for _, n := range w.nodes {
		w.back(n)
		w.hearAll(n)
	}
	for _, s := range w.live() {
		w.lead(s, s.leader)
		for range 3 {
			w.append(s)
		}
		lead := w.first(s)
		if lead.log.End() > s.end {
			w.commit(s)
		}
		if err := lead.log.Roll(w.ctx); err != nil {
			w.fail("roll: %v", err)
		}
		for _, n := range w.nodes {
			if r := n.reps[s.i]; r != nil {
				r.hw.Store(int64(s.end))
				r.part.Kick()
			}
		}
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	for _, n := range w.nodes {
		for tries := 0; !w.hearAll(n); tries++ {
			if time.Sleep(time.Minute); tries < 3 {
				continue
			}
			w.fail("node %d can't have a replica of each topic", n.n)
		}
		for _, s := range w.live() {
			n.reps[s.i].hw.Store(int64(s.end))
			n.reps[s.i].part.Kick()
		}
	}
	w.undelete()
	time.Sleep(2*uploadDeadline + 10*time.Minute)
	w.settled()
	if w.window > 0 {
		time.Sleep(w.window + 10*time.Minute)
		w.settled()
	}
	// Each partition has a checkpoint that is young, or so far from the end as makes one
	// due, and what lies below goes in small batches.
	if start, err := w.events.Start(w.ctx); err != nil || w.events.Len()-int(start) > keptEvents {
		w.fail("the tier log keeps [%d, %d) after all is quiet: %v", start, w.events.Len(), err)
	}
	w.forgotten()
	if err := errors.Join(w.mem.Check(), w.oracle.err()); err != nil {
		w.fail("%v", err)
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

// expiry is how long after its time what is to go may still be there.
const expiry = 5 * time.Minute

// settled holds what is in the store against what has to be there: the finished ranges,
// those that are kept for a while, and nothing else.
func (w *world) settled() {
	synctest.Wait()
	must, may := map[string]bool{tier.OwnerKey("p"): true, tier.WriterKey("p"): true}, map[string]bool{}
	for _, s := range w.live() {
		w.settledShard(s, must, may)
	}
	w.oracle.kept(must, may)
	for info, err := range w.mem.List(w.ctx, "", "") {
		if err != nil {
			w.fail("list: %v", err)
		}
		if !must[info.Key] && !may[info.Key] {
			w.fail("orphan %s", info.Key)
		}
		delete(must, info.Key)
	}
	if len(must) > 0 {
		w.fail("missing objects %v", must)
	}
}

// settledShard checks a shard after all is quiet, and adds the objects that must be
// there, and those that may.
func (w *world) settledShard(s *shard, must, may map[string]bool) {
	lead := w.first(s)
	state, known := lead.part.State()
	if !known || len(state.Pending()) > 0 {
		w.fail("shard %d, after all is quiet: known %v, %d pending", s.i, known, len(state.Pending()))
	}
	if ok, epoch, err := lead.part.Status(); !ok || epoch != s.epoch || err != nil {
		w.fail("shard %d, after all is quiet: leading %v in epoch %d of %d: %v", s.i, ok, epoch, s.epoch, err)
	}
	if _, n := lead.part.Backlog(); n > 0 {
		w.fail("shard %d, after all is quiet: a backlog of %d ranges", s.i, n)
	}
	// Manifests whose event never came, or that could not be deleted, are what a sweep
	// is for.
	r, err := lead.part.Sweep(w.ctx, tier.SweepOptions{MinAge: -1})
	if err != nil {
		w.fail("sweep: %v", err)
	}
	w.count("swept", r.Deleted)
	synctest.Wait() // its barrier can make a checkpoint due
	if state, known = lead.part.State(); !known {
		w.fail("after the sweep: view unknown")
	}
	if id, ok := state.Manifest(); ok {
		must[tier.ManifestKey("p", s.id, id)] = true
	}
	for _, r := range state.Ranges() {
		must[keyOf(s, r)] = true
	}
	for _, r := range state.Expired(1 << 10) {
		if time.Since(r.Until()) > expiry {
			w.fail("range [%d, %d) is below the log start %d and still there", r.Base, r.End, state.LogStart())
		}
		may[keyOf(s, r)] = true
	}
	for _, p := range state.Pending() { // since the sweep
		may[tier.Key{Partition: s.id, Base: p.Base, End: p.End, Epoch: p.Epoch, ID: p.ID}.Path("p")] = true
	}
	if !w.oracle.agrees(s, state) {
		w.fail("shard %d: the state is not what the tier log says", s.i)
	}
	for _, n := range w.nodes {
		rep := n.reps[s.i]
		st, _ := rep.part.State()
		if !st.Equal(state) {
			w.fail("node %d has another state of shard %d: %+v, leader %+v", n.n, s.i, rep.part.View(), lead.part.View())
		}
		if rep.log.Start() != state.LogStart() {
			w.fail("node %d: local log start of shard %d is %d, state %d", n.n, s.i, rep.log.Start(), state.LogStart())
		}
		w.readAll(s, n)
	}
}

func keyOf(s *shard, r tier.Range) string {
	return tier.Key{Partition: s.id, Base: r.Base, End: r.End, Epoch: r.Epoch, ID: r.ID}.Path("p")
}
