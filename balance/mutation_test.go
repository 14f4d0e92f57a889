package balance_test

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

// TestMutations takes guards out one at a time, as testdata/mutations.txt lists them, and expects some test to notice. It compiles
// the package once for each, so it runs only when CORDWOOD_MUTATIONS is set, to 1 or to part of a name.
func TestMutations(t *testing.T) {
	only := os.Getenv("CORDWOOD_MUTATIONS")
	if only == "" {
		t.Skip("set CORDWOOD_MUTATIONS=1 to run")
	}
	list, err := os.ReadFile("testdata/mutations.txt")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?ms)^([^\n|#]+) \| (\S+)\n<<<\n(.*?)\n===\n(.*?)\n?>>>$`)
	blocks := block.FindAllStringSubmatch(string(list), -1)
	if want := strings.Count(string(list), "\n<<<\n"); len(blocks) != want || want == 0 {
		t.Fatalf("%d of %d blocks can be read", len(blocks), want)
	}
	for _, b := range blocks {
		name, file, old, changed := b[1], b[2], b[3], b[4]
		if only != "1" && !strings.Contains(name, only) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			by, err := mutate(t, file, old, changed)
			if err != nil {
				t.Fatal(err)
			}
			if by == "" {
				t.Fatal("no test notices")
			}
			t.Logf("| %s | %s |", name, by)
		})
	}
}

// mutate returns the test that fails first with the text replaced: one of the short ones, or else one of all.
func mutate(t *testing.T, file, old, changed string) (string, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), old); n != 1 {
		return "", fmt.Errorf("the text stands %d times in %s", n, file)
	}
	dir := t.TempDir()
	copied, overlay, program := filepath.Join(dir, file), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "program")
	if err := os.WriteFile(copied, []byte(strings.Replace(string(source), old, changed, 1)), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: copied}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("does not compile: %w\n%s", err, out)
	}
	failing := regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)|^panic: test timed out|^panic: `)
	for _, short := range []string{"-test.short", "-test.short=false"} {
		cmd := exec.CommandContext(t.Context(), program, short, "-test.failfast", "-test.timeout=200s")
		cmd.Env = append(os.Environ(), "CORDWOOD_MUTATIONS=")
		out, err := cmd.CombinedOutput()
		if err == nil {
			continue
		}
		found := failing.FindAllStringSubmatch(string(out), -1)
		if len(found) == 0 {
			return "", fmt.Errorf("fails without a test: %w\n%s", err, out)
		}
		var names []string
		for _, f := range found {
			if f[1] == "" {
				f[1] = strings.TrimSpace(strings.TrimPrefix(f[0], "panic: "))
			}
			if f[1] == "" {
				f[1] = "panic"
			}
			if len(names) == 0 || strings.HasPrefix(f[1], names[0]+"/") {
				names = append(names, f[1])
			}
		}
		if len(names) > 1 && strings.Contains(names[1], "/") {
			names = names[1:] // the subtest says more
		}
		return names[0], nil
	}
	return "", nil
}
