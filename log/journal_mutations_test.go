package log

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestJournalMutations takes guards of the journal out one at a time, as
// testdata/journal_mutations.txt lists them, and expects some test to notice. It compiles the
// package once for each, so it runs only when CORDWOOD_MUTATE is set, to 1 or to part
// of a name; with -short the tests are.
func TestJournalMutations(t *testing.T) {
	only := os.Getenv("CORDWOOD_MUTATE")
	if only == "" {
		t.Skip("CORDWOOD_MUTATE is not set")
	}
	b, err := os.ReadFile("testdata/journal_mutations.txt")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?ms)^([^\n|#]+) \| (\S+)\n<<<\n(.*?)\n?===\n(.*?)>>>$`)
	failing := regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	short := fmt.Sprint(testing.Short())
	for _, m := range block.FindAllStringSubmatch(string(b), -1) {
		name, file, old, repl := m[1], m[2], m[3], strings.TrimSuffix(m[4], "\n")
		if only != "1" && !strings.Contains(name, only) {
			continue
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(src), old) != 1 {
			t.Errorf("%s: text is found %d times in %s", name, strings.Count(string(src), old), file)
			continue
		}
		dir := t.TempDir()
		abs, _ := filepath.Abs(file)
		changed := filepath.Join(dir, file)
		if err := os.WriteFile(changed, []byte(strings.Replace(string(src), old, repl, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{abs: changed}})
		if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("go", "test", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-timeout=100s", "-failfast", "-run", "Journal", "-short="+short, ".")
		cmd.Env = append(os.Environ(), "CORDWOOD_MUTATE=")
		out, err := cmd.CombinedOutput()
		var seen []string
		for _, f := range failing.FindAllStringSubmatch(string(out), -1) {
			seen = append(seen, f[1])
		}
		switch {
		case err == nil:
			t.Errorf("| %s | NOBODY |", name)
		case strings.Contains(string(out), "[build failed]"):
			t.Errorf("%s does not compile:\n%s", name, out)
		case len(seen) == 0:
			t.Logf("| %s | %s |", name, lastJournalLine(string(out)))
		default:
			t.Logf("| %s | %s |", name, strings.Join(seen, " "))
		}
	}
}

func lastJournalLine(s string) string {
	i := strings.Index(s, "panic: ")
	if i < 0 {
		return "fails"
	}
	line, _, _ := strings.Cut(s[i:], "\n")
	return line
}
