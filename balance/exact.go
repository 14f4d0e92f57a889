package balance

import "slices"

// Bounds of the cells that are solved by trying all: with nine replicas on four brokers that is
// 4^9 assignments, some tenths of a second at worst and some milliseconds where few moves suffice.
const (
	exactReplicas = 9
	exactBrokers  = 4
	exactMoves    = 6
)

// exact solves a tiny model, one without copies, so that there is no leadership to hand over. It settles the hard
// goals first and then tries all sets of moves, fewest first: the result violates the soft goals, in their order, as
// little as can be, with the fewest moves, then the fewest bytes. It reports whether it did: not if the model is larger
// or a hard goal stays violated.
func (s *solver) exact() bool {
	if s.o.heuristic || len(s.rb) > exactReplicas || len(s.brokers) > exactBrokers || len(s.rb) != len(s.parts) ||
		s.o.MaxBytes > 0 || s.o.MaxReplicaMoves > 0 || s.plan.Exhausted != "" {
		return false
	}
	for p := range s.parts {
		if s.off[p+1]-s.off[p] != 1 {
			return false
		}
	}
	for range maxPasses {
		steps := len(s.log)
		s.setBands()
		s.evacuate()
		s.capacities()
		if len(s.log) == steps {
			break
		}
		s.count()
	}
	if len(s.hardTriggers()) > 0 {
		return false
	}
	s.setBands()
	s.markJoining() // brokers that the hard goals emptied
	if !s.o.Force && len(s.softTriggers()) == 0 && len(s.fillTriggers()) == 0 {
		return true
	}
	// What more than exactMoves away is better may be in reach from what was found.
	for range maxPasses {
		if !s.exactRound() {
			break
		}
	}
	return true
}

// exactRound makes the best set of moves, and reports whether that was any and something is left to improve.
func (s *solver) exactRound() bool {
	x := exactSearch{s: s, best: s.violations(nil), at: slices.Clone(s.rb)}
	for k := 1; k <= exactMoves && !allZero(x.best); k++ {
		x.moves = k
		x.search(0, k, 0)
	}
	for r, to := range x.at {
		if to != s.rb[r] {
			s.move(int32(r), to, s.exactGoal(), 0)
		}
	}
	s.count() // also the largest replicas, which the trials changed
	return x.used > 0 && !allZero(x.best)
}

// exactGoal is the goal that moves are for: the first soft one that triggers.
func (s *solver) exactGoal() Goal {
	for _, t := range s.plan.Triggers {
		if !t.Goal.Hard() {
			return t.Goal
		}
	}
	return s.o.Goals[0].Goal
}

type exactSearch struct {
	s     *solver
	moves int // of the sets being tried
	best  []int64
	bytes int64
	used  int // moves of the best set
	at    []int32
	trial []int64
}

// search tries all sets of left more moves among the replicas from r on.
func (x *exactSearch) search(r, left int, bytes int64) {
	s := x.s
	if left == 0 {
		x.trial = s.violations(x.trial[:0])
		for i, v := range x.trial {
			if v != x.best[i] {
				if v > x.best[i] {
					return
				}
				x.take(bytes)
				return
			}
		}
		// As good. Fewer moves were tried before.
		if x.used == x.moves && bytes < x.bytes {
			x.take(bytes)
		}
		return
	}
	for ; r <= len(s.rb)-left; r++ {
		from := s.rb[r]
		if s.frozen[s.rp[r]] {
			continue
		}
		d := s.replica(int32(r))
		for to := range int32(len(s.brokers)) {
			if to == from || !s.legal(int32(r), to) || !s.fits(to, &d) {
				continue
			}
			s.shift(int32(r), to, &d)
			x.search(r+1, left-1, bytes+s.rl[r][Disk])
			s.shift(int32(r), from, &d)
		}
	}
}

func (x *exactSearch) take(bytes int64) {
	copy(x.best, x.trial)
	copy(x.at, x.s.rb)
	x.bytes, x.used = bytes, x.moves
}

// violations appends for each soft goal how far brokers are outside their bands in all.
func (s *solver) violations(out []int64) []int64 {
	// The largest replica of a broker decides whether it is set apart.
	clear(s.largest)
	for r, b := range s.rb {
		d := s.replica(int32(r))
		for m := range d {
			s.largest[b][m] = max(s.largest[b][m], d[m])
		}
	}
	for _, g := range s.o.Goals {
		m := g.Goal.metric()
		bd := &s.bands[m]
		sum := int64(0)
		for gi := range s.cells {
			s.setBand(bd, m, &s.cells[gi])
			for _, b := range s.cells[gi].members {
				if s.part[b] {
					sum += max(s.v[b][m]-bd.upper[b], 0) + max(bd.lower[b]-s.v[b][m], 0)
				}
			}
		}
		out = append(out, sum)
	}
	return out
}

func allZero(v []int64) bool {
	for _, x := range v {
		if x != 0 {
			return false
		}
	}
	return true
}
