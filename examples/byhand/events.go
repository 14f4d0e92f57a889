package byhand

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/replication"
	"github.com/cordwood-io/cordwood/tier"
)

// tierTopic is the internal topic that says what the object store holds.
const tierTopic = metadata.SystemTopic

// tierEvents is the tier log on the internal topic: one record per event, its key
// the partition, its value the event.
type tierEvents struct{ n *Node }

var _ tier.Events = tierEvents{}

// leadsTierLog says whether this node leads the tier log, by its image.
func (c *cluster) leadsTierLog(self identity) bool {
	img := c.meta.Image()
	t, ok := img.TopicByName("", tierTopic)
	if !ok {
		return false
	}
	p, ok := img.Partition(log.PartitionID{Topic: t.ID})
	return ok && p.Leader == metadata.BrokerID(self.node)
}

// partition waits for the topic.
func (e tierEvents) partition(ctx context.Context) (log.PartitionID, error) {
	var id log.PartitionID
	_, err := e.n.waitImage(ctx, func(img *metadata.Image) bool {
		t, ok := img.TopicByName("", tierTopic)
		id.Topic = t.ID
		return ok
	})
	return id, err
}

// Append implements [tier.Events]. It makes one attempt per leader: an event may be
// appended twice, which readers ignore.
func (e tierEvents) Append(ctx context.Context, p log.PartitionID, event []byte) error {
	id, err := e.partition(ctx)
	if err != nil {
		return err
	}
	batch, err := NewBatch(record.Record{Key: appendPartition(nil, p), Value: event})
	if err != nil {
		return err
	}
	r := route{n: e.n, id: id}
	for {
		at, err := r.leader(ctx)
		if err != nil {
			return err
		}
		rs, err := e.n.tryAppend(ctx, at, appendRequest{partition: id, acks: replication.AcksAll, batches: [][]byte{batch.Bytes()}})
		if err == nil && len(rs) != 1 {
			err = errMalformed
		}
		if err == nil {
			err = rs[0].err
		}
		if err == nil || !retriable(err) || mayHaveHappened(err) {
			return err
		}
		if err := r.wait(ctx); err != nil {
			return err
		}
	}
}

// Read implements [tier.Events]: from this node's replica if it has one, else
// from the leader.
func (e tierEvents) Read(ctx context.Context, from log.Offset) iter.Seq2[tier.Committed, error] {
	return func(yield func(tier.Committed, error) bool) {
		id, err := e.partition(ctx)
		if err != nil {
			yield(tier.Committed{}, err)
			return
		}
		for at := from; ; {
			batches, release, err := e.chunk(ctx, id, at)
			if err != nil {
				yield(tier.Committed{}, err)
				return
			}
			next, ok := e.yield(batches, at, yield)
			release()
			if !ok {
				return
			}
			at = next
		}
	}
}

// chunk returns committed batches from an offset on, once there are any.
func (e tierEvents) chunk(ctx context.Context, id log.PartitionID, from log.Offset) (_ []byte, release func(), err error) {
	for {
		p, err := e.n.replica(id)
		if err != nil {
			r, err := e.n.read(ctx, readRequest{partition: id, from: from, maxBytes: defaultReadBytes, wait: e.n.o.FetchWait})
			if err != nil {
				return nil, nil, err
			}
			if len(r.batches) > 0 {
				return r.batches, func() {}, nil
			}
			continue
		}
		s, err := p.rep.Read(ctx, from, defaultReadBytes)
		if err == nil && s.Len() > 0 {
			return s.Bytes(), s.Release, nil
		}
		if err != nil && from < p.log.Start() {
			return nil, nil, fmt.Errorf("offset %d of the tier log, which starts at %d: %w", from, p.log.Start(), log.ErrOffsetOutOfRange)
		}
		if err == nil || errors.Is(err, replication.ErrNotYetAvailable) {
			err = p.rep.Wait(ctx, from)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, nil, context.Cause(ctx)
			}
			// The replica may have been closed, or be filled anew: look again.
			if !sleep(ctx, e.n.o.Tick) {
				return nil, nil, context.Cause(ctx)
			}
		}
	}
}

// yield passes on the events of batches from an offset on and returns the offset
// after them.
func (e tierEvents) yield(batches []byte, at log.Offset, yield func(tier.Committed, error) bool) (log.Offset, bool) {
	for len(batches) > 0 {
		b, rest, err := record.Next(batches, len(batches))
		if err == nil {
			err = b.Verify()
		}
		if err != nil {
			yield(tier.Committed{}, &log.CorruptionError{Path: tierTopic, Offset: at, Err: err})
			return at, false
		}
		batches = rest
		if b.NextOffset() <= at {
			continue
		}
		if b.IsControl() {
			if !yield(tier.Committed{Offset: b.LastOffset()}, nil) {
				return at, false
			}
			at = b.NextOffset()
			continue
		}
		for r, err := range b.Records() {
			if err != nil {
				yield(tier.Committed{}, &log.CorruptionError{Path: tierTopic, Offset: at, Err: err})
				return at, false
			}
			if r.Offset < at {
				continue
			}
			if !yield(tier.Committed{Offset: r.Offset, Event: append([]byte(nil), r.Value...)}, nil) {
				return at, false
			}
			at = r.Offset + 1
		}
	}
	return at, true
}

// End implements [tier.Events].
func (e tierEvents) End(ctx context.Context) (log.Offset, error) {
	id, err := e.partition(ctx)
	if err != nil {
		return 0, err
	}
	o, err := e.n.offsets(ctx, id)
	return o.HighWatermark, err
}

// Start implements [tier.Events]: that of this node's replica if it has one, else the
// leader's.
func (e tierEvents) Start(ctx context.Context) (log.Offset, error) {
	id, err := e.partition(ctx)
	if err != nil {
		return 0, err
	}
	if p, err := e.n.replica(id); err == nil {
		return p.log.Start(), nil
	}
	o, err := e.n.offsets(ctx, id)
	return o.Start, err
}

// Trim implements [tier.Events]. The followers' starts follow the leader's with what
// they fetch.
func (e tierEvents) Trim(ctx context.Context, to log.Offset) error {
	id, err := e.partition(ctx)
	if err != nil {
		return err
	}
	p, err := e.n.replica(id)
	if err != nil {
		return nil // no replica, no leader
	}
	if !p.rep.Status().Ready {
		return nil
	}
	if to = min(to, p.rep.HighWatermark()); to <= p.log.Start() {
		return nil
	}
	return p.log.TrimTo(ctx, to)
}
