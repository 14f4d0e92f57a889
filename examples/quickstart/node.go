package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/cordwood-io/cordwood"
)

// A node process reads requests, one JSON object a line, from standard input and
// answers each with one on standard output. It ends when standard input does, and
// so with the program that started it.

// nodeCommand is the argument that makes the program a node.
const nodeCommand = "node"

// nodeMemory is a soft bound on a process's heap: three nodes and a host share the
// machine with whoever tries this.
const nodeMemory = 192 << 20

type nodeRequest struct {
	Op      string           `json:"op"` // open, init, join, ready, roll, status
	ID      int32            `json:"id,omitempty"`
	Dir     string           `json:"dir,omitempty"`
	Store   string           `json:"store,omitempty"`
	S3      string           `json:"s3,omitempty"`
	Listen  string           `json:"listen,omitempty"`
	Cluster string           `json:"cluster,omitempty"`
	Voters  []cordwood.Voter `json:"voters,omitempty"`
	Seeds   []string         `json:"seeds,omitempty"`
	Topic   string           `json:"topic,omitempty"`
	Seconds float64          `json:"seconds,omitempty"` // how long to try
}

type nodeAnswer struct {
	Error string `json:"error,omitempty"`
	Kind  string `json:"kind,omitempty"` // in-use, newer-version: what the parent may tell apart
	Addr  string `json:"addr,omitempty"`

	Local      int64 `json:"local"`       // bytes of the topic's segments on this disk
	LocalStart int64 `json:"local_start"` // first offset on this disk
	Sealed     int64 `json:"sealed"`      // end of what is sealed on this disk
	Ranges     int64 `json:"ranges"`      // finished ranges, by the tier's state
	TierEnd    int64 `json:"tier_end"`
	Backlog    int64 `json:"backlog"` // bytes not in the store yet
	InSync     bool  `json:"in_sync"`
	Leads      bool  `json:"leads"`
}

func nodeMain(in io.Reader, out io.Writer) int {
	// Ctrl-C goes to the whole process group; the parent decides when nodes end.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	debug.SetMemoryLimit(nodeMemory)
	var n *cordwood.Node
	// The program that started this one may die at any moment, also while a request
	// is waited for: the end of standard input cuts that short.
	alive, died := context.WithCancel(context.Background())
	requests := make(chan []byte)
	go func() {
		defer close(requests)
		defer died()
		for lines := bufio.NewScanner(in); lines.Scan(); {
			requests <- bytes.Clone(lines.Bytes())
		}
	}()
	answers := json.NewEncoder(out)
	status := 0
	for line := range requests {
		var q nodeRequest
		var a nodeAnswer
		err := json.Unmarshal(line, &q)
		if err == nil {
			n, a, err = nodeStep(alive, n, q)
		}
		if err != nil {
			a.Error = err.Error()
			switch {
			case errors.Is(err, cordwood.ErrDirectoryInUse):
				a.Kind = "in-use"
			case errors.As(err, new(*cordwood.VersionError)):
				a.Kind = "newer-version"
			}
		}
		if answers.Encode(a) != nil {
			status = 1
			break
		}
	}
	if n != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := n.Shutdown(ctx); err != nil && ctx.Err() == nil {
			status = 1
		}
	}
	return status
}

func nodeStep(ctx context.Context, n *cordwood.Node, q nodeRequest) (*cordwood.Node, nodeAnswer, error) {
	var a nodeAnswer
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(q.Seconds, 1)*float64(time.Second)))
	defer cancel()
	if n == nil && q.Op != "open" {
		return nil, a, errors.New("the node is not open")
	}
	switch q.Op {
	case "open":
		l, err := listen(q.Listen)
		if err != nil {
			return nil, a, err
		}
		n, err = cordwood.Open(ctx, cordwood.Options{
			ID: q.ID, Dir: filepath.ToSlash(q.Dir), Listener: l, Zone: fmt.Sprint("zone", q.ID),
			Store: &lateStore{dir: q.Store, url: q.S3}, StorePrefix: storePrefix, CacheBytes: 32 << 20,
		})
		if err != nil {
			return nil, a, err
		}
		a.Addr = l.Addr().String()
		return n, a, nil
	case "init":
		id, err := cordwood.ParseID(q.Cluster)
		if err == nil {
			err = n.Init(ctx, id, q.Voters)
		}
		return n, a, err
	case "join":
		return n, a, n.Join(ctx, q.Seeds...)
	case "ready":
		return n, a, n.Ready(ctx)
	case "roll":
		r, err := n.Replica(q.Topic, 0)
		if err == nil {
			err = r.Roll(ctx)
		}
		return n, a, err
	case "status":
		if err := n.Err(); err != nil {
			return n, a, err
		}
		r, err := n.Replica(q.Topic, 0)
		if errors.Is(err, cordwood.ErrUnknownTopic) || errors.Is(err, cordwood.ErrUnknownPartition) {
			return n, a, nil // it has not heard of it yet
		}
		if err != nil {
			return n, a, err
		}
		s, err := r.Status()
		if err != nil {
			return n, a, err
		}
		a.Local, a.LocalStart, a.Sealed = s.LocalBytes, int64(s.LocalStart), int64(s.SealedEnd)
		a.Ranges, a.TierEnd, a.Backlog = int64(s.Tier.Ranges), int64(s.Tier.TierEnd), s.BacklogBytes
		a.Leads = int32(s.Leader.ID) == q.ID
		for _, m := range s.ISR {
			a.InSync = a.InSync || int32(m.ID) == q.ID
		}
		return n, a, nil
	}
	return n, a, fmt.Errorf("unknown request %q", q.Op)
}

// anyPort has a node choose where to listen.
const anyPort = "127.0.0.1:0"

// listen listens at an address. A port of its choice is below those that systems
// give to connections: it must be free again for a node that was killed.
func listen(addr string) (net.Listener, error) {
	if addr == anyPort {
		for range 100 {
			l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000)))
			if err == nil {
				return l, nil
			}
		}
	}
	return net.Listen("tcp", addr)
}
