package s3store

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/cordwood-io/cordwood/tier"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func update(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// A Store is a [tier.ObjectStore] in a bucket. Its methods are safe for concurrent
// use. It has no goroutines of its own.
type Store struct {
	o        Options
	prefix   string // Options.Prefix with its slash, or ""
	creds    *credentials.Credentials
	uploads  *lane
	reads    *lane
	control  *lane
	caps     tier.Capabilities
	oneByOne atomic.Bool // the server has no batch deletion

	mu      sync.Mutex
	breaker breaker
	budget  budget
	stats   Stats
}

// Stats are counters of a [Store] since it was opened.
type Stats struct {
	Requests int64 // sent, those of Open included
	Retries  int64 // of these, second and later attempts
	Failures int64 // of these, without a usable answer: no connection, stalled, 5xx, throttled
	Refused  int64 // not sent because the breaker was open
	Open     bool  // the breaker is open now
}

// Open opens the store and finds out what the server can do. ctx bounds that.
// Errors: mistakes in the options, [tier.ErrDenied] (also for a bucket that does not
// exist), [tier.ErrUnavailable], [tier.ErrCorrupt] if the server gives back other
// bytes than it took.
func Open(ctx context.Context, o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, creds: newCredentials(o.Credentials), budget: budget{tenths: budgetMax}}
	if o.Prefix != "" {
		s.prefix = o.Prefix + "/"
	}
	for lane, n := range map[**lane]int{&s.uploads: o.Uploads, &s.reads: o.Reads, &s.control: o.Controls} {
		if *lane, err = newLane(&o, s.creds, n); err != nil {
			return nil, err
		}
	}
	if o.ReadOnly {
		err = s.look(ctx)
	} else {
		err = s.probe(ctx)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// look finds out whether the bucket exists. A question about an object in one that
// does not is answered like one about an object that does not, so that whoever only
// reads would take it for an empty store.
func (s *Store) look(ctx context.Context) error {
	return s.call(ctx, s.control, false, func(ctx context.Context, _ *watchdog) error {
		ok, err := s.control.core.BucketExists(ctx, s.o.Bucket)
		if err == nil && !ok {
			return &ownError{fmt.Errorf("s3store: no bucket %s: %w", s.o.Bucket, tier.ErrDenied), healthy}
		}
		return err
	})
}

// Close closes idle connections. Calls under way end by themselves. Close may be
// called more than once; calls after it work, at the price of new connections.
func (s *Store) Close() {
	for _, l := range []*lane{s.uploads, s.reads, s.control} {
		if l != nil && l.http != nil {
			l.http.CloseIdleConnections()
		}
	}
}

// Stats returns counters.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Open = s.breaker.open
	return st
}

// Capabilities implements [tier.ObjectStore]: what Open found out.
func (s *Store) Capabilities() tier.Capabilities { return s.caps }

func (s *Store) name(key string) (string, error) {
	if err := tier.CheckKey(key); err != nil {
		return "", err
	}
	return s.prefix + key, nil
}

// crcKey is the object's own note of its checksum, in hexadecimal: unlike the
// server's it survives on every server.
const crcKey = "crc32c"

// putOptions returns the headers of a Put.
func (s *Store) putOptions(o tier.PutOptions) minio.PutObjectOptions {
	m := minio.PutObjectOptions{
		ContentType: "application/octet-stream",
		// One request with a plain body: signed chunks are what many servers get wrong.
		DisableMultipart: true, DisableContentSha256: true,
		UserMetadata: map[string]string{},
	}
	if o.IfAbsent {
		m.SetMatchETagExcept("*")
	}
	if o.HasCRC32C {
		m.UserMetadata[crcKey] = fmt.Sprintf("%08x", o.CRC32C)
		if !s.o.NoChecksum {
			m.UserMetadata["x-amz-checksum-crc32c"] = base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, o.CRC32C))
		}
	}
	return m
}

// Put implements [tier.ObjectStore].
func (s *Store) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	name, err := s.name(key)
	if err != nil {
		return err
	}
	if size < 0 {
		return fmt.Errorf("put %s: size %d", key, size)
	}
	if size == 0 && o.HasCRC32C && o.CRC32C != 0 {
		return fmt.Errorf("put %s: checksum of nothing is 0, not %08x: %w", key, o.CRC32C, tier.ErrCorrupt)
	}
	if size > s.o.MaxPutBytes {
		err = s.putParts(ctx, name, r, size, o)
	} else {
		err = s.put(ctx, name, r, size, o)
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	return nil
}

func (s *Store) put(ctx context.Context, name string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	return s.call(ctx, s.uploads, true, func(ctx context.Context, w *watchdog) error {
		b := &body{w: w, o: &s.o, r: r, size: size, want: o.CRC32C, total: o.HasCRC32C, check: o.HasCRC32C}
		w.next(s.o.AnswerTimeout)
		_, err := s.uploads.core.PutObject(ctx, s.o.Bucket, name, b, size, "", "", s.putOptions(o))
		if source := b.shut(); source != nil {
			// The announced length never went out, so there is no object.
			return &ownError{source, neutral}
		}
		return err
	})
}

// GetRange implements [tier.ObjectStore].
func (s *Store) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	name, err := s.name(key)
	if err != nil {
		return nil, err
	}
	if off < 0 || n <= 0 || off+n < off || int64(int(n)) != n {
		// No object has such a range; whether there is one at all is not asked.
		return nil, fmt.Errorf("get %d bytes at %d of %s: %w", n, off, key, tier.ErrRange)
	}
	var out []byte
	err = s.call(ctx, s.reads, false, func(ctx context.Context, w *watchdog) error {
		var get minio.GetObjectOptions
		if err := get.SetRange(off, off+n-1); err != nil {
			return &ownError{fmt.Errorf("%w: %w", tier.ErrRange, err), neutral}
		}
		rc, info, header, err := s.reads.core.GetObject(ctx, s.o.Bucket, name, get)
		if err != nil {
			return err
		}
		defer rc.Close()
		out, err = readRange(rc, info.Size, header, off, n, func() { w.next(s.o.StallTimeout) })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("get %d bytes at %d of %s: %w", n, off, key, err)
	}
	return out, nil
}

// readBytes is how much of a body is read between two looks at the clock.
const readBytes = 256 << 10

// readRange reads the body of an answer to a request for n bytes at off, and holds
// the answer to it. length is that of the body, alive is called as bytes come.
func readRange(r io.Reader, length int64, header http.Header, off, n int64, alive func()) ([]byte, error) {
	at, total, partial := contentRange(header.Get("Content-Range"))
	switch {
	case !partial && (off != 0 || length != n):
		if off == 0 && length < n || length >= 0 && off+n > length {
			return nil, &ownError{fmt.Errorf("the object has %d bytes: %w", length, tier.ErrRange), healthy}
		}
		return nil, &ownError{fmt.Errorf("the server ignores ranges: %w", tier.ErrUnavailable), healthy}
	case partial && total >= 0 && off+n > total:
		// S3 clips a range that is too long, and says so only here.
		return nil, &ownError{fmt.Errorf("the object has %d bytes: %w", total, tier.ErrRange), healthy}
	case partial && (at != off || length >= 0 && length != n):
		return nil, &ownError{fmt.Errorf("the server sends %d bytes at %d: %w", length, at, tier.ErrCorrupt), healthy}
	}
	b := make([]byte, n)
	for got := int64(0); got < n; {
		alive()
		m, err := r.Read(b[got:min(n, got+readBytes)])
		got += int64(m)
		if err != nil && got < n {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, &ownError{fmt.Errorf("%d bytes instead of %d: %w", got, n, tier.ErrCorrupt), sick}
			}
			return nil, err
		}
	}
	return b, nil
}

// contentRange reads "bytes 10-19/100". total is -1 if it is unknown.
func contentRange(s string) (at, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, false
	}
	span, size, ok := strings.Cut(s, "/")
	if !ok {
		return 0, 0, false
	}
	first, _, ok := strings.Cut(span, "-")
	if !ok {
		return 0, 0, false
	}
	at, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if total, err = strconv.ParseInt(size, 10, 64); err != nil {
		total = -1
	}
	return at, total, true
}

// Head implements [tier.ObjectStore].
func (s *Store) Head(ctx context.Context, key string) (tier.ObjectInfo, error) {
	name, err := s.name(key)
	if err != nil {
		return tier.ObjectInfo{}, err
	}
	var info minio.ObjectInfo
	err = s.call(ctx, s.control, false, func(ctx context.Context, _ *watchdog) (err error) {
		info, err = s.control.core.StatObject(ctx, s.o.Bucket, name, minio.StatObjectOptions{})
		return err
	})
	if err != nil {
		return tier.ObjectInfo{}, fmt.Errorf("head %s: %w", key, err)
	}
	out := tier.ObjectInfo{Key: key, Size: info.Size, LastModified: info.LastModified}
	for k, v := range info.UserMetadata {
		if strings.EqualFold(k, crcKey) {
			if sum, err := strconv.ParseUint(v, 16, 32); err == nil {
				out.CRC32C, out.HasCRC32C = uint32(sum), true
			}
		}
	}
	return out, nil
}

// List implements [tier.ObjectStore]. Each page is a request of its own, and nothing
// is held while the caller looks at it.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[tier.ObjectInfo, error] {
	return func(yield func(tier.ObjectInfo, error) bool) {
		last := after
		for {
			page, err := s.page(ctx, prefix, last)
			if err != nil {
				yield(tier.ObjectInfo{}, fmt.Errorf("list %q after %q: %w", prefix, last, err))
				return
			}
			for _, info := range page {
				if last != "" && info.Key <= last {
					yield(tier.ObjectInfo{}, fmt.Errorf("list %q: s3store: the server gives %q after %q: it does not sort", prefix, info.Key, last))
					return
				}
				last = info.Key
				if !yield(info, nil) {
					return
				}
			}
			if len(page) < s.o.PageKeys {
				return
			}
		}
	}
}

// page returns the first keys behind after; fewer than Options.PageKeys only if
// there are no more.
func (s *Store) page(ctx context.Context, prefix, after string) (page []tier.ObjectInfo, err error) {
	no := false
	o := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true, MaxKeys: s.o.PageKeys, FetchOwner: &no}
	if after != "" {
		o.StartAfter = s.prefix + after
	}
	err = s.call(ctx, s.control, false, func(ctx context.Context, w *watchdog) error {
		page = page[:0]
		for info := range s.control.core.ListObjectsIter(ctx, s.o.Bucket, o) {
			if info.Err != nil {
				return info.Err
			}
			w.next(s.o.AnswerTimeout)
			key, ok := strings.CutPrefix(info.Key, s.prefix)
			if !ok || !strings.HasPrefix(key, prefix) {
				return &ownError{fmt.Errorf("s3store: the server lists %q, which was not asked for", info.Key), healthy}
			}
			if strings.HasSuffix(key, "/") && info.Size == 0 {
				continue // a folder that a console made: no key of ours
			}
			page = append(page, tier.ObjectInfo{Key: key, Size: info.Size, LastModified: info.LastModified})
			if len(page) == s.o.PageKeys {
				break
			}
		}
		return ctx.Err() // the iterator just stops
	})
	return page, err
}

// Delete implements [tier.ObjectStore].
func (s *Store) Delete(ctx context.Context, keys []string) []tier.DeleteResult {
	results := make([]tier.DeleteResult, len(keys))
	byName := make(map[string][]int, len(keys))
	var names []string
	for i, key := range keys {
		results[i].Key = key
		name, err := s.name(key)
		if err != nil {
			results[i].Err = err
			continue
		}
		if byName[name] == nil {
			names = append(names, name)
		}
		byName[name] = append(byName[name], i)
	}
	for batch := range slices.Chunk(names, s.o.PageKeys) {
		for name, err := range s.deleteBatch(ctx, batch) {
			for _, i := range byName[name] {
				if err != nil {
					results[i].Err = fmt.Errorf("delete %s: %w", keys[i], err)
				}
			}
		}
	}
	return results
}

// deleteBatch returns what became of each name.
func (s *Store) deleteBatch(ctx context.Context, names []string) map[string]error {
	errs := make(map[string]error, len(names))
	left := names
	if len(names) > 1 && !s.oneByOne.Load() {
		left = s.deleteMany(ctx, names, errs)
	}
	for _, name := range left {
		errs[name] = s.call(ctx, s.control, false, func(ctx context.Context, _ *watchdog) error {
			err := s.control.core.RemoveObject(ctx, s.o.Bucket, name, minio.RemoveObjectOptions{})
			if r, ok := errors.AsType[minio.ErrorResponse](err); ok && r.Code == "NoSuchKey" {
				return nil
			}
			return err
		})
	}
	return errs
}

// deleteMany deletes by one request and notes the verdicts. It returns the names
// that are to be deleted one by one: all, if the server has no such request, and
// those that its answer, or minio-go, left out.
func (s *Store) deleteMany(ctx context.Context, names []string, errs map[string]error) (left []string) {
	todo := slices.Clone(names)
	err := s.call(ctx, s.control, false, func(ctx context.Context, _ *watchdog) error {
		results, err := s.control.core.RemoveObjectsWithIter(ctx, s.o.Bucket, func(yield func(minio.ObjectInfo) bool) {
			for _, name := range todo {
				if !yield(minio.ObjectInfo{Key: name}) {
					return
				}
			}
		}, minio.RemoveObjectsOptions{})
		if err != nil {
			return err
		}
		verdicts := make(map[string]error, len(todo))
		var worst error
		for r := range results {
			if r.Err != nil {
				if e, ok := errors.AsType[minio.ErrorResponse](r.Err); !ok || e.StatusCode != 0 || r.ObjectName == "" {
					return r.Err // of the request as a whole
				} else if e.Code == "NoSuchKey" {
					r.Err = nil
				}
			}
			verdicts[r.ObjectName] = r.Err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		var again []string
		for _, name := range todo {
			verdict, ok := verdicts[name]
			switch {
			case !ok:
				left = append(left, name)
			case verdict != nil:
				worst = cmp.Or(worst, verdict)
				again = append(again, name)
			default:
				errs[name] = nil
			}
		}
		if worst == nil {
			todo = nil
			return nil
		}
		todo = again
		return worst
	})
	if r, ok := errors.AsType[minio.ErrorResponse](err); ok && (r.StatusCode == http.StatusNotImplemented || r.StatusCode == http.StatusMethodNotAllowed) {
		s.oneByOne.Store(true)
		return names
	}
	for _, name := range todo {
		errs[name] = err
	}
	return left
}
