package balance_test

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

// TestCase holds the cases of the reference against the package; the list is shared with quota.
func TestCase(t *testing.T) {
	cases := map[string]func(t *testing.T){
		"CC-1086": func(t *testing.T) {
			// A budget of steps bounds the work on any machine, and what was found until then is a plan.
			c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 30, Zones: 3, Partitions: 10_000, Replication: 3, Alpha: 1.5, Cap: 100, Skew: 2, Seed: 1})
			for _, work := range []int64{1, 100_000, 300_000} {
				a := mustPlan(t, balance.PlanOptions{Work: work}, c, nil, epoch)
				if b := mustPlan(t, balance.PlanOptions{Work: work}, c, nil, epoch); !reflect.DeepEqual(a, b) {
					t.Errorf("work %d: two plans differ", work)
				}
				apply(t, c, a.Moves)
			}
		},
		"CC-451": func(t *testing.T) {
			// A violation that nothing can be done about is planned less and less often, and reported once a plan.
			c := single([]int64{6, 6, 6}, []int64{6}, []int64{6})
			for i := range c.Partitions {
				c.Partitions[i].Pinned = true
			}
			var l balance.Ledger
			rounds := []int{}
			for s := range 200 {
				plan := mustPlan(t, onlyDisk(), c, &l, epoch.Add(time.Duration(s)*30*time.Second))
				if len(plan.Triggers) > 0 {
					rounds = append(rounds, s)
					seen := map[string]bool{}
					for _, u := range plan.Unfixable {
						if k := fmt.Sprint(u.Goal, u.Broker, u.Partition); seen[k] {
							t.Errorf("reported twice: %v", u)
						} else {
							seen[k] = true
						}
					}
				}
			}
			if len(rounds) < 3 || len(rounds) > 8 {
				t.Errorf("rounds at %v", rounds)
			}
			// When it can be done something about, it is.
			for i := range c.Partitions {
				c.Partitions[i].Pinned = false
			}
			moved := false
			for s := 200; s < 400 && !moved; s++ {
				moved = len(mustPlan(t, onlyDisk(), c, &l, epoch.Add(time.Duration(s)*30*time.Second)).Moves) > 0
			}
			if !moved {
				t.Error("never acts again")
			}
			// After it has been away it acts as a new one does.
			var again balance.Ledger
			for s := range 200 {
				for i := range c.Partitions {
					c.Partitions[i].Pinned = s < 190
				}
				seen := c
				if s == 190 {
					seen = single([]int64{6}, []int64{6}, []int64{6})
				}
				plan := mustPlan(t, onlyDisk(), seen, &again, epoch.Add(time.Duration(s)*30*time.Second))
				if len(plan.Moves) > 0 != (s >= 190+balance.DefaultChecks) {
					t.Errorf("round %d, after an even one in round 190: %v", s, plan.Moves)
				}
			}
		},
		"CC-906": func(t *testing.T) {
			for _, joining := range []bool{false, true} {
				c := spread(7)
				for i := range 3 {
					b := balance.Broker{ID: balance.BrokerID(10 + i), Zone: string(rune('a' + i)), MaxReplicas: 1 << 20}
					if joining {
						b.State = balance.Joining
					}
					c.Brokers = append(c.Brokers, b)
				}
				plan := mustPlan(t, balance.PlanOptions{}, c, &balance.Ledger{}, epoch) // at the first check
				if !slices.ContainsFunc(plan.Triggers, func(t balance.Trigger) bool { return t.Goal == balance.GoalFill }) {
					t.Errorf("joining %v: triggers %v", joining, plan.Triggers)
				}
				for _, m := range plan.Moves {
					if m.To < 10 && m.Kind == balance.MoveReplica {
						t.Fatalf("an old broker is filled: %v", m)
					}
				}
				after := apply(t, c, plan.Moves)
				for i := range 3 {
					if n, _ := holds(after, balance.BrokerID(10+i)); n < 50 {
						t.Errorf("joining %v: new broker %d holds %d replicas", joining, i, n)
					}
				}
				if x := balancetest.Imbalance(after, balance.Disk); x > 1.1 {
					t.Errorf("joining %v: ends at %.3f", joining, x)
				}
			}
		},
		"CC-150": func(t *testing.T) {
			p := balance.NewPace(balance.PaceOptions{MaxBytesPerSecond: 1 << 30})
			for range 30 {
				p.Observe(false)
			}
			if p.Moves() != balance.DefaultMaxMoves || p.BytesPerSecond() != 1<<30 {
				t.Errorf("calm: %d moves, %d bytes a second", p.Moves(), p.BytesPerSecond())
			}
			for range 30 {
				p.Observe(true)
			}
			if p.Moves() != 1 || p.BytesPerSecond() != 1<<30/64 {
				t.Errorf("under stress: %d moves, %d bytes a second", p.Moves(), p.BytesPerSecond())
			}
			if n := balance.NewPace(balance.PaceOptions{}).BytesPerSecond(); n != 0 {
				t.Errorf("without a limit: %d", n)
			}
		},
		"CC-1511": func(t *testing.T) {
			var l balance.Ledger
			a := balance.Move{Kind: balance.MoveReplica, Partition: balance.PartitionID{Index: 1}, From: 1, To: 2}
			b := balance.Move{Kind: balance.MoveReplica, Partition: balance.PartitionID{Index: 2}, From: 1, To: 3}
			l.Begin(a)
			l.Begin(b)
			l.Begin(balance.Move{Kind: balance.MoveLeadership, Partition: balance.PartitionID{Index: 3}, From: 1, To: 3})
			l.End(a, epoch, true) // the other one still runs: its limit stays
			if got := l.Moving(); !reflect.DeepEqual(got, []balance.MovingReplica{{Partition: b.Partition, From: 1, To: 3}}) {
				t.Errorf("got %v", got)
			}
			l.End(b, epoch, false)
			if got := l.Moving(); len(got) != 0 {
				t.Errorf("left behind: %v", got)
			}
			for _, n := range []int{-1, 0, 3, 10, 1000} {
				if d := balance.RetryDelay(n); d < time.Second || d > time.Minute {
					t.Errorf("retry %d waits %v", n, d)
				}
			}
		},
		"CC-2274": func(t *testing.T) {
			// The broker says nothing at all: what others see is enough to demote it, and its leaderships go.
			m := balance.NewMonitor(balance.HealthOptions{})
			c := spread(8)
			decided := false
			for s := range 30 {
				var obs []balance.Observation
				for i := range 6 {
					obs = append(obs, balance.Observation{Broker: balance.BrokerID(i), Zone: c.Brokers[i].Zone, Registered: true, Outside: i != 3, Leads: 100, Load: .3})
				}
				for _, d := range m.Round(obs, epoch.Add(time.Duration(s)*10*time.Second)) {
					if d.Broker == 3 && d.Action == balance.Demote && d.Suppressed == "" {
						decided = true
						c.Brokers[3].DemotedUntil = d.Until
					}
				}
			}
			c.Brokers[3].Reported = epoch.Add(-time.Hour)
			after := apply(t, c, mustPlan(t, balance.PlanOptions{}, c, nil, epoch).Moves)
			if _, leads := holds(after, 3); !decided || leads != 0 {
				t.Errorf("decided %v, still leads %d", decided, leads)
			}
		},
		"CC-480": func(t *testing.T) {
			// While the flag lasts, no plan gives leadership back; when it ends, balancing may.
			c := spread(9)
			c.Brokers[1].DemotedUntil = epoch.Add(time.Hour)
			c = apply(t, c, mustPlan(t, balance.PlanOptions{}, c, nil, epoch).Moves)
			for _, m := range mustPlan(t, balance.PlanOptions{Force: true}, c, nil, epoch.Add(59*time.Minute)).Moves {
				if m.To == 1 {
					t.Errorf("given to the demoted broker: %v", m)
				}
			}
			back := 0
			for _, m := range mustPlan(t, balance.PlanOptions{Force: true}, c, nil, epoch.Add(61*time.Minute)).Moves {
				if m.To == 1 && m.Kind == balance.MoveLeadership {
					back++
				}
			}
			if back == 0 {
				t.Error("nothing comes back after the flag ended")
			}
		},
		"CC-466": func(t *testing.T) {
			// Copies of one partition differ in size; the plan's bytes are those of the copy that moves, and sums agree exactly.
			c := spread(10)
			for i := range c.Partitions {
				for j := range c.Partitions[i].Replicas {
					c.Partitions[i].Replicas[j].Load[balance.Disk] = 1<<40 + int64(i*7+j)
				}
			}
			c.Brokers[0].State = balance.Draining
			plan := mustPlan(t, balance.PlanOptions{}, c, nil, epoch)
			var want int64
			for _, m := range plan.Moves {
				if m.Kind == balance.MoveReplica {
					for _, p := range c.Partitions {
						for _, r := range p.Replicas {
							if p.ID == m.Partition && r.Broker == m.From {
								want += r.Load[balance.Disk]
							}
						}
					}
				}
			}
			if plan.Bytes != want || want == 0 {
				t.Errorf("bytes %d, copies add up to %d", plan.Bytes, want)
			}
		},
		"CC-1962": func(t *testing.T) {
			c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 12, Zones: 3, Partitions: 2000, Replication: 3, Alpha: 1.5, Cap: 50, Skew: 2, Seed: 2})
			o := balance.PlanOptions{Goals: []balance.SoftGoal{{Goal: balance.GoalDisk, Trigger: true}}, MaxReplicaMoves: 20}
			a := mustPlan(t, o, c, nil, epoch)
			for range 5 {
				if b := mustPlan(t, o, c, nil, epoch); !reflect.DeepEqual(a, b) {
					t.Fatal("two plans differ")
				}
			}
			if a.ReplicaMoves == 0 || a.ReplicaMoves > 20 || balancetest.Imbalance(apply(t, c, a.Moves), balance.Disk) >= balancetest.Imbalance(c, balance.Disk) {
				t.Errorf("%d moves", a.ReplicaMoves)
			}
		},
		"REDPANDA-29241": TestLedger,
		"REDPANDA-4172": func(t *testing.T) {
			// 72 brokers: the steps are bounded, and one objective makes brokers even whatever lies inside them.
			c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 72, Zones: 3, Partitions: 20_000, Replication: 3, Alpha: 1.5, Cap: 100, Skew: 1, Seed: 3})
			plan := mustPlan(t, balance.PlanOptions{Work: 20_000_000}, c, nil, epoch)
			if plan.Exhausted == "work" {
				t.Error("twenty million steps are not enough")
			}
			if x := balancetest.Imbalance(apply(t, c, plan.Moves), balance.Disk); x > 1.1 {
				t.Errorf("ends at %.3f", x)
			}
		},
		"COCKROACH-104292": TestStationary,
		"ENVOY-3263": func(t *testing.T) {
			// Not one of two on a whim, not nearly all of many, and no alarm where nothing differs.
			slow := func(n, bad int) (orders int) {
				m := balance.NewMonitor(balance.HealthOptions{})
				for s := range 60 {
					var obs []balance.Observation
					for i := range n {
						o := balance.Observation{Broker: balance.BrokerID(i), Zone: string(rune('a' + i%3)), Registered: true, Outside: true, Samples: 100, Load: .2, Leads: 1}
						o.Signals[balance.ServiceTime] = time.Millisecond
						if i < bad {
							o.Signals[balance.ServiceTime] = 20 * time.Millisecond
						}
						obs = append(obs, o)
					}
					for _, d := range m.Round(obs, epoch.Add(time.Duration(s)*10*time.Second)) {
						if d.Action == balance.LeaveISR && d.Suppressed == "" && !d.Renewal {
							orders++
						}
					}
				}
				return orders
			}
			for _, test := range [][3]int{{2, 1, 0}, {3, 1, 1}, {5, 1, 1}, {10, 4, 1}, {30, 14, 3}, {20, 0, 0}} {
				if got := slow(test[0], test[1]); got > test[2] || got == 0 && test[2] > 0 && test[1] == 1 {
					t.Errorf("%d of %d slow: %d taken out, allowed %d", test[1], test[0], got, test[2])
				}
			}
		},
	}
	f, err := os.Open("../quota/testdata/cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	listed := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), "|")
		if len(fields) < 4 || strings.HasPrefix(lines.Text(), "#") || strings.TrimSpace(fields[1]) != "balance" {
			continue
		}
		id := strings.TrimSpace(fields[0])
		listed[id] = true
		if cases[id] == nil {
			t.Errorf("case %s has no test: %s", id, fields[3])
			continue
		}
		t.Run(id, func(t *testing.T) {
			t.Log(strings.TrimSpace(fields[3]))
			cases[id](t)
		})
	}
	for id := range cases {
		if !listed[id] {
			t.Errorf("case %s is not in the list", id)
		}
	}
}
