//go:build unix

package tier_test

import (
	"syscall"
	"time"
)

// realNow is the processor time that this process has used, outside of the virtual
// time of a synctest bubble.
func realNow() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
