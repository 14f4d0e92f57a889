package main

import (
	"io"
	"math"
	"reflect"
	"runtime"
	"testing"
)

// TestQuotasCores: the figures don't depend on how many cores there are.
func TestQuotasCores(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	var want map[string]any
	for _, cores := range []int{1, 2, 5} {
		runtime.GOMAXPROCS(cores)
		got, err := quotas(Run{Seed: 3, Tenants: 5, Log: io.Discard})
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = got
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("on %d cores %v, on one %v", cores, got, want)
		}
	}
	other, err := quotas(Run{Seed: 4, Tenants: 5, Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if reflect.DeepEqual(other, want) {
		t.Error("another seed gives the same figures")
	}
}

// TestQuotasFigures runs a small part of the experiment against the reference's targets.
func TestQuotasFigures(t *testing.T) {
	figures, err := quotas(Run{Seed: 1, Tenants: 20, Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	for name, most := range map[string]float64{
		"unfair_pct_lazy_70": 0.05, "unfair_pct_lazy_90": 1.5, "over_mean_pct_70": 0.5, "over_mean_pct_90": 2.5,
		"over_max_1s": 0, "over_max_10s": 0, "over_max_60s": 0, "converge_s": 1.5, "newcomer_s": 2,
	} {
		if got, ok := figures[name].(float64); !ok || got > most {
			t.Errorf("%s is %v, want at most %v", name, figures[name], most)
		}
	}
	for name, least := range map[string]float64{"unfair_pct_static_70": 99, "unfair_pct_static_90": 99, "slo_pct_dynamic": 90, "slo_pct_lazy": 90} {
		if got, ok := figures[name].(float64); !ok || got < least {
			t.Errorf("%s is %v, want at least %v", name, figures[name], least)
		}
	}
}

func TestNormal(t *testing.T) {
	var n, sum, squares, fourths, tail float64
	for bits := uint64(1 << 9); bits < 1<<32; bits += 1 << 10 {
		x := normal(uint32(bits))
		n, sum, squares, fourths = n+1, sum+x, squares+x*x, fourths+x*x*x*x
		if x > 3 {
			tail++
		}
	}
	for _, c := range []struct {
		name           string
		got, want, eps float64
	}{{"mean", sum / n, 0, 1e-6}, {"variance", squares / n, 1, 1e-3}, {"fourth moment", fourths / n, 3, 1e-2}, {"above 3", tail / n, 0.00135, 2e-5}} {
		if math.Abs(c.got-c.want) > c.eps {
			t.Errorf("%s %v, want %v", c.name, c.got, c.want)
		}
	}
	if lo, hi := normal(0), normal(1<<32-1); !(lo > -7 && lo < -6 && hi > 6 && hi < 7) {
		t.Errorf("ends %v and %v", lo, hi)
	}
	for _, x := range []float64{-1e9, -8.1, -8, -0.001, 0, 1.2345, 8, 8.1, 1e9} {
		bounded := min(max(x, -8), 8)
		if got, want := lognormal.at(x), math.Exp(noiseSigma*bounded-noiseSigma*noiseSigma/2); math.Abs(got/want-1) > 1e-6 {
			t.Errorf("lognormal(%v) = %v, want %v", x, got, want)
		}
	}
}
