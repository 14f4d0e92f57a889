package transport

import (
	"errors"
	"fmt"
)

// Errors of calls. Every error of [Transport.Call], [Transport.CallAddr] and
// [Transport.Send] tells by errors.Is what became of the request: ErrUnreachable,
// ErrOverloaded and ErrTooLarge mean that it was not executed, ErrUnknownOutcome
// that it may have been, and *[RemoteError] that it was answered with an error.
var (
	// ErrClosed is returned after Close, and by whatever Close interrupts.
	ErrClosed = errors.New("transport: closed")
	// ErrUnreachable means that the request was not sent: the node has no known
	// address, cannot be reached, was refused, or the caller gave up before.
	ErrUnreachable = errors.New("transport: peer unreachable")
	// ErrUnknownOutcome means that the request was or may have been sent, and
	// that no reply came: the peer may have executed it, may still do so, or not.
	ErrUnknownOutcome = errors.New("transport: outcome unknown")
	// ErrOverloaded means that a bounded queue was full, here or at the peer. The
	// request was not executed.
	ErrOverloaded = errors.New("transport: overloaded")
	// ErrTooLarge means that a body is larger than MaxBodyBytes. Nothing was sent.
	ErrTooLarge = errors.New("transport: body too large")
)

// Reasons of a [HandshakeError], for errors.Is.
var (
	// ErrProtocol means that the peer sent what is no handshake or frame of this
	// protocol, or one that is damaged or above a limit.
	ErrProtocol = errors.New("transport: protocol violation")
	// ErrVersionMismatch means that the peer speaks another version of this
	// protocol.
	ErrVersionMismatch = errors.New("transport: protocol version mismatch")
	// ErrFormatMismatch means that the peers' format ranges do not meet.
	ErrFormatMismatch = errors.New("transport: format version mismatch")
	// ErrClusterMismatch means that the peer belongs to another cluster.
	ErrClusterMismatch = errors.New("transport: cluster mismatch")
	// ErrNodeMismatch means that the node that answered is not the one that was
	// called.
	ErrNodeMismatch = errors.New("transport: node mismatch")
	// ErrDirectoryMismatch means that the peer has the number of another node,
	// ours or one on record, but not its directory.
	ErrDirectoryMismatch = errors.New("transport: directory mismatch")
	// ErrUnauthorized means that Authorize refused the peer, or the peer's
	// Authorize refused us.
	ErrUnauthorized = errors.New("transport: unauthorized")
)

// HandshakeError says why a connection was refused. Both sides get one.
type HandshakeError struct {
	// Reason is one of the sentinels above, from ErrProtocol to ErrUnauthorized.
	Reason error
	// ByPeer says that the peer refused us; else we refused the peer.
	ByPeer bool
	// Local and Remote are what both sides said; Remote is zero, except for its
	// Node of [NoNode], if the peer's part could not be read.
	Local, Remote Peer
	// Err is the cause, such as the error of Authorize; nil if Reason says all.
	Err error
}

// Error describes the refusal with the identities of both sides.
func (e *HandshakeError) Error() string {
	by := "refused peer"
	if e.ByPeer {
		by = "refused by peer"
	}
	s := fmt.Sprintf("%v: %s (local node %d cluster %v directory %v, remote node %d cluster %v directory %v at %q)",
		e.Reason, by, e.Local.Node, e.Local.Cluster, e.Local.Directory,
		e.Remote.Node, e.Remote.Cluster, e.Remote.Directory, e.Remote.Addr)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the reason and the cause.
func (e *HandshakeError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Reason}
	}
	return []error{e.Reason, e.Err}
}

// RemoteError is an error that the peer's Handle returned, as text.
type RemoteError struct {
	// Node is the peer that answered.
	Node int32
	// Kind is the kind of the call.
	Kind uint16
	// Text is the text of the handler's error, cut to at most 4 KiB.
	Text string
}

// Error returns the peer's text with the peer's number.
func (e *RemoteError) Error() string {
	return fmt.Sprintf("transport: node %d: %s", e.Node, e.Text)
}

// callError is what became of a request and why.
type callError struct {
	outcome error // ErrUnreachable, ErrUnknownOutcome or ErrOverloaded
	cause   error
	to      string // who was called, as "node 3" or "addr:port"
	class   Class
	kind    uint16
}

func (e *callError) Error() string {
	return fmt.Sprintf("%v: call %s kind %d on %v: %v", e.outcome, e.to, e.kind, e.class, e.cause)
}

func (e *callError) Unwrap() []error { return []error{e.outcome, e.cause} }
