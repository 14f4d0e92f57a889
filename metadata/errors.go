package metadata

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is returned after [Server.Close].
	ErrClosed = errors.New("metadata: closed")

	// ErrNotController is the answer of a server that is not the active
	// controller. Routed calls retry it and don't return it.
	ErrNotController = errors.New("metadata: not the controller")

	// ErrTopicExists means that the tenant has another topic of that name.
	// Nothing was changed. A creation that is retried after an unknown outcome
	// does not see itself.
	ErrTopicExists = errors.New("metadata: topic exists")

	// ErrUnknownTopic means that no such topic is known to the controller.
	ErrUnknownTopic = errors.New("metadata: unknown topic")

	// ErrTopicDeleted means that the topic was deleted. Nothing was changed.
	ErrTopicDeleted = errors.New("metadata: topic was deleted")

	// ErrUnknownPartition means that no such partition is known to the controller.
	ErrUnknownPartition = errors.New("metadata: unknown partition")

	// ErrInvalidRequest wraps what is wrong with a request. Nothing was changed.
	ErrInvalidRequest = errors.New("metadata: invalid request")

	// ErrNotEnoughBrokers means that fewer brokers are live than a topic has
	// replicas. Nothing was changed.
	ErrNotEnoughBrokers = errors.New("metadata: not enough live brokers")

	// ErrStale is the definite refusal of a compare-and-set: the record has moved
	// on, or the caller's broker epoch has. Nothing was changed, and a repetition
	// can't succeed; a newer record is on its way to the caller.
	ErrStale = errors.New("metadata: stale")

	// ErrIneligible refuses an in-sync set that names a fenced, stopping or
	// restarted broker. Nothing was changed; it may be tried again without it.
	ErrIneligible = errors.New("metadata: ineligible replica")

	// ErrInUse refuses a registration because another process or directory with
	// the same broker id has a live session.
	ErrInUse = errors.New("metadata: broker id in use")

	// ErrUnknownBroker means that the broker is not registered.
	ErrUnknownBroker = errors.New("metadata: unknown broker")

	// ErrTooLarge refuses what does not fit into one log entry.
	ErrTooLarge = errors.New("metadata: too large")

	// ErrIdentity means that a directory belongs to another cluster, broker or
	// quorum than the options say, and is left as it is; or that a voter comes with
	// another directory than it had, and so without the promises that it made.
	ErrIdentity = errors.New("metadata: directory belongs to another node")
)

// A FormatError reports bytes that this version can't read: an unknown kind, a
// newer version, or damage. It ends the server that meets it in its log or
// store; a message that is malformed is refused.
type FormatError struct {
	What string // what was being read
	Err  error
}

// Error implements error.
func (e *FormatError) Error() string { return fmt.Sprintf("metadata: read %s: %v", e.What, e.Err) }

// Unwrap returns the cause.
func (e *FormatError) Unwrap() error { return e.Err }

// A StorageError is the first failure of the disk below the store. It is final:
// the server is done, and its state is what the disk holds.
type StorageError struct {
	Op  string
	Err error
}

// Error implements error.
func (e *StorageError) Error() string { return fmt.Sprintf("metadata: %s: %v", e.Op, e.Err) }

// Unwrap returns the cause.
func (e *StorageError) Unwrap() error { return e.Err }
