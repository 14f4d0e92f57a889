package log_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

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
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		d, l = oneDisk(t, after)
		if got := fmt.Sprint(values(t, l, 0)); got != "[first twice]" {
			t.Errorf("got %s", got)
		}
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestHeldClosed: what is closed holds nothing any more, so that who writes to it is told.
func TestHeldClosed(t *testing.T) {
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := fs.Create("/f")
	if err != nil {
		t.Fatal(err)
	}
	f := log.NewBehindFile(d, inner)
	if !f.Hold([]byte("held"), 0) {
		t.Error("nothing is held")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if f.Hold([]byte("lost"), 0) || d.Stats().HeldBytes != 0 {
		t.Errorf("a closed file holds %d bytes", d.Stats().HeldBytes)
	}
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
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		d, l = oneDisk(t, after)
		if got := values(t, l, 0); len(got) != 5 || fmt.Sprint(got[2:]) != "[third held last]" {
			t.Errorf("got %d records, %+v", len(got), l.Recovery())
		}
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
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
