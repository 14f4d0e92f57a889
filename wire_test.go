package cordwood

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/replication"
)

var wirePartition = log.PartitionID{Topic: log.TopicID{1, 2, 3}, Index: 7}

func TestMessagesRoundTrip(t *testing.T) {
	a := appendRequest{partition: wirePartition, acks: replication.AcksLeader, batches: [][]byte{[]byte("one"), {}, []byte("three")}}
	if got, err := decodeAppendRequest(a.encode()); err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("append request: %+v, %v; want %+v", got, err, a)
	}
	r := readRequest{partition: wirePartition, from: 1 << 40, maxBytes: 1 << 20, wait: 3 * time.Second}
	if got, err := decodeReadRequest(r.encode()); err != nil || got != r {
		t.Errorf("read request: %+v, %v; want %+v", got, err, r)
	}
	h := readHeader{cold: true, start: 5, high: 9}
	if got, err := decodeReadHeader(h.encode()); err != nil || got != h {
		t.Errorf("read header: %+v, %v; want %+v", got, err, h)
	}
	o := Offsets{Start: 1, LocalStart: 2, TierEnd: 3, HighWatermark: 4, End: 5, Leader: 6, LeaderEpoch: 7}
	if got, remote, err := decodeOffsets(encodeOffsets(o, nil)); err != nil || remote != nil || got != o {
		t.Errorf("offsets: %+v, %v, %v; want %+v", got, remote, err, o)
	}
	if got, err := decodePartition(encodePartition(wirePartition)); err != nil || got != wirePartition {
		t.Errorf("partition: %+v, %v", got, err)
	}
	j := joinAnswer{cluster: NewID(), voters: []Voter{{1, "a:1"}, {2, ""}}}
	if got, err := decodeJoinAnswer(j.encode()); err != nil || !reflect.DeepEqual(got, j) {
		t.Errorf("join answer: %+v, %v; want %+v", got, err, j)
	}
	id := identity{node: 3, directory: NewID(), cluster: NewID(), voters: j.voters}
	if got, err := decodeIdentity("f", id.encode()); err != nil || !reflect.DeepEqual(got, id) {
		t.Errorf("identity: %+v, %v; want %+v", got, err, id)
	}
}

func TestAcksOutOfRange(t *testing.T) {
	b := appendRequest{partition: wirePartition, acks: replication.AcksNone + 1}.encode()
	if _, err := decodeAppendRequest(b); !errors.Is(err, errMalformed) {
		t.Errorf("acks that do not exist gave %v, want errMalformed", err)
	}
}

// Each error that a handle tells apart is the same on the other side.
func TestErrorsCross(t *testing.T) {
	check := func(err error, same func(error) bool) {
		t.Helper()
		rs, decodeErr := decodeAppendResults(encodeAppendResults([]appendResult{{err: err}, {appended: log.Appended{Base: 3, End: 5, Epoch: 2, Duplicate: true}}}))
		if decodeErr != nil || len(rs) != 2 || !same(rs[0].err) {
			t.Errorf("%v came out as %+v, %v", err, rs, decodeErr)
			return
		}
		if rs[1].err != nil || rs[1].appended != (log.Appended{Base: 3, End: 5, Epoch: 2, Duplicate: true}) {
			t.Errorf("the result after it came out as %+v", rs[1])
		}
	}
	for _, w := range wireErrors {
		check(fmt.Errorf("while testing: %w", w.err), func(err error) bool { return errors.Is(err, w.err) })
	}
	check(&replication.NotLeaderError{Leader: 3}, func(err error) bool {
		var e *replication.NotLeaderError
		return errors.As(err, &e) && e.Leader == 3 && retriable(err) && !mayHaveHappened(err)
	})
	check(&replication.IndeterminateError{Err: errors.New("x")}, func(err error) bool {
		return mayHaveHappened(err) && retriable(err)
	})
	check(&log.CorruptionError{Err: errors.New("x")}, func(err error) bool {
		return errors.As(err, new(*log.CorruptionError)) && !retriable(err)
	})
	check(errors.New("something else"), func(err error) bool { return err != nil && err.Error() == "something else" && !retriable(err) })
}

// FuzzMessages feeds every decoder with any bytes: none may panic, and what one
// accepts it must reproduce.
func FuzzMessages(f *testing.F) {
	f.Add(appendRequest{partition: wirePartition, batches: [][]byte{[]byte("x")}}.encode())
	f.Add(readRequest{partition: wirePartition, from: 9}.encode())
	f.Add(readHeader{err: ErrUnknownPartition}.encode())
	f.Add(encodeAppendResults([]appendResult{{err: errRetry}, {}}))
	f.Add(encodeOffsets(Offsets{End: 4}, nil))
	f.Add(joinAnswer{voters: []Voter{{1, "a"}}}.encode())
	f.Add(identity{node: 1, voters: []Voter{{1, "a"}}}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeAppendRequest(b); err == nil && !bytes.Equal(m.encode(), b) {
			t.Errorf("append request %x came back as %x", b, m.encode())
		}
		if m, err := decodeReadRequest(b); err == nil {
			if again, err := decodeReadRequest(m.encode()); err != nil || again != m {
				t.Errorf("read request %+v came back as %+v, %v", m, again, err)
			}
		}
		decodeReadHeader(b)
		decodeAppendResults(b)
		decodeOffsets(b)
		decodePartition(b)
		if m, err := decodeJoinAnswer(b); err == nil && !bytes.Equal(m.encode(), b) {
			t.Errorf("join answer %x came back as %x", b, m.encode())
		}
		if m, err := decodeIdentity("f", b); err == nil && !bytes.Equal(m.encode(), b) {
			t.Errorf("identity %x came back as %x", b, m.encode())
		}
	})
}

// A node file that is damaged anywhere is refused.
func TestIdentityDamaged(t *testing.T) {
	b := identity{node: 3, directory: NewID(), cluster: NewID(), voters: []Voter{{1, "a:1"}}}.encode()
	for i := range b {
		for _, mask := range []byte{1, 0x80} {
			d := bytes.Clone(b)
			d[i] ^= mask
			if _, err := decodeIdentity("f", d); err == nil {
				t.Errorf("byte %d changed by %#x is not noticed", i, mask)
			}
		}
	}
	for n := range b {
		if _, err := decodeIdentity("f", b[:n]); err == nil {
			t.Errorf("a file cut to %d bytes is not noticed", n)
		}
	}
}
