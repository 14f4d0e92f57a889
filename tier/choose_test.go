package tier

import (
	"testing"
	"time"
)

// Deletions that have failed are asked for after those that have not, and those that
// are parked only when their time has come: whatever their number, they hold up nobody.
func TestChoose(t *testing.T) {
	now := time.Unix(1000, 0)
	var pending []Pending
	refused := map[ID]refusal{}
	const bad = 3 * deleteBatch
	for i := range bad + 10 {
		c := Pending{ID: ID{byte(i), byte(i >> 8), 1}, End: 1, Deleting: true}
		pending = append(pending, c)
		if i < bad {
			refused[c.ID] = refusal{}.again(ErrDenied, now)
		}
	}
	ask := choose(pending, nil, refused, now)
	if len(ask) != deleteBatch {
		t.Fatalf("%d are asked for", len(ask))
	}
	for i, c := range ask {
		if _, failed := refused[c.ID]; failed != (i >= 10) {
			t.Errorf("number %d has failed: %v", i, failed)
		}
	}
	for id, r := range refused {
		for !r.parked() {
			r = r.again(ErrDenied, now)
		}
		refused[id] = r
	}
	if ask := choose(pending, nil, refused, now.Add(parkPause-1)); len(ask) != 10 {
		t.Errorf("%d are asked for while most are parked, want 10", len(ask))
	}
	if ask := choose(pending, nil, refused, now.Add(parkPause)); len(ask) != deleteBatch {
		t.Errorf("%d are asked for when the parked are due", len(ask))
	}
	// A store that is down parks nothing.
	r := refusal{}
	for _, err := range []error{ErrUnavailable, ErrUnknownOutcome, &ThrottledError{}} {
		for range 2 * parkAfter {
			r = r.again(err, now)
		}
	}
	if r.parked() {
		t.Error("an object is parked because the store was down")
	}
}

// A state without anything that is new keeps the bytes that it always had, and those
// of a newer one do not depend on how it came about.
func TestStateVersions(t *testing.T) {
	s := &State{}
	apply := func(want Verdict, seq uint64, b Body) {
		t.Helper()
		if v := s.Apply(Event{Partition: testPartition, Epoch: 3, Seq: seq, Body: b}); v != want {
			t.Fatalf("%T: %v, want %v", b, v, want)
		}
	}
	version := func(want byte) {
		t.Helper()
		b := s.encode(nil)
		if b[5] != want {
			t.Errorf("version %d, want %d", b[5], want)
		}
		back, err := decodeState(b)
		if err != nil || !back.Equal(s) {
			t.Errorf("%+v, %v, want %+v", back, err, s)
		}
	}
	put := func(seq uint64, id byte) {
		t.Helper()
		apply(Applied, seq, CopyStarted{ID: ID{id}, Base: s.TierEnd(), End: s.TierEnd() + 10, Deadline: ms(5000)})
		apply(Applied, seq+1, CopyFinished{ID: ID{id}, BatchBytes: 10, ObjectBytes: 40, TailBytes: 15, MaxTimestamp: ms(0), Sealed: ms(1)})
	}
	apply(Applied, 0, Barrier{})
	put(1, 1)
	put(3, 2)
	put(5, 3)
	apply(Applied, 7, LogStart{Start: 10, Cause: Cause{Kind: CauseRequest}})
	version(1)
	apply(Applied, 8, LogStart{Start: 20, Cause: Cause{Kind: CauseRequest}, Until: ms(9000)})
	version(2)
	if due, next := s.due(ms(8999), 10); len(due) != 1 || !next.Equal(ms(9000)) {
		t.Errorf("due %v, next %v", due, next)
	}
	if due, next := s.due(ms(9000), 10); len(due) != 2 || !next.IsZero() {
		t.Errorf("due %v, next %v", due, next)
	}
	apply(Applied, 9, DeleteStarted{IDs: []ID{{1}, {2}}})
	version(1)
	apply(RefusedKept, 10, Forgotten{})
	apply(Applied, 11, Deleted{Until: ms(7000), Quiet: ms(6000)})
	version(2)
	if s.LogStart() != 30 || s.Len() != 0 || s.Bytes() != 0 || len(s.Kept()) != 1 {
		t.Errorf("%+v", s)
	}
	apply(RefusedDeleted, 12, CopyStarted{ID: ID{9}, Base: 30, End: 40, Deadline: ms(1)})
	apply(RefusedDeleted, 13, LogStart{Start: 99, Cause: Cause{Kind: CauseRequest}})
	apply(RefusedDeleted, 14, Deleted{})
	apply(RefusedKept, 15, Forgotten{})
	apply(Applied, 16, DeleteStarted{IDs: []ID{{3}}})
	apply(RefusedKept, 17, Forgotten{})
	apply(Applied, 18, DeleteFinished{IDs: []ID{{1}, {2}, {3}}})
	apply(Applied, 19, Forgotten{})
	version(2)
}
