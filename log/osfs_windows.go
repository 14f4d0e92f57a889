package log

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

func syncDir(string) error { return nil }

const errorSharingViolation = syscall.Errno(32)

// lockFile opens the file so that nobody else can.
func lockFile(name string) (io.Closer, error) {
	p, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, err
	}
	h, err := syscall.CreateFile(p, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil, syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if errors.Is(err, errorSharingViolation) {
		return nil, fmt.Errorf("%w: %s", ErrLocked, name)
	}
	if err != nil {
		return nil, &os.PathError{Op: "lock", Path: name, Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}
