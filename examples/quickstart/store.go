package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/dirstore"
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

// A lateStore is a directory store that is opened at the first use that succeeds:
// a node must run while the store is away.
type lateStore struct {
	dir string

	mu    sync.Mutex
	store *dirstore.Store
	tried time.Time
	err   error
}

func (s *lateStore) open() (*dirstore.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil && time.Since(s.tried) > time.Second {
		s.tried = time.Now()
		s.store, s.err = dirstore.Open(filepath.ToSlash(s.dir), dirstore.Options{Hooks: dirstore.Hooks{
			BeforeLink:   func(key string) error { return s.count(key, putsFile) },
			BeforeDelete: func(key string) error { return s.count(key, deletesFile) },
		}})
	}
	if s.store == nil {
		return nil, fmt.Errorf("%w: %w", tier.ErrUnavailable, s.err)
	}
	return s.store, nil
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
	d, err := s.open()
	if err != nil {
		return err
	}
	return d.Put(ctx, key, r, size, o)
}

// GetRange implements [tier.ObjectStore].
func (s *lateStore) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	d, err := s.open()
	if err != nil {
		return nil, err
	}
	return d.GetRange(ctx, key, off, n)
}

// Head implements [tier.ObjectStore].
func (s *lateStore) Head(ctx context.Context, key string) (tier.ObjectInfo, error) {
	d, err := s.open()
	if err != nil {
		return tier.ObjectInfo{}, err
	}
	return d.Head(ctx, key)
}

// List implements [tier.ObjectStore].
func (s *lateStore) List(ctx context.Context, prefix, after string) iter.Seq2[tier.ObjectInfo, error] {
	d, err := s.open()
	if err != nil {
		return func(yield func(tier.ObjectInfo, error) bool) { yield(tier.ObjectInfo{}, err) }
	}
	return d.List(ctx, prefix, after)
}

// Delete implements [tier.ObjectStore].
func (s *lateStore) Delete(ctx context.Context, keys []string) []tier.DeleteResult {
	d, err := s.open()
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
	d, err := s.open()
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
