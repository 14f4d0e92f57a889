package s3store

import "time"

// A breaker decides whether calls may go out. It opens after breakerFailures
// failures without a success between, and then lets one call through each time its
// hold has passed; the hold doubles while these fail. It is pure: time comes in.
//
// Source: the circuit breaker of Nygard, "Release It!"; the numbers are our own.
type breaker struct {
	failures int
	open     bool
	hold     time.Duration
	until    time.Time // while open: when the next trial may go
	trial    bool      // one is under way
}

const (
	breakerFailures = 8
	breakerMinHold  = 500 * time.Millisecond
	breakerMaxHold  = 30 * time.Second
)

// allow says whether a call may go out now, and whether it is the trial of an open
// breaker. If not, wait is how long none may.
func (b *breaker) allow(now time.Time) (ok, trial bool, wait time.Duration) {
	switch {
	case !b.open:
		return true, false, 0
	case b.trial:
		return false, false, b.hold
	case now.Before(b.until):
		return false, false, b.until.Sub(now)
	}
	b.trial = true
	return true, true, 0
}

// An outcome is what a call says about the server's health.
type outcome uint8

const (
	neutral outcome = iota // says nothing: the caller gave up, or was wrong
	healthy
	sick
)

// done takes in the end of a call. Each trial must be told of. It returns whether
// the breaker opened or closed by it. jitter is in [0, 1).
func (b *breaker) done(o outcome, trial bool, now time.Time, jitter float64) (changed bool) {
	if trial {
		b.trial = false
	}
	switch {
	case o == healthy:
		changed = b.open
		*b = breaker{trial: b.trial}
		return changed
	case o == neutral:
		return false
	case b.open && !trial:
		return false // it went out before the breaker opened
	case b.open:
		b.hold = min(2*b.hold, breakerMaxHold)
	default:
		if b.failures++; b.failures < breakerFailures {
			return false
		}
		b.open, b.hold, changed = true, breakerMinHold, true
	}
	// Equal jitter: half of the hold for certain.
	b.until = now.Add(b.hold/2 + time.Duration(float64(b.hold/2)*jitter))
	return changed
}

// A budget pays for retries: each call that succeeds adds a little, each retry takes
// one. So retries are at most a share of the calls, whatever fails.
type budget struct{ tenths int }

const (
	budgetMax   = 100 // 10 retries
	budgetEarns = 1   // a retry for ten successes
	budgetCost  = 10
)

func (b *budget) earn() { b.tenths = min(b.tenths+budgetEarns, budgetMax) }

func (b *budget) spend() bool {
	if b.tenths < budgetCost {
		return false
	}
	b.tenths -= budgetCost
	return true
}

// backoff is the wait before attempt number attempt (1 and up): equal jitter over a
// doubling base, at least what the server asked for.
func backoff(attempt int, asked time.Duration, jitter float64) time.Duration {
	base := min(100*time.Millisecond<<min(attempt-1, 10), 5*time.Second)
	return max(asked, base/2+time.Duration(float64(base/2)*jitter))
}
