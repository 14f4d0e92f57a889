package tier

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// The writer object says that a cluster is at work on a prefix. Integers are
// big-endian:
//
//	offset size field
//	0      4    magic "CWWR"
//	4      2    version, 1
//	6      2    0
//	8      16   cluster id
//	24     8    when it was written, Unix milliseconds, by the writer's clock
//	32     4    CRC32C of bytes 0-31
//
// On disk: must not change. See docs/format/segment-object.md.
const (
	writerMagic   = "CWWR"
	writerVersion = 1
	writerBytes   = 36
)

// WriterInterval is how often a cluster at work rewrites its writer object, and
// WriterLease how long one counts: whoever finds a younger one must take it that
// somebody writes to the prefix.
const (
	WriterInterval = time.Minute
	WriterLease    = 10 * time.Minute
)

// WriterKey returns the key of the object that says that a cluster is at work.
func WriterKey(prefix string) string { return listPrefix(prefix) + "writer" }

func writerContent(id ID, now time.Time) []byte {
	b := make([]byte, 0, writerBytes)
	b = append(b, writerMagic...)
	b = binary.BigEndian.AppendUint16(b, writerVersion)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = append(b, id[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(now.UnixMilli()))
	return binary.BigEndian.AppendUint32(b, checksum(b))
}

func parseWriter(b []byte) (ID, time.Time, error) {
	if len(b) != writerBytes || string(b[:4]) != writerMagic || checksum(b[:32]) != binary.BigEndian.Uint32(b[32:]) {
		return ID{}, time.Time{}, fmt.Errorf("%w: not a writer object", ErrCorrupt)
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != writerVersion {
		return ID{}, time.Time{}, &VersionError{What: "writer object", Version: int(v)}
	}
	return ID(b[8:24]), time.UnixMilli(int64(binary.BigEndian.Uint64(b[24:]))), nil
}

// LastWriter returns when a cluster last said that it is at work on a prefix: the
// later of the store's word and its own. ok is false if none ever did: who gives no
// [Options].Writer does not, as most that use [Open] alone. Whoever
// changes what is in the store without being that cluster asks first, and leaves it
// alone for [WriterLease]. Errors are those of the store; an object that can't be read
// counts by the store's time.
func LastWriter(ctx context.Context, s ObjectStore, prefix string) (at time.Time, ok bool, err error) {
	key := WriterKey(prefix)
	info, err := s.Head(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound):
		return time.Time{}, false, nil
	case err != nil:
		return time.Time{}, false, err
	}
	at = info.LastModified
	if b, err := s.GetRange(ctx, key, 0, writerBytes); err == nil {
		if _, own, err := parseWriter(b); err == nil && own.After(at) {
			at = own
		}
	}
	return at, true, nil
}

// announcePoll bounds how long a node that has begun to speak for the cluster waits
// until it says so.
const (
	announceFirst = 50 * time.Millisecond
	announcePoll  = 5 * time.Second
)

// announce writes the writer object at once and each WriterInterval while
// Options.Writer says that this node speaks for the cluster.
func (m *Manager) announce(ctx context.Context) {
	wait, failures := announceFirst, 0
	for {
		if sleep(ctx, wait) != nil {
			return
		}
		if !m.ours() || !m.o.Writer() {
			wait = min(2*wait, announcePoll)
			continue
		}
		tctx, cancel := context.WithTimeout(ctx, m.o.StoreTimeout)
		b := writerContent(m.o.Cluster, time.Now())
		err := m.o.Store.Put(tctx, WriterKey(m.o.Prefix), bytes.NewReader(b), int64(len(b)), PutOptions{CRC32C: checksum(b), HasCRC32C: true})
		cancel()
		if err == nil {
			wait, failures = WriterInterval, 0
			continue
		}
		if failures == 0 && ctx.Err() == nil {
			m.o.Logger.Warn("writer object", "key", WriterKey(m.o.Prefix), "error", err)
		}
		wait = backoff(failures, &m.o, err)
		failures++
	}
}
