package metadata_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/metadata"
)

// A scriptLog is what the script was told.
type scriptLog struct {
	epochs []metadata.BrokerEpoch
	topics []metadata.Topic
	parts  []metadata.Partition
	gone   []metadata.Topic
	next   int64 // producer id that must not be below
	index  uint64
	hash   map[uint64]string // state hash by index, as seen
}

// script makes some of everything on one voter and notes what is acknowledged.
// It stops at the first error.
func script(ctx context.Context, s *metadata.Server, l *scriptLog) error {
	see := func() {
		im := s.Image()
		if l.hash == nil {
			l.hash = map[uint64]string{}
		}
		l.hash[im.Index()] = im.StateHash()
		l.index = max(l.index, im.Index())
	}
	for range 2 {
		life := len(l.topics)
		inc := metadata.NewID()
		epoch, err := s.Register(ctx, metadata.Registration{ID: 1, Directory: metadata.ID{9}, Incarnation: inc, Addr: "a", HostsReplicas: true})
		if err != nil {
			return err
		}
		l.epochs = append(l.epochs, epoch)
		see()
		var electable metadata.HeartbeatRequest
		for p := range s.Image().Partitions() {
			electable.Electable = append(electable.Electable, p.ID)
		}
		_, err = s.Heartbeat(ctx, metadata.HeartbeatRequest{ID: 1, Epoch: epoch, AppliedIndex: s.Image().Index(), Electable: electable.Electable})
		if err != nil {
			return err
		}
		see()
		t, err := s.CreateTopic(ctx, metadata.TopicSpec{Name: fmt.Sprintf("t%d", life), Partitions: 2, Replication: 1})
		if err != nil {
			return err
		}
		l.topics = append(l.topics, t)
		t, err = s.CreateTopic(ctx, metadata.TopicSpec{Name: "gone", Partitions: 1, Replication: 1})
		if err != nil {
			return err
		}
		if err := s.DeleteTopic(ctx, t.ID); err != nil {
			return err
		}
		l.gone = append(l.gone, t)
		b, err := s.AllocateProducerIDs(ctx, 1, epoch)
		if err != nil {
			return err
		}
		if b.First < l.next {
			return fmt.Errorf("producer ids from %d, %d are used", b.First, l.next)
		}
		l.next = b.First + int64(b.Count)
		for p := range s.Image().Partitions() {
			if p.Leader != 1 || p.LeaderBrokerEpoch != epoch {
				return fmt.Errorf("%v is led by %d with epoch %d", p.ID, p.Leader, p.LeaderBrokerEpoch)
			}
			l.parts = append(l.parts, p)
		}
		see()
	}
	return nil
}

// check holds a recovered voter against what was acknowledged.
func (l *scriptLog) check(t testing.TB, im *metadata.Image) {
	t.Helper()
	if h, ok := l.hash[im.Index()]; ok && h != im.StateHash() {
		t.Errorf("state hash at index %d is %s, was %s", im.Index(), im.StateHash(), h)
	}
	if n := len(l.epochs); n > 0 {
		if b, ok := im.Broker(1); !ok || b.Epoch < l.epochs[n-1] {
			t.Errorf("broker %+v, epoch %d was given", b, l.epochs[n-1])
		}
	}
	for _, want := range l.topics {
		if got, ok := im.TopicByName("", want.Name); !ok || got != want {
			t.Errorf("topic %+v, want %+v", got, want)
		}
	}
	for _, want := range l.gone {
		if d, ok := im.DeletedTopic(want.ID); !ok || d.Name != want.Name || len(d.Epochs) != 1 {
			t.Errorf("deleted topic %+v, %v, it was %+v", d, ok, want)
		}
		if got, ok := im.Topic(want.ID); ok {
			t.Errorf("topic %+v is back", got)
		}
		if got, ok := im.Partition(log.PartitionID{Topic: want.ID}); ok {
			t.Errorf("partition %+v is back", got)
		}
	}
	for _, want := range l.parts {
		if got, ok := im.Partition(want.ID); !ok || got.PartitionEpoch < want.PartitionEpoch || got.LeaderEpoch < want.LeaderEpoch {
			t.Errorf("partition %+v, had %+v", got, want)
		}
	}
}

// The power goes at every operation of a voter's disk that changes it. What was
// acknowledged is there afterwards, and the voter goes on.
func TestCrashSingleVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
			o := options(fs, metadata.ID{1}, metadata.ID{2})
			o.SystemReplication = 1
			o.LogBytes = 500 // so that the log is cut on the way
			var l scriptLog
			for life := range 2 { // the second one replays, flushes and compacts what the first one wrote
				s, err := metadata.Open(context.Background(), o)
				if err != nil {
					if !fs.Crashed() {
						t.Errorf("open: %v", err)
					}
					break
				}
				s.Campaign()
				if err = script(context.Background(), s, &l); err != nil && !fs.Crashed() {
					t.Errorf("script: %v", err)
				}
				if err == nil && life > 0 && s.Status().First < 3 {
					t.Errorf("the log was never cut: %+v", s.Status())
				}
				if err := s.Close(); err != nil && !fs.Crashed() {
					t.Errorf("close: %v", err)
				}
				if err != nil {
					break
				}
			}
			return func(after *logtest.FS) {
				o.FS = after
				s, err := metadata.Open(context.Background(), o)
				if err != nil {
					t.Errorf("open after the crash: %v", err)
					return
				}
				defer s.Close()
				s.Campaign()
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				// A registration shows that the voter leads and has applied all it has.
				epoch, err := s.Register(ctx, metadata.Registration{ID: 1, Directory: metadata.ID{9}, Incarnation: metadata.NewID(), HostsReplicas: true})
				if err != nil {
					t.Errorf("register after the crash: %v", err)
					return
				}
				for _, e := range l.epochs {
					if e >= epoch {
						t.Errorf("epoch %d is given again or undercut by %d", e, epoch)
					}
				}
				l.check(t, s.Image())
				b, err := s.AllocateProducerIDs(ctx, 1, epoch)
				if err != nil || b.First < l.next {
					t.Errorf("producer ids from %d, %d are used (%v)", b.First, l.next, err)
				}
			}
		})
	})
}

// One voter of three loses its power at each of its disk's operations, comes back
// with what was synced, and agrees with the others in the end. The wire must show
// one vote and one leader a term all along.
func TestCrashOneOfThree(t *testing.T) {
	step := int64(1)
	if testing.Short() {
		step = 7
	}
	for _, victim := range []metadata.BrokerID{1, 2} {
		for at := int64(1); ; at += step {
			crashed := false
			synctest.Test(t, func(t *testing.T) { crashed = crashOneOfThree(t, victim, at) })
			if t.Failed() {
				t.Fatalf("victim %d, crash before change %d", victim, at)
			}
			if !crashed {
				t.Logf("victim %d: %d changes", victim, at)
				break
			}
		}
	}
}

func crashOneOfThree(t *testing.T, victim metadata.BrokerID, at int64) (crashed bool) {
	w := newWorld(t, 3, func(o *metadata.Options) { o.LogBytes = 3000 })
	fs := logtest.NewFS(uint64(at))
	defer func() {
		w.stop()
		crashed = fs.Crashed()
	}()
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind.Changes() && op.Changed >= at {
			fs.PowerOff()
		}
		return nil
	})
	w.nodes[victim] = &node{w: w, id: victim, dir: metadata.NewID(), fs: fs}
	back := func() {
		// It may have died while it was opened, and the cluster lives without it.
		w.nodes[victim].fs = fs.Crash()
		w.start(victim)
	}
	for id := metadata.BrokerID(1); id <= 3; id++ {
		if id != victim {
			w.start(id)
		}
	}
	if !w.tryStart(victim) {
		back()
		crashed = true
	}
	for _, n := range w.running() {
		n.server.Campaign()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var topics []metadata.Topic
	var last metadata.BrokerEpoch
	driver := w.nodes[3]
	for i := range 4 {
		epoch, err := driver.server.Register(ctx, metadata.Registration{ID: 3, Directory: driver.dir, Incarnation: metadata.NewID(), HostsReplicas: true})
		if err != nil {
			t.Errorf("register: %v", err)
			return crashed
		}
		if epoch <= last {
			t.Errorf("epoch %d after %d", epoch, last)
		}
		last = epoch
		if _, err := driver.server.Heartbeat(ctx, metadata.HeartbeatRequest{ID: 3, Epoch: epoch, AppliedIndex: driver.server.Image().Index()}); err != nil {
			t.Errorf("heartbeat: %v", err)
		}
		tp, err := driver.server.CreateTopic(ctx, metadata.TopicSpec{Name: fmt.Sprintf("t%d", i), Partitions: 3, Replication: 1})
		if err != nil && !errors.Is(err, metadata.ErrNotEnoughBrokers) {
			t.Errorf("create: %v", err)
			return crashed
		}
		if err == nil {
			topics = append(topics, tp)
		}
		if s := w.nodes[victim].server; s.Err() != nil && !crashed {
			crashed = true
			_ = s.Close()
			back()
		}
	}
	if len(topics) == 0 {
		t.Error("no topic was created")
	}
	time.Sleep(5 * time.Second)
	if s := w.nodes[victim].server; s.Err() != nil && !crashed {
		crashed = true
		_ = s.Close()
		back()
	}
	index := driver.server.Image().Index()
	for _, n := range w.running() {
		if err := n.server.Err(); err != nil {
			t.Errorf("node %d: %v", n.id, err)
		}
		im := w.waitFor(n, "the others' state", func(im *metadata.Image) bool { return im.Index() >= index })
		for _, want := range topics {
			if got, ok := im.Topic(want.ID); !ok || got != want {
				t.Errorf("node %d: topic %+v, want %+v", n.id, got, want)
			}
		}
	}
	w.sameState()
	return crashed
}

// tryStart reports whether the node could be opened.
func (w *world) tryStart(id metadata.BrokerID) (ok bool) {
	n := w.nodes[id]
	o := metadata.Options{FS: n.fs, Dir: "meta", Cluster: w.cluster, Self: id, Directory: n.dir, Voters: w.voters, Network: network{w, id}}
	if w.tune != nil {
		w.tune(&o)
	}
	s, err := metadata.Open(context.Background(), o)
	if err != nil {
		return false
	}
	w.mu.Lock()
	n.opt, n.server = o, s
	w.mu.Unlock()
	return true
}

// sameState waits until all running servers have the same index, and compares
// their state hashes.
func (w *world) sameState() {
	w.t.Helper()
	for range 100 {
		hashes := map[uint64]map[string]metadata.BrokerID{}
		for _, n := range w.running() {
			im := n.server.Image()
			if hashes[im.Index()] == nil {
				hashes[im.Index()] = map[string]metadata.BrokerID{}
			}
			hashes[im.Index()][im.StateHash()] = n.id
		}
		for index, hs := range hashes {
			if len(hs) > 1 {
				w.t.Errorf("state hashes differ at index %d: %v", index, hs)
				return
			}
		}
		if len(hashes) == 1 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Error("the servers don't get to the same index")
}
