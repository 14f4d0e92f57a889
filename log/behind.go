package log

import (
	"math"
	"sync"
	"sync/atomic"
)

// Write-behind: what an append brings to the journal need not be in its segment's file
// before it is acknowledged, so the file gets small appends by larger writes. That
// changes nothing of what is durable, and nothing of what a reader sees: to the log, the
// file is as if it were written. If the process dies, what was held is as lost as what
// the kernel has not written when the machine dies, and recovery takes it from the
// journal. Appends that don't wait for a sync are never held, since they may count on
// the kernel to keep them when the process dies.

// behindBytes is how much a file holds at most. More would give little: see
// docs/performance.md.
const behindBytes = 32 << 10

// A behindFile is a segment's file that holds back writes at its end of data.
type behindFile struct {
	File
	d *Disk

	// start is where the held bytes begin, or beyond all if there are none: a read or
	// write below it need not look at them. Changed under mu.
	start atomic.Int64

	mu     sync.Mutex
	buf    *buffer // of the held bytes; nil if there are none
	closed bool    // nothing is held any more
}

const nothingHeld = math.MaxInt64

func newBehindFile(d *Disk, f File) *behindFile {
	b := &behindFile{File: f, d: d}
	b.start.Store(nothingHeld)
	return b
}

// endLocked returns where the held bytes end. Requires: there are some.
func (f *behindFile) endLocked() int64 { return f.start.Load() + int64(len(f.buf.b)) }

// hold takes a copy of b, which is to stand at the end of the data, and reports whether
// it could: else b must be written. What is held is in the file after the next Sync.
func (f *behindFile) hold(b []byte, at int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false // who writes is told
	}
	n := 0
	if f.buf != nil {
		if f.endLocked() != at {
			return false
		}
		n = len(f.buf.b)
	}
	if n+len(b) > behindBytes || !f.growLocked(n+len(b)) {
		return false
	}
	f.buf.b = f.buf.b[:n+len(b)]
	copy(f.buf.b[n:], b)
	if n == 0 {
		f.start.Store(at)
	}
	return true
}

// growLocked makes room for n bytes in the buffer, if the disk has some for it.
func (f *behindFile) growLocked(n int) bool {
	had := 0
	if f.buf != nil {
		had = cap(f.buf.b)
	}
	if n <= had {
		return true
	}
	more := getBuffer(n)
	if f.d.held.Add(int64(cap(more.b)-had)) > f.d.o.HeldBytes {
		f.d.held.Add(int64(had - cap(more.b)))
		more.put()
		return false
	}
	more.b = more.b[:0]
	if f.buf != nil {
		more.b = append(more.b, f.buf.b...)
		f.buf.put()
	}
	f.buf = more
	return true
}

// writeLocked writes what is held, with more behind it. After an error what was held is
// held still.
func (f *behindFile) writeLocked(more []byte) error {
	if f.buf == nil {
		return nil
	}
	b := f.buf.b
	if len(more) > 0 {
		all := getBuffer(len(b) + len(more))
		defer all.put()
		copy(all.b[copy(all.b, b):], more)
		b = all.b
	}
	if _, err := f.File.WriteAt(b, f.start.Load()); err != nil {
		return err
	}
	f.dropLocked()
	return nil
}

// dropLocked forgets what is held.
func (f *behindFile) dropLocked() {
	if f.buf == nil {
		return
	}
	f.start.Store(nothingHeld)
	f.d.held.Add(-int64(cap(f.buf.b)))
	f.buf.put()
	f.buf = nil
}

// WriteAt implements [File]. What is held goes to the file with it where they meet.
func (f *behindFile) WriteAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) <= f.start.Load() {
		return f.File.WriteAt(b, at)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.buf != nil {
		var err error
		switch end := f.endLocked(); {
		case at == end:
			if err = f.writeLocked(b); err == nil {
				return len(b), nil
			}
		case at < end && at+int64(len(b)) > f.start.Load():
			err = f.writeLocked(nil)
		}
		if err != nil {
			return 0, err
		}
	}
	return f.File.WriteAt(b, at)
}

// ReadAt implements [File].
func (f *behindFile) ReadAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) <= f.start.Load() {
		return f.File.ReadAt(b, at)
	}
	// Held bytes don't change while they are held, so the rest can be read after them.
	f.mu.Lock()
	low, high := 0, 0
	if f.buf != nil {
		start, end := f.start.Load(), f.endLocked()
		low = int(min(max(start-at, 0), int64(len(b))))
		high = int(min(max(end-at, 0), int64(len(b))))
		if low < high {
			copy(b[low:high], f.buf.b[at+int64(low)-start:])
		} else {
			low, high = 0, 0
		}
	}
	f.mu.Unlock()
	if low > 0 {
		if n, err := f.File.ReadAt(b[:low], at); n < low {
			return n, err
		}
	}
	if high == len(b) {
		return len(b), nil
	}
	n, err := f.File.ReadAt(b[high:], at+int64(high))
	return high + n, err
}

// Truncate implements [File].
func (f *behindFile) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.buf != nil && size < f.endLocked() {
		if start := f.start.Load(); size > start {
			f.buf.b = f.buf.b[:size-start]
		} else {
			f.dropLocked()
		}
	}
	return f.File.Truncate(size)
}

// write writes what is held.
func (f *behindFile) write() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writeLocked(nil)
}

// Sync implements [File].
func (f *behindFile) Sync() error {
	f.mu.Lock()
	err := f.writeLocked(nil)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.File.Sync()
}

// Size implements [File].
func (f *behindFile) Size() (int64, error) {
	size, err := f.File.Size()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.buf != nil {
		size = max(size, f.endLocked())
	}
	return size, err
}

// Close implements [File]. What is held is dropped: a file that has lost its name may
// be another's by now, and a log that closes in good order has synced its file.
func (f *behindFile) Close() error {
	f.mu.Lock()
	f.dropLocked()
	f.closed = true
	f.mu.Unlock()
	return f.File.Close()
}
