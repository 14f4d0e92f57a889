package tier_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
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

// TestCase holds faults of other systems that this package must not have. Each is
// named for where it was reported; testdata/cases.txt lists them all, also those
// that can't occur here, with the reason.
func TestCase(t *testing.T) {
	raw, err := os.ReadFile("testdata/cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	s3, err := os.ReadFile("s3store/faults_test.go")
	if err != nil {
		t.Fatal(err)
	}
	left := maps.Clone(cases)
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, rest, _ := strings.Cut(line, " ")
		kind, text, _ := strings.Cut(strings.TrimSpace(rest), " ")
		c, ok := cases[id]
		switch {
		case len(strings.TrimSpace(text)) < 10:
			t.Errorf("%s: no explanation", id)
		case kind == "test" && !ok:
			t.Errorf("%s has no test", id)
		case kind == "no" && ok:
			t.Errorf("%s has a test and a reason for none", id)
		case kind == "s3store" && (ok || !strings.Contains(string(s3), `"`+id+`"`)):
			t.Errorf("%s has no test in s3store, or one here too", id)
		case kind != "test" && kind != "no" && kind != "s3store":
			t.Errorf("%s: kind %q", id, kind)
		}
		if ok {
			if left[id] == nil {
				t.Errorf("%s is listed twice", id)
			}
			delete(left, id)
			t.Run(id, func(t *testing.T) { synctest.Test(t, c) })
		}
	}
	for _, id := range slices.Sorted(maps.Keys(left)) {
		t.Errorf("%s is not listed", id)
	}
}

// apply runs bodies through a new state in epoch 1.
func apply(t *testing.T, bodies ...tier.Body) (*tier.State, []tier.Verdict) {
	t.Helper()
	s := &tier.State{}
	s.Apply(tier.Event{Epoch: 1, Body: tier.Barrier{}})
	var verdicts []tier.Verdict
	for i, b := range bodies {
		verdicts = append(verdicts, s.Apply(tier.Event{Epoch: 1, Seq: uint64(i + 1), Body: b}))
	}
	return s, verdicts
}

func copied(id byte, base, end log.Offset) []tier.Body {
	return []tier.Body{
		tier.CopyStarted{ID: tier.ID{id}, Base: base, End: end, Deadline: time.UnixMilli(1)},
		tier.CopyFinished{ID: tier.ID{id}, BatchBytes: 100, ObjectBytes: 300, TailBytes: 50},
	}
}

func request(start log.Offset) tier.LogStart {
	return tier.LogStart{Start: start, Cause: tier.Cause{Kind: tier.CauseRequest}}
}

// isSegment says whether an operation is about a segment object.
func isSegment(op tiertest.Op) bool { return !strings.HasSuffix(op.Key, "owner") }

var cases = map[string]func(*testing.T){
	"KAFKA-15479": func(t *testing.T) {
		c := copied(1, 0, 10)
		f := c[1].(tier.CopyFinished)
		f.Lineage = []log.EpochStart{{Epoch: 1, Start: 0}, {Epoch: 2, Start: 3}, {Epoch: 3, Start: 6}}
		s, _ := apply(t, c[0], f)
		if s.Bytes() != 100 || s.Len() != 1 {
			t.Errorf("a range of three epochs counts %d bytes in %d ranges", s.Bytes(), s.Len())
		}
	},
	"KAFKA-16890": func(t *testing.T) {
		s, v := apply(t, request(10), request(5), request(12), request(12))
		if s.LogStart() != 12 || v[1] != tier.RefusedLogStart || v[3] != tier.RefusedLogStart {
			t.Errorf("log start %d, %v", s.LogStart(), v)
		}
	},
	"KAFKA-15352": func(t *testing.T) {
		r := newRig(t, tier.Options{Partition: tier.PartitionOptions{RetentionBytes: 9000}})
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "delete" {
				k, _ := tier.ParseKey("", op.Key)
				if v := r.tier.Partition().View(); v.LogStart < k.End {
					t.Errorf("deletes [%d, %d) at log start %d", k.Base, k.End, v.LogStart)
				}
			}
			return tiertest.Fault{}
		})
		for range 20 {
			r.fill(20)
			settle()
		}
		if c := r.store.Counts(); c.Delete == 0 {
			t.Error("nothing was deleted")
		}
		r.close()
	},
	"KAFKA-15351": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(200)
		settle()
		if err := r.tier.TrimTo(t.Context(), 77); err != nil {
			t.Fatal(err)
		}
		r.close()
		r.open(tier.Options{})
		settle() // the local start follows, also when the first life had no time for it
		if r.tier.Start() != 77 || r.hot.Start() != 77 {
			t.Errorf("after a restart: log start %d, local %d", r.tier.Start(), r.hot.Start())
		}
		r.check(77)
		r.close()
	},
	"KAFKA-16073": func(t *testing.T) { handOff(t) },
	"RMQ-361":     func(t *testing.T) { handOff(t) },
	"KAFKA-20609": func(t *testing.T) {
		r := newRig(t, tier.Options{Partition: tier.PartitionOptions{RetentionAge: time.Hour, LocalRetentionAge: 10 * time.Minute}})
		for _, when := range []time.Time{time.Now().AddDate(100, 0, 0), time.Now().AddDate(-30, 0, 0)} {
			for range 100 {
				if _, err := r.tier.AppendRecords(t.Context(), log.Record{Value: value(0), Timestamp: when}); err != nil {
					t.Fatal(err)
				}
			}
		}
		settle()
		if v := r.tier.Partition().View(); v.LogStart != 0 || r.hot.LocalStart() != 0 {
			t.Errorf("records of another time are gone at once: log start %d, local start %d", v.LogStart, r.hot.LocalStart())
		}
		time.Sleep(11 * time.Minute)
		if v := r.tier.Partition().View(); r.hot.LocalStart() != v.TierEnd {
			t.Errorf("records of another time stay local: %d of %d", r.hot.LocalStart(), v.TierEnd)
		}
		time.Sleep(time.Hour)
		if v := r.tier.Partition().View(); v.LogStart != v.TierEnd || v.LogStart == 0 {
			t.Errorf("records of another time stay: log start %d of %d", v.LogStart, v.TierEnd)
		}
		r.close()
	},
	"RMQ-225": func(t *testing.T) {
		r := newRig(t, tier.Options{Partition: tier.PartitionOptions{LocalRetentionBytes: 1}})
		r.store.SetDown(true)
		r.fill(200)
		time.Sleep(time.Hour)
		if r.hot.LocalStart() != r.tier.Partition().View().TierEnd {
			t.Errorf("local start %d, tier end %d", r.hot.LocalStart(), r.tier.Partition().View().TierEnd)
		}
		r.check(0)
		r.store.SetDown(false)
		time.Sleep(time.Minute)
		if _, n := r.tier.Partition().Backlog(); n != 0 {
			t.Errorf("a backlog of %d", n)
		}
		r.check(0)
		r.close()
	},
	"RMQ-244": func(t *testing.T) {
		w := newPair(t)
		w.lead(0, 1)
		settle()
		w.events.SetFault(func(log.PartitionID) tiertest.EventFault { return tiertest.EventLost })
		w.fill(t, 100)
		settle()
		if v := w.parts[0].View(); w.logs[0].LocalStart() != 0 || v.TierEnd != 0 {
			t.Errorf("local start %d before anything is committed", w.logs[0].LocalStart())
		}
		w.events.SetFault(nil)
		time.Sleep(time.Minute)
		if v := w.parts[0].View(); w.logs[0].LocalStart() == 0 || w.logs[0].LocalStart() != v.TierEnd {
			t.Errorf("local start %d, tier end %d", w.logs[0].LocalStart(), v.TierEnd)
		}
		w.close(t)
	},
	"RMQ-262": func(t *testing.T) {
		w := newPair(t)
		w.lead(0, 1)
		w.fill(t, 100)
		settle()
		end := w.parts[0].View().TierEnd
		// The other replica lost its disk and leads all the same.
		w.parts[0].Follow()
		if err := w.logs[1].Reset(t.Context(), 0, nil, nil); err != nil {
			t.Fatal(err)
		}
		w.hw[1].Store(0)
		w.lead(1, 2)
		settle()
		before := w.events.Len()
		time.Sleep(time.Hour)
		if n := w.events.Len() - before; n > 1 { // a checkpoint
			t.Errorf("%d events in an hour", n)
		}
		if s, err := w.parts[1].Read(t.Context(), 0, 1); err != nil || s.Base() != 0 {
			t.Errorf("cold read: %v", err)
		}
		if v := w.parts[1].View(); v.TierEnd != end {
			t.Errorf("tier end %d, want %d", v.TierEnd, end)
		}
		w.close(t)
	},
	"RMQ-237": func(t *testing.T) {
		r := newRig(t, tier.Options{ChunkBytes: 4 << 10})
		r.fill(200)
		settle()
		var got []log.Offset
		var last error
		for rec, err := range r.tier.Records(t.Context(), 0) {
			if err != nil {
				last = err
				break
			}
			got = append(got, rec.Offset)
			if len(got) == 5 {
				if err := r.tier.TrimTo(t.Context(), 150); err != nil {
					t.Fatal(err)
				}
				settle()
			}
		}
		if !errors.Is(last, log.ErrOffsetOutOfRange) {
			t.Errorf("a reader that retention overtook: %v after %d records", last, len(got))
		}
		for i, off := range got {
			if off != log.Offset(i) {
				t.Fatalf("the reader jumped to %d", off)
			}
		}
		r.close()
	},
	"RMQ-241": func(t *testing.T) {
		s, _ := apply(t)
		if v := s.Apply(tier.Event{Epoch: 0, Body: tier.Barrier{}}); v != tier.IgnoredBarrier || s.Epoch() != 1 {
			t.Errorf("a barrier of a deposed leader: %v, epoch %d", v, s.Epoch())
		}
	},
	"PULSAR-13219": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		stall := make(chan struct{})
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && isSegment(op) {
				return tiertest.Fault{Stall: stall}
			}
			return tiertest.Fault{}
		})
		r.fill(100)
		settle()
		if err := r.tier.TrimTo(t.Context(), 13); err != nil { // inside the range under way
			t.Fatal(err)
		}
		settle()
		if r.hot.Start() > 0 {
			t.Errorf("local log start %d under an upload", r.hot.Start())
		}
		close(stall)
		settle()
		if v := r.tier.Partition().View(); v.Ranges == 0 || r.hot.Start() != 13 || r.stats().UploadFailures > 0 {
			t.Errorf("view %+v, local log start %d", v, r.hot.Start())
		}
		r.check(13)
		r.close()
	},
	"REDPANDA-PR-3293": func(t *testing.T) {
		// The segment grows while the range before it is uploaded: what is sealed is
		// what goes, and its size is that of the plan.
		r := newRig(t, tier.Options{})
		r.store.SetDelay(10 * time.Millisecond)
		for range 100 {
			r.fill(3)
			time.Sleep(time.Millisecond)
		}
		settle()
		state, _ := r.tier.Partition().State()
		for _, x := range state.Ranges() {
			info, err := r.mem.Head(t.Context(), tier.Key{Partition: testPartition, Base: x.Base, End: x.End, Epoch: x.Epoch, ID: x.ID}.Path(""))
			if err != nil || info.Size != x.ObjectBytes || info.CRC32C != x.CRC32C {
				t.Errorf("object of [%d, %d): %+v, %v, state %d bytes", x.Base, x.End, info, err, x.ObjectBytes)
			}
		}
		r.check(0)
		r.close()
	},
	"REDPANDA-9597": func(t *testing.T) {
		c := copied(1, 0, 10)
		s, _ := apply(t, c...)
		again := s.Clone()
		if v := again.Apply(tier.Event{Epoch: 1, Seq: 2, Body: c[1]}); v != tier.IgnoredSeq || !again.Equal(s) {
			t.Errorf("the same event again: %v", v)
		}
	},
	"REDPANDA-17839": func(t *testing.T) {
		w := newPair(t)
		w.lead(0, 1)
		w.fill(t, 100)
		settle()
		w.parts[0].Follow()
		w.events.SetFault(func(log.PartitionID) tiertest.EventFault { return tiertest.EventLate })
		w.fill(t, 100)
		before := w.store.Counts()
		w.lead(1, 2)
		time.Sleep(time.Minute)
		if after := w.store.Counts(); after != before {
			t.Errorf("a leader without its barrier used the store: %+v after %+v", after, before)
		}
		if leading, _, _ := w.parts[1].Status(); leading {
			t.Error("it says that it leads")
		}
		w.events.SetFault(nil)
		w.events.Land(nil)
		time.Sleep(time.Minute)
		if after := w.store.Counts(); after.Put <= before.Put {
			t.Error("it uploads nothing after its barrier")
		}
		w.close(t)
	},
	"REDPANDA-COMMIT-6BC98E4D10": func(t *testing.T) { deposed(t) },
	"REDPANDA-8560": func(t *testing.T) {
		w := newPair(t)
		w.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && isSegment(op) {
				return tiertest.Fault{Delay: time.Hour}
			}
			return tiertest.Fault{}
		})
		w.lead(0, 1)
		w.fill(t, 100)
		settle()
		began := time.Now()
		w.parts[0].Follow()
		if took := time.Since(began); took > time.Second || w.store.Active() > 0 {
			t.Errorf("handing over took %v, %d operations under way", took, w.store.Active())
		}
		w.store.SetFault(nil)
		w.lead(1, 2)
		time.Sleep(2 * time.Hour)
		w.noOrphans(t, 1)
		w.close(t)
	},
	"REDPANDA-21348": func(t *testing.T) {
		w := newPair(t)
		n := 0
		w.events.SetFault(func(log.PartitionID) tiertest.EventFault {
			n++
			return []tiertest.EventFault{tiertest.EventReplyLost, tiertest.EventLate, tiertest.EventLost, tiertest.EventCommitted}[n%4]
		})
		w.lead(0, 1)
		w.fill(t, 200)
		for range 20 {
			time.Sleep(10 * time.Second)
			w.events.Land(nil)
		}
		w.events.SetFault(nil)
		time.Sleep(time.Minute)
		w.noOrphans(t, 0)
		if s := w.managers[0].Stats(); s.Events[tier.IgnoredSeq] == 0 || s.Events[tier.RefusedGap] > 0 || s.Events[tier.RefusedID] > 0 {
			t.Errorf("verdicts %v", s.Events)
		}
		w.close(t)
	},
	"REDPANDA-12177": func(t *testing.T) {
		r := newRig(t, tier.Options{Partition: tier.PartitionOptions{RetentionBytes: 20_000, LocalRetentionBytes: 7000}})
		r.fill(600)
		settle()
		state, _ := r.tier.Partition().State()
		total := int64(0)
		for _, x := range state.Ranges() {
			total += x.BatchBytes
		}
		cold := total
		for _, s := range r.hot.Segments() {
			if s.End > state.TierEnd() {
				total += s.Bytes
			}
		}
		oldest := state.Ranges()[0].BatchBytes
		if total < 20_000 || total-oldest >= 20_000 || cold != state.Bytes() {
			t.Errorf("%d bytes are left, the oldest range has %d; the state counts %d cold of %d", total, oldest, state.Bytes(), cold)
		}
		r.close()
	},
	"REDPANDA-27952": func(t *testing.T) {
		r := newRig(t, tier.Options{Partition: tier.PartitionOptions{RetentionBytes: 30_000}})
		r.fill(150)
		settle()
		if err := r.tier.TrimTo(t.Context(), 140); err != nil {
			t.Fatal(err)
		}
		r.fill(50)
		settle()
		r.close()
		r.open(tier.Options{Partition: tier.PartitionOptions{RetentionBytes: 30_000}})
		settle()
		if r.tier.Start() != 140 {
			t.Errorf("log start %d", r.tier.Start())
		}
		r.close()
	},
	"REDPANDA-10739": func(t *testing.T) {
		r := newRig(t, tier.Options{Interval: time.Hour, Partition: tier.PartitionOptions{LocalRetentionBytes: -1}})
		r.fill(100)
		time.Sleep(365 * 24 * time.Hour)
		if r.tier.Start() != 0 || r.hot.LocalStart() != 0 {
			t.Errorf("without a policy: log start %d, local start %d", r.tier.Start(), r.hot.LocalStart())
		}
		r.close()
	},
	"AUTOMQ-3416": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		var n atomic.Int32
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && isSegment(op) && n.Add(1)%2 == 1 {
				return tiertest.Fault{Late: true}
			}
			return tiertest.Fault{}
		})
		for range 10 {
			r.fill(30)
			settle()
			r.store.Land(t.Context())
		}
		if err := r.mem.Check(); err != nil {
			t.Error(err)
		}
		r.check(0)
		r.close()
	},
	"KAFKA-17428": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(200)
		settle()
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "delete" {
				return tiertest.Fault{Err: tier.ErrUnavailable}
			}
			return tiertest.Fault{}
		})
		if err := r.tier.TrimTo(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		s := r.stats()
		if s.PendingDeletions == 0 || s.DeleteFailures < 10 {
			t.Errorf("%+v", s)
		}
		r.store.SetFault(nil)
		time.Sleep(time.Minute)
		if s := r.stats(); s.PendingDeletions != 0 {
			t.Errorf("%d deletions are pending", s.PendingDeletions)
		}
		r.close()
	},
	"KAFKA-16511": func(t *testing.T) {
		bodies := append(copied(1, 0, 10), copied(2, 5, 20)...)
		s, v := apply(t, bodies...)
		if v[3] != tier.RefusedGap || len(s.Pending()) != 1 {
			t.Fatalf("an overlapping upload: %v", v)
		}
		s, v = apply(t, append(bodies, tier.DeleteStarted{IDs: []tier.ID{{2}}}, tier.DeleteFinished{IDs: []tier.ID{{2}}})...)
		if v[5] != tier.Applied || len(s.Pending()) != 0 || s.Len() != 1 {
			t.Errorf("its removal: %v", v)
		}
	},
	"KAFKA-15168": func(t *testing.T) {
		s, v := apply(t, append(append(copied(1, 0, 10), copied(2, 10, 20)...), copied(3, 0, 20)...)...)
		if v[5] != tier.RefusedGap || s.Len() != 2 {
			t.Errorf("an upload of what is there: %v", v)
		}
	},
	"RMQ-149": func(t *testing.T) {
		bodies := []tier.Body{
			tier.CopyStarted{ID: tier.ID{1}, Base: 0, End: 10, Deadline: time.UnixMilli(1)},
			tier.CopyStarted{ID: tier.ID{2}, Base: 0, End: 10, Deadline: time.UnixMilli(1)},
			tier.DeleteStarted{IDs: []tier.ID{{1}}},
			tier.CopyFinished{ID: tier.ID{2}, BatchBytes: 100, ObjectBytes: 300, TailBytes: 50},
			tier.DeleteFinished{IDs: []tier.ID{{1}}},
		}
		s, v := apply(t, bodies...)
		if r := s.Ranges(); len(r) != 1 || r[0].ID != (tier.ID{2}) || slices.ContainsFunc(v, func(v tier.Verdict) bool { return v != tier.Applied }) {
			t.Errorf("ranges %+v, %v", r, v)
		}
	},
	"AUTOMQ-2407": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(300)
		settle()
		state, _ := r.tier.Partition().State()
		poison := state.Ranges()[1]
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "delete" && strings.Contains(op.Key, poison.ID.String()) {
				return tiertest.Fault{Err: tier.ErrDenied}
			}
			return tiertest.Fault{}
		})
		if err := r.tier.TrimTo(t.Context(), state.TierEnd()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		state, _ = r.tier.Partition().State()
		if p := state.Pending(); len(p) != 1 || p[0].ID != poison.ID || r.mem.Len() != 2 {
			t.Errorf("pending %+v, %d objects", p, r.mem.Len())
		}
		r.fill(100)
		settle()
		if _, n := r.tier.Partition().Backlog(); n != 0 {
			t.Errorf("an object that can't be deleted holds up %d uploads", n)
		}
		r.close()
	},
	"AUTOMQ-3539": func(t *testing.T) {
		w := newPair(t)
		w.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			return tiertest.Fault{Delay: time.Duration(boolInt(op.Kind == "put" && isSegment(op))) * 24 * time.Hour}
		})
		w.lead(0, 1)
		w.fill(t, 30)
		began := time.Now()
		settle()
		time.Sleep(20 * time.Minute)
		w.parts[0].Follow()
		w.lead(1, 2)
		settle()
		state, _ := w.parts[1].State()
		// The next leader's clock starts no new term for the object.
		if p := state.Pending(); len(p) == 0 || p[0].Deadline.Sub(began) > tier.DefaultUploadDeadline+time.Second {
			t.Errorf("pending %+v, began %v", p, began)
		}
		w.close(t)
	},
	"KAFKA-19763":   func(t *testing.T) { readBudget(t) },
	"REDPANDA-7042": func(t *testing.T) { readBudget(t) },
	"KAFKA-19599": func(t *testing.T) {
		events := &countingEvents{Events: &tiertest.Events{}}
		events.SetDown(true)
		l, err := log.Open(t.Context(), "data", log.Options{FS: logtest.NewFS(1), Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		m, err := tier.NewManager(tier.Options{Store: memstore.New(), Events: events, Cluster: tier.ID{1}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Open(testPartition, l, tier.PartitionOptions{HighWatermark: l.DurableEnd})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := events.ends.Load(); n > 1000 {
			t.Errorf("asked %d times in an hour", n)
		}
		events.SetDown(false)
		if err := p.WaitKnown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := errors.Join(m.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	},
	"REDPANDA-7193": func(t *testing.T) {
		r := newRig(t, tier.Options{ChunkBytes: 4 << 10, CacheBytes: 6 << 10})
		r.fill(300)
		settle()
		before := r.store.Counts().Get
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { r.check(0) })
		}
		wg.Wait()
		state, _ := r.tier.Partition().State()
		if got := r.store.Counts().Get - before; got > 4*4*state.Len() {
			t.Errorf("%d requests for 4 readers of %d ranges with a cache for one", got, state.Len())
		}
		if s := r.stats(); s.CachedBytes > 6<<10 {
			t.Errorf("%d bytes are cached", s.CachedBytes)
		}
		r.close()
	},
	"REDPANDA-11835": func(t *testing.T) {
		r := newRig(t, tier.Options{ChunkBytes: 4 << 10, CacheChunks: 3})
		r.fill(300)
		settle()
		r.check(0)
		if s := r.stats(); s.CachedParts > 3 {
			t.Errorf("%d parts are cached", s.CachedParts)
		}
		r.close()
		r.open(tier.Options{CacheBytes: 1, DiskCacheFS: r.fs, DiskCacheDir: "cache", DiskCacheFiles: 8, DiskCacheReserveBytes: -1})
		settle()
		for range 3 {
			r.check(0)
			settle()
			if names := r.cacheNames(); len(names) < 4 || len(names) > 8+1 { // and the lock
				t.Errorf("%d files: %v", len(names), names)
			}
		}
		r.close()
	},
	"KAFKA-15481": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.close()
		r.open(tier.Options{CacheBytes: 1, DiskCacheFS: r.fs, DiskCacheDir: "cache", DiskCacheFiles: 8, DiskCacheReserveBytes: -1})
		r.fill(300)
		settle()
		// Readers find their entries while others have them evicted.
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 3 {
					r.check(0)
				}
			})
		}
		wg.Wait()
		settle()
		if s := r.stats(); s.DiskDamaged > 0 || s.DiskFailures > 0 || s.DiskHits+s.DiskWrites == 0 {
			t.Errorf("files that were not there: %+v", s)
		}
		r.close()
	},
	"RMQ-349": func(t *testing.T) { readWindow(t) },
	"REDPANDA-18056": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.close()
		r.open(tier.Options{CacheBytes: 1, DiskCacheFS: r.fs, DiskCacheDir: "cache", DiskCacheFiles: 8, DiskCacheReserveBytes: -1})
		r.fill(300)
		settle()
		gate, evicts := make(chan struct{}), atomic.Bool{}
		r.fs.(*logtest.FS).OnOp(func(op logtest.Op) error {
			if op.Kind == logtest.OpRemove && strings.HasPrefix(strings.TrimPrefix(op.Path, "/"), "cache/") {
				evicts.Store(true)
				<-gate
			}
			return nil
		})
		for range 3 {
			r.check(0) // would hang with an eviction in a reader's way
			settle()
		}
		if !evicts.Load() {
			t.Error("nothing was evicted")
		}
		close(gate)
		r.close()
	},
	"REDPANDA-12043": func(t *testing.T) {
		// A reader goes on by offset while ranges come and go around it.
		r := newRig(t, tier.Options{ChunkBytes: 4 << 10})
		r.fill(200)
		settle()
		at := log.Offset(0)
		for at < log.Offset(r.next) && r.next < 600 {
			s, err := r.tier.Read(t.Context(), at, 2000)
			if err != nil {
				t.Fatal(err)
			}
			if s.Base() > at || s.End() <= at {
				t.Fatalf("read of %d gave [%d, %d)", at, s.Base(), s.End())
			}
			at = s.End()
			r.fill(7)
			if at > 20 && r.next%5 == 0 {
				if err := r.tier.TrimTo(t.Context(), at-10); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		r.close()
	},
	"REDPANDA-16479": func(t *testing.T) {
		r := newRig(t, tier.Options{ChunkBytes: 64 << 10})
		began := time.Now()
		for range 300 {
			r.fill(1)
			time.Sleep(time.Second)
		}
		settle()
		before := r.store.Counts().Get
		if off, ok, err := r.tier.OffsetForTime(t.Context(), began.Add(150*time.Second)); off != 150 || !ok || err != nil {
			t.Errorf("%d, %v, %v", off, ok, err)
		}
		if n := r.store.Counts().Get - before; n > 2 {
			t.Errorf("a time lookup took %d requests", n)
		}
		r.close()
	},
	"AIVEN-538": func(t *testing.T) {
		r := newRig(t, tier.Options{ChunkBytes: 64 << 10})
		r.fill(100)
		settle()
		before := r.store.Counts().Get
		end := r.tier.Partition().View().TierEnd
		for range 10 {
			for at := range end { // one batch at a time
				if _, err := r.tier.Read(t.Context(), at, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := r.store.Counts().Get - before; n > r.tier.Partition().View().Ranges {
			t.Errorf("%d requests for %d objects", n, r.tier.Partition().View().Ranges)
		}
		r.close()
	},
	"AR-IO-NODE-799": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(100)
		settle()
		r.close()
		l, err := log.Open(t.Context(), "data", log.Options{FS: r.fs, Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		e, err := tier.OpenLocalEvents(t.Context(), "events", tier.LocalOptions{FS: r.fs})
		if err != nil {
			t.Fatal(err)
		}
		tl, err := tier.Open(t.Context(), l, tier.Options{Store: emptyBodies{r.mem}, Events: e})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tl.Read(t.Context(), 0, 1); !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("read through a store that gives empty bodies: %v", err)
		}
		if s := tl.Manager().Stats(); s.CachedParts != 0 {
			t.Errorf("%d parts are cached", s.CachedParts)
		}
		if err := errors.Join(tl.Close(), e.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	},
	"AIVEN-820": func(t *testing.T) {
		r := newRig(t, tier.Options{UploadDeadline: 10 * time.Minute})
		var stuck atomic.Bool
		stuck.Store(true)
		never := make(chan struct{})
		ignores := false // ctx
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && isSegment(op) && stuck.Load() {
				if ignores {
					return tiertest.Fault{Hang: never}
				}
				return tiertest.Fault{Stall: never}
			}
			return tiertest.Fault{}
		})
		for i := range 2 {
			ignores = i == 1
			stuck.Store(true)
			r.fill(100)
			time.Sleep(5 * time.Minute)
			if bytes, _ := r.tier.Partition().Backlog(); bytes == 0 {
				t.Error("no backlog while the upload is stuck")
			}
			stuck.Store(false)
			time.Sleep(6 * time.Minute)
			s := r.stats()
			if bytes, _ := r.tier.Partition().Backlog(); bytes != 0 || s.UploadFailures <= int64(i) || s.StoreHangs != i {
				t.Errorf("a backlog of %d after the deadline, %+v", bytes, s)
			}
		}
		close(never)
		synctest.Wait()
		r.close()
	},
	"KAFKA-19995": func(t *testing.T) { backlog(t) },
	"RMQ-233":     func(t *testing.T) { backlog(t) },
	"KAFKA-15272": func(t *testing.T) {
		r := newRig(t, tier.Options{Interval: time.Hour})
		r.fill(3)
		if err := r.tier.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if v := r.tier.Partition().View(); v.TierEnd != 3 {
			t.Errorf("a segment that was just sealed is not in the store: tier end %d", v.TierEnd)
		}
		r.close()
	},
	"KAFKA-16711": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(100)
		settle()
		puts := r.store.Counts().Put
		r.close()
		r.open(tier.Options{})
		settle()
		if n := r.store.Counts().Put - puts; n != 1 { // the owner
			t.Errorf("%d objects were written again", n-1)
		}
		r.close()
	},
	"AUTOMQ-3206": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && isSegment(op) && op.N%2 == 1 {
				return tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: true}
			}
			return tiertest.Fault{}
		})
		r.fill(100)
		time.Sleep(time.Minute)
		v := r.tier.Partition().View()
		if c := r.store.Counts(); v.Ranges < 2 || r.mem.Len() != v.Ranges+1 || c.Delete > 0 || c.Head > 0 {
			t.Errorf("%d ranges, %d objects, %+v: a lost reply is not a failure", v.Ranges, r.mem.Len(), c)
		}
		r.close()
	},
	"AUTOMQ-3177": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		began := time.Now()
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if time.Since(began) < 10*time.Minute {
				return tiertest.Fault{Err: &tier.ThrottledError{RetryAfter: 20 * time.Second}}
			}
			return tiertest.Fault{}
		})
		r.fill(100)
		time.Sleep(9 * time.Minute)
		if c := r.store.Counts(); c.Put > 40 {
			t.Errorf("%d requests in 9 minutes to a store that asked for 20 s between them", c.Put)
		}
		time.Sleep(2 * time.Minute)
		if _, n := r.tier.Partition().Backlog(); n != 0 {
			t.Errorf("a backlog of %d ranges after the throttling", n)
		}
		r.close()
	},
	"AUTOMQ-2382": func(t *testing.T) {
		r := newRig(t, tier.Options{ChunkBytes: 4 << 10, CacheBytes: 1})
		r.fill(100)
		settle()
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "get" && op.N%3 > 0 {
				return tiertest.Fault{Err: tier.ErrUnavailable, Delay: time.Millisecond}
			}
			return tiertest.Fault{}
		})
		for i := range 40 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Millisecond)
			_, _ = r.tier.Read(ctx, log.Offset(i), 1)
			cancel()
		}
		time.Sleep(time.Minute)
		if requests, bytes := r.tier.Manager().BudgetsUsed(); requests != 0 || bytes != 0 {
			t.Errorf("%d requests and %d bytes are held at idle", requests, bytes)
		}
		r.close()
	},
	"AUTOMQ-PR-1561": func(t *testing.T) {
		seen := map[time.Duration]bool{}
		for range 100 {
			d := tier.Backoff(3)
			if d < tier.DefaultMinBackoff<<3/2 || d > tier.DefaultMinBackoff<<3 {
				t.Fatalf("backoff %v", d)
			}
			seen[d] = true
		}
		for _, n := range []int{10, 31, 63, 1000} {
			if d := tier.Backoff(n); d < tier.DefaultMaxBackoff/2 || d > tier.DefaultMaxBackoff {
				t.Errorf("backoff after %d failures: %v", n, d)
			}
		}
		if len(seen) < 50 {
			t.Errorf("%d different waits in 100", len(seen))
		}
	},
	"AIVEN-520": func(t *testing.T) { uploadRate(t, 1, 3, 600<<10) },
	"RMQ-289":   func(t *testing.T) { uploadRate(t, 3, 3, 100<<10) },
	"RMQ-172": func(t *testing.T) {
		r := newRig(t, tier.Options{Reads: 2})
		r.fill(200)
		settle()
		stall := make(chan struct{})
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "get" {
				return tiertest.Fault{Stall: stall}
			}
			return tiertest.Fault{}
		})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { _, _ = r.tier.Read(t.Context(), log.Offset(i*7), 1) })
		}
		settle()
		before := r.tier.Partition().View()
		r.fill(100)
		if err := r.tier.TrimTo(t.Context(), 50); err != nil {
			t.Fatal(err)
		}
		settle()
		if v := r.tier.Partition().View(); v.TierEnd <= before.TierEnd || r.stats().Deletes == 0 {
			t.Errorf("stuck readers hold up the rest: %+v", v)
		}
		close(stall)
		wg.Wait()
		r.close()
	},
	"MINIO-21526": func(t *testing.T) {
		r := &rig{t: t, fs: logtest.NewFS(1), mem: memstore.New()}
		r.store = tiertest.NewFaulty(r.mem)
		r.store.SetCapabilities(tier.Capabilities{})
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && isSegment(op) && op.N%3 == 1 {
				return tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: true}
			}
			return tiertest.Fault{}
		})
		r.open(tier.Options{})
		r.fill(200)
		time.Sleep(time.Minute)
		if v := r.tier.Partition().View(); v.Ranges < 4 || r.mem.Len() != v.Ranges+1 || !r.stats().OwnerChecked {
			t.Errorf("a store without conditional writes: %+v, %d objects", v, r.mem.Len())
		}
		r.check(0)
		r.close()
	},
	"SLATEDB-1230": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(100)
		settle()
		var n atomic.Int32
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "get" && n.Add(1) == 1 {
				return tiertest.Fault{Err: tier.ErrNotFound}
			}
			return tiertest.Fault{}
		})
		if _, err := r.tier.Read(t.Context(), 0, 1); err != nil || r.stats().Missing > 0 {
			t.Errorf("an object that was not visible for a moment: %v", err)
		}
		r.close()
	},
	"KAFKA-16105": func(t *testing.T) {
		w := newPair(t)
		w.lead(0, 1)
		w.fill(t, 100)
		settle()
		for range 5 {
			w.parts[1].Close()
			w.reopen(t, 1)
			if err := w.parts[1].WaitKnown(t.Context()); err != nil {
				t.Fatal(err)
			}
			if v := w.parts[1].View(); v.Ranges == 0 {
				t.Errorf("view %+v", v)
			}
		}
		w.close(t)
	},
	"KAFKA-15181": func(t *testing.T) {
		w := newPair(t)
		w.lead(0, 1)
		never := make(chan struct{})
		w.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && isSegment(op) {
				return tiertest.Fault{Stall: never}
			}
			return tiertest.Fault{}
		})
		w.fill(t, 100)
		settle()
		state, _ := w.parts[1].State()
		if _, err := w.parts[1].Read(t.Context(), 0, 1); len(state.Pending()) != 1 || !errors.Is(err, tier.ErrNotTiered) {
			t.Errorf("read of an unfinished upload: %v", err)
		}
		w.events.SetDown(true)
		w.parts[1].Close()
		w.reopen(t, 1)
		if _, err := w.parts[1].Read(t.Context(), 0, 1); !errors.Is(err, tier.ErrUnknown) {
			t.Errorf("read before the state is known: %v", err)
		}
		w.close(t)
	},
	"KAFKA-17766": func(t *testing.T) {
		w := newPair(t)
		w.lead(0, 1)
		w.fill(t, 100)
		settle()
		never := make(chan struct{})
		w.store.SetFault(func(tiertest.Op) tiertest.Fault { return tiertest.Fault{Stall: never} })
		w.events.SetFault(func(log.PartitionID) tiertest.EventFault { return tiertest.EventLost })
		w.fill(t, 100)
		var wg sync.WaitGroup
		var closed atomic.Int32
		for i := range 10 {
			wg.Go(func() {
				if _, err := w.parts[0].Read(t.Context(), log.Offset(i*5), 1); errors.Is(err, tier.ErrClosed) {
					closed.Add(1)
				}
			})
		}
		trim := make(chan error, 1)
		go func() { trim <- w.parts[0].TrimTo(t.Context(), 10, "") }()
		settle()
		began := time.Now()
		w.close(t)
		wg.Wait()
		if err := <-trim; !errors.Is(err, tier.ErrClosed) {
			t.Errorf("trim at Close: %v", err)
		}
		if took := time.Since(began); took > time.Second || closed.Load() != 10 {
			t.Errorf("Close took %v, %d of 10 readers heard of it", took, closed.Load())
		}
	},
	"KAFKA-17236": func(t *testing.T) {
		r := newRig(t, tier.Options{Partition: tier.PartitionOptions{LocalRetentionBytes: -1}})
		r.fill(100)
		settle()
		puts := r.store.Counts().Put
		o := tier.PartitionOptions{HighWatermark: r.hot.DurableEnd, LocalRetentionBytes: 1, Tiered: false}
		if err := r.tier.Partition().SetOptions(o); err != nil {
			t.Fatal(err)
		}
		r.fill(100)
		time.Sleep(time.Hour)
		if r.hot.LocalStart() != 0 || r.store.Counts().Put != puts {
			t.Errorf("tiering is off: local start %d, %d uploads", r.hot.LocalStart(), r.store.Counts().Put-puts)
		}
		r.check(0)
		r.close()
	},
}

// handOff reads all the time while records turn from hot to cold: no offset is
// missed, seen twice or refused.
func handOff(t *testing.T) {
	r := newRig(t, tier.Options{ChunkBytes: 4 << 10, Partition: tier.PartitionOptions{LocalRetentionBytes: 5000}})
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			at := log.Offset(0)
			for {
				for rec, err := range r.tier.Records(t.Context(), at) {
					if err != nil || rec.Offset != at || string(rec.Value) != string(value(int(at))) {
						t.Errorf("offset %d: got %d, %v", at, rec.Offset, err)
						return
					}
					at++
					if at%16 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
				select {
				case <-done:
					if at >= r.tier.End() {
						return
					}
				default:
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	for range 60 {
		r.fill(10)
		time.Sleep(4 * time.Millisecond)
	}
	close(done)
	wg.Wait()
	if r.hot.LocalStart() == 0 {
		t.Error("nothing turned cold")
	}
	r.close()
}

// backlog: what waits is counted from state and segments, so it is right while
// uploads are broken.
func backlog(t *testing.T) {
	r := newRig(t, tier.Options{})
	r.store.SetDown(true)
	r.fill(100)
	settle()
	bytes1, n1 := r.tier.Partition().Backlog()
	r.fill(100)
	settle()
	bytes2, n2 := r.tier.Partition().Backlog()
	want, ranges := int64(0), 0
	for _, s := range r.hot.Segments() {
		if s.Sealed {
			want += s.Bytes
			ranges++
		}
	}
	if n1 == 0 || n2 <= n1 || bytes2 <= bytes1 || bytes2 != want || n2 != ranges {
		t.Errorf("backlog %d in %d, then %d in %d, want %d in %d", bytes1, n1, bytes2, n2, want, ranges)
	}
	r.close()
}

// deposed: a leader whose upload was under way when another one took over.
func deposed(t *testing.T) {
	w := newPair(t)
	stall := make(chan struct{})
	w.store.SetFault(func(op tiertest.Op) tiertest.Fault {
		if op.Kind == "put" && isSegment(op) {
			return tiertest.Fault{Stall: stall}
		}
		return tiertest.Fault{}
	})
	w.lead(0, 1)
	w.fill(t, 100)
	settle()
	w.store.SetFault(nil)
	w.lead(1, 2) // and nobody tells the first
	settle()
	close(stall)
	settle()
	if leading, _, err := w.parts[0].Status(); leading || !errors.Is(err, tier.ErrFenced) {
		t.Errorf("the deposed leader: leading %v, %v", leading, err)
	}
	time.Sleep(2 * time.Hour)
	w.noOrphans(t, 1)
	w.close(t)
}

// readBudget: many readers of many objects together stay inside the budgets.
func readBudget(t *testing.T) {
	r := newRig(t, tier.Options{ChunkBytes: 4 << 10, Reads: 3, ReadBytes: 9000})
	r.fill(600)
	settle()
	var peak atomic.Int32
	r.store.SetDelay(10 * time.Millisecond)
	r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
		if op.Kind == "get" {
			n := int32(r.store.Active())
			for {
				old := peak.Load()
				if n <= old || peak.CompareAndSwap(old, n) {
					break
				}
			}
		}
		return tiertest.Fault{}
	})
	end := r.tier.Partition().View().TierEnd
	var wg sync.WaitGroup
	var failed atomic.Int32
	for i := range 100 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i)*20*time.Millisecond)
			defer cancel()
			if _, err := r.tier.Read(ctx, log.Offset(int(end)*i/100), 1); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				failed.Add(1)
			}
		})
	}
	wg.Wait()
	time.Sleep(time.Minute)
	if requests, bytes := r.tier.Manager().BudgetsUsed(); peak.Load() > 3 || failed.Load() > 0 || requests != 0 || bytes != 0 {
		t.Errorf("%d requests at once, %d readers failed, %d requests and %d bytes held at the end", peak.Load(), failed.Load(), requests, bytes)
	}
	r.close()
}
