package log

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Kafka's producer snapshot, <offset>.snapshot, holds what its broker knows of
// producers as of an offset, which is a segment's base or the end of a log that was
// closed; big-endian:
//
//	offset  size  field
//	0       2     version: 1
//	2       4     CRC32C of all that follows
//	6       4     number of producers; for each:
//	10      8       producer id
//	18      2       producer epoch
//	20      4       last sequence of its last batch, or -1
//	24      8       last offset of that batch, or -1
//	32      4       that minus its first offset
//	36      8       highest record time of its last batch or marker, ms since 1970
//	44      4       coordinator epoch of its last marker, or -1
//	48      8       first offset of its open transaction, or -1
//
// It is written for Kafka, which has to read a log without it from its beginning.
// Since it has one batch for each producer where the state file has five, it is
// read only if there is no state file: in a directory that Kafka wrote.
const (
	snapshotSuffix     = ".snapshot"
	kafkaSnapshotHead  = 10
	kafkaProducerBytes = 46
)

func (t *producerTable) appendKafkaSnapshot(b []byte, nowMs int64, expiry time.Duration) []byte {
	at := len(b)
	b = append(b, make([]byte, kafkaSnapshotHead)...)
	n := 0
	for _, id := range slices.Sorted(maps.Keys(t.m)) {
		p := t.m[id]
		if p.expired(nowMs, expiry) {
			continue
		}
		n++
		last := producedBatch{lastSequence: -1, base: -1, last: -1}
		if p.n > 0 {
			last = p.window[p.n-1]
		}
		b = be.AppendUint64(b, uint64(id))
		b = be.AppendUint16(b, uint16(p.epoch))
		b = be.AppendUint32(b, uint32(last.lastSequence))
		b = be.AppendUint64(b, uint64(last.last))
		b = be.AppendUint32(b, uint32(last.last-last.base))
		b = be.AppendUint64(b, uint64(p.lastTimestamp))
		b = be.AppendUint32(b, uint32(p.coordinatorEpoch))
		b = be.AppendUint64(b, uint64(p.txnFirst))
	}
	head := b[at:]
	be.PutUint16(head, 1)
	be.PutUint32(head[6:], uint32(n))
	be.PutUint32(head[2:], crcUpdate(0, head[6:]))
	return b
}

// parseKafkaSnapshot decodes a snapshot as of offset at.
func parseKafkaSnapshot(b []byte, at Offset) (producerTable, error) {
	if len(b) < kafkaSnapshotHead || be.Uint16(b) != 1 || be.Uint32(b[2:]) != crcUpdate(0, b[6:]) {
		return producerTable{}, errDamaged
	}
	d := decoder{b: b[6:]}
	n := d.count(kafkaProducerBytes)
	t := producerTable{m: make(map[int64]*producer, n)}
	for range n {
		id := d.i64()
		p := &producer{epoch: int16(d.u16())}
		sequence, last, delta := d.i32(), d.off(), d.i32()
		p.lastTimestamp, p.coordinatorEpoch, p.txnFirst = d.i64(), d.i32(), d.off()
		// Kafka tells age by record time.
		p.lastSeen = p.lastTimestamp
		if d.bad || id < 0 || t.m[id] != nil || p.epoch < 0 || last < -1 || p.txnFirst < -1 {
			return producerTable{}, errDamaged
		}
		if last >= 0 {
			w := producedBatch{firstSequence: -1, lastSequence: sequence, base: last - Offset(delta), last: last, maxTimestamp: p.lastTimestamp}
			if sequence >= 0 {
				w.firstSequence = sequenceAfter(sequence, -delta)
			}
			if sequence < -1 || delta < 0 || w.base < 0 {
				return producerTable{}, errDamaged
			}
			p.push(w)
		}
		if p.txnFirst >= 0 {
			t.open = append(t.open, openTxn{p.txnFirst, id})
		}
		t.m[id] = p
	}
	if !d.done() || !t.below(at) {
		return producerTable{}, errDamaged
	}
	slices.SortFunc(t.open, func(a, b openTxn) int { return cmp.Compare(a.first, b.first) })
	return t, nil
}

// kafkaSnapshot returns the snapshot of the present producers, as of the end at.
// Requires: gate.
func (l *Log) kafkaSnapshot(at Offset) newFile {
	return newFile{joinPath(l.dir, segmentName(at, snapshotSuffix)), l.producers.appendKafkaSnapshot(nil, nowMs(), l.o.ProducerExpiry)}
}
