package cordwood_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv(silentEnv) != "" {
		os.Exit(silentMain())
	}
	status := m.Run()
	// Fuzzing keeps goroutines of its own.
	if fuzzing := flag.Lookup("test.fuzz"); status == 0 && fuzzing.Value.String() == "" {
		if err := leaked(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

// leaked waits for goroutines that are about to end, and reports the others.
func leaked() error {
	for range 3000 {
		if runtime.NumGoroutine() <= 1 {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	var b bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&b, 1)
	return fmt.Errorf("goroutines are left:\n%s", &b)
}
