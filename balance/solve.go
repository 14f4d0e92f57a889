package balance

import (
	"slices"
)

// maxPasses bounds the passes over all goals. Each pass ends with a state that is better in the order of
// the goals, so passes end by themselves: after two or three in clusters of thousands of replicas, after a dozen
// in tiny ones where no state is good.
const maxPasses = 64

// minBestEffort is the number of moves that best effort is always granted. Beyond, it may double the
// moves that the other goals needed: to even out the numbers of replicas and leaders may take many moves that gain
// little.
const minBestEffort = 16

func (s *solver) run() Plan {
	s.setBands()
	hard := s.hardTriggers()
	soft := s.softTriggers()
	fill := s.fillTriggers()
	s.reportApart()
	before := s.measure()

	s.plan.Triggers = append(hard, fill...)
	due := soft
	if s.ledger != nil {
		due = s.ledger.count(soft, s.o.Checks)
	}
	s.plan.Triggers = append(s.plan.Triggers, due...)
	if len(s.plan.Triggers) > 0 || s.o.Force {
		s.demoting = s.onlyDemotions()
		if !s.exact() {
			s.solve()
			s.exact() // what solve did for soft goals may have made room for hard ones
		}
		s.emit()
		if s.ledger != nil {
			s.ledger.barrenRound(due, len(s.plan.Moves) == 0)
		}
		s.setBands()
		s.reportStuck()
		if s.effortEnded && s.plan.Exhausted == "" {
			s.plan.Exhausted = "best effort"
		}
	}
	for p, frozen := range s.frozen {
		if frozen || s.flying[p] {
			s.plan.Frozen++
		}
	}
	after := s.measure()
	for i := range after {
		after[i].Before = before[i].After
	}
	s.plan.Goals = after
	return s.plan
}

// onlyDemotions reports whether all that triggered is that demoted brokers lead.
func (s *solver) onlyDemotions() bool {
	if s.o.Force || slices.ContainsFunc(s.plan.Triggers, func(t Trigger) bool { return t.Goal != GoalEvacuate }) {
		return false
	}
	only := true
	s.structural(func(_ Goal, p, r int32) { only = only && r < 0 && !s.ousted(s.rb[s.lead[p]]) })
	return only
}

// solve pursues all goals until nothing changes. A demotion moves no data: what its leaderships press out of the bands, other
// leaderships make up for; only if they can't, and a goal that triggers stays violated, that goal may move replicas.
func (s *solver) solve() {
	filled := false  // the new brokers have their share
	pressed := false // and leadership alone does not do
	for range maxPasses {
		steps := len(s.log)
		s.setBands()
		s.evacuate()
		s.capacities()
		s.setBands()
		s.setAnchors()
		s.markJoining()
		fill := !filled && slices.Contains(s.joining, true)
		for gi := range s.cells {
			g := &s.cells[gi]
			g.run = s.o.Force || g.run
			for _, b := range g.members {
				g.run = g.run || s.joining[b]
			}
		}
		for _, t := range s.softTriggers() {
			s.cells[s.group[s.brokerNumber(t.Broker)]].run = true
		}
		for i, goal := range s.o.Goals {
			s.setGuards(i)
			s.still = s.demoting && !(pressed && goal.Trigger)
			if !goal.Trigger && !s.o.Force {
				s.bestEffort = true
				s.effortLimit = max(len(s.log)-s.effortMoves, minBestEffort)
			}
			for gi := range s.cells {
				if g := &s.cells[gi]; g.run {
					s.even(goal.Goal, g, fill)
				}
			}
		}
		s.guards, s.bestEffort, s.still = s.guards[:0], false, false
		if s.plan.Exhausted != "" {
			return
		}
		if len(s.log) == steps {
			if fill && (s.o.Force || len(s.softTriggers()) > 0) {
				filled = true // and something is still wrong
				continue
			}
			if s.demoting && !pressed && len(s.softTriggers()) > 0 {
				pressed = true
				continue
			}
			return
		}
		// What a pass changed: new largest replicas of each broker, lists without those that left.
		s.count()
	}
	s.plan.Exhausted = "work"
}

// setGuards chooses the metrics that the i-th goal must not worsen: those of earlier goals, and for a goal
// that does not trigger also those of all that do.
func (s *solver) setGuards(i int) {
	s.guards = s.guards[:0]
	for j, g := range s.o.Goals {
		if j < i || j > i && g.Trigger && !s.o.Goals[i].Trigger {
			s.guards = append(s.guards, g.Goal.metric())
		}
	}
}

// effortSpent reports whether n more moves would exceed what best effort is granted.
func (s *solver) effortSpent(n int) bool {
	if !s.bestEffort || s.effortMoves+n <= s.effortLimit {
		return false
	}
	s.effortEnded = true
	return true
}
