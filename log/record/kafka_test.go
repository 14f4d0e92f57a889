package record_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// TestKafkaClient reads what Kafka's Java client has written, and writes the same
// bytes where no compressor is in between.
func TestKafkaClient(t *testing.T) {
	text, err := os.ReadFile("testdata/kafka-clients-4.3.1.txt")
	if err != nil {
		t.Fatal(err)
	}
	batches := map[string]record.Batch{}
	for line := range strings.Lines(string(text)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "#" {
			continue
		}
		raw, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		b, rest, err := record.Next(raw, 0)
		if err != nil || len(rest) != 0 || b.Verify() != nil {
			t.Fatalf("%s: %v, rest %d, %v", name, err, len(rest), b.Verify())
		}
		batches[name] = b
	}
	at := time.UnixMilli(1764417600000).UTC()
	want := []record.Record{
		{Offset: 1000, Timestamp: at, Key: []byte("key"), Value: []byte("value")},
		{Offset: 1001, Timestamp: at.Add(-time.Second), Value: []byte{}, Headers: []record.Header{{Key: "h", Value: []byte("x")}, {Key: ""}}},
		{Offset: 1002, Key: []byte{}},
		{Offset: 1003, Timestamp: at.Add(time.Millisecond), Value: bytes.Repeat([]byte("z"), 70000)}, // more than a block of any codec
	}
	for _, codec := range codecs {
		b := batches[codec.String()]
		want := want
		if codec == record.None {
			want = want[:3]
		}
		if err := b.VerifyNew(); err != nil {
			t.Fatalf("%v: %v", codec, err)
		}
		if got := collect(t, b); !reflect.DeepEqual(got, want) {
			t.Errorf("%v: records = %.300v\nwant %.300v", codec, fmt.Sprint(got), fmt.Sprint(want))
		}
		if b.Compression() != codec || b.ProducerID() != 4242 || b.ProducerEpoch() != 3 || b.BaseSequence() != 17 || !b.IsTransactional() || b.LeaderEpoch() != 5 {
			t.Errorf("%v: header %v", codec, b)
		}
		ours := &record.Builder{Compression: codec}
		for _, r := range want {
			if err := ours.Append(r); err != nil {
				t.Fatal(err)
			}
		}
		ours.SetProducer(4242, 3, 17)
		ours.SetTransactional()
		again, err := ours.Build()
		if err != nil {
			t.Fatal(err)
		}
		again.SetBaseOffset(1000)
		again.SetLeaderEpoch(5)
		if codec == record.None && !bytes.Equal(again.Bytes(), b.Bytes()) {
			t.Errorf("batch = %x\nwant    %x", again.Bytes(), b.Bytes())
		}
	}
	for name, ours := range map[string]record.Batch{
		"leader-change": record.LeaderChange(12, 2, []int32{1, 2, 300}, at),
		"commit":        record.EndTxn(true, 77, 3, 9, at),
		"abort":         record.EndTxn(false, 77, 3, 9, at),
	} {
		ours.SetBaseOffset(7)
		ours.SetLeaderEpoch(12)
		if !bytes.Equal(ours.Bytes(), batches[name].Bytes()) {
			t.Errorf("%s = %x\nwant %x", name, ours.Bytes(), batches[name].Bytes())
		}
	}
}
