package logtest

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
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
	hook atomic.Pointer[func(Op) error]

	mu       sync.Mutex
	dead     bool
	handed   bool // Kill gave the tree to another FS
	root     *inode
	nextID   int64
	locks    map[string]*lockHandle
	capacity int64              // sectors; negative for no bound
	used     int64              // sectors
	handles  map[*file]struct{} // open
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

// A stall holds operations back. Its channel belongs to the synctest bubble that
// asked for it, whatever bubble the FS was made in.
type stall struct {
	match    func(Op) bool
	released chan struct{}
}

var (
	_ log.FS       = (*FS)(nil)
	_ log.Reserver = (*FS)(nil)
)

// NewFS returns an empty disk without a bound on its size. The seed decides what
// [CrashRandom] does, nothing else.
func NewFS(seed uint64) *FS {
	return newFS(&inode{isDir: true, names: 1, entries: map[string]*inode{}, durable: map[string]*inode{}}, rand.New(rand.NewPCG(seed, 0xd15c)))
}

func newFS(root *inode, rng *rand.Rand) *FS {
	return &FS{
		root:     root,
		locks:    make(map[string]*lockHandle),
		capacity: -1,
		handles:  make(map[*file]struct{}),
		stalls:   make(map[*stall]struct{}),
		rng:      rng,
	}
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
		<-s.released
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

// nodeLocked resolves a cleaned name.
func (fs *FS) nodeLocked(name string) (*inode, error) {
	n := fs.root
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		if part == "" {
			continue
		}
		if !n.isDir {
			return nil, syscall.ENOTDIR
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
		err = syscall.ENOTDIR
	}
	return n, err
}

func (fs *FS) fileLocked(name string) (*inode, error) {
	n, err := fs.nodeLocked(name)
	if err == nil && n.isDir {
		err = syscall.EISDIR
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
				return syscall.EISDIR
			}
			return syscall.ENOTDIR
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
				return syscall.ENOTDIR
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

// Reserves implements [log.Reserver]: a write to what Preallocate covers finds room.
func (fs *FS) Reserves(string) bool { return true }

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
