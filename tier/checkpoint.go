package tier

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A manifest object has the bytes of a state, and no more. Its key is that of the
// partition and a fresh id: it is never overwritten. It is written before the
// checkpoint event that names it, and deleted after the next one; one that no state
// names is an orphan, which sweeps delete.
const manifestName = "manifest-"

// ManifestKey returns the key of a manifest object.
func ManifestKey(prefix string, p log.PartitionID, id ID) string {
	return PartitionPrefix(prefix, p) + manifestName + id.String()
}

// parseManifestKey reads what ManifestKey writes.
func parseManifestKey(prefix, key string) (p log.PartitionID, id ID, ok bool) {
	i := strings.LastIndex(key, "/"+manifestName)
	if i < 0 {
		return p, id, false
	}
	id, err := ParseID(key[i+1+len(manifestName):])
	if err != nil {
		return p, id, false
	}
	// The folder is that of a segment object's key.
	k, ok := ParseKey(prefix, fmt.Sprintf("%s/%020d-%020d-0-%v", key[:i], 0, 1, ID{}))
	return k.Partition, id, ok
}

// checkpointDue says whether a leader is to write its state into the tier log. since is
// the number of its partition's events, and age the time, since the last; behind is how
// far that is from the tier log's end, which partitions share.
//
// The third rule is for partitions that nothing happens to: while they are far behind,
// the tier log can't be trimmed for their sake. Its limit grows with the partitions, so
// that their checkpoints alone never make each other due.
func checkpointDue(o *Options, since int, age time.Duration, behind int64, partitions int) bool {
	switch {
	case since >= o.CheckpointEvents:
		return true
	case age < o.CheckpointInterval:
		return false
	}
	return since > 0 || behind > int64(max(o.CheckpointEvents, 4*partitions))
}

// checkpoint writes the state into the tier log if it is time to; at once, and then
// without a manifest if that can be.
func (p *Partition) checkpoint(lead *leadership, next *wish, atOnce bool) error {
	m := p.m
	m.mu.Lock()
	end, partitions := m.applied, len(m.ledgers)
	retry := lead.checkpointAt
	m.mu.Unlock()
	now := time.Now()
	p.ledger.mu.Lock()
	if p.ledger.saved.IsZero() {
		p.ledger.saved = now // what other nodes did is not known here
	}
	since, saved, pin := p.ledger.since, p.ledger.saved, p.ledger.pin
	old := p.ledger.state.manifest
	p.ledger.mu.Unlock()
	if !atOnce && !checkpointDue(&m.o, since, now.Sub(saved), int64(end-pin), partitions) {
		if since > 0 {
			next.add(saved.Add(m.o.CheckpointInterval))
		}
		return nil
	}
	if retry.After(now) {
		next.add(retry)
		return nil
	}
	v, err := p.proposeMade(lead, func() (Body, error) {
		c, err := m.makeCheckpoint(lead.ctx, p.id, p.ledger, atOnce)
		if errors.Is(err, errNoManifest) {
			m.mu.Lock() // while no other event can be the last before the last listing
			lead.quietAt = time.Now().Add(m.o.manifestLands())
			m.mu.Unlock()
		}
		return c, err
	})
	if errors.Is(err, errBusy) || errors.Is(err, errBehind) {
		next.add(now.Add(m.o.MaxBackoff / 4))
		return nil
	}
	if errors.Is(err, errForgotten) || errors.Is(err, errMoved) {
		return nil // the event that did it brings us here again
	}
	if errors.Is(err, errNoManifest) {
		// The store does not take it. The events in the tier log say the same.
		m.mu.Lock()
		lead.checkpointAt = time.Now().Add(m.o.MaxBackoff)
		m.mu.Unlock()
		next.add(lead.checkpointAt)
		m.logger(p).Warn("checkpoint", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if v == Applied {
		m.mu.Lock()
		m.stats.Checkpoints++
		if old != (ID{}) {
			lead.manifests = append(lead.manifests, old)
			m.enqueueLocked(taskDelete, p)
		}
		m.mu.Unlock()
	}
	return nil
}

var (
	errNoManifest = errors.New("tier: manifest not stored")
	errBusy       = errors.New("tier: manifests of others are being stored")
	errBehind     = errors.New("tier: the tier log can't be read to its end")
	errForgotten  = errors.New("tier: the partition is forgotten")
	errMoved      = errors.New("tier: the state has moved on")
)

// makeCheckpoint encodes the state, and stores it first if it is too large for an event.
func (m *Manager) makeCheckpoint(ctx context.Context, id log.PartitionID, l *ledger, inline bool) (Checkpoint, error) {
	l.mu.RLock()
	c, gone := l.state.checkpoint(), l.gone
	epoch, seq := l.state.epoch, l.state.seq
	l.mu.RUnlock()
	if gone {
		return c, errForgotten
	}
	if c.Bytes <= m.o.inlineBytes || inline && c.Bytes <= MaxInlineState {
		return c, nil
	}
	if !m.ours() {
		return c, fmt.Errorf("%w: %w", errNoManifest, ErrUnavailable)
	}
	m.mu.Lock()
	busy := m.writing == manifestWrites
	if !busy {
		m.writing++
	}
	m.mu.Unlock()
	if busy {
		return c, errBusy
	}
	defer func() {
		m.mu.Lock()
		m.writing--
		m.mu.Unlock()
	}()
	// Who is behind would store a manifest that no event can name any more, and that nobody
	// looks for once the partition is forgotten.
	ectx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
	err := m.catchUp(ectx)
	cancel()
	if err != nil {
		return c, fmt.Errorf("%w: %w", errBehind, err)
	}
	l.mu.RLock()
	moved := l.gone || l.missing != nil || l.state.epoch != epoch || l.state.seq != seq
	l.mu.RUnlock()
	if moved {
		return c, errMoved
	}
	b := c.State
	c.State, c.Manifest = nil, newID()
	ctx, cancel = context.WithTimeout(ctx, m.o.StoreTimeout)
	defer cancel()
	err = m.o.Store.Put(ctx, ManifestKey(m.o.Prefix, id, c.Manifest), bytes.NewReader(b), int64(len(b)), PutOptions{
		IfAbsent: m.o.Store.Capabilities().IfAbsent, CRC32C: checksum(b), HasCRC32C: true,
	})
	if err != nil {
		return c, fmt.Errorf("%w: %w", errNoManifest, err)
	}
	return c, nil
}

// deleteManifests removes manifests that nobody needs any more. One that can't be
// deleted now is left to a sweep.
func (p *Partition) deleteManifests(lead *leadership) {
	m := p.m
	m.mu.Lock()
	ids := lead.manifests
	lead.manifests = nil
	m.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = ManifestKey(m.o.Prefix, p.id, id)
	}
	ctx, cancel := context.WithTimeout(lead.ctx, m.o.StoreTimeout)
	defer cancel()
	for _, r := range m.o.Store.Delete(ctx, keys) {
		if r.Err != nil && lead.ctx.Err() == nil {
			m.logger(p).Warn("manifest not deleted", "key", r.Key, "error", r.Err)
		}
	}
}

// load reads the manifest of a ledger's missing state in the background. Requires:
// ledger.mu; missing is set.
func (m *Manager) load(l *ledger) {
	want := l.missing
	m.run("tier-manifest", func(ctx context.Context) {
		for failures := 0; ctx.Err() == nil; failures++ {
			l.mu.RLock()
			obsolete := l.missing != want
			l.mu.RUnlock()
			if obsolete {
				return // a newer checkpoint has come
			}
			select {
			case m.manifests <- struct{}{}:
			case <-ctx.Done():
				return
			}
			c := want.event.Body.(Checkpoint)
			b, err := readManifest(ctx, m.o.Store, m.o.Prefix, m.o.StoreTimeout, want.event.Partition, c)
			<-m.manifests
			if err == nil {
				if err := m.loaded(l, want, b); err != nil {
					m.fail(fmt.Errorf("checkpoint of partition %v: %w", want.event.Partition, err))
				}
				return
			}
			if errors.Is(err, ErrNotFound) && m.forgottenOf(ctx, l, want) {
				return
			}
			l.mu.Lock()
			want.err = err
			l.mu.Unlock()
			if failures == 0 && ctx.Err() == nil {
				m.o.Logger.Warn("manifest not read", "partition", want.event.Partition.String(), "error", err)
			}
			if sleep(ctx, backoff(failures, &m.o, err)) != nil {
				return
			}
		}
	})
}

// forgottenOf gives up a state whose manifest is not there if its topic is deleted, and
// reports whether it did. A manifest goes only when a later checkpoint stands in the tier
// log, and after this one comes none: so it is a late checkpoint of a partition that was
// cleared away, whose Forgotten has been trimmed. Should somebody have taken the manifest
// away instead, what is left in the store is orphans, for [Manager.SweepDeleted].
func (m *Manager) forgottenOf(ctx context.Context, l *ledger, want *missingState) bool {
	if !m.ours() {
		return false // what is not in a store that may be another's says nothing
	}
	if _, ok := m.deleted(want.event.Partition.Topic); !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
	defer cancel()
	if m.catchUp(ctx) != nil {
		return false // a later checkpoint may be on its way here
	}
	l.mu.Lock()
	if l.missing == want {
		l.state = State{opened: true, deleted: true, epoch: want.newest.epoch, seq: want.newest.seq}
		l.forget()
	}
	l.mu.Unlock()
	m.dropLedger(want.event.Partition)
	m.TopicsDeleted() // its replica here is closed, should there be one
	return true
}

func readManifest(ctx context.Context, s ObjectStore, prefix string, timeout time.Duration, p log.PartitionID, c Checkpoint) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	key := ManifestKey(prefix, p, c.Manifest)
	b, err := s.GetRange(ctx, key, 0, c.Bytes)
	if err == nil && (int64(len(b)) != c.Bytes || hashState(b) != c.Hash) {
		err = fmt.Errorf("%w: it is not the state of its checkpoint", ErrCorrupt)
	}
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", key, err)
	}
	return b, nil
}

// loaded takes a state and the events that have waited for it.
func (m *Manager) loaded(l *ledger, want *missingState, b []byte) error {
	type applied struct {
		heldEvent
		v    Verdict
		view View
	}
	var all []applied
	_, deleted := m.deleted(want.event.Partition.Topic)
	m.mu.Lock()
	p := m.parts[want.event.Partition]
	m.mu.Unlock()
	l.mu.Lock()
	if l.missing != want {
		l.mu.Unlock()
		return nil
	}
	if err := l.state.load(want.event, b); err != nil {
		l.mu.Unlock()
		return err
	}
	l.checkpointed(want.at.Offset)
	for i, h := range append([]heldEvent{{want.at, want.event}}, want.held...) {
		v := Applied
		if i > 0 {
			v = l.state.Apply(h.e)
			if v == RefusedState && !deleted && !l.state.deleted {
				l.mu.Unlock()
				return fmt.Errorf("%w: the state is not that of the next checkpoint", ErrCorrupt)
			}
			if v.Taken() && h.e.Seq > 0 {
				l.since++
			}
		}
		if l.proposal != nil && l.proposal.meets(&l.state, h.e, v, h.c.Event, !m.tentative.Load()) {
			l.proposal = nil
		}
		all = append(all, applied{h, v, l.state.view(p != nil && p.isKnown())})
	}
	l.mu.Unlock()
	for _, a := range all {
		m.told(p, a.c, a.e, a.v, a.view)
	}
	return nil
}

// keep saves the states and trims the tier log, now and then and at the end: after
// CheckpointEvents entries, or what is fewer after CheckpointInterval.
func (m *Manager) keep(ctx context.Context) {
	keepEvery := log.Offset(m.o.CheckpointEvents)
	var saved log.Offset
	var when time.Time
	for {
		m.tendRemains(ctx)
		err := m.pause(ctx)
		m.mu.Lock()
		at := m.applied
		m.mu.Unlock()
		if at > saved && (err != nil || at-saved >= keepEvery || time.Since(when) >= m.o.CheckpointInterval) {
			switch err := m.saveStates(); {
			case err == nil:
				saved, when = at, time.Now()
			case !errors.Is(err, errNotClear):
				m.o.Logger.Warn("states not saved", "error", err)
			}
		}
		if err != nil {
			return
		}
		m.trim(ctx)
	}
}

// pause waits for Options.Interval, or until topics were deleted.
func (m *Manager) pause(ctx context.Context) error {
	t := time.NewTimer(m.o.Interval)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.tend:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// pin returns the lowest offset of the tier log that a partition needs, and which one.
func (m *Manager) pin() (at log.Offset, by log.PartitionID) {
	m.mu.Lock()
	at = m.applied
	ledgers := maps.Clone(m.ledgers)
	m.mu.Unlock()
	for id, l := range ledgers {
		l.mu.RLock()
		if l.pinned && l.pin < at {
			at, by = l.pin, id
		}
		l.mu.RUnlock()
	}
	return at, by
}

// trim gives up what no partition needs of the tier log, if this node may.
func (m *Manager) trim(ctx context.Context) {
	if m.tentative.Load() || m.ctx.Err() != nil {
		return
	}
	to, _ := m.pin()
	ctx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
	defer cancel()
	start, err := m.o.Events.Start(ctx)
	if err == nil {
		m.mu.Lock()
		m.stats.LogStart = start
		m.mu.Unlock()
		if to-start >= log.Offset(m.o.CheckpointEvents) {
			err = m.o.Events.Trim(ctx, to)
		}
	}
	if err != nil && ctx.Err() == nil {
		m.o.Logger.Debug("tier log not trimmed", "to", int64(to), "error", err)
	}
}

// The file of states, integers big-endian:
//
//	offset size field
//	0      4    magic "CWTF"
//	4      2    version, 1
//	6      2    0
//	8      16   cluster id
//	24     8    offset in the tier log of the first entry that is not in the states
//	32     4    number of partitions, then for each:
//	0        16   topic id
//	16       4    partition
//	20       8    offset in the tier log of what the partition needs of it
//	28       4    events since its last checkpoint
//	32       16   id of its last manifest, zeros for none
//	48       4    length of the state
//	52       n    the state
//	...    4    CRC32C of all bytes before
//
// It is replaced by rename. Entries above the offset may be in the states already:
// applying them again does nothing. See docs/format/tier-state.md.
const (
	stateFileName    = "tier-state"
	stateFileMagic   = "CWTF"
	stateFileVersion = 1
	stateFileHeader  = 36
	stateFileEntry   = 52
	maxStateFile     = 1 << 30
)

var errNotClear = errors.New("tier: states are not those of the tier log yet")

// saveStates writes the file of states, if there is to be one.
func (m *Manager) saveStates() error {
	if m.o.StateFS == nil {
		return nil
	}
	m.mu.Lock()
	at, broken := m.applied, m.err != nil
	ids := slices.SortedFunc(maps.Keys(m.ledgers), comparePartitions)
	ledgers := maps.Clone(m.ledgers)
	m.mu.Unlock()
	if m.tentative.Load() || broken {
		return errNotClear
	}
	w := newStateFile(m.o.Cluster, at)
	for _, id := range ids {
		l := ledgers[id]
		l.mu.RLock()
		if l.missing != nil {
			l.mu.RUnlock()
			return errNotClear
		}
		if l.pinned {
			w.add(savedState{id, l.pin, l.since, &l.state})
		}
		l.mu.RUnlock()
	}
	return writeFile(m.o.StateFS, m.o.StateDir, stateFileName, w.finish())
}

// A stateFile is a file of states that is being written.
type stateFile struct {
	b []byte
	n uint32
}

func newStateFile(cluster ID, at log.Offset) *stateFile {
	b := make([]byte, 0, 4096)
	b = append(b, stateFileMagic...)
	b = binary.BigEndian.AppendUint16(b, stateFileVersion)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = append(b, cluster[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	return &stateFile{b: binary.BigEndian.AppendUint32(b, 0)}
}

// add appends a partition. Requires: they come in order.
func (f *stateFile) add(s savedState) {
	f.n++
	b := append(f.b, s.id.Topic[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(s.id.Index))
	b = binary.BigEndian.AppendUint64(b, uint64(s.pin))
	b = binary.BigEndian.AppendUint32(b, uint32(s.since))
	b = append(b, s.state.manifest[:]...)
	from := len(b)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = s.state.encode(b)
	binary.BigEndian.PutUint32(b[from:], uint32(len(b)-from-4))
	f.b = b
}

func (f *stateFile) finish() []byte {
	binary.BigEndian.PutUint32(f.b[32:], f.n)
	return binary.BigEndian.AppendUint32(f.b, crc32.Checksum(f.b, castagnoli))
}

// loadStates fills the ledgers from the file of states and returns where the tier log
// goes on: 0 without one that can be used. It is called before anything is open.
func (m *Manager) loadStates() log.Offset {
	if m.o.StateFS == nil {
		return 0
	}
	name := m.o.StateDir + "/" + stateFileName
	b, err := readFile(m.o.StateFS, name, maxStateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	var at log.Offset
	var states []savedState
	if err == nil {
		at, states, err = parseStateFile(b, m.o.Cluster)
	}
	if err != nil {
		m.o.Logger.Warn("states not read: the tier log is read instead", "path", name, "error", err)
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range states {
		l := m.ledgerLocked(s.id)
		l.mu.Lock()
		l.state, l.pin, l.pinned, l.since = *s.state, s.pin, true, s.since
		l.mu.Unlock()
	}
	return at
}

type savedState struct {
	id    log.PartitionID
	pin   log.Offset
	since int
	state *State
}

// parseStateFile reads what saveStates wrote.
func parseStateFile(b []byte, cluster ID) (log.Offset, []savedState, error) {
	bad := func(what string) (log.Offset, []savedState, error) {
		return 0, nil, fmt.Errorf("%w: file of states: %s", ErrCorrupt, what)
	}
	if len(b) < stateFileHeader+4 || string(b[:4]) != stateFileMagic {
		return bad("no magic")
	}
	if crc32.Checksum(b[:len(b)-4], castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return bad("wrong checksum")
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != stateFileVersion {
		return 0, nil, &VersionError{What: "file of states", Version: int(v)}
	}
	if ID(b[8:24]) != cluster {
		return bad("of another cluster")
	}
	at := log.Offset(binary.BigEndian.Uint64(b[24:]))
	if at < 0 {
		return bad("offset")
	}
	n := binary.BigEndian.Uint32(b[32:])
	rest := b[stateFileHeader : len(b)-4]
	if int64(n) > int64(len(rest)/stateFileEntry) {
		return bad("number of partitions")
	}
	states := make([]savedState, 0, n)
	for range n {
		if len(rest) < stateFileEntry {
			return bad("length")
		}
		s := savedState{
			id:    log.PartitionID{Topic: log.TopicID(rest[:16]), Index: int32(binary.BigEndian.Uint32(rest[16:]))},
			pin:   log.Offset(binary.BigEndian.Uint64(rest[20:])),
			since: int(int32(binary.BigEndian.Uint32(rest[28:]))),
		}
		manifest := ID(rest[32:48])
		size := binary.BigEndian.Uint32(rest[48:])
		rest = rest[stateFileEntry:]
		if int64(size) > int64(len(rest)) || s.id.Index < 0 || s.pin < 0 || s.since < 0 {
			return bad("partition")
		}
		var err error
		if s.state, err = decodeState(rest[:size]); err != nil {
			return 0, nil, err
		}
		s.state.manifest = manifest
		rest = rest[size:]
		if len(states) > 0 && comparePartitions(states[len(states)-1].id, s.id) >= 0 {
			return bad("order of partitions")
		}
		states = append(states, s)
	}
	if len(rest) > 0 {
		return bad("length")
	}
	return at, states, nil
}
