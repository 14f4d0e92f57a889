package cordwood

import (
	"context"
	"errors"
	"fmt"

	"github.com/cordwood-io/cordwood/tier"
)

// SweepStore deletes what is nobody's from the object store: under the partitions that
// this node leads (see [tier.Partition.Sweep]), and, on the node that leads the internal
// topic, what came late of deleted topics (see [tier.Manager.SweepDeleted]). A store that
// takes a write long after it was given up leaves such objects, and nothing else looks for
// them: a host calls it on each node now and then, once a day is plenty. It lists the whole
// store once or twice over all nodes, and appends one event for each partition.
//
// The report is the sum of all. Partitions that have just begun to be led here, or that
// another has come to lead meanwhile, are left for the next time; one that can't be swept
// does not keep the others from it, and is named in the error, which may be
// [tier.ErrUnknown], [tier.ErrTwoWriters] and those of the store. What the store refuses
// to delete is in the report. A node without a store or without replicas does nothing.
// Other errors: [ErrNotInitialized], [ErrClosed], the context's cause. What was deleted
// before stays deleted.
func (n *Node) SweepStore(ctx context.Context, o tier.SweepOptions) (*tier.SweepReport, error) {
	sum := &tier.SweepReport{}
	if err := n.closedErr(); err != nil {
		return sum, err
	}
	c := n.cluster.Load()
	if c == nil {
		return sum, ErrNotInitialized
	}
	if c.tier == nil {
		return sum, nil
	}
	ctx, cancel := n.bound(ctx)
	defer cancel()
	var errs []error
	add := func(r *tier.SweepReport, err error) {
		if r != nil {
			sum.Listed += r.Listed
			sum.Orphans = append(sum.Orphans, r.Orphans...)
			sum.Young += r.Young
			sum.Bytes += r.Bytes
			sum.Deleted += r.Deleted
			sum.Failed = append(sum.Failed, r.Failed...)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, p := range c.all() {
		if p.tier == nil {
			continue
		}
		r, err := p.tier.Sweep(ctx, o)
		if ctx.Err() != nil {
			add(r, nil)
			return sum, n.cause(ctx, ctx.Err())
		}
		if errors.Is(err, tier.ErrNotLeader) || errors.Is(err, tier.ErrFenced) || errors.Is(err, tier.ErrClosed) {
			err = nil // another leads it, or it was deleted
		}
		if err != nil {
			err = fmt.Errorf("partition %v: %w", p.tier.ID(), err)
		}
		add(r, err)
	}
	n.mu.Lock()
	self := n.self
	n.mu.Unlock()
	if c.leadsTierLog(self) {
		add(c.tier.SweepDeleted(ctx, o))
	}
	return sum, n.cause(ctx, errors.Join(errs...))
}
