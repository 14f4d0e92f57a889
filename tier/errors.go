package tier

import (
	"errors"
	"fmt"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// Errors of an [ObjectStore]. Each method's comment says which it may return and
// what state they leave. A store wraps them with its own detail; callers test
// with errors.Is.
var (
	// ErrNotFound: there is no object with this key.
	ErrNotFound = errors.New("tier: object not found")

	// ErrExists: a conditional Put met an object with the same key; nothing was
	// written by this call. An earlier attempt of the same caller, whose reply was
	// lost, may have written it.
	ErrExists = errors.New("tier: object exists")

	// ErrConflict: the store saw two writers of one key at the same time and
	// decided nothing; the call may be repeated (S3: 409).
	ErrConflict = errors.New("tier: conflicting write")

	// ErrDenied: the store refuses the caller. Nothing happened.
	ErrDenied = errors.New("tier: access denied")

	// ErrUnavailable: the store can't serve now; nothing happened.
	ErrUnavailable = errors.New("tier: object store unavailable")

	// ErrUnknownOutcome: a write was sent and no verdict came back: it may have
	// happened, may not, and may still happen later.
	ErrUnknownOutcome = errors.New("tier: outcome unknown")

	// ErrCorrupt: bytes do not match their checksum, or are shorter than the
	// store's own account of them.
	ErrCorrupt = errors.New("tier: corrupt object")

	// ErrRange: a range does not lie wholly inside the object (S3: 416).
	ErrRange = errors.New("tier: range outside the object")

	// ErrInvalidKey: a key that no store accepts; see [CheckKey].
	ErrInvalidKey = errors.New("tier: invalid object key")
)

// Errors of a [Partition], a [Manager] and a [Log].
var (
	// ErrClosed: the object was closed. Nothing happened, or, for a call that was
	// under way, its outcome is unknown.
	ErrClosed = errors.New("tier: closed")

	// ErrUnknown: this node has not yet read the tier log up to where it stood
	// when the partition was opened, so it can't tell an empty tier from one that
	// it does not know. Retry after a short wait. If it says that what the last
	// checkpoint names can't be read, waiting may not help: see [Repair].
	ErrUnknown = errors.New("tier: state not known yet")

	// ErrNotTiered: the offset is at or above the tier end: its record, if there
	// is one, is in the local log.
	ErrNotTiered = errors.New("tier: offset not in the object store")

	// ErrNotLeader: only the partition's leader may do this, after its barrier has
	// been read back. Nothing happened.
	ErrNotLeader = errors.New("tier: not the leader")

	// ErrFenced: a barrier of a higher epoch stands in the tier log, so another
	// node leads the partition. The event that was under way has no effect.
	ErrFenced = errors.New("tier: fenced by a newer leader")

	// ErrTwoWriters: the tier log holds an event of this leader's epoch that this
	// leader did not write. Whoever grants epochs granted one twice; the partition
	// stops uploading and deleting until it leads in a new epoch.
	ErrTwoWriters = errors.New("tier: two writers in one epoch")

	// ErrForeignStore: the object store's prefix belongs to another cluster.
	ErrForeignStore = errors.New("tier: object store belongs to another cluster")

	// ErrInvalidEvent: bytes that are not an event of this format.
	ErrInvalidEvent = errors.New("tier: invalid event")

	// ErrInvalidObject: bytes that are not a segment object of this format.
	ErrInvalidObject = errors.New("tier: invalid segment object")
)

// A ThrottledError is the store's request to slow down (S3: 503 SlowDown).
// Nothing happened.
type ThrottledError struct {
	// RetryAfter is the wait that the store asked for; 0 when it named none.
	RetryAfter time.Duration
}

// Error names the wait if there is one.
func (e *ThrottledError) Error() string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("tier: throttled by the object store, retry after %v", e.RetryAfter)
	}
	return "tier: throttled by the object store"
}

// A VersionError names a structure that a newer release wrote. It is never
// skipped: whoever meets one stops.
type VersionError struct {
	What    string // "event", "segment object", ...
	Version int    // the version or kind found
}

// Error names the structure and the version.
func (e *VersionError) Error() string {
	return fmt.Sprintf("tier: %s of version or kind %d is not known to this release", e.What, e.Version)
}

// A MissingError is the alarm of a lost object: the state says that it holds
// these offsets, the state was read again up to its committed end, and the store
// still has no such object. It wraps [ErrNotFound].
type MissingError struct {
	Partition log.PartitionID
	Key       string
	Base, End log.Offset // the offsets [Base, End) that can't be read
}

// Error names partition, object and offsets.
func (e *MissingError) Error() string {
	return fmt.Sprintf("tier: partition %v: object %s with offsets [%d, %d) is lost", e.Partition, e.Key, e.Base, e.End)
}

// Unwrap returns [ErrNotFound].
func (e *MissingError) Unwrap() error { return ErrNotFound }

// A CorruptionError says where bytes from the object store failed their check.
// It wraps [ErrCorrupt].
type CorruptionError struct {
	Key    string
	Offset int64 // byte in the object at which the checked part begins
	Err    error
}

// Error names object, place and cause.
func (e *CorruptionError) Error() string {
	return fmt.Sprintf("tier: object %s at byte %d: %v", e.Key, e.Offset, e.Err)
}

// Unwrap returns [ErrCorrupt] and the cause.
func (e *CorruptionError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }
