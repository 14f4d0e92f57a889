package log_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
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
	// Output:
	// SegmentBytes 67108864
	// MaxBatchBytes 1114173
	// ProducerExpiry 24h0m0s
	// OpenFiles 4096
	// BlockingCalls 256
	// Syncers 16
}
