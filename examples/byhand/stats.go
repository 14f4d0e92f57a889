package byhand

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/quota"
	"github.com/cordwood-io/cordwood/replication"
	"github.com/cordwood-io/cordwood/tier"
)

// Stats are counters of this node since it was opened, and its load. They are
// plain numbers, to be mapped to any metrics library.
type Stats struct {
	AppendedBatches int64 // acknowledged to this node's handles
	AppendedRecords int64
	AppendedBytes   int64
	ReadHotBytes    int64 // read by this node's handles from a leader's local log
	ReadColdBytes   int64 // read by this node's handles from the object store

	LocalBytes     int64 // in segments on this node's disk
	BacklogBytes   int64 // sealed and committed on partitions led here, not yet in the store
	BacklogRanges  int
	TieringPaused  bool
	StoreHangs     int // calls of the store that were given up and have not returned
	FinishedRanges int // in the store as far as this node's tier state says, of partitions led here

	Requests balance.PoolStats // the queue of requests: its one-minute average wait and load
}

type counters struct {
	batches, records, bytes atomic.Int64
	hot, cold               atomic.Int64
}

func (c *counters) appended(b record.Batch) {
	c.batches.Add(1)
	c.records.Add(int64(b.Count()))
	c.bytes.Add(int64(b.Size()))
}

func (c *counters) read(bytes int, cold bool) {
	if cold {
		c.cold.Add(int64(bytes))
	} else {
		c.hot.Add(int64(bytes))
	}
}

// Stats returns the node's counters and load at present.
func (n *Node) Stats() Stats {
	s := Stats{
		AppendedBatches: n.counters.batches.Load(), AppendedRecords: n.counters.records.Load(), AppendedBytes: n.counters.bytes.Load(),
		ReadHotBytes: n.counters.hot.Load(), ReadColdBytes: n.counters.cold.Load(),
		Requests: n.pool.Stats(time.Now()),
	}
	c := n.cluster.Load()
	if c == nil {
		return s
	}
	if c.tier != nil {
		t := c.tier.Stats()
		s.TieringPaused, s.StoreHangs = t.Paused, t.StoreHangs
	}
	for _, p := range c.all() {
		if p.err != nil {
			continue
		}
		for _, seg := range p.log.Segments() {
			s.LocalBytes += seg.Bytes
		}
		if p.tier != nil && p.rep.Status().Role == replication.RoleLeader {
			bytes, ranges := p.tier.Backlog()
			s.BacklogBytes += bytes
			s.BacklogRanges += ranges
			if v := p.tier.View(); v.Known {
				s.FinishedRanges += v.Ranges
			}
		}
	}
	return s
}

// PauseTiering has no upload begin on this node until [Node.ResumeTiering], or until
// the process ends; see [tier.Manager.Pause]. Pause every node to pause the cluster,
// e.g. while its bucket is moved. It can be called at any time, and again.
func (n *Node) PauseTiering() {
	n.pausing.Lock()
	defer n.pausing.Unlock()
	n.paused = true
	if c := n.cluster.Load(); c != nil && c.tier != nil {
		c.tier.Pause()
	}
}

// ResumeTiering ends PauseTiering.
func (n *Node) ResumeTiering() {
	n.pausing.Lock()
	defer n.pausing.Unlock()
	n.paused = false
	if c := n.cluster.Load(); c != nil && c.tier != nil {
		c.tier.Resume()
	}
}

// Limiter returns the node's quotas, to be described and altered.
func (n *Node) Limiter() *quota.Limiter { return n.limiter }

// A Status describes a node for a person.
type Status struct {
	ID         int32
	Cluster    ID    // zero before Init or Join
	Directory  ID    // of the node's directory
	Broker     bool  // holds replicas, and is registered
	Epoch      int64 // broker epoch of this process life, 0 before the registration
	Fenced     bool  // out of contact with the controller, as this node knows it
	Controller int32 // node id of the controller, -1 if unknown
	Metadata   metadata.Status
	Replicas   []ReplicaStatus // sorted by partition
	Err        error           // why the node ended by itself
}

// A ReplicaStatus describes one replica for a person.
type ReplicaStatus struct {
	Tenant    string
	Topic     string
	Partition log.PartitionID
	Err       error // why the replica is not open, then the rest is zero; or why its log has failed

	replication.Status
	Recovery      log.Recovery // what opening its log found
	Segments      int
	LocalBytes    int64
	SealedEnd     log.Offset // end of what is sealed on this node's disk
	Tier          tier.View  // zero for a topic that is not tiered
	BacklogBytes  int64      // sealed and committed, not in the store
	BacklogRanges int
}

// Status returns what the node knows of itself at present.
func (n *Node) Status() Status {
	n.mu.Lock()
	s := Status{ID: n.o.ID, Cluster: n.self.cluster, Directory: n.self.directory, Controller: -1, Err: n.err}
	n.mu.Unlock()
	c := n.cluster.Load()
	if c == nil {
		return s
	}
	s.Epoch = c.epoch.Load()
	s.Broker = !n.o.NoReplicas && s.Epoch != 0
	s.Metadata = c.meta.Status()
	if id, ok := c.meta.Controller(); ok {
		s.Controller = int32(id)
	}
	if b, ok := c.meta.Image().Broker(metadata.BrokerID(n.o.ID)); ok {
		s.Fenced = b.Fenced
	}
	for _, p := range c.all() {
		s.Replicas = append(s.Replicas, n.replicaStatus(p))
	}
	slices.SortFunc(s.Replicas, func(a, b ReplicaStatus) int {
		if k := slices.Compare(a.Partition.Topic[:], b.Partition.Topic[:]); k != 0 {
			return k
		}
		return int(a.Partition.Index) - int(b.Partition.Index)
	})
	return s
}

func (n *Node) replicaStatus(p *partition) ReplicaStatus {
	s := ReplicaStatus{Partition: p.id, Err: p.err}
	if t, ok := n.cluster.Load().meta.Image().Topic(p.id.Topic); ok {
		s.Tenant, s.Topic = t.Tenant, t.Name
	}
	if p.err != nil {
		return s
	}
	s.Status = p.rep.Status()
	s.Err = s.Status.Err
	// The tier moves these without replication's doing.
	s.LogStart, s.LocalStart = p.log.Start(), p.log.LocalStart()
	s.Recovery = p.log.Recovery()
	for _, seg := range p.log.Segments() {
		s.Segments++
		s.LocalBytes += seg.Bytes
		if seg.Sealed {
			s.SealedEnd = max(s.SealedEnd, seg.End)
		}
	}
	s.SealedEnd = max(s.SealedEnd, s.LocalStart)
	if p.tier != nil {
		s.Tier = p.tier.View()
		s.BacklogBytes, s.BacklogRanges = p.tier.Backlog()
	}
	return s
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}
