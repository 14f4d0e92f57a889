package logtest_test

import (
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			code = 1
			break
		}
	}
	os.Exit(code)
}
