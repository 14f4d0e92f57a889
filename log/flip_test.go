package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

const flipDir = "/data/p"

// flipLog makes a log of three segments whose last group is acknowledged, closed
// in order or not, and returns the disk.
func flipLog(t *testing.T, closed bool) (*logtest.FS, []string) {
	t.Helper()
	fs := logtest.NewFS(1)
	var vals []string
	synctest.Test(t, func(t *testing.T) {
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10, ProducerExpiry: -1}) // the clock is not that of the next Open
		for i := range 25 {
			v := fmt.Sprintf("%d:%0*d", i, i*3, i)
			vals = append(vals, v)
			if _, err := l.Write(log.Epoch(i/10), sequenced(3, 0, int32(i), v)); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(l.Segments()); n < 3 {
			t.Fatalf("got %d segments", n)
		}
		synctest.Wait() // full segments are sealed in the background
		if closed {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
	return fs.Crash(logtest.CrashKeepAll), vals
}

// TestFlipEveryByte flips one bit of each byte of each file in turn. Whatever is
// hit: no wrong record comes out, each right one comes out unless its own batch
// was hit, nothing is deleted, and a log that lost something says so.
func TestFlipEveryByte(t *testing.T) {
	for _, closed := range []bool{true, false} {
		t.Run(fmt.Sprintf("closed=%v", closed), func(t *testing.T) {
			image, vals := flipLog(t, closed)
			for _, name := range image.Names() {
				if !strings.HasPrefix(name, flipDir+"/") {
					continue
				}
				fi, err := image.Stat(name)
				if err != nil {
					t.Fatal(err)
				}
				if fi.IsDir {
					continue
				}
				content := make([]byte, fi.Size)
				f, err := image.Open(name, false)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.ReadAt(content, 0); err != nil {
					t.Fatal(err)
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
				for at := int64(0); at < fi.Size; at++ {
					// Of long runs of zeros (padding, preallocated space) the ends will do.
					if run := content[at:min(at+1500, fi.Size)]; len(bytes.Trim(run, "\x00")) == 0 {
						at += int64(len(run)) - 1
					}
					if testing.Short() {
						at = min(at+16, fi.Size-1)
					}
					fs := image.Fork(logtest.CrashKeepAll)
					if err := fs.Corrupt(name, at, 1<<(at%8)); err != nil {
						t.Fatal(err)
					}
					if err := checkFlipped(fs, vals, name, closed); err != nil {
						t.Fatalf("%s byte %d: %v", path.Base(name), at, err)
					}
				}
			}
		})
	}
}

func checkFlipped(fs *logtest.FS, vals []string, name string, closed bool) error {
	ctx := context.Background()
	before := sizes(fs)
	l, err := log.Open(ctx, flipDir, log.Options{FS: fs, SegmentBytes: 1 << 10, ProducerExpiry: -1})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer l.Close() //nolint:errcheck // a damaged log
	r := l.Recovery()
	lost := map[log.Offset]bool{}
	for off := log.Offset(0); off < log.Offset(len(vals)); off++ {
		s, err := l.Read(ctx, off, 1)
		if err != nil {
			c, ok := errors.AsType[*log.CorruptionError](err)
			switch {
			case ok && c.Offset <= off:
			case errors.Is(err, log.ErrOffsetOutOfRange) && off == r.End && r.CutBytes > 0 && !closed:
				// The last group is known to be durable to nobody but the caller; the copy is kept.
			default:
				return fmt.Errorf("read %d: %w (recovery %+v)", off, err, r)
			}
			lost[off] = true
			continue
		}
		if s.Len() == 0 && (off != r.End || r.CutBytes == 0 || closed) {
			return fmt.Errorf("read %d: nothing (recovery %+v)", off, r)
		}
		for b, err := range s.Batches() {
			if err != nil {
				return err
			}
			if b.LeaderEpoch() != log.Epoch(off/10) || b.BaseOffset() != off || b.ProducerID() != 3 {
				return fmt.Errorf("read %d: got offset %d, epoch %d", off, b.BaseOffset(), b.LeaderEpoch())
			}
			for rec, err := range b.Records() {
				if err != nil || rec.Offset != off || string(rec.Value) != vals[off] {
					return fmt.Errorf("read %d: got %d %q, %v", off, rec.Offset, rec.Value, err)
				}
			}
		}
		s.Release()
	}
	if len(lost) > 1 {
		return fmt.Errorf("one bit took records %v (recovery %+v, %v)", slices.Sorted(maps.Keys(lost)), r, r.Corruption)
	}
	if len(lost) > 0 && !strings.HasSuffix(name, ".log") {
		return fmt.Errorf("a side file took records %v", slices.Sorted(maps.Keys(lost)))
	}
	v, err := l.Verify(ctx, log.VerifyOptions{})
	if err != nil || len(v.Undecodable) > 0 {
		return fmt.Errorf("verify: %+v, %w", v, err)
	}
	for off := range log.Offset(len(vals)) {
		found := slices.ContainsFunc(v.Damage, func(c *log.CorruptionError) bool { return c.Offset <= off && off < c.End })
		if found != lost[off] && (r.CutBytes == 0 || off != r.End) {
			return fmt.Errorf("verify found %s (recovery %+v, %v), reads lost %v", ranges(v.Damage), r, r.Corruption, slices.Sorted(maps.Keys(lost)))
		}
	}
	if r.CutBytes == 0 && !r.Lossy {
		if got, want := fmt.Sprint(l.EpochChain()), "[{0 0} {1 10} {2 20}]"; got != want {
			return fmt.Errorf("got epochs %s, want %s", got, want)
		}
		if a, err := l.Write(2, sequenced(3, 0, 24, vals[24])); err != nil || !a.Duplicate || a.Base != 24 {
			return fmt.Errorf("retry of the last batch: %+v, %v", a, err)
		}
	}
	if r.Lossy {
		if _, err := l.Write(2, plain("x")); !errors.Is(err, log.ErrReadOnly) {
			return fmt.Errorf("got %v on a damaged log", err)
		}
	}
	for n, size := range before {
		if !strings.HasSuffix(n, ".log") {
			continue
		}
		fi, err := fs.Stat(n)
		if err != nil {
			return fmt.Errorf("gone: %w", err)
		}
		if fi.Size < size && r.CutBytes == 0 && r.Lossy {
			return fmt.Errorf("%s was cut from %d to %d bytes", n, size, fi.Size)
		}
	}
	if r.CutBytes > 0 {
		if _, err := fs.Stat(r.CutPath); err != nil {
			return err
		}
	}
	return nil
}

func sizes(fs *logtest.FS) map[string]int64 {
	out := map[string]int64{}
	for _, n := range fs.Names() {
		if fi, err := fs.Stat(n); err == nil && !fi.IsDir {
			out[n] = fi.Size
		}
	}
	return out
}
