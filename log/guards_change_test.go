package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// Each test here is for one guard of a change or of a read, by its name in testdata/mutations.txt.

// change: a full disk fails the log; a rename that may have happened is taken for none
func TestGuardMetaReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		kind   logtest.Kind
		err    error
		failed bool
	}{
		"no room":         {logtest.OpCreate, syscall.ENOSPC, false},
		"renamed or not":  {logtest.OpRename, syscall.ENOSPC, true},
		"renamed":         {logtest.OpRename, logtest.DoneButFailed(syscall.ENOSPC), true},
		"name not synced": {logtest.OpSyncDir, syscall.ENOSPC, true},
	} {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{})
		for i := range 5 {
			mustAppend(t, l, fmt.Sprint(i))
		}
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind == c.kind && (strings.Contains(op.Path, "cordwood.meta") || op.Kind == logtest.OpSyncDir) {
				return c.err
			}
			return nil
		})
		err := l.TrimTo(t.Context(), 3)
		fs.OnOp(nil)
		if errors.Is(err, log.ErrDiskFull) == c.failed || (l.Err() != nil) != c.failed || err == nil {
			t.Errorf("%s: got %v, and then %v", name, err, l.Err())
		}
		if !c.failed {
			if err := l.TrimTo(t.Context(), 3); err != nil || l.Start() != 3 {
				t.Errorf("%s: got %v, start %d", name, err, l.Start())
			}
		}
		l.Close() //nolint:errcheck // it may have failed
	}
}

// change: reset keeps the floor
func TestGuardResetFloor(t *testing.T) {
	fs, _ := guardedLog(t, 2, false) // one segment, whose length recovery changes: the floor says what was durable
	l := reopen(t, fs)
	if err := l.Reset(t.Context(), 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, "new")
	l = reopen(t, fs.Crash())
	if r := l.Recovery(); r.Lossy || r.End != 1 {
		t.Errorf("got %+v, %v", r, r.Corruption)
	}
	mustClose(t, l)
}

// truncate: below the local start
func TestGuardTruncateBelow(t *testing.T) {
	fs, bases := guardedLog(t, 9, true)
	l := reopen(t, fs)
	if err := l.DropLocal(t.Context(), bases[1]); err != nil {
		t.Fatal(err)
	}
	if end, err := l.TruncateTo(t.Context(), bases[1]-1); !errors.Is(err, log.ErrOffsetOutOfRange) {
		t.Errorf("got %d, %v", end, err)
	}
	if got := values(t, l, bases[1]); len(got) != 9-int(bases[1]) {
		t.Errorf("got %d records", len(got))
	}
	mustClose(t, l)
}

// truncate: the new floor is not noted
func TestGuardFloorOfTruncation(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, "0", "1")
	for i := range 6 {
		mustWrite(t, l, fmt.Sprint(i))
	}
	if end, err := l.TruncateTo(t.Context(), 6); err != nil || end != 6 || l.DurableEnd() != 6 {
		t.Fatal(end, err, l.DurableEnd())
	}
	l = open(t, fs.Crash(), log.Options{})
	if r := l.Recovery(); r.DurableEnd != 6 || r.End != 6 || r.Lossy {
		t.Errorf("got %+v", r)
	}
	mustClose(t, l)
}

// truncate: any truncation lifts the read-only state
func TestGuardTruncateAboveDamage(t *testing.T) {
	fs, bases := guardedLog(t, 9, false)
	for _, n := range bases[:4] {
		if n != bases[1] && n != bases[3] {
			continue
		}
		if err := fs.Corrupt("/data/p/"+sideName(n, "log"), 70, 0xff); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range fs.Names() {
		if e := path.Ext(n); e == ".seal" || e == ".state" {
			if err := fs.Remove(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := reopen(t, fs)
	if r := l.Recovery(); len(r.Corruption) != 2 {
		t.Fatalf("got %v", r.Corruption)
	}
	for i, to := range []log.Offset{bases[3], bases[1]} {
		if end, err := l.TruncateTo(t.Context(), to); err != nil || end != to {
			t.Fatal(end, err)
		}
		if _, err := l.Write(9, plain("x")); errors.Is(err, log.ErrReadOnly) != (i == 0) {
			t.Errorf("truncated to %d: got %v", to, err)
		}
	}
	mustClose(t, l)
}

// truncate: files go first to last
func TestGuardTakenBackInOrder(t *testing.T) {
	var batches []byte
	for i := range 6 {
		batches = append(batches, plain(big(fmt.Sprint(i), 700))...)
	}
	for at := int64(1); ; at++ {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		mustAppend(t, l, big("first", 700))
		// The background makes files as well.
		var created, back atomic.Int64
		fs.OnOp(func(op logtest.Op) error {
			switch {
			case op.Kind == logtest.OpCreate && strings.Contains(op.Path, "spare"):
				if created.Add(1) > 4 {
					back.Store(op.Changed)
					return syscall.ENOSPC
				}
			case back.Load() > 0 && op.Kind.Changes() && op.Changed-back.Load() >= at:
				fs.PowerOff()
			}
			return nil
		})
		_, err := l.Write(0, slices.Clone(batches))
		if back.Load() == 0 || err == nil {
			t.Fatalf("got %v with %d files made", err, created.Load())
		}
		done := errors.Is(err, log.ErrDiskFull)
		fs.PowerOff()
		l.Close() //nolint:errcheck // its disk is dead
		for seed := range uint64(6) {
			after := open(t, fs.Fork(logtest.CrashLoseSome(seed)), log.Options{SegmentBytes: 1 << 10})
			if r := after.Recovery(); r.Lossy || r.End < 1 {
				t.Fatalf("change %d, seed %d: got %+v, %v", at, seed, r, r.Corruption)
			}
			if got := values(t, after, 0); len(got) != int(after.End()) {
				t.Fatalf("got %d records", len(got))
			}
			mustClose(t, after)
		}
		if done {
			return
		}
	}
}

// truncate: side files of the cut segment stay; the names are not synced
func TestGuardTruncatedNames(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		truncatedNames(t, sealed)
	}
}

func truncatedNames(t *testing.T, sealed bool) {
	t.Helper()
	fs, bases := guardedLog(t, 9, true)
	if !sealed { // with a seal, what is removed is durable even before the file is cut
		remove(t, fs, sideName(bases[1], "seal"))
	}
	l := reopen(t, fs)
	var (
		mu    sync.Mutex // the background works too
		order []string
	)
	fs.OnOp(func(op logtest.Op) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case op.Kind == logtest.OpRemove && path.Ext(op.Path) == ".log", op.Kind == logtest.OpSyncDir:
			order = append(order, op.Kind.String())
		case op.Kind == logtest.OpRename && strings.HasSuffix(op.NewPath, "cordwood.meta"):
			order = append(order, "meta")
		}
		return nil
	})
	if end, err := l.TruncateTo(t.Context(), bases[1]+1); err != nil || end != bases[1]+1 {
		t.Fatal(end, err)
	}
	fs.OnOp(nil)
	mu.Lock()
	ops := slices.Clone(order)
	mu.Unlock()
	gone, last := slices.Index(ops, logtest.OpRemove.String()), len(ops)-1
	for last > 0 && ops[last] != "meta" {
		last--
	}
	if gone < 0 || !slices.Contains(ops[gone:last], logtest.OpSyncDir.String()) {
		t.Errorf("the removal is said to be done before it is durable: %q", ops)
	}
	for _, suffix := range []string{"index", "timeindex", "txnindex", "seal"} {
		if slices.Contains(fs.Names(), "/data/p/"+sideName(bases[1], suffix)) {
			t.Errorf("the %s of the cut segment is there", suffix)
		}
	}
	mustClose(t, l)
}

// read: a read that met a repair is not repeated
func TestGuardReadMeetsRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rotten(t, true)
		fs := r.image.Fork(logtest.CrashKeepAll)
		r.hit(t, fs, 12, 70, 0xff)
		l := open(t, fs, log.Options{SegmentBytes: 5000})
		if !l.Recovery().Clean {
			t.Fatal("not clean")
		}
		met := false
		release := fs.Stall(func(op logtest.Op) bool {
			if met || op.Kind != logtest.OpRead || op.Path != segName(10) {
				return false
			}
			met = true
			return true
		})
		type result struct {
			value string
			err   error
		}
		done := make(chan result, 1)
		go func() {
			s, err := l.Read(context.Background(), 12, 1)
			if err != nil {
				done <- result{err: err}
				return
			}
			done <- result{value: value(t, s)}
			s.Release()
		}()
		synctest.Wait()
		if got, err := l.Repair(t.Context(), 10, 20, from(r.replica)); err != nil || len(got.Damage) != 1 {
			t.Errorf("got %+v, %v", got, err)
		}
		release()
		if got := <-done; got.err != nil || !strings.HasPrefix(got.value, "00012") {
			t.Errorf("got %q, %v", got.value, got.err)
		}
		mustClose(t, l)
	})
}

// read: a deleted file is an error
func TestGuardReadMeetsDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, bases := guardedLog(t, 9, true)
		l := reopen(t, fs)
		release := fs.Stall(func(op logtest.Op) bool {
			return op.Kind == logtest.OpOpen && op.Path == "/data/p/"+sideName(0, "log")
		})
		done := make(chan error, 1)
		go func() {
			_, err := l.Read(context.Background(), 0, 1)
			done <- err
		}()
		synctest.Wait()
		if err := l.TrimTo(t.Context(), bases[2]); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		release()
		if err := <-done; !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("got %v", err)
		}
		mustClose(t, l)
	})
}

// read: batches of another place are taken; epochs are not compared; offsets need not follow
func TestGuardReadHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		at   int64
		mask byte
	}{"offset": {7, 0x10}, "epoch": {15, 0x10}, "length": {10, 0x40}, "checksum": {18, 1}} {
		fs, bases := guardedLog(t, 9, true)
		if err := fs.Corrupt("/data/p/"+sideName(bases[1], "log"), c.at, c.mask); err != nil {
			t.Fatal(err)
		}
		l := reopen(t, fs)
		if !l.Recovery().Clean {
			t.Errorf("%s: not clean", name)
		}
		for off := range log.Offset(9) {
			s, err := l.Read(t.Context(), off, 1)
			if off == bases[1] {
				if c, ok := errors.AsType[*log.CorruptionError](err); !ok || c.Offset != off {
					t.Errorf("%s: got %v", name, err)
				}
			} else if err != nil || s.Base() != off {
				t.Errorf("%s: read %d: %v", name, off, err)
			}
		}
		mustClose(t, l)
	}
}

// indexedLog closes a log of 60 records of 1000 bytes, one a batch, in two segments, so that there are entries in the indexes.
func indexedLog(t *testing.T) *logtest.FS {
	t.Helper()
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{SegmentBytes: 40 << 10})
	for i := range 60 {
		mustAppend(t, l, big(fmt.Sprint(i), 1000))
	}
	mustClose(t, l)
	return fs
}

func wantAll(t *testing.T, what string, l *log.Log, n int) {
	t.Helper()
	for off := range log.Offset(n) {
		s, err := l.Read(t.Context(), off, 1)
		if err != nil || s.Base() != off {
			t.Errorf("%s: read %d: %v", what, off, err)
			continue
		}
		s.Release()
	}
}

// index: the checksum is not compared; positions behind the file are taken; entries need not ascend
func TestGuardIndexDamage(t *testing.T) {
	image := indexedLog(t)
	name := "/data/p/" + sideName(0, "index")
	entries := readAll(t, image, name)
	if len(entries) < 4*8 {
		t.Fatalf("got %d bytes", len(entries))
	}
	for what, change := range map[string]func(b []byte) []byte{
		"another batch's position": func(b []byte) []byte { copy(b[4:8], b[12:16]); copy(b[12:16], b[20:24]); return b },
		"behind the file":          func(b []byte) []byte { b[len(b)-4] = 1; return b },
		"descending":               func(b []byte) []byte { return slices.Concat(b[8:16], b[:8], b[16:]) },
		"shorter":                  func(b []byte) []byte { return b[:8] },
		"nothing":                  func([]byte) []byte { return nil },
	} {
		fs := image.Fork(logtest.CrashKeepAll)
		remove(t, fs, path.Base(name))
		put(t, fs, path.Base(name), change(bytes.Clone(entries)))
		l := open(t, fs, log.Options{SegmentBytes: 40 << 10})
		wantAll(t, what, l, 60)
		mustClose(t, l)
	}
}

// index: a seal of another extent is taken
func TestGuardSealOfBefore(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	fill := func() {
		for i := range 12 {
			mustAppend(t, l, big(fmt.Sprint(i), 1000))
		}
		mustClose(t, l)
	}
	fill()
	before := map[string][]byte{}
	for _, suffix := range []string{"seal", "index", "timeindex"} {
		before[suffix] = readAll(t, fs, "/data/p/"+sideName(0, suffix))
	}
	l = open(t, fs, log.Options{})
	fill()
	for suffix, b := range before {
		remove(t, fs, sideName(0, suffix))
		put(t, fs, sideName(0, suffix), b)
	}
	l = open(t, fs, log.Options{})
	if r := l.Recovery(); r.Clean || r.Lossy || r.End != 24 {
		t.Errorf("got %+v", r)
	}
	for range 3 {
		mustAppend(t, l, "more")
	}
	l = open(t, fs.Crash(), log.Options{})
	if r := l.Recovery(); r.Lossy || r.End != 27 {
		t.Errorf("got %+v", r)
	}
	wantAll(t, "afterwards", l, 27)
	mustClose(t, l)
}

// verify: the index is not compared with the batches; the time index is not compared with the batches
func TestGuardVerifyIndexes(t *testing.T) {
	image := indexedLog(t)
	for _, suffix := range []string{"index", "timeindex"} {
		fs := image.Fork(logtest.CrashKeepAll)
		if err := fs.Corrupt("/data/p/"+sideName(0, suffix), 5, 0x02); err != nil {
			t.Fatal(err)
		}
		l := open(t, fs, log.Options{SegmentBytes: 40 << 10})
		v := verify(t, l)
		if !slices.ContainsFunc(v.Files, func(c *log.CorruptionError) bool { return strings.HasSuffix(c.Path, "."+suffix) }) {
			t.Errorf("%s: got %+v", suffix, v)
		}
		mustClose(t, l)
	}
}

// a segment that lost its new name is not found, also if its first slot is torn
func TestGuardNameLostSlotTorn(t *testing.T) {
	var fs *logtest.FS
	n := 0
	synctest.Test(t, func(t *testing.T) {
		disk := logtest.NewFS(1)
		l := open(t, disk, log.Options{SegmentBytes: 64 << 10})
		for len(l.Segments()) < 2 {
			mustAppend(t, l, big(fmt.Sprint(n), 1000))
			n++
			synctest.Wait() // the next file is made in advance
		}
		for range 4 {
			mustAppend(t, l, fmt.Sprint(n))
			n++
		}
		fs = disk.Fork(logtest.CrashKeepAll)
		mustClose(t, l)
	})
	name := activeName(fs)
	b := readAll(t, fs, name)
	far, near := 0, 0
	for at := 0; at+4096 <= len(b); at += 512 {
		if string(b[at:at+4]) != "CWSL" {
			continue
		}
		if at < len(b)-8192 {
			near++
			continue
		}
		far++
		if err := fs.Corrupt(name, int64(at)+50, 0xff); err != nil { // torn
			t.Fatal(err)
		}
	}
	if far == 0 || near == 0 {
		t.Fatalf("got %d slots at the end and %d behind batches", far, near)
	}
	if err := fs.Rename(name, "/data/p/cordwood.spare-99"); err != nil {
		t.Fatal(err)
	}
	l := open(t, fs, log.Options{SegmentBytes: 64 << 10})
	if r := l.Recovery(); r.Lossy || r.End != log.Offset(n) {
		t.Errorf("got %+v, want end %d", r, n)
	}
	if got := values(t, l, 0); len(got) != n {
		t.Errorf("got %d records, want %d", len(got), n)
	}
	mustClose(t, l)
}

// A part of a call is kept out of the journal: what the call takes back would be in an entry, and come back over what was appended instead.
func TestGuardPartNotJournaled(t *testing.T) {
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	l, err := log.Open(t.Context(), "/data/p", log.Options{Disk: d, SegmentBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, "before")
	log.FlushLog(l)
	log.FlushLog(l)
	mustAppend(t, l, "before, in the journal")
	log.FlushLog(l)
	log.FlushLog(l)
	_, entries, _, _ := log.JournalStats(d)
	if entries == 0 {
		t.Fatal("nothing went into the journal")
	}
	var met atomic.Bool
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpCreate && strings.Contains(op.Path, "spare") {
			met.Store(true)
			// The first part is written, the next file can't be made.
			if err := log.SyncTogether(d, l); err != nil {
				t.Error(err)
			}
			return syscall.ENOSPC
		}
		return nil
	})
	part := plain(big("one", 1000))
	if _, err := l.Write(0, slices.Concat(part, plain(big("two", 3500)))); !errors.Is(err, log.ErrDiskFull) || !met.Load() {
		t.Fatalf("got %v, %v", err, met.Load())
	}
	fs.OnOp(nil)
	if _, now, _, _ := log.JournalStats(d); now != entries {
		t.Errorf("%d entries were made of a part", now-entries)
	}
	if l.End() != 2 {
		t.Fatalf("got end %d", l.End())
	}
	mustAppend(t, l, big("own", 1000))
	fs = fs.Crash()
	l.Close() //nolint:errcheck // its disk is dead
	d.Close() //nolint:errcheck // as above
	d, err = log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	l, err = log.Open(t.Context(), "/data/p", log.Options{Disk: d, SegmentBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if got := values(t, l, 0); len(got) != 3 || got[2] != big("own", 1000) || l.Recovery().Lossy {
		t.Errorf("got %d records, %+v", len(got), l.Recovery())
	}
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
