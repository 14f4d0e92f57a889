package balance

import "time"

// Ledger is what a planner must remember between rounds: moves in flight, partitions that moved or
// changed their leader lately, and how often a trigger was seen in a row. The zero value is ready. It is
// not safe for concurrent use.
//
// A move counts from [Ledger.Begin] on until both its brokers have reported loads measured after
// [Ledger.End]: planning on older reports would move the same load twice.
type Ledger struct {
	moves   map[ledgerKey]ledgerMove
	moved   map[PartitionID]time.Time // last end of a replica move
	led     map[PartitionID]time.Time // last change of leader
	streaks map[Goal]int              // how often a trigger was seen in a row
	barren  map[Goal]int              // how many rounds in a row it led to nothing
}

type ledgerKey struct {
	partition PartitionID
	from, to  BrokerID
}

type ledgerMove struct {
	kind  MoveKind
	load  Loads
	ended time.Time // zero while it runs
	done  bool      // it ended and took effect
}

// Begin records that a move is being carried out.
func (l *Ledger) Begin(m Move) {
	if l.moves == nil {
		l.moves = map[ledgerKey]ledgerMove{}
	}
	l.moves[ledgerKey{m.Partition, m.From, m.To}] = ledgerMove{kind: m.Kind, load: m.Load}
}

// End records that the move is over at now. moved says whether it took effect; a move that was
// rolled back is to be tried again only after its cool-down, too.
func (l *Ledger) End(m Move, now time.Time, moved bool) {
	k := ledgerKey{m.Partition, m.From, m.To}
	e := l.moves[k]
	e.kind, e.load, e.ended, e.done = m.Kind, m.Load, now, moved
	if l.moves == nil {
		l.moves = map[ledgerKey]ledgerMove{}
	}
	l.moves[k] = e
	if m.Kind == MoveReplica {
		if l.moved == nil {
			l.moved = map[PartitionID]time.Time{}
		}
		l.moved[m.Partition] = now
	}
	l.LeaderChanged(m.Partition, now)
}

// LeaderChanged records that the partition got another leader at now, for whatever reason: its
// loads are not believed for [PlanOptions.Settle]. Call it for every leadership that a demotion moves, so
// that the demotion does not set off a wave of rebalancing.
func (l *Ledger) LeaderChanged(p PartitionID, now time.Time) {
	if l.led == nil {
		l.led = map[PartitionID]time.Time{}
	}
	l.led[p] = now
}

// InFlight returns the number of moves that began and have not ended.
func (l *Ledger) InFlight() int {
	n := 0
	for _, m := range l.moves {
		if m.ended.IsZero() {
			n++
		}
	}
	return n
}

// expire forgets what no longer matters. reported gives the time of each broker's loads.
func (l *Ledger) expire(o *PlanOptions, reported func(BrokerID) (time.Time, bool), now time.Time) {
	for k, m := range l.moves {
		if m.ended.IsZero() {
			continue
		}
		fresh := func(id BrokerID) bool {
			at, known := reported(id)
			return !known || at.IsZero() || at.After(m.ended)
		}
		if fresh(k.from) && fresh(k.to) {
			delete(l.moves, k)
		}
	}
	for p, at := range l.moved {
		if now.Sub(at) >= o.CoolDown {
			delete(l.moved, p)
		}
	}
	for p, at := range l.led {
		if now.Sub(at) >= o.Settle {
			delete(l.led, p)
		}
	}
}

// count notes which triggers were seen now and returns whether each was seen often enough. A trigger that
// was not seen starts again at zero.
func (l *Ledger) count(seen []Trigger, checks int) []Trigger {
	next := make(map[Goal]int, len(seen))
	var due []Trigger
	for _, t := range seen {
		next[t.Goal] = l.streaks[t.Goal] + 1
		if next[t.Goal] >= checks<<l.barren[t.Goal] {
			due = append(due, t)
		}
	}
	l.streaks = next
	for g := range l.barren {
		if next[g] == 0 {
			delete(l.barren, g)
		}
	}
	return due
}

// barrenRound notes whether the round that the triggers started found anything to do. A trigger that
// nothing can be done about waits twice as long each time, up to 64 times, and at once acts again when
// it has been away.
func (l *Ledger) barrenRound(due []Trigger, barren bool) {
	for _, t := range due {
		if l.barren == nil {
			l.barren = map[Goal]int{}
		}
		if barren {
			l.barren[t.Goal] = min(l.barren[t.Goal]+1, 6)
			l.streaks[t.Goal] = 0
		} else {
			delete(l.barren, t.Goal)
		}
	}
}
