//go:build linux

package logpeers

import (
	"log/slog"

	"github.com/prometheus/prometheus/tsdb/wlog"
	"github.com/prometheus/prometheus/util/compression"
)

type promLog struct {
	w    *wlog.WL
	sync bool
}

func (l *promLog) Append(recs [][]byte) error {
	if err := l.w.Log(recs...); err != nil {
		return err
	}
	if l.sync {
		return l.w.Sync()
	}
	return nil
}
func (l *promLog) Flush() error { return nil }
func (l *promLog) Close() error { return l.w.Close() }

func openProm(dir string) (*wlog.WL, error) {
	return wlog.New(slog.New(slog.DiscardHandler), nil, dir, compression.None)
}

var promPeer = Peer{
	Name: "prom-wlog",
	Open: func(dir string, sync bool) (Log, error) {
		w, err := openProm(dir)
		if err != nil {
			return nil, err
		}
		return &promLog{w: w, sync: sync}, nil
	},
	Read: func(dir string, each func([]byte)) error {
		sr, err := wlog.NewSegmentsReader(dir)
		if err != nil {
			return err
		}
		defer sr.Close()
		r := wlog.NewReader(sr)
		for r.Next() {
			each(r.Record())
		}
		return r.Err()
	},
	Reopen: func(dir string) (func() error, error) {
		w, err := openProm(dir)
		if err != nil {
			return nil, err
		}
		return w.Close, nil
	},
}
