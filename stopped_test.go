package cordwood_test

import (
	"testing"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/tier"
)

// TestTierKnows: a sweep of a stopped cluster spares what only another replica of the
// tier log announces, and the manifests of all: whichever leads next may go back to the
// checkpoint before the best replica's last one.
func TestTierKnows(t *testing.T) {
	p := log.PartitionID{Topic: log.TopicID{5}}
	replica := func(name string, bodies ...tier.Body) *log.Log {
		l, err := log.Open(t.Context(), name, log.Options{FS: logtest.NewFS(1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		for i, body := range bodies {
			b, err := tier.EncodeEvent(tier.Event{Partition: p, Epoch: 1, Seq: uint64(i + 1), Body: body})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.AppendRecords(t.Context(), record.Record{Value: b}); err != nil {
				t.Fatal(err)
			}
		}
		return l
	}
	copyOf := func(id byte) tier.Body {
		return tier.CopyStarted{ID: tier.ID{id}, End: 10, Deadline: time.UnixMilli(1)}
	}
	checkpoint := func(id byte) tier.Body { return tier.Checkpoint{Manifest: tier.ID{id}, Bytes: 100} }
	known, err := cordwood.StoppedOf(
		replica("a", copyOf(1), checkpoint(2), checkpoint(3)),
		replica("b", copyOf(1), checkpoint(2), copyOf(4)),
	).TierKnows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[byte]bool{1: false, 2: true, 3: true, 4: true, 5: false} {
		if got := known(p, tier.ID{id}); got != want {
			t.Errorf("object %d: known %v, want %v", id, got, want)
		}
	}
}
