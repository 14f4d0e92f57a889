package log

import (
	"bytes"
	"sync"
)

// JournalAll makes the journal of a disk take what a log brings that is alone, too.
func JournalAll(d *Disk) {
	d.journal.mu.Lock()
	defer d.journal.mu.Unlock()
	d.journal.always = true
}

// HoldAll makes files of a disk hold back what is not synced at once, too, before any of
// its logs is open: a crash of the process may take that away like one of the machine.
func HoldAll(d *Disk) { d.holdAll = true }

// A BehindFile is a file that holds back writes at its end.
type BehindFile struct{ *behindFile }

func NewBehindFile(d *Disk, f File) BehindFile { return BehindFile{newBehindFile(d, f)} }

func (f BehindFile) Hold(b []byte, at int64) bool { return f.hold(b, at) }

// JournalStats returns how many groups and entries a disk's journal took, and how
// many requests it sent back.
func JournalStats(d *Disk) (groups, entries, direct, flushes int64) {
	d.journal.mu.Lock()
	defer d.journal.mu.Unlock()
	s := d.journal.stats
	return s.groups, s.entries, s.direct, s.flushes
}

// SyncTogether makes what is written to the logs of a disk durable by one group of
// its journal, as far as that may be.
func SyncTogether(d *Disk, logs ...*Log) error {
	var b laterBatch
	var wg sync.WaitGroup
	errs := make([]error, len(logs))
	for i, l := range logs {
		wg.Add(1)
		l.mu.Lock()
		l.later = append(l.later, func(_ Offset, err error) { errs[i] = err; wg.Done() })
		l.laterLocked()
		l.mu.Unlock()
		b.logs = append(b.logs, l)
	}
	b.run(d)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// FlushLog syncs a log's own file, as the journal has it done in the background.
func FlushLog(l *Log) bool { return l.flush() }

// JournalPinned returns how many open logs have entries that are needed.
func JournalPinned(d *Disk) int {
	d.journal.mu.Lock()
	defer d.journal.mu.Unlock()
	return d.journal.pinned
}

// JournalFiles returns how many files a disk's journal has, and how many of them are
// free.
func JournalFiles(d *Disk) (all, free int) {
	d.journal.mu.Lock()
	defer d.journal.mu.Unlock()
	for _, f := range d.journal.files {
		if f.free {
			free++
		}
	}
	return len(d.journal.files), free
}

// SetJournalLogBytes changes how many bytes a log brings to one group at most, before
// any log of the disk is open.
func SetJournalLogBytes(d *Disk, n int) { d.journal.logBytes = n }

// NewestSlots returns the sequence of the newest slot of a segment in its file's bytes, as
// recovery finds it and by a look at all places; 0 for none.
func NewestSlots(b []byte, base Offset) (found, all uint64, err error) {
	var id logID
	look := func(b []byte, _ int64) {
		if s, ok := decodeSlot(b); ok && s.base == base && s.sequence > all {
			all, id = s.sequence, s.id
		}
	}
	size := int64(len(b))
	for _, p := range slotPositions(size) {
		look(b[p:], 0)
		look(b[p+slotGap:], 0)
	}
	if err := eachNear(bytes.NewReader(b), size, slotGap, func() int64 { return 0 }, look); err != nil {
		return 0, 0, err
	}
	s, _, ok, err := searchSlots(bytes.NewReader(b), size, slotGap, id, base)
	if ok {
		found = s.sequence
	}
	return found, all, err
}
