package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata/internal/metapb"
)

// Messages between servers (docs/format/metadata-message.md). All integers are
// little endian.
//
//	offset  size  field
//	0       2     magic "CM"
//	2       1     version, 1
//	3       1     kind: 1 raftpb.Message, 2 metapb.Request, 3 metapb.Reply
//	4       4     CRC-32C of all that follows
//	8       4     broker id of the sender
//	12      16    cluster id
//	28      16    directory id of the sender, zero if it has none
//	44      n     protobuf message
//
// These constants are on the wire and must not change.
const (
	messageMagic   = "CM"
	messageVersion = 1
	messageHeader  = 44

	messageRaft    = 1
	messageRequest = 2
	messageReply   = 3
)

// A message is an opened one; body points into the bytes received.
type message struct {
	kind byte
	from BrokerID
	dir  ID
	body []byte
}

// seal wraps a body that is not kept.
func (s *Server) seal(kind byte, body []byte) []byte {
	return sealMessage(kind, s.opt.Self, s.opt.Cluster, s.opt.Directory, body)
}

func sealMessage(kind byte, from BrokerID, cluster, dir ID, body []byte) []byte {
	b := make([]byte, 0, messageHeader+len(body))
	b = append(b, messageMagic...)
	b = append(b, messageVersion, kind, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(from))
	b = append(b, cluster[:]...)
	b = append(b, dir[:]...)
	b = append(b, body...)
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

// openMessage checks a message that should come from a node of the cluster.
func openMessage(b []byte, from BrokerID, cluster ID) (message, error) {
	bad := func(format string, args ...any) (message, error) {
		return message{}, &FormatError{What: "message", Err: fmt.Errorf(format, args...)}
	}
	if len(b) < messageHeader || string(b[:2]) != messageMagic {
		return bad("bad magic")
	}
	if b[2] != messageVersion {
		return bad("version %d, this program reads %d", b[2], messageVersion)
	}
	if crc32.Checksum(b[8:], castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return bad("checksum mismatch")
	}
	m := message{kind: b[3], from: BrokerID(binary.LittleEndian.Uint32(b[8:])), dir: ID(b[28:44]), body: b[messageHeader:]}
	if ID(b[12:28]) != cluster {
		return bad("it is of cluster %v, this is %v", ID(b[12:28]), cluster)
	}
	if m.from != from {
		return bad("it is of broker %d, but came from %d", m.from, from)
	}
	return m, nil
}

// Codes in a reply. They are on the wire and must not change.
var errorCodes = []struct {
	code uint32
	err  error
}{
	{1, ErrNotController},
	{2, ErrTopicExists},
	{3, ErrUnknownTopic},
	{4, ErrUnknownPartition},
	{5, ErrInvalidRequest},
	{6, ErrNotEnoughBrokers},
	{7, ErrStale},
	{8, ErrIneligible},
	{9, ErrInUse},
	{10, ErrUnknownBroker},
	{11, ErrTooLarge},
	{12, ErrIdentity},
	{13, ErrTopicDeleted},
}

const codeUnknown = 255 // the outcome is unknown, or the error has no code

func errorToReply(err error) *metapb.Reply {
	for _, c := range errorCodes {
		if errors.Is(err, c.err) {
			return &metapb.Reply{Code: c.code, Text: err.Error()}
		}
	}
	return &metapb.Reply{Code: codeUnknown, Text: err.Error()}
}

// A remoteError is an error of another server, with its text.
type remoteError struct {
	text string
	err  error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.err }

func replyToError(r *metapb.Reply) error {
	if r.Code == 0 {
		return nil
	}
	for _, c := range errorCodes {
		if c.code == r.Code {
			return &remoteError{text: r.Text, err: c.err}
		}
	}
	return &remoteError{text: r.Text, err: errUnknownOutcome}
}

// errUnknownOutcome marks an attempt that may or may not have had an effect.
var errUnknownOutcome = errors.New("metadata: outcome unknown")

// definite tells whether an error is a verdict on the request.
func definite(err error) bool {
	if err == nil {
		return true
	}
	if errors.Is(err, ErrNotController) {
		return false
	}
	return slices.ContainsFunc(errorCodes, func(c struct {
		code uint32
		err  error
	}) bool {
		return errors.Is(err, c.err)
	})
}

func partitionIDsToProto(ids []log.PartitionID) []*metapb.PartitionID {
	var out []*metapb.PartitionID
	for _, id := range ids {
		out = append(out, &metapb.PartitionID{Topic: id.Topic[:], Index: id.Index})
	}
	return out
}

func partitionIDFromProto(m *metapb.PartitionID) (log.PartitionID, error) {
	t, err := topicIDFromProto(m.GetTopic())
	if err == nil && m.GetIndex() < 0 {
		err = errors.New("negative partition")
	}
	return log.PartitionID{Topic: t, Index: m.GetIndex()}, err
}

func partitionIDsFromProto(ms []*metapb.PartitionID) ([]log.PartitionID, error) {
	var out []log.PartitionID
	for _, m := range ms {
		id, err := partitionIDFromProto(m)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

// requestToProto encodes a request to the controller.
func requestToProto(req any) *metapb.Request {
	switch r := req.(type) {
	case Registration:
		return &metapb.Request{Ask: &metapb.Request_Register{Register: &metapb.Register{Id: int32(r.ID), Directory: r.Directory[:],
			Incarnation: r.Incarnation[:], Addr: r.Addr, Zone: r.Zone, HostsReplicas: r.HostsReplicas}}}
	case HeartbeatRequest:
		return &metapb.Request{Ask: &metapb.Request_Heartbeat{Heartbeat: &metapb.Heartbeat{Id: int32(r.ID), Epoch: int64(r.Epoch),
			Applied: r.AppliedIndex, WantStop: r.WantStop, Electable: partitionIDsToProto(r.Electable), Lossy: partitionIDsToProto(r.Lossy)}}}
	case createRequest:
		return &metapb.Request{Ask: &metapb.Request_CreateTopic{CreateTopic: &metapb.CreateTopic{Topic: topicToProto(Topic{ID: r.id,
			Tenant: r.spec.Tenant, Name: r.spec.Name, Partitions: r.spec.Partitions, Replication: r.spec.Replication,
			MinISR: r.spec.MinISR, Internal: r.spec.Internal, Config: r.spec.Config})}}}
	case deleteRequest:
		return &metapb.Request{Ask: &metapb.Request_DeleteTopic{DeleteTopic: &metapb.DeleteTopic{Id: r.id[:]}}}
	case ISRChange:
		return &metapb.Request{Ask: &metapb.Request_AlterIsr{AlterIsr: &metapb.AlterISR{
			Partition: partitionIDsToProto([]log.PartitionID{r.Partition})[0], Leader: int32(r.Leader),
			LeaderBrokerEpoch: int64(r.LeaderBrokerEpoch), LeaderEpoch: int32(r.LeaderEpoch), PartitionEpoch: r.PartitionEpoch,
			Isr: membersToProto(r.ISR), Lossy: membersToProto(r.Lossy)}}}
	case producersRequest:
		return &metapb.Request{Ask: &metapb.Request_AllocateProducers{AllocateProducers: &metapb.AllocateProducers{Id: int32(r.id), Epoch: int64(r.epoch)}}}
	case syncRequest:
		return &metapb.Request{Ask: &metapb.Request_Sync{Sync: &metapb.Sync{}}}
	case deathRequest:
		return &metapb.Request{Ask: &metapb.Request_Death{Death: &metapb.Death{Id: int32(r.id), Incarnation: r.incarnation[:]}}}
	}
	panic(fmt.Sprintf("metadata: request of type %T", req))
}

// requestFromProto is its inverse; nil without an error means that the request is
// not one to the controller.
func requestFromProto(m *metapb.Request) (any, error) {
	switch ask := m.GetAsk().(type) {
	case *metapb.Request_Register:
		r := ask.Register
		dir, err1 := idFromProto(r.GetDirectory())
		inc, err2 := idFromProto(r.GetIncarnation())
		return Registration{ID: BrokerID(r.GetId()), Directory: dir, Incarnation: inc, Addr: r.GetAddr(), Zone: r.GetZone(),
			HostsReplicas: r.GetHostsReplicas()}, errors.Join(err1, err2)
	case *metapb.Request_Heartbeat:
		r := ask.Heartbeat
		electable, err1 := partitionIDsFromProto(r.GetElectable())
		lossy, err2 := partitionIDsFromProto(r.GetLossy())
		return HeartbeatRequest{ID: BrokerID(r.GetId()), Epoch: BrokerEpoch(r.GetEpoch()), AppliedIndex: r.GetApplied(),
			WantStop: r.GetWantStop(), Electable: electable, Lossy: lossy}, errors.Join(err1, err2)
	case *metapb.Request_CreateTopic:
		t, err := topicFromProto(ask.CreateTopic.GetTopic())
		if err != nil {
			return nil, err
		}
		return createRequest{id: t.ID, spec: TopicSpec{Tenant: t.Tenant, Name: t.Name, Partitions: t.Partitions,
			Replication: t.Replication, MinISR: t.MinISR, Internal: t.Internal, Config: t.Config}}, nil
	case *metapb.Request_DeleteTopic:
		id, err := topicIDFromProto(ask.DeleteTopic.GetId())
		return deleteRequest{id: id}, err
	case *metapb.Request_AlterIsr:
		r := ask.AlterIsr
		id, err := partitionIDFromProto(r.GetPartition())
		return ISRChange{Partition: id, Leader: BrokerID(r.GetLeader()), LeaderBrokerEpoch: BrokerEpoch(r.GetLeaderBrokerEpoch()),
			LeaderEpoch: log.Epoch(r.GetLeaderEpoch()), PartitionEpoch: r.GetPartitionEpoch(), ISR: membersFromProto(r.GetIsr()),
			Lossy: membersFromProto(r.GetLossy())}, err
	case *metapb.Request_AllocateProducers:
		return producersRequest{id: BrokerID(ask.AllocateProducers.GetId()), epoch: BrokerEpoch(ask.AllocateProducers.GetEpoch())}, nil
	case *metapb.Request_Sync:
		return syncRequest{}, nil
	case *metapb.Request_Death:
		inc, err := idFromProto(ask.Death.GetIncarnation())
		return deathRequest{id: BrokerID(ask.Death.GetId()), incarnation: inc}, err
	}
	return nil, nil
}

// resultToProto encodes the controller's answer.
func resultToProto(res any) *metapb.Reply {
	switch r := res.(type) {
	case nil:
		return &metapb.Reply{}
	case BrokerEpoch:
		return &metapb.Reply{BrokerEpoch: int64(r)}
	case HeartbeatReply:
		return &metapb.Reply{Fenced: r.Fenced, Stopping: r.Stopping, ShouldStop: r.ShouldStop}
	case Topic:
		return &metapb.Reply{Topic: topicToProto(r)}
	case Partition:
		return &metapb.Reply{Partition: partitionToProto(r)}
	case ProducerBlock:
		return &metapb.Reply{First: r.First, Count: int64(r.Count)}
	case syncIndex:
		return &metapb.Reply{Index: uint64(r)}
	}
	panic(fmt.Sprintf("metadata: result of type %T", res))
}

// resultFromProto is its inverse, for the request that was asked.
func resultFromProto(req any, m *metapb.Reply) (any, error) {
	switch req.(type) {
	case Registration:
		return BrokerEpoch(m.GetBrokerEpoch()), nil
	case HeartbeatRequest:
		return HeartbeatReply{Fenced: m.GetFenced(), Stopping: m.GetStopping(), ShouldStop: m.GetShouldStop()}, nil
	case createRequest:
		t, err := topicFromProto(m.GetTopic())
		if err != nil {
			return nil, &FormatError{What: "reply", Err: err}
		}
		return *t, nil
	case ISRChange:
		p, err := partitionFromProto(m.GetPartition())
		if err != nil {
			return nil, &FormatError{What: "reply", Err: err}
		}
		return *p, nil
	case producersRequest:
		if m.GetCount() < 0 || m.GetCount() > 1<<31-1 {
			return nil, &FormatError{What: "reply", Err: fmt.Errorf("%d producer ids", m.GetCount())}
		}
		return ProducerBlock{First: m.GetFirst(), Count: int(m.GetCount())}, nil
	case syncRequest:
		return syncIndex(m.GetIndex()), nil
	}
	return nil, nil
}

func marshalMessage(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("metadata: encode message: %v", err)) // strings are valid UTF-8, see checkSpec and checkRegistration
	}
	return b
}
