package tier

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
)

// An ObjectStore keeps whole objects under keys. It is the only door to the cold
// half of a log. Implementations: memstore, dirstore; package tiertest has the
// suite that each must pass.
//
// Keys are those that [CheckKey] accepts. All methods are safe for concurrent
// use, honour ctx and return soon after it ends (a write that was cut by ctx
// returns an error that wraps [ErrUnknownOutcome] unless it is certain that
// nothing happened). After a write returned nil, every later call of any client
// sees it.
//
// Source: the set of calls and errors follows what S3 can promise
// (conditional PUT, ranged GET, paged LIST, batch DELETE); our own.
type ObjectStore interface {
	// Put stores size bytes of r under key, all or nothing. It may read parts of
	// r several times, also concurrently, but never after it returned. r must give
	// the same bytes each time.
	//
	// Errors: [ErrExists] (IfAbsent only), [ErrConflict], [*ThrottledError],
	// [ErrDenied], [ErrUnavailable], [ErrCorrupt] (the bytes do not have the CRC
	// of the options, or r is shorter than size), [ErrInvalidKey]: nothing was
	// written. An error of r: nothing was written. [ErrUnknownOutcome] and any
	// other error: it may have been written.
	Put(ctx context.Context, key string, r io.ReaderAt, size int64, o PutOptions) error

	// GetRange returns exactly n > 0 bytes of the object from byte off on, in
	// memory that becomes the caller's. It returns [ErrNotFound], [ErrRange] when
	// the range is not wholly inside the object, [ErrCorrupt] when the store
	// delivered fewer bytes than it announced, or a transient error.
	GetRange(ctx context.Context, key string, off, n int64) ([]byte, error)

	// Head describes one object, or returns [ErrNotFound].
	Head(ctx context.Context, key string) (ObjectInfo, error)

	// List iterates over the objects whose key begins with prefix and is greater
	// than after, sorted by key in byte order. It fetches pages as it goes. An
	// error is yielded once and last. The iterator starts nothing before the first
	// pull and can be used several times.
	List(ctx context.Context, prefix, after string) iter.Seq2[ObjectInfo, error]

	// Delete removes objects and returns one result per key, in the same order.
	// A key without an object is a success. The call is split as the store needs
	// it. After a failure an object may be gone or not; deleting it again is safe.
	Delete(ctx context.Context, keys []string) []DeleteResult

	// Capabilities says what this store can promise. It does no I/O.
	Capabilities() Capabilities
}

// PutOptions bind one [ObjectStore].Put.
type PutOptions struct {
	// IfAbsent refuses to replace an object: [ErrExists].
	IfAbsent bool

	// CRC32C is the Castagnoli checksum of all bytes, valid if HasCRC32C. A store
	// checks it before the object becomes visible.
	CRC32C    uint32
	HasCRC32C bool
}

// ObjectInfo describes one stored object.
type ObjectInfo struct {
	Key          string
	Size         int64     // bytes
	LastModified time.Time // by the store's clock

	// CRC32C is the Castagnoli checksum of all bytes if the store knows it.
	CRC32C    uint32
	HasCRC32C bool
}

// DeleteResult is the fate of one key of [ObjectStore].Delete.
type DeleteResult struct {
	Key string
	Err error // nil: no object has this key now
}

// Capabilities of an [ObjectStore].
type Capabilities struct {
	// IfAbsent: a conditional Put is atomic against every other writer.
	IfAbsent bool

	// CRC32C: the store itself checks the checksum of a Put.
	CRC32C bool

	// MaxPutBytes is the largest object of a single Put; 0 means no limit.
	MaxPutBytes int64
}

// MaxKeyBytes is the longest key that [CheckKey] accepts.
const MaxKeyBytes = 900

// CheckKey returns an error that wraps [ErrInvalidKey] unless key is 1 to
// [MaxKeyBytes] bytes of the letters, digits and "-_.=/", without an empty, "."
// or ".." part between slashes. What passes is at once a valid S3 key, a URL path
// without escapes and a relative path on every operating system.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKeyBytes {
		return fmt.Errorf("%w: %d bytes", ErrInvalidKey, len(key))
	}
	for i := range len(key) {
		c := key[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("-_.=/", c) >= 0:
		default:
			return fmt.Errorf("%w: %q has %q", ErrInvalidKey, key, c)
		}
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("%w: %q has the part %q", ErrInvalidKey, key, part)
		}
	}
	return nil
}
