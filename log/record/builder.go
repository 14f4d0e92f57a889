package record

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// A Builder makes batches, one after the other, and reuses its memory. The zero
// value is ready to use. It is not safe for concurrent use.
type Builder struct {
	// Compression is the codec of the batches that Build returns.
	Compression Compression

	// MaxBytes bounds the size of a batch before compression; Append refuses a
	// record that would exceed it. 0 or less is no bound but the format's 2 GiB.
	MaxBytes int

	buf   []byte // header and records, uncompressed
	out   []byte // header and records, compressed
	count int32

	baseTimestamp, maxTimestamp int64

	producer      bool
	transactional bool
	producerID    int64
	producerEpoch int16
	baseSequence  int32
}

// Append adds a record, whose Offset does not matter: records are numbered from 0
// in the order of the calls. It keeps no memory of r. It returns an error that is
// [ErrTooLarge] and adds nothing if the batch would exceed MaxBytes.
func (b *Builder) Append(r Record) error {
	timestamp := millisOf(r.Timestamp)
	if b.count == 0 {
		b.baseTimestamp, b.maxTimestamp = timestamp, timestamp
	}
	// The delta may wrap; so it does when it is added again.
	timeDelta := timestamp - b.baseTimestamp
	body := 1 + varintBytes(timeDelta) + varintBytes(int64(b.count)) + fieldBytes(r.Key) + fieldBytes(r.Value) + varintBytes(int64(len(r.Headers)))
	for _, h := range r.Headers {
		body += varintBytes(int64(len(h.Key))) + int64(len(h.Key)) + fieldBytes(h.Value)
	}
	most := int64(maxBatchSizeBytes)
	if b.MaxBytes > 0 {
		most = min(most, int64(b.MaxBytes))
	}
	if size := int64(b.Size()) + varintBytes(body) + body; size > most || b.count == math.MaxInt32 {
		return fmt.Errorf("record: batch of %d bytes: %w", size, ErrTooLarge)
	}
	if len(b.buf) < HeaderBytes {
		b.buf = append(b.buf[:0], make([]byte, HeaderBytes)...)
	}
	buf := appendVarint(b.buf, body)
	buf = append(buf, 0)
	buf = appendVarint(buf, timeDelta)
	buf = appendVarint(buf, int64(b.count))
	buf = appendField(buf, r.Key)
	buf = appendField(buf, r.Value)
	buf = appendVarint(buf, int64(len(r.Headers)))
	for _, h := range r.Headers {
		buf = appendVarint(buf, int64(len(h.Key)))
		buf = append(buf, h.Key...)
		buf = appendField(buf, h.Value)
	}
	b.buf = buf
	b.count++
	b.maxTimestamp = max(b.maxTimestamp, timestamp)
	return nil
}

// Len returns the number of records appended since the last Reset.
func (b *Builder) Len() int { return int(b.count) }

// Size returns the size of the batch so far, in bytes, before compression.
func (b *Builder) Size() int { return max(len(b.buf), HeaderBytes) }

// SetProducer gives the batches to come, until Reset, an idempotent producer and
// the sequence number of their first record. Without it, they have none.
func (b *Builder) SetProducer(id int64, epoch int16, baseSequence int32) {
	b.producer, b.producerID, b.producerEpoch, b.baseSequence = true, id, epoch, baseSequence
}

// SetTransactional marks the batches to come, until Reset, as part of their
// producer's transaction.
func (b *Builder) SetTransactional() { b.transactional = true }

// Reset forgets the records and the producer. It keeps memory and codec. A batch
// that Build returned is no longer valid.
func (b *Builder) Reset() {
	b.buf = b.buf[:min(len(b.buf), HeaderBytes)]
	b.count = 0
	b.producer, b.transactional = false, false
}

// Build returns a batch with the records appended since the last Reset, base
// offset 0, leader epoch [NoEpoch]. It shares the builder's memory and is valid
// until the next call of Append, Reset or Build: [Batch.Clone] one that has to
// live longer. Stamping it in place is fine.
//
// It returns [ErrEmpty] without records, and an error that is [ErrCompression] for
// a codec that does not exist; the records stay.
func (b *Builder) Build() (Batch, error) {
	if b.count == 0 {
		return Batch{}, ErrEmpty
	}
	out := b.buf
	if b.Compression != None {
		var err error
		out = append(b.out[:0], b.buf[:HeaderBytes]...)
		if out, err = Compress(out, b.Compression, b.buf[HeaderBytes:]); err != nil {
			return Batch{}, err
		}
		b.out = out
		if len(out) > maxBatchSizeBytes {
			return Batch{}, fmt.Errorf("record: batch of %d bytes: %w", len(out), ErrTooLarge)
		}
	}
	h := header{
		attributes:    int16(b.Compression),
		count:         b.count,
		baseTimestamp: b.baseTimestamp,
		maxTimestamp:  b.maxTimestamp,
		producerID:    NoProducer,
		producerEpoch: -1,
		baseSequence:  -1,
		leaderEpoch:   NoEpoch,
	}
	if b.producer {
		h.producerID, h.producerEpoch, h.baseSequence = b.producerID, b.producerEpoch, b.baseSequence
	}
	if b.transactional {
		h.attributes |= transactionalBit
	}
	return h.seal(out), nil
}

// A header is what a batch is made with.
type header struct {
	leaderEpoch                 Epoch
	attributes                  int16
	count                       int32
	baseTimestamp, maxTimestamp int64
	producerID                  int64
	producerEpoch               int16
	baseSequence                int32
}

// seal writes the header over the first bytes of b, which the records follow.
func (h header) seal(b []byte) Batch {
	binary.BigEndian.PutUint64(b, 0)
	binary.BigEndian.PutUint32(b[lengthAt:], uint32(len(b)-lengthCountsFrom))
	binary.BigEndian.PutUint32(b[leaderEpochAt:], uint32(h.leaderEpoch))
	b[magicAt] = magic
	binary.BigEndian.PutUint16(b[attributesAt:], uint16(h.attributes))
	binary.BigEndian.PutUint32(b[lastOffsetDeltaAt:], uint32(h.count-1))
	binary.BigEndian.PutUint64(b[baseTimestampAt:], uint64(h.baseTimestamp))
	binary.BigEndian.PutUint64(b[maxTimestampAt:], uint64(h.maxTimestamp))
	binary.BigEndian.PutUint64(b[producerIDAt:], uint64(h.producerID))
	binary.BigEndian.PutUint16(b[producerEpochAt:], uint16(h.producerEpoch))
	binary.BigEndian.PutUint32(b[baseSequenceAt:], uint32(h.baseSequence))
	binary.BigEndian.PutUint32(b[countAt:], uint32(h.count))
	batch := Batch{b[:len(b):len(b)]}
	batch.setChecksum()
	return batch
}

func appendField(b, field []byte) []byte {
	if field == nil {
		return append(b, 1) // -1
	}
	return append(appendVarint(b, int64(len(field))), field...)
}

func appendVarint(b []byte, v int64) []byte {
	return binary.AppendUvarint(b, uint64(v)<<1^uint64(v>>63))
}

func fieldBytes(field []byte) int64 {
	if field == nil {
		return 1
	}
	return varintBytes(int64(len(field))) + int64(len(field))
}

func varintBytes(v int64) int64 {
	u := uint64(v)<<1 ^ uint64(v>>63)
	return int64(bits.Len64(u|1)+6) / 7
}
