package tier_test

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/cordwood-io/cordwood/internal/mutate"
)

// TestMutations takes the guards of the invariants out one at a time, as
// testdata/mutations.txt lists them, and expects a seed of the schedules to notice, or
// another test. It runs only when CORDWOOD_MUTATE is set, to 1 or to part of a guard's
// name.
func TestMutations(t *testing.T) {
	mutate.Run(t, "testdata/mutations.txt",
		mutate.Tests{"-timeout=200s", "-run", "^TestSchedules$", "."},
		mutate.Tests{"-timeout=200s", "-short", "-failfast", "-skip", "TestSchedules|TestMutations", "."})
}

// invariants is the number of the package's invariants.
const invariants = 22

// TestMutationTable holds that each invariant has a guard in the list, and each guard of
// the list a row in the table that says who notices.
func TestMutationTable(t *testing.T) {
	list, err := mutate.Read("testdata/mutations.txt")
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("testdata/mutations.md")
	if err != nil {
		t.Fatal(err)
	}
	number := regexp.MustCompile(`^(\d+): `)
	guards := map[int]int{}
	for _, m := range list {
		n := number.FindStringSubmatch(m.Name)
		if n == nil {
			t.Errorf("%q names no invariant", m.Name)
			continue
		}
		i, _ := strconv.Atoi(n[1])
		guards[i]++
		if !bytes.Contains(table, []byte("| "+m.Name+" | ")) {
			t.Errorf("%q has no row in the table", m.Name)
		}
	}
	for i := range invariants {
		if guards[i+1] == 0 {
			t.Errorf("invariant %d has no guard", i+1)
		}
	}
}
