package metadata

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A bench drives the controller's decisions without Raft: each plan is applied at
// once.
type bench struct {
	t     testing.TB
	c     *controller
	im    *Image
	now   time.Time
	incs  map[BrokerID]ID
	dirs  map[BrokerID]ID
	seq   uint64
	topic log.TopicID
}

func newBench(t testing.TB) *bench {
	b := &bench{t: t, im: newImage(ID{1}), now: time.Unix(1000, 0), incs: map[BrokerID]ID{}, dirs: map[BrokerID]ID{}}
	b.c = newController(Options{Session: time.Second, SystemReplication: -1, ProducerBlock: 10}, func() log.TopicID { return log.TopicID{0xee} })
	b.im.index, b.im.term = 1, 1
	b.c.activate(b.im, b.now)
	return b
}

// do runs one decision, or something else with a plan, and applies its records
// the way all servers do.
func (b *bench) do(f func(p *plan) decision) decision {
	b.t.Helper()
	p := newPlan(b.im)
	d := f(p)
	index := b.im.index
	if len(p.records) > 0 {
		b.seq++
		data, err := encodeEntry(1, b.seq, p.records)
		if err != nil {
			b.t.Fatal(err)
		}
		next := b.im.clone()
		a, err := next.apply(b.im.index+1, 1, data)
		if err != nil || a.rejected != nil {
			b.t.Fatalf("apply: %v, rejected: %v", err, a.rejected)
		}
		if next.hash != p.image.hash {
			b.t.Fatal("the plan's image is not what applying its records gives")
		}
		b.im = next
		index = next.index
	}
	if d.after != nil {
		d.after(index)
	}
	return d
}

func (b *bench) ask(req any) (any, error) {
	b.t.Helper()
	d := b.do(func(p *plan) decision { return b.c.decide(p, b.now, req) })
	return d.result, d.err
}

func (b *bench) must(req any) any {
	b.t.Helper()
	res, err := b.ask(req)
	if err != nil {
		b.t.Fatalf("%+v: %v", req, err)
	}
	return res
}

// register starts a new process of a broker on its directory.
func (b *bench) register(id BrokerID) BrokerEpoch {
	b.t.Helper()
	if b.dirs[id].IsZero() {
		b.dirs[id] = NewID()
	}
	b.incs[id] = NewID()
	return b.must(Registration{ID: id, Directory: b.dirs[id], Incarnation: b.incs[id], HostsReplicas: true, Zone: fmt.Sprint("z", id%3)}).(BrokerEpoch)
}

func (b *bench) beat(id BrokerID, change ...func(*HeartbeatRequest)) HeartbeatReply {
	b.t.Helper()
	br, _ := b.im.Broker(id)
	r := HeartbeatRequest{ID: id, Epoch: br.Epoch, AppliedIndex: b.im.index}
	for _, f := range change {
		f(&r)
	}
	return b.must(r).(HeartbeatReply)
}

// up registers a broker and lets it catch up.
func (b *bench) up(ids ...BrokerID) {
	b.t.Helper()
	for _, id := range ids {
		b.register(id)
		if r := b.beat(id); r.Fenced {
			b.t.Fatalf("broker %d is fenced", id)
		}
	}
}

func (b *bench) expire(d time.Duration) {
	b.t.Helper()
	b.now = b.now.Add(d)
	b.do(func(p *plan) decision {
		b.c.expire(p, b.now)
		return decision{}
	})
}

func (b *bench) create(s TopicSpec) Topic {
	b.t.Helper()
	b.topic[0]++
	return b.must(createRequest{id: b.topic, spec: s}).(Topic)
}

func (b *bench) part(t Topic, i int32) Partition {
	b.t.Helper()
	p, ok := b.im.Partition(log.PartitionID{Topic: t.ID, Index: i})
	if !ok {
		b.t.Fatalf("no partition %d", i)
	}
	return p
}

func ids(ms []Member) []BrokerID {
	var out []BrokerID
	for _, m := range ms {
		out = append(out, m.ID)
	}
	return out
}

// state is a partition in one line: leader, in-sync set, eligible, last known.
func state(p Partition) string {
	return fmt.Sprintf("leader %d isr %v elr %v lost %v epoch %d.%d", p.Leader, ids(p.ISR), p.ELR, p.LastKnownELR, p.LeaderEpoch, p.PartitionEpoch)
}

func (b *bench) want(t Topic, want string) {
	b.t.Helper()
	if got := state(b.part(t, 0)); got != want {
		b.t.Errorf("partition is\n%s, want\n%s", got, want)
	}
}

// alter proposes an in-sync set as the leader would, with the brokers' present
// epochs.
func (b *bench) alter(p Partition, isr []BrokerID, lossy ...BrokerID) (Partition, error) {
	b.t.Helper()
	r := ISRChange{Partition: p.ID, Leader: p.Leader, LeaderBrokerEpoch: p.LeaderBrokerEpoch, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
	member := func(id BrokerID) Member {
		br, _ := b.im.Broker(id)
		return Member{id, br.Epoch}
	}
	for _, id := range isr {
		r.ISR = append(r.ISR, member(id))
	}
	for _, id := range lossy {
		r.Lossy = append(r.Lossy, member(id))
	}
	res, err := b.ask(r)
	if err != nil {
		return Partition{}, err
	}
	return res.(Partition), nil
}

func electable(ps ...Partition) func(*HeartbeatRequest) {
	return func(r *HeartbeatRequest) {
		for _, p := range ps {
			r.Electable = append(r.Electable, p.ID)
		}
	}
}

func threeReplicas(t testing.TB) (*bench, Topic) {
	b := newBench(t)
	b.up(1, 2, 3)
	tp := b.create(TopicSpec{Name: "t", Partitions: 1, Replication: 3, MinISR: 2})
	b.want(tp, "leader 1 isr [1 2 3] elr [] lost [] epoch 0.0")
	return b, tp
}

func TestRegister(t *testing.T) {
	b := newBench(t)
	e1 := b.register(1)
	if r := b.beat(1, func(r *HeartbeatRequest) { r.AppliedIndex = b.im.index - 1 }); !r.Fenced {
		t.Error("unfenced before it has applied its registration")
	}
	if r := b.beat(1); r.Fenced {
		t.Error("fenced though it has applied its registration")
	}
	again := Registration{ID: 1, Directory: b.dirs[1], Incarnation: b.incs[1]}
	if e, err := b.ask(again); err != nil || e != e1 {
		t.Errorf("the same incarnation again: epoch %v, %v", e, err)
	}
	other := Registration{ID: 1, Directory: NewID(), Incarnation: NewID()}
	if _, err := b.ask(other); !errors.Is(err, ErrInUse) {
		t.Errorf("another directory in a live session: %v", err)
	}
	e2 := b.register(1) // same directory: a restart
	if e2 <= e1 {
		t.Errorf("epoch %d after %d", e2, e1)
	}
	if br, _ := b.im.Broker(1); !br.Fenced {
		t.Error("a new process is not fenced")
	}
	if _, err := b.ask(HeartbeatRequest{ID: 1, Epoch: e1}); !errors.Is(err, ErrStale) {
		t.Errorf("heartbeat of the old process: %v", err)
	}
	if _, err := b.ask(HeartbeatRequest{ID: 1, Epoch: e2 + 1}); !errors.Is(err, ErrNotController) {
		t.Errorf("heartbeat from the future: %v", err)
	}
	if _, err := b.ask(HeartbeatRequest{ID: 7, Epoch: 1}); !errors.Is(err, ErrUnknownBroker) {
		t.Errorf("heartbeat of a stranger: %v", err)
	}
	b.expire(time.Second)
	if e3 := b.must(other).(BrokerEpoch); e3 <= e2 {
		t.Errorf("epoch %d after %d", e3, e2)
	}
	for _, r := range []Registration{{ID: -1, Directory: ID{1}, Incarnation: ID{1}}, {ID: 1, Incarnation: ID{1}}, {ID: 1, Directory: ID{1}}} {
		if _, err := b.ask(r); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestSessions(t *testing.T) {
	b := newBench(t)
	b.up(1, 2)
	b.now = b.now.Add(900 * time.Millisecond)
	b.beat(1)
	b.expire(100 * time.Millisecond)
	one, _ := b.im.Broker(1)
	two, _ := b.im.Broker(2)
	if one.Fenced || !two.Fenced {
		t.Errorf("1 fenced %v, 2 fenced %v; only 2 was silent for a session", one.Fenced, two.Fenced)
	}
	if r := b.beat(2, func(r *HeartbeatRequest) { r.AppliedIndex = b.im.index - 1 }); !r.Fenced {
		t.Error("unfenced before it knows that it was fenced")
	}
	if r := b.beat(2); r.Fenced {
		t.Error("stays fenced though it is back")
	}
	// A new controller knows no sessions: everybody gets a whole one.
	b.c.activate(b.im, b.now)
	b.expire(999 * time.Millisecond)
	if one, _ = b.im.Broker(1); one.Fenced {
		t.Error("fenced before a full session under the new controller")
	}
	b.expire(time.Millisecond)
	if one, _ = b.im.Broker(1); !one.Fenced {
		t.Error("not fenced after a full session under the new controller")
	}
	if _, ok := b.c.nextDeadline(); ok {
		t.Error("a deadline without a session")
	}
}

func TestDeath(t *testing.T) {
	b, tp := threeReplicas(t)
	b.must2(deathRequest{id: 1, incarnation: NewID()})
	b.want(tp, "leader 1 isr [1 2 3] elr [] lost [] epoch 0.0")
	b.must2(deathRequest{id: 1, incarnation: b.incs[1]})
	b.want(tp, "leader 2 isr [2 3] elr [] lost [] epoch 1.1")
	b.must2(deathRequest{id: 2})
	b.want(tp, "leader 3 isr [3] elr [2] lost [] epoch 2.2")
	b.must2(deathRequest{id: 9})
	// It may register with a new directory at once: there is no session any more.
	b.must(Registration{ID: 1, Directory: NewID(), Incarnation: NewID()})
}

func (b *bench) must2(req any) {
	b.t.Helper()
	if _, err := b.ask(req); err != nil {
		b.t.Fatalf("%+v: %v", req, err)
	}
}

// Elections and eligible replicas, one step after the other.
func TestElections(t *testing.T) {
	b, tp := threeReplicas(t)
	b.must2(deathRequest{id: 3})
	b.want(tp, "leader 1 isr [1 2] elr [] lost [] epoch 0.1")
	b.must2(deathRequest{id: 1})
	b.want(tp, "leader 2 isr [2] elr [1] lost [] epoch 1.2")
	b.must2(deathRequest{id: 2})
	b.want(tp, "leader -1 isr [] elr [1 2] lost [] epoch 2.3")

	// 3 is not eligible, whatever it says.
	b.beat(3, electable(b.part(tp, 0)))
	b.want(tp, "leader -1 isr [] elr [1 2] lost [] epoch 2.3")
	// 2 comes back as another process; it is elected only once its log is open.
	b.register(2)
	b.beat(2)
	b.want(tp, "leader -1 isr [] elr [1 2] lost [] epoch 2.3")
	b.beat(2, electable(b.part(tp, 0)))
	b.want(tp, "leader 2 isr [2] elr [1] lost [] epoch 3.4")
	if p := b.part(tp, 0); p.LeaderBrokerEpoch != p.ISR[0].Epoch || p.LastKnownLeader != 2 {
		t.Errorf("leader %+v", p)
	}
	// With a second one in sync, nobody else is eligible.
	b.beat(3)
	if _, err := b.alter(b.part(tp, 0), []BrokerID{2, 3}); err != nil {
		t.Fatal(err)
	}
	b.want(tp, "leader 2 isr [2 3] elr [] lost [] epoch 3.5")
}

func TestAlterISR(t *testing.T) {
	b, tp := threeReplicas(t)
	p := b.part(tp, 0)
	q, err := b.alter(p, []BrokerID{1, 2})
	if err != nil || state(q) != "leader 1 isr [1 2] elr [] lost [] epoch 0.1" {
		t.Fatalf("shrink: %v %v", state(q), err)
	}
	if r, err := b.alter(p, []BrokerID{2, 1}); err != nil || r.PartitionEpoch != q.PartitionEpoch {
		t.Errorf("the same change again: %+v, %v", r, err)
	}
	if _, err := b.alter(p, []BrokerID{1, 3}); !errors.Is(err, ErrStale) {
		t.Errorf("another change on the old epoch: %v", err)
	}
	if r, err := b.alter(q, []BrokerID{1, 2}); err != nil || r.PartitionEpoch != q.PartitionEpoch {
		t.Errorf("no change: %+v, %v", r, err)
	}
	b.must2(deathRequest{id: 3})
	tests := []struct {
		name   string
		change func(r *ISRChange)
		want   error
	}{
		{"unknown partition", func(r *ISRChange) { r.Partition.Index = 7 }, ErrUnknownPartition},
		{"another leader", func(r *ISRChange) { r.Leader = 2 }, ErrStale},
		{"an older process of the leader", func(r *ISRChange) { r.LeaderBrokerEpoch-- }, ErrStale},
		{"older leader epoch", func(r *ISRChange) { r.LeaderEpoch-- }, ErrStale},
		{"newer leader epoch", func(r *ISRChange) { r.LeaderEpoch++ }, ErrNotController},
		{"newer partition epoch", func(r *ISRChange) { r.PartitionEpoch++ }, ErrNotController},
		{"a broker twice", func(r *ISRChange) { r.ISR = append(r.ISR, r.ISR[0]) }, ErrInvalidRequest},
		{"no replica", func(r *ISRChange) { r.ISR = append(r.ISR, Member{4, 1}) }, ErrInvalidRequest},
		{"an older process", func(r *ISRChange) { r.ISR[1].Epoch-- }, ErrIneligible},
		{"a fenced one", func(r *ISRChange) {
			br, _ := b.im.Broker(3)
			r.ISR = append(r.ISR, Member{3, br.Epoch})
		}, ErrIneligible},
		{"in sync and lossy", func(r *ISRChange) { r.Lossy = r.ISR[1:] }, ErrInvalidRequest},
	}
	for _, tt := range tests {
		p := b.part(tp, 0)
		r := ISRChange{Partition: p.ID, Leader: p.Leader, LeaderBrokerEpoch: p.LeaderBrokerEpoch, LeaderEpoch: p.LeaderEpoch,
			PartitionEpoch: p.PartitionEpoch, ISR: slices.Clone(p.ISR)}
		tt.change(&r)
		if _, err := b.ask(r); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if got := b.part(tp, 0); state(got) != state(p) {
			t.Errorf("%s changed the partition: %s", tt.name, state(got))
		}
	}
	b.beat(2, func(r *HeartbeatRequest) { r.WantStop = true })
	if _, err := b.alter(b.part(tp, 0), []BrokerID{1, 2}); !errors.Is(err, ErrIneligible) {
		t.Errorf("a stopping one: %v", err)
	}
}

// A leader that leaves itself out resigns: another one of the set leads, and with
// nobody else in it the leader stays eligible, but leads only once it reports its
// log whole again.
func TestResign(t *testing.T) {
	b, tp := threeReplicas(t)
	q, err := b.alter(b.part(tp, 0), []BrokerID{2, 3})
	if err != nil || state(q) != "leader 2 isr [2 3] elr [] lost [] epoch 1.1" {
		t.Errorf("a leader among others: %v %v", state(q), err)
	}
	b, tp = threeReplicas(t)
	if q, err = b.alter(b.part(tp, 0), []BrokerID{1}); err != nil {
		t.Fatal(err)
	}
	q, err = b.alter(q, nil)
	if err != nil || q.Leader == 1 || len(q.ISR) > 1 || slices.Contains(q.LastKnownELR, 1) && !slices.Contains(q.ELR, 1) {
		t.Errorf("a leader alone: %v %v", state(q), err)
	}
}

func TestLossy(t *testing.T) {
	b, tp := threeReplicas(t)
	// The leader names a lossy follower: it is no candidate for anything.
	if _, err := b.alter(b.part(tp, 0), []BrokerID{1, 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.alter(b.part(tp, 0), []BrokerID{1}, 2); err != nil {
		t.Fatal(err)
	}
	b.want(tp, "leader 1 isr [1] elr [] lost [2] epoch 0.2")
	// The leader is lossy itself, and says so: nobody remains.
	if _, err := b.alter(b.part(tp, 0), nil, 1); err != nil {
		t.Fatal(err)
	}
	b.want(tp, "leader -1 isr [] elr [] lost [1 2] epoch 1.3")
	for id := range BrokerID(4) {
		if id > 0 {
			b.beat(id, electable(b.part(tp, 0)))
		}
	}
	b.want(tp, "leader -1 isr [] elr [] lost [1 2] epoch 1.3")

	// A heartbeat says so.
	b, tp = threeReplicas(t)
	lossy := func(r *HeartbeatRequest) { r.Lossy = []log.PartitionID{b.part(tp, 0).ID} }
	b.beat(1, lossy)
	b.want(tp, "leader 2 isr [2 3] elr [] lost [] epoch 1.1")
	b.beat(1, lossy)
	b.want(tp, "leader 2 isr [2 3] elr [] lost [] epoch 1.1")
	if _, err := b.alter(b.part(tp, 0), []BrokerID{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	b.beat(1, lossy) // again, or late: to be on the safe side it counts
	b.want(tp, "leader 2 isr [2 3] elr [] lost [] epoch 1.3")

	// An eligible one that is lossy is not elected.
	b, tp = threeReplicas(t)
	b.must2(deathRequest{id: 1})
	b.must2(deathRequest{id: 2})
	b.must2(deathRequest{id: 3})
	b.want(tp, "leader -1 isr [] elr [2 3] lost [] epoch 3.3")
	b.beat(2, electable(b.part(tp, 0)), lossy)
	b.want(tp, "leader -1 isr [] elr [3] lost [2] epoch 3.4")
	b.beat(3, electable(b.part(tp, 0)))
	b.want(tp, "leader 3 isr [3] elr [] lost [2] epoch 4.5")
}

// A restarted process leads nothing of before and is in no in-sync set; what it
// held decides whether it is eligible.
func TestRestart(t *testing.T) {
	b, tp := threeReplicas(t)
	b.register(1)
	b.want(tp, "leader 2 isr [2 3] elr [] lost [] epoch 1.1")

	// The only member, restarted, may be elected again, in another epoch.
	b = newBench(t)
	b.up(1)
	tp = b.create(TopicSpec{Name: "t", Partitions: 1, Replication: 1})
	b.want(tp, "leader 1 isr [1] elr [] lost [] epoch 0.0")
	b.register(1)
	b.want(tp, "leader -1 isr [] elr [1] lost [] epoch 1.1")
	b.beat(1)
	b.want(tp, "leader -1 isr [] elr [1] lost [] epoch 1.1")
	b.beat(1, electable(b.part(tp, 0)))
	b.want(tp, "leader 1 isr [1] elr [] lost [] epoch 2.2")

	// Not so with another directory.
	b.must2(deathRequest{id: 1})
	b.dirs[1] = NewID()
	b.register(1)
	b.want(tp, "leader -1 isr [] elr [] lost [1] epoch 3.4")
	b.beat(1, electable(b.part(tp, 0)))
	b.want(tp, "leader -1 isr [] elr [] lost [1] epoch 3.4")
}

func TestStop(t *testing.T) {
	b, tp := threeReplicas(t)
	stop := func(r *HeartbeatRequest) { r.WantStop = true }
	r := b.beat(1, stop)
	b.want(tp, "leader 2 isr [2 3] elr [] lost [] epoch 1.1")
	if !r.Stopping || r.ShouldStop {
		t.Errorf("%+v at once", r)
	}
	if r = b.beat(1, stop); r.ShouldStop {
		t.Error("should stop before the others know")
	}
	b.beat(2)
	if r = b.beat(1, stop); r.ShouldStop {
		t.Error("should stop before 3 knows")
	}
	b.beat(3)
	if r = b.beat(1, stop); !r.ShouldStop {
		t.Error("should not stop though all know")
	}
	if r = b.beat(1); !r.Stopping {
		t.Error("a stop is forgotten")
	}
	// A new controller finds the stop in the record.
	b.c.activate(b.im, b.now)
	b.beat(2)
	b.beat(3)
	if r = b.beat(1, stop); !r.ShouldStop {
		t.Error("should not stop under the next controller")
	}
	b.register(1)
	if r = b.beat(1); r.Stopping || r.Fenced {
		t.Errorf("registered again: %+v", r)
	}
}

func TestReturnLeadership(t *testing.T) {
	for _, back := range []bool{false, true} {
		b, tp := threeReplicas(t)
		b.c.returnLeadership = back
		b.must2(deathRequest{id: 1})
		b.beat(1)
		p, err := b.alter(b.part(tp, 0), []BrokerID{1, 2, 3})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]BrokerID{true: 1, false: 2}[back]; p.Leader != want || b.part(tp, 0).Leader != want {
			t.Errorf("with ReturnLeadership %v, %d leads: %s", back, p.Leader, state(b.part(tp, 0)))
		}
	}
}

func TestCreateTopic(t *testing.T) {
	b := newBench(t)
	if _, err := b.ask(createRequest{id: log.TopicID{1}, spec: TopicSpec{Name: "t", Partitions: 1}}); !errors.Is(err, ErrNotEnoughBrokers) {
		t.Errorf("without brokers: %v", err)
	}
	b.up(1, 2, 3, 4, 5, 6)
	tp := b.create(TopicSpec{Name: "t", Partitions: 12})
	if tp.Replication != 3 || tp.MinISR != 2 {
		t.Errorf("defaults: %+v", tp)
	}
	leaders, replicas := map[BrokerID]int{}, map[BrokerID]int{}
	for i := range int32(12) {
		p := b.part(tp, i)
		leaders[p.Leader]++
		zones := map[BrokerID]bool{}
		for _, id := range p.Replicas {
			replicas[id]++
			zones[id%3] = true
		}
		if p.Leader != p.Replicas[0] || len(p.Replicas) != 3 || len(zones) != 3 {
			t.Errorf("partition %d: replicas %v, leader %d", i, p.Replicas, p.Leader)
		}
	}
	for id := BrokerID(1); id <= 6; id++ {
		if leaders[id] != 2 || replicas[id] != 6 {
			t.Errorf("broker %d leads %d and holds %d", id, leaders[id], replicas[id])
		}
	}
	if got := b.must(createRequest{id: tp.ID, spec: TopicSpec{Name: "t", Partitions: 12}}); got != any(tp) {
		t.Errorf("the same request again: %+v", got)
	}
	if _, err := b.ask(createRequest{id: log.TopicID{99}, spec: TopicSpec{Name: "t", Partitions: 12}}); !errors.Is(err, ErrTopicExists) {
		t.Errorf("the same name again: %v", err)
	}
	if _, err := b.ask(createRequest{id: tp.ID, spec: TopicSpec{Name: "u", Partitions: 12}}); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("the same id again: %v", err)
	}
	b.create(TopicSpec{Tenant: "acme", Name: "t", Partitions: 1})
	if got, ok := b.im.TopicByName("acme", "t"); !ok || got.ID == tp.ID {
		t.Errorf("tenants share a namespace: %+v", got)
	}
	bad := []TopicSpec{{Partitions: 1}, {Name: "a/b", Partitions: 1}, {Name: "..", Partitions: 1}, {Name: "t2"}, {Name: "__x", Partitions: 1},
		{Name: "t2", Partitions: maxPartitions + 1}, {Name: "t2", Partitions: 1, Replication: 2, MinISR: 3}, {Name: "t2", Partitions: 1, Replication: -1},
		{Name: "t2", Partitions: 1, MinISR: -1}, {Name: "t2", Partitions: 1, Tenant: "a\x00b"}, {Name: "t2", Partitions: 1, Config: TopicConfig{SegmentBytes: -1}},
		{Name: "t2", Partitions: 1, Config: TopicConfig{SegmentBytes: log.MinSegmentBytes - 1}},
		{Name: "t2", Partitions: 1, Config: TopicConfig{SegmentBytes: log.MaxSegmentBytes + 1}},
		{Name: "t2", Partitions: 1, Config: TopicConfig{MaxBatchBytes: 1 << 30}}}
	for _, s := range bad {
		if _, err := b.ask(createRequest{id: log.TopicID{100}, spec: s}); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestSystemTopic(t *testing.T) {
	b := newBench(t)
	b.c.systemReplication = 3
	keep := func() {
		b.do(func(p *plan) decision {
			b.c.maintain(p)
			return decision{}
		})
	}
	b.up(1, 2)
	keep()
	if _, ok := b.im.TopicByName("", SystemTopic); ok {
		t.Fatal("created on two brokers")
	}
	b.register(3)
	keep()
	if _, ok := b.im.TopicByName("", SystemTopic); ok {
		t.Fatal("created with a fenced broker")
	}
	b.beat(3)
	keep()
	tp, ok := b.im.TopicByName("", SystemTopic)
	if !ok || !tp.Internal || tp.Partitions != 1 || tp.Replication != 3 || tp.MinISR != 2 || tp.Config.Tiered {
		t.Fatalf("system topic %+v", tp)
	}
	index := b.im.index
	keep()
	if b.im.index != index {
		t.Error("created again")
	}
}

func TestProducerIDs(t *testing.T) {
	b := newBench(t)
	b.up(1)
	br, _ := b.im.Broker(1)
	for i := range int64(3) {
		if got := b.must(producersRequest{1, br.Epoch}); got != any(ProducerBlock{First: 10 * i, Count: 10}) {
			t.Errorf("block %d: %+v", i, got)
		}
	}
	for _, tt := range []struct {
		r    producersRequest
		want error
	}{{producersRequest{2, 1}, ErrUnknownBroker}, {producersRequest{1, br.Epoch - 1}, ErrStale}, {producersRequest{1, br.Epoch + 1}, ErrNotController}} {
		if _, err := b.ask(tt.r); !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v", tt.r, err)
		}
	}
}

// A voter's directory is fixed by its first registration.
func TestVoterDirectory(t *testing.T) {
	b := newBench(t)
	b.c.voters = map[BrokerID]bool{1: true}
	b.up(1, 2)
	b.must2(deathRequest{id: 1})
	b.must2(deathRequest{id: 2})
	b.must2(Registration{ID: 2, Directory: NewID(), Incarnation: NewID()})
	if _, err := b.ask(Registration{ID: 1, Directory: NewID(), Incarnation: NewID()}); !errors.Is(err, ErrIdentity) {
		t.Errorf("a voter with a new directory: %v", err)
	}
	b.register(1)
}

// Whatever gives occasion to an election, only a reported replica is elected.
func TestElectionNeedsReport(t *testing.T) {
	b, tp := threeReplicas(t)
	for id := BrokerID(1); id <= 3; id++ {
		b.must2(deathRequest{id: id})
	}
	b.want(tp, "leader -1 isr [] elr [2 3] lost [] epoch 3.3")
	b.register(2)
	b.beat(2) // live, but its log is not open yet
	b.dirs[3] = NewID()
	b.register(3) // changes the partition
	b.want(tp, "leader -1 isr [] elr [2] lost [3] epoch 3.4")
	b.beat(2, electable(b.part(tp, 0)))
	b.want(tp, "leader 2 isr [2] elr [] lost [3] epoch 4.5")
}
