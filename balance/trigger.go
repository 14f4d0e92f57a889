package balance

import (
	"fmt"
)

// ousted reports whether replicas must leave b.
func (s *solver) ousted(b int32) bool {
	st := s.brokers[b].State
	return st == Draining || st == Dead
}

// mayNotLead reports whether leadership of p must leave b.
func (s *solver) mayNotLead(p, b int32) bool {
	return s.ousted(b) || !s.leads[b] && !s.parts[p].Pinned
}

// zoneSurplus returns a replica of p that stands in a zone with too many, or -1: the smallest that does not
// lead, since it costs least to move.
func (s *solver) zoneSurplus(p int32) int32 {
	limit := s.zoneLimit(p)
	best := int32(-1)
	for r := s.off[p]; r < s.off[p+1]; r++ {
		if s.inZone(p, s.zone[s.rb[r]], -1) <= limit {
			continue
		}
		if best < 0 || s.lead[p] == best || s.lead[p] != r && s.rl[r][Disk] < s.rl[best][Disk] {
			best = r
		}
	}
	return best
}

// structural visits every violation of the goals evacuate, cell and zones. r is the replica that must
// go, or -1 when only leadership must.
func (s *solver) structural(visit func(goal Goal, p, r int32)) {
	for p := range int32(len(s.parts)) {
		if s.flying[p] {
			continue
		}
		if l := s.lead[p]; l >= 0 && s.mayNotLead(p, s.rb[l]) {
			visit(GoalEvacuate, p, -1)
		}
		misplaced := false
		for r := s.off[p]; r < s.off[p+1]; r++ {
			switch b := s.rb[r]; {
			case s.ousted(b):
				visit(GoalEvacuate, p, r)
				misplaced = true
			case s.group[b] != s.pcell[p]:
				visit(GoalCell, p, r)
				misplaced = true
			}
		}
		if !misplaced && s.off[p+1]-s.off[p] > 1 {
			if r := s.zoneSurplus(p); r >= 0 {
				visit(GoalZones, p, r)
			}
		}
	}
}

// hardTriggers lists the violated hard goals, one entry for each.
func (s *solver) hardTriggers() []Trigger {
	var n [GoalDisk]int
	s.structural(func(goal Goal, _, _ int32) { n[goal]++ })
	var ts []Trigger
	for goal, k := range n {
		if k > 0 {
			ts = append(ts, Trigger{Goal: Goal(goal), Broker: NoBroker, Value: float64(k)})
		}
	}
	for goal := GoalReplicaCapacity; goal < GoalDisk; goal++ {
		m := goal.metric()
		worst, over := int32(-1), int64(0)
		for b := range int32(len(s.brokers)) {
			if x := s.v[b][m] - s.capacity(b, m); s.counts(b, m) && x > over {
				worst, over = b, x
			}
		}
		if worst >= 0 {
			ts = append(ts, Trigger{Goal: goal, Broker: s.brokers[worst].ID, Value: float64(s.v[worst][m]), Limit: float64(s.capacity(worst, m))})
		}
	}
	return ts
}

// counts reports whether the capacity of b matters: numbers of replicas are known even when the
// loads are not.
func (s *solver) counts(b int32, m metric) bool {
	return !s.ousted(b) && (m >= numResources || !s.stale[b])
}

// fillTriggers lists the joining brokers that lack their share of some goal.
func (s *solver) fillTriggers() []Trigger {
	var ts []Trigger
	for b, j := range s.joining {
		if !j || !s.part[b] {
			continue
		}
		for _, g := range s.o.Goals {
			m := g.Goal.metric()
			if bd := &s.bands[m]; s.v[b][m] < bd.lower[b] {
				ts = append(ts, Trigger{Goal: GoalFill, Broker: s.brokers[b].ID,
					Value: float64(s.v[b][m]) / (bd.mean[b] * bd.share[b]), Limit: 2 - s.o.Target})
				break
			}
		}
	}
	return ts
}

// softTriggers lists for every soft goal that triggers and every cell the worst broker that is outside
// High, if there is one.
func (s *solver) softTriggers() []Trigger {
	var ts []Trigger
	for _, goal := range s.o.Goals {
		if !goal.Trigger {
			continue
		}
		m := goal.Goal.metric()
		bd := &s.bands[m]
		for gi := range s.cells {
			worst := Trigger{Goal: goal.Goal, Broker: NoBroker}
			far := 0.0
			for _, b := range s.cells[gi].members {
				mean := bd.mean[b] * bd.share[b]
				if !s.part[b] || !(mean > 0) {
					continue
				}
				ratio := float64(s.v[b][m]) / mean
				low := 2 - s.o.High
				switch {
				case s.v[b][m] > bd.upper[b] && ratio > s.o.High && ratio-1 > far:
					far = ratio - 1
					worst.Broker, worst.Value, worst.Limit = s.brokers[b].ID, ratio, s.o.High
				case float64(s.v[b][m]) < bd.least[b]*low && s.v[b][m] < bd.lower[b] && !s.fresh(b) && 1-ratio > far:
					far = 1 - ratio
					worst.Broker, worst.Value, worst.Limit = s.brokers[b].ID, ratio, low
				}
			}
			if worst.Broker != NoBroker {
				ts = append(ts, worst)
			}
		}
	}
	return ts
}

// reportApart names the replicas that no broker can hold within the band.
func (s *solver) reportApart() {
	for _, goal := range s.o.Goals {
		m := goal.Goal.metric()
		if m >= numResources {
			continue
		}
		bd := &s.bands[m]
		for b := range int32(len(s.brokers)) {
			if !bd.apart[b] {
				continue
			}
			for _, r := range s.lists[b] {
				if d := s.replica(r); d[m] == s.largest[b][m] {
					s.unfixable(goal.Goal, b, s.rp[r], fmt.Sprintf("one replica carries %d, more than the band of any broker", d[m]))
					break
				}
			}
		}
	}
}

// reportStuck names the brokers that stay outside High.
func (s *solver) reportStuck() {
	if s.plan.Exhausted != "" {
		return
	}
	for _, t := range s.softTriggers() {
		s.unfixable(t.Goal, s.brokerNumber(t.Broker), -1, fmt.Sprintf("stays at %.3g of the mean: no allowed move improves it", t.Value))
	}
}

// measure returns the present state of all goals in After and Met.
func (s *solver) measure() []GoalReport {
	var n [GoalDisk]int
	s.structural(func(goal Goal, _, _ int32) { n[goal]++ })
	for goal := GoalReplicaCapacity; goal < GoalDisk; goal++ {
		m := goal.metric()
		for b := range int32(len(s.brokers)) {
			if s.counts(b, m) && s.v[b][m] > s.capacity(b, m) {
				n[goal]++
			}
		}
	}
	var out []GoalReport
	for goal, k := range n {
		out = append(out, GoalReport{Goal: Goal(goal), Trigger: true, After: float64(k), Met: k == 0})
	}
	for _, goal := range s.o.Goals {
		m := goal.Goal.metric()
		bd := &s.bands[m]
		r := GoalReport{Goal: goal.Goal, Trigger: goal.Trigger, Met: true}
		for b := range int32(len(s.brokers)) {
			if mean := bd.mean[b] * bd.share[b]; s.part[b] && mean > 0 {
				r.After = max(r.After, float64(s.v[b][m])/mean)
				r.Met = r.Met && s.v[b][m] <= bd.upper[b] && (s.v[b][m] >= bd.lower[b] || float64(s.v[b][m]) >= bd.least[b]*(2-s.o.High))
			}
		}
		out = append(out, r)
	}
	return out
}

// fullness returns the largest ratio of broker b to the mean over all metrics if d were added.
func (s *solver) fullness(b int32, d *amounts) float64 {
	worst := 0.0
	for m := range s.bands {
		bd := &s.bands[m]
		if mean := bd.mean[b] * bd.share[b]; mean > 0 {
			worst = max(worst, float64(s.v[b][m]+d[m])/mean)
		}
	}
	return worst
}
