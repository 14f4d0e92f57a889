package cordwood_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/tier/memstore"
)

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestBadInput(t *testing.T) {
	t.Run("directory-in-use", func(t *testing.T) {
		dir := t.TempDir()
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if _, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)}); !errors.Is(err, cordwood.ErrDirectoryInUse) {
			t.Errorf("second open gave %v, want ErrDirectoryInUse", err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		n, err = cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)})
		if err != nil {
			t.Fatalf("open after close: %v", err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})

	t.Run("directory-of-newer-version", func(t *testing.T) {
		dir := t.TempDir()
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)})
		if err != nil {
			t.Fatal(err)
		}
		n.Close()
		name := filepath.Join(dir, "node")
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b[5] = 99 // the version, which stands before what the checksum can be trusted for
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		var version *cordwood.VersionError
		if _, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)}); !errors.As(err, &version) || version.Found != 99 {
			t.Errorf("open gave %v, want a VersionError of version 99", err)
		}
		if after, _ := os.ReadFile(name); !bytes.Equal(after, b) {
			t.Error("the file was changed")
		}
	})

	t.Run("directory-of-another-node", func(t *testing.T) {
		dir := t.TempDir()
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)})
		if err != nil {
			t.Fatal(err)
		}
		n.Close()
		if _, err := cordwood.Open(t.Context(), cordwood.Options{ID: 2, Dir: dir, Listener: listen(t)}); err == nil {
			t.Error("a directory of node 1 was opened as node 2")
		}
	})

	t.Run("options", func(t *testing.T) {
		_, err := cordwood.Open(t.Context(), cordwood.Options{Session: time.Millisecond, Tick: time.Second})
		for _, want := range []string{"Dir", "ID", "Listener", "Session"} {
			if err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
				t.Errorf("error %v does not name %s", err, want)
			}
		}
	})

	t.Run("negative-options", func(t *testing.T) {
		for name, o := range map[string]cordwood.Options{
			"size":  {CacheBytes: -1},
			"fetch": {FetchBytes: -1},
			"space": {ReserveBytes: -1},
			"bound": {Uploads: -1},
			"files": {OpenFiles: -1},
			"calls": {BlockingCalls: -1},
			"queue": {RequestServers: -1},
		} {
			o.ID, o.Dir, o.Listener = 1, t.TempDir(), listen(t)
			if n, err := cordwood.Open(t.Context(), o); err == nil {
				t.Errorf("%s: a negative option was taken", name)
				n.Close()
			}
		}
	})

	t.Run("huge-records", func(t *testing.T) {
		// No log would open with batches that may be as large.
		o := cordwood.Options{ID: 1, Dir: t.TempDir(), Listener: listen(t), MaxRecordBytes: log.MaxBatchBytes}
		n, err := cordwood.Open(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), "Options.MaxRecordBytes is 268435456: it must be at most 268369920") {
			t.Errorf("got %v", err)
		}
		if err == nil {
			n.Close()
		}
	})

	t.Run("wildcard-address", func(t *testing.T) {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: t.TempDir(), Listener: l})
		if err == nil {
			n.Close()
			t.Error("an address that other nodes can't dial was taken")
		} else if !strings.Contains(err.Error(), "Advertise") {
			t.Errorf("error %v does not name Advertise", err)
		}
	})

	t.Run("wrong-voters", func(t *testing.T) {
		l := listen(t)
		o := cordwood.Options{ID: 1, Dir: t.TempDir(), Listener: l}
		n, err := cordwood.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for name, voters := range map[string][]cordwood.Voter{
			"twice":      {{ID: 1, Addr: "a"}, {ID: 1, Addr: "b"}, {ID: 2, Addr: "c"}},
			"zero":       {{ID: 1, Addr: "a"}, {ID: 0, Addr: "b"}, {ID: 2, Addr: "c"}},
			"no address": {{ID: 1, Addr: "a"}, {ID: 2}, {ID: 3, Addr: "c"}},
		} {
			if err := n.Init(t.Context(), cordwood.NewID(), voters); err == nil {
				t.Errorf("%s: Init succeeded", name)
			}
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		// The refused lists have left nothing behind.
		o.Listener = listen(t)
		if n, err = cordwood.Open(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if err := n.Init(t.Context(), cordwood.NewID(), []cordwood.Voter{{ID: 1, Addr: "a"}}); err != nil {
			t.Errorf("Init with right voters: %v", err)
		}
	})

	t.Run("voter-without-listener", func(t *testing.T) {
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: t.TempDir(), NoReplicas: true})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if err := n.Init(t.Context(), cordwood.NewID(), []cordwood.Voter{{ID: 1, Addr: "a"}}); err == nil {
			t.Error("a node that nobody can reach became a voter")
		}
	})

	t.Run("not-ready", func(t *testing.T) {
		l := listen(t)
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: t.TempDir(), Listener: l, Store: memstore.New()})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if err := n.Init(t.Context(), cordwood.NewID(), []cordwood.Voter{{ID: 1, Addr: l.Addr().String()}}); err != nil {
			t.Fatal(err)
		}
		for wait := time.Second; ; wait *= 2 { // until it has come as far as that
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			err = n.Ready(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "SystemReplication") || wait > time.Minute {
				break
			}
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "SystemReplication") {
			t.Errorf("Ready of one node with a store gave %v, want what it waits for", err)
		}
	})

	t.Run("closed", func(t *testing.T) {
		l := listen(t)
		dir := t.TempDir()
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: l})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(filepath.Join(dir, "node"))
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Init(t.Context(), cordwood.NewID(), []cordwood.Voter{{ID: 1, Addr: l.Addr().String()}}); !errors.Is(err, cordwood.ErrClosed) {
			t.Errorf("Init gave %v, want ErrClosed", err)
		}
		if err := n.Join(t.Context(), "127.0.0.1:1"); !errors.Is(err, cordwood.ErrClosed) {
			t.Errorf("Join gave %v, want ErrClosed", err)
		}
		if err := n.Ready(t.Context()); !errors.Is(err, cordwood.ErrClosed) {
			t.Errorf("Ready gave %v, want ErrClosed", err)
		}
		if after, _ := os.ReadFile(filepath.Join(dir, "node")); !bytes.Equal(after, before) {
			t.Error("Init after Close changed the directory")
		}
	})

	t.Run("closed-during-init", func(t *testing.T) {
		for range 20 { // whichever wins, nothing is left running: see TestMain
			l := listen(t)
			n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: t.TempDir(), Listener: l})
			if err != nil {
				t.Fatal(err)
			}
			var both sync.WaitGroup
			both.Go(func() {
				if err := n.Init(t.Context(), cordwood.NewID(), []cordwood.Voter{{ID: 1, Addr: l.Addr().String()}}); err != nil && !errors.Is(err, cordwood.ErrClosed) {
					t.Errorf("Init gave %v, want success or ErrClosed", err)
				}
			})
			both.Go(func() {
				if err := n.Close(); err != nil {
					t.Errorf("Close gave %v", err)
				}
			})
			both.Wait()
		}
	})

	t.Run("not-initialized", func(t *testing.T) {
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: t.TempDir(), Listener: listen(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if _, err := n.Tenant("").Topic("t").AppendRecords(t.Context(), 0, record.Record{}); !errors.Is(err, cordwood.ErrNotInitialized) {
			t.Errorf("append gave %v, want ErrNotInitialized", err)
		}
		if err := n.Init(t.Context(), cordwood.NewID(), []cordwood.Voter{{ID: 2, Addr: "x"}}); err == nil {
			t.Error("Init without this node among the voters succeeded")
		}
		if err := n.Init(t.Context(), cordwood.NewID(), make([]cordwood.Voter, 2)); err == nil {
			t.Error("Init with two voters succeeded")
		}
	})

	t.Run("init-twice", func(t *testing.T) {
		l := listen(t)
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: t.TempDir(), Listener: l})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		id, voters := cordwood.NewID(), []cordwood.Voter{{ID: 1, Addr: l.Addr().String()}}
		for range 2 {
			if err := n.Init(t.Context(), id, voters); err != nil {
				t.Fatalf("init: %v", err)
			}
		}
		if err := n.Init(t.Context(), cordwood.NewID(), voters); err == nil {
			t.Error("Init with another cluster id succeeded")
		}
	})

	// run gives each its own cluster, in a bubble.
	run := func(name string, f func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cordwoodtest.Start(t, cordwoodtest.Options{})
				c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 2 << 10})
				f(t, c, c.Host().Tenant("").Topic("t"))
			})
		})
	}

	run("unknown-topic", func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic) {
		if _, err := c.Node(1).Tenant("").Topic("none").AppendRecords(t.Context(), 0, record.Record{}); !errors.Is(err, cordwood.ErrUnknownTopic) {
			t.Errorf("append gave %v, want ErrUnknownTopic", err)
		}
		if _, err := topic.AppendRecords(t.Context(), 1, record.Record{}); !errors.Is(err, cordwood.ErrUnknownPartition) {
			t.Errorf("append to partition 1 of 1 gave %v, want ErrUnknownPartition", err)
		}
	})

	run("negative-topic-config", func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic) {
		for name, cfg := range map[string]cordwood.TopicConfig{
			"partitions":      {Partitions: -1},
			"replication":     {Replication: -1},
			"segment":         {SegmentBytes: -1},
			"retention":       {RetentionBytes: -1},
			"retention-age":   {RetentionAge: -1},
			"local-retention": {LocalRetentionBytes: -1},
			"local-age":       {LocalRetentionAge: -1},
		} {
			if err := c.Node(1).Tenant("").CreateTopic(t.Context(), name, cfg); !errors.Is(err, metadata.ErrInvalidRequest) {
				t.Errorf("%s gave %v, want ErrInvalidRequest", name, err)
			}
		}
	})

	run("negative-wait", func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic) {
		// Through a host, so that the wait crosses the wire.
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		o, err := topic.Offsets(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := topic.Read(ctx, 0, o.HighWatermark, 0, -time.Second)
		if err != nil || len(got.Batches) != 0 {
			t.Errorf("read at the end with a negative wait gave %d bytes, %v; want none at once", len(got.Batches), err)
		}
	})

	run("control-batch", func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic) {
		b := record.LeaderChange(1, 1, []int32{1}, time.Now())
		if _, err := topic.Append(t.Context(), 0, b); !errors.Is(err, cordwood.ErrInvalidBatch) {
			t.Errorf("append gave %v, want ErrInvalidBatch", err)
		}
	})

	run("zero-batch", func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic) {
		if _, err := topic.Append(t.Context(), 0, record.Batch{}); !errors.Is(err, cordwood.ErrInvalidBatch) {
			t.Errorf("append gave %v, want ErrInvalidBatch", err)
		}
		p := topic.Producer(0)
		defer p.Close()
		if _, err := p.Send(t.Context(), record.Batch{}); !errors.Is(err, cordwood.ErrInvalidBatch) {
			t.Errorf("send gave %v, want ErrInvalidBatch", err)
		}
	})

	run("deleted-topic", func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic) {
		gone := log.PartitionID{Topic: log.TopicID{1}}
		if err := c.Node(1).ReadPartition(t.Context(), gone); !errors.Is(err, cordwood.ErrUnknownTopic) {
			t.Errorf("read gave %v, want ErrUnknownTopic", err)
		}
		if err := c.Node(1).AppendPartition(t.Context(), gone, batchOf(t, 0, 1)); !errors.Is(err, cordwood.ErrUnknownTopic) {
			t.Errorf("append gave %v, want ErrUnknownTopic", err)
		}
	})

	run("bad-crc-batch", func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic) {
		b := batchOf(t, 0, 3)
		b.Bytes()[len(b.Bytes())-1] ^= 1
		if _, err := topic.Append(t.Context(), 0, b); !errors.Is(err, cordwood.ErrInvalidBatch) {
			t.Errorf("append gave %v, want ErrInvalidBatch", err)
		}
		r, err := c.Node(c.Leader("t", 0)).Replica("t", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Append(t.Context(), b, 0); !errors.Is(err, cordwood.ErrInvalidBatch) {
			t.Errorf("append at the leader gave %v, want ErrInvalidBatch", err)
		}
	})

	run("line-too-long", func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic) {
		big := record.Record{Value: make([]byte, cordwood.DefaultMaxRecordBytes+100<<10)}
		if _, err := topic.AppendRecords(t.Context(), 0, big); !errors.Is(err, cordwood.ErrTooLarge) {
			t.Errorf("append gave %v, want ErrTooLarge", err)
		}
		fits := record.Record{Value: make([]byte, cordwood.DefaultMaxRecordBytes)}
		if _, err := topic.AppendRecords(t.Context(), 0, fits); err != nil {
			t.Errorf("append of the largest record gave %v", err)
		}
	})

	run("batch-above-the-topics-bound", func(t *testing.T, c *cordwoodtest.Cluster, topic *cordwood.Topic) {
		c.CreateTopic("small", cordwood.TopicConfig{MaxBatchBytes: 500})
		leader := c.Leader("small", 0)
		big, err := cordwood.NewBatch(record.Record{Value: make([]byte, 500)})
		if err != nil {
			t.Fatal(err)
		}
		host := c.Host().Tenant("").Topic("small")
		for name, topic := range map[string]*cordwood.Topic{"host": host, "leader": c.Node(leader).Tenant("").Topic("small")} {
			if _, err := topic.Append(t.Context(), 0, big); !errors.Is(err, cordwood.ErrTooLarge) {
				t.Errorf("append at the %s gave %v, want ErrTooLarge", name, err)
			}
			if _, err := topic.AppendRecords(t.Context(), 0, record.Record{Value: make([]byte, 300)}); err != nil {
				t.Errorf("append of a small batch at the %s gave %v", name, err)
			}
		}
		p := host.Producer(0)
		defer p.Close()
		if _, err := p.Send(t.Context(), big); !errors.Is(err, cordwood.ErrTooLarge) {
			t.Errorf("send gave %v, want ErrTooLarge", err)
		}
		w, err := p.Send(t.Context(), batchOf(t, 0, 1))
		if err == nil {
			_, err = w.Wait(t.Context())
		}
		if err != nil {
			t.Errorf("send after a refused batch gave %v", err)
		}
	})

	t.Run("store-down", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := cordwoodtest.Start(t, cordwoodtest.Options{})
			c.Store().SetDown(true)
			c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 2 << 10})
			topic := c.Host().Tenant("").Topic("t")
			appendRange(t, topic, 0, 500, 10)
			c.Roll("t", 0)
			checkRecords(t, topic, 0, 500)
			leader := c.Node(c.Leader("t", 0))
			deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for s := leader.Stats(); s.BacklogBytes == 0 || s.BacklogRanges == 0; s = leader.Stats() {
				select {
				case <-time.After(10 * time.Millisecond):
				case <-deadline.Done():
					t.Fatalf("the backlog does not show: %+v", s)
				}
			}
			c.Store().SetDown(false)
			c.WaitTiered("t", 0, c.Offsets("t", 0).HighWatermark)
			checkRecords(t, topic, 0, 500)
		})
	})

	t.Run("disk-full", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			// The reserve keeps the metadata going while the data partitions wait.
			const reserve = 8 << 20
			c := cordwoodtest.Start(t, cordwoodtest.Options{NoStore: true, Configure: func(_ int, o *cordwood.Options) {
				o.ReserveBytes = reserve
			}})
			c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 64 << 10})
			topic := c.Host().Tenant("").Topic("t")
			appendRange(t, topic, 0, 100, 10)
			for i := 1; i <= 3; i++ {
				c.Disk(i).SetCapacity(c.Disk(i).UsedBytes() + reserve + 256<<10)
			}
			p := topic.Producer(0)
			defer p.Close()
			acked, pending := 100, []*cordwood.Pending(nil)
			full := false
			for from := 100; !full; from += 100 {
				w, err := p.Send(t.Context(), batchOf(t, from, from+100))
				if err != nil {
					t.Fatal(err)
				}
				pending = append(pending, w)
				for {
					short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					_, err := w.Wait(short)
					cancel()
					if err == nil {
						acked += 100
						break
					}
					if errors.Is(p.Err(), log.ErrDiskFull) {
						full = true
						break
					}
					if from > 100_000 {
						t.Fatal("the disk does not fill")
					}
				}
			}
			checkRecords(t, topic, 0, acked) // reads go on
			for i := 1; i <= 3; i++ {
				c.Disk(i).SetCapacity(-1)
			}
			if _, err := pending[len(pending)-1].Wait(t.Context()); err != nil {
				t.Fatalf("the append that waited for space: %v", err)
			}
			checkRecords(t, topic, 0, acked+100)
		})
	})
}
