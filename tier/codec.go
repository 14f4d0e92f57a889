package tier

import (
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cordwood-io/cordwood/log/record"
)

// A codec says how a chunk is stored: Kafka's numbers. On disk: must not change.
type codec uint32

const (
	codecNone codec = codec(record.None)
	codecZstd codec = codec(record.Zstd)
)

// check says whether this release reads the codec, and whether lengths can be
// right: compressed chunks are smaller than their batches.
func (c codec) check(stored, length int) error {
	switch {
	case c != codecNone && c != codecZstd:
		return &VersionError{What: "chunk codec", Version: int(c)}
	case c == codecNone && stored != length, c != codecNone && stored >= length:
		return fmt.Errorf("%w: chunk of %d bytes, %d stored with codec %d", ErrInvalidObject, length, stored, c)
	}
	return nil
}

// pack appends a chunk's batches to dst, compressed, and reports whether that is
// worth it: it must save a sixteenth, else readers decompress for nothing.
func pack(dst, batches []byte) ([]byte, bool) {
	out, err := record.Compress(dst, record.Zstd, batches)
	if err != nil {
		return dst, false // not of this codec
	}
	return out, len(out)-len(dst) <= len(batches)-len(batches)/16
}

var errChunkSum = errors.New("wrong checksum of the chunk")

// unpack returns the batches of a chunk as it was stored; they share its memory if
// it is not compressed. What it allocates is bounded by what is really in stored,
// and by c.length.
func (c *chunk) unpack(stored []byte) ([]byte, error) {
	if len(stored) != c.stored || crc32.Checksum(stored, castagnoli) != c.sum {
		return nil, errChunkSum
	}
	if c.codec == codecNone {
		return stored, nil
	}
	b, err := record.Decompress(nil, record.Compression(c.codec), stored, c.length)
	if err == nil && len(b) != c.length {
		err = fmt.Errorf("it has %d bytes", len(b))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: chunk of %d bytes: %w", ErrInvalidObject, c.length, err)
	}
	return b, nil
}

// memory returns how many bytes reading the chunk takes while it is under way.
func (c *chunk) memory() int64 {
	if c.codec == codecNone {
		return int64(c.stored)
	}
	return int64(c.stored) + int64(c.length)
}
