//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/cordwood-io/cordwood/bench/logpeers"
	"github.com/cordwood-io/cordwood/log"
)

// What a log of 1 GiB of payload costs to read and to open again.
const (
	gibBytes   = 1 << 30
	gibBatch   = 128 // records of an append
	gibRecords = gibBytes / recordBytes

	// A figure of ours and raw, and all figures of a peer after their first samples, end early.
	gibTime  = 8 * time.Second
	gibPairs = 3
)

// A gibFigure is one of these figures.
type gibFigure struct {
	name    string
	reopens bool // how long it takes in ms; else it is a rate
	cold    bool // pages are dropped before
	pairs   int
}

var gibFigures = []gibFigure{
	{name: "read/warm", pairs: 11},
	{name: "read/warm/records=each", pairs: 7},
	{name: "read/cold", pairs: 9, cold: true},
	{name: "reopen/clean", pairs: 15, reopens: true},
	{name: "reopen/crash", pairs: 9, reopens: true},
}

// A gibStore is 1 GiB in one format.
type gibStore struct {
	dir  string
	read func(figure string) (bytes int64, err error)

	// prepare makes what reopen then opens; not timed. reopen returns how to close.
	prepare func(figure string) error
	reopen  func(figure string) (func() error, error)
}

// run takes one sample of a figure: MB/s, or ms.
func (s *gibStore) run(f gibFigure) (float64, error) {
	if s.prepare != nil {
		if err := s.prepare(f.name); err != nil {
			return 0, err
		}
	}
	if f.cold {
		if err := dropCache(s.dir); err != nil {
			return 0, err
		}
	}
	debug.FreeOSMemory()
	start := time.Now()
	if f.reopens {
		closeIt, err := s.reopen(f.name)
		took := time.Since(start)
		if err == nil {
			err = closeIt()
		}
		return took.Seconds() * 1e3, err
	}
	n, err := s.read(f.name)
	took := time.Since(start)
	if err == nil && n != gibBytes {
		err = fmt.Errorf("%d bytes were read, not %d", n, gibBytes)
	}
	return gibBytes / 1e6 / took.Seconds(), err
}

// gib measures them. Raw and ours are filled once and sampled in turn; each peer is filled, sampled and deleted.
func (b *logBench) gib() (err error) {
	wanted := slices.DeleteFunc(slices.Clone(gibFigures), func(f gibFigure) bool { return !b.want(f.name) })
	if len(wanted) == 0 {
		return nil
	}
	ours, err := b.gibOurs()
	if err != nil {
		return fmt.Errorf("fill ours: %w", err)
	}
	raw, err := b.gibRaw()
	if err != nil {
		return fmt.Errorf("fill raw: %w", err)
	}
	var rows []Row
	for _, f := range wanted {
		calm()
		row := Row{Figure: f.name, Unit: "MB/s", Peers: map[string]float64{}}
		if f.reopens {
			row.Unit = "ms"
		}
		var oursAll, rawAll, ratios []float64
		start := time.Now()
		for i := range f.pairs + 1 {
			if i > gibPairs && time.Since(start) > gibTime {
				break
			}
			var pair [2]float64
			for k := range 2 {
				which := (i + k) % 2
				if pair[which], err = []*gibStore{raw, ours}[which].run(f); err != nil {
					return fmt.Errorf("%s, %s: %w", f.name, []string{"raw", "ours"}[which], err)
				}
			}
			if i > 0 { // the first pair warms up
				rawAll, oursAll, ratios = append(rawAll, pair[0]), append(oursAll, pair[1]), append(ratios, pair[1]/pair[0])
			}
		}
		row.Raw, _ = median(rawAll)
		row.Ours, _ = median(oursAll)
		row.Ratio, row.Spread = median(ratios)
		rows = append(rows, row)
	}
	if err := errors.Join(os.RemoveAll(ours.dir), os.RemoveAll(raw.dir)); err != nil {
		return err
	}
	for _, p := range logpeers.Peers() {
		if p.Read == nil {
			continue
		}
		start := time.Now()
		s, err := b.gibPeer(p)
		for i, f := range wanted {
			var all []float64
			for k := range 3 {
				if k > 0 && time.Since(start) > gibTime || f.name == "read/warm/records=each" {
					break // a peer's read is one of each record anyway
				}
				if err != nil {
					return fmt.Errorf("%s: %w", p.Name, err)
				}
				if f.reopens && p.Reopen == nil {
					continue
				}
				var x float64
				x, err = s.run(f)
				all = append(all, x)
			}
			if len(all) > 0 {
				rows[i].Peers[p.Name], _ = median(all)
			}
		}
		if err := errors.Join(err, os.RemoveAll(s.dir)); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	for _, row := range rows {
		b.emit(row)
	}
	return nil
}

func (b *logBench) gibRaw() (*gibStore, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	r, err := openRaw(dir, false, 0)
	if err != nil {
		return nil, err
	}
	for i := range gibRecords / gibBatch {
		if err := r.append(payloads(gibBatch, i*gibBatch)); err != nil {
			return nil, err
		}
	}
	name := r.f.Name()
	read := func(most int64) (int64, error) {
		f, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		buf := make([]byte, 1<<20)
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(f, most), buf)
		return n, err
	}
	return &gibStore{
		dir:  dir,
		read: func(string) (int64, error) { return read(gibBytes) },
		reopen: func(figure string) (func() error, error) {
			if figure == "reopen/crash" { // reads what may be torn
				if _, err := read(log.DefaultSegmentBytes); err != nil {
					return nil, err
				}
			}
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				return nil, err
			}
			_, err = f.Seek(0, io.SeekEnd)
			return f.Close, err
		},
	}, r.f.Close()
}

// gibOurs fills a log, and beside it keeps the folder of one that crashed with a full active segment.
func (b *logBench) gibOurs() (*gibStore, error) {
	ctx := context.Background()
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	clean, crashed, again := filepath.Join(dir, "clean"), filepath.Join(dir, "crashed"), filepath.Join(dir, "again")
	l, err := log.Open(ctx, clean, log.Options{})
	if err != nil {
		return nil, err
	}
	size := int64(0) // of a batch
	full := func() bool {
		segs := l.Segments()
		return segs[len(segs)-1].Bytes+size > log.DefaultSegmentBytes
	}
	for i := 0; l.End() < gibRecords || !full(); i++ {
		batch, err := builders(1, gibBatch, i*gibBatch)[0]()
		if err != nil {
			return nil, err
		}
		size = int64(len(batch))
		if _, err := l.Write(0, batch); err != nil {
			return nil, err
		}
	}
	if _, err := l.Sync(ctx); err != nil {
		return nil, err
	}
	active := l.Segments()[len(l.Segments())-1].Base
	if err := copyLog(crashed, clean, active); err != nil {
		return nil, err
	}
	if err := l.Close(); err != nil {
		return nil, err
	}
	return &gibStore{
		dir: dir,
		read: func(figure string) (n int64, err error) {
			l, err := log.Open(ctx, clean, log.Options{})
			if err != nil {
				return 0, err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			for off := l.Start(); off < gibRecords; {
				s, err := l.ReadBelow(ctx, off, gibRecords, 1<<20)
				if err != nil {
					return n, err
				}
				for batch, err := range s.Batches() {
					if err != nil {
						return n, err
					}
					if figure != "read/warm/records=each" {
						n += int64(batch.Count()) * recordBytes
						continue
					}
					for r, err := range batch.Records() {
						if err != nil {
							return n, err
						}
						n += int64(len(r.Value))
					}
				}
				off = s.End()
				s.Release()
			}
			return n, nil
		},
		prepare: func(figure string) error {
			if figure != "reopen/crash" {
				return nil
			}
			return errors.Join(os.RemoveAll(again), copyLog(again, crashed, active))
		},
		reopen: func(figure string) (func() error, error) {
			dir := clean
			if figure == "reopen/crash" {
				dir = again
			}
			l, err := log.Open(ctx, dir, log.Options{})
			if err != nil {
				return nil, err
			}
			if r := l.Recovery(); r.Lossy || r.CutBytes > 0 || r.Clean == (dir == again) {
				return nil, fmt.Errorf("recovery: %+v", r)
			}
			return l.Close, nil
		},
	}, nil
}

// copyLog copies a log's folder as a crash would leave it, with everything on disk. Sealed segments, which nobody changes, are linked.
func copyLog(to, from string, active log.Offset) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name := filepath.Join(to, d.Name())
		if strings.HasSuffix(name, ".log") && d.Name() < fmt.Sprintf("%020d", active) {
			return os.Link(p, name)
		}
		in, err := os.Open(p)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.Create(name)
		if err != nil {
			return err
		}
		if _, err = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, make([]byte, 1<<20)); err == nil {
			err = out.Sync()
		}
		return errors.Join(err, out.Close())
	})
}

func (b *logBench) gibPeer(p logpeers.Peer) (*gibStore, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	l, err := p.Open(dir, false)
	if err != nil {
		return nil, err
	}
	for i := range gibRecords / gibBatch {
		if err := l.Append(payloads(gibBatch, i*gibBatch)); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(l.Flush(), l.Close()); err != nil {
		return nil, err
	}
	return &gibStore{
		dir: dir,
		read: func(string) (n int64, err error) {
			err = p.Read(dir, func(rec []byte) { n += int64(len(rec)) })
			return n, err
		},
		prepare: func(figure string) error {
			if figure == "reopen/crash" && p.Crash != nil {
				return p.Crash(dir)
			}
			return nil
		},
		reopen: func(string) (func() error, error) { return p.Reopen(dir) },
	}, nil
}
