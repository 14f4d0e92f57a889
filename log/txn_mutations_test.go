package log_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTxnMutations takes guards out one at a time, as testdata/txn_mutations.txt lists
// them, and expects some test of producers and transactions to notice.
// It compiles the package once for each, so it runs only when CORDWOOD_MUTATE is set,
// to 1 or to part of a name.
func TestTxnMutations(t *testing.T) { mutate(t, "testdata/txn_mutations.txt", txnTests) }

// TestRollMutations is the same for guards of rolls and recycled files.
func TestRollMutations(t *testing.T) { mutate(t, "testdata/roll_mutations.txt", rollTests) }

func mutate(t *testing.T, list, tests string) {
	only := os.Getenv("CORDWOOD_MUTATE")
	if only == "" {
		t.Skip("CORDWOOD_MUTATE is not set")
	}
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?ms)^([^\n|#]+) \| (\S+)\n<<<\n(.*?)\n?===\n(.*?)>>>$`)
	failing := regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
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
		cmd := exec.Command("go", "test", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-timeout=100s", "-short", "-failfast", "-run", tests, ".", "-rapid.shrinktime=1s")
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
			t.Logf("| %s | %s |", name, lastLine(string(out)))
		default:
			t.Logf("| %s | %s |", name, strings.Join(seen, " "))
		}
	}
}

// txnTests are the tests that must notice.
const txnTests = "^(TestTransactions|TestProducers|TestProducerExpiry|TestKafkaSnapshot|TestFlippedTxn|TestStale|TestManyEnded|TestControlBatch|TestCase|TestTxnModel)"

// rollTests are those for rolls and recycled files.
const rollTests = "^(TestForgedBatches|TestTornRecycled|TestRecycled|TestRollOnly|TestFlipEveryByte|TestFaultRecycled|TestCrashRecycled|TestCase|TestCrashEverywhere)"

func lastLine(s string) string {
	i := strings.Index(s, "panic: ")
	if i < 0 {
		return "fails"
	}
	line, _, _ := strings.Cut(s[i:], "\n")
	return line
}
