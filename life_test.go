package cordwood_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// A leader that is starting again at its address answers before it has opened what
// it leads. Clients whose metadata still names it wait for it, and get no error.
func TestStartingLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{Nodes: 1})
		c.CreateTopic("t", cordwood.TopicConfig{})
		topic := c.Host().Tenant("").Topic("t")
		appendRange(t, topic, 0, 10, 1)
		p := topic.Producer(0)
		defer p.Close()
		c.Kill(1)
		release := c.Disk(1).Stall(func(op logtest.Op) bool { return strings.Contains(op.Path, "/metadata") })
		time.AfterFunc(5*time.Second, release)
		var calls sync.WaitGroup
		calls.Go(func() { c.Restart(1) })
		w, err := p.Send(t.Context(), batchOf(t, 10, 11))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		ask := func(what string, call func(context.Context) error) {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := call(ctx); err != nil {
					t.Errorf("%s while the leader starts: %v", what, err)
				}
			})
		}
		ask("producer", func(ctx context.Context) error { _, err := w.Wait(ctx); return err })
		ask("append", func(ctx context.Context) error {
			_, err := w.Wait(ctx)
			if err == nil {
				_, err = topic.Append(ctx, 0, batchOf(t, 11, 12))
			}
			return err
		})
		ask("read", func(ctx context.Context) error { _, err := topic.Read(ctx, 0, 0, 0, 0); return err })
		ask("offsets", func(ctx context.Context) error { _, err := topic.Offsets(ctx, 0); return err })
		calls.Wait()
		checkRecords(t, topic, 0, 12)
	})
}

// Calls under way when their node closes end with ErrClosed, whatever they were at.
func TestCallsDuringClose(t *testing.T) {
	for i := range 3 {
		synctest.Test(t, func(t *testing.T) {
			c := cordwoodtest.Start(t, cordwoodtest.Options{Nodes: 1, NoStore: true})
			c.CreateTopic("t", cordwood.TopicConfig{})
			n := c.Node(1)
			topic := n.Tenant("").Topic("t")
			var calls sync.WaitGroup
			for range 3 {
				loop := func(what string, call func() error) {
					calls.Go(func() {
						for {
							err := call()
							var open *cordwood.IndeterminateError
							if errors.As(err, &open) {
								continue
							}
							if err != nil {
								if !errors.Is(err, cordwood.ErrClosed) {
									t.Errorf("%s during Close gave %v, want ErrClosed", what, err)
								}
								return
							}
							time.Sleep(20 * time.Microsecond)
						}
					})
				}
				loop("append", func() error { _, err := topic.AppendRecords(t.Context(), 0, cordwood.Record{}); return err })
				loop("read", func() error { _, err := topic.Read(t.Context(), 0, 0, 0, 0); return err })
				loop("offsets", func() error { _, err := topic.Offsets(t.Context(), 0); return err })
			}
			c.Disk(1).OnOp(func(op logtest.Op) error {
				time.Sleep(time.Duration(i) * time.Microsecond)
				return nil
			})
			time.Sleep(time.Millisecond + time.Duration(i)*7*time.Microsecond)
			c.Close(1)
			calls.Wait()
		})
	}
}

// A broker that was silent comes back although nothing in the metadata changes any
// more but the controller, whose first entry is empty.
func TestUnfencedByNewController(t *testing.T) {
	const session = 300 * time.Millisecond
	for k := range 3 {
		synctest.Test(t, func(t *testing.T) {
			c := cordwoodtest.Start(t, cordwoodtest.Options{NoStore: true, Session: session})
			controller := int(c.Node(1).Status().Controller)
			silent := controller%3 + 1
			c.Network().Isolate(fmt.Sprint("node", silent))
			time.Sleep(2 * session)
			c.Network().Isolate(fmt.Sprint("node", controller))
			time.Sleep(session + time.Duration(k)*session/5)
			c.Network().Heal()
			time.Sleep(100 * session)
			for i := 1; i <= 3; i++ {
				if s := c.Node(i).Status(); s.Fenced {
					t.Errorf("%d: node %d is still fenced: %+v", k, i, s)
				}
			}
		})
	}
}

// A batch that the topic refuses is refused by Send, and those behind it in the
// same producer are not.
func TestProducerRefusesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.CreateTopic("t", cordwood.TopicConfig{MaxBatchBytes: 4 << 10})
		topic := c.Host().Tenant("").Topic("t")
		p := topic.Producer(0)
		defer p.Close()
		var pending []*cordwood.Pending
		for i := range 20 {
			if i == 10 {
				big, err := cordwood.NewBatch(cordwood.Record{Value: make([]byte, 8<<10)})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := p.Send(t.Context(), big); !errors.Is(err, cordwood.ErrTooLarge) {
					t.Fatalf("a batch that is too large gave %v", err)
				}
			}
			w, err := p.Send(t.Context(), batchOf(t, i, i+1))
			if err != nil {
				t.Fatal(err)
			}
			pending = append(pending, w)
		}
		for i, w := range pending {
			if _, err := w.Wait(t.Context()); err != nil {
				t.Errorf("batch %d: %v", i, err)
			}
		}
		checkRecords(t, topic, 0, 20)
	})
}
