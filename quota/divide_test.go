package quota_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/quota"
)

// TestMaxMinVectors holds the exact vectors of the reference, sections 1.6 and 1.7.
func TestMaxMinVectors(t *testing.T) {
	third := 76.0 / 3
	for _, v := range []struct {
		name                   string
		total                  float64
		demands, weights, want []float64
	}{
		{"four", 100, []float64{10, 20, 40, 80}, nil, []float64{10, 20, 35, 35}},
		{"textbook", 10, []float64{2, 2.6, 4, 5}, nil, []float64{2, 2.6, 2.7, 2.7}},
		{"weighted", 16, []float64{4, 2, 10, 4}, []float64{2.5, 4, .5, 1}, []float64{4, 2, 6, 4}},
		{"six", 120, []float64{1, 19, 24, 27, 29, 60}, nil, []float64{1, 19, 24, third, third, third}},
		{"doorman differs", 214, []float64{31, 98, 46, 5, 6, 36, 22}, nil, []float64{31, 68, 46, 5, 6, 36, 22}},
		{"broker limit", 100, []float64{10, 40, 90}, nil, []float64{10, 40, 50}},
		{"nobody", 10, nil, nil, nil},
		{"no demand", 10, []float64{0, 0}, nil, []float64{0, 0}},
		{"nothing to give", 0, []float64{1, 2}, nil, []float64{0, 0}},
	} {
		t.Run(v.name, func(t *testing.T) {
			got := quota.MaxMin(v.total, v.demands, v.weights)
			if !slices.EqualFunc(got, v.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
				t.Errorf("got %v, want %v", got, v.want)
			}
		})
	}
}

// TestMaxMinProperties checks what makes a division weighted max-min fair, and against a dumb one.
func TestMaxMinProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "n")
		amount := rapid.Float64Range(0, 1000)
		demands := rapid.SliceOfN(amount, n, n).Draw(t, "demands")
		weights := rapid.SliceOfN(rapid.Float64Range(0.1, 10), n, n).Draw(t, "weights")
		total := rapid.Float64Range(0, 5000).Draw(t, "total")
		const eps = 1e-6

		parts := quota.MaxMin(total, demands, weights)
		sum, wanted := 0.0, 0.0
		for i, p := range parts {
			sum += p
			wanted += demands[i]
			if p < 0 || p > demands[i]+eps {
				t.Fatalf("part %d is %v of a demand of %v", i, p, demands[i])
			}
		}
		if math.Abs(sum-min(total, wanted)) > eps {
			t.Fatalf("parts add up to %v, want min(%v, %v)", sum, total, wanted)
		}
		// Who is below its demand can gain only from parties whose part for their weight is no larger.
		for i := range parts {
			if parts[i] > demands[i]-eps {
				continue
			}
			for j := range parts {
				if parts[j]/weights[j] > parts[i]/weights[i]+eps {
					t.Fatalf("%d has %v and wants %v, yet %d has more for its weight: %v", i, parts[i], demands[i], j, parts)
				}
			}
		}
		// More to give never gives anybody less.
		for i, p := range quota.MaxMin(total+rapid.Float64Range(0, 100).Draw(t, "more"), demands, weights) {
			if p < parts[i]-eps {
				t.Fatalf("with a larger total party %d falls from %v to %v", i, parts[i], p)
			}
		}
		// The order of the parties does not matter.
		perm := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).Perm(n)
		d2, w2 := make([]float64, n), make([]float64, n)
		for i, j := range perm {
			d2[i], w2[i] = demands[j], weights[j]
		}
		for i, p := range quota.MaxMin(total, d2, w2) {
			if math.Abs(p-parts[perm[i]]) > eps {
				t.Fatalf("permuted, party %d has %v instead of %v", perm[i], p, parts[perm[i]])
			}
		}
		// The dumb one: search for the level.
		lo, hi := 0.0, 1e5
		for range 200 {
			mid, s := (lo+hi)/2, 0.0
			for i := range demands {
				s += min(demands[i], mid*weights[i])
			}
			if s < total {
				lo = mid
			} else {
				hi = mid
			}
		}
		for i := range parts {
			if want := min(demands[i], hi*weights[i]); math.Abs(parts[i]-want) > 1e-3 {
				t.Fatalf("part %d is %v, want %v", i, parts[i], want)
			}
		}
	})
}
