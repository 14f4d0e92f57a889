package metadata

import (
	"errors"
	"slices"
	"testing"

	"github.com/cordwood-io/cordwood/log"
)

// A deletion takes the topic, its partitions and its name away and fixes for each
// partition an epoch above all that were led in.
func TestDeleteTopic(t *testing.T) {
	b, old := threeReplicas(t)
	for _, id := range ids(b.part(old, 0).ISR) {
		b.do(func(p *plan) decision { b.c.fence(p, id); return decision{} }) // epochs differ
		b.beat(id)
	}
	var want []log.Epoch
	for i := range old.Partitions {
		want = append(want, b.part(old, int32(i)).LeaderEpoch+1)
	}
	if want[0] < 2 {
		t.Fatalf("epochs %v: no leader has changed", want)
	}
	for range 2 { // a retry changes nothing
		b.must(deleteRequest{old.ID})
		d, ok := b.im.DeletedTopic(old.ID)
		if !ok || d.Name != old.Name || d.Tenant != old.Tenant || !slices.Equal(d.Epochs, want) {
			t.Fatalf("deleted topic %+v, %v, want epochs %v", d, ok, want)
		}
		if _, ok := b.im.Topic(old.ID); ok {
			t.Error("the topic is still there")
		}
		if _, ok := b.im.TopicByName(old.Tenant, old.Name); ok {
			t.Error("the name is still there")
		}
		for p := range b.im.Partitions() {
			if p.ID.Topic == old.ID {
				t.Errorf("partition %v is still there", p.ID)
			}
		}
	}
	if n := len(slices.Collect(b.im.DeletedTopics())); n != 1 {
		t.Errorf("%d deleted topics", n)
	}

	// A late retry of the creation does not bring it back, and its leaders' word is void.
	if _, err := b.ask(createRequest{old.ID, TopicSpec{Tenant: old.Tenant, Name: old.Name, Partitions: 1}}); !errors.Is(err, ErrTopicDeleted) {
		t.Errorf("creation of a deleted topic: %v", err)
	}
	id := log.PartitionID{Topic: old.ID}
	if _, err := b.ask(ISRChange{Partition: id}); !errors.Is(err, ErrUnknownPartition) {
		t.Errorf("change of a deleted topic's in-sync set: %v", err)
	}
	fresh := b.create(TopicSpec{Tenant: old.Tenant, Name: old.Name, Partitions: 2})
	if fresh.ID == old.ID {
		t.Error("the new topic has the old one's id")
	}
	if got, ok := b.im.TopicByName(old.Tenant, old.Name); !ok || got.ID != fresh.ID {
		t.Errorf("the name leads to %v, want %v", got.ID, fresh.ID)
	}
	if _, err := b.ask(deleteRequest{log.TopicID{9}}); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("deletion of a topic that never was: %v", err)
	}
}

// Internal topics stay.
func TestDeleteInternalTopic(t *testing.T) {
	b := newBench(t)
	b.up(1)
	internal := b.create(TopicSpec{Name: "__x", Partitions: 1, Internal: true})
	if _, err := b.ask(deleteRequest{internal.ID}); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("deletion of an internal topic: %v", err)
	}
	if _, ok := b.im.Topic(internal.ID); !ok {
		t.Error("it is gone")
	}
}

// A record of a deletion that does not fit the state has no effect.
func TestCheckDeleted(t *testing.T) {
	b, topic := threeReplicas(t)
	var epochs []log.Epoch
	for i := range topic.Partitions {
		epochs = append(epochs, b.part(topic, int32(i)).LeaderEpoch+1)
	}
	good := DeletedTopic{ID: topic.ID, Tenant: topic.Tenant, Name: topic.Name, Epochs: epochs}
	if err := b.im.check(deletedRecord(good)); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*DeletedTopic){
		"another id":       func(d *DeletedTopic) { d.ID[0]++ },
		"another name":     func(d *DeletedTopic) { d.Name += "x" },
		"another tenant":   func(d *DeletedTopic) { d.Tenant += "x" },
		"a partition more": func(d *DeletedTopic) { d.Epochs = append(slices.Clone(d.Epochs), 1) },
		"an epoch less":    func(d *DeletedTopic) { d.Epochs = slices.Clone(d.Epochs); d.Epochs[0]-- },
	} {
		d := good
		change(&d)
		if err := b.im.check(deletedRecord(d)); err == nil {
			t.Errorf("a record with %s is taken", what)
		}
	}
	b.must(deleteRequest{topic.ID})
	if err := b.im.check(deletedRecord(good)); err == nil {
		t.Error("a second record is taken")
	}
	if err := b.im.check(topicRecord(topic)); err == nil {
		t.Error("the topic comes back")
	}
}

// What an image with a deletion stores reads back as the same image; a reconciler and
// a delta see that the replicas are to go.
func TestDeletedState(t *testing.T) {
	b, topic := threeReplicas(t)
	self := Member{ID: 1}
	local := Local(nil).After(Reconcile(nil, b.im, self, nil), self)
	touched := changes{}
	b.must(deleteRequest{topic.ID})
	d, _ := b.im.DeletedTopic(topic.ID)
	touched.add(deletedRecord(d))
	if d := touched.delta(); !slices.Contains(d.Topics, topic.ID) || len(d.Partitions) != topic.Partitions {
		t.Errorf("delta %+v", d)
	}
	for _, only := range [][]log.PartitionID{nil, touched.delta().Partitions} {
		actions := Reconcile(local, b.im, self, only)
		if len(actions) != topic.Partitions {
			t.Errorf("actions %v, want %d deletions", actions, topic.Partitions)
		}
		for _, a := range actions {
			if a.Kind != ActionDelete {
				t.Errorf("action %v", a.Kind)
			}
		}
	}
	im := newImage(b.im.cluster)
	b.im.records.Scan(func(key string, o *object) bool {
		if err := im.load(key, o.value); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if im.hash != b.im.hash {
		t.Error("the state that was read has another hash")
	}
	if _, ok := im.DeletedTopic(topic.ID); !ok {
		t.Error("the deletion is lost")
	}
	for _, bad := range []DeletedTopic{{ID: topic.ID}, {ID: topic.ID, Epochs: []log.Epoch{0}}} {
		if _, err := decodeRecord(kindDeleted, deletedRecord(bad).value); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
