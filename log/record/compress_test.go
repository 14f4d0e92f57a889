package record_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// withPayload makes a batch of count records out of compressed bytes.
func withPayload(t testing.TB, codec record.Compression, payload []byte, count int32) record.Batch {
	t.Helper()
	raw := append(build(t, new(record.Builder), record.Record{}).Clone().Bytes()[:61:61], payload...)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint16(raw[21:], uint16(codec))
	binary.BigEndian.PutUint32(raw[23:], uint32(count-1))
	binary.BigEndian.PutUint32(raw[57:], uint32(count))
	b, _, err := record.Next(raw, 0)
	if err != nil {
		t.Fatal(err)
	}
	return reseal(b)
}

// TestForeignCompression reads payloads that other programs compressed: lz4 1.9,
// zstd 1.5 and gzip 1.12 on the command line. They hold three records, whose
// values are "cordwood 0 " and so on, twenty times.
func TestForeignCompression(t *testing.T) {
	for _, c := range []struct {
		name    string
		codec   record.Compression
		payload string
		refused bool
	}{
		{"gzip -9n", record.Gzip, "1f8b08000000000002033bc6ccc0c0c0b8833939bf28a53c3f3f45c14061d831198e31333031217bd25061d831419e646141f6a491c2b0633200005ce498a3af020000", false},
		{"lz4 -B4 --no-frame-crc", record.LZ4, "04224d186040823f000000ff04c60300000001b803636f7264776f6f642030200b00be6800c603000202e5001631e5000f0b00b500e500280404e5001632e5000f0b00b150642032200000000000", false},
		{"lz4 -B7", record.LZ4, "04224d186440a73f000000ff04c60300000001b803636f7264776f6f642030200b00be6800c603000202e5001631e5000f0b00b500e500280404e5001632e5000f0b00b150642032200000000000b19b28d5", false},
		{"lz4 --content-size -BX", record.LZ4, "04224d187c40af02000000000000923f000000ff04c60300000001b803636f7264776f6f642030200b00be6800c603000202e5001631e5000f0b00b500e500280404e5001632e5000f0b00b1506420322000" + "38a8555600000000b19b28d5", false},
		{"lz4 -l, which Kafka can't read", record.LZ4, "02214c183f000000ff04c60300000001b803636f7264776f6f642030200b00be6800c603000202e5001631e5000f0b00b500e500280404e5001632e5000f0b00b1506420322000", true},
		{"zstd", record.Zstd, "28b52ffd0458ad0100f0c60300000001b803636f7264776f6f6420302000c603000202310404320008004540016c1730022b8a80026c176db8d269aa84011b656c33", false},
		{"zstd -19 --no-check, size unknown", record.Zstd, "28b52ffd0068a501000402c60300000001b803636f7264776f6f6420302000c6030002023120040432200006004e97c28011b4a1e9288c7e5ce93455c2", false},
	} {
		payload, err := hex.DecodeString(c.payload)
		if err != nil {
			t.Fatal(err)
		}
		b := withPayload(t, c.codec, payload, 3)
		if c.refused {
			if err := b.VerifyRecords(1 << 20); !errors.Is(err, record.ErrInvalid) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err := b.VerifyRecords(1 << 20); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for i, r := range collect(t, b) {
			if want := strings.Repeat("cordwood "+string(rune('0'+i))+" ", 20); string(r.Value) != want {
				t.Errorf("%s: value %d = %q", c.name, i, r.Value)
			}
		}
		// One byte more or less, and each bit: an error or the same records, never a panic.
		for cut := range payload {
			if withPayload(t, c.codec, payload[:cut], 3).VerifyRecords(1<<20) == nil && cut < len(payload)-9 {
				t.Errorf("%s: cut to %d bytes passes", c.name, cut)
			}
		}
		if err := b.VerifyRecords(686); !errors.Is(err, record.ErrTooLarge) {
			t.Errorf("%s: decompresses to 687 bytes, limit 686: %v", c.name, err)
		}
		if err := b.VerifyRecords(687); err != nil {
			t.Errorf("%s: limit 687: %v", c.name, err)
		}
		if err := b.VerifyRecords(0); !errors.Is(err, record.ErrTooLarge) {
			t.Errorf("%s: limit 0: %v", c.name, err)
		}
	}
}

func TestSnappyFramings(t *testing.T) {
	const plain = "\x0c\x00\x00\x00\x01\x01\x00" + "\x0c\x00\x00\x02\x01\x01\x00"
	const xerial = "\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
	literal := func(s string) string { // a snappy block without a compressor
		return string([]byte{byte(len(s)), byte(len(s)-1) << 2}) + s
	}
	chunk := func(block string) string { return string([]byte{0, 0, 0, byte(len(block))}) + block }
	for _, c := range []struct {
		name, payload string
		want          error
	}{
		{"raw", literal(plain), nil},
		{"xerial", xerial + chunk(literal(plain)), nil},
		{"xerial, two chunks", xerial + chunk(literal(plain[:3])) + chunk(literal(plain[3:])), nil},
		{"two xerial streams", xerial + chunk(literal(plain[:3])) + xerial + chunk(literal(plain[3:])), nil},
		{"xerial, empty chunk", xerial + chunk("\x00") + chunk(literal(plain)), nil},
		{"xerial, cut in the header", xerial[:15], record.ErrInvalid},
		{"xerial, cut in a length", xerial + chunk(literal(plain)) + "\x00", record.ErrInvalid},
		{"xerial, cut in a chunk", (xerial + chunk(literal(plain)))[:30], record.ErrInvalid},
		{"xerial, chunk of 4 GiB", xerial + "\xff\xff\xff\xff" + literal(plain), record.ErrInvalid},
		{"raw, claims 4 GiB", "\xff\xff\xff\xff\x0f\x00x", record.ErrTooLarge},
		{"raw, claims 1 MiB", "\x80\x80\x40\x00x", record.ErrInvalid},
		{"raw, copy before the start", "\x04\x00x\x05\x09", record.ErrInvalid},
	} {
		b := withPayload(t, record.Snappy, []byte(c.payload), 2)
		if err := b.VerifyRecords(1 << 24); !errors.Is(err, c.want) || err != nil && !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := withPayload(t, record.Snappy, []byte(xerial+chunk(literal(plain[:3]))+chunk(literal(plain[3:]))), 2).VerifyRecords(13); !errors.Is(err, record.ErrTooLarge) {
		t.Errorf("limit over all chunks: %v", err)
	}
}

// TestWrittenFraming pins what Kafka's Java client demands of what it reads.
func TestWrittenFraming(t *testing.T) {
	value := bytes.Repeat([]byte("0123456789abcdef"), 5000)
	payload := func(codec record.Compression) []byte {
		return build(t, &record.Builder{Compression: codec}, record.Record{Value: value}).Bytes()[61:]
	}
	t.Run("snappy", func(t *testing.T) {
		p := payload(record.Snappy)
		if !bytes.HasPrefix(p, []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")) {
			t.Fatalf("header %x", p[:16])
		}
		p = p[16:]
		chunks, total := 0, 0
		for len(p) > 0 {
			n := binary.BigEndian.Uint32(p)
			out, err := snappy.DecodeStrict(nil, p[4:4+n]) // not the superset that package snappy reads
			if err != nil || len(out) > 32<<10 {
				t.Fatalf("chunk of %d bytes: %v", len(out), err)
			}
			chunks, total = chunks+1, total+len(out)
			p = p[4+n:]
		}
		if chunks != 3 || total < len(value) {
			t.Errorf("%d chunks, %d bytes", chunks, total)
		}
	})
	t.Run("lz4", func(t *testing.T) {
		p := payload(record.LZ4)
		// Magic; version 1, independent blocks, no checksums, no size; blocks of
		// 64 KiB; the right checksum of these two bytes.
		if !bytes.HasPrefix(p, []byte("\x04\x22\x4d\x18\x60\x40\x82")) {
			t.Errorf("header %x", p[:7])
		}
		if !bytes.HasSuffix(p, []byte("\x00\x00\x00\x00")) {
			t.Errorf("no end mark: %x", p[len(p)-8:])
		}
	})
	t.Run("zstd", func(t *testing.T) {
		var h zstd.Header
		if err := h.Decode(payload(record.Zstd)); err != nil || h.WindowSize > 8<<20 {
			t.Errorf("window of %d, %v", h.WindowSize, err)
		}
	})
}

// TestClaimsAllocateNothing hands in short payloads that claim to be huge.
func TestClaimsAllocateNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		codec record.Compression
		bytes string
	}{
		{"zstd, content of 60 MiB", record.Zstd, "\x28\xb5\x2f\xfd\xa0\x00\x00\xc0\x03\x01\x00\x00"},
		{"zstd, window of 3 GiB", record.Zstd, "\x28\xb5\x2f\xfd\x00\xae\x01\x00\x00"},
		{"zstd, 30 blocks of 2 MiB from a byte each", record.Zstd, "\x28\xb5\x2f\xfd\x00\x58" + strings.Repeat("\xfa\xff\xffx", 29) + "\xfb\xff\xffx"},
		{"snappy, 60 MiB", record.Snappy, "\x80\x80\x80\x1e\x00x"},
		{"snappy, xerial, 60 MiB", record.Snappy, "\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x06\x80\x80\x80\x1e\x00x"},
		{"lz4, content of 60 MiB", record.LZ4, "\x04\x22\x4d\x18\x68\x70\x00\x00\xc0\x03\x00\x00\x00\x00\x00\x00"},
	} {
		b := withPayload(t, c.codec, []byte(c.bytes), 1)
		b.VerifyRecords(record.DefaultMaxDecompressedBytes) // fills the pools
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, err := range b.Records() {
			if !errors.Is(err, record.ErrInvalid) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20+1<<18 {
			t.Errorf("%s: allocates %d bytes", c.name, n)
		}
	}
}

// TestBombs: what really decompresses to more than the bound is refused, and no
// more than about the bound is allocated on the way.
func TestBombs(t *testing.T) {
	for _, codec := range codecs[1:] {
		b := build(t, &record.Builder{Compression: codec}, record.Record{Value: make([]byte, 32<<20)})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := b.VerifyRecords(1 << 20); !errors.Is(err, record.ErrTooLarge) || !errors.Is(err, record.ErrInvalid) {
			t.Errorf("%v, 32 MiB in %d bytes: %v", codec, b.Size(), err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
			t.Errorf("%v: allocates %d bytes", codec, n)
		}
		n := 0
		for _, err := range b.RecordsWithin(1 << 20) {
			if n++; !errors.Is(err, record.ErrTooLarge) {
				t.Errorf("%v: %v", codec, err)
			}
		}
		if n != 1 {
			t.Errorf("%v: %d yields", codec, n)
		}
		if err := b.VerifyRecords(33 << 20); err != nil {
			t.Errorf("%v: %v", codec, err)
		}
	}
}

// TestZstdFrames has frames made by hand, without a compressor.
func TestZstdFrames(t *testing.T) {
	const head = "\x28\xb5\x2f\xfd\x00\x58" // no size, no checksum, window of 2 MiB
	raw := func(s string, last byte) string { return string([]byte{byte(len(s))<<3 | last, 0, 0}) + s }
	run := func(c byte, n byte, last byte) string { return string([]byte{n<<3 | 2 | last, 0, 0, c}) }
	const skip = "\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
	// A record with a value of 16 bytes.
	record1 := "\x2c\x00\x00\x00\x01\x20" + strings.Repeat("a", 16) + "\x00"
	for _, c := range []struct {
		name, payload string
		want          error
	}{
		{"raw block", head + raw(record1, 1), nil},
		{"raw and repeated", head + raw(record1[:6], 0) + run('a', 16, 0) + raw("\x00", 1), nil},
		{"two frames", head + raw(record1[:10], 1) + head + raw(record1[10:], 1), nil},
		{"skippable before", skip + head + raw(record1, 1), nil},
		{"skippable after", head + raw(record1, 1) + skip, nil},
		{"skippable cut", head + raw(record1, 1) + skip[:10], record.ErrInvalid},
		{"skippable of 4 GiB", head + raw(record1, 1) + "\x50\x2a\x4d\x18\xff\xff\xff\xff", record.ErrInvalid},
		{"no last block", head + raw(record1, 0), record.ErrInvalid},
		{"cut in a block", (head + raw(record1, 1))[:12], record.ErrInvalid},
		{"cut in a repeated block", head + run('a', 16, 1)[:3], record.ErrInvalid},
		{"reserved kind of block", head + "\x07\x00\x00", record.ErrInvalid},
		{"checksum missing", "\x28\xb5\x2f\xfd\x04\x58" + raw(record1, 1), record.ErrInvalid},
		{"checksum wrong", "\x28\xb5\x2f\xfd\x04\x58" + raw(record1, 1) + "abcd", record.ErrInvalid},
		{"bytes after the frame", head + raw(record1, 1) + "x", record.ErrInvalid},
		{"nothing", "", record.ErrInvalid},
	} {
		if err := withPayload(t, record.Zstd, []byte(c.payload), 1).VerifyRecords(1 << 20); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestZstdOfUnknownSize: streams, such as the Java client's, don't say how much they
// hold.
func TestZstdOfUnknownSize(t *testing.T) {
	plain := build(t, new(record.Builder), record.Record{Value: make([]byte, 8<<20)}).Bytes()[61:]
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var h zstd.Header
	if err := h.Decode(out.Bytes()); err != nil || h.HasFCS {
		t.Fatalf("header %+v, %v", h, err)
	}
	b := withPayload(t, record.Zstd, out.Bytes(), 1)
	if got := collect(t, b); len(got) != 1 || len(got[0].Value) != 8<<20 {
		t.Errorf("%d records", len(got))
	}
	if err := b.VerifyRecords(len(plain)); err != nil {
		t.Errorf("limit of just that size: %v", err)
	}
	if err := b.VerifyRecords(len(plain) - 1); !errors.Is(err, record.ErrTooLarge) {
		t.Errorf("limit of a byte less: %v", err)
	}
	twice := withPayload(t, record.Zstd, append(bytes.Clone(out.Bytes()), out.Bytes()...), 1)
	if err := twice.VerifyRecords(len(plain)); !errors.Is(err, record.ErrTooLarge) {
		t.Errorf("two frames: %v", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	var wg sync.WaitGroup
	for _, codec := range codecs {
		shared := build(t, &record.Builder{Compression: codec}, awkward()...).Clone()
		for range 2 {
			wg.Go(func() {
				for range 10 {
					b := build(t, &record.Builder{Compression: codec}, awkward()...)
					if !bytes.Equal(b.Bytes(), shared.Bytes()) && codec != record.Gzip {
						t.Errorf("%v: two builders differ", codec)
					}
					if len(collect(t, shared)) != 9 || shared.VerifyRecords(1<<20) != nil {
						t.Errorf("%v: wrong records", codec)
					}
				}
			})
		}
	}
	wg.Wait()
}

// TestBubbles: what works in a bubble leaves nothing behind that fails in the next one, or
// outside of any.
func TestBubbles(t *testing.T) {
	plain := bytes.Repeat([]byte("cordwood "), 1000)
	use := func(t *testing.T) {
		for _, codec := range []record.Compression{record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
			packed, err := record.Compress(nil, codec, plain)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := record.Decompress(nil, codec, packed, len(plain)); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%v: %d bytes, %v", codec, len(got), err)
			}
		}
	}
	for range 5 {
		synctest.Test(t, use)
		use(t)
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(10 * 365 * 24 * time.Hour)
			use(t)
		})
	}
}
