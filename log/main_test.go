package log_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	fixSeed()
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

// fixSeed makes rapid draw the same cases in every run and leave no file in testdata when one fails. To explore others:
// go test -rapid.seed=N, with 0 for a random seed, and -rapid.checks=N for more of them.
func fixSeed() {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{"rapid.seed": "1", "rapid.nofailfile": "true"} {
		if given[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}

// goroutines returns the stacks of all goroutines but those of the test machinery.
func goroutines() (stacks []string) {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for s := range strings.SplitSeq(string(buf), "\n\n") {
		if !strings.Contains(s, "os/signal.") && !strings.Contains(s, "internal/fuzz.") && !strings.Contains(s, "testing/internal/testdeps") {
			stacks = append(stacks, s)
		}
	}
	return stacks
}
