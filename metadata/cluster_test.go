package metadata_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/metadata"
)

// A world is a cluster in memory: a network with faults, and nodes with disks.
type world struct {
	t       testing.TB
	cluster metadata.ID
	voters  []metadata.Voter
	tune    func(*metadata.Options)

	mu    sync.Mutex
	nodes map[metadata.BrokerID]*node
	cut   map[[2]metadata.BrokerID]bool                              // from, to
	drop  func(from, to metadata.BrokerID, msg *raftpb.Message) bool // one-way messages
	lose  func(from, to metadata.BrokerID) (request, answer bool)    // of calls
	calls int
	sends int

	// What the wire has shown, over all lives of all nodes.
	votes   map[vote]uint64   // candidate that a voter gave a term's vote to
	leaders map[uint64]uint64 // leader by term
}

type vote struct{ voter, term uint64 }

// observe holds a Raft message against the rules of one vote and one leader a
// term. Requires: mu.
func (w *world) observe(m *raftpb.Message) {
	switch m.GetType() {
	case raftpb.MsgVoteResp:
		if !m.GetReject() {
			v := vote{m.GetFrom(), m.GetTerm()}
			if to, ok := w.votes[v]; ok && to != m.GetTo() {
				w.t.Errorf("voter %d votes for %d and %d in term %d", m.GetFrom(), to, m.GetTo(), m.GetTerm())
			}
			w.votes[v] = m.GetTo()
		}
	case raftpb.MsgVote:
		v := vote{m.GetFrom(), m.GetTerm()}
		if to, ok := w.votes[v]; ok && to != m.GetFrom() {
			w.t.Errorf("voter %d votes for %d and stands itself in term %d", m.GetFrom(), to, m.GetTerm())
		}
		w.votes[v] = m.GetFrom()
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
		if l, ok := w.leaders[m.GetTerm()]; ok && l != m.GetFrom() {
			w.t.Errorf("%d and %d lead in term %d", l, m.GetFrom(), m.GetTerm())
		}
		w.leaders[m.GetTerm()] = m.GetFrom()
	}
}

// A node is one machine: its disk outlives its server.
type node struct {
	w      *world
	id     metadata.BrokerID
	dir    metadata.ID
	fs     *logtest.FS
	opt    metadata.Options
	server *metadata.Server

	stop   context.CancelFunc // of the broker
	broker sync.WaitGroup
	inc    metadata.ID
	epoch  metadata.BrokerEpoch
}

func newWorld(t testing.TB, voters int, tune func(*metadata.Options)) *world {
	w := &world{t: t, cluster: metadata.NewID(), tune: tune, nodes: map[metadata.BrokerID]*node{}, cut: map[[2]metadata.BrokerID]bool{},
		votes: map[vote]uint64{}, leaders: map[uint64]uint64{}}
	for i := range voters {
		w.voters = append(w.voters, metadata.Voter{ID: metadata.BrokerID(i + 1), Addr: fmt.Sprintf("node%d", i+1)})
	}
	return w
}

type network struct {
	w    *world
	from metadata.BrokerID
}

var errUnreachable = errors.New("unreachable")

// target returns the server that a message would reach.
func (w *world) target(from, to metadata.BrokerID) (*metadata.Server, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[to]
	if n == nil || n.server == nil || w.cut[[2]metadata.BrokerID{from, to}] {
		return nil, errUnreachable
	}
	return n.server, nil
}

// raftHeader is the size of what stands before a Raft message on the wire.
const raftHeader = 44

func (n network) Send(to metadata.BrokerID, msg []byte) error {
	m := &raftpb.Message{}
	if err := proto.Unmarshal(msg[raftHeader:], m); err != nil {
		n.w.t.Errorf("message from %d: %v", n.from, err)
	}
	n.w.mu.Lock()
	n.w.sends++
	n.w.observe(m)
	drop := n.w.drop
	n.w.mu.Unlock()
	s, err := n.w.target(n.from, to)
	if err != nil {
		return err
	}
	if drop != nil && drop(n.from, to, m) {
		return nil
	}
	s.Step(n.from, msg)
	return nil
}

func (n network) Call(ctx context.Context, to metadata.BrokerID, req []byte) ([]byte, error) {
	n.w.mu.Lock()
	n.w.calls++
	lose := n.w.lose
	n.w.mu.Unlock()
	s, err := n.w.target(n.from, to)
	if err != nil {
		return nil, err
	}
	loseRequest, loseAnswer := false, false
	if lose != nil {
		loseRequest, loseAnswer = lose(n.from, to)
	}
	if loseRequest {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	b, err := s.Handle(ctx, n.from, req)
	if _, err2 := n.w.target(to, n.from); err2 != nil || loseAnswer {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return b, err
}

func (w *world) start(id metadata.BrokerID) *node {
	w.t.Helper()
	w.mu.Lock()
	n := w.nodes[id]
	if n == nil {
		n = &node{w: w, id: id, dir: metadata.NewID(), fs: logtest.NewFS(uint64(id))}
		w.nodes[id] = n
	}
	w.mu.Unlock()
	n.opt = metadata.Options{FS: n.fs, Dir: "meta", Cluster: w.cluster, Self: id, Directory: n.dir, Voters: w.voters,
		Network: network{w, id}, Logger: slog.New(slog.DiscardHandler)}
	if testing.Verbose() && *traceLog {
		n.opt.Logger = slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", id)
	}
	if w.tune != nil {
		w.tune(&n.opt)
	}
	s, err := metadata.Open(context.Background(), n.opt)
	if err != nil {
		w.t.Fatalf("open node %d: %v", id, err)
	}
	w.mu.Lock()
	n.server = s
	w.mu.Unlock()
	return n
}

// startAll starts nodes 1 to count and lets the first one campaign.
func (w *world) startAll(count int) []*node {
	w.t.Helper()
	var ns []*node
	for i := range count {
		ns = append(ns, w.start(metadata.BrokerID(i+1)))
	}
	ns[0].server.Campaign()
	return ns
}

// halt ends a node's server and broker. Its disk stays.
func (n *node) halt() {
	n.stopBroker()
	n.w.mu.Lock()
	s := n.server
	n.server = nil
	n.w.mu.Unlock()
	if s != nil {
		if err := s.Close(); err != nil && s.Err() == nil && !n.fs.Crashed() {
			n.w.t.Errorf("close node %d: %v", n.id, err)
		}
	}
}

// kill is halt with the power gone: what was not synced is lost, and the others
// see refused connections if evidence is true.
func (n *node) kill(evidence bool) {
	n.w.mu.Lock()
	s := n.server
	n.server = nil
	inc := n.inc
	n.w.mu.Unlock()
	n.fs = n.fs.Crash()
	n.stopBroker()
	_ = s.Close()
	if evidence {
		for _, o := range n.w.running() {
			o.server.PeerDead(n.id, inc)
		}
	}
}

func (w *world) running() []*node {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ns []*node
	for id := range metadata.BrokerID(64) {
		if n := w.nodes[id]; n != nil && n.server != nil {
			ns = append(ns, n)
		}
	}
	return ns
}

func (w *world) stop() {
	for _, n := range w.running() {
		n.halt()
	}
}

// isolate cuts a node off, or reconnects it.
func (w *world) isolate(id metadata.BrokerID, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for o := range w.nodes {
		if o != id {
			w.cut[[2]metadata.BrokerID{id, o}] = cut
			w.cut[[2]metadata.BrokerID{o, id}] = cut
		}
	}
}

// startBroker registers the node and sends heartbeats until it is halted.
func (n *node) startBroker(zone string) {
	n.w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	n.w.mu.Lock()
	n.inc = metadata.NewID()
	n.w.mu.Unlock()
	epoch, err := n.server.Register(ctx, metadata.Registration{ID: n.id, Directory: n.dir, Incarnation: n.inc,
		Addr: fmt.Sprintf("node%d", n.id), Zone: zone, HostsReplicas: true})
	if err != nil {
		n.w.t.Fatalf("register %d: %v", n.id, err)
	}
	n.epoch = epoch
	s := n.server
	n.broker.Go(func() {
		tick := time.NewTicker(n.opt.HeartbeatInterval())
		defer tick.Stop()
		for {
			im := s.Image()
			r := metadata.HeartbeatRequest{ID: n.id, Epoch: epoch, AppliedIndex: im.Index()}
			for p := range im.Partitions() {
				if p.HasReplica(n.id) {
					r.Electable = append(r.Electable, p.ID)
				}
			}
			hctx, cancel := context.WithTimeout(ctx, n.opt.Session)
			if n.opt.Session == 0 {
				hctx, cancel = context.WithTimeout(ctx, metadata.DefaultSession)
			}
			_, _ = s.Heartbeat(hctx, r)
			cancel()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
}

func (n *node) stopBroker() {
	if n.stop != nil {
		n.stop()
		n.broker.Wait()
		n.stop = nil
	}
}

func (w *world) waitFor(n *node, what string, ok func(*metadata.Image) bool) *metadata.Image {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	im, err := n.server.WaitFor(ctx, ok)
	if err != nil {
		w.t.Fatalf("node %d waits for %s: %v", n.id, what, err)
	}
	return im
}

func live(n int) func(*metadata.Image) bool {
	return func(im *metadata.Image) bool {
		c := 0
		for b := range im.Brokers() {
			if b.Live() {
				c++
			}
		}
		return c == n
	}
}

func TestThreeVoters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, nil)
		defer w.stop()
		began := time.Now()
		ns := w.startAll(3)
		for _, n := range ns {
			n.startBroker("")
		}
		for _, n := range ns {
			w.waitFor(n, "three live brokers and the system topic", func(im *metadata.Image) bool {
				_, ok := im.TopicByName("", metadata.SystemTopic)
				return ok && live(3)(im)
			})
		}
		t.Logf("ready after %v", time.Since(began))
		if d := time.Since(began); d > 200*time.Millisecond {
			t.Errorf("ready after %v of virtual time", d)
		}
		topic, err := ns[2].server.CreateTopic(t.Context(), metadata.TopicSpec{Name: "orders", Partitions: 6})
		if err != nil {
			t.Fatal(err)
		}
		leaders := map[metadata.BrokerID]int{}
		im := w.waitFor(ns[1], "the topic", func(im *metadata.Image) bool { _, ok := im.Topic(topic.ID); return ok })
		for p := range im.Partitions() {
			leaders[p.Leader]++
		}
		if len(leaders) != 3 {
			t.Errorf("leaders %v", leaders)
		}
		if _, err := ns[0].server.CreateTopic(t.Context(), metadata.TopicSpec{Name: "orders", Partitions: 6}); !errors.Is(err, metadata.ErrTopicExists) {
			t.Errorf("second creation: %v", err)
		}
		// A fourth node observes.
		o := w.start(4)
		w.waitFor(o, "the topic", func(im *metadata.Image) bool { _, ok := im.Topic(topic.ID); return ok })
		b, err := o.server.AllocateProducerIDs(t.Context(), 1, ns[0].epoch)
		if err != nil || b.Count != metadata.DefaultProducerBlock {
			t.Errorf("producer ids %+v, %v", b, err)
		}

		// The controller dies.
		leader, _ := ns[0].server.Controller()
		dead := w.nodes[leader]
		began = time.Now()
		dead.kill(true)
		rest := w.running()
		for _, n := range rest {
			im := w.waitFor(n, "its fencing", live(2))
			for p := range im.Partitions() {
				if p.Leader == leader || p.Leader == metadata.NoBroker {
					t.Errorf("%v is led by %d", p.ID, p.Leader)
				}
			}
		}
		t.Logf("failed over after %v", time.Since(began))
		w.start(leader)
		dead.startBroker("")
		w.waitFor(dead, "all live", live(3))
	})
}
