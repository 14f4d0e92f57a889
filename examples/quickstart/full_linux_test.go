package main

import (
	"path/filepath"
	"syscall"
	"testing"
)

func testDiskFull(t *testing.T) {
	dir := filepath.Join(t.TempDir())
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=160m"); err != nil {
		t.Skipf("no small file system can be mounted: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	checkRefused(t, program(t, sequence(1, 9_000_000), "-in", "-", "-dir", dir), "full")
}
