package record

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A ControlType says what a control record means, by Kafka's number.
type ControlType int16

// Kafka's control records. The numbers are on disks and wires and must not change.
const (
	ControlAbort        ControlType = 0 // ends a transaction: its records are void
	ControlCommit       ControlType = 1 // ends a transaction: its records are valid
	ControlLeaderChange ControlType = 2 // first batch of a leader's epoch
)

// String names the type.
func (c ControlType) String() string {
	switch c {
	case ControlAbort:
		return "abort"
	case ControlCommit:
		return "commit"
	case ControlLeaderChange:
		return "leader change"
	}
	return fmt.Sprintf("control(%d)", int16(c))
}

// ControlType returns what the first record of a control batch means. Types that
// this package has no name for are returned like any other: readers step over
// them. It returns an [*InvalidError] if the batch is no control batch or its key
// can't be read.
func (b Batch) ControlType() (ControlType, error) {
	if !b.IsControl() {
		return 0, invalid(b.BaseOffset(), "no control batch")
	}
	for r, err := range b.Records() {
		if err != nil {
			return 0, err
		}
		// A version above 0 may be longer, but begins alike.
		if len(r.Key) < controlKeyBytes || int16(binary.BigEndian.Uint16(r.Key)) < 0 {
			return 0, invalid(b.BaseOffset(), "control record with a key of %d bytes", len(r.Key))
		}
		return ControlType(binary.BigEndian.Uint16(r.Key[2:])), nil
	}
	return 0, invalid(b.BaseOffset(), "control batch without a record")
}

// Layout of a control record; numbers are big-endian.
//
//	key:    2  version: 0
//	        2  type
//	value of abort and commit:
//	        2  version: 0
//	        4  coordinator epoch
//	value of leader change, Kafka's LeaderChangeMessage version 0:
//	        2  version: 0
//	        4  leader
//	   varint  number of voters + 1 (unsigned); for each
//	        4    voter
//	        1    number of tagged fields: 0
//	   varint  number of voters that granted their vote + 1 (unsigned), as above
//	        1  number of tagged fields: 0
const controlKeyBytes = 4

// LeaderChange returns the control batch that a leader appends first in its epoch,
// as KRaft writes it: with the leader's id and the ids of those that could have
// been it. Nobody votes for a leader here, so the list of granted votes is empty.
// The base offset is 0 until [Batch.SetBaseOffset].
//
// Source: KIP-595, LeaderChangeMessage.
func LeaderChange(epoch Epoch, leader int32, voters []int32, now time.Time) Batch {
	value := make([]byte, 0, 16+5*len(voters))
	value = append(value, 0, 0)
	value = binary.BigEndian.AppendUint32(value, uint32(leader))
	value = binary.AppendUvarint(value, uint64(len(voters))+1)
	for _, v := range voters {
		value = binary.BigEndian.AppendUint32(value, uint32(v))
		value = append(value, 0)
	}
	value = append(value, 1, 0)
	return control(ControlLeaderChange, value, now, header{
		leaderEpoch:   epoch,
		attributes:    controlBit,
		producerID:    NoProducer,
		producerEpoch: -1,
		baseSequence:  -1,
	})
}

// EndTxn returns the control batch that ends the open transaction of a producer in
// one partition. The base offset is 0 and the leader epoch [NoEpoch] until they
// are set.
//
// Source: KIP-98, EndTransactionMarker.
func EndTxn(commit bool, producerID int64, producerEpoch int16, coordinatorEpoch int32, now time.Time) Batch {
	kind := ControlAbort
	if commit {
		kind = ControlCommit
	}
	value := binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(coordinatorEpoch))
	return control(kind, value, now, header{
		leaderEpoch:   NoEpoch,
		attributes:    controlBit | transactionalBit,
		producerID:    producerID,
		producerEpoch: producerEpoch,
		baseSequence:  -1,
	})
}

func control(kind ControlType, value []byte, now time.Time, h header) Batch {
	key := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(kind))
	var b Builder
	if err := b.Append(Record{Timestamp: now, Key: key, Value: value}); err != nil {
		panic(err) // only for a list of voters of 2 GiB
	}
	h.count, h.baseTimestamp, h.maxTimestamp = 1, b.baseTimestamp, b.maxTimestamp
	return h.seal(b.buf)
}
