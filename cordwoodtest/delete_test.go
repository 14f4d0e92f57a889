package cordwoodtest_test

import (
	"context"
	"errors"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
)

// until waits in virtual time.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1200 {
		if ok() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("%s: not after two minutes", what)
}

// A topic is deleted while the store and one replica are down, and made anew under its
// name: the new one sees nothing of the old, and files and objects of the old go, those
// of the replica when it is back, the objects when the store is.
func TestDeleteTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		c := cordwoodtest.Start(t, cordwoodtest.Options{Store: mem, Configure: func(_ int, o *cordwood.Options) {
			o.BackupWindow, o.ReaderGrace = -1, -1
		}})
		c.CreateTopic("t", cordwood.TopicConfig{})
		host := c.Host()
		topic := host.Tenant("").Topic("t")
		producer := topic.Producer(0)
		send := func(ctx context.Context) error {
			batch, err := cordwood.NewBatch(cordwood.Record{Value: []byte("0")})
			if err != nil {
				t.Fatal(err)
			}
			pending, err := producer.Send(ctx, batch)
			if err == nil {
				_, err = pending.Wait(ctx)
			}
			return err
		}
		if err := send(t.Context()); err != nil {
			t.Fatal(err)
		}
		place(t, topic, 1, 10)
		c.Roll("t", 0)
		c.WaitTiered("t", 0, 10)

		var old string // topic id
		objects := func() (n int) {
			for info, err := range mem.List(t.Context(), "", "") {
				if err != nil {
					t.Fatal(err)
				}
				if k, ok := tier.ParseKey("", info.Key); ok && (old == "" || k.Partition.Topic.String() == old) {
					old = k.Partition.Topic.String()
					n++
				}
			}
			return n
		}
		if objects() == 0 {
			t.Fatal("nothing is stored")
		}
		files := func(i int) (n int) {
			names, err := c.Disk(i).List(path.Join("node", "partitions"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if strings.HasPrefix(name, old) {
					n++
				}
			}
			return n
		}
		away := c.Leader("t", 0)%c.Nodes() + 1
		c.Kill(away)
		c.Store().SetDown(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := host.Tenant("").DeleteTopic(ctx, "t"); err != nil {
			t.Fatal(err)
		}
		if _, err := topic.AppendRecords(ctx, 0, cordwood.Record{Value: []byte("x")}); !errors.Is(err, cordwood.ErrTopicDeleted) {
			t.Errorf("append to a deleted topic: %v", err)
		}
		err := send(ctx)
		if !errors.Is(err, cordwood.ErrTopicDeleted) || !errors.Is(err, cordwood.ErrUnknownTopic) {
			t.Errorf("producer of a deleted topic: %v", err)
		}
		_ = producer.Close()
		if err := host.Tenant("").DeleteTopic(ctx, "t"); !errors.Is(err, cordwood.ErrUnknownTopic) {
			t.Errorf("second deletion: %v", err)
		}

		c.CreateTopic("t", cordwood.TopicConfig{Replication: 2})
		place(t, topic, 0, 5)
		check(t, topic, 5)
		for i := 1; i <= c.Nodes(); i++ {
			if i != away {
				until(t, "the files are removed", func() bool { return files(i) == 0 })
			}
		}
		if files(away) == 0 {
			t.Error("a node that is down has no files of the topic")
		}
		c.Restart(away)
		until(t, "the files are removed after a restart", func() bool { return files(away) == 0 })
		if objects() == 0 {
			t.Error("objects went while the store was down")
		}
		c.Store().SetDown(false)
		until(t, "the objects are removed", func() bool { return objects() == 0 })
		check(t, topic, 5)
	})
}
