package tier

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// backoff returns the wait after the given number of failures before err: equal
// jitter over an exponential, and at least what a throttling store asked for.
func backoff(failures int, o *Options, err error) time.Duration {
	d := o.MaxBackoff
	if failures < 30 {
		d = min(d, o.MinBackoff<<failures)
	}
	if d <= 0 {
		d = o.MaxBackoff
	}
	d = d/2 + rand.N(d/2+1)
	var t *ThrottledError
	if errors.As(err, &t) {
		d = max(d, min(t.RetryAfter, maxRetryAfter))
	}
	return d
}

// maxRetryAfter bounds how long a store can hold us off.
const maxRetryAfter = 5 * time.Minute

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
