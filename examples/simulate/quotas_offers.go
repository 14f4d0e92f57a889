package main

import (
	"math"
	"math/rand/v2"
)

// offers makes what a tenant's clients offer to each broker, under several mean uses alike.
type offers struct {
	source *rand.PCG
	rng    *rand.Rand  // of source
	shares [][]float64 // of each load and broker, in bytes per second
	noise  []float64
	bits   []uint32 // scratch of factors, as is
	out    []float64
	shift  float64 // seconds until the next one
}

func newOffers(source *rand.PCG, brokers int, loads []float64, skew float64) *offers {
	o := &offers{source: source, rng: rand.New(source), shares: make([][]float64, len(loads)), noise: make([]float64, brokers), bits: make([]uint32, brokers),
		out: make([]float64, brokers)}
	parts, sum := make([]float64, brokers), 0.0
	for i := range parts {
		parts[i] = math.Pow(float64(i+1), -skew)
		sum += parts[i]
	}
	for l, load := range loads {
		o.shares[l] = make([]float64, brokers)
		for i, part := range parts {
			o.shares[l][i] = part * (load * modelQuota / sum)
		}
	}
	for i := range o.noise {
		o.noise[i] = o.rng.NormFloat64()
	}
	o.rng.Shuffle(brokers, o.swap)
	o.shift = o.rng.ExpFloat64() * shiftEvery.Seconds()
	return o
}

func (o *offers) swap(i, j int) {
	for _, share := range o.shares {
		share[i], share[j] = share[j], share[i]
	}
}

var (
	noiseKeep = math.Exp(-modelPeriod.Seconds() / noiseMemory.Seconds())
	noiseNew  = math.Sqrt(1 - noiseKeep*noiseKeep)
)

// curve is a function on [-8, 8] by linear interpolation, to within a millionth here: math.Exp took a sixth of the whole time.
type curve [16*curveSteps + 2]float64

const curveSteps = 256 // per unit

func newCurve(f func(float64) float64) *curve {
	var c curve
	for i := range c {
		c[i] = f(float64(i)/curveSteps - 8)
	}
	return &c
}

func (c *curve) at(x float64) float64 {
	p := (x + 8) * curveSteps
	if i := int(p); uint(i) < uint(len(c)-1) {
		return c[i] + (c[i+1]-c[i])*(p-float64(i))
	}
	if x < 0 {
		return c[0]
	}
	return c[16*curveSteps]
}

var lognormal = newCurve(func(x float64) float64 { return math.Exp(noiseSigma*x - noiseSigma*noiseSigma/2) })

// quantiles has the normal distribution's quantiles at multiples of 1/2048. Between them normal interpolates, but for the two ends.
var quantiles = func() (q [1<<11 + 1]float64) {
	for i := range q {
		q[i] = quantile(float64(i) / (1 << 11))
	}
	return q
}()

func quantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

// normal makes a normal number of 32 random bits, in half the time of rand.NormFloat64.
func normal(bits uint32) float64 {
	if atEnd(bits) {
		return quantile((float64(bits) + 0.5) / (1 << 32))
	}
	return between(bits)
}

// atEnd reports whether between, which interpolates, can't do it.
func atEnd(bits uint32) bool { return bits>>21-1 >= 1<<11-2 }

func between(bits uint32) float64 {
	i := bits >> 21
	return quantiles[i] + (quantiles[i+1]-quantiles[i])*(float64(bits&(1<<21-1))*(1.0/(1<<21)))
}

// fill makes the next periods of the traffic of each load.
func (o *offers) fill(traffics []*traffic, periods int) {
	for period := range periods {
		if o.shift -= periodSeconds; o.shift <= 0 {
			o.shift = o.rng.ExpFloat64() * shiftEvery.Seconds()
			share, hot := o.shares[0], 0
			for i := range share {
				if share[i] > share[hot] {
					hot = i
				}
			}
			o.swap(hot, o.rng.IntN(len(share)))
		}
		o.factors()
		for l, t := range traffics {
			t.set(period, o.shares[l], o.out)
		}
	}
	for _, t := range traffics {
		t.periods = periods
	}
}

// factors makes the noise of the next period, by which the brokers' parts are multiplied. Their number is even. The loops call nothing.
func (o *offers) factors() {
	n := len(o.out)
	bits, out, noise := o.bits[:n], o.out[:n], o.noise[:n]
	end := false
	for i := 0; i+1 < n; i += 2 {
		both := o.source.Uint64()
		a, b := uint32(both), uint32(both>>32)
		bits[i], bits[i+1] = a, b
		out[i], out[i+1] = between(a), between(b)
		end = end || atEnd(a) || atEnd(b)
	}
	if end {
		for i, b := range bits {
			out[i] = normal(b)
		}
	}
	keep, fresh, c := noiseKeep, noiseNew, lognormal
	for i, x := range noise {
		x = keep*x + fresh*out[i]
		noise[i] = x
		out[i] = c.at(x)
	}
}
