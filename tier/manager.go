package tier

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/pprof"
	"slices"
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
	StatesMissing    int             // partitions whose state is not known here: the manifest of their checkpoint can't be read
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
	ledgers := slices.Collect(maps.Values(m.ledgers))
	m.mu.Unlock()
	for _, l := range ledgers {
		l.mu.RLock()
		if l.missing != nil && l.missing.err != nil {
			s.StatesMissing++
		}
		l.mu.RUnlock()
	}
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

func (m *Manager) closedErr() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closedErrLocked()
}

func (m *Manager) logger(p *Partition) *slog.Logger {
	return m.o.Logger.With("partition", p.id.String())
}
