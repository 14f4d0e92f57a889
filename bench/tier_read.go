package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/time/rate"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
)

const (
	coldBytes   = 256 << 20
	coldSegment = 64 << 20
	coldPairs   = 7
	coldReaders = 64
	coldRate    = 100_000_000 // bytes per second of all readers together
	coldTime    = time.Second // of one sample of the appender
)

// reads measures cold reads.
func (b *tierBench) reads() (rows []Row, err error) {
	sequential, many := "read/cold/sequential", fmt.Sprintf("read/cold/readers=%d", coldReaders)
	if !b.want(sequential) && !b.want(many) {
		return nil, nil
	}
	store, err := b.store("read")
	if err != nil {
		return nil, err
	}
	hot, err := log.Open(b.ctx, filepath.Join(b.dir, "read"), log.Options{SegmentBytes: coldSegment})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, hot.Close()) }()
	events, err := tier.OpenLocalEvents(b.ctx, filepath.Join(b.dir, "read-events"), tier.LocalOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, events.Close()) }()
	// The cache is smaller than what is read, so that each pass asks the store for all.
	t, err := tier.Open(b.ctx, hot, tier.Options{Store: store, Events: events})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	batch := payloads(256, 7) // 256 KiB
	records := make([]log.Record, len(batch))
	for i, p := range batch {
		records[i].Value = p
	}
	for n := 0; n < coldBytes; n += len(batch) * recordBytes {
		if _, err := t.AppendRecords(b.ctx, records...); err != nil {
			return nil, err
		}
	}
	if err := t.Roll(b.ctx); err != nil {
		return nil, err
	}
	for t.Partition().View().TierEnd < hot.End() || hot.LocalStart() < hot.End() {
		if b.ctx.Err() != nil {
			return nil, b.ctx.Err()
		}
		time.Sleep(10 * time.Millisecond)
	}
	if b.want(sequential) {
		row, err := b.sequential(sequential, t)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	if b.want(many) {
		row, err := b.beside(many, t)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// walk reads cold batches from an offset on, up to end, and gives the bytes of each read to took.
func walk(ctx context.Context, p *tier.Partition, from, end log.Offset, took func(n int) error) error {
	for at := from; at < end; {
		s, err := p.Read(ctx, at, 1<<20)
		if err != nil {
			return err
		}
		n := s.Len()
		at = s.End()
		s.Release()
		if err := took(n); err != nil {
			return err
		}
	}
	return nil
}

// sequential is one reader of everything, beside a loop of the client over the same objects in requests of a chunk each.
func (b *tierBench) sequential(figure string, t *tier.Log) (Row, error) {
	core, err := b.raw()
	if err != nil {
		return Row{}, err
	}
	state, _ := t.Partition().State()
	buf := make([]byte, tier.DefaultChunkBytes)
	raw := func() (bytes int64, err error) {
		for _, r := range state.Ranges() {
			name := "read/" + tier.Key{Partition: t.Partition().ID(), Base: r.Base, End: r.End, Epoch: r.Epoch, ID: r.ID}.Path("")
			for at := int64(0); at < r.ObjectBytes; at += tier.DefaultChunkBytes {
				n := min(tier.DefaultChunkBytes, r.ObjectBytes-at)
				var get minio.GetObjectOptions
				if err := get.SetRange(at, at+n-1); err != nil {
					return 0, err
				}
				body, _, _, err := core.GetObject(b.ctx, serverBucket, name, get)
				if err != nil {
					return 0, err
				}
				if _, err := io.ReadFull(body, buf[:n]); err != nil {
					return 0, errors.Join(err, body.Close())
				}
				if err := body.Close(); err != nil {
					return 0, err
				}
				bytes += n
			}
		}
		return bytes, nil
	}
	ours := func() (bytes int64, err error) {
		err = walk(b.ctx, t.Partition(), 0, t.Partition().View().TierEnd, func(n int) error { bytes += int64(n); return nil })
		return bytes, err
	}
	var rates [2][]float64
	var ratios []float64
	for range coldPairs {
		for i, side := range []func() (int64, error){raw, ours} {
			start := time.Now()
			n, err := side()
			if err != nil {
				return Row{}, err
			}
			rates[i] = append(rates[i], float64(n)/1e6/time.Since(start).Seconds())
		}
		ratios = append(ratios, rates[1][len(rates[1])-1]/rates[0][len(rates[0])-1])
	}
	row := Row{Figure: figure, Unit: "MB/s"}
	row.Raw, _ = median(rates[0])
	row.Ours, _ = median(rates[1])
	row.Ratio, row.Spread = median(ratios)
	return row, nil
}

// beside is a log that is appended to, alone and while readers of the cold one are at work.
func (b *tierBench) beside(figure string, t *tier.Log) (row Row, err error) {
	hot, err := log.Open(b.ctx, filepath.Join(b.dir, "hot"), log.Options{})
	if err != nil {
		return Row{}, err
	}
	defer func() { err = errors.Join(err, hot.Close()) }()
	var records []log.Record
	for _, p := range payloads(16, 11) {
		records = append(records, log.Record{Value: p})
	}
	appendFor := func(d time.Duration) (float64, error) {
		segments := hot.Segments() // not to fill the disk, and to write over files that are there
		if err := hot.TrimTo(b.ctx, segments[len(segments)-1].Base); err != nil {
			return 0, err
		}
		n, start := 0, time.Now()
		for time.Since(start) < d {
			if _, err := hot.AppendRecords(b.ctx, records...); err != nil {
				return 0, err
			}
			n += len(records) * recordBytes
		}
		return float64(n) / 1e6 / time.Since(start).Seconds(), nil
	}
	if _, err := appendFor(coldTime); err != nil { // until files are there
		return Row{}, err
	}
	end := t.Partition().View().TierEnd
	var rates [2][]float64
	var ratios, cold []float64
	var most int64
	for range coldPairs {
		alone, err := appendFor(coldTime)
		if err != nil {
			return Row{}, err
		}
		ctx, cancel := context.WithCancel(b.ctx)
		limit := rate.NewLimiter(coldRate, 4<<20)
		var bytes atomic.Int64
		var failed atomic.Pointer[error]
		var wg sync.WaitGroup
		for i := range coldReaders {
			wg.Go(func() {
				for at := end * log.Offset(i) / coldReaders; ctx.Err() == nil; at = 0 {
					err := walk(ctx, t.Partition(), at, end, func(n int) error {
						bytes.Add(int64(n))
						return limit.WaitN(ctx, n)
					})
					if err != nil && ctx.Err() == nil {
						failed.Store(&err)
						return
					}
				}
			})
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				most = max(most, t.Manager().Stats().BytesUnderWay)
				time.Sleep(5 * time.Millisecond)
			}
		})
		start := time.Now()
		both, err := appendFor(coldTime)
		cold = append(cold, float64(bytes.Load())/1e6/time.Since(start).Seconds())
		cancel()
		wg.Wait()
		if e := failed.Load(); e != nil {
			err = errors.Join(err, *e)
		}
		if err != nil {
			return Row{}, err
		}
		rates[0], rates[1] = append(rates[0], alone), append(rates[1], both)
		ratios = append(ratios, both/alone)
	}
	if most > tier.DefaultReadBytes {
		return Row{}, fmt.Errorf("%s: %d bytes under way, the budget is %d", figure, most, tier.DefaultReadBytes)
	}
	read, _ := median(cold)
	row = Row{Figure: figure, Unit: "MB/s", Peers: map[string]float64{"readers together": read, "MB under way at most": float64(most) / 1e6}}
	row.Raw, _ = median(rates[0])
	row.Ours, _ = median(rates[1])
	row.Ratio, row.Spread = median(ratios)
	return row, nil
}
