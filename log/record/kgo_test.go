package record_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A produceServer is as much of a broker as franz-go's producer needs. It keeps the
// batches that it was sent.
type produceServer struct {
	mu      sync.Mutex
	batches [][]byte
	errs    []error
	wg      sync.WaitGroup
}

// dial is for kgo.Dialer: each connection is a pipe in memory.
func (s *produceServer) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	s.wg.Go(func() {
		defer ours.Close() //nolint:errcheck // a pipe
		for {
			if err := s.serve(ours); err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
					s.mu.Lock()
					s.errs = append(s.errs, err)
					s.mu.Unlock()
				}
				return
			}
		}
	})
	return theirs, nil
}

// topicID is that of the one topic.
var topicID = [16]byte{1}

// serve answers one request.
func (s *produceServer) serve(c net.Conn) error {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	be := binary.BigEndian
	req := kmsg.RequestForKey(int16(be.Uint16(b)))
	if req == nil {
		return fmt.Errorf("key %d", be.Uint16(b))
	}
	version, correlation := int16(be.Uint16(b[2:])), b[4:8]
	req.SetVersion(version)
	body := b[10+max(0, int(int16(be.Uint16(b[8:])))):] // behind the client id
	if req.IsFlexible() {
		body = body[1:] // no tags
	}
	if err := req.ReadFrom(body); err != nil {
		return fmt.Errorf("key %d version %d: %w", req.Key(), version, err)
	}
	resp := req.ResponseKind()
	resp.SetVersion(version)
	acks := true
	switch r := req.(type) {
	case *kmsg.ApiVersionsRequest:
		a := resp.(*kmsg.ApiVersionsResponse)
		for key, top := range map[int16]int16{0: 11, 3: 12, 18: 3, 22: 4} {
			a.ApiKeys = append(a.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: top})
		}
	case *kmsg.MetadataRequest:
		a := resp.(*kmsg.MetadataResponse)
		a.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "pipe", Port: 9092}}
		a.ControllerID = 1
		a.Topics = []kmsg.MetadataResponseTopic{}
		for range r.Topics {
			a.Topics = append(a.Topics, kmsg.MetadataResponseTopic{Topic: new("t"), TopicID: topicID,
				Partitions: []kmsg.MetadataResponseTopicPartition{{Leader: 1, Replicas: []int32{1}, ISR: []int32{1}}}})
		}
	case *kmsg.InitProducerIDRequest:
		a := resp.(*kmsg.InitProducerIDResponse)
		a.ProducerID, a.ProducerEpoch = 4242, 3
	case *kmsg.ProduceRequest:
		a := resp.(*kmsg.ProduceResponse)
		s.mu.Lock()
		for _, t := range r.Topics {
			at := kmsg.NewProduceResponseTopic()
			at.Topic, at.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				s.batches = append(s.batches, bytes.Clone(p.Records))
				at.Partitions = append(at.Partitions, kmsg.NewProduceResponseTopicPartition())
			}
			a.Topics = append(a.Topics, at)
		}
		s.mu.Unlock()
		acks = r.Acks != 0
	}
	if !acks {
		return nil
	}
	out := append(make([]byte, 4), correlation...)
	if resp.IsFlexible() && resp.Key() != 18 {
		out = append(out, 0)
	}
	out = resp.AppendTo(out)
	be.PutUint32(out, uint32(len(out)-4))
	_, err := c.Write(out)
	return err
}

// produce sends records by franz-go's producer and returns the batches that it made.
func produce(t *testing.T, records []record.Record, opts ...kgo.Opt) [][]byte {
	t.Helper()
	var s produceServer
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers("pipe:9092"), kgo.Dialer(s.dial), kgo.DefaultProduceTopic("t"),
		kgo.ManualFlushing(), kgo.ProducerBatchMaxBytes(16 << 20), kgo.RetryTimeout(10 * time.Second),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		k := &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		client.Produce(t.Context(), k, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := client.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	client.Close()
	s.wg.Wait()
	for _, err := range s.errs {
		t.Error(err)
	}
	return s.batches
}

// forKgo are records whose times franz-go, which has them in nanoseconds, can hold.
func forKgo() []record.Record {
	return []record.Record{
		{Timestamp: noon, Key: []byte("key"), Value: []byte("value")},
		{Timestamp: noon.Add(-24 * 365 * 100 * time.Hour), Value: []byte("a hundred years before")},
		{Timestamp: noon.Add(24 * 365 * 200 * time.Hour), Key: []byte("two hundred after")},
		{Timestamp: time.UnixMilli(9_200_000_000_000).UTC(), Key: []byte{}, Value: []byte{}},
		{Timestamp: time.UnixMilli(0).UTC()},
		{Timestamp: noon, Value: bytes.Repeat([]byte("long "), 30000)},
		{Timestamp: noon, Headers: []record.Header{{Key: "k", Value: []byte("v")}, {Key: "", Value: nil}, {Key: "k", Value: []byte{}}}},
	}
}

// TestAgainstKgo: franz-go's producer and our builder make the same bytes where no
// compressor is in between, and each reads what the other has written with one.
func TestAgainstKgo(t *testing.T) {
	theirCodec := map[record.Compression]kgo.CompressionCodec{
		record.None: kgo.NoCompression(), record.Gzip: kgo.GzipCompression(), record.Snappy: kgo.SnappyCompression(),
		record.LZ4: kgo.Lz4Compression(), record.Zstd: kgo.ZstdCompression(),
	}
	for _, codec := range codecs {
		for _, idempotent := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v/idempotent=%v", codec, idempotent), func(t *testing.T) {
				want := forKgo()
				for i := range want {
					want[i].Offset = record.Offset(i)
				}
				opts := []kgo.Opt{kgo.ProducerBatchCompression(theirCodec[codec])}
				if !idempotent {
					opts = append(opts, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
				}
				batches := produce(t, want, opts...)
				for i := 0; len(batches) != 1 && i < 100; i++ {
					// A flush may begin before all records are buffered: then it takes two.
					batches = produce(t, want, opts...)
				}
				if len(batches) != 1 {
					t.Fatalf("got %d batches", len(batches))
				}
				theirs, rest, err := record.Next(batches[0], 0)
				if err != nil || len(rest) > 0 {
					t.Fatalf("%v, rest %d", err, len(rest))
				}
				if err := theirs.VerifyNew(); err != nil {
					t.Fatal(err)
				}
				if got := collect(t, theirs); theirs.Compression() != codec || !reflect.DeepEqual(got, want) {
					t.Errorf("%v: got %.300v\nwant %.300v", theirs, fmt.Sprint(got), fmt.Sprint(want))
				}
				b := record.Builder{Compression: codec}
				ours := build(t, &b, want...)
				if idempotent {
					ours.SetProducer(4242, 3, 0)
				} else {
					ours.SetProducer(record.NoProducer, -1, 0) // Kafka's own client has -1 for the sequence
				}
				ours.SetLeaderEpoch(theirs.LeaderEpoch())
				if codec == record.None && !bytes.Equal(ours.Bytes(), theirs.Bytes()) {
					t.Errorf("batch = %x\nwant    %x", ours.Bytes()[:120], theirs.Bytes()[:120])
				}
				for _, logAppendTime := range []bool{false, true} {
					ours := ours.Clone()
					ours.SetBaseOffset(1000)
					at := noon.Add(time.Hour)
					if logAppendTime {
						ours.SetLogAppendTime(at.UnixMilli())
					}
					got := readByKgo(t, ours.Bytes(), 1000, kgo.ReadUncommitted(), nil)
					if len(got) != len(want) {
						t.Fatalf("franz-go reads %d records of %d", len(got), len(want))
					}
					for i, k := range got {
						w := want[i]
						if logAppendTime {
							w.Timestamp = at
						}
						r := record.Record{Offset: record.Offset(k.Offset - 1000), Timestamp: k.Timestamp.UTC(), Key: k.Key, Value: k.Value}
						for _, h := range k.Headers {
							r.Headers = append(r.Headers, record.Header{Key: h.Key, Value: h.Value})
						}
						if !reflect.DeepEqual(r, w) {
							t.Errorf("franz-go reads %.200v\nwant %.200v", fmt.Sprint(r), fmt.Sprint(w))
						}
					}
				}
			})
		}
	}
}

// readByKgo decodes batches as franz-go's consumer does.
func readByKgo(t *testing.T, batches []byte, from int64, level kgo.IsolationLevel, aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction) []*kgo.Record {
	t.Helper()
	p := kmsg.NewFetchResponseTopicPartition()
	p.RecordBatches, p.AbortedTransactions, p.HighWatermark = batches, aborted, 1<<40
	got, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Offset: from, IsolationLevel: level, Topic: "t"}, &p, kgo.DefaultDecompressor(), nil)
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	return got.Records
}
