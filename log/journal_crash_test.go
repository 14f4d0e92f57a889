package log_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// A fleet is several logs on one disk with a journal.
type fleet struct {
	t     testing.TB
	fs    *logtest.FS
	disk  *log.Disk
	lives []*life
	dead  bool

	hold   bool // files hold back what they may and may not
	nested *int // counts checks; every so many, recovery is interrupted too
	every  int
}

func newFleet(t testing.TB, fs *logtest.FS, n, scale int) *fleet {
	return newFleetThat(t, fs, n, scale, false)
}

// newFleetThat is newFleet of a disk whose files hold back all they can, if it is to.
func newFleetThat(t testing.TB, fs *logtest.FS, n, scale int, hold bool) *fleet {
	f := &fleet{t: t, fs: fs, hold: hold}
	looks := new(int)
	for i := range n {
		f.lives = append(f.lives, &life{
			t: t, fs: fs, w: newWorld(), scale: scale, dir: fmt.Sprintf("/data/p%d", i), looks: looks, nested: 1 << 30, n: 100 * i,
		})
	}
	f.openDisk(fs)
	return f
}

func (f *fleet) openDisk(fs *logtest.FS) {
	f.disk = nil
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
	if err != nil {
		f.dead = true
		for _, l := range f.lives {
			l.dead = true
		}
		return
	}
	log.JournalAll(d)
	if f.hold {
		log.HoldAll(d)
	}
	f.disk = d
	for _, l := range f.lives {
		l.disk = d
	}
}

// together writes to some logs and makes that durable by one group.
func (f *fleet) together(which func(i int) bool) {
	var logs []*log.Log
	var lives []*life
	for i, l := range f.lives {
		if which(i) && !l.dead && l.l != nil {
			l.write(max(l.l.LastEpoch(), 0), 1+i%2)
			if !l.dead {
				logs = append(logs, l.l)
				lives = append(lives, l)
			}
		}
	}
	if len(logs) == 0 {
		return
	}
	err := log.SyncTogether(f.disk, logs...)
	for _, l := range lives {
		if err == nil {
			l.w.stated, l.w.acked = l.w.acked, l.w.written
		} else if l.l.Err() == nil {
			l.sync()
		} else {
			l.dead = true
		}
	}
}

// closeDisk closes what is still open.
func (f *fleet) closeDisk() {
	for _, l := range f.lives {
		l.close()
	}
	if f.disk != nil {
		f.disk.Close() //nolint:errcheck // the crash may come here
		f.disk = nil
	}
}

// each runs a step on all logs at once.
func (f *fleet) each(step func(i int, l *life)) {
	var wg sync.WaitGroup
	for i, l := range f.lives {
		wg.Go(func() { step(i, l) })
	}
	wg.Wait()
}

func (f *fleet) check(after *logtest.FS) {
	f.t.Helper()
	image := after.Fork(logtest.CrashKeepAll)
	f.verify(after)
	if *f.nested++; f.t.Failed() || *f.nested%f.every != 0 {
		return
	}
	for at := int64(1); at < 200; at += 1 + at/4 {
		fs := image.Fork(logtest.CrashKeepAll)
		from := fs.Changes()
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind.Changes() && op.Changed-from >= at {
				fs.PowerOff()
			}
			return nil
		})
		d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
		if err == nil {
			for _, l := range f.lives {
				l.disk = d
				o, err := log.Open(context.Background(), l.dir, l.options(fs))
				if err == nil {
					defer d.Close() //nolint:errcheck // it is dead
					defer o.Close() //nolint:errcheck // it is dead
				}
			}
		}
		done := !fs.Crashed()
		fs.PowerOff()
		f.verify(fs.Crash(logtest.CrashLoseSome(uint64(at))))
		if f.t.Failed() {
			f.t.Logf("recovery interrupted at change %d", at)
		}
		if done || f.t.Failed() {
			return
		}
	}
}

func (f *fleet) verify(after *logtest.FS) {
	t := f.t
	t.Helper()
	d, err := log.NewDisk(log.DiskOptions{FS: after, Dir: "/data", JournalBytes: 256 << 10})
	if err != nil {
		t.Errorf("disk after crash: %v", err)
		return
	}
	for _, l := range f.lives {
		l.disk = d
		l.verify(after)
		if t.Failed() {
			t.Logf("log %s", l.dir)
			break
		}
	}
	if err := d.Close(); err != nil && !t.Failed() {
		t.Errorf("close of the disk: %v", err)
	}
	for _, name := range after.Names() {
		if !t.Failed() && len(name) > 8 && name[len(name)-8:] == ".journal" {
			t.Errorf("%s is there after a clean close", name)
		}
	}
}

// nth: of two logs at work at once one point in so many is tried; TestJournalCrashSteps
// and TestJournalFaultSteps try each.
const nth = 3

// TestJournalCrash runs the script of a log on two logs of one disk at once.
func TestJournalCrash(t *testing.T) {
	t.Parallel()
	for _, scale := range []int{1, 10} {
		t.Run(fmt.Sprintf("scale=%d", scale), func(t *testing.T) {
			nested := 0
			logtest.SomeCrashes(t, nth, func(fs *logtest.FS) func(*logtest.FS) {
				f := newFleet(t, fs, 2, scale)
				f.nested, f.every = &nested, 41
				f.each(func(i int, l *life) { l.script() })
				f.closeDisk()
				return f.check
			})
		})
	}
}

func TestJournalFault(t *testing.T) {
	t.Parallel()
	logtest.SomeFaults(t, nth, func(fs *logtest.FS) func(*logtest.FS) {
		f := newFleet(t, fs, 2, 1)
		f.each(func(i int, l *life) { l.script() })
		f.closeDisk()
		return f.verify
	})
}

// steps is a script of a fleet on one goroutine, so that its groups are the same in
// each run.
func (f *fleet) steps() {
	ctx := context.Background()
	all := func(int) bool { return true }
	for _, l := range f.lives {
		l.open()
	}
	for i := range 4 {
		f.together(all)
		f.together(func(k int) bool { return (k+i)%3 != 0 })
	}
	one := f.lives[0]
	if one.l != nil && !one.dead {
		log.FlushLog(one.l)
	}
	one.truncate(3)
	f.together(all)
	one.append(2)
	two := f.lives[1]
	if !two.dead {
		two.step(func(w *world) { w.acked = w.written }, func() error { return two.l.Roll(ctx) })
	}
	f.together(all)
	two.close() // in order, and appended to without the journal
	two.open()
	two.append(1)
	if !two.dead && two.l != nil {
		two.write(3, 1)
		two.sync()
	}
	if three := f.lives[2]; !three.dead {
		three.step(func(w *world) {
			w.local, w.written, w.acked, w.stated = 50, 50, 50, 0
			w.bounds, w.epochs, w.produced = map[log.Offset]bool{50: true}, nil, nil
		}, func() error { return three.l.Reset(ctx, 50, nil, nil) })
	}
	for range 6 {
		f.together(all) // enough for files to be used again
	}
	f.closeDisk()
	if f.dead {
		return
	}
	f.openDisk(f.fs)
	for _, l := range f.lives {
		l.open()
	}
	for range 3 {
		f.together(all)
	}
	f.lives[0].truncate(2)
	f.together(all)
}

// checkSteps runs the steps, and returns how to look at what a crash leaves of them. With
// hold nothing goes to a file before it must.
func checkSteps(t *testing.T, hold bool) func(*logtest.FS) func(*logtest.FS) {
	nested := 0
	return func(fs *logtest.FS) func(*logtest.FS) {
		f := newFleetThat(t, fs, 3, 1, hold)
		f.nested, f.every = &nested, 23
		f.steps()
		f.closeDisk()
		return f.check
	}
}

// verifySteps is checkSteps without crashes in recovery.
func verifySteps(t *testing.T, hold bool) func(*logtest.FS) func(*logtest.FS) {
	return func(fs *logtest.FS) func(*logtest.FS) {
		f := newFleetThat(t, fs, 3, 1, hold)
		f.steps()
		f.closeDisk()
		return f.verify
	}
}

// TestJournalCrashSteps is TestJournalCrash with groups of several logs.
func TestJournalCrashSteps(t *testing.T) {
	t.Parallel()
	logtest.EachCrash(t, checkSteps(t, false))
}

// TestHeldCrashSteps is TestJournalCrashSteps when nothing goes to a file before it must.
func TestHeldCrashSteps(t *testing.T) {
	t.Parallel()
	logtest.SomeCrashes(t, nth, checkSteps(t, true))
}

func TestJournalFaultSteps(t *testing.T) {
	t.Parallel()
	logtest.EachFault(t, verifySteps(t, false))
}

func TestHeldFaultSteps(t *testing.T) {
	t.Parallel()
	logtest.SomeFaults(t, 2*nth, verifySteps(t, true))
}

// resume opens everything after a crash and takes what is there for what must be.
func (f *fleet) resume(fs *logtest.FS) {
	f.fs = fs
	for _, l := range f.lives {
		l.fs, l.dead = fs, false
	}
	f.openDisk(fs)
	for _, l := range f.lives {
		w := l.w
		l.open()
		if l.l == nil {
			f.t.Errorf("%s does not open", l.dir)
			return
		}
		err := w.matches(l.l)
		if err != nil && l.then != nil && l.then.matches(l.l) == nil {
			w, err = l.then, nil
		}
		l.w, l.then = w, nil
		if err != nil {
			f.t.Errorf("%s after crash: %v", l.dir, err)
			return
		}
		end := l.l.End()
		w.cut(end)
		w.acked, w.stated = end, 0
	}
}
