package logtest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, fs log.FS, name string) log.File {
	t.Helper()
	f, err := fs.Create(name)
	must(t, err)
	return f
}

func write(t testing.TB, f log.File, off int64, s string) {
	t.Helper()
	if n, err := f.WriteAt([]byte(s), off); err != nil || n != len(s) {
		t.Fatalf("WriteAt = %d, %v", n, err)
	}
}

func content(t testing.TB, fs log.FS, name string) string {
	t.Helper()
	f, err := fs.Open(name, false)
	must(t, err)
	defer f.Close()
	size, err := f.Size()
	must(t, err)
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return string(b)
}

// durable makes a file with that content outlive a crash.
func durable(t testing.TB, fs *logtest.FS, name, s string) log.File {
	t.Helper()
	f := create(t, fs, name)
	write(t, f, 0, s)
	must(t, f.Sync())
	must(t, fs.SyncDir("/"))
	return f
}

func wantNames(t testing.TB, fs *logtest.FS, want ...string) {
	t.Helper()
	if got := fs.Names(); !slices.Equal(got, want) {
		t.Errorf("names = %q, want %q", got, want)
	}
}

func wantContent(t testing.TB, fs log.FS, name, want string) {
	t.Helper()
	if got := content(t, fs, name); got != want {
		t.Errorf("%s = %.40q (%d bytes), want %.40q (%d)", name, got, len(got), want, len(want))
	}
}

func TestCrashForgetsContent(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", "synced")
	write(t, f, 0, "UNSYNC")
	write(t, f, 6, " and longer")
	wantContent(t, fs, "a", "UNSYNC and longer")

	kept := fs.Crash(logtest.CrashKeepAll)
	wantContent(t, kept, "a", "UNSYNC and longer")
	lost := fs.Crash()
	wantContent(t, lost, "a", "synced")
	wantContent(t, kept, "a", "UNSYNC and longer")

	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, logtest.ErrCrashed) {
		t.Errorf("write to a dead file: %v", err)
	}
	if err := f.Sync(); !errors.Is(err, logtest.ErrCrashed) {
		t.Errorf("sync of a dead file: %v", err)
	}
	if _, err := fs.Create("b"); !errors.Is(err, logtest.ErrCrashed) {
		t.Errorf("create on a dead disk: %v", err)
	}
	if !fs.Crashed() || lost.Crashed() {
		t.Error("which one is dead?")
	}
}

func TestSectorsSurviveByThemselves(t *testing.T) {
	fs := logtest.NewFS(1)
	const sectors = 40
	f := durable(t, fs, "a", strings.Repeat("o", sectors*logtest.SectorBytes))
	write(t, f, 0, strings.Repeat("n", sectors*logtest.SectorBytes))
	fs.PowerOff()
	shapes := map[string]bool{}
	for seed := range uint64(20) {
		got := content(t, fs.Crash(logtest.CrashLoseSome(seed)), "a")
		var shape strings.Builder
		for s := range sectors {
			sector := got[s*logtest.SectorBytes:][:logtest.SectorBytes]
			if sector != strings.Repeat(sector[:1], logtest.SectorBytes) {
				t.Fatalf("sector %d is torn", s)
			}
			shape.WriteString(sector[:1])
		}
		shapes[shape.String()] = true
		if again := content(t, fs.Crash(logtest.CrashLoseSome(seed)), "a"); again != got {
			t.Fatalf("seed %d gives two images", seed)
		}
	}
	if len(shapes) < 15 {
		t.Errorf("20 seeds give %d images", len(shapes))
	}
}

func TestSizeSurvivesApartFromContent(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", "old")
	write(t, f, 3, strings.Repeat("n", 3*logtest.SectorBytes))
	fs.PowerOff()
	var zeros, short, partial bool
	for seed := range uint64(64) {
		after := fs.Crash(logtest.CrashLoseSome(seed))
		got := content(t, after, "a")
		g, err := after.Open("a", true)
		must(t, err)
		must(t, g.Truncate(int64(len(got))+10))
		wantContent(t, after, "a", got+strings.Repeat("\x00", 10))
		short = short || got == "old"
		zeros = zeros || len(got) > 3 && strings.Trim(got, "\x00") == "old"
		partial = partial || strings.Contains(got, "n") && strings.Contains(got, "\x00")
		if !strings.HasPrefix(got, "old") {
			t.Fatalf("seed %d lost synced bytes: %.10q", seed, got)
		}
	}
	if !zeros || !short || !partial {
		t.Errorf("zeros %v, old size %v, holes %v", zeros, short, partial)
	}
}

func TestCutAndGrownAgain(t *testing.T) {
	fs := logtest.NewFS(1)
	sector := func(c string) string { return strings.Repeat(c, logtest.SectorBytes) }
	f := durable(t, fs, "a", sector("A")+sector("B"))
	must(t, f.Truncate(logtest.SectorBytes))
	fs2 := fs.Fork(logtest.CrashLoseAll)
	wantContent(t, fs2, "a", sector("A")+sector("B"))
	write(t, f, logtest.SectorBytes, sector("C"))
	wantContent(t, fs, "a", sector("A")+sector("C"))
	fs.PowerOff()
	seen := map[string]bool{}
	for seed := range uint64(100) {
		got := content(t, fs.Crash(logtest.CrashLoseSome(seed)), "a")
		if len(got) == logtest.SectorBytes {
			seen["cut"] = true
			continue
		}
		seen[got[logtest.SectorBytes:][:1]] = true
	}
	for _, want := range []string{"cut", "B", "C", "\x00"} {
		if !seen[want] {
			t.Errorf("never seen after a crash: %q", want)
		}
	}
}

func TestTruncateLost(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", strings.Repeat("x", 3*logtest.SectorBytes))
	must(t, f.Truncate(0))
	fs.PowerOff()
	for seed := range uint64(12) {
		if got := content(t, fs.Crash(logtest.CrashLoseSome(seed)), "a"); got != "" && got != strings.Repeat("x", 3*logtest.SectorBytes) {
			t.Errorf("a truncation alone was done by halves")
		}
	}
}

func TestTruncateReadsZeros(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", strings.Repeat("x", 10000))
	must(t, f.Truncate(5000))
	must(t, f.Truncate(9000))
	want := strings.Repeat("x", 5000) + strings.Repeat("\x00", 4000)
	wantContent(t, fs, "a", want)
	must(t, f.Sync())
	wantContent(t, fs.Crash(), "a", want)
}

func TestCrashForgetsNames(t *testing.T) {
	fs := logtest.NewFS(1)
	must(t, fs.MkdirAll("/d/e"))
	must(t, fs.SyncDir("/"))
	wantNames(t, fs.Fork(logtest.CrashLoseAll), "/d/")
	must(t, fs.SyncDir("/d"))
	wantNames(t, fs.Fork(logtest.CrashLoseAll), "/d/", "/d/e/")

	f := create(t, fs, "/d/a")
	write(t, f, 0, "hello")
	must(t, f.Sync())
	wantNames(t, fs.Fork(logtest.CrashLoseAll), "/d/", "/d/e/")
	must(t, fs.SyncDir("/d"))
	wantContent(t, fs.Fork(logtest.CrashLoseAll), "/d/a", "hello")

	must(t, fs.Link("/d/a", "/d/b"))
	must(t, fs.Remove("/d/a"))
	wantNames(t, fs, "/d/", "/d/b", "/d/e/")
	wantNames(t, fs.Fork(logtest.CrashLoseAll), "/d/", "/d/a", "/d/e/")
	must(t, fs.SyncDir("/d"))
	wantNames(t, fs.Fork(logtest.CrashLoseAll), "/d/", "/d/b", "/d/e/")

	g := durable(t, fs, "/new", "new content")
	must(t, g.Close())
	must(t, fs.Rename("/d/b", "/d/c"))
	wantNames(t, fs.Fork(logtest.CrashLoseAll), "/d/", "/d/b", "/d/e/", "/new")
	must(t, fs.SyncDir("/d"))
	wantContent(t, fs.Crash(), "/d/c", "hello")
}

func TestRenameReplaces(t *testing.T) {
	fs := logtest.NewFS(1)
	durable(t, fs, "state", "old")
	durable(t, fs, "state.tmp", "new")
	must(t, fs.Rename("state.tmp", "state"))
	fs.PowerOff()
	seen := map[string]bool{}
	for seed := range uint64(20) {
		after := fs.Crash(logtest.CrashLoseSome(seed))
		got := content(t, after, "state")
		seen[got] = true
		if names := len(after.Names()); (got == "old") != (names == 2) {
			t.Errorf("rename by halves: %q with %q", got, after.Names())
		}
	}
	if !seen["old"] || !seen["new"] || len(seen) != 2 {
		t.Errorf("seen %v", seen)
	}
}

func TestNamesSurviveInOrder(t *testing.T) {
	fs := logtest.NewFS(1)
	var all []string
	for i := range 6 {
		create(t, fs, fmt.Sprint(i)).Close()
		all = append(all, fmt.Sprint("/", i))
	}
	fs.PowerOff()
	lengths := map[int]bool{}
	for seed := range uint64(50) {
		names := fs.Crash(logtest.CrashLoseSome(seed)).Names()
		lengths[len(names)] = true
		if !slices.Equal(names, all[:len(names)]) {
			t.Errorf("a later name survived without an earlier one: %q", names)
		}
	}
	if len(lengths) != 7 {
		t.Errorf("prefixes seen: %v", lengths)
	}
}

func TestRenameBetweenFolders(t *testing.T) {
	for _, order := range [][]string{{}, {"/from"}, {"/to"}, {"/from", "/to"}, {"/to", "/from"}} {
		fs := logtest.NewFS(1)
		must(t, fs.MkdirAll("/from"))
		must(t, fs.MkdirAll("/to"))
		must(t, fs.SyncDir("/"))
		f := create(t, fs, "/from/a")
		write(t, f, 0, "x")
		must(t, f.Sync())
		must(t, fs.SyncDir("/from"))
		create(t, fs, "/to/other")
		must(t, fs.Rename("/from/a", "/to/b"))
		for _, dir := range order {
			must(t, fs.SyncDir(dir))
		}
		fs.PowerOff()
		for seed := range uint64(40) {
			after := fs.Crash(logtest.CrashLoseSome(seed))
			names := after.Names()
			if !slices.Contains(names, "/from/a") && !slices.Contains(names, "/to/b") {
				t.Fatalf("synced %v, seed %d: the file is nowhere: %q", order, seed, names)
			}
			if len(order) == 2 && order[0] == "/to" && slices.Contains(names, "/from/a") {
				t.Fatalf("synced %v: the old name is still there", order)
			}
		}
		if len(order) > 0 && slices.Contains(order, "/to") {
			wantContent(t, fs.Crash(), "/to/b", "x")
		}
	}
}

func TestKillKeepsAllUntilCrash(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", "old")
	write(t, f, 0, "new")
	create(t, fs, "b")
	if _, err := fs.Lock("lock"); err != nil {
		t.Fatal(err)
	}
	next := fs.Kill()
	if err := f.Sync(); !errors.Is(err, logtest.ErrCrashed) {
		t.Errorf("sync by the killed process: %v", err)
	}
	if l, err := next.Lock("lock"); err != nil {
		t.Errorf("lock of the killed process: %v", err)
	} else {
		l.Close()
	}
	wantContent(t, next, "a", "new")
	wantNames(t, next, "/a", "/b", "/lock")
	after := next.Crash()
	wantContent(t, after, "a", "old")
	wantNames(t, after, "/a")
}

func TestForkLeavesOriginalAlone(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", "one")
	write(t, f, 0, "two")
	fork := fs.Fork(logtest.CrashKeepAll)
	write(t, f, 0, "six")
	g, err := fork.Open("a", true)
	must(t, err)
	wantContent(t, fork, "a", "two")
	write(t, g, 0, "ten")
	wantContent(t, fs, "a", "six")
	must(t, f.Sync())
	wantContent(t, fork, "a", "ten")
	wantContent(t, fork.Crash(), "a", "two")
	wantContent(t, fs.Crash(), "a", "six")

	fs = logtest.NewFS(1)
	f = durable(t, fs, "a", strings.Repeat("1", logtest.SectorBytes))
	write(t, f, 0, strings.Repeat("2", logtest.SectorBytes))
	fork = fs.Fork(logtest.CrashKeepAll)
	write(t, f, 0, strings.Repeat("3", logtest.SectorBytes))
	wantContent(t, fork, "a", strings.Repeat("2", logtest.SectorBytes))
}

func TestLinksSurviveAsOne(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", "x")
	must(t, fs.MkdirAll("d"))
	must(t, fs.Link("a", "d/b"))
	fs.SyncAll()
	must(t, f.Close())
	fs.SetCapacity(10 * logtest.SectorBytes)
	after := fs.Crash()
	g, err := after.Open("a", true)
	must(t, err)
	write(t, g, 0, "y")
	wantContent(t, after, "d/b", "y")
	must(t, after.Remove("a"))
	must(t, g.Close())
	if after.UsedBytes() != logtest.SectorBytes {
		t.Errorf("used with one name left: %d", after.UsedBytes())
	}
	must(t, after.Remove("d/b"))
	if after.UsedBytes() != 0 {
		t.Errorf("used with no name left: %d", after.UsedBytes())
	}
}

func TestHookOutcomes(t *testing.T) {
	boom := errors.New("boom")
	var verdict error
	var only logtest.Kind
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", "12345678")
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == only {
			return verdict
		}
		return nil
	})
	t.Run("not done", func(t *testing.T) {
		only, verdict = logtest.OpWrite, boom
		if n, err := f.WriteAt([]byte("xx"), 0); n != 0 || !errors.Is(err, boom) {
			t.Errorf("WriteAt = %d, %v", n, err)
		}
		wantContent(t, fs, "a", "12345678")
		only = logtest.OpCreate
		if g, err := fs.Create("b"); g != nil || !errors.Is(err, boom) {
			t.Errorf("Create = %v, %v", g, err)
		}
		wantNames(t, fs, "/a")
	})
	t.Run("done but failed", func(t *testing.T) {
		only, verdict = logtest.OpWrite, logtest.DoneButFailed(boom)
		if _, err := f.WriteAt([]byte("xx"), 0); !errors.Is(err, boom) {
			t.Errorf("WriteAt: %v", err)
		}
		wantContent(t, fs, "a", "xx345678")
		only = logtest.OpSync
		if err := f.Sync(); !errors.Is(err, boom) {
			t.Errorf("Sync: %v", err)
		}
		wantContent(t, fs.Fork(logtest.CrashLoseAll), "a", "xx345678")
		only = logtest.OpCreate
		if g, err := fs.Create("b"); g != nil || !errors.Is(err, boom) {
			t.Errorf("Create = %v, %v", g, err)
		}
		wantNames(t, fs, "/a", "/b")
		only = logtest.OpRemove
		if err := fs.Remove("b"); !errors.Is(err, boom) {
			t.Errorf("Remove: %v", err)
		}
		wantNames(t, fs, "/a")
	})
	t.Run("lock", func(t *testing.T) {
		only, verdict = logtest.OpLock, logtest.DoneButFailed(boom)
		if l, err := fs.Lock("lock"); l != nil || !errors.Is(err, boom) {
			t.Errorf("Lock = %v, %v", l, err)
		}
		only = 255
		if l, err := fs.Lock("lock"); err != nil {
			t.Error(err)
		} else {
			must(t, l.Close())
		}
	})
	t.Run("short", func(t *testing.T) {
		only, verdict = logtest.OpWrite, logtest.Short(3, boom)
		if n, err := f.WriteAt([]byte("abcdef"), 0); n != 3 || !errors.Is(err, boom) {
			t.Errorf("WriteAt = %d, %v", n, err)
		}
		wantContent(t, fs, "a", "abc45678")
		only, verdict = logtest.OpRead, logtest.Short(2, boom)
		b := make([]byte, 8)
		if n, err := f.ReadAt(b, 0); n != 2 || !errors.Is(err, boom) || !bytes.Equal(b, []byte("ab\x00\x00\x00\x00\x00\x00")) {
			t.Errorf("ReadAt = %d, %v, %q", n, err, b)
		}
	})
	only = 255
	if got := fs.Trace(); !strings.Contains(got, "write /a [0,+6): boom\n") {
		t.Errorf("trace:\n%s", got)
	}
}

func TestFailedSyncGivesContentUp(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", strings.Repeat("o", 2*logtest.SectorBytes))
	write(t, f, 0, "new")
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpSync {
			return syscall.EIO
		}
		return nil
	})
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Sync: %v", err)
	}
	fs.OnOp(nil)
	if got := content(t, fs, "a")[:4]; got != "newo" {
		t.Errorf("readers see %q", got)
	}
	must(t, f.Sync())
	for _, mode := range []logtest.CrashMode{logtest.CrashLoseAll, logtest.CrashKeepAll} {
		if got := content(t, fs.Fork(mode), "a")[:4]; got != "oooo" {
			t.Errorf("%v after a second sync: %q", mode, got)
		}
	}
	write(t, f, 10, "again")
	must(t, f.Sync())
	if got := content(t, fs.Crash(), "a")[:15]; got != "newoooooooagain" {
		t.Errorf("written again: %q", got)
	}
}

func TestOpenFiles(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "b", "x")
	create(t, fs, "a")
	g, err := fs.Open("b", false)
	must(t, err)
	boom := errors.New("boom")
	fs.OnOp(func(op logtest.Op) error { return boom })
	if _, err := fs.Open("b", false); !errors.Is(err, boom) {
		t.Error(err)
	}
	fs.OnOp(func(op logtest.Op) error { return logtest.DoneButFailed(boom) })
	if _, err := fs.Open("b", false); !errors.Is(err, boom) {
		t.Error(err)
	}
	if got := fs.OpenFiles(); !slices.Equal(got, []string{"/a", "/b", "/b"}) {
		t.Errorf("open: %q", got)
	}
	if err := g.Close(); !errors.Is(err, boom) {
		t.Errorf("Close: %v", err)
	}
	fs.PowerOff()
	must(t, f.Close())
	if err := f.Close(); !errors.Is(err, iofs.ErrClosed) {
		t.Errorf("Close again: %v", err)
	}
	if got := fs.OpenFiles(); !slices.Equal(got, []string{"/a"}) || fs.Count(logtest.OpClose) != 3 {
		t.Errorf("open: %q after %d closes", got, fs.Count(logtest.OpClose))
	}
}

func TestCapacity(t *testing.T) {
	fs := logtest.NewFS(1)
	fs.SetCapacity(4 * logtest.SectorBytes)
	f := create(t, fs, "a")
	n, err := f.WriteAt(make([]byte, 5*logtest.SectorBytes), 100)
	if n != 4*logtest.SectorBytes-100 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("WriteAt = %d, %v", n, err)
	}
	if free, _ := fs.FreeBytes("/"); free != 0 {
		t.Errorf("free = %d", free)
	}
	write(t, f, 0, "over what is there")
	g := create(t, fs, "b")
	if err := g.Preallocate(0, 1); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Preallocate: %v", err)
	}
	must(t, f.Truncate(2*logtest.SectorBytes))
	if err := g.Preallocate(0, 3*logtest.SectorBytes); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Preallocate: %v", err)
	}
	must(t, g.Preallocate(0, 2*logtest.SectorBytes))
	if size, _ := g.Size(); size != 2*logtest.SectorBytes {
		t.Errorf("size = %d", size)
	}
	write(t, g, logtest.SectorBytes, "reserved")
	must(t, fs.Remove("a"))
	if free, _ := fs.FreeBytes("/"); free != 0 {
		t.Errorf("free while the removed file is open = %d", free)
	}
	must(t, f.Close())
	if free, _ := fs.FreeBytes("/"); free != 2*logtest.SectorBytes {
		t.Errorf("free = %d", free)
	}
	must(t, g.Sync())
	must(t, fs.SyncDir("/"))
	after := fs.Crash()
	if free, _ := after.FreeBytes("/"); free != 2*logtest.SectorBytes {
		t.Errorf("free after the crash = %d", free)
	}
}

func TestCorrupt(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", "abc")
	write(t, f, 2, "C")
	must(t, fs.Corrupt("a", 1, 0x20, 0x20))
	wantContent(t, fs, "a", "aBc")
	wantContent(t, fs.Crash(), "a", "aBC")
	if err := logtest.NewFS(1).Corrupt("a", 0, 1); !errors.Is(err, iofs.ErrNotExist) {
		t.Errorf("Corrupt: %v", err)
	}
}

func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		f := durable(t, fs, "a", "x")
		release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
		done := make(chan error, 1)
		go func() { done <- f.Sync() }()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("Sync did not stall")
		default:
		}
		write(t, f, 0, "y")
		release()
		release()
		must(t, <-done)
		fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
		go func() { done <- f.Sync() }()
		synctest.Wait()
		after := fs.Crash()
		if err := <-done; !errors.Is(err, logtest.ErrCrashed) {
			t.Errorf("stalled sync after the crash: %v", err)
		}
		wantContent(t, after, "a", "y")
	})
}

func TestCounters(t *testing.T) {
	fs := logtest.NewFS(1)
	f := durable(t, fs, "a", "abc")
	content(t, fs, "a")
	if fs.Count(logtest.OpWrite) != 1 || fs.Count(logtest.OpSync) != 1 || fs.Count(logtest.OpRead) != 1 || fs.Changes() != 4 || fs.WrittenBytes() != 3 {
		t.Errorf("writes %d, syncs %d, reads %d, changes %d, bytes %d", fs.Count(logtest.OpWrite), fs.Count(logtest.OpSync),
			fs.Count(logtest.OpRead), fs.Changes(), fs.WrittenBytes())
	}
	f.Close()
}

// TestModel runs random writes, cuts and syncs against a dumb model of one file.
func TestModel(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 0))
		fs := logtest.NewFS(seed)
		f := create(t, fs, "a")
		must(t, fs.SyncDir("/"))
		var now, synced []byte
		for range 60 {
			switch rng.IntN(8) {
			case 0:
				must(t, f.Sync())
				synced = bytes.Clone(now)
			case 1:
				size := rng.IntN(3 << 20)
				must(t, f.Truncate(int64(size)))
				if size < len(now) {
					now = now[:size]
				} else {
					now = append(now, make([]byte, size-len(now))...)
				}
			case 2:
				fs = fs.Crash()
				var err error
				f, err = fs.Open("a", true)
				must(t, err)
				now = bytes.Clone(synced)
			case 3:
				off, n := rng.IntN(3<<20), rng.IntN(1<<16)
				must(t, f.Preallocate(int64(off), int64(n)))
				if off+n > len(now) {
					now = append(now, make([]byte, off+n-len(now))...)
				}
			default:
				p := make([]byte, rng.IntN(20000))
				for i := range p {
					p[i] = byte(rng.Uint32())
				}
				off := rng.IntN(2 << 20)
				if len(p) == 0 {
					break
				}
				write(t, f, int64(off), string(p))
				if off+len(p) > len(now) {
					now = append(now, make([]byte, off+len(p)-len(now))...)
				}
				copy(now[off:], p)
			}
			if got := content(t, fs, "a"); got != string(now) {
				t.Fatalf("seed %d: content differs\n%s", seed, fs.Trace())
			}
		}
	}
}

func TestEachCrash(t *testing.T) {
	type state struct{ written, synced int }
	points, images := 0, 0
	logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
		points++
		var s state
		run := func() error {
			f, err := fs.Create("a")
			if err != nil {
				return err
			}
			if err := fs.SyncDir("/"); err != nil {
				return err
			}
			for range 5 {
				s.written++
				if _, err := f.WriteAt([]byte("x"), int64(s.written-1)); err != nil {
					return err
				}
				if err := f.Sync(); err != nil {
					return err
				}
				s.synced = s.written
			}
			return nil
		}
		if err := run(); err != nil && !errors.Is(err, logtest.ErrCrashed) {
			t.Error(err)
		}
		return func(after *logtest.FS) {
			images++
			if s.synced == 0 {
				return
			}
			if got := len(content(t, after, "a")); got < s.synced || got > s.written {
				t.Errorf("%d bytes, want %d to %d", got, s.synced, s.written)
			}
		}
	})
	if points != 1+12+1 || images != 1+4*13 {
		t.Errorf("%d runs, %d images", points, images)
	}
}

// A writer that takes a failed sync for a good one is found out.
func TestEachFault(t *testing.T) {
	lost := 0
	runs := 0
	logtest.EachFault(t, func(fs *logtest.FS) func(*logtest.FS) {
		runs++
		acked := 0
		if f, err := fs.Create("a"); err == nil && fs.SyncDir("/") == nil {
			for i := range 3 {
				if n, err := f.WriteAt([]byte("x"), int64(i)); n != 1 || err != nil {
					break
				}
				f.Sync() // the mistake
				acked++
			}
		}
		return func(after *logtest.FS) {
			if acked == 0 {
				return
			}
			if len(content(t, after, "a")) < acked || strings.Contains(content(t, after, "a"), "\x00") {
				lost++
			}
		}
	})
	// 8 changes and the run without one, each three times, and one before them.
	if runs != 1+9*3 || lost == 0 {
		t.Errorf("%d runs, %d losses seen", runs, lost)
	}
}

func TestPowerOffWhileStalled(t *testing.T) {
	fs := logtest.NewFS(1) // outside the bubble
	synctest.Test(t, func(t *testing.T) {
		f := durable(t, fs, "a", "x")
		release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpWrite })
		done := make(chan error)
		go func() {
			_, err := f.WriteAt([]byte("y"), 0)
			done <- err
		}()
		synctest.Wait()
		fs.PowerOff()
		if err := <-done; !errors.Is(err, logtest.ErrCrashed) {
			t.Errorf("stalled write: %v", err)
		}
		release()
		fs.Stall(func(logtest.Op) bool { return true })
		if err := f.Sync(); !errors.Is(err, logtest.ErrCrashed) {
			t.Errorf("sync: %v", err)
		}
	})
}

func TestCrashRandom(t *testing.T) {
	image := func(seed uint64) (out string) {
		fs := logtest.NewFS(seed)
		for range 10 {
			f, err := fs.Create("a")
			if err != nil {
				f, err = fs.Open("a", true)
				must(t, err)
			}
			write(t, f, 0, strings.Repeat("x", 5*logtest.SectorBytes))
			fs = fs.Crash(logtest.CrashRandom)
			out += strings.Join(fs.Names(), " ") + ";"
			if len(fs.Names()) > 0 {
				out += fmt.Sprint(len(content(t, fs, "a")), strings.Count(content(t, fs, "a"), "x")) + "\n"
			}
		}
		return out
	}
	if again := image(3); again != image(3) {
		t.Error("the same seed gives two histories")
	}
	if image(3) == image(4) {
		t.Error("two seeds give the same history")
	}
}

func TestSyncAll(t *testing.T) {
	fs := logtest.NewFS(1)
	must(t, fs.MkdirAll("/x/y"))
	write(t, create(t, fs, "/x/y/a"), 0, "content")
	fs.SyncAll()
	wantContent(t, fs.Crash(), "/x/y/a", "content")
}

func ExampleFS() {
	disk := logtest.NewFS(1)
	f, err := disk.Create("/journal")
	if err != nil {
		fmt.Println(err)
		return
	}
	f.WriteAt([]byte("synced"), 0)
	f.Sync()
	disk.SyncDir("/")
	f.WriteAt([]byte(" and not"), 6)

	disk = disk.Crash()
	f, err = disk.Open("/journal", false)
	if err != nil {
		fmt.Println(err)
		return
	}
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0)
	fmt.Printf("%s\n", b[:n])
	// Output: synced
}

func BenchmarkAppendSync(b *testing.B) {
	fs := logtest.NewFS(1)
	f, _ := fs.Create("a")
	f.Preallocate(0, 64<<20)
	p := make([]byte, 1024)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	off := int64(0)
	for b.Loop() {
		f.WriteAt(p, off)
		f.Sync()
		off = (off + 1024) % (64 << 20)
	}
}
