package tier_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// TestEveryCallAtOnce: the calls are safe beside each other, on a partition that uploads,
// drops, trims, checkpoints and changes leaders all the time, over a store that fails now
// and then. It is for the race detector.
func TestEveryCallAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var appended atomic.Int64
	r := newRig(t, tier.WithInlineState(tier.Options{
		CacheBytes: 8 << 10, ReadBytes: 8 << 10, Reads: 2, Interval: time.Millisecond,
		MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
		CheckpointEvents: 5, CheckpointInterval: time.Second,
		Writer: func() bool { return true },
		Hooks:  tier.Hooks{Applied: func(tier.AppliedInfo) {}, Uploaded: func(tier.UploadedInfo) {}},
	}, 256))
	r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
		switch op.N % 20 {
		case 7:
			return tiertest.Fault{Err: tier.ErrUnavailable}
		case 13:
			return tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: op.Kind == "put"}
		}
		return tiertest.Fault{}
	})
	// Each call gives way to the others, who also have but two processors.
	wait := func(done func() bool) {
		for ctx.Err() == nil && !done() {
			time.Sleep(time.Millisecond)
		}
	}
	var writers, all sync.WaitGroup
	m, p := r.tier.Manager(), r.tier.Partition()
	other := testPartition
	other.Index++
	otherLog, err := log.Open(ctx, "other", log.Options{FS: r.fs, Partition: other, SegmentBytes: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	wait(func() bool { return m.Stats().OwnerChecked })
	calls := map[string]func(off log.Offset) error{
		"state": func(log.Offset) error {
			_, _, _, _ = p.View().Presence(), p.ID(), p.Log(), m.Get(other)
			s, _ := p.State()
			_, _, _ = s.Ranges(), s.Lineage(), s.Pending()
			p.Status()
			p.Backlog()
			m.Stats()
			return m.Err()
		},
		"read": func(off log.Offset) error {
			s, err := r.tier.Read(ctx, off, 1<<10)
			if err == nil {
				s.Release()
			}
			return err
		},
		"read cold": func(off log.Offset) error {
			s, err := p.Read(ctx, off, 1<<10)
			if err == nil {
				s.Release()
			}
			return err
		},
		"records": func(off log.Offset) error {
			for _, err := range r.tier.Records(ctx, off) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"time": func(off log.Offset) error {
			_, _, err := r.tier.OffsetForTime(ctx, time.Now().Add(-time.Millisecond))
			return err
		},
		"time cold": func(off log.Offset) error {
			_, _, err := p.OffsetForTime(ctx, time.Now().Add(-10*time.Millisecond))
			return err
		},
		"aborted": func(off log.Offset) error {
			end, err := r.tier.LastStable(ctx)
			if err == nil {
				_, err = r.tier.AbortedTransactions(ctx, off, end)
			}
			return err
		},
		"known": func(log.Offset) error { p.Kick(); return p.WaitKnown(ctx) },
		"trim":  func(off log.Offset) error { return p.TrimTo(ctx, off-50, "test") },
		"options": func(off log.Offset) error {
			return p.SetOptions(tier.PartitionOptions{
				Tiered: off%8 != 0, HighWatermark: r.hot.DurableEnd, LocalRetentionBytes: int64(off%3) << 12, RetentionBytes: 64 << 10,
			})
		},
		"sweep": func(log.Offset) error {
			_, err := p.Sweep(ctx, tier.SweepOptions{MinAge: time.Hour})
			return err
		},
		"audit": func(log.Offset) error {
			_, err := tier.Audit(ctx, tier.AuditOptions{Store: r.mem, Events: tier.ReadToEnd(ctx, r.events)})
			return err
		},
		"catalog": func(log.Offset) error {
			_, _, err := tier.LastWriter(ctx, r.mem, "")
			if err == nil {
				_, err = tier.Catalog(ctx, tier.CatalogOptions{Store: r.mem})
			}
			return err
		},
		"lead": func(off log.Offset) error {
			if off%2 == 0 {
				p.Follow()
			}
			if _, epoch, _ := p.Status(); epoch <= p.View().Epoch {
				p.Lead(p.View().Epoch + 1)
			}
			until := appended.Load() + 60
			wait(func() bool { return appended.Load() >= until })
			return nil
		},
		"other": func(log.Offset) error {
			p, err := m.Open(other, otherLog, tier.PartitionOptions{Tiered: true, HighWatermark: otherLog.DurableEnd})
			if err != nil {
				return err
			}
			defer p.Close()
			if err := p.WaitKnown(ctx); err != nil {
				return err
			}
			p.Lead(p.View().Epoch + 1)
			if _, err := otherLog.AppendRecords(ctx, log.Record{Value: value(0)}); err != nil {
				return err
			}
			p.Kick()
			return p.TrimTo(ctx, otherLog.DurableEnd()-20, "test")
		},
	}
	passes := []error{
		log.ErrOffsetOutOfRange, log.ErrTruncated, context.Canceled,
		tier.ErrUnknown, tier.ErrNotTiered, tier.ErrNotLeader, tier.ErrFenced, tier.ErrUnknownOutcome, tier.ErrUnavailable,
	}
	for name, call := range calls {
		all.Go(func() {
			for ctx.Err() == nil {
				start, end := r.tier.Start(), r.tier.End()
				err := call(start + (end-start)/2)
				for _, ok := range passes {
					if errors.Is(err, ok) {
						err = nil
					}
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	for range 2 {
		writers.Go(func() {
			for i := range 200 {
				_, err := r.tier.AppendRecords(ctx, log.Record{Value: value(i)})
				if i%20 == 0 {
					err = errors.Join(err, r.tier.Roll(ctx))
				}
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				appended.Add(1)
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	writers.Wait()
	cancel()
	all.Wait()
	// Nothing is lost between hot and cold, once a last leader has uploaded what there is.
	ctx = t.Context()
	if err := p.SetOptions(tier.PartitionOptions{Tiered: true, HighWatermark: r.hot.DurableEnd}); err != nil {
		t.Fatal(err)
	}
	p.Follow()
	p.Lead(p.View().Epoch + 10)
	wait(func() bool {
		leading, _, _ := p.Status()
		_, left := p.Backlog()
		return leading && left == 0
	})
	at := r.tier.Start()
	for rec, err := range r.tier.Records(t.Context(), at) {
		if err != nil || rec.Offset != at {
			t.Fatalf("offset %d: got %d, %v", at, rec.Offset, err)
		}
		at++
	}
	if n := m.Stats().Uploads; n == 0 || at != r.tier.End() {
		t.Errorf("%d uploads; read up to offset %d, want %d", n, at, r.tier.End())
	}
	r.close()
	if err := otherLog.Close(); err != nil {
		t.Error(err)
	}
}
