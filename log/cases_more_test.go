package log_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// zeroChecksum returns a batch whose checksum is 0: it solves for four bytes of its value, to which the checksum is linear.
func zeroChecksum(value string) []byte {
	b := plain(value + "....")
	free := b[len(b)-5 : len(b)-1] // behind them stands the number of headers
	sum := func(x uint32) uint32 {
		binary.BigEndian.PutUint32(free, x)
		return crc32.Checksum(b[21:], castagnoli)
	}
	type column struct{ bits, from uint32 }
	var base []column // with distinct leading bits
	reduce := func(c column) column {
		for _, r := range base {
			if c.bits^r.bits < c.bits {
				c.bits, c.from = c.bits^r.bits, c.from^r.from
			}
		}
		return c
	}
	zero := sum(0)
	for i := range 32 {
		if c := reduce(column{sum(1<<i) ^ zero, 1 << i}); c.bits != 0 {
			base = append(base, c)
			slices.SortFunc(base, func(a, b column) int { return cmp.Compare(b.bits, a.bits) })
		}
	}
	if sum(reduce(column{bits: zero}).from) != 0 {
		panic("no solution")
	}
	binary.BigEndian.PutUint32(b[17:], 0)
	return b
}

// caseZeroChecksum: what a header is, no checksum tells.
func caseZeroChecksum(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	for i := range 9 {
		if _, err := l.Append(t.Context(), zeroChecksum(fmt.Sprintf("%d:%0*d", i, 1000*i, i))); err != nil {
			t.Fatal(err)
		}
	}
	image := fs.Crash()
	fs = image.Fork(logtest.CrashKeepAll)
	l = open(t, fs, log.Options{})
	if got := values(t, l, 0); len(got) != 9 || l.Recovery().Lossy || l.Recovery().CutBytes > 0 {
		t.Errorf("got %d records, %+v", len(got), l.Recovery())
	}
	mustAppend(t, l, "goes on")
	wantSound(t, l)
	mustClose(t, l)
	if err := image.Corrupt("/data/p/00000000000000000000.log", 100, 1); err != nil {
		t.Fatal(err)
	}
	l = open(t, image, log.Options{})
	if r := l.Recovery(); !r.Lossy || r.End != 9 || len(r.Corruption) != 1 || r.Corruption[0].Offset > 1 {
		t.Errorf("got %+v, %v", r, r.Corruption)
	}
	mustClose(t, l)
}

// caseRecoveryCost lets the machine die at each change of a log with many segments: Open reads no segment but the newest two and the one
// that is cut.
func caseRecoveryCost(t *testing.T) {
	ctx := context.Background()
	for name, change := range map[string]func(l *log.Log) error{
		"append":   func(l *log.Log) error { _, err := l.Append(ctx, plain(big("x", 900))); return err },
		"drop":     func(l *log.Log) error { return l.DropLocal(ctx, 4) },
		"trim":     func(l *log.Log) error { return l.TrimTo(ctx, 3) },
		"truncate": func(l *log.Log) error { _, err := l.TruncateTo(ctx, l.End()-1); return err },
	} {
		t.Run(name, func(t *testing.T) {
			for at := int64(1); ; at += 1 + at/8 {
				var after *logtest.FS
				done := false
				synctest.Test(t, func(t *testing.T) {
					fs := logtest.NewFS(1)
					l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
					for i := range 12 {
						mustAppend(t, l, big(fmt.Sprint(i), 600))
						synctest.Wait() // full segments are sealed in the background
					}
					from := fs.Changes()
					fs.OnOp(func(op logtest.Op) error {
						if op.Kind.Changes() && op.Changed-from >= at {
							fs.PowerOff()
						}
						return nil
					})
					done = change(l) == nil
					synctest.Wait()
					done = done && !fs.Crashed()
					fs.PowerOff()
					l.Close() //nolint:errcheck // its disk is dead
					after = fs.Crash(logtest.CrashLoseSome(uint64(at)))
				})
				var segments []string
				for _, n := range after.Names() {
					if path.Ext(n) == ".log" {
						segments = append(segments, n)
					}
				}
				if len(segments) < 7 {
					t.Fatalf("change %d: got %d segments", at, len(segments))
				}
				read := map[string]int{}
				after.OnOp(func(op logtest.Op) error {
					if op.Kind == logtest.OpRead && slices.Contains(segments[:len(segments)-3], op.Path) {
						read[op.Path] += op.Len
					}
					return nil
				})
				l := open(t, after, log.Options{SegmentBytes: 1 << 10})
				if len(read) > 0 || l.Recovery().Lossy {
					t.Fatalf("change %d: Open read %v, %+v", at, read, l.Recovery())
				}
				after.OnOp(nil)
				mustClose(t, l)
				if done {
					return
				}
			}
		})
	}
}

// spanning returns a batch of one record that takes n offsets, as compaction leaves them.
func spanning(base log.Offset, n int64, value string) []byte {
	b := plain(value)
	binary.BigEndian.PutUint64(b, uint64(base))
	binary.BigEndian.PutUint32(b[12:], 0)
	binary.BigEndian.PutUint32(b[23:], uint32(n-1))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
	return b
}

// caseOffsetSpan: no two offsets of a segment are further apart than an index entry can say.
func caseOffsetSpan(t *testing.T) {
	const most = math.MaxInt32
	for _, together := range []bool{false, true} {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{})
		var all, bases = []byte(nil), []log.Offset(nil)
		next := log.Offset(0)
		for _, n := range []int64{most + 1, 1, most, 1, 1, most - 1, 2, 5} {
			b := spanning(next, n, fmt.Sprint(next))
			if together {
				all = append(all, b...)
			} else if _, err := l.AppendReplicated(b); err != nil {
				t.Fatal(err)
			}
			bases = append(bases, next)
			next += log.Offset(n)
		}
		if together {
			if _, err := l.AppendReplicated(all); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := l.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, crash := range []bool{true, false} {
			for i, s := range l.Segments() {
				if s.End-s.Base > most+1 {
					t.Errorf("segment %d spans [%d, %d)", i, s.Base, s.End)
				}
			}
			for _, off := range bases {
				s, err := l.Read(t.Context(), off, 1)
				if err != nil || s.Base() != off || value(t, s) != fmt.Sprint(off) {
					t.Fatalf("read %d: %v", off, err)
				}
				s.Release()
			}
			if crash {
				fs = fs.Crash()
			} else {
				mustClose(t, l)
			}
			l = open(t, fs, log.Options{})
			if r := l.Recovery(); r.Lossy || r.End != next || r.Clean == crash {
				t.Fatalf("got %+v", r)
			}
		}
		mustClose(t, l)
	}
}

// caseRetentionTwice: what is left after a pass stays in the next one, whether what went is still listed or not.
func caseRetentionTwice(t *testing.T) {
	rng := rand.New(rand.NewPCG(12177, 0))
	now := time.Date(2030, 5, 1, 0, 0, 0, 0, time.UTC)
	moved := 0
	for range 2000 {
		var segs []log.Segment
		next := log.Offset(rng.IntN(50))
		start := next
		for range 1 + rng.IntN(8) {
			s := log.Segment{Base: next, End: next + log.Offset(1+rng.IntN(9)), Bytes: rng.Int64N(1000), Sealed: true, SealedAt: now.Add(-time.Duration(rng.IntN(100)) * time.Hour)}
			s.MaxTimestamp = now.Add(time.Duration(rng.IntN(400)-300) * time.Hour)
			next = s.End
			segs = append(segs, s)
		}
		segs[len(segs)-1].Sealed = rng.IntN(3) == 0
		r := log.Retention{Bytes: rng.Int64N(4000), Age: time.Duration(rng.IntN(90)) * time.Hour, RecordAge: time.Duration(rng.IntN(200)) * time.Hour, Grace: time.Duration(rng.IntN(20)-1) * time.Hour}
		start += log.Offset(rng.IntN(5))
		below := start + log.Offset(rng.IntN(60))
		to, cause, _ := r.TrimPoint(segs, start, below, now)
		if to < start || to > max(start, below) || (to > start) != (cause != log.RetentionNone) {
			t.Fatalf("%+v of %v: got %d, %v from %d below %d", r, segs, to, cause, start, below)
		}
		if to > start {
			moved++
		}
		left := slices.DeleteFunc(slices.Clone(segs), func(s log.Segment) bool { return s.End <= to })
		for _, segs := range [][]log.Segment{segs, left} {
			if again, cause, _ := r.TrimPoint(segs, to, below, now); again != to || cause != log.RetentionNone {
				t.Fatalf("%+v of %v: a second pass goes from %d to %d by %v", r, segs, to, again, cause)
			}
		}
	}
	if moved < 300 {
		t.Errorf("only %d passes moved the start", moved)
	}
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
	for i := range 20 {
		mustAppend(t, l, big(fmt.Sprint(i), 300))
	}
	to, cause, err := l.Retain(t.Context(), log.Retention{Bytes: 2000}, l.End())
	if err != nil || cause != log.RetentionBytes {
		t.Fatal(to, cause, err)
	}
	for range 2 {
		if again, cause, err := l.Retain(t.Context(), log.Retention{Bytes: 2000}, l.End()); err != nil || again != to || cause != log.RetentionNone {
			t.Errorf("got %d, %v, %v, want %d", again, cause, err, to)
		}
		fs = fs.Crash()
		l = open(t, fs, log.Options{SegmentBytes: 1 << 10})
	}
	mustClose(t, l)
}
