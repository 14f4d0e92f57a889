//go:build race

package cordwood_test

// raceEnabled tells that the race detector is on, under which all takes ten times
// as long.
const raceEnabled = true
