//go:build linux

package logpeers

import (
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// raft-wal always syncs. To see it without, its file system is wrapped in one
// whose files don't.
type noSyncVFS struct{ types.VFS }

type noSyncFile struct{ types.WritableFile }

func (noSyncFile) Sync() error { return nil }

func (v noSyncVFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := v.VFS.Create(dir, name, size)
	return noSyncFile{f}, err
}

func (v noSyncVFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := v.VFS.OpenWriter(dir, name)
	return noSyncFile{f}, err
}

type raftLog struct {
	w    *wal.WAL
	next uint64
	logs []*raft.Log
}

func (l *raftLog) Append(recs [][]byte) error {
	l.logs = l.logs[:0]
	for i, r := range recs {
		l.logs = append(l.logs, &raft.Log{Index: l.next + 1 + uint64(i), Term: 1, Data: r})
	}
	if err := l.w.StoreLogs(l.logs); err != nil {
		return err
	}
	l.next += uint64(len(recs))
	return nil
}
func (l *raftLog) Flush() error { return nil }
func (l *raftLog) Close() error { return l.w.Close() }

func openRaftWAL(dir string, sync bool) (*wal.WAL, error) {
	var vfs types.VFS = fs.New()
	if !sync {
		vfs = noSyncVFS{vfs}
	}
	return wal.Open(dir, wal.WithLogger(hclog.NewNullLogger()),
		wal.WithSegmentFiler(segment.NewFiler(dir, vfs)))
}

var raftWALPeer = Peer{
	Name: "raft-wal",
	Open: func(dir string, sync bool) (Log, error) {
		w, err := openRaftWAL(dir, sync)
		if err != nil {
			return nil, err
		}
		return &raftLog{w: w}, nil
	},
	Read: func(dir string, each func([]byte)) error {
		w, err := openRaftWAL(dir, true)
		if err != nil {
			return err
		}
		defer w.Close()
		first, _ := w.FirstIndex()
		last, _ := w.LastIndex()
		var l raft.Log
		for i := first; i <= last; i++ {
			if err := w.GetLog(i, &l); err != nil {
				return err
			}
			each(l.Data)
		}
		return nil
	},
	Reopen: func(dir string) (func() error, error) {
		w, err := openRaftWAL(dir, true)
		if err != nil {
			return nil, err
		}
		return w.Close, nil
	},
}
