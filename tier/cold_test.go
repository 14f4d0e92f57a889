package tier_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// TestCompressedChunks: reads, time lookups, audit and restore do not notice whether
// chunks are compressed, and both kinds stand side by side.
func TestCompressedChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		var times []time.Time
		second := func(n int) {
			for range n {
				times = append(times, time.Now())
				r.fill(1)
				time.Sleep(time.Second)
			}
			settle()
		}
		second(100)
		r.close()
		plain := r.mem.Len()
		r.open(tier.Options{CompressChunks: true, ChunkBytes: 64 << 10})
		second(200)
		r.check(0)
		state, _ := r.tier.Partition().State()
		for i, x := range state.Ranges() {
			if compressed := x.ObjectBytes < x.BatchBytes; compressed != (i+1 >= plain) {
				t.Errorf("range %d has %d bytes of batches in an object of %d", i, x.BatchBytes, x.ObjectBytes)
			}
		}
		for _, i := range []int{0, 50, 120, 199, 250} {
			off, ok, err := r.tier.OffsetForTime(t.Context(), times[i])
			if off != log.Offset(i) || !ok || err != nil {
				t.Errorf("time of record %d: offset %d, %v, %v", i, off, ok, err)
			}
		}
		if a := r.audit(tier.AuditBytes); !a.Clean() {
			t.Errorf("audit: %+v", a.Findings)
		}
		chains, err := tier.Catalog(t.Context(), tier.CatalogOptions{Store: r.mem})
		if err != nil || len(chains) != 1 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		restored, err := log.Open(t.Context(), "restored", log.Options{FS: logtest.NewFS(2), Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		if end, err := chains[0].Restore(t.Context(), restored, tier.RestoreOptions{Store: r.mem}); err != nil || end != r.tier.Partition().View().TierEnd {
			t.Errorf("restored up to %d: %v", end, err)
		}
		at := log.Offset(0)
		for rec, err := range restored.Records(t.Context(), 0) {
			if err != nil || rec.Offset != at || !bytes.Equal(rec.Value, value(int(at))) {
				t.Fatalf("restored offset %d: %d, %v", at, rec.Offset, err)
			}
			at++
		}
		if err := restored.Close(); err != nil {
			t.Error(err)
		}

		// A flipped byte anywhere in a compressed object is noticed by whoever reads it.
		last := state.Ranges()[len(state.Ranges())-1]
		key := tier.Key{Partition: testPartition, Base: last.Base, End: last.End, Epoch: last.Epoch, ID: last.ID}.Path("")
		r.close()
		r.mem.Corrupt(key, 500)
		r.open(tier.Options{})
		if _, err := r.tier.Read(t.Context(), last.Base, 1); !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("read of a damaged object: %v", err)
		}
		if a := r.audit(tier.AuditBytes); len(a.Findings) != 1 || a.Findings[0].Kind != tier.FindingCorrupt {
			t.Errorf("audit of a damaged object: %+v", a.Findings)
		}
		_ = errors.Join(r.tier.Close(), r.events.Close(), r.hot.Close())
	})
}

// TestNotFoundIsResolvedOnce: whoever misses an object has the state read again: once.
func TestNotFoundIsResolvedOnce(t *testing.T) {
	key := func(x tier.Range) string {
		return tier.Key{Partition: testPartition, Base: x.Base, End: x.End, Epoch: x.Epoch, ID: x.ID}.Path("")
	}
	for name, call := range map[string]func(ctx context.Context, p *tier.Partition, x tier.Range) error{
		"read": func(ctx context.Context, p *tier.Partition, x tier.Range) error {
			s, err := p.Read(ctx, x.Base, 1)
			if err == nil {
				s.Release()
			}
			return err
		},
		"time": func(ctx context.Context, p *tier.Partition, x tier.Range) error {
			off, ok, err := p.OffsetForTime(ctx, time.Time{})
			if err == nil && (!ok || off < x.Base) {
				err = errors.New("no such record")
			}
			return err
		},
		"aborted": func(ctx context.Context, p *tier.Partition, x tier.Range) error {
			_, err := p.AbortedTransactions(ctx, x.Base, x.End)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// The same records twice, so that a range has another object.
				a, b := newRig(t, tier.Options{}), newRig(t, tier.Options{})
				a.fill(100)
				b.fill(100)
				settle()
				state, _ := a.tier.Partition().State()
				other, _ := b.tier.Partition().State()
				x, y := state.Ranges()[0], other.Ranges()[0]
				if x.End != y.End || x.ID == y.ID {
					t.Fatalf("ranges [%d, %d) and [%d, %d)", x.Base, x.End, y.Base, y.End)
				}
				object, err := b.mem.GetRange(t.Context(), key(y), 0, y.ObjectBytes)
				if err != nil {
					t.Fatal(err)
				}
				b.close()

				// Lost: two requests and an alarm, in bounded time.
				a.remove(key(x))
				before := a.store.Counts().Get
				a.store.SetFault(func(op tiertest.Op) tiertest.Fault {
					if op.Key == key(x) && a.store.Counts().Get-before > 10 {
						return tiertest.Fault{Err: tier.ErrDenied} // or it might be asked for for ever
					}
					return tiertest.Fault{}
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var missing *tier.MissingError
				if err := call(ctx, a.tier.Partition(), x); !errors.As(err, &missing) || missing.Key != key(x) {
					t.Errorf("lost: %v", err)
				}
				if n := a.store.Counts().Get - before; n != 2 || a.stats().Missing != 1 {
					t.Errorf("lost: %d requests, %d alarms", n, a.stats().Missing)
				}

				// Superseded while it is asked for: the new one is read.
				a.put(key(y), object)
				a.store.SetFault(func(op tiertest.Op) tiertest.Fault {
					if op.Key == key(x) {
						a.tier.Partition().Supersede(y)
					}
					return tiertest.Fault{}
				})
				if err := call(ctx, a.tier.Partition(), x); err != nil || a.stats().Missing != 1 {
					t.Errorf("superseded: %v", err)
				}
				a.store.SetFault(nil)
				a.tier.Partition().Supersede(x)

				// The log start passes it while it is asked for.
				var once atomic.Bool
				a.store.SetFault(func(op tiertest.Op) tiertest.Fault {
					if op.Key == key(x) && op.Kind == "get" && !once.Swap(true) {
						if err := a.tier.TrimTo(t.Context(), x.End); err != nil {
							t.Error(err)
						}
						return tiertest.Fault{Err: tier.ErrNotFound}
					}
					return tiertest.Fault{}
				})
				err = call(ctx, a.tier.Partition(), x)
				if want := name != "time"; errors.Is(err, log.ErrOffsetOutOfRange) != want || (err == nil) == want || a.stats().Missing != 1 {
					t.Errorf("below the log start: %v", err)
				}
				a.close()
			})
		})
	}
}

// cacheNames lists the files of a rig's disk cache.
func (r *rig) cacheNames() []string {
	r.t.Helper()
	names, err := r.fs.List("cache")
	if err != nil {
		r.t.Fatal(err)
	}
	return names
}

// TestDiskCacheSurvivesRestart: what was read once is not asked for again, by the same
// process or the next one; a broken disk is nobody's error.
func TestDiskCacheSurvivesRestart(t *testing.T) {
	for _, compress := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, tier.Options{})
			r.close()
			o := tier.Options{
				DiskCacheFS: r.fs, DiskCacheDir: "cache", CacheBytes: 1, CompressChunks: compress,
				DiskCacheReserveBytes: -1, MaxBackoff: time.Second,
			}
			r.open(o)
			r.fill(300)
			settle()
			r.check(0)
			settle()
			for range 2 {
				before := r.store.Counts().Get
				r.check(0)
				if got := r.store.Counts().Get - before; got != 0 {
					t.Errorf("%d requests for what is in the disk cache", got)
				}
				s := r.stats()
				if s.DiskHits == 0 || s.DiskFiles != len(r.cacheNames())-1 || s.DiskBytes == 0 || s.DiskFailures+s.DiskDamaged > 0 {
					t.Errorf("%+v, files %v", s, r.cacheNames())
				}
				r.close()
				r.open(o)
				settle() // the owner is read, the cache's files are found
			}
			// One manager at a time.
			if _, err := tier.NewManager(tier.Options{Store: r.mem, Events: r.events, Cluster: tier.ID{1}, DiskCacheFS: r.fs, DiskCacheDir: "cache"}); !errors.Is(err, log.ErrLocked) {
				t.Errorf("a second manager: %v", err)
			}
			// Every file is damaged: the store is asked, and nobody notices.
			disk := r.fs.(*logtest.FS)
			for _, name := range r.cacheNames() {
				if name != "lock" {
					if err := disk.Corrupt("cache/"+name, 60, 1); err != nil {
						t.Fatal(err)
					}
				}
			}
			r.check(0)
			if s := r.stats(); s.DiskDamaged == 0 {
				t.Error("no damage was noticed")
			}
			// The disk takes nothing and gives nothing.
			settle()
			disk.OnOp(func(op logtest.Op) error {
				if strings.Contains(op.Path, "cache/") && op.Kind != logtest.OpClose {
					return errors.New("the disk is broken")
				}
				return nil
			})
			r.check(0)
			settle()
			r.check(0)
			disk.OnOp(nil)
			r.close()
		})
	}
}
