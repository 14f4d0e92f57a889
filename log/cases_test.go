package log_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

var cases = map[string]func(t *testing.T){
	"ETCD-5230": func(t *testing.T) {
		cut := 0
		for seed := range uint64(60) {
			fs := logtest.NewFS(seed)
			l := open(t, fs, log.Options{})
			mustAppend(t, l, "acknowledged")
			mustWrite(t, l, big("torn", 30_000))
			fs = fs.Crash(logtest.CrashLoseSome(seed))
			l = open(t, fs, log.Options{})
			r := l.Recovery()
			if r.Lossy || r.End < 1 || r.CutBytes > 0 != (r.CutPath != "") {
				t.Fatalf("seed %d: got %+v", seed, r)
			}
			if r.CutBytes > 0 {
				cut++
				if fi, err := fs.Stat(r.CutPath); err != nil || fi.Size != r.CutBytes {
					t.Fatalf("seed %d: %+v, %v, want %d bytes", seed, fi, err, r.CutBytes)
				}
			}
			mustAppend(t, l, "goes on")
			fs = fs.Crash()
			l = open(t, fs, log.Options{})
			if got := values(t, l, 0); got[0] != "acknowledged" || got[len(got)-1] != "goes on" {
				t.Fatalf("seed %d: got %d records", seed, len(got))
			}
			mustClose(t, l)
		}
		if cut < 10 {
			t.Errorf("only %d of 60 crashes tore the tail", cut)
		}
	},
	"B43": caseWindow,
	"B44": caseIdleProducer,
	"B49": caseResetForgets,
	"B50": caseCleanRestart,
	"B53": caseAbortedOrder,

	"REDPANDA-4113": caseZeroChecksum,
	"KAFKA-12520":   caseRecoveryCost,
	"KAFKA-6264":    caseOffsetSpan,
	"KAFKA-12177":   caseRetentionTwice,
	"ETCD-6515":     func(t *testing.T) { everySubset(t) },
	"RAFT-WAL-10":   func(t *testing.T) { everySubset(t) },
	"PEBBLE-453": func(t *testing.T) {
		fs, positions := damaged(t, 300, func(b []byte) { b[70] ^= 4 }, 150)
		l := open(t, fs, log.Options{})
		r := l.Recovery()
		if !r.Lossy || len(r.Corruption) != 1 || r.End != 300 {
			t.Fatalf("got %+v", r)
		}
		if c := r.Corruption[0]; c.Position != positions[150] || c.Offset != 150 || c.End != 151 || path.Base(c.Path) != "00000000000000000000.log" {
			t.Errorf("got %+v, want position %d", c, positions[150])
		}
		mustClose(t, l)
	},
	"log-peers-7": func(t *testing.T) { oneLost(t, func(b []byte) { b[65] ^= 1 }) },
	"log-peers-8": func(t *testing.T) { oneLost(t, func(b []byte) { clear(b[:16]) }) },
	"PEBBLE-36": func(t *testing.T) {
		oneLost(t, func(b []byte) { clear(b[62:68]) })
	},
	"PROMETHEUS-18552": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		for i := range 40 {
			mustAppend(t, l, big(fmt.Sprint(i), i*37))
		}
		segs := l.Segments()
		mustClose(t, l)
		for _, s := range segs {
			b := readAll(t, fs, fmt.Sprintf("/data/p/%020d.log", s.Base))
			next := s.Base
			for len(b) > 0 {
				x, rest, err := record.Next(b, 1<<20)
				if err != nil || x.BaseOffset() != next {
					t.Fatalf("segment %d: %v", s.Base, err)
				}
				next, b = x.NextOffset(), rest
			}
			if next != s.End {
				t.Fatalf("segment %d ends at %d, want %d", s.Base, next, s.End)
			}
		}
	},
	"PROMETHEUS-16074": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		for i := range 40 {
			mustAppend(t, l, big(fmt.Sprint(i), 100))
		}
		second := l.Segments()[1]
		mustClose(t, l)
		name := fmt.Sprintf("/data/p/%020d.log", second.Base)
		if err := fs.Corrupt(name, 70, 0xff); err != nil {
			t.Fatal(err)
		}
		for _, clean := range []bool{true, false} {
			if !clean { // all sealed files are read
				for _, n := range fs.Names() {
					if s := path.Ext(n); s == ".clean" || s == ".seal" || s == ".state" {
						if err := fs.Remove(n); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			before := fs.Names()
			l = open(t, fs, log.Options{SegmentBytes: 1 << 10})
			if r := l.Recovery(); r.Clean != clean || r.Lossy == clean {
				t.Errorf("got %+v", r)
			}
			for off := range log.Offset(40) {
				s, err := l.Read(t.Context(), off, 1)
				if off == second.Base {
					if _, ok := errors.AsType[*log.CorruptionError](err); !ok {
						t.Errorf("got %v at the damage", err)
					}
				} else if err != nil || s.Base() != off {
					t.Errorf("read %d: %v", off, err)
				}
			}
			for _, n := range before {
				if !slices.Contains(fs.Names(), n) && strings.HasSuffix(n, ".log") {
					t.Errorf("%s is gone", n)
				}
			}
			mustClose(t, l)
		}
	},
	"PROMETHEUS-TSDB-524": func(t *testing.T) {
		fs, _ := damaged(t, 20, func(b []byte) { clear(b[:20]) }, 10)
		l := open(t, fs, log.Options{})
		n, bad := 0, 0
		for _, err := range l.Records(t.Context(), 0) {
			if err != nil {
				if _, ok := errors.AsType[*log.CorruptionError](err); !ok {
					t.Errorf("got %v", err)
				}
				bad++
				continue
			}
			n++
		}
		if n != 10 || bad != 1 {
			t.Errorf("got %d records and %d errors", n, bad)
		}
		mustClose(t, l)
	},
	"GRAYLOG-9306": func(t *testing.T) { oneLost(t, func(b []byte) { clear(b) }) },
	"log-peers-19": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 32 << 10})
		fs.SetCapacity(fs.UsedBytes() + 400<<10)
		n := 0
		for {
			_, err := l.Append(t.Context(), plain(big(fmt.Sprint(n), 3000)))
			if errors.Is(err, log.ErrDiskFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if l.Err() != nil || l.End() != log.Offset(n) {
			t.Fatalf("got %v, end %d, want %d", l.Err(), l.End(), n)
		}
		fs.SetCapacity(-1)
		for range 100 {
			mustAppend(t, l, big(fmt.Sprint(n), 3000))
			n++
		}
		l = open(t, fs.Crash(), log.Options{SegmentBytes: 32 << 10})
		if got := values(t, l, 0); len(got) != n {
			t.Errorf("got %d records, want %d", len(got), n)
		}
		mustClose(t, l)
	},
	"RAFT-WAL-32": func(t *testing.T) {
		for at := int64(1); ; at++ {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
			from := fs.Changes()
			hit := false
			fs.OnOp(func(op logtest.Op) error {
				if op.Changed-from == at && (op.Kind == logtest.OpWrite || op.Kind == logtest.OpPreallocate || op.Kind == logtest.OpCreate) {
					hit = true
					if op.Kind == logtest.OpWrite {
						return logtest.Short(op.Len/2, syscall.ENOSPC)
					}
					return syscall.ENOSPC
				}
				return nil
			})
			var want []string
			for i := range 12 {
				v := big(fmt.Sprint(i), 200)
				_, err := l.Append(t.Context(), plain(v))
				if errors.Is(err, log.ErrDiskFull) {
					_, err = l.Append(t.Context(), plain(v))
				}
				if l.Err() != nil {
					break // a slot that could not be written
				}
				if err != nil {
					t.Fatalf("change %d: %v", at, err)
				}
				want = append(want, v)
			}
			l.Close() //nolint:errcheck // may have failed
			l = open(t, fs.Crash(), log.Options{SegmentBytes: 1 << 10})
			if got := values(t, l, 0); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
				t.Fatalf("change %d: got %d records, want %d", at, len(got), len(want))
			}
			mustClose(t, l)
			if !hit && fs.Changes()-from < at {
				return
			}
		}
	},
	"log-peers-22": func(t *testing.T) { failedRoll(t) },
	"log-peers-23": func(t *testing.T) { failedRoll(t) },
	"NATS-7788": func(t *testing.T) {
		fs := logtest.NewFS(1)
		var failed []error
		l := open(t, fs, log.Options{Hooks: log.Hooks{Failed: func(err error) { failed = append(failed, err) }}})
		mustAppend(t, l, "a")
		cause := errors.New("the cable is loose")
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind == logtest.OpSync {
				return cause
			}
			return nil
		})
		if _, err := l.Append(t.Context(), plain("b")); !errors.Is(err, cause) {
			t.Errorf("got %v", err)
		}
		fs.OnOp(nil)
		for name, f := range map[string]func() error{
			"Append":   func() error { _, err := l.Append(t.Context(), plain("c")); return err },
			"Write":    func() error { _, err := l.Write(0, plain("c")); return err },
			"Sync":     func() error { _, err := l.Sync(t.Context()); return err },
			"Truncate": func() error { _, err := l.TruncateTo(t.Context(), 0); return err },
			"Reset":    func() error { return l.Reset(t.Context(), 5, nil, nil) },
			"Roll":     func() error { return l.Roll(t.Context()) },
			"Trim":     func() error { return l.TrimTo(t.Context(), 1) },
			"Drop":     func() error { return l.DropLocal(t.Context(), 1) },
			"Wait":     func() error { return l.Wait(t.Context(), 100) },
			"Err":      l.Err,
		} {
			err := f()
			if f, ok := errors.AsType[*log.FailedError](err); !ok || !errors.Is(f.Cause, cause) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if len(failed) != 1 {
			t.Errorf("got %d calls of the hook", len(failed))
		}
		if l.DurableEnd() != 1 {
			t.Errorf("got durable end %d", l.DurableEnd())
		}
		if s, err := l.Read(t.Context(), 0, 1<<20); err != nil || s.End() != 2 {
			t.Errorf("reads must go on: %v", err)
		}
		// What was written and never synced may be lost: a nil would say that it is not.
		for range 2 {
			if f, ok := errors.AsType[*log.FailedError](l.Close()); !ok || !errors.Is(f.Cause, cause) {
				t.Errorf("Close: got %v", l.Close())
			}
		}
	},
	"REDPANDA-4465": func(t *testing.T) {
		fs := logtest.NewFS(1)
		fs.SetCapacity(4 << 20)
		disk, err := log.NewDisk(log.DiskOptions{FS: fs, ReserveBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		openOn := func(dir string, reserve bool) *log.Log {
			l, err := log.Open(t.Context(), dir, log.Options{Disk: disk, SegmentBytes: 128 << 10, UseReserve: reserve})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		data, system := openOn("/data/a", false), openOn("/data/b", true)
		fill := func(l *log.Log) {
			for {
				if _, err := l.Append(t.Context(), plain(big("x", 20_000))); err != nil {
					if !errors.Is(err, log.ErrDiskFull) {
						t.Fatal(err)
					}
					return
				}
			}
		}
		fill(data)
		if free, err := fs.FreeBytes("/data"); err != nil || free < 1<<20 || free > 2<<20 {
			t.Errorf("got %d bytes free, %v", free, err)
		}
		mustAppend(t, system, "a deletion")
		if got := values(t, data, 0); len(got) != int(data.End()) {
			t.Errorf("got %d records", len(got))
		}
		if err := data.DropLocal(t.Context(), data.End()); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, data, "resumes")
		if data.Stats().DiskFull == 0 {
			t.Error("not counted")
		}
		mustClose(t, data)
		mustClose(t, system)
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	},
	"log-peers-28": func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
			fs.SetCapacity(fs.UsedBytes())
			begin := time.Now()
			if _, err := l.Append(t.Context(), plain("x")); !errors.Is(err, log.ErrDiskFull) {
				t.Errorf("got %v", err)
			}
			if d := time.Since(begin); d != 0 {
				t.Errorf("took %v", d)
			}
			fs.SetCapacity(-1)
			mustClose(t, l)
		})
	},
	"ETCD-6368": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		for i := range 30 {
			mustAppend(t, l, big(fmt.Sprint(i), 300))
			after := open(t, fs.Fork(logtest.CrashLoseAll), log.Options{SegmentBytes: 1 << 10})
			if after.End() != log.Offset(i+1) {
				t.Fatalf("got end %d after %d appends", after.End(), i+1)
			}
			mustClose(t, after)
		}
		mustClose(t, l)
	},
	"log-peers-31": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		for i := range 10 {
			mustWrite(t, l, big(fmt.Sprint(i), 300))
		}
		if _, err := l.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := open(t, fs.Crash(), log.Options{SegmentBytes: 1 << 10})
		if after.End() != 10 {
			t.Errorf("got end %d", after.End())
		}
		mustClose(t, after)
	},
	"BRAFT-132": func(t *testing.T) {
		logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
			ends := map[log.Offset]bool{0: true}
			l, err := log.Open(context.Background(), "/data/p", log.Options{FS: fs, SegmentBytes: 1 << 10})
			if err == nil {
				for i := range 12 {
					if _, err = l.Append(context.Background(), plain(big(fmt.Sprint(i), 300))); err != nil {
						break
					}
				}
				for i := range 13 {
					ends[log.Offset(i)] = err != nil
				}
				if err == nil {
					ends[12] = true
					var end log.Offset
					if end, err = l.TruncateTo(context.Background(), 2); err == nil {
						ends = map[log.Offset]bool{end: true}
					}
					ends[2] = true
				}
				l.Close() //nolint:errcheck // may be dead
			}
			return func(after *logtest.FS) {
				l := open(t, after, log.Options{SegmentBytes: 1 << 10})
				if !ends[l.End()] || len(values(t, l, 0)) != int(l.End()) || l.Recovery().Lossy {
					t.Errorf("got end %d, want one of %v", l.End(), ends)
				}
				mustClose(t, l)
			}
		})
	},
	"FLUSS-4012": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		for i := range 20 {
			mustAppend(t, l, big(fmt.Sprint(i), 300))
		}
		if err := l.DropLocal(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		local := l.LocalStart()
		for range 2 {
			if end, err := l.TruncateTo(t.Context(), local); err != nil || end != local {
				t.Fatal(end, err)
			}
			mustAppend(t, l, "new")
			fs = fs.Crash()
			l = open(t, fs, log.Options{SegmentBytes: 1 << 10})
			if got := values(t, l, local); len(got) != 1 || got[0] != "new" || len(l.Segments()) != 1 {
				t.Fatalf("got %q, %v", got, l.Segments())
			}
		}
		mustClose(t, l)
	},
	"REDPANDA-10492": func(t *testing.T) {
		for name, change := range map[string]func(l *log.Log) error{
			"append":   func(l *log.Log) error { _, err := l.Write(0, plain("x")); return err },
			"truncate": func(l *log.Log) error { _, err := l.TruncateTo(context.Background(), 5); return err },
			"trim":     func(l *log.Log) error { return l.TrimTo(context.Background(), 3) },
			"drop":     func(l *log.Log) error { return l.DropLocal(context.Background(), 5) },
			"roll":     func(l *log.Log) error { return l.Roll(context.Background()) },
			"reset":    func(l *log.Log) error { return l.Reset(context.Background(), 100, nil, nil) },
		} {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
			for i := range 20 {
				mustAppend(t, l, big(fmt.Sprint(i), 300))
			}
			mustClose(t, l)
			l = open(t, fs, log.Options{SegmentBytes: 1 << 10})
			if !l.Recovery().Clean {
				t.Fatalf("%s: not clean", name)
			}
			// At no change but the removal itself is the marker there.
			sized := false
			fs.OnOp(func(op logtest.Op) error {
				if op.Kind == logtest.OpPreallocate {
					sized = true // the file no longer is as the marker says
				}
				if (op.Kind == logtest.OpWrite || op.Kind == logtest.OpTruncate || op.Kind == logtest.OpRename || op.Kind == logtest.OpRemove) &&
					!strings.HasSuffix(op.Path, ".clean") && !sized && slices.Contains(fs.Names(), "/data/p/cordwood.clean") {
					t.Errorf("%s: %v with the marker there", name, op)
				}
				return nil
			})
			if err := change(l); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			fs.OnOp(nil)
			if slices.Contains(fs.Crash().Names(), "/data/p/cordwood.clean") {
				t.Errorf("%s: the marker outlived it", name)
			}
			l.Close() //nolint:errcheck // dead
		}
	},
	"NATS-6685": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		for i := range 20 {
			mustAppend(t, l, big(fmt.Sprint(i), 300))
		}
		if err := l.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.TrimTo(t.Context(), 20); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			fs = fs.Crash()
			l = open(t, fs, log.Options{SegmentBytes: 1 << 10})
			if l.Start() != 20 || l.End() != 20 || l.LocalStart() != 20 || l.Recovery().Lossy {
				t.Fatalf("got %+v", l.Stats())
			}
			mustClose(t, l)
		}
	},
	"LIFTBRIDGE-333": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		for i := range 20 {
			if _, err := l.Append(t.Context(), sequenced(5, 0, int32(i), big(fmt.Sprint(i), 300))); err != nil {
				t.Fatal(err)
			}
		}
		mustClose(t, l)
		for _, name := range fs.Names() {
			if s := path.Ext(name); s == ".log" || s == ".lock" || s == ".meta" || strings.HasSuffix(name, "/") {
				continue
			}
			for _, bytes := range []int64{0, 1, 30} {
				after := fs.Fork(logtest.CrashKeepAll)
				f, err := after.Open(name, true)
				if err != nil {
					t.Fatal(err)
				}
				if err := f.Truncate(bytes); err != nil {
					t.Fatal(err)
				}
				l := open(t, after, log.Options{SegmentBytes: 1 << 10})
				if got := values(t, l, 0); len(got) != 20 || l.Recovery().Lossy {
					t.Errorf("%s with %d bytes: got %d records, %+v", name, bytes, len(got), l.Recovery())
				}
				if a, err := l.Write(0, sequenced(5, 0, 19, "again")); err != nil || !a.Duplicate {
					t.Errorf("%s with %d bytes: retry: %+v, %v", name, bytes, a, err)
				}
				mustAppend(t, l, "goes on")
				mustClose(t, l)
			}
		}
	},
	"KAFKA-13603": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{})
		mustAppend(t, l, "x")
		if err := l.Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
		for range 2 {
			l = open(t, fs, log.Options{})
			if r := l.Recovery(); !r.Clean || r.End != 1 {
				t.Errorf("got %+v", r)
			}
			mustClose(t, l)
		}
		if err := fs.Remove("/data/p/00000000000000000000.index"); err != nil {
			t.Fatal(err)
		}
		l = open(t, fs, log.Options{})
		if got := values(t, l, 0); len(got) != 1 {
			t.Errorf("got %q", got)
		}
		mustClose(t, l)
	},
	"KAFKA-10207": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 64 << 10})
		for i := range 100 {
			if _, err := l.AppendRecords(t.Context(), log.Record{Timestamp: time.UnixMilli(int64(1000 + i)), Value: []byte(big("", 1000))}); err != nil {
				t.Fatal(err)
			}
		}
		mustClose(t, l)
		for _, name := range fs.Names() {
			if strings.HasSuffix(name, ".timeindex") {
				if err := fs.Corrupt(name, 3, 0x7f, 0xff); err != nil {
					t.Fatal(err)
				}
			}
		}
		l = open(t, fs, log.Options{SegmentBytes: 64 << 10})
		for i := range 100 {
			if off, ok, err := l.OffsetForTime(t.Context(), time.UnixMilli(int64(1000+i))); err != nil || !ok || off != log.Offset(i) {
				t.Fatalf("at %d: got %d, %v, %v", i, off, ok, err)
			}
		}
		mustClose(t, l)
	},
	"PEBBLE-5142": func(t *testing.T) {
		src, dst := open(t, logtest.NewFS(1), log.Options{SegmentBytes: 4 << 10}), open(t, logtest.NewFS(2), log.Options{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 300 {
				mustAppend(t, src, big(fmt.Sprint(i), i))
			}
		})
		for src.DurableEnd() < 300 || dst.End() < 300 {
			if err := src.WaitDurable(t.Context(), dst.End()); err != nil {
				t.Fatal(err)
			}
			s, err := src.ReadBelow(t.Context(), dst.End(), src.DurableEnd(), 10_000)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := dst.AppendReplicated(s.Bytes()); err != nil {
				t.Fatal(err)
			}
			s.Release()
		}
		wg.Wait()
		if got := values(t, src, 0); len(got) != 300 {
			t.Errorf("got %d records", len(got))
		}
		if _, err := dst.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a, b := values(t, src, 0), values(t, dst, 0); !slices.Equal(a, b) {
			t.Errorf("got %d records, want %d", len(b), len(a))
		}
		wantSound(t, dst)
		mustClose(t, src)
		mustClose(t, dst)
	},
	"REDPANDA-7155": TestRepairOvertaken,
	"KAFKA-18929": func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{SegmentAge: time.Hour})
			now := time.Now()
			if _, err := l.AppendRecords(t.Context(), log.Record{Timestamp: now.AddDate(50, 0, 0)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Hour)
			if rolled, err := l.RollAged(t.Context()); err != nil || !rolled {
				t.Fatal(rolled, err)
			}
			mustClose(t, l)
			l = open(t, fs, log.Options{})
			if s := l.Segments()[0]; !s.Sealed || s.SealedAt.Sub(now) != 2*time.Hour {
				t.Errorf("got %+v", s)
			}
			mustClose(t, l)
		})
	},
	"REDPANDA-6604": TestOffsetForTime,
	"KAFKA-5634": func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{})
		mustAppend(t, l, "x")
		if err := l.TrimTo(t.Context(), 2); !errors.Is(err, log.ErrOffsetOutOfRange) {
			t.Errorf("got %v", err)
		}
		if got := values(t, l, 0); len(got) != 1 {
			t.Errorf("got %q", got)
		}
		mustClose(t, l)
	},
	"KAFKA-6492": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 20 << 10})
		for i := range 30 {
			mustAppend(t, l, big(fmt.Sprint(i), 3000))
		}
		base := l.Segments()[2].Base
		if _, err := l.TruncateTo(t.Context(), base); err != nil {
			t.Fatal(err)
		}
		n := len(l.Segments())
		for i := range 6 {
			mustAppend(t, l, big(fmt.Sprint(i), 3000))
		}
		if got := len(l.Segments()); got != n {
			t.Errorf("got %d segments, want %d", got, n)
		}
		for off := range l.End() {
			if s, err := l.Read(t.Context(), off, 1); err != nil || s.Base() != off {
				t.Errorf("read %d: %v", off, err)
			}
		}
		mustClose(t, l)
	},
	"KAFKA-10706": func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{})
		if err := l.Reset(t.Context(), 100, []log.EpochStart{{Epoch: 1, Start: 50}, {Epoch: 4, Start: 100}}, nil); err != nil {
			t.Fatal(err)
		}
		if l.LastEpoch() != 4 {
			t.Errorf("got %v", l.EpochChain())
		}
		if end, err := l.TruncateTo(t.Context(), 100); err != nil || end != 100 || l.LastEpoch() != 1 {
			t.Errorf("got %d, %v, %v", end, err, l.EpochChain())
		}
		l = open(t, fs.Crash(), log.Options{})
		if l.LastEpoch() != 1 {
			t.Errorf("got %v after a crash", l.EpochChain())
		}
		mustClose(t, l)
	},
	"TIDWALL-34": func(t *testing.T) {
		fs := logtest.NewFS(1)
		disk, err := log.NewDisk(log.DiskOptions{FS: fs, OpenFiles: 1})
		if err != nil {
			t.Fatal(err)
		}
		l, err := log.Open(t.Context(), "/data/p", log.Options{Disk: disk, SegmentBytes: 2 << 10})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 60 {
			mustAppend(t, l, big(fmt.Sprint(i), 300))
		}
		var wg sync.WaitGroup
		for w := range log.Offset(4) {
			wg.Go(func() {
				for i := range log.Offset(200) {
					off := (i*7 + w*13) % 60
					s, err := l.Read(t.Context(), off, 1000)
					if err != nil || s.Base() != off {
						t.Errorf("read %d: %v", off, err)
						return
					}
					s.Release()
				}
			})
		}
		wg.Wait()
		if s := disk.Stats(); s.OpenFiles > 1 || s.Evictions == 0 {
			t.Errorf("got %+v", s)
		}
		mustClose(t, l)
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	},
	"KAFKA-9693": func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
			mustAppend(t, l, "x") // makes the epoch file
			release := fs.Stall(func(op logtest.Op) bool {
				return op.Kind == logtest.OpSync && (path.Ext(op.Path) == ".state" || path.Ext(op.Path) == ".seal")
			})
			for i := range 10 {
				mustAppend(t, l, big(fmt.Sprint(i), 400))
			}
			if n := len(l.Segments()); n < 4 {
				t.Errorf("got %d segments", n)
			}
			release()
			mustClose(t, l)
		})
	},
	"ETCD-14370": func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			fs := logtest.NewFS(1)
			l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
			mustWrite(t, l, big("x", 900))
			release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync })
			done := make(chan error)
			go func() { // the append rolls, and the full segment must be durable before
				_, err := l.Append(context.Background(), plain(big("y", 900)))
				done <- err
			}()
			select {
			case err := <-done:
				t.Errorf("acknowledged before the sync: %v", err)
			case <-time.After(time.Hour):
			}
			release()
			if err := <-done; err != nil {
				t.Error(err)
			}
			mustClose(t, l)
		})
	},
}

// everySubset loses each subset of the sectors of the last unsynced write.
func everySubset(t *testing.T) {
	outcomes := map[log.Offset]int{}
	for seed := range uint64(100) {
		fs := logtest.NewFS(seed)
		l := open(t, fs, log.Options{})
		mustAppend(t, l, big("acknowledged", 9000)) // so large that no slot is in the way of the next
		mustWrite(t, l, big("one", 4000))
		mustWrite(t, l, big("two", 9000))
		l = open(t, fs.Crash(logtest.CrashLoseSome(seed)), log.Options{})
		if l.Recovery().Lossy || l.End() < 1 || l.End() > 3 {
			t.Fatalf("seed %d: got %+v", seed, l.Recovery())
		}
		if got := values(t, l, 0); len(got) != int(l.End()) {
			t.Fatalf("seed %d: got %d records below %d", seed, len(got), l.End())
		}
		outcomes[l.End()]++
		mustClose(t, l)
	}
	if len(outcomes) != 3 {
		t.Errorf("got outcomes %v", outcomes)
	}
}

// damaged makes a log of n records, one a batch, all acknowledged, lets the
// machine die, and changes the batch at offset hit. It returns the disk and the
// batches' positions.
func damaged(t *testing.T, n int, change func(b []byte), hit int) (*logtest.FS, []int64) {
	t.Helper()
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{})
	var positions []int64
	at := int64(0)
	for i := range n {
		b := plain(big(fmt.Sprint(i), 100))
		positions = append(positions, at)
		at += int64(len(b))
		if _, err := l.Append(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	fs = fs.Crash()
	name := "/data/p/00000000000000000000.log"
	size := int(at)
	if hit+1 < n {
		size = int(positions[hit+1])
	}
	b := readAll(t, fs, name)[positions[hit]:size]
	change(b)
	f, err := fs.Open(name, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, positions[hit]); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return fs, positions
}

// oneLost damages one batch of 300 and asks for a typed error on it, and for all
// others.
func oneLost(t *testing.T, change func(b []byte)) {
	const hit = 150
	fs, _ := damaged(t, 300, change, hit)
	before := readAll(t, fs, "/data/p/00000000000000000000.log")
	l := open(t, fs, log.Options{})
	for off := range log.Offset(300) {
		s, err := l.Read(t.Context(), off, 1)
		if off == hit {
			if c, ok := errors.AsType[*log.CorruptionError](err); !ok || c.Offset != hit || c.End != hit+1 {
				t.Errorf("got %v at the damage", err)
			}
			continue
		}
		if err != nil || s.Base() != off {
			t.Fatalf("read %d: %v", off, err)
		}
		for b := range s.Batches() {
			for r, err := range b.Records() {
				if err != nil || string(r.Value) != big(fmt.Sprint(off), 100) {
					t.Fatalf("read %d: got %q, %v", off, r.Value, err)
				}
			}
		}
	}
	if _, err := l.Append(t.Context(), plain("x")); !errors.Is(err, log.ErrReadOnly) {
		t.Errorf("got %v", err)
	}
	if string(readAll(t, fs, "/data/p/00000000000000000000.log")) != string(before) {
		t.Error("the file was changed")
	}
	// It is repaired by cutting at the damage, and appending again.
	if end, err := l.TruncateTo(t.Context(), hit); err != nil || end != hit {
		t.Fatal(end, err)
	}
	mustAppend(t, l, "repaired")
	mustClose(t, l)
	l = open(t, fs, log.Options{})
	if got := values(t, l, 0); len(got) != hit+1 || l.Recovery().Lossy {
		t.Errorf("got %d records, %+v", len(got), l.Recovery())
	}
	mustClose(t, l)
}

func failedRoll(t *testing.T) {
	for _, kind := range []logtest.Kind{logtest.OpRename, logtest.OpTruncate, logtest.OpSyncDir, logtest.OpCreate} {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
		mustAppend(t, l, big("x", 300)) // less than half of a segment: no file is made in advance
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind == kind {
				return syscall.EIO
			}
			return nil
		})
		acked := 1
		if kind == logtest.OpTruncate {
			// The full segment is cut in the background, after it was sealed.
			// The append that makes it full may come through before that.
			if _, err := l.Append(t.Context(), plain(big("y", 900))); err == nil {
				acked = 2
			}
			l.Wait(t.Context(), 1000) //nolint:errcheck // until it fails
		}
		for range 3 {
			_, err := l.Append(t.Context(), plain(big("y", 900)))
			f, ok := errors.AsType[*log.FailedError](err)
			if !ok || !errors.Is(err, syscall.EIO) || f.Op == "" {
				t.Errorf("%v: got %v", kind, err)
			}
		}
		fs.OnOp(nil)
		l.Close() //nolint:errcheck // it has failed
		l = open(t, fs.Crash(), log.Options{SegmentBytes: 1 << 10})
		if got := len(values(t, l, 0)); got != acked && !(kind == logtest.OpTruncate && got == 2) {
			t.Errorf("%v: got %d records, acknowledged %d", kind, got, acked)
		}
		mustClose(t, l)
	}
}
