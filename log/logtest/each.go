package logtest

import (
	"testing"
)

// EachCrash proves that a workload survives a crash at any point. It runs the
// workload on a new FS again and again, and takes the power away right before the
// 1st, 2nd, … operation that changes the disk (see [Kind.Changes]), and in the
// last run after all of them. Then it calls check with what the disk holds: once
// with all unsynced changes lost, once with all kept, and twice with a seeded
// subset.
//
// The workload returns the check, a closure over what it was told is done. It must
// return by itself once operations return [ErrCrashed]; it is called on one
// goroutine at a time, may start others but must join them, and need not be
// deterministic. Its state must be made anew in each call. A check may write to
// the FS it is given. Both may use t; on a failure EachCrash adds the point of the
// crash and the trace, and stops.
//
// With testing.Short only some 50 points are tried.
func EachCrash(t testing.TB, workload func(fs *FS) (check func(after *FS))) {
	t.Helper()
	count := NewFS(0)
	workload(count)
	step := int64(1)
	if testing.Short() {
		step = 1 + count.Changes()/50
	}
	if t.Failed() {
		t.Fatalf("logtest: the workload fails without a crash; trace:\n%s", count.Trace())
	}
	for at := int64(1); ; at += step {
		fs := NewFS(uint64(at))
		fs.OnOp(func(op Op) error {
			if op.Kind.Changes() && op.Changed >= at {
				fs.PowerOff()
			}
			return nil
		})
		check := func() func(*FS) {
			defer explain(t, fs, at)()
			return workload(fs)
		}()
		last := !fs.Crashed()
		for _, mode := range []CrashMode{CrashLoseAll, CrashKeepAll, CrashLoseSome(2 * uint64(at)), CrashLoseSome(2*uint64(at) + 1)} {
			after := fs.Crash(mode)
			func() {
				defer explain(t, after, at)()
				check(after)
			}()
		}
		if last {
			return
		}
	}
}

// explain returns a function that, deferred, says where a failure came from, also
// when that was a t.Fatal or a panic.
func explain(t testing.TB, fs *FS, at int64) func() {
	return func() {
		t.Helper()
		if t.Failed() {
			t.Fatalf("logtest: crash before change %d; trace:\n%s", at, fs.Trace())
		}
	}
}
