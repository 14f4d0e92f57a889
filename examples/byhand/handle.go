package byhand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/quota"
	"github.com/cordwood-io/cordwood/replication"
)

// DefaultTenant is the tenant of hosts that have only one.
const DefaultTenant = "default"

// A Tenant is the door to one tenant's data: names are resolved in its namespace,
// and what its handles do is charged to its quotas. Safe for concurrent use.
//
// Source: logical clusters and their namespaces, Kora paper section 5.1.
type Tenant struct {
	node *Node
	id   string
}

// Tenant returns the handle of a tenant; "" is [DefaultTenant]. It always
// succeeds: a tenant that nobody uses has no topics.
func (n *Node) Tenant(id string) *Tenant {
	if id == "" {
		id = DefaultTenant
	}
	return &Tenant{node: n, id: id}
}

// ID returns the tenant's name.
func (t *Tenant) ID() string { return t.id }

// A TopicConfig describes a topic to create. The zero value is a topic of one
// partition on up to three brokers, durable on two, tiered where the cluster has
// a store, kept for ever.
type TopicConfig struct {
	// Partitions is the number of partitions, 0 means 1.
	Partitions int
	// Replication is the number of replicas, 0 means 3, or all brokers if fewer
	// are live.
	Replication int
	// MinISR is how many replicas must have a record on disk before its append
	// returns, at least; 0 means min(2, Replication).
	MinISR int
	// SegmentBytes is the size at which a segment is sealed; 0 means
	// [DefaultSegmentBytes].
	SegmentBytes int64
	// SegmentAge seals a segment that has records at this age, so that slow
	// partitions reach the store and can expire; 0 means never.
	SegmentAge time.Duration
	// MaxBatchBytes bounds a batch as it is sent, below what the nodes'
	// MaxRecordBytes allows; 0 means just that.
	MaxBatchBytes int
	// NotTiered keeps the topic on local disks only.
	NotTiered bool
	// LocalRetentionBytes and LocalRetentionAge say what stays on local disks
	// though it is in the store, see [tier.PartitionOptions]; two zeros keep only
	// what is not there yet.
	LocalRetentionBytes int64
	LocalRetentionAge   time.Duration
	// RetentionBytes and RetentionAge bound the topic's partitions as a whole; what
	// is older or more is deleted. 0 keeps all.
	RetentionBytes int64
	RetentionAge   time.Duration
}

// CreateTopic creates a topic of that name: 1 to 249 letters, digits, '.', '_'
// and '-', not starting with "__". On return it is known to this node; it may
// have no leader for a moment.
//
// Errors: [ErrTopicExists]; [metadata.ErrNotEnoughBrokers];
// [metadata.ErrInvalidRequest] with what is wrong; *[quota.ThrottledError] when the
// tenant may create no partition now; [ErrNotInitialized], [ErrClosed]; the
// context's cause, after which the topic may or may not exist. A call that is
// repeated by the node itself after a lost answer does not see itself.
func (t *Tenant) CreateTopic(ctx context.Context, name string, cfg TopicConfig) error {
	n := t.node
	c := n.cluster.Load()
	if c == nil {
		return ErrNotInitialized
	}
	if min(cfg.LocalRetentionBytes, cfg.RetentionBytes) < 0 || min(cfg.LocalRetentionAge, cfg.RetentionAge) < 0 {
		return fmt.Errorf("%w: negative retention", metadata.ErrInvalidRequest)
	}
	if delay, ok := n.limiter.Reserve(quota.Key{Tenant: t.id}, quota.PartitionMutations, int64(max(cfg.Partitions, 1)), n.limiter.Now()); !ok {
		return &quota.ThrottledError{Key: quota.Key{Tenant: t.id}, Kind: quota.PartitionMutations, RetryAfter: delay}
	}
	ctx, cancel := n.bound(ctx)
	defer cancel()
	topic, err := c.meta.CreateTopic(ctx, metadata.TopicSpec{
		Tenant: t.id, Name: name,
		Partitions: cmp.Or(cfg.Partitions, 1), Replication: cfg.Replication, MinISR: cfg.MinISR,
		Config: metadata.TopicConfig{
			SegmentBytes: cfg.SegmentBytes, SegmentAge: cfg.SegmentAge, MaxBatchBytes: cfg.MaxBatchBytes,
			LocalRetention: metadata.Retention{Bytes: cfg.LocalRetentionBytes, Age: cfg.LocalRetentionAge},
			Retention:      metadata.Retention{Bytes: cfg.RetentionBytes, Age: cfg.RetentionAge},
			Tiered:         !cfg.NotTiered,
		},
	})
	if err != nil {
		return n.cause(ctx, err)
	}
	_, err = n.waitImage(ctx, func(img *metadata.Image) bool {
		_, ok := img.Topic(topic.ID)
		return ok
	})
	return err
}

// cause replaces an error that only says that ctx or the node has ended by why.
func (n *Node) cause(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if closed := n.closedErr(); closed != nil {
		return closed
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return context.Cause(ctx)
	}
	return err
}

// Topics returns the names of the tenant's topics, sorted as this node knows them
// at present.
func (t *Tenant) Topics() []string {
	var names []string
	if c := t.node.cluster.Load(); c != nil {
		for topic := range c.meta.Image().Topics() {
			if topic.Tenant == t.id && !topic.Internal {
				names = append(names, topic.Name)
			}
		}
	}
	return sorted(names)
}

// A Topic is a handle on one topic name of a tenant. It works on every node: each
// call finds the topic and the partition's leader anew and follows it over
// failovers. Safe for concurrent use.
type Topic struct {
	tenant *Tenant
	name   string
}

// Topic returns the handle of a topic, which need not exist yet.
func (t *Tenant) Topic(name string) *Topic { return &Topic{tenant: t, name: name} }

// Name returns the topic's name.
func (t *Topic) Name() string { return t.name }

// Partitions returns the number of partitions, or [ErrUnknownTopic].
func (t *Topic) Partitions(ctx context.Context) (int, error) {
	topic, err := t.lookup(ctx)
	return topic.Partitions, err
}

// lookup finds the topic; one that this node does not know is looked for again
// once the node knows all that was done when the call began.
func (t *Topic) lookup(ctx context.Context) (metadata.Topic, error) {
	n := t.tenant.node
	c := n.cluster.Load()
	if c == nil {
		return metadata.Topic{}, ErrNotInitialized
	}
	if err := n.closedErr(); err != nil {
		return metadata.Topic{}, err
	}
	if topic, ok := c.meta.Image().TopicByName(t.tenant.id, t.name); ok {
		return topic, nil
	}
	ctx, cancel := n.bound(ctx)
	defer cancel()
	if err := c.meta.Sync(ctx); err != nil {
		return metadata.Topic{}, n.cause(ctx, err)
	}
	if topic, ok := c.meta.Image().TopicByName(t.tenant.id, t.name); ok {
		return topic, nil
	}
	for d := range c.meta.Image().DeletedTopics() {
		if d.Tenant == t.tenant.id && d.Name == t.name {
			return metadata.Topic{}, fmt.Errorf("%w: %q of tenant %q: %w", ErrUnknownTopic, t.name, t.tenant.id, ErrTopicDeleted)
		}
	}
	return metadata.Topic{}, fmt.Errorf("%w: %q of tenant %q", ErrUnknownTopic, t.name, t.tenant.id)
}

func (t *Topic) partition(ctx context.Context, index int32) (log.PartitionID, error) {
	topic, err := t.lookup(ctx)
	if err != nil {
		return log.PartitionID{}, err
	}
	if index < 0 || int(index) >= topic.Partitions {
		return log.PartitionID{}, fmt.Errorf("%w: %d of topic %q, which has %d", ErrUnknownPartition, index, t.name, topic.Partitions)
	}
	return log.PartitionID{Topic: topic.ID, Index: index}, nil
}

// checkBatch refuses before sending what a leader would refuse.
func (n *Node) checkBatch(b record.Batch, topic log.TopicID) error {
	if b.Size() == 0 {
		return fmt.Errorf("%w: no bytes", ErrInvalidBatch)
	}
	if limit := min(n.o.MaxRecordBytes+batchOverhead, n.batchLimit(topic)); b.Size() > limit {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, b.Size(), limit)
	}
	if b.IsControl() {
		return fmt.Errorf("%w: %w", ErrInvalidBatch, log.ErrControlBatch)
	}
	err := b.VerifyNew()
	if err == nil {
		// What readers could not decode must not get into the log.
		err = b.VerifyRecords(record.DefaultMaxDecompressedBytes)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidBatch, err)
	}
	return nil
}

// checkOwn is checkBatch for batches that get a producer id of this node's.
func (n *Node) checkOwn(b record.Batch, topic log.TopicID) error {
	if err := n.checkBatch(b, topic); err != nil {
		return err
	}
	if b.IsTransactional() {
		// Nobody would end the transaction, which would hold up readers and uploads.
		return fmt.Errorf("%w: part of a transaction: only Node.Replica takes it", ErrInvalidBatch)
	}
	return nil
}

func (t *Tenant) chargeIngress(ctx context.Context, bytes int) error {
	return t.node.limiter.Wait(ctx, quota.Key{Tenant: t.id}, quota.Ingress, int64(bytes))
}

// Append appends a batch to a partition and returns its offsets once it is on the
// disks of the whole in-sync set, of at least MinISR members. It is tried again
// over failovers and lost answers until that or the end of ctx, and appended at
// most once whatever happens: the batch is given a producer id of the node's
// pool. Its header is rewritten; the batch is the caller's again on return.
//
// Errors: [ErrUnknownTopic], [ErrUnknownPartition], [ErrTooLarge],
// [ErrInvalidBatch] (control batches too), [ErrNotInitialized], [ErrClosed],
// *[quota.ThrottledError] and the context's cause mean that it was not appended; *[IndeterminateError] that it may have been, or
// may still be: ctx bounds the wait, not the fate; [ErrDuplicateUnknownOffset]
// that it was, at an offset that is no longer known.
//
// The order of concurrent calls is open: use a [Producer] for many batches in
// order. Waits while the tenant is over its ingress quota.
func (t *Topic) Append(ctx context.Context, partition int32, batch record.Batch) (log.Appended, error) {
	n := t.tenant.node
	id, err := t.partition(ctx, partition)
	if err != nil {
		return log.Appended{}, err
	}
	if err := n.checkOwn(batch, id.Topic); err != nil {
		return log.Appended{}, err
	}
	if err := t.tenant.chargeIngress(ctx, batch.Size()); err != nil {
		return log.Appended{}, err
	}
	ctx, cancel := n.bound(ctx)
	defer cancel()
	a, err := n.appendOnce(ctx, id, batch)
	if err == nil {
		n.counters.appended(batch)
	}
	return a, err
}

// AppendRecords appends records as one batch; see [Topic.Append]. The zero
// Timestamp of a record means now.
func (t *Topic) AppendRecords(ctx context.Context, partition int32, records ...Record) (log.Appended, error) {
	batch, err := NewBatch(records...)
	if err != nil {
		return log.Appended{}, err
	}
	return t.Append(ctx, partition, batch)
}

// Record is a key-value pair with a time and headers.
type Record = log.Record

// NewBatch builds an uncompressed batch of its own memory from records; a zero
// Timestamp means now. More control gives a [record.Builder].
func NewBatch(records ...Record) (record.Batch, error) {
	var b record.Builder
	now := time.Now()
	for _, r := range records {
		if r.Timestamp.IsZero() {
			r.Timestamp = now
		}
		if err := b.Append(r); err != nil {
			return record.Batch{}, err
		}
	}
	return b.Build()
}

// Offsets returns where the partition begins and ends, as its leader knows it at
// a moment after the call began. Errors are those of [Topic.Read] but for
// [ErrOffsetOutOfRange].
func (t *Topic) Offsets(ctx context.Context, partition int32) (Offsets, error) {
	id, err := t.partition(ctx, partition)
	if err != nil {
		return Offsets{}, err
	}
	ctx, cancel := t.tenant.node.bound(ctx)
	defer cancel()
	return t.tenant.node.offsets(ctx, id)
}

// A Chunk is a run of whole batches that [Topic.Read] returned.
type Chunk struct {
	Batches       []byte     // the caller's; the first batch holds the offset asked for. Empty at the end of the partition
	Cold          bool       // read from the object store
	Start         log.Offset // log start offset of the partition
	HighWatermark log.Offset // end of what can be read
}

// Read returns committed batches from an offset on: at least one, and others
// while they fit into maxBytes (1 to 8 MiB, 0 means 1 MiB). At the end of the
// partition it waits for more, up to wait and Options.FetchWait at most, and then
// returns an empty Chunk.
// Batches may be control batches, which hold no records; see [record.Next].
//
// Errors: [ErrOffsetOutOfRange] for an offset below the log start or above the
// end; [ErrUnknownTopic], [ErrUnknownPartition], [ErrClosed]; the context's cause;
// *[log.CorruptionError] and [tier.ErrCorrupt] for damage that no copy at the
// leader can replace. Everything else is tried again. Waits while the tenant is
// over its egress quota.
func (t *Topic) Read(ctx context.Context, partition int32, from log.Offset, maxBytes int, wait time.Duration) (Chunk, error) {
	id, err := t.partition(ctx, partition)
	if err != nil {
		return Chunk{}, err
	}
	return t.read(ctx, id, from, maxBytes, wait)
}

func (t *Topic) read(ctx context.Context, id log.PartitionID, from log.Offset, maxBytes int, wait time.Duration) (Chunk, error) {
	n := t.tenant.node
	if maxBytes <= 0 {
		maxBytes = defaultReadBytes
	}
	ctx, cancel := n.bound(ctx)
	defer cancel()
	if err := n.limiter.Wait(ctx, quota.Key{Tenant: t.tenant.id}, quota.Egress, 0); err != nil {
		return Chunk{}, err
	}
	r, err := n.read(ctx, readRequest{partition: id, from: from, maxBytes: min(maxBytes, maxReadBytes), wait: max(0, min(wait, n.o.FetchWait))})
	if err != nil {
		return Chunk{}, err
	}
	n.limiter.Charge(quota.Key{Tenant: t.tenant.id}, quota.Egress, int64(len(r.batches)), n.limiter.Now())
	n.counters.read(len(r.batches), r.cold)
	return Chunk{Batches: r.batches, Cold: r.cold, Start: r.start, HighWatermark: r.high}, nil
}

const defaultReadBytes = 1 << 20

// Records iterates over the committed records of a partition from an offset on,
// in order, and ends at its end. Committed means replicated: control batches are left
// out, records of open and of aborted transactions are not. Keys, values and
// headers belong to the caller.
//
// An error is yielded once and last; those of [Topic.Read], and
// *[log.CorruptionError] for bytes that arrived damaged. The iterator starts
// nothing before the first pull and can be used again.
func (t *Topic) Records(ctx context.Context, partition int32, from log.Offset) iter.Seq2[log.Record, error] {
	return t.records(ctx, partition, from, false)
}

// Tail is [Topic.Records], but at the end it waits for more until ctx ends, whose
// cause it then yields.
func (t *Topic) Tail(ctx context.Context, partition int32, from log.Offset) iter.Seq2[log.Record, error] {
	return t.records(ctx, partition, from, true)
}

func (t *Topic) records(ctx context.Context, partition int32, from log.Offset, tail bool) iter.Seq2[log.Record, error] {
	return func(yield func(log.Record, error) bool) {
		id, err := t.partition(ctx, partition)
		if err != nil {
			yield(log.Record{}, err)
			return
		}
		var wait time.Duration
		if tail {
			wait = t.tenant.node.o.FetchWait
		}
		for at := from; ; {
			c, err := t.read(ctx, id, at, 0, wait)
			if err != nil {
				yield(log.Record{}, err)
				return
			}
			if len(c.Batches) == 0 {
				if !tail && at >= c.HighWatermark {
					return
				}
				continue
			}
			for rest := c.Batches; len(rest) > 0; {
				var b record.Batch
				b, rest, err = record.Next(rest, len(rest))
				if err == nil {
					err = b.Verify()
				}
				if err != nil {
					yield(log.Record{}, &log.CorruptionError{Path: id.String(), Offset: at, Err: err})
					return
				}
				if b.NextOffset() <= at {
					continue
				}
				if !b.IsControl() {
					for r, err := range b.Records() {
						if err != nil {
							yield(log.Record{}, &log.CorruptionError{Path: id.String(), Offset: at, Err: err})
							return
						}
						if r.Offset < at {
							continue
						}
						if !yield(r, nil) {
							return
						}
					}
				}
				at = b.NextOffset()
			}
		}
	}
}

// A Replica is this node's own copy of a partition, for hosts that speak to
// clients themselves. Its calls never leave the node. Safe for concurrent use.
type Replica struct {
	node *Node
	id   log.PartitionID
}

// Replica returns this node's replica of a partition of a topic of the default
// tenant, [ErrUnknownTopic], or [ErrUnknownPartition] if there is none here.
func (n *Node) Replica(topic string, partition int32) (*Replica, error) {
	return n.Tenant("").Replica(topic, partition)
}

// Replica returns this node's replica of a partition of one of the tenant's
// topics; see [Node.Replica].
func (t *Tenant) Replica(topic string, partition int32) (*Replica, error) {
	c := t.node.cluster.Load()
	if c == nil {
		return nil, ErrNotInitialized
	}
	tp, ok := c.meta.Image().TopicByName(t.id, topic)
	if !ok {
		return nil, ErrUnknownTopic
	}
	id := log.PartitionID{Topic: tp.ID, Index: partition}
	if _, err := t.node.replica(id); err != nil {
		return nil, err
	}
	return &Replica{node: t.node, id: id}, nil
}

// Append appends a batch as the client made it, if this node leads: producer id
// and sequence are the client's, so that a retry of its is recognised. It waits
// as acks says. The header is rewritten.
//
// Errors: *[NotLeaderError] with the leader, [ErrNotEnoughReplicas] and those of
// package log mean that nothing was appended; *[IndeterminateError] that it may
// have been.
func (r *Replica) Append(ctx context.Context, batch record.Batch, acks replication.Acks) (log.Appended, error) {
	if err := r.node.checkBatch(batch, r.id.Topic); err != nil {
		return log.Appended{}, err
	}
	res := r.node.serveAppend(ctx, appendRequest{partition: r.id, acks: acks, batches: [][]byte{batch.Bytes()}})
	return res[0].appended, res[0].err
}

// EndTransaction appends the marker that ends a producer's open transaction in this
// partition, if this node leads, and waits as acks says. The marker may raise the
// producer's epoch. coordinatorEpoch names the coordinator's leadership: a lower one
// than before is refused with log.ErrCoordinatorFenced, a lower producer epoch with
// log.ErrProducerFenced. Errors: those of [Replica.Append].
//
// Source: KIP-98, WriteTxnMarkers.
func (r *Replica) EndTransaction(ctx context.Context, commit bool, producerID int64, producerEpoch int16, coordinatorEpoch int32, acks replication.Acks) (log.Appended, error) {
	p, err := r.node.replica(r.id)
	if err != nil {
		return log.Appended{}, err
	}
	w, err := p.rep.SubmitControl(ctx, record.EndTxn(commit, producerID, producerEpoch, coordinatorEpoch, time.Now()), acks)
	if err != nil {
		return log.Appended{}, verdict(err)
	}
	return w.Wait(ctx)
}

// LastStable returns the offset below which every transaction is decided, as far as
// this replica knows: what a reader of committed records may read up to.
func (r *Replica) LastStable(ctx context.Context) (log.Offset, error) {
	p, err := r.node.replica(r.id)
	if err != nil {
		return 0, err
	}
	return p.rep.LastStable(ctx)
}

// AbortedTransactions returns the aborted transactions that overlap [from, to),
// ascending by first offset, on disk or in the store. to is at most what LastStable
// returned; a reader of committed records leaves them out of what it has read.
func (r *Replica) AbortedTransactions(ctx context.Context, from, to log.Offset) ([]log.AbortedTxn, error) {
	p, err := r.node.replica(r.id)
	if err != nil {
		return nil, err
	}
	if p.tier != nil {
		return p.tier.AbortedTransactions(ctx, from, to)
	}
	return p.log.AbortedTransactions(ctx, from, to)
}

// Read returns committed batches from this node, if it leads; see [Topic.Read].
// It returns *[NotLeaderError] with the leader if it does not.
func (r *Replica) Read(ctx context.Context, from log.Offset, maxBytes int, wait time.Duration) (Chunk, error) {
	if maxBytes <= 0 {
		maxBytes = defaultReadBytes
	}
	res, err := r.node.tryRead(ctx, r.node.o.ID, readRequest{partition: r.id, from: from, maxBytes: min(maxBytes, maxReadBytes), wait: wait})
	return Chunk{Batches: res.batches, Cold: res.cold, Start: res.start, HighWatermark: res.high}, err
}

// Roll seals the active segment of this replica, so that it can age into the
// store. It does nothing when the segment is empty.
func (r *Replica) Roll(ctx context.Context) error {
	p, err := r.node.replica(r.id)
	if err != nil {
		return err
	}
	return p.log.Roll(ctx)
}

// Status describes the replica for a person: role, ends, and what its high
// watermark waits for. It returns [ErrUnknownPartition] once the replica is gone.
func (r *Replica) Status() (ReplicaStatus, error) {
	p, err := r.node.replica(r.id)
	if err != nil {
		return ReplicaStatus{}, err
	}
	return r.node.replicaStatus(p), nil
}
