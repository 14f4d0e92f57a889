package transport

import (
	"context"
	"io"
)

// Request is one received call.
type Request struct {
	// From is the peer as it introduced itself, authorized.
	From Peer
	// Class is the connection on which the call came.
	Class Class
	// Kind is the host's kind of message.
	Kind uint16
	// Body is the message. It is the handler's, who may keep and change it.
	Body []byte
}

// Reply answers a call.
type Reply struct {
	// Body is the message. It becomes the transport's: the handler must not
	// change it afterwards.
	Body []byte
	// Payload, if not nil, is sent after Body straight from where it lies.
	Payload Payload
}

// Payload is bulk data that a reply carries. It is not under the frame's
// checksum: it must carry its own.
//
// The transport calls Len, then WriteTo at most once, then Release exactly once,
// whatever happens.
type Payload interface {
	// Len returns the number of bytes that WriteTo writes.
	Len() int
	// WriteTo writes exactly Len bytes to the connection, which may be a
	// *net.TCPConn, so that sendfile can serve. Fewer bytes with an error fail
	// the one call; more end the connection.
	WriteTo(w io.Writer) (int64, error)
	// Release gives the data back.
	Release()
}

// Response is the answer to a call. Its slices are the caller's.
type Response struct {
	// From is the peer that answered.
	From Peer
	// Body is the reply's message.
	Body []byte
	// Payload is the reply's bulk data, nil if there was none.
	Payload []byte
}

// Down reports that an established connection ended without being asked to,
// after the transport has re-dialled that peer once, at once. Connections of one
// peer that end together are reported together.
type Down struct {
	// Peer is the peer as it introduced itself on the connection that ended.
	Peer Peer
	// Refused says that nobody listens at the peer's address any more: together
	// with the broken connection this is evidence that the process is dead.
	Refused bool
	// Replaced says that the re-dial reached the same node in another
	// incarnation: the process in Peer is dead too.
	Replaced bool
	// Err is why the connection ended.
	Err error
}

// Transport connects one node with its peers. All methods are safe for
// concurrent use.
type Transport struct {
}

// New starts a transport: it accepts connections from now on. Errors are mistakes
// in the options only; the Listener is not touched then.
func New(o Options) (*Transport, error) { return nil, ErrClosed }

// Call sends a request to a node over the connection of class c and waits for
// the reply. A missing connection is dialled first; during the pause after a
// failed dial Call fails at once.
//
// body becomes the transport's: it must not be changed afterwards, not even
// after Call has returned. The errors are [ErrUnreachable] (not sent),
// [ErrUnknownOutcome] (sent or perhaps sent, no reply), *[RemoteError] (the
// handler's), [ErrOverloaded] (the peer has too many calls), [ErrTooLarge]; with
// ErrUnreachable or ErrUnknownOutcome errors.Is also holds for the cause, such
// as ctx.Err(), [ErrClosed] or a *[HandshakeError]. When ctx ends, the peer's
// handler is told by its own ctx.
func (t *Transport) Call(ctx context.Context, node int32, c Class, kind uint16, body []byte) (*Response, error) {
	return nil, ErrClosed
}

// CallAddr is [Transport.Call] for a peer whose number is not known yet: whoever
// answers at addr is meant. Its connection is closed after a minute without use.
func (t *Transport) CallAddr(ctx context.Context, addr string, c Class, kind uint16, body []byte) (*Response, error) {
	return nil, ErrClosed
}

// Send queues a one-way message and never blocks. Messages of one node and class
// arrive in order, each at most once; any may be lost. A missing connection is
// dialled in the background with the message waiting. body becomes the
// transport's. Errors mean that the message was dropped: [ErrUnreachable]
// (during the pause after a failed dial), [ErrOverloaded], [ErrTooLarge],
// [ErrClosed].
func (t *Transport) Send(node int32, c Class, kind uint16, body []byte) error { return ErrClosed }

// SetSelf replaces what this node says about itself, such as the cluster that it
// has joined. Later handshakes use it. Connections made before finish their
// calls and are then replaced; those of another cluster are ended at once.
func (t *Transport) SetSelf(p Peer) error { return ErrClosed }

// Close refuses new work, closes the listener and all connections, cancels the
// handlers, fails waiting calls, and waits until everything of the transport has
// ended. It is idempotent and safe from several goroutines, but not from Handle,
// Receive or the hooks. It returns the listener's close error.
func (t *Transport) Close() error { return nil }
