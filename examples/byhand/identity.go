package byhand

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata"
)

// An ID names a cluster, a node directory or a process life: 16 random bytes,
// written as a UUID.
type ID = metadata.ID

// NewID returns a new random ID. Safe for concurrent use.
func NewID() ID { return metadata.NewID() }

// ParseID reads what [ID]'s String method writes.
func ParseID(s string) (ID, error) { return metadata.ParseID(s) }

// A Voter is a member of the metadata quorum.
type Voter struct {
	ID   int32  // the voter's node id
	Addr string // where its transport listens
}

// identity is what a node directory says of itself in the file "node".
//
//	offset  size  field
//	0       4     magic "CWND"
//	4       2     version, now 1
//	6       4     node id
//	10      16    directory id
//	26      16    cluster id, zero before Init or Join
//	42      2     number of voters, then per voter: 4 id, 2 length, address
//	end-4   4     CRC32C of all before
//
// All integers are big endian. The file is replaced by rename, synced, so that a
// crash leaves the old or the new one. Magic and version must not change.
type identity struct {
	node      int32
	directory ID
	cluster   ID
	voters    []Voter
}

const (
	identityFile    = "node"
	identityMagic   = "CWND"
	identityVersion = 1
	maxIdentity     = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (id identity) encode() []byte {
	b := append(make([]byte, 0, 128), identityMagic...)
	b = binary.BigEndian.AppendUint16(b, identityVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(id.node))
	b = append(b, id.directory[:]...)
	b = append(b, id.cluster[:]...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(id.voters)))
	for _, v := range id.voters {
		b = binary.BigEndian.AppendUint32(b, uint32(v.ID))
		b = appendString(b, v.Addr)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeIdentity(name string, b []byte) (identity, error) {
	damaged := func(why string) error {
		return &log.CorruptionError{Path: name, Err: errors.New(why)}
	}
	if len(b) < 10 || string(b[:4]) != identityMagic {
		return identity{}, damaged("not a node file")
	}
	if v := int(binary.BigEndian.Uint16(b[4:])); v > identityVersion {
		return identity{}, &VersionError{Path: name, Found: v, Known: identityVersion}
	}
	body := b[:len(b)-4]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return identity{}, damaged("checksum does not match")
	}
	d := decoder{b: body[6:]}
	id := identity{node: int32(d.u32()), directory: d.id(), cluster: d.id()}
	for n := int(d.u16()); n > 0 && d.err == nil; n-- {
		id.voters = append(id.voters, Voter{ID: int32(d.u32()), Addr: d.str()})
	}
	if err := d.end(); err != nil {
		return identity{}, damaged(err.Error())
	}
	return id, nil
}

// loadIdentity reads the node file of dir, or makes a new identity that store
// has not written yet (fresh is true).
func loadIdentity(fsys log.FS, dir string, node int32) (id identity, fresh bool, err error) {
	name := path.Join(dir, identityFile)
	b, err := readSmall(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return identity{node: node, directory: NewID()}, true, nil
	}
	if err != nil {
		return identity{}, false, err
	}
	id, err = decodeIdentity(name, b)
	if err != nil {
		return identity{}, false, err
	}
	if id.node != node {
		return identity{}, false, fmt.Errorf("cordwood: directory %s belongs to node %d, not to node %d: give the id it was made with, or another directory", dir, id.node, node)
	}
	return id, false, nil
}

// store writes the node file of dir durably.
func (id identity) store(fsys log.FS, dir string) error {
	name := path.Join(dir, identityFile)
	temp := name + ".tmp"
	if err := fsys.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(temp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(id.encode(), 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(temp, name); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// readSmall reads a file of at most maxIdentity bytes.
func readSmall(fsys log.FS, name string) (_ []byte, err error) {
	f, err := fsys.Open(name, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxIdentity {
		return nil, &log.CorruptionError{Path: name, Err: fmt.Errorf("%d bytes are too many", size)}
	}
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); n < len(b) && err != nil && err != io.EOF {
		return nil, err
	}
	return b, nil
}
