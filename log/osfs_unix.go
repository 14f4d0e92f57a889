//go:build unix

package log

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

func lockFile(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = flock(f)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		cerr := f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, name)
		}
		return nil, errors.Join(&os.PathError{Op: "flock", Path: name, Err: err}, cerr)
	}
	return f, nil
}
