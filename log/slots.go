package log

import "hash/crc32"

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
//	84      4     CRC32C of bytes 0 to 83
//
// The file grows in steps: the slots stand at a position that is a power of two
// from slotFirst to slotStep, or a multiple of slotStep, and the file ends 8 KiB
// behind. A step writes slots at the new position; the old ones are overwritten by
// batches only after the new ones are durable. So recovery finds the durable end
// whichever step it meets.
const (
	slotMagic   = "CWSL"
	slotVersion = 1
	slotBytes   = 88
	slotGap     = 4096
	slotArea    = 2 * slotGap
	slotFirst   = 64 << 10
	slotStep    = 64 << 20
)

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
	be.PutUint32(b[84:], crc32.Checksum(b[:84], castagnoli))
}

func decodeSlot(b []byte) (slot, bool) {
	if len(b) < slotBytes || string(b[:4]) != slotMagic || be.Uint32(b[84:]) != crc32.Checksum(b[:84], castagnoli) || be.Uint32(b[4:]) != slotVersion {
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
	return s, s.durable >= s.base && s.end >= s.durable && s.position >= 0
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

// newestSlot returns the valid slot of the segment with the highest sequence.
func newestSlot(f File, size int64, id logID, base Offset) (slot, bool, error) {
	var best slot
	var found bool
	var b [slotBytes]byte
	for _, p := range slotPositions(size) {
		for i := range int64(2) {
			if n, err := f.ReadAt(b[:], p+i*slotGap); n < len(b) {
				return slot{}, false, err
			}
			s, ok := decodeSlot(b[:])
			if ok && s.id == id && s.base == base && (!found || s.sequence > best.sequence) {
				best, found = s, true
			}
		}
	}
	return best, found, nil
}

func crcUpdate(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }
