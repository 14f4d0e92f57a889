//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cordwood-io/cordwood/bench/logpeers"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// builders makes a batch of the same records again and again, for each writer: what a producer does, and so counts as ours.
func builders(writers, batch, salt int) []func() ([]byte, error) {
	all := make([]func() ([]byte, error), writers)
	at := time.Now()
	for w := range all {
		var b record.Builder
		recs := payloads(batch, salt+w)
		all[w] = func() ([]byte, error) {
			b.Reset()
			for _, r := range recs {
				if err := b.Append(record.Record{Timestamp: at, Value: r}); err != nil {
					return nil, err
				}
			}
			batch, err := b.Build()
			if err != nil {
				return nil, err
			}
			return batch.Bytes(), nil
		}
	}
	return all
}

// batches makes the records of each writer's appends.
func batches(writers, batch int) [][]record.Record {
	all := make([][]record.Record, writers)
	at := time.Now()
	for w := range all {
		for _, p := range payloads(batch, w) {
			all[w] = append(all[w], record.Record{Timestamp: at, Value: p})
		}
	}
	return all
}

// trim deletes all sealed segments, as retention does, so that their files are used again.
func trim(l *log.Log) error {
	segs := l.Segments()
	return l.TrimTo(context.Background(), segs[len(segs)-1].Base)
}

// settleRecords is how many records of recordBytes a batch has that fills a segment before a figure.
const settleRecords = 256

// settle brings a log to where it writes over blocks that were written before: a few segments are filled and deleted.
func settle(l *log.Log) error {
	build := builders(1, settleRecords, 0)[0]
	for l.Stats().Rolls < 4 {
		for range 64 {
			b, err := build()
			if err != nil {
				return err
			}
			if _, err := l.Write(0, b); err != nil {
				return err
			}
		}
		if _, err := l.Sync(context.Background()); err != nil {
			return err
		}
		if err := trim(l); err != nil {
			return err
		}
	}
	return nil
}

// ours opens a log that appends batches of so many records by so many writers.
func (b *logBench) ours(sync bool, writers, batch int, settled bool) (*side, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	l, err := log.Open(context.Background(), filepath.Join(dir, "log"), log.Options{})
	if err != nil {
		return nil, err
	}
	if settled {
		if err := settle(l); err != nil {
			return nil, err
		}
	}
	recs, build := batches(writers, batch), builders(writers, batch, 0)
	ctx := context.Background()
	return &side{
		append: func(w int) (err error) {
			if sync {
				_, err = l.AppendRecords(ctx, recs[w]...)
			} else {
				_, err = l.WriteRecords(0, recs[w]...)
			}
			return err
		},
		built: func(w int) error {
			batch, err := build[w]()
			if err != nil {
				return err
			}
			if sync {
				_, err = l.Append(ctx, batch)
			} else {
				_, err = l.Write(0, batch)
			}
			return err
		},
		between: func() error { return trim(l) },
		close:   l.Close,
		dir:     dir,
	}, nil
}

func (b *logBench) raw(sync bool, writers, batch, fill int) (*side, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	r, err := openRaw(dir, sync, fill)
	if err != nil {
		return nil, err
	}
	recs := make([][][]byte, writers)
	for w := range recs {
		recs[w] = payloads(batch, w)
	}
	s := &side{append: func(int) error { return r.append(recs[0]) }, close: r.f.Close, dir: dir}
	if writers > 1 {
		l := &rawLeader{raw: r}
		s.append = func(w int) error { return l.append(recs[w]) }
	}
	return s, nil
}

// peer opens a peer. One that does not group by itself gets a lock around it, which is what its embedder would write.
func (b *logBench) peer(p logpeers.Peer, durable bool, writers, batch int) (*side, error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	l, err := p.Open(dir, durable)
	if err != nil {
		return nil, err
	}
	recs := make([][][]byte, writers)
	for w := range recs {
		recs[w] = payloads(batch, w)
	}
	var mu sync.Mutex
	return &side{
		append: func(w int) error {
			if writers > 1 && !p.Concurrent {
				mu.Lock()
				defer mu.Unlock()
			}
			return l.Append(recs[w])
		},
		close: l.Close,
		dir:   dir,
	}, nil
}

// closeSides closes what was opened, whatever else went wrong.
func closeSides(err *error, sides ...*side) {
	for _, s := range sides {
		if s != nil {
			if e := s.end(); *err == nil {
				*err = e
			}
		}
	}
}

// figure compares ours, raw and all peers in one kind of append.
func (b *logBench) figure(name string, durable bool, writers, batch int) (row Row, err error) {
	ours, err := b.ours(durable, writers, batch, true)
	if err != nil {
		return Row{}, err
	}
	defer closeSides(&err, ours)
	raw, err := b.raw(durable, writers, batch, fillLarge)
	if err != nil {
		return Row{}, err
	}
	defer closeSides(&err, raw)
	peers, buffered := map[string]*side{}, map[string]*side{}
	for _, p := range logpeers.Peers() {
		s, err := b.peer(p, durable, writers, batch)
		if err != nil {
			return Row{}, fmt.Errorf("%s: %w", p.Name, err)
		}
		defer closeSides(&err, s)
		if p.Buffered && !durable {
			buffered[p.Name] = s
		} else {
			peers[p.Name] = s
		}
	}
	return compare(name, writers, batch*recordBytes, sampleTime, ours, raw, peers, buffered)
}

// appends measures one writer.
func (b *logBench) appends() error {
	for _, durable := range []bool{true, false} {
		for _, batch := range []int{1, 100} {
			name := fmt.Sprintf("append/sync=%v/batch=%d", durable, batch)
			if err := b.one(name, func() (Row, error) { return b.figure(name, durable, 1, batch) }); err != nil {
				return err
			}
			built := name + "/batch=built"
			if err := b.one(built, func() (Row, error) { return b.against(built, durable, batch, fillLarge, true) }); err != nil {
				return err
			}
			alike := name + "/raw=filled-alike"
			if err := b.one(alike, func() (Row, error) { return b.against(alike, durable, batch, fillAlike, false) }); err != nil {
				return err
			}
			if !durable {
				ring := name + "/raw=recycled-alike"
				if err := b.one(ring, func() (Row, error) { return b.ring(ring, batch) }); err != nil {
					return err
				}
			}
			cold := name + "/file=new"
			if err := b.one(cold, func() (Row, error) { return b.cold(cold, durable, batch) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// one measures a figure if it is wanted.
func (b *logBench) one(name string, measure func() (Row, error)) error {
	if !b.want(name) {
		return nil
	}
	calm()
	row, err := measure()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.emit(row)
	return nil
}

// against measures ours beside a raw file that was filled so; ours of records, or of batches that were built outside of the log, as they come
// over a network: what is in them is checked.
func (b *logBench) against(name string, durable bool, batch, fill int, built bool) (row Row, err error) {
	ours, err := b.ours(durable, 1, batch, true)
	if err != nil {
		return Row{}, err
	}
	defer closeSides(&err, ours)
	raw, err := b.raw(durable, 1, batch, fill)
	if err != nil {
		return Row{}, err
	}
	defer closeSides(&err, raw)
	if built {
		ours.append = ours.built
	}
	return compare(name, 1, batch*recordBytes, sampleTime, ours, raw, nil, nil)
}

// ring measures ours without syncs beside raw files that are recycled as ours are.
func (b *logBench) ring(name string, batch int) (row Row, err error) {
	ours, err := b.ours(false, 1, batch, true)
	if err != nil {
		return Row{}, err
	}
	defer closeSides(&err, ours)
	dir, err := b.folder()
	if err != nil {
		return Row{}, err
	}
	r, err := openRing(dir, fillAlike)
	if err != nil {
		return Row{}, err
	}
	recs := payloads(batch, 0)
	raw := &side{append: func(int) error { return r.append(recs) }, close: r.close, dir: dir}
	defer closeSides(&err, raw)
	return compare(name, 1, batch*recordBytes, sampleTime, ours, raw, nil, nil)
}

// cold measures a log that has just been made beside a file that grows. Each sample has new ones.
func (b *logBench) cold(name string, durable bool, batch int) (Row, error) {
	row := Row{Figure: name, Unit: "MB/s", Peers: map[string]float64{}}
	var mbps [2][]float64
	var latency [2][]time.Duration
	var ratios []float64
	for i := range 11 {
		for k := range 2 {
			which := (i + k) % 2
			open := func() (*side, error) { return b.raw(durable, 1, batch, 0) }
			if which == 1 {
				open = func() (*side, error) { return b.ours(durable, 1, batch, false) }
			}
			s, err := open()
			if err != nil {
				return row, err
			}
			sample, err := s.run(1, batch*recordBytes, sampleTime)
			closeSides(&err, s)
			if err != nil {
				return row, err
			}
			mbps[which] = append(mbps[which], sample.mbps)
			latency[which] = append(latency[which], sample.latency...)
		}
		ratios = append(ratios, mbps[1][i]/mbps[0][i])
	}
	row.Raw, _ = median(mbps[0])
	row.Ours, _ = median(mbps[1])
	row.Ratio, row.Spread = median(ratios)
	slices.Sort(latency[0])
	slices.Sort(latency[1])
	row.P50us, row.P99us, row.RawP99us = quantile(latency[1], .5), quantile(latency[1], .99), quantile(latency[0], .99)
	return row, nil
}

// groups measures 64 writers, each waiting for its own record to be durable.
func (b *logBench) groups() error {
	const writers = 64
	name := "append/sync=true/writers=64"
	if err := b.one(name, func() (Row, error) { return b.figure(name, true, writers, 1) }); err != nil {
		return err
	}
	idempotent := name + "/idempotent=true"
	return b.one(idempotent, func() (Row, error) { return b.idempotent(idempotent, writers) })
}

// idempotent gives each writer a producer id and sequence numbers.
func (b *logBench) idempotent(name string, writers int) (row Row, err error) {
	ours, err := b.ours(true, writers, 1, true)
	if err != nil {
		return Row{}, err
	}
	defer closeSides(&err, ours)
	raw, err := b.raw(true, writers, 1, fillLarge)
	if err != nil {
		return Row{}, err
	}
	defer closeSides(&err, raw)
	dir, err := b.folder()
	if err != nil {
		return Row{}, err
	}
	l, err := log.Open(context.Background(), filepath.Join(dir, "log"), log.Options{})
	if err != nil {
		return Row{}, err
	}
	if err := settle(l); err != nil {
		return Row{}, err
	}
	type producer struct {
		record.Builder
		next int32
		recs [][]byte
	}
	producers := make([]producer, writers)
	for w := range producers {
		producers[w].recs = payloads(1, w)
	}
	at := time.Now()
	with := &side{
		append: func(w int) error {
			p := &producers[w]
			p.Reset()
			p.SetProducer(int64(w), 0, p.next)
			p.next++
			if err := p.Append(record.Record{Timestamp: at, Value: p.recs[0]}); err != nil {
				return err
			}
			batch, err := p.Build()
			if err != nil {
				return err
			}
			_, err = l.Append(context.Background(), batch.Bytes())
			return err
		},
		between: func() error { return trim(l) },
		close:   l.Close,
		dir:     dir,
	}
	defer closeSides(&err, with)
	return compare(name, writers, recordBytes, sampleTime, with, raw, map[string]*side{"cordwood without producers": ours}, nil)
}

// logs measures a thousand logs of one disk, each with one append under way. Raw is what makes them durable together at least cost:
// each writes to its own file, unsynced, and all share one file that is synced behind a leader.
func (b *logBench) logs() error {
	const name = "append/sync=true/logs=1000"
	return b.one(name, func() (Row, error) { return b.manyLogs(name, 1000) })
}

func (b *logBench) manyLogs(name string, logs int) (row Row, err error) {
	dir, err := b.folder()
	if err != nil {
		return Row{}, err
	}
	root := filepath.Join(dir, "ours")
	disk, err := log.NewDisk(log.DiskOptions{Dir: root})
	if err != nil {
		return Row{}, err
	}
	all := make([]*log.Log, logs)
	ours := &side{dir: dir, close: func() (err error) {
		var wg sync.WaitGroup
		errs := make([]error, logs)
		for i := range logs {
			wg.Go(func() {
				if all[i] != nil {
					errs[i] = all[i].Close()
				}
			})
		}
		wg.Wait()
		for _, e := range append(errs, disk.Close()) {
			if err == nil {
				err = e
			}
		}
		return err
	}}
	defer closeSides(&err, ours)
	var wg sync.WaitGroup
	errs := make([]error, logs)
	for i := range logs {
		wg.Go(func() {
			all[i], errs[i] = log.Open(context.Background(), filepath.Join(root, fmt.Sprint(i)), log.Options{Disk: disk})
		})
	}
	wg.Wait()
	for _, e := range errs {
		if e != nil {
			return Row{}, e
		}
	}
	recs := batches(logs, 1)
	ours.append = func(w int) error {
		_, err := all[w].AppendRecords(context.Background(), recs[w]...)
		return err
	}
	files, err := openFiles(filepath.Join(dir, "files"), logs)
	if err != nil {
		return Row{}, err
	}
	defer func() {
		if e := files.close(); err == nil {
			err = e
		}
	}()
	journal, err := openRaw(dir, true, fillLarge)
	if err != nil {
		return Row{}, err
	}
	defer journal.f.Close()
	leader := &rawLeader{raw: journal}
	raw := &side{append: func(w int) error {
		if err := files.write(w); err != nil {
			return err
		}
		return leader.append(files.recs[w])
	}}
	fdatasyncs := &side{append: func(w int) error {
		if err := files.write(w); err != nil {
			return err
		}
		return fdatasync(files.f[w])
	}}
	row, err = compare(name, logs, recordBytes, 8*sampleTime, ours, raw, map[string]*side{"fdatasync of each file": fdatasyncs, "syncfs": {append: files.syncfs}}, nil)
	if err != nil {
		return Row{}, err
	}
	perSecond := func(mbps float64) float64 { return mbps * 1e6 / recordBytes }
	row.Unit, row.Ours, row.Raw = "appends/s", perSecond(row.Ours), perSecond(row.Raw)
	for name, mbps := range row.Peers {
		row.Peers[name] = perSecond(mbps)
	}
	return row, nil
}

// rawFiles are the files of raw logs, each appended to at its own position.
type rawFiles struct {
	f    []*os.File
	off  []int64
	recs [][][]byte

	mu   sync.Mutex // guards next
	next chan struct{}
	wr   sync.Mutex
	fail error
}

func openFiles(dir string, n int) (*rawFiles, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	r := &rawFiles{off: make([]int64, n), recs: make([][][]byte, n)}
	for i := range n {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			return nil, err
		}
		r.f = append(r.f, f)
		r.recs[i] = payloads(1, i)
	}
	return r, nil
}

func (r *rawFiles) close() (err error) {
	for _, f := range r.f {
		if e := f.Close(); err == nil {
			err = e
		}
	}
	return err
}

func (r *rawFiles) write(i int) error {
	_, err := r.f[i].WriteAt(r.recs[i][0], r.off[i])
	r.off[i] += recordBytes
	return err
}

// syncfs writes, and makes it durable by a sync of the whole file system that is shared with all that wrote before it began.
func (r *rawFiles) syncfs(i int) error {
	if err := r.write(i); err != nil {
		return err
	}
	r.mu.Lock()
	done := r.next
	lead := done == nil
	if lead {
		done = make(chan struct{})
		r.next = done
	}
	r.mu.Unlock()
	if !lead {
		<-done
		return r.fail
	}
	r.wr.Lock()
	r.mu.Lock()
	r.next = nil
	r.mu.Unlock()
	if err := unix.Syncfs(int(r.f[i].Fd())); err != nil {
		r.fail = err
	}
	r.wr.Unlock()
	close(done)
	return r.fail
}

// roll measures the slowest of the 100 appends around a roll, beside the slowest in a thousand of a raw file.
func (b *logBench) roll() error {
	const name = "append/roll"
	return b.one(name, func() (Row, error) { return b.rolls(name) })
}

func (b *logBench) rolls(name string) (row Row, err error) {
	dir, err := b.folder()
	if err != nil {
		return Row{}, err
	}
	l, err := log.Open(context.Background(), filepath.Join(dir, "log"), log.Options{})
	if err != nil {
		return Row{}, err
	}
	ours := &side{close: l.Close, dir: dir}
	defer closeSides(&err, ours)
	if err := settle(l); err != nil {
		return Row{}, err
	}
	raw, err := b.raw(true, 1, 1, fillLarge)
	if err != nil {
		return Row{}, err
	}
	defer closeSides(&err, raw)
	ctx := context.Background()
	small, large := builders(1, 1, 0)[0], builders(1, 16, 0)[0]
	var oursUS, rawUS, ratios []float64
	for range 15 {
		// Fill the segment but for half of the appends.
		for {
			segs := l.Segments()
			left := log.DefaultSegmentBytes - segs[len(segs)-1].Bytes
			if left < 50*(recordBytes+100) {
				break
			}
			build := large
			if left < 70*(recordBytes+100) {
				build = small
			}
			batch, err := build()
			if err != nil {
				return Row{}, err
			}
			if _, err := l.Write(0, batch); err != nil {
				return Row{}, err
			}
		}
		if err := trim(l); err != nil {
			return Row{}, err
		}
		if _, err := l.Sync(ctx); err != nil {
			return Row{}, err
		}
		rolls := l.Stats().Rolls
		slowest := time.Duration(0)
		for range 100 {
			start := time.Now()
			batch, err := small()
			if err == nil {
				_, err = l.Append(ctx, batch)
			}
			if err != nil {
				return Row{}, err
			}
			slowest = max(slowest, time.Since(start))
		}
		if l.Stats().Rolls != rolls+1 {
			return Row{}, fmt.Errorf("%s: the 100 appends held %d rolls", name, l.Stats().Rolls-rolls)
		}
		var all []time.Duration
		for range 1000 {
			start := time.Now()
			if err := raw.append(0); err != nil {
				return Row{}, err
			}
			all = append(all, time.Since(start))
		}
		slices.Sort(all)
		oursUS, rawUS = append(oursUS, float64(slowest.Nanoseconds())/1e3), append(rawUS, quantile(all, .999))
		ratios = append(ratios, oursUS[len(oursUS)-1]/rawUS[len(rawUS)-1])
	}
	row = Row{Figure: name, Unit: "us", Peers: map[string]float64{}}
	row.Ours, _ = median(oursUS)
	row.Raw, _ = median(rawUS)
	row.Ratio, row.Spread = median(ratios)
	return row, nil
}

// allocs counts allocations of an append.
func (b *logBench) allocs() error {
	const name = "allocs/append"
	return b.one(name, func() (Row, error) { return b.allocations(name) })
}

func (b *logBench) allocations(name string) (row Row, err error) {
	count := func(s *side) (float64, error) {
		for range 200 {
			if err := s.append(0); err != nil {
				return 0, err
			}
		}
		const n = 2000
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range n {
			if err := s.append(0); err != nil {
				return 0, err
			}
		}
		runtime.ReadMemStats(&after)
		return float64((after.Mallocs - before.Mallocs) / n), nil
	}
	row = Row{Figure: name, Unit: "allocations", Peers: map[string]float64{}}
	ours, err := b.ours(true, 1, 100, false)
	if err != nil {
		return Row{}, err
	}
	defer closeSides(&err, ours)
	if row.Ours, err = count(ours); err != nil {
		return Row{}, err
	}
	for _, p := range logpeers.Peers() {
		s, err := b.peer(p, true, 1, 100)
		if err != nil {
			return Row{}, err
		}
		n, err := count(s)
		closeSides(&err, s)
		if err != nil {
			return Row{}, fmt.Errorf("%s: %w", p.Name, err)
		}
		row.Peers[p.Name] = n
	}
	return row, nil
}
