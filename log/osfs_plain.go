//go:build !linux

package log

import "os"

func fileSync(f *os.File) error { return f.Sync() }

func preallocate(f *os.File, off, n int64) error { return extend(f, off, n) }

func reserves(string) bool { return false }
