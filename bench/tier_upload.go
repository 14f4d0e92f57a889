package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
)

// uploads measures how fast sealed segments of one partition get into the store, beside a loop over the bare client that puts
// objects of the same sizes from memory, one after the other. Ours reads the segments from the log, checks and describes them, and
// commits two events each.
func (b *tierBench) uploads() ([]Row, error) {
	const segment, segments, samples = 16 << 20, 8, 6
	figure := fmt.Sprintf("upload/segment=%dMiB", segment>>20)
	if !b.want(figure) {
		return nil, nil
	}
	core, err := b.raw()
	if err != nil {
		return nil, err
	}
	data := make([]byte, segment+1<<20)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(data)
	var ours, raw, ratios []float64
	for i := range samples {
		sizes, mbps, err := b.uploadLog(i, segment, segments)
		if err != nil {
			return nil, err
		}
		var total int64
		began := time.Now()
		for n, size := range sizes {
			name := fmt.Sprintf("raw-%d/%d", i, n)
			_, err := core.PutObject(b.ctx, serverBucket, name, bytes.NewReader(data[:size]), size, "", "", minio.PutObjectOptions{
				DisableMultipart: true, DisableContentSha256: true,
			})
			if err != nil {
				return nil, err
			}
			total += size
		}
		bare := float64(total) / 1e6 / time.Since(began).Seconds()
		for n := range sizes {
			if err := core.RemoveObject(b.ctx, serverBucket, fmt.Sprintf("raw-%d/%d", i, n), minio.RemoveObjectOptions{}); err != nil {
				return nil, err
			}
		}
		if i == 0 {
			continue // it warms both up
		}
		ours, raw, ratios = append(ours, mbps), append(raw, bare), append(ratios, mbps/bare)
	}
	row := Row{Figure: figure, Unit: "MB/s"}
	row.Ours, _ = median(ours)
	row.Raw, _ = median(raw)
	row.Ratio, row.Spread = median(ratios)
	return []Row{row}, nil
}

// uploadLog fills a log while tiering is paused, and returns the sizes of the objects and how fast they were written then.
func (b *tierBench) uploadLog(sample, segment, segments int) (sizes []int64, mbps float64, err error) {
	dir := filepath.Join(b.dir, fmt.Sprintf("upload-%d", sample))
	store, err := b.store(fmt.Sprintf("upload-%d", sample))
	if err != nil {
		return nil, 0, err
	}
	defer store.Close()
	hot, err := log.Open(b.ctx, filepath.Join(dir, "log"), log.Options{SegmentBytes: int64(segment)})
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, hot.Close()) }()
	events, err := tier.OpenLocalEvents(b.ctx, filepath.Join(dir, "events"), tier.LocalOptions{})
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, events.Close()) }()
	done := make(chan tier.UploadedInfo, 2*segments)
	t, err := tier.Open(b.ctx, hot, tier.Options{
		Store: store, Events: events, Hooks: tier.Hooks{Uploaded: func(i tier.UploadedInfo) { done <- i }},
		Partition: tier.PartitionOptions{LocalRetentionBytes: -1},
	})
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	t.Manager().Pause()
	value := make([]byte, 16<<10)
	r := rand.NewChaCha8([32]byte{2})
	for len(hot.Segments()) <= segments {
		records := make([]record.Record, 16)
		for i := range records {
			_, _ = r.Read(value)
			records[i].Value = bytes.Clone(value)
		}
		if _, err := t.AppendRecords(b.ctx, records...); err != nil {
			return nil, 0, err
		}
	}
	_, ranges := t.Partition().Backlog()
	began := time.Now()
	t.Manager().Resume()
	var total int64
	for range ranges {
		select {
		case i := <-done:
			sizes = append(sizes, i.Bytes)
			total += i.Bytes
		case <-b.ctx.Done():
			return nil, 0, b.ctx.Err()
		}
	}
	mbps = float64(total) / 1e6 / time.Since(began).Seconds()
	var keys []string
	for o, err := range store.List(b.ctx, "", "") {
		if err != nil {
			return nil, 0, err
		}
		keys = append(keys, o.Key)
	}
	for _, d := range store.Delete(b.ctx, keys) {
		err = errors.Join(err, d.Err)
	}
	return sizes, mbps, err
}
