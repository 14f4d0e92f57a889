package byhand

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Messages between nodes, in the body of a transport frame, which carries the
// checksum. All integers are big endian; a string is a uint16 length and its
// bytes. The first byte of every body is the version of its layout, now 1.
// The byte tables stand in docs/format/node-message.md.
//
// The numbers must not change: nodes of other versions read them.
const (
	kindRaft     uint16 = 1 // one way: a message of the metadata quorum
	kindMetadata uint16 = 2 // call: a request to the metadata server
	kindFetch    uint16 = 3 // call: a replication fetch session
	kindProgress uint16 = 4 // one way: a follower's durable ends
	kindJoin     uint16 = 5 // call: cluster id and voters for a new node
	kindJoined   uint16 = 6 // call: a joining voter is up
	kindAppend   uint16 = 7 // call: append to the partition's leader
	kindRead     uint16 = 8 // call: read from the partition's leader
	kindOffsets  uint16 = 9 // call: the partition's offsets at its leader
)

const messageVersion = 1

// errMalformed is what a body that can't be decoded gives.
var errMalformed = errors.New("cordwood: malformed message")

// A decoder reads a body front to back. After the first error all reads return
// zero values; err tells.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.b) {
		d.err = errMalformed
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if p := d.take(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if p := d.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if p := d.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (d *decoder) str() string { return string(d.take(int(d.u16()))) }

func (d *decoder) id() (id [16]byte) {
	copy(id[:], d.take(16))
	return id
}

// bytes reads a uint32 length and that many bytes, which alias the body.
func (d *decoder) bytes() []byte {
	n := d.u32()
	if uint64(n) > uint64(len(d.b)) {
		d.err = errMalformed
		return nil
	}
	return d.take(int(n))
}

// version reads the first byte of a body.
func (d *decoder) version() {
	if v := d.u8(); d.err == nil && v != messageVersion {
		d.err = fmt.Errorf("%w: version %d, this node knows %d", errMalformed, v, messageVersion)
	}
}

// end reports the first error, or that bytes are left over.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) != 0 {
		d.err = fmt.Errorf("%w: %d bytes too many", errMalformed, len(d.b))
	}
	return d.err
}

func appendString(b []byte, s string) []byte {
	s = s[:min(len(s), 1<<16-1)]
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendBytes(b, p []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
	return append(b, p...)
}
