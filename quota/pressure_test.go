package quota_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/quota"
)

const period = quota.Instant(quota.DefaultPeriod)

func newPressure(t testing.TB, l *quota.Limiter, safe quota.SafeLimits) *quota.Backpressure {
	t.Helper()
	b, err := quota.NewBackpressure(l, safe)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPressure lets three tenants want more than the broker can bear.
func TestPressure(t *testing.T) {
	l := newLimiter(t, of(quota.Ingress, tenantDefault, 6000, time.Second))
	b := newPressure(t, l, quota.SafeLimits{Ingress: 10_000 / 0.9})
	now := quota.Instant(0)
	b.Step(quota.Load{}, now)
	sent := map[string]float64{}
	var p quota.Pressure
	traffic := func(seconds int, demand map[string]float64) {
		clear(sent)
		for range seconds * 4 {
			for range 10 {
				now += period / 10
				for tenant, d := range demand {
					key := quota.Key{Tenant: tenant}
					// The demand is sent in pieces of one unit, as they come due.
					for sent[tenant+"/due"] += d * 0.025; sent[tenant+"/due"] >= 1; sent[tenant+"/due"]-- {
						if l.Delay(key, quota.Ingress, now) == 0 {
							l.Charge(key, quota.Ingress, 1, now)
							sent[tenant]++
						}
					}
				}
			}
			p = b.Step(quota.Load{}, now)
		}
	}
	demand := map[string]float64{"small": 1000, "middle": 4000, "large": 9000}
	traffic(20, demand)
	if !p.Active || p.Rebalance {
		t.Fatalf("state %+v, want active", p)
	}
	traffic(20, demand)
	for tenant, want := range map[string]float64{"small": 1000, "middle": 4000, "large": 5000} {
		if got := sent[tenant] / 20; math.Abs(got-want) > 0.05*want {
			t.Errorf("%s got %.1f/s, want %.1f", tenant, got, want)
		}
	}
	if f := p.Factor[quota.Ingress]; math.Abs(f-50.0/60) > 0.02 {
		t.Errorf("factor %.3f, want %.3f", f, 50.0/60)
	}
	traffic(21, demand)
	if !p.Rebalance {
		t.Error("no call for a rebalance after a minute")
	}
	traffic(5, map[string]float64{"small": 1000})
	if p.Active || p.Rebalance || p.Factor[quota.Ingress] != 1 {
		t.Errorf("state %+v after the load went away, want none", p)
	}
}

// TestPressureQueue holds the oracle of the reference, section 1.7: back to 1 within 10 s of one cut, 18 s of two.
func TestPressureQueue(t *testing.T) {
	for cuts, want := range map[int]time.Duration{1: 10 * time.Second, 2: 18 * time.Second} {
		l := newLimiter(t, of(quota.Ingress, tenantDefault, 1000, time.Second))
		b := newPressure(t, l, quota.SafeLimits{QueueWait: 10 * time.Millisecond})
		now := quota.Instant(0)
		b.Step(quota.Load{}, now)
		for range cuts {
			now += period
			b.Step(quota.Load{Wait: 20 * time.Millisecond}, now)
		}
		if p := b.State(); math.Abs(p.Queue-math.Pow(0.8, float64(cuts))) > 1e-9 {
			t.Errorf("factor %v after %d cuts", p.Queue, cuts)
		}
		start := now
		for b.State().Queue < 1-1e-9 {
			now += period
			b.Step(quota.Load{}, now)
		}
		if got := time.Duration(now - start); got != want {
			t.Errorf("%d cuts: back after %v, want %v", cuts, got, want)
		}
	}
	l := newLimiter(t, of(quota.Ingress, tenantDefault, 1000, time.Second))
	b := newPressure(t, l, quota.SafeLimits{QueueLength: 5})
	b.Step(quota.Load{}, 0)
	// The queue's factor presses on what was used when it first was long.
	l.Charge(keyA, quota.Ingress, 200, period/2)
	if p := b.Step(quota.Load{Queue: 6}, period); !p.Active || math.Abs(p.Factor[quota.Ingress]-0.64) > 1e-9 {
		t.Errorf("state %+v, want 0.8 of the use of 800 over a limit of 1000", p)
	}
	if u, _ := l.Usage(keyA, quota.Ingress, period); math.Abs(float64(u.Rate)-640) > 1e-6 {
		t.Errorf("rate %v, want 640", u.Rate)
	}
	if p := b.Step(quota.Load{}, period); !p.Active {
		t.Error("a step without time changed something")
	}
}

// TestLevel checks the factor against its definition.
func TestLevel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "n")
		demands := rapid.SliceOfN(rapid.Float64Range(0, 200), n, n).Draw(t, "demands")
		limits := rapid.SliceOfN(rapid.Float64Range(1, 200), n, n).Draw(t, "limits")
		total := rapid.Float64Range(1, 500).Draw(t, "total")
		f := quota.Level(total, demands, limits)
		sum, all := 0.0, 0.0
		for i := range demands {
			sum += min(demands[i], f*limits[i])
			all += min(demands[i], limits[i])
		}
		switch {
		case f <= 0 || f > 1:
			t.Fatalf("factor %v", f)
		case all <= total && f != 1:
			t.Fatalf("factor %v though %v fits into %v", f, all, total)
		case all > total && f > 0.01+1e-9 && math.Abs(sum-total) > 1e-6*total:
			t.Fatalf("factor %v gives %v, want %v", f, sum, total)
		}
	})
	if f := quota.Level(1, []float64{1e9, 1e9}, []float64{1e9, 1e9}); f != 0.01 {
		t.Errorf("factor %v, want the smallest, 0.01", f)
	}
	if _, err := quota.NewBackpressure(newLimiter(t), quota.SafeLimits{Egress: math.NaN()}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("NaN: %v", err)
	}
}
