package balance_test

import (
	"math"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/balance"
)

// TestAverageStep: the weight of what came after a step is 1-exp(-t/60).
func TestAverageStep(t *testing.T) {
	for after, want := range map[float64]float64{5: .0800, 41.59: .5000, 60: .6321, 120: .8647, 138.16: .9000, 180: .9502, 300: .9933} {
		var a balance.Average
		const step = 0.01
		for s := -1200.0; s < 0; s += step {
			a.Add(at(s), 0)
		}
		for s := 0.0; s < after; s += step {
			a.Add(at(s), 1)
		}
		near(t, "step", a.Mean(at(after)), want, 2e-4)
	}
}

// TestAverageIsLikeTheUnixLoad cross-checks the constants of Linux: 2048 exp(-5/60) = 1884, and the ghost
// load of its rounding is not there.
func TestAverageIsLikeTheUnixLoad(t *testing.T) {
	for minutes, want := range map[time.Duration]float64{1: 1884, 5: 2014, 15: 2037} {
		a := balance.Average{Window: minutes * time.Minute}
		a.Add(at(0), 1)
		near(t, "weight after 5 s", math.Round(2048*a.Count(at(5))), want, 0)
	}
	var a balance.Average
	a.Add(at(0), 1)
	if c := a.Count(at(60 * 25)); c > 1e-9 {
		t.Errorf("after 25 idle minutes a weight of %v is left", c)
	}
}

func TestAverageEdges(t *testing.T) {
	var a balance.Average
	if m := a.Mean(at(0)); m != 0 {
		t.Errorf("empty: got %v", m)
	}
	a.Add(at(100), 3)
	a.Add(at(50), 5) // backwards: no time passes
	if m := a.Mean(at(10)); m != 4 || a.Count(at(10)) != 2 {
		t.Errorf("got %v", m)
	}
	if m := a.Mean(at(1e9)); m != 0 || math.IsNaN(m) {
		t.Errorf("after decades: got %v", m)
	}
	a.Add(at(1e9), 7)
	if m := a.Mean(at(1e9)); m != 7 {
		t.Errorf("got %v", m)
	}
	// The series of short steps and the exponential of long ones meet.
	var many, one balance.Average
	many.Add(at(0), 1)
	one.Add(at(0), 1)
	for i := 1; i <= 1000; i++ {
		many.Count(at(float64(i) * 0.03))
	}
	near(t, "short steps", many.Count(at(30)), one.Count(at(30)), 1e-10)
}
