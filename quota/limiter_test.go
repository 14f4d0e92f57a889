package quota_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

var (
	tenantDefault = quota.Entity{Tenant: quota.ByDefault()}
	tenantA       = quota.Entity{Tenant: quota.Named("a")}
	keyA          = quota.Key{Tenant: "a"}
)

func newLimiter(t testing.TB, settings ...quota.Setting) *quota.Limiter {
	t.Helper()
	l, err := quota.NewLimiter(quota.Options{Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, quota.Setting{Entity: tenantDefault, Kind: quota.Ingress, Quota: quota.Quota{Rate: 1000, Burst: 500 * time.Millisecond}})
		start := time.Now()
		for range 3 {
			if err := l.Wait(t.Context(), keyA, quota.Ingress, 500); err != nil {
				t.Fatal(err)
			}
		}
		if got := time.Since(start); got != time.Second {
			t.Errorf("waited %v, want 1s", got)
		}
	})
}

func TestWaitGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, quota.Setting{Entity: tenantA, Kind: quota.Ingress, Quota: quota.Quota{Rate: 1000, Burst: time.Second}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Wait(ctx, keyA, quota.Ingress, 10_000)
		throttled, ok := errors.AsType[*quota.ThrottledError](err)
		if !ok || !errors.Is(err, quota.ErrThrottled) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want a ThrottledError of the deadline", err)
		}
		if throttled.RetryAfter != 0 {
			t.Errorf("retry after %v, want 0: the charge was given back", throttled.RetryAfter)
		}
		if d := l.Charge(keyA, quota.Ingress, 1000, l.Now()); d != 0 {
			t.Errorf("delay %v, want 0", d)
		}
	})
}

// TestWaitRetimed changes the quota under a sleeper, as in the reference's vector: 750 ms in all.
func TestWaitRetimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, quota.Setting{Entity: tenantA, Kind: quota.Ingress, Quota: quota.Quota{Rate: 1000, Burst: time.Nanosecond}})
		start := time.Now()
		done := make(chan time.Duration)
		go func() {
			if err := l.Wait(t.Context(), keyA, quota.Ingress, 1000); err != nil {
				t.Error(err)
			}
			done <- time.Since(start)
		}()
		time.Sleep(500 * time.Millisecond)
		// What is charged behind the sleeper must not prolong its sleep.
		l.Charge(keyA, quota.Ingress, 5000, l.Now())
		err := l.Alter([]quota.Alteration{{Entity: tenantA, Kind: quota.Ingress, Quota: &quota.Quota{Rate: 2000, Burst: time.Nanosecond}}}, false, l.Now())
		if err != nil {
			t.Fatal(err)
		}
		if got := (<-done).Round(time.Microsecond); got != 750*time.Millisecond {
			t.Errorf("slept %v, want 750ms", got)
		}
	})
}
