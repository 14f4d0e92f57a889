package record

import (
	"bytes"
	"errors"
	"iter"
	"math"
	"slices"
	"time"
)

// DefaultMaxDecompressedBytes is how many bytes the records of one batch may
// decompress to in [Batch.Records].
const DefaultMaxDecompressedBytes = 64 << 20

// A Record is one record of a batch.
type Record struct {
	// Offset is set by what reads records. A [Builder] numbers them itself.
	Offset Offset

	// Timestamp has milliseconds; what is finer is cut off. The zero Time stands
	// for none. Times that are read are in UTC.
	Timestamp time.Time

	// Key and Value are the producer's bytes; nil is Kafka's null, which is
	// another thing than empty.
	Key, Value []byte

	// Headers travel with the record, in order; keys may repeat.
	Headers []Header
}

// A Header is a named value that travels with a record. A nil Value is null.
type Header struct {
	Key   string
	Value []byte
}

// Layout of a record inside a batch. Varints are zigzag-coded, of at most 5 bytes,
// the timestamp delta's of at most 10.
//
//	size    field
//	varint  length of what follows
//	     1  attributes: not used
//	varint  timestamp - base timestamp
//	varint  offset - base offset
//	varint  length of the key, -1 for null
//	     -  key
//	varint  length of the value, -1 for null
//	     -  value
//	varint  number of headers; for each
//	varint    length of its key
//	     -    key
//	varint    length of its value, -1 for null
//	     -    value

// Records iterates over the records in order. Each run of the iterator starts
// anew. If the records can't be decoded it yields an [*InvalidError] once, last,
// after the records before that place; those are as good as their checksum, which
// is not checked here. Records that decompress to more than
// [DefaultMaxDecompressedBytes] are refused with [ErrTooLarge].
//
// Keys, values and header values share the memory of an uncompressed batch, and
// must not be used after its bytes have been changed or reused. Those of a
// compressed batch share one buffer of their own, which nothing reuses. Writing to
// them is writing to that memory; appending to them is safe.
func (b Batch) Records() iter.Seq2[Record, error] {
	return b.RecordsWithin(DefaultMaxDecompressedBytes)
}

// RecordsWithin is [Batch.Records] with another bound on the bytes that the
// records decompress to. A bound of 0 or less admits no compressed record.
func (b Batch) RecordsWithin(maxDecompressedBytes int) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		data := b.payload()
		if b.Compression() != None && len(data) > 0 {
			scratch := takeBuffer()
			out, err := Decompress((*scratch)[:0], b.Compression(), data, maxDecompressedBytes)
			if err == nil {
				data = bytes.Clone(out)
			}
			giveBuffer(scratch, out)
			if err != nil {
				yield(Record{}, &InvalidError{Offset: b.BaseOffset(), Err: err})
				return
			}
		}
		c := newCursor(b, data)
		for c.more() {
			r, err := c.next()
			var headers []Header
			if err == nil && r.headerCount > 0 {
				headers, err = parseHeaders(r.headers, r.headerCount, true)
			}
			if err != nil {
				yield(Record{}, c.at(err))
				return
			}
			if !yield(Record{Offset: b.BaseOffset() + Offset(r.offsetDelta), Timestamp: timeOf(r.timestamp), Key: r.key, Value: r.value, Headers: headers}, nil) {
				return
			}
		}
		if err := c.end(); err != nil {
			yield(Record{}, c.at(err))
		}
	}
}

// VerifyRecords decodes all records and returns the [*InvalidError] that
// [Batch.RecordsWithin] would yield, or nil. It keeps no memory and allocates none
// for an uncompressed batch. A leader that takes batches from hosts it does not
// trust calls it before the append, so that no consumer meets records that can't
// be read.
func (b Batch) VerifyRecords(maxDecompressedBytes int) error {
	data := b.payload()
	if b.Compression() != None && len(data) > 0 {
		scratch := takeBuffer()
		out, err := Decompress((*scratch)[:0], b.Compression(), data, maxDecompressedBytes)
		defer giveBuffer(scratch, out)
		if err != nil {
			return &InvalidError{Offset: b.BaseOffset(), Err: err}
		}
		data = out
	}
	c := newCursor(b, data)
	for c.more() {
		r, err := c.next()
		if err == nil {
			_, err = parseHeaders(r.headers, r.headerCount, false)
		}
		if err != nil {
			return c.at(err)
		}
	}
	if err := c.end(); err != nil {
		return c.at(err)
	}
	return nil
}

var (
	errVarint      = errors.New("bad varint")
	errRecordSize  = errors.New("record length does not fit its content")
	errFieldLength = errors.New("field length is out of range")
	errOffsetDelta = errors.New("offset is out of order or of range")
	errHeaderCount = errors.New("number of headers is negative")
	errFewer       = errors.New("fewer records than the header counts")
	errTrailing    = errors.New("bytes after the last record")
)

// A cursor reads the records of one batch off their decompressed bytes.
type cursor struct {
	base        Offset
	timestamp   int64 // base of the deltas; the time of all if fixed
	fixed       bool
	lastDelta   int32
	count, read int32
	prevDelta   int32
	b           []byte
}

type rawRecord struct {
	timestamp   int64
	offsetDelta int32
	key, value  []byte
	headers     []byte
	headerCount int
}

func newCursor(b Batch, data []byte) cursor {
	c := cursor{
		base:      b.BaseOffset(),
		timestamp: b.BaseTimestamp(),
		lastDelta: b.int32(lastOffsetDeltaAt),
		count:     b.int32(countAt),
		prevDelta: -1,
		b:         data,
	}
	if b.IsLogAppendTime() {
		c.timestamp, c.fixed = b.MaxTimestamp(), true
	}
	return c
}

func (c *cursor) more() bool { return c.read < c.count && len(c.b) > 0 }

// at says which record an error is about.
func (c *cursor) at(err error) error { return invalid(c.base, "record %d: %w", c.read, err) }

// end is called when there is no more.
func (c *cursor) end() error {
	switch {
	case c.read != c.count: // below 0 too, in a header that was not verified
		return errFewer
	case len(c.b) > 0:
		return errTrailing
	}
	return nil
}

func (c *cursor) next() (rawRecord, error) {
	length, b, ok := varint(c.b)
	if !ok {
		return rawRecord{}, errVarint
	}
	if length < 0 || int64(length) > int64(len(b)) {
		return rawRecord{}, errRecordSize
	}
	rest := b[length:]
	b = b[:length]
	if len(b) == 0 {
		return rawRecord{}, errRecordSize
	}
	var r rawRecord
	timeDelta, b, ok := varlong(b[1:]) // b[0]: attributes, not used
	if !ok {
		return rawRecord{}, errVarint
	}
	r.timestamp = c.timestamp
	if !c.fixed {
		r.timestamp += timeDelta
	}
	if r.offsetDelta, b, ok = varint(b); !ok {
		return rawRecord{}, errVarint
	}
	if r.offsetDelta <= c.prevDelta || r.offsetDelta > c.lastDelta {
		return rawRecord{}, errOffsetDelta
	}
	var err error
	if r.key, b, err = field(b, true); err != nil {
		return rawRecord{}, err
	}
	if r.value, b, err = field(b, true); err != nil {
		return rawRecord{}, err
	}
	n, b, ok := varint(b)
	if !ok {
		return rawRecord{}, errVarint
	}
	if n < 0 {
		return rawRecord{}, errHeaderCount
	}
	if n == 0 && len(b) > 0 {
		return rawRecord{}, errRecordSize
	}
	r.headerCount, r.headers = int(n), b
	c.prevDelta = r.offsetDelta
	c.b = rest
	c.read++
	return r, nil
}

func parseHeaders(b []byte, n int, keep bool) ([]Header, error) {
	var headers []Header
	if keep {
		headers = make([]Header, 0, min(n, 64)) // longer lists grow with what is really there
	}
	for range n {
		key, rest, err := field(b, false)
		if err != nil {
			return nil, err
		}
		value, rest, err := field(rest, true)
		if err != nil {
			return nil, err
		}
		if keep {
			headers = append(headers, Header{Key: string(key), Value: value})
		}
		b = rest
	}
	if len(b) > 0 {
		return nil, errRecordSize
	}
	return slices.Clip(headers), nil
}

// field reads a length and that many bytes.
func field(b []byte, nullable bool) (value, rest []byte, err error) {
	n, b, ok := varint(b)
	switch {
	case !ok:
		return nil, nil, errVarint
	case n == -1 && nullable:
		return nil, b, nil
	case n < 0 || int64(n) > int64(len(b)):
		return nil, nil, errFieldLength
	}
	return b[:n:n], b[n:], nil
}

// varint reads a zigzag-coded 32-bit number of at most 5 bytes.
func varint(b []byte) (v int32, rest []byte, ok bool) {
	u, rest, ok := uvarint(b, 5)
	if !ok || u > math.MaxUint32 {
		return 0, nil, false
	}
	w := uint32(u)
	return int32(w>>1) ^ -int32(w&1), rest, true
}

// varlong reads a zigzag-coded 64-bit number of at most 10 bytes.
func varlong(b []byte) (v int64, rest []byte, ok bool) {
	u, rest, ok := uvarint(b, 10)
	return int64(u>>1) ^ -int64(u&1), rest, ok
}

func uvarint(b []byte, most int) (v uint64, rest []byte, ok bool) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), b[1:], true
	}
	for i, c := range b[:min(len(b), most)] {
		if i == 9 && c > 1 {
			return 0, nil, false
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, b[i+1:], true
		}
	}
	return 0, nil, false
}

func timeOf(ms int64) time.Time {
	if ms == NoTimestamp {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func millisOf(t time.Time) int64 {
	if t.IsZero() {
		return NoTimestamp
	}
	return t.UnixMilli()
}
