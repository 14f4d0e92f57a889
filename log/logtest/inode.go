package logtest

import (
	"slices"
	"time"
)

// SectorBytes is the unit in which a crash keeps or loses unsynced content, and
// the unit of allocation.
const SectorBytes = 4096

const (
	sectorsPerChunk = 256
	chunkBytes      = sectorsPerChunk * SectorBytes
)

// A sector's bytes. Those that a slot's durable names, or that another FS may
// share, are never changed in place.
type sector [SectorBytes]byte

// A slot is one sector of a file; a nil sector reads as zeros.
type slot struct {
	current *sector // what reads see; private to this FS iff it differs from durable
	durable *sector // what a crash leaves

	// dirty: the next Sync makes current durable. A slot that differs and is not
	// dirty was lost by a failed Sync, as Linux marks a page clean that it
	// couldn't write.
	dirty bool

	reserved bool // counts against the capacity
}

type chunk [sectorsPerChunk]slot

// An inode is a file or a folder, apart from its names.
type inode struct {
	id    int64 // order of creation: makes walks deterministic
	isDir bool
	mtime time.Time
	names int // present names
	opens int // open handles

	// File.
	chunks      []*chunk // a nil chunk reads as zeros
	size        int64
	durableSize int64
	sizes       []int64 // sizes since the last Sync, oldest first, bounded
	cutTo       int64   // smallest size since the last Sync; slots above were cut
	dirty       []int   // slots marked dirty, each once
	reserved    int64   // slots that count against the capacity

	// Folder.
	entries map[string]*inode
	durable map[string]*inode
	pending []*nameChange // what SyncDir makes durable, oldest first
}

// A nameChange is one unsynced change of a folder: a name goes, a name comes, or
// both at once for a rename within one folder.
type nameChange struct {
	gone     string // "" for none
	goneNode *inode
	come     string // "" for none
	comeNode *inode

	// The other half of a rename between folders, and where it stands. The half
	// that removes survives only together with the half that adds.
	needs *nameChange
	done  bool // made durable
}

func (c *nameChange) apply(names map[string]*inode) {
	if c.gone != "" && names[c.gone] == c.goneNode {
		delete(names, c.gone)
	}
	if c.come != "" {
		names[c.come] = c.comeNode
	}
}

const maxSizes = 16

func (n *inode) slot(i int) *slot {
	c := n.chunks[i/sectorsPerChunk]
	if c == nil {
		c = new(chunk)
		n.chunks[i/sectorsPerChunk] = c
	}
	return &c[i%sectorsPerChunk]
}

// cover makes the table of chunks reach size.
func (n *inode) cover(size int64) {
	want := int((size + chunkBytes - 1) / chunkBytes)
	if want > len(n.chunks) {
		n.chunks = append(n.chunks, make([]*chunk, want-len(n.chunks))...)
	}
}

func (n *inode) mark(i int, s *slot) {
	if !s.dirty {
		s.dirty = true
		n.dirty = append(n.dirty, i)
	}
}

// own gives the slot a sector that may be written to; keep says whether the old
// content matters.
func (n *inode) own(s *slot, keep bool) *sector {
	if s.current != s.durable && s.current != nil {
		return s.current
	}
	fresh := new(sector)
	if keep && s.current != nil {
		*fresh = *s.current
	}
	s.current = fresh
	return fresh
}

func (n *inode) readAt(p []byte, off int64) int {
	if off >= n.size {
		return 0
	}
	p = p[:min(int64(len(p)), n.size-off)]
	done := 0
	for done < len(p) {
		at := off + int64(done)
		in := int(at % SectorBytes)
		part := p[done:min(len(p), done+SectorBytes-in)]
		var from *sector
		if c := n.chunks[at/chunkBytes]; c != nil {
			from = c[at%chunkBytes/SectorBytes].current
		}
		if from == nil {
			clear(part)
		} else {
			copy(part, from[in:])
		}
		done += len(part)
	}
	return done
}

// writeAt writes what room (in sectors; negative for no bound) allows and
// returns the bytes written and the sectors taken.
func (n *inode) writeAt(p []byte, off, room int64) (done int, took int64) {
	n.cover(off + int64(len(p)))
	for done < len(p) {
		at := off + int64(done)
		in := int(at % SectorBytes)
		part := p[done:min(len(p), done+SectorBytes-in)]
		i := int(at / SectorBytes)
		s := n.slot(i)
		if !s.reserved {
			if room >= 0 && took >= room {
				break
			}
			s.reserved = true
			n.reserved++
			took++
		}
		copy(n.own(s, len(part) < SectorBytes)[in:], part)
		n.mark(i, s)
		done += len(part)
	}
	if end := off + int64(done); done > 0 && end > n.size {
		n.setSize(end)
	}
	return done, took
}

func (n *inode) setSize(size int64) {
	if len(n.sizes) < maxSizes {
		n.sizes = append(n.sizes, n.size)
	}
	n.size = size
	n.cutTo = min(n.cutTo, size)
}

// truncate cuts or extends the file and returns the sectors freed.
func (n *inode) truncate(size int64) (freed int64) {
	if size < n.size {
		first := int((size + SectorBytes - 1) / SectorBytes)
		last := len(n.chunks) * sectorsPerChunk
		for i := first; i < last; i++ {
			c := n.chunks[i/sectorsPerChunk]
			if c == nil {
				i += sectorsPerChunk - 1 - i%sectorsPerChunk
				continue
			}
			s := &c[i%sectorsPerChunk]
			if s.reserved {
				s.reserved = false
				n.reserved--
				freed++
			}
			if s.current != nil {
				s.current = nil
				n.mark(i, s)
			}
		}
		if in := int(size % SectorBytes); in > 0 {
			i := int(size / SectorBytes)
			if c := n.chunks[i/sectorsPerChunk]; c != nil {
				if s := &c[i%sectorsPerChunk]; s.current != nil {
					clear(n.own(s, true)[in:])
					n.mark(i, s)
				}
			}
		}
	}
	n.cover(size)
	if size != n.size {
		n.setSize(size)
	}
	return freed
}

// reserve counts the slots of [off, off+length) against the capacity, if room
// (in sectors; negative for no bound) allows all of them.
func (n *inode) reserve(off, length, room int64) (took int64, ok bool) {
	n.cover(off + length)
	first, last := int(off/SectorBytes), int((off+length+SectorBytes-1)/SectorBytes)
	for i := first; i < last; i++ {
		c := n.chunks[i/sectorsPerChunk]
		if c == nil || !c[i%sectorsPerChunk].reserved {
			took++
		}
	}
	if room >= 0 && took > room {
		return 0, false
	}
	for i := first; i < last; i++ {
		n.slot(i).reserved = true
	}
	n.reserved += took
	return took, true
}

func (n *inode) sync() {
	for _, i := range n.dirty {
		s := n.slot(i)
		s.durable = s.current
		s.dirty = false
	}
	n.dirty = n.dirty[:0]
	n.durableSize = n.size
	n.sizes = n.sizes[:0]
	n.cutTo = n.size
}

// forget is a failed sync: the dirty content will not be tried again. The size is
// still to be written.
func (n *inode) forget() {
	for _, i := range n.dirty {
		n.slot(i).dirty = false
	}
	n.dirty = n.dirty[:0]
}

// image returns what the medium holds of the file when the machine dies now.
// share says that n is never written to again.
func (n *inode) image(c chooser, share bool) *inode {
	out := &inode{id: n.id, mtime: n.mtime}
	out.size = n.durableSize
	sizesLost := true
	if k := c.size(len(n.sizes)); k > 0 && len(n.sizes) > 0 {
		sizesLost = false
		out.size = n.size
		if k < len(n.sizes) {
			out.size = n.sizes[k]
		}
	}
	out.durableSize, out.cutTo = out.size, out.size
	out.cover(out.size)
	last := int((out.size + SectorBytes - 1) / SectorBytes)
	for ci, from := range n.chunks {
		if from == nil || ci*sectorsPerChunk >= last {
			continue
		}
		to := new(chunk)
		out.chunks[ci] = to
		for si := range from {
			i := ci*sectorsPerChunk + si
			if i >= last {
				break
			}
			s := &from[si]
			content := s.durable
			if s.current != s.durable {
				cut := int64(i)*SectorBytes >= n.cutTo
				switch c.content(s.dirty, cut) {
				case keepNew:
					// A cut that did not happen leaves the old bytes.
					if s.current != nil || !cut || !sizesLost {
						content = s.current
						if content != nil && !share {
							content = new(*content)
						}
					}
				case keepZeros:
					if !sizesLost {
						content = nil
					}
				}
			}
			to[si] = slot{current: content, durable: content, reserved: s.reserved || content != nil}
			if to[si].reserved {
				out.reserved++
			}
		}
	}
	if in := int(out.size % SectorBytes); in > 0 {
		i := int(out.size / SectorBytes)
		if ch := out.chunks[i/sectorsPerChunk]; ch != nil && ch[i%sectorsPerChunk].current != nil {
			s := &ch[i%sectorsPerChunk]
			cut := new(*s.current)
			clear(cut[in:])
			s.current, s.durable = cut, cut
		}
	}
	return out
}

func sortedNames(m map[string]*inode) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
