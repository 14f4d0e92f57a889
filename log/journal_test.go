package log_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

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
		f := newFleetThat(t, fs, 4, 1, seed%2 == 1)
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
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10, HeldBytes: -1})
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
		log.FlushLog(other) // else it is chance whether the journal turns
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
		if op.Kind == logtest.OpWrite && strings.HasSuffix(op.Path, ".log") && op.Len == 96 {
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
