package quota_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestMain fails if the tests leave goroutines behind.
func TestMain(m *testing.M) {
	fixSeed()
	code := m.Run()
	if code == 0 {
		deadline := time.Now().Add(time.Minute)
		for runtime.NumGoroutine() > 1 && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > 1 {
			buf := make([]byte, 1<<20)
			fmt.Fprintf(os.Stderr, "%d goroutines left:\n%s\n", n, buf[:runtime.Stack(buf, true)])
			code = 1
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
