package replication_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/replication"
)

var partition = log.PartitionID{Topic: log.TopicID{1, 2, 3}, Index: 0}

// A cluster is managers over a network of function calls and a controller that
// takes every change that names the state it has.
type cluster struct {
	t     testing.TB
	mu    sync.Mutex
	nodes map[replication.NodeID]*node
	a     map[log.PartitionID]replication.Assignment
	cut   map[replication.NodeID]bool
	epoch int64
	opt   replication.Options
}

type node struct {
	c     *cluster
	id    replication.NodeID
	self  replication.Member
	fs    *logtest.FS
	disk  *log.Disk
	m     *replication.Manager
	logs  map[log.PartitionID]*log.Log
	seg   int64
	alive bool
}

func newCluster(t testing.TB, n int, o replication.Options, ids ...log.PartitionID) *cluster {
	c := &cluster{t: t, nodes: map[replication.NodeID]*node{}, a: map[log.PartitionID]replication.Assignment{}, cut: map[replication.NodeID]bool{}, opt: o}
	for i := range n {
		c.nodes[replication.NodeID(i+1)] = &node{c: c, id: replication.NodeID(i + 1), fs: logtest.NewFS(uint64(i + 1))}
	}
	if len(ids) == 0 {
		ids = []log.PartitionID{partition}
	}
	for _, id := range ids {
		a := replication.Assignment{Partition: id, Leader: replication.Member{ID: -1}, MinISR: min(2, n)}
		for i := range n {
			a.Replicas = append(a.Replicas, replication.NodeID(i+1))
		}
		c.a[id] = a
	}
	for i := range n {
		c.start(replication.NodeID(i + 1))
	}
	for id, a := range c.a {
		a.ISR = c.members(a.Replicas...)
		a.Live = a.ISR
		c.a[id] = a
	}
	for i, id := range ids {
		c.lead(id, replication.NodeID(i%n+1))
	}
	return c
}

func (c *cluster) members(ids ...replication.NodeID) (ms []replication.Member) {
	for _, id := range ids {
		if n := c.nodes[id]; n.alive {
			ms = append(ms, n.self)
		}
	}
	return ms
}

// start opens a node's logs and replicas under a new broker epoch.
func (c *cluster) start(id replication.NodeID) {
	c.t.Helper()
	n := c.nodes[id]
	c.mu.Lock()
	c.epoch++
	n.self = replication.Member{ID: id, Epoch: c.epoch}
	c.mu.Unlock()
	o := c.opt
	o.Self, o.Controller, o.Network = n.self, n, n
	m, err := replication.NewManager(o)
	if err != nil {
		c.t.Fatal(err)
	}
	disk, err := log.NewDisk(log.DiskOptions{FS: n.fs})
	if err != nil {
		c.t.Fatal(err)
	}
	n.logs = map[log.PartitionID]*log.Log{}
	for p := range c.partitions() {
		dir := "/" + p.String()
		l, err := log.Open(context.Background(), dir, log.Options{Disk: disk, Partition: p, SegmentBytes: n.seg})
		if err != nil {
			c.t.Fatal(err)
		}
		n.logs[p] = l
		if _, err := m.Open(context.Background(), l, n.fs, dir, replication.ReplicaOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
	c.mu.Lock()
	n.m, n.disk, n.alive = m, disk, true
	c.mu.Unlock()
	c.tell()
}

// stop ends a node's process; its unsynced data is lost if crash.
func (c *cluster) stop(id replication.NodeID, crash bool) {
	n := c.nodes[id]
	c.mu.Lock()
	n.alive = false
	c.mu.Unlock()
	if crash {
		n.fs = n.fs.Crash(logtest.CrashLoseAll)
	}
	n.m.Shutdown()
	for _, l := range n.logs {
		l.Close()
	}
	n.disk.Close()
}

func (c *cluster) close() {
	for id, n := range c.nodes {
		if n.alive {
			c.stop(id, false)
		}
	}
}

// lead makes a node the leader in a new epoch.
func (c *cluster) lead(p log.PartitionID, id replication.NodeID) {
	c.change(p, func(a *replication.Assignment) {
		a.Leader = c.nodes[id].self
		a.LeaderEpoch++
	})
}

func (c *cluster) change(p log.PartitionID, f func(*replication.Assignment)) {
	c.mu.Lock()
	a := c.a[p]
	f(&a)
	a.PartitionEpoch++
	c.a[p] = a
	c.mu.Unlock()
	c.tell()
}

// tell gives every node the assignments.
func (c *cluster) tell() {
	c.mu.Lock()
	var as []replication.Assignment
	for p, a := range c.a {
		a.Live = c.members(a.Replicas...)
		c.a[p] = a
		as = append(as, a)
	}
	var ms []*replication.Manager
	for _, n := range c.nodes {
		if n.alive && !c.cut[n.id] {
			ms = append(ms, n.m)
		}
	}
	c.mu.Unlock()
	for _, m := range ms {
		for _, a := range as {
			if r := m.Get(a.Partition); r != nil {
				r.Apply(a)
			}
		}
	}
}

func (c *cluster) partitions() map[log.PartitionID]replication.Assignment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.a)
}

// without takes a node out of all sets and leaderships; the next in sync leads.
func (c *cluster) without(id replication.NodeID) {
	for p := range c.partitions() {
		c.change(p, func(a *replication.Assignment) {
			var isr []replication.Member
			for _, m := range a.ISR {
				if m.ID != id {
					isr = append(isr, m)
				}
			}
			a.ISR = isr
			if a.Leader.ID == id {
				a.Leader = isr[0]
				a.LeaderEpoch++
			}
		})
	}
}

func (n *node) AlterISR(ctx context.Context, ch replication.ISRChange) (replication.Assignment, error) {
	n.c.mu.Lock()
	a := n.c.a[ch.Partition]
	if n.c.cut[n.id] {
		n.c.mu.Unlock()
		<-ctx.Done()
		return a, ctx.Err()
	}
	if ch.Leader != a.Leader || ch.LeaderEpoch != a.LeaderEpoch || ch.PartitionEpoch != a.PartitionEpoch {
		n.c.mu.Unlock()
		return a, fmt.Errorf("partition epoch is %d: %w", a.PartitionEpoch, replication.ErrStale)
	}
	for _, m := range ch.ISR {
		if self := n.c.nodes[m.ID].self; self.Epoch != m.Epoch {
			n.c.mu.Unlock()
			return a, fmt.Errorf("node %d lives its life %d, not %d: %w", m.ID, self.Epoch, m.Epoch, replication.ErrStale)
		}
	}
	a.ISR = ch.ISR
	a.PartitionEpoch++
	n.c.a[ch.Partition] = a
	n.c.mu.Unlock()
	n.c.tell()
	return a, nil
}

var errUnreachable = errors.New("unreachable")

func (n *node) Fetch(ctx context.Context, to replication.NodeID, catchUp bool, request []byte) (header, payload []byte, err error) {
	select {
	case <-time.After(100 * time.Microsecond):
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	n.c.mu.Lock()
	peer := n.c.nodes[to]
	m, ok := peer.m, peer.alive && !n.c.cut[to] && !n.c.cut[n.id]
	n.c.mu.Unlock()
	if !ok {
		return nil, nil, errUnreachable
	}
	header, p, err := m.Handle(ctx, n.id, request)
	if err != nil {
		return nil, nil, err
	}
	if p != nil {
		defer p.Release()
		var b bytes.Buffer
		b.Grow(p.Len())
		if _, err := p.WriteTo(&b); err != nil {
			return nil, nil, err
		}
		if b.Len() != p.Len() {
			return nil, nil, io.ErrShortWrite
		}
		payload = b.Bytes()
	}
	return header, payload, nil
}

func (n *node) Progress(to replication.NodeID, message []byte) {
	n.c.mu.Lock()
	peer := n.c.nodes[to]
	m, ok := peer.m, peer.alive && !n.c.cut[to] && !n.c.cut[n.id]
	n.c.mu.Unlock()
	if ok {
		m.HandleProgress(n.id, message)
	}
}

func (c *cluster) assignment(p log.PartitionID) replication.Assignment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.a[p]
}

func (c *cluster) replica(id replication.NodeID) *replication.Replica {
	c.mu.Lock()
	m := c.nodes[id].m
	c.mu.Unlock()
	return m.Get(partition)
}

func batch(t testing.TB, values ...string) []byte {
	t.Helper()
	var b record.Builder
	for _, v := range values {
		if err := b.Append(record.Record{Value: []byte(v)}); err != nil {
			t.Fatal(err)
		}
	}
	x, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(x.Bytes())
}

// values reads what is committed.
func values(t testing.TB, r *replication.Replica) (vs []string) {
	t.Helper()
	for from := r.Log().LocalStart(); ; {
		s, err := r.Read(t.Context(), from, 1<<20)
		if errors.Is(err, replication.ErrNotYetAvailable) {
			return vs
		}
		if err != nil {
			t.Fatal(err)
		}
		for b, err := range s.Batches() {
			if err != nil {
				t.Fatal(err)
			}
			if b.IsControl() {
				continue
			}
			for rec, err := range b.Records() {
				if err != nil {
					t.Fatal(err)
				}
				vs = append(vs, string(rec.Value))
			}
		}
		from = s.End()
		s.Release()
	}
}

func TestReplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, replication.Options{})
		defer c.close()
		r := c.replica(1)
		if _, err := r.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		var want []string
		start := time.Now()
		for i := range 20 {
			v := fmt.Sprint("value ", i)
			want = append(want, v)
			app, err := r.Append(t.Context(), batch(t, v), replication.AcksAll)
			if err != nil {
				t.Fatal(err)
			}
			if app.Base != log.Offset(i+1) {
				t.Fatalf("append %d went to %d", i, app.Base)
			}
		}
		if d := time.Since(start); d > 20*time.Millisecond {
			t.Errorf("20 appends took %v of virtual time: somewhere a poll waits for its timer", d)
		}
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		for id := range c.nodes {
			if got := values(t, c.replica(id)); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("node %d has %v, status %+v", id, got, c.replica(id).Status())
			}
		}
	})
}

func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, replication.Options{})
		defer c.close()
		if _, err := c.replica(1).WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		acked := map[string]bool{}
		leader := replication.NodeID(1)
		for w := range 4 {
			wg.Go(func() {
				for i := range 100 {
					v := fmt.Sprintf("%d-%d", w, i)
					for {
						mu.Lock()
						id := leader
						mu.Unlock()
						r := c.replica(id)
						if r == nil {
							time.Sleep(time.Millisecond)
							continue
						}
						_, err := r.Append(t.Context(), batch(t, v), replication.AcksAll)
						if err == nil {
							mu.Lock()
							acked[v] = true
							mu.Unlock()
							break
						}
						if errors.Is(err, log.ErrInvalidBatch) {
							t.Error(err)
						}
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		time.Sleep(5 * time.Millisecond)
		for range 3 {
			c.stop(leader, true)
			c.without(leader)
			mu.Lock()
			dead := leader
			leader = c.assignment(partition).Leader.ID
			mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			c.start(dead)
			time.Sleep(100 * time.Millisecond)
			if n := len(c.assignment(partition).ISR); n != 3 {
				t.Fatalf("ISR has %d members: %+v", n, c.replica(leader).Status())
			}
		}
		wg.Wait()
		time.Sleep(10 * time.Millisecond)
		var first string
		for id := range c.nodes {
			got := values(t, c.replica(id))
			seen := map[string]bool{}
			for _, v := range got {
				seen[v] = true
			}
			for v := range acked {
				if !seen[v] {
					t.Errorf("node %d has lost %s", id, v)
				}
			}
			if first == "" {
				first = fmt.Sprint(got)
			} else if fmt.Sprint(got) != first {
				t.Errorf("node %d differs", id)
			}
		}
	})
}
