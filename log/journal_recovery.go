package log

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Recovery of the journal has two halves. [NewDisk] finds the groups that are still
// needed and notes, for each log, where its entries are. [Open] puts the bytes of a
// log's own entries where they belong and makes them durable there, which can be
// done again if it is interrupted. Entries of logs that are not opened stay in
// their files, and these stay out of use, for the life of that Disk and, while all
// of them together are not above the journal's bound, those after it.

// A journalRef is an entry of which the bytes have not been looked at.
type journalRef struct {
	file *journalFile
	at   int64 // of the bytes
	e    journalEntry
	last bool // of the last group in its life, which may be torn
}

// A foundGroup is a group whose first or second table is whole.
type foundGroup struct {
	file  *journalFile
	use   useNumber
	index uint32
	start int64
	table int64 // position of the whole table
}

// openJournal reads what earlier lives have left in the journal of a disk.
func openJournal(d *Disk, dir string, limit int64) (*journal, error) {
	j := &journal{
		d: d, fs: d.fs, dir: dir, limit: limit, logBytes: journalLogBytes,
		stuck: make(map[logID]useRange), lost: make(map[uint32]bool), old: make(map[logID][]journalRef),
	}
	if limit < 0 {
		j.dead = errors.New("log: the disk has no journal")
	}
	names, err := j.fs.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, journalSuffix) })
	idName := joinPath(dir, journalIDName)
	payload, err := readSide(j.fs, idName, journalIDMagic, journalIDVersion)
	if err == nil {
		j.identity, err = decodeJournalIdentity(payload)
	}
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && len(names) == 0:
		j.identity = newJournalIdentity()
		return j, nil
	case errors.Is(err, errDamaged), errors.Is(err, fs.ErrNotExist):
		return nil, &CorruptionError{Path: idName, Err: err}
	default:
		return nil, err
	}
	// What was removed must not come back beside what is made now.
	if err := d.syncDir(dir); err != nil {
		return nil, err
	}
	j.used = j.identity.used
	var groups []foundGroup
	for _, n := range names {
		f := &journalFile{name: joinPath(dir, n), free: true}
		found, err := j.scanFile(f)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 && f.size < journalFirstFile {
			j.fs.Remove(f.name) //nolint:errcheck // it is tried again the next time
			continue
		}
		groups = append(groups, found...)
		j.files = append(j.files, f)
	}
	if err := j.index(groups); err != nil {
		return nil, err
	}
	if err := j.bound(); err != nil {
		return nil, err
	}
	slices.SortFunc(j.files, func(a, b *journalFile) int { return cmp.Compare(a.use, b.use) })
	return j, nil
}

// scanFile finds the groups of one file and sets its size and use.
func (j *journal) scanFile(f *journalFile) ([]foundGroup, error) {
	h, err := j.fs.Open(f.name, false)
	if err != nil {
		return nil, err
	}
	defer h.Close() //nolint:errcheck // only read
	if f.size, err = h.Size(); err != nil {
		return nil, err
	}
	var out []foundGroup
	sc := newScanner(j.d, h, 0, f.size)
	defer sc.close()
	for at := int64(0); at+journalHeaderBytes <= f.size; {
		next := at + journalBlock
		b, err := sc.window(at, journalHeaderBytes)
		if err != nil {
			return nil, err
		}
		if n := journalTableLength(b); n > 0 && at+n <= f.size {
			if b, err = sc.window(at, int(n)); err != nil {
				return nil, err
			}
			t, second, err := decodeJournalTable(b, f.name)
			if _, ok := errors.AsType[*VersionError](err); ok {
				return nil, err
			}
			start := at
			if second {
				start = at - t.payloadAt() - journalAlign(t.payload)
			}
			if err == nil && t.id == j.identity.id && start >= 0 && start+t.bytes() <= f.size {
				f.use = max(f.use, t.use)
				if k := len(out); k == 0 || out[k-1].use != t.use || out[k-1].index != t.index {
					out = append(out, foundGroup{file: f, use: t.use, index: t.index, start: start, table: at})
				}
				next = at + t.payloadAt()
				if !second {
					// Bytes of records are not looked at.
					next += journalAlign(t.payload)
				}
			}
		}
		at = next
	}
	return out, nil
}

func (j *journal) readTable(h File, g foundGroup) (journalTable, error) {
	var head [journalHeaderBytes]byte
	if err := readAt(h, head[:], g.table); err != nil {
		return journalTable{}, err
	}
	b := make([]byte, journalTableLength(head[:]))
	if err := readAt(h, b, g.table); err != nil {
		return journalTable{}, err
	}
	t, _, err := decodeJournalTable(b, g.file.name)
	return t, err
}

// index notes the entries of all groups that the last one says are needed.
func (j *journal) index(groups []foundGroup) error {
	if len(groups) == 0 {
		return nil
	}
	order := func(a, b foundGroup) int {
		return cmp.Or(cmp.Compare(a.use, b.use), cmp.Compare(a.index, b.index))
	}
	slices.SortFunc(groups, order)
	newest := groups[len(groups)-1]
	j.found = newest.use.life()
	handles := make(map[*journalFile]File)
	defer func() {
		for _, h := range handles {
			h.Close() //nolint:errcheck // only read
		}
	}()
	read := func(g foundGroup) (journalTable, error) {
		h := handles[g.file]
		if h == nil {
			var err error
			if h, err = j.fs.Open(g.file.name, false); err != nil {
				return journalTable{}, err
			}
			handles[g.file] = h
		}
		return j.readTable(h, g)
	}
	t, err := read(newest)
	if err != nil {
		return err
	}
	if newest.use.life() > j.identity.life {
		return &CorruptionError{Path: joinPath(j.dir, journalIDName), Err: fmt.Errorf("life %d, but %s is of life %d", j.identity.life, newest.file.name, newest.use.life())}
	}
	live := append(t.live, liveUse{newest.use, newest.index + 1})
	for i, u := range live {
		at, _ := slices.BinarySearchFunc(groups, foundGroup{use: u.use}, order)
		lastOfLife := i == len(live)-1 || live[i+1].use.life() != u.use.life()
		for k := range u.groups {
			if at == len(groups) || groups[at].use != u.use || groups[at].index != k {
				j.lost[u.use.life()] = true
				continue
			}
			g := groups[at]
			at++
			if t, err = read(g); err != nil {
				return err
			}
			g.file.free = false
			g.file.groups = u.groups
			pos := g.start + t.payloadAt()
			for _, e := range t.entries {
				j.old[e.id] = append(j.old[e.id], journalRef{file: g.file, at: pos, e: e, last: lastOfLife && k == u.groups-1})
				r := j.stuck[e.id]
				if r.low == 0 {
					r.low = u.use
				}
				r.high = u.use
				j.stuck[e.id] = r
				pos += int64(e.size)
			}
		}
	}
	for _, r := range j.stuck {
		j.countStuckLocked(r, 1)
	}
	return nil
}

// bound gives up what the lives before the last one have left if it is too much,
// and files that are not needed.
func (j *journal) bound() error {
	limit := max(j.limit, 0)
	for {
		var bytes int64
		low := j.identity.life
		for _, f := range j.files {
			// The last life counts apart, else it would take all from the one before.
			if !f.free && f.use.life() < j.identity.life {
				bytes += f.size
				low = min(low, f.use.life())
			}
		}
		if bytes <= limit || low == j.identity.life {
			break
		}
		// Logs that come later than this see in their meta file that they may miss
		// something: first it must be durable that it is so.
		next := j.identity
		next.kept = low + 1
		if err := j.writeIdentity(next); err != nil {
			return err
		}
		j.identity = next
		for id, refs := range j.old {
			refs = slices.DeleteFunc(refs, func(r journalRef) bool { return r.file.use.life() <= low })
			r := j.stuck[id]
			j.countStuckLocked(r, -1)
			if len(refs) == 0 {
				delete(j.old, id)
				delete(j.stuck, id)
				continue
			}
			r.low = refs[0].file.use
			j.old[id] = refs
			j.stuck[id] = r
			j.countStuckLocked(r, 1)
		}
		for _, f := range j.files {
			f.free = f.free || f.use.life() <= low
		}
	}
	var free int64
	j.files = slices.DeleteFunc(j.files, func(f *journalFile) bool {
		if f.free && free+f.size > limit {
			return j.fs.Remove(f.name) == nil
		}
		if f.free {
			free += f.size
		}
		return false
	})
	return nil
}

// entries returns what the journal holds of a log that is not open, oldest first.
func (j *journal) entries(id logID) ([]journalRef, error) {
	j.mu.Lock()
	refs := slices.Clone(j.old[id])
	r := j.stuck[id]
	type present struct {
		f      *journalFile
		use    useNumber
		groups uint32
	}
	var files []present
	for _, f := range j.files {
		// A log that failed in this life of the journal.
		if j.begun && !f.free && f.use.life() == j.identity.life && f.use >= r.low && f.use <= r.high {
			files = append(files, present{f, f.use, f.groups})
		}
	}
	j.mu.Unlock()
	for _, p := range files {
		copied := &journalFile{name: p.f.name}
		found, err := j.scanFile(copied)
		if err != nil {
			return nil, err
		}
		h, err := j.fs.Open(p.f.name, false)
		if err != nil {
			return nil, err
		}
		n := uint32(0)
		for _, g := range found {
			if g.use != p.use || g.index >= p.groups {
				continue
			}
			n++
			t, err := j.readTable(h, g)
			if err != nil {
				return nil, errors.Join(err, h.Close())
			}
			pos := g.start + t.payloadAt()
			for _, e := range t.entries {
				if e.id == id {
					refs = append(refs, journalRef{file: p.f, at: pos, e: e})
				}
				pos += int64(e.size)
			}
		}
		if err := h.Close(); err != nil {
			return nil, err
		}
		if n < p.groups {
			j.mu.Lock()
			j.lost[p.use.life()] = true
			j.mu.Unlock()
		}
	}
	return refs, nil
}

var errJournalGone = errors.New("records from here on may have been in a journal that is damaged, or not that of this disk")

// misses reports whether entries may have been lost of a log that says that it was
// in the life of the journal.
func (j *journal) misses(id journalID, life uint32) bool {
	if id == (journalID{}) {
		return false
	}
	if j == nil {
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return id != j.identity.id || life > j.identity.life || life < j.identity.kept || j.lost[life] || life > j.found && life <= j.used
}

// replayJournal puts what the journal holds of the log into its segments, durably.
// It can be done again.
func (l *Log) replayJournal() error {
	j := l.disk.journal
	if l.o.ReadOnly {
		// What it may hold is not looked at.
		l.unsure = l.meta.journal != (journalID{})
		return nil
	}
	var refs []journalRef
	if j != nil {
		var err error
		if refs, err = j.entries(l.id); err != nil {
			return err
		}
	}
	l.unsure = j.misses(l.meta.journal, l.meta.journalLife)
	var touched []*segment
	for _, r := range refs {
		if r.e.generation != l.meta.generation {
			// The records of an older one were cut off. There is no newer one, unless the
			// folder is older than the journal.
			l.unsure = l.unsure || r.e.generation > l.meta.generation
			continue
		}
		whole, seg, err := l.replayEntry(r)
		if err != nil {
			return fmt.Errorf("replay of %s into %s: %w", r.file.name, l.dir, err)
		}
		if !whole && r.last {
			continue // torn, so nobody was told of it
		}
		if !whole {
			l.o.Logger.Warn("journal damaged", "path", r.file.name, "position", r.at, "dir", l.dir, "offset", int64(r.e.base))
		}
		if seg == nil && r.e.end <= l.local {
			continue
		}
		l.journaled = max(l.journaled, r.e.end)
		if seg != nil && seg == l.active() && r.e.end > l.lastEntry.end {
			l.lastEntry = r.e
		}
		if whole && seg != nil && !slices.Contains(touched, seg) {
			touched = append(touched, seg)
		}
	}
	for _, seg := range touched {
		if err := l.disk.syncName(seg.h.name); err != nil {
			return err
		}
	}
	return nil
}

// replayEntry puts the bytes of one entry into its segment, if that is there.
func (l *Log) replayEntry(r journalRef) (whole bool, seg *segment, err error) {
	for _, s := range l.segs {
		if s.base == r.e.segment {
			seg = s
		}
	}
	buf := getBuffer(int(r.e.size))
	defer buf.put()
	jf, err := l.fs.Open(r.file.name, false)
	if err != nil {
		return false, seg, err
	}
	err = readAt(jf, buf.b, r.at)
	if err = errors.Join(err, jf.Close()); err != nil {
		return false, seg, err
	}
	if crcUpdate(0, buf.b) != r.e.sum {
		return false, seg, nil
	}
	if seg == nil {
		return true, nil, nil
	}
	f, err := seg.h.acquire()
	if err != nil {
		return true, seg, err
	}
	defer seg.h.release()
	// Also if the bytes are there: after a failed sync they may be in memory only, and
	// no other sync would write them.
	_, err = f.WriteAt(buf.b, r.e.position)
	return true, seg, err
}
