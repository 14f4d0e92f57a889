// Command bench measures the packages of Cordwood beside their peers.
//
//	go run . PACKAGE [-json]
//
// Each package has a file of its own and one line in the table below. A row holds one figure: ours, the raw cost of the same work
// without us where that means anything, their ratio, the spread of our samples and what peers need for it in the same run. Samples
// of ours and of the peers are taken in turn, so that a change of the machine's speed hits both.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// suites maps the first argument to a package's measurements.
var suites = map[string]func() ([]Row, error){
	"balance": benchBalance,
	"quota":   benchQuota,
}

// Row is one measured figure.
type Row struct {
	Figure string             `json:"figure"` // what was measured, as key=value where it has parameters
	Unit   string             `json:"unit"`   // of Ours, Raw and Peers
	Ours   float64            `json:"ours"`   // median of our samples
	Raw    float64            `json:"raw"`    // median of the same work done without us
	Ratio  float64            `json:"ratio"`  // Ours/Raw, or ours over the first peer where there is no Raw
	Spread float64            `json:"spread"` // (max-min)/median of our samples
	Peers  map[string]float64 `json:"peers"`  // medians of peers
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 || suites[args[0]] == nil {
		names := make([]string, 0, len(suites))
		for name := range suites {
			names = append(names, name)
		}
		slices.Sort(names)
		return fmt.Errorf("usage: go run . %s [-json]", strings.Join(names, "|"))
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "print one JSON object a line")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	rows, err := suites[args[0]]()
	if err != nil {
		return err
	}
	if *asJSON {
		enc := json.NewEncoder(out)
		for _, row := range rows {
			if err := enc.Encode(row); err != nil {
				return err
			}
		}
		return nil
	}
	table := tabwriter.NewWriter(out, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "figure\tours\traw\tratio\tspread\tunit\tpeers")
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%.4g\t%.4g\t%.3g\t%.0f%%\t%s\t%v\n", r.Figure, r.Ours, r.Raw, r.Ratio, 100*r.Spread, r.Unit, r.Peers)
	}
	return table.Flush()
}

// median returns the median of samples and their spread, (max-min)/median.
func median(samples []float64) (mid, spread float64) {
	s := slices.Sorted(slices.Values(samples))
	mid = s[len(s)/2]
	if mid != 0 {
		spread = (s[len(s)-1] - s[0]) / mid
	}
	return mid, spread
}
