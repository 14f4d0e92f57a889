package balance_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

func TestPlanBudgets(t *testing.T) {
	c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 12, Zones: 3, Partitions: 3000, Replication: 3, Alpha: 1.5, Cap: 50, Skew: 2, Seed: 4})
	free := mustPlan(t, balance.PlanOptions{}, c, nil, epoch)
	for _, test := range []struct {
		o    balance.PlanOptions
		want string
	}{
		{balance.PlanOptions{MaxReplicaMoves: 5}, "moves"},
		{balance.PlanOptions{MaxLeaderMoves: 1, Goals: []balance.SoftGoal{{Goal: balance.GoalEgress, Trigger: true}}}, "leader moves"},
		{balance.PlanOptions{MaxBytes: free.Bytes / 10}, "bytes"},
		{balance.PlanOptions{Work: 1}, "work"},
		{balance.PlanOptions{Work: 1, Goals: []balance.SoftGoal{{Goal: balance.GoalDisk, Trigger: true}}}, "work"}, // no leadership helps there
	} {
		plan := mustPlan(t, test.o, c, nil, epoch)
		if plan.Exhausted != test.want || test.o.MaxReplicaMoves > 0 && plan.ReplicaMoves > test.o.MaxReplicaMoves ||
			test.o.MaxLeaderMoves > 0 && plan.LeaderMoves > test.o.MaxLeaderMoves || test.o.MaxBytes > 0 && plan.Bytes > test.o.MaxBytes {
			t.Errorf("%+v: ended for %q with %d, %d, %d", test.o, plan.Exhausted, plan.ReplicaMoves, plan.LeaderMoves, plan.Bytes)
		}
	}
}

func TestLedger(t *testing.T) {
	c := single([]int64{10, 10, 10, 10}, []int64{10}, []int64{10, 10}, nil)
	o := onlyDisk()
	o.Checks = 3
	var l balance.Ledger
	// The trigger must be seen three times.
	c.Brokers[3].State = balance.Active
	c.Partitions = append(c.Partitions, balance.Partition{ID: balance.PartitionID{Index: 99}, Leader: 4, Replicas: []balance.Replica{{Broker: 4, Load: balance.Loads{balance.Disk: 3}}}})
	now := epoch
	tick := func() balance.Plan {
		now = now.Add(30 * time.Second)
		return mustPlan(t, o, c, &l, now)
	}
	if a, b := tick(), tick(); len(a.Moves)+len(b.Moves) != 0 {
		t.Fatalf("moves before the third check: %v %v", a.Moves, b.Moves)
	}
	plan := tick()
	if len(plan.Moves) == 0 {
		t.Fatal("no moves at the third check")
	}
	for _, m := range plan.Moves {
		l.Begin(m)
	}
	if l.InFlight() != len(plan.Moves) || len(l.Moving()) != len(plan.Moves) {
		t.Errorf("%d in flight, %d moving, want %d", l.InFlight(), len(l.Moving()), len(plan.Moves))
	}
	// What is in flight is not planned again, not even by force and when it looks worse than before.
	for _, b := range []balance.BrokerID{plan.Moves[0].To, plan.Moves[0].From} {
		worse := c.Clone()
		for i := range worse.Partitions {
			if worse.Partitions[i].ID == plan.Moves[0].Partition {
				worse.Partitions[i].Replicas[0].Load[balance.Disk] = 25
			}
		}
		for i := range worse.Brokers {
			if worse.Brokers[i].ID == b {
				worse.Brokers[i].State = balance.Draining
			}
		}
		for _, m := range mustPlan(t, o, worse, &l, now).Moves {
			if m.Partition == plan.Moves[0].Partition {
				t.Errorf("planned again while in flight: %v", m)
			}
		}
	}
	// redpanda #29241: reports still show the old state while the moves run, and for a while after.
	for range 5 {
		if p := tick(); len(p.Moves) != 0 {
			t.Fatalf("planned on top of moves in flight: %v", p.Moves)
		}
	}
	for i := range c.Brokers {
		c.Brokers[i].Reported = now // measured before the end
	}
	for _, m := range plan.Moves {
		l.End(m, now.Add(time.Second), true)
	}
	if l.InFlight() != 0 || len(l.Moving()) != 0 {
		t.Errorf("%d in flight after the end", l.InFlight())
	}
	for range 3 {
		if p := tick(); len(p.Moves) != 0 {
			t.Fatalf("planned on reports from before the moves: %v", p.Moves)
		}
	}
	c = apply(t, c, plan.Moves)
	for i := range c.Brokers {
		c.Brokers[i].Reported = now.Add(time.Minute)
	}
	now = now.Add(time.Minute)
	if p := tick(); len(p.Moves) != 0 {
		t.Fatalf("fresh reports: %v", p.Moves)
	}
	// A cool-down keeps what moved where it is; hard goals do not wait.
	moved := plan.Moves[0]
	forced := o
	forced.Force = true
	c2 := c.Clone()
	for i := range c2.Partitions {
		if c2.Partitions[i].ID == moved.Partition {
			c2.Partitions[i].Replicas[0].Load[balance.Disk] = 12
		}
	}
	touched := func(at time.Time) bool {
		forced.MaxReportAge = -1
		for _, m := range mustPlan(t, balance.Heuristic(forced), c2, &l, at).Moves {
			if m.Partition == moved.Partition {
				return true
			}
		}
		return false
	}
	if touched(now.Add(10 * time.Minute)) {
		t.Error("moved again inside the cool-down")
	}
	if !touched(now.Add(time.Hour)) {
		t.Error("not moved after the cool-down either: the test shows nothing")
	}
	for i := range c2.Brokers {
		if c2.Brokers[i].ID == moved.To {
			c2.Brokers[i].State = balance.Draining
		}
	}
	left := false
	for _, m := range mustPlan(t, o, c2, &l, now).Moves {
		left = left || m.Partition == moved.Partition
	}
	if !left {
		t.Error("a drain waits for the cool-down")
	}
}

// TestBestEffortBound: a goal that does not trigger makes few moves in a round that little else is done in.
func TestBestEffortBound(t *testing.T) {
	c := single(append(make([]int64, 100), 30, 30), nil)
	o := balance.PlanOptions{MinGain: -1, Goals: []balance.SoftGoal{{Goal: balance.GoalDisk, Trigger: true}, {Goal: balance.GoalReplicas}}}
	plan := mustPlan(t, o, c, nil, epoch)
	if n := plan.ReplicaMoves; n < 2 || n > 17 || plan.Exhausted != "best effort" {
		t.Errorf("%d moves, ended for %q", n, plan.Exhausted)
	}
}

// TestMinGain: what carries much of the bytes and next to nothing of the load is left where it is.
func TestMinGain(t *testing.T) {
	c := single([]int64{1000, 10, 10}, []int64{10}, []int64{10}, []int64{10})
	for i, ingress := range []int64{10, 150, 150, 230, 230, 230} {
		c.Partitions[i].Replicas[0].Load[balance.Ingress] = ingress
		c.Partitions[i].Pinned = i > 0
	}
	for _, gain := range []float64{0, -1} {
		o := balance.PlanOptions{MinGain: gain, Goals: []balance.SoftGoal{{Goal: balance.GoalIngress, Trigger: true}}}
		plan := mustPlan(t, balance.Heuristic(o), c, nil, epoch)
		if len(plan.Triggers) == 0 || len(plan.Moves) > 0 != (gain < 0) {
			t.Errorf("least gain %v: triggers %v, moves %v", gain, plan.Triggers, plan.Moves)
		}
	}
}

// TestPace: one more after each calm round, half under stress, within the bounds.
func TestPace(t *testing.T) {
	p := balance.NewPace(balance.PaceOptions{})
	for calm := range 20 {
		if got, want := p.Moves(), min(1+calm, balance.DefaultMaxMoves); got != want {
			t.Fatalf("%d moves after %d calm rounds, want %d", got, calm, want)
		}
		p.Observe(false)
	}
	for _, want := range []int{6, 3, 1, 1} {
		if p.Observe(true); p.Moves() != want {
			t.Errorf("%d moves under stress, want %d", p.Moves(), want)
		}
	}
}

// TestIdleBelow: what next to nothing is of is not balanced.
func TestIdleBelow(t *testing.T) {
	c := single([]int64{8, 8, 8}, []int64{8}, []int64{8})
	o := onlyDisk()
	for _, below := range []int64{0, 13, 14} { // the mean is 13.3
		o.IdleBelow[balance.Disk] = below
		if plan := mustPlan(t, o, c, nil, epoch); len(plan.Moves) > 0 != (below < 14) {
			t.Errorf("idle below %d: moves %v", below, plan.Moves)
		}
	}
}

// TestTriggerAway: a trigger that was away starts again at zero.
func TestTriggerAway(t *testing.T) {
	uneven, even := single([]int64{10, 10, 10, 10}, []int64{10}), single([]int64{10, 10}, []int64{10, 10})
	o := onlyDisk()
	o.Checks = 3
	var l balance.Ledger
	for i, c := range []balance.Cluster{uneven, uneven, even, uneven, uneven, uneven} {
		if moves := mustPlan(t, o, c, &l, epoch.Add(time.Duration(i)*time.Minute)).Moves; len(moves) > 0 != (i == 5) {
			t.Errorf("plan %d: %v", i, moves)
		}
	}
}

// TestRolledBack: a move that was rolled back is not tried again at once.
func TestRolledBack(t *testing.T) {
	c := single([]int64{20, 10, 10, 10}, []int64{10})
	o := onlyDisk()
	o.Force, o.MaxReportAge, o.Settle = true, -1, -1
	first := mustPlan(t, balance.Heuristic(o), c, nil, epoch).Moves[0]
	var l balance.Ledger
	l.Begin(first)
	l.End(first, epoch, false)
	for i := range c.Brokers {
		c.Brokers[i].Reported = epoch.Add(time.Second)
	}
	tried := func(at time.Time) bool {
		return slices.ContainsFunc(mustPlan(t, balance.Heuristic(o), c, &l, at).Moves, func(m balance.Move) bool { return m.Partition == first.Partition })
	}
	if tried(epoch.Add(balance.DefaultCoolDown - time.Second)) {
		t.Error("tried again inside the cool-down")
	}
	if !tried(epoch.Add(balance.DefaultCoolDown)) {
		t.Error("not tried again after the cool-down either: the test shows nothing")
	}
	// Nor are the loads of a partition believed right after a change of its leader.
	l, o.Settle = balance.Ledger{}, 0
	l.LeaderChanged(first.Partition, epoch)
	if tried(epoch.Add(balance.DefaultSettle - time.Second)) {
		t.Error("moved by loads from before its leader changed")
	}
	if !tried(epoch.Add(balance.DefaultSettle)) {
		t.Error("not moved after that either: the test shows nothing")
	}
}

// TestOnePlanIsEnough: models of which the properties once found that a second plan does what the first one should have.
func TestOnePlanIsEnough(t *testing.T) {
	partition := func(i int32, on map[balance.BrokerID]int64) balance.Partition {
		p := balance.Partition{ID: balance.PartitionID{Index: i}, Leader: balance.NoBroker}
		for b, x := range on {
			p.Replicas = append(p.Replicas, balance.Replica{Broker: b, Load: balance.Loads{balance.Ingress: x}})
		}
		return p
	}
	broker := func(id balance.BrokerID, state balance.BrokerState, ingress int64, replicas int) balance.Broker {
		return balance.Broker{ID: id, Zone: "a", State: state, Capacity: balance.Loads{balance.Ingress: ingress}, MaxReplicas: replicas}
	}
	for _, test := range []struct {
		name string
		c    balance.Cluster
	}{
		// 473 are above the band of every broker and anchor their partition; the swap with broker 2 has to take it.
		{"a swap for capacity takes a replica above the band", balance.Cluster{
			Brokers: []balance.Broker{broker(0, balance.Active, 0, 0), broker(1, balance.Active, 732, 0), broker(2, balance.Active, 502, 0)},
			Partitions: []balance.Partition{
				partition(0, map[balance.BrokerID]int64{2: 473, 0: 0}),
				partition(1, map[balance.BrokerID]int64{1: 119}),
				partition(2, map[balance.BrokerID]int64{1: 158})},
		}},
		{"tiny: what is evacuated goes to the right broker at once", balance.Cluster{
			Brokers:    []balance.Broker{broker(0, balance.Draining, 500, 1), broker(1, balance.Joining, 500, 1), broker(2, balance.Joining, 5556, 1)},
			Partitions: []balance.Partition{partition(0, map[balance.BrokerID]int64{0: 1})},
		}},
		{"tiny: a broker that a hard goal emptied is filled again", balance.Cluster{
			Brokers: []balance.Broker{broker(0, balance.Active, 500, 1), broker(1, balance.Joining, 503, 2)},
			Partitions: []balance.Partition{
				partition(0, map[balance.BrokerID]int64{0: 1}),
				partition(1, map[balance.BrokerID]int64{0: 401})},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan := mustPlan(t, balance.PlanOptions{}, test.c, nil, epoch)
			if len(plan.Moves) == 0 {
				t.Error("nothing moves")
			}
			if again := mustPlan(t, balance.PlanOptions{}, apply(t, test.c, plan.Moves), nil, epoch); len(again.Moves) > 0 {
				t.Errorf("again: %v\nfirst: %v", again.Moves, plan.Moves)
			}
		})
	}
}

// TestStaleReports: a broker with loads that are too old, or from the future, neither gives nor receives for soft
// goals, and does not stop the others or hard goals.
func TestStaleReports(t *testing.T) {
	for _, reported := range []time.Time{epoch.Add(-time.Hour), epoch.Add(time.Hour)} {
		c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 9, Zones: 3, Partitions: 1000, Replication: 3, Alpha: 1.5, Cap: 50, Skew: 2, Seed: 5})
		c.Brokers[4].Reported = reported
		plan := mustPlan(t, balance.PlanOptions{}, c, nil, epoch)
		if !reflect.DeepEqual(plan.Stale, []balance.BrokerID{4}) || len(plan.Moves) == 0 {
			t.Fatalf("stale %v, %d moves", plan.Stale, len(plan.Moves))
		}
		for _, m := range plan.Moves {
			if m.From == 4 || m.To == 4 {
				t.Errorf("planned on a refused report: %v", m)
			}
		}
		c.Brokers[4].State = balance.Draining
		if n, _ := holds(apply(t, c, mustPlan(t, balance.PlanOptions{}, c, nil, epoch).Moves), 4); n != 0 {
			t.Errorf("a draining broker without reports keeps %d replicas", n)
		}
		for i := range c.Brokers {
			c.Brokers[i].Reported, c.Brokers[i].State = reported, balance.Active
		}
		if plan := mustPlan(t, balance.PlanOptions{}, c, nil, epoch); len(plan.Moves) != 0 {
			t.Errorf("all reports refused: %d moves", len(plan.Moves))
		}
	}
}

// TestStationary: loads that are noisy around a balanced state cause no move in an hour, with and without the
// ledger.
func TestStationary(t *testing.T) {
	base := spread(6)
	r := rand.New(rand.NewPCG(6, 6))
	var l balance.Ledger
	for s := range 120 {
		c := base.Clone()
		for i := range c.Partitions {
			f := math.Exp(.05 * r.NormFloat64())
			scale := func(x *balance.Loads) {
				for k := range x {
					x[k] = int64(float64(x[k]) * f)
				}
			}
			scale(&c.Partitions[i].Leadership)
			for j := range c.Partitions[i].Replicas {
				scale(&c.Partitions[i].Replicas[j].Load)
			}
		}
		for name, ledger := range map[string]*balance.Ledger{"with": &l, "without": nil} {
			if plan := mustPlan(t, balance.PlanOptions{}, c, ledger, epoch.Add(time.Duration(s)*30*time.Second)); len(plan.Moves) != 0 {
				t.Fatalf("%s ledger, round %d: %v", name, s, plan.Triggers)
			}
		}
	}
}
