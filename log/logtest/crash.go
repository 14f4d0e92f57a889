package logtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
)

// A CrashMode says which unsynced changes outlive a power loss. What was synced
// always does.
type CrashMode uint64

const (
	// CrashLoseAll loses every unsynced change.
	CrashLoseAll CrashMode = 0

	// CrashKeepAll keeps every unsynced change but content that a failed Sync has
	// given up.
	CrashKeepAll CrashMode = 1

	// CrashRandom is a mode drawn from the FS's own seed: mostly
	// [CrashLoseSome], at times one of the others.
	CrashRandom CrashMode = 3

	crashSome CrashMode = 2
)

// CrashLoseSome keeps a subset of the unsynced changes that the seed chooses:
// each sector of a file by itself, the file's size independently of them, and of
// each folder the first few of its unsynced changes. Of a rename between folders
// both names may survive, but never none.
func CrashLoseSome(seed uint64) CrashMode { return CrashMode(seed<<2) | crashSome }

// String names the mode and its seed.
func (m CrashMode) String() string {
	switch {
	case m == CrashLoseAll:
		return "CrashLoseAll"
	case m == CrashKeepAll:
		return "CrashKeepAll"
	case m == CrashRandom:
		return "CrashRandom"
	default:
		return fmt.Sprintf("CrashLoseSome(%d)", uint64(m>>2))
	}
}

type fate int

const (
	keepOld fate = iota
	keepNew
	keepZeros
)

// A chooser decides what of the unsynced changes survives.
type chooser struct {
	mode CrashMode
	rng  *rand.Rand
}

func newChooser(mode CrashMode, own *rand.Rand) chooser {
	if mode == CrashRandom {
		switch own.IntN(8) {
		case 0:
			mode = CrashLoseAll
		case 1:
			mode = CrashKeepAll
		default:
			mode = CrashLoseSome(own.Uint64())
		}
	}
	return chooser{mode: mode, rng: rand.New(rand.NewPCG(uint64(mode), 0x10c0ffee))}
}

// size picks how many of n size changes survive.
func (c chooser) size(n int) int { return c.prefix(n) }

// prefix picks how many of the first n unsynced changes survive.
func (c chooser) prefix(n int) int {
	switch {
	case c.mode == CrashLoseAll || n == 0:
		return 0
	case c.mode == CrashKeepAll:
		return n
	}
	switch c.rng.IntN(4) { // the ends are the likely and the interesting cases
	case 0:
		return 0
	case 1:
		return n
	default:
		return c.rng.IntN(n + 1)
	}
}

// content picks the fate of an unsynced sector.
func (c chooser) content(dirty, cut bool) fate {
	switch {
	case c.mode == CrashLoseAll:
		return keepOld
	case c.mode == CrashKeepAll:
		if dirty {
			return keepNew
		}
		return keepOld
	}
	switch c.rng.IntN(8) {
	case 0:
		if cut {
			return keepZeros
		}
		return keepNew
	case 1, 2, 3:
		return keepNew
	default:
		return keepOld
	}
}

// image returns the tree that the medium holds when the machine dies now.
// share says that the tree of root is never written to again.
func image(root *inode, c chooser, share bool) *inode {
	dirs := folders(root)
	keep := make(map[*inode]int, len(dirs))
	place := make(map[*nameChange]func() bool)
	for _, d := range dirs {
		keep[d] = c.prefix(len(d.pending))
		for i, ch := range d.pending {
			place[ch] = func() bool { return i < keep[d] }
		}
	}
	// A name that a rename took away is gone only if its new name is there. A
	// smaller prefix may make another one too long, until nothing changes.
	for changed := true; changed; {
		changed = false
		for _, d := range dirs {
			for i, ch := range d.pending[:keep[d]] {
				if ch.needs == nil || ch.needs.done {
					continue
				}
				if kept := place[ch.needs]; kept == nil || !kept() {
					keep[d], changed = i, true
					break
				}
			}
		}
	}
	made := make(map[*inode]*inode)
	var build func(n *inode) *inode
	build = func(n *inode) *inode {
		if out := made[n]; out != nil {
			out.names++
			return out
		}
		var out *inode
		if n.isDir {
			names := maps.Clone(n.durable)
			for _, ch := range n.pending[:keep[n]] {
				ch.apply(names)
			}
			out = &inode{id: n.id, isDir: true, mtime: n.mtime, entries: make(map[string]*inode, len(names))}
			made[n] = out
			for _, name := range sortedNames(names) {
				out.entries[name] = build(names[name])
			}
			out.durable = maps.Clone(out.entries)
		} else {
			out = n.image(c, share)
			made[n] = out
		}
		out.names++
		return out
	}
	return build(root)
}

// folders returns every folder that may be in an image of root, in a fixed order.
func folders(root *inode) []*inode {
	var out []*inode
	seen := make(map[*inode]bool)
	var walk func(n *inode)
	walk = func(n *inode) {
		if n == nil || !n.isDir || seen[n] {
			return
		}
		seen[n] = true
		out = append(out, n)
		for _, name := range sortedNames(n.durable) {
			walk(n.durable[name])
		}
		for _, ch := range n.pending {
			walk(ch.comeNode)
		}
	}
	walk(root)
	return out
}
