package tier_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// Manifests that land late of a deleted topic. The nodes that clear it away write them too,
// and the last listing waits for theirs.

// lands is how long after its begin a put may land.
const lands = tier.DefaultEventTimeout + tier.DefaultStoreTimeout + time.Minute

// A put of a manifest by a node that clears a topic away, the outcome of which is not
// known, lands as late as it can. It is found: by the node itself, and by another that
// takes over at that moment.
func TestTopicDeletionLateManifest(t *testing.T) {
	for _, name := range []string{"its own", "another's", "its own of before"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := newYard(t, func(o *tier.Options) {
					o.CheckpointInterval = time.Second
					*o = tier.WithInlineState(*o, 100) // that of a partition without objects
				})
				defer y.close()
				y.fill(100)
				var puts, deletes atomic.Int64
				var last atomic.Pointer[time.Time]
				y.store.SetFault(func(op tiertest.Op) (f tiertest.Fault) {
					switch {
					case op.Kind == "put" && strings.Contains(op.Key, "/manifest-"):
						puts.Add(1)
						now := time.Now()
						last.Store(&now)
						f.Late = true
					case op.Kind == "delete":
						deletes.Add(1)
						f.Err = tier.ErrUnavailable
					}
					return f
				})
				y.delete()
				y.rest(10 * time.Minute) // the time that was waited for at first is over
				for before := puts.Load(); puts.Load() == before; {
					y.rest(10 * time.Millisecond)
				}
				y.store.SetFault(nil)
				switch name {
				case "another's":
					y.speaker.Store(1)
				case "its own of before":
					n := y.nodes[0]
					if err := n.manager.Close(); err != nil {
						t.Error(err)
					}
					y.start(n)
				}
				if puts.Load() == 0 || deletes.Load() == 0 || !y.kept() {
					t.Fatalf("%d manifests, %d deletions, kept %v", puts.Load(), deletes.Load(), y.kept())
				}
				y.rest(time.Until(last.Load().Add(lands - time.Second)))
				if !y.kept() {
					t.Error("it is forgotten while a manifest can land")
				}
				if n := y.store.Land(t.Context()); n == 0 {
					t.Error("nothing lands")
				}
				y.rest(time.Hour)
				y.gone("in the end")
			})
		})
	}
}

// deafYard is a yard of which one node does not hear that the topic is deleted, and can be
// kept from reading the tier log. Both nodes speak for the cluster.
func deafYard(t *testing.T, deaf int, more func(i int, o *tier.Options)) (*yard, *stalledEvents) {
	events := &stalledEvents{}
	started := 0
	y := newYard(t, func(o *tier.Options) {
		o.CheckpointInterval = 10 * time.Minute
		o.Writer = func() bool { return true }
		*o = tier.WithInlineState(*o, 100)
		if started == deaf {
			o.Deleted = nil
			events.Events = o.Events.(*tiertest.Events)
			o.Events = events
		}
		if more != nil {
			more(started, o)
		}
		started++
	})
	y.fill(100)
	// Of another partition, so that this one holds up the tier log: the first lot has its
	// leader write a checkpoint, the second comes too early for the next.
	for i := range 40 {
		b, err := tier.EncodeEvent(tier.Event{Partition: log.PartitionID{Topic: log.TopicID{77}}, Epoch: log.Epoch(i), Body: tier.Barrier{}})
		if err == nil {
			err = y.events.Append(t.Context(), testPartition, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		if i == 20 {
			y.rest(10 * time.Minute)
		}
	}
	return y, events
}

// A node that can't read the tier log, and takes itself for the leader of a partition or
// for the one that speaks for the cluster, writes no manifest of what has gone meanwhile.
func TestManifestOfOneBehind(t *testing.T) {
	for deaf, name := range []string{"leader", "speaker"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y, events := deafYard(t, deaf, nil)
				defer y.close()
				y.rest(time.Second)
				events.stalled.Store(true)
				y.deleted.Store(true)
				for i, n := range y.nodes {
					if i == deaf && deaf == 0 {
						continue // it goes on
					}
					n.part.Close()
					n.part = nil
					if err := n.log.Close(); err != nil {
						t.Error(err)
					}
					n.manager.TopicsDeleted()
				}
				y.rest(time.Hour)
				if n := y.nodes[1-deaf].manager.Ledgers(); n != 1 {
					t.Errorf("the other node knows %d states", n)
				}
				if n := y.objects(); n != 0 {
					t.Errorf("%d objects of a partition that is forgotten", n)
				}
				events.stalled.Store(false)
				y.remove()
				y.rest(time.Hour)
				if n := y.objects(); n != 0 {
					t.Errorf("%d objects when all is read", n)
				}
			})
		})
	}
}

// A node that speaks for the cluster, and has not heard that a topic is deleted, leaves the
// checkpoints of what another clears away to that one: who waits for its own manifests
// knows nothing of those.
func TestDeletedIsNotUnpinned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clearing *tiertest.Faulty
		y, _ := deafYard(t, 1, func(i int, o *tier.Options) {
			if i == 0 {
				clearing = tiertest.NewFaulty(o.Store)
				o.Store = clearing
			}
		})
		defer y.close()
		clearing.SetFault(func(op tiertest.Op) (f tiertest.Fault) {
			if op.Kind == "put" || op.Kind == "delete" {
				f.Err = tier.ErrUnavailable
			}
			return f
		})
		var last atomic.Pointer[time.Time]
		y.store.SetFault(func(op tiertest.Op) (f tiertest.Fault) {
			if op.Kind == "put" && strings.Contains(op.Key, "/manifest-") {
				now := time.Now()
				last.Store(&now)
				f.Late = true
			}
			return f
		})
		y.delete()
		for range 120 {
			if y.rest(time.Minute); last.Load() != nil {
				t.Error("a manifest is written of what another clears away")
				break
			}
		}
		clearing.SetFault(nil)
		y.rest(lands - time.Minute)
		y.store.Land(t.Context())
		y.rest(time.Hour)
		if n := y.objects(); n != 0 {
			t.Errorf("%d objects are left", n)
		}
		if n := y.nodes[0].manager.Ledgers(); n != 1 {
			t.Errorf("%d states are known", n)
		}
	})
}
