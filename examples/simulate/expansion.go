package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

// expansion adds six brokers to 24 and compares the planner's moves with those of the same rule in random and in
// lightest-first order; and how long the copying takes with all of the retention on local disk and with one day of it.
//
// 24 000 replicas without copies, load and bytes of a power law up to 10 000. Time is bytes over 100 MB/s for each new broker, which is
// the bottleneck; local disk holds what the given retention needs at 33 MB/s written to each broker.
func expansion(r Run) (map[string]any, error) {
	const perBroker, rate = 33e6, 100e6
	table := tabwriter.NewWriter(r.Log, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "tail\torder\tmoves\tmoved load\tmax/mean\t1 day local\t7 days\t30 days")
	rows := []map[string]any{}
	var labels []string
	moves := [][]float64{{}, {}, {}}
	hours := [][]float64{{}}
	for _, alpha := range []float64{1.1, 1.5, 2, 3} {
		labels = append(labels, fmt.Sprintf("Pareto %g", alpha))
		c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 24, Zones: 1, Partitions: 24_000, Replication: 1, Alpha: alpha, Cap: 1e4, Seed: r.Seed})
		total := int64(0)
		for _, p := range c.Partitions {
			total += p.Replicas[0].Load[balance.Disk]
		}
		for i := range 6 {
			c.Brokers = append(c.Brokers, balance.Broker{ID: balance.BrokerID(24 + i), Zone: "a", MaxReplicas: 1 << 20, State: balance.Joining})
		}
		planner, err := balance.NewPlanner(balance.PlanOptions{Goals: []balance.SoftGoal{{Goal: balance.GoalDisk, Trigger: true}}})
		if err != nil {
			return nil, err
		}
		plan, err := planner.Plan(c, nil, simEpoch)
		if err != nil {
			return nil, err
		}
		after := c.Clone()
		if err := after.Apply(plan.Moves); err != nil {
			return nil, err
		}
		row := func(i int, order string, n int, bytes int64, ratio float64) {
			share := float64(bytes) / float64(total)
			var t [3]time.Duration
			for k, days := range []float64{1, 7, 30} {
				disk := 24 * perBroker * days * 86400
				t[k] = time.Duration(share * disk / (6 * rate) * float64(time.Second)).Round(time.Minute)
			}
			fmt.Fprintf(table, "%g\t%s\t%d\t%.1f %%\t%.3f\t%v\t%v\t%v\n", alpha, order, n, 100*share, ratio, t[0], t[1], t[2])
			rows = append(rows, map[string]any{"alpha": alpha, "order": order, "moves": n, "moved_share": share, "imbalance": ratio,
				"hours_1d": t[0].Hours(), "hours_7d": t[1].Hours(), "hours_30d": t[2].Hours()})
			moves[i] = append(moves[i], float64(n))
		}
		row(0, "planner", plan.ReplicaMoves, plan.Bytes, balancetest.Imbalance(after, balance.Disk))
		for i, o := range []struct {
			name  string
			order balancetest.Order
		}{{"random", balancetest.RandomOrder}, {"lightest first", balancetest.LightestFirst}} {
			n, bytes, loads := balancetest.Expand(c, o.order, .91, 1.09, r.Seed)
			top := int64(0)
			for _, x := range loads {
				top = max(top, x)
			}
			row(i+1, o.name, n, bytes, float64(top)*30/float64(total))
		}
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	for _, days := range []float64{1, 2, 4, 7, 14, 30} {
		hours[0] = append(hours[0], .18*24*perBroker*days*86400/(6*rate)/3600)
	}
	if r.SVG != "" {
		most, step := upTo(maxOf(moves))
		a := dots(chart("Replica moves to fill six new brokers beside 24", "24 000 replicas. The heavier the tail, the fewer replicas carry the load.",
			"distribution of load over replicas", []string{"planner", "random order", "lightest first"}, labels, moves, 0, most, step, "%.0f"))
		most, step = upTo(hours[0][5])
		b := dots(chart("Hours until the new brokers have their share", "18 % of local data moves, at 100 MB/s into each. With tiering only the hot set is local.",
			"days of data on local disk", []string{"hours"}, []string{"1", "2", "4", "7", "14", "30"}, hours, 0, most, step, "%.0f"))
		if err := plotPanels(r.SVG, a, b); err != nil {
			return nil, err
		}
	}
	return map[string]any{"rows": rows, "retention_ratio": 30}, nil
}

func maxOf(lines [][]float64) float64 {
	m := 0.0
	for _, l := range lines {
		for _, x := range l {
			m = max(m, x)
		}
	}
	return m
}
