package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata/internal/metapb"
)

// Keys of a voter's store (docs/format/metadata-store.md). Numbers are big
// endian. They are on disk and must not change.
//
//	key            value
//	"a"            applied: index, term (8 bytes each), state hash (16), raftpb.ConfState
//	"d" broker(4)  directory id (16) under which that voter was first heard
//	"h"            raftpb.HardState
//	"i"            metapb.Identity
//	"l" index(8)   raftpb.Entry
//	"s" key        value of a record, as it came with its entry
//	"t"            truncated: index, term (8 bytes each) of the entry before the log's first
//
// Everything goes through one write-ahead log, so what a crash leaves is a prefix
// of the writes: an applied index never without its state, nor without the log
// entries up to it.
var (
	storeApplied   = []byte("a")
	storeHard      = []byte("h")
	storeIdentity  = []byte("i")
	storeTruncated = []byte("t")
)

const (
	storeDirectory = 'd'
	storeEntry     = 'l'
	storeState     = 's'

	storeVersion = 1

	// The log begins behind this entry, which nobody has: all voters start with
	// the same configuration as of it.
	seedIndex = 1
	seedTerm  = 1

	tailBytes = 1 << 20 // entries kept in memory
)

func entryKey(i uint64) []byte { return binary.BigEndian.AppendUint64([]byte{storeEntry}, i) }

// A store is a voter's disk: Raft's log and hard state, and the state machine,
// in one Pebble database. Its reading methods implement [raft.Storage].
//
// Writes come from two goroutines: append, truncate and bind from the appender,
// apply and install from the applier; see raft.go.
type store struct {
	db    *pebble.DB
	cache *pebble.Cache
	*freezer
	hard  *raftpb.HardState // as opened
	peers map[BrokerID]ID   // as opened

	// The appender's own: term and vote as written, and whether something that an
	// answer may rest on has been written without sync.
	term, vote uint64
	unsynced   bool

	mu        sync.Mutex
	conf      *raftpb.ConfState // as of applied
	truncated uint64            // index before the first entry
	truncTerm uint64
	last      uint64 // Invariant: last >= truncated
	lastTerm  uint64
	logBytes  int64
	// tail holds the newest entries; it ends at last, and may be empty.
	tail      []*raftpb.Entry
	tailBytes int
	// snapshot is the last one made, and makeSnapshot asks for a newer one without
	// waiting for it.
	snapshot     *raftpb.Snapshot
	makeSnapshot func()
}

// openStore opens or creates a voter's store and returns the image that it holds.
func openStore(o Options) (*store, *Image, error) {
	if err := o.FS.MkdirAll(o.Dir); err != nil {
		return nil, nil, &StorageError{Op: "create " + o.Dir, Err: err}
	}
	s := &store{freezer: &freezer{}, cache: pebble.NewCache(1 << 20), peers: map[BrokerID]ID{},
		makeSnapshot: func() {}}
	db, err := pebble.Open(o.Dir, s.options(o.FS, o.Logger))
	if err != nil {
		s.cache.Unref()
		if errors.Is(err, log.ErrLocked) {
			return nil, nil, fmt.Errorf("metadata: open %s: %w", o.Dir, err)
		}
		if first := s.failed(); first != nil {
			return nil, nil, first
		}
		return nil, nil, &StorageError{Op: "open " + o.Dir, Err: err}
	}
	s.db = db
	im, err := s.recover(o)
	if first := s.failed(); first != nil {
		err = first
	}
	if err != nil {
		_ = s.close() // the first error counts
		return nil, nil, err
	}
	return s, im, nil
}

func (s *store) options(fs log.FS, logger *slog.Logger) *pebble.Options {
	o := &pebble.Options{
		FS:                    pebbleFS{fs, s.freezer},
		Logger:                pebbleLogger{logger, s.freezer},
		Cache:                 s.cache,
		FormatMajorVersion:    pebble.FormatTableFormatV6,
		MemTableSize:          1 << 20,
		MaxOpenFiles:          64,
		L0CompactionThreshold: 2,
		LBaseMaxBytes:         8 << 20,
		DisableTableStats:     true,
	}
	o.Experimental.FileCacheShards = 1
	// The default scheduler wakes ten times a second.
	o.Experimental.CompactionScheduler = &compactions{}
	for i := range o.Levels {
		o.Levels[i].BlockSize = 8 << 10
	}
	return o
}

func (s *store) close() error {
	err := s.db.Close()
	s.cache.Unref()
	if first := s.failed(); first != nil {
		return first
	}
	return err
}

func (s *store) get(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, &StorageError{Op: fmt.Sprintf("read %q", key), Err: err}
	}
	return slices.Clone(v), closer.Close()
}

// commit writes a batch. Once it has returned an error, every later one does.
func (s *store) commit(b *pebble.Batch, sync bool) error {
	if err := s.failed(); err != nil {
		return err
	}
	o := pebble.NoSync
	if sync {
		o = pebble.Sync
	}
	if err := b.Commit(o); err != nil {
		s.fail("write the store", err)
	}
	return s.failed()
}

// recover reads the store, or seeds it, and checks whose it is.
func (s *store) recover(o Options) (*Image, error) {
	v, err := s.get(storeIdentity)
	if err != nil {
		return nil, err
	}
	conf := &raftpb.ConfState{}
	for _, m := range o.Voters {
		conf.Voters = append(conf.Voters, raftID(m.ID))
	}
	slices.Sort(conf.Voters)
	if v == nil {
		if err := s.seed(o, conf); err != nil {
			return nil, err
		}
		return s.recover(o)
	}
	var id metapb.Identity
	if err := proto.Unmarshal(v, &id); err != nil {
		return nil, &FormatError{What: "store identity", Err: err}
	}
	if id.Version != storeVersion {
		return nil, &FormatError{What: "store", Err: fmt.Errorf("version %d, this program reads %d", id.Version, storeVersion)}
	}
	if string(id.Cluster) != string(o.Cluster[:]) || BrokerID(id.Broker) != o.Self || string(id.Directory) != string(o.Directory[:]) {
		return nil, fmt.Errorf("%w: %s is of broker %d, cluster %x, directory %x; open it with these, or give the node an empty folder and a new broker id",
			ErrIdentity, o.Dir, id.Broker, id.Cluster, id.Directory)
	}

	v, err = s.get(storeApplied)
	if err != nil {
		return nil, err
	}
	if len(v) < 32 {
		return nil, &FormatError{What: "applied state", Err: fmt.Errorf("%d bytes", len(v))}
	}
	im := newImage(o.Cluster)
	s.conf = &raftpb.ConfState{}
	if err := proto.Unmarshal(v[32:], s.conf); err != nil {
		return nil, &FormatError{What: "configuration", Err: err}
	}
	if !slices.Equal(s.conf.GetVoters(), conf.GetVoters()) {
		return nil, fmt.Errorf("%w: %s is of a quorum of %v, not %v", ErrIdentity, o.Dir, s.conf.GetVoters(), conf.GetVoters())
	}
	if err := s.scan(storeState, func(k, v []byte) error { return im.load(string(k), slices.Clone(v)) }); err != nil {
		return nil, err
	}
	if want, _ := parseStateHash(v[16:32]); want != im.hash {
		return nil, &FormatError{What: "state", Err: errors.New("it does not have the hash that was stored with it")}
	}
	im.index, im.term = binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])

	if v, err = s.get(storeTruncated); err != nil {
		return nil, err
	}
	if len(v) != 16 {
		return nil, &FormatError{What: "log start", Err: fmt.Errorf("%d bytes", len(v))}
	}
	s.truncated, s.truncTerm = binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])
	s.last, s.lastTerm = s.truncated, s.truncTerm
	err = s.scan(storeEntry, func(k, v []byte) error {
		e := &raftpb.Entry{}
		if err := proto.Unmarshal(v, e); err != nil {
			return &FormatError{What: "log entry", Err: err}
		}
		if len(k) != 8 || e.GetIndex() != binary.BigEndian.Uint64(k) || e.GetIndex() != s.last+1 {
			return &FormatError{What: "log", Err: fmt.Errorf("entry %d after %d", e.GetIndex(), s.last)}
		}
		s.remember(e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if im.index > s.last || im.index < s.truncated {
		return nil, &FormatError{What: "store", Err: fmt.Errorf("applied index %d, log from %d to %d", im.index, s.truncated+1, s.last)}
	}

	s.hard = &raftpb.HardState{}
	if v, err = s.get(storeHard); err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(v, s.hard); err != nil {
		return nil, &FormatError{What: "hard state", Err: err}
	}
	s.term, s.vote = s.hard.GetTerm(), s.hard.GetVote()
	// A commit index is stored without sync, and may lag behind what was applied.
	if s.hard.GetCommit() < im.index {
		s.hard.Commit = new(im.index)
		b := s.db.NewBatch()
		defer b.Close()
		if err := s.setHard(b, s.hard); err != nil {
			return nil, err
		}
		if err := s.commit(b, true); err != nil {
			return nil, err
		}
	}
	return im, s.scan(storeDirectory, func(k, v []byte) error {
		if len(k) != 4 || len(v) != 16 {
			return &FormatError{What: "directory of a voter", Err: fmt.Errorf("%d and %d bytes", len(k), len(v))}
		}
		s.peers[BrokerID(binary.BigEndian.Uint32(k))] = ID(v)
		return nil
	})
}

// seed writes what a new voter starts from: the configuration as of an entry that
// all voters agree on without having it. It is one synced batch, so a crash
// leaves all of it or nothing.
func (s *store) seed(o Options, conf *raftpb.ConfState) error {
	b := s.db.NewBatch()
	defer b.Close()
	id, err := proto.Marshal(&metapb.Identity{Version: storeVersion, Cluster: o.Cluster[:], Broker: int32(o.Self), Directory: o.Directory[:]})
	if err != nil {
		return err
	}
	im := newImage(o.Cluster)
	im.index, im.term = seedIndex, seedTerm
	if err := errors.Join(
		b.Set(storeIdentity, id, nil),
		s.setApplied(b, im, conf),
		setPair(b, storeTruncated, seedIndex, seedTerm),
		s.setHard(b, &raftpb.HardState{Term: proto.Uint64(seedTerm), Vote: proto.Uint64(0), Commit: proto.Uint64(seedIndex)}),
	); err != nil {
		return err
	}
	return s.commit(b, true)
}

func (s *store) scan(prefix byte, visit func(k, v []byte) error) (err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return &StorageError{Op: "read", Err: err}
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		if err := visit(it.Key()[1:], it.Value()); err != nil {
			return err
		}
	}
	return it.Error()
}

func setPair(b *pebble.Batch, key []byte, x, y uint64) error {
	v := binary.BigEndian.AppendUint64(nil, x)
	return b.Set(key, binary.BigEndian.AppendUint64(v, y), nil)
}

func (s *store) setHard(b *pebble.Batch, h *raftpb.HardState) error {
	v, err := proto.Marshal(h)
	if err != nil {
		return err
	}
	return b.Set(storeHard, v, nil)
}

func (s *store) setApplied(b *pebble.Batch, im *Image, conf *raftpb.ConfState) error {
	v := binary.BigEndian.AppendUint64(nil, im.index)
	v = binary.BigEndian.AppendUint64(v, im.term)
	v = append(v, im.hash.bytes()...)
	v, err := proto.MarshalOptions{}.MarshalAppend(v, conf)
	if err != nil {
		return err
	}
	return b.Set(storeApplied, v, nil)
}

// remember adds an entry to the counts and the tail. Requires: mu, or an opening
// store; e is the one after last.
func (s *store) remember(e *raftpb.Entry) {
	s.last, s.lastTerm = e.GetIndex(), e.GetTerm()
	n := entryBytes(e)
	s.logBytes += int64(n)
	s.tail = append(s.tail, e)
	s.tailBytes += n
	for s.tailBytes > tailBytes && len(s.tail) > 1 {
		// Readers may hold the old slice, so its elements stay.
		s.tailBytes -= entryBytes(s.tail[0])
		s.tail = s.tail[1:]
	}
}

func entryBytes(e *raftpb.Entry) int { return len(e.GetData()) + 32 }

// append writes entries and hard state in one batch: entries from the first index
// on are dropped, then come the new ones. With answers, all that these rest on is
// durable when it returns: entries, term, vote and bindings, of this call and of
// earlier ones. A commit index alone is never worth a sync.
func (s *store) append(entries []*raftpb.Entry, hard *raftpb.HardState, answers bool) error {
	b := s.db.NewBatch()
	defer b.Close()
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if len(entries) > 0 {
		s.unsynced = true
	}
	if !raft.IsEmptyHardState(hard) && (hard.GetTerm() != s.term || hard.GetVote() != s.vote) {
		s.term, s.vote = hard.GetTerm(), hard.GetVote()
		s.unsynced = true
	}
	sync := answers && s.unsynced
	var buf []byte
	if len(entries) > 0 {
		first := entries[0].GetIndex()
		if first <= last {
			if err := b.DeleteRange(entryKey(first), entryKey(last+1), nil); err != nil {
				return err
			}
		}
		for _, e := range entries {
			var err error
			if buf, err = (proto.MarshalOptions{}).MarshalAppend(buf[:0], e); err != nil {
				return err
			}
			if err := b.Set(entryKey(e.GetIndex()), buf, nil); err != nil {
				return err
			}
		}
	}
	if !raft.IsEmptyHardState(hard) {
		if err := s.setHard(b, hard); err != nil {
			return err
		}
	}
	if b.Empty() && !sync {
		return nil
	}
	if b.Empty() {
		// Nothing new, but an answer waits for what was written without sync.
		if err := b.LogData(nil, nil); err != nil {
			return err
		}
	}
	if err := s.commit(b, sync); err != nil {
		return err
	}
	if sync {
		s.unsynced = false
	}
	if len(entries) > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cutTail(entries[0].GetIndex())
		for _, e := range entries {
			s.remember(e)
		}
	}
	return nil
}

// cutTail forgets the entries from first on. Requires: mu.
func (s *store) cutTail(first uint64) {
	if first > s.last {
		return
	}
	for len(s.tail) > 0 && s.tail[len(s.tail)-1].GetIndex() >= first {
		n := entryBytes(s.tail[len(s.tail)-1])
		s.tailBytes -= n
		s.logBytes -= int64(n) // what left the tail earlier stays counted until it is truncated
		s.tail = s.tail[:len(s.tail)-1]
	}
	s.tail = slices.Clip(s.tail)
	s.last = first - 1
}

// truncate drops entries up to index, which is applied.
func (s *store) truncate(index uint64) error {
	term, err := s.Term(index)
	if err != nil {
		return nil // gone already
	}
	s.mu.Lock()
	from := s.truncated
	s.mu.Unlock()
	var freed int64
	for lo := from + 1; lo <= index; {
		es, err := s.Entries(lo, index+1, 1<<20)
		if err != nil {
			return err
		}
		for _, e := range es {
			freed += int64(entryBytes(e))
		}
		lo += uint64(len(es))
	}
	b := s.db.NewBatch()
	defer b.Close()
	if err := errors.Join(b.DeleteRange(entryKey(0), entryKey(index+1), nil), setPair(b, storeTruncated, index, term)); err != nil {
		return err
	}
	if err := s.commit(b, false); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.truncated, s.truncTerm = index, term
	s.logBytes -= freed
	for len(s.tail) > 0 && s.tail[0].GetIndex() <= index {
		s.tailBytes -= entryBytes(s.tail[0])
		s.tail = s.tail[1:]
	}
	return nil
}

// apply stores the records that made an image, and that it is applied. The image
// is published only afterwards.
func (s *store) apply(im *Image, records []record) error {
	b := s.db.NewBatch()
	defer b.Close()
	for _, r := range records {
		if err := b.Set(append([]byte{storeState}, r.key...), r.value, nil); err != nil {
			return err
		}
		for _, key := range r.removes() {
			if err := b.Delete(append([]byte{storeState}, key...), nil); err != nil {
				return err
			}
		}
	}
	s.mu.Lock()
	conf := s.conf
	s.mu.Unlock()
	if err := s.setApplied(b, im, conf); err != nil {
		return err
	}
	return s.commit(b, false)
}

// install replaces state, applied index, configuration and log by a snapshot, in
// one synced batch.
func (s *store) install(sn snapshot, conf *raftpb.ConfState, hard *raftpb.HardState) error {
	b := s.db.NewBatch()
	defer b.Close()
	err := errors.Join(
		b.DeleteRange([]byte{storeState}, []byte{storeState + 1}, nil),
		b.DeleteRange([]byte{storeEntry}, []byte{storeEntry + 1}, nil),
		setPair(b, storeTruncated, sn.index, sn.term),
		s.setApplied(b, sn.image, conf),
	)
	sn.image.records.Scan(func(k string, o *object) bool {
		err = errors.Join(err, b.Set(append([]byte{storeState}, k...), o.value, nil))
		return true
	})
	if !raft.IsEmptyHardState(hard) {
		err = errors.Join(err, s.setHard(b, hard))
	}
	if err != nil {
		return err
	}
	if err := s.commit(b, true); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conf = conf
	s.truncated, s.truncTerm, s.last, s.lastTerm = sn.index, sn.term, sn.index, sn.term
	s.tail, s.tailBytes, s.logBytes, s.snapshot = nil, 0, 0, nil
	return nil
}

// bind stores under which directory a voter is known. It need not be synced: no
// answer that rests on it leaves before a later write is.
func (s *store) bind(peer BrokerID, dir ID) error {
	b := s.db.NewBatch()
	defer b.Close()
	if err := b.Set(binary.BigEndian.AppendUint32([]byte{storeDirectory}, uint32(peer)), dir[:], nil); err != nil {
		return err
	}
	s.unsynced = true
	return s.commit(b, false)
}

// InitialState implements [raft.Storage].
func (s *store) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hard, s.conf, nil
}

// Entries implements [raft.Storage].
func (s *store) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	s.mu.Lock()
	if lo <= s.truncated {
		s.mu.Unlock()
		return nil, raft.ErrCompacted
	}
	if hi > s.last+1 || lo >= hi {
		s.mu.Unlock()
		return nil, raft.ErrUnavailable
	}
	var tail []*raftpb.Entry
	if len(s.tail) > 0 {
		tail = s.tail
	}
	s.mu.Unlock()

	var out []*raftpb.Entry
	var size uint64
	take := func(e *raftpb.Entry) bool {
		size += uint64(proto.Size(e))
		if len(out) > 0 && size > maxSize {
			return false
		}
		out = append(out, e)
		return true
	}
	if len(tail) > 0 && lo >= tail[0].GetIndex() {
		first := tail[0].GetIndex()
		for _, e := range tail[lo-first : hi-first] {
			if !take(e) {
				break
			}
		}
		return out, nil
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: entryKey(lo), UpperBound: entryKey(hi)})
	if err != nil {
		return nil, &StorageError{Op: "read log", Err: err}
	}
	for ok := it.First(); ok; ok = it.Next() {
		e := &raftpb.Entry{}
		if err := proto.Unmarshal(it.Value(), e); err != nil {
			return nil, errors.Join(&FormatError{What: "log entry", Err: err}, it.Close())
		}
		if e.GetIndex() != lo+uint64(len(out)) {
			break // cut meanwhile
		}
		if !take(e) {
			break
		}
	}
	if err := it.Close(); err != nil {
		return nil, &StorageError{Op: "read log", Err: err}
	}
	if len(out) == 0 {
		return nil, raft.ErrCompacted
	}
	return out, nil
}

// Term implements [raft.Storage].
func (s *store) Term(i uint64) (uint64, error) {
	s.mu.Lock()
	switch {
	case i < s.truncated:
		s.mu.Unlock()
		return 0, raft.ErrCompacted
	case i > s.last:
		s.mu.Unlock()
		return 0, raft.ErrUnavailable
	case i == s.truncated:
		defer s.mu.Unlock()
		return s.truncTerm, nil
	case i == s.last:
		defer s.mu.Unlock()
		return s.lastTerm, nil
	case len(s.tail) > 0 && i >= s.tail[0].GetIndex():
		defer s.mu.Unlock()
		return s.tail[i-s.tail[0].GetIndex()].GetTerm(), nil
	}
	s.mu.Unlock()
	es, err := s.Entries(i, i+1, 0)
	if err != nil {
		return 0, err
	}
	return es[0].GetTerm(), nil
}

// LastIndex implements [raft.Storage].
func (s *store) LastIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, nil
}

// FirstIndex implements [raft.Storage].
func (s *store) FirstIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.truncated + 1, nil
}

// Snapshot implements [raft.Storage]. It never makes one itself, since it is
// called where nothing may wait.
func (s *store) Snapshot() (*raftpb.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapshot != nil && s.snapshot.GetMetadata().GetIndex() >= s.truncated {
		return s.snapshot, nil
	}
	s.makeSnapshot()
	return nil, raft.ErrSnapshotTemporarilyUnavailable
}

// pebbleLogger sends Pebble's messages to slog. Pebble asks it to end the process
// where it can't go on, and goes on if that returns; here it freezes the disk.
type pebbleLogger struct {
	logger *slog.Logger
	*freezer
}

func (l pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.logger.Warn("metadata: store", "message", fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.fail("write the store", fmt.Errorf(format, args...))
}

// compactions runs Pebble's compactions one at a time, when it asks and when one
// ends, without a ticker.
type compactions struct {
	db pebble.DBForCompaction

	mu      sync.Mutex
	running bool
	closed  bool
	// calls counts calls into db that Unregister waits for.
	calls sync.WaitGroup
}

func (c *compactions) Register(_ int, db pebble.DBForCompaction) { c.db = db }

func (c *compactions) Unregister() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.calls.Wait()
}

func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.running {
		return false, nil
	}
	c.running = true
	return true, c
}

func (c *compactions) UpdateGetAllowedWithoutPermission() {}

func (c *compactions) Started()                                          {}
func (c *compactions) MeasureCPU(pebble.CompactionGoroutineKind)         {}
func (c *compactions) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done ends a compaction and starts one that has been waiting.
func (c *compactions) Done() {
	c.mu.Lock()
	c.running = false
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.calls.Add(1)
	c.mu.Unlock()
	defer c.calls.Done()
	if waiting, _ := c.db.GetWaitingCompaction(); !waiting {
		return
	}
	c.mu.Lock()
	if c.running || c.closed {
		c.mu.Unlock()
		return
	}
	c.running = true
	c.mu.Unlock()
	if !c.db.Schedule(c) {
		c.mu.Lock()
		c.running = false
		c.mu.Unlock()
	}
}

func raftID(id BrokerID) uint64   { return uint64(id) + 1 }
func brokerOf(id uint64) BrokerID { return BrokerID(int64(id) - 1) }
