package metadata

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/log"
)

// checkInvariants holds an image against those invariants of the protocol that a
// state shows by itself.
func checkInvariants(im *Image) error {
	for p := range im.Partitions() {
		// S12, and that a leader is in sync.
		if err := checkPartition(p); err != nil {
			return err
		}
		// S11: no fenced, stopping or former process leads or is in sync.
		for _, m := range p.ISR {
			b, ok := im.Broker(m.ID)
			if !ok || !b.Live() || b.Epoch != m.Epoch {
				return fmt.Errorf("S11: %+v is in sync of %v, it is %+v", m, p.ID, b)
			}
		}
		if (p.Leader == NoBroker) != (len(p.ISR) == 0) {
			return fmt.Errorf("leader %d with in-sync set %v", p.Leader, p.ISR)
		}
		// S14, with one difference: a leader may take out several replicas at once,
		// and then all of them are remembered. Whoever inspects their logs needs
		// enough of them to have met every commit.
		if len(p.ISR)+len(p.ELR) == 0 && len(p.LastKnownELR) < p.MinISR {
			return fmt.Errorf("S14: nobody is eligible, and only %v are known to have been", p.LastKnownELR)
		}
		if len(p.ISR)+len(p.ELR)+len(p.LastKnownELR) < p.MinISR {
			return fmt.Errorf("%v knows of fewer holders than a commit had: %s", p.ID, state(p))
		}
	}
	return nil
}

// checkStep holds two images in a row against the invariants of a change.
func checkStep(a, b *Image) error {
	for q := range a.Partitions() {
		p, ok := b.Partition(q.ID)
		if _, deleted := b.DeletedTopic(q.ID.Topic); !ok && deleted {
			continue
		}
		if !ok {
			return fmt.Errorf("%v is gone", q.ID)
		}
		// S15.
		switch {
		case p.PartitionEpoch < q.PartitionEpoch:
			return fmt.Errorf("S15: %v from %s to %s", q.ID, state(q), state(p))
		case p.PartitionEpoch == q.PartitionEpoch && (state(p) != state(q) || !slices.Equal(p.ISR, q.ISR)):
			return fmt.Errorf("S15: %v changes under one epoch from %s to %s", q.ID, state(q), state(p))
		}
		moved := p.Leader != q.Leader || p.LeaderBrokerEpoch != q.LeaderBrokerEpoch
		if p.LeaderEpoch < q.LeaderEpoch || moved && p.LeaderEpoch == q.LeaderEpoch {
			return fmt.Errorf("S5: %v from %s to %s", q.ID, state(q), state(p))
		}
	}
	for o := range a.Brokers() {
		if n, _ := b.Broker(o.ID); n.Epoch < o.Epoch {
			return fmt.Errorf("broker %d from epoch %d to %d", o.ID, o.Epoch, n.Epoch)
		}
	}
	return nil
}

// Random sequences of registrations, heartbeats, deaths, expirations, stops,
// controller changes and in-sync changes, right ones and wrong ones. A model of
// the replicas' disks says who holds all committed records: only they may lead.
func TestInvariants(t *testing.T) {
	counts := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t)
		const brokers = 4
		for id := BrokerID(1); id <= brokers; id++ {
			b.up(id)
		}
		var topics []Topic
		for i, minISR := range []int{1, 2, 3} {
			tp := b.create(TopicSpec{Name: fmt.Sprint("t", i), Partitions: 2, Replication: 3, MinISR: minISR})
			topics = append(topics, tp)
		}
		// complete[p] are the replicas that hold all committed records of p, as the
		// worst case has it: whoever is not in the in-sync set misses the next
		// commit, which happens as soon as it can.
		complete := map[log.PartitionID]map[BrokerID]bool{}
		for p := range b.im.Partitions() {
			complete[p.ID] = map[BrokerID]bool{}
			for _, id := range p.Replicas {
				complete[p.ID][id] = true
			}
		}
		lossy := map[BrokerID]map[log.PartitionID]bool{}
		for id := BrokerID(1); id <= brokers; id++ {
			lossy[id] = map[log.PartitionID]bool{}
		}
		before := b.im
		check := func(what string) {
			if err := checkStep(before, b.im); err != nil {
				rt.Fatalf("%s: %v", what, err)
			}
			if err := checkInvariants(b.im); err != nil {
				rt.Fatalf("%s: %v", what, err)
			}
			for p := range b.im.Partitions() {
				if len(p.ISR) >= p.MinISR {
					for _, id := range p.Replicas {
						if !slices.Contains(ids(p.ISR), id) {
							delete(complete[p.ID], id)
						}
					}
				}
				for _, id := range append(ids(p.ISR), p.ELR...) {
					if !complete[p.ID][id] && !lossy[id][p.ID] {
						rt.Fatalf("%s: S3: %d may lead %v without all committed records: %s", what, id, p.ID, state(p))
					}
				}
				if p.Leader != NoBroker && lossy[p.Leader][p.ID] {
					// Only one that lost its data while it was in sync, and has not
					// said so yet.
					if q, _ := before.Partition(p.ID); !slices.Contains(ids(q.ISR), p.Leader) {
						rt.Fatalf("%s: %d leads %v with lost data", what, p.Leader, p.ID)
					}
				}
			}
			before = b.im
		}
		report := func(id BrokerID) func(*HeartbeatRequest) {
			return func(r *HeartbeatRequest) {
				for p := range b.im.Partitions() {
					if !p.HasReplica(id) {
						continue
					}
					if lossy[id][p.ID] {
						r.Lossy = append(r.Lossy, p.ID)
					} else {
						r.Electable = append(r.Electable, p.ID)
					}
				}
			}
		}
		for range rapid.IntRange(10, 80).Draw(rt, "steps") {
			id := BrokerID(rapid.IntRange(1, brokers).Draw(rt, "broker"))
			br, _ := b.im.Broker(id)
			what := rapid.SampledFrom([]string{"heartbeat", "heartbeat", "heartbeat", "restart", "death", "expire", "stop", "new disk", "damage",
				"controller", "shrink", "grow", "grow", "resign", "nonsense"}).Draw(rt, "what")
			done := true
			switch what {
			case "heartbeat":
				b.beat(id, report(id))
			case "restart":
				b.register(id)
			case "death":
				b.must2(deathRequest{id: id})
			case "expire":
				b.expire(time.Duration(rapid.IntRange(0, 600).Draw(rt, "ms")) * time.Millisecond)
			case "stop":
				b.beat(id, report(id), func(r *HeartbeatRequest) { r.WantStop = true })
			case "new disk":
				b.must2(deathRequest{id: id})
				b.dirs[id] = NewID()
				for p := range b.im.Partitions() {
					if p.HasReplica(id) {
						lossy[id][p.ID] = true
					}
				}
				b.register(id)
				for p := range b.im.Partitions() {
					if slices.Contains(ids(p.ISR), id) || slices.Contains(p.ELR, id) {
						rt.Fatalf("%v still counts on the old disk of %d", p.ID, id)
					}
				}
			case "damage": // of a part of a running process' disk, found and reported
				for p := range b.im.Partitions() {
					if p.HasReplica(id) && rapid.Bool().Draw(rt, "lost") {
						lossy[id][p.ID] = true
					}
				}
				b.beat(id, report(id))
				for p := range b.im.Partitions() {
					if lossy[id][p.ID] && slices.Contains(append(ids(p.ISR), p.ELR...), id) {
						// Reported before, and taken back by its leader since: then it was
						// healed below.
						rt.Fatalf("%v still counts on %d, which has said that it lost data", p.ID, id)
					}
				}
			case "controller":
				b.c.activate(b.im, b.now)
			default:
				var led []Partition
				for p := range b.im.Partitions() {
					if p.Leader == id {
						led = append(led, p)
					}
				}
				if len(led) == 0 {
					done = false
					break
				}
				p := rapid.SampledFrom(led).Draw(rt, "partition")
				switch what {
				case "shrink":
					out := rapid.SampledFrom(p.Replicas).Draw(rt, "out")
					if out == id {
						done = false
						break
					}
					if _, err := b.alter(p, ids(without(p.ISR, out))); err != nil {
						rt.Fatal(err)
					}
				case "grow":
					in := rapid.SampledFrom(p.Replicas).Draw(rt, "in")
					if slices.Contains(ids(p.ISR), in) {
						done = false
						break
					}
					nb, _ := b.im.Broker(in)
					// The leader has seen it fetch everything: it holds all again, also
					// what it had lost.
					had, was := complete[p.ID][in], lossy[in][p.ID]
					complete[p.ID][in] = true
					delete(lossy[in], p.ID)
					_, err := b.alter(p, append(ids(p.ISR), in))
					if (err == nil) != nb.Live() {
						rt.Fatalf("adding %+v: %v", nb, err)
					}
					if err != nil && !had {
						delete(complete[p.ID], in)
						lossy[in][p.ID] = was
					}
				case "resign":
					lossy[id][p.ID] = true
					if _, err := b.alter(p, ids(without(p.ISR, id)), id); err != nil {
						rt.Fatal(err)
					}
				case "nonsense":
					r := ISRChange{Partition: p.ID, Leader: p.Leader, LeaderBrokerEpoch: p.LeaderBrokerEpoch - BrokerEpoch(rapid.IntRange(0, 1).Draw(rt, "a")),
						LeaderEpoch: p.LeaderEpoch - log.Epoch(rapid.IntRange(0, 1).Draw(rt, "b")), PartitionEpoch: p.PartitionEpoch - int64(rapid.IntRange(0, 2).Draw(rt, "c")),
						ISR: slices.Clone(p.ISR)}
					r.ISR[0].Epoch -= BrokerEpoch(rapid.IntRange(0, 1).Draw(rt, "d"))
					_, _ = b.ask(r)
					if q, _ := b.im.Partition(p.ID); state(q) != state(p) {
						rt.Fatalf("%+v made of %s: %s", r, state(p), state(q))
					}
				}
			}
			if done {
				counts[what]++
			}
			_ = br
			check(what)
		}
		_ = topics
		// Afterwards, with all disks whole, every partition that lost nothing
		// finds a leader again (L1).
		for id := BrokerID(1); id <= brokers; id++ {
			b.register(id)
			b.beat(id, report(id))
			b.beat(id, report(id))
		}
		for p := range b.im.Partitions() {
			able := slices.ContainsFunc(append(ids(p.ISR), p.ELR...), func(id BrokerID) bool { return !lossy[id][p.ID] })
			if p.Leader == NoBroker && able {
				rt.Fatalf("L1: nobody leads %v: %s", p.ID, state(p))
			}
		}
	})
	for _, what := range []string{"heartbeat", "restart", "death", "expire", "stop", "new disk", "damage", "controller", "shrink", "grow", "resign", "nonsense"} {
		if counts[what] < 20 && !testing.Short() {
			t.Errorf("%q happened only %d times", what, counts[what])
		}
	}
}
