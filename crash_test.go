package cordwood_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// crashPoint counts the operations that change one node's disk below a folder,
// and takes its power away before one of them.
type crashPoint struct {
	at      int64 // which one, from 1; 0 for none
	seen    atomic.Int64
	crashed chan struct{}
}

func (p *crashPoint) arm(disk *logtest.FS, folder string) {
	p.crashed = make(chan struct{})
	disk.OnOp(func(op logtest.Op) error {
		if op.Kind.Changes() && strings.Contains(op.Path, folder) && p.seen.Add(1) == p.at {
			disk.PowerOff() // at once: neither this operation nor a later one happens
			close(p.crashed)
		}
		return nil
	})
}

// crashScript is a run of three nodes over everything that writes: appends, rolls,
// the tier and local deletion, the loss of a node's disk at the given point, a
// restart. It checks that every acknowledged record is there afterwards, on the
// restarted node as well, and returns whether the point was reached.
func crashScript(t *testing.T, victim int, folder string, at int64, mode logtest.CrashMode) (crashed bool) {
	c := cordwoodtest.Start(t, cordwoodtest.Options{Seed: uint64(at)})
	c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 1 << 10, Replication: 3})
	point := &crashPoint{at: at}
	point.arm(c.Disk(victim), folder)
	done := make(chan struct{})
	down := make(chan struct{})
	go func() {
		defer close(down)
		select {
		case <-point.crashed:
		case <-done:
		}
		disk := c.Disk(victim)
		disk.OnOp(nil)
		if disk.Crashed() {
			c.PowerOff(victim, mode)
		}
	}()
	// The host's calls follow the cluster; those of c may meet a node that is going.
	host := c.Host().Tenant("")
	create := func(name string) {
		if err := host.CreateTopic(t.Context(), name, cordwood.TopicConfig{SegmentBytes: 1 << 10}); err != nil {
			t.Fatalf("create topic %s: %v", name, err)
		}
	}
	offsets := func() cordwood.Offsets {
		o, err := host.Topic("t").Offsets(t.Context(), 0)
		if err != nil {
			t.Fatalf("offsets: %v", err)
		}
		return o
	}
	topic := host.Topic("t")
	acked := 0
	for round := range 3 {
		create(fmt.Sprint("other", round))
		appendRange(t, topic, acked, acked+30, 10)
		acked += 30
		rollRunning(t, c)
	}
	end := offsets().HighWatermark
	for o, tries := offsets(), 0; o.TierEnd < end || o.LocalStart < end; o, tries = offsets(), tries+1 {
		rollRunning(t, c) // again, since a new leader may have begun another segment
		if tries > 10_000 {
			t.Fatalf("not tiered up to %d: %+v", end, o)
		}
		time.Sleep(10 * time.Millisecond) // virtual
	}
	appendRange(t, topic, acked, acked+10, 10)
	acked += 10
	close(done)
	<-down
	crashed = point.at > 0 && point.seen.Load() >= point.at
	if !c.Running(victim) {
		c.Restart(victim)
	}
	waitInSync(t, c, "t", 3)
	checkRecords(t, topic, 0, acked)
	// Another leader must have it all as well: the restarted node, or one beside it.
	c.PowerOff(c.Leader("t", 0), logtest.CrashLoseAll)
	appendRange(t, topic, acked, acked+10, 10)
	checkRecords(t, topic, 0, acked+10)
	return crashed
}

// rollRunning seals the last segment on each node that can do it.
func rollRunning(t *testing.T, c *cordwoodtest.Cluster) {
	for i := 1; i <= c.Nodes(); i++ {
		if !c.Running(i) {
			continue
		}
		if r, err := c.Node(i).Replica("t", 0); err == nil {
			r.Roll(t.Context()) // fails on the node that just lost its power
		}
	}
}

// One node's disk loses what is not synced, right before each change of it in
// turn, and every acknowledged record is found afterwards. Node 1 founded the
// cluster and is its controller at first, node 3 is a follower in the quorum.
func TestCrashAtEveryWrite(t *testing.T) {
	for _, victim := range []int{1, 3} {
		for _, folder := range []string{"/partitions/", "/metadata/"} {
			t.Run(fmt.Sprintf("node%d%s", victim, strings.TrimSuffix(folder, "/")), func(t *testing.T) {
				t.Parallel()
				step := int64(1)
				if testing.Short() || raceEnabled {
					step = 10
				}
				// The last run is the one that ends before its point comes.
				for at, crashed := int64(1), true; crashed && !t.Failed(); at += step {
					t.Run(fmt.Sprint(at), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							mode := logtest.CrashLoseAll
							if at%3 == 0 {
								mode = logtest.CrashLoseSome(uint64(at))
							}
							crashed = crashScript(t, victim, folder, at, mode)
						})
					})
					if !crashed && at == 1 {
						t.Error("the script changes nothing")
					}
				}
			})
		}
	}
}
