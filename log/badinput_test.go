package log_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

func TestBadInput(t *testing.T) {
	ctx := t.Context()
	t.Run("bad-crc-batch", func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{})
		good := plain("good")
		for at := 16; at < len(good); at++ {
			bad := append([]byte(nil), good...)
			bad[at] ^= 0x10
			if _, err := l.Append(ctx, bad); !errors.Is(err, log.ErrInvalidBatch) && !errors.Is(err, log.ErrTooLarge) {
				t.Fatalf("byte %d: got %v", at, err)
			}
			if _, err := l.AppendReplicated(bad); !errors.Is(err, log.ErrInvalidBatch) && !errors.Is(err, log.ErrTooLarge) {
				t.Fatalf("byte %d, replicated: got %v", at, err)
			}
		}
		for n := range len(good) {
			if _, err := l.Write(0, good[:n]); !errors.Is(err, log.ErrInvalidBatch) {
				t.Fatalf("%d bytes: got %v", n, err)
			}
		}
		// One bad batch of several: none goes in.
		if _, err := l.Write(0, append(append([]byte(nil), good...), good[:len(good)-1]...)); !errors.Is(err, log.ErrInvalidBatch) {
			t.Errorf("got %v", err)
		}
		if l.End() != 0 {
			t.Errorf("got end %d", l.End())
		}
		mustClose(t, l)
	})
	t.Run("directory-in-use", func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{})
		if _, err := log.Open(ctx, "/data/p", log.Options{FS: fs}); !errors.Is(err, log.ErrLocked) {
			t.Errorf("got %v", err)
		}
		mustClose(t, l)
		mustClose(t, open(t, fs, log.Options{}))
		dir := t.TempDir()
		real, err := log.Open(ctx, dir, log.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Open(ctx, dir, log.Options{}); !errors.Is(err, log.ErrLocked) {
			t.Errorf("got %v", err)
		}
		mustClose(t, real)
	})
	t.Run("directory-of-newer-version", func(t *testing.T) {
		for _, name := range []string{"cordwood.meta", "cordwood.clean", "00000000000000000001.state"} {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{})
			mustAppend(t, l, "x")
			mustClose(t, l)
			newer(t, fs, "/data/p/"+name)
			before := fmt.Sprint(sizes(fs))
			_, err := log.Open(ctx, "/data/p", log.Options{FS: fs})
			v, ok := errors.AsType[*log.VersionError](err)
			if !ok || v.Version != v.Supported+1 || !strings.HasSuffix(v.Path, name) {
				t.Errorf("%s: got %v", name, err)
			}
			if fmt.Sprint(sizes(fs)) != before {
				t.Errorf("%s: the directory was changed", name)
			}
		}
	})
	t.Run("damaged-meta", func(t *testing.T) {
		fs := logtest.NewFS(1)
		mustClose(t, open(t, fs, log.Options{}))
		if err := errors.Join(fs.Corrupt("/data/p/cordwood.meta", 30, 1), fs.Corrupt("/data/p/cordwood.meta", 4096+30, 1)); err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(sizes(fs))
		if c, ok := errors.AsType[*log.CorruptionError](openError(fs)); !ok || c.Path != "/data/p/cordwood.meta" {
			t.Errorf("got %v", c)
		}
		if fmt.Sprint(sizes(fs)) != before {
			t.Error("the directory was changed")
		}
	})
	t.Run("another-partition", func(t *testing.T) {
		fs := logtest.NewFS(1)
		one, two := log.PartitionID{Topic: log.TopicID{1}, Index: 1}, log.PartitionID{Topic: log.TopicID{1}, Index: 2}
		mustClose(t, open(t, fs, log.Options{Partition: one}))
		if _, err := log.Open(ctx, "/data/p", log.Options{FS: fs, Partition: two}); !errors.Is(err, log.ErrWrongPartition) {
			t.Errorf("got %v", err)
		}
		l := open(t, fs, log.Options{})
		if l.Partition() != one {
			t.Errorf("got %v", l.Partition())
		}
		mustClose(t, l)
	})
	t.Run("disk-full", func(t *testing.T) { cases["log-peers-19"](t) })
	t.Run("too-large", func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{MaxBatchBytes: 1000})
		if _, err := l.Append(ctx, plain(big("x", 1000))); !errors.Is(err, log.ErrTooLarge) {
			t.Errorf("got %v", err)
		}
		mustAppend(t, l, big("x", 900))
		mustClose(t, l)
	})
	t.Run("control-batch", func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{})
		change := record.LeaderChange(3, 1, []int32{1, 2}, time.Now())
		if _, err := l.Append(ctx, change.Bytes()); !errors.Is(err, log.ErrControlBatch) {
			t.Errorf("got %v", err)
		}
		if a, err := l.WriteControl(3, change); err != nil || a.Base != 0 || a.End != 1 || l.LastEpoch() != 3 {
			t.Errorf("got %+v, %v", a, err)
		}
		x, _, err := record.Next(plain("x"), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.WriteControl(3, x); !errors.Is(err, log.ErrInvalidBatch) {
			t.Errorf("got %v", err)
		}
		mustAppend(t, l, "data")
		if _, err := l.Sync(ctx); err != nil {
			t.Fatal(err)
		}
		n := 0
		for r, err := range l.Records(ctx, 0) {
			if err != nil || r.Offset != 1 {
				t.Errorf("got %+v, %v", r, err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("got %d records", n)
		}
		mustClose(t, l)
	})
	t.Run("replicated", func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{})
		make := func(base log.Offset, epoch log.Epoch) []byte {
			b, _, err := record.Next(plain("x"), 1000)
			if err != nil {
				t.Fatal(err)
			}
			b.SetBaseOffset(base)
			b.SetLeaderEpoch(epoch)
			return b.Bytes()
		}
		if _, err := l.AppendReplicated(append(make(0, 3), make(1, 3)...)); err != nil {
			t.Fatal(err)
		}
		for _, bad := range [][]byte{make(1, 3), make(3, 3), make(2, 2), append(make(2, 4), make(4, 4)...), append(make(2, 5), make(3, 4)...), make(2, -1)} {
			if _, err := l.AppendReplicated(bad); !errors.Is(err, log.ErrNotContiguous) {
				t.Errorf("got %v", err)
			}
		}
		if l.End() != 2 {
			t.Errorf("got end %d", l.End())
		}
		mustClose(t, l)
	})
	t.Run("reset", func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{})
		snapshot, err := l.ProducerSnapshot(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{
			"epochs":         l.Reset(ctx, 5, []log.EpochStart{{Epoch: 2, Start: 0}, {Epoch: 1, Start: 3}}, nil),
			"epochs above":   l.Reset(ctx, 5, []log.EpochStart{{Epoch: 2, Start: 6}}, nil),
			"snapshot at 0":  l.Reset(ctx, 5, nil, snapshot),
			"snapshot short": l.Reset(ctx, 0, nil, snapshot[:20]),
			"snapshot empty": l.Reset(ctx, 0, nil, []byte{}),
		} {
			if !errors.Is(err, log.ErrInvalidBatch) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if err := l.Reset(ctx, -1, nil, nil); !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("got %v", err)
		}
		mustClose(t, l)
	})
	t.Run("options", func(t *testing.T) {
		_, err := log.Open(ctx, "/data/p", log.Options{FS: logtest.NewFS(1), SegmentBytes: 5, MaxBatchBytes: 3, SegmentAge: -1, Epoch: -1})
		for _, want := range []string{"SegmentBytes", "MaxBatchBytes", "SegmentAge", "Epoch"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not speak of %s", err, want)
			}
		}
		// A limit that no reader would believe is refused before anything is done.
		if _, err := log.Open(ctx, "/data/p", log.Options{FS: logtest.NewFS(1), MaxBatchBytes: log.MaxBatchBytes + 1}); err == nil || !strings.Contains(err.Error(), "log: options: MaxBatchBytes 268435457 is not in [61, 268435456]") {
			t.Errorf("got %v", err)
		}
		l, err := log.Open(ctx, "/data/p", log.Options{FS: logtest.NewFS(1), MaxBatchBytes: log.MaxBatchBytes})
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
	})
	t.Run("no-directory", func(t *testing.T) {
		file := t.TempDir() + "/file"
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"", file, file + "/below"} {
			if _, err := log.Open(ctx, dir, log.Options{}); err == nil || !strings.HasPrefix(err.Error(), "log: ") || strings.Count(err.Error(), "log: ") != 1 {
				t.Errorf("%q: got %v", dir, err)
			}
		}
	})
}

func openError(fs log.FS) error {
	_, err := log.Open(context.Background(), "/data/p", log.Options{FS: fs})
	return err
}

// newer raises the version in both copies of a side file.
func newer(t *testing.T, fs log.FS, name string) {
	t.Helper()
	b := readAll(t, fs, name)
	n := 20 + int(binary.BigEndian.Uint32(b[12:]))
	for at := 0; at+n <= len(b); at = len(b) - n {
		c := b[at : at+n]
		binary.BigEndian.PutUint32(c[8:], binary.BigEndian.Uint32(c[8:])+1)
		tab := crc32.MakeTable(crc32.Castagnoli)
		binary.BigEndian.PutUint32(c[16:], crc32.Update(crc32.Checksum(c[:16], tab), tab, c[20:]))
		if at == len(b)-n {
			break
		}
	}
	f, err := fs.Open(name, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestProducers checks the rules for sequences, table by table.
func TestProducers(t *testing.T) {
	const maxSeq = 1<<31 - 1
	type step struct {
		epoch int16
		first int32
		n     int
		dup   log.Offset // base of the original, -1 for a new batch
		err   error
	}
	for name, steps := range map[string][]step{
		"in order":              {{0, 0, 2, -1, nil}, {0, 2, 1, -1, nil}, {0, 3, 5, -1, nil}},
		"unknown must begin":    {{0, 5, 1, -1, log.ErrUnknownProducer}, {0, 0, 1, -1, nil}},
		"gap":                   {{0, 0, 1, -1, nil}, {0, 2, 1, -1, log.ErrOutOfOrderSequence}, {0, 1, 1, -1, nil}},
		"duplicate":             {{0, 0, 2, -1, nil}, {0, 0, 2, 0, nil}, {0, 2, 1, -1, nil}, {0, 0, 2, 0, nil}, {0, 2, 1, 2, nil}},
		"other cut":             {{0, 0, 4, -1, nil}, {0, 0, 2, -1, log.ErrDuplicateUnknownOffset}, {0, 2, 4, -1, log.ErrOutOfOrderSequence}},
		"older than window":     {{0, 0, 1, -1, nil}, {0, 1, 1, -1, nil}, {0, 2, 1, -1, nil}, {0, 3, 1, -1, nil}, {0, 4, 1, -1, nil}, {0, 5, 1, -1, nil}, {0, 0, 1, -1, log.ErrDuplicateUnknownOffset}, {0, 1, 1, 1, nil}},
		"new epoch, same again": {{0, 0, 1, -1, nil}, {0, 1, 1, -1, nil}, {1, 0, 1, -1, nil}, {1, 1, 1, -1, nil}, {1, 1, 1, 3, nil}},
		"new epoch begins at 0": {{0, 0, 3, -1, nil}, {1, 3, 1, -1, log.ErrOutOfOrderSequence}, {1, 0, 1, -1, nil}, {0, 3, 1, -1, log.ErrProducerFenced}, {1, 0, 1, 3, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{})
			for i, s := range steps {
				end := l.End()
				a, err := l.Append(t.Context(), sequenced(4, s.epoch, s.first, make([]string, s.n)...))
				switch {
				case s.err != nil:
					if !errors.Is(err, s.err) || l.End() != end {
						t.Errorf("step %d: got %+v, %v, want %v", i, a, err, s.err)
					}
				case s.dup >= 0:
					if err != nil || !a.Duplicate || a.Base != s.dup || a.End != s.dup+log.Offset(s.n) || l.End() != end {
						t.Errorf("step %d: got %+v, %v, want a duplicate of %d", i, a, err, s.dup)
					}
				default:
					if err != nil || a.Duplicate || a.Base != end {
						t.Errorf("step %d: got %+v, %v", i, a, err)
					}
				}
				if i%2 == 0 { // the state outlives a crash
					fs = fs.Crash()
					l = open(t, fs, log.Options{})
				}
			}
		})
	}
	t.Run("wraps", func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{})
		// A follower takes what the leader had.
		b, _, err := record.Next(sequenced(4, 0, maxSeq-1, "a", "b", "c"), 1000)
		if err != nil {
			t.Fatal(err)
		}
		b.SetLeaderEpoch(0)
		if _, err := l.AppendReplicated(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append(t.Context(), sequenced(4, 0, 1, "d")); err != nil {
			t.Errorf("got %v after the wrap", err)
		}
		if a, err := l.Append(t.Context(), sequenced(4, 0, maxSeq-1, "a", "b", "c")); err != nil || !a.Duplicate || a.Base != 0 {
			t.Errorf("got %+v, %v", a, err)
		}
		mustClose(t, l)
	})
	t.Run("several batches in a call", func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{})
		two := append(sequenced(4, 0, 0, "a"), sequenced(4, 0, 1, "b", "c")...)
		if a, err := l.Write(0, two); err != nil || a.Base != 0 || a.End != 3 {
			t.Errorf("got %+v, %v", a, err)
		}
		if a, err := l.Write(0, two); err != nil || !a.Duplicate || a.Base != 0 || a.End != 3 {
			t.Errorf("got %+v, %v", a, err)
		}
		// Half of it is new: one range could not say where both are.
		for _, mixed := range [][]byte{
			append(sequenced(4, 0, 1, "b", "c"), sequenced(4, 0, 3, "d")...),
			append(sequenced(5, 0, 0, "x"), sequenced(4, 0, 1, "b", "c")...),
			append(plain("y"), sequenced(4, 0, 1, "b", "c")...),
			append(sequenced(4, 0, 3, "d"), sequenced(4, 0, 3, "d")...),
		} {
			if a, err := l.Write(0, mixed); !errors.Is(err, log.ErrPartlyDuplicate) || l.End() != 3 {
				t.Errorf("got %+v, %v, end %d", a, err, l.End())
			}
		}
		if a, err := l.Write(0, sequenced(4, 0, 3, "d")); err != nil || a.Base != 3 {
			t.Errorf("got %+v, %v", a, err)
		}
		// A gap inside: nothing goes in.
		if _, err := l.Write(0, append(sequenced(4, 0, 4, "e"), sequenced(4, 0, 6, "g")...)); !errors.Is(err, log.ErrOutOfOrderSequence) || l.End() != 4 {
			t.Errorf("got %v, end %d", err, l.End())
		}
		if a, err := l.Write(0, sequenced(4, 0, 4, "e")); err != nil || a.Base != 4 {
			t.Errorf("got %+v, %v", a, err)
		}
		mustClose(t, l)
	})
}

func TestTransactions(t *testing.T) {
	ctx := t.Context()
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	txn := func(id int64, seq int32) []byte {
		var b record.Builder
		b.SetProducer(id, 0, seq)
		b.SetTransactional()
		if err := b.Append(record.Record{Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		x, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		return x.Bytes()
	}
	check := func(want log.Offset) {
		t.Helper()
		if got := l.LastStable(); got != want {
			t.Errorf("got last stable offset %d, want %d", got, want)
		}
	}
	mustAppend(t, l, "0")
	check(1)
	for _, b := range [][]byte{txn(1, 0), txn(2, 0), txn(1, 1)} {
		if _, err := l.Append(ctx, b); err != nil {
			t.Fatal(err)
		}
		check(1)
	}
	l = open(t, fs.Crash(), log.Options{})
	check(1)
	if _, err := l.WriteControl(0, record.EndTxn(true, 1, 0, 7, time.Now())); err != nil {
		t.Fatal(err)
	}
	check(2)
	if _, err := l.WriteControl(0, record.EndTxn(false, 2, 0, 7, time.Now())); err != nil {
		t.Fatal(err)
	}
	check(6)
	if _, err := l.TruncateTo(ctx, 5); err != nil {
		t.Fatal(err)
	}
	check(2)
	mustClose(t, l)
}

func TestProducerExpiry(t *testing.T) {
	l := open(t, logtest.NewFS(1), log.Options{ProducerExpiry: time.Nanosecond})
	if _, err := l.Append(t.Context(), sequenced(4, 0, 0, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(t.Context(), sequenced(4, 0, 1, "b")); !errors.Is(err, log.ErrUnknownProducer) {
		t.Errorf("got %v", err)
	}
	mustClose(t, l)
}

func TestEndOffset(t *testing.T) {
	l := open(t, logtest.NewFS(1), log.Options{})
	if e, off := l.EndOffset(3); e != -1 || off != -1 {
		t.Errorf("got %d, %d on an empty log", e, off)
	}
	for i, epoch := range []log.Epoch{2, 2, 5, 9, 9} {
		if _, err := l.Write(epoch, plain(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		ask, epoch log.Epoch
		off        log.Offset
	}{{-1, -1, -1}, {0, 0, 0}, {1, 1, 0}, {2, 2, 2}, {4, 2, 2}, {5, 5, 3}, {8, 5, 3}, {9, 9, 5}, {100, 9, 5}} {
		if e, off := l.EndOffset(c.ask); e != c.epoch || off != c.off {
			t.Errorf("EndOffset(%d): got %d, %d, want %d, %d", c.ask, e, off, c.epoch, c.off)
		}
	}
	mustClose(t, l)
}

func TestHooks(t *testing.T) {
	var appended, durable []log.Offset
	var rolled []log.Segment
	l := open(t, logtest.NewFS(1), log.Options{Hooks: log.Hooks{
		Appended: func(end log.Offset) { appended = append(appended, end) },
		Durable:  func(end log.Offset) { durable = append(durable, end) },
		Rolled:   func(s log.Segment) { rolled = append(rolled, s) },
	}})
	mustWrite(t, l, "a")
	mustAppend(t, l, "b", "c")
	if err := l.Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(appended, durable, len(rolled)); got != "[1 3] [3] 1" {
		t.Errorf("got %s", got)
	}
	if s := rolled[0]; s.Base != 0 || s.End != 3 || !s.Sealed || s.Bytes == 0 || s.SealedAt.IsZero() {
		t.Errorf("got %+v", s)
	}
	mustClose(t, l)
}

func TestIDs(t *testing.T) {
	const text = "0102030a-0b0c-0d0e-0f10-1112131415ff"
	id, err := log.ParseTopicID(text)
	if err != nil || id.String() != text || (log.PartitionID{Topic: id, Index: 3}).String() != text+"-3" {
		t.Errorf("got %v, %v", id, err)
	}
	for _, bad := range []string{"", "x", text[1:], text + "0", strings.Replace(text, "-", "x", 1), strings.Replace(text, "a", "g", 1)} {
		if _, err := log.ParseTopicID(bad); err == nil {
			t.Errorf("%q parses", bad)
		}
	}
}

func TestOSFS(t *testing.T) { logtest.TestFS(t, log.OSFS{}, t.TempDir()) }

func TestOnRealDisk(t *testing.T) {
	dir := t.TempDir()
	l, err := log.Open(t.Context(), dir, log.Options{SegmentBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		mustAppend(t, l, big(fmt.Sprint(i), 300))
	}
	mustClose(t, l)
	l, err = log.Open(t.Context(), dir, log.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := values(t, l, 0); len(got) != 50 || !l.Recovery().Clean {
		t.Errorf("got %d records, %+v", len(got), l.Recovery())
	}
	mustClose(t, l)
}

// TestTakeBack fills the disk in the middle of a call that goes over several
// segments: nothing of it stays, and it can be tried again.
func TestTakeBack(t *testing.T) {
	var batches []byte
	for i := range 40 {
		batches = append(batches, sequenced(4, 0, int32(i), big(fmt.Sprint(i), 3000))...)
	}
	hit := false
	for room := int64(0); room < 700<<10; room += 24 << 10 {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 10 << 10})
		mustAppend(t, l, "before")
		fs.SetCapacity(fs.UsedBytes() + room)
		a, err := l.Write(0, append([]byte(nil), batches...))
		if err != nil {
			hit = hit || len(l.Segments()) > 1 || room > 200<<10
			if !errors.Is(err, log.ErrDiskFull) || l.End() != 1 || l.Err() != nil {
				t.Fatalf("room %d: got %+v, %v, end %d, %v", room, a, err, l.End(), l.Err())
			}
			fs.SetCapacity(-1)
			a, err = l.Write(0, append([]byte(nil), batches...))
		}
		if err != nil || a.Base != 1 || a.End != 41 || a.Duplicate {
			t.Fatalf("room %d: got %+v, %v", room, a, err)
		}
		if _, err := l.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		fs = fs.Crash()
		l = open(t, fs, log.Options{SegmentBytes: 10 << 10})
		if got := values(t, l, 0); len(got) != 41 || got[40] != big("39", 3000) {
			t.Fatalf("room %d: got %d records", room, len(got))
		}
		mustClose(t, l)
	}
	if !hit {
		t.Error("the disk was never full between two segments")
	}
}

// TestStaleMarkerGoes: a marker of a clean close that did not open the log, here
// because an index was lost, is removed before a truncation like any other. Else it
// would state what was cut off to be durable after the next crash.
func TestStaleMarkerGoes(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, "a")
	mustAppend(t, l, "b")
	mustClose(t, l)
	if err := fs.Remove("/data/p/00000000000000000000.index"); err != nil {
		t.Fatal(err)
	}
	l = open(t, fs, log.Options{})
	if _, err := l.TruncateTo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	l = open(t, fs.Crash(), log.Options{})
	if r := l.Recovery(); r.Lossy || r.End != 1 {
		t.Errorf("got %+v", r)
	}
	mustClose(t, l)
}
