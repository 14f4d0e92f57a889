package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/s3store"
)

// benchTier measures tier against a real server of the S3 protocol, which it builds and starts, beside a bare loop over the client.
func benchTier(want func(string) bool) (rows []Row, err error) {
	dir, err := os.MkdirTemp("", "bench-tier-")
	if err != nil {
		return nil, err
	}
	// Whoever stops the run does not keep its files, nor its server.
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	b := &tierBench{ctx: ctx, dir: dir, want: want}
	defer func() { err = errors.Join(err, b.stop(), os.RemoveAll(dir)) }()
	for _, measure := range []func() ([]Row, error){b.uploads, b.lookups, b.reads} {
		r, err := measure()
		if err != nil {
			return nil, err
		}
		rows = append(rows, r...)
	}
	return rows, nil
}

// The server that .ci/run uses, too.
const (
	versitygw    = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
	serverKey    = "key"
	serverSecret = "secret-of-the-bench"
	serverBucket = "bucket"
)

type tierBench struct {
	ctx    context.Context
	dir    string
	want   func(string) bool
	addr   string // of the server, once it runs
	server *exec.Cmd
	bare   *minio.Core // once it was asked for
	data   []byte      // what the bare client puts
}

// serve starts the server if it does not run yet.
func (b *tierBench) serve() error {
	if b.server != nil {
		return nil
	}
	install := exec.CommandContext(b.ctx, "go", "install", versitygw)
	install.Env = append(os.Environ(), "GOBIN="+b.dir)
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", install.Args, err, out)
	}
	root := filepath.Join(b.dir, "root")
	if err := os.MkdirAll(filepath.Join(root, serverBucket), 0o755); err != nil {
		return err
	}
	// A port that is free now, below those that systems give to connections.
	for range 100 {
		b.addr = fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000))
		l, err := net.Listen("tcp", b.addr)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return err
		}
		break
	}
	server := exec.CommandContext(b.ctx, filepath.Join(b.dir, "versitygw"), "-a", serverKey, "-s", serverSecret, "-p", b.addr, "-q", "--keep-alive", "posix", root)
	if err := server.Start(); err != nil {
		return err
	}
	b.server = server
	for range 600 {
		c, err := net.Dial("tcp", b.addr)
		if err == nil {
			return c.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("the server does not answer")
}

// stop ends the server.
func (b *tierBench) stop() error {
	if b.server == nil {
		return nil
	}
	err := b.server.Process.Signal(syscall.SIGTERM)
	_ = b.server.Wait() // says how it ended, which is no news
	return err
}

// store is ours, with a prefix of its own.
func (b *tierBench) store(prefix string) (*s3store.Store, error) {
	if err := b.serve(); err != nil {
		return nil, err
	}
	return s3store.Open(b.ctx, s3store.Options{
		Endpoint: b.addr, Bucket: serverBucket, Prefix: prefix, Plaintext: true,
		Credentials: s3store.Static(s3store.Credentials{AccessKey: serverKey, SecretKey: serverSecret}),
	})
}

// raw is the bare client.
func (b *tierBench) raw() (*minio.Core, error) {
	if b.bare != nil {
		return b.bare, nil
	}
	if err := b.serve(); err != nil {
		return nil, err
	}
	core, err := minio.NewCore(b.addr, &minio.Options{Creds: credentials.NewStaticV4(serverKey, serverSecret, ""), Region: s3store.DefaultRegion})
	b.bare = core
	return core, err
}

// lookups measures how long it takes to find one of many ranges by offset.
func (b *tierBench) lookups() ([]Row, error) {
	const ranges, samples, each = 100_000, 27, 200_000
	figure := fmt.Sprintf("lookup/ranges=%d", ranges)
	if !b.want(figure) {
		return nil, nil
	}
	var s tier.State
	s.Apply(tier.Event{Epoch: 1, Body: tier.Barrier{}})
	for i := range ranges {
		id := tier.ID{1, byte(i), byte(i >> 8), byte(i >> 16)}
		for n, body := range []tier.Body{
			tier.CopyStarted{ID: id, Base: log.Offset(i) * 10, End: log.Offset(i+1) * 10, Deadline: time.UnixMilli(1)},
			tier.CopyFinished{ID: id, BatchBytes: 100, ObjectBytes: 300, TailBytes: 50},
		} {
			if v := s.Apply(tier.Event{Epoch: 1, Seq: uint64(2*i + n + 1), Body: body}); v != tier.Applied {
				return nil, fmt.Errorf("range %d: %v", i, v)
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	var took []float64
	for range samples {
		offs := make([]int, each)
		for i := range offs {
			offs[i] = r.IntN(ranges)
		}
		start := time.Now()
		for _, i := range offs {
			if _, ok := s.Lookup(log.Offset(i) * 10); !ok {
				return nil, fmt.Errorf("range %d is not found", i)
			}
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/each/1e3)
	}
	mid, spread := median(took)
	return []Row{{Figure: figure, Unit: "us", Ours: mid, Spread: spread}}, nil
}
