package quota_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutations take the guards of coordination out, one at a time.
var mutations = []struct{ name, file, old, new string }{
	{"raise before the cut is in force", "group.go", "free := quota - held", "free := quota"},
	{"take every cut for confirmed", "group.go", "if applied >= m.seq {", "if applied < 1<<63 {"},
	{"raise while learning", "group.go", "if learn || free <", "if free <"},
	{"raise while too much is held", "group.go", "if learn || free < -1e-9*quota {", "if learn {"},
	{"keep the whole demand of the throttled at what they use", "divide.go", "if throttled == 0 {", "if throttled < 255 {"},
	{"share in proportion under contention", "divide.go", "if sum <= quota {", "if sum > 0 {"},
	{"no floor", "group.go", "d = floor", "_ = d"},
	{"forget a lost broker", "group.go", "held: held, granted: held, lost: true", "held: 0, granted: held, lost: true"},
	{"lazy with nothing saved", "group.go", " && g.saved > 0", ""},
	{"lazy above the quota", "group.go", " && g.use < g.rule.LazyBelow*quota", ""},
	{"an older Step confirms what Found told", "group.go", "m.seq = g.seq + 1 ", "m.seq = 0 "},
	{"never miss a broker", "coordinator.go", "now-p.at > Instant(c.rule.Lease)", "now < p.at"},
	{"learn nothing", "coordinator.go", "learn = learn || now-c.since < Instant(4*c.rule.Lease)", "learn = false"},
	{"take overtaken reports", "coordinator.go", "if r.Seq <= p.seq || back", "if back"},
	{"take reports that are not full first", "coordinator.go", "|| back && !r.Full {", "{"},
	{"forget what a broker without lease was told", "coordinator.go", "held = max(held, g.members[i].held)", "_ = i"},
	{"forget where a broker without lease is going", "coordinator.go", "held := max(limit, c.even(g))", "held := limit"},
	{"take reports of any term", "coordinator.go", "|| r.Term != c.members.Term", ""},
	{"keep shares for ever", "agent.go", "if now <= s.expires {\n\t\treturn limit, s", "if s.expires >= 0 {\n\t\treturn limit, s"},
	{"raise without waiting for others' cuts", "agent.go", "leases -= 2", "leases -= 0"},
	{"take overtaken grants", "agent.go", " || s != nil && g.Seq <= s.applied", ""},
	{"take grants of any term", "agent.go", "g.Term != a.members.Term || ", ""},
	{"take grants whose lease is over", "agent.go", "now > expires || ", ""},
	{"be lazy on old news", "agent.go", "if s.lazy && stale {", "if s.lazy && stale && now < 0 {"},
}

// mutationsAlways are those of each file that always run, with the test that notices.
var mutationsAlways = map[string]string{
	"share in proportion under contention": "^TestRule$",
	"take reports of any term":             "^TestCoordinatorIgnores$",
	"keep shares for ever":                 "^TestAgentApply$",
}

// TestMutations checks that the tests notice each. It compiles the package that many times, so with CORDWOOD_MUTATIONS=1 it runs them all, and
// else a few.
func TestMutations(t *testing.T) {
	all := os.Getenv("CORDWOOD_MUTATIONS") != ""
	if _, err := exec.LookPath("go"); !all && (err != nil || testing.Short()) {
		t.Skip("compiles the package several times")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutations {
		tests, always := mutationsAlways[m.name]
		if all {
			tests = "."
		} else if !always {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			path := filepath.Join(dir, m.file)
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("%q stands %d times in %s", m.old, n, m.file)
			}
			changed, overlay := filepath.Join(t.TempDir(), m.file), filepath.Join(t.TempDir(), "overlay.json")
			if err := os.WriteFile(changed, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(overlay, list, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-failfast", "-short", "-timeout=300s", "-vet=off", "-run", tests, ".")
			cmd.Env = append(os.Environ(), "CORDWOOD_MUTATIONS=")
			out, err := cmd.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("no test notices: %s", m.name)
			case strings.Contains(string(out), "[build failed]"):
				t.Errorf("does not compile:\n%s", out)
			default:
				for line := range strings.Lines(string(out)) {
					if strings.Contains(line, "--- FAIL") {
						t.Logf("noticed by %s", strings.TrimSpace(line))
						break
					}
				}
			}
		})
	}
}
