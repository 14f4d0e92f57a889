package mutate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A Mutation is one guard taken out.
type Mutation struct {
	Name string // of the guard
	File string // relative to the folder of the package
	Old  string // text that stands there once
	New  string // what takes its place
}

var block = regexp.MustCompile(`(?ms)^([^\n|#]+) \| (\S+)\n<<<\n(.*?)\n?===\n(.*?)>>>$`)

// Read reads a list. Errors are those of the file, and of blocks that can't be read.
func Read(name string) ([]Mutation, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var list []Mutation
	for _, m := range block.FindAllStringSubmatch(string(b), -1) {
		list = append(list, Mutation{m[1], m[2], m[3], strings.TrimSuffix(m[4], "\n")})
	}
	if want := strings.Count("\n"+string(b), "\n<<<\n"); len(list) != want {
		return list, fmt.Errorf("%s: %d of %d blocks can be read", name, len(list), want)
	}
	return list, nil
}

// Tests are the arguments of one go test in the package's folder.
type Tests []string

// Run takes the guards of a list out one at a time and runs the tests: the one that the
// guard's row in the table names, and unless that fails, one set after the other until
// one does. A guard whose loss none notices fails t, as does one whose loss shows only in
// a time-out, which says nothing, and one whose text does not stand in its file exactly
// once. It compiles the package for each, so it skips t unless CORDWOOD_MUTATE is set, to
// 1 or to part of a name.
//
// It logs a line of the table for each guard: its name and the tests that failed.
func Run(t *testing.T, name string, sets ...Tests) {
	t.Helper()
	only := os.Getenv("CORDWOOD_MUTATE")
	if only == "" {
		t.Skip("CORDWOOD_MUTATE is not set")
	}
	list, err := Read(name)
	if err != nil {
		t.Error(err)
	}
	table, err := os.ReadFile(filepath.Join(filepath.Dir(name), "mutations.md"))
	if err != nil {
		t.Error(err)
	}
	for _, m := range list {
		src, err := os.ReadFile(m.File)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(src), m.Old); n != 1 {
			t.Errorf("%s: its text stands %d times in %s", m.Name, n, m.File)
			continue
		}
		if only != "1" && !strings.Contains(m.Name, only) {
			continue
		}
		dir := t.TempDir()
		var out string
		if test := Named(table, m.Name); test != "" {
			out, err = m.test(dir, string(src), Tests{"-timeout=100s", "-run", pattern(test), "."})
			if err != nil && slices.Contains(failed(out), test) {
				t.Logf("| %s | %s | as the table says", m.Name, noticed(out))
				continue
			}
		}
		err = nil
		late := ""
		for i := 0; i < len(sets) && err == nil; i++ {
			out, err = m.test(dir, string(src), sets[i])
			if s := hanging(out); err != nil && s != "" {
				late, err = s, nil
			}
		}
		switch {
		case err == nil && late != "":
			t.Errorf("| %s | NOBODY, but %s |", m.Name, late)
		case err == nil:
			t.Errorf("| %s | NOBODY |", m.Name)
		case strings.Contains(out, "[build failed]"):
			t.Errorf("%s does not compile:\n%s", m.Name, out)
		default:
			t.Logf("| %s | %s |", m.Name, noticed(out))
		}
	}
}

// Named returns the first test that a guard's row in the table names; "" if there is no
// such row, or no test in it.
func Named(table []byte, guard string) string {
	_, row, _ := strings.Cut("\n"+string(table), "\n| "+guard+" | ")
	row, _, _ = strings.Cut(row, "\n")
	for word := range strings.FieldsFuncSeq(row, func(r rune) bool { return r == ' ' || r == ',' }) {
		if isTest.MatchString(word) {
			return word
		}
	}
	return ""
}

var isTest = regexp.MustCompile(`^(Test|Example|Fuzz)\w`)

// pattern is what -run takes for one test.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// test runs the tests on the changed source.
func (m Mutation) test(dir, src string, args Tests) (out string, err error) {
	file, err := filepath.Abs(m.File)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(changed, []byte(strings.Replace(src, m.Old, m.New, 1)), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("go", append([]string{"test", "-vet=off", "-overlay", list}, args...)...)
	cmd.Env = append(os.Environ(), "CORDWOOD_MUTATE=")
	b, err := cmd.CombinedOutput()
	return string(b), err
}

var (
	failing = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	seed    = regexp.MustCompile(`seed \d+: [^\n]*`)

	// ids are longer than they tell: random ones, and offsets with their zeros.
	ids = regexp.MustCompile(`[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{20}`)
)

// maxReason bounds how much of a failing seed's reason is told.
const maxReason = 90

var timeout = regexp.MustCompile(`(?m)^panic: test timed out .*\n(?:\trunning tests:\n(?:\t\t.*\n)*?\t\t(\S+) .*\n[^\t])?`)

// hanging says which test was running when the time was over; "" if it was not, or if
// something failed before.
func hanging(out string) string {
	m := timeout.FindStringSubmatch(out)
	if m == nil || len(failed(out)) > 0 {
		return ""
	}
	return "a time-out of " + cmp.Or(m[1], "all")
}

// failed returns the tests that failed, the innermost of each.
func failed(out string) (seen []string) {
	for _, f := range failing.FindAllStringSubmatch(out, -1) {
		// A test's line comes before those of its subtests.
		if n := len(seen); n > 0 && strings.HasPrefix(f[1], seen[n-1]+"/") {
			seen[n-1] = f[1]
			continue
		}
		seen = append(seen, f[1])
	}
	return seen
}

// noticed says which tests failed, with the reason of a failing seed; of a process that
// ended otherwise, how.
func noticed(out string) string {
	seen := failed(out)
	if s := ids.ReplaceAllString(seed.FindString(out), "…"); s != "" {
		seen = append(seen, "("+strings.ToValidUTF8(s[:min(len(s), maxReason)], "")+")")
	}
	if len(seen) > 0 {
		return strings.Join(seen, " ")
	}
	if i := strings.Index(out, "panic: "); i >= 0 {
		line, _, _ := strings.Cut(out[i:], "\n")
		return line
	}
	return "fails"
}
