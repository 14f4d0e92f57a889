package byhand

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/replication"
)

// Limits of what one message between nodes asks for or carries.
const (
	maxReadBytes   = 8 << 20   // bytes of batches in one read answer, one larger batch aside
	maxReadWait    = time.Hour // how long a read may be parked for data
	maxAppendItems = 64        // batches in one append request
)

// A code is how an answer says what went wrong. The numbers must not change.
type code uint8

const (
	codeOK                 code = 0
	codeNotLeader          code = 1 // detail: leader id
	codeUnknownPartition   code = 2 // this node holds no replica of it
	codeOutOfRange         code = 3 // offset below the log start or above the end
	codeRetry              code = 4 // not possible at this moment, nothing happened
	codeNotEnoughReplicas  code = 5 // before the append
	codeIndeterminate      code = 6 // after the append
	codeOutOfOrderSequence code = 7
	codeUnknownProducer    code = 8
	codeProducerFenced     code = 9
	codeDuplicateUnknown   code = 10
	codeTooLarge           code = 11
	codeInvalidBatch       code = 12
	codeControlBatch       code = 13
	codeDiskFull           code = 14
	codeCorrupt            code = 15
	codeFailed             code = 16 // detail: text
	codeTxnState           code = 17
	codeCoordinatorFenced  code = 18
)

// wireErrors pairs each error that has a code of its own with it, in the order in
// which they are looked for.
var wireErrors = []struct {
	code code
	err  error
}{
	{codeUnknownPartition, ErrUnknownPartition},
	{codeOutOfRange, log.ErrOffsetOutOfRange},
	{codeNotEnoughReplicas, replication.ErrNotEnoughReplicas},
	{codeOutOfOrderSequence, log.ErrOutOfOrderSequence},
	{codeUnknownProducer, log.ErrUnknownProducer},
	{codeProducerFenced, log.ErrProducerFenced},
	{codeDuplicateUnknown, log.ErrDuplicateUnknownOffset},
	{codeTooLarge, log.ErrTooLarge},
	{codeInvalidBatch, log.ErrInvalidBatch},
	{codeControlBatch, log.ErrControlBatch},
	{codeTxnState, log.ErrTxnState},
	{codeCoordinatorFenced, log.ErrCoordinatorFenced},
	{codeDiskFull, log.ErrDiskFull},
	{codeRetry, errRetry},
}

// errRetry says that nothing happened and that the same may succeed in a moment.
var errRetry = errors.New("cordwood: not possible at this moment")

// passing reports whether err is that of a leader which is about to begin, to end
// or to give up leading: nothing happened, and this leader or the next one takes the
// same in a moment.
func passing(err error) bool {
	return errors.Is(err, ErrNotInitialized) ||
		errors.Is(err, replication.ErrClosed) || errors.Is(err, log.ErrClosed) ||
		errors.Is(err, replication.ErrLossy) || errors.Is(err, replication.ErrQuarantined)
}

// A remoteError is an error of the leader, as this node was told of it.
type remoteError struct {
	err  error // the sentinel, or nil
	text string
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.err }

// appendError writes err as a code, a number and a text.
func appendError(b []byte, err error) []byte {
	c, detail := codeFailed, int32(0)
	var notLeader *replication.NotLeaderError
	var indeterminate *replication.IndeterminateError
	var corrupt *log.CorruptionError
	switch {
	case err == nil:
		return append(b, byte(codeOK))
	case errors.As(err, &notLeader):
		c, detail = codeNotLeader, int32(notLeader.Leader)
	case errors.As(err, &indeterminate):
		c = codeIndeterminate
	case errors.As(err, &corrupt):
		c = codeCorrupt
	case passing(err):
		c = codeRetry
	default:
		for _, w := range wireErrors {
			if errors.Is(err, w.err) {
				c = w.code
				break
			}
		}
	}
	b = append(b, byte(c))
	b = binary.BigEndian.AppendUint32(b, uint32(detail))
	return appendString(b, err.Error())
}

// error reads what appendError wrote. The outer error says that the body is
// malformed.
func (d *decoder) error() (remote error) {
	c := code(d.u8())
	if d.err != nil || c == codeOK {
		return nil
	}
	detail := int32(d.u32())
	text := d.str()
	if d.err != nil {
		return nil
	}
	switch c {
	case codeNotLeader:
		return &replication.NotLeaderError{Leader: replication.NodeID(detail)}
	case codeIndeterminate:
		return &replication.IndeterminateError{Err: &remoteError{text: text}}
	case codeCorrupt:
		return &log.CorruptionError{Path: "remote", Err: errors.New(text)}
	}
	for _, w := range wireErrors {
		if w.code == c {
			return &remoteError{err: w.err, text: text}
		}
	}
	return &remoteError{text: text}
}

// appendRequest asks the leader to append batches in this order.
//
//	version 1 | topic id 16 | partition 4 | acks 1 | count 2 | per batch: length 4, bytes
type appendRequest struct {
	partition log.PartitionID
	acks      replication.Acks
	batches   [][]byte
}

func (m appendRequest) encode() []byte {
	size := 1 + 16 + 4 + 1 + 2
	for _, p := range m.batches {
		size += 4 + len(p)
	}
	b := make([]byte, 0, size)
	b = append(b, messageVersion)
	b = appendPartition(b, m.partition)
	b = append(b, byte(m.acks))
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.batches)))
	for _, p := range m.batches {
		b = appendBytes(b, p)
	}
	return b
}

// decodeAppendRequest returns batches that alias b.
func decodeAppendRequest(b []byte) (m appendRequest, err error) {
	d := decoder{b: b}
	d.version()
	m.partition = d.partition()
	if m.acks = replication.Acks(d.u8()); d.err == nil && m.acks > replication.AcksNone {
		return m, fmt.Errorf("%w: acks %d", errMalformed, m.acks)
	}
	n := int(d.u16())
	if n > maxAppendItems {
		return m, fmt.Errorf("%w: %d batches in one append", errMalformed, n)
	}
	for ; n > 0 && d.err == nil; n-- {
		m.batches = append(m.batches, d.bytes())
	}
	return m, d.end()
}

// An appendResult is the fate of one batch of a request.
//
//	error (code 1 [| detail 4 | text]) | base 8 | end 8 | epoch 4 | duplicate 1
type appendResult struct {
	appended log.Appended
	err      error
}

func encodeAppendResults(rs []appendResult) []byte {
	b := append(make([]byte, 0, 8+24*len(rs)), messageVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(len(rs)))
	for _, r := range rs {
		b = appendError(b, r.err)
		b = binary.BigEndian.AppendUint64(b, uint64(r.appended.Base))
		b = binary.BigEndian.AppendUint64(b, uint64(r.appended.End))
		b = binary.BigEndian.AppendUint32(b, uint32(r.appended.Epoch))
		if r.appended.Duplicate {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	return b
}

func decodeAppendResults(b []byte) (rs []appendResult, err error) {
	d := decoder{b: b}
	d.version()
	for n := min(int(d.u16()), maxAppendItems); n > 0 && d.err == nil; n-- {
		r := appendResult{err: d.error()}
		r.appended.Base = log.Offset(d.u64())
		r.appended.End = log.Offset(d.u64())
		r.appended.Epoch = log.Epoch(d.u32())
		r.appended.Duplicate = d.u8() == 1
		rs = append(rs, r)
	}
	return rs, d.end()
}

// readRequest asks the leader for batches from an offset on, below the high
// watermark.
//
//	version 1 | topic id 16 | partition 4 | from 8 | max bytes 4 | wait milliseconds 4
type readRequest struct {
	partition log.PartitionID
	from      log.Offset
	maxBytes  int
	wait      time.Duration // how long to wait for data at the end; 0 answers at once
}

func (m readRequest) encode() []byte {
	b := append(make([]byte, 0, 48), messageVersion)
	b = appendPartition(b, m.partition)
	b = binary.BigEndian.AppendUint64(b, uint64(m.from))
	b = binary.BigEndian.AppendUint32(b, uint32(m.maxBytes))
	return binary.BigEndian.AppendUint32(b, uint32(m.wait.Milliseconds()))
}

func decodeReadRequest(b []byte) (m readRequest, err error) {
	d := decoder{b: b}
	d.version()
	m.partition = d.partition()
	m.from = log.Offset(d.u64())
	m.maxBytes = int(min(d.u32(), maxReadBytes))
	m.wait = min(time.Duration(d.u32())*time.Millisecond, maxReadWait)
	return m, d.end()
}

// readHeader comes before the batches of an answer to a read.
//
//	version 1 | error | cold 1 | log start 8 | high watermark 8
type readHeader struct {
	err   error
	cold  bool // the batches come from the object store
	start log.Offset
	high  log.Offset
}

func (m readHeader) encode() []byte {
	b := append(make([]byte, 0, 48), messageVersion)
	b = appendError(b, m.err)
	if m.cold {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(m.start))
	return binary.BigEndian.AppendUint64(b, uint64(m.high))
}

func decodeReadHeader(b []byte) (m readHeader, err error) {
	d := decoder{b: b}
	d.version()
	m.err = d.error()
	m.cold = d.u8() == 1
	m.start = log.Offset(d.u64())
	m.high = log.Offset(d.u64())
	return m, d.end()
}

// Offsets are the ends of a partition, as its leader knows them.
//
//	version 1 | error | log start 8 | local start 8 | tier end 8 | high watermark 8 | end 8 | leader 4 | leader epoch 4
type Offsets struct {
	Start         log.Offset // log start offset: the first record that can be read
	LocalStart    log.Offset // first offset on the leader's local disk
	TierEnd       log.Offset // end of what is finished in the object store; Start where there is nothing
	HighWatermark log.Offset // end of what is committed and can be read
	End           log.Offset // end of the leader's log
	Leader        int32      // node id of the leader that answered
	LeaderEpoch   log.Epoch  // its leader epoch
}

func encodeOffsets(o Offsets, err error) []byte {
	b := append(make([]byte, 0, 64), messageVersion)
	b = appendError(b, err)
	for _, v := range []log.Offset{o.Start, o.LocalStart, o.TierEnd, o.HighWatermark, o.End} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(o.Leader))
	return binary.BigEndian.AppendUint32(b, uint32(o.LeaderEpoch))
}

func decodeOffsets(b []byte) (o Offsets, remote, err error) {
	d := decoder{b: b}
	d.version()
	remote = d.error()
	for _, v := range []*log.Offset{&o.Start, &o.LocalStart, &o.TierEnd, &o.HighWatermark, &o.End} {
		*v = log.Offset(d.u64())
	}
	o.Leader = int32(d.u32())
	o.LeaderEpoch = log.Epoch(d.u32())
	return o, remote, d.end()
}

func encodePartition(p log.PartitionID) []byte {
	return appendPartition(append(make([]byte, 0, 21), messageVersion), p)
}

func decodePartition(b []byte) (log.PartitionID, error) {
	d := decoder{b: b}
	d.version()
	p := d.partition()
	return p, d.end()
}

func appendPartition(b []byte, p log.PartitionID) []byte {
	b = append(b, p.Topic[:]...)
	return binary.BigEndian.AppendUint32(b, uint32(p.Index))
}

func (d *decoder) partition() log.PartitionID {
	return log.PartitionID{Topic: d.id(), Index: int32(d.u32())}
}

// joinAnswer tells a new node what cluster it joins.
//
//	version 1 | cluster id 16 | count 2 | per voter: id 4, address
type joinAnswer struct {
	cluster ID
	voters  []Voter
}

func (m joinAnswer) encode() []byte {
	b := append(make([]byte, 0, 128), messageVersion)
	b = append(b, m.cluster[:]...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.voters)))
	for _, v := range m.voters {
		b = binary.BigEndian.AppendUint32(b, uint32(v.ID))
		b = appendString(b, v.Addr)
	}
	return b
}

func decodeJoinAnswer(b []byte) (m joinAnswer, err error) {
	d := decoder{b: b}
	d.version()
	m.cluster = d.id()
	for n := int(d.u16()); n > 0 && d.err == nil; n-- {
		m.voters = append(m.voters, Voter{ID: int32(d.u32()), Addr: d.str()})
	}
	return m, d.end()
}
