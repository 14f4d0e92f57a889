package memstore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/tier"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pageKeys is how many keys List copies under the lock at a time.
const pageKeys = 1000

// A Store is a [tier.ObjectStore] in memory. Make one with [New].
type Store struct {
	mu      sync.Mutex
	objects map[string]object
	keys    []string // sorted keys of objects; nil when it must be made anew
	bytes   int64

	// written remembers the checksum of each key that a conditional Put has ever
	// created, also after its deletion: such keys are never to be used again.
	written    map[string]uint32
	violations []error
}

type object struct {
	data     []byte
	sum      uint32
	modified time.Time
}

// New returns an empty store.
func New() *Store {
	return &Store{objects: map[string]object{}, written: map[string]uint32{}}
}

// Put implements [tier.ObjectStore].
func (s *Store) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	if err := tier.CheckKey(key); err != nil {
		return err
	}
	if size < 0 || int64(int(size)) != size {
		return fmt.Errorf("put %s: size %d", key, size)
	}
	if o.IfAbsent && s.has(key) {
		return fmt.Errorf("put %s: %w", key, tier.ErrExists)
	}
	data := make([]byte, size)
	if n, err := r.ReadAt(data, 0); int64(n) < size {
		if err == nil || errors.Is(err, io.EOF) {
			return fmt.Errorf("put %s: source of %d bytes instead of %d: %w", key, n, size, tier.ErrCorrupt)
		}
		return fmt.Errorf("put %s: read the source: %w", key, err)
	}
	sum := crc32.Checksum(data, castagnoli)
	if o.HasCRC32C && sum != o.CRC32C {
		return fmt.Errorf("put %s: checksum %08x instead of %08x: %w", key, sum, o.CRC32C, tier.ErrCorrupt)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.objects[key]
	if exists && o.IfAbsent {
		return fmt.Errorf("put %s: %w", key, tier.ErrExists)
	}
	if before, once := s.written[key]; once && before != sum {
		s.violations = append(s.violations, fmt.Errorf("memstore: immutable object %s was written again with other bytes", key))
	}
	if o.IfAbsent {
		s.written[key] = sum
	}
	if !exists {
		s.keys = nil
	}
	s.objects[key] = object{data: data, sum: sum, modified: time.Now()}
	s.bytes += size - int64(len(old.data))
	return nil
}

func (s *Store) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.objects[key]
	return ok
}

// GetRange implements [tier.ObjectStore].
func (s *Store) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("get %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	if err := tier.CheckKey(key); err != nil {
		return nil, err
	}
	s.mu.Lock()
	o, ok := s.objects[key]
	s.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("get %s: %w", key, tier.ErrNotFound)
	}
	if size := int64(len(o.data)); off < 0 || n <= 0 || off > size || n > size-off {
		return nil, fmt.Errorf("get %d bytes at %d of %s, which has %d: %w", n, off, key, size, tier.ErrRange)
	}
	return slices.Clone(o.data[off : off+n]), nil
}

// Head implements [tier.ObjectStore].
func (s *Store) Head(ctx context.Context, key string) (tier.ObjectInfo, error) {
	if err := ctx.Err(); err != nil {
		return tier.ObjectInfo{}, fmt.Errorf("head %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	if err := tier.CheckKey(key); err != nil {
		return tier.ObjectInfo{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	if !ok {
		return tier.ObjectInfo{}, fmt.Errorf("head %s: %w", key, tier.ErrNotFound)
	}
	return o.info(key), nil
}

func (o object) info(key string) tier.ObjectInfo {
	return tier.ObjectInfo{Key: key, Size: int64(len(o.data)), LastModified: o.modified, CRC32C: o.sum, HasCRC32C: true}
}

// List implements [tier.ObjectStore]. Objects that come or go while it runs may
// be in it or not.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[tier.ObjectInfo, error] {
	return func(yield func(tier.ObjectInfo, error) bool) {
		at := after
		for {
			if err := ctx.Err(); err != nil {
				yield(tier.ObjectInfo{}, fmt.Errorf("list %s: %w: %w", prefix, tier.ErrUnavailable, err))
				return
			}
			page := s.page(prefix, at)
			for _, info := range page {
				if !yield(info, nil) {
					return
				}
			}
			if len(page) < pageKeys {
				return
			}
			at = page[len(page)-1].Key
		}
	}
}

func (s *Store) page(prefix, after string) []tier.ObjectInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = make([]string, 0, len(s.objects))
		for k := range s.objects {
			s.keys = append(s.keys, k)
		}
		slices.Sort(s.keys)
	}
	i, _ := slices.BinarySearch(s.keys, prefix)
	if after >= prefix {
		var found bool
		if i, found = slices.BinarySearch(s.keys, after); found {
			i++
		}
	}
	var page []tier.ObjectInfo
	for ; i < len(s.keys) && len(page) < pageKeys && strings.HasPrefix(s.keys[i], prefix); i++ {
		page = append(page, s.objects[s.keys[i]].info(s.keys[i]))
	}
	return page
}

// Delete implements [tier.ObjectStore].
func (s *Store) Delete(ctx context.Context, keys []string) []tier.DeleteResult {
	results := make([]tier.DeleteResult, len(keys))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range keys {
		results[i].Key = key
		if err := ctx.Err(); err != nil {
			results[i].Err = fmt.Errorf("delete %s: %w: %w", key, tier.ErrUnavailable, err)
			continue
		}
		if results[i].Err = tier.CheckKey(key); results[i].Err != nil {
			continue
		}
		if o, ok := s.objects[key]; ok {
			delete(s.objects, key)
			s.keys = nil
			s.bytes -= int64(len(o.data))
		}
	}
	return results
}

// Capabilities implements [tier.ObjectStore].
func (s *Store) Capabilities() tier.Capabilities {
	return tier.Capabilities{IfAbsent: true, CRC32C: true}
}

// Len returns the number of objects.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects)
}

// Bytes returns the sum of their sizes.
func (s *Store) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// Corrupt flips one bit of a stored object, for tests of readers. It reports
// whether the object exists and has that byte.
func (s *Store) Corrupt(key string, at int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	if !ok || at < 0 || at >= int64(len(o.data)) {
		return false
	}
	o.data = slices.Clone(o.data)
	o.data[at] ^= 1
	o.sum = crc32.Checksum(o.data, castagnoli)
	s.objects[key] = o
	return true
}

// Check returns an error for each object that a conditional Put had created and
// that was given other bytes later, also after a deletion, and for each whose
// bytes changed in place.
func (s *Store) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := slices.Clone(s.violations)
	for key, o := range s.objects {
		if crc32.Checksum(o.data, castagnoli) != o.sum {
			errs = append(errs, fmt.Errorf("memstore: the bytes of %s changed in place", key))
		}
	}
	return errors.Join(errs...)
}
