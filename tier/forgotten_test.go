package tier_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
				y.running()
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
		s := y.state()
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
		y.anew(n)
		if n.manager.Ledgers() != 1 {
			t.Fatalf("%d states after the late checkpoint", n.manager.Ledgers())
		}
		y.speaker.Store(n.n)
		y.rest(2 * time.Hour)
		y.running()
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
		s := y.state()
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
		y.anew(n)
		y.speaker.Store(n.n)
		y.rest(2 * time.Hour)
		y.running()
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
		s := y.state()
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
		y.running()
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
				s := y.state()
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
