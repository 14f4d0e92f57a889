package balance_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/cordwood-io/cordwood/balance"
)

func ExamplePool() {
	requests := balance.Pool{Servers: 2}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 6000 { // one request every 10 ms, each waits 5 ms and takes 8 ms
		t := requests.Enqueue(now)
		t.Start(now.Add(5 * time.Millisecond))
		t.Done(now.Add(13 * time.Millisecond))
		now = now.Add(10 * time.Millisecond)
	}
	st := requests.Stats(now)
	fmt.Println("wait", st.Wait.Round(time.Millisecond), "service", st.Service.Round(time.Millisecond))
	fmt.Printf("utilisation %.2f\n", st.Load.Utilization)
	// Output:
	// wait 5ms service 8ms
	// utilisation 0.40
}

func ExamplePlanner() {
	disk := func(gb int64) balance.Loads { return balance.Loads{balance.Disk: gb << 30} }
	var c balance.Cluster
	for b := range balance.BrokerID(3) {
		c.Brokers = append(c.Brokers, balance.Broker{ID: b, Zone: "a"})
	}
	for i, gb := range []int64{6, 6, 5, 5, 4, 4} {
		c.Partitions = append(c.Partitions, balance.Partition{ID: balance.PartitionID{Index: int32(i)}, Leader: 0,
			Replicas: []balance.Replica{{Broker: 0, Load: disk(gb)}}})
	}
	planner, err := balance.NewPlanner(balance.PlanOptions{Goals: []balance.SoftGoal{{Goal: balance.GoalDisk, Trigger: true}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := planner.Plan(c, nil, time.Now())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range plan.Moves {
		fmt.Printf("partition %d from broker %d to %d, %d GiB\n", m.Partition.Index, m.From, m.To, m.Bytes>>30)
	}
	if err := plan.Explain(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// partition 0 from broker 0 to 1, 6 GiB
	// partition 1 from broker 0 to 2, 6 GiB
	// partition 4 from broker 0 to 1, 4 GiB
	// partition 5 from broker 0 to 2, 4 GiB
	// round because of fill on broker 1: 0, allowed 0.91
	// round because of fill on broker 2: 0, allowed 0.91
	// round because of disk on broker 0: 3, allowed 1.2
	// 4 replica moves of 21474836480 bytes, 0 leadership moves
	// evacuate                 0 -> 0        met
	// cell                     0 -> 0        met
	// zones                    0 -> 0        met
	// replica capacity         0 -> 0        met
	// disk capacity            0 -> 0        met
	// ingress capacity         0 -> 0        met
	// egress capacity          0 -> 0        met
	// work capacity            0 -> 0        met
	// disk                     3 -> 1        met
}

func ExamplePlacement() {
	cells := []balance.CellState{{ID: 1, Load: .3}, {ID: 2, Load: .6}, {ID: 3, Load: .79}}
	var p balance.Placement
	count := map[balance.CellID]int{}
	for i := range 900 {
		id, err := p.Place(rand.New(rand.NewPCG(1, uint64(i))), cells, "tenant", 0, time.Now())
		if err != nil {
			fmt.Println(err)
			return
		}
		count[id]++
	}
	fmt.Println("the fullest cell is never the better of two:", count[3] == 0, "- the emptiest gets most:", count[1] > count[2])
	// Output:
	// the fullest cell is never the better of two: true - the emptiest gets most: true
}

func ExampleMonitor() {
	m := balance.NewMonitor(balance.HealthOptions{})
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for round := range 12 {
		var seen []balance.Observation
		for b := range balance.BrokerID(6) {
			o := balance.Observation{Broker: b, Zone: string(rune('a' + b%3)), Registered: true, Outside: true, Samples: 100, Load: .3, Leads: 40}
			o.Signals[balance.FlushTime] = 4 * time.Millisecond
			if b == 4 && round > 3 {
				o.Signals[balance.FlushTime] = 40 * time.Millisecond
			}
			seen = append(seen, o)
		}
		for _, d := range m.Round(seen, start.Add(time.Duration(round)*10*time.Second)) {
			fmt.Printf("round %d: broker %d shall %v: %v\n", round, d.Broker, d.Action, d.Ailment)
		}
	}
	// Output:
	// round 5: broker 4 shall leave ISR: slow
}

// The defaults of the planner.
func ExamplePlanOptions() {
	fmt.Println("trigger above", balance.DefaultHigh, "of the mean for", balance.DefaultChecks, "checks, aim at", balance.DefaultTarget)
	fmt.Println("cool-down", balance.DefaultCoolDown, "- reports older than", balance.DefaultMaxReportAge, "are refused")
	for _, g := range balance.DefaultGoals() {
		fmt.Print(g.Goal, " ", g.Trigger, "; ")
	}
	// Output:
	// trigger above 1.2 of the mean for 3 checks, aim at 1.09
	// cool-down 15m0s - reports older than 2m0s are refused
	// disk true; ingress true; egress true; work true; replicas false; leaders false;
}
