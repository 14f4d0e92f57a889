package tier

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"sort"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// Segment object, version 1. Integers are big-endian, CRCs are CRC32C
// (Castagnoli). See docs/format/segment-object.md. On disk: must not change.
//
//	header   objectHeaderBytes + 12*lineage + 4
//	chunks   whole record batches, without anything between
//	sections chunk table, offset index, time index, aborted transactions,
//	         leader-epoch chain, producer state
//	footer   objectFooterBytes
//
// Header:
//
//	offset size field
//	0      8    magic "CWSEGOBJ"
//	8      2    version, 1
//	10     2    flags, 0
//	12     4    length of the header, CRC included
//	16     16   cluster id
//	32     16   topic id (it names the incarnation)
//	48     4    partition
//	52     4    leader epoch of the uploader
//	56     16   object id
//	72     8    base offset
//	80     8    end offset
//	88     8    time of sealing, Unix milliseconds
//	96     16   object id of the range below this one, zeros if there was none
//	112    4    number n of lineage entries
//	116    12n  lineage of [base, end): epoch (4), start offset (8)
//	...    4    CRC of all bytes before
//
// Footer:
//
//	0      8    position of the first section
//	8      4    length of the chunk table
//	12     4    length of the offset index
//	16     4    length of the time index
//	20     4    length of the aborted transactions
//	24     4    length of the leader-epoch chain
//	28     4    length of the producer state
//	32     16   object id
//	48     8    base offset
//	56     8    end offset
//	64     8    bytes of record batches
//	72     4    length of the header
//	76     4    CRC of all sections
//	80     2    version, 1
//	82     2    flags, 0
//	84     4    CRC of footer bytes 0-83
//	88     8    magic "CWSEGEND"
//
// Chunk table, 56 bytes a chunk:
//
//	0      8    position in the object
//	8      4    length as stored
//	12     4    length of the batches; the same without compression, else more
//	16     8    base offset
//	24     8    end offset
//	32     8    highest record time in the chunk, Unix milliseconds
//	40     4    CRC of the bytes as stored
//	44     4    codec, 0: none, 4: zstd
//	48     4    number of its entries in the offset index
//	52     4    number of its entries in the time index
//
// Offset index, 8 bytes an entry: offset minus the chunk's base (4), position of
// that batch in the chunk's batches (4). Time index, 12 bytes: highest record time
// of the range up to and with the batch (8), its base offset minus the chunk's
// base (4). Aborted transactions, 32 bytes: producer id, first offset, offset of the
// marker, last stable offset behind it (8 each), ascending by first offset: all that
// overlap the range, wherever their markers are. Leader-epoch chain, 12 bytes: epoch (4),
// start (8). Producer state: what log.ProducerSnapshot gave for the end offset.
const (
	objectMagic       = "CWSEGOBJ"
	objectEndMagic    = "CWSEGEND"
	objectVersion     = 1
	objectHeaderBytes = 116
	objectFooterBytes = 96
	chunkEntryBytes   = 56
	offsetEntryBytes  = 8
	timeEntryBytes    = 12
	abortedEntryBytes = 32
	epochEntryBytes   = 12

	// Bounds that a decoder believes. Chunks hold at least one batch, so they can
	// be as large as one.
	maxBatchBytes  = 256 << 20
	maxChunkBytes  = 512 << 20
	maxTailBytes   = 1 << 30
	maxObjectBytes = 1 << 40

	// indexBytes is the distance between two index entries of a chunk.
	indexBytes = 8 << 10

	// scanBytes is how much of the log is read at a time.
	scanBytes = 1 << 20
)

// An objectHeader is what an object says of itself, so that a log can be rebuilt
// from a listing.
type objectHeader struct {
	Cluster     ID
	Partition   log.PartitionID
	Epoch       log.Epoch
	ID          ID
	Base, End   log.Offset
	SealedMs    int64
	Predecessor ID
	Lineage     []log.EpochStart
}

func (h objectHeader) append(b []byte) []byte {
	at := len(b)
	b = append(b, objectMagic...)
	b = binary.BigEndian.AppendUint16(b, objectVersion)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(objectHeaderBytes+epochEntryBytes*len(h.Lineage)+4))
	b = append(b, h.Cluster[:]...)
	b = append(b, h.Partition.Topic[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(h.Partition.Index))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Epoch))
	b = append(b, h.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(h.Base))
	b = binary.BigEndian.AppendUint64(b, uint64(h.End))
	b = binary.BigEndian.AppendUint64(b, uint64(h.SealedMs))
	b = append(b, h.Predecessor[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.Lineage)))
	b = appendEpochs(b, h.Lineage)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

func appendEpochs(b []byte, l []log.EpochStart) []byte {
	for _, e := range l {
		b = binary.BigEndian.AppendUint32(b, uint32(e.Epoch))
		b = binary.BigEndian.AppendUint64(b, uint64(e.Start))
	}
	return b
}

func parseEpochs(b []byte) ([]log.EpochStart, error) {
	if len(b)%epochEntryBytes != 0 || len(b) > epochEntryBytes*maxLineage {
		return nil, fmt.Errorf("%w: epoch chain of %d bytes", ErrInvalidObject, len(b))
	}
	l := make([]log.EpochStart, 0, len(b)/epochEntryBytes)
	for ; len(b) > 0; b = b[epochEntryBytes:] {
		l = append(l, log.EpochStart{
			Epoch: log.Epoch(binary.BigEndian.Uint32(b)), Start: log.Offset(binary.BigEndian.Uint64(b[4:])),
		})
	}
	if !validLineage(l) {
		return nil, fmt.Errorf("%w: epoch chain %v", ErrInvalidObject, l)
	}
	return l, nil
}

// objectHeaderLength reads the length of a header from its first 16 bytes.
func objectHeaderLength(b []byte) (int, error) {
	if len(b) < 16 || string(b[:8]) != objectMagic {
		return 0, fmt.Errorf("%w: no magic at the start", ErrInvalidObject)
	}
	if v := binary.BigEndian.Uint16(b[8:]); v != objectVersion {
		return 0, &VersionError{What: "segment object", Version: int(v)}
	}
	n := binary.BigEndian.Uint32(b[12:])
	if n < objectHeaderBytes+4 || n > objectHeaderBytes+epochEntryBytes*maxLineage+4 {
		return 0, fmt.Errorf("%w: header of %d bytes", ErrInvalidObject, n)
	}
	return int(n), nil
}

// parseObjectHeader reads a header at the start of b.
func parseObjectHeader(b []byte) (objectHeader, error) {
	n, err := objectHeaderLength(b)
	if err != nil {
		return objectHeader{}, err
	}
	if len(b) < n {
		return objectHeader{}, fmt.Errorf("%w: header cut off at %d of %d bytes", ErrInvalidObject, len(b), n)
	}
	if crc32.Checksum(b[:n-4], castagnoli) != binary.BigEndian.Uint32(b[n-4:]) {
		return objectHeader{}, fmt.Errorf("%w: wrong checksum of the header", ErrInvalidObject)
	}
	if count := binary.BigEndian.Uint32(b[112:]); int64(count)*epochEntryBytes != int64(n-objectHeaderBytes-4) {
		return objectHeader{}, fmt.Errorf("%w: %d lineage entries in a header of %d bytes", ErrInvalidObject, count, n)
	}
	h := objectHeader{
		Cluster:     ID(b[16:32]),
		Partition:   log.PartitionID{Topic: log.TopicID(b[32:48]), Index: int32(binary.BigEndian.Uint32(b[48:]))},
		Epoch:       log.Epoch(binary.BigEndian.Uint32(b[52:])),
		ID:          ID(b[56:72]),
		Base:        log.Offset(binary.BigEndian.Uint64(b[72:])),
		End:         log.Offset(binary.BigEndian.Uint64(b[80:])),
		SealedMs:    int64(binary.BigEndian.Uint64(b[88:])),
		Predecessor: ID(b[96:112]),
	}
	if h.Lineage, err = parseEpochs(b[objectHeaderBytes : n-4]); err != nil {
		return objectHeader{}, err
	}
	if h.Partition.Index < 0 || h.Epoch < 0 || h.Base < 0 || h.End <= h.Base {
		return objectHeader{}, fmt.Errorf("%w: partition %v, epoch %d, range [%d, %d)", ErrInvalidObject, h.Partition, h.Epoch, h.Base, h.End)
	}
	return h, nil
}

// A chunk is one entry of the chunk table, with its share of the indexes.
type chunk struct {
	pos            int64
	stored, length int
	base, end      log.Offset
	maxTimestampMs int64
	sum            uint32 // of what is stored
	codec          codec
	offsets        []offsetEntry
	times          []timeEntry
}

type offsetEntry struct{ delta, pos uint32 }

type timeEntry struct {
	timestampMs int64
	delta       uint32
}

// An objectTail is everything of an object but header and batches.
type objectTail struct {
	id          ID
	base, end   log.Offset
	batchBytes  int64
	headerBytes int
	chunks      []chunk
	aborted     []log.AbortedTxn // that overlap the range, ascending by First
	epochs      []log.EpochStart
	producers   []byte
	memory      int64 // bytes that it keeps in memory, about
}

// append adds sections and footer. pos is where the first section stands.
func (t *objectTail) append(b []byte, pos int64) []byte {
	at := len(b)
	var lens [6]int
	section := func(i int, add func()) {
		from := len(b)
		add()
		lens[i] = len(b) - from
	}
	section(0, func() {
		for _, c := range t.chunks {
			b = binary.BigEndian.AppendUint64(b, uint64(c.pos))
			b = binary.BigEndian.AppendUint32(b, uint32(c.stored))
			b = binary.BigEndian.AppendUint32(b, uint32(c.length))
			b = binary.BigEndian.AppendUint64(b, uint64(c.base))
			b = binary.BigEndian.AppendUint64(b, uint64(c.end))
			b = binary.BigEndian.AppendUint64(b, uint64(c.maxTimestampMs))
			b = binary.BigEndian.AppendUint32(b, c.sum)
			b = binary.BigEndian.AppendUint32(b, uint32(c.codec))
			b = binary.BigEndian.AppendUint32(b, uint32(len(c.offsets)))
			b = binary.BigEndian.AppendUint32(b, uint32(len(c.times)))
		}
	})
	section(1, func() {
		for _, c := range t.chunks {
			for _, e := range c.offsets {
				b = binary.BigEndian.AppendUint32(b, e.delta)
				b = binary.BigEndian.AppendUint32(b, e.pos)
			}
		}
	})
	section(2, func() {
		for _, c := range t.chunks {
			for _, e := range c.times {
				b = binary.BigEndian.AppendUint64(b, uint64(e.timestampMs))
				b = binary.BigEndian.AppendUint32(b, e.delta)
			}
		}
	})
	section(3, func() {
		for _, a := range t.aborted {
			b = binary.BigEndian.AppendUint64(b, uint64(a.Producer))
			b = binary.BigEndian.AppendUint64(b, uint64(a.First))
			b = binary.BigEndian.AppendUint64(b, uint64(a.Last))
			b = binary.BigEndian.AppendUint64(b, uint64(a.LastStable))
		}
	})
	section(4, func() { b = appendEpochs(b, t.epochs) })
	section(5, func() { b = append(b, t.producers...) })
	sum := crc32.Checksum(b[at:], castagnoli)
	foot := len(b)
	b = binary.BigEndian.AppendUint64(b, uint64(pos))
	for _, n := range lens {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	b = append(b, t.id[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(t.base))
	b = binary.BigEndian.AppendUint64(b, uint64(t.end))
	b = binary.BigEndian.AppendUint64(b, uint64(t.batchBytes))
	b = binary.BigEndian.AppendUint32(b, uint32(t.headerBytes))
	b = binary.BigEndian.AppendUint32(b, sum)
	b = binary.BigEndian.AppendUint16(b, objectVersion)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b[foot:], castagnoli))
	return append(b, objectEndMagic...)
}

// objectTailLength reads from a footer how long the whole tail is.
func objectTailLength(footer []byte) (int64, error) {
	if len(footer) != objectFooterBytes || string(footer[88:]) != objectEndMagic {
		return 0, fmt.Errorf("%w: no magic at the end", ErrInvalidObject)
	}
	if crc32.Checksum(footer[:84], castagnoli) != binary.BigEndian.Uint32(footer[84:]) {
		return 0, fmt.Errorf("%w: wrong checksum of the footer", ErrInvalidObject)
	}
	if v := binary.BigEndian.Uint16(footer[80:]); v != objectVersion {
		return 0, &VersionError{What: "segment object", Version: int(v)}
	}
	n := int64(objectFooterBytes)
	for i := range 6 {
		n += int64(binary.BigEndian.Uint32(footer[8+4*i:]))
	}
	if n > maxTailBytes {
		return 0, fmt.Errorf("%w: tail of %d bytes", ErrInvalidObject, n)
	}
	return n, nil
}

// parseObjectTail reads the sections and the footer that b is. It shares no
// memory with b. Everything that a reader relies on is checked: chunks follow each
// other in position and offset, and index entries lie in their chunks.
func parseObjectTail(b []byte) (*objectTail, error) {
	bad := func(format string, a ...any) (*objectTail, error) {
		return nil, fmt.Errorf("%w: %s", ErrInvalidObject, fmt.Sprintf(format, a...))
	}
	if len(b) < objectFooterBytes {
		return bad("tail of %d bytes", len(b))
	}
	foot := b[len(b)-objectFooterBytes:]
	n, err := objectTailLength(foot)
	if err != nil {
		return nil, err
	}
	if n != int64(len(b)) {
		return bad("tail of %d bytes, its footer says %d", len(b), n)
	}
	sections := b[:len(b)-objectFooterBytes]
	if crc32.Checksum(sections, castagnoli) != binary.BigEndian.Uint32(foot[76:]) {
		return bad("wrong checksum of the sections")
	}
	pos := binary.BigEndian.Uint64(foot)
	if pos > maxObjectBytes {
		return bad("sections at %d", pos)
	}
	var part [6][]byte
	rest := sections
	for i := range part {
		n := binary.BigEndian.Uint32(foot[8+4*i:]) // their sum was checked
		part[i], rest = rest[:n], rest[n:]
	}
	t := &objectTail{
		id:          ID(foot[32:48]),
		base:        log.Offset(binary.BigEndian.Uint64(foot[48:])),
		end:         log.Offset(binary.BigEndian.Uint64(foot[56:])),
		batchBytes:  int64(binary.BigEndian.Uint64(foot[64:])),
		headerBytes: int(int32(binary.BigEndian.Uint32(foot[72:]))),
		memory:      int64(2*len(b)) + 256,
	}
	if t.base < 0 || t.end <= t.base || t.batchBytes <= 0 || t.batchBytes > maxObjectBytes || t.headerBytes < objectHeaderBytes+4 {
		return bad("range [%d, %d), %d bytes of batches, header of %d", t.base, t.end, t.batchBytes, t.headerBytes)
	}
	if len(part[0])%chunkEntryBytes != 0 || len(part[1])%offsetEntryBytes != 0 || len(part[2])%timeEntryBytes != 0 || len(part[3])%abortedEntryBytes != 0 {
		return bad("sections of uneven length")
	}
	t.chunks = make([]chunk, 0, len(part[0])/chunkEntryBytes)
	offsets := make([]offsetEntry, 0, len(part[1])/offsetEntryBytes)
	for b := part[1]; len(b) > 0; b = b[offsetEntryBytes:] {
		offsets = append(offsets, offsetEntry{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])})
	}
	times := make([]timeEntry, 0, len(part[2])/timeEntryBytes)
	for b := part[2]; len(b) > 0; b = b[timeEntryBytes:] {
		times = append(times, timeEntry{int64(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint32(b[8:])})
	}
	at, next, batches := int64(t.headerBytes), t.base, int64(0)
	for b := part[0]; len(b) > 0; b = b[chunkEntryBytes:] {
		stored, length := binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
		if stored == 0 || stored > maxChunkBytes || length < record.HeaderBytes || length > maxChunkBytes {
			return bad("chunk of %d bytes, %d stored", length, stored)
		}
		c := chunk{
			pos:            int64(binary.BigEndian.Uint64(b)),
			stored:         int(stored),
			length:         int(length),
			base:           log.Offset(binary.BigEndian.Uint64(b[16:])),
			end:            log.Offset(binary.BigEndian.Uint64(b[24:])),
			maxTimestampMs: int64(binary.BigEndian.Uint64(b[32:])),
			sum:            binary.BigEndian.Uint32(b[40:]),
			codec:          codec(binary.BigEndian.Uint32(b[44:])),
		}
		if err := c.codec.check(c.stored, c.length); err != nil {
			return nil, err
		}
		if c.pos != at || c.base != next || c.end <= c.base {
			return bad("chunk of [%d, %d) at %d, want base %d at %d", c.base, c.end, c.pos, next, at)
		}
		at, next, batches = at+int64(c.stored), c.end, batches+int64(c.length)
		no, nt := binary.BigEndian.Uint32(b[48:]), binary.BigEndian.Uint32(b[52:])
		if int64(no) > int64(len(offsets)) || int64(nt) > int64(len(times)) {
			return bad("chunk with %d and %d index entries of %d and %d left", no, nt, len(offsets), len(times))
		}
		c.offsets, offsets = offsets[:no:no], offsets[no:]
		c.times, times = times[:nt:nt], times[nt:]
		for i, e := range c.offsets {
			if int64(e.pos) >= int64(c.length) || log.Offset(e.delta) >= c.end-c.base || i > 0 && (e.delta <= c.offsets[i-1].delta || e.pos <= c.offsets[i-1].pos) {
				return bad("offset index entry %v in chunk [%d, %d)", e, c.base, c.end)
			}
		}
		for i, e := range c.times {
			if log.Offset(e.delta) >= c.end-c.base || i > 0 && (e.delta <= c.times[i-1].delta || e.timestampMs < c.times[i-1].timestampMs) {
				return bad("time index entry %v in chunk [%d, %d)", e, c.base, c.end)
			}
		}
		t.chunks = append(t.chunks, c)
	}
	if len(t.chunks) == 0 || next != t.end || at != int64(pos) || batches != t.batchBytes || len(offsets) > 0 || len(times) > 0 {
		return bad("%d chunks end at offset %d and byte %d, want %d and %d", len(t.chunks), next, at, t.end, pos)
	}
	for b := part[3]; len(b) > 0; b = b[abortedEntryBytes:] {
		a := log.AbortedTxn{
			Producer: int64(binary.BigEndian.Uint64(b)), First: log.Offset(binary.BigEndian.Uint64(b[8:])),
			Last: log.Offset(binary.BigEndian.Uint64(b[16:])), LastStable: log.Offset(binary.BigEndian.Uint64(b[24:])),
		}
		if a.Producer < 0 || a.First < 0 || a.First >= a.Last || a.First >= t.end || a.Last < t.base ||
			len(t.aborted) > 0 && a.First <= t.aborted[len(t.aborted)-1].First {
			return bad("aborted transaction %+v in [%d, %d)", a, t.base, t.end)
		}
		t.aborted = append(t.aborted, a)
	}
	if t.epochs, err = parseEpochs(part[4]); err != nil {
		return nil, err
	}
	if len(part[5]) > 0 {
		t.producers = append([]byte(nil), part[5]...)
	}
	return t, nil
}

// find returns the index of the chunk that holds off. Requires: base <= off < end.
func (t *objectTail) find(off log.Offset) int {
	return sort.Search(len(t.chunks), func(i int) bool { return t.chunks[i].end > off })
}

// seek returns where in the chunk's batches to start looking for off: at a batch
// whose base is at most off.
func (c *chunk) seek(off log.Offset) int {
	i := sort.Search(len(c.offsets), func(i int) bool { return c.base+log.Offset(c.offsets[i].delta) > off })
	if i == 0 {
		return 0
	}
	return int(c.offsets[i-1].pos)
}

// A batchReader reads whole batches of a log from the one that holds from on,
// none of which ends above below; at most maxBytes but at least one. release is
// called when the bytes are no longer used.
type batchReader func(ctx context.Context, from, below log.Offset, maxBytes int) (batches []byte, release func(), err error)

// readLog is the batchReader of a log.
func readLog(l *log.Log) batchReader {
	return func(ctx context.Context, from, below log.Offset, maxBytes int) ([]byte, func(), error) {
		s, err := l.ReadBelow(ctx, from, below, maxBytes)
		if err != nil {
			return nil, nil, err
		}
		return s.Bytes(), s.Release, nil
	}
}

// An objectPlan describes an object completely without holding its batches: its
// bytes can be had any number of times from the log, and are the same each time.
type objectPlan struct {
	info         objectHeader
	from         log.Offset // where reading began: in the first batch
	header, tail []byte
	chunks       []chunk // without indexes
	size         int64
	batchBytes   int64
	maxTimestamp int64
	sum          uint32 // of the whole object
	largest      int    // chunk, before compression
	packing      []byte // the chunk that is being planned, if chunks are to be compressed
	plain        int    // bytes of it in batches that are not compressed
}

// planObject reads the range [from, info.End) of a log once, checks every batch
// and lays the object out. from may lie inside a batch: info.Base becomes that
// batch's base. What is read at a time is bounded by scanBytes and one batch, and with
// compress two chunks are in memory.
func planObject(ctx context.Context, read batchReader, from log.Offset, info objectHeader, epochs []log.EpochStart, aborted []log.AbortedTxn, producers []byte, chunkBytes int64, compress bool) (*objectPlan, error) {
	p := &objectPlan{info: info, from: from, maxTimestamp: math.MinInt64}
	t := &objectTail{id: info.ID, end: info.End, epochs: epochs, aborted: aborted, producers: producers}
	var c *chunk
	for at := from; at < info.End; {
		batches, release, err := read(ctx, at, info.End, int(min(scanBytes, chunkBytes)))
		if err != nil {
			return nil, fmt.Errorf("read offset %d: %w", at, err)
		}
		if len(batches) == 0 {
			release()
			return nil, fmt.Errorf("%w: no whole batch from offset %d below %d", ErrInvalidObject, at, info.End)
		}
		for rest := batches; len(rest) > 0; {
			var b record.Batch
			if b, rest, err = record.Next(rest, maxBatchBytes); err == nil {
				err = b.Verify()
			}
			if err == nil && p.header == nil {
				if b.BaseOffset() > from || b.NextOffset() <= from {
					err = fmt.Errorf("%w: batch [%d, %d) does not hold offset %d", ErrInvalidObject, b.BaseOffset(), b.NextOffset(), from)
				} else {
					p.info.Base, at = b.BaseOffset(), b.BaseOffset()
					p.header = p.info.append(nil)
					p.size, p.sum = int64(len(p.header)), crc32.Checksum(p.header, castagnoli)
				}
			}
			if err == nil && b.BaseOffset() != at {
				err = fmt.Errorf("%w: batch at %d, want %d", ErrInvalidObject, b.BaseOffset(), at)
			}
			if err != nil {
				release()
				return nil, fmt.Errorf("batch at offset %d: %w", at, err)
			}
			if c == nil || int64(c.length)+int64(b.Size()) > chunkBytes {
				p.seal(c, compress)
				t.chunks = append(t.chunks, chunk{pos: p.size, base: at, maxTimestampMs: math.MinInt64})
				c = &t.chunks[len(t.chunks)-1]
			}
			p.maxTimestamp = max(p.maxTimestamp, b.MaxTimestamp())
			c.add(b, p.maxTimestamp)
			p.batchBytes += int64(b.Size())
			if compress {
				p.packing = append(p.packing, b.Bytes()...)
				if b.Compression() == record.None {
					p.plain += b.Size()
				}
			} else {
				p.sum = crc32.Update(p.sum, castagnoli, b.Bytes())
			}
			at = b.NextOffset()
		}
		release()
	}
	if p.header == nil {
		return nil, fmt.Errorf("%w: empty range [%d, %d)", ErrInvalidObject, from, info.End)
	}
	p.seal(c, compress)
	p.packing = nil
	t.base, t.batchBytes, t.headerBytes = p.info.Base, p.batchBytes, len(p.header)
	p.tail = t.append(nil, p.size)
	p.size += int64(len(p.tail))
	p.sum = crc32.Update(p.sum, castagnoli, p.tail)
	p.chunks = t.chunks
	for i := range p.chunks {
		p.chunks[i].offsets, p.chunks[i].times = nil, nil
		p.largest = max(p.largest, p.chunks[i].length)
	}
	return p, nil
}

// seal ends a chunk, compressed if most of it is not compressed already and it gets
// smaller. nil is for no chunk.
func (p *objectPlan) seal(c *chunk, compress bool) {
	if c == nil {
		return
	}
	if compress {
		stored := p.packing
		if 2*p.plain > len(stored) {
			if packed, ok := pack(nil, stored); ok {
				c.codec, c.stored, c.sum = codecZstd, len(packed), crc32.Checksum(packed, castagnoli)
				stored = packed
			}
		}
		p.sum = crc32.Update(p.sum, castagnoli, stored)
		p.packing, p.plain = p.packing[:0], 0
	}
	p.size += int64(c.stored)
}

// add appends a batch to the chunk. highest is the highest time of the range so far.
func (c *chunk) add(b record.Batch, highest int64) {
	delta := b.BaseOffset() - c.base
	last := 0
	if n := len(c.offsets); n > 0 {
		last = int(c.offsets[n-1].pos)
	}
	if c.length > 0 && c.length-last >= indexBytes && delta <= math.MaxUint32 {
		c.offsets = append(c.offsets, offsetEntry{uint32(delta), uint32(c.length)})
		c.times = append(c.times, timeEntry{highest, uint32(delta)})
	}
	c.maxTimestampMs = max(c.maxTimestampMs, b.MaxTimestamp())
	c.length += b.Size()
	c.stored = c.length
	c.end = b.NextOffset()
	c.sum = crc32.Update(c.sum, castagnoli, b.Bytes())
}

// An objectSource gives the bytes of a planned object from the log. While one chunk
// is given, the next is loaded: it holds two chunks in memory, and each once more if it
// is compressed.
type objectSource struct {
	ctx    context.Context // of the upload; reads fail after it
	cancel context.CancelFunc
	wg     sync.WaitGroup
	read   batchReader
	plan   *objectPlan
	token  chan struct{} // holds one token while nobody uses what follows
	have   *loadedChunk  // what is given, nil for none
	ahead  *loadedChunk  // what is loaded meanwhile, nil for none
}

// A loadedChunk is a chunk as it is to be stored, or on its way to be. What is behind
// done belongs to the goroutine that loads until that is closed.
type loadedChunk struct {
	i    int
	done chan struct{}

	err    error
	buf    []byte // batches
	packed []byte
	out    []byte // buf, or packed
}

// newObjectSource begins to load the first chunk. Requires: the caller closes it.
func newObjectSource(ctx context.Context, read batchReader, plan *objectPlan) *objectSource {
	s := &objectSource{read: read, plan: plan, token: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.ahead = s.start(0, &loadedChunk{})
	s.token <- struct{}{}
	return s
}

// close returns when nothing reads the log any more. Requires: no ReadAt is under way.
func (s *objectSource) close() {
	s.cancel()
	s.wg.Wait()
}

// ReadAt implements io.ReaderAt. The bytes are checked against the plan: a log
// that changed under the upload gives an error, not another object.
func (s *objectSource) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("tier: negative offset")
	}
	n := 0
	for n < len(p) {
		at := off + int64(n)
		switch head, tail := int64(len(s.plan.header)), s.plan.size-int64(len(s.plan.tail)); {
		case at >= s.plan.size:
			return n, io.EOF
		case at < head:
			n += copy(p[n:], s.plan.header[at:])
		case at >= tail:
			n += copy(p[n:], s.plan.tail[at-tail:])
		default:
			m, err := s.readChunk(p[n:], at)
			n += m
			if err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (s *objectSource) readChunk(p []byte, at int64) (int, error) {
	select {
	case <-s.token:
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	}
	defer func() { s.token <- struct{}{} }()
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	i := sort.Search(len(s.plan.chunks), func(i int) bool {
		return s.plan.chunks[i].pos+int64(s.plan.chunks[i].stored) > at
	})
	if s.have == nil || s.have.i != i {
		if err := s.turn(i); err != nil {
			return 0, err
		}
	}
	return copy(p, s.have.out[at-s.plan.chunks[i].pos:]), nil
}

// turn makes chunk i the one that is given, and has the one behind it loaded.
func (s *objectSource) turn(i int) error {
	free := s.have // its memory is used again
	s.have = nil
	if s.ahead == nil {
		s.ahead = s.start(i, &loadedChunk{})
	} else if s.ahead.i != i { // a jump
		if err := s.await(); err != nil {
			return err
		}
		s.ahead = s.start(i, s.ahead)
	}
	if err := s.await(); err != nil {
		return err
	}
	loaded := s.ahead
	s.ahead = nil
	if loaded.err != nil {
		return loaded.err
	}
	s.have = loaded
	if i+1 < len(s.plan.chunks) {
		if free == nil {
			free = &loadedChunk{}
		}
		s.ahead = s.start(i+1, free)
	}
	return nil
}

// await returns when what is loaded ahead is there, or has failed.
func (s *objectSource) await() error {
	select {
	case <-s.ahead.done:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// start has chunk i loaded, into the memory of free.
func (s *objectSource) start(i int, free *loadedChunk) *loadedChunk {
	l := &loadedChunk{i: i, done: make(chan struct{}), buf: free.buf, packed: free.packed}
	s.wg.Go(func() {
		defer close(l.done)
		l.err = s.load(l)
	})
	return l
}

// load fills in a chunk.
func (s *objectSource) load(l *loadedChunk) error {
	c := &s.plan.chunks[l.i]
	if l.buf == nil {
		l.buf = make([]byte, 0, s.plan.largest)
	}
	l.buf = l.buf[:0]
	// A log refuses offsets below its start, also those of a batch that holds it.
	for at := max(c.base, s.plan.from); at < c.end; {
		batches, release, err := s.read(s.ctx, at, c.end, min(c.length-len(l.buf), scanBytes))
		if err != nil {
			return fmt.Errorf("read offset %d: %w", at, err)
		}
		for rest := batches; len(rest) > 0 && err == nil; {
			var b record.Batch
			if b, rest, err = record.Next(rest, maxBatchBytes); err == nil {
				at = b.NextOffset()
			}
		}
		if err == nil && (len(batches) == 0 || len(l.buf)+len(batches) > c.length) {
			err = fmt.Errorf("%w: the log gave %d bytes of chunk [%d, %d), want %d", ErrCorrupt, len(l.buf)+len(batches), c.base, c.end, c.length)
		}
		if err == nil {
			l.buf = append(l.buf, batches...)
		}
		release()
		if err != nil {
			return err
		}
	}
	l.out = l.buf
	if c.codec != codecNone {
		l.packed, _ = pack(l.packed[:0], l.buf)
		l.out = l.packed
	}
	if len(l.buf) != c.length || len(l.out) != c.stored || crc32.Checksum(l.out, castagnoli) != c.sum {
		return fmt.Errorf("%w: the log changed under the upload of [%d, %d)", ErrCorrupt, c.base, c.end)
	}
	return nil
}

// maxTime returns the newest record time of the object.
func (p *objectPlan) maxTime() time.Time {
	return time.UnixMilli(max(0, min(p.maxTimestamp, maxTimeMillis)))
}
