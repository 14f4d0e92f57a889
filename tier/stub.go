package tier

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

const (
	maxBatchBytes  = 256 << 20
	maxObjectBytes = 1 << 40
)

var errNotYet = errors.New("tier: not built")

// A Manager runs the cold half of all partitions of one node.
type Manager struct{}

// NewManager starts a manager.
func NewManager(o Options) (*Manager, error) { return nil, errNotYet }

// Open adds a partition; Lead or Follow says what it does.
func (m *Manager) Open(p log.PartitionID, l *log.Log, o PartitionOptions) (*Partition, error) {
	return nil, errNotYet
}

// Get returns an open partition, or nil.
func (m *Manager) Get(p log.PartitionID) *Partition { return nil }

// Err returns why the manager stopped for good, or nil.
func (m *Manager) Err() error { return nil }

// Done is closed when the manager has stopped for good.
func (m *Manager) Done() <-chan struct{} { return nil }

// Stats returns counters.
func (m *Manager) Stats() Stats { return Stats{} }

// Stats are counters.
type Stats struct{}

// Close stops everything.
func (m *Manager) Close() error { return nil }

// A Partition is the cold half of one partition on this node.
type Partition struct{}

func (p *Partition) ID() log.PartitionID                 { return log.PartitionID{} }
func (p *Partition) Lead(epoch log.Epoch)                {}
func (p *Partition) Follow()                             {}
func (p *Partition) Kick()                               {}
func (p *Partition) View() View                          { return View{} }
func (p *Partition) WaitKnown(ctx context.Context) error { return errNotYet }
func (p *Partition) State() *State                       { return nil }
func (p *Partition) SetOptions(o PartitionOptions) error { return nil }
func (p *Partition) Backlog() (bytes int64, ranges int)  { return 0, 0 }
func (p *Partition) Read(ctx context.Context, from log.Offset, maxBytes int) (*Slice, error) {
	return nil, errNotYet
}
func (p *Partition) TrimTo(ctx context.Context, start log.Offset, note string) error {
	return errNotYet
}
func (p *Partition) OffsetForTime(ctx context.Context, t time.Time) (log.Offset, bool, error) {
	return 0, false, errNotYet
}
func (p *Partition) Close() {}

// A Log is a log over hot and cold on one machine.
type Log struct{}

// Open makes one of a log.
func Open(ctx context.Context, l *log.Log, o Options) (*Log, error) { return nil, errNotYet }

func (l *Log) Append(ctx context.Context, batch []byte) (log.Appended, error) {
	return log.Appended{}, errNotYet
}
func (l *Log) AppendRecords(ctx context.Context, records ...record.Record) (log.Appended, error) {
	return log.Appended{}, errNotYet
}
func (l *Log) Read(ctx context.Context, from log.Offset, maxBytes int) (*Slice, error) {
	return nil, errNotYet
}
func (l *Log) Records(ctx context.Context, from log.Offset) iter.Seq2[log.Record, error] { return nil }
func (l *Log) Wait(ctx context.Context, off log.Offset) error                            { return errNotYet }
func (l *Log) OffsetForTime(ctx context.Context, t time.Time) (log.Offset, bool, error) {
	return 0, false, errNotYet
}
func (l *Log) TrimTo(ctx context.Context, start log.Offset) error { return errNotYet }
func (l *Log) Start() log.Offset                                  { return 0 }
func (l *Log) End() log.Offset                                    { return 0 }
func (l *Log) Partition() *Partition                              { return nil }
func (l *Log) Close() error                                       { return nil }

// LocalEvents is the tier log of one machine.
type LocalEvents struct{}

// LocalOptions configure LocalEvents.
type LocalOptions struct {
	FS   log.FS
	Disk *log.Disk
}

// OpenLocalEvents opens or makes it in dir.
func OpenLocalEvents(ctx context.Context, dir string, o LocalOptions) (*LocalEvents, error) {
	return nil, errNotYet
}
func (e *LocalEvents) Append(ctx context.Context, p log.PartitionID, event []byte) error {
	return errNotYet
}
func (e *LocalEvents) Read(ctx context.Context, from log.Offset) iter.Seq2[Committed, error] {
	return nil
}
func (e *LocalEvents) End(ctx context.Context) (log.Offset, error) { return 0, errNotYet }
func (e *LocalEvents) Cluster() ID                                 { return ID{} }
func (e *LocalEvents) Close() error                                { return nil }
