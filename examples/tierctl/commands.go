package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
)

// A finding as JSON shows it.
type finding struct {
	Kind      string `json:"kind"`
	Partition string `json:"partition"`
	Base      int64  `json:"base"`
	End       int64  `json:"end"`
	Lost      bool   `json:"lost"` // records can't be read
	Key       string `json:"key,omitempty"`
	Bytes     int64  `json:"bytes,omitempty"`
	Detail    string `json:"detail,omitempty"`
}

func (p *place) finding(f tier.Finding) finding {
	out := finding{Kind: f.Kind.String(), Partition: p.name(f.Partition), Base: int64(f.Base), End: int64(f.End), Lost: f.Kind.Loss(), Key: f.Key, Bytes: f.Bytes}
	if f.Err != nil {
		out.Detail = f.Err.Error()
	}
	return out
}

// findings returns what is wrong with a chain, and of what lies below a gap how to come by it.
func (p *place) findings(c *tier.Chain) (list []finding) {
	for _, f := range c.Broken {
		x := p.finding(f)
		if p.cut(c, f) {
			x.Detail = strings.TrimLeft(x.Detail+fmt.Sprintf("; restore -to %d reaches what is below", f.Base), "; ")
		}
		list = append(list, x)
	}
	return list
}

// cut says whether a finding keeps objects below it out of a chain.
func (p *place) cut(c *tier.Chain, f tier.Finding) bool {
	return f.Kind.Loss() && (len(c.Objects) == 0 || f.End <= c.Start()) && slices.ContainsFunc(c.Spare, func(key string) bool {
		k, ok := tier.ParseKey(p.prefix, key)
		return ok && k.End <= f.Base
	})
}

func verdict(findings int) string {
	switch findings {
	case 0:
		return "clean\n"
	case 1:
		return "1 finding\n"
	}
	return fmt.Sprintf("%d findings\n", findings)
}

func printFindings(w io.Writer, findings []finding) error {
	for _, f := range findings {
		words := []string{fmt.Sprintf("%s: partition %s: offsets [%d, %d)", f.Kind, f.Partition, f.Base, f.End)}
		if f.Lost {
			words = append(words, "are lost")
		}
		for _, more := range []string{f.Key, f.Detail} {
			if more != "" {
				words = append(words, more)
			}
		}
		if _, err := fmt.Fprintln(w, strings.Join(words, " ")); err != nil {
			return err
		}
	}
	return nil
}

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

// unreadable reads a chain and returns which of its objects are damaged.
func unreadable(ctx context.Context, p *place, c *tier.Chain) (found []tier.Finding, err error) {
	for from := c.Start(); from < c.End(); {
		err := c.Read(ctx, p.store, from, func([]byte) error { return nil })
		if err == nil {
			return found, nil
		}
		f, ok := damage(c, err)
		if !ok {
			return nil, err
		}
		found = append(found, f)
		from = f.End
	}
	return found, nil
}

// damage returns the finding behind an error of reading a chain, if it is that an object
// is damaged.
func damage(c *tier.Chain, err error) (f tier.Finding, ok bool) {
	corrupt, ok := errors.AsType[*tier.CorruptionError](err)
	if !ok {
		return f, false
	}
	i := slices.IndexFunc(c.Objects, func(b tier.ChainObject) bool { return b.Key == corrupt.Key })
	if i < 0 {
		return f, false
	}
	b := c.Objects[i]
	return tier.Finding{Kind: tier.FindingCorrupt, Partition: c.Partition, Base: b.Base, End: b.End, Key: b.Key, Bytes: b.Bytes, Err: err}, true
}

func (p *place) catalog(ctx context.Context, o *options, below log.Offset) ([]*tier.Chain, error) {
	show, clear := o.bar("read objects")
	defer clear()
	chains, err := tier.Catalog(ctx, tier.CatalogOptions{Store: p.store, Prefix: p.prefix, Below: below, Progress: func(a tier.AuditProgress) { show(int64(a.Checked), int64(a.Total)) }})
	if err == nil && p.stopped != nil && len(chains) > 0 && chains[0].Cluster != tier.ID(p.stopped.Cluster()) {
		err = fmt.Errorf("the store is of cluster %v, and the nodes in %s are of %v: leave out -dir to read the store alone", chains[0].Cluster, o.dir, p.stopped.Cluster())
	}
	return chains, err
}

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

func restoreFlags(f *flag.FlagSet, o *options) {
	f.StringVar(&o.out, "out", "", "`directory` for the restored logs, one below it for each partition")
	f.Func("to", "restore batches that end at or below this `offset` (default: all)", func(s string) (err error) {
		o.to, err = parseOffset(s)
		if err == nil && o.to == 0 {
			err = errors.New("nothing is below it")
		}
		return err
	})
	f.Func("from", "restore records from this `offset` on (default: all)", func(s string) (err error) {
		o.from, err = parseOffset(s)
		return err
	})
	f.Func("as", "give the restored logs this topic `id` (default: their own)", func(s string) (err error) {
		o.as, err = log.ParseTopicID(s)
		return err
	})
	f.StringVar(&o.partition, "partition", "", "restore this `partition` only, as ls names it")
	f.BoolVar(&o.force, "force", false, "restore although a cluster may be at work on the store")
}

// A restored partition as JSON shows it.
type restored struct {
	Partition string `json:"partition"`
	Dir       string `json:"dir"`
	Start     int64  `json:"start"`
	End       int64  `json:"end"`
	Records   int64  `json:"records"`
	Bytes     int64  `json:"bytes"`          // of values
	SHA256    string `json:"content_sha256"` // of the values, each followed by a newline
	Broken    int    `json:"broken"`         // findings of its objects
	From      string `json:"from"`           // what it was restored from
}

// runRestore builds logs from the store alone.
func runRestore(ctx context.Context, o *options) (_ int, err error) {
	if o.out == "" {
		return 0, errors.New("restore needs -out")
	}
	p, err := o.open(ctx, false)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if p.stopped == nil {
		if err := o.leftAlone(ctx, p); err != nil {
			return 0, err
		}
	}
	chains, err := p.catalog(ctx, o, log.Offset(o.to))
	if err == nil {
		chains, err = p.choose(chains, o.partition)
	}
	if err != nil {
		return 0, err
	}
	status := statusClean
	lost, err := o.lost(ctx, p, chains)
	if err != nil {
		return 0, err
	}
	if len(lost) > 0 {
		status = statusFindings
	}
	if err := printFindings(o.stderr, lost); err != nil {
		return 0, err
	}
	out := struct {
		Partitions []restored `json:"partitions"`
		Failed     []finding  `json:"failed"` // of these partitions nothing is restored
	}{[]restored{}, []finding{}}
	defer removeEmpty(missing(o.out))
	var errs []error // no findings
	for _, c := range chains {
		if len(c.Objects) == 0 && len(c.Broken) > 0 {
			continue
		}
		r, err := o.restore(ctx, p, c)
		if ctx.Err() != nil {
			return 0, err
		}
		if err == nil {
			out.Partitions = append(out.Partitions, r)
			continue
		}
		f, found := o.failure(p, c, err)
		if !found {
			errs = append(errs, fmt.Errorf("partition %s: %w", f.Partition, err))
		}
		out.Failed = append(out.Failed, f)
	}
	switch {
	case len(out.Failed) == 0:
	case len(out.Partitions) == 0 && len(errs) == len(out.Failed):
		return 0, errors.Join(errs...)
	default:
		status = statusFindings
		if err := printFindings(o.stderr, out.Failed); err != nil {
			return 0, err
		}
	}
	if len(out.Partitions)+len(out.Failed) == 0 {
		return 0, errors.New("nothing to restore: the store has no object of a partition that can be read")
	}
	if o.json {
		return status, o.print(out)
	}
	if len(out.Partitions) == 0 {
		return status, nil
	}
	t := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "partition\toffsets\trecords\tMB\tsha256 of the values\tdirectory\tfrom")
	for _, r := range out.Partitions {
		fmt.Fprintf(t, "%s\t[%d, %d)\t%d\t%.1f\t%s\t%s\t%s\n", r.Partition, r.Start, r.End, r.Records, float64(r.Bytes)/1e6, r.SHA256, r.Dir, r.From)
	}
	return status, t.Flush()
}

// lost returns what is wrong with the chains, and what the tier log, if it is at hand,
// says was there beside them: the objects alone don't tell that the first or the last are
// missing.
func (o *options) lost(ctx context.Context, p *place, chains []*tier.Chain) (list []finding, err error) {
	chosen := map[log.PartitionID]*tier.Chain{}
	for _, c := range chains {
		chosen[c.Partition] = c
		for _, f := range p.findings(c) {
			if !f.Lost || f.End > o.from {
				list = append(list, f)
			}
		}
	}
	if p.stopped == nil {
		return list, nil
	}
	r, err := tier.Audit(ctx, tier.AuditOptions{
		Store: p.store, Prefix: p.prefix, Cluster: tier.ID(p.stopped.Cluster()), Events: p.stopped.TierEvents(ctx), Deleted: p.stopped.TopicDeleted, Depth: tier.AuditNames,
	})
	if err != nil {
		return nil, fmt.Errorf("compare with the tier log: %w; leave out -dir to restore from the store alone", err)
	}
	for _, f := range r.Findings {
		c := chosen[f.Partition]
		switch {
		case !f.Kind.Loss(), c == nil && o.partition != "":
		case f.End <= log.Offset(o.from), o.to > 0 && f.Base >= log.Offset(o.to): // nobody asked for it
		case c != nil && slices.ContainsFunc(c.Broken, func(b tier.Finding) bool { return b.Base < f.End && b.End > f.Base }):
		default:
			list = append(list, p.finding(f))
		}
	}
	return list, nil
}

// failure says of a partition that it is not restored, and whether that is because an object
// is damaged.
func (o *options) failure(p *place, c *tier.Chain, err error) (_ finding, found bool) {
	f, found := damage(c, err)
	if !found {
		f := finding{Kind: "failed", Partition: p.name(c.Partition), Detail: err.Error()}
		if len(c.Objects) > 0 {
			f.Base, f.End = max(o.from, int64(c.Start())), int64(c.End())
		}
		if o.to > 0 {
			f.End = min(f.End, o.to)
		}
		f.End = max(f.Base, f.End)
		return f, false
	}
	x := p.finding(f)
	x.Detail += "; nothing of the partition is restored"
	if f.Base > c.Start() {
		x.Detail += fmt.Sprintf("; -to %d restores what is below the object", f.Base)
	}
	if f.End < c.End() {
		x.Detail += fmt.Sprintf("; -from %d restores what is above it", f.End)
	}
	return x, true
}

// missing returns the directories that must be made for dir to be there, itself first.
func missing(dir string) (list []string) {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir {
			return list
		}
		list = append(list, dir)
		dir = filepath.Dir(dir)
	}
}

// removeEmpty removes directories, each in the next one, up to the first that is not empty.
func removeEmpty(dirs []string) {
	for _, dir := range dirs {
		if os.Remove(dir) != nil {
			return
		}
	}
}

// unfinished ends the name of a directory that is being restored.
const unfinished = ".unfinished"

func (o *options) restore(ctx context.Context, p *place, c *tier.Chain) (r restored, err error) {
	id := c.Partition
	if o.as != (log.TopicID{}) {
		id.Topic = o.as
	}
	dir := filepath.Join(o.out, id.String())
	switch _, err := os.Stat(dir); {
	case err == nil:
		return r, fmt.Errorf("%s is there already: remove it, or name another -out", dir)
	case !errors.Is(err, fs.ErrNotExist):
		return r, err
	}
	if len(c.Objects) == 0 {
		return r, fmt.Errorf("nothing of what -to asks for is there: all objects begin at or above %d; -partition names one of several", o.to)
	}
	if from, to := max(log.Offset(o.from), c.Start()), log.Offset(o.to); from >= c.End() || to > 0 && from >= to {
		return r, fmt.Errorf("nothing of what -from and -to ask for is there: the store holds [%d, %d) without a gap; -partition names one of several", c.Start(), c.End())
	}
	// It gets its name when it is whole.
	temp := dir + unfinished
	if _, err := os.Stat(temp); err == nil {
		return r, fmt.Errorf("%s is left of a restore that was cut off, or another one is at work: remove it, or name another -out", temp)
	}
	defer func() {
		made := temp
		if err == nil {
			if err = os.Rename(temp, dir); err == nil {
				made = dir
				err = log.OSFS{}.SyncDir(filepath.ToSlash(o.out))
			}
		}
		if err != nil {
			err = errors.Join(err, os.RemoveAll(made))
		}
	}()
	l, err := log.Open(ctx, filepath.ToSlash(temp), log.Options{Partition: id})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	show, clear := o.bar("restore " + p.name(c.Partition))
	_, err = c.Restore(ctx, l, tier.RestoreOptions{
		Store: p.store, From: log.Offset(o.from), To: log.Offset(o.to),
		Progress: func(a tier.RestoreProgress) { show(int64(a.End-c.Start()), int64(c.End()-c.Start())) },
	})
	clear()
	if err != nil {
		return r, err
	}
	r = restored{Partition: p.name(c.Partition), Dir: dir, Start: int64(l.Start()), End: int64(l.End()), Broken: len(c.Broken), From: sources(false, c.Manifest, len(c.Objects))}
	// What counts is what can be read back.
	sum := sha256.New()
	for rec, err := range l.Records(ctx, l.Start()) {
		if err != nil {
			return r, err
		}
		sum.Write(rec.Value)
		sum.Write([]byte{'\n'})
		r.Records++
		r.Bytes += int64(len(rec.Value))
	}
	r.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return r, nil
}

// runList lists what is in the store.
func runList(ctx context.Context, o *options) (_ int, err error) {
	p, err := o.open(ctx, false)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	chains, err := p.catalog(ctx, o, 0)
	if err != nil {
		return 0, err
	}
	type object struct {
		Key    string    `json:"key"`
		Base   int64     `json:"base"`
		End    int64     `json:"end"`
		Epoch  int32     `json:"epoch"`
		Bytes  int64     `json:"bytes"`
		Sealed time.Time `json:"sealed"`
	}
	type chain struct {
		Partition string   `json:"partition"`
		Objects   []object `json:"objects"`
		Spare     []string `json:"spare"`
		Broken    int      `json:"broken"`
	}
	out := struct {
		Cluster    string  `json:"cluster"`
		Prefix     string  `json:"prefix"`
		Partitions []chain `json:"partitions"`
	}{Prefix: p.prefix, Partitions: []chain{}}
	status := statusClean
	for _, c := range chains {
		out.Cluster = c.Cluster.String()
		if len(c.Broken) > 0 {
			status = statusFindings
		}
		x := chain{Partition: p.name(c.Partition), Objects: []object{}, Spare: append([]string{}, c.Spare...), Broken: len(c.Broken)}
		for _, b := range c.Objects {
			x.Objects = append(x.Objects, object{b.Key, int64(b.Base), int64(b.End), int32(b.Epoch), b.Bytes, b.Sealed.UTC()})
		}
		out.Partitions = append(out.Partitions, x)
	}
	if o.json {
		return status, o.print(out)
	}
	t := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "partition\toffsets\tepoch\tbytes\tsealed\tkey")
	for _, c := range out.Partitions {
		for _, b := range c.Objects {
			fmt.Fprintf(t, "%s\t[%d, %d)\t%d\t%d\t%s\t%s\n", c.Partition, b.Base, b.End, b.Epoch, b.Bytes, b.Sealed.Format(time.RFC3339), b.Key)
		}
		if len(c.Spare)+c.Broken > 0 {
			fmt.Fprintf(t, "%s\t%d objects beside these, %d findings: see audit\n", c.Partition, len(c.Spare), c.Broken)
		}
	}
	return status, t.Flush()
}

func catFlags(f *flag.FlagSet, o *options) {
	f.Int64Var(&o.n, "n", 0, "print at most so many `records` (default: all)")
	f.StringVar(&o.partition, "partition", "", "the `partition`, as ls names it; needed if there are several")
}

var errEnough = errors.New("enough")

// runCat prints the values of records in the store, each followed by a newline.
func runCat(ctx context.Context, o *options) (_ int, err error) {
	if o.n < 0 {
		return 0, fmt.Errorf("-n %d is negative", o.n)
	}
	p, err := o.open(ctx, false)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	chains, err := p.catalog(ctx, o, 0)
	if err == nil {
		chains, err = p.choose(chains, o.partition)
	}
	if err != nil {
		return 0, err
	}
	chains = slices.DeleteFunc(chains, func(c *tier.Chain) bool { return len(c.Objects) == 0 })
	switch len(chains) {
	case 0:
		return 0, errors.New("the store has no object of the partition that can be read")
	case 1:
	default:
		return 0, fmt.Errorf("the store has %d partitions: name one by -partition, as ls does", len(chains))
	}
	from := log.Offset(o.offset)
	parts, err := o.parts(ctx, p, chains[0], from)
	if err != nil {
		return 0, err
	}
	w := bufio.NewWriterSize(o.stdout, 1<<20)
	n := int64(0)
	print := func(batches []byte) error {
		for len(batches) > 0 {
			b, rest, err := record.Next(batches, len(batches))
			if err != nil {
				return err
			}
			batches = rest
			if b.IsControl() {
				continue
			}
			for r, err := range b.Records() {
				if err != nil {
					return err
				}
				if r.Offset < from {
					continue
				}
				if _, err := w.Write(append(r.Value, '\n')); err != nil {
					return err
				}
				if n++; n == o.n {
					return errEnough
				}
			}
		}
		return nil
	}
	status := statusClean
	for i, c := range parts {
		if i > 0 {
			from = max(from, c.Start()) // what lies below has been printed
			status = statusFindings
			fmt.Fprintf(o.stderr, "offsets [%d, %d) are lost\n", parts[i-1].End(), c.Start())
		}
		if err = c.Read(ctx, p.store, max(from, c.Start()), print); err != nil {
			break
		}
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return status, cmp.Or(err, w.Flush())
}

// parts returns a partition's chain, and below each gap above from another one, in the
// order of offsets.
func (o *options) parts(ctx context.Context, p *place, c *tier.Chain, from log.Offset) ([]*tier.Chain, error) {
	parts := []*tier.Chain{c}
	for from < c.Start() && slices.ContainsFunc(c.Broken, func(f tier.Finding) bool { return p.cut(c, f) }) {
		chains, err := p.catalog(ctx, o, c.Start())
		if err == nil {
			chains, err = p.choose(chains, c.Partition.String())
		}
		if err != nil {
			return nil, err
		}
		if c = chains[0]; len(c.Objects) == 0 || c.End() > parts[0].Start() {
			break
		}
		parts = slices.Insert(parts, 0, c)
	}
	var holds []string
	for i, c := range parts {
		if from < c.End() && (from >= c.Start() || i == 0 && from == 0) {
			return parts[i:], nil
		}
		holds = append(holds, fmt.Sprintf("[%d, %d)", c.Start(), c.End()))
	}
	return nil, fmt.Errorf("offset %d is not in the store, which holds %s", from, strings.Join(holds, " and "))
}
