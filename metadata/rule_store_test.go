package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// Rules of embedding etcd-raft that concern the store and the applying of
// entries. rule_test.go has those that need a cluster.
func TestRule(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"R02": ruleOrder, "R03": ruleOverwrite, "R04": ruleCommit, "R05": ruleApplied, "R06": ruleAhead, "R12": ruleSeed,
		"R13": ruleConfState, "R15": ruleValidate, "R18": ruleConfChange, "R25": ruleTerm, "R28": ruleSnapshotLater, "R29": ruleInstall,
		"R30": rulePin,
	} {
		t.Run(name, test)
	}
}

func testOptions(fs log.FS) Options {
	return Options{FS: fs, Dir: "meta", Cluster: ID{1}, Self: 1, Directory: ID{2}, Voters: []Voter{{ID: 1}, {ID: 2}, {ID: 3}},
		Logger: slog.New(slog.DiscardHandler), Network: noNetwork{}}
}

type noNetwork struct{}

func (noNetwork) Send(BrokerID, []byte) error { return errors.New("no network") }
func (noNetwork) Call(context.Context, BrokerID, []byte) ([]byte, error) {
	return nil, errors.New("no network")
}

func testEntries(from, to, term uint64) []*raftpb.Entry {
	var es []*raftpb.Entry
	for i := from; i <= to; i++ {
		es = append(es, &raftpb.Entry{Index: new(i), Term: new(term), Data: fmt.Appendf(nil, "entry %d of term %d", i, term)})
	}
	return es
}

func hardState(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: new(term), Vote: new(vote), Commit: new(commit)}
}

// mustOpenStore opens a store that is closed with the test.
func mustOpenStore(t testing.TB, fs log.FS) (*store, *Image) {
	t.Helper()
	s, im, err := openStore(testOptions(fs))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s, im
}

// terms returns the term of each entry of a store, from index 2 on.
func terms(t testing.TB, s *store) []uint64 {
	t.Helper()
	last, _ := s.LastIndex()
	var ts []uint64
	for i := s.truncated + 1; i <= last; i++ {
		es, err := s.Entries(i, i+1, 1<<20)
		if err != nil || len(es) != 1 || es[0].GetIndex() != i || string(es[0].GetData()) != fmt.Sprintf("entry %d of term %d", i, es[0].GetTerm()) {
			t.Fatalf("entry %d: %v, %v", i, es, err)
		}
		term, err := s.Term(i)
		if err != nil || term != es[0].GetTerm() {
			t.Fatalf("term of %d: %d, %v", i, term, err)
		}
		ts = append(ts, term)
	}
	return ts
}

// R2: entries and hard state become durable together, before anything that rests
// on them leaves: no vote and no entry that was answered for is ever missing.
func ruleOrder(t *testing.T) {
	logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
		var term, vote, last uint64
		s, _, err := openStore(testOptions(fs))
		if err == nil {
			for i := uint64(2); i < 12 && err == nil; i++ {
				es := testEntries(i, i, i)
				if i%3 == 0 {
					es = nil // a vote alone
				}
				if i%3 == 1 {
					es = testEntries(last+1, last+2, i)
				}
				if len(es) > 0 && es[0].GetIndex() != last+1 {
					es = testEntries(max(last, 1)+1, max(last, 1)+1, i)
				}
				if err = s.append(es, hardState(i, i%3+1, 1), true); err == nil {
					term, vote = i, i%3+1
					if len(es) > 0 {
						last = es[len(es)-1].GetIndex()
					}
				}
			}
			_ = s.close()
		}
		return func(after *logtest.FS) {
			s, _ := mustOpenStore(t, after)
			defer s.close()
			h, _, _ := s.InitialState()
			if h.GetTerm() < term || h.GetTerm() == term && term > 0 && h.GetVote() != vote {
				t.Errorf("term %d, vote %d; answered for %d, %d", h.GetTerm(), h.GetVote(), term, vote)
			}
			if got, _ := s.LastIndex(); got < last {
				t.Errorf("last index %d, answered for %d", got, last)
			}
			terms(t, s)
		}
	})
}

// R3: writing at an index drops what is there and behind it; after a crash there is
// the old tail or the new one, never a mixture.
func ruleOverwrite(t *testing.T) {
	logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
		stage := 0
		s, _, err := openStore(testOptions(fs))
		if err == nil {
			if err = s.append(testEntries(2, 9, 1), nil, true); err == nil {
				stage = 1
				if err = s.append(testEntries(5, 6, 2), nil, true); err == nil {
					stage = 2
					if got := fmt.Sprint(terms(t, s)); got != "[1 1 1 2 2]" {
						t.Errorf("terms %s", got)
					}
				}
			}
			_ = s.close()
		}
		return func(after *logtest.FS) {
			s, _ := mustOpenStore(t, after)
			defer s.close()
			got := fmt.Sprint(terms(t, s))
			old, new := "[1 1 1 1 1 1 1 1]", "[1 1 1 2 2]"
			if !(got == new || stage < 2 && got == old || stage < 1 && got == "[]") {
				t.Errorf("stage %d: terms %s", stage, got)
			}
		}
	})
}

// R4: the stored commit index may lag behind the applied one; it is raised at the
// start, where Raft would panic otherwise.
func ruleCommit(t *testing.T) {
	fs := logtest.NewFS(1)
	s, im := mustOpenStore(t, fs)
	if err := s.append(testEntries(2, 4, 1), hardState(1, 0, 1), true); err != nil {
		t.Fatal(err)
	}
	next := im.clone()
	next.index, next.term = 4, 1
	if err := s.apply(next, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	s, im = mustOpenStore(t, fs)
	defer s.close()
	if h, _, _ := s.InitialState(); h.GetCommit() != 4 || im.index != 4 {
		t.Errorf("commit %d, applied %d", h.GetCommit(), im.index)
	}
	o, _ := testOptions(fs).withDefaults()
	if _, err := newMember(&Server{opt: o}, s, im); err != nil {
		t.Error(err)
	}
}

// R5: the applied index and the change are one write: the state hash, which is
// recomputed from the records and compared at each opening, fits after any crash.
func ruleApplied(t *testing.T) {
	logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
		hashes := map[uint64]string{}
		var synced uint64
		s, im, err := openStore(testOptions(fs))
		if err == nil {
			hashes[im.index] = im.StateHash()
			for i := uint64(2); i < 8 && err == nil; i++ {
				r := brokerRecord(Broker{ID: BrokerID(i % 3), Epoch: BrokerEpoch(i), Addr: fmt.Sprint(i)})
				data, _ := encodeEntry(1, i, []record{r})
				if err = s.append([]*raftpb.Entry{{Index: new(i), Term: proto.Uint64(1), Data: data}}, nil, true); err != nil {
					break
				}
				synced = i - 1 // the apply before went through the same log
				im = im.clone()
				a, aerr := im.apply(i, 1, data)
				if aerr != nil || a.rejected != nil {
					t.Fatal(aerr, a.rejected)
				}
				hashes[i] = im.StateHash()
				err = s.apply(im, a.records)
			}
			_ = s.close()
		}
		return func(after *logtest.FS) {
			s, im := mustOpenStore(t, after)
			defer s.close()
			if h, ok := hashes[im.index]; ok && h != im.StateHash() || im.index < synced {
				t.Errorf("index %d (%d was synced) with state %s, want %s", im.index, synced, im.StateHash(), h)
			}
		}
	})
}

// R6: a state that is ahead of the log does not occur, and is not started from.
func ruleAhead(t *testing.T) {
	fs := logtest.NewFS(1)
	s, im := mustOpenStore(t, fs)
	next := im.clone()
	next.index, next.term = 9, 1
	if err := s.apply(next, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openStore(testOptions(fs)); !isFormatError(err) {
		t.Errorf("open: %v", err)
	}
}

func isFormatError(err error) bool {
	_, ok := errors.AsType[*FormatError](err)
	return ok
}

// R12: all voters start from the same configuration at an index above zero, and a
// restart does not seed again.
func ruleSeed(t *testing.T) {
	var seeds []string
	for id := range BrokerID(3) {
		fs := logtest.NewFS(1)
		o := testOptions(fs)
		o.Self, o.Directory = id+1, NewID()
		for life := range 2 {
			s, im, err := openStore(o)
			if err != nil {
				t.Fatal(err)
			}
			h, c, _ := s.InitialState()
			first, _ := s.FirstIndex()
			last, _ := s.LastIndex()
			seeds = append(seeds, fmt.Sprint(c.GetVoters(), h.GetTerm(), first, im.index, im.term, im.StateHash()))
			if first != 2 || last != uint64(1+life) {
				t.Errorf("log from %d to %d", first, last)
			}
			if err := s.append(testEntries(2, 2, 1), nil, true); err != nil {
				t.Fatal(err)
			}
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, s := range seeds {
		if s != seeds[0] {
			t.Errorf("seeds differ: %q", seeds)
		}
	}
}

// testSnapshot is a state that some entries made.
func testSnapshot(t testing.TB, index uint64) (snapshot, *raftpb.ConfState) {
	t.Helper()
	im := newImage(ID{1})
	for i := range 5 {
		im.put(brokerRecord(Broker{ID: BrokerID(i), Epoch: BrokerEpoch(i + 1)}))
	}
	im.index, im.term = index, 3
	conf := &raftpb.ConfState{Voters: []uint64{2, 3, 4}}
	b, err := encodeSnapshot(im, conf)
	if err != nil {
		t.Fatal(err)
	}
	sn, err := decodeSnapshot(b, ID{1})
	if err != nil {
		t.Fatal(err)
	}
	return sn, conf
}

// R13: the configuration comes from the store, where a snapshot puts it with the
// state that it belongs to.
func ruleConfState(t *testing.T) {
	fs := logtest.NewFS(1)
	s, _ := mustOpenStore(t, fs)
	sn, conf := testSnapshot(t, 50)
	if err := s.install(sn, conf, hardState(3, 0, 50)); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	s, im := mustOpenStore(t, fs)
	defer s.close()
	_, c, _ := s.InitialState()
	if fmt.Sprint(c.GetVoters()) != "[2 3 4]" || im.index != 50 || im.StateHash() != sn.image.StateHash() {
		t.Errorf("voters %v, index %d", c.GetVoters(), im.index)
	}
}

// R15: what may not be applied is found out in apply, by the state alone, and an
// entry counts as a whole or not at all.
func ruleValidate(t *testing.T) {
	b := newBench(t)
	b.up(1, 2, 3)
	tp := b.create(TopicSpec{Name: "t", Partitions: 1, Replication: 3})
	p := b.part(tp, 0)
	br, _ := b.im.Broker(3)
	good := brokerRecord(Broker{ID: 9, Epoch: 99})
	edit := func(f func(*Partition)) record {
		q := p
		q.PartitionEpoch++
		f(&q)
		return partitionRecord(q)
	}
	bad := map[string]record{
		"partition epoch skips":         edit(func(q *Partition) { q.PartitionEpoch++ }),
		"partition epoch stands":        edit(func(q *Partition) { q.PartitionEpoch-- }),
		"leader changes in one epoch":   edit(func(q *Partition) { q.Leader, q.LeaderBrokerEpoch = q.ISR[1].ID, q.ISR[1].Epoch }),
		"leader epoch falls":            edit(func(q *Partition) { q.LeaderEpoch-- }),
		"leader is not in sync":         edit(func(q *Partition) { q.ISR = q.ISR[1:] }),
		"in-sync set has a stranger":    edit(func(q *Partition) { q.ISR = append(q.ISR[:3:3], Member{7, 1}) }),
		"eligible beside a full set":    edit(func(q *Partition) { q.ISR = q.ISR[:2]; q.ELR = []BrokerID{3} }),
		"eligible and in sync":          edit(func(q *Partition) { q.ISR = q.ISR[:1]; q.ELR = []BrokerID{1} }),
		"minimum above the replicas":    edit(func(q *Partition) { q.MinISR = 4 }),
		"partition of no topic":         partitionRecord(Partition{ID: log.PartitionID{Topic: log.TopicID{77}}, Replicas: []BrokerID{3}, ISR: []Member{{3, br.Epoch}}, Leader: 3, LeaderBrokerEpoch: br.Epoch, MinISR: 1}),
		"broker epoch falls":            brokerRecord(Broker{ID: 3, Epoch: br.Epoch - 1}),
		"topic name with another id":    topicRecord(Topic{ID: log.TopicID{88}, Name: "t"}),
		"counter falls":                 countersRecord(counters{nextBrokerEpoch: 1}),
		"new partition with an epoch":   partitionRecord(Partition{ID: log.PartitionID{Topic: tp.ID, Index: 9}, Replicas: []BrokerID{1}, MinISR: 1, Leader: NoBroker, PartitionEpoch: 3}),
		"nobody leads with an epoch":    edit(func(q *Partition) { q.Leader = NoBroker; q.ISR = nil; q.ELR = []BrokerID{1, 2, 3}; q.LeaderEpoch++ }),
		"a replica that is there twice": edit(func(q *Partition) { q.Replicas = []BrokerID{1, 2, 2} }),
	}
	for name, r := range bad {
		data, err := encodeEntry(1, 1, []record{good, r})
		if err != nil {
			t.Fatal(err)
		}
		im := b.im.clone()
		a, err := im.apply(b.im.index+1, 1, data)
		if err != nil || a.rejected == nil || len(a.records) > 0 {
			t.Errorf("%s: rejected %v, error %v", name, a.rejected, err)
		}
		if im.hash != b.im.hash || im.index != b.im.index+1 {
			t.Errorf("%s: the state changed, or the index did not", name)
		}
		if _, ok := im.Broker(9); ok {
			t.Errorf("%s: half of the entry was applied", name)
		}
	}
}

// R18: configuration changes are never proposed, so none can block a campaign; one
// in the log is from a newer version and ends the server.
func ruleConfChange(t *testing.T) {
	for _, typ := range []raftpb.EntryType{raftpb.EntryConfChange, raftpb.EntryConfChangeV2} {
		if _, err := applyEntry(newImage(ID{1}), 2, 1, typ, nil); !isFormatError(err) {
			t.Errorf("%v: %v", typ, err)
		}
	}
}

// R25: what was decided in one term has no effect under another one.
func ruleTerm(t *testing.T) {
	data, err := encodeEntry(4, 1, []record{brokerRecord(Broker{ID: 1, Epoch: 1})})
	if err != nil {
		t.Fatal(err)
	}
	for term, want := range map[uint64]bool{3: false, 4: true, 5: false} {
		im := newImage(ID{1})
		a, err := im.apply(2, term, data)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := im.Broker(1); ok != want || (a.rejected == nil) != want || im.index != 2 {
			t.Errorf("term %d: applied %v, rejected %v", term, ok, a.rejected)
		}
	}
}

// R28: a snapshot is made elsewhere; Raft is told to come again.
func ruleSnapshotLater(t *testing.T) {
	s, im := mustOpenStore(t, logtest.NewFS(1))
	asked := 0
	s.makeSnapshot = func() { asked++ }
	if _, err := s.Snapshot(); !errors.Is(err, raft.ErrSnapshotTemporarilyUnavailable) || asked != 1 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	o, _ := testOptions(logtest.NewFS(2)).withDefaults()
	srv := &Server{opt: o, done: make(chan struct{}), published: make(chan struct{})}
	srv.ctx, srv.cancel = context.WithCancel(t.Context())
	srv.store = s
	srv.image.Store(im)
	m, err := newMember(srv, s, im)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = s.Snapshot()
	srv.tasks.Wait()
	sn, err := s.Snapshot()
	if err != nil || sn.GetMetadata().GetIndex() != im.index || len(sn.GetMetadata().GetConfState().GetVoters()) != 3 {
		t.Errorf("%v, %v", sn, err)
	}
	_ = m
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
}

// R29: a snapshot replaces state, index, configuration and log in one step, or not
// at all.
func ruleInstall(t *testing.T) {
	sn, conf := testSnapshot(t, 50)
	logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
		done := false
		s, im, err := openStore(testOptions(fs))
		if err == nil {
			old := im.clone()
			old.put(brokerRecord(Broker{ID: 8, Epoch: 8})) // not in the snapshot
			old.index = 4
			if err = errors.Join(s.append(testEntries(2, 9, 1), hardState(1, 2, 4), true), s.apply(old, []record{brokerRecord(Broker{ID: 8, Epoch: 8})})); err == nil {
				err = s.install(sn, conf, hardState(3, 0, 50))
			}
			done = err == nil
			if done {
				first, _ := s.FirstIndex()
				last, _ := s.LastIndex()
				if first != 51 || last != 50 {
					t.Errorf("log from %d to %d", first, last)
				}
			}
			_ = s.close()
		}
		return func(after *logtest.FS) {
			s, im := mustOpenStore(t, after)
			defer s.close()
			_, old := im.Broker(8)
			_, new := im.Broker(4)
			last, _ := s.LastIndex()
			h, _, _ := s.InitialState()
			switch {
			case im.index == 50 && new && !old && last == 50 && h.GetTerm() == 3 && im.StateHash() == sn.image.StateHash():
			case !done && im.index < 50 && !new && last < 50:
			default:
				t.Errorf("done %v: index %d, old %v, new %v, last %d, term %d", done, im.index, old, new, last, h.GetTerm())
			}
		}
	})
}

// R30: the log stays above a snapshot that is on its way, but not for ever.
func rulePin(t *testing.T) {
	s, im := mustOpenStore(t, logtest.NewFS(1))
	defer s.close()
	if err := s.append(testEntries(2, 100, 1), hardState(1, 0, 100), true); err != nil {
		t.Fatal(err)
	}
	next := im.clone()
	next.index, next.term = 100, 1
	if err := s.apply(next, nil); err != nil {
		t.Fatal(err)
	}
	s.hard = hardState(1, 0, 100)
	o, _ := testOptions(nil).withDefaults()
	o.LogBytes = 500
	m, err := newMember(&Server{opt: o}, s, next)
	if err != nil {
		t.Fatal(err)
	}
	cut := func() uint64 {
		m.maybeTruncate()
		ts := m.appends.take()
		if len(ts) == 0 {
			return 0
		}
		return ts[0].truncate
	}
	m.inFlight[2] = pin{index: 10, until: time.Now().Add(time.Hour)}
	if got := cut(); got != 10 {
		t.Errorf("cut at %d under a snapshot of index 10", got)
	}
	m.inFlight[2] = pin{index: 10, until: time.Now().Add(-time.Second)}
	if got := cut(); got < 50 || got > 99 {
		t.Errorf("cut at %d once the snapshot has had its time", got)
	}
	if err := s.truncate(60); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Entries(60, 61, 1); !errors.Is(err, raft.ErrCompacted) {
		t.Errorf("entry 60: %v", err)
	}
	if term, err := s.Term(60); err != nil || term != 1 {
		t.Errorf("term of 60: %d, %v", term, err)
	}
	if _, err := s.Term(59); !errors.Is(err, raft.ErrCompacted) {
		t.Errorf("term of 59: %v", err)
	}
}
