package log

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// OSFS is the operating system's file system. The zero value is ready.
//
// Sync is fdatasync on Linux, and on macOS the call that empties the drive's own
// cache. Lock is a flock on Unix and an exclusive open on Windows, where folders
// can't be synced and the names of new files are as durable as the system makes
// them.
type OSFS struct{}

var (
	_ FS       = OSFS{}
	_ Reserver = OSFS{}
)

// Create implements [FS].
func (OSFS) Create(name string) (File, error) {
	f, err := os.OpenFile(filepath.FromSlash(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Open implements [FS].
func (OSFS) Open(name string, write bool) (File, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := os.OpenFile(filepath.FromSlash(name), flag, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Remove implements [FS].
func (OSFS) Remove(name string) error { return os.Remove(filepath.FromSlash(name)) }

// Rename implements [FS].
func (OSFS) Rename(oldName, newName string) error {
	return os.Rename(filepath.FromSlash(oldName), filepath.FromSlash(newName))
}

// Link implements [FS].
func (OSFS) Link(oldName, newName string) error {
	return os.Link(filepath.FromSlash(oldName), filepath.FromSlash(newName))
}

// MkdirAll implements [FS].
func (OSFS) MkdirAll(name string) error { return os.MkdirAll(filepath.FromSlash(name), 0o755) }

// List implements [FS].
func (OSFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.FromSlash(dir))
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// Stat implements [FS].
func (OSFS) Stat(name string) (FileInfo, error) {
	fi, err := os.Stat(filepath.FromSlash(name))
	if err != nil {
		return FileInfo{}, err
	}
	info := FileInfo{ModTime: fi.ModTime(), IsDir: fi.IsDir()}
	if !info.IsDir {
		info.Size = fi.Size()
	}
	return info, nil
}

// SyncDir implements [FS].
func (OSFS) SyncDir(dir string) error { return syncDir(filepath.FromSlash(dir)) }

// Lock implements [FS].
func (OSFS) Lock(name string) (io.Closer, error) {
	c, err := lockFile(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	return &onceCloser{c: c}, nil
}

// FreeBytes implements [FS].
func (OSFS) FreeBytes(dir string) (int64, error) { return freeBytes(filepath.FromSlash(dir)) }

// Reserves implements [Reserver]: on Linux it is so of ext4, XFS and tmpfs where
// fallocate works, elsewhere of nothing. File systems that write to a new place each
// time can't promise it, nor can XFS for a file that shares blocks with a clone
// (cp --reflink): on a full disk its log may fail there, and has its records again when
// it is opened anew. It makes a file in the folder and removes it.
func (OSFS) Reserves(dir string) bool { return reserves(filepath.FromSlash(dir)) }

// onceCloser closes once and gives later calls the first result.
type onceCloser struct {
	once sync.Once
	c    io.Closer
	err  error
}

func (o *onceCloser) Close() error {
	o.once.Do(func() { o.err = o.c.Close() })
	return o.err
}

type osFile struct{ *os.File }

func (f osFile) Sync() error { return fileSync(f.File) }

func (f osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

func (f osFile) Preallocate(off, n int64) error {
	if off < 0 || n < 0 {
		return fmt.Errorf("preallocate %s: negative range", f.Name())
	}
	return preallocate(f.File, off, n)
}

// extend makes the file cover [off, off+n) without reserving anything.
func extend(f *os.File, off, n int64) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Size() >= off+n {
		return nil
	}
	return f.Truncate(off + n)
}
