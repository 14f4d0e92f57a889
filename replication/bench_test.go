package replication_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/replication"
)

// BenchmarkAppend is three managers in one process on disks in memory, 16 appenders
// on one partition: what the protocol itself costs.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("size=%dKiB", size>>10), func(b *testing.B) {
			c := newCluster(b, 3, replication.Options{})
			defer c.close()
			r := c.replica(1)
			if _, err := r.WaitReady(b.Context()); err != nil {
				b.Fatal(err)
			}
			value := make([]byte, size)
			for i := range value {
				value[i] = byte(rand.Uint32())
			}
			var builder record.Builder
			if err := builder.Append(record.Record{Value: value}); err != nil {
				b.Fatal(err)
			}
			x, err := builder.Build()
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			work := make(chan struct{}, 64)
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					own := append([]byte(nil), x.Bytes()...)
					for range work {
						if _, err := r.Append(b.Context(), own, replication.AcksAll); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
		})
	}
}
