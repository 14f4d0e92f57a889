// Command bench measures the packages of Cordwood beside their peers.
//
//	go run . PACKAGE [-json] [-figure PATTERN]
//
// Each package has a file of its own and one line in the table below. A row holds one figure: ours, the raw cost of the same work
// without us where that means anything, their ratio, the spread of our samples and what peers need for it in the same run. Samples
// of ours and of the peers are taken in turn, so that a change of the machine's speed hits both. PATTERN is a regular expression;
// only figures that it matches are printed, and, where a package can tell them apart beforehand (log), measured.
//
// The figures of log need Linux, a real disk under the folder for temporary files, which TMPDIR names, and 6 GiB of it; all is
// deleted at the end. Their ratio is the median of the ratios of pairs of samples, raw and ours, and the spread is that of these
// ratios. Raw is the same bytes in files in the same state: blocks that were written before (a recycled file), or a file that
// grows (file=new). Peers that acknowledge bytes while these are still in the process stand apart.
//
// The figures of tier need a local disk for 2 GiB and the client of a Go module proxy: a server of the S3 protocol is built and run
// on the loopback interface, beside the bench on the same processors. Raw is a loop over the bare client, one request after the
// other, with raw=checksum one that sends the headers that we send; for read/cold/readers it is the same appender alone, the
// readers together being held to 100 MB/s from the moment on when each of them waits for its share.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// suites maps the first argument to a package's measurements.
var suites = map[string]suite{
	"balance": all(benchBalance),
	"log":     benchLog,
	"quota":   all(benchQuota),
	"tier":    atEnd(benchTier),
}

// A suite measures the figures that are wanted and hands each to emit as soon as it is known.
type suite func(want func(figure string) bool, emit func(Row)) error

// atEnd is a suite whose figures are known together.
func atEnd(measure func(want func(string) bool) ([]Row, error)) suite {
	return func(want func(string) bool, emit func(Row)) error {
		rows, err := measure(want)
		for _, r := range rows {
			emit(r)
		}
		return err
	}
}

// all is the suite of measurements that are always made together.
func all(measure func() ([]Row, error)) suite {
	return atEnd(func(want func(string) bool) ([]Row, error) {
		rows, err := measure()
		return slices.DeleteFunc(rows, func(r Row) bool { return !want(r.Figure) }), err
	})
}

// Row is one measured figure.
type Row struct {
	Figure string             `json:"figure"` // what was measured, as key=value where it has parameters
	Unit   string             `json:"unit"`   // of Ours, Raw and Peers
	Ours   float64            `json:"ours"`   // median of our samples
	Raw    float64            `json:"raw"`    // median of the same work done without us
	Ratio  float64            `json:"ratio"`  // Ours/Raw, or ours over the first peer where there is no Raw
	Spread float64            `json:"spread"` // (max-min)/median of our samples, or of the ratios of pairs
	Peers  map[string]float64 `json:"peers"`  // medians of peers

	// PeersBuffered are medians of peers that promise less: what they have acknowledged may still be in the process.
	PeersBuffered map[string]float64 `json:"peers_buffered,omitempty"`

	// Latencies of one call in microseconds, where calls are measured one by one.
	P50us    float64 `json:"p50_us,omitempty"`
	P99us    float64 `json:"p99_us,omitempty"`
	RawP99us float64 `json:"raw_p99_us,omitempty"`
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
		return fmt.Errorf("usage: go run . %s [-json] [-figure PATTERN]", strings.Join(names, "|"))
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "print one JSON object a line")
	pattern := flags.String("figure", "", "measure only figures that match this regular expression")
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	figure, err := regexp.Compile(*pattern)
	if err != nil {
		return err
	}
	if *asJSON {
		enc := json.NewEncoder(out)
		var failed error
		err := suites[args[0]](figure.MatchString, func(r Row) { failed = errors.Join(failed, enc.Encode(r)) })
		return errors.Join(err, failed)
	}
	table := tabwriter.NewWriter(out, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "figure\tours\traw\tratio\tspread\tunit\tp50/p99/raw p99 us\tpeers")
	err = suites[args[0]](figure.MatchString, func(r Row) { r.line(table) })
	return errors.Join(err, table.Flush())
}

// line prints the row as one of a table.
func (r Row) line(table io.Writer) {
	latency := ""
	if r.P99us > 0 {
		latency = fmt.Sprintf("%.3g/%.3g/%.3g", r.P50us, r.P99us, r.RawP99us)
	}
	fmt.Fprintf(table, "%s\t%.4g\t%.4g\t%.3g\t%.0f%%\t%s\t%s\t%s", r.Figure, r.Ours, r.Raw, r.Ratio, 100*r.Spread, r.Unit, latency, peers(r.Peers))
	if len(r.PeersBuffered) > 0 {
		fmt.Fprintf(table, "; buffered: %s", peers(r.PeersBuffered))
	}
	fmt.Fprintln(table)
}

// peers formats the figures of peers, in order.
func peers(all map[string]float64) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, fmt.Sprintf("%s %.4g", name, all[name]))
	}
	return strings.Join(out, ", ")
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
