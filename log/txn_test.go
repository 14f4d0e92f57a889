package log_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// txnLog makes a log of several segments with transactions that end far from where
// they began, and returns the disk and what must be known of it.
func txnLog(t *testing.T, closed bool) (*logtest.FS, *txnModel) {
	t.Helper()
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
	m := &txnModel{}
	write := func(id int64, kind batchKind) {
		t.Helper()
		b := txnBatch{base: m.end, end: m.end + 1, id: id, kind: kind}
		if s := m.producers(m.end)[id]; s != nil && len(s.window) > 0 {
			b.first = s.window[len(s.window)-1].last() + 1
		}
		var err error
		if kind == kindTxn {
			_, err = l.Append(t.Context(), b.bytes().Bytes())
		} else {
			_, err = l.WriteControl(0, b.bytes())
		}
		if err != nil {
			t.Fatal(err)
		}
		m.batches = append(m.batches, b)
		m.end = b.end
	}
	for i := range 12 {
		write(1, kindTxn)
		write(2, kindTxn)
		write(2, kindAbort)
		if i%4 == 3 {
			write(1, kindAbort)
		}
		write(3, kindTxn)
		write(3, kindCommit)
	}
	write(1, kindTxn)
	if _, err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(l.Segments()); n < 4 {
		t.Fatalf("got %d segments", n)
	}
	rest(l)
	if closed {
		mustClose(t, l)
	}
	return fs.Crash(logtest.CrashKeepAll), m
}

func checkTxns(l *log.Log, m *txnModel) error {
	ctx := context.Background()
	if l.End() != m.end || l.LastStable() != m.lastStable(m.end) {
		return fmt.Errorf("got end %d, last stable offset %d, want %d, %d", l.End(), l.LastStable(), m.end, m.lastStable(m.end))
	}
	for from := log.Offset(0); from < m.end; from += 7 {
		for _, to := range []log.Offset{from + 1, from + 9, m.end} {
			if got, err := l.AbortedTransactions(ctx, from, to); err != nil || !slices.Equal(got, m.aborted(from, to)) {
				return fmt.Errorf("got aborted %v, %v in [%d, %d), want %v", got, err, from, to, m.aborted(from, to))
			}
		}
		if got, err := l.LastStableBelow(ctx, from); err != nil || got != m.lastStable(from) {
			return fmt.Errorf("got last stable offset %d, %v below %d, want %d", got, err, from, m.lastStable(from))
		}
	}
	return nil
}

// TestFlippedTxnFiles: whatever bit of Kafka's files, seals or the marker is wrong,
// whichever is cut or gone, what they say is right: they are checked or found again.
func TestFlippedTxnFiles(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{true, false} {
		t.Run(fmt.Sprintf("closed=%v", closed), func(t *testing.T) {
			image, m := txnLog(t, closed)
			check := func(what string, change func(fs *logtest.FS) error) {
				t.Helper()
				fs := image.Fork(logtest.CrashKeepAll)
				if err := change(fs); err != nil {
					t.Fatal(err)
				}
				l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
				if err := checkTxns(l, m); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				mustClose(t, l)
				// And what was written again on the way is no worse.
				l = open(t, fs, log.Options{SegmentBytes: 1 << 10})
				if err := checkTxns(l, m); err != nil {
					t.Errorf("%s, once more: %v", what, err)
				}
				mustClose(t, l)
			}
			check("nothing", func(*logtest.FS) error { return nil })
			files := 0
			for _, name := range image.Names() {
				ext := path.Ext(name)
				if !slices.Contains([]string{".txnindex", ".snapshot", ".seal", ".clean", ".state"}, ext) {
					continue
				}
				if ext == ".txnindex" {
					files++
				}
				size := sizes(image)[name]
				step := int64(1)
				switch ext {
				case ".snapshot":
					step = 5
				case ".seal", ".state", ".clean": // they have tests of their own
					step = 97
				}
				if testing.Short() {
					step *= 11
				}
				for at := int64(0); at < size; at += step {
					check(fmt.Sprintf("%s byte %d flipped", path.Base(name), at), func(fs *logtest.FS) error { return fs.Corrupt(name, at, 1<<(at%8)) })
				}
				if ext == ".state" && strings.HasSuffix(name, "/00000000000000000000.state") {
					continue
				}
				check(path.Base(name)+" gone", func(fs *logtest.FS) error { return fs.Remove(name) })
				for _, keep := range []int64{0, size / 2, size - 1} {
					check(fmt.Sprintf("%s cut to %d", path.Base(name), keep), func(fs *logtest.FS) error { return cutFile(fs, name, keep) })
				}
			}
			if files < 3 {
				t.Errorf("only %d transaction indexes", files)
			}
		})
	}
}

func cutFile(fs log.FS, name string, size int64) error {
	f, err := fs.Open(name, true)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// TestStaleTxnIndex: an index of other batches, as a restored backup may hold, is
// not believed.
func TestStaleTxnIndex(t *testing.T) {
	image, m := txnLog(t, true)
	other := image.Fork(logtest.CrashKeepAll)
	var names []string
	for _, n := range image.Names() {
		if strings.HasSuffix(n, ".txnindex") {
			names = append(names, n)
		}
	}
	for i, n := range names {
		b := readAll(t, image, names[(i+1)%len(names)])
		if err := other.Remove(n); err != nil {
			t.Fatal(err)
		}
		f, err := other.Create(n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, other, log.Options{SegmentBytes: 1 << 10})
	if err := checkTxns(l, m); err != nil {
		t.Error(err)
	}
	mustClose(t, l)
}

// TestManyEndedTransactions asks for last stable offsets far below the end, beyond
// what is in memory.
func TestManyEndedTransactions(t *testing.T) {
	ctx := t.Context()
	l := open(t, logtest.NewFS(1), log.Options{SegmentBytes: 64 << 10})
	defer mustClose(t, l)
	for i := range 3000 {
		if i%700 == 0 { // one that stays open over many others
			long := l.End()
			if _, err := l.Write(0, (txnBatch{base: long, end: long + 1, id: 2, first: int32(i / 700), kind: kindTxn}).bytes().Bytes()); err != nil {
				t.Fatal(err)
			}
		}
		first := l.End()
		if _, err := l.Write(0, (txnBatch{base: first, end: first + 1, id: 1, first: int32(i), kind: kindTxn}).bytes().Bytes()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.WriteControl(0, record.EndTxn(i%2 == 0, 1, 0, 0, time.UnixMilli(1))); err != nil {
			t.Fatal(err)
		}
		if i%700 == 650 {
			if _, err := l.WriteControl(0, record.EndTxn(false, 2, 0, 0, time.UnixMilli(1))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, high := range []log.Offset{0, 1, 2, 3, 100, 1300, 1400, 2000, 3001, 4000, 5000, 5900, 5990, l.End() - 1, l.End(), l.End() + 5} {
		want := lastStableByScan(t, l, min(high, l.End()))
		for range 2 { // the second answer may be remembered
			if got, err := l.LastStableBelow(ctx, high); err != nil || got != want {
				t.Errorf("below %d: got %d, %v, want %d", high, got, err, want)
			}
		}
	}
	if err := l.TrimTo(ctx, 4000); err != nil {
		t.Fatal(err)
	}
	if _, err := l.LastStableBelow(ctx, 3000); !errors.Is(err, log.ErrOffsetOutOfRange) {
		t.Errorf("below the start: %v", err)
	}
	if _, err := l.AbortedTransactions(ctx, 3000, 5000); !errors.Is(err, log.ErrOffsetOutOfRange) {
		t.Errorf("below the start: %v", err)
	}
	if got, err := l.AbortedTransactions(ctx, 4500, 4500); err != nil || got != nil {
		t.Errorf("empty range: %v, %v", got, err)
	}
	if _, err := l.AbortedTransactions(ctx, l.End()+1, l.End()+2); !errors.Is(err, log.ErrOffsetOutOfRange) {
		t.Errorf("above the end: %v", err)
	}
}

// lastStableByScan reads all batches below an offset.
func lastStableByScan(t *testing.T, l *log.Log, below log.Offset) log.Offset {
	t.Helper()
	open := map[int64]log.Offset{}
	for at := log.Offset(0); at < below; {
		s, err := l.ReadBelow(t.Context(), at, below, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if s.Len() == 0 {
			break
		}
		for b, err := range s.Batches() {
			if err != nil {
				t.Fatal(err)
			}
			if b.IsControl() {
				delete(open, b.ProducerID())
			} else if _, ok := open[b.ProducerID()]; !ok && b.IsTransactional() {
				open[b.ProducerID()] = b.BaseOffset()
			}
			at = b.NextOffset()
		}
		s.Release()
	}
	low := below
	for _, o := range open {
		low = min(low, o)
	}
	return low
}

// TestAdmitUnknownProducers: with Kafka's rule a producer without state goes on from
// any sequence number; one with state does not.
func TestAdmitUnknownProducers(t *testing.T) {
	fs := logtest.NewFS(1)
	o := log.Options{AdmitUnknownProducers: true}
	l := open(t, fs, o)
	if a, err := l.Append(t.Context(), sequenced(4, 3, 17, "a", "b")); err != nil || a.Base != 0 {
		t.Fatalf("got %+v, %v", a, err)
	}
	l = open(t, fs.Crash(), o)
	for _, s := range []struct {
		epoch int16
		first int32
		dup   bool
		err   error
	}{
		{3, 17, true, nil}, {3, 20, false, log.ErrOutOfOrderSequence}, {2, 19, false, log.ErrProducerFenced},
		{4, 19, false, log.ErrOutOfOrderSequence}, {3, 19, false, nil}, {4, 0, false, nil},
	} {
		a, err := l.Append(t.Context(), sequenced(4, s.epoch, s.first, "c", "d"))
		if !errors.Is(err, s.err) || err == nil && a.Duplicate != s.dup {
			t.Errorf("epoch %d, sequence %d: got %+v, %v", s.epoch, s.first, a, err)
		}
	}
	mustClose(t, l)
}

// TestControlBatchOfProducer: what is no end of a transaction has no producer.
func TestControlBatchOfProducer(t *testing.T) {
	l := open(t, logtest.NewFS(1), log.Options{})
	b := record.EndTxn(true, 4, 0, 1, time.UnixMilli(1))
	raw := b.Clone().Bytes()
	raw[record.HeaderBytes+8] = 9 // the type in the key
	changed, _, err := record.Next(raw, 0)
	if err != nil {
		t.Fatal(err)
	}
	changed.SetProducer(4, 0, -1) // for the checksum
	if kind, err := changed.ControlType(); err != nil || kind == record.ControlCommit {
		t.Fatalf("type %v, %v", kind, err)
	}
	if _, err := l.WriteControl(0, changed); !errors.Is(err, log.ErrInvalidBatch) {
		t.Errorf("got %v", err)
	}
	if _, err := l.WriteControl(0, b); err != nil {
		t.Error(err)
	}
	mustClose(t, l)
}

func caseWindow(t *testing.T) {
	leader, follower := open(t, logtest.NewFS(1), log.Options{}), open(t, logtest.NewFS(2), log.Options{})
	defer mustClose(t, leader)
	defer mustClose(t, follower)
	for i := range int32(7) {
		if _, err := leader.Append(t.Context(), sequenced(4, 0, i, "x")); err != nil {
			t.Fatal(err)
		}
	}
	s, err := leader.Read(t.Context(), 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := follower.AppendReplicated(s.Bytes()); err != nil {
		t.Fatal(err)
	}
	s.Release()
	for i := range int32(7) {
		a, err := follower.Write(1, sequenced(4, 0, i, "x"))
		if i < 2 {
			if !errors.Is(err, log.ErrDuplicateUnknownOffset) {
				t.Errorf("sequence %d: %+v, %v", i, a, err)
			}
		} else if err != nil || !a.Duplicate || a.Base != log.Offset(i) {
			t.Errorf("sequence %d: %+v, %v", i, a, err)
		}
	}
}

func caseIdleProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{})
		write := func(b []byte, want error) {
			t.Helper()
			if _, err := l.Append(t.Context(), b); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
		write(sequenced(4, 0, 0, "a"), nil)
		write((txnBatch{end: 1, id: 5, kind: kindTxn}).bytes().Bytes(), nil)
		time.Sleep(10 * time.Minute)
		write(sequenced(4, 0, 1, "b"), nil)
		time.Sleep(log.DefaultProducerExpiry - time.Second)
		write(sequenced(4, 0, 2, "c"), nil)
		for range 2 {
			time.Sleep(log.DefaultProducerExpiry)
			write(sequenced(4, 0, 3, "d"), log.ErrUnknownProducer)
			if l.LastStable() != 1 {
				t.Errorf("last stable offset %d", l.LastStable())
			}
			if err := l.Roll(t.Context()); err != nil { // where states are written and expire
				t.Fatal(err)
			}
			mustClose(t, l)
			l = open(t, fs, log.Options{})
		}
		write((txnBatch{base: 1, end: 2, id: 5, first: 1, kind: kindTxn}).bytes().Bytes(), nil)
		mustClose(t, l)
	})
}

func caseResetForgets(t *testing.T) {
	l := open(t, logtest.NewFS(1), log.Options{})
	defer mustClose(t, l)
	for i := range int32(3) {
		if _, err := l.Append(t.Context(), (txnBatch{end: 1, id: 5, epoch: 7, first: i, kind: kindTxn}).bytes().Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Reset(t.Context(), 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	if l.LastStable() != 0 || l.Stats().Producers != 0 {
		t.Errorf("last stable offset %d, %d producers", l.LastStable(), l.Stats().Producers)
	}
	if a, err := l.Append(t.Context(), sequenced(5, 0, 0, "a")); err != nil || a.Base != 0 {
		t.Errorf("got %+v, %v", a, err)
	}
	if l.LastStable() != 1 {
		t.Errorf("last stable offset %d", l.LastStable())
	}
}

func caseCleanRestart(t *testing.T) {
	fs := logtest.NewFS(1)
	for i := range int32(12) {
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		if i > 0 {
			if a, err := l.Append(t.Context(), sequenced(4, 0, i-1, big("x", 300))); err != nil || !a.Duplicate || a.Base != log.Offset(i-1) {
				t.Errorf("last batch of the life before: %+v, %v", a, err)
			}
		}
		if a, err := l.Append(t.Context(), sequenced(4, 0, i, big("x", 300))); err != nil || a.Base != log.Offset(i) {
			t.Errorf("next batch: %+v, %v", a, err)
		}
		mustClose(t, l)
	}
}

func caseAbortedOrder(t *testing.T) {
	l := open(t, logtest.NewFS(1), log.Options{})
	defer mustClose(t, l)
	for id := range int64(4) {
		if _, err := l.Append(t.Context(), (txnBatch{base: 0, end: 1, id: id, kind: kindTxn}).bytes().Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []int64{2, 0, 3, 1} {
		if _, err := l.WriteControl(0, record.EndTxn(false, id, 0, 1, time.UnixMilli(1))); err != nil {
			t.Fatal(err)
		}
	}
	got, err := l.AbortedTransactions(t.Context(), 0, l.End())
	if err != nil || len(got) != 4 || !slices.IsSortedFunc(got, func(a, b log.AbortedTxn) int { return int(a.First - b.First) }) {
		t.Errorf("got %v, %v", got, err)
	}
}
