package metadata_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cordwood-io/cordwood/metadata"
)

// Bugs of others, as scenarios in a cluster. The package's other TestCase has those
// of decisions and store.
func TestCase(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"NATS-7955": caseEarlierTerm, "NATS-7956": caseTwoVotes, "NATS-7632": caseTwoQuorums, "NATS-7564": casePowerCut,
		"ETCD-20418": ruleStaleVerdict, "ETCD-13527": ruleStall,
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// Every case of the reference is tested, or the list says why it does not occur
// here.
func TestCaseList(t *testing.T) {
	checkList(t, "testdata/cases.txt", []string{"case_test.go", "case_store_test.go"}, nil)
}

// Acknowledgements of entries of an earlier term were counted. A new controller is
// active only once an entry of its own term is applied, and an entry that its
// predecessor could not commit is on all servers or on none.
func caseEarlierTerm(t *testing.T) {
	w, _ := cluster(t, 3, nil)
	defer w.stop()
	// Elected, but unable to commit: it leads, and is no controller yet.
	w.mu.Lock()
	w.drop = func(_, _ metadata.BrokerID, m *raftpb.Message) bool { return m.GetType() == raftpb.MsgAppResp }
	w.mu.Unlock()
	w.controller().kill(true)
	leads := 0
	for range 100 {
		time.Sleep(20 * time.Millisecond)
		for _, n := range w.running() {
			st := n.server.Status()
			if st.Leader == n.id {
				leads++
			}
			if st.Controller {
				t.Fatal("active before an entry of its own term is applied")
			}
		}
	}
	if leads == 0 {
		t.Error("nobody was elected")
	}
	w.mu.Lock()
	w.drop = nil
	w.mu.Unlock()
	for id := metadata.BrokerID(1); id <= 3; id++ {
		if n := w.nodes[id]; n.server == nil {
			w.start(id)
			n.startBroker("")
		}
		w.waitFor(w.nodes[id], "live brokers", live(3))
	}
	for i := range 5 {
		lead := w.controller()
		w.isolate(lead.id, true)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := lead.server.CreateTopic(ctx, metadata.TopicSpec{Name: fmt.Sprintf("lost%d", i), Partitions: 1, Replication: 1})
		cancel()
		if err == nil {
			t.Fatal("committed without a quorum")
		}
		w.create(w.others(lead)[0], fmt.Sprintf("kept%d", i))
		w.isolate(lead.id, false)
		w.waitFor(lead, "the others' topic", func(im *metadata.Image) bool {
			_, ok := im.TopicByName("", fmt.Sprintf("kept%d", i))
			return ok
		})
		for _, n := range w.running() {
			if _, ok := n.server.Image().TopicByName("", fmt.Sprintf("lost%d", i)); ok {
				t.Errorf("node %d has a topic that no quorum had", n.id)
			}
		}
		w.sameState()
	}
}

// A vote was forgotten in a crash, and given again in the same term. The wire is
// watched while voters lose their power in the middle of elections.
func caseTwoVotes(t *testing.T) {
	w, ns := cluster(t, 3, nil)
	defer w.stop()
	for i := range 12 {
		lead := w.controller()
		victim := w.others(lead)[i%2]
		lead.kill(true) // the others campaign at once
		victim.kill(false)
		w.start(victim.id).server.Campaign()
		w.start(lead.id).server.Campaign()
		lead.startBroker("")
		victim.startBroker("")
		w.waitFor(ns[i%3], "live brokers", live(3))
		w.create(ns[i%3], fmt.Sprintf("t%d", i))
	}
	w.sameState()
}

// Peers counted before the configuration said so, and two majorities were disjoint. A
// voter's quorum is the one in its store, not the one in its options.
func caseTwoQuorums(t *testing.T) {
	w, ns := cluster(t, 3, nil)
	defer w.stop()
	n := ns[1]
	n.halt()
	o := n.opt
	o.Voters = []metadata.Voter{{ID: 2}}
	if s, err := metadata.Open(t.Context(), o); !errors.Is(err, metadata.ErrIdentity) {
		if s != nil {
			s.Close()
		}
		t.Errorf("a voter of three alone: %v", err)
	}
	w.start(2)
	w.create(n, "t")
}

// One power cut everywhere lost what was acknowledged, for good.
func casePowerCut(t *testing.T) {
	w, ns := cluster(t, 3, nil)
	defer w.stop()
	for i := range 8 {
		w.create(ns[i%3], fmt.Sprintf("t%d", i))
		for _, n := range ns {
			n.kill(false)
		}
		for _, n := range ns {
			w.start(n.id)
		}
		for _, n := range ns {
			n.startBroker("")
		}
		for _, n := range ns {
			im := w.waitFor(n, "live brokers", live(3))
			for k := range i + 1 {
				if _, ok := im.TopicByName("", fmt.Sprintf("t%d", k)); !ok {
					t.Fatalf("node %d: topic %d is lost after power cut %d", n.id, k, i)
				}
			}
		}
	}
	w.sameState()
}
