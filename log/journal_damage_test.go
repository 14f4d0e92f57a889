package log_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

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
	t.Run("all files but the identity", func(t *testing.T) {
		s := newStand(t)
		if err := s.fs.Remove(s.journalFile(t)); err != nil {
			t.Fatal(err)
		}
		if n := open(t, s.fs); n != 3 {
			t.Errorf("%d logs are lossy", n)
		}
	})
	t.Run("all tables", func(t *testing.T) {
		s := newStand(t)
		for i := range int64(12) {
			if err := s.fs.Corrupt(s.journalFile(t), i*4096+50, 1); err != nil {
				t.Fatal(err)
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
