package metadata

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/cordwood-io/cordwood/log"
)

// A pebbleFS gives Pebble the node's disk, so that one crash hits the metadata
// store and the partitions' logs alike.
//
// Pebble answers some failed writes with a panic, in goroutines of its own or
// with its locks held. So the first failure freezes the disk for it: that
// operation and all later ones that would change something do nothing and seem to
// succeed. What is on disk is then as after a crash at that moment, and the store,
// which looks at the freezer before it calls anything written, has ended.
type pebbleFS struct {
	fs log.FS
	*freezer
}

var _ vfs.FS = pebbleFS{}

// A freezer keeps the first failure of a disk.
type freezer struct {
	err  atomic.Pointer[StorageError]
	once sync.Once
	// failedHook is called once, after err is set.
	failedHook atomic.Pointer[func(error)]
}

func (f *freezer) fail(op string, err error) {
	f.err.CompareAndSwap(nil, &StorageError{Op: op, Err: err})
	if hook := f.failedHook.Load(); hook != nil {
		f.once.Do(func() { (*hook)(f.err.Load()) })
	}
}

// failed returns the first failure, or nil.
func (f *freezer) failed() error {
	if err := f.err.Load(); err != nil {
		return err
	}
	return nil
}

// change runs an operation that changes something. Only errors that say what is
// there, and nothing about the disk's health, reach Pebble.
func (f *freezer) change(op, name string, do func() error) error {
	if f.failed() != nil {
		return nil
	}
	err := do()
	if err == nil || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.fail(op+" "+name, err)
	return nil
}

func (p pebbleFS) open(name string, f log.File) *pebbleFile {
	return &pebbleFile{freezer: p.freezer, name: name, file: f}
}

func (p pebbleFS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	var f log.File
	err := p.change("create", name, func() (err error) {
		f, err = p.fs.Create(name)
		if errors.Is(err, fs.ErrExist) {
			if err := p.fs.Remove(name); err != nil {
				return err
			}
			f, err = p.fs.Create(name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if f == nil {
		f = nowhere{}
	}
	return p.open(name, f), nil
}

func (p pebbleFS) Link(oldName, newName string) error {
	return p.change("link", oldName, func() error { return p.fs.Link(oldName, newName) })
}

func (p pebbleFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	info, err := p.fs.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.IsDir {
		return p.OpenDir(name)
	}
	f, err := p.fs.Open(name, false)
	if err != nil {
		return nil, err
	}
	pf := p.open(name, f)
	for _, o := range opts {
		o.Apply(pf)
	}
	return pf, nil
}

func (p pebbleFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := p.fs.Open(name, true)
	if errors.Is(err, fs.ErrNotExist) {
		return p.Create(name, c)
	}
	if err != nil {
		return nil, err
	}
	pf := p.open(name, f)
	for _, o := range opts {
		o.Apply(pf)
	}
	return pf, nil
}

func (p pebbleFS) OpenDir(name string) (vfs.File, error) {
	info, err := p.fs.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir {
		return nil, &fs.PathError{Op: "opendir", Path: name, Err: fs.ErrInvalid}
	}
	return pebbleDir{pebbleFS: p, name: name}, nil
}

func (p pebbleFS) Remove(name string) error {
	return p.change("remove", name, func() error { return p.fs.Remove(name) })
}

func (p pebbleFS) RemoveAll(name string) error {
	info, err := p.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir {
		names, err := p.fs.List(name)
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := p.RemoveAll(path.Join(name, n)); err != nil {
				return err
			}
		}
	}
	return p.Remove(name)
}

func (p pebbleFS) Rename(oldName, newName string) error {
	return p.change("rename", oldName, func() error { return p.fs.Rename(oldName, newName) })
}

// ReuseForWrite makes a new file: a recycled one has stale bytes behind its end.
func (p pebbleFS) ReuseForWrite(oldName, newName string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := p.Remove(oldName); err != nil {
		return nil, err
	}
	return p.Create(newName, c)
}

func (p pebbleFS) MkdirAll(dir string, _ os.FileMode) error {
	return p.change("create", dir, func() error { return p.fs.MkdirAll(dir) })
}

func (p pebbleFS) Lock(name string) (io.Closer, error) { return p.fs.Lock(name) }

func (p pebbleFS) List(dir string) ([]string, error) { return p.fs.List(dir) }

func (p pebbleFS) Stat(name string) (vfs.FileInfo, error) {
	info, err := p.fs.Stat(name)
	if err != nil {
		return nil, err
	}
	return pebbleInfo{name: path.Base(name), info: info}, nil
}

func (p pebbleFS) PathBase(name string) string    { return path.Base(name) }
func (p pebbleFS) PathJoin(elem ...string) string { return path.Join(elem...) }
func (p pebbleFS) PathDir(name string) string     { return path.Dir(name) }
func (p pebbleFS) Unwrap() vfs.FS                 { return nil }
func (p pebbleFS) GetDiskUsage(dir string) (vfs.DiskUsage, error) {
	free, err := p.fs.FreeBytes(dir)
	if err != nil {
		return vfs.DiskUsage{}, err
	}
	return vfs.DiskUsage{AvailBytes: uint64(max(free, 0)), TotalBytes: uint64(max(free, 0))}, nil
}

// A pebbleFile adds the positions of sequential reading and writing.
type pebbleFile struct {
	*freezer
	name string
	file log.File

	mu    sync.Mutex
	read  int64
	write int64
}

func (f *pebbleFile) Close() error { return f.file.Close() }

func (f *pebbleFile) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.file.ReadAt(b, f.read)
	f.read += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (f *pebbleFile) ReadAt(b []byte, off int64) (int, error) { return f.file.ReadAt(b, off) }

func (f *pebbleFile) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.WriteAt(b, f.write)
	f.write += int64(n)
	return n, err
}

func (f *pebbleFile) WriteAt(b []byte, off int64) (int, error) {
	return len(b), f.change("write", f.name, func() error {
		_, err := f.file.WriteAt(b, off)
		return err
	})
}

// Preallocate does nothing: Pebble expects the size to stay as it is.
func (f *pebbleFile) Preallocate(_, _ int64) error { return nil }

func (f *pebbleFile) Stat() (vfs.FileInfo, error) {
	size, err := f.file.Size()
	if err != nil {
		return nil, err
	}
	return pebbleInfo{name: path.Base(f.name), info: log.FileInfo{Size: size}}, nil
}

func (f *pebbleFile) Sync() error     { return f.change("sync", f.name, f.file.Sync) }
func (f *pebbleFile) SyncData() error { return f.Sync() }

// SyncTo does nothing: it is only for smoothing, and promises nothing.
func (f *pebbleFile) SyncTo(int64) (bool, error)          { return false, nil }
func (f *pebbleFile) Prefetch(offset, length int64) error { return nil }
func (f *pebbleFile) Fd() uintptr                         { return vfs.InvalidFd }

// A pebbleDir is a folder opened for syncing.
type pebbleDir struct {
	pebbleFS
	name string
}

var errIsDir = errors.New("is a folder")

func (d pebbleDir) Close() error                       { return nil }
func (d pebbleDir) Read([]byte) (int, error)           { return 0, errIsDir }
func (d pebbleDir) ReadAt([]byte, int64) (int, error)  { return 0, errIsDir }
func (d pebbleDir) Write([]byte) (int, error)          { return 0, errIsDir }
func (d pebbleDir) WriteAt([]byte, int64) (int, error) { return 0, errIsDir }
func (d pebbleDir) Preallocate(_, _ int64) error       { return nil }
func (d pebbleDir) Stat() (vfs.FileInfo, error)        { return d.pebbleFS.Stat(d.name) }
func (d pebbleDir) Sync() error {
	return d.change("sync", d.name, func() error { return d.fs.SyncDir(d.name) })
}
func (d pebbleDir) SyncData() error                     { return d.Sync() }
func (d pebbleDir) SyncTo(int64) (bool, error)          { return false, nil }
func (d pebbleDir) Prefetch(offset, length int64) error { return nil }
func (d pebbleDir) Fd() uintptr                         { return vfs.InvalidFd }

// nowhere is the file that a frozen disk creates: empty, and it stays so.
type nowhere struct{}

func (nowhere) ReadAt([]byte, int64) (int, error)      { return 0, io.EOF }
func (nowhere) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (nowhere) Close() error                           { return nil }
func (nowhere) Truncate(int64) error                   { return nil }
func (nowhere) Sync() error                            { return nil }
func (nowhere) Size() (int64, error)                   { return 0, nil }
func (nowhere) Preallocate(_, _ int64) error           { return nil }

type pebbleInfo struct {
	name string
	info log.FileInfo
}

func (i pebbleInfo) Name() string           { return i.name }
func (i pebbleInfo) Size() int64            { return i.info.Size }
func (i pebbleInfo) ModTime() time.Time     { return i.info.ModTime }
func (i pebbleInfo) IsDir() bool            { return i.info.IsDir }
func (i pebbleInfo) Sys() any               { return nil }
func (i pebbleInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
func (i pebbleInfo) Mode() os.FileMode {
	if i.info.IsDir {
		return os.ModeDir | 0o755
	}
	return 0o644
}
