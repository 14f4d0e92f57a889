package log_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// A fleet is several logs on one disk with a journal.
type fleet struct {
	t     testing.TB
	fs    *logtest.FS
	disk  *log.Disk
	lives []*life
	dead  bool

	nested *int // counts checks; every so many, recovery is interrupted too
	every  int
}

func newFleet(t testing.TB, fs *logtest.FS, n, scale int) *fleet {
	f := &fleet{t: t, fs: fs}
	looks := new(int)
	for i := range n {
		f.lives = append(f.lives, &life{
			t: t, fs: fs, w: newWorld(), scale: scale, dir: fmt.Sprintf("/data/p%d", i), looks: looks, nested: 1 << 30, n: 100 * i,
		})
	}
	f.openDisk(fs)
	return f
}

func (f *fleet) openDisk(fs *logtest.FS) {
	f.disk = nil
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
	if err != nil {
		f.dead = true
		for _, l := range f.lives {
			l.dead = true
		}
		return
	}
	log.JournalAll(d)
	f.disk = d
	for _, l := range f.lives {
		l.disk = d
	}
}

// together writes to some logs and makes that durable by one group.
func (f *fleet) together(which func(i int) bool) {
	var logs []*log.Log
	var lives []*life
	for i, l := range f.lives {
		if which(i) && !l.dead && l.l != nil {
			l.write(max(l.l.LastEpoch(), 0), 1+i%2)
			if !l.dead {
				logs = append(logs, l.l)
				lives = append(lives, l)
			}
		}
	}
	if len(logs) == 0 {
		return
	}
	err := log.SyncTogether(f.disk, logs...)
	for _, l := range lives {
		if err == nil {
			l.w.stated, l.w.acked = l.w.acked, l.w.written
		} else if l.l.Err() == nil {
			l.sync()
		} else {
			l.dead = true
		}
	}
}

// closeDisk closes what is still open.
func (f *fleet) closeDisk() {
	for _, l := range f.lives {
		l.close()
	}
	if f.disk != nil {
		f.disk.Close() //nolint:errcheck // the crash may come here
		f.disk = nil
	}
}

// each runs a step on all logs at once.
func (f *fleet) each(step func(i int, l *life)) {
	var wg sync.WaitGroup
	for i, l := range f.lives {
		wg.Go(func() { step(i, l) })
	}
	wg.Wait()
}

func (f *fleet) check(after *logtest.FS) {
	f.t.Helper()
	image := after.Fork(logtest.CrashKeepAll)
	f.verify(after)
	if *f.nested++; f.t.Failed() || *f.nested%f.every != 0 {
		return
	}
	for at := int64(1); at < 200; at += 1 + at/4 {
		fs := image.Fork(logtest.CrashKeepAll)
		from := fs.Changes()
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind.Changes() && op.Changed-from >= at {
				fs.PowerOff()
			}
			return nil
		})
		d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
		if err == nil {
			for _, l := range f.lives {
				l.disk = d
				o, err := log.Open(context.Background(), l.dir, l.options(fs))
				if err == nil {
					defer d.Close() //nolint:errcheck // it is dead
					defer o.Close() //nolint:errcheck // it is dead
				}
			}
		}
		done := !fs.Crashed()
		fs.PowerOff()
		f.verify(fs.Crash(logtest.CrashLoseSome(uint64(at))))
		if f.t.Failed() {
			f.t.Logf("recovery interrupted at change %d", at)
		}
		if done || f.t.Failed() {
			return
		}
	}
}

func (f *fleet) verify(after *logtest.FS) {
	t := f.t
	t.Helper()
	d, err := log.NewDisk(log.DiskOptions{FS: after, Dir: "/data", JournalBytes: 256 << 10})
	if err != nil {
		t.Errorf("disk after crash: %v", err)
		return
	}
	for _, l := range f.lives {
		l.disk = d
		l.verify(after)
		if t.Failed() {
			t.Logf("log %s", l.dir)
			break
		}
	}
	if err := d.Close(); err != nil && !t.Failed() {
		t.Errorf("close of the disk: %v", err)
	}
	for _, name := range after.Names() {
		if !t.Failed() && len(name) > 8 && name[len(name)-8:] == ".journal" {
			t.Errorf("%s is there after a clean close", name)
		}
	}
}

// nth: of two logs at work at once one point in so many is tried; TestJournalCrashSteps
// and TestJournalFaultSteps try each.
const nth = 3

// TestJournalCrash runs the script of a log on two logs of one disk at once.
func TestJournalCrash(t *testing.T) {
	for _, scale := range []int{1, 10} {
		t.Run(fmt.Sprintf("scale=%d", scale), func(t *testing.T) {
			nested := 0
			logtest.SomeCrashes(t, nth, func(fs *logtest.FS) func(*logtest.FS) {
				f := newFleet(t, fs, 2, scale)
				f.nested, f.every = &nested, 41
				f.each(func(i int, l *life) { l.script() })
				f.closeDisk()
				return f.check
			})
		})
	}
}

func TestJournalFault(t *testing.T) {
	logtest.SomeFaults(t, nth, func(fs *logtest.FS) func(*logtest.FS) {
		f := newFleet(t, fs, 2, 1)
		f.each(func(i int, l *life) { l.script() })
		f.closeDisk()
		return f.verify
	})
}

// steps is a script of a fleet on one goroutine, so that its groups are the same in
// each run.
func (f *fleet) steps() {
	ctx := context.Background()
	all := func(int) bool { return true }
	for _, l := range f.lives {
		l.open()
	}
	for i := range 4 {
		f.together(all)
		f.together(func(k int) bool { return (k+i)%3 != 0 })
	}
	one := f.lives[0]
	if one.l != nil && !one.dead {
		log.FlushLog(one.l)
	}
	one.truncate(3)
	f.together(all)
	one.append(2)
	two := f.lives[1]
	if !two.dead {
		two.step(func(w *world) { w.acked = w.written }, func() error { return two.l.Roll(ctx) })
	}
	f.together(all)
	two.close() // in order, and appended to without the journal
	two.open()
	two.append(1)
	if !two.dead && two.l != nil {
		two.write(3, 1)
		two.sync()
	}
	if three := f.lives[2]; !three.dead {
		three.step(func(w *world) {
			w.local, w.written, w.acked, w.stated = 50, 50, 50, 0
			w.bounds, w.epochs, w.produced = map[log.Offset]bool{50: true}, nil, nil
		}, func() error { return three.l.Reset(ctx, 50, nil, nil) })
	}
	for range 6 {
		f.together(all) // enough for files to be used again
	}
	f.closeDisk()
	if f.dead {
		return
	}
	f.openDisk(f.fs)
	for _, l := range f.lives {
		l.open()
	}
	for range 3 {
		f.together(all)
	}
	f.lives[0].truncate(2)
	f.together(all)
}

// TestJournalCrashSteps is TestJournalCrash with groups of several logs.
func TestJournalCrashSteps(t *testing.T) {
	nested := 0
	logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
		f := newFleet(t, fs, 3, 1)
		f.nested, f.every = &nested, 23
		f.steps()
		f.closeDisk()
		return f.check
	})
}

func TestJournalFaultSteps(t *testing.T) {
	logtest.EachFault(t, func(fs *logtest.FS) func(*logtest.FS) {
		f := newFleet(t, fs, 3, 1)
		f.steps()
		f.closeDisk()
		return f.verify
	})
}

// A stand is logs with records that only the journal made durable.
type stand struct {
	fs   *logtest.FS // after the crash
	want [][]string
	last []int // records of each log that were in the last group
}

func newStand(t *testing.T) *stand {
	t.Helper()
	ctx := context.Background()
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	const n = 3
	s := &stand{want: make([][]string, n)}
	logs := make([]*log.Log, n)
	for i := range logs {
		if logs[i], err = log.Open(ctx, fmt.Sprintf("/data/p%d", i), log.Options{Disk: d}); err != nil {
			t.Fatal(err)
		}
	}
	for g := range 4 {
		s.last = make([]int, n)
		var group []*log.Log
		for i, l := range logs {
			if g < 3 && g%n == i {
				continue
			}
			v := fmt.Sprintf("log %d group %d %s", i, g, strings.Repeat("x", 30*g))
			mustWrite(t, l, v)
			s.want[i] = append(s.want[i], v)
			s.last[i] = 1
			group = append(group, l)
		}
		if err := log.SyncTogether(d, group...); err != nil {
			t.Fatal(err)
		}
	}
	if groups, entries, direct, _ := log.JournalStats(d); groups != 4 || entries != 9 || direct != 0 {
		t.Fatalf("got %d groups, %d entries, %d others", groups, entries, direct)
	}
	s.fs = fs.Crash(logtest.CrashLoseAll)
	for _, l := range logs {
		l.Close() //nolint:errcheck // it is dead
	}
	d.Close() //nolint:errcheck // it is dead
	return s
}

// look opens all logs and says what is lost without a word.
func (s *stand) look(t *testing.T, fs *logtest.FS) error {
	t.Helper()
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
	if err != nil {
		if _, ok := errors.AsType[*log.CorruptionError](err); ok {
			return nil
		}
		return err
	}
	defer d.Close() //nolint:errcheck // of a log that is lossy something stays
	for i, want := range s.want {
		l, err := log.Open(context.Background(), fmt.Sprintf("/data/p%d", i), log.Options{Disk: d})
		if err != nil {
			return err
		}
		r := l.Recovery()
		if !r.Lossy {
			got := values(t, l, 0)
			if least := len(want) - s.last[i]; len(got) < least || fmt.Sprint(got) != fmt.Sprint(want[:len(got)]) {
				err = fmt.Errorf("log %d: got %d records, want %d to %d", i, len(got), least, len(want))
			}
		}
		if err := errors.Join(err, l.Close()); err != nil {
			return err
		}
	}
	return nil
}

// TestJournalFlips flips a bit of every byte of the journal: what it held is there,
// or reported, but for the last group, which may have been torn.
func TestJournalFlips(t *testing.T) {
	s := newStand(t)
	if err := s.look(t, s.fs.Fork(logtest.CrashKeepAll)); err != nil {
		t.Fatal(err)
	}
	step := 1
	if testing.Short() {
		step = 23
	}
	flips := 0
	for _, name := range s.fs.Names() {
		if !strings.HasPrefix(name, "/data/cordwood.journal/") || strings.HasSuffix(name, "/") {
			continue
		}
		b := readAll(t, s.fs, name)
		if strings.HasSuffix(name, ".journal") && !strings.HasPrefix(string(b), "CWJG") {
			continue // made in advance
		}
		for at := 0; at < len(b); at += step {
			if b[at] == 0 && at%97 != 0 {
				continue // of padding, a few will do
			}
			fs := s.fs.Fork(logtest.CrashKeepAll)
			if err := fs.Corrupt(name, int64(at), 1<<(at%8)); err != nil {
				t.Fatal(err)
			}
			flips++
			if err := s.look(t, fs); err != nil {
				t.Fatalf("%s, byte %d: %v", name, at, err)
			}
		}
	}
	t.Logf("%d flips", flips)
}

// journalFile returns the name of the only file with groups.
func (s *stand) journalFile(t *testing.T) string {
	t.Helper()
	var found string
	for _, name := range s.fs.Names() {
		if strings.HasSuffix(name, ".journal") && strings.HasPrefix(string(readAll(t, s.fs, name)), "CWJG") {
			if found != "" {
				t.Fatal("two files")
			}
			found = name
		}
	}
	return found
}

// TestJournalDamage: bytes of the journal that were durable and are gone are
// reported, whether tables or records.
func TestJournalDamage(t *testing.T) {
	open := func(t *testing.T, fs *logtest.FS) (lossy int) {
		t.Helper()
		d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			l, err := log.Open(t.Context(), fmt.Sprintf("/data/p%d", i), log.Options{Disk: d})
			if err != nil {
				t.Fatal(err)
			}
			r := l.Recovery()
			if r.Lossy {
				lossy++
				if _, err := l.Append(t.Context(), plain("x")); !errors.Is(err, log.ErrReadOnly) {
					t.Errorf("got %v", err)
				}
				// What is left is accepted in so many words.
				if _, err := l.TruncateTo(t.Context(), r.Corruption[0].Offset); err != nil {
					t.Errorf("truncate: %v", err)
				}
			}
			mustAppend(t, l, "afterwards")
			mustClose(t, l)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		return lossy
	}
	t.Run("none", func(t *testing.T) {
		s := newStand(t)
		if n := open(t, s.fs); n != 0 {
			t.Errorf("%d logs are lossy", n)
		}
	})
	t.Run("records of the first group", func(t *testing.T) {
		s := newStand(t)
		if err := s.fs.Corrupt(s.journalFile(t), 4096+70, 1); err != nil {
			t.Fatal(err)
		}
		if n := open(t, s.fs); n != 1 {
			t.Errorf("%d logs are lossy", n)
		}
	})
	t.Run("both tables of a group", func(t *testing.T) {
		s := newStand(t)
		for _, at := range []int64{0, 8192} {
			if err := s.fs.Corrupt(s.journalFile(t), 3*4096+at+50, 1); err != nil {
				t.Fatal(err)
			}
		}
		if n := open(t, s.fs); n != 3 {
			t.Errorf("%d logs are lossy", n)
		}
	})
	t.Run("one table of each group", func(t *testing.T) {
		for second := range int64(2) {
			s := newStand(t)
			for g := range int64(4) {
				if err := s.fs.Corrupt(s.journalFile(t), (3*g+2*second)*4096+50, 1); err != nil {
					t.Fatal(err)
				}
			}
			if n := open(t, s.fs); n != 0 {
				t.Errorf("%d logs are lossy", n)
			}
		}
	})
	t.Run("records of the last group", func(t *testing.T) {
		s := newStand(t)
		if err := s.fs.Corrupt(s.journalFile(t), 9*4096+4096+70, 1); err != nil {
			t.Fatal(err)
		}
		if n := open(t, s.fs); n != 0 {
			t.Errorf("%d logs are lossy: a last group may be torn", n)
		}
	})
	t.Run("all files", func(t *testing.T) {
		s := newStand(t)
		for _, name := range s.fs.Names() {
			if strings.HasPrefix(name, "/data/cordwood.journal/") && !strings.HasSuffix(name, "/") {
				if err := s.fs.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := open(t, s.fs); n != 3 {
			t.Errorf("%d logs are lossy", n)
		}
	})
	t.Run("opened without its disk", func(t *testing.T) {
		s := newStand(t)
		l, err := log.Open(t.Context(), "/data/p1", log.Options{FS: s.fs})
		if err != nil {
			t.Fatal(err)
		}
		if !l.Recovery().Lossy {
			t.Error("not lossy")
		}
		mustClose(t, l)
		if err := s.look(t, s.fs); err != nil {
			t.Error(err)
		}
	})
	t.Run("accepted without its disk", func(t *testing.T) {
		s := newStand(t)
		l, err := log.Open(t.Context(), "/data/p1", log.Options{FS: s.fs})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.TruncateTo(t.Context(), l.End()); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, "another")
		s.fs = s.fs.Crash(logtest.CrashLoseAll)
		mustCloseDead(l)
		d, err := log.NewDisk(log.DiskOptions{FS: s.fs, Dir: "/data"})
		if err != nil {
			t.Fatal(err)
		}
		if l, err = log.Open(t.Context(), "/data/p1", log.Options{Disk: d}); err != nil {
			t.Fatal(err)
		}
		if got := values(t, l, 0); len(got) != 1 || got[0] != "another" || l.Recovery().Lossy {
			t.Errorf("got %q, %+v", got, l.Recovery())
		}
		mustClose(t, l)
		d.Close() //nolint:errcheck // other logs have entries
	})
}

func mustCloseDead(l *log.Log) { l.Close() } //nolint:errcheck // its disk has crashed

// TestJournalUnopened: entries of logs that nobody opens stay for later lives, and
// don't keep the journal from being used.
func TestJournalUnopened(t *testing.T) {
	s := newStand(t)
	fs := s.fs
	for life := range 3 {
		d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
		if err != nil {
			t.Fatal(err)
		}
		log.JournalAll(d)
		l, err := log.Open(t.Context(), "/data/other", log.Options{Disk: d})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 40 {
			mustAppend(t, l, fmt.Sprint(life, i))
		}
		if groups, _, _, _ := log.JournalStats(d); groups < 10 {
			t.Errorf("life %d: only %d groups", life, groups)
		}
		if life == 1 {
			fs = fs.Crash(logtest.CrashLoseAll)
			mustCloseDead(l)
			d.Close() //nolint:errcheck // it is dead
			continue
		}
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.look(t, fs); err != nil {
		t.Error(err)
	}
}

// TestJournalGivesUp: what lives without an open of their logs have left is given
// up when it is above the bound, and the logs say so when they come.
func TestJournalGivesUp(t *testing.T) {
	fs := newStand(t).fs
	for life := range 9 {
		d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
		if err != nil {
			t.Fatal(err)
		}
		log.JournalAll(d)
		l, err := log.Open(t.Context(), fmt.Sprintf("/data/other%d", life), log.Options{Disk: d})
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, "never opened again")
		fs = fs.Crash(logtest.CrashLoseAll)
		mustCloseDead(l)
		d.Close() //nolint:errcheck // it is dead
	}
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	lossy := 0
	for _, dir := range []string{"/data/p0", "/data/other0", "/data/other8"} {
		l, err := log.Open(t.Context(), dir, log.Options{Disk: d})
		if err != nil {
			t.Fatal(err)
		}
		if l.Recovery().Lossy {
			lossy++
		} else if dir != "/data/other8" || l.End() != 1 {
			t.Errorf("%s: end %d and no word", dir, l.End())
		}
		mustClose(t, l)
	}
	if lossy != 2 {
		t.Errorf("%d are lossy", lossy)
	}
	var bytes int64
	for _, name := range fs.Names() {
		if strings.HasSuffix(name, ".journal") {
			bytes += int64(len(readAll(t, fs, name)))
		}
	}
	if bytes > 512<<10 {
		t.Errorf("%d bytes of files", bytes)
	}
	d.Close() //nolint:errcheck // logs are left
}

// TestJournalFull: when there is no room for the journal, logs sync their own files.
func TestJournalFull(t *testing.T) {
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	var logs []*log.Log
	for i := range 3 {
		l, err := log.Open(t.Context(), fmt.Sprintf("/data/p%d", i), log.Options{Disk: d})
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, l)
	}
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpPreallocate && strings.HasSuffix(op.Path, ".journal") {
			return log.ErrDiskFull
		}
		return nil
	})
	for i, l := range logs {
		mustAppend(t, l, fmt.Sprint(i))
	}
	if groups, _, direct, _ := log.JournalStats(d); groups != 0 || direct != 3 {
		t.Errorf("got %d groups, %d others", groups, direct)
	}
	fs.OnOp(nil)
	mustAppend(t, logs[0], "by the journal")
	if groups, _, _, _ := log.JournalStats(d); groups != 1 {
		t.Errorf("got %d groups", groups)
	}
	for _, l := range logs {
		mustClose(t, l)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestJournalModel runs random calls on several logs of one disk, with closes and
// crashes in between.
func TestJournalModel(t *testing.T) {
	runs := 150
	if testing.Short() {
		runs = 15
	}
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 7))
		fs := logtest.NewFS(seed)
		f := newFleet(t, fs, 4, 1)
		f.nested, f.every = new(int), 1<<30
		for range 60 {
			l := f.lives[rng.IntN(len(f.lives))]
			if l.l == nil {
				l.open()
				continue
			}
			switch rng.IntN(12) {
			case 0:
				l.append(1 + rng.IntN(3))
			case 1:
				l.write(max(l.l.LastEpoch(), 0)+log.Epoch(rng.IntN(2)), 1)
			case 2:
				l.sync()
			case 3:
				l.truncate(log.Offset(rng.IntN(int(min(4, l.w.written-l.w.local) + 1))))
			case 4:
				l.step(func(w *world) { w.acked = w.written }, func() error { return l.l.Roll(context.Background()) })
			case 5:
				l.close()
			case 6:
				log.FlushLog(l.l)
			case 7:
				if rng.IntN(4) == 0 {
					mode := logtest.CrashLoseSome(rng.Uint64())
					if rng.IntN(3) == 0 {
						mode = logtest.CrashLoseAll
					}
					after := fs.Crash(mode)
					f.closeDisk()
					fs = after
					f.resume(fs)
				}
			default:
				mask := rng.IntN(16)
				f.together(func(i int) bool { return mask>>i&1 == 1 })
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		after := fs.Crash(logtest.CrashLoseSome(seed))
		f.closeDisk()
		f.verify(after)
		if t.Failed() {
			t.Fatalf("seed %d; trace:\n%s", seed, fs.Trace())
		}
	}
}

// resume opens everything after a crash and takes what is there for what must be.
func (f *fleet) resume(fs *logtest.FS) {
	f.fs = fs
	for _, l := range f.lives {
		l.fs, l.dead = fs, false
	}
	f.openDisk(fs)
	for _, l := range f.lives {
		w := l.w
		l.open()
		if l.l == nil {
			f.t.Errorf("%s does not open", l.dir)
			return
		}
		err := w.matches(l.l)
		if err != nil && l.then != nil && l.then.matches(l.l) == nil {
			w, err = l.then, nil
		}
		l.w, l.then = w, nil
		if err != nil {
			f.t.Errorf("%s after crash: %v", l.dir, err)
			return
		}
		end := l.l.End()
		w.cut(end)
		w.acked, w.stated = end, 0
	}
}

// oneDisk opens a disk and a log on it whose appends all go into the journal.
func oneDisk(t *testing.T, fs *logtest.FS) (*log.Disk, *log.Log) {
	t.Helper()
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	l, err := log.Open(t.Context(), "/data/p", log.Options{Disk: d})
	if err != nil {
		t.Fatal(err)
	}
	return d, l
}

// TestJournalElsewhere: a log that was closed in order needs nothing of its disk,
// and what it did elsewhere is not undone by entries of before.
func TestJournalElsewhere(t *testing.T) {
	fs := logtest.NewFS(1)
	d, l := oneDisk(t, fs)
	mustAppend(t, l, "one")
	mustAppend(t, l, "two")
	mustClose(t, l)
	mustCloseDisk := func() {
		// The files are there as if the machine had died here.
		fs = fs.Crash(logtest.CrashLoseAll)
		d.Close() //nolint:errcheck // it is dead
	}
	mustCloseDisk()
	l = open(t, fs, log.Options{})
	if _, err := l.TruncateTo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, "TWO")
	mustAppend(t, l, "three")
	fs = fs.Crash(logtest.CrashLoseAll)
	mustCloseDead(l)
	d, l = oneDisk(t, fs)
	if got := values(t, l, 0); l.Recovery().Lossy || fmt.Sprint(got) != "[one TWO three]" {
		t.Errorf("got %q, %+v", got, l.Recovery())
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestJournalDirectAfter: closed in order, opened again, appended to without the
// journal, and a crash.
func TestJournalDirectAfter(t *testing.T) {
	fs := logtest.NewFS(1)
	d, l := oneDisk(t, fs)
	mustAppend(t, l, "one")
	mustClose(t, l)
	l, err := log.Open(t.Context(), "/data/p", log.Options{Disk: d})
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, big("two", 100_000)) // too large for it
	mustAppend(t, l, "three")
	if groups, _, _, _ := log.JournalStats(d); groups != 2 {
		t.Errorf("got %d groups", groups)
	}
	fs = fs.Crash(logtest.CrashLoseAll)
	mustCloseDead(l)
	d.Close() //nolint:errcheck // it is dead
	d, l = oneDisk(t, fs)
	if got := values(t, l, 0); l.Recovery().Lossy || len(got) != 3 || got[2] != "three" {
		t.Errorf("got %d, %+v", len(got), l.Recovery())
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestJournalFailedSync: a log whose file can't be synced in the background fails;
// opened again on the same disk it has its records from the journal.
func TestJournalFailedSync(t *testing.T) {
	fs := logtest.NewFS(1)
	d, l := oneDisk(t, fs)
	mustAppend(t, l, "one")
	mustAppend(t, l, "two")
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpSync && strings.HasSuffix(op.Path, ".log") {
			return errors.New("broken")
		}
		return nil
	})
	log.FlushLog(l)
	fs.OnOp(nil)
	if _, err := l.Append(t.Context(), plain("x")); err == nil || l.Err() == nil {
		t.Fatalf("got %v", err)
	}
	l.Close() //nolint:errcheck // it has failed
	// Lost on the medium, though it is still to be seen.
	for life := range 2 {
		var err error
		if l, err = log.Open(t.Context(), "/data/p", log.Options{Disk: d}); err != nil {
			t.Fatal(err)
		}
		if got := values(t, l, 0); l.Recovery().Lossy || fmt.Sprint(got) != "[one two]" {
			t.Errorf("life %d: got %q, %+v", life, got, l.Recovery())
		}
		if life == 0 {
			mustClose(t, l)
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			fs = fs.Crash(logtest.CrashLoseAll)
			if d, err = log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestJournalPins: a log that has failed keeps its entries, whatever others do, and
// over a close of the disk.
func TestJournalPins(t *testing.T) {
	fs := logtest.NewFS(1)
	d, l := oneDisk(t, fs)
	mustAppend(t, l, "one")
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpSync && op.Path == "/data/p/00000000000000000000.log" {
			return errors.New("broken")
		}
		return nil
	})
	log.FlushLog(l)
	l.Close() //nolint:errcheck // it has failed
	other, err := log.Open(t.Context(), "/data/other", log.Options{Disk: d})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		mustAppend(t, other, fmt.Sprint(i))
	}
	mustClose(t, other)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	fs = fs.Crash(logtest.CrashLoseAll)
	d, l = oneDisk(t, fs)
	if got := values(t, l, 0); l.Recovery().Lossy || fmt.Sprint(got) != "[one]" {
		t.Errorf("got %q, %+v", got, l.Recovery())
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestJournalTruncateKeeps: the power goes when a truncation is decided and not yet
// done. What stays was in the journal alone, under a generation that is gone.
func TestJournalTruncateKeeps(t *testing.T) {
	fs := logtest.NewFS(1)
	d, l := oneDisk(t, fs)
	for _, v := range []string{"one", "two", "three"} {
		mustAppend(t, l, v)
	}
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpTruncate {
			fs.PowerOff()
		}
		return nil
	})
	if _, err := l.TruncateTo(t.Context(), 2); err == nil {
		t.Fatal("the file was not cut")
	}
	mustCloseDead(l)
	d.Close() //nolint:errcheck // it is dead
	d, l = oneDisk(t, fs.Crash(logtest.CrashLoseAll))
	if got := values(t, l, 0); l.Recovery().Lossy || fmt.Sprint(got) != "[one two]" {
		t.Errorf("got %q, %+v", got, l.Recovery())
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestJournalKeepsWhatIsNotStated: a segment that is synced, but has no slots, since
// the disk was full, is known durable by its entries only.
func TestJournalKeepsWhatIsNotStated(t *testing.T) {
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	open := func(dir string) *log.Log {
		l, err := log.Open(t.Context(), dir, log.Options{Disk: d})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l, other := open("/data/p"), open("/data/other")
	for _, v := range []string{"one", "two", "three"} {
		mustAppend(t, l, v)
	}
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpWrite && op.Path == "/data/p/00000000000000000000.log" {
			return logtest.Short(10, log.ErrDiskFull)
		}
		return nil
	})
	if _, err := l.Append(t.Context(), plain("x")); !errors.Is(err, log.ErrDiskFull) {
		t.Fatalf("got %v", err)
	}
	fs.OnOp(nil)
	log.FlushLog(l)
	for i := range 100 {
		mustAppend(t, other, fmt.Sprint(i))
	}
	at := int64(len(readAll(t, fs, "/data/p/00000000000000000000.log"))) - 5
	fs = fs.Crash(logtest.CrashLoseAll)
	mustCloseDead(l)
	mustCloseDead(other)
	d.Close() //nolint:errcheck // it is dead
	// The last record is damaged in the file, and so is what the journal has of it.
	if err := fs.Corrupt("/data/p/00000000000000000000.log", at, 1); err != nil {
		t.Fatal(err)
	}
	for _, name := range fs.Names() {
		if !strings.HasSuffix(name, ".journal") {
			continue
		}
		b := readAll(t, fs, name)
		if i := strings.Index(string(b), "three"); i >= 0 {
			if err := fs.Corrupt(name, int64(i), 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if d, err = log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"}); err != nil {
		t.Fatal(err)
	}
	l = open("/data/p")
	if r := l.Recovery(); !r.Lossy || r.DurableEnd != 3 {
		t.Errorf("damage passes for a torn tail: %+v", r)
	}
	mustClose(t, l)
	d.Close() //nolint:errcheck // the other log has entries
}

// TestJournalDescriptors: logs whose segments are not synced keep them open, and
// there is a bound to that.
func TestJournalDescriptors(t *testing.T) {
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", OpenFiles: 20})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	var logs []*log.Log
	for i := range 100 {
		l, err := log.Open(t.Context(), fmt.Sprintf("/data/p%d", i), log.Options{Disk: d})
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, l)
		mustAppend(t, l, "x")
	}
	for log.JournalPinned(d) > 10 { // in the background
		runtime.Gosched()
	}
	for _, l := range logs {
		mustClose(t, l)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestJournalSlotsInTurn: groups of the journal between two syncs of the file don't
// make both syncs write the same slot, which the second could tear.
func TestJournalSlotsInTurn(t *testing.T) {
	fs := logtest.NewFS(1)
	d, l := oneDisk(t, fs)
	var at []int64
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpWrite && strings.HasSuffix(op.Path, ".log") && op.Len == 88 {
			at = append(at, op.Offset)
		}
		return nil
	})
	for i := range 20 {
		for range 1 + i%3 {
			mustAppend(t, l, "x")
		}
		log.FlushLog(l)
	}
	if len(at) < 20 {
		t.Errorf("%d slots were written", len(at))
	}
	for i := range at {
		if i > 0 && at[i] == at[i-1] {
			t.Errorf("slot %d stands where the one before stood", i)
		}
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
