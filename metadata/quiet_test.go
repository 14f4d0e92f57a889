package metadata_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/metadata"
)

// A host's test may let days pass in virtual time; an idle cluster must make them
// cheap.
func TestSevenDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, func(o *metadata.Options) { o.Tick, o.Session = 5*time.Second, 2*time.Minute })
		defer w.stop()
		ns := w.startAll(3)
		for _, n := range ns {
			n.startBroker("")
		}
		w.waitFor(ns[0], "live brokers", live(3))
		before := ns[0].server.Image().Index()
		time.Sleep(7 * 24 * time.Hour)
		im := ns[0].server.Image()
		if !live(3)(im) || im.Index() > before+4 {
			t.Errorf("after seven days, index %d (was %d), all live %v", im.Index(), before, live(3)(im))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		t.Logf("%d messages, %d calls", w.sends, w.calls)
	})
}
