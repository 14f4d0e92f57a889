package dirstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	tempDir  = ".tmp"
	lockName = ".lock"

	// staleAfter is the age at which a temporary file can't belong to a living
	// writer: uploads have a deadline of hours at most.
	staleAfter = 24 * time.Hour

	copyBytes = 256 << 10
	lockPause = 2 * time.Millisecond
)

// Options configure [Open]. The zero value uses the operating system's files.
type Options struct {
	// FS is the file system. Nil means [log.OSFS].
	FS log.FS

	// ReadOnly makes Open change nothing, and fail if there is no directory; Put and
	// Delete then return [tier.ErrDenied].
	ReadOnly bool

	// Hooks are called in the path of writes.
	Hooks Hooks
}

// Hooks are called without locks held, from the goroutine that made the call. An
// error from a hook ends the call with nothing done. Each may be nil.
type Hooks struct {
	// BeforeLink comes when the bytes of a Put are durable under a temporary name
	// and before the object gets its key. For one key it may come more than once if
	// the key was put more than once.
	BeforeLink func(key string) error

	// BeforeDelete comes before an object is removed. It does not come for keys
	// that have no object.
	BeforeDelete func(key string) error
}

// A Store is a [tier.ObjectStore] in a directory. It holds no descriptor between
// calls and needs no Close.
type Store struct {
	fs    log.FS
	dir   string
	hooks Hooks
	ro    bool

	noLinks atomic.Bool // the file system has no hard links

	mu      sync.Mutex
	durable map[string]bool // folders below dir whose names are durable
}

// Open opens the store in dir and makes the directory if needed. Several
// processes may have it open.
func Open(dir string, o Options) (*Store, error) {
	if o.FS == nil {
		o.FS = log.OSFS{}
	}
	s := &Store{fs: o.FS, dir: dir, hooks: o.Hooks, ro: o.ReadOnly, durable: map[string]bool{}}
	if o.ReadOnly {
		info, err := s.fs.Stat(dir)
		if err == nil && !info.IsDir {
			err = syscall.ENOTDIR
		}
		if err != nil {
			return nil, fmt.Errorf("dirstore: open %s: %w", dir, err)
		}
		return s, nil
	}
	unsynced := []string{dir}
	for at := dir; path.Dir(at) != at; at = path.Dir(at) {
		unsynced = append(unsynced, path.Dir(at))
		if _, err := s.fs.Stat(path.Dir(at)); err == nil {
			break
		}
	}
	if err := s.fs.MkdirAll(path.Join(dir, tempDir)); err != nil {
		return nil, fmt.Errorf("dirstore: open %s: %w", dir, err)
	}
	for _, name := range unsynced {
		if err := s.fs.SyncDir(name); err != nil {
			return nil, fmt.Errorf("dirstore: open %s: %w", dir, err)
		}
	}
	temps, err := s.fs.List(path.Join(dir, tempDir))
	if err != nil {
		return nil, fmt.Errorf("dirstore: open %s: %w", dir, err)
	}
	for _, name := range temps {
		name = path.Join(dir, tempDir, name)
		if info, err := s.fs.Stat(name); err == nil && time.Since(info.ModTime) > staleAfter {
			_ = s.fs.Remove(name) // another process may have been first
		}
	}
	return s, nil
}

func (s *Store) file(key string) (string, error) {
	if err := tier.CheckKey(key); err != nil {
		return "", err
	}
	if first, _, _ := strings.Cut(key, "/"); first == tempDir || first == lockName {
		return "", fmt.Errorf("%w: %q is the store's own", tier.ErrInvalidKey, key)
	}
	return path.Join(s.dir, key), nil
}

// Put implements [tier.ObjectStore].
func (s *Store) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o tier.PutOptions) (err error) {
	name, err := s.file(key)
	if err != nil {
		return err
	}
	if size < 0 {
		return fmt.Errorf("put %s: size %d", key, size)
	}
	if s.ro {
		return fmt.Errorf("put %s: %w: the store was opened to read", key, tier.ErrDenied)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	if o.IfAbsent {
		if info, err := s.fs.Stat(name); err == nil && !info.IsDir {
			return fmt.Errorf("put %s: %w", key, tier.ErrExists)
		}
	}
	if err := s.makeDirs(path.Dir(key)); err != nil {
		return fmt.Errorf("put %s: %w", key, nothing(err))
	}
	var nonce [12]byte
	rand.Read(nonce[:])
	temp := path.Join(s.dir, tempDir, hex.EncodeToString(nonce[:]))
	// The name is never synced: after a crash it is there or not. A leftover takes
	// space only, and Open removes it when it is old.
	defer func() { _ = s.fs.Remove(temp) }()
	if err := s.writeTemp(ctx, temp, key, r, size, o); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	if s.hooks.BeforeLink != nil {
		if err := s.hooks.BeforeLink(key); err != nil {
			return fmt.Errorf("put %s: %w", key, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	if err := s.publish(ctx, temp, name, o.IfAbsent); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	// From here on the object is visible.
	if err := s.fs.SyncDir(path.Dir(name)); err != nil {
		return fmt.Errorf("put %s: %w: %w", key, tier.ErrUnknownOutcome, err)
	}
	return nil
}

func (s *Store) writeTemp(ctx context.Context, temp, key string, r io.ReaderAt, size int64, o tier.PutOptions) (err error) {
	f, err := s.fs.Create(temp)
	if err != nil {
		return nothing(err)
	}
	defer func() {
		if cerr := f.Close(); cerr != nil && err == nil {
			err = nothing(cerr)
		}
	}()
	buf := make([]byte, min(copyBytes, max(size, 1)))
	sum := uint32(0)
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
		}
		b := buf[:min(int64(len(buf)), size-at)]
		if n, err := r.ReadAt(b, at); n < len(b) {
			if err == nil || errors.Is(err, io.EOF) {
				return fmt.Errorf("source ends at %d of %d bytes: %w", at+int64(n), size, tier.ErrCorrupt)
			}
			return fmt.Errorf("read the source: %w", err)
		}
		sum = crc32.Update(sum, castagnoli, b)
		if _, err := f.WriteAt(b, at); err != nil {
			return nothing(err)
		}
		at += int64(len(b))
	}
	if o.HasCRC32C && sum != o.CRC32C {
		return fmt.Errorf("checksum %08x instead of %08x: %w", sum, o.CRC32C, tier.ErrCorrupt)
	}
	return nothing(f.Sync())
}

// publish gives the durable file temp its name.
func (s *Store) publish(ctx context.Context, temp, name string, ifAbsent bool) error {
	if !ifAbsent {
		return outcome(s.fs.Rename(temp, name))
	}
	if !s.noLinks.Load() {
		err := s.fs.Link(temp, name)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, fs.ErrExist):
			return tier.ErrExists
		case !linkless(err):
			return outcome(err)
		}
		s.noLinks.Store(true)
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := s.fs.Stat(name); err == nil {
		return tier.ErrExists
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nothing(err)
	}
	return outcome(s.fs.Rename(temp, name))
}

// linkless says whether the file system refused a link because it has none.
func linkless(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOTSUP, syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.Is(err, errors.ErrUnsupported)
}

func (s *Store) lock(ctx context.Context) (io.Closer, error) {
	for {
		c, err := s.fs.Lock(path.Join(s.dir, lockName))
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, log.ErrLocked) {
			return nil, nothing(err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", tier.ErrUnavailable, ctx.Err())
		case <-time.After(lockPause):
		}
	}
}

// nothing gives an error from before the object had its name its meaning.
func nothing(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", tier.ErrDenied, err)
	}
	return fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
}

// outcome gives an error of an operation on a name its meaning: it may be done.
func outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", tier.ErrDenied, err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", tier.ErrUnknownOutcome, err)
}

// makeDirs makes the folder of keys and every folder above it durable.
func (s *Store) makeDirs(rel string) error {
	if rel == "." {
		return nil
	}
	s.mu.Lock()
	known := s.durable[rel]
	s.mu.Unlock()
	if known {
		return nil
	}
	if err := s.fs.MkdirAll(path.Join(s.dir, rel)); err != nil {
		return err
	}
	// The folder may have been made by somebody else who has not synced it yet.
	at := s.dir
	for part := range strings.SplitSeq(rel, "/") {
		if err := s.fs.SyncDir(at); err != nil {
			return err
		}
		at = path.Join(at, part)
	}
	s.mu.Lock()
	s.durable[rel] = true
	s.mu.Unlock()
	return nil
}

// GetRange implements [tier.ObjectStore].
func (s *Store) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	name, err := s.file(key)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("get %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	info, err := s.fs.Stat(name)
	if err != nil || info.IsDir {
		return nil, fmt.Errorf("get %s: %w", key, missing(info, err))
	}
	f, err := s.fs.Open(name, false)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, missing(log.FileInfo{}, err))
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("get %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	if off < 0 || n <= 0 || off > size || n > size-off || int64(int(n)) != n {
		return nil, fmt.Errorf("get %d bytes at %d of %s, which has %d: %w", n, off, key, size, tier.ErrRange)
	}
	b := make([]byte, n)
	if got, err := f.ReadAt(b, off); int64(got) < n {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("get %s: %d bytes instead of %d: %w", key, got, n, tier.ErrCorrupt)
		}
		return nil, fmt.Errorf("get %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	return b, nil
}

// missing gives the error of a read its meaning.
func missing(info log.FileInfo, err error) error {
	switch {
	case err == nil && info.IsDir, errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return tier.ErrNotFound
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", tier.ErrDenied, err)
	}
	return fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
}

// Head implements [tier.ObjectStore]. The checksum is not known without reading.
func (s *Store) Head(ctx context.Context, key string) (tier.ObjectInfo, error) {
	name, err := s.file(key)
	if err != nil {
		return tier.ObjectInfo{}, err
	}
	if err := ctx.Err(); err != nil {
		return tier.ObjectInfo{}, fmt.Errorf("head %s: %w: %w", key, tier.ErrUnavailable, err)
	}
	info, err := s.fs.Stat(name)
	if err != nil || info.IsDir {
		return tier.ObjectInfo{}, fmt.Errorf("head %s: %w", key, missing(info, err))
	}
	return tier.ObjectInfo{Key: key, Size: info.Size, LastModified: info.ModTime}, nil
}

// List implements [tier.ObjectStore]. It reads one folder at a time. Objects that
// come or go while it runs may be in it or not.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[tier.ObjectInfo, error] {
	return func(yield func(tier.ObjectInfo, error) bool) {
		if _, err := s.walk(ctx, "", prefix, after, yield); err != nil {
			yield(tier.ObjectInfo{}, fmt.Errorf("list %s: %w", prefix, err))
		}
	}
}

// walk yields the objects below the folder rel, which is "" or ends with a slash.
// It reports whether the caller wants more.
func (s *Store) walk(ctx context.Context, rel, prefix, after string, yield func(tier.ObjectInfo, error) bool) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
	}
	names, err := s.fs.List(path.Join(s.dir, rel))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, missing(log.FileInfo{}, err)
	}
	type entry struct {
		key  string // with a slash at the end for a folder, so that entries sort as keys do
		info log.FileInfo
	}
	entries := make([]entry, 0, len(names))
	for _, name := range names {
		if rel == "" && (name == tempDir || name == lockName) {
			continue
		}
		key := rel + name
		// Whatever lies below key begins with it, so most names need no look.
		if !strings.HasPrefix(key, prefix) && !strings.HasPrefix(prefix, key+"/") {
			continue
		}
		info, err := s.fs.Stat(path.Join(s.dir, key))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, missing(log.FileInfo{}, err)
		}
		if info.IsDir {
			key += "/"
		}
		entries = append(entries, entry{key, info})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	for _, e := range entries {
		if e.info.IsDir {
			if e.key < after && !strings.HasPrefix(after, e.key) {
				continue
			}
			if more, err := s.walk(ctx, e.key, prefix, after, yield); !more || err != nil {
				return false, err
			}
			continue
		}
		if e.key <= after || !strings.HasPrefix(e.key, prefix) {
			continue
		}
		if !yield(tier.ObjectInfo{Key: e.key, Size: e.info.Size, LastModified: e.info.ModTime}, nil) {
			return false, nil
		}
	}
	return true, nil
}

// Delete implements [tier.ObjectStore].
func (s *Store) Delete(ctx context.Context, keys []string) []tier.DeleteResult {
	results := make([]tier.DeleteResult, len(keys))
	dirs := map[string][]int{} // folder -> results that its sync decides
	for i, key := range keys {
		results[i].Key = key
		name, err := s.file(key)
		if err == nil && s.ro {
			err = fmt.Errorf("%w: the store was opened to read", tier.ErrDenied)
		}
		if err == nil {
			err = s.remove(ctx, key, name)
		}
		if err != nil {
			results[i].Err = fmt.Errorf("delete %s: %w", key, err)
			continue
		}
		dirs[path.Dir(name)] = append(dirs[path.Dir(name)], i)
	}
	for dir, at := range dirs {
		// Also for keys that were gone already: who removed them may have died
		// before its sync.
		err := s.fs.SyncDir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		for _, i := range at {
			results[i].Err = fmt.Errorf("delete %s: %w: %w", keys[i], tier.ErrUnknownOutcome, err)
		}
	}
	return results
}

func (s *Store) remove(ctx context.Context, key, name string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
	}
	info, err := s.fs.Stat(name)
	if err != nil || info.IsDir {
		if err = missing(info, err); errors.Is(err, tier.ErrNotFound) {
			return nil
		}
		return err
	}
	if s.hooks.BeforeDelete != nil {
		if err := s.hooks.BeforeDelete(key); err != nil {
			return err
		}
	}
	if err := s.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return outcome(err)
	}
	return nil
}

// Capabilities implements [tier.ObjectStore].
func (s *Store) Capabilities() tier.Capabilities {
	return tier.Capabilities{IfAbsent: true, CRC32C: true}
}

// HardLinks says whether conditional Puts use hard links, as far as is known: it
// turns false when the file system has refused one.
func (s *Store) HardLinks() bool { return !s.noLinks.Load() }
