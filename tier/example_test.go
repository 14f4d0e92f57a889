package tier_test

import (
	"context"
	"fmt"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
)

// A log on one machine whose sealed segments age into an object store. Here all of
// it is in memory: with log.OSFS (the default) and dirstore it is on disk.
func ExampleOpen() {
	ctx := context.Background()
	disk := logtest.NewFS(1)
	hot, err := log.Open(ctx, "data/log", log.Options{FS: disk, SegmentBytes: 4 << 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hot.Close()
	events, err := tier.OpenLocalEvents(ctx, "data/events", tier.LocalOptions{FS: disk})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer events.Close()
	t, err := tier.Open(ctx, hot, tier.Options{Store: memstore.New(), Events: events})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()

	for i := range 200 {
		if _, err := t.AppendRecords(ctx, log.Record{Value: fmt.Appendf(nil, "record %d", i)}); err != nil {
			fmt.Println(err)
			return
		}
	}
	for { // until what is sealed is in the store and gone from the disk
		_, waiting := t.Partition().Backlog()
		if end := t.Partition().View().TierEnd; waiting == 0 && end > 0 && hot.LocalStart() == end {
			break
		}
		time.Sleep(time.Millisecond)
	}
	n := 0
	for r, err := range t.Records(ctx, 0) { // cold and hot alike
		if err != nil {
			fmt.Println(err)
			return
		}
		if n == 0 {
			fmt.Printf("%s\n", r.Value)
		}
		n++
	}
	v := t.Partition().View()
	fmt.Println(n, "records, tier", v.Presence(), "up to where the disk begins:", v.TierEnd == hot.LocalStart())
	// Output:
	// record 0
	// 200 records, tier present up to where the disk begins: true
}

// The defaults of the options.
func ExampleOptions() {
	fmt.Println("chunk", tier.DefaultChunkBytes>>20, "MiB; cache", tier.DefaultCacheBytes>>20, "MiB in", tier.DefaultCacheChunks, "parts")
	fmt.Println("cold reads", tier.DefaultReads, "at once,", tier.DefaultReadBytes>>20, "MiB; uploads", tier.DefaultUploads, "within", tier.DefaultUploadDeadline)
	fmt.Println("pass every", tier.DefaultInterval, "requests", tier.DefaultStoreTimeout, "events", tier.DefaultEventTimeout, "backoff", tier.DefaultMinBackoff, "to", tier.DefaultMaxBackoff)
	fmt.Println("checkpoint after", tier.DefaultCheckpointEvents, "events or", tier.DefaultCheckpointInterval)
	// Output:
	// chunk 4 MiB; cache 64 MiB in 4096 parts
	// cold reads 16 at once, 32 MiB; uploads 2 within 1h0m0s
	// pass every 30s requests 30s events 10s backoff 100ms to 15s
	// checkpoint after 1000 events or 10m0s
}

// The state of a partition is a pure function of its events.
func ExampleState_Apply() {
	var s tier.State
	p := log.PartitionID{Topic: log.TopicID{1}}
	for _, e := range []tier.Event{
		{Partition: p, Epoch: 1, Body: tier.Barrier{}},
		{Partition: p, Epoch: 1, Seq: 1, Body: tier.CopyStarted{ID: tier.ID{1}, Base: 0, End: 100, Deadline: time.UnixMilli(9)}},
		{Partition: p, Epoch: 1, Seq: 2, Body: tier.CopyFinished{ID: tier.ID{1}, BatchBytes: 10, ObjectBytes: 30, TailBytes: 10}},
		{Partition: p, Epoch: 1, Seq: 2, Body: tier.CopyFinished{ID: tier.ID{1}, BatchBytes: 10, ObjectBytes: 30, TailBytes: 10}},
		{Partition: p, Epoch: 0, Seq: 3, Body: tier.LogStart{Start: 50, Cause: tier.Cause{Kind: tier.CauseRequest}}},
	} {
		fmt.Println(s.Apply(e))
	}
	fmt.Println("tier end", s.TierEnd())
	// Output:
	// applied
	// applied
	// applied
	// ignored: sequence
	// ignored: epoch
	// tier end 100
}
