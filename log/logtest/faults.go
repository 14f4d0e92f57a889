package logtest

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

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
	return func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		if _, there := fs.stalls[s]; there {
			delete(fs.stalls, s)
			close(s.released)
		}
	}
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

// OpenFiles returns the names of the files that are open, sorted, once for each
// handle: a test of who leaks descriptors.
func (fs *FS) OpenFiles() []string {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	names := make([]string, 0, len(fs.handles))
	for f := range fs.handles {
		names = append(names, f.name)
	}
	slices.Sort(names)
	return names
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
