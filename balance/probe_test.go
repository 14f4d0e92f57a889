package balance_test

import (
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/balance"
)

func TestProbes(t *testing.T) {
	const ms = time.Millisecond
	var probes []balance.Probe
	for i := range 100 {
		probes = append(probes, balance.Probe{OK: i != 50, Latency: time.Duration(i+1) * ms})
	}
	r := balance.ProbeMinute(7, probes)
	// 99 succeeded: 1..100 without 51; the 99th percentile is the 99th of them by nearest rank.
	if r.Attempted != 100 || r.Succeeded != 99 || r.P99 != 100*ms || r.Availability() != .99 {
		t.Errorf("got %+v", r)
	}
	down := balance.ProbeMinute(8, make([]balance.Probe, 10))
	if down.P99 != 0 || down.Availability() != 0 {
		t.Errorf("got %+v", down)
	}
	m := balance.ClusterMinute([]balance.ProbeResult{r, down, {Broker: 9, Attempted: 100, Succeeded: 100, P99: 5 * ms}})
	if m.P99 != 100*ms || m.Worst != 7 || m.Availability != 0 {
		t.Errorf("got %+v", m)
	}
	if m := balance.ClusterMinute(nil); m.Availability != 1 || m.Worst != balance.NoBroker {
		t.Errorf("got %+v", m)
	}
}

// TestWeeklySLO: of the 10 080 minutes of a week 100 may be bad, 101 may not.
func TestWeeklySLO(t *testing.T) {
	week := make([]balance.Minute, 10_080)
	for i := range week {
		week[i] = balance.Minute{P99: 10 * time.Millisecond, Availability: 1}
	}
	for i := range 100 {
		week[i*7].P99 = time.Second
	}
	if s := balance.WeeklySLO(week, 50*time.Millisecond, .9995); !s.Met || s.P99 != 10*time.Millisecond || s.BadMinutes != 0 {
		t.Errorf("100 bad minutes: got %+v", s)
	}
	week[5].P99 = time.Second
	if s := balance.WeeklySLO(week, 50*time.Millisecond, .9995); s.Met || s.P99 != time.Second {
		t.Errorf("101 bad minutes: got %+v", s)
	}
	week[5].P99 = 0
	for i := range 6 {
		week[i].Availability = 0 // 6 minutes down are more than 5.04
	}
	if s := balance.WeeklySLO(week, 50*time.Millisecond, .9995); s.Met || s.BadMinutes != 6 {
		t.Errorf("six minutes down: got %+v", s)
	}
	if s := balance.WeeklySLO(nil, 0, 1); !s.Met {
		t.Errorf("no minutes: got %+v", s)
	}
	if d := balance.AllowedDowntime(.9995, 7*24*time.Hour); d != 302400*time.Millisecond {
		t.Errorf("allowed downtime %v, want 5.04 minutes", d)
	}
}

func TestPercentile(t *testing.T) {
	v := []int{5, 1, 4, 2, 3}
	for q, want := range map[float64]int{-1: 1, 0: 1, .2: 1, .21: 2, .5: 3, .9: 5, 1: 5, 2: 5} {
		if got := balance.Percentile(v, q); got != want {
			t.Errorf("%v: got %d, want %d", q, got, want)
		}
	}
	if v[0] != 5 {
		t.Error("the values were changed")
	}
	p50, p90, p99 := balance.FleetLatency([]time.Duration{3, 1, 2, 4, 5, 6, 7, 8, 9, 10})
	if p50 != 5 || p90 != 9 || p99 != 10 {
		t.Errorf("got %v %v %v", p50, p90, p99)
	}
}
