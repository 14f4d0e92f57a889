package balancetest

import (
	"math"
	"math/rand/v2"
)

// Noise is a lognormal factor with median 1 that is correlated over time: an autoregressive process of
// first order in the logarithm. Latencies of healthy machines look like it, and detectors that
// were tuned on independent noise fire too often on it.
type Noise struct {
	// Sigma is the standard deviation of the logarithm.
	Sigma float64
	// Correlation is that of one step with the next, in [0, 1).
	Correlation float64

	x       float64
	started bool
}

// Next returns the factor of the next step.
func (n *Noise) Next(r *rand.Rand) float64 {
	if !n.started {
		n.started = true
		n.x = n.Sigma * r.NormFloat64()
	} else {
		n.x = n.Correlation*n.x + n.Sigma*math.Sqrt(1-n.Correlation*n.Correlation)*r.NormFloat64()
	}
	return math.Exp(n.x)
}
