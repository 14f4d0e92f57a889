package logtest

import (
	"fmt"
	"math/rand/v2"
	"syscall"
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
	crashes(t, 1, stride(t, workload), workload)
}

// SomeCrashes is as [EachCrash] for one point in nth, from a random one on: for
// workloads on several goroutines, whose operations come in another order in each run
// anyway. nth is at least 1.
func SomeCrashes(t testing.TB, nth int64, workload func(fs *FS) (check func(after *FS))) {
	t.Helper()
	crashes(t, 1+rand.Int64N(nth), max(nth, stride(t, workload)), workload)
}

func crashes(t testing.TB, first, step int64, workload func(fs *FS) (check func(after *FS))) {
	t.Helper()
	for at := first; ; at += step {
		fs := NewFS(uint64(at))
		fs.OnOp(func(op Op) error {
			if op.Kind.Changes() && op.Changed >= at {
				fs.PowerOff()
			}
			return nil
		})
		check := run(t, fs, fmt.Sprintf("crash before change %d", at), workload)
		last := !fs.Crashed()
		for _, mode := range []CrashMode{CrashLoseAll, CrashKeepAll, CrashLoseSome(2 * uint64(at)), CrashLoseSome(2*uint64(at) + 1)} {
			look(t, fs.Crash(mode), fmt.Sprintf("crash before change %d", at), check)
		}
		if last {
			return
		}
	}
}

// EachFault is as [EachCrash] for a disk that fails: the 1st, 2nd, … operation
// that changes the disk returns EIO, in one run without being done, in one after it
// was done, and for a write also ENOSPC after half of it. Operations before and
// after succeed, so the workload decides how it ends. Then the machine crashes, in
// the same four ways.
func EachFault(t testing.TB, workload func(fs *FS) (check func(after *FS))) {
	t.Helper()
	faults(t, 1, stride(t, workload), workload)
}

// SomeFaults is as [EachFault] for one point in nth, as [SomeCrashes] does it.
func SomeFaults(t testing.TB, nth int64, workload func(fs *FS) (check func(after *FS))) {
	t.Helper()
	faults(t, 1+rand.Int64N(nth), max(nth, stride(t, workload)), workload)
}

func faults(t testing.TB, first, step int64, workload func(fs *FS) (check func(after *FS))) {
	t.Helper()
	for at := first; ; at += step {
		hit := false
		for _, kind := range []string{"not done", "done but reported as failed", "half done"} {
			fs := NewFS(uint64(at))
			skip := false
			fs.OnOp(func(op Op) error {
				if !op.Kind.Changes() || op.Changed != at {
					return nil
				}
				hit = true
				switch {
				case kind == "not done":
					return syscall.EIO
				case kind == "half done" && op.Kind == OpWrite:
					return Short(op.Len/2, syscall.ENOSPC)
				case kind == "half done":
					skip = true
					return nil
				}
				return DoneButFailed(syscall.EIO)
			})
			what := fmt.Sprintf("change %d %s", at, kind)
			check := run(t, fs, what, workload)
			if skip {
				continue
			}
			for _, mode := range []CrashMode{CrashLoseAll, CrashKeepAll, CrashLoseSome(2 * uint64(at)), CrashLoseSome(2*uint64(at) + 1)} {
				look(t, fs.Crash(mode), what, check)
			}
		}
		if !hit {
			return
		}
	}
}

// stride runs the workload without a fault and returns the distance between the
// points to try.
func stride(t testing.TB, workload func(fs *FS) func(*FS)) int64 {
	t.Helper()
	fs := NewFS(0)
	check := run(t, fs, "no fault", workload)
	changes := fs.Changes()
	look(t, fs.Crash(CrashKeepAll), "no fault", check)
	if testing.Short() {
		return 1 + changes/50
	}
	return 1
}

func run(t testing.TB, fs *FS, what string, workload func(fs *FS) func(*FS)) func(*FS) {
	t.Helper()
	defer explain(t, fs, what)
	return workload(fs)
}

func look(t testing.TB, after *FS, what string, check func(*FS)) {
	t.Helper()
	defer explain(t, after, what)
	check(after)
}

// explain is deferred: it says where a failure came from, also if that was a
// t.Fatal.
func explain(t testing.TB, fs *FS, what string) {
	t.Helper()
	if t.Failed() {
		t.Fatalf("logtest: %s; trace:\n%s", what, fs.Trace())
	}
}
