package cordwood_test

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/tier/memstore"
)

// One node on a real disk, with an object store in memory.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "cordwood-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	n, err := cordwood.Open(ctx, cordwood.Options{ID: 1, Dir: dir, Listener: l, Store: memstore.New(), SystemReplication: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer n.Close()
	if err := n.Init(ctx, cordwood.NewID(), []cordwood.Voter{{ID: 1, Addr: l.Addr().String()}}); err != nil {
		fmt.Println(err)
		return
	}
	if err := n.Ready(ctx); err != nil {
		fmt.Println(err)
		return
	}
	if err := n.Tenant("").CreateTopic(ctx, "orders", cordwood.TopicConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	orders := n.Tenant("").Topic("orders")
	if _, err := orders.AppendRecords(ctx, 0, cordwood.Record{Value: []byte("tea")}, cordwood.Record{Value: []byte("rope")}); err != nil {
		fmt.Println(err)
		return
	}
	for r, err := range orders.Records(ctx, 0, 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s\n", r.Value)
	}
	// Output:
	// tea
	// rope
}

// The defaults of a node's options.
func ExampleOptions() {
	fmt.Println("tick", cordwood.DefaultTick)
	fmt.Println("session", cordwood.DefaultSession)
	fmt.Println("lag max", cordwood.DefaultLagMax)
	fmt.Println("system replication", cordwood.DefaultSystemReplication)
	fmt.Println("largest record", cordwood.DefaultMaxRecordBytes)
	fmt.Println("segment", cordwood.DefaultSegmentBytes)
	fmt.Println("cache", cordwood.DefaultCacheBytes)
	fmt.Println("fetch", cordwood.DefaultFetchBytes)
	fmt.Println("reserve", cordwood.DefaultReserveBytes)
	fmt.Println("uploads", cordwood.DefaultUploads)
	fmt.Println("request servers", cordwood.DefaultRequestServers)
	// Output:
	// tick 50ms
	// session 1.5s
	// lag max 10s
	// system replication 3
	// largest record 1048576
	// segment 67108864
	// cache 67108864
	// fetch 1048576
	// reserve 16777216
	// uploads 2
	// request servers 16
}
