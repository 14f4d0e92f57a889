package balance

import "math"

// The functions of this file give the mean wait in a queue, without service, in units of the
// mean service time. rho is the utilisation of a server, in [0, 1); ca2 and cs2 are the squared
// coefficients of variation of the times between arrivals and of the service times (0 is constant, 1 is
// exponential). A rho below 0 counts as 0; rho of 1 or more gives +Inf, and so does NaN.

// Kingman returns Kingman's approximation of the mean wait in a G/G/1 queue:
// rho/(1-rho) * (ca2+cs2)/2. It is exact for Poisson arrivals (ca2 = 1), and else errs high, less so the
// closer rho is to 1.
//
// Source: Kingman 1961; Pollaczek-Khinchine for ca2 = 1.
func Kingman(rho, ca2, cs2 float64) float64 {
	rho, full := clampRho(rho)
	if full {
		return math.Inf(1)
	}
	return rho / (1 - rho) * (ca2 + cs2) / 2
}

// KraemerLangenbachBelz returns Kingman's approximation with the correction of Kraemer and
// Langenbach-Belz, which is much nearer for arrivals smoother than Poisson. For bursty ones (ca2 of 4)
// it helps below a rho of about .65 only.
func KraemerLangenbachBelz(rho, ca2, cs2 float64) float64 {
	rho, full := clampRho(rho)
	switch {
	case full:
		return math.Inf(1)
	case rho == 0 || ca2+cs2 == 0:
		return 0
	case ca2 < 1:
		return Kingman(rho, ca2, cs2) * math.Exp(-2*(1-rho)*(1-ca2)*(1-ca2)/(3*rho*(ca2+cs2)))
	default:
		return Kingman(rho, ca2, cs2) * math.Exp(-(1-rho)*(ca2-1)/(ca2+4*cs2))
	}
}

// Sakasegawa returns the approximation of the mean wait in a queue with c servers by Allen and
// Cunneen with Sakasegawa's formula: (ca2+cs2)/2 * rho^(sqrt(2(c+1))-1) / (c(1-rho)). With one server
// it is Kingman's. c below 1 counts as 1.
func Sakasegawa(c int, rho, ca2, cs2 float64) float64 {
	rho, full := clampRho(rho)
	if full {
		return math.Inf(1)
	}
	c = max(c, 1)
	return (ca2 + cs2) / 2 * math.Pow(rho, SakasegawaExponent(c)) / (float64(c) * (1 - rho))
}

// SakasegawaExponent returns sqrt(2(c+1))-1, the exponent of rho in [Sakasegawa]: 1 for one server, 3.243
// for eight. It is the default of [Model.Exponent].
func SakasegawaExponent(c int) float64 { return math.Sqrt(2*(float64(max(c, 1))+1)) - 1 }

// DaleyBound returns Daley's upper bound of the mean wait in a G/G/1 queue:
// ((2-rho) ca2 + rho cs2) / (2(1-rho)), which the true wait never exceeds, here per service time.
//
// Source: Daley 1977.
func DaleyBound(rho, ca2, cs2 float64) float64 {
	rho, full := clampRho(rho)
	if full {
		return math.Inf(1)
	}
	return ((2-rho)*ca2 + rho*cs2) / (2 * (1 - rho))
}

// ErlangC returns the exact mean wait and the probability of waiting at all in a queue with
// Poisson arrivals, exponential service and c servers.
func ErlangC(c int, rho float64) (wait, probability float64) {
	rho, full := clampRho(rho)
	if full {
		return math.Inf(1), 1
	}
	c = max(c, 1)
	// The Erlang B recursion avoids the factorials, which overflow.
	a := rho * float64(c)
	b := 1.0
	for k := 1; k <= c; k++ {
		b = a * b / (float64(k) + a*b)
	}
	probability = b / (1 - rho*(1-b))
	return probability / (float64(c) * (1 - rho)), probability
}

// RenewalWait returns the exact mean wait of a queue with one exponential server and arrivals
// whose inter-arrival time has the Laplace transform lst, in units of the service time: with
// sigma = lst(1-sigma), it is sigma/(1-sigma). lst takes its argument in units of the service rate. It
// returns +Inf when the queue is not stable, which shows as no fixed point below 1.
func RenewalWait(lst func(s float64) float64) float64 {
	sigma := 0.5
	for range 100_000 {
		next := lst(1 - sigma)
		if math.Abs(next-sigma) < 1e-15 {
			sigma = next
			break
		}
		sigma = next
	}
	if !(sigma < 1) {
		return math.Inf(1)
	}
	return sigma / (1 - sigma)
}

func clampRho(rho float64) (float64, bool) {
	if !(rho < 1) {
		return 1, true
	}
	return max(rho, 0), false
}
