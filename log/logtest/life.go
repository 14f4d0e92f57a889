package logtest

import "math/rand/v2"

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
		for s := range fs.stalls {
			close(s.released)
		}
		clear(fs.stalls)
	}
}
