package quota_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

// wires carries messages between the Sharings of one process, 20 ms each.
type wires struct {
	mu  sync.Mutex
	all map[quota.BrokerID]*quota.Sharing
}

func (w *wires) to(id quota.BrokerID, f func(*quota.Sharing)) {
	w.mu.Lock()
	s := w.all[id]
	w.mu.Unlock()
	if s != nil {
		time.AfterFunc(20*time.Millisecond, func() { f(s) })
	}
}

func (w *wires) Report(to quota.BrokerID, r quota.Report) {
	w.to(to, func(s *quota.Sharing) { s.HandleReport(r) })
}
func (w *wires) Grant(to quota.BrokerID, g quota.Grant) {
	w.to(to, func(s *quota.Sharing) { s.HandleGrant(g) })
}

// TestSharing runs the drivers of three brokers: a sleeper on the one that has all the traffic is re-timed when its share grows.
func TestSharing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wires{all: make(map[quota.BrokerID]*quota.Sharing)}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var limiters []*quota.Limiter
		members := quota.Members{Term: 1, Brokers: []quota.BrokerID{1, 2, 3}}
		pressed := 0
		for _, id := range members.Brokers {
			l := newLimiter(t, of(quota.Ingress, tenantA, 300, time.Second), of(quota.Connections, tenantA, 300, 0))
			o := quota.SharingOptions{Self: id, Limiter: l, Carrier: w}
			if id == 3 {
				o.Backpressure = newPressure(t, l, quota.SafeLimits{QueueLength: 1})
				o.Load = func() quota.Load { return quota.Load{Queue: 2} }
				o.Pressed = func(quota.Pressure) { pressed++ }
			}
			s, err := quota.NewSharing(o)
			if err != nil {
				t.Fatal(err)
			}
			s.SetMembers(members)
			w.mu.Lock()
			w.all[id] = s
			w.mu.Unlock()
			wg.Go(func() {
				if err := s.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			limiters = append(limiters, l)
		}
		if u := limiters[0].Charge(keyA, quota.Ingress, 0, limiters[0].Now()); u != 0 {
			t.Errorf("delay %v", u)
		}
		if u, _ := limiters[0].Usage(keyA, quota.Ingress, limiters[0].Now()); u.Rate != 100 {
			t.Errorf("rate %v, want the static split of 100", u.Rate)
		}
		start := time.Now()
		if err := limiters[0].Wait(t.Context(), keyA, quota.Ingress, 1600); err != nil {
			t.Fatal(err)
		}
		// 100 tokens, then 1500 of debt: 15 s at the static split, about 5 s at all of the quota.
		if took := time.Since(start); took > 8*time.Second || took < 2*time.Second {
			t.Errorf("waited %v, want about 5 s", took)
		}
		u, _ := limiters[0].Usage(keyA, quota.Ingress, limiters[0].Now())
		if u.Throttled == 0 || u.Unfair == 0 || u.Unfair > u.Throttled {
			t.Errorf("throttled %v, unfair %v; want some of both: the quota was not used up", u.Throttled, u.Unfair)
		}
		// The number of connections is shared as well.
		opened := 0
		for range 30 {
			for range 20 {
				if _, err := limiters[1].Acquire(keyA); err == nil {
					opened++
				} else if !errors.Is(err, quota.ErrThrottled) {
					t.Fatal(err)
				}
			}
			time.Sleep(quota.DefaultPeriod)
		}
		if opened < 280 || opened > 300 {
			t.Errorf("%d connections on one broker, want nearly all 300 of the tenant", opened)
		}
		if pressed == 0 {
			t.Error("nobody was told of the pressure")
		}
		cancel()
		wg.Wait()
		time.Sleep(time.Minute)
		if u, _ := limiters[0].Usage(keyA, quota.Ingress, limiters[0].Now()); math.IsInf(float64(u.Rate), 0) || u.Rate > 600 {
			t.Errorf("rate %v with nobody coordinating", u.Rate)
		}
	})
}

func TestSharingInvalid(t *testing.T) {
	w := &wires{}
	l := newLimiter(t)
	for name, o := range map[string]quota.SharingOptions{
		"no limiter": {Carrier: w},
		"no carrier": {Limiter: l},
		"no load":    {Limiter: l, Carrier: w, Backpressure: newPressure(t, l, quota.SafeLimits{})},
		"bad rule":   {Limiter: l, Carrier: w, Rule: quota.Rule{Floor: 7}},
	} {
		if _, err := quota.NewSharing(o); !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := quota.NewAgent(1, l, quota.Rule{}); err != nil {
		t.Fatal(err)
	}
	if _, err := quota.NewAgent(1, l, quota.Rule{}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("a second agent: %v, want ErrInvalid", err)
	}
}
