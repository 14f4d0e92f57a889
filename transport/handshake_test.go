package transport_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/cordwood-io/cordwood/transport"
)

// Each kind of mismatch is a typed error on both sides, and no frame passes.
func TestMismatch(t *testing.T) {
	denied := errors.New("not you")
	for _, c := range []struct {
		name   string
		dials  func(*transport.Options) // node 0
		takes  func(*transport.Options) // dialled as node 1
		want   error
		byPeer bool // the accepting side refuses
	}{
		{"format-too-old",
			func(o *transport.Options) { o.Self.Format, o.Self.OldestFormat = 3, 2 },
			func(o *transport.Options) { o.Self.Format = 1 },
			transport.ErrFormatMismatch, true},
		{"format-too-new",
			func(o *transport.Options) { o.Self.Format = 1 },
			func(o *transport.Options) { o.Self.Format, o.Self.OldestFormat = 3, 2 },
			transport.ErrFormatMismatch, true},
		{"cluster",
			func(o *transport.Options) { o.Self.Cluster = id(1) },
			func(o *transport.Options) { o.Self.Cluster = id(2) },
			transport.ErrClusterMismatch, true},
		{"node", nil,
			func(o *transport.Options) { o.Self.Node = 2 },
			transport.ErrNodeMismatch, true},
		{"number-of-another-node",
			func(o *transport.Options) { o.Self.Node, o.Self.Directory = 1, id(1) },
			func(o *transport.Options) { o.Self.Directory = id(2) },
			transport.ErrDirectoryMismatch, true},
		{"directory-on-record-at-acceptor",
			func(o *transport.Options) { o.Self.Directory = id(1) },
			func(o *transport.Options) {
				o.Directory = func(n int32) (transport.ID, bool) { return id(9), n == 0 }
			},
			transport.ErrDirectoryMismatch, true},
		{"directory-on-record-at-dialler",
			func(o *transport.Options) {
				o.Directory = func(n int32) (transport.ID, bool) { return id(9), n == 1 }
			},
			func(o *transport.Options) { o.Self.Directory = id(1) },
			transport.ErrDirectoryMismatch, false},
		{"acceptor-does-not-authorize", nil,
			func(o *transport.Options) {
				o.Authorize = func(_ context.Context, c net.Conn, p transport.Peer) error {
					if p.Node != 0 || c.RemoteAddr() == nil {
						return nil
					}
					return denied
				}
			},
			transport.ErrUnauthorized, true},
		{"dialler-does-not-authorize",
			func(o *transport.Options) {
				o.Authorize = func(_ context.Context, c net.Conn, p transport.Peer) error {
					if p.Node != 1 {
						return nil
					}
					return denied
				}
			},
			nil,
			transport.ErrUnauthorized, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world) {
				refusals := make(chan *transport.HandshakeError, 2)
				b := w.options(1)
				b.Handle = func(context.Context, *transport.Request) (*transport.Reply, error) {
					t.Error("a call came through")
					return nil, nil
				}
				b.Receive = func(transport.Peer, uint16, []byte) { t.Error("a message came through") }
				b.Rejected = func(e *transport.HandshakeError) { refusals <- e }
				if c.takes != nil {
					c.takes(&b)
				}
				w.start(b)
				o := w.options(0)
				if c.dials != nil {
					c.dials(&o)
				}
				a := w.start(o)
				if err := a.Send(1, transport.Control, 0, []byte("x")); err != nil {
					t.Fatal(err)
				}
				_, err := a.Call(t.Context(), 1, transport.Control, 0, []byte("x"))
				wantIs(t, err, transport.ErrUnreachable, c.want)
				check := func(side string, e *transport.HandshakeError, byPeer bool, local, remote transport.Peer) {
					if e.Reason != c.want || e.ByPeer != byPeer || e.Local != local || e.Remote != remote {
						t.Errorf("%s: got %+v", side, e)
					}
					if c.want == transport.ErrUnauthorized && !byPeer && !errors.Is(e, denied) {
						t.Errorf("%s: cause is missing in %v", side, e)
					}
				}
				e, ok := errors.AsType[*transport.HandshakeError](err)
				if !ok {
					t.Fatalf("got %v", err)
				}
				check("dialler", e, c.byPeer, o.Self, b.Self)
				check("acceptor", <-refusals, !c.byPeer, b.Self, o.Self)
			})
		})
	}
}

func TestZeroMatches(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b transport.Peer
	}{
		{"cluster-of-dialler", transport.Peer{}, transport.Peer{Cluster: id(1)}},
		{"cluster-of-acceptor", transport.Peer{Cluster: id(1)}, transport.Peer{}},
		{"directory", transport.Peer{Node: 1, Directory: id(1)}, transport.Peer{}},
		{"formats-that-meet", transport.Peer{Format: 3, OldestFormat: 2}, transport.Peer{Format: 2, OldestFormat: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			worlds(t, func(t *testing.T, w *world) {
				w.node(1, handle(echo), func(o *transport.Options) { c.b.Node = 1; o.Self = c.b })
				a := w.node(0, func(o *transport.Options) { o.Self = c.a })
				if _, err := a.Call(t.Context(), 1, transport.Control, 0, nil); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// A node that learns its cluster goes on with its calls, is known to its peers
// under the new identity, and is cut off from another cluster.
func TestSetSelf(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		entered, release := make(chan struct{}), make(chan struct{})
		froms := make(chan transport.Peer, 1)
		down := make(chan transport.Down, 10)
		b := w.node(1, handle(func(_ context.Context, r *transport.Request) (*transport.Reply, error) {
			if r.Kind == 1 {
				entered <- struct{}{}
				<-release
			}
			froms <- r.From
			return &transport.Reply{Body: r.Body}, nil
		}), func(o *transport.Options) {
			o.Self.Cluster = id(1)
			o.Down = func(d transport.Down) { down <- d }
		})
		w.node(2, handle(echo), func(o *transport.Options) { o.Self.Cluster = id(2) })
		opts := w.options(0)
		opts.Handle = echo
		opts.Down = func(d transport.Down) { down <- d }
		a := w.start(opts)

		if _, err := a.Call(t.Context(), 2, transport.Control, 0, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Call(t.Context(), 0, transport.Control, 0, nil); err != nil {
			t.Fatal(err)
		}
		slow := make(chan error, 1)
		go func() {
			_, err := a.Call(t.Context(), 1, transport.Control, 1, nil)
			slow <- err
		}()
		<-entered
		self := opts.Self
		self.Cluster = id(1)
		if err := a.SetSelf(self); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Call(t.Context(), 1, transport.Control, 0, nil); err != nil {
			t.Fatal(err)
		}
		if got := <-froms; got != self {
			t.Errorf("peer sees %+v, want %+v", got, self)
		}
		close(release)
		if err := <-slow; err != nil {
			t.Errorf("call during SetSelf: %v", err)
		}
		if got := <-froms; got != opts.Self {
			t.Errorf("peer sees %+v, want %+v", got, opts.Self)
		}
		_, err := a.Call(t.Context(), 2, transport.Control, 0, nil)
		wantIs(t, err, transport.ErrUnreachable, transport.ErrClusterMismatch)
		// b's connection to a is replaced too.
		r, err := b.Call(t.Context(), 0, transport.Control, 0, nil)
		for err == nil && r.From != self {
			r, err = b.Call(t.Context(), 0, transport.Control, 0, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case d := <-down:
			t.Errorf("down: %+v", d)
		default:
		}
	})
}
