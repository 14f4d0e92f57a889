package tier_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// A yard is a tier log and a store with two nodes, of which one at a time speaks for
// the cluster, and a topic of one partition that can be deleted.
type yard struct {
	t       *testing.T
	mem     *memstore.Store
	store   *tiertest.Faulty
	events  *tiertest.Events
	deleted atomic.Bool
	speaker atomic.Int32
	nodes   [2]*yardNode
	options func(*tier.Options)
}

type yardNode struct {
	n       int32
	fs      *logtest.FS
	log     *log.Log
	manager *tier.Manager
	part    *tier.Partition // nil once the replica is removed
}

// deletionEpoch is above those of the yard's leaders.
const deletionEpoch = 7

func newYard(t *testing.T, options func(*tier.Options)) *yard {
	y := &yard{t: t, mem: memstore.New(), events: &tiertest.Events{}, options: options}
	y.store = tiertest.NewFaulty(y.mem)
	for i := range y.nodes {
		n := &yardNode{n: int32(i), fs: logtest.NewFS(uint64(i))}
		y.nodes[i] = n
		y.start(n)
		var err error
		if n.log, err = log.Open(t.Context(), "data", log.Options{FS: n.fs, Partition: testPartition, SegmentBytes: 2 << 10}); err != nil {
			t.Fatal(err)
		}
		l := n.log
		if n.part, err = n.manager.Open(testPartition, l, tier.PartitionOptions{Tiered: true, HighWatermark: l.DurableEnd}); err != nil {
			t.Fatal(err)
		}
	}
	y.nodes[0].part.Lead(1)
	return y
}

// start starts a node's manager, with the state file that it left.
func (y *yard) start(n *yardNode) {
	y.t.Helper()
	o := tier.Options{
		Store: y.store, Events: y.events, Cluster: tier.ID{1}, ChunkBytes: 4 << 10, CheckpointEvents: 10,
		BackupWindow: -1, ReaderGrace: -1, UploadDeadline: 10 * time.Minute, StateFS: n.fs, StateDir: "state",
		Writer: func() bool { return y.speaker.Load() == n.n },
		Deleted: func(id log.TopicID) ([]log.Epoch, bool) {
			epochs := make([]log.Epoch, testPartition.Index+1)
			epochs[testPartition.Index] = deletionEpoch
			return epochs, id == testPartition.Topic && y.deleted.Load()
		},
	}
	if y.options != nil {
		y.options(&o)
	}
	if err := n.fs.MkdirAll("state"); err != nil {
		y.t.Fatal(err)
	}
	m, err := tier.NewManager(o)
	if err != nil {
		y.t.Fatal(err)
	}
	n.manager = m
	y.t.Cleanup(func() { _ = m.Close() }) // after a failure
}

// remove closes the replicas, as brokers do that have heard of the deletion.
func (y *yard) remove() {
	y.t.Helper()
	for _, n := range y.nodes {
		if n.part == nil {
			continue
		}
		n.part.Close()
		n.part = nil
		if err := n.log.Close(); err != nil {
			y.t.Error(err)
		}
		n.manager.TopicsDeleted()
	}
}

func (y *yard) delete() {
	y.t.Helper()
	y.deleted.Store(true)
	y.remove()
}

func (y *yard) close() {
	y.t.Helper()
	y.remove()
	for _, n := range y.nodes {
		if err := n.manager.Close(); err != nil {
			y.t.Error(err)
		}
	}
	if err := y.mem.Check(); err != nil {
		y.t.Error(err)
	}
}

// fill appends on the first node and lets the segments go into the store.
func (y *yard) fill(records int) {
	y.t.Helper()
	for i := range records {
		if _, err := y.nodes[0].log.AppendRecords(y.t.Context(), log.Record{Value: value(i)}); err != nil {
			y.t.Fatal(err)
		}
	}
	y.nodes[0].part.Kick()
	y.rest(2 * time.Minute)
}

// state returns what the tier log says of the partition.
func (y *yard) state() (s tier.State) {
	for _, b := range y.events.All() {
		if e, err := tier.DecodeEvent(b); err == nil {
			s.Apply(e)
		}
	}
	return s
}

// anew starts a node's manager on an empty disk.
func (y *yard) anew(n *yardNode) {
	y.t.Helper()
	if err := n.manager.Close(); err != nil {
		y.t.Error(err)
	}
	n.fs = logtest.NewFS(9)
	y.start(n)
	y.rest(time.Second)
}

// running checks that no manager has stopped.
func (y *yard) running() {
	y.t.Helper()
	for _, n := range y.nodes {
		if err := n.manager.Err(); err != nil {
			y.t.Errorf("node %d has stopped: %v", n.n, err)
		}
	}
}

func (y *yard) rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// objects counts what the store has of the partition.
func (y *yard) objects() (n int) {
	y.t.Helper()
	for _, err := range y.mem.List(y.t.Context(), tier.PartitionPrefix("", testPartition), "") {
		if err != nil {
			y.t.Fatal(err)
		}
		n++
	}
	return n
}

// kept says whether a node still knows of the partition.
func (y *yard) kept() bool { return y.nodes[0].manager.Ledgers()+y.nodes[1].manager.Ledgers() > 0 }

// gone checks that nothing is left of the topic, on any node, and that nothing of it
// holds the tier log.
func (y *yard) gone(what string) {
	y.t.Helper()
	if n := y.objects(); n != 0 {
		y.t.Errorf("%s: %d objects are left", what, n)
	}
	for _, n := range y.nodes {
		if s := n.manager.Stats(); s.Remains != 0 || s.PinnedBy == testPartition && s.Pin < s.Applied {
			y.t.Errorf("%s: node %d has %d remains, the tier log is held at %d of %d by %v", what, n.n, s.Remains, s.Pin, s.Applied, s.PinnedBy)
		}
		if n.manager.Ledgers() != 0 {
			y.t.Errorf("%s: node %d has %d ledgers", what, n.n, n.manager.Ledgers())
		}
	}
}

// A deleted topic's objects go, with events before and after, and then its state; not
// before nobody can write any more.
func TestTopicDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.fill(100)
		stored := y.objects()
		if stored < 3 {
			t.Fatalf("%d objects", stored)
		}
		y.rest(time.Hour)
		if n := y.objects(); n < stored {
			t.Fatalf("%d objects of %d before the deletion", n, stored)
		}
		y.delete()
		y.rest(time.Minute)
		if !y.kept() {
			t.Error("it is forgotten while a write can be under way")
		}
		if n := y.objects(); n != 0 {
			t.Errorf("%d objects are left", n)
		}
		// A write that nothing announced lands: the anchor has it found.
		late := tier.ManifestKey("", testPartition, tier.ID{3})
		if err := y.mem.Put(t.Context(), late, zeros{}, 10, tier.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		y.rest(time.Hour)
		y.gone("after the deletion")
		a, err := tier.Audit(t.Context(), tier.AuditOptions{Store: y.mem, Events: tier.ReadToEnd(t.Context(), y.events)})
		if err != nil || !a.Clean() {
			t.Errorf("audit: %+v, %v", a, err)
		}
	})
}

// The store is down, the speaker changes, and nodes start again at each moment of a
// deletion: it ends all the same.
func TestTopicDeletionCutOff(t *testing.T) {
	steps := 30
	if testing.Short() {
		steps = 6
	}
	for step := range steps {
		t.Run(fmt.Sprint(step), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := newYard(t, nil)
				defer y.close()
				y.fill(100)
				// The step-th request or event from here on is the last of the first speaker.
				var left atomic.Int64
				left.Store(int64(step))
				y.store.SetFault(func(op tiertest.Op) tiertest.Fault {
					if op.Kind == "put" || left.Add(-1) >= 0 {
						return tiertest.Fault{}
					}
					return tiertest.Fault{Err: tier.ErrUnavailable, Done: step%2 == 0}
				})
				y.delete()
				y.rest(time.Duration(step) * 10 * time.Second)
				y.store.SetFault(nil)
				y.speaker.Store(1)
				if step%3 == 0 {
					// A crash, which the state file may outlive.
					for _, n := range y.nodes {
						if err := n.manager.Close(); err != nil {
							t.Error(err)
						}
						y.start(n)
					}
				}
				y.rest(2 * time.Hour)
				y.gone("in the end")
			})
		})
	}
}

// An upload that is under way when its topic is deleted is cut off, and what lands of
// it late is deleted; events of the deposed leader that come late change nothing.
func TestTopicDeletedDuringUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.fill(40)
		stall := make(chan struct{})
		y.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" {
				return tiertest.Fault{Late: true, Stall: stall}
			}
			return tiertest.Fault{}
		})
		y.fill(40)
		y.delete() // returns: the upload does not hold it up
		y.store.SetFault(nil)
		close(stall)
		y.rest(5 * time.Minute)
		y.store.Land(t.Context())
		late, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: 1, Seq: 99, Body: tier.CopyStarted{ID: tier.ID{5}, Base: 0, End: 10, Deadline: time.Now()}})
		if err != nil {
			t.Fatal(err)
		}
		if err := y.events.Append(t.Context(), testPartition, late); err != nil {
			t.Fatal(err)
		}
		y.rest(2 * time.Hour)
		y.gone("in the end")

		// What comes after all is over makes nothing new either.
		for _, e := range []tier.Event{
			{Partition: testPartition, Epoch: 1, Seq: 100, Body: tier.DeleteFinished{IDs: []tier.ID{{5}}}},
			{Partition: testPartition, Epoch: 1, Body: tier.Barrier{}},
			{Partition: testPartition, Epoch: deletionEpoch, Seq: 9, Body: tier.Forgotten{}},
		} {
			b, err := tier.EncodeEvent(e)
			if err == nil {
				err = y.events.Append(t.Context(), testPartition, b)
			}
			if err != nil {
				t.Fatal(err)
			}
			y.rest(time.Hour)
			y.gone(fmt.Sprintf("after a late %T", e.Body))
		}
	})
}

// A store that is down keeps the objects and the anchor, however long.
func TestTopicDeletionStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.fill(60)
		stored := y.objects()
		y.store.SetDown(true)
		y.delete()
		y.rest(48 * time.Hour)
		if n := y.objects(); n != stored || !y.kept() {
			t.Errorf("%d objects of %d while the store is down, the anchor is kept: %v", n, stored, y.kept())
		}
		y.store.SetDown(false)
		y.rest(time.Hour)
		y.gone("when it is back")
	})
}

// The last listing of a deleted topic is given up when it hangs, and asked for again less
// and less often while the store has no answer.
func TestTopicDeletionListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.fill(60)
		hang := make(chan struct{})
		free := sync.OnceFunc(func() { close(hang) })
		defer free()
		y.store.SetFault(func(op tiertest.Op) (f tiertest.Fault) {
			if op.Kind == "list" {
				f.Hang, f.Err = hang, tier.ErrUnavailable
			}
			return f
		})
		lists := y.store.Counts().List
		y.delete()
		y.rest(time.Hour)
		if n := y.store.Counts().List - lists; n < 2 {
			t.Errorf("%d listings while they hang", n)
		}
		y.store.SetFault(func(op tiertest.Op) (f tiertest.Fault) {
			if op.Kind == "list" {
				f.Err = tier.ErrUnavailable
			}
			return f
		})
		free()
		y.rest(time.Minute)
		lists = y.store.Counts().List
		y.rest(time.Hour)
		// Half of MaxBackoff is the least wait.
		if n := y.store.Counts().List - lists; n < 2 || n > 2*int(time.Hour/tier.DefaultMaxBackoff) {
			t.Errorf("%d listings in an hour while they fail", n)
		}
		if !y.kept() {
			t.Error("it is forgotten without a listing")
		}
		y.store.SetFault(nil)
		y.rest(time.Hour)
		y.gone("when it can be listed")
	})
}

// A node that has to read the tier log anew in the middle of it all, or after it,
// comes to the same.
func TestTopicDeletionReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, func(o *tier.Options) { *o = tier.WithInlineState(*o, 1) }) // states in manifests
		defer y.close()
		y.fill(200)
		y.delete()
		y.rest(time.Minute)
		n := y.nodes[1]
		for range 2 {
			if err := n.manager.Close(); err != nil {
				t.Error(err)
			}
			n.fs = logtest.NewFS(9)
			y.start(n)
			y.rest(time.Hour)
		}
		y.gone("in the end")
	})
}

// Two nodes that both clear a deleted topic away can both write that an object is gone.
// That is no finding.
func TestAuditTwoSpeakers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.fill(60)
		id := tier.ID{7}
		next := uint64(0)
		add := func(body tier.Body) {
			t.Helper()
			e := tier.Event{Partition: testPartition, Epoch: deletionEpoch, Body: body}
			if _, ok := body.(tier.Barrier); !ok {
				next++
				e.Seq = next
			}
			b, err := tier.EncodeEvent(e)
			if err == nil {
				err = y.events.Append(t.Context(), testPartition, b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		y.nodes[0].part.Follow()
		add(tier.Barrier{})
		add(tier.CopyStarted{ID: id, Base: 0, End: 1, Deadline: time.Now()})
		add(tier.Deleted{})
		for range 2 {
			add(tier.DeleteStarted{IDs: []tier.ID{id}})
		}
		for range 2 {
			add(tier.DeleteFinished{IDs: []tier.ID{id}})
		}
		a, err := tier.Audit(t.Context(), tier.AuditOptions{Store: y.mem, Events: tier.ReadToEnd(t.Context(), y.events)})
		if err != nil || !a.Clean() {
			t.Errorf("audit: %+v, %v", a, err)
		}
	})
}

// A replica that is closed while its barrier is under way leaves no state behind of a
// partition of which there is no event.
func TestCloseBeforeBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.events.SetDown(true)
		n := y.nodes[1]
		l, err := log.Open(t.Context(), "other", log.Options{FS: n.fs, Partition: log.PartitionID{Topic: log.TopicID{9}}})
		if err != nil {
			t.Fatal(err)
		}
		y.rest(time.Minute)
		before := n.manager.Ledgers()
		p, err := n.manager.Open(l.Partition(), l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
		if err != nil {
			t.Fatal(err)
		}
		p.Lead(1)
		y.rest(time.Second)
		p.Close()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if got := n.manager.Ledgers(); got != before {
			t.Errorf("%d states, %d before the partition was opened", got, before)
		}
		y.events.SetDown(false)
	})
}

// Records of a deleted topic are not readable on a node whose replica is still open.
func TestTopicDeletedView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.fill(60)
		n := y.nodes[0]
		n.part.Close()
		n.part = nil
		if err := n.log.Close(); err != nil {
			t.Error(err)
		}
		y.deleted.Store(true)
		n.manager.TopicsDeleted()
		y.rest(time.Minute)
		p := y.nodes[1].part
		if _, err := p.Read(t.Context(), 0, 1<<10); !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("read: %v", err)
		}
		if v := p.View(); v.Ranges != 0 {
			t.Errorf("%+v", v)
		}
		p.Lead(2) // a broker that has not heard
		y.rest(time.Minute)
		if leading, _, err := p.Status(); leading || !errors.Is(err, tier.ErrFenced) {
			t.Errorf("leading %v, %v", leading, err)
		}
		y.remove()
		y.rest(time.Hour)
		y.gone("in the end")
	})
}

// The objects of a deleted topic are there for the backup window, for a restore, and no
// longer.
func TestDeletedTopicRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, func(o *tier.Options) { o.BackupWindow, o.ReaderGrace = 48*time.Hour, 0 })
		defer y.close()
		y.fill(100)
		stored := y.objects()
		end := y.nodes[1].part.View().TierEnd
		y.delete()
		y.rest(47 * time.Hour)
		if n := y.objects(); n < stored-1 { // a manifest may have gone
			t.Fatalf("%d objects of %d within the window", n, stored)
		}
		a, err := tier.Audit(t.Context(), tier.AuditOptions{Store: y.mem, Events: tier.ReadToEnd(t.Context(), y.events)})
		if err != nil || !a.Clean() || a.Backup < 3 || a.Expired != 0 || a.Ranges != 0 {
			t.Errorf("audit: %+v, %v", a, err)
		}
		chains, err := tier.Catalog(t.Context(), tier.CatalogOptions{Store: y.mem})
		if err != nil || len(chains) != 1 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		restoreFrom(t, chains[0], y.mem, 0, end)
		restoreFrom(t, chains[0], y.mem, 17, end)
		y.rest(2 * time.Hour)
		y.gone("after the window")
	})
}

// restoreFrom restores a chain from an offset on into the log of another topic id, and
// checks that each record from there on is in it.
func restoreFrom(t *testing.T, c *tier.Chain, s tier.ObjectStore, from, want log.Offset) {
	t.Helper()
	fresh := log.PartitionID{Topic: log.TopicID{0xff}}
	l, err := log.Open(t.Context(), "restored", log.Options{FS: logtest.NewFS(3), Partition: fresh})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	end, err := c.Restore(t.Context(), l, tier.RestoreOptions{Store: s, From: from})
	if err != nil || end != want || l.Start() != from {
		t.Fatalf("restored from %d to %d, %v, want from %d to %d", l.Start(), end, err, from, want)
	}
	at := from
	for r, err := range l.Records(context.Background(), from) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != at || string(r.Value) != string(value(int(at))) {
			t.Fatalf("record %d is %q at %d", at, r.Value, r.Offset)
		}
		at++
	}
	if at != want {
		t.Errorf("records up to %d, want %d", at, want)
	}
}
