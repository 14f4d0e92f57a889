package metadata_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/metadata"
)

// An observer is a broker like any other: it finds the controller, follows it over
// a change, and its evidence of a death counts.
func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := cluster(t, 3, nil)
		defer w.stop()
		o, p := w.start(4), w.start(5)
		o.startBroker("")
		p.startBroker("")
		w.waitFor(o, "all brokers", live(5))

		// A broker dies, and only the observer knows.
		inc := p.inc
		p.kill(false)
		began := time.Now()
		o.server.PeerDead(5, metadata.NewID()) // evidence about another process
		o.server.PeerDead(5, inc)
		w.waitFor(o, "the fencing of 5", func(im *metadata.Image) bool {
			b, _ := im.Broker(5)
			return b.Fenced
		})
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("fenced only after %v", d)
		}

		// The controller goes; the observer's next request finds the new one.
		lead := w.controller()
		lead.kill(true)
		began = time.Now()
		w.create(o, "t")
		if d := time.Since(began); d > time.Second {
			t.Errorf("a request of an observer took %v over a failover", d)
		}
		w.waitFor(o, "the topic", func(im *metadata.Image) bool { _, ok := im.TopicByName("", "t"); return ok })

		// Cut off and back, it catches up.
		w.isolate(4, true)
		time.Sleep(30 * time.Second)
		n := w.controller()
		w.create(n, "u")
		w.isolate(4, false)
		w.waitFor(o, "the other topic, and itself live", func(im *metadata.Image) bool {
			b, _ := im.Broker(4)
			_, ok := im.TopicByName("", "u")
			return ok && b.Live()
		})
		if st := o.server.Status(); st.Voter || st.Controller || st.Leader != n.id {
			t.Errorf("%+v, controller is %d", st, n.id)
		}
		w.sameState()
	})
}

// Close wakes whoever waits, whether there is a quorum or not.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, nil)
		s := w.start(1).server
		errs := make(chan error, 4)
		go func() {
			_, err := s.CreateTopic(t.Context(), metadata.TopicSpec{Name: "t", Partitions: 1})
			errs <- err
		}()
		go func() {
			_, err := s.WaitFor(t.Context(), live(3))
			errs <- err
		}()
		go func() {
			errs <- s.Watch(t.Context(), func(*metadata.Image, metadata.Delta) error { return nil })
		}()
		synctest.Wait()
		w.stop()
		for range 3 {
			if err := <-errs; err == nil || err.Error() != metadata.ErrClosed.Error() {
				t.Errorf("got %v, want %v", err, metadata.ErrClosed)
			}
		}
		if _, err := s.CreateTopic(t.Context(), metadata.TopicSpec{Name: "t", Partitions: 1}); err != metadata.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
		select {
		case <-s.Done():
		default:
			t.Error("Done is open after Close")
		}
		if s.Err() != nil {
			t.Errorf("Err after Close: %v", s.Err())
		}
	})
}
