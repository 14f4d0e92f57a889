package quota_test

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

// pipes is a listener in memory whose connections name their tenant.
type pipes struct {
	ch     chan net.Conn
	once   sync.Once
	closed chan struct{}
}

type named struct {
	net.Conn
	tenant string
}

func newPipes() *pipes { return &pipes{ch: make(chan net.Conn, 1000), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.ch:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(tenant string) net.Conn {
	client, server := net.Pipe()
	p.ch <- named{server, tenant}
	return client
}

func byName(c net.Conn) quota.Key { return quota.Key{Tenant: c.(named).tenant} }

func TestListenerNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, of(quota.Connections, tenantA, 2, 0))
		p := newPipes()
		n := l.Listener(p, quota.ListenerOptions{Key: byName})
		defer n.Close()
		open := func() int64 {
			u, _ := l.Usage(keyA, quota.Connections, l.Now())
			return u.Used
		}
		var conns []net.Conn
		for range 2 {
			p.dial("a")
			c, err := n.Accept()
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		third := p.dial("a")
		if _, err := third.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("third connection: %v, want it closed", err)
		}
		if open() != 2 {
			t.Errorf("%d open, want 2", open())
		}
		for range 3 {
			conns[0].Close() // a double close gives back once
		}
		if open() != 1 {
			t.Errorf("%d open, want 1", open())
		}
		// A lower quota closes nothing.
		alter(t, l, l.Now(), quota.Alteration{Entity: tenantA, Kind: quota.Connections, Quota: &quota.Quota{Rate: 0}})
		go conns[1].Write([]byte("x"))
		if fourth := p.dial("a"); func() bool { _, err := fourth.Read(make([]byte, 1)); return err != io.EOF }() {
			t.Error("a connection beyond the lowered quota was let in")
		}
		if open() != 1 {
			t.Errorf("%d open, want 1", open())
		}
		conns[1].Close()
		if u, _ := l.Usage(keyA, quota.Connections, l.Now()); u.Used != 0 || u.Refused != 2 {
			t.Errorf("usage %+v, want nothing open and 2 refused", u)
		}
	})
}

// TestListenerRate checks that a noisy party waits while others pass it, and that what was refused is not charged.
func TestListenerRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, of(quota.ConnectionRate, tenantA, 10, 100*time.Millisecond))
		p := newPipes()
		n := l.Listener(p, quota.ListenerOptions{Key: byName, MaxWaiting: 20})
		start := time.Now()
		for range 50 {
			p.dial("a")
		}
		p.dial("quiet")
		got := map[string][]time.Duration{}
		for range 23 {
			c, err := n.Accept()
			if err != nil {
				t.Fatal(err)
			}
			tenant := c.(interface{ NetConn() net.Conn }).NetConn().(named).tenant
			got[tenant] = append(got[tenant], time.Since(start))
			c.Close()
		}
		if len(got["quiet"]) != 1 || got["quiet"][0] > 0 {
			t.Errorf("the quiet tenant was let in after %v, want at once", got["quiet"])
		}
		// One from the burst and one into debt at once, then one each 100 ms: 20 had room to wait.
		if last := got["a"][len(got["a"])-1]; len(got["a"]) != 22 || last != 2*time.Second {
			t.Errorf("%d of the noisy tenant by %v, want 22 by 2s: %v", len(got["a"]), last, got["a"])
		}
		if waiting, refused := n.Waiting(); waiting != 0 || refused != 28 {
			t.Errorf("%d wait, %d refused; want 0, 28", waiting, refused)
		}
		if u, _ := l.Usage(keyA, quota.ConnectionRate, l.Now()); u.Used != 22 {
			t.Errorf("%d charged, want 22", u.Used)
		}
		// Close ends those who wait.
		for range 5 {
			p.dial("a")
		}
		synctest.Wait()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if _, err := n.Accept(); !errors.Is(err, quota.ErrClosed) || !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		n.Close()
		if u, _ := l.Usage(keyA, quota.ConnectionRate, l.Now()); u.Used > 23 {
			t.Errorf("%d charged, want those given back that never came in", u.Used)
		}
	})
}

func TestAcquire(t *testing.T) {
	l := newLimiter(t, of(quota.Connections, tenantA, 3, 0), of(quota.Connections, entity("*", "*", ""), 2, 0))
	key := quota.Key{Tenant: "a", Principal: "p"}
	r1, err1 := l.Acquire(key)
	_, err2 := l.Acquire(key)
	_, err3 := l.Acquire(key)
	if err1 != nil || err2 != nil || !errors.Is(err3, quota.ErrThrottled) {
		t.Fatalf("got %v, %v, %v; want the third refused", err1, err2, err3)
	}
	if u, _ := l.Usage(keyA, quota.Connections, 0); u.Used != 2 {
		t.Errorf("%d of the tenant open, want 2: a refused one counts on no level", u.Used)
	}
	if n := l.Expire(l.Now()); n != 0 {
		t.Errorf("forgot %d parties with open connections", n)
	}
	r1()
	r1()
	if _, err := l.Acquire(key); err != nil {
		t.Errorf("after a release: %v", err)
	}
	if _, err := l.Acquire(quota.Key{Tenant: "a", Principal: "q"}); err != nil {
		t.Errorf("another principal: %v", err)
	}
	if _, err := l.Acquire(quota.Key{Tenant: "a", Principal: "r"}); !errors.Is(err, quota.ErrThrottled) {
		t.Errorf("beyond the tenant's number: %v", err)
	}
}
