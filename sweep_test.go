package cordwood_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
)

// What a store took long after it was given up goes when each node sweeps: that of a topic
// that is there, and that of one that was deleted and forgotten; nothing else does.
func TestSweepStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		c := cordwoodtest.Start(t, cordwoodtest.Options{Store: mem, Configure: func(_ int, o *cordwood.Options) {
			o.BackupWindow, o.ReaderGrace = -1, -1
		}})
		host := c.Host()
		topic := map[string]log.PartitionID{}
		for _, name := range []string{"kept", "gone"} {
			c.CreateTopic(name, cordwood.TopicConfig{SegmentBytes: 2 << 10})
			appendRange(t, host.Tenant("").Topic(name), 0, 100, 10)
			c.Roll(name, 0)
			c.WaitTiered(name, 0, 100)
			r, err := c.Node(c.Leader(name, 0)).Replica(name, 0)
			if err != nil {
				t.Fatal(err)
			}
			s, err := r.Status()
			if err != nil {
				t.Fatal(err)
			}
			topic[name] = s.Partition
		}
		if err := host.Tenant("").DeleteTopic(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(150 * time.Second)
		foreign := tier.ManifestKey("", log.PartitionID{Topic: log.TopicID{77}}, tier.ID{3})
		late := []string{
			tier.Key{Partition: topic["kept"], Base: 100, End: 110, Epoch: 1, ID: tier.ID{4}}.Path(""),
			tier.Key{Partition: topic["gone"], End: 10, Epoch: 1, ID: tier.ID{5}}.Path(""),
			tier.ManifestKey("", topic["gone"], tier.ID{6}),
		}
		for _, key := range append(late, foreign) {
			if err := mem.Put(t.Context(), key, bytes.NewReader([]byte("late")), 4, tier.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(70 * time.Second) // nobody else looks for them
		left := func() (n int) {
			for _, key := range late {
				if _, err := mem.Head(t.Context(), key); err == nil {
					n++
				}
			}
			return n
		}
		sweep := func(o tier.SweepOptions) (young, deleted, listed int) {
			t.Helper()
			for i := range c.Nodes() {
				r, err := c.Node(i+1).SweepStore(t.Context(), o)
				if err != nil || len(r.Failed) > 0 || o.DryRun && r.Deleted > 0 || int64(len(r.Orphans)) != r.Bytes/4 {
					t.Errorf("node %d: %+v, %v", i+1, r, err)
				}
				young, deleted, listed = young+r.Young, deleted+r.Deleted, listed+r.Listed
			}
			return young, deleted, listed
		}
		if young, deleted, _ := sweep(tier.SweepOptions{}); young != 3 || deleted != 0 || left() != 3 {
			t.Errorf("of 3 young objects %d are spared, %d deleted", young, deleted)
		}
		sweep(tier.SweepOptions{DryRun: true, MinAge: time.Minute})
		if left() != 3 {
			t.Error("a dry run deletes")
		}
		if _, deleted, listed := sweep(tier.SweepOptions{MinAge: time.Minute}); deleted != 3 || listed < 5 || left() != 0 {
			t.Errorf("%d of %d objects deleted, %d of 3 are left", deleted, listed, left())
		}
		if _, err := mem.Head(t.Context(), foreign); err != nil {
			t.Errorf("an object of nobody's topic: %v", err)
		}
		checkRecords(t, host.Tenant("").Topic("kept"), 0, 100)

		if r, err := host.SweepStore(t.Context(), tier.SweepOptions{}); err != nil || r.Listed != 0 {
			t.Errorf("without replicas: %+v, %v", r, err)
		}
		n := c.Node(c.Leader("kept", 0))
		c.Store().SetDown(true)
		if _, err := n.SweepStore(t.Context(), tier.SweepOptions{}); !errors.Is(err, tier.ErrUnavailable) || !strings.Contains(err.Error(), "partition "+topic["kept"].String()+": ") {
			t.Errorf("while the store is down: %v", err)
		}
		c.Store().SetDown(false)
		c.Close(1)
		c.Close(2)
		c.Close(3)
		if _, err := n.SweepStore(t.Context(), tier.SweepOptions{}); !errors.Is(err, cordwood.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// A partition that this node leads and whose leadership has ended in the tier, for another
// writes in its epoch, is not passed over in silence; those of others are.
func TestSweepStoreTwoWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{Store: memstore.New()})
		c.CreateTopic("twice", cordwood.TopicConfig{SegmentBytes: 2 << 10})
		appendRange(t, c.Host().Tenant("").Topic("twice"), 0, 100, 10)
		c.Roll("twice", 0)
		c.WaitTiered("twice", 0, 100)
		leader := c.Leader("twice", 0)
		n := c.Node(leader)
		r, err := n.Replica("twice", 0)
		if err != nil {
			t.Fatal(err)
		}
		// Its events meet others' of the same number on their way.
		for start := range log.Offset(90) {
			done := make(chan error, 1)
			go func() { done <- r.TrimTier(t.Context(), start+1) }()
			for decided := false; !decided && err == nil; {
				e, _ := r.TierEvent()
				e.Seq, e.Body = e.Seq+1, tier.DeleteStarted{IDs: []tier.ID{{0xee}}}
				if err := n.AppendTierEvent(t.Context(), e); err != nil {
					t.Fatal(err)
				}
				select {
				case err = <-done:
					decided = true
				default:
				}
			}
			if err != nil {
				break
			}
		}
		if !errors.Is(err, tier.ErrTwoWriters) {
			t.Fatalf("trim: %v, want ErrTwoWriters", err)
		}
		for i := range c.Nodes() {
			_, err := c.Node(i+1).SweepStore(t.Context(), tier.SweepOptions{})
			if led := i+1 == leader; led != errors.Is(err, tier.ErrTwoWriters) || !led && err != nil || led && !strings.Contains(err.Error(), "partition ") {
				t.Errorf("node %d, leader %d: %v", i+1, leader, err)
			}
		}
	})
}
