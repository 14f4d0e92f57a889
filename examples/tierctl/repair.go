package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
)

func repairFlags(f *flag.FlagSet, o *options) {
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be done and write nothing")
	f.BoolVar(&o.force, "force", false, "repair although not all nodes are here: the others must never come back with their files of states")
}

// A repaired partition as JSON shows it.
type repaired struct {
	Partition string    `json:"partition"`
	Missing   string    `json:"missing"` // the manifest that can't be read
	Reason    string    `json:"reason"`
	From      string    `json:"from"` // what the state was built from
	Start     int64     `json:"start"`
	TierEnd   int64     `json:"tier_end"`
	Error     string    `json:"error,omitempty"`
	Findings  []finding `json:"findings"`
}

// runRepair gives stopped nodes the states that the tier log does not tell any more.
func runRepair(ctx context.Context, o *options) (_ int, err error) {
	if o.dir == "" {
		return 0, errors.New("repair needs -dir: it is the nodes that are repaired")
	}
	p, err := o.open(ctx, false)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if here, all := p.stopped.Nodes(); here < all && !o.dryRun && !o.force {
		return 0, fmt.Errorf("%d of %d nodes are in %s: what the others know may contradict what is built; bring all, use -dry-run to look, or -force", here, all, o.dir)
	}
	r, err := p.stopped.RepairTier(ctx, p.store, p.prefix, o.dryRun)
	if err != nil {
		return 0, err
	}
	status := statusClean
	out := struct {
		Partitions []repaired `json:"partitions"`
		Written    int        `json:"written"` // files of states
		DryRun     bool       `json:"dry_run"`
	}{[]repaired{}, r.Written, o.dryRun}
	for _, x := range r.Partitions {
		y := repaired{
			Partition: p.name(x.Partition), Missing: x.Missing, Reason: x.Reason.Error(), Start: int64(x.LogStart), TierEnd: int64(x.TierEnd),
			From: sources(x.Kept, x.Manifest, x.Objects), Findings: []finding{},
		}
		if x.Err != nil {
			y.Error = x.Err.Error()
		}
		for _, f := range x.Findings {
			y.Findings = append(y.Findings, p.finding(f))
		}
		if x.Err != nil || len(x.Findings) > 0 || o.dryRun {
			status = statusFindings
		}
		out.Partitions = append(out.Partitions, y)
	}
	if o.json {
		return status, o.print(out)
	}
	for _, x := range out.Partitions {
		if x.Error != "" {
			fmt.Fprintf(o.stdout, "partition %s: %s is lost, and no state could be built, so that nothing was written: %s\n", x.Partition, x.Missing, x.Error)
			continue
		}
		fmt.Fprintf(o.stdout, "partition %s: %s is lost; offsets [%d, %d) by %s\n", x.Partition, x.Missing, x.Start, x.TierEnd, x.From)
		if err := printFindings(o.stdout, x.Findings); err != nil {
			return 0, err
		}
	}
	_, err = fmt.Fprintf(o.stdout, "%d partitions, %d files of states written\n", len(out.Partitions), out.Written)
	return status, err
}

// sources says what something was built from.
func sources(kept bool, manifest string, objects int) string {
	switch {
	case kept && objects == 0:
		return "the state of a node"
	case kept:
		return fmt.Sprintf("an older state of a node and %d objects", objects)
	case manifest != "":
		return fmt.Sprintf("manifest %s and %d objects", manifest, objects)
	}
	return fmt.Sprintf("%d objects", objects)
}
