package log

import (
	"bytes"
	"errors"
	"slices"
	"sort"
	"strconv"
)

// An epochChain is a log's leader epochs with their first offsets.
//
// Invariant: both fields ascend strictly. Elements are never changed in place, so
// a copy of the slice header stays valid; truncation makes a new array.
type epochChain []EpochStart

func (c epochChain) last() Epoch {
	if len(c) == 0 {
		return -1
	}
	return c[len(c)-1].Epoch
}

func (c epochChain) clone() []EpochStart { return slices.Clone([]EpochStart(c)) }

// at returns the epoch of the batch that starts at off, -1 below the chain.
func (c epochChain) at(off Offset) Epoch {
	i := sort.Search(len(c), func(i int) bool { return c[i].Start > off })
	if i == 0 {
		return -1
	}
	return c[i-1].Epoch
}

// assign notes that a batch of the epoch starts at off. Entries that contradict it
// are evicted (KAFKA-7415).
func (c epochChain) assign(e Epoch, off Offset) epochChain {
	if e < 0 || e <= c.last() {
		return c
	}
	if n := c.truncate(off); len(n) != len(c) {
		c = n
	}
	return append(c, EpochStart{e, off})
}

// truncate leaves out the entries that start at off or later.
func (c epochChain) truncate(off Offset) epochChain {
	i := sort.Search(len(c), func(i int) bool { return c[i].Start >= off })
	if i == len(c) {
		return c
	}
	return slices.Clone(c[:i])
}

// trim leaves out the entries whose epochs end below start. The epoch of the record
// before start stays: it is what a fetch at start names as its last one, and what
// is left when the log is truncated to its start.
func (c epochChain) trim(start Offset) epochChain {
	i := 0
	for i+1 < len(c) && c[i+1].Start < start {
		i++
	}
	return c[i:]
}

func (c epochChain) endOffset(e Epoch, end Offset) (Epoch, Offset) {
	if len(c) == 0 || e < 0 {
		return -1, -1
	}
	i := sort.Search(len(c), func(i int) bool { return c[i].Epoch > e })
	switch {
	case i == 0:
		return e, c[0].Start
	case i == len(c):
		return c[i-1].Epoch, end
	default:
		return c[i-1].Epoch, c[i].Start
	}
}

// valid reports whether the chain ascends and lies below end.
func (c epochChain) valid(end Offset) bool {
	for i, s := range c {
		if s.Epoch < 0 || s.Start < 0 || s.Start > end || i > 0 && (s.Epoch <= c[i-1].Epoch || s.Start <= c[i-1].Start) {
			return false
		}
	}
	return true
}

// Kafka's leader-epoch-checkpoint is text: a line with the version (0), a line
// with the number of entries, and one line "epoch offset" for each. It has no
// checksum, so it is written for Kafka's tools and read only when nothing better
// is left.
const epochFileName = "leader-epoch-checkpoint"

func (c epochChain) appendCheckpoint(b []byte) []byte {
	b = append(b, "0\n"...)
	b = strconv.AppendInt(b, int64(len(c)), 10)
	b = append(b, '\n')
	for _, s := range c {
		b = strconv.AppendInt(b, int64(s.Epoch), 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(s.Start), 10)
		b = append(b, '\n')
	}
	return b
}

var errEpochFile = errors.New("malformed leader-epoch-checkpoint")

func parseCheckpoint(b []byte) (epochChain, error) {
	line := func() ([]byte, bool) {
		l, rest, ok := bytes.Cut(b, []byte{'\n'})
		b = rest
		return l, ok
	}
	if v, ok := line(); !ok || string(v) != "0" {
		return nil, errEpochFile
	}
	l, ok := line()
	n, err := strconv.Atoi(string(l))
	if !ok || err != nil || n < 0 || n > len(b)/4 {
		return nil, errEpochFile
	}
	c := make(epochChain, 0, n)
	for range n {
		l, ok := line()
		e, s, two := bytes.Cut(l, []byte{' '})
		if !ok || !two {
			return nil, errEpochFile
		}
		epoch, err1 := strconv.ParseInt(string(e), 10, 32)
		start, err2 := strconv.ParseInt(string(s), 10, 64)
		if err1 != nil || err2 != nil {
			return nil, errEpochFile
		}
		c = append(c, EpochStart{Epoch(epoch), Offset(start)})
	}
	if len(b) != 0 || !c.valid(maxOffset) {
		return nil, errEpochFile
	}
	return c, nil
}

const maxOffset = Offset(1<<63 - 1)
