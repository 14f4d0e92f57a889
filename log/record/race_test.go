//go:build race

package record_test

const raceEnabled = true // sync.Pool drops things at random
