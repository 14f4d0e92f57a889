package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"text/tabwriter"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

var simEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// load compares the estimate of load with the truth over simulated queues, and the attribution of a broker's load to its
// replicas with what the replicas cost.
//
// The queues are first come, first served, in virtual time. A pool measures everything itself; nothing is fitted.
// The truth is the offered load. Means are taken after three minutes.
func load(r Run) (map[string]any, error) {
	con, hyp := balancetest.Constant(), balancetest.Hyperexponential(4)
	queues := []struct {
		name string
		q    balancetest.Queue
	}{
		{"M/M/1", balancetest.Queue{}}, {"M/D/1", balancetest.Queue{Services: con}}, {"M/H2/1", balancetest.Queue{Services: hyp}},
		{"D/M/1", balancetest.Queue{Arrivals: con}}, {"H2/M/1", balancetest.Queue{Arrivals: hyp}}, {"M/M/8", balancetest.Queue{Servers: 8}},
		{"H2/H2/8", balancetest.Queue{Servers: 8, Arrivals: hyp, Services: hyp}},
	}
	rhos := []float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .98}
	length := 12 * time.Minute
	if r.Full {
		length = 2 * time.Hour
	}
	table := tabwriter.NewWriter(r.Log, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "queue\ttruth\tutilisation\tpressure\toverall\terror")
	var labels []string
	shown := [][]float64{{}, {}, {}, {}}
	wait80, _ := balance.ErlangC(8, .8)
	plain := balance.Model{Scale: time.Duration(wait80 * .2 / .8 * float64(16*time.Millisecond)), Exponent: 1}
	errors := make([][]float64, 0, len(queues))
	var names []string
	points := []map[string]any{}
	worst := 0.0
	for _, k := range queues {
		var line []float64
		for _, rho := range rhos {
			q := k.q
			q.Utilization, q.Seed = rho, r.Seed
			q.Service = 2 * time.Millisecond * time.Duration(max(q.Servers, 1))
			pool := &balance.Pool{Servers: max(q.Servers, 1)}
			var n, u, p, o, w float64
			q.Run(pool, simEpoch, length, 5*time.Second, func(now time.Time) {
				if now.Sub(simEpoch) >= 3*time.Minute {
					st := pool.Stats(now)
					l := st.Load
					n, u, p, o, w = n+1, u+l.Utilization, p+l.Pressure, o+l.Overall, w+float64(st.Wait)
				}
			})
			u, p, o, w = u/n, p/n, o/n, w/n
			fmt.Fprintf(table, "%s\t%.2f\t%.3f\t%.3f\t%.3f\t%+.3f\n", k.name, rho, u, p, o, o-rho)
			points = append(points, map[string]any{"queue": k.name, "truth": rho, "utilization": u, "pressure": p, "overall": o})
			line = append(line, 100*(p-rho))
			worst = max(worst, math.Abs(o-rho))
			if k.name == "M/M/8" {
				labels = append(labels, fmt.Sprintf("%.0f", 100*rho))
				for i, x := range []float64{rho, o, p, plain.Utilization(time.Duration(w))} {
					shown[i] = append(shown[i], 100*x)
				}
			}
		}
		names = append(names, k.name)
		errors = append(errors, line)
	}
	// Half of the time at .2, half at .95, two seconds each.
	pool := &balance.Pool{Servers: 1}
	var n float64
	var burst balance.Load
	balancetest.Queue{Utilization: .95, Service: time.Millisecond, Seed: r.Seed, Rate: func(d time.Duration) float64 {
		if d/(2*time.Second)%2 == 0 {
			return .2 / .95
		}
		return 1
	}}.Run(pool, simEpoch, length, time.Second, func(now time.Time) {
		if now.Sub(simEpoch) >= 3*time.Minute {
			l := pool.Stats(now).Load
			n++
			burst.Utilization += l.Utilization
			burst.Pressure += l.Pressure
		}
	})
	burst.Utilization /= n
	burst.Pressure /= n
	fmt.Fprintf(table, "bursts .2/.95\t0.575\t%.3f\t%.3f\t\tpressure is meant to exceed the mean\n", burst.Utilization, burst.Pressure)
	if err := table.Flush(); err != nil {
		return nil, err
	}

	byDefault, fitted := attribution(r.Seed)
	fmt.Fprintf(r.Log, "\nLoad put on the wrong replica, share of all: %.1f %% with default costs, %.1f %% with fitted ones.\n", 100*byDefault, 100*fitted)
	fmt.Fprintln(r.Log, "The model there: bytes and requests cost what they cost, times a factor of each replica that no counter shows (lognormal, sigma .3).")
	if r.SVG != "" {
		a := chart("Estimated load of a pool of eight servers", "M/M/8. Overall is the larger of busy share and pressure; pressure is from waits alone.",
			"true utilisation, %", []string{"truth", "overall", "pressure", "W/(W+K), K fitted at 80 %"}, labels, shown, 0, 100, 20, "%.0f %%")
		b := chart("Error of pressure, in points of utilisation", "Queues with other arrivals and services. The busy share covers what pressure misses at low load.",
			"true utilisation, %", names, labels, errors, -25, 5, 5, "%.0f")
		if err := plotPanels(r.SVG, a, b); err != nil {
			return nil, err
		}
	}
	return map[string]any{"points": points, "worst_error": worst, "burst_utilization": burst.Utilization, "burst_pressure": burst.Pressure,
		"attribution_default": byDefault, "attribution_fitted": fitted}, nil
}

// attribution returns the share of load that ends on the wrong replica when the load of brokers is split by the default
// costs, and by costs fitted to the brokers.
func attribution(seed uint64) (byDefault, fitted float64) {
	r := rand.New(rand.NewPCG(seed, 6))
	const brokers, replicas = 48, 400
	truth := balance.Costs{Ingress: 1.0e-9, Egress: .4e-9, Replication: .7e-9, Requests: 18e-6}
	uses := make([][]balance.ReplicaUse, brokers)
	works := make([][]float64, brokers)
	var samples []balance.CostSample
	for b := range brokers {
		var sum balance.ReplicaUse
		total := 0.0
		mix := math.Exp(.5 * r.NormFloat64()) // tenants of a broker have small or large requests
		for range replicas {
			x := 10_000 * balancetest.Pareto(r, 1.5, 1000)
			u := balance.ReplicaUse{}
			if r.IntN(3) == 0 {
				u.Ingress, u.Egress = int64(x), int64(x*(2+2*r.Float64()))
				u.Requests = int64(x / (16384 * mix * math.Exp(.7*r.NormFloat64())))
			} else {
				u.Replication = int64(x)
				u.Requests = int64(x / 65536)
			}
			w := truth.Ingress*float64(u.Ingress) + truth.Egress*float64(u.Egress) + truth.Replication*float64(u.Replication) + truth.Requests*float64(u.Requests)
			w *= math.Exp(.3 * r.NormFloat64())
			uses[b] = append(uses[b], u)
			works[b] = append(works[b], w)
			total += w
			sum.Ingress += u.Ingress
			sum.Egress += u.Egress
			sum.Replication += u.Replication
			sum.Requests += u.Requests
		}
		samples = append(samples, balance.CostSample{Use: sum, Work: total})
	}
	costs, err := balance.FitCosts(samples)
	if err != nil {
		costs = balance.DefaultCosts()
	}
	wrong := func(c balance.Costs) float64 {
		off, all := 0.0, 0.0
		for b := range brokers {
			const unit = 1e9
			parts := balance.Attribute(int64(samples[b].Work*unit), uses[b], c)
			for i, p := range parts {
				off += math.Abs(float64(p)/unit-works[b][i]) / 2
			}
			all += samples[b].Work
		}
		return off / all
	}
	return wrong(balance.Costs{}), wrong(costs)
}
