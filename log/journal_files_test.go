package log_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// TestJournalPrepares: when a file is a quarter full there is a free one soon, and the group
// that does not fit any more goes there, without another file made for it.
func TestJournalPrepares(t *testing.T) {
	fs := logtest.NewFS(1)
	var made, refused atomic.Int64
	var full atomic.Bool
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpPreallocate && strings.HasSuffix(op.Path, ".journal") {
			if full.Load() {
				refused.Add(1)
				return log.ErrDiskFull
			}
			made.Add(1)
		}
		return nil
	})
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	l, err := log.Open(t.Context(), "/data/p", log.Options{Disk: d})
	if err != nil {
		t.Fatal(err)
	}
	groups := func() int64 {
		n, _, direct, _ := log.JournalStats(d)
		if direct > 0 {
			t.Fatalf("%d requests were sent back", direct)
		}
		return n
	}
	// A group of one small entry has three blocks; the first file has 64 KiB: five groups.
	mustAppend(t, l, "x")
	if all, _ := log.JournalFiles(d); all != 1 || made.Load() != 1 {
		t.Fatalf("%d files, %d made", all, made.Load())
	}
	mustAppend(t, l, "x")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, free := log.JournalFiles(d); free == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no file was made in advance")
		}
	}
	if all, _ := log.JournalFiles(d); all != 2 || made.Load() != 2 {
		t.Fatalf("%d files, %d made", all, made.Load())
	}
	// With no room for a third one, the two are enough, and there is no failure.
	full.Store(true)
	for range 8 {
		mustAppend(t, l, "x")
	}
	if all, free := log.JournalFiles(d); all != 2 || free != 0 || made.Load() != 2 {
		t.Errorf("%d files, %d free, %d made", all, free, made.Load())
	}
	if n := groups(); n != 10 {
		t.Errorf("%d groups", n)
	}
	for deadline := time.Now().Add(time.Minute); refused.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no third file was tried")
		}
		mustAppend(t, l, "x")
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
