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
		if err := drawChart(built[fmt.Sprint(i)], opt); err != nil {
			return err
		}
	}
	svg, err := p.Bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(file, svg, 0o644)
}

// drawChart draws a chart with its title and subtitle on the left: the package would put one right under the other, centred.
func drawChart(p *charts.Painter, opt charts.LineChartOption) error {
	dark := charts.FontStyle{FontSize: 15, FontColor: charts.Color{R: 0x22, G: 0x22, B: 0x22, A: 0xff}}
	light := charts.FontStyle{FontSize: 11, FontColor: charts.Color{R: 0x55, G: 0x55, B: 0x55, A: 0xff}}
	opt.Title.Show = new(false)
	if err := p.LineChart(opt); err != nil { // paints the background, too
		return err
	}
	p.Text(opt.Title.Text, 20, 34, 0, dark)
	p.Text(opt.Title.Subtext, 20, 55, 0, light)
	return nil
}

// chart is a line chart with a vertical axis from least to most in steps.
func chart(title, subtitle, horizontal string, names, labels []string, values [][]float64, least, most, step float64, format string) charts.LineChartOption {
	opt := lines(title, subtitle, names, labels, values)
	opt.XAxis.Title = horizontal
	opt.YAxis = []charts.YAxisOption{{Min: new(least), Max: new(most), LabelCount: int(math.Round((most-least)/step)) + 1,
		ValueFormatter: func(v float64) string { return fmt.Sprintf(format, v) }}}
	return opt
}

// dots marks the points of a chart that has few.
func dots(opt charts.LineChartOption) charts.LineChartOption {
	opt.Symbol.Shape = charts.SymbolCircle
	return opt
}

// upTo returns the end of an axis from 0 that holds x, and its step.
func upTo(x float64) (most, step float64) {
	if !(x > 0) {
		return 1, .2
	}
	p := math.Pow10(int(math.Floor(math.Log10(x))))
	for _, f := range []float64{1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10} {
		if f*p >= x {
			return f * p, f * p / 5
		}
	}
	return 10 * p, 2 * p
}
