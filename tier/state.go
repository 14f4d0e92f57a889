package tier

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A Range is one finished upload: the offsets [Base, End) are in one object.
type Range struct {
	ID        ID
	Base, End log.Offset
	Epoch     log.Epoch // of the leader that uploaded it; part of the key
	CRC32C    uint32    // of the whole object

	BatchBytes  int64 // of the record batches in it
	ObjectBytes int64 // of the whole object
	TailBytes   int64 // of what follows the last chunk

	// Half the size of time.Time each: there may be 100 000 ranges.
	maxTimestampMs, sealedMs int64
	lingersMs                int64 // until when another write of the object may land; 0: none can
	untilMs                  int64 // until when the object is kept though nobody may read it; 0: no wish
}

// MaxTimestamp is the newest record time in the range, as its producers set it.
func (r Range) MaxTimestamp() time.Time { return time.UnixMilli(r.maxTimestampMs) }

// Sealed is when the uploader's segment was sealed, the time that retention by
// age goes by: a record's own time can be wrong in both directions.
func (r Range) Sealed() time.Time { return time.UnixMilli(r.sealedMs) }

// Until is how long the object of a range below the log start is kept; zero if no
// event says so.
func (r Range) Until() time.Time { return timeFromMs(r.untilMs) }

// A Pending is an object that may exist and counts for nothing: an upload that
// has not finished, or a deletion that has not.
type Pending struct {
	ID        ID
	Base, End log.Offset
	Epoch     log.Epoch // of the leader that began the upload; part of the key
	Deadline  time.Time // no byte of an upload of it is sent after it; zero: none can be
	Deleting  bool      // a DeleteStarted names it
	Finished  bool      // it was a Range before
}

// A State is what the storage of one partition consists of. Every replica
// applies the same events in the same order and so has the same State. The zero
// State is that of a partition without events.
//
// A State is not safe for concurrent use.
type State struct {
	// Invariant: ends rise strictly from range to range; ranges[live:] are those
	// with End > logStart; the last End is <= tierEnd.
	ranges    []Range
	live      int
	liveBytes int64 // batch bytes of ranges[live:]

	held map[ID]struct{} // the ids of ranges

	// Invariant: no id is both here and in ranges. In the order of their events.
	pending []Pending

	deleted bool  // a Deleted event was taken; logStart is tierEnd since then
	quietMs int64 // of that event

	manifest ID // of the last checkpoint; zero if that had the state itself

	opened   bool // a barrier was taken
	epoch    log.Epoch
	seq      uint64
	logStart log.Offset
	tierEnd  log.Offset

	// Invariant: never changed in place, so that views may share it.
	lineage []log.EpochStart
}

// Epoch is the epoch of the last barrier, -1 if there was none.
func (s *State) Epoch() log.Epoch {
	if !s.opened {
		return -1
	}
	return s.epoch
}

// Seq is the sequence number of the last event taken in this epoch.
func (s *State) Seq() uint64 { return s.seq }

// LogStart is the first offset that readers may ask for.
func (s *State) LogStart() log.Offset { return s.logStart }

// TierEnd is the end of what is in the object store, and at least LogStart. It
// survives the deletion of the ranges below it.
func (s *State) TierEnd() log.Offset { return s.tierEnd }

// Manifest is the id of the object that has the state of the last checkpoint; false
// if that event has it itself, or there was none.
func (s *State) Manifest() (ID, bool) { return s.manifest, s.manifest != ID{} }

// Lineage is the leader-epoch chain of [LogStart, TierEnd). It must not be
// changed.
func (s *State) Lineage() []log.EpochStart { return s.lineage }

// Len is the number of ranges that hold offsets at or above the log start.
func (s *State) Len() int { return len(s.ranges) - s.live }

// Bytes is the sum of the batch bytes of these ranges.
func (s *State) Bytes() int64 { return s.liveBytes }

// Ranges returns a copy of the ranges that hold offsets at or above the log
// start, in order.
func (s *State) Ranges() []Range { return slices.Clone(s.ranges[s.live:]) }

// Expired returns up to max ranges that lie wholly below the log start and whose
// deletion has not begun, in order.
func (s *State) Expired(max int) []Range { return slices.Clone(s.ranges[:min(s.live, max)]) }

// Deleted says whether the partition's topic was deleted.
func (s *State) Deleted() bool { return s.deleted }

// Kept returns the ranges wholly below the log start whose objects are still kept, in
// order: what a restore can bring back. [Range.Until] says how long.
func (s *State) Kept() []Range {
	return slices.DeleteFunc(slices.Clone(s.ranges[:s.live]), func(r Range) bool { return r.untilMs == 0 })
}

// due returns up to max ranges whose deletion may begin now, oldest first, and if
// there is room for more, when the next one's may. They go in order: one whose time
// has come waits for those before it.
func (s *State) due(now time.Time, max int) (ranges []Range, next time.Time) {
	for _, r := range s.ranges[:s.live] {
		if len(ranges) >= max {
			break
		}
		if until := r.Until(); until.After(now) {
			return ranges, until
		}
		ranges = append(ranges, r)
	}
	return ranges, time.Time{}
}

// empty says whether no object is known that may be in the store, but for a manifest.
func (s *State) empty() bool { return len(s.ranges) == 0 && len(s.pending) == 0 }

// Pending returns a copy of the unfinished uploads and deletions, oldest first.
func (s *State) Pending() []Pending { return slices.Clone(s.pending) }

// Lookup returns the range that holds off. There is none below the log start, at
// or above the tier end, or where a leader had to leave a gap.
func (s *State) Lookup(off log.Offset) (Range, bool) {
	if off < s.logStart || off >= s.tierEnd {
		return Range{}, false
	}
	live := s.ranges[s.live:]
	i := sort.Search(len(live), func(i int) bool { return live[i].End > off })
	if i == len(live) || live[i].Base > off {
		return Range{}, false
	}
	return live[i], true
}

// A Verdict says what [State.Apply] made of an event.
type Verdict uint8

// The verdicts. Ignored events leave the state as it was. Refused events take
// their place in the sequence and change nothing else.
const (
	Applied          Verdict = iota // it had its effect
	IgnoredEpoch                    // not of the last barrier's epoch
	IgnoredSeq                      // of this epoch, but not the next one: a re-sent event
	IgnoredBarrier                  // not above the last barrier
	RefusedID                       // an id that is used already, or that nothing is known of
	RefusedPhase                    // the upload or deletion is not in the phase for this
	RefusedGap                      // the range does not continue the tier end
	RefusedLineage                  // the range's epochs do not continue those below it
	RefusedLive                     // deletion of a range that holds readable offsets
	RefusedLogStart                 // not an advance of the log start
	RefusedPartition                // of another partition
	RefusedState                    // a checkpoint of another state than this one
	RefusedDeleted                  // the topic was deleted
	RefusedKept                     // something of the partition is still in the store
	verdicts                        // their number
)

var verdictNames = [verdicts]string{
	"applied", "ignored: epoch", "ignored: sequence", "ignored: barrier", "refused: id", "refused: phase",
	"refused: gap", "refused: lineage", "refused: live range", "refused: log start", "refused: partition", "refused: state",
	"refused: deleted", "refused: kept",
}

// String names the verdict.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Taken says whether the event took its place in the sequence, so that its
// writer must not send it again.
func (v Verdict) Taken() bool {
	return v == Applied || v >= RefusedID && v < verdicts && v != RefusedPartition
}

// Apply takes one event of the tier log in its turn and says what it made of it.
// It is a pure function of state and event: no clock, no I/O. Requires: e came
// from [DecodeEvent] or passes its checks.
//
// An event is taken iff its epoch is that of the last barrier and its sequence
// number is the next one. So an event that was sent twice counts once, and one
// of a deposed leader that arrives late counts for nothing. A barrier is taken
// iff its epoch is above the last one's; it sets the sequence number to 0.
//
// Source: KIP-405's segment states, with a fence by barrier and dense sequence of
// our own.
func (s *State) Apply(e Event) Verdict {
	if _, ok := e.Body.(Barrier); ok {
		if s.opened && e.Epoch <= s.epoch {
			return IgnoredBarrier
		}
		s.opened, s.epoch, s.seq = true, e.Epoch, 0
		return Applied
	}
	if !s.opened || e.Epoch != s.epoch {
		return IgnoredEpoch
	}
	if e.Seq != s.seq+1 {
		return IgnoredSeq
	}
	if c, ok := e.Body.(Checkpoint); ok {
		// Every replica that has seen all events comes to the same bytes. One that does
		// not must not go on: who is wrong can't be told from here.
		if encoded := s.encode(nil); int64(len(encoded)) != c.Bytes || hashState(encoded) != c.Hash {
			s.seq++
			return RefusedState
		}
		s.seq++
		s.manifest = c.Manifest
		return Applied
	}
	s.seq++
	if s.deleted {
		switch e.Body.(type) {
		case CopyStarted, CopyFinished, LogStart, Deleted:
			return RefusedDeleted
		}
	}
	switch b := e.Body.(type) {
	case CopyStarted:
		return s.copyStarted(e.Epoch, b)
	case CopyFinished:
		return s.copyFinished(b)
	case DeleteStarted:
		return s.deleteStarted(b)
	case DeleteFinished:
		return s.deleteFinished(b)
	case LogStart:
		return s.moveLogStart(b)
	case Deleted:
		s.quietMs = timeToMs(b.Quiet)
		s.passRanges(s.tierEnd, b.Until)
		s.logStart, s.deleted, s.lineage = s.tierEnd, true, nil
		return Applied
	case Forgotten:
		if !s.deleted || !s.empty() {
			return RefusedKept
		}
		s.manifest = ID{}
		return Applied
	}
	panic(fmt.Sprintf("tier: event body %T was not decoded", e.Body))
}

// misses says whether an event shows that one before it has not come here. A leader
// sends an event only when it has read the one before it back, and its barrier first.
// Of a state without a barrier it is not known whether it had one.
func (s *State) misses(e Event) bool {
	if _, ok := e.Body.(Barrier); ok || !s.opened {
		return false
	}
	return e.Epoch > s.epoch || e.Epoch == s.epoch && e.Seq > s.seq+1
}

func (s *State) findPending(id ID) int {
	return slices.IndexFunc(s.pending, func(p Pending) bool { return p.ID == id })
}

func (s *State) copyStarted(epoch log.Epoch, b CopyStarted) Verdict {
	if _, held := s.held[b.ID]; held || s.findPending(b.ID) >= 0 {
		return RefusedID
	}
	s.pending = append(s.pending, Pending{ID: b.ID, Base: b.Base, End: b.End, Epoch: epoch, Deadline: b.Deadline})
	return Applied
}

func (s *State) copyFinished(b CopyFinished) Verdict {
	i := s.findPending(b.ID)
	if i < 0 {
		return RefusedID
	}
	p := s.pending[i]
	if p.Deleting {
		return RefusedPhase
	}
	// A range that begins below the tier end is one whose first batch the log
	// start cuts: nothing below the log start is readable, so no offset is ever
	// in two places.
	if p.Base > s.tierEnd || p.End <= s.tierEnd || p.Base < s.tierEnd && s.tierEnd != s.logStart {
		return RefusedGap
	}
	if !continues(s.lineage, b.Lineage) {
		return RefusedLineage
	}
	lingers := int64(0)
	if b.Unsure {
		lingers = p.Deadline.UnixMilli()
	}
	s.pending = slices.Delete(s.pending, i, i+1)
	s.ranges = append(s.ranges, Range{
		ID: p.ID, Base: p.Base, End: p.End, Epoch: p.Epoch, CRC32C: b.CRC32C,
		BatchBytes: b.BatchBytes, ObjectBytes: b.ObjectBytes, TailBytes: b.TailBytes,
		maxTimestampMs: b.MaxTimestamp.UnixMilli(), sealedMs: b.Sealed.UnixMilli(), lingersMs: lingers,
	})
	if s.held == nil {
		s.held = map[ID]struct{}{}
	}
	s.held[p.ID] = struct{}{}
	s.liveBytes += b.BatchBytes
	s.tierEnd = p.End
	s.extendLineage(b.Lineage)
	return Applied
}

// continues says whether the epochs of a range can follow those below it: none is older,
// and a newer one begins above the begin of the last.
func continues(below, l []log.EpochStart) bool {
	if len(below) == 0 || len(l) == 0 {
		return true
	}
	last := below[len(below)-1]
	i := slices.IndexFunc(l, func(e log.EpochStart) bool { return e.Epoch > last.Epoch })
	return l[0].Epoch >= last.Epoch && (i < 0 || l[i].Start > last.Start)
}

func (s *State) extendLineage(l []log.EpochStart) {
	last := log.Epoch(-1)
	if n := len(s.lineage); n > 0 {
		last = s.lineage[n-1].Epoch
	}
	i := slices.IndexFunc(l, func(e log.EpochStart) bool { return e.Epoch > last })
	if i < 0 {
		return
	}
	s.lineage = slices.Concat(s.lineage, l[i:])
}

func (s *State) deleteStarted(b DeleteStarted) Verdict {
	expired := func(id ID) int {
		return slices.IndexFunc(s.ranges[:s.live], func(r Range) bool { return r.ID == id })
	}
	// All or nothing: what can be deleted is checked before anything moves.
	for _, id := range b.IDs {
		if s.findPending(id) >= 0 {
			continue
		}
		if _, held := s.held[id]; !held {
			return RefusedID
		}
		if expired(id) < 0 {
			return RefusedLive
		}
	}
	for _, id := range b.IDs {
		if i := s.findPending(id); i >= 0 {
			s.pending[i].Deleting = true
			continue
		}
		i := expired(id)
		r := s.ranges[i]
		p := Pending{ID: r.ID, Base: r.Base, End: r.End, Epoch: r.Epoch, Deleting: true, Finished: true}
		if r.lingersMs > 0 {
			p.Deadline = time.UnixMilli(r.lingersMs)
		}
		s.pending = append(s.pending, p)
		if i == 0 {
			s.ranges = s.ranges[1:]
		} else {
			s.ranges = slices.Delete(s.ranges, i, i+1)
		}
		delete(s.held, id)
		s.live--
	}
	if cap(s.ranges) > 64 && len(s.ranges) < cap(s.ranges)/4 {
		s.ranges = slices.Clone(s.ranges) // lets go of the removed front
	}
	return Applied
}

func (s *State) deleteFinished(b DeleteFinished) Verdict {
	for _, id := range b.IDs {
		i := s.findPending(id)
		if i < 0 {
			return RefusedID
		}
		if !s.pending[i].Deleting {
			return RefusedPhase
		}
	}
	s.pending = slices.DeleteFunc(s.pending, func(p Pending) bool { return slices.Contains(b.IDs, p.ID) })
	return Applied
}

func (s *State) moveLogStart(b LogStart) Verdict {
	if b.Start <= s.logStart {
		return RefusedLogStart
	}
	s.logStart = b.Start
	s.tierEnd = max(s.tierEnd, b.Start)
	s.passRanges(s.logStart, b.Until)
	// The entry that covers the log start stays.
	i := 0
	for i+1 < len(s.lineage) && s.lineage[i+1].Start <= s.logStart {
		i++
	}
	if i > 0 {
		s.lineage = slices.Clone(s.lineage[i:])
	}
	return Applied
}

// passRanges takes the ranges wholly below start out of what is readable.
func (s *State) passRanges(start log.Offset, until time.Time) {
	for s.live < len(s.ranges) && s.ranges[s.live].End <= start {
		r := &s.ranges[s.live]
		r.untilMs = timeToMs(until)
		s.liveBytes -= r.BatchBytes
		s.live++
	}
}

// Clone returns an independent copy.
func (s *State) Clone() *State {
	c := *s
	c.ranges = slices.Clone(s.ranges)
	c.held = maps.Clone(s.held)
	c.pending = slices.Clone(s.pending)
	return &c
}

// Equal says whether two states are the same.
func (s *State) Equal(o *State) bool {
	return s.Epoch() == o.Epoch() && s.seq == o.seq && s.logStart == o.logStart && s.tierEnd == o.tierEnd && s.manifest == o.manifest &&
		s.deleted == o.deleted && s.quietMs == o.quietMs &&
		slices.Equal(s.lineage, o.lineage) && slices.Equal(s.ranges, o.ranges) && s.live == o.live &&
		slices.EqualFunc(s.pending, o.pending, func(a, b Pending) bool {
			ad, bd := a.Deadline, b.Deadline
			a.Deadline, b.Deadline = time.Time{}, time.Time{}
			return a == b && ad.Equal(bd)
		})
}

// newerThan returns the first live range that ends above from and holds a record
// time of at least ms.
func (s *State) newerThan(from log.Offset, ms int64) (Range, bool) {
	for _, r := range s.ranges[s.live:] {
		if r.End > from && r.maxTimestampMs >= ms {
			return r, true
		}
	}
	return Range{}, false
}
