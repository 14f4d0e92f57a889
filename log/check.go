package log

import (
	"errors"
	"io"
	"slices"
	"sort"
	"syscall"

	"github.com/cordwood-io/cordwood/log/record"
)

// A check reads one segment and finds all that is wrong with its batches. It
// changes nothing and needs no lock.
type check struct {
	l    *Log
	v    view
	step func(next Offset, bytes int64) error // after each batch, and each damage

	known []knownSum  // ascending
	sums  []offsetSum // the same by offset, ascending

	// What stands beside a sealed segment, to be compared; nil if there is nothing.
	entries []indexEntry
	times   []timeEntry

	rising  bool  // epochs must not fall; the chain does not know them
	before  Epoch // of the record before the segment, if rising
	records bool  // decode them too

	// Results:
	x                  index // if nothing is damaged
	damage             []damage
	undecodable        []damage
	batches            int64
	badIndex, badTimes bool
	lastEpoch          Epoch
	entriesAt, timesAt int
}

// A knownSum is the checksum over the headers of all batches before a position.
type knownSum struct {
	at  int64
	sum uint32
}

// An offsetSum is the checksum over the headers of all batches below an offset.
type offsetSum struct {
	end Offset
	sum uint32
}

var errHeaders = errors.New("headers are not those that were written")

// knownSums joins the positions of an index with the sums that belong to them.
func knownSums(entries []indexEntry, sums []uint32, size int64, last uint32) []knownSum {
	var out []knownSum
	for i, e := range entries[:min(len(entries), len(sums))] {
		out = append(out, knownSum{int64(e.position), sums[i]})
	}
	return append(out, knownSum{size, last})
}

// run reads the segment from f. Its error is one of reading, or of step.
func (c *check) run(f File) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	sc := newScanner(c.l.disk, f, 0, min(size, c.v.size))
	defer sc.close()
	sc.gaps = c.l.foreign.gaps
	c.x = newIndex()
	c.lastEpoch = c.before
	good := c.v.seg.base // records below are whole
	var sum uint32
	sumFrom, sumAt, trusted := good, int64(0), true
	k := 0
	for {
		at := sc.at
		for k < len(c.known) && c.known[k].at < at {
			k++ // inside of a batch, or of damage
		}
		known, ok := c.knownAt(k, at, good)
		if ok {
			if trusted && sum != known {
				// Each batch is whole and follows the one before, but one is not the one
				// that was written here.
				c.damage = append(c.damage, damage{from: sumFrom, to: good, position: sumAt, resume: at, err: errHeaders})
			}
			sum, sumFrom, sumAt, trusted = known, good, at, true
		}
		b, h, err := sc.next()
		if errors.Is(err, io.EOF) {
			if good < c.v.end && !c.l.foreign.gaps {
				c.damage = append(c.damage, damage{from: good, to: c.v.end, position: at, resume: c.v.size, err: errShort})
			}
			if len(c.damage) == 0 {
				c.badIndex = c.badIndex || c.entriesAt != len(c.entries)
				c.badTimes = c.badTimes || c.timesAt != len(c.times)
			}
			return nil
		}
		if err == nil {
			err = c.judge(h, good)
		}
		if err == nil {
			sum = crcUpdate(sum, b.Bytes()[:21])
			good = h.last + 1
			if err := c.note(b, h, at); err != nil {
				return err
			}
			continue
		}
		if !bytesBad(err) && !errors.Is(err, syscall.EIO) {
			return err
		}
		trusted = false
		d := damage{from: good, to: c.v.end, position: at, resume: c.v.size, err: err}
		switch {
		case errors.Is(err, errEpoch) && h.base == good:
			// The batch is whole but for its epoch, so the next one stands behind it.
			d.to, d.resume = h.last+1, at+h.size
		case bytesBad(err):
			p, next, ok, err := sc.resync(at, good-1, c.v.end-1, c.v.end, c.anchor)
			if err != nil && !errors.Is(err, syscall.EIO) {
				return err
			}
			if err == nil && ok {
				d.to, d.resume = next.base, p
				break
			}
			if err == nil {
				break // to the end
			}
			fallthrough
		default: // the disk can't read it
			c.skip(sc, at, good, &d)
		}
		c.damage = append(c.damage, d)
		if err := c.step(d.to, d.resume-at); err != nil {
			return err
		}
		good, sc.at = d.to, d.resume
		if d.resume == c.v.size {
			// What comes after the loop's end of file must not be reported again.
			good = c.v.end
		}
	}
}

func (c *check) knownAt(k int, at int64, good Offset) (uint32, bool) {
	if k < len(c.known) && c.known[k].at == at {
		return c.known[k].sum, true
	}
	for _, s := range c.sums {
		if s.end == good {
			return s.sum, true
		}
	}
	return 0, false
}

// skip ends unreadable damage at the next batch whose position is known.
func (c *check) skip(sc *scanner, at int64, good Offset, d *damage) {
	for _, k := range c.known {
		if k.at <= at || k.at >= c.v.size {
			continue
		}
		if _, h, err := sc.peek(k.at, true); err == nil && h.base >= good && h.last < c.v.end {
			d.to, d.resume = h.base, k.at
			return
		}
	}
}

func (c *check) anchor(p int64) bool {
	i := sort.Search(len(c.known), func(i int) bool { return c.known[i].at >= p })
	return p == c.v.size || i < len(c.known) && c.known[i].at == p
}

func (c *check) judge(h header, good Offset) error {
	switch {
	case !c.l.follows(h.base, good), h.last >= c.v.end:
		return errFollows
	case c.rising && h.epoch < c.lastEpoch:
		return errEpoch
	case !c.rising && h.last >= c.v.start && h.epoch != c.v.chain.at(h.base):
		return errEpoch
	}
	return nil
}

func (c *check) note(b record.Batch, h header, at int64) error {
	base := c.v.seg.base
	c.x.note(base, b.Bytes()[:21], h.last, h.maxTimestamp, at, h.size)
	c.lastEpoch = h.epoch
	c.batches++
	if i := c.entriesAt; i < len(c.entries) && int64(c.entries[i].position) <= at {
		c.badIndex = c.badIndex || int64(c.entries[i].position) != at || base+Offset(c.entries[i].last) != h.last
		c.entriesAt++
	}
	if i := c.timesAt; i < len(c.times) && base+Offset(c.times[i].offset) <= h.last {
		c.badTimes = c.badTimes || base+Offset(c.times[i].offset) != h.last || c.times[i].timestamp != c.x.maxTimestamp || c.x.maxAt != h.last
		c.timesAt++
	}
	if c.records {
		if err := b.VerifyRecords(record.DefaultMaxDecompressedBytes); err != nil {
			c.undecodable = append(c.undecodable, damage{from: h.base, to: h.last + 1, position: at, resume: at + h.size, err: err})
		}
	}
	return c.step(h.last+1, h.size)
}

// joinDamage adds what recovery knows and the check did not find again, and joins
// what overlaps.
func joinDamage(found, before []damage) []damage {
	all := slices.Concat(found, before)
	slices.SortStableFunc(all, func(a, b damage) int {
		if a.position != b.position {
			return int(min(max(a.position-b.position, -1), 1))
		}
		return int(min(max(a.from-b.from, -1), 1))
	})
	var out []damage
	for _, d := range all {
		if n := len(out); n > 0 && (d.position < out[n-1].resume || d.from < out[n-1].to) {
			o := &out[n-1]
			o.from, o.to, o.resume = min(o.from, d.from), max(o.to, d.to), max(o.resume, d.resume)
			continue
		}
		out = append(out, d)
	}
	return out
}
