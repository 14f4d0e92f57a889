package metadata

import (
	"maps"
	"slices"

	"github.com/cordwood-io/cordwood/log"
)

// An ActionKind says what a broker must do with one of its replicas.
type ActionKind uint8

const (
	// ActionOpen opens, or creates, the log of a replica. A ActionLead or ActionFollow comes next.
	ActionOpen ActionKind = iota + 1
	// ActionLead makes the replica the leader of the record's leader epoch.
	ActionLead
	// ActionFollow makes it a follower of the record's leader, if there is one.
	ActionFollow
	// ActionUpdate hands over a newer record in which its role has not changed.
	ActionUpdate
	// ActionDelete closes the replica and removes its data: the topic is gone, or the
	// replica is assigned elsewhere.
	ActionDelete
)

// String returns the kind's name.
func (k ActionKind) String() string {
	switch k {
	case ActionOpen:
		return "open"
	case ActionLead:
		return "lead"
	case ActionFollow:
		return "follow"
	case ActionUpdate:
		return "update"
	case ActionDelete:
		return "delete"
	}
	return "unknown"
}

// An Action is one step of a broker towards what an image says.
type Action struct {
	Kind      ActionKind
	Partition Partition // the record; only its ID with ActionDelete
	Topic     Topic     // its topic; zero with ActionDelete
}

// A LocalReplica is what a broker has done about one replica.
type LocalReplica struct {
	Leads          bool
	Leader         Member
	LeaderEpoch    log.Epoch
	PartitionEpoch int64
}

// Local is the set of replicas that a broker has open. The nil map is a broker
// that has just started.
type Local map[log.PartitionID]LocalReplica

// Reconcile returns what must be done so that local becomes what the image says
// about self, sorted by partition, ActionOpen before ActionLead or ActionFollow. only limits it to
// some partitions, as a [Delta] names them; nil means all, and deletions of
// replicas that only a missing record shows.
//
// It is pure and does not change local, see [Local.After]. Repeating it, leaving
// images out, and cutting deltas otherwise lead to the same end.
//
// Source: our own; KAFKA-14010 and its relatives show what happens otherwise.
func Reconcile(local Local, im *Image, self Member, only []log.PartitionID) []Action {
	var ids []log.PartitionID
	if only == nil {
		for p := range im.Partitions() {
			if p.HasReplica(self.ID) {
				ids = append(ids, p.ID)
			}
		}
		ids = slices.AppendSeq(ids, maps.Keys(local))
	} else {
		ids = slices.Clone(only)
	}
	slices.SortFunc(ids, comparePartitionIDs)
	ids = slices.Compact(ids)

	var actions []Action
	for _, id := range ids {
		have, open := local[id]
		p, ok := im.Partition(id)
		if !ok || !p.HasReplica(self.ID) {
			if open {
				actions = append(actions, Action{Kind: ActionDelete, Partition: Partition{ID: id, Leader: NoBroker, LastKnownLeader: NoBroker}})
			}
			continue
		}
		if open && p.PartitionEpoch <= have.PartitionEpoch && p.LedBy(self) == have.Leads {
			continue
		}
		t, _ := im.Topic(id.Topic)
		if !open {
			actions = append(actions, Action{Kind: ActionOpen, Partition: p, Topic: t})
		}
		kind := ActionUpdate
		leader := Member{ID: p.Leader, Epoch: p.LeaderBrokerEpoch}
		switch {
		case open && have.LeaderEpoch == p.LeaderEpoch && have.Leader == leader && have.Leads == p.LedBy(self):
		case p.LedBy(self):
			kind = ActionLead
		default:
			kind = ActionFollow
		}
		actions = append(actions, Action{Kind: kind, Partition: p, Topic: t})
	}
	return actions
}

// After returns local as it is once the actions are done, by a process that is
// self. It does not change local.
func (local Local) After(actions []Action, self Member) Local {
	next := maps.Clone(local)
	if next == nil {
		next = Local{}
	}
	for _, a := range actions {
		p := a.Partition
		if a.Kind == ActionDelete {
			delete(next, p.ID)
			continue
		}
		next[p.ID] = LocalReplica{
			Leads:          p.LedBy(self),
			Leader:         Member{ID: p.Leader, Epoch: p.LeaderBrokerEpoch},
			LeaderEpoch:    p.LeaderEpoch,
			PartitionEpoch: p.PartitionEpoch,
		}
	}
	return next
}
