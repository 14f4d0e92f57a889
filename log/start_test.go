package log_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// wantStart says what is wrong with a log whose start is inside of a batch: records below the start are in no answer but as a part of the
// batch that holds it.
func wantStart(t *testing.T, what string, l *log.Log, start, batch log.Offset, end int) {
	t.Helper()
	if l.Start() != start || l.LocalStart() != start || int(l.End()) != end || l.Recovery().Lossy {
		t.Errorf("%s: got start %d, local start %d, end %d, %+v", what, l.Start(), l.LocalStart(), l.End(), l.Recovery())
	}
	if _, err := l.Read(t.Context(), start-1, 1); !errors.Is(err, log.ErrOffsetOutOfRange) {
		t.Errorf("%s: read below the start: got %v", what, err)
	}
	s, err := l.Read(t.Context(), start, 1)
	if err != nil || s.Base() != batch {
		t.Fatalf("%s: read at the start: got %+v, %v", what, s, err)
	}
	s.Release()
	var got, want []string
	for i := int(start); i < end; i++ {
		want = append(want, fmt.Sprint(i))
	}
	for r, err := range l.Records(t.Context(), start) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got = append(got, string(r.Value))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got records %q, want %q", what, got, want)
	}
	wantReadable(t, l)
}

// TestStartInside trims the log of a broker's directory, and one of our own, to each offset of its batches.
func TestStartInside(t *testing.T) {
	kafka := importFS(t, map[string][]byte{
		segmentFile(0): concat(stamped(t, 0, 0, "0", "1", "2"), stamped(t, 3, 0, "3")),
		segmentFile(4): concat(stamped(t, 4, 1, "4", "5", "6", "7"), stamped(t, 8, 2, "8", "9")),
	})
	own := logtest.NewFS(1)
	l := open(t, own, log.Options{})
	for i, n := range [][]string{{"0", "1", "2"}, {"3"}, {"4", "5", "6", "7"}, {"8", "9"}} {
		mustAppend(t, l, n...)
		if i == 1 {
			if err := l.Roll(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, l)
	own.SyncAll()
	batches := []log.Offset{0, 0, 0, 3, 4, 4, 4, 4, 8, 8}
	for name, image := range map[string]*logtest.FS{"Kafka's": kafka, "own": own} {
		for start := log.Offset(1); start < 10; start++ {
			fs := image.Fork(logtest.CrashKeepAll)
			l := open(t, fs, log.Options{})
			if err := l.TrimTo(t.Context(), start); err != nil {
				t.Fatal(err)
			}
			what := fmt.Sprintf("%s log, start %d", name, start)
			wantStart(t, what, l, start, batches[start], 10)
			after := open(t, fs.Fork(logtest.CrashLoseAll), log.Options{})
			wantStart(t, what+" after a crash", after, start, batches[start], 10)
			mustClose(t, after)
			mustClose(t, l)
			l = open(t, fs, log.Options{})
			mustAppend(t, l, "10")
			wantStart(t, what+" after a close", l, start, batches[start], 11)
			mustClose(t, l)
		}
	}
}

// TestImportStart: a directory does not say where its log starts: a broker keeps that in a file beside it. What a segment holds is there.
func TestImportStart(t *testing.T) {
	fs := importFS(t, map[string][]byte{segmentFile(4): concat(stamped(t, 4, 1, "4", "5"), stamped(t, 6, 1, "6"))})
	for _, readOnly := range []bool{true, false} {
		l := open(t, fs, log.Options{ReadOnly: readOnly})
		if l.Start() != 4 || l.LocalStart() != 4 || l.End() != 7 {
			t.Errorf("got [%d, %d), local start %d", l.Start(), l.End(), l.LocalStart())
		}
		if got := values(t, l, 4); !slices.Equal(got, []string{"4", "5", "6"}) {
			t.Errorf("got %q", got)
		}
		if _, err := l.Read(t.Context(), 3, 1); !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("got %v", err)
		}
		mustClose(t, l)
	}
}

// TestResetInside resets to an offset inside of a batch of before: nothing of it is left, and what comes next begins there.
func TestResetInside(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, "0", "1", "2", "3")
	if err := l.Reset(t.Context(), 2, []log.EpochStart{{Epoch: 0, Start: 0}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, life := range []string{"at once", "after a crash"} {
		if l.Start() != 0 || l.LocalStart() != 2 || l.End() != 2 || l.Recovery().Lossy {
			t.Errorf("%s: got start %d, local start %d, end %d", life, l.Start(), l.LocalStart(), l.End())
		}
		for off, want := range map[log.Offset]error{0: log.ErrBelowLocalStart, 1: log.ErrBelowLocalStart, 3: log.ErrOffsetOutOfRange} {
			if _, err := l.Read(t.Context(), off, 1); !errors.Is(err, want) {
				t.Errorf("%s: read %d: got %v, want %v", life, off, err, want)
			}
		}
		if s, err := l.Read(t.Context(), 2, 1); err != nil || s.Len() != 0 {
			t.Errorf("%s: read at the end: got %+v, %v", life, s, err)
		}
		if life == "at once" {
			fs = fs.Crash(logtest.CrashLoseAll)
			mustCloseDead(l)
			l = open(t, fs, log.Options{})
		}
	}
	mustAppend(t, l, "new")
	if got := values(t, l, 2); !slices.Equal(got, []string{"new"}) {
		t.Errorf("got %q", got)
	}
	mustClose(t, l)
}
