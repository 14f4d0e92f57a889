package log

import (
	"encoding/base64"
	"fmt"

	"github.com/cordwood-io/cordwood/log/record"
)

// The meta file says what the directory is, where the log starts, and which change
// of several files is under way. It is replaced as a whole. Payload:
//
//	offset  size  field
//	0       16    log id: random, made with the directory; other files of ours name it
//	16      16    topic id
//	32      4     partition
//	36      8     when the directory was made, ms since 1970
//	44      8     log start
//	52      8     local start
//	60      8     base of the segment that the next field speaks of
//	68      8     end known durable in it when the file was written, or -1
//	76      1     change under way: 0 none, 1 truncation, 2 reset
//	77      8     its offset
//	85      …     reset only: number of epochs (4), for each epoch (4) and first
//	              offset (8); then the producers
//	…       8     generation: counts suffix discards
//	…       16    journal that may have entries of the log, or zero
//	…       4     its life
//
// Version 1 ends before the generation.
const (
	metaName    = "cordwood.meta"
	metaMagic   = "CWLOGMET"
	metaVersion = 2
)

type change uint8

// On disk; must not change.
const (
	changeNone     change = 0
	changeTruncate change = 1
	changeReset    change = 2
)

type meta struct {
	id         logID
	partition  PartitionID
	createdMs  int64
	start      Offset
	local      Offset
	floorBase  Offset
	floor      Offset
	pending    change
	pendingTo  Offset
	resetChain epochChain
	resetTable producerTable

	generation  uint64
	journal     journalID
	journalLife uint32
}

func (m *meta) encode() []byte {
	b := make([]byte, envelopeBytes, 256)
	b = append(b, m.id[:]...)
	b = append(b, m.partition.Topic[:]...)
	b = be.AppendUint32(b, uint32(m.partition.Index))
	b = be.AppendUint64(b, uint64(m.createdMs))
	b = be.AppendUint64(b, uint64(m.start))
	b = be.AppendUint64(b, uint64(m.local))
	b = be.AppendUint64(b, uint64(m.floorBase))
	b = be.AppendUint64(b, uint64(m.floor))
	b = append(b, uint8(m.pending))
	b = be.AppendUint64(b, uint64(m.pendingTo))
	if m.pending == changeReset {
		b = appendChain(b, m.resetChain)
		b = m.resetTable.append(b, 0, -1)
	}
	b = be.AppendUint64(b, m.generation)
	b = append(b, m.journal[:]...)
	b = be.AppendUint32(b, m.journalLife)
	sealEnvelope(b, metaMagic, metaVersion)
	return doubled(b)
}

func decodeMeta(payload []byte) (meta, error) {
	d := decoder{b: payload}
	var m meta
	copy(m.id[:], d.take(16))
	copy(m.partition.Topic[:], d.take(16))
	m.partition.Index = d.i32()
	m.createdMs = d.i64()
	m.start, m.local = d.off(), d.off()
	m.floorBase, m.floor = d.off(), d.off()
	m.pending = change(d.u8())
	m.pendingTo = d.off()
	ok := true
	if m.pending == changeReset {
		m.resetChain = decodeChain(&d)
		m.resetTable, ok = decodeProducers(&d)
		ok = ok && m.resetChain.valid(m.pendingTo) && m.resetTable.below(m.pendingTo)
	}
	if len(d.b) > 0 {
		m.generation = d.u64()
		copy(m.journal[:], d.take(len(m.journal)))
		m.journalLife = d.u32()
	}
	if !ok || !d.done() || m.pending > changeReset || m.start < 0 || m.local < m.start || m.pendingTo < 0 {
		return meta{}, errDamaged
	}
	return m, nil
}

// The marker of a clean close says that every file is as its log left it. It is
// removed, durably, before the first change after Open. Payload:
//
//	offset  size  field
//	0       16    log id
//	16      8     when the log was closed, ms since 1970
//	24      8     end of the log
//	32      8     first append to the active segment, ms since 1970, or 0
//	40      4     number of segments, oldest first; for each:
//	8               base offset
//	8               end offset
//	8               bytes of its .log
//	8               highest record time, ms since 1970, or -1
//	8               offset of the batch with it, its last record
//	8               when it was sealed, ms since 1970; 0 for the active one
//	4               number of entries of its .txnindex, or -1 if unknown
//	4               CRC32C of its .txnindex
const (
	cleanName    = "cordwood.clean"
	cleanMagic   = "CWLOGCLN"
	cleanVersion = 1
)

type cleanMarker struct {
	id            logID
	closedMs      int64
	end           Offset
	firstAppendMs int64
	segments      []segmentInfo
}

// A segmentInfo is what is known of a segment without reading it.
type segmentInfo struct {
	base, end    Offset
	size         int64
	maxTimestamp int64 // ms; -1 when empty
	maxAt        Offset
	sealedMs     int64
	aborted      int32 // transactions whose abort markers are in it; -1 if unknown
	abortedSum   uint32
}

func (s *segmentInfo) append(b []byte) []byte {
	b = be.AppendUint64(b, uint64(s.base))
	b = be.AppendUint64(b, uint64(s.end))
	b = be.AppendUint64(b, uint64(s.size))
	b = be.AppendUint64(b, uint64(s.maxTimestamp))
	b = be.AppendUint64(b, uint64(s.maxAt))
	b = be.AppendUint64(b, uint64(s.sealedMs))
	b = be.AppendUint32(b, uint32(s.aborted))
	return be.AppendUint32(b, s.abortedSum)
}

const segmentInfoBytes = 56

func decodeSegmentInfo(d *decoder) segmentInfo {
	return segmentInfo{base: d.off(), end: d.off(), size: d.i64(), maxTimestamp: d.i64(), maxAt: d.off(), sealedMs: d.i64(), aborted: d.i32(), abortedSum: d.u32()}
}

func (s *segmentInfo) valid() bool {
	return s.base >= 0 && s.end >= s.base && s.size >= 0 && (s.size == 0) == (s.end == s.base) &&
		s.aborted >= -1 && int64(s.aborted) <= s.size/record.HeaderBytes
}

func (c *cleanMarker) encode() []byte {
	b := make([]byte, envelopeBytes, 256)
	b = append(b, c.id[:]...)
	b = be.AppendUint64(b, uint64(c.closedMs))
	b = be.AppendUint64(b, uint64(c.end))
	b = be.AppendUint64(b, uint64(c.firstAppendMs))
	b = be.AppendUint32(b, uint32(len(c.segments)))
	for i := range c.segments {
		b = c.segments[i].append(b)
	}
	sealEnvelope(b, cleanMagic, cleanVersion)
	return doubled(b)
}

func decodeClean(payload []byte) (cleanMarker, error) {
	d := decoder{b: payload}
	var c cleanMarker
	copy(c.id[:], d.take(16))
	c.closedMs = d.i64()
	c.end = d.off()
	c.firstAppendMs = d.i64()
	n := d.count(segmentInfoBytes)
	if n == 0 {
		return cleanMarker{}, errDamaged
	}
	c.segments = make([]segmentInfo, n)
	for i := range c.segments {
		c.segments[i] = decodeSegmentInfo(&d)
		if s := &c.segments[i]; !s.valid() || i > 0 && s.base != c.segments[i-1].end {
			return cleanMarker{}, errDamaged
		}
	}
	if !d.done() || c.end != c.segments[n-1].end {
		return cleanMarker{}, errDamaged
	}
	return c, nil
}

// The seal of a segment, <base>.seal, stands for what would else need a scan.
// Payload:
//
//	offset  size  field
//	0       16    log id
//	16      56    the segment, as in the marker of a clean close
//	72      4     CRC32C of its .index
//	76      4     CRC32C of its .timeindex
//	80      4     number of sums: one for each entry of .index, and one for the end
//	…       4       CRC32C over the first 21 bytes of each batch before
//
// The 21 bytes are those that a batch's own checksum does not cover, and the
// checksum itself. Each sum goes on from the one before.
const (
	sealMagic   = "CWLOGSEA"
	sealVersion = 1
	sealSuffix  = ".seal"
)

type sealFile struct {
	id                     logID
	info                   segmentInfo
	indexSum, timeIndexSum uint32
	headers                []uint32
}

func (s *sealFile) encode() []byte {
	b := make([]byte, envelopeBytes, envelopeBytes+84+4*len(s.headers))
	b = append(b, s.id[:]...)
	b = s.info.append(b)
	b = be.AppendUint32(b, s.indexSum)
	b = be.AppendUint32(b, s.timeIndexSum)
	b = be.AppendUint32(b, uint32(len(s.headers)))
	for _, h := range s.headers {
		b = be.AppendUint32(b, h)
	}
	sealEnvelope(b, sealMagic, sealVersion)
	return doubled(b)
}

func decodeSeal(payload []byte) (sealFile, error) {
	d := decoder{b: payload}
	var s sealFile
	copy(s.id[:], d.take(16))
	s.info = decodeSegmentInfo(&d)
	s.indexSum, s.timeIndexSum = d.u32(), d.u32()
	s.headers = make([]uint32, d.count(4))
	for i := range s.headers {
		s.headers[i] = d.u32()
	}
	if !d.done() || !s.info.valid() || len(s.headers) == 0 {
		return sealFile{}, errDamaged
	}
	return s, nil
}

// Kafka's partition.metadata names the topic: two lines of text, the id in
// unpadded URL-safe base64.
const partitionFileName = "partition.metadata"

func partitionFile(t TopicID) []byte {
	return fmt.Appendf(nil, "version: 0\ntopic_id: %s", base64.RawURLEncoding.EncodeToString(t[:]))
}
