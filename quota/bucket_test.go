package quota_test

import (
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

const ms = quota.Instant(time.Millisecond)

// TestVectors holds the exact vectors of the reference, section 1.4.
func TestVectors(t *testing.T) {
	t.Run("charge", func(t *testing.T) {
		b := quota.NewBucket(1000, 500, 500, 0)
		for _, step := range []struct {
			at   quota.Instant
			n    int64
			want time.Duration
		}{{0, 500, 0}, {0, 250, 250 * time.Millisecond}, {100 * ms, 100, 250 * time.Millisecond}} {
			if got := b.Charge(step.n, step.at); got != step.want {
				t.Errorf("charge %d at %v: delay %v, want %v", step.n, time.Duration(step.at), got, step.want)
			}
		}
		if got := b.Tokens(100 * ms); got != -250 {
			t.Errorf("tokens at 100 ms: %v, want -250", got)
		}
		if got := b.Tokens(1000 * ms); got != 500 {
			t.Errorf("tokens at 1 s: %v, want 500", got)
		}
	})
	t.Run("rate change", func(t *testing.T) {
		b := quota.NewBucket(1000, 500, 0, 0)
		b.Charge(1000, 0)
		b.Set(2000, 1000, 500*ms)
		if got := b.Delay(500 * ms); got != 250*time.Millisecond {
			t.Errorf("remaining %v, want 250ms: neither a stale timer (500ms) nor credit for the past (0)", got)
		}
	})
	t.Run("KIP-599", func(t *testing.T) {
		b := quota.NewBucket(5, 500, 500, 0)
		if got := b.Charge(560, 0); got != 12*time.Second {
			t.Errorf("delay %v, want 12s", got)
		}
		if got := b.Tokens(0); got != -60 {
			t.Errorf("tokens %v, want -60", got)
		}
	})
	t.Run("strict", func(t *testing.T) {
		b := quota.NewBucket(5, 500, 1, 0)
		if d, ok := b.Reserve(10_000, 0); !ok {
			t.Fatalf("refused with a token left, delay %v", d)
		}
		if got := b.Tokens(0); got != -9999 {
			t.Errorf("tokens %v, want -9999", got)
		}
		want := 1999800 * time.Millisecond
		if d, ok := b.Reserve(1, 0); ok || d != want {
			t.Errorf("got %v, %v; want %v, false", d, ok, want)
		}
		if d, ok := b.Reserve(1, quota.Instant(want)-1); ok || d != 1 {
			t.Errorf("a nanosecond early: got %v, %v; want 1ns, false", d, ok)
		}
		if _, ok := b.Reserve(1, quota.Instant(want)); !ok {
			t.Error("refused when the debt is paid")
		}
	})
	t.Run("large fetch", func(t *testing.T) {
		for burst, want := range map[float64]time.Duration{10: 40 * time.Second, 1: 49 * time.Second} {
			b := quota.NewBucket(1<<20, burst*(1<<20), burst*(1<<20), 0)
			if got := b.Charge(50<<20, 0); got != want {
				t.Errorf("burst %v s: delay %v, want %v", burst, got, want)
			}
		}
	})
	t.Run("request time", func(t *testing.T) {
		// 30 % of a thread: 3 s of thread time in 10 s are just paid.
		b := quota.NewBucket(0.3e9, 0, 0, 0)
		if got := b.Charge(3e9, 0); got != 10*time.Second {
			t.Errorf("delay %v, want 10s", got)
		}
	})
	t.Run("blocked is not unlimited", func(t *testing.T) {
		var zero quota.Bucket
		if got := zero.Delay(0); got != quota.Forever {
			t.Errorf("zero bucket: delay %v, want Forever", got)
		}
		b := quota.NewBucket(quota.Unlimited, 0, 0, 0)
		if got := b.Charge(1<<60, 0); got != 0 {
			t.Errorf("unlimited: delay %v, want 0", got)
		}
		b.Set(quota.Blocked, 0, 0)
		if _, ok := b.Reserve(1, 1<<60); ok {
			t.Error("blocked: admitted")
		}
	})
	t.Run("time going back", func(t *testing.T) {
		// 10/s, burst 2: readings that alternate between two clocks 0.1 s apart mint nothing.
		b := quota.NewBucket(10, 2, 2, 0)
		admitted := 0
		for i := range 2001 {
			now := quota.Instant(i) * ms / 10
			if i%2 == 1 {
				now -= 100 * ms
			}
			if _, ok := b.Reserve(1, now); ok {
				admitted++
			}
		}
		if admitted > 5 {
			t.Errorf("admitted %d in 0.2 s, want at most burst 2 + 2 + one in debt", admitted)
		}
	})
}
