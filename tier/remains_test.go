package tier_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// What lands of a deleted topic after it has been forgotten is known by its name: an audit
// that knows what was deleted calls it an orphan, and a sweep clears it, and nothing else.
func TestTopicForgottenLateWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.fill(100)
		y.delete()
		y.rest(time.Hour)
		y.gone("after the deletion")
		other := log.PartitionID{Topic: log.TopicID{77}}
		late := []string{
			tier.ManifestKey("", testPartition, tier.ID{3}),
			tier.Key{Partition: testPartition, End: 10, Epoch: 1, ID: tier.ID{4}}.Path(""),
		}
		foreign := tier.ManifestKey("", other, tier.ID{5})
		for _, key := range append(late, foreign) {
			if err := y.mem.Put(t.Context(), key, zeros{}, 10, tier.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		// The tier log is trimmed past all that was said of the partition.
		end, err := y.events.End(t.Context())
		if err == nil {
			err = y.events.Trim(t.Context(), end)
		}
		if err != nil {
			t.Fatal(err)
		}
		kinds := func() map[string]tier.FindingKind {
			t.Helper()
			a, err := tier.Audit(t.Context(), tier.AuditOptions{
				Store: y.mem, Events: tier.ReadToEnd(t.Context(), y.events), Deleted: func(id log.TopicID) bool { return id == testPartition.Topic },
			})
			if err != nil {
				t.Fatal(err)
			}
			kinds := map[string]tier.FindingKind{}
			for _, f := range a.Findings {
				kinds[f.Key] = f.Kind
			}
			return kinds
		}
		if got := kinds(); len(got) != 3 || got[late[0]] != tier.FindingOrphan || got[late[1]] != tier.FindingOrphan || got[foreign] != tier.FindingForeign {
			t.Errorf("audit: %v", got)
		}
		m := y.nodes[1].manager
		if r, err := m.SweepDeleted(t.Context(), tier.SweepOptions{}); err != nil || r.Young != 2 || r.Deleted != 0 {
			t.Errorf("young: %v, %+v", err, r)
		}
		y.rest(3 * time.Hour)
		if r, err := m.SweepDeleted(t.Context(), tier.SweepOptions{DryRun: true}); err != nil || len(r.Orphans) != 2 || r.Deleted != 0 {
			t.Errorf("dry run: %v, %+v", err, r)
		}
		if r, err := m.SweepDeleted(t.Context(), tier.SweepOptions{}); err != nil || r.Deleted != 2 || r.Bytes != 20 {
			t.Errorf("sweep: %v, %+v", err, r)
		}
		if got := kinds(); len(got) != 1 || got[foreign] != tier.FindingForeign {
			t.Errorf("audit after the sweep: %v", got)
		}
		y.deleted.Store(false)
		if err := y.mem.Put(t.Context(), late[0], zeros{}, 10, tier.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if r, err := m.SweepDeleted(t.Context(), tier.SweepOptions{MinAge: -1}); err != nil || r.Deleted != 0 {
			t.Errorf("of a topic that is not deleted: %v, %+v", err, r)
		}
	})
}

type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }

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

// An endedEvents is a tier log whose Forgotten events are met by what else can happen.
type endedEvents struct {
	*tiertest.Events
	before func()
	after  func(tier.Event)
}

func (e *endedEvents) Append(ctx context.Context, p log.PartitionID, event []byte) error {
	d, err := tier.DecodeEvent(event)
	if err != nil {
		return err
	}
	_, forgotten := d.Body.(tier.Forgotten)
	if forgotten && e.before != nil {
		e.before()
	}
	err = e.Events.Append(context.WithoutCancel(ctx), p, event)
	if forgotten && err == nil && e.after != nil {
		e.after(d)
	}
	return err
}

// A checkpoint that is due when a deleted topic is forgotten, or that another node writes
// behind it, makes nothing known again, and stops nobody.
func TestTopicForgottenCheckpoint(t *testing.T) {
	for _, name := range []string{"own", "another's", "of another state"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var y *yard
				var asked atomic.Int64
				events := &endedEvents{}
				if name == "own" {
					events.before = func() { time.Sleep(5 * time.Minute) }
				} else {
					events.after = func(e tier.Event) {
						var s tier.State
						for _, b := range y.events.All() {
							if d, err := tier.DecodeEvent(b); err != nil || s.Apply(d) == tier.RefusedState {
								t.Error("the events are not one state's")
							}
						}
						c := tier.CheckpointOf(&s)
						if name != "another's" {
							c.Hash[0]++
						}
						b, err := tier.EncodeEvent(tier.Event{Partition: e.Partition, Epoch: e.Epoch, Seq: e.Seq + 1, Body: c})
						if err == nil {
							err = y.events.Append(t.Context(), e.Partition, b)
						}
						if err != nil {
							t.Error(err)
						}
					}
				}
				y = newYard(t, func(o *tier.Options) {
					if events.Events == nil {
						events.Events = o.Events.(*tiertest.Events)
					}
					o.Events = events
					o.CheckpointInterval = time.Minute
					writer := o.Writer
					o.Writer = func() bool { return asked.Add(1) < 10_000 && writer() } // ends a loop
				})
				defer y.close()
				y.fill(60)
				y.delete()
				y.rest(2 * time.Hour)
				if n := asked.Load(); n >= 10_000 {
					t.Errorf("the manager has asked %d times who speaks for the cluster", n)
				}
				y.gone("in the end")
				for _, n := range y.nodes {
					if err := n.manager.Err(); err != nil {
						t.Errorf("node %d has stopped: %v", n.n, err)
					}
				}
			})
		})
	}
}

// A checkpoint from before the deletion that lands when the topic is forgotten, and that
// was trimmed, has a node that begins anew know it again. It clears it away, and stops no
// other node by what it says meanwhile.
func TestTopicForgottenKnownAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, func(o *tier.Options) { o.CheckpointInterval = time.Second })
		defer y.close()
		y.fill(60)
		var s tier.State
		for _, b := range y.events.All() {
			if e, err := tier.DecodeEvent(b); err == nil {
				s.Apply(e)
			}
		}
		s.Apply(tier.Event{Partition: testPartition, Epoch: s.Epoch(), Seq: s.Seq() + 1, Body: tier.CopyStarted{ID: tier.ID{5}, Base: s.TierEnd(), End: s.TierEnd() + 1, Deadline: time.Now()}})
		late, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: s.Epoch(), Seq: s.Seq() + 1, Body: tier.CheckpointOf(&s)})
		if err != nil {
			t.Fatal(err)
		}
		y.delete()
		y.rest(2 * time.Hour)
		y.gone("after the deletion")
		if err := y.events.Trim(t.Context(), log.Offset(y.events.Len())); err != nil {
			t.Fatal(err)
		}
		if err := y.events.Append(t.Context(), testPartition, late); err != nil {
			t.Fatal(err)
		}
		n := y.nodes[1]
		if err := n.manager.Close(); err != nil {
			t.Error(err)
		}
		n.fs = logtest.NewFS(9)
		y.start(n)
		y.rest(time.Second)
		if n.manager.Ledgers() != 1 {
			t.Fatalf("%d states after the late checkpoint", n.manager.Ledgers())
		}
		y.speaker.Store(n.n)
		y.rest(2 * time.Hour)
		for _, n := range y.nodes {
			if err := n.manager.Err(); err != nil {
				t.Errorf("node %d has stopped: %v", n.n, err)
			}
		}
		y.gone("in the end")
	})
}

// The late checkpoint of a partition that was cleared away can name a manifest that is
// gone: it is not waited for.
func TestTopicForgottenManifestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, func(o *tier.Options) { o.CheckpointInterval = time.Second })
		defer y.close()
		y.fill(60)
		var s tier.State
		for _, b := range y.events.All() {
			if e, err := tier.DecodeEvent(b); err == nil {
				s.Apply(e)
			}
		}
		c := tier.CheckpointOf(&s)
		c.Bytes, c.Manifest, c.State = int64(len(c.State)), tier.ID{5}, nil
		late, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: s.Epoch(), Seq: s.Seq() + 1, Body: c})
		if err != nil {
			t.Fatal(err)
		}
		y.delete()
		y.rest(2 * time.Hour)
		y.gone("after the deletion")
		if err := y.events.Trim(t.Context(), log.Offset(y.events.Len())); err != nil {
			t.Fatal(err)
		}
		if err := y.events.Append(t.Context(), testPartition, late); err != nil {
			t.Fatal(err)
		}
		n := y.nodes[1]
		if err := n.manager.Close(); err != nil {
			t.Error(err)
		}
		n.fs = logtest.NewFS(9)
		y.start(n)
		y.rest(time.Second)
		y.speaker.Store(n.n)
		y.rest(2 * time.Hour)
		for _, n := range y.nodes {
			if err := n.manager.Err(); err != nil {
				t.Errorf("node %d has stopped: %v", n.n, err)
			}
		}
		y.gone("in the end")
	})
}

// The last words of a leader, a barrier and a checkpoint, can come after its topic was
// cleared away: they stop nobody, also not a node that hears last of the deletion.
func TestTopicForgottenLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := 0
		var told atomic.Bool // the second node is told of the deletion
		var second atomic.Pointer[tier.Manager]
		y := newYard(t, func(o *tier.Options) {
			o.CheckpointInterval = time.Second
			if nodes++; nodes == 2 {
				deleted := o.Deleted
				o.Deleted = func(id log.TopicID) ([]log.Epoch, bool) {
					if m := second.Load(); m != nil {
						_ = m.Stats() // takes all locks: none is held here
					}
					epochs, ok := deleted(id)
					return epochs, ok && told.Load()
				}
			}
		})
		defer y.close()
		second.Store(y.nodes[1].manager)
		y.fill(60)
		var s tier.State
		for _, b := range y.events.All() {
			if e, err := tier.DecodeEvent(b); err == nil {
				s.Apply(e)
			}
		}
		barrier := tier.Event{Partition: testPartition, Epoch: s.Epoch() + 1, Body: tier.Barrier{}}
		s.Apply(barrier)
		words := []tier.Event{barrier, {Partition: testPartition, Epoch: s.Epoch(), Seq: 1, Body: tier.CheckpointOf(&s)}}
		y.delete()
		y.rest(2 * time.Hour)
		y.gone("after the deletion")
		for _, e := range words {
			b, err := tier.EncodeEvent(e)
			if err == nil {
				err = y.events.Append(t.Context(), testPartition, b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		y.rest(10 * time.Second)
		if err := y.nodes[1].manager.Err(); err != nil {
			t.Errorf("the node that has not heard has stopped: %v", err)
		}
		told.Store(true)
		y.rest(2 * time.Hour)
		for _, n := range y.nodes {
			if err := n.manager.Err(); err != nil {
				t.Errorf("node %d has stopped: %v", n.n, err)
			}
		}
		y.gone("in the end")
	})
}

// A slowLog makes whoever logs wait.
type slowLog struct {
	slog.Handler
	wait func()
}

func (l slowLog) Handle(context.Context, slog.Record) error { l.wait(); return nil }

// An event that is late of a partition that was forgotten has nobody clear it away once
// more, also while it is being applied.
func TestTopicForgottenLateEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var y *yard
		var over atomic.Bool
		y = newYard(t, func(o *tier.Options) {
			o.Logger = slog.New(slowLog{slog.NewTextHandler(io.Discard, nil), func() {
				if over.Load() {
					y.nodes[0].manager.TopicsDeleted()
					time.Sleep(time.Second)
				}
			}})
		})
		defer y.close()
		y.fill(60)
		y.delete()
		y.rest(time.Hour)
		y.gone("after the deletion")
		late, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: 1, Seq: 100, Body: tier.DeleteFinished{IDs: []tier.ID{{5}}}})
		if err != nil {
			t.Fatal(err)
		}
		over.Store(true)
		if err := y.events.Append(t.Context(), testPartition, late); err != nil {
			t.Fatal(err)
		}
		before := y.events.Len()
		y.rest(time.Hour)
		if n := y.events.Len() - before; n > 0 {
			t.Errorf("%d events follow", n)
		}
	})
}

// A node that has almost nothing of a partition which is not deleted, and reads a checkpoint
// of it, looks at that again for a while, and stops then: it does not go on with a state of
// its own.
func TestCheckpointUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nil)
		defer y.close()
		y.fill(20)
		var s tier.State
		other := log.PartitionID{Topic: log.TopicID{77}}
		add := func(e tier.Event, send bool) {
			t.Helper()
			e.Partition = other
			if v := s.Apply(e); v != tier.Applied {
				t.Fatal(v)
			}
			b, err := tier.EncodeEvent(e)
			if err == nil && send {
				err = y.events.Append(t.Context(), other, b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		add(tier.Event{Epoch: 1, Body: tier.Barrier{}}, false)
		add(tier.Event{Epoch: 1, Seq: 1, Body: tier.LogStart{Start: 10, Cause: tier.Cause{Kind: tier.CauseRequest}}}, false)
		add(tier.Event{Epoch: 2, Body: tier.Barrier{}}, true)
		add(tier.Event{Epoch: 2, Seq: 1, Body: tier.CheckpointOf(&s)}, true)
		y.rest(time.Second)
		if err := y.nodes[1].manager.Err(); err != nil {
			t.Errorf("at once: %v", err)
		}
		y.rest(time.Hour)
		for _, n := range y.nodes {
			if err := n.manager.Err(); !errors.Is(err, tier.ErrCorrupt) {
				t.Errorf("node %d goes on: %v", n.n, err)
			}
		}
	})
}

// The last words of a leader, come after its topic was cleared away, are no finding of an
// audit that knows what was deleted.
func TestAuditLastWords(t *testing.T) {
	for _, manifest := range []bool{false, true} {
		t.Run(fmt.Sprintf("manifest %v", manifest), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := newYard(t, func(o *tier.Options) { o.CheckpointInterval = time.Second })
				defer y.close()
				y.fill(60)
				var s tier.State
				for _, b := range y.events.All() {
					if e, err := tier.DecodeEvent(b); err == nil {
						s.Apply(e)
					}
				}
				c := tier.CheckpointOf(&s)
				if manifest {
					c.Bytes, c.Manifest, c.State = int64(len(c.State)), tier.ID{5}, nil
				}
				late, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: s.Epoch(), Seq: s.Seq() + 1, Body: c})
				if err != nil {
					t.Fatal(err)
				}
				y.delete()
				y.rest(2 * time.Hour)
				y.gone("after the deletion")
				if err := y.events.Trim(t.Context(), log.Offset(y.events.Len())); err != nil {
					t.Fatal(err)
				}
				if err := y.events.Append(t.Context(), testPartition, late); err != nil {
					t.Fatal(err)
				}
				audit := func() *tier.AuditReport {
					t.Helper()
					a, err := tier.Audit(t.Context(), tier.AuditOptions{
						Store: y.mem, Events: tier.ReadToEnd(t.Context(), y.events), Deleted: func(id log.TopicID) bool { return id == testPartition.Topic },
					})
					if err != nil {
						t.Fatal(err)
					}
					return a
				}
				a := audit()
				if !a.Clean() {
					t.Errorf("audit: %+v", a.Findings)
				}
				// With an object there, what a manifest said is missed, and the object is
				// left alone.
				k := tier.Key{Partition: testPartition, End: 10, Epoch: 1, ID: tier.ID{4}}
				if err := y.mem.Put(t.Context(), k.Path(""), zeros{}, 10, tier.PutOptions{}); err != nil {
					t.Fatal(err)
				}
				want := tier.FindingOrphan
				if manifest {
					want = tier.FindingManifest
				}
				if a = audit(); len(a.Findings) != 1 || a.Findings[0].Kind != want {
					t.Errorf("audit with an object: %+v", a.Findings)
				}
			})
		})
	}
}

// A node that was given the store of another cluster does not take what is not in there for
// a sign that a deleted topic was cleared away: later it does that itself.
func TestTopicForgottenElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wrong atomic.Bool
		foreign := memstore.New()
		owner := tier.OwnerContent(tier.ID{9})
		if err := foreign.Put(t.Context(), tier.OwnerKey(""), bytes.NewReader(owner), int64(len(owner)), tier.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		y := newYard(t, func(o *tier.Options) {
			*o = tier.WithInlineState(*o, 1)
			o.BackupWindow = 48 * time.Hour
			if wrong.Load() {
				o.Store = foreign
			}
		})
		defer y.close()
		y.fill(200)
		y.delete()
		y.rest(time.Hour)
		if start, err := y.events.Start(t.Context()); err != nil || start == 0 {
			t.Fatalf("the tier log starts at %d, %v", start, err)
		}
		n := y.nodes[1]
		restart := func(other bool) {
			wrong.Store(other)
			if err := n.manager.Close(); err != nil {
				t.Error(err)
			}
			y.start(n)
		}
		n.fs = logtest.NewFS(9)
		restart(true)
		y.rest(time.Hour)
		restart(false)
		y.speaker.Store(1)
		y.rest(60 * time.Hour)
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
