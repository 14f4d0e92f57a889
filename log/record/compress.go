package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// A Compression says how the records of a batch are compressed, by Kafka's number.
type Compression uint8

// Kafka's codecs. The numbers are on disks and wires and must not change.
const (
	None   Compression = 0
	Gzip   Compression = 1
	Snappy Compression = 2 // written in the framing of Kafka's Java client, read in that and raw
	LZ4    Compression = 3 // frames of independent blocks
	Zstd   Compression = 4
)

// String returns Kafka's name of the codec.
func (c Compression) String() string {
	switch c {
	case None:
		return "none"
	case Gzip:
		return "gzip"
	case Snappy:
		return "snappy"
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("compression(%d)", uint8(c))
}

// Codecs are pooled: they hold up to some MiB each, and none holds a goroutine, so
// the collector may drop them at any time.
var (
	gzipWriters  = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}
	gzipReaders  = sync.Pool{New: func() any { return new(gzipReader) }}
	lz4Writers   = sync.Pool{New: func() any { return newLZ4Writer() }}
	lz4Readers   = sync.Pool{New: func() any { return &lz4Reader{Reader: lz4.NewReader(nil)} }}
	zstdEncoders = sync.Pool{New: func() any { return newZstdEncoder() }}
	zstdDecoders = sync.Pool{New: func() any { return newZstdDecoder() }}
	buffers      = sync.Pool{New: func() any { return new([]byte) }}
)

// began tells a bubble of testing/synctest, where it is the year 2000 or some years
// later, from the world in which this package was loaded. The channels in a zstd codec
// that is made in a bubble work nowhere else, and end the process that tries: so in a
// bubble nothing is taken from its pools or put there.
var began = time.Now()

func bubble() bool { return time.Now().Before(began) }

func takeZstd(p *sync.Pool) any {
	if bubble() {
		return p.New()
	}
	return p.Get()
}

func giveZstd(p *sync.Pool, codec any) {
	if !bubble() {
		p.Put(codec)
	}
}

type gzipReader struct {
	gzip.Reader
	src bytes.Reader
}

type lz4Reader struct {
	*lz4.Reader
	src bytes.Reader
}

// maxPooledBytes bounds the buffers that are kept for the next decompression.
const maxPooledBytes = 4 << 20

func takeBuffer() *[]byte { return buffers.Get().(*[]byte) }

func giveBuffer(p *[]byte, b []byte) {
	if cap(b) > 0 && cap(b) <= maxPooledBytes {
		*p = b[:0]
	}
	buffers.Put(p)
}

func newLZ4Writer() *lz4.Writer {
	w := lz4.NewWriter(nil)
	// What Kafka's Java client writes: it reads no dependent blocks, and its own
	// frames have no content checksum since the batch has one.
	err := w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false), lz4.BlockChecksumOption(false), lz4.ConcurrencyOption(1))
	if err != nil {
		panic(err) // constant options
	}
	return w
}

// zstdWindowBytes is enough for the usual batch; larger ones only compress a
// little less, and each encoder takes a multiple of it.
const zstdWindowBytes = 1 << 20

func newZstdEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(zstdWindowBytes))
	if err != nil {
		panic(err) // constant options
	}
	return e
}

// zstdMaxWindowBytes is the largest window that Kafka's clients read. No memory is
// taken for it here, since whole buffers are decoded, never streams.
const zstdMaxWindowBytes = 128 << 20

func newZstdDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(zstdMaxWindowBytes), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err) // constant options
	}
	return d
}

// Compress appends src to dst, compressed. The same bytes give the same result
// within one release of the libraries. It returns an error for a codec that is not
// one of the above, and never else. Safe for concurrent use.
func Compress(dst []byte, c Compression, src []byte) ([]byte, error) {
	switch c {
	case None:
		return append(dst, src...), nil
	case Gzip:
		w := gzipWriters.Get().(*gzip.Writer)
		defer gzipWriters.Put(w)
		out := appender{dst}
		w.Reset(&out)
		defer w.Reset(nil) // lets go of dst
		return out.finish(w, src)
	case Snappy:
		return appendXerial(dst, src), nil
	case LZ4:
		w := lz4Writers.Get().(*lz4.Writer)
		defer lz4Writers.Put(w)
		out := appender{dst}
		w.Reset(&out)
		defer w.Reset(nil) // lets go of dst
		return out.finish(w, src)
	case Zstd:
		e := takeZstd(&zstdEncoders).(*zstd.Encoder)
		defer giveZstd(&zstdEncoders, e)
		return e.EncodeAll(src, dst), nil
	}
	return nil, fmt.Errorf("record: %w %d", ErrCompression, c)
}

// An appender is an io.Writer that appends.
type appender struct{ b []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}

func (a *appender) finish(w io.WriteCloser, src []byte) ([]byte, error) {
	if _, err := w.Write(src); err != nil {
		return nil, fmt.Errorf("record: compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("record: compress: %w", err)
	}
	return a.b, nil
}

// Decompress appends what src decompresses to, at most limit bytes, to dst and
// returns it also with an error: [ErrTooLarge] above the limit, [ErrCompression] for
// a codec that is not one of the above, or that of the codec for damage. Nothing it
// allocates exceeds what src really holds by more than a constant factor, whatever
// lengths src claims. Safe for concurrent use.
func Decompress(dst []byte, c Compression, src []byte, limit int) ([]byte, error) {
	switch c {
	case None:
		if len(src) > limit {
			return dst, tooLarge(limit)
		}
		return append(dst, src...), nil
	case Gzip:
		r := gzipReaders.Get().(*gzipReader)
		defer gzipReaders.Put(r)
		r.src.Reset(src)
		defer r.src.Reset(nil)
		if err := r.Reset(&r.src); err != nil {
			return dst, fmt.Errorf("gzip: %w", unexpectedEOF(err))
		}
		return readAll(dst, r, c, limit)
	case Snappy:
		return appendSnappy(dst, src, limit)
	case LZ4:
		// The reader also takes the legacy format, with blocks of 8 MiB, which
		// Kafka's clients don't know.
		if len(src) < 4 || binary.LittleEndian.Uint32(src) != lz4Magic {
			return dst, errLZ4
		}
		r := lz4Readers.Get().(*lz4Reader)
		defer lz4Readers.Put(r)
		r.src.Reset(src)
		defer r.src.Reset(nil)
		r.Reset(&r.src)
		defer r.Reset(nil) // gives its buffers back
		return readAll(dst, r, c, limit)
	case Zstd:
		return appendZstd(dst, src, limit)
	}
	return dst, fmt.Errorf("%w %d", ErrCompression, c)
}

const lz4Magic = 0x184d2204

var errLZ4 = errors.New("lz4: not a frame")

func tooLarge(limit int) error {
	return fmt.Errorf("records decompress to more than %d bytes: %w", limit, ErrTooLarge)
}

func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readAll appends all of r to dst.
func readAll(dst []byte, r io.Reader, c Compression, limit int) ([]byte, error) {
	most := len(dst) + max(limit, 0)
	if most < len(dst) || most == math.MaxInt {
		most = math.MaxInt - 1
	}
	for {
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, max(512, min(cap(dst), most+1-len(dst))))
		}
		// One byte more than the limit shows that there is more.
		n, err := r.Read(dst[len(dst):min(cap(dst), most+1)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst) > most:
			return dst, tooLarge(limit)
		case err == io.EOF:
			return dst, nil
		case err != nil:
			return dst, fmt.Errorf("%v: %w", c, err)
		}
	}
}

const (
	zstdBlockBytes = 128 << 10 // most that a block decompresses to
	zstdSlackBytes = 64        // lets the decoder copy in words at the end
)

func appendZstd(dst, src []byte, limit int) ([]byte, error) {
	most, err := zstdBound(src)
	if err != nil {
		return dst, err
	}
	// The decoder gets room and takes no more. It fails at the block that does not
	// fit, so with one block above the limit, what came before it tells content that
	// is too large from damage.
	room := int(min(most, int64(max(limit, 0))+zstdBlockBytes, math.MaxInt32-zstdSlackBytes)) + zstdSlackBytes
	dst = slices.Grow(dst, room)
	d := takeZstd(&zstdDecoders).(*zstd.Decoder)
	defer giveZstd(&zstdDecoders, d)
	out, err := d.DecodeAll(src, dst[len(dst):len(dst):len(dst)+room])
	switch {
	case len(out) > limit, errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return dst, fmt.Errorf("zstd: %w", tooLarge(limit))
	case err != nil:
		return dst, fmt.Errorf("zstd: %w", err)
	}
	return dst[:len(dst)+len(out)], nil
}

// zstdBound returns how many bytes src decompresses to at most, by the headers of
// its frames and blocks. What a frame states is believed if its blocks can hold it.
func zstdBound(src []byte) (int64, error) {
	var bound int64
	for len(src) > 0 {
		var h zstd.Header
		if err := h.Decode(src); err != nil {
			return 0, fmt.Errorf("zstd: %w", err)
		}
		src = src[h.HeaderSize:]
		if h.Skippable {
			if int64(len(src)) < int64(h.SkippableSize) {
				return 0, errZstdCut
			}
			src = src[h.SkippableSize:]
			continue
		}
		var frame int64
		for last := false; !last; {
			if len(src) < 3 {
				return 0, errZstdCut
			}
			block := uint32(src[0]) | uint32(src[1])<<8 | uint32(src[2])<<16
			src = src[3:]
			last = block&1 == 1
			size, stored := int(block>>3), int(block>>3)
			switch block >> 1 & 3 {
			case 1: // one byte, repeated
				stored = 1
			case 2: // compressed
				size = zstdBlockBytes
			}
			if len(src) < stored {
				return 0, errZstdCut
			}
			src = src[stored:]
			frame += int64(min(size, zstdBlockBytes))
		}
		if h.HasCheckSum {
			if len(src) < 4 {
				return 0, errZstdCut
			}
			src = src[4:]
		}
		if h.HasFCS {
			if h.FrameContentSize > uint64(frame) {
				return 0, errZstdClaim
			}
			frame = int64(h.FrameContentSize)
		}
		bound += frame
	}
	return bound, nil
}

// Snappy is framed by Kafka's Java client as snappy-java's SnappyOutputStream does
// it, the xerial framing; numbers are big-endian:
//
//	size  field
//	   8  magic: 0x82 "SNAPPY" 0x00
//	   4  version: 1
//	   4  lowest version that can read it: 1
//	      then for each chunk
//	   4    length
//	   -    snappy block of up to 32 KiB of input
const (
	xerialMagic       = "\x82SNAPPY\x00"
	xerialHeaderBytes = 16
	xerialChunkBytes  = 32 << 10

	// snappyRatio is above what a snappy block can expand to: its densest element
	// copies 64 bytes for 3.
	snappyRatio = 64
)

var (
	errZstdCut     = errors.New("zstd: frame is cut off")
	errZstdClaim   = errors.New("zstd: frame is too short for the length it claims")
	errXerial      = errors.New("snappy: bad chunk")
	errSnappyClaim = errors.New("snappy: block is too short for the length it claims")
)

func appendXerial(dst, src []byte) []byte {
	dst = append(dst, xerialMagic...)
	dst = append(dst, 0, 0, 0, 1, 0, 0, 0, 1)
	for chunk := range slices.Chunk(src, xerialChunkBytes) {
		dst = slices.Grow(dst, 4+snappy.MaxEncodedLen(len(chunk)))
		at := len(dst)
		block := snappy.Encode(dst[at+4:cap(dst)], chunk)
		dst = dst[:at+4+len(block)]
		binary.BigEndian.PutUint32(dst[at:], uint32(len(block)))
	}
	return dst
}

func appendSnappy(dst, src []byte, limit int) ([]byte, error) {
	if !bytes.HasPrefix(src, []byte(xerialMagic)) {
		return appendSnappyBlock(dst, src, limit)
	}
	start := len(dst)
	for len(src) > 0 {
		// Streams may follow each other, each with its header.
		if bytes.HasPrefix(src, []byte(xerialMagic)) {
			if len(src) < xerialHeaderBytes {
				return dst, errXerial
			}
			src = src[xerialHeaderBytes:]
			continue
		}
		if len(src) < 4 {
			return dst, errXerial
		}
		n := binary.BigEndian.Uint32(src)
		src = src[4:]
		if uint64(n) > uint64(len(src)) {
			return dst, errXerial
		}
		var err error
		if dst, err = appendSnappyBlock(dst, src[:n], limit-(len(dst)-start)); err != nil {
			return dst, err
		}
		src = src[n:]
	}
	return dst, nil
}

func appendSnappyBlock(dst, src []byte, limit int) ([]byte, error) {
	n, err := snappy.DecodedLen(src)
	switch {
	case err == snappy.ErrTooLarge, err == nil && n > limit: // the error: more than an int holds
		return dst, fmt.Errorf("snappy: %w", tooLarge(limit))
	case err != nil:
		return dst, fmt.Errorf("snappy: %w", err)
	case int64(n) > int64(len(src))*snappyRatio:
		return dst, errSnappyClaim
	}
	dst = slices.Grow(dst, n)
	if _, err := snappy.Decode(dst[len(dst):len(dst)+n], src); err != nil {
		return dst, fmt.Errorf("snappy: %w", err)
	}
	return dst[:len(dst)+n], nil
}
