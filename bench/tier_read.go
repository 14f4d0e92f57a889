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
	coldRead    = 1 << 20     // of one read
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
		s, err := p.Read(ctx, at, coldRead)
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
			name := objectName(t.Partition().ID(), r)
			for at := int64(0); at < r.ObjectBytes; at += tier.DefaultChunkBytes {
				n := min(tier.DefaultChunkBytes, r.ObjectBytes-at)
				if err := b.bareGet(b.ctx, core, name, at, buf[:n]); err != nil {
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
	ours := func(ctx context.Context, i int, wait func(n int) error) error {
		for at := end * log.Offset(i) / coldReaders; ; at = 0 {
			if err := walk(ctx, t.Partition(), at, end, wait); err != nil {
				return err
			}
		}
	}
	core, err := b.raw()
	if err != nil {
		return Row{}, err
	}
	state, _ := t.Partition().State()
	ranges := state.Ranges()
	bare := func(ctx context.Context, i int, wait func(n int) error) error {
		for at := i * len(ranges) * coldSegment / coldReaders; ; at = 0 {
			if err := b.bareWalk(ctx, core, t.Partition().ID(), ranges, int64(at), wait); err != nil {
				return err
			}
		}
	}
	var alones, besides, bares, cold, coldBare, fetched, ratios []float64
	var most int64
	for range coldPairs {
		alone, err := appendFor(coldTime)
		if err != nil {
			return Row{}, err
		}
		var before, after tier.Stats
		both, read, err := b.besideReaders(ours, func() (rate float64, err error) {
			before = t.Manager().Stats()
			rate, err = appendFor(coldTime)
			after = t.Manager().Stats()
			return rate, err
		}, func() { most = max(most, t.Manager().Stats().BytesUnderWay) })
		if err != nil {
			return Row{}, err
		}
		bothBare, readBare, err := b.besideReaders(bare, func() (float64, error) { return appendFor(coldTime) }, func() {})
		if err != nil {
			return Row{}, err
		}
		alones, besides, bares = append(alones, alone), append(besides, both), append(bares, bothBare)
		cold, coldBare = append(cold, read), append(coldBare, readBare)
		fetched = append(fetched, float64(after.FetchBytes-before.FetchBytes)/1e6/coldTime.Seconds())
		ratios = append(ratios, both/alone)
	}
	if most > tier.DefaultReadBytes {
		return Row{}, fmt.Errorf("%s: %d bytes under way, the budget is %d", figure, most, tier.DefaultReadBytes)
	}
	row = Row{Figure: figure, Unit: "MB/s", Peers: map[string]float64{"MB under way at most": float64(most) / 1e6}}
	for name, v := range map[string][]float64{
		"readers together": cold, "of the store": fetched, "appender beside bare readers": bares, "bare readers together": coldBare,
	} {
		row.Peers[name], _ = median(v)
	}
	row.Raw, _ = median(alones)
	row.Ours, _ = median(besides)
	row.Ratio, row.Spread = median(ratios)
	return row, nil
}

// besideReaders runs readers that are held to a rate together, measures beside them once each of them is held, and returns also
// the rate that they had meanwhile. tick is called now and then. A reader calls wait behind each read; read is left with an error
// when ctx ends.
func (b *tierBench) besideReaders(read func(ctx context.Context, i int, wait func(n int) error) error, measure func() (float64, error), tick func()) (measured, together float64, err error) {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	limit := rate.NewLimiter(coldRate, coldRead)
	var bytes, held, under atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for i := range coldReaders {
		wg.Go(func() {
			// The first read is waited for beforehand: so no reader ever has what it has not been granted.
			err := limit.WaitN(ctx, coldRead)
			under.Add(1)
			first := true
			if err == nil {
				err = read(ctx, i, func(n int) error {
					bytes.Add(int64(n))
					if first {
						first = false
						held.Add(1)
					}
					under.Add(-1)
					err := limit.WaitN(ctx, n)
					under.Add(1)
					return err
				})
			}
			if err != nil && ctx.Err() == nil {
				failed.Store(&err)
				cancel()
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			tick()
			time.Sleep(5 * time.Millisecond)
		}
	})
	for held.Load() < coldReaders && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	start, from, granted := time.Now(), bytes.Load(), (4+under.Load())*coldRead // what they had been granted and did not have yet
	if ctx.Err() == nil {
		measured, err = measure()
	}
	n, took := bytes.Load()-from, time.Since(start)
	cancel()
	wg.Wait()
	if e := failed.Load(); e != nil {
		err = errors.Join(err, *e)
	}
	if granted += int64(coldRate * took.Seconds()); err == nil && n > granted {
		err = fmt.Errorf("readers had %d bytes within %v, no more than %d were granted", n, took, granted)
	}
	return measured, float64(n) / 1e6 / took.Seconds(), errors.Join(err, b.ctx.Err())
}

// bareWalk reads the objects of ranges by the bare client, as many bytes in one request as a reader asks for.
func (b *tierBench) bareWalk(ctx context.Context, core *minio.Core, id log.PartitionID, ranges []tier.Range, from int64, took func(n int) error) error {
	buf := make([]byte, coldRead)
	for _, r := range ranges {
		if from >= r.ObjectBytes {
			from -= r.ObjectBytes
			continue
		}
		for at := from; at < r.ObjectBytes; at += coldRead {
			n := int(min(coldRead, r.ObjectBytes-at))
			if err := b.bareGet(ctx, core, objectName(id, r), at, buf[:n]); err != nil {
				return err
			}
			if err := took(n); err != nil {
				return err
			}
		}
		from = 0
	}
	return nil
}

// objectName is the name of a range's object in the bucket.
func objectName(id log.PartitionID, r tier.Range) string {
	return "read/" + tier.Key{Partition: id, Base: r.Base, End: r.End, Epoch: r.Epoch, ID: r.ID}.Path("")
}

// bareGet fills buf from an object by the bare client.
func (b *tierBench) bareGet(ctx context.Context, core *minio.Core, name string, at int64, buf []byte) error {
	var get minio.GetObjectOptions
	if err := get.SetRange(at, at+int64(len(buf))-1); err != nil {
		return err
	}
	body, _, _, err := core.GetObject(ctx, serverBucket, name, get)
	if err != nil {
		return err
	}
	_, err = io.ReadFull(body, buf)
	return errors.Join(err, body.Close())
}
