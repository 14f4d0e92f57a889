package replication

import (
	"errors"
	"fmt"

	"github.com/cordwood-io/cordwood/log"
)

// Errors of this package. Each says whether something was appended; errors of
// package log (a bad batch, a sequence gap, a full disk) come through unchanged
// and mean that nothing was.
var (
	// ErrClosed is returned by calls on a closed manager or replica, and to every
	// waiter when it is closed. An append that waits gets it inside an
	// [*IndeterminateError].
	ErrClosed = errors.New("replication: closed")

	// ErrNotEnoughReplicas refuses an append with [AcksAll] while the committed
	// in-sync set is smaller than MinISR. Nothing was appended; a retry may succeed.
	ErrNotEnoughReplicas = errors.New("replication: not enough in-sync replicas")

	// ErrNotYetAvailable is returned by [Replica.Read] at or above the offset below
	// which this replica may serve. [Replica.Wait] waits for it.
	ErrNotYetAvailable = errors.New("replication: offset not yet available")

	// ErrLossy is returned by reads and appends of a replica that has lost records
	// it once reported durable, until it has been filled again from the leader.
	ErrLossy = errors.New("replication: replica has lost records")

	// ErrQuarantined is returned by reads of a replica that was told to cut below
	// its own high watermark and refused; it needs an operator.
	ErrQuarantined = errors.New("replication: replica is quarantined")

	// ErrStale is what [Controller.AlterISR] returns for a definite refusal: the
	// change was not made by this call, since the partition or the leader moved on.
	ErrStale = errors.New("replication: stale change of the in-sync set")

	// ErrOpen is returned by [Manager.Open] for a partition that is open already.
	ErrOpen = errors.New("replication: partition is open already")

	// ErrMessage is wrapped by the errors of all decoders.
	ErrMessage = errors.New("replication: malformed message")
)

// A NotLeaderError refuses an append on a replica that does not lead. Nothing was
// appended.
type NotLeaderError struct {
	Leader NodeID    // who leads as far as this node knows; -1 = nobody
	Epoch  log.Epoch // the leader epoch of that
}

// Error describes the refusal.
func (e *NotLeaderError) Error() string {
	if e.Leader < 0 {
		return fmt.Sprintf("replication: not the leader; none known in epoch %d", e.Epoch)
	}
	return fmt.Sprintf("replication: not the leader; node %d leads epoch %d", e.Leader, e.Epoch)
}

// An IndeterminateError ends the wait for an append that was written to the
// leader's log but not seen committed: it may become part of the log or not. Only
// a retry with the same producer id and sequence, or reading, tells.
type IndeterminateError struct {
	Epoch log.Epoch  // leader epoch it was written in
	Base  log.Offset // its first offset, if it survives
	End   log.Offset // one above its last
	Err   error      // why the wait ended: leadership lost, closed, ctx, a failed disk
}

// Error describes the open outcome.
func (e *IndeterminateError) Error() string {
	return fmt.Sprintf("replication: outcome of offsets [%d, %d) in epoch %d is open: %v", e.Base, e.End, e.Epoch, e.Err)
}

// Unwrap returns why the wait ended.
func (e *IndeterminateError) Unwrap() error { return e.Err }

// errLeadershipLost is the cause in an IndeterminateError.
var errLeadershipLost = errors.New("leadership lost")
