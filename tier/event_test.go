package tier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier/internal/tierpb"
)

var testPartition = log.PartitionID{Topic: log.TopicID{1, 2, 3}, Index: 7}

func ms(n int64) time.Time { return time.UnixMilli(n) }

func testEvents() []Event {
	id := ID{1}
	bodies := []Body{
		Barrier{},
		CopyStarted{ID: id, Base: 0, End: 10, Deadline: ms(5000)},
		CopyFinished{ID: id, BatchBytes: 100, ObjectBytes: 400, TailBytes: 150, MaxTimestamp: ms(0), Sealed: ms(77), CRC32C: 0xdeadbeef, Unsure: true,
			Lineage: []log.EpochStart{{Epoch: 0, Start: 0}, {Epoch: 4, Start: 5}}},
		DeleteStarted{IDs: []ID{{1}, {2}}},
		DeleteFinished{IDs: []ID{{9}}},
		LogStart{Start: 12, Cause: Cause{Kind: CauseBytes, Bytes: 1 << 30, Note: "policy 3"}},
		LogStart{Start: 12, Cause: Cause{Kind: CauseAge, Age: time.Hour}},
		LogStart{Start: 12, Cause: Cause{Kind: CauseRequest}, Until: ms(8000)},
		Deleted{},
		Deleted{Until: ms(8000), Quiet: ms(7000)},
		Forgotten{},
		Checkpoint{State: []byte("state"), Bytes: 5, Hash: [32]byte{7}},
		Checkpoint{Manifest: ID{3}, Bytes: 1 << 20, Hash: [32]byte{8}},
	}
	var events []Event
	for i, b := range bodies {
		e := Event{Partition: testPartition, Epoch: 3, Seq: uint64(i), Body: b}
		events = append(events, e)
	}
	return events
}

func TestEventRoundTrip(t *testing.T) {
	for _, e := range testEvents() {
		b, err := EncodeEvent(e)
		if err != nil {
			t.Fatalf("%T: %v", e.Body, err)
		}
		got, err := DecodeEvent(b)
		if err != nil {
			t.Fatalf("%T: %v", e.Body, err)
		}
		if !reflect.DeepEqual(got, e) {
			t.Errorf("%T: got %+v, want %+v", e.Body, got, e)
		}
	}
}

func TestEventDamage(t *testing.T) {
	for _, e := range testEvents() {
		b, err := EncodeEvent(e)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			for bit := range 8 {
				c := bytes.Clone(b)
				c[i] ^= 1 << bit
				if _, err := DecodeEvent(c); err == nil {
					t.Fatalf("%T: bit %d of byte %d flipped and not noticed", e.Body, bit, i)
				}
			}
		}
		for n := range b {
			if _, err := DecodeEvent(b[:n]); !errors.Is(err, ErrInvalidEvent) {
				t.Fatalf("%T cut to %d bytes: %v", e.Body, n, err)
			}
		}
		if _, err := DecodeEvent(append(bytes.Clone(b), 0)); !errors.Is(err, ErrInvalidEvent) {
			t.Fatalf("%T with a byte too much: %v", e.Body, err)
		}
	}
}

// reseal recomputes the checksum after a change.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[12:], eventSum(b))
	return b
}

func TestEventOfNewerVersionStops(t *testing.T) {
	b, err := EncodeEvent(testEvents()[1])
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(b []byte)
		want   int
	}{
		{"version", func(b []byte) { binary.BigEndian.PutUint16(b[4:], 3) }, 3},
		{"kind", func(b []byte) { binary.BigEndian.PutUint16(b[6:], 10) }, 10},
	}
	for _, test := range tests {
		c := bytes.Clone(b)
		test.change(c)
		_, err := DecodeEvent(reseal(c))
		var v *VersionError
		if !errors.As(err, &v) || v.Version != test.want {
			t.Errorf("%s: %v, want a VersionError with %d", test.name, err, test.want)
		}
	}
}

func TestEventRefused(t *testing.T) {
	good := testEvents()
	long := make([]ID, maxEventIDs+1)
	for i := range long {
		long[i] = ID{1}
	}
	tests := []struct {
		name string
		e    Event
	}{
		{"no body", Event{Partition: testPartition, Seq: 1}},
		{"negative epoch", Event{Partition: testPartition, Epoch: -1, Body: Barrier{}}},
		{"negative partition", Event{Partition: log.PartitionID{Index: -1}, Body: Barrier{}}},
		{"barrier with a sequence number", Event{Seq: 1, Body: Barrier{}}},
		{"no sequence number", Event{Body: good[1].Body}},
		{"zero id", Event{Seq: 1, Body: CopyStarted{Base: 0, End: 1}}},
		{"empty range", Event{Seq: 1, Body: CopyStarted{ID: ID{1}, Base: 1, End: 1}}},
		{"negative base", Event{Seq: 1, Body: CopyStarted{ID: ID{1}, Base: -1, End: 1}}},
		{"tail above the object", Event{Seq: 1, Body: CopyFinished{ID: ID{1}, BatchBytes: 1, ObjectBytes: 5, TailBytes: 5}}},
		{"no batches", Event{Seq: 1, Body: CopyFinished{ID: ID{1}, ObjectBytes: 5, TailBytes: 4}}},
		{"lineage falls", Event{Seq: 1, Body: CopyFinished{ID: ID{1}, BatchBytes: 1, ObjectBytes: 5, TailBytes: 4, Lineage: []log.EpochStart{{Epoch: 2, Start: 0}, {Epoch: 1, Start: 5}}}}},
		{"no ids", Event{Seq: 1, Body: DeleteStarted{}}},
		{"too many ids", Event{Seq: 1, Body: DeleteStarted{IDs: long}}},
		{"zero among the ids", Event{Seq: 1, Body: DeleteFinished{IDs: []ID{{1}, {}}}}},
		{"log start without a cause", Event{Seq: 1, Body: LogStart{Start: 5}}},
		{"log start of an unknown cause", Event{Seq: 1, Body: LogStart{Start: 5, Cause: Cause{Kind: 99}}}},
		{"negative log start", Event{Seq: 1, Body: LogStart{Start: -5, Cause: Cause{Kind: CauseAge}}}},
	}
	for _, test := range tests {
		if _, err := EncodeEvent(test.e); !errors.Is(err, ErrInvalidEvent) {
			t.Errorf("%s: %v, want ErrInvalidEvent", test.name, err)
		}
	}
}

// TestEventForgedBody holds decoding against bodies that EncodeEvent never writes.
func TestEventForgedBody(t *testing.T) {
	envelope := func(kind eventKind, m *tierpb.Event) []byte {
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, eventHeaderBytes)
		copy(b, eventMagic)
		binary.BigEndian.PutUint16(b[4:], eventVersion)
		binary.BigEndian.PutUint16(b[6:], uint16(kind))
		binary.BigEndian.PutUint32(b[8:], uint32(len(body)))
		return reseal(append(b, body...))
	}
	topic := make([]byte, 16)
	tests := map[string][]byte{
		"short topic":      envelope(kindBarrier, &tierpb.Event{Topic: topic[:3], Body: &tierpb.Event_Barrier{}}),
		"no body":          envelope(kindBarrier, &tierpb.Event{Topic: topic}),
		"empty body":       envelope(kindCopyStarted, &tierpb.Event{Topic: topic, Seq: 1, Body: &tierpb.Event_CopyStarted{}}),
		"another kind":     envelope(kindCopyStarted, &tierpb.Event{Topic: topic, Body: &tierpb.Event_Barrier{Barrier: &tierpb.Barrier{}}}),
		"short id":         envelope(kindDeleteStarted, &tierpb.Event{Topic: topic, Seq: 1, Body: &tierpb.Event_DeleteStarted{DeleteStarted: &tierpb.DeleteStarted{Ids: [][]byte{{1}}}}}),
		"no cause":         envelope(kindLogStart, &tierpb.Event{Topic: topic, Seq: 1, Body: &tierpb.Event_LogStart{LogStart: &tierpb.LogStart{Start: 3}}}),
		"age overflows":    envelope(kindLogStart, &tierpb.Event{Topic: topic, Seq: 1, Body: &tierpb.Event_LogStart{LogStart: &tierpb.LogStart{Start: 3, Cause: &tierpb.Cause{Kind: 2, LimitMs: 1<<63 - 1}}}}),
		"not protobuf":     reseal(append(envelope(kindBarrier, &tierpb.Event{})[:8], 0, 0, 0, 2, 0, 0, 0, 0, 0xff, 0xff)),
		"deadline too far": envelope(kindCopyStarted, &tierpb.Event{Topic: topic, Seq: 1, Body: &tierpb.Event_CopyStarted{CopyStarted: &tierpb.CopyStarted{Id: topic, End: 1, DeadlineMs: 1<<63 - 1}}}),
	}
	for name, b := range tests {
		if _, err := DecodeEvent(b); !errors.Is(err, ErrInvalidEvent) {
			t.Errorf("%s: %v, want ErrInvalidEvent", name, err)
		}
	}
}

func TestIDText(t *testing.T) {
	id := newID()
	got, err := ParseID(id.String())
	if err != nil || got != id {
		t.Errorf("ParseID(%v): %v, %v", id, got, err)
	}
	for _, s := range []string{"", "x", id.String()[1:], id.String() + "0", "0123456789abcdef0123456789abcdef0123", "ABCDEF00-0000-4000-8000-000000000000"} {
		if _, err := ParseID(s); err == nil {
			t.Errorf("ParseID(%q) succeeded", s)
		}
	}
	if id[6]>>4 != 4 || id[8]>>6 != 2 {
		t.Errorf("newID: %v is not a version 4 UUID", id)
	}
}

func TestKeyPath(t *testing.T) {
	k := Key{Partition: testPartition, Base: 5, End: 1 << 40, Epoch: 3, ID: newID()}
	for _, prefix := range []string{"", "p", "a/b"} {
		path := k.Path(prefix)
		if err := CheckKey(path); err != nil {
			t.Error(err)
		}
		got, ok := ParseKey(prefix, path)
		if !ok || got != k {
			t.Errorf("ParseKey(%q, %q): %+v, %v", prefix, path, got, ok)
		}
		if _, ok := ParseKey(prefix+"x", path); ok {
			t.Errorf("ParseKey with another prefix took %q", path)
		}
		for _, other := range []string{"", prefix, OwnerKey(prefix), path + "0", path[:len(path)-1], "x/" + path} {
			if _, ok := ParseKey(prefix, other); ok {
				t.Errorf("ParseKey took %q", other)
			}
		}
	}
	if got := OwnerKey(""); got != "owner" {
		t.Errorf("OwnerKey: %q", got)
	}
}

func FuzzDecodeEvent(f *testing.F) {
	for _, e := range testEvents() {
		b, err := EncodeEvent(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		if len(b) >= eventHeaderBytes {
			// Most inputs should get past the checksum.
			if len(b)%2 == 0 {
				binary.BigEndian.PutUint32(b[8:], uint32(len(b)-eventHeaderBytes))
				reseal(b)
			}
		}
		e, err := DecodeEvent(b)
		if err != nil {
			return
		}
		again, err := EncodeEvent(e)
		if err != nil {
			t.Fatalf("decoded and can't be encoded: %+v: %v", e, err)
		}
		e2, err := DecodeEvent(again)
		if err != nil || !reflect.DeepEqual(e, e2) {
			t.Fatalf("round trip: %+v, %+v, %v", e, e2, err)
		}
		var s State
		s.Apply(Event{Partition: e.Partition, Epoch: e.Epoch, Body: Barrier{}})
		s.Apply(e)
		s.Apply(e)
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add("p", Key{Partition: testPartition, Base: 5, End: 10, Epoch: 3, ID: ID{1}}.Path("p"))
	f.Add("", OwnerKey(""))
	f.Fuzz(func(t *testing.T, prefix, path string) {
		if k, ok := ParseKey(prefix, path); ok && k.Path(prefix) != path {
			t.Errorf("%q parsed to %+v, whose path is %q", path, k, k.Path(prefix))
		}
		_ = CheckKey(path)
	})
}

func FuzzParseOwner(f *testing.F) {
	f.Add(ownerContent(ID{1, 2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := parseOwner(b); err == nil && !bytes.Equal(ownerContent(id), b) && binary.BigEndian.Uint16(b[6:]) == 0 {
			t.Errorf("%x parsed to %v", b, id)
		}
	})
}
