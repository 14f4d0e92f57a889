package transport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cordwood-io/cordwood/transport"
)

// world is a network that the conformance tests run on. Nodes have numbers; the
// world knows where they listen.
type world struct {
	t      testing.TB
	memory *transport.Network // nil: TCP on the loopback interface

	mu    sync.Mutex
	addrs map[int32]string
}

// worlds runs f on both networks.
func worlds(t *testing.T, f func(t *testing.T, w *world)) {
	t.Run("network=tcp", func(t *testing.T) { f(t, newWorld(t, nil)) })
	t.Run("network=memory", func(t *testing.T) { f(t, newWorld(t, transport.NewNetwork())) })
}

func newWorld(t testing.TB, n *transport.Network) *world {
	return &world{t: t, memory: n, addrs: make(map[int32]string)}
}

func (w *world) name(node int32) string { return string(rune('a' + node)) }

func (w *world) addr(node int32) (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.addrs[node]
	return a, ok
}

func (w *world) setAddr(node int32, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addrs[node] = addr
}

// listen opens a listener for a node and makes its address known.
func (w *world) listen(node int32) net.Listener {
	w.t.Helper()
	var l net.Listener
	var err error
	if w.memory != nil {
		l, err = w.memory.Listen(w.name(node))
	} else {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.setAddr(node, l.Addr().String())
	return l
}

func (w *world) dialer(node int32) func(context.Context, string) (net.Conn, error) {
	if w.memory != nil {
		return w.memory.Dialer(w.name(node))
	}
	return nil
}

// options are those of a listening node.
func (w *world) options(node int32) transport.Options {
	l := w.listen(node)
	return transport.Options{
		Self:     transport.Peer{Node: node, Addr: l.Addr().String(), Incarnation: nextIncarnation.Add(1)},
		Listener: l,
		Dial:     w.dialer(node),
		Resolve:  w.addr,
	}
}

var nextIncarnation atomic.Uint64

// start starts a transport, which the end of the test closes.
func (w *world) start(o transport.Options) *transport.Transport {
	w.t.Helper()
	tr, err := transport.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { tr.Close() })
	return tr
}

// node starts a node with changes to its options.
func (w *world) node(node int32, change ...func(*transport.Options)) *transport.Transport {
	w.t.Helper()
	o := w.options(node)
	for _, f := range change {
		f(&o)
	}
	return w.start(o)
}

// handle is the option that sets the handler.
func handle(f func(context.Context, *transport.Request) (*transport.Reply, error)) func(*transport.Options) {
	return func(o *transport.Options) { o.Handle = f }
}

// echo answers with the body of the request.
func echo(_ context.Context, r *transport.Request) (*transport.Reply, error) {
	return &transport.Reply{Body: r.Body}, nil
}

// payload is a Payload over bytes that counts what the transport does with it.
type payload struct {
	data     []byte
	length   int   // what Len says
	err      error // of WriteTo, after data
	writes   atomic.Int32
	releases atomic.Int32
	released chan struct{}
}

func newPayload(data []byte) *payload {
	return &payload{data: data, length: len(data), released: make(chan struct{})}
}

func (p *payload) Len() int { return p.length }

func (p *payload) WriteTo(w io.Writer) (int64, error) {
	p.writes.Add(1)
	n, err := io.Copy(w, bytes.NewReader(p.data))
	if err == nil {
		err = p.err
	}
	return n, err
}

func (p *payload) Release() {
	if p.releases.Add(1) == 1 {
		close(p.released)
	}
}

// pattern returns n bytes that depend on seed.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	const period = 65521 // prime, so that no power of two long piece repeats
	for i := range min(n, period) {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	for i := period; i < n; i += period {
		copy(b[i:], b[:period])
	}
	return b
}

// wantIs fails the test unless err is all of targets.
func wantIs(t testing.TB, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Fatalf("error %v, want %v", err, target)
		}
	}
}

// id returns an identifier that is not zero.
func id(b byte) transport.ID { return transport.ID{15: b} }
