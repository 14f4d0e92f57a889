package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cordwood-io/cordwood/log"
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
