package cordwood

import (
	"context"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
)

// ReadPartition and AppendPartition go by the id of a partition, as a handle does
// whose topic was deleted after it had looked the name up.

func (n *Node) ReadPartition(ctx context.Context, id log.PartitionID) error {
	_, err := n.read(ctx, readRequest{partition: id})
	return err
}

func (n *Node) AppendPartition(ctx context.Context, id log.PartitionID, b record.Batch) error {
	_, err := n.appendOnce(ctx, id, b)
	return err
}

// StoppedOf is a Stopped with these replicas of the tier log, the best first.
func StoppedOf(logs ...*log.Log) *Stopped { return &Stopped{logs: logs} }

// TierLog is the best replica of the tier log.
func (s *Stopped) TierLog() *log.Log { return s.logs[0] }

// TrimTier moves the log start of a partition that this node leads, as package tier does
// on request.
func (r *Replica) TrimTier(ctx context.Context, start log.Offset) error {
	p, err := r.node.replica(r.id)
	if err != nil {
		return err
	}
	return p.tier.TrimTo(ctx, start, "")
}

// Log is the replica's log.
func (r *Replica) Log() *log.Log {
	p, err := r.node.replica(r.id)
	if err != nil {
		return nil
	}
	return p.log
}

// TierStats are those of the node's tier manager.
func (n *Node) TierStats() tier.Stats { return n.cluster.Load().tier.Stats() }

// TierEvent has epoch and number of the newest event of the replica's partition.
func (r *Replica) TierEvent() (e tier.Event, err error) {
	p, err := r.node.replica(r.id)
	if err != nil {
		return e, err
	}
	s, _ := p.tier.State()
	return tier.Event{Partition: p.tier.ID(), Epoch: s.Epoch(), Seq: s.Seq()}, nil
}

// AppendTierEvent appends to the tier log, whoever leads.
func (n *Node) AppendTierEvent(ctx context.Context, e tier.Event) error {
	b, err := tier.EncodeEvent(e)
	if err != nil {
		return err
	}
	return tierEvents{n}.Append(ctx, e.Partition, b)
}
