package s3store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

type slowSource struct {
	io.ReaderAt
	wait time.Duration
}

func (s slowSource) ReadAt(p []byte, off int64) (int, error) {
	time.Sleep(s.wait)
	return s.ReaderAt.ReadAt(p, off)
}

// TestSlowSource: the time of the source does not count as a stall; what the server
// takes after it does.
func TestSlowSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{StallTimeout: time.Second, AnswerTimeout: 3 * time.Second}
		ctx, w := newWatchdog(t.Context(), time.Second)
		defer w.stop()
		b := &body{w: w, o: &o, r: slowSource{bytes.NewReader(make([]byte, 20)), time.Hour}, size: 20}
		for i, grace := range []time.Duration{time.Second, 3 * time.Second} {
			if n, err := b.Read(make([]byte, 10)); n != 10 || err != nil {
				t.Fatalf("read %d: %d, %v", i, n, err)
			}
			time.Sleep(grace - time.Millisecond)
			if ctx.Err() != nil {
				t.Fatalf("read %d: %v", i, context.Cause(ctx))
			}
		}
		time.Sleep(2 * time.Millisecond)
		if !errors.Is(context.Cause(ctx), errStalled) {
			t.Errorf("a stall: %v", context.Cause(ctx))
		}
	})
}
