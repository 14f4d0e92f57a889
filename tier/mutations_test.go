package tier_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cordwood-io/cordwood/internal/mutate"
)

// TestMutations takes the guards of the invariants out one at a time, as
// testdata/mutations.txt lists them, and expects the test that the table names to
// notice, or a seed of the schedules, or another test. It runs only when CORDWOOD_MUTATE
// is set, to 1 or to part of a guard's name.
func TestMutations(t *testing.T) {
	mutate.Run(t, "testdata/mutations.txt",
		mutate.Tests{"-timeout=200s", "-run", "^TestSchedules$", "."},
		mutate.Tests{"-timeout=200s", "-short", "-failfast", "-skip", "TestSchedules|TestMutations", "."})
}

// invariants is the number of the package's invariants.
const invariants = 22

// TestMutationTable holds that each invariant has a guard in the list whose row in the
// table names a seed, and that each guard of the list is in the source, with one row,
// which names a test of this package.
func TestMutationTable(t *testing.T) {
	list, err := mutate.Read("testdata/mutations.txt")
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("testdata/mutations.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var tests []byte
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tests = append(tests, b...)
	}
	rows := map[string]int{}
	for line := range strings.Lines(string(table)) {
		if cells := strings.Split(line, " | "); len(cells) > 1 {
			rows[strings.TrimPrefix(cells[0], "| ")]++
		}
	}
	number := regexp.MustCompile(`^(\d+): `)
	seed := regexp.MustCompile(`^Test(Schedules|LogSchedules|StateRandom)/\d+$`)
	seeds := map[int]int{}
	for _, m := range list {
		n := number.FindStringSubmatch(m.Name)
		if n == nil {
			t.Errorf("%q names no invariant", m.Name)
			continue
		}
		i, _ := strconv.Atoi(n[1])
		if code, err := os.ReadFile(m.File); err != nil || bytes.Count(code, []byte(m.Old)) != 1 {
			t.Errorf("%q: its text stands %d times in %s: %v", m.Name, bytes.Count(code, []byte(m.Old)), m.File, err)
		}
		if rows[m.Name] != 1 {
			t.Errorf("%q has %d rows in the table", m.Name, rows[m.Name])
			continue
		}
		delete(rows, m.Name)
		named := mutate.Named(table, m.Name)
		if seed.MatchString(named) {
			seeds[i]++
		}
		test, _, _ := strings.Cut(named, "/")
		if test == "" || !bytes.Contains(tests, []byte("\nfunc "+test+"(")) {
			t.Errorf("%q: its row names %q, which is no test", m.Name, test)
		}
	}
	for i := range invariants {
		if seeds[i+1] == 0 {
			t.Errorf("invariant %d has no guard whose loss a seed shows", i+1)
		}
	}
	delete(rows, "guard")
	delete(rows, "---")
	for name := range rows {
		t.Errorf("%q is a row of no guard", name)
	}
}
