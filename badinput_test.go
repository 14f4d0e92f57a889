package cordwood_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestBadInput(t *testing.T) {
	t.Run("directory-in-use", func(t *testing.T) {
		dir := t.TempDir()
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if _, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)}); !errors.Is(err, cordwood.ErrDirectoryInUse) {
			t.Errorf("second open gave %v, want ErrDirectoryInUse", err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		n, err = cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)})
		if err != nil {
			t.Fatalf("open after close: %v", err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})

	t.Run("directory-of-newer-version", func(t *testing.T) {
		dir := t.TempDir()
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)})
		if err != nil {
			t.Fatal(err)
		}
		n.Close()
		name := filepath.Join(dir, "node")
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b[5] = 99 // the version, which stands before what the checksum can be trusted for
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		var version *cordwood.VersionError
		if _, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)}); !errors.As(err, &version) || version.Found != 99 {
			t.Errorf("open gave %v, want a VersionError of version 99", err)
		}
		if after, _ := os.ReadFile(name); !bytes.Equal(after, b) {
			t.Error("the file was changed")
		}
	})

	t.Run("directory-of-another-node", func(t *testing.T) {
		dir := t.TempDir()
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: dir, Listener: listen(t)})
		if err != nil {
			t.Fatal(err)
		}
		n.Close()
		if _, err := cordwood.Open(t.Context(), cordwood.Options{ID: 2, Dir: dir, Listener: listen(t)}); err == nil {
			t.Error("a directory of node 1 was opened as node 2")
		}
	})

	t.Run("options", func(t *testing.T) {
		_, err := cordwood.Open(t.Context(), cordwood.Options{Session: time.Millisecond, Tick: time.Second})
		for _, want := range []string{"Dir", "ID", "Listener", "Session"} {
			if err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
				t.Errorf("error %v does not name %s", err, want)
			}
		}
	})

	t.Run("not-initialized", func(t *testing.T) {
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: t.TempDir(), Listener: listen(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if _, err := n.Tenant("").Topic("t").AppendRecords(t.Context(), 0, record.Record{}); !errors.Is(err, cordwood.ErrNotInitialized) {
			t.Errorf("append gave %v, want ErrNotInitialized", err)
		}
		if err := n.Init(t.Context(), cordwood.NewID(), []cordwood.Voter{{ID: 2, Addr: "x"}}); err == nil {
			t.Error("Init without this node among the voters succeeded")
		}
		if err := n.Init(t.Context(), cordwood.NewID(), make([]cordwood.Voter, 2)); err == nil {
			t.Error("Init with two voters succeeded")
		}
	})

	t.Run("init-twice", func(t *testing.T) {
		l := listen(t)
		n, err := cordwood.Open(t.Context(), cordwood.Options{ID: 1, Dir: t.TempDir(), Listener: l})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		id, voters := cordwood.NewID(), []cordwood.Voter{{ID: 1, Addr: l.Addr().String()}}
		for range 2 {
			if err := n.Init(t.Context(), id, voters); err != nil {
				t.Fatalf("init: %v", err)
			}
		}
		if err := n.Init(t.Context(), cordwood.NewID(), voters); err == nil {
			t.Error("Init with another cluster id succeeded")
		}
	})

	c := cordwoodtest.Start(t, cordwoodtest.Options{})
	c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 2 << 10})
	topic := c.Host().Tenant("").Topic("t")

	t.Run("unknown-topic", func(t *testing.T) {
		if _, err := c.Node(1).Tenant("").Topic("none").AppendRecords(t.Context(), 0, record.Record{}); !errors.Is(err, cordwood.ErrUnknownTopic) {
			t.Errorf("append gave %v, want ErrUnknownTopic", err)
		}
		if _, err := topic.AppendRecords(t.Context(), 1, record.Record{}); !errors.Is(err, cordwood.ErrUnknownPartition) {
			t.Errorf("append to partition 1 of 1 gave %v, want ErrUnknownPartition", err)
		}
	})

	t.Run("bad-crc-batch", func(t *testing.T) {
		b := batchOf(t, 0, 3)
		b.Bytes()[len(b.Bytes())-1] ^= 1
		if _, err := topic.Append(t.Context(), 0, b); !errors.Is(err, cordwood.ErrInvalidBatch) {
			t.Errorf("append gave %v, want ErrInvalidBatch", err)
		}
		r, err := c.Node(c.Leader("t", 0)).Replica("t", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Append(t.Context(), b, 0); !errors.Is(err, cordwood.ErrInvalidBatch) {
			t.Errorf("append at the leader gave %v, want ErrInvalidBatch", err)
		}
	})

	t.Run("line-too-long", func(t *testing.T) {
		big := record.Record{Value: make([]byte, cordwood.DefaultMaxRecordBytes+100<<10)}
		if _, err := topic.AppendRecords(t.Context(), 0, big); !errors.Is(err, cordwood.ErrTooLarge) {
			t.Errorf("append gave %v, want ErrTooLarge", err)
		}
		fits := record.Record{Value: make([]byte, cordwood.DefaultMaxRecordBytes)}
		if _, err := topic.AppendRecords(t.Context(), 0, fits); err != nil {
			t.Errorf("append of the largest record gave %v", err)
		}
	})

	t.Run("store-down", func(t *testing.T) {
		c := cordwoodtest.Start(t, cordwoodtest.Options{})
		c.Store().SetDown(true)
		c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 2 << 10})
		topic := c.Host().Tenant("").Topic("t")
		appendRange(t, topic, 0, 500, 10)
		c.Roll("t", 0)
		checkRecords(t, topic, 0, 500)
		leader := c.Node(c.Leader("t", 0))
		deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for s := leader.Stats(); s.BacklogBytes == 0 || s.BacklogRanges == 0; s = leader.Stats() {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-deadline.Done():
				t.Fatalf("the backlog does not show: %+v", s)
			}
		}
		c.Store().SetDown(false)
		c.WaitTiered("t", 0, c.Offsets("t", 0).HighWatermark)
		checkRecords(t, topic, 0, 500)
	})

	t.Run("disk-full", func(t *testing.T) {
		// The reserve keeps the metadata going while the data partitions wait.
		const reserve = 8 << 20
		c := cordwoodtest.Start(t, cordwoodtest.Options{NoStore: true, Configure: func(_ int, o *cordwood.Options) {
			o.ReserveBytes = reserve
		}})
		c.CreateTopic("t", cordwood.TopicConfig{SegmentBytes: 64 << 10})
		topic := c.Host().Tenant("").Topic("t")
		appendRange(t, topic, 0, 100, 10)
		for i := 1; i <= 3; i++ {
			c.Disk(i).SetCapacity(c.Disk(i).UsedBytes() + reserve + 256<<10)
		}
		p := topic.Producer(0)
		defer p.Close()
		acked, pending := 100, []*cordwood.Pending(nil)
		full := false
		for from := 100; !full; from += 100 {
			w, err := p.Send(t.Context(), batchOf(t, from, from+100))
			if err != nil {
				t.Fatal(err)
			}
			pending = append(pending, w)
			for {
				short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				_, err := w.Wait(short)
				cancel()
				if err == nil {
					acked += 100
					break
				}
				if errors.Is(p.Err(), log.ErrDiskFull) {
					full = true
					break
				}
				if from > 100_000 {
					t.Fatal("the disk does not fill")
				}
			}
		}
		checkRecords(t, topic, 0, acked) // reads go on
		for i := 1; i <= 3; i++ {
			c.Disk(i).SetCapacity(-1)
		}
		if _, err := pending[len(pending)-1].Wait(t.Context()); err != nil {
			t.Fatalf("the append that waited for space: %v", err)
		}
		checkRecords(t, topic, 0, acked+100)
	})
}
