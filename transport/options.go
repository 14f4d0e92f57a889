package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Class names one of the three connections that a node keeps to each peer. They
// are separate so that a large transfer on one never delays the others, and each
// has its own limits.
type Class uint8

// The classes. Their numbers are part of the handshake and must not change.
const (
	// Control carries consensus, sessions and administration.
	Control Class = 0
	// Live carries replication of the newest records and forwarded appends.
	Live Class = 1
	// CatchUp carries bulk reads of followers that are behind.
	CatchUp Class = 2

	classes = 3
)

// String returns "control", "live", "catch-up", or "class-N" for other values.
func (c Class) String() string {
	switch c {
	case Control:
		return "control"
	case Live:
		return "live"
	case CatchUp:
		return "catch-up"
	}
	return fmt.Sprintf("class-%d", uint8(c))
}

// ID is a 128-bit identifier, of a cluster or of a data directory. The zero ID
// means "not known yet".
type ID [16]byte

// IsZero reports whether id is the zero ID.
func (id ID) IsZero() bool { return id == ID{} }

// String returns the identifier as canonical UUID text.
func (id ID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// NoNode is the node number of a peer that has none, or whose number is not known.
const NoNode int32 = -1

// Peer says who stands at one end of a connection. Each end sends its own in the
// handshake.
type Peer struct {
	// Node is the node's number in its cluster, or [NoNode].
	Node int32
	// Cluster is the node's cluster; zero before the node belongs to one. Zero
	// matches every cluster.
	Cluster ID
	// Directory identifies the node's data directory; zero if it has none. Two
	// peers of the same node number with different directories are two nodes by
	// mistake.
	Directory ID
	// Incarnation is one life of the process: a new value after each start.
	Incarnation uint64
	// Format is the newest version of the host's messages and formats that the
	// node writes, OldestFormat the oldest that it reads. Two peers whose ranges
	// [OldestFormat, Format] do not meet refuse each other.
	Format, OldestFormat uint16
	// Addr is the address at which the node listens, at most [MaxAddrBytes] long;
	// empty if it does not listen.
	Addr string
}

// MaxAddrBytes bounds the length of [Peer].Addr.
const MaxAddrBytes = 255

// Defaults of [Options].
const (
	// DefaultMaxBodyBytes is the default of Options.MaxBodyBytes.
	DefaultMaxBodyBytes = 16 << 20
	// DefaultMaxPayloadBytes is the default of Options.MaxPayloadBytes.
	DefaultMaxPayloadBytes = 64 << 20
	// DefaultMaxInFlight is the default of Options.MaxInFlight.
	DefaultMaxInFlight = 1024
	// DefaultMaxInFlightBytes is the default of Options.MaxInFlightBytes.
	DefaultMaxInFlightBytes = 64 << 20
	// DefaultMaxQueueBytes is the default of Options.MaxQueueBytes.
	DefaultMaxQueueBytes = 32 << 20
	// DefaultMaxConns is the default of Options.MaxConns.
	DefaultMaxConns = 1024
	// DefaultHandshakeTimeout is the default of Options.HandshakeTimeout.
	DefaultHandshakeTimeout = 5 * time.Second
	// DefaultDialTimeout is the default of Options.DialTimeout.
	DefaultDialTimeout = 3 * time.Second
	// DefaultKeepAlive is the default of Options.KeepAlive.
	DefaultKeepAlive = time.Second
	// DefaultBackoffMin is the default of Options.BackoffMin.
	DefaultBackoffMin = 20 * time.Millisecond
	// DefaultBackoffMax is the default of Options.BackoffMax.
	DefaultBackoffMax = time.Second
)

// maxLimit bounds every size option, so that sums of lengths fit an int on
// 32-bit machines.
const maxLimit = 1 << 30

// Options configure a [Transport]. The zero value of every field but Self is
// safe; such a transport can answer nothing and knows no addresses.
type Options struct {
	// Self is what this node says about itself. See [Transport.SetSelf].
	Self Peer

	// Listener is where peers connect; nil means that this node only dials. It
	// becomes the transport's, which closes it. A TLS listener is welcome.
	Listener net.Listener
	// Dial opens a connection to addr; nil means TCP without TLS. It must end
	// when ctx ends. An error for which errors.Is(err, syscall.ECONNREFUSED)
	// holds means that nobody listens there.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Resolve returns the present address of a node. Nil knows none. It must not
	// block.
	Resolve func(node int32) (addr string, ok bool)

	// Authorize, if set, decides on both sides about a connection whose
	// handshake was read and fits, before any other frame is read or written.
	// conn serves to look at addresses and TLS state only. ctx ends with the
	// handshake timeout. An error refuses the peer.
	Authorize func(ctx context.Context, conn net.Conn, peer Peer) error
	// Directory, if set, returns the directory that is on record for a node; a
	// peer of that node with another one is refused. ok is false when none is on
	// record. It must not block.
	Directory func(node int32) (directory ID, ok bool)

	// Handle answers calls. It runs on a goroutine of its own per call, at most
	// MaxInFlight per connection, so that calls of one class or peer cannot
	// starve another. ctx ends when the caller gives up, its connection ends, or
	// the transport closes; Close waits for Handle to return. An error reaches
	// the caller as *[RemoteError] with its text. Nil refuses every call.
	Handle func(ctx context.Context, r *Request) (*Reply, error)
	// Receive takes one-way messages, in the order in which one connection's
	// Send calls were made. It runs on the goroutine that reads the connection
	// and must not block. body is the receiver's. Nil drops them.
	Receive func(from Peer, kind uint16, body []byte)
	// Down, if set, is told of established connections that ended without being
	// asked to. It must not block, nor call Close.
	Down func(Down)
	// Rejected, if set, is told of every peer that was refused in the handshake
	// or that refused us. It must not block, nor call Close.
	Rejected func(*HandshakeError)

	// MaxBodyBytes bounds a body in either direction, in [1, 1 GiB]. A call or
	// message above it fails with [ErrTooLarge] before it is sent; a received
	// frame above it ends its connection. Default [DefaultMaxBodyBytes].
	MaxBodyBytes int
	// MaxPayloadBytes bounds a reply's payload in the same way. Default
	// [DefaultMaxPayloadBytes].
	MaxPayloadBytes int
	// MaxInFlight bounds, per connection, the calls that wait for a reply on the
	// calling side and the handlers that run on the other. A call above it waits
	// for room; a received call above it is answered with [ErrOverloaded].
	// Default [DefaultMaxInFlight].
	MaxInFlight int
	// MaxInFlightBytes bounds, per connection, the bodies of received calls that
	// are not answered yet, in the same way; one call is always admitted.
	// Default [DefaultMaxInFlightBytes].
	MaxInFlightBytes int
	// MaxQueueBytes bounds, per connection, the calls and messages that wait to
	// be written. Call waits for room, Send returns [ErrOverloaded]. Default
	// [DefaultMaxQueueBytes].
	MaxQueueBytes int
	// MaxConns bounds the accepted connections. Above it the oldest of those
	// that have not finished their handshake is closed, or else the new one.
	// Default [DefaultMaxConns].
	MaxConns int

	// HandshakeTimeout bounds the handshake including Authorize. Default
	// [DefaultHandshakeTimeout].
	HandshakeTimeout time.Duration
	// DialTimeout bounds Dial. Default [DefaultDialTimeout].
	DialTimeout time.Duration
	// KeepAlive is how long a dialled connection may be silent before it is
	// probed by a ping. A connection on which nothing arrives for three times
	// KeepAlive after a ping left is ended. Negative sends no pings. Default
	// [DefaultKeepAlive].
	KeepAlive time.Duration
	// BackoffMin and BackoffMax bound the pause after a failed dial, during which
	// calls to that node fail at once. It doubles with each failure and is
	// jittered; it ends early when the node connects to us or its address
	// changes. Defaults [DefaultBackoffMin] and [DefaultBackoffMax].
	BackoffMin, BackoffMax time.Duration

	// Logger receives refused peers and broken connections; nil discards.
	Logger *slog.Logger
}

// withDefaults returns a checked copy of o with defaults filled in. It reports
// all mistakes at once.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	size := func(p *int, name string, def int) {
		if *p == 0 {
			*p = def
		}
		if *p < 0 || *p > maxLimit {
			errs = append(errs, fmt.Errorf("%s %d is not in [1, %d]", name, *p, maxLimit))
		}
	}
	size(&o.MaxBodyBytes, "MaxBodyBytes", DefaultMaxBodyBytes)
	size(&o.MaxPayloadBytes, "MaxPayloadBytes", DefaultMaxPayloadBytes)
	size(&o.MaxInFlight, "MaxInFlight", DefaultMaxInFlight)
	size(&o.MaxInFlightBytes, "MaxInFlightBytes", DefaultMaxInFlightBytes)
	size(&o.MaxQueueBytes, "MaxQueueBytes", DefaultMaxQueueBytes)
	size(&o.MaxConns, "MaxConns", DefaultMaxConns)
	span := func(p *time.Duration, name string, def time.Duration) {
		if *p == 0 {
			*p = def
		}
		if *p < 0 {
			errs = append(errs, fmt.Errorf("%s %v is negative", name, *p))
		}
	}
	span(&o.HandshakeTimeout, "HandshakeTimeout", DefaultHandshakeTimeout)
	span(&o.DialTimeout, "DialTimeout", DefaultDialTimeout)
	span(&o.BackoffMin, "BackoffMin", DefaultBackoffMin)
	span(&o.BackoffMax, "BackoffMax", DefaultBackoffMax)
	o.BackoffMax = max(o.BackoffMax, o.BackoffMin)
	if o.KeepAlive == 0 {
		o.KeepAlive = DefaultKeepAlive
	}
	o.KeepAlive = max(o.KeepAlive, -1)
	if err := o.Self.check(); err != nil {
		errs = append(errs, err)
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	if o.Resolve == nil {
		o.Resolve = func(int32) (string, bool) { return "", false }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(errs...); err != nil {
		return o, fmt.Errorf("transport: options: %w", err)
	}
	return o, nil
}

// check reports what in p cannot be sent.
func (p Peer) check() error {
	switch {
	case p.Node < NoNode:
		return fmt.Errorf("node %d is negative", p.Node)
	case len(p.Addr) > MaxAddrBytes:
		return fmt.Errorf("address of %d bytes is longer than %d", len(p.Addr), MaxAddrBytes)
	case p.OldestFormat > p.Format:
		return fmt.Errorf("oldest format %d is above format %d", p.OldestFormat, p.Format)
	}
	return nil
}
