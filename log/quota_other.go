//go:build !unix

package log

func diskQuota(error) bool { return false }
