package logtest

import (
	"errors"
	"io"
	iofs "io/fs"
	"syscall"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A file is one open file; the inode is shared by all handles.
type file struct {
	fs     *FS
	node   *inode
	name   string
	write  bool
	closed bool // guarded by fs.mu
}

func (fs *FS) handleLocked(n *inode, name string, write bool) *file {
	n.opens++
	f := &file{fs: fs, node: n, name: name, write: write}
	fs.handles[f] = struct{}{}
	return f
}

// orNil keeps a nil *file out of the interface, and drops a handle that a hook
// reported as failed.
func (f *file) orNil(err error) (log.File, error) {
	if err != nil {
		if f != nil {
			f.drop()
		}
		return nil, err
	}
	return f, nil
}

func (f *file) drop() {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.dropLocked()
}

func (f *file) dropLocked() {
	if !f.closed {
		f.closed = true
		delete(f.fs.handles, f)
		f.node.opens--
		f.fs.freeLocked(f.node)
	}
}

func (f *file) usableLocked(write bool) error {
	switch {
	case f.closed:
		return iofs.ErrClosed
	case write && !f.write:
		return iofs.ErrPermission
	}
	return nil
}

// ReadAt implements io.ReaderAt.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	op := Op{Kind: OpRead, Path: f.name, Offset: off, Len: len(p)}
	n := 0
	err := f.fs.begin(&op)
	want := p
	short, isShort := errors.AsType[*shortError](err)
	if isShort {
		want = p[:min(max(short.n, 0), len(p))]
	}
	if outcome(err) || isShort {
		if failed := f.usableLocked(false); failed != nil {
			err = failed
		} else if off < 0 {
			err = iofs.ErrInvalid
		} else if n = f.node.readAt(want, off); err == nil && n < len(p) {
			err = io.EOF
		}
	}
	return n, f.fs.end(&op, err)
}

// WriteAt implements io.WriterAt.
func (f *file) WriteAt(p []byte, off int64) (int, error) {
	op := Op{Kind: OpWrite, Path: f.name, Offset: off, Len: len(p)}
	n := 0
	err := f.fs.begin(&op)
	want := p
	short, isShort := errors.AsType[*shortError](err)
	if isShort {
		want = p[:min(max(short.n, 0), len(p))]
	}
	if outcome(err) || isShort {
		if failed := f.usableLocked(true); failed != nil {
			err = failed
		} else if off < 0 {
			err = iofs.ErrInvalid
		} else {
			var took int64
			n, took = f.node.writeAt(want, off, f.fs.roomLocked())
			f.node.mtime = time.Now()
			f.fs.used += took
			f.fs.written += int64(n)
			if n < len(want) {
				err = syscall.ENOSPC
			}
		}
	}
	return n, f.fs.end(&op, err)
}

// Truncate implements [log.File].
func (f *file) Truncate(size int64) error {
	return f.fs.do(Op{Kind: OpTruncate, Path: f.name, Offset: size}, func() error {
		if err := f.usableLocked(true); err != nil {
			return err
		}
		if size < 0 {
			return iofs.ErrInvalid
		}
		f.fs.used -= f.node.truncate(size)
		f.node.mtime = time.Now()
		return nil
	})
}

// Sync implements [log.File].
func (f *file) Sync() error {
	op := Op{Kind: OpSync, Path: f.name}
	err := f.fs.begin(&op)
	switch failed := f.usableLocked(false); {
	case err == ErrCrashed:
	case failed != nil:
		err = failed
	case outcome(err):
		f.node.sync()
	default:
		f.node.forget()
	}
	return f.fs.end(&op, err)
}

// Size implements [log.File]. It asks no hook.
func (f *file) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.fs.dead {
		return 0, pathError("size", f.name, ErrCrashed)
	}
	if err := f.usableLocked(false); err != nil {
		return 0, pathError("size", f.name, err)
	}
	return f.node.size, nil
}

// Preallocate implements [log.File].
func (f *file) Preallocate(off, n int64) error {
	return f.fs.do(Op{Kind: OpPreallocate, Path: f.name, Offset: off, Len: int(n)}, func() error {
		if err := f.usableLocked(true); err != nil {
			return err
		}
		if off < 0 || n < 0 {
			return iofs.ErrInvalid
		}
		took, ok := f.node.reserve(off, n, f.fs.roomLocked())
		if !ok {
			return syscall.ENOSPC
		}
		f.fs.used += took
		if off+n > f.node.size {
			f.node.setSize(off + n)
			f.node.mtime = time.Now()
		}
		return nil
	})
}

// Close implements io.Closer. Content that is not synced stays so. The handle is
// closed also if a hook makes Close fail, and on a dead FS Close succeeds.
func (f *file) Close() error {
	op := Op{Kind: OpClose, Path: f.name}
	err := f.fs.begin(&op)
	if err == ErrCrashed {
		err = nil
	}
	if f.closed {
		err = iofs.ErrClosed
	}
	f.dropLocked()
	return f.fs.end(&op, err)
}
