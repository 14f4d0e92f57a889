package log

import (
	"math"
	"sort"
)

// Kafka's offset index, <base>.index, has 8 bytes per entry, big-endian:
//
//	offset  size  field
//	0       4     last offset of a batch, minus the segment's base
//	4       4     position of the batch in the .log file
//
// and its time index, <base>.timeindex, 12:
//
//	offset  size  field
//	0       8     highest record time so far, ms since 1970
//	8       4     last offset of the batch with it, minus the segment's base
//
// Both fields of either ascend. An entry is made for the first batch after more
// than indexInterval bytes without one. Neither file has a checksum: the seal or
// the marker of a clean close holds it, and a file that does not agree is built
// again from the log. The first batch of a segment never has an entry.
const (
	indexSuffix     = ".index"
	timeIndexSuffix = ".timeindex"
	logSuffix       = ".log"
	indexEntryBytes = 8
	timeEntryBytes  = 12
	indexInterval   = 4096
)

type indexEntry struct {
	last     uint32 // relative to base
	position uint32
}

type timeEntry struct {
	timestamp int64
	offset    uint32 // relative to base
}

// An index is what is kept in memory of one segment's indexes.
//
// Invariant: entries are never changed in place, so that copies of the slice
// headers stay valid while the segment grows.
type index struct {
	offsets []indexEntry
	times   []timeEntry
	headers []uint32     // headerSum before each entry's batch; only while the segment is active
	aborted []AbortedTxn // whose markers are in the segment; only while it is active

	sinceEntry   int64  // bytes after the last entry
	headerSum    uint32 // CRC32C over the first 21 bytes of all batches
	maxTimestamp int64  // -1 when empty
	maxAt        Offset
}

func newIndex() index { return index{maxTimestamp: -1, maxAt: -1} }

// note records a batch of size bytes at position.
func (x *index) note(base Offset, first21 []byte, last Offset, maxTimestamp int64, position, size int64) {
	if maxTimestamp > x.maxTimestamp || x.maxAt < 0 {
		x.maxTimestamp, x.maxAt = maxTimestamp, last
	}
	if x.sinceEntry > indexInterval {
		x.offsets = append(x.offsets, indexEntry{uint32(last - base), uint32(position)})
		x.noteTime(base)
		x.headers = append(x.headers, x.headerSum)
		x.sinceEntry = 0
	}
	x.headerSum = crcUpdate(x.headerSum, first21)
	x.sinceEntry += size
}

// noteEnd records the end of a transaction, whose marker was noted.
func (x *index) noteEnd(e txnEnd) {
	if e.aborted {
		x.aborted = append(x.aborted, e.AbortedTxn)
	}
}

func (x *index) noteTime(base Offset) {
	if x.maxAt < 0 {
		return
	}
	if n := len(x.times); n > 0 && (x.times[n-1].timestamp >= x.maxTimestamp || x.times[n-1].offset >= uint32(x.maxAt-base)) {
		return
	}
	x.times = append(x.times, timeEntry{x.maxTimestamp, uint32(x.maxAt - base)})
}

// find returns the position of a batch at or before the one that holds off, and
// the position of the next entry after that (or -1).
func find(entries []indexEntry, base, off Offset) (at, next int64) {
	rel := off - base
	i := sort.Search(len(entries), func(i int) bool { return Offset(entries[i].last) > rel })
	next = -1
	if i < len(entries) {
		next = int64(entries[i].position)
	}
	if i == 0 {
		return 0, next
	}
	return int64(entries[i-1].position), next
}

func appendIndex(b []byte, entries []indexEntry) []byte {
	for _, e := range entries {
		b = be.AppendUint32(b, e.last)
		b = be.AppendUint32(b, e.position)
	}
	return b
}

func appendTimeIndex(b []byte, entries []timeEntry) []byte {
	for _, e := range entries {
		b = be.AppendUint64(b, uint64(e.timestamp))
		b = be.AppendUint32(b, e.offset)
	}
	return b
}

// parseIndex decodes an offset index of a segment of size bytes that spans the
// given number of offsets.
func parseIndex(b []byte, size int64, span Offset) ([]indexEntry, error) {
	if len(b)%indexEntryBytes != 0 {
		return nil, errDamaged
	}
	out := make([]indexEntry, 0, len(b)/indexEntryBytes)
	last := indexEntry{}
	for ; len(b) > 0; b = b[indexEntryBytes:] {
		e := indexEntry{be.Uint32(b), be.Uint32(b[4:])}
		if e.last <= last.last || e.position <= last.position || int64(e.position) >= size || Offset(e.last) >= span || e.last > math.MaxInt32 {
			return nil, errDamaged
		}
		out = append(out, e)
		last = e
	}
	return out, nil
}

// parseTimeIndex decodes a time index of a segment that spans the given number of
// offsets.
func parseTimeIndex(b []byte, span Offset) ([]timeEntry, error) {
	if len(b)%timeEntryBytes != 0 {
		return nil, errDamaged
	}
	out := make([]timeEntry, 0, len(b)/timeEntryBytes)
	for ; len(b) > 0; b = b[timeEntryBytes:] {
		e := timeEntry{int64(be.Uint64(b)), be.Uint32(b[8:])}
		if Offset(e.offset) >= span {
			return nil, errDamaged
		}
		if n := len(out); n > 0 && (e.timestamp <= out[n-1].timestamp || e.offset <= out[n-1].offset) {
			return nil, errDamaged
		}
		out = append(out, e)
	}
	return out, nil
}
