package balance_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

// drawCluster draws a model with everything in it: zones, cells, capacities, all states, lagging and misplaced
// replicas, partitions without a leader.
func drawCluster(t *rapid.T) balance.Cluster {
	var c balance.Cluster
	n := rapid.IntRange(1, 12).Draw(t, "brokers")
	cells := rapid.IntRange(1, 2).Draw(t, "cells")
	zones := rapid.IntRange(1, 3).Draw(t, "zones")
	capped := rapid.Bool().Draw(t, "capped")
	for i := range n {
		b := balance.Broker{ID: balance.BrokerID(i * 3), Zone: fmt.Sprint("z", i%zones), Cell: balance.CellID(i / zones % cells)}
		switch rapid.IntRange(0, 9).Draw(t, "state") {
		case 0:
			b.State = balance.Draining
		case 1:
			b.State = balance.Dead
		case 2:
			b.State = balance.Joining
		case 3:
			b.DemotedUntil = at(1000)
		case 4:
			b.Reported = at(-1000)
		}
		if capped {
			x := rapid.Int64Range(500, 20_000).Draw(t, "capacity")
			b.Capacity = balance.Loads{x, 2 * x, 50 * x, x}
			b.MaxReplicas = rapid.IntRange(1, 40).Draw(t, "max")
		}
		c.Brokers = append(c.Brokers, b)
	}
	for i := range rapid.IntRange(0, 40).Draw(t, "partitions") {
		p := balance.Partition{ID: balance.PartitionID{Topic: balancetest.Topic(i / 5), Index: int32(i % 5)}, Cell: balance.CellID(i % cells),
			Leader: balance.NoBroker, Pinned: rapid.IntRange(0, 19).Draw(t, "pin") == 0}
		perm := rapid.Permutation(c.Brokers).Draw(t, "placement")
		rf := min(rapid.IntRange(1, 3).Draw(t, "rf"), n)
		x := rapid.Int64Range(0, 1000).Draw(t, "x")
		for k := range rf {
			p.Replicas = append(p.Replicas, balance.Replica{Broker: perm[k].ID, Load: balance.Loads{x, 0, x * rapid.Int64Range(1, 9).Draw(t, "bytes"), x / 4},
				Lagging: rapid.IntRange(0, 9).Draw(t, "lag") == 0})
		}
		if rapid.IntRange(0, 19).Draw(t, "leader") > 0 {
			p.Leader = p.Replicas[rapid.IntRange(0, rf-1).Draw(t, "which")].Broker
		}
		p.Leadership = balance.Loads{0, 2 * x, 0, x / 2}
		c.Partitions = append(c.Partitions, p)
	}
	return c
}

// violations counts what hard goals find wrong, written without the planner's code: for each partition the
// misplaced replicas, the surplus in zones and wrong leaders, for each broker what is above a limit.
func violations(c balance.Cluster, now time.Time) (parts map[balance.PartitionID]int, over map[string]int64) {
	parts, over = map[balance.PartitionID]int{}, map[string]int64{}
	brokers := map[balance.BrokerID]balance.Broker{}
	cellZones := map[balance.CellID]map[string]bool{}
	for _, b := range c.Brokers {
		brokers[b.ID] = b
		if b.State == balance.Active || b.State == balance.Joining {
			if cellZones[b.Cell] == nil {
				cellZones[b.Cell] = map[string]bool{}
			}
			cellZones[b.Cell][b.Zone] = true
		}
	}
	sums := map[balance.BrokerID]balance.Loads{}
	held := map[balance.BrokerID]int{}
	for _, p := range c.Partitions {
		zones := map[string]int{}
		bad := 0
		for _, r := range p.Replicas {
			b := brokers[r.Broker]
			if b.State == balance.Dead || b.State == balance.Draining || b.Cell != p.Cell {
				bad++
			}
			zones[b.Zone]++
			s := sums[b.ID]
			for i := range s {
				s[i] += r.Load[i]
				if b.ID == p.Leader {
					s[i] += p.Leadership[i]
				}
			}
			sums[b.ID] = s
			held[b.ID]++
		}
		if z := len(cellZones[p.Cell]); z > 0 {
			limit := (len(p.Replicas) + z - 1) / z
			for _, n := range zones {
				bad += max(n-limit, 0)
			}
		}
		if p.Leader != balance.NoBroker {
			b := brokers[p.Leader]
			if b.State == balance.Dead || b.State == balance.Draining || now.Before(b.DemotedUntil) && !p.Pinned {
				bad++
			}
		}
		parts[p.ID] = bad
	}
	for _, b := range c.Brokers {
		if b.State == balance.Dead || b.State == balance.Draining {
			continue
		}
		limit := b.MaxReplicas
		if limit == 0 {
			limit = balance.DefaultMaxReplicas
		}
		over[fmt.Sprint(b.ID, " replicas")] = int64(max(held[b.ID]-limit, 0))
		for r, x := range sums[b.ID] {
			share := balance.DefaultTransferShare
			switch balance.Resource(r) {
			case balance.Disk:
				share = balance.DefaultDiskShare
			case balance.Work:
				share = balance.DefaultWorkShare
			}
			if b.Capacity[r] > 0 {
				over[fmt.Sprint(b.ID, " ", r)] = max(x-int64(float64(b.Capacity[r])*share), 0)
			}
		}
	}
	return parts, over
}

// TestPlanProperties: on any model a plan breaks no hard goal, planning again gives no moves, the order of the input
// does not matter, and the model is not touched.
func TestPlanProperties(t *testing.T) {
	for name, o := range map[string]balance.PlanOptions{
		"exact":     {},
		"heuristic": balance.Heuristic(balance.PlanOptions{}),
		"forced":    balance.Heuristic(balance.PlanOptions{Force: true, MinGain: -1}),
		"best effort": balance.Heuristic(balance.PlanOptions{Goals: []balance.SoftGoal{
			{Goal: balance.GoalWork, Trigger: true}, {Goal: balance.GoalEgress}, {Goal: balance.GoalDisk}}}),
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawCluster(t)
				copied := c.Clone()
				plan := mustPlan(t, o, c, nil, epoch)
				if !reflect.DeepEqual(c, copied) {
					t.Fatal("the model was changed")
				}
				after := c.Clone()
				states := map[balance.BrokerID]balance.Broker{}
				for _, b := range c.Brokers {
					states[b.ID] = b
				}
				for _, m := range plan.Moves {
					if err := after.Apply([]balance.Move{m}); err != nil {
						t.Fatalf("%v in %v", err, plan.Moves)
					}
					b := states[m.To]
					if b.State == balance.Dead || b.State == balance.Draining || epoch.Before(b.DemotedUntil) {
						t.Errorf("a broker that must not receives: %v", m)
					}
					if m.Kind == balance.MoveLeadership {
						for _, p := range after.Partitions {
							for _, r := range p.Replicas {
								if p.ID == m.Partition && r.Broker == m.To && r.Lagging {
									t.Errorf("leadership goes to a copy that lags: %v", m)
								}
							}
						}
					}
				}
				parts0, over0 := violations(c, epoch)
				parts1, over1 := violations(after, epoch)
				for id, n := range parts1 {
					if n > parts0[id] {
						t.Errorf("partition %v: %d violations after, %d before: %v", id, n, parts0[id], plan.Moves)
					}
				}
				for k, x := range over1 {
					if x > over0[k] {
						t.Errorf("broker %s: %d above the limit after, %d before: %v", k, x, over0[k], plan.Moves)
					}
				}
				if plan.Exhausted != "" && plan.Exhausted != "best effort" {
					t.Fatalf("ended early: %v", plan.Exhausted)
				}
				if again := mustPlan(t, o, after, nil, epoch); len(again.Moves) > 0 && plan.Exhausted == "" {
					t.Errorf("again: %v\nfirst: %v\n%v", again.Moves, plan.Moves, again.Triggers)
				}
				// Another order of everything.
				r := rand.New(rand.NewPCG(1, uint64(len(c.Partitions))))
				d := c.Clone()
				r.Shuffle(len(d.Brokers), func(i, j int) { d.Brokers[i], d.Brokers[j] = d.Brokers[j], d.Brokers[i] })
				r.Shuffle(len(d.Partitions), func(i, j int) { d.Partitions[i], d.Partitions[j] = d.Partitions[j], d.Partitions[i] })
				for i := range d.Partitions {
					rs := d.Partitions[i].Replicas
					r.Shuffle(len(rs), func(i, j int) { rs[i], rs[j] = rs[j], rs[i] })
				}
				if other := mustPlan(t, o, d, nil, epoch); !reflect.DeepEqual(other, plan) {
					t.Errorf("another order gives another plan:\n%v\n%v", plan.Moves, other.Moves)
				}
				// Sums of the plan.
				var bytes int64
				n, leads := 0, 0
				for _, m := range plan.Moves {
					bytes += m.Bytes
					if m.Kind == balance.MoveReplica {
						n++
					} else {
						leads++
					}
				}
				if bytes != plan.Bytes || n != plan.ReplicaMoves || leads != plan.LeaderMoves {
					t.Errorf("the plan counts %d, %d, %d; its moves give %d, %d, %d", plan.Bytes, plan.ReplicaMoves, plan.LeaderMoves, bytes, n, leads)
				}
				if len(plan.Triggers) == 0 && !o.Force && len(plan.Moves) > 0 {
					t.Errorf("moves without a trigger: %v", plan.Moves)
				}
				checkBatches(t, plan)
			})
		})
	}
}

func checkBatches(t *rapid.T, plan balance.Plan) {
	const per, total = 2, 5
	waves := plan.Batches(per, total)
	n := 0
	last := map[balance.PartitionID]int{}
	for w, moves := range waves {
		busy := map[balance.BrokerID]int{}
		all := 0
		seen := map[balance.PartitionID]bool{}
		for _, m := range moves {
			n++
			if seen[m.Partition] {
				t.Errorf("wave %d moves %v twice", w, m.Partition)
			}
			seen[m.Partition] = true
			last[m.Partition] = w
			if m.Kind == balance.MoveReplica {
				busy[m.From]++
				busy[m.To]++
				all++
			}
		}
		for b, k := range busy {
			if k > per {
				t.Errorf("wave %d has %d moves on broker %d", w, k, b)
			}
		}
		if all > total {
			t.Errorf("wave %d has %d moves", w, all)
		}
	}
	if n != len(plan.Moves) {
		t.Errorf("%d of %d moves in waves", n, len(plan.Moves))
	}
}

// TestPlanBalances: on models where nothing stands in the way the soft goals are met.
func TestPlanBalances(t *testing.T) {
	for seed := range uint64(5) {
		c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 12, Zones: 3, Partitions: 3000, Replication: 3, Alpha: 1.5, Cap: 50, Spread: .5, Skew: 2, Seed: seed})
		plan := mustPlan(t, balance.PlanOptions{}, c, nil, epoch)
		if len(plan.Moves) == 0 {
			t.Fatalf("seed %d: nothing to do?", seed)
		}
		after := apply(t, c, plan.Moves)
		for r := range balance.Resource(4) {
			if x := balancetest.Imbalance(after, r); x > 1.09*1.02 {
				t.Errorf("seed %d: %v ends at %.3f of the mean, was %.3f", seed, r, x, balancetest.Imbalance(c, r))
			}
		}
		if n := float64(plan.ReplicaMoves) / 9000; n > .2 {
			t.Errorf("seed %d: moves %.3f of all replicas", seed, n)
		}
		var b strings.Builder
		if err := plan.Explain(&b); err != nil || !strings.Contains(b.String(), "round because of") {
			t.Errorf("explanation: %v\n%s", err, b.String())
		}
	}
}

// TestTinyInstancesByBruteForce confirms the optima of TestPlanTinyInstances by trying all assignments, in code
// of its own: fewest moves into the band, then fewest units; and the best largest load by number of moves.
func TestTinyInstancesByBruteForce(t *testing.T) {
	type optimum struct {
		moves int
		units int64
		best  []int64 // best largest load with 0, 1, 2 … moves
	}
	brute := func(c balance.Cluster, inBand func(loads []int64) bool) optimum {
		n := len(c.Brokers)
		o := optimum{moves: math.MaxInt, units: math.MaxInt64}
		for range len(c.Partitions) + 1 {
			o.best = append(o.best, math.MaxInt64)
		}
		loads := make([]int64, n)
		var try func(i, moves int, units int64)
		try = func(i, moves int, units int64) {
			if i == len(c.Partitions) {
				top := int64(0)
				for _, x := range loads {
					top = max(top, x)
				}
				for k := moves; k < len(o.best); k++ {
					o.best[k] = min(o.best[k], top)
				}
				if inBand(loads) && (moves < o.moves || moves == o.moves && units < o.units) {
					o.moves, o.units = moves, units
				}
				return
			}
			p := c.Partitions[i]
			x := p.Replicas[0].Load[balance.Disk]
			for b := range n {
				loads[b] += x
				if balance.BrokerID(b+1) == p.Replicas[0].Broker {
					try(i+1, moves, units)
				} else {
					try(i+1, moves+1, units+x)
				}
				loads[b] -= x
			}
		}
		try(0, 0, 0)
		return o
	}
	band := func(mean float64) func([]int64) bool {
		return func(loads []int64) bool {
			for _, x := range loads {
				if float64(x) > 1.09*mean || float64(x) < .91*mean {
					return false
				}
			}
			return true
		}
	}
	i1 := brute(single([]int64{8, 7, 6, 5, 4}, []int64{3, 3}, []int64{2, 1}), band(13))
	if i1.moves != 3 || i1.units != 16 || !reflect.DeepEqual(i1.best[:4], []int64{30, 22, 15, 13}) {
		t.Errorf("I1: %+v", i1)
	}
	if i2 := brute(single([]int64{8, 4}, []int64{6, 2}), band(10)); i2.moves != 2 || i2.units != 6 {
		t.Errorf("I2: %+v", i2)
	}
	i3 := brute(single([]int64{10, 9, 8, 7}, []int64{6, 5}, []int64{4, 3}, nil), band(13))
	if i3.moves != 5 || i3.units != 32 || !reflect.DeepEqual(i3.best[:6], []int64{34, 24, 16, 15, 14, 13}) {
		t.Errorf("I3: %+v", i3)
	}
	i4 := brute(single([]int64{9, 1, 1, 1}, []int64{4, 4, 4}, nil), band(8))
	if i4.moves != math.MaxInt || i4.best[2] != 9 || i4.best[1] == 9 {
		t.Errorf("I4: %+v", i4)
	}
	if i5 := brute(single([]int64{20, 1}, []int64{2, 2}, []int64{3, 2}), band(10)); i5.moves != math.MaxInt {
		t.Errorf("I5: %+v", i5)
	}
}

// TestExactAgainstBruteForce: tiny models are solved with the fewest moves, then the fewest units, of all ways into
// the band, where there is one.
func TestExactAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lists := make([][]int64, rapid.IntRange(2, 3).Draw(t, "brokers"))
		var sum int64
		for range rapid.IntRange(1, 7).Draw(t, "replicas") {
			b := rapid.IntRange(0, len(lists)-1).Draw(t, "b")
			x := rapid.Int64Range(1, 20).Draw(t, "x")
			lists[b] = append(lists[b], x)
			sum += x
		}
		c := single(lists...)
		plan := mustPlan(t, onlyDisk(), c, nil, epoch)
		if len(plan.Triggers) == 0 {
			return
		}
		mean := float64(sum) / float64(len(lists))
		for _, l := range lists {
			for _, x := range l {
				if float64(x) > 1.09*mean {
					return // a replica above the band: another objective
				}
			}
		}
		// The fewest moves, then units, by trying all.
		bestMoves, bestUnits := math.MaxInt, int64(math.MaxInt64)
		loads := make([]int64, len(lists))
		var try func(i, moves int, units int64)
		try = func(i, moves int, units int64) {
			if i == len(c.Partitions) {
				for _, x := range loads {
					if float64(x) > 1.09*mean || float64(x) < .91*mean {
						return
					}
				}
				if moves < bestMoves || moves == bestMoves && units < bestUnits {
					bestMoves, bestUnits = moves, units
				}
				return
			}
			p := c.Partitions[i]
			x := p.Replicas[0].Load[balance.Disk]
			for b := range loads {
				loads[b] += x
				if balance.BrokerID(b+1) == p.Replicas[0].Broker {
					try(i+1, moves, units)
				} else {
					try(i+1, moves+1, units+x)
				}
				loads[b] -= x
			}
		}
		try(0, 0, 0)
		if bestMoves <= 6 && (plan.ReplicaMoves != bestMoves || plan.Bytes != bestUnits) {
			t.Errorf("%v: got %d moves of %d, best %d of %d", lists, plan.ReplicaMoves, plan.Bytes, bestMoves, bestUnits)
		}
	})
}
