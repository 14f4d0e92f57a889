package byhand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/replication"
)

// MaxInFlight is how many batches of one [Producer] can be on their way. It is
// the window in which Kafka's idempotent producers are recognised: the last five
// batches of a producer id (KIP-98, KAFKA-5494).
const MaxInFlight = 5

// A sequence numbers the batches of one producer id in one partition.
type sequence struct {
	producer int64
	next     int32
	used     time.Time
}

// stamp gives a batch the next numbers. They are taken by advance.
func (s *sequence) stamp(b record.Batch) { b.SetProducer(s.producer, 0, s.next) }

func (s *sequence) advance(count int) {
	s.next = record.IncrementSequence(s.next, count)
	s.used = time.Now()
}

// idleSequenceAge is how long a sequence may rest in a pool. It stays far below
// the age at which a partition forgets a producer.
const idleSequenceAge = time.Hour

// sequences is the pool of idle producer ids of a node, per partition.
type sequences struct {
	mu    sync.Mutex
	idle  map[log.PartitionID][]*sequence
	first int64 // of the ids not yet used of the last block
	left  int
}

// takeSequence returns an idle sequence of the partition, or a new one.
func (n *Node) takeSequence(ctx context.Context, id log.PartitionID) (*sequence, error) {
	p := &n.sequences
	p.mu.Lock()
	for idle := p.idle[id]; len(idle) > 0; idle = p.idle[id] {
		s := idle[len(idle)-1]
		p.idle[id] = idle[:len(idle)-1]
		if time.Since(s.used) < idleSequenceAge {
			p.mu.Unlock()
			return s, nil
		}
	}
	p.mu.Unlock()
	return n.newSequence(ctx)
}

func (n *Node) newSequence(ctx context.Context) (*sequence, error) {
	p := &n.sequences
	for {
		p.mu.Lock()
		if p.left > 0 {
			s := &sequence{producer: p.first, used: time.Now()}
			p.first++
			p.left--
			p.mu.Unlock()
			return s, nil
		}
		p.mu.Unlock()
		block, err := n.allocateProducerIDs(ctx)
		if err != nil {
			return nil, err
		}
		// Two callers may fetch a block at once; what the first left is dropped.
		p.mu.Lock()
		p.first, p.left = block.First, block.Count
		p.mu.Unlock()
	}
}

// allocateProducerIDs fetches a block of producer ids, once the node is
// registered.
func (n *Node) allocateProducerIDs(ctx context.Context) (metadata.ProducerBlock, error) {
	c := n.cluster.Load()
	if c == nil {
		return metadata.ProducerBlock{}, ErrNotInitialized
	}
	self := metadata.BrokerID(n.o.ID)
	if _, err := n.waitImage(ctx, func(img *metadata.Image) bool {
		b, ok := img.Broker(self)
		return ok && b.Epoch == metadata.BrokerEpoch(c.epoch.Load())
	}); err != nil {
		return metadata.ProducerBlock{}, err
	}
	ctx, cancel := n.bound(ctx)
	defer cancel()
	block, err := c.meta.AllocateProducerIDs(ctx, self, metadata.BrokerEpoch(c.epoch.Load()))
	return block, n.cause(ctx, err)
}

// returnSequence puts a sequence whose numbers are all accounted for back.
func (n *Node) returnSequence(id log.PartitionID, s *sequence) {
	p := &n.sequences
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = make(map[log.PartitionID][]*sequence)
	}
	if len(p.idle[id]) < maxIdleSequences {
		p.idle[id] = append(p.idle[id], s)
	}
}

const maxIdleSequences = 64

// appendOnce appends one batch as its own producer id says, over failovers.
func (n *Node) appendOnce(ctx context.Context, id log.PartitionID, batch record.Batch) (log.Appended, error) {
	s, err := n.takeSequence(ctx, id)
	if err != nil {
		return log.Appended{}, err
	}
	r := route{n: n, id: id}
	var open error // an attempt whose outcome is unknown
	for {
		s.stamp(batch)
		at, err := r.leader(ctx)
		var res appendResult
		if err == nil {
			var rs []appendResult
			rs, err = n.tryAppend(ctx, at, appendRequest{partition: id, acks: replication.AcksAll, batches: [][]byte{batch.Bytes()}})
			if err == nil && len(rs) != 1 {
				err = errMalformed
			}
			if err == nil {
				res = rs[0]
				err = res.err
			}
		}
		switch {
		case err == nil:
			s.advance(batch.Count())
			n.returnSequence(id, s)
			return res.appended, nil
		case errors.Is(err, log.ErrDuplicateUnknownOffset):
			return log.Appended{}, err
		case mayHaveHappened(err):
			open = err
		case open == nil && (errors.Is(err, log.ErrUnknownProducer) || errors.Is(err, log.ErrProducerFenced) || errors.Is(err, log.ErrOutOfOrderSequence)):
			// The partition no longer knows this producer id, so it has refused the
			// batch: a fresh id can't duplicate it.
			if s, err = n.newSequence(ctx); err != nil {
				return log.Appended{}, err
			}
			continue
		case !retriable(err):
			if open != nil {
				return log.Appended{}, indeterminate(err)
			}
			if !errors.Is(err, log.ErrUnknownProducer) {
				n.returnSequence(id, s)
			}
			return log.Appended{}, err
		}
		if err := r.wait(ctx); err != nil {
			if open != nil {
				return log.Appended{}, indeterminate(err)
			}
			n.returnSequence(id, s)
			return log.Appended{}, err
		}
	}
}

func indeterminate(err error) error {
	var already *replication.IndeterminateError
	if errors.As(err, &already) {
		return err
	}
	return &replication.IndeterminateError{Err: err}
}

// A Producer appends batches to one partition in the order of its Send calls,
// over failovers, each exactly once. It has a producer id of its own and at most
// [MaxInFlight] batches under way.
//
// Methods are safe for concurrent use; the order of concurrent Sends is theirs to
// decide. Close it after use.
//
// Source: the idempotent producer of KIP-98.
type Producer struct {
	topic     *Topic
	partition int32

	slots  chan struct{} // one element per batch under way
	kick   chan struct{} // capacity 1: the queue has something
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	seq    *sequence // nil: take a new producer id for the next batch
	queue  []*Pending
	closed bool
	cause  error // why the last attempt failed, nil after one that did not
}

// A Pending is a batch that a [Producer] has taken.
type Pending struct {
	batch     record.Batch
	stamped   bool // has its sequence numbers
	attempted bool // an attempt may have appended it
	done      chan struct{}
	appended  log.Appended
	err       error
}

// Done is closed when the fate of the batch is known.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait returns where the batch was appended, once it is durable on the in-sync
// replicas, or why it was not. ctx bounds the wait, not the fate: after its end
// Wait can be called again. *[IndeterminateError] says that the producer was
// closed while the batch was under way, [ErrDuplicateUnknownOffset] that it was
// appended at an offset that is no longer known; other errors mean that it was
// not appended. Safe for concurrent use.
func (p *Pending) Wait(ctx context.Context) (log.Appended, error) {
	select {
	case <-p.done:
		return p.appended, p.err
	default:
	}
	select {
	case <-p.done:
		return p.appended, p.err
	case <-ctx.Done():
		return log.Appended{}, context.Cause(ctx)
	}
}

func (p *Pending) finish(a log.Appended, err error) {
	p.appended, p.err = a, err
	close(p.done)
}

// Producer returns a new ordered pipeline to one partition. It does nothing
// before the first Send; a partition or topic that does not exist shows there.
func (t *Topic) Producer(partition int32) *Producer {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Producer{
		topic: t, partition: partition,
		slots: make(chan struct{}, MaxInFlight), kick: make(chan struct{}, 1),
		ctx: ctx, cancel: cancel,
	}
}

// Err returns what keeps the oldest batch from being appended at present: why the
// last attempt failed that will be made again. It is nil while all goes well.
func (p *Producer) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}

func (p *Producer) setCause(err error) {
	p.mu.Lock()
	p.cause = err
	p.mu.Unlock()
}

// Send takes a batch for appending and returns as soon as fewer than
// [MaxInFlight] batches are under way, in the order of the calls. The batch is
// the producer's until the Pending is done: its header is rewritten.
//
// Errors mean that the batch was not taken: [ErrClosed] after Close of producer
// or node, [ErrNotInitialized], [ErrUnknownTopic], [ErrUnknownPartition],
// [ErrInvalidBatch], [ErrTooLarge], *[quota.ThrottledError], or the context's cause
// when ctx ends first. The tenant's ingress quota is waited for here. Every other failure is overcome by trying again, until
// the producer is closed; it shows in the Pending.
func (p *Producer) Send(ctx context.Context, batch record.Batch) (*Pending, error) {
	id, err := p.topic.partition(ctx, p.partition)
	if err != nil {
		return nil, err
	}
	if err := p.topic.tenant.node.checkOwn(batch, id.Topic); err != nil {
		return nil, err
	}
	if err := p.topic.tenant.chargeIngress(ctx, batch.Size()); err != nil {
		return nil, err
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.ctx.Done():
		return nil, ErrClosed
	case <-p.topic.tenant.node.stopping():
		return nil, ErrClosed
	}
	pending := &Pending{batch: batch, done: make(chan struct{})}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.slots
		return nil, ErrClosed
	}
	p.queue = append(p.queue, pending)
	if p.done == nil {
		done := make(chan struct{})
		if !p.topic.tenant.node.goTask("producer", func(nodeCtx context.Context) {
			defer close(done)
			p.run(nodeCtx, id)
		}) {
			p.queue = nil
			p.mu.Unlock()
			<-p.slots
			return nil, ErrClosed
		}
		p.done = done
	}
	p.mu.Unlock()
	select {
	case p.kick <- struct{}{}:
	default:
	}
	return pending, nil
}

// Close ends the producer. Batches under way get an error: *[IndeterminateError]
// if they may have been appended. Wait for the Pendings first to avoid that.
// Close waits for the producer's goroutine; it is idempotent and returns nil.
func (p *Producer) Close() error {
	p.cancel(ErrClosed)
	p.mu.Lock()
	p.closed = true
	done := p.done
	p.mu.Unlock()
	if done != nil {
		<-done
	}
	return nil
}

// run sends what is queued until the producer or the node is closed.
func (p *Producer) run(nodeCtx context.Context, id log.PartitionID) {
	stop := context.AfterFunc(nodeCtx, func() { p.cancel(ErrClosed) })
	defer stop()
	for p.ctx.Err() == nil {
		p.mu.Lock()
		group := append([]*Pending(nil), p.queue...)
		p.mu.Unlock()
		if len(group) == 0 {
			select {
			case <-p.kick:
			case <-p.ctx.Done():
			}
			continue
		}
		p.send(id, group)
	}
	p.mu.Lock()
	p.closed = true
	rest := p.queue
	p.queue = nil
	seq := p.seq
	p.seq = nil
	p.mu.Unlock()
	for _, q := range rest {
		err := error(ErrClosed)
		if q.attempted {
			err = indeterminate(ErrClosed)
		}
		q.finish(log.Appended{}, err)
		<-p.slots
	}
	if seq != nil && len(rest) == 0 {
		p.topic.tenant.node.returnSequence(id, seq)
	}
}

// send brings the batches of group to their end, in order: appended, refused, or
// left in the queue because the producer was closed.
func (p *Producer) send(id log.PartitionID, group []*Pending) {
	n := p.topic.tenant.node
	r := route{n: n, id: id}
	for len(group) > 0 && p.ctx.Err() == nil {
		err := p.stamp(group)
		var at int32
		if err == nil {
			at, err = r.leader(p.ctx)
		}
		var rs []appendResult
		if err == nil {
			m := appendRequest{partition: id, acks: replication.AcksAll}
			for _, q := range group {
				m.batches = append(m.batches, q.batch.Bytes())
			}
			rs, err = n.tryAppend(p.ctx, at, m)
		}
		if err != nil && mayHaveHappened(err) {
			for _, q := range group {
				q.attempted = true
			}
		}
		if err == nil {
			group, err = p.settle(group, rs)
		}
		p.setCause(err)
		if err == nil {
			r.pause = 0
			continue
		}
		if errors.Is(err, log.ErrUnknownProducer) && !slices.ContainsFunc(group, func(q *Pending) bool { return q.attempted }) {
			// The partition has forgotten this producer id, which rested too long, and
			// has taken none of these batches: a fresh id can't duplicate them.
			p.renew(group)
			continue
		}
		if !retriable(err) && p.ctx.Err() == nil {
			p.refuse(group, err)
			return
		}
		if r.wait(p.ctx) != nil {
			return
		}
	}
}

// stamp gives the batches of group that have none their sequence numbers.
func (p *Producer) stamp(group []*Pending) error {
	if p.seq == nil {
		s, err := p.topic.tenant.node.newSequence(p.ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", errRetry, err)
		}
		p.seq = s
	}
	for _, q := range group {
		if !q.stamped {
			p.seq.stamp(q.batch)
			p.seq.advance(q.batch.Count())
			q.stamped = true
		}
	}
	return nil
}

// settle takes the results of one attempt and returns what of group remains, and
// the error that stopped it.
func (p *Producer) settle(group []*Pending, rs []appendResult) ([]*Pending, error) {
	for _, res := range rs {
		if len(group) == 0 {
			return nil, nil
		}
		q := group[0]
		if res.err != nil && !errors.Is(res.err, log.ErrDuplicateUnknownOffset) {
			if mayHaveHappened(res.err) {
				// The batches after it may have been appended behind it.
				for _, q := range group {
					q.attempted = true
				}
			}
			return group, res.err
		}
		p.pop(q, res.appended, res.err)
		group = group[1:]
	}
	if len(group) > 0 {
		return group, errRetry
	}
	return nil, nil
}

// renew gives up the producer id, so that the batches of group get numbers of
// another one.
func (p *Producer) renew(group []*Pending) {
	p.seq = nil
	for _, q := range group {
		q.stamped = false
	}
}

// refuse ends all of group with err. Their sequence numbers are lost, so the
// next batch gets a fresh producer id.
func (p *Producer) refuse(group []*Pending, err error) {
	p.seq = nil
	for _, q := range group {
		e := err
		if q.attempted {
			e = indeterminate(err)
		}
		p.pop(q, log.Appended{}, e)
	}
	p.mu.Lock()
	for _, q := range p.queue { // taken meanwhile, not stamped yet
		q.stamped = false
	}
	p.mu.Unlock()
}

// pop takes the first batch out of the queue and ends it.
func (p *Producer) pop(q *Pending, a log.Appended, err error) {
	p.mu.Lock()
	p.queue = p.queue[1:]
	p.mu.Unlock()
	q.finish(a, err)
	<-p.slots
}
