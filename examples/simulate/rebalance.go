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

// rebalance makes forty partitions of one broker six times as hot and follows the fullest broker, with the planner acting and
// without.
//
// 12 brokers, 1 200 partitions with three replicas. Reports come every ten seconds as one-minute exponential averages
// with 5 % noise; the planner runs every 20 s and acts at the third check. Leadership moves at once, data at 100 MB/s for
// each receiving broker; moves count from their start until both brokers have reported after their end.
func rebalance(r Run) (map[string]any, error) {
	const (
		brokers = 12
		hot     = 4
		step    = 10 * time.Second
		onset   = 60 // steps
		steps   = 240
		rate    = 100e6
	)
	type result struct {
		ratio        []float64
		integral     float64 // of what exceeds 1.2, in minutes
		recovered    int     // steps from the onset until the ratio stays below 1.2
		leads, moves int
		late         int // moves after the first quarter of an hour
		bytes        int64
	}
	play := func(act bool) (result, error) {
		var res result
		rnd := rand.New(rand.NewPCG(r.Seed, 8))
		c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: brokers, Zones: 3, Partitions: 1200, Replication: 3, Alpha: 2, Cap: 20, Spread: .5, Seed: r.Seed, Unit: 200_000})
		forced, err := balance.NewPlanner(balance.PlanOptions{Force: true})
		if err != nil {
			return res, err
		}
		plan, err := forced.Plan(c, nil, simEpoch)
		if err != nil {
			return res, err
		}
		if err := c.Apply(plan.Moves); err != nil {
			return res, err
		}
		planner, err := balance.NewPlanner(balance.PlanOptions{})
		if err != nil {
			return res, err
		}
		var ledger balance.Ledger
		factor := make([]float64, len(c.Partitions)) // what the load is times what it was
		seen := make([]float64, len(c.Partitions))   // its one-minute average
		for i := range factor {
			factor[i], seen[i] = 1, 1
		}
		type running struct {
			move balance.Move
			left float64
		}
		var queue []running
		for s := range steps {
			now := simEpoch.Add(time.Duration(s) * step)
			if s == onset {
				n := 0
				for i := range c.Partitions {
					if c.Partitions[i].Leader == hot && n < 40 {
						factor[i] = 6
						n++
					}
				}
			}
			for i := range seen {
				seen[i] += (factor[i] - seen[i]) * (1 - math.Exp(-step.Seconds()/60))
			}
			ratio := balancetest.Imbalance(scaled(c, factor, nil), balance.Work)
			res.ratio = append(res.ratio, ratio)
			if s >= onset {
				res.integral += max(ratio-1.2, 0) * step.Minutes()
				if ratio > 1.2 {
					res.recovered = s - onset + 1
				}
			}
			if !act {
				continue
			}
			// Copying: each receiver gets its rate.
			budget := map[balance.BrokerID]float64{}
			var still []running
			for _, q := range queue {
				if _, ok := budget[q.move.To]; !ok {
					budget[q.move.To] = rate * step.Seconds()
				}
				used := min(budget[q.move.To], q.left)
				budget[q.move.To] -= used
				q.left -= used
				if q.left > 0 {
					still = append(still, q)
					continue
				}
				if err := c.Apply([]balance.Move{q.move}); err != nil {
					return res, err
				}
				ledger.End(q.move, now, true)
			}
			queue = still
			if s%2 != 0 {
				continue
			}
			report := scaled(c, seen, rnd)
			for i := range report.Brokers {
				report.Brokers[i].Reported = now
			}
			plan, err := planner.Plan(report, &ledger, now)
			if err != nil {
				return res, err
			}
			for _, m := range plan.Moves {
				ledger.Begin(m)
				if s-onset > 90 {
					res.late++
				}
				if m.Kind == balance.MoveLeadership {
					res.leads++
					if err := c.Apply([]balance.Move{m}); err != nil {
						return res, err
					}
					ledger.End(m, now, true)
					continue
				}
				res.moves++
				res.bytes += m.Bytes
				queue = append(queue, running{m, float64(m.Bytes)})
			}
		}
		return res, nil
	}
	with, err := play(true)
	if err != nil {
		return nil, err
	}
	without, err := play(false)
	if err != nil {
		return nil, err
	}
	peak := 0.0
	for _, x := range with.ratio {
		peak = max(peak, x)
	}
	last := with.ratio[len(with.ratio)-1]
	table := tabwriter.NewWriter(r.Log, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "figure\tacting\tnothing done")
	fmt.Fprintf(table, "fullest broker over the mean at the peak\t%.2f\t%.2f\n", peak, without.ratio[len(without.ratio)-1])
	fmt.Fprintf(table, "at the end\t%.2f\t%.2f\n", last, without.ratio[len(without.ratio)-1])
	fmt.Fprintf(table, "below 1.2 for good after\t%d s\t-\n", with.recovered*10)
	fmt.Fprintf(table, "integral of what exceeds 1.2\t%.2f min\t%.2f min\n", with.integral, without.integral)
	fmt.Fprintf(table, "leadership moves\t%d\t0\n", with.leads)
	fmt.Fprintf(table, "replica moves\t%d\t0\n", with.moves)
	fmt.Fprintf(table, "bytes\t%.1f GB\t0\n", float64(with.bytes)/1e9)
	fmt.Fprintf(table, "moves later than 15 min after the step\t%d\t-\n", with.late)
	if err := table.Flush(); err != nil {
		return nil, err
	}
	if r.SVG != "" {
		labels := make([]string, steps)
		limit := make([]float64, steps)
		for i := range labels {
			limit[i] = 1.2
			labels[i] = fmt.Sprint((i + 1) / 6)
		}
		a := chart("Fullest broker over the mean: 40 partitions get six times as hot at minute 10",
			fmt.Sprintf("Below 1.2 after %d s by %d leadership moves and %d replica moves of %.1f GB.", with.recovered*10, with.leads, with.moves, float64(with.bytes)/1e9),
			"minutes", []string{"acting", "nothing done", "trigger"}, labels, [][]float64{with.ratio, without.ratio, limit}, 1, 2.2, .2, "%.1f")
		a.XAxis.LabelCount = 9
		if err := plotPanels(r.SVG, a); err != nil {
			return nil, err
		}
	}
	return map[string]any{"peak": peak, "end": last, "recovered_seconds": with.recovered * 10, "integral_minutes": with.integral, "integral_minutes_without": without.integral,
		"leadership_moves": with.leads, "replica_moves": with.moves, "bytes": with.bytes, "late_moves": with.late}, nil
}

// scaled returns the cluster with the load of every partition, other than its bytes on disk, times its factor, and with 5 % noise if
// r is not nil.
func scaled(c balance.Cluster, factor []float64, r *rand.Rand) balance.Cluster {
	d := c.Clone()
	for i := range d.Partitions {
		f := factor[i]
		if r != nil {
			f *= math.Exp(.05 * r.NormFloat64())
		}
		scale := func(l *balance.Loads) {
			for k := range l {
				if balance.Resource(k) != balance.Disk {
					l[k] = int64(float64(l[k]) * f)
				}
			}
		}
		scale(&d.Partitions[i].Leadership)
		for j := range d.Partitions[i].Replicas {
			scale(&d.Partitions[i].Replicas[j].Load)
		}
	}
	return d
}
