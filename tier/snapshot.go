package tier

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A state as bytes, in a checkpoint event, a manifest object or the local state
// file. The same state always has the same bytes, so that replicas can compare
// their hashes. Integers are varints as of encoding/binary where the table does not
// say a size: u unsigned, i zigzag. Big-endian otherwise.
//
//	size field
//	4    magic "CWTS"
//	2    version: 2 if what is marked so below is not 0, else 1
//	1    1: a barrier was taken; 2: the topic was deleted (version 2)
//	i    epoch of the last barrier
//	u    sequence number of the last event taken in it
//	u    log start
//	u    tier end
//	u    when no write without an event can be under way any more (version 2 only)
//	u    number of lineage entries, then for each: u epoch, u start
//	u    number of ranges, then for each:
//	16     object id
//	i      base, minus the end of the range before (0 for the first)
//	u      end minus base
//	u      leader epoch of the uploader
//	4      CRC32C of the object
//	u      bytes of batches
//	u      bytes of the object
//	u      bytes of its tail
//	i      highest record time, minus that of the range before
//	i      time of sealing, minus that of the range before
//	u      until when another write of it may land, 0 for never
//	u      until when it is kept though nobody may read it (version 2 only)
//	u    number of pending objects, then for each:
//	16     object id
//	u      base
//	u      end minus base
//	u      leader epoch of the uploader
//	1      1: it has a deadline; 2: deletion has begun; 4: it was a range before
//	u      deadline, if it has one
//	4    CRC32C of all bytes before
//
// Times are Unix milliseconds. On disk: must not change. See docs/format/tier-state.md.
const (
	stateMagic   = "CWTS"
	stateVersion = 1

	// stateVersionKeep is of a state that an earlier release can't have: all others
	// keep the bytes, and so the hash, that they have always had.
	stateVersionKeep = 2

	// minRangeBytes and minPendingBytes are the least that an entry takes: a count
	// is believed only as far as there are bytes for it.
	minRangeBytes   = 16 + 4 + 8
	minPendingBytes = 16 + 4
)

const (
	pendingDeadline = 1 << iota
	pendingDeleting
	pendingFinished
)

const (
	stateOpened = 1 << iota
	stateDeleted
)

// keeps says whether a state needs version 2. Ranges below the log start come first,
// and their times of keeping are not in order.
func (s *State) keeps() bool {
	return s.deleted || slices.ContainsFunc(s.ranges[:s.live], func(r Range) bool { return r.untilMs != 0 })
}

// encode appends the state's bytes to b.
func (s *State) encode(b []byte) []byte {
	at := len(b)
	b = append(b, stateMagic...)
	keeps := s.keeps()
	version := uint16(stateVersion)
	if keeps {
		version = stateVersionKeep
	}
	b = binary.BigEndian.AppendUint16(b, version)
	flags := byte(0)
	if s.opened {
		flags |= stateOpened
	}
	if s.deleted {
		flags |= stateDeleted
	}
	b = append(b, flags)
	u := func(v int64) { b = binary.AppendUvarint(b, uint64(v)) }
	i := func(v int64) { b = binary.AppendVarint(b, v) }
	i(int64(s.epoch))
	b = binary.AppendUvarint(b, s.seq)
	u(int64(s.logStart))
	u(int64(s.tierEnd))
	if keeps {
		u(s.quietMs)
	}
	u(int64(len(s.lineage)))
	for _, e := range s.lineage {
		u(int64(e.Epoch))
		u(int64(e.Start))
	}
	u(int64(len(s.ranges)))
	var below Range
	for _, r := range s.ranges {
		b = append(b, r.ID[:]...)
		i(int64(r.Base - below.End))
		u(int64(r.End - r.Base))
		u(int64(r.Epoch))
		b = binary.BigEndian.AppendUint32(b, r.CRC32C)
		u(r.BatchBytes)
		u(r.ObjectBytes)
		u(r.TailBytes)
		i(r.maxTimestampMs - below.maxTimestampMs)
		i(r.sealedMs - below.sealedMs)
		u(r.lingersMs)
		if keeps {
			u(r.untilMs)
		}
		below = r
	}
	u(int64(len(s.pending)))
	for _, p := range s.pending {
		b = append(b, p.ID[:]...)
		u(int64(p.Base))
		u(int64(p.End - p.Base))
		u(int64(p.Epoch))
		flags := byte(0)
		if !p.Deadline.IsZero() {
			flags |= pendingDeadline
		}
		if p.Deleting {
			flags |= pendingDeleting
		}
		if p.Finished {
			flags |= pendingFinished
		}
		b = append(b, flags)
		if flags&pendingDeadline != 0 {
			u(p.Deadline.UnixMilli())
		}
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// stateReader reads varints until the first error.
type stateReader struct {
	b   []byte
	bad bool
}

func (r *stateReader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return make([]byte, n)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *stateReader) u() int64 {
	v, n := binary.Uvarint(r.b)
	// The shortest form only: the same state has the same bytes.
	if r.bad || n <= 0 || v > 1<<63-1 || n > 1 && r.b[n-1] == 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return int64(v)
}

func (r *stateReader) u64() uint64 {
	v, n := binary.Uvarint(r.b)
	if r.bad || n <= 0 || n > 1 && r.b[n-1] == 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *stateReader) i() int64 {
	v, n := binary.Varint(r.b)
	if r.bad || n <= 0 || n > 1 && r.b[n-1] == 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads a number of entries of at least size bytes each.
func (r *stateReader) count(size int) int {
	n := r.u()
	if r.bad || n > int64(len(r.b)/size) {
		r.bad = true
		return 0
	}
	return int(n)
}

func (r *stateReader) epoch() log.Epoch {
	v := r.u()
	if v > 1<<31-1 {
		r.bad = true
	}
	return log.Epoch(v)
}

// decodeState reads what encode wrote, and holds it against the invariants of a
// state. It shares no memory with b.
func decodeState(b []byte) (*State, error) {
	bad := func(format string, a ...any) (*State, error) {
		return nil, fmt.Errorf("%w: tier state: %s", ErrCorrupt, fmt.Sprintf(format, a...))
	}
	if len(b) < 11 || string(b[:4]) != stateMagic {
		return bad("no magic")
	}
	if crc32.Checksum(b[:len(b)-4], castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return bad("wrong checksum")
	}
	version := binary.BigEndian.Uint16(b[4:])
	if version < stateVersion || version > stateVersionKeep {
		return nil, &VersionError{What: "tier state", Version: int(version)}
	}
	keeps := version == stateVersionKeep
	r := &stateReader{b: b[7 : len(b)-4]}
	s := &State{opened: b[6]&stateOpened != 0, deleted: b[6]&stateDeleted != 0}
	if b[6] > stateOpened|stateDeleted || s.deleted && (!keeps || !s.opened) {
		return bad("flags %d", b[6])
	}
	epoch := r.i()
	s.epoch, s.seq = log.Epoch(epoch), r.u64()
	s.logStart, s.tierEnd = log.Offset(r.u()), log.Offset(r.u())
	if keeps {
		s.quietMs = r.u()
	}
	if r.bad || s.quietMs > maxTimeMillis || !s.deleted && s.quietMs != 0 || s.deleted && s.logStart != s.tierEnd || epoch < 0 || epoch > 1<<31-1 || s.tierEnd < s.logStart || !s.opened && (epoch != 0 || s.seq != 0) {
		return bad("epoch %d, sequence %d, [%d, %d)", epoch, s.seq, s.logStart, s.tierEnd)
	}
	for range r.count(2) {
		s.lineage = append(s.lineage, log.EpochStart{Epoch: r.epoch(), Start: log.Offset(r.u())})
	}
	if r.bad || !validLineage(s.lineage) {
		return bad("lineage")
	}
	n := r.count(minRangeBytes)
	s.ranges = make([]Range, 0, n)
	if n > 0 {
		s.held = make(map[ID]struct{}, n)
	}
	var below Range
	for range n {
		var x Range
		x.ID = ID(r.take(16))
		x.Base = below.End + log.Offset(r.i())
		x.End = x.Base + log.Offset(r.u())
		x.Epoch = r.epoch()
		x.CRC32C = binary.BigEndian.Uint32(r.take(4))
		x.BatchBytes, x.ObjectBytes, x.TailBytes = r.u(), r.u(), r.u()
		x.maxTimestampMs = below.maxTimestampMs + r.i()
		x.sealedMs = below.sealedMs + r.i()
		x.lingersMs = r.u()
		if keeps {
			x.untilMs = r.u()
		}
		_, twice := s.held[x.ID]
		if r.bad || twice || x.Base < 0 || x.End <= x.Base || x.End <= below.End || x.End > s.tierEnd ||
			x.BatchBytes > maxObjectBytes || x.ObjectBytes > maxObjectBytes || x.TailBytes >= x.ObjectBytes ||
			x.untilMs > maxTimeMillis || x.untilMs != 0 && x.End > s.logStart {
			return bad("range %d", len(s.ranges))
		}
		s.held[x.ID] = struct{}{}
		s.ranges = append(s.ranges, x)
		if x.End <= s.logStart {
			s.live = len(s.ranges)
		} else {
			s.liveBytes += x.BatchBytes
		}
		below = x
	}
	for range r.count(minPendingBytes) {
		var p Pending
		p.ID = ID(r.take(16))
		p.Base = log.Offset(r.u())
		p.End = p.Base + log.Offset(r.u())
		p.Epoch = r.epoch()
		flags := r.take(1)[0]
		if flags&pendingDeadline != 0 {
			p.Deadline = time.UnixMilli(r.u())
		}
		p.Deleting, p.Finished = flags&pendingDeleting != 0, flags&pendingFinished != 0
		_, held := s.held[p.ID]
		if r.bad || held || s.findPending(p.ID) >= 0 || p.End <= p.Base || flags >= 8 {
			return bad("pending object %d", len(s.pending))
		}
		s.pending = append(s.pending, p)
	}
	if r.bad || len(r.b) > 0 {
		return bad("length")
	}
	if len(s.ranges) == 0 {
		s.ranges = nil
	}
	if keeps != s.keeps() {
		return bad("version %d", version)
	}
	return s, nil
}

// hashState is what a checkpoint says of a state.
func hashState(encoded []byte) [sha256.Size]byte { return sha256.Sum256(encoded) }

// checkpoint returns the body of a checkpoint event that would be the next one, with
// the state in it.
func (s *State) checkpoint() Checkpoint {
	b := s.encode(nil)
	return Checkpoint{State: b, Bytes: int64(len(b)), Hash: hashState(b)}
}

// load makes s the state that a checkpoint event holds: as of after the event.
// encoded is the checkpoint's, from the event or from its manifest.
func (s *State) load(e Event, encoded []byte) error {
	c := e.Body.(Checkpoint)
	if int64(len(encoded)) != c.Bytes || hashState(encoded) != c.Hash {
		return fmt.Errorf("%w: it is not the state of the checkpoint", ErrCorrupt)
	}
	n, err := decodeState(encoded)
	if err != nil {
		return err
	}
	if !n.opened || n.epoch != e.Epoch || n.seq+1 != e.Seq {
		return fmt.Errorf("%w: a state of epoch %d, sequence %d in checkpoint %d of epoch %d", ErrCorrupt, n.epoch, n.seq, e.Seq, e.Epoch)
	}
	n.seq = e.Seq
	n.manifest = c.Manifest
	*s = *n
	return nil
}

// newer says whether a checkpoint is of a later moment than the state, whatever lies
// between: what a reader goes by that did not see all events.
func (s *State) newer(e Event) bool {
	if !s.opened || e.Epoch != s.epoch {
		return !s.opened || e.Epoch > s.epoch
	}
	return e.Seq > s.seq
}
