package unittest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/examples/unittest"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// read returns the ids of all orders from an offset on.
func read(t *testing.T, b *unittest.Book, from log.Offset) (ids []int) {
	t.Helper()
	for o, err := range b.Orders(t.Context(), from) {
		if err != nil {
			t.Fatalf("read orders: %v", err)
		}
		ids = append(ids, o.ID)
	}
	return ids
}

// An order that was placed is still there after the leader's machine has lost
// power, and everything that its disk had not synced.
func TestPlacedOrderSurvivesPowerLoss(t *testing.T) {
	c := cordwoodtest.Start(t, cordwoodtest.Options{})
	c.CreateTopic("orders", cordwood.TopicConfig{})
	book := unittest.NewBook(c.Host().Tenant("").Topic("orders"))
	for id := range 100 {
		if id == 50 {
			c.PowerOff(c.Leader("orders", 0), logtest.CrashLoseAll)
		}
		if err := book.Place(t.Context(), unittest.Order{ID: id, Item: "rope"}); err != nil {
			t.Fatalf("place order %d: %v", id, err)
		}
	}
	ids := read(t, book, 0)
	if len(ids) != 100 {
		t.Fatalf("%d orders read, want 100", len(ids))
	}
	for i, id := range ids {
		if id != i {
			t.Fatalf("order %d is in place %d", id, i)
		}
	}
}

// A week passes: old segments go to the object store, local disks keep six hours,
// and what is older than three days is gone.
func TestWeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Slow timers: the nodes must not spend a week of virtual time on heartbeats.
		c := cordwoodtest.Start(t, cordwoodtest.Options{
			Tick: 5 * time.Second, Session: 2 * time.Minute,
			// What retention gives up is not kept in the store for another week.
			Configure: func(_ int, o *cordwood.Options) { o.BackupWindow = -1 },
		})
		c.CreateTopic("orders", cordwood.TopicConfig{
			SegmentAge: 6 * time.Hour, LocalRetentionAge: 6 * time.Hour, RetentionAge: 3 * 24 * time.Hour,
		})
		book := unittest.NewBook(c.Node(1).Tenant("").Topic("orders"))
		const hours = 7 * 24
		for hour := range hours {
			if err := book.Place(t.Context(), unittest.Order{ID: hour, Item: "tea"}); err != nil {
				t.Fatalf("place order in hour %d: %v", hour, err)
			}
			time.Sleep(time.Hour)
		}
		o := c.Offsets("orders", 0)
		ids := read(t, book, o.Start)
		oldest, newest := ids[0], ids[len(ids)-1]
		if newest != hours-1 || len(ids) != newest-oldest+1 {
			t.Errorf("read orders %d to %d, %d of them; want all up to %d", oldest, newest, len(ids), hours-1)
		}
		// A segment of six hours goes three days after it was sealed.
		if age := hours - oldest; age < 3*24 || age > 3*24+13 {
			t.Errorf("the oldest order is %d hours old, want about three days", age)
		}
		if o.LocalStart <= o.Start || o.TierEnd < o.LocalStart {
			t.Errorf("nothing aged: %+v", o)
		}
		if objects := c.Store().Counts(); objects.Put == 0 || objects.Delete == 0 {
			t.Errorf("store saw %+v, want puts and deletes", objects)
		}
	})
}
