package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
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
// after the transport has re-dialled that peer at once. Connections of one
// peer that end while it re-dials are reported together, and the death of one
// incarnation is reported once.
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

// Stats counts what a transport has done since New.
type Stats struct {
	// Connections is the number of established connections now, in either
	// direction.
	Connections int
	// QueuedBytes is the size of the calls and messages that wait to be written
	// now, over all connections.
	QueuedBytes int64
	// Dials counts attempts to connect, DialErrors those that failed.
	Dials, DialErrors int64
	// Accepted counts accepted connections, Rejected the handshakes that ended in
	// a *[HandshakeError], in either direction.
	Accepted, Rejected int64
	// Refused counts received calls that were answered with ErrOverloaded.
	Refused int64
	// Dropped counts messages that Send did not take or could not deliver to a
	// connection.
	Dropped int64
	// BytesSent counts frames with their headers, BytesReceived all that was read
	// on established connections, handshakes included.
	BytesSent, BytesReceived int64
}

type counters struct {
	dials, dialErrors, accepted, rejected, refused, dropped atomic.Int64
	sent, received                                          atomic.Uint64
}

// Transport connects one node with its peers. All methods are safe for
// concurrent use.
type Transport struct {
	o      Options
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine and armed timer
	closed chan struct{}  // closed when Close is done
	stats  counters

	mu       sync.Mutex
	closing  bool
	closeErr error
	self     Peer
	links    map[linkKey]*link
	conns    map[*conn]struct{}
	shaking  map[*conn]uint64   // accepted, handshake not done, with their order
	dialling map[*conn]struct{} // dialled, handshake not done
	shakeSeq uint64
	accepted int                // of conns
	probes   map[linkKey]*probe // by peer
	dead     map[int32]uint64   // by node: the incarnation last reported as dead

	randMu sync.Mutex
	rand   *rand.Rand // jitter
}

// New starts a transport: it accepts connections from now on. Errors are mistakes
// in the options only; the Listener is not touched then.
func New(o Options) (*Transport, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &Transport{
		o:        o,
		closed:   make(chan struct{}),
		self:     o.Self,
		links:    make(map[linkKey]*link),
		conns:    make(map[*conn]struct{}),
		shaking:  make(map[*conn]uint64),
		dialling: make(map[*conn]struct{}),
		probes:   make(map[linkKey]*probe),
		dead:     make(map[int32]uint64),
		rand:     rand.New(rand.NewPCG(o.Self.Incarnation, uint64(uint32(o.Self.Node)))),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if o.Listener != nil {
		t.wg.Go(func() { t.labelled(t.acceptLoop) })
	}
	return t, nil
}

// labelled runs f under the label that goroutines of this package, and those that
// they start, carry in profiles.
func (t *Transport) labelled(f func()) {
	pprof.Do(context.Background(), pprof.Labels("cordwood", "transport"), func(context.Context) { f() })
}

// spawn runs f on a goroutine that Close waits for. It returns false after Close.
func (t *Transport) spawn(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.spawnLocked(f)
}

func (t *Transport) spawnLocked(f func()) bool {
	if t.closing {
		return false
	}
	t.wg.Go(func() { t.labelled(f) })
	return true
}

// selfNow returns what this node says about itself.
func (t *Transport) selfNow() Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.self
}

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
	return t.call(ctx, linkKey{node: node, class: c}, kind, body)
}

// CallAddr is [Transport.Call] for a peer whose number is not known yet: whoever
// answers at addr is meant. Its connection is closed after a minute without use.
func (t *Transport) CallAddr(ctx context.Context, addr string, c Class, kind uint16, body []byte) (*Response, error) {
	return t.call(ctx, linkKey{node: NoNode, addr: addr, class: c}, kind, body)
}

func (t *Transport) call(ctx context.Context, k linkKey, kind uint16, body []byte) (*Response, error) {
	resp, err := t.callOnce(ctx, k, kind, body)
	if e, ok := errors.AsType[*callError](err); ok {
		e.to, e.class, e.kind = k.name(), k.class, kind
	}
	return resp, err
}

func (t *Transport) callOnce(ctx context.Context, k linkKey, kind uint16, body []byte) (*Response, error) {
	if len(body) > t.o.MaxBodyBytes {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, len(body), t.o.MaxBodyBytes)
	}
	if ctx.Err() != nil {
		return nil, &callError{outcome: ErrUnreachable, cause: ctxError(ctx)}
	}
	l, err := t.link(k)
	if err != nil {
		return nil, &callError{outcome: ErrUnreachable, cause: err}
	}
	for {
		c, err := l.get(ctx)
		if err != nil {
			return nil, &callError{outcome: ErrUnreachable, cause: err}
		}
		resp, err := c.call(ctx, kind, body)
		if err != errEnded {
			return resp, err
		}
		l.drop(c)
	}
}

// Send queues a one-way message and never blocks. Messages of one node and class
// arrive in order while one connection lasts, each at most once; any may be
// lost. A missing connection is dialled in the background with the message
// waiting. body becomes the transport's. Errors mean that the message was
// dropped: [ErrUnreachable] (during the pause after a failed dial, or no address
// is known), [ErrOverloaded], [ErrTooLarge], [ErrClosed].
func (t *Transport) Send(node int32, c Class, kind uint16, body []byte) error {
	if len(body) > t.o.MaxBodyBytes {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, len(body), t.o.MaxBodyBytes)
	}
	k := linkKey{node: node, class: c}
	l, err := t.link(k)
	if err == nil {
		err = l.send(newFrame(typeMessage, kind, 0, body))
	}
	if err != nil {
		t.stats.dropped.Add(1)
		if !errors.Is(err, ErrOverloaded) && !errors.Is(err, ErrClosed) {
			err = &callError{outcome: ErrUnreachable, cause: err, to: k.name(), class: c, kind: kind}
		}
	}
	return err
}

// SetSelf replaces what this node says about itself, such as the cluster that it
// has joined. Later handshakes use it. Connections made before finish their
// calls and are then replaced; those of another cluster are ended at once. It
// returns an error, and changes nothing, if p cannot be sent or after Close.
func (t *Transport) SetSelf(p Peer) error {
	if err := p.check(); err != nil {
		return fmt.Errorf("transport: self: %w", err)
	}
	t.mu.Lock()
	if t.closing {
		t.mu.Unlock()
		return ErrClosed
	}
	if p == t.self {
		t.mu.Unlock()
		return nil
	}
	t.self = p
	conns := t.connsLocked()
	t.mu.Unlock()
	for _, c := range conns {
		if !sameCluster(c.peer, p.Cluster) {
			c.fail(&HandshakeError{Reason: ErrClusterMismatch, Local: p, Remote: c.peer}, true)
			continue
		}
		if c.link != nil {
			c.link.drop(c)
		}
		c.retire()
	}
	return nil
}

func (t *Transport) connsLocked() []*conn {
	conns := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		conns = append(conns, c)
	}
	return conns
}

// Stats returns the counters.
func (t *Transport) Stats() Stats {
	t.mu.Lock()
	conns := t.connsLocked()
	t.mu.Unlock()
	var queued int64
	received := t.stats.received.Load()
	for _, c := range conns {
		received += c.received.Load()
		c.mu.Lock()
		queued += int64(c.queueBytes)
		c.mu.Unlock()
	}
	s := &t.stats
	return Stats{
		Connections:   len(conns),
		QueuedBytes:   queued,
		Dials:         s.dials.Load(),
		DialErrors:    s.dialErrors.Load(),
		Accepted:      s.accepted.Load(),
		Rejected:      s.rejected.Load(),
		Refused:       s.refused.Load(),
		Dropped:       s.dropped.Load(),
		BytesSent:     int64(s.sent.Load()),
		BytesReceived: int64(received),
	}
}

// Close refuses new work, closes the listener and all connections, cancels the
// handlers, fails waiting calls, and waits until everything of the transport has
// ended. It is idempotent and safe from several goroutines, but not from Handle,
// Receive or the hooks. It returns the listener's close error.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closing {
		t.mu.Unlock()
		<-t.closed
		return t.closeErr
	}
	t.closing = true
	conns := t.connsLocked()
	shaking := make([]*conn, 0, len(t.shaking))
	for c := range t.shaking {
		shaking = append(shaking, c)
	}
	for c := range t.dialling {
		shaking = append(shaking, c)
	}
	t.mu.Unlock()

	// The listener goes first: a peer that re-dials when its connection breaks
	// must find nobody. The connections end before the handlers are cancelled, so
	// that no caller takes a handler's "cancelled" for an answer.
	if t.o.Listener != nil {
		t.closeErr = t.o.Listener.Close()
	}
	for _, c := range shaking {
		_ = c.nc.Close() // its handshake fails
	}
	for _, c := range conns {
		c.fail(ErrClosed, true)
	}
	t.cancel()
	t.wg.Wait()
	close(t.closed)
	return t.closeErr
}

// ---- accepting

func (t *Transport) acceptLoop() {
	pause := time.Duration(0)
	for {
		nc, err := t.o.Listener.Accept()
		if err == nil {
			pause = 0
			t.admit(nc)
			continue
		}
		if t.ctx.Err() != nil {
			return
		}
		if errors.Is(err, net.ErrClosed) {
			t.o.Logger.Error("transport: listener closed by somebody else", "err", err)
			return
		}
		// Out of descriptors, for example: the listener works again later.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		t.o.Logger.Warn("transport: accept", "err", err, "retry", pause)
		select {
		case <-time.After(pause):
		case <-t.ctx.Done():
			return
		}
	}
}

// admit starts the handshake of an accepted connection, within MaxConns.
func (t *Transport) admit(nc net.Conn) {
	c := t.newConn(nc)
	var evict *conn
	t.mu.Lock()
	if t.closing {
		t.mu.Unlock()
		_ = nc.Close()
		return
	}
	if t.accepted+len(t.shaking) >= t.o.MaxConns {
		oldest := t.shakeSeq + 1
		for s, seq := range t.shaking {
			if seq < oldest {
				evict, oldest = s, seq
			}
		}
		if evict == nil {
			t.mu.Unlock()
			_ = nc.Close()
			t.o.Logger.Warn("transport: too many connections", "limit", t.o.MaxConns)
			return
		}
		delete(t.shaking, evict)
	}
	t.shakeSeq++
	t.shaking[c] = t.shakeSeq
	t.spawnLocked(func() { t.welcome(c) })
	t.mu.Unlock()
	if evict != nil {
		_ = evict.nc.Close()
	}
}

// welcome runs the accepting side's handshake.
func (t *Transport) welcome(c *conn) {
	h, err := t.shake(c, false, 0, NoNode)
	t.mu.Lock()
	_, there := t.shaking[c]
	delete(t.shaking, c)
	ok := err == nil && there && !t.closing
	if ok {
		c.addr = h.peer.Addr
		t.accepted++
		t.startLocked(c, h, nil)
	}
	t.mu.Unlock()
	if !ok {
		_ = c.nc.Close()
		return
	}
	t.stats.accepted.Add(1)
	if h.peer.Node != NoNode {
		// The node lives: no need to wait before it is dialled.
		for class := range Class(classes) {
			t.mu.Lock()
			l := t.links[linkKey{node: h.peer.Node, class: class}]
			t.mu.Unlock()
			if l != nil {
				l.clearPause()
			}
		}
	}
	t.recheckCluster(c)
}

// startLocked puts a connection on the books and starts it.
func (t *Transport) startLocked(c *conn, h hello, l *link) {
	t.conns[c] = struct{}{}
	if t.dead[h.peer.Node] == h.peer.Incarnation {
		delete(t.dead, h.peer.Node) // it only seemed so
	}
	c.start(h, l)
}

// shake runs the handshake within its timeout and reports a refusal.
func (t *Transport) shake(c *conn, dialled bool, class Class, target int32) (hello, error) {
	ctx, cancel := context.WithTimeout(t.ctx, t.o.HandshakeTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	err := c.nc.SetDeadline(deadline)
	var h hello
	if err == nil {
		h, err = t.handshake(ctx, c.nc, c.br, dialled, class, target)
	}
	if err == nil {
		err = c.nc.SetDeadline(time.Time{})
	}
	if refusal, ok := errors.AsType[*HandshakeError](err); ok {
		t.stats.rejected.Add(1)
		t.o.Logger.Warn("transport: handshake refused", "remote", addrText(c.nc), "err", err)
		if t.o.Rejected != nil {
			t.o.Rejected(refusal)
		}
	}
	return h, err
}

func addrText(nc net.Conn) string {
	if a := nc.RemoteAddr(); a != nil {
		return a.String()
	}
	return ""
}

// recheckCluster ends c if SetSelf named another cluster while c shook hands.
func (t *Transport) recheckCluster(c *conn) {
	if self := t.selfNow(); !sameCluster(c.peer, self.Cluster) {
		c.fail(&HandshakeError{Reason: ErrClusterMismatch, Local: self, Remote: c.peer}, true)
	}
}

// ended takes a connection off the books and, if it ended unasked, looks whether
// its peer is still there.
func (t *Transport) ended(c *conn, err error, asked bool) {
	t.stats.received.Add(c.received.Load())
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	if c.link == nil {
		t.accepted--
	}
	if asked || t.closing {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, io.EOF) {
		level = slog.LevelInfo // the peer has ended in order, as hosts come and go
	}
	t.o.Logger.Log(context.Background(), level, "transport: connection lost", "node", c.peer.Node, "class", c.class.String(),
		"remote", addrText(c.nc), "err", err)
	if t.o.Down == nil {
		return
	}
	if inc, ok := t.dead[c.peer.Node]; ok && inc == c.peer.Incarnation {
		return // one more connection of a process that is known to be dead
	}
	k := linkKey{node: c.peer.Node, class: c.class}
	if k.node == NoNode {
		k.addr = c.addr
	}
	if k.node == NoNode && k.addr == "" { // a client: there is nothing to re-dial
		t.spawnLocked(func() { t.o.Down(Down{Peer: c.peer, Err: err}) })
		return
	}
	if p := t.probes[k.peer()]; p != nil {
		p.again = true
		return
	}
	p := &probe{conn: c, err: err}
	t.probes[k.peer()] = p
	t.spawnLocked(func() { t.probe(k, p) })
}
