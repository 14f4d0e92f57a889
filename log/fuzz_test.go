package log

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// The decoders of what is on disk: no panic, no allocation by an unchecked length,
// and what they accept they write again as it was.

func FuzzEnvelope(f *testing.F) {
	b := make([]byte, envelopeBytes, 64)
	b = append(b, "payload"...)
	sealEnvelope(b, metaMagic, 1)
	addVariants(f, b)
	addVariants(f, doubled(b))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := len(b); n >= envelopeBytes && string(b[:8]) == metaMagic && int64(be.Uint32(b[12:])) <= int64(n-envelopeBytes) {
			// As if the checksum of the first copy were right, which a fuzzer does not find.
			b = bytes.Clone(b)
			be.PutUint32(b[16:], envelopeSum(b[:envelopeBytes+int(be.Uint32(b[12:]))]))
		}
		payload, err := openDoubled(b, metaMagic, 1, "x")
		if err != nil {
			return
		}
		again := append(make([]byte, envelopeBytes), payload...)
		sealEnvelope(again, metaMagic, 1)
		if got, err := openDoubled(doubled(again), metaMagic, 1, "x"); err != nil || !bytes.Equal(got, payload) {
			t.Fatal(err)
		}
	})
}

// addVariants adds a seed as it is, cut at some places, and with one bit of each of some bytes flipped. Other arguments of the target follow.
func addVariants(f *testing.F, seed []byte, more ...any) {
	f.Helper()
	add := func(b []byte) { f.Add(append([]any{b}, more...)...) }
	add(seed)
	for i := range 8 {
		at := i * len(seed) / 8
		add(seed[:at])
		if at < len(seed) {
			flipped := bytes.Clone(seed)
			flipped[at] ^= 1 << i
			add(flipped)
		}
	}
}

func fuzzPayload[T any](f *testing.F, seed []byte, decode func([]byte) (T, error), encode func(T) []byte) {
	f.Helper()
	addVariants(f, seed)
	f.Fuzz(func(t *testing.T, payload []byte) {
		v, err := decode(payload)
		if err != nil {
			return
		}
		if again := encode(v); !bytes.Equal(again, payload) {
			t.Fatalf("got %x, want %x", again, payload)
		}
	})
}

// single returns the payload of the first copy in an encoded side file.
func single(b []byte) []byte {
	n := be.Uint32(b[12:])
	return b[envelopeBytes : envelopeBytes+n]
}

var fuzzTable = producerTable{m: map[int64]*producer{
	4: {epoch: 1, coordinatorEpoch: -1, lastTimestamp: 100, n: 2, txnFirst: -1, window: [producerWindow]producedBatch{{0, 2, 5, 7, 99}, {3, 3, 8, 8, 100}}},
	9: {epoch: 0, coordinatorEpoch: 3, n: 1, txnFirst: 9, window: [producerWindow]producedBatch{{0, 0, 9, 9, 1}}},
}, open: []openTxn{{9, 9}}}

func FuzzMeta(f *testing.F) {
	m := meta{id: logID{1}, partition: PartitionID{Index: 3}, start: 4, local: 6, pending: changeReset, pendingTo: 10, resetChain: epochChain{{1, 2}}, resetTable: fuzzTable}
	f.Add(single((&meta{floor: -1}).encode()))
	first := single((&meta{floor: -1}).encode())
	first = first[:len(first)-28]
	if m, err := decodeMeta(first); err != nil || m.generation != 0 || m.journal != (journalID{}) {
		f.Fatalf("version 1: got %+v, %v", m, err)
	}
	decode := func(b []byte) (meta, error) {
		m, err := decodeMeta(b)
		if err == nil && len(single(m.encode())) != len(b) {
			err = errDamaged // of version 1
		}
		return m, err
	}
	fuzzPayload(f, single(m.encode()), decode, func(m meta) []byte { return single(m.encode()) })
}

func FuzzCleanMarker(f *testing.F) {
	c := cleanMarker{id: logID{1}, end: 9, segments: []segmentInfo{{0, 4, 100, 7, 2, 8, 0, 0}, {4, 9, 150, 9, 8, 0, 2, 3}}}
	fuzzPayload(f, single(c.encode()), decodeClean, func(c cleanMarker) []byte { return single(c.encode()) })
}

func FuzzSeal(f *testing.F) {
	s := sealFile{id: logID{1}, info: segmentInfo{0, 4, 100, 7, 2, 8, -1, 0}, headers: []uint32{1, 2}}
	fuzzPayload(f, single(s.encode()), decodeSeal, func(s sealFile) []byte { return single(s.encode()) })
}

func FuzzState(f *testing.F) {
	seed := single(encodeState(logID{1}, 10, epochChain{{0, 0}, {2, 5}}, &fuzzTable, 7, -1))
	fuzzPayload(f, seed, decodeState, func(s savedState) []byte {
		return single(encodeState(s.id, s.at, s.chain, &s.producers, s.madeMs, -1))
	})
}

func FuzzProducerSnapshot(f *testing.F) {
	f.Add(encodeSnapshot(10, &fuzzTable, 7, -1))
	f.Fuzz(func(t *testing.T, b []byte) {
		at, table, err := decodeSnapshot(b)
		if err != nil {
			return
		}
		if again := encodeSnapshot(at, &table, 7, -1); !bytes.Equal(again, b) {
			t.Fatalf("got %x, want %x", again, b)
		}
	})
}

func FuzzKafkaSnapshot(f *testing.F) {
	f.Add(fuzzTable.appendKafkaSnapshot(nil, 7, -1), int64(10))
	f.Add((&producerTable{}).appendKafkaSnapshot(nil, 7, -1), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, at int64) {
		// As if the checksum were right, which a fuzzer does not find.
		if len(b) >= kafkaSnapshotHead {
			b = bytes.Clone(b)
			be.PutUint32(b[2:], crcUpdate(0, b[6:]))
		}
		table, err := parseKafkaSnapshot(b, Offset(at))
		if err != nil {
			return
		}
		again := table.appendKafkaSnapshot(nil, 7, -1)
		if len(again) != len(b) {
			t.Fatalf("got %x, want %x", again, b)
		}
		twice, err := parseKafkaSnapshot(again, Offset(at))
		if err != nil || !reflect.DeepEqual(twice.m, table.m) {
			t.Fatalf("got %+v, %v, want %+v", twice, err, table)
		}
	})
}

func FuzzTxnIndex(f *testing.F) {
	addVariants(f, appendTxnIndex(nil, []AbortedTxn{{4, 7, 12, 9}, {5, 9, 14, 15}}), int64(10), int64(20))
	addVariants(f, realTxnIndex(f), int64(0), int64(40))
	f.Fuzz(func(t *testing.T, b []byte, base, end int64) {
		txns, err := parseTxnIndex(b, Offset(base), Offset(end))
		if err != nil {
			return
		}
		if again := appendTxnIndex(nil, txns); !bytes.Equal(again, b) {
			t.Fatalf("got %x, want %x", again, b)
		}
	})
}

// realTxnIndex returns the transaction index of a log with 20 aborted transactions.
func realTxnIndex(f *testing.F) []byte {
	f.Helper()
	l, err := Open(f.Context(), f.TempDir(), Options{})
	if err != nil {
		f.Fatal(err)
	}
	for range 20 {
		var b record.Builder
		b.SetProducer(7, 0, int32(l.End()/2))
		b.SetTransactional()
		if err := b.Append(record.Record{Value: []byte("x")}); err != nil {
			f.Fatal(err)
		}
		x, err := b.Build()
		if err != nil {
			f.Fatal(err)
		}
		if _, err := l.Write(0, x.Bytes()); err != nil {
			f.Fatal(err)
		}
		if _, err := l.WriteControl(0, record.EndTxn(false, 7, 0, 0, time.UnixMilli(1000))); err != nil {
			f.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	b, err := readFile(l.fs, joinPath(l.dir, segmentName(0, txnIndexSuffix)), maxSideBytes)
	if err != nil || len(b) == 0 {
		f.Fatalf("got %d bytes, %v", len(b), err)
	}
	return b
}

func FuzzSlot(f *testing.F) {
	s := slot{id: logID{1}, base: 5, sequence: 7, durable: 9, position: 100, written: 200, headers: 1, epoch: 2, end: 11, endHeaders: 3, firstAppendMs: 4}
	var b [slotBytes]byte
	s.encode(&b)
	addVariants(f, b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= slotBytes {
			// As if the checksum were right, which a fuzzer does not find.
			b = bytes.Clone(b)
			be.PutUint32(b[92:], crcUpdate(0, b[:92]))
		}
		s, ok := decodeSlot(b)
		if !ok {
			return
		}
		var again [slotBytes]byte
		s.encode(&again)
		if !bytes.Equal(again[:], b[:slotBytes]) {
			t.Fatalf("got %x, want %x", again, b)
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add(appendIndex(nil, []indexEntry{{3, 100}, {9, 5000}}), int64(6000), int64(12))
	f.Fuzz(func(t *testing.T, b []byte, size, span int64) {
		entries, err := parseIndex(b, size, Offset(span))
		if err != nil {
			return
		}
		if again := appendIndex(nil, entries); !bytes.Equal(again, b) {
			t.Fatalf("got %x, want %x", again, b)
		}
		for off := range Offset(20) {
			at, next := find(entries, 0, off)
			if at < 0 || next >= 0 && next <= at {
				t.Fatal(at, next)
			}
		}
	})
}

func FuzzTimeIndex(f *testing.F) {
	f.Add(appendTimeIndex(nil, []timeEntry{{-5, 1}, {100, 7}}), int64(9))
	f.Fuzz(func(t *testing.T, b []byte, span int64) {
		entries, err := parseTimeIndex(b, Offset(span))
		if err != nil {
			return
		}
		if again := appendTimeIndex(nil, entries); !bytes.Equal(again, b) {
			t.Fatalf("got %x, want %x", again, b)
		}
	})
}

func FuzzEpochCheckpoint(f *testing.F) {
	f.Add(epochChain{{0, 0}, {3, 17}}.appendCheckpoint(nil))
	f.Add([]byte("0\n1\n+1 2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCheckpoint(b)
		if err != nil {
			return
		}
		again, err := parseCheckpoint(c.appendCheckpoint(nil))
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatal(again, c, err)
		}
	})
}

// FuzzParseHeader: what is taken from a header makes sense.
func FuzzPartitionFile(f *testing.F) {
	f.Add(partitionFile(TopicID{1, 0xff}))
	f.Add([]byte("version: 0\ntopic_id: T6NqvgUXROWUjYjPCQDqnQ\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, ok := parsePartitionFile(b)
		if ok && !bytes.Equal(bytes.TrimRight(b, "\r\n"), partitionFile(id)) {
			t.Fatalf("%q gives %v", b, id)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	f.Add(make([]byte, 61))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 61 {
			return
		}
		h, err := parseHeader(b)
		if err == nil && (h.last < h.base || h.size < 61 || h.base < 0) {
			t.Fatalf("got %+v", h)
		}
	})
}

func FuzzJournalIdentity(f *testing.F) {
	i := journalIdentity{id: journalID{7}, life: 9, kept: 2, used: 8}
	fuzzPayload(f, single(i.encode()), decodeJournalIdentity, func(i journalIdentity) []byte { return single(i.encode()) })
}

func FuzzJournalTable(f *testing.F) {
	t := journalTable{id: journalID{1}, use: 2<<32 | 5, index: 3, live: []liveUse{{1<<32 | 9, 4}, {2<<32 | 4, 1}}, payload: 300}
	t.entries = []journalEntry{
		{id: logID{1}, generation: 2, segment: 100, position: 700, size: 100, base: 105, end: 107, headers: 5, epoch: 3, firstAppendMs: 9, sum: 8},
		{id: logID{2}, size: 200, end: 1},
	}
	b := make([]byte, journalTableBytes(len(t.live), len(t.entries)))
	t.encode(b, true)
	addVariants(f, b)
	t.live = nil
	b = make([]byte, journalTableBytes(0, len(t.entries)))
	t.encode(b, false)
	addVariants(f, b)
	f.Fuzz(func(t *testing.T, b []byte) {
		table, second, err := decodeJournalTable(b, "x")
		if err != nil {
			if len(b) >= journalHeaderBytes {
				// What has a right sum only is judged further.
				if n := journalTableLength(b); n == int64(len(b)) {
					b = bytes.Clone(b)
					be.PutUint32(b[56:], journalTableSum(b))
					table, second, err = decodeJournalTable(b, "x")
				}
			}
			if err != nil {
				return
			}
		}
		again := make([]byte, len(b))
		table.encode(again, second)
		if !bytes.Equal(again, b) {
			t.Fatalf("got %x, want %x", again, b)
		}
		if n := groupBytes(len(table.live), len(table.entries), table.payload); n <= 0 || n%journalBlock != 0 {
			t.Fatalf("got %d bytes", n)
		}
	})
}
