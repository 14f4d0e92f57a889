package balance

import (
	"cmp"
	"slices"
	"time"
)

// Defaults of [PaceOptions].
const (
	DefaultMaxMoves   = 12
	DefaultRetryDelay = time.Minute
)

// PaceOptions bound a [Pace].
type PaceOptions struct {
	// MaxMoves is the most replica moves that one broker takes part in at once; 0 means
	// [DefaultMaxMoves]. The least is 1.
	MaxMoves int
	// MinBytesPerSecond and MaxBytesPerSecond bound what the moves of one broker may copy; 0 means no
	// bound above, and one 64th of the upper bound below.
	MinBytesPerSecond, MaxBytesPerSecond int64
}

// Pace finds how fast a broker can move replicas without hurting its clients: it adds a little after
// each calm round and halves when the broker is under stress. A fixed limit either starves producers or
// takes days where hours would do. The zero value is not ready: use [NewPace]. It is not safe for concurrent use.
//
// Source: additive increase, multiplicative decrease; the concurrency adjuster of Cruise Control.
type Pace struct {
	o     PaceOptions
	moves int
	bytes int64
}

// NewPace returns a pace that starts at one move and at a quarter of the upper bound of bytes.
func NewPace(o PaceOptions) *Pace {
	if o.MaxMoves <= 0 {
		o.MaxMoves = DefaultMaxMoves
	}
	o.MaxBytesPerSecond = max(o.MaxBytesPerSecond, 0)
	if o.MinBytesPerSecond <= 0 {
		o.MinBytesPerSecond = max(o.MaxBytesPerSecond/64, 1)
	}
	o.MinBytesPerSecond = min(o.MinBytesPerSecond, max(o.MaxBytesPerSecond, 1))
	return &Pace{o: o, moves: 1, bytes: max(o.MaxBytesPerSecond/4, o.MinBytesPerSecond)}
}

// Observe takes one round, of about ten seconds. stressed says that the broker's clients wait longer than
// they should: its load or its latencies are above their limits.
func (p *Pace) Observe(stressed bool) {
	if stressed {
		p.moves = max(p.moves/2, 1)
		p.bytes = max(p.bytes/2, p.o.MinBytesPerSecond)
		return
	}
	p.moves = min(p.moves+1, p.o.MaxMoves)
	p.bytes = min(p.bytes+max(p.o.MaxBytesPerSecond/16, 1), max(p.o.MaxBytesPerSecond, p.o.MinBytesPerSecond))
}

// Moves returns how many replica moves the broker may take part in now.
func (p *Pace) Moves() int { return p.moves }

// BytesPerSecond returns what they may copy together, 0 for no limit.
func (p *Pace) BytesPerSecond() int64 {
	if p.o.MaxBytesPerSecond == 0 {
		return 0
	}
	return p.bytes
}

// RetryDelay returns how long to wait before the n-th retry, n from 0 on: one second, doubling up to
// [DefaultRetryDelay]. Without the bound a move that cannot be verified for a while hangs for hours.
func RetryDelay(n int) time.Duration {
	if n < 0 {
		n = 0
	}
	if n > 16 {
		return DefaultRetryDelay
	}
	return min(time.Second<<n, DefaultRetryDelay)
}

// MovingReplica is a replica that is being copied.
type MovingReplica struct {
	Partition PartitionID
	From, To  BrokerID
}

// Moving lists the replicas that are being copied now, in order. A byte limit belongs on these and on no
// others, and exactly while they are in the list: a limit that is set and removed as steps of its own
// is left behind by a crash, or removed by one of two plans while the other still runs. Replicas in
// sync must never be held back.
func (l *Ledger) Moving() []MovingReplica {
	var out []MovingReplica
	for k, m := range l.moves {
		if m.ended.IsZero() && m.kind == MoveReplica {
			out = append(out, MovingReplica{k.partition, k.from, k.to})
		}
	}
	slices.SortFunc(out, func(a, b MovingReplica) int {
		if c := a.Partition.Compare(b.Partition); c != 0 {
			return c
		}
		return cmp.Compare(a.To, b.To)
	})
	return out
}
