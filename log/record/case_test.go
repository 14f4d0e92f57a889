package record_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// TestCase holds bugs of other systems as tests, under the ids of their trackers.
func TestCase(t *testing.T) {
	for _, c := range []struct {
		id   string // a line says: symptom there; right behaviour here
		test func(*testing.T)
	}{
		// A valid batch with a checksum of 0 was taken for space never written; it is
		// a batch like any other, and zeros are none because of their length.
		{"REDPANDA-4113", caseZeroChecksum},
		// A zeroed block in the middle of a record was skipped and the record came
		// back short; length and checksum cover the batch as a whole.
		{"PEBBLE-36", caseZeroedBlock},
		// A reader of a growing file looped for ever on a malformed page; reading
		// either takes bytes, asks for more, or says that it never will.
		{"PROMETHEUS-TSDB-524", caseProgress},
		// A time looked up in a compressed batch gave the batch's base offset; each
		// record in it has its own time and offset.
		{"B35", caseTimesInCompressed},
		// Producers were out of order after 2^31 records; sequences go on from 0.
		{"B46", caseSequenceWrap},
		// A batch with leader epoch 0, as some clients send it, was refused; the
		// field is the leader's to set and outside the checksum.
		{"B47", caseLeaderEpoch},
	} {
		t.Run(c.id, c.test)
	}
}

func caseZeroChecksum(t *testing.T) {
	// CRC32C is linear: which of the 32 bits of the value to flip for a checksum of
	// 0 is the solution of 32 equations.
	b := build(t, new(record.Builder), record.Record{Value: make([]byte, 4)})
	raw := b.Bytes()
	value := raw[len(raw)-5 : len(raw)-1]
	sum := func() uint32 { return crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)) }
	flip := func(i int) { value[i/8] ^= 1 << (i % 8) }
	type row struct{ effect, flips uint32 }
	var rows []row
	plain := sum()
	for i := range 32 {
		flip(i)
		rows = append(rows, row{sum() ^ plain, 1 << i})
		flip(i)
	}
	for bit, target := 0, plain; bit < 32; bit++ {
		for i := bit; i < 32; i++ {
			if rows[i].effect>>bit&1 == 1 {
				rows[bit], rows[i] = rows[i], rows[bit]
				break
			}
		}
		for i := range rows {
			if i != bit && rows[i].effect>>bit&1 == 1 {
				rows[i].effect ^= rows[bit].effect
				rows[i].flips ^= rows[bit].flips
			}
		}
		if bit < 31 {
			continue
		}
		for i := range rows {
			if target>>i&1 == 1 {
				for k := range 32 {
					if rows[i].flips>>k&1 == 1 {
						flip(k)
					}
				}
			}
		}
	}
	reseal(b)
	if got := binary.BigEndian.Uint32(raw[17:]); got != 0 {
		t.Fatalf("checksum = %#x", got)
	}
	got, rest, err := record.Next(raw, 1<<20)
	if err != nil || len(rest) != 0 || got.VerifyNew() != nil {
		t.Errorf("Next: %v, Verify: %v", err, got.VerifyNew())
	}
	if _, _, err := record.Next(make([]byte, 1<<10), 1<<20); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("zeros: %v", err)
	}
}

func caseZeroedBlock(t *testing.T) {
	good := build(t, new(record.Builder), record.Record{Value: bytes.Repeat([]byte("x"), 3*4096)}).Bytes()
	for from := 512; from+512 <= len(good); from += 512 {
		raw := bytes.Clone(good)
		clear(raw[from : from+512])
		b, _, err := record.Next(raw, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Verify(); !errors.Is(err, record.ErrChecksum) {
			t.Errorf("zeros at %d: %v", from, err)
		}
	}
}

func caseProgress(t *testing.T) {
	good := build(t, new(record.Builder), awkward()[:3]...).Bytes()
	for at := range record.HeaderBytes {
		for value := range 256 {
			rest := append(bytes.Clone(good), good...)
			rest[at] = byte(value)
			for steps := 0; ; steps++ {
				b, after, err := record.Next(rest, 1<<20)
				if err != nil {
					break
				}
				if b.Size() < record.HeaderBytes || len(after) != len(rest)-b.Size() || steps > 2 {
					t.Fatalf("byte %d = %d: no progress", at, value)
				}
				rest = after
			}
		}
	}
}

func caseTimesInCompressed(t *testing.T) {
	for _, codec := range codecs {
		b := &record.Builder{Compression: codec}
		for i := range 5 {
			if err := b.Append(record.Record{Timestamp: noon.Add(time.Duration(i) * time.Second)}); err != nil {
				t.Fatal(err)
			}
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		batch.SetBaseOffset(100)
		for i, r := range collect(t, batch) {
			if r.Offset != record.Offset(100+i) || !r.Timestamp.Equal(noon.Add(time.Duration(i)*time.Second)) {
				t.Errorf("%v: record %d has offset %d, time %v", codec, i, r.Offset, r.Timestamp)
			}
		}
	}
}

func caseSequenceWrap(t *testing.T) {
	b := build(t, new(record.Builder), awkward()[:3]...)
	b.SetProducer(1, 0, math.MaxInt32-1)
	if got := b.LastSequence(); got != 0 {
		t.Errorf("last sequence = %d, want 0", got)
	}
	if got := record.IncrementSequence(b.LastSequence(), 1); got != 1 {
		t.Errorf("next sequence = %d, want 1", got)
	}
	b.SetProducer(1, 0, math.MaxInt32-2)
	if got := record.IncrementSequence(b.LastSequence(), 1); got != 0 {
		t.Errorf("next sequence = %d, want 0", got)
	}
	if err := b.VerifyNew(); err != nil {
		t.Error(err)
	}
}

func caseLeaderEpoch(t *testing.T) {
	b := build(t, new(record.Builder), record.Record{})
	for _, epoch := range []record.Epoch{0, -1, 7, math.MaxInt32, math.MinInt32} {
		b.SetLeaderEpoch(epoch)
		if err := b.VerifyNew(); err != nil || b.LeaderEpoch() != epoch {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}
}
