package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// small is what the fuzzer can minimize in no time.
func small() []record.Record { return append(awkward()[:7:7], awkward()[8]) }

// FuzzNext reads arbitrary bytes: no panic, and what Next returns adds up.
func FuzzNext(f *testing.F) {
	for _, codec := range codecs {
		f.Add(build(f, &record.Builder{Compression: codec}, small()...).Clone().Bytes())
	}
	f.Add(record.LeaderChange(3, 1, []int32{1, 2, 3}, noon).Bytes())
	f.Add(record.EndTxn(true, 1, 2, 3, noon).Bytes())
	f.Add(make([]byte, 100))
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		b, rest, err := record.Next(raw, 1<<20)
		if err != nil {
			if !errors.Is(err, record.ErrShort) && !errors.Is(err, record.ErrInvalid) || len(rest) != len(raw) || b.Bytes() != nil {
				t.Fatalf("Next: %v", err)
			}
			return
		}
		if b.Size()+len(rest) != len(raw) || b.Size() < record.HeaderBytes {
			t.Fatalf("%d and %d of %d bytes", b.Size(), len(rest), len(raw))
		}
		verify(t, b)
		// With the right checksum the records are looked at too.
		verify(t, reseal(b))
		if reread, _, err := record.Next(b.Bytes(), 0); err != nil || !bytes.Equal(reread.Bytes(), b.Bytes()) {
			t.Fatalf("read again: %v", err)
		}
		copy(raw[17:], before[17:21])
		if !bytes.Equal(raw, before) {
			t.Fatal("reading changes the bytes")
		}
	})
}

func verify(t *testing.T, b record.Batch) {
	const limit = 1 << 20
	_ = b.String()
	header := b.Verify()
	if b.VerifyNew() == nil && header != nil {
		t.Fatalf("VerifyNew passes where Verify says %v", header)
	}
	n := 0
	last := b.BaseOffset() - 1
	var failed error
	for r, err := range b.RecordsWithin(limit) {
		if failed != nil {
			t.Fatal("a yield after the error")
		}
		if failed = err; err != nil {
			continue
		}
		if header == nil && (r.Offset <= last || r.Offset > b.LastOffset()) {
			t.Fatalf("offset %d after %d in %v", r.Offset, last, b)
		}
		last = r.Offset
		n++
	}
	if err := b.VerifyRecords(limit); (err == nil) != (failed == nil) {
		t.Fatalf("VerifyRecords: %v, Records: %v", err, failed)
	}
	if failed == nil && n != b.Count() {
		t.Fatalf("%d records, header counts %d", n, b.Count())
	}
	if failed != nil && !errors.Is(failed, record.ErrInvalid) {
		t.Fatal(failed)
	}
	if kind, err := b.ControlType(); err == nil && !b.IsControl() {
		t.Fatalf("control type %v of no control batch", kind)
	}
}

// FuzzRoundTrip builds a batch of arbitrary records and reads it back.
func FuzzRoundTrip(f *testing.F) {
	f.Add(uint8(0), int64(0), int64(1), []byte("key"), []byte("value"), "header", []byte("x"), true)
	f.Add(uint8(4), int64(math.MinInt64), int64(math.MaxInt64), []byte(nil), []byte{}, "", []byte(nil), false)
	f.Add(uint8(3), int64(-1), int64(-2), bytes.Repeat([]byte("ab"), 100), []byte{}, "\xff", []byte{}, true)
	f.Fuzz(func(t *testing.T, codec uint8, first, second int64, key, value []byte, headerKey string, headerValue []byte, null bool) {
		if null {
			key = nil
		}
		at := func(ms int64) time.Time {
			if ms == record.NoTimestamp {
				return time.Time{}
			}
			return time.UnixMilli(ms).UTC()
		}
		want := []record.Record{
			{Offset: 5, Timestamp: at(first), Key: key, Value: value},
			{Offset: 6, Timestamp: at(second), Key: value, Value: key, Headers: []record.Header{{Key: headerKey, Value: headerValue}, {Key: headerKey, Value: key}}},
			{Offset: 7, Timestamp: at(first)},
		}
		b := build(t, &record.Builder{Compression: record.Compression(codec % 5)}, want...)
		b.SetBaseOffset(5)
		if err := b.VerifyNew(); err != nil {
			t.Fatal(err)
		}
		if got := collect(t, b); !reflect.DeepEqual(got, want) {
			t.Fatalf("records = %.300v\nwant %.300v", fmt.Sprint(got), fmt.Sprint(want))
		}
		if b.MaxTimestamp() != max(first, second) || b.BaseTimestamp() != first {
			t.Fatalf("timestamps %d, %d", b.BaseTimestamp(), b.MaxTimestamp())
		}
	})
}

// FuzzDecompress hands arbitrary bytes to each codec.
func FuzzDecompress(f *testing.F) {
	for _, codec := range codecs[1:] {
		f.Add(uint8(codec), build(f, &record.Builder{Compression: codec}, small()...).Clone().Bytes()[61:], int32(len(small())))
	}
	f.Add(uint8(2), []byte("\x0e\x34\x0c\x00\x00\x00\x01\x01\x00\x0c\x00\x00\x02\x01\x01\x00"), int32(2))
	f.Fuzz(func(t *testing.T, codec uint8, payload []byte, count int32) {
		if len(payload) > 1<<20 || count <= 0 {
			return
		}
		verify(t, withPayload(t, record.Compression(codec%8), payload, count))
	})
}
