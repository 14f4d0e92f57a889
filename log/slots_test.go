package log_test

import (
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// TestSlotNeverFarBehind appends groups of all sizes, so that slots stand near and at
// the end in turn, lets the machine die with something unsynced, and asks what the
// directory states: at most one acknowledged group less than there was.
func TestSlotNeverFarBehind(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			fs := logtest.NewFS(seed)
			l := open(t, fs, log.Options{})
			ends := []log.Offset{0, 0}
			text := func() string {
				return big("x", []int{10, 100, 1100, 1100, 1100, 2500, 5000, 20_000, 70_000}[r.IntN(9)])
			}
			for range 1 + r.IntN(12) {
				for range r.IntN(20) {
					// Small ones in a row, now and then another one.
					v := big("x", 900)
					if r.IntN(8) == 0 {
						v = text()
					}
					mustAppend(t, l, v)
					ends = append(ends, l.End())
				}
				for range r.IntN(3) {
					mustWrite(t, l, text())
				}
				if d := l.DurableEnd(); d > ends[len(ends)-1] {
					ends = append(ends, d) // a slot was in the way
				}
				if r.IntN(3) == 0 {
					continue
				}
				mode := logtest.CrashLoseSome(r.Uint64())
				if r.IntN(2) == 0 {
					fs = fs.Crash(mode)
				} else {
					// It dies with a group on its way, and writes behind that.
					release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
					var wg sync.WaitGroup
					wg.Go(func() { l.Append(t.Context(), plain(big("x", 900))) }) //nolint:errcheck // it may be lost
					synctest.Wait()
					v := plain(text())
					wg.Go(func() { l.Write(0, v) }) //nolint:errcheck // as above
					synctest.Wait()
					after := fs.Crash(mode)
					release()
					wg.Wait()
					fs = after
				}
				l = open(t, fs, log.Options{})
				rec := l.Recovery()
				if rec.Lossy || rec.DurableEnd < ends[len(ends)-2] || rec.End < ends[len(ends)-1] {
					t.Fatalf("seed %d: got %+v, groups were acknowledged up to %v", seed, rec, ends[max(0, len(ends)-3):])
				}
				ends = []log.Offset{rec.DurableEnd, l.End()} // Open makes one group of what was not known
			}
		})
	}
}

// TestSlotOnItsWay writes behind a group whose sync is stalled: not over its slot,
// whether that is the first near one or not.
func TestSlotOnItsWay(t *testing.T) {
	for small := range 50 {
		synctest.Test(t, func(t *testing.T) { slotOnItsWay(t, small) })
	}
}

func slotOnItsWay(t *testing.T, small int) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, big("x", 20_000)) // its slot stands at the end
	for range small {
		mustAppend(t, l, "small")
	}
	var slot atomic.Int64
	var over atomic.Bool
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind != logtest.OpWrite || !strings.HasSuffix(op.Path, ".log") {
			return nil
		}
		if op.Len == 96 {
			slot.Store(op.Offset)
		} else if at := slot.Load(); at > 0 && op.Offset <= at && at < op.Offset+int64(op.Len) {
			over.Store(true)
		}
		return nil
	})
	release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
	var wg sync.WaitGroup
	wg.Go(func() { mustAppend(t, l, "small") })
	synctest.Wait()
	wg.Go(func() { mustWrite(t, l, big("x", 9000)) })
	synctest.Wait()
	if slot.Load() == 0 || over.Load() {
		t.Errorf("the slot on its way at %d was written over: %v", slot.Load(), over.Load())
	}
	release()
	wg.Wait()
	fs.OnOp(nil)
	mustClose(t, l)
}

// TestSlotPlaces pins where slots stand: close behind the batches while appends are
// small, so that a sync has one place of the file to write, and else at its end.
func TestSlotPlaces(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, "first")
	var behind []int64 // of each slot's position, behind that of the write before
	var end int64
	fs.OnOp(func(op logtest.Op) error {
		switch {
		case op.Kind != logtest.OpWrite || !strings.HasSuffix(op.Path, ".log"):
		case op.Len == 96:
			behind = append(behind, op.Offset-end)
		default:
			end = op.Offset + int64(op.Len)
		}
		return nil
	})
	near := func(what string, appends, least, most int, value string) {
		t.Helper()
		behind = behind[:0]
		for range appends {
			mustAppend(t, l, value)
		}
		n := 0
		for _, d := range behind {
			if d > 0 && d < 8<<10 {
				n++
			}
		}
		if n < least || n > most {
			t.Errorf("%s: got %d near slots of %d, want %d to %d", what, n, len(behind), least, most)
		}
	}
	near("small", 20, 20, 20, big("x", 1024))
	near("large", 20, 0, 0, big("x", 20_000))
	near("small soon after large", 20, 0, 10, big("x", 1024))
	near("small again", 100, 50, 100, big("x", 1024))

	// Many writes behind a near slot: one sync for all of them, then none is in the way.
	syncs := fs.Count(logtest.OpSync)
	for range 100 {
		mustWrite(t, l, big("x", 2048))
	}
	if n := fs.Count(logtest.OpSync) - syncs; n > 2 {
		t.Errorf("got %d syncs for writes that nobody waits for", n)
	}
	fs.OnOp(nil)
	mustClose(t, l)
}

// TestNewestSlotFound lets logs live, with truncations and crashes, and looks at what
// each crash would leave: recovery, which does not read all of the active file, finds the
// newest slot in it.
func TestNewestSlotFound(t *testing.T) {
	looked := 0
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) { looked += newestSlots(t, seed) })
	}
	if looked < 1000 {
		t.Errorf("only %d files had slots", looked)
	}
}

func newestSlots(t *testing.T, seed uint64) (looked int) {
	r := rand.New(rand.NewPCG(seed, 2))
	fs := logtest.NewFS(seed)
	o := log.Options{SegmentBytes: 128 << 10}
	l := open(t, fs, o)
	for step := range 60 {
		switch n := r.IntN(20); {
		case n < 10:
			mustAppend(t, l, big("x", 10+r.IntN(1200)))
		case n < 12:
			mustAppend(t, l, big("x", r.IntN(40_000)))
		case n < 15:
			mustWrite(t, l, big("x", r.IntN(20_000)))
		case n < 16 && l.End() > l.Start():
			if _, err := l.TruncateTo(t.Context(), l.End()-1-log.Offset(r.IntN(int(min(l.End()-l.Start(), 8))))); err != nil {
				t.Fatal(err)
			}
		case n < 17:
			mustClose(t, l)
			l = open(t, fs, o)
		case n < 18:
			fs = fs.Crash(logtest.CrashLoseSome(r.Uint64()))
			l = open(t, fs, o)
		case n < 20:
			// It dies with a group on its way.
			release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
			v := plain(big("x", r.IntN(40_000)))
			var wg sync.WaitGroup
			wg.Go(func() { l.Append(t.Context(), v) }) //nolint:errcheck // it may be lost
			synctest.Wait()
			after := fs.Crash(logtest.CrashLoseSome(r.Uint64()))
			release()
			wg.Wait()
			fs = after
			l = open(t, fs, o)
		}
		left := fs.Fork(logtest.CrashLoseSome(r.Uint64()))
		name := activeName(left)
		if name == "" {
			continue
		}
		var base log.Offset
		if _, err := fmt.Sscanf(path.Base(name), "%d.log", &base); err != nil {
			t.Fatal(err)
		}
		found, all, err := log.NewestSlots(readAll(t, left, name), base)
		if err != nil || found != all {
			t.Fatalf("seed %d, step %d: got slot %d of %d, %v", seed, step, found, all, err)
		}
		if all > 0 {
			looked++
		}
	}
	mustClose(t, l)
	return looked
}
