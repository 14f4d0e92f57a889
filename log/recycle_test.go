package log_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// rest waits until the log has nothing to do in the background.
func rest(l *log.Log) {
	for l.Stats().Chores > 0 && l.Err() == nil {
		runtime.Gosched()
	}
}

func (f *life) rest() {
	if !f.dead {
		rest(f.l)
	}
}

func (f *life) trim(back log.Offset) {
	if f.dead {
		return
	}
	f.sync()
	start := max(f.w.start, f.w.written-back)
	f.step(func(w *world) { w.start, w.local = start, max(w.local, start) }, func() error { return f.l.TrimTo(context.Background(), start) })
}

func (f *life) drop() {
	if f.dead {
		return
	}
	local := f.w.local
	segs := f.l.Segments()
	for _, s := range segs[:len(segs)-1] {
		local = max(local, s.End)
	}
	f.sync()
	f.step(func(w *world) { w.local = local }, func() error { return f.l.DropLocal(context.Background(), f.w.written) })
}

func (f *life) reset(to log.Offset) {
	f.step(func(w *world) {
		w.start, w.local, w.written, w.acked, w.stated = min(w.start, to), to, to, to, 0
		w.bounds = map[log.Offset]bool{to: true}
		w.epochs, w.produced = nil, nil
		clear(w.vals)
	}, func() error { return f.l.Reset(context.Background(), to, nil, nil) })
}

// recycling is a life in which files are freed and used again all the time.
func recycling(t testing.TB, fs *logtest.FS, scale int) *life {
	f := &life{t: t, fs: fs, w: newWorld(), scale: scale, dir: "/data/p"}
	f.open()
	for range 14 {
		f.append(2)
	}
	f.trim(3)
	f.rest()
	for i := range 14 { // over at least one recycled file
		f.append(2)
		f.write(0, 1)
		if i%3 == 0 {
			f.rest()
		}
	}
	f.drop()
	f.rest()
	for range 9 {
		f.write(1, 2) // rolls without a sync of its own
	}
	f.append(1)
	f.truncate(8)
	f.append(2)
	f.close()
	f.open()
	for range 8 { // over a file that was kept over the close
		f.append(2)
	}
	f.truncate(5)
	for range 8 {
		f.append(3)
	}
	f.drop()
	f.rest()
	f.append(1)
	f.reset(3) // offsets that stood in recycled files
	for range 12 {
		f.append(1)
	}
	f.trim(2)
	f.rest()
	for range 8 {
		f.append(2)
		f.write(0, 2)
	}
	f.sync()
	return f
}

func (f *life) finish(recycled *int64) {
	f.rest()
	if f.l != nil {
		checkStale(f.t, f.fs, f.l)
	}
	f.close()
	*recycled = max(*recycled, f.recycled)
}

func TestCrashRecycled(t *testing.T) {
	t.Parallel()
	for _, scale := range []int{1, 10, 40} {
		t.Run(fmt.Sprintf("scale=%d", scale), func(t *testing.T) {
			looks, recycled := 0, int64(0)
			logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
				f := recycling(t, fs, scale)
				f.looks, f.nested = &looks, 5*scale+1
				f.finish(&recycled)
				return f.check
			})
			if recycled < 3 {
				t.Errorf("only %d segments began in a recycled file", recycled)
			}
		})
	}
}

func TestFaultRecycled(t *testing.T) {
	t.Parallel()
	for _, scale := range []int{1, 40} {
		t.Run(fmt.Sprintf("scale=%d", scale), func(t *testing.T) {
			recycled := int64(0)
			logtest.EachFault(t, func(fs *logtest.FS) func(*logtest.FS) {
				f := recycling(t, fs, scale)
				f.finish(&recycled)
				return f.verify
			})
		})
	}
}

// checkStale proves of the files what spare.go says: every batch that is whole in a
// spare file, at whatever position, is below the local start, and every one behind
// the end of the active file below its base.
func checkStale(t testing.TB, fs *logtest.FS, l *log.Log) {
	t.Helper()
	if fs.Crashed() || l.Err() != nil {
		return
	}
	segs := l.Segments()
	active := segs[len(segs)-1]
	for _, name := range fs.Names() {
		var from int64
		var below log.Offset
		switch {
		case strings.Contains(name, "cordwood.spare-"):
			below = l.LocalStart()
		case strings.HasSuffix(name, fmt.Sprintf("/%020d.log", int64(active.Base))):
			from, below = active.Bytes, active.Base
		default:
			continue
		}
		b := readAll(t, fs, name)
		for at := from; at+record.HeaderBytes <= int64(len(b)); at++ {
			if b[at+16] != 2 || b[at] != 0 {
				continue
			}
			x, _, err := record.Next(b[at:], 1<<20)
			if err == nil && x.Verify() == nil && x.LastOffset() >= below {
				t.Fatalf("%s holds offset %d at byte %d, and [%d, %d) is to come", name, x.LastOffset(), at, below, active.End)
			}
		}
	}
}

// filled makes a log of segments of 4 KiB with n records, and closes over nothing.
func filled(t testing.TB, l *log.Log, n int) {
	t.Helper()
	for range n {
		mustAppend(t, l, big(fmt.Sprint(l.End()), 1000))
	}
}

// TestRecycledUnderReaders holds a reader in the middle of a segment that is freed
// meanwhile: the file is not used again before it is done, and it gets what it asked
// for or an error that says why not.
func TestRecycledUnderReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		disk, err := log.NewDisk(log.DiskOptions{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		l, err := log.Open(t.Context(), "/data/p", log.Options{Disk: disk, SegmentBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		filled(t, l, 12)
		slice, err := l.Read(t.Context(), 1, 1) // bytes that are handed out stay
		if err != nil {
			t.Fatal(err)
		}
		release := fs.Stall(func(op logtest.Op) bool {
			return op.Kind == logtest.OpRead && strings.HasSuffix(op.Path, "/00000000000000000000.log")
		})
		type result struct {
			s   *log.Slice
			err error
		}
		done := make(chan result, 1)
		go func() {
			s, err := l.Read(context.Background(), 0, 1)
			done <- result{s, err}
		}()
		synctest.Wait()
		if err := l.TrimTo(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		filled(t, l, 12)
		synctest.Wait()
		if got := l.Stats().Recycled; got == 0 {
			t.Error("the other files were not used again")
		}
		before := disk.Stats().RecycledFiles
		release()
		r := <-done
		if r.err == nil && value(t, r.s) != big("0", 1000) || r.err != nil && !errors.Is(r.err, log.ErrOffsetOutOfRange) {
			t.Errorf("got %v", r.err)
		}
		synctest.Wait()
		if got := disk.Stats().RecycledFiles; got != before+1 {
			t.Errorf("got %d recycled files when the reader was done, had %d", got, before)
		}
		filled(t, l, 12)
		if got := value(t, slice); got != big("1", 1000) {
			t.Errorf("the slice has changed to %.20q", got)
		}
		checkStale(t, fs, l)
		mustClose(t, l)
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
}

func value(t testing.TB, s *log.Slice) string {
	t.Helper()
	for b, err := range s.Batches() {
		if err != nil {
			t.Fatal(err)
		}
		for r, err := range b.Records() {
			if err != nil {
				t.Fatal(err)
			}
			return string(r.Value)
		}
	}
	return ""
}

// recycledLog returns a log whose active segment is a recycled file that held the
// batches of old before, and is empty.
func recycledLog(t *testing.T, fs *logtest.FS, o log.Options, old ...[]byte) *log.Log {
	t.Helper()
	l := open(t, fs, o)
	for _, b := range old {
		if _, err := l.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := l.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		rest(l)
		if l.Stats().Recycled == 0 {
			mustAppend(t, l, "between")
			if err := l.TrimTo(t.Context(), l.End()-1); err != nil {
				t.Fatal(err)
			}
			rest(l)
		}
	}
	if l.Stats().Recycled != 1 {
		t.Fatalf("got %+v", l.Stats())
	}
	return l
}

// TestForgedBatches: a record of the file's earlier life holds, just where the next
// batch would be, a whole batch with the offset that comes next, and the epoch. It
// was never appended, so recovery must not take it.
func TestForgedBatches(t *testing.T) {
	for _, unsynced := range []bool{false, true} {
		first := plain(big("first", 500))
		forged := func(base log.Offset) []byte {
			b, _, err := record.Next(plain("forged"), 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			b.SetBaseOffset(base)
			b.SetLeaderEpoch(0)
			return b.Bytes()
		}
		// Find the record that puts it behind a batch of that length.
		at := len(first)
		var old []byte
		for pad := range at {
			x := plain(strings.Repeat("~", pad) + string(forged(3)))
			if i := strings.Index(string(x), string(forged(3))); i == at {
				old = x
				break
			}
		}
		if old == nil {
			t.Fatal("no such record")
		}
		fs := logtest.NewFS(1)
		l := recycledLog(t, fs, log.Options{}, old)
		if l.End() != 2 {
			t.Fatalf("got end %d", l.End())
		}
		if unsynced {
			if _, err := l.Write(0, first); err != nil {
				t.Fatal(err)
			}
		} else if _, err := l.Append(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("/data/p/%020d.log", 2)
		if b := readAll(t, fs, name); string(b[at:at+len(forged(3))]) != string(forged(3)) {
			t.Fatal("the forged batch is not where it was to be")
		}
		l = open(t, fs.Crash(logtest.CrashKeepAll), log.Options{})
		if got := l.End(); got > 3 || !unsynced && got != 3 || l.Recovery().Lossy {
			t.Errorf("unsynced=%v: got end %d, %+v", unsynced, got, l.Recovery())
		}
		mustAppend(t, l, "goes on")
		mustClose(t, l)
	}
}

// TestTornRecycled tears the last group in a recycled file in every way: the log
// ends before it, whatever of the file's earlier life stands there.
func TestTornRecycled(t *testing.T) {
	var old [][]byte
	for i := range 20 {
		old = append(old, plain(big(fmt.Sprint("old", i), 700)))
	}
	whole, torn := 0, 0
	for seed := range uint64(150) {
		fs := logtest.NewFS(seed)
		l := recycledLog(t, fs, log.Options{}, old...)
		from := l.End()
		mustAppend(t, l, big("acknowledged", 700))
		at := fs.Changes()
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind == logtest.OpSync && op.Changed > at {
				fs.PowerOff()
			}
			return nil
		})
		if _, err := l.Append(t.Context(), plain(big("one", 2000), big("two", 2000))); err == nil {
			t.Fatal("no error")
		}
		l.Close() //nolint:errcheck // dead
		l = open(t, fs.Crash(logtest.CrashLoseSome(seed)), log.Options{})
		r := l.Recovery()
		got := values(t, l, from)
		switch {
		case r.Lossy, len(got) == 0, got[0] != big("acknowledged", 700), len(got) != 1 && len(got) != 3:
			t.Fatalf("seed %d: got %d records, %+v", seed, len(got), r)
		case len(got) == 3:
			whole++
		case r.CutBytes > 0:
			torn++
			if r.CutPath == "" {
				t.Fatalf("seed %d: no copy: %+v", seed, r)
			}
		}
		mustAppend(t, l, big("new", 2000))
		mustClose(t, l)
	}
	if whole < 2 || torn < 20 {
		t.Errorf("of 150 groups %d are whole and %d torn", whole, torn)
	}
}

// TestRollOnlyRenames: with the next file at hand, appends go on over a roll while
// folders can't be synced, nor files made, and the old segment not sealed. Cases
// KAFKA-9693 and KAFKA-15046.
func TestRollOnlyRenames(t *testing.T) {
	for _, recycled := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{SegmentBytes: 40 << 10})
			if recycled {
				filled(t, l, 50)
				if err := l.TrimTo(t.Context(), l.End()-1); err != nil {
					t.Fatal(err)
				}
			}
			for l.Segments()[len(l.Segments())-1].Bytes < 30<<10 { // over the half
				mustAppend(t, l, big("x", 1000))
			}
			synctest.Wait()
			before := l.Stats()
			active := fmt.Sprintf("/%020d.log", int64(l.Segments()[len(l.Segments())-1].Base))
			release := fs.Stall(func(op logtest.Op) bool {
				switch op.Kind {
				case logtest.OpSync:
					return !strings.Contains(op.Path, "spare-") && !strings.HasSuffix(op.Path, active)
				case logtest.OpSyncDir, logtest.OpCreate, logtest.OpRemove, logtest.OpTruncate:
					return true
				}
				return false
			})
			begin := time.Now()
			filled(t, l, 30)
			after := l.Stats()
			if after.Rolls != before.Rolls+1 || recycled != (after.Recycled > before.Recycled) {
				t.Errorf("got %+v, had %+v", after, before)
			}
			if d := time.Since(begin); d != 0 {
				t.Errorf("took %v", d)
			}
			release()
			mustClose(t, l)
		})
	}
}

// TestRecycledBounds: how many files are kept, and when they go.
func TestRecycledBounds(t *testing.T) {
	spares := func(fs *logtest.FS) (n int) {
		for _, name := range fs.Names() {
			if strings.Contains(name, "cordwood.spare-") {
				n++
			}
		}
		return n
	}
	trim := func(t *testing.T, l *log.Log) {
		t.Helper()
		if err := l.TrimTo(t.Context(), l.End()); err != nil {
			t.Fatal(err)
		}
		rest(l)
	}
	o := log.Options{SegmentBytes: 4 << 10}
	t.Run("one log", func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, o)
		filled(t, l, 60)
		rest(l)
		if err := l.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		trim(t, l)
		if n := spares(fs); n != 4 && n != 5 { // and perhaps one that was made in advance
			t.Errorf("got %d files", n)
		}
		if n := len(l.Segments()); n != 1 {
			t.Errorf("got %d segments", n)
		}
		mustClose(t, l)
		if n := spares(fs); n != 4 {
			t.Errorf("got %d files after the close", n)
		}
		l = open(t, fs.Crash(), o) // as after any time
		if !l.Recovery().Clean {
			t.Fatalf("got %+v", l.Recovery())
		}
		filled(t, l, 10)
		if l.Stats().Recycled == 0 {
			t.Error("they are not found again")
		}
		mustClose(t, l)
	})
	t.Run("after a crash", func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, o)
		filled(t, l, 30)
		trim(t, l)
		if spares(fs) == 0 {
			t.Fatal("nothing is kept")
		}
		fs = fs.Crash(logtest.CrashKeepAll)
		l = open(t, fs, o)
		rest(l)
		if n := spares(fs); n != 0 {
			t.Errorf("got %d files", n)
		}
		mustClose(t, l)
	})
	t.Run("reset", func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, o)
		filled(t, l, 30)
		trim(t, l)
		if err := l.Reset(t.Context(), 3, nil, nil); err != nil {
			t.Fatal(err)
		}
		if n := spares(fs.Fork(logtest.CrashLoseAll)); n != 0 {
			t.Errorf("got %d files", n)
		}
		mustClose(t, l)
	})
	t.Run("budget", func(t *testing.T) {
		for budget, want := range map[int64]int{-1: 0, 1: 0, 100 << 10: 1, 200 << 10: 2} {
			fs := logtest.NewFS(1)
			disk, err := log.NewDisk(log.DiskOptions{FS: fs, RecycledBytes: budget})
			if err != nil {
				t.Fatal(err)
			}
			var logs []*log.Log
			for i := range 3 {
				l, err := log.Open(t.Context(), fmt.Sprintf("/data/%d", i), log.Options{Disk: disk, SegmentBytes: 4 << 10})
				if err != nil {
					t.Fatal(err)
				}
				logs = append(logs, l)
				filled(t, l, 12)
				trim(t, l)
			}
			if s := disk.Stats(); s.RecycledFiles != want || s.RecycledBytes > max(0, budget) {
				t.Errorf("budget %d: got %+v", budget, s)
			}
			for _, l := range logs {
				mustClose(t, l)
			}
			if n := spares(fs); n != want {
				t.Errorf("budget %d: got %d files", budget, n)
			}
			if err := disk.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("full disk", func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, o)
		filled(t, l, 30)
		trim(t, l)
		l2, err := log.Open(t.Context(), "/other", log.Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, l2)
		fs.SetCapacity(fs.UsedBytes() + 20_000)
		kept := spares(fs)
		if _, err := l.Append(t.Context(), plain(big("x", 200_000))); err != nil && !errors.Is(err, log.ErrDiskFull) {
			t.Fatal(err)
		} else if err != nil {
			mustAppend(t, l, big("x", 200_000))
		}
		if n := spares(fs); n >= kept {
			t.Errorf("got %d files, had %d", n, kept)
		}
		fs.SetCapacity(-1)
		mustClose(t, l)
	})
	t.Run("busy logs", func(t *testing.T) {
		fs := logtest.NewFS(1)
		disk, err := log.NewDisk(log.DiskOptions{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		var logs []*log.Log
		for i := range 40 {
			l, err := log.Open(t.Context(), fmt.Sprintf("/data/%d", i), log.Options{Disk: disk, SegmentBytes: 4 << 10})
			if err != nil {
				t.Fatal(err)
			}
			logs = append(logs, l)
			mustAppend(t, l, "idle")
		}
		if n := spares(fs); n != 0 {
			t.Errorf("got %d files for idle logs", n)
		}
		for _, l := range logs {
			filled(t, l, 3)
			rest(l)
		}
		if n := spares(fs); n != 16 || disk.Stats().PreparedFiles != 16 {
			t.Errorf("got %d files for 40 logs that were busy, %+v", n, disk.Stats())
		}
		for _, l := range logs {
			mustClose(t, l)
		}
		if n := spares(fs); n != 0 {
			t.Errorf("got %d files after the close", n)
		}
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkRecycled appends over rolls, into files made anew or recycled ones, and
// tells the slowest of the appends around a roll.
func BenchmarkRecycled(b *testing.B) {
	for _, recycled := range []bool{false, true} {
		b.Run(fmt.Sprintf("recycled=%v", recycled), func(b *testing.B) {
			o := log.DiskOptions{}
			if !recycled {
				o.RecycledBytes = -1
			}
			disk, err := log.NewDisk(o)
			if err != nil {
				b.Fatal(err)
			}
			l, err := log.Open(b.Context(), b.TempDir(), log.Options{Disk: disk, SegmentBytes: 4 << 20})
			if err != nil {
				b.Fatal(err)
			}
			batch := plain(big("x", 100_000))
			var took []time.Duration
			step := func() {
				begin := time.Now()
				if _, err := l.Append(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
				if len(took)%100 == 0 {
					if err := l.TrimTo(b.Context(), l.End()); err != nil {
						b.Fatal(err)
					}
				}
			}
			for range 300 {
				step()
			}
			took = took[:0]
			b.SetBytes(int64(len(batch)))
			for b.Loop() {
				step()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
			b.ReportMetric(float64(l.Stats().Recycled)/float64(max(1, l.Stats().Rolls)), "recycled/roll")
			mustClose(b, l)
			if err := disk.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}
