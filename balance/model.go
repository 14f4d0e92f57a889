package balance

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Model says how long requests wait on the average at a given utilisation:
//
//	wait = Scale * rho^Exponent / (1-rho)
//
// With Exponent 1 it is Kingman's formula, Scale being (ca2+cs2)/2 service times; with
// [SakasegawaExponent] and Scale divided by the servers it is that of a pool. [Calibrate] fits both to
// measurements.
type Model struct {
	// Scale is the fitted constant, above 0. In a [Pool] 0 means: measured by the pool itself.
	Scale time.Duration
	// Exponent is at least 0. 0 means [SakasegawaExponent] of the pool's servers in a [Pool], and 1
	// elsewhere.
	Exponent float64
}

// Wait returns the mean wait at utilisation rho.
func (m Model) Wait(rho float64) time.Duration {
	rho, full := clampRho(rho)
	if full {
		return math.MaxInt64
	}
	w := float64(m.Scale) * math.Pow(rho, m.exponent()) / (1 - rho)
	if w >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(w)
}

// Utilization returns the utilisation at which requests wait that long on the average: the
// inverse of [Model.Wait]. It is in [0, 1), grows with wait, and is 0 for a wait of 0 or less and for a
// model without Scale.
//
// Average the waits and invert the mean; never average utilisations: the inverse is concave, and
// would come out low.
func (m Model) Utilization(wait time.Duration) float64 {
	return invert(float64(wait), float64(m.Scale), m.exponent())
}

func (m Model) exponent() float64 {
	if m.Exponent <= 0 {
		return 1
	}
	return m.Exponent
}

// invert solves wait = scale * rho^b/(1-rho) for rho.
func invert(wait, scale, b float64) float64 {
	if !(wait > 0) || !(scale > 0) {
		return 0
	}
	if b == 1 {
		return wait / (wait + scale)
	}
	// In logarithms, so that neither a wait of a year nor one of a picosecond loses digits:
	// b ln rho - ln(1-rho) is monotone in rho.
	want := math.Log(wait / scale)
	lo, hi := 0.0, 1.0
	for range 60 {
		mid := lo + (hi-lo)/2
		if b*math.Log(mid)-math.Log1p(-mid) < want {
			lo = mid
		} else {
			hi = mid
		}
	}
	return min(lo+(hi-lo)/2, 1-1e-15)
}

// CalibrationPoint is one measurement at a known load.
type CalibrationPoint struct {
	// Utilization is the true utilisation, strictly between 0 and 1: offered over largest possible
	// rate.
	Utilization float64
	// Wait is the mean wait measured there, above 0.
	Wait time.Duration
}

// ErrCalibration says that points do not determine a [Model].
var ErrCalibration = errors.New("balance: points do not determine a model")

// Calibrate fits Scale and Exponent to measurements by least squares on
// ln(wait*(1-rho)) = ln Scale + Exponent * ln rho. Points of one utilisation only leave the exponent
// open: it is then that of [SakasegawaExponent] for servers, and Scale is fitted alone. Points above
// a utilisation of about .6 weigh most where it matters: below, the busy share is the better estimate.
//
// It returns [ErrCalibration] when there is no point, a point is out of range, or the fit gives no
// growing function (an Exponent of 0 or less).
func Calibrate(points []CalibrationPoint, servers int) (Model, error) {
	if len(points) == 0 {
		return Model{}, fmt.Errorf("%w: none given", ErrCalibration)
	}
	var sx, sy, sxx, sxy float64
	lo, hi := math.Inf(1), math.Inf(-1)
	for i, p := range points {
		if !(p.Utilization > 0 && p.Utilization < 1) || p.Wait <= 0 {
			return Model{}, fmt.Errorf("%w: point %d has utilisation %v and wait %v", ErrCalibration, i, p.Utilization, p.Wait)
		}
		x := math.Log(p.Utilization)
		y := math.Log(float64(p.Wait)) + math.Log1p(-p.Utilization)
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
		lo, hi = min(lo, x), max(hi, x)
	}
	n := float64(len(points))
	b := SakasegawaExponent(servers)
	if hi-lo > 1e-9 {
		b = (n*sxy - sx*sy) / (n*sxx - sx*sx)
	}
	if !(b > 0) {
		return Model{}, fmt.Errorf("%w: waits do not grow with utilisation", ErrCalibration)
	}
	scale := math.Exp((sy - b*sx) / n)
	if !(scale >= 1) || scale >= math.MaxInt64 {
		return Model{}, fmt.Errorf("%w: scale of %g ns", ErrCalibration, scale)
	}
	return Model{Scale: time.Duration(math.Round(scale)), Exponent: b}, nil
}
