package main

import (
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/go-analyze/charts"
)

// plotQuotas draws how many tenants stay below how many minutes of unfair throttling, and how a quota follows a shift of the traffic.
func plotQuotas(file string, summaries map[string][]summary, shift []moment) error {
	const width, height = 900, 860
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: width, Height: height})
	p.FilledRect(0, 0, width, height, charts.ColorWhite, charts.ColorWhite, 0)
	panels, err := p.LayoutByRows().Row().Height("440").Columns("tenants").Row().Columns("shift").Build()
	if err != nil {
		return err
	}
	if err := drawChart(panels["tenants"], tenantsChart(summaries)); err != nil {
		return err
	}
	if err := drawChart(panels["shift"], shiftChart(shift)); err != nil {
		return err
	}
	svg, err := p.Bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(file, svg, 0o644)
}

func lines(title, subtitle string, names, labels []string, values [][]float64) charts.LineChartOption {
	opt := charts.NewLineChartOptionWithData(values)
	opt.Title.Text, opt.Title.Subtext = title, subtitle
	opt.Padding = charts.Box{Left: 20, Top: 16, Right: 30, Bottom: 16, IsSet: true}
	opt.Legend.SeriesNames = names
	opt.Legend.Offset = charts.OffsetStr{Left: charts.PositionRight, Top: "56"}
	opt.Legend.Padding = charts.Box{Top: 10, Bottom: 12, IsSet: true}
	opt.Symbol.Shape = charts.SymbolNone
	opt.LineStrokeWidth = 2.5
	opt.XAxis.Labels = labels
	opt.XAxis.LabelCount = len(labels)
	opt.XAxis.BoundaryGap = new(false)
	opt.YAxis = []charts.YAxisOption{{Min: new(0.0), Max: new(100.0), LabelCount: 6,
		ValueFormatter: func(v float64) string { return fmt.Sprintf("%.0f %%", v) }}}
	return opt
}

func tenantsChart(summaries map[string][]summary) charts.LineChartOption {
	const first, last, perDecade = -1, 4, 10 // powers of ten of minutes
	n := (last-first)*perDecade + 1
	labels := make([]string, n)
	for i := range labels {
		if i%perDecade == 0 {
			labels[i] = fmt.Sprintf("%g", math.Pow10(first+i/perDecade))
		}
	}
	labels[17] = "5"
	var names []string
	var values [][]float64
	add := func(name string, s summary) {
		sorted := slices.Sorted(slices.Values(s.minutes))
		line := make([]float64, n)
		for i := range line {
			limit := math.Pow(10, first+float64(i)/perDecade)
			if i == 17 {
				limit = sloMinutes
			}
			at, _ := slices.BinarySearch(sorted, math.Nextafter(limit, math.Inf(1)))
			line[i] = 100 * float64(at) / float64(len(sorted))
		}
		names, values = append(names, name), append(values, line)
	}
	for i, pol := range policies {
		add(pol.name+", load 0.7", summaries["70"][i])
	}
	add("lazy, load 0.9", summaries["90"][len(policies)-1])
	fleet := summaries["fleet"]
	opt := lines("Tenants with at most so many minutes of unfair throttling a week",
		fmt.Sprintf("24 brokers, objective 5.04 min. In a fleet of mostly quiet tenants %.2f %% (static) and %.2f %% (lazy) meet it.",
			100*fleet[0].slo, 100*fleet[len(fleet)-1].slo),
		names, labels, values)
	opt.XAxis.Title = "minutes a week"
	return opt
}

func shiftChart(shift []moment) charts.LineChartOption {
	const from, to, step = -0.5, 2.5, 0.05 // seconds
	const n = int((to-from)/step + 1)
	labels := make([]string, n)
	values := [][]float64{make([]float64, n), make([]float64, n), make([]float64, n)}
	for i := range n {
		at := from + float64(i)*step
		labels[i] = fmt.Sprintf("%.1f", at)
		for _, m := range shift {
			if m.second <= at+1e-9 {
				values[1][i], values[2][i] = 100*m.limits[0], 100*m.limits[1]
				values[0][i] = values[1][i] + values[2][i]
			}
		}
	}
	opt := lines("Limits of two brokers (% of the quota) when all traffic moves from one to the other",
		"At second 0, just after a report. Cuts come before raises: the sum never exceeds the quota.",
		[]string{"both", "old broker", "new broker"}, labels, values)
	opt.XAxis.Title = "seconds since the shift"
	opt.XAxis.LabelCount = n/10 + 1
	return opt
}
