package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// Each test here is for one guard, by its name in testdata/mutations.txt or txn_mutations.txt.

// earlyProducer is a log whose producer 4 has written to the first segment alone, so that behind it only a state knows of him.
func earlyProducer(t *testing.T) (*logtest.FS, []log.Offset) {
	t.Helper()
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{SegmentBytes: 1 << 10, ProducerExpiry: -1})
	for i := range 9 {
		b := earlyBatch()
		if i > 0 {
			b = guardedBatch(i - 1)
		}
		if _, err := l.Write(0, b); err != nil {
			t.Fatal(err)
		}
	}
	var bases []log.Offset
	for _, s := range l.Segments() {
		bases = append(bases, s.Base)
	}
	mustClose(t, l)
	fs.SyncAll()
	return fs, bases
}

func earlyBatch() []byte { return sequenced(4, 0, 0, big("early", 300)) }

func wantEarly(t *testing.T, l *log.Log) {
	t.Helper()
	if a, err := l.Write(0, earlyBatch()); err != nil || !a.Duplicate || a.Base != 0 {
		t.Errorf("retry of the early batch: %+v, %v", a, err)
	}
}

func removeStates(t *testing.T, fs *logtest.FS) {
	t.Helper()
	for _, n := range fs.Names() {
		if e := path.Ext(n); e == ".state" || e == ".snapshot" {
			if err := fs.Remove(n); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// change: segments go without a state
func TestGuardStateBeforeFiles(t *testing.T) {
	fs, bases := earlyProducer(t)
	l := reopen(t, fs)
	removeStates(t, fs)
	if err := l.DropLocal(t.Context(), bases[2]); err != nil || l.LocalStart() != bases[2] {
		t.Fatal(err, l.LocalStart())
	}
	fs = fs.Crash(logtest.CrashKeepAll)
	mustCloseDead(l)
	l = reopen(t, fs)
	wantEarly(t, l)
	mustClose(t, l)
}

// recovery: segments go before the state behind them is synced
func TestGuardStateSyncedFirst(t *testing.T) {
	fs, bases := earlyProducer(t)
	l := reopen(t, fs)
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpRemove && path.Ext(op.Path) == ".index" {
			fs.PowerOff()
		}
		return nil
	})
	if err := l.DropLocal(t.Context(), bases[2]); err == nil {
		t.Fatal("nothing was removed")
	}
	fs = fs.Crash(logtest.CrashKeepAll)
	mustCloseDead(l)
	removeStates(t, fs)
	fs.SyncAll()
	// Open makes the states again, without a sync: batches are there to make them of. The process dies.
	l = reopen(t, fs)
	fs = fs.Kill()
	mustCloseDead(l)
	l = reopen(t, fs)
	if slices.Contains(fs.Names(), "/data/p/"+sideName(0, "log")) {
		t.Error("the first segment is still there")
	}
	fs = fs.Crash(logtest.CrashLoseAll)
	mustCloseDead(l)
	l = reopen(t, fs)
	if l.LocalStart() != bases[2] || l.Recovery().Lossy {
		t.Errorf("got %d, want %d, %+v", l.LocalStart(), bases[2], l.Recovery())
	}
	wantEarly(t, l)
	mustClose(t, l)
}

// read: reads begin inside of damage: where the disk can't be read, it is not asked again for what lies behind.
func TestGuardReadStepsOver(t *testing.T) {
	r := rotten(t, false)
	fs := r.image.Fork(logtest.CrashKeepAll)
	r.hit(t, fs, 41, 100, 1)
	l := open(t, fs, log.Options{SegmentBytes: 5000})
	if got := ranges(l.Recovery().Corruption); got != fmt.Sprintf("40:[41,42)@%d", r.size) {
		t.Fatalf("got %s", got)
	}
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpRead && op.Path == segName(40) && op.Offset < 2*r.size && op.Offset+int64(op.Len) > r.size {
			return errors.New("the damage is read")
		}
		return nil
	})
	for off := log.Offset(42); off < 45; off++ {
		s, err := l.Read(t.Context(), off, 1)
		if err != nil {
			t.Errorf("read %d: %v", off, err)
			continue
		}
		if got := value(t, s); !strings.HasPrefix(got, fmt.Sprintf("%05d", off)) {
			t.Errorf("read %d: got %.10q", off, got)
		}
		s.Release()
	}
	mustClose(t, l)
}

// read: nothing where files are missing
func TestGuardReadMissing(t *testing.T) {
	for _, clean := range []bool{true, false} {
		fs, bases := guardedLog(t, 9, clean)
		remove(t, fs, sideName(0, "log"))
		l := reopen(t, fs)
		for off := range bases[1] {
			s, err := l.Read(t.Context(), off, 1)
			if c, ok := errors.AsType[*log.CorruptionError](err); !ok || c.Offset != 0 || c.End != bases[1] {
				t.Errorf("clean %v: read %d: got %+v, %v", clean, off, s, err)
			}
		}
		mustClose(t, l)
	}
}

// index: the checksum is not compared: an index that is wrong is made again once. A read that it misleads finds its record, but by reading
// all of the segment, each time.
func TestGuardIndexRemade(t *testing.T) {
	fs := indexedLog(t)
	name := "/data/p/" + sideName(0, "index")
	if err := fs.Corrupt(name, 15, 0x01); err != nil { // the position of an entry
		t.Fatal(err)
	}
	l := open(t, fs, log.Options{SegmentBytes: 40 << 10})
	entries := readAll(t, fs, name)
	off := log.Offset(entries[11]) + 1 // behind the entry's batch
	read := func() (bytes int) {
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind == logtest.OpRead && op.Path == "/data/p/"+sideName(0, "log") {
				bytes += op.Len
			}
			return nil
		})
		defer fs.OnOp(nil)
		s, err := l.Read(t.Context(), off, 1)
		if err != nil || s.Base() != off {
			t.Fatalf("read %d: %v", off, err)
		}
		s.Release()
		return bytes
	}
	if first, second := read(), read(); first < 30<<10 || second > 20<<10 {
		t.Errorf("the first read takes %d bytes, the second %d", first, second)
	}
	mustClose(t, l)
}

// index: the time index's checksum is not compared
func TestGuardTimeIndexDamage(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{SegmentBytes: 40 << 10})
	at := func(i int) time.Time { return time.UnixMilli(1_000_000 + int64(i)<<8) }
	for i := range 60 {
		if _, err := l.AppendRecords(t.Context(), record.Record{Timestamp: at(i), Value: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, l)
	name := "/data/p/" + sideName(0, "timeindex")
	if n := len(readAll(t, fs, name)); n < 3*12 {
		t.Fatalf("got %d bytes", n)
	}
	for bit := range 12 {
		fs := fs.Fork(logtest.CrashKeepAll)
		if err := fs.Corrupt(name, 12+7-int64(bit/8), 1<<(bit%8)); err != nil { // the time of an entry
			t.Fatal(err)
		}
		l := open(t, fs, log.Options{SegmentBytes: 40 << 10})
		for i := range 60 {
			if off, ok, err := l.OffsetForTime(t.Context(), at(i)); err != nil || !ok || off != log.Offset(i) {
				t.Errorf("bit %d: record %d: got %d, %v, %v", bit, i, off, ok, err)
			}
		}
		mustClose(t, l)
	}
}

// within makes a record that holds batches of their own, between others that hold none, and damages it: in its header, or between that
// and what it holds.
func within(t *testing.T, header bool, inner ...[]byte) *log.Log {
	t.Helper()
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	outer := plain(string(slices.Concat([]byte("outer "), slices.Concat(inner...))))
	var at int64
	for i, b := range [][]byte{plain("first"), outer, plain("behind"), plain("last")} {
		if i == 1 {
			at = fileEnd(t, l)
		}
		if _, err := l.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	mustAppend(t, l, "acknowledged")
	after := fs.Crash()
	mustCloseDead(l)
	name := "/data/p/" + sideName(0, "log")
	i := bytes.Index(readAll(t, after, name), []byte("outer "))
	if i < int(at) {
		t.Fatalf("the record is at %d", i)
	}
	if header {
		i = int(at) + 16
	}
	if err := after.Corrupt(name, int64(i), 1); err != nil {
		t.Fatal(err)
	}
	return open(t, after, log.Options{})
}

func fileEnd(t *testing.T, l *log.Log) int64 {
	t.Helper()
	segs := l.Segments()
	return segs[len(segs)-1].Bytes
}

// wantOnlyOuter says what is wrong of a log of within.
func wantOnlyOuter(t *testing.T, l *log.Log) {
	t.Helper()
	r := l.Recovery()
	if len(r.Corruption) != 1 || r.Corruption[0].Offset != 1 || r.Corruption[0].End != 2 || r.End != 5 {
		t.Errorf("got %+v: %v", r, r.Corruption)
	}
	for off, want := range map[log.Offset]string{0: "first", 2: "behind", 3: "last", 4: "acknowledged"} {
		s, err := l.Read(t.Context(), off, 1)
		if err != nil {
			t.Errorf("read %d: %v", off, err)
			continue
		}
		if got := value(t, s); got != want {
			t.Errorf("read %d: got %q, want %q", off, got, want)
		}
		s.Release()
	}
	if s, err := l.Read(t.Context(), 1, 1); err == nil {
		t.Errorf("read of the damage: got %q", value(t, s))
	}
}

func placed(off log.Offset, value string) []byte {
	b, _, err := record.Next(plain(value), 1<<20)
	if err != nil {
		panic(err)
	}
	b.SetBaseOffset(off)
	b.SetLeaderEpoch(0)
	return b.Bytes()
}

// resync: what looks like a batch is one
func TestGuardResyncOne(t *testing.T) {
	for off := range log.Offset(4) {
		l := within(t, true, placed(off, "inner"))
		wantOnlyOuter(t, l)
		mustClose(t, l)
	}
}

// resync: offsets below are taken
func TestGuardResyncBelow(t *testing.T) {
	for _, first := range []log.Offset{0, 100} {
		l := within(t, true, placed(first, "inner"), placed(first+1, "inner"), placed(first+2, "inner"))
		wantOnlyOuter(t, l)
		mustClose(t, l)
	}
}

// A record may hold batches that would follow what lies before the damage, and be believed if they were found first. But the header of the
// damaged batch is whole, and says where the next one stands.
func TestResyncByHeader(t *testing.T) {
	for n := range log.Offset(5) {
		t.Run(fmt.Sprint(1+n), func(t *testing.T) {
			var inner [][]byte
			for i := range 1 + n {
				inner = append(inner, placed(1+i, "inner"))
			}
			l := within(t, false, inner...)
			wantOnlyOuter(t, l)
			if v := verify(t, l); len(v.Damage) != 1 || v.Damage[0].Offset != 1 || v.Damage[0].End != 2 {
				t.Errorf("verify: got %s", ranges(v.Damage))
			}
			mustClose(t, l)
		})
	}
}

// As above, when nothing follows the damage: there is nothing to be found in the record either.
func TestResyncBehindHeader(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, "first")
	mustAppend(t, l, "outer "+string(slices.Concat(placed(1, "inner"), placed(2, "inner"), placed(3, "inner"))))
	mustAppend(t, l, "taken back")
	if _, err := l.TruncateTo(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	fs = fs.Crash()
	mustCloseDead(l)
	name := "/data/p/" + sideName(0, "log")
	if err := fs.Corrupt(name, int64(bytes.Index(readAll(t, fs, name), []byte("outer "))), 1); err != nil {
		t.Fatal(err)
	}
	l = open(t, fs, log.Options{})
	if r := l.Recovery(); len(r.Corruption) != 1 || r.Corruption[0].Offset != 1 || r.Corruption[0].End != 2 || r.End != 2 {
		t.Errorf("got %+v: %v", r, r.Corruption)
	}
	if s, err := l.Read(t.Context(), 1, 1); err == nil {
		t.Errorf("read of the damage: got %q", value(t, s))
	}
	mustClose(t, l)
}

// repair: epochs above the next segment's are taken
func TestGuardRepairEpochs(t *testing.T) {
	r := rotten(t, false)
	fs := r.image.Fork(logtest.CrashKeepAll)
	r.hit(t, fs, 19, 100, 1) // the last record of its segment
	// Nothing but the batches says which epochs there were.
	for _, n := range fs.Names() {
		if e := path.Ext(n); e == ".seal" || e == ".state" {
			if err := fs.Remove(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := open(t, fs, log.Options{SegmentBytes: 5000})
	if got := ranges(l.Recovery().Corruption); got != fmt.Sprintf("10:[19,20)@%d", 9*r.size) {
		t.Fatalf("got %s", got)
	}
	repair := func(epoch log.Epoch) error {
		_, err := l.Repair(t.Context(), 0, 45, func(ctx context.Context, lo, hi log.Offset, n int) ([]byte, error) {
			b, err := from(r.replica)(ctx, lo, hi, n)
			if err != nil {
				return nil, err
			}
			x, _, err := record.Next(bytes.Clone(b), 1<<20)
			if err != nil {
				return nil, err
			}
			x.SetLeaderEpoch(epoch)
			return x.Bytes(), nil
		})
		return err
	}
	if err := repair(3); !errors.Is(err, log.ErrRepairSource) { // the next record, 20, is of epoch 2
		t.Errorf("got %v", err)
	}
	if err := repair(2); err != nil {
		t.Errorf("got %v", err)
	}
	r.whole(t, fs, l)
	mustClose(t, l)
}

// repair: the clean marker stays: it has the size of the file that was there before.
func TestGuardRepairUnmarks(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{SegmentBytes: 5000})
	var at int64
	for i := range 30 {
		if i == 3 {
			at = fileEnd(t, l)
		}
		mustAppend(t, l, fmt.Sprintf("%05d a", i)+strings.Repeat("0", 400), fmt.Sprintf("%05d b", i)+strings.Repeat("0", 400))
	}
	rest(l)
	want := values(t, l, 0)
	mustClose(t, l)
	fs.SyncAll()
	if err := fs.Corrupt(segName(0), at+100, 1); err != nil {
		t.Fatal(err)
	}
	remove(t, fs, sideName(0, "seal")) // which would refuse another size
	l = open(t, fs, log.Options{SegmentBytes: 5000})
	if !l.Recovery().Clean {
		t.Fatalf("got %+v", l.Recovery())
	}
	// The source has the two records in a batch each.
	got, err := l.Repair(t.Context(), 0, 60, func(_ context.Context, lo, hi log.Offset, _ int) ([]byte, error) {
		var out []byte
		for off := lo; off < hi; off++ {
			out = append(out, placed(off, want[off])...)
		}
		return out, nil
	})
	if err != nil || got.Batches != 2 || len(got.Damage) != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	fs = fs.Crash(logtest.CrashLoseAll)
	mustCloseDead(l)
	l = open(t, fs, log.Options{SegmentBytes: 5000})
	if got := values(t, l, 0); !slices.Equal(got, want) || l.Recovery().Lossy {
		t.Errorf("got %d records, want %d, %+v", len(got), len(want), l.Recovery())
	}
	wantReadable(t, l)
	mustClose(t, l)
}

// repair: the repaired active segment states no durable end
func TestGuardRepairStates(t *testing.T) {
	r := rotten(t, false)
	fs := r.image.Fork(logtest.CrashKeepAll)
	r.hit(t, fs, 41, 100, 1)
	l := open(t, fs, log.Options{SegmentBytes: 5000})
	if got, err := l.Repair(t.Context(), 0, 45, from(r.replica)); err != nil || len(got.Damage) != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	fs = fs.Crash(logtest.CrashLoseAll)
	mustCloseDead(l)
	r.hit(t, fs, 44, 100, 1) // the last record, which was durable: no torn tail
	l = open(t, fs, log.Options{SegmentBytes: 5000})
	if rec := l.Recovery(); !rec.Lossy || rec.DurableEnd != 45 || rec.CutBytes != 0 {
		t.Errorf("got %+v", rec)
	}
	mustClose(t, l)
}

// end of duplicates is that of the last one: the retry of two producers' batches comes in another order.
func TestTxnGuardDuplicates(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	one, two := sequenced(1, 0, 0, "one"), sequenced(2, 0, 0, "two", "three")
	for _, b := range [][]byte{one, two} {
		if _, err := l.Append(t.Context(), bytes.Clone(b)); err != nil {
			t.Fatal(err)
		}
	}
	for _, order := range [][]byte{slices.Concat(one, two), slices.Concat(two, one)} {
		if a, err := l.Write(0, order); err != nil || !a.Duplicate || a.End != 3 {
			t.Errorf("got %+v, %v", a, err)
		}
	}
	mustClose(t, l)
}

// what was truncated still counts as ended
func TestTxnGuardTruncatedEnd(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, "0", "1", "2")
	begin := txnBatch{base: 3, end: 5, id: 1, kind: kindTxn}
	if _, err := l.Append(t.Context(), begin.bytes().Bytes()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.WriteControl(0, txnBatch{base: 5, end: 6, id: 1, kind: kindCommit}.bytes()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.TruncateTo(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		mustAppend(t, l, fmt.Sprint(i))
	}
	for high := log.Offset(3); high <= 8; high++ {
		if got, err := l.LastStableBelow(t.Context(), high); err != nil || got != high {
			t.Errorf("below %d: got %d, %v", high, got, err)
		}
	}
	mustClose(t, l)
}

// truncation leaves the transaction index
func TestTxnGuardTruncatedIndex(t *testing.T) {
	image, _ := txnLog(t, true)
	var bases []log.Offset
	for _, n := range image.Names() {
		if path.Ext(n) == ".txnindex" {
			var base log.Offset
			if _, err := fmt.Sscanf(path.Base(n), "%d", &base); err != nil {
				t.Fatal(err)
			}
			bases = append(bases, base)
		}
	}
	if len(bases) < 2 {
		t.Fatalf("got %v", bases)
	}
	for _, base := range bases {
		fs := image.Fork(logtest.CrashKeepAll)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		if end, err := l.TruncateTo(t.Context(), base+1); err != nil || end != base+1 {
			t.Fatal(end, err)
		}
		if slices.Contains(fs.Names(), "/data/p/"+sideName(base, "txnindex")) {
			t.Errorf("%d: it speaks of transactions that are gone", base)
		}
		mustClose(t, l)
	}
}
