package log

// The log's side of the journal: what it brings to a group, and how its segments
// follow in the background.

// journalRound makes what is written durable by the journal and frees the sync
// token; false means that the file must be synced instead, and nothing was done.
// Requires: mu, and the sync token. Unlocks mu if true.
func (l *Log) journalRound() bool {
	j := l.disk.journal
	if !l.journalableLocked() {
		return false
	}
	r := l.captureLocked()
	if r.end == l.durable {
		// Slots alone; the next sync of the file takes them along.
		l.synced = r.target
		l.syncing = false
		l.wakeLocked(&l.syncDone)
		l.mu.Unlock()
		return true
	}
	buf := l.makeRequestLocked(r)
	l.mu.Unlock()
	j.commit(&l.waiter, l.requests[:])
	if l.endJournalRound(r, buf) {
		return true
	}
	// As it was asked for, but by the file.
	l.fileRound()
	if l.request.lone {
		j.endLone()
	}
	return true
}

// journalableLocked reports whether all that is not durable can go into the journal.
func (l *Log) journalableLocked() bool {
	return l.disk.journal != nil && l.marked && (l.slotted || !l.spared) && !l.partial && l.tailWhole && l.tailFrom == l.durable &&
		(l.tail != nil || l.end == l.durable) && l.failed == nil && l.disk.journal.admits(l)
}

// makeRequestLocked prepares the log's request and takes the bytes for it.
func (l *Log) makeRequestLocked(r round) *buffer {
	buf := l.tail
	l.tail = nil
	l.tailFrom = r.end
	l.requests[0] = &l.request
	if l.waiter.ch == nil {
		l.waiter.ch = make(chan struct{}, 1)
	}
	l.request = journalRequest{l: l, b: buf.b, e: journalEntry{
		id: l.id, generation: l.meta.generation, segment: r.seg.base,
		position: r.size - int64(len(buf.b)), size: uint32(len(buf.b)), base: l.durable, end: r.end,
		headers: r.sum, epoch: l.chain.last(), firstAppendMs: l.firstMs,
	}}
	l.journaled = max(l.journaled, r.end)
	l.asked = r.use
	return buf
}

// endJournalRound ends a round whose request was served. False means that the file
// must be synced; mu is held then.
func (l *Log) endJournalRound(r round, buf *buffer) bool {
	buf.put()
	l.request.b = nil
	l.mu.Lock()
	l.asked = 0
	if l.request.direct {
		return false
	}
	moved := l.durableLocked(r)
	old := l.endSealedLocked()
	l.syncing = false
	l.wakeLocked(&l.syncDone)
	l.mu.Unlock()
	l.afterRound(r, false, moved)
	l.tellSealed(old)
	return true
}

// keepTailLocked keeps a copy of b, which was written or is held at the end, for the
// journal.
func (l *Log) keepTailLocked(b []byte) {
	if !l.tailWhole || !l.marked {
		return
	}
	n := 0
	if l.tail != nil {
		n = len(l.tail.b)
	}
	if n+len(b) > l.disk.journal.logBytes {
		l.tailWhole = false
		l.tail.put()
		l.tail = nil
		return
	}
	if l.tail == nil {
		l.tail = getBuffer(len(b))
	} else if n+len(b) > cap(l.tail.b) {
		more := getBuffer(n + len(b))
		copy(more.b, l.tail.b)
		l.tail.put()
		l.tail = more
	}
	l.tail.b = l.tail.b[:n+len(b)]
	copy(l.tail.b[n:], b)
}

// cutTailLocked forgets the copy: what is below end is, or is going to be, durable
// in the file.
func (l *Log) cutTailLocked(end Offset) {
	l.tail.put()
	l.tail, l.tailFrom, l.tailWhole = nil, end, true
}

// endPartial says that the call is done. Requires: gate.
func (l *Log) endPartial() {
	if l.partial {
		l.setPartial(false)
	}
}

// setPartial says whether what is written ends with a part of a call. Requires: gate.
func (l *Log) setPartial(is bool) {
	l.mu.Lock()
	l.partial = is
	l.mu.Unlock()
}

// markJournal makes the meta file name the journal in its present life, before the
// log has entries in it. Without room for that the log does without. Requires: gate.
func (l *Log) markJournal() error {
	j := l.disk.journal
	if l.marked || j == nil {
		return nil
	}
	if !j.usable() || j.begin() != nil {
		return nil
	}
	id, life := j.mark()
	if l.meta.journal != id || l.meta.journalLife != life {
		m := l.meta
		m.journal, m.journalLife = id, life
		if renamed, err := replaceFile(l.fs, joinPath(l.dir, metaName), m.encode()); err != nil {
			if !renamed && full(err) {
				return nil
			}
			return l.fail("replace "+metaName+" in "+l.dir, err)
		}
		if err := l.disk.syncDir(l.dir); err != nil {
			return l.fail("sync "+l.dir, err)
		}
		l.mu.Lock()
		l.meta = m
		l.mu.Unlock()
	}
	l.mu.Lock()
	l.marked = true
	l.cutTailLocked(l.end)
	l.tailWhole = l.end == l.durable
	l.mu.Unlock()
	return nil
}

// unmarkJournal takes the name of another journal, or of an earlier life of this one,
// whose entries the log does not need any more, out of the meta file: when the journal
// gives that life up, nothing is lost. Requires: gate, or recovery.
func (l *Log) unmarkJournal() error {
	if l.meta.journal == (journalID{}) || l.unsure || l.marked {
		return nil
	}
	m := l.meta
	m.journal, m.journalLife = journalID{}, 0
	_, err := replaceFile(l.fs, joinPath(l.dir, metaName), m.encode())
	if err == nil {
		err = l.disk.syncDir(l.dir)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.meta = m
	l.mu.Unlock()
	return nil
}

// syncJournaled syncs the active file if it has writes that only the journal made
// durable. Requires: gate and the sync token.
func (l *Log) syncJournaled() error {
	l.mu.Lock()
	needed := l.disk.journal != nil && l.filed < l.writes
	l.mu.Unlock()
	if !needed {
		return nil
	}
	seg := l.active()
	f, err := seg.h.acquire()
	if err == nil {
		err = l.disk.syncFile(f)
		seg.h.release()
	}
	if err != nil {
		return l.fail("sync "+seg.h.name, err)
	}
	return nil
}

// forgetJournal says that no entry of the log counts any more: its meta file has
// another generation, or everything is durable and stated elsewhere.
func (l *Log) forgetJournal() {
	if j := l.disk.journal; j != nil && !l.o.ReadOnly {
		l.mu.Lock()
		l.journaled = 0
		l.mu.Unlock()
		j.release(l, 0)
		j.settle(l)
	}
}

// flush syncs the active file in the background: appends go on meanwhile, by the
// journal. It reports whether the journal needs less of the log now.
func (l *Log) flush() bool {
	l.mu.Lock()
	if l.failed != nil || l.closing || l.filing || l.readOnly {
		l.mu.Unlock()
		return false
	}
	l.filing = true
	r := l.captureLocked()
	l.flushed = r.seg
	l.slotWrittenLocked(r)
	r.slot.end, r.slot.endHeaders = r.slot.durable, r.slot.headers
	l.mu.Unlock()
	err := l.syncActive(r)
	if err != nil {
		l.fail("sync "+r.seg.h.name, err)
	}
	l.mu.Lock()
	unpin := err == nil && l.filedLocked(r)
	old := l.endSealedLocked()
	l.filing, l.flushed = false, nil
	l.wakeLocked(&l.syncDone)
	l.mu.Unlock()
	l.tellSealed(old)
	if unpin {
		r.seg.h.release()
	}
	return err == nil && r.slot.durable <= l.statedNow()
}

func (l *Log) statedNow() Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stated
}

// A laterBatch is logs whose SyncLater callbacks are served by one group.
type laterBatch struct {
	logs   []*Log
	items  []laterItem
	reqs   []*journalRequest
	rest   []*Log
	waiter journalWaiter
}

type laterItem struct {
	l     *Log
	r     round
	buf   *buffer
	calls []func(Offset, error)
}

func (b *laterBatch) run(d *Disk) {
	if b.waiter.ch == nil {
		b.waiter.ch = make(chan struct{}, 1)
	}
	for _, l := range b.logs {
		if it, ok := l.beginLater(); ok {
			b.items = append(b.items, it)
			b.reqs = append(b.reqs, &l.request)
		} else {
			b.rest = append(b.rest, l)
		}
	}
	if len(b.rest) > 0 {
		d.laterSingle(b.rest)
		b.rest = b.rest[:0]
	}
	if len(b.reqs) > 0 {
		d.journal.commit(&b.waiter, b.reqs)
	}
	for _, it := range b.items {
		l := it.l
		if l.endJournalRound(it.r, it.buf) {
			end := l.DurableEnd()
			for _, done := range it.calls {
				done(end, nil)
			}
			l.endLater()
			continue
		}
		// Not in the journal: as if it had not been tried, but by the file.
		l.later = append(it.calls, l.later...)
		l.syncing = false
		l.wakeLocked(&l.syncDone)
		lone := l.request.lone
		l.mu.Unlock()
		if lone {
			d.journal.endLone()
		}
		b.rest = append(b.rest, l)
	}
	if len(b.rest) > 0 {
		d.laterSingle(b.rest)
	}
	clear(b.items)
	clear(b.reqs)
	clear(b.logs)
	b.logs, b.items, b.reqs, b.rest = b.logs[:0], b.items[:0], b.reqs[:0], b.rest[:0]
}

// beginLater takes the sync token and prepares the log's request, if its callbacks
// can be served by the journal at once.
func (l *Log) beginLater() (laterItem, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.later) == 0 || l.syncing || l.end == l.durable || !l.journalableLocked() {
		return laterItem{}, false
	}
	l.syncing = true
	it := laterItem{l: l, calls: l.later}
	l.later = nil
	it.r = l.captureLocked()
	it.buf = l.makeRequestLocked(it.r)
	return it, true
}
