package log_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "cordwood")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	l, err := log.Open(ctx, dir, log.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range []string{"ash", "beech", "cedar"} {
		if _, err := l.AppendRecords(ctx, log.Record{Value: []byte(s)}); err != nil {
			fmt.Println(err)
			return
		}
	}
	for r, err := range l.Records(ctx, 1) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(r.Offset, string(r.Value))
	}
	fmt.Println(l.Close())
	// Output:
	// 1 beech
	// 2 cedar
	// <nil>
}

// A crash loses what was only written, and nothing that was acknowledged.
func ExampleLog_Sync() {
	ctx := context.Background()
	disk := logtest.NewFS(1)
	l, err := log.Open(ctx, "/data", log.Options{FS: disk})
	if err != nil {
		fmt.Println(err)
		return
	}
	write := func(s string) {
		if _, err := l.Write(0, plain(s)); err != nil {
			fmt.Println(err)
		}
	}
	write("synced")
	if _, err := l.Sync(ctx); err != nil {
		fmt.Println(err)
	}
	write("only written")
	fmt.Println("end", l.End(), "durable end", l.DurableEnd())

	l, err = log.Open(ctx, "/data", log.Options{FS: disk.Crash()})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("after the crash: end", l.End())
	fmt.Println(l.Close())
	// Output:
	// end 2 durable end 1
	// after the crash: end 1
	// <nil>
}

func ExampleLog_EndOffset() {
	ctx := context.Background()
	l, err := log.Open(ctx, "/data", log.Options{FS: logtest.NewFS(1)})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, epoch := range []log.Epoch{1, 1, 4} {
		if _, err := l.Write(epoch, plain("x")); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(l.EpochChain())
	fmt.Println(l.EndOffset(3))
	fmt.Println(l.Close())
	// Output:
	// [{1 0} {4 2}]
	// 1 2
	// <nil>
}

func ExampleLog_OffsetForTime() {
	ctx := context.Background()
	l, err := log.Open(ctx, "/data", log.Options{FS: logtest.NewFS(1)})
	if err != nil {
		fmt.Println(err)
		return
	}
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for i := range 5 {
		if _, err := l.AppendRecords(ctx, log.Record{Timestamp: noon.Add(time.Duration(i) * time.Minute)}); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(l.OffsetForTime(ctx, noon.Add(150*time.Second)))
	fmt.Println(l.Close())
	// Output:
	// 3 true <nil>
	// <nil>
}

func ExampleOptions() {
	fmt.Println("SegmentBytes", log.DefaultSegmentBytes)
	fmt.Println("MaxBatchBytes", log.DefaultMaxBatchBytes)
	fmt.Println("ProducerExpiry", log.DefaultProducerExpiry)
	fmt.Println("OpenFiles", log.DefaultOpenFiles)
	fmt.Println("BlockingCalls", log.DefaultBlockingCalls)
	fmt.Println("Syncers", log.DefaultSyncers)
	fmt.Println("JournalBytes", log.DefaultJournalBytes)
	fmt.Println("HeldBytes", log.DefaultHeldBytes)
	fmt.Println("RecycledBytes", log.DefaultRecycledBytes)
	// Output:
	// SegmentBytes 67108864
	// MaxBatchBytes 1114173
	// ProducerExpiry 24h0m0s
	// OpenFiles 4096
	// BlockingCalls 256
	// Syncers 16
	// JournalBytes 536870912
	// HeldBytes 67108864
	// RecycledBytes 1073741824
}

// A reader of committed records reads up to the last stable offset, and leaves out the
// transactional batches that lie in an aborted transaction of their producer.
func ExampleLog_AbortedTransactions() {
	ctx := context.Background()
	l, err := log.Open(ctx, "data/orders-0", log.Options{FS: logtest.NewFS(1)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	send := func(producer int64, value string) {
		var b record.Builder
		b.SetProducer(producer, 0, 0)
		b.SetTransactional()
		err := b.Append(log.Record{Value: []byte(value)})
		var batch record.Batch
		if err == nil {
			batch, err = b.Build()
		}
		if err == nil {
			_, err = l.Append(ctx, batch.Bytes())
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	end := func(producer int64, commit bool) {
		if _, err := l.WriteControl(0, record.EndTxn(commit, producer, 0, 0, time.Now())); err != nil {
			fmt.Println(err)
		}
	}
	send(1, "committed")
	send(2, "aborted")
	end(1, true)
	end(2, false)
	send(3, "open")

	stable := l.LastStable()
	aborted, err := l.AbortedTransactions(ctx, 0, stable)
	if err != nil {
		fmt.Println(err)
		return
	}
	for at := log.Offset(0); at < stable; {
		s, err := l.ReadBelow(ctx, at, stable, 1<<20)
		if err != nil {
			fmt.Println(err)
			return
		}
		for b, err := range s.Batches() {
			if err != nil {
				fmt.Println(err)
				return
			}
			void := b.IsTransactional() && slices.ContainsFunc(aborted, func(a log.AbortedTxn) bool {
				return a.Producer == b.ProducerID() && a.First <= b.BaseOffset() && b.BaseOffset() <= a.Last
			})
			if void || b.IsControl() {
				continue
			}
			for r, err := range b.Records() {
				if err != nil {
					fmt.Println(err)
					return
				}
				fmt.Printf("%d %s\n", r.Offset, r.Value)
			}
		}
		at = s.End()
	}
	fmt.Println("stable below", stable, "of", l.End())
	// Output:
	// 0 committed
	// stable below 4 of 5
}
