package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata/internal/metapb"
)

// A log entry, a snapshot and a message body are protobuf messages in an
// envelope (docs/format/metadata-record.md). All integers are little endian.
//
//	offset  size  field
//	0       2     magic: "CE" an entry, "CS" a snapshot
//	2       2     version, 1
//	4       4     CRC-32C of all that follows
//	8       n     protobuf message
//
// These constants are on disk and must not change.
const (
	envelopeBytes   = 8
	envelopeVersion = 1
	magicEntry      = "CE"
	magicSnapshot   = "CS"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Kinds of records in an entry. They are on disk and must not change.
const (
	kindBroker    = 1
	kindTopic     = 2
	kindPartition = 3
	kindCounters  = 4
	kindDeleted   = 5
)

// A record is one change: the new value of the object with this key. The value's
// bytes are what every server stores and hashes, so servers whose encoders differ
// still agree.
type record struct {
	kind uint32
	key  string
	*object
}

// removes returns the keys of the records that this one takes away.
func (r record) removes() []string {
	if r.deleted == nil {
		return nil
	}
	keys := []string{topicKey(r.deleted.ID)}
	for i := range r.deleted.Epochs {
		keys = append(keys, partitionKey(log.PartitionID{Topic: r.deleted.ID, Index: int32(i)}))
	}
	return keys
}

func appendEnvelope(b []byte, magic string, m proto.Message) ([]byte, error) {
	start := len(b)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, envelopeVersion)
	b = append(b, 0, 0, 0, 0)
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, m)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(b[start+envelopeBytes:], castagnoli))
	return b, nil
}

func openEnvelope(b []byte, magic string, m proto.Message) error {
	if len(b) < envelopeBytes || string(b[:2]) != magic {
		return errors.New("bad magic")
	}
	if v := binary.LittleEndian.Uint16(b[2:]); v != envelopeVersion {
		return fmt.Errorf("version %d, this program reads %d", v, envelopeVersion)
	}
	if crc32.Checksum(b[envelopeBytes:], castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return errors.New("checksum mismatch")
	}
	return proto.Unmarshal(b[envelopeBytes:], m)
}

// encodeEntry encodes records that the controller of a term has decided on.
func encodeEntry(term, sequence uint64, records []record) ([]byte, error) {
	e := &metapb.Entry{Term: term, Sequence: sequence}
	for _, r := range records {
		e.Records = append(e.Records, &metapb.Record{Kind: r.kind, Value: r.value})
	}
	return appendEnvelope(nil, magicEntry, e)
}

// An entry is a decoded log entry.
type entry struct {
	term, sequence uint64
	records        []record
}

// decodeEntry is the inverse of encodeEntry. An unknown kind is an error.
func decodeEntry(b []byte) (entry, error) {
	var e metapb.Entry
	if err := openEnvelope(b, magicEntry, &e); err != nil {
		return entry{}, &FormatError{What: "log entry", Err: err}
	}
	out := entry{term: e.Term, sequence: e.Sequence}
	for _, r := range e.Records {
		rec, err := decodeRecord(r.GetKind(), r.GetValue())
		if err != nil {
			return entry{}, err
		}
		out.records = append(out.records, rec)
	}
	return out, nil
}

// decodeRecord reads one record's value, which it keeps.
func decodeRecord(kind uint32, value []byte) (record, error) {
	r := record{kind: kind, object: &object{value: value}}
	var err error
	switch kind {
	case kindBroker:
		var m metapb.Broker
		if err = proto.Unmarshal(value, &m); err == nil {
			r.broker, err = brokerFromProto(&m)
		}
		if err == nil {
			r.key = brokerKey(r.broker.ID)
		}
	case kindTopic:
		var m metapb.Topic
		if err = proto.Unmarshal(value, &m); err == nil {
			r.topic, err = topicFromProto(&m)
		}
		if err == nil {
			r.key = topicKey(r.topic.ID)
		}
	case kindPartition:
		var m metapb.Partition
		if err = proto.Unmarshal(value, &m); err == nil {
			r.partition, err = partitionFromProto(&m)
		}
		if err == nil {
			r.key = partitionKey(r.partition.ID)
		}
	case kindCounters:
		var m metapb.Counters
		if err = proto.Unmarshal(value, &m); err == nil {
			r.counters = &counters{nextBrokerEpoch: BrokerEpoch(m.NextBrokerEpoch), nextProducerID: m.NextProducerId}
			r.key = string(keyCounters)
		}
	case kindDeleted:
		var m metapb.DeletedTopic
		if err = proto.Unmarshal(value, &m); err == nil {
			r.deleted, err = deletedFromProto(&m)
		}
		if err == nil {
			r.key = deletedKey(r.deleted.ID)
		}
	default:
		err = fmt.Errorf("unknown kind %d: it is from a newer version", kind)
	}
	if err != nil {
		return record{}, &FormatError{What: fmt.Sprintf("record of kind %d", kind), Err: err}
	}
	return r, nil
}

// kindOfKey returns the kind of record that a stored key names, or 0.
func kindOfKey(key string) uint32 {
	if key == "" {
		return 0
	}
	switch key[0] {
	case keyBroker:
		return kindBroker
	case keyTopic:
		return kindTopic
	case keyPartition:
		return kindPartition
	case keyCounters:
		return kindCounters
	case keyDeleted:
		return kindDeleted
	}
	return 0
}

// newRecord encodes a message of ours; that can't fail.
func newRecord(kind uint32, key string, m proto.Message, o object) record {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("metadata: encode record of kind %d: %v", kind, err))
	}
	o.value = b
	return record{kind: kind, key: key, object: &o}
}

func brokerRecord(b Broker) record {
	return newRecord(kindBroker, brokerKey(b.ID), &metapb.Broker{
		Id: int32(b.ID), Epoch: int64(b.Epoch), Addr: b.Addr, Zone: b.Zone,
		Directory: b.Directory[:], Incarnation: b.Incarnation[:],
		HostsReplicas: b.HostsReplicas, Fenced: b.Fenced, Stopping: b.Stopping,
	}, object{broker: &b})
}

func topicRecord(t Topic) record {
	return newRecord(kindTopic, topicKey(t.ID), topicToProto(t), object{topic: &t})
}

func partitionRecord(p Partition) record {
	return newRecord(kindPartition, partitionKey(p.ID), partitionToProto(p), object{partition: &p})
}

func countersRecord(c counters) record {
	return newRecord(kindCounters, string(keyCounters),
		&metapb.Counters{NextBrokerEpoch: int64(c.nextBrokerEpoch), NextProducerId: c.nextProducerID}, object{counters: &c})
}

func deletedRecord(t DeletedTopic) record {
	m := &metapb.DeletedTopic{Id: t.ID[:], Tenant: t.Tenant, Name: t.Name}
	for _, e := range t.Epochs {
		m.Epochs = append(m.Epochs, int32(e))
	}
	return newRecord(kindDeleted, deletedKey(t.ID), m, object{deleted: &t})
}

func deletedFromProto(m *metapb.DeletedTopic) (*DeletedTopic, error) {
	id, err := topicIDFromProto(m.GetId())
	if err != nil {
		return nil, err
	}
	t := &DeletedTopic{ID: id, Tenant: m.GetTenant(), Name: m.GetName()}
	for _, e := range m.GetEpochs() {
		if e <= 0 {
			return nil, fmt.Errorf("deleted topic %v with epoch %d", id, e)
		}
		t.Epochs = append(t.Epochs, log.Epoch(e))
	}
	if len(t.Epochs) == 0 || len(t.Epochs) > maxPartitions {
		return nil, fmt.Errorf("deleted topic %v with %d partitions", id, len(t.Epochs))
	}
	return t, nil
}

func idFromProto(b []byte) (ID, error) {
	var id ID
	if len(b) != len(id) {
		return id, fmt.Errorf("an identifier of %d bytes", len(b))
	}
	copy(id[:], b)
	return id, nil
}

func topicIDFromProto(b []byte) (log.TopicID, error) {
	id, err := idFromProto(b)
	return log.TopicID(id), err
}

func brokerFromProto(m *metapb.Broker) (*Broker, error) {
	dir, err1 := idFromProto(m.Directory)
	inc, err2 := idFromProto(m.Incarnation)
	b := &Broker{ID: BrokerID(m.Id), Epoch: BrokerEpoch(m.Epoch), Addr: m.Addr, Zone: m.Zone, Directory: dir,
		Incarnation: inc, HostsReplicas: m.HostsReplicas, Fenced: m.Fenced, Stopping: m.Stopping}
	if b.ID < 0 || b.Epoch <= 0 {
		return nil, fmt.Errorf("broker %d with epoch %d", b.ID, b.Epoch)
	}
	return b, errors.Join(err1, err2)
}

func topicToProto(t Topic) *metapb.Topic {
	c := t.Config
	return &metapb.Topic{
		Id: t.ID[:], Tenant: t.Tenant, Name: t.Name,
		Partitions: int32(t.Partitions), Replication: int32(t.Replication), MinIsr: int32(t.MinISR), Internal: t.Internal,
		Config: &metapb.TopicConfig{
			SegmentBytes: c.SegmentBytes, SegmentAgeNs: int64(c.SegmentAge), MaxBatchBytes: int64(c.MaxBatchBytes), Tiered: c.Tiered,
			LocalRetention: &metapb.Retention{Bytes: c.LocalRetention.Bytes, AgeNs: int64(c.LocalRetention.Age)},
			Retention:      &metapb.Retention{Bytes: c.Retention.Bytes, AgeNs: int64(c.Retention.Age)},
		},
	}
}

func topicFromProto(m *metapb.Topic) (*Topic, error) {
	id, err := topicIDFromProto(m.GetId())
	if err != nil {
		return nil, err
	}
	c := m.GetConfig()
	if c.GetMaxBatchBytes() < 0 || c.GetMaxBatchBytes() > 1<<31-1 {
		return nil, fmt.Errorf("batches of %d bytes", c.GetMaxBatchBytes())
	}
	return &Topic{ID: id, Tenant: m.GetTenant(), Name: m.GetName(), Partitions: int(m.GetPartitions()),
		Replication: int(m.GetReplication()), MinISR: int(m.GetMinIsr()), Internal: m.GetInternal(),
		Config: TopicConfig{
			SegmentBytes: c.GetSegmentBytes(), SegmentAge: time.Duration(c.GetSegmentAgeNs()),
			MaxBatchBytes: int(c.GetMaxBatchBytes()), Tiered: c.GetTiered(),
			LocalRetention: Retention{Bytes: c.GetLocalRetention().GetBytes(), Age: time.Duration(c.GetLocalRetention().GetAgeNs())},
			Retention:      Retention{Bytes: c.GetRetention().GetBytes(), Age: time.Duration(c.GetRetention().GetAgeNs())},
		}}, nil
}

func partitionToProto(p Partition) *metapb.Partition {
	return &metapb.Partition{
		Topic: p.ID.Topic[:], Index: p.ID.Index, Replicas: idsToProto(p.Replicas),
		Leader: int32(p.Leader) + 1, LeaderBrokerEpoch: int64(p.LeaderBrokerEpoch), LeaderEpoch: int32(p.LeaderEpoch),
		PartitionEpoch: p.PartitionEpoch, Isr: membersToProto(p.ISR), Elr: idsToProto(p.ELR),
		LastKnownElr: idsToProto(p.LastKnownELR), LastKnownLeader: int32(p.LastKnownLeader) + 1, MinIsr: int32(p.MinISR),
		Recovery: uint32(p.Recovery), LastUncleanEpoch: int32(p.LastUncleanEpoch) + 1, Unclean: uint32(p.Unclean),
	}
}

func partitionFromProto(m *metapb.Partition) (*Partition, error) {
	topic, err := topicIDFromProto(m.GetTopic())
	if err != nil {
		return nil, err
	}
	if m.GetUnclean() != uint32(UncleanOffline) || m.GetRecovery() > uint32(Recovering) {
		return nil, fmt.Errorf("unclean policy %d, recovery %d: from a newer version", m.GetUnclean(), m.GetRecovery())
	}
	p := &Partition{ID: log.PartitionID{Topic: topic, Index: m.GetIndex()}, Replicas: idsFromProto(m.GetReplicas()),
		Leader: BrokerID(m.GetLeader()) - 1, LeaderBrokerEpoch: BrokerEpoch(m.GetLeaderBrokerEpoch()),
		LeaderEpoch: log.Epoch(m.GetLeaderEpoch()), PartitionEpoch: m.GetPartitionEpoch(), ISR: membersFromProto(m.GetIsr()),
		ELR: idsFromProto(m.GetElr()), LastKnownELR: idsFromProto(m.GetLastKnownElr()),
		LastKnownLeader: BrokerID(m.GetLastKnownLeader()) - 1, MinISR: int(m.GetMinIsr()),
		Recovery: RecoveryState(m.GetRecovery()), LastUncleanEpoch: log.Epoch(m.GetLastUncleanEpoch()) - 1,
		Unclean: UncleanPolicy(m.GetUnclean())}
	if p.ID.Index < 0 || p.Leader < NoBroker || p.LastKnownLeader < NoBroker {
		return nil, errors.New("negative index or leader")
	}
	return p, nil
}

func idsToProto(ids []BrokerID) []int32 {
	var out []int32
	for _, id := range ids {
		out = append(out, int32(id))
	}
	return out
}

func idsFromProto(ids []int32) []BrokerID {
	var out []BrokerID
	for _, id := range ids {
		out = append(out, BrokerID(id))
	}
	return out
}

func membersToProto(ms []Member) []*metapb.Member {
	var out []*metapb.Member
	for _, m := range ms {
		out = append(out, &metapb.Member{Id: int32(m.ID), Epoch: int64(m.Epoch)})
	}
	return out
}

func membersFromProto(ms []*metapb.Member) []Member {
	var out []Member
	for _, m := range ms {
		out = append(out, Member{ID: BrokerID(m.GetId()), Epoch: BrokerEpoch(m.GetEpoch())})
	}
	return out
}

// A snapshot is the whole state at one index.
type snapshot struct {
	index, term uint64
	image       *Image
}

func snapshotToProto(im *Image, conf *raftpb.ConfState) (*metapb.Snapshot, error) {
	c, err := proto.Marshal(conf)
	if err != nil {
		return nil, err
	}
	m := &metapb.Snapshot{Index: im.index, Term: im.term, ConfState: c, Hash: im.hash.bytes()}
	im.records.Scan(func(key string, o *object) bool {
		m.State = append(m.State, &metapb.KeyValue{Key: []byte(key), Value: o.value})
		return true
	})
	return m, nil
}

func encodeSnapshot(im *Image, conf *raftpb.ConfState) ([]byte, error) {
	m, err := snapshotToProto(im, conf)
	if err != nil {
		return nil, err
	}
	return appendEnvelope(nil, magicSnapshot, m)
}

// decodeSnapshot reads what encodeSnapshot writes.
func decodeSnapshot(b []byte, cluster ID) (snapshot, error) {
	var m metapb.Snapshot
	if err := openEnvelope(b, magicSnapshot, &m); err != nil {
		return snapshot{}, &FormatError{What: "snapshot", Err: err}
	}
	return snapshotFromProto(&m, cluster)
}

// snapshotFromProto checks the snapshot's hash, so that a state that differs from
// its sender's is never taken over.
func snapshotFromProto(m *metapb.Snapshot, cluster ID) (snapshot, error) {
	im := newImage(cluster)
	last := ""
	for _, kv := range m.State {
		key := string(kv.GetKey())
		if key <= last {
			return snapshot{}, &FormatError{What: "snapshot", Err: errors.New("keys are not sorted")}
		}
		last = key
		if err := im.load(key, kv.GetValue()); err != nil {
			return snapshot{}, err
		}
	}
	if want, ok := parseStateHash(m.Hash); !ok || want != im.hash {
		return snapshot{}, &FormatError{What: "snapshot", Err: errors.New("state hash mismatch")}
	}
	im.index, im.term = m.Index, m.Term
	return snapshot{index: m.Index, term: m.Term, image: im}, nil
}
