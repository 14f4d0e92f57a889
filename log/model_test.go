package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// TestModel runs random calls on a log and on a slice, with closes and crashes in
// between.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		fs := logtest.NewFS(rapid.Uint64().Draw(t, "seed"))
		o := log.Options{SegmentBytes: rapid.SampledFrom([]int64{1 << 10, 5 << 10, 100 << 10}).Draw(t, "segment")}
		open := func() *log.Log {
			o.FS = fs
			l, err := log.Open(ctx, "/data/p", o)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return l
		}
		l := open()
		w := newWorld()
		epoch := log.Epoch(0)
		n := 0
		crashed := false
		draw := func() []string {
			vals := make([]string, rapid.IntRange(1, 4).Draw(t, "records"))
			for i := range vals {
				n++
				vals[i] = fmt.Sprintf("%d %s", n, strings.Repeat("x", rapid.SampledFrom([]int{0, 10, 300, 5000}).Draw(t, "size")))
			}
			return vals
		}
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		produced := func(vals []string) []byte {
			b := sequenced(7, 1, w.sequence(), vals...)
			w.produced = append(w.produced, produced{w.written, w.written + log.Offset(len(vals)), w.sequence()})
			return b
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				vals := draw()
				a, err := l.Append(ctx, plain(vals...))
				must(err)
				if a.Base != w.written || a.End != w.written+log.Offset(len(vals)) || a.Duplicate {
					t.Fatalf("got %+v, want base %d", a, w.written)
				}
				w.add(max(l.LastEpoch(), 0), vals...)
				w.acked = w.written
			},
			"write": func(t *rapid.T) {
				vals := draw()
				base := w.written
				b := produced(vals)
				a, err := l.Write(epoch, b)
				must(err)
				if a.Base != base || a.Epoch != epoch {
					t.Fatalf("got %+v, want base %d", a, base)
				}
				w.add(epoch, vals...)
			},
			"replicated": func(t *rapid.T) {
				var all []byte
				base := w.written
				for range rapid.IntRange(1, 5).Draw(t, "batches") {
					if rapid.IntRange(0, 5).Draw(t, "new epoch") == 0 {
						epoch++
					}
					vals := draw()
					b, _, err := record.Next(bytes.Clone(produced(vals)), 1<<20)
					must(err)
					b.SetBaseOffset(w.written)
					b.SetLeaderEpoch(epoch)
					all = append(all, b.Bytes()...)
					w.add(epoch, vals...)
				}
				a, err := l.AppendReplicated(all)
				must(err)
				if a.Base != base || a.End != w.written {
					t.Fatalf("got %+v", a)
				}
			},
			"fence": func(t *rapid.T) {
				if epoch > 0 && l.LastEpoch() == epoch {
					if _, err := l.Write(epoch-1, plain("x")); !errors.Is(err, log.ErrFenced) {
						t.Fatalf("got %v", err)
					}
				}
			},
			"retry": func(t *rapid.T) {
				if len(w.produced) == 0 {
					return
				}
				p := rapid.SampledFrom(w.produced).Draw(t, "batch")
				a, err := l.Write(100, sequenced(7, 1, p.first, make([]string, p.end-p.base)...))
				if slices.Contains(w.produced[max(0, len(w.produced)-5):], p) {
					if err != nil || !a.Duplicate || a.Base != p.base || a.End != p.end {
						t.Fatalf("got %+v, %v for %+v", a, err, p)
					}
				} else if !errors.Is(err, log.ErrDuplicateUnknownOffset) {
					t.Fatalf("got %+v, %v for old %+v", a, err, p)
				}
			},
			"gap": func(t *rapid.T) {
				_, err := l.Write(100, sequenced(7, 1, w.sequence()+3, "x"))
				want := log.ErrOutOfOrderSequence
				if len(w.produced) == 0 {
					want = log.ErrUnknownProducer
				}
				if !errors.Is(err, want) {
					t.Fatalf("got %v, want %v", err, want)
				}
			},
			"sync": func(t *rapid.T) {
				d, err := l.Sync(ctx)
				must(err)
				if d != w.written {
					t.Fatalf("got durable end %d, want %d", d, w.written)
				}
				w.acked = w.written
			},
			"roll": func(t *rapid.T) {
				must(l.Roll(ctx))
				w.acked = w.written
			},
			"truncate": func(t *rapid.T) {
				off := log.Offset(rapid.Int64Range(int64(w.local), int64(w.written)).Draw(t, "to"))
				end, err := l.TruncateTo(ctx, off)
				must(err)
				acked := w.acked
				if off < w.written {
					epochs := slices.Clone(w.epochs)
					w.cut(off)
					if w.written < w.local { // the local start lies inside a batch
						w.written, w.acked = w.local, w.local
						w.bounds[w.local] = true
						w.epochs = slices.DeleteFunc(epochs, func(e log.EpochStart) bool { return e.Start >= w.local })
					}
				} else {
					w.acked = acked
				}
				if end != w.written {
					t.Fatalf("got %d, want %d", end, w.written)
				}
				epoch = max(epoch, l.LastEpoch())
			},
			"trim": func(t *rapid.T) {
				start := log.Offset(rapid.Int64Range(int64(w.start), int64(w.written)).Draw(t, "to"))
				must(l.TrimTo(ctx, start))
				if start > w.start {
					w.start, w.local, w.acked = start, max(w.local, start), w.written
				}
			},
			"drop": func(t *rapid.T) {
				to := log.Offset(rapid.Int64Range(0, int64(w.written)).Draw(t, "to"))
				want := w.local
				segs := l.Segments()
				for _, s := range segs[:len(segs)-1] { // not yet Sealed if not yet durable
					if s.End <= to {
						want = max(want, s.End)
					}
				}
				must(l.DropLocal(ctx, to))
				w.local = want
			},
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 4).Draw(t, "rarely") > 0 {
					return
				}
				start := log.Offset(rapid.Int64Range(0, int64(w.written)+100).Draw(t, "to"))
				var snapshot []byte
				if start == w.written {
					var err error
					snapshot, err = l.ProducerSnapshot(ctx, start)
					must(err)
				} else {
					w.produced = nil
				}
				must(l.Reset(ctx, start, nil, snapshot))
				w.start, w.local, w.written, w.acked = min(w.start, start), start, start, start
				w.bounds = map[log.Offset]bool{start: true}
				w.epochs = nil
				clear(w.vals)
			},
			"snapshot": func(t *rapid.T) {
				off := log.Offset(rapid.Int64Range(int64(w.local), int64(w.written)).Draw(t, "at"))
				b, err := l.ProducerSnapshot(ctx, off)
				if !w.bounds[off] {
					if !errors.Is(err, log.ErrOffsetOutOfRange) {
						t.Fatalf("got %v inside a batch", err)
					}
					return
				}
				must(err)
				checkSnapshot(t, b, off, w.produced)
			},
			"close": func(t *rapid.T) {
				must(l.Close())
				w.acked = w.written
				l = open()
				if r := l.Recovery(); !r.Clean {
					t.Fatalf("got %+v", r)
				}
			},
			"crash": func(t *rapid.T) {
				old := l
				fs = fs.Crash(logtest.CrashRandom)
				crashed = true
				old.Close() //nolint:errcheck // its disk is gone
				l = open()
				if r := l.Recovery(); r.Lossy {
					t.Fatalf("got %+v\n%v\n%s", r, r.Corruption, fs.Trace())
				}
				must(w.matches(l))
				w.written = l.End() // what was not acknowledged may be gone
				w.cut(w.written)
			},
			"": func(t *rapid.T) {
				if l.End() != w.written || l.Start() != w.start || l.LocalStart() != w.local || l.DurableEnd() < w.acked {
					t.Fatalf("got %+v, want %d %d %d %d", l.Stats(), w.start, w.local, w.written, w.acked)
				}
				if w.local < w.written {
					off := log.Offset(rapid.Int64Range(int64(w.local), int64(w.written)-1).Draw(t, "read"))
					s, err := l.Read(ctx, off, rapid.SampledFrom([]int{1, 500, 20000}).Draw(t, "bytes"))
					must(err)
					checkSlice(t, s, off, w)
					s.Release()
				}
				if rapid.IntRange(0, 9).Draw(t, "verify") == 0 {
					v, err := l.Verify(ctx, log.VerifyOptions{})
					must(err)
					if crashed {
						v.Files = nil // helper files need not have reached the disk
					}
					if !v.OK() || v.End != w.written || v.Start != w.local {
						t.Fatalf("got %+v: %v", v, slices.Concat(v.Damage, v.Undecodable, v.Files))
					}
				}
				if w.start > 0 {
					if _, err := l.Read(ctx, w.start-1, 1); !errors.Is(err, log.ErrOffsetOutOfRange) || errors.Is(err, log.ErrBelowLocalStart) {
						t.Fatalf("got %v below the start", err)
					}
				}
				if w.local > w.start {
					if _, err := l.Read(ctx, w.local-1, 1); !errors.Is(err, log.ErrBelowLocalStart) {
						t.Fatalf("got %v below the local start", err)
					}
				}
			},
		})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func checkSlice(t rapid.TB, s *log.Slice, off log.Offset, w *world) {
	if s.Base() > off || s.End() <= off {
		t.Fatalf("read %d: got [%d, %d)", off, s.Base(), s.End())
	}
	next := s.Base()
	for b, err := range s.Batches() {
		if err != nil {
			t.Fatal(err)
		}
		for r, err := range b.Records() {
			if err != nil {
				t.Fatal(err)
			}
			if want, ok := w.vals[r.Offset]; r.Offset != next || ok && (string(r.Value) != want.value || b.LeaderEpoch() != want.epoch) {
				t.Fatalf("read %d: got %d %q, want %+v", off, r.Offset, r.Value, want)
			}
			next++
		}
	}
	if next != s.End() {
		t.Fatalf("got end %d, want %d", s.End(), next)
	}
}

// checkSnapshot gives the snapshot to a log of its own, and asks that for
// duplicates.
func checkSnapshot(t rapid.TB, b []byte, at log.Offset, all []produced) {
	ctx := context.Background()
	l, err := log.Open(ctx, "/copy", log.Options{FS: logtest.NewFS(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // thrown away
	if err := l.Reset(ctx, at, nil, b); err != nil {
		t.Fatal(err)
	}
	below := slices.DeleteFunc(slices.Clone(all), func(p produced) bool { return p.end > at })
	next := int32(0)
	for _, p := range below[max(0, len(below)-5):] {
		a, err := l.Write(0, sequenced(7, 1, p.first, make([]string, p.end-p.base)...))
		if err != nil || !a.Duplicate || a.Base != p.base {
			t.Fatalf("got %+v, %v for %+v", a, err, p)
		}
		next = p.first + int32(p.end-p.base)
	}
	if a, err := l.Write(0, sequenced(7, 1, next, "new")); err != nil || a.Base != at {
		t.Fatalf("got %+v, %v for sequence %d at %d", a, err, next, at)
	}
}

func TestOffsetForTime(t *testing.T) {
	ctx := context.Background()
	l := open(t, logtest.NewFS(1), log.Options{SegmentBytes: 1 << 10})
	defer l.Close() //nolint:errcheck // thrown away
	// Stamps out of order inside and across batches.
	var stamps []int64
	seed := uint64(7)
	for range 60 {
		var recs []record.Record
		for range 3 {
			seed = seed*6364136223846793005 + 1442695040888963407
			ms := int64(1000 + len(stamps)*10 + int(seed>>33)%300 - 150)
			stamps = append(stamps, ms)
			recs = append(recs, record.Record{Timestamp: time.UnixMilli(ms), Value: []byte("v")})
		}
		if _, err := l.AppendRecords(ctx, recs...); err != nil {
			t.Fatal(err)
		}
	}
	for ms := int64(800); ms < 3200; ms += 7 {
		want := slices.IndexFunc(stamps, func(s int64) bool { return s >= ms })
		got, ok, err := l.OffsetForTime(ctx, time.UnixMilli(ms))
		if err != nil || ok != (want >= 0) || ok && got != log.Offset(want) {
			t.Fatalf("at %d: got %d, %v, %v, want %d", ms, got, ok, err, want)
		}
	}
}
