package s3store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/s3store"
)

func sum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// An interferer answers some requests itself. fn returns false to let one pass.
type interferer struct {
	mu sync.Mutex
	fn func(w http.ResponseWriter, r *http.Request, next http.Handler) bool
}

func (i *interferer) set(fn func(http.ResponseWriter, *http.Request, http.Handler) bool) {
	i.mu.Lock()
	i.fn = fn
	i.mu.Unlock()
}

func (i *interferer) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		fn := i.fn
		i.mu.Unlock()
		if fn == nil || !fn(w, r, h) {
			h.ServeHTTP(w, r)
		}
	})
}

// hurt opens a store behind an interferer that begins after the probe.
func hurt(t *testing.T, change func(*s3store.Options)) (*s3store.Store, *interferer) {
	t.Helper()
	var i interferer
	o := server(t, i.wrap)
	if change != nil {
		change(&o)
	}
	return open(t, o), &i
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>test</Message></Error>`, code)
}

// cut breaks the connection.
func cut(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

func put(ctx context.Context, s *s3store.Store, key, data string, ifAbsent bool) error {
	return s.Put(ctx, key, strings.NewReader(data), int64(len(data)), tier.PutOptions{IfAbsent: ifAbsent, HasCRC32C: true, CRC32C: sum([]byte(data))})
}

// TestPutOutcome holds what Put says when the server, or the way to it, fails: only
// what certainly did not happen may be called so, and only that is sent again.
func TestPutOutcome(t *testing.T) {
	tests := []struct {
		name   string
		fault  func(w http.ResponseWriter, r *http.Request, next http.Handler)
		want   error
		asked  int32 // requests
		stored bool
	}{
		{"reply lost", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(discard{http.Header{}}, r)
			cut(w)
		}, tier.ErrUnknownOutcome, 1, true},
		{"cut before", func(w http.ResponseWriter, r *http.Request, next http.Handler) { cut(w) }, tier.ErrUnknownOutcome, 1, false},
		{"internal error after storing", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(discard{http.Header{}}, r)
			refuse(w, 500, "InternalError")
		}, tier.ErrUnknownOutcome, 1, true},
		{"bad gateway", func(w http.ResponseWriter, r *http.Request, next http.Handler) { w.WriteHeader(502) }, tier.ErrUnknownOutcome, 1, false},
		{"precondition", func(w http.ResponseWriter, r *http.Request, next http.Handler) { refuse(w, 412, "PreconditionFailed") }, tier.ErrExists, 1, false},
		{"not modified", func(w http.ResponseWriter, r *http.Request, next http.Handler) { w.WriteHeader(304) }, tier.ErrExists, 1, false},
		{"conflict", func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			refuse(w, 409, "ConditionalRequestConflict")
		}, tier.ErrConflict, 1, false},
		{"denied", func(w http.ResponseWriter, r *http.Request, next http.Handler) { refuse(w, 403, "AccessDenied") }, tier.ErrDenied, 1, false},
		{"bad digest", func(w http.ResponseWriter, r *http.Request, next http.Handler) { refuse(w, 400, "BadDigest") }, tier.ErrCorrupt, 1, false},
		{"expired keys", func(w http.ResponseWriter, r *http.Request, next http.Handler) { refuse(w, 400, "ExpiredToken") }, tier.ErrDenied, 3, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, i := hurt(t, nil)
			var asked atomic.Int32
			i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
				if r.Method != http.MethodPut {
					return false
				}
				asked.Add(1)
				test.fault(w, r, next)
				return true
			})
			err := put(t.Context(), s, "k", "data", true)
			if !errors.Is(err, test.want) {
				t.Errorf("Put: %v, want %v", err, test.want)
			}
			if asked.Load() != test.asked {
				t.Errorf("%d requests, want %d", asked.Load(), test.asked)
			}
			i.set(nil)
			if _, err := s.Head(t.Context(), "k"); (err == nil) != test.stored {
				t.Errorf("Head: %v, stored %v", err, test.stored)
			}
		})
	}
}

// TestThrottled: a server that asks to slow down is asked again, and when it asks
// for more time than that, the caller learns how long.
func TestThrottled(t *testing.T) {
	s, i := hurt(t, nil)
	var asked atomic.Int32
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if asked.Add(1) > 2 {
			return false
		}
		refuse(w, 503, "SlowDown")
		return true
	})
	if err := put(t.Context(), s, "k", "data", true); err != nil || asked.Load() != 3 {
		t.Errorf("Put: %v after %d requests, want success after 3", err, asked.Load())
	}
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		w.Header().Set("Retry-After", "7")
		refuse(w, 503, "SlowDown")
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for s.Stats().Failures < 3 {
			time.Sleep(time.Millisecond)
		}
		cancel() // while it waits the seven seconds
	}()
	err := put(ctx, s, "k2", "data", true)
	if throttled, ok := errors.AsType[*tier.ThrottledError](err); !ok || throttled.RetryAfter != 7*time.Second {
		t.Errorf("Put: %v, want a ThrottledError of 7 s", err)
	}
}

// TestBreaker: an outage is not met with more requests, and its end is noticed.
func TestBreaker(t *testing.T) {
	s, i := hurt(t, func(o *s3store.Options) { o.Attempts = 1 })
	if err := put(t.Context(), s, "k", "data", true); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		asked.Add(1)
		refuse(w, 503, "ServiceUnavailable")
		return true
	})
	for range 100 {
		if _, err := s.Head(t.Context(), "k"); !errors.Is(err, tier.ErrUnavailable) {
			t.Fatalf("Head: %v, want ErrUnavailable", err)
		}
	}
	// A trial may have been due between them.
	if n := asked.Load(); n < 8 || n > 12 || !s.Stats().Open || s.Stats().Refused < 88 {
		t.Errorf("%d requests in an outage, stats %+v", n, s.Stats())
	}
	i.set(nil)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := s.Head(t.Context(), "k"); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("Head a minute after the outage: %v", err)
		}
	}
	if s.Stats().Open {
		t.Error("the breaker stays open after a success")
	}
}

// TestReadFaults: a body that is cut, clipped, shifted or stalled never passes for
// the bytes that were asked for.
func TestReadFaults(t *testing.T) {
	data := strings.Repeat("0123456789", 1000)
	tests := []struct {
		name  string
		fault func(w http.ResponseWriter, r *http.Request)
		want  error
	}{
		{"cut body", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 100-1099/10000")
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(206)
			io.WriteString(w, data[100:600])
		}, tier.ErrCorrupt},
		{"clipped", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 100-599/600")
			w.WriteHeader(206)
			io.WriteString(w, data[100:600])
		}, tier.ErrRange},
		{"shifted", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 101-1100/10000")
			w.WriteHeader(206)
			io.WriteString(w, data[101:1101])
		}, tier.ErrCorrupt},
		{"whole instead of a range", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, data) }, tier.ErrUnavailable},
		{"whole and too short", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, data[:300]) }, tier.ErrRange},
		{"empty", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 100-1099/10000")
			w.WriteHeader(206)
		}, tier.ErrCorrupt},
		{"gone", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }, tier.ErrNotFound},
		{"unsatisfiable", func(w http.ResponseWriter, r *http.Request) { refuse(w, 416, "InvalidRange") }, tier.ErrRange},
		{"down", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }, tier.ErrUnavailable},
		{"stalled", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 100-1099/10000")
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(206)
			io.WriteString(w, data[100:600])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, tier.ErrUnavailable},
		{"no answer", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, tier.ErrUnavailable},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, i := hurt(t, func(o *s3store.Options) {
				o.Attempts = 1
				o.StallTimeout, o.AnswerTimeout = 5*time.Second, 5*time.Second
				if strings.HasPrefix(test.name, "stall") || strings.HasPrefix(test.name, "no") {
					o.StallTimeout, o.AnswerTimeout = 2*time.Second, 2*time.Second
				}
			})
			if err := put(t.Context(), s, "k", data, true); err != nil {
				t.Fatal(err)
			}
			i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
				if r.Method != http.MethodGet {
					return false
				}
				w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
				test.fault(w, r)
				return true
			})
			b, err := s.GetRange(t.Context(), "k", 100, 1000)
			if !errors.Is(err, test.want) || b != nil {
				t.Errorf("GetRange: %d bytes, %v, want %v", len(b), err, test.want)
			}
			i.set(nil)
			if b, err := s.GetRange(t.Context(), "k", 100, 1000); err != nil || string(b) != data[100:1100] {
				t.Errorf("GetRange afterwards: %d bytes, %v", len(b), err)
			}
		})
	}
}

// TestSlowAnswer: a Put whose answer comes after the caller has given up may have
// happened; the source is not read any more.
func TestSlowAnswer(t *testing.T) {
	s, i := hurt(t, nil)
	stored := make(chan struct{})
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		next.ServeHTTP(discard{http.Header{}}, r)
		close(stored)
		<-r.Context().Done()
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-stored; cancel() }()
	err := put(ctx, s, "k", "data", true)
	if !errors.Is(err, tier.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Errorf("Put: %v, want ErrUnknownOutcome and the context's error", err)
	}
	i.set(nil)
	if err := put(t.Context(), s, "k", "data", true); !errors.Is(err, tier.ErrExists) {
		t.Errorf("Put again: %v, want ErrExists", err)
	}
}

type endless struct{ reads atomic.Int32 }

func (e *endless) ReadAt(b []byte, off int64) (int, error) { e.reads.Add(1); return len(b), nil }

// TestEarlyAnswer: a server may answer before it has read the body; the source is
// left alone from then on.
func TestEarlyAnswer(t *testing.T) {
	s, i := hurt(t, nil)
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method != http.MethodPut {
			return false
		}
		w.Header().Set("Connection", "close")
		refuse(w, 412, "PreconditionFailed")
		return true
	})
	var e endless
	err := s.Put(t.Context(), "k", &e, 1<<30, tier.PutOptions{IfAbsent: true})
	reads := e.reads.Load()
	if !errors.Is(err, tier.ErrExists) && !errors.Is(err, tier.ErrUnknownOutcome) {
		t.Errorf("Put: %v, want ErrExists, or an unknown outcome if the connection broke first", err)
	}
	for range 3 {
		_, _ = s.Head(t.Context(), "k")
	}
	if e.reads.Load() != reads {
		t.Error("the source was read after Put had returned")
	}
}

// TestDeleteVerdicts: each key has its own.
func TestDeleteVerdicts(t *testing.T) {
	s, i := hurt(t, func(o *s3store.Options) { o.Attempts = 2 })
	keys := []string{"a", "b", "c", "d"}
	for _, k := range keys {
		if err := put(t.Context(), s, k, "data", true); err != nil {
			t.Fatal(err)
		}
	}
	posts := 0
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method != http.MethodPost {
			return false
		}
		posts++
		w.Header().Set("Content-Type", "application/xml")
		io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?><DeleteResult>`+
			`<Error><Key>a</Key><Code>AccessDenied</Code><Message>no</Message></Error>`+
			`<Error><Key>b</Key><Code>NoSuchKey</Code><Message>gone</Message></Error>`+
			`<Deleted><Key>c</Key></Deleted></DeleteResult>`) // d: not a word
		return true
	})
	for n, r := range s.Delete(t.Context(), keys) {
		if denied := errors.Is(r.Err, tier.ErrDenied); r.Key != keys[n] || denied != (r.Key == "a") || !denied && r.Err != nil {
			t.Errorf("Delete(%s): %s, %v", keys[n], r.Key, r.Err)
		}
	}
	if _, err := s.Head(t.Context(), "d"); !errors.Is(err, tier.ErrNotFound) {
		t.Errorf("the key without a verdict was not deleted: %v", err)
	}
	if posts != 1 {
		t.Errorf("%d batches", posts)
	}
}

// TestDeleteOneByOne: a server without batches.
func TestDeleteOneByOne(t *testing.T) {
	s, i := hurt(t, nil)
	posts := 0
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method != http.MethodPost {
			return false
		}
		posts++
		refuse(w, 501, "NotImplemented")
		return true
	})
	for range 2 {
		for _, k := range []string{"a", "b"} {
			if err := put(t.Context(), s, k, "data", false); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range s.Delete(t.Context(), []string{"a", "b", "none"}) {
			if r.Err != nil {
				t.Errorf("Delete(%s): %v", r.Key, r.Err)
			}
		}
	}
	if posts != 1 {
		t.Errorf("%d batches were tried", posts)
	}
}

// TestListRetries: a page that fails is asked again, nothing is listed twice.
func TestListRetries(t *testing.T) {
	s, i := hurt(t, func(o *s3store.Options) { o.PageKeys = 2 })
	var want []string
	for n := range 7 {
		want = append(want, fmt.Sprintf("k%d", n))
		if err := put(t.Context(), s, want[n], "x", true); err != nil {
			t.Fatal(err)
		}
	}
	var asked atomic.Int32
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if asked.Add(1)%2 == 0 {
			refuse(w, 503, "SlowDown")
			return true
		}
		return false
	})
	var got []string
	for info, err := range s.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, info.Key)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("List: %v", got)
	}
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		w.Header().Set("Content-Type", "application/xml")
		io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><IsTruncated>false</IsTruncated>`+
			`<Contents><Key>b</Key><Size>1</Size></Contents><Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>`)
		return true
	})
	var last error
	for _, err := range s.List(t.Context(), "", "") {
		last = err
	}
	if last == nil {
		t.Error("a listing that is not sorted passed")
	}
}

// TestCredentialsReload: keys that the server no longer takes are fetched anew.
func TestCredentialsReload(t *testing.T) {
	var fetched atomic.Int32
	s, i := hurt(t, func(o *s3store.Options) {
		o.Credentials = func(context.Context) (s3store.Credentials, error) {
			n := fetched.Add(1)
			return s3store.Credentials{AccessKey: fmt.Sprintf("key%d", n), SecretKey: "secret", Expires: time.Now().Add(time.Hour)}, nil
		}
	})
	if fetched.Load() != 1 {
		t.Errorf("credentials were fetched %d times for the probe", fetched.Load())
	}
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if strings.Contains(r.Header.Get("Authorization"), "Credential=key2/") {
			return false
		}
		refuse(w, 400, "ExpiredToken")
		return true
	})
	if err := put(t.Context(), s, "k", "data", true); err != nil || fetched.Load() != 2 {
		t.Errorf("Put with expired keys: %v, fetched %d times", err, fetched.Load())
	}
}

// TestPartsAreAborted: an upload in parts that fails leaves none behind, also when
// its context has ended.
func TestPartsAreAborted(t *testing.T) {
	s, i := hurt(t, func(o *s3store.Options) { o.MaxPutBytes, o.PartBytes = 5<<20, 5<<20 })
	ctx, cancel := context.WithCancel(t.Context())
	var aborted atomic.Int32
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		switch {
		case r.Method == http.MethodPut && r.URL.Query().Get("partNumber") == "2":
			_, _ = io.Copy(io.Discard, r.Body)
			cancel()
			<-r.Context().Done()
			return true
		case r.Method == http.MethodDelete && r.URL.Query().Has("uploadId"):
			aborted.Add(1)
		}
		return false
	})
	data := bytes.Repeat([]byte{1}, 11<<20)
	err := s.Put(ctx, "big", bytes.NewReader(data), int64(len(data)), tier.PutOptions{})
	if !errors.Is(err, context.Canceled) || aborted.Load() != 1 {
		t.Errorf("Put: %v, %d uploads aborted", err, aborted.Load())
	}
}

// TestPartsComplete: the completion whose answer was lost and that is gone when it
// is looked for was this one; a second one is not started.
func TestPartsComplete(t *testing.T) {
	s, i := hurt(t, func(o *s3store.Options) { o.MaxPutBytes, o.PartBytes = 5<<20, 5<<20 })
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodPost && r.URL.Query().Has("uploadId") {
			next.ServeHTTP(discard{http.Header{}}, r)
			refuse(w, 404, "NoSuchUpload")
			return true
		}
		return false
	})
	data := bytes.Repeat([]byte{1}, 6<<20)
	if err := s.Put(t.Context(), "big", bytes.NewReader(data), int64(len(data)), tier.PutOptions{}); err != nil {
		t.Errorf("Put: %v", err)
	}
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodPost && r.URL.Query().Has("uploadId") {
			refuse(w, 200, "InternalError") // S3 sends its header before it knows
			return true
		}
		return false
	})
	if err := s.Put(t.Context(), "big2", bytes.NewReader(data), int64(len(data)), tier.PutOptions{}); !errors.Is(err, tier.ErrUnknownOutcome) {
		t.Errorf("Put with an error in a good answer: %v, want ErrUnknownOutcome", err)
	}
}

// TestPartGone: when somebody has aborted the upload, the next attempt begins anew.
func TestPartGone(t *testing.T) {
	s, i := hurt(t, func(o *s3store.Options) { o.MaxPutBytes, o.PartBytes = 5<<20, 5<<20 })
	var parts atomic.Int32
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodPut && r.URL.Query().Get("partNumber") == "2" && parts.Add(1) == 1 {
			_, _ = io.Copy(io.Discard, r.Body)
			refuse(w, 404, "NoSuchUpload")
			return true
		}
		return false
	})
	data := bytes.Repeat([]byte{1}, 6<<20)
	err := s.Put(t.Context(), "big", bytes.NewReader(data), int64(len(data)), tier.PutOptions{})
	if !errors.Is(err, tier.ErrConflict) || errors.Is(err, tier.ErrNotFound) {
		t.Errorf("Put: %v, want ErrConflict", err)
	}
	if err := s.Put(t.Context(), "big", bytes.NewReader(data), int64(len(data)), tier.PutOptions{}); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
}

// TestCase holds faults of other systems that this package must not have, named for
// where they were reported; see testdata/cases.txt of package tier.
func TestCase(t *testing.T) {
	t.Run("MILVUS-BACKUP-1093", TestPartsAreAborted)
	t.Run("MINIO-21189", TestPartGone)
	t.Run("RMQ-21", TestBreaker)
}

// TestLimits: slots come back, whatever happened.
func TestLimits(t *testing.T) {
	s, i := hurt(t, func(o *s3store.Options) { o.Uploads, o.Reads, o.Controls, o.Attempts = 1, 1, 1, 1 })
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool { cut(w); return true })
	for range 3 {
		_ = put(t.Context(), s, "k", "data", true)
		_, _ = s.GetRange(t.Context(), "k", 0, 1)
	}
	i.set(nil)
	ctx, cancel := context.WithCancel(t.Context())
	hold := make(chan struct{})
	i.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodGet {
			close(hold)
			<-r.Context().Done()
			return true
		}
		return false
	})
	done := make(chan error)
	go func() { _, err := s.GetRange(ctx, "k", 0, 1); done <- err }()
	<-hold
	// The only read slot is taken: uploads and control go on, a second read waits.
	if err := put(t.Context(), s, "k", "data", true); err != nil {
		t.Errorf("Put beside a slow read: %v", err)
	}
	if _, err := s.Head(t.Context(), "k"); err != nil {
		t.Errorf("Head beside a slow read: %v", err)
	}
	short, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if _, err := s.GetRange(short, "k", 0, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second read: %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("first read: %v", err)
	}
	i.set(nil)
	if _, err := s.GetRange(t.Context(), "k", 0, 1); err != nil {
		t.Errorf("read afterwards: %v", err)
	}
}
