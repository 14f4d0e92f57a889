package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/dirstore"
	"github.com/cordwood-io/cordwood/tier/s3store"
)

// storePrefix keeps the objects apart from the counters in the same directory.
const storePrefix = "cordwood"

// Files in the store's directory whose sizes count puts and deletes of segment
// objects, one byte each, written before the object gets or loses its name, so
// that what a killed process did counts as well.
const (
	putsFile    = "puts.count"
	deletesFile = "deletes.count"
)

// A lateStore is a store that is opened at the first use that succeeds: a node must
// run while the store is away. It is a bucket if there is a URL, else the directory,
// which has the counters either way.
type lateStore struct {
	dir string
	url string // of a bucket

	mu    sync.Mutex
	store tier.ObjectStore
	tried time.Time
	err   error
}

func (s *lateStore) open(ctx context.Context) (tier.ObjectStore, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil && time.Since(s.tried) > time.Second {
		s.tried = time.Now()
		s.store, s.err = s.try(ctx)
	}
	if s.store == nil {
		return nil, fmt.Errorf("%w: %w", tier.ErrUnavailable, s.err)
	}
	return s.store, nil
}

// bucketFile is the file below -dir that names the bucket which has the objects. There
// is none if they are in the directory.
const bucketFile = "bucket"

// settle refuses another store than that of earlier runs, whose objects would be missed
// in it, and a bucket that can't be used: a typing error should not show first when
// the cold part does not get there.
func (s *lateStore) settle(ctx context.Context, dir string) error {
	var bucket string
	if s.url != "" {
		o, err := s3store.ParseURL(s.url)
		if err != nil {
			return err
		}
		bucket = path.Join(o.Endpoint, o.Bucket, o.Prefix)
	}
	name := filepath.Join(dir, bucketFile)
	was, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && string(was) != bucket {
		return fmt.Errorf("the objects of earlier runs are in the bucket %s: name it by -s3, or another -dir", was)
	}
	if bucket == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(s.dir, storePrefix)); err == nil {
		return fmt.Errorf("the objects of earlier runs are in %s: leave -s3 out, or name another -dir", s.dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store, err = s.try(ctx); err != nil {
		return fmt.Errorf("-s3: %w", err)
	}
	return os.WriteFile(name, []byte(bucket), 0o644)
}

func (s *lateStore) try(ctx context.Context) (tier.ObjectStore, error) {
	if s.url == "" {
		d, err := dirstore.Open(filepath.ToSlash(s.dir), dirstore.Options{Hooks: dirstore.Hooks{
			BeforeLink:   func(key string) error { return s.count(key, putsFile) },
			BeforeDelete: func(key string) error { return s.count(key, deletesFile) },
		}})
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	o, err := s3store.ParseURL(s.url)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	b, err := s3store.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &countingBucket{ObjectStore: b, count: s.count, put: map[string]bool{}}, nil
}

// A countingBucket counts objects before they come and go, as the hooks of a
// directory do.
type countingBucket struct {
	tier.ObjectStore
	count func(key, file string) error

	mu  sync.Mutex
	put map[string]bool // keys that were counted: a second attempt makes no second object
}

// Put implements [tier.ObjectStore].
func (b *countingBucket) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	b.mu.Lock()
	again := b.put[key]
	b.put[key] = true
	b.mu.Unlock()
	if !again {
		if err := b.count(key, putsFile); err != nil {
			return fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
		}
	}
	return b.ObjectStore.Put(ctx, key, r, size, o)
}

// Delete implements [tier.ObjectStore].
func (b *countingBucket) Delete(ctx context.Context, keys []string) []tier.DeleteResult {
	for _, key := range keys {
		if _, err := b.Head(ctx, key); err == nil {
			if err := b.count(key, deletesFile); err != nil {
				break // the figures will not add up: they are for people
			}
		}
	}
	return b.ObjectStore.Delete(ctx, keys)
}

func (s *lateStore) count(key, file string) error {
	if _, ok := tier.ParseKey(storePrefix, key); !ok {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(s.dir, file), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{'.'})
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Put implements [tier.ObjectStore].
func (s *lateStore) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	d, err := s.open(ctx)
	if err != nil {
		return err
	}
	return d.Put(ctx, key, r, size, o)
}

// GetRange implements [tier.ObjectStore].
func (s *lateStore) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	d, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	return d.GetRange(ctx, key, off, n)
}

// Head implements [tier.ObjectStore].
func (s *lateStore) Head(ctx context.Context, key string) (tier.ObjectInfo, error) {
	d, err := s.open(ctx)
	if err != nil {
		return tier.ObjectInfo{}, err
	}
	return d.Head(ctx, key)
}

// List implements [tier.ObjectStore].
func (s *lateStore) List(ctx context.Context, prefix, after string) iter.Seq2[tier.ObjectInfo, error] {
	d, err := s.open(ctx)
	if err != nil {
		return func(yield func(tier.ObjectInfo, error) bool) { yield(tier.ObjectInfo{}, err) }
	}
	return d.List(ctx, prefix, after)
}

// Delete implements [tier.ObjectStore].
func (s *lateStore) Delete(ctx context.Context, keys []string) []tier.DeleteResult {
	d, err := s.open(ctx)
	if err != nil {
		results := make([]tier.DeleteResult, len(keys))
		for i, key := range keys {
			results[i] = tier.DeleteResult{Key: key, Err: err}
		}
		return results
	}
	return d.Delete(ctx, keys)
}

// Capabilities implements [tier.ObjectStore].
func (s *lateStore) Capabilities() tier.Capabilities {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	d, err := s.open(ctx)
	if err != nil {
		return tier.Capabilities{}
	}
	return d.Capabilities()
}

// storeCounts is what the directory says of segment objects.
type storeCounts struct{ puts, deletes, objects int64 }

// readCounts looks into a store's directory; a store that is away counts nothing.
func readCounts(ctx context.Context, s *lateStore) (c storeCounts) {
	size := func(file string) int64 {
		info, err := os.Stat(filepath.Join(s.dir, file))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	for o, err := range s.List(ctx, storePrefix+"/", "") {
		if err != nil {
			break
		}
		if _, ok := tier.ParseKey(storePrefix, o.Key); ok {
			c.objects++
		}
	}
	c.puts, c.deletes = size(putsFile), size(deletesFile)
	return c
}
