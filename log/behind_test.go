package log_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

const heldFile = "/data/p/00000000000000000000.log"

// TestBehindFile: but for when bytes reach the file below, a file that holds back writes is like any other, also after writes have failed.
func TestBehindFile(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		fs := logtest.NewFS(1)
		room := int64(rapid.SampledFrom([]int{-1, 4 << 10, 16 << 10, 1 << 20}).Draw(t, "room"))
		d, err := log.NewDisk(log.DiskOptions{FS: fs, HeldBytes: room})
		if err != nil {
			t.Fatal(err)
		}
		inner, err := fs.Create("/f")
		if err != nil {
			t.Fatal(err)
		}
		f := log.NewBehindFile(d, inner)
		var want []byte // of the file
		end := 0        // of the data: from there on come appends
		broken := false
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind == logtest.OpWrite && broken {
				return logtest.Short(op.Len/2, errors.New("broken"))
			}
			return nil
		})
		put := func(at int, b []byte) {
			if n := at + len(b); n > len(want) {
				want = append(want, make([]byte, n-len(want))...)
			}
			copy(want[at:], b)
		}
		next := byte(0)
		some := func(n int) []byte {
			next++
			return bytes.Repeat([]byte{next | 1}, n)
		}
		size := rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(0, 9000), rapid.IntRange(0, 40000))
		t.Repeat(map[string]func(*rapid.T){
			"hold": func(t *rapid.T) {
				b := some(1 + size.Draw(t, "bytes"))
				if f.Hold(b, int64(end)) {
					put(end, b)
					end += len(b)
				}
				if held := d.Stats().HeldBytes; held < 0 || held > max(0, room) {
					t.Fatalf("%d bytes are held", held)
				}
			},
			"append": func(t *rapid.T) {
				b := some(1 + size.Draw(t, "bytes"))
				if n, err := f.WriteAt(b, int64(end)); err == nil && n == len(b) {
					put(end, b)
					end += len(b)
				} else if !broken {
					t.Fatalf("got %d, %v", n, err)
				} else if err := f.Truncate(int64(end)); err != nil { // as a log does
					t.Fatal(err)
				} else {
					want = want[:end]
				}
			},
			"write anywhere": func(t *rapid.T) {
				if broken {
					return // where it fails nothing is known of the bytes
				}
				at := rapid.IntRange(0, end+5000).Draw(t, "at")
				b := some(1 + size.Draw(t, "bytes"))
				if n, err := f.WriteAt(b, int64(at)); err != nil || n != len(b) {
					t.Fatalf("got %d, %v", n, err)
				}
				put(at, b)
			},
			"truncate": func(t *rapid.T) {
				end = rapid.IntRange(max(0, end-5000), end).Draw(t, "to")
				if err := f.Truncate(int64(end)); err != nil {
					t.Fatal(err)
				}
				want = append(want, make([]byte, max(0, end-len(want)))...)[:end]
			},
			"sync": func(t *rapid.T) {
				if err := f.Sync(); err != nil {
					if !broken {
						t.Fatal(err)
					}
					return
				}
				if got := readAll(outer, fs, "/f"); !bytes.Equal(got, want) {
					t.Fatalf("after a sync the file has %d bytes, want %d", len(got), len(want))
				}
			},
			"break": func(t *rapid.T) { broken = !broken },
			"": func(t *rapid.T) {
				if got, err := f.Size(); err != nil || got != int64(len(want)) {
					t.Fatalf("size %d, %v; want %d", got, err, len(want))
				}
				at := rapid.IntRange(0, len(want)).Draw(t, "from")
				b := make([]byte, rapid.IntRange(0, len(want)-at+10).Draw(t, "to"))
				n, err := f.ReadAt(b, int64(at))
				if err != nil && !errors.Is(err, io.EOF) || (n < len(b)) != errors.Is(err, io.EOF) {
					t.Fatalf("read of %d at %d: %d, %v", len(b), at, n, err)
				}
				if !bytes.Equal(b[:n], want[at:min(at+len(b), len(want))]) {
					t.Fatalf("read of %d bytes at %d of %d is wrong", len(b), at, len(want))
				}
			},
		})
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if held := d.Stats().HeldBytes; held != 0 {
			t.Fatalf("%d bytes are held by a file that is closed", held)
		}
	})
}

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
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
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
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
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
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	d, l = oneDisk(t, after)
	if got := fmt.Sprint(values(t, l, 0)); got != "[first held]" {
		t.Errorf("after a crash: %s", got)
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
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
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		d, l = oneDisk(t, fs)
		if got := values(t, l, 0); fmt.Sprint(got) != fmt.Sprint(want) || !l.Recovery().Clean {
			t.Errorf("cut at %d: opened again %q, %+v", to, got, l.Recovery())
		}
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
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
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
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
		mustClose(t, l)
		mustClose(t, other)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}
