//go:build linux

package logpeers

import (
	"errors"
	"io"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

type etcdLog struct {
	w    *wal.WAL
	next uint64
}

func (l *etcdLog) Append(recs [][]byte) error {
	ents := make([]raftpb.Entry, len(recs))
	ptrs := make([]*raftpb.Entry, len(recs))
	term := uint64(1)
	idx := make([]uint64, len(recs))
	for i, r := range recs {
		idx[i] = l.next + 1 + uint64(i)
		ents[i].Term, ents[i].Index, ents[i].Data = &term, &idx[i], r
		ptrs[i] = &ents[i]
	}
	// The hard state is left out: this is the cheapest call that stores entries.
	if err := l.w.Save(nil, ptrs); err != nil {
		return err
	}
	l.next += uint64(len(recs))
	return nil
}
func (l *etcdLog) Flush() error { return l.w.Sync() }
func (l *etcdLog) Close() error { return l.w.Close() }

// etcd's WAL wants to create its folder itself.
func etcdDir(dir string) string { return filepath.Join(dir, "wal") }

var etcdPeer = Peer{
	Name: "etcd-wal",
	Open: func(dir string, sync bool) (Log, error) {
		w, err := wal.Create(zap.NewNop(), etcdDir(dir), nil)
		if err != nil {
			return nil, err
		}
		if !sync {
			w.SetUnsafeNoFsync()
		}
		return &etcdLog{w: w}, nil
	},
	Read: func(dir string, each func([]byte)) error {
		w, err := wal.OpenForRead(zap.NewNop(), etcdDir(dir), &walpb.Snapshot{})
		if err != nil {
			return err
		}
		_, _, ents, err := w.ReadAll()
		for _, e := range ents {
			each(e.GetData())
		}
		return err
	},
	Reopen: func(dir string) (func() error, error) {
		// As etcd's server does: read everything, and repair once where
		// the end is torn.
		for repaired := false; ; repaired = true {
			w, err := wal.Open(zap.NewNop(), etcdDir(dir), &walpb.Snapshot{})
			if err != nil {
				return nil, err
			}
			_, _, _, err = w.ReadAll()
			if err == nil {
				return w.Close, nil
			}
			w.Close()
			if repaired || !errors.Is(err, io.ErrUnexpectedEOF) || !wal.Repair(zap.NewNop(), etcdDir(dir)) {
				return nil, err
			}
		}
	},
}
