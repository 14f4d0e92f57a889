package log

// JournalAll makes the journal of a disk take what a log brings that is alone, too.
func JournalAll(d *Disk) {
	d.journal.mu.Lock()
	defer d.journal.mu.Unlock()
	d.journal.always = true
}

// JournalStats returns how many groups and entries a disk's journal took, and how
// many requests it sent back.
func JournalStats(d *Disk) (groups, entries, direct, flushes int64) {
	d.journal.mu.Lock()
	defer d.journal.mu.Unlock()
	s := d.journal.stats
	return s.groups, s.entries, s.direct, s.flushes
}
