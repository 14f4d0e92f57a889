package s3store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cordwood-io/cordwood/tier"
)

// Defaults of [Options].
const (
	DefaultRegion         = "us-east-1"
	DefaultUploads        = 8
	DefaultReads          = 64
	DefaultControls       = 16
	DefaultAttempts       = 3
	DefaultStallTimeout   = 15 * time.Second
	DefaultAnswerTimeout  = 30 * time.Second
	DefaultMaxPutBytes    = int64(5) << 30 // of Amazon S3
	DefaultPartBytes      = int64(64) << 20
	DefaultIdleConnection = 4 * time.Second
	DefaultPageKeys       = 1000
)

// Options configure [Open]. Endpoint and Bucket are required.
type Options struct {
	// Endpoint is the server's host, or host:port.
	Endpoint string

	// Bucket must exist.
	Bucket string

	// Prefix is put before all keys, with a slash between. "" means none.
	Prefix string

	// Region of the bucket. Default DefaultRegion.
	Region string

	// Plaintext speaks HTTP without TLS.
	Plaintext bool

	// VirtualHost puts the bucket's name into the host name, as Amazon wants it;
	// false puts it into the path for every server but Amazon's.
	VirtualHost bool

	// Credentials returns the keys to sign with. It is asked at first, when the
	// ones it gave expire, and when the server says that they have; so keys can be
	// changed while the store is in use. Nil looks where the tools of Amazon and MinIO
	// look: environment, files in the home directory, the machine's role.
	Credentials func(context.Context) (Credentials, error)

	// Transport sends the requests. Nil makes three: for uploads, reads and
	// control. One that is given serves all and is not closed.
	Transport http.RoundTripper

	// Uploads, Reads and Controls bound the requests of each kind under way; what
	// comes above waits. Defaults DefaultUploads, DefaultReads, DefaultControls.
	Uploads, Reads, Controls int

	// Attempts is how often one call asks at most. Range 1 and up, default
	// DefaultAttempts. All calls together have a budget of retries besides.
	Attempts int

	// StallTimeout is how long no byte of a body may flow. AnswerTimeout is how
	// long a server may take from the last byte of the request to the first of
	// its answer. Defaults DefaultStallTimeout, DefaultAnswerTimeout.
	StallTimeout  time.Duration
	AnswerTimeout time.Duration

	// MaxPutBytes is the largest object of one request; larger ones are sent in
	// parts of PartBytes or more. Ranges: 5 MiB to 5 GiB each. Defaults
	// DefaultMaxPutBytes, DefaultPartBytes.
	MaxPutBytes int64
	PartBytes   int64

	// NoChecksum leaves the checksum header out, for servers that can't have it.
	NoChecksum bool

	// PageKeys is how many keys a page of a listing, and a batch of a deletion, has
	// at most. Range 1 to 1000, default DefaultPageKeys.
	PageKeys int

	// ReadOnly makes Open write nothing: it asks whether the bucket exists, makes no
	// probe and claims no capability.
	ReadOnly bool

	// Logger hears when the breaker opens and closes. Nil discards.
	Logger *slog.Logger
}

// Credentials sign requests.
type Credentials struct {
	AccessKey    string
	SecretKey    string
	SessionToken string    // "" if there is none
	Expires      time.Time // zero: never; the store asks again a little before
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	check := func(ok bool, format string, a ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("s3store: "+format, a...))
		}
	}
	check(o.Endpoint != "" && !strings.ContainsAny(o.Endpoint, "/?#@ "), "Options.Endpoint %q is no host or host:port", o.Endpoint)
	check(o.Bucket != "" && !strings.Contains(o.Bucket, "/"), "Options.Bucket %q is no bucket", o.Bucket)
	check(o.Prefix == "" || tier.CheckKey(o.Prefix) == nil && len(o.Prefix) <= tier.MaxPrefixBytes, "Options.Prefix %q is no key, or longer than %d bytes", o.Prefix, tier.MaxPrefixBytes)
	if o.Region == "" {
		o.Region = DefaultRegion
	}
	number := func(name string, v *int, def, limit int) {
		if *v == 0 {
			*v = def
		}
		check(*v >= 1 && *v <= limit, "Options.%s is %d, want 1 to %d", name, *v, limit)
	}
	number("Uploads", &o.Uploads, DefaultUploads, 10_000)
	number("Reads", &o.Reads, DefaultReads, 10_000)
	number("Controls", &o.Controls, DefaultControls, 10_000)
	number("Attempts", &o.Attempts, DefaultAttempts, 100)
	number("PageKeys", &o.PageKeys, DefaultPageKeys, 1000)
	wait := func(name string, v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
		check(*v > 0, "Options.%s is %v", name, *v)
	}
	wait("StallTimeout", &o.StallTimeout, DefaultStallTimeout)
	wait("AnswerTimeout", &o.AnswerTimeout, DefaultAnswerTimeout)
	size := func(name string, v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
		check(*v >= 5<<20 && *v <= 5<<30, "Options.%s is %d, want 5 MiB to 5 GiB", name, *v)
	}
	size("MaxPutBytes", &o.MaxPutBytes, DefaultMaxPutBytes)
	size("PartBytes", &o.PartBytes, DefaultPartBytes)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

// ParseURL reads the place of a store:
//
//	s3://[KEY:SECRET@][HOST[:PORT]/]BUCKET[/PREFIX][?region=R&plaintext=1]
//
// With plaintext, or with a port or a dot in it, the part after "s3://" is a host
// and the bucket is the first part of the path; else it is the bucket, and the host
// is Amazon's of the region. Keys in a URL are seen by whoever sees the URL: leave
// them out and Open looks in the environment and the home directory.
func ParseURL(s string) (Options, error) {
	bad := func(what string) (Options, error) {
		return Options{}, fmt.Errorf("s3store: %s; want s3://[KEY:SECRET@][HOST[:PORT]/]BUCKET[/PREFIX][?region=R&plaintext=1]", what)
	}
	u, err := url.Parse(s)
	if err != nil {
		return bad("the URL can't be read") // its error would show the secret
	}
	if u.Scheme != "s3" || u.Host == "" || u.Opaque != "" || u.Fragment != "" {
		return bad("not an s3:// URL")
	}
	var o Options
	for name, values := range u.Query() {
		switch name {
		case "region":
			o.Region = values[0]
		case "plaintext":
			if o.Plaintext, err = strconv.ParseBool(values[0]); err != nil {
				return bad("plaintext is neither 0 nor 1")
			}
		default:
			return bad(fmt.Sprintf("parameter %q is not known", name))
		}
	}
	if u.User != nil {
		c := Credentials{AccessKey: u.User.Username()}
		c.SecretKey, _ = u.User.Password()
		if c.AccessKey == "" || c.SecretKey == "" {
			return bad("a key without its secret")
		}
		o.Credentials = Static(c)
	}
	rest := strings.Trim(u.Path, "/")
	if o.Plaintext || strings.ContainsAny(u.Host, ".:") {
		o.Endpoint = u.Host
		o.Bucket, o.Prefix, _ = strings.Cut(rest, "/")
	} else {
		region := o.Region
		if region == "" {
			region = DefaultRegion
		}
		o.Endpoint = "s3." + region + ".amazonaws.com"
		o.VirtualHost = true
		o.Bucket, o.Prefix = u.Host, rest
	}
	if o.Bucket == "" {
		return bad("no bucket")
	}
	if _, err := o.withDefaults(); err != nil {
		return Options{}, err
	}
	return o, nil
}

// Static returns credentials that don't change.
func Static(c Credentials) func(context.Context) (Credentials, error) {
	return func(context.Context) (Credentials, error) { return c, nil }
}
