package balance_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestMain checks that no test leaves a goroutine behind: the package starts none.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	for range 100 {
		if runtime.NumGoroutine() <= before {
			os.Exit(code)
		}
		time.Sleep(time.Millisecond)
	}
	buf := make([]byte, 1<<16)
	fmt.Fprintf(os.Stderr, "goroutines left behind:\n%s", buf[:runtime.Stack(buf, true)])
	os.Exit(1)
}
