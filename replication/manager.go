package replication

import (
	"context"
	"errors"

	"github.com/cordwood-io/cordwood/log"
)

var errUnfinished = errors.New("replication: unfinished")

// A Manager is one node's replication.
type Manager struct{}

// NewManager starts a manager.
func NewManager(o Options) (*Manager, error) { return nil, errUnfinished }

// SetSelf gives the broker epoch of this process after its registration.
func (m *Manager) SetSelf(self Member) {}

// Open adds the replica of l's partition.
func (m *Manager) Open(ctx context.Context, l *log.Log, fs log.FS, dir string, o ReplicaOptions) (*Replica, error) {
	return nil, errUnfinished
}

// Handle answers a fetch request of a peer.
func (m *Manager) Handle(ctx context.Context, from NodeID, request []byte) (header []byte, payload Payload, err error) {
	return nil, nil, errUnfinished
}

// HandleProgress takes a one-way message of a peer.
func (m *Manager) HandleProgress(from NodeID, message []byte) {}

// Get returns an open replica or nil.
func (m *Manager) Get(id log.PartitionID) *Replica { return nil }

// Close closes one replica; its log stays open.
func (m *Manager) Close(id log.PartitionID) error { return errUnfinished }

// Shutdown closes all replicas and ends every goroutine.
func (m *Manager) Shutdown() error { return errUnfinished }

// A Replica is this node's copy of one partition.
type Replica struct{}

// Apply takes an assignment.
func (r *Replica) Apply(a Assignment) {}

// Append appends and waits as acks says.
func (r *Replica) Append(ctx context.Context, batches []byte, acks Acks) (log.Appended, error) {
	return log.Appended{}, errUnfinished
}

// Submit appends and returns before the wait.
func (r *Replica) Submit(ctx context.Context, batches []byte, acks Acks) (*Pending, error) {
	return nil, errUnfinished
}

// A Pending is an append that was written and waits.
type Pending struct{}

// Wait waits for the outcome.
func (p *Pending) Wait(ctx context.Context) (log.Appended, error) {
	return log.Appended{}, errUnfinished
}

// Done is closed when the outcome is known.
func (p *Pending) Done() <-chan struct{} { return nil }

// Read returns committed batches.
func (r *Replica) Read(ctx context.Context, from log.Offset, maxBytes int) (*log.Slice, error) {
	return nil, errUnfinished
}

// Wait waits until off may be read.
func (r *Replica) Wait(ctx context.Context, off log.Offset) error { return errUnfinished }

// WaitReady waits until this replica leads and its epoch-start record is committed.
func (r *Replica) WaitReady(ctx context.Context) (log.Epoch, error) { return 0, errUnfinished }

// HighWatermark returns the high watermark.
func (r *Replica) HighWatermark() log.Offset { return 0 }

// Status describes the replica.
func (r *Replica) Status() Status { return Status{} }

// Lossy tells that this replica lost records it had reported durable.
func (r *Replica) Lossy() bool { return false }

// Partition names the partition.
func (r *Replica) Partition() log.PartitionID { return log.PartitionID{} }

// Log returns the log beneath.
func (r *Replica) Log() *log.Log { return nil }
