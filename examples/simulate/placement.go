package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

// placement puts tenants into six cells by four rules and shows how full the fullest cell gets, with load reports that are
// refreshed every so many placements. Tenants never leave and never grow.
func placement(r Run) (map[string]any, error) {
	const cells, tenants = 6, 600
	trials := 200
	if r.Full {
		trials = 2000
	}
	refreshes := []int{1, 6, 30, 60, 150}
	rules := []string{"random", "least loaded", "two choices", "two + provisional"}
	table := tabwriter.NewWriter(r.Log, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "tenants\trule\treports every\tmax/mean\t99th percentile")
	rows := []map[string]any{}
	var labels []string
	for _, k := range refreshes {
		labels = append(labels, fmt.Sprint(k))
	}
	values := map[string][][]float64{}
	for _, kind := range []string{"equal", "power law"} {
		for rule, name := range rules {
			var line []float64
			for _, refresh := range refreshes {
				rnd := rand.New(rand.NewPCG(r.Seed, uint64(refresh)))
				var ratios []float64
				for range trials {
					x, err := placeTenants(rnd, cells, tenants, refresh, rule, kind == "power law")
					if err != nil {
						return nil, err
					}
					ratios = append(ratios, x)
				}
				slices.Sort(ratios)
				mean := 0.0
				for _, x := range ratios {
					mean += x / float64(trials)
				}
				p99 := balance.Percentile(ratios, .99)
				fmt.Fprintf(table, "%s\t%s\t%d\t%.3f\t%.3f\n", kind, name, refresh, mean, p99)
				rows = append(rows, map[string]any{"tenants": kind, "rule": name, "refresh": refresh, "mean": mean, "p99": p99})
				line = append(line, mean)
			}
			values[kind] = append(values[kind], line)
		}
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	if r.SVG != "" {
		a := dots(chart("Fullest of six cells over the mean: 600 equal tenants", "The least loaded cell of an old report gets all tenants until the next report; two random choices do not.",
			"placements between two load reports", rules, labels, values["equal"], 1, 1.6, .1, "%.1f"))
		b := dots(chart("The same with tenants of a power law", "Pareto 1.5 up to 1000: the largest tenant decides, and no placement helps; moving it does.",
			"placements between two load reports", rules, labels, values["power law"], 1, 2, .2, "%.1f"))
		if err := plotPanels(r.SVG, a, b); err != nil {
			return nil, err
		}
	}
	return map[string]any{"rows": rows}, nil
}

func placeTenants(r *rand.Rand, cells, tenants, refresh, rule int, powerLaw bool) (float64, error) {
	p := balance.Placement{Full: math.Inf(1)}
	states := make([]balance.CellState, cells)
	loads := make([]float64, cells)
	sum := 0.0
	for i := range states {
		states[i].ID = balance.CellID(i + 1)
	}
	for t := range tenants {
		now := simEpoch.Add(time.Duration(t) * time.Second)
		if t%refresh == 0 {
			for i := range states {
				states[i].Load, states[i].Reported = loads[i], now
			}
		}
		x := 1.0
		if powerLaw {
			x = balancetest.Pareto(r, 1.5, 1000)
		}
		at := 0
		switch rule {
		case 0:
			at = r.IntN(cells)
		case 1:
			for i := range states {
				if states[i].Load < states[at].Load {
					at = i
				}
			}
		default:
			expected := 0.0
			if rule == 3 {
				expected = 1
				if powerLaw {
					expected = 3 // the mean of the law: what a tenant brings is not known before
				}
			}
			id, err := p.Place(r, states, balance.TenantID(fmt.Sprint(t)), expected, now)
			if err != nil {
				return 0, err
			}
			at = int(id) - 1
		}
		loads[at] += x
		sum += x
	}
	return slices.Max(loads) * float64(cells) / sum, nil
}
