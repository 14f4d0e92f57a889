package metadata_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/metadata"
)

func options(fs log.FS, cluster, dir metadata.ID) metadata.Options {
	return metadata.Options{FS: fs, Dir: "meta", Cluster: cluster, Self: 1, Directory: dir,
		Voters: []metadata.Voter{{ID: 1}}, Network: network{&world{}, 1}}
}

func BenchmarkOpen(b *testing.B) {
	fs := logtest.NewFS(1)
	o := options(fs, metadata.NewID(), metadata.NewID())
	b.ReportAllocs()
	for b.Loop() {
		s, err := metadata.Open(context.Background(), o)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	fs := logtest.NewFS(1)
	good := options(fs, metadata.NewID(), metadata.NewID())
	s, err := metadata.Open(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := metadata.Open(t.Context(), good); !errors.Is(err, log.ErrLocked) {
		t.Errorf("second open of a folder in use: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	for name, change := range map[string]func(*metadata.Options){
		"another cluster":   func(o *metadata.Options) { o.Cluster = metadata.NewID() },
		"another directory": func(o *metadata.Options) { o.Directory = metadata.NewID() },
		"another broker": func(o *metadata.Options) {
			o.Self, o.Voters = 2, []metadata.Voter{{ID: 2}}
		},
		"another quorum": func(o *metadata.Options) { o.Voters = append(o.Voters, metadata.Voter{ID: 2}, metadata.Voter{ID: 3}) },
	} {
		o := good
		change(&o)
		if s, err := metadata.Open(t.Context(), o); !errors.Is(err, metadata.ErrIdentity) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				s.Close()
			}
		}
	}
	for name, change := range map[string]func(*metadata.Options){
		"no cluster": func(o *metadata.Options) { o.Cluster = metadata.ID{} },
		"no network": func(o *metadata.Options) { o.Network = nil },
		"no disk":    func(o *metadata.Options) { o.FS = nil },
		"no voters":  func(o *metadata.Options) { o.Voters = nil },
		"ticks":      func(o *metadata.Options) { o.ElectionTicks, o.HeartbeatTicks = 2, 3 },
		"session":    func(o *metadata.Options) { o.Session = -1 },
	} {
		o := good
		change(&o)
		if _, err := metadata.Open(t.Context(), o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
