package tier

import (
	"maps"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// Exports for tests in package tier_test.

// BudgetsUsed returns what cold reads hold of their budgets.
func (m *Manager) BudgetsUsed() (requests, bytes int64) {
	m.cold.requests.mu.Lock()
	defer m.cold.requests.mu.Unlock()
	m.cold.bytes.mu.Lock()
	defer m.cold.bytes.mu.Unlock()
	return m.cold.requests.used, m.cold.bytes.used
}

// Backoff is backoff with default options.
func Backoff(failures int) time.Duration {
	return backoff(failures, &Options{MinBackoff: DefaultMinBackoff, MaxBackoff: DefaultMaxBackoff}, nil)
}

// WithInlineState makes states above n bytes go into manifests.
func WithInlineState(o Options, n int64) Options {
	o.inlineBytes = n
	return o
}

// CheckpointOf returns the checkpoint event's body for a state, and the state's bytes.
func CheckpointOf(s *State) Checkpoint { return s.checkpoint() }

// Ledgers returns how many partitions the manager knows a state of.
func (m *Manager) Ledgers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ledgers)
}

// Known returns the partitions that the manager knows a state of.
func (m *Manager) Known() []log.PartitionID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.ledgers), comparePartitions)
}

// Forget empties the state as a manager does that begins anew, with a pause in it.
func (p *Partition) Forget(pause func()) {
	p.ledger.mu.Lock()
	defer p.ledger.mu.Unlock()
	pause()
	p.m.tentative.Store(true)
	p.ledger.state = State{}
}

// LoadCheckpoint reads a state back from its checkpoint.
func LoadCheckpoint(s *State) error {
	c := s.checkpoint()
	return new(State).load(Event{Epoch: s.epoch, Seq: s.seq + 1, Body: c}, c.State)
}

// OwnerContent is what the owner object of a cluster holds.
func OwnerContent(cluster ID) []byte { return ownerContent(cluster) }

// Supersede puts another range in place of the one with the same base.
func (p *Partition) Supersede(r Range) {
	p.ledger.mu.Lock()
	defer p.ledger.mu.Unlock()
	for i, old := range p.ledger.state.ranges {
		if old.Base == r.Base {
			p.ledger.state.ranges = slices.Clone(p.ledger.state.ranges)
			p.ledger.state.ranges[i] = r
		}
	}
}

// Decides applies an event and says whether that decides the proposal of it, and how if
// not by a verdict.
func Decides(s *State, e Event, settled bool) (decided bool, err error) {
	raw, err := EncodeEvent(e)
	if err != nil {
		return false, err
	}
	f := &proposal{epoch: e.Epoch, seq: e.Seq, body: e.Body, event: raw, done: make(chan struct{}), cancel: func() {}}
	decided = f.meets(s, e, s.Apply(e), raw, settled)
	return decided, f.err
}
