package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
)

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
