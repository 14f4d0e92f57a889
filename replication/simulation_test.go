package replication

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func sprint(a ...any) string { return fmt.Sprint(a...) }

var (
	simSeeds  = flag.Int("sim.seeds", 0, "number of seeds of the simulation; 0: 200, or CORDWOOD_SIM_SEEDS")
	simFirst  = flag.Uint64("sim.first", 1, "first seed of the simulation")
	simScript = flag.String("sim.script", "", "file with a script to replay in place of seeds")
	simTrace  = flag.Bool("sim.trace", false, "print the whole trace of a failing run")
)

// simRare are events that must happen at least so often per 100 seeds, so that the
// simulation doesn't pass by not trying.
var simRare = map[string]int{
	"acked": 2000, "append": 3000, "append-duplicate": 10, "append-indeterminate": 50, "append-retried": 50, "append-not-enough": 10,
	"crash": 100, "kill": 50, "cut": 40, "isolate": 40, "lone": 40, "pause": 40, "stall": 40, "wipe": 2, "rollback": 1, "rot": 2, "lossy": 2, "log-says-lossy": 1, "leader-again": 5, "disk-fails": 10,
	"reregister": 10, "leadership-moved": 5, "leader": 300, "ready": 200, "leadership-lost": 30, "elected-eligible": 30,
	"truncate": 20, "reset": 10, "lower-hw": 1, "isr-grows": 200, "isr-shrinks": 25, "alter-unknown": 20, "alter-refused": 8,
	"alter-answer-lost": 10, "net-lost": 100, "net-duplicated": 100, "progress": 1000, "hw-only": 500, "fetch-timeout": 100,
	"answer-diverging": 20, "answer-tier-start": 10, "answer-not-leader": 50, "answer-fenced-epoch": 5, "answer-unknown-epoch": 1,
	"answer-stale": 20, "answer-fenced-replica": 1, "answer-retry": 1, "answer-may-cut": 2, "drop-local": 50, "tiered": 50, "trim": 20, "log-start-from-leader": 10,
	"lossy-named": 1, "resigned": 2, "sync-stalled": 50, "evidence-of-death": 50, "fenced": 100,
}

func TestSimulation(t *testing.T) {
	if *simScript != "" {
		b, err := os.ReadFile(*simScript)
		if err != nil {
			t.Fatal(err)
		}
		seed, ops, err := parseScript(string(b))
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(seed)
		w.run(ops)
		if w.failure != "" {
			t.Fatalf("%s\n%s", w.failure, w.tail(t))
		}
		return
	}
	seeds := *simSeeds
	if seeds == 0 {
		seeds, _ = strconv.Atoi(os.Getenv("CORDWOOD_SIM_SEEDS"))
	}
	if seeds == 0 {
		seeds = 200
	}
	if testing.Short() {
		seeds = min(seeds, 60)
	}
	counts := map[string]int{}
	for seed := *simFirst; seed < *simFirst+uint64(seeds); seed++ {
		ops := randomScript(seed)
		w := newWorld(seed)
		w.run(ops)
		for k, v := range w.counts {
			counts[k] += v
		}
		if w.failure != "" {
			ops, short := shorten(seed, ops, w, 3*time.Second)
			t.Fatalf("seed %d: %s\nreplay this with -sim.script=FILE:\n\n%s\n%s\n%s", seed, w.failure, formatScript(seed, ops), short.failure, short.tail(t))
		}
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, " %s=%d", k, counts[k])
	}
	t.Logf("%d seeds:%s", seeds, b.String())
	if seeds < 100 {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(simRare)) {
		if want := simRare[k] * seeds / 100; counts[k] < want {
			t.Errorf("event %q happened %d times, want at least %d", k, counts[k], want)
		}
	}
}

func (w *world) tail(t *testing.T) string {
	lines := w.trace
	if n := 80; len(lines) > n && !*simTrace {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// shorten leaves out what the failure does not need.
func shorten(seed uint64, ops []op, failed *world, budget time.Duration) ([]op, *world) {
	stop := time.Now().Add(budget)
	kind := strings.Fields(failed.failure)[0]
	for n := max(len(ops)/2, 1); n >= 1; n /= 2 {
		for i := 0; i < len(ops); {
			if time.Now().After(stop) {
				return ops, failed
			}
			less := slices.Delete(slices.Clone(ops), i, min(i+n, len(ops)))
			w := newWorld(seed)
			w.run(less)
			if w.failure != "" && strings.Fields(w.failure)[0] == kind {
				ops, failed = less, w
			} else {
				i += n
			}
		}
	}
	return ops, failed
}
