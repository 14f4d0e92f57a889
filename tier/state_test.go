package tier

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/cordwood-io/cordwood/log"
)

// A step of a state test: an event body in the sequence the state expects, and
// the verdict. The zero epoch means that of the last barrier.
type stateStep struct {
	body Body
	want Verdict
}

func finish(id byte, epochs ...log.EpochStart) CopyFinished {
	return CopyFinished{ID: ID{id}, BatchBytes: 100, ObjectBytes: 300, TailBytes: 100, Sealed: ms(1), MaxTimestamp: ms(1), Lineage: epochs}
}

func start(id byte, base, end log.Offset) CopyStarted {
	return CopyStarted{ID: ID{id}, Base: base, End: end, Deadline: ms(1000)}
}

func logStart(s log.Offset) LogStart {
	return LogStart{Start: s, Cause: Cause{Kind: CauseRequest}}
}

func ids(bs ...byte) []ID {
	var out []ID
	for _, b := range bs {
		out = append(out, ID{b})
	}
	return out
}

func TestStateTable(t *testing.T) {
	epoch := func(e log.Epoch, s log.Offset) log.EpochStart { return log.EpochStart{Epoch: e, Start: s} }
	tests := []struct {
		name  string
		steps []stateStep
		check string // logStart tierEnd ranges pending
	}{
		{"copy", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}}, "0 10 [[0,10)] []"},
		{"unfinished counts for nothing", []stateStep{{start(1, 0, 10), Applied}}, "0 0 [] [[0,10)]"},
		{"two ranges", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {start(2, 10, 15), Applied}, {finish(2), Applied}}, "0 15 [[0,10) [10,15)] []"},
		{"finished without started", []stateStep{{finish(1), RefusedID}}, "0 0 [] []"},
		{"finished twice", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {finish(1), RefusedID}}, "0 10 [[0,10)] []"},
		{"started twice", []stateStep{{start(1, 0, 10), Applied}, {start(1, 0, 10), RefusedID}}, "0 0 [] [[0,10)]"},
		{"started with the id of a range", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {start(1, 10, 20), RefusedID}}, "0 10 [[0,10)] []"},
		{"gap", []stateStep{{start(1, 5, 10), Applied}, {finish(1), RefusedGap}}, "0 0 [] [[5,10)]"},
		{"overlap", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {start(2, 5, 20), Applied}, {finish(2), RefusedGap}}, "0 10 [[0,10)] [[5,20)]"},
		{"same range twice", []stateStep{{start(1, 0, 10), Applied}, {start(2, 0, 10), Applied}, {finish(1), Applied}, {finish(2), RefusedGap}}, "0 10 [[0,10)] [[0,10)]"},
		{"batch cut by the log start", []stateStep{{logStart(7), Applied}, {start(1, 5, 10), Applied}, {finish(1), Applied}}, "7 10 [[5,10)] []"},
		{"from below the log start", []stateStep{{logStart(7), Applied}, {start(1, 0, 7), Applied}, {finish(1), RefusedGap}}, "7 7 [] [[0,7)]"},
		{"log start passes an upload", []stateStep{{start(1, 0, 10), Applied}, {logStart(10), Applied}, {finish(1), RefusedGap}}, "10 10 [] [[0,10)]"},
		{"log start inside an upload", []stateStep{{start(1, 0, 10), Applied}, {logStart(9), Applied}, {finish(1), Applied}}, "9 10 [[0,10)] []"},
		{"log start in the tier", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {logStart(4), Applied}}, "4 10 [[0,10)] []"},
		{"log start never falls", []stateStep{{logStart(7), Applied}, {logStart(7), RefusedLogStart}, {logStart(3), RefusedLogStart}}, "7 7 [] []"},
		{"log start at a range's end", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {start(2, 10, 20), Applied}, {finish(2), Applied}, {logStart(10), Applied}}, "10 20 [[10,20)] []"},
		{"delete a live range", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {logStart(9), Applied}, {DeleteStarted{ids(1)}, RefusedLive}}, "9 10 [[0,10)] []"},
		{"delete before the log start", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {DeleteStarted{ids(1)}, RefusedLive}}, "0 10 [[0,10)] []"},
		{"delete", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {logStart(10), Applied}, {DeleteStarted{ids(1)}, Applied}}, "10 10 [] [[0,10)deleting,finished]"},
		{"deleted", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {logStart(10), Applied}, {DeleteStarted{ids(1)}, Applied}, {DeleteFinished{ids(1)}, Applied}}, "10 10 [] []"},
		{"delete again", []stateStep{{start(1, 0, 10), Applied}, {DeleteStarted{ids(1)}, Applied}, {DeleteStarted{ids(1)}, Applied}}, "0 0 [] [[0,10)deleting]"},
		{"give an upload up", []stateStep{{start(1, 0, 10), Applied}, {DeleteStarted{ids(1)}, Applied}, {finish(1), RefusedPhase}, {DeleteFinished{ids(1)}, Applied}}, "0 0 [] []"},
		{"retry with another id", []stateStep{{start(1, 0, 10), Applied}, {DeleteStarted{ids(1)}, Applied}, {start(2, 0, 10), Applied}, {finish(2), Applied}}, "0 10 [[0,10)] [[0,10)deleting]"},
		{"delete finished too early", []stateStep{{start(1, 0, 10), Applied}, {DeleteFinished{ids(1)}, RefusedPhase}}, "0 0 [] [[0,10)]"},
		{"delete finished of a range", []stateStep{{start(1, 0, 10), Applied}, {finish(1), Applied}, {DeleteFinished{ids(1)}, RefusedID}}, "0 10 [[0,10)] []"},
		{"delete finished twice", []stateStep{{start(1, 0, 10), Applied}, {DeleteStarted{ids(1)}, Applied}, {DeleteFinished{ids(1)}, Applied}, {DeleteFinished{ids(1)}, RefusedID}}, "0 0 [] []"},
		{"delete of nothing", []stateStep{{DeleteStarted{ids(1)}, RefusedID}}, "0 0 [] []"},
		{"delete all or nothing", []stateStep{{start(1, 0, 10), Applied}, {DeleteStarted{ids(1, 2)}, RefusedID}}, "0 0 [] [[0,10)]"},
		{"delete finished all or nothing", []stateStep{{start(1, 0, 10), Applied}, {start(2, 0, 10), Applied}, {DeleteStarted{ids(1)}, Applied}, {DeleteFinished{ids(1, 2)}, RefusedPhase}}, "0 0 [] [[0,10)deleting [0,10)]"},
		{"delete of the second of two", []stateStep{{start(1, 0, 5), Applied}, {finish(1), Applied}, {start(2, 5, 9), Applied}, {finish(2), Applied}, {logStart(9), Applied}, {DeleteStarted{ids(2)}, Applied}, {DeleteStarted{ids(1)}, Applied}}, "9 9 [] [[5,9)deleting,finished [0,5)deleting,finished]"},
		{"lineage goes on", []stateStep{{start(1, 0, 10), Applied}, {finish(1, epoch(1, 0), epoch(3, 5)), Applied}, {start(2, 10, 20), Applied}, {finish(2, epoch(3, 5), epoch(4, 12)), Applied}}, "0 20 [[0,10) [10,20)] []"},
		{"lineage falls", []stateStep{{start(1, 0, 10), Applied}, {finish(1, epoch(3, 0)), Applied}, {start(2, 10, 20), Applied}, {finish(2, epoch(2, 10)), RefusedLineage}}, "0 10 [[0,10)] [[10,20)]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var s State
			s.Apply(Event{Epoch: 5, Body: Barrier{}})
			for i, step := range test.steps {
				before := s.Clone()
				v := s.Apply(Event{Epoch: 5, Seq: uint64(i + 1), Body: step.body})
				if v != step.want {
					t.Fatalf("step %d (%T): %v, want %v", i, step.body, v, step.want)
				}
				if s.Seq() != uint64(i+1) {
					t.Fatalf("step %d: sequence number %d", i, s.Seq())
				}
				if v != Applied {
					before.seq++
					if !s.Equal(before) {
						t.Fatalf("step %d was refused and changed the state", i)
					}
				}
				checkState(t, &s)
			}
			if got := describe(&s); got != test.check {
				t.Errorf("state %s, want %s", got, test.check)
			}
		})
	}
}

func describe(s *State) string {
	var ranges, pending []string
	for _, r := range s.Ranges() {
		ranges = append(ranges, fmt.Sprintf("[%d,%d)", r.Base, r.End))
	}
	for _, p := range s.Pending() {
		d := fmt.Sprintf("[%d,%d)", p.Base, p.End)
		if p.Deleting {
			d += "deleting"
		}
		if p.Finished {
			d += ",finished"
		}
		pending = append(pending, d)
	}
	return fmt.Sprintf("%d %d %v %v", s.LogStart(), s.TierEnd(), ranges, pending)
}

// checkState holds a state against what must always be true of it.
func checkState(t *testing.T, s *State) {
	t.Helper()
	end := log.Offset(-1)
	var bytes int64
	seen := map[ID]bool{}
	for i, r := range s.ranges {
		if r.End <= end {
			t.Fatalf("range %d ends at %d, the one before at %d", i, r.End, end)
		}
		if (r.End > s.logStart) != (i >= s.live) {
			t.Fatalf("range %d ends at %d, log start %d, live from %d", i, r.End, s.logStart, s.live)
		}
		if i > s.live && r.Base != end {
			t.Fatalf("gap between %d and %d", end, r.Base)
		}
		if i >= s.live {
			bytes += r.BatchBytes
		}
		end = r.End
		seen[r.ID] = true
	}
	if s.Len() > 0 && (s.tierEnd != end || s.ranges[s.live].Base > s.logStart) {
		t.Fatalf("live ranges are [%d, %d), log start %d, tier end %d", s.ranges[s.live].Base, end, s.logStart, s.tierEnd)
	}
	if s.Len() == 0 && s.tierEnd != s.logStart && s.tierEnd > s.logStart {
		t.Fatalf("nothing covers [%d, %d)", s.logStart, s.tierEnd)
	}
	if bytes != s.liveBytes || s.tierEnd < s.logStart {
		t.Fatalf("live bytes %d, want %d; tier end %d, log start %d", s.liveBytes, bytes, s.tierEnd, s.logStart)
	}
	for _, p := range s.pending {
		if seen[p.ID] {
			t.Fatalf("id %v is in two places", p.ID)
		}
		seen[p.ID] = true
	}
	if !validLineage(s.lineage) {
		t.Fatalf("lineage %v", s.lineage)
	}
	for off := s.logStart; off < min(s.tierEnd, s.logStart+100); off++ {
		if r, ok := s.Lookup(off); !ok || r.Base > off || r.End <= off {
			t.Fatalf("Lookup(%d): %+v, %v", off, r, ok)
		}
	}
	for _, off := range []log.Offset{s.logStart - 1, s.tierEnd, -1} {
		if _, ok := s.Lookup(off); ok {
			t.Fatalf("Lookup(%d) found something outside of [%d, %d)", off, s.logStart, s.tierEnd)
		}
	}
}

func TestStateFence(t *testing.T) {
	var s State
	if s.Epoch() != -1 {
		t.Errorf("Epoch of a new state: %d", s.Epoch())
	}
	steps := []struct {
		epoch log.Epoch
		seq   uint64
		body  Body
		want  Verdict
	}{
		{0, 1, start(1, 0, 10), IgnoredEpoch}, // no barrier yet
		{0, 0, Barrier{}, Applied},
		{0, 0, Barrier{}, IgnoredBarrier},
		{0, 2, start(1, 0, 10), IgnoredSeq},
		{0, 1, start(1, 0, 10), Applied},
		{0, 1, start(1, 0, 10), IgnoredSeq}, // sent twice
		{0, 0, Barrier{}, IgnoredBarrier},   // re-sent or a read fence: the sequence goes on
		{3, 1, finish(1), IgnoredEpoch},     // of a leader whose barrier is not here
		{3, 0, Barrier{}, Applied},
		{0, 2, finish(1), IgnoredEpoch}, // late, of the deposed leader
		{2, 0, Barrier{}, IgnoredBarrier},
		{3, 2, finish(1), IgnoredSeq}, // the sequence began anew
		{3, 1, finish(1), Applied},
		{3, 1, logStart(5), IgnoredSeq},
		{3, 3, logStart(5), IgnoredSeq},
		{3, 2, logStart(5), Applied},
	}
	for i, step := range steps {
		before := s.Clone()
		if v := s.Apply(Event{Epoch: step.epoch, Seq: step.seq, Body: step.body}); v != step.want {
			t.Fatalf("step %d: %v, want %v", i, v, step.want)
		}
		if !step.want.Taken() && !s.Equal(before) {
			t.Fatalf("step %d was ignored and changed the state", i)
		}
	}
	if got, want := describe(&s), "5 10 [[0,10)] []"; got != want || s.Epoch() != 3 || s.Seq() != 2 {
		t.Errorf("state %s in epoch %d, sequence %d, want %s in 3, 2", got, s.Epoch(), s.Seq(), want)
	}
}

func TestStateLineage(t *testing.T) {
	e := func(n log.Epoch, s log.Offset) log.EpochStart { return log.EpochStart{Epoch: n, Start: s} }
	var s State
	s.Apply(Event{Epoch: 0, Body: Barrier{}})
	seq := uint64(0)
	do := func(b Body) {
		t.Helper()
		seq++
		if v := s.Apply(Event{Seq: seq, Body: b}); v != Applied {
			t.Fatalf("%T: %v", b, v)
		}
	}
	do(start(1, 0, 10))
	do(finish(1, e(1, 0), e(3, 5)))
	do(start(2, 10, 20))
	do(finish(2, e(3, 5)))
	do(start(3, 20, 30))
	shared := s.Lineage()
	do(finish(3, e(3, 5), e(4, 25)))
	if want := []log.EpochStart{e(1, 0), e(3, 5)}; !slices.Equal(shared, want) {
		t.Errorf("a lineage that was handed out changed to %v", shared)
	}
	if want := []log.EpochStart{e(1, 0), e(3, 5), e(4, 25)}; !slices.Equal(s.Lineage(), want) {
		t.Errorf("lineage %v, want %v", s.Lineage(), want)
	}
	do(logStart(5))
	do(logStart(24))
	if want := []log.EpochStart{e(3, 5), e(4, 25)}; !slices.Equal(s.Lineage(), want) {
		t.Errorf("lineage %v, want %v", s.Lineage(), want)
	}
}

// TestStateRandom applies random events, most of them sensible, twice over: the
// state keeps its invariants, and a replica that sees re-sent copies is the same.
func TestStateRandom(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { stateRandom(t, seed) })
	}
}

func stateRandom(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 4))
	var s, twin State
	epoch := log.Epoch(0)
	var last, taken []Event
	nextID := byte(1)
	newest := log.Epoch(0) // of the records in the tier
	for range 200 {
		e := Event{Epoch: epoch, Seq: s.Seq() + 1}
		switch r.IntN(12) {
		case 0:
			if r.IntN(3) == 0 {
				epoch++
			}
			e = Event{Epoch: epoch, Body: Barrier{}}
		case 1, 2, 3:
			base := s.TierEnd() + log.Offset(r.IntN(3)-1)
			e.Body = start(nextID, max(0, base), max(0, base)+1+log.Offset(r.IntN(8)))
			nextID++
		case 4, 5, 6:
			if all := s.Pending(); len(all) > 0 {
				p := all[r.IntN(len(all))]
				e.Body = finish(p.ID[0], log.EpochStart{Epoch: max(0, newest+log.Epoch(r.IntN(3)-1)), Start: p.Base})
			} else {
				e.Body = finish(nextID)
			}
		case 7:
			e.Body = logStart(s.LogStart() + log.Offset(r.IntN(8)))
		case 8:
			var del []ID
			for _, x := range s.Expired(3) {
				del = append(del, x.ID)
			}
			for _, p := range s.Pending() {
				if r.IntN(4) == 0 {
					del = append(del, p.ID)
				}
			}
			if del == nil {
				del = ids(nextID)
			}
			e.Body = DeleteStarted{del}
		case 9:
			if p := s.Pending(); len(p) > 0 {
				e.Body = DeleteFinished{[]ID{p[r.IntN(len(p))].ID}}
			} else {
				e.Body = DeleteFinished{ids(1)}
			}
		case 10:
			e.Seq += uint64(r.IntN(3))
			e.Body = logStart(s.LogStart() + 1)
		case 11:
			if len(last) == 0 {
				continue
			}
			e = last[r.IntN(len(last))]
		}
		last = append(last, e)
		v := s.Apply(e)
		if v.Taken() {
			taken = append(taken, e)
		}
		if f, ok := e.Body.(CopyFinished); ok && v == Applied {
			if f.Lineage[0].Epoch < newest {
				t.Fatalf("records of epoch %d follow those of %d", f.Lineage[0].Epoch, newest)
			}
			newest = f.Lineage[0].Epoch
		}
		twin.Apply(e)
		if n := len(taken); n > 2 && r.IntN(2) == 0 {
			twin.Apply(taken[n-1-r.IntN(3)]) // sent once more
		}
		if r.IntN(10) == 0 { // the state as bytes is the state
			b := s.encode(nil)
			n, err := decodeState(b)
			if err != nil {
				t.Fatalf("%v\n%s", err, describe(&s))
			}
			n.manifest = s.manifest
			if !n.Equal(&s) || n.live != s.live || n.liveBytes != s.liveBytes || !bytes.Equal(n.encode(nil), b) {
				t.Fatalf("decoded\n%s\nwant\n%s", describe(n), describe(&s))
			}
			checkState(t, n)
			if s.Epoch() >= 0 {
				// Who knows nothing comes to the same state by a checkpoint, and so does
				// who knows all.
				e := Event{Epoch: s.Epoch(), Seq: s.Seq() + 1, Body: s.checkpoint()}
				var late State
				if !late.newer(e) {
					t.Fatal("a checkpoint is not newer than nothing")
				}
				if err := late.load(e, e.Body.(Checkpoint).State); err != nil {
					t.Fatal(err)
				}
				if v, w := s.Apply(e), twin.Apply(e); v != Applied || w != Applied || !late.Equal(&s) || late.newer(e) {
					t.Fatalf("checkpoint %v, %v", v, w)
				}
				other := e.Body.(Checkpoint)
				other.Hash[0]++
				if v := twin.Clone().Apply(Event{Epoch: s.Epoch(), Seq: s.Seq() + 1, Body: other}); v != RefusedState {
					t.Fatalf("checkpoint of another state: %v", v)
				}
			}
		}
		checkState(t, &s)
		if !s.Equal(&twin) {
			t.Fatalf("replicas differ:\n%s\n%s", describe(&s), describe(&twin))
		}
	}
}

func TestStateMemory(t *testing.T) {
	const n = 100_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := &State{}
	s.Apply(Event{Body: Barrier{}})
	seq := uint64(0)
	for i := range n {
		id := ID{byte(i), byte(i >> 8), byte(i >> 16), 1}
		seq++
		s.Apply(Event{Seq: seq, Body: CopyStarted{ID: id, Base: log.Offset(i), End: log.Offset(i + 1), Deadline: ms(1)}})
		seq++
		f := finish(0, log.EpochStart{Epoch: 1, Start: 0})
		f.ID = id
		s.Apply(Event{Seq: seq, Body: f})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if s.Len() != n {
		t.Fatalf("%d ranges, want %d", s.Len(), n)
	}
	t.Logf("%d bytes", int64(after.HeapAlloc)-int64(before.HeapAlloc))
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 32<<20 {
		t.Errorf("%d ranges take %d bytes, want at most 32 MiB", n, used)
	}
	runtime.KeepAlive(s)
	if size := reflect.TypeFor[Range]().Size(); size > 160 {
		t.Errorf("a Range has %d bytes", size)
	}
}

// testState is a state with everything in it.
func testState(t testing.TB) *State {
	t.Helper()
	s := &State{}
	apply := func(e Event) {
		if v := s.Apply(e); v != Applied {
			t.Fatalf("%T: %v", e.Body, v)
		}
	}
	apply(Event{Epoch: 3, Body: Barrier{}})
	for _, b := range []Body{
		start(1, 0, 10), finish(1, log.EpochStart{Epoch: 1}), start(2, 10, 25), finish(2, log.EpochStart{Epoch: 1}, log.EpochStart{Epoch: 3, Start: 12}),
		start(3, 25, 30), finish(3), logStart(12), start(4, 30, 40), DeleteStarted{ids(1)}, start(5, 30, 41),
	} {
		apply(Event{Epoch: 3, Seq: s.Seq() + 1, Body: b})
	}
	return s
}

func TestStateDamage(t *testing.T) {
	b := testState(t).encode(nil)
	for i := range b {
		for _, bit := range []byte{1, 0x80} {
			c := bytes.Clone(b)
			c[i] ^= bit
			if _, err := decodeState(c); err == nil {
				t.Errorf("byte %d flipped: no error", i)
			}
		}
		if _, err := decodeState(b[:i]); err == nil {
			t.Errorf("%d bytes of %d: no error", i, len(b))
		}
	}
}

// resealState gives changed bytes a right checksum.
func resealState(b []byte) []byte {
	if len(b) < 4 {
		return b
	}
	return binary.BigEndian.AppendUint32(b[:len(b)-4:len(b)-4], crc32.Checksum(b[:len(b)-4], castagnoli))
}

func FuzzDecodeState(f *testing.F) {
	f.Add(testState(f).encode(nil))
	f.Add((&State{}).encode(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeState(resealState(b))
		if err != nil {
			return
		}
		again, err := decodeState(s.encode(nil))
		if err != nil || !again.Equal(s) {
			t.Errorf("round trip: %v", err)
		}
	})
}

func FuzzStateFile(f *testing.F) {
	f.Add([]byte(stateFileMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = parseStateFile(resealState(b), ID{1})
	})
}
