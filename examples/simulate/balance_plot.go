package main

import (
	"fmt"
	"math"
	"os"

	"github.com/go-analyze/charts"
)

// plotPanels writes charts below each other. An empty file name writes nothing.
func plotPanels(file string, panels ...charts.LineChartOption) error {
	if file == "" {
		return nil
	}
	const width, height = 900, 430
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: width, Height: height * len(panels)})
	p.FilledRect(0, 0, width, height*len(panels), charts.ColorWhite, charts.ColorWhite, 0)
	layout := p.LayoutByRows()
	for i := range panels {
		layout = layout.Row().Height(fmt.Sprint(height)).Columns(fmt.Sprint(i))
	}
	built, err := layout.Build()
	if err != nil {
		return err
	}
	for i, opt := range panels {
		if err := built[fmt.Sprint(i)].LineChart(opt); err != nil {
			return err
		}
	}
	svg, err := p.Bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(file, svg, 0o644)
}

// chart is a line chart with the given range and format of the vertical axis.
func chart(title, subtitle, horizontal string, names, labels []string, values [][]float64, least, most float64, format string) charts.LineChartOption {
	opt := lines(title, subtitle, names, labels, values)
	opt.XAxis.Title = horizontal
	opt.YAxis = []charts.YAxisOption{{Min: charts.Ptr(least), Max: charts.Ptr(most), LabelCount: 6,
		ValueFormatter: func(v float64) string { return fmt.Sprintf(format, v) }}}
	return opt
}

// dots marks the points of a chart that has few.
func dots(opt charts.LineChartOption) charts.LineChartOption {
	opt.Symbol.Shape = charts.SymbolCircle
	return opt
}

// roundUp returns the next number that ends an axis with five steps well.
func roundUp(x float64) float64 {
	if x <= 0 {
		return 1
	}
	p := math.Pow10(int(math.Floor(math.Log10(x))))
	for _, f := range []float64{1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10} {
		if f*p >= x {
			return f * p
		}
	}
	return 10 * p
}
