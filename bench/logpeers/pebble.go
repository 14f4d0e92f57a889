//go:build linux

package logpeers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/prometheus/client_golang/prometheus"
)

// pebbleRecord is Pebble's write-ahead log writer alone: no keys, no memtable,
// one file that grows.
type pebbleRecord struct {
	w    *record.LogWriter
	sem  chan struct{}
	sync bool
	mu   sync.Mutex // guards buf and the writer's next record
	buf  []byte
}

type noSyncOSFile struct{ *os.File }

func (noSyncOSFile) Sync() error { return nil }

// Append writes the batch as one record of the log, as a Pebble commit does.
func (l *pebbleRecord) Append(recs [][]byte) error {
	if !l.sync {
		_, err := l.w.WriteRecord(l.join(recs))
		return err
	}
	// One lock for the queue, none for the wait, as in Pebble's own commits.
	var wg sync.WaitGroup
	var err error
	l.sem <- struct{}{}
	wg.Add(1)
	l.mu.Lock()
	_, werr := l.w.SyncRecord(l.join(recs), &wg, &err)
	l.mu.Unlock()
	if werr != nil {
		return werr
	}
	wg.Wait()
	return err
}

func (l *pebbleRecord) join(recs [][]byte) []byte {
	b := l.buf[:0]
	for _, r := range recs {
		b = append(b, r...)
	}
	l.buf = b
	return b
}

func (l *pebbleRecord) Flush() error { return l.close() }
func (l *pebbleRecord) Close() error { return l.close() }

func (l *pebbleRecord) close() error {
	if l.w == nil {
		return nil
	}
	err := l.w.Close()
	l.w = nil
	return err
}

const pebbleName = "pebble.log"

var pebbleRecordPeer = Peer{
	Name: "pebble-record",
	Open: func(dir string, sync bool) (Log, error) {
		f, err := os.Create(filepath.Join(dir, pebbleName))
		if err != nil {
			return nil, err
		}
		var w io.Writer = f
		if !sync {
			w = noSyncOSFile{f}
		}
		sem := make(chan struct{}, record.SyncConcurrency)
		return &pebbleRecord{sem: sem, sync: sync, w: record.NewLogWriter(w, 1, record.LogWriterConfig{
			WALFsyncLatency:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x"}),
			QueueSemChan:        sem,
			WriteWALSyncOffsets: func() bool { return true },
		})}, nil
	},
	Read: func(dir string, each func([]byte)) error {
		f, err := os.Open(filepath.Join(dir, pebbleName))
		if err != nil {
			return err
		}
		defer f.Close()
		r := record.NewReader(f, 1)
		var buf bytes.Buffer
		for {
			rec, err := r.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			buf.Reset()
			if _, err := buf.ReadFrom(rec); err != nil {
				return err
			}
			each(buf.Bytes())
		}
	},
	Concurrent: true,
	Buffered:   true,
}

type pebbleDB struct {
	db   *pebble.DB
	wo   *pebble.WriteOptions
	mu   sync.Mutex
	next uint64
}

func (l *pebbleDB) Append(recs [][]byte) error {
	b := l.db.NewBatch()
	defer b.Close()
	l.mu.Lock()
	first := l.next
	l.next += uint64(len(recs))
	l.mu.Unlock()
	var k [8]byte
	for i, r := range recs {
		binary.BigEndian.PutUint64(k[:], first+uint64(i))
		if err := b.Set(k[:], r, nil); err != nil {
			return err
		}
	}
	return b.Commit(l.wo)
}
func (l *pebbleDB) Flush() error { return nil }
func (l *pebbleDB) Close() error { return l.db.Close() }

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(f string, a ...any) {
	panic(fmt.Sprintf(f, a...))
}

func openPebble(dir string) (*pebble.DB, error) {
	return pebble.Open(dir, &pebble.Options{MemTableSize: 64 << 20, Logger: quiet{}})
}

var pebbleDBPeer = Peer{
	Name: "pebble-db",
	Open: func(dir string, sync bool) (Log, error) {
		db, err := openPebble(dir)
		if err != nil {
			return nil, err
		}
		wo := pebble.NoSync
		if sync {
			wo = pebble.Sync
		}
		return &pebbleDB{db: db, wo: wo}, nil
	},
	Read: func(dir string, each func([]byte)) (err error) {
		db, err := openPebble(dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		it, err := db.NewIter(nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, it.Close()) }()
		for ok := it.First(); ok; ok = it.Next() {
			v, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			each(v)
		}
		return it.Error()
	},
	Reopen: func(dir string) (func() error, error) {
		db, err := openPebble(dir)
		if err != nil {
			return nil, err
		}
		return db.Close, nil
	},
	Concurrent: true,
	Buffered:   true,
}
