package cordwood

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/replication"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/transport"
)

// What a node does for others: the transport's callbacks, and the requests that
// handles of this and other nodes bring to the leader of a partition.

// handle answers the calls of other nodes.
func (n *Node) handle(ctx context.Context, r *transport.Request) (*transport.Reply, error) {
	switch r.Kind {
	case kindJoin:
		n.mu.Lock()
		self := n.self
		n.mu.Unlock()
		return &transport.Reply{Body: joinAnswer{cluster: self.cluster, voters: self.voters}.encode()}, nil
	// A node that is starting has its address, and perhaps its leaderships, already:
	// the answer says so in a form on which the caller tries again.
	case kindAppend:
		m, err := decodeAppendRequest(r.Body)
		if err != nil {
			return nil, err
		}
		return &transport.Reply{Body: encodeAppendResults(n.serveAppend(ctx, m))}, nil
	case kindRead:
		m, err := decodeReadRequest(r.Body)
		if err != nil {
			return nil, err
		}
		h, payload := n.serveRead(ctx, m)
		reply := &transport.Reply{Body: h.encode()}
		if payload != nil {
			reply.Payload = payload
		}
		return reply, nil
	case kindOffsets:
		id, err := decodePartition(r.Body)
		if err != nil {
			return nil, err
		}
		o, err := n.serveOffsets(id)
		return &transport.Reply{Body: encodeOffsets(o, err)}, nil
	}
	c := n.cluster.Load()
	if c == nil {
		return nil, ErrNotInitialized
	}
	switch r.Kind {
	case kindJoined:
		if _, known := c.meta.Controller(); !known {
			c.meta.Campaign()
		}
		return &transport.Reply{Body: []byte{messageVersion}}, nil
	case kindMetadata:
		body, err := c.meta.Handle(ctx, metadata.BrokerID(r.From.Node), r.Body)
		if err != nil {
			return nil, err
		}
		return &transport.Reply{Body: body}, nil
	case kindFetch:
		header, payload, err := c.repl.Handle(ctx, replication.NodeID(r.From.Node), r.Body)
		if err != nil {
			return nil, err
		}
		reply := &transport.Reply{Body: header}
		if payload != nil {
			reply.Payload = payload
		}
		return reply, nil
	}
	return nil, fmt.Errorf("cordwood: unknown kind of call %d", r.Kind)
}

// receive takes one-way messages of other nodes.
func (n *Node) receive(from transport.Peer, kind uint16, body []byte) {
	c := n.cluster.Load()
	if c == nil {
		return
	}
	switch kind {
	case kindRaft:
		c.meta.Step(metadata.BrokerID(from.Node), body)
	case kindProgress:
		c.repl.HandleProgress(replication.NodeID(from.Node), body)
	}
}

// down takes the news that a connection ended. A re-dial that is refused, or that
// meets another process, is evidence that the process is dead.
func (n *Node) down(d transport.Down) {
	c := n.cluster.Load()
	if c == nil || !d.Refused && !d.Replaced || d.Peer.Node < 0 {
		return
	}
	c.meta.PeerDead(metadata.BrokerID(d.Peer.Node), incarnationOf(d.Peer))
}

// incarnationOf is the id under which a peer's process registers as a broker.
func incarnationOf(p transport.Peer) (id ID) {
	for i := range 8 {
		id[i] = byte(p.Incarnation >> (56 - 8*i))
	}
	return id
}

// resolve gives the transport the address of a node.
func (n *Node) resolve(node int32) (string, bool) {
	if c := n.cluster.Load(); c != nil {
		if b, ok := c.meta.Image().Broker(metadata.BrokerID(node)); ok && b.Addr != "" {
			return b.Addr, true
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	addr, ok := n.seeds[node]
	return addr, ok
}

// directoryOf gives the transport the directory under which a node is known.
func (n *Node) directoryOf(node int32) (transport.ID, bool) {
	if c := n.cluster.Load(); c != nil {
		if b, ok := c.meta.Image().Broker(metadata.BrokerID(node)); ok && !b.Fenced {
			return transport.ID(b.Directory), true
		}
	}
	return transport.ID{}, false
}

// metadataNetwork carries the messages of package metadata.
type metadataNetwork struct{ n *Node }

// Send implements [metadata.Network].
func (m metadataNetwork) Send(to metadata.BrokerID, msg []byte) error {
	return m.n.net.Send(int32(to), transport.Control, kindRaft, msg)
}

// Call implements [metadata.Network].
func (m metadataNetwork) Call(ctx context.Context, to metadata.BrokerID, req []byte) ([]byte, error) {
	resp, err := m.n.net.Call(ctx, int32(to), transport.Control, kindMetadata, req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// replicationNetwork carries the messages of package replication.
type replicationNetwork struct{ n *Node }

// Fetch implements [replication.Network].
func (m replicationNetwork) Fetch(ctx context.Context, to replication.NodeID, catchUp bool, request []byte) (header, payload []byte, err error) {
	class := transport.Live
	if catchUp {
		class = transport.CatchUp
	}
	resp, err := m.n.net.Call(ctx, int32(to), class, kindFetch, request)
	if err != nil {
		return nil, nil, err
	}
	return resp.Body, resp.Payload, nil
}

// Progress implements [replication.Network].
func (m replicationNetwork) Progress(to replication.NodeID, message []byte) {
	m.n.net.Send(int32(to), transport.Live, kindProgress, message) // may be lost
}

// replica returns the replica of a partition on this node.
func (n *Node) replica(id log.PartitionID) (*partition, error) {
	c := n.cluster.Load()
	if c == nil {
		return nil, ErrNotInitialized
	}
	p := c.get(id)
	if p == nil || p.err != nil {
		return nil, ErrUnknownPartition
	}
	return p, nil
}

// serveAppend appends batches in order to a partition that this node leads, and
// waits as the request says. After the first batch that is refused the rest are
// not tried.
func (n *Node) serveAppend(ctx context.Context, m appendRequest) []appendResult {
	token := n.pool.Enqueue(time.Now())
	token.Start(time.Now())
	p, err := n.replica(m.partition)
	if err != nil {
		token.Done(time.Now())
		return []appendResult{{err: err}}
	}
	results := make([]appendResult, 0, len(m.batches))
	waits := make([]*replication.Pending, 0, len(m.batches))
	limit := n.batchLimit(m.partition.Topic)
	for _, b := range m.batches {
		if len(b) > limit {
			err := fmt.Errorf("%w: %d bytes, the topic takes at most %d", ErrTooLarge, len(b), limit)
			results, waits = append(results, appendResult{err: err}), append(waits, nil)
			break
		}
		w, err := p.rep.Submit(ctx, b, m.acks)
		err = verdict(err)
		results = append(results, appendResult{err: err})
		waits = append(waits, w)
		if err != nil && !errors.Is(err, log.ErrDuplicateUnknownOffset) {
			break
		}
	}
	token.Done(time.Now()) // the wait for replication is not this node's work
	for i, w := range waits {
		if w != nil && results[i].err == nil {
			results[i].appended, results[i].err = w.Wait(ctx)
		}
	}
	return results
}

// verdict leaves an error of an append as it is if it certainly says that nothing
// was appended. Any other, of a failed disk for instance, leaves that open; the
// caller may try again with the leader that comes next.
func verdict(err error) error {
	var notLeader *replication.NotLeaderError
	var open *replication.IndeterminateError
	var corrupt *log.CorruptionError
	if err == nil || passing(err) || errors.As(err, &notLeader) || errors.As(err, &open) || errors.As(err, &corrupt) {
		return err
	}
	for _, w := range wireErrors {
		if errors.Is(err, w.err) {
			return err
		}
	}
	return &replication.IndeterminateError{Err: err}
}

// batchLimit returns how large a batch of a topic may be, by its configuration.
func (n *Node) batchLimit(id log.TopicID) int {
	t, ok := n.cluster.Load().meta.Image().Topic(id)
	if !ok || t.Config.MaxBatchBytes == 0 {
		return math.MaxInt
	}
	return t.Config.MaxBatchBytes
}

// A chunk is the payload of an answer to a read.
type chunk struct {
	b       []byte
	release func() // nil: the bytes belong to nobody else
}

// Len implements [transport.Payload].
func (c *chunk) Len() int { return len(c.b) }

// WriteTo implements [transport.Payload].
func (c *chunk) WriteTo(w io.Writer) (int64, error) {
	k, err := w.Write(c.b)
	return int64(k), err
}

// Release implements [transport.Payload].
func (c *chunk) Release() {
	if c.release != nil {
		c.release()
		c.release = nil
	}
}

// bytes returns the content as the caller's own, also after Release.
func (c *chunk) bytes() []byte {
	if c.release == nil {
		return c.b
	}
	return append([]byte(nil), c.b...)
}

// serveRead reads committed batches of a partition that this node leads: from the
// local log, or from the object store what is no longer local. At the end of the
// partition it waits as the request says and then answers with nothing.
func (n *Node) serveRead(ctx context.Context, m readRequest) (readHeader, *chunk) {
	var h readHeader
	p, err := n.replica(m.partition)
	if err != nil {
		h.err = err
		return h, nil
	}
	begin := time.Now()
	for {
		token := n.pool.Enqueue(time.Now())
		token.Start(time.Now())
		b, cold, err := n.readReplica(ctx, p, m)
		token.Done(time.Now())
		h.start, h.high = p.log.Start(), p.rep.HighWatermark()
		if err == nil && b != nil && len(b.b) > 0 {
			h.cold = cold
			return h, b
		}
		if err != nil && !errors.Is(err, replication.ErrNotYetAvailable) {
			h.err = err
			return h, nil
		}
		if m.wait <= 0 {
			return h, nil
		}
		waiting, cancel := context.WithTimeout(ctx, m.wait-time.Since(begin))
		err = p.rep.Wait(waiting, m.from)
		timeout := waiting.Err() != nil
		cancel()
		switch {
		case err == nil:
		case timeout && ctx.Err() == nil:
			m.wait = 0 // one last look
		default:
			h.err = fmt.Errorf("%w: %w", errRetry, err)
			return h, nil
		}
	}
}

// readReplica makes one read of a replica that must lead.
func (n *Node) readReplica(ctx context.Context, p *partition, m readRequest) (_ *chunk, cold bool, err error) {
	st := p.rep.Status()
	if st.Role != replication.RoleLeader {
		return nil, false, &replication.NotLeaderError{Leader: st.Leader.ID, Epoch: st.LeaderEpoch}
	}
	if m.from > st.End {
		return nil, false, fmt.Errorf("%w: %d is above the end %d", log.ErrOffsetOutOfRange, m.from, st.End)
	}
	if m.from >= st.HighWatermark && !st.Ready {
		// A new leader's high watermark may lag behind what is committed: this need
		// not be the end.
		return nil, false, fmt.Errorf("%w: the leader's epoch %d is not committed yet", errRetry, st.LeaderEpoch)
	}
	for {
		if m.from < p.log.LocalStart() && p.tier != nil && m.from >= p.log.Start() {
			s, err := p.tier.Read(ctx, m.from, m.maxBytes)
			switch {
			case err == nil:
				return &chunk{b: s.Bytes(), release: s.Release}, true, nil
			case errors.Is(err, log.ErrOffsetOutOfRange):
				return nil, true, err
			case errors.Is(err, tier.ErrCorrupt) || errors.Is(err, tier.ErrNotFound):
				return nil, true, err // lost or damaged in the store: an alarm, not a pause
			}
			return nil, true, fmt.Errorf("%w: %w", errRetry, err)
		}
		s, err := p.rep.Read(ctx, m.from, m.maxBytes)
		switch {
		case err == nil:
			return &chunk{b: s.Bytes(), release: s.Release}, false, nil
		case errors.Is(err, log.ErrBelowLocalStart) && p.tier != nil:
			// The local start moved between the look and the read.
		default:
			return nil, false, err
		}
	}
}

// serveOffsets tells the offsets of a partition that this node leads.
func (n *Node) serveOffsets(id log.PartitionID) (Offsets, error) {
	p, err := n.replica(id)
	if err != nil {
		return Offsets{}, err
	}
	st := p.rep.Status()
	if st.Role != replication.RoleLeader {
		return Offsets{}, &replication.NotLeaderError{Leader: st.Leader.ID, Epoch: st.LeaderEpoch}
	}
	if !st.Ready {
		return Offsets{}, fmt.Errorf("%w: the leader's epoch %d is not committed yet", errRetry, st.LeaderEpoch)
	}
	o := Offsets{
		Start: p.log.Start(), LocalStart: p.log.LocalStart(),
		HighWatermark: st.HighWatermark, End: st.End,
		Leader: n.o.ID, LeaderEpoch: st.LeaderEpoch,
	}
	// Only what is in the store is dropped locally, so that much is known also
	// while the view is not.
	o.TierEnd = max(o.Start, o.LocalStart)
	if p.tier != nil {
		if v := p.tier.View(); v.Known {
			o.TierEnd = max(o.TierEnd, v.TierEnd)
		}
	}
	return o, nil
}
