package cordwood

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/replication"
	"github.com/cordwood-io/cordwood/tier"
)

// The broker's half of a node: what it does so that its replicas are as the
// metadata says.

// runBroker registers this process life and then keeps its replicas as the
// metadata says, and its session alive.
func (n *Node) runBroker(ctx context.Context, c *cluster, self identity) {
	r := metadata.Registration{
		ID: metadata.BrokerID(self.node), Directory: self.directory, Incarnation: n.incarnation,
		Addr: n.o.Advertise, Zone: n.o.Zone, HostsReplicas: !n.o.NoReplicas,
	}
	for pause := n.o.Tick; ; pause = min(2*pause, n.o.Session) {
		epoch, err := c.meta.Register(ctx, r)
		if err == nil {
			c.epoch.Store(int64(epoch))
			break
		}
		if ctx.Err() != nil || errors.Is(err, metadata.ErrClosed) {
			return
		}
		n.o.Logger.Warn("registration refused", "node", self.node, "err", err)
		if !sleep(ctx, pause) {
			return
		}
	}
	member := metadata.Member{ID: r.ID, Epoch: metadata.BrokerEpoch(c.epoch.Load())}
	c.repl.SetSelf(replication.Member{ID: replication.NodeID(member.ID), Epoch: int64(member.Epoch)})
	n.goTask("heartbeat", func(ctx context.Context) { n.runHeartbeat(ctx, c, member) })
	err := c.meta.Watch(ctx, func(img *metadata.Image, d metadata.Delta) error {
		n.reconcile(ctx, c, img, d, member)
		return ctx.Err()
	})
	if ctx.Err() == nil && !errors.Is(err, metadata.ErrClosed) {
		n.fail(fmt.Errorf("cordwood: watch of the metadata ended: %w", err))
	}
}

// runHeartbeat keeps the session alive, every sixth of it and when beatSoon says.
func (n *Node) runHeartbeat(ctx context.Context, c *cluster, self metadata.Member) {
	interval := metadata.Options{Session: n.o.Session}.HeartbeatInterval()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.beat:
		case <-ctx.Done():
			return
		}
		req := metadata.HeartbeatRequest{ID: self.ID, Epoch: self.Epoch}
		img := c.meta.Image()
		c.mu.Lock()
		req.AppliedIndex, req.WantStop = c.applied, c.stopping
		for id, p := range c.partition {
			switch {
			case p.err != nil:
			case p.rep.Lossy():
				// Told until the record shows it, and no longer: the replica may be let
				// in again once it is filled.
				if r, ok := img.Partition(id); ok && counted(r, self) {
					req.Lossy = append(req.Lossy, id)
				}
			case p.rep.Healthy():
				req.Electable = append(req.Electable, id)
			}
		}
		c.mu.Unlock()
		short, cancel := context.WithTimeout(ctx, n.o.Session)
		reply, err := c.meta.Heartbeat(short, req)
		cancel()
		switch {
		case err == nil:
			c.mu.Lock()
			c.stopped = reply.ShouldStop
			c.mu.Unlock()
			timer.Reset(interval)
			if reply.ShouldStop {
				continue
			}
			if reply.Fenced || (req.WantStop && !reply.ShouldStop) {
				timer.Reset(min(interval, n.o.Tick)) // unfenced only by the next one
			}
		case errors.Is(err, metadata.ErrStale) || errors.Is(err, metadata.ErrUnknownBroker):
			n.fail(fmt.Errorf("cordwood: another process has registered as node %d: %w", self.ID, err))
			return
		default:
			timer.Reset(min(interval, n.o.Tick))
		}
	}
}

// counted reports whether a broker's replica is trusted to hold all that is
// committed.
func counted(p metadata.Partition, self metadata.Member) bool {
	return slices.Contains(p.ISR, self) || slices.Contains(p.ELR, self.ID)
}

// beatSoon asks for a heartbeat before the next one is due.
func (c *cluster) beatSoon() {
	select {
	case c.beat <- struct{}{}:
	default:
	}
}

// kick tells the tier that a partition has something new to look at.
func (c *cluster) kick(id log.PartitionID) {
	c.mu.Lock()
	p := c.partition[id]
	c.mu.Unlock()
	if p != nil && p.tier != nil {
		p.tier.Kick()
	}
}

// reconcile brings the replicas of this node to what an image says.
func (n *Node) reconcile(ctx context.Context, c *cluster, img *metadata.Image, d metadata.Delta, self metadata.Member) {
	only := d.Partitions
	if d.Full {
		only = nil
	} else if only == nil {
		only = []log.PartitionID{}
	}
	c.mu.Lock()
	local := c.local
	c.mu.Unlock()
	actions := metadata.Reconcile(local, img, self, only)
	opened, deleted := false, false
	for _, a := range actions {
		id := a.Partition.ID
		switch a.Kind {
		case metadata.ActionOpen:
			p := n.openPartition(ctx, c, a.Topic, id)
			c.mu.Lock()
			c.partition[id] = p
			c.mu.Unlock()
			opened = true
		case metadata.ActionDelete:
			n.deletePartition(c, id)
			deleted = true
		default:
			if p := c.get(id); p != nil && p.err == nil {
				p.rep.Apply(assignment(img, a.Partition))
				if p.tier != nil && a.Kind == metadata.ActionLead {
					p.tier.Lead(a.Partition.LeaderEpoch)
				}
				if p.tier != nil && a.Kind == metadata.ActionFollow {
					p.tier.Follow()
				}
			}
		}
	}
	if len(d.Brokers) > 0 || d.Full {
		// Who is live is part of an assignment, but not of the partition's record.
		for _, p := range c.all() {
			if r, ok := img.Partition(p.id); ok && p.err == nil {
				p.rep.Apply(assignment(img, r))
			}
		}
	}
	c.mu.Lock()
	c.local = local.After(actions, self)
	first := c.applied == 0
	c.applied = img.Index()
	c.untidy = c.untidy || first
	c.mu.Unlock()
	if first {
		n.removeStrays(c)
	}
	if c.tier != nil && (deleted || first) {
		c.tier.TopicsDeleted()
	}
	if opened || first || len(d.Brokers) > 0 {
		c.beatSoon()
	}
}

// openPartition opens a replica's log and what stands on it. A replica that
// can't be opened stays closed until the next start, takes no part in elections
// and is shown by Status.
func (n *Node) openPartition(ctx context.Context, c *cluster, t metadata.Topic, id log.PartitionID) *partition {
	p := &partition{id: id}
	dir := n.partitionDir(id)
	fail := func(err error) *partition {
		n.o.Logger.Error("replica not opened", "partition", id.String(), "err", err)
		if p.log != nil {
			err = errors.Join(err, p.log.Close())
		}
		return &partition{id: id, err: err}
	}
	var err error
	p.log, err = log.Open(ctx, dir, log.Options{
		Disk: n.disk, Partition: id,
		SegmentBytes: t.Config.SegmentBytes, SegmentAge: t.Config.SegmentAge,
		MaxBatchBytes:         max(t.Config.MaxBatchBytes, n.o.MaxRecordBytes+batchOverhead), // serveAppend holds the topic's own
		AdmitUnknownProducers: n.o.AdmitUnknownProducers,
		UseReserve:            t.Internal, Logger: n.o.Logger,
		Hooks: log.Hooks{Rolled: func(log.Segment) { c.kick(id) }},
	})
	if err != nil {
		return fail(err)
	}
	var view func() replication.TierView
	var rep atomic.Pointer[replication.Replica] // the tier asks before it is there
	if c.tier != nil && !t.Internal {
		p.tier, err = c.tier.Open(id, p.log, tier.PartitionOptions{
			HighWatermark: func() log.Offset {
				if r := rep.Load(); r != nil {
					return r.HighWatermark()
				}
				return 0
			},
			LocalRetentionBytes: t.Config.LocalRetention.Bytes, LocalRetentionAge: t.Config.LocalRetention.Age,
			RetentionBytes: t.Config.Retention.Bytes, RetentionAge: t.Config.Retention.Age,
			Tiered: t.Config.Tiered,
		})
		if err != nil {
			return fail(err)
		}
		view = func() replication.TierView {
			v := p.tier.View()
			return replication.TierView{Known: v.Known, LogStart: v.LogStart, TierEnd: v.TierEnd, Lineage: v.Lineage}
		}
	}
	p.rep, err = c.repl.Open(ctx, p.log, n.o.FS, dir, replication.ReplicaOptions{Tier: view})
	if err != nil {
		if p.tier != nil {
			p.tier.Close()
		}
		return fail(err)
	}
	rep.Store(p.rep)
	return p
}

// batchOverhead is what a batch may hold beside one record of the largest size.
const batchOverhead = 64 << 10

func (n *Node) partitionDir(id log.PartitionID) string {
	return path.Join(n.o.Dir, "partitions", id.String())
}

func (n *Node) closePartition(c *cluster, p *partition) error {
	if p.err != nil {
		return nil
	}
	var errs []error
	if p.tier != nil {
		p.tier.Close()
	}
	errs = append(errs, c.repl.Close(p.id), p.log.Close())
	return errors.Join(errs...)
}

func (c *cluster) get(id log.PartitionID) *partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.partition[id]
}

func (c *cluster) all() []*partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	ps := make([]*partition, 0, len(c.partition))
	for _, p := range c.partition {
		ps = append(ps, p)
	}
	return ps
}

// runHousekeeping seals segments that have reached their age, and removes what could
// not be removed before.
func (n *Node) runHousekeeping(ctx context.Context, c *cluster) {
	for sleep(ctx, n.o.TierInterval) {
		n.removeStrays(c)
		for _, p := range c.all() {
			// The tier seals for itself, and not all at the same moment.
			if p.err == nil && (p.tier == nil || c.tier.Err() != nil) {
				if _, err := p.log.RollAged(ctx); err != nil && ctx.Err() == nil {
					n.o.Logger.Warn("aged segment not sealed", "partition", p.id.String(), "err", err)
				}
			}
		}
	}
}

// assignment turns a partition's record into replication's words.
func assignment(img *metadata.Image, p metadata.Partition) replication.Assignment {
	a := replication.Assignment{
		Partition:   p.ID,
		Leader:      replication.Member{ID: replication.NodeID(p.Leader), Epoch: int64(p.LeaderBrokerEpoch)},
		LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, MinISR: p.MinISR,
		ISR: members(p.ISR), Live: members(img.LiveMembers(p)),
		Recovering: p.Recovery == metadata.Recovering, LastUncleanEpoch: max(p.LastUncleanEpoch, 0),
	}
	for _, r := range p.Replicas {
		a.Replicas = append(a.Replicas, replication.NodeID(r))
	}
	for _, r := range p.ELR {
		a.ELR = append(a.ELR, replication.NodeID(r))
	}
	return a
}

func members(ms []metadata.Member) []replication.Member {
	rs := make([]replication.Member, len(ms))
	for i, m := range ms {
		rs[i] = replication.Member{ID: replication.NodeID(m.ID), Epoch: int64(m.Epoch)}
	}
	return rs
}

// controller is what replication sees of the metadata.
type controller struct{ c *cluster }

// AlterISR implements [replication.Controller].
func (k controller) AlterISR(ctx context.Context, ch replication.ISRChange) (replication.Assignment, error) {
	convert := func(ms []replication.Member) []metadata.Member {
		rs := make([]metadata.Member, len(ms))
		for i, m := range ms {
			rs[i] = metadata.Member{ID: metadata.BrokerID(m.ID), Epoch: metadata.BrokerEpoch(m.Epoch)}
		}
		return rs
	}
	p, err := k.c.meta.AlterISR(ctx, metadata.ISRChange{
		Partition: ch.Partition, Leader: metadata.BrokerID(ch.Leader.ID), LeaderBrokerEpoch: metadata.BrokerEpoch(ch.Leader.Epoch),
		LeaderEpoch: ch.LeaderEpoch, PartitionEpoch: ch.PartitionEpoch, ISR: convert(ch.ISR), Lossy: convert(ch.Lossy),
	})
	switch {
	case err == nil:
		return assignment(k.c.meta.Image(), p), nil
	case errors.Is(err, metadata.ErrStale), errors.Is(err, metadata.ErrIneligible),
		errors.Is(err, metadata.ErrUnknownPartition), errors.Is(err, metadata.ErrInvalidRequest):
		return replication.Assignment{}, fmt.Errorf("%w: %w", replication.ErrStale, err)
	}
	return replication.Assignment{}, err
}
