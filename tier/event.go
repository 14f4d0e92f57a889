package tier

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier/internal/tierpb"
)

// An ID names a cluster, or one attempt to upload a range. The zero ID names
// nothing.
type ID [16]byte

// String returns the canonical UUID text.
func (id ID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], id[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], id[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], id[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], id[10:16])
	return string(b[:])
}

// ParseID reads the text that [ID.String] writes.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, fmt.Errorf("tier: %q is not a UUID", s)
	}
	if _, err := hex.Decode(id[:], []byte(s[0:8]+s[9:13]+s[14:18]+s[19:23]+s[24:36])); err != nil {
		return ID{}, fmt.Errorf("tier: %q is not a UUID", s)
	}
	if id.String() != s {
		return ID{}, fmt.Errorf("tier: %q is not a UUID in canonical form", s)
	}
	return id, nil
}

// An Event is one entry of the tier log: a fact about what one partition's
// storage consists of. (Epoch, Seq) gives it its place; see [State.Apply].
type Event struct {
	Partition log.PartitionID
	Epoch     log.Epoch // of the leader that wrote it, >= 0
	Seq       uint64    // dense from 1 within the epoch; 0 in a Barrier
	Body      Body
}

// A Body is what an event says: [Barrier], [CopyStarted], [CopyFinished],
// [DeleteStarted], [DeleteFinished], [LogStart], [Checkpoint], [Deleted] or [Forgotten].
type Body interface{ kind() eventKind }

// Barrier opens a leader's epoch in the tier log: from here on events of lower
// epochs are ignored.
type Barrier struct{}

// CopyStarted says that an object may come into being. It is committed before
// the first byte leaves, so that every object can be found without listing.
type CopyStarted struct {
	ID        ID
	Base, End log.Offset
	Deadline  time.Time // no byte is sent after it; milliseconds
}

// CopyFinished says that the object of a CopyStarted is whole and durable.
type CopyFinished struct {
	ID           ID
	BatchBytes   int64            // of the record batches in it
	ObjectBytes  int64            // of the whole object
	TailBytes    int64            // of what follows the last chunk
	MaxTimestamp time.Time        // the newest record time; milliseconds
	Sealed       time.Time        // when the uploader's segment was sealed; milliseconds
	Lineage      []log.EpochStart // leader epochs of [Base, End)
	CRC32C       uint32           // of the whole object

	// Unsure: the reply to some attempt to write the object was lost, so that until
	// the deadline a request may linger that writes it again. Who deletes the object
	// before that must delete it once more.
	Unsure bool
}

// DeleteStarted says that these objects count for nothing from now on and will
// be deleted. A finished range must lie wholly below the log start.
type DeleteStarted struct{ IDs []ID }

// DeleteFinished says that these objects are gone for good.
type DeleteFinished struct{ IDs []ID }

// LogStart moves the log start, for a stated cause.
type LogStart struct {
	Start log.Offset
	Cause Cause

	// Until is how long the objects of the ranges are kept that come to lie below the
	// log start; milliseconds. Zero: they may go at once.
	Until time.Time
}

// Deleted says that the partition's topic was deleted: nothing of it is readable any
// more, and its objects will be deleted. It is written in an epoch in which nobody
// has led the partition.
type Deleted struct {
	// Until is how long the objects of the ranges are kept that were readable;
	// milliseconds. Zero: they may go at once.
	Until time.Time

	// Quiet is when no write to the store that an earlier leader began without an
	// event can be under way any more; milliseconds. See [Forgotten].
	Quiet time.Time
}

// Forgotten says that nothing of a deleted partition is in the store: a listing that
// began after the last possible write found no object. The state goes with it.
type Forgotten struct{}

// Checkpoint holds the whole state of the partition as of just before this event, so
// that whoever reads on from here needs nothing older. A state of up to
// [MaxInlineState] bytes is in the event; a larger one is in a manifest object, so that
// it can be read while the tier log is short.
type Checkpoint struct {
	State    []byte   // the state, or nil if it is in a manifest
	Manifest ID       // names the object that has it, zero if State has it
	Bytes    int64    // length of the state
	Hash     [32]byte // SHA-256 of the state
}

// MaxInlineState is the largest state, in bytes, that a [Checkpoint] holds itself.
const MaxInlineState = 16 << 10

// A Cause says on whose word the log start moved. Audits check it.
type Cause struct {
	Kind  CauseKind
	Bytes int64         // the limit in force, for CauseBytes
	Age   time.Duration // the limit in force, for CauseAge; milliseconds
	Note  string        // free text of at most MaxCauseNoteBytes, e.g. a policy version
}

// MaxCauseNoteBytes bounds [Cause].Note.
const MaxCauseNoteBytes = 1024

// CauseKind is the kind of a [Cause]. The numbers are on disk and must not change.
type CauseKind int32

// The kinds of causes.
const (
	CauseNone    CauseKind = 0 // not allowed in an event
	CauseBytes   CauseKind = 1 // retention by bytes
	CauseAge     CauseKind = 2 // retention by age
	CauseRequest CauseKind = 3 // somebody asked for records to be deleted
	CauseAdopted CauseKind = 4 // the log had been trimmed before it was tiered
)

// String names the kind.
func (k CauseKind) String() string {
	switch k {
	case CauseNone:
		return "none"
	case CauseBytes:
		return "bytes"
	case CauseAge:
		return "age"
	case CauseRequest:
		return "request"
	case CauseAdopted:
		return "adopted"
	}
	return fmt.Sprintf("CauseKind(%d)", int32(k))
}

// eventKind is the kind in an event's envelope. On disk: must not change.
type eventKind uint16

const (
	kindBarrier        eventKind = 1
	kindCopyStarted    eventKind = 2
	kindCopyFinished   eventKind = 3
	kindDeleteStarted  eventKind = 4
	kindDeleteFinished eventKind = 5
	kindLogStart       eventKind = 6
	kindCheckpoint     eventKind = 7
	kindDeleted        eventKind = 8
	kindForgotten      eventKind = 9
)

func (Barrier) kind() eventKind        { return kindBarrier }
func (CopyStarted) kind() eventKind    { return kindCopyStarted }
func (CopyFinished) kind() eventKind   { return kindCopyFinished }
func (DeleteStarted) kind() eventKind  { return kindDeleteStarted }
func (DeleteFinished) kind() eventKind { return kindDeleteFinished }
func (LogStart) kind() eventKind       { return kindLogStart }
func (Checkpoint) kind() eventKind     { return kindCheckpoint }
func (Deleted) kind() eventKind        { return kindDeleted }
func (Forgotten) kind() eventKind      { return kindForgotten }

// Envelope of an event, integers big-endian:
//
//	offset size field
//	0      4    magic "CWTE"
//	4      2    version: 2 for a log start with a time until which objects are kept, else 1
//	6      2    kind: 1 barrier, 2 copy started, 3 copy finished,
//	            4 delete started, 5 delete finished, 6 log start, 7 checkpoint,
//	            8 deleted, 9 forgotten
//	8      4    length n of the body
//	12     4    CRC32C of bytes 0-11 and the body
//	16     n    body: protobuf message Event
//
// On disk: must not change. See docs/format/tier-event.md.
const (
	eventMagic       = "CWTE"
	eventVersion     = 1
	eventVersionKeep = 2 // of what a reader of version 1 would take for a log start that keeps nothing
	eventHeaderBytes = 16

	// maxEventBytes bounds what a decoder accepts.
	maxEventBytes = 1 << 20

	// maxEventIDs bounds the ids of one delete event.
	maxEventIDs = 1024

	// maxLineage bounds the epochs of one range.
	maxLineage = 1 << 14
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EncodeEvent returns the bytes of an event for [Events].Append. It returns an
// error that wraps [ErrInvalidEvent] for an event that [DecodeEvent] would not
// accept.
func EncodeEvent(e Event) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	m := &tierpb.Event{
		Topic:     e.Partition.Topic[:],
		Partition: e.Partition.Index,
		Epoch:     int32(e.Epoch),
		Seq:       e.Seq,
	}
	switch b := e.Body.(type) {
	case Barrier:
		m.Body = &tierpb.Event_Barrier{Barrier: &tierpb.Barrier{}}
	case CopyStarted:
		m.Body = &tierpb.Event_CopyStarted{CopyStarted: &tierpb.CopyStarted{
			Id: b.ID[:], Base: int64(b.Base), End: int64(b.End), DeadlineMs: b.Deadline.UnixMilli(),
		}}
	case CopyFinished:
		f := &tierpb.CopyFinished{
			Id: b.ID[:], BatchBytes: b.BatchBytes, ObjectBytes: b.ObjectBytes, TailBytes: b.TailBytes,
			MaxTimestampMs: b.MaxTimestamp.UnixMilli(), SealedMs: b.Sealed.UnixMilli(), Crc32C: b.CRC32C, Unsure: b.Unsure,
		}
		for _, s := range b.Lineage {
			f.Lineage = append(f.Lineage, &tierpb.EpochStart{Epoch: int32(s.Epoch), Start: int64(s.Start)})
		}
		m.Body = &tierpb.Event_CopyFinished{CopyFinished: f}
	case DeleteStarted:
		m.Body = &tierpb.Event_DeleteStarted{DeleteStarted: &tierpb.DeleteStarted{Ids: idBytes(b.IDs)}}
	case DeleteFinished:
		m.Body = &tierpb.Event_DeleteFinished{DeleteFinished: &tierpb.DeleteFinished{Ids: idBytes(b.IDs)}}
	case LogStart:
		m.Body = &tierpb.Event_LogStart{LogStart: &tierpb.LogStart{Start: int64(b.Start), Cause: &tierpb.Cause{
			Kind: int32(b.Cause.Kind), LimitBytes: b.Cause.Bytes, LimitMs: b.Cause.Age.Milliseconds(), Note: b.Cause.Note,
		}, UntilMs: timeToMs(b.Until)}}
	case Deleted:
		m.Body = &tierpb.Event_Deleted{Deleted: &tierpb.Deleted{UntilMs: timeToMs(b.Until), QuietMs: timeToMs(b.Quiet)}}
	case Forgotten:
		m.Body = &tierpb.Event_Forgotten{Forgotten: &tierpb.Forgotten{}}
	}
	if c, ok := e.Body.(Checkpoint); ok {
		m.Body = &tierpb.Event_Checkpoint{Checkpoint: &tierpb.Checkpoint{State: c.State, Bytes: c.Bytes, Hash: c.Hash[:]}}
		if c.Manifest != (ID{}) {
			m.GetCheckpoint().Manifest = c.Manifest[:]
		}
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidEvent, err)
	}
	out := make([]byte, eventHeaderBytes, eventHeaderBytes+len(body))
	copy(out, eventMagic)
	binary.BigEndian.PutUint16(out[4:], uint16(e.version()))
	binary.BigEndian.PutUint16(out[6:], uint16(e.Body.kind()))
	binary.BigEndian.PutUint32(out[8:], uint32(len(body)))
	out = append(out, body...)
	binary.BigEndian.PutUint32(out[12:], eventSum(out))
	return out, nil
}

// version is that of the event's envelope.
func (e Event) version() int {
	if l, ok := e.Body.(LogStart); ok && !l.Until.IsZero() {
		return eventVersionKeep
	}
	return eventVersion
}

// timeToMs and timeFromMs take the zero time for 0.
func timeToMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func timeFromMs(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func eventSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[eventHeaderBytes:])
}

func idBytes(ids []ID) [][]byte {
	out := make([][]byte, len(ids))
	for i := range ids {
		out[i] = ids[i][:]
	}
	return out
}

// DecodeEvent reads the bytes of one event. It returns an error that wraps
// [ErrInvalidEvent] for bytes that are not an event, and a [*VersionError] for an
// intact event of a version or kind that this release does not know: such an
// event must stop its reader, never be skipped. The event shares no memory with b.
func DecodeEvent(b []byte) (Event, error) {
	if len(b) < eventHeaderBytes || string(b[:4]) != eventMagic {
		return Event{}, fmt.Errorf("%w: no magic", ErrInvalidEvent)
	}
	n := binary.BigEndian.Uint32(b[8:])
	if n > maxEventBytes || int(n) != len(b)-eventHeaderBytes {
		return Event{}, fmt.Errorf("%w: length %d in %d bytes", ErrInvalidEvent, n, len(b))
	}
	if eventSum(b) != binary.BigEndian.Uint32(b[12:]) {
		return Event{}, fmt.Errorf("%w: wrong checksum", ErrInvalidEvent)
	}
	version := int(binary.BigEndian.Uint16(b[4:]))
	if version < eventVersion || version > eventVersionKeep {
		return Event{}, &VersionError{What: "tier event", Version: version}
	}
	kind := eventKind(binary.BigEndian.Uint16(b[6:]))
	if kind < kindBarrier || kind > kindForgotten {
		return Event{}, &VersionError{What: "tier event", Version: int(kind)}
	}
	var m tierpb.Event
	if err := proto.Unmarshal(b[eventHeaderBytes:], &m); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrInvalidEvent, err)
	}
	if len(m.Topic) != len(log.TopicID{}) {
		return Event{}, fmt.Errorf("%w: topic id of %d bytes", ErrInvalidEvent, len(m.Topic))
	}
	e := Event{
		Partition: log.PartitionID{Topic: log.TopicID(m.Topic), Index: m.Partition},
		Epoch:     log.Epoch(m.Epoch),
		Seq:       m.Seq,
	}
	var err error
	switch b := m.Body.(type) {
	case *tierpb.Event_Barrier:
		e.Body = Barrier{}
	case *tierpb.Event_CopyStarted:
		c := CopyStarted{
			Base: log.Offset(b.CopyStarted.GetBase()), End: log.Offset(b.CopyStarted.GetEnd()),
			Deadline: time.UnixMilli(b.CopyStarted.GetDeadlineMs()),
		}
		c.ID, err = toID(b.CopyStarted.GetId())
		e.Body = c
	case *tierpb.Event_CopyFinished:
		f := b.CopyFinished
		c := CopyFinished{
			BatchBytes: f.GetBatchBytes(), ObjectBytes: f.GetObjectBytes(), TailBytes: f.GetTailBytes(),
			MaxTimestamp: time.UnixMilli(f.GetMaxTimestampMs()), Sealed: time.UnixMilli(f.GetSealedMs()), CRC32C: f.GetCrc32C(), Unsure: f.GetUnsure(),
		}
		for _, s := range f.GetLineage() {
			c.Lineage = append(c.Lineage, log.EpochStart{Epoch: log.Epoch(s.GetEpoch()), Start: log.Offset(s.GetStart())})
		}
		c.ID, err = toID(f.GetId())
		e.Body = c
	case *tierpb.Event_DeleteStarted:
		var ids []ID
		ids, err = toIDs(b.DeleteStarted.GetIds())
		e.Body = DeleteStarted{IDs: ids}
	case *tierpb.Event_DeleteFinished:
		var ids []ID
		ids, err = toIDs(b.DeleteFinished.GetIds())
		e.Body = DeleteFinished{IDs: ids}
	case *tierpb.Event_LogStart:
		c := b.LogStart.GetCause()
		if ms := c.GetLimitMs(); ms < 0 || ms > int64(maxDuration/time.Millisecond) {
			err = fmt.Errorf("%w: age of %d ms", ErrInvalidEvent, ms)
		}
		e.Body = LogStart{Start: log.Offset(b.LogStart.GetStart()), Cause: Cause{
			Kind: CauseKind(c.GetKind()), Bytes: c.GetLimitBytes(),
			Age: time.Duration(c.GetLimitMs()) * time.Millisecond, Note: c.GetNote(),
		}, Until: timeFromMs(b.LogStart.GetUntilMs())}
	case *tierpb.Event_Deleted:
		e.Body = Deleted{Until: timeFromMs(b.Deleted.GetUntilMs()), Quiet: timeFromMs(b.Deleted.GetQuietMs())}
	case *tierpb.Event_Forgotten:
		e.Body = Forgotten{}
	case *tierpb.Event_Checkpoint:
		c := Checkpoint{State: b.Checkpoint.GetState(), Bytes: b.Checkpoint.GetBytes()}
		if m := b.Checkpoint.GetManifest(); len(m) > 0 {
			c.Manifest, err = toID(m)
		}
		if h := b.Checkpoint.GetHash(); len(h) == len(c.Hash) {
			c.Hash = [32]byte(h)
		} else if err == nil {
			err = fmt.Errorf("%w: hash of %d bytes", ErrInvalidEvent, len(h))
		}
		if len(c.State) == 0 {
			c.State = nil
		}
		e.Body = c
	default:
		return Event{}, fmt.Errorf("%w: no body", ErrInvalidEvent)
	}
	if err != nil {
		return Event{}, err
	}
	if e.Body.kind() != kind || e.version() != version {
		return Event{}, fmt.Errorf("%w: envelope of kind %d, version %d around a body of kind %d, version %d",
			ErrInvalidEvent, kind, version, e.Body.kind(), e.version())
	}
	if err := e.check(); err != nil {
		return Event{}, err
	}
	return e, nil
}

const maxDuration = time.Duration(1<<63 - 1)

func toID(b []byte) (ID, error) {
	if len(b) != len(ID{}) {
		return ID{}, fmt.Errorf("%w: id of %d bytes", ErrInvalidEvent, len(b))
	}
	return ID(b), nil
}

func toIDs(bs [][]byte) ([]ID, error) {
	if len(bs) > maxEventIDs {
		return nil, fmt.Errorf("%w: %d ids", ErrInvalidEvent, len(bs))
	}
	ids := make([]ID, len(bs))
	for i, b := range bs {
		id, err := toID(b)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

// check holds an event against what no state can make sense of. What depends on
// the state is Apply's.
func (e Event) check() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalidEvent, fmt.Sprintf(format, a...))
	}
	if e.Partition.Index < 0 {
		return bad("partition %d", e.Partition.Index)
	}
	if e.Epoch < 0 {
		return bad("epoch %d", e.Epoch)
	}
	if _, barrier := e.Body.(Barrier); barrier != (e.Seq == 0) {
		return bad("sequence number %d", e.Seq)
	}
	switch b := e.Body.(type) {
	case Barrier:
	case CopyStarted:
		if b.ID == (ID{}) {
			return bad("zero id")
		}
		if b.Base < 0 || b.End <= b.Base {
			return bad("range [%d, %d)", b.Base, b.End)
		}
		if ms := b.Deadline.UnixMilli(); ms < 0 || ms > maxTimeMillis {
			return bad("deadline %d", ms)
		}
	case CopyFinished:
		if b.ID == (ID{}) {
			return bad("zero id")
		}
		if b.BatchBytes <= 0 || b.TailBytes <= 0 || b.ObjectBytes <= 0 || b.TailBytes >= b.ObjectBytes || b.BatchBytes > maxObjectBytes || b.ObjectBytes > maxObjectBytes {
			return bad("sizes %d, %d, %d", b.BatchBytes, b.TailBytes, b.ObjectBytes)
		}
		if len(b.Lineage) > maxLineage {
			return bad("%d epochs", len(b.Lineage))
		}
		if !validLineage(b.Lineage) {
			return bad("lineage %v", b.Lineage)
		}
	case DeleteStarted:
		return checkIDs(b.IDs)
	case DeleteFinished:
		return checkIDs(b.IDs)
	case LogStart:
		if b.Start < 0 {
			return bad("log start %d", b.Start)
		}
		if b.Cause.Kind < CauseBytes || b.Cause.Kind > CauseAdopted {
			return bad("log start without a cause (%v)", b.Cause.Kind)
		}
		if b.Cause.Bytes < 0 || b.Cause.Age < 0 || len(b.Cause.Note) > MaxCauseNoteBytes {
			return bad("cause %v", b.Cause.Kind)
		}
		if !validTime(b.Until) {
			return bad("until %v", b.Until)
		}
	case Deleted:
		if !validTime(b.Until) || !validTime(b.Quiet) {
			return bad("until %v, quiet %v", b.Until, b.Quiet)
		}
	case Forgotten:
	case Checkpoint:
		switch {
		case b.Bytes <= 0 || b.Bytes > maxManifestBytes:
			return bad("state of %d bytes", b.Bytes)
		case (b.Manifest == ID{}) != (int64(len(b.State)) == b.Bytes), b.Manifest != ID{} && len(b.State) > 0, len(b.State) > MaxInlineState:
			return bad("checkpoint of %d bytes with %d in it", b.Bytes, len(b.State))
		}
	default:
		return bad("no body")
	}
	return nil
}

// maxManifestBytes bounds a state that a decoder believes.
const maxManifestBytes = 1 << 30

// maxTimeMillis keeps times within what time.Time formats (the year 9999).
const maxTimeMillis = 253402300799999

// validTime says whether an event can carry a time, or its absence.
func validTime(t time.Time) bool {
	ms := timeToMs(t)
	return ms >= 0 && ms <= maxTimeMillis && (t.IsZero() || ms > 0)
}

func checkIDs(ids []ID) error {
	if len(ids) == 0 || len(ids) > maxEventIDs {
		return fmt.Errorf("%w: %d ids", ErrInvalidEvent, len(ids))
	}
	if slices.Contains(ids, ID{}) {
		return fmt.Errorf("%w: zero id", ErrInvalidEvent)
	}
	return nil
}

// validLineage says whether epochs and starts rise together.
func validLineage(l []log.EpochStart) bool {
	for i, s := range l {
		if s.Epoch < 0 || s.Start < 0 {
			return false
		}
		if i > 0 && (s.Epoch <= l[i-1].Epoch || s.Start <= l[i-1].Start) {
			return false
		}
	}
	return true
}
