package metadata

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata/internal/metapb"
)

// A Server is one node's part of the metadata: a voter of the quorum, or an
// observer of it. Its methods are safe for concurrent use.
type Server struct {
	opt    Options
	store  *store  // nil on an observer
	member *member // nil on an observer

	ctx    context.Context // ends with the server
	cancel context.CancelFunc
	work   chan *request // to the controller
	image  atomic.Pointer[Image]

	mu        sync.Mutex
	closed    bool
	err       error
	done      chan struct{}
	tasks     sync.WaitGroup // goroutines and calls; grows only while not closed or failed
	reaper    sync.WaitGroup // the goroutine that closes the store of a server that has failed
	storeOnce sync.Once
	storeErr  error
	published chan struct{} // closed and replaced with each image
	leader    leaderState
	moved     chan struct{} // closed and replaced when the leader changes
	watchers  map[*watcher]struct{}
	pending   *proposal
	active    uint64 // term in which this server is the active controller, or 0
	peers     map[BrokerID]ID
	deaths    map[deathRequest]bool // evidence on its way to the controller
}

// Open starts a server. A voter, one whose id is among the voters, recovers what
// it has on disk or starts with nothing; another node becomes an observer, which
// pulls the committed log, or a snapshot, from any voter, and keeps it in memory.
//
// Open returns before a controller is known and, on an observer, before there is
// an image; see [Server.WaitFor]. It returns [ErrIdentity] if the folder is
// another node's, log.ErrLocked if it is in use, a [*FormatError] if it is of a
// newer version or damaged, and a [*StorageError] if the disk fails. ctx bounds
// only the opening.
//
// Source: Raft by etcd-raft; seeding a fixed configuration instead of proposing it
// follows that library's advice.
func Open(ctx context.Context, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Server{opt: o, work: make(chan *request, 1024), done: make(chan struct{}), published: make(chan struct{}),
		moved: make(chan struct{}), watchers: map[*watcher]struct{}{}, peers: map[BrokerID]ID{}, deaths: map[deathRequest]bool{},
		leader: leaderState{leader: NoBroker}}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if !o.voter() {
		s.image.Store(newImage(o.Cluster))
		s.spawn("metadata-observe", s.observe)
		return s, nil
	}
	st, im, err := openStore(o)
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.store, s.peers = st, st.peers
	hook := s.fail
	st.failedHook.Store(&hook)
	s.image.Store(im)
	if s.member, err = newMember(s, st, im); err != nil {
		s.cancel()
		return nil, errors.Join(err, st.close())
	}
	s.member.run()
	s.spawn("metadata-controller", s.leadLoop)
	return s, nil
}

// spawn runs f in a goroutine that Close waits for. An error of f ends the
// server.
func (s *Server) spawn(label string, f func(context.Context) error) {
	if !s.enter() {
		return
	}
	go func() {
		defer s.tasks.Done()
		pprof.Do(s.ctx, pprof.Labels("cordwood", label), func(ctx context.Context) {
			if err := f(ctx); err != nil {
				s.fail(err)
			}
		})
	}()
}

// enter admits a call or goroutine, unless the server is closed or has failed.
// The caller must call tasks.Done if it returns true.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return false
	}
	s.tasks.Add(1)
	return true
}

// fail ends the server by itself. It doesn't wait.
func (s *Server) fail(err error) {
	s.mu.Lock()
	first := s.err == nil && !s.closed
	if first {
		s.err = err
		close(s.done)
		// Pebble must not go on for itself until somebody calls Close. Started under
		// the mutex, so that Close finds it.
		s.reaper.Go(func() { _ = s.closeStore() })
	}
	s.mu.Unlock()
	s.cancel()
	if first {
		s.opt.Logger.Error("metadata: server has ended", "error", err)
	}
}

// closeStore closes the store once nobody uses it.
func (s *Server) closeStore() error {
	s.tasks.Wait()
	s.storeOnce.Do(func() {
		if s.store != nil {
			s.storeErr = s.store.close()
		}
	})
	return s.storeErr
}

// Close ends the server and frees its folder. It does not hand over leadership.
// Calls that wait return [ErrClosed]. Close is idempotent; it returns what closing
// the store has returned.
func (s *Server) Close() error {
	s.mu.Lock()
	if !s.closed && s.err == nil {
		close(s.done)
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	err := s.closeStore()
	s.reaper.Wait()
	return err
}

// Done is closed when the server has ended, by [Server.Close] or by itself.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why the server has ended by itself, or nil. It still has to be
// closed.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// ended returns the error of calls that the end of the server cut off.
func (s *Server) ended() error {
	if err := s.Err(); err != nil {
		return fmt.Errorf("metadata: server has ended: %w", err)
	}
	return ErrClosed
}

// Campaign makes a voter stand for election as soon as it can, and again each
// tick for an election timeout, unless there is a leader. The node that founds a
// cluster calls it, so that the first leader does not take a timeout. On an
// observer it does nothing.
func (s *Server) Campaign() {
	if s.member != nil {
		s.member.steps.push(func() { s.member.campaign(0) })
	}
}

// PeerDead reports evidence that a process has died: its connection has ended and
// a dial was refused. Voters forget it as leader and elect another at once; the
// controller, wherever it is, fences the broker if its registered incarnation is
// the one meant (the zero ID means whichever is registered). It does not block.
//
// Evidence that is wrong costs availability alone: a fenced broker that is alive
// comes back with its next heartbeat.
func (s *Server) PeerDead(id BrokerID, incarnation ID) {
	if s.member != nil {
		s.member.steps.push(func() { s.member.forget(id) })
	} else {
		s.mu.Lock()
		gone := s.leader.leader == id
		s.mu.Unlock()
		if gone {
			s.setLeader(leaderState{leader: NoBroker}, true)
		}
	}
	r := deathRequest{id: id, incarnation: incarnation}
	s.mu.Lock()
	busy := s.deaths[r] || len(s.deaths) >= 64
	if !busy {
		s.deaths[r] = true
	}
	s.mu.Unlock()
	if busy {
		return
	}
	s.spawn("metadata-death", func(ctx context.Context) error {
		// After this long, the session has ended anyway.
		ctx, cancel := context.WithTimeout(ctx, 2*s.opt.Session)
		defer cancel()
		_, _ = s.call(ctx, "report a death", s.opt.Session, r)
		s.mu.Lock()
		delete(s.deaths, r)
		s.mu.Unlock()
		return nil
	})
}

// Controller returns who is the controller as far as is known here. It may have
// been replaced meanwhile.
func (s *Server) Controller() (BrokerID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader.leader, s.leader.leader != NoBroker
}

// Status describes the server at present.
func (s *Server) Status() Status {
	im := s.Image()
	s.mu.Lock()
	st := Status{Self: s.opt.Self, Voter: s.member != nil, Leader: s.leader.leader, Term: s.leader.term, Committed: s.leader.commit,
		Controller: s.active != 0, Applied: im.index, StateHash: im.StateHash()}
	s.mu.Unlock()
	if s.store != nil {
		s.store.mu.Lock()
		st.First, st.LogBytes = s.store.truncated+1, s.store.logBytes
		s.store.mu.Unlock()
	} else {
		st.Term = im.term
	}
	return st
}

// setLeader takes over what the stepper or the observer has learnt.
func (s *Server) setLeader(n leaderState, moved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leader = n
	if moved {
		close(s.moved)
		s.moved = make(chan struct{})
	}
}

// leaderNow returns the state and a channel that is closed when it changes.
func (s *Server) leaderNow() (leaderState, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader, s.moved
}

// imageNow returns the image and a channel that is closed when it changes.
func (s *Server) imageNow() (*Image, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.image.Load(), s.published
}

// Step takes a message that another server gave to [Network.Send]. It never
// blocks; messages that are malformed, of another cluster, or too many are
// dropped. msg must not be changed afterwards.
func (s *Server) Step(from BrokerID, msg []byte) {
	if s.member == nil || s.ctx.Err() != nil {
		return
	}
	m, err := openMessage(msg, from, s.opt.Cluster)
	if err == nil && m.kind != messageRaft {
		err = &FormatError{What: "message", Err: fmt.Errorf("unexpected kind %d", m.kind)}
	}
	if err == nil {
		err = s.stepRaft(m, m.body)
	}
	if err != nil {
		s.opt.Logger.Warn("metadata: message refused", "from", from, "error", err)
	}
}

// stepRaft hands a voter's message to Raft.
func (s *Server) stepRaft(m message, body []byte) error {
	if err := s.checkVoter(m); err != nil {
		return err
	}
	msg := &raftpb.Message{}
	if err := proto.Unmarshal(body, msg); err != nil {
		return &FormatError{What: "raft message", Err: err}
	}
	if msg.GetFrom() != raftID(m.from) || msg.GetTo() != raftID(s.opt.Self) || raft.IsLocalMsg(msg.GetType()) ||
		msg.GetType() == raftpb.MsgProp || msg.GetType() == raftpb.MsgReadIndex || msg.GetType() == raftpb.MsgReadIndexResp {
		return &FormatError{What: "raft message", Err: fmt.Errorf("type %v from %d to %d", msg.GetType(), msg.GetFrom(), msg.GetTo())}
	}
	s.member.inbox.push(msg) // lost if full, as on any network
	return nil
}

// checkVoter refuses a voter that is not known, or known with another directory:
// a voter that has lost its disk has lost its promises, too, and counting its
// votes could elect two leaders.
func (s *Server) checkVoter(m message) error {
	known := false
	for _, v := range s.opt.Voters {
		known = known || v.ID == m.from && v.ID != s.opt.Self
	}
	if !known || m.dir.IsZero() {
		return fmt.Errorf("broker %d is no voter", m.from)
	}
	s.mu.Lock()
	dir, ok := s.peers[m.from]
	if !ok {
		s.peers[m.from] = m.dir
		s.member.appends.push(appendTask{bind: &binding{peer: m.from, dir: m.dir}})
	}
	s.mu.Unlock()
	if b, registered := s.Image().Broker(m.from); registered && b.Directory != m.dir {
		dir, ok = b.Directory, true
	}
	if ok && dir != m.dir {
		return fmt.Errorf("%w: voter %d has directory %v, it was %v: a voter whose disk is replaced needs a new broker id", ErrIdentity, m.from, m.dir, dir)
	}
	return nil
}

// Handle answers a request that another server gave to [Network.Call]. It blocks
// until there is an answer or ctx ends. An error is for the transport to report;
// refusals of the request travel inside the answer.
func (s *Server) Handle(ctx context.Context, from BrokerID, req []byte) ([]byte, error) {
	if !s.enter() {
		return nil, s.ended()
	}
	defer s.tasks.Done()
	m, err := openMessage(req, from, s.opt.Cluster)
	if err != nil {
		return nil, err
	}
	var ask metapb.Request
	if m.kind != messageRequest {
		return nil, &FormatError{What: "request", Err: fmt.Errorf("unexpected kind %d", m.kind)}
	}
	if err := proto.Unmarshal(m.body, &ask); err != nil {
		return nil, &FormatError{What: "request", Err: err}
	}
	reply, err := s.answer(ctx, m, &ask)
	if err != nil {
		return nil, err
	}
	return s.seal(messageReply, marshalMessage(reply)), nil
}

func (s *Server) answer(ctx context.Context, m message, ask *metapb.Request) (*metapb.Reply, error) {
	if s.member == nil {
		return errorToReply(ErrNotController), nil
	}
	switch a := ask.GetAsk().(type) {
	case *metapb.Request_Pull:
		return s.pulled(ctx, a.Pull)
	case *metapb.Request_SnapshotMessage:
		msg := &raftpb.Message{}
		if err := proto.Unmarshal(a.SnapshotMessage, msg); err != nil || msg.GetType() != raftpb.MsgSnap {
			return nil, &FormatError{What: "snapshot message", Err: errors.Join(err, fmt.Errorf("type %v", msg.GetType()))}
		}
		// Checked here, where the sender learns of it, and not only in the appender,
		// where it would end this server.
		if _, err := decodeSnapshot(msg.GetSnapshot().GetData(), s.opt.Cluster); err != nil {
			return nil, err
		}
		return &metapb.Reply{}, s.stepRaft(m, a.SnapshotMessage)
	}
	req, err := requestFromProto(ask)
	if err != nil {
		return errorToReply(fmt.Errorf("%w: %w", ErrInvalidRequest, err)), nil
	}
	if req == nil {
		return nil, &FormatError{What: "request", Err: errors.New("unknown kind: it is from a newer version")}
	}
	res, err := s.submit(ctx, req)
	if err != nil {
		reply := errorToReply(err)
		if st, _ := s.leaderNow(); st.leader != s.opt.Self {
			reply.Leader = int32(st.leader) + 1
		}
		return reply, nil
	}
	return resultToProto(res), nil
}

// pulled answers an observer with what it does not have yet. If there is nothing,
// it waits for a while.
func (s *Server) pulled(ctx context.Context, p *metapb.Pull) (*metapb.Reply, error) {
	st, moved := s.leaderNow()
	im, published := s.imageNow()
	if im.index <= p.GetIndex() {
		wait := time.NewTimer(min(max(time.Duration(p.GetWaitNs()), 0), s.opt.Session))
		defer wait.Stop()
		for im.index <= p.GetIndex() {
			select {
			case <-published:
				im, published = s.imageNow()
				continue
			case <-moved:
			case <-wait.C:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-s.ctx.Done():
				return nil, s.ended()
			}
			break
		}
		st, _ = s.leaderNow()
	}
	out := &metapb.Pulled{Applied: im.index, Leader: int32(st.leader) + 1}
	if im.index <= p.GetIndex() {
		return &metapb.Reply{Pulled: out}, nil
	}
	entries, err := s.store.Entries(p.GetIndex()+1, im.index+1, maxMessageBytes)
	if err == nil {
		for _, e := range entries {
			out.Entries = append(out.Entries, &metapb.LogEntry{Index: e.GetIndex(), Term: e.GetTerm(), Data: e.GetData(), Type: uint32(e.GetType())})
		}
		return &metapb.Reply{Pulled: out}, nil
	}
	if !errors.Is(err, raft.ErrCompacted) {
		return nil, err
	}
	s.store.mu.Lock()
	conf := s.store.conf
	s.store.mu.Unlock()
	out.Snapshot, err = snapshotToProto(im, conf)
	return &metapb.Reply{Pulled: out}, err
}

// Register announces this or another process to the controller and returns its
// broker epoch, once this server's image has the registration. The broker is
// fenced until its next heartbeat: send one at once.
//
// It returns [ErrInUse] while a process with another directory has a live session
// under the same id, [ErrIdentity] if a voter has another directory than before,
// [ErrInvalidRequest], or, when ctx ends, an error that leaves
// the outcome open; a retry with the same incarnation gives the same epoch.
//
// Source: KIP-631, KIP-903.
func (s *Server) Register(ctx context.Context, r Registration) (BrokerEpoch, error) {
	if err := checkRegistration(r); err != nil {
		return 0, err
	}
	res, err := s.call(ctx, "register", s.opt.Session, r)
	if err != nil {
		return 0, err
	}
	epoch := res.(BrokerEpoch)
	_, err = s.WaitFor(ctx, func(im *Image) bool {
		b, ok := im.Broker(r.ID)
		return ok && b.Epoch >= epoch
	})
	return epoch, err
}

// Heartbeat keeps a broker's session alive, see [Options.HeartbeatInterval], and
// reports its state. A time-out of it means nothing: the next one follows.
//
// It returns [ErrStale] if another process has registered under the id, and
// [ErrUnknownBroker].
//
// Source: KIP-631.
func (s *Server) Heartbeat(ctx context.Context, r HeartbeatRequest) (HeartbeatReply, error) {
	res, err := s.call(ctx, "heartbeat", max(s.opt.Session/3, time.Millisecond), r)
	if err != nil {
		return HeartbeatReply{}, err
	}
	return res.(HeartbeatReply), nil
}

// CreateTopic creates a topic, with its partitions and their first leaders, and
// returns it once it is committed; this server's image may have it a little later.
//
// It returns [ErrTopicExists], [ErrNotEnoughBrokers], [ErrInvalidRequest], or, when
// ctx ends, an error that leaves the outcome open.
func (s *Server) CreateTopic(ctx context.Context, t TopicSpec) (Topic, error) {
	if err := checkSpec(t); err != nil {
		return Topic{}, err
	}
	res, err := s.call(ctx, "create topic", s.opt.Session, createRequest{id: newTopicID(), spec: t})
	if err != nil {
		return Topic{}, err
	}
	return res.(Topic), nil
}

// DeleteTopic deletes a topic, for good, and returns once that is committed; this
// server's image may have it a little later. From then on the topic has no leaders,
// brokers remove their replicas, and the name is free for another topic. A topic that
// was deleted before is no error.
//
// It returns [ErrUnknownTopic], [ErrInvalidRequest] for an internal topic, or, when
// ctx ends, an error that leaves the outcome open.
func (s *Server) DeleteTopic(ctx context.Context, id log.TopicID) error {
	_, err := s.call(ctx, "delete topic", s.opt.Session, deleteRequest{id: id})
	return err
}

func newTopicID() log.TopicID { return log.TopicID(NewID()) }

// AlterISR changes the in-sync set of a partition on behalf of its leader, and
// returns the new record. The leader must count the union of the old and the
// proposed set until it has an answer or a newer record.
//
// It returns [ErrStale] or [ErrIneligible] for a definite refusal,
// [ErrUnknownPartition], [ErrInvalidRequest], or, when ctx ends, an error that
// leaves the outcome open. Repeating a change that was made succeeds.
//
// Source: KIP-497, KIP-841, KIP-903.
func (s *Server) AlterISR(ctx context.Context, c ISRChange) (Partition, error) {
	res, err := s.call(ctx, "alter the in-sync set", s.opt.Session, c)
	if err != nil {
		return Partition{}, err
	}
	return res.(Partition), nil
}

// AllocateProducerIDs hands out a range of producer ids that nobody has had, to a
// registered process. It returns [ErrStale] if that has been replaced.
//
// Source: KIP-730.
func (s *Server) AllocateProducerIDs(ctx context.Context, id BrokerID, epoch BrokerEpoch) (ProducerBlock, error) {
	res, err := s.call(ctx, "allocate producer ids", s.opt.Session, producersRequest{id: id, epoch: epoch})
	if err != nil {
		return ProducerBlock{}, err
	}
	return res.(ProducerBlock), nil
}

// Sync waits until this server's image has all that was committed when the call
// began: what any server was told to be done, this one then knows. It asks the
// controller, who proves to a quorum that it still is the controller.
//
// It returns [ErrClosed], or an error that wraps the context's cause.
//
// Source: ReadIndex, section 6.4 of the Raft thesis.
func (s *Server) Sync(ctx context.Context) error {
	res, err := s.call(ctx, "sync", s.opt.Session, syncRequest{})
	if err != nil {
		return err
	}
	_, err = s.WaitFor(ctx, func(im *Image) bool { return im.index >= uint64(res.(syncIndex)) })
	return err
}
