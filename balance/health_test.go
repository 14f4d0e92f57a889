package balance_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

// ward is a cluster under observation.
type ward struct {
	m     *balance.Monitor
	obs   []balance.Observation
	round int
}

func newWard(n, zones int, o balance.HealthOptions) *ward {
	w := &ward{m: balance.NewMonitor(o)}
	for i := range n {
		ob := balance.Observation{Broker: balance.BrokerID(i), Zone: string(rune('a' + i%zones)), Registered: true, Outside: true, StorageProgress: true, StoragePending: true,
			Samples: 100, Load: .3, Leads: 10}
		for s := range ob.Signals {
			ob.Signals[s] = 5 * time.Millisecond
		}
		w.obs = append(w.obs, ob)
	}
	return w
}

// run plays rounds and returns the decisions, renewals left out, carrying out orders.
func (w *ward) run(rounds int) (out []balance.Decision) {
	for range rounds {
		for _, d := range w.m.Round(w.obs, epoch.Add(time.Duration(w.round)*10*time.Second)) {
			if d.Broker != balance.NoBroker && d.Suppressed == "" {
				switch d.Action {
				case balance.Demote, balance.Fence, balance.LeaveISR:
					w.obs[d.Broker].Leads = 0
				case balance.Release:
					w.obs[d.Broker].Leads = 10
				}
			}
			if !d.Renewal {
				out = append(out, d)
			}
		}
		w.round++
	}
	return out
}

func (w *ward) slow(b int, factor float64) {
	for s := range w.obs[b].Signals {
		w.obs[b].Signals[s] = time.Duration(factor * float64(5*time.Millisecond))
	}
}

func (w *ward) state(b int) balance.BrokerHealth { return w.m.Health()[b] }

func TestHealthAilments(t *testing.T) {
	for _, test := range []struct {
		name    string
		spoil   func(w *ward)
		ailment balance.Ailment
		action  balance.Action
		within  int // rounds
	}{
		{"outside", func(w *ward) { w.obs[1].Outside = false }, balance.OutsideLost, balance.Demote, 5},
		{"storage", func(w *ward) { w.obs[1].StorageProgress = false }, balance.StorageStuck, balance.Fence, 4},
		{"storage and outside", func(w *ward) { w.obs[1].StorageProgress, w.obs[1].Outside = false, false }, balance.StorageStuck, balance.Fence, 4},
		{"5x", func(w *ward) { w.slow(1, 5) }, balance.Slow, balance.LeaveISR, 6},
		{"2x", func(w *ward) { w.slow(1, 2) }, balance.Slow, balance.LeaveISR, 30},
		{"one signal 10x", func(w *ward) { w.obs[1].Signals[balance.FlushTime] *= 100 }, balance.Slow, balance.LeaveISR, 30},
	} {
		w := newWard(5, 3, balance.HealthOptions{})
		if d := w.run(60); len(d) != 0 {
			t.Fatalf("%s: healthy brokers: %v", test.name, d)
		}
		test.spoil(w)
		ds := w.run(test.within)
		if len(ds) != 1 || ds[0].Broker != 1 || ds[0].Action != test.action || ds[0].Ailment != test.ailment || ds[0].Suppressed != "" || ds[0].Until.IsZero() || ds[0].Reason == "" {
			t.Errorf("%s: got %+v", test.name, ds)
		}
		w.run(1)
		if s := w.state(1); s.State != balance.Mitigated {
			t.Errorf("%s: state %v", test.name, s.State)
		}
	}
	// What is no ailment.
	for name, spoil := range map[string]func(w *ward){
		"not registered":   func(w *ward) { w.obs[1].Outside, w.obs[1].Registered = false, false },
		"not watched":      func(w *ward) { w.obs[1].Outside, w.obs[1].NoOutside = false, true },
		"idle storage":     func(w *ward) { w.obs[1].StorageProgress, w.obs[1].StoragePending = false, false },
		"few samples":      func(w *ward) { w.slow(1, 50); w.obs[1].Samples = 3 },
		"all are slow":     func(w *ward) { w.slow(0, 9); w.slow(1, 9); w.slow(2, 9); w.slow(3, 9); w.slow(4, 9) },
		"a little slower":  func(w *ward) { w.slow(1, 1.5) },
		"all differ":       func(w *ward) { w.slow(0, .3); w.slow(1, 3.2); w.slow(2, .5); w.slow(4, 1.8) },
		"busy, not slower": func(w *ward) { w.obs[1].Load = 1 },
	} {
		w := newWard(5, 3, balance.HealthOptions{})
		w.run(60)
		spoil(w)
		if ds := w.run(60); len(ds) != 0 {
			t.Errorf("%s: got %+v", name, ds)
		}
	}
	// Below the absolute floor nobody is slow.
	o := balance.HealthOptions{}
	for s := range o.Floors {
		o.Floors[s] = 50 * time.Millisecond
	}
	w := newWard(5, 3, o)
	w.slow(1, 9)
	if ds := w.run(60); len(ds) != 0 {
		t.Errorf("below the floor: got %+v", ds)
	}
}

// TestHealthReturn: hold-off, probation, relapse with twice the hold-off, and the way back to healthy.
func TestHealthReturn(t *testing.T) {
	w := newWard(5, 3, balance.HealthOptions{})
	w.run(30)
	w.slow(1, 5)
	if ds := w.run(6); len(ds) != 1 {
		t.Fatalf("got %+v", ds)
	}
	w.slow(1, 1)
	ds := w.run(60)
	if len(ds) != 1 || ds[0].Action != balance.Release || w.state(1).State != balance.Probation && w.state(1).State != balance.Healthy {
		t.Fatalf("got %+v, %+v", ds, w.state(1))
	}
	w.slow(1, 5)
	ds = w.run(6)
	if len(ds) != 1 || ds[0].Action != balance.LeaveISR || w.state(1).Relapses != 1 {
		t.Fatalf("relapse: got %+v, %+v", ds, w.state(1))
	}
	first := w.round
	w.slow(1, 1)
	released := 0
	for released == 0 && w.round < first+1000 {
		if ds := w.run(1); len(ds) > 0 && ds[0].Action == balance.Release {
			released = w.round - first
		}
	}
	if released < 55 || released > 95 {
		t.Errorf("released %d rounds after the relapse, want ten minutes, or fifteen when renewed", released)
	}
	w.run(70)
	if s := w.state(1); s.State != balance.Healthy {
		t.Errorf("after probation: %+v", s)
	}
	// While it is ill the flag is renewed, never left to run out.
	w.slow(1, 5)
	w.run(6)
	until := w.state(1).Until
	w.run(400)
	if s := w.state(1); !s.Until.After(until) || s.Until.Before(epoch.Add(time.Duration(w.round)*10*time.Second)) {
		t.Errorf("the flag ends %v, was %v", s.Until, until)
	}
	// Relapses are forgotten after a day of health.
	w.slow(1, 1)
	w.run(2000) // longer than any hold-off so far
	if s := w.state(1); s.State != balance.Healthy || s.Relapses == 0 {
		t.Fatalf("healthy again: %+v", s)
	}
	w.run(8640)
	w.slow(1, 5)
	w.run(6)
	if s := w.state(1); s.State != balance.Mitigated && s.State != balance.Mitigating || s.Relapses != 0 {
		t.Errorf("ill after a day of health: %+v", s)
	}
}

// TestHealthProbation: a broker that was given back needs no second proof.
func TestHealthProbation(t *testing.T) {
	w := newWard(5, 3, balance.HealthOptions{})
	w.run(30)
	until := func(a balance.Action) (rounds int) {
		for rounds = 1; rounds < 200; rounds++ {
			if ds := w.run(1); len(ds) > 0 && ds[0].Action == a {
				break
			}
		}
		return rounds
	}
	w.slow(1, 5)
	first := until(balance.LeaveISR)
	w.slow(1, 1)
	until(balance.Release)
	w.slow(1, 5)
	if again := until(balance.LeaveISR); again >= first || first > 6 {
		t.Errorf("decided in %d rounds on probation, in %d before", again, first)
	}
}

func TestHealthBudget(t *testing.T) {
	act := func(w *ward, rounds int) (orders, pages int, why string) {
		for _, d := range w.run(rounds) {
			switch {
			case d.Suppressed != "":
				why = d.Suppressed
			case d.Action == balance.Page:
				pages++
			case d.Action != balance.Release:
				orders++
			}
		}
		return orders, pages, why
	}
	for _, test := range []struct {
		name   string
		n      int
		zones  int
		sick   []int
		spoil  func(w *ward)
		orders int
		pages  int
		why    string
	}{
		{"3 brokers, one may go", 3, 3, []int{1}, nil, 1, 0, ""},
		{"two, the peer can carry", 2, 2, []int{1}, nil, 1, 0, ""},
		{"two, the peer cannot", 2, 2, []int{1}, func(w *ward) { w.obs[0].Load, w.obs[1].Load = .5, .5 }, 0, 1, "carry"},
		{"one", 1, 1, []int{0}, nil, 0, 1, "only broker"},
		{"9 brokers, two sick in one zone", 9, 3, []int{1, 4}, func(w *ward) { w.obs[7].Zone = "b" }, 0, 1, "zone"},
		{"12 brokers, two sick in different zones", 12, 3, []int{1, 2}, nil, 1, 1, "may be"},
		{"24 brokers, two sick in different zones", 24, 3, []int{1, 2}, nil, 1, 1, "another zone"},
		{"24 brokers, two sick in one zone", 24, 3, []int{1, 4}, nil, 2, 0, ""},
		{"24 brokers, three sick in one zone", 24, 3, []int{1, 4, 7}, nil, 2, 1, "may be"},
		{"24 brokers, a whole zone", 24, 3, []int{0, 3, 6, 9, 12, 15, 18, 21}, nil, 0, 1, "zone"},
		{"sole replica", 6, 3, []int{1}, func(w *ward) { w.obs[1].Sole = 1 }, 0, 1, "eligible"},
	} {
		w := newWard(test.n, test.zones, balance.HealthOptions{})
		w.run(5)
		if test.spoil != nil {
			test.spoil(w)
		}
		for _, b := range test.sick {
			w.obs[b].Outside = false
		}
		orders, pages, why := act(w, 30)
		if orders != test.orders || pages != test.pages || !strings.Contains(why, test.why) || test.why == "" && why != "" {
			t.Errorf("%s: %d orders, %d pages, held back because %q; want %d, %d, %q", test.name, orders, pages, why, test.orders, test.pages, test.why)
		}
	}
}

func TestHealthKillSwitchAndPage(t *testing.T) {
	w := newWard(5, 3, balance.HealthOptions{Off: true})
	w.obs[1].Outside = false
	ds := w.run(30)
	if len(ds) != 1 || ds[0].Suppressed != "kill switch" || ds[0].Action != balance.Demote {
		t.Errorf("off: got %+v", ds)
	}
	w.m.Kill(false)
	if ds := w.run(2); len(ds) != 1 || ds[0].Suppressed != "" {
		t.Errorf("on again: got %+v", ds)
	}
	// A mitigation that does not work calls a human, once.
	w = newWard(5, 3, balance.HealthOptions{})
	w.obs[1].Outside = false
	pages := 0
	for range 200 {
		for _, d := range w.m.Round(w.obs, epoch.Add(time.Duration(w.round)*10*time.Second)) { // nobody carries it out
			if d.Action == balance.Page {
				pages++
			}
		}
		w.round++
	}
	if pages != 1 || w.state(1).State != balance.Mitigating {
		t.Errorf("%d pages, %+v", pages, w.state(1))
	}
	w.m.Forget(1)
	if len(w.m.Health()) != 4 {
		t.Error("not forgotten")
	}
}

// TestHealthDeterministic: the order of observations does not matter.
func TestHealthDeterministic(t *testing.T) {
	run := func(shuffle bool) []balance.Decision {
		w := newWard(12, 3, balance.HealthOptions{})
		r := rand.New(rand.NewPCG(1, 1))
		var out []balance.Decision
		for k := range 200 {
			if k == 50 {
				w.slow(4, 4)
				w.obs[7].Outside = false
			}
			obs := append([]balance.Observation(nil), w.obs...)
			if shuffle {
				r.Shuffle(len(obs), func(i, j int) { obs[i], obs[j] = obs[j], obs[i] })
			}
			out = append(out, w.m.Round(obs, epoch.Add(time.Duration(k)*10*time.Second))...)
		}
		return out
	}
	if a, b := run(false), run(true); !reflect.DeepEqual(a, b) || len(a) == 0 {
		t.Errorf("%v\n%v", a, b)
	}
}

// TestHealthNoise: false alarms and delays on correlated lognormal noise. Figures over thousands of broker-days are in
// bench; here are enough to notice a guard that is gone.
func TestHealthNoise(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates broker-days")
	}
	const day = 8640
	// With three brokers, seed 1 is one that alarms within 40 days if the error of the median does not count.
	for n, seed := range map[int]uint64{3: 1, 5: 105, 12: 112, 24: 124} {
		rounds := 40 * day / n
		ds, _ := balancetest.HealthTrial{Brokers: n, Zones: 3, Sigma: .5, Correlation: .5, Load: .5, Seed: seed}.Run(balance.NewMonitor(balance.HealthOptions{}), rounds)
		for _, d := range ds {
			t.Errorf("%d brokers: false alarm in 40 broker-days: %+v", n, d)
		}
	}
	for _, test := range []struct {
		sigma, factor float64
		limit         int
		share         float64
	}{{.3, 5, 6, .95}, {.3, 2, 30, .95}, {.5, 5, 6, .975}} {
		in := 0
		const trials = 120
		for k := range trials {
			ds, at := balancetest.HealthTrial{Brokers: []int{5, 12, 24}[k%3], Zones: 3, Sigma: test.sigma, Correlation: .5, Load: []float64{.3, .5, .8}[k%3] * .9, SlowFrom: 100, Factor: test.factor, Seed: uint64(k)}.Run(balance.NewMonitor(balance.HealthOptions{}), 100+test.limit)
			for i, d := range ds {
				if d.Broker == 0 && d.Action == balance.LeaveISR && d.Suppressed == "" && at[i] >= 100 {
					in++
					break
				}
			}
		}
		if float64(in)/trials < test.share {
			t.Errorf("%gx, sigma %g: %d of %d decided within %d s", test.factor, test.sigma, in, trials, test.limit*10)
		}
	}
}

func TestOutliers(t *testing.T) {
	for n, want := range map[int]float64{4: 1.732, 5: 2, 6: 2.236, 12: 3.317} {
		near(t, "limit", balance.OutlierLimit(n), want, 1e-3)
		// The limit is exact: one outlier among n equal values, however far, in standard deviations of all.
		mean := 1 + 999/float64(n)
		sd := math.Sqrt((float64(n-1)*(1-mean)*(1-mean) + (1000-mean)*(1000-mean)) / float64(n))
		near(t, "z", (1000-mean)/sd, want, 1e-3)
	}
	z := balance.Outliers([]float64{1, 1, 1, 1, 10, 0, -3}, .3)
	near(t, "outlier", z[4], math.Log(10)/.3, 1e-9)
	for i, x := range z {
		if i != 4 && x != 0 {
			t.Errorf("value %d: %v", i, x)
		}
	}
	if z := balance.Outliers([]float64{1, 100}, .3); z[1] != 0 {
		t.Errorf("two values: %v", z)
	}
	if z := balance.Outliers([]float64{1, 1, 2}, 0); z[2] != 0 {
		t.Errorf("no spread, no floor: %v", z)
	}
	// The single-round rates of the reference on lognormal noise: log-MAD with a floor of .3 and a limit of 3.5.
	for n, want := range map[int]float64{5: .0069, 12: .0036, 24: .0021} {
		r := rand.New(rand.NewPCG(2, uint64(n)))
		v := make([]float64, n)
		hits, total := 0, 0
		for range 60_000 {
			for i := range v {
				v[i] = math.Exp(.5 * r.NormFloat64())
			}
			for _, x := range balance.Outliers(v, .3) {
				total++
				if x > 3.5 {
					hits++
				}
			}
		}
		if got := float64(hits) / float64(total); math.Abs(got/want-1) > .25 {
			t.Errorf("n = %d: rate %.4f, reference %.4f", n, got, want)
		}
	}
}
