package metadata

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// Bugs of others, as scenarios: decisions and store. case_test.go has those that
// need a cluster.
func TestCase(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"KAFKA-15221": caseRebooted, "KIP-841": caseFencedBack, "KIP-497": caseRacingChange, "KAFKA-15021": caseIneligibleJoiner,
		"KIP-966": caseLastMember, "KAFKA-18635": caseFastRestart, "KAFKA-16540": caseMinISR, "KAFKA-13173": caseExpirations,
		"NATS-7424": caseDamagedStore, "ETCD-10217": ruleCommit, "ETCD-13766": ruleApplied, "COCKROACH-8629": rulePin,
	} {
		t.Run(name, test)
	}
}

// A rebooted, empty follower joined the in-sync set, since check and request used
// different epochs. Each member of a proposed set carries its epoch, and an old one
// is refused.
func caseRebooted(t *testing.T) {
	b, tp := threeReplicas(t)
	b.must2(deathRequest{id: 3})
	b.beat(3)
	p := b.part(tp, 0)
	old, _ := b.im.Broker(3)
	b.dirs[3] = NewID()
	b.must2(deathRequest{id: 3})
	b.register(3)
	b.beat(3)
	r := ISRChange{Partition: p.ID, Leader: 1, LeaderBrokerEpoch: p.LeaderBrokerEpoch, LeaderEpoch: p.LeaderEpoch,
		PartitionEpoch: b.part(tp, 0).PartitionEpoch, ISR: append(slices.Clone(p.ISR), Member{3, old.Epoch})}
	if _, err := b.ask(r); err == nil {
		t.Error("the rebooted replica is in sync by its old epoch")
	}
}

// A leader with an old view put a fenced or stopping replica back in sync, which was
// then elected. The controller checks.
func caseFencedBack(t *testing.T) {
	for name, out := range map[string]func(*bench){
		"fenced":   func(b *bench) { b.must2(deathRequest{id: 2}) },
		"stopping": func(b *bench) { b.beat(2, func(r *HeartbeatRequest) { r.WantStop = true }) },
	} {
		b, tp := threeReplicas(t)
		out(b)
		if _, err := b.alter(b.part(tp, 0), []BrokerID{1, 2, 3}); err == nil {
			t.Errorf("a %s replica is back in sync", name)
		}
		b.must2(deathRequest{id: 1})
		if p := b.part(tp, 0); p.Leader != 3 {
			t.Errorf("%d leads with a %s 2", p.Leader, name)
		}
	}
}

// Two changes from the same base: the second one is refused, so a leader never
// counts on a set that the controller does not elect from.
func caseRacingChange(t *testing.T) {
	b, tp := threeReplicas(t)
	p := b.part(tp, 0)
	if _, err := b.alter(p, []BrokerID{1, 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.alter(p, []BrokerID{1}); err == nil {
		t.Error("a change on an old base")
	}
	b.must2(deathRequest{id: 1})
	b.want(tp, "leader 2 isr [2] elr [1] lost [] epoch 1.2")
}

// Replicas that were caught up but could not join held the high watermark. The image
// names those that may; and a change of the set alone leaves the leader epoch.
func caseIneligibleJoiner(t *testing.T) {
	b, tp := threeReplicas(t)
	b.beat(2, func(r *HeartbeatRequest) { r.WantStop = true })
	b.must2(deathRequest{id: 3})
	p := b.part(tp, 0)
	if got := ids(b.im.LiveMembers(p)); !slices.Equal(got, []BrokerID{1}) {
		t.Errorf("live members %v", got)
	}
	if p.LeaderEpoch != 0 || p.PartitionEpoch != 2 {
		t.Errorf("after two shrinks: %s", state(p))
	}
}

// The last in-sync replica lost its disk and erased acknowledged records everywhere.
// It is not elected; who left before it while nothing could commit is.
func caseLastMember(t *testing.T) {
	b, tp := threeReplicas(t)
	b.must2(deathRequest{id: 3})
	b.must2(deathRequest{id: 2})
	b.want(tp, "leader 1 isr [1] elr [2] lost [] epoch 0.2")
	b.must2(deathRequest{id: 1})
	b.dirs[1] = NewID()
	b.register(1)
	b.beat(1, electable(b.part(tp, 0)))
	b.beat(3, electable(b.part(tp, 0)))
	b.want(tp, "leader -1 isr [] elr [2] lost [1] epoch 1.4")
	b.register(2)
	b.beat(2, electable(b.part(tp, 0)))
	b.want(tp, "leader 2 isr [2] elr [] lost [1] epoch 2.5")
}

// A quick restart went unnoticed: no epoch moved. Registration itself ends what the
// process before it was.
func caseFastRestart(t *testing.T) {
	b, tp := threeReplicas(t)
	before, _ := b.im.Broker(1)
	b.register(1) // nobody has missed it
	after, _ := b.im.Broker(1)
	p := b.part(tp, 0)
	if after.Epoch <= before.Epoch || p.LeaderEpoch != 1 || p.Leader != 2 || slices.Contains(ids(p.ISR), 1) {
		t.Errorf("broker epoch %d to %d, %s", before.Epoch, after.Epoch, state(p))
	}
}

// Nodes disagreed about the minimum, which stood elsewhere. It is part of the record.
func caseMinISR(t *testing.T) {
	b := newBench(t)
	b.up(1, 2, 3)
	tp := b.create(TopicSpec{Name: "t", Partitions: 1, Replication: 3, MinISR: 3})
	b.must2(deathRequest{id: 3})
	p := b.part(tp, 0)
	if p.MinISR != 3 || !slices.Equal(p.ELR, []BrokerID{3}) {
		t.Errorf("minimum %d, %s", p.MinISR, state(p))
	}
	r, err := decodeRecord(kindPartition, partitionRecord(p).value)
	if err != nil || r.partition.MinISR != 3 {
		t.Errorf("%+v, %v", r.partition, err)
	}
}

// Several sessions end at once, and the changes contradicted each other, all made
// from the same base. Each is made on top of the one before.
func caseExpirations(t *testing.T) {
	b, tp := threeReplicas(t)
	b.expire(time.Second)
	b.want(tp, "leader -1 isr [] elr [2 3] lost [] epoch 3.3")
	if err := checkInvariants(b.im); err != nil {
		t.Error(err)
	}
}

// An error while loading wiped the log. A store that can't be read is left as it is,
// and the voter does not start.
func caseDamagedStore(t *testing.T) {
	fs := logtest.NewFS(1)
	s, im := mustOpenStore(t, fs)
	batch := s.db.NewBatch()
	im.hash = stateHash{1, 2}
	if err := s.setApplied(batch, im, s.conf); err != nil {
		t.Fatal(err)
	}
	if err := s.commit(batch, true); err != nil {
		t.Fatal(err)
	}
	if err := batch.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, _, err := openStore(testOptions(fs)); !isFormatError(err) {
			t.Errorf("open: %v", err)
		}
	}
}

// However deltas are batched, a broker ends up with the same replicas in the same
// roles.
func TestReconcile(t *testing.T) {
	b := newBench(t)
	b.up(1, 2, 3)
	images := []*Image{newImage(ID{1})}
	note := func() { images = append(images, b.im) }
	t1 := b.create(TopicSpec{Name: "a", Partitions: 3, Replication: 3})
	note()
	b.create(TopicSpec{Name: "b", Partitions: 2, Replication: 2})
	note()
	b.must2(deathRequest{id: 2})
	note()
	b.beat(2)
	note()
	if p := b.part(t1, 0); p.Leader != 1 {
		t.Fatal(state(p))
	}
	if _, err := b.alter(b.part(t1, 0), []BrokerID{1, 3, 2}); err != nil {
		t.Fatal(err)
	}
	note()
	b.must2(deathRequest{id: 1})
	note()
	for id := BrokerID(1); id <= 3; id++ {
		br, _ := b.im.Broker(id)
		self := Member{id, br.Epoch}
		want := fmt.Sprint(Local(nil).After(Reconcile(nil, b.im, self, nil), self))
		for mask := range 1 << (len(images) - 1) {
			var local Local
			opened := map[log.PartitionID]bool{}
			for i, im := range images {
				if i < len(images)-1 && mask>>i&1 == 0 {
					continue
				}
				actions := Reconcile(local, im, self, nil)
				for _, a := range actions {
					switch a.Kind {
					case ActionOpen:
						if opened[a.Partition.ID] {
							t.Fatalf("%v is opened twice", a.Partition.ID)
						}
						opened[a.Partition.ID] = true
					case ActionDelete:
						t.Fatalf("%v is deleted", a.Partition.ID)
					default:
						if !opened[a.Partition.ID] || a.Topic.ID != a.Partition.ID.Topic || (a.Kind == ActionLead) && !a.Partition.LedBy(self) {
							t.Fatalf("%v", a)
						}
					}
				}
				local = local.After(actions, self)
				if again := Reconcile(local, im, self, nil); len(again) > 0 {
					t.Fatalf("a second time: %v", again)
				}
			}
			if got := fmt.Sprint(local); got != want {
				t.Fatalf("broker %d, images %b:\n%s, want\n%s", id, mask, got, want)
			}
		}
		// A partition that is gone, or was never ours, is deleted; only limits that.
		local := Local{{Topic: log.TopicID{9}, Index: 1}: {}}
		if as := Reconcile(local, b.im, Member{77, 1}, nil); len(as) != 1 || as[0].Kind != ActionDelete {
			t.Errorf("%v", as)
		}
		if as := Reconcile(local, b.im, Member{77, 1}, []log.PartitionID{{Topic: log.TopicID{8}}}); len(as) != 0 {
			t.Errorf("%v", as)
		}
		// Another process life of the same broker follows where the old one led.
		led := Reconcile(nil, images[1], Member{1, 999}, nil)
		for _, a := range led {
			if a.Kind == ActionLead {
				t.Errorf("a restarted process leads %v", a.Partition.ID)
			}
		}
	}
}
