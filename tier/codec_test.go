package tier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// codecBatches builds n batches of a record each.
func codecBatches(t *testing.T, n int, codec record.Compression, noise bool) []byte {
	t.Helper()
	var out []byte
	r := rand.NewChaCha8([32]byte{3})
	for i := range n {
		b := record.Builder{Compression: codec}
		v := bytes.Repeat([]byte{byte(i)}, 2000)
		if noise {
			r.Read(v) //nolint:errcheck // never fails
		}
		if err := b.Append(record.Record{Value: v}); err != nil {
			t.Fatal(err)
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		batch.SetBaseOffset(log.Offset(i))
		out = append(out, batch.Bytes()...)
	}
	return out
}

// TestChunkCodecChoice: a chunk is compressed if that is worth it, and not twice.
func TestChunkCodecChoice(t *testing.T) {
	mixed := codecBatches(t, 10, record.None, false)
	for _, test := range []struct {
		name    string
		batches []byte
		want    codec
	}{
		{"text", mixed, codecZstd},
		{"noise", codecBatches(t, 10, record.None, true), codecNone},
		{"batches with gzip", codecBatches(t, 10, record.Gzip, false), codecNone},
	} {
		p := testPlanOf(t, test.batches, 0, 1<<20, true)
		if got := p.chunks[0].codec; len(p.chunks) != 1 || got != test.want {
			t.Errorf("%s: %d chunks, the first with codec %d, want %d", test.name, len(p.chunks), got, test.want)
		}
	}
	// What is in the log decides at each upload: the same bytes, the same object.
	a, b := testPlanOf(t, mixed, 0, 4096, true), testPlanOf(t, mixed, 0, 4096, true)
	if a.sum != b.sum || a.size != b.size {
		t.Error("two plans of the same batches differ")
	}
}

// TestChunkDamage: no changed byte of a compressed chunk passes, also where its
// checksum was made to fit, and lengths that are not true take no memory.
func TestChunkDamage(t *testing.T) {
	batches := codecBatches(t, 20, record.None, false)
	packed, ok := pack(nil, batches)
	if !ok {
		t.Fatal("not compressed")
	}
	good := chunk{stored: len(packed), length: len(batches), sum: crc32.Checksum(packed, castagnoli), codec: codecZstd}
	if b, err := good.unpack(packed); err != nil || !bytes.Equal(b, batches) {
		t.Fatalf("unpack: %v", err)
	}
	for i := range packed {
		b := bytes.Clone(packed)
		b[i] ^= 0x10
		if _, err := good.unpack(b); err == nil {
			t.Fatalf("byte %d changed and not noticed", i)
		}
		forged := good
		forged.sum = crc32.Checksum(b, castagnoli)
		if got, err := forged.unpack(b); err == nil && len(got) != len(batches) {
			t.Fatalf("byte %d changed, with a checksum that fits: %d bytes", i, len(got))
		}
	}
	for n := range packed {
		cut := good
		cut.stored, cut.sum = n, crc32.Checksum(packed[:n], castagnoli)
		if _, err := cut.unpack(packed[:n]); !errors.Is(err, ErrInvalidObject) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	for _, length := range []int{1, len(batches) - 1, len(batches) + 1, maxChunkBytes} {
		c := good
		c.length = length
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := c.unpack(packed)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrInvalidObject) {
			t.Errorf("length %d: %v", length, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
			t.Errorf("length %d: %d bytes were allocated for %d", length, n, len(packed))
		}
	}
}

// TestUnknownCodec: what a later release compressed is named, not guessed at.
func TestUnknownCodec(t *testing.T) {
	p := testPlanOf(t, codecBatches(t, 120, record.None, false), 0, 1<<20, true) // one chunk
	set := func(at int, v uint32) error {
		tail := bytes.Clone(p.tail)
		binary.BigEndian.PutUint32(tail[at:], v)
		foot := tail[len(tail)-objectFooterBytes:]
		binary.BigEndian.PutUint32(foot[76:], crc32.Checksum(tail[:len(tail)-objectFooterBytes], castagnoli))
		binary.BigEndian.PutUint32(foot[84:], crc32.Checksum(foot[:84], castagnoli))
		_, err := parseObjectTail(tail)
		return err
	}
	var v *VersionError
	if err := set(44, 7); !errors.As(err, &v) || v.What != "chunk codec" || v.Version != 7 {
		t.Errorf("codec 7: %v", err)
	}
	if err := set(44, 0); !errors.Is(err, ErrInvalidObject) {
		t.Errorf("a compressed chunk that says it is not: %v", err)
	}
	if err := set(44, 4); err != nil {
		t.Errorf("as it was: %v", err)
	}
}
