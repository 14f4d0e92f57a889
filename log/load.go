package log

import (
	"errors"
	"io"
)

// maxLoadedIndexes bounds the indexes of sealed segments that one log keeps.
const maxLoadedIndexes = 4

// loadIndex returns the indexes of a sealed segment, from the files if these agree
// with the seal, else built from the log.
func (l *Log) loadIndex(seg *segment, f File) (*index, error) {
	if x := seg.indexes.Load(); x != nil {
		return x, nil
	}
	x, _, err := l.readIndexes(seg)
	if err != nil {
		if x, err = l.buildIndex(seg, f); err != nil {
			return nil, err
		}
	}
	l.keepIndex(seg, x)
	return x, nil
}

func (l *Log) keepIndex(seg *segment, x *index) {
	l.mu.Lock()
	old := l.keepIndexLocked(seg, x)
	l.mu.Unlock()
	if old != nil && old != seg {
		old.indexes.Store(nil)
	}
}

// keepIndexLocked returns the segment whose index is one too many.
func (l *Log) keepIndexLocked(seg *segment, x *index) (old *segment) {
	seg.indexes.Store(x)
	l.loaded = append(l.loaded, seg)
	if len(l.loaded) > maxLoadedIndexes {
		old = l.loaded[0]
		l.loaded = append(l.loaded[:0], l.loaded[1:]...)
	}
	return old
}

// readIndexes reads the index files of a segment with a seal.
func (l *Log) readIndexes(seg *segment) (*index, sealFile, error) {
	payload, err := readSide(l.fs, seg.path(sealSuffix), sealMagic, sealVersion)
	if err != nil {
		return nil, sealFile{}, err
	}
	s, err := decodeSeal(payload)
	if err != nil {
		return nil, sealFile{}, err
	}
	if s.id != l.id || s.info.base != seg.base || s.info.size != seg.size || s.info.end != seg.end {
		return nil, sealFile{}, errDamaged
	}
	x, err := l.readIndexFiles(seg, s.info, s.indexSum, s.timeIndexSum)
	if err == nil && len(s.headers) != len(x.offsets)+1 {
		err = errDamaged
	}
	if err != nil {
		return nil, sealFile{}, err
	}
	return x, s, nil
}

func (l *Log) readIndexFiles(seg *segment, info segmentInfo, indexSum, timeSum uint32) (*index, error) {
	b, err := readFile(l.fs, seg.path(indexSuffix), maxSideBytes)
	if err != nil {
		return nil, err
	}
	if crcUpdate(0, b) != indexSum {
		return nil, errDamaged
	}
	x := newIndex()
	if x.offsets, err = parseIndex(b, info.size, info.end-info.base); err != nil {
		return nil, err
	}
	if b, err = readFile(l.fs, seg.path(timeIndexSuffix), maxSideBytes); err != nil {
		return nil, err
	}
	if crcUpdate(0, b) != timeSum {
		return nil, errDamaged
	}
	if x.times, err = parseTimeIndex(b, info.end-info.base); err != nil {
		return nil, err
	}
	x.maxTimestamp, x.maxAt = info.maxTimestamp, info.maxAt
	return &x, nil
}

// buildIndex makes the indexes of a sealed segment from its batches, as far as
// these are whole.
func (l *Log) buildIndex(seg *segment, f File) (*index, error) {
	x := newIndex()
	sc := newScanner(l.disk, f, 0, seg.size)
	sc.gaps = l.foreign.gaps
	defer sc.close()
	low := seg.base - 1
	for {
		b, h, err := sc.next()
		switch {
		case errors.Is(err, io.EOF):
			return &x, nil
		case err == nil && (h.base <= low || h.last >= seg.end):
			sc.at -= h.size
			err = errFollows
		}
		if err != nil {
			if !bytesBad(err) {
				return nil, err
			}
			p, _, ok, rerr := sc.resync(sc.at, low, seg.end, seg.end, func(int64) bool { return false })
			if rerr != nil {
				return nil, rerr
			}
			if !ok {
				return &x, nil
			}
			sc.at = p
			continue
		}
		x.note(seg.base, b.Bytes()[:21], h.last, h.maxTimestamp, sc.at-h.size, h.size)
		low = h.last
	}
}
