//go:build !unix

package main

import "time"

var processStart = time.Now()

// processorTime returns elapsed time where the system does not tell that of the processor: run on a quiet machine.
func processorTime() (time.Duration, error) { return time.Since(processStart), nil }
