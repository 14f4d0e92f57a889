//go:build !unix

package log

func diskQuota(error) bool { return false }

// fileLimit returns how many files the process may have open.
func fileLimit() int64 { return 1 << 30 }
