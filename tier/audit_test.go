package tier_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"strconv"
	"strings"
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

func (r *rig) audit(depth tier.AuditDepth) *tier.AuditReport {
	r.t.Helper()
	report, err := tier.Audit(r.t.Context(), tier.AuditOptions{Store: r.mem, Events: tier.ReadToEnd(r.t.Context(), r.events), Depth: depth})
	if err != nil {
		r.t.Fatal(err)
	}
	return report
}

// keys lists the segment objects, in the order of offsets.
func (r *rig) keys() []string {
	r.t.Helper()
	var keys []string
	for info, err := range r.mem.List(r.t.Context(), "", "") {
		if err != nil {
			r.t.Fatal(err)
		}
		if _, ok := tier.ParseKey("", info.Key); ok {
			keys = append(keys, info.Key)
		}
	}
	return keys
}

func (r *rig) put(key string, b []byte) {
	r.t.Helper()
	if err := r.mem.Put(r.t.Context(), key, bytes.NewReader(b), int64(len(b)), tier.PutOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) remove(key string) {
	r.t.Helper()
	if d := r.mem.Delete(r.t.Context(), []string{key}); d[0].Err != nil {
		r.t.Fatal(d[0].Err)
	}
}

func TestAuditClean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		settle()
		if a := r.audit(tier.AuditBytes); !a.Clean() || a.Ranges != 0 || a.Partitions != 1 {
			t.Errorf("an empty log: %+v", a)
		}
		r.fill(300)
		settle()
		if err := r.tier.TrimTo(t.Context(), 77); err != nil {
			t.Fatal(err)
		}
		settle()
		v := r.tier.Partition().View()
		told := 0
		a, err := tier.Audit(t.Context(), tier.AuditOptions{
			Store: r.mem, Events: tier.ReadToEnd(t.Context(), r.events), Depth: tier.AuditBytes, Cluster: r.events.Cluster(),
			Progress: func(p tier.AuditProgress) { told = max(told, p.Checked) },
		})
		if err != nil || !a.Clean() {
			t.Fatalf("%v, %+v", err, a)
		}
		if a.Ranges != v.Ranges || a.Bytes != v.Bytes || a.Objects != v.Ranges || a.Others != 1 || a.Cluster != r.events.Cluster() || told != v.Ranges {
			t.Errorf("%+v, %d told, view %+v", a, told, v)
		}
		r.close()
	})
}

// TestAuditFinds: each kind of damage is found, with the offsets that are lost, and
// nothing else is.
func TestAuditFinds(t *testing.T) {
	flip := func(at func(size int64) int64) func(*rig, []string) {
		return func(r *rig, keys []string) {
			info, err := r.mem.Head(r.t.Context(), keys[2])
			if err != nil || !r.mem.Corrupt(keys[2], at(info.Size)) {
				r.t.Fatal(err)
			}
		}
	}
	third := func(keys []string) (base, end log.Offset, key string) {
		k, _ := tier.ParseKey("", keys[2])
		return k.Base, k.End, keys[2]
	}
	tests := []struct {
		name  string
		hurt  func(r *rig, keys []string)
		kind  tier.FindingKind
		depth tier.AuditDepth // the first that finds it
		key   func(keys []string) (base, end log.Offset, key string)
	}{
		{"object deleted", func(r *rig, keys []string) { r.remove(keys[2]) }, tier.FindingMissing, tier.AuditNames, third},
		{"object cut", func(r *rig, keys []string) {
			b, err := r.mem.GetRange(r.t.Context(), keys[2], 0, 500)
			if err != nil {
				r.t.Fatal(err)
			}
			r.put(keys[2], b)
		}, tier.FindingCorrupt, tier.AuditNames, third},
		{"header", flip(func(int64) int64 { return 20 }), tier.FindingCorrupt, tier.AuditTails, third},
		{"chunk", flip(func(size int64) int64 { return size / 2 }), tier.FindingCorrupt, tier.AuditBytes, third},
		{"footer", flip(func(size int64) int64 { return size - 40 }), tier.FindingCorrupt, tier.AuditTails, third},
		{"another object under the key", func(r *rig, keys []string) {
			info, err := r.mem.Head(r.t.Context(), keys[2])
			if err != nil {
				r.t.Fatal(err)
			}
			for _, key := range keys {
				b, err := r.mem.GetRange(r.t.Context(), key, 0, info.Size)
				if key != keys[2] && err == nil {
					r.put(keys[2], b)
					return
				}
			}
			r.t.Fatal("no other object is as long")
		}, tier.FindingCorrupt, tier.AuditTails, third},
		{"stray object", func(r *rig, keys []string) {
			k, _ := tier.ParseKey("", keys[2])
			k.ID = tier.ID{1, 2, 3}
			r.put(k.Path(""), []byte("stray"))
		}, tier.FindingOrphan, tier.AuditNames, func(keys []string) (log.Offset, log.Offset, string) {
			k, _ := tier.ParseKey("", keys[2])
			k.ID = tier.ID{1, 2, 3}
			return k.Base, k.End, k.Path("")
		}},
		{"object of a stranger", func(r *rig, keys []string) {
			k, _ := tier.ParseKey("", keys[2])
			k.Partition.Topic[3]++
			r.put(k.Path(""), []byte("stray"))
		}, tier.FindingForeign, tier.AuditNames, func(keys []string) (log.Offset, log.Offset, string) {
			k, _ := tier.ParseKey("", keys[2])
			k.Partition.Topic[3]++
			return k.Base, k.End, k.Path("")
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tier.Options{})
				r.fill(300)
				settle()
				keys := r.keys()
				test.hurt(r, keys)
				for depth := tier.AuditNames; depth <= tier.AuditBytes; depth++ {
					a := r.audit(depth)
					if depth < test.depth {
						if !a.Clean() {
							t.Errorf("depth %d finds %v", depth, a.Findings)
						}
						continue
					}
					base, end, key := test.key(keys)
					if len(a.Findings) != 1 {
						t.Fatalf("depth %d: %v, want one finding", depth, a.Findings)
					}
					f := a.Findings[0]
					if f.Kind != test.kind || f.Base != base || f.End != end || f.Key != key {
						t.Errorf("depth %d: %v, want %v of [%d, %d) in %s", depth, f, test.kind, base, end, key)
					}
					if !strings.Contains(f.String(), test.kind.String()) {
						t.Errorf("%v", f)
					}
				}
				_ = errors.Join(r.tier.Close(), r.events.Close(), r.hot.Close())
			})
		})
	}
}

func TestAuditErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(100)
		settle()
		o := tier.AuditOptions{Store: r.store, Events: tier.ReadToEnd(t.Context(), r.events), Cluster: tier.ID{9}}
		if _, err := tier.Audit(t.Context(), o); !errors.Is(err, tier.ErrForeignStore) {
			t.Errorf("another cluster's store: %v", err)
		}
		o.Cluster = tier.ID{}
		r.store.SetDown(true)
		if _, err := tier.Audit(t.Context(), o); !errors.Is(err, tier.ErrUnavailable) {
			t.Errorf("a store that is down: %v", err)
		}
		r.store.SetDown(false)
		o.Events = func(yield func(tier.Committed, error) bool) { yield(tier.Committed{Event: []byte("junk")}, nil) }
		if _, err := tier.Audit(t.Context(), o); !errors.Is(err, tier.ErrInvalidEvent) {
			t.Errorf("events that are none: %v", err)
		}
		if _, err := tier.Audit(t.Context(), tier.AuditOptions{}); err == nil {
			t.Error("no error without a store")
		}
		r.close()
	})
}

// TestSweep: what the state does not know goes, what it knows stays, whatever the
// age, and a deposed leader deletes nothing.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(300)
		settle()
		good := r.keys()
		k, _ := tier.ParseKey("", good[2])
		k.ID = tier.ID{1, 2, 3}
		stray := k.Path("")
		r.put(stray, []byte("stray"))
		k.Partition.Topic[3]++
		r.put(k.Path(""), []byte("foreign"))
		p := r.tier.Partition()

		s, err := p.Sweep(t.Context(), tier.SweepOptions{})
		if err != nil || s.Young != 1 || len(s.Orphans) != 0 || s.Deleted != 0 || s.Listed != len(good)+1 {
			t.Errorf("a young orphan: %+v, %v", s, err)
		}
		time.Sleep(3 * time.Hour)
		s, err = p.Sweep(t.Context(), tier.SweepOptions{DryRun: true})
		if err != nil || len(s.Orphans) != 1 || s.Orphans[0].Key != stray || s.Deleted != 0 || s.Bytes != 5 {
			t.Errorf("dry run: %+v, %v", s, err)
		}
		s, err = p.Sweep(t.Context(), tier.SweepOptions{})
		if err != nil || s.Deleted != 1 || len(s.Failed) != 0 {
			t.Errorf("sweep: %+v, %v", s, err)
		}
		if left := r.keys(); len(left) != len(good)+1 { // the foreign one
			t.Errorf("%d objects, want %d", len(left), len(good)+1)
		}
		r.check(0)

		r.put(stray, []byte("stray"))
		p.Follow()
		if _, err := p.Sweep(t.Context(), tier.SweepOptions{MinAge: -1}); !errors.Is(err, tier.ErrNotLeader) {
			t.Errorf("sweep by a follower: %v", err)
		}
		if len(r.keys()) != len(good)+2 {
			t.Error("a follower deleted")
		}
		_ = errors.Join(r.tier.Close(), r.events.Close(), r.hot.Close())
	})
}

// TestSweepFenced: a leader that does not know that it is none any more finds out
// before it deletes.
func TestSweepFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(300)
		settle()
		k, _ := tier.ParseKey("", r.keys()[2])
		k.ID = tier.ID{1, 2, 3}
		r.put(k.Path(""), []byte("the new leader's"))
		// The next leader's barrier is committed at the moment of the listing.
		p := r.tier.Partition()
		_, epoch, _ := p.Status()
		event, err := tier.EncodeEvent(tier.Event{Partition: p.ID(), Epoch: epoch + 1, Body: tier.Barrier{}})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.events.Append(t.Context(), p.ID(), event); err != nil {
			t.Fatal(err)
		}
		if s, err := p.Sweep(t.Context(), tier.SweepOptions{MinAge: -1}); err == nil || s != nil && s.Deleted > 0 {
			t.Errorf("a deposed leader swept: %+v, %v", s, err)
		}
		_ = errors.Join(r.tier.Close(), r.events.Close(), r.hot.Close())
	})
}

// TestRestore: the store alone gives back every record below the tier end, with
// offset, epoch, time and value, up to the offset that was asked for.
func TestRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		for range 3 { // three epochs
			r.fill(120)
			settle()
			r.close()
			r.open(tier.Options{})
		}
		r.fill(120)
		settle()
		if err := r.tier.TrimTo(t.Context(), 50); err != nil {
			t.Fatal(err)
		}
		settle()
		v := r.tier.Partition().View()
		chains, err := tier.Catalog(t.Context(), tier.CatalogOptions{Store: r.mem})
		if err != nil || len(chains) != 1 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		c := chains[0]
		if c.Partition != r.hot.Partition() || c.End() != v.TierEnd || c.Start() > 50 || len(c.Spare) != 0 || len(c.Broken) != 0 {
			t.Fatalf("chain [%d, %d) of %v, spare %v, broken %v", c.Start(), c.End(), c.Partition, c.Spare, c.Broken)
		}
		for _, to := range []log.Offset{0, c.End(), c.End() + 10, c.Start() + 1, c.Start() + 100, c.Start()} {
			restored, err := log.Open(t.Context(), "restored", log.Options{FS: logtest.NewFS(2), Partition: c.Partition})
			if err != nil {
				t.Fatal(err)
			}
			end, err := c.Restore(t.Context(), restored, tier.RestoreOptions{Store: r.mem, To: to})
			want := c.End()
			if to > 0 {
				want = min(want, to) // batches have one record here
			}
			if err != nil || end != want || restored.DurableEnd() != want || want > c.Start() && restored.Start() != c.Start() {
				t.Fatalf("restored to %d: [%d, %d), %v", to, restored.Start(), end, err)
			}
			at := c.Start()
			for rec, err := range restored.Records(t.Context(), at) {
				if err != nil || rec.Offset != at || !bytes.Equal(rec.Value, value(int(at))) {
					t.Fatalf("restored to %d: offset %d: %d, %v", to, at, rec.Offset, err)
				}
				at++
			}
			if at != want {
				t.Errorf("restored to %d: read up to %d", to, at)
			}
			if to == 0 {
				if _, err := c.Restore(t.Context(), restored, tier.RestoreOptions{Store: r.mem}); err == nil {
					t.Error("restored over records")
				}
				for _, e := range r.hot.EpochChain() {
					if e.Start >= c.Start() && e.Start < c.End() {
						if got, _ := restored.EndOffset(e.Epoch); got != e.Epoch {
							t.Errorf("epoch %d is not in the restored chain %v", e.Epoch, restored.EpochChain())
						}
					}
				}
			}
			if err := restored.Close(); err != nil {
				t.Error(err)
			}
		}
		r.close()
	})
}

// TestRestoreAround: what is broken or does not belong is named, and the rest is
// given.
func TestRestoreAround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(300)
		settle()
		keys := r.keys()
		k, _ := tier.ParseKey("", keys[2])
		k.ID = tier.ID{1, 2, 3}
		r.put(k.Path(""), []byte("stray"))
		if !r.mem.Corrupt(keys[1], 20) {
			t.Fatal("no object")
		}
		chains, err := tier.Catalog(t.Context(), tier.CatalogOptions{Store: r.mem})
		if err != nil {
			t.Fatal(err)
		}
		c := chains[0]
		second, _ := tier.ParseKey("", keys[2])
		if c.Start() != second.Base || len(c.Broken) != 3 || len(c.Spare) != 1 || c.Spare[0] != keys[0] {
			t.Errorf("chain from %d, broken %v, spare %v", c.Start(), c.Broken, c.Spare)
		}
		// Without a manifest too, what is below the damaged object is to be had.
		first, _ := tier.ParseKey("", keys[0])
		for _, at := range []log.Offset{first.End, c.Start()} {
			chains, err = tier.Catalog(t.Context(), tier.CatalogOptions{Store: r.mem, Below: at})
			if err != nil || len(chains) != 1 || len(chains[0].Objects) != 1 || chains[0].End() != first.End || (len(chains[0].Broken) == 0) != (at == first.End) {
				t.Errorf("below %d: %+v, %v", at, chains, err)
			}
		}
		restored, err := log.Open(t.Context(), "restored", log.Options{FS: logtest.NewFS(2), Partition: chains[0].Partition})
		if err != nil {
			t.Fatal(err)
		}
		if end, err := chains[0].Restore(t.Context(), restored, tier.RestoreOptions{Store: r.mem}); err != nil || end != first.End {
			t.Errorf("restored below the damage: %d, %v", end, err)
		}
		if err := restored.Close(); err != nil {
			t.Error(err)
		}
		// A partition of which all is left out is there, with an empty chain.
		r.mem.Delete(t.Context(), keys[:1])
		chains, err = tier.Catalog(t.Context(), tier.CatalogOptions{Store: r.mem, Below: first.Base + 1})
		if err != nil || len(chains) != 1 || len(chains[0].Objects)+len(chains[0].Spare)+len(chains[0].Broken) != 0 {
			t.Errorf("with all left out: %+v, %v", chains, err)
		}
		empty := memstore.New()
		if _, err := tier.Catalog(t.Context(), tier.CatalogOptions{Store: empty}); !errors.Is(err, tier.ErrNotFound) {
			t.Errorf("an empty store: %v", err)
		}
		_ = errors.Join(r.tier.Close(), r.events.Close(), r.hot.Close())
	})
}

// TestWriter: while somebody speaks for the cluster, the store says so.
func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var speaks atomic.Bool
		speaks.Store(true)
		r := newRig(t, tier.Options{Writer: speaks.Load})
		settle()
		r.store.SetDown(true)
		time.Sleep(20 * time.Minute)
		at, ok, err := tier.LastWriter(t.Context(), r.mem, "")
		if err != nil || !ok || time.Since(at) < 15*time.Minute {
			t.Errorf("with the store down: %v, %v, %v", at, ok, err)
		}
		r.store.SetDown(false)
		for range 5 {
			time.Sleep(3 * time.Minute)
			if at, ok, err := tier.LastWriter(t.Context(), r.mem, ""); err != nil || !ok || time.Since(at) > tier.WriterInterval {
				t.Errorf("at work: written %v ago, %v, %v", time.Since(at), ok, err)
			}
		}
		speaks.Store(false)
		time.Sleep(time.Hour)
		if at, ok, err := tier.LastWriter(t.Context(), r.mem, ""); err != nil || !ok || time.Since(at) < 59*time.Minute {
			t.Errorf("afterwards: written %v ago, %v, %v", time.Since(at), ok, err)
		}
		if _, ok, err := tier.LastWriter(t.Context(), memstore.New(), ""); ok || err != nil {
			t.Errorf("an empty store: %v, %v", ok, err)
		}
		_ = errors.Join(r.tier.Close(), r.events.Close(), r.hot.Close())
	})
}

func TestReadToEnd(t *testing.T) {
	ctx := t.Context()
	fs := logtest.NewFS(1)
	e, err := tier.OpenLocalEvents(ctx, "events", tier.LocalOptions{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	first, err := e.End(ctx) // the cluster id comes before all events
	if err != nil {
		t.Fatal(err)
	}
	collect := func(seq func(func(tier.Committed, error) bool)) (out []string, last error) {
		for c, err := range seq {
			if err != nil {
				return out, err
			}
			if c.Event != nil && c.Offset >= first {
				out = append(out, string(c.Event))
			}
		}
		return out, nil
	}
	seq := tier.ReadToEnd(ctx, e)
	if got, err := collect(seq); len(got) != 0 || err != nil {
		t.Errorf("of an empty log: %q, %v", got, err)
	}
	for _, b := range []string{"a", "b", "c", "d"} {
		if err := e.Append(ctx, log.PartitionID{}, []byte(b)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := collect(seq); strings.Join(got, "") != "abcd" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := e.Trim(ctx, first+2); err != nil {
		t.Fatal(err)
	}
	if got, err := collect(seq); strings.Join(got, "") != "cd" || err != nil {
		t.Errorf("of a trimmed log: %q, %v", got, err)
	}
	if err := e.Trim(ctx, first+4); err != nil {
		t.Fatal(err)
	}
	if got, err := collect(seq); len(got) != 0 || err != nil {
		t.Errorf("of a log that was trimmed to its end: %q, %v", got, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := collect(tier.ReadToEnd(ctx, closedEvents{e})); !errors.Is(err, log.ErrClosed) {
		t.Errorf("of a closed log: %v", err)
	}
}

// closedEvents do not know their end any more.
type closedEvents struct{ *tier.LocalEvents }

func (closedEvents) End(context.Context) (log.Offset, error) { return 0, log.ErrClosed }

// TestAuditLateCheckpoint: a checkpoint of a deposed leader that came late does not
// stand in for a newer one whose manifest is lost.
func TestAuditLateCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{t: t, mem: memstore.New(), events: &tiertest.Events{}}
		p := &historyPart{id: testPartition}
		h.parts = append(h.parts, p)
		event := func(body tier.Body) []byte {
			b, err := tier.EncodeEvent(tier.Event{Partition: p.id, Epoch: p.epoch, Seq: p.state.Seq() + 1, Body: body})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		owner := tier.ID{1}
		m, err := tier.NewManager(tier.Options{Store: h.mem, Events: &tiertest.Events{}, Cluster: owner})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		h.lead(p)
		late := event(tier.CheckpointOf(&p.state))
		h.lead(p)
		h.emit(p, event(tier.CopyStarted{ID: tier.ID{9}, Base: 0, End: 10, Deadline: time.UnixMilli(1000)}))
		key := tier.Key{Partition: p.id, Base: 0, End: 10, Epoch: p.epoch, ID: tier.ID{9}}.Path("")
		if err := h.mem.Put(t.Context(), key, strings.NewReader("x"), 1, tier.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		c := tier.CheckpointOf(&p.state)
		c.State, c.Manifest = nil, tier.ID{8}
		h.emit(p, event(c))
		h.emit(p, late)
		if err := h.events.Trim(t.Context(), p.pin); err != nil {
			t.Fatal(err)
		}
		events := func(yield func(tier.Committed, error) bool) {
			for at, b := range h.events.All() {
				if log.Offset(at) >= p.pin && !yield(tier.Committed{Offset: log.Offset(at), Event: b}, nil) {
					return
				}
			}
		}
		a, err := tier.Audit(t.Context(), tier.AuditOptions{Store: h.mem, Events: events})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Findings) != 1 || a.Findings[0].Kind != tier.FindingManifest {
			t.Errorf("findings %v", a.Findings)
		}
	})
}

// TestAuditBesideACluster: what a cluster at work takes away by right during an audit is
// no finding, and what is missing is one all the same.
func TestAuditBesideACluster(t *testing.T) {
	tests := []struct {
		name     string
		manifest bool // the state is in a manifest, else in the events
		goes     bool // an event says that the object goes
		once     bool // the events can be read once only
		findings int
	}{
		{"manifest replaced", true, true, false, 0},
		{"manifest missing", true, false, false, 1},
		{"manifest replaced, events once", true, true, true, 1},
		{"range deleted", false, true, false, 0},
		{"range missing", false, false, false, 1},
	}
	for _, tt := range tests {
		for _, depth := range []tier.AuditDepth{tier.AuditNames, tier.AuditBytes} {
			t.Run(tt.name+"/"+strconv.Itoa(int(depth)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { auditBeside(t, tt.manifest, tt.goes, tt.once, tt.findings, depth) })
			})
		}
	}
}

func auditBeside(t *testing.T, manifest, goes, once bool, findings int, depth tier.AuditDepth) {
	r := newRig(t, tier.Options{})
	defer r.close()
	r.fill(300)
	settle()
	key := r.keys()[0]
	first, _ := tier.ParseKey("", key)
	ctx, part := t.Context(), r.tier.Partition()
	state, _ := part.State()
	event := func(body tier.Body) {
		t.Helper()
		b, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: state.Epoch(), Seq: state.Seq() + 1, Body: body})
		if err == nil {
			err = r.events.Append(ctx, testPartition, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		settle()
		state, _ = part.State()
	}
	start := log.Offset(0)
	if manifest {
		// The tier log begins with a checkpoint that names it.
		c := tier.CheckpointOf(state)
		key = tier.ManifestKey("", testPartition, tier.ID{8})
		r.put(key, c.State)
		var err error
		if start, err = r.events.End(ctx); err != nil {
			t.Fatal(err)
		}
		c.State, c.Manifest = nil, tier.ID{8}
		event(c)
	}
	change := func() {
		switch {
		case goes && manifest:
			event(tier.CheckpointOf(state))
		case goes:
			if err := part.TrimTo(ctx, first.End, "test"); err != nil {
				t.Fatal(err)
			}
			settle()
			return // it deletes the object itself
		default:
			event(tier.LogStart{Start: 1, Cause: tier.Cause{Kind: tier.CauseRequest}}) // something else
		}
		r.remove(key)
	}
	if !goes {
		r.remove(key)
	}
	reads := 0
	events := func(yield func(tier.Committed, error) bool) {
		if reads++; once && reads > 1 {
			return
		}
		var all []tier.Committed
		for c, err := range tier.ReadToEnd(ctx, r.events) {
			if err != nil {
				t.Error(err)
			}
			all = append(all, c)
		}
		if reads == 1 {
			change()
		}
		for _, c := range all {
			if c.Offset >= start && !yield(c, nil) {
				return
			}
		}
	}
	a, err := tier.Audit(ctx, tier.AuditOptions{Store: r.mem, Events: events, Depth: depth})
	if err != nil {
		t.Fatal(err)
	}
	want := 2
	if goes && !manifest && depth == tier.AuditNames {
		want = 1 // it was there when the store was listed, and that is enough
	}
	if len(a.Findings) != findings || a.Partitions != 1 || reads != want {
		t.Errorf("%d readings of the events, %+v", reads, a)
	}
}

// listThen is a store in which much happens right after a listing.
type listThen struct {
	tier.ObjectStore
	then func()
}

func (s listThen) List(ctx context.Context, prefix, after string) iter.Seq2[tier.ObjectInfo, error] {
	return func(yield func(tier.ObjectInfo, error) bool) {
		for info, err := range s.ObjectStore.List(ctx, prefix, after) {
			if !yield(info, err) {
				return
			}
		}
		s.then()
	}
}

// TestAuditOfABusyStore: what is stored or deleted between the listing and the reading
// of the events is no finding: objects and manifests.
func TestAuditOfABusyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, 100, false)
		d.fill(200)
		store := listThen{d.mem, func() {
			d.fill(200)
			if err := d.leader.part.TrimTo(t.Context(), 150, ""); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
		}}
		a, err := tier.Audit(t.Context(), tier.AuditOptions{Store: store, Events: tier.ReadToEnd(t.Context(), d.events), Depth: tier.AuditBytes})
		if err != nil {
			t.Fatal(err)
		}
		if !a.Clean() || a.Ranges != d.leader.part.View().Ranges || d.start() == 0 {
			t.Errorf("%d ranges of %d, findings %v", a.Ranges, d.leader.part.View().Ranges, a.Findings)
		}
	})
}

// TestAuditOfABusyCluster: at each reading of the events a manifest is replaced right
// afterwards, for ever. The audit ends all the same, and calls none of them missing; but
// it does call an object that is.
func TestAuditOfABusyCluster(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newDuo(t, 100, false)
			d.fill(200)
			ctx := t.Context()
			readings := 0
			events := func(yield func(tier.Committed, error) bool) {
				d.fill(200) // a manifest that was not listed
				for c, err := range tier.ReadToEnd(ctx, d.events) {
					if !yield(c, err) {
						return
					}
				}
				readings++
				d.fill(200)
				if s, _ := d.leader.part.State(); lost && readings == 2 {
					r := s.Ranges()[s.Len()-1]
					key := tier.Key{Partition: testPartition, Base: r.Base, End: r.End, Epoch: r.Epoch, ID: r.ID}.Path("")
					if res := d.mem.Delete(ctx, []string{key}); res[0].Err != nil {
						t.Error(res[0].Err)
					}
				}
			}
			a, err := tier.Audit(ctx, tier.AuditOptions{Store: d.mem, Events: events})
			if err != nil {
				t.Fatal(err)
			}
			if lost && (len(a.Findings) != 1 || a.Findings[0].Kind != tier.FindingMissing) || !lost && !a.Clean() {
				t.Errorf("lost %v: %d readings, %v", lost, readings, a.Findings)
			}
			if readings < 5 {
				t.Errorf("%d readings: the events were not read again and again", readings)
			}
		})
	}
}

// TestAuditOutrunUpload: an upload that the log start has overtaken is refused by all
// states, and no finding; one that leaves a gap is.
func TestAuditOutrunUpload(t *testing.T) {
	for _, c := range []struct {
		name     string
		logStart log.Offset
		base     log.Offset
		findings int
	}{{"outrun", 10, 0, 0}, {"gap", 3, 5, 1}} {
		h := &history{t: t, mem: memstore.New(), events: &tiertest.Events{}}
		p := &historyPart{id: testPartition}
		h.lead(p)
		for _, body := range []tier.Body{
			tier.CopyStarted{ID: tier.ID{1}, Base: c.base, End: 10, Deadline: time.UnixMilli(1)},
			tier.LogStart{Start: c.logStart, Cause: tier.Cause{Kind: tier.CauseRequest}},
			tier.CopyFinished{ID: tier.ID{1}, BatchBytes: 1, ObjectBytes: 3, TailBytes: 1, MaxTimestamp: time.UnixMilli(1), Sealed: time.UnixMilli(1)},
		} {
			b, err := tier.EncodeEvent(tier.Event{Partition: p.id, Epoch: p.epoch, Seq: p.state.Seq() + 1, Body: body})
			if err != nil {
				t.Fatal(err)
			}
			h.emit(p, b)
		}
		if err := h.mem.Put(t.Context(), "owner", bytes.NewReader(tier.OwnerContent(tier.ID{1})), int64(len(tier.OwnerContent(tier.ID{1}))), tier.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		a, err := tier.Audit(t.Context(), tier.AuditOptions{Store: h.mem, Events: tier.ReadToEnd(t.Context(), h.events)})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Findings) != c.findings {
			t.Errorf("%s: findings %v", c.name, a.Findings)
		}
	}
}
