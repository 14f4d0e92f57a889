package record_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

func Example() {
	b := record.Builder{Compression: record.Zstd}
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for i, word := range []string{"ash", "beech"} {
		err := b.Append(record.Record{
			Timestamp: at.Add(time.Duration(i) * time.Second),
			Key:       []byte(word),
			Value:     []byte("split"),
			Headers:   []record.Header{{Key: "stack", Value: []byte("7")}},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	batch, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	batch.SetBaseOffset(40) // as a leader does

	for r, err := range batch.Records() {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%d %s %s=%s %s=%s\n", r.Offset, r.Timestamp.Format(time.TimeOnly), r.Key, r.Value, r.Headers[0].Key, r.Headers[0].Value)
	}
	// Output:
	// 40 12:00:00 ash=split stack=7
	// 41 12:00:01 beech=split stack=7
}

// Bytes that came over a network or from a file may end in the middle of a batch.
func ExampleNext() {
	var b record.Builder
	var wire []byte
	for i := range 3 {
		b.Reset()
		if err := b.Append(record.Record{Value: fmt.Appendf(nil, "log %d", i)}); err != nil {
			fmt.Println(err)
			return
		}
		batch, err := b.Build()
		if err != nil {
			fmt.Println(err)
			return
		}
		wire = append(wire, batch.Bytes()...)
	}
	rest := wire[:len(wire)-5]
	for {
		batch, after, err := record.Next(rest, 1<<20)
		if errors.Is(err, record.ErrShort) {
			fmt.Println("wait for more after", len(rest), "bytes")
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		if err := batch.Verify(); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch.Size(), "bytes")
		rest = after
	}
	// Output:
	// 73 bytes
	// 73 bytes
	// wait for more after 68 bytes
}

func ExampleLeaderChange() {
	batch := record.LeaderChange(3, 1, []int32{1, 2, 3}, time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC))
	kind, err := batch.ControlType()
	fmt.Println(kind, err)
	fmt.Println(batch)
	// Output:
	// leader change <nil>
	// control batch [0,1) epoch 3, 1 records, 96 bytes, none
}
