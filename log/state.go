package log

import (
	"fmt"
	"io/fs"
	"time"
)

// A state file, <offset>.state, holds what the log knew at an offset, which is a
// segment's base or the end of a log that was closed. It is what recovery and
// truncation begin from, and what keeps epochs and producers of records that are
// no longer on this disk. Payload:
//
//	offset  size  field
//	0       16    log id
//	16      8     offset
//	24      8     when it was made, ms since 1970
//	32      4     number of epochs; for each 4 bytes epoch, 8 bytes first offset
//	…             producers
const (
	stateMagic   = "CWLOGSTA"
	stateVersion = 1
	stateSuffix  = ".state"
)

type logID [16]byte

func segmentName(base Offset, suffix string) string {
	return fmt.Sprintf("%020d%s", int64(base), suffix)
}

func appendChain(b []byte, c epochChain) []byte {
	b = be.AppendUint32(b, uint32(len(c)))
	for _, s := range c {
		b = be.AppendUint32(b, uint32(s.Epoch))
		b = be.AppendUint64(b, uint64(s.Start))
	}
	return b
}

func decodeChain(d *decoder) epochChain {
	n := d.count(12)
	c := make(epochChain, 0, n)
	for range n {
		c = append(c, EpochStart{d.epoch(), d.off()})
	}
	return c
}

func encodeState(id logID, at Offset, c epochChain, t *producerTable, nowMs int64, expiry time.Duration) []byte {
	b := make([]byte, envelopeBytes, 256)
	b = append(b, id[:]...)
	b = be.AppendUint64(b, uint64(at))
	b = be.AppendUint64(b, uint64(nowMs))
	b = appendChain(b, c)
	b = t.append(b, nowMs, expiry)
	sealEnvelope(b, stateMagic, stateVersion)
	return doubled(b)
}

type savedState struct {
	id        logID
	at        Offset
	madeMs    int64
	chain     epochChain
	producers producerTable
}

func decodeState(payload []byte) (savedState, error) {
	d := decoder{b: payload}
	var s savedState
	copy(s.id[:], d.take(len(s.id)))
	s.at = d.off()
	s.madeMs = d.i64()
	s.chain = decodeChain(&d)
	var ok bool
	s.producers, ok = decodeProducers(&d)
	if !ok || !d.done() || s.at < 0 || !s.chain.valid(s.at) || !s.producers.below(s.at) {
		return savedState{}, errDamaged
	}
	return s, nil
}

// readState reads the state file for offset at; fs.ErrNotExist if there is none
// that belongs to this log.
func readState(fsys FS, dir string, id logID, at Offset) (savedState, error) {
	payload, err := readSide(fsys, joinPath(dir, segmentName(at, stateSuffix)), stateMagic, stateVersion)
	if err != nil {
		return savedState{}, err
	}
	s, err := decodeState(payload)
	if err != nil {
		return savedState{}, err
	}
	if s.id != id || s.at != at {
		return savedState{}, fmt.Errorf("%w: state of another log", fs.ErrNotExist)
	}
	return s, nil
}
