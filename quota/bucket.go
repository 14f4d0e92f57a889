package quota

import (
	"math"
	"time"
)

// Bucket is a post-paid token bucket: a request is charged when its cost is known, may take the tokens below zero, and whoever comes after
// is delayed until the debt is paid. It never refuses a cost for being larger than the burst. Debt is not forgiven by idling or by a
// smaller burst.
//
// It is a plain value without a clock: every method takes the present time. A time earlier than one seen before counts as that one, so
// callers whose readings overtake each other mint no tokens (golang/go #56287). Not safe for concurrent use. The zero Bucket is blocked.
//
// Source: post-paid token bucket as in KIP-599, with the reference's rules for changes; the arithmetic is our own.
type Bucket struct {
	rate   float64 // tokens per second; negative: unlimited
	burst  float64 // tokens at most
	tokens float64 // Invariant: <= burst
	last   Instant // of the tokens; never goes back
}

// NewBucket returns a bucket with the given rate and burst (in tokens, not time) that holds tokens at now, at most burst. A bucket that
// replaces one whose state was lost should start with 0: a full one would double the burst at each such loss.
func NewBucket(rate Rate, burst, tokens float64, now Instant) Bucket {
	burst = max(burst, 0)
	return Bucket{rate: float64(rate), burst: burst, tokens: min(tokens, burst), last: now}
}

// settle brings the tokens to now at the present rate.
func (b *Bucket) settle(now Instant) {
	dt := now - b.last
	if dt <= 0 {
		return
	}
	b.last = now
	if b.rate > 0 {
		// Multiply before dividing: whole numbers of tokens then come out whole.
		b.tokens = min(b.tokens+float64(dt)*b.rate/1e9, b.burst)
	}
}

// Charge takes n tokens at now, or gives back -n of them, and returns how long from now the bucket is in debt: the delay of the next
// request. It is 0 without debt and [Forever] when the rate is [Blocked].
func (b *Bucket) Charge(n int64, now Instant) time.Duration {
	b.settle(now)
	b.take(n)
	return b.delay(0)
}

func (b *Bucket) take(n int64) {
	if b.rate >= 0 {
		b.tokens = min(b.tokens-float64(n), b.burst)
	}
}

// Reserve charges n at now if the bucket is not in debt, whatever n is, and returns true. Otherwise it changes nothing and returns how long
// the debt lasts. This is the strict form for what must be refused, not delayed. Since check and charge are one step, of any number of
// requests that come at once only one can take the bucket into debt.
func (b *Bucket) Reserve(n int64, now Instant) (time.Duration, bool) {
	b.settle(now)
	if d := b.delay(0); d > 0 {
		return d, false
	}
	b.take(n)
	return 0, true
}

// Delay returns how long from now the bucket is in debt.
func (b *Bucket) Delay(now Instant) time.Duration {
	b.settle(now)
	return b.delay(0)
}

// delay is the time until all of the debt but the part charged behind a sleeper is paid. Requires: settled.
func (b *Bucket) delay(behind float64) time.Duration {
	switch {
	case b.rate == 0:
		return Forever
	case b.rate < 0:
		return 0
	}
	return debtDelay(-b.tokens-behind, b.rate)
}

// debtDelay is debt/rate, rounded up to whole nanoseconds. Less than a thousandth of one is rounding and not debt.
func debtDelay(debt, rate float64) time.Duration {
	if debt <= 0 {
		return 0
	}
	ns := math.Ceil(debt*1e9/rate - 1e-3)
	if ns >= math.MaxInt64 {
		return Forever - 1 // not Forever: it does end
	}
	return time.Duration(ns)
}

// Tokens returns the tokens at now: negative in debt, burst when full.
func (b *Bucket) Tokens(now Instant) float64 {
	b.settle(now)
	return b.tokens
}

// Full reports whether the bucket holds its whole burst at now. Only then may its state be forgotten: a new full bucket is the same.
func (b *Bucket) Full(now Instant) bool {
	b.settle(now)
	return b.rate < 0 || b.tokens >= b.burst
}

// Set changes rate and burst (in tokens) at now. The time up to now was settled at the old rate; tokens above the new burst are lost, debt
// stays. Callers who sleep must ask for their delay again.
func (b *Bucket) Set(rate Rate, burst float64, now Instant) {
	b.settle(now)
	if b.rate < 0 && rate >= 0 {
		b.tokens = max(burst, 0) // nothing was owed and nothing was counted
	}
	b.rate, b.burst = float64(rate), max(burst, 0)
	b.tokens = min(b.tokens, b.burst)
}
