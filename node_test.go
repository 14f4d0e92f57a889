package cordwood_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
)

// value is the content of record i of a test.
func value(i int) []byte { return fmt.Appendf(nil, "record %d", i) }

// batchOf builds a batch of records from, from+1, … to-1.
func batchOf(t testing.TB, from, to int) record.Batch {
	t.Helper()
	var rs []record.Record
	for i := from; i < to; i++ {
		rs = append(rs, record.Record{Value: value(i)})
	}
	b, err := cordwood.NewBatch(rs...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkRecords reads a partition whole and checks that it holds records 0 to n-1
// in order, each once.
func checkRecords(t testing.TB, topic *cordwood.Topic, partition int32, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := 0
	for r, err := range topic.Records(ctx, partition, 0) {
		if err != nil {
			t.Fatalf("read record %d: %v", got, err)
		}
		if want := string(value(got)); string(r.Value) != want {
			t.Fatalf("record %d at offset %d is %q, want %q", got, r.Offset, r.Value, want)
		}
		got++
	}
	if got != n {
		t.Fatalf("%d records read back, want %d", got, n)
	}
}

func appendRange(t testing.TB, topic *cordwood.Topic, from, to, size int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ; from < to; from += size {
		if _, err := topic.Append(ctx, 0, batchOf(t, from, min(from+size, to))); err != nil {
			t.Fatalf("append records from %d: %v", from, err)
		}
	}
}

func TestAppendAndRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{})
		for _, n := range []*cordwood.Node{c.Node(1), c.Node(2), c.Node(3), c.Host()} {
			if got := n.Tenant("").Topics(); len(got) != 1 || got[0] != "t" {
				// Another node may learn of the topic a moment later.
				if _, err := n.Tenant("").Topic("t").Partitions(t.Context()); err != nil {
					t.Errorf("topics are %v: %v", got, err)
				}
			}
		}
		appendRange(t, c.Node(1).Tenant("").Topic("t"), 0, 40, 7)
		appendRange(t, c.Node(2).Tenant("").Topic("t"), 40, 80, 7)
		appendRange(t, c.Host().Tenant("").Topic("t"), 80, 100, 7)
		for i := 1; i <= 3; i++ {
			checkRecords(t, c.Node(i).Tenant("").Topic("t"), 0, 100)
		}
	})
}

// A cluster is ready within 250 ms, by the clock of the bubble: what it waits for
// are messages, not timers.
func TestReadyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		c := cordwoodtest.Start(t, cordwoodtest.Options{
			Tick: cordwood.DefaultTick, Session: cordwood.DefaultSession,
		})
		if took := time.Since(begin); took > 250*time.Millisecond {
			t.Errorf("ready after %v, want at most 250ms", took)
		}
		c.CreateTopic("t", cordwood.TopicConfig{})
		appendRange(t, c.Node(3).Tenant("").Topic("t"), 0, 10, 1)
		checkRecords(t, c.Node(2).Tenant("").Topic("t"), 0, 10)
	})
}

// An ordered producer goes on over the death of the leader, and every batch is
// there once and in order, with at most unsynced data lost.
func TestProducerOverFailover(t *testing.T) {
	for _, how := range []string{"kill", "power-off"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cordwoodtest.Start(t, cordwoodtest.Options{Seed: 1})
				c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 4 << 10})
				topic := c.Host().Tenant("").Topic("t")
				p := topic.Producer(0)
				defer p.Close()
				const records, size = 3000, 10
				var pending []*cordwood.Pending
				down := 0
				for from := 0; from < records; from += size {
					if from == records/2 {
						down = c.Leader("t", 0)
						if how == "kill" {
							c.Kill(down)
						} else {
							c.PowerOff(down, logtest.CrashLoseAll)
						}
					}
					w, err := p.Send(t.Context(), batchOf(t, from, from+size))
					if err != nil {
						t.Fatalf("send records from %d: %v", from, err)
					}
					pending = append(pending, w)
				}
				for i, w := range pending {
					a, err := w.Wait(t.Context())
					if err != nil {
						t.Fatalf("batch %d: %v", i, err)
					}
					if a.End-a.Base != size {
						t.Fatalf("batch %d is at [%d, %d)", i, a.Base, a.End)
					}
				}
				checkRecords(t, topic, 0, records)
				c.Restart(down)
				waitInSync(t, c, "t", 3)
				checkRecords(t, topic, 0, records)
				// The restarted replica holds the same: let it lead alone with one other.
				c.Kill(c.Leader("t", 0))
				checkRecords(t, c.Host().Tenant("").Topic("t"), 0, records)
			})
		})
	}
}

// A producer that rested longer than partitions remember producers goes on with
// another producer id.
func TestProducerRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{Tick: time.Minute, Session: 30 * time.Minute})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Host().Tenant("").Topic("t")
		p := topic.Producer(0)
		defer p.Close()
		for i := range 2 {
			time.Sleep(time.Duration(i) * 30 * time.Hour)
			w, err := p.Send(t.Context(), batchOf(t, 2*i, 2*i+1))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Wait(t.Context()); err != nil {
				t.Fatalf("send %d: %v", i, err)
			}
			if _, err := topic.Append(t.Context(), 0, batchOf(t, 2*i+1, 2*i+2)); err != nil {
				t.Fatalf("append %d: %v", i, err)
			}
		}
		checkRecords(t, topic, 0, 4)
	})
}

// waitInSync waits until the leader of partition 0 of a topic has n replicas in
// sync.
func waitInSync(t testing.TB, c *cordwoodtest.Cluster, topic string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		leader := c.Leader(topic, 0)
		r, err := c.Node(leader).Replica(topic, 0)
		if err == nil {
			var s cordwood.ReplicaStatus
			if s, err = r.Status(); err == nil && len(s.ISR) >= n {
				return
			}
			err = fmt.Errorf("in sync: %v, followers %+v", s.ISR, s.Followers)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			for i := 1; i <= c.Nodes(); i++ {
				if c.Running(i) {
					t.Logf("node %d: %+v", i, c.Node(i).Status())
				}
			}
			t.Fatalf("not %d replicas in sync: %v", n, err)
		}
	}
}

// Sealed segments go to the store and from every disk, and reads do not notice.
func TestColdRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 2 << 10})
		host := c.Host()
		topic := host.Tenant("").Topic("t")
		const records = 1000
		appendRange(t, topic, 0, records, 10)
		c.Roll("t", 0)
		end := c.Offsets("t", 0).HighWatermark
		c.WaitTiered("t", 0, end)
		checkRecords(t, topic, 0, records)
		if s := host.Stats(); s.ReadColdBytes == 0 || s.ReadHotBytes != 0 {
			t.Errorf("read %d bytes cold and %d hot, want all cold", s.ReadColdBytes, s.ReadHotBytes)
		}
		// Another leader serves the cold part as well.
		c.PowerOff(c.Leader("t", 0), logtest.CrashLoseAll)
		appendRange(t, topic, records, records+10, 10)
		checkRecords(t, topic, 0, records+10)
	})
}

// A log start may lie inside a batch: a replica that ends below it starts there all the
// same, from the leader or from the tier, and has the log start that the others have.
func TestReplicaStartsInsideBatch(t *testing.T) {
	for _, x := range []struct {
		name   string
		tiered bool
		all    bool // everything is in the tier when the replica starts
	}{
		{"not tiered", false, false},
		{"tiered, before the upload", true, false},
		{"tiered, after it", true, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cordwoodtest.Start(t, cordwoodtest.Options{})
				c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 16 << 10, NotTiered: !x.tiered})
				topic := c.Host().Tenant("").Topic("t")
				if !x.all {
					c.Store().SetDown(true)
				}
				appendRange(t, topic, 0, 100, 10)
				down := c.Leader("t", 0)%3 + 1
				c.PowerOff(down, logtest.CrashLoseAll)
				appendRange(t, topic, 100, 1000, 10)
				leader := func() *cordwood.Replica {
					r, err := c.Node(c.Leader("t", 0)).Replica("t", 0)
					if err != nil {
						t.Fatal(err)
					}
					return r
				}
				end := c.Offsets("t", 0).HighWatermark
				start := end - 55 // inside a batch, since all have ten records
				if err := leader().TrimTier(t.Context(), start); err != nil {
					t.Fatal(err)
				}
				for i := 0; leader().Log().Start() != start; i++ {
					if i == 60 {
						t.Fatalf("the log starts at %d, want %d", leader().Log().Start(), start)
					}
					time.Sleep(time.Second)
				}
				if x.all {
					c.Roll("t", 0)
					c.WaitTiered("t", 0, c.Offsets("t", 0).HighWatermark)
				}
				c.Restart(down)
				waitInSync(t, c, "t", 3)
				r, err := c.Node(down).Replica("t", 0)
				if err != nil {
					t.Fatal(err)
				}
				for tries := 0; r.Log().Start() != start; tries++ {
					if tries > 1000 {
						t.Fatalf("the log starts at %d, the leader's at %d", r.Log().Start(), start)
					}
					time.Sleep(time.Second)
				}
				// What is on its disk is what the leader has.
				contents := func(l *log.Log, from log.Offset) (values []string) {
					for rec, err := range l.Records(t.Context(), from) {
						if err != nil {
							t.Fatal(err)
						}
						values = append(values, string(rec.Value))
					}
					return values
				}
				from := max(r.Log().LocalStart(), leader().Log().LocalStart())
				if got, want := contents(r.Log(), from), contents(leader().Log(), from); !slices.Equal(got, want) || !x.all && len(got) != 55 {
					t.Errorf("%d records from %d on, the leader has %d", len(got), from, len(want))
				}
			})
		})
	}
}

// A replica that comes back after the others have dropped what it lacks starts
// from the tier.
func TestReplicaStartsFromTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 2 << 10})
		topic := c.Host().Tenant("").Topic("t")
		appendRange(t, topic, 0, 100, 10)
		down := c.Leader("t", 0)
		c.PowerOff(down, logtest.CrashLoseAll)
		appendRange(t, topic, 100, 1000, 10)
		c.Roll("t", 0)
		c.WaitTiered("t", 0, c.Offsets("t", 0).HighWatermark)
		appendRange(t, topic, 1000, 1100, 10)
		c.Restart(down)
		waitInSync(t, c, "t", 3)
		c.PowerOff(c.Leader("t", 0), logtest.CrashLoseAll)
		appendRange(t, topic, 1100, 1200, 10)
		checkRecords(t, topic, 0, 1200)
	})
}

// Shutdown hands leadership over: appends go on without an error.
func TestShutdownHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Host().Tenant("").Topic("t")
		appendRange(t, topic, 0, 50, 5)
		leader := c.Leader("t", 0)
		if err := c.Node(leader).Shutdown(t.Context()); err != nil {
			t.Fatalf("shutdown: %v", err)
		}
		appendRange(t, topic, 50, 100, 5)
		checkRecords(t, topic, 0, 100)
		if _, err := c.Node(leader).Tenant("").Topic("t").Offsets(t.Context(), 0); !errors.Is(err, cordwood.ErrClosed) {
			t.Errorf("call after shutdown gave %v, want ErrClosed", err)
		}
	})
}

// A leader whose disk fails to sync, while its process goes on, gives the
// leadership up.
func TestLeaderDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Host().Tenant("").Topic("t")
		appendRange(t, topic, 0, 50, 5)
		old := c.Leader("t", 0)
		c.Disk(old).OnOp(func(op logtest.Op) error {
			if op.Kind == logtest.OpSync && strings.Contains(op.Path, "/partitions/") {
				return syscall.EIO
			}
			return nil
		})
		appendRange(t, topic, 50, 100, 5)
		if leader := c.Leader("t", 0); leader == old {
			t.Errorf("node %d still leads", leader)
		}
		checkRecords(t, topic, 0, 100)
	})
}

// All nodes lose power at once, and what was acknowledged is still there.
func TestWholeClusterLosesPower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 4 << 10})
		appendRange(t, c.Node(2).Tenant("").Topic("t"), 0, 300, 10)
		for i := 1; i <= 3; i++ {
			c.PowerOff(i, logtest.CrashLoseAll)
		}
		ready := make(chan struct{})
		for i := 1; i <= 3; i++ {
			go func() {
				defer func() { ready <- struct{}{} }()
				c.Restart(i)
			}()
		}
		for range 3 {
			<-ready
		}
		topic := c.Node(1).Tenant("").Topic("t")
		checkRecords(t, topic, 0, 300)
		appendRange(t, topic, 300, 310, 1)
		checkRecords(t, topic, 0, 310)
	})
}

// A cut-off leader acknowledges nothing, and what it had appended alone does not
// come back.
func TestIsolatedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Host().Tenant("").Topic("t")
		appendRange(t, topic, 0, 20, 5)
		old := c.Leader("t", 0)
		c.Network().Isolate(fmt.Sprintf("node%d", old))
		r, err := c.Node(old).Replica("t", 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err = r.Append(ctx, batchOf(t, 1000, 1001), 0)
		cancel()
		if err == nil {
			t.Fatal("an isolated leader acknowledged an append")
		}
		appendRange(t, topic, 20, 40, 5)
		c.Network().Heal()
		waitInSync(t, c, "t", 3)
		appendRange(t, topic, 40, 60, 5)
		checkRecords(t, topic, 0, 60)
	})
}

// Concurrent appends of many callers are all there, each once.
func TestConcurrentAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{Partitions: 3})
		topic := c.Host().Tenant("").Topic("t")
		const callers, each = 16, 30
		errs := make(chan error, callers)
		for k := range callers {
			go func() {
				for i := range each {
					_, err := topic.AppendRecords(t.Context(), int32(k%3), record.Record{Value: value(k*each + i)})
					if err != nil {
						errs <- err
						return
					}
				}
				errs <- nil
			}()
		}
		for range callers {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		seen := map[string]int{}
		for p := range int32(3) {
			for r, err := range topic.Records(t.Context(), p, 0) {
				if err != nil {
					t.Fatal(err)
				}
				seen[string(r.Value)]++
			}
		}
		for i := range callers * each {
			if n := seen[string(value(i))]; n != 1 {
				t.Errorf("record %d is there %d times", i, n)
			}
		}
	})
}

// Tenants do not see each other's topics.
func TestTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{Nodes: 1})
		ctx := t.Context()
		a, b := c.Node(1).Tenant("a"), c.Node(1).Tenant("b")
		for _, tenant := range []*cordwood.Tenant{a, b} {
			if err := tenant.CreateTopic(ctx, "same", cordwood.TopicConfig{}); err != nil {
				t.Fatalf("create in %s: %v", tenant.ID(), err)
			}
			if _, err := tenant.Topic("same").AppendRecords(ctx, 0, record.Record{Value: []byte(tenant.ID())}); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.CreateTopic(ctx, "same", cordwood.TopicConfig{}); !errors.Is(err, cordwood.ErrTopicExists) {
			t.Errorf("second creation gave %v, want ErrTopicExists", err)
		}
		for _, tenant := range []*cordwood.Tenant{a, b} {
			for r, err := range tenant.Topic("same").Records(ctx, 0, 0) {
				if err != nil || string(r.Value) != tenant.ID() {
					t.Errorf("tenant %s reads %q, %v", tenant.ID(), r.Value, err)
				}
			}
		}
		if _, err := a.Topic("none").Offsets(ctx, 0); !errors.Is(err, cordwood.ErrUnknownTopic) {
			t.Errorf("unknown topic gave %v", err)
		}
	})
}

// Tail sees records as they come and ends with its context.
func TestTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Host().Tenant("").Topic("t")
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan string)
		end := make(chan error, 1)
		go func() {
			for r, err := range topic.Tail(ctx, 0, 0) {
				if err != nil {
					end <- err
					return
				}
				got <- string(r.Value)
			}
		}()
		for i := range 5 {
			appendRange(t, topic, i, i+1, 1)
			if v := <-got; v != string(value(i)) {
				t.Fatalf("tail saw %q, want %q", v, value(i))
			}
		}
		cancel()
		if err := <-end; !errors.Is(err, context.Canceled) {
			t.Errorf("tail ended with %v", err)
		}
	})
}

// Offsets of a read outside of the partition are told apart.
func TestReadOutOfRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{Nodes: 1})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Node(1).Tenant("").Topic("t")
		appendRange(t, topic, 0, 5, 1)
		end := c.Offsets("t", 0).HighWatermark
		if got, err := topic.Read(t.Context(), 0, end, 0, 0); err != nil || len(got.Batches) != 0 || got.HighWatermark != end {
			t.Errorf("read at the end gave %+v, %v", got, err)
		}
		for _, off := range []log.Offset{end + 1, end + 1000, -1} {
			if _, err := topic.Read(t.Context(), 0, off, 0, 0); !errors.Is(err, cordwood.ErrOffsetOutOfRange) {
				t.Errorf("read at %d gave %v, want ErrOffsetOutOfRange", off, err)
			}
		}
	})
}

// While tiering is paused on every node, sealed segments stay where they are and
// count as backlog; then they go to the store.
func TestPauseTiering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		for i := range c.Nodes() {
			c.Node(i + 1).PauseTiering()
		}
		c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 2 << 10})
		topic := c.Host().Tenant("").Topic("t")
		appendRange(t, topic, 0, 300, 10)
		c.Roll("t", 0)
		end := c.Offsets("t", 0).HighWatermark
		time.Sleep(10 * time.Second)
		leader := c.Node(c.Leader("t", 0))
		if o, s := c.Offsets("t", 0), leader.Stats(); o.TierEnd != 0 || o.LocalStart != 0 || !s.TieringPaused || s.BacklogRanges == 0 {
			t.Errorf("paused: %+v, %+v", o, s)
		}
		for i := range c.Nodes() {
			c.Node(i + 1).ResumeTiering()
		}
		c.WaitTiered("t", 0, end)
		if s := leader.Stats(); s.TieringPaused || s.BacklogRanges != 0 {
			t.Errorf("resumed: %+v", s)
		}
		checkRecords(t, topic, 0, 300)
	})
}

// What is read back from the store is kept on disk, within its bound, and what is stored
// is compressed, if the options say so.
func TestStoreCacheAndCompression(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cache = 16 << 10
		c := cordwoodtest.Start(t, cordwoodtest.Options{Nodes: 1, Configure: func(_ int, o *cordwood.Options) {
			o.StoreCacheBytes, o.CompressStore, o.CacheBytes = cache, true, 1
		}})
		c.CreateTopic("t", cordwood.TopicConfig{Replication: 1, SegmentBytes: 4 << 10})
		topic := c.Node(1).Tenant("").Topic("t")
		const records = 3000
		appendRange(t, topic, 0, records, 10)
		c.Roll("t", 0)
		c.WaitTiered("t", 0, c.Offsets("t", 0).HighWatermark)
		r, err := c.Node(1).Replica("t", 0)
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.Status()
		if err != nil {
			t.Fatal(err)
		}
		var stored int64
		for info, err := range c.Store().List(t.Context(), tier.PartitionPrefix("", s.Partition), "") {
			if err != nil {
				t.Fatal(err)
			}
			stored += info.Size
		}
		if stored == 0 || stored >= s.Tier.Bytes {
			t.Errorf("%d bytes in the store for %d bytes of batches", stored, s.Tier.Bytes)
		}
		for range 3 {
			checkRecords(t, topic, 0, records)
			synctest.Wait()
			if s := c.Node(1).TierStats(); s.DiskBytes > cache || s.DiskWrites == 0 {
				t.Errorf("the cache has %d bytes on disk, at most %d are allowed; %d parts were written", s.DiskBytes, cache, s.DiskWrites)
			}
		}
		c.Close(1)
		c.Restart(1)
		topic = c.Node(1).Tenant("").Topic("t")
		checkRecords(t, topic, 0, records)
		if s := c.Node(1).TierStats(); s.DiskHits == 0 || s.DiskDamaged != 0 {
			t.Errorf("after a restart %d parts came from the disk, %d were damaged", s.DiskHits, s.DiskDamaged)
		}
	})
}
