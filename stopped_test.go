package cordwood_test

import (
	"context"
	"errors"
	"strings"
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

// TestTierKnows: a sweep of a stopped cluster spares what only another replica of the
// tier log announces, and the manifests of all: whichever leads next may go back to the
// checkpoint before the best replica's last one.
func TestTierKnows(t *testing.T) {
	p := log.PartitionID{Topic: log.TopicID{5}}
	replica := func(name string, bodies ...tier.Body) *log.Log {
		l, err := log.Open(t.Context(), name, log.Options{FS: logtest.NewFS(1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		for i, body := range bodies {
			b, err := tier.EncodeEvent(tier.Event{Partition: p, Epoch: 1, Seq: uint64(i + 1), Body: body})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.AppendRecords(t.Context(), record.Record{Value: b}); err != nil {
				t.Fatal(err)
			}
		}
		return l
	}
	copyOf := func(id byte) tier.Body {
		return tier.CopyStarted{ID: tier.ID{id}, End: 10, Deadline: time.UnixMilli(1)}
	}
	checkpoint := func(id byte) tier.Body { return tier.Checkpoint{Manifest: tier.ID{id}, Bytes: 100} }
	known, err := cordwood.StoppedOf(
		replica("a", copyOf(1), checkpoint(2), checkpoint(3)),
		replica("b", copyOf(1), checkpoint(2), copyOf(4)),
	).TierKnows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[byte]bool{1: false, 2: true, 3: true, 4: true, 5: false} {
		if got := known(p, tier.ID{id}); got != want {
			t.Errorf("object %d: known %v, want %v", id, got, want)
		}
	}
}

// TestRepairTier: a node whose file of states is lost, and with it the manifest that the
// trimmed tier log begins with, does not know what is in the store, and serves it again
// when its directory has been repaired.
func TestRepairTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{Nodes: 1})
		c.CreateTopic("t", cordwood.TopicConfig{Replication: 1, SegmentBytes: 2 << 10})
		topic := c.Node(1).Tenant("").Topic("t")
		appendRange(t, topic, 0, 500, 10)
		c.Roll("t", 0)
		end := c.Offsets("t", 0).HighWatermark
		c.WaitTiered("t", 0, end)
		c.Close(1)

		stopped := func(f func(s *cordwood.Stopped)) {
			t.Helper()
			s, err := cordwood.OpenStopped(t.Context(), []string{"node"}, cordwood.StoppedOptions{FS: c.Disk(1)})
			if err != nil {
				t.Fatal(err)
			}
			f(s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		var want tier.State
		stopped(func(s *cordwood.Stopped) {
			if here, all := s.Nodes(); here != 1 || all != 1 {
				t.Errorf("%d of %d nodes", here, all)
			}
			l := s.TierLog()
			var e tier.Event
			for c, err := range s.TierEvents(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if c.Event == nil {
					continue
				}
				if e, err = tier.DecodeEvent(c.Event); err != nil {
					t.Fatal(err)
				}
				if v := want.Apply(e); v != tier.Applied {
					t.Errorf("event %+v: %v", e, v)
				}
			}
			e.Seq, e.Body = e.Seq+1, tier.Checkpoint{Manifest: tier.ID{7}, Bytes: 50_000}
			b, err := tier.EncodeEvent(e)
			if err != nil {
				t.Fatal(err)
			}
			a, err := l.AppendRecords(t.Context(), record.Record{Value: b})
			if err == nil {
				err = l.TrimTo(t.Context(), a.Base)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		if err := c.Disk(1).Remove("node/tier-state"); err != nil {
			t.Fatal(err)
		}
		c.Restart(1)
		if _, err := cordwood.OpenStopped(t.Context(), []string{"node"}, cordwood.StoppedOptions{FS: c.Disk(1)}); !errors.Is(err, cordwood.ErrDirectoryInUse) || strings.Count(err.Error(), "cordwood: ") != 1 {
			t.Errorf("beside a node that runs: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Node(1).Tenant("").Topic("t").Read(ctx, 0, 200, 1, 0); err == nil {
			t.Error("a cold read without a state")
		}
		c.Close(1)
		stopped(func(s *cordwood.Stopped) {
			r, err := s.RepairTier(t.Context(), c.Store(), "", false)
			if err != nil || r.Written != 1 || len(r.Partitions) != 1 {
				t.Fatalf("%v, %+v", err, r)
			}
			if p := r.Partitions[0]; p.LogStart != 0 || p.TierEnd != want.TierEnd() || p.Objects == 0 || p.Kept || len(p.Findings) != 0 {
				t.Errorf("%+v", p)
			}
		})
		c.Restart(1)
		topic = c.Node(1).Tenant("").Topic("t")
		checkRecords(t, topic, 0, 500)
	})
}
