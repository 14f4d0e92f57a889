package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
)

// The envelope of every file of our own beside Kafka's, and of the bytes that
// [Log.ProducerSnapshot] returns. Integers are big-endian, as Kafka's.
//
//	offset  size  field
//	0       8     magic: one per kind
//	8       4     version of the payload
//	12      4     n, length of the payload
//	16      4     CRC32C of bytes 0 to 15 and the payload
//	20      n     payload
//
// The envelope itself must never change: it is what lets an older version say
// that a file is newer. A file holds its envelope twice, so that one damaged
// sector takes nothing away: the second begins at the next multiple of 4096 after
// the end of the first and ends the file.
const (
	envelopeBytes  = 20
	envelopeAlign  = 4096
	maxSideBytes   = 256 << 20 // a longer side file is taken for damaged
	sideTempSuffix = ".tmp"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errDamaged = errors.New("damaged side file")

// seal writes the envelope into the first envelopeBytes of b, whose rest is the payload.
func sealEnvelope(b []byte, magic string, version uint32) {
	copy(b[0:8], magic)
	binary.BigEndian.PutUint32(b[8:], version)
	binary.BigEndian.PutUint32(b[12:], uint32(len(b)-envelopeBytes))
	binary.BigEndian.PutUint32(b[16:], envelopeSum(b))
}

func envelopeSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:16], castagnoli), castagnoli, b[envelopeBytes:])
}

// openEnvelope returns the payload of an envelope that fills b.
func openEnvelope(b []byte, magic string, supported uint32, name string) ([]byte, error) {
	if len(b) < envelopeBytes || string(b[:8]) != magic ||
		int64(binary.BigEndian.Uint32(b[12:])) != int64(len(b)-envelopeBytes) ||
		binary.BigEndian.Uint32(b[16:]) != envelopeSum(b) {
		return nil, errDamaged
	}
	if v := binary.BigEndian.Uint32(b[8:]); v > supported || v == 0 {
		return nil, &VersionError{Path: name, Version: v, Supported: supported}
	}
	return b[envelopeBytes:], nil
}

// openDoubled returns the payload of a file that holds its envelope twice.
func openDoubled(b []byte, magic string, supported uint32, name string) ([]byte, error) {
	if len(b) >= envelopeBytes {
		if n := int64(binary.BigEndian.Uint32(b[12:])) + envelopeBytes; n <= int64(len(b)) {
			payload, err := openEnvelope(b[:n], magic, supported, name)
			if !errors.Is(err, errDamaged) {
				return payload, err
			}
		}
	}
	// The first copy is damaged, and its length with it: the second is the one that
	// ends with the file.
	for at := envelopeAlign; at+envelopeBytes <= len(b); at += envelopeAlign {
		payload, err := openEnvelope(b[at:], magic, supported, name)
		if !errors.Is(err, errDamaged) {
			return payload, err
		}
	}
	return nil, errDamaged
}

// doubled returns the content of a file with the envelope b in it twice.
func doubled(b []byte) []byte {
	second := (len(b) + envelopeAlign - 1) / envelopeAlign * envelopeAlign
	out := make([]byte, second+len(b))
	copy(out, b)
	copy(out[second:], b)
	return out
}

// readFile reads a whole file. It does not go through the descriptor cache.
func readFile(fsys FS, name string, limit int64) (b []byte, err error) {
	f, err := fsys.Open(name, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("%s: %w: %d bytes", name, errDamaged, size)
	}
	b = make([]byte, size)
	if n, err := f.ReadAt(b, 0); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b, nil
}

// readSide reads the payload of one of our files. fs.ErrNotExist, errDamaged and
// *VersionError tell apart why there is none.
func readSide(fsys FS, name, magic string, supported uint32) ([]byte, error) {
	b, err := readFile(fsys, name, 2*maxSideBytes)
	if err != nil {
		return nil, err
	}
	return openDoubled(b, magic, supported, name)
}

// writeNew writes a file under a name that is made free first; sync makes its
// content durable. The name is not.
func writeNew(fsys FS, name string, content []byte, sync bool) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil && sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// replaceFile puts content in place of the file's own in one step, durably except
// for the name: the caller syncs the folder. On an error the old content stays,
// unless renamed says that the new one may have come.
func replaceFile(fsys FS, name string, content []byte) (renamed bool, err error) {
	temp := name + sideTempSuffix
	if err := writeNew(fsys, temp, content, true); err != nil {
		fsys.Remove(temp) //nolint:errcheck // what is left is removed at the next Open
		return false, err
	}
	return true, fsys.Rename(temp, name)
}

// rewriteFile makes the content that a file has durable, but not its name. A sync would
// not do if an earlier one has failed, in this life of the process or another: what is in
// memory passes for clean since. On a full disk it has to do.
func (d *Disk) rewriteFile(name string) error {
	content, err := readFile(d.fs, name, maxSideBytes)
	if err == nil {
		_, err = replaceFile(d.fs, name, content)
	}
	if full(err) {
		err = d.syncName(name)
	}
	return err
}

// A decoder takes integers off a payload. After the first shortage it yields
// zeros and ok is false.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.bad = true
		d.b = nil
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) u8() uint8 {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if v := d.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if v := d.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if v := d.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (d *decoder) i32() int32   { return int32(d.u32()) }
func (d *decoder) i64() int64   { return int64(d.u64()) }
func (d *decoder) off() Offset  { return Offset(d.u64()) }
func (d *decoder) epoch() Epoch { return Epoch(d.u32()) }

// count takes a number of items that need at least size bytes each.
func (d *decoder) count(size int) int {
	n := int64(d.u32())
	if n*int64(size) > int64(len(d.b)) {
		d.bad = true
		return 0
	}
	return int(n)
}

// done reports whether all was there and nothing is left.
func (d *decoder) done() bool { return !d.bad && len(d.b) == 0 }

var be = binary.BigEndian

func joinPath(dir, name string) string { return path.Join(dir, name) }
