package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/cordwood-io/cordwood/tier"
)

func sweepFlags(f *flag.FlagSet, o *options) {
	f.BoolVar(&o.dryRun, "dry-run", false, "find and delete nothing")
	f.DurationVar(&o.minAge, "min-age", tier.DefaultSweepAge, "spare objects younger than this `age`")
	f.BoolVar(&o.force, "force", false, "sweep although a cluster may be at work on the store")
}

// runSweep deletes what no tier log knows.
func runSweep(ctx context.Context, o *options) (_ int, err error) {
	if o.dir == "" {
		return 0, errors.New("sweep needs -dir: only the tier log knows which objects are nobody's")
	}
	if o.minAge < 0 {
		return 0, fmt.Errorf("-min-age %v is negative", o.minAge)
	}
	p, err := o.open(ctx, !o.dryRun)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if here, all := p.stopped.TierReplicas(); here < all && !o.dryRun {
		return 0, fmt.Errorf("%d of %d replicas of the tier log are in %s: the others may know objects that these do not; use -dry-run to look", here, all, o.dir)
	}
	// The directories may be a copy, and the cluster at work elsewhere: then what it has
	// uploaded since would look like orphans. Of a store that is in them there is a copy too.
	if !o.dryRun && (o.store != "" || o.s3 != "") {
		if err := o.leftAlone(ctx, p); err != nil {
			return 0, err
		}
	}
	known, err := p.stopped.TierKnows(ctx)
	if err != nil {
		return 0, err
	}
	audit, err := tier.Audit(ctx, tier.AuditOptions{Store: p.store, Prefix: p.prefix, Cluster: tier.ID(p.stopped.Cluster()), Events: p.stopped.TierEvents(ctx), Deleted: p.stopped.TopicDeleted})
	if err != nil {
		return 0, err
	}
	age := o.minAge
	if age == 0 {
		age = -1
	}
	r, err := tier.SweepStopped(ctx, p.store, p.prefix, audit, known, tier.SweepOptions{DryRun: o.dryRun, MinAge: age})
	if err != nil {
		return 0, err
	}
	type object struct {
		Key   string `json:"key"`
		Bytes int64  `json:"bytes"`
		Error string `json:"error,omitempty"`
	}
	out := struct {
		Listed  int      `json:"listed"`
		Orphans []object `json:"orphans"`
		Young   int      `json:"young"`
		Bytes   int64    `json:"bytes"`
		Deleted int      `json:"deleted"`
		Failed  int      `json:"failed"`
		DryRun  bool     `json:"dry_run"`
	}{r.Listed, []object{}, r.Young, r.Bytes, r.Deleted, len(r.Failed), o.dryRun}
	failed := map[string]error{}
	for _, d := range r.Failed {
		failed[d.Key] = d.Err
	}
	for _, info := range r.Orphans {
		x := object{Key: info.Key, Bytes: info.Size}
		if err := failed[info.Key]; err != nil {
			x.Error = err.Error()
		}
		out.Orphans = append(out.Orphans, x)
	}
	if o.json {
		err = o.print(out)
	} else {
		for _, x := range out.Orphans {
			fmt.Fprintln(o.stdout, x.Key, x.Bytes, x.Error)
		}
		_, err = fmt.Fprintf(o.stdout, "%d objects, %d orphans with %d bytes, %d younger than %v spared, %d deleted, %d failed\n",
			out.Listed, len(out.Orphans), out.Bytes, out.Young, o.minAge, out.Deleted, out.Failed)
	}
	if err != nil || len(r.Failed) == 0 && (!o.dryRun || len(r.Orphans) == 0) {
		return statusClean, err
	}
	return statusFindings, nil
}

// leftAlone returns an error if a cluster may be at work on the store.
func (o *options) leftAlone(ctx context.Context, p *place) error {
	at, ok, err := tier.LastWriter(ctx, p.store, p.prefix)
	if err != nil {
		return err
	}
	if age := time.Since(at); ok && age < tier.WriterLease && !o.force {
		return fmt.Errorf("a cluster was at work on this store %v ago: stop it and wait until %v have passed, or use -force", age.Round(time.Second), tier.WriterLease)
	}
	return nil
}
