package main

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// TestWeek holds the fast weeks to the plain world, which asks the library's Group: every bit of every result is the same. The populations are those of
// the experiment, and harder ones: few brokers, more offered than the quota, all traffic on one broker, and more than one block of periods.
func TestWeek(t *testing.T) {
	random := func(rng *rand.Rand) ([]float64, float64) {
		return []float64{2 * rng.Float64(), 0.1 * rng.Float64(), 0.6 + 0.5*rng.Float64()}, 3 * rng.Float64()
	}
	names := []string{"a", "b", "c"}
	populations := append([]population{{names, 2, random}, {names, 10, random}, {names, 24, random}}, populations...)
	for _, p := range populations {
		for id := range 4 {
			windows, length := 4, windowLength
			if id == 0 {
				windows, length = 1, 3*time.Minute
			}
			got, want := p.simulate(7, id, windows, length), plainWeek(p, 7, id, windows, length)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%d brokers, %v, tenant %d:\n%v, plain\n%v", p.brokers, p.names, id, got, want)
			}
		}
	}
}

// plainWeek is population.simulate with worlds.
func plainWeek(p population, seed uint64, id, windows int, length time.Duration) [][]result {
	loads, skew := p.draw(rand.New(rand.NewPCG(seed, uint64(id)<<16|1<<15)))
	warm, periods := int(warmUp/modelPeriod), int((warmUp+length)/modelPeriod)
	worlds, results, traffics := make([][]*world, len(loads)), make([][]result, len(loads)), make([]*traffic, len(loads))
	for l := range loads {
		traffics[l] = newTraffic(p.brokers, 1)
		results[l] = make([]result, len(policies))
		for k, pol := range policies {
			worlds[l] = append(worlds[l], newWorld(pol, p.brokers))
			results[l][k].worst = [3]float64{math.Inf(-1), math.Inf(-1), math.Inf(-1)}
		}
	}
	for window := range windows {
		o := newOffers(rand.NewPCG(seed, uint64(id)<<16|uint64(window)), p.brokers, loads, skew)
		for l := range loads {
			for _, w := range worlds[l] {
				w.reset()
			}
		}
		for period := range periods {
			o.fill(traffics, 1)
			for l := range loads {
				for _, w := range worlds[l] {
					offers, _ := traffics[l].row(0)
					w.step(offers, period >= warm)
				}
			}
		}
		for l := range loads {
			for k, w := range worlds[l] {
				for i, most := range worst(w.admitted) {
					results[l][k].worst[i] = max(results[l][k].worst[i], most)
				}
			}
		}
	}
	for l := range loads {
		for k, w := range worlds[l] {
			r := &results[l][k]
			r.unfair, r.delayed, r.over = w.unfair/w.seconds, w.delayed/w.offered, w.over/(modelQuota*w.seconds)
		}
	}
	return results
}
