package replication

import (
	"slices"

	"github.com/cordwood-io/cordwood/log"
)

// noEpoch stands for "no batch": the last epoch of an empty log.
const noEpoch log.Epoch = -1

// A chain is the leader-epoch chain of one log: where each epoch began, oldest
// first. Invariant: epochs and starts are strictly increasing.
type chain []log.EpochStart

// last returns the newest epoch, or noEpoch.
func (c chain) last() log.Epoch {
	if len(c) == 0 {
		return noEpoch
	}
	return c[len(c)-1].Epoch
}

// endFor returns the highest epoch of the chain that is at most e, and where the
// next one starts: end if there is none. If all are above e, or there are none, it
// returns e and the start of the first, or end. Monotone in both results (KIP-279).
func (c chain) endFor(e log.Epoch, end log.Offset) (log.Epoch, log.Offset) {
	i, found := slices.BinarySearchFunc(c, e, func(s log.EpochStart, e log.Epoch) int { return int(s.Epoch) - int(e) })
	next := end
	if found {
		i++
	}
	if i < len(c) {
		next = min(c[i].Start, end)
	}
	if i == 0 {
		return e, next
	}
	return c[i-1].Epoch, next
}

// below returns the part of the chain that says something about offsets below off.
func (c chain) below(off log.Offset) chain {
	i := len(c)
	for i > 0 && c[i-1].Start >= off {
		i--
	}
	return c[:i:i]
}

// add notes that epoch e has a batch at start. Entries that contradict it go.
func (c chain) add(e log.Epoch, start log.Offset) chain {
	if c.last() == e {
		return c
	}
	for len(c) > 0 && (c[len(c)-1].Start >= start || c[len(c)-1].Epoch >= e) {
		c = c[:len(c)-1]
	}
	return append(c, log.EpochStart{Epoch: e, Start: start})
}

// common returns the end of the part that a log with this chain and end has in
// common with another. An epoch has one leader, so two logs that hold a record of
// the same epoch are equal up to the end of the shorter run of that epoch.
func (c chain) common(end log.Offset, other chain, otherEnd log.Offset) log.Offset {
	for i := len(c) - 1; i >= 0; i-- {
		e := c[i].Epoch
		j, ok := slices.BinarySearchFunc(other, e, func(s log.EpochStart, e log.Epoch) int { return int(s.Epoch) - int(e) })
		if !ok {
			continue
		}
		_, mine := c.endFor(e, end)
		_, theirs := other.endFor(e, otherEnd)
		if to := min(mine, theirs); to > max(c[i].Start, other[j].Start) {
			return to
		}
	}
	return 0
}
