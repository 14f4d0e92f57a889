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

	nested *int // counts checks; every so many, recovery is interrupted too
	every  int
}

func newFleet(t testing.TB, fs *logtest.FS, n, scale int) *fleet {
	f := &fleet{t: t, fs: fs}
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
	f.disk = d
	for _, l := range f.lives {
		l.disk = d
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

// TestJournalCrash runs the script of a log on three logs of one disk at once.
func TestJournalCrash(t *testing.T) {
	for _, scale := range []int{1, 10} {
		t.Run(fmt.Sprintf("scale=%d", scale), func(t *testing.T) {
			nested := 0
			logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
				f := newFleet(t, fs, 3, scale)
				f.nested, f.every = &nested, 41
				f.each(func(i int, l *life) { l.script() })
				if f.disk != nil {
					t.Log(log.JournalStats(f.disk))
				}
				f.closeDisk()
				return f.check
			})
		})
	}
}

func TestJournalFault(t *testing.T) {
	logtest.EachFault(t, func(fs *logtest.FS) func(*logtest.FS) {
		f := newFleet(t, fs, 2, 1)
		f.each(func(i int, l *life) { l.script() })
		f.closeDisk()
		return f.verify
	})
}
