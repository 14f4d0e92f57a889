package transport

import (
	"context"
	"net"
	"time"
)

// Network is a network in memory for tests: listeners, connections with bounded
// buffers, and faults on demand. Endpoints are named by strings; a node's name is
// the address at which it listens. All methods are safe for concurrent use. It
// has no goroutine of its own and works in a testing/synctest bubble.
type Network struct {
}

// NewNetwork returns a network without faults.
func NewNetwork() *Network { return &Network{} }

// Listen returns a listener at addr. A second one at the same address fails with
// syscall.EADDRINUSE until the first is closed.
func (n *Network) Listen(addr string) (net.Listener, error) { return nil, ErrClosed }

// Dialer returns the Dial function of the endpoint from, for [Options].
func (n *Network) Dialer(from string) func(ctx context.Context, addr string) (net.Conn, error) {
	return nil
}

// Partition lets nothing pass between a and b, in either direction, until Heal.
// Like on a real network, connections stay open, what is written waits, and
// dialling hangs.
func (n *Network) Partition(a, b string) {}

// Isolate lets nothing pass between name and anybody else until Heal.
func (n *Network) Isolate(name string) {}

// Block lets nothing pass from one endpoint to another until Heal; the other
// direction works.
func (n *Network) Block(from, to string) {}

// Heal ends all partitions and blocks. What waited is delivered.
func (n *Network) Heal() {}

// Latency delays whatever is written from now on by d, one way. Zero is none.
func (n *Network) Latency(d time.Duration) {}

// Reset breaks all connections of name; both ends get syscall.ECONNRESET. Its
// listener stays.
func (n *Network) Reset(name string) {}

// Crash does what the death of name's process does: its listener is closed and
// its connections are reset.
func (n *Network) Crash(name string) {}
