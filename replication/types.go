package replication

import (
	"context"
	"io"
	"slices"

	"github.com/cordwood-io/cordwood/log"
)

// A NodeID names a node; fixed over its life. -1 stands for none.
type NodeID int32

// A Member is one process life of a node: a restarted process has a higher Epoch.
// Epochs are those of the broker's registration, increasing over the cluster's
// life (KIP-903).
type Member struct {
	ID    NodeID
	Epoch int64
}

// An Assignment is what the cluster's metadata says about one partition. A replica
// keeps the one with the highest PartitionEpoch; slices are not changed by either
// side after [Replica.Apply].
type Assignment struct {
	Partition      log.PartitionID
	Replicas       []NodeID
	Leader         Member    // ID -1: none
	LeaderEpoch    log.Epoch // rises with each change of leader
	PartitionEpoch int64     // rises by one with each change of this record
	ISR            []Member  // the committed in-sync set
	// ELR are the eligible leader replicas (KIP-966): outside the in-sync set, but
	// holding all that is committed. A lossy replica cuts nothing while it is one.
	ELR    []NodeID
	MinISR int // capped by the number of replicas
	// Live are the replicas that are neither fenced nor stopping, with their present
	// epochs: who may join the in-sync set. Advice; the controller decides.
	Live []Member
	// Recovering is set after an unclean election until the leader has recovered.
	Recovering bool
	// LastUncleanEpoch is the leader epoch of the last unclean election, 0 for none.
	// A replica whose last epoch is older may cut below its own high watermark.
	LastUncleanEpoch log.Epoch
}

func hasMember(ms []Member, id NodeID) (Member, bool) {
	if i := slices.IndexFunc(ms, func(m Member) bool { return m.ID == id }); i >= 0 {
		return ms[i], true
	}
	return Member{ID: -1}, false
}

// minISR is the number of members below which the high watermark stands still.
func (a *Assignment) minISR() int { return min(max(a.MinISR, 1), max(len(a.Replicas), 1)) }

// An ISRChange asks the controller to replace the in-sync set, as a compare-and-set
// on the partition epoch (KIP-497).
type ISRChange struct {
	Partition      log.PartitionID
	Leader         Member
	LeaderEpoch    log.Epoch
	PartitionEpoch int64    // the change applies to this state only
	ISR            []Member // the new set, with epochs
	// Lossy names replicas that have lost records they had reported durable. They
	// are not in ISR and must not become eligible leaders. It may name the leader
	// itself, when its own log failed.
	Lossy []Member
}

// A Controller decides about in-sync sets.
type Controller interface {
	// AlterISR makes the change and returns the new assignment, or returns an error
	// that wraps [ErrStale] if it certainly did not make it. Any other error means
	// an unknown outcome: the same change is sent again. It must return soon after
	// ctx ends.
	AlterISR(ctx context.Context, change ISRChange) (Assignment, error)
}

// A Network carries messages to other nodes.
type Network interface {
	// Fetch sends a request that the peer gives to [Manager.Handle], and returns
	// its answer. The class (live or catch-up) separates connections, so that a
	// replica that catches up does not delay one in sync. It must return soon after
	// ctx ends. Header and payload belong to the caller.
	Fetch(ctx context.Context, to NodeID, catchUp bool, request []byte) (header, payload []byte, err error)

	// Progress sends a one-way message that the peer gives to
	// [Manager.HandleProgress]. It may be lost, and must not block.
	Progress(to NodeID, message []byte)
}

// A Payload is the bulk part of an answer, written without being gathered first.
type Payload interface {
	// Len is the number of bytes that WriteTo writes.
	Len() int
	io.WriterTo
	// Release gives the memory back. It must be called exactly once.
	Release()
}

// A TierView is what this node knows about the cold part of a partition.
type TierView struct {
	Known    bool             // false: not read back yet; the other fields mean nothing
	LogStart log.Offset       // committed log start
	TierEnd  log.Offset       // everything in [LogStart, TierEnd) is in the object store
	Lineage  []log.EpochStart // leader epochs of what is there
}

// Acks says what an append waits for.
type Acks uint8

// What an append may wait for. The zero value is the durable one.
const (
	AcksAll    Acks = iota // committed: on the disks of the whole in-sync set of at least MinISR members
	AcksLeader             // on the leader's disk
	AcksNone               // written to the leader's log, not synced
)

// A Role is what a replica does at present.
type Role uint8

// Roles of a replica.
const (
	RoleNone     Role = iota // no leader known, or not assigned
	RoleFollower             // replicates from the leader
	RoleLeader               // leads
)

// String returns the role in lower case.
func (r Role) String() string {
	switch r {
	case RoleFollower:
		return "follower"
	case RoleLeader:
		return "leader"
	}
	return "none"
}

// Status describes a replica for operators.
type Status struct {
	Partition      log.PartitionID
	Role           Role
	Leader         Member
	LeaderEpoch    log.Epoch
	PartitionEpoch int64
	ISR            []Member
	MinISR         int
	Ready          bool // leads, and its epoch-start record is committed

	LogStart      log.Offset
	LocalStart    log.Offset
	HighWatermark log.Offset
	DurableEnd    log.Offset
	End           log.Offset

	Lossy       bool
	Quarantined bool
	Err         error // first error of the log, sticky

	// Waiting says in words why the high watermark is below End; empty if it isn't.
	Waiting string
	// Followers is filled on a leader.
	Followers []FollowerStatus
}

// FollowerStatus is what a leader knows of one follower.
type FollowerStatus struct {
	Member     Member
	InSync     bool       // in the committed in-sync set
	End        log.Offset // where it fetched last
	DurableEnd log.Offset // what it reported durable
	// Outside says in words why it is not in the in-sync set; empty if it is.
	Outside string
}
