package tier

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A Manager runs the cold half of all partitions of one node. It follows the tier
// log, uploads and deletes for the partitions that this node leads, drops local
// copies on all, and serves cold reads. An idle partition costs it memory only:
// the goroutines are those of the manager, and their number does not grow with
// the partitions.
//
// It is safe for concurrent use.
//
// Lock order: Manager.mu, then ledger.mu. Neither is held over a wait, I/O, a
// hook or PartitionOptions.HighWatermark.
type Manager struct {
	o      Options
	ctx    context.Context // ends with Close or fail
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	done   chan struct{} // closed when ctx has ended
	cold   *coldReader
	wake   chan struct{} // of the scheduler; capacity 1
	tend   chan struct{} // of the keeper: topics were deleted; capacity 1

	manifests chan struct{} // holds a token for each manifest that is being read

	guard *guard    // o.Store
	sent  *throttle // bytes that uploads give to the store
	read  *throttle // bytes that planning them reads of local logs

	// tentative: reading began anew with empty states, and has not come to where the tier
	// log ended then. Until then a state is what the last checkpoint said, and may be of
	// an older moment than the events around it.
	tentative atomic.Bool

	mu      sync.Mutex
	closed  bool
	err     error // why the manager stopped by itself
	paused  bool  // no upload begins
	parts   map[log.PartitionID]*Partition
	ledgers map[log.PartitionID]*ledger
	applied log.Offset // next offset of the tier log
	target  log.Offset // while tentative: where that ends
	waiters []appliedWaiter
	unaimed []*Partition // whose known target must be asked for
	aiming  bool
	due     dueHeap
	queues  [taskKinds]queue
	writing int // manifests
	owner   ownership
	ownErr  error // the last failure of the owner check
	stats   Stats
}

// A ledger is the state of one partition, whether it is open here or not.
type ledger struct {
	mu       sync.RWMutex
	state    State
	proposal *proposal // of this node, waiting to be read back; or nil

	// pin is the offset in the tier log of what this partition needs of it: of its last
	// checkpoint, or of its first event while it has none.
	pin    log.Offset
	pinned bool      // pin is set
	gone   bool      // a Forgotten event was taken: nothing of it is needed any more
	since  int       // events taken since the last checkpoint
	saved  time.Time // when this node applied the last checkpoint

	// missing is the checkpoint whose manifest is being read; state is not that of the
	// tier log until then.
	missing *missingState
	unclear atomic.Bool // missing != nil
}

// A missingState waits for a manifest, with the events that came since.
type missingState struct {
	event  Event
	at     Committed
	held   []heldEvent
	newest State // epoch and sequence number only: where event and held lead to
}

// hold keeps an event for when the state is there.
func (s *missingState) hold(c Committed, e Event) {
	s.held = append(s.held, heldEvent{c, e})
	switch n := &s.newest; {
	case e.Seq == 0 && e.Epoch > n.epoch:
		n.epoch, n.seq = e.Epoch, 0
	case e.Seq > 0 && e.Epoch == n.epoch && e.Seq == n.seq+1:
		n.seq = e.Seq
	}
}

type heldEvent struct {
	c Committed
	e Event
}

type appliedWaiter struct {
	target log.Offset
	ready  chan struct{}
}

type ownership uint8

const (
	ownerUnknown ownership = iota
	ownerOurs
	ownerForeign
)

// taskKind separates what may wait for the store for long from what may not.
type taskKind uint8

const (
	taskControl taskKind = iota // events and local files
	taskUpload                  // one object
	taskDelete                  // of objects
	taskKinds
)

var taskLabels = [taskKinds]string{"tier-control", "tier-upload", "tier-delete"}

// controlWorkers and deleteWorkers bound the partitions whose tasks run at once.
const (
	controlWorkers = 4
	deleteWorkers  = 2
)

// manifestReads bounds the manifests that are read at once, each of which is in memory
// whole. manifestWrites bounds those that are written: a store that hangs must leave
// control workers for what needs no store.
const (
	manifestReads  = 4
	manifestWrites = controlWorkers / 2
)

// kickPause is the least time between two control tasks of one partition that are
// only kicked, so that a kick per append costs next to nothing.
const kickPause = 10 * time.Millisecond

type queue struct {
	limit   int
	running int
	list    []*Partition
}

// Stats are counters of a [Manager] since it was made, and what it is at.
type Stats struct {
	Applied        log.Offset // next offset of the tier log to be applied
	Events         [verdicts]int64
	Gaps           int64 // events whose predecessor is missing here: something has lost a part of the tier log
	Partitions     int
	Leading        int
	Uploads        int64
	UploadBytes    int64
	UploadFailures int64 // attempts
	Deletes        int64 // objects
	DeleteFailures int64 // attempts
	Parked         int   // objects that the store has refused to delete time and again, of the partitions led here
	Remains        int   // partitions of deleted topics whose objects this node deletes
	Uploading      int   // under way
	Paused         bool  // by [Manager.Pause]
	StoreHangs     int   // calls of the store that were given up and have not returned
	StoreAbandoned int64 // calls that were given up
	StorePanics    int64
	OwnerChecked   bool  // the store's prefix is known to be this cluster's
	OwnerError     error // why it is not known yet, or [ErrForeignStore]

	Hits, Misses  int64 // of parts in the memory cache
	Fetches       int64 // requests for parts of objects
	FetchBytes    int64
	FetchFailures int64
	Corrupt       int64 // parts that failed their check
	Missing       int64 // alarms of lost objects
	ReadAhead     int64 // fetches that nobody waited for

	DiskHits     int64 // parts that were read from the disk cache
	DiskWrites   int64 // parts that were written to it
	DiskDamaged  int64 // its files that failed their check, or could not be read
	DiskFailures int64 // failures to list, write and remove its files
	DiskBytes    int64 // of its files now
	DiskFiles    int

	CachedBytes      int64           // of parts of objects in memory
	CachedParts      int             // how many those are
	ReadsUnderWay    int             // parts that are being fetched
	BytesUnderWay    int64           // that they take of Options.ReadBytes
	LogStart         log.Offset      // of the tier log, as far as this node knows
	Pin              log.Offset      // what is below it, no partition needs any more
	PinnedBy         log.PartitionID // the partition that needs Pin
	Checkpoints      int64           // written by this node
	BacklogBytes     int64           // sealed, committed and not in the store, of the partitions led here
	BacklogRanges    int
	BacklogOldest    time.Time // when the oldest of it was sealed; zero if there is none
	BacklogUnknown   int       // partitions led here whose backlog is not in these: their view is unknown
	PendingDeletions int       // objects whose deletion has not finished, of the partitions led here
}

// NewManager starts a manager. Nothing in it waits for the store or the tier log:
// both may be down. Errors are those of the options, and
// those of taking the folder of the disk cache: log.ErrLocked if somebody else has it.
func NewManager(o Options) (*Manager, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Manager{
		o: o, done: make(chan struct{}), wake: make(chan struct{}, 1), tend: make(chan struct{}, 1),
		manifests: make(chan struct{}, manifestReads),
		parts:     map[log.PartitionID]*Partition{}, ledgers: map[log.PartitionID]*ledger{},
		guard: newGuard(o.Store, o.Logger), sent: newThrottle(o.UploadBytesPerSecond), read: newThrottle(o.UploadBytesPerSecond),
	}
	m.o.Store = m.guard // nothing calls the store but through it
	m.queues[taskControl].limit = controlWorkers
	m.queues[taskUpload].limit = o.Uploads
	m.queues[taskDelete].limit = deleteWorkers
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	m.cold = newColdReader(m.ctx, &m.wg, &m.o)
	if o.DiskCacheFS != nil {
		if m.cold.disk, err = openDiskCache(&m.o); err != nil {
			m.cancel(ErrClosed)
			return nil, err
		}
		m.run("tier-cache", func(ctx context.Context) { m.cold.disk.run(ctx, m.o.Interval) })
	}
	m.run("tier-feed", m.feed)
	m.run("tier-schedule", m.schedule)
	m.run("tier-keep", m.keep)
	m.run("tier-owner", m.checkOwner)
	if m.o.Writer != nil {
		m.run("tier-writer", m.announce)
	}
	return m, nil
}

// run starts a goroutine of the manager. Requires: Close has not passed.
func (m *Manager) run(label string, f func(ctx context.Context)) {
	m.wg.Go(func() { pprof.Do(m.ctx, pprof.Labels("cordwood", label), f) })
}

// Open adds a partition with its local log, as a follower; [Partition.Lead] makes
// it the leader. The log stays the caller's and must stay open until
// [Partition.Close] has returned. Errors: those of the options, [ErrClosed], and
// one when the partition is open already.
func (m *Manager) Open(id log.PartitionID, l *log.Log, o PartitionOptions) (*Partition, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Partition{m: m, id: id, log: l, read: readLog(l), heapIndex: -1, o: o}
	p.ctx, p.cancel = context.WithCancelCause(m.ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	for old := m.parts[id]; old != nil && old.log == nil; old = m.parts[id] {
		// Its topic was deleted, which the caller will hear of.
		m.mu.Unlock()
		old.Close()
		m.mu.Lock()
	}
	if m.closed || m.err != nil {
		p.cancel(ErrClosed)
		return nil, m.closedErrLocked()
	}
	if m.parts[id] != nil {
		p.cancel(ErrClosed)
		return nil, fmt.Errorf("tier: partition %v is open already", id)
	}
	m.addLocked(p)
	return p, nil
}

// addLocked makes a partition one of the manager's, in the place of another.
func (m *Manager) addLocked(p *Partition) {
	p.ledger = m.ledgerLocked(p.id)
	m.parts[p.id] = p
	m.aimLocked(p)
}

func (m *Manager) closedErrLocked() error {
	if m.err != nil {
		return m.err
	}
	return ErrClosed
}

func (m *Manager) ledgerLocked(id log.PartitionID) *ledger {
	l := m.ledgers[id]
	if l == nil {
		l = &ledger{}
		m.ledgers[id] = l
	}
	return l
}

// Get returns an open partition, or nil.
func (m *Manager) Get(id log.PartitionID) *Partition {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.parts[id]; p != nil && p.log != nil {
		return p
	}
	return nil
}

// Err returns why the manager stopped by itself: an event of the tier log that
// this release can't read. All views are unknown from then on. nil while it runs.
func (m *Manager) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Done is closed when the manager has stopped, by itself or by Close.
func (m *Manager) Done() <-chan struct{} { return m.done }

// fail stops the manager for good.
func (m *Manager) fail(err error) {
	m.mu.Lock()
	if m.closed || m.err != nil {
		m.mu.Unlock()
		return
	}
	m.err = err
	m.mu.Unlock()
	m.o.Logger.Error("tier stopped", "error", err)
	m.cancel(err)
	close(m.done)
}

// Close stops everything the manager started and waits for it; uploads are cut
// off. Calls that wait return [ErrClosed]. Partitions need not be closed before.
// It can be called again. An error is that of letting the disk cache's folder go.
func (m *Manager) Close() error {
	m.mu.Lock()
	first := !m.closed
	m.closed = true
	failed := m.err != nil
	m.mu.Unlock()
	m.cold.close()
	m.cancel(ErrClosed)
	m.wg.Wait()
	var err error
	if first && m.cold.disk != nil {
		err = m.cold.disk.close()
	}
	if first && !failed {
		close(m.done)
	}
	return err
}

// Pause has no upload begin on this node until Resume; those under way go on. Reads,
// retention and deletions go on too. Meanwhile [Partition.Backlog] grows, and local
// copies are kept as long as total retention keeps their records, also those of what
// is in the store. See [PartitionOptions].Paused for a single partition. It can be
// called again.
func (m *Manager) Pause() { m.setPaused(true) }

// Resume ends Pause.
func (m *Manager) Resume() { m.setPaused(false) }

func (m *Manager) setPaused(paused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paused == paused {
		return
	}
	m.paused = paused
	for _, p := range m.parts {
		m.enqueueLocked(taskControl, p)
	}
}

// Stats returns counters and what is under way. It asks each led partition for
// its backlog, so it is not for every millisecond.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	s := m.stats
	s.Applied = m.applied
	s.Partitions = len(m.parts)
	s.Uploading = m.queues[taskUpload].running
	s.Paused = m.paused
	s.OwnerChecked = m.owner == ownerOurs
	s.OwnerError = m.ownErr
	var led []*Partition
	for _, p := range m.parts {
		if p.log == nil {
			s.Partitions--
			s.Remains++
		}
		if p.lead != nil {
			led = append(led, p)
			for _, r := range p.lead.refused {
				if r.parked() {
					s.Parked++
				}
			}
		}
	}
	m.mu.Unlock()
	s.Leading = len(led) - s.Remains
	s.Pin, s.PinnedBy = m.pin()
	for _, p := range led {
		b := p.backlog()
		s.BacklogBytes += b.bytes
		s.BacklogRanges += b.ranges
		if b.ranges > 0 && (s.BacklogOldest.IsZero() || b.oldest.Before(s.BacklogOldest)) {
			s.BacklogOldest = b.oldest
		}
		if b.unknown {
			s.BacklogUnknown++
		}
		p.ledger.mu.RLock()
		s.PendingDeletions += len(p.ledger.state.pending)
		p.ledger.mu.RUnlock()
	}
	calls := m.guard.stats()
	s.StoreHangs, s.StoreAbandoned, s.StorePanics = calls.hung, calls.abandoned, calls.panics
	c := m.cold
	if d := c.disk; d != nil {
		d.mu.Lock()
		s.DiskHits, s.DiskWrites, s.DiskDamaged, s.DiskFailures = d.stats.hits, d.stats.writes, d.stats.damaged, d.stats.failures
		s.DiskBytes, s.DiskFiles = d.used, len(d.entries)
		d.mu.Unlock()
	}
	c.bytes.mu.Lock()
	s.BytesUnderWay = c.bytes.used
	c.bytes.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Hits, s.Misses = c.stats.hits, c.stats.misses
	s.Fetches, s.FetchBytes, s.FetchFailures = c.stats.fetches, c.stats.bytes, c.stats.failures
	s.Corrupt, s.Missing, s.ReadAhead = c.stats.corrupt, c.stats.missing, c.stats.ahead
	s.CachedBytes, s.CachedParts, s.ReadsUnderWay = c.cached, len(c.cache), len(c.flights)
	return s
}

// feed follows the tier log and applies it.
func (m *Manager) feed(ctx context.Context) {
	at := m.loadStates()
	fresh := true // where to begin is to be found out
	for failures := 0; ctx.Err() == nil; failures++ {
		if fresh {
			start, err := m.begin(ctx, at, failures >= patience)
			if err != nil {
				if ctx.Err() == nil && failures == 0 {
					m.o.Logger.Warn("begin to read the tier log", "error", err)
				}
				if sleep(ctx, backoff(failures, &m.o, err)) != nil {
					return
				}
				continue
			}
			at, fresh, failures = start, false, 0
		}
		for c, err := range m.o.Events.Read(ctx, at) {
			if err != nil {
				// It was trimmed past this reader.
				fresh = errors.Is(err, log.ErrOffsetOutOfRange)
				if ctx.Err() == nil {
					m.o.Logger.Warn("read the tier log", "offset", int64(at), "error", err)
				}
				break
			}
			failures = 0
			if c.Offset < at {
				continue
			}
			if c.Event != nil {
				e, err := DecodeEvent(c.Event)
				if err == nil {
					err = m.apply(c, e)
				}
				if err != nil {
					m.fail(fmt.Errorf("tier log at offset %d: %w", c.Offset, err))
					return
				}
			}
			at = c.Offset + 1
			m.reached(at)
		}
		if sleep(ctx, backoff(failures, &m.o, nil)) != nil {
			return
		}
	}
}

// patience is how often a tier log that ends below what was read of it is asked again:
// a leader that has just begun may not know yet how far it is committed.
const patience = 12

// begin returns where to read from, given that the states are as of at: there, if the
// tier log has it, else at its start, and then with empty states, which the
// checkpoints fill. force takes a tier log that ends below at for what it says.
func (m *Manager) begin(ctx context.Context, at log.Offset, force bool) (log.Offset, error) {
	ctx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
	defer cancel()
	start, err := m.o.Events.Start(ctx)
	if err != nil {
		return 0, fmt.Errorf("start of the tier log: %w", err)
	}
	if at == 0 && start == 0 {
		return 0, nil
	}
	end, err := m.o.Events.End(ctx)
	if err != nil {
		return 0, fmt.Errorf("end of the tier log: %w", err)
	}
	if at >= start && at <= end {
		m.reached(at)
		return at, nil
	}
	if at > end && !force {
		return 0, fmt.Errorf("the tier log ends at %d, below %d, which was read of it", end, at)
	}
	if at > end {
		m.o.Logger.Error("the tier log ends below what was read of it", "read", int64(at), "end", int64(end))
	}
	m.mu.Lock()
	m.tentative.Store(true) // before any state is empty that was known
	for id, l := range m.ledgers {
		l.mu.Lock()
		l.state, l.pinned, l.since, l.missing, l.gone = State{}, false, 0, nil, false
		l.unclear.Store(false)
		l.mu.Unlock()
		if m.parts[id] == nil && l.proposal == nil {
			delete(m.ledgers, id)
		}
	}
	m.applied, m.target = start, max(start, end)
	m.mu.Unlock()
	m.reached(start)
	return start, nil
}

// apply takes one event into its ledger and tells who is concerned. An error ends the
// manager.
func (m *Manager) apply(c Committed, e Event) error {
	m.mu.Lock()
	l := m.ledgerLocked(e.Partition)
	p := m.parts[e.Partition]
	l.mu.Lock() // before m.mu goes, or a Close could drop the ledger without the event
	m.mu.Unlock()
	gap := !m.tentative.Load() && l.missing == nil && l.state.misses(e)
	v, wait, err := m.take(l, c, e)
	if err != nil || wait {
		l.mu.Unlock()
		return err
	}
	if l.unused() {
		defer m.dropLedger(e.Partition)
	}
	if l.proposal != nil && l.proposal.meets(&l.state, e, v, c.Event) {
		l.proposal = nil
	}
	view := l.state.view(p != nil && p.isKnown())
	l.mu.Unlock()
	if gap && !v.Taken() {
		m.gap(c, e)
	}
	m.told(p, c, e, v, view)
	return nil
}

// unused says whether nothing would be lost with a ledger: the partition is
// forgotten, or no event of it ever counted. Requires: ledger.mu.
func (l *ledger) unused() bool { return !l.pinned && l.missing == nil }

// dropLedger removes a ledger that is unused, unless its partition is open.
func (m *Manager) dropLedger(id log.PartitionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropLedgerLocked(id)
}

func (m *Manager) dropLedgerLocked(id log.PartitionID) {
	l := m.ledgers[id]
	if l == nil || m.parts[id] != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unused() && l.proposal == nil {
		delete(m.ledgers, id)
	}
}

// take applies an event to a ledger. wait is true if it is kept for when the state has
// been read from a manifest. Requires: ledger.mu.
func (m *Manager) take(l *ledger, c Committed, e Event) (v Verdict, wait bool, err error) {
	if !l.pinned && !l.gone && (l.state.opened || e.Seq == 0) {
		l.pin, l.pinned = c.Offset, true
	}
	if _, ok := e.Body.(Forgotten); ok && (m.tentative.Load() || l.missing != nil) {
		// As with a checkpoint, its word counts; and what a manifest had is of no use.
		newest := &l.state
		if l.missing != nil {
			newest = &l.missing.newest
		}
		if newest.newer(e) {
			l.state = State{opened: true, deleted: true, epoch: e.Epoch, seq: e.Seq}
			l.forget()
			return Applied, false, nil
		}
	}
	cp, ok := e.Body.(Checkpoint)
	if ok && (m.tentative.Load() || l.missing != nil) {
		// What came before may not have been seen: the checkpoint's word counts, unless it
		// is an old one that came late.
		newest := &l.state
		if l.missing != nil {
			newest = &l.missing.newest
		}
		if newest.newer(e) {
			if cp.State == nil {
				if !l.pinned {
					l.pin, l.pinned = c.Offset, true
				}
				l.missing = &missingState{event: e, at: c, newest: State{opened: true, epoch: e.Epoch, seq: e.Seq}}
				l.unclear.Store(true)
				m.load(l)
				return 0, true, nil
			}
			if err := l.state.load(e, cp.State); err != nil {
				return 0, false, err
			}
			l.checkpointed(c.Offset)
			return Applied, false, nil
		}
	}
	if l.missing != nil {
		l.missing.hold(c, e)
		return 0, true, nil
	}
	v = l.state.Apply(e)
	switch {
	case v == RefusedState:
		return v, false, fmt.Errorf("%w: the state of partition %v here is not that of its checkpoint", ErrCorrupt, e.Partition)
	case ok && v == Applied:
		l.checkpointed(c.Offset)
	case v == Applied && e.Body.kind() == kindForgotten:
		l.forget()
	case v.Taken() && e.Seq > 0: // a barrier alone makes no checkpoint worth while
		l.since++
	}
	return v, false, nil
}

// gap tells that an event is missing before e. The state stays as it was, which is a
// state that the partition has had; the next checkpoint that it takes will show that it
// is another than that of its writer.
func (m *Manager) gap(c Committed, e Event) {
	m.mu.Lock()
	m.stats.Gaps++
	m.mu.Unlock()
	m.o.Logger.Error("an event of the tier log is missing", "partition", e.Partition.String(), "offset", int64(c.Offset),
		"epoch", int(e.Epoch), "seq", e.Seq)
}

// checkpointed notes that a checkpoint counts. Requires: ledger.mu.
func (l *ledger) checkpointed(at log.Offset) {
	l.pin, l.pinned, l.since, l.saved = at, true, 0, time.Now()
	l.missing = nil
	l.unclear.Store(false)
}

// forget notes that nothing of the partition is needed any more. Requires: ledger.mu.
func (l *ledger) forget() {
	l.gone, l.pinned, l.since = true, false, 0
	l.missing = nil
	l.unclear.Store(false)
}

// told tells of an event that has been applied.
func (m *Manager) told(p *Partition, c Committed, e Event, v Verdict, view View) {
	m.mu.Lock()
	m.stats.Events[v]++
	m.mu.Unlock()
	if v != Applied && v != IgnoredBarrier && v != IgnoredSeq && !m.tentative.Load() {
		m.o.Logger.Warn("tier event without effect", "partition", e.Partition.String(), "offset", int64(c.Offset),
			"epoch", int(e.Epoch), "seq", e.Seq, "verdict", v.String())
	}
	if p == nil {
		return
	}
	p.applied(view)
	if m.o.Hooks.Applied != nil {
		m.o.Hooks.Applied(AppliedInfo{Partition: e.Partition, Offset: c.Offset, Event: e, Verdict: v, View: view})
	}
}

// reached notes that everything below at is applied.
func (m *Manager) reached(at log.Offset) {
	m.mu.Lock()
	m.applied = at
	if m.tentative.Load() && at >= m.target {
		m.tentative.Store(false)
		for _, p := range m.parts {
			m.enqueueLocked(taskControl, p)
		}
	}
	waiters := m.waiters[:0]
	for _, w := range m.waiters {
		if w.target <= at {
			close(w.ready)
		} else {
			waiters = append(waiters, w)
		}
	}
	clear(m.waiters[len(waiters):])
	m.waiters = waiters
	m.mu.Unlock()
}

// catchUp returns when this node has applied everything that was committed when
// it was called.
func (m *Manager) catchUp(ctx context.Context) error {
	end, err := m.o.Events.End(ctx)
	if err != nil {
		return fmt.Errorf("end of the tier log: %w", err)
	}
	return m.waitApplied(ctx, end)
}

func (m *Manager) waitApplied(ctx context.Context, target log.Offset) error {
	m.mu.Lock()
	if m.applied >= target {
		m.mu.Unlock()
		return nil
	}
	w := appliedWaiter{target, make(chan struct{})}
	m.waiters = append(m.waiters, w)
	m.mu.Unlock()
	var err error
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-m.ctx.Done():
		err = m.closedErr()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, o := range m.waiters {
		if o.ready == w.ready {
			m.waiters = append(m.waiters[:i], m.waiters[i+1:]...)
			break
		}
	}
	return err
}

func (m *Manager) closedErr() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closedErrLocked()
}

// aimLocked has a partition's view become known once the tier log is applied up
// to where it stands now. One goroutine asks for all that wait.
func (m *Manager) aimLocked(p *Partition) {
	m.unaimed = append(m.unaimed, p)
	if m.aiming {
		return
	}
	m.aiming = true
	m.run("tier-aim", m.aim)
}

func (m *Manager) aim(ctx context.Context) {
	for failures := 0; ; failures++ {
		m.mu.Lock()
		parts := m.unaimed
		m.unaimed = nil
		if len(parts) == 0 {
			m.aiming = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		tctx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
		end, err := m.o.Events.End(tctx)
		cancel()
		if err == nil {
			err = m.waitApplied(ctx, end)
		}
		if err != nil {
			m.mu.Lock()
			m.unaimed = append(m.unaimed, parts...)
			m.mu.Unlock()
			if ctx.Err() != nil {
				return
			}
			m.o.Logger.Debug("tier state not known yet", "error", err)
			if sleep(ctx, backoff(failures, &m.o, err)) != nil {
				return
			}
			continue
		}
		failures = -1
		for _, p := range parts {
			p.setKnown()
		}
	}
}

// checkOwner finds out whose the prefix is, in the background.
func (m *Manager) checkOwner(ctx context.Context) {
	key := OwnerKey(m.o.Prefix)
	content := ownerContent(m.o.Cluster)
	for failures := 0; ctx.Err() == nil; failures++ {
		owner, err := m.askOwner(ctx, key, content)
		m.mu.Lock()
		m.owner, m.ownErr = owner, err
		var parts []*Partition
		if owner == ownerOurs {
			for _, p := range m.parts {
				parts = append(parts, p)
			}
		}
		m.mu.Unlock()
		if owner == ownerForeign {
			m.o.Logger.Error("object store refused", "key", key, "error", err)
			return
		}
		if owner == ownerOurs {
			for _, p := range parts {
				p.Kick()
			}
			return
		}
		if sleep(ctx, backoff(failures, &m.o, err)) != nil {
			return
		}
	}
}

func (m *Manager) askOwner(ctx context.Context, key string, content []byte) (ownership, error) {
	ctx, cancel := context.WithTimeout(ctx, m.o.StoreTimeout)
	defer cancel()
	put := func() error {
		return m.o.Store.Put(ctx, key, bytes.NewReader(content), int64(len(content)), PutOptions{
			IfAbsent: true, CRC32C: checksum(content), HasCRC32C: true,
		})
	}
	if m.o.Store.Capabilities().IfAbsent {
		err := put()
		if err == nil {
			return ownerOurs, nil
		}
		if !errors.Is(err, ErrExists) {
			return ownerUnknown, err
		}
	}
	got, err := m.o.Store.GetRange(ctx, key, 0, int64(len(content)))
	if errors.Is(err, ErrNotFound) {
		// A store without conditions: two clusters that begin at the same moment
		// can both write here, and one of them finds out at its next start.
		if err = put(); err == nil {
			got, err = m.o.Store.GetRange(ctx, key, 0, int64(len(content)))
		}
	}
	if err != nil {
		return ownerUnknown, err
	}
	// Only an intact object of another cluster is final: damage may be that of one
	// read, and until it is settled nothing is written.
	id, err := parseOwner(got)
	if err != nil {
		return ownerUnknown, fmt.Errorf("%s: %w", key, err)
	}
	if id != m.o.Cluster {
		return ownerForeign, fmt.Errorf("%w: %s names cluster %v, this is %v", ErrForeignStore, key, id, m.o.Cluster)
	}
	return ownerOurs, nil
}

// ours says whether objects may be written and deleted.
func (m *Manager) ours() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owner == ownerOurs
}

// schedule starts what is due, and a pass over all partitions each Interval.
func (m *Manager) schedule(ctx context.Context) {
	pass := time.NewTimer(m.o.Interval)
	defer pass.Stop()
	next := time.NewTimer(time.Hour)
	defer next.Stop()
	for {
		m.mu.Lock()
		now := time.Now()
		for len(m.due) > 0 && !m.due[0].dueAt.After(now) {
			p := heap.Pop(&m.due).(*Partition)
			m.enqueueLocked(taskControl, p)
		}
		wait := time.Hour
		if len(m.due) > 0 {
			wait = m.due[0].dueAt.Sub(now)
		}
		m.mu.Unlock()
		next.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-next.C:
		case <-pass.C:
			pass.Reset(m.o.Interval)
			m.mu.Lock()
			m.passLocked(time.Now())
			m.mu.Unlock()
		}
	}
}

// passLocked has the control task of each partition run once within the interval:
// of a few at once, of many at the moment that each has in it.
func (m *Manager) passLocked(now time.Time) {
	for _, p := range m.parts {
		if len(m.parts) <= controlWorkers {
			m.enqueueLocked(taskControl, p)
		} else {
			m.atLocked(p, now.Add(phase(p.id, m.o.Interval)))
		}
	}
}

// atLocked has a partition's control task run at t, or before.
func (m *Manager) atLocked(p *Partition, t time.Time) {
	if p.closed {
		return
	}
	switch {
	case p.heapIndex < 0:
		p.dueAt = t
		heap.Push(&m.due, p)
	case t.Before(p.dueAt):
		p.dueAt = t
		heap.Fix(&m.due, p.heapIndex)
	default:
		return
	}
	if p.heapIndex == 0 {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// enqueueLocked has a task of a partition run soon, once more if it runs now.
func (m *Manager) enqueueLocked(k taskKind, p *Partition) {
	if m.closed || m.err != nil || p.closed {
		return
	}
	t := &p.tasks[k]
	if t.running {
		t.again = true
		return
	}
	if t.queued {
		return
	}
	t.queued = true
	q := &m.queues[k]
	q.list = append(q.list, p)
	if q.running < q.limit {
		q.running++
		m.run(taskLabels[k], func(ctx context.Context) { m.work(ctx, k) })
	}
}

// work runs tasks until there are none. So an idle manager has no workers.
func (m *Manager) work(ctx context.Context, k taskKind) {
	q := &m.queues[k]
	m.mu.Lock()
	for len(q.list) > 0 && ctx.Err() == nil {
		p := q.list[0]
		q.list = q.list[1:]
		t := &p.tasks[k]
		t.queued = false
		if p.closed {
			continue
		}
		t.running = true
		lead := p.lead
		p.wg.Add(1)
		if lead != nil {
			lead.wg.Add(1)
		}
		if k == taskControl {
			p.lastControl = time.Now()
			p.kicked.Store(false)
		}
		m.mu.Unlock()
		switch {
		case k == taskControl:
			p.control(lead)
		case lead == nil:
		case k == taskUpload:
			p.upload(lead)
		default:
			p.delete(lead)
		}
		m.mu.Lock()
		if lead != nil {
			lead.wg.Done()
		}
		p.wg.Done()
		t.running = false
		if t.again {
			t.again = false
			m.enqueueLocked(k, p)
		}
	}
	q.running--
	m.mu.Unlock()
}

// dueHeap orders partitions by the time of their next control task.
type dueHeap []*Partition

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].dueAt.Before(h[j].dueAt) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}
func (h *dueHeap) Push(x any) {
	p := x.(*Partition)
	p.heapIndex = len(*h)
	*h = append(*h, p)
}
func (h *dueHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	p.heapIndex = -1
	return p
}

// A task is the place of one kind of work of one partition in its queue.
type task struct{ queued, running, again bool }

func (m *Manager) logger(p *Partition) *slog.Logger {
	return m.o.Logger.With("partition", p.id.String())
}
