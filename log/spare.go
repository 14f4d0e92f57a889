package log

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A spare file is to become a log's next active segment. It is a recycled one, the
// file of a segment that the log's start or local start has passed, or one made in
// advance. Appends write over the blocks of a recycled file, so a sync finds nothing
// to do for the file system but the bytes.
//
// Its name, cordwood.spare-<n>, says nothing to Kafka's tools. It has its full
// length and a mark in each half of its slot area, and with its name all of that is
// durable before it is used. So it becomes a segment by a rename alone, which needs
// no sync: recovery finds the segment under either name.
//
// # Why stale bytes never pass for data
//
// Behind the batches of a recycled file lie those of its earlier life.
//
//  1. Their offsets are all below the local start that freed them, made durable
//     before the file got its spare name. Nothing but a Reset lowers a local start,
//     and that removes every file. So they are below the base of each later
//     segment, and no batch follows another in a log unless its offset is the next
//     one. What was cut from the end of a log is never recycled.
//  2. A record may hold bytes that look like batches of any offset. Recovery
//     believes nothing in a marked file above the known durable end but the group
//     that the newest slot speaks of, and that only if all of it is there and its
//     headers have the checksum that the slot states.
//  3. A slot names log and base, and of one base there is one segment in the life of
//     a file. The slots of the life before are overwritten or cut off.
//  4. After a crash, recovery cuts the file behind the last batch before the next
//     append, whatever stands there; and a spare file that may have been in use when
//     the log died is removed.
const (
	sparePrefix = "cordwood.spare-"

	maxLogSpares = 4  // recycled files of one log
	maxPrepared  = 16 // files made in advance, of all logs of a Disk
)

// The mark of a spare file stays while the file has slots:
//
//	offset  size  field
//	0       4     magic "CWSP"
//	4       4     version
//	8       16    log id
//	24      8     position in the file up to which bytes may be of an earlier life; 0
//	              if the file was made anew
//	32      4     CRC32C of bytes 0 to 31
//
// It stands 2048 bytes behind the start of each slot.
const (
	markMagic   = "CWSP"
	markVersion = 1
	markBytes   = 36
	markOffset  = 2048
)

func encodeMark(id logID, stale int64) []byte {
	b := make([]byte, markBytes)
	copy(b, markMagic)
	be.PutUint32(b[4:], markVersion)
	copy(b[8:24], id[:])
	be.PutUint64(b[24:], uint64(stale))
	be.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli))
	return b
}

func decodeMark(b []byte, id logID) (stale int64, ok bool) {
	if len(b) < markBytes || string(b[:4]) != markMagic || be.Uint32(b[32:]) != crc32.Checksum(b[:32], castagnoli) ||
		be.Uint32(b[4:]) != markVersion || logID(b[8:24]) != id {
		return 0, false
	}
	stale = int64(be.Uint64(b[24:]))
	return stale, stale >= 0
}

// readMark returns what the marks in a file of size bytes say.
func readMark(f File, size int64, id logID) (stale int64, ok bool, err error) {
	var b [markBytes]byte
	for _, p := range slotPositions(size) {
		for i := range int64(2) {
			if err := readAt(f, b[:], p+i*slotGap+markOffset); err != nil {
				return 0, false, err
			}
			if s, good := decodeMark(b[:], id); good {
				stale, ok = max(stale, s), true
			}
		}
	}
	return stale, ok, nil
}

// A spare is a spare file that is ready.
type spare struct {
	l     *Log
	name  string
	alloc int64 // position of its slots
	stale int64 // as in its mark
	age   uint64
}

func (s *spare) recycled() bool { return s.stale > 0 }
func (s *spare) bytes() int64   { return s.alloc + slotArea }

func (l *Log) spareNameLocked() string {
	l.spareSeq++
	return joinPath(l.dir, sparePrefix+strconv.FormatUint(l.spareSeq, 10))
}

func parseSpare(name string) (uint64, bool) {
	s, ok := strings.CutPrefix(name, sparePrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 63)
	return n, err == nil
}

// spares are the spare files of a Disk that are ready.
type spares struct {
	mu       sync.Mutex
	byLog    map[*Log][]*spare // oldest first
	age      uint64
	bytes    int64 // of recycled files
	recycled int
	prepared int
}

// keepSpare adds a file and removes those that it is too many for: the oldest ones
// first, whosever they are.
func (d *Disk) keepSpare(s *spare) {
	p := &d.spares
	p.mu.Lock()
	if p.byLog == nil {
		p.byLog = make(map[*Log][]*spare)
	}
	p.age++
	s.age = p.age
	p.byLog[s.l] = append(p.byLog[s.l], s)
	p.countLocked(s, 1)
	var gone []*spare
	for p.bytes > d.o.RecycledBytes {
		gone = append(gone, p.oldestLocked(true))
	}
	for p.prepared > maxPrepared {
		gone = append(gone, p.oldestLocked(false))
	}
	p.mu.Unlock()
	removeSpares(d.fs, gone)
}

func (p *spares) countLocked(s *spare, n int) {
	if s.recycled() {
		p.bytes += int64(n) * s.bytes()
		p.recycled += n
	} else {
		p.prepared += n
	}
}

// oldestLocked takes the oldest file of its kind; there must be one.
func (p *spares) oldestLocked(recycled bool) *spare {
	var old *spare
	for _, of := range p.byLog {
		for _, s := range of {
			if s.recycled() == recycled && (old == nil || s.age < old.age) {
				old = s
			}
		}
	}
	p.removeLocked(old)
	return old
}

func (p *spares) removeLocked(s *spare) {
	of := p.byLog[s.l]
	for i := range of {
		if of[i] == s {
			of = append(of[:i:i], of[i+1:]...)
			break
		}
	}
	if p.byLog[s.l] = of; len(of) == 0 {
		delete(p.byLog, s.l)
	}
	p.countLocked(s, -1)
}

// takeSpare takes a file for the log's next segment, a recycled one if there is
// one; nil if there is none.
func (d *Disk) takeSpare(l *Log) *spare {
	p := &d.spares
	p.mu.Lock()
	defer p.mu.Unlock()
	var best *spare
	for _, s := range p.byLog[l] {
		if best == nil || s.recycled() && !best.recycled() {
			best = s
		}
	}
	if best != nil {
		p.removeLocked(best)
	}
	return best
}

// takeSpares takes all files of the log, or of all logs if l is nil.
func (d *Disk) takeSpares(l *Log) (out []*spare) {
	p := &d.spares
	p.mu.Lock()
	defer p.mu.Unlock()
	for of, files := range p.byLog {
		if l == nil || of == l {
			out = append(out, files...)
		}
	}
	for _, s := range out {
		p.removeLocked(s)
	}
	return out
}

// countSpares returns how many files of the log are ready.
func (d *Disk) countSpares(l *Log) (recycled, prepared int) {
	d.spares.mu.Lock()
	defer d.spares.mu.Unlock()
	for _, s := range d.spares.byLog[l] {
		if s.recycled() {
			recycled++
		} else {
			prepared++
		}
	}
	return recycled, prepared
}

// freeSpares removes the spare files of all logs, because the disk is full, and
// reports whether there were any.
func (d *Disk) freeSpares() bool {
	gone := d.takeSpares(nil)
	removeSpares(d.fs, gone)
	return len(gone) > 0
}

// removeSpares removes files. One that stays is removed when its log is opened.
func removeSpares(fsys FS, gone []*spare) {
	for _, s := range gone {
		fsys.Remove(s.name) //nolint:errcheck // see above
	}
}

// makeSpare makes a file for the next segment with slots at alloc. Errors:
// ErrDiskFull with nothing changed, or those of the file system.
func (l *Log) makeSpare(alloc int64) (*spare, error) {
	l.mu.Lock()
	s := &spare{l: l, name: l.spareNameLocked(), alloc: alloc}
	l.mu.Unlock()
	l.disk.enter()
	f, err := l.fs.Create(s.name)
	if err == nil {
		err = f.Preallocate(0, s.bytes())
	}
	l.disk.leave()
	if err == nil {
		err = l.markSpare(f, s)
	}
	if f != nil {
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = l.disk.syncDir(l.dir)
	}
	if err != nil {
		l.fs.Remove(s.name) //nolint:errcheck // removed at the next Open
		if full(err) {
			return nil, fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
		return nil, err
	}
	return s, nil
}

// recycle readies the file of a freed segment, which nobody reads any more and
// which has its spare name; size is that of its batches.
func (l *Log) recycle(name string, size int64) (*spare, error) {
	s := &spare{l: l, name: name, alloc: slotPosition(size), stale: size}
	if err := l.room(aheadFactor * (s.bytes() - size)); err != nil {
		return nil, err
	}
	f, err := l.fs.Open(name, true)
	if err != nil {
		return nil, err
	}
	err = l.stretch(f, size, s.bytes())
	if err == nil {
		err = l.markSpare(f, s)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = l.disk.syncDir(l.dir)
	}
	return s, err
}

// stretch cuts a file to size and fills it up with zeros to the length of to, by
// writing, so that these blocks too were written before.
func (l *Log) stretch(f File, size, to int64) error {
	l.disk.enter()
	defer l.disk.leave()
	if err := f.Truncate(size); err != nil {
		return err
	}
	if err := f.Preallocate(size, to-size); err != nil {
		return err
	}
	zeros := getBuffer(int(min(to-size, scanBytes)))
	defer zeros.put()
	clear(zeros.b)
	for at := size; at < to; at += int64(len(zeros.b)) {
		if _, err := f.WriteAt(zeros.b[:min(int64(len(zeros.b)), to-at)], at); err != nil {
			return err
		}
	}
	return nil
}

// markSpare writes the marks and syncs the file.
func (l *Log) markSpare(f File, s *spare) error {
	if err := l.writeMarks(f, s.alloc, s.stale); err != nil {
		return err
	}
	return l.disk.syncFile(f)
}

func (l *Log) writeMarks(f File, alloc, stale int64) error {
	b := encodeMark(l.id, stale)
	l.disk.enter()
	defer l.disk.leave()
	for i := range int64(2) {
		if _, err := f.WriteAt(b, alloc+i*slotGap+markOffset); err != nil {
			return err
		}
	}
	return nil
}

// openSpares finds the log's spare files. One that holds a segment, whose new name
// was lost, gets that name. The others are kept only if the log was closed in order:
// else nobody knows which of them had been put to use. It returns the bases of the
// segments found.
func (l *Log) openSpares(names []string) (found []Offset, err error) {
	for _, name := range names {
		n, ok := parseSpare(name)
		if !ok {
			continue
		}
		l.spareSeq = max(l.spareSeq, n)
		path := joinPath(l.dir, name)
		s, base, ok, err := l.judgeSpare(path)
		if err != nil {
			return nil, err
		}
		if ok {
			if err := l.fs.Rename(path, joinPath(l.dir, segmentName(base, logSuffix))); err != nil {
				return nil, err
			}
			found = append(found, base)
			continue
		}
		if s == nil {
			if err := l.discard(path); err != nil {
				return nil, err
			}
			continue
		}
		l.found = append(l.found, s)
	}
	if len(found) > 0 {
		return found, l.fs.SyncDir(l.dir)
	}
	return nil, nil
}

// judgeSpare looks at a file with the name of a spare one. It is a segment with that
// base, or a recycled file that is ready, or neither.
func (l *Log) judgeSpare(name string) (s *spare, base Offset, segment bool, err error) {
	f, err := l.fs.Open(name, false)
	if err != nil {
		return nil, 0, false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, 0, false, err
	}
	stale, marked, err := readMark(f, size, l.id)
	if err != nil || !marked {
		return nil, 0, false, err
	}
	var b [slotBytes]byte
	var newest slot
	torn := false
	look := func(b []byte) {
		s, ok := decodeSlot(b)
		ok = ok && s.id == l.id
		if ok && s.base >= l.local && (!segment || s.sequence > newest.sequence) {
			newest, segment = s, true
		}
		torn = torn || !ok && slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
	}
	for _, p := range slotPositions(size) {
		for i := range int64(2) {
			if err := readAt(f, b[:], p+i*slotGap); err != nil {
				return nil, 0, false, err
			}
			look(b[:])
		}
	}
	if !segment && torn {
		// The first slot in such a file stands at its end, and was durable before one
		// stood near. It may have been torn when the next but one was written over it.
		if err := eachNear(f, size, scanBytes, func() int64 { return 0 }, func(b []byte, _ int64) { look(b) }); err != nil {
			return nil, 0, false, err
		}
	}
	if segment {
		return nil, newest.base, true, nil
	}
	if at := slotPosition(stale); stale > 0 && at+slotArea == size {
		return &spare{l: l, name: name, alloc: at, stale: stale}, 0, false, nil
	}
	return nil, 0, false, nil
}

// keepFound takes over the spare files of a log that was closed in order, or removes
// them.
func (l *Log) keepFound(clean bool) error {
	found := l.found
	l.found = nil
	for _, s := range found {
		if clean && s.bytes() <= l.disk.o.RecycledBytes {
			l.disk.keepSpare(s)
		} else if err := l.discard(s.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// discard takes a file's name as a spare one away and leaves it to the chores to
// remove it: with all that is cached of it that takes as long as to read it. The next
// Open removes what is left. For Open.
func (l *Log) discard(name string) error {
	gone := name + sideTempSuffix
	if err := l.fs.Rename(name, gone); err != nil {
		return err
	}
	l.freed = append(l.freed, freedFile{name: gone, gone: true})
	l.freeing++
	return nil
}

// leaveSpares gives the spare files up at the end: recycled ones stay for the next
// Open, those made in advance go.
func (l *Log) leaveSpares() {
	removeSpares(l.fs, slices.DeleteFunc(l.disk.takeSpares(l), (*spare).recycled))
}
