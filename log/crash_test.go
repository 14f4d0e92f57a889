package log_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"syscall"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// A world is what a log must hold: vals from local on, of which those below acked
// are durable and those below written may be there.
type world struct {
	vals           map[log.Offset]entry
	start, local   log.Offset
	acked, written log.Offset
	stated         log.Offset          // what the disk must state durable: acked before the last group
	bounds         map[log.Offset]bool // batch ends
	epochs         []log.EpochStart
	produced       []produced
	txns           txnModel // batches of the producers that use transactions
}

// produced is a batch of the producer.
type produced struct {
	base, end log.Offset
	first     int32
}

func (w *world) sequence() int32 {
	if len(w.produced) == 0 {
		return 0
	}
	p := w.produced[len(w.produced)-1]
	return p.first + int32(p.end-p.base)
}

type entry struct {
	value string
	epoch log.Epoch
}

func newWorld() *world {
	return &world{vals: map[log.Offset]entry{}, bounds: map[log.Offset]bool{0: true}}
}

func (w *world) clone() *world {
	c := *w
	c.vals, c.bounds, c.epochs = maps.Clone(w.vals), maps.Clone(w.bounds), slices.Clone(w.epochs)
	c.produced = slices.Clone(w.produced)
	c.txns.batches = slices.Clone(w.txns.batches)
	return &c
}

func (w *world) add(epoch log.Epoch, values ...string) {
	if n := len(w.epochs); n == 0 || w.epochs[n-1].Epoch < epoch {
		w.epochs = append(w.epochs, log.EpochStart{Epoch: epoch, Start: w.written})
	}
	for _, v := range values {
		w.vals[w.written] = entry{v, epoch}
		w.written++
	}
	w.bounds[w.written] = true
}

func (w *world) cut(off log.Offset) {
	for off > 0 && !w.bounds[off] {
		off--
	}
	w.written, w.acked, w.stated = off, off, min(w.stated, off)
	maps.DeleteFunc(w.vals, func(o log.Offset, _ entry) bool { return o >= off })
	maps.DeleteFunc(w.bounds, func(o log.Offset, _ bool) bool { return o > off })
	w.epochs = slices.DeleteFunc(w.epochs, func(e log.EpochStart) bool { return e.Start >= off })
	w.produced = slices.DeleteFunc(w.produced, func(p produced) bool { return p.end > off })
	w.txns.cut(off)
}

// matches says why the log is not in this state, or nil.
func (w *world) matches(l *log.Log) error {
	if l.Start() != w.start || l.LocalStart() != w.local {
		return fmt.Errorf("got start %d, local start %d, want %d, %d", l.Start(), l.LocalStart(), w.start, w.local)
	}
	end := l.End()
	if end < w.acked || end > w.written || !w.bounds[end] {
		return fmt.Errorf("got end %d, want [%d, %d]", end, w.acked, w.written)
	}
	if d := l.DurableEnd(); d != end {
		return fmt.Errorf("got durable end %d, want %d", d, end)
	}
	next := w.local
	for next < end {
		s, err := l.Read(context.Background(), next, 3000)
		if err != nil {
			return fmt.Errorf("read %d: %w", next, err)
		}
		for b, err := range s.Batches() {
			if err != nil {
				return err
			}
			if err := b.Verify(); err != nil {
				return err
			}
			for r, err := range b.Records() {
				if err != nil {
					return err
				}
				if r.Offset < next {
					continue
				}
				if want := w.vals[r.Offset]; r.Offset != next || string(r.Value) != want.value || b.LeaderEpoch() != want.epoch {
					return fmt.Errorf("got offset %d, %q, epoch %d, want offset %d, %+v", r.Offset, r.Value, b.LeaderEpoch(), next, want)
				}
				next++
			}
		}
		s.Release()
	}
	var epochs []log.EpochStart
	for _, e := range w.epochs {
		if e.Start < end {
			epochs = append(epochs, e)
		}
	}
	for len(epochs) > 1 && epochs[1].Start < w.start {
		epochs = epochs[1:]
	}
	if got := l.EpochChain(); !slices.Equal(got, epochs) {
		return fmt.Errorf("got epochs %v, want %v", got, epochs)
	}
	return w.txnsMatch(l)
}

// txnsMatch compares what is known of transactions below the end.
func (w *world) txnsMatch(l *log.Log) error {
	ctx := context.Background()
	m := txnModel{batches: slices.Clone(w.txns.batches), end: l.End()}
	m.cut(m.end)
	if got, want := l.LastStable(), m.lastStable(m.end); got != want {
		return fmt.Errorf("got last stable offset %d, want %d", got, want)
	}
	if w.local > m.end {
		return nil
	}
	if got, err := l.AbortedTransactions(ctx, w.local, m.end); err != nil || !slices.Equal(got, m.aborted(w.local, m.end)) {
		return fmt.Errorf("got aborted transactions %v, %v, want %v", got, err, m.aborted(w.local, m.end))
	}
	high := w.local + (m.end-w.local)/2
	for !w.bounds[high] {
		high++
	}
	if got, err := l.LastStableBelow(ctx, high); err != nil || got != m.lastStable(high) {
		return fmt.Errorf("got last stable offset %d, %v below %d, want %d", got, err, high, m.lastStable(high))
	}
	return nil
}

// A life is a log under a scripted workload.
type life struct {
	t       testing.TB
	fs      *logtest.FS
	l       *log.Log
	w, then *world // then: if the call under way came through
	dead    bool
	n       int
	scale   int
	dir     string
	disk    *log.Disk // nil: a private one

	recycled int64 // segments that began in a recycled file
	looks    *int  // counts checks over all runs
	nested   int   // every so many, recovery is interrupted too
}

// options let the script fill several segments at any scale. At 1 all of a segment
// is in one sector, at 10 a batch may lie over two, at 40 segments grow in steps.
func (f *life) options(fs log.FS) log.Options {
	o := log.Options{FS: fs, Disk: f.disk, SegmentBytes: int64(f.scale) * 2 << 10}
	if f.disk != nil {
		o.FS = nil
	}
	return o
}

func (f *life) open() {
	if f.dead {
		return
	}
	l, err := log.Open(context.Background(), f.dir, f.options(f.fs))
	if err != nil {
		f.dead = true
		return
	}
	f.l = l
	if r := l.Recovery(); r.Lossy {
		f.t.Errorf("lossy without a crash: %+v", r)
	}
}

func (f *life) step(change func(w *world), call func() error) {
	if f.dead {
		return
	}
	for range 4 {
		f.then = f.w.clone()
		change(f.then)
		err := call()
		if err == nil {
			if f.then.acked > f.w.acked {
				f.then.stated = f.w.acked
			}
			f.w, f.then = f.then, nil
			return
		}
		if errors.Is(err, log.ErrDiskFull) {
			f.then = nil
			continue // nothing was done: try again
		}
		f.dead = true
		if f.then.written >= f.w.written {
			f.then.acked = f.w.acked // what it would have acknowledged it did not
		}
		if _, ok := errors.AsType[*log.FailedError](err); !ok {
			// A read that comes before the first change may meet the crash.
			if !errors.Is(err, logtest.ErrCrashed) {
				f.t.Errorf("unexpected error: %v", err)
			}
			return
		}
		if again := f.l.Err(); again == nil {
			f.t.Errorf("no sticky error after %v", err)
		} else if _, werr := f.l.Write(100, plain("x")); !errors.Is(werr, errors.Unwrap(again)) {
			f.t.Errorf("got %v after %v", werr, again)
		}
		return
	}
	f.t.Errorf("disk full again and again")
	f.dead = true
}

func plain(values ...string) []byte {
	var b record.Builder
	for _, v := range values {
		if err := b.Append(record.Record{Value: []byte(v)}); err != nil {
			panic(err)
		}
	}
	x, err := b.Build()
	if err != nil {
		panic(err)
	}
	return x.Bytes()
}

func sequenced(id int64, epoch int16, seq int32, values ...string) []byte {
	var b record.Builder
	b.SetProducer(id, epoch, seq)
	for _, v := range values {
		if err := b.Append(record.Record{Value: []byte(v)}); err != nil {
			panic(err)
		}
	}
	x, err := b.Build()
	if err != nil {
		panic(err)
	}
	return x.Bytes()
}

func (f *life) text() string {
	f.n++
	return fmt.Sprintf("value %d %0*d", f.n, f.n*7%300*f.scale, 0)
}

func (f *life) append(n int) {
	values := make([]string, n)
	for i := range values {
		values[i] = f.text()
	}
	if f.dead {
		return
	}
	epoch := max(f.l.LastEpoch(), 0)
	f.step(func(w *world) { w.add(epoch, values...); w.acked = w.written }, func() error {
		_, err := f.l.Append(context.Background(), plain(values...))
		return err
	})
}

// write writes without a sync, by the producer.
func (f *life) write(epoch log.Epoch, n int) {
	values := make([]string, n)
	for i := range values {
		values[i] = f.text()
	}
	f.step(func(w *world) {
		w.produced = append(w.produced, produced{w.written, w.written + log.Offset(n), w.sequence()})
		w.add(epoch, values...)
	}, func() error {
		_, err := f.l.Write(epoch, sequenced(7, 1, f.w.sequence(), values...))
		return err
	})
}

// txn writes a batch of a transaction without a sync.
func (f *life) txn(id int64, n int) {
	values := make([]string, n)
	for i := range values {
		values[i] = f.text()
	}
	b := txnBatch{base: f.w.written, end: f.w.written + log.Offset(n), id: id, kind: kindTxn}
	if s := f.w.txns.producers(b.base)[id]; s != nil {
		b.epoch = s.epoch
		if len(s.window) > 0 {
			b.first = s.window[len(s.window)-1].last() + 1
		}
	}
	f.txnStep(b, values, func(epoch log.Epoch) error {
		raw := sequenced(id, b.epoch, b.first, values...)
		raw[22] |= 1 << 4 // transactional
		binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
		_, err := f.l.Write(epoch, raw)
		return err
	})
}

// end writes a marker without a sync.
func (f *life) end(id int64, kind batchKind) {
	b := txnBatch{base: f.w.written, end: f.w.written + 1, id: id, kind: kind, coord: 3}
	if s := f.w.txns.producers(b.base)[id]; s != nil {
		b.epoch = s.epoch
	}
	f.txnStep(b, []string{"\x00\x00\x00\x00\x00\x03"}, func(epoch log.Epoch) error {
		_, err := f.l.WriteControl(epoch, b.bytes())
		return err
	})
}

func (f *life) txnStep(b txnBatch, values []string, call func(log.Epoch) error) {
	if f.dead {
		return
	}
	epoch := max(f.l.LastEpoch(), 0)
	f.step(func(w *world) {
		w.txns.batches = append(w.txns.batches, b)
		w.txns.end = b.end
		w.add(epoch, values...)
	}, func() error { return call(epoch) })
}

func (f *life) sync() {
	f.step(func(w *world) { w.acked = w.written }, func() error {
		_, err := f.l.Sync(context.Background())
		return err
	})
}

func (f *life) truncate(back log.Offset) {
	if f.dead {
		return
	}
	to := f.w.written - back
	// A truncation decides what of the unsynced records stays, so sync before.
	f.sync()
	f.step(func(w *world) { w.cut(to) }, func() error {
		_, err := f.l.TruncateTo(context.Background(), to)
		return err
	})
}

func (f *life) close() {
	if f.l == nil {
		return
	}
	f.recycled += f.l.Stats().Recycled
	if err := f.l.Close(); err == nil && !f.dead {
		f.w.acked = f.w.written
		if _, err := f.fs.Stat(f.dir + "/cordwood.clean"); err == nil { // a full disk may have no room for it
			f.w.stated = f.w.written
		}
	} else {
		f.dead = true
	}
	f.l = nil
}

func (f *life) check(after *logtest.FS) {
	t := f.t
	t.Helper()
	image := after.Fork(logtest.CrashKeepAll)
	f.verify(after)
	if *f.looks++; *f.looks%f.nested != 0 {
		return
	}
	// Recovery itself is interrupted at each of its changes.
	for at := int64(1); at < 40; at += 1 + at/6 {
		fs := image.Fork(logtest.CrashKeepAll)
		from := fs.Changes()
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind.Changes() && op.Changed-from >= at {
				fs.PowerOff()
			}
			return nil
		})
		l, err := log.Open(context.Background(), f.dir, f.options(fs))
		if err == nil {
			fs.PowerOff()
			l.Close() //nolint:errcheck // it is dead
			return
		}
		f.verify(fs.Crash(logtest.CrashLoseSome(uint64(at))))
		if t.Failed() {
			t.Logf("recovery interrupted at change %d", at)
			return
		}
	}
}

func (f *life) verify(after *logtest.FS) {
	t := f.t
	t.Helper()
	l, err := log.Open(context.Background(), f.dir, f.options(after))
	if err != nil {
		t.Errorf("open after crash: %v", err)
		return
	}
	defer l.Close() //nolint:errcheck // checked below where it matters
	if r := l.Recovery(); r.Lossy || r.End < r.DurableEnd {
		t.Errorf("recovery: %+v %v", r, r.Corruption)
		return
	}
	stated := f.w.stated
	if f.then != nil {
		stated = min(stated, f.then.stated)
	}
	if d := l.Recovery().DurableEnd; d < stated {
		t.Errorf("the disk states durable end %d, want at least %d: damage would pass for a torn tail", d, stated)
		return
	}
	w := f.w
	err = w.matches(l)
	if err != nil && f.then != nil {
		w = f.then
		if err2 := w.matches(l); err2 != nil {
			err = fmt.Errorf("%w; or if the last call was done: %w", err, err2)
		} else {
			err = nil
		}
	}
	if err != nil {
		t.Errorf("after crash: %v", err)
		return
	}
	end := l.End()
	kept := slices.DeleteFunc(slices.Clone(w.produced), func(p produced) bool { return p.end > end })
	for _, p := range kept[max(0, len(kept)-5):] {
		a, err := l.Write(100, sequenced(7, 1, p.first, make([]string, p.end-p.base)...))
		if err != nil || !a.Duplicate || a.Base != p.base || a.End != p.end {
			t.Errorf("retry of %+v: %+v, %v", p, a, err)
			return
		}
	}
	// It goes on: append, close, open.
	if a, err := l.Append(context.Background(), plain("afterwards")); err != nil || a.Base != end {
		t.Errorf("append after crash: %+v, %v", a, err)
		return
	}
	if err := l.Close(); err != nil {
		t.Errorf("close after crash: %v", err)
		return
	}
	l2, err := log.Open(context.Background(), f.dir, f.options(after))
	if err != nil {
		t.Errorf("open after close: %v", err)
		return
	}
	if r := l2.Recovery(); !r.Clean || r.End != end+1 {
		t.Errorf("recovery after close: %+v", r)
	}
	if err := l2.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func script(t testing.TB, fs *logtest.FS, scale int) *life {
	f := &life{t: t, fs: fs, w: newWorld(), scale: scale, dir: "/data/p"}
	f.script()
	return f
}

func (f *life) script() {
	ctx := context.Background()
	f.open()
	for i := range 6 {
		f.append(1 + i%3)
		f.write(0, 2)
		f.write(0, 1)
		if i%2 == 0 {
			f.sync()
		}
		if i%2 == 1 {
			f.txn(8, 1) // open over more than one segment
			f.txn(9, 2)
			f.end(9, kindAbort)
		}
	}
	f.end(8, kindAbort)
	f.truncate(1) // open again
	f.txn(9, 1)
	f.truncate(3)
	f.append(2)
	f.end(8, kindCommit)
	f.txn(8, 1)
	f.step(func(w *world) { w.acked = w.written }, func() error { return f.l.Roll(ctx) })
	for range 5 {
		f.append(3)
	}
	f.truncate(10)
	f.append(1)
	f.close()
	f.open()
	f.append(2)
	if !f.dead {
		f.step(func(w *world) { w.add(5, "epoch five") }, func() error {
			_, err := f.l.Write(5, plain("epoch five"))
			return err
		})
	}
	for i := range 16 {
		f.write(5, 1+i%2) // crosses slots without a sync that comes by itself
	}
	f.end(8, kindAbort)
	f.txn(9, 1)
	for range 4 {
		f.append(2)
	}
	f.end(9, kindAbort)
	f.txn(8, 1)
	if !f.dead {
		segs := f.l.Segments()
		local := segs[min(2, len(segs)-1)].Base
		f.step(func(w *world) { w.local = local }, func() error { return f.l.DropLocal(ctx, local+1) })
	}
	if !f.dead {
		start := f.w.local + 2
		f.sync()
		f.step(func(w *world) { w.start, w.local = start, start }, func() error { return f.l.TrimTo(ctx, start) })
	}
	f.append(1)
	if !f.dead {
		epochs := []log.EpochStart{{Epoch: 2, Start: 10}, {Epoch: 8, Start: 900}}
		f.step(func(w *world) {
			w.local, w.written, w.acked, w.stated = 1000, 1000, 1000, 0
			w.bounds = map[log.Offset]bool{1000: true}
			w.epochs = slices.Clone(epochs)
			w.produced, w.txns = nil, txnModel{end: 1000}
		}, func() error { return f.l.Reset(ctx, 1000, epochs, nil) })
	}
	for range 4 {
		f.append(2)
	}
	f.close()
}

func TestCrashEverywhere(t *testing.T) {
	t.Parallel()
	for _, scale := range []int{1, 10, 40} {
		t.Run(fmt.Sprintf("scale=%d", scale), func(t *testing.T) {
			looks := 0
			logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
				f := script(t, fs, scale)
				f.looks, f.nested = &looks, 5*scale+1
				f.close()
				return f.check
			})
		})
	}
}

func TestFaultEverywhere(t *testing.T) {
	t.Parallel()
	for _, scale := range []int{1, 40} {
		t.Run(fmt.Sprintf("scale=%d", scale), func(t *testing.T) {
			logtest.EachFault(t, func(fs *logtest.FS) func(*logtest.FS) {
				f := script(t, fs, scale)
				f.close()
				return f.verify
			})
		})
	}
}

// TestSlotsOutliveGrowth writes over the slots' old place without a sync of its
// own: what they stated must still be stated, whatever is lost.
func TestSlotsOutliveGrowth(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	for i := range 40 {
		mustAppend(t, l, big(fmt.Sprint(i), 1000))
	}
	for i := range 30 {
		mustWrite(t, l, big(fmt.Sprint(i), 20_000))
		for seed := range uint64(4) {
			mode := logtest.CrashLoseSome(seed + 10*uint64(i))
			if seed == 0 {
				mode = logtest.CrashKeepAll
			}
			after := open(t, fs.Fork(mode), log.Options{})
			if r := after.Recovery(); r.DurableEnd < 39 || r.End < 40 || r.Lossy {
				t.Fatalf("after write %d: got %+v", i, r)
			}
			mustClose(t, after)
		}
	}
	mustClose(t, l)
}

// TestStaleTail tears a batch with a whole one behind it, and puts one of the same
// size in its place after recovery: the one behind must not come back.
func TestStaleTail(t *testing.T) {
	torn := 0
	for seed := range uint64(150) {
		fs := logtest.NewFS(seed)
		l := open(t, fs, log.Options{})
		mustAppend(t, l, "acknowledged")
		mustWrite(t, l, big("one", 9000))
		mustWrite(t, l, big("two", 100))
		fs = fs.Crash(logtest.CrashLoseSome(seed))
		l = open(t, fs, log.Options{})
		if r := l.Recovery(); r.End != 1 || r.CutBytes < 9100 {
			mustClose(t, l)
			continue
		}
		torn++
		mustAppend(t, l, big("new", 9000))
		l = open(t, fs.Crash(logtest.CrashKeepAll), log.Options{})
		if got := values(t, l, 0); len(got) != 2 || got[1] != big("new", 9000) {
			t.Fatalf("seed %d: got %d records", seed, len(got))
		}
		mustClose(t, l)
	}
	if torn < 5 {
		t.Errorf("only %d of 150 crashes left a whole batch behind a torn one", torn)
	}
}

// TestFailedWriteLeavesNothing: a write that was done but reported as out of room
// is cut off, so that a part of it can't follow what is appended in its place.
func TestFailedWriteLeavesNothing(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, "acknowledged")
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpWrite && op.Len > 9000 {
			return logtest.DoneButFailed(syscall.ENOSPC)
		}
		return nil
	})
	if _, err := l.Write(0, append(plain(big("one", 9000)), plain("two")...)); !errors.Is(err, log.ErrDiskFull) {
		t.Fatalf("got %v", err)
	}
	fs.OnOp(nil)
	mustAppend(t, l, big("new", 9000))
	l = open(t, fs.Crash(logtest.CrashKeepAll), log.Options{})
	if got := values(t, l, 0); len(got) != 2 || got[1] != big("new", 9000) {
		t.Errorf("got %d records", len(got))
	}
	mustClose(t, l)
}

// TestFlippedEpochAtBorder: an epoch that is changed into that of the next batch
// breaks no order, only the sum over headers.
func TestFlippedEpochAtBorder(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	var at, hit int64
	for i := range 20 {
		b := plain(fmt.Sprint(i))
		if i == 9 {
			hit = at
		}
		at += int64(len(b))
		if _, err := l.Write(log.Epoch(i/10), b); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fs = fs.Crash()
	if err := fs.Corrupt("/data/p/00000000000000000000.log", hit+15, 1); err != nil {
		t.Fatal(err)
	}
	l = open(t, fs, log.Options{})
	if r := l.Recovery(); !r.Lossy || r.End != 20 {
		t.Errorf("got %+v", r)
	}
	mustClose(t, l)
}
