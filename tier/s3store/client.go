package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/cordwood-io/cordwood/tier"
)

// A lane is what one kind of request has for itself.
type lane struct {
	core  *minio.Core
	slots chan struct{}
	http  *http.Transport // nil if the host gave the transport
}

func newLane(o *Options, creds *credentials.Credentials, n int) (*lane, error) {
	l := &lane{slots: make(chan struct{}, n)}
	rt := o.Transport
	if rt == nil {
		l.http = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConns:        n,
			MaxIdleConnsPerHost: n,
			// Shorter than what servers grant an idle connection, so that a request rarely
			// meets one that is being closed.
			IdleConnTimeout:    DefaultIdleConnection,
			DisableCompression: true,
		}
		rt = l.http
	}
	lookup := minio.BucketLookupAuto
	if !o.VirtualHost {
		lookup = minio.BucketLookupPath
	}
	core, err := minio.NewCore(o.Endpoint, &minio.Options{
		Creds: creds, Secure: !o.Plaintext, Region: o.Region, BucketLookup: lookup,
		Transport:  watchedTransport{rt},
		MaxRetries: 1, // who retries is [Store.call]
	})
	if err != nil {
		return nil, fmt.Errorf("s3store: %w", err)
	}
	l.core = core
	return l, nil
}

// A request is what the transport tells of one attempt.
type request struct {
	sent       atomic.Bool // its header went out
	retryAfter atomic.Int64
}

type requestKey struct{}

// watchedTransport notes in the context's request what became of it.
type watchedTransport struct{ http.RoundTripper }

func (t watchedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	q, ok := r.Context().Value(requestKey{}).(*request)
	if !ok {
		return t.RoundTripper.RoundTrip(r)
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		WroteHeaders: func() { q.sent.Store(true) },
	}))
	resp, err := t.RoundTripper.RoundTrip(r)
	if resp != nil {
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			q.retryAfter.Store(int64(min(time.Duration(s)*time.Second, time.Minute)))
		}
	}
	return resp, err
}

// A watchdog ends a context when nothing has happened for a while.
type watchdog struct {
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

var errStalled = errors.New("s3store: no byte for too long")

func newWatchdog(ctx context.Context, d time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &watchdog{timer: time.AfterFunc(d, func() { cancel(errStalled) }), cancel: cancel}
}

// next grants d from now on.
func (w *watchdog) next(d time.Duration) { w.timer.Reset(d) }

// pause grants any time until next.
func (w *watchdog) pause() { w.timer.Stop() }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(context.Canceled)
}

// provider adapts Options.Credentials to minio-go.
type provider struct {
	get func(context.Context) (Credentials, error)

	mu      sync.Mutex
	has     bool
	expires time.Time
}

// expiryMargin is how long before their end keys are fetched anew.
const expiryMargin = time.Minute

func (p *provider) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	ctx := context.Background()
	if cc != nil && cc.Context != nil {
		ctx = cc.Context
	}
	c, err := p.get(ctx)
	if err != nil {
		return credentials.Value{}, fmt.Errorf("s3store: credentials: %w", err)
	}
	p.mu.Lock()
	p.has, p.expires = true, c.Expires
	p.mu.Unlock()
	return credentials.Value{
		AccessKeyID: c.AccessKey, SecretAccessKey: c.SecretKey, SessionToken: c.SessionToken,
		Expiration: c.Expires, SignerType: credentials.SignatureV4,
	}, nil
}

func (p *provider) Retrieve() (credentials.Value, error) { return p.RetrieveWithCredContext(nil) }

func (p *provider) IsExpired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.has || !p.expires.IsZero() && time.Until(p.expires) < expiryMargin
}

func newCredentials(get func(context.Context) (Credentials, error)) *credentials.Credentials {
	if get != nil {
		return credentials.New(&provider{get: get})
	}
	return credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{}, &credentials.EnvMinio{}, &credentials.FileAWSCredentials{},
		&credentials.FileMinioClient{}, &credentials.IAM{},
	})
}

// errExpired: the keys have expired; new ones are fetched for the next attempt.
var errExpired = errors.New("s3store: credentials have expired")

// call runs f, which makes one request, until it succeeds, fails for good, or
// attempts, budget or breaker end it. f's error is judged by [Store.verdict].
func (s *Store) call(ctx context.Context, l *lane, write bool, f func(context.Context, *watchdog) error) error {
	for attempt := 1; ; attempt++ {
		err := s.once(ctx, l, write, f)
		if err == nil || attempt == s.o.Attempts || !again(err) || ctx.Err() != nil || !s.spend() {
			return err
		}
		var asked time.Duration
		if t, ok := errors.AsType[*tier.ThrottledError](err); ok {
			asked = t.RetryAfter
		}
		timer := time.NewTimer(backoff(attempt, asked, rand.Float64()))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// again says whether the next attempt may fare better, and can do no harm.
func again(err error) bool {
	if errors.Is(err, errOpen) || errors.Is(err, tier.ErrUnknownOutcome) {
		return false
	}
	_, throttled := errors.AsType[*tier.ThrottledError](err)
	return throttled || errors.Is(err, tier.ErrUnavailable) || errors.Is(err, errExpired)
}

var errOpen = errors.New("s3store: the circuit breaker is open")

func (s *Store) spend() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.budget.spend()
	if ok {
		s.stats.Retries++
	}
	return ok
}

// once makes one attempt.
func (s *Store) once(ctx context.Context, l *lane, write bool, f func(context.Context, *watchdog) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
	}
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", tier.ErrUnavailable, ctx.Err())
	}
	defer func() { <-l.slots }()
	s.mu.Lock()
	ok, trial, wait := s.breaker.allow(time.Now())
	if ok {
		s.stats.Requests++
	} else {
		s.stats.Refused++
	}
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: %w for %v", tier.ErrUnavailable, errOpen, wait.Round(time.Millisecond))
	}
	health := neutral
	defer func() { s.tell(health, trial) }() // also when f panics
	var q request
	wctx, w := newWatchdog(context.WithValue(ctx, requestKey{}, &q), s.o.AnswerTimeout)
	err := f(wctx, w)
	cause := context.Cause(wctx)
	w.stop()
	if err != nil {
		health, err = s.verdict(ctx, cause, err, &q, write)
	} else {
		health = healthy
	}
	return err
}

// tell takes the end of an attempt into breaker, budget and counters.
func (s *Store) tell(health outcome, trial bool) {
	s.mu.Lock()
	changed := s.breaker.done(health, trial, time.Now(), rand.Float64())
	open := s.breaker.open
	switch health {
	case healthy:
		s.budget.earn()
	case sick:
		s.stats.Failures++
	}
	s.mu.Unlock()
	if changed {
		s.o.Logger.Warn("object store", "endpoint", s.o.Endpoint, "bucket", s.o.Bucket, "breaker_open", open)
	}
}

// verdict gives the error of a request its meaning. cause is why the request's
// context ended, nil if it did not; ctx is the caller's.
func (s *Store) verdict(ctx context.Context, cause, err error, q *request, write bool) (outcome, error) {
	// What this package found out itself.
	if own, ok := errors.AsType[*ownError](err); ok {
		return own.health, own.err
	}
	lost := func(err error) error { // no answer
		if write && q.sent.Load() {
			return fmt.Errorf("%w: %w", tier.ErrUnknownOutcome, err)
		}
		return fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
	}
	r, answered := errors.AsType[minio.ErrorResponse](err)
	if !answered || r.StatusCode == 0 {
		if answered && r.Code != "" {
			// minio-go's own refusal, or a line of an answer about many keys.
			if o, e, ok := s.meaning(r, q); ok {
				return o, e
			}
			if r.Code == "InternalError" || r.Code == "ServiceUnavailable" {
				return sick, lost(err)
			}
			return neutral, fmt.Errorf("s3store: %w", err)
		}
		switch {
		case errors.Is(cause, errStalled):
			return sick, lost(errStalled)
		case ctx.Err() != nil:
			health := neutral
			if q.sent.Load() && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				health = sick
			}
			return health, lost(ctx.Err())
		}
		return sick, lost(err)
	}
	if o, e, ok := s.meaning(r, q); ok {
		return o, e
	}
	if r.StatusCode == http.StatusNotImplemented || r.StatusCode == http.StatusMethodNotAllowed {
		return healthy, fmt.Errorf("s3store: the server can't: %w", err)
	}
	// An error in an answer of 200 comes after S3 has begun to answer: not clear either.
	if r.StatusCode >= 500 || r.StatusCode < 300 || r.StatusCode == http.StatusRequestTimeout || r.StatusCode == 499 {
		return sick, lost(err)
	}
	return healthy, fmt.Errorf("s3store: %s: %w", r.Code, err)
}

// meaning translates an answer of the server that says clearly what happened.
func (s *Store) meaning(r minio.ErrorResponse, q *request) (o outcome, err error, ok bool) {
	wrap := func(sentinel error) error { return fmt.Errorf("%w: %w", sentinel, r) }
	switch r.Code {
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "TooManyRequests":
		return sick, errors.Join(&tier.ThrottledError{RetryAfter: time.Duration(q.retryAfter.Load())}, r), true
	case "ExpiredToken", "ExpiredTokenException":
		s.creds.Expire()
		return healthy, errors.Join(errExpired, tier.ErrDenied, r), true
	case "PreconditionFailed":
		return healthy, wrap(tier.ErrExists), true
	case "ConditionalRequestConflict", "OperationAborted", "Conflict":
		return healthy, wrap(tier.ErrConflict), true
	case "NoSuchKey", "NotFound":
		return healthy, wrap(tier.ErrNotFound), true
	case "InvalidRange":
		return healthy, wrap(tier.ErrRange), true
	case "BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch":
		return healthy, wrap(tier.ErrCorrupt), true
	case "NoSuchBucket", "AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch":
		s.creds.Expire() // they may have been changed
		return healthy, wrap(tier.ErrDenied), true
	}
	switch r.StatusCode {
	case http.StatusTooManyRequests:
		return sick, errors.Join(&tier.ThrottledError{RetryAfter: time.Duration(q.retryAfter.Load())}, r), true
	case http.StatusUnauthorized, http.StatusForbidden:
		s.creds.Expire()
		return healthy, wrap(tier.ErrDenied), true
	case http.StatusNotFound:
		return healthy, wrap(tier.ErrNotFound), true
	case http.StatusConflict:
		return healthy, wrap(tier.ErrConflict), true
	case http.StatusPreconditionFailed, http.StatusNotModified: // some servers say 304
		return healthy, wrap(tier.ErrExists), true
	case http.StatusRequestedRangeNotSatisfiable:
		return healthy, wrap(tier.ErrRange), true
	}
	return neutral, nil, false
}

// An ownError is a verdict that this package has made before the server could.
type ownError struct {
	err    error
	health outcome
}

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// A body gives the bytes of an upload to the transport, which may read on after
// the request has ended: never after shut.
type body struct {
	w     *watchdog
	o     *Options
	at    int64
	size  int64
	sum   uint32
	want  uint32
	total bool // keep sum
	check bool // and hold it against want at the end

	mu  sync.Mutex
	r   io.ReaderAt // nil after shut
	err error       // why it ended early
}

var errShut = errors.New("s3store: upload has ended")

// Read implements [io.Reader]. The last bytes are given only if the checksum of all
// is right, so that a server never gets a wrong object whole.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.r == nil:
		return 0, errShut
	case b.err != nil:
		return 0, b.err
	case b.at == b.size:
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), b.size-b.at)]
	b.w.pause() // that the source is slow is not the server's fault
	n, err := b.r.ReadAt(p, b.at)
	if n < len(p) {
		if err == nil || errors.Is(err, io.EOF) {
			err = fmt.Errorf("source ends at %d of %d bytes: %w", b.at+int64(n), b.size, tier.ErrCorrupt)
		} else {
			err = fmt.Errorf("read the source: %w", err)
		}
		b.err = err
		b.w.next(b.o.AnswerTimeout)
		return 0, err
	}
	b.at += int64(n)
	if b.total {
		b.sum = update(b.sum, p)
		if b.check && b.at == b.size && b.sum != b.want {
			b.err = fmt.Errorf("checksum %08x instead of %08x: %w", b.sum, b.want, tier.ErrCorrupt)
			return 0, b.err
		}
	}
	if b.at == b.size {
		b.w.next(b.o.AnswerTimeout)
	} else {
		b.w.next(b.o.StallTimeout)
	}
	return n, nil
}

// shut ends the use of the source and returns why it gave out, if it did.
func (b *body) shut() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.r = nil
	return b.err
}
