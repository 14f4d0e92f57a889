package replication_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/replication"
)

func produced(t testing.TB, id int64, seq int32, value string) []byte {
	b := batch(t, value)
	x, _, err := record.Next(b, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	x.SetProducer(id, 0, seq)
	return x.Bytes()
}

func ready(t testing.TB, c *cluster, id replication.NodeID) *replication.Replica {
	t.Helper()
	r := c.replica(id)
	if _, err := r.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// Every refusal before the append says so, and every open outcome is an
// IndeterminateError.
func TestAppendErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, replication.Options{})
		defer c.close()
		r := ready(t, c, 1)
		var notLeader *replication.NotLeaderError
		if _, err := c.replica(2).Append(t.Context(), batch(t, "x"), replication.AcksAll); !errors.As(err, &notLeader) || notLeader.Leader != 1 || notLeader.Epoch != 1 {
			t.Errorf("append on a follower: %v", err)
		}
		bad := batch(t, "x")
		bad[len(bad)-1] ^= 1
		if _, err := r.Append(t.Context(), bad, replication.AcksAll); !errors.Is(err, log.ErrInvalidBatch) {
			t.Errorf("bad checksum: %v", err)
		}
		// The others are gone: appends stay open until ctx ends.
		c.mu.Lock()
		c.cut[2], c.cut[3] = true, true
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var open *replication.IndeterminateError
		_, err := r.Append(ctx, batch(t, "open"), replication.AcksAll)
		if !errors.As(err, &open) || !errors.Is(err, context.DeadlineExceeded) || open.Base != 1 || open.End != 2 {
			t.Errorf("append without followers: %v", err)
		}
		// In time they leave the set, and appends are refused before anything is done.
		time.Sleep(11 * time.Second)
		end := r.Log().End()
		if _, err := r.Append(t.Context(), batch(t, "x"), replication.AcksAll); !errors.Is(err, replication.ErrNotEnoughReplicas) {
			t.Errorf("one in sync: %v, %+v", err, r.Status())
		}
		if r.Log().End() != end {
			t.Error("a refused append was written")
		}
		if app, err := r.Append(t.Context(), batch(t, "leader only"), replication.AcksLeader); err != nil || app.Base != 2 {
			t.Errorf("acks of the leader: %+v, %v", app, err)
		}
		if hw := r.HighWatermark(); hw != 1 {
			t.Errorf("high watermark moved to %d with one in sync", hw)
		}
		if s := r.Status(); s.Waiting == "" {
			t.Errorf("status does not say why: %+v", s)
		}
		c.mu.Lock()
		clear(c.cut)
		c.mu.Unlock()
		c.tell()
		if err := r.Wait(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(values(t, r)); got != "[open leader only]" {
			t.Errorf("have %s", got)
		}
	})
}

// A retry is answered with the original offsets, and only when these are committed.
func TestDuplicateWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, replication.Options{LagMax: time.Hour, AckLatency: time.Hour})
		defer c.close()
		r := ready(t, c, 1)
		c.mu.Lock()
		c.cut[2], c.cut[3] = true, true
		c.mu.Unlock()
		first, err := r.Submit(t.Context(), produced(t, 9, 0, "once"), replication.AcksAll)
		if err != nil {
			t.Fatal(err)
		}
		again, err := r.Submit(t.Context(), produced(t, 9, 0, "once"), replication.AcksAll)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		select {
		case <-again.Done():
			t.Fatal("the retry is answered before the original is committed")
		default:
		}
		c.mu.Lock()
		clear(c.cut)
		c.mu.Unlock()
		a, err1 := first.Wait(t.Context())
		b, err2 := again.Wait(t.Context())
		if err1 != nil || err2 != nil || a.Base != b.Base || !b.Duplicate {
			t.Errorf("got %+v %v and %+v %v", a, err1, b, err2)
		}
	})
}

// A restarted process does not lead on an assignment of its earlier life, and
// SetSelf ends what is in flight.
func TestSetSelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, replication.Options{LagMax: time.Hour, AckLatency: time.Hour})
		defer c.close()
		r := ready(t, c, 1)
		c.mu.Lock()
		c.cut[2], c.cut[3] = true, true
		c.mu.Unlock()
		p, err := r.Submit(t.Context(), batch(t, "x"), replication.AcksAll)
		if err != nil {
			t.Fatal(err)
		}
		c.nodes[1].m.SetSelf(replication.Member{ID: 1, Epoch: 99})
		var open *replication.IndeterminateError
		if _, err := p.Wait(t.Context()); !errors.As(err, &open) {
			t.Errorf("append of the earlier life: %v", err)
		}
		var notLeader *replication.NotLeaderError
		if _, err := r.Append(t.Context(), batch(t, "y"), replication.AcksAll); !errors.As(err, &notLeader) || notLeader.Leader != -1 {
			t.Errorf("append of the new life: %v", err)
		}
	})
}

// A leader whose disk fails stops acknowledging and gives up.
func TestLeaderDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, replication.Options{})
		defer c.close()
		r := ready(t, c, 1)
		broken := errors.New("broken")
		c.nodes[1].fs.OnOp(func(o logtest.Op) error {
			if o.Kind == logtest.OpSync {
				return broken
			}
			return nil
		})
		_, err := r.Append(t.Context(), batch(t, "x"), replication.AcksAll)
		var open *replication.IndeterminateError
		if !errors.As(err, &open) {
			t.Errorf("append: %v", err)
		}
		if r.Healthy() || r.Status().Role == replication.RoleLeader {
			t.Errorf("still leads: %+v", r.Status())
		}
		synctest.Wait()
		if _, in := inISR(c, 1); in {
			t.Errorf("still in sync: %+v", c.assignment(partition))
		}
		c.nodes[1].fs.OnOp(nil)
	})
}

func inISR(c *cluster, id replication.NodeID) (replication.Member, bool) {
	for _, m := range c.assignment(partition).ISR {
		if m.ID == id {
			return m, true
		}
	}
	return replication.Member{}, false
}

// Close wakes everybody.
func TestCloseWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, replication.Options{LagMax: time.Hour, AckLatency: time.Hour})
		r := ready(t, c, 1)
		c.mu.Lock()
		c.cut[2], c.cut[3] = true, true
		c.mu.Unlock()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := r.Append(t.Context(), batch(t, "x"), replication.AcksAll)
			var open *replication.IndeterminateError
			if !errors.As(err, &open) || !errors.Is(err, replication.ErrClosed) {
				t.Errorf("append: %v", err)
			}
		})
		wg.Go(func() {
			if err := r.Wait(t.Context(), 100); !errors.Is(err, replication.ErrClosed) {
				t.Errorf("wait: %v", err)
			}
		})
		wg.Go(func() {
			if _, err := c.replica(2).WaitReady(t.Context()); !errors.Is(err, replication.ErrClosed) {
				t.Errorf("wait ready: %v", err)
			}
		})
		synctest.Wait()
		c.close()
		wg.Wait()
		if _, err := r.Read(t.Context(), 0, 1); !errors.Is(err, replication.ErrClosed) {
			t.Errorf("read: %v", err)
		}
		if err := c.nodes[1].m.Shutdown(); err != nil {
			t.Error(err)
		}
	})
}

// A replica that is far behind catches up in its own class, from the leader's local
// start, and joins.
func TestCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, replication.Options{FetchBytes: 4 << 10, ReplyBytes: 16 << 10})
		defer c.close()
		r := ready(t, c, 1)
		c.stop(3, true)
		c.without(3)
		value := string(bytes.Repeat([]byte("v"), 1000))
		for range 300 {
			if _, err := r.Append(t.Context(), batch(t, value), replication.AcksAll); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Log().TrimTo(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		c.start(3)
		for range 1000 {
			if _, in := inISR(c, 3); in {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if _, in := inISR(c, 3); !in {
			t.Fatalf("does not join: %+v\n%+v", r.Status(), c.replica(3).Status())
		}
		if got, want := len(values(t, c.replica(3))), 301-100; got < want {
			t.Errorf("has %d records, want %d", got, want)
		}
	})
}

// A log start may lie inside a batch: a replica that has nothing, or ends below it, or inside
// the records that are gone, begins with that whole batch, and comes to the same start.
func TestLogStartInsideBatch(t *testing.T) {
	ten := make([]string, 10)
	for i := range ten {
		ten[i] = string(bytes.Repeat([]byte("v"), 100))
	}
	for _, c := range []struct {
		name   string
		before int // batches that the replica has seen
		empty  bool
		roll   bool // the batch is the first of its segment
		retake bool // the log starts again there under another leader
	}{
		{name: "nothing", empty: true},
		{name: "nothing, first of its segment", empty: true, roll: true},
		{name: "behind", before: 3},
		{name: "up to the batch", before: 10},
		{name: "past the batch", before: 12},
		{name: "new leader", empty: true, retake: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, 3, replication.Options{FetchBytes: 4 << 10, ReplyBytes: 16 << 10})
				defer w.close()
				r := ready(t, w, 1)
				const batches = 20
				fill := func(n int) {
					t.Helper()
					for range n {
						if _, err := r.Append(t.Context(), batch(t, ten...), replication.AcksAll); err != nil {
							t.Fatal(err)
						}
					}
				}
				fill(c.before)
				w.stop(3, false)
				w.without(3)
				if c.empty {
					w.nodes[3].fs = logtest.NewFS(3)
				}
				fill(max(0, 10-c.before))
				if c.roll {
					if err := r.Log().Roll(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				fill(batches - max(10, c.before))
				start := log.Offset(1 + 10*10 + 4) // the first record is the epoch's
				for _, id := range []replication.NodeID{1, 2} {
					for w.replica(id).HighWatermark() < start {
						time.Sleep(time.Millisecond)
					}
					if err := w.replica(id).Log().TrimTo(t.Context(), start); err != nil {
						t.Fatal(err)
					}
				}
				if c.retake {
					w.stop(1, false)
					w.without(1)
					w.start(1)
					for range 1000 {
						if _, in := inISR(w, 1); in {
							break
						}
						time.Sleep(time.Millisecond)
					}
					r = ready(t, w, 2)
				}
				w.start(3)
				for range 1000 {
					if _, in := inISR(w, 3); in && w.replica(3).Log().Start() == start {
						break
					}
					time.Sleep(time.Millisecond)
				}
				got := w.replica(3)
				if _, in := inISR(w, 3); !in || got.Log().Start() != start || got.Log().End() != r.Log().End() {
					t.Fatalf("in sync %v\n%+v\n%+v", in, r.Status(), got.Status())
				}
				// It serves all that is left, as the leader does, and leads itself.
				if mine, its := values(t, r), values(t, got); !slices.Equal(mine, its) || len(its) < 10*(batches-10) {
					t.Errorf("%d records, the leader has %d", len(its), len(mine))
				}
				w.lead(partition, 3)
				r = ready(t, w, 3)
				fill(1)
				s, err := got.Log().Read(t.Context(), start, 1)
				if err != nil || s.Base() != start-4 {
					t.Fatalf("read at the log start: %v, %+v", err, s)
				}
				s.Release()
			})
		})
	}
}

// Seven idle days cost next to nothing when the timers are long.
func TestIdleWeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := make([]log.PartitionID, 20)
		for i := range ids {
			ids[i] = log.PartitionID{Topic: log.TopicID{9}, Index: int32(i)}
		}
		c := newCluster(t, 3, replication.Options{FetchWait: 5 * time.Minute}, ids...)
		defer c.close()
		time.Sleep(7 * 24 * time.Hour)
		for i, id := range ids {
			r := c.nodes[replication.NodeID(i%3+1)].m.Get(id)
			start := time.Now()
			if _, err := r.Append(t.Context(), batch(t, "after a week"), replication.AcksAll); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d > 10*time.Millisecond {
				t.Errorf("append after a week took %v", d)
			}
		}
	})
}

// A leader with many partitions and one that is very busy: nobody starves.
func TestFairness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := make([]log.PartitionID, 30)
		for i := range ids {
			ids[i] = log.PartitionID{Topic: log.TopicID{8}, Index: int32(i * 3)}
		}
		c := newCluster(t, 1, replication.Options{})
		c.close()
		c = newCluster(t, 3, replication.Options{FetchBytes: 8 << 10, ReplyBytes: 8 << 10}, ids...)
		defer c.close()
		for _, id := range ids {
			c.lead(id, 1)
		}
		busy := c.nodes[1].m.Get(ids[0])
		if _, err := busy.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		value := string(bytes.Repeat([]byte("b"), 8<<10))
		for range 8 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := busy.Append(t.Context(), batch(t, value), replication.AcksAll); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for _, id := range ids[1:] {
			start := time.Now()
			if _, err := c.nodes[1].m.Get(id).Append(t.Context(), batch(t, "quiet"), replication.AcksAll); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d > 20*time.Millisecond {
				t.Errorf("quiet partition waited %v", d)
			}
		}
		close(stop)
		wg.Wait()
	})
}

func ExampleManager() {
	network := replicationNetwork{}
	m, err := replication.NewManager(replication.Options{
		Self:       replication.Member{ID: 1, Epoch: 1},
		Controller: network,
		Network:    network,
	})
	if err != nil {
		panic(err)
	}
	defer m.Shutdown()
	ctx := context.Background()
	fs := logtest.NewFS(1)
	l, err := log.Open(ctx, "/p", log.Options{FS: fs, Partition: partition})
	if err != nil {
		panic(err)
	}
	defer l.Close()
	r, err := m.Open(ctx, l, fs, "/p", replication.ReplicaOptions{})
	if err != nil {
		panic(err)
	}
	// The cluster's metadata says that this process leads a partition of one replica.
	me := replication.Member{ID: 1, Epoch: 1}
	r.Apply(replication.Assignment{Partition: partition, Replicas: []replication.NodeID{1}, Leader: me, LeaderEpoch: 1,
		PartitionEpoch: 1, ISR: []replication.Member{me}, MinISR: 1})
	var b record.Builder
	if err := b.Append(record.Record{Value: []byte("hello")}); err != nil {
		panic(err)
	}
	batch, err := b.Build()
	if err != nil {
		panic(err)
	}
	app, err := r.Append(ctx, batch.Bytes(), replication.AcksAll)
	if err != nil {
		panic(err)
	}
	fmt.Println("offset", app.Base, "committed up to", r.HighWatermark())
	m.Close(partition)
	// Output: offset 1 committed up to 2
}

// replicationNetwork is for a cluster of one, which talks to nobody.
type replicationNetwork struct{}

func (replicationNetwork) Fetch(context.Context, replication.NodeID, bool, []byte) ([]byte, []byte, error) {
	return nil, nil, errUnreachable
}
func (replicationNetwork) Progress(replication.NodeID, []byte) {}
func (replicationNetwork) AlterISR(context.Context, replication.ISRChange) (replication.Assignment, error) {
	return replication.Assignment{}, errUnreachable
}

// A partition that moves to a leader from which others are fetched already does not
// wait for their parked call to end.
func TestLeaderMovesWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := []log.PartitionID{{Topic: log.TopicID{5}, Index: 0}, {Topic: log.TopicID{5}, Index: 1}}
		c := newCluster(t, 3, replication.Options{FetchWait: 5 * time.Minute}, ids...)
		defer c.close()
		time.Sleep(time.Hour)
		for i := range 4 {
			to := replication.NodeID(1 + i%2)
			start := time.Now()
			c.lead(ids[1], to)
			if _, err := c.nodes[to].m.Get(ids[1]).WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d > 10*time.Millisecond {
				t.Errorf("new leader was ready after %v", d)
			}
			time.Sleep(time.Minute + 7*time.Second)
		}
	})
}

// A sync that comes between the write of a batch and its registration leaves the
// append committed, not waiting for ever.
func TestSyncOvertakesSubmit(t *testing.T) {
	c := newCluster(t, 1, replication.Options{}) // in real time: the race needs two threads
	defer c.close()
	r := ready(t, c, 1)
	var syncer sync.WaitGroup
	defer syncer.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	syncer.Go(func() {
		for ctx.Err() == nil {
			r.Log().Sync(ctx)
		}
	})
	for i := range 20000 {
		p, err := r.Submit(ctx, batch(t, "x"), replication.AcksAll)
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Second)
		_, err = p.Wait(short)
		cancel()
		if err != nil {
			t.Fatalf("batch %d: %v; %+v", i, err, r.Status())
		}
	}
}
