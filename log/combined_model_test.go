package log_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// TestEverythingModel runs random calls on several logs of one disk that recycle
// their files and use the journal, with closes, crashes, deaths of the process alone
// and recoveries that are interrupted.
func TestEverythingModel(t *testing.T) {
	t.Parallel()
	runs := uint64(1500)
	if testing.Short() {
		runs = 40
	}
	for seed := range runs {
		everything(t, seed, seed%3 == 0)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func everything(t *testing.T, seed uint64, faults bool) {
	rng := rand.New(rand.NewPCG(seed, 11))
	fs := logtest.NewFS(seed)
	f := newFleet(t, fs, 3, 1+int(seed%2)*9)
	f.nested, f.every = new(int), 1<<30
	ctx := context.Background()
	die := func() {
		mode := logtest.CrashLoseSome(rng.Uint64())
		if rng.IntN(3) == 0 {
			mode = logtest.CrashLoseAll
		}
		if rng.IntN(2) == 0 {
			after := fs.Crash(mode)
			f.closeDisk()
			fs = after
			return
		}
		after := fs.Kill()
		f.closeDisk()
		fs = after
		for range rng.IntN(3) {
			at := 1 + rng.Int64N(60)
			from := fs.Changes()
			old, off := fs, rng.IntN(2) == 0
			fs.OnOp(func(op logtest.Op) error {
				if op.Kind.Changes() && op.Changed-from >= at {
					if off {
						old.PowerOff()
					}
					return logtest.ErrCrashed
				}
				return nil
			})
			d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
			if err == nil {
				for _, l := range f.lives {
					l.disk = d
					if o, err := log.Open(ctx, l.dir, l.options(fs)); err == nil {
						defer d.Close() //nolint:errcheck // it is dead
						defer o.Close() //nolint:errcheck // it is dead
					}
				}
			}
			fs.OnOp(nil)
			if fs.Crashed() || rng.IntN(2) == 0 {
				fs = fs.Crash(mode)
			} else {
				fs = fs.Kill()
			}
		}
	}
	fault := func() {
		err := error(syscall.ENOSPC)
		if rng.IntN(3) == 0 {
			err = syscall.EIO
		}
		if rng.IntN(2) == 0 {
			err = logtest.DoneButFailed(err)
		}
		var left atomic.Int64 // the background has operations too
		left.Store(rng.Int64N(60))
		fs.OnOp(func(op logtest.Op) error {
			if !op.Kind.Changes() {
				return nil
			}
			if left.Add(-1) == 0 {
				return err
			}
			return nil
		})
	}
	for range 80 {
		if slices.ContainsFunc(f.lives, func(l *life) bool { return l.dead }) {
			die()
			f.resume(fs)
		}
		l := f.lives[rng.IntN(len(f.lives))]
		if l.l == nil {
			l.open()
			continue
		}
		switch rng.IntN(20) {
		case 0:
			l.append(1 + rng.IntN(3))
		case 1:
			l.write(max(l.l.LastEpoch(), 0)+log.Epoch(rng.IntN(2)), 1)
		case 2:
			l.sync()
		case 3:
			back := log.Offset(rng.IntN(int(min(4, l.w.written-l.w.local) + 1)))
			for back > 0 && !l.w.bounds[l.w.written-back] {
				back-- // inside a batch that the local start may be in
			}
			l.truncate(back)
		case 4, 5, 6:
			l.step(func(w *world) { w.acked = w.written }, func() error { return l.l.Roll(ctx) })
		case 7:
			l.close()
		case 8:
			log.FlushLog(l.l)
		case 9:
			l.trim(log.Offset(rng.IntN(6)))
		case 10:
			l.drop()
		case 11:
			if rng.IntN(6) == 0 {
				l.reset(log.Offset(rng.IntN(int(l.w.written) + 10)))
			}
		case 12:
			l.rest()
		case 13:
			if rng.IntN(3) == 0 {
				die()
				f.resume(fs)
			}
		case 14:
			if faults {
				fault()
			}
		default:
			mask := rng.IntN(8)
			f.together(func(i int) bool { return mask>>i&1 == 1 })
		}
		if t.Failed() {
			t.Logf("trace:\n%s", fs.Trace())
			return
		}
	}
	die()
	f.verify(fs)
	if t.Failed() {
		t.Logf("trace:\n%s", fs.Trace())
	}
}
