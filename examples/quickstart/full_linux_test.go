package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func testDiskFull(t *testing.T) {
	dir := filepath.Join(t.TempDir())
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=160m"); err != nil {
		t.Skipf("no small file system can be mounted: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	o := program(t, sequence(1, 9_000_000), "-in", "-", "-dir", dir)
	checkRefused(t, o, "full")
	if strings.Contains(o.stderr, "no space") {
		t.Errorf("more than one line says why:\n%s", o.stderr)
	}
}
