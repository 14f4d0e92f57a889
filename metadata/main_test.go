package metadata_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

var traceLog = flag.Bool("tracelog", false, "with -v, show what the servers log")

// TestMain fails if a goroutine of the package is left when all tests are done.
func TestMain(m *testing.M) {
	fixSeed()
	code := m.Run()
	if code == 0 {
		if left := leaked(); left != "" {
			fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", left)
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

func leaked() string {
	buf := make([]byte, 1<<20)
	var left string
	for range 6000 {
		left = ""
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if (strings.Contains(g, "cordwood/metadata") || strings.Contains(g, "pebble/v2")) && !strings.Contains(g, "TestMain") {
				left += g + "\n\n"
			}
		}
		if left == "" {
			return ""
		}
		time.Sleep(10 * time.Millisecond)
	}
	return left
}
