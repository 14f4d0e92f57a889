// Package transport carries calls and messages between the nodes of a cluster:
// frames over a listener and a dialer that the host supplies, or in memory. It
// knows no message; kinds and bodies are the host's.
//
//	t, err := transport.New(transport.Options{
//		Self:     transport.Peer{Node: 1, Directory: dir, Incarnation: rand.Uint64(), Addr: addr},
//		Listener: listener,
//		Resolve:  func(node int32) (string, bool) { … },
//		Handle:   func(ctx context.Context, r *transport.Request) (*transport.Reply, error) { … },
//		Receive:  func(from transport.Peer, kind uint16, body []byte) { … },
//		Down:     func(d transport.Down) { … },
//	})
//	…
//	resp, err := t.Call(ctx, 2, transport.Control, kind, body)
//
// # Connections
//
// A node keeps up to three connections to each peer, one per [Class], dialled
// when they are first needed and again, after a jittered pause, when they are
// lost. Its calls and messages go out on the connections that it dialled; the
// peer's come in on those that the peer dialled. Each connection has a queue
// bounded in bytes, one goroutine that writes and one that reads; what waits
// together is written together; replies go from their [Payload] to the socket.
//
// A connection begins with a handshake in which both sides say who they are
// ([Peer]) and give a verdict: protocol and format version, cluster, node and
// directory must fit, and [Options].Authorize must agree on both sides, before
// any other frame is sent. A refusal is a *[HandshakeError] on both sides.
//
// # What is promised
//
//   - A call is executed at most once, and its error says whether it may have
//     been: see [ErrUnreachable] and [ErrUnknownOutcome]. Nothing is repeated by
//     itself.
//   - Messages of one connection arrive in order, each at most once. That a
//     message was taken by Send promises nothing: it may be lost with its
//     connection, and a connection that replaces another ([Transport.SetSelf])
//     may overtake it.
//   - Headers and bodies are under a checksum, payloads are not.
//   - A silent peer is noticed in bounded time by pings, a peer that stops
//     half-way through a frame by a deadline of 30 s plus a second for each
//     64 KiB.
//   - The end of an established connection is looked into: the peer is
//     re-dialled at once, and [Down] says whether anybody listens.
//   - What a peer can make this node hold is bounded: a body or payload is
//     allocated only after its header was checked, and calls, queued answers,
//     connections and handshakes have limits.
//
// It is not promised that a frame of a peer is confidential or from who it seems
// to be: hand over TLS listeners and dialers, and check in Authorize.
//
// # Concurrency
//
// All methods are safe for concurrent use. Handlers run on goroutines of their
// own; Receive runs on the goroutine that reads the connection. Close waits for
// every goroutine.
//
// The formats are described in docs/format/transport-frame.md. The protocol is
// our own.
package transport
