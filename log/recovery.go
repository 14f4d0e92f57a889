package log

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// cutSuffix ends the name of a file that keeps what recovery cut off:
// <base>.<position>.cut, the bytes as they were.
const (
	cutSuffix   = ".cut"
	maxCutFiles = 4
)

// Open opens the log in a directory, which it makes if it does not exist, and
// brings it into order after a crash:
//
//  1. It locks the directory, and reads the meta file; a change that this says is
//     under way is finished.
//  2. If the marker of a clean close is there and the files are as it says, that is
//     all.
//  3. Else it reads the active segment, and each sealed one whose seal does not
//     agree with its file, and checks every batch.
//  4. Bad bytes at or above the known durable end are a torn tail: they are copied
//     aside, cut off and reported. Bad bytes below it are damage: nothing is cut, the
//     log is read-only, and [Log.Recovery] says where the damage is.
//  5. What was accepted is synced before it counts as durable.
//
// Errors: [ErrLocked], [ErrWrongPartition], a [*VersionError] if a newer version
// made the directory, a [*GapError] for a directory of Kafka's that can only be read,
// an error that says why for one that can't be read either, a [*CorruptionError] if not even the meta file can be read
// (nothing is changed then), mistakes in the options, and those of the file system.
func Open(ctx context.Context, dir string, o Options) (*Log, error) {
	o, err := o.withDefaults()
	if dir == "" {
		err = errors.Join(errors.New("log: options: no directory is given"), err)
	}
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	l := &Log{dir: dir, o: o, disk: o.Disk, gate: make(chan struct{}, 1), repairs: make(chan struct{}, 1)}
	if l.disk == nil {
		if l.disk, err = NewDisk(DiskOptions{FS: o.FS, OpenFiles: 64}); err != nil {
			return nil, err
		}
		l.owned = true
	}
	l.fs = l.disk.fs
	if o.ReadOnly {
		l.claim, err = l.claimReadOnly()
	} else if err = l.examine(ctx); err != nil {
		err = fmt.Errorf("log: open %s: %w", dir, err)
	} else if err = l.fs.MkdirAll(dir); err != nil {
		err = fmt.Errorf("log: open %s: %w", dir, err)
	} else {
		l.claim, err = l.disk.claim(dir, true)
	}
	if err == nil {
		if err = l.recover(ctx); err != nil {
			if l.pinned {
				l.active().h.release()
			}
			for _, s := range l.segs {
				s.h.drop()
			}
			err = errors.Join(err, l.claim.Close())
		}
	}
	if err != nil {
		if l.owned {
			err = errors.Join(err, l.disk.Close())
		}
		return nil, err
	}
	l.startChores()
	return l, nil
}

func (l *Log) recover(ctx context.Context) error {
	if err := l.readMeta(); err != nil {
		return err
	}
	l.id, l.partition = l.meta.id, l.meta.partition
	if l.o.ReadOnly && l.meta.pending != changeNone {
		return fmt.Errorf("%w: %s has a change under way that must be finished first", ErrOpenedReadOnly, l.dir)
	}
	if l.meta.pending != changeNone {
		// If the process alone died, what says so may be in memory only.
		if err := l.disk.syncDir(l.dir); err != nil {
			return err
		}
	}
	if l.meta.pending == changeReset {
		m, err := finishReset(l.fs, l.dir, l.meta)
		if err != nil {
			return fmt.Errorf("finish reset of %s: %w", l.dir, err)
		}
		if err := l.commitOpen(m); err != nil {
			return err
		}
	}
	l.start, l.local = l.meta.start, l.meta.local
	list := l.listSegments
	if l.o.ReadOnly {
		list = l.segmentsReadOnly
	}
	bases, err := list()
	if err != nil {
		return err
	}
	if l.meta.pending == changeTruncate {
		if bases, err = l.redoTruncation(bases); err != nil {
			return err
		}
	}
	for _, b := range bases {
		s := l.disk.newSegment(l.dir, b)
		s.h.write = !l.o.ReadOnly
		if name, ok := l.lost[b]; ok {
			s.h.name = name
		}
		l.segs = append(l.segs, s)
	}
	l.durable = l.segs[0].base
	l.stated = l.active().base
	clean, err := l.openClean()
	if err != nil {
		return err
	}
	if err := l.keepFound(clean); err != nil {
		return err
	}
	if clean {
		l.forgetJournal()
		return nil
	}
	// A marker that does not agree with the files may still be there. It states a
	// durable end, so it must go before the first change, as any other.
	switch _, err := l.fs.Stat(joinPath(l.dir, cleanName)); {
	case errors.Is(err, fs.ErrNotExist):
		l.changed = true
	case err != nil:
		return err
	}
	if !l.o.ReadOnly {
		// The names of the last segments need not be durable yet. Under their older ones
		// they are found by their marks, which may be cut off now.
		if err := l.disk.syncDir(l.dir); err != nil {
			return err
		}
	}
	if err := l.replayJournal(); err != nil {
		return err
	}
	if err := l.judgeSuccessor(); err != nil {
		return err
	}
	if err := l.openDirty(ctx); err != nil {
		return err
	}
	if l.stated >= l.journaled {
		if !l.o.ReadOnly {
			if err := l.unmarkJournal(); err != nil && !full(err) {
				return fmt.Errorf("replace %s in %s: %w", metaName, l.dir, err)
			}
		}
		l.forgetJournal()
	}
	l.journaled = 0
	return nil
}

// commitOpen replaces the meta file during recovery.
func (l *Log) commitOpen(m meta) error {
	if _, err := replaceFile(l.fs, joinPath(l.dir, metaName), m.encode()); err != nil {
		return err
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	l.meta = m
	return nil
}

// readMeta reads the meta file, or makes one in a directory that has none: a new
// one, or one that Kafka wrote.
func (l *Log) readMeta() error {
	name := joinPath(l.dir, metaName)
	payload, err := readSide(l.fs, name, metaMagic, metaVersion)
	if err == nil {
		l.meta, err = decodeMeta(payload)
	}
	switch {
	case err == nil:
		l.foreign.chain = nil
		if l.o.Partition != (PartitionID{}) && l.o.Partition != l.meta.partition {
			return fmt.Errorf("%w: %s is of %s, not %s", ErrWrongPartition, l.dir, l.meta.partition, l.o.Partition)
		}
		return nil
	case errors.Is(err, errDamaged):
		return &CorruptionError{Path: name, Err: err}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case l.o.ReadOnly:
		return l.readForeign()
	}
	m := meta{partition: l.o.Partition, createdMs: nowMs(), floor: -1}
	rand.Read(m.id[:])
	names, err := l.fs.List(l.dir)
	if err != nil {
		return err
	}
	first := Offset(-1)
	for _, n := range names {
		if base, suffix, ok := parseName(n); ok && suffix == logSuffix {
			first = base
			break
		}
	}
	if first >= 0 {
		m.start, m.local = first, first
	} else {
		f := newFile{joinPath(l.dir, segmentName(0, logSuffix)), nil}
		if err := f.write(l.fs); err != nil {
			return err
		}
	}
	topic, err := l.topicOnDisk()
	if err != nil {
		return err
	}
	if m.partition.Topic != topic { // Kafka takes no file with a zero
		f := newFile{joinPath(l.dir, partitionFileName), partitionFile(m.partition.Topic)}
		if err := f.write(l.fs); err != nil {
			return err
		}
	}
	if err := syncParent(l.fs, l.dir); err != nil {
		return err
	}
	return l.commitOpen(m)
}

type newFile struct {
	name    string
	content []byte
}

func (f newFile) write(fsys FS) error { return writeNew(fsys, f.name, f.content, true) }

// syncParent makes the name of a folder durable, as far as there is a parent.
func syncParent(fsys FS, dir string) error {
	dir = strings.TrimRight(strings.ReplaceAll(dir, "\\", "/"), "/")
	for range 3 { // MkdirAll may have made the folders above, too
		i := strings.LastIndexByte(dir, '/')
		parent := "."
		switch {
		case i == 0:
			parent = "/"
		case i > 0:
			parent = dir[:i]
		}
		if err := fsys.SyncDir(parent); err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return nil // not ours to sync
			}
			return err
		}
		if i <= 0 {
			return nil
		}
		dir = parent
	}
	return nil
}

// listSegments removes what an interrupted change has left and returns the bases
// of the segments, ascending.
func (l *Log) listSegments() ([]Offset, error) {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return nil, err
	}
	var bases []Offset
	for _, name := range names {
		base, suffix, ok := parseName(name)
		switch {
		case strings.HasSuffix(name, sideTempSuffix), ok && suffix == nextSuffix:
			if err := l.fs.Remove(joinPath(l.dir, name)); err != nil {
				return nil, err
			}
		case ok && suffix == logSuffix:
			bases = append(bases, base)
		}
	}
	found, err := l.openSpares(names)
	if err != nil {
		return nil, err
	}
	bases = append(bases, found...)
	slices.Sort(bases)
	if len(bases) == 0 {
		// The first file is made before the meta file, so it was lost.
		if err := writeNew(l.fs, joinPath(l.dir, segmentName(l.local, logSuffix)), nil, true); err != nil {
			return nil, err
		}
		if err := l.fs.SyncDir(l.dir); err != nil {
			return nil, err
		}
		return []Offset{l.local}, nil
	}
	// What lies below the local start may go once the state behind it is durable.
	// Without that state it is still needed.
	first := 0
	for first+1 < len(bases) && bases[first+1] <= l.local {
		first++
	}
	if first == 0 {
		return bases, nil
	}
	if _, err := readState(l.fs, l.dir, l.id, bases[first]); err != nil {
		return bases, sideError(err)
	}
	if err := l.disk.rewriteFile(joinPath(l.dir, segmentName(bases[first], stateSuffix))); err != nil {
		return nil, err
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return nil, err
	}
	for _, base := range bases[:first] {
		s := &segment{dir: l.dir, segmentInfo: segmentInfo{base: base}}
		for _, suffix := range segmentSuffixes {
			if err := l.fs.Remove(s.path(suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
	bases = bases[first:]
	return bases, nil
}

// redoTruncation finishes a truncation whose commit came through.
func (l *Log) redoTruncation(bases []Offset) ([]Offset, error) {
	to := l.meta.pendingTo
	i := len(bases) - 1
	for i > 0 && bases[i] > to {
		i--
	}
	seg := l.disk.newSegment(l.dir, bases[i])
	defer seg.h.drop()
	size, err := l.positionOf(seg, to)
	if err != nil {
		return nil, fmt.Errorf("finish truncation of %s: %w", l.dir, err)
	}
	if err := l.finishTruncation(seg, size, false); err != nil {
		return nil, fmt.Errorf("finish truncation of %s: %w", l.dir, err)
	}
	m := l.meta
	m.pending, m.pendingTo = changeNone, 0
	return bases[:i+1], l.commitOpen(m)
}

// positionOf returns where the batches below off end in a segment file.
func (l *Log) positionOf(seg *segment, off Offset) (int64, error) {
	f, err := seg.h.acquire()
	if err != nil {
		return 0, err
	}
	defer seg.h.release()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	sc := newScanner(l.disk, f, 0, size)
	defer sc.close()
	next := seg.base
	for next < off {
		_, h, err := sc.peek(sc.at, true)
		if err == nil && h.base != next {
			err = errFollows
		}
		if errors.Is(err, io.EOF) || err != nil && bytesBad(err) {
			// What is missing or damaged here shows when the rest is read.
			return sc.at, nil
		}
		if err != nil {
			return 0, err
		}
		if h.last >= off {
			break
		}
		sc.at += h.size
		next = h.last + 1
	}
	return sc.at, nil
}

// openClean takes over a log that was closed in order.
func (l *Log) openClean() (bool, error) {
	payload, err := readSide(l.fs, joinPath(l.dir, cleanName), cleanMagic, cleanVersion)
	var c cleanMarker
	if err == nil {
		c, err = decodeClean(payload)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errDamaged):
		return false, nil
	case err != nil:
		return false, err
	}
	if c.id != l.id {
		return false, nil
	}
	// Whatever is wrong with the files: what the marker says was durable, and nothing
	// was changed since.
	l.durable = max(l.durable, c.end)
	n := len(l.segs)
	// Segments below the local start may have been removed just now.
	for len(c.segments) > n && c.segments[0].end <= l.local {
		c.segments = c.segments[1:]
	}
	if len(c.segments) != n || c.end < l.local {
		return false, nil
	}
	for i, s := range l.segs {
		if c.segments[i].base != s.base {
			return false, nil
		}
	}
	active, info := l.segs[n-1], c.segments[n-1]
	fi, err := l.fs.Stat(active.h.name)
	if err != nil {
		return false, err
	}
	if fi.Size != info.size {
		return false, nil
	}
	state, err := readState(l.fs, l.dir, l.id, c.end)
	if err != nil {
		return false, sideError(err)
	}
	closed := &segment{dir: l.dir, segmentInfo: info}
	x, seal, err := l.readIndexes(closed)
	if err != nil {
		return false, sideError(err)
	}
	aborted, err := readTxnIndex(l.fs, l.dir, &info)
	if err != nil {
		return false, sideError(err)
	}
	for i, s := range l.segs[:n-1] {
		s.segmentInfo = c.segments[i]
		s.sealed = true
	}
	l.x = *x
	l.x.aborted = aborted
	k := len(x.offsets)
	l.x.headers, l.x.headerSum = seal.headers[:k:k], seal.headers[k]
	l.x.sinceEntry = info.size
	if k > 0 {
		l.x.sinceEntry -= int64(x.offsets[k-1].position)
	}
	l.end, l.size = c.end, info.size
	l.ended.from = l.end
	l.durable, l.durablePos, l.durableSum = c.end, info.size, l.x.headerSum
	l.firstMs = c.firstAppendMs
	l.chain, l.producers = state.chain.trim(l.start), state.producers
	l.recovery = Recovery{End: l.end, DurableEnd: l.end, Clean: true}
	l.readOnly = l.o.ReadOnly
	return true, nil
}

// sideError lets pass what is wrong with a file that can be made again.
func sideError(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
		return nil
	}
	return err
}

// openDirty reads what must be read after a crash.
func (l *Log) openDirty(ctx context.Context) error {
	n := len(l.segs)
	floor := l.durable
	// From the newest state that is whole, batches are replayed.
	from, state, err := l.newestState()
	if err != nil {
		return err
	}
	l.chain, l.producers = state.chain, state.producers
	l.replayedFrom = l.segs[from].base
	for i, s := range l.segs[:n-1] {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		s.sealed = true
		s.end = l.segs[i+1].base
		if err := l.openSealed(s, i >= from); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := l.openActive(floor); err != nil {
		return err
	}
	if l.hasDamage() {
		l.active().aborted = -1
	}
	if c := l.foreign.chain; c != nil {
		l.chain = c.truncate(l.end + 1) // it may know an epoch that has no batch yet
	}
	l.chain = l.chain.trim(l.start)
	r := &l.recovery
	r.End = l.end
	for i, s := range l.segs {
		for _, d := range s.damage {
			r.Corruption = append(r.Corruption, s.corruption(d).(*CorruptionError))
		}
		if i > 0 && l.segs[i-1].sealed && len(l.segs[i-1].damage) == 0 && l.segs[i-1].end != s.base {
			r.Corruption = append(r.Corruption, l.gapLocked(view{seg: l.segs[i-1], end: l.segs[i-1].end, size: l.segs[i-1].size}, l.segs[i-1].end).(*CorruptionError))
		}
	}
	if b := l.segs[0].base; b > l.local {
		r.Corruption = append(r.Corruption, &CorruptionError{Path: l.dir, Offset: l.local, End: b, Err: errGap})
	}
	if l.end < l.local {
		r.Corruption = append(r.Corruption, &CorruptionError{Path: l.dir, Offset: l.end, End: l.local, Err: errGap})
	}
	if l.unsure {
		r.Corruption = append(r.Corruption, &CorruptionError{Path: l.dir, Position: l.size, Offset: l.end, Err: errJournalGone})
	}
	r.Lossy = len(r.Corruption) > 0
	l.readOnly = r.Lossy || l.o.ReadOnly
	if r.Lossy || r.CutBytes > 0 {
		l.o.Logger.Warn("log recovered", "dir", l.dir, "end", int64(r.End), "durable_end", int64(r.DurableEnd),
			"cut_bytes", r.CutBytes, "cut_path", r.CutPath, "corruptions", len(r.Corruption))
	}
	return nil
}

// newestState returns the newest state that belongs to a segment's base, and the
// index of that segment.
func (l *Log) newestState() (int, savedState, error) {
	for i := len(l.segs) - 1; i >= 0; i-- {
		s, err := readState(l.fs, l.dir, l.id, l.segs[i].base)
		if err == nil {
			return i, s, nil
		}
		if err := sideError(err); err != nil {
			return 0, savedState{}, err
		}
	}
	base := l.segs[0].base
	if base == 0 {
		return 0, savedState{}, nil
	}
	// A directory of Kafka's, or one whose state files are all damaged.
	s := savedState{at: base}
	if b, err := readFile(l.fs, joinPath(l.dir, epochFileName), maxSideBytes); err == nil {
		if c, err := parseCheckpoint(b); err == nil {
			s.chain = c.truncate(base)
		}
	}
	var err error
	if s.producers, err = l.kafkaProducers(base); err != nil {
		return 0, savedState{}, err
	}
	if l.o.ReadOnly {
		return 0, s, nil
	}
	// What is recovered from it now must be found again by a truncation.
	state := newFile{joinPath(l.dir, segmentName(base, stateSuffix)), encodeState(l.id, base, s.chain, &s.producers, nowMs(), l.o.ProducerExpiry)}
	if err := state.write(l.fs); err != nil && !full(err) {
		return 0, savedState{}, err
	}
	return 0, s, nil
}

// kafkaProducers returns the producers of Kafka's snapshot as of base, the start of
// the log; without one, what is known of none.
func (l *Log) kafkaProducers(base Offset) (t producerTable, err error) {
	b, err := readFile(l.fs, joinPath(l.dir, segmentName(base, snapshotSuffix)), maxSideBytes)
	if err == nil {
		t, err = parseKafkaSnapshot(b, base)
	}
	if err != nil {
		l.o.Logger.Warn("no producer state at the start of the log", "dir", l.dir, "offset", int64(base))
	}
	return t, sideError(err)
}

// openSealed checks a sealed segment: by its seal, or by reading it. Its end is
// where the next one begins.
func (l *Log) openSealed(s *segment, replay bool) error {
	fi, err := l.fs.Stat(s.h.name)
	if err != nil {
		return err
	}
	s.size = fi.Size
	var seal sealFile
	payload, err := readSide(l.fs, s.path(sealSuffix), sealMagic, sealVersion)
	if err == nil {
		seal, err = decodeSeal(payload)
		if err == nil && (seal.id != l.id || seal.info.base != s.base || seal.info.end != s.end || seal.info.size > s.size) {
			err = errDamaged
		}
	}
	sealed := err == nil
	if err := sideError(err); err != nil {
		return err
	}
	if sealed && !replay && seal.info.size == s.size {
		s.segmentInfo = seal.info
		return nil
	}
	r := scan{seg: s, limit: fi.Size, durable: s.end, sealed: true, durablePos: -1, epoch: -1, chain: l.chain, producers: &l.producers, note: replay}
	if sealed {
		r.durablePos, r.sum, r.checkSum = seal.info.size, seal.headers[len(seal.headers)-1], true
	}
	if err := l.scan(&r); err != nil {
		return err
	}
	if replay {
		l.chain = r.chain
	}
	s.sealedMs = fi.ModTime.UnixMilli()
	s.maxTimestamp, s.maxAt = r.x.maxTimestamp, r.x.maxAt
	if sealed {
		s.sealedMs = seal.info.sealedMs
	}
	switch {
	case sealed && seal.info.aborted >= 0:
		s.aborted, s.abortedSum = seal.info.aborted, seal.info.abortedSum
	case replay && !l.hasDamage():
		s.setAborted(r.x.aborted)
	default:
		s.aborted = -1 // what began in the damage is not known
	}
	if l.o.ReadOnly {
		return l.closeReadOnly(s, &r)
	}
	if len(s.damage) > 0 {
		return nil
	}
	if r.at < s.size {
		// The machine died between the roll and the cut.
		if err := l.cutSpace(s, r.at); err != nil {
			return fmt.Errorf("cut %s: %w", s.h.name, err)
		}
		s.size = r.at
	}
	l.remakeHelpers(s, &r, replay)
	return nil
}

// hasDamage reports whether recovery has found damage so far.
func (l *Log) hasDamage() bool {
	return slices.ContainsFunc(l.segs, func(s *segment) bool { return len(s.damage) > 0 })
}

// cutSpace cuts preallocated space, slots and what is left of an earlier life of the
// file behind the batches of a sealed segment. Anything else there stays; it is
// behind the segment's end.
func (l *Log) cutSpace(s *segment, at int64) error {
	f, err := s.h.acquire()
	if err != nil {
		return err
	}
	defer s.h.release()
	stale, _, err := readMark(f, s.size, l.id)
	if err != nil {
		return err
	}
	if stale == 0 {
		keep, err := l.lastByte(f, at, s.size)
		if err != nil || keep > at {
			return err
		}
	}
	if err := f.Truncate(at); err != nil {
		return err
	}
	return l.disk.syncFile(f)
}

// remakeHelpers writes the files beside a sealed segment again. They can be done
// without, so errors don't matter.
func (l *Log) remakeHelpers(s *segment, r *scan, state bool) {
	r.x.noteTime(s.base)
	ib := appendIndex(nil, r.x.offsets)
	tb := appendTimeIndex(nil, r.x.times)
	f := sealFile{id: l.id, info: s.segmentInfo, indexSum: crcUpdate(0, ib), timeIndexSum: crcUpdate(0, tb)}
	f.headers = append(slices.Clone(r.x.headers), r.x.headerSum)
	files := []newFile{{s.path(indexSuffix), ib}, {s.path(timeIndexSuffix), tb}, {s.path(sealSuffix), f.encode()}}
	if state {
		files = append(files, newFile{joinPath(l.dir, segmentName(s.end, stateSuffix)), encodeState(l.id, s.end, l.chain, &l.producers, nowMs(), l.o.ProducerExpiry)},
			l.kafkaSnapshot(s.end))
		switch {
		case s.aborted > 0:
			files = append(files, newFile{s.path(txnIndexSuffix), appendTxnIndex(nil, r.x.aborted)})
		case s.aborted == 0:
			l.fs.Remove(s.path(txnIndexSuffix)) //nolint:errcheck // what is left says nothing against the seal
		}
	}
	for _, f := range files {
		if err := writeNew(l.fs, f.name, f.content, false); err != nil {
			l.o.Logger.Warn("helper file not written", "path", f.name, "err", err)
			return
		}
	}
}
