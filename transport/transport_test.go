package transport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cordwood-io/cordwood/transport"
)

func TestCall(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		requests := make(chan *transport.Request, 1)
		payloads := make(chan *payload, 1)
		w.node(1, handle(func(ctx context.Context, r *transport.Request) (*transport.Reply, error) {
			reply := &transport.Reply{Body: r.Body}
			if r.Kind > 0 {
				p := newPayload(pattern(1<<r.Kind, byte(r.Kind)))
				payloads <- p
				reply.Payload = p
			} else {
				requests <- r
			}
			return reply, nil
		}))
		a := w.node(0)
		for _, n := range []int{0, 1, 16 << 10, 16<<10 + 1, 64 << 10, 300_000, transport.DefaultMaxBodyBytes} {
			t.Run(fmt.Sprintf("body=%d", n), func(t *testing.T) {
				want := pattern(n, 1)
				r, err := a.Call(t.Context(), 1, transport.Live, 0, want)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(r.Body, want) || r.Payload != nil || r.From.Node != 1 {
					t.Errorf("got %d bytes, payload of %d, from %d", len(r.Body), len(r.Payload), r.From.Node)
				}
				if q := <-requests; q.From.Node != 0 || q.Class != transport.Live {
					t.Errorf("handler saw node %d, class %v", q.From.Node, q.Class)
				}
			})
		}
		for _, kind := range []uint16{1, 12, 20, 26} {
			t.Run(fmt.Sprintf("payload=%d", 1<<kind), func(t *testing.T) {
				r, err := a.Call(t.Context(), 1, transport.CatchUp, kind, []byte("x"))
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(r.Payload, pattern(1<<kind, byte(kind))) || string(r.Body) != "x" {
					t.Errorf("got a payload of %d bytes, body %q", len(r.Payload), r.Body)
				}
				p := <-payloads
				<-p.released
				if w, r := p.writes.Load(), p.releases.Load(); w != 1 || r != 1 {
					t.Errorf("%d writes, %d releases", w, r)
				}
			})
		}
		t.Run("too-large", func(t *testing.T) {
			big := make([]byte, transport.DefaultMaxBodyBytes+1)
			_, err := a.Call(t.Context(), 1, transport.Live, 0, big)
			wantIs(t, err, transport.ErrTooLarge)
			wantIs(t, a.Send(1, transport.Live, 0, big), transport.ErrTooLarge)
		})
		t.Run("no-such-class", func(t *testing.T) {
			_, err := a.Call(t.Context(), 1, 3, 0, nil)
			wantIs(t, err, transport.ErrUnreachable)
		})
	})
}

// Calls of one connection overtake each other and find their own replies.
func TestCallsAreMultiplexed(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		const n = 100
		var mu sync.Mutex
		arrived := make(map[uint32]chan struct{})
		for i := range uint32(n + 1) {
			arrived[i] = make(chan struct{})
		}
		close(arrived[n])
		w.node(1, handle(func(ctx context.Context, r *transport.Request) (*transport.Reply, error) {
			i := binary.BigEndian.Uint32(r.Body)
			mu.Lock()
			next, own := arrived[i+1], arrived[i]
			mu.Unlock()
			<-next // answered in reverse order
			close(own)
			return &transport.Reply{Body: r.Body, Payload: newPayload(pattern(int(i)*100+1, byte(i)))}, nil
		}))
		a := w.node(0)
		var wg sync.WaitGroup
		for i := range uint32(n) {
			wg.Go(func() {
				body := binary.BigEndian.AppendUint32(nil, i)
				r, err := a.Call(t.Context(), 1, transport.Control, 0, body)
				if err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(r.Body, body) || !bytes.Equal(r.Payload, pattern(int(i)*100+1, byte(i))) {
					t.Errorf("call %d got another's reply", i)
				}
			})
		}
		wg.Wait()
		if s := a.Stats(); s.Connections != 1 {
			t.Errorf("%d connections, want 1", s.Connections)
		}
	})
}

func TestSendKeepsOrder(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		const n = 5000
		done := make(chan struct{})
		next := [3]uint32{}
		got := 0
		w.node(1, func(o *transport.Options) {
			o.Receive = func(from transport.Peer, kind uint16, body []byte) {
				if i := binary.BigEndian.Uint32(body); i != next[kind] || from.Node != 0 {
					t.Errorf("class %d: got %d from node %d, want %d", kind, i, from.Node, next[kind])
				}
				next[kind]++
				if next[kind] == n {
					done <- struct{}{}
				}
			}
		})
		a := w.node(0)
		for i := range uint32(n) {
			for class := range transport.Class(3) {
				if err := a.Send(1, class, uint16(class), binary.BigEndian.AppendUint32(nil, i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for ; got < 3; got++ {
			<-done
		}
	})
}

func TestHandlerError(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := newPayload([]byte("x"))
		w.node(1, handle(func(context.Context, *transport.Request) (*transport.Reply, error) {
			return &transport.Reply{Payload: p}, errors.New("no such thing")
		}))
		w.node(2)
		a := w.node(0)
		_, err := a.Call(t.Context(), 1, transport.Control, 9, nil)
		remote, ok := errors.AsType[*transport.RemoteError](err)
		if !ok || remote.Text != "no such thing" || remote.Node != 1 || remote.Kind != 9 {
			t.Fatalf("got %v", err)
		}
		<-p.released
		_, err = a.Call(t.Context(), 2, transport.Control, 9, nil)
		if _, ok := errors.AsType[*transport.RemoteError](err); !ok {
			t.Fatalf("node without a handler: %v", err)
		}
	})
}

func TestReplyAboveLimit(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := newPayload(make([]byte, 11))
		w.node(1, func(o *transport.Options) {
			o.MaxBodyBytes, o.MaxPayloadBytes = 10, 10
			o.Handle = func(_ context.Context, r *transport.Request) (*transport.Reply, error) {
				if r.Kind == 1 {
					return &transport.Reply{Body: make([]byte, 11)}, nil
				}
				return &transport.Reply{Payload: p}, nil
			}
		})
		a := w.node(0)
		for kind := range uint16(2) {
			_, err := a.Call(t.Context(), 1, transport.Control, kind, nil)
			if _, ok := errors.AsType[*transport.RemoteError](err); !ok {
				t.Fatalf("got %v", err)
			}
		}
		<-p.released
		if n := p.writes.Load(); n != 0 {
			t.Errorf("a refused payload was written")
		}
	})
}

// A payload that cannot be read fails its call only.
func TestPayloadFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		length int
		data   int
		err    error
		ends   bool
	}{
		{"error-at-once", 1 << 20, 0, errors.New("bad sector"), false},
		{"error-half-way", 1 << 20, 1 << 19, errors.New("bad sector"), false},
		{"error-after-all", 1 << 20, 1 << 20, errors.New("bad sector"), false},
		{"errno", 1 << 20, 100, syscall.EIO, false},
		{"short", 1 << 20, 1<<20 - 1, nil, false},
		{"long", 1 << 20, 1<<20 + 1, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world) {
				p := newPayload(pattern(c.data, 3))
				p.length, p.err = c.length, c.err
				w.node(1, handle(func(_ context.Context, r *transport.Request) (*transport.Reply, error) {
					if r.Kind == 0 {
						return nil, nil
					}
					return &transport.Reply{Payload: p}, nil
				}))
				a := w.node(0)
				_, err := a.Call(t.Context(), 1, transport.CatchUp, 1, nil)
				if c.ends {
					wantIs(t, err, transport.ErrUnknownOutcome)
				} else if _, ok := errors.AsType[*transport.RemoteError](err); !ok {
					t.Fatalf("got %v", err)
				}
				<-p.released
				if n := p.releases.Load(); n != 1 {
					t.Errorf("released %d times", n)
				}
				if c.ends {
					return
				}
				if _, err := a.Call(t.Context(), 1, transport.CatchUp, 0, nil); err != nil {
					t.Fatal(err)
				}
				if s := a.Stats(); s.Dials != 1 {
					t.Errorf("%d dials, want 1: the connection did not survive", s.Dials)
				}
			})
		})
	}
}

// The handler is told when its caller gives up, and when its caller is gone.
func TestHandlerContext(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		entered, left := make(chan struct{}), make(chan struct{})
		b := w.node(1, handle(func(ctx context.Context, _ *transport.Request) (*transport.Reply, error) {
			entered <- struct{}{}
			<-ctx.Done()
			left <- struct{}{}
			return nil, ctx.Err()
		}))
		a := w.node(0)
		errs := make(chan error, 1)
		start := func() context.CancelCauseFunc {
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				_, err := a.Call(ctx, 1, transport.Live, 0, []byte("x"))
				errs <- err
			}()
			<-entered
			return cancel
		}
		cause := errors.New("had enough")
		start()(cause)
		wantIs(t, <-errs, transport.ErrUnknownOutcome, context.Canceled, cause)
		<-left

		cancel := start()
		defer cancel(nil)
		a.Close()
		wantIs(t, <-errs, transport.ErrUnknownOutcome, transport.ErrClosed)
		<-left

		a = w.node(0)
		cancel = start()
		defer cancel(nil)
		closed := make(chan struct{})
		go func() {
			b.Close() // waits for the handler, which it has to wake
			close(closed)
		}()
		<-left
		<-closed
		wantIs(t, <-errs, transport.ErrUnknownOutcome)
	})
}

// Long polls of one class, as many as fit, stop neither other classes nor the
// cancelling of the polls.
func TestClassesDoNotStarveEachOther(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		const limit = 16
		var polls atomic.Int32
		full := make(chan struct{})
		w.node(1, handle(func(ctx context.Context, r *transport.Request) (*transport.Reply, error) {
			if r.Class == transport.Live {
				if polls.Add(1) == limit {
					close(full)
				}
				<-ctx.Done()
				polls.Add(-1)
			}
			return &transport.Reply{Body: r.Body}, nil
		}))
		a := w.node(0, func(o *transport.Options) { o.MaxInFlight = limit })
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		errs := make(chan error, limit+1)
		poll := func(ctx context.Context) {
			_, err := a.Call(ctx, 1, transport.Live, 0, nil)
			errs <- err
		}
		for range limit {
			wg.Go(func() { poll(ctx) })
		}
		<-full
		for _, c := range []transport.Class{transport.Control, transport.CatchUp} {
			if _, err := a.Call(t.Context(), 1, c, 0, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		// One above the limit waits, and was not sent.
		short, stop := context.WithCancel(t.Context())
		wg.Go(func() { poll(short) })
		stop()
		wantIs(t, <-errs, transport.ErrUnreachable, context.Canceled)
		cancel()
		wg.Wait()
		for range limit {
			wantIs(t, <-errs, context.Canceled)
		}
	})
}

func TestOverloadedPeer(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*transport.Options)
		body   int
	}{
		{"calls", func(o *transport.Options) { o.MaxInFlight = 2 }, 10},
		{"bytes", func(o *transport.Options) { o.MaxInFlightBytes = 250_000 }, 100_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world) {
				entered, release := make(chan struct{}, 3), make(chan struct{})
				var ran atomic.Int32
				w.node(1, c.change, handle(func(context.Context, *transport.Request) (*transport.Reply, error) {
					ran.Add(1)
					entered <- struct{}{}
					<-release
					return nil, nil
				}))
				a := w.node(0)
				for round := range int32(3) { // the load goes away each time
					var wg sync.WaitGroup
					for range 2 {
						wg.Go(func() {
							if _, err := a.Call(t.Context(), 1, transport.Control, 0, make([]byte, c.body)); err != nil {
								t.Error(err)
							}
						})
						<-entered
					}
					_, err := a.Call(t.Context(), 1, transport.Control, 0, make([]byte, c.body))
					wantIs(t, err, transport.ErrOverloaded)
					release <- struct{}{}
					release <- struct{}{}
					wg.Wait()
					if n := ran.Load(); n != 2*(round+1) {
						t.Errorf("%d handlers ran, want %d", n, 2*(round+1))
					}
				}
			})
		})
	}
}

func TestUnreachable(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a := w.node(0)
		_, err := a.Call(t.Context(), 7, transport.Control, 0, nil)
		wantIs(t, err, transport.ErrUnreachable)
		wantIs(t, a.Send(7, transport.Control, 0, nil), transport.ErrUnreachable)

		w.listen(1).Close() // an address where nobody listens
		_, err = a.Call(t.Context(), 1, transport.Control, 0, nil)
		wantIs(t, err, transport.ErrUnreachable, syscall.ECONNREFUSED)
		dials := a.Stats().Dials
		_, err = a.Call(t.Context(), 1, transport.Control, 0, nil)
		wantIs(t, err, transport.ErrUnreachable, syscall.ECONNREFUSED)
		if n := a.Stats().Dials; w.memory == nil && n > dials+1 || n < dials {
			t.Errorf("%d dials", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = a.Call(ctx, 1, transport.Control, 0, nil)
		wantIs(t, err, transport.ErrUnreachable, context.Canceled)

		// A new address ends the pause.
		w.node(1, handle(echo))
		if _, err := a.Call(t.Context(), 1, transport.Control, 0, nil); err != nil && w.memory == nil {
			t.Fatal(err)
		}
	})
}

// A node that connects to us is dialled without waiting for the pause to end.
func TestIncomingConnectionEndsPause(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a := w.node(0, handle(echo), func(o *transport.Options) {
			o.BackoffMin, o.BackoffMax = 1<<40, 1<<40
		})
		l := w.listen(1)
		addr := l.Addr().String()
		l.Close()
		_, err := a.Call(t.Context(), 1, transport.Control, 0, nil)
		wantIs(t, err, transport.ErrUnreachable)
		b := w.node(1, handle(echo), func(o *transport.Options) { o.Self.Addr = addr })
		if w.memory == nil {
			t.Skip("a TCP port cannot be taken again for sure")
		}
		_, err = a.Call(t.Context(), 1, transport.Control, 0, nil)
		wantIs(t, err, transport.ErrUnreachable)
		if _, err := b.Call(t.Context(), 0, transport.Live, 0, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Call(t.Context(), 1, transport.Control, 0, nil); err != nil {
			t.Fatal(err)
		}
	})
}

func TestClosed(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		a := w.node(0)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := a.Call(t.Context(), 1, transport.Control, 0, nil)
		wantIs(t, err, transport.ErrClosed, transport.ErrUnreachable)
		_, err = a.CallAddr(t.Context(), "x", transport.Control, 0, nil)
		wantIs(t, err, transport.ErrClosed)
		wantIs(t, a.Send(1, transport.Control, 0, nil), transport.ErrClosed)
		wantIs(t, a.SetSelf(transport.Peer{}), transport.ErrClosed)
	})
}

func TestDialOnlyNodeAndCallAddrAndSelf(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		b := w.node(1, handle(echo))
		addr, _ := w.addr(1)
		host := w.start(transport.Options{
			Self: transport.Peer{Node: transport.NoNode},
			Dial: w.dialer(25),
		})
		r, err := host.CallAddr(t.Context(), addr, transport.Control, 0, []byte("hi"))
		if err != nil || string(r.Body) != "hi" || r.From.Node != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		if r, err := b.Call(t.Context(), 1, transport.Control, 0, []byte("me")); err != nil || string(r.Body) != "me" {
			t.Fatalf("call of itself: %+v, %v", r, err)
		}
	})
}

func TestOptions(t *testing.T) {
	_, err := transport.New(transport.Options{
		Self:             transport.Peer{Node: -2, OldestFormat: 2, Format: 1},
		MaxBodyBytes:     -1,
		HandshakeTimeout: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"node -2", "MaxBodyBytes", "HandshakeTimeout"} {
		if !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}
