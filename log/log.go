package log

import (
	"context"
	"iter"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// Appended tells where an append went.
type Appended struct {
	// Base is the offset of the first record. For a duplicate it is where the
	// original went.
	Base Offset

	// End is the offset after the last record. What waits for the append waits for
	// this end.
	End Offset

	// Epoch is the leader epoch that was stamped; for a duplicate -1.
	Epoch Epoch

	// Duplicate says that all batches were in the log before, so that nothing was
	// written. Of several, Base is where the first one is and End the highest end of
	// any; others' records may lie between.
	Duplicate bool
}

// Recovery tells what [Open] found.
type Recovery struct {
	// End is the end of the log after recovery.
	End Offset

	// DurableEnd is the durable end that the directory stated: records below it were
	// durable before, whatever was lost. At most one group of acknowledged appends
	// lies above it.
	DurableEnd Offset

	// Clean says that the log was closed in order, so that nothing had to be read.
	Clean bool

	// CutBytes counts what was cut off after the last whole batch, without zeros at
	// the end, and CutPath is the file that keeps a copy of it ("" if there was
	// nothing). Records in it were never acknowledged. With Options.ReadOnly they are
	// left where they are, and there is no copy.
	CutBytes int64
	CutPath  string

	// Lossy says that records below DurableEnd are damaged or gone. The log is then
	// read-only, and Corruption says where.
	Lossy      bool
	Corruption []*CorruptionError
}

// Segment describes one segment file.
type Segment struct {
	Base         Offset    // of the first record
	End          Offset    // after the last record
	Bytes        int64     // of batches
	MaxTimestamp time.Time // highest record time; zero time when empty
	SealedAt     time.Time // when it was sealed, by the local clock; zero when active
	Sealed       bool      // no more appends go to it
}

// Stats are counters of one log since [Open], and its present extent.
type Stats struct {
	Start, LocalStart, End, DurableEnd Offset // as the methods of these names
	Segments                           int    // files, the active one included
	LocalBytes                         int64  // of batches, all segments
	Producers                          int    // with state in memory
	Appends                            int64  // batches written
	AppendBytes                        int64  // bytes of batches written
	Syncs                              int64  // groups made durable
	Rolls                              int64
	Chores                             int   // segments to be sealed and files to be readied, in the background
	Recycled                           int64 // of these, into a file that held an earlier segment
	Reads                              int64
	ReadBytes                          int64 // bytes handed out
	DiskFull                           int64 // appends refused for want of room
}

// Start returns the log start: the offset of the first record that still counts
// as part of the log, wherever it is stored.
func (l *Log) Start() Offset { l.mu.Lock(); defer l.mu.Unlock(); return l.start }

// LocalStart returns the offset of the first record on this disk. It is at least
// Start; in between the records are in the tier, if anywhere.
func (l *Log) LocalStart() Offset { l.mu.Lock(); defer l.mu.Unlock(); return l.local }

// End returns the offset that the next record will get. Records below it may not
// be durable yet.
func (l *Log) End() Offset { l.mu.Lock(); defer l.mu.Unlock(); return l.end }

// DurableEnd returns the offset below which all records survive a crash.
func (l *Log) DurableEnd() Offset { l.mu.Lock(); defer l.mu.Unlock(); return l.durable }

// LastEpoch returns the epoch of the last batch, or of the chain that Reset was
// given; -1 when there is none.
func (l *Log) LastEpoch() Epoch { l.mu.Lock(); defer l.mu.Unlock(); return l.chain.last() }

// LastStable returns the last stable offset: the first record of the oldest
// transaction that has no end marker in the log, or End.
//
// Source: Kafka's last stable offset, KIP-98, for a log without replicas: see
// [Log.LastStableBelow].
func (l *Log) LastStable() Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.producers.lastStable(l.end)
}

// LastStableBelow returns the last stable offset of the log as if it ended at high,
// which is whatever the caller calls committed: the first record of the oldest
// transaction whose marker is not below high, or high itself. A marker that may
// still be truncated decides nothing. A high above End counts as End; one inside a
// batch counts that batch as not there.
//
// It answers from memory unless more than 512 transactions have ended at or above
// high, or the log was opened since; then it reads at most one segment, and
// remembers the answer. Errors: [ErrOffsetOutOfRange] (also [ErrBelowLocalStart]) if
// high is below LocalStart, and those of [Log.Read].
//
// Source: Kafka's first unstable offset, KIP-98.
func (l *Log) LastStableBelow(ctx context.Context, high Offset) (Offset, error) {
	return l.lastStableBelow(ctx, high)
}

// AbortedTransactions returns the aborted transactions that overlap [from, to),
// ascending by first offset, in a slice of the caller's: all those with First below
// to and Last at or above from, wherever their markers are. to is at most a last
// stable offset; what is open at to is not known to be aborted. A to above End counts
// as End.
//
// It reads the transaction indexes of segments from the one with from on, until
// nothing that ends later can overlap. Errors: [ErrOffsetOutOfRange] if from is not
// in [Start, End], [ErrBelowLocalStart] if it is below LocalStart, a
// [*CorruptionError] if damage hides what there is, and those of [Log.Read].
//
// Source: Kafka's transaction index, KIP-98.
func (l *Log) AbortedTransactions(ctx context.Context, from, to Offset) ([]AbortedTxn, error) {
	return l.abortedTransactions(ctx, from, to)
}

// Recovery returns what Open found.
func (l *Log) Recovery() Recovery { return l.recovery }

// Partition returns the partition that the directory belongs to.
func (l *Log) Partition() PartitionID { return l.partition }

// Err returns the error that made the log fail for good (a *FailedError), or nil.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		return nil
	}
	return l.failed
}

// Append appends one batch as the only leader of the log, and returns once it is
// durable. It gives the batch its offsets, stamps the epoch max(LastEpoch,
// Options.Epoch) and checks what [Log.Write] checks. Concurrent calls share one
// sync; a lone one waits for nobody. On a [Disk] with a journal the segment's file may
// get it later: see [DiskOptions].HeldBytes. The batch's bytes are stamped in place
// (base offset and epoch; log-append time if so configured) and must not be changed
// until Append returns.
//
// A duplicate is answered with the original offsets, once these are durable.
// Errors are those of Write. ctx ends the wait, not the append: with its error
// the batch may be in the log.
func (l *Log) Append(ctx context.Context, batch []byte) (Appended, error) {
	return l.append(ctx, batch)
}

// AppendRecords builds one batch of the records, without compression, and appends
// it like [Log.Append]. Records without a time get the present one. For records that
// are at hand it takes less than to build the batch apart, since nothing has to be
// checked. It keeps no memory of the records. Errors also: [ErrInvalidBatch] without
// records.
func (l *Log) AppendRecords(ctx context.Context, records ...record.Record) (Appended, error) {
	return l.appendRecords(ctx, records)
}

// Write appends batches as the leader of the epoch and returns when they are
// written, not yet durable: [Log.Read] serves them, [Log.Sync] or [Log.SyncLater]
// makes them durable. Until then they may be lost, also if only the process dies. It
// checks checksum, structure, size and producer sequence of each, and refuses control
// batches. The bytes are stamped in place (base offset and epoch; log-append time if so
// configured) and not kept.
//
// All batches are appended or none. A batch that was appended before (same
// producer, epoch and sequence numbers as one of the producer's last five) is not
// written again: see [Appended]. A call with both kinds is refused.
//
// Errors: [ErrFenced] if epoch is below LastEpoch; [ErrInvalidBatch],
// [ErrControlBatch], [ErrTooLarge], [ErrOutOfOrderSequence],
// [ErrUnknownProducer], [ErrProducerFenced], [ErrDuplicateUnknownOffset],
// [ErrPartlyDuplicate], [ErrTxnState], [ErrCoordinatorFenced];
// [ErrDiskFull], which may be tried again; [ErrReadOnly], [ErrClosed]; or a
// [*FailedError], after which no change is taken.
//
// Source: Kafka's producer state, KIP-98 and KIP-360, with a window of five
// batches. Unlike with Kafka since 2.5, an unknown producer must begin at sequence
// 0, since its earlier batches may be in the log: see
// [Options].AdmitUnknownProducers.
func (l *Log) Write(epoch Epoch, batches []byte) (Appended, error) {
	return l.write(epoch, batches, false)
}

// WriteRecords builds one batch of the records, as [Log.AppendRecords] does, and
// writes it like [Log.Write].
func (l *Log) WriteRecords(epoch Epoch, records ...record.Record) (Appended, error) {
	return l.writeRecords(epoch, records)
}

// WriteControl is [Log.Write] for one control batch: an epoch-start record, or the
// end of a producer's transaction, which need not be open here. The end of a
// transaction may raise the producer's epoch, but lower neither that
// ([ErrProducerFenced]) nor the coordinator's ([ErrCoordinatorFenced]).
func (l *Log) WriteControl(epoch Epoch, batch record.Batch) (Appended, error) {
	return l.write(epoch, batch.Bytes(), true)
}

// AppendReplicated appends batches that another replica's log holds, with their
// offsets and epochs. They must start at End and follow each other without a gap,
// epochs must not fall. Checksums are verified; producer sequences are recorded,
// not judged. The bytes are neither changed nor kept. All batches are appended or
// none; they are written, not yet durable.
//
// Errors: [ErrNotContiguous], [ErrInvalidBatch], and as [Log.Write] from
// ErrDiskFull on.
func (l *Log) AppendReplicated(batches []byte) (Appended, error) { return l.appendReplicated(batches) }

// Sync makes what is written durable and returns the durable end, which is at
// least what End was at the call. Concurrent calls share one sync. ctx ends the
// wait. Errors: ErrClosed, a *FailedError, or ctx's.
func (l *Log) Sync(ctx context.Context) (Offset, error) { return l.sync(ctx) }

// SyncLater does what [Log.Sync] does on one of the disk's workers and then calls
// done, exactly once, without locks held. Calls that come while one waits share
// its sync. done must not block and must not close the log.
func (l *Log) SyncLater(done func(Offset, error)) { l.syncLater(done) }

// Read returns whole batches from the one that holds offset from on, up to
// maxBytes but at least one. It serves everything below End, durable or not. At
// from == End the Slice is empty. A Read may end early, at a segment's end.
//
// Errors: [ErrBelowLocalStart] if the record is not on this disk any more,
// [ErrOffsetOutOfRange] if from is above End or below Start, a [*CorruptionError]
// if the bytes at from are damaged, [ErrClosed].
func (l *Log) Read(ctx context.Context, from Offset, maxBytes int) (*Slice, error) {
	return l.read(ctx, from, maxBytes, bounds{below: maxOffset})
}

// ReadBelow is [Log.Read] for batches whose end is at most below; the Slice is
// empty when there is none.
func (l *Log) ReadBelow(ctx context.Context, from, below Offset, maxBytes int) (*Slice, error) {
	return l.read(ctx, from, maxBytes, bounds{below: below})
}

// Records returns an iterator over the durable records from offset from on; it
// ends at what is the durable end when it gets there. Control batches are left
// out; records of open and of aborted transactions are not. An error comes once and last: those of [Log.Read], and [ErrTruncated] if
// records it had still to read were cut off. A Record's slices stay valid. The
// iterator can be used again, and starts at from each time.
func (l *Log) Records(ctx context.Context, from Offset) iter.Seq2[Record, error] {
	return l.records(ctx, from, false)
}

// Follow is [Log.Records] without an end: at the durable end it waits for it to
// move. It ends with an error, once and last: those of Records, ErrClosed, a
// *FailedError, or ctx's.
func (l *Log) Follow(ctx context.Context, from Offset) iter.Seq2[Record, error] {
	return l.records(ctx, from, true)
}

// Wait returns nil once End is above off: immediately, or when an append gets
// there. Errors: ErrClosed, a *FailedError, or ctx's.
func (l *Log) Wait(ctx context.Context, off Offset) error { return l.wait(ctx, off, bounds{}) }

// WaitDurable is [Log.Wait] for DurableEnd: what a reader of a log on one machine
// waits for.
func (l *Log) WaitDurable(ctx context.Context, off Offset) error {
	return l.wait(ctx, off, bounds{durable: true})
}

// EpochChain returns the leader-epoch chain, oldest first, in a slice of the
// caller's. It covers the log from the record before Start on, as far as it is known.
func (l *Log) EpochChain() []EpochStart {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.chain.clone()
}

// EndOffset returns the highest epoch of the chain that is at most e, and the
// offset where the next epoch starts, or End if there is none. If all epochs are
// above e it returns e and the start of the first. If the chain is empty, or e
// negative, it returns -1, -1.
//
// Source: KIP-101 and KIP-279; monotone in both results.
func (l *Log) EndOffset(e Epoch) (Epoch, Offset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.chain.endOffset(e, l.end)
}

// TruncateTo removes the records at offsets >= off and returns the new end, which
// is at most off: an off inside a batch cuts before that batch. It returns once
// this is durable; a crash leaves the old or the new end. Producers and epoch
// chain are taken back to the new end, the chain also when no record goes.
//
// It lifts the read-only state if all damage was cut off. Errors:
// [ErrOffsetOutOfRange] if off is below LocalStart, a [*CorruptionError] if damage
// lies below off in the same segment (cut at its Offset instead, or Reset),
// [ErrDiskFull] before anything was changed, [ErrClosed], or a [*FailedError]. ctx is checked only before the
// first change. Readers of removed offsets get ErrOffsetOutOfRange or ErrTruncated.
//
// Source: epoch-based truncation, KIP-101 and KIP-279.
func (l *Log) TruncateTo(ctx context.Context, off Offset) (Offset, error) {
	return l.truncateTo(ctx, off)
}

// TrimTo moves the log start up to start, and with it the local start; a lower
// start than the present one changes nothing. It returns once this is durable, and
// whole segments below are deleted. Errors: [ErrOffsetOutOfRange] if start is above
// End, and as [Log.TruncateTo].
func (l *Log) TrimTo(ctx context.Context, start Offset) error { return l.trimTo(ctx, start) }

// DropLocal deletes sealed segments whose records are all below to, and moves the
// local start up to the end of the last one; the log start stays. The producer
// state as of the new local start is kept. It returns once this is durable.
// Errors: as [Log.TruncateTo], without the range.
func (l *Log) DropLocal(ctx context.Context, to Offset) error { return l.dropLocal(ctx, to) }

// Reset replaces the log by an empty one that starts at start with the epoch chain
// and the producers given (what [Log.EpochChain] and [Log.ProducerSnapshot] of
// another replica returned for that offset; nil for none). LocalStart and End
// become start; Start stays, unless it is above start. A crash leaves the old log
// or the new one. It clears the read-only state. Errors: [ErrOffsetOutOfRange] if
// start is negative, [ErrInvalidBatch] if epochs or producers make no sense, and
// as [Log.TruncateTo].
func (l *Log) Reset(ctx context.Context, start Offset, epochs []EpochStart, producers []byte) error {
	return l.reset(ctx, start, epochs, producers)
}

// Roll seals the active segment and begins a new one; an empty one stays. The
// records before are durable when it returns. Errors: as [Log.TruncateTo].
func (l *Log) Roll(ctx context.Context) error { return l.roll(ctx) }

// RollAged is [Log.Roll] if the active segment's first append is older than
// Options.SegmentAge, and reports whether it was. An idle log has no timer of its
// own: who archives or expires calls this.
func (l *Log) RollAged(ctx context.Context) (bool, error) { return l.rollAged(ctx) }

// Segments describes the segments on this disk, oldest first.
func (l *Log) Segments() []Segment { return l.segments() }

// ProducerSnapshot returns the producer state as of exactly offset at, which lies
// on a batch's end, in a versioned and checksummed form that Reset takes. It reads
// at most one segment. If LocalStart lies inside a segment, batches of it below LocalStart
// are good too: so that of the batch that LocalStart lies in can be had. Errors:
// [ErrOffsetOutOfRange] if at is above End or below that segment, and those of Read.
func (l *Log) ProducerSnapshot(ctx context.Context, at Offset) ([]byte, error) {
	return l.producerSnapshot(ctx, at)
}

// OffsetForTime returns the offset of the first local record whose time is t or
// later, in the order of offsets; false if there is none. Control batches don't
// count. Errors: those of Read.
func (l *Log) OffsetForTime(ctx context.Context, t time.Time) (Offset, bool, error) {
	return l.offsetForTime(ctx, 0, t)
}

// OffsetForTimeFrom is OffsetForTime among the records from an offset on; any offset
// will do.
func (l *Log) OffsetForTimeFrom(ctx context.Context, from Offset, t time.Time) (Offset, bool, error) {
	return l.offsetForTime(ctx, from, t)
}

// Verify reads all of the log that is on this disk, while appends and reads go on,
// and reports each range that is damaged: checksums of batches, the header bytes
// that these don't cover (against the seal, or what is known in memory), offsets
// without a gap, epochs against the chain, records that decode; and the files
// beside them that the log reads, both copies of each. It changes nothing, neither on disk nor of what
// the log accepts. What is appended meanwhile may be left out; a segment that is
// deleted or cut meanwhile is left out or read again. Memory is bounded by 1 MiB and
// the largest batch, once more when decompressed.
//
// Errors: ErrClosed, ctx's, or those of the file system (an unreadable sector is
// damage); the Verification then holds what was found so far.
func (l *Log) Verify(ctx context.Context, o VerifyOptions) (Verification, error) {
	return l.verify(ctx, o)
}

// Repair takes the records that are damaged in [lo, hi) from a source, and with
// them all damage of the segments that hold them. It finds the damage by reading
// these segments, whether or not recovery or [Log.Verify] found it before. A segment
// that is damaged while it is active is sealed first.
//
// Each segment is repaired as a whole or not at all, whenever the machine dies: a
// file beside it takes its place once it is complete, synced and judged. What the
// source gives must have exactly the offsets that are missing, right checksums,
// epochs of the chain, and the header checksums that seal, index interval or slots
// state; else the error is [ErrRepairSource]. The damaged bytes are kept in
// NNN.POSITION.cut, as torn tails are. The log takes appends again when nothing else
// is damaged. Readers meanwhile get the error they got before or the right bytes;
// appends to a log that takes them go on.
//
// Repairs of one log come one after the other. The source is called without locks
// held; Close ends its ctx and waits for it. Records that no file can hold, since
// the first segment or what should follow it is gone, are beyond it: the error is a
// [*CorruptionError], and Reset is left. Other errors: [ErrOffsetOutOfRange] if lo is
// negative or above hi, [ErrTooLarge] if what is missing does not fit into a segment,
// [ErrDiskFull], ErrClosed, those of the source and ctx's, with nothing changed in the
// segment at hand; or a [*FailedError].
func (l *Log) Repair(ctx context.Context, lo, hi Offset, source RepairSource) (Repaired, error) {
	return l.repair(ctx, lo, hi, source)
}

// Stats returns counters and extent.
func (l *Log) Stats() Stats { return l.stats() }

// Close makes everything durable, leaves a marker so that the next Open need not
// read the log, and gives the directory back. Calls that wait get ErrClosed. A log
// that has failed is closed too, and Close returns that failure: what was not durable
// before may be lost. It can be called again and returns the first result.
func (l *Log) Close() error { return l.close() }
