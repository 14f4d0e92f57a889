package metadata

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A stateHash is a hash over a set of stored keys and values that can be kept up
// to date at the cost of what changes: the sum of the records' own hashes. It is
// compared between voters that trust each other, so it need not withstand an
// opponent who picks the values.
type stateHash [2]uint64

func recordHash(key string, value []byte) stateHash {
	h := sha256.New()
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(key)))
	h.Write(n[:])
	h.Write([]byte(key))
	h.Write(value)
	sum := h.Sum(nil)
	return stateHash{binary.LittleEndian.Uint64(sum), binary.LittleEndian.Uint64(sum[8:])}
}

func (h *stateHash) add(r stateHash) {
	h[0] += r[0]
	h[1] += r[1]
}

func (h *stateHash) remove(r stateHash) {
	h[0] -= r[0]
	h[1] -= r[1]
}

func (h stateHash) bytes() []byte {
	b := binary.LittleEndian.AppendUint64(nil, h[0])
	return binary.LittleEndian.AppendUint64(b, h[1])
}

func parseStateHash(b []byte) (stateHash, bool) {
	if len(b) != 16 {
		return stateHash{}, false
	}
	return stateHash{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}, true
}

// String returns the hash as 32 hexadecimal digits.
func (h stateHash) String() string { return fmt.Sprintf("%016x%016x", h[0], h[1]) }
