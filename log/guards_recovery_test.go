package log_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// Each test here is for one guard of recovery, by its name in testdata/mutations.txt.

// guardedLog closes a log of n records, one a batch of producer 3, in segments of a few records, and returns their bases. Without marker
// it is as after a crash, but for the active file, which has its exact length.
func guardedLog(t *testing.T, n int, marker bool) (*logtest.FS, []log.Offset) {
	t.Helper()
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{SegmentBytes: 1 << 10, ProducerExpiry: -1})
	for i := range n {
		if _, err := l.Write(log.Epoch(i/4), guardedBatch(i)); err != nil {
			t.Fatal(err)
		}
	}
	var bases []log.Offset
	for _, s := range l.Segments() {
		bases = append(bases, s.Base)
	}
	mustClose(t, l)
	if !marker {
		remove(t, fs, "cordwood.clean")
	}
	fs.SyncAll()
	return fs, bases
}

func guardedBatch(i int) []byte { return sequenced(3, 0, int32(i), big(fmt.Sprint(i), 300)) }

func reopen(t *testing.T, fs *logtest.FS) *log.Log {
	t.Helper()
	return open(t, fs, log.Options{SegmentBytes: 1 << 10, ProducerExpiry: -1})
}

// wantRetries asks for the offsets of the batches from lo on, which the log must know.
func wantRetries(t *testing.T, l *log.Log, lo, end int) {
	t.Helper()
	for i := lo; i < end; i++ {
		if a, err := l.Write(log.Epoch(end/4), guardedBatch(i)); err != nil || !a.Duplicate || a.Base != log.Offset(i) {
			t.Errorf("retry of %d: %+v, %v", i, a, err)
		}
	}
}

func remove(t *testing.T, fs log.FS, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := fs.Remove("/data/p/" + n); err != nil {
			t.Fatal(err)
		}
	}
}

func resize(t *testing.T, fs log.FS, name string, by int64) {
	t.Helper()
	f, err := fs.Open("/data/p/"+name, true)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err == nil && by > 0 {
		_, err = f.WriteAt(make([]byte, by), size)
	} else if err == nil {
		err = f.Truncate(size + by)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func sideName(off log.Offset, suffix string) string { return fmt.Sprintf("%020d.%s", off, suffix) }

// scan: epochs are not compared with the chain
func TestGuardScanEpoch(t *testing.T) {
	fs, bases := guardedLog(t, 12, false)
	// Without a seal nothing else tells; the newest state has the epochs.
	remove(t, fs, sideName(bases[1], "seal"))
	if err := fs.Corrupt("/data/p/"+sideName(bases[1], "log"), 15, 0x40); err != nil {
		t.Fatal(err)
	}
	l := reopen(t, fs)
	if r := l.Recovery(); !r.Lossy || len(r.Corruption) != 1 || r.Corruption[0].Offset != bases[1] || r.Corruption[0].End != bases[1]+1 {
		t.Errorf("got %+v, %v", r, r.Corruption)
	}
	mustClose(t, l)
}

// scan: all copies of tails are kept
func TestGuardCutsBounded(t *testing.T) {
	fs := logtest.NewFS(1)
	var cuts []string
	for i := range 9 {
		l := open(t, fs, log.Options{})
		mustAppend(t, l, big(fmt.Sprint(i), 60*(9-i))) // positions with more and with fewer digits
		mustClose(t, l)
		remove(t, fs, "cordwood.clean")
		resize(t, fs, sideName(0, "log"), 1)
		size := fileSize(t, fs, sideName(0, "log"))
		if err := fs.Corrupt("/data/p/"+sideName(0, "log"), size-1, 0xff); err != nil {
			t.Fatal(err)
		}
		l = open(t, fs, log.Options{})
		r := l.Recovery()
		if r.Lossy || r.CutBytes != 1 || r.End != log.Offset(i+1) {
			t.Fatalf("got %+v", r)
		}
		cuts = append(cuts, r.CutPath)
		mustClose(t, l)
		var there []string
		for _, n := range fs.Names() {
			if strings.HasSuffix(n, ".cut") {
				there = append(there, n)
			}
		}
		want := slices.Sorted(slices.Values(cuts[max(0, len(cuts)-4):]))
		if !slices.Equal(there, want) {
			t.Errorf("after %d cuts: got %q, want %q", i+1, there, want)
		}
	}
}

func fileSize(t *testing.T, fs log.FS, name string) int64 {
	t.Helper()
	fi, err := fs.Stat("/data/p/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Size
}

// recovery: the marker of a clean close is believed whatever the files are
func TestGuardMarkerSize(t *testing.T) {
	for _, by := range []int64{-1, 1} {
		fs, bases := guardedLog(t, 7, true)
		resize(t, fs, sideName(bases[len(bases)-1], "log"), by)
		l := reopen(t, fs)
		r := l.Recovery()
		if r.Clean || r.Lossy != (by < 0) || r.End != 7 || r.DurableEnd != 7 {
			t.Errorf("%+d bytes: got %+v", by, r)
		}
		mustClose(t, l)
	}
}

// recovery: the marker of another log is believed
func TestGuardMarkerOfAnother(t *testing.T) {
	other := logtest.NewFS(1)
	l := open(t, other, log.Options{})
	for i := range 9 {
		mustAppend(t, l, fmt.Sprint(i))
	}
	mustClose(t, l)
	fs := logtest.NewFS(2)
	l = open(t, fs, log.Options{})
	for i := range 5 {
		mustAppend(t, l, fmt.Sprint(i))
	}
	fs = fs.Crash()
	put(t, fs, "cordwood.clean", readAll(t, other, "/data/p/cordwood.clean"))
	l = open(t, fs, log.Options{})
	if r := l.Recovery(); r.Lossy || r.Clean || r.End != 5 || r.DurableEnd > 5 {
		t.Errorf("got %+v", r)
	}
	mustClose(t, l)
}

func put(t *testing.T, fs log.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create("/data/p/" + name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(b, 0)
	if err := errors.Join(err, f.Sync(), f.Close(), fs.SyncDir("/data/p")); err != nil {
		t.Fatal(err)
	}
}

// recovery: temporary files stay
func TestGuardTemporaryFiles(t *testing.T) {
	fs, bases := guardedLog(t, 7, true)
	left := []string{"cordwood.meta.tmp", sideName(bases[1], "state.tmp"), sideName(7, "next")}
	for _, n := range left {
		put(t, fs, n, []byte("half of it"))
	}
	mustClose(t, reopen(t, fs))
	for _, n := range left {
		if slices.Contains(fs.Names(), "/data/p/"+n) {
			t.Errorf("%s is still there", n)
		}
	}
}

// freedButThere returns a log whose start has passed its first segments, of which the files are still there: the machine died in between.
// Nothing but the batches says what the producer did.
func freedButThere(t *testing.T) (fs *logtest.FS, local log.Offset) {
	t.Helper()
	fs, bases := guardedLog(t, 9, true)
	local = bases[2]
	image := fs.Fork(logtest.CrashKeepAll)
	l := reopen(t, image)
	image.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpRemove && path.Ext(op.Path) == ".index" {
			image.PowerOff()
		}
		return nil
	})
	if err := l.DropLocal(context.Background(), local); err == nil {
		t.Fatal("nothing was removed")
	}
	l.Close() //nolint:errcheck // its disk is dead
	image = image.Crash(logtest.CrashKeepAll)
	for _, n := range image.Names() {
		if e := path.Ext(n); e == ".state" || e == ".snapshot" || e == ".clean" {
			if err := image.Remove(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !slices.Contains(image.Names(), "/data/p/"+sideName(0, "log")) {
		t.Fatal("the first segment is gone")
	}
	image.SyncAll()
	return image, local
}

// recovery: segments go without the state behind them
func TestGuardSegmentsNeeded(t *testing.T) {
	fs, local := freedButThere(t)
	l := reopen(t, fs)
	if l.LocalStart() != local || l.Recovery().Lossy {
		t.Errorf("got %d, want %d, %+v", l.LocalStart(), local, l.Recovery())
	}
	wantRetries(t, l, 4, 9)
	mustClose(t, l)
}

// recovery: the meta file comes without its folder
func TestGuardFloorSurvives(t *testing.T) {
	image, _ := guardedLog(t, 7, false)
	for at := int64(1); ; at++ {
		fs := image.Fork(logtest.CrashKeepAll)
		from := fs.Changes()
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind.Changes() && op.Changed-from >= at {
				fs.PowerOff()
			}
			return nil
		})
		l, err := log.Open(context.Background(), "/data/p", log.Options{FS: fs, SegmentBytes: 1 << 10, ProducerExpiry: -1})
		fs.PowerOff()
		if err == nil {
			l.Close() //nolint:errcheck // its disk is dead
		}
		for seed := range uint64(4) {
			mode := logtest.CrashLoseAll
			if seed > 0 {
				mode = logtest.CrashLoseSome(seed)
			}
			after := reopen(t, fs.Fork(mode))
			if r := after.Recovery(); r.DurableEnd != 7 || r.End != 7 || r.Lossy {
				t.Fatalf("change %d: got %+v", at, r)
			}
			mustClose(t, after)
		}
		if err == nil {
			return
		}
	}
}

// recovery: a seal of another size is believed
func TestGuardSealedLength(t *testing.T) {
	fs, bases := guardedLog(t, 9, false)
	size := fileSize(t, fs, sideName(bases[1], "log"))
	resize(t, fs, sideName(bases[1], "log"), 5000)
	l := reopen(t, fs)
	if got := fileSize(t, fs, sideName(bases[1], "log")); got != size || l.Recovery().Lossy {
		t.Errorf("got %d bytes, want %d, %+v", got, size, l.Recovery())
	}
	wantSound(t, l)
	mustClose(t, l)
}

// recovery: what is not space is cut from a sealed segment
func TestGuardSealedRest(t *testing.T) {
	fs, bases := guardedLog(t, 9, false)
	name := sideName(bases[1], "log")
	size := fileSize(t, fs, name)
	resize(t, fs, name, 5000)
	if err := fs.Corrupt("/data/p/"+name, size+4321, 0x55); err != nil {
		t.Fatal(err)
	}
	l := reopen(t, fs)
	if got := fileSize(t, fs, name); got != size+5000 || l.Recovery().Lossy {
		t.Errorf("got %d bytes, want %d, %+v", got, size+5000, l.Recovery())
	}
	if got := values(t, l, 0); len(got) != 9 {
		t.Errorf("got %d records", len(got))
	}
	mustClose(t, l)
}

// recovery: a gap before the first segment is no damage
func TestGuardFirstSegmentGone(t *testing.T) {
	for _, clean := range []bool{true, false} {
		fs, bases := guardedLog(t, 9, clean)
		remove(t, fs, sideName(0, "log"))
		l := reopen(t, fs)
		r := l.Recovery()
		if !r.Lossy || len(r.Corruption) == 0 || r.Corruption[0].Offset != 0 || r.Corruption[0].End != bases[1] {
			t.Errorf("got %+v, %v", r, r.Corruption)
		}
		if _, err := l.Write(9, plain("x")); !errors.Is(err, log.ErrReadOnly) {
			t.Errorf("got %v", err)
		}
		mustClose(t, l)
	}
}

// recovery: an end below the local start is no damage
func TestGuardEndBelowStart(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	for i := range 9 {
		mustAppend(t, l, big(fmt.Sprint(i), 300))
	}
	if err := l.TrimTo(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	fs = fs.Crash()
	name := sideName(0, "log")
	resize(t, fs, name, 1000-fileSize(t, fs, name)) // the slots go, too
	l = open(t, fs, log.Options{})
	if r := l.Recovery(); !r.Lossy || r.End >= 8 {
		t.Errorf("got %+v, %v", r, r.Corruption)
	}
	if _, err := l.Write(9, plain("x")); !errors.Is(err, log.ErrReadOnly) {
		t.Errorf("got %v", err)
	}
	mustClose(t, l)
}
