package balance

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// metric is what a goal counts on a broker: the resources, and two numbers.
type metric uint8

const (
	metricReplicas metric = numResources
	metricLeaders  metric = numResources + 1
	numMetrics            = numResources + 2
)

// amounts holds one number for each metric.
type amounts [numMetrics]int64

// metric returns what a capacity or soft goal counts.
func (g Goal) metric() metric {
	switch g {
	case GoalIngressCapacity, GoalIngress:
		return metric(Ingress)
	case GoalEgressCapacity, GoalEgress:
		return metric(Egress)
	case GoalDiskCapacity, GoalDisk:
		return metric(Disk)
	case GoalWorkCapacity, GoalWork:
		return metric(Work)
	case GoalReplicaCapacity, GoalReplicas:
		return metricReplicas
	case GoalLeaders:
		return metricLeaders
	}
	panic("balance: goal without metric")
}

// maxTotal bounds the sum of a resource over the cluster, so that no arithmetic overflows.
const maxTotal = int64(1) << 60

// solver holds one round. Brokers, partitions and replicas are numbered densely in the order of
// their identifiers, so that nothing depends on the order of the input.
type solver struct {
	o      *PlanOptions
	ledger *Ledger
	now    time.Time
	c      *Cluster

	brokers []*Broker // by number
	zone    []int32   // by broker
	group   []int32   // cell of the broker as a number
	cells   []cellGroup

	parts  []*Partition
	off    []int32 // first replica of each partition; one more at the end
	lead   []int32 // leading replica, or -1
	pcell  []int32 // cell of the partition as a number, or -1 when it has no broker
	frozen []bool  // soft goals leave the partition alone
	anchor []bool  // so they do, because no broker can hold it in its range: others move around it
	flying []bool  // so do hard ones: it is in flight

	rb   []int32 // broker of each replica
	rp   []int32 // partition of each replica
	rl   []Loads // load of each replica as a follower
	rlag []bool
	pl   []Loads // load of leadership of each partition

	v       []amounts // present state of each broker
	led     []Loads   // the part of it that leadership brings
	reserve []Loads   // load that is in flight towards or from the broker, for capacity
	largest []amounts // largest single replica of each broker
	lists   [][]int32 // replicas of each broker; those that left are skipped, see on
	held    []int32   // number of replicas, also for brokers that take no part

	leads    []bool // may receive leadership
	receives []bool // may receive replicas
	part     []bool // takes part in soft goals
	stale    []bool
	joining  []bool

	bands        [numMetrics]band
	zsum, zshare []float64 // scratch of setBand, as are the next two
	rest, apart  []int32
	guards       []metric // metrics whose bands the present goal must not worsen
	total        amounts

	startB []int32 // rb and lead at the start, to find the net moves
	startL []int32
	log    []action
	spare  [][]candidate // lists to use again
	flat   []int32       // behind lists
	nswap  int

	diskLeads      bool // leading costs disk somewhere
	nmoves, nleads int
	demoting       bool // nothing but leadership on demoted brokers triggered: soft goals move no data, see solve
	still          bool // so does the goal that is being pursued
	bestEffort     bool // a goal that does not trigger is being pursued
	effortMoves    int  // moves for such goals, and how many there may be
	effortLimit    int
	effortEnded    bool
	bytes          int64
	work           int64
	moveCost       float64
	plan           Plan
	reported       map[unfixableKey]bool
}

// action is one step that the solver took.
type action struct {
	kind     MoveKind
	p, r     int32 // r is the replica that moved or got leadership
	from, to int32 // from is -1 when nobody led
	goal     Goal
	swap     int
	load     Loads
}

type unfixableKey struct {
	goal      Goal
	broker    BrokerID
	partition PartitionID
}

// cellGroup is a cell and its brokers by zone.
type cellGroup struct {
	id      CellID
	members []int32
	zones   []int32   // zones that have brokers able to hold replicas
	byZone  [][]int32 // members by zone number
	loose   bool      // some partition leaves a choice of zones
	run     bool      // soft goals run in this round
}

// band is the target range of each broker for one metric.
type band struct {
	on           bool // it is the metric of a goal
	trigger      bool
	goal         Goal
	apart        []bool    // the broker holds a replica above the range
	share        []float64 // weight of the broker
	mean         []float64 // mean amount for one unit of share, as seen by the broker
	least        []float64 // smallest amount that a broker of its zone could have on the average
	lower, upper []int64
}

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

// replicaOn returns the replica of partition p on broker b, or -1.
func (s *solver) replicaOn(p, b int32) int32 {
	for r := s.off[p]; r < s.off[p+1]; r++ {
		if s.rb[r] == b {
			return r
		}
	}
	return -1
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

// replica returns what a move of replica r takes along.
func (s *solver) replica(r int32) (d amounts) {
	l := &s.rl[r]
	copy(d[:numResources], l[:])
	d[metricReplicas] = 1
	if p := s.rp[r]; s.lead[p] == r {
		for m, x := range s.pl[p] {
			d[m] += x
		}
		d[metricLeaders] = 1
	}
	return d
}

// amount returns one metric of what a move of replica r takes along.
func (s *solver) amount(r int32, m metric) int64 {
	x := int64(1)
	switch {
	case m < numResources:
		x = s.rl[r][m]
	case m == metricLeaders:
		x = 0
	}
	if p := s.rp[r]; s.lead[p] == r {
		switch {
		case m < numResources:
			x += s.pl[p][m]
		case m == metricLeaders:
			x = 1
		}
	}
	return x
}

// leadership returns what a move of the leadership of p takes along.
func (s *solver) leadership(p int32) (d amounts) {
	copy(d[:numResources], s.pl[p][:])
	d[metricLeaders] = 1
	return d
}

// setBands computes the target range of every broker for every metric. The mean is that of the cell,
// in proportion to capacity. Where replicas cannot change their zone, a zone may lie above or below that, and
// then its own mean widens the range; only what leadership brings can go from zone to zone. A replica above the
// range cannot be put anywhere: its broker is set apart, and the mean is that of the others. All of
// this depends on sums that moves do not change, or the passes might chase each other.
func (s *solver) setBands() {
	for m := range s.bands {
		bd := &s.bands[m]
		for gi := range s.cells {
			s.setBand(bd, metric(m), &s.cells[gi])
		}
	}
}

// setAnchors finds the replicas above the range. If they moved, the ranges would move with them, and goals
// of different resources could chase each other for ever.
func (s *solver) setAnchors() {
	clear(s.anchor)
	for m := range s.bands[:numResources] {
		if bd := &s.bands[m]; bd.on {
			for b := range int32(len(s.brokers)) {
				if !bd.apart[b] {
					continue
				}
				for _, r := range s.lists[b] {
					if s.rb[r] == b && s.amount(r, metric(m)) == s.largest[b][m] {
						s.anchor[s.rp[r]] = true
						break
					}
				}
			}
		}
	}
}

func (s *solver) setBand(bd *band, m metric, g *cellGroup) {
	weighted := m < numResources
	for _, b := range g.members {
		bd.lower[b], bd.upper[b] = 0, math.MaxInt64
		bd.mean[b], bd.least[b], bd.share[b], bd.apart[b] = 0, 0, 1, false
		if m < numResources && s.part[b] && s.brokers[b].Capacity[m] == 0 {
			weighted = false
		}
	}
	zsum, zshare := s.zsum, s.zshare
	clear(zsum)
	clear(zshare)
	var sum, share, led float64
	rest, apart := s.rest[:0], s.apart[:0]
	defer func() { s.rest, s.apart = rest, apart }()
	for _, b := range g.members {
		if weighted {
			bd.share[b] = float64(s.brokers[b].Capacity[m])
		}
		if !s.part[b] {
			continue
		}
		rest = append(rest, b)
		x := float64(s.v[b][m])
		sum, share = sum+x, share+bd.share[b]
		zshare[s.zone[b]] += bd.share[b]
		switch {
		case m < numResources:
			zsum[s.zone[b]] += x - float64(s.led[b][m])
			led += float64(s.led[b][m])
		case m == metricReplicas:
			zsum[s.zone[b]] += x
		default:
			led += x
		}
	}
	if share > 0 {
		led /= share
	}
	// Loads on brokers that are to be emptied will arrive here.
	for _, b := range g.members {
		if st := s.brokers[b].State; (st == Draining || st == Dead) && share > 0 {
			sum += float64(s.v[b][m])
		}
	}
	for {
		if !(share > 0) {
			break
		}
		mean := sum / share
		out := -1
		for i, b := range rest {
			if m < numResources && float64(s.largest[b][m]) > s.o.Target*mean*bd.share[b] {
				out = i
				break
			}
		}
		if out < 0 {
			break
		}
		b := rest[out]
		rest = slices.Delete(rest, out, out+1)
		apart = append(apart, b)
		sum -= float64(s.largest[b][m])
		share -= bd.share[b]
		zsum[s.zone[b]] -= min(float64(s.largest[b][m]), zsum[s.zone[b]])
		zshare[s.zone[b]] -= bd.share[b]
		if len(rest) == 0 {
			break
		}
	}
	mean := 0.0
	if share > 0 {
		mean = max(sum/share, 0)
	}
	if m < numResources && mean*share < float64(s.o.IdleBelow[m])*float64(len(rest)) {
		return // too little to be worth a move
	}
	for _, b := range rest {
		z := mean
		if zs := zshare[s.zone[b]]; zs > 0 && !g.loose {
			z = zsum[s.zone[b]]/zs + led
		}
		hi, lo := max(mean, z)*bd.share[b], min(mean, z)*bd.share[b]
		bd.mean[b], bd.least[b] = max(mean, z), lo
		up, down := hi*s.o.Target, lo*(2-s.o.Target)
		if m >= numResources {
			// Numbers are whole: half a replica more than the band is not a violation.
			up, down = math.Ceil(up-1e-9), math.Floor(down+1e-9)
		}
		bd.upper[b], bd.lower[b] = int64(math.Floor(up+1e-9)), int64(math.Ceil(down-1e-9))
	}
	for _, b := range apart {
		bd.apart[b] = true
		bd.mean[b] = max(mean, float64(s.largest[b][m])/bd.share[b])
		bd.upper[b] = int64(math.Floor(s.o.Target * bd.mean[b] * bd.share[b]))
		bd.lower[b] = 0
	}
}

// capacity returns the largest amount of m that hard goals allow on b.
func (s *solver) capacity(b int32, m metric) int64 {
	switch m {
	case metricReplicas:
		if n := s.brokers[b].MaxReplicas; n > 0 {
			return int64(n)
		}
		return DefaultMaxReplicas
	case metricLeaders:
		return math.MaxInt64
	}
	c := s.brokers[b].Capacity[m]
	if c == 0 {
		return math.MaxInt64
	}
	f := s.o.TransferShare
	switch Resource(m) {
	case Disk:
		f = s.o.DiskShare
	case Work:
		f = s.o.WorkShare
	}
	return int64(float64(c)*f) - s.reserve[b][m]
}

// fits reports whether d more on broker b keeps its capacity.
func (s *solver) fits(b int32, d *amounts) bool {
	for m := range d {
		if d[m] > 0 && s.v[b][m]+d[m] > s.capacity(b, metric(m)) {
			return false
		}
	}
	return true
}

// guarded reports whether moving d from one broker to another would push either out of the band of a
// guarded metric, or further out of it.
func (s *solver) guarded(from, to int32, d *amounts, except metric) bool {
	for _, m := range s.guards {
		if m == except || d[m] == 0 {
			continue
		}
		bd := &s.bands[m]
		if s.v[to][m]+d[m] > bd.upper[to] || s.part[from] && s.v[from][m]-d[m] < bd.lower[from] {
			return true
		}
	}
	return false
}

// zoneLimit returns how many replicas of p one zone may hold.
func (s *solver) zoneLimit(p int32) int {
	n := int(s.off[p+1] - s.off[p])
	g := s.pcell[p]
	if g < 0 || len(s.cells[g].zones) == 0 {
		return n
	}
	z := len(s.cells[g].zones)
	return (n + z - 1) / z
}

// inZone counts the replicas of p in a zone, without replica except.
func (s *solver) inZone(p, zone, except int32) int {
	n := 0
	for r := s.off[p]; r < s.off[p+1]; r++ {
		if r != except && s.zone[s.rb[r]] == zone {
			n++
		}
	}
	return n
}

// legal reports whether the hard goals other than capacity let replica r go to broker b.
func (s *solver) legal(r, b int32) bool {
	p := s.rp[r]
	if !s.receives[b] || s.group[b] != s.pcell[p] {
		return false
	}
	z := s.zone[b]
	n := 1
	for q := s.off[p]; q < s.off[p+1]; q++ {
		if s.rb[q] == b {
			return false
		}
		if q != r && s.zone[s.rb[q]] == z {
			n++
		}
	}
	return n <= s.zoneLimit(p) || z == s.zone[s.rb[r]] && s.group[s.rb[r]] == s.group[b]
}

// move applies the move of a replica.
func (s *solver) move(r, to int32, goal Goal, swap int) {
	from := s.rb[r]
	d := s.replica(r)
	s.shift(r, to, &d)
	s.held[from]--
	s.held[to]++
	s.lists[to] = append(s.lists[to], r)
	s.log = append(s.log, action{MoveReplica, s.rp[r], r, from, to, goal, swap, d.loads()})
	s.nmoves++
	if s.bestEffort {
		s.effortMoves++
	}
	s.bytes += s.rl[r][Disk]
}

// shift changes the broker of a replica, and no more.
func (s *solver) shift(r, to int32, d *amounts) {
	from := s.rb[r]
	for m := range d {
		s.v[from][m] -= d[m]
		s.v[to][m] += d[m]
	}
	if p := s.rp[r]; s.lead[p] == r {
		s.led[from] = s.led[from].sub(s.pl[p])
		s.led[to] = s.led[to].add(s.pl[p])
	}
	s.rb[r] = to
}

// handOver gives the leadership of p to replica r.
func (s *solver) handOver(p, r int32, goal Goal) {
	d := s.leadership(p)
	from := int32(-1)
	if q := s.lead[p]; q >= 0 {
		from = s.rb[q]
		for m := range d {
			s.v[from][m] -= d[m]
		}
		s.led[from] = s.led[from].sub(s.pl[p])
	}
	to := s.rb[r]
	for m := range d {
		s.v[to][m] += d[m]
	}
	s.led[to] = s.led[to].add(s.pl[p])
	s.lead[p] = r
	s.log = append(s.log, action{MoveLeadership, p, r, from, to, goal, 0, d.loads()})
	s.nleads++
	if s.bestEffort {
		s.effortMoves++
	}
}

// spent reports whether a limit is reached, and notes which.
func (s *solver) spent(bytes int64) bool {
	switch {
	case s.o.MaxReplicaMoves > 0 && s.nmoves >= s.o.MaxReplicaMoves:
		s.plan.Exhausted = "moves"
	case s.o.MaxBytes > 0 && s.bytes+bytes > s.o.MaxBytes:
		s.plan.Exhausted = "bytes"
	case s.work >= s.o.Work:
		s.plan.Exhausted = "work"
	default:
		return false
	}
	return true
}

func (s *solver) spentLeads() bool {
	switch {
	case s.o.MaxLeaderMoves > 0 && s.nleads >= s.o.MaxLeaderMoves:
		s.plan.Exhausted = "leader moves"
	case s.work >= s.o.Work:
		s.plan.Exhausted = "work"
	default:
		return false
	}
	return true
}

// unfixable reports something once.
func (s *solver) unfixable(goal Goal, b, p int32, reason string) {
	u := Unfixable{Goal: goal, Broker: NoBroker, Reason: reason}
	if b >= 0 {
		u.Broker = s.brokers[b].ID
	}
	if p >= 0 {
		u.Partition = s.parts[p].ID
	}
	k := unfixableKey{u.Goal, u.Broker, u.Partition}
	if !s.reported[k] {
		s.reported[k] = true
		s.plan.Unfixable = append(s.plan.Unfixable, u)
	}
}

// emit turns the steps into moves. What moved twice appears once, what came back not at all, except in
// partitions where several copies moved: there a copy may need the place that another one left, so all
// steps stay in their order. Leadership goes first where its new holder may lead already, since that
// costs nothing and helps at once.
func (s *solver) emit() {
	moved := map[int32]int32{} // replica that moved in a partition, or -1 for several
	lastOf := map[int32]int{}  // last step of a replica
	lastLead := map[int32]int{}
	for i, a := range s.log {
		if a.kind == MoveLeadership {
			lastLead[a.p] = i
			continue
		}
		if r, ok := moved[a.p]; ok && r != a.r {
			moved[a.p] = -1
		} else {
			moved[a.p] = a.r
		}
		lastOf[a.r] = i
	}
	var first, middle, last []Move
	for i, a := range s.log {
		m := Move{Kind: a.kind, Partition: s.parts[a.p].ID, From: NoBroker, To: s.brokers[a.to].ID,
			Load: a.load, Goal: a.goal, Swap: a.swap, Estimated: s.parts[a.p].Estimated}
		if a.from >= 0 {
			m.From = s.brokers[a.from].ID
		}
		if a.kind == MoveReplica {
			m.Bytes = s.rl[a.r][Disk]
		}
		if moved[a.p] == -1 {
			middle = append(middle, m)
			continue
		}
		switch a.kind {
		case MoveReplica:
			if lastOf[a.r] != i || s.startB[a.r] == s.rb[a.r] {
				continue
			}
			m.From, m.To, m.Load = s.brokers[s.startB[a.r]].ID, s.brokers[s.rb[a.r]].ID, s.replica(a.r).loads()
			middle = append(middle, m)
		case MoveLeadership:
			old, now := s.startL[a.p], s.lead[a.p]
			if lastLead[a.p] != i || old == now {
				continue
			}
			m.From = NoBroker
			if s.leads[s.startB[now]] {
				if old >= 0 {
					m.From = s.brokers[s.startB[old]].ID
				}
				m.To = s.brokers[s.startB[now]].ID
				first = append(first, m)
			} else {
				if old >= 0 {
					m.From = s.brokers[s.rb[old]].ID
				}
				m.To = s.brokers[s.rb[now]].ID
				last = append(last, m)
			}
		}
	}
	s.plan.Moves = append(append(first, middle...), last...)
	pairs := map[int]int{}
	for _, m := range s.plan.Moves {
		pairs[m.Swap]++
	}
	for i := range s.plan.Moves {
		m := &s.plan.Moves[i]
		if pairs[m.Swap] < 2 {
			m.Swap = 0 // its other half came to nothing
		}
		switch m.Kind {
		case MoveLeadership:
			s.plan.LeaderMoves++
		case MoveReplica:
			s.plan.ReplicaMoves++
			s.plan.Bytes += m.Bytes
		}
	}
}

func (l Loads) sub(m Loads) Loads {
	for i := range l {
		l[i] -= m[i]
	}
	return l
}

func (a amounts) loads() (l Loads) {
	copy(l[:], a[:numResources])
	return l
}
