package tier

import (
	"runtime"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A ledger can't be dropped as unused between its being looked up and the event being
// taken: a Close would lose the partition's first event.
func TestLedgerIsNotDroppedUnderAnEvent(t *testing.T) {
	id := log.PartitionID{Topic: log.TopicID{1}}
	m := &Manager{parts: map[log.PartitionID]*Partition{}, ledgers: map[log.PartitionID]*ledger{}}
	l := m.ledgerLocked(id)
	l.mu.Lock() // the event has to wait for it
	applied := make(chan error, 1)
	go func() { applied <- m.apply(Committed{Offset: 3}, Event{Partition: id, Epoch: 1, Body: Barrier{}}) }()
	for held, deadline := 0, time.Now().Add(time.Minute); held < 100; held++ {
		if m.mu.TryLock() {
			m.mu.Unlock()
			held = -1
		}
		if time.Now().After(deadline) {
			t.Error("others get at the ledger while an event waits for it")
			break
		}
		runtime.Gosched()
	}
	l.mu.Unlock()
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	m.dropLedger(id) // as a Close does
	if m.ledgers[id] != l || !l.pinned || l.state.Epoch() != 1 {
		t.Errorf("ledger %p of %p, pinned: %v, epoch %d", m.ledgers[id], l, l.pinned, l.state.Epoch())
	}
}
