package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// FuzzHeader checks that a header decodes to what encodes to the same bytes.
func FuzzHeader(f *testing.F) {
	for _, typ := range []uint8{typeCall, typeReply, typeError, typeMessage, typePing, typeBye} {
		fr := newFrame(typ, 7, 9, []byte("body")[:4*min(1, max(0, typeCancel-int(typ)))])
		f.Add(fr.head[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var head, again [headerBytes]byte
		copy(head[:], b)
		h, err := decodeHeader(&head)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v", err)
			}
			return
		}
		h.encode(&again)
		if head != again {
			t.Errorf("% x became % x", head, again)
		}
	})
}

// FuzzHello checks the decoder of both hellos and of the verdict.
func FuzzHello(f *testing.F) {
	f.Add(appendHello(nil, hello{step: stepDial, peer: Peer{Node: 1, Addr: "a:1"}, target: 2}))
	f.Add(appendHello(nil, hello{step: stepAccept, verdict: verdictNode, peer: Peer{Node: NoNode, Format: 3}, keepAlive: 5}))
	f.Add(appendVerdict(nil, verdictUnauthorized))
	f.Add([]byte("CWD1\x00\x02\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, step := range []uint8{stepDial, stepAccept} {
			r := bytes.NewReader(b)
			h, err := readHello(r, step)
			if err != nil || h.version != protocolNumber {
				continue
			}
			if got, want := appendHello(nil, h), b[:len(b)-r.Len()]; !bytes.Equal(got, want) {
				t.Errorf("% x became % x", want, got)
			}
		}
		r := bytes.NewReader(b)
		if v, err := readVerdict(r); err == nil {
			if got, want := appendVerdict(nil, v), b[:len(b)-r.Len()]; !bytes.Equal(got, want) {
				t.Errorf("% x became % x", want, got)
			}
		}
	})
}

// FuzzFrames feeds bytes to an established connection, from either side: it must
// neither panic nor hang, nor keep anything when it ends.
func FuzzFrames(f *testing.F) {
	var all []byte
	for _, typ := range []uint8{typeCall, typeMessage, typeCancel, typePing, typeBye} {
		fr := newFrame(typ, 0, 1, nil)
		all = append(all, fr.head[:]...)
		f.Add(fr.head[:], false)
	}
	f.Add(all, false)
	reply := newFrame(typeReply, 0, 1, []byte("answer"))
	f.Add(append(bytes.Clone(reply.head[:]), reply.body...), true)
	fail := newFrame(typeError, codeOverloaded, 1, nil)
	f.Add(fail.head[:], true)
	retire := newFrame(typeRetire, 0, 0, nil)
	f.Add(retire.head[:], true)
	f.Fuzz(func(t *testing.T, b []byte, dialled bool) {
		n := NewNetwork()
		l, err := n.Listen("v")
		if err != nil {
			t.Fatal(err)
		}
		peer, err := n.Listen("h")
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		tr, err := New(Options{
			Self: Peer{Node: 1}, Listener: l, Dial: n.Dialer("v"), MaxBodyBytes: 1 << 16, MaxPayloadBytes: 1 << 16,
			Resolve: func(int32) (string, bool) { return "h", true },
			Handle:  func(_ context.Context, r *Request) (*Reply, error) { return &Reply{Body: r.Body}, nil },
			Receive: func(Peer, uint16, []byte) {},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		var nc net.Conn
		call := make(chan error, 1)
		if dialled {
			go func() {
				_, err := tr.Call(t.Context(), 0, Control, 0, nil)
				call <- err
			}()
			if nc, err = peer.Accept(); err != nil {
				t.Fatal(err)
			}
			_, err1 := readHello(nc, stepDial)
			_, err2 := nc.Write(appendHello(nil, hello{step: stepAccept, peer: Peer{Node: 0}, target: NoNode}))
			_, err3 := readVerdict(nc)
			err = errors.Join(err1, err2, err3)
		} else {
			call <- nil
			if nc, err = n.Dialer("h")(t.Context(), "v"); err != nil {
				t.Fatal(err)
			}
			_, err1 := nc.Write(appendHello(nil, hello{step: stepDial, peer: Peer{Node: 0}, target: 1}))
			_, err2 := readHello(nc, stepAccept)
			_, err3 := nc.Write(appendVerdict(nil, verdictFits))
			err = errors.Join(err1, err2, err3)
		}
		if err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, nc)
		nc.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if _, err := nc.Write(b); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection hangs: %v", err)
		}
		nc.Close()
		<-call
	})
}
