package record

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// An Offset numbers a record in a partition, from 0. Ranges of offsets are
// half-open.
type Offset int64

// An Epoch numbers a leadership of a partition, from 0; -1 ([NoEpoch]) is none.
type Epoch int32

const (
	// NoEpoch is the leader epoch of a batch that no leader has stamped.
	NoEpoch Epoch = -1

	// NoProducer is the producer id of a batch that is not idempotent. Its
	// producer epoch and base sequence are -1 too.
	NoProducer int64 = -1

	// NoTimestamp stands for no time, in Unix milliseconds. As a [Record]'s
	// Timestamp it is the zero time.Time.
	NoTimestamp int64 = -1
)

// Layout of a batch, version 2; numbers are big-endian. These positions are on
// disks and wires and must not change. See docs/format/record-batch.md.
//
//	offset  size  field
//	     0     8  base offset: offset of the first record
//	     8     4  length: bytes after this field
//	    12     4  partition leader epoch
//	    16     1  magic: 2
//	    17     4  CRC32C of all bytes from 21 on
//	    21     2  attributes: bits 0-2 compression, 3 log append time,
//	              4 transactional, 5 control, 6 delete horizon
//	    23     4  last offset delta: last offset - base offset
//	    27     8  base timestamp, Unix milliseconds
//	    35     8  max timestamp, Unix milliseconds
//	    43     8  producer id
//	    51     2  producer epoch
//	    53     4  base sequence
//	    57     4  record count
//	    61     -  records, compressed as a whole if bits 0-2 say so
const (
	lengthAt          = 8
	leaderEpochAt     = 12
	magicAt           = 16
	checksumAt        = 17
	attributesAt      = 21
	lastOffsetDeltaAt = 23
	baseTimestampAt   = 27
	maxTimestampAt    = 35
	producerIDAt      = 43
	producerEpochAt   = 51
	baseSequenceAt    = 53
	countAt           = 57

	// HeaderBytes is the size of a batch without its records; base offset and
	// length are counted.
	HeaderBytes = 61

	// lengthCountsFrom is where the bytes begin that the length field counts.
	lengthCountsFrom = 12

	magic = 2
)

// Attribute bits.
const (
	compressionBits   = 0x07
	logAppendTimeBit  = 1 << 3
	transactionalBit  = 1 << 4
	controlBit        = 1 << 5
	deleteHorizonBit  = 1 << 6
	minRecordBytes    = 7 // length, attributes, two deltas, key, value, header count: a byte each
	maxBatchSizeBytes = math.MaxInt32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Batch is a view over the bytes of one whole batch. Copies share the bytes, so
// the methods that set a field change it in all copies; they must not run while
// another goroutine uses one.
//
// Batches come from [Next] and from a [Builder]. The header can be read whatever
// the bytes are; that it is true is known after [Batch.Verify]. The zero Batch
// holds no bytes: only Bytes, Size, Clone and Verify may be called on it.
type Batch struct {
	b []byte // Invariant: nil, or HeaderBytes or more, exactly as long as the length field says, magic 2
}

// Next cuts the first batch off b and returns it, sharing memory, and the bytes
// after it. It looks at the length and the magic byte only: see [Batch.Verify].
//
// It returns [ErrShort] if b ends before the batch does, b being empty included,
// and an [*InvalidError] if b can't be the beginning of a batch: the length is
// impossible or above maxBatchBytes ([ErrTooLarge]), or the magic is not 2. With
// an error the rest is b. maxBatchBytes counts the whole batch; 0 or less is no
// bound.
func Next(b []byte, maxBatchBytes int) (Batch, []byte, error) {
	if len(b) < lengthCountsFrom {
		return Batch{}, b, ErrShort
	}
	base := Offset(binary.BigEndian.Uint64(b))
	length := int32(binary.BigEndian.Uint32(b[lengthAt:]))
	size := int64(length) + lengthCountsFrom
	switch {
	case size < HeaderBytes || size > maxBatchSizeBytes:
		return Batch{}, b, invalid(base, "length field is %d", length)
	case maxBatchBytes > 0 && size > int64(maxBatchBytes):
		return Batch{}, b, invalid(base, "batch of %d bytes: %w", size, ErrTooLarge)
	case len(b) > magicAt && b[magicAt] != magic:
		return Batch{}, b, invalid(base, "magic byte is %d", b[magicAt])
	case int64(len(b)) < size:
		return Batch{}, b, ErrShort
	}
	return Batch{b[:size:size]}, b[size:], nil
}

// Verify checks the checksum, and the header against itself: known compression,
// a record count that fits the offsets and the size, a producer where one is
// needed. A batch whose records were partly removed by compaction passes, and one
// with a producer but without sequence numbers, as Kafka's group coordinator writes
// for a transaction: see [Batch.VerifyNew]. It returns nil or an [*InvalidError],
// with [ErrChecksum] inside if it is the checksum.
//
// Base offset, length, leader epoch and magic are not under the checksum: leaders
// change the first and third in place. Verify does not look into the records: see
// [Batch.VerifyRecords]. It allocates nothing unless it fails.
func (b Batch) Verify() error {
	if len(b.b) < HeaderBytes {
		return invalid(-1, "no bytes")
	}
	if b.computeChecksum() != binary.BigEndian.Uint32(b.b[checksumAt:]) {
		return &InvalidError{Offset: b.BaseOffset(), Err: ErrChecksum}
	}
	delta, count := b.int32(lastOffsetDeltaAt), b.int32(countAt)
	payload := len(b.b) - HeaderBytes
	switch {
	case b.Compression() > Zstd:
		return invalid(b.BaseOffset(), "%w %d", ErrCompression, b.Compression())
	case delta < 0 || b.BaseOffset() > math.MaxInt64-1-Offset(delta):
		return invalid(b.BaseOffset(), "last offset delta is %d", delta)
	case count < 0 || int64(count) > int64(delta)+1:
		return invalid(b.BaseOffset(), "record count is %d in a range of %d offsets", count, int64(delta)+1)
	case b.Compression() == None && int64(payload) < int64(count)*minRecordBytes, count > 0 && payload == 0:
		return invalid(b.BaseOffset(), "%d records in %d bytes", count, payload)
	case b.ProducerID() < NoProducer:
		return invalid(b.BaseOffset(), "producer id is %d", b.ProducerID())
	case b.ProducerID() == NoProducer && b.IsTransactional():
		return invalid(b.BaseOffset(), "transactional without a producer id")
	case b.ProducerID() >= 0 && b.ProducerEpoch() < 0:
		return invalid(b.BaseOffset(), "producer epoch is %d", b.ProducerEpoch())
	case b.ProducerID() >= 0 && b.BaseSequence() < -1 && !b.IsControl():
		return invalid(b.BaseOffset(), "base sequence is %d", b.BaseSequence())
	}
	return nil
}

// VerifyNew is [Batch.Verify] with the rules for a batch that a producer hands in:
// as many records as offsets, at least one, sequence numbers if there is a producer
// id, and no control batch.
//
// Source: the checks of Kafka's LogValidator that need no decompression.
func (b Batch) VerifyNew() error {
	if err := b.Verify(); err != nil {
		return err
	}
	switch count, offsets := int64(b.Count()), int64(b.int32(lastOffsetDeltaAt))+1; {
	case count != offsets:
		return invalid(b.BaseOffset(), "record count is %d in a range of %d offsets", count, offsets)
	case b.IsControl():
		return invalid(b.BaseOffset(), "control batch from a producer")
	case b.ProducerID() >= 0 && b.BaseSequence() < 0:
		return invalid(b.BaseOffset(), "base sequence is %d", b.BaseSequence())
	case b.Attributes()&deleteHorizonBit != 0:
		return invalid(b.BaseOffset(), "delete horizon from a producer")
	}
	return nil
}

// Bytes returns the bytes of the batch, shared with it; nil for the zero Batch.
// Whoever changes them breaks the batch for all who hold it.
func (b Batch) Bytes() []byte { return b.b }

// Size returns the length of the whole batch in bytes.
func (b Batch) Size() int { return len(b.b) }

// Clone returns a batch with a copy of the bytes.
func (b Batch) Clone() Batch { return Batch{bytes.Clone(b.b)} }

// BaseOffset returns the offset of the first record.
func (b Batch) BaseOffset() Offset { return Offset(b.int64(0)) }

// LastOffset returns the offset of the last record.
func (b Batch) LastOffset() Offset { return b.BaseOffset() + Offset(b.int32(lastOffsetDeltaAt)) }

// NextOffset returns the offset after the last record: where the next batch begins.
func (b Batch) NextOffset() Offset { return b.LastOffset() + 1 }

// LeaderEpoch returns the epoch of the leader that appended the batch, [NoEpoch]
// if none did.
func (b Batch) LeaderEpoch() Epoch { return Epoch(b.int32(leaderEpochAt)) }

// Count returns the number of records, which is below that of offsets if
// compaction has removed some.
func (b Batch) Count() int { return int(b.int32(countAt)) }

// Attributes returns the attribute bits as they are.
func (b Batch) Attributes() int16 { return b.int16(attributesAt) }

// Compression returns how the records are compressed. A number above [Zstd] does
// not pass [Batch.Verify].
func (b Batch) Compression() Compression { return Compression(b.Attributes() & compressionBits) }

// IsControl reports whether the batch holds a control record in place of records
// of producers: consumers must not see it.
func (b Batch) IsControl() bool { return b.Attributes()&controlBit != 0 }

// IsTransactional reports whether the batch is part of a transaction, or ends one
// if it is a control batch.
func (b Batch) IsTransactional() bool { return b.Attributes()&transactionalBit != 0 }

// IsLogAppendTime reports whether all records have the time of the append,
// MaxTimestamp, rather than one that the producer gave them.
func (b Batch) IsLogAppendTime() bool { return b.Attributes()&logAppendTimeBit != 0 }

// BaseTimestamp returns the time, in Unix milliseconds, that the records' times
// are stored relative to: at first the time of the first record.
func (b Batch) BaseTimestamp() int64 { return b.int64(baseTimestampAt) }

// MaxTimestamp returns the highest time of a record in Unix milliseconds,
// [NoTimestamp] if none has one.
func (b Batch) MaxTimestamp() int64 { return b.int64(maxTimestampAt) }

// ProducerID returns the id of the idempotent producer, [NoProducer] if it is none.
func (b Batch) ProducerID() int64 { return b.int64(producerIDAt) }

// ProducerEpoch returns the epoch of the producer id, -1 if there is none.
func (b Batch) ProducerEpoch() int16 { return b.int16(producerEpochAt) }

// BaseSequence returns the producer's sequence number of the first record, -1 if
// there is none.
func (b Batch) BaseSequence() int32 { return b.int32(baseSequenceAt) }

// LastSequence returns the producer's sequence number of the last record, -1 if
// there is none.
func (b Batch) LastSequence() int32 {
	if b.BaseSequence() < 0 {
		return -1
	}
	return IncrementSequence(b.BaseSequence(), int(b.int32(lastOffsetDeltaAt)))
}

// SetBaseOffset sets the offset of the first record, and with it of all others, in
// place. The checksum does not cover it.
func (b Batch) SetBaseOffset(o Offset) { binary.BigEndian.PutUint64(b.b, uint64(o)) }

// SetLeaderEpoch sets the leader epoch in place. The checksum does not cover it.
func (b Batch) SetLeaderEpoch(e Epoch) { binary.BigEndian.PutUint32(b.b[leaderEpochAt:], uint32(e)) }

// SetLogAppendTime gives all records the same time, in Unix milliseconds, in place.
// It computes the checksum anew: the caller must have verified the old one.
func (b Batch) SetLogAppendTime(ms int64) {
	binary.BigEndian.PutUint16(b.b[attributesAt:], uint16(b.Attributes()|logAppendTimeBit))
	binary.BigEndian.PutUint64(b.b[maxTimestampAt:], uint64(ms))
	b.setChecksum()
}

// SetProducer sets the producer and the sequence number of the first record in
// place; ([NoProducer], -1, -1) is none. It computes the checksum anew: the caller
// must have verified the old one.
func (b Batch) SetProducer(id int64, epoch int16, baseSequence int32) {
	binary.BigEndian.PutUint64(b.b[producerIDAt:], uint64(id))
	binary.BigEndian.PutUint16(b.b[producerEpochAt:], uint16(epoch))
	binary.BigEndian.PutUint32(b.b[baseSequenceAt:], uint32(baseSequence))
	b.setChecksum()
}

// String describes the header on one line, for messages.
func (b Batch) String() string {
	if len(b.b) < HeaderBytes {
		return "no batch"
	}
	kind := "batch"
	if b.IsControl() {
		kind = "control batch"
	}
	return fmt.Sprintf("%s [%d,%d) epoch %d, %d records, %d bytes, %v", kind, b.BaseOffset(), b.NextOffset(), b.LeaderEpoch(), b.Count(), b.Size(), b.Compression())
}

// IncrementSequence returns the sequence number that is n records after seq.
// Sequence numbers go from 0 to the highest int32 and on from 0. A negative n
// counts back.
func IncrementSequence(seq int32, n int) int32 {
	return int32((int64(seq) + int64(n)) & math.MaxInt32)
}

func (b Batch) computeChecksum() uint32 { return crc32.Checksum(b.b[attributesAt:], castagnoli) }

func (b Batch) setChecksum() { binary.BigEndian.PutUint32(b.b[checksumAt:], b.computeChecksum()) }

func (b Batch) payload() []byte { return b.b[HeaderBytes:] }

func (b Batch) int16(at int) int16 { return int16(binary.BigEndian.Uint16(b.b[at:])) }
func (b Batch) int32(at int) int32 { return int32(binary.BigEndian.Uint32(b.b[at:])) }
func (b Batch) int64(at int) int64 { return int64(binary.BigEndian.Uint64(b.b[at:])) }
