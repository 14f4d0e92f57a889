package balance

import (
	"math"
	"slices"
)

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
