package log

import (
	"math"
	"sync"
	"sync/atomic"
)

// Write-behind: what an append brings to the journal need not be in its segment's
// file before it is acknowledged, so the file gets small appends by larger writes.
// That changes nothing of what is durable, and while the process lives nothing of
// what a reader sees: to the log, the file is as if it were written. If the process
// dies, what was held is as lost as what the kernel has not written when the machine
// dies, and recovery takes it from the journal. Appends that don't wait for a sync
// are never held: the journal may not have them, and the kernel keeps what is in the
// file when the process dies. (Recovery believes that in a file that was not recycled
// only, see spare.go.)

// behindBytes is how much a file holds at most. More would give little: see
// docs/performance.md.
const behindBytes = 64 << 10

// A behindFile is a segment's file that holds back writes at its end of data. Readers,
// and who holds, wait for no I/O of others.
type behindFile struct {
	File
	d *Disk

	// start is where the held bytes begin, or beyond all if there are none: a read or
	// write below it need not look at them. Changed under mu.
	start atomic.Int64

	// writing is held by who writes what is held, or cuts the file. It comes before mu.
	writing sync.Mutex

	mu     sync.Mutex
	buf    *buffer // of the held bytes; nil if there are none
	off    int     // where they begin in it
	busy   bool    // they are being written: their memory stays as it is
	closed bool    // nothing is held any more
}

const nothingHeld = math.MaxInt64

func newBehindFile(d *Disk, f File) *behindFile {
	b := &behindFile{File: f, d: d}
	b.start.Store(nothingHeld)
	return b
}

// heldLocked returns the held bytes.
func (f *behindFile) heldLocked() []byte {
	if f.buf == nil {
		return nil
	}
	return f.buf.b[f.off:]
}

// hold takes a copy of b, which is to stand at the end of the data, and reports whether
// it could: else b must be written. What is held is in the file after the next Sync.
func (f *behindFile) hold(b []byte, at int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false // who writes is told
	}
	n := len(f.heldLocked())
	if n > 0 && f.start.Load()+int64(n) != at || n+len(b) > behindBytes || !f.growLocked(n+len(b)) {
		return false
	}
	f.buf.b = append(f.buf.b, b...)
	if n == 0 {
		f.start.Store(at)
	}
	return true
}

// growLocked makes room for n held bytes, if the disk has some.
func (f *behindFile) growLocked(n int) bool {
	had := 0
	if f.buf != nil {
		if had = cap(f.buf.b); f.off+n <= had {
			return true
		}
	}
	more := getBuffer(n)
	if !f.d.takeHeld(int64(cap(more.b) - had)) {
		more.put()
		return false
	}
	more.b = append(more.b[:0], f.heldLocked()...)
	f.giveLocked()
	f.buf, f.off = more, 0
	return true
}

// takeHeld takes n bytes of the memory for what is held, if there are so many;
// dropLocked gives it back.
func (d *Disk) takeHeld(n int64) bool {
	for {
		held := d.held.Load()
		if held+n > d.o.HeldBytes {
			return false
		}
		if d.held.CompareAndSwap(held, held+n) {
			return true
		}
	}
}

// giveLocked gives the buffer's memory back, if nobody reads it.
func (f *behindFile) giveLocked() {
	if !f.busy {
		f.buf.put()
	}
	f.buf = nil
}

// dropLocked forgets what is held.
func (f *behindFile) dropLocked() {
	if f.buf == nil {
		return
	}
	f.start.Store(nothingHeld)
	f.d.held.Add(-int64(cap(f.buf.b)))
	f.giveLocked()
}

// write writes what is held. After an error that is held still.
func (f *behindFile) write() error {
	f.writing.Lock()
	defer f.writing.Unlock()
	held, start := f.beginWrite()
	var err error
	if len(held) > 0 {
		_, err = f.File.WriteAt(held, start)
	}
	f.endWrite(len(held), err)
	return err
}

// beginWrite returns what is held, until endWrite. Requires: writing.
func (f *behindFile) beginWrite() (held []byte, start int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy = true
	return f.heldLocked(), f.start.Load()
}

// endWrite forgets the first n held bytes, unless there was an error.
func (f *behindFile) endWrite(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy = false
	switch {
	case err != nil || n == 0:
	case n == len(f.heldLocked()):
		f.dropLocked()
	default: // more has come
		f.off += n
		f.start.Add(int64(n))
	}
}

// WriteAt implements [File]. What is held goes to the file with it where they meet.
func (f *behindFile) WriteAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) <= f.start.Load() {
		return f.File.WriteAt(b, at)
	}
	f.writing.Lock()
	defer f.writing.Unlock()
	held, start := f.beginWrite()
	end := start + int64(len(held))
	switch {
	case len(held) == 0 || at > end || at+int64(len(b)) <= start: // they don't meet
		f.endWrite(0, nil)
	case at == end && len(b) <= behindBytes:
		all := getBuffer(len(held) + len(b))
		defer all.put()
		copy(all.b[copy(all.b, held):], b)
		_, err := f.File.WriteAt(all.b, start)
		f.endWrite(len(held), err)
		if err != nil {
			return 0, err
		}
		return len(b), nil
	default:
		_, err := f.File.WriteAt(held, start)
		f.endWrite(len(held), err)
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
	low, high := 0, 0
	f.mu.Lock()
	if held := f.heldLocked(); len(held) > 0 {
		start := f.start.Load()
		low = int(min(max(start-at, 0), int64(len(b))))
		high = int(min(max(start+int64(len(held))-at, 0), int64(len(b))))
		if low < high {
			copy(b[low:high], held[at+int64(low)-start:])
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
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	if start := f.start.Load(); size <= start {
		f.dropLocked()
	} else if n := size - start; n < int64(len(f.heldLocked())) {
		f.buf.b = f.buf.b[:f.off+int(n)]
	}
	f.mu.Unlock()
	return f.File.Truncate(size)
}

// Sync implements [File].
func (f *behindFile) Sync() error {
	if err := f.write(); err != nil {
		return err
	}
	return f.File.Sync()
}

// Size implements [File].
func (f *behindFile) Size() (int64, error) {
	size, err := f.File.Size()
	f.mu.Lock()
	defer f.mu.Unlock()
	if held := f.heldLocked(); len(held) > 0 {
		size = max(size, f.start.Load()+int64(len(held)))
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
