package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"
)

// errNoAddr is the cause when Resolve knows no address.
var errNoAddr = errors.New("no address is known")

// linkKey names a dialled connection: a node, or whoever is at an address, and a
// class.
type linkKey struct {
	node  int32
	addr  string // only if node is NoNode
	class Class
}

// name says who is meant, for errors.
func (k linkKey) name() string {
	if k.node == NoNode {
		return k.addr
	}
	return fmt.Sprintf("node %d", k.node)
}

// peer returns the key without its class.
func (k linkKey) peer() linkKey {
	k.class = 0
	return k
}

// A link is the place of one dialled connection: there is at most one in use, at
// most one being dialled, and a pause after a failure.
type link struct {
	t   *Transport
	key linkKey

	mu           sync.Mutex
	cur          *conn // nil if none
	dial         *dial // nil if none is running
	pending      []*frame
	pendingBytes int // Invariant: sum of size of pending

	failures int       // in a row; a connection that ends soon is one
	until    time.Time // no dial before, except re-dials
	lastErr  error
	lastAddr string // that failed
}

// dial is one attempt to connect. Its results are set before done is closed.
type dial struct {
	done chan struct{}
	addr string
	conn *conn
	err  error
}

// link returns the link of k, which it makes if needed.
func (t *Transport) link(k linkKey) (*link, error) {
	if k.class >= classes {
		return nil, fmt.Errorf("class %d does not exist", k.class)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		return nil, ErrClosed
	}
	l := t.links[k]
	if l == nil {
		l = &link{t: t, key: k}
		t.links[k] = l
	}
	return l, nil
}

// get returns the link's connection, which it dials if there is none.
func (l *link) get(ctx context.Context) (*conn, error) {
	l.mu.Lock()
	if c := l.cur; c != nil {
		l.mu.Unlock()
		return c, nil
	}
	d, err := l.dialLocked()
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, ctxError(ctx)
	}
}

// send queues a message on the link's connection, or for the one being dialled.
func (l *link) send(f *frame) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur != nil {
		err := l.cur.message(f)
		if err != errEnded {
			return err
		}
		l.cur = nil
	}
	if _, err := l.dialLocked(); err != nil {
		return err
	}
	n := f.size()
	if l.pendingBytes > 0 && l.pendingBytes+n > l.t.o.MaxQueueBytes {
		return ErrOverloaded
	}
	l.pending = append(l.pending, f)
	l.pendingBytes += n
	return nil
}

// dialLocked returns the running dial, or starts one unless the link pauses.
func (l *link) dialLocked() (*dial, error) {
	if l.dial != nil {
		return l.dial, nil
	}
	addr, err := l.resolve()
	if err != nil {
		return nil, err
	}
	if l.failures > 0 && addr == l.lastAddr && time.Now().Before(l.until) {
		return nil, l.lastErr
	}
	return l.startLocked(addr)
}

// resolve returns the address to dial.
func (l *link) resolve() (string, error) {
	if l.key.node == NoNode {
		return l.key.addr, nil
	}
	addr, ok := l.t.o.Resolve(l.key.node)
	if !ok {
		return "", errNoAddr
	}
	return addr, nil
}

// startLocked starts a dial. Requires: none is running.
func (l *link) startLocked(addr string) (*dial, error) {
	d := &dial{done: make(chan struct{}), addr: addr}
	l.dial = d
	if !l.t.spawn(func() { l.run(d) }) {
		l.dial = nil
		return nil, ErrClosed
	}
	return d, nil
}

// run dials, shakes hands, and hands the connection or the error to everybody who
// waits.
func (l *link) run(d *dial) {
	c, err := l.connect(d.addr)
	var old *conn
	l.mu.Lock()
	l.dial = nil
	pending := l.pending
	l.pending, l.pendingBytes = nil, 0
	if err != nil {
		d.err = err
		l.failedLocked(d.addr, err)
		l.t.stats.dialErrors.Add(1)
		l.t.stats.dropped.Add(int64(len(pending)))
	} else {
		d.conn = c
		for _, f := range pending {
			if c.message(f) != nil {
				l.t.stats.dropped.Add(1)
			}
		}
		old, l.cur = l.cur, c
	}
	close(d.done)
	l.mu.Unlock()
	if err != nil {
		return
	}
	if old != nil {
		old.retire()
	}
	l.t.recheckCluster(c)
	select {
	case <-c.done: // it ended before it was the link's
		l.drop(c)
	default:
	}
}

// connect dials, shakes hands, and starts the connection.
func (l *link) connect(addr string) (*conn, error) {
	t := l.t
	t.stats.dials.Add(1)
	ctx, cancel := context.WithTimeout(t.ctx, t.o.DialTimeout)
	nc, err := t.o.Dial(ctx, addr)
	cancel()
	if err != nil {
		if t.ctx.Err() != nil {
			return nil, ErrClosed
		}
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	c := t.newConn(nc)
	c.addr = addr
	t.mu.Lock()
	if t.closing {
		t.mu.Unlock()
		_ = nc.Close()
		return nil, ErrClosed
	}
	t.dialling[c] = struct{}{} // so that Close reaches it
	t.mu.Unlock()
	h, err := t.shake(c, true, l.key.class, l.key.node)
	t.mu.Lock()
	delete(t.dialling, c)
	closing := t.closing
	if err == nil && !closing {
		t.startLocked(c, h, l)
	}
	t.mu.Unlock()
	switch {
	case closing:
		_ = nc.Close()
		return nil, ErrClosed
	case err != nil:
		_ = nc.Close()
		return nil, fmt.Errorf("handshake with %s: %w", addr, err)
	}
	return c, nil
}

// failedLocked begins or lengthens the pause.
func (l *link) failedLocked(addr string, err error) {
	o := &l.t.o
	pause := o.BackoffMin << min(l.failures, 20)
	if pause > o.BackoffMax || pause <= 0 {
		pause = o.BackoffMax
	}
	l.failures++
	l.until = time.Now().Add(l.t.jitter(pause))
	l.lastErr, l.lastAddr = err, addr
}

// jitter returns a duration in [d/2, d].
func (t *Transport) jitter(d time.Duration) time.Duration {
	t.randMu.Lock()
	defer t.randMu.Unlock()
	return d/2 + time.Duration(t.rand.Int64N(int64(d/2)+1))
}

// drop forgets c if it is the link's connection.
func (l *link) drop(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur == c {
		l.cur = nil
	}
}

// ended is told when a connection of the link is over.
func (l *link) ended(c *conn, asked bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur == c {
		l.cur = nil
	}
	if asked {
		return
	}
	// A peer that accepts and hangs up must not be dialled in a tight loop.
	if time.Since(c.since) >= l.t.o.BackoffMax {
		l.failures = 0
		return
	}
	l.failedLocked(c.addr, err)
}

// clearPause lets the next call dial.
func (l *link) clearPause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = 0
}

// redial dials anew: the attempt starts after the call. It ignores the pause of
// one failure only, so that a peer that hangs up each time is not dialled in a
// tight loop.
func (l *link) redial() *dial {
	l.mu.Lock()
	for l.dial != nil {
		d := l.dial
		l.mu.Unlock()
		<-d.done
		l.mu.Lock()
	}
	defer l.mu.Unlock()
	if pause := time.Until(l.until); l.failures > 1 && pause > 0 {
		l.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-l.t.ctx.Done():
		}
		l.mu.Lock()
	}
	if l.dial != nil {
		return l.dial // it has started since the call
	}
	addr, err := l.resolve()
	if err == nil {
		var d *dial
		if d, err = l.startLocked(addr); err == nil {
			return d
		}
	}
	d := &dial{done: make(chan struct{}), err: err}
	close(d.done)
	return d
}

// probe looks after a peer that has lost a connection.
type probe struct {
	conn  *conn // the first that was lost
	err   error
	again bool // another one was lost since; under Transport.mu
}

// probeDials bounds the dials of one probe that the peer accepts and then breaks
// off: a dying process may still accept before its listener is gone.
const probeDials = 3

// probe re-dials the peer at once and reports what it found.
func (t *Transport) probe(k linkKey, p *probe) {
	var refused, replaced bool
	for broken := 1; ; {
		hungUp := false
		if l, err := t.link(k); err == nil {
			d := l.redial()
			<-d.done
			// Only the address at which that process listened tells about it.
			refused = isRefused(d.err) && d.addr != "" && d.addr == p.conn.addr
			replaced = d.err == nil && d.conn.peer.Node == p.conn.peer.Node &&
				d.conn.peer.Incarnation != p.conn.peer.Incarnation
			hungUp = isHangUp(d.err)
		}
		t.mu.Lock()
		if t.closing {
			delete(t.probes, k.peer())
			t.mu.Unlock()
			return
		}
		// A connection that was lost after this dial had begun may be news.
		if again := p.again || hungUp && broken < probeDials; again && !refused && !replaced {
			if !p.again {
				broken++
			}
			p.again = false
			t.mu.Unlock()
			continue
		}
		delete(t.probes, k.peer())
		if (refused || replaced) && k.node != NoNode {
			t.dead[k.node] = p.conn.peer.Incarnation
		}
		t.mu.Unlock()
		break
	}
	t.o.Down(Down{Peer: p.conn.peer, Refused: refused, Replaced: replaced, Err: p.err})
}

// isHangUp reports whether err says that a connection was made and then broken
// off by the peer.
func isHangUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isRefused reports whether err says that nobody listens.
func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || refusedErrno != 0 && errors.Is(err, refusedErrno)
}
