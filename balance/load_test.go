package balance_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/balance"
)

func TestCombineAndClusterLoad(t *testing.T) {
	got := balance.Combine(balance.Load{Utilization: .2, Pressure: .9}, balance.Load{Utilization: .7, Pressure: .1})
	if got != (balance.Load{Utilization: .7, Pressure: .9, Overall: .9}) {
		t.Errorf("got %+v", got)
	}
	if got := balance.Combine(); got != (balance.Load{}) {
		t.Errorf("of nothing: got %+v", got)
	}
	b := func(id balance.BrokerID, l float64) balance.BrokerLoad {
		return balance.BrokerLoad{Broker: id, Load: balance.Load{Overall: l}}
	}
	if got := balance.ClusterLoad([]balance.BrokerLoad{b(3, .5), b(2, .8), b(1, .8)}); got != b(1, .8) {
		t.Errorf("got %+v", got)
	}
	if got := balance.ClusterLoad(nil); got.Broker != balance.NoBroker {
		t.Errorf("without brokers: got %+v", got)
	}
}

func TestCellLoad(t *testing.T) {
	l := func(x float64) balance.Load { return balance.Load{Overall: x} }
	u := balance.CellUsage{Brokers: []balance.Load{l(.2), l(.4)}, Replicas: 50, MaxReplicas: 100, Ingress: 9, MaxIngress: 10, Egress: 1}
	if got := balance.CellLoad(u); got != .9 {
		t.Errorf("got %v", got)
	}
	u.Ingress = 0
	if got := balance.CellLoad(u); got != .5 {
		t.Errorf("got %v", got)
	}
	u.Replicas = 0
	near(t, "mean of the brokers", balance.CellLoad(u), .3, 1e-12)
	if got := balance.CellLoad(balance.CellUsage{}); got != 0 {
		t.Errorf("empty: got %v", got)
	}
}

func TestUnitHeadroom(t *testing.T) {
	unit := balance.Dimensions{balance.IngressBytesPerSecond: 50e6, balance.EgressBytesPerSecond: 150e6, balance.Partitions: 4500}
	used := balance.Dimensions{balance.IngressBytesPerSecond: 90e6, balance.EgressBytesPerSecond: 30e6, balance.Connections: 1e6}
	h := balance.UnitHeadroom(unit, 2, used, balance.Load{Overall: .5}, 0)
	if h.Limiting != balance.IngressBytesPerSecond || h.UnitsNeeded != 3 {
		t.Errorf("got %+v", h)
	}
	near(t, "used", h.Used, .9, 1e-12)
	near(t, "free", h.Free, .1, 1e-12)
	h = balance.UnitHeadroom(unit, 2, used, balance.Load{Overall: .99}, .8)
	if h.Limiting != balance.LoadDimension || h.UnitsNeeded != 3 || h.Limiting.String() != "load" {
		t.Errorf("got %+v", h)
	}
	if h := balance.UnitHeadroom(balance.Dimensions{}, 0, used, balance.Load{}, -1); h.Used != 0 || h.UnitsNeeded != 1 {
		t.Errorf("got %+v", h)
	}
}

func TestAttribute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(0, 1e12).Draw(t, "total")
		n := rapid.IntRange(0, 20).Draw(t, "n")
		uses := make([]balance.ReplicaUse, n)
		for i := range uses {
			g := rapid.Int64Range(-10, 1e9)
			uses[i] = balance.ReplicaUse{Ingress: g.Draw(t, "in"), Egress: g.Draw(t, "out"), Replication: g.Draw(t, "repl"), Requests: g.Draw(t, "req")}
		}
		parts := balance.Attribute(total, uses, balance.Costs{})
		sum := int64(0)
		for _, p := range parts {
			if p < 0 {
				t.Fatalf("negative part in %v", parts)
			}
			sum += p
		}
		if n > 0 && sum != total {
			t.Errorf("parts add up to %d, not %d", sum, total)
		}
	})
	got := balance.Attribute(100, []balance.ReplicaUse{{Ingress: 1}, {Ingress: 2}, {Ingress: 1}}, balance.Costs{Ingress: 1})
	if got[0] != 25 || got[1] != 50 || got[2] != 25 {
		t.Errorf("got %v", got)
	}
	if got := balance.Attribute(3, make([]balance.ReplicaUse, 2), balance.Costs{}); got[0] != 2 || got[1] != 1 {
		t.Errorf("nothing done: got %v", got)
	}
	if got := balance.Attribute(10, []balance.ReplicaUse{{Ingress: 1}, {}}, balance.Costs{Ingress: math.Inf(1)}); got[0]+got[1] != 10 {
		t.Errorf("infinite cost: got %v", got)
	}
}

func TestFitCosts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	want := balance.Costs{Ingress: 2e-9, Egress: .5e-9, Replication: 1e-9, Requests: 2e-5}
	var samples []balance.CostSample
	for range 50 {
		u := balance.ReplicaUse{Ingress: r.Int64N(1e8), Egress: r.Int64N(3e8), Replication: r.Int64N(2e8), Requests: r.Int64N(20_000)}
		samples = append(samples, balance.CostSample{Use: u, Work: want.Ingress*float64(u.Ingress) + want.Egress*float64(u.Egress) +
			want.Replication*float64(u.Replication) + want.Requests*float64(u.Requests)})
	}
	got, err := balance.FitCosts(samples)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range [][2]float64{{got.Ingress, want.Ingress}, {got.Egress, want.Egress}, {got.Replication, want.Replication}, {got.Requests, want.Requests}} {
		near(t, "cost", p[0]/p[1], 1, .01)
	}
	// What made work less, other things equal, costs nothing: no cost is negative.
	for i := range samples {
		samples[i].Work -= 1.5 * want.Egress * float64(samples[i].Use.Egress)
	}
	if got, err = balance.FitCosts(samples); err != nil || got.Egress != 0 || min(got.Ingress, got.Replication, got.Requests) <= 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := balance.FitCosts(samples[:3]); err == nil {
		t.Error("three samples are enough?")
	}
	if _, err := balance.FitCosts(make([]balance.CostSample, 10)); err == nil {
		t.Error("samples of nothing are enough?")
	}
}

func TestRuntime(t *testing.T) {
	var r balance.Runtime
	if l := r.Sample(time.Now()); l != (balance.Load{}) {
		t.Errorf("first call: got %+v", l)
	}
	done := make(chan int)
	for range 50 {
		go func() { done <- 1 }()
	}
	for range 50 {
		<-done
	}
	l := r.Sample(time.Now())
	if l.Overall < 0 || l.Overall > 1 || math.IsNaN(l.Overall) {
		t.Errorf("got %+v", l)
	}
}
