package cordwoodtest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
	"github.com/cordwood-io/cordwood/transport"
)

// Options configure [Start]. The zero value is three nodes with a store.
type Options struct {
	// Nodes is the number of brokers, 1 to 99; default 3. The first three, or one
	// if there are fewer, are the voters.
	Nodes int

	// NoStore leaves the object store out: nothing ages.
	NoStore bool

	// Store replaces the store in memory. It is used through [Cluster.Store] all the
	// same.
	Store tier.ObjectStore

	// Seed decides what a crash leaves of unsynced data where that is left to
	// chance.
	Seed uint64

	// Tick and Session are those of [cordwood.Options]; defaults 10 ms and 300 ms
	// (or 30 ticks), shorter than a node's own since nothing is slow here.
	Tick, Session time.Duration

	// Configure, if set, may change a node's options before it is opened.
	Configure func(node int, o *cordwood.Options)

	// Logger gets what the nodes log; nil discards. [testing.TB.Output] suits.
	Logger *slog.Logger
}

// A Cluster is a running set of nodes.
type Cluster struct {
	tb      testing.TB
	o       Options
	id      cordwood.ID
	voters  []cordwood.Voter
	network *transport.Network
	store   *tiertest.Faulty
	members []*member // by number, from 1

	mu      sync.Mutex
	hostIDs int // given to hosts so far
	hosts   []*cordwood.Node
}

type member struct {
	name string
	mu   sync.Mutex
	disk *logtest.FS
	node *cordwood.Node // nil while it is down
}

// readySessions and readyTime bound what the cluster's own methods wait for, in
// sessions and at least; on a busy machine a short session alone would say little.
const (
	readySessions = 100
	readyTime     = 2 * time.Minute
)

// firstHost is the number of the first host, above those of all nodes.
const firstHost = 100

// Start starts a cluster and returns once it is ready. It fails the test when
// that does not come about.
func Start(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Nodes < 0 || o.Nodes >= firstHost {
		tb.Fatalf("cordwoodtest: %d nodes, 1 to %d are possible", o.Nodes, firstHost-1)
	}
	if o.Tick == 0 {
		o.Tick = 10 * time.Millisecond
	}
	if o.Session == 0 {
		o.Session = 30 * o.Tick
	}
	c := &Cluster{tb: tb, o: o, id: cordwood.NewID(), network: transport.NewNetwork(), members: make([]*member, o.Nodes+1)}
	if !o.NoStore {
		if o.Store == nil {
			o.Store = memstore.New()
		}
		c.store = tiertest.NewFaulty(o.Store)
	}
	for i := 1; i <= o.Nodes; i++ {
		c.members[i] = &member{name: fmt.Sprintf("node%d", i), disk: logtest.NewFS(o.Seed + uint64(i))}
		if i <= 3 && (o.Nodes >= 3 || i == 1) {
			c.voters = append(c.voters, cordwood.Voter{ID: int32(i), Addr: c.members[i].name})
		}
	}
	tb.Cleanup(c.close)
	for i := 1; i <= o.Nodes; i++ {
		c.open(i)
	}
	ctx, cancel := c.context()
	defer cancel()
	if err := c.Node(1).Init(ctx, c.id, c.voters); err != nil {
		tb.Fatalf("cordwoodtest: init: %v", err)
	}
	var joined sync.WaitGroup
	for i := 2; i <= o.Nodes; i++ {
		n := c.Node(i)
		joined.Go(func() {
			if err := n.Join(ctx, c.members[1].name); err != nil {
				tb.Errorf("cordwoodtest: join of node %d: %v", i, err)
			}
		})
	}
	joined.Wait()
	for i := 1; i <= o.Nodes; i++ {
		if err := c.Node(i).Ready(ctx); err != nil {
			tb.Fatalf("cordwoodtest: node %d is not ready: %v", i, err)
		}
	}
	return c
}

func (c *Cluster) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), max(readyTime, readySessions*c.o.Session))
}

// options are those that node i is opened with. A host has a number above all
// members.
func (c *Cluster) options(i int) cordwood.Options {
	o := cordwood.Options{
		ID: int32(i), Dir: "node", Tick: c.o.Tick, Session: c.o.Session, Logger: c.o.Logger,
		SystemReplication: min(3, c.o.Nodes),
	}
	if c.store != nil {
		o.Store = c.store
	}
	return o
}

func (c *Cluster) open(i int) {
	c.tb.Helper()
	m := c.members[i]
	m.mu.Lock()
	defer m.mu.Unlock()
	l, err := c.network.Listen(m.name)
	if err != nil {
		c.tb.Fatalf("cordwoodtest: %v", err)
	}
	o := c.options(i)
	o.FS, o.Listener, o.Advertise, o.Dial = m.disk, l, m.name, c.network.Dialer(m.name)
	o.Zone = fmt.Sprintf("zone%d", (i-1)%3+1)
	if c.o.Configure != nil {
		c.o.Configure(i, &o)
	}
	ctx, cancel := c.context()
	defer cancel()
	m.node, err = cordwood.Open(ctx, o)
	if err != nil {
		c.tb.Fatalf("cordwoodtest: open node %d: %v", i, err)
	}
}

func (c *Cluster) close() {
	c.network.Heal()
	if c.store != nil {
		c.store.SetDown(false)
	}
	c.mu.Lock()
	hosts := c.hosts
	c.mu.Unlock()
	for _, h := range hosts {
		h.Close()
	}
	var closed sync.WaitGroup
	for _, m := range c.members[1:] {
		m.mu.Lock()
		n := m.node
		m.node = nil
		m.mu.Unlock()
		if n != nil {
			closed.Go(func() {
				if err := n.Close(); err != nil {
					c.tb.Logf("cordwoodtest: close %s: %v", m.name, err)
				}
			})
		}
	}
	closed.Wait()
}

func (c *Cluster) member(i int) *member {
	c.tb.Helper()
	if i < 1 || i > c.o.Nodes {
		c.tb.Fatalf("cordwoodtest: there is no node %d", i)
	}
	return c.members[i]
}

// Nodes returns how many nodes there are, running or not.
func (c *Cluster) Nodes() int { return c.o.Nodes }

// Node returns a node, which must be running.
func (c *Cluster) Node(i int) *cordwood.Node {
	c.tb.Helper()
	m := c.member(i)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node == nil {
		c.tb.Fatalf("cordwoodtest: node %d is down", i)
	}
	return m.node
}

// Running reports whether a node runs.
func (c *Cluster) Running(i int) bool {
	m := c.member(i)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node != nil
}

// Host returns a node that holds no replicas, as a program has one that only
// produces and consumes. Each call makes another; it ends with the test.
func (c *Cluster) Host() *cordwood.Node {
	c.tb.Helper()
	c.mu.Lock()
	i := firstHost + c.hostIDs
	c.hostIDs++
	c.mu.Unlock()
	o := c.options(i)
	o.NoReplicas, o.FS, o.Dial = true, logtest.NewFS(c.o.Seed+uint64(i)), c.network.Dialer(fmt.Sprintf("host%d", i))
	ctx, cancel := c.context()
	defer cancel()
	h, err := cordwood.Open(ctx, o)
	if err == nil {
		c.mu.Lock()
		c.hosts = append(c.hosts, h)
		c.mu.Unlock()
		var seeds []string
		for _, v := range c.voters {
			seeds = append(seeds, v.Addr)
		}
		if err = h.Join(ctx, seeds...); err == nil {
			err = h.Ready(ctx)
		}
	}
	if err != nil {
		c.tb.Fatalf("cordwoodtest: host: %v", err)
	}
	return h
}

// Disk returns the disk of a node: for faults while it runs, and for a look at
// what is on it. A crash replaces it.
func (c *Cluster) Disk(i int) *logtest.FS {
	m := c.member(i)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.disk
}

// Network returns the network, on which node i is called "node<i>".
func (c *Cluster) Network() *transport.Network { return c.network }

// Store returns the object store, nil with Options.NoStore.
func (c *Cluster) Store() *tiertest.Faulty { return c.store }

// CreateTopic creates a topic of the default tenant and waits until each of its
// partitions has a leader that is ready.
func (c *Cluster) CreateTopic(name string, cfg cordwood.TopicConfig) {
	c.tb.Helper()
	ctx, cancel := c.context()
	defer cancel()
	tenant := c.any().Tenant("")
	if err := tenant.CreateTopic(ctx, name, cfg); err != nil {
		c.tb.Fatalf("cordwoodtest: create topic %s: %v", name, err)
	}
	for p := range max(cfg.Partitions, 1) {
		if _, err := tenant.Topic(name).Offsets(ctx, int32(p)); err != nil {
			c.tb.Fatalf("cordwoodtest: topic %s, partition %d: %v", name, p, err)
		}
	}
}

// any returns a node that runs.
func (c *Cluster) any() *cordwood.Node {
	c.tb.Helper()
	for i := 1; i <= c.o.Nodes; i++ {
		if c.Running(i) {
			return c.Node(i)
		}
	}
	c.tb.Fatal("cordwoodtest: all nodes are down")
	return nil
}

// Leader returns the node that leads a partition of a topic of the default
// tenant, once one does and is ready.
func (c *Cluster) Leader(topic string, partition int32) int {
	c.tb.Helper()
	return int(c.Offsets(topic, partition).Leader)
}

// Offsets returns where a partition of a topic of the default tenant begins and
// ends, as its leader says once there is one.
func (c *Cluster) Offsets(topic string, partition int32) cordwood.Offsets {
	c.tb.Helper()
	ctx, cancel := c.context()
	defer cancel()
	o, err := c.any().Tenant("").Topic(topic).Offsets(ctx, partition)
	if err != nil {
		c.tb.Fatalf("cordwoodtest: offsets of %s/%d: %v", topic, partition, err)
	}
	return o
}

// Kill ends a node's process as SIGKILL does: what it had written is on its disk,
// synced or not, and what it had not is gone. Its peers see refused connections.
func (c *Cluster) Kill(i int) {
	c.tb.Helper()
	c.stop(i, func(disk *logtest.FS) *logtest.FS { return disk.Kill() })
}

// PowerOff ends a node's machine: its disk loses unsynced data as mode says.
func (c *Cluster) PowerOff(i int, mode logtest.CrashMode) {
	c.tb.Helper()
	c.stop(i, func(disk *logtest.FS) *logtest.FS { return disk.Crash(mode) })
}

// Close ends a node in order, but does not hand over first; see
// [cordwood.Node.Shutdown] for that.
func (c *Cluster) Close(i int) {
	c.tb.Helper()
	m := c.member(i)
	n := c.Node(i)
	if err := n.Close(); err != nil {
		c.tb.Errorf("cordwoodtest: close node %d: %v", i, err)
	}
	m.mu.Lock()
	m.node = nil
	m.mu.Unlock()
}

func (c *Cluster) stop(i int, crash func(*logtest.FS) *logtest.FS) {
	c.tb.Helper()
	m := c.member(i)
	n := c.Node(i)
	m.mu.Lock()
	// The disk goes first: from here on nothing that the node does has an effect.
	m.disk = crash(m.disk)
	m.node = nil
	m.mu.Unlock()
	c.network.Crash(m.name)
	n.Close() // ends its goroutines; its errors are those of the dead disk
}

// Restart opens a node that is down on what is on its disk, and waits until it is
// ready.
func (c *Cluster) Restart(i int) {
	c.tb.Helper()
	if c.Running(i) {
		c.tb.Fatalf("cordwoodtest: node %d runs already", i)
	}
	c.open(i)
	ctx, cancel := c.context()
	defer cancel()
	if err := c.Node(i).Ready(ctx); err != nil {
		c.tb.Fatalf("cordwoodtest: node %d is not ready after its restart: %v", i, err)
	}
}

// Roll seals the active segment of a partition of the default tenant on all nodes
// that run, so that it can age into the store.
func (c *Cluster) Roll(topic string, partition int32) {
	c.tb.Helper()
	ctx, cancel := c.context()
	defer cancel()
	for i := 1; i <= c.o.Nodes; i++ {
		if !c.Running(i) {
			continue
		}
		if r, err := c.Node(i).Replica(topic, partition); err == nil {
			if err := r.Roll(ctx); err != nil {
				c.tb.Errorf("cordwoodtest: roll %s/%d on node %d: %v", topic, partition, i, err)
			}
		}
	}
}

// WaitTiered waits until all of a partition of the default tenant below an offset
// is in the store and gone from the leader's disk.
func (c *Cluster) WaitTiered(topic string, partition int32, end log.Offset) {
	c.tb.Helper()
	ctx, cancel := c.context()
	defer cancel()
	for {
		o, err := c.any().Tenant("").Topic(topic).Offsets(ctx, partition)
		if err == nil && o.TierEnd >= end && o.LocalStart >= end {
			return
		}
		select {
		case <-time.After(c.o.Tick):
		case <-ctx.Done():
			c.tb.Fatalf("cordwoodtest: %s/%d is not tiered up to %d: %+v %v", topic, partition, end, o, err)
		}
	}
}
