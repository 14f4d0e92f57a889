package transport_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/transport"
)

// certificate returns a self-signed certificate for a name.
func certificate(t *testing.T, name string) (tls.Certificate, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, cert
}

// The host brings TLS: listeners and dialers of crypto/tls work, and Authorize
// sees the certificates.
func TestTLS(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		pool := x509.NewCertPool()
		certs := make(map[int32]tls.Certificate)
		for node := range int32(3) {
			c, leaf := certificate(t, fmt.Sprintf("node-%d", node))
			certs[node] = c
			pool.AddCert(leaf)
		}
		secure := func(o *transport.Options) {
			config := &tls.Config{
				Certificates: []tls.Certificate{certs[o.Self.Node]}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
				RootCAs: pool, MinVersion: tls.VersionTLS13,
				// Names are checked in Authorize, by node.
				InsecureSkipVerify: true,
				VerifyConnection: func(s tls.ConnectionState) error {
					_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
					return err
				},
			}
			if o.Self.Node == 2 {
				o.Self.Node = 1 // it claims to be another node
			}
			dial := o.Dial
			if dial == nil {
				dial = func(ctx context.Context, addr string) (net.Conn, error) {
					var d net.Dialer
					return d.DialContext(ctx, "tcp", addr)
				}
			}
			o.Listener = tls.NewListener(o.Listener, config)
			o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				c, err := dial(ctx, addr)
				if err != nil {
					return nil, err
				}
				return tls.Client(c, config), nil
			}
			o.Authorize = func(_ context.Context, c net.Conn, p transport.Peer) error {
				name := c.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
				if want := fmt.Sprintf("node-%d", p.Node); name != want {
					return errors.New(name + " is not " + want)
				}
				return nil
			}
		}
		w.node(0, secure, handle(func(_ context.Context, r *transport.Request) (*transport.Reply, error) {
			return &transport.Reply{Body: r.Body, Payload: newPayload(pattern(1<<20, 1))}, nil
		}))
		b := w.node(1, secure)
		r, err := b.Call(t.Context(), 0, transport.Live, 0, make([]byte, 1<<20))
		if err != nil || len(r.Body) != 1<<20 || len(r.Payload) != 1<<20 {
			t.Fatalf("%v", err)
		}
		c := w.node(2, secure)
		_, err = c.Call(t.Context(), 0, transport.Live, 0, nil)
		wantIs(t, err, transport.ErrUnauthorized)
		plain := w.start(transport.Options{
			Self: transport.Peer{Node: 9}, Dial: w.dialer(9), Resolve: w.addr, HandshakeTimeout: 100 * time.Millisecond,
		})
		_, err = plain.Call(t.Context(), 0, transport.Live, 0, nil)
		wantIs(t, err, transport.ErrUnreachable)
	})
}
