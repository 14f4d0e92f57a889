package record_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var codecs = []record.Compression{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd}

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// awkward holds the records that codecs get wrong.
func awkward() []record.Record {
	return []record.Record{
		{Timestamp: noon, Key: []byte("key"), Value: []byte("value")},
		{Timestamp: noon.Add(-24 * 365 * 100 * time.Hour), Value: []byte("a hundred years before")},
		{Timestamp: noon.Add(24 * 365 * 200 * time.Hour), Key: []byte("two hundred after")},
		{Timestamp: time.Time{}, Key: []byte{}, Value: []byte{}},
		{Timestamp: time.UnixMilli(0).UTC()},
		{Timestamp: time.UnixMilli(math.MaxInt64).UTC()},
		{Timestamp: time.UnixMilli(math.MinInt64).UTC()},
		{Timestamp: noon, Value: bytes.Repeat([]byte("long "), 30000)},
		{Timestamp: noon, Headers: []record.Header{{Key: "k", Value: []byte("v")}, {Key: "", Value: nil}, {Key: "k", Value: []byte{}}}},
	}
}

func build(t testing.TB, b *record.Builder, records ...record.Record) record.Batch {
	t.Helper()
	b.Reset()
	for _, r := range records {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func collect(t testing.TB, b record.Batch) []record.Record {
	t.Helper()
	var out []record.Record
	for r, err := range b.Records() {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// reseal makes the checksum right after a test has changed the batch.
func reseal(b record.Batch) record.Batch {
	raw := b.Bytes()
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func TestRoundTrip(t *testing.T) {
	want := awkward()
	for i := range want {
		want[i].Offset = 1000 + record.Offset(i)
	}
	for _, codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			b := build(t, &record.Builder{Compression: codec}, awkward()...)
			b.SetBaseOffset(1000)
			b.SetLeaderEpoch(7)
			if err := b.VerifyNew(); err != nil {
				t.Fatal(err)
			}
			if err := b.VerifyRecords(record.DefaultMaxDecompressedBytes); err != nil {
				t.Fatal(err)
			}
			if got := collect(t, b); !reflect.DeepEqual(got, want) {
				t.Errorf("records = %.300v\nwant %.300v", fmt.Sprint(got), fmt.Sprint(want))
			}
			if b.BaseOffset() != 1000 || b.LastOffset() != 1008 || b.NextOffset() != 1009 || b.Count() != 9 || b.LeaderEpoch() != 7 ||
				b.Compression() != codec || b.ProducerID() != -1 || b.ProducerEpoch() != -1 || b.BaseSequence() != -1 || b.LastSequence() != -1 ||
				b.IsControl() || b.IsTransactional() || b.IsLogAppendTime() || b.BaseTimestamp() != noon.UnixMilli() || b.MaxTimestamp() != math.MaxInt64 {
				t.Errorf("header: %v", b)
			}
			next, rest, err := record.Next(append(b.Clone().Bytes(), "rest"...), b.Size())
			if err != nil || !bytes.Equal(next.Bytes(), b.Bytes()) || string(rest) != "rest" {
				t.Errorf("Next: %v, rest %q", err, rest)
			}
		})
	}
}

// TestNullIsNotEmpty: DeepEqual above tells them apart; this says it in words.
func TestNullIsNotEmpty(t *testing.T) {
	got := collect(t, build(t, new(record.Builder), record.Record{Key: nil, Value: []byte{}}, record.Record{Key: []byte{}, Value: nil}))
	if got[0].Key != nil || got[0].Value == nil || got[1].Key == nil || got[1].Value != nil {
		t.Errorf("records = %#v", got)
	}
}

// TestGolden pins the bytes, worked out by hand from the protocol's description.
func TestGolden(t *testing.T) {
	var b record.Builder
	b.SetProducer(9, 2, 5)
	for _, r := range []record.Record{
		{Timestamp: time.UnixMilli(1000), Key: []byte("k"), Value: []byte("v"), Headers: []record.Header{{Key: "h", Value: []byte("x")}}},
		{Timestamp: time.UnixMilli(999)},
	} {
		if err := b.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	batch.SetBaseOffset(258)
	batch.SetLeaderEpoch(3)
	want := strings.Join([]string{
		"0000000000000102", // base offset
		"00000045",         // length
		"00000003",         // leader epoch
		"02",               // magic
		"",                 // checksum, below
		"0000",             // attributes
		"00000001",         // last offset delta
		"00000000000003e8", // base timestamp
		"00000000000003e8", // max timestamp
		"0000000000000009", // producer id
		"0002",             // producer epoch
		"00000005",         // base sequence
		"00000002",         // count
		"18" + "00" + "00" + "00" + "026b" + "0276" + "02" + "0268" + "0278",
		"0c" + "00" + "01" + "02" + "01" + "01" + "00",
	}, "")
	raw, err := hex.DecodeString(want)
	if err != nil {
		t.Fatal(err)
	}
	sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(raw[17:], crc32.MakeTable(crc32.Castagnoli)))
	raw = slices.Insert(raw, 17, sum...)
	if !bytes.Equal(batch.Bytes(), raw) {
		t.Errorf("batch = %x\nwant    %x", batch.Bytes(), raw)
	}
	const checksum = 0x0a107dd4
	if got := binary.BigEndian.Uint32(batch.Bytes()[17:]); got != checksum {
		t.Errorf("checksum = %#x, want %#x", got, checksum)
	}
}

// TestAgainstKmsg compares with the encoder of an independent client.
func TestAgainstKmsg(t *testing.T) {
	records := awkward()
	ours := build(t, new(record.Builder), records...)
	base := noon.UnixMilli()
	theirs := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(len(records)) - 1, FirstTimestamp: base, MaxTimestamp: math.MaxInt64,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(records)),
	}
	for i, r := range records {
		ms := r.Timestamp.UnixMilli()
		if r.Timestamp.IsZero() {
			ms = -1
		}
		k := kmsg.Record{TimestampDelta64: ms - base, OffsetDelta: int32(i), Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		k.Length = int32(len(k.AppendTo(nil)) - 1) // the length of 0 takes a byte
		theirs.Records = k.AppendTo(theirs.Records)
	}
	theirs.Length = int32(len(theirs.AppendTo(nil)) - 12)
	theirs.CRC = int32(crc32.Checksum(theirs.AppendTo(nil)[21:], crc32.MakeTable(crc32.Castagnoli)))
	if want := theirs.AppendTo(nil); !bytes.Equal(ours.Bytes(), want) {
		t.Errorf("batch = %x\nwant    %x", ours.Bytes()[:200], want[:200])
	}
}

func TestNext(t *testing.T) {
	good := build(t, new(record.Builder), awkward()...).Bytes()
	change := func(at int, with ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], with)
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		max  int
		want error
	}{
		{"empty", nil, 0, record.ErrShort},
		{"cut in the length", good[:11], 0, record.ErrShort},
		{"cut before the magic", good[:16], 0, record.ErrShort},
		{"cut in the header", good[:60], 0, record.ErrShort},
		{"one byte missing", good[:len(good)-1], 0, record.ErrShort},
		{"whole", good, len(good), nil},
		{"too large", good, len(good) - 1, record.ErrTooLarge},
		{"too large and cut", good[:12], len(good) - 1, record.ErrTooLarge},
		{"zeros", make([]byte, 100), 0, record.ErrInvalid},
		{"zeros, cut", make([]byte, 12), 0, record.ErrInvalid},
		{"length negative", change(8, 0xff, 0xff, 0xff, 0xff), 0, record.ErrInvalid},
		{"length of less than a header", change(8, 0, 0, 0, 48), 0, record.ErrInvalid},
		{"length of 2 GiB", change(8, 0x7f, 0xff, 0xff, 0xff), 0, record.ErrInvalid},
		{"length of 1 GiB", change(8, 0x40, 0, 0, 0), 0, record.ErrShort},
		{"magic 1", change(16, 1), 0, record.ErrInvalid},
		{"magic 1, cut", change(16, 1)[:17], 0, record.ErrInvalid},
	} {
		batch, rest, err := record.Next(c.b, c.max)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if c.want == nil {
			if batch.Size() != len(c.b) || len(rest) != 0 {
				t.Errorf("%s: %d bytes, rest %d", c.name, batch.Size(), len(rest))
			}
			continue
		}
		if batch.Bytes() != nil || len(rest) != len(c.b) {
			t.Errorf("%s: batch %v, rest of %d", c.name, batch, len(rest))
		}
		if _, isInvalid := errors.AsType[*record.InvalidError](err); isInvalid == (c.want == record.ErrShort) || isInvalid != errors.Is(err, record.ErrInvalid) {
			t.Errorf("%s: type of %v", c.name, err)
		}
	}
}

func TestVerify(t *testing.T) {
	put16 := func(at int, v uint16) func([]byte) { return func(b []byte) { binary.BigEndian.PutUint16(b[at:], v) } }
	put32 := func(at int, v uint32) func([]byte) { return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v) } }
	put64 := func(at int, v uint64) func([]byte) { return func(b []byte) { binary.BigEndian.PutUint64(b[at:], v) } }
	for _, c := range []struct {
		name        string
		change      func([]byte)
		verify, new bool // passes
	}{
		{"nothing", func([]byte) {}, true, true},
		{"compression 5", put16(21, 5), false, false},
		{"last offset delta -1", put32(23, math.MaxUint32), false, false},
		{"last offset delta -1, no records", func(b []byte) { put32(23, math.MaxUint32)(b); put32(57, 0)(b) }, false, false},
		{"last offset beyond int64", put64(0, math.MaxInt64-1), false, false},
		{"last offset at the limit", put64(0, math.MaxInt64-2), true, true},
		{"count -1", put32(57, math.MaxUint32), false, false},
		{"count above the offsets", put32(57, 3), false, false},
		{"offsets below the count", put32(23, 0), false, false},
		{"count below the offsets, as after compaction", put32(57, 1), true, false},
		{"count 0", put32(57, 0), true, false},
		{"more records than bytes", func(b []byte) { put32(23, 1000)(b); put32(57, 1001)(b) }, false, false},
		{"control", put16(21, 1<<5), true, false},
		{"delete horizon", put16(21, 1<<6), true, false},
		{"producer id -2", put64(43, math.MaxUint64-1), false, false},
		{"transactional without a producer", put16(21, 1<<4), false, false},
		{"producer without epoch and sequence", put64(43, 1), false, false},
		{"producer without an epoch", func(b []byte) { put64(43, 1)(b); put32(53, 0)(b) }, false, false},
		{"producer without a sequence", func(b []byte) { put64(43, 1)(b); put16(51, 0)(b) }, true, false},
		{"producer with a negative sequence", func(b []byte) { put64(43, 1)(b); put16(51, 0)(b); put32(53, 0xffff_fffe)(b) }, false, false},
		{"producer", func(b []byte) { put64(43, 1)(b); put16(51, 0)(b); put32(53, 0)(b) }, true, true},
		{"unknown attributes", put16(21, 0x4000), true, true},
	} {
		b := build(t, new(record.Builder), record.Record{Value: []byte("a")}, record.Record{Value: []byte("b")})
		c.change(b.Bytes())
		reseal(b)
		if err := b.Verify(); (err == nil) != c.verify || err != nil && !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%s: Verify: %v", c.name, err)
		}
		if err := b.VerifyNew(); (err == nil) != c.new || err != nil && !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%s: VerifyNew: %v", c.name, err)
		}
	}
	if err := (record.Batch{}).Verify(); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("zero Batch: %v", err)
	}
}

// TestVerifySeesEachBit: the checksum covers every bit from the attributes on, and
// Next or contiguity must see the others.
func TestVerifySeesEachBit(t *testing.T) {
	b := build(t, new(record.Builder), awkward()[:4]...)
	for bit := 21 * 8; bit < b.Size()*8; bit++ {
		b.Bytes()[bit/8] ^= 1 << (bit % 8)
		if err := b.Verify(); !errors.Is(err, record.ErrChecksum) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
		b.Bytes()[bit/8] ^= 1 << (bit % 8)
	}
	if err := b.Verify(); err != nil {
		t.Fatal(err)
	}
}

func TestSettersKeepChecksum(t *testing.T) {
	for _, codec := range codecs {
		b := build(t, &record.Builder{Compression: codec}, awkward()...)
		b.SetBaseOffset(77)
		b.SetLeaderEpoch(5)
		b.SetProducer(1<<40, 12, math.MaxInt32-3)
		b.SetLogAppendTime(noon.UnixMilli() + 5)
		if err := b.VerifyNew(); err != nil {
			t.Fatal(err)
		}
		if b.ProducerID() != 1<<40 || b.ProducerEpoch() != 12 || b.BaseSequence() != math.MaxInt32-3 || b.LastSequence() != 4 {
			t.Errorf("producer %d %d, sequence %d to %d", b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), b.LastSequence())
		}
		if !b.IsLogAppendTime() || b.Compression() != codec || b.MaxTimestamp() != noon.UnixMilli()+5 {
			t.Errorf("attributes %#x, max timestamp %d", b.Attributes(), b.MaxTimestamp())
		}
		for _, r := range collect(t, b) {
			if !r.Timestamp.Equal(noon.Add(5 * time.Millisecond)) {
				t.Errorf("timestamp = %v", r.Timestamp)
			}
		}
	}
}

func TestRecordsOfBadBytes(t *testing.T) {
	header := func(payload string, count, lastDelta int32) record.Batch {
		b := build(t, new(record.Builder), record.Record{})
		raw := append(b.Clone().Bytes()[:61:61], payload...)
		binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
		binary.BigEndian.PutUint32(raw[57:], uint32(count))
		binary.BigEndian.PutUint32(raw[23:], uint32(lastDelta))
		b, _, err := record.Next(raw, 0)
		if err != nil {
			t.Fatal(err)
		}
		return reseal(b)
	}
	const one = "\x0c\x00\x00\x00\x01\x01\x00"
	for _, c := range []struct {
		name, payload    string
		count, lastDelta int32
		good             int // records before the error; -1: no error
	}{
		{"good", one, 1, 0, -1},
		{"nothing", "", 0, 0, -1},
		{"gap, as after compaction", one, 1, 5, -1},
		{"two, gap between", one + "\x0c\x00\x00\x08\x01\x01\x00", 2, 9, -1},
		{"fewer than counted", one, 2, 1, 1},
		{"none of one", "", 1, 0, 0},
		{"none of less than none", "", -1, 0, 0},
		{"more than counted", one + "\x0c\x00\x00\x02\x01\x01\x00", 1, 1, 1},
		{"offset twice", one + one, 2, 1, 1},
		{"offset goes back", "\x0c\x00\x00\x02\x01\x01\x00" + one, 2, 1, 1},
		{"offset above the range", one + "\x0c\x00\x00\x04\x01\x01\x00", 2, 1, 1},
		{"offset negative", "\x0c\x00\x00\x01\x01\x01\x00", 1, 0, 0},
		{"length negative", "\x01\x00\x00\x00\x01\x01\x00", 1, 0, 0},
		{"length beyond the end", "\x0e\x00\x00\x00\x01\x01\x00", 1, 0, 0},
		{"length of 2 GiB", "\xfe\xff\xff\xff\x0f\x00\x00\x00\x01\x01\x00", 1, 0, 0},
		{"length too short", "\x0a\x00\x00\x00\x01\x01\x00", 1, 0, 0},
		{"length too long", "\x0e\x00\x00\x00\x01\x01\x00\x00", 1, 0, 0},
		{"length 0", "\x00\x00\x00\x00\x01\x01\x00", 1, 0, 0},
		{"length of six bytes", "\x8c\x80\x80\x80\x80\x00\x00\x00\x00\x01\x01\x00", 1, 0, 0},
		{"length in five bytes", "\x8c\x80\x80\x80\x00\x00\x00\x00\x01\x01\x00", 1, 0, -1},
		{"length of 33 bits", "\x8c\x80\x80\x80\x10\x00\x00\x00\x01\x01\x00", 1, 0, 0},
		{"timestamp of 65 bits", "\x1e\x00\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02\x00\x01\x01\x00", 1, 0, 0},
		{"timestamp of 64 bits", "\x1e\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x01\x01\x00", 1, 0, -1},
		{"key length -2", "\x0c\x00\x00\x00\x03\x01\x00", 1, 0, 0},
		{"key beyond the record", "\x0c\x00\x00\x00\x06\x01\x00", 1, 0, 0},
		{"value beyond the record", "\x0c\x00\x00\x00\x01\x04\x00", 1, 0, 0},
		{"headers -1", "\x0c\x00\x00\x00\x01\x01\x01", 1, 0, 0},
		{"headers missing", "\x0c\x00\x00\x00\x01\x01\x02", 1, 0, 0},
		{"a billion headers", "\x14\x00\x00\x00\x01\x01\x80\x94\xeb\xdc\x03", 1, 0, 0},
		{"header key null", "\x10\x00\x00\x00\x01\x01\x02\x01\x00", 1, 0, 0},
		{"header value null", "\x10\x00\x00\x00\x01\x01\x02\x00\x01", 1, 0, -1},
		{"header beyond the record", "\x10\x00\x00\x00\x01\x01\x02\x00\x02", 1, 0, 0},
		{"bytes after the headers", "\x12\x00\x00\x00\x01\x01\x02\x00\x01\x00", 1, 0, 0},
	} {
		b := header(c.payload, c.count, c.lastDelta)
		good, errs := 0, 0
		for _, err := range b.Records() {
			if err != nil {
				errs++
				if !errors.Is(err, record.ErrInvalid) {
					t.Errorf("%s: %v", c.name, err)
				}
				continue
			}
			if errs > 0 {
				t.Errorf("%s: a record after the error", c.name)
			}
			good++
		}
		if want := c.good; want < 0 && (errs != 0 || good != int(c.count)) || want >= 0 && (errs != 1 || good != want) {
			t.Errorf("%s: %d records, %d errors", c.name, good, errs)
		}
		if err := b.VerifyRecords(0); (err != nil) != (c.good >= 0) {
			t.Errorf("%s: VerifyRecords: %v", c.name, err)
		}
	}
}

// TestAppendingIsSafe: what is handed out ends where it ends.
func TestAppendingIsSafe(t *testing.T) {
	one := build(t, new(record.Builder), record.Record{Key: []byte("k"), Value: []byte("v"), Headers: []record.Header{{Key: "h", Value: []byte("x")}, {Key: "i"}}}).Bytes()
	buf := append(bytes.Clone(one), one...)
	want := bytes.Clone(buf)
	b, _, err := record.Next(buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = append(b.Bytes(), 1)
	for r := range b.Records() {
		_ = append(r.Key, 1)
		_ = append(r.Value, 1)
		_ = append(r.Headers[0].Value, 1)
		if cap(r.Headers) != len(r.Headers) {
			t.Error("headers can be appended to in place")
		}
	}
	if !bytes.Equal(buf, want) {
		t.Error("an append overwrote what follows")
	}
	builder := new(record.Builder)
	longer := append(build0(t, builder, "x").Bytes(), 0xee)
	build0(t, builder, "y")
	if longer[len(longer)-1] != 0xee {
		t.Error("the builder overwrote what was appended to a batch")
	}
}

// TestRecordsOutliveTheNext: decompressed records are the caller's for ever.
func TestRecordsOutliveTheNext(t *testing.T) {
	for _, codec := range codecs[1:] {
		values := func(c string) record.Batch {
			return build(t, &record.Builder{Compression: codec}, record.Record{Key: []byte(c), Value: bytes.Repeat([]byte(c), 100)})
		}
		first := collect(t, values("a"))
		for range 20 { // pools may hand out any buffer
			collect(t, values("b"))
		}
		if string(first[0].Key) != "a" || strings.Trim(string(first[0].Value), "a") != "" {
			t.Errorf("%v: a later batch overwrote %q", codec, first[0].Value)
		}
	}
}

func TestRecordsStop(t *testing.T) {
	b := build(t, &record.Builder{Compression: record.Zstd}, awkward()...)
	n := 0
	for range b.Records() {
		if n++; n == 2 {
			break
		}
	}
	if n != 2 || len(collect(t, b)) != 9 {
		t.Error("an iterator that was left early spoils the next")
	}
}

func TestBuilderReuse(t *testing.T) {
	for _, codec := range codecs {
		b := &record.Builder{Compression: codec}
		if _, err := b.Build(); err != record.ErrEmpty {
			t.Errorf("Build of nothing: %v", err)
		}
		b.SetProducer(3, 1, 0)
		b.SetTransactional()
		first := build0(t, b, "one").Clone()
		if !first.IsTransactional() || first.ProducerID() != 3 || first.Verify() != nil {
			t.Errorf("batch %v", first)
		}
		b.Reset()
		if b.Len() != 0 || b.Size() != record.HeaderBytes {
			t.Errorf("after Reset: %d records, %d bytes", b.Len(), b.Size())
		}
		second := build0(t, b, "two", "three")
		if second.IsTransactional() || second.ProducerID() != record.NoProducer || second.Count() != 2 || b.Len() != 2 {
			t.Errorf("batch %v", second)
		}
		if err := b.Append(record.Record{Value: []byte("four")}); err != nil {
			t.Fatal(err)
		}
		third, err := b.Build()
		if err != nil || third.Verify() != nil || len(collect(t, third)) != 3 {
			t.Errorf("batch %v: %v", third, err)
		}
		if got := string(collect(t, first)[0].Value); got != "one" {
			t.Errorf("clone = %q", got)
		}
	}
	if _, err := (&record.Builder{Compression: 5}).Build(); err != record.ErrEmpty {
		t.Errorf("Build: %v", err)
	}
	b := &record.Builder{Compression: 5}
	b.Append(record.Record{})
	if _, err := b.Build(); !errors.Is(err, record.ErrCompression) {
		t.Errorf("Build: %v", err)
	}
}

func build0(t testing.TB, b *record.Builder, values ...string) record.Batch {
	t.Helper()
	for _, v := range values {
		if err := b.Append(record.Record{Timestamp: noon, Value: []byte(v)}); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func TestBuilderBound(t *testing.T) {
	one := build(t, new(record.Builder), record.Record{Value: make([]byte, 1000)}).Size()
	b := &record.Builder{MaxBytes: one}
	if err := b.Append(record.Record{Value: make([]byte, 1001)}); !errors.Is(err, record.ErrTooLarge) || b.Len() != 0 {
		t.Errorf("Append: %v", err)
	}
	if err := b.Append(record.Record{Value: make([]byte, 1000)}); err != nil || b.Size() != one {
		t.Errorf("Append: %v, %d bytes", err, b.Size())
	}
	if err := b.Append(record.Record{}); !errors.Is(err, record.ErrTooLarge) || b.Len() != 1 || b.Size() != one {
		t.Errorf("Append: %v", err)
	}
}

func TestIncrementSequence(t *testing.T) {
	for _, c := range []struct {
		seq  int32
		n    int
		want int32
	}{
		{0, 0, 0}, {0, 1, 1}, {5, 10, 15}, {math.MaxInt32, 0, math.MaxInt32}, {math.MaxInt32, 1, 0}, {math.MaxInt32 - 1, 5, 3},
		{math.MaxInt32, math.MaxInt32, math.MaxInt32 - 1}, {0, -1, math.MaxInt32}, {3, -5, math.MaxInt32 - 1},
	} {
		if got := record.IncrementSequence(c.seq, c.n); got != c.want {
			t.Errorf("IncrementSequence(%d, %d) = %d, want %d", c.seq, c.n, got, c.want)
		}
	}
}

func TestLeaderChange(t *testing.T) {
	b := record.LeaderChange(12, 2, []int32{1, 2, 300}, noon)
	if err := b.Verify(); err != nil {
		t.Fatal(err)
	}
	if b.VerifyNew() == nil {
		t.Error("VerifyNew takes a control batch")
	}
	if kind, err := b.ControlType(); kind != record.ControlLeaderChange || err != nil {
		t.Errorf("type %v, %v", kind, err)
	}
	if !b.IsControl() || b.IsTransactional() || b.LeaderEpoch() != 12 || b.Count() != 1 || b.NextOffset() != 1 || b.ProducerID() != -1 || b.BaseSequence() != -1 {
		t.Errorf("header: %v", b)
	}
	r := collect(t, b)[0]
	if !bytes.Equal(r.Key, []byte{0, 0, 0, 2}) || !r.Timestamp.Equal(noon) {
		t.Errorf("key %x at %v", r.Key, r.Timestamp)
	}
	want := kmsg.LeaderChangeMessage{LeaderID: 2}
	for _, id := range []int32{1, 2, 300} {
		want.Voters = append(want.Voters, kmsg.LeaderChangeMessageVoter{VoterID: id})
	}
	if !bytes.Equal(r.Value, want.AppendTo(nil)) {
		t.Errorf("value %x, want %x", r.Value, want.AppendTo(nil))
	}
	var got kmsg.LeaderChangeMessage
	if err := got.ReadFrom(r.Value); err != nil || got.LeaderID != 2 || len(got.Voters) != 3 || got.Voters[2].VoterID != 300 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := record.LeaderChange(0, 0, nil, time.Time{}).Verify(); err != nil {
		t.Error(err)
	}
	many := record.LeaderChange(0, 0, make([]int32, 1000), noon)
	if err := got.ReadFrom(collect(t, many)[0].Value); err != nil || len(got.Voters) != 1000 {
		t.Errorf("1000 voters: %d, %v", len(got.Voters), err)
	}
}

func TestEndTxn(t *testing.T) {
	for _, commit := range []bool{false, true} {
		b := record.EndTxn(commit, 77, 3, 9, noon)
		if err := b.Verify(); err != nil {
			t.Fatal(err)
		}
		want := record.ControlAbort
		if commit {
			want = record.ControlCommit
		}
		if kind, err := b.ControlType(); kind != want || err != nil {
			t.Errorf("type %v, %v", kind, err)
		}
		if !b.IsControl() || !b.IsTransactional() || b.ProducerID() != 77 || b.ProducerEpoch() != 3 || b.BaseSequence() != -1 || b.LeaderEpoch() != -1 {
			t.Errorf("header: %v", b)
		}
		var got kmsg.EndTxnMarker
		if err := got.ReadFrom(collect(t, b)[0].Value); err != nil || got.CoordinatorEpoch != 9 {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestControlTypeOfOthers(t *testing.T) {
	if _, err := build(t, new(record.Builder), record.Record{}).ControlType(); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("no control batch: %v", err)
	}
	for key, want := range map[string]record.ControlType{"\x00\x00\x00\x63": 99, "\x00\x01\x00\x02more": 2, "": -1, "\x00\x00\x00": -1, "\xff\xff\x00\x00": -1} {
		b := build(t, new(record.Builder), record.Record{Key: []byte(key)})
		binary.BigEndian.PutUint16(b.Bytes()[21:], 1<<5)
		kind, err := reseal(b).ControlType()
		if want < 0 && !errors.Is(err, record.ErrInvalid) || want >= 0 && (err != nil || kind != want) {
			t.Errorf("key %q: %v, %v", key, kind, err)
		}
	}
}

func TestAllocs(t *testing.T) {
	raw := build(t, new(record.Builder), awkward()...).Clone().Bytes()
	if n := testing.AllocsPerRun(100, func() {
		b, _, err := record.Next(raw, 1<<20)
		if err != nil || b.Verify() != nil || b.VerifyRecords(0) != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Next, Verify and VerifyRecords allocate %v times", n)
	}
	records := awkward()[:8] // without headers
	for _, codec := range []record.Compression{record.None, record.Snappy, record.Zstd} {
		b := &record.Builder{Compression: codec}
		if n := testing.AllocsPerRun(100, func() { build(t, b, records...) }); n != 0 && (codec == record.None || !raceEnabled) {
			t.Errorf("Build with %v allocates %v times", codec, n)
		}
	}
	plain, _, _ := record.Next(build(t, new(record.Builder), records...).Clone().Bytes(), 0)
	if n := testing.AllocsPerRun(100, func() {
		for _, err := range plain.Records() {
			if err != nil {
				t.Fatal(err)
			}
		}
	}); n > 0 {
		t.Errorf("Records allocates %v times", n)
	}
}

func TestStrings(t *testing.T) {
	b := build(t, new(record.Builder), record.Record{Value: []byte("x")})
	b.SetBaseOffset(5)
	for got, want := range map[string]string{
		b.String():                                  "batch [5,6) epoch -1, 1 records, 69 bytes, none",
		record.Batch{}.String():                     "no batch",
		record.Compression(7).String():              "compression(7)",
		record.ControlType(9).String():              "control(9)",
		record.ControlLeaderChange.String():         "leader change",
		fmt.Sprint(record.Zstd, record.LZ4):         "zstd lz4",
		record.EndTxn(true, 1, 1, 1, noon).String(): "control batch [0,1) epoch -1, 1 records, 78 bytes, none",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
