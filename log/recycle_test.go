package log_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// rest waits until the log has nothing to do in the background.
func rest(l *log.Log) {
	for l.Stats().Chores > 0 && l.Err() == nil {
		runtime.Gosched()
	}
}

func (f *life) rest() {
	if !f.dead {
		rest(f.l)
	}
}

func (f *life) trim(back log.Offset) {
	if f.dead {
		return
	}
	f.sync()
	start := max(f.w.start, f.w.written-back)
	f.step(func(w *world) { w.start, w.local = start, max(w.local, start) }, func() error { return f.l.TrimTo(context.Background(), start) })
}

func (f *life) drop() {
	if f.dead {
		return
	}
	local := f.w.local
	segs := f.l.Segments()
	for _, s := range segs[:len(segs)-1] {
		local = max(local, s.End)
	}
	f.sync()
	f.step(func(w *world) { w.local = local }, func() error { return f.l.DropLocal(context.Background(), f.w.written) })
}

func (f *life) reset(to log.Offset) {
	f.step(func(w *world) {
		w.start, w.local, w.written, w.acked, w.stated = min(w.start, to), to, to, to, 0
		w.bounds = map[log.Offset]bool{to: true}
		w.epochs, w.produced = nil, nil
		clear(w.vals)
	}, func() error { return f.l.Reset(context.Background(), to, nil, nil) })
}

// recycling is a life in which files are freed and used again all the time.
func recycling(t testing.TB, fs *logtest.FS, scale int) *life {
	f := &life{t: t, fs: fs, w: newWorld(), scale: scale, dir: "/data/p"}
	f.open()
	for range 14 {
		f.append(2)
	}
	f.trim(3)
	f.rest()
	for i := range 14 { // over at least one recycled file
		f.append(2)
		f.write(0, 1)
		if i%3 == 0 {
			f.rest()
		}
	}
	f.drop()
	f.rest()
	for range 9 {
		f.write(1, 2) // rolls without a sync of its own
	}
	f.append(1)
	f.truncate(8)
	f.append(2)
	f.close()
	f.open()
	for range 8 { // over a file that was kept over the close
		f.append(2)
	}
	f.truncate(5)
	for range 8 {
		f.append(3)
	}
	f.drop()
	f.rest()
	f.append(1)
	f.reset(3) // offsets that stood in recycled files
	for range 12 {
		f.append(1)
	}
	f.trim(2)
	f.rest()
	for range 8 {
		f.append(2)
		f.write(0, 2)
	}
	f.sync()
	return f
}

func (f *life) finish(recycled *int64) {
	f.rest()
	if f.l != nil {
		checkStale(f.t, f.fs, f.l)
	}
	f.close()
	*recycled = max(*recycled, f.recycled)
}

func TestCrashRecycled(t *testing.T) {
	for _, scale := range []int{1, 10, 40} {
		t.Run(fmt.Sprintf("scale=%d", scale), func(t *testing.T) {
			looks, recycled := 0, int64(0)
			logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
				f := recycling(t, fs, scale)
				f.looks, f.nested = &looks, 5*scale+1
				f.finish(&recycled)
				return f.check
			})
			if recycled < 3 {
				t.Errorf("only %d segments began in a recycled file", recycled)
			}
		})
	}
}

func TestFaultRecycled(t *testing.T) {
	for _, scale := range []int{1, 40} {
		t.Run(fmt.Sprintf("scale=%d", scale), func(t *testing.T) {
			recycled := int64(0)
			logtest.EachFault(t, func(fs *logtest.FS) func(*logtest.FS) {
				f := recycling(t, fs, scale)
				f.finish(&recycled)
				return f.verify
			})
		})
	}
}

// checkStale proves of the files what spare.go says: every batch that is whole in a
// spare file, at whatever position, is below the local start, and every one behind
// the end of the active file below its base.
func checkStale(t testing.TB, fs *logtest.FS, l *log.Log) {
	t.Helper()
	if fs.Crashed() || l.Err() != nil {
		return
	}
	segs := l.Segments()
	active := segs[len(segs)-1]
	for _, name := range fs.Names() {
		var from int64
		var below log.Offset
		switch {
		case strings.Contains(name, "cordwood.spare-"):
			below = l.LocalStart()
		case strings.HasSuffix(name, fmt.Sprintf("/%020d.log", int64(active.Base))):
			from, below = active.Bytes, active.Base
		default:
			continue
		}
		b := readAll(t, fs, name)
		for at := from; at+record.HeaderBytes <= int64(len(b)); at++ {
			if b[at+16] != 2 || b[at] != 0 {
				continue
			}
			x, _, err := record.Next(b[at:], 1<<20)
			if err == nil && x.Verify() == nil && x.LastOffset() >= below {
				t.Fatalf("%s holds offset %d at byte %d, and [%d, %d) is to come", name, x.LastOffset(), at, below, active.End)
			}
		}
	}
}

var _ = []any{errors.Is, io.EOF, rand.IntN, slices.Sort[[]int], new(sync.Mutex), new(atomic.Int32), syscall.EIO, synctest.Wait, time.Now}
