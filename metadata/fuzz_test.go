package metadata

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/metadata/internal/metapb"
)

// seedImage has one of everything.
func seedImage(t testing.TB) *Image {
	b := newBench(t)
	b.up(1, 2, 3)
	b.create(TopicSpec{Name: "t", Partitions: 2, Config: TopicConfig{SegmentBytes: 5 << 10, Tiered: true, Retention: Retention{Bytes: -1, Age: 7}}})
	b.must2(deathRequest{id: 1})
	b.must2(deathRequest{id: 2})
	return b.im
}

// withChecksum makes the header fit, so that the fuzzer gets behind it.
func withChecksum(b []byte, magic string) []byte {
	if len(b) < envelopeBytes {
		return b
	}
	b = bytes.Clone(b)
	copy(b, magic)
	binary.LittleEndian.PutUint16(b[2:], envelopeVersion)
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[envelopeBytes:], castagnoli))
	return b
}

func FuzzDecodeEntry(f *testing.F) {
	var records []record
	seedImage(f).records.Scan(func(k string, o *object) bool {
		records = append(records, record{kind: kindOfKey(k), key: k, object: o})
		return true
	})
	data, err := encodeEntry(3, 4, records)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:20])
	empty, _ := encodeEntry(1, 1, nil)
	f.Add(empty)
	unknown, _ := appendEnvelope(nil, magicEntry, &metapb.Entry{Records: []*metapb.Record{{Kind: 99}}})
	f.Add(unknown)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeEntry(b)
		b = withChecksum(b, magicEntry)
		e, err := decodeEntry(b)
		if err != nil {
			if !isFormatError(err) {
				t.Fatalf("%T", err)
			}
			return
		}
		again, err := encodeEntry(e.term, e.sequence, e.records)
		if err != nil {
			t.Fatal(err)
		}
		e2, err := decodeEntry(again)
		if err != nil || len(e2.records) != len(e.records) || e2.term != e.term || e2.sequence != e.sequence {
			t.Fatalf("%+v, %v", e2, err)
		}
		// Whatever decodes may be applied: it is taken or rejected, without a panic,
		// and alike everywhere.
		x, y := seedImage(t), newImage(ID{1})
		for _, im := range []*Image{x, y} {
			other := im.clone()
			a, err1 := im.apply(100, e.term, b)
			c, err2 := other.apply(100, e.term, b)
			if err1 != nil || err2 != nil || (a.rejected == nil) != (c.rejected == nil) || im.hash != other.hash {
				t.Fatal("not deterministic")
			}
		}
	})
}

func FuzzDecodeSnapshot(f *testing.F) {
	good, err := encodeSnapshot(seedImage(f), &raftpb.ConfState{Voters: []uint64{1, 2, 3}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeSnapshot(b, ID{1})
		b = withChecksum(b, magicSnapshot)
		sn, err := decodeSnapshot(b, ID{1})
		if err != nil {
			if !isFormatError(err) {
				t.Fatalf("%T", err)
			}
			return
		}
		again, err := encodeSnapshot(sn.image, &raftpb.ConfState{})
		if err != nil {
			t.Fatal(err)
		}
		if sn2, err := decodeSnapshot(again, ID{1}); err != nil || sn2.image.hash != sn.image.hash || sn2.index != sn.index {
			t.Fatalf("%v", err)
		}
	})
}

func FuzzOpenMessage(f *testing.F) {
	f.Add(sealMessage(messageRaft, 3, ID{1}, ID{2}, []byte("body")))
	for _, req := range []any{Registration{ID: 1}, HeartbeatRequest{ID: 1}, createRequest{}, ISRChange{ISR: []Member{{1, 2}}}, producersRequest{}, deathRequest{}} {
		f.Add(sealMessage(messageRequest, 3, ID{1}, ID{2}, marshalMessage(requestToProto(req))))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := openMessage(b, 3, ID{1})
		if err != nil {
			if !isFormatError(err) {
				t.Fatalf("%T", err)
			}
			return
		}
		if again := sealMessage(m.kind, m.from, ID{1}, m.dir, m.body); !bytes.Equal(again, b) {
			t.Fatal("opened and sealed again, it differs")
		}
	})
}

// FuzzRequest looks behind the checksum.
func FuzzRequest(f *testing.F) {
	for _, req := range []any{Registration{ID: 1}, HeartbeatRequest{ID: 1}, createRequest{}, ISRChange{ISR: []Member{{1, 2}}}, producersRequest{}, deathRequest{}} {
		f.Add(marshalMessage(requestToProto(req)))
	}
	for _, res := range []any{BrokerEpoch(1), HeartbeatReply{Fenced: true}, Topic{}, Partition{}, ProducerBlock{1, 2}} {
		f.Add(marshalMessage(resultToProto(res)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var ask metapb.Request
		if proto.Unmarshal(b, &ask) == nil {
			if req, err := requestFromProto(&ask); err == nil && req != nil {
				// The controller must stand any request.
				c := newBench(t)
				_, _ = c.ask(req)
				if got, err := requestFromProto(requestToProto(req)); err != nil || got == nil {
					t.Fatalf("%+v, %v", got, err)
				}
			}
		}
		var reply metapb.Reply
		if proto.Unmarshal(b, &reply) == nil {
			_ = replyToError(&reply)
			for _, req := range []any{Registration{}, HeartbeatRequest{}, createRequest{}, ISRChange{}, producersRequest{}, deathRequest{}} {
				_, _ = resultFromProto(req, &reply)
			}
		}
	})
}
