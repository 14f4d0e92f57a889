package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/cordwood-io/cordwood/tier"
)

func auditFlags(f *flag.FlagSet, o *options) {
	f.StringVar(&o.depth, "depth", "bytes", "how much to read of each object: `names`, tails or bytes")
}

// runAudit compares tier log and store.
func runAudit(ctx context.Context, o *options) (_ int, err error) {
	depth, ok := map[string]tier.AuditDepth{"names": tier.AuditNames, "tails": tier.AuditTails, "bytes": tier.AuditBytes}[o.depth]
	if !ok {
		return 0, fmt.Errorf("-depth %q is none of names, tails and bytes", o.depth)
	}
	p, err := o.open(ctx, false)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if p.stopped == nil {
		return auditAlone(ctx, o, p, depth)
	}
	show, clear := o.bar("audit")
	r, err := tier.Audit(ctx, tier.AuditOptions{
		Store: p.store, Prefix: p.prefix, Cluster: tier.ID(p.stopped.Cluster()), Events: p.stopped.TierEvents(ctx), Deleted: p.stopped.TopicDeleted, Depth: depth,
		Progress: func(a tier.AuditProgress) { show(int64(a.Checked), int64(a.Total)) },
	})
	clear()
	if err != nil {
		return 0, err
	}
	out := struct {
		Partitions int       `json:"partitions"`
		Ranges     int       `json:"ranges"`
		Objects    int       `json:"objects"`
		Bytes      int64     `json:"bytes"`
		Pending    int       `json:"pending"`
		Backup     int       `json:"backup"` // ranges that were deleted and are kept a while
		Events     int       `json:"events"`
		Clean      bool      `json:"clean"`
		Findings   []finding `json:"findings"`
	}{r.Partitions, r.Ranges, r.Objects, r.Bytes, r.Pending, r.Backup, r.Events, r.Clean(), []finding{}}
	for _, f := range r.Findings {
		out.Findings = append(out.Findings, p.finding(f))
	}
	if o.json {
		err = o.print(out)
	} else {
		_, err = fmt.Fprintf(o.stdout, "%d partitions, %d ranges with %.1f MB of records in %d objects, %d unfinished uploads or deletions, %d events\n%s",
			r.Partitions, r.Ranges, float64(r.Bytes)/1e6, r.Objects, r.Pending, r.Events, verdict(len(r.Findings)))
		err = errors.Join(err, printFindings(o.stdout, out.Findings))
	}
	if err != nil || r.Clean() {
		return statusClean, err
	}
	return statusFindings, nil
}

// auditAlone checks what the objects say of themselves.
func auditAlone(ctx context.Context, o *options, p *place, depth tier.AuditDepth) (int, error) {
	chains, err := p.catalog(ctx, o, 0)
	if err != nil {
		return 0, err
	}
	out := struct {
		Partitions int       `json:"partitions"`
		Objects    int       `json:"objects"`
		Spare      int       `json:"spare"`
		Clean      bool      `json:"clean"`
		Findings   []finding `json:"findings"`
	}{Partitions: len(chains), Findings: []finding{}}
	for _, c := range chains {
		out.Objects += len(c.Objects)
		out.Spare += len(c.Spare)
		out.Findings = append(out.Findings, p.findings(c)...)
		if depth == tier.AuditBytes && len(c.Objects) > 0 {
			found, err := unreadable(ctx, p, c)
			if err != nil {
				return 0, err
			}
			for _, f := range found {
				out.Findings = append(out.Findings, p.finding(f))
			}
		}
	}
	out.Clean = len(out.Findings) == 0
	if o.json {
		err = o.print(out)
	} else {
		_, err = fmt.Fprintf(o.stdout, "%d partitions, %d objects in their chains, %d beside; without -dir it is not known what was deleted, nor what there was above and below\n%s",
			out.Partitions, out.Objects, out.Spare, verdict(len(out.Findings)))
		err = errors.Join(err, printFindings(o.stdout, out.Findings))
	}
	if err != nil || out.Clean {
		return statusClean, err
	}
	return statusFindings, nil
}
