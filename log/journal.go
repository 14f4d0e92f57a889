package log

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/pprof"
	"slices"
	"sync"
)

// The journal, see journal_format.go for what is on disk. The rules that make it
// safe:
//
//  1. A batch enters it only after it is written to its segment, or held back to be
//     written there (see behind.go), and only if all before it in the log is durable. A
//     part of a call is never journaled, so what a call takes back is in no entry.
//  2. An entry is needed until its segment is synced and something else states its
//     end durable: a slot, a seal with a successor, the marker of a clean close, the
//     meta file.
//  3. A file is written over only after a durable group has said that its use is not
//     needed any more. Else a torn group would leave the one before it, which says
//     that it is, as the last word.
//  4. A suffix discard makes the log's next generation durable before the next
//     append; what stays is synced before that. Entries of older generations count
//     for nothing.
//  5. Before its first entry in a life of the journal a log says in its meta file
//     that it may have some. So a log that opens where they are not to be found knows
//     that it may have lost records.
//
// An error of the journal's own files ends its use: logs sync their own files from
// then on, as they do while the journal has no room.

// Sizes of the journal.
const (
	// journalLogBytes is how many unsynced bytes a log brings to one group at most;
	// with more it syncs its own file: by the curve of BenchmarkJournal appends of 32 KiB
	// gain by the journal, and those of 64 KiB do not.
	journalLogBytes = 48 << 10

	journalFirstFile = 64 << 10 // later ones are twice as long, up to a 32nd of all, or an eighth for a large group
	minJournalBytes  = 256 << 10
)

// A journalFile is one file, in one use or free.
type journalFile struct {
	name   string
	size   int64
	h      File // nil for one that is only read
	use    useNumber
	groups uint32 // that are durable
	free   bool   // may be written over
	pins   int    // logs whose first needed entry is in this use
	stuck  int    // logs that are not open, or have failed, with entries in it
	logs   []*Log // that may be among pins
}

// A useRange is the uses from low to high.
type useRange struct{ low, high useNumber }

// A journalRequest is one log's part of a group.
type journalRequest struct {
	l *Log
	e journalEntry
	b []byte // stays the caller's
	w *journalWaiter

	// Results:
	direct bool // it is not in the journal: sync the file
	lone   bool // and call endLone after that
}

// A journalWaiter is a caller that waits for its requests.
type journalWaiter struct {
	ch   chan struct{} // capacity 1
	left int           // under journal.mu
	lead bool          // set before ch is signalled: the caller leads the next group
}

// A journalPart is what the journal keeps of a log. Under journal.mu.
type journalPart struct {
	low, high useNumber // of its needed entries; low is 0 if there are none
	stuck     bool      // the log has failed
}

type journal struct {
	d     *Disk
	fs    FS
	dir   string
	limit int64 // bytes of all files

	logBytes int // journalLogBytes but in tests

	// Of the leader:
	cur   *journalFile
	at    int64 // end of the last group in cur
	table journalTable

	mu        sync.Mutex
	identity  journalIdentity // life is that of this disk, once begun
	begun     bool            // the identity is durable
	beginning chan struct{}   // closed when it is; nil if nobody is at it
	dead      error           // why it is not used any more
	serial    uint32          // of the last use in this life
	named     uint32          // of the last file that was made in this life
	preparing chan struct{}   // closed when the next file is made; nil if none is
	curUse    useNumber
	files     []*journalFile // ascending by use, the free ones anywhere
	queue     []*journalRequest
	leading   bool
	lone      bool // a log that was alone syncs its own file
	always    bool // for tests: nobody is alone
	groups    []*journalBatch
	stuck     map[logID]useRange
	lost      map[uint32]bool        // lives of which a table is lost
	found     uint32                 // the newest life of which a group was found
	used      uint32                 // the newest life that had one, when the disk was made
	old       map[logID][]journalRef // entries of earlier lives
	pinned    int                    // logs that are open and have needed entries: their files stay open
	flushing  bool
	urgent    []*Log // that want to be flushed, whatever the journal needs
	stats     journalStats
}

type journalStats struct {
	groups, entries, bytes, direct, flushes int64
}

// A journalBatch is a group that is put together.
type journalBatch struct {
	reqs []*journalRequest
	done []*journalWaiter
}

var errJournalFull = errors.New("log: the journal has no room")

// begin makes the journal's life durable. It is called before the first entry of
// each log; only the first call does something.
func (j *journal) begin() error {
	j.mu.Lock()
	for !j.begun && j.dead == nil {
		if ch := j.beginning; ch != nil {
			j.mu.Unlock()
			<-ch
			j.mu.Lock()
			continue
		}
		j.beginning = make(chan struct{})
		next := j.identity
		next.life++
		next.kept = max(next.kept, 1)
		j.mu.Unlock()
		err := j.writeIdentity(next)
		j.mu.Lock()
		if err == nil {
			j.identity, j.begun = next, true
		} else {
			j.dead = err
		}
		close(j.beginning)
		j.beginning = nil
	}
	defer j.mu.Unlock()
	return j.dead
}

func (j *journal) writeIdentity(i journalIdentity) error {
	if err := j.fs.MkdirAll(j.dir); err != nil {
		return err
	}
	if _, err := replaceFile(j.fs, joinPath(j.dir, journalIDName), i.encode()); err != nil {
		return err
	}
	if err := j.d.syncDir(j.dir); err != nil {
		return err
	}
	return syncParent(j.fs, j.dir)
}

// mark returns what a log's meta file must say before its first entry.
func (j *journal) mark() (journalID, uint32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.identity.id, j.identity.life
}

// usable reports whether entries can be made at all.
func (j *journal) usable() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.dead == nil
}

// admits reports whether the log may bring entries: a log that has some keeps its
// segment open until that is synced.
func (j *journal) admits(l *Log) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return l.part.low != 0 || j.pinned < j.d.o.OpenFiles
}

// commit returns when the requests are durable in the journal, or are to be made
// durable by their logs.
func (j *journal) commit(w *journalWaiter, reqs []*journalRequest) {
	j.mu.Lock()
	if j.dead != nil {
		j.mu.Unlock()
		for _, r := range reqs {
			r.direct = true
		}
		return
	}
	if len(reqs) == 1 && !j.leading && !j.lone && len(j.queue) == 0 && !j.always {
		// Nobody else is there: one sync of the file is cheaper than one of the journal
		// and one of the file later.
		j.lone = true
		j.stats.direct++
		reqs[0].direct, reqs[0].lone = true, true
		j.mu.Unlock()
		return
	}
	w.left, w.lead = len(reqs), false
	for _, r := range reqs {
		r.w = w
	}
	j.queue = append(j.queue, reqs...)
	lead := !j.leading
	j.leading = true
	j.mu.Unlock()
	if !lead {
		<-w.ch
		lead = w.lead
	}
	if lead {
		j.lead(w)
	}
}

// endLone says that a request that was alone is done with.
func (j *journal) endLone() {
	j.mu.Lock()
	j.lone = false
	j.mu.Unlock()
}

// lead writes groups until the requests of w are served, and hands the lead on.
func (j *journal) lead(w *journalWaiter) {
	for served := false; !served; {
		j.mu.Lock()
		g := j.takeLocked()
		j.mu.Unlock()
		err := j.writeGroup(g)
		j.mu.Lock()
		for _, r := range g.reqs {
			if err != nil {
				r.direct = true
				j.stats.direct++
			}
			if r.w.left--; r.w.left == 0 && r.w != w {
				g.done = append(g.done, r.w)
			}
		}
		var next *journalWaiter
		if served = w.left == 0; served {
			if len(j.queue) > 0 {
				next = j.queue[0].w
				next.lead = true
			} else {
				j.leading = false
			}
		}
		flush := j.wantFlushLocked()
		prepare := j.wantNextLocked()
		j.mu.Unlock()
		// The next leader goes first: it has waited longest.
		if next != nil {
			next.ch <- struct{}{}
		}
		for _, d := range g.done {
			d.ch <- struct{}{}
		}
		if flush {
			j.startFlush()
		}
		if prepare > 0 {
			j.startPrepare(prepare)
		}
		clear(g.reqs)
		clear(g.done)
		g.reqs, g.done = g.reqs[:0], g.done[:0]
		j.mu.Lock()
		j.groups = append(j.groups, g)
		j.mu.Unlock()
	}
}

// takeLocked takes the next group off the queue.
func (j *journal) takeLocked() *journalBatch {
	var g *journalBatch
	if n := len(j.groups); n > 0 {
		g = j.groups[n-1]
		j.groups = j.groups[:n-1]
	} else {
		g = new(journalBatch)
	}
	n, bytes := 0, int64(0)
	for n < len(j.queue) && n < maxJournalEntries && bytes+int64(len(j.queue[n].b)) <= maxJournalPayload {
		bytes += int64(len(j.queue[n].b))
		n++
	}
	g.reqs = append(g.reqs, j.queue[:n]...)
	rest := copy(j.queue, j.queue[n:])
	clear(j.queue[rest:])
	j.queue = j.queue[:rest]
	return g
}

// writeGroup makes a group durable. After an error nothing of it counts.
// Requires: lead.
func (j *journal) writeGroup(g *journalBatch) error {
	if err := j.begin(); err != nil {
		return err
	}
	var payload int64
	for _, r := range g.reqs {
		payload += int64(len(r.b))
	}
	if err := j.makeRoom(groupBytes(maxJournalUses, len(g.reqs), payload)); err != nil {
		return err
	}
	t := &j.table
	j.mu.Lock()
	t.id, t.use, t.index, t.payload = j.identity.id, j.cur.use, j.cur.groups, payload
	t.entries = t.entries[:0]
	for _, r := range g.reqs {
		j.pinLocked(r.l, j.cur)
		t.entries = append(t.entries, r.e)
	}
	t.live = j.neededLocked(t.live[:0])
	j.mu.Unlock()

	buf := getBuffer(int(t.bytes()))
	defer buf.put()
	b := buf.b
	head := journalTableBytes(len(t.live), len(t.entries))
	from := t.payloadAt()
	at := from
	for i, r := range g.reqs {
		t.entries[i].sum = crcUpdate(0, r.b)
		at += int64(copy(b[at:], r.b))
	}
	second := journalAlign(at)
	clear(b[at:second])
	t.encode(b[:head], false)
	clear(b[head:from])
	copy(b[second:], b[:from])
	sealJournalTable(b[second:second+head], true)

	_, err := j.cur.h.WriteAt(b, j.at)
	if err == nil {
		err = j.cur.h.Sync()
	}
	if err == nil {
		err = j.noteUsed()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.dead = fmt.Errorf("write %s: %w", j.cur.name, err)
		return j.dead
	}
	j.at += int64(len(b))
	j.cur.groups++
	j.stats.groups++
	j.stats.entries += int64(len(t.entries))
	j.stats.bytes += int64(len(b))
	j.freeLocked(t.live)
	return nil
}

// noteUsed makes durable, before anybody is told of the first group of a life, that there
// is one: recovery then misses it if none is left. Requires: lead.
func (j *journal) noteUsed() error {
	j.mu.Lock()
	next := j.identity
	next.used = next.life
	done := next == j.identity
	j.mu.Unlock()
	if done {
		return nil
	}
	err := j.writeIdentity(next)
	if err == nil {
		j.mu.Lock()
		j.identity = next
		j.mu.Unlock()
	}
	return err
}

// freeLocked makes files free whose use a durable group no longer names.
func (j *journal) freeLocked(live []liveUse) {
	for _, f := range j.files {
		if f.free || f == j.cur {
			continue
		}
		if !slices.ContainsFunc(live, func(u liveUse) bool { return u.use == f.use }) {
			f.free = true
			f.logs = nil
		}
	}
}

// neededLocked appends the uses, other than the present one, that hold needed
// entries, ascending.
func (j *journal) neededLocked(live []liveUse) []liveUse {
	pinned := false
	for _, f := range j.files {
		if f.free {
			continue
		}
		pinned = pinned || f.pins > 0
		if f != j.cur && (pinned && f.use.life() == j.identity.life || f.stuck > 0) {
			live = append(live, liveUse{f.use, f.groups})
		}
	}
	return live
}

// die ends the use of the journal.
func (j *journal) die(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.dead == nil {
		j.dead = err
	}
	return j.dead
}

// Who needs what.

func (j *journal) fileLocked(use useNumber) *journalFile {
	for _, f := range j.files {
		if f.use == use && !f.free {
			return f
		}
	}
	return nil
}

// pinLocked notes that the log has an entry in the file's use.
func (j *journal) pinLocked(l *Log, f *journalFile) {
	p := &l.part
	if p.stuck {
		r := j.stuck[l.id]
		if r.low == 0 {
			r = useRange{f.use, f.use}
		} else if r.high < f.use {
			j.countStuckLocked(r, -1)
			r.high = f.use
		} else {
			return
		}
		j.stuck[l.id] = r
		j.countStuckLocked(r, 1)
		return
	}
	p.high = f.use
	if p.low == 0 {
		p.low = f.use
		j.pinned++
		f.pins++
		f.logs = append(f.logs, l)
	}
}

func (j *journal) countStuckLocked(r useRange, by int) {
	for _, f := range j.files {
		if !f.free && f.use >= r.low && f.use <= r.high {
			f.stuck += by
		}
	}
}

// release says that entries of the log in uses below low are not needed any more;
// none is if low is 0.
func (j *journal) release(l *Log, low useNumber) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := &l.part
	if p.low == 0 || p.stuck || low != 0 && low <= p.low {
		return
	}
	if f := j.fileLocked(p.low); f != nil {
		f.pins--
	}
	if low > p.high {
		low = 0
	}
	p.low = low
	if low == 0 {
		p.high = 0
		j.pinned--
		return
	}
	if f := j.fileLocked(low); f != nil {
		f.pins++
		f.logs = append(f.logs, l)
	}
}

// abandon says that the log's entries are needed until it has been opened again.
func (j *journal) abandon(l *Log) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := &l.part
	if p.stuck {
		return
	}
	p.stuck = true
	if p.low == 0 {
		return
	}
	if f := j.fileLocked(p.low); f != nil {
		f.pins--
	}
	j.pinned--
	r := useRange{p.low, p.high}
	if before, ok := j.stuck[l.id]; ok {
		j.countStuckLocked(before, -1)
		r.low = before.low
	}
	j.stuck[l.id] = r
	j.countStuckLocked(r, 1)
	p.low, p.high = 0, 0
}

// settle says that the entries that Open found for the log are not needed any more.
// A log that has failed keeps them: what it left in this life is among them.
func (j *journal) settle(l *Log) {
	id := l.id
	j.mu.Lock()
	defer j.mu.Unlock()
	if l.part.stuck {
		return
	}
	delete(j.old, id)
	if r, ok := j.stuck[id]; ok {
		j.countStuckLocked(r, -1)
		delete(j.stuck, id)
	}
}

// use returns the present use.
func (j *journal) use() useNumber {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.curUse
}

// Flushing: segments are synced in the background, so that the journal's files can
// be used again.

// flushers is how many files are synced at once in the background.
const flushers = 4

// wantFlushLocked reports whether a flush is to be started.
func (j *journal) wantFlushLocked() bool {
	if j.flushing || len(j.urgent) == 0 && j.oldestLocked(j.limit/2) == nil {
		return false
	}
	j.flushing = true
	j.d.wg.Add(1)
	return true
}

// oldestLocked returns the file with the oldest needed entries of open logs, if more
// than keep bytes are needed, or by so many logs that their descriptors are too many.
func (j *journal) oldestLocked(keep int64) *journalFile {
	var first *journalFile
	var bytes int64
	for _, f := range j.files {
		if f.free || f.use.life() != j.identity.life {
			continue
		}
		if first == nil && f.pins > 0 {
			first = f
		}
		if first != nil && f != j.cur {
			bytes += f.size
		}
	}
	if bytes > keep || j.pinned > j.d.o.OpenFiles/2 {
		return first
	}
	return nil
}

func (j *journal) startFlush() {
	go pprof.Do(context.Background(), pprof.Labels("cordwood", "log-flush"), func(context.Context) { j.flush() })
}

// flushSoon has the log flushed.
func (j *journal) flushSoon(l *Log) {
	j.mu.Lock()
	j.urgent = append(j.urgent, l)
	start := j.wantFlushLocked()
	j.mu.Unlock()
	if start {
		j.startFlush()
	}
}

func (j *journal) flush() {
	defer j.d.wg.Done()
	for {
		j.mu.Lock()
		logs := j.urgent
		j.urgent = nil
		if f := j.oldestLocked(j.limit / 4); f != nil {
			for _, l := range f.logs {
				if l.part.low == f.use {
					logs = append(logs, l)
				}
			}
		}
		if len(logs) == 0 {
			j.flushing = false
			j.mu.Unlock()
			return
		}
		j.stats.flushes += int64(len(logs))
		j.mu.Unlock()
		var next struct {
			sync.Mutex
			n int
		}
		var progress bool
		var wg sync.WaitGroup
		for range min(flushers, len(logs)) {
			wg.Go(func() {
				for {
					next.Lock()
					i := next.n
					next.n++
					next.Unlock()
					if i >= len(logs) {
						return
					}
					if logs[i].flush() {
						next.Lock()
						progress = true
						next.Unlock()
					}
				}
			})
		}
		wg.Wait()
		if !progress {
			// Logs that can't state their durable end now will at their next sync.
			j.mu.Lock()
			j.flushing = false
			j.mu.Unlock()
			return
		}
	}
}

// close ends the journal when all logs are closed. Unless somebody may still need
// entries, its files go.
func (j *journal) close() error {
	j.mu.Lock()
	files := j.files
	needed := len(j.stuck) > 0
	j.dead = ErrClosed
	j.mu.Unlock()
	var errs []error
	for _, f := range files {
		if f.h != nil {
			errs = append(errs, f.h.Close())
		}
	}
	if needed || len(files) == 0 {
		return errors.Join(errs...)
	}
	if j.identity.used > 0 {
		next := j.identity
		next.used = 0
		if j.writeIdentity(next) != nil {
			return errors.Join(errs...)
		}
	}
	// What stays after an error does no harm: no log needs it, and none believes it.
	for _, f := range files {
		j.fs.Remove(f.name) //nolint:errcheck // as above
	}
	j.d.syncDir(j.dir) //nolint:errcheck // as above
	return errors.Join(errs...)
}

func newJournalIdentity() journalIdentity {
	var i journalIdentity
	rand.Read(i.id[:])
	return i
}
