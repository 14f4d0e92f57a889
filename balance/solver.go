package balance

import (
	"time"
)

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

// cellGroup is a cell and its brokers by zone.
type cellGroup struct {
	id      CellID
	members []int32
	zones   []int32   // zones that have brokers able to hold replicas
	byZone  [][]int32 // members by zone number
	loose   bool      // some partition leaves a choice of zones
	run     bool      // soft goals run in this round
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
