package log

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// producerWindow is how many of its last batches a producer may retry, and so how
// many it may have in flight. It is Kafka's number.
const producerWindow = 5

// A producedBatch is what the table remembers of a batch.
type producedBatch struct {
	firstSequence, lastSequence int32
	base, last                  Offset
	maxTimestamp                int64
}

// A producer is what the log knows of one producer id.
type producer struct {
	epoch            int16
	coordinatorEpoch int32
	n                int                           // batches in window
	window           [producerWindow]producedBatch // oldest first
	txnFirst         Offset                        // first offset of the open transaction; -1 for none
	lastSeen         int64                         // ms, by the local clock
	lastTimestamp    int64                         // highest record time of its last batch, ms; what Kafka's snapshot holds
}

func newProducer(epoch int16) producer {
	return producer{epoch: epoch, coordinatorEpoch: -1, txnFirst: -1, lastTimestamp: record.NoTimestamp}
}

func (p *producer) push(b producedBatch) {
	if p.n == producerWindow {
		copy(p.window[:], p.window[1:])
		p.n--
	}
	p.window[p.n] = b
	p.n++
}

// An openTxn is a transaction without its end marker.
type openTxn struct {
	first    Offset
	producer int64
}

// A producerTable is a pure function of the batches below an offset, except that
// producers expire by the local clock.
type producerTable struct {
	m    map[int64]*producer
	open []openTxn // ascending by first
}

func (t *producerTable) lastStable(end Offset) Offset {
	if len(t.open) > 0 {
		return t.open[0].first
	}
	return end
}

func (p *producer) expired(nowMs int64, expiry time.Duration) bool {
	return expiry >= 0 && p.txnFirst < 0 && nowMs-p.lastSeen >= expiry.Milliseconds()
}

// get returns the producer's state, or nil.
func (t *producerTable) get(id, nowMs int64, expiry time.Duration) *producer {
	p := t.m[id]
	if p != nil && p.expired(nowMs, expiry) {
		return nil
	}
	return p
}

// sequenceAfter returns a + n as sequence numbers wrap: from MaxInt32 to 0.
func sequenceAfter(a, n int32) int32 { return int32((int64(a) + int64(n)) & math.MaxInt32) }

// sequenceDistance returns how far b is ahead of a, in (-2^30, 2^30].
func sequenceDistance(a, b int32) int32 {
	d := (int64(b) - int64(a)) & math.MaxInt32
	if d > 1<<30 {
		d -= 1 << 31
	}
	return int32(d)
}

// check judges a batch of a producer with state p (nil for none): nil, nil means
// that it comes next; a producedBatch means that it is that one again. A producer
// without state may begin anywhere if admit says so.
//
// Source: Kafka's ProducerAppendInfo and ProducerStateEntry, with the older
// duplicates told apart from gaps.
func (p *producer) check(b record.Batch, admit bool) (*producedBatch, error) {
	id, epoch := b.ProducerID(), b.ProducerEpoch()
	if p != nil && epoch < p.epoch {
		return nil, fmt.Errorf("%w: producer %d has epoch %d, the batch %d", ErrProducerFenced, id, p.epoch, epoch)
	}
	if b.IsControl() {
		if m, ok := markerOf(b); ok && p != nil && m.coordinatorEpoch < p.coordinatorEpoch {
			return nil, fmt.Errorf("%w: producer %d had a marker of coordinator epoch %d, this one has %d", ErrCoordinatorFenced, id, p.coordinatorEpoch, m.coordinatorEpoch)
		}
		return nil, nil
	}
	first, last := b.BaseSequence(), b.LastSequence()
	if p == nil {
		if first != 0 && !admit {
			return nil, fmt.Errorf("%w: producer %d, first sequence %d", ErrUnknownProducer, id, first)
		}
		return nil, nil
	}
	next := int32(0)
	if epoch == p.epoch && p.n > 0 {
		for i := p.n - 1; i >= 0; i-- {
			if w := &p.window[i]; w.firstSequence == first && w.lastSequence == last {
				return w, nil
			}
		}
		next = sequenceAfter(p.window[p.n-1].lastSequence, 1)
	}
	if first == next {
		if p.txnFirst >= 0 && !b.IsTransactional() {
			return nil, fmt.Errorf("%w: producer %d has had a transaction open since offset %d, the batch is outside of it", ErrTxnState, id, p.txnFirst)
		}
		return nil, nil
	}
	if epoch == p.epoch && p.n > 0 && sequenceDistance(next, first) < 0 && sequenceDistance(next, last) < 0 {
		return nil, fmt.Errorf("%w: producer %d, sequences %d to %d, next is %d", ErrDuplicateUnknownOffset, id, first, last, next)
	}
	return nil, fmt.Errorf("%w: producer %d, first sequence %d, next is %d", ErrOutOfOrderSequence, id, first, next)
}

// note records a batch that is in the log.
func (p *producer) note(b record.Batch, nowMs int64) {
	if b.ProducerEpoch() != p.epoch {
		p.epoch = b.ProducerEpoch()
		p.n = 0
	}
	p.lastSeen = nowMs
	p.lastTimestamp = b.MaxTimestamp()
	if b.IsControl() {
		if m, ok := markerOf(b); ok {
			p.coordinatorEpoch = m.coordinatorEpoch
			p.txnFirst = -1
		}
		return
	}
	p.push(producedBatch{
		firstSequence: b.BaseSequence(), lastSequence: b.LastSequence(),
		base: b.BaseOffset(), last: b.LastOffset(), maxTimestamp: b.MaxTimestamp(),
	})
	if b.IsTransactional() && p.txnFirst < 0 {
		p.txnFirst = b.BaseOffset()
	}
}

// note records a batch that is in the log; one without a producer changes nothing.
// ok says that it is a marker that ended the transaction returned.
func (t *producerTable) note(b record.Batch, nowMs int64, expiry time.Duration) (ended txnEnd, ok bool) {
	id := b.ProducerID()
	if id < 0 {
		return txnEnd{}, false
	}
	p := t.m[id]
	if p == nil || p.expired(nowMs, expiry) {
		if t.m == nil {
			t.m = make(map[int64]*producer)
		}
		p = new(newProducer(b.ProducerEpoch()))
		t.m[id] = p
	}
	before := p.txnFirst
	p.note(b, nowMs)
	switch {
	case before < 0 && p.txnFirst >= 0:
		t.open = append(t.open, openTxn{p.txnFirst, id})
	case before >= 0 && p.txnFirst < 0:
		t.open = slices.DeleteFunc(t.open, func(o openTxn) bool { return o.producer == id })
		m, _ := markerOf(b)
		// The last stable offset is that behind the marker, as Kafka's index has it.
		return txnEnd{AbortedTxn{Producer: id, First: before, Last: b.BaseOffset(), LastStable: t.lastStable(b.BaseOffset() + 1)}, !m.commit}, true
	}
	return txnEnd{}, false
}

// expire forgets producers whose time has come.
func (t *producerTable) expire(nowMs int64, expiry time.Duration) {
	if expiry < 0 {
		return
	}
	for id, p := range t.m {
		if p.expired(nowMs, expiry) {
			delete(t.m, id)
		}
	}
}

// The producers, as they stand in a segment's state file and in what
// [Log.ProducerSnapshot] returns:
//
//	size  field
//	4     number of producers, ascending by id; for each:
//	8       producer id
//	2       producer epoch
//	4       coordinator epoch of its last marker, or -1
//	8       first offset of its open transaction, or -1
//	8       when its last batch was appended, ms since 1970 by the local clock
//	8       highest record time of its last batch or marker, ms since 1970
//	1       number of batches, up to 5, oldest first; for each:
//	4         first sequence
//	4         last sequence
//	8         first offset
//	8         last offset
//	8         highest record time, ms since 1970
const (
	producerBytes      = 8 + 2 + 4 + 8 + 8 + 8 + 1
	producedBatchBytes = 4 + 4 + 8 + 8 + 8
)

func (t *producerTable) append(b []byte, nowMs int64, expiry time.Duration) []byte {
	ids := make([]int64, 0, len(t.m))
	for id, p := range t.m {
		if !p.expired(nowMs, expiry) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	b = slices.Grow(b, 4+len(ids)*(producerBytes+producerWindow*producedBatchBytes))
	b = be.AppendUint32(b, uint32(len(ids)))
	for _, id := range ids {
		p := t.m[id]
		b = be.AppendUint64(b, uint64(id))
		b = be.AppendUint16(b, uint16(p.epoch))
		b = be.AppendUint32(b, uint32(p.coordinatorEpoch))
		b = be.AppendUint64(b, uint64(p.txnFirst))
		b = be.AppendUint64(b, uint64(p.lastSeen))
		b = be.AppendUint64(b, uint64(p.lastTimestamp))
		b = append(b, uint8(p.n))
		for _, w := range p.window[:p.n] {
			b = be.AppendUint32(b, uint32(w.firstSequence))
			b = be.AppendUint32(b, uint32(w.lastSequence))
			b = be.AppendUint64(b, uint64(w.base))
			b = be.AppendUint64(b, uint64(w.last))
			b = be.AppendUint64(b, uint64(w.maxTimestamp))
		}
	}
	return b
}

func decodeProducers(d *decoder) (producerTable, bool) {
	n := d.count(producerBytes)
	var t producerTable
	if n > 0 {
		t.m = make(map[int64]*producer, n)
	}
	last := int64(-1)
	for range n {
		id := int64(d.u64())
		p := &producer{epoch: int16(d.u16()), coordinatorEpoch: d.i32(), txnFirst: d.off(), lastSeen: d.i64(), lastTimestamp: d.i64()}
		p.n = int(d.u8())
		if d.bad || id <= last || p.n > producerWindow || p.txnFirst < -1 {
			return producerTable{}, false
		}
		last = id
		for i := range p.n {
			w := producedBatch{firstSequence: d.i32(), lastSequence: d.i32(), base: d.off(), last: d.off(), maxTimestamp: d.i64()}
			if w.firstSequence < -1 || w.lastSequence < -1 || (w.firstSequence < 0) != (w.lastSequence < 0) || w.base < 0 || w.last < w.base || i > 0 && w.base <= p.window[i-1].last {
				return producerTable{}, false
			}
			p.window[i] = w
		}
		if p.txnFirst >= 0 {
			t.open = append(t.open, openTxn{p.txnFirst, id})
		}
		t.m[id] = p
	}
	slices.SortFunc(t.open, func(a, b openTxn) int { return cmp.Compare(a.first, b.first) })
	return t, !d.bad
}

// below reports whether the table knows nothing at or above end.
func (t *producerTable) below(end Offset) bool {
	for _, p := range t.m {
		if p.txnFirst >= end || p.n > 0 && p.window[p.n-1].last >= end {
			return false
		}
	}
	return true
}

// What [Log.ProducerSnapshot] returns and [Log.Reset] takes: an envelope around
// the offset (8 bytes) and the producers.
const (
	snapshotMagic   = "CWLOGPRD"
	snapshotVersion = 1
)

func encodeSnapshot(at Offset, t *producerTable, nowMs int64, expiry time.Duration) []byte {
	b := make([]byte, envelopeBytes, 256)
	b = be.AppendUint64(b, uint64(at))
	b = t.append(b, nowMs, expiry)
	sealEnvelope(b, snapshotMagic, snapshotVersion)
	return b
}

func decodeSnapshot(b []byte) (Offset, producerTable, error) {
	payload, err := openEnvelope(b, snapshotMagic, snapshotVersion, "producer snapshot")
	if err != nil {
		return 0, producerTable{}, err
	}
	d := decoder{b: payload}
	at := d.off()
	t, ok := decodeProducers(&d)
	if !ok || !d.done() || at < 0 || !t.below(at) {
		return 0, producerTable{}, errDamaged
	}
	return at, t, nil
}
