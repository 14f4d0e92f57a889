package quota_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

func of(kind quota.Kind, e quota.Entity, rate quota.Rate, burst time.Duration) quota.Setting {
	return quota.Setting{Entity: e, Kind: kind, Quota: quota.Quota{Rate: rate, Burst: burst}}
}

func TestTicketReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, of(quota.Ingress, tenantA, 100<<10, time.Second), of(quota.RequestTime, tenantA, 1, time.Second))
		ticket := l.Admit(t.Context(), keyA)
		start := time.Now()
		n, err := io.Copy(io.Discard, ticket.Reader(bytes.NewReader(make([]byte, 600<<10))))
		if err != nil || n != 600<<10 {
			t.Fatalf("copied %d, %v", n, err)
		}
		// 100 KiB come from the burst and the last piece of up to 64 KiB stays owed; the rest is paid.
		if took := time.Since(start); took < 4360*time.Millisecond || took > 5*time.Second {
			t.Errorf("took %v, want 4.36 s to 5 s", took)
		}
		if u, _ := l.Usage(keyA, quota.Ingress, l.Now()); u.Used != 600<<10 {
			t.Errorf("charged %d, want %d: what was asked and not read is given back", u.Used, 600<<10)
		}
		ticket.Done()
		if u, _ := l.Usage(keyA, quota.RequestTime, l.Now()); u.Used != 0 {
			t.Errorf("request time %v, want none: all of it was waiting", time.Duration(u.Used))
		}
	})
}

func TestTicketWriterParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Twenty answers at once: they can't all pass one check (KAFKA-19968).
		l := newLimiter(t, of(quota.Egress, tenantA, 1<<20, time.Second))
		var wg sync.WaitGroup
		var mu sync.Mutex
		written := 0
		start := time.Now()
		for range 20 {
			wg.Go(func() {
				ticket := l.Admit(t.Context(), keyA)
				defer ticket.Done()
				n, err := ticket.Writer(writerFunc(func(p []byte) (int, error) {
					mu.Lock()
					defer mu.Unlock()
					written += len(p)
					if limit := time.Since(start).Seconds()*(1<<20) + 1<<20 + quota.Quantum; float64(written) > limit {
						t.Errorf("%d bytes after %v, more than %.0f", written, time.Since(start), limit)
					}
					return len(p), nil
				})).Write(make([]byte, 512<<10))
				if err != nil || n != 512<<10 {
					t.Errorf("wrote %d, %v", n, err)
				}
			})
		}
		wg.Wait()
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestTicketContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, of(quota.Egress, tenantA, 1000, time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		ticket := l.Admit(ctx, keyA)
		n, err := ticket.Writer(io.Discard).Write(make([]byte, 3*quota.Quantum))
		if !errors.Is(err, quota.ErrThrottled) || !errors.Is(err, context.DeadlineExceeded) || n != quota.Quantum {
			t.Errorf("wrote %d, %v; want one quantum and ErrThrottled", n, err)
		}
		if u, _ := l.Usage(keyA, quota.Egress, l.Now()); u.Used != quota.Quantum {
			t.Errorf("charged %d, want what was written", u.Used)
		}
		if d := ticket.Done(); d <= 0 {
			t.Error("no delay in debt")
		}
	})
}

func TestTicketReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, of(quota.Egress, tenantA, 1000, time.Second), of(quota.RequestTime, tenantA, 1e9, time.Second))
		used := func(kind quota.Kind) int64 {
			u, _ := l.Usage(keyA, kind, l.Now())
			return u.Used
		}
		a, b := l.Admit(t.Context(), keyA), l.Admit(t.Context(), keyA)
		if _, ok := a.Reserve(quota.Egress, 5000); !ok {
			t.Fatal("refused without debt")
		}
		if d, ok := b.Reserve(quota.Egress, 5000); ok || d != 4*time.Second {
			t.Errorf("second reservation: %v, %v; want 4s, refused", d, ok)
		}
		if d := b.RetryAfter(); d != 4*time.Second {
			t.Errorf("retry after %v, want 4s", d)
		}
		if a.Charge(quota.Egress, 1200); used(quota.Egress) != 5000 {
			t.Errorf("charged %d, want it out of the reservation", used(quota.Egress))
		}
		time.Sleep(100 * time.Millisecond)
		a.Pause()
		time.Sleep(time.Hour)
		a.Resume()
		time.Sleep(50 * time.Millisecond)
		a.Done()
		if got := used(quota.Egress); got != 1200 {
			t.Errorf("charged %d at the end, want 1200", got)
		}
		if got := used(quota.RequestTime); got != int64(150*time.Millisecond) {
			t.Errorf("request time %v, want 150ms: waiting is not work", time.Duration(got))
		}
		if a.Done(); used(quota.Egress) != 1200 {
			t.Error("a second Done changed something")
		}
		c := l.Admit(t.Context(), keyA)
		c.Reserve(quota.Egress, 300)
		c.Charge(quota.Egress, 700)
		c.Cancel()
		if got := used(quota.Egress); got != 1200 {
			t.Errorf("charged %d after a failed request, want it given back", got)
		}
		b.Done()
		if err := b.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestTicketHolds checks that a party with a request in work is not forgotten, and is afterwards.
func TestTicketHolds(t *testing.T) {
	l := newLimiter(t, of(quota.Egress, tenantA, 1000, time.Second))
	ticket := l.Admit(t.Context(), keyA)
	if n := l.Expire(l.Now()); n != 0 {
		t.Errorf("forgot %d parties with a request in work", n)
	}
	ticket.Done()
	if n := l.Expire(l.Now()); n != 1 {
		t.Errorf("forgot %d parties, want 1", n)
	}
	ticket.Charge(quota.Egress, 10_000)
	if d := l.Delay(keyA, quota.Egress, l.Now()); d == 0 {
		t.Error("a charge after Done was lost")
	}
}

// TestCappedSleep checks that a client whose delays are capped still gets its rate and no more.
func TestCappedSleep(t *testing.T) {
	l, err := quota.NewLimiter(quota.Options{Settings: []quota.Setting{of(quota.Ingress, tenantA, 1000, time.Second)}, MaxDelay: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	now, got := quota.Instant(0), int64(0)
	for now < quota.Instant(time.Hour) {
		if d := l.Delay(keyA, quota.Ingress, now); d > 0 {
			if d > time.Second {
				t.Fatalf("delay %v above the cap", d)
			}
			now += quota.Instant(d)
			continue
		}
		l.Charge(keyA, quota.Ingress, 50_000, now)
		got += 50_000
	}
	if got < 3600*1000 || got > 3600*1000+1000+50_000 {
		t.Errorf("%d in an hour at 1000/s", got)
	}
}

func TestMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t)
		var m quota.Mute
		start := time.Now()
		m.Extend(2*time.Second, l.Now())
		if left := m.Extend(time.Second, l.Now()); left != 2*time.Second {
			t.Errorf("a shorter delay made it %v, want 2s", left)
		}
		go func() {
			time.Sleep(1500 * time.Millisecond)
			m.Extend(3*time.Second, l.Now())
		}()
		if err := m.Wait(t.Context(), l.Now); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 4500*time.Millisecond {
			t.Errorf("waited %v, want 4.5s", took)
		}
		m.Extend(quota.Forever, l.Now())
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := m.Wait(ctx, l.Now); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
	})
}
