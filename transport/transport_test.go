package transport_test

import (
	"context"
	"testing"

	"github.com/cordwood-io/cordwood/transport"
)

func TestSmoke(t *testing.T) {
	n := transport.NewNetwork()
	mk := func(node int32, addr string) *transport.Transport {
		l, err := n.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := transport.New(transport.Options{
			Self:     transport.Peer{Node: node, Addr: addr, Incarnation: 1},
			Listener: l, Dial: n.Dialer(addr),
			Resolve: func(i int32) (string, bool) { return string(rune('a' + i)), true },
			Handle: func(ctx context.Context, r *transport.Request) (*transport.Reply, error) {
				return &transport.Reply{Body: r.Body}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	a, b := mk(0, "a"), mk(1, "b")
	r, err := a.Call(t.Context(), 1, transport.Live, 7, []byte("hello"))
	if err != nil || string(r.Body) != "hello" {
		t.Fatal(r, err)
	}
	b.Close()
	a.Close()
}
