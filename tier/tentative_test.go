package tier_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
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

// A history is a tier log with its true states: leaders come and go, and events of the
// deposed come late and twice, also when a sweep has taken their manifests.
type history struct {
	t      *testing.T
	r      *rand.Rand
	mem    *memstore.Store
	events *tiertest.Events
	parts  []*historyPart
	next   byte
	swept  int // manifests of events that come late
}

type historyPart struct {
	id     log.PartitionID
	state  tier.State
	epoch  log.Epoch
	pin    log.Offset
	pinned bool
	late   [][]byte
}

// emit commits an event and applies it to the true state.
func (h *history) emit(p *historyPart, b []byte) tier.Verdict {
	h.t.Helper()
	at := log.Offset(h.events.Len())
	if err := h.events.Append(h.t.Context(), p.id, b); err != nil {
		h.t.Fatal(err)
	}
	if !p.pinned {
		p.pin, p.pinned = at, true
	}
	e, err := tier.DecodeEvent(b)
	if err != nil {
		h.t.Fatal(err)
	}
	old, had := p.state.Manifest()
	v := p.state.Apply(e)
	if c, ok := e.Body.(tier.Checkpoint); ok && v == tier.Applied {
		p.pin = at
		if had && old != c.Manifest {
			h.mem.Delete(h.t.Context(), []string{tier.ManifestKey("", p.id, old)})
		}
	}
	return v
}

// propose makes the event that the present leader would send.
func (h *history) propose(p *historyPart) []byte {
	h.t.Helper()
	var body tier.Body
	switch n := h.r.IntN(10); {
	case n < 3:
		h.next++
		id := tier.ID{h.next, byte(h.r.IntN(256)), 1}
		body = tier.CopyStarted{ID: id, Base: p.state.TierEnd(), End: p.state.TierEnd() + 10, Deadline: time.UnixMilli(1000)}
	case n < 6 && len(p.state.Pending()) > 0:
		body = tier.CopyFinished{
			ID: p.state.Pending()[0].ID, BatchBytes: 10, ObjectBytes: 20, TailBytes: 5, MaxTimestamp: time.UnixMilli(5), Sealed: time.UnixMilli(6),
			Lineage: []log.EpochStart{{Epoch: p.epoch, Start: p.state.TierEnd()}},
		}
	case n < 7:
		body = tier.LogStart{Start: p.state.LogStart() + 3, Cause: tier.Cause{Kind: tier.CauseRequest}}
	default:
		c := tier.CheckpointOf(&p.state)
		if h.r.IntN(2) == 0 {
			b := c.State
			h.next++
			c.State, c.Manifest = nil, tier.ID{h.next, byte(h.r.IntN(256)), 2}
			if err := h.mem.Put(h.t.Context(), tier.ManifestKey("", p.id, c.Manifest), bytes.NewReader(b), int64(len(b)), tier.PutOptions{}); err != nil {
				h.t.Fatal(err)
			}
		}
		body = c
	}
	b, err := tier.EncodeEvent(tier.Event{Partition: p.id, Epoch: p.epoch, Seq: p.state.Seq() + 1, Body: body})
	if err != nil {
		h.t.Fatal(err)
	}
	return b
}

func (h *history) lead(p *historyPart) {
	h.t.Helper()
	p.epoch++
	b, err := tier.EncodeEvent(tier.Event{Partition: p.id, Epoch: p.epoch, Body: tier.Barrier{}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.emit(p, b)
}

// sweep takes the manifests that no event can make the state's any more.
func (h *history) sweep(p *historyPart) {
	h.t.Helper()
	known := map[string]bool{}
	late := map[string]bool{}
	if id, ok := p.state.Manifest(); ok {
		known[tier.ManifestKey("", p.id, id)] = true
	}
	for _, b := range p.late {
		e, err := tier.DecodeEvent(b)
		if err != nil {
			h.t.Fatal(err)
		}
		if c, ok := e.Body.(tier.Checkpoint); ok && c.Manifest != (tier.ID{}) {
			key := tier.ManifestKey("", p.id, c.Manifest)
			late[key] = true
			if e.Epoch == p.epoch && e.Seq > p.state.Seq() {
				known[key] = true // it may have its turn yet
			}
		}
	}
	for info, err := range h.mem.List(h.t.Context(), tier.PartitionPrefix("", p.id), "") {
		if err != nil {
			h.t.Fatal(err)
		}
		if !known[info.Key] {
			h.mem.Delete(h.t.Context(), []string{info.Key})
			if late[info.Key] {
				h.swept++
			}
		}
	}
}

func (h *history) step() {
	h.t.Helper()
	p := h.parts[h.r.IntN(len(h.parts))]
	if h.r.IntN(6) == 0 {
		h.sweep(p)
	}
	switch n := h.r.IntN(10); {
	case !p.pinned:
		h.lead(p)
	case n < 2:
		p.late = append(p.late, h.propose(p)) // in flight when its leader is deposed
		h.lead(p)
	case n < 5 && len(p.late) > 0:
		i := h.r.IntN(len(p.late))
		h.emit(p, p.late[i])
		if h.r.IntN(2) == 0 {
			p.late = append(p.late[:i], p.late[i+1:]...)
		}
	case n < 6:
		p.late = append(p.late, h.propose(p)) // the leader begins again in its epoch
	default:
		b := h.propose(p)
		if h.r.IntN(4) == 0 {
			p.late = append(p.late, b) // a second copy
		}
		h.emit(p, b)
	}
}

// TestTentativeReaders: whatever leaders and late events make of the tier log, wherever
// it was trimmed to by right, and whenever the manifests can be read, who begins at its
// start comes to the same states as who has read it all. A late checkpoint whose manifest
// is gone holds nobody up: what a partition needs of the tier log begins with its last
// checkpoint, so that comes too.
func TestTentativeReaders(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	trimmed, swept := 0, 0
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			h := &history{t: t, r: rand.New(rand.NewPCG(seed, 7)), mem: memstore.New(), events: &tiertest.Events{}}
			for i := range 3 {
				h.parts = append(h.parts, &historyPart{id: log.PartitionID{Topic: log.TopicID{1}, Index: int32(i)}})
			}
			steps := 20 + h.r.IntN(60)
			for range steps {
				h.step()
			}
			pin := log.Offset(h.events.Len())
			for _, p := range h.parts {
				if p.pinned {
					pin = min(pin, p.pin)
				}
			}
			if err := h.events.Trim(t.Context(), log.Offset(h.r.Int64N(int64(pin)+1))); err != nil {
				t.Fatal(err)
			}
			if start, err := h.events.Start(t.Context()); err != nil || start > 0 {
				trimmed++
			}
			store := tiertest.NewFaulty(h.mem)
			store.SetDown(h.r.IntN(2) == 0)
			m, err := tier.NewManager(tier.Options{Store: store, Events: h.events, Cluster: tier.ID{1}})
			if err != nil {
				t.Fatal(err)
			}
			parts := map[*historyPart]*tier.Partition{}
			for _, p := range h.parts {
				l, err := log.Open(t.Context(), fmt.Sprintf("p%d", p.id.Index), log.Options{FS: logtest.NewFS(1), Partition: p.id})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				if parts[p], err = m.Open(p.id, l, tier.PartitionOptions{HighWatermark: l.DurableEnd}); err != nil {
					t.Fatal(err)
				}
			}
			for range h.r.IntN(20) {
				time.Sleep(time.Duration(h.r.IntN(200)) * time.Millisecond)
				h.step()
			}
			time.Sleep(time.Minute)
			store.SetDown(false)
			time.Sleep(time.Minute)
			synctest.Wait()
			if err := m.Err(); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			for p, q := range parts {
				s, known := q.State()
				if !known || !s.Equal(&p.state) {
					t.Errorf("seed %d: partition %d: known %v, epoch %d, seq %d, [%d, %d); want epoch %d, seq %d, [%d, %d)", seed, p.id.Index, known,
						s.Epoch(), s.Seq(), s.LogStart(), s.TierEnd(), p.state.Epoch(), p.state.Seq(), p.state.LogStart(), p.state.TierEnd())
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			swept += h.swept
		})
		if t.Failed() {
			return
		}
	}
	if trimmed < int(seeds)/2 || swept < int(seeds)/2 {
		t.Errorf("only %d of %d tier logs were trimmed, %d late manifests were swept", trimmed, seeds, swept)
	}
}

// TestKnownAndStateTogether: a view is not of a state that is known and then of
// another.
func TestKnownAndStateTogether(t *testing.T) {
	r := newRig(t, tier.Options{})
	r.fill(50)
	for r.tier.Partition().View().TierEnd == 0 {
		time.Sleep(time.Millisecond)
	}
	p := r.tier.Partition()
	view, state, read := make(chan tier.View, 1), make(chan bool, 1), make(chan error, 1)
	p.Forget(func() {
		go func() { view <- p.View() }()
		go func() { _, known := p.State(); state <- known }()
		go func() { _, err := p.Read(t.Context(), 0, 1); read <- err }()
		time.Sleep(20 * time.Millisecond) // they are at the lock by now, or the test is easier to pass
	})
	if v := <-view; v.Known {
		t.Errorf("an empty view passes for known: %+v", v)
	}
	if <-state {
		t.Error("an empty state passes for known")
	}
	if err := <-read; !errors.Is(err, tier.ErrUnknown) {
		t.Errorf("read of an empty state: %v", err)
	}
}

// askedEvents counts how often the end is asked for.
type askedEvents struct {
	tier.Events
	asked atomic.Int64
}

func (e *askedEvents) End(ctx context.Context) (log.Offset, error) {
	if e.asked.Add(1) > 1000 {
		return 0, errors.New("asked too often")
	}
	return e.Events.End(ctx)
}

// TestWaitKnownWithoutManifest: who waits for a view that waits for the store does not
// keep the tier log busy.
func TestWaitKnownWithoutManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, 100, false)
		for range 4 {
			d.fill(100)
		}
		if d.start() == 0 {
			t.Fatal("the tier log is not trimmed")
		}
		d.store.SetDown(true)
		events := &askedEvents{Events: d.events}
		m, err := tier.NewManager(tier.Options{Store: d.store, Events: events, Cluster: tier.ID{1}})
		if err != nil {
			t.Fatal(err)
		}
		l, err := log.Open(t.Context(), "third", log.Options{FS: logtest.NewFS(3), Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = errors.Join(m.Close(), l.Close()) }() // after a failure
		p, err := m.Open(testPartition, l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
		if err != nil {
			t.Fatal(err)
		}
		known := make(chan error, 1)
		go func() { known <- p.WaitKnown(t.Context()) }()
		time.Sleep(time.Minute)
		if n := events.asked.Load(); n > 50 {
			t.Errorf("the end of the tier log was asked for %d times in a minute", n)
		}
		d.store.SetDown(false)
		if err := <-known; err != nil {
			t.Error(err)
		}
		if err := errors.Join(m.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

// partEvents is a tier log whose reader comes no further than an offset, and cannot
// begin anew while its start is hidden.
type partEvents struct {
	*tiertest.Events
	until  atomic.Int64
	hidden atomic.Bool
}

func (e *partEvents) Start(ctx context.Context) (log.Offset, error) {
	if e.hidden.Load() {
		return 0, errors.New("start not known")
	}
	return e.Events.Start(ctx)
}

func (e *partEvents) Read(ctx context.Context, from log.Offset) iter.Seq2[tier.Committed, error] {
	return func(yield func(tier.Committed, error) bool) {
		if int64(from) >= e.until.Load() {
			yield(tier.Committed{}, errors.New("not further"))
			return
		}
		for c, err := range e.Events.Read(ctx, from) {
			if err == nil && int64(c.Offset) >= e.until.Load() {
				yield(tier.Committed{}, errors.New("not further"))
				return
			}
			if !yield(c, err) {
				return
			}
		}
	}
}

// TestHalfRead: a node that has read a part of a trimmed tier log knows nothing, leads
// nothing, saves nothing, and drops nothing.
func TestHalfRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		d.fill(100)
		fs := logtest.NewFS(3)
		events := &partEvents{Events: d.events}
		events.until.Store(int64(d.events.Len()))
		m, err := tier.NewManager(tier.Options{Store: d.store, Events: events, Cluster: tier.ID{1}, StateFS: fs, StateDir: "data"})
		if err != nil {
			t.Fatal(err)
		}
		l, err := log.Open(t.Context(), "data", log.Options{FS: fs, Partition: testPartition, SegmentBytes: 2 << 10})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = errors.Join(m.Close(), l.Close()) }() // after a failure
		p, err := m.Open(testPartition, l, tier.PartitionOptions{Tiered: true, HighWatermark: l.DurableEnd})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.WaitKnown(t.Context()); err != nil {
			t.Fatal(err)
		}
		// It begins anew where it is let, not in between, where the tier log may end with
		// a checkpoint, and all may be known with that.
		events.hidden.Store(true)
		for range 4 {
			d.fill(100)
		}
		time.Sleep(time.Hour)
		start := d.start()
		for range 10 {
			if start = d.start(); d.events.Len() > int(start)+3 { // events behind the last checkpoint
				break
			}
			d.fill(10)
		}
		if int64(start) <= events.until.Load() || d.events.Len() <= int(start)+3 {
			t.Fatalf("the tier log starts at %d and ends at %d", start, d.events.Len())
		}
		if err := fs.Remove("data/tier-state"); err != nil { // of the time before
			t.Fatal(err)
		}
		for i := range 400 { // what the state of the time before lets go, and what only the half-read one would
			if _, err := l.AppendRecords(t.Context(), log.Record{Value: value(i)}); err != nil {
				t.Fatal(err)
			}
		}
		p.Kick()
		time.Sleep(time.Minute)
		synctest.Wait()
		local := l.LocalStart()
		events.until.Store(int64(start) + 1)
		events.hidden.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if at := m.Stats().Applied; at != start+1 {
			t.Fatalf("applied up to %d, want %d", at, start+1)
		}
		if p.View().Known {
			t.Error("a state passes for known before the end is reached")
		}
		if end := p.View().TierEnd; local == 0 || end <= local+40 {
			t.Fatalf("the local log began at %d, tier end %d", local, end)
		}
		p.Kick()
		time.Sleep(time.Minute)
		synctest.Wait()
		if start := l.LocalStart(); start != local {
			t.Errorf("records from %d to %d were dropped by a node that knows no state", local, start)
		}
		before := d.events.Len()
		p.Lead(9)
		time.Sleep(time.Minute)
		if n := d.events.Len(); n != before {
			t.Errorf("%d events were written by a node that knows no state", n-before)
		}
		p.Close()
		if err := errors.Join(m.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		if _, err := fs.Stat("data/tier-state"); err == nil {
			t.Error("a state was saved that is not known")
		}
	})
}

// TestStateFileAboveTheEnd: a tier log that has lost its end counts, and not what was
// saved of it before.
func TestStateFileAboveTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, true)
		d.fill(40)
		shorter := &tiertest.Events{}
		for _, b := range d.events.All() {
			if err := shorter.Append(t.Context(), testPartition, b); err != nil {
				t.Fatal(err)
			}
		}
		want, _ := d.leader.part.State()
		d.fill(40)
		d.close(d.other)
		if _, err := d.other.fs.Stat("data/tier-state"); err != nil {
			t.Fatal(err)
		}
		m, err := tier.NewManager(tier.Options{Store: d.store, Events: shorter, Cluster: tier.ID{1}, StateFS: d.other.fs, StateDir: "data"})
		if err != nil {
			t.Fatal(err)
		}
		l, err := log.Open(t.Context(), "data", log.Options{FS: d.other.fs, Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = errors.Join(m.Close(), l.Close()) }() // after a failure
		p, err := m.Open(testPartition, l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if s, known := p.State(); !known || !s.Equal(want) {
			t.Errorf("known %v: %+v", known, p.View())
		}
		p.Close()
		if err := errors.Join(m.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestManifestNoLonger: a state that has become small again needs no manifest, and has
// none.
func TestManifestNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, 400, false)
		manifests := func() (n int) {
			for info, err := range d.mem.List(t.Context(), "", "") {
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(info.Key, "/manifest-") {
					n++
				}
			}
			return n
		}
		d.fill(300)
		s, _ := d.leader.part.State()
		if _, ok := s.Manifest(); !ok || manifests() != 1 {
			t.Fatalf("manifest %v, %d stored", ok, manifests())
		}
		if err := d.leader.part.TrimTo(t.Context(), d.leader.log.End(), ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		s, _ = d.leader.part.State()
		if id, ok := s.Manifest(); ok || manifests() != 0 {
			t.Errorf("manifest %v, %d stored", id, manifests())
		}
		d.same("after")
	})
}

// TestHangingManifests: a store that hangs on manifests does not keep other partitions
// from what needs no store.
func TestHangingManifests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := tiertest.NewFaulty(memstore.New())
		var hanging, most atomic.Int64
		store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && strings.Contains(op.Key, "/manifest-") {
				most.Store(max(most.Load(), hanging.Add(1)))
				time.AfterFunc(19*time.Second, func() { hanging.Add(-1) })
				return tiertest.Fault{Delay: 20 * time.Second, Err: tier.ErrUnavailable}
			}
			return tiertest.Fault{}
		})
		m, err := tier.NewManager(tier.WithInlineState(tier.Options{Store: store, Events: &tiertest.Events{}, Cluster: tier.ID{1}, CheckpointEvents: 2}, 1))
		if err != nil {
			t.Fatal(err)
		}
		fs := logtest.NewFS(1)
		var parts []*tier.Partition
		for i := range 12 {
			id := log.PartitionID{Topic: log.TopicID{1}, Index: int32(i)}
			l, err := log.Open(t.Context(), fmt.Sprintf("p%d", i), log.Options{FS: fs, Partition: id})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for range 10 {
				if _, err := l.AppendRecords(t.Context(), log.Record{Value: value(i)}); err != nil {
					t.Fatal(err)
				}
			}
			p, err := m.Open(id, l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
			if err != nil {
				t.Fatal(err)
			}
			p.Lead(1)
			parts = append(parts, p)
		}
		time.Sleep(time.Second)
		for _, p := range parts[1:] {
			for at := range 3 {
				if err := p.TrimTo(t.Context(), log.Offset(at+1), ""); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(5 * time.Second)
		if hanging.Load() == 0 {
			t.Fatal("no manifest is under way")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := parts[0].TrimTo(ctx, 1, ""); err != nil {
			t.Errorf("trim while the store hangs: %v", err)
		}
		time.Sleep(time.Minute)
		if n := most.Load(); n > 2 {
			t.Errorf("%d manifests were written at once", n)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestLineageGoesOn: a range whose epochs begin before those below it is of another
// log, whatever their numbers; what is taken can be read again from a checkpoint.
func TestLineageGoesOn(t *testing.T) {
	finished := func(id byte, lineage ...log.EpochStart) tier.CopyFinished {
		return tier.CopyFinished{
			ID: tier.ID{id}, BatchBytes: 1, ObjectBytes: 3, TailBytes: 1, MaxTimestamp: time.UnixMilli(1), Sealed: time.UnixMilli(1), Lineage: lineage,
		}
	}
	started := func(id byte, base, end log.Offset) tier.CopyStarted {
		return tier.CopyStarted{ID: tier.ID{id}, Base: base, End: end, Deadline: time.UnixMilli(1)}
	}
	s, v := apply(t,
		started(1, 0, 100), finished(1, log.EpochStart{Epoch: 1}, log.EpochStart{Epoch: 3, Start: 50}),
		started(2, 100, 200), finished(2, log.EpochStart{Epoch: 5, Start: 40}),
		started(3, 100, 200), finished(3, log.EpochStart{Epoch: 3, Start: 50}, log.EpochStart{Epoch: 5, Start: 140}),
	)
	if v[len(v)-3] != tier.RefusedLineage || v[len(v)-1] != tier.Applied || s.TierEnd() != 200 {
		t.Errorf("verdicts %v, tier end %d", v, s.TierEnd())
	}
	if err := tier.LoadCheckpoint(s); err != nil {
		t.Error(err)
	}
}

// TestManyManifests: a node that begins with the manifests of many partitions reads few
// at once, since each is in memory whole, and can be closed while they hang.
func TestManyManifests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{t: t, mem: memstore.New(), events: &tiertest.Events{}}
		for i := range 20 {
			p := &historyPart{id: log.PartitionID{Topic: log.TopicID{1}, Index: int32(i)}}
			h.parts = append(h.parts, p)
			h.lead(p)
		}
		for i, p := range h.parts {
			c := tier.CheckpointOf(&p.state)
			b := c.State
			c.State, c.Manifest = nil, tier.ID{byte(i + 1)}
			if err := h.mem.Put(t.Context(), tier.ManifestKey("", p.id, c.Manifest), bytes.NewReader(b), int64(len(b)), tier.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			e, err := tier.EncodeEvent(tier.Event{Partition: p.id, Epoch: p.epoch, Seq: 1, Body: c})
			if err != nil {
				t.Fatal(err)
			}
			h.emit(p, e)
		}
		if err := h.events.Trim(t.Context(), 20); err != nil {
			t.Fatal(err)
		}
		store := tiertest.NewFaulty(h.mem)
		var now, most atomic.Int64
		delay := 10 * time.Second
		store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind != "get" || !strings.Contains(op.Key, "/manifest-") {
				return tiertest.Fault{}
			}
			most.Store(max(most.Load(), now.Add(1)))
			time.AfterFunc(delay-time.Second, func() { now.Add(-1) })
			return tiertest.Fault{Delay: delay}
		})
		for _, closed := range []bool{true, false} {
			m, err := tier.NewManager(tier.Options{Store: store, Events: h.events, Cluster: tier.ID{1}})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if !closed {
				time.Sleep(5 * time.Minute)
				l, err := log.Open(t.Context(), "data", log.Options{FS: logtest.NewFS(1), Partition: h.parts[7].id})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				p, err := m.Open(h.parts[7].id, l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
				if err != nil {
					t.Fatal(err)
				}
				if err := p.WaitKnown(t.Context()); err != nil {
					t.Error(err)
				}
				if s, _ := p.State(); !s.Equal(&h.parts[7].state) {
					t.Errorf("view %+v", p.View())
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			time.Sleep(delay)
		}
		if n := most.Load(); n == 0 || n > 4 {
			t.Errorf("%d manifests were read at once", n)
		}
	})
}

// A shortEvents is a tier log that can't be read for a while, or ends below what was read
// of it, as that of a leader that has just begun.
type shortEvents struct {
	*tiertest.Events
	mode   atomic.Int32
	cancel atomic.Pointer[context.CancelFunc] // of the last read
}

const (
	eventsSound int32 = iota
	eventsAway
	eventsShort
)

func (e *shortEvents) set(mode int32) {
	e.mode.Store(mode)
	if cancel := e.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}

func (e *shortEvents) Read(ctx context.Context, from log.Offset) iter.Seq2[tier.Committed, error] {
	return func(yield func(tier.Committed, error) bool) {
		switch e.mode.Load() {
		case eventsAway:
			yield(tier.Committed{}, errors.New("away"))
			return
		case eventsShort:
			yield(tier.Committed{}, log.ErrOffsetOutOfRange)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		e.cancel.Store(&cancel)
		for c, err := range e.Events.Read(ctx, from) {
			if !yield(c, err) {
				return
			}
		}
	}
}

func (e *shortEvents) End(ctx context.Context) (log.Offset, error) {
	if e.mode.Load() == eventsShort {
		return 1, nil
	}
	return e.Events.End(ctx)
}

// How often a tier log that ends below what was read of it is asked again does not depend
// on how long it could not be read before.
func TestEventsShortAfterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events *shortEvents
		y := newYard(t, func(o *tier.Options) {
			if events == nil {
				events = &shortEvents{Events: o.Events.(*tiertest.Events)}
				o.Events = events
			}
		})
		defer y.close()
		y.fill(60)
		part := y.nodes[0].part
		before := part.View()
		check := func(when string) {
			t.Helper()
			if v := part.View(); v.TierEnd != before.TierEnd || v.TierEnd == 0 || !v.Known {
				t.Errorf("%s: %+v, before %+v", when, v, before)
			}
		}
		events.set(eventsAway)
		y.rest(10 * time.Minute)
		check("away")
		events.set(eventsShort)
		y.rest(20 * time.Second)
		check("short")
		events.set(eventsSound)
		y.rest(time.Minute)
		check("sound")
	})
}
