package log_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

func verify(t testing.TB, l *log.Log) log.Verification {
	t.Helper()
	v, err := l.Verify(context.Background(), log.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wantSound(t testing.TB, l *log.Log) {
	t.Helper()
	if v := verify(t, l); !v.OK() {
		t.Errorf("got %+v: %v", v, slices.Concat(v.Damage, v.Undecodable, v.Files))
	}
}

// ranges prints damage as segment:[from, to)@position.
func ranges(cs []*log.CorruptionError) string {
	var out []string
	for _, c := range cs {
		out = append(out, fmt.Sprintf("%s:[%d,%d)@%d", strings.TrimLeft(strings.TrimSuffix(path.Base(c.Path), ".log"), "0"), c.Offset, c.End, c.Position))
	}
	return strings.Join(out, " ")
}

// segmented makes a log of n acknowledged records, one a batch of 400 bytes and
// some, in segments of ten, and returns the batches.
func segmented(t testing.TB, fs log.FS, n int) (*log.Log, [][]byte) {
	t.Helper()
	l := open(t, fs, log.Options{SegmentBytes: 5000})
	var all [][]byte
	for i := range n {
		b := sequenced(3, 0, int32(i), fmt.Sprintf("%05d %0400d", i, 0))
		if _, err := l.Write(log.Epoch(i/7), b); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	rest(l)
	return l, all
}

func segName(base log.Offset) string { return fmt.Sprintf("/data/p/%020d.log", base) }

func TestVerify(t *testing.T) {
	t.Run("sound", func(t *testing.T) {
		fs := logtest.NewFS(1)
		l, all := segmented(t, fs, 45)
		bytes := int64(0)
		for _, b := range all {
			bytes += int64(len(b))
		}
		var seen []log.Offset
		v, err := l.Verify(t.Context(), log.VerifyOptions{Progress: func(next log.Offset) { seen = append(seen, next) }})
		if err != nil || !v.OK() || v.Segments != 5 || v.Batches != 45 || v.Bytes != bytes || v.Start != 0 || v.End != 45 {
			t.Errorf("got %+v, %v, want %d bytes", v, err, bytes)
		}
		if fmt.Sprint(seen) != "[10 20 30 40 45]" {
			t.Errorf("got progress %v", seen)
		}
		if _, err := l.TruncateTo(t.Context(), 42); err != nil {
			t.Fatal(err)
		}
		wantSound(t, l)
		if err := l.DropLocal(t.Context(), 20); err != nil {
			t.Fatal(err)
		}
		wantSound(t, l)
		if err := l.TrimTo(t.Context(), 34); err != nil {
			t.Fatal(err)
		}
		wantSound(t, l)
		mustClose(t, l)
		l = open(t, fs, log.Options{SegmentBytes: 5000})
		wantSound(t, l)
		mustAppend(t, l, "more")
		wantSound(t, l)
		if err := l.Reset(t.Context(), 100, []log.EpochStart{{Epoch: 9, Start: 50}}, nil); err != nil {
			t.Fatal(err)
		}
		wantSound(t, l)
		mustAppend(t, l, "more")
		l = open(t, fs.Crash(), log.Options{SegmentBytes: 5000})
		wantSound(t, l)
		mustClose(t, l)
	})
	t.Run("every-range", func(t *testing.T) {
		fs := logtest.NewFS(1)
		l, all := segmented(t, fs, 45)
		size := int64(len(all[0]))
		at := func(off log.Offset) (string, int64) { return segName(off / 10 * 10), int64(off%10) * size }
		hit := func(off log.Offset, byte int64, masks ...byte) {
			t.Helper()
			name, p := at(off)
			if err := fs.Corrupt(name, p+byte, masks...); err != nil {
				t.Fatal(err)
			}
		}
		hit(2, 100, 1)  // checksum
		hit(6, 15, 1)   // epoch, which no checksum of the batch covers
		hit(7, 100, 1)  // just behind
		hit(12, 7, 4)   // base offset
		hit(13, 10, 8)  // length
		hit(17, 16, 3)  // magic
		hit(29, 300, 9) // the last of a segment
		hit(44, 120, 1) // the last of all, in the active one
		zero := make([]byte, size)
		copy(zero, all[36])
		hit(36, 0, zero...) // zeros
		changes := func() int64 {
			n := int64(0) // files beside sealed segments may still be synced
			for _, k := range []logtest.Kind{logtest.OpWrite, logtest.OpTruncate, logtest.OpCreate, logtest.OpRemove, logtest.OpRename} {
				n += fs.Count(k)
			}
			return n
		}
		before := changes()
		v := verify(t, l)
		want := fmt.Sprintf(":[2,3)@%d :[6,7)@%d :[7,8)@%d 10:[12,14)@%d 10:[17,18)@%d 20:[29,30)@%d 30:[36,37)@%d 40:[44,45)@%d",
			2*size, 6*size, 7*size, 2*size, 7*size, 9*size, 6*size, 4*size)
		if got := ranges(v.Damage); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if len(v.Files)+len(v.Undecodable)+v.More != 0 || v.OK() {
			t.Errorf("got %+v", v)
		}
		if changes() != before {
			t.Error("something was changed")
		}
		if l.Err() != nil {
			t.Error(l.Err())
		}
		mustAppend(t, l, "goes on")
		mustClose(t, l)
	})
	t.Run("other-batch", func(t *testing.T) {
		// A batch with right checksum, offset and epoch, but not the one that was
		// written: the sums of headers know.
		fs := logtest.NewFS(1)
		l, all := segmented(t, fs, 45)
		size := int64(len(all[0]))
		for _, off := range []log.Offset{23, 43} {
			b := sequenced(3, 0, int32(off), fmt.Sprintf("%05d %0400d", off+1000, 0))
			other, _, err := record.Next(b, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			other.SetBaseOffset(off)
			other.SetLeaderEpoch(log.Epoch(off / 7))
			f, err := fs.Open(segName(off/10*10), true)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(other.Bytes(), int64(off%10)*size); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		v := verify(t, l)
		if len(v.Damage) != 2 || v.Damage[0].Offset > 23 || v.Damage[0].End <= 23 || v.Damage[1].Offset > 43 || v.Damage[1].End <= 43 {
			t.Errorf("got %s", ranges(v.Damage))
		}
		mustClose(t, l)
	})
	t.Run("unreadable-sector", func(t *testing.T) {
		fs := logtest.NewFS(1)
		l := open(t, fs, log.Options{SegmentBytes: 64 << 10})
		for i := range 100 {
			mustAppend(t, l, fmt.Sprintf("%05d %0900d", i, 0))
		}
		bad := [2]int64{20_000, 20_512}
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind == logtest.OpRead && op.Path == segName(0) && op.Offset < bad[1] && op.Offset+int64(op.Len) > bad[0] {
				return syscall.EIO
			}
			return nil
		})
		v := verify(t, l)
		if len(v.Damage) != 1 || !errors.Is(v.Damage[0], syscall.EIO) || v.Damage[0].Offset > 20 || v.Damage[0].End > 26 || v.Batches < 93 {
			t.Errorf("got %s, %d batches", ranges(v.Damage), v.Batches)
		}
		fs.OnOp(nil)
		mustClose(t, l)
	})
	t.Run("undecodable", func(t *testing.T) {
		l := open(t, logtest.NewFS(1), log.Options{})
		mustAppend(t, l, "good")
		var b record.Builder
		b.Compression = record.Gzip
		if err := b.Append(record.Record{Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		x, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		x.Bytes()[record.HeaderBytes+3] ^= 0xff // inside of the compressed bytes
		x.SetLogAppendTime(5)                   // sets the checksum
		x.SetBaseOffset(1)
		x.SetLeaderEpoch(0)
		if _, err := l.AppendReplicated(x.Bytes()); err != nil {
			t.Fatal(err)
		}
		v := verify(t, l)
		if len(v.Undecodable) != 1 || v.Undecodable[0].Offset != 1 || v.Undecodable[0].End != 2 || !errors.Is(v.Undecodable[0], record.ErrInvalid) || len(v.Damage) != 0 {
			t.Errorf("got %+v", v)
		}
		mustClose(t, l)
	})
	t.Run("pace", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := open(t, logtest.NewFS(1), log.Options{})
			for range 8 {
				mustAppend(t, l, big("", 1<<20))
			}
			begin := time.Now()
			v, err := l.Verify(t.Context(), log.VerifyOptions{BytesPerSecond: 1 << 19})
			if d := time.Since(begin); err != nil || !v.OK() || d < 15*time.Second || d > 17*time.Second {
				t.Errorf("got %+v, %v after %v", v, err, d)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			v, err = l.Verify(ctx, log.VerifyOptions{BytesPerSecond: 1 << 19})
			if !errors.Is(err, context.DeadlineExceeded) || v.Bytes < 1<<20 || v.Bytes > 3<<20 {
				t.Errorf("got %+v, %v", v, err)
			}
			if _, err := l.Verify(ctx, log.VerifyOptions{BytesPerSecond: -1}); err == nil {
				t.Error("a negative pace was taken")
			}
			mustClose(t, l)
			if _, err := l.Verify(t.Context(), log.VerifyOptions{}); !errors.Is(err, log.ErrClosed) {
				t.Errorf("got %v", err)
			}
		})
	})
}

// TestVerifyFiles damages each file beside the records, in either copy.
func TestVerifyFiles(t *testing.T) {
	image := logtest.NewFS(1)
	l, _ := segmented(t, image, 25)
	mustClose(t, l)
	for _, name := range image.Names() {
		ext := path.Ext(name)
		if !strings.HasPrefix(name, "/data/p/") || strings.HasSuffix(name, "/") || ext == ".log" || ext == ".lock" || ext == ".snapshot" || path.Base(name) == "leader-epoch-checkpoint" {
			continue
		}
		size := len(readAll(t, image, name))
		if size == 0 {
			continue
		}
		for _, at := range []int{0, min(9, size-1), size / 2, size - 1, -1} {
			fs := image.Fork(logtest.CrashKeepAll)
			l := open(t, fs, log.Options{SegmentBytes: 5000})
			if !l.Recovery().Clean {
				t.Fatal("not clean")
			}
			wantSound(t, l)
			if at < 0 {
				if err := fs.Remove(name); err != nil {
					t.Fatal(err)
				}
			} else if err := fs.Corrupt(name, int64(at), 0x20); err != nil {
				t.Fatal(err)
			}
			v := verify(t, l)
			marker := ext == ".clean" && at < 0 || ext == ".state" && strings.Contains(name, "00025")
			activeSide := strings.Contains(name, "00020.") && (ext == ".seal" || ext == ".index" || ext == ".timeindex")
			if len(v.Damage) != 0 || (len(v.Files) != 1 || v.Files[0].Path != name) && !marker && !activeSide {
				t.Errorf("%s byte %d of %d: got %v, %v", path.Base(name), at, size, v.Files, v.Damage)
			}
			l.Close() //nolint:errcheck // thrown away
		}
	}
}

// TestVerifyMeanwhile verifies while the log is written, rolled, cut, trimmed and
// dropped: it never finds anything.
func TestVerifyMeanwhile(t *testing.T) {
	ctx := t.Context()
	disk, err := log.NewDisk(log.DiskOptions{FS: logtest.NewFS(1), OpenFiles: 2})
	if err != nil {
		t.Fatal(err)
	}
	l, err := log.Open(ctx, "/data/p", log.Options{Disk: disk, SegmentBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			v, err := l.Verify(ctx, log.VerifyOptions{})
			if err != nil || !v.OK() {
				t.Errorf("got %+v, %v: %v", v, err, slices.Concat(v.Damage, v.Undecodable, v.Files))
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 600 {
		if _, err := l.Write(log.Epoch(i/20), plain(big(fmt.Sprint(i), rng.IntN(600)))); err != nil {
			t.Fatal(err)
		}
		switch rng.IntN(12) {
		case 0:
			if _, err := l.TruncateTo(ctx, max(l.LocalStart(), l.End()-log.Offset(rng.IntN(20)))); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := l.DropLocal(ctx, l.End()-30); err != nil {
				t.Fatal(err)
			}
		case 2:
			if err := l.TrimTo(ctx, max(0, l.End()-25)); err != nil {
				t.Fatal(err)
			}
		case 3:
			if _, err := l.Sync(ctx); err != nil {
				t.Fatal(err)
			}
		case 4:
			if rng.IntN(10) == 0 {
				if err := l.Reset(ctx, l.End()+5, l.EpochChain(), nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	close(stop)
	wg.Wait()
	mustClose(t, l)
	if err := disk.Close(); err != nil {
		t.Error(err)
	}
}
