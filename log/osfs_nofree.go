//go:build !linux && !darwin

package log

import "math"

// freeBytes knows nothing here: a full disk shows when a write meets it.
func freeBytes(string) (int64, error) { return math.MaxInt64, nil }
