package log_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// Each test here is for guards of the journal, by their names in testdata/journal_mutations.txt.

// onDisk opens a log of a disk.
func onDisk(t *testing.T, d *log.Disk, dir string) *log.Log {
	t.Helper()
	l, err := log.Open(t.Context(), dir, log.Options{Disk: d})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// smallJournal makes a disk whose journal takes everything and has few files.
func smallJournal(t *testing.T, fs *logtest.FS) *log.Disk {
	t.Helper()
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	return d
}

// turnJournal has another log bring so many groups that each file of the journal is written over, if nobody needs it.
func turnJournal(t *testing.T, d *log.Disk) {
	t.Helper()
	other := onDisk(t, d, "/data/other")
	for i := range 100 {
		mustAppend(t, other, fmt.Sprint(i))
		log.FlushLog(other)
	}
	mustClose(t, other)
}

// second tables are not read
func TestJournalGuardSecondTables(t *testing.T) {
	for second := range int64(2) {
		s := newStand(t)
		for g := range int64(4) {
			if err := s.fs.Corrupt(s.journalFile(t), (3*g+2*second)*4096+50, 1); err != nil {
				t.Fatal(err)
			}
		}
		d, err := log.NewDisk(log.DiskOptions{FS: s.fs, Dir: "/data"})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range s.want {
			l := onDisk(t, d, fmt.Sprintf("/data/p%d", i))
			if got := values(t, l, 0); l.Recovery().Lossy || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("without table %d of each group, log %d: got %q, %+v", second, i, got, l.Recovery())
			}
			mustClose(t, l)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// replay leaves alone what can be read; entries of this life are not found again: the sync of a segment fails, which gives up what it
// should have written, though it can be read for as long as the machine lives. What Open takes from the journal must be on the medium
// before the journal forgets it.
func TestJournalGuardWrittenAgain(t *testing.T) {
	fs := logtest.NewFS(1)
	d := smallJournal(t, fs)
	l := onDisk(t, d, "/data/p")
	want := []string{big("one", 2000), big("two", 2000), big("three", 2000)}
	for _, v := range want {
		mustAppend(t, l, v)
	}
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpSync && strings.HasSuffix(op.Path, ".log") {
			return errors.New("broken")
		}
		return nil
	})
	log.FlushLog(l)
	fs.OnOp(nil)
	if l.Err() == nil {
		t.Fatal("the log has not failed")
	}
	l.Close() //nolint:errcheck // it has failed
	l = onDisk(t, d, "/data/p")
	if got := values(t, l, 0); l.Recovery().Lossy || !equalValues(got, want) {
		t.Errorf("on the same machine: got %d records, %+v", len(got), l.Recovery())
	}
	turnJournal(t, d)
	fs = fs.Crash(logtest.CrashLoseAll)
	mustCloseDead(l)
	d.Close() //nolint:errcheck // it is dead
	d = smallJournal(t, fs)
	l = onDisk(t, d, "/data/p")
	if got := values(t, l, 0); l.Recovery().Lossy || !equalValues(got, want) {
		t.Errorf("after the crash: got %d records, %+v, %v", len(got), l.Recovery(), l.Recovery().Corruption)
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func equalValues(a, b []string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// entries are needed no more when Open fails: they alone state how far the log is durable.
func TestJournalGuardOpenFails(t *testing.T) {
	fs := logtest.NewFS(1)
	d := smallJournal(t, fs)
	l := onDisk(t, d, "/data/p")
	for i := range 5 {
		mustAppend(t, l, fmt.Sprint(i))
	}
	fs = fs.Crash(logtest.CrashLoseAll)
	mustCloseDead(l)
	d.Close() //nolint:errcheck // it is dead
	d = smallJournal(t, fs)
	broken := errors.New("broken")
	replayed := false
	fs.OnOp(func(op logtest.Op) error {
		switch {
		case !strings.HasPrefix(op.Path, "/data/p/0"):
		case op.Kind == logtest.OpSync:
			replayed = true
		case op.Kind == logtest.OpRead && replayed:
			return broken
		}
		return nil
	})
	if _, err := log.Open(t.Context(), "/data/p", log.Options{Disk: d}); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	fs.OnOp(nil)
	l = onDisk(t, d, "/data/p")
	if r := l.Recovery(); r.DurableEnd != 5 || r.End != 5 || r.Lossy {
		t.Errorf("got %+v", r)
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// a close leaves bytes to the journal: on a full disk there is no marker, but the records are in the segment, whoever opens it.
func TestJournalGuardFullClose(t *testing.T) {
	fs := logtest.NewFS(1)
	d := smallJournal(t, fs)
	l := onDisk(t, d, "/data/p")
	for i := range 5 {
		mustAppend(t, l, big(fmt.Sprint(i), 600))
	}
	full := false
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpCreate && strings.HasPrefix(op.Path, "/data/p/0") {
			full = true
			return syscall.ENOSPC
		}
		return nil
	})
	mustClose(t, l)
	fs.OnOp(nil)
	if !full {
		t.Fatal("the close met no full disk")
	}
	fs = fs.Crash(logtest.CrashLoseAll)
	d.Close() //nolint:errcheck // it is dead
	l, err := log.Open(t.Context(), "/data/p", log.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if got := values(t, l, 0); l.End() != 5 || len(got) != 5 {
		t.Errorf("got end %d, %d records, %+v", l.End(), len(got), l.Recovery())
	}
	mustClose(t, l)
}

// batches overwrite slots while the new ones are not durable: who needs room waits for the sync of the new slots. The journal has made
// durable all that there is, so that its rounds wait for nothing.
func TestJournalGuardWaitsForSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		d, l := oneDisk(t, fs)
		for i := range 4 {
			mustAppend(t, l, fmt.Sprint(i))
		}
		log.FlushLog(l)
		release := fs.Stall(func(op logtest.Op) bool {
			return op.Kind == logtest.OpSync && strings.HasSuffix(op.Path, ".log")
		})
		var n atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for n.Load() < 100 {
				if _, err := l.Append(t.Context(), plain(big("x", 1000))); err != nil {
					t.Error(err)
					return
				}
				n.Add(1)
			}
		}()
		synctest.Wait()
		if at := n.Load(); at == 0 || at == 100 {
			t.Errorf("the append that needs room is number %d", at)
		}
		release()
		<-done
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}
