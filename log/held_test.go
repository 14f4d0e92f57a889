package log_test

import (
	"context"
	"errors"
	"fmt"
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

// Tests of logs whose segment files hold back what the journal makes durable.

const heldFile = "/data/p/00000000000000000000.log"

// TestHeld: an append that waits until it is durable is held back from its segment's file and can be read; one that doesn't wait takes what
// is held to the file with it. Neither is lost when the process dies.
func TestHeld(t *testing.T) {
	fs := logtest.NewFS(1)
	d, l := oneDisk(t, fs)
	mustAppend(t, l, "first makes the file") // and is what the file is made for
	inFile := func(what string, want bool) {
		t.Helper()
		if got := strings.Contains(string(readAll(t, fs, heldFile)), what); got != want {
			t.Errorf("%q in the file: %v", what, got)
		}
	}
	mustAppend(t, l, "held")
	inFile("held", false)
	if d.Stats().HeldBytes == 0 {
		t.Error("nothing is held")
	}
	if got := fmt.Sprint(values(t, l, 0)); got != "[first makes the file held]" {
		t.Errorf("read %s", got)
	}
	if r, err := l.Verify(t.Context(), log.VerifyOptions{}); err != nil || len(r.Damage) > 0 {
		t.Errorf("verify: %+v, %v", r, err)
	}
	after := fs.Fork(logtest.CrashKeepAll) // the process dies
	mustWrite(t, l, "written")
	inFile("held", true)
	inFile("written", true)
	if n := d.Stats().HeldBytes; n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	later := fs.Fork(logtest.CrashKeepAll)
	mustAppend(t, l, "held again")
	inFile("held again", false)
	mustClose(t, l)
	inFile("held again", true)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for i, fs := range []*logtest.FS{after, later, fs.Fork(logtest.CrashLoseAll)} {
		d, l := oneDisk(t, fs)
		want := [...]string{"[first makes the file held]", "[first makes the file held written]", "[first makes the file held written held again]"}[i]
		if got := values(t, l, 0); fmt.Sprint(got) != want || l.Recovery().Lossy {
			t.Errorf("crash %d: %q, %+v", i, got, l.Recovery())
		}
		mustCloseAll(t, d, l)
	}
}

// TestHeldIsWritten: 64 KiB are written at once, and what stays held of a log is written when the journal is done with it.
func TestHeldIsWritten(t *testing.T) {
	fs := logtest.NewFS(1)
	d, l := oneDisk(t, fs)
	mustAppend(t, l, "first")
	var writes atomic.Int64
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpWrite && op.Path == heldFile && op.Len > 1000 { // smaller ones are slots
			writes.Add(1)
		}
		return nil
	})
	for range 100 {
		mustAppend(t, l, big("x", 1000))
	}
	if n := writes.Load(); n > 8 { // two and one for each sync, as the file grows
		t.Errorf("100 KiB took %d writes", n)
	}
	log.FlushLog(l)
	if n := d.Stats().HeldBytes; n != 0 {
		t.Errorf("after a flush %d bytes are held", n)
	}
	fs.OnOp(nil)
	mustCloseAll(t, d, l)
}

// TestHeldBytes: no more is held than the host allows; what finds no room is written.
func TestHeldBytes(t *testing.T) {
	for _, room := range []int64{-1, 1, 64 << 10} {
		fs := logtest.NewFS(1)
		d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", HeldBytes: room})
		if err != nil {
			t.Fatal(err)
		}
		log.JournalAll(d)
		var logs []*log.Log
		most := int64(0)
		for i := range 20 {
			l := onDisk(t, d, fmt.Sprintf("/data/p%d", i))
			logs = append(logs, l)
			for k := range 20 {
				mustAppend(t, l, big(fmt.Sprint(k), 500))
				most = max(most, d.Stats().HeldBytes)
			}
		}
		if most > max(room, 0) || room > 4<<10 && most < room/2 {
			t.Errorf("with %d bytes %d were held", room, most)
		}
		fs = fs.Crash(logtest.CrashKeepAll)
		for _, l := range logs {
			mustCloseDead(l)
		}
		d.Close() //nolint:errcheck // it is dead
		if d, err = log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"}); err != nil {
			t.Fatal(err)
		}
		for i := range logs {
			l := onDisk(t, d, fmt.Sprintf("/data/p%d", i))
			if n := len(values(t, l, 0)); n != 20 {
				t.Errorf("with %d bytes log %d has %d records after a crash", room, i, n)
			}
			mustClose(t, l)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestHeldFails: what is held was acknowledged, and can't be written. The log fails, and says so; the next Open finds the records in the
// journal, in this process and in the next one.
func TestHeldFails(t *testing.T) {
	fs := logtest.NewFS(1)
	d, l := oneDisk(t, fs)
	mustAppend(t, l, "first")
	mustAppend(t, l, "held")
	broken := errors.New("broken")
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpWrite && op.Path == heldFile {
			return broken
		}
		return nil
	})
	if log.FlushLog(l) || !errors.Is(l.Err(), broken) {
		t.Fatalf("got %v", l.Err())
	}
	if got := fmt.Sprint(values(t, l, 0)); got != "[first held]" {
		t.Errorf("a failed log reads %s", got)
	}
	if _, err := l.Append(t.Context(), plain("x")); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if err := l.Close(); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if n := d.Stats().HeldBytes; n != 0 {
		t.Errorf("%d bytes are held for nobody", n)
	}
	fs.OnOp(nil)
	after := fs.Fork(logtest.CrashLoseAll)
	l = onDisk(t, d, "/data/p")
	if got := fmt.Sprint(values(t, l, 0)); got != "[first held]" {
		t.Errorf("opened again: %s", got)
	}
	mustCloseAll(t, d, l)
	d, l = oneDisk(t, after)
	if got := fmt.Sprint(values(t, l, 0)); got != "[first held]" {
		t.Errorf("after a crash: %s", got)
	}
	mustCloseAll(t, d, l)
}

// TestHeldTruncate: what is cut before it was written is not written later over what takes its place.
func TestHeldTruncate(t *testing.T) {
	for to := range log.Offset(4) {
		fs := logtest.NewFS(1)
		d, l := oneDisk(t, fs)
		want := []string{"first", "second", "third", "fourth"}
		mustAppend(t, l, want[0])
		mustAppend(t, l, want[1])
		log.FlushLog(l)
		mustAppend(t, l, want[2])
		mustAppend(t, l, want[3])
		if _, err := l.TruncateTo(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		want = append(want[:to:to], "another, which is longer")
		mustAppend(t, l, want[to])
		for i := range 2 {
			if got := values(t, l, 0); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("cut at %d: read %q", to, got)
			}
			if i == 0 {
				log.FlushLog(l)
			}
		}
		if err := l.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustCloseAll(t, d, l)
		d, l = oneDisk(t, fs)
		if got := values(t, l, 0); fmt.Sprint(got) != fmt.Sprint(want) || !l.Recovery().Clean {
			t.Errorf("cut at %d: opened again %q, %+v", to, got, l.Recovery())
		}
		mustCloseAll(t, d, l)
	}
}

// sparseFS is a file system whose files reserve nothing: Preallocate just extends them, so that a write takes the room.
type sparseFS struct{ log.FS }

type sparseFile struct{ log.File }

func (f sparseFile) Preallocate(off, n int64) error {
	if size, err := f.Size(); err != nil || size >= off+n {
		return err
	}
	return f.Truncate(off + n)
}

func (fs sparseFS) Open(name string, write bool) (log.File, error) {
	f, err := fs.FS.Open(name, write)
	return sparseFile{f}, err
}

func (fs sparseFS) Create(name string) (log.File, error) {
	f, err := fs.FS.Create(name)
	return sparseFile{f}, err
}

// TestHeldNotReserved: where a full disk shows only at a write, an append is told of it, and may be tried again.
func TestHeldNotReserved(t *testing.T) {
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{FS: sparseFS{fs}, Dir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	l := onDisk(t, d, "/data/p")
	mustAppend(t, l, "first")
	fs.SetCapacity(fs.UsedBytes() + 12<<10)
	for i := range 20 {
		if _, err = l.Append(t.Context(), plain(big(fmt.Sprint(i), 3000))); err != nil {
			break
		}
	}
	if !errors.Is(err, log.ErrDiskFull) || l.Err() != nil {
		t.Errorf("got %v, %v", err, l.Err())
	}
	fs.SetCapacity(-1)
	mustAppend(t, l, "last")
	mustCloseAll(t, d, l)
}

// TestHeldStalls: while what is held of one log is on its way to a slow disk, its readers get it from memory, and so don't take the calls
// that the disk has for the readers of others; and its appends go on.
func TestHeldStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", BlockingCalls: 2})
		if err != nil {
			t.Fatal(err)
		}
		log.JournalAll(d)
		l, other := onDisk(t, d, "/data/p"), onDisk(t, d, "/data/q")
		mustAppend(t, other, "other")
		mustAppend(t, l, "first")
		log.FlushLog(l)
		held := big("held", 5000)
		mustAppend(t, l, held)
		release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpWrite && op.Path == heldFile && op.Len > 1000 }) // no slot
		go log.FlushLog(l)
		synctest.Wait()
		for range 3 {
			if got := values(t, l, 1); len(got) != 1 || got[0] != held {
				t.Fatalf("read %d records", len(got))
			}
		}
		if got := values(t, other, 0); fmt.Sprint(got) != "[other]" {
			t.Errorf("the other log reads %q", got)
		}
		more := big("more", 5000) // does not fit into the memory that is being written, which nobody else may get yet
		mustAppend(t, l, more)
		for range 20 {
			mustAppend(t, other, big("other", 5000))
		}
		release()
		synctest.Wait()
		for range 2 {
			if got := values(t, l, 1); len(got) != 2 || got[0] != held || got[1] != more {
				t.Errorf("read %.200q", got)
			}
			log.FlushLog(l)
		}
		mustCloseAll(t, d, l, other)
	})
}

// TestHeldTakenBack: of one group the first append is held and stays, and the last ones are taken back: as there is no room to write what is
// held before the segment gets a successor, or for that one. There are so many files that one out of use is closed.
func TestHeldTakenBack(t *testing.T) {
	for _, kind := range []logtest.Kind{logtest.OpWrite, logtest.OpCreate} {
		synctest.Test(t, func(t *testing.T) { heldTakenBack(t, kind) })
	}
}

func heldTakenBack(t *testing.T, kind logtest.Kind) {
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", OpenFiles: 1})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	l, err := log.Open(t.Context(), "/data/p", log.Options{Disk: d, SegmentBytes: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	other := onDisk(t, d, "/data/other")
	mustAppend(t, l, "first")
	log.FlushLog(l) // nothing of it is needed in the journal
	mustWrite(t, other, "keeps its file open")
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == kind && (op.Path == heldFile && op.Len > 1000 || strings.HasPrefix(op.Path, "/data/p/cordwood.spare-")) {
			return syscall.ENOSPC
		}
		return nil
	})
	release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpWrite && op.Path == heldFile })
	go func() {
		if _, err := l.Write(0, plain("second")); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait() // it has the gate, behind which a group gathers
	var errs [4]error
	for i, b := range [...][]byte{
		plain("third"), sequenced(7, 0, 5, big("refused", 70<<10)), plain(big("fits", 4<<10)), plain(big("fits not", 6<<10)),
	} {
		go func() { _, errs[i] = l.Append(t.Context(), b) }()
		synctest.Wait() // they come in this order
	}
	release()
	synctest.Wait()
	if errs[0] != nil || errs[1] == nil || !errors.Is(errs[2], log.ErrDiskFull) || !errors.Is(errs[3], log.ErrDiskFull) {
		t.Fatalf("got %v", errs)
	}
	fs.OnOp(nil)
	mustAppend(t, l, "fourth")
	if got := fmt.Sprint(values(t, l, 0)); got != "[first second third fourth]" {
		t.Errorf("got %s", got)
	}
	mustClose(t, l)
	mustClose(t, other)
	if n := d.Stats().HeldBytes; n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestHeldDuplicate: a Write that finds its batch in the log, where it was brought by an Append whose sync is under way, has in the file
// what it says is written.
func TestHeldDuplicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		d, l := oneDisk(t, fs)
		mustAppend(t, l, "first")
		release := fs.Stall(func(op logtest.Op) bool { return strings.HasSuffix(op.Path, ".journal") })
		go l.Append(t.Context(), sequenced(7, 0, 0, "twice")) //nolint:errcheck // waits
		synctest.Wait()
		a, err := l.Write(0, sequenced(7, 0, 0, "twice"))
		if err != nil || !a.Duplicate {
			t.Fatalf("got %+v, %v", a, err)
		}
		after := fs.Fork(logtest.CrashKeepAll)
		release()
		synctest.Wait()
		mustCloseAll(t, d, l)
		d, l = oneDisk(t, after)
		if got := fmt.Sprint(values(t, l, 0)); got != "[first twice]" {
			t.Errorf("got %s", got)
		}
		mustCloseAll(t, d, l)
	})
}

// TestHeldRolled: the segment is rolled while an append is held whose sync has not begun. What is written to the next segment after that is
// in its file, and is not lost with the process for want of what was held.
func TestHeldRolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		d, l := oneDisk(t, fs)
		mustAppend(t, l, "first")
		log.FlushLog(l)
		mustWrite(t, l, big("second", 60<<10)) // not for the journal
		stall := func(kind logtest.Kind) func() {
			return fs.Stall(func(op logtest.Op) bool {
				return op.Kind == kind && op.Path == heldFile && (kind == logtest.OpSync || op.Len < 90)
			})
		}
		async := func(name string, f func() error) {
			go func() {
				if err := f(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}()
			synctest.Wait()
		}
		written, synced := stall(logtest.OpWrite), stall(logtest.OpSync)
		async("write", func() error { _, err := l.Write(0, plain("third")); return err }) // has the gate
		async("append", func() error { _, err := l.Append(t.Context(), plain("held")); return err })
		async("sync", func() error { _, err := l.Sync(t.Context()); return err })
		written()
		synctest.Wait()
		async("roll", func() error { return l.Roll(t.Context()) })
		mustWrite(t, l, "last")
		if n := len(l.Segments()); n != 2 {
			t.Fatalf("%d segments", n)
		}
		after := fs.Fork(logtest.CrashKeepAll)
		synced()
		synctest.Wait()
		mustCloseAll(t, d, l)
		d, l = oneDisk(t, after)
		if got := values(t, l, 0); len(got) != 5 || fmt.Sprint(got[2:]) != "[third held last]" {
			t.Errorf("got %d records, %+v", len(got), l.Recovery())
		}
		mustCloseAll(t, d, l)
	})
}

// TestHeldAtOnce appends to logs that have fewer descriptors than they want, and reads, flushes and rolls them meanwhile. What is read is what
// was appended, each byte of it.
func TestHeldAtOnce(t *testing.T) {
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{
		FS: fs, Dir: "/data", OpenFiles: 1, BlockingCalls: 1, Syncers: 1, JournalBytes: 256 << 10, HeldBytes: 48 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	text := func(off log.Offset) string { return big(fmt.Sprint(off), int(off*7919%5000)) }
	const records = 200
	var logs []*log.Log
	var wg sync.WaitGroup
	for i := range 3 {
		l, err := log.Open(ctx, fmt.Sprintf("/data/p%d", i), log.Options{Disk: d, SegmentBytes: 128 << 10})
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, l)
		wg.Go(func() {
			for off := range log.Offset(records) {
				var err error
				if off%9 == 8 {
					_, err = l.Write(0, plain(text(off)))
				} else {
					_, err = l.Append(ctx, plain(text(off)))
				}
				if err != nil {
					t.Error(err)
					cancel() // nobody is to wait for the rest
					return
				}
			}
			if _, err := l.Sync(ctx); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			next := log.Offset(0)
			for r, err := range l.Follow(ctx, 0) {
				if err != nil || r.Offset != next || string(r.Value) != text(next) {
					t.Errorf("at %d: got %d, %v", next, r.Offset, err)
					return
				}
				if next++; next == records {
					return
				}
			}
		})
		wg.Go(func() {
			for n := 0; l.End() < records && l.Err() == nil && !t.Failed(); n++ {
				end := l.End()
				var err error
				switch n % 5 {
				case 0:
					log.FlushLog(l)
				case 1:
					var v log.Verification
					if v, err = l.Verify(ctx, log.VerifyOptions{}); len(v.Damage) > 0 {
						err = v.Damage[0]
					}
				case 2:
					_, err = l.ProducerSnapshot(ctx, end/2)
				case 3:
					_, _, err = l.OffsetForTime(ctx, time.Now())
				case 4:
					if n%50 == 4 {
						err = l.Roll(ctx)
					}
				}
				if n := d.Stats().HeldBytes; err != nil || n < 0 {
					t.Errorf("got %v, %d bytes are held", err, n)
				}
			}
		})
	}
	wg.Wait()
	after := fs.Fork(logtest.CrashLoseAll)
	for _, l := range logs {
		mustClose(t, l)
	}
	if s := d.Stats(); s.HeldBytes != 0 || s.OpenFiles != 0 {
		t.Errorf("after the logs are closed: %+v", s)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if d, err = log.NewDisk(log.DiskOptions{FS: after, Dir: "/data"}); err != nil {
		t.Fatal(err)
	}
	for i := range logs {
		l := onDisk(t, d, fmt.Sprintf("/data/p%d", i))
		got := values(t, l, 0)
		for off, v := range got {
			if v != text(log.Offset(off)) {
				t.Fatalf("log %d after the crash: wrong at %d", i, off)
			}
		}
		if len(got) != records {
			t.Errorf("log %d has %d records after the crash", i, len(got))
		}
		mustClose(t, l)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
