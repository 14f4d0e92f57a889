package balance

import (
	"cmp"
	"slices"
)

// Bounds of the search for something to fill a broker below its band with: brokers asked, and replicas
// looked at in each.
const (
	maxGivers = 32
	maxScan   = 1024
)

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
