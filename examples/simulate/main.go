// Command simulate runs experiments on Cordwood's algorithms in models of a cluster, with fixed seeds.
//
//	go run ./examples/simulate -experiment NAME [-json] [-svg FILE] [-full] [-tenants N] [-seed N]
//
// Tables, progress and notes on the method go to standard error. With -json the last line of standard output is one object with the
// figures. With -svg the experiment's plot is written to FILE.
//
// The experiment quotas took 142 s of processor time, shared by all cores. Its long form simulates whole weeks: -full -tenants 20 took 77 s of
// processor time, so that all 10 000 tenants of each population take some eleven hours.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// experiments maps the value of -experiment to its code; each has a file of its own.
var experiments = map[string]func(Run) (map[string]any, error){
	"cells":     cells,
	"demotion":  demotion,
	"expansion": expansion,
	"load":      load,
	"placement": placement,
	"quotas":    quotas,
	"rebalance": rebalance,
}

// Run is what the command line says about one run of an experiment.
type Run struct {
	Seed    uint64    // of every random draw
	Full    bool      // the long form of the experiment
	Tenants int       // in each population of the experiment on quotas; 0 means 10 000
	SVG     string    // file for the plot; empty for none
	Log     io.Writer // tables, progress and notes
}

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

func run(args []string, out, notes io.Writer) error {
	names := make([]string, 0, len(experiments))
	for name := range experiments {
		names = append(names, name)
	}
	slices.Sort(names)

	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	name := flags.String("experiment", "", "one of "+strings.Join(names, ", "))
	asJSON := flags.Bool("json", false, "print the figures as one JSON object")
	svg := flags.String("svg", "", "write the plot to this file")
	full := flags.Bool("full", false, "run the long form")
	tenants := flags.Int("tenants", 0, "tenants in each population of the experiment quotas; 0 means 10 000")
	seed := flags.Uint64("seed", 1, "seed of all random draws")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	experiment := experiments[*name]
	if experiment == nil {
		return fmt.Errorf("unknown experiment %q: use -experiment with one of %s", *name, strings.Join(names, ", "))
	}
	figures, err := experiment(Run{Seed: *seed, Full: *full, Tenants: *tenants, SVG: *svg, Log: notes})
	if err != nil {
		return fmt.Errorf("%s: %w", *name, err)
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(figures)
	}
	return nil
}
