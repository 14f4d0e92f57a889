package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// told makes the value of offset off in a life of the log.
func told(life int, off log.Offset) string { return fmt.Sprintf("%d at %d %0300d", life, off, 0) }

func fill(t testing.TB, l *log.Log, life int, to log.Offset) {
	t.Helper()
	for l.End() < to {
		mustAppend(t, l, told(life, l.End()))
	}
}

// TestReadersOutliveChanges changes the log while Slices and an iterator are in
// use, and in the middle of their reads of the file. What was read stays, and what
// comes after is the same log's or a typed error: never other records at offsets
// that follow those that were read.
func TestReadersOutliveChanges(t *testing.T) {
	ctx := context.Background()
	changes := map[string]struct {
		change func(t testing.TB, l *log.Log)
		errs   []error // one of these, or none
	}{
		"roll": {func(t testing.TB, l *log.Log) {
			if err := l.Roll(ctx); err != nil {
				t.Error(err)
			}
			fill(t, l, 1, 70)
		}, nil},
		"trim": {func(t testing.TB, l *log.Log) {
			if err := l.TrimTo(ctx, 58); err != nil {
				t.Error(err)
			}
		}, []error{log.ErrOffsetOutOfRange}},
		"drop": {func(t testing.TB, l *log.Log) {
			if err := l.DropLocal(ctx, 58); err != nil {
				t.Error(err)
			}
		}, []error{log.ErrBelowLocalStart}},
		"truncate": {func(t testing.TB, l *log.Log) {
			if _, err := l.TruncateTo(ctx, 5); err != nil {
				t.Error(err)
			}
			fill(t, l, 2, 80)
		}, []error{log.ErrTruncated}},
		"truncate only": {func(t testing.TB, l *log.Log) {
			if _, err := l.TruncateTo(ctx, 5); err != nil {
				t.Error(err)
			}
		}, []error{log.ErrTruncated}},
		"reset": {func(t testing.TB, l *log.Log) {
			if err := l.Reset(ctx, 0, nil, nil); err != nil {
				t.Error(err)
			}
			fill(t, l, 2, 80)
		}, []error{log.ErrTruncated}},
		"reset above": {func(t testing.TB, l *log.Log) {
			if err := l.Reset(ctx, 1000, nil, nil); err != nil {
				t.Error(err)
			}
		}, []error{log.ErrTruncated}},
		"close": {func(t testing.TB, l *log.Log) { mustClose(t, l) }, []error{log.ErrClosed}},
	}
	for name, c := range changes {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			// inside is the read of a file in which the change happens; -1 for between reads.
			for inside := int64(-1); inside < 12; inside++ {
				fs := logtest.NewFS(1)
				disk, err := log.NewDisk(log.DiskOptions{FS: fs, OpenFiles: 1})
				if err != nil {
					t.Fatal(err)
				}
				l, err := log.Open(ctx, "/data/p", log.Options{Disk: disk, SegmentBytes: 4 << 10})
				if err != nil {
					t.Fatal(err)
				}
				fill(t, l, 1, 60)
				s, err := l.Read(ctx, 3, 2000)
				if err != nil {
					t.Fatal(err)
				}
				next := log.Offset(0)
				kept := bytes.Clone(s.Bytes())
				changed, at := false, log.Offset(0)
				var reads atomic.Int64
				if inside >= 0 {
					fs.OnOp(func(op logtest.Op) error {
						if op.Kind == logtest.OpRead && strings.HasSuffix(op.Path, ".log") && reads.Add(1) == inside+1 {
							changed, at = true, next
							c.change(t, l)
						}
						return nil
					})
				}
				for r, err := range l.Records(ctx, 0) {
					if err != nil {
						ok := false
						for _, want := range c.errs {
							// Before anything was given out, a reset looks like a start above.
							ok = ok || errors.Is(err, want) || at == 0 && errors.Is(err, log.ErrOffsetOutOfRange)
						}
						if !ok || !changed {
							t.Errorf("inside %d: got %v at %d", inside, err, next)
						}
						break
					}
					// If nothing was given out before the change, the new life is right.
					second := changed && at == 0 && string(r.Value) == told(2, r.Offset)
					if r.Offset != next || string(r.Value) != told(1, r.Offset) && !second {
						t.Fatalf("inside %d: got offset %d, %.20q, want offset %d", inside, r.Offset, r.Value, next)
					}
					next = r.Offset + 1
					if inside < 0 && next == 20 {
						changed, at = true, next
						c.change(t, l)
					}
				}
				fs.OnOp(nil)
				if !bytes.Equal(s.Bytes(), kept) {
					t.Errorf("inside %d: the bytes of a Slice changed", inside)
				}
				s.Release()
				mustClose(t, l)
				if err := disk.Close(); err != nil {
					t.Error(err)
				}
				if inside >= 0 && !changed {
					if inside < 4 {
						t.Errorf("only %d reads", inside)
					}
					break
				}
			}
		})
	}
}

// TestRecordsAreDurable cuts under an iterator and appends without a sync: what
// lies above the new durable end is not given out.
func TestRecordsAreDurable(t *testing.T) {
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	fill(t, l, 1, 10)
	once := false
	fs.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpRead && !once {
			once = true
			if _, err := l.TruncateTo(t.Context(), 5); err != nil {
				t.Error(err)
			}
			for l.End() < 10 {
				mustWrite(t, l, told(2, l.End()))
			}
		}
		return nil
	})
	if got := values(t, l, 2); len(got) != 3 {
		t.Errorf("got %d records, want 3", len(got))
	}
	fs.OnOp(nil)
	mustClose(t, l)
}

// TestFollow tails a log without polling: it waits, hears of records, of a
// truncation below it, of one that it needs not care for, and of the end.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{SegmentBytes: 2 << 10})
		fill(t, l, 1, 5)
		type got struct {
			r   log.Record
			err error
		}
		follow := func(ctx context.Context, from log.Offset) (<-chan got, *sync.WaitGroup) {
			ch := make(chan got, 100)
			var wg sync.WaitGroup
			wg.Go(func() {
				defer close(ch)
				var seq iter.Seq2[log.Record, error] = l.Follow(ctx, from)
				for r, err := range seq {
					ch <- got{r, err}
				}
			})
			return ch, &wg
		}
		ctx, cancel := context.WithCancel(t.Context())
		a, aDone := follow(ctx, 0)
		synctest.Wait()
		if len(a) != 5 {
			t.Errorf("got %d records", len(a))
		}
		time.Sleep(time.Hour) // nothing moves by itself
		mustWrite(t, l, told(1, 5))
		synctest.Wait()
		if len(a) != 5 {
			t.Error("a record that is not durable was given out")
		}
		fill(t, l, 1, 20)
		synctest.Wait()
		if len(a) != 20 {
			t.Errorf("got %d records, want 20", len(a))
		}
		b, bDone := follow(t.Context(), 12)
		c, cDone := follow(t.Context(), 20)
		synctest.Wait()
		if _, err := l.TruncateTo(t.Context(), 15); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		aDone.Wait()
		bDone.Wait()
		for range 20 {
			<-a
		}
		if g := <-a; !errors.Is(g.err, log.ErrTruncated) {
			t.Errorf("got %v", g.err)
		}
		for range 8 {
			<-b
		}
		if g := <-b; !errors.Is(g.err, log.ErrTruncated) {
			t.Errorf("got %v", g.err)
		}
		fill(t, l, 2, 22)
		synctest.Wait()
		if len(c) != 2 {
			t.Errorf("got %d records, want 2", len(c))
		}
		d, dDone := follow(ctx, 22)
		synctest.Wait()
		cancel()
		dDone.Wait()
		if g := <-d; !errors.Is(g.err, context.Canceled) {
			t.Errorf("got %v", g.err)
		}
		mustClose(t, l)
		cDone.Wait()
		for range 2 {
			<-c
		}
		if g := <-c; !errors.Is(g.err, log.ErrClosed) {
			t.Errorf("got %v", g.err)
		}
	})
}
