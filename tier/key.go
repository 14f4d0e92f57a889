package tier

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/cordwood-io/cordwood/log"
)

// A Key names one segment object. It is never used twice: ID is fresh for each
// attempt.
type Key struct {
	Partition log.PartitionID
	Base, End log.Offset
	Epoch     log.Epoch
	ID        ID
}

// Path returns the object key
//
//	<prefix>/<hash>/<topic id>/<partition>/<base>-<end>-<epoch>-<uuid>
//
// with offsets of 20 digits, so that a listing is in the order of offsets. Hash
// is the first 4 hex digits of SHA-256 over topic id and partition: it spreads
// partitions over the store's own partitions, and one partition can still be
// listed by its prefix. An empty prefix is left out with its slash.
func (k Key) Path(prefix string) string {
	return fmt.Sprintf("%s%020d-%020d-%d-%v", PartitionPrefix(prefix, k.Partition), k.Base, k.End, k.Epoch, k.ID)
}

// PartitionPrefix returns what the keys of all segment objects of a partition
// begin with. It ends with a slash.
func PartitionPrefix(prefix string, p log.PartitionID) string {
	if prefix != "" {
		prefix += "/"
	}
	return fmt.Sprintf("%s%s/%v/%d/", prefix, keyHash(p), p.Topic, p.Index)
}

func keyHash(p log.PartitionID) string {
	h := sha256.Sum256(binary.BigEndian.AppendUint32(p.Topic[:], uint32(p.Index)))
	return hex.EncodeToString(h[:2])
}

// ParseKey reads what [Key.Path] writes and reports false for every other key,
// such as that of the owner object.
func ParseKey(prefix, path string) (Key, bool) {
	rest := path
	if prefix != "" {
		var ok bool
		if rest, ok = strings.CutPrefix(path, prefix+"/"); !ok {
			return Key{}, false
		}
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 4 {
		return Key{}, false
	}
	var k Key
	topic, err := log.ParseTopicID(parts[1])
	if err != nil {
		return Key{}, false
	}
	index, err := strconv.ParseInt(parts[2], 10, 32)
	if err != nil {
		return Key{}, false
	}
	fields := strings.SplitN(parts[3], "-", 4)
	if len(fields) != 4 {
		return Key{}, false
	}
	base, err1 := strconv.ParseInt(fields[0], 10, 64)
	end, err2 := strconv.ParseInt(fields[1], 10, 64)
	epoch, err3 := strconv.ParseInt(fields[2], 10, 32)
	id, err4 := ParseID(fields[3])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || index < 0 || base < 0 || end <= base || epoch < 0 {
		return Key{}, false
	}
	k = Key{
		Partition: log.PartitionID{Topic: topic, Index: int32(index)},
		Base:      log.Offset(base), End: log.Offset(end), Epoch: log.Epoch(epoch), ID: id,
	}
	return k, k.Path(prefix) == path
}

// OwnerKey returns the key of the object that says whose prefix this is.
func OwnerKey(prefix string) string {
	if prefix == "" {
		return "owner"
	}
	return prefix + "/owner"
}
