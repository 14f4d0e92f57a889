package cordwood_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/tier/memstore"
)

// silentEnv makes the test program live a node's life instead of testing.
const silentEnv = "CORDWOOD_TEST_SILENT"

// A node says nothing on standard output or standard error over its whole life:
// the life of one on a real disk and network, in a process of its own, with what
// its libraries would say as well.
func TestSilence(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), silentEnv+"="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the node's life failed: %v\n%s", err, out)
	}
	if len(out) > 0 {
		t.Errorf("the node printed:\n%s", out)
	}
}

// silentMain is the life: founded, used, closed, opened again, refused, closed.
func silentMain() int {
	if err := silentLife(os.Getenv(silentEnv)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func silentLife(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	store := memstore.New()
	id := cordwood.NewID()
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := first.Addr().String()
	port, err := first.(*net.TCPListener).File() // keeps the port between the lives
	if err != nil {
		return err
	}
	defer port.Close()
	for life := range 2 {
		l := first
		if life > 0 {
			if l, err = net.FileListener(port); err != nil {
				return err
			}
		}
		n, err := cordwood.Open(ctx, cordwood.Options{ID: 1, Dir: dir, Listener: l, Store: store, SystemReplication: 1})
		if err != nil {
			return err
		}
		if err := n.Init(ctx, id, []cordwood.Voter{{ID: 1, Addr: addr}}); err != nil {
			return err
		}
		if err := n.Ready(ctx); err != nil {
			return err
		}
		tenant := n.Tenant("")
		if life == 0 {
			if err := tenant.CreateTopic(ctx, "t", cordwood.TopicConfig{SegmentBytes: 2 << 10}); err != nil {
				return err
			}
		}
		topic := tenant.Topic("t")
		for range 50 {
			b, err := cordwood.NewBatch(cordwood.Record{Value: make([]byte, 200)})
			if err != nil {
				return err
			}
			if _, err := topic.Append(ctx, 0, b); err != nil {
				return err
			}
		}
		read := 0
		for _, err := range topic.Records(ctx, 0, 0) {
			if err != nil {
				return err
			}
			read++
		}
		if read != 50*(life+1) {
			return fmt.Errorf("%d records read back in life %d", read, life)
		}
		if _, err := net.Dial("tcp", addr); err != nil { // a stranger that says nothing
			return err
		}
		if _, err := cordwood.Open(ctx, cordwood.Options{ID: 1, Dir: dir, NoReplicas: true}); err == nil {
			return fmt.Errorf("the directory was opened twice")
		}
		if err := n.Shutdown(ctx); err != nil {
			return err
		}
	}
	return nil
}
