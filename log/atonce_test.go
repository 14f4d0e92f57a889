package log_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// TestEveryCallAtOnce: the calls are safe beside each other, on a log that rolls, drops,
// and aborts transactions all the time. It is for the race detector.
func TestEveryCallAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := open(t, logtest.NewFS(1), log.Options{SegmentBytes: 1 << 10})
	defer mustClose(t, l)
	var stop, all sync.WaitGroup
	calls := map[string]func(off log.Offset) error{
		"state": func(log.Offset) error {
			_, _, _, _, _ = l.LocalStart(), l.DurableEnd(), l.LastEpoch(), l.LastStable(), l.EpochChain()
			_, _, _ = l.Segments(), l.Stats(), l.Recovery()
			l.EndOffset(0)
			return l.Err()
		},
		"aborted":     func(off log.Offset) error { _, err := l.AbortedTransactions(ctx, off, l.End()); return err },
		"last stable": func(off log.Offset) error { _, err := l.LastStableBelow(ctx, off); return err },
		"read": func(off log.Offset) error {
			s, err := l.Read(ctx, off, 1<<10)
			if err == nil {
				s.Release()
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		},
		"producers": func(off log.Offset) error { _, err := l.ProducerSnapshot(ctx, off); return err },
		"time": func(off log.Offset) error {
			_, _, err := l.OffsetForTime(ctx, time.UnixMilli(int64(off)))
			return err
		},
		"verify": func(log.Offset) error { _, err := l.Verify(ctx, log.VerifyOptions{}); return err },
		"retain": func(off log.Offset) error {
			_, _, err := l.Retain(ctx, log.Retention{Bytes: 20 << 10}, off)
			return err
		},
		"drop": func(off log.Offset) error { return l.DropLocal(ctx, off-100) },
		"roll": func(log.Offset) error { return l.Roll(ctx) },
		"sync": func(log.Offset) error { _, err := l.Sync(ctx); return err },
	}
	for name, call := range calls {
		all.Go(func() {
			for ctx.Err() == nil {
				start, end := l.Start(), l.End()
				err := call(start + (end-start)/2)
				for _, ok := range []error{log.ErrOffsetOutOfRange, log.ErrTruncated, context.Canceled} {
					if errors.Is(err, ok) {
						err = nil
					}
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	for id := range int64(2) {
		stop.Go(func() {
			for i := range 300 {
				b := record.EndTxn(i%4 == 1, id, 0, 0, time.UnixMilli(int64(i)))
				var err error
				if i%2 == 0 {
					off := l.End() // stamped by Write
					_, err = l.Write(0, (txnBatch{base: off, end: off + 1, id: id, first: int32(i / 2), kind: kindTxn}).bytes().Bytes())
				} else {
					_, err = l.WriteControl(0, b)
				}
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
			}
		})
	}
	stop.Wait()
	cancel()
	all.Wait()
}
