package balance_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

// spread returns a balanced cluster of 6 brokers in 3 zones with 3 copies of everything.
func spread(seed uint64) balance.Cluster {
	c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 6, Zones: 3, Partitions: 600, Replication: 3, Alpha: 3, Cap: 3, Seed: seed})
	p, err := balance.NewPlanner(balance.PlanOptions{Force: true})
	if err != nil {
		panic(err)
	}
	plan, err := p.Plan(c, nil, epoch)
	if err != nil {
		panic(err)
	}
	if err := c.Apply(plan.Moves); err != nil {
		panic(err)
	}
	return c
}

func holds(c balance.Cluster, id balance.BrokerID) (replicas, leads int) {
	for _, p := range c.Partitions {
		for _, r := range p.Replicas {
			if r.Broker == id {
				replicas++
			}
		}
		if p.Leader == id {
			leads++
		}
	}
	return replicas, leads
}

func TestDrainAndRemove(t *testing.T) {
	for _, state := range []balance.BrokerState{balance.Draining, balance.Dead} {
		c := spread(1)
		c.Brokers[2].State = state
		plan := mustPlan(t, balance.PlanOptions{}, c, nil, epoch)
		after := apply(t, c, plan.Moves)
		if n, l := holds(after, 2); n != 0 || l != 0 {
			t.Errorf("%v: %d replicas and %d leaderships stay", state, n, l)
		}
		if len(plan.Unfixable) != 0 {
			t.Errorf("%v: %v", state, plan.Unfixable)
		}
		// Leadership leaves before data does.
		firstData := len(plan.Moves)
		for i, m := range plan.Moves {
			if m.Kind == balance.MoveReplica {
				firstData = min(firstData, i)
			} else if m.From == 2 && i > firstData {
				t.Errorf("%v: leadership leaves after data: %v", state, m)
			}
		}
		again := mustPlan(t, balance.PlanOptions{}, after, nil, epoch)
		if len(again.Moves) != 0 || state == balance.Draining && !reflect.DeepEqual(again.Removable, []balance.BrokerID{2}) {
			t.Errorf("%v: again %v, removable %v", state, again.Moves, again.Removable)
		}
	}
}

func TestDemotionMovesNoData(t *testing.T) {
	c := spread(2)
	c.Brokers[1].DemotedUntil = epoch.Add(time.Hour)
	c.Partitions[7].Pinned = true
	c.Partitions[7].Leader = c.Partitions[7].Replicas[0].Broker
	probed := slices.IndexFunc(c.Partitions, func(p balance.Partition) bool { return p.Leader == 1 })
	c.Partitions[probed].Pinned = true // a probe measures this very broker
	var ledger balance.Ledger
	plan := mustPlan(t, balance.PlanOptions{}, c, &ledger, epoch)
	if plan.Bytes != 0 || plan.ReplicaMoves != 0 || plan.LeaderMoves == 0 {
		t.Fatalf("got %d bytes, %d replica moves, %d leadership moves", plan.Bytes, plan.ReplicaMoves, plan.LeaderMoves)
	}
	after := apply(t, c, plan.Moves)
	for _, p := range after.Partitions {
		if p.Leader == 1 && !p.Pinned {
			t.Errorf("%v is still led by the demoted broker", p.ID)
		}
	}
	if l := after.Partitions[probed].Leader; l != 1 {
		t.Errorf("the pinned partition is led by %d", l)
	}
	// tikv/pd #3653: the loads that the demotion shifted set off no wave, neither at once nor later.
	for _, m := range plan.Moves {
		ledger.LeaderChanged(m.Partition, epoch)
	}
	for s := range 60 {
		if plan := mustPlan(t, balance.PlanOptions{}, after, &ledger, epoch.Add(time.Duration(s)*30*time.Second)); len(plan.Moves) != 0 {
			t.Fatalf("%d s later: %v", s*30, plan.Moves)
		}
	}
	// Nothing is given to the demoted broker, however empty it is.
	for i := range after.Partitions {
		after.Partitions[i].Leadership[balance.Work] *= int64(1 + i%9)
	}
	for _, m := range mustPlan(t, balance.PlanOptions{Force: true}, after, nil, epoch).Moves {
		if m.To == 1 {
			t.Errorf("the demoted broker receives %v", m)
		}
	}
}

// TestDemotionMovesNoDataForEffort: nor does it when the leaderships that it shifts press others out of their bands.
func TestDemotionMovesNoDataForEffort(t *testing.T) {
	for seed := range uint64(12) {
		c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 12, Zones: 3, Partitions: 600, Replication: 3, Alpha: 1.5, Cap: 50, Seed: seed})
		c = apply(t, c, mustPlan(t, balance.PlanOptions{Force: true}, c, nil, epoch).Moves)
		sick := balance.BrokerID(seed)
		c.Brokers[sick].DemotedUntil = epoch.Add(time.Hour)
		plan := mustPlan(t, balance.PlanOptions{}, c, nil, epoch)
		if plan.Bytes != 0 || plan.ReplicaMoves != 0 || plan.LeaderMoves == 0 {
			t.Errorf("seed %d: %d bytes, %d replica moves, %d leadership moves", seed, plan.Bytes, plan.ReplicaMoves, plan.LeaderMoves)
		}
		c = apply(t, c, plan.Moves)
		for _, p := range c.Partitions {
			if p.Leader == sick {
				t.Errorf("seed %d: %v is still led by the demoted broker", seed, p.ID)
			}
		}
		if again := mustPlan(t, balance.PlanOptions{}, c, nil, epoch).Moves; len(again) != 0 {
			t.Errorf("seed %d: again %v", seed, again)
		}
	}
}

// TestUnplaceableDoesNotBlock: one partition that fits nowhere is named, the others are moved.
func TestUnplaceableDoesNotBlock(t *testing.T) {
	c := spread(3)
	for i := range c.Brokers {
		c.Brokers[i].Capacity[balance.Disk] = 1 << 40
	}
	c.Brokers[0].State = balance.Draining
	huge := -1
	for i := range c.Partitions {
		for j := range c.Partitions[i].Replicas {
			if c.Partitions[i].Replicas[j].Broker == 0 && huge < 0 {
				c.Partitions[i].Replicas[j].Load[balance.Disk] = 1 << 41
				huge = i
			}
		}
	}
	plan := mustPlan(t, balance.PlanOptions{}, c, nil, epoch)
	if n, _ := holds(apply(t, c, plan.Moves), 0); n != 1 {
		t.Errorf("%d replicas stay on the draining broker, want the huge one", n)
	}
	named := 0
	for _, u := range plan.Unfixable {
		if u.Goal == balance.GoalEvacuate && u.Partition == c.Partitions[huge].ID {
			named++
		}
	}
	if named != 1 || plan.Unfixable[0].Partition != c.Partitions[huge].ID { // once, in however many passes
		t.Errorf("unfixable: %v", plan.Unfixable)
	}
}

// TestHeavyReplicaStays: a replica that is too heavy for any broker in one resource is not moved for another one, though that would help: the
// ranges of the first would move with it.
func TestHeavyReplicaStays(t *testing.T) {
	c := single([]int64{100, 1}, []int64{10}, []int64{10}, []int64{10})
	for i, ingress := range []int64{5, 5, 0, 5, 5} {
		c.Partitions[i].Replicas[0].Load[balance.Ingress] = ingress
	}
	c.Partitions[1].Pinned = true
	o := balance.PlanOptions{MinGain: -1, Goals: []balance.SoftGoal{{Goal: balance.GoalIngress, Trigger: true}, {Goal: balance.GoalDisk}}}
	if plan := mustPlan(t, balance.Heuristic(o), c, nil, epoch); len(plan.Triggers) == 0 || len(plan.Moves) != 0 {
		t.Errorf("triggers %v, moves %v", plan.Triggers, plan.Moves)
	}
	c.Partitions[0].Replicas[0].Load[balance.Disk] = 10
	if plan := mustPlan(t, balance.Heuristic(o), c, nil, epoch); len(plan.Moves) == 0 || plan.Moves[0].Partition != c.Partitions[0].ID {
		t.Errorf("a light one: moves %v", plan.Moves)
	}
}

// TestPinnedStays: not even a broker above its capacity gives a pinned partition away.
func TestPinnedStays(t *testing.T) {
	c := single([]int64{45, 45}, nil)
	for i := range c.Brokers {
		c.Brokers[i].Capacity[balance.Disk] = 100
		c.Partitions[i].Pinned = true
	}
	if plan := mustPlan(t, onlyDisk(), c, nil, epoch); len(plan.Moves) != 0 || len(plan.Unfixable) == 0 {
		t.Errorf("moves %v, unfixable %v", plan.Moves, plan.Unfixable)
	}
	c.Partitions[1].Pinned = false
	if plan := mustPlan(t, onlyDisk(), c, nil, epoch); len(plan.Moves) != 1 || plan.Moves[0].Partition != c.Partitions[1].ID {
		t.Errorf("one is not pinned: moves %v", plan.Moves)
	}
}

// TestDemotionPressesOn: what a demotion presses out of the range of a goal that triggers, and no leadership can make up for, is mended
// in the same plan after all.
func TestDemotionPressesOn(t *testing.T) {
	ones := []int64{1, 1, 1, 1, 1, 1}
	c := single([]int64{1}, ones, ones, ones)
	for i := range c.Partitions {
		c.Partitions[i].Leadership[balance.Egress] = 10
	}
	c.Partitions[0].Leadership[balance.Egress] = 100
	c.Partitions[0].Replicas = append(c.Partitions[0].Replicas, balance.Replica{Broker: 2, Load: balance.Loads{balance.Disk: 1}})
	c.Brokers[0].DemotedUntil = epoch.Add(time.Hour)
	o := balance.PlanOptions{MinGain: -1, Goals: []balance.SoftGoal{{Goal: balance.GoalEgress, Trigger: true}}}
	plan := mustPlan(t, o, c, nil, epoch)
	if len(plan.Triggers) != 1 || plan.LeaderMoves != 1 || plan.ReplicaMoves == 0 {
		t.Errorf("triggers %v, moves %v", plan.Triggers, plan.Moves)
	}
	if again := mustPlan(t, o, apply(t, c, plan.Moves), nil, epoch).Moves; len(again) != 0 {
		t.Errorf("again %v", again)
	}
}

// TestZones: two replicas of a partition in one zone of three.
func TestZones(t *testing.T) {
	c := spread(5)
	p := &c.Partitions[3]
	free := slices.IndexFunc(c.Brokers, func(b balance.Broker) bool {
		return !slices.ContainsFunc(p.Replicas, func(r balance.Replica) bool { return r.Broker == b.ID })
	})
	other := slices.IndexFunc(p.Replicas, func(r balance.Replica) bool {
		return r.Broker != p.Leader && c.Brokers[r.Broker].Zone != c.Brokers[free].Zone
	})
	p.Replicas[other].Broker = c.Brokers[free].ID
	plan := mustPlan(t, balance.PlanOptions{}, c, nil, epoch)
	if len(plan.Triggers) != 1 || plan.Triggers[0].Goal != balance.GoalZones {
		t.Errorf("triggers %v", plan.Triggers)
	}
	zones := map[string]bool{}
	for _, r := range apply(t, c, plan.Moves).Partitions[3].Replicas {
		zones[c.Brokers[r.Broker].Zone] = true
	}
	if len(zones) != 3 {
		t.Errorf("replicas in zones %v after %v", zones, plan.Moves)
	}
}

// TestReserve: a broker that a replica is leaving has its bytes until the move is over, and no room for others.
func TestReserve(t *testing.T) {
	c := single([]int64{45}, nil, []int64{50})
	for i := range c.Brokers {
		c.Brokers[i].Capacity[balance.Disk] = 100
	}
	c.Brokers[2].State = balance.Draining
	p := c.Partitions[0]
	m := balance.Move{Kind: balance.MoveReplica, Partition: p.ID, From: c.Brokers[0].ID, To: c.Brokers[1].ID, Load: p.Replicas[0].Load, Bytes: 45}
	var l balance.Ledger
	l.Begin(m)
	if moves := mustPlan(t, onlyDisk(), c, &l, epoch).Moves; len(moves) != 0 {
		t.Errorf("while the move is in flight: %v", moves)
	}
	// Nor does the broker that it goes to give it away, though it is counted with too much meanwhile.
	tight := c.Clone()
	tight.Brokers[2].State = balance.Active
	tight.Partitions = tight.Partitions[:1]
	for _, m := range mustPlan(t, onlyDisk(), tight, &l, epoch).Moves {
		t.Errorf("in flight, and moved again: %v", m)
	}
	l.End(m, epoch, true)
	c = apply(t, c, []balance.Move{m})
	for i := range c.Brokers {
		c.Brokers[i].Reported = epoch.Add(time.Second)
	}
	if moves := mustPlan(t, onlyDisk(), c, &l, epoch.Add(time.Minute)).Moves; len(moves) != 1 || moves[0].To != m.From {
		t.Errorf("after it: %v", moves)
	}
}

// TestTinyCells: models that are solved by trying all keep to their cells, too.
func TestTinyCells(t *testing.T) {
	c := single([]int64{8, 4, 4}, []int64{2}, []int64{1}, []int64{1})
	for i := range c.Brokers {
		c.Brokers[i].Cell = balance.CellID(1 + i/2)
	}
	for i := range c.Partitions {
		c.Partitions[i].Cell = 1
		if i >= 4 {
			c.Partitions[i].Cell = 2
		}
	}
	plan := mustPlan(t, onlyDisk(), c, nil, epoch)
	for _, m := range plan.Moves {
		if m.To > 2 {
			t.Errorf("leaves its cell: %v", m)
		}
	}
	if len(plan.Moves) == 0 {
		t.Error("nothing moves")
	}
}
