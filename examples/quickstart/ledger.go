package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// A ledger remembers what the topic must hold: a 64-bit hash of each record's
// value, in order, eight bytes a record. It is kept beside the nodes so that a later
// run on the same directory can verify what an earlier one wrote. A record's key is
// its index in the ledger.
type ledger struct {
	file   *os.File
	hashes []uint64
	saved  int // how many are in the file
}

func openLedger(name string) (*ledger, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	l := &ledger{file: f}
	r := bufio.NewReaderSize(f, 1<<20)
	var b [8]byte
	for {
		_, err := io.ReadFull(r, b[:])
		if err == io.EOF || err == io.ErrUnexpectedEOF { // a torn entry was never relied on
			break
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read ledger: %w", err), f.Close())
		}
		l.hashes = append(l.hashes, binary.BigEndian.Uint64(b[:]))
	}
	l.saved = len(l.hashes)
	return l, nil
}

func hashOf(value []byte) uint64 {
	h := fnv.New64a()
	h.Write(value)
	return h.Sum64()
}

// save writes the first n hashes to the file, for records that are acknowledged.
func (l *ledger) save(n int) error {
	if n <= l.saved {
		return nil
	}
	b := make([]byte, 0, 8*(n-l.saved))
	for _, h := range l.hashes[l.saved:n] {
		b = binary.BigEndian.AppendUint64(b, h)
	}
	if _, err := l.file.WriteAt(b, 8*int64(l.saved)); err != nil {
		return fmt.Errorf("write ledger: %w", err)
	}
	l.saved = n
	return nil
}

func (l *ledger) close() error { return l.file.Close() }

// A verifier checks the topic against a ledger, record by record.
type verifier struct {
	want       []uint64
	seen       []uint64 // a bit per record
	next       uint64   // index that comes next in order
	records    int64
	bytes      int64
	changed    int64
	duplicated int64
	extra      []uint64 // hashes of records behind the ledger's end, in order
}

func newVerifier(want []uint64) *verifier {
	return &verifier{want: want, seen: make([]uint64, (len(want)+63)/64)}
}

// record takes one record as it was read back.
func (v *verifier) record(key, value []byte) {
	v.records++
	v.bytes += int64(len(value))
	if len(key) != 8 {
		v.changed++
		return
	}
	i := binary.BigEndian.Uint64(key)
	if i >= uint64(len(v.want)) {
		// Sent by a run that was interrupted before it noted the acknowledgement.
		switch n := uint64(len(v.want) + len(v.extra)); {
		case i == n:
			v.extra = append(v.extra, hashOf(value))
		case i < n:
			v.duplicated++
		default:
			v.changed++
		}
		return
	}
	switch bit := uint64(1) << (i % 64); {
	case v.seen[i/64]&bit != 0:
		v.duplicated++
		return
	default:
		v.seen[i/64] |= bit
	}
	if v.want[i] != hashOf(value) || i < v.next {
		v.changed++
	}
	v.next = max(v.next, i+1)
}

// lost returns how many records of the ledger were not read back.
func (v *verifier) lost() (n int64) {
	for i := range v.want {
		if v.seen[i/64]&(1<<(i%64)) == 0 {
			n++
		}
	}
	return n
}
