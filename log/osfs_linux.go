package log

import (
	"errors"
	"os"
	"syscall"
)

func fileSync(f *os.File) error {
	var err error
	c, cerr := f.SyscallConn()
	if cerr != nil {
		return cerr
	}
	if cerr := c.Control(func(fd uintptr) {
		for {
			err = syscall.Fdatasync(int(fd))
			if !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	}); cerr != nil {
		return cerr
	}
	if err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}

func preallocate(f *os.File, off, n int64) error {
	var err error
	c, cerr := f.SyscallConn()
	if cerr != nil {
		return cerr
	}
	if cerr := c.Control(func(fd uintptr) {
		for {
			err = syscall.Fallocate(int(fd), 0, off, n)
			if !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	}); cerr != nil {
		return cerr
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
		return extend(f, off, n)
	default:
		return &os.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
}

func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// Numbers of file systems, by statfs(2).
const (
	magicExt4  = 0xef53 // ext2 and ext3 have it, too
	magicXFS   = 0x58465342
	magicTmpfs = 0x01021994
)

func reserves(dir string) bool {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return false
	}
	switch uint32(st.Type) { //nolint:gosec // 32 bits are all that is in it
	case magicExt4, magicXFS, magicTmpfs:
		return fallocates(dir)
	default:
		return false
	}
}

// fallocates tries it: files of ext2 and ext3, and those of ext4 without extents, can't.
func fallocates(dir string) bool {
	f, err := os.CreateTemp(dir, "cordwood.*.tmp")
	if err != nil {
		return false
	}
	defer os.Remove(f.Name()) //nolint:errcheck // an empty file
	defer f.Close()           //nolint:errcheck // as above
	return syscall.Fallocate(int(f.Fd()), 0, 0, 1) == nil
}
