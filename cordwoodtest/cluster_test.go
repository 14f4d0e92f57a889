package cordwoodtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

func TestMain(m *testing.M) {
	status := m.Run()
	for range 3000 {
		if runtime.NumGoroutine() <= 1 {
			os.Exit(status)
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Fprintf(os.Stderr, "%d goroutines are left\n", runtime.NumGoroutine()-1)
	os.Exit(1)
}

// place appends records from to to-1, whose values are their numbers.
func place(t *testing.T, topic *cordwood.Topic, from, to int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := from; i < to; i++ {
		if _, err := topic.AppendRecords(ctx, 0, cordwood.Record{Value: fmt.Append(nil, i)}); err != nil {
			t.Fatalf("append record %d: %v", i, err)
		}
	}
}

// check reads records 0 to n-1 back.
func check(t *testing.T, topic *cordwood.Topic, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := 0
	for r, err := range topic.Records(ctx, 0, 0) {
		if err != nil {
			t.Fatalf("read record %d: %v", got, err)
		}
		if want := fmt.Sprint(got); string(r.Value) != want {
			t.Fatalf("record %d is %q", got, r.Value)
		}
		got++
	}
	if got != n {
		t.Fatalf("%d records, want %d", got, n)
	}
}

// What was acknowledged outlives each way of ending a node.
func TestEnds(t *testing.T) {
	for name, end := range map[string]func(c *cordwoodtest.Cluster, i int){
		"kill":      (*cordwoodtest.Cluster).Kill,
		"close":     (*cordwoodtest.Cluster).Close,
		"power-off": func(c *cordwoodtest.Cluster, i int) { c.PowerOff(i, logtest.CrashLoseAll) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cordwoodtest.Start(t, cordwoodtest.Options{})
				c.CreateTopic("t", cordwood.TopicConfig{})
				topic := c.Host().Tenant("").Topic("t")
				place(t, topic, 0, 10)
				leader := c.Leader("t", 0)
				end(c, leader)
				if c.Running(leader) {
					t.Errorf("node %d runs", leader)
				}
				place(t, topic, 10, 20)
				if now := c.Leader("t", 0); now == leader {
					t.Errorf("node %d still leads", now)
				}
				c.Restart(leader)
				check(t, c.Node(leader).Tenant("").Topic("t"), 20)
			})
		})
	}
}

// Hosts made at the same time are different nodes.
func TestHostsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		ids := make([]int32, 4)
		var made sync.WaitGroup
		for i := range ids {
			made.Go(func() { ids[i] = c.Host().Status().ID })
		}
		made.Wait()
		seen := map[int32]bool{}
		for _, id := range ids {
			if id <= int32(c.Nodes()) || seen[id] {
				t.Errorf("hosts have the ids %v", ids)
			}
			seen[id] = true
		}
	})
}

func TestOneNode(t *testing.T) {
	for name, o := range map[string]cordwoodtest.Options{
		"store":    {Nodes: 1},
		"no-store": {Nodes: 1, NoStore: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cordwoodtest.Start(t, o)
				c.CreateTopic("t", cordwood.TopicConfig{})
				topic := c.Host().Tenant("").Topic("t")
				place(t, topic, 0, 10)
				if !o.NoStore {
					c.Roll("t", 0)
					c.WaitTiered("t", 0, 10)
				}
				check(t, topic, 10)
			})
		})
	}
}

// A store that is down delays what ages, and nothing else.
func TestStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Host().Tenant("").Topic("t")
		c.Store().SetDown(true)
		place(t, topic, 0, 10)
		c.Roll("t", 0)
		check(t, topic, 10)
		if o := c.Offsets("t", 0); o.TierEnd > o.Start {
			t.Errorf("the store took something while it was down: %+v", o)
		}
		c.Store().SetDown(false)
		c.WaitTiered("t", 0, 10)
		check(t, topic, 10)
	})
}

// A node that the network has cut off does not stop the others.
func TestIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Host().Tenant("").Topic("t")
		place(t, topic, 0, 10)
		c.Network().Isolate(fmt.Sprintf("node%d", c.Leader("t", 0)))
		place(t, topic, 10, 20)
		c.Network().Heal()
		check(t, topic, 20)
	})
}

func TestConfigure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{Configure: func(node int, o *cordwood.Options) {
			o.MaxRecordBytes = 100 // of each batch, beside some room for overhead
		}})
		c.CreateTopic("t", cordwood.TopicConfig{})
		_, err := c.Node(1).Tenant("").Topic("t").AppendRecords(t.Context(), 0, cordwood.Record{Value: make([]byte, 1<<20)})
		if !errors.Is(err, cordwood.ErrTooLarge) {
			t.Errorf("a record of 1 MiB gave %v, want ErrTooLarge", err)
		}
	})
}

// In a bubble a day takes no time.
func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{Tick: 5 * time.Second, Session: 2 * time.Minute})
		c.CreateTopic("t", cordwood.TopicConfig{SegmentAge: time.Hour})
		topic := c.Host().Tenant("").Topic("t")
		place(t, topic, 0, 10)
		time.Sleep(24 * time.Hour)
		if o := c.Offsets("t", 0); o.LocalStart < log.Offset(10) || o.TierEnd < o.LocalStart {
			t.Errorf("nothing aged: %+v", o)
		}
		check(t, topic, 10)
	})
}
