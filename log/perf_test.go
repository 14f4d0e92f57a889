package log_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// TestAllocs pins what the hot paths allocate.
func TestAllocs(t *testing.T) {
	ctx := context.Background()
	l, err := log.Open(ctx, t.TempDir(), log.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := plain(big("x", 1000))
	for range 2000 {
		if _, err := l.Write(0, b); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		max float64
		f   func()
	}{
		"write": {0, func() {
			if _, err := l.Write(0, b); err != nil {
				t.Fatal(err)
			}
		}},
		"append": {0, func() {
			if _, err := l.Append(ctx, b); err != nil {
				t.Fatal(err)
			}
		}},
		"read": {1, func() { // the Slice
			s, err := l.Read(ctx, 1000, 64<<10)
			if err != nil {
				t.Fatal(err)
			}
			s.Release()
		}},
	} {
		if got := testing.AllocsPerRun(200, c.f); got > c.max {
			t.Errorf("%s: got %v allocations, want at most %v", name, got, c.max)
		}
	}
	mustClose(t, l)
}

// TestCalls pins how often the disk is asked.
func TestCalls(t *testing.T) {
	ctx := context.Background()
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	mustAppend(t, l, "warm")
	var big1 []byte
	for range 1000 {
		big1 = append(big1, plain(big("x", 1000))...)
	}
	count := func(f func()) (writes, syncs int64) {
		w, s := fs.Count(logtest.OpWrite), fs.Count(logtest.OpSync)
		f()
		return fs.Count(logtest.OpWrite) - w, fs.Count(logtest.OpSync) - s
	}
	if w, s := count(func() { mustAppend(t, l, "one") }); w != 2 || s != 1 {
		t.Errorf("an append took %d writes and %d syncs, want the batch, a slot, and one sync", w, s)
	}
	write := func() {
		if _, err := l.Write(0, big1); err != nil {
			t.Fatal(err)
		}
	}
	least := int64(100)
	for range 6 { // some of them grow the file
		w, _ := count(write)
		least = min(least, w)
		if _, err := l.Sync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if least != 1 {
		t.Errorf("a write of %d bytes took %d writes", len(big1), least)
	}
	reads := fs.Count(logtest.OpRead)
	s, err := l.Read(ctx, 500, 1<<20)
	if err != nil || s.Len() < 900_000 {
		t.Fatal(s.Len(), err)
	}
	if n := fs.Count(logtest.OpRead) - reads; n != 1 {
		t.Errorf("a read of %d bytes took %d reads", s.Len(), n)
	}
	s.Release()
	mustClose(t, l)
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("size=%d/sync=true", size), func(b *testing.B) {
			l, err := log.Open(b.Context(), b.TempDir(), log.Options{})
			if err != nil {
				b.Fatal(err)
			}
			batch := plain(big("x", size))
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Append(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			mustClose(b, l)
		})
		b.Run(fmt.Sprintf("size=%d/sync=false", size), func(b *testing.B) {
			l, err := log.Open(b.Context(), b.TempDir(), log.Options{})
			if err != nil {
				b.Fatal(err)
			}
			batch := plain(big("x", size))
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Write(0, batch); err != nil {
					b.Fatal(err)
				}
			}
			mustClose(b, l)
		})
	}
	b.Run("writers=64/sync=true", func(b *testing.B) {
		l, err := log.Open(b.Context(), b.TempDir(), log.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(1000)
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			batch := plain(big("x", 1000))
			for pb.Next() {
				if _, err := l.Append(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
		})
		mustClose(b, l)
	})
}

func BenchmarkRead(b *testing.B) {
	l, err := log.Open(b.Context(), b.TempDir(), log.Options{})
	if err != nil {
		b.Fatal(err)
	}
	batch := plain(big("x", 1000))
	const n = 50_000
	for range n {
		if _, err := l.Write(0, batch); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("bytes=1MiB", func(b *testing.B) {
		b.ReportAllocs()
		var off log.Offset
		var bytes int64
		for b.Loop() {
			s, err := l.Read(b.Context(), off, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			bytes += int64(s.Len())
			if off = s.End(); off >= n-2000 {
				off = 0
			}
			s.Release()
		}
		b.ReportMetric(float64(bytes)/b.Elapsed().Seconds()/1e6, "MB/s")
	})
	mustClose(b, l)
}

// BenchmarkWriteRecords writes 100 records of 1 KiB at a time, unsynced, over recycled
// segments: with -cpuprofile it tells what of that is the kernel's.
func BenchmarkWriteRecords(b *testing.B) {
	l, err := log.Open(b.Context(), b.TempDir(), log.Options{})
	if err != nil {
		b.Fatal(err)
	}
	recs := make([]record.Record, 100)
	for i := range recs {
		recs[i].Value = bytes.Repeat([]byte{byte(i)}, 1<<10)
	}
	b.SetBytes(100 << 10)
	for i := 1; b.Loop(); i++ {
		if _, err := l.WriteRecords(0, recs...); err != nil {
			b.Fatal(err)
		}
		if i%2000 == 0 { // about three segments
			if err := l.TrimTo(b.Context(), l.Segments()[len(l.Segments())-1].Base); err != nil {
				b.Fatal(err)
			}
		}
	}
	mustClose(b, l)
}
