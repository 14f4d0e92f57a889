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

// BenchmarkJournal appends batches of several sizes to several logs of one disk, one in
// flight on each, by the journal and by a sync of each file. That is the curve by which
// journalLogBytes was chosen, see docs/performance.md. An iteration is 300 ms of appends:
//
//	go test -run ^$ -bench Journal -benchtime 1x ./log
func BenchmarkJournal(b *testing.B) {
	for _, logs := range []int{2, 8, 64, 512} {
		for _, size := range []int{1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10} {
			for _, journal := range []bool{false, true} {
				b.Run(fmt.Sprintf("logs=%d/size=%d/journal=%v", logs, size, journal), func(b *testing.B) {
					benchmarkJournal(b, logs, size, journal)
				})
			}
		}
	}
}

func benchmarkJournal(b *testing.B, logs, size int, journal bool) {
	ctx := context.Background()
	o := log.DiskOptions{Dir: b.TempDir()}
	if !journal {
		o.JournalBytes = -1
	}
	d, err := log.NewDisk(o)
	if err != nil {
		b.Fatal(err)
	}
	if journal {
		log.SetJournalLogBytes(d, 1<<20)
	}
	all := make([]*log.Log, logs)
	each := func(do func(i int) error) {
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() {
				if err := do(i); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	each(func(i int) error {
		l, err := log.Open(ctx, fmt.Sprintf("%s/p%d", o.Dir, i), log.Options{Disk: d})
		if err != nil {
			return err
		}
		all[i] = l
		_, err = l.Append(ctx, plain(big("x", size)))
		return err
	})
	if b.Failed() {
		return
	}
	waits := make([][]time.Duration, logs)
	b.ResetTimer()
	each(func(i int) error {
		batch := plain(big("x", size))
		for last := time.Now(); b.Elapsed() < time.Duration(b.N)*300*time.Millisecond; {
			if _, err := all[i].Append(ctx, batch); err != nil {
				return err
			}
			now := time.Now()
			waits[i] = append(waits[i], now.Sub(last))
			last = now
		}
		return nil
	})
	b.StopTimer()
	w := slices.Concat(waits...)
	slices.Sort(w)
	b.ReportMetric(float64(len(w))/b.Elapsed().Seconds(), "appends/s")
	b.ReportMetric(float64(w[len(w)/2].Microseconds())/1e3, "p50-ms")
	b.ReportMetric(float64(w[len(w)*99/100].Microseconds())/1e3, "p99-ms")
	if journal {
		groups, entries, direct, flushes := log.JournalStats(d)
		b.ReportMetric(float64(entries)/float64(max(1, groups)), "logs/group")
		b.ReportMetric(float64(direct), "direct")
		b.ReportMetric(float64(flushes), "flushes")
	}
	each(func(i int) error { return all[i].Close() })
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
}
