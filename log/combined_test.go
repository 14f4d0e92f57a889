package log_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// heldRolls returns a log that has rolled twice, into recycled files, of which no
// name has become durable: the files beside sealed segments have found no room. All
// its records are acknowledged.
func heldRolls(t *testing.T, fs *logtest.FS, o log.Options) (*log.Log, []string) {
	t.Helper()
	l := open(t, fs, o)
	var want []string
	add := func(s string) { mustAppend(t, l, s); want = append(want, s) }
	for range 3 {
		mustAppend(t, l, "gone")
		if err := l.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		rest(l)
	}
	if err := l.TrimTo(t.Context(), l.End()); err != nil {
		t.Fatal(err)
	}
	rest(l)
	add("first")
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpCreate && !strings.Contains(op.Path, "spare") {
			return syscall.ENOSPC
		}
		return nil
	})
	for i := range 2 {
		if err := l.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		add(fmt.Sprint("in segment ", i+1))
	}
	rest(l)
	if n := l.Stats().Recycled; n != 2 {
		t.Fatalf("%d files were recycled", n)
	}
	return l, want
}

func wantValues(t *testing.T, fs *logtest.FS, o log.Options, want []string) {
	t.Helper()
	l := open(t, fs, o)
	defer mustClose(t, l)
	if r := l.Recovery(); r.Lossy {
		t.Errorf("got %+v", r)
	}
	if got := values(t, l, l.Start()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestUnsyncedNameRecovery: a log whose process has died is opened while the names of
// its newest segments are not durable, and that recovery dies with the machine. It
// cuts the marks off by which the files are found under their older names.
func TestUnsyncedNameRecovery(t *testing.T) {
	for at := int64(1); ; at++ {
		fs := logtest.NewFS(1)
		old, want := heldRolls(t, fs, log.Options{})
		fs.OnOp(nil)
		fs = fs.Kill()
		mustCloseDead(old)
		from := fs.Changes()
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind.Changes() && op.Changed-from >= at {
				fs.PowerOff()
			}
			return nil
		})
		l, err := log.Open(t.Context(), "/data/p", log.Options{FS: fs})
		for _, mode := range []logtest.CrashMode{logtest.CrashLoseAll, logtest.CrashLoseSome(uint64(at))} {
			wantValues(t, fs.Crash(mode), log.Options{}, want)
		}
		if t.Failed() {
			t.Fatalf("recovery died at change %d; trace:\n%s", at, fs.Trace())
		}
		if err == nil {
			mustCloseDead(l)
			return
		}
	}
}

// TestUnsyncedNameRollBack: the same, when a write is taken back.
func TestUnsyncedNameRollBack(t *testing.T) {
	for _, parts := range []int{1, 3} {
		for at := int64(1); ; at++ {
			fs := logtest.NewFS(1)
			o := log.Options{SegmentBytes: 20 << 10}
			l, want := heldRolls(t, fs, o)
			var b []byte
			for range parts {
				b = append(b, plain(big("more", 9000))...)
			}
			var writes atomic.Int64
			from := fs.Changes()
			fs.OnOp(func(op logtest.Op) error {
				if op.Kind.Changes() && op.Changed-from >= at {
					fs.PowerOff()
				}
				if op.Kind == logtest.OpCreate && !strings.Contains(op.Path, "spare") {
					return syscall.ENOSPC
				}
				if op.Kind == logtest.OpWrite && op.Len > 9000 {
					if int(writes.Add(1)) == max(1, parts-1) {
						return syscall.ENOSPC
					}
				}
				return nil
			})
			_, err := l.Write(0, b)
			done := !fs.Crashed()
			for _, mode := range []logtest.CrashMode{logtest.CrashLoseAll, logtest.CrashLoseSome(uint64(at))} {
				image := fs.Crash(mode)
				image.OnOp(nil)
				n := open(t, image, o)
				if r := n.Recovery(); r.Lossy {
					t.Errorf("got %+v", r)
					mustClose(t, n)
					continue
				}
				got := values(t, n, n.Start())
				if len(got) < len(want) || fmt.Sprint(got[:len(want)]) != fmt.Sprint(want) {
					t.Errorf("got %.60q, want %q", got, want)
				}
				mustClose(t, n)
			}
			mustCloseDead(l)
			if t.Failed() {
				t.Fatalf("parts %d, died at change %d: %v; trace:\n%s", parts, at, err, fs.Trace())
			}
			if done {
				break
			}
		}
	}
}

// TestTruncatedNotYetDurable: what a truncation leaves counts as durable when it is
// synced, not before.
func TestTruncatedNotYetDurable(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, "durable")
	for range 3 {
		if _, err := l.Write(0, plain("written")); err != nil {
			t.Fatal(err)
		}
	}
	var looked atomic.Bool
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpTruncate {
			looked.Store(true)
			if d := l.DurableEnd(); d != 1 {
				t.Errorf("durable end %d before the sync", d)
			}
		}
		return nil
	})
	if _, err := l.TruncateTo(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if d := l.DurableEnd(); d != 3 || !looked.Load() {
		t.Errorf("durable end %d, looked %v", d, looked.Load())
	}
	fs.OnOp(nil)
	mustClose(t, l)
}

// TestUnsyncedTruncation: the process dies in a truncation or a reset, the log is
// opened, and that recovery dies with the machine.
func TestUnsyncedTruncation(t *testing.T) {
	calls := map[string]func(l *log.Log) error{
		"truncate": func(l *log.Log) error { _, err := l.TruncateTo(context.Background(), 2); return err },
		"reset":    func(l *log.Log) error { return l.Reset(context.Background(), 2, nil, nil) },
	}
	for name, call := range calls {
		for first := int64(1); ; first++ {
			var done bool
			for at := int64(1); ; at++ {
				fs := logtest.NewFS(1)
				l := open(t, fs, log.Options{})
				want := []string{"a", "b", "c", "d"}
				for _, s := range append(slices.Clone(want), "e", "f") {
					mustAppend(t, l, s)
				}
				if _, err := l.TruncateTo(t.Context(), 4); err != nil {
					t.Fatal(err)
				}
				from := fs.Changes()
				die := func(op logtest.Op) error {
					if op.Kind.Changes() && op.Changed-from >= first {
						return logtest.ErrCrashed
					}
					return nil
				}
				fs.OnOp(die)
				done = call(l) == nil
				fs.OnOp(nil)
				fs = fs.Kill()
				mustCloseDead(l)
				from = fs.Changes()
				fs.OnOp(func(op logtest.Op) error {
					if op.Kind.Changes() && op.Changed-from >= at {
						fs.PowerOff()
					}
					return nil
				})
				n, err := log.Open(t.Context(), "/data/p", log.Options{FS: fs})
				after := fs.Crash(logtest.CrashLoseAll)
				if err == nil {
					mustCloseDead(n)
				}
				n, oerr := log.Open(t.Context(), "/data/p", log.Options{FS: after})
				if oerr != nil {
					t.Fatal(oerr)
				}
				if r := n.Recovery(); r.Lossy || n.End() != 2 && n.End() != 4 || n.DurableEnd() != n.End() || done && n.End() != 2 {
					t.Errorf("%s died at change %d, recovery at %d: got %+v, %v", name, first, at, r, r.Corruption)
				} else if n.Start() == 0 && n.LocalStart() == 0 {
					if got := values(t, n, 0); !slices.Equal(got, want[:n.End()]) {
						t.Errorf("got %q", got)
					}
				}
				mustClose(t, n)
				if t.Failed() {
					t.Fatalf("trace:\n%s", after.Trace())
				}
				if err == nil {
					break
				}
			}
			if done {
				break
			}
		}
	}
}

// TestFlushBesideGroup: the background syncs a log's file after the group that holds
// its records is durable, and before the log hears of it, while the journal has gone
// on to its next file. The entry stays until something states it, since recovery
// believes nothing else of a recycled file.
func TestFlushBesideGroup(t *testing.T) {
	fs := logtest.NewFS(1)
	disk, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(disk)
	var flushed *log.Log
	var fill func()
	hook := func(log.Offset) {
		if f := fill; f != nil {
			fill = nil
			f()
		}
	}
	logs := make([]*log.Log, 3)
	for i := range logs {
		o := log.Options{Disk: disk}
		if i == 0 {
			o.Hooks.Durable = hook
		}
		if logs[i], err = log.Open(t.Context(), fmt.Sprintf("/data/p%d", i), o); err != nil {
			t.Fatal(err)
		}
	}
	flushed = logs[1]
	for range 2 {
		mustAppend(t, flushed, "gone")
		if err := flushed.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := flushed.TrimTo(t.Context(), flushed.End()); err != nil {
			t.Fatal(err)
		}
		rest(flushed)
	}
	if flushed.Stats().Recycled == 0 {
		t.Fatal("no file was recycled")
	}
	base := flushed.End()
	write := func(l *log.Log, s string) {
		if _, err := l.Write(0, plain(s)); err != nil {
			t.Fatal(err)
		}
	}
	group := func(s string, on ...*log.Log) {
		for _, l := range on {
			write(l, s)
		}
		if err := log.SyncTogether(disk, on...); err != nil {
			t.Fatal(err)
		}
	}
	group("first", logs...) // a slot of the file's own comes before its entries
	group("second", logs...)
	fill = func() {
		for range 12 {
			group(big("x", 30000), logs[2])
		}
		log.FlushLog(flushed)
		log.FlushLog(logs[0])
	}
	group("third", logs[0], flushed)
	if fill != nil {
		t.Fatal("the hook was not called")
	}
	for range 12 {
		log.FlushLog(logs[0])
		log.FlushLog(logs[2])
		group(big("x", 30000), logs[2])
	}
	after := fs.Crash(logtest.CrashLoseAll)
	for _, l := range logs {
		mustCloseDead(l)
	}
	disk.Close() //nolint:errcheck // it is dead
	if disk, err = log.NewDisk(log.DiskOptions{FS: after, Dir: "/data"}); err != nil {
		t.Fatal(err)
	}
	l, err := log.Open(t.Context(), "/data/p1", log.Options{Disk: disk})
	if err != nil {
		t.Fatal(err)
	}
	if got := values(t, l, base); !slices.Equal(got, []string{"first", "second", "third"}) {
		t.Errorf("got %q, %+v", got, l.Recovery())
	}
	mustClose(t, l)
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}

// TestFlushFails: a log whose file the journal's background could not sync says so, at
// the latest when it is closed, although what was written then is not durable.
func TestFlushFails(t *testing.T) {
	fs := logtest.NewFS(1)
	disk, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := log.Open(t.Context(), "/data/p", log.Options{Disk: disk})
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, "durable")
	if _, err := l.Write(0, plain("written")); err != nil {
		t.Fatal(err)
	}
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpSync {
			return syscall.EIO
		}
		return nil
	})
	log.FlushLog(l)
	fs.OnOp(nil)
	if err := l.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Close: %v", err)
	}
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}

// TestFlushThenClose: what a flush has synced is durable, and known to be, before the
// marker of a clean close says so: else a call that waits for it would write a slot
// into the file that was closed.
func TestFlushThenClose(t *testing.T) {
	fs := logtest.NewFS(1)
	disk, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	o := log.Options{Disk: disk}
	l, err := log.Open(t.Context(), "/data/p", o)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, "durable")
	if _, err := l.Write(0, plain("written")); err != nil {
		t.Fatal(err)
	}
	log.FlushLog(l)
	var looked atomic.Bool
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpCreate && strings.Contains(op.Path, "cordwood.clean") {
			looked.Store(true)
			if d := l.DurableEnd(); d != 2 {
				t.Errorf("durable end %d", d)
			}
		}
		return nil
	})
	mustClose(t, l)
	if !looked.Load() {
		t.Error("no marker was made")
	}
	fs.OnOp(nil)
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}

// TestSettledAfterCrash: a log that was opened after a crash needs nothing of the
// journal's lives before, also if it has not been written to since. So it is whole when
// the journal has given them up.
func TestSettledAfterCrash(t *testing.T) {
	fs := logtest.NewFS(1)
	var l *log.Log
	open := func() {
		disk, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"})
		if err != nil {
			t.Fatal(err)
		}
		log.JournalAll(disk)
		if l, err = log.Open(t.Context(), "/data/p", log.Options{Disk: disk}); err != nil {
			t.Fatal(err)
		}
		if r := l.Recovery(); r.Lossy {
			t.Fatalf("got %+v", r)
		}
	}
	crash := func() {
		after := fs.Crash(logtest.CrashLoseAll)
		mustCloseDead(l)
		fs = after
	}
	open()
	want := []string{"a", "b", "c"}
	for _, s := range want {
		mustAppend(t, l, s)
	}
	crash()
	open()
	crash()
	for _, name := range fs.Names() {
		if strings.Contains(name, "cordwood.journal/") && !strings.HasSuffix(name, "/") {
			if err := fs.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	open()
	if got := values(t, l, 0); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	mustClose(t, l)
}
