package s3store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cordwood-io/cordwood/tier"
)

const probeDir = ".cordwood-probe/"

// probe finds out by small objects what the server keeps of its protocol.
func (s *Store) probe(ctx context.Context) (err error) {
	var nonce [12]byte
	rand.Read(nonce[:])
	key := probeDir + hex.EncodeToString(nonce[:])
	defer func() {
		for _, r := range s.Delete(context.WithoutCancel(ctx), []string{key, key + "-sum"}) {
			if r.Err != nil && err == nil {
				err = fmt.Errorf("s3store: probe: %w", r.Err)
			}
		}
	}()
	first, second := []byte("first"), []byte("other")
	put := func(key string, b []byte, o tier.PutOptions) error {
		return s.put(ctx, s.prefix+key, bytes.NewReader(b), int64(len(b)), o)
	}
	if err := put(key, first, tier.PutOptions{}); err != nil {
		return fmt.Errorf("s3store: probe: write to bucket %s: %w", s.o.Bucket, err)
	}
	b, err := s.GetRange(ctx, key, 1, 3)
	if err != nil {
		return fmt.Errorf("s3store: probe: %w", err)
	}
	if string(b) != "irs" {
		return fmt.Errorf("s3store: probe: the server gives %q for a range that is %q: %w", b, "irs", tier.ErrCorrupt)
	}
	switch err := put(key, second, tier.PutOptions{IfAbsent: true}); {
	case errors.Is(err, tier.ErrExists):
		b, err := s.GetRange(ctx, key, 0, int64(len(first)))
		if err != nil {
			return fmt.Errorf("s3store: probe: %w", err)
		}
		s.caps.IfAbsent = bytes.Equal(b, first)
	case errors.Is(err, tier.ErrDenied), errors.Is(err, tier.ErrUnavailable), errors.Is(err, tier.ErrUnknownOutcome):
		return fmt.Errorf("s3store: probe: conditional write: %w", err)
	}
	if s.o.NoChecksum {
		return nil
	}
	// The body's own check would refuse this; the header alone must.
	switch err := s.putWrongSum(ctx, s.prefix+key+"-sum"); {
	case errors.Is(err, tier.ErrCorrupt):
		s.caps.CRC32C = true
	case errors.Is(err, tier.ErrUnavailable), errors.Is(err, tier.ErrUnknownOutcome):
		return fmt.Errorf("s3store: probe: checksum: %w", err)
	}
	return nil
}

// putWrongSum sends a checksum that is not the body's.
func (s *Store) putWrongSum(ctx context.Context, name string) error {
	return s.call(ctx, s.uploads, true, func(ctx context.Context, w *watchdog) error {
		b := &body{w: w, o: &s.o, r: bytes.NewReader([]byte("x")), size: 1}
		_, err := s.uploads.core.PutObject(ctx, s.o.Bucket, name, b, 1, "", "", s.putOptions(tier.PutOptions{HasCRC32C: true, CRC32C: 1}))
		b.shut()
		return err
	})
}
