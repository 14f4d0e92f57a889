package quota

import (
	"cmp"
	"math"
	"slices"
)

// MaxMin divides total over demands by weighted max-min fairness and returns the parts: nobody gets more than its demand, and what one leaves
// goes to the others in proportion to their weights. nil weights are equal; weights must be positive, negative demands count as 0. The parts
// add up to min(total, sum of demands). It takes O(n log n).
//
// Source: water-filling, as in Bertsekas and Gallager, Data Networks, 6.5.2.
func MaxMin(total float64, demands, weights []float64) []float64 {
	parts := slices.Clone(demands)
	order := make([]int32, len(demands))
	maxMin(parts, total, weights, order)
	return parts
}

// maxMin replaces the demands in parts by the parts. order is scratch space of the same length.
func maxMin(parts []float64, total float64, weights []float64, order []int32) {
	weight := func(i int32) float64 {
		if weights == nil {
			return 1
		}
		return weights[i]
	}
	sum := 0.0
	for i := range parts {
		parts[i] = max(parts[i], 0)
		order[i] = int32(i)
		sum += weight(int32(i))
	}
	// Whoever wants least for its weight is satisfied first. Equal parties are ordered by position, which changes nothing but rounding.
	slices.SortFunc(order, func(i, j int32) int {
		return cmp.Or(cmp.Compare(parts[i]/weight(i), parts[j]/weight(j)), cmp.Compare(i, j))
	})
	remaining := max(total, 0)
	for n, i := range order {
		w := weight(i)
		if fair := remaining * w / sum; parts[i] > fair {
			// From here on everybody is cut to the same level.
			level := remaining / sum
			for _, j := range order[n:] {
				parts[j] = min(parts[j], level*weight(j))
			}
			return
		}
		remaining = max(remaining-parts[i], 0)
		sum -= w
	}
}

// demand is what the rule of the coordinator takes a broker to want of a quota: the rate it used, or after k throttled periods in a row a
// multiple that doubles its own growth each time (x2, x8, x64, ...), since a throttled broker doesn't know what it would use.
//
// Source: the reference's rule WF2, step 1.
func demand(quota, used, limit float64, throttled int) float64 {
	if throttled <= 0 {
		return used
	}
	k := float64(min(throttled, maxEscalation))
	return min(quota, max(used, limit/2)*math.Exp2(k*(k+1)/2))
}

// maxEscalation keeps the exponent small; 2^28 times anything above the floor is all of a quota.
const maxEscalation = 7

// divide replaces the demands of all brokers by their shares of quota: in proportion to demand while all demands fit, so that the headroom lies
// where the traffic is, and by max-min when they don't, so that no broker starves behind a saturated one. Demands must be at least a positive
// floor. The shares add up to quota.
//
// Source: the reference's rule WF2, step 2.
func divide(parts []float64, quota float64, order []int32) {
	sum := 0.0
	for _, d := range parts {
		sum += d
	}
	if sum <= quota {
		for i := range parts {
			parts[i] *= quota / sum
		}
		return
	}
	maxMin(parts, quota, nil, order)
}
