package replication_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails if a goroutine of ours outlives the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		deadline := time.Now().Add(time.Minute)
		for {
			left := ours()
			if left == "" {
				break
			}
			if time.Now().After(deadline) {
				fmt.Fprintln(os.Stderr, "goroutines are left over:\n"+left)
				code = 1
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	os.Exit(code)
}

func ours() string {
	b := make([]byte, 1<<20)
	b = b[:runtime.Stack(b, true)]
	var left []string
	for _, g := range strings.Split(string(b), "\n\n")[1:] {
		if strings.Contains(g, "cordwood") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}
