package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/transport"
)

// pair returns both ends of a connection from "a" to "b".
func pair(t testing.TB, n *transport.Network) (a, b net.Conn) {
	t.Helper()
	l, err := n.Listen("b")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err = n.Dialer("a")(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	b, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// onPair runs f in a bubble over one connection.
func onPair(t *testing.T, f func(t *testing.T, n *transport.Network, a, b net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		n := transport.NewNetwork()
		a, b := pair(t, n)
		f(t, n, a, b)
	})
}

func wantRead(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v, want %q", b, err, want)
	}
}

func wantWrite(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
}

func TestNetworkListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transport.NewNetwork()
		dial := n.Dialer("a")
		_, err := dial(t.Context(), "b")
		wantIs(t, err, syscall.ECONNREFUSED)
		if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
			t.Errorf("got %#v", err)
		}
		l, err := n.Listen("b")
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Addr().String(); got != "b" {
			t.Errorf("address %q", got)
		}
		_, err = n.Listen("b")
		wantIs(t, err, syscall.EADDRINUSE)
		early, err := dial(t.Context(), "b") // not accepted yet
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantIs(t, l.Close(), net.ErrClosed)
		_, err = early.Read(make([]byte, 1))
		wantIs(t, err, syscall.ECONNRESET)
		_, err = l.Accept()
		wantIs(t, err, net.ErrClosed)
		_, err = dial(t.Context(), "b")
		wantIs(t, err, syscall.ECONNREFUSED)
		l, err = n.Listen("b")
		if err != nil {
			t.Fatal(err)
		}

		// A full backlog makes dialling wait; it does not refuse.
		for range 128 {
			if _, err := dial(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = dial(ctx, "b")
		wantIs(t, err, context.DeadlineExceeded)
		go func() {
			time.Sleep(time.Second)
			l.Close()
		}()
		_, err = dial(t.Context(), "b")
		wantIs(t, err, syscall.ECONNREFUSED)
	})
}

func TestNetworkEnds(t *testing.T) {
	t.Run("close", func(t *testing.T) {
		onPair(t, func(t *testing.T, _ *transport.Network, a, b net.Conn) {
			wantWrite(t, a, "last words")
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			wantIs(t, a.Close(), net.ErrClosed)
			_, err := a.Read(make([]byte, 1))
			wantIs(t, err, net.ErrClosed)
			_, err = a.Write([]byte("x"))
			wantIs(t, err, net.ErrClosed)
			wantRead(t, b, "last words")
			if _, err := b.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("got %v, want EOF", err)
			}
			_, err = b.Write([]byte("x"))
			wantIs(t, err, syscall.EPIPE)
		})
	})
	t.Run("close-wakes", func(t *testing.T) {
		onPair(t, func(t *testing.T, _ *transport.Network, a, b net.Conn) {
			errs := make(chan error, 3)
			go func() { _, err := a.Read(make([]byte, 1)); errs <- err }()
			go func() { _, err := a.Write(make([]byte, 1<<20)); errs <- err }()
			synctest.Wait()
			a.Close()
			wantIs(t, <-errs, net.ErrClosed)
			wantIs(t, <-errs, net.ErrClosed)
			go func() { _, err := b.Write(make([]byte, 1<<20)); errs <- err }()
			wantIs(t, <-errs, syscall.EPIPE)
		})
	})
	for _, end := range []string{"a", "b"} {
		t.Run("reset-"+end, func(t *testing.T) {
			onPair(t, func(t *testing.T, n *transport.Network, a, b net.Conn) {
				wantWrite(t, a, "lost")
				n.Reset(end)
				for _, c := range []net.Conn{a, b} {
					_, err := c.Read(make([]byte, 1))
					wantIs(t, err, syscall.ECONNRESET)
					if _, err := c.Write([]byte("x")); err == nil {
						t.Error("write after a reset succeeds")
					}
				}
			})
		})
	}
	t.Run("crash", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := transport.NewNetwork()
			l, err := n.Listen("b")
			if err != nil {
				t.Fatal(err)
			}
			a, err := n.Dialer("a")(t.Context(), "b")
			if err != nil {
				t.Fatal(err)
			}
			n.Crash("b")
			n.Crash("nobody")
			_, err = a.Read(make([]byte, 1))
			wantIs(t, err, syscall.ECONNRESET)
			_, err = n.Dialer("a")(t.Context(), "b")
			wantIs(t, err, syscall.ECONNREFUSED)
			_, err = l.Accept()
			wantIs(t, err, net.ErrClosed)
		})
	})
}

// A reset reaches both ends at once: neither sees how the other end, which knows of it,
// hangs up.
func TestNetworkReset(t *testing.T) {
	n := transport.NewNetwork()
	for i := range 500 {
		a, b := pair(t, n)
		var ends sync.WaitGroup
		for end, c := range map[string]net.Conn{"a": a, "b": b} {
			ends.Go(func() {
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("round %d: end %s: %v", i, end, err)
				}
				c.Close()
			})
		}
		n.Reset("b")
		ends.Wait()
	}
}

func TestNetworkDeadlines(t *testing.T) {
	onPair(t, func(t *testing.T, _ *transport.Network, a, b net.Conn) {
		start := time.Now()
		a.SetReadDeadline(start.Add(time.Second))
		_, err := a.Read(make([]byte, 1))
		wantIs(t, err, os.ErrDeadlineExceeded)
		if netErr, ok := errors.AsType[net.Error](err); !ok || !netErr.Timeout() {
			t.Errorf("%v is no timeout", err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("after %v", d)
		}
		// Data that arrives before the deadline is read, also afterwards.
		wantWrite(t, b, "x")
		_, err = a.Read(make([]byte, 1))
		wantIs(t, err, os.ErrDeadlineExceeded)
		a.SetReadDeadline(time.Time{})
		wantRead(t, a, "x")

		a.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := a.Write(make([]byte, 1<<20))
		wantIs(t, err, os.ErrDeadlineExceeded)
		if n <= 0 || n >= 1<<20 {
			t.Errorf("wrote %d bytes into a bounded buffer", n)
		}
		a.SetWriteDeadline(time.Time{})
		go io.Copy(io.Discard, b)
		wantWrite(t, a, "more")

		// A new deadline ends a waiting read.
		errs := make(chan error, 1)
		go func() { _, err := a.Read(make([]byte, 1)); errs <- err }()
		synctest.Wait()
		a.SetDeadline(time.Now())
		wantIs(t, <-errs, os.ErrDeadlineExceeded)
	})
}

func TestNetworkBackPressure(t *testing.T) {
	onPair(t, func(t *testing.T, _ *transport.Network, a, b net.Conn) {
		done := make(chan struct{})
		go func() {
			a.Write(make([]byte, 1<<20))
			close(done)
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("1 MiB fits a connection that nobody reads")
		default:
		}
		if _, err := io.CopyN(io.Discard, b, 1<<20); err != nil {
			t.Fatal(err)
		}
		<-done
	})
}

func TestNetworkLatency(t *testing.T) {
	onPair(t, func(t *testing.T, n *transport.Network, a, b net.Conn) {
		wantWrite(t, a, "old")
		n.Latency(10 * time.Millisecond)
		start := time.Now()
		wantWrite(t, a, "1")
		time.Sleep(5 * time.Millisecond)
		wantWrite(t, a, "2")
		a.Close()
		wantRead(t, b, "old")
		if d := time.Since(start); d != 5*time.Millisecond {
			t.Errorf("what was under way came after %v", d)
		}
		wantRead(t, b, "1")
		if d := time.Since(start); d != 10*time.Millisecond {
			t.Errorf("after %v", d)
		}
		wantRead(t, b, "2")
		if d := time.Since(start); d != 15*time.Millisecond {
			t.Errorf("after %v", d)
		}
		if _, err := b.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("got %v", err)
		}
		l, err := n.Listen("c")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		start = time.Now()
		if _, err := n.Dialer("a")(t.Context(), "c"); err != nil || time.Since(start) != 20*time.Millisecond {
			t.Errorf("dialled in %v, %v", time.Since(start), err)
		}
	})
}

func TestNetworkPartition(t *testing.T) {
	for _, c := range []struct {
		name   string
		cut    func(n *transport.Network)
		ab, ba bool // passes
	}{
		{"partition", func(n *transport.Network) { n.Partition("b", "a") }, false, false},
		{"isolate", func(n *transport.Network) { n.Isolate("a") }, false, false},
		{"block", func(n *transport.Network) { n.Block("a", "b") }, false, true},
		{"others", func(n *transport.Network) { n.Partition("a", "c"); n.Isolate("d") }, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			onPair(t, func(t *testing.T, n *transport.Network, a, b net.Conn) {
				c.cut(n)
				for _, way := range []struct {
					from, to net.Conn
					passes   bool
				}{{a, b, c.ab}, {b, a, c.ba}} {
					wantWrite(t, way.from, "x")
					way.to.SetReadDeadline(time.Now().Add(time.Hour))
					_, err := way.to.Read(make([]byte, 1))
					if passed := err == nil; passed != way.passes {
						t.Errorf("from %v: passed is %v, %v", way.from.LocalAddr(), passed, err)
					}
					way.to.SetReadDeadline(time.Time{})
				}
				l, err := n.Listen("b")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				_, err = n.Dialer("a")(ctx, "b")
				if ok := err == nil; ok != (c.ab && c.ba) {
					t.Errorf("dialling: %v", err)
				} else if !ok {
					wantIs(t, err, context.DeadlineExceeded)
				}
				dialled := make(chan error, 1)
				go func() { _, err := n.Dialer("a")(t.Context(), "b"); dialled <- err }()
				synctest.Wait()
				// An end during the partition is noticed only after it.
				b.Close()
				n.Heal()
				if !c.ab {
					wantIs(t, <-dialled)
				}
				if !c.ba {
					wantRead(t, a, "x")
				}
				if _, err := a.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("got %v", err)
				}
			})
		})
	}
	t.Run("crash-behind-a-partition", func(t *testing.T) {
		onPair(t, func(t *testing.T, n *transport.Network, a, b net.Conn) {
			n.Partition("a", "b")
			n.Crash("b")
			a.SetReadDeadline(time.Now().Add(time.Hour))
			_, err := a.Read(make([]byte, 1))
			wantIs(t, err, os.ErrDeadlineExceeded)
			a.SetReadDeadline(time.Time{})
			wantWrite(t, a, "x")
			_, err = b.Read(make([]byte, 1))
			wantIs(t, err, syscall.ECONNRESET)
			n.Heal()
			_, err = a.Read(make([]byte, 1))
			wantIs(t, err, syscall.ECONNRESET)
		})
	})
}

// Random reads and writes of random sizes give the bytes back.
func TestNetworkCarriesBytes(t *testing.T) {
	for _, latency := range []time.Duration{0, time.Millisecond} {
		t.Run(fmt.Sprintf("latency=%v", latency), func(t *testing.T) {
			onPair(t, func(t *testing.T, n *transport.Network, a, b net.Conn) {
				n.Latency(latency)
				want := pattern(4<<20, 7)
				var wg sync.WaitGroup
				wg.Go(func() {
					r := rand.New(rand.NewPCG(1, 1))
					for rest := want; len(rest) > 0; {
						k := min(len(rest), 1+r.IntN(1<<r.IntN(20)))
						if _, err := a.Write(rest[:k]); err != nil {
							t.Error(err)
							return
						}
						rest = rest[k:]
					}
					a.Close()
				})
				r := rand.New(rand.NewPCG(2, 2))
				var got []byte
				buf := make([]byte, 1<<20)
				for {
					k, err := b.Read(buf[:1+r.IntN(1<<r.IntN(20))])
					got = append(got, buf[:k]...)
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				wg.Wait()
				if !bytes.Equal(got, want) {
					t.Errorf("got %d bytes, not those that were written", len(got))
				}
			})
		})
	}
}
