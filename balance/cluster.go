package balance

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// BrokerID names a broker.
type BrokerID int32

// NoBroker stands for no broker: a partition without a leader.
const NoBroker BrokerID = -1

// TopicID names a topic.
type TopicID [16]byte

// PartitionID names a partition.
type PartitionID struct {
	Topic TopicID
	Index int32
}

// String returns the topic in hexadecimal, a dash and the index.
func (p PartitionID) String() string {
	return fmt.Sprintf("%s-%d", hex.EncodeToString(p.Topic[:]), p.Index)
}

// Compare orders partitions by topic, then by index.
func (p PartitionID) Compare(q PartitionID) int {
	if c := bytes.Compare(p.Topic[:], q.Topic[:]); c != 0 {
		return c
	}
	return cmp.Compare(p.Index, q.Index)
}

// CellID names a cell. 0 is no cell: brokers and partitions of cell 0 are balanced among themselves.
type CellID int32

// Resource is something that a replica uses and a broker runs out of.
type Resource uint8

// The resources. They index [Loads].
const (
	// Ingress is bytes per second written, by clients to a leader and by replication to a follower.
	Ingress Resource = iota
	// Egress is bytes per second read by clients and followers.
	Egress
	// Disk is bytes of local storage, which is what a replica move copies.
	Disk
	// Work is the share of the broker's load, in any unit that all brokers share: nanoseconds of
	// busy time per second, or millionths of [Load.Overall] as [Attribute] splits it.
	Work

	numResources = 4
)

// String returns the name of the resource.
func (r Resource) String() string {
	switch r {
	case Ingress:
		return "ingress"
	case Egress:
		return "egress"
	case Disk:
		return "disk"
	case Work:
		return "work"
	}
	return fmt.Sprintf("Resource(%d)", uint8(r))
}

// Loads holds an amount of each [Resource]. Amounts are integers so that sums are exact in any order.
type Loads [numResources]int64

func (l Loads) add(m Loads) Loads {
	for i := range l {
		l[i] += m[i]
	}
	return l
}

// BrokerState says what the planner may do with a broker.
type BrokerState uint8

// The states of a broker.
const (
	// Active is a broker that takes part.
	Active BrokerState = iota
	// Joining is a new broker: it starts a round, and while one exists only such brokers are
	// filled. An Active broker without replicas counts as Joining.
	Joining
	// Draining is a broker that everything has to leave: before its removal or for maintenance.
	Draining
	// Dead is a broker that is gone for good: its replicas are built anew elsewhere, from the others.
	Dead
)

// String returns the name of the state.
func (s BrokerState) String() string {
	switch s {
	case Active:
		return "active"
	case Joining:
		return "joining"
	case Draining:
		return "draining"
	case Dead:
		return "dead"
	}
	return fmt.Sprintf("BrokerState(%d)", uint8(s))
}

// Broker is one broker of a [Cluster].
type Broker struct {
	ID   BrokerID
	Zone string
	Cell CellID
	// State is Active by default.
	State BrokerState
	// DemotedUntil is the end of a demotion, as [Monitor] decides it. Until then the broker leads
	// nothing and receives nothing, and no data moves on its account.
	DemotedUntil time.Time
	// Capacity is what the broker can carry of each resource; 0 is not limited. Brokers are
	// balanced in proportion to their capacity where all brokers of the cell state one.
	Capacity Loads
	// MaxReplicas limits the replicas; 0 means [DefaultMaxReplicas].
	MaxReplicas int
	// Reported is when the loads of this broker were measured. The zero time is taken as fresh.
	// See [PlanOptions.MaxReportAge].
	Reported time.Time
}

// Replica is one copy of a partition.
type Replica struct {
	Broker BrokerID
	// Load is what the copy costs its broker as a follower. Sizes differ between copies, so each
	// has its own.
	Load Loads
	// Lagging says that the copy is not in sync, so that it must not lead now.
	Lagging bool
}

// Partition is one partition of a [Cluster].
type Partition struct {
	ID   PartitionID
	Cell CellID
	// Leader is the broker that leads, [NoBroker] if none does.
	Leader BrokerID
	// Leadership is what leading costs on top of the copy's own Load; it goes where leadership
	// goes.
	Leadership Loads
	// Pinned partitions keep their leader and their replicas: the sticky ones of probes. Only a dead or
	// draining broker gives them up.
	Pinned bool
	// Estimated says that the loads were not measured for this partition but split from a larger
	// sum. It is carried into the plan's moves.
	Estimated bool
	// Replicas are the copies, on different brokers. Their order does not matter.
	Replicas []Replica
}

// Cluster is the model that a plan is made from. The order of its slices does not matter.
// The planner does not change it.
type Cluster struct {
	Brokers    []Broker
	Partitions []Partition
}

// ErrModel is wrapped by errors about a [Cluster] that contradicts itself.
var ErrModel = errors.New("balance: bad model")

// Apply changes the assignment of c by moves, in their order, as the planner means them. It returns
// [ErrModel] at the first move that does not fit and leaves the ones before it applied.
func (c *Cluster) Apply(moves []Move) error {
	if len(moves) == 0 {
		return nil
	}
	index := make(map[PartitionID]int, len(c.Partitions))
	for i := range c.Partitions {
		index[c.Partitions[i].ID] = i
	}
	for _, m := range moves {
		i, ok := index[m.Partition]
		if !ok {
			return fmt.Errorf("%w: move of unknown partition %v", ErrModel, m.Partition)
		}
		p := &c.Partitions[i]
		from, to := -1, -1
		for j := range p.Replicas {
			switch p.Replicas[j].Broker {
			case m.From:
				from = j
			case m.To:
				to = j
			}
		}
		switch m.Kind {
		case MoveLeadership:
			if p.Leader != m.From || to < 0 {
				return fmt.Errorf("%w: leadership of %v cannot go from %d to %d", ErrModel, m.Partition, m.From, m.To)
			}
			p.Leader = m.To
		case MoveReplica:
			if from < 0 || to >= 0 {
				return fmt.Errorf("%w: replica of %v cannot go from %d to %d", ErrModel, m.Partition, m.From, m.To)
			}
			p.Replicas[from].Broker = m.To
			if p.Leader == m.From {
				p.Leader = m.To
			}
		default:
			return fmt.Errorf("%w: unknown kind of move %d", ErrModel, m.Kind)
		}
	}
	return nil
}

// Clone returns a copy that shares nothing with c.
func (c Cluster) Clone() Cluster {
	d := Cluster{Brokers: append([]Broker(nil), c.Brokers...), Partitions: append([]Partition(nil), c.Partitions...)}
	for i := range d.Partitions {
		d.Partitions[i].Replicas = append([]Replica(nil), d.Partitions[i].Replicas...)
	}
	return d
}
