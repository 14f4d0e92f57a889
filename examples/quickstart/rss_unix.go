//go:build unix

package main

import (
	"os"
	"runtime"
	"syscall"
)

// peakRSS returns the largest resident memory of a process that has ended.
func peakRSS(s *os.ProcessState) int64 {
	if r, ok := s.SysUsage().(*syscall.Rusage); ok {
		return rssBytes(r)
	}
	return 0
}

// ownPeakRSS returns the largest resident memory of this process so far.
func ownPeakRSS() int64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return rssBytes(&r)
}

func rssBytes(r *syscall.Rusage) int64 {
	if runtime.GOOS == "darwin" {
		return int64(r.Maxrss)
	}
	return int64(r.Maxrss) << 10
}
