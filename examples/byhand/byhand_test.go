package byhand_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/examples/byhand"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/transport"
)

// The copy is the library's wiring, to the byte.
func TestCopyIsCurrent(t *testing.T) {
	names, err := filepath.Glob("../../*.go")
	if err != nil || len(names) == 0 {
		t.Fatalf("the library is not beside this module: %v", err)
	}
	for _, name := range names {
		base := filepath.Base(name)
		if strings.HasSuffix(base, "_test.go") || base == "doc.go" {
			continue
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want = bytes.Replace(want, []byte("package cordwood\n"), []byte("package byhand\n"), 1)
		if got, err := os.ReadFile(base); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not the library's: run go generate (%v)", base, err)
		}
	}
}

// Three nodes of the copied wiring replicate, and go on without one of them.
func TestClusterByHand(t *testing.T) {
	network, store := transport.NewNetwork(), memstore.New()
	var voters []byhand.Voter
	var nodes []*byhand.Node
	for i := range 3 {
		name := fmt.Sprint("node", i+1)
		l, err := network.Listen(name)
		if err != nil {
			t.Fatal(err)
		}
		n, err := byhand.Open(t.Context(), byhand.Options{
			ID: int32(i + 1), Dir: "node", FS: logtest.NewFS(uint64(i)), Listener: l, Advertise: name,
			Dial: network.Dialer(name), Store: store, Tick: 10 * time.Millisecond, Session: 300 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		nodes, voters = append(nodes, n), append(voters, byhand.Voter{ID: int32(i + 1), Addr: name})
	}
	if err := nodes[0].Init(t.Context(), byhand.NewID(), voters); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes[1:] {
		if err := n.Join(t.Context(), "node1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		if err := n.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := nodes[1].Tenant("").CreateTopic(t.Context(), "t", byhand.TopicConfig{}); err != nil {
		t.Fatal(err)
	}
	topic := nodes[1].Tenant("").Topic("t")
	for i := range 20 {
		if i == 10 {
			nodes[0].Close()
			network.Crash("node1")
		}
		if _, err := topic.AppendRecords(t.Context(), 0, byhand.Record{Value: fmt.Append(nil, i)}); err != nil {
			t.Fatalf("append %d: %v", i, err)
		}
	}
	i := 0
	for r, err := range topic.Records(t.Context(), 0, 0) {
		if err != nil || string(r.Value) != fmt.Sprint(i) {
			t.Fatalf("record %d is %q, %v", i, r.Value, err)
		}
		i++
	}
	if i != 20 {
		t.Errorf("%d records read back, want 20", i)
	}
}
