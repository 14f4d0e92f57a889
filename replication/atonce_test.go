package replication_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/replication"
)

// TestEveryCallAtOnce: the calls are safe beside each other, on three nodes whose
// partition changes leaders, lives and in-sync sets all the time, beside another that is
// closed and opened. It is for the race detector.
func TestEveryCallAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other := partition
	other.Index++
	c := newCluster(t, 3, replication.Options{
		FetchWait: 20 * time.Millisecond, RetryBackoff: time.Millisecond, HintInterval: time.Millisecond,
		FetchBytes: 1 << 10, ReplyBytes: 2 << 10,
		Hooks: replication.Hooks{
			Led: func(log.PartitionID, log.Epoch) {}, Lost: func(log.PartitionID, log.Epoch) {},
			HighWatermark: func(log.PartitionID, log.Offset) {}, Unhealthy: func(log.PartitionID, error) {},
		},
	}, partition, other)
	defer c.close()
	var appended atomic.Int64
	var writers, all sync.WaitGroup
	// await waits for n more appends: what changes the replicas gives them time to follow,
	// however slow the machine is.
	await := func(n int64) {
		for until := appended.Load() + n; ctx.Err() == nil && appended.Load() < until; {
			time.Sleep(time.Millisecond)
		}
	}
	soon := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, time.Millisecond) }
	calls := map[string]func(m *replication.Manager, r *replication.Replica) error{
		"state": func(_ *replication.Manager, r *replication.Replica) error {
			_ = fmt.Sprintf("%+v %v %v %v", r.Status(), r.Healthy(), r.Lossy(), r.Partition())
			_, err := r.LastStable(ctx)
			return err
		},
		"read": func(_ *replication.Manager, r *replication.Replica) error {
			s, err := r.Read(ctx, (r.Log().Start()+r.HighWatermark())/2, 1<<10)
			if err == nil {
				s.Release()
			}
			return err
		},
		"wait": func(_ *replication.Manager, r *replication.Replica) error {
			ctx, cancel := soon()
			defer cancel()
			return r.Wait(ctx, r.HighWatermark())
		},
		"ready": func(_ *replication.Manager, r *replication.Replica) error {
			ctx, cancel := soon()
			defer cancel()
			_, err := r.WaitReady(ctx)
			return err
		},
		"submit": func(_ *replication.Manager, r *replication.Replica) error {
			p, err := r.Submit(ctx, batch(t, "submitted"), replication.AcksLeader)
			if err == nil {
				<-p.Done()
				_, err = p.Wait(ctx)
			}
			await(1)
			return err
		},
		"control": func(_ *replication.Manager, r *replication.Replica) error {
			_, err := r.SubmitControl(ctx, record.EndTxn(true, 7, 0, 0, time.UnixMilli(1)), replication.AcksNone)
			await(1)
			return err
		},
		"apply": func(_ *replication.Manager, r *replication.Replica) error {
			r.Apply(c.assignment(partition))
			return nil
		},
		"log": func(_ *replication.Manager, r *replication.Replica) error {
			if err := r.Log().Roll(ctx); err != nil {
				return err
			}
			await(1)
			return r.Log().TrimTo(ctx, r.HighWatermark()/4)
		},
		"messages": func(m *replication.Manager, _ *replication.Replica) error {
			m.HandleProgress(9, []byte("no message"))
			if _, _, err := m.Handle(ctx, 9, []byte("no message")); !errors.Is(err, replication.ErrMessage) {
				return err
			}
			return nil
		},
		"lead": func(_ *replication.Manager, r *replication.Replica) error {
			c.change(partition, func(a *replication.Assignment) {
				a.Leader = a.ISR[int(appended.Load())%len(a.ISR)]
				a.LeaderEpoch++
			})
			await(20)
			return nil
		},
		"life": func(m *replication.Manager, _ *replication.Replica) error {
			c.mu.Lock()
			var n *node
			for _, n = range c.nodes {
				if n.m == m {
					break
				}
			}
			c.mu.Unlock()
			out, self := false, replication.Member{}
			c.change(partition, func(a *replication.Assignment) {
				rest := slices.DeleteFunc(slices.Clone(a.ISR), func(m replication.Member) bool { return m.ID == n.id })
				if out = len(rest) > 0; !out {
					return
				}
				a.ISR = rest
				if a.Leader.ID == n.id {
					a.Leader = rest[0]
					a.LeaderEpoch++
				}
				// In one step: nobody may lead whose life has ended.
				c.epoch++
				n.self.Epoch = c.epoch
				self = n.self
			})
			if out {
				m.SetSelf(self)
				c.tell()
			}
			await(20)
			return nil
		},
	}
	passes := []error{
		context.Canceled, context.DeadlineExceeded, log.ErrOffsetOutOfRange, log.ErrTruncated,
		replication.ErrNotYetAvailable, replication.ErrNotEnoughReplicas,
	}
	pass := func(err error) bool {
		var notLeader *replication.NotLeaderError
		var open *replication.IndeterminateError
		return err == nil || errors.As(err, &notLeader) || errors.As(err, &open) ||
			slices.ContainsFunc(passes, func(ok error) bool { return errors.Is(err, ok) })
	}
	for name, call := range calls {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				m := c.nodes[replication.NodeID(i%3+1)].m
				if err := call(m, m.Get(partition)); !pass(err) {
					t.Errorf("%s: %v", name, err)
					return
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	all.Go(func() {
		n := c.nodes[3]
		for ctx.Err() == nil {
			if err := n.m.Close(other); err != nil {
				t.Error(err)
				return
			}
			r, err := n.m.Open(ctx, n.logs[other], n.fs, "/"+other.String(), replication.ReplicaOptions{
				Tier: func() replication.TierView { return replication.TierView{} },
			})
			if err != nil {
				if !pass(err) {
					t.Error(err)
				}
				return
			}
			r.Apply(c.assignment(other))
			await(10)
		}
	})
	append1 := func(i int) error {
		r := c.replica(c.assignment(partition).Leader.ID)
		_, err := r.Append(ctx, batch(t, fmt.Sprint("appended ", i)), replication.AcksAll)
		return err
	}
	for range 3 {
		writers.Go(func() {
			for i := 0; i < 50; {
				err := append1(i)
				if !pass(err) {
					t.Errorf("append: %v", err)
					return
				}
				if err == nil {
					appended.Add(1)
					i++
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	writers.Wait()
	cancel()
	all.Wait()

	// All come to have the same.
	ctx = t.Context()
	c.tell()
	for append1(-1) != nil {
		time.Sleep(time.Millisecond)
	}
	end := c.replica(c.assignment(partition).Leader.ID).HighWatermark()
	var from log.Offset
	for id := range c.nodes {
		r := c.replica(id)
		if err := r.Wait(ctx, end-1); err != nil {
			t.Fatal(err)
		}
		from = max(from, r.Log().LocalStart())
	}
	var first []string
	for id := range c.nodes {
		var have []string
		for rec, err := range c.replica(id).Log().Records(ctx, from) {
			if err != nil {
				t.Fatal(err)
			}
			if rec.Offset < end {
				have = append(have, fmt.Sprintf("%d %s", rec.Offset, rec.Value))
			}
		}
		if first == nil {
			first = have
		}
		if !slices.Equal(have, first) {
			t.Errorf("node %d has %v, another %v", id, have, first)
		}
	}
}
