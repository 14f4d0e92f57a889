package log

import (
	"hash/crc32"
	"io"
)

// The active segment's file is preallocated, and its last 8 KiB hold two slots,
// one at the start of each 4 KiB. A group of appends is made durable by one sync
// of the file, before which a slot is written, the two in turn: it states the end
// that is known durable already, so a slot never speaks of its own group. Sealed
// and cleanly closed files have their exact length and no slots.
//
//	offset  size  field
//	0       4     magic "CWSL"
//	4       4     version
//	8       16    log id
//	24      8     base offset of the segment
//	32      8     sequence: the higher one is the newer
//	40      8     end known durable, D
//	48      8     its position in the file
//	56      4     CRC32C of the first 21 bytes of each batch of the segment below D
//	60      4     leader epoch of the last batch below D, or -1
//	64      8     end that this slot's group reaches, E
//	72      4     the checksum of headers, of all batches below E
//	76      8     first append to the segment, ms since 1970, or 0
//	84      8     position up to which batches had been written, or held back, R
//	92      4     CRC32C of bytes 0 to 91
//
// The file grows in steps: the slots stand at a position that is a power of two
// from slotFirst to slotStep, or a multiple of slotStep, and the file ends 8 KiB
// behind. A step writes slots at the new position; the old ones are overwritten by
// batches only after the new ones are durable. So recovery finds the durable end
// whichever step it meets.
//
// A sync that has two places of a file to write takes longer than one with a single
// place. So while appends are small, a slot stands close behind the batches instead,
// in the first whole 4 KiB there, 3072 bytes from its start or 3584, in turn: near
// slots. The same holds for them: batches don't overwrite the newest one before
// another one is durable.
const (
	slotMagic   = "CWSL"
	slotVersion = 2
	slotBytes   = 96
	slotGap     = 4096
	slotArea    = 2 * slotGap
	slotFirst   = 64 << 10
	slotStep    = 64 << 20

	nearOffset = 3072
	nearGap    = 512
)

// nearRest is as much as must have been written in one group lately, after a near
// slot was in the way, that it takes about a hundred small groups until there is
// another near slot.
const nearRest = 1 << 20

// nearSlots is what is known of the near slots of the active file.
type nearSlots struct {
	newest int64 // position of the newest durable slot, 0 if it stands at the end
	next   int64 // of the one that is being synced, 0 if there is none
	leave  bool  // the next slot is to stand at the end
	reach  int64 // bytes of the largest group lately
	size   int64 // of batches, when the slot before was written
}

// lowest returns the position that batches must not reach now, 0 if there is none.
func (n *nearSlots) lowest() int64 {
	if n.newest == 0 || n.next != 0 && n.next < n.newest {
		return n.next
	}
	return n.newest
}

// place returns where the slot stands, of the two at a position.
func (s *slot) place(at int64) int64 { return at + int64(s.sequence&1)*slotGap }

// nearPlace returns where a near slot stands behind size bytes of batches.
func (s *slot) nearPlace(size int64) int64 {
	return (size+slotGap-1)/slotGap*slotGap + nearOffset + int64(s.sequence&1)*nearGap
}

// placeSlotLocked says where a slot that is going to be written stands: near if the
// next group will probably not reach it. A log that uses the journal syncs its file
// too rarely for that. A spare file's first slot must be found without its name.
func (l *Log) placeSlotLocked(r *round) {
	if !r.state || r.seg != l.active() {
		return
	}
	group := r.size - l.near.size
	if group < 0 {
		group = r.size
	}
	l.near.size = r.size
	l.near.reach = max(group, l.near.reach-l.near.reach/16)
	at := r.slot.nearPlace(r.size)
	if l.near.leave || l.marked || l.growth != 0 || l.spared && !l.slotted || at-r.size < l.near.reach || at+slotBytes > r.at {
		return
	}
	r.near, l.near.next = at, at
}

type slot struct {
	id            logID
	base          Offset
	sequence      uint64
	durable       Offset
	position      int64
	headers       uint32
	epoch         Epoch
	end           Offset
	endHeaders    uint32
	firstAppendMs int64
	written       int64

	near int64 // where it was found, if it is a near one; not stored
}

func (s *slot) encode(b *[slotBytes]byte) {
	copy(b[0:4], slotMagic)
	be.PutUint32(b[4:], slotVersion)
	copy(b[8:24], s.id[:])
	be.PutUint64(b[24:], uint64(s.base))
	be.PutUint64(b[32:], s.sequence)
	be.PutUint64(b[40:], uint64(s.durable))
	be.PutUint64(b[48:], uint64(s.position))
	be.PutUint32(b[56:], s.headers)
	be.PutUint32(b[60:], uint32(s.epoch))
	be.PutUint64(b[64:], uint64(s.end))
	be.PutUint32(b[72:], s.endHeaders)
	be.PutUint64(b[76:], uint64(s.firstAppendMs))
	be.PutUint64(b[84:], uint64(s.written))
	be.PutUint32(b[92:], crc32.Checksum(b[:92], castagnoli))
}

func decodeSlot(b []byte) (slot, bool) {
	if len(b) < slotBytes || string(b[:4]) != slotMagic || be.Uint32(b[92:]) != crc32.Checksum(b[:92], castagnoli) || be.Uint32(b[4:]) != slotVersion {
		return slot{}, false
	}
	var s slot
	copy(s.id[:], b[8:24])
	s.base = Offset(be.Uint64(b[24:]))
	s.sequence = be.Uint64(b[32:])
	s.durable = Offset(be.Uint64(b[40:]))
	s.position = int64(be.Uint64(b[48:]))
	s.headers = be.Uint32(b[56:])
	s.epoch = Epoch(be.Uint32(b[60:]))
	s.end = Offset(be.Uint64(b[64:]))
	s.endHeaders = be.Uint32(b[72:])
	s.firstAppendMs = int64(be.Uint64(b[76:]))
	s.written = int64(be.Uint64(b[84:]))
	return s, s.durable >= s.base && s.end >= s.durable && s.position >= 0 && s.written >= s.position
}

// slotPosition returns the lowest position for slots that leaves room for data
// bytes before it.
func slotPosition(data int64) int64 {
	p := int64(slotFirst)
	for p < data && p < slotStep {
		p *= 2
	}
	if p < data {
		p = (data + slotStep - 1) / slotStep * slotStep
	}
	return p
}

// slotPositions returns where slots can be in a file of size bytes, last first.
func slotPositions(size int64) []int64 {
	var out []int64
	p := int64(slotFirst)
	for p+slotArea <= size {
		out = append(out, p)
		if p < slotStep {
			p *= 2
		} else {
			p += slotStep
		}
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// newestSlot returns the valid slot of the segment with the highest sequence, and how
// far any of its slots says that batches were written.
//
// A near slot that is newer than another one stands above what that one says was
// written, as slots stand behind the batches. A cut below it would have taken away
// the older slot, which stands behind it too; and recovery cuts if batches of which a
// slot speaks are lost (see cutTail). So the file is read from its end on, down to
// what the newest slot so far says.
func newestSlot(f io.ReaderAt, size int64, id logID, base Offset) (best slot, written int64, found bool, err error) {
	return searchSlots(f, size, scanBytes, id, base)
}

// searchSlots is newestSlot with reads of piece bytes, a multiple of slotGap.
func searchSlots(f io.ReaderAt, size, piece int64, id logID, base Offset) (best slot, written int64, found bool, err error) {
	look := func(b []byte, near int64) {
		s, ok := decodeSlot(b)
		if !ok || s.id != id || s.base != base {
			return
		}
		written = max(written, s.written)
		if !found || s.sequence > best.sequence {
			best, found = s, true
			best.near = near
		}
	}
	var b [slotBytes]byte
	for _, p := range slotPositions(size) {
		for i := range int64(2) {
			if n, err := f.ReadAt(b[:], p+i*slotGap); n < len(b) {
				return slot{}, 0, false, err
			}
			look(b[:], 0)
		}
	}
	floor := func() int64 { return best.written }
	if err := eachNear(f, size, piece, floor, look); err != nil {
		return slot{}, 0, false, err
	}
	return best, written, found, nil
}

// eachNear calls look with the bytes and the position of every place where a near slot
// can stand, from the end of the file on, by pieces of it down to the one that holds
// floor, which may rise.
func eachNear(f io.ReaderAt, size, piece int64, floor func() int64, look func(b []byte, at int64)) error {
	buf := getBuffer(int(min(max(size, 0), piece)))
	defer buf.put()
	for at := (size - 1) / piece * piece; at >= 0 && at+piece > floor(); at -= piece {
		b := buf.b[:min(piece, size-at)]
		if err := readAt(f, b, at); err != nil {
			return err
		}
		for p := int64(nearOffset); p+nearGap+slotBytes <= int64(len(b)); p += slotGap {
			look(b[p:p+slotBytes], at+p)
			look(b[p+nearGap:p+nearGap+slotBytes], at+p+nearGap)
		}
	}
	return nil
}

func crcUpdate(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }
