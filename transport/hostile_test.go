package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// victim is a node in a bubble, and a way to speak to it by hand.
type victim struct {
	t   *testing.T
	n   *Network
	tr  *Transport
	mu  sync.Mutex
	log []*HandshakeError
}

func startVictim(t *testing.T, change func(*Options)) *victim {
	v := &victim{t: t, n: NewNetwork()}
	l, err := v.n.Listen("v")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Self:     Peer{Node: 1, Addr: "v", Incarnation: 1},
		Listener: l,
		Dial:     v.n.Dialer("v"),
		Resolve:  func(int32) (string, bool) { return "h", true },
		Handle:   func(_ context.Context, r *Request) (*Reply, error) { return &Reply{Body: r.Body}, nil },
		Rejected: func(e *HandshakeError) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.log = append(v.log, e)
		},
	}
	if change != nil {
		change(&o)
	}
	v.tr, err = New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.tr.Close() })
	return v
}

// dial connects to the victim without a handshake.
func (v *victim) dial() net.Conn {
	v.t.Helper()
	nc, err := v.n.Dialer("h")(v.t.Context(), "v")
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { nc.Close() })
	return nc
}

// join connects to the victim with a proper handshake.
func (v *victim) join() net.Conn {
	v.t.Helper()
	nc := v.dial()
	v.write(nc, appendHello(nil, hello{step: stepDial, peer: Peer{Node: 0}, target: 1}))
	if _, err := readHello(nc, stepAccept); err != nil {
		v.t.Fatal(err)
	}
	v.write(nc, appendVerdict(nil, verdictFits))
	return nc
}

func (v *victim) write(nc net.Conn, b []byte) {
	v.t.Helper()
	if _, err := nc.Write(b); err != nil {
		v.t.Fatal(err)
	}
}

// wantEnd fails unless the victim closes nc without a word, within limit.
func (v *victim) wantEnd(nc net.Conn, limit time.Duration) {
	v.t.Helper()
	start := time.Now()
	nc.SetReadDeadline(start.Add(limit))
	b, err := io.ReadAll(nc)
	if errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
		v.t.Fatalf("not closed in %v: %d bytes, %v", time.Since(start), len(b), err)
	}
}

// alive fails unless the victim still serves others.
func (v *victim) alive() {
	v.t.Helper()
	nc := v.join()
	f := newFrame(typeCall, 0, 1, []byte("still there?"))
	v.write(nc, append(f.head[:], f.body...))
	b := make([]byte, headerBytes+len(f.body))
	if _, err := io.ReadFull(nc, b); err != nil || string(b[headerBytes:]) != "still there?" {
		v.t.Fatalf("victim does not serve: %q, %v", b, err)
	}
	nc.Close()
}

func TestHostileHandshake(t *testing.T) {
	good := appendHello(nil, hello{step: stepDial, peer: Peer{Node: 0, Addr: "h"}, target: 1})
	seal := func(b []byte) []byte {
		end := len(b) - 4
		binary.BigEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
		return b
	}
	patch := func(at int, with ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], with)
		return seal(b)
	}
	for _, c := range []struct {
		name string
		send []byte
	}{
		{"http", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"tls", []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")},
		{"zeros", make([]byte, 1000)},
		{"bad-checksum", append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^1)},
		{"length-zero", []byte("CWD1\x00\x01\x00\x00")},
		{"length-huge", append([]byte("CWD1\x00\x01\xff\xff"), make([]byte, 0xffff)...)},
		{"wrong-step", patch(8, stepAccept)},
		{"verdict-in-first-hello", patch(9, verdictNode)},
		{"class-unknown", patch(10, 3)},
		{"reserved", patch(11, 1)},
		{"node-negative", patch(12, 0xff, 0xff, 0xff, 0xfe)},
		{"target-negative", patch(16, 0xff, 0xff, 0xff, 0xfe)},
		{"oldest-format-above-format", patch(62, 0, 1)},
		{"keep-alive-huge", patch(64, 0xff)},
		{"address-length-too-big", patch(68, 200)},
		{"address-length-too-small", patch(68, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := startVictim(t, nil)
				nc := v.dial()
				nc.Write(c.send) // may fail half-way when the victim hangs up
				v.wantEnd(nc, time.Second)
				if len(v.log) != 1 || v.log[0].Reason != ErrProtocol || v.log[0].ByPeer {
					t.Errorf("got %v", v.log)
				}
				v.alive()
			})
		})
	}
	t.Run("other-version", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			v := startVictim(t, nil)
			nc := v.dial()
			v.write(nc, append([]byte("CWD1\x00\x02\x01\x00"), make([]byte, 256)...))
			h, err := readHello(nc, stepAccept)
			if err != nil || h.verdict != verdictVersion {
				t.Fatalf("got %+v, %v", h, err)
			}
			v.wantEnd(nc, time.Second)
			if len(v.log) != 1 || v.log[0].Reason != ErrVersionMismatch {
				t.Errorf("got %v", v.log)
			}
			v.alive()
		})
	})
	t.Run("frame-instead-of-verdict", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			v := startVictim(t, nil)
			nc := v.dial()
			v.write(nc, good)
			if _, err := readHello(nc, stepAccept); err != nil {
				t.Fatal(err)
			}
			f := newFrame(typeCall, 0, 1, nil)
			v.write(nc, f.head[:])
			v.wantEnd(nc, time.Second)
			v.alive()
		})
	})
	for _, n := range []int{0, 1, 8, 40, len(good)} {
		t.Run("slow-loris", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := startVictim(t, nil)
				nc := v.dial()
				v.write(nc, good[:n])
				if n == len(good) {
					if _, err := readHello(nc, stepAccept); err != nil {
						t.Fatal(err)
					}
				}
				v.wantEnd(nc, DefaultHandshakeTimeout+time.Second)
				v.alive()
			})
		})
	}
	t.Run("dribble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			v := startVictim(t, nil)
			nc := v.dial()
			start := time.Now()
			for _, c := range good {
				if _, err := nc.Write([]byte{c}); err != nil {
					break
				}
				time.Sleep(time.Second)
			}
			v.wantEnd(nc, time.Second)
			if d := time.Since(start); d > DefaultHandshakeTimeout+2*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	})
}

// Callers of a node that answers nonsense, or nothing, get their error in time.
func TestHostileAcceptor(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer []byte
		want   error
	}{
		{"garbage", []byte("220 mail ESMTP\r\n"), ErrProtocol},
		{"other-version", []byte("CWD1\x00\x09\x00\x04abcd"), ErrVersionMismatch},
		{"echo", nil, ErrProtocol},
		{"other-class", appendHello(nil, hello{step: stepAccept, class: CatchUp, peer: Peer{Node: 2}}), ErrProtocol},
		{"other-node", appendHello(nil, hello{step: stepAccept, peer: Peer{Node: 3}}), ErrNodeMismatch},
		{"silence", []byte{}, ErrUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := startVictim(t, nil)
				l, err := v.n.Listen("h")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				go func() {
					nc, err := l.Accept()
					if err != nil {
						return
					}
					defer nc.Close()
					if c.answer == nil {
						io.Copy(nc, nc)
						return
					}
					nc.Write(c.answer)
					io.Copy(io.Discard, nc)
				}()
				start := time.Now()
				_, err = v.tr.Call(t.Context(), 2, Control, 0, nil)
				if !errors.Is(err, c.want) || !errors.Is(err, ErrUnreachable) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if d := time.Since(start); d > DefaultHandshakeTimeout {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}

func TestHostileFrames(t *testing.T) {
	raw := func(h header, body []byte) []byte {
		var b [headerBytes]byte
		h.encode(&b)
		return append(b[:], body...)
	}
	flip := func(b []byte, at int) []byte {
		b[at] ^= 1
		return b
	}
	frame := func(typ uint8, stream uint64, body string) []byte {
		f := newFrame(typ, 0, stream, []byte(body))
		return append(bytes.Clone(f.head[:]), f.body...)
	}
	flags := raw(header{typ: typeCall}, nil)
	flags[1] = 1
	binary.BigEndian.PutUint32(flags[24:], crc32.Checksum(flags[:24], castagnoli))
	for _, c := range []struct {
		name string
		send []byte
	}{
		{"garbage", []byte(strings.Repeat("garbage ", 100))},
		{"header-checksum", flip(frame(typeCall, 1, "x"), 5)},
		{"body-checksum", flip(frame(typeCall, 1, "xxx"), headerBytes+1)},
		{"message-checksum", flip(frame(typeMessage, 0, "xxx"), headerBytes+1)},
		{"checksum-of-nothing", raw(header{typ: typeCall, bodyCRC: 1}, nil)},
		{"flags", flags},
		{"type-zero", raw(header{typ: 0}, nil)},
		{"type-unknown", raw(header{typ: 10}, nil)},
		{"body-above-limit", raw(header{typ: typeCall, body: 1001}, nil)},
		{"body-of-4-GiB", raw(header{typ: typeMessage, body: 1<<32 - 1}, nil)},
		{"payload-in-call", raw(header{typ: typeCall, payload: 1}, []byte("xx"))},
		{"reply-from-caller", frame(typeReply, 1, "x")},
		{"error-from-caller", frame(typeError, 1, "x")},
		{"pong-from-caller", frame(typePong, 1, "")},
		{"retire-from-caller", frame(typeRetire, 0, "")},
		{"body-in-ping", raw(header{typ: typePing, body: 1}, []byte("x"))},
		{"same-stream-twice", append(frame(typeCall, 7, "block"), frame(typeCall, 7, "x")...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := startVictim(t, func(o *Options) {
					o.MaxBodyBytes = 1000
					o.Handle = func(ctx context.Context, r *Request) (*Reply, error) {
						if string(r.Body) == "block" {
							<-ctx.Done()
						}
						return &Reply{Body: r.Body}, nil
					}
				})
				nc := v.join()
				nc.Write(c.send)
				v.wantEnd(nc, time.Second)
				v.alive()
			})
		})
	}

	for _, c := range []struct {
		name string
		send []byte
	}{
		{"reply-to-nobody", frame(typeReply, 99, "x")},
		{"error-to-nobody", frame(typeError, 99, "x")},
		{"cancel-of-nothing", nil},
	} {
		t.Run(c.name, func(t *testing.T) { // these are no harm
			synctest.Test(t, func(t *testing.T) {
				v := startVictim(t, nil)
				if c.send == nil {
					nc := v.join()
					v.write(nc, frame(typeCancel, 99, ""))
					v.write(nc, frame(typePing, 5, ""))
					b := make([]byte, headerBytes)
					if _, err := io.ReadFull(nc, b); err != nil || !bytes.Equal(b, frame(typePong, 5, "")) {
						t.Errorf("got % x, %v", b, err)
					}
					return
				}
				nc, call := v.calls(t)
				v.write(nc, append(c.send, frame(typeReply, 1, "yes")...))
				if r := <-call; r.err != nil || string(r.resp.Body) != "yes" {
					t.Errorf("got %+v", r)
				}
			})
		})
	}
	for _, c := range []struct {
		name string
		send []byte
	}{
		{"call-from-acceptor", frame(typeCall, 1, "x")},
		{"message-from-acceptor", frame(typeMessage, 0, "x")},
		{"reply-checksum", flip(frame(typeReply, 1, "xxx"), headerBytes)},
		{"payload-above-limit", raw(header{typ: typeReply, stream: 1, payload: 2001}, nil)},
		{"payload-trailer", raw(header{typ: typeReply, stream: 1, payload: 3}, []byte("abc\x02"))},
		{"error-text-too-long", raw(header{typ: typeError, stream: 1, body: maxErrorText + 1}, nil)},
		{"cut", frame(typeReply, 1, "xxx")[:headerBytes+1]},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := startVictim(t, func(o *Options) { o.MaxPayloadBytes, o.MaxBodyBytes = 2000, 5000 })
				nc, call := v.calls(t)
				start := time.Now()
				v.write(nc, c.send)
				if c.name == "cut" {
					nc.Close()
				}
				if r := <-call; !errors.Is(r.err, ErrUnknownOutcome) {
					t.Errorf("got %+v", r)
				}
				if d := time.Since(start); d != 0 {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}

// calls makes the victim call us; the connection and the outcome are returned.
func (v *victim) calls(t *testing.T) (net.Conn, <-chan result) {
	t.Helper()
	l, err := v.n.Listen("h")
	if err != nil {
		t.Fatal(err)
	}
	call := make(chan result, 1)
	go func() {
		resp, err := v.tr.Call(t.Context(), 0, Control, 0, []byte("?"))
		call <- result{resp, err}
	}()
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	t.Cleanup(func() { nc.Close() })
	if _, err := readHello(nc, stepDial); err != nil {
		t.Fatal(err)
	}
	v.write(nc, appendHello(nil, hello{step: stepAccept, peer: Peer{Node: 0}, target: NoNode}))
	if verdict, err := readVerdict(nc); err != nil || verdict != verdictFits {
		t.Fatal(verdict, err)
	}
	if _, err := io.ReadFull(nc, make([]byte, headerBytes+1)); err != nil {
		t.Fatal(err)
	}
	return nc, call
}

// A frame must end within its time, so that a peer that dribbles it cannot hold
// its buffer for ever.
func TestDribbledBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := startVictim(t, nil)
		nc := v.join()
		f := newFrame(typeMessage, 0, 0, make([]byte, 1<<20))
		v.write(nc, f.head[:])
		start := time.Now()
		for range 1000 {
			if _, err := nc.Write([]byte{0}); err != nil {
				break
			}
			time.Sleep(time.Second)
		}
		if d := time.Since(start); d > stall(1<<20)+2*time.Second {
			t.Errorf("held for %v", d)
		}
		v.alive()
	})
}

// A peer that sends without reading the answers is cut off before they fill the
// memory.
func TestPeerDoesNotRead(t *testing.T) {
	for _, typ := range []uint8{typePing, typeCall} {
		synctest.Test(t, func(t *testing.T) {
			v := startVictim(t, func(o *Options) { o.MaxInFlight = 10; o.KeepAlive = -1 })
			nc := v.join()
			sent := 0
			var err error
			for stream := uint64(1); err == nil && sent < 64<<20; stream++ {
				f := newFrame(typ, 0, stream, nil)
				if typ == typeCall {
					f = newFrame(typ, 0, stream, make([]byte, 10_000))
				}
				_, err = nc.Write(append(f.head[:], f.body...))
				sent += len(f.body) + headerBytes
				if stream%64 == 0 {
					synctest.Wait()
				}
			}
			if err == nil {
				t.Errorf("the victim took %d bytes", sent)
			}
			v.alive()
		})
	}
}

// A victim whose answers nobody reads gives up its payload in time.
func TestPeerStopsReadingPayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		v := startVictim(t, func(o *Options) {
			o.Handle = func(_ context.Context, r *Request) (*Reply, error) {
				return &Reply{Payload: endless{released}}, nil
			}
		})
		nc := v.join()
		f := newFrame(typeCall, 0, 1, nil)
		v.write(nc, f.head[:])
		start := time.Now()
		<-released
		if d := time.Since(start); d > stall(32<<20)+time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

type endless struct{ released chan struct{} }

func (endless) Len() int { return 32 << 20 }
func (e endless) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(make([]byte, e.Len()))
	return int64(n), err
}
func (e endless) Release() { close(e.released) }

// Strangers that connect and wait cannot keep peers out.
func TestTooManyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := startVictim(t, func(o *Options) { o.MaxConns = 4 })
		var strangers []net.Conn
		for range 10 {
			strangers = append(strangers, v.dial())
			synctest.Wait()
		}
		v.alive()
		synctest.Wait()
		for _, nc := range strangers[:6] {
			v.wantEnd(nc, time.Millisecond)
		}
		var members []net.Conn
		for range 4 {
			members = append(members, v.join())
		}
		synctest.Wait()
		v.wantEnd(v.dial(), time.Millisecond) // full of members
		members[0].Close()
		synctest.Wait()
		v.alive()
	})
}

func TestConstantsOfTheWire(t *testing.T) {
	h := hello{step: stepAccept, verdict: verdictCluster, class: CatchUp, target: 5, keepAlive: 1000, peer: Peer{
		Node: 3, Cluster: ID{0: 0xc1}, Directory: ID{0: 0xd1}, Incarnation: 0x0102030405060708,
		Format: 7, OldestFormat: 6, Addr: "n3:9",
	}}
	const want = "CWD1\x00\x01\x00\x45\x02\x03\x02\x00\x00\x00\x00\x03\x00\x00\x00\x05" +
		"\xc1\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\xd1\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x01\x02\x03\x04\x05\x06\x07\x08\x00\x07\x00\x06\x00\x00\x03\xe8\x04n3:9"
	b := appendHello(nil, h)
	if string(b[:len(b)-4]) != want {
		t.Errorf("hello is\n% x, want\n% x", b, want)
	}
	got, err := readHello(bytes.NewReader(b), stepAccept)
	h.version = protocolNumber
	if err != nil || got != h {
		t.Errorf("got %+v, %v, want %+v", got, err, h)
	}
	f := newFrame(typeMessage, 0x0102, 0x03, []byte("abc"))
	if string(f.head[:20]) != "\x04\x00\x01\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x03\x00\x00\x00\x00" {
		t.Errorf("header is % x", f.head)
	}
	// CRC32C of "123456789", from RFC 3720.
	if f := newFrame(typeCall, 0, 0, []byte("123456789")); binary.BigEndian.Uint32(f.head[20:]) != 0xe3069283 {
		t.Errorf("body checksum is % x", f.head[20:24])
	}
}
