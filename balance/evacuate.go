package balance

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// evacuate resolves the violations of the goals evacuate, cell and zones: leadership first, then the
// heaviest replicas. What finds no place is reported and does not hold up the rest.
func (s *solver) evacuate() {
	type job struct {
		goal   Goal
		p, r   int32
		weight float64
	}
	var leads, jobs []job
	s.structural(func(goal Goal, p, r int32) {
		d := s.leadership(p)
		if r >= 0 {
			d = s.replica(r)
		}
		w := 0.0
		for m := range d {
			if s.total[m] > 0 {
				w += float64(d[m]) / float64(s.total[m])
			}
		}
		if r < 0 {
			leads = append(leads, job{goal, p, r, w})
			return
		}
		jobs = append(jobs, job{goal, p, r, w})
	})
	heaviest := func(a, b job) int { return cmp.Compare(b.weight, a.weight) }
	slices.SortStableFunc(leads, heaviest)
	for _, j := range leads {
		if s.spentLeads() {
			return
		}
		d := s.leadership(j.p)
		best, fill := int32(-1), math.Inf(1)
		for q := s.off[j.p]; q < s.off[j.p+1]; q++ {
			b := s.rb[q]
			if q == s.lead[j.p] || s.rlag[q] || !s.leads[b] || s.group[b] != s.pcell[j.p] || !s.fits(b, &d) {
				continue
			}
			if f := s.fullness(b, &d); f < fill {
				best, fill = q, f
			}
		}
		if best >= 0 {
			s.handOver(j.p, best, j.goal)
		} else if !s.ousted(s.rb[s.lead[j.p]]) {
			s.unfixable(j.goal, s.rb[s.lead[j.p]], j.p, "no replica in sync on a healthy broker can take leadership")
		}
	}
	slices.SortStableFunc(jobs, heaviest)
	for _, j := range jobs {
		if s.spent(s.rl[j.r][Disk]) {
			return
		}
		if j.goal == GoalZones && s.zoneSurplus(j.p) != j.r {
			continue // an earlier move repaired it
		}
		d := s.replica(j.r)
		best, fill, calm := int32(-1), math.Inf(1), false
		if g := s.pcell[j.p]; g >= 0 {
			for _, b := range s.cells[g].members {
				s.work++
				if !s.legal(j.r, b) || !s.fits(b, &d) || j.goal == GoalZones && s.zone[b] == s.zone[s.rb[j.r]] {
					continue
				}
				// Brokers whose loads are known, and that stay in all bands, are better.
				c := s.part[b]
				for m := range s.bands {
					c = c && (!s.bands[m].on || d[m] == 0 || s.v[b][m]+d[m] <= s.bands[m].upper[b])
				}
				f := s.fullness(b, &d)
				if best < 0 || c && !calm || c == calm && f < fill {
					best, fill, calm = b, f, c
				}
			}
		}
		if best < 0 {
			s.unfixable(j.goal, s.rb[j.r], j.p, "no broker of the cell has room for the replica in an allowed zone")
			continue
		}
		s.move(j.r, best, j.goal, 0)
	}
}

// capacities sheds load from brokers above their capacity.
func (s *solver) capacities() {
	for goal := GoalReplicaCapacity; goal < GoalDisk; goal++ {
		m := goal.metric()
		for gi := range s.cells {
			g := &s.cells[gi]
			over := false
			for _, b := range g.members {
				over = over || s.counts(b, m) && s.v[b][m] > s.capacity(b, m)
			}
			if !over {
				continue
			}
			t := s.newTask(goal, m, g)
			for _, b := range g.members {
				t.upper[b], t.lower[b] = s.capacity(b, m), 0
			}
			s.pursue(t)
			for _, b := range g.members {
				if s.counts(b, m) && s.v[b][m] > s.capacity(b, m) && s.plan.Exhausted == "" {
					s.unfixable(goal, b, -1, fmt.Sprintf("holds %d, may hold %d, and no broker has room", s.v[b][m], s.capacity(b, m)))
				}
			}
		}
	}
}
