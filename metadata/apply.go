package metadata

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cordwood-io/cordwood/log"
)

// put stores a record in an image that is still private and returns what it
// replaces, or nil.
func (im *Image) put(r record) *object {
	old, existed := im.records.Set(r.key, r.object)
	if existed {
		im.hash.remove(recordHash(r.key, old.value))
	}
	im.hash.add(recordHash(r.key, r.value))
	for _, key := range r.removes() {
		gone, ok := im.records.Delete(key)
		if !ok {
			continue // as when a stored state is read, which has only what remains
		}
		im.hash.remove(recordHash(key, gone.value))
		if gone.topic != nil {
			im.names.Delete(nameKey(gone.topic.Tenant, gone.topic.Name))
		}
	}
	if r.topic != nil {
		im.names.Set(nameKey(r.topic.Tenant, r.topic.Name), r.topic.ID)
	}
	if !existed {
		return nil
	}
	return old
}

// load is put for a stored key and value.
func (im *Image) load(key string, value []byte) error {
	kind := kindOfKey(key)
	if kind == 0 {
		return &FormatError{What: "state", Err: fmt.Errorf("unknown key %q: it is from a newer version", key)}
	}
	r, err := decodeRecord(kind, value)
	if err != nil {
		return err
	}
	if r.key != key {
		return &FormatError{What: "state", Err: fmt.Errorf("value of key %q names %q", key, r.key)}
	}
	im.put(r)
	return nil
}

// check tells whether a record may follow what the image holds. The controller
// decides on the state that its records are applied to, so a violation is a bug
// in it; the check keeps the bug from becoming state. It depends on nothing but
// the image and the record: all servers come to the same answer.
func (im *Image) check(r record) error {
	old, exists := im.records.Get(r.key)
	switch {
	case r.partition != nil:
		p := r.partition
		if _, ok := im.records.Get(topicKey(p.ID.Topic)); !ok {
			return fmt.Errorf("partition %v of an unknown topic", p.ID)
		}
		if err := checkPartition(*p); err != nil {
			return err
		}
		if !exists {
			if p.PartitionEpoch != 0 {
				return fmt.Errorf("new partition %v has epoch %d", p.ID, p.PartitionEpoch)
			}
			return nil
		}
		q := old.partition
		if p.PartitionEpoch != q.PartitionEpoch+1 {
			return fmt.Errorf("partition %v: epoch %d after %d", p.ID, p.PartitionEpoch, q.PartitionEpoch)
		}
		moved := p.Leader != q.Leader || p.LeaderBrokerEpoch != q.LeaderBrokerEpoch
		if p.LeaderEpoch < q.LeaderEpoch || moved && p.LeaderEpoch == q.LeaderEpoch {
			return fmt.Errorf("partition %v: leader epoch %d after %d", p.ID, p.LeaderEpoch, q.LeaderEpoch)
		}
	case r.broker != nil:
		if exists && r.broker.Epoch < old.broker.Epoch {
			return fmt.Errorf("broker %d: epoch %d after %d", r.broker.ID, r.broker.Epoch, old.broker.Epoch)
		}
	case r.topic != nil:
		if id, ok := im.names.Get(nameKey(r.topic.Tenant, r.topic.Name)); ok && id != r.topic.ID {
			return fmt.Errorf("topic %q exists with another id", r.topic.Name)
		}
		if _, ok := im.records.Get(deletedKey(r.topic.ID)); ok {
			return fmt.Errorf("topic id %v was that of a deleted topic", r.topic.ID)
		}
	case r.deleted != nil:
		return im.checkDeleted(*r.deleted, exists)
	case r.counters != nil:
		if exists && (r.counters.nextBrokerEpoch < old.counters.nextBrokerEpoch || r.counters.nextProducerID < old.counters.nextProducerID) {
			return errors.New("a counter goes back")
		}
	}
	return nil
}

// checkDeleted is check for the record of a deleted topic.
func (im *Image) checkDeleted(d DeletedTopic, exists bool) error {
	t, ok := im.Topic(d.ID)
	switch {
	case exists || !ok:
		return fmt.Errorf("deletion of topic %v, which does not exist", d.ID)
	case t.Internal:
		return fmt.Errorf("deletion of internal topic %q", t.Name)
	case t.Name != d.Name || t.Tenant != d.Tenant || t.Partitions != len(d.Epochs):
		return fmt.Errorf("deletion of topic %v as another", d.ID)
	}
	for i, e := range d.Epochs {
		if p, ok := im.Partition(log.PartitionID{Topic: d.ID, Index: int32(i)}); !ok || e != p.LeaderEpoch+1 {
			return fmt.Errorf("deletion of topic %v: epoch %d of partition %d", d.ID, e, i)
		}
	}
	return nil
}

// checkPartition holds a record against the invariants that need no other record
// (reference invariants S12 and what a leader is).
func checkPartition(p Partition) error {
	bad := func(what string) error { return fmt.Errorf("partition %v: %s", p.ID, what) }
	if p.MinISR < 1 || p.MinISR > len(p.Replicas) {
		return bad("minimum in-sync replicas out of range")
	}
	seen := map[BrokerID]bool{}
	for _, id := range p.Replicas {
		if id < 0 || seen[id] {
			return bad("a replica twice")
		}
		seen[id] = true
	}
	leads := false
	used := map[BrokerID]bool{}
	for _, m := range p.ISR {
		if !seen[m.ID] || used[m.ID] {
			return bad("in-sync set is no subset of the replicas")
		}
		used[m.ID] = true
		leads = leads || m.ID == p.Leader && m.Epoch == p.LeaderBrokerEpoch
	}
	if p.Leader != NoBroker && !leads {
		return bad("leader is not in sync")
	}
	if p.Leader == NoBroker && p.LeaderBrokerEpoch != 0 {
		return bad("nobody leads with an epoch")
	}
	if len(p.ISR) >= p.MinISR && len(p.ELR)+len(p.LastKnownELR) > 0 {
		return bad("eligible replicas beside a full in-sync set")
	}
	for _, ids := range [][]BrokerID{p.ELR, p.LastKnownELR} {
		for _, id := range ids {
			if !seen[id] || used[id] {
				return bad("eligible replicas overlap or are none")
			}
			used[id] = true
		}
	}
	return nil
}

// A delta under construction: stored keys that changed.
type changes map[string]struct{}

// add notes what a record changes.
func (c changes) add(r record) {
	c[r.key] = struct{}{}
	for _, key := range r.removes() {
		c[key] = struct{}{}
	}
}

func (c changes) delta() Delta {
	var d Delta
	for k := range c {
		switch k[0] {
		case keyBroker:
			d.Brokers = append(d.Brokers, BrokerID(be32(k[1:])))
		case keyTopic:
			d.Topics = append(d.Topics, log.TopicID([]byte(k[1:])))
		case keyPartition:
			d.Partitions = append(d.Partitions, log.PartitionID{Topic: log.TopicID([]byte(k[1:17])), Index: int32(be32(k[17:]))})
		}
	}
	slices.Sort(d.Brokers)
	slices.SortFunc(d.Topics, func(a, b log.TopicID) int { return slices.Compare(a[:], b[:]) })
	slices.SortFunc(d.Partitions, comparePartitionIDs)
	return d
}

func be32(s string) uint32 {
	return uint32(s[0])<<24 | uint32(s[1])<<16 | uint32(s[2])<<8 | uint32(s[3])
}

// fullDelta names all that an image holds.
func fullDelta(im *Image) Delta {
	c := changes{}
	im.records.Scan(func(k string, _ *object) bool {
		c[k] = struct{}{}
		return true
	})
	d := c.delta()
	d.Full = true
	return d
}

// An applied tells what an entry did.
type applied struct {
	term, sequence uint64   // under which it was decided; zero for a leader's first entry
	records        []record // that took effect
	rejected       error    // why none did
}

// apply changes a private image by one committed entry. It is deterministic: it
// depends on the image and its arguments alone.
//
// An entry takes effect as a whole or not at all: not, if the term in which it
// was decided is not the one under which it was appended (its controller had
// been replaced in between), or if a record fails its check. An error is
// something that this version can't read: the server must stop, since skipping
// it would make servers differ.
func (im *Image) apply(index, term uint64, data []byte) (applied, error) {
	if len(data) == 0 { // a leader's first entry
		im.index, im.term = index, term
		return applied{}, nil
	}
	e, err := decodeEntry(data)
	if err != nil {
		return applied{}, fmt.Errorf("apply index %d: %w", index, err)
	}
	im.index, im.term = index, term
	a := applied{term: e.term, sequence: e.sequence}
	if e.term != term {
		a.rejected = fmt.Errorf("%w: decided in term %d, appended in term %d", ErrStale, e.term, term)
		return a, nil
	}
	work := im
	if len(e.records) > 1 {
		work = im.clone()
	}
	for _, r := range e.records {
		if a.rejected = work.check(r); a.rejected != nil {
			return a, nil
		}
		work.put(r)
	}
	if work != im {
		im.records, im.names, im.hash = work.records, work.names, work.hash
	}
	a.records = e.records
	return a, nil
}
