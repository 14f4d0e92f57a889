package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// from makes a source of a log.
func from(l *log.Log) log.RepairSource {
	return func(ctx context.Context, from, to log.Offset, maxBytes int) ([]byte, error) {
		s, err := l.ReadBelow(ctx, from, to, maxBytes)
		if err != nil {
			return nil, err
		}
		return s.Bytes(), nil
	}
}

// A rot is a log of 45 records in five segments, that was closed or lost power, as
// it was (replica) and with damage.
type rot struct {
	image   *logtest.FS
	replica *log.Log
	files   map[string][]byte
	size    int64 // of a batch
}

func rotten(t testing.TB, closed bool) *rot {
	t.Helper()
	fs := logtest.NewFS(1)
	l, all := segmented(t, fs, 45)
	if closed {
		mustClose(t, l)
	}
	image := fs.Crash(logtest.CrashKeepAll)
	r := &rot{image: image, replica: open(t, image.Fork(logtest.CrashKeepAll), log.Options{SegmentBytes: 5000}), size: int64(len(all[0])), files: map[string][]byte{}}
	t.Cleanup(func() { mustClose(t, r.replica) })
	for base := log.Offset(0); base < 45; base += 10 {
		b := readAll(t, image, segName(base))
		r.files[segName(base)] = b[:min(10, 45-base)*log.Offset(r.size)]
	}
	return r
}

func (r *rot) hit(t testing.TB, fs *logtest.FS, off log.Offset, at int64, masks ...byte) {
	t.Helper()
	if err := fs.Corrupt(segName(off/10*10), int64(off%10)*r.size+at, masks...); err != nil {
		t.Fatal(err)
	}
}

// whole says why the log is not as it was before the damage.
func (r *rot) whole(t testing.TB, fs log.FS, l *log.Log) {
	t.Helper()
	wantReadable(t, l)
	for name, want := range r.files {
		if got := readAll(t, fs, name); len(got) < len(want) || !bytes.Equal(got[:len(want)], want) {
			t.Errorf("%s is not what it was", path.Base(name))
		}
	}
	if got, want := fmt.Sprint(l.EpochChain()), "[{0 0} {1 7} {2 14} {3 21} {4 28} {5 35} {6 42}]"; got != want {
		t.Errorf("got epochs %s, want %s", got, want)
	}
	if got := values(t, l, 0); len(got) < 45 {
		t.Errorf("got %d records", len(got))
	}
	for seq := int32(40); seq < 45; seq++ {
		a, err := l.Write(6, sequenced(3, 0, seq, "again"))
		if err != nil || !a.Duplicate || a.Base != log.Offset(seq) {
			t.Errorf("retry of %d: %+v, %v", seq, a, err)
		}
	}
	if a, err := l.Write(6, sequenced(3, 0, 45, "next")); err != nil || a.Base != 45 {
		t.Errorf("got %+v, %v", a, err)
	}
}

var damages = map[string]func(t testing.TB, r *rot, fs *logtest.FS){
	"checksum":         func(t testing.TB, r *rot, fs *logtest.FS) { r.hit(t, fs, 13, 100, 1) },
	"epoch":            func(t testing.TB, r *rot, fs *logtest.FS) { r.hit(t, fs, 24, 15, 4) },
	"epoch begins":     func(t testing.TB, r *rot, fs *logtest.FS) { r.hit(t, fs, 28, 100, 1) },
	"active":           func(t testing.TB, r *rot, fs *logtest.FS) { r.hit(t, fs, 41, 100, 1) },
	"active epoch":     func(t testing.TB, r *rot, fs *logtest.FS) { r.hit(t, fs, 42, 100, 1) },
	"active first":     func(t testing.TB, r *rot, fs *logtest.FS) { r.hit(t, fs, 40, 3, 1) },
	"last but one":     func(t testing.TB, r *rot, fs *logtest.FS) { r.hit(t, fs, 43, 100, 1) },
	"first of segment": func(t testing.TB, r *rot, fs *logtest.FS) { r.hit(t, fs, 20, 100, 1) },
	"last of segment":  func(t testing.TB, r *rot, fs *logtest.FS) { r.hit(t, fs, 19, 300, 1) },
	"zeros": func(t testing.TB, r *rot, fs *logtest.FS) {
		b := r.files[segName(30)][2*r.size : 5*r.size]
		r.hit(t, fs, 32, 0, b...)
	},
	"many": func(t testing.TB, r *rot, fs *logtest.FS) {
		for _, off := range []log.Offset{1, 5, 9, 10, 18, 22, 31, 36, 41} {
			r.hit(t, fs, off, 90, 0x40)
		}
	},
	"cut short": func(t testing.TB, r *rot, fs *logtest.FS) {
		f, err := fs.Open(segName(10), true)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(5*r.size+70), f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	},
	"seal too": func(t testing.TB, r *rot, fs *logtest.FS) {
		r.hit(t, fs, 13, 100, 1)
		if err := fs.Remove("/data/p/00000000000000000010.seal"); err != nil {
			t.Fatal(err)
		}
	},
	"side files too": func(t testing.TB, r *rot, fs *logtest.FS) {
		r.hit(t, fs, 13, 100, 1)
		r.hit(t, fs, 33, 100, 1)
		for _, n := range fs.Names() {
			if s := path.Ext(n); s == ".seal" || s == ".index" || s == ".timeindex" || s == ".state" {
				if err := fs.Remove(n); err != nil {
					t.Fatal(err)
				}
			}
		}
	},
}

// TestRepair damages a log in every way and repairs it, when recovery has found the
// damage and when it has not.
func TestRepair(t *testing.T) {
	for _, closed := range []bool{true, false} {
		r := rotten(t, closed)
		for name, damage := range damages {
			for _, late := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/closed=%v/late=%v", strings.ReplaceAll(name, " ", "-"), closed, late), func(t *testing.T) {
					fs := r.image.Fork(logtest.CrashKeepAll)
					if !late {
						damage(t, r, fs)
					}
					l := open(t, fs, log.Options{SegmentBytes: 5000})
					if late {
						damage(t, r, fs)
					}
					found := verify(t, l).Damage
					if len(found) == 0 {
						t.Fatal("no damage")
					}
					got, err := l.Repair(t.Context(), 0, l.End(), from(r.replica))
					if err != nil {
						t.Fatal(err)
					}
					if ranges(got.Damage) != ranges(found) || got.Batches == 0 || got.Bytes == 0 {
						t.Errorf("got  %s, %+v\nwant %s", ranges(got.Damage), got, ranges(found))
					}
					for _, k := range got.Kept {
						if len(readAll(t, fs, k)) == 0 {
							t.Errorf("%s is empty", k)
						}
					}
					if len(got.Kept) == 0 && name != "cut short" {
						t.Error("nothing was kept")
					}
					if again, err := l.Repair(t.Context(), 0, 1000, from(r.replica)); err != nil || len(again.Damage) > 0 {
						t.Errorf("again: %+v, %v", again, err)
					}
					if name != "side files too" {
						wantSound(t, l)
					}
					after := fs.Fork(logtest.CrashLoseAll)
					r.whole(t, fs, l)
					mustClose(t, l)
					for _, fs := range []*logtest.FS{after, fs} {
						l := open(t, fs, log.Options{SegmentBytes: 5000})
						if rec := l.Recovery(); rec.Lossy || rec.CutBytes != 0 {
							t.Errorf("got %+v: %v", rec, rec.Corruption)
						}
						if l.End() == 45 {
							r.whole(t, fs, l)
						}
						wantReadable(t, l)
						mustClose(t, l)
					}
				})
			}
		}
	}
}

func wantReadable(t testing.TB, l *log.Log) {
	t.Helper()
	if v := verify(t, l); len(v.Damage)+len(v.Undecodable) > 0 {
		t.Errorf("got %s", ranges(v.Damage))
	}
}

// TestRepairPart repairs what lies in the range, and leaves the log read-only until
// the rest is repaired or gone.
func TestRepairPart(t *testing.T) {
	r := rotten(t, false)
	fs := r.image.Fork(logtest.CrashKeepAll)
	r.hit(t, fs, 3, 100, 1)
	r.hit(t, fs, 41, 100, 1)
	for _, n := range []string{"/data/p/00000000000000000000.seal"} {
		if err := fs.Remove(n); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, fs, log.Options{SegmentBytes: 5000})
	if got := ranges(l.Recovery().Corruption); strings.Count(got, "@") != 2 {
		t.Fatalf("got %s", got)
	}
	if got, err := l.Repair(t.Context(), 10, 40, from(r.replica)); err != nil || len(got.Damage) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := l.Repair(t.Context(), 41, 42, from(r.replica)); err != nil || len(got.Damage) != 1 || got.Batches != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := l.Write(6, plain("x")); !errors.Is(err, log.ErrReadOnly) {
		t.Errorf("got %v", err)
	}
	if got, err := l.Repair(t.Context(), 0, 1, from(r.replica)); err != nil || len(got.Damage) != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	r.whole(t, fs, l)
	mustClose(t, l)
}

// TestRepairMissing loses whole files.
func TestRepairMissing(t *testing.T) {
	r := rotten(t, false)
	fs := r.image.Fork(logtest.CrashKeepAll)
	if err := fs.Remove(segName(20)); err != nil {
		t.Fatal(err)
	}
	l := open(t, fs, log.Options{SegmentBytes: 5000})
	if _, err := l.Repair(t.Context(), 0, 45, from(r.replica)); err != nil {
		t.Fatal(err)
	}
	wantReadable(t, l)
	mustAppend(t, l, "goes on")
	if got := values(t, l, 0); len(got) != 46 {
		t.Errorf("got %d records", len(got))
	}
	l = open(t, fs.Crash(), log.Options{SegmentBytes: 5000})
	if got := values(t, l, 0); len(got) != 46 || l.Recovery().Lossy {
		t.Errorf("got %d records, %+v", len(got), l.Recovery())
	}
	mustClose(t, l)

	fs = r.image.Fork(logtest.CrashKeepAll)
	if err := fs.Remove(segName(0)); err != nil {
		t.Fatal(err)
	}
	l = open(t, fs, log.Options{SegmentBytes: 5000})
	_, err := l.Repair(t.Context(), 0, 45, from(r.replica))
	if c, ok := errors.AsType[*log.CorruptionError](err); !ok || c.Offset != 0 || c.End != 10 {
		t.Errorf("got %v", err)
	}
	mustClose(t, l)
}

// TestRepairRefuses gives it other bytes than were written.
func TestRepairRefuses(t *testing.T) {
	r := rotten(t, false)
	remade := func(b []byte, change func(record.Batch)) []byte {
		x, _, err := record.Next(bytes.Clone(b), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		change(x)
		return x.Bytes()
	}
	cause := errors.New("the line is dead")
	for name, c := range map[string]struct {
		source func(b []byte, from log.Offset) ([]byte, error)
		want   error
	}{
		"nothing": {func([]byte, log.Offset) ([]byte, error) { return nil, nil }, log.ErrRepairSource},
		"error":   {func([]byte, log.Offset) ([]byte, error) { return nil, cause }, cause},
		"short":   {func(b []byte, _ log.Offset) ([]byte, error) { return b[:len(b)-1], nil }, log.ErrRepairSource},
		"long":    {func(b []byte, _ log.Offset) ([]byte, error) { return append(bytes.Clone(b), 0), nil }, log.ErrRepairSource},
		"damaged": {func(b []byte, _ log.Offset) ([]byte, error) { b = bytes.Clone(b); b[90] ^= 1; return b, nil }, log.ErrRepairSource},
		"garbage": {func([]byte, log.Offset) ([]byte, error) { return bytes.Repeat([]byte{0xff}, 500), nil }, log.ErrRepairSource},
		"before": {func(b []byte, _ log.Offset) ([]byte, error) {
			return remade(b, func(x record.Batch) { x.SetBaseOffset(x.BaseOffset() - 1) }), nil
		}, log.ErrRepairSource},
		"behind": {func(b []byte, _ log.Offset) ([]byte, error) {
			return remade(b, func(x record.Batch) { x.SetBaseOffset(x.BaseOffset() + 1) }), nil
		}, log.ErrRepairSource},
		"old epoch": {func(b []byte, _ log.Offset) ([]byte, error) {
			return remade(b, func(x record.Batch) { x.SetLeaderEpoch(0) }), nil
		}, log.ErrRepairSource},
		"new epoch": {func(b []byte, _ log.Offset) ([]byte, error) {
			return remade(b, func(x record.Batch) { x.SetLeaderEpoch(60) }), nil
		}, log.ErrRepairSource},
		"next epoch": {func(b []byte, _ log.Offset) ([]byte, error) {
			return remade(b, func(x record.Batch) { x.SetLeaderEpoch(x.LeaderEpoch() + 1) }), nil
		}, log.ErrRepairSource},
		"other records": {func(b []byte, from log.Offset) ([]byte, error) {
			return remade(sequenced(3, 0, int32(from), fmt.Sprintf("%05d %0400d", from+1, 0)), func(x record.Batch) {
				x.SetBaseOffset(from)
				x.SetLeaderEpoch(log.Epoch(from / 7))
			}), nil
		}, log.ErrRepairSource},
		"too much": {func(b []byte, from log.Offset) ([]byte, error) {
			return append(bytes.Clone(b), remade(b, func(x record.Batch) { x.SetBaseOffset(from + 1) })...), nil
		}, log.ErrRepairSource},
	} {
		for _, off := range []log.Offset{16, 42, 43} {
			t.Run(fmt.Sprintf("%s/%d", strings.ReplaceAll(name, " ", "-"), off), func(t *testing.T) {
				fs := r.image.Fork(logtest.CrashKeepAll)
				r.hit(t, fs, off, 100, 1)
				l := open(t, fs, log.Options{SegmentBytes: 5000})
				before := map[string][]byte{}
				for n := range r.files {
					before[n] = readAll(t, fs, n)
				}
				rest(l)
				names := fmt.Sprint(fs.Names())
				lossy := l.Recovery().Lossy
				_, err := l.Repair(t.Context(), 0, 45, func(ctx context.Context, lo, hi log.Offset, n int) ([]byte, error) {
					b, err := from(r.replica)(ctx, lo, hi, n)
					if err != nil {
						t.Error(err)
					}
					return c.source(b, lo)
				})
				if !errors.Is(err, c.want) {
					t.Errorf("got %v", err)
				}
				if !lossy {
					l.Close() //nolint:errcheck // only the active segment's damage was found at open
					return
				}
				for n, b := range before {
					if !bytes.Equal(readAll(t, fs, n), b) {
						t.Errorf("%s was changed", n)
					}
				}
				if got := fmt.Sprint(fs.Names()); got != names {
					t.Errorf("got files %s, had %s", got, names)
				}
				if _, err := l.Write(6, plain("x")); !errors.Is(err, log.ErrReadOnly) {
					t.Errorf("got %v", err)
				}
				if _, err := l.Repair(t.Context(), 0, 45, from(r.replica)); err != nil {
					t.Fatal(err)
				}
				r.whole(t, fs, l)
				mustClose(t, l)
			})
		}
	}
	t.Run("range", func(t *testing.T) {
		for _, c := range [][2]log.Offset{{-1, 4}, {5, 4}} {
			if _, err := r.replica.Repair(t.Context(), c[0], c[1], nil); !errors.Is(err, log.ErrOffsetOutOfRange) {
				t.Errorf("%v: got %v", c, err)
			}
		}
	})
}

// TestRepairCrash lets the machine die at each change of a repair, and fails each:
// the damage is there as before, or is gone.
func TestRepairCrash(t *testing.T) {
	t.Parallel()
	r := rotten(t, false)
	for _, name := range []string{"many", "active epoch", "seal too", "cut short"} {
		for _, late := range []bool{false, true} {
			for _, kind := range []string{"crash", "not done", "done but reported as failed", "full"} {
				for at := int64(1); ; at++ {
					fs := r.image.Fork(logtest.CrashKeepAll)
					if !late {
						damages[name](t, r, fs)
					}
					l := open(t, fs, log.Options{SegmentBytes: 5000})
					if late {
						damages[name](t, r, fs)
					}
					fs.SyncAll()
					from0 := fs.Changes()
					var hit atomic.Bool
					fs.OnOp(func(op logtest.Op) error {
						if !op.Kind.Changes() || op.Changed-from0 < at || kind != "crash" && op.Changed-from0 > at {
							return nil
						}
						hit.Store(true)
						switch kind {
						case "crash":
							fs.PowerOff()
						case "not done":
							return errors.New("broken")
						case "done but reported as failed":
							return logtest.DoneButFailed(errors.New("broken"))
						case "full":
							return syscall.ENOSPC
						}
						return nil
					})
					_, err := l.Repair(t.Context(), 0, 1000, from(r.replica))
					failed := l.Err()
					fs.OnOp(nil)
					done := err == nil
					if err != nil && failed == nil && kind != "crash" {
						// It can be tried again.
						if _, err := l.Repair(t.Context(), 0, 1000, from(r.replica)); err != nil {
							t.Fatalf("%s, change %d %s: again: %v", name, at, kind, err)
						}
						r.whole(t, fs, l)
					}
					l.Close() //nolint:errcheck // may be dead
					for _, mode := range []logtest.CrashMode{logtest.CrashLoseAll, logtest.CrashKeepAll, logtest.CrashLoseSome(uint64(at))} {
						after := fs.Crash(mode)
						l := open(t, after, log.Options{SegmentBytes: 5000})
						if l.End() < 45 {
							t.Fatalf("%s, change %d %s: got end %d", name, at, kind, l.End())
						}
						if done {
							wantReadable(t, l) // it was durable
						}
						if _, err := l.Repair(t.Context(), 0, 1000, from(r.replica)); err != nil {
							t.Fatalf("%s, change %d %s: after: %v", name, at, kind, err)
						}
						if l.End() == 45 {
							wantReadable(t, l)
							if got := values(t, l, 0); len(got) != 45 || got[44] != fmt.Sprintf("%05d %0400d", 44, 0) {
								t.Fatalf("%s, change %d %s: got %d records", name, at, kind, len(got))
							}
							mustWrite(t, l, "goes on")
						}
						mustClose(t, l)
					}
					if t.Failed() {
						t.Fatalf("%s, change %d %s", name, at, kind)
					}
					if !hit.Load() {
						break
					}
					if testing.Short() {
						at += 9
					}
				}
			}
		}
	}
}

// TestRepairMeanwhile reads, appends and verifies during repairs.
func TestRepairMeanwhile(t *testing.T) {
	r := rotten(t, true)
	fs := r.image.Fork(logtest.CrashKeepAll)
	disk, err := log.NewDisk(log.DiskOptions{FS: fs, OpenFiles: 2})
	if err != nil {
		t.Fatal(err)
	}
	l, err := log.Open(t.Context(), "/data/p", log.Options{Disk: disk, SegmentBytes: 5000})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var bad, good atomic.Int64
	for w := range log.Offset(3) {
		wg.Go(func() {
			for i := log.Offset(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				off := (i*7 + w) % 45
				s, err := l.Read(t.Context(), off, 1)
				if _, ok := errors.AsType[*log.CorruptionError](err); ok {
					bad.Add(1)
					continue
				}
				if err != nil || s.Base() != off || !bytes.Equal(s.Bytes(), r.files[segName(off/10*10)][int64(off%10)*r.size:][:r.size]) {
					t.Errorf("read %d: %v", off, err)
					return
				}
				good.Add(1)
				s.Release()
			}
		})
	}
	for i := range 12 {
		wg.Go(func() { // so many a round: what Verify reads must not outgrow it
			for k := range 200 {
				if _, err := l.Write(6, plain(fmt.Sprintf("%d %d %0300d", i, k, 0))); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for _, off := range []log.Offset{3, 14, 17, 29, 30} {
			r.hit(t, fs, off, int64(80+i), 1)
		}
		if _, err := l.Repair(t.Context(), 0, 45, from(r.replica)); err != nil {
			t.Fatal(err)
		}
		if v := verify(t, l); len(v.Damage) != 0 {
			t.Fatalf("got %s", ranges(v.Damage))
		}
	}
	for good.Load() == 0 && !t.Failed() { // all is sound now
		time.Sleep(time.Millisecond)
	}
	close(stop)
	wg.Wait()
	mustClose(t, l)
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}

// TestRepairOvertaken changes the log while the source is asked: what was prepared
// from a log that is no more is thrown away. Case redpanda 7155.
func TestRepairOvertaken(t *testing.T) {
	r := rotten(t, false)
	for name, change := range map[string]func(t *testing.T, l *log.Log){
		"truncate": func(t *testing.T, l *log.Log) {
			if _, err := l.TruncateTo(t.Context(), 2); err != nil {
				t.Error(err)
			}
			for l.End() < 60 {
				mustAppend(t, l, told(2, l.End()))
			}
		},
		"trim": func(t *testing.T, l *log.Log) {
			if err := l.TrimTo(t.Context(), 25); err != nil {
				t.Error(err)
			}
		},
		"drop": func(t *testing.T, l *log.Log) {
			if err := l.DropLocal(t.Context(), 40); err != nil {
				t.Error(err)
			}
		},
		"reset": func(t *testing.T, l *log.Log) {
			if err := l.Reset(t.Context(), 0, nil, nil); err != nil {
				t.Error(err)
			}
			for l.End() < 60 {
				mustAppend(t, l, told(2, l.End()))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := r.image.Fork(logtest.CrashKeepAll)
			r.hit(t, fs, 5, 100, 1)
			if err := fs.Remove("/data/p/00000000000000000000.seal"); err != nil { // so that it is found
				t.Fatal(err)
			}
			l := open(t, fs, log.Options{SegmentBytes: 5000})
			once := false
			_, err := l.Repair(t.Context(), 0, 10, func(ctx context.Context, lo, hi log.Offset, n int) ([]byte, error) {
				if !once {
					once = true
					change(t, l)
				}
				return from(r.replica)(ctx, lo, hi, n)
			})
			if err != nil || !once {
				t.Errorf("got %v", err)
			}
			if l.Err() != nil {
				t.Error(l.Err())
			}
			wantReadable(t, l)
			after := values(t, l, l.LocalStart())
			mustAppend(t, l, "goes on")
			mustClose(t, l)
			l = open(t, fs, log.Options{SegmentBytes: 5000})
			if got := values(t, l, l.LocalStart()); len(got) != len(after)+1 {
				t.Errorf("got %d records, had %d", len(got), len(after))
			}
			mustClose(t, l)
		})
	}
	t.Run("close", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			fs := logtest.NewFS(1)
			l, _ := segmented(t, fs, 45)
			if err := fs.Corrupt(segName(0), 1000, 1); err != nil {
				t.Fatal(err)
			}
			asked := make(chan struct{})
			done := make(chan error)
			go func() {
				_, err := l.Repair(context.Background(), 0, 45, func(ctx context.Context, _, _ log.Offset, _ int) ([]byte, error) {
					close(asked)
					<-ctx.Done()
					return nil, ctx.Err()
				})
				done <- err
			}()
			<-asked
			second := make(chan error)
			go func() {
				_, err := l.Repair(context.Background(), 0, 45, nil)
				second <- err
			}()
			synctest.Wait()
			go l.Close() //nolint:errcheck // waited for below
			if err := <-done; !errors.Is(err, log.ErrClosed) {
				t.Errorf("got %v", err)
			}
			if err := <-second; !errors.Is(err, log.ErrClosed) {
				t.Errorf("got %v", err)
			}
			mustClose(t, l)
			if n := fs.OpenFiles(); len(n) != 0 {
				t.Errorf("open: %v", n)
			}
			for _, n := range fs.Names() {
				if strings.HasSuffix(n, ".tmp") {
					t.Errorf("%s is left", n)
				}
			}
		})
	})
}
