package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
)

// uploads measures how fast sealed segments of one partition get into the store, beside loops over the bare client that put
// objects of the same sizes from memory, one after the other: plain ones, and with the headers that ours have, a checksum among
// them, for which the server computes another than it would without. Ours reads the segments from the log, checks and describes
// them, and commits two events each.
func (b *tierBench) uploads() ([]Row, error) {
	const segment, segments, samples = 16 << 20, 8, 9
	figure := fmt.Sprintf("upload/segment=%dMiB", segment>>20)
	same := figure + "/raw=checksum"
	if !b.want(figure) && !b.want(same) {
		return nil, nil
	}
	var ours []float64
	raw, ratios := map[string][]float64{}, map[string][]float64{}
	for i := range samples {
		sizes, mbps, err := b.uploadLog(i, segment, segments)
		if err != nil {
			return nil, err
		}
		bare := map[string]float64{}
		for _, name := range []string{figure, same} {
			if err := b.warm(segment, segments); err != nil {
				return nil, err
			}
			if bare[name], err = b.bareUploads(fmt.Sprintf("raw-%d", i), sizes, name == same); err != nil {
				return nil, err
			}
		}
		if i == 0 {
			continue // it warms all up
		}
		ours = append(ours, mbps)
		for name, v := range bare {
			raw[name], ratios[name] = append(raw[name], v), append(ratios[name], mbps/v)
		}
	}
	var rows []Row
	for _, name := range []string{figure, same} {
		if !b.want(name) {
			continue
		}
		row := Row{Figure: name, Unit: "MB/s"}
		row.Ours, _ = median(ours)
		row.Raw, _ = median(raw[name])
		row.Ratio, row.Spread = median(ratios[name])
		rows = append(rows, row)
	}
	return rows, nil
}

// warm puts objects and deletes them, before each measurement: the server writes to files, and pages that have just become free
// are had in a fraction of the time of those that nobody has used for long. So no measurement gets those of the one before.
func (b *tierBench) warm(segment, segments int) error {
	sizes := make([]int64, segments)
	for i := range sizes {
		sizes[i] = int64(segment)
	}
	_, err := b.bareUploads("warm", sizes, false)
	return err
}

// bareUploads returns how fast objects are put from memory by the bare client, in MB/s, and deletes them.
func (b *tierBench) bareUploads(prefix string, sizes []int64, checksum bool) (float64, error) {
	core, err := b.raw()
	if err != nil {
		return 0, err
	}
	if int64(len(b.data)) < slices.Max(sizes) {
		b.data = make([]byte, slices.Max(sizes)+1<<20)
		r := rand.NewChaCha8([32]byte{1})
		_, _ = r.Read(b.data)
	}
	var total int64
	var took time.Duration
	for n, size := range sizes {
		data := b.data[:size]
		o := minio.PutObjectOptions{DisableMultipart: true, DisableContentSha256: true}
		if checksum { // known beforehand: ours has it from the plan
			sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
			o.ContentType = "application/octet-stream"
			o.UserMetadata = map[string]string{
				"crc32c":                fmt.Sprintf("%08x", sum),
				"x-amz-checksum-crc32c": base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum)),
			}
			o.SetMatchETagExcept("*")
		}
		began := time.Now()
		if _, err := core.PutObject(b.ctx, serverBucket, fmt.Sprintf("%s/%d", prefix, n), bytes.NewReader(data), size, "", "", o); err != nil {
			return 0, err
		}
		took += time.Since(began)
		total += size
	}
	for n := range sizes {
		if err := core.RemoveObject(b.ctx, serverBucket, fmt.Sprintf("%s/%d", prefix, n), minio.RemoveObjectOptions{}); err != nil {
			return 0, err
		}
	}
	return float64(total) / 1e6 / took.Seconds(), nil
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
	if err := b.warm(segment, segments); err != nil {
		return nil, 0, err
	}
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
