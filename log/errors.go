package log

import (
	"errors"
	"fmt"
)

// Errors of this package. An operation that returns one of them has changed
// nothing, except where its comment says otherwise.
var (
	// ErrClosed: the log or the disk is closed.
	ErrClosed = errors.New("log: closed")

	// ErrLocked: another process, or another Log of this process, has the directory.
	ErrLocked = errors.New("log: directory is in use")

	// ErrOffsetOutOfRange: no record has or will next have this offset: it is below
	// Start or above End.
	ErrOffsetOutOfRange = errors.New("log: offset out of range")

	// ErrBelowLocalStart: the offset is at or above Start but below LocalStart, so
	// its record is not on this disk. It wraps ErrOffsetOutOfRange.
	ErrBelowLocalStart = fmt.Errorf("%w: below the local start", ErrOffsetOutOfRange)

	// ErrTruncated: the records that an iterator was reading were cut off by
	// TruncateTo or Reset.
	ErrTruncated = errors.New("log: truncated below the reader")

	// ErrNotContiguous: replicated batches do not start at End, leave a gap, or
	// have an epoch below the one before.
	ErrNotContiguous = errors.New("log: batch does not follow the log's end")

	// ErrFenced: the epoch is below LastEpoch.
	ErrFenced = errors.New("log: fenced: epoch is below the last one")

	// ErrInvalidBatch: the bytes are not whole batches, a checksum is wrong, or the
	// header contradicts itself.
	ErrInvalidBatch = errors.New("log: invalid batch")

	// ErrControlBatch: a host tried to append a control batch.
	ErrControlBatch = errors.New("log: control batch refused")

	// ErrTooLarge: a batch is above Options.MaxBatchBytes.
	ErrTooLarge = errors.New("log: batch too large")

	// ErrOutOfOrderSequence: there is a gap between the producer's last batch and
	// this one, so that a batch in between is missing.
	ErrOutOfOrderSequence = errors.New("log: producer sequence out of order")

	// ErrUnknownProducer: the log has no state for the producer id and the batch is
	// not its first one. The state may have expired; the producer must take a new
	// id or epoch.
	ErrUnknownProducer = errors.New("log: unknown producer")

	// ErrProducerFenced: a batch with a newer producer epoch was appended before.
	ErrProducerFenced = errors.New("log: producer fenced")

	// ErrDuplicateUnknownOffset: the records of the batch were appended before, so
	// long ago that their offsets are no longer known. They are in the log once.
	ErrDuplicateUnknownOffset = errors.New("log: duplicate of unknown offset")

	// ErrPartlyDuplicate: some of the batches of a call were appended before and
	// others were not, so that one range can't say where they are. The caller can
	// write them one at a time.
	ErrPartlyDuplicate = errors.New("log: some batches are duplicates and some are not")

	// ErrTxnState: a batch outside of a transaction came from a producer that has one
	// open (Kafka's INVALID_TXN_STATE).
	ErrTxnState = errors.New("log: producer has an open transaction")

	// ErrCoordinatorFenced: a marker that ends a transaction comes from a coordinator
	// epoch below that of the producer's last marker.
	ErrCoordinatorFenced = errors.New("log: transaction coordinator fenced")

	// ErrDiskFull: there is no room, or only the disk's reserve. Nothing was
	// appended; the same call can be tried again.
	ErrDiskFull = errors.New("log: disk full")

	// ErrReadOnly: the log has damaged records (see [Recovery]) and takes none until
	// Repair has brought them back, or TruncateTo or Reset has removed them.
	ErrReadOnly = errors.New("log: read-only because of corruption")

	// ErrOpenedReadOnly: the log was opened with Options.ReadOnly and takes no change.
	ErrOpenedReadOnly = errors.New("log: opened read-only")

	// ErrRepairSource: what the source of a Repair gave is not what was written, as
	// far as that is known. Nothing was changed.
	ErrRepairSource = errors.New("log: source gave other batches than were written")

	// ErrWrongPartition: the directory belongs to another partition.
	ErrWrongPartition = errors.New("log: directory of another partition")
)

// A CorruptionError tells of bytes that are not what was written. The log never
// repairs them by itself and never cuts them off: records before Offset and from
// End on stay readable.
type CorruptionError struct {
	Path     string // file
	Position int64  // first damaged byte of the file, as far as known
	Offset   Offset // first record that can't be read
	End      Offset // first record after the damage; Offset or less if unknown
	Err      error  // what is wrong
}

// Error describes the damage in one line.
func (e *CorruptionError) Error() string {
	return fmt.Sprintf("log: corruption: %s at byte %d, offset %d: %v", e.Path, e.Position, e.Offset, e.Err)
}

// Unwrap returns Err.
func (e *CorruptionError) Unwrap() error { return e.Err }

// A GapError is why [Open] refuses to write to a directory of Kafka's: its offsets
// have gaps, as compaction leaves them, and those of a log that can be written to
// have none. Options.ReadOnly opens it. Nothing was changed.
type GapError struct {
	Path   string // file with the batch after the gap
	Offset Offset // first of the gap, the first one of the directory
	End    Offset // first record after it
}

// Error describes the gap in one line.
func (e *GapError) Error() string {
	return fmt.Sprintf("log: %s: no records at offsets [%d, %d): the directory can only be opened read-only", e.Path, e.Offset, e.End)
}

// A VersionError tells that a file was written by a newer version of this
// package, which this one can't read. Nothing was changed.
type VersionError struct {
	Path      string
	Version   uint32 // found
	Supported uint32 // highest that this version reads
}

// Error describes the mismatch in one line.
func (e *VersionError) Error() string {
	return fmt.Sprintf("log: %s has format version %d, this version reads up to %d", e.Path, e.Version, e.Supported)
}

// A FailedError is what every change of a log returns after a write or sync
// failed in a way that leaves the disk's content unknown. Cause is the first
// such error. Only closing and opening the log again clears it; reads go on.
type FailedError struct {
	Op    string // what was tried, with file name
	Cause error
}

// Error describes the first failure in one line.
func (e *FailedError) Error() string { return "log: failed: " + e.Op + ": " + e.Cause.Error() }

// Unwrap returns Cause.
func (e *FailedError) Unwrap() error { return e.Cause }
