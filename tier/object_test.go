package tier

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// testBatches builds batches of one to three records from offset base on.
func testBatches(t testing.TB, base log.Offset, n int, valueBytes int) []byte {
	t.Helper()
	var out []byte
	r := rand.New(rand.NewPCG(uint64(n), uint64(valueBytes)))
	for i := range n {
		var b record.Builder
		for range 1 + r.IntN(3) {
			v := bytes.Repeat([]byte{byte(i)}, r.IntN(valueBytes+1))
			if err := b.Append(record.Record{Value: v, Timestamp: time.UnixMilli(int64(1000 + 10*i - r.IntN(30)))}); err != nil {
				t.Fatal(err)
			}
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		batch.SetBaseOffset(base)
		batch.SetLeaderEpoch(4)
		base = batch.NextOffset()
		out = append(out, batch.Bytes()...)
	}
	return out
}

// testSource is an objectSource that is closed with the test.
func testSource(ctx context.Context, t *testing.T, read batchReader, p *objectPlan) *objectSource {
	s := newObjectSource(ctx, read, p)
	t.Cleanup(s.close)
	return s
}

// readBytes is a batchReader over batches in memory. It gives at most limit bytes.
func readBytes(batches []byte, limit int) batchReader {
	return func(ctx context.Context, from, below log.Offset, maxBytes int) ([]byte, func(), error) {
		var out []byte
		for rest := batches; len(rest) > 0; {
			b, r, err := record.Next(rest, maxBatchBytes)
			if err != nil {
				return nil, nil, err
			}
			rest = r
			if b.NextOffset() <= from {
				continue
			}
			if b.NextOffset() > below || len(out) > 0 && len(out)+b.Size() > min(maxBytes, limit) {
				break
			}
			out = append(out, b.Bytes()...)
		}
		return out, func() { clear(out) }, nil
	}
}

func endOf(batches []byte) (end log.Offset) {
	for len(batches) > 0 {
		b, r, err := record.Next(batches, maxBatchBytes)
		if err != nil {
			panic(err)
		}
		end, batches = b.NextOffset(), r
	}
	return end
}

// testAborted overlap every object that begins at 100 or below and ends behind it.
var testAborted = []log.AbortedTxn{{Producer: 7, First: 3, Last: 100, LastStable: 101}, {Producer: 2, First: 99, Last: 1 << 40, LastStable: 150}}

func testPlan(t testing.TB, batches []byte, from log.Offset, chunkBytes int64) *objectPlan {
	t.Helper()
	return testPlanOf(t, batches, from, chunkBytes, false)
}

func testPlanOf(t testing.TB, batches []byte, from log.Offset, chunkBytes int64, compress bool) *objectPlan {
	t.Helper()
	p, err := planObject(t.Context(), readBytes(batches, 3000), from, objectHeader{
		Cluster: ID{9}, Partition: testPartition, Epoch: 5, ID: ID{1, 2}, End: endOf(batches), SealedMs: 12345, Predecessor: ID{7},
		Lineage: []log.EpochStart{{Epoch: 4, Start: 0}},
	}, []log.EpochStart{{Epoch: 1, Start: 0}, {Epoch: 4, Start: 2}}, testAborted, []byte("producers"), chunkBytes, compress)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestObjectRoundTrip writes an object through its ReaderAt and reads every offset
// back through the chunks.
func TestObjectRoundTrip(t *testing.T) {
	for _, test := range []struct {
		n, valueBytes int
		chunkBytes    int64
		compress      bool
	}{
		{1, 10, 4096, false}, {50, 100, 4096, false}, {400, 300, 8192, false}, {30, 9000, 4096, false}, {300, 200, 1 << 20, false},
		{1, 10, 4096, true}, {50, 100, 4096, true}, {400, 300, 8192, true}, {30, 9000, 4096, true}, {300, 200, 1 << 20, true},
	} {
		t.Run(fmt.Sprintf("%d/%d/%d/%v", test.n, test.valueBytes, test.chunkBytes, test.compress), func(t *testing.T) {
			batches := testBatches(t, 100, test.n, test.valueBytes)
			p := testPlanOf(t, batches, 100, test.chunkBytes, test.compress)
			src := testSource(t.Context(), t, readBytes(batches, 2000), p)
			object := make([]byte, p.size)
			if n, err := src.ReadAt(object, 0); n != len(object) || err != nil {
				t.Fatalf("ReadAt: %d, %v", n, err)
			}
			if crc32.Checksum(object, castagnoli) != p.sum {
				t.Error("the checksum of the plan is not that of the bytes")
			}
			// In pieces, in any order, the bytes are the same.
			r := rand.New(rand.NewPCG(1, 1))
			for range 50 {
				at := r.IntN(len(object))
				piece := make([]byte, 1+r.IntN(len(object)-at))
				if _, err := src.ReadAt(piece, int64(at)); err != nil || !bytes.Equal(piece, object[at:at+len(piece)]) {
					t.Fatalf("ReadAt(%d, %d): %v", at, len(piece), err)
				}
			}
			if n, err := src.ReadAt(make([]byte, 10), p.size-3); n != 3 || err != io.EOF {
				t.Errorf("ReadAt over the end: %d, %v", n, err)
			}

			h, err := parseObjectHeader(object)
			if err != nil || !reflect.DeepEqual(h, p.info) || h.Base != 100 {
				t.Errorf("header %+v, %v, want %+v", h, err, p.info)
			}
			tail, err := parseObjectTail(object[p.size-int64(len(p.tail)):])
			if err != nil {
				t.Fatal(err)
			}
			if tail.id != p.info.ID || tail.base != 100 || tail.end != endOf(batches) || string(tail.producers) != "producers" || !slices.Equal(tail.aborted, testAborted) || len(tail.epochs) != 2 {
				t.Errorf("tail %+v", tail)
			}
			if n, err := objectTailLength(object[p.size-objectFooterBytes:]); err != nil || n != int64(len(p.tail)) {
				t.Errorf("tail length %d, %v, want %d", n, err, len(p.tail))
			}
			for off := log.Offset(100); off < tail.end; off++ {
				c := &tail.chunks[tail.find(off)]
				raw, err := c.unpack(object[c.pos : c.pos+int64(c.stored)])
				if err != nil {
					t.Fatalf("chunk [%d, %d): %v", c.base, c.end, err)
				}
				s, err := cut(raw[c.seek(off):], off, 1)
				if err != nil {
					t.Fatalf("offset %d: %v", off, err)
				}
				b, rest, err := record.Next(s.b, maxBatchBytes)
				if err != nil || len(rest) > 0 || b.BaseOffset() > off || b.NextOffset() <= off {
					t.Fatalf("offset %d: batch [%d, %d), %d more bytes, %v", off, b.BaseOffset(), b.NextOffset(), len(rest), err)
				}
				all, err := cut(raw[c.seek(off):], off, 1<<30)
				if err != nil || all.end != c.end || all.base != s.base {
					t.Fatalf("offset %d: all of the chunk ends at %d, want %d: %v", off, all.end, c.end, err)
				}
			}
			stored := int64(len(batches))
			for i := range tail.chunks {
				c := &tail.chunks[i]
				if (c.codec != codecNone) != test.compress {
					t.Errorf("chunk %d has codec %d", i, c.codec)
				}
				stored -= int64(c.length - c.stored)
			}
			if int64(len(object)) != int64(len(p.header))+stored+int64(len(p.tail)) {
				t.Error("there is something between the batches")
			}
		})
	}
}

// TestWholeObjectInCache: a chunk that came with its whole object does not keep much
// more in memory than the cache counts.
func TestWholeObjectInCache(t *testing.T) {
	for _, test := range []struct {
		valueBytes int
		copied     bool
	}{{10, true}, {9000, false}} {
		p := testPlan(t, testBatches(t, 100, 1, test.valueBytes), 100, 64<<10)
		whole := make([]byte, p.size)
		if _, err := testSource(t.Context(), t, readBytes(testBatches(t, 100, 1, test.valueBytes), 2000), p).ReadAt(whole, 0); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		c := newColdReader(t.Context(), &wg, &Options{CacheBytes: 1 << 20, CacheChunks: 10, ChunkBytes: 64 << 10, Reads: 1, ReadBytes: 1 << 20})
		o := object{Range: Range{ID: p.info.ID, Base: p.info.Base, End: p.info.End, BatchBytes: p.batchBytes, ObjectBytes: p.size, TailBytes: int64(len(p.tail))}}
		if _, err := c.openTail(o, whole, 0); err != nil {
			t.Fatal(err)
		}
		e := c.cache[chunkKey(o.ID, 0)]
		if e == nil {
			t.Fatal("the chunk is not in the cache")
		}
		batches := e.Value.(*part).batches
		if copied := &batches[0] != &whole[p.chunks[0].pos]; copied != test.copied || !bytes.Equal(batches, whole[p.chunks[0].pos:][:len(batches)]) {
			t.Errorf("%d of %d bytes: copied %v", len(batches), len(whole), copied)
		}
	}
}

// TestObjectFromInsideABatch: a log start may cut the first batch. The object has
// it whole, and reads again only offsets that the log still serves.
func TestObjectFromInsideABatch(t *testing.T) {
	var b record.Builder
	for range 10 {
		if err := b.Append(record.Record{Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	batch.SetBaseOffset(50)
	inner := readBytes(batch.Bytes(), 1<<20)
	read := func(ctx context.Context, from, below log.Offset, maxBytes int) ([]byte, func(), error) {
		if from < 57 {
			return nil, nil, log.ErrOffsetOutOfRange
		}
		return inner(ctx, from, below, maxBytes)
	}
	p, err := planObject(t.Context(), read, 57, objectHeader{ID: ID{1}, Base: 57, End: 60}, nil, nil, nil, 4096, false)
	if err != nil {
		t.Fatal(err)
	}
	if p.info.Base != 50 {
		t.Errorf("base %d, want that of the batch", p.info.Base)
	}
	if _, err := testSource(t.Context(), t, read, p).ReadAt(make([]byte, p.size), 0); err != nil {
		t.Error(err)
	}
}

// TestObjectLogChanges: bytes that are not those of the plan never reach a store.
func TestObjectLogChanges(t *testing.T) {
	batches := testBatches(t, 0, 20, 100)
	p := testPlan(t, batches, 0, 4096)
	for name, changed := range map[string][]byte{
		"other bytes": func() []byte { c := bytes.Clone(batches); c[len(c)-1] ^= 1; return c }(),
		"shorter":     batches[:record.HeaderBytes*2+20],
		"other epoch": func() []byte {
			c := bytes.Clone(batches)
			b, _, _ := record.Next(c, maxBatchBytes)
			b.SetLeaderEpoch(9)
			return c
		}(),
	} {
		if _, err := testSource(t.Context(), t, readBytes(changed, 1<<20), p).ReadAt(make([]byte, p.size), 0); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errObsolete)
	if _, err := testSource(ctx, t, readBytes(batches, 1<<20), p).ReadAt(make([]byte, p.size), 0); !errors.Is(err, errObsolete) {
		t.Errorf("after the end of the upload: %v", err)
	}
}

func TestPlanRefuses(t *testing.T) {
	batches := testBatches(t, 0, 10, 100)
	end := endOf(batches)
	bad := bytes.Clone(batches)
	bad[len(bad)-1] ^= 1
	gap := append(bytes.Clone(batches), testBatches(t, end+5, 1, 10)...)
	tests := []struct {
		name    string
		batches []byte
		from    log.Offset
		end     log.Offset
	}{
		{"damaged batch", bad, 0, end},
		{"gap", gap, 0, endOf(gap)},
		{"end beyond the log", batches, 0, end + 1},
		{"nothing", nil, 0, 1},
		{"begins above", testBatches(t, 5, 3, 10), 2, 10},
	}
	for _, test := range tests {
		if _, err := planObject(t.Context(), readBytes(test.batches, 1<<20), test.from, objectHeader{ID: ID{1}, End: test.end}, nil, nil, nil, 4096, false); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
}

// TestPlanFits: what was planned ahead is used only for the very object that would be
// planned now.
func TestPlanFits(t *testing.T) {
	lineage := []log.EpochStart{{Epoch: 1, Start: 0}, {Epoch: 4, Start: 120}}
	p := &objectPlan{from: 110, info: objectHeader{Base: 100, End: 130, Predecessor: ID{7}, Lineage: lineage}}
	for _, test := range []struct {
		name      string
		from, end log.Offset
		below     ID
		lineage   []log.EpochStart
		want      bool
	}{
		{"the same", 110, 130, ID{7}, slices.Clone(lineage), true},
		{"the tier end moved", 111, 130, ID{7}, lineage, false},
		{"another segment", 110, 131, ID{7}, lineage, false},
		{"another range below", 110, 130, ID{8}, lineage, false},
		{"another lineage", 110, 130, ID{7}, []log.EpochStart{{Epoch: 1, Start: 0}, {Epoch: 5, Start: 120}}, false},
	} {
		if got := p.fits(test.from, test.end, test.below, test.lineage); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// TestPieces: the pieces of a chunk make it up, each offset is in the piece that it is
// said to be in, and whatever changes in one is noticed.
func TestPieces(t *testing.T) {
	batches := testBatches(t, 0, 300, 200)
	p := testPlan(t, batches, 0, 64<<10)
	tail, err := parseObjectTail(p.tail)
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for i := range tail.chunks {
		c := &tail.chunks[i]
		raw := batches[c.pos-int64(len(p.header)):][:c.length]
		n, last := 0, piece{end: c.base}
		for last.end < c.end {
			w := c.pieceAt(last.end, 20<<10)
			if w.lo != last.hi || w.base != last.end || w.hi <= w.lo || w.hi > w.lo+20<<10 {
				t.Fatalf("%+v after %+v", w, last)
			}
			n, last = n+1, w
		}
		if last.hi != c.length || last.end != c.end {
			t.Errorf("chunk [%d, %d) of %d bytes ends with %+v", c.base, c.end, c.length, last)
		}
		for off := c.base; off < c.end; off++ {
			for _, n := range []int{1, 20 << 10, math.MaxInt} {
				w := c.pieceAt(off, n)
				s, err := cut(raw[c.seek(off):w.hi], off, 1)
				if err != nil || c.seek(off) != w.lo || w.hi-w.lo > max(n, indexBytes+4096) {
					t.Fatalf("offset %d: %+v, %v", off, w, err)
				}
				if s.base > off || s.end <= off || s.end > w.end {
					t.Fatalf("offset %d: [%d, %d)", off, s.base, s.end)
				}
			}
		}
		most = max(most, n)
	}
	if len(tail.chunks) < 2 || most != 4 {
		t.Fatalf("%d chunks with up to %d pieces", len(tail.chunks), most)
	}
	c := &tail.chunks[1]
	w := c.pieceAt(c.base, 16<<10)
	good := batches[c.pos-int64(len(p.header)):][w.lo:w.hi]
	if err := w.check(good, tail.epochs); err != nil {
		t.Fatal(err)
	}
	first, _, err := record.Next(good, maxBatchBytes)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(good); i++ {
		if i == first.Size() { // the others by samples, among them bytes of headers
			i = len(good) - 2000
		}
		b := bytes.Clone(good)
		b[i] ^= 4
		if err := w.check(b, tail.epochs); err == nil {
			t.Fatalf("byte %d changed and not noticed", i)
		}
	}
	short, rest := good[:first.Size()], good[first.Size():]
	if w.check(short, tail.epochs) == nil || w.check(rest, tail.epochs) == nil || w.check(nil, tail.epochs) == nil {
		t.Error("batches are missing and nobody notices")
	}
}

func TestObjectDamage(t *testing.T) {
	p := testPlan(t, testBatches(t, 0, 60, 100), 0, 4096)
	for i := range p.header {
		c := bytes.Clone(p.header)
		c[i] ^= 0x40
		if _, err := parseObjectHeader(c); err == nil {
			t.Fatalf("header byte %d changed and not noticed", i)
		}
	}
	for i := range p.tail {
		c := bytes.Clone(p.tail)
		c[i] ^= 0x40
		if _, err := parseObjectTail(c); err == nil {
			t.Fatalf("tail byte %d changed and not noticed", i)
		}
	}
	for n := range p.tail {
		if _, err := parseObjectTail(p.tail[n+1:]); err == nil {
			t.Fatalf("tail without its first %d bytes not noticed", n+1)
		}
	}
	for n := range p.header {
		if _, err := parseObjectHeader(p.header[:n]); err == nil {
			t.Fatalf("header cut at %d not noticed", n)
		}
	}
}

func TestObjectOfNewerVersion(t *testing.T) {
	p := testPlan(t, testBatches(t, 0, 3, 100), 0, 4096)
	h := bytes.Clone(p.header)
	binary.BigEndian.PutUint16(h[8:], 2)
	var v *VersionError
	if _, err := parseObjectHeader(h); !errors.As(err, &v) || v.Version != 2 {
		t.Errorf("header: %v", err)
	}
	tail := bytes.Clone(p.tail)
	foot := tail[len(tail)-objectFooterBytes:]
	binary.BigEndian.PutUint16(foot[80:], 3)
	binary.BigEndian.PutUint32(foot[84:], crc32.Checksum(foot[:84], castagnoli))
	if _, err := parseObjectTail(tail); !errors.As(err, &v) || v.Version != 3 {
		t.Errorf("footer: %v", err)
	}
}

func FuzzObjectHeader(f *testing.F) {
	f.Add(testPlan(f, testBatches(f, 0, 5, 50), 0, 4096).header)
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		// Most inputs should get past the checksum.
		if n, err := objectHeaderLength(b); err == nil && n <= len(b) {
			binary.BigEndian.PutUint32(b[n-4:], crc32.Checksum(b[:n-4], castagnoli))
		}
		h, err := parseObjectHeader(b)
		if err != nil {
			return
		}
		again, err := parseObjectHeader(h.append(nil))
		if err != nil || !reflect.DeepEqual(h, again) {
			t.Fatalf("round trip: %+v, %+v, %v", h, again, err)
		}
	})
}

func FuzzObjectTail(f *testing.F) {
	f.Add(testPlan(f, testBatches(f, 0, 5, 50), 0, 4096).tail, int64(3))
	f.Add(testPlan(f, testBatches(f, 0, 200, 200), 0, 4096).tail, int64(100))
	f.Add(testPlanOf(f, testBatches(f, 0, 200, 200), 0, 4096, true).tail, int64(100))
	f.Fuzz(func(t *testing.T, b []byte, off int64) {
		b = bytes.Clone(b)
		if len(b) >= objectFooterBytes {
			foot := b[len(b)-objectFooterBytes:]
			binary.BigEndian.PutUint32(foot[76:], crc32.Checksum(b[:len(b)-objectFooterBytes], castagnoli))
			binary.BigEndian.PutUint32(foot[84:], crc32.Checksum(foot[:84], castagnoli))
		}
		tail, err := parseObjectTail(b)
		if err != nil {
			return
		}
		at := log.Offset(off)
		if at < tail.base || at >= tail.end {
			at = tail.base
		}
		c := &tail.chunks[tail.find(at)]
		if at < c.base || at >= c.end || c.seek(at) >= c.length {
			t.Fatalf("offset %d: chunk [%d, %d), position %d of %d", at, c.base, c.end, c.seek(at), c.length)
		}
		last := tail.chunks[len(tail.chunks)-1]
		again, err := parseObjectTail(tail.append(nil, last.pos+int64(last.stored)))
		if err != nil {
			t.Fatalf("round trip: %v", err)
		}
		again.memory = tail.memory
		if !reflect.DeepEqual(tail, again) {
			t.Fatalf("round trip: %+v, %+v", tail, again)
		}
	})
}

func FuzzCut(f *testing.F) {
	f.Add(testBatches(f, 0, 5, 50), int64(3), 1000)
	packed, _ := pack(nil, testBatches(f, 0, 50, 50))
	f.Add(packed, int64(3), 1000)
	f.Fuzz(func(t *testing.T, b []byte, off int64, maxBytes int) {
		// As what is stored of a compressed chunk whose checksum is right.
		c := &chunk{stored: len(b), length: 1 << 16, sum: crc32.Checksum(b, castagnoli), codec: codecZstd, end: 1 << 62}
		if u, err := c.unpack(b); err == nil {
			if len(u) != c.length {
				t.Errorf("a chunk of %d bytes is unpacked to %d", c.length, len(u))
			}
			b = u
		}
		s, err := cut(b, log.Offset(off), maxBytes)
		if err == nil && (len(s.b) == 0 || s.base > log.Offset(off) || s.end <= log.Offset(off)) {
			t.Errorf("offset %d: %d bytes with [%d, %d)", off, len(s.b), s.base, s.end)
		}
	})
}
