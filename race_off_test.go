//go:build !race

package cordwood_test

// raceEnabled tells that the race detector is on.
const raceEnabled = false
