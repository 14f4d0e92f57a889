package log

import (
	"encoding/hex"
	"errors"
	"strconv"

	"github.com/cordwood-io/cordwood/log/record"
)

// Offset is the position of a record in one partition's log: 0, 1, 2, … without
// gaps. Ranges of offsets are half-open.
type Offset = record.Offset

// Epoch is a leader epoch: the number of the leadership under which a batch was
// appended. -1 stands for none.
type Epoch = record.Epoch

// Record is one key-value pair with its headers.
type Record = record.Record

// TopicID names one life of a topic. A topic that is deleted and created again
// gets another one.
//
// Source: KIP-516.
type TopicID [16]byte

// String returns the id as a UUID in its canonical text form.
func (t TopicID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], t[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], t[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], t[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], t[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], t[10:16])
	return string(b[:])
}

// IsZero reports whether the id is all zeros, which stands for no topic.
func (t TopicID) IsZero() bool { return t == TopicID{} }

// ParseTopicID parses what [TopicID.String] returns.
func ParseTopicID(s string) (TopicID, error) {
	var t TopicID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return TopicID{}, errors.New("log: topic id is not a UUID: " + strconv.Quote(s))
	}
	at := 0
	for _, part := range [...]string{s[0:8], s[9:13], s[14:18], s[19:23], s[24:36]} {
		n, err := hex.Decode(t[at:], []byte(part))
		if err != nil {
			return TopicID{}, errors.New("log: topic id is not a UUID: " + strconv.Quote(s))
		}
		at += n
	}
	return t, nil
}

// PartitionID names one partition of a topic.
type PartitionID struct {
	Topic TopicID
	Index int32 // 0 to the topic's number of partitions, exclusive
}

// String returns the topic id, a hyphen and the index.
func (p PartitionID) String() string {
	return p.Topic.String() + "-" + strconv.Itoa(int(p.Index))
}

// EpochStart is one entry of a log's leader-epoch chain: Start is the offset of
// the first record of the epoch. Both fields ascend along a chain.
//
// Source: KIP-101.
type EpochStart struct {
	Epoch Epoch
	Start Offset
}
