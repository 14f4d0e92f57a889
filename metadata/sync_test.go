package metadata_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// After Sync a server knows what any server was told to be done before, voter or
// observer; one that can't ask does not return.
func TestSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := cluster(t, 3, nil)
		defer w.stop()
		o := w.start(4)
		for round := range 20 {
			name := fmt.Sprint("t", round)
			w.create(w.controller(), name)
			asker := o
			if round%2 == 0 {
				asker = w.nodes[3]
			}
			if err := asker.server.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, ok := asker.server.Image().TopicByName("", name); !ok {
				t.Fatalf("server %d does not know %s after Sync", asker.id, name)
			}
		}
		// A controller that is cut off can't prove that it is one.
		old := w.controller()
		w.isolate(old.id, true)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := old.server.Sync(ctx); err == nil {
			t.Error("Sync on a controller that is cut off returned nil")
		}
		w.isolate(old.id, false)
		if err := old.server.Sync(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
