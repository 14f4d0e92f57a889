//go:build linux

package logpeers

import "github.com/tidwall/wal"

type tidwallLog struct {
	l    *wal.Log
	b    wal.Batch
	next uint64
}

func (l *tidwallLog) Append(recs [][]byte) error {
	l.b.Clear()
	for i, r := range recs {
		l.b.Write(l.next+1+uint64(i), r)
	}
	if err := l.l.WriteBatch(&l.b); err != nil {
		return err
	}
	l.next += uint64(len(recs))
	return nil
}
func (l *tidwallLog) Flush() error { return nil }
func (l *tidwallLog) Close() error { return l.l.Close() }

func tidwallOptions(sync bool) *wal.Options {
	o := *wal.DefaultOptions
	o.NoSync = !sync
	o.NoCopy = true
	return &o
}

var tidwallPeer = Peer{
	Name: "tidwall",
	Open: func(dir string, sync bool) (Log, error) {
		l, err := wal.Open(dir, tidwallOptions(sync))
		if err != nil {
			return nil, err
		}
		return &tidwallLog{l: l}, nil
	},
	Read: func(dir string, each func([]byte)) error {
		l, err := wal.Open(dir, tidwallOptions(false))
		if err != nil {
			return err
		}
		defer l.Close()
		first, _ := l.FirstIndex()
		last, _ := l.LastIndex()
		for i := first; i <= last; i++ {
			b, err := l.Read(i)
			if err != nil {
				return err
			}
			each(b)
		}
		return nil
	},
	Reopen: func(dir string) (func() error, error) {
		l, err := wal.Open(dir, tidwallOptions(false))
		if err != nil {
			return nil, err
		}
		return l.Close, nil
	},
}
