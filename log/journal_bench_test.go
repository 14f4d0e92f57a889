package log_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// BenchmarkJournal appends small batches to many logs of one disk, one in flight on
// each, with the journal and without.
func BenchmarkJournal(b *testing.B) {
	for _, logs := range []int{1, 2, 4, 16, 100, 1000} {
		for _, size := range []int{1000, 16 << 10, 60 << 10} {
			for _, journal := range []int64{-1, 0} {
				b.Run(fmt.Sprintf("logs=%d/size=%d/journal=%v", logs, size, journal == 0), func(b *testing.B) {
					benchmarkJournal(b, logs, size, log.DiskOptions{JournalBytes: journal})
				})
			}
		}
	}
}

func benchmarkJournal(b *testing.B, logs, size int, o log.DiskOptions) {
	ctx := context.Background()
	o.Dir = b.TempDir()
	d, err := log.NewDisk(o)
	if err != nil {
		b.Fatal(err)
	}
	all := make([]*log.Log, logs)
	for i := range all {
		if all[i], err = log.Open(ctx, fmt.Sprintf("%s/p%d", o.Dir, i), log.Options{Disk: d}); err != nil {
			b.Fatal(err)
		}
		if _, err := all[i].Append(ctx, plain("first")); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	waits := make([][]time.Duration, logs)
	each := b.N/logs + 1
	var wg sync.WaitGroup
	b.ResetTimer()
	for i, l := range all {
		wg.Go(func() {
			batch := plain(big("x", size))
			waits[i] = make([]time.Duration, 0, each)
			for range each {
				t := time.Now()
				if _, err := l.Append(ctx, batch); err != nil {
					b.Error(err)
					return
				}
				waits[i] = append(waits[i], time.Since(t))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	w := slices.Concat(waits...)
	slices.Sort(w)
	b.ReportMetric(float64(len(w))/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(float64(w[len(w)/2].Microseconds())/1e3, "p50-ms")
	b.ReportMetric(float64(w[len(w)*99/100].Microseconds())/1e3, "p99-ms")
	groups, entries, _, flushes := log.JournalStats(d)
	if groups > 0 {
		b.ReportMetric(float64(entries)/float64(groups), "logs/group")
		b.ReportMetric(float64(flushes), "flushes")
	}
	for _, l := range all {
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
}
