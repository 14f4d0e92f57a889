package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime/pprof"
	"slices"
)

// The files of the journal. The next one is made in the background when the present
// one is a quarter full, so that appends don't wait for it: a file that is made is free,
// with nothing in it that recovery could take for a group, and that it is there when
// the process dies means nothing. A leader that is there before it waits.

// makeRoom makes sure that a group of n bytes fits into the present file.
// Requires: lead.
func (j *journal) makeRoom(n int64) error {
	if j.cur != nil && j.at+n <= j.cur.size {
		return nil
	}
	j.mu.Lock()
	for j.preparing != nil {
		ch := j.preparing
		j.mu.Unlock()
		<-ch
		j.mu.Lock()
	}
	if j.dead != nil {
		defer j.mu.Unlock()
		return j.dead
	}
	next := j.freeFileLocked(n)
	size := j.nextSizeLocked(n)
	j.mu.Unlock()
	if next != nil && next.h == nil {
		h, err := j.fs.Open(next.name, true)
		if err != nil {
			return j.die(err)
		}
		next.h = h
	}
	if next == nil {
		if size == 0 {
			return errJournalFull
		}
		var err error
		if next, err = j.create(size); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.serial++
	next.use = useNumber(j.identity.life)<<32 | useNumber(j.serial)
	next.groups, next.free, next.pins, next.stuck, next.logs = 0, false, 0, 0, nil
	j.cur, j.at, j.curUse = next, 0, next.use
	j.files = append(slices.DeleteFunc(j.files, func(f *journalFile) bool { return f == next }), next)
	return nil
}

// freeFileLocked returns the largest free file, if it holds n bytes.
func (j *journal) freeFileLocked(n int64) *journalFile {
	var best *journalFile
	for _, f := range j.files {
		if f.free && f.size >= n && (best == nil || f.size > best.size) {
			best = f
		}
	}
	return best
}

// nextSizeLocked returns how long a new file for a group of n bytes is to be, 0 if
// there is no room for it.
func (j *journal) nextSizeLocked(n int64) int64 {
	size, bytes := int64(journalFirstFile), int64(0)
	for _, f := range j.files {
		if f.free || f.use.life() == j.identity.life { // what earlier lives have left counts apart
			bytes += f.size
			size = max(size, 2*f.size)
		}
	}
	for size < n {
		size *= 2
	}
	most := max(journalFirstFile, j.limit/32)
	if n > most {
		most = j.limit / 8
	}
	size = min(size, most)
	if n > size || bytes+size > j.limit || len(j.files) >= maxJournalUses {
		return 0
	}
	return size
}

// wantNextLocked returns the size of the file that is to be made in the background,
// if the present one is a quarter full and none is free; else 0. The caller calls
// startPrepare without mu if it isn't. Requires: lead.
func (j *journal) wantNextLocked() int64 {
	if j.preparing != nil || j.dead != nil || j.cur == nil || j.at < j.cur.size/4 || j.freeFileLocked(0) != nil {
		return 0
	}
	size := j.nextSizeLocked(0)
	if size > 0 {
		j.preparing = make(chan struct{})
		j.d.wg.Add(1)
	}
	return size
}

func (j *journal) startPrepare(size int64) {
	go pprof.Do(context.Background(), pprof.Labels("cordwood", "log-journal"), func(context.Context) { j.prepare(size) })
}

// prepare makes a free file. Who needs one after an error makes it itself, and has
// the error then, unless the journal is dead of it.
func (j *journal) prepare(size int64) {
	defer j.d.wg.Done()
	f, err := j.create(size)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		f.free = true
		j.files = append(j.files, f)
	}
	close(j.preparing)
	j.preparing = nil
}

// create makes a new file. A full disk is no failure.
func (j *journal) create(size int64) (*journalFile, error) {
	free, err := j.fs.FreeBytes(j.dir)
	if err != nil {
		return nil, j.die(err)
	}
	if free-size < j.d.o.ReserveBytes {
		return nil, errJournalFull
	}
	j.mu.Lock()
	j.named++
	number := j.named
	j.mu.Unlock()
	name := joinPath(j.dir, fmt.Sprintf("%08x-%08x%s", j.identity.life, number, journalSuffix))
	if err := j.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, j.die(err)
	}
	h, err := j.fs.Create(name)
	if err != nil {
		if full(err) {
			return nil, errJournalFull
		}
		return nil, j.die(err)
	}
	if err = h.Preallocate(0, size); err == nil {
		if err = writeZeros(h, size); err == nil {
			if err = h.Sync(); err == nil {
				err = j.d.syncDir(j.dir)
			}
		}
	}
	if err != nil {
		err = errors.Join(err, h.Close())
		if full(err) {
			j.fs.Remove(name) //nolint:errcheck // else removed at the next NewDisk
			return nil, errJournalFull
		}
		return nil, j.die(err)
	}
	return &journalFile{name: name, size: size, h: h}, nil
}

// writeZeros writes the first size bytes of a file, so that the sync of a group finds
// blocks that were written before: else each is a change of the file system's own
// structures too, and waits for those that syncs of segments make at the same time.
func writeZeros(f File, size int64) error {
	buf := getBuffer(int(min(size, scanBytes)))
	defer buf.put()
	clear(buf.b)
	for at := int64(0); at < size; at += int64(len(buf.b)) {
		if _, err := f.WriteAt(buf.b[:min(size-at, int64(len(buf.b)))], at); err != nil {
			return err
		}
	}
	return nil
}
