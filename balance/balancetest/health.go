package balancetest

import (
	"math/rand/v2"
	"time"

	"github.com/cordwood-io/cordwood/balance"
)

// Round is the time between two rounds of a [HealthTrial].
const Round = 10 * time.Second

// HealthTrial feeds a [balance.Monitor] with latencies that are noisy as real ones are.
type HealthTrial struct {
	Brokers, Zones int
	// Sigma and Correlation are those of [Noise], for each broker and signal on its own.
	Sigma, Correlation float64
	// Signals are the signals that are observed; nil means all.
	Signals []balance.Signal
	// Base is the latency of a healthy broker; 0 means 5 ms.
	Base time.Duration
	// SlowFrom is the round from which the first broker is Factor times as slow, in all signals; 0 never.
	SlowFrom int
	Factor   float64
	// Load is that of every broker.
	Load float64
	Seed uint64
}

// Run runs rounds and returns the decisions, without renewals, with the round of each.
func (h HealthTrial) Run(m *balance.Monitor, rounds int) (decisions []balance.Decision, at []int) {
	r := rand.New(rand.NewPCG(h.Seed, 3))
	signals := h.Signals
	if signals == nil {
		signals = []balance.Signal{balance.ServiceTime, balance.FlushTime, balance.ProbeTime, balance.AckTime}
	}
	base := h.Base
	if base == 0 {
		base = 5 * time.Millisecond
	}
	noise := make([][]Noise, h.Brokers)
	obs := make([]balance.Observation, h.Brokers)
	out := make([]bool, h.Brokers)
	for i := range noise {
		noise[i] = make([]Noise, len(signals))
		for j := range noise[i] {
			noise[i][j] = Noise{Sigma: h.Sigma, Correlation: h.Correlation}
		}
	}
	start := time.Unix(0, 0)
	for round := range rounds {
		for i := range obs {
			o := balance.Observation{Broker: balance.BrokerID(i), Zone: string(rune('a' + i%max(h.Zones, 1))), Registered: true, Outside: true,
				StorageProgress: true, Samples: 1000, Load: h.Load, Leads: 100}
			if out[i] {
				o.Leads = 0
			}
			for j, s := range signals {
				x := noise[i][j].Next(r)
				if i == 0 && h.SlowFrom > 0 && round >= h.SlowFrom {
					x *= h.Factor
				}
				o.Signals[s] = time.Duration(x * float64(base))
			}
			obs[i] = o
		}
		for _, d := range m.Round(obs, start.Add(time.Duration(round)*Round)) {
			if d.Broker != balance.NoBroker && d.Suppressed == "" {
				switch d.Action {
				case balance.Demote, balance.Fence, balance.LeaveISR:
					out[d.Broker] = true
				case balance.Release:
					out[d.Broker] = false
				}
			}
			if !d.Renewal {
				decisions = append(decisions, d)
				at = append(at, round)
			}
		}
	}
	return decisions, at
}
