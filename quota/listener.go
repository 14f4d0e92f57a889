package quota

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/pprof"
	"sync"
	"time"
)

// Acquire counts one open connection of the party on every level with a quota of [Connections], and returns the function that gives it back, which
// may be called any number of times, from any goroutine. If a level has reached its number, it counts nothing and returns a
// [*ThrottledError] without a time to retry. A lowered quota closes no connection; it only lets no new one in.
func (l *Limiter) Acquire(key Key) (release func(), err error) {
	now := l.Now()
	s := l.shard(key.Tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.lookup(l, key, now)
	var meters [3]*meter
	full := false
	for level, p := range a.chain() {
		if p == nil {
			continue
		}
		m := l.at(p, Connections, now)
		if m == nil {
			continue
		}
		meters[level] = m
		if m.rate >= 0 && m.used+1 > m.rate {
			full = true
			m.refused++
			m.turned = true
			if p.parent == nil && l.agent != nil {
				s.list(p)
			}
		}
	}
	if full {
		return nil, &ThrottledError{Key: key, Kind: Connections}
	}
	for _, m := range meters {
		if m != nil {
			m.used++
		}
	}
	a.holds++
	if tenant := a.chain()[0]; meters[0] != nil && l.agent != nil {
		s.list(tenant)
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, m := range meters {
				if m != nil {
					m.used--
				}
			}
			a.holds--
		})
	}, nil
}

// ListenerOptions configure a [Listener].
type ListenerOptions struct {
	// Key says whom a connection belongs to as far as that is known before the first byte: by its addresses, most often. It must not block. If
	// nil, all connections belong to the tenant "".
	Key func(net.Conn) Key
	// MaxWaiting is how many connections of one tenant may wait for their turn, accepted but not handed out; one more is closed at once.
	// Default 64; all tenants together may have 16 times as many.
	MaxWaiting int
}

// DefaultMaxWaiting is the default of [ListenerOptions.MaxWaiting].
const DefaultMaxWaiting = 64

// Listener limits the connections of another listener: how many are open, and how many come per second. Close stops its goroutines.
//
// A connection above the rate waits, unread, while those of other parties pass it: the accepting goroutine never sleeps, so a noisy party delays only
// itself (Kafka's acceptor waits up to a second for each). One above the number, or for which there is no room to wait, is closed, and
// nothing of it stays charged. A connection counts from before the handshake until it is closed, once, however often Close is called.
//
// Source: KIP-612 for the two quotas; that waiting is per party is our own.
type Listener struct {
	inner  net.Listener
	l      *Limiter
	o      ListenerOptions
	ready  chan accepted
	closed chan struct{}
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
	err    error

	mu      sync.Mutex
	waiting map[string]int // by tenant
	all     int
	refused int64
}

type accepted struct {
	conn net.Conn
	err  error
}

// Listener returns a listener that hands out what inner accepts within the limiter's quotas of [Connections] and [ConnectionRate]. inner becomes its
// own: Close closes it.
func (l *Limiter) Listener(inner net.Listener, o ListenerOptions) *Listener {
	if o.MaxWaiting <= 0 {
		o.MaxWaiting = DefaultMaxWaiting
	}
	if o.Key == nil {
		o.Key = func(net.Conn) Key { return Key{} }
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &Listener{inner: inner, l: l, o: o, ready: make(chan accepted), closed: make(chan struct{}), cancel: cancel, waiting: make(map[string]int)}
	labels := pprof.Labels("cordwood", "quota-listener")
	n.wg.Go(func() { pprof.Do(ctx, labels, n.accept) })
	return n
}

// accept takes connections until the inner listener is closed.
func (n *Listener) accept(ctx context.Context) {
	for {
		c, err := n.inner.Accept()
		if err != nil {
			if !n.hand(accepted{err: err}) || errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		n.admit(ctx, c)
	}
}

// hand gives a result to Accept and reports whether somebody took it.
func (n *Listener) hand(a accepted) bool {
	select {
	case n.ready <- a:
		return true
	case <-n.closed:
		return false
	}
}

func (n *Listener) admit(ctx context.Context, c net.Conn) {
	key := n.o.Key(c)
	release, err := n.l.Acquire(key)
	if err != nil {
		n.refuse(c)
		return
	}
	counted := &conn{Conn: c, release: release}
	if _, ok := n.l.Reserve(key, ConnectionRate, 1, n.l.Now()); ok {
		if !n.hand(accepted{conn: counted}) {
			counted.Close()
		}
		return
	}
	n.mu.Lock()
	room := n.waiting[key.Tenant] < n.o.MaxWaiting && n.all < 16*n.o.MaxWaiting
	if room {
		n.waiting[key.Tenant]++
		n.all++
	}
	n.mu.Unlock()
	if !room {
		release()
		n.refuse(c)
		return
	}
	n.wg.Go(func() {
		pprof.Do(ctx, pprof.Labels("cordwood", "quota-waiting"), func(ctx context.Context) {
			err := n.turn(ctx, key)
			n.mu.Lock()
			n.all--
			if n.waiting[key.Tenant]--; n.waiting[key.Tenant] == 0 {
				delete(n.waiting, key.Tenant)
			}
			n.mu.Unlock()
			if err != nil || !n.hand(accepted{conn: counted}) {
				counted.Close()
			}
		})
	})
}

func (n *Listener) turn(ctx context.Context, key Key) error {
	now := n.l.Now()
	s := n.l.shard(key.Tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	return n.l.turn(ctx, s, s.lookup(n.l, key, now), key, ConnectionRate, 1, now)
}

func (n *Listener) refuse(c net.Conn) {
	n.mu.Lock()
	n.refused++
	n.mu.Unlock()
	c.Close() // the error would tell only that the peer was faster
}

// Accept waits for the next connection that its party's quotas let in, and returns it, or an error of the inner listener. After Close it returns an
// error that wraps [ErrClosed] and net.ErrClosed. The connection's NetConn method gives the inner one.
func (n *Listener) Accept() (net.Conn, error) {
	select {
	case <-n.closed:
		return nil, errListenerClosed
	default:
	}
	select {
	case a := <-n.ready:
		return a.conn, a.err
	case <-n.closed:
		return nil, errListenerClosed
	}
}

var errListenerClosed = fmt.Errorf("%w: listener: %w", ErrClosed, net.ErrClosed)

// Addr returns the inner listener's address.
func (n *Listener) Addr() net.Addr { return n.inner.Addr() }

// Waiting returns how many connections wait for their turn, and how many were closed for want of a quota or of room since the listener began.
func (n *Listener) Waiting() (waiting int, refused int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all, n.refused
}

// Close closes the inner listener and every connection that still waits, wakes Accept, and returns when all goroutines have ended. Connections
// handed out stay open. Later calls return the same.
func (n *Listener) Close() error {
	n.once.Do(func() {
		close(n.closed)
		n.cancel()
		n.err = n.inner.Close()
	})
	n.wg.Wait()
	return n.err
}

// conn gives its count back when it is closed.
type conn struct {
	net.Conn
	release func()
}

// NetConn returns the inner connection, for those who need more of it than net.Conn has.
func (c *conn) NetConn() net.Conn { return c.Conn }

// ReadFrom lets io.Copy use what the inner connection has for it, such as sendfile.
func (c *conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// Mute keeps the deadline until which a server reads nothing from one connection. The zero value lets read. Safe for concurrent use.
//
// Source: KIP-219: the answer goes out at once with the delay in it, and what enforces the delay is that the server does not read; a later,
// shorter delay never shortens an earlier one, and of several quotas the longest counts, not their sum.
type Mute struct {
	mu    sync.Mutex
	until Instant
}

// Extend makes the deadline at least now+delay and returns how far away it then is. [Forever] mutes until the connection is closed.
func (m *Mute) Extend(delay time.Duration, now Instant) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	until := Instant(Forever)
	if int64(now) < int64(Forever)-int64(delay) {
		until = now + Instant(delay)
	}
	m.until = max(m.until, until)
	return time.Duration(max(0, m.until-now))
}

// Wait sleeps until the deadline and returns nil, or the cause if ctx ends first. A deadline that is extended meanwhile counts. now must be
// on the clock that Extend was given, such as [Limiter.Now].
func (m *Mute) Wait(ctx context.Context, now func() Instant) error {
	for {
		m.mu.Lock()
		left := time.Duration(m.until - now())
		m.mu.Unlock()
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}
