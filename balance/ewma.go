package balance

import (
	"math"
	"time"
)

// Window is the time constant of the averages of this package: one minute, as Kora's and as
// that of the Unix load average. A step shows to 63 % after one Window, to 95 % after three.
const Window = time.Minute

// decay returns exp(-dt/window) for dt >= 0, both in nanoseconds. Most events follow each other
// within milliseconds, where four terms of the series are exact to 1e-14 and much cheaper.
func decay(dt int64, window float64) float64 {
	x := float64(dt) / window
	if x < 1e-3 {
		return 1 - x*(1-x*(0.5-x/6))
	}
	return math.Exp(-x)
}

// Average is the exponential average of samples that come at irregular times: the sum of the samples
// and their number decay together, so that quiet times do not dilute the mean. The zero value is
// ready and averages over [Window]. It is not safe for concurrent use.
//
// Time that goes backwards counts as no time. Not even a gap of years gives NaN.
//
// Source: the ratio of two averages is our own; one average of a mean per tick is Kora's.
type Average struct {
	// Window is the time constant; 0 means [Window]. It must not change after the first Add.
	Window time.Duration

	sum, count float64
	last       time.Time
}

// Add adds one sample, taken at now.
func (a *Average) Add(now time.Time, value float64) {
	a.advance(now)
	a.sum += value
	a.count++
}

// Mean returns the average of the samples, or 0 when there is none or all are forgotten.
func (a *Average) Mean(now time.Time) float64 {
	a.advance(now)
	return ratio(a.sum, a.count)
}

// Count returns the number of samples, each counted with the weight that it still has at now. It says
// how far the mean can be trusted, and falls to 0 when no samples come.
func (a *Average) Count(now time.Time) float64 {
	a.advance(now)
	return a.count
}

func (a *Average) advance(now time.Time) {
	if a.last.IsZero() {
		a.last = now
		return
	}
	dt := now.Sub(a.last)
	if dt <= 0 {
		return
	}
	a.last = now
	f := decay(int64(dt), float64(window(a.Window)))
	a.sum *= f
	a.count *= f
}

func window(w time.Duration) time.Duration {
	if w <= 0 {
		return Window
	}
	return w
}

// forgotten is the weight below which samples no longer count: far below one sample, far above the
// numbers where a quotient would lose its digits.
const forgotten = 1e-9

func ratio(sum, count float64) float64 {
	if !(count > forgotten) {
		return 0
	}
	return sum / count
}
