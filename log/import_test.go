package log_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// stamped returns a batch as it stands in a file: one record for each value, the
// first at offset base.
func stamped(t testing.TB, base log.Offset, epoch log.Epoch, values ...string) []byte {
	t.Helper()
	var b record.Builder
	for i, v := range values {
		if err := b.Append(record.Record{Value: []byte(v), Timestamp: time.UnixMilli(int64(base) + int64(i))}); err != nil {
			t.Fatal(err)
		}
	}
	x, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	x = x.Clone()
	x.SetBaseOffset(base)
	x.SetLeaderEpoch(epoch)
	return x.Bytes()
}

const importDir = "/data/p"

// importFS returns a file system with the files of a partition as a broker leaves
// them, durable.
func importFS(t testing.TB, files map[string][]byte) *logtest.FS {
	t.Helper()
	fsys := logtest.NewFS(1)
	err := fsys.MkdirAll(importDir)
	for name, content := range files {
		f, cerr := fsys.Create(importDir + "/" + name)
		if cerr != nil {
			t.Fatal(cerr)
		}
		_, werr := f.WriteAt(content, 0)
		err = errors.Join(err, werr, f.Sync(), f.Close())
	}
	if err := errors.Join(err, fsys.SyncDir(importDir), fsys.SyncDir("/data"), fsys.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	return fsys
}

func segmentFile(base log.Offset) string { return fmt.Sprintf("%020d.log", base) }

func concat(parts ...[]byte) []byte { return slices.Concat(parts...) }

func openReadOnly(t *testing.T, fsys log.FS) *log.Log {
	t.Helper()
	l, err := log.Open(t.Context(), importDir, log.Options{ReadOnly: true, FS: frozenFS{fsys, t}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// offsetsFrom reads all records from an offset on, by Read and by Records.
func offsetsFrom(t *testing.T, l *log.Log, from log.Offset) (out []log.Offset) {
	t.Helper()
	for at := from; at < l.End(); {
		s, err := l.Read(t.Context(), at, 1)
		if err != nil {
			t.Fatalf("read at %d: %v", at, err)
		}
		if s.End() <= at {
			t.Fatalf("read at %d gives [%d, %d)", at, s.Base(), s.End())
		}
		for b, err := range s.Batches() {
			if err != nil {
				t.Fatal(err)
			}
			for r, err := range b.Records() {
				if err != nil {
					t.Fatal(err)
				}
				if r.Offset >= at {
					out = append(out, r.Offset)
				}
			}
		}
		at = s.End()
	}
	var again []log.Offset
	for r, err := range l.Records(t.Context(), from) {
		if err != nil {
			t.Fatal(err)
		}
		again = append(again, r.Offset)
	}
	if !slices.Equal(out, again) {
		t.Errorf("Read gives %v, Records %v", out, again)
	}
	return out
}

// TestImportGaps reads logs with gaps of every kind from every offset on.
func TestImportGaps(t *testing.T) {
	big := strings.Repeat("large ", 5000)
	for name, files := range map[string]map[string][]byte{
		"inside": {segmentFile(0): concat(stamped(t, 0, 0, "a"), stamped(t, 5, 0, "b", "c"), stamped(t, 9, 1, "d"))},
		"at-the-start": {
			segmentFile(0): concat(stamped(t, 3, 0, "a")),
			segmentFile(4): concat(stamped(t, 9, 0, "b")),
		},
		"to-the-end-of-a-segment": {
			segmentFile(0):  concat(stamped(t, 0, 0, "a"), stamped(t, 2, 0, "b")),
			segmentFile(20): concat(stamped(t, 20, 0, "c")),
		},
		"empty-segments": {
			segmentFile(0):  stamped(t, 0, 0, "a"),
			segmentFile(10): nil,
			segmentFile(20): nil,
			segmentFile(30): stamped(t, 31, 0, "b"),
			segmentFile(40): nil,
		},
		"nothing-left": {segmentFile(0): nil, segmentFile(7): nil},
		"large-batches": {
			segmentFile(0): concat(stamped(t, 0, 0, big), stamped(t, 4, 0, big), stamped(t, 5, 0, "s"), stamped(t, 8, 0, big), stamped(t, 20, 0, big, big)),
		},
		"epochs-in-gaps": {
			segmentFile(0):            concat(stamped(t, 0, 0, "a"), stamped(t, 8, 3, "b"), stamped(t, 12, 5, "c")),
			"leader-epoch-checkpoint": []byte("0\n4\n0 0\n2 3\n3 6\n5 12\n"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := importFS(t, files)
			l := openReadOnly(t, fsys)
			if r := l.Recovery(); r.Lossy || r.CutBytes != 0 || len(r.Corruption) != 0 {
				t.Fatalf("recovery %+v", r)
			}
			all := offsetsFrom(t, l, 0)
			var want []log.Offset
			bases := make([]string, 0, len(files))
			for name := range files {
				bases = append(bases, name)
			}
			slices.Sort(bases)
			for _, name := range bases {
				for rest := files[name]; strings.HasSuffix(name, ".log") && len(rest) > 0; {
					b, r, err := record.Next(rest, 0)
					if err != nil {
						t.Fatal(err)
					}
					for o := b.BaseOffset(); o < b.NextOffset(); o++ {
						want = append(want, o)
					}
					rest = r
				}
			}
			if !slices.Equal(all, want) {
				t.Fatalf("records %v, want %v", all, want)
			}
			for from := range l.End() + 1 {
				at := slices.IndexFunc(want, func(o log.Offset) bool { return o >= from })
				if at < 0 {
					at = len(want)
				}
				if got := offsetsFrom(t, l, from); !slices.Equal(got, want[at:]) {
					t.Errorf("from %d: %v, want %v", from, got, want[at:])
				}
				// A record's time is its offset.
				o, ok, err := l.OffsetForTime(t.Context(), time.UnixMilli(int64(from)))
				if err != nil || ok != (at < len(want)) || ok && o != want[at] {
					t.Errorf("OffsetForTime(%d) = %d, %v, %v", from, o, ok, err)
				}
			}
			if name == "epochs-in-gaps" {
				if got := fmt.Sprint(l.EpochChain()); got != "[{0 0} {2 3} {3 6} {5 12}]" {
					t.Errorf("chain %s", got)
				}
				if e, end := l.EndOffset(2); e != 2 || end != 6 {
					t.Errorf("EndOffset(2) = %d, %d", e, end)
				}
			}
			if _, err := l.Read(t.Context(), l.End()+1, 1); !errors.Is(err, log.ErrOffsetOutOfRange) {
				t.Errorf("read above the end: %v", err)
			}
			if _, err := l.ProducerSnapshot(t.Context(), l.End()); err != nil {
				t.Errorf("producers: %v", err)
			}
			refused(t, l)
			if v, err := l.Verify(t.Context(), log.VerifyOptions{}); err != nil || !v.OK() {
				t.Errorf("verification %+v, %v", v, err)
			}

			_, err := log.Open(t.Context(), importDir, log.Options{FS: frozenFS{fsys, t}})
			if gap, ok := errors.AsType[*log.GapError](err); !ok || gap.Offset >= gap.End {
				t.Errorf("open for writing: %v", err)
			}
		})
	}
}

// Follow waits at the end, also where that is behind a gap.
func TestImportFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openReadOnly(t, importFS(t, map[string][]byte{segmentFile(0): stamped(t, 3, 0, "a"), segmentFile(10): nil}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var got []log.Offset
		for r, err := range l.Follow(ctx, 0) {
			if errors.Is(err, context.DeadlineExceeded) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.Offset)
		}
		if fmt.Sprint(got) != "[3]" {
			t.Errorf("followed %v", got)
		}
	})
}

// A checkpoint that batches contradict is not believed.
func TestImportWrongCheckpoint(t *testing.T) {
	for _, text := range []string{"0\n1\n0 0\n", "0\n2\n0 0\n1 1\n", "0\n2\n0 0\n2 8\n", "0\n1\n7 0\n", "0\n3\n0 0\n2 6\n5 9\n", "nonsense", ""} {
		l := openReadOnly(t, importFS(t, map[string][]byte{
			segmentFile(0):            concat(stamped(t, 0, 0, "a"), stamped(t, 4, 0, "b"), stamped(t, 6, 2, "c")),
			"leader-epoch-checkpoint": []byte(text),
		}))
		if got := fmt.Sprint(l.EpochChain()); got != "[{0 0} {2 6}]" {
			t.Errorf("checkpoint %q: chain %s", text, got)
		}
		if got := offsetsFrom(t, l, 0); len(got) != 3 {
			t.Errorf("checkpoint %q: %v", text, got)
		}
	}
}

// TestImportDamage has damage in a log with gaps: it is told, what lies around it
// is served, and nothing is changed.
func TestImportDamage(t *testing.T) {
	first := [][]byte{stamped(t, 0, 0, "a"), stamped(t, 5, 0, "damaged"), stamped(t, 9, 0, "b"), stamped(t, 12, 0, "c"), stamped(t, 14, 0, "d")}
	first[1][70] ^= 1
	last := [][]byte{stamped(t, 25, 0, "e"), stamped(t, 30, 0, "torn")}
	l := openReadOnly(t, importFS(t, map[string][]byte{
		segmentFile(0):  concat(first...),
		segmentFile(20): concat(last[0], last[1][:50]),
	}))
	r := l.Recovery()
	if !r.Lossy || len(r.Corruption) != 1 || r.CutBytes != 50 || r.CutPath != "" || l.End() != 26 {
		t.Fatalf("end %d, recovery %+v", l.End(), r)
	}
	if c := r.Corruption[0]; c.Offset != 1 || c.End != 9 || c.Position != int64(len(first[0])) {
		t.Errorf("corruption %+v", c)
	}
	for from := range log.Offset(26) {
		s, err := l.Read(t.Context(), from, 1)
		c, ok := errors.AsType[*log.CorruptionError](err)
		if from >= 1 && from < 9 {
			if !ok || c.End != 9 {
				t.Errorf("read at %d: %v", from, err)
			}
		} else if err != nil || s.End() <= from {
			t.Errorf("read at %d: [%d, %d), %v", from, s.Base(), s.End(), err)
		}
	}
	if v, err := l.Verify(t.Context(), log.VerifyOptions{}); err != nil || len(v.Damage) != 1 || v.Damage[0].Offset != 1 || v.Damage[0].End != 9 || len(v.Files) != 0 || v.Batches != 5 {
		t.Errorf("verification %+v, %v", v, err)
	}
	if got := fmt.Sprint(offsetsFrom(t, l, 9)); got != "[9 12 14 25]" {
		t.Errorf("records %s", got)
	}
	refused(t, l)
}

// Damage that comes after Open is met by the read itself.
func TestImportDamageWhileOpen(t *testing.T) {
	parts := [][]byte{stamped(t, 0, 0, "a"), stamped(t, 5, 0, "b"), stamped(t, 9, 0, "c"), stamped(t, 12, 0, "d"), stamped(t, 14, 0, "e")}
	fsys := importFS(t, map[string][]byte{segmentFile(0): concat(parts...), segmentFile(20): nil})
	l := openReadOnly(t, fsys)
	f, err := fsys.Open(importDir+"/"+segmentFile(0), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{0xff}, int64(len(parts[0])+len(parts[1])+65)); err != nil {
		t.Fatal(err)
	}
	for from := range log.Offset(20) {
		s, err := l.Read(t.Context(), from, 1)
		c, ok := errors.AsType[*log.CorruptionError](err)
		switch {
		case from > 9 && from < 12: // the damaged batch's header tells that it ends before
		case from >= 6 && from <= 9:
			if !ok || c.End != 12 || c.Offset > from {
				t.Errorf("read at %d: %v", from, err)
			}
		case err != nil || s.End() <= from:
			t.Errorf("read at %d: %v", from, err)
		}
	}
}

// oldMessage is a message in format 0 or 1.
func oldMessage(magic byte, offset int64, value string) []byte {
	body := []byte{magic, 0}
	if magic == 1 {
		body = binary.BigEndian.AppendUint64(body, 1)
	}
	body = append(body, 0xff, 0xff, 0xff, 0xff)
	body = binary.BigEndian.AppendUint32(body, uint32(len(value)))
	body = append(body, value...)
	b := binary.BigEndian.AppendUint64(nil, uint64(offset))
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)+4))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(body))
	return append(b, body...)
}

// TestImportRefused opens what can't be read as a whole: an error, for writing and
// for reading, and no change.
func TestImportRefused(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string][]byte
		want  error // nil: any
	}{
		"no-segments":        {map[string][]byte{"leader-epoch-checkpoint": []byte("0\n0\n")}, fs.ErrNotExist},
		"format-0":           {map[string][]byte{segmentFile(0): concat(oldMessage(0, 0, "a"), oldMessage(0, 1, "b"))}, log.ErrInvalidBatch},
		"format-1-sealed":    {map[string][]byte{segmentFile(0): oldMessage(1, 0, ""), segmentFile(1): nil}, log.ErrInvalidBatch},
		"format-1-then-2":    {map[string][]byte{segmentFile(0): concat(oldMessage(1, 0, "a"), stamped(t, 1, 0, "b"))}, log.ErrInvalidBatch},
		"format-2-then-1":    {map[string][]byte{segmentFile(0): concat(stamped(t, 0, 0, "a"), oldMessage(1, 1, "b"))}, log.ErrInvalidBatch},
		"unfinished-swap":    {map[string][]byte{segmentFile(0): stamped(t, 0, 0, "a"), segmentFile(0) + ".swap": stamped(t, 0, 0, "a")}, nil},
		"of-another-topic":   {map[string][]byte{segmentFile(0): nil, "partition.metadata": []byte("version: 0\ntopic_id: T6NqvgUXROWUjYjPCQDqnQ")}, log.ErrWrongPartition},
		"not-even-a-segment": {map[string][]byte{segmentFile(0) + ".deleted": stamped(t, 0, 0, "a")}, fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := frozenFS{importFS(t, c.files), t}
			o := log.Options{ReadOnly: true, FS: fsys, Partition: log.PartitionID{Topic: log.TopicID{1}}}
			if _, err := log.Open(t.Context(), importDir, o); err == nil || !errors.Is(err, c.want) && c.want != nil {
				t.Errorf("open read-only: %v", err)
			}
			if errors.Is(c.want, fs.ErrNotExist) {
				return // a new log can be made there
			}
			o.ReadOnly = false
			if _, err := log.Open(t.Context(), importDir, o); err == nil || !errors.Is(err, c.want) && c.want != nil {
				t.Errorf("open for writing: %v", err)
			}
		})
	}
	fsys := logtest.NewFS(1)
	if _, err := log.Open(t.Context(), "/none", log.Options{ReadOnly: true, FS: frozenFS{fsys, t}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// What a broker has preallocated, or left behind deletions, doesn't count.
func TestImportLeftovers(t *testing.T) {
	files := map[string][]byte{
		segmentFile(4):               concat(stamped(t, 4, 2, "a", "b"), stamped(t, 6, 2, "c"), make([]byte, 5000)),
		segmentFile(0) + ".deleted":  stamped(t, 0, 0, "x"),
		segmentFile(0) + ".cleaned":  stamped(t, 0, 0, "x"),
		"00000000000000000004.index": make([]byte, 4096),
		"partition.metadata":         []byte("version: 0\ntopic_id: T6NqvgUXROWUjYjPCQDqnQ"),
		"leader-epoch-checkpoint":    []byte("0\n2\n2 4\n3 7\n"),
	}
	fsys := importFS(t, files)
	l := openReadOnly(t, fsys)
	if r := l.Recovery(); l.Start() != 4 || l.End() != 7 || r.CutBytes != 0 || r.Lossy || l.LastEpoch() != 3 {
		t.Errorf("%+v, %+v, chain %v", l.Stats(), r, l.EpochChain())
	}
	if got := fmt.Sprint(offsetsFrom(t, l, 4)); got != "[4 5 6]" {
		t.Errorf("records %s", got)
	}
	const topic = "4fa36abe-0517-44e5-948d-88cf0900ea9d"
	if got := l.Partition().Topic.String(); got != topic {
		t.Errorf("topic %s", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	// For writing: the leader of epoch 3 goes on, also after a crash.
	w := open(t, fsys, log.Options{})
	if w.End() != 7 || w.LastEpoch() != 3 || w.Partition().Topic.String() != topic {
		t.Errorf("%+v, epoch %d, %v", w.Stats(), w.LastEpoch(), w.Partition())
	}
	if _, err := w.Write(2, batch(t, "x")); !errors.Is(err, log.ErrFenced) {
		t.Errorf("write in an epoch that is over: %v", err)
	}
	if a, err := w.Append(t.Context(), batch(t, "ours")); err != nil || a.Base != 7 || a.Epoch != 3 {
		t.Errorf("append: %+v, %v", a, err)
	}
	fsys = fsys.Crash()
	w = open(t, fsys, log.Options{})
	if r := w.Recovery(); w.End() != 8 || r.Lossy || w.LastEpoch() != 3 {
		t.Errorf("%+v, %+v", w.Stats(), r)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := lineOf(t, fsys, "partition.metadata", 1); got != "topic_id: T6NqvgUXROWUjYjPCQDqnQ" {
		t.Errorf("partition.metadata has %q", got)
	}
	if got := lineOf(t, fsys, "leader-epoch-checkpoint", 3); got != "3 7" {
		t.Errorf("leader-epoch-checkpoint has %q", got)
	}
}

// A torn tail that a broker has left is kept aside, as one of ours.
func TestImportTorn(t *testing.T) {
	torn := stamped(t, 2, 0, "torn")[:70]
	fsys := importFS(t, map[string][]byte{segmentFile(0): concat(stamped(t, 0, 0, "a", "b"), torn)})
	w := open(t, fsys, log.Options{})
	r := w.Recovery()
	if w.End() != 2 || r.Lossy || r.CutBytes != int64(len(bytes.TrimRight(torn, "\x00"))) {
		t.Errorf("end %d, recovery %+v", w.End(), r)
	}
	if kept := fileContent(t, fsys, strings.TrimPrefix(r.CutPath, importDir+"/")); !bytes.HasPrefix(torn, kept) || len(kept) != int(r.CutBytes) {
		t.Errorf("kept %x of %x", kept, torn)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func lineOf(t *testing.T, fsys log.FS, name string, n int) string {
	t.Helper()
	return strings.Split(string(fileContent(t, fsys, name)), "\n")[n]
}

func fileContent(t *testing.T, fsys log.FS, name string) []byte {
	t.Helper()
	f, err := fsys.Open(importDir+"/"+name, false)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && size > 0 {
		t.Fatal(err)
	}
	return b
}

// shallow is a frozenFS that lets the lock of a log of ours through.
type shallow struct{ frozenFS }

func (f shallow) Lock(n string) (io.Closer, error) { return f.FS.Lock(n) }

// TestReadOnlyOwn opens directories of our own read-only: closed, crashed at any
// point, damaged. They show what an Open for writing shows, and stay as they are.
func TestReadOnlyOwn(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		fsys := logtest.NewFS(uint64(i))
		l := open(t, fsys, log.Options{SegmentBytes: 2 << 10})
		for range rng.IntN(40) {
			mustAppend(t, l, strings.Repeat("x", rng.IntN(400)))
		}
		if i%3 == 0 {
			if _, err := l.TruncateTo(t.Context(), l.End()/2); err != nil {
				t.Fatal(err)
			}
		}
		if i%2 == 0 {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		fsys = fsys.Crash()
		r, err := log.Open(t.Context(), importDir, log.Options{ReadOnly: true, FS: shallow{frozenFS{fsys, t}}})
		if err != nil {
			t.Fatal(err)
		}
		got := offsetsFrom(t, r, r.LocalStart())
		refused(t, r)
		clean := r.Recovery().Clean
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		w := open(t, fsys, log.Options{SegmentBytes: 2 << 10})
		if want := offsetsFrom(t, w, w.LocalStart()); !slices.Equal(got, want) || r.End() != w.End() || r.LastEpoch() != w.LastEpoch() || clean != w.Recovery().Clean {
			t.Errorf("seed %d: read-only %v, end %d; for writing %v, end %d", i, got, r.End(), want, w.End())
		}
		if r, err := log.Open(t.Context(), importDir, log.Options{ReadOnly: true, FS: fsys}); !errors.Is(err, log.ErrLocked) {
			t.Errorf("opened beside a writer: %v, %v", r, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}

}

// FuzzImport opens two segments and a checkpoint of any content read-only: no
// panic, no change, and reads that come to an end.
func FuzzImport(f *testing.F) {
	f.Add(concat(stamped(f, 0, 0, "a"), stamped(f, 5, 1, "b", "c")), stamped(f, 40, 1, "d"), []byte("0\n2\n0 0\n1 3\n"))
	f.Add(concat(stamped(f, 20, 0, "a"), stamped(f, 15, 1, "b")), stamped(f, 31, 1, "d")[:70], []byte("0\n1\n5 0\n"))
	f.Add(oldMessage(1, 0, "a"), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, first, second, checkpoint []byte) {
		fsys := importFS(t, map[string][]byte{segmentFile(0): first, segmentFile(30): second, "leader-epoch-checkpoint": checkpoint})
		l, err := log.Open(t.Context(), importDir, log.Options{ReadOnly: true, FS: frozenFS{fsys, t}})
		if err != nil {
			return
		}
		defer l.Close()
		for at := log.Offset(0); at < l.End(); {
			s, err := l.Read(t.Context(), at, 1)
			next := at
			if c, ok := errors.AsType[*log.CorruptionError](err); ok {
				next = c.End
			} else if err != nil {
				t.Fatal(err)
			} else {
				next = s.End()
			}
			if next <= at {
				t.Fatalf("read at %d leads to %d of %d: %v", at, next, l.End(), err)
			}
			at = next
		}
		if _, err := l.Verify(t.Context(), log.VerifyOptions{}); err != nil {
			t.Fatal(err)
		}
	})
}
