package metadata

import (
	"encoding/binary"
	"iter"
	"slices"
	"sync"

	"github.com/cordwood-io/cordwood/log"
	"github.com/tidwall/btree"
)

// An Image is the state of the cluster at one index of the metadata log. It never
// changes: a newer state is another image, which shares what is equal. Safe for
// concurrent use; what its methods return belongs to it and must not be changed.
type Image struct {
	cluster ID
	index   uint64
	term    uint64
	hash    stateHash

	// mu guards the copying of the trees, which marks their nodes as shared.
	// Reading them needs no lock, since nothing writes to a published image.
	mu      sync.Mutex
	records *btree.Map[string, *object]     // by stored key
	names   *btree.Map[string, log.TopicID] // by tenant, zero byte, name
}

// An object is one record in its stored and in its readable form. Exactly one of
// the pointers is set, as the kind says.
type object struct {
	value     []byte
	broker    *Broker
	topic     *Topic
	partition *Partition
	counters  *counters
	deleted   *DeletedTopic
}

type counters struct {
	nextBrokerEpoch BrokerEpoch
	nextProducerID  int64
}

func newImage(cluster ID) *Image {
	return &Image{cluster: cluster, records: new(btree.Map[string, *object]), names: new(btree.Map[string, log.TopicID])}
}

// clone returns a private copy that may be changed until it is published.
func (im *Image) clone() *Image {
	im.mu.Lock()
	defer im.mu.Unlock()
	return &Image{cluster: im.cluster, index: im.index, term: im.term, hash: im.hash,
		records: im.records.Copy(), names: im.names.Copy()}
}

// Cluster returns the identifier of the cluster.
func (im *Image) Cluster() ID { return im.cluster }

// Index returns the index of the last log entry that the image holds. It is never
// zero on an image that a [Server] hands out, except on an observer that has not
// reached a voter yet.
func (im *Image) Index() uint64 { return im.index }

// StateHash returns a hash over the stored state, equal on all servers whose
// images have the same index.
func (im *Image) StateHash() string { return im.hash.String() }

// Broker returns a registered broker.
func (im *Image) Broker(id BrokerID) (Broker, bool) {
	if o, ok := im.records.Get(brokerKey(id)); ok {
		return *o.broker, true
	}
	return Broker{}, false
}

// Brokers yields all registered brokers in order of id.
func (im *Image) Brokers() iter.Seq[Broker] {
	return func(yield func(Broker) bool) {
		im.scan(keyBroker, func(o *object) bool { return yield(*o.broker) })
	}
}

// Topic returns a topic by its identifier.
func (im *Image) Topic(id log.TopicID) (Topic, bool) {
	if o, ok := im.records.Get(topicKey(id)); ok {
		return *o.topic, true
	}
	return Topic{}, false
}

// TopicByName returns the topic that has this name in a tenant's namespace at
// present.
func (im *Image) TopicByName(tenant, name string) (Topic, bool) {
	if id, ok := im.names.Get(nameKey(tenant, name)); ok {
		return im.Topic(id)
	}
	return Topic{}, false
}

// Topics yields all topics in order of id.
func (im *Image) Topics() iter.Seq[Topic] {
	return func(yield func(Topic) bool) {
		im.scan(keyTopic, func(o *object) bool { return yield(*o.topic) })
	}
}

// DeletedTopic returns what remains of a topic that was deleted.
func (im *Image) DeletedTopic(id log.TopicID) (DeletedTopic, bool) {
	if o, ok := im.records.Get(deletedKey(id)); ok {
		return *o.deleted, true
	}
	return DeletedTopic{}, false
}

// DeletedTopics yields all topics that were deleted, in order of id.
func (im *Image) DeletedTopics() iter.Seq[DeletedTopic] {
	return func(yield func(DeletedTopic) bool) {
		im.scan(keyDeleted, func(o *object) bool { return yield(*o.deleted) })
	}
}

// Partition returns the record of a partition.
func (im *Image) Partition(id log.PartitionID) (Partition, bool) {
	if o, ok := im.records.Get(partitionKey(id)); ok {
		return *o.partition, true
	}
	return Partition{}, false
}

// Partitions yields the records of all partitions, in order of topic id and
// index.
func (im *Image) Partitions() iter.Seq[Partition] {
	return func(yield func(Partition) bool) {
		im.scan(keyPartition, func(o *object) bool { return yield(*o.partition) })
	}
}

// LiveMembers returns those replicas of a partition that may lead and be in an
// in-sync set, with the epochs of their present processes, sorted by id.
func (im *Image) LiveMembers(p Partition) []Member {
	var live []Member
	for _, id := range p.Replicas {
		if b, ok := im.Broker(id); ok && b.Live() {
			live = append(live, Member{ID: b.ID, Epoch: b.Epoch})
		}
	}
	slices.SortFunc(live, compareMembers)
	return live
}

func (im *Image) counters() counters {
	if o, ok := im.records.Get(string(keyCounters)); ok {
		return *o.counters
	}
	return counters{nextBrokerEpoch: 1}
}

// scan visits the objects of one kind in order of key.
func (im *Image) scan(kind byte, visit func(*object) bool) {
	im.records.Ascend(string(kind), func(k string, o *object) bool {
		return k[0] == kind && visit(o)
	})
}

// Stored keys. The first byte is the kind; numbers are big endian, so that keys
// sort as numbers do. They must not change.
const (
	keyBroker    byte = 'b'
	keyCounters  byte = 'c'
	keyDeleted   byte = 'd'
	keyPartition byte = 'p'
	keyTopic     byte = 't'
)

func brokerKey(id BrokerID) string {
	return string(binary.BigEndian.AppendUint32([]byte{keyBroker}, uint32(id)))
}

func topicKey(id log.TopicID) string { return string(append([]byte{keyTopic}, id[:]...)) }

func deletedKey(id log.TopicID) string { return string(append([]byte{keyDeleted}, id[:]...)) }

func partitionKey(id log.PartitionID) string {
	b := append([]byte{keyPartition}, id.Topic[:]...)
	return string(binary.BigEndian.AppendUint32(b, uint32(id.Index)))
}

func nameKey(tenant, name string) string { return tenant + "\x00" + name }

func compareMembers(a, b Member) int {
	if a.ID != b.ID {
		return int(a.ID) - int(b.ID)
	}
	return int(max(min(a.Epoch-b.Epoch, 1), -1))
}

func comparePartitionIDs(a, b log.PartitionID) int {
	if c := slices.Compare(a.Topic[:], b.Topic[:]); c != 0 {
		return c
	}
	return int(a.Index) - int(b.Index)
}
