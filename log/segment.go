package log

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// A segment is one .log file.
type segment struct {
	dir string
	h   *handle

	// Of the active segment only base is set, the rest stands in the Log. Set once
	// when it is sealed, under Log.mu.
	segmentInfo
	sealed bool

	damage  []damage                     // found by recovery; fixed after Open
	indexes atomic.Pointer[index]        // of a sealed segment, when loaded
	aborts  atomic.Pointer[[]AbortedTxn] // of a sealed segment, when its file is not as it should be
}

// damage is a part of a segment that can't be read.
type damage struct {
	from, to         Offset
	position, resume int64 // bytes [position, resume)
	err              error
}

// segmentSuffixes are the names of what goes with a segment.
var segmentSuffixes = [...]string{logSuffix, indexSuffix, timeIndexSuffix, txnIndexSuffix, sealSuffix, stateSuffix, snapshotSuffix}

func (s *segment) path(suffix string) string { return joinPath(s.dir, segmentName(s.base, suffix)) }

func (d *Disk) newSegment(dir string, base Offset) *segment {
	s := &segment{dir: dir, segmentInfo: segmentInfo{base: base, end: base, maxTimestamp: -1, maxAt: -1}}
	s.h = &handle{d: d, name: s.path(logSuffix), write: true}
	return s
}

func (s *segment) public(info segmentInfo) Segment {
	out := Segment{Base: info.base, End: info.end, Bytes: info.size, Sealed: s.sealed}
	if info.maxTimestamp >= 0 {
		out.MaxTimestamp = time.UnixMilli(info.maxTimestamp)
	}
	if info.sealedMs != 0 {
		out.SealedAt = time.UnixMilli(info.sealedMs)
	}
	return out
}

// A header is the fixed part of a batch.
type header struct {
	base, last   Offset
	epoch        Epoch
	size         int64
	maxTimestamp int64
}

var (
	errHeader   = errors.New("no batch header")
	errChecksum = errors.New("wrong checksum")
	errFollows  = errors.New("offset does not follow the batch before")
	errEpoch    = errors.New("epoch is not that of the chain")
	errShort    = errors.New("file ends inside a batch")
	errGap      = errors.New("records are missing")
)

// parseHeader reads the header at the start of b, which has record.HeaderBytes.
func parseHeader(b []byte) (header, error) {
	b = b[:record.HeaderBytes]
	h := header{
		base:         Offset(be.Uint64(b)),
		size:         int64(int32(be.Uint32(b[8:]))) + 12,
		epoch:        Epoch(be.Uint32(b[12:])),
		maxTimestamp: int64(be.Uint64(b[35:])),
	}
	delta := int32(be.Uint32(b[23:]))
	if b[16] != 2 || h.size < record.HeaderBytes || h.size > maxBatchBytesOnDisk || delta < 0 || h.base < 0 || h.base > maxOffset-Offset(delta)-1 {
		return header{}, errHeader
	}
	h.last = h.base + Offset(delta)
	return h, nil
}

// readAt fills b from the file or says why not.
func readAt(f io.ReaderAt, b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: at byte %d", errShort, at+int64(n))
	}
	return err
}

// A scanner walks the batches of a file in large reads.
type scanner struct {
	d     *Disk
	gaps  bool // offsets may have gaps
	f     File
	limit int64 // end of what may hold batches
	at    int64 // position of the next batch

	buf   *buffer
	start int64 // position of b[0]
	b     []byte
}

const scanBytes = 1 << 20

func newScanner(d *Disk, f File, at, limit int64) *scanner {
	return &scanner{d: d, f: f, at: at, limit: limit}
}

func (s *scanner) close() { s.buf.put(); s.buf = nil; s.b = nil }

// window returns n bytes at position at, which must be below limit by n.
func (s *scanner) window(at int64, n int) ([]byte, error) {
	if s.b == nil || at < s.start || at+int64(n) > s.start+int64(len(s.b)) {
		size := int(min(s.limit-at, int64(max(n, scanBytes))))
		if s.buf == nil || cap(s.buf.b) < size {
			s.buf.put()
			s.buf = getBuffer(size)
		}
		s.b = nil
		b := s.buf.b[:size]
		s.d.enter()
		err := readAt(s.f, b, at)
		if errors.Is(err, syscall.EIO) && size > n {
			b = b[:n] // what can't be read may lie behind
			err = readAt(s.f, b, at)
		}
		s.d.leave()
		if err != nil {
			return nil, err
		}
		s.b, s.start = b, at
	}
	return s.b[at-s.start:][:n:n], nil
}

// next returns the batch at s.at and moves behind it. io.EOF means that s.at is
// limit. Errors other than those of the file are errHeader, errChecksum, errShort
// (wrapped): s.at stays.
func (s *scanner) next() (record.Batch, header, error) {
	b, h, err := s.peek(s.at, true)
	if err == nil {
		s.at += h.size
	}
	return b, h, err
}

func (s *scanner) peek(at int64, verify bool) (record.Batch, header, error) {
	if at >= s.limit {
		return record.Batch{}, header{}, io.EOF
	}
	if at+record.HeaderBytes > s.limit {
		return record.Batch{}, header{}, errShort
	}
	b, err := s.window(at, record.HeaderBytes)
	if err != nil {
		return record.Batch{}, header{}, err
	}
	h, err := parseHeader(b)
	if err != nil {
		return record.Batch{}, header{}, err
	}
	if at+h.size > s.limit {
		return record.Batch{}, header{}, errShort
	}
	if b, err = s.window(at, int(h.size)); err != nil {
		return record.Batch{}, header{}, err
	}
	batch, _, err := record.Next(b, maxBatchBytesOnDisk)
	if err != nil {
		return record.Batch{}, header{}, errHeader
	}
	if verify {
		if err := batch.Verify(); err != nil {
			return record.Batch{}, header{}, errChecksum
		}
	}
	return batch, h, nil
}

// bytesBad reports whether an error of a scanner is about the bytes, not the disk.
func bytesBad(err error) bool {
	return errors.Is(err, errHeader) || errors.Is(err, errChecksum) || errors.Is(err, errShort) ||
		errors.Is(err, errFollows) || errors.Is(err, errEpoch)
}

// resync looks for the first whole batch behind damage at position at: one whose
// offset is above low and at most high; batches reach up to end. It is where headers
// lead, or else one from where batches lead to an anchor or at least two more follow.
// Bytes of a record that look like a batch do not pass: what follows them is no batch,
// since a record ends behind its value.
func (s *scanner) resync(at int64, low, high, end Offset, anchor func(int64) bool) (int64, header, bool, error) {
	at, h, ok, err := s.byHeaders(at, low, high, end)
	if err != nil || ok {
		return at, h, ok, err
	}
	for p := at; p+record.HeaderBytes <= s.limit; p++ {
		b, err := s.window(p, record.HeaderBytes)
		if err != nil {
			return 0, header{}, false, err
		}
		if b[16] != 2 || b[0] != 0 && high < 1<<56 {
			continue
		}
		h, err := parseHeader(b)
		if err != nil || h.base <= low || h.base > high || p+h.size > s.limit {
			continue
		}
		ok, err := s.leads(p, anchor)
		if err != nil {
			return 0, header{}, false, err
		}
		if ok {
			return p, h, true, nil
		}
	}
	return 0, header{}, false, nil
}

// byHeaders goes from the batch at position at, which is damaged, to the first whole
// one, as long as their headers are whole and follow low and each other. A record may
// hold any number of batches that follow low as well: only this tells them from
// those that were written here. If it finds none, it returns where to search.
func (s *scanner) byHeaders(at int64, low, high, end Offset) (int64, header, bool, error) {
	p, next := at, low+1
	for next <= high && p+record.HeaderBytes <= s.limit {
		b, err := s.window(p, record.HeaderBytes)
		if err != nil {
			return 0, header{}, false, err
		}
		h, err := parseHeader(b)
		if err != nil || h.base < next || h.base > next && !s.gaps || h.base > high || p+h.size > s.limit {
			return at + 1, header{}, false, nil
		}
		if p > at {
			switch _, _, err := s.peek(p, true); {
			case err == nil:
				return p, h, true, nil
			case !bytesBad(err):
				return 0, header{}, false, err
			}
		}
		p, next = p+h.size, h.last+1
	}
	if next < end {
		p = at + 1 // a header that is whole to look at leads out of the file
	}
	return p, header{}, false, nil
}

func (s *scanner) leads(p int64, anchor func(int64) bool) (bool, error) {
	next := Offset(-1)
	for n := range 3 {
		if n > 0 && (p == s.limit || anchor(p)) {
			return true, nil
		}
		_, h, err := s.peek(p, true)
		if err != nil {
			if bytesBad(err) || errors.Is(err, io.EOF) {
				return false, nil
			}
			return false, err
		}
		if next >= 0 && h.base != next && !(s.gaps && h.base > next) {
			return false, nil
		}
		next = h.last + 1
		p += h.size
	}
	return true, nil
}
