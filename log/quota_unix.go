//go:build unix

package log

import (
	"errors"
	"syscall"
)

func diskQuota(err error) bool { return errors.Is(err, syscall.EDQUOT) }

// fileLimit returns how many files the process may have open.
func fileLimit() int64 {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil || uint64(r.Cur) > 1<<30 {
		return 1 << 30
	}
	return int64(r.Cur)
}
