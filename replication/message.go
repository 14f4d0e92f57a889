package replication

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/cordwood-io/cordwood/log"
)

// Messages between nodes. All integers are big-endian. Every message begins with
// four bytes of magic, a version, and ends with a CRC32C over all bytes before it.
// A receiver refuses a version that it does not know. The page
// docs/format/replication-message.md says what the fields mean.
//
// Fetch request, magic "CWfq":
//
//	offset  size  field
//	     0     4  magic
//	     4     2  version = 1
//	     6     1  class: 0 live, 1 catch-up
//	     7     1  flags: bit 0 = full: begins a new session
//	     8     8  broker epoch of the sender
//	    16     8  session id
//	    24     4  number of this request in the session, from 0
//	    28     4  longest wait, ms
//	    32     4  most payload bytes in the answer
//	    36     4  n, number of partitions asked about
//	    40     4  m, number of partitions that left the session
//	    44  76·n  partitions: topic id 16, index 4, leader epoch 4, last epoch 4,
//	              most bytes 4, flags 4 (bit 0 = lossy), sequence 8,
//	              fetch offset 8, durable end 8, log start 8,
//	              high watermark known 8
//	     …  20·m  partitions that left: topic id 16, index 4
//	     …     4  CRC32C
//
// Fetch answer, magic "CWfa":
//
//	offset  size  field
//	     0     4  magic
//	     4     2  version = 1
//	     6     2  session status: 0 good, 1 begin a new session
//	     8     8  session id
//	    16     4  number of the request
//	    20     4  n, number of partitions
//	    24     …  partitions, each: topic id 16, index 4, status 2, 2 zero bytes,
//	              leader 4, leader epoch 4, epoch before the fetch offset 4,
//	              payload bytes 4, sequence 8, high watermark 8, log start 8,
//	              leader's end 8, divergence epoch 4, entries of the chain k 4,
//	              divergence end or start offset 8, producer bytes p 4,
//	              k × (epoch 4, start 8), p bytes
//	     …     4  CRC32C
//
// The payload follows outside the message: the partitions' batches in the order of
// the partitions, each covered by its own CRC.
//
// Progress, magic "CWpr":
//
//	offset  size  field
//	     0     4  magic
//	     4     2  version = 1
//	     6     1  class of the session that is to answer at once, if bit 0 of flags
//	     7     1  flags: bit 0 = answer the request below at once
//	     8     8  broker epoch of the sender
//	    16     8  session id
//	    24     4  number of the request
//	    28     4  n, number of partitions
//	    32  40·n  partitions: topic id 16, index 4, leader epoch 4, sequence of the
//	              last fetch 8, durable end 8
//	     …     4  CRC32C
const (
	messageVersion = 1

	requestHeader  = 44
	requestEntry   = 76
	leftEntry      = 20
	answerHeader   = 24
	answerEntry    = 92
	chainEntry     = 12
	progressHeader = 32
	progressBytes  = 40
	crcBytes       = 4

	// maxPartitions bounds one message; a session with more sends them in turns.
	maxPartitions = 1 << 16
	// maxChain and maxProducerBytes bound what a start from the tier carries.
	maxChain         = 1 << 20
	maxProducerBytes = 64 << 20
)

// Magic numbers; they must not change.
var (
	magicRequest  = [4]byte{'C', 'W', 'f', 'q'}
	magicAnswer   = [4]byte{'C', 'W', 'f', 'a'}
	magicProgress = [4]byte{'C', 'W', 'p', 'r'}
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// fetchStatus is the outcome of one partition's fetch. Numbers go over the wire and
// must not change.
type fetchStatus uint16

const (
	statusOK               fetchStatus = 0
	statusDiverging        fetchStatus = 1
	statusTierStart        fetchStatus = 2
	statusNotLeader        fetchStatus = 3
	statusFencedEpoch      fetchStatus = 4
	statusUnknownEpoch     fetchStatus = 5
	statusUnknownReplica   fetchStatus = 6
	statusFencedReplica    fetchStatus = 7
	statusUnknownPartition fetchStatus = 8
	statusRetry            fetchStatus = 9
	statusStale            fetchStatus = 10
	statusStarting         fetchStatus = 11 // not sent: the leader waits for its own epoch-start
	statusLimit            fetchStatus = 12
	statusMayCut           fetchStatus = 13
)

// fetchRequest is one partition of a fetch request.
type fetchRequest struct {
	Partition   log.PartitionID
	Seq         uint64
	LeaderEpoch log.Epoch
	LastEpoch   log.Epoch  // of the follower's last batch; -1: its log is empty
	MaxBytes    int32      // 0: the leader's choice
	Lossy       bool       // nothing it ever reported counts; it asks for leave to cut
	Pos         log.Offset // the follower's log end
	Durable     log.Offset
	LogStart    log.Offset
	HWKnown     log.Offset
}

// fetchAnswer is one partition of an answer.
type fetchAnswer struct {
	Partition    log.PartitionID
	Seq          uint64
	Status       fetchStatus
	Leader       NodeID
	LeaderEpoch  log.Epoch
	PrevEpoch    log.Epoch // epoch of the batch before the fetch offset
	PayloadBytes int32
	HW           log.Offset
	LogStart     log.Offset
	End          log.Offset // the leader's log end
	DivergeEpoch log.Epoch
	DivergeEnd   log.Offset
	Start        log.Offset // where to begin, with statusTierStart
	Chain        []log.EpochStart
	Producers    []byte
}

// progressEntry is one partition of a progress message.
type progressEntry struct {
	Partition   log.PartitionID
	LeaderEpoch log.Epoch
	Seq         uint64 // of the last fetch
	Durable     log.Offset
}

type requestMessage struct {
	CatchUp  bool
	Full     bool
	Epoch    int64
	Session  uint64
	N        uint32
	WaitMS   uint32
	MaxBytes uint32
	Parts    []fetchRequest
	Left     []log.PartitionID
}

type answerMessage struct {
	NewSession bool
	Session    uint64
	N          uint32
	Parts      []fetchAnswer
}

type progressMessage struct {
	CatchUp bool
	Wake    bool
	Epoch   int64
	Session uint64
	N       uint32
	Parts   []progressEntry
}

func appendPartition(b []byte, p log.PartitionID) []byte {
	b = append(b, p.Topic[:]...)
	return binary.BigEndian.AppendUint32(b, uint32(p.Index))
}

func flags(bits ...bool) (f byte) {
	for i, on := range bits {
		if on {
			f |= 1 << i
		}
	}
	return f
}

func begin(b []byte, magic [4]byte) []byte {
	b = append(b, magic[:]...)
	return binary.BigEndian.AppendUint16(b, messageVersion)
}

func finish(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func (m *requestMessage) encode(b []byte) []byte {
	be := binary.BigEndian
	b = slices.Grow(b, requestHeader+len(m.Parts)*requestEntry+len(m.Left)*leftEntry+crcBytes)
	b = begin(b, magicRequest)
	b = append(b, flags(m.CatchUp), flags(m.Full))
	b = be.AppendUint64(b, uint64(m.Epoch))
	b = be.AppendUint64(b, m.Session)
	b = be.AppendUint32(b, m.N)
	b = be.AppendUint32(b, m.WaitMS)
	b = be.AppendUint32(b, m.MaxBytes)
	b = be.AppendUint32(b, uint32(len(m.Parts)))
	b = be.AppendUint32(b, uint32(len(m.Left)))
	for i := range m.Parts {
		p := &m.Parts[i]
		b = appendPartition(b, p.Partition)
		b = be.AppendUint32(b, uint32(p.LeaderEpoch))
		b = be.AppendUint32(b, uint32(p.LastEpoch))
		b = be.AppendUint32(b, uint32(p.MaxBytes))
		b = be.AppendUint32(b, uint32(flags(p.Lossy)))
		b = be.AppendUint64(b, p.Seq)
		b = be.AppendUint64(b, uint64(p.Pos))
		b = be.AppendUint64(b, uint64(p.Durable))
		b = be.AppendUint64(b, uint64(p.LogStart))
		b = be.AppendUint64(b, uint64(p.HWKnown))
	}
	for _, p := range m.Left {
		b = appendPartition(b, p)
	}
	return finish(b)
}

func (m *answerMessage) encode(b []byte) []byte {
	be := binary.BigEndian
	b = begin(b, magicAnswer)
	b = be.AppendUint16(b, uint16(flags(m.NewSession)))
	b = be.AppendUint64(b, m.Session)
	b = be.AppendUint32(b, m.N)
	b = be.AppendUint32(b, uint32(len(m.Parts)))
	for i := range m.Parts {
		p := &m.Parts[i]
		b = appendPartition(b, p.Partition)
		b = be.AppendUint16(b, uint16(p.Status))
		b = append(b, 0, 0)
		b = be.AppendUint32(b, uint32(p.Leader))
		b = be.AppendUint32(b, uint32(p.LeaderEpoch))
		b = be.AppendUint32(b, uint32(p.PrevEpoch))
		b = be.AppendUint32(b, uint32(p.PayloadBytes))
		b = be.AppendUint64(b, p.Seq)
		b = be.AppendUint64(b, uint64(p.HW))
		b = be.AppendUint64(b, uint64(p.LogStart))
		b = be.AppendUint64(b, uint64(p.End))
		b = be.AppendUint32(b, uint32(p.DivergeEpoch))
		b = be.AppendUint32(b, uint32(len(p.Chain)))
		other := p.DivergeEnd
		if p.Status == statusTierStart {
			other = p.Start
		}
		b = be.AppendUint64(b, uint64(other))
		b = be.AppendUint32(b, uint32(len(p.Producers)))
		for _, e := range p.Chain {
			b = be.AppendUint32(b, uint32(e.Epoch))
			b = be.AppendUint64(b, uint64(e.Start))
		}
		b = append(b, p.Producers...)
	}
	return finish(b)
}

func (m *progressMessage) encode(b []byte) []byte {
	be := binary.BigEndian
	b = begin(b, magicProgress)
	b = append(b, flags(m.CatchUp), flags(m.Wake))
	b = be.AppendUint64(b, uint64(m.Epoch))
	b = be.AppendUint64(b, m.Session)
	b = be.AppendUint32(b, m.N)
	b = be.AppendUint32(b, uint32(len(m.Parts)))
	for _, p := range m.Parts {
		b = appendPartition(b, p.Partition)
		b = be.AppendUint32(b, uint32(p.LeaderEpoch))
		b = be.AppendUint64(b, p.Seq)
		b = be.AppendUint64(b, uint64(p.Durable))
	}
	return finish(b)
}

// A reader takes fields off a message. Requires: the caller has checked that they
// are there.
type reader struct{ b []byte }

func (r *reader) u16() uint16 { v := binary.BigEndian.Uint16(r.b); r.b = r.b[2:]; return v }
func (r *reader) u32() uint32 { v := binary.BigEndian.Uint32(r.b); r.b = r.b[4:]; return v }
func (r *reader) u64() uint64 { v := binary.BigEndian.Uint64(r.b); r.b = r.b[8:]; return v }
func (r *reader) byte() byte  { v := r.b[0]; r.b = r.b[1:]; return v }
func (r *reader) partition() (p log.PartitionID) {
	copy(p.Topic[:], r.b)
	r.b = r.b[16:]
	p.Index = int32(r.u32())
	return p
}
func (r *reader) offset() log.Offset { return log.Offset(r.u64()) }
func (r *reader) epoch() log.Epoch   { return log.Epoch(r.u32()) }

// open checks what all messages have in common and returns a reader behind the
// version.
func openMessage(b []byte, magic [4]byte, header int, what string) (*reader, error) {
	if len(b) < header+crcBytes || [4]byte(b[:4]) != magic {
		return nil, fmt.Errorf("%w: no %s", ErrMessage, what)
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != messageVersion {
		return nil, fmt.Errorf("%w: %s of version %d, this build knows %d", ErrMessage, what, v, messageVersion)
	}
	body := b[:len(b)-crcBytes]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(body):]) {
		return nil, fmt.Errorf("%w: wrong checksum of %s", ErrMessage, what)
	}
	return &reader{body[6:]}, nil
}

func decodeRequest(b []byte) (m requestMessage, err error) {
	r, err := openMessage(b, magicRequest, requestHeader, "fetch request")
	if err != nil {
		return m, err
	}
	m.CatchUp = r.byte()&1 != 0
	m.Full = r.byte()&1 != 0
	m.Epoch, m.Session, m.N = int64(r.u64()), r.u64(), r.u32()
	m.WaitMS, m.MaxBytes = r.u32(), r.u32()
	n, left := r.u32(), r.u32()
	if n > maxPartitions || left > maxPartitions || len(r.b) != int(n)*requestEntry+int(left)*leftEntry {
		return m, fmt.Errorf("%w: fetch request of wrong length", ErrMessage)
	}
	m.Parts = make([]fetchRequest, n)
	for i := range m.Parts {
		p := &m.Parts[i]
		p.Partition = r.partition()
		p.LeaderEpoch, p.LastEpoch, p.MaxBytes = r.epoch(), r.epoch(), int32(r.u32())
		p.Lossy = r.u32()&1 != 0
		p.Seq, p.Pos, p.Durable, p.LogStart, p.HWKnown = r.u64(), r.offset(), r.offset(), r.offset(), r.offset()
	}
	if left > 0 {
		m.Left = make([]log.PartitionID, left)
		for i := range m.Left {
			m.Left[i] = r.partition()
		}
	}
	return m, nil
}

func decodeAnswer(b []byte) (m answerMessage, err error) {
	r, err := openMessage(b, magicAnswer, answerHeader, "fetch answer")
	if err != nil {
		return m, err
	}
	m.NewSession = r.u16()&1 != 0
	m.Session, m.N = r.u64(), r.u32()
	n := r.u32()
	short := fmt.Errorf("%w: fetch answer of wrong length", ErrMessage)
	if n > maxPartitions || len(r.b) < int(n)*answerEntry {
		return m, short
	}
	m.Parts = make([]fetchAnswer, n)
	for i := range m.Parts {
		if len(r.b) < answerEntry {
			return m, short
		}
		p := &m.Parts[i]
		p.Partition = r.partition()
		p.Status = fetchStatus(r.u16())
		r.u16()
		p.Leader = NodeID(r.u32())
		p.LeaderEpoch, p.PrevEpoch, p.PayloadBytes = r.epoch(), r.epoch(), int32(r.u32())
		p.Seq, p.HW, p.LogStart, p.End = r.u64(), r.offset(), r.offset(), r.offset()
		p.DivergeEpoch = r.epoch()
		k := r.u32()
		other := r.offset()
		producers := r.u32()
		if p.Status == statusTierStart {
			p.Start = other
		} else {
			p.DivergeEnd = other
		}
		if k > maxChain || producers > maxProducerBytes || p.PayloadBytes < 0 || len(r.b) < int(k)*chainEntry+int(producers) {
			return m, short
		}
		if k > 0 {
			p.Chain = make([]log.EpochStart, k)
			for j := range p.Chain {
				p.Chain[j] = log.EpochStart{Epoch: r.epoch(), Start: r.offset()}
			}
		}
		if producers > 0 {
			p.Producers = slices.Clone(r.b[:producers])
			r.b = r.b[producers:]
		}
	}
	if len(r.b) != 0 {
		return m, short
	}
	return m, nil
}

func decodeProgress(b []byte) (m progressMessage, err error) {
	r, err := openMessage(b, magicProgress, progressHeader, "progress message")
	if err != nil {
		return m, err
	}
	m.CatchUp = r.byte()&1 != 0
	m.Wake = r.byte()&1 != 0
	m.Epoch, m.Session, m.N = int64(r.u64()), r.u64(), r.u32()
	n := r.u32()
	if n > maxPartitions || len(r.b) != int(n)*progressBytes {
		return m, fmt.Errorf("%w: progress message of wrong length", ErrMessage)
	}
	m.Parts = make([]progressEntry, n)
	for i := range m.Parts {
		p := &m.Parts[i]
		p.Partition, p.LeaderEpoch, p.Seq, p.Durable = r.partition(), r.epoch(), r.u64(), r.offset()
	}
	return m, nil
}
