package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	iofs "io/fs"
	"path"

	"github.com/cordwood-io/cordwood/log"
)

// HintFile is the name of the file beside a log in which its replica notes the high
// watermark from time to time. It is a hint: a lower bound, so that losing it, or
// the last writes to it, costs nothing but that a restarted replica learns its high
// watermark from the others.
const HintFile = "high-watermark"

// The hint file has two slots, at byte 0 and at byte hintSlot, in sectors of their
// own; they are written in turn, and the good one with the higher sequence counts.
// All integers are big-endian.
//
//	offset  size  field
//	     0     4  magic "CWhw"
//	     4     2  version = 1
//	     6     2  zero
//	     8    16  topic id
//	    24     4  partition index
//	    28     8  sequence
//	    36     8  high watermark
//	    44     4  CRC32C over the bytes before
const (
	hintVersion = 1
	hintBytes   = 48
	hintSlot    = 4096
)

var magicHint = [4]byte{'C', 'W', 'h', 'w'}

func encodeHint(p log.PartitionID, seq uint64, hw log.Offset) []byte {
	b := make([]byte, 0, hintBytes)
	b = append(b, magicHint[:]...)
	b = binary.BigEndian.AppendUint16(b, hintVersion)
	b = append(b, 0, 0)
	b = appendPartition(b, p)
	b = binary.BigEndian.AppendUint64(b, seq)
	b = binary.BigEndian.AppendUint64(b, uint64(hw))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeHint(b []byte, p log.PartitionID) (seq uint64, hw log.Offset, err error) {
	if len(b) < hintBytes || [4]byte(b[:4]) != magicHint ||
		crc32.Checksum(b[:hintBytes-4], castagnoli) != binary.BigEndian.Uint32(b[hintBytes-4:]) {
		return 0, 0, fmt.Errorf("%w: no high watermark", ErrMessage)
	}
	r := &reader{b[4:]}
	if v := r.u16(); v != hintVersion {
		return 0, 0, fmt.Errorf("%w: high watermark of version %d, this build knows %d", ErrMessage, v, hintVersion)
	}
	r.u16()
	if r.partition() != p {
		return 0, 0, fmt.Errorf("%w: high watermark of another partition", ErrMessage)
	}
	seq, hw = r.u64(), r.offset()
	if hw < 0 {
		return 0, 0, fmt.Errorf("%w: negative high watermark", ErrMessage)
	}
	return seq, hw, nil
}

// A hint is the state of one replica's hint file. Used by one goroutine at a time.
type hint struct {
	fs   log.FS
	dir  string
	id   log.PartitionID
	seq  uint64
	last log.Offset // in the slot with the highest sequence
}

// read returns what the file says, 0 if it says nothing. Only an error of the disk
// is returned.
func (h *hint) read() (log.Offset, error) {
	f, err := h.fs.Open(path.Join(h.dir, HintFile), false)
	if errors.Is(err, iofs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("replication: read high watermark: %w", err)
	}
	defer f.Close()
	for slot := range int64(2) {
		b := make([]byte, hintBytes)
		if _, err := f.ReadAt(b, slot*hintSlot); err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("replication: read high watermark: %w", err)
		}
		if seq, hw, err := decodeHint(b, h.id); err == nil && seq > h.seq {
			h.seq, h.last = seq, hw
		}
	}
	return h.last, nil
}

// write notes hw, unsynced.
func (h *hint) write(hw log.Offset) error { return h.store(hw, 1, false) }

// lower notes an hw that may be below the last one, and makes sure that no earlier
// one can come back.
func (h *hint) lower(hw log.Offset) error { return h.store(hw, 2, true) }

func (h *hint) store(hw log.Offset, slots int, durable bool) (err error) {
	name := path.Join(h.dir, HintFile)
	f, err := h.fs.Open(name, true)
	if errors.Is(err, iofs.ErrNotExist) {
		f, err = h.fs.Create(name)
	}
	if err != nil {
		return fmt.Errorf("replication: write high watermark: %w", err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	for range slots {
		h.seq++
		if _, err := f.WriteAt(encodeHint(h.id, h.seq, hw), int64(h.seq%2)*hintSlot); err != nil {
			return fmt.Errorf("replication: write high watermark: %w", err)
		}
	}
	h.last = hw
	if durable {
		if err := f.Sync(); err != nil {
			return fmt.Errorf("replication: sync high watermark: %w", err)
		}
		if err := h.fs.SyncDir(h.dir); err != nil {
			return fmt.Errorf("replication: sync high watermark: %w", err)
		}
	}
	return nil
}
