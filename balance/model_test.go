package balance_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/cordwood-io/cordwood/balance"
)

func TestModelErrors(t *testing.T) {
	good := single([]int64{1}, []int64{2})
	for name, spoil := range map[string]func(c *balance.Cluster){
		"broker twice":    func(c *balance.Cluster) { c.Brokers[1].ID = 1 },
		"negative broker": func(c *balance.Cluster) { c.Brokers[1].ID = -5 },
		"capacity":        func(c *balance.Cluster) { c.Brokers[0].Capacity[0] = -1 },
		"state":           func(c *balance.Cluster) { c.Brokers[0].State = 99 },
		"partition twice": func(c *balance.Cluster) { c.Partitions[1].ID = c.Partitions[0].ID },
		"unknown broker":  func(c *balance.Cluster) { c.Partitions[0].Replicas[0].Broker = 7 },
		"replica twice": func(c *balance.Cluster) {
			c.Partitions[0].Replicas = append(c.Partitions[0].Replicas, c.Partitions[0].Replicas[0])
		},
		"negative load": func(c *balance.Cluster) { c.Partitions[0].Replicas[0].Load[2] = -1 },
		"huge load":     func(c *balance.Cluster) { c.Partitions[0].Replicas[0].Load[2] = math.MaxInt64 },
		"sum overflows": func(c *balance.Cluster) { c.Partitions[0].Replicas[0].Load[2] = 1 << 60 },
		"sum of one partition overflows": func(c *balance.Cluster) {
			for i := range 16 { // 1<<64 is 0 again
				c.Brokers = append(c.Brokers, balance.Broker{ID: balance.BrokerID(10 + i), Zone: "a"})
				c.Partitions[0].Replicas = append(c.Partitions[0].Replicas, balance.Replica{Broker: balance.BrokerID(10 + i), Load: balance.Loads{balance.Disk: 1 << 60}})
			}
		},
		"leadership":       func(c *balance.Cluster) { c.Partitions[0].Leadership[1] = -1 },
		"leader elsewhere": func(c *balance.Cluster) { c.Partitions[0].Leader = 2 },
	} {
		c := good.Clone()
		spoil(&c)
		p, _ := balance.NewPlanner(balance.PlanOptions{})
		if plan, err := p.Plan(c, nil, epoch); !errors.Is(err, balance.ErrModel) || len(plan.Moves) != 0 {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := balance.NewPlanner(balance.PlanOptions{High: .5, Target: 5, MaxBytes: -1, Goals: []balance.SoftGoal{{Goal: balance.GoalZones}}}); err == nil ||
		strings.Count(err.Error(), "balance:") < 3 {
		t.Errorf("all mistakes at once: got %v", err)
	}
	c := good.Clone()
	for _, m := range []balance.Move{
		{Kind: balance.MoveReplica, Partition: balance.PartitionID{Index: 9}},
		{Kind: balance.MoveReplica, Partition: good.Partitions[0].ID, From: 2, To: 1},
		{Kind: balance.MoveLeadership, Partition: good.Partitions[0].ID, From: 1, To: 2},
		{Partition: good.Partitions[0].ID, From: 1, To: 2},
	} {
		if err := c.Apply([]balance.Move{m}); !errors.Is(err, balance.ErrModel) {
			t.Errorf("%v: got %v", m, err)
		}
	}
	if plan := mustPlan(t, balance.PlanOptions{}, balance.Cluster{}, nil, epoch); len(plan.Moves)+len(plan.Triggers) != 0 {
		t.Errorf("empty model: %+v", plan)
	}
}
