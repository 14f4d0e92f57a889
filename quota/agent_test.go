package quota_test

import (
	"math"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

// TestAgentApply passes grants to an agent by hand: which count, and what a share then gives.
func TestAgentApply(t *testing.T) {
	const start = quota.Instant(time.Hour)
	fresh := func(t *testing.T) (*quota.Agent, *quota.Limiter) {
		l := newLimiter(t, ingress(tenantA, 1000, time.Second))
		a, err := quota.NewAgent(1, l, quota.Rule{})
		if err != nil {
			t.Fatal(err)
		}
		a.SetMembers(quota.Members{Term: 7, Brokers: []quota.BrokerID{1, 2, 3, 4}, Coordinators: []quota.BrokerID{2}}, start)
		return a, l
	}
	grant := func(change func(*quota.Grant)) quota.Grant {
		g := quota.Grant{From: 2, To: 1, Term: 7, Seq: 10, ReportAt: start, Lease: 2 * time.Second,
			Shares: []quota.Share{{Tenant: "a", Kind: quota.Ingress, Limit: 400, Use: 0.5, Lazy: true}}}
		if change != nil {
			change(&g)
		}
		return g
	}
	limit := func(a *quota.Agent, now quota.Instant) float64 {
		limit, _, _ := a.Limit("a", quota.Ingress, now)
		return limit
	}
	for name, change := range map[string]func(*quota.Grant){
		"another term":           func(g *quota.Grant) { g.Term = 6 },
		"a later term":           func(g *quota.Grant) { g.Term = 8 },
		"another broker":         func(g *quota.Grant) { g.To = 3 },
		"lease over":             func(g *quota.Grant) { g.ReportAt -= quota.Instant(3 * time.Second) },
		"a report not yet made":  func(g *quota.Grant) { g.ReportAt += quota.Instant(time.Minute) },
		"not the coordinator":    func(g *quota.Grant) { g.From = 3 },
		"no number":              func(g *quota.Grant) { g.Shares[0].Limit = math.NaN() },
		"no kind":                func(g *quota.Grant) { g.Shares[0].Kind = 0 },
		"what the split is also": func(g *quota.Grant) { g.Shares[0].Limit, g.Shares[0].Use = 250, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := fresh(t)
			now := start + quota.Instant(100*time.Millisecond)
			a.Apply(grant(change), now)
			if _, leased, _ := a.Limit("a", quota.Ingress, now); leased || limit(a, now) != 250 {
				t.Errorf("limit %v, leased %v; want the static split of 250", limit(a, now), leased)
			}
		})
	}
	t.Run("overtaken", func(t *testing.T) {
		a, _ := fresh(t)
		a.Apply(grant(nil), start)
		a.Apply(grant(func(g *quota.Grant) { g.Seq = 9; g.Shares[0].Limit = 900 }), start)
		if got := limit(a, start); got != 400 {
			t.Errorf("limit %v, want 400", got)
		}
	})
	t.Run("laziness and lease", func(t *testing.T) {
		a, l := fresh(t)
		l.Charge(keyA, quota.Ingress, 1, start)
		a.Apply(grant(nil), start)
		rate := func(now quota.Instant) quota.Rate {
			a.Tick(now)
			u, ok := l.Usage(keyA, quota.Ingress, now)
			if !ok {
				t.Fatal("no usage")
			}
			return u.Rate
		}
		for _, step := range []struct {
			after time.Duration
			want  quota.Rate
		}{
			{0, 800},
			{750 * time.Millisecond, 800},
			{800 * time.Millisecond, 400}, // three periods old: not fresh
			{2 * time.Second, 400},        // the lease runs out
			{3 * time.Second, 325},        // half of the way down to the split
			{4 * time.Second, 250},
			{9 * time.Second, 250},
		} {
			if got := rate(start + quota.Instant(step.after)); math.Abs(float64(got-step.want)) > 1e-6 {
				t.Errorf("after %v: rate %v, want %v", step.after, got, step.want)
			}
		}
		// A limit below the split waits for the others' cuts.
		now := start + quota.Instant(time.Minute)
		a.Apply(grant(func(g *quota.Grant) { g.Seq, g.ReportAt, g.Shares[0].Limit, g.Shares[0].Lazy = 11, now, 50, false }), now)
		for _, step := range []struct {
			after time.Duration
			want  quota.Rate
		}{{0, 50}, {2 * time.Second, 50}, {6 * time.Second, 50}, {7 * time.Second, 150}, {8 * time.Second, 250}} {
			if got := rate(now + quota.Instant(step.after)); math.Abs(float64(got-step.want)) > 1e-6 {
				t.Errorf("after %v: rate %v, want %v", step.after, got, step.want)
			}
		}
		// Lazy doubling never exceeds the whole quota, and a lower quota counts at once.
		now += quota.Instant(time.Minute)
		a.Apply(grant(func(g *quota.Grant) { g.Seq, g.ReportAt, g.Shares[0].Limit = 12, now, 700 }), now)
		if got := rate(now); got != 1000 {
			t.Errorf("rate %v, want 1000", got)
		}
		alter(t, l, now, quota.Alteration{Entity: tenantA, Kind: quota.Ingress, Quota: &quota.Quota{Rate: 600}})
		if got := rate(now); got != 600 {
			t.Errorf("rate %v, want the lowered quota", got)
		}
		if r := a.Reports(now); len(r) != 1 || r[0].Full || r[0].Applied != 12 || r[0].Term != 7 {
			t.Errorf("reports %+v, want one to the coordinator that confirms grant 12", r)
		}
		if r := a.Reports(now + quota.Instant(3*time.Second)); len(r) != 1 || !r[0].Full || r[0].Applied != 0 || len(r[0].Uses) != 1 {
			t.Errorf("reports %+v, want a full one without a lease", r)
		}
	})
}

// TestAgentPressed checks that a broker which presses back doesn't draw quota to itself.
func TestAgentPressed(t *testing.T) {
	l := newLimiter(t, ingress(tenantA, 1000, time.Second))
	a, err := quota.NewAgent(1, l, quota.Rule{})
	if err != nil {
		t.Fatal(err)
	}
	a.SetMembers(quota.Members{Term: 1, Brokers: []quota.BrokerID{1}}, 0)
	b := newPressure(t, l, quota.SafeLimits{QueueLength: 1})
	b.Step(quota.Load{}, 0)
	now := quota.Instant(0)
	throttled := func(queue int) bool {
		l.Charge(keyA, quota.Ingress, 3000, now)
		now += period
		b.Step(quota.Load{Queue: queue}, now)
		a.Tick(now)
		r := a.Reports(now)
		if len(r) != 1 || len(r[0].Uses) != 1 {
			t.Fatalf("reports %+v, want one use", r)
		}
		return r[0].Uses[0].Throttled
	}
	if !throttled(0) {
		t.Error("not throttled in debt")
	}
	if throttled(5) {
		t.Error("throttled by its share, though the broker presses")
	}
}
