package logtest

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

const (
	traceOps       = 128
	unlimitedBytes = int64(1) << 50
)

// An FS is a disk in memory that implements [log.FS]. See the package comment.
// It is safe for concurrent use.
type FS struct {
	hook    atomic.Pointer[func(Op) error]
	crashed chan struct{} // closed by the crash

	mu       sync.Mutex
	dead     bool
	handed   bool // Kill gave the tree to another FS
	root     *inode
	nextID   int64
	locks    map[string]*lockHandle
	capacity int64 // sectors; negative for no bound
	used     int64 // sectors
	stalls   map[*stall]struct{}
	rng      *rand.Rand

	counts       [kinds]int64
	ops, changes int64
	written      int64
	trace        [traceOps]traced
	traceNext    int
}

type traced struct {
	op    Op
	err   error
	note  string
	valid bool
}

type stall struct {
	match    func(Op) bool
	released chan struct{}
}

var _ log.FS = (*FS)(nil)

// NewFS returns an empty disk without a bound on its size. The seed decides what
// [CrashRandom] does, nothing else.
func NewFS(seed uint64) *FS {
	return newFS(&inode{isDir: true, names: 1, entries: map[string]*inode{}, durable: map[string]*inode{}}, rand.New(rand.NewPCG(seed, 0xd15c)))
}

func newFS(root *inode, rng *rand.Rand) *FS {
	return &FS{
		crashed:  make(chan struct{}),
		root:     root,
		locks:    make(map[string]*lockHandle),
		capacity: -1,
		stalls:   make(map[*stall]struct{}),
		rng:      rng,
	}
}

// Crash is a loss of power: this FS and all its files are dead, every operation
// on them returns [ErrCrashed], and the FS that is returned holds what is left.
// Without a mode it is [CrashLoseAll]. Locks are gone (the files that named them
// are files like any other), hooks and stalls are not carried over, the capacity
// and the trace are.
//
// Called again on the dead FS, it makes another image of the same moment.
func (fs *FS) Crash(mode ...CrashMode) *FS {
	m := CrashLoseAll
	if len(mode) > 0 {
		m = mode[0]
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.handed {
		panic("logtest: Crash after Kill")
	}
	fs.dieLocked()
	return fs.imageLocked(m, true)
}

// Fork returns what [FS.Crash] would, and this FS lives on.
func (fs *FS) Fork(mode CrashMode) *FS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.imageLocked(mode, fs.dead)
}

func (fs *FS) imageLocked(mode CrashMode, share bool) *FS {
	c := newChooser(mode, fs.rng)
	out := newFS(image(fs.root, c, share), rand.New(rand.NewPCG(fs.rng.Uint64(), 0xd15c)))
	out.nextID = fs.nextID
	out.capacity = fs.capacity
	out.used = usedSectors(out.root)
	out.trace, out.traceNext = fs.trace, fs.traceNext
	out.noteLocked(c.mode.String())
	return out
}

func usedSectors(root *inode) int64 {
	var sum int64
	seen := make(map[*inode]bool)
	var walk func(n *inode)
	walk = func(n *inode) {
		if seen[n] {
			return
		}
		seen[n] = true
		sum += n.reserved
		for _, child := range n.entries {
			walk(child)
		}
	}
	walk(root)
	return sum
}

// Kill is the death of the process while the machine lives on: this FS and all
// its files are dead as after [FS.Crash], and the FS that is returned sees every
// change, those unsynced still unsynced, so that a later crash may lose them.
// It must not be called after Crash.
func (fs *FS) Kill() *FS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.dead {
		panic("logtest: Kill after the end of this FS")
	}
	fs.dieLocked()
	fs.handed = true
	out := newFS(fs.root, rand.New(rand.NewPCG(fs.rng.Uint64(), 0xd15c)))
	closeAll(out.root)
	out.nextID = fs.nextID
	out.capacity = fs.capacity
	out.used = usedSectors(out.root)
	out.trace, out.traceNext = fs.trace, fs.traceNext
	out.noteLocked("Kill")
	return out
}

func closeAll(n *inode) {
	n.opens = 0
	for _, child := range n.entries {
		closeAll(child)
	}
}

// PowerOff makes every operation from now on return [ErrCrashed], those that are
// stalled included. Images are taken by [FS.Crash] afterwards.
func (fs *FS) PowerOff() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.dieLocked()
}

// Crashed reports whether the FS is dead.
func (fs *FS) Crashed() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.dead
}

func (fs *FS) dieLocked() {
	if !fs.dead {
		fs.dead = true
		close(fs.crashed)
	}
}

// OnOp sets the function that is called before every operation, in place of the
// one before; nil for none. What it returns is the operation's outcome: nil lets
// it happen; an error is returned to the caller and nothing is done, except that
// a Sync so failed gives up the unsynced content of its file (see the package
// comment); [DoneButFailed] and [Short] do other harm.
//
// The hook is called without locks held. It may block, call other methods of the
// FS such as [FS.PowerOff] (but no operation that would call it again), and is
// called by several goroutines at once if operations are.
func (fs *FS) OnOp(hook func(Op) error) {
	if hook == nil {
		fs.hook.Store(nil)
		return
	}
	fs.hook.Store(&hook)
}

// Stall makes operations that match wait until release is called or the FS dies.
// Release may be called more than once.
func (fs *FS) Stall(match func(Op) bool) (release func()) {
	s := &stall{match: match, released: make(chan struct{})}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.stalls[s] = struct{}{}
	return sync.OnceFunc(func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		delete(fs.stalls, s)
		close(s.released)
	})
}

// SetCapacity bounds the disk to that many bytes, counted in sectors that were
// written or preallocated; what is used already stays. Negative is no bound.
func (fs *FS) SetCapacity(bytes int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.capacity = -1
	if bytes >= 0 {
		fs.capacity = bytes / SectorBytes
	}
}

// UsedBytes returns how much of the capacity is used.
func (fs *FS) UsedBytes() int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.used * SectorBytes
}

// Count returns how many operations of the kind were asked for.
func (fs *FS) Count(k Kind) int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.counts[k]
}

// Changes returns how many operations that change the disk were asked for.
func (fs *FS) Changes() int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.changes
}

// WrittenBytes returns how many bytes were written.
func (fs *FS) WrittenBytes() int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.written
}

// Trace returns the last operations, one a line, oldest first, for the message of
// a test that fails. Crashes are part of it.
func (fs *FS) Trace() string {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var b strings.Builder
	for i := range traceOps {
		t := fs.trace[(fs.traceNext+i)%traceOps]
		switch {
		case !t.valid:
			continue
		case t.note != "":
			fmt.Fprintf(&b, "-- %s\n", t.note)
		case t.err != nil:
			fmt.Fprintf(&b, "%v: %v\n", t.op, t.err)
		default:
			fmt.Fprintf(&b, "%v\n", t.op)
		}
	}
	return b.String()
}

func (fs *FS) noteLocked(note string) {
	fs.trace[fs.traceNext] = traced{note: note, valid: true}
	fs.traceNext = (fs.traceNext + 1) % traceOps
}

// Corrupt flips the bits of masks in the file's bytes from offset on, durably and
// as readers see them: rot on the medium. The file needn't be closed.
func (fs *FS) Corrupt(name string, offset int64, masks ...byte) error {
	name = clean(name)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.dead {
		return pathError("corrupt", name, ErrCrashed)
	}
	n, err := fs.fileLocked(name)
	if err != nil {
		return pathError("corrupt", name, err)
	}
	if offset < 0 || offset+int64(len(masks)) > n.size {
		return pathError("corrupt", name, io.ErrUnexpectedEOF)
	}
	for k, mask := range masks {
		at := offset + int64(k)
		i, in := int(at/SectorBytes), int(at%SectorBytes)
		s := n.slot(i)
		flip := func(old *sector) *sector {
			fresh := new(sector)
			if old != nil {
				*fresh = *old
			}
			fresh[in] ^= mask
			return fresh
		}
		same := s.current == s.durable
		s.current = flip(s.current)
		if same {
			s.durable = s.current
		} else if at < n.durableSize {
			s.durable = flip(s.durable)
		}
		if !s.reserved {
			s.reserved = true
			n.reserved++
			fs.used++
		}
	}
	fs.noteLocked(fmt.Sprintf("corrupt %s [%d,+%d)", name, offset, len(masks)))
	return nil
}

func clean(name string) string { return path.Clean("/" + name) }

func pathError(op, name string, err error) error {
	return &iofs.PathError{Op: op, Path: name, Err: err}
}

// begin counts the operation, stalls it, asks the hook, and takes mu. The
// operation goes on iff err is nil; end must be called in each case.
func (fs *FS) begin(op *Op) error {
	fs.mu.Lock()
	fs.ops++
	op.N = fs.ops
	fs.counts[op.Kind]++
	if op.Kind.Changes() {
		fs.changes++
	}
	op.Changed = fs.changes
	if fs.dead {
		return ErrCrashed
	}
	var waits []*stall
	for s := range fs.stalls {
		if s.match(*op) {
			waits = append(waits, s)
		}
	}
	fs.mu.Unlock()
	for _, s := range waits {
		select {
		case <-s.released:
		case <-fs.crashed:
		}
	}
	var err error
	if hook := fs.hook.Load(); hook != nil {
		err = (*hook)(*op)
	}
	fs.mu.Lock()
	if fs.dead {
		return ErrCrashed
	}
	return err
}

// end records the outcome, drops mu and names the operation in the error.
func (fs *FS) end(op *Op, err error) error {
	fs.trace[fs.traceNext] = traced{op: *op, err: err, valid: true}
	fs.traceNext = (fs.traceNext + 1) % traceOps
	fs.mu.Unlock()
	switch {
	case err == nil || err == io.EOF:
		return err
	case op.NewPath != "":
		return fmt.Errorf("%s %s %s: %w", op.Kind, op.Path, op.NewPath, err)
	default:
		return pathError(op.Kind.String(), op.Path, err)
	}
}

// outcome says whether an operation is done although the hook returned err.
func outcome(err error) bool {
	if err == nil {
		return true
	}
	_, done := errors.AsType[*doneError](err)
	return done
}

// do runs an operation that is done whole or not at all.
func (fs *FS) do(op Op, change func() error) error {
	err := fs.begin(&op)
	if outcome(err) {
		if failed := change(); failed != nil {
			err = failed
		}
	}
	return fs.end(&op, err)
}

var (
	errNotDir = errors.New("not a directory")
	errIsDir  = errors.New("is a directory")
)

// nodeLocked resolves a cleaned name.
func (fs *FS) nodeLocked(name string) (*inode, error) {
	n := fs.root
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		if part == "" {
			continue
		}
		if !n.isDir {
			return nil, errNotDir
		}
		n = n.entries[part]
		if n == nil {
			return nil, iofs.ErrNotExist
		}
	}
	return n, nil
}

func (fs *FS) dirLocked(name string) (*inode, error) {
	n, err := fs.nodeLocked(name)
	if err == nil && !n.isDir {
		err = errNotDir
	}
	return n, err
}

func (fs *FS) fileLocked(name string) (*inode, error) {
	n, err := fs.nodeLocked(name)
	if err == nil && n.isDir {
		err = errIsDir
	}
	return n, err
}

func (fs *FS) parentLocked(name string) (dir *inode, base string, err error) {
	if name == "/" {
		return nil, "", iofs.ErrInvalid
	}
	dir, err = fs.dirLocked(path.Dir(name))
	return dir, path.Base(name), err
}

func (fs *FS) newNodeLocked(isDir bool) *inode {
	fs.nextID++
	n := &inode{id: fs.nextID, isDir: isDir, mtime: time.Now()}
	if isDir {
		n.entries, n.durable = map[string]*inode{}, map[string]*inode{}
	}
	return n
}

func (d *inode) add(name string, n *inode) *nameChange {
	ch := &nameChange{come: name, comeNode: n}
	d.entries[name] = n
	d.pending = append(d.pending, ch)
	d.mtime = time.Now()
	n.names++
	return ch
}

func (d *inode) drop(name string) *nameChange {
	n := d.entries[name]
	ch := &nameChange{gone: name, goneNode: n}
	delete(d.entries, name)
	d.pending = append(d.pending, ch)
	d.mtime = time.Now()
	n.names--
	return ch
}

// freeLocked gives back the space of a file that nobody can reach any more.
func (fs *FS) freeLocked(n *inode) {
	if !n.isDir && n.names == 0 && n.opens == 0 {
		fs.used -= n.reserved
		n.reserved = 0
	}
}

// Create implements [log.FS].
func (fs *FS) Create(name string) (log.File, error) {
	name = clean(name)
	var f *file
	err := fs.do(Op{Kind: OpCreate, Path: name}, func() error {
		dir, base, err := fs.parentLocked(name)
		if err != nil {
			return err
		}
		if dir.entries[base] != nil {
			return iofs.ErrExist
		}
		n := fs.newNodeLocked(false)
		dir.add(base, n)
		f = fs.handleLocked(n, name, true)
		return nil
	})
	return f.orNil(err)
}

// Open implements [log.FS].
func (fs *FS) Open(name string, write bool) (log.File, error) {
	name = clean(name)
	var f *file
	err := fs.do(Op{Kind: OpOpen, Path: name}, func() error {
		n, err := fs.fileLocked(name)
		if err == nil {
			f = fs.handleLocked(n, name, write)
		}
		return err
	})
	return f.orNil(err)
}

// Remove implements [log.FS].
func (fs *FS) Remove(name string) error {
	name = clean(name)
	return fs.do(Op{Kind: OpRemove, Path: name}, func() error {
		dir, base, err := fs.parentLocked(name)
		if err != nil {
			return err
		}
		n := dir.entries[base]
		switch {
		case n == nil:
			return iofs.ErrNotExist
		case n.isDir && len(n.entries) > 0:
			return syscall.ENOTEMPTY
		}
		dir.drop(base)
		fs.freeLocked(n)
		return nil
	})
}

// Rename implements [log.FS].
func (fs *FS) Rename(oldName, newName string) error {
	oldName, newName = clean(oldName), clean(newName)
	return fs.do(Op{Kind: OpRename, Path: oldName, NewPath: newName}, func() error {
		from, oldBase, err := fs.parentLocked(oldName)
		if err != nil {
			return err
		}
		n := from.entries[oldBase]
		if n == nil {
			return iofs.ErrNotExist
		}
		to, newBase, err := fs.parentLocked(newName)
		if err != nil {
			return err
		}
		if n.isDir && strings.HasPrefix(newName+"/", oldName+"/") && oldName != newName {
			return iofs.ErrInvalid
		}
		old := to.entries[newBase]
		switch {
		case old == n:
			return nil
		case old == nil:
		case old.isDir != n.isDir:
			if old.isDir {
				return errIsDir
			}
			return errNotDir
		case len(old.entries) > 0:
			return syscall.ENOTEMPTY
		}
		if old != nil {
			old.names--
			fs.freeLocked(old)
		}
		if from == to {
			delete(from.entries, oldBase)
			from.entries[newBase] = n
			from.pending = append(from.pending, &nameChange{gone: oldBase, goneNode: n, come: newBase, comeNode: n})
			from.mtime = time.Now()
			return nil
		}
		added := to.add(newBase, n)
		from.drop(oldBase).needs = added
		return nil
	})
}

// Link implements [log.FS].
func (fs *FS) Link(oldName, newName string) error {
	oldName, newName = clean(oldName), clean(newName)
	return fs.do(Op{Kind: OpLink, Path: oldName, NewPath: newName}, func() error {
		n, err := fs.fileLocked(oldName)
		if err != nil {
			return err
		}
		dir, base, err := fs.parentLocked(newName)
		if err != nil {
			return err
		}
		if dir.entries[base] != nil {
			return iofs.ErrExist
		}
		dir.add(base, n)
		return nil
	})
}

// MkdirAll implements [log.FS].
func (fs *FS) MkdirAll(name string) error {
	name = clean(name)
	return fs.do(Op{Kind: OpMkdir, Path: name}, func() error {
		n := fs.root
		for part := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
			if part == "" {
				continue
			}
			child := n.entries[part]
			switch {
			case child == nil:
				child = fs.newNodeLocked(true)
				n.add(part, child)
			case !child.isDir:
				return errNotDir
			}
			n = child
		}
		return nil
	})
}

// List implements [log.FS].
func (fs *FS) List(dir string) ([]string, error) {
	dir = clean(dir)
	var names []string
	err := fs.do(Op{Kind: OpList, Path: dir}, func() error {
		n, err := fs.dirLocked(dir)
		if err == nil {
			names = sortedNames(n.entries)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return names, nil
}

// Stat implements [log.FS].
func (fs *FS) Stat(name string) (log.FileInfo, error) {
	name = clean(name)
	var info log.FileInfo
	err := fs.do(Op{Kind: OpStat, Path: name}, func() error {
		n, err := fs.nodeLocked(name)
		if err == nil {
			info = log.FileInfo{Size: n.size, ModTime: n.mtime, IsDir: n.isDir}
		}
		return err
	})
	if err != nil {
		return log.FileInfo{}, err
	}
	return info, nil
}

// SyncDir implements [log.FS]. Of a rename between folders, the old name stays
// after a crash until the folder of the new one is synced as well.
func (fs *FS) SyncDir(dir string) error {
	dir = clean(dir)
	return fs.do(Op{Kind: OpSyncDir, Path: dir}, func() error {
		n, err := fs.dirLocked(dir)
		if err != nil {
			return err
		}
		var waiting []*nameChange
		for _, ch := range n.pending {
			if ch.needs != nil && !ch.needs.done {
				waiting = append(waiting, ch)
				continue
			}
			ch.apply(n.durable)
			ch.done = true
		}
		n.pending = waiting
		return nil
	})
}

// Lock implements [log.FS].
func (fs *FS) Lock(name string) (io.Closer, error) {
	name = clean(name)
	var l *lockHandle
	err := fs.do(Op{Kind: OpLock, Path: name}, func() error {
		dir, base, err := fs.parentLocked(name)
		if err != nil {
			return err
		}
		if fs.locks[name] != nil {
			return log.ErrLocked
		}
		if dir.entries[base] == nil {
			dir.add(base, fs.newNodeLocked(false))
		}
		l = &lockHandle{fs: fs, name: name}
		fs.locks[name] = l
		return nil
	})
	if err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

// FreeBytes implements [log.FS]. A disk without a bound has 1 PiB.
func (fs *FS) FreeBytes(dir string) (int64, error) {
	dir = clean(dir)
	var free int64
	err := fs.do(Op{Kind: OpFreeBytes, Path: dir}, func() error {
		if _, err := fs.dirLocked(dir); err != nil {
			return err
		}
		free = unlimitedBytes
		if fs.capacity >= 0 {
			free = max(0, fs.capacity-fs.used) * SectorBytes
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return free, nil
}

func (fs *FS) roomLocked() int64 {
	if fs.capacity < 0 {
		return -1
	}
	return max(0, fs.capacity-fs.used)
}

type lockHandle struct {
	fs   *FS
	name string
}

func (l *lockHandle) release() {
	if l == nil {
		return
	}
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.fs.locks[l.name] == l {
		delete(l.fs.locks, l.name)
	}
}

// Close releases the lock.
func (l *lockHandle) Close() error {
	l.release()
	return nil
}

// Names returns the path of every file and folder, folders with a slash at the
// end, sorted by folder: a way to look at an image in a test.
func (fs *FS) Names() []string {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var out []string
	var walk func(prefix string, n *inode)
	walk = func(prefix string, n *inode) {
		for _, name := range sortedNames(n.entries) {
			child := n.entries[name]
			if child.isDir {
				out = append(out, prefix+name+"/")
				walk(prefix+name+"/", child)
				continue
			}
			out = append(out, prefix+name)
		}
	}
	walk("/", fs.root)
	return out
}

// SyncAll makes everything durable, as if a long time had passed. No hook is
// called.
func (fs *FS) SyncAll() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	seen := make(map[*inode]bool)
	var walk func(n *inode)
	walk = func(n *inode) {
		if seen[n] {
			return
		}
		seen[n] = true
		if !n.isDir {
			n.sync()
			return
		}
		for _, ch := range n.pending {
			ch.done = true
		}
		n.durable, n.pending = maps.Clone(n.entries), nil
		for _, child := range n.entries {
			walk(child)
		}
	}
	walk(fs.root)
}
