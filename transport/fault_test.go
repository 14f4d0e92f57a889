package transport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/transport"
)

// bubble runs f in virtual time over the memory network.
func bubble(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t, transport.NewNetwork())) })
}

func downs(ch chan transport.Down) func(*transport.Options) {
	return func(o *transport.Options) { o.Down = func(d transport.Down) { ch <- d } }
}

// A peer that dies is reported once, as refused, by whoever had a connection to
// it, in either direction, without any time passing.
func TestDownRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		kill func(w *world, b *transport.Transport)
	}{
		{"crash", func(w *world, b *transport.Transport) { w.memory.Crash("b"); b.Close() }},
		{"close", func(w *world, b *transport.Transport) { b.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				down := make(chan transport.Down, 10)
				a := w.node(0, handle(echo), downs(down))
				o := w.options(1)
				o.Handle = echo
				b := w.start(o)
				start := time.Now()
				for class := range transport.Class(3) {
					if _, err := a.Call(t.Context(), 1, class, 0, nil); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := b.Call(t.Context(), 0, transport.Control, 0, nil); err != nil {
					t.Fatal(err)
				}
				c.kill(w, b)
				synctest.Wait()
				d := <-down
				if d.Peer != o.Self || !d.Refused || d.Replaced || d.Err == nil {
					t.Errorf("got %+v", d)
				}
				if n := len(down); n != 0 {
					t.Errorf("%d more reports: %+v", n, <-down)
				}
				if got := time.Since(start); got != 0 {
					t.Errorf("it took %v", got)
				}
			})
		})
	}
}

// The same when only the dead peer had dialled.
func TestDownOfDialler(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		down := make(chan transport.Down, 10)
		w.node(0, handle(echo), downs(down))
		b := w.node(1)
		if _, err := b.Call(t.Context(), 0, transport.Control, 0, nil); err != nil {
			t.Fatal(err)
		}
		w.memory.Crash("b")
		synctest.Wait()
		if d := <-down; !d.Refused || d.Peer.Node != 1 {
			t.Errorf("got %+v", d)
		}
	})
}

// Nobody can be re-dialled where the peer does not listen.
func TestDownOfClient(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		down := make(chan transport.Down, 10)
		w.node(0, handle(echo), downs(down))
		for _, name := range []string{"x", "y"} {
			c := w.start(transport.Options{Self: transport.Peer{Node: transport.NoNode, Incarnation: 7}, Dial: w.memory.Dialer(name)})
			if _, err := c.CallAddr(t.Context(), "a", transport.Control, 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		w.memory.Reset("x")
		w.memory.Reset("y")
		for range 2 {
			if d := <-down; d.Refused || d.Peer.Incarnation != 7 {
				t.Errorf("got %+v", d)
			}
		}
	})
}

// A dying process may accept the re-dial before its listener is gone.
func TestDownOfPeerThatAcceptsWhileDying(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		down := make(chan transport.Down, 10)
		a := w.node(0, downs(down))
		b := w.node(1, handle(echo))
		if _, err := a.Call(t.Context(), 1, transport.Live, 0, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		w.memory.Latency(time.Millisecond)
		w.memory.Reset("b")
		time.Sleep(3 * time.Millisecond) // dialled, but no handshake yet
		w.memory.Crash("b")
		b.Close()
		if d := <-down; !d.Refused {
			t.Errorf("got %+v", d)
		}
	})
}

// That nobody listens at a peer's next address says nothing about the process at
// the old one.
func TestRefusedElsewhereIsNoEvidence(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		down := make(chan transport.Down, 10)
		a := w.node(0, downs(down))
		w.node(1, handle(echo))
		if _, err := a.Call(t.Context(), 1, transport.Live, 0, nil); err != nil {
			t.Fatal(err)
		}
		w.setAddr(1, "z")
		w.memory.Reset("b")
		if d := <-down; d.Refused {
			t.Errorf("got %+v", d)
		}
	})
}

// When a peer's connection to us breaks, our own to it is put to the test: a new
// one takes its place, and the old one ends without being news.
func TestProbeReplacesConnection(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		down := make(chan transport.Down, 10)
		a := w.node(0, handle(echo), downs(down))
		var dialled net.Conn
		b := w.node(1, handle(echo), func(o *transport.Options) {
			dial := o.Dial
			o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				c, err := dial(ctx, addr)
				dialled = c
				return c, err
			}
		})
		for tr, node := range map[*transport.Transport]int32{a: 1, b: 0} {
			if _, err := tr.Call(t.Context(), node, transport.Live, 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		dialled.Close()
		synctest.Wait()
		if d := <-down; d.Refused || d.Replaced || len(down) != 0 {
			t.Errorf("got %+v, and %d more", d, len(down))
		}
		if s := a.Stats(); s.Connections != 1 || s.Dials != 2 {
			t.Errorf("%+v", s)
		}
		if s := b.Stats(); s.Connections != 1 {
			t.Errorf("%+v", s)
		}
		if _, err := a.Call(t.Context(), 1, transport.Live, 0, nil); err != nil {
			t.Fatal(err)
		}
	})
}

// A process that only seemed dead, and then dies, is reported again.
func TestDownAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		down := make(chan transport.Down, 10)
		w.node(0, handle(echo), downs(down))
		b := w.node(1)
		for range 3 {
			if _, err := b.Call(t.Context(), 0, transport.Live, 0, nil); err != nil {
				t.Fatal(err)
			}
			w.memory.Crash("b") // the listener is gone, the process is not
			synctest.Wait()
			if d := <-down; !d.Refused || len(down) != 0 {
				t.Errorf("got %+v, and %d more", d, len(down))
			}
			time.Sleep(time.Minute)
		}
	})
}

// A broken connection to a living peer is no evidence of death; a peer that is
// back in another incarnation is.
func TestDownButAlive(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		down := make(chan transport.Down, 10)
		a := w.node(0, downs(down))
		b := w.node(1, handle(echo))
		call := func() {
			t.Helper()
			if _, err := a.Call(t.Context(), 1, transport.Live, 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		call()
		w.memory.Reset("b")
		synctest.Wait()
		if d := <-down; d.Refused || d.Replaced || !errors.Is(d.Err, syscall.ECONNRESET) {
			t.Errorf("got %+v", d)
		}
		if n := a.Stats().Dials; n != 2 {
			t.Errorf("%d dials, want 2", n)
		}
		call()
		if n := a.Stats().Dials; n != 2 {
			t.Errorf("%d dials, want 2: the re-dialled connection was not used", n)
		}
		time.Sleep(time.Hour)

		// The process is replaced in the moment between the break and the re-dial.
		w.memory.Partition("a", "b")
		w.memory.Crash("b")
		b.Close()
		w.node(1, handle(echo))
		w.memory.Heal()
		synctest.Wait()
		if d := <-down; d.Refused || !d.Replaced {
			t.Errorf("got %+v", d)
		}
		call()
	})
}

// An idle link that breaks is noticed by pings in bounded time, on both sides,
// whichever direction is dead; the re-dial does not end in a refusal.
func TestSilence(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  func(n *transport.Network)
	}{
		{"both", func(n *transport.Network) { n.Partition("a", "b") }},
		{"isolated", func(n *transport.Network) { n.Isolate("b") }},
		{"requests", func(n *transport.Network) { n.Block("a", "b") }},
		{"replies", func(n *transport.Network) { n.Block("b", "a") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				downA, downB := make(chan transport.Down, 10), make(chan transport.Down, 10)
				a := w.node(0, downs(downA))
				entered, left := make(chan struct{}), make(chan struct{})
				w.node(1, downs(downB), handle(func(ctx context.Context, r *transport.Request) (*transport.Reply, error) {
					close(entered)
					<-ctx.Done()
					close(left)
					return nil, nil
				}))
				errs := make(chan error, 1)
				go func() {
					_, err := a.Call(t.Context(), 1, transport.Control, 0, nil)
					errs <- err
				}()
				<-entered
				time.Sleep(time.Hour)
				c.cut(w.memory)
				start := time.Now()
				wantIs(t, <-errs, transport.ErrUnknownOutcome)
				if d := time.Since(start); d > 5*time.Second {
					t.Errorf("the caller noticed after %v", d)
				}
				<-left
				if d := time.Since(start); d > 7*time.Second {
					t.Errorf("the handler noticed after %v", d)
				}
				if d := <-downA; d.Refused {
					t.Errorf("got %+v", d)
				}
				if d := <-downB; d.Refused {
					t.Errorf("got %+v", d)
				}
			})
		})
	}
}

// A link that breaks while a large body is on its way, so that no ping can leave,
// is noticed as soon.
func TestSilenceDuringTransfer(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.node(0)
		w.node(1, handle(echo))
		if _, err := a.Call(t.Context(), 1, transport.Live, 0, nil); err != nil {
			t.Fatal(err)
		}
		w.memory.Partition("a", "b")
		start := time.Now()
		_, err := a.Call(t.Context(), 1, transport.Live, 0, make([]byte, 4<<20))
		wantIs(t, err, transport.ErrUnknownOutcome)
		if d := time.Since(start); d > 6*time.Second {
			t.Errorf("noticed after %v", d)
		}
	})
}

// Of the calls that wait when a connection ends, those still queued were not sent
// and say so.
func TestQueuedCallsWereNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.node(0, func(o *transport.Options) { o.KeepAlive = -1 })
		w.node(1, handle(echo))
		if _, err := a.Call(t.Context(), 1, transport.Live, 0, nil); err != nil {
			t.Fatal(err)
		}
		w.memory.Partition("a", "b")
		first, second := make(chan error, 1), make(chan error, 1)
		call := func(ch chan error, n int) {
			_, err := a.Call(t.Context(), 1, transport.Live, 0, make([]byte, n))
			ch <- err
		}
		go call(first, 1<<20)
		synctest.Wait()
		go call(second, 10)
		synctest.Wait()
		w.memory.Reset("a")
		wantIs(t, <-first, transport.ErrUnknownOutcome)
		wantIs(t, <-second, transport.ErrUnreachable, syscall.ECONNRESET)
		w.memory.Heal()
	})
}

// A payload is given back once, also if its connection ends before or while it is
// written, or before its handler has returned it.
func TestPayloadsAreReleased(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		payloads := []*payload{newPayload(make([]byte, 4<<20)), newPayload(make([]byte, 10)), newPayload(make([]byte, 10))}
		late := make(chan struct{})
		a := w.node(0)
		w.node(1, handle(func(ctx context.Context, r *transport.Request) (*transport.Reply, error) {
			if r.Kind == 2 {
				<-ctx.Done()
				<-late
			}
			return &transport.Reply{Payload: payloads[r.Kind]}, nil
		}))
		if err := a.Send(1, transport.Live, 0, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.memory.Block("b", "a")
		errs := make(chan error, len(payloads))
		for kind := range payloads {
			go func() {
				_, err := a.Call(t.Context(), 1, transport.Live, uint16(kind), nil)
				errs <- err
			}()
			synctest.Wait()
		}
		w.memory.Reset("a")
		w.memory.Heal()
		for range payloads {
			wantIs(t, <-errs, transport.ErrUnknownOutcome)
		}
		close(late)
		synctest.Wait()
		for kind, p := range payloads {
			if n := p.releases.Load(); n != 1 {
				t.Errorf("payload %d was released %d times", kind, n)
			}
		}
	})
}

// Calls above MaxInFlight wait for room on the calling side.
func TestCallsAboveLimitWait(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const limit = 4
		running, peak := 0, 0
		var mu sync.Mutex
		a := w.node(0, func(o *transport.Options) { o.MaxInFlight = limit })
		w.node(1, handle(func(context.Context, *transport.Request) (*transport.Reply, error) {
			mu.Lock()
			running++
			peak = max(peak, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return nil, nil
		}))
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 * limit {
			wg.Go(func() {
				if _, err := a.Call(t.Context(), 1, transport.Live, 0, nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); peak != limit || d != 3*time.Second {
			t.Errorf("%d at once, %v in all", peak, d)
		}
	})
}

// A connection without traffic costs little and lives on.
func TestIdleForDays(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		down := make(chan transport.Down, 10)
		a := w.node(0, downs(down), func(o *transport.Options) { o.KeepAlive = time.Minute })
		w.node(1, handle(echo), downs(down))
		for class := range transport.Class(3) {
			if _, err := a.Call(t.Context(), 1, class, 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(7 * 24 * time.Hour)
		if s := a.Stats(); s.Dials != 3 || s.Connections != 3 || len(down) != 0 {
			t.Errorf("%+v, %d down", s, len(down))
		}
		if n := a.Stats().BytesSent; n > 3*7*24*60*30+1000 {
			t.Errorf("%d bytes of pings", n)
		}
	})
}

// Large transfers at a slow pace are no silence: latency and a reader that takes
// its time do not end the connection.
func TestSlowTransferIsNotSilence(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.node(0)
		w.node(1, handle(func(_ context.Context, r *transport.Request) (*transport.Reply, error) {
			return &transport.Reply{Body: r.Body, Payload: newPayload(pattern(24<<20, 1))}, nil
		}))
		if _, err := a.Call(t.Context(), 1, transport.CatchUp, 0, nil); err != nil {
			t.Fatal(err)
		}
		w.memory.Latency(500 * time.Millisecond) // 256 KiB in flight: 512 KiB/s
		start := time.Now()
		r, err := a.Call(t.Context(), 1, transport.CatchUp, 0, make([]byte, 4<<20))
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Payload) != 24<<20 || time.Since(start) < 40*time.Second {
			t.Errorf("%d bytes in %v", len(r.Payload), time.Since(start))
		}
	})
}

// During a partition calls end with ctx, messages are bounded, and after healing
// everything works; what was written arrives once and in order.
func TestPartitionHeals(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var got []uint32
		a := w.node(0, func(o *transport.Options) { o.KeepAlive, o.MaxQueueBytes = -1, 1<<20 })
		w.node(1, handle(echo), func(o *transport.Options) {
			o.KeepAlive = -1
			o.Receive = func(_ transport.Peer, _ uint16, body []byte) { got = append(got, binary.BigEndian.Uint32(body)) }
		})
		if _, err := a.Call(t.Context(), 1, transport.Live, 0, nil); err != nil {
			t.Fatal(err)
		}
		w.memory.Partition("a", "b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.Call(ctx, 1, transport.Live, 0, nil)
		wantIs(t, err, transport.ErrUnknownOutcome, context.DeadlineExceeded)
		var sent []uint32
		overloaded := false
		for i := range uint32(100) {
			body := make([]byte, 50_000)
			binary.BigEndian.PutUint32(body, i)
			switch err := a.Send(1, transport.Live, 0, body); {
			case err == nil:
				sent = append(sent, i)
			default:
				wantIs(t, err, transport.ErrOverloaded)
				overloaded = true
			}
			synctest.Wait()
		}
		if !overloaded || len(sent) < 20 || len(sent) > 40 {
			t.Errorf("%d messages were taken", len(sent))
		}
		// A call waits for room, and was not sent when it gives up.
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = a.Call(ctx, 1, transport.Live, 0, make([]byte, 60_000))
		wantIs(t, err, transport.ErrUnreachable, context.DeadlineExceeded)
		waiting := make(chan error)
		go func() {
			_, err := a.Call(t.Context(), 1, transport.Live, 0, make([]byte, 60_000))
			waiting <- err
		}()
		synctest.Wait()
		if n := a.Stats().QueuedBytes; n > 1<<20 {
			t.Errorf("%d bytes are queued", n)
		}
		w.memory.Heal()
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the answer may overtake the note that the call was written
		if n := a.Stats().QueuedBytes; n != 0 {
			t.Errorf("%d bytes are queued", n)
		}
		if !slices.Equal(got, sent) {
			t.Errorf("got %v, want %v", got, sent)
		}
	})
}

// A call that gives up while it is queued was not sent, and is not sent later.
func TestCallGivesUpInQueue(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var kinds []uint16
		a := w.node(0, func(o *transport.Options) { o.KeepAlive = -1 })
		w.node(1, func(o *transport.Options) {
			o.Handle = func(_ context.Context, r *transport.Request) (*transport.Reply, error) {
				kinds = append(kinds, r.Kind)
				return nil, nil
			}
		})
		call := func(ctx context.Context, kind uint16, n int) error {
			_, err := a.Call(ctx, 1, transport.Live, kind, make([]byte, n))
			return err
		}
		if err := call(t.Context(), 0, 0); err != nil {
			t.Fatal(err)
		}
		w.memory.Partition("a", "b")
		var wg sync.WaitGroup
		wg.Go(func() { // fills the connection: the writer is stuck with it
			if err := call(t.Context(), 1, 1<<20); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantIs(t, call(ctx, 2, 10), transport.ErrUnreachable, context.DeadlineExceeded)
		w.memory.Heal()
		wg.Wait()
		if err := call(t.Context(), 3, 0); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(kinds, []uint16{0, 1, 3}) {
			t.Errorf("the peer got %v", kinds)
		}
	})
}

// Messages that were sent before the connection was there arrive, in order.
func TestSendWhileDialling(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var got []byte
		w.memory.Latency(time.Second)
		a := w.node(0, func(o *transport.Options) { o.MaxQueueBytes = 1000 })
		w.node(1, func(o *transport.Options) {
			o.Receive = func(_ transport.Peer, _ uint16, body []byte) { got = append(got, body...) }
		})
		for i := range byte(5) {
			if err := a.Send(1, transport.Control, 0, []byte{i}); err != nil {
				t.Fatal(err)
			}
		}
		wantIs(t, a.Send(1, transport.Control, 0, make([]byte, 1000)), transport.ErrOverloaded)
		time.Sleep(2500 * time.Millisecond)
		if err := a.Send(1, transport.Control, 0, []byte{5}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want := []byte{0, 1, 2, 3, 4, 5}; !bytes.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// The pause after failed dials doubles up to its maximum, and calls fail at once
// meanwhile.
func TestBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.listen(1).Close()
		a := w.node(0)
		start := time.Now()
		for time.Since(start) < time.Minute {
			at := time.Now()
			_, err := a.Call(t.Context(), 1, transport.Control, 0, nil)
			wantIs(t, err, transport.ErrUnreachable, syscall.ECONNREFUSED)
			if d := time.Since(at); d != 0 {
				t.Fatalf("a call during the pause took %v", d)
			}
			time.Sleep(time.Millisecond)
		}
		// 20, 40, 80 … 640 ms, then 1 s each, all of them times 1/2 to 1.
		if n := a.Stats().Dials; n < 60 || n > 135 {
			t.Errorf("%d dials in a minute", n)
		}
	})
}

// A peer that accepts and hangs up is not dialled in a tight loop, neither by
// calls nor by the re-dial.
func TestPeerThatHangsUp(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var n atomic.Int64
		a := w.node(0, func(o *transport.Options) { o.Down = func(transport.Down) { n.Add(1) } })
		w.node(1, handle(func(context.Context, *transport.Request) (*transport.Reply, error) {
			go w.memory.Reset("a")
			return nil, errors.New("hanging up")
		}))
		start := time.Now()
		for time.Since(start) < time.Minute {
			a.Call(t.Context(), 1, transport.Control, 0, nil)
			time.Sleep(time.Millisecond)
		}
		if d := a.Stats().Dials; d < 30 || d > 300 || n.Load() > d {
			t.Errorf("%d dials, %d reports in a minute", d, n.Load())
		}
	})
}

// Connections by address are closed when nobody uses them; that is no loss.
func TestCallAddrIsClosedWhenIdle(t *testing.T) {
	for _, keepAlive := range []time.Duration{0, -1} {
		bubble(t, func(t *testing.T, w *world) {
			down := make(chan transport.Down, 10)
			set := func(o *transport.Options) { o.KeepAlive = keepAlive }
			b := w.node(1, set, downs(down), handle(func(_ context.Context, r *transport.Request) (*transport.Reply, error) {
				time.Sleep(time.Duration(r.Kind) * time.Second)
				return nil, nil
			}))
			a := w.node(0, set, downs(down))
			call := func(kind uint16) {
				t.Helper()
				if _, err := a.CallAddr(t.Context(), "b", transport.Control, kind, nil); err != nil {
					t.Fatal(err)
				}
			}
			call(0)
			time.Sleep(50 * time.Second)
			call(300) // longer than the limit, but not idle
			call(0)
			if n := a.Stats().Dials; n != 1 {
				t.Errorf("%d dials, want 1", n)
			}
			time.Sleep(3 * time.Minute)
			if n, m := a.Stats().Connections, b.Stats().Connections; n != 0 || m != 0 {
				t.Errorf("%d and %d connections are left", n, m)
			}
			call(0)
			if len(down) != 0 {
				t.Errorf("%+v", <-down)
			}
		})
	}
}

// Close ends everything at once: dials that hang, handshakes that hang, calls,
// handlers.
func TestCloseDoesNotWait(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		silent := w.listen(2) // accepts nothing: the handshake hangs
		defer silent.Close()
		a := w.node(0)
		w.memory.Partition("a", "d")
		w.setAddr(3, "d")
		w.node(1, handle(func(ctx context.Context, _ *transport.Request) (*transport.Reply, error) {
			<-ctx.Done()
			return nil, nil
		}))
		raw, err := w.memory.Dialer("x")(t.Context(), "a") // says nothing
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		errs := make(chan error, 3)
		for node := range int32(3) {
			go func() {
				_, err := a.Call(t.Context(), node+1, transport.Control, 0, nil)
				errs <- err
			}()
		}
		synctest.Wait()
		start := time.Now()
		a.Close()
		for range 3 {
			wantIs(t, <-errs, transport.ErrClosed)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// What handlers return because Close cancelled them is no answer.
func TestCloseAnswersNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const calls = 500
		a := w.node(0)
		b := w.node(1, handle(func(ctx context.Context, _ *transport.Request) (*transport.Reply, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		errs := make(chan error, calls)
		for i := range calls {
			go func() {
				_, err := a.Call(t.Context(), 1, transport.Class(i%3), 0, nil)
				errs <- err
			}()
		}
		synctest.Wait()
		b.Close()
		for range calls {
			wantIs(t, <-errs, transport.ErrUnknownOutcome)
		}
	})
}

// A failing listener is tried again; one that somebody else closed is given up.
func TestAcceptErrors(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		o := w.options(1)
		l := &failingListener{Listener: o.Listener, fail: 10}
		o.Listener, o.Handle = l, echo
		w.start(o)
		a := w.node(0)
		if _, err := a.Call(t.Context(), 1, transport.Control, 0, nil); err != nil {
			t.Fatal(err)
		}
		l.Listener.Close()
	})
}

type failingListener struct {
	net.Listener
	fail int
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.fail > 0 {
		l.fail--
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}
