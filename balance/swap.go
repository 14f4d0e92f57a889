package balance

import (
	"cmp"
	"slices"
)

// Bounds of the search for swaps: brokers to swap with, replicas of the source, replicas of the partner for
// each of them.
const (
	swapPartners = 8
	swapSources  = 64
	swapNearest  = 16
)

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
