//go:build !linux

package main

import "testing"

func testDiskFull(t *testing.T) { t.Skip("needs a small file system, which only Linux mounts here") }
