package log

import (
	"context"
	"errors"
	"io"
	"iter"
	"math"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

var errNotYet = errors.New("log: not built yet")

const maxOffset = Offset(math.MaxInt64)

type buffer struct{}

func (*buffer) put() {}

type epochChain []EpochStart

func (c epochChain) last() Epoch                                   { return -1 }
func (c epochChain) clone() []EpochStart                           { return nil }
func (c epochChain) endOffset(e Epoch, end Offset) (Epoch, Offset) { return -1, -1 }

type producerTable struct{}

func (*producerTable) lastStable(end Offset) Offset { return end }

// Log is one partition's log. Its methods are safe for concurrent use.
type Log struct {
	mu                         sync.Mutex
	start, local, end, durable Offset
	chain                      epochChain
	producers                  producerTable
	failed                     *FailedError
	recovery                   Recovery
	meta                       struct{ partition PartitionID }
}

func Open(ctx context.Context, dir string, o Options) (*Log, error) { return nil, errNotYet }

type Disk struct{ fs FS }
type DiskOptions struct {
	FS                                FS
	Dir                               string
	OpenFiles, BlockingCalls, Syncers int
	ReserveBytes                      int64
}
type DiskStats struct{}

func NewDisk(DiskOptions) (*Disk, error) { return nil, errNotYet }
func (d *Disk) Close() error             { return nil }
func (d *Disk) Stats() DiskStats         { return DiskStats{} }

type OSFS struct{}

func (OSFS) Create(name string) (File, error)           { return nil, errNotYet }
func (OSFS) Open(name string, write bool) (File, error) { return nil, errNotYet }
func (OSFS) Remove(name string) error                   { return errNotYet }
func (OSFS) Rename(oldName, newName string) error       { return errNotYet }
func (OSFS) Link(oldName, newName string) error         { return errNotYet }
func (OSFS) MkdirAll(name string) error                 { return errNotYet }
func (OSFS) List(dir string) ([]string, error)          { return nil, errNotYet }
func (OSFS) Stat(name string) (FileInfo, error)         { return FileInfo{}, errNotYet }
func (OSFS) SyncDir(dir string) error                   { return errNotYet }
func (OSFS) Lock(name string) (io.Closer, error)        { return nil, errNotYet }
func (OSFS) FreeBytes(dir string) (int64, error)        { return 0, errNotYet }

func (l *Log) append(context.Context, []byte) (Appended, error) { return Appended{}, errNotYet }
func (l *Log) appendRecords(context.Context, []record.Record) (Appended, error) {
	return Appended{}, errNotYet
}
func (l *Log) write(Epoch, []byte, bool) (Appended, error) { return Appended{}, errNotYet }
func (l *Log) appendReplicated([]byte) (Appended, error)   { return Appended{}, errNotYet }
func (l *Log) sync(context.Context) (Offset, error)        { return 0, errNotYet }
func (l *Log) syncLater(done func(Offset, error))          { done(0, errNotYet) }
func (l *Log) read(context.Context, Offset, Offset, int) (*Slice, error) {
	return nil, errNotYet
}
func (l *Log) records(context.Context, Offset) iter.Seq2[Record, error] { return nil }
func (l *Log) wait(context.Context, Offset, bool) error                 { return errNotYet }
func (l *Log) truncateTo(context.Context, Offset) (Offset, error)       { return 0, errNotYet }
func (l *Log) trimTo(context.Context, Offset) error                     { return errNotYet }
func (l *Log) dropLocal(context.Context, Offset) error                  { return errNotYet }
func (l *Log) reset(context.Context, Offset, []EpochStart, []byte) error {
	return errNotYet
}
func (l *Log) roll(context.Context) error                               { return errNotYet }
func (l *Log) rollAged(context.Context) (bool, error)                   { return false, errNotYet }
func (l *Log) segments() []Segment                                      { return nil }
func (l *Log) producerSnapshot(context.Context, Offset) ([]byte, error) { return nil, errNotYet }
func (l *Log) offsetForTime(context.Context, time.Time) (Offset, bool, error) {
	return 0, false, errNotYet
}
func (l *Log) stats() Stats { return Stats{} }
func (l *Log) close() error { return errNotYet }
