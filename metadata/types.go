package metadata

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A BrokerID names a node of the cluster, voter or not. It is fixed for the life
// of a data directory and never negative; [NoBroker] stands for none.
type BrokerID int32

// NoBroker is the [BrokerID] that names nobody, for example the leader of a
// partition that has none.
const NoBroker BrokerID = -1

// A BrokerEpoch names one process life of a broker. The controller hands it out
// at registration; it rises over the whole cluster and is never used twice. Zero
// is none.
//
// Source: KIP-631, KIP-903.
type BrokerEpoch int64

// An ID is a random 128-bit identifier: of a cluster, of a data directory, of a
// process life. The zero ID is none.
type ID [16]byte

// NewID returns a random identifier (UUID version 4).
func NewID() ID {
	var id ID
	rand.Read(id[:]) // never fails, see crypto/rand
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// IsZero reports whether id is the zero ID.
func (id ID) IsZero() bool { return id == ID{} }

// String returns the identifier in the canonical text form of a UUID.
func (id ID) String() string {
	b := make([]byte, 36)
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b)
}

// ParseID reads what [ID.String] writes, and the same without dashes.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' {
		s = s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	}
	if len(s) != 32 {
		return ID{}, fmt.Errorf("metadata: %q is no identifier", s)
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return ID{}, fmt.Errorf("metadata: %q is no identifier", s)
	}
	return id, nil
}

// A Voter is one member of the metadata quorum.
type Voter struct {
	ID   BrokerID
	Addr string // where its transport listens; kept for others to learn, not dialled here
}

// A Member is one process life of a broker, as it stands in a partition's in-sync
// set: a restarted process is another member.
type Member struct {
	ID    BrokerID
	Epoch BrokerEpoch
}

// A Broker is a registered node as the metadata log knows it.
type Broker struct {
	ID            BrokerID
	Epoch         BrokerEpoch // of its last registration
	Addr          string      // where its transport listens
	Zone          string      // failure zone, may be empty
	Directory     ID          // of its data directory
	Incarnation   ID          // of its process
	HostsReplicas bool        // false for a node that is only a client or a voter
	Fenced        bool        // out of contact, or registered and not yet caught up: leads nothing, is in no in-sync set
	Stopping      bool        // has asked to stop: as fenced, but still in contact
}

// Live reports whether the broker may lead and be in an in-sync set: neither
// fenced nor stopping.
func (b Broker) Live() bool { return !b.Fenced && !b.Stopping }

// Retention bounds what is kept of a partition, by bytes and by age. For both, a
// negative value means no bound.
type Retention struct {
	Bytes int64
	Age   time.Duration
}

// TopicConfig holds the settings of a topic. They are kept as given; their
// meaning, defaults included, is that of packages log and tier.
type TopicConfig struct {
	SegmentBytes   int64         // size at which a segment is sealed; 0 = the log's default
	SegmentAge     time.Duration // age at which a segment is sealed; 0 = never
	MaxBatchBytes  int           // largest record batch; 0 = the log's default
	LocalRetention Retention     // on a replica's own disk
	Retention      Retention     // in total
	Tiered         bool          // sealed segments go to the object store
}

// A TopicSpec describes a topic to be created.
type TopicSpec struct {
	Tenant      string // namespace; "" is the default tenant
	Name        string // 1 to 249 of letters, digits, '.', '_' and '-'; a leading "__" needs Internal
	Partitions  int    // at least 1
	Replication int    // replicas of each partition, at least 1; 0 = min(3, brokers that may host one)
	MinISR      int    // in-sync replicas that a commit needs, 1 to Replication; 0 = min(2, Replication)
	Internal    bool   // belongs to the library or to the host, not to a user
	Config      TopicConfig
}

// A Topic is a named set of partitions. One ID is one life of its name: a topic
// that is deleted and made again has another.
type Topic struct {
	ID          log.TopicID
	Tenant      string
	Name        string
	Partitions  int
	Replication int
	MinISR      int
	Internal    bool
	Config      TopicConfig
}

// A DeletedTopic is what remains of a topic that was deleted. It stays for good: it
// tells every broker, however long it was away, that the topic's replicas are to be
// removed, and in which epoch what the topic has elsewhere is cleaned up.
type DeletedTopic struct {
	ID     log.TopicID
	Tenant string
	Name   string

	// Epochs has for each partition its last leader epoch plus one: nobody has led
	// the partition in it, and nobody will.
	Epochs []log.Epoch
}

// A UncleanPolicy says who may lead a partition whose in-sync and eligible
// replicas are all gone.
type UncleanPolicy uint8

// UncleanOffline, the only policy so far, leaves such a partition without a
// leader until one of these replicas is back: no acknowledged record is lost.
const UncleanOffline UncleanPolicy = 0

// A RecoveryState tells whether a partition's last election was clean.
type RecoveryState uint8

const (
	// Recovered is the state after clean elections.
	Recovered RecoveryState = 0
	// Recovering follows an unclean election until its leader is done. With
	// [UncleanOffline] it does not occur.
	Recovering RecoveryState = 1
)

// A Partition is the record of one partition. Each accepted change raises
// PartitionEpoch by one and is a compare-and-set on it.
//
// The slices belong to the image and must not be changed.
//
// Source: KIP-497, KIP-631, KIP-903, KIP-966; that a leader is named with its
// broker epoch, and that MinISR stands in the record, is our own.
type Partition struct {
	ID                log.PartitionID
	Replicas          []BrokerID  // in order of preference
	Leader            BrokerID    // [NoBroker] if none
	LeaderBrokerEpoch BrokerEpoch // the process life that leads; 0 if none
	LeaderEpoch       log.Epoch   // rises with each change of leader, the loss of one included
	PartitionEpoch    int64       // rises by one with each change
	ISR               []Member    // in-sync replicas, sorted by ID
	ELR               []BrokerID  // eligible leader replicas: hold every committed record; empty unless |ISR| < MinISR
	LastKnownELR      []BrokerID  // left ISR and ELR by losing data while |ISR| < MinISR
	LastKnownLeader   BrokerID    // who led last; [NoBroker] if nobody has
	MinISR            int
	Recovery          RecoveryState
	LastUncleanEpoch  log.Epoch // -1 if there was none
	Unclean           UncleanPolicy
}

// LedBy reports whether this process life of a broker leads the partition.
func (p Partition) LedBy(m Member) bool {
	return p.Leader == m.ID && p.Leader != NoBroker && p.LeaderBrokerEpoch == m.Epoch
}

// HasReplica reports whether the broker is assigned a replica.
func (p Partition) HasReplica(id BrokerID) bool {
	return slices.Contains(p.Replicas, id)
}

// A Registration announces one process life of a broker.
type Registration struct {
	ID            BrokerID
	Directory     ID // of the data directory; another directory is another replica of everything
	Incarnation   ID // of this process; a retry with the same one keeps its epoch
	Addr          string
	Zone          string
	HostsReplicas bool
}

// A HeartbeatRequest keeps a broker's session alive and reports its state.
type HeartbeatRequest struct {
	ID           BrokerID
	Epoch        BrokerEpoch
	AppliedIndex uint64 // index of the image that this broker acts on
	WantStop     bool   // asks to be relieved of everything, see [HeartbeatReply.ShouldStop]

	// Electable lists, in full, the replicas whose log this process has opened and
	// found not lossy. Lossy lists those that it knows to have lost data: they
	// leave the in-sync and eligible sets at once, even if nobody remains. A
	// replica is listed until an image shows it out of both, and not again
	// because of the same loss: its leader may take it back from then on.
	Electable []log.PartitionID
	Lossy     []log.PartitionID
}

// A HeartbeatReply is the controller's view of the broker.
type HeartbeatReply struct {
	Fenced     bool // not, or no longer, part of in-sync sets and elections
	Stopping   bool // the stop is recorded
	ShouldStop bool // it leads nothing, and all live brokers know: the process may end
}

// An ISRChange asks the controller to change an in-sync set. It is a
// compare-and-set on everything that it names.
type ISRChange struct {
	Partition         log.PartitionID
	Leader            BrokerID
	LeaderBrokerEpoch BrokerEpoch
	LeaderEpoch       log.Epoch
	PartitionEpoch    int64
	ISR               []Member // the new set; a leader that leaves itself out resigns
	Lossy             []Member // replicas known to have lost data; they get into neither ISR nor ELR
}

// A ProducerBlock is a range of producer ids that nobody else will get:
// First, First+1, … First+Count-1.
type ProducerBlock struct {
	First int64
	Count int
}

// A Delta names what changed from one image to the next one that a watcher sees.
// Its lists are sorted. A change may be seen as part of a larger one.
type Delta struct {
	Full       bool // everything may have changed, deletions included; the lists are complete for what exists
	Brokers    []BrokerID
	Topics     []log.TopicID
	Partitions []log.PartitionID
}

// A Status is a snapshot of a [Server] for people.
type Status struct {
	Self       BrokerID
	Voter      bool
	Leader     BrokerID // controller as far as known here, [NoBroker] if unknown
	Controller bool     // this server is the controller and active
	Term       uint64
	Applied    uint64 // index of the image
	Committed  uint64 // highest committed index known here; 0 for an observer
	First      uint64 // lowest index still in the log; 0 for an observer
	LogBytes   int64  // size of the log's entries; 0 for an observer
	StateHash  string // hash of the state as stored; equal on all servers at the same index
}
