package balance

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
