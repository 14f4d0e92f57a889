package log

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// A directory is foreign if it has Kafka's files and not the meta file, which is
// made at the first Open that may write. Kafka's offsets have gaps where compaction
// has removed batches; our own logs never have any, since a gap is how they notice
// a loss. So a foreign directory with gaps is opened with Options.ReadOnly, which
// leaves every file as it is, or not at all.

// foreign is what only an import knows.
type foreign struct {
	gaps  bool       // offsets may have gaps
	gap   *GapError  // the first one that was met
	chain epochChain // Kafka's checkpoint, as long as no batch contradicts it
}

// follows reports whether a batch at base can come after one that ends at next.
func (l *Log) follows(base, next Offset) bool {
	return base == next || l.foreign.gaps && base > next
}

// noteForeign compares a batch that is read at Open with what Kafka's files say.
func (l *Log) noteForeign(seg *segment, h header, end Offset) {
	f := &l.foreign
	l.noteGap(seg, end, h.base)
	if len(f.chain) == 0 {
		return
	}
	// Kafka lifts the start of the oldest epoch to the log start, and forgets older
	// ones. Of the first segment there may be batches below.
	switch first := f.chain[0]; {
	case h.base < first.Start && h.epoch == first.Epoch:
		f.chain = slices.Clone(f.chain)
		f.chain[0].Start = h.base
	case h.base < first.Start && h.epoch < first.Epoch:
		f.chain = slices.Insert(slices.Clone(f.chain), 0, EpochStart{h.epoch, h.base})
	}
	if f.chain.at(h.base) != h.epoch {
		f.chain = nil
	}
}

// noteGap notes a gap that is seen at Open.
func (l *Log) noteGap(seg *segment, end, next Offset) {
	if next > end && l.foreign.gap == nil {
		l.foreign.gap = &GapError{Path: seg.path(logSuffix), Offset: end, End: next}
	}
}

// examine reads a foreign directory before the first file is made in it, and says
// why it can't be written to. In other directories it does nothing.
func (l *Log) examine(ctx context.Context) error {
	if _, err := l.fs.Stat(joinPath(l.dir, metaName)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	names, err := l.fs.List(l.dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !slices.ContainsFunc(names, isSegmentFile) {
		return nil
	}
	if err != nil {
		return err
	}
	o := l.o
	o.ReadOnly, o.Hooks = true, Hooks{}
	probe := &Log{dir: l.dir, o: o, disk: l.disk, fs: l.fs, gate: make(chan struct{}, 1)}
	err = probe.recover(ctx)
	for _, s := range probe.segs {
		s.h.drop()
	}
	switch {
	case err != nil:
		return err
	case probe.foreign.gap != nil:
		return probe.foreign.gap
	}
	l.o.Partition.Topic = probe.partition.Topic
	l.foreign.chain = probe.foreign.chain
	return nil
}

func isSegmentFile(name string) bool {
	_, suffix, ok := parseName(name)
	return ok && suffix == logSuffix
}

// readForeign takes over what Kafka's text files say of the directory. Our own
// have been read before, if there were any.
func (l *Log) readForeign() error {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return err
	}
	first := Offset(-1)
	for _, n := range names {
		base, suffix, ok := parseName(n)
		switch {
		case ok && suffix == logSuffix && (first < 0 || base < first):
			first = base
		case ok && strings.HasSuffix(suffix, swapSuffix):
			// It may replace segments of which only some are left.
			return fmt.Errorf("log: %s: Kafka was replacing segments by %s; its broker has to finish that", l.dir, n)
		}
	}
	if first < 0 {
		return fmt.Errorf("log: no segments in %s: %w", l.dir, fs.ErrNotExist)
	}
	l.foreign.gaps = true
	l.meta = meta{partition: l.o.Partition, start: first, local: first, floor: -1}
	t, err := l.topicOnDisk()
	if err != nil {
		return err
	}
	if !t.IsZero() {
		l.meta.partition.Topic = t
	}
	b, err := readFile(l.fs, joinPath(l.dir, epochFileName), maxSideBytes)
	switch {
	case err == nil:
		if c, err := parseCheckpoint(b); err == nil {
			l.foreign.chain = c
		}
	case sideError(err) != nil:
		return err
	}
	return nil
}

const swapSuffix = ".swap" // of a file of Kafka's that is taking the place of others

// topicOnDisk returns the topic of Kafka's partition.metadata, zero if there is
// none, and refuses another than the one in the options.
func (l *Log) topicOnDisk() (TopicID, error) {
	b, err := readFile(l.fs, joinPath(l.dir, partitionFileName), 4096)
	if err != nil {
		return TopicID{}, sideError(err)
	}
	t, ok := parsePartitionFile(b)
	if want := l.o.Partition.Topic; ok && !want.IsZero() && want != t {
		return TopicID{}, fmt.Errorf("%w: %s is of topic %s, not %s", ErrWrongPartition, l.dir, t, want)
	}
	return t, nil
}

func parsePartitionFile(b []byte) (TopicID, bool) {
	var t TopicID
	rest, ok := bytes.CutPrefix(b, []byte("version: 0\ntopic_id: "))
	if !ok {
		return t, false
	}
	text := bytes.TrimRight(rest, "\r\n")
	id, err := base64.RawURLEncoding.Strict().DecodeString(string(text))
	if err != nil || len(id) != len(t) || len(text) != base64.RawURLEncoding.EncodedLen(len(t)) { // it passes over line ends
		return t, false
	}
	return TopicID(id), true
}

// segmentsReadOnly returns the bases of the segments that count, ascending.
func (l *Log) segmentsReadOnly() ([]Offset, error) {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return nil, err
	}
	var bases []Offset
	for _, name := range names {
		if base, suffix, ok := parseName(name); ok && suffix == logSuffix {
			bases = append(bases, base)
		}
		if _, ok := parseSpare(name); ok {
			path := joinPath(l.dir, name)
			_, base, segment, err := l.judgeSpare(path)
			if err != nil {
				return nil, err
			}
			if segment { // it has lost its new name
				bases = append(bases, base)
				if l.lost == nil {
					l.lost = make(map[Offset]string)
				}
				l.lost[base] = path
			}
		}
	}
	slices.Sort(bases)
	for len(bases) > 1 && bases[1] <= l.local {
		bases = bases[1:]
	}
	if len(bases) == 0 {
		return nil, fmt.Errorf("log: no segments in %s: %w", l.dir, fs.ErrNotExist)
	}
	return bases, nil
}

// oldFormat is the error for a message in a format before 2 at a position where no
// batch is: Kafka's files had these before 0.11, and a broker still reads them.
func (l *Log) oldFormat(s *segment, f File, at, size int64) error {
	const (
		magicAt     = 16
		headerBytes = 26 // offset, size, checksum, magic, attributes, lengths of key and value
	)
	if !l.foreign.gaps || size-at < headerBytes {
		return nil
	}
	sc := newScanner(l.disk, f, at, size)
	defer sc.close()
	b, err := sc.window(at, headerBytes)
	if err != nil {
		return err
	}
	n := int64(int32(be.Uint32(b[8:]))) + 12
	if b[magicAt] > 1 || n < headerBytes || n > min(size-at, maxBatchBytesOnDisk) {
		return nil
	}
	if b, err = sc.window(at, int(n)); err != nil {
		return err
	}
	if crc32.ChecksumIEEE(b[magicAt:]) != be.Uint32(b[12:]) {
		return nil
	}
	return fmt.Errorf("log: %s at byte %d: %w: message format %d, only 2 can be read", s.path(logSuffix), at, ErrInvalidBatch, b[magicAt])
}

// claimReadOnly keeps others from the directory without a change of it: only a log
// of our own has a lock file.
func (l *Log) claimReadOnly() (io.Closer, error) {
	fi, err := l.fs.Stat(l.dir)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir {
		return nil, fmt.Errorf("log: %s is not a directory", l.dir)
	}
	_, err = l.fs.Stat(joinPath(l.dir, lockName))
	switch {
	case err == nil:
		return l.disk.claim(l.dir, true)
	case errors.Is(err, fs.ErrNotExist):
		return l.disk.claim(l.dir, false)
	default:
		return nil, err
	}
}

// finishReadOnly ends the reading of the active segment: nothing is cut.
func (l *Log) finishReadOnly(f File, size int64) error {
	if err := l.oldFormat(l.active(), f, l.size, size); err != nil {
		return err
	}
	l.durable, l.durablePos, l.durableSum = l.end, l.size, l.x.headerSum
	keep, err := l.lastByte(f, l.size, size)
	if err != nil {
		return err
	}
	l.recovery.CutBytes = keep - l.size
	return nil
}

// closeReadOnly ends the reading of a sealed segment.
func (l *Log) closeReadOnly(s *segment, r *scan) error {
	if s.aborted >= 0 && r.note {
		s.aborts.Store(&r.x.aborted)
	}
	if len(s.damage) == 0 {
		s.size = r.at
		l.noteGap(s, r.end, s.end)
		return nil
	}
	f, err := s.h.acquire()
	if err != nil {
		return err
	}
	defer s.h.release()
	return l.oldFormat(s, f, s.damage[0].position, s.size)
}
