//go:build !windows

package transport

import "syscall"

// refusedErrno is only set where the system has a second number for
// ECONNREFUSED.
const refusedErrno = syscall.Errno(0)
