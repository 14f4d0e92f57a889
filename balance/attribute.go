package balance

import (
	"cmp"
	"errors"
	"math"
	"slices"
)

// ReplicaUse is what one replica does on a broker.
type ReplicaUse struct {
	// Ingress is bytes per second written by clients (0 for a follower), Egress bytes per second sent to
	// clients and followers, Replication bytes per second fetched from the leader (0 for a
	// leader), Requests the requests per second that name the partition.
	Ingress, Egress, Replication, Requests int64
}

// Costs are the relative costs of what replicas do, each of one byte or of one request per second.
type Costs struct {
	Ingress, Egress, Replication, Requests float64
}

// DefaultCosts returns the costs that are used when none were fitted: bytes as Cruise Control weighs
// them for CPU (.7, .15, .15), and a request as four kibibytes written, which is our own.
func DefaultCosts() Costs {
	return Costs{Ingress: 0.7, Egress: 0.15, Replication: 0.15, Requests: 0.7 * 4096}
}

func (c Costs) of(u ReplicaUse) float64 {
	return c.Ingress*float64(max(u.Ingress, 0)) + c.Egress*float64(max(u.Egress, 0)) +
		c.Replication*float64(max(u.Replication, 0)) + c.Requests*float64(max(u.Requests, 0))
}

// Attribute splits a broker's load over its replicas in proportion to what they do. The parts are
// integers that add up to total exactly; rounding goes to the largest remainders, then to the first. If
// nothing is done, or costs are all zero, the parts are equal. A zero Costs means [DefaultCosts]. It is an estimate:
// set [Partition.Estimated]. How far off it is stands in the report of examples/simulate
// -experiment load.
//
// Source: the weighted mix is Kora, section 4.3.1.
func Attribute(total int64, uses []ReplicaUse, c Costs) []int64 {
	if len(uses) == 0 || total <= 0 {
		return make([]int64, len(uses))
	}
	if c == (Costs{}) {
		c = DefaultCosts()
	}
	weights := make([]float64, len(uses))
	sum := 0.0
	for i, u := range uses {
		weights[i] = c.of(u)
		sum += weights[i]
	}
	if !(sum > 0) || math.IsInf(sum, 0) {
		for i := range weights {
			weights[i] = 1
		}
		sum = float64(len(weights))
	}
	parts := make([]int64, len(uses))
	rest := total
	order := make([]int, len(uses))
	frac := make([]float64, len(uses))
	for i, w := range weights {
		exact := float64(total) * (w / sum)
		parts[i] = min(int64(exact), rest)
		rest -= parts[i]
		frac[i] = exact - math.Floor(exact)
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(frac[b], frac[a]) })
	for i := 0; rest > 0; i = (i + 1) % len(order) {
		parts[order[i]]++
		rest--
	}
	return parts
}

// ErrFit says that samples do not determine costs.
var ErrFit = errors.New("balance: samples do not determine costs")

// CostSample is one broker at one time: what its replicas did in all, and what that cost.
type CostSample struct {
	Use ReplicaUse
	// Work is the broker's load in any unit, without what it needs when idle.
	Work float64
}

// FitCosts fits costs, none negative, to samples of brokers whose mix of work differs, by least squares. It
// returns [ErrFit] with fewer than four samples or when all costs come out as zero.
func FitCosts(samples []CostSample) (Costs, error) {
	if len(samples) < 4 {
		return Costs{}, ErrFit
	}
	row := func(s CostSample) [4]float64 {
		return [4]float64{float64(s.Use.Ingress), float64(s.Use.Egress), float64(s.Use.Replication), float64(s.Use.Requests)}
	}
	// Columns are scaled to their mean, so that bytes and requests converge alike.
	var scale [4]float64
	for _, s := range samples {
		for j, x := range row(s) {
			scale[j] += x / float64(len(samples))
		}
	}
	var a [4][4]float64
	var b, x [4]float64
	for _, s := range samples {
		r := row(s)
		for i := range r {
			if scale[i] == 0 {
				continue
			}
			b[i] += r[i] / scale[i] * s.Work
			for j := range r {
				if scale[j] != 0 {
					a[i][j] += r[i] / scale[i] * r[j] / scale[j]
				}
			}
		}
	}
	// Coordinate descent with a bound at zero converges for this convex problem.
	for range 20_000 {
		for i := range x {
			if a[i][i] == 0 {
				continue
			}
			r := b[i]
			for j := range x {
				if j != i {
					r -= a[i][j] * x[j]
				}
			}
			x[i] = max(r/a[i][i], 0)
		}
	}
	for i := range x {
		if scale[i] > 0 {
			x[i] /= scale[i]
		}
	}
	c := Costs{x[0], x[1], x[2], x[3]}
	if c == (Costs{}) || math.IsNaN(x[0]+x[1]+x[2]+x[3]) {
		return Costs{}, ErrFit
	}
	return c, nil
}
