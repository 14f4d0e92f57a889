package tier

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// The owner object, 28 bytes, integers big-endian:
//
//	offset size field
//	0      4    magic "CWOW"
//	4      2    version, 1
//	6      2    0
//	8      16   cluster id
//	24     4    CRC32C of bytes 0-23
//
// On disk: must not change. See docs/format/segment-object.md.
const (
	ownerMagic   = "CWOW"
	ownerVersion = 1
	ownerBytes   = 28
)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func ownerContent(id ID) []byte {
	b := make([]byte, 0, ownerBytes)
	b = append(b, ownerMagic...)
	b = binary.BigEndian.AppendUint16(b, ownerVersion)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = append(b, id[:]...)
	return binary.BigEndian.AppendUint32(b, checksum(b))
}

// parseOwner reads what ownerContent wrote.
func parseOwner(b []byte) (ID, error) {
	if len(b) != ownerBytes || string(b[:4]) != ownerMagic || checksum(b[:24]) != binary.BigEndian.Uint32(b[24:]) {
		return ID{}, fmt.Errorf("%w: not an owner object", ErrCorrupt)
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != ownerVersion {
		return ID{}, &VersionError{What: "owner object", Version: int(v)}
	}
	return ID(b[8:24]), nil
}
