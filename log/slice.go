package log

import (
	"io"
	"iter"

	"github.com/cordwood-io/cordwood/log/record"
)

// A Slice is a run of whole batches read from a log. It owns its bytes: they stay
// the same whatever happens to the log, until Release. A Slice is used by one
// goroutine at a time.
type Slice struct {
	buf  *buffer
	b    []byte
	base Offset
	end  Offset
	gen  uint64 // of the log when it was read
}

// Bytes returns the batches as they are on disk. They must not be changed, nor
// used after Release.
func (s *Slice) Bytes() []byte { return s.b }

// Len returns the number of bytes.
func (s *Slice) Len() int { return len(s.b) }

// Base returns the offset of the first record of the first batch, which may be
// below the offset that was asked for; for an empty Slice that offset. In a log that
// has gaps (Options.ReadOnly) it may be above, and an empty Slice's Base too: nothing
// is left below it.
func (s *Slice) Base() Offset { return s.base }

// End returns the offset after the last record; Base for an empty Slice.
func (s *Slice) End() Offset { return s.end }

// WriteTo writes all bytes to w in one Write.
func (s *Slice) WriteTo(w io.Writer) (int64, error) {
	if len(s.b) == 0 {
		return 0, nil
	}
	n, err := w.Write(s.b)
	if err == nil && n < len(s.b) {
		err = io.ErrShortWrite
	}
	return int64(n), err
}

// Batches returns an iterator over the batches, which share the Slice's bytes. It
// can be used again.
func (s *Slice) Batches() iter.Seq2[record.Batch, error] {
	return func(yield func(record.Batch, error) bool) {
		rest := s.b
		for len(rest) > 0 {
			b, r, err := record.Next(rest, maxBatchBytesOnDisk)
			if err != nil {
				yield(record.Batch{}, err)
				return
			}
			rest = r
			if !yield(b, nil) {
				return
			}
		}
	}
}

// Release gives the bytes back for reuse. It is called once, when the Slice and
// all that shares its bytes is no longer used; leaving it out costs only memory.
func (s *Slice) Release() {
	if s.buf != nil {
		s.buf.put()
		s.buf = nil
	}
	s.b = nil
}
