package tier

import (
	"io"
	"iter"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// A Slice is a run of whole batches, cold or hot. It is used by one goroutine at
// a time. It satisfies the same interfaces as a [log.Slice].
type Slice struct {
	hot       *log.Slice // nil when the bytes are cold
	b         []byte
	base, end log.Offset
}

func hotSlice(s *log.Slice) *Slice {
	return &Slice{hot: s, b: s.Bytes(), base: s.Base(), end: s.End()}
}

// Bytes returns the batches as they are in the log. They must not be changed, nor
// used after Release.
func (s *Slice) Bytes() []byte { return s.b }

// Len returns the number of bytes.
func (s *Slice) Len() int { return len(s.b) }

// Base returns the offset of the first record of the first batch, which may be
// below the offset that was asked for; for an empty Slice that offset.
func (s *Slice) Base() log.Offset { return s.base }

// End returns the offset after the last record; Base for an empty Slice.
func (s *Slice) End() log.Offset { return s.end }

// Cold says whether the bytes came from the object store or its cache.
func (s *Slice) Cold() bool { return s.hot == nil }

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
		for rest := s.b; len(rest) > 0; {
			b, r, err := record.Next(rest, maxBatchBytes)
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

// Release gives the bytes back. It is called once, when the Slice and all that
// shares its bytes is no longer used; leaving it out costs only memory.
func (s *Slice) Release() {
	if s.hot != nil {
		s.hot.Release()
	}
	s.b = nil
}
