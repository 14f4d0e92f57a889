//go:build unix

package log

import (
	"errors"
	"syscall"
)

func diskQuota(err error) bool { return errors.Is(err, syscall.EDQUOT) }
