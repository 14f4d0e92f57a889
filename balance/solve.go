package balance

import (
	"cmp"
	"fmt"
	"math"
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

// Bounds of the search for swaps: brokers to swap with, replicas of the source, replicas of the partner for
// each of them.
const (
	swapPartners = 8
	swapSources  = 64
	swapNearest  = 16
)

// Bounds of the search for something to fill a broker below its band with: brokers asked, and replicas
// looked at in each.
const (
	maxGivers = 32
	maxScan   = 1024
)

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

// even pursues one soft goal in one cell.
func (s *solver) even(goal Goal, g *cellGroup, fill bool) {
	m := goal.metric()
	t := s.newTask(goal, m, g)
	bd := &s.bands[m]
	for _, b := range g.members {
		t.upper[b], t.lower[b] = bd.upper[b], bd.lower[b]
	}
	t.soft = true
	if fill {
		t.only = s.joining
	}
	s.pursue(t)
}

// task is one goal being pursued in one cell.
type task struct {
	goal         Goal
	m            metric
	g            *cellGroup
	soft         bool
	upper, lower []int64 // by broker
	only         []bool  // the only brokers that receive, if not nil
	sources      map[int32]*source
	lists        map[int32][]int32 // replicas for swaps, by broker
	stuck        map[int32]bool
	deaf         map[int32]bool // brokers below the band that nothing can be given to
	want         int32          // the broker below the band that is to get the load, or -1 for any
	filling      int32          // the broker below the band that was chosen last
}

// source is a broker that sheds, with what it could give in the order of gain per cost. Once passed
// over, a candidate is not looked at again: while a goal is pursued the source only loses and the others
// only gain.
type source struct {
	leaders, replicas []candidate
	listed            bool  // replicas is complete
	li, ri            int   // what to look at next when any broker may receive
	want              int32 // and when this one is to receive
	wantLi, wantRi    int
}

type candidate struct {
	x     int64 // amount of the metric when the list was made
	score float32
	r     int32
}

func (s *solver) newTask(goal Goal, m metric, g *cellGroup) *task {
	return &task{goal: goal, m: m, g: g, upper: make([]int64, len(s.brokers)), lower: make([]int64, len(s.brokers)),
		sources: map[int32]*source{}, lists: map[int32][]int32{}, stuck: map[int32]bool{}, deaf: map[int32]bool{}, want: -1, filling: -1}
}

// pursue moves load until no broker is outside its range or nothing more can be done. It takes the
// most loaded broker above the range first; when there is none, the least loaded below it is filled from
// the most loaded.
func (s *solver) pursue(t *task) {
	defer func() {
		for _, b := range t.g.members {
			if src := t.sources[b]; src != nil && src.listed {
				s.spare = append(s.spare, src.replicas)
			}
		}
	}()
	share := s.bands[t.m].share
	fill := func(b int32) float64 { return float64(s.v[b][t.m]) / share[b] }
	for s.plan.Exhausted == "" && !s.effortSpent(1) {
		from := int32(-1)
		t.want = -1
		for _, b := range t.g.members {
			ok := s.part[b] || !t.soft && s.counts(b, t.m)
			if ok && !t.stuck[b] && s.v[b][t.m] > t.upper[b] && (from < 0 || fill(b) > fill(from)) {
				from = b
			}
		}
		if from >= 0 {
			if !s.shed(t, from) {
				t.stuck[from] = true
			}
			continue
		}
		low := t.filling
		if low >= 0 && (t.deaf[low] || s.v[low][t.m] >= t.lower[low]) {
			low = -1
		}
		for _, b := range t.g.members {
			if t.filling == low && low >= 0 {
				break // one broker is filled at a time, so that candidates passed over stay so
			}
			if s.part[b] && !t.deaf[b] && s.lacks(t, b) && (t.only == nil || t.only[b]) && (low < 0 || fill(b) < fill(low)) {
				low = b
			}
		}
		if low < 0 {
			return
		}
		t.want, t.filling = low, low
		var givers []int32
		for _, b := range t.g.members {
			if b != low && s.part[b] && fill(b) > fill(low) && s.v[b][t.m] > t.lower[b] {
				givers = append(givers, b)
			}
		}
		slices.SortFunc(givers, func(a, b int32) int {
			if c := cmp.Compare(fill(b), fill(a)); c != 0 {
				return c
			}
			return cmp.Compare(a, b)
		})
		done := false
		for _, b := range givers[:min(len(givers), maxGivers)] {
			if done = s.shed(t, b); done || s.plan.Exhausted != "" {
				break
			}
		}
		if !done {
			t.deaf[low] = true
		}
	}
}

// lacks reports whether a broker is to be filled. The load of a cluster is that of its fullest broker, so to fill
// one that is merely below the range would cost bytes for little: it is done for new brokers, and for those
// so far below that they trigger.
func (s *solver) lacks(t *task, b int32) bool {
	x := s.v[b][t.m]
	return x < t.lower[b] && (s.joining[b] || float64(x) < s.bands[t.m].least[b]*(2-s.o.High))
}

// shed makes one step that takes load from a broker: leadership, else a replica, else a swap.
func (s *solver) shed(t *task, from int32) bool {
	src := t.sources[from]
	if src == nil {
		src = s.newSource(t, from)
		t.sources[from] = src
	}
	if t.want < 0 {
		if s.shedLeader(t, from, src, &src.li) {
			return true
		}
		if s.still {
			return false
		}
		s.sourceReplicas(t, from, src)
		return s.shedReplica(t, from, src, &src.ri) || s.swap(t, from, src)
	}
	if src.want != t.want {
		// What another receiver could not take, this one may.
		src.want, src.wantLi, src.wantRi = t.want, src.li, src.ri
	}
	if s.shedLeader(t, from, src, &src.wantLi) {
		return true
	}
	if s.still || s.zone[from] != s.zone[t.want] && !t.g.loose {
		return false // no replica of the cell may change its zone
	}
	s.sourceReplicas(t, from, src)
	return s.shedReplica(t, from, src, &src.wantRi) || s.swap(t, from, src)
}

// newSource lists the leaderships that a broker could give.
func (s *solver) newSource(t *task, from int32) *source {
	src := &source{want: -1}
	if t.m == metricReplicas || t.m == metric(Disk) && !s.diskLeads {
		return src
	}
	for _, r := range s.lists[from] {
		p := s.rp[r]
		if s.lead[p] != r || !s.givable(t, from, r) || s.off[p+1]-s.off[p] < 2 {
			continue
		}
		if x := s.leadership(p)[t.m]; x > 0 {
			src.leaders = append(src.leaders, candidate{x, float32(x), r})
		}
	}
	slices.SortFunc(src.leaders, better)
	return src
}

// sourceReplicas lists the replicas that a broker could give, when they are first needed.
func (s *solver) sourceReplicas(t *task, from int32, src *source) {
	if src.listed {
		return
	}
	src.listed = true
	src.replicas = s.buffer(int(s.held[from]))
	for _, r := range s.lists[from] {
		if !s.givable(t, from, r) {
			continue
		}
		if x := s.amount(r, t.m); x > 0 {
			src.replicas = append(src.replicas, candidate{x, float32(float64(x) / (float64(s.rl[r][Disk]) + s.moveCost + 1)), r})
		}
	}
	s.work += int64(len(src.replicas))
	slices.SortFunc(src.replicas, better)
}

// buffer returns an empty list from those that earlier tasks gave back: a plan would else leave a heap full of garbage
// behind, several times the size of the model.
func (s *solver) buffer(n int) []candidate {
	for i := len(s.spare) - 1; i >= 0; i-- {
		if cap(s.spare[i]) >= n {
			b := s.spare[i]
			s.spare[i] = s.spare[len(s.spare)-1]
			s.spare = s.spare[:len(s.spare)-1]
			return b[:0]
		}
	}
	return make([]candidate, 0, n+n/8)
}

// givable reports whether the task may take replica r, or its leadership, from a broker.
func (s *solver) givable(t *task, from, r int32) bool {
	p := s.rp[r]
	return s.rb[r] == from && !s.flying[p] && !(t.soft && (s.frozen[p] || s.anchor[p])) && !s.parts[p].Pinned
}

func better(a, b candidate) int {
	if c := cmp.Compare(b.score, a.score); c != 0 {
		return c
	}
	if c := cmp.Compare(b.x, a.x); c != 0 {
		return c
	}
	return cmp.Compare(a.r, b.r)
}

// evens reports whether moving x from one broker to another makes the two more even. It is not
// needed that the receiver stays below the giver: {5, 5} and {1} are better as {5} and {6}.
func (s *solver) evens(t *task, from, to int32, x int64) bool {
	sh := s.bands[t.m].share
	return float64(s.v[from][t.m])/sh[from]-float64(s.v[to][t.m])/sh[to] > float64(x)/2*(1/sh[from]+1/sh[to])
}

// takes reports whether broker to may take d from broker from for the sake of the task.
func (s *solver) takes(t *task, from, to int32, d *amounts) bool {
	x := d[t.m]
	switch {
	case to == from || s.v[to][t.m]+x > t.upper[to] || t.want >= 0 && to != t.want:
		return false
	case t.only != nil && !t.only[to]:
		return false
	case t.soft && (!s.part[to] || !s.evens(t, from, to, x)):
		return false
	}
	return s.fits(to, d) && !s.guarded(from, to, d, t.m)
}

func (s *solver) shedLeader(t *task, from int32, src *source, next *int) bool {
	for ; *next < len(src.leaders); *next++ {
		r := src.leaders[*next].r
		p := s.rp[r]
		if s.rb[r] != from || s.lead[p] != r {
			continue
		}
		d := s.leadership(p)
		if s.v[from][t.m]-d[t.m] < t.lower[from] {
			continue
		}
		if s.spentLeads() || s.effortSpent(1) {
			return false
		}
		best := int32(-1)
		for q := s.off[p]; q < s.off[p+1]; q++ {
			b := s.rb[q]
			s.work++
			if q == r || s.rlag[q] || !s.leads[b] || s.group[b] != s.pcell[p] || !s.takes(t, from, b, &d) {
				continue
			}
			if best < 0 || s.lessFull(t, b, s.rb[best]) {
				best = q
			}
		}
		if best >= 0 {
			s.handOver(p, best, t.goal)
			return true
		}
	}
	return false
}

// lessFull orders receivers: the one with the smaller share, then the smaller number.
func (s *solver) lessFull(t *task, a, b int32) bool {
	sh := s.bands[t.m].share
	x, y := float64(s.v[a][t.m])/sh[a], float64(s.v[b][t.m])/sh[b]
	if x != y {
		return x < y
	}
	return a < b
}

// worthwhile applies the minimum of gain per byte.
func (s *solver) worthwhile(t *task, gain, bytes int64) bool {
	if !t.soft || s.o.MinGain < 0 || bytes == 0 || s.total[Disk] == 0 || s.total[t.m] == 0 || t.m >= numResources {
		return true
	}
	return float64(gain)/float64(s.total[t.m]) >= s.o.MinGain*float64(bytes)/float64(s.total[Disk])
}

func (s *solver) shedReplica(t *task, from int32, src *source, next *int) bool {
	room := s.room(t, from)
	scan := len(src.replicas)
	if t.want >= 0 {
		scan = maxScan
	}
	for ; *next < len(src.replicas); *next++ {
		c := &src.replicas[*next]
		if c.x > room || s.v[from][t.m]-c.x < t.lower[from] {
			continue
		}
		r := c.r
		if s.rb[r] != from {
			continue
		}
		d := s.replica(r)
		x := d[t.m]
		if x == 0 || x > room || s.v[from][t.m]-x < t.lower[from] || !s.worthwhile(t, x, s.rl[r][Disk]) {
			continue
		}
		if excess := s.v[from][t.m] - t.upper[from]; excess > 0 && x >= excess {
			// This one would be the last. The cheapest that is enough may be another one.
			if q, to := s.cheapest(t, from, src.replicas[*next:], excess, room, r); q >= 0 && !s.spent(s.rl[q][Disk]) {
				s.move(q, to, t.goal, 0)
				return true
			}
		}
		if scan--; scan < 0 || s.spent(s.rl[r][Disk]) || s.effortSpent(1) {
			return false
		}
		if to := s.receiver(t, from, r, &d); to >= 0 {
			s.move(r, to, t.goal, 0)
			*next++
			return true
		}
	}
	return false
}

// room returns the most that any broker can take.
func (s *solver) room(t *task, from int32) int64 {
	most := int64(0)
	for _, b := range t.g.members {
		if b != from && s.receives[b] && (t.want < 0 || b == t.want) && (t.only == nil || t.only[b]) {
			most = max(most, t.upper[b]-s.v[b][t.m])
		}
	}
	return most
}

// cheapest returns the replica with the fewest bytes that alone takes the excess away, if it has fewer
// than replica than, and where to move it.
func (s *solver) cheapest(t *task, from int32, list []candidate, excess, room int64, than int32) (int32, int32) {
	best, to := int32(-1), int32(-1)
	least := s.rl[than][Disk]
	s.work += int64(len(list))
	for i := range list {
		c := &list[i]
		if c.x < excess || c.x > room || s.rb[c.r] != from || s.rl[c.r][Disk] >= least {
			continue
		}
		d := s.replica(c.r)
		if x := d[t.m]; x < excess || x > room || s.v[from][t.m]-x < t.lower[from] {
			continue
		}
		if b := s.receiver(t, from, c.r, &d); b >= 0 {
			best, to, least = c.r, b, s.rl[c.r][Disk]
		}
	}
	return best, to
}

// receiver returns the least full broker that may take replica r, or -1.
func (s *solver) receiver(t *task, from, r int32, d *amounts) int32 {
	p := s.rp[r]
	if s.group[from] != s.pcell[p] {
		return -1
	}
	if t.want >= 0 {
		if s.takes(t, from, t.want, d) && s.legal(r, t.want) {
			return t.want
		}
		return -1
	}
	limit := s.zoneLimit(p)
	best := int32(-1)
	for _, z := range t.g.zones {
		if z != s.zone[from] && s.inZone(p, z, r) >= limit {
			continue
		}
		s.work += int64(len(t.g.byZone[z]))
		for _, b := range t.g.byZone[z] {
			if s.v[b][t.m]+d[t.m] > t.upper[b] || best >= 0 && !s.lessFull(t, b, best) {
				continue
			}
			if s.takes(t, from, b, d) && s.legal(r, b) {
				best = b
			}
		}
	}
	return best
}

// swap exchanges a replica for a lighter one of a broker that has room. Among the swaps that bring the
// source into its range it takes the one with the fewest bytes, else the one that helps most.
func (s *solver) swap(t *task, from int32, src *source) bool {
	if s.effortSpent(2) || !s.receives[from] || t.m == metricReplicas || t.only != nil || s.o.MaxReplicaMoves > 0 && s.nmoves+2 > s.o.MaxReplicaMoves {
		return false
	}
	var partners []int32
	for _, b := range t.g.members {
		if b != from && s.part[b] && s.receives[b] && (t.want < 0 || b == t.want) && s.v[b][t.m] < t.upper[b] {
			partners = append(partners, b)
		}
	}
	slices.SortFunc(partners, func(a, b int32) int {
		if s.lessFull(t, a, b) {
			return -1
		}
		return 1
	})
	partners = partners[:min(len(partners), swapPartners)]
	// need is what should go over: enough to bring the source down, or the receiver up.
	need := max(s.v[from][t.m]-t.upper[from], 1)
	if t.want >= 0 {
		need = max(t.lower[t.want]-s.v[t.want][t.m], 1)
	}
	mine := src.replicas
	mine = mine[:min(len(mine), swapSources)]
	if t.soft && len(mine) == 0 {
		return false
	}
	type found struct {
		a, b, to int32
		x, bytes int64
		enough   bool
	}
	var best found
	any := false
	for _, to := range partners {
		theirs := s.swapList(t, to)
		for _, c := range mine {
			a := c.r
			if s.rb[a] != from {
				continue
			}
			da := s.replica(a)
			// Look around the replica of theirs that is lighter by just what is needed.
			i, _ := slices.BinarySearchFunc(theirs, da[t.m]-need, func(r int32, x int64) int {
				return cmp.Compare(s.amount(r, t.m), x)
			})
			for j := max(i-swapNearest/2, 0); j < min(i+swapNearest/2, len(theirs)); j++ {
				s.work++
				b := theirs[j]
				if s.rb[b] != to {
					continue
				}
				x := da[t.m] - s.amount(b, t.m)
				bytes := s.rl[a][Disk] + s.rl[b][Disk]
				if x <= 0 || s.v[from][t.m]-x < t.lower[from] || s.v[to][t.m]+x > t.upper[to] || !s.worthwhile(t, x, bytes) {
					continue
				}
				f := found{a, b, to, x, bytes, x >= need}
				if any && !(f.enough && !best.enough || f.enough == best.enough && (f.enough && f.bytes < best.bytes || !f.enough && f.x > best.x)) {
					continue
				}
				db := s.replica(b)
				if t.soft && !s.evens(t, from, to, x) || s.rp[a] == s.rp[b] || !s.legal(a, to) || !s.legal(b, from) || !s.swapFits(t, from, to, &da, &db) {
					continue
				}
				best, any = f, true
			}
		}
	}
	if !any || s.o.MaxBytes > 0 && s.bytes+best.bytes > s.o.MaxBytes || s.spent(0) {
		return false
	}
	s.nswap++
	s.move(best.a, best.to, t.goal, s.nswap)
	s.move(best.b, from, t.goal, s.nswap)
	return true
}

// swapList returns the replicas that broker b could give in a swap, the lightest first. Anchors stay only where soft
// goals are pursued: a hard goal must find the same swaps in every pass, and in the next plan.
func (s *solver) swapList(t *task, b int32) []int32 {
	if list, ok := t.lists[b]; ok {
		return list
	}
	var list []int32
	for _, r := range s.lists[b] {
		p := s.rp[r]
		if s.rb[r] == b && !s.flying[p] && !s.frozen[p] && !(t.soft && s.anchor[p]) {
			list = append(list, r)
		}
	}
	s.work += int64(len(list))
	slices.SortFunc(list, func(x, y int32) int {
		if c := cmp.Compare(s.amount(x, t.m), s.amount(y, t.m)); c != 0 {
			return c
		}
		return cmp.Compare(x, y)
	})
	t.lists[b] = list
	return list
}

// swapFits checks capacity and guards of both brokers for the difference of a swap.
func (s *solver) swapFits(t *task, from, to int32, da, db *amounts) bool {
	for m := range s.bands {
		x := da[m] - db[m]
		up, down := to, from // up gains, down loses
		if x < 0 {
			x, up, down = -x, from, to
		}
		if x > 0 && s.v[up][m]+x > s.capacity(up, metric(m)) {
			return false
		}
		if x == 0 || metric(m) == t.m || !slices.Contains(s.guards, metric(m)) {
			continue
		}
		bd := &s.bands[m]
		if s.v[up][m]+x > bd.upper[up] || s.v[down][m]-x < bd.lower[down] {
			return false
		}
	}
	return true
}
