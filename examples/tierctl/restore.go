package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
)

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
