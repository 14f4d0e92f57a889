package metadata

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/cordwood-io/cordwood/log"
)

// SystemTopic is the name of the internal topic that holds the tier log. The
// controller creates it, in the default tenant.
const SystemTopic = "__tier"

// A controller decides: from an image, its own soft state, the time and a
// request it computes records. It neither waits nor reads a clock, and its
// caller (lead.go) sees to it that one decision's records are applied before the
// next decision is taken, so each stands on the state that it changes.
//
// Soft state is lost with the controller. A new one grants every broker a full
// session, and learns the rest from the next heartbeats.
type controller struct {
	session           time.Duration
	systemReplication int
	returnLeadership  bool
	producerBlock     int
	newTopicID        func() log.TopicID
	voters            map[BrokerID]bool

	sessions map[BrokerID]*session
}

// A session is what the controller knows about a broker that is in contact.
type session struct {
	epoch    BrokerEpoch
	deadline time.Time
	applied  uint64 // index that the broker has applied, from its heartbeats

	// needed is the index that a fenced broker must have applied before it is
	// unfenced: that of its registration or fencing, or a later one.
	needed uint64
	// stopIndex is the index at which its stop was recorded, set once
	// (KAFKA-14292); 0 if it does not stop.
	stopIndex uint64

	// electable and lossy are the broker's last reports, sorted.
	electable []log.PartitionID
	lossy     []log.PartitionID
}

func newController(o Options, newTopicID func() log.TopicID) *controller {
	voters := map[BrokerID]bool{}
	for _, v := range o.Voters {
		voters[v.ID] = true
	}
	return &controller{voters: voters, session: o.Session, systemReplication: o.SystemReplication, returnLeadership: o.ReturnLeadership,
		producerBlock: o.ProducerBlock, newTopicID: newTopicID, sessions: map[BrokerID]*session{}}
}

// Requests that have no type of their own in the interface.
type (
	createRequest struct {
		id   log.TopicID // also names the request: a retry has the same one
		spec TopicSpec
	}
	deleteRequest    struct{ id log.TopicID }
	producersRequest struct {
		id    BrokerID
		epoch BrokerEpoch
	}
	syncRequest  struct{}
	deathRequest struct {
		id          BrokerID
		incarnation ID
	}
)

// syncIndex answers a syncRequest: the index that the asker must have applied.
type syncIndex uint64

// A plan is one entry in the making: the records so far, and the image as it
// will be when they are applied.
type plan struct {
	image   *Image // private
	base    uint64 // index of the image that it began with
	records []record
	bytes   int
}

func newPlan(im *Image) *plan { return &plan{image: im.clone(), base: im.index} }

func (p *plan) put(r record) {
	p.image.put(r)
	p.records = append(p.records, r)
	p.bytes += len(r.value)
}

// A decision is the answer to one request. If after is not nil, it is called
// once the records of the plan are applied, with their index, or the plan's base
// if there are none; the answer counts only then.
type decision struct {
	result any
	err    error
	after  func(index uint64)
}

// activate starts a term: every broker that is not fenced gets a full session.
func (c *controller) activate(im *Image, now time.Time) {
	clear(c.sessions)
	for b := range im.Brokers() {
		if !b.Fenced {
			c.sessions[b.ID] = &session{epoch: b.Epoch, deadline: now.Add(c.session), needed: im.index}
		}
	}
}

// decide answers one request that arrived at now.
func (c *controller) decide(p *plan, now time.Time, req any) decision {
	switch r := req.(type) {
	case Registration:
		return c.register(p, now, r)
	case HeartbeatRequest:
		return c.heartbeat(p, now, r)
	case createRequest:
		t, err := c.createTopic(p, r.id, r.spec)
		return decision{result: t, err: err}
	case deleteRequest:
		return decision{err: c.deleteTopic(p, r.id)}
	case ISRChange:
		part, err := c.alterISR(p, r)
		return decision{result: part, err: err}
	case producersRequest:
		block, err := c.allocateProducers(p, r)
		return decision{result: block, err: err}
	case syncRequest:
		// All that was answered before this request arrived is applied here, since
		// the controller waits for each of its entries. That this still is the
		// controller is proved before the answer goes out.
		return decision{result: syncIndex(p.base)}
	case deathRequest:
		return c.death(p, r)
	}
	panic(fmt.Sprintf("metadata: request of type %T", req))
}

// nextDeadline returns when the next session ends.
func (c *controller) nextDeadline() (time.Time, bool) {
	var next time.Time
	for _, s := range c.sessions {
		if next.IsZero() || s.deadline.Before(next) {
			next = s.deadline
		}
	}
	return next, !next.IsZero()
}

// expire fences the brokers whose sessions have ended, one after the other, each
// on top of the records of the one before (KAFKA-13173).
func (c *controller) expire(p *plan, now time.Time) {
	for _, id := range slices.Sorted(maps.Keys(c.sessions)) {
		if s := c.sessions[id]; !s.deadline.After(now) {
			c.fence(p, id)
			// Should the records be lost, so is this controller: the next one
			// starts the session anew.
			delete(c.sessions, id)
		}
	}
}

// fence ends what a broker leads and takes it out of every in-sync set.
func (c *controller) fence(p *plan, id BrokerID) {
	b, ok := p.image.Broker(id)
	if !ok || b.Fenced {
		return
	}
	b.Fenced = true
	p.put(brokerRecord(b))
	c.removeFromISR(p, id, false)
}

// removeFromISR ends a broker's leaderships and memberships. If it has lost its
// data, it ceases to be eligible, too.
func (c *controller) removeFromISR(p *plan, id BrokerID, lossy bool) {
	var touched []Partition
	for q := range p.image.Partitions() {
		if q.HasReplica(id) && (slices.ContainsFunc(q.ISR, func(m Member) bool { return m.ID == id }) ||
			lossy && slices.Contains(q.ELR, id)) {
			touched = append(touched, q)
		}
	}
	var lost []BrokerID
	if lossy {
		lost = []BrokerID{id}
	}
	for _, q := range touched {
		c.change(p, q, without(q.ISR, id), lost)
	}
}

func without(ms []Member, id BrokerID) []Member {
	return slices.DeleteFunc(slices.Clone(ms), func(m Member) bool { return m.ID == id })
}

// change gives a partition another in-sync set, computes its eligible replicas,
// elects a leader if need be, and stores the record if it differs.
//
// Source: KIP-966; reference 1.10.
func (c *controller) change(p *plan, q Partition, isr []Member, lossy []BrokerID) Partition {
	n := q
	isr = slices.Clone(isr)
	slices.SortFunc(isr, compareMembers)
	n.ISR = isr
	n.ELR, n.LastKnownELR = eligible(q, isr, lossy)
	n = c.elect(p.image, n)
	n.PartitionEpoch = q.PartitionEpoch
	if samePartition(n, q) {
		return q
	}
	n.PartitionEpoch++
	p.put(partitionRecord(n))
	return n
}

// eligible returns the eligible leader replicas, and those that were such and
// have lost their data, after a partition's in-sync set has become isr. An
// eligible replica holds every committed record: it left while the set was too
// small for the high watermark to move, or made it so by leaving.
func eligible(q Partition, isr []Member, lossy []BrokerID) (elr, lastKnown []BrokerID) {
	if len(isr) >= q.MinISR {
		return nil, nil
	}
	in := func(id BrokerID) bool { return slices.ContainsFunc(isr, func(m Member) bool { return m.ID == id }) }
	before := slices.Clone(q.ELR)
	for _, m := range q.ISR {
		before = append(before, m.ID)
	}
	for _, id := range before {
		if !in(id) && !slices.Contains(lossy, id) {
			elr = append(elr, id)
		}
	}
	for _, id := range append(slices.Clone(q.LastKnownELR), before...) {
		if !in(id) && !slices.Contains(elr, id) {
			lastKnown = append(lastKnown, id)
		}
	}
	slices.Sort(elr)
	slices.Sort(lastKnown)
	return slices.Compact(elr), slices.Compact(lastKnown)
}

// elect leaves the leader if it may stay, and else picks one: the first of the
// replicas that is in sync; or, if nobody is, the first eligible one that has
// reported its log open and whole, which then is the in-sync set; or nobody.
//
// A member of the in-sync set needs no report: it got there under its present
// broker epoch either with the partition, when there was nothing to lose, or by
// its leader's word that it has fetched up to the high watermark.
func (c *controller) elect(im *Image, q Partition) Partition {
	for _, m := range q.ISR {
		if q.LedBy(m) && c.mayServe(im, m) {
			return q
		}
	}
	leader := Member{ID: NoBroker}
	for _, id := range q.Replicas {
		for _, m := range q.ISR {
			if leader.ID == NoBroker && m.ID == id && c.mayServe(im, m) {
				leader = m
			}
		}
	}
	if leader.ID == NoBroker && len(q.ISR) == 0 {
		for _, id := range q.Replicas {
			if leader.ID == NoBroker && slices.Contains(q.ELR, id) && c.electable(im, id, q.ID) {
				b, _ := im.Broker(id)
				leader = Member{ID: id, Epoch: b.Epoch}
			}
		}
		if leader.ID != NoBroker {
			isr := []Member{leader}
			q.ELR, q.LastKnownELR = eligible(q, isr, nil)
			q.ISR = isr
		}
	}
	return ledBy(q, leader)
}

// ledBy makes a member, or nobody, the leader.
func ledBy(q Partition, leader Member) Partition {
	if q.Leader == leader.ID && q.LeaderBrokerEpoch == leader.Epoch {
		return q
	}
	q.Leader, q.LeaderBrokerEpoch = leader.ID, leader.Epoch
	q.LeaderEpoch++
	if leader.ID != NoBroker {
		q.LastKnownLeader = leader.ID
	}
	return q
}

// mayServe tells whether a process life of a broker may lead or be in sync.
func (c *controller) mayServe(im *Image, m Member) bool {
	b, ok := im.Broker(m.ID)
	return ok && b.Live() && b.Epoch == m.Epoch
}

// electable tells whether a broker's present process has reported that its
// replica is open and has lost nothing.
func (c *controller) electable(im *Image, id BrokerID, part log.PartitionID) bool {
	b, ok := im.Broker(id)
	s := c.sessions[id]
	return ok && b.Live() && s != nil && s.epoch == b.Epoch && has(s.electable, part) && !has(s.lossy, part)
}

func has(sorted []log.PartitionID, id log.PartitionID) bool {
	_, ok := slices.BinarySearchFunc(sorted, id, comparePartitionIDs)
	return ok
}

func samePartition(a, b Partition) bool {
	return a.Leader == b.Leader && a.LeaderBrokerEpoch == b.LeaderBrokerEpoch && a.LeaderEpoch == b.LeaderEpoch &&
		a.PartitionEpoch == b.PartitionEpoch && slices.Equal(a.ISR, b.ISR) && slices.Equal(a.ELR, b.ELR) &&
		slices.Equal(a.LastKnownELR, b.LastKnownELR) && a.LastKnownLeader == b.LastKnownLeader &&
		a.MinISR == b.MinISR && a.Recovery == b.Recovery && slices.Equal(a.Replicas, b.Replicas)
}

// register gives a process its broker epoch and ends what its predecessor led
// and was in.
//
// Source: KIP-631, KIP-903, KIP-966; that the same directory replaces its old
// process at once is our own: the directory's lock proves that the old one is
// gone.
func (c *controller) register(p *plan, now time.Time, r Registration) decision {
	if r.ID < 0 || r.Directory.IsZero() || r.Incarnation.IsZero() {
		return decision{err: fmt.Errorf("%w: a registration needs a broker id, a directory and an incarnation", ErrInvalidRequest)}
	}
	if err := checkRegistration(r); err != nil {
		return decision{err: err}
	}
	old, existed := p.image.Broker(r.ID)
	if existed && old.Incarnation == r.Incarnation && old.Directory == r.Directory {
		return decision{result: old.Epoch} // a retry
	}
	sameDir := existed && old.Directory == r.Directory
	if existed && !sameDir && c.voters[r.ID] {
		// The record is how all voters know each other's directory.
		return decision{err: fmt.Errorf("%w: voter %d has directory %v, it was %v: a voter whose disk is replaced needs a new broker id", ErrIdentity, r.ID, r.Directory, old.Directory)}
	}
	if s := c.sessions[r.ID]; existed && !sameDir && s != nil && s.deadline.After(now) {
		return decision{err: fmt.Errorf("%w: broker %d has a live session with directory %v", ErrInUse, r.ID, old.Directory)}
	}
	cs := p.image.counters()
	b := Broker{ID: r.ID, Epoch: cs.nextBrokerEpoch, Addr: r.Addr, Zone: r.Zone, Directory: r.Directory,
		Incarnation: r.Incarnation, HostsReplicas: r.HostsReplicas, Fenced: true}
	cs.nextBrokerEpoch++
	p.put(countersRecord(cs))
	// The broker's record goes first: it ends the old epoch, so no election below
	// can choose it.
	p.put(brokerRecord(b))
	if existed {
		c.removeFromISR(p, r.ID, !sameDir)
	}
	return decision{result: b.Epoch, after: func(index uint64) {
		c.sessions[r.ID] = &session{epoch: b.Epoch, deadline: now.Add(c.session), needed: index}
	}}
}

func checkRegistration(r Registration) error {
	if len(r.Addr) > 1000 || len(r.Zone) > 249 || !utf8.ValidString(r.Addr) || !utf8.ValidString(r.Zone) {
		return fmt.Errorf("%w: address %q or zone %q is too long or no text", ErrInvalidRequest, r.Addr, r.Zone)
	}
	return nil
}

// heartbeat keeps a session alive, unfences a broker that has caught up, records
// its wish to stop, and takes its reports.
func (c *controller) heartbeat(p *plan, now time.Time, r HeartbeatRequest) decision {
	b, ok := p.image.Broker(r.ID)
	switch {
	case !ok:
		return decision{err: fmt.Errorf("%w: %d", ErrUnknownBroker, r.ID)}
	case r.Epoch > b.Epoch:
		return decision{err: ErrNotController} // it knows more than we do
	case r.Epoch < b.Epoch:
		return decision{err: fmt.Errorf("%w: broker %d has epoch %d, not %d", ErrStale, r.ID, b.Epoch, r.Epoch)}
	}
	s := c.sessions[r.ID]
	if s == nil || s.epoch != r.Epoch {
		s = &session{epoch: r.Epoch, needed: p.base}
		c.sessions[r.ID] = s
	}
	s.deadline = now.Add(c.session)
	s.applied = max(s.applied, r.AppliedIndex)

	electable := sortedPartitions(r.Electable)
	changed := !slices.Equal(electable, s.electable)
	s.electable = electable
	s.lossy = sortedPartitions(r.Lossy)
	for _, id := range s.lossy {
		if q, ok := p.image.Partition(id); ok && q.HasReplica(r.ID) {
			c.change(p, q, without(q.ISR, r.ID), []BrokerID{r.ID})
		}
	}

	var after func(uint64)
	switch {
	case r.WantStop && !b.Stopping:
		b.Stopping = true
		p.put(brokerRecord(b))
		c.removeFromISR(p, r.ID, false)
		after = func(index uint64) { s.stopIndex = index }
	case b.Fenced && !b.Stopping && s.applied >= s.needed:
		b.Fenced = false
		p.put(brokerRecord(b))
		changed = true
	}
	if b.Stopping && after == nil && s.stopIndex == 0 {
		s.stopIndex = p.base // recorded under an earlier controller
	}
	if changed && b.Live() {
		for _, id := range s.electable {
			if q, ok := p.image.Partition(id); ok && q.Leader == NoBroker && slices.Contains(q.ELR, r.ID) {
				c.change(p, q, q.ISR, nil)
			}
		}
	}
	reply := HeartbeatReply{Fenced: b.Fenced, Stopping: b.Stopping}
	if b.Stopping && after == nil {
		reply.ShouldStop = c.allApplied(p.image, s.stopIndex, r.ID)
	}
	return decision{result: reply, after: after}
}

// allApplied tells whether all live brokers but one have applied an index.
func (c *controller) allApplied(im *Image, index uint64, except BrokerID) bool {
	for b := range im.Brokers() {
		if s := c.sessions[b.ID]; b.ID != except && b.Live() && (s == nil || s.applied < index) {
			return false
		}
	}
	return true
}

func sortedPartitions(ids []log.PartitionID) []log.PartitionID {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, comparePartitionIDs)
	return slices.Compact(ids)
}

// death fences a broker on evidence that its process has died. Evidence about
// another process than the registered one changes nothing.
func (c *controller) death(p *plan, r deathRequest) decision {
	b, ok := p.image.Broker(r.id)
	if !ok || !r.incarnation.IsZero() && r.incarnation != b.Incarnation {
		return decision{}
	}
	c.fence(p, r.id)
	delete(c.sessions, r.id) // as in expire
	return decision{}
}

// alterISR is the compare-and-set of a leader on its partition's in-sync set.
//
// Source: KIP-497, KIP-841, KIP-903; reference 1.9.
func (c *controller) alterISR(p *plan, r ISRChange) (Partition, error) {
	q, ok := p.image.Partition(r.Partition)
	if !ok {
		return Partition{}, fmt.Errorf("%w: %v", ErrUnknownPartition, r.Partition)
	}
	stale := func(what string, have, got any) error {
		return fmt.Errorf("%w: %s of %v is %v, not %v", ErrStale, what, r.Partition, have, got)
	}
	if r.LeaderEpoch > q.LeaderEpoch || r.PartitionEpoch > q.PartitionEpoch {
		return Partition{}, ErrNotController // we are stale, so no verdict (KAFKA-14154)
	}
	if q.Leader != r.Leader || q.LeaderBrokerEpoch != r.LeaderBrokerEpoch {
		return Partition{}, stale("leader", Member{q.Leader, q.LeaderBrokerEpoch}, Member{r.Leader, r.LeaderBrokerEpoch})
	}
	if q.LeaderEpoch != r.LeaderEpoch {
		return Partition{}, stale("leader epoch", q.LeaderEpoch, r.LeaderEpoch)
	}
	isr := slices.Clone(r.ISR)
	slices.SortFunc(isr, compareMembers)
	if q.PartitionEpoch == r.PartitionEpoch+1 && slices.Equal(isr, q.ISR) {
		return q, nil // the same change, or an equal one, is done already
	}
	if q.PartitionEpoch != r.PartitionEpoch {
		return Partition{}, stale("partition epoch", q.PartitionEpoch, r.PartitionEpoch)
	}
	var lossy []BrokerID
	for _, m := range r.Lossy {
		lossy = append(lossy, m.ID)
	}
	for i, m := range isr {
		switch {
		case !q.HasReplica(m.ID):
			return Partition{}, fmt.Errorf("%w: broker %d holds no replica of %v", ErrInvalidRequest, m.ID, r.Partition)
		case i > 0 && isr[i-1].ID == m.ID:
			return Partition{}, fmt.Errorf("%w: broker %d twice", ErrInvalidRequest, m.ID)
		case slices.Contains(lossy, m.ID):
			return Partition{}, fmt.Errorf("%w: broker %d both in sync and lossy", ErrInvalidRequest, m.ID)
		case !c.mayServe(p.image, m):
			return Partition{}, fmt.Errorf("%w: broker %d with epoch %d", ErrIneligible, m.ID, m.Epoch)
		}
	}
	// A leader that leaves itself out resigns: it has lost data, or its log takes
	// no more writes.
	if q.Recovery == Recovering && len(isr) > 1 {
		return Partition{}, fmt.Errorf("%w: %v is recovering, its leader stays alone", ErrIneligible, r.Partition)
	}
	n := c.change(p, q, isr, lossy)
	if first := n.Replicas[0]; c.returnLeadership && n.Leader != first && n.Leader != NoBroker {
		for _, m := range n.ISR {
			if m.ID == first && c.mayServe(p.image, m) && !slices.ContainsFunc(q.ISR, func(o Member) bool { return o == m }) {
				n = ledBy(n, m)
				n.PartitionEpoch++
				p.put(partitionRecord(n))
			}
		}
	}
	return n, nil
}

// allocateProducers hands out a block of producer ids. A block whose answer gets
// lost is lost, too: there are 2^63.
func (c *controller) allocateProducers(p *plan, r producersRequest) (ProducerBlock, error) {
	b, ok := p.image.Broker(r.id)
	switch {
	case !ok:
		return ProducerBlock{}, fmt.Errorf("%w: %d", ErrUnknownBroker, r.id)
	case r.epoch > b.Epoch:
		return ProducerBlock{}, ErrNotController
	case r.epoch < b.Epoch:
		return ProducerBlock{}, fmt.Errorf("%w: broker %d has epoch %d, not %d", ErrStale, r.id, b.Epoch, r.epoch)
	}
	cs := p.image.counters()
	block := ProducerBlock{First: cs.nextProducerID, Count: c.producerBlock}
	cs.nextProducerID += int64(c.producerBlock)
	p.put(countersRecord(cs))
	return block, nil
}

// maintain adds what the controller does of its own accord.
func (c *controller) maintain(p *plan) {
	if c.systemReplication < 1 {
		return
	}
	if _, ok := p.image.TopicByName("", SystemTopic); ok {
		return
	}
	if len(placeable(p.image)) < c.systemReplication {
		return
	}
	_, err := c.createTopic(p, c.newTopicID(), TopicSpec{Name: SystemTopic, Partitions: 1, Replication: c.systemReplication,
		MinISR: min(2, c.systemReplication), Internal: true,
		Config: TopicConfig{LocalRetention: Retention{Bytes: -1, Age: -1}, Retention: Retention{Bytes: -1, Age: -1}}})
	if err != nil {
		panic(fmt.Sprintf("metadata: create %s: %v", SystemTopic, err)) // all its conditions were checked
	}
}

// createTopic creates a topic whose identifier the caller has picked: if it is
// there already, then by an earlier try of the same request.
func (c *controller) createTopic(p *plan, id log.TopicID, s TopicSpec) (Topic, error) {
	if t, ok := p.image.Topic(id); ok {
		if t.Name == s.Name && t.Tenant == s.Tenant {
			return t, nil
		}
		return Topic{}, fmt.Errorf("%w: topic id %v is taken", ErrInvalidRequest, id)
	}
	if _, ok := p.image.DeletedTopic(id); ok {
		return Topic{}, fmt.Errorf("%w: %q, since it was created", ErrTopicDeleted, s.Name)
	}
	if err := checkSpec(s); err != nil {
		return Topic{}, err
	}
	if _, ok := p.image.TopicByName(s.Tenant, s.Name); ok {
		return Topic{}, fmt.Errorf("%w: %q", ErrTopicExists, s.Name)
	}
	brokers := placeable(p.image)
	if s.Replication == 0 {
		s.Replication = max(s.MinISR, max(min(3, len(brokers)), 1))
	}
	if s.MinISR == 0 {
		s.MinISR = min(2, s.Replication)
	}
	if len(brokers) < s.Replication {
		return Topic{}, fmt.Errorf("%w: %d, topic %q needs %d", ErrNotEnoughBrokers, len(brokers), s.Name, s.Replication)
	}
	t := Topic{ID: id, Tenant: s.Tenant, Name: s.Name, Partitions: s.Partitions, Replication: s.Replication,
		MinISR: s.MinISR, Internal: s.Internal, Config: s.Config}
	p.put(topicRecord(t))
	pl := newPlacement(p.image, brokers)
	for i := range s.Partitions {
		replicas := pl.next(s.Replication)
		q := Partition{ID: log.PartitionID{Topic: id, Index: int32(i)}, MinISR: s.MinISR, LastUncleanEpoch: -1}
		for _, b := range replicas {
			q.Replicas = append(q.Replicas, b.ID)
			q.ISR = append(q.ISR, Member{ID: b.ID, Epoch: b.Epoch})
		}
		slices.SortFunc(q.ISR, compareMembers)
		q.Leader, q.LeaderBrokerEpoch, q.LastKnownLeader = replicas[0].ID, replicas[0].Epoch, replicas[0].ID
		p.put(partitionRecord(q))
	}
	return t, nil
}

// deleteTopic ends a topic. From the record on nobody leads its partitions any more,
// so the epochs in it are above all that any leader had. To delete a topic again, as
// a retry does, changes nothing.
func (c *controller) deleteTopic(p *plan, id log.TopicID) error {
	if _, ok := p.image.DeletedTopic(id); ok {
		return nil
	}
	t, ok := p.image.Topic(id)
	if !ok {
		return fmt.Errorf("%w: %v", ErrUnknownTopic, id)
	}
	if t.Internal {
		return fmt.Errorf("%w: topic %q is internal", ErrInvalidRequest, t.Name)
	}
	d := DeletedTopic{ID: id, Tenant: t.Tenant, Name: t.Name}
	for i := range t.Partitions {
		q, _ := p.image.Partition(log.PartitionID{Topic: id, Index: int32(i)})
		d.Epochs = append(d.Epochs, q.LeaderEpoch+1)
	}
	p.put(deletedRecord(d))
	return nil
}

// maxPartitions bounds a topic so that its creation fits well into one entry.
const maxPartitions = 10_000

func checkSpec(s TopicSpec) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrInvalidRequest}, args...)...)
	}
	if len(s.Name) < 1 || len(s.Name) > 249 || s.Name == "." || s.Name == ".." {
		return bad("topic name %q", s.Name)
	}
	for _, r := range s.Name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return bad("topic name %q", s.Name)
		}
	}
	if !s.Internal && len(s.Name) >= 2 && s.Name[:2] == "__" {
		return bad("topic name %q is reserved", s.Name)
	}
	if len(s.Tenant) > 249 || slices.Contains([]byte(s.Tenant), 0) || !utf8.ValidString(s.Tenant) {
		return bad("tenant %q", s.Tenant)
	}
	if s.Partitions < 1 || s.Partitions > maxPartitions {
		return bad("%d partitions, 1 to %d are possible", s.Partitions, maxPartitions)
	}
	if s.Replication < 0 || s.Replication > 1000 {
		return bad("replication factor %d", s.Replication)
	}
	if s.MinISR < 0 || s.Replication > 0 && s.MinISR > s.Replication {
		return bad("minimum in-sync replicas %d of %d", s.MinISR, s.Replication)
	}
	if s.Config.SegmentBytes < 0 || s.Config.SegmentAge < 0 || s.Config.MaxBatchBytes < 0 {
		return bad("negative segment size, segment age or batch size")
	}
	// A replica with other values could not be opened anywhere.
	if n := s.Config.SegmentBytes; n != 0 && (n < log.MinSegmentBytes || n > log.MaxSegmentBytes) {
		return bad("segments of %d bytes, %d to %d are possible", n, log.MinSegmentBytes, log.MaxSegmentBytes)
	}
	if n := s.Config.MaxBatchBytes; n > log.MaxBatchBytes {
		return bad("batches of up to %d bytes, up to %d are possible", n, log.MaxBatchBytes)
	}
	return nil
}

// placeable returns the brokers that may get new replicas, in order of id.
func placeable(im *Image) []Broker {
	var bs []Broker
	for b := range im.Brokers() {
		if b.Live() && b.HostsReplicas {
			bs = append(bs, b)
		}
	}
	return bs
}

// A placement spreads replicas over brokers and zones. It is deterministic: the
// least loaded comes first, and the lowest id among equals.
type placement struct {
	brokers  []Broker
	replicas map[BrokerID]int
	leaders  map[BrokerID]int // by first replica: where the leader belongs
}

func newPlacement(im *Image, brokers []Broker) *placement {
	pl := &placement{brokers: brokers, replicas: map[BrokerID]int{}, leaders: map[BrokerID]int{}}
	for p := range im.Partitions() {
		pl.leaders[p.Replicas[0]]++
		for _, id := range p.Replicas {
			pl.replicas[id]++
		}
	}
	return pl
}

// next picks n brokers for a partition, the leader first.
func (pl *placement) next(n int) []Broker {
	var picked []Broker
	zones := map[string]int{}
	for len(picked) < n {
		best := slices.MinFunc(pl.brokers, func(a, b Broker) int {
			inA, inB := slices.Contains(picked, a), slices.Contains(picked, b)
			if inA != inB {
				if inA {
					return 1
				}
				return -1
			}
			if len(picked) == 0 {
				return cmp.Or(pl.leaders[a.ID]-pl.leaders[b.ID], pl.replicas[a.ID]-pl.replicas[b.ID])
			}
			return cmp.Or(zones[a.Zone]-zones[b.Zone], pl.replicas[a.ID]-pl.replicas[b.ID], pl.leaders[a.ID]-pl.leaders[b.ID])
		})
		if len(picked) == 0 {
			pl.leaders[best.ID]++
		}
		pl.replicas[best.ID]++
		zones[best.Zone]++
		picked = append(picked, best)
	}
	return picked
}
