package balance_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestMain checks that no test leaves a goroutine behind: the package starts none.
func TestMain(m *testing.M) {
	fixSeed()
	before := runtime.NumGoroutine()
	code := m.Run()
	for range 60_000 {
		if runtime.NumGoroutine() <= before {
			os.Exit(code)
		}
		time.Sleep(time.Millisecond)
	}
	buf := make([]byte, 1<<16)
	fmt.Fprintf(os.Stderr, "goroutines left behind:\n%s", buf[:runtime.Stack(buf, true)])
	os.Exit(1)
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
