//go:build solaris || illumos || aix

package log

import (
	"errors"
	"os"
)

func flock(*os.File) error { return errors.ErrUnsupported }
