package balance

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// maxTotal bounds the sum of a resource over the cluster, so that no arithmetic overflows.
const maxTotal = int64(1) << 60

func newSolver(o *PlanOptions, c *Cluster, ledger *Ledger, now time.Time) (*solver, error) {
	s := &solver{o: o, ledger: ledger, now: now, c: c, reported: map[unfixableKey]bool{}}
	if err := s.addBrokers(); err != nil {
		return nil, err
	}
	if err := s.addPartitions(); err != nil {
		return nil, err
	}
	s.addInFlight()
	s.markBrokers()
	s.markCells()
	s.markJoining()
	s.count()
	return s, nil
}

func (s *solver) addBrokers() error {
	n := len(s.c.Brokers)
	s.brokers = make([]*Broker, n)
	for i := range s.c.Brokers {
		s.brokers[i] = &s.c.Brokers[i]
	}
	slices.SortFunc(s.brokers, func(a, b *Broker) int { return cmp.Compare(a.ID, b.ID) })
	zones := map[string]int32{}
	var names []string
	for i, b := range s.brokers {
		if b.ID < 0 || i > 0 && s.brokers[i-1].ID == b.ID {
			return fmt.Errorf("%w: broker %d is negative or listed twice", ErrModel, b.ID)
		}
		for r, c := range b.Capacity {
			if c < 0 || c > maxTotal {
				return fmt.Errorf("%w: broker %d has %v capacity %d", ErrModel, b.ID, Resource(r), c)
			}
		}
		if b.MaxReplicas < 0 || b.State > Dead {
			return fmt.Errorf("%w: broker %d has state %d and at most %d replicas", ErrModel, b.ID, b.State, b.MaxReplicas)
		}
		if _, ok := zones[b.Zone]; !ok {
			zones[b.Zone] = 0
			names = append(names, b.Zone)
		}
	}
	slices.Sort(names)
	for i, name := range names {
		zones[name] = int32(i)
	}
	ids := map[CellID]int32{}
	var cells []CellID
	for _, b := range s.brokers {
		if _, ok := ids[b.Cell]; !ok {
			ids[b.Cell] = 0
			cells = append(cells, b.Cell)
		}
	}
	slices.Sort(cells)
	for i, id := range cells {
		ids[id] = int32(i)
		s.cells = append(s.cells, cellGroup{id: id, byZone: make([][]int32, len(names))})
	}
	s.zsum, s.zshare = make([]float64, len(names)), make([]float64, len(names))
	s.zone = make([]int32, n)
	s.group = make([]int32, n)
	for i, b := range s.brokers {
		s.zone[i], s.group[i] = zones[b.Zone], ids[b.Cell]
		g := &s.cells[s.group[i]]
		g.members = append(g.members, int32(i))
	}
	s.v = make([]amounts, n)
	s.led = make([]Loads, n)
	s.reserve = make([]Loads, n)
	s.largest = make([]amounts, n)
	s.lists = make([][]int32, n)
	s.held = make([]int32, n)
	s.leads, s.receives, s.part = make([]bool, n), make([]bool, n), make([]bool, n)
	s.stale, s.joining = make([]bool, n), make([]bool, n)
	for m := range s.bands {
		s.bands[m] = band{apart: make([]bool, n), share: make([]float64, n), mean: make([]float64, n), least: make([]float64, n), lower: make([]int64, n), upper: make([]int64, n)}
	}
	for _, g := range s.o.Goals {
		b := &s.bands[g.Goal.metric()]
		b.on, b.trigger, b.goal = true, g.Trigger, g.Goal
	}
	return nil
}

// brokerNumber returns the number of a broker, or -1.
func (s *solver) brokerNumber(id BrokerID) int32 {
	i, ok := slices.BinarySearchFunc(s.brokers, id, func(b *Broker, id BrokerID) int { return cmp.Compare(b.ID, id) })
	if !ok {
		return -1
	}
	return int32(i)
}

func (s *solver) addPartitions() error {
	n := len(s.c.Partitions)
	s.parts = make([]*Partition, n)
	replicas := 0
	for i := range s.c.Partitions {
		s.parts[i] = &s.c.Partitions[i]
		replicas += len(s.c.Partitions[i].Replicas)
	}
	if replicas > math.MaxInt32-1 {
		return fmt.Errorf("%w: %d replicas", ErrModel, replicas)
	}
	byID := func(a, b *Partition) int { return a.ID.Compare(b.ID) }
	if !slices.IsSortedFunc(s.parts, byID) {
		slices.SortFunc(s.parts, byID)
	}
	s.off = make([]int32, n+1)
	s.lead, s.pcell = make([]int32, n), make([]int32, n)
	s.frozen, s.flying, s.anchor = make([]bool, n), make([]bool, n), make([]bool, n)
	s.pl = make([]Loads, n)
	s.rb, s.rp = make([]int32, 0, replicas), make([]int32, 0, replicas)
	s.rl, s.rlag = make([]Loads, 0, replicas), make([]bool, 0, replicas)
	numbers := map[BrokerID]int32{}
	for i, b := range s.brokers {
		numbers[b.ID] = int32(i)
	}
	cells := map[CellID]int32{}
	for i := range s.cells {
		cells[s.cells[i].id] = int32(i)
	}
	var sum Loads
	var perm []int
	for i, p := range s.parts {
		if i > 0 && s.parts[i-1].ID == p.ID {
			return fmt.Errorf("%w: partition %v is listed twice", ErrModel, p.ID)
		}
		s.off[i] = int32(len(s.rb))
		s.lead[i], s.pcell[i], s.pl[i] = -1, -1, p.Leadership
		if g, ok := cells[p.Cell]; ok {
			s.pcell[i] = g
		}
		perm = perm[:0]
		for j := range p.Replicas {
			perm = append(perm, j)
		}
		slices.SortFunc(perm, func(a, b int) int { return cmp.Compare(p.Replicas[a].Broker, p.Replicas[b].Broker) })
		for k, j := range perm {
			r := &p.Replicas[j]
			b, ok := numbers[r.Broker]
			if !ok || k > 0 && p.Replicas[perm[k-1]].Broker == r.Broker {
				return fmt.Errorf("%w: partition %v has a replica on broker %d, which is unknown or named twice", ErrModel, p.ID, r.Broker)
			}
			if r.Broker == p.Leader {
				s.lead[i] = int32(len(s.rb))
			}
			for m, x := range r.Load {
				if x < 0 || p.Leadership[m] < 0 || x > maxTotal || p.Leadership[m] > maxTotal || sum[m] > maxTotal-x {
					return fmt.Errorf("%w: partition %v has a negative load, or the sum of %v exceeds %d", ErrModel, p.ID, Resource(m), maxTotal)
				}
				sum[m] += x
			}
			s.rb = append(s.rb, b)
			s.rp = append(s.rp, int32(i))
			s.rl = append(s.rl, r.Load)
			s.rlag = append(s.rlag, r.Lagging)
		}
		for m, x := range p.Leadership {
			if x < 0 || sum[m] > maxTotal-x {
				return fmt.Errorf("%w: partition %v has a negative load, or the sum of %v exceeds %d", ErrModel, p.ID, Resource(m), maxTotal)
			}
			sum[m] += x
		}
		if p.Leader != NoBroker && s.lead[i] < 0 {
			return fmt.Errorf("%w: partition %v is led by broker %d, which holds no replica", ErrModel, p.ID, p.Leader)
		}
		s.frozen[i] = p.Pinned
		s.diskLeads = s.diskLeads || p.Leadership[Disk] > 0
	}
	s.off[n] = int32(len(s.rb))
	return nil
}

// addInFlight puts the model into the state that it will have when the moves in flight are over, and
// freezes their partitions. Capacity is reserved on both ends until fresh loads are there.
func (s *solver) addInFlight() {
	if s.ledger == nil {
		return
	}
	s.ledger.expire(s.o, func(id BrokerID) (time.Time, bool) {
		b := s.brokerNumber(id)
		if b < 0 {
			return time.Time{}, false
		}
		return s.brokers[b].Reported, true
	}, s.now)
	find := func(id PartitionID) (int, bool) {
		return slices.BinarySearchFunc(s.parts, id, func(p *Partition, id PartitionID) int { return p.ID.Compare(id) })
	}
	keys := slices.SortedFunc(maps.Keys(s.ledger.moves), func(a, b ledgerKey) int {
		return cmp.Or(a.partition.Compare(b.partition), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	for _, k := range keys {
		m := s.ledger.moves[k]
		p, ok := find(k.partition)
		if !ok {
			continue
		}
		s.frozen[p], s.flying[p] = true, true
		from, to := s.brokerNumber(k.from), s.brokerNumber(k.to)
		if !m.ended.IsZero() && !m.done {
			continue
		}
		for _, b := range []int32{from, to} {
			if b >= 0 {
				s.reserve[b] = s.reserve[b].add(m.load)
			}
		}
		if r := s.replicaOn(int32(p), from); r >= 0 && to >= 0 {
			if s.replicaOn(int32(p), to) < 0 {
				s.rb[r] = to
			} else if s.lead[p] == r {
				s.lead[p] = s.replicaOn(int32(p), to)
			}
		}
	}
	freeze := func(times map[PartitionID]time.Time, wait time.Duration) {
		for id, at := range times {
			if p, ok := find(id); ok && s.now.Sub(at) < wait {
				s.frozen[p] = true
			}
		}
	}
	freeze(s.ledger.moved, s.o.CoolDown)
	freeze(s.ledger.led, s.o.Settle)
}

// markBrokers decides which brokers may lead, receive and take part.
func (s *solver) markBrokers() {
	for _, b := range s.rb {
		s.held[b]++
	}
	for i, b := range s.brokers {
		live := b.State == Active || b.State == Joining
		demoted := s.now.Before(b.DemotedUntil)
		s.stale[i] = s.o.MaxReportAge > 0 && !b.Reported.IsZero() &&
			(s.now.Sub(b.Reported) > s.o.MaxReportAge || b.Reported.Sub(s.now) > s.o.MaxReportAge)
		// A sick broker looks idle and would attract load: it receives nothing at all.
		s.leads[i] = live && !demoted
		s.receives[i] = live && !demoted
		s.part[i] = live && !demoted && !s.stale[i]
		if s.stale[i] && live {
			s.plan.Stale = append(s.plan.Stale, b.ID)
		}
		if b.State == Draining && s.held[i] == 0 {
			s.plan.Removable = append(s.plan.Removable, b.ID)
		}
		if live {
			g := &s.cells[s.group[i]]
			if g.byZone[s.zone[i]] == nil {
				g.zones = append(g.zones, s.zone[i])
			}
			g.byZone[s.zone[i]] = append(g.byZone[s.zone[i]], int32(i))
		}
	}
}

// markJoining finds the brokers that are to be filled: those that say so, and empty ones. One that was
// empty goes on being filled in the same plan.
func (s *solver) markJoining() {
	for i := range s.brokers {
		s.joining[i] = s.joining[i] || s.fresh(int32(i))
	}
}

// fresh reports whether a broker is to be filled as it is now.
func (s *solver) fresh(b int32) bool {
	return s.brokers[b].State == Joining || s.brokers[b].State == Active && s.held[b] == 0 && len(s.rb) >= len(s.brokers)
}

// markCells finds out in which cells replicas may change their zone.
func (s *solver) markCells() {
	for p, gi := range s.pcell {
		if gi < 0 {
			continue
		}
		g := &s.cells[gi]
		if n := int(s.off[p+1] - s.off[p]); len(g.zones) > 1 && n%len(g.zones) != 0 {
			g.loose = true
		}
	}
}

// count sums the state of all brokers anew.
func (s *solver) count() {
	clear(s.v)
	clear(s.led)
	clear(s.largest)
	s.total = amounts{}
	n := make([]int32, len(s.brokers))
	for _, b := range s.rb {
		n[b]++
	}
	copy(s.held, n)
	if s.flat == nil {
		s.flat = make([]int32, len(s.rb))
	}
	flat := s.flat
	for b, k := range n {
		s.lists[b], flat = flat[0:0:k], flat[k:]
	}
	for r, b := range s.rb {
		s.lists[b] = append(s.lists[b], int32(r))
		d := s.replica(int32(r))
		v, l := &s.v[b], &s.largest[b]
		for m := range d {
			v[m] += d[m]
			l[m] = max(l[m], d[m])
			s.total[m] += d[m]
		}
		if p := s.rp[r]; s.lead[p] == int32(r) {
			s.led[b] = s.led[b].add(s.pl[p])
		}
	}
	if s.startB == nil {
		s.startB = slices.Clone(s.rb)
		s.startL = slices.Clone(s.lead)
	}
	s.moveCost = float64(s.o.MoveCostBytes)
	if s.moveCost == 0 && len(s.rb) > 0 {
		s.moveCost = float64(s.total[Disk]) / float64(len(s.rb)) / 16
	}
}
