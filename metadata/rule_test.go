package metadata_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/metadata"
)

// Rules of embedding etcd-raft that concern a voter among others. The package's
// other TestRule has those of the store.
func TestRule(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"R01": ruleNoLeader, "R07": ruleAnswersAfterSync, "R08": ruleAnswersAfterSync, "R10": ruleFailedDisk, "R11": ruleNewDisk,
		"R20": ruleQuorum, "R21": ruleStall, "R22": ruleStaleVerdict, "R24": ruleLostProposal, "R26": ruleBoundedLog,
		"R27": ruleLostSnapshot, "R31": ruleSlowWatcher, "R36": ruleSlowSnapshot,
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// Every rule of the checklist is tested, or the list says why it can't occur.
func TestRuleList(t *testing.T) {
	checkList(t, "testdata/rules.txt", []string{"rule_test.go", "rule_store_test.go"}, func() []string {
		var all []string
		for i := range 36 {
			all = append(all, fmt.Sprintf("R%02d", i+1))
		}
		return all
	}())
}

// checkList reads a list of "name: test" or "name: why not", and compares it with
// what the source files register.
func checkList(t *testing.T, list string, files, all []string) {
	t.Helper()
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, f := range files {
		s, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		source.WriteString(string(s))
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, what, ok := strings.Cut(line, ": ")
		if !ok || seen[name] {
			t.Errorf("line %q", line)
		}
		seen[name] = true
		tested := regexp.MustCompile(`"` + regexp.QuoteMeta(name) + `":\s+\w`).MatchString(source.String())
		if isTest := strings.HasPrefix(what, "test"); isTest != tested {
			t.Errorf("%s: the list says %q, tested is %v", name, what, tested)
		}
	}
	for _, name := range all {
		if !seen[name] {
			t.Errorf("%s is not in the list", name)
		}
	}
	if len(seen) != len(all) && all != nil {
		t.Errorf("%d names in the list, want %d", len(seen), len(all))
	}
}

// cluster starts n voters with brokers and waits until all are live.
func cluster(t *testing.T, n int, tune func(*metadata.Options)) (*world, []*node) {
	t.Helper()
	w := newWorld(t, n, tune)
	ns := w.startAll(n)
	for _, n := range ns {
		n.startBroker("")
	}
	for _, x := range ns {
		w.waitFor(x, "live brokers", live(n))
	}
	return w, ns
}

func (w *world) controller() *node {
	w.t.Helper()
	for range 1000 {
		for _, n := range w.running() {
			if st := n.server.Status(); st.Controller {
				return n
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.t.Fatal("no controller")
	return nil
}

func (w *world) others(n *node) []*node {
	var out []*node
	for _, o := range w.running() {
		if o != n {
			out = append(out, o)
		}
	}
	return out
}

// create creates a topic and fails the test if that does not work.
func (w *world) create(n *node, name string) metadata.Topic {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	tp, err := n.server.CreateTopic(ctx, metadata.TopicSpec{Name: name, Partitions: 1, Replication: 1})
	if err != nil {
		w.t.Fatalf("create %s on %d: %v", name, n.id, err)
	}
	return tp
}

// R1: without a leader a call ends with its ctx, and nothing is stuck.
func ruleNoLeader(t *testing.T) {
	w := newWorld(t, 3, nil)
	defer w.stop()
	n := w.start(1)
	n.server.Campaign()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	began := time.Now()
	if _, err := n.server.CreateTopic(ctx, metadata.TopicSpec{Name: "t", Partitions: 1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("create: %v", err)
	}
	if d := time.Since(began); d != 20*time.Second {
		t.Errorf("the call took %v", d)
	}
	two := w.start(2)
	w.start(3)
	two.startBroker("")
	w.waitFor(two, "a live broker", live(1))
	w.create(n, "t")
}

// R7: an answer that rests on the disk does not leave before the disk has it. R8:
// once it has, all answers leave.
func ruleAnswersAfterSync(t *testing.T) {
	w, _ := cluster(t, 3, nil)
	defer w.stop()
	lead := w.controller()
	f := w.others(lead)[0]
	var mu sync.Mutex
	acked := map[metadata.BrokerID]uint64{}
	votes := 0
	w.mu.Lock()
	w.drop = func(from, to metadata.BrokerID, m *raftpb.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		switch m.GetType() {
		case raftpb.MsgAppResp:
			if !m.GetReject() {
				acked[from] = max(acked[from], m.GetIndex())
			}
		case raftpb.MsgVoteResp:
			if from == f.id {
				votes++
			}
		}
		return false
	}
	w.mu.Unlock()
	durable := f.server.Image().Index()
	release := f.fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
	w.create(lead, "a")
	time.Sleep(time.Second)
	mu.Lock()
	if acked[f.id] > durable {
		t.Errorf("follower %d answers for index %d, its disk has at most %d", f.id, acked[f.id], durable)
	}
	mu.Unlock()
	// The leader dies: the stalled one can't vote for the third.
	lead.kill(true)
	time.Sleep(2 * time.Second)
	mu.Lock()
	if votes > 0 {
		t.Errorf("follower %d votes without its disk", f.id)
	}
	mu.Unlock()
	release()
	w.create(f, "b")
	w.start(lead.id)
	index := f.server.Image().Index()
	w.waitFor(lead, "the rest", func(im *metadata.Image) bool { return im.Index() >= index })
	w.sameState()
}

// R10: a failing disk ends the server, with its cause, and neither the process nor
// the others. It does so at every operation, whether the failed one was done or not.
func ruleFailedDisk(t *testing.T) {
	w, ns := cluster(t, 3, nil)
	defer w.stop()
	broken := errors.New("input/output error")
	for _, kind := range []logtest.Kind{logtest.OpSync, logtest.OpWrite} {
		n := w.controller()
		n.fs.OnOp(func(op logtest.Op) error {
			if op.Kind == kind {
				return broken
			}
			return nil
		})
		w.create(w.others(n)[0], "t-"+kind.String())
		<-n.server.Done()
		if err := n.server.Err(); !errors.Is(err, broken) {
			t.Errorf("%v: %v", kind, err)
		} else if _, ok := errors.AsType[*metadata.StorageError](err); !ok {
			t.Errorf("%v: %T", kind, err)
		}
		if _, err := n.server.CreateTopic(t.Context(), metadata.TopicSpec{Name: "x", Partitions: 1}); !errors.Is(err, broken) {
			t.Errorf("call after the end: %v", err)
		}
		n.kill(true)
		w.start(n.id)
		n.startBroker("")
		w.waitFor(n, "recovery", live(3))
	}
	_ = ns
	w.sameState()
}

// R11: a voter that comes back with an empty disk under its old id is refused: it
// no longer knows what it has promised.
func ruleNewDisk(t *testing.T) {
	w, ns := cluster(t, 3, nil)
	defer w.stop()
	n := ns[2]
	w.waitFor(n, "something", live(3))
	n.halt()
	n.fs, n.dir = logtest.NewFS(99), metadata.NewID()
	// The others start anew, too, so that the leader has no memory of what the voter
	// had: Raft itself would notice nothing.
	ns[0].halt()
	ns[1].halt()
	w.start(1)
	w.start(2)
	ns[0].startBroker("")
	w.start(3)
	n.server.Campaign()
	time.Sleep(10 * time.Second)
	if i := n.server.Image().Index(); i > 1 {
		t.Errorf("a voter on a new disk was caught up to %d", i)
	}
	// It counts for nothing: without another one there is no quorum.
	w.nodes[2].halt()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := ns[0].server.CreateTopic(ctx, metadata.TopicSpec{Name: "t", Partitions: 1, Replication: 1}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("created with the vote of a voter on a new disk: %v", err)
	}
}

// R20: a voter that was cut off disturbs nobody when it is back, and a leader that
// is cut off steps down.
func ruleQuorum(t *testing.T) {
	w, _ := cluster(t, 3, nil)
	defer w.stop()
	lead := w.controller()
	f := w.others(lead)[0]
	term := lead.server.Status().Term
	w.isolate(f.id, true)
	time.Sleep(time.Minute)
	w.isolate(f.id, false)
	time.Sleep(5 * time.Second)
	if st := lead.server.Status(); st.Term != term || !st.Controller {
		t.Errorf("term %d, was %d, controller %v", st.Term, term, st.Controller)
	}
	w.isolate(lead.id, true)
	time.Sleep(2 * time.Second)
	if st := lead.server.Status(); st.Controller {
		t.Error("a leader without a quorum is still the controller")
	}
	w.create(f, "t")
	w.isolate(lead.id, false)
	w.waitFor(lead, "the topic", func(im *metadata.Image) bool { _, ok := im.TopicByName("", "t"); return ok })
	w.sameState()
}

// R21: a leader whose disk is stuck hands over, though its heartbeats go on.
func ruleStall(t *testing.T) {
	w, _ := cluster(t, 3, nil)
	defer w.stop()
	lead := w.controller()
	release := lead.fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync || op.Kind == logtest.OpWrite })
	defer release()
	began := time.Now()
	f := w.others(lead)[0]
	w.create(f, "t")
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("it took %v to get away from a stuck disk", d)
	}
	if n := w.controller(); n == lead {
		t.Error("the stuck one still leads")
	}
	release()
	w.waitFor(lead, "the topic", func(im *metadata.Image) bool { _, ok := im.TopicByName("", "t"); return ok })
}

// R22: a refusal counts only from a controller that proves, afterwards, that it
// still is one.
func ruleStaleVerdict(t *testing.T) {
	w, _ := cluster(t, 3, nil)
	defer w.stop()
	lead := w.controller()
	w.create(lead, "old")
	w.isolate(lead.id, true)
	// It believes to lead for a while yet.
	if !lead.server.Status().Controller {
		t.Fatal("not the controller any more")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := lead.server.CreateTopic(ctx, metadata.TopicSpec{Name: "old", Partitions: 1}); errors.Is(err, metadata.ErrTopicExists) {
		t.Errorf("a verdict without a quorum: %v", err)
	}
	w.isolate(lead.id, false)
	if _, err := lead.server.CreateTopic(t.Context(), metadata.TopicSpec{Name: "old", Partitions: 1}); !errors.Is(err, metadata.ErrTopicExists) {
		t.Errorf("with a quorum: %v", err)
	}
}

// R24: a proposal may get lost with its leader, or take effect though its answer is
// lost. Either way the caller gets its topic, and once.
func ruleLostProposal(t *testing.T) {
	w, ns := cluster(t, 3, nil)
	defer w.stop()
	n := 0
	w.mu.Lock()
	w.lose = func(from, to metadata.BrokerID) (bool, bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		n++
		return n%5 == 1, n%5 == 3
	}
	w.mu.Unlock()
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() { w.create(ns[i%3], fmt.Sprintf("t%d", i)) })
	}
	lead := w.controller()
	w.isolate(lead.id, true)
	time.Sleep(3 * time.Second)
	w.isolate(lead.id, false)
	wg.Wait()
	count := 0
	for range w.waitFor(ns[0], "all topics", func(im *metadata.Image) bool {
		n := 0
		for range im.Topics() {
			n++
		}
		return n >= 13
	}).Topics() {
		count++
	}
	if count != 13 { // and the system topic
		t.Errorf("%d topics", count)
	}
	w.sameState()
}

// R26: what waits and what is kept is bounded: the log is cut by its size.
func ruleBoundedLog(t *testing.T) {
	w, ns := cluster(t, 3, func(o *metadata.Options) { o.LogBytes = 4000 })
	defer w.stop()
	for i := range 100 {
		w.create(ns[i%3], fmt.Sprintf("t%d", i))
	}
	time.Sleep(time.Second)
	for _, n := range ns {
		if st := n.server.Status(); st.LogBytes > 3*4000 || st.First < 20 {
			t.Errorf("node %d keeps %d bytes from entry %d on", n.id, st.LogBytes, st.First)
		}
	}
}

// lag makes voter 3 miss more than the log keeps.
func lag(t *testing.T) (w *world, n *node) {
	w, ns := cluster(t, 3, func(o *metadata.Options) { o.LogBytes = 2000 })
	n = ns[2]
	n.halt()
	for i := range 60 {
		w.create(ns[i%2], fmt.Sprintf("t%d", i))
	}
	return w, n
}

// R27: a snapshot whose fate is unknown is reported as failed, and sent again.
func ruleLostSnapshot(t *testing.T) {
	w, n := lag(t)
	defer w.stop()
	lost := 0
	w.mu.Lock()
	w.lose = func(from, to metadata.BrokerID) (bool, bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if to == 3 && lost < 2 {
			lost++
			return lost == 1, lost == 2
		}
		return false, false
	}
	w.mu.Unlock()
	w.start(3)
	w.waitFor(n, "the last topic", func(im *metadata.Image) bool { _, ok := im.TopicByName("", "t59"); return ok })
	if lost == 0 {
		t.Error("no snapshot was sent")
	}
	w.sameState()
	// It has it on disk, too.
	n.halt()
	w.start(3)
	if _, ok := n.server.Image().TopicByName("", "t40"); !ok {
		t.Error("the snapshot is gone after a restart")
	}
	// An observer gets one as well.
	o := w.start(4)
	w.waitFor(o, "the last topic", func(im *metadata.Image) bool { _, ok := im.TopicByName("", "t59"); return ok })
	w.sameState()
}

// R36: a voter that waits for a long snapshot hears its leader meanwhile, and
// stays calm.
func ruleSlowSnapshot(t *testing.T) {
	w, n := lag(t)
	defer w.stop()
	lead := w.controller()
	term := lead.server.Status().Term
	w.mu.Lock()
	w.lose = func(from, to metadata.BrokerID) (bool, bool) {
		if to == 3 {
			time.Sleep(8 * time.Second)
		}
		return false, false
	}
	w.mu.Unlock()
	w.start(3)
	w.waitFor(n, "the last topic", func(im *metadata.Image) bool { _, ok := im.TopicByName("", "t59"); return ok })
	if st := lead.server.Status(); st.Term != term {
		t.Errorf("term %d, was %d", st.Term, term)
	}
}

// R31: who watches slowly holds up nobody, and sees the newest state at last.
func ruleSlowWatcher(t *testing.T) {
	w, ns := cluster(t, 3, nil)
	defer w.stop()
	n := ns[0]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []uint64
	seen := map[string]bool{}
	full := 0
	done := make(chan error, 1)
	go func() {
		done <- n.server.Watch(ctx, func(im *metadata.Image, d metadata.Delta) error {
			got = append(got, im.Index())
			if d.Full {
				full++
			}
			for _, id := range d.Topics {
				tp, ok := im.Topic(id)
				if !ok {
					t.Errorf("topic %v is not in its image", id)
				}
				seen[tp.Name] = true
			}
			time.Sleep(2 * time.Second)
			if seen["last"] {
				return errStop
			}
			return nil
		})
	}()
	began := time.Now()
	for i := range 20 {
		w.create(n, fmt.Sprintf("t%d", i))
	}
	w.create(n, "last")
	if d := time.Since(began); d > time.Second {
		t.Errorf("a slow watcher held up 21 topics for %v", d)
	}
	if err := <-done; !errors.Is(err, errStop) {
		t.Error(err)
	}
	for i := range 20 {
		if !seen[fmt.Sprintf("t%d", i)] {
			t.Errorf("topic %d was in no delta", i)
		}
	}
	if len(got) > 4 || full != 1 {
		t.Errorf("%d images, %d full", len(got), full)
	}
	for i := 1; i < len(got); i++ {
		if got[i] <= got[i-1] {
			t.Errorf("images out of order: %v", got)
		}
	}
	if err := n.server.Watch(ctx, func(*metadata.Image, metadata.Delta) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("watch after cancel: %v", err)
	}
}

var errStop = errors.New("stop")
