package s3store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/cordwood-io/cordwood/tier"
)

// nonceKey is in the metadata of an object that was sent in parts: an upload that
// finds its upload id gone looks there whether it was the one that completed.
const nonceKey = "cordwood-upload"

const (
	maxParts = 10_000 // of the protocol

	// abortTimeout bounds the removal of an upload that failed.
	abortTimeout = 30 * time.Second
)

// putParts stores an object in parts, one after the other: the bytes of one part are
// in the network at a time, and nothing is held in memory. minio-go's own multipart
// upload drops the condition; here it goes with the request that completes, which is
// where S3 looks at it.
func (s *Store) putParts(ctx context.Context, name string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	part := s.o.PartBytes
	if part*maxParts < size {
		part = (size + maxParts - 1) / maxParts
	}
	if part > 5<<30 {
		return fmt.Errorf("s3store: %d bytes are more than an object may have", size)
	}
	put := s.putOptions(o)
	delete(put.UserMetadata, "x-amz-checksum-crc32c") // of the whole: not a header of this request
	var nonce [16]byte
	rand.Read(nonce[:])
	put.UserMetadata[nonceKey] = hex.EncodeToString(nonce[:])
	var id string
	err := s.call(ctx, s.uploads, false, func(ctx context.Context, _ *watchdog) (err error) {
		id, err = s.uploads.core.NewMultipartUpload(ctx, s.o.Bucket, name, minio.PutObjectOptions{ContentType: put.ContentType, UserMetadata: put.UserMetadata})
		return err
	})
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			s.abort(ctx, name, id)
		}
	}()
	var parts []minio.CompletePart
	sum := uint32(0)
	for at := int64(0); at < size; {
		n := min(part, size-at)
		var p minio.ObjectPart
		var partSum uint32
		err := s.call(ctx, s.uploads, false, func(ctx context.Context, w *watchdog) (err error) {
			// The last part is checked against the sum of all before its end goes out, so a
			// wrong object is never completed.
			b := &body{
				w: w, o: &s.o, r: io.NewSectionReader(r, at, n), size: n,
				sum: sum, want: o.CRC32C, total: o.HasCRC32C, check: o.HasCRC32C && at+n == size,
			}
			p, err = s.uploads.core.PutObjectPart(ctx, s.o.Bucket, name, id, len(parts)+1, b, n, minio.PutObjectPartOptions{DisableContentSha256: true})
			if source := b.shut(); source != nil {
				return &ownError{source, neutral}
			}
			partSum = b.sum
			return err
		})
		if r, ok := errors.AsType[minio.ErrorResponse](err); ok && r.Code == "NoSuchUpload" {
			// Somebody aborted it, and nobody can complete it any more.
			return fmt.Errorf("%w: %w", tier.ErrConflict, r)
		}
		if err != nil {
			return err
		}
		sum = partSum
		parts = append(parts, minio.CompletePart{PartNumber: len(parts) + 1, ETag: p.ETag})
		at += n
	}
	err = s.call(ctx, s.uploads, true, func(ctx context.Context, _ *watchdog) error {
		complete := minio.PutObjectOptions{}
		if o.IfAbsent {
			complete.SetMatchETagExcept("*")
		}
		_, err := s.uploads.core.CompleteMultipartUpload(ctx, s.o.Bucket, name, id, parts, complete)
		return err
	})
	if r, ok := errors.AsType[minio.ErrorResponse](err); ok && r.Code == "NoSuchUpload" {
		return s.resolve(ctx, name, put.UserMetadata[nonceKey], err)
	}
	done = err == nil || errors.Is(err, tier.ErrUnknownOutcome) // an abort may race with a completion that goes on
	return err
}

// resolve answers an upload id that is gone: it was completed, perhaps by this very
// upload, or aborted.
func (s *Store) resolve(ctx context.Context, name, nonce string, cause error) error {
	var info minio.ObjectInfo
	err := s.call(ctx, s.control, false, func(ctx context.Context, _ *watchdog) (err error) {
		info, err = s.control.core.StatObject(ctx, s.o.Bucket, name, minio.StatObjectOptions{})
		return err
	})
	switch {
	case err == nil:
		for k, v := range info.UserMetadata {
			if strings.EqualFold(k, nonceKey) && v == nonce {
				return nil
			}
		}
		return fmt.Errorf("%w: %w", tier.ErrConflict, cause)
	case errors.Is(err, tier.ErrNotFound):
		return fmt.Errorf("%w: %w", tier.ErrConflict, cause)
	}
	return fmt.Errorf("%w: %w: %w", tier.ErrUnknownOutcome, cause, err)
}

// abort removes the parts of an upload, also when its context has ended.
func (s *Store) abort(ctx context.Context, name, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	err := s.call(ctx, s.control, false, func(ctx context.Context, _ *watchdog) error {
		return s.control.core.AbortMultipartUpload(ctx, s.o.Bucket, name, id)
	})
	if r, ok := errors.AsType[minio.ErrorResponse](err); err != nil && !(ok && r.Code == "NoSuchUpload") {
		s.o.Logger.Warn("abort of a multipart upload", "bucket", s.o.Bucket, "object", name, "err", err)
	}
}
