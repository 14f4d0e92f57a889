package transport_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/cordwood-io/cordwood/transport"
)

func BenchmarkCall(b *testing.B) {
	for _, network := range []string{"tcp", "memory"} {
		for _, c := range []struct{ body, payload, parallel int }{
			{100, 0, 1}, {100, 0, 64}, {1 << 20, 0, 1}, {100, 1 << 20, 1},
		} {
			b.Run(fmt.Sprintf("network=%s/body=%d/payload=%d/parallel=%d", network, c.body, c.payload, c.parallel), func(b *testing.B) {
				w := newWorld(b, nil)
				if network == "memory" {
					w.memory = transport.NewNetwork()
				}
				data := make([]byte, c.payload)
				w.node(1, handle(func(_ context.Context, r *transport.Request) (*transport.Reply, error) {
					if c.payload == 0 {
						return &transport.Reply{}, nil
					}
					return &transport.Reply{Payload: static(data)}, nil
				}))
				a := w.node(0)
				body := make([]byte, c.body)
				b.SetBytes(int64(c.body + c.payload))
				b.ReportAllocs()
				if c.parallel > 1 {
					b.SetParallelism(c.parallel / 2)
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							if _, err := a.Call(b.Context(), 1, transport.Live, 0, body); err != nil {
								b.Error(err)
							}
						}
					})
					return
				}
				for b.Loop() {
					if _, err := a.Call(b.Context(), 1, transport.Live, 0, body); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		// The baseline: a byte there and back over the bare connection.
		b.Run("network="+network+"/baseline=ping-pong", func(b *testing.B) {
			var l net.Listener
			var dial func() (net.Conn, error)
			var err error
			if network == "tcp" {
				l, err = net.Listen("tcp", "127.0.0.1:0")
				dial = func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) }
			} else {
				n := transport.NewNetwork()
				l, err = n.Listen("b")
				dial = func() (net.Conn, error) { return n.Dialer("a")(b.Context(), "b") }
			}
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					io.Copy(c, c)
					c.Close()
				}
			}()
			c, err := dial()
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, 100)
			b.ReportAllocs()
			for b.Loop() {
				c.Write(buf)
				io.ReadFull(c, buf)
			}
		})
	}
}

// static is a payload that needs no release.
type static []byte

func (s static) Len() int { return len(s) }
func (s static) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(s)
	return int64(n), err
}
func (s static) Release() {}
