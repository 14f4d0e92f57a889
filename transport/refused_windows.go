package transport

import "syscall"

// refusedErrno is WSAECONNREFUSED, which package syscall does not map to
// ECONNREFUSED.
const refusedErrno = syscall.Errno(10061)
