//go:build linux

// Package logpeers opens the write-ahead logs and append-only logs that Go programs embed, each behind the same few calls, so that
// bench can measure them beside ours.
package logpeers
