//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cordwood-io/cordwood/log"
)

// logDiskBytes is what the figures need at most of the disk at one time.
const logDiskBytes = 6 << 30

// benchLog measures appends, reads and reopens of log beside raw files and the logs that Go programs embed.
func benchLog(want func(string) bool, emit func(Row)) (err error) {
	dir, err := os.MkdirTemp("", "bench-log-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// Whoever stops the run does not keep its files.
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	unhook := context.AfterFunc(ctx, func() {
		os.RemoveAll(dir) //nolint:errcheck // on the way out
		os.Exit(1)
	})
	defer unhook()
	free, err := (log.OSFS{}).FreeBytes(dir)
	if err != nil {
		return err
	}
	if free < logDiskBytes {
		return fmt.Errorf("%s has %d MiB free, the figures of log need %d", dir, free>>20, logDiskBytes>>20)
	}
	b := &logBench{dir: dir, want: want, emit: emit}
	for _, measure := range []func() error{b.appends, b.groups, b.logs, b.roll, b.allocs, b.gib} {
		if err := measure(); err != nil {
			return err
		}
	}
	return nil
}

// recordBytes is the payload of a record. It is noise, so that nobody gains by compressing.
const recordBytes = 1024

var logNoise = func() []byte {
	b := make([]byte, 4<<20)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b) //nolint:errcheck // never fails
	return b
}()

// payloads returns n records at different places of the noise.
func payloads(n, salt int) [][]byte {
	recs := make([][]byte, n)
	for i := range recs {
		off := ((salt + i) * 4099) % (len(logNoise) - recordBytes)
		recs[i] = logNoise[off : off+recordBytes]
	}
	return recs
}

type logBench struct {
	dir  string
	want func(string) bool
	emit func(Row)
}

// calm waits until what others, and figures before, have left in the page cache is on the disk.
func calm() {
	runtime.GC()
	unix.Sync()
}

// folder makes an empty folder.
func (b *logBench) folder() (string, error) { return os.MkdirTemp(b.dir, "") }

// A side is what appends in a figure: ours, raw, or a peer.
type side struct {
	append  func(writer int) error
	built   func(writer int) error // of ours: append of a batch that is built before
	between func() error           // between two samples, not timed; nil for nothing
	close   func() error
	dir     string
}

func (s *side) end() error { return errors.Join(s.close(), os.RemoveAll(s.dir)) }

// A sample is a time for which one side appends.
type logSample struct {
	mbps    float64
	latency []time.Duration
}

const (
	samplePairs = 27
	sampleTime  = 60 * time.Millisecond
	sampleBytes = 56 << 20 // less than a segment: with it dirty pages stay few

	// On a disk that others keep busy, a figure ends early.
	figureTime = 20 * time.Second
	fewPairs   = 9
)

// run appends by writers goroutines for a while, sampleBytes at most. Each append is of bytes bytes.
func (s *side) run(writers, bytes int, during time.Duration) (logSample, error) {
	if s.between != nil {
		if err := s.between(); err != nil {
			return logSample{}, err
		}
	}
	runtime.GC()
	most := int64(max(10, sampleBytes/bytes))
	each := make([][]time.Duration, writers)
	errs := make([]error, writers)
	for i := range each {
		each[i] = make([]time.Duration, 0, 4096)
	}
	var taken atomic.Int64
	start := time.Now()
	work := func(i int) {
		last := start
		for taken.Add(1) <= most {
			if err := s.append(i); err != nil {
				errs[i] = err
				return
			}
			now := time.Now()
			each[i] = append(each[i], now.Sub(last))
			if last = now; now.Sub(start) > during {
				return
			}
		}
	}
	if writers == 1 {
		work(0)
	} else {
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() { work(i) })
		}
		wg.Wait()
	}
	took := time.Since(start)
	all := slices.Concat(each...)
	return logSample{mbps: float64(len(all)) * float64(bytes) / 1e6 / took.Seconds(), latency: all}, errors.Join(errs...)
}

// quantile returns a quantile of latencies in microseconds.
func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	return float64(all[min(len(all)-1, int(q*float64(len(all))))].Nanoseconds()) / 1e3
}

// compare takes samples of raw and ours in pairs, and of a peer after each.
func compare(name string, writers, bytes int, during time.Duration, ours, raw *side, peers, buffered map[string]*side) (Row, error) {
	row := Row{Figure: name, Unit: "MB/s", Peers: map[string]float64{}, PeersBuffered: map[string]float64{}}
	type other struct {
		name    string
		side    *side
		out     map[string]float64
		samples []float64
	}
	var others []*other
	for name, s := range peers {
		others = append(others, &other{name: name, side: s, out: row.Peers})
	}
	for name, s := range buffered {
		others = append(others, &other{name: name, side: s, out: row.PeersBuffered})
	}
	slices.SortFunc(others, func(a, b *other) int { return cmp.Compare(a.name, b.name) })
	var oursMB, rawMB, ratios []float64
	var oursAll, rawAll []time.Duration
	calm()
	start := time.Now()
	for i := range samplePairs + 1 {
		if i > fewPairs && time.Since(start) > figureTime {
			break
		}
		var pair [2]logSample
		for k := range 2 {
			which := (i + k) % 2 // who goes first changes
			s := []*side{raw, ours}[which]
			var err error
			if pair[which], err = s.run(writers, bytes, during); err != nil {
				return row, fmt.Errorf("%s, %s: %w", name, []string{"raw", "ours"}[which], err)
			}
		}
		if i > 0 { // the first pair warms up
			rawMB, oursMB = append(rawMB, pair[0].mbps), append(oursMB, pair[1].mbps)
			ratios = append(ratios, pair[1].mbps/pair[0].mbps)
			rawAll, oursAll = append(rawAll, pair[0].latency...), append(oursAll, pair[1].latency...)
		}
		if len(others) > 0 {
			o := others[i%len(others)]
			s, err := o.side.run(writers, bytes, during)
			if err != nil {
				return row, fmt.Errorf("%s, %s: %w", name, o.name, err)
			}
			o.samples = append(o.samples, s.mbps)
		}
	}
	row.Ours, _ = median(oursMB)
	row.Raw, _ = median(rawMB)
	row.Ratio, row.Spread = median(ratios)
	for _, o := range others {
		if len(o.samples) > 0 {
			o.out[o.name], _ = median(o.samples)
		}
	}
	slices.Sort(oursAll)
	slices.Sort(rawAll)
	row.P50us, row.P99us, row.RawP99us = quantile(oursAll, .5), quantile(oursAll, .99), quantile(rawAll, .99)
	return row, nil
}
