package log_test

import (
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// TestDoubtfulState: the sync of the state behind a sealed segment fails, on a disk that
// is full. A later sync of the same file goes well, but proves nothing. When all before
// is deleted, that state is all that is left of it: it is there after a crash.
func TestDoubtfulState(t *testing.T) {
	const before, during = "the process dies before", "the process dies meanwhile"
	for _, name := range []string{"in one life", before, during} {
		t.Run(name, func(t *testing.T) {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{})
			mustAppend(t, l, "a", "b", "c")
			var failed atomic.Bool
			fs.OnOp(func(op logtest.Op) error {
				if op.Kind == logtest.OpSync && strings.HasSuffix(op.Path, ".state") && !failed.Swap(true) {
					return syscall.ENOSPC
				}
				return nil
			})
			if err := l.Roll(t.Context()); err != nil {
				t.Fatal(err)
			}
			rest(l)
			fs.OnOp(nil)
			mustAppend(t, l, "d", "e")
			if err := l.Roll(t.Context()); err != nil { // from whose state on all is known
				t.Fatal(err)
			}
			rest(l)
			if !failed.Load() {
				t.Fatal("no sync failed")
			}
			switch name {
			case before:
				fs = fs.Kill()
				l = open(t, fs, log.Options{})
			case during:
				// Before what lies below the new start is gone.
				fs.OnOp(func(op logtest.Op) error {
					if op.Kind == logtest.OpRemove && strings.HasSuffix(op.Path, ".index") {
						return logtest.ErrCrashed
					}
					return nil
				})
			}
			if err := l.TrimTo(t.Context(), 3); (err != nil) != (name == during) {
				t.Fatalf("got %v", err)
			}
			if name == during {
				fs = fs.Kill()
				open(t, fs, log.Options{})
			}
			if err := fs.SyncDir("/data/p"); err != nil { // as the next change does
				t.Fatal(err)
			}
			fs = fs.Crash(logtest.CrashLoseAll)
			l = open(t, fs, log.Options{})
			if r := l.Recovery(); r.Lossy || l.Start() != 3 || l.End() != 5 {
				t.Errorf("got %+v, start %d", r, l.Start())
			}
			if off, err := l.LastStableBelow(t.Context(), 4); err != nil || off != 4 {
				t.Errorf("last stable offset: got %d, %v", off, err)
			}
			mustClose(t, l)
		})
	}
}
