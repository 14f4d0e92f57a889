package tier

import "github.com/cordwood-io/cordwood/log"

// A View is what a node knows of one partition's tier at one moment.
type View struct {
	// Known is false until this node has read the tier log up to where it stood
	// when the partition was opened here. The other fields then mean nothing.
	Known bool

	Epoch    log.Epoch  // of the last barrier, -1 for none
	Seq      uint64     // of the last event taken in this epoch
	LogStart log.Offset // first offset that readers may ask for
	TierEnd  log.Offset // end of what is in the store, at least LogStart
	Ranges   int        // finished ranges that hold offsets from LogStart on
	Bytes    int64      // batch bytes in them

	// Lineage is the leader-epoch chain of [LogStart, TierEnd). It must not be
	// changed.
	Lineage []log.EpochStart
}

// Presence is the three-valued answer to "is there anything in the tier?".
type Presence uint8

// The answers. Unknown is never to be taken for Empty.
const (
	Unknown Presence = iota // this node can't tell yet: retry
	Empty                   // nothing is in the store
	Present                 // at least one range is
)

// String names the answer.
func (p Presence) String() string {
	switch p {
	case Unknown:
		return "unknown"
	case Empty:
		return "empty"
	}
	return "present"
}

// Presence says whether the store holds readable ranges of the partition.
func (v View) Presence() Presence {
	switch {
	case !v.Known:
		return Unknown
	case v.Ranges == 0:
		return Empty
	}
	return Present
}

func (s *State) view(known bool) View {
	return View{
		Known: known, Epoch: s.Epoch(), Seq: s.seq, LogStart: s.logStart, TierEnd: s.tierEnd,
		Ranges: s.Len(), Bytes: s.liveBytes, Lineage: s.lineage,
	}
}
