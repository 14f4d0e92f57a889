package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/dirstore"
	"github.com/cordwood-io/cordwood/tier/s3store"
)

// prefixes are where an owner object is looked for when -prefix is not given: the
// quickstart's, and the top.
var prefixes = []string{"cordwood", ""}

// A place is where a command works.
type place struct {
	store   tier.ObjectStore
	prefix  string
	stopped *cordwood.Stopped // nil without -dir
	close   func() error
}

// open opens what the flags name. writes says whether the command will write to the
// store.
func (o *options) open(ctx context.Context, writes bool) (_ *place, err error) {
	p := &place{close: func() error { return nil }}
	storeDir := o.store
	switch {
	case o.store != "" && o.s3 != "":
		return nil, errors.New("-store and -s3 are both given")
	case o.dir == "" && o.store == "" && o.s3 == "":
		return nil, errors.New("one of -dir, -store and -s3 is needed")
	case o.dir != "" && o.store == "" && o.s3 == "":
		storeDir = filepath.Join(o.dir, "store")
	}
	var nodes []string
	if o.dir != "" {
		if nodes, err = nodeDirs(o.dir); err != nil {
			return nil, err
		}
	}
	if o.s3 != "" {
		so, err := s3store.ParseURL(o.s3)
		if err != nil {
			return nil, err
		}
		so.ReadOnly = !writes
		s, err := s3store.Open(ctx, so)
		if err != nil {
			return nil, err
		}
		p.store, p.close = s, func() error { s.Close(); return nil }
	} else {
		p.store, err = dirstore.Open(filepath.ToSlash(storeDir), dirstore.Options{ReadOnly: !writes})
		if errors.Is(err, fs.ErrNotExist) && o.store == "" {
			return nil, fmt.Errorf("%s is not there: name the store by -store or -s3", storeDir)
		}
		if err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.prefix, err = o.findPrefix(ctx, p.store); err != nil {
		return nil, err
	}
	if o.dir == "" {
		return p, nil
	}
	p.stopped, err = cordwood.OpenStopped(ctx, nodes, cordwood.StoppedOptions{})
	if errors.Is(err, cordwood.ErrDirectoryInUse) {
		return nil, fmt.Errorf("a node of %s runs: stop the cluster first", o.dir)
	}
	if err != nil {
		return nil, err
	}
	closeStore := p.close
	p.close = func() error { return errors.Join(p.stopped.Close(), closeStore()) }
	return p, nil
}

// nodeDirs returns the directories of nodes below dir: those that hold a file called node.
func nodeDirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			continue
		}
		switch fi, err := os.Stat(filepath.Join(name, "node")); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case fi.Mode().IsRegular():
			nodes = append(nodes, filepath.ToSlash(name))
		}
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("%s has no directories of nodes (node1, node2, …): name the one above them", dir)
	}
	return nodes, nil
}

// findPrefix returns the prefix that was given, or where there is an owner object.
func (o *options) findPrefix(ctx context.Context, s tier.ObjectStore) (string, error) {
	if o.prefix != "" {
		p := strings.Trim(o.prefix, "/")
		if p != "" {
			if err := tier.CheckKey(p); err != nil {
				return "", err
			}
		}
		_, err := s.Head(ctx, tier.OwnerKey(p))
		if errors.Is(err, tier.ErrNotFound) {
			err = fmt.Errorf("no cluster has written to this store with prefix %q (no owner object)", o.prefix)
		}
		return p, err
	}
	for _, p := range prefixes {
		_, err := s.Head(ctx, tier.OwnerKey(p))
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, tier.ErrNotFound) {
			return "", err
		}
	}
	return "", errors.New("no cluster has written to this store (no owner object); if this is the directory of a quickstart, name it by -dir; if the keys have a prefix, by -prefix")
}

// name returns how a partition is called: by its topic's name if that is known.
func (p *place) name(id log.PartitionID) string {
	if p.stopped != nil {
		if tenant, name, ok := p.stopped.TopicName(id.Topic); ok {
			if tenant != "" {
				name = tenant + "/" + name
			}
			return fmt.Sprintf("%s-%d", name, id.Index)
		}
	}
	return id.String()
}

// choose returns the chains that -partition names: all of them without it.
func (p *place) choose(chains []*tier.Chain, want string) ([]*tier.Chain, error) {
	var out []*tier.Chain
	var names []string
	for _, c := range chains {
		name := p.name(c.Partition)
		names = append(names, name)
		if want == "" || want == name || want == c.Partition.String() {
			out = append(out, c)
		}
	}
	if len(out) == 0 && want != "" {
		slices.Sort(names)
		return nil, fmt.Errorf("no partition %q in the store; there are: %s", want, strings.Join(names, ", "))
	}
	return out, nil
}
