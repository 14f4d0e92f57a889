package transport

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// pipeBytes bounds what one direction of a connection holds before its
	// writer waits.
	pipeBytes = 256 << 10
	// pipeMin is the smallest buffer.
	pipeMin = 4 << 10
	// backlog bounds the connections that wait for Accept.
	backlog = 128
)

// Network is a network in memory for tests: listeners, connections with bounded
// buffers, and faults on demand. Endpoints are named by strings; a node's name is
// the address at which it listens, and the name that it gives to Dialer. All
// methods are safe for concurrent use. It has no goroutine of its own and works
// in a testing/synctest bubble.
//
// Its connections keep deadlines, and report errors as *net.OpError around the
// numbers that TCP would report: ECONNREFUSED, ECONNRESET, EPIPE.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	conns     map[*memConn]struct{} // dialling ends; their peers are the others
	blocked   map[[2]string]bool    // {from, to}; an empty name means anybody
	latency   time.Duration
	changed   chan struct{} // closed and replaced when blocked shrinks
}

// NewNetwork returns a network without faults.
func NewNetwork() *Network {
	return &Network{
		listeners: make(map[string]*memListener),
		conns:     make(map[*memConn]struct{}),
		blocked:   make(map[[2]string]bool),
		changed:   make(chan struct{}),
	}
}

type memAddr string

func (memAddr) Network() string  { return "memory" }
func (a memAddr) String() string { return string(a) }

// opError is how the net package reports err.
func opError(op string, local, remote memAddr, err error) error {
	e := &net.OpError{Op: op, Net: "memory", Err: err}
	if local != "" {
		e.Source = local
	}
	if remote != "" {
		e.Addr = remote
	}
	return e
}

// Listen returns a listener at addr. A second one at the same address fails with
// syscall.EADDRINUSE until the first is closed. Closing it resets connections
// that were not accepted yet; later dials get syscall.ECONNREFUSED.
func (n *Network) Listen(addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, opError("listen", memAddr(addr), "", syscall.EADDRINUSE)
	}
	l := &memListener{n: n, addr: memAddr(addr), queue: make(chan *memConn, backlog), done: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

// Dialer returns the Dial function of the endpoint from, for [Options].
func (n *Network) Dialer(from string) func(ctx context.Context, addr string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) { return n.dial(ctx, from, addr) }
}

func (n *Network) dial(ctx context.Context, from, to string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, opError("dial", memAddr(from), memAddr(to), err)
	}
	for {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		n.mu.Lock()
		if n.blockedLocked(from, to) || n.blockedLocked(to, from) {
			changed := n.changed
			n.mu.Unlock()
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return fail(ctx.Err())
			}
		}
		if d := n.latency; d > 0 {
			// There and back, as for TCP's own handshake.
			n.mu.Unlock()
			timer := time.NewTimer(2 * d)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return fail(ctx.Err())
			}
			n.mu.Lock()
		}
		l := n.listeners[to]
		if l == nil {
			n.mu.Unlock()
			return fail(syscall.ECONNREFUSED)
		}
		there := newPipe(n.latency, n.blockedLocked(from, to))
		back := newPipe(n.latency, n.blockedLocked(to, from))
		a := &memConn{n: n, local: memAddr(from), remote: memAddr(to), in: back, out: there}
		b := &memConn{n: n, local: memAddr(to), remote: memAddr(from), in: there, out: back}
		a.peer, b.peer = b, a
		n.conns[a] = struct{}{}
		n.mu.Unlock()
		select {
		case l.queue <- b:
		case <-l.done:
			a.reset()
			return fail(syscall.ECONNREFUSED)
		case <-ctx.Done():
			a.reset()
			return fail(ctx.Err())
		}
		select {
		case <-l.done: // perhaps after Close emptied the queue
			l.drain()
		default:
		}
		return a, nil
	}
}

func (n *Network) blockedLocked(from, to string) bool {
	if from == to {
		return false
	}
	return n.blocked[[2]string{from, to}] || n.blocked[[2]string{from, ""}] || n.blocked[[2]string{"", to}]
}

// Partition lets nothing pass between a and b, in either direction, until Heal.
// Like on a real network, connections stay open, what is written waits, and
// dialling hangs.
func (n *Network) Partition(a, b string) { n.block([2]string{a, b}, [2]string{b, a}) }

// Isolate lets nothing pass between name and anybody else until Heal.
func (n *Network) Isolate(name string) { n.block([2]string{name, ""}, [2]string{"", name}) }

// Block lets nothing pass from one endpoint to another until Heal; the other
// direction works, but needs a connection that exists already.
func (n *Network) Block(from, to string) { n.block([2]string{from, to}) }

func (n *Network) block(pairs ...[2]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range pairs {
		n.blocked[p] = true
	}
	n.applyLocked()
}

// Heal ends all partitions and blocks. What waited is delivered.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.blocked)
	n.applyLocked()
	close(n.changed)
	n.changed = make(chan struct{})
}

// applyLocked tells all connections what is blocked.
func (n *Network) applyLocked() {
	for a := range n.conns {
		from, to := string(a.local), string(a.remote)
		a.out.setBlocked(n.blockedLocked(from, to))
		a.in.setBlocked(n.blockedLocked(to, from))
	}
}

// Latency delays whatever is written from now on by d, one way. Zero is none.
func (n *Network) Latency(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.latency = d
	for a := range n.conns {
		a.out.setLatency(d)
		a.in.setLatency(d)
	}
}

// Reset breaks all connections of name; both ends get syscall.ECONNRESET. Its
// listener stays. An end to which nothing passes gets it at Heal.
func (n *Network) Reset(name string) {
	n.mu.Lock()
	var broken []*memConn
	for a := range n.conns {
		if string(a.local) == name || string(a.remote) == name {
			broken = append(broken, a)
		}
	}
	n.mu.Unlock()
	for _, a := range broken {
		if string(a.local) != name {
			a = a.peer
		}
		a.reset()
	}
}

// Crash does what the death of name's process does: its listener is closed and
// its connections are reset. Connections that it makes afterwards are those of
// its next life.
func (n *Network) Crash(name string) {
	n.mu.Lock()
	l := n.listeners[name]
	n.mu.Unlock()
	if l != nil {
		_ = l.Close() // never fails the first time, and the second is of no interest
	}
	n.Reset(name)
}

// ---- listener

type memListener struct {
	n     *Network
	addr  memAddr
	queue chan *memConn
	done  chan struct{}
	once  sync.Once
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case <-l.done: // first, so that nothing is accepted after Close
		return nil, opError("accept", l.addr, "", net.ErrClosed)
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, opError("accept", l.addr, "", net.ErrClosed)
	}
}

func (l *memListener) Close() error {
	err := opError("close", l.addr, "", net.ErrClosed)
	l.once.Do(func() {
		err = nil
		l.n.mu.Lock()
		if l.n.listeners[string(l.addr)] == l {
			delete(l.n.listeners, string(l.addr))
		}
		l.n.mu.Unlock()
		close(l.done)
		l.drain()
	})
	return err
}

// drain resets the connections that nobody will accept.
func (l *memListener) drain() {
	for {
		select {
		case c := <-l.queue:
			c.reset()
		default:
			return
		}
	}
}

func (l *memListener) Addr() net.Addr { return l.addr }

// ---- connection

// memConn is one end of a connection.
type memConn struct {
	n             *Network
	local, remote memAddr
	peer          *memConn
	in, out       *pipe
}

func (c *memConn) Read(b []byte) (int, error) {
	n, err := c.in.read(b)
	if err != nil && err != io.EOF {
		err = opError("read", c.local, c.remote, err)
	}
	return n, err
}

func (c *memConn) Write(b []byte) (int, error) {
	n, err := c.out.write(b)
	if err != nil {
		err = opError("write", c.local, c.remote, err)
	}
	return n, err
}

// Close lets the peer read what was written, and then the end; what the peer
// writes from now on fails.
func (c *memConn) Close() error {
	if !c.in.closeRead() {
		return opError("close", c.local, c.remote, net.ErrClosed)
	}
	c.out.closeWrite()
	c.forget()
	return nil
}

// reset ends the connection as the death of c's process does: in both directions at
// once, since an end that learns of it first hangs up, and the other would see that.
func (c *memConn) reset() {
	c.n.mu.Lock() // so that nobody else holds one pipe and wants the other
	c.in.set(func() {
		c.out.set(func() { c.out.writeReset, c.out.writeFailed = true, true })
		c.in.failed, c.in.readClosed = true, true
	})
	c.n.mu.Unlock()
	c.forget()
}

// forget takes the connection off the network's books once no fault can matter
// to it any more: both ends are closed, or nothing of it is blocked.
func (c *memConn) forget() {
	n := c.n
	n.mu.Lock()
	defer n.mu.Unlock()
	a := c
	if _, ok := n.conns[a]; !ok {
		a = c.peer
	}
	if a.in.over() && a.out.over() {
		delete(n.conns, a)
	}
}

func (c *memConn) LocalAddr() net.Addr  { return c.local }
func (c *memConn) RemoteAddr() net.Addr { return c.remote }

func (c *memConn) SetDeadline(t time.Time) error {
	c.in.setReadDeadline(t)
	c.out.setWriteDeadline(t)
	return nil
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	c.in.setReadDeadline(t)
	return nil
}

func (c *memConn) SetWriteDeadline(t time.Time) error {
	c.out.setWriteDeadline(t)
	return nil
}

// ---- one direction

// pipe is one direction of a connection: a ring of bytes with a writer and a
// reader.
type pipe struct {
	mu       sync.Mutex
	canRead  sync.Cond
	canWrite sync.Cond

	ring  []byte // power of two long, at most pipeBytes
	start int    // of the oldest byte
	count int

	latency time.Duration
	marks   []mark // arrivals of bytes, in order; empty without latency
	arrived int    // bytes that can be read. Invariant: arrived + sum of marks = count

	blocked     bool // nothing passes from the writer to the reader
	writeClosed bool // the writer closed: the reader gets io.EOF after the bytes
	writeReset  bool // the writer died: the reader gets ECONNRESET
	readClosed  bool // the reader closed or died: the writer gets EPIPE
	failed      bool // the reader's own end was reset
	writeFailed bool // the writer's own end was reset

	readDeadline, writeDeadline time.Time // zero is never; a timer runs only while somebody waits
}

// mark says that n bytes arrive at a time.
type mark struct {
	n  int
	at time.Time
}

// passed reports whether the deadline t is set and over.
func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

func newPipe(latency time.Duration, blocked bool) *pipe {
	p := &pipe{latency: latency, blocked: blocked}
	p.canRead.L, p.canWrite.L = &p.mu, &p.mu
	return p
}

// wait waits on cond, at most until t if that is set. Requires: p.mu.
func (p *pipe) wait(cond *sync.Cond, t time.Time) {
	if t.IsZero() {
		cond.Wait()
		return
	}
	timer := time.AfterFunc(time.Until(t), func() {
		// With the mutex the waiter is waiting, or has gone on already.
		p.mu.Lock()
		defer p.mu.Unlock()
		cond.Broadcast()
	})
	cond.Wait()
	timer.Stop()
}

// earlier returns the earlier of two times, where zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.failed:
			return 0, syscall.ECONNRESET
		case p.readClosed:
			return 0, net.ErrClosed
		case passed(p.readDeadline):
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		}
		until := p.readDeadline
		if !p.blocked {
			if p.writeReset {
				return 0, syscall.ECONNRESET
			}
			now := time.Time{}
			for len(p.marks) > 0 {
				if now.IsZero() {
					now = time.Now()
				}
				if p.marks[0].at.After(now) {
					break
				}
				p.arrived += p.marks[0].n
				p.marks = p.marks[1:]
			}
			if p.arrived > 0 {
				return p.takeLocked(b), nil
			}
			if len(p.marks) > 0 {
				until = earlier(until, p.marks[0].at)
			} else if p.writeClosed {
				return 0, io.EOF
			}
		}
		p.wait(&p.canRead, until)
	}
}

// takeLocked moves arrived bytes to b.
func (p *pipe) takeLocked(b []byte) int {
	n := min(len(b), p.arrived)
	k := copy(b[:n], p.ring[p.start:])
	copy(b[k:n], p.ring)
	p.start = (p.start + n) & (len(p.ring) - 1)
	p.count -= n
	p.arrived -= n
	p.canWrite.Broadcast()
	return n
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	written := 0
	for {
		switch {
		case p.writeFailed:
			return written, syscall.ECONNRESET
		case p.writeClosed:
			return written, net.ErrClosed
		case passed(p.writeDeadline):
			return written, os.ErrDeadlineExceeded
		case p.readClosed && !p.blocked:
			return written, syscall.EPIPE
		case len(b) == 0:
			return written, nil
		}
		if n := p.putLocked(b); n > 0 {
			written += n
			b = b[n:]
			continue
		}
		p.wait(&p.canWrite, p.writeDeadline)
	}
}

// putLocked moves bytes of b into the ring, as many as fit.
func (p *pipe) putLocked(b []byte) int {
	n := min(len(b), pipeBytes-p.count)
	if n <= 0 {
		return 0
	}
	if p.count+n > len(p.ring) {
		size := max(pipeMin, len(p.ring))
		for size < p.count+n {
			size *= 2
		}
		ring := make([]byte, size)
		k := copy(ring[:p.count], p.ring[p.start:])
		copy(ring[k:p.count], p.ring)
		p.ring, p.start = ring, 0
	}
	end := (p.start + p.count) & (len(p.ring) - 1)
	k := copy(p.ring[end:], b[:n])
	copy(p.ring, b[k:n])
	p.count += n
	if p.latency > 0 || len(p.marks) > 0 {
		p.marks = append(p.marks, mark{n: n, at: time.Now().Add(p.latency)})
	} else {
		p.arrived += n
	}
	p.canRead.Broadcast()
	return n
}

// set runs f under the mutex and wakes both sides.
func (p *pipe) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.canRead.Broadcast()
	p.canWrite.Broadcast()
}

func (p *pipe) setBlocked(b bool)            { p.set(func() { p.blocked = b }) }
func (p *pipe) setLatency(d time.Duration)   { p.set(func() { p.latency = d }) }
func (p *pipe) setReadDeadline(t time.Time)  { p.set(func() { p.readDeadline = t }) }
func (p *pipe) setWriteDeadline(t time.Time) { p.set(func() { p.writeDeadline = t }) }
func (p *pipe) closeWrite()                  { p.set(func() { p.writeClosed = true }) }

// closeRead is the reader's Close. It returns false if that was done before.
func (p *pipe) closeRead() (first bool) {
	p.set(func() {
		first = !p.readClosed || p.failed
		p.readClosed = true
	})
	return first
}

// over reports whether no fault can matter to the pipe any more.
func (p *pipe) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.readClosed || (p.writeClosed || p.writeReset) && !p.blocked
}
