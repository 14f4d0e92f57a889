package s3store_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/s3store"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// server starts gofakes3 with an empty bucket behind a handler that may interfere.
func server(t *testing.T, wrap func(http.Handler) http.Handler) s3store.Options {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	h := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return s3store.Options{
		Endpoint: strings.TrimPrefix(srv.URL, "http://"), Bucket: "bucket", Plaintext: true,
		Credentials: s3store.Static(s3store.Credentials{AccessKey: "key", SecretKey: "secret"}),
	}
}

func open(t *testing.T, o s3store.Options) *s3store.Store {
	t.Helper()
	s, err := s3store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestStore(t *testing.T) {
	tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore { return open(t, server(t, nil)) })
}

// TestPrefixAndPages runs the suite below a prefix, with small pages, beside objects
// that are not the store's.
func TestPrefixAndPages(t *testing.T) {
	tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore {
		o := server(t, nil)
		o.PageKeys = 7
		for _, prefix := range []string{"", "some/prefix0"} {
			other := o
			other.Prefix = prefix
			if err := open(t, other).Put(t.Context(), "some/prefix0/x", strings.NewReader("x"), 1, tier.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		o.Prefix = "some/prefix"
		return open(t, o)
	})
}

// serverURL names a bucket of a real server; see .ci/run.
const serverURL = "CORDWOOD_S3_URL"

// TestServer runs the suite on a real server, once per object and once with every
// object above 5 MiB in parts.
func TestServer(t *testing.T) {
	o, err := s3store.ParseURL(os.Getenv(serverURL))
	if os.Getenv(serverURL) == "" {
		t.Skipf("%s is not set", serverURL)
	}
	if err != nil {
		t.Fatal(err)
	}
	base := o.Prefix
	fresh := func(t *testing.T) s3store.Options {
		var nonce [8]byte
		rand.Read(nonce[:])
		o := o
		o.Prefix = strings.TrimPrefix(base+"/"+hex.EncodeToString(nonce[:]), "/")
		return o
	}
	c := open(t, fresh(t)).Capabilities()
	t.Logf("capabilities: %+v", c)
	if !c.IfAbsent {
		t.Error("no conditional writes: part of the suite does not run")
	}
	t.Run("whole", func(t *testing.T) {
		tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore { return open(t, fresh(t)) })
	})
	t.Run("parts", func(t *testing.T) {
		o := fresh(t)
		o.MaxPutBytes, o.PartBytes = 5<<20, 5<<20
		testParts(t, open(t, o))
	})
}

func TestParts(t *testing.T) {
	o := server(t, nil)
	o.MaxPutBytes, o.PartBytes = 5<<20, 5<<20
	s := open(t, o)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16*11) // 11 MiB
	putParts(t, s, "big", data, false)
}

func putParts(t *testing.T, s *s3store.Store, key string, data []byte, ifAbsent bool) {
	t.Helper()
	o := tier.PutOptions{IfAbsent: ifAbsent, CRC32C: sum(data), HasCRC32C: true}
	if err := s.Put(t.Context(), key, bytes.NewReader(data), int64(len(data)), o); err != nil {
		t.Fatal(err)
	}
	b, err := s.GetRange(t.Context(), key, 0, int64(len(data)))
	if err != nil || !bytes.Equal(b, data) {
		t.Fatalf("%d bytes of %d in parts, %v", len(b), len(data), err)
	}
	info, err := s.Head(t.Context(), key)
	if err != nil || info.Size != int64(len(data)) || !info.HasCRC32C || info.CRC32C != o.CRC32C {
		t.Errorf("Head: %+v, %v", info, err)
	}
}

func testParts(t *testing.T, s *s3store.Store) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16*11)
	putParts(t, s, "a/big", data, true)
	other := bytes.Clone(data)
	other[0] = 'x'
	err := s.Put(t.Context(), "a/big", bytes.NewReader(other), int64(len(other)), tier.PutOptions{IfAbsent: true})
	if !errors.Is(err, tier.ErrExists) {
		t.Errorf("second conditional Put in parts: %v, want ErrExists", err)
	}
	if b, err := s.GetRange(t.Context(), "a/big", 0, 1); err != nil || b[0] != '0' {
		t.Errorf("after a refused Put: %q, %v", b, err)
	}
	err = s.Put(t.Context(), "a/wrong", bytes.NewReader(data), int64(len(data)), tier.PutOptions{CRC32C: sum(data) + 1, HasCRC32C: true})
	if !errors.Is(err, tier.ErrCorrupt) {
		t.Errorf("Put in parts with a wrong checksum: %v, want ErrCorrupt", err)
	}
	if _, err := s.Head(t.Context(), "a/wrong"); !errors.Is(err, tier.ErrNotFound) {
		t.Errorf("the refused object is there: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	o := server(t, nil)
	o.Bucket = "none"
	if _, err := s3store.Open(t.Context(), o); !errors.Is(err, tier.ErrDenied) {
		t.Errorf("bucket that does not exist: %v, want ErrDenied", err)
	}
	o = server(t, nil)
	o.Endpoint = "127.0.0.1:1"
	o.Attempts = 1
	if _, err := s3store.Open(t.Context(), o); !errors.Is(err, tier.ErrUnavailable) {
		t.Errorf("server that does not exist: %v, want ErrUnavailable", err)
	}
	o = s3store.Options{Uploads: -1, MaxPutBytes: 1, Prefix: "/x"}
	_, err := s3store.Open(t.Context(), o)
	for _, name := range []string{"Endpoint", "Bucket", "Uploads", "MaxPutBytes", "Prefix"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Open with mistakes: %v, which does not name %s", err, name)
		}
	}
	cause := errors.New("no keys today")
	o = server(t, nil)
	o.Credentials = func(context.Context) (s3store.Credentials, error) { return s3store.Credentials{}, cause }
	if _, err := s3store.Open(t.Context(), o); !errors.Is(err, cause) {
		t.Errorf("credentials that fail: %v, want their error", err)
	}
}

func TestReadOnly(t *testing.T) {
	writes := 0
	o := server(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != "GET" && r.Method != "HEAD" {
				writes++
			}
			h.ServeHTTP(w, r)
		})
	})
	o.ReadOnly = true
	s := open(t, o)
	if _, err := s.Head(t.Context(), "k"); !errors.Is(err, tier.ErrNotFound) || writes != 0 {
		t.Errorf("Head %v after %d writes", err, writes)
	}
	if s.Capabilities() != (tier.Capabilities{}) {
		t.Errorf("capabilities %+v without a probe", s.Capabilities())
	}
}

// TestReadOnlyWithoutBucket: a bucket that does not exist is not an empty one.
func TestReadOnlyWithoutBucket(t *testing.T) {
	o := server(t, nil)
	o.Bucket, o.ReadOnly = "none", true
	if _, err := s3store.Open(t.Context(), o); !errors.Is(err, tier.ErrDenied) {
		t.Errorf("Open: %v, want ErrDenied", err)
	}
	o = server(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	})
	o.ReadOnly = true
	if _, err := s3store.Open(t.Context(), o); !errors.Is(err, tier.ErrDenied) {
		t.Errorf("Open without permission: %v, want ErrDenied", err)
	}
}

func TestParseURL(t *testing.T) {
	tests := []struct {
		url              string
		endpoint, bucket string
		prefix, region   string
		plaintext, host  bool
	}{
		{"s3://bucket", "s3.us-east-1.amazonaws.com", "bucket", "", "", false, true},
		{"s3://bucket/a/b/?region=eu-west-1", "s3.eu-west-1.amazonaws.com", "bucket", "a/b", "eu-west-1", false, true},
		{"s3://127.0.0.1:9000/bucket/p?plaintext=1", "127.0.0.1:9000", "bucket", "p", "", true, false},
		{"s3://K:S@minio.local/bucket", "minio.local", "bucket", "", "", false, false},
		{"s3://localhost/bucket?plaintext=true", "localhost", "bucket", "", "", true, false},
	}
	for _, test := range tests {
		o, err := s3store.ParseURL(test.url)
		if err != nil || o.Endpoint != test.endpoint || o.Bucket != test.bucket || o.Prefix != test.prefix ||
			o.Region != test.region || o.Plaintext != test.plaintext || o.VirtualHost != test.host {
			t.Errorf("%s: %+v, %v", test.url, o, err)
		}
	}
	for _, bad := range []string{
		"", "bucket", "http://host/bucket", "s3://", "s3:bucket", "s3://host:1/", "s3://b?x=1", "s3://b?plaintext=maybe", "s3://KEY@host.x/b",
		"s3://b/a//b", "s3://b/a b", "s3://K:SECRET%zz@host/b",
	} {
		if o, err := s3store.ParseURL(bad); err == nil {
			t.Errorf("%q: %+v", bad, o)
		} else if strings.Contains(err.Error(), "SECRET") && !strings.Contains(err.Error(), "KEY:SECRET") {
			t.Errorf("%q: the error shows the secret: %v", bad, err)
		}
	}
}

func ExampleParseURL() {
	o, err := s3store.ParseURL("s3://127.0.0.1:7070/bucket/logs?plaintext=1")
	fmt.Println(o.Endpoint, o.Bucket, o.Prefix, err)
	// Output: 127.0.0.1:7070 bucket logs <nil>
}
