package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// Lock order: Replica.mu, Manager.mu, session.mu or fetcher.mu. Nothing is waited
// for while one is held. The write turn of a replica is a channel and is taken
// before any lock.

// A Manager is one node's replication: all its replicas, the sessions in which
// other nodes fetch from them, and the fetchers that follow other leaders.
type Manager struct {
	opt    Options
	clock  *clock
	ctx    context.Context // ends with Shutdown; lifetime of the goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	self     Member
	replicas map[log.PartitionID]*Replica
	sessions map[peer]*session
	hurry    map[peer]requestID // answer this request at once
	fetchers map[peer]*fetcher
	lastID   uint64 // of a session that this node began

	leads       []*Replica // wait for their epoch-start record
	leadWorkers int

	hints      map[*Replica]struct{} // high watermark moved since it was written
	hintAlarm  alarm
	hintActive bool
}

// A peer is one direction of a pair of nodes, by class.
type peer struct {
	node    NodeID
	catchUp bool
}

// A requestID names one request of a session.
type requestID struct {
	session uint64
	n       uint32
}

// NewManager starts a manager. It returns all mistakes in o at once. The caller
// must call [Manager.Shutdown].
func NewManager(o Options) (*Manager, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Manager{
		opt:      o,
		clock:    newClock(),
		self:     o.Self,
		replicas: make(map[log.PartitionID]*Replica),
		sessions: make(map[peer]*session),
		hurry:    make(map[peer]requestID),
		fetchers: make(map[peer]*fetcher),
		hints:    make(map[*Replica]struct{}),
	}
	m.hintAlarm.fn = m.startHints
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.run("replication-clock", func(ctx context.Context) { m.clock.run(ctx.Done()) })
	return m, nil
}

// run starts a goroutine that Shutdown joins. Requires: not after Shutdown's join,
// which holds because only calls and goroutines that are themselves counted, or that
// checked closed under mu, get here.
func (m *Manager) run(what string, f func(context.Context)) {
	m.wg.Go(func() {
		pprof.Do(m.ctx, pprof.Labels("cordwood", what), f)
	})
}

// SetSelf tells the broker epoch under which this process is registered now.
// Leadership and acknowledgements of an earlier epoch end: appends that wait get an
// [*IndeterminateError].
func (m *Manager) SetSelf(self Member) {
	m.mu.Lock()
	m.self = self
	all := m.allLocked()
	m.mu.Unlock()
	for _, r := range all {
		r.step(evSelf{self, time.Now()})
	}
}

func (m *Manager) allLocked() []*Replica {
	all := make([]*Replica, 0, len(m.replicas))
	for _, r := range m.replicas {
		all = append(all, r)
	}
	return all
}

// Open adds the replica of l's partition. It does nothing until [Replica.Apply]. fs
// and dir say where the high watermark is noted (see [HintFile]), normally the log's
// own directory. The log stays the caller's, who closes it after the replica and
// appends to it in no other way; moving its starts (TrimTo, DropLocal up to the high
// watermark) and reading is allowed.
//
// Errors: [ErrOpen], [ErrClosed], and errors of reading the hint.
func (m *Manager) Open(ctx context.Context, l *log.Log, fs log.FS, dir string, o ReplicaOptions) (*Replica, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	id := l.Partition()
	h := hint{fs: fs, dir: dir, id: id}
	hw, err := h.read()
	if err != nil {
		return nil, err
	}
	r := newReplica(m, l, h, o)
	rec := l.Recovery()
	r.mu.Lock()
	defer r.mu.Unlock()
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, ErrClosed
	}
	if m.replicas[id] != nil {
		m.mu.Unlock()
		return nil, fmt.Errorf("%w: %v", ErrOpen, id)
	}
	m.replicas[id] = r
	r.core = newCore(config{LagMax: m.opt.LagMax, AckLatency: m.opt.AckLatency, Retry: m.opt.RetryBackoff}, m.self)
	m.mu.Unlock()
	r.stepLocked(evOpened{Start: l.Start(), LocalStart: l.LocalStart(), End: l.End(), Durable: l.DurableEnd(),
		Chain: l.EpochChain(), Hint: hw, Lossy: rec.Lossy, Damaged: rec.Lossy, Tiered: o.Tier != nil})
	return r, nil
}

// Get returns the open replica of a partition, nil if there is none.
func (m *Manager) Get(id log.PartitionID) *Replica {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.replicas[id]
}

// Close closes the replica of a partition: its waiters get [ErrClosed] (appends
// inside an [*IndeterminateError]), and it returns when nothing of this package uses
// the log any more. A partition that is not open is no error.
func (m *Manager) Close(id log.PartitionID) error {
	r := m.Get(id)
	if r == nil {
		return nil
	}
	return r.close()
}

// Shutdown closes all replicas and returns when every goroutine has ended. It can be
// called again.
func (m *Manager) Shutdown() error {
	m.mu.Lock()
	m.closed = true
	all := m.allLocked()
	m.mu.Unlock()
	m.cancel()
	var errs []error
	for _, r := range all {
		errs = append(errs, r.close())
	}
	m.wg.Wait()
	return errors.Join(errs...)
}

// backoff returns a pause before the n-th attempt, from 0.
func (m *Manager) backoff(n int) time.Duration {
	d := m.opt.RetryBackoff << min(max(n, 0), 5)
	return d/2 + rand.N(d/2+1)
}

// enqueueLead has the epoch-start record of a new leader written by a bounded pool.
// One whose appenders wait is written by the first of them instead.
func (m *Manager) enqueueLead(r *Replica) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.leads = append(m.leads, r)
	if m.leadWorkers < m.opt.EpochStarts {
		m.leadWorkers++
		m.run("replication-lead", m.leadWorker)
	}
}

func (m *Manager) leadWorker(ctx context.Context) {
	for {
		m.mu.Lock()
		if len(m.leads) == 0 || m.closed {
			m.leadWorkers--
			m.mu.Unlock()
			return
		}
		r := m.leads[0]
		m.leads = m.leads[1:]
		m.mu.Unlock()
		r.startEpoch(ctx)
	}
}

// hintLater notes that r's high watermark has moved.
func (m *Manager) hintLater(r *Replica, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.hints[r] = struct{}{}
	if !m.hintActive {
		m.hintActive = true
		m.clock.before(&m.hintAlarm, now.Add(m.opt.HintInterval))
	}
}

// startHints writes down the high watermarks that have moved, on a goroutine of its
// own since the disk may be slow.
func (m *Manager) startHints() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.run("replication-hints", func(ctx context.Context) {
		m.mu.Lock()
		todo := m.hints
		m.hints = make(map[*Replica]struct{})
		m.hintActive = false
		m.mu.Unlock()
		for r := range todo {
			if ctx.Err() != nil {
				return
			}
			r.writeHint(ctx)
		}
	})
}
