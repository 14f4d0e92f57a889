package log_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// TestConcurrent runs appenders, readers, tailers, rolls and trims at once.
func TestConcurrent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	fs := logtest.NewFS(1)
	disk, err := log.NewDisk(log.DiskOptions{FS: fs, OpenFiles: 3})
	if err != nil {
		t.Fatal(err)
	}
	l, err := log.Open(ctx, "/data/p", log.Options{Disk: disk, SegmentBytes: 20 << 10})
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 150
	var writing, rest sync.WaitGroup
	seen := make([]atomic.Int64, writers*each)
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				a, err := l.Append(ctx, plain(fmt.Sprintf("%d", w*each+i), fmt.Sprintf("%0*d", rand.IntN(500), 0)))
				if err != nil {
					t.Error(err)
					return
				}
				if d := l.DurableEnd(); d < a.End {
					t.Errorf("got durable end %d after append to %d", d, a.End)
				}
				seen[w*each+i].Store(int64(a.Base) + 1)
			}
		})
	}
	for range 3 { // tailers
		rest.Go(func() {
			next := log.Offset(0)
			for next < 2*writers*each {
				if err := l.WaitDurable(ctx, next); err != nil {
					t.Error(err)
					return
				}
				s, err := l.ReadBelow(ctx, next, l.DurableEnd(), 10_000)
				if errors.Is(err, log.ErrBelowLocalStart) {
					next = l.LocalStart()
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				for b, err := range s.Batches() {
					if err != nil || b.Verify() != nil || b.BaseOffset() > next {
						t.Errorf("at %d: got %d, %v", next, b.BaseOffset(), err)
						return
					}
					next = b.NextOffset()
				}
				if n, err := s.WriteTo(io.Discard); err != nil || n != int64(s.Len()) {
					t.Error(n, err)
				}
				s.Release()
			}
		})
	}
	stop := make(chan struct{})
	for range 2 { // random readers
		rest.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				lo, hi := l.LocalStart(), l.End()
				if hi <= lo {
					continue
				}
				off := lo + log.Offset(rand.Int64N(int64(hi-lo)))
				s, err := l.Read(ctx, off, 2000)
				if errors.Is(err, log.ErrBelowLocalStart) {
					continue
				}
				if err != nil || s.Base() > off || s.End() <= off {
					t.Errorf("read %d: %v", off, err)
					return
				}
				s.Release()
			}
		})
	}
	rest.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			var err error
			switch i % 4 {
			case 0:
				err = l.Roll(ctx)
			case 1:
				if i > 40 {
					err = l.DropLocal(ctx, l.DurableEnd()/2)
				}
			case 2:
				_, err = l.ProducerSnapshot(ctx, l.LocalStart())
				if errors.Is(err, log.ErrOffsetOutOfRange) {
					err = nil // dropped meanwhile
				}
			case 3:
				done := make(chan error, 1)
				l.SyncLater(func(_ log.Offset, err error) { done <- err })
				err = <-done
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	writing.Wait()
	close(stop)
	rest.Wait()
	cancel()
	if got := l.End(); got != 2*writers*each {
		t.Errorf("got end %d", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if n := disk.Stats().OpenFiles; n != 0 {
		t.Errorf("got %d open files after close", n)
	}
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}

// TestTruncatedUnderReaders truncates and appends other records while readers
// read: they get the one or the other or an error, never a mix.
func TestTruncatedUnderReaders(t *testing.T) {
	ctx := t.Context()
	l := open(t, logtest.NewFS(1), log.Options{SegmentBytes: 4 << 10})
	var wg sync.WaitGroup
	var least atomic.Int64 // generation that appends are of at least
	stop := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				gen := least.Load()
				off := log.Offset(rand.Int64N(40))
				s, err := l.Read(ctx, off, 5000)
				if errors.Is(err, log.ErrOffsetOutOfRange) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				for b := range s.Batches() {
					for r, err := range b.Records() {
						if err != nil {
							t.Error(err)
							return
						}
						var g, o int64
						if _, err := fmt.Sscanf(string(r.Value), "%d at %d", &g, &o); err != nil || log.Offset(o) != r.Offset || r.Offset >= 10 && g < gen {
							t.Errorf("got %q at %d in generation %d", r.Value, r.Offset, gen)
							return
						}
					}
				}
				s.Release()
			}
		})
	}
	for gen := range int64(60) {
		for l.End() < 40 {
			if _, err := l.Write(0, plain(fmt.Sprintf("%d at %d %0200d", gen, l.End(), 0))); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := l.TruncateTo(ctx, 10); err != nil {
			t.Fatal(err)
		}
		least.Store(gen + 1)
	}
	close(stop)
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNoAckBeforeSync stalls the sync: no append returns, nothing is durable, and
// readers of what is written are not held up. Case etcd 14370, 12589.
func TestNoAckBeforeSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{})
		if _, err := l.Append(ctx, plain("first")); err != nil {
			t.Fatal(err)
		}
		release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
		var acked atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := l.Append(ctx, plain("stalled")); err != nil {
					t.Error(err)
				}
				acked.Add(1)
			})
		}
		synctest.Wait() // the first append leads, the others gather behind it
		var later atomic.Int32
		for range 3 {
			l.SyncLater(func(end log.Offset, err error) {
				if end < 2 || err != nil {
					t.Error(end, err)
				}
				later.Add(1)
			})
		}
		short, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		wg.Go(func() {
			if err := l.WaitDurable(short, 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
		time.Sleep(2 * time.Hour)
		if acked.Load() != 0 || later.Load() != 0 || l.DurableEnd() != 1 {
			t.Errorf("got %d acks, %d callbacks, durable end %d with the sync stalled", acked.Load(), later.Load(), l.DurableEnd())
		}
		if _, err := l.Write(0, plain("more")); err != nil {
			t.Error(err)
		}
		s, err := l.Read(ctx, 0, 1<<20)
		if err != nil || s.End() < 3 {
			t.Errorf("read while the sync is stalled: %v", err)
		}
		syncs := l.Stats().Syncs
		release()
		wg.Wait()
		if d, err := l.Sync(ctx); err != nil || d != 12 {
			t.Errorf("got %d, %v", d, err)
		}
		synctest.Wait()
		if later.Load() != 3 {
			t.Errorf("got %d callbacks", later.Load())
		}
		if n := l.Stats().Syncs - syncs; n > 4 {
			t.Errorf("got %d syncs for ten appends", n)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestGroupOfProducers lets appends of idempotent producers gather behind a stalled
// sync: they share one write and one sync, and each is judged behind those before it.
func TestGroupOfProducers(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("full=%v", full), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				fs := logtest.NewFS(1)
				l := open(t, fs, log.Options{})
				for id := range int64(20) {
					if _, err := l.Append(ctx, sequenced(id, 0, 0, "first")); err != nil {
						t.Fatal(err)
					}
				}
				release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
				var wg sync.WaitGroup
				type answer struct {
					a   log.Appended
					err error
				}
				answers := make(map[string]*answer)
				add := func(name string, b []byte) {
					r := &answer{}
					answers[name] = r
					wg.Go(func() { r.a, r.err = l.Append(ctx, b) })
					synctest.Wait() // they come in this order
				}
				add("leader", plain("leads"))
				for id := range int64(20) {
					add(fmt.Sprint("next ", id), sequenced(id, 0, 1, "a", "b"))
				}
				add("again", sequenced(7, 0, 1, "a", "b"))
				add("old", sequenced(7, 0, 0, "first"))
				add("gap", sequenced(8, 0, 4, "too far"))
				add("then", sequenced(9, 0, 3, "c"))
				add("new", sequenced(100, 0, 0, "first"))
				add("plain", plain("no producer"))
				var writes atomic.Int32
				fs.OnOp(func(op logtest.Op) error {
					if op.Kind == logtest.OpWrite && op.Len > 1000 {
						writes.Add(1)
						if full {
							return syscall.ENOSPC
						}
					}
					return nil
				})
				release()
				wg.Wait()
				fs.OnOp(nil)
				want := func(name string, a log.Appended, err error) {
					t.Helper()
					if full && a.End > 21 {
						a, err = log.Appended{}, log.ErrDiskFull
					}
					if r := answers[name]; r.a != a || !errors.Is(r.err, err) {
						t.Errorf("%s: got %+v, %v; want %+v, %v", name, r.a, r.err, a, err)
					}
				}
				want("leader", log.Appended{Base: 20, End: 21}, nil)
				for id := range log.Offset(20) {
					want(fmt.Sprint("next ", id), log.Appended{Base: 21 + 2*id, End: 23 + 2*id}, nil)
				}
				want("again", log.Appended{Base: 35, End: 37, Epoch: -1, Duplicate: true}, nil)
				want("old", log.Appended{Base: 7, End: 8, Epoch: -1, Duplicate: true}, nil)
				want("gap", log.Appended{}, log.ErrOutOfOrderSequence)
				want("then", log.Appended{Base: 61, End: 62}, nil)
				want("new", log.Appended{Base: 62, End: 63}, nil)
				want("plain", log.Appended{Base: 63, End: 64}, nil)
				if n := writes.Load(); n != 1 {
					t.Errorf("got %d writes for one group", n)
				}
				if full {
					// None of it is in the log, and the log knows.
					if a, err := l.Append(ctx, sequenced(7, 0, 1, "a", "b")); err != nil || a.Base != 21 {
						t.Errorf("got %+v, %v", a, err)
					}
				}
				mustClose(t, l)
			})
		})
	}
}

func TestWaitersWokenByClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{})
		var wg sync.WaitGroup
		for _, f := range []func(context.Context, log.Offset) error{l.Wait, l.WaitDurable} {
			wg.Go(func() {
				if err := f(context.Background(), 0); !errors.Is(err, log.ErrClosed) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		for range 3 {
			wg.Go(func() {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if _, err := l.Append(t.Context(), plain("x")); !errors.Is(err, log.ErrClosed) {
			t.Errorf("got %v", err)
		}
		if _, err := l.Read(t.Context(), 0, 1); !errors.Is(err, log.ErrClosed) {
			t.Errorf("got %v", err)
		}
		called := false
		l.SyncLater(func(_ log.Offset, err error) { called = errors.Is(err, log.ErrClosed) })
		if !called {
			t.Error("callback after Close was not called")
		}
	})
}

func TestAppendContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{})
		release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.Append(context.Background(), plain("leads")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for range 5 {
			wg.Go(func() {
				if _, err := l.Append(ctx, plain("waits")); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		}
		time.Sleep(time.Minute)
		release()
		wg.Wait()
		if l.End() != 1 {
			t.Errorf("got end %d: an append that was given up before its turn went in", l.End())
		}
		if _, err := l.Append(context.Background(), plain("next")); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestIdleLogHoldsNothing(t *testing.T) {
	fs := logtest.NewFS(1)
	disk, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", OpenFiles: 1})
	if err != nil {
		t.Fatal(err)
	}
	var logs []*log.Log
	for i := range 5 {
		l, err := log.Open(t.Context(), fmt.Sprintf("/data/%d", i), log.Options{Disk: disk})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append(t.Context(), plain("x")); err != nil {
			t.Fatal(err)
		}
		logs = append(logs, l)
	}
	if s := disk.Stats(); s.OpenFiles > 1 || s.Workers > 0 || s.Logs != 5 {
		t.Errorf("got %+v", s)
	}
	if _, err := log.Open(t.Context(), "/data/3", log.Options{Disk: disk}); !errors.Is(err, log.ErrLocked) {
		t.Errorf("got %v for a log that is open", err)
	}
	if _, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"}); !errors.Is(err, log.ErrLocked) {
		t.Errorf("got %v for a tree that is in use", err)
	}
	if err := disk.Close(); err == nil {
		t.Error("a disk with open logs was closed")
	}
	for _, l := range logs {
		if got := values(t, l, 0); len(got) != 1 {
			t.Errorf("got %q", got)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}

// TestDropWaitsForState: what keeps producers and epochs of dropped segments is
// durable before they go.
func TestDropWaitsForState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync && strings.Contains(op.Path, ".state") })
		for i := range 10 {
			if _, err := l.Append(t.Context(), sequenced(3, 0, int32(i), big("x", 400))); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error)
		go func() { done <- l.DropLocal(context.Background(), 5) }()
		select {
		case err := <-done:
			t.Errorf("dropped before the state was synced: %v", err)
		case <-time.After(time.Hour):
		}
		release()
		if err := <-done; err != nil || l.LocalStart() == 0 {
			t.Errorf("got %v, local start %d", err, l.LocalStart())
		}
		mustClose(t, l)
	})
}
