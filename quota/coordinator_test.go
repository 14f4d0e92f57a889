package quota_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/quota"
)

func newGroup(t testing.TB, rule quota.Rule, n int, q float64) *quota.Group {
	t.Helper()
	g, err := quota.NewGroup(rule, n, q)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func limits(g *quota.Group, n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i], _ = g.Limit(i)
	}
	return all
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

// settle repeats the same reports until every limit is in force.
func settle(g *quota.Group, q float64, used []float64, throttled []bool) {
	for seq := uint64(1); seq <= 12; seq++ {
		for i, u := range used {
			g.Report(i, u, throttled[i], seq-1)
		}
		g.Step(q, seq, false)
	}
}

// TestRule checks the parts of rule WF2 one by one.
func TestRule(t *testing.T) {
	no := make([]bool, 4)
	t.Run("headroom in proportion to use", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 4, 100)
		settle(g, 100, []float64{10, 20, 5, 5}, no)
		if got, want := limits(g, 4), []float64{25, 50, 12.5, 12.5}; !slices.EqualFunc(got, want, near) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("nobody uses anything", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 4, 100)
		settle(g, 100, []float64{10, 0, 0, 0}, no)
		settle(g, 100, []float64{0, 0, 0, 0}, no)
		if got, want := limits(g, 4), []float64{25, 25, 25, 25}; !slices.EqualFunc(got, want, near) {
			t.Errorf("got %v, want the static split", got)
		}
	})
	t.Run("an idle broker keeps the floor", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 4, 100)
		settle(g, 100, []float64{10, 0, 0, 0}, no)
		if got, want := limits(g, 4), []float64{98.5, 0.5, 0.5, 0.5}; !slices.EqualFunc(got, want, near) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("a broker with hardly any use keeps the floor too", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 2, 100)
		settle(g, 100, []float64{99, 0.001}, no[:2])
		if got, want := limits(g, 2), []float64{99, 1}; !slices.EqualFunc(got, want, near) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("max-min under contention", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 4, 100)
		settle(g, 100, []float64{10, 20, 35, 35}, []bool{false, false, true, true})
		if got, want := limits(g, 4), []float64{10, 20, 35, 35}; !slices.EqualFunc(got, want, near) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("weighted max-min under contention", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 4, 100)
		g.SetWeight(3, 2)
		settle(g, 100, []float64{10, 15, 30, 45}, []bool{false, false, true, true})
		if got, want := limits(g, 4), []float64{10, 15, 25, 50}; !slices.EqualFunc(got, want, near) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("a throttled broker's demand escalates", func(t *testing.T) {
		// 24 brokers, one saturated, one comes from the floor: x2, x8, x64 of at least half its limit.
		g := newGroup(t, quota.Rule{}, 2, 100)
		used := []float64{99, 0}
		settle(g, 100, used, []bool{true, false})
		floor, _ := g.Limit(1)
		if !near(floor, 1) {
			t.Fatalf("floor %v, want 1", floor)
		}
		want := []float64{2 * floor, 8 * 2 * floor, 50}
		seq := uint64(100)
		for k, w := range want {
			l, _ := g.Limit(1)
			g.Report(0, 100-l, true, seq)
			g.Report(1, l, true, seq)
			seq++
			g.Step(100, seq, false) // cuts broker 0
			l0, _ := g.Limit(0)
			if !near(100-l0, w) {
				t.Fatalf("after %d throttled periods broker 0 is cut by %v, want %v", k+1, 100-l0, w)
			}
			// The raise needs the cut's confirmation; repeat the step without a report of the newcomer, whose count must not grow.
			g.Report(0, l0, true, seq)
			seq++
			g.Step(100, seq, false)
			if l, _ := g.Limit(1); !near(l, w) {
				t.Fatalf("after %d throttled periods the limit is %v, want %v", k+1, l, w)
			}
		}
	})
	t.Run("cuts before raises", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 2, 100)
		settle(g, 100, []float64{80, 10}, no[:2])
		before := limits(g, 2)
		g.Report(0, 10, false, 12)
		g.Report(1, 80, true, 12)
		g.Step(100, 13, false)
		if l, _ := g.Limit(0); l >= before[0] {
			t.Errorf("limit of broker 0 is %v, want a cut", l)
		}
		if l, _ := g.Limit(1); l != before[1] {
			t.Errorf("limit of broker 1 was raised to %v before the cut was confirmed", l)
		}
		g.Report(0, 10, false, 12) // still not confirmed
		g.Report(1, before[1], true, 13)
		g.Step(100, 14, false)
		if l, _ := g.Limit(1); l != before[1] {
			t.Errorf("limit of broker 1 was raised to %v before the cut was confirmed", l)
		}
		g.Report(0, 10, false, 14)
		g.Report(1, before[1], true, 14)
		g.Step(100, 15, false)
		if l, _ := g.Limit(1); l <= before[1] {
			t.Errorf("limit of broker 1 is %v, want a raise", l)
		}
	})
	t.Run("a lowered quota", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 2, 100)
		settle(g, 100, []float64{40, 40}, no[:2])
		g.Report(0, 40, true, 12)
		g.Report(1, 40, true, 12)
		g.Step(60, 13, false)
		if got, want := limits(g, 2), []float64{30, 30}; !slices.EqualFunc(got, want, near) {
			t.Errorf("got %v, want %v", got, want)
		}
		// Nobody has confirmed the cuts, and the traffic moves: what broker 0 is still counted with is no longer there to be given.
		for seq := uint64(14); seq < 20; seq++ {
			g.Report(0, 40, true, 12)
			g.Report(1, 1, false, 12)
			g.Step(60, seq, false)
			if l, _ := g.Limit(0); l > 30 {
				t.Fatalf("limit of broker 0 raised to %v while %v is held of 60", l, g.Held())
			}
		}
		for seq := uint64(20); seq < 24; seq++ {
			g.Report(0, 40, true, seq-1)
			g.Report(1, 1, false, seq-1)
			g.Step(60, seq, false)
		}
		if l, _ := g.Limit(0); l < 50 || g.Held() > 60+1e-9 {
			t.Errorf("limit of broker 0 is %v at last, held %v; want most of 60", l, g.Held())
		}
	})
	t.Run("learning raises nothing", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 2, 100)
		for seq := uint64(1); seq < 20; seq++ {
			g.Report(0, 60, true, seq-1)
			g.Report(1, 1, false, seq-1)
			g.Step(100, seq, true)
			if l, _ := g.Limit(0); l > 50 {
				t.Fatalf("raised to %v", l)
			}
		}
		if l, _ := g.Limit(1); l >= 50 {
			t.Errorf("limit of broker 1 is %v, want a cut", l)
		}
	})
	t.Run("a lost broker's part is kept for it", func(t *testing.T) {
		g := newGroup(t, quota.Rule{}, 4, 100)
		settle(g, 100, []float64{10, 10, 10, 10}, no)
		g.Lost(3, 25)
		for seq := uint64(20); seq < 40; seq++ {
			for i := range 3 {
				g.Report(i, 30, true, seq-1)
			}
			g.Step(100, seq, false)
		}
		if got, want := limits(g, 4), []float64{25, 25, 25, 25}; !slices.EqualFunc(got, want, near) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("lazy", func(t *testing.T) {
		g := newGroup(t, quota.Rule{LazyBurst: time.Second}, 2, 100)
		lazy := func(use float64) bool {
			g.Report(0, use/2, false, 0)
			g.Report(1, use/2, false, 0)
			g.Step(100, 1, false)
			return g.Lazy()
		}
		if !lazy(70) || !lazy(97) {
			t.Error("not lazy below the quota")
		}
		if lazy(98.5) || lazy(150) {
			t.Error("lazy at the quota")
		}
		// One second of the quota was saved at most: 150 for 2 s use it up, and as much must be saved again.
		for range 8 {
			lazy(150)
		}
		if lazy(95) {
			t.Error("lazy with nothing saved")
		}
		for range 10 {
			lazy(50)
		}
		if !lazy(95) {
			t.Error("not lazy with something saved")
		}
		if newGroup(t, quota.Rule{LazyFactor: 1}, 2, 100).Lazy() {
			t.Error("lazy though turned off")
		}
	})
	t.Run("the floor's cost", func(t *testing.T) {
		for floor, want := range map[float64]float64{0.1: 9.6, 0.02: 1.9} {
			g := newGroup(t, quota.Rule{Floor: floor}, 24, 100)
			used, throttled := make([]float64, 24), make([]bool, 24)
			used[0], throttled[0] = 100, true
			settle(g, 100, used, throttled)
			if l, _ := g.Limit(0); math.Abs(100-l-want) > 0.05 {
				t.Errorf("floor %v strands %.2f %%, want %v %%", floor, 100-l, want)
			}
		}
	})
}

// TestGroupProperties checks on random reports, confirmed late or never, that held limits never exceed the quota, that limits are within what is held,
// and that all of the quota is given out once everything is confirmed.
func TestGroupProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "n")
		g, err := quota.NewGroup(quota.Rule{}, n, 100)
		if err != nil {
			t.Fatal(err)
		}
		// inForce is what a broker that applies grants out of order could have: the largest since the confirmed one.
		confirmed := make([]uint64, n)
		type told struct {
			seq   uint64
			limit float64
		}
		history := make([][]told, n)
		for i := range history {
			history[i] = []told{{0, 100 / float64(n)}}
		}
		steps := rapid.IntRange(1, 30).Draw(t, "steps")
		for seq := uint64(1); seq <= uint64(steps); seq++ {
			for i := range n {
				if rapid.Bool().Draw(t, "report") {
					confirmed[i] = rapid.Uint64Range(confirmed[i], seq-1).Draw(t, "applied")
					g.Report(i, rapid.Float64Range(0, 120).Draw(t, "used"), rapid.Bool().Draw(t, "throttled"), confirmed[i])
				}
			}
			g.Step(100, seq, rapid.Bool().Draw(t, "learn"))
			sum := 0.0
			for i := range n {
				limit, _ := g.Limit(i)
				history[i] = append(history[i], told{seq, limit})
				most := 0.0
				for k, h := range history[i] {
					if h.seq >= confirmed[i] || k == len(history[i])-1 {
						most = max(most, h.limit)
					}
				}
				sum += most
			}
			if sum > 100+1e-6 || g.Held() > 100+1e-6 {
				t.Fatalf("step %d: %v may be in force, held %v", seq, sum, g.Held())
			}
		}
		used := rapid.SliceOfN(rapid.Float64Range(0.1, 120), n, n).Draw(t, "final")
		for seq := uint64(steps) + 1; seq < uint64(steps)+12; seq++ {
			for i := range n {
				g.Report(i, used[i], true, seq-1)
			}
			g.Step(100, seq, false)
		}
		sum := 0.0
		for _, l := range limits(g, n) {
			sum += l
		}
		if math.Abs(sum-100) > 1e-6 {
			t.Fatalf("limits add up to %v at rest, want all of the quota", sum)
		}
	})
}

// TestRendezvous checks that tenants spread evenly and that few move with a broker.
func TestRendezvous(t *testing.T) {
	brokers := make([]quota.BrokerID, 10)
	for i := range brokers {
		brokers[i] = quota.BrokerID(i + 1)
	}
	const tenants = 10_000
	count := map[quota.BrokerID]int{}
	for i := range tenants {
		name := fmt.Sprintf("lkc-%d", i)
		b, ok := quota.CoordinatorFor(name, brokers)
		if !ok {
			t.Fatal("no coordinator")
		}
		count[b]++
		reversed := slices.Clone(brokers)
		slices.Reverse(reversed)
		if other, _ := quota.CoordinatorFor(name, reversed); other != b {
			t.Fatalf("%s: the order of the brokers matters", name)
		}
		if after, _ := quota.CoordinatorFor(name, brokers[:9]); after != b && b != 10 {
			t.Fatalf("%s moved from %d to %d though its broker stayed", name, b, after)
		}
	}
	for b, n := range count {
		if n < tenants/10*8/10 || n > tenants/10*12/10 {
			t.Errorf("broker %d coordinates %d tenants of %d", b, n, tenants)
		}
	}
	// The hash is part of the protocol between nodes.
	for name, want := range map[string]quota.BrokerID{"lkc-0": 9, "lkc-1": 5, "": 7} {
		if got, _ := quota.CoordinatorFor(name, brokers); got != want {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
	if _, ok := quota.CoordinatorFor("a", nil); ok {
		t.Error("a coordinator among no brokers")
	}
}

func TestRuleInvalid(t *testing.T) {
	for _, r := range []quota.Rule{{Period: -1}, {Lease: 1}, {Floor: 2}, {Floor: math.NaN()}, {LazyFactor: 0.5}, {LazyBelow: -1}, {LazyBurst: -1}} {
		if _, err := quota.NewGroup(r, 3, 1); !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", r, err)
		}
	}
	if _, err := quota.NewGroup(quota.Rule{}, 0, 1); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("no brokers: %v, want ErrInvalid", err)
	}
	if _, err := quota.NewCoordinator(1, quota.Rule{}, nil); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("no quota function: %v, want ErrInvalid", err)
	}
}

// TestCoordinatorIgnores passes reports that must change nothing.
func TestCoordinatorIgnores(t *testing.T) {
	c, err := quota.NewCoordinator(1, quota.Rule{}, func(string, quota.Kind) quota.Rate { return 100 })
	if err != nil {
		t.Fatal(err)
	}
	c.SetMembers(quota.Members{Term: 2, Brokers: []quota.BrokerID{1, 2}, Coordinators: []quota.BrokerID{1}}, 0)
	use := []quota.Use{{Tenant: "a", Kind: quota.Ingress, Rate: 60, Throttled: true, Limit: 50}}
	for name, r := range map[string]quota.Report{
		"old term":       {From: 1, To: 1, Term: 1, Seq: 1, Full: true, Uses: use},
		"unknown broker": {From: 3, To: 1, Term: 2, Seq: 1, Full: true, Uses: use},
		"for another":    {From: 1, To: 2, Term: 2, Seq: 1, Full: true, Uses: use},
		"not full":       {From: 1, To: 1, Term: 2, Seq: 1, Uses: use},
	} {
		c.Report(r, 0)
		if _, _, ok := c.Quota("a", quota.Ingress); ok || len(c.Step(0)) != 0 {
			t.Errorf("%s: taken", name)
		}
	}
	good := quota.Report{From: 1, To: 1, Term: 2, Seq: 5, Full: true, Uses: use}
	c.Report(good, 0)
	good.Seq, good.Uses = 4, nil // overtaken
	c.Report(good, 0)
	c.Step(0)
	if _, use, ok := c.Quota("a", quota.Ingress); !ok || use != 60 {
		t.Errorf("use %v, %v; want 60: an overtaken report counts for nothing", use, ok)
	}
	for i, bad := range []float64{math.NaN(), math.Inf(1), -1} {
		c.Report(quota.Report{From: 1, To: 1, Term: 2, Seq: uint64(6 + i), Full: true,
			Uses: []quota.Use{{Tenant: "a", Kind: quota.Ingress, Rate: bad, Limit: 50}, {Tenant: "b", Kind: quota.Ingress, Limit: bad}, {Tenant: "c", Kind: 99}}}, 0)
		c.Step(0)
		if held, use, ok := c.Quota("a", quota.Ingress); !ok || use != 0 || !(held[1] <= 50) {
			t.Errorf("after a rate of %v: use %v, limits %v", bad, use, held)
		}
	}
	good.Seq, good.Uses = 10, use
	c.Report(good, 0)
	c.SetMembers(quota.Members{Term: 2}, 0) // not newer
	if grants := c.Step(0); len(grants) != 1 || len(grants[0].Shares) != 1 {
		t.Errorf("grants %+v, want one share for broker 1", grants)
	}
}
