package metadata

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/metadata/internal/metapb"
)

// A member drives one voter's Raft state machine. Three goroutines share the
// work, joined by queues:
//
//   - the stepper owns the RawNode: it takes ticks, messages and requests, sends
//     messages, and hands out storage work;
//   - the appender makes log entries and hard state durable, in order, and then
//     delivers the answers that waited for it;
//   - the applier applies committed entries, and installs snapshots, in order.
//
// The stepper never waits for the disk, so a slow one delays neither ticks nor
// heartbeats; a watchdog ends the leadership of a stuck one.
type member struct {
	s     *Server
	store *store
	node  *raft.RawNode

	steps   *queue[func()]          // local work for the stepper, never refused
	inbox   *queue[*raftpb.Message] // messages from others, dropped when full
	appends *queue[appendTask]
	applies *queue[applyTask]

	// The stepper's own.
	sentBytes    []byte
	outstanding  []time.Time // when each unfinished append was handed out
	transferred  bool        // the watchdog has tried to hand over this stall
	muted        bool        // the watchdog keeps answers of others from Raft
	campaignIn   int         // ticks until a wanted campaign
	campaignLeft int         // tries of it that remain
	reads        map[string]chan<- struct{}
	readSeq      uint64
	inFlight     map[uint64]pin // snapshots on their way, by receiver
	state        leaderState
}

// A pin keeps the log above a snapshot that is being sent, for a while.
type pin struct {
	index uint64
	until time.Time
}

// An appendTask is one piece of work for the appender: exactly one field is set.
type appendTask struct {
	message  *raftpb.Message // of type MsgStorageAppend
	truncate uint64
	bind     *binding
}

type binding struct {
	peer BrokerID
	dir  ID
}

// An applyTask is one piece of work for the applier: exactly one field is set.
type applyTask struct {
	message *raftpb.Message // of type MsgStorageApply
	install *installTask
}

type installTask struct {
	snapshot snapshot
	conf     *raftpb.ConfState
	hard     *raftpb.HardState
	done     chan error // buffered
}

// A leaderState is what the stepper tells others about Raft.
type leaderState struct {
	term   uint64
	leader BrokerID
	leads  bool
	commit uint64
}

const (
	inboxLimit = 4096

	maxMessageBytes     = 1 << 20
	maxInflightMessages = 128
	maxInflightBytes    = 8 << 20
	maxUncommittedBytes = 64 << 20
	maxApplyBytes       = 8 << 20

	// The watchdog, in election timeouts without an answer from the disk.
	stallHandOver = 6
	stallGiveUp   = 20
)

func newMember(s *Server, st *store, im *Image) (m *member, err error) {
	defer recoverRaft(&err)
	m = &member{s: s, store: st, steps: newQueue[func()](0), inbox: newQueue[*raftpb.Message](inboxLimit),
		appends: newQueue[appendTask](0), applies: newQueue[applyTask](0),
		reads: map[string]chan<- struct{}{}, inFlight: map[uint64]pin{}, state: leaderState{leader: NoBroker}}
	m.node, err = raft.NewRawNode(&raft.Config{
		ID:                        raftID(s.opt.Self),
		ElectionTick:              s.opt.ElectionTicks,
		HeartbeatTick:             s.opt.HeartbeatTicks,
		Storage:                   st,
		Applied:                   im.index,
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             maxMessageBytes,
		MaxCommittedSizePerReady:  maxApplyBytes,
		MaxUncommittedEntriesSize: maxUncommittedBytes,
		MaxInflightMsgs:           maxInflightMessages,
		MaxInflightBytes:          maxInflightBytes,
		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
		Logger:                    raftLogger{s.opt.Logger},
	})
	st.makeSnapshot = m.requestSnapshot
	return m, err
}

// run starts the goroutines.
func (m *member) run() {
	m.s.spawn("metadata-raft", m.step)
	m.s.spawn("metadata-append", m.appendLoop)
	m.s.spawn("metadata-apply", m.applyLoop)
}

// step is the stepper's loop.
func (m *member) step(ctx context.Context) (err error) {
	// Raft panics on broken storage and on broken promises of others. That ends
	// this server, not the process.
	defer recoverRaft(&err)
	ticker := time.NewTicker(m.s.opt.Tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			m.node.Tick()
			m.everyTick()
		case <-m.steps.ready:
		case <-m.inbox.ready:
		}
		for _, f := range m.steps.take() {
			f()
		}
		for _, msg := range m.inbox.take() {
			if m.muted && (msg.GetType() == raftpb.MsgAppResp || msg.GetType() == raftpb.MsgHeartbeatResp) {
				continue
			}
			_ = m.node.Step(msg) // what Raft refuses, it may refuse
		}
		for m.node.HasReady() {
			m.handle(ctx, m.node.Ready())
		}
	}
}

func recoverRaft(err *error) {
	switch v := recover().(type) {
	case nil:
	case raftPanic:
		*err = fmt.Errorf("metadata: raft: %s", string(v))
	case error:
		*err = fmt.Errorf("metadata: raft: %w", v)
	default:
		*err = fmt.Errorf("metadata: raft: %v", v)
	}
}

func (m *member) handle(ctx context.Context, rd raft.Ready) {
	if rd.SoftState != nil || !raft.IsEmptyHardState(rd.HardState) {
		m.announce()
	}
	for _, r := range rd.ReadStates {
		if c, ok := m.reads[string(r.RequestCtx)]; ok {
			delete(m.reads, string(r.RequestCtx))
			c <- struct{}{}
		}
	}
	for _, msg := range rd.Messages {
		switch msg.GetTo() {
		case raft.LocalAppendThread:
			m.outstanding = append(m.outstanding, time.Now())
			m.appends.push(appendTask{message: msg})
		case raft.LocalApplyThread:
			m.applies.push(applyTask{message: msg})
		default:
			m.send(ctx, msg)
		}
	}
}

// announce publishes who leads. The newest state wins, and nobody is waited for.
func (m *member) announce() {
	st := m.node.BasicStatus()
	n := leaderState{term: st.GetTerm(), leader: brokerOf(st.Lead), leads: st.RaftState == raft.StateLeader, commit: st.GetCommit()}
	if n.leader != NoBroker {
		m.campaignLeft = 0
	}
	moved := n.term != m.state.term || n.leader != m.state.leader || n.leads != m.state.leads
	m.state = n
	if moved {
		// A read that was asked of a former leadership proves nothing.
		clear(m.reads)
	}
	m.s.setLeader(n, moved)
}

// send encodes a message at once, since Raft may go on to use what it points to.
func (m *member) send(ctx context.Context, msg *raftpb.Message) {
	to := msg.GetTo()
	if msg.GetType() == raftpb.MsgSnap {
		m.sendSnapshot(ctx, msg)
		return
	}
	body, err := proto.MarshalOptions{}.MarshalAppend(m.sentBytes[:0], msg)
	if err != nil {
		panic(err)
	}
	m.sentBytes = body
	if m.s.opt.Network.Send(brokerOf(to), m.s.seal(messageRaft, body)) != nil {
		m.node.ReportUnreachable(to)
	}
}

// sendSnapshot carries a snapshot apart from the other messages, and reports how
// it went in any case: until then Raft sends that follower nothing.
func (m *member) sendSnapshot(ctx context.Context, msg *raftpb.Message) {
	to := msg.GetTo()
	limit := time.Duration(stallGiveUp*m.s.opt.ElectionTicks) * m.s.opt.Tick
	m.inFlight[to] = pin{index: msg.GetSnapshot().GetMetadata().GetIndex(), until: time.Now().Add(limit)}
	body, err := proto.Marshal(msg)
	if err != nil {
		panic(err)
	}
	m.s.spawn("metadata-snapshot", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		_, err := m.s.ask(ctx, brokerOf(to), &metapb.Request{Ask: &metapb.Request_SnapshotMessage{SnapshotMessage: body}})
		m.steps.push(func() {
			delete(m.inFlight, to)
			if err != nil {
				m.node.ReportSnapshot(to, raft.SnapshotFailure)
			} else {
				m.node.ReportSnapshot(to, raft.SnapshotFinish)
			}
		})
		return nil
	})
}

// requestSnapshot makes a snapshot of the present image, away from the stepper.
// Requires: the store's mutex; called by the stepper only.
func (m *member) requestSnapshot() {
	m.store.makeSnapshot = func() {} // one at a time
	m.s.spawn("metadata-snapshot", func(context.Context) error {
		im := m.s.Image()
		m.store.mu.Lock()
		conf := m.store.conf
		m.store.mu.Unlock()
		data, err := encodeSnapshot(im, conf)
		m.store.mu.Lock()
		defer m.store.mu.Unlock()
		m.store.makeSnapshot = m.requestSnapshot
		if err != nil {
			return err
		}
		m.store.snapshot = &raftpb.Snapshot{Data: data, Metadata: &raftpb.SnapshotMetadata{
			Index: new(im.index), Term: new(im.term), ConfState: proto.CloneOf(conf)}}
		return nil
	})
}

// everyTick does what depends on the passing of time beside Raft's own clock.
func (m *member) everyTick() {
	m.watchDisk()
	if m.campaignLeft == 0 {
		return
	}
	st := m.node.BasicStatus()
	if st.Lead != raft.None {
		m.campaignLeft = 0
		return
	}
	if m.campaignIn > 0 {
		m.campaignIn--
	}
	if m.campaignIn > 0 {
		return
	}
	m.campaignLeft--
	// A candidate has a term of its own already, and votes may be on their way; a
	// pre-candidate has changed nothing and may ask again.
	if st.RaftState != raft.StateCandidate {
		_ = m.node.Campaign()
	}
}

// watchDisk ends the leadership of a voter whose disk does not answer: first by a
// hand-over, then by no longer hearing the others, upon which Raft steps down.
func (m *member) watchDisk() {
	if len(m.outstanding) == 0 {
		m.transferred, m.muted = false, false
		return
	}
	st := m.node.BasicStatus()
	timeout := time.Duration(m.s.opt.ElectionTicks) * m.s.opt.Tick
	age := time.Since(m.outstanding[0])
	if st.RaftState != raft.StateLeader || age < stallHandOver*timeout {
		return
	}
	if !m.transferred {
		m.transferred = true
		var best uint64
		var match uint64
		m.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
			if id != raftID(m.s.opt.Self) && p.RecentActive && p.Match >= match {
				best, match = id, p.Match
			}
		})
		m.s.opt.Logger.Warn("metadata: the disk does not answer, handing over", "seconds", age.Seconds(), "to", brokerOf(best))
		if best != raft.None {
			m.node.TransferLeader(best)
		}
	}
	if age >= stallGiveUp*timeout {
		m.muted = true
	}
}

// campaign stands for election after some ticks, and again until there is a
// leader.
func (m *member) campaign(in int) {
	st := m.node.BasicStatus()
	if st.Lead != raft.None {
		return
	}
	m.campaignIn, m.campaignLeft = in, m.s.opt.ElectionTicks
	if in == 0 && st.RaftState != raft.StateCandidate {
		_ = m.node.Campaign()
	}
}

// forget acts on evidence that a voter is dead: if it led, the others need not
// wait for an election timeout. They stand one after the other, in order of id,
// so that they don't split the vote.
func (m *member) forget(dead BrokerID) {
	if st := m.node.BasicStatus(); st.RaftState == raft.StateLeader || brokerOf(st.Lead) != dead {
		return
	}
	_ = m.node.ForgetLeader()
	rank := 0
	for _, v := range m.s.opt.Voters {
		if v.ID != dead && v.ID < m.s.opt.Self {
			rank++
		}
	}
	m.campaign(2 * rank)
}

// propose appends an entry if this voter leads in that very term: what was decided
// in one term is never proposed in another.
func (m *member) propose(term uint64, data []byte, refused chan<- error) {
	st := m.node.BasicStatus()
	if st.RaftState != raft.StateLeader || st.GetTerm() != term {
		refused <- ErrNotController
		return
	}
	if err := m.node.Propose(data); err != nil {
		refused <- fmt.Errorf("%w: %w", ErrNotController, err)
	}
}

// confirm asks for proof that this voter still leads. proof gets a value if and
// when a quorum has answered; it may never come.
func (m *member) confirm(term uint64, proof chan<- struct{}) {
	st := m.node.BasicStatus()
	if st.RaftState != raft.StateLeader || st.GetTerm() != term {
		return
	}
	// A context is never used twice: answers to an old one must not count.
	m.readSeq++
	key := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, term), m.readSeq)
	m.reads[string(key)] = proof
	m.node.ReadIndex(key)
}

// appendLoop is the appender.
func (m *member) appendLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.appends.ready:
		}
		for _, t := range m.appends.take() {
			var err error
			switch {
			case t.bind != nil:
				err = m.store.bind(t.bind.peer, t.bind.dir)
			case t.truncate != 0:
				err = m.store.truncate(t.truncate)
			default:
				err = m.appendMessage(ctx, t.message)
			}
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return nil
			}
		}
	}
}

func (m *member) appendMessage(ctx context.Context, msg *raftpb.Message) error {
	var hard *raftpb.HardState
	if msg.Term != nil || msg.Vote != nil || msg.Commit != nil {
		hard = &raftpb.HardState{Term: msg.Term, Vote: msg.Vote, Commit: msg.Commit}
	}
	if sn := msg.GetSnapshot(); !raft.IsEmptySnap(sn) {
		decoded, err := decodeSnapshot(sn.GetData(), m.s.opt.Cluster)
		if err != nil {
			return err
		}
		if decoded.index != sn.GetMetadata().GetIndex() || decoded.term != sn.GetMetadata().GetTerm() {
			return &FormatError{What: "snapshot", Err: fmt.Errorf("of index %d, announced as %d", decoded.index, sn.GetMetadata().GetIndex())}
		}
		// The applier does it, after all that it still has to apply.
		t := &installTask{snapshot: decoded, conf: sn.GetMetadata().GetConfState(), hard: hard, done: make(chan error, 1)}
		m.applies.push(applyTask{install: t})
		select {
		case err = <-t.done:
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
	if err := m.store.append(msg.GetEntries(), hard, len(msg.GetResponses()) > 0); err != nil {
		return err
	}
	m.steps.push(func() {
		m.outstanding = m.outstanding[1:]
		m.deliver(ctx, msg.GetResponses())
	})
	return nil
}

// deliver hands on what waited for storage. Requires: the stepper.
func (m *member) deliver(ctx context.Context, responses []*raftpb.Message) {
	for _, r := range responses {
		if r.GetTo() == raftID(m.s.opt.Self) {
			_ = m.node.Step(r)
		} else {
			m.send(ctx, r)
		}
	}
}

// applyLoop is the applier.
func (m *member) applyLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.applies.ready:
		}
		for _, t := range m.applies.take() {
			if ctx.Err() != nil {
				return nil
			}
			if t.install != nil {
				err := m.store.install(t.install.snapshot, t.install.conf, t.install.hard)
				if err == nil {
					m.s.publish(t.install.snapshot.image, nil, true)
				}
				t.install.done <- err
				if err != nil {
					return err
				}
				continue
			}
			if err := m.applyEntries(t.message.GetEntries()); err != nil {
				return err
			}
			m.steps.push(func() {
				m.deliver(ctx, t.message.GetResponses())
				m.maybeTruncate()
			})
		}
	}
}

func (m *member) applyEntries(entries []*raftpb.Entry) error {
	im := m.s.Image().clone()
	var records []record
	var outcomes []applied
	touched := changes{}
	for _, e := range entries {
		if e.GetIndex() <= im.index {
			continue // covered by a snapshot meanwhile
		}
		a, err := applyEntry(im, e.GetIndex(), e.GetTerm(), e.GetType(), e.GetData())
		if err != nil {
			return err
		}
		if a.rejected != nil {
			m.s.opt.Logger.Warn("metadata: entry ignored", "index", e.GetIndex(), "reason", a.rejected)
		}
		outcomes = append(outcomes, a)
		records = append(records, a.records...)
		for _, r := range a.records {
			touched.add(r)
		}
	}
	if err := m.store.apply(im, records); err != nil {
		return err
	}
	m.s.publish(im, touched, false)
	m.s.settle(im.index, outcomes)
	return nil
}

// applyEntry applies one Raft entry. The quorum's membership is fixed, so another
// type of entry comes from a newer version.
func applyEntry(im *Image, index, term uint64, typ raftpb.EntryType, data []byte) (applied, error) {
	if typ != raftpb.EntryNormal {
		return applied{}, &FormatError{What: fmt.Sprintf("log entry %d", index), Err: fmt.Errorf("unknown type %v", typ)}
	}
	return im.apply(index, term, data)
}

// maybeTruncate cuts the log once it has grown to twice what is to be kept, but
// not above a snapshot that is being sent. Requires: the stepper, since Raft may
// look at any entry above the index that it knows to be applied.
func (m *member) maybeTruncate() {
	m.store.mu.Lock()
	grown := m.store.logBytes > 2*m.s.opt.LogBytes
	first, last, tail := m.store.truncated, m.store.last, m.store.logBytes
	m.store.mu.Unlock()
	if !grown || last == first {
		return
	}
	applied := m.node.BasicStatus().Applied
	// Entries are taken as equally large.
	keep := uint64(float64(last-first) * float64(m.s.opt.LogBytes) / float64(tail))
	cut := min(applied, last-min(keep, last))
	for id, p := range m.inFlight {
		if time.Now().After(p.until) {
			delete(m.inFlight, id)
			continue
		}
		cut = min(cut, p.index)
	}
	if cut > first {
		m.appends.push(appendTask{truncate: cut})
	}
}

// raftLogger sends Raft's messages to slog. What Raft tells at level info is
// business as usual.
type raftLogger struct{ l *slog.Logger }

type raftPanic string

func (r raftLogger) log(level slog.Level, text string) {
	r.l.Log(context.Background(), level, "metadata: raft", "message", text)
}
func (r raftLogger) enabled(l slog.Level) bool { return r.l.Enabled(context.Background(), l) }

func (r raftLogger) Debug(v ...any) {
	if r.enabled(slog.LevelDebug) {
		r.log(slog.LevelDebug, fmt.Sprint(v...))
	}
}
func (r raftLogger) Debugf(f string, v ...any) {
	if r.enabled(slog.LevelDebug) {
		r.log(slog.LevelDebug, fmt.Sprintf(f, v...))
	}
}
func (r raftLogger) Info(v ...any)               { r.Debug(v...) }
func (r raftLogger) Infof(f string, v ...any)    { r.Debugf(f, v...) }
func (r raftLogger) Warning(v ...any)            { r.log(slog.LevelInfo, fmt.Sprint(v...)) }
func (r raftLogger) Warningf(f string, v ...any) { r.log(slog.LevelInfo, fmt.Sprintf(f, v...)) }
func (r raftLogger) Error(v ...any)              { r.log(slog.LevelWarn, fmt.Sprint(v...)) }
func (r raftLogger) Errorf(f string, v ...any)   { r.log(slog.LevelWarn, fmt.Sprintf(f, v...)) }
func (r raftLogger) Fatal(v ...any)              { panic(raftPanic(fmt.Sprint(v...))) }
func (r raftLogger) Fatalf(f string, v ...any)   { panic(raftPanic(fmt.Sprintf(f, v...))) }
func (r raftLogger) Panic(v ...any)              { panic(raftPanic(fmt.Sprint(v...))) }
func (r raftLogger) Panicf(f string, v ...any)   { panic(raftPanic(fmt.Sprintf(f, v...))) }
