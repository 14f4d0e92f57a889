package logtest_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	code := m.Run()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		left := goroutines()
		if len(left) == 1 {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, strings.Join(left, "\n\n"))
			code = 1
			break
		}
	}
	os.Exit(code)
}

// goroutines returns the stacks of all goroutines but that of the fuzzer's signals.
func goroutines() (stacks []string) {
	buf := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if !strings.Contains(stack, "os/signal.") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
