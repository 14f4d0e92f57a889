package byhand

import (
	"errors"
	"fmt"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/replication"
)

// Errors of nodes and handles. Errors of the parts pass through unchanged, so
// errors.Is works with those of packages log, metadata, replication and tier as
// well; the ones a caller of a handle meets most are repeated here.
var (
	// ErrClosed is returned by every call after Close or Shutdown of the node, and
	// by a [Producer] after its own Close. An append that was waiting then gets an
	// error that wraps it and *[IndeterminateError].
	ErrClosed = errors.New("cordwood: closed")

	// ErrNotInitialized is returned by calls that need a cluster before [Node.Init]
	// or [Node.Join] has given the node one.
	ErrNotInitialized = errors.New("cordwood: node belongs to no cluster yet: call Init on one voter, Join on the others")

	// ErrUnknownTopic says that the tenant has no such topic, as of a moment after
	// the call began. Nothing happened.
	ErrUnknownTopic = errors.New("cordwood: unknown topic")

	// ErrTopicDeleted says that there was such a topic, and that it was deleted, maybe
	// while the call was under way. It comes with [ErrUnknownTopic]. Nothing happened,
	// unless the error also says *[IndeterminateError].
	ErrTopicDeleted = metadata.ErrTopicDeleted

	// ErrUnknownPartition says that the topic has no partition of that number.
	// Nothing happened.
	ErrUnknownPartition = errors.New("cordwood: unknown partition")

	// ErrDirectoryInUse says that another process, or another Node of this one,
	// has the directory open. Nothing was changed in it.
	ErrDirectoryInUse = errors.New("cordwood: directory in use by another node")

	// ErrOverloaded says that the node has no room for the request. Nothing
	// happened; try again later.
	ErrOverloaded = errors.New("cordwood: overloaded")

	// ErrTopicExists says that the tenant has a topic of that name already.
	ErrTopicExists = metadata.ErrTopicExists

	// ErrOffsetOutOfRange says that an offset lies below the log start offset or
	// above the end of the partition.
	ErrOffsetOutOfRange = log.ErrOffsetOutOfRange

	// ErrDuplicateUnknownOffset says that the batch was appended before, so long
	// ago that the offset is no longer known. It was not appended again.
	ErrDuplicateUnknownOffset = log.ErrDuplicateUnknownOffset

	// ErrTooLarge says that a record or batch is larger than the limit. Nothing
	// was appended.
	ErrTooLarge = log.ErrTooLarge

	// ErrInvalidBatch says that a batch is damaged or not of the format. Nothing
	// was appended.
	ErrInvalidBatch = log.ErrInvalidBatch

	// ErrNotEnoughReplicas says that fewer than MinISR replicas are in sync; it is
	// only given before anything was appended, and can be retried.
	ErrNotEnoughReplicas = replication.ErrNotEnoughReplicas
)

// NotLeaderError says that the replica does not lead the partition, and who
// does as far as it knows. Only [Node.Replica] gives it; the handles of a
// tenant go to the leader by themselves.
type NotLeaderError = replication.NotLeaderError

// IndeterminateError says that a batch may or may not have been appended: the
// answer was lost, the leader changed, or the context ended while it was under
// way. ctx bounds the wait, not the fate.
type IndeterminateError = replication.IndeterminateError

// VersionError says that a directory was written by a newer version of this
// library. Nothing was changed in it.
type VersionError struct {
	Path  string // the file that says so
	Found int    // version of the format in the file
	Known int    // newest version that this library reads
}

// Error describes the two versions and the remedy.
func (e *VersionError) Error() string {
	return fmt.Sprintf("cordwood: %s has format version %d, this library knows up to %d: open it with a newer version", e.Path, e.Found, e.Known)
}
