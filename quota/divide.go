package quota

import (
	"cmp"
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
	sum := 0.0
	for i, d := range parts {
		parts[i] = max(d, 0)
		if weights == nil {
			sum++
		} else {
			sum += weights[i]
		}
	}
	weight := func(i int32) float64 {
		if weights == nil {
			return 1
		}
		return weights[i]
	}
	// Whoever wants less than the fair level is satisfied, which raises the level for the others: a few passes mostly find the level. What is
	// left after those is sorted, so that no order of demands takes n passes.
	remaining, rest := max(total, 0), order[:len(parts)]
	for i := range rest {
		rest[i] = int32(i)
	}
	for pass := 0; len(rest) > 0; pass++ {
		if pass == 6 {
			slices.SortFunc(rest, func(i, j int32) int {
				return cmp.Or(cmp.Compare(parts[i]/weight(i), parts[j]/weight(j)), cmp.Compare(i, j))
			})
			for len(rest) > 0 && parts[rest[0]] <= remaining/sum*weight(rest[0]) {
				remaining -= parts[rest[0]]
				sum -= weight(rest[0])
				rest = rest[1:]
			}
		}
		level, n := max(remaining, 0)/sum, 0
		for _, i := range rest {
			if w := weight(i); parts[i] <= level*w {
				remaining -= parts[i]
				sum -= w
			} else {
				rest[n] = i
				n++
			}
		}
		if n == len(rest) || pass == 6 {
			for _, i := range rest[:n] {
				parts[i] = min(parts[i], level*weight(i))
			}
			return
		}
		rest = rest[:n]
	}
}

// demand is what the rule of the coordinator takes a broker to want of a quota: the rate it used, or after k throttled periods in a row a
// multiple that doubles its own growth each time (x2, x8, x64, ...), since a throttled broker doesn't know what it would use.
//
// Source: the reference's rule WF2, step 1.
func demand(quota, used, limit float64, throttled uint8) float64 {
	if throttled == 0 {
		return used
	}
	return escalated(quota, used, limit, throttled)
}

func escalated(quota, used, limit float64, throttled uint8) float64 {
	return min(quota, max(used, limit/2)*escalation[min(throttled, maxEscalation)])
}

// maxEscalation keeps the factor small; 2^28 times anything above the floor is all of a quota.
const maxEscalation = 7

// escalation is 2^(k(k+1)/2).
var escalation = [maxEscalation + 1]float64{1, 1 << 1, 1 << 3, 1 << 6, 1 << 10, 1 << 15, 1 << 21, 1 << 28}

// divide replaces the demands of all brokers by their shares of quota: in proportion to demand while all demands fit, so that the headroom lies
// where the traffic is, and by weighted max-min when they don't, so that no broker starves behind a saturated one. Demands must be at least a positive
// floor, and sum their sum. The shares add up to quota.
//
// Source: the reference's rule WF2, step 2.
func divide(parts []float64, sum, quota float64, weights []float64, order []int32) {
	if sum <= quota {
		more := quota / sum
		for i := range parts {
			parts[i] *= more
		}
		return
	}
	maxMin(parts, quota, weights, order)
}
