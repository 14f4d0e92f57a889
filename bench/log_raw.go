//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// The raw side of log's figures: the same bytes in files in the same state, framed by nothing and checked by nothing.

// rawSegment is the size of the file that is written over and over, as a segment that is recycled.
const rawSegment = 64 << 20

type rawFile struct {
	f    *os.File
	sync bool
	buf  []byte
	off  int64
	size int64 // of the region that is written over; 0: the file grows
}

// The kernel caches a file in pieces of the sizes it was first written in, and large pieces take large writes faster. So there are two raw
// files: one that was filled in the largest pieces, and one that was filled as settle fills ours.
const (
	fillLarge = 1 << 20
	fillAlike = settleRecords*recordBytes + 3000 // and what frames the records
)

// openRaw opens a file that is written in batches, over blocks that were written before by writes of fill bytes, or, with 0, as it grows.
func openRaw(dir string, sync bool, fill int) (*rawFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, "raw"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	r := &rawFile{f: f, sync: sync}
	if fill > 0 {
		r.size = rawSegment
		zero := make([]byte, fill)
		for at := int64(0); at < r.size; at += int64(len(zero)) {
			if _, err := f.WriteAt(zero, at); err != nil {
				return nil, err
			}
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *rawFile) append(recs [][]byte) error {
	b := r.buf[:0]
	for _, rec := range recs {
		b = append(b, rec...)
	}
	r.buf = b
	return r.write(b)
}

func (r *rawFile) write(b []byte) error {
	if r.size > 0 && r.off+int64(len(b)) > r.size {
		r.off = 0
	}
	if _, err := r.f.WriteAt(b, r.off); err != nil {
		return err
	}
	r.off += int64(len(b))
	if r.sync {
		return fdatasync(r.f)
	}
	return nil
}

func fdatasync(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}

// rawSegments is how many files rawRing goes round: as many as ours uses in turn between two deletions.
const rawSegments = 4

// A rawRing writes one file after another over and over, each over blocks that were written before, and makes each that is full durable
// in the background: the state that ours has its files in, where each page that is written over is on disk.
type rawRing struct {
	files [rawSegments]*rawFile
	done  [rawSegments]chan error // one value when the file is durable
	cur   int
}

func openRing(dir string, fill int) (*rawRing, error) {
	r := new(rawRing)
	for i := range r.files {
		sub := filepath.Join(dir, fmt.Sprint(i))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return nil, err
		}
		f, err := openRaw(sub, false, fill)
		if err != nil {
			return nil, err
		}
		r.files[i], r.done[i] = f, make(chan error, 1)
		r.done[i] <- nil
	}
	return r, <-r.done[0]
}

func (r *rawRing) append(recs [][]byte) error {
	f := r.files[r.cur]
	if f.off+int64(len(recs)*recordBytes) > f.size {
		done := r.done[r.cur]
		go func() { done <- fdatasync(f.f) }()
		r.cur = (r.cur + 1) % rawSegments
		if err := <-r.done[r.cur]; err != nil {
			return err
		}
		f = r.files[r.cur]
	}
	return f.append(recs)
}

func (r *rawRing) close() (err error) {
	for i, f := range r.files {
		if i != r.cur {
			err = errors.Join(err, <-r.done[i])
		}
		err = errors.Join(err, f.f.Close())
	}
	return err
}

// A rawLeader is a rawFile behind the smallest group commit there is: whoever finds no leader writes and syncs for everyone that
// queued meanwhile.
type rawLeader struct {
	raw *rawFile

	mu   sync.Mutex // guards next
	next *rawGroup
	wr   sync.Mutex // held by the leader
}

type rawGroup struct {
	recs [][]byte
	done chan struct{}
	err  error
}

func (l *rawLeader) append(recs [][]byte) error {
	l.mu.Lock()
	g := l.next
	lead := g == nil
	if lead {
		g = &rawGroup{done: make(chan struct{})}
		l.next = g
	}
	g.recs = append(g.recs, recs...)
	l.mu.Unlock()
	if !lead {
		<-g.done
		return g.err
	}
	l.wr.Lock()
	l.mu.Lock()
	l.next = nil
	l.mu.Unlock()
	g.err = l.raw.append(g.recs)
	l.wr.Unlock()
	close(g.done)
	return g.err
}

// dropCache asks the kernel to forget the cached pages of every file under dir, after writing them back.
func dropCache(dir string) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil {
			return err
		}
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}
