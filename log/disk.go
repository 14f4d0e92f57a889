package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Defaults of [DiskOptions].
const (
	DefaultOpenFiles     = 4096 // or a quarter of what the process may have open
	DefaultBlockingCalls = 256
	DefaultSyncers       = 16

	DefaultJournalBytes  int64 = 512 << 20
	DefaultHeldBytes     int64 = 64 << 20
	DefaultRecycledBytes int64 = 1 << 30
)

// DiskOptions configure [NewDisk]. The zero value is safe and bounded.
type DiskOptions struct {
	// FS is the file system. Nil means [OSFS].
	FS FS

	// Dir, if set, is the root of the tree that the disk's logs live in. The disk
	// then holds one lock for all of it, and a log below Dir needs no open lock file
	// of its own. The folder is made if it does not exist. Logs elsewhere are locked
	// one by one.
	Dir string

	// OpenFiles is how many file descriptors segments may keep open. Range 1 and up,
	// default DefaultOpenFiles or a quarter of the process's limit, whichever is less.
	//
	// More are open while more are in use at one moment: up to three by each call under
	// way, eight by the background, one for each log that has writes which the host has
	// not synced. The journal keeps no more than OpenFiles segments open for the sake of
	// its entries. Beside segments there are at most 64 files of the journal, the lock, and
	// one file for each call under way and each of up to eight workers in the background.
	OpenFiles int

	// BlockingCalls bounds the file operations that run at once, syncs apart. Range
	// 1 and up, default DefaultBlockingCalls.
	BlockingCalls int

	// Syncers bounds the syncs that run at once, and the goroutines that serve
	// SyncLater. Range 1 and up, default DefaultSyncers.
	Syncers int

	// JournalBytes bounds the files of the journal, in the folder cordwood.journal of
	// Dir, by which small appends of many logs become durable together. They are made
	// when they are needed and removed by Close. Range 256 KiB and up, default
	// DefaultJournalBytes; negative for no journal. Without Dir there is none.
	JournalBytes int64

	// HeldBytes bounds the memory in which segment files hold back small appends that
	// the journal makes durable, so that the file gets them by larger writes: those of
	// Append and AppendRecords, up to 32 KiB at once and 64 KiB of one log. What Write,
	// WriteRecords, WriteControl and AppendReplicated take is never held. Held bytes are
	// written when no more fit, with the next append that is not held, and before the
	// file is synced; with no room left an append is written at once.
	//
	// Readers see no difference, and nothing that was acknowledged is less durable. But
	// until it is written it is on the disk in the journal only: a copy of a log's
	// folder without Dir/cordwood.journal lacks it, as does a program that reads the
	// segment files, or one that opens the folder with Options.ReadOnly after the process
	// has died. An error of such a write comes after the append was acknowledged: the
	// log fails ([FailedError]), and has the record again when it is closed and opened.
	//
	// Nothing is held on a file system that is not known to reserve what is
	// preallocated (see [Reserver]): there a full disk shows only when bytes are written,
	// and an append must be told. Range 4 KiB and up (below that nothing fits), default
	// DefaultHeldBytes; negative, that nothing is held.
	HeldBytes int64

	// RecycledBytes bounds what the disk's open logs keep of files that TrimTo and
	// DropLocal have freed. Such a file becomes a later segment of its own log, which
	// makes appends cheaper to sync: their blocks exist and were written before. A log
	// keeps four at most; over the bound the oldest are deleted, and on a full disk
	// all are. 0 means DefaultRecycledBytes; negative, that none is kept.
	RecycledBytes int64

	// ReserveBytes is the free space below which logs without Options.UseReserve
	// take no appends that need more room. Default 0.
	ReserveBytes int64
}

func (o DiskOptions) withDefaults() (DiskOptions, error) {
	var errs []error
	number := func(name string, v *int, def int) {
		if *v == 0 {
			*v = def
		}
		if *v < 1 {
			errs = append(errs, fmt.Errorf("log: disk options: %s %d is below 1", name, *v))
		}
	}
	if o.FS == nil {
		o.FS = OSFS{}
	}
	number("OpenFiles", &o.OpenFiles, max(1, min(DefaultOpenFiles, int(fileLimit()/4))))
	number("BlockingCalls", &o.BlockingCalls, DefaultBlockingCalls)
	number("Syncers", &o.Syncers, DefaultSyncers)
	if o.JournalBytes == 0 {
		o.JournalBytes = DefaultJournalBytes
	}
	if o.JournalBytes >= 0 && o.JournalBytes < minJournalBytes {
		errs = append(errs, fmt.Errorf("log: disk options: JournalBytes %d is below %d", o.JournalBytes, minJournalBytes))
	}
	if o.HeldBytes == 0 {
		o.HeldBytes = DefaultHeldBytes
	}
	if o.RecycledBytes == 0 {
		o.RecycledBytes = DefaultRecycledBytes
	}
	o.RecycledBytes = max(o.RecycledBytes, 0)
	if o.ReserveBytes < 0 {
		errs = append(errs, fmt.Errorf("log: disk options: ReserveBytes %d is negative", o.ReserveBytes))
	}
	return o, errors.Join(errs...)
}

// A Disk is what the logs of one directory tree share: file descriptors, blocking
// calls, sync workers, and the reserve for a full disk. A log that is not used
// holds no descriptor, goroutine or timer. Its methods are safe for concurrent
// use.
type Disk struct {
	fs    FS
	o     DiskOptions
	calls chan struct{} // a token for each blocking call that runs
	syncs chan struct{} // and for each sync
	lock  io.Closer     // of the tree; nil without Dir
	wg    sync.WaitGroup

	journal *journal     // nil without Dir
	held    atomic.Int64 // bytes of the buffers of its files, see behind.go
	holds   bool         // files may hold back bytes: Dir's file system reserves, and HeldBytes allows it
	holdAll bool         // for tests: what is not synced at once is held, too
	spares  spares
	chores  chores

	mu      sync.Mutex
	closed  bool
	dirs    map[string]bool // of open logs
	open    int             // descriptors
	idle    handleList      // open handles that nobody uses, least recently used last
	queue   []*Log          // with SyncLater callbacks that wait, in order
	single  []*Log          // of these, those that sync their own files
	workers int
	stats   DiskStats
}

// DiskStats are counters of a [Disk] since it was made, and what it holds now.
type DiskStats struct {
	Logs      int   // open
	OpenFiles int   // descriptors of segments
	Opens     int64 // of segment files, first ones and again after eviction
	Evictions int64 // descriptors closed to stay within OpenFiles
	Syncs     int64 // file syncs
	SyncQueue int   // logs that wait for a worker
	Workers   int   // that run

	RecycledFiles int   // kept for later segments of their logs
	RecycledBytes int64 // their size
	PreparedFiles int   // next segments of busy logs, made in advance

	HeldBytes int64 // memory that holds appends back from segment files, by buffers of 4 KiB to 64 KiB
}

// NewDisk returns a disk. Errors: [ErrLocked] if another process has Dir, mistakes
// in the options, or those of the file system.
func NewDisk(o DiskOptions) (*Disk, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Disk{
		fs: o.FS, o: o,
		calls: make(chan struct{}, o.BlockingCalls),
		syncs: make(chan struct{}, o.Syncers),
		dirs:  make(map[string]bool),
	}
	d.idle.init()
	if o.Dir != "" {
		if err := d.fs.MkdirAll(o.Dir); err != nil {
			return nil, err
		}
		d.lock, err = d.fs.Lock(joinPath(o.Dir, lockName))
		if err != nil {
			return nil, err
		}
		d.journal, err = openJournal(d, joinPath(o.Dir, journalDirName), o.JournalBytes)
		if err != nil {
			return nil, errors.Join(err, d.lock.Close())
		}
		if r, ok := d.fs.(Reserver); ok && d.journal != nil && o.HeldBytes > 0 {
			d.holds = r.Reserves(o.Dir)
		}
	}
	return d, nil
}

const lockName = "cordwood.lock"

// Close waits for the workers and releases what the disk holds. Its logs must be
// closed before: with one open it returns an error and does nothing.
func (d *Disk) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	if n := len(d.dirs); n > 0 {
		d.mu.Unlock()
		return fmt.Errorf("log: close of a disk with %d open logs", n)
	}
	d.closed = true
	d.mu.Unlock()
	d.wg.Wait()
	d.mu.Lock()
	var files []File
	for h := d.idle.back(); h != nil; h = d.idle.back() {
		d.idle.remove(h)
		d.open--
		files = append(files, h.f)
		h.f = nil
	}
	d.mu.Unlock()
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	if d.journal != nil {
		errs = append(errs, d.journal.close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	return errors.Join(errs...)
}

// Stats returns counters.
func (d *Disk) Stats() DiskStats {
	d.spares.mu.Lock()
	recycled, bytes, prepared := d.spares.recycled, d.spares.bytes, d.spares.prepared
	d.spares.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.HeldBytes = d.held.Load()
	s.RecycledFiles, s.RecycledBytes, s.PreparedFiles = recycled, bytes, prepared
	s.Logs, s.OpenFiles, s.SyncQueue, s.Workers = len(d.dirs), d.open, len(d.queue)+len(d.single), d.workers
	return s
}

// FS returns the disk's file system.
func (d *Disk) FS() FS { return d.fs }

// claim gives a directory to one Log. The closer gives it back.
// claim takes a directory for one log. Without lock it makes no file there, and keeps
// off only the logs of this disk.
func (d *Disk) claim(dir string, lock bool) (io.Closer, error) {
	dir = path.Clean(strings.ReplaceAll(dir, "\\", "/"))
	d.mu.Lock()
	switch {
	case d.closed:
		d.mu.Unlock()
		return nil, ErrClosed
	case d.dirs[dir]:
		d.mu.Unlock()
		return nil, fmt.Errorf("%w: %s", ErrLocked, dir)
	}
	d.dirs[dir] = true
	d.mu.Unlock()
	c := &claim{d: d, dir: dir}
	root := path.Clean(strings.ReplaceAll(d.o.Dir, "\\", "/"))
	if lock && (d.lock == nil || !(dir == root || strings.HasPrefix(dir, strings.TrimSuffix(root, "/")+"/"))) {
		var err error
		if c.lock, err = d.fs.Lock(joinPath(dir, lockName)); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

type claim struct {
	d    *Disk
	dir  string
	lock io.Closer
}

func (c *claim) Close() error {
	var err error
	if c.lock != nil {
		err = c.lock.Close()
	}
	c.d.mu.Lock()
	delete(c.d.dirs, c.dir)
	c.d.mu.Unlock()
	return err
}

// enter and leave bound the calls that block a thread.
func (d *Disk) enter() { d.calls <- struct{}{} }
func (d *Disk) leave() { <-d.calls }

// syncFile syncs a file; the caller holds its handle.
func (d *Disk) syncFile(f File) error {
	d.syncs <- struct{}{}
	err := f.Sync()
	<-d.syncs
	d.mu.Lock()
	d.stats.Syncs++
	d.mu.Unlock()
	return err
}

// syncName syncs a file that is not open.
func (d *Disk) syncName(name string) error {
	d.syncs <- struct{}{}
	err := syncName(d.fs, name)
	<-d.syncs
	return err
}

func (d *Disk) syncDir(dir string) error {
	d.syncs <- struct{}{}
	err := d.fs.SyncDir(dir)
	<-d.syncs
	return err
}

// later queues a log whose callbacks wait. A log is queued at most once at a time.
func (d *Disk) later(l *Log) {
	d.mu.Lock()
	d.queue = append(d.queue, l)
	start := d.workers < d.o.Syncers
	if start {
		d.workers++
		d.wg.Add(1)
	}
	d.mu.Unlock()
	if start {
		go pprof.Do(context.Background(), pprof.Labels("cordwood", "log-sync"), func(context.Context) { d.work() })
	}
}

// laterSingle queues logs again that are to sync their own files.
func (d *Disk) laterSingle(logs []*Log) {
	d.mu.Lock()
	d.single = append(d.single, logs...)
	n := min(len(d.single), d.o.Syncers-d.workers)
	if n > 0 {
		d.workers += n
		d.wg.Add(n)
	}
	d.mu.Unlock()
	for range n {
		go pprof.Do(context.Background(), pprof.Labels("cordwood", "log-sync"), func(context.Context) { d.work() })
	}
}

// work serves the queues and ends when they are empty. What may go into the journal
// is served together.
func (d *Disk) work() {
	defer d.wg.Done()
	var batch laterBatch
	for {
		d.mu.Lock()
		switch n := len(d.queue); {
		case len(d.single) > 0:
			l := d.single[0]
			d.single = d.single[1:]
			d.mu.Unlock()
			l.runLater()
		case n == 0:
			d.queue, d.single = nil, nil
			d.workers--
			d.mu.Unlock()
			return
		case n == 1 || d.journal == nil:
			l := d.queue[0]
			d.queue = d.queue[1:]
			d.mu.Unlock()
			l.runLater()
		default:
			n = min(n, maxJournalEntries)
			batch.logs = append(batch.logs[:0], d.queue[:n]...)
			d.queue = d.queue[n:]
			d.mu.Unlock()
			batch.run(d)
		}
	}
}

// A handle is a file that is opened when it is used and may be closed when not.
type handle struct {
	d     *Disk
	name  string
	write bool

	// Under d.mu:
	f          File
	refs       int
	opening    chan struct{} // closed when the opener is done; nil if nobody opens
	dead       bool          // not kept open after the last use, nor opened again
	gone       func()        // called once the file is dead and out of use; nil for nothing
	prev, next *handle       // in d.idle while f != nil and refs == 0
}

// acquire opens the file if it isn't and keeps it open until release.
func (h *handle) acquire() (File, error) {
	d := h.d
	for {
		d.mu.Lock()
		if h.f != nil {
			if h.refs == 0 {
				d.idle.remove(h)
			}
			h.refs++
			f := h.f
			d.mu.Unlock()
			return f, nil
		}
		if h.dead {
			d.mu.Unlock()
			return nil, &fs.PathError{Op: "open", Path: h.name, Err: fs.ErrNotExist}
		}
		if wait := h.opening; wait != nil {
			d.mu.Unlock()
			<-wait
			continue
		}
		done := make(chan struct{})
		h.opening = done
		var evicted File
		if d.open >= d.o.OpenFiles {
			if old := d.idle.back(); old != nil {
				d.idle.remove(old)
				evicted, old.f = old.f, nil
				d.open--
				d.stats.Evictions++
			}
		}
		d.mu.Unlock()
		d.enter()
		if evicted != nil {
			evicted.Close() //nolint:errcheck // nothing unsynced is evicted, and a segment file's content is not at stake
		}
		f, err := d.fs.Open(h.name, h.write)
		d.leave()
		if err == nil {
			f = h.wrap(f)
		}
		d.mu.Lock()
		h.opening = nil
		if err == nil {
			h.f = f
			h.refs = 1
			d.open++
			d.stats.Opens++
		}
		gone := h.goneLocked()
		d.mu.Unlock()
		close(done)
		if gone != nil {
			gone()
		}
		return f, err
	}
}

// adopt gives the handle a file that is open already, with one use.
func (h *handle) adopt(f File) {
	f = h.wrap(f)
	h.d.mu.Lock()
	h.f = f
	h.refs = 1
	h.d.open++
	h.d.stats.Opens++
	h.d.mu.Unlock()
}

// wrap lets a file hold back writes.
func (h *handle) wrap(f File) File {
	if !h.write || !h.d.holds {
		return f
	}
	return newBehindFile(h.d, f)
}

// release ends one use.
func (h *handle) release() {
	d := h.d
	d.mu.Lock()
	h.refs--
	var shut File
	if h.refs == 0 {
		if h.dead || d.open > d.o.OpenFiles {
			shut, h.f = h.f, nil
			d.open--
		} else {
			d.idle.pushFront(h)
		}
	}
	gone := h.goneLocked()
	d.mu.Unlock()
	if shut != nil {
		shut.Close() //nolint:errcheck // as above
	}
	if gone != nil {
		gone()
	}
}

// drop closes the file now or after its last use.
func (h *handle) drop() { h.dropThen(nil) }

// dropThen is drop, and gone is called when the file is out of use, by whoever ends
// the last one.
func (h *handle) dropThen(gone func()) {
	d := h.d
	d.mu.Lock()
	h.dead = true
	h.gone = gone
	var shut File
	if h.f != nil && h.refs == 0 {
		d.idle.remove(h)
		shut, h.f = h.f, nil
		d.open--
	}
	gone = h.goneLocked()
	d.mu.Unlock()
	if shut != nil {
		shut.Close() //nolint:errcheck // as above
	}
	if gone != nil {
		gone()
	}
}

// goneLocked returns what is to be called if the file is dead and out of use.
func (h *handle) goneLocked() func() {
	if !h.dead || h.f != nil || h.opening != nil {
		return nil
	}
	gone := h.gone
	h.gone = nil
	return gone
}

// A handleList is a ring of handles with a root of its own.
type handleList struct{ root handle }

func (l *handleList) init() { l.root.prev, l.root.next = &l.root, &l.root }

func (l *handleList) back() *handle {
	if l.root.prev == &l.root {
		return nil
	}
	return l.root.prev
}

func (l *handleList) pushFront(h *handle) {
	h.prev, h.next = &l.root, l.root.next
	h.prev.next, h.next.prev = h, h
}

func (l *handleList) remove(h *handle) {
	h.prev.next, h.next.prev = h.next, h.prev
	h.prev, h.next = nil, nil
}

// full reports whether an error is for want of room.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrDiskFull) || diskQuota(err)
}
