package log

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// Defaults of [Options].
const (
	DefaultSegmentBytes   int64         = 64 << 20
	DefaultMaxBatchBytes  int           = 1<<20 + record.HeaderBytes + 64<<10 // a record of 1 MiB and its framing
	DefaultProducerExpiry time.Duration = 24 * time.Hour
)

// Limits of [Options].
const (
	MinSegmentBytes int64 = 1 << 10
	MaxSegmentBytes int64 = 1 << 30 // positions in Kafka's index are 31 bits
	MaxBatchBytes         = 256 << 20
)

// Options configure [Open]. The zero value is safe: durable and bounded.
type Options struct {
	// Disk shares descriptors, blocking calls and sync workers between logs. Nil
	// means a private one over FS, closed with the log.
	Disk *Disk

	// FS is the file system when Disk is nil. Nil means [OSFS].
	FS FS

	// Partition names the log. It is stored in a new directory, and compared with
	// what an existing one says unless it is the zero value.
	Partition PartitionID

	// Epoch is the lowest leader epoch that Append stamps. Range 0 and up, default 0.
	Epoch Epoch

	// SegmentBytes is the size at which a segment is sealed and the next begins. A
	// batch that is larger gets a segment of its own. Range MinSegmentBytes to
	// MaxSegmentBytes, default DefaultSegmentBytes.
	SegmentBytes int64

	// SegmentAge seals a segment when its first append is this old and another one
	// comes, or when RollAged is called. 0 means never.
	SegmentAge time.Duration

	// MaxBatchBytes bounds one batch with its header. Range 61 to [MaxBatchBytes], default
	// DefaultMaxBatchBytes. Batches that are already in the log may be larger.
	MaxBatchBytes int

	// ProducerExpiry is how long the state of a producer is kept after its last
	// batch, by the local clock. Default DefaultProducerExpiry; negative means for ever.
	ProducerExpiry time.Duration

	// AdmitUnknownProducers takes the first batch of a producer that the log knows
	// nothing of with any sequence number, as Kafka does since 2.5: state may have
	// expired, or gone with the records, and clients of Kafka go on from where they
	// were. By default it must be sequence 0, else [ErrUnknownProducer]: a batch that is
	// tried again after the state has expired is then never appended twice.
	AdmitUnknownProducers bool

	// LogAppendTime stamps batches that Append, AppendRecords and Write take with
	// the local clock, in place of the records' own time.
	LogAppendTime bool

	// UseReserve lets the log use the disk's reserve ([DiskOptions].ReserveBytes).
	// It is for what must go on when the disk is full so that space can be freed.
	UseReserve bool

	// SkipReadChecksums leaves out the checksum of batches that Read returns, for
	// hosts whose receivers check it.
	SkipReadChecksums bool

	// ReadOnly opens an existing directory without changing a file in it, and refuses
	// every change of the log with ErrOpenedReadOnly. It is the only way to open a
	// directory of Kafka's whose offsets have gaps (compacted topics): there a read in
	// a gap gives what comes after it. What stands at the end of the log and is no
	// whole batch is left where it is. Of a log that used a [Disk]'s journal and was not
	// closed in order, what only the journal has is not read, and [Recovery].Lossy says
	// so: open it once without ReadOnly, on that disk. Nobody else may write to the
	// directory in the meantime; only one with a lock file of ours is locked.
	ReadOnly bool

	// Logger hears of recoveries that lost or found something, and of failures.
	// Nil discards.
	Logger *slog.Logger

	// Hooks are called on events.
	Hooks Hooks
}

// Hooks are functions that a [Log] calls on its events. Each may be nil. They are
// called from the goroutine that caused the event, which may be in the middle of a
// change: a hook must not block, and of the log it may call only what asks (End,
// DurableEnd, Segments, Err and the like), not what reads, writes, syncs, changes or
// closes. Calls of different goroutines may overtake each other: an argument may be
// lower than that of an earlier call.
type Hooks struct {
	Appended func(end Offset) // End has moved up to end
	Durable  func(end Offset) // DurableEnd has moved up to end
	Rolled   func(s Segment)  // s was sealed
	Failed   func(err error)  // the log has failed for good; err is a *FailedError
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("log: options: "+format, args...)) }
	if o.Disk != nil && o.FS != nil && o.FS != o.Disk.fs {
		bad("Disk and FS are both set")
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.SegmentBytes < MinSegmentBytes || o.SegmentBytes > MaxSegmentBytes {
		bad("SegmentBytes %d is not in [%d, %d]", o.SegmentBytes, MinSegmentBytes, MaxSegmentBytes)
	}
	if o.MaxBatchBytes == 0 {
		o.MaxBatchBytes = DefaultMaxBatchBytes
	}
	if o.MaxBatchBytes < record.HeaderBytes || o.MaxBatchBytes > maxBatchBytesOnDisk {
		bad("MaxBatchBytes %d is not in [%d, %d]", o.MaxBatchBytes, record.HeaderBytes, maxBatchBytesOnDisk)
	}
	if o.SegmentAge < 0 {
		bad("SegmentAge %v is negative", o.SegmentAge)
	}
	if o.Epoch < 0 {
		bad("Epoch %d is negative", o.Epoch)
	}
	if o.ProducerExpiry == 0 {
		o.ProducerExpiry = DefaultProducerExpiry
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

// maxBatchBytesOnDisk bounds what recovery and reads believe of a length field.
const maxBatchBytesOnDisk = MaxBatchBytes
