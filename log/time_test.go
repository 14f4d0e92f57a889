package log_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// TestTimeModel asks for offsets by time and compares with a scan of all records:
// stamps out of order inside and across batches, before 1970 and in the far future,
// compressed batches, log-append time, control batches, segments that were sealed,
// closed, cut, trimmed and dropped.
func TestTimeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		fs := logtest.NewFS(rapid.Uint64().Draw(t, "seed"))
		o := log.Options{FS: fs, SegmentBytes: rapid.SampledFrom([]int64{1 << 10, 9 << 10, 100 << 10}).Draw(t, "segment")}
		open := func() *log.Log {
			l, err := log.Open(ctx, "/data/p", o)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		l := open()
		const none = int64(-1 << 62) // of a control record, or one without a time
		var stamps []int64           // of every record, ms
		stamp := rapid.OneOf(rapid.Int64Range(-50, 400), rapid.Int64Range(0, 50), rapid.SampledFrom([]int64{0, -1, 1 << 40}))
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				b := record.Builder{Compression: rapid.SampledFrom([]record.Compression{record.None, record.None, record.Gzip, record.Zstd}).Draw(t, "compression")}
				var times []int64
				for range rapid.IntRange(1, 6).Draw(t, "records") {
					ms := stamp.Draw(t, "time")
					must(b.Append(record.Record{Timestamp: time.UnixMilli(ms), Value: []byte(strings.Repeat("v", rapid.SampledFrom([]int{1, 300, 3000}).Draw(t, "size")))}))
					times = append(times, ms)
				}
				x, err := b.Build()
				must(err)
				if rapid.IntRange(0, 4).Draw(t, "log append time") == 0 {
					ms := stamp.Draw(t, "append time")
					x.SetLogAppendTime(ms)
					for i := range times {
						times[i] = ms
					}
				}
				_, err = l.Append(ctx, x.Bytes())
				must(err)
				for _, ms := range times {
					if ms == record.NoTimestamp {
						ms = none
					}
					stamps = append(stamps, ms)
				}
			},
			"control": func(t *rapid.T) {
				_, err := l.WriteControl(max(0, l.LastEpoch()), record.LeaderChange(0, 1, []int32{1}, time.UnixMilli(stamp.Draw(t, "time"))))
				must(err)
				stamps = append(stamps, none)
			},
			"roll": func(t *rapid.T) { must(l.Roll(ctx)) },
			"truncate": func(t *rapid.T) {
				end, err := l.TruncateTo(ctx, log.Offset(rapid.Int64Range(int64(l.LocalStart()), int64(l.End())).Draw(t, "to")))
				must(err)
				stamps = stamps[:end]
			},
			"trim": func(t *rapid.T) {
				must(l.TrimTo(ctx, log.Offset(rapid.Int64Range(int64(l.Start()), int64(l.End())).Draw(t, "to"))))
			},
			"drop": func(t *rapid.T) {
				must(l.DropLocal(ctx, log.Offset(rapid.Int64Range(0, int64(l.End())).Draw(t, "to"))))
			},
			"reopen": func(t *rapid.T) {
				must(l.Close())
				if rapid.Bool().Draw(t, "without indexes") {
					for _, n := range fs.Names() {
						if strings.HasSuffix(n, "index") && rapid.Bool().Draw(t, "remove") {
							must(fs.Remove(n))
						}
					}
				}
				l = open()
			},
			"": func(t *rapid.T) {
				for range 4 {
					ms := stamp.Draw(t, "ask") + rapid.Int64Range(-1, 1).Draw(t, "off by")
					at := time.UnixMilli(ms)
					if rapid.Bool().Draw(t, "between") { // no record has it, the next millisecond counts
						at, ms = at.Add(300*time.Microsecond), ms+1
					}
					from := log.Offset(rapid.IntRange(-1, len(stamps)+1).Draw(t, "from"))
					low := min(max(from, l.LocalStart()), l.End())
					want := slices.IndexFunc(stamps[low:], func(s int64) bool { return s >= ms })
					got, ok, err := l.OffsetForTimeFrom(ctx, from, at)
					if from < 0 {
						got, ok, err = l.OffsetForTime(ctx, at)
					}
					must(err)
					if ok != (want >= 0) || ok && got != low+log.Offset(want) {
						t.Fatalf("at %d from %d: got %d, %v, want %d above %d: %v", ms, from, got, ok, want, low, stamps)
					}
				}
			},
		})
		must(l.Close())
	})
}

// TestTimeMeanwhile looks for a time while the log is cut and trimmed: the answer is
// of the log before or after.
func TestTimeMeanwhile(t *testing.T) {
	for name, change := range map[string]func(l *log.Log) error{
		"trim": func(l *log.Log) error { return l.TrimTo(context.Background(), 45) },
		"drop": func(l *log.Log) error { return l.DropLocal(context.Background(), 45) },
		"truncate": func(l *log.Log) error {
			_, err := l.TruncateTo(context.Background(), 2)
			for i := 0; err == nil && i < 20; i++ {
				_, err = l.AppendRecords(context.Background(), log.Record{Timestamp: time.UnixMilli(9000), Value: []byte(big("", 300))})
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for inside := range 12 {
				fs := logtest.NewFS(1)
				l := open(t, fs, log.Options{SegmentBytes: 2 << 10})
				for i := range 60 {
					if _, err := l.AppendRecords(t.Context(), log.Record{Timestamp: time.UnixMilli(int64(1000 + i)), Value: fmt.Appendf(nil, "%0400d", i)}); err != nil {
						t.Fatal(err)
					}
				}
				n := 0
				fs.OnOp(func(op logtest.Op) error {
					if op.Kind == logtest.OpRead {
						if n++; n == inside+1 {
							if err := change(l); err != nil {
								t.Error(err)
							}
						}
					}
					return nil
				})
				off, ok, err := l.OffsetForTime(t.Context(), time.UnixMilli(1023))
				fs.OnOp(nil)
				switch {
				case err != nil || !ok:
					t.Errorf("inside %d: got %d, %v, %v", inside, off, ok, err)
				case off != 23 && (off < 23 && name != "truncate" || off > 23 && off != l.LocalStart()):
					t.Errorf("inside %d: got %d, local start %d", inside, off, l.LocalStart())
				}
				mustClose(t, l)
				if n <= inside {
					break
				}
			}
		})
	}
	l := open(t, logtest.NewFS(1), log.Options{})
	mustClose(t, l)
	if _, _, err := l.OffsetForTime(t.Context(), time.Now()); !errors.Is(err, log.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
