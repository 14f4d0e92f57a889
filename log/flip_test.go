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

// A flipped is a log to flip bytes of, which holds vals from offset from on.
type flipped struct {
	image  *logtest.FS
	from   log.Offset
	vals   []string
	closed bool
	chain  string
}

// flipLog makes a log of three segments whose last group is acknowledged: closed in
// order, open, or open with the last segment in a recycled file.
func flipLog(t *testing.T, mode string) flipped {
	t.Helper()
	fs := logtest.NewFS(1)
	f := flipped{closed: mode == "closed"}
	n := 25
	if mode == "recycled" {
		n = 45
	}
	synctest.Test(t, func(t *testing.T) {
		l := open(t, fs, log.Options{SegmentBytes: 1 << 10, ProducerExpiry: -1}) // the clock is not that of the next Open
		for i := range n {
			if mode == "recycled" && (i == 20 || i == 30) {
				segs := l.Segments()
				if err := l.TrimTo(t.Context(), segs[len(segs)-1].Base); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait() // full segments are sealed in the background
			v := fmt.Sprintf("%d:%0*d", i, i%25*3, i)
			f.vals = append(f.vals, v)
			if _, err := l.Write(log.Epoch(i/10), sequenced(3, 0, int32(i), v)); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(l.Segments()); n < 2 || n < 3 && mode != "recycled" {
			t.Fatalf("got %d segments", n)
		}
		synctest.Wait()
		f.from, f.chain = l.Start(), fmt.Sprint(l.EpochChain())
		if active := l.Segments(); mode == "recycled" && l.Stats().Recycled == 0 {
			t.Fatalf("got %+v, %v", l.Stats(), active)
		}
		if f.closed {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
	f.image = fs.Crash(logtest.CrashKeepAll)
	return f
}

// TestFlipEveryByte flips one bit of each byte of each file in turn. Whatever is
// hit: no wrong record comes out, each right one comes out unless its own batch
// was hit, nothing is deleted, and a log that lost something says so.
func TestFlipEveryByte(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"closed", "open", "recycled"} {
		t.Run(mode, func(t *testing.T) {
			f := flipLog(t, mode)
			image := f.image
			if mode == "recycled" && !strings.Contains(string(readAll(t, image, activeName(image))), "CWSP") {
				t.Fatal("the active file is not a recycled one")
			}
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
				copy(content, readAll(t, image, name))
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
					if err := f.check(fs, name, 1); err != nil {
						t.Fatalf("%s byte %d: %v", path.Base(name), at, err)
					}
				}
			}
		})
	}
}

// activeName returns the name of the last segment's file.
func activeName(fs *logtest.FS) (last string) {
	for _, name := range fs.Names() {
		if strings.HasSuffix(name, ".log") {
			last = name
		}
	}
	return last
}

// check opens a log of which one bit was flipped in the file name; most is how many
// records that may take.
func (f *flipped) check(fs *logtest.FS, name string, most int) error {
	vals, closed := f.vals, f.closed
	ctx := context.Background()
	before := sizes(fs)
	l, err := log.Open(ctx, flipDir, log.Options{FS: fs, SegmentBytes: 1 << 10, ProducerExpiry: -1})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer l.Close() //nolint:errcheck // a damaged log
	r := l.Recovery()
	lost := map[log.Offset]bool{}
	for off := f.from; off < log.Offset(len(vals)); off++ {
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
	if len(lost) > most {
		return fmt.Errorf("one bit took records %v (recovery %+v, %v)", slices.Sorted(maps.Keys(lost)), r, r.Corruption)
	}
	if len(lost) > 0 && !strings.HasSuffix(name, ".log") {
		return fmt.Errorf("a side file took records %v", slices.Sorted(maps.Keys(lost)))
	}
	v, err := l.Verify(ctx, log.VerifyOptions{})
	if err != nil || len(v.Undecodable) > 0 {
		return fmt.Errorf("verify: %+v, %w", v, err)
	}
	for off := f.from; off < log.Offset(len(vals)); off++ {
		found := slices.ContainsFunc(v.Damage, func(c *log.CorruptionError) bool { return c.Offset <= off && off < c.End })
		if found != lost[off] && (r.CutBytes == 0 || off != r.End) {
			return fmt.Errorf("verify found %s (recovery %+v, %v), reads lost %v", ranges(v.Damage), r, r.Corruption, slices.Sorted(maps.Keys(lost)))
		}
	}
	if r.CutBytes == 0 && !r.Lossy {
		if got, want := fmt.Sprint(l.EpochChain()), f.chain; got != want {
			return fmt.Errorf("got epochs %s, want %s", got, want)
		}
		last := len(vals) - 1
		if a, err := l.Write(log.Epoch(last/10), sequenced(3, 0, int32(last), vals[last])); err != nil || !a.Duplicate || a.Base != log.Offset(last) {
			return fmt.Errorf("retry of the last batch: %+v, %v", a, err)
		}
	}
	if r.Lossy {
		if _, err := l.Write(9, plain("x")); !errors.Is(err, log.ErrReadOnly) {
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

// TestFlipHeaders flips each byte of each batch's first 21, which its checksum does
// not cover, and one behind, when recovery believes the seals, reads each segment
// against the chain of the newest state, builds the chain anew, or both with sums.
func TestFlipHeaders(t *testing.T) {
	f := flipLog(t, "open")
	image, vals := f.image, f.vals
	for what, remove := range map[string][]string{
		"as it is": nil, "without seals": {".seal"}, "without states": {".state"}, "with neither": {".seal", ".state"},
	} {
		t.Run(strings.ReplaceAll(what, " ", "-"), func(t *testing.T) {
			image := image.Fork(logtest.CrashKeepAll)
			var logs []string
			for _, n := range image.Names() {
				switch {
				case slices.Contains(remove, path.Ext(n)):
					if err := image.Remove(n); err != nil {
						t.Fatal(err)
					}
				case path.Ext(n) == ".log":
					logs = append(logs, n)
				}
			}
			off := 0
			for i, name := range logs {
				b := readAll(t, image, name)
				for at := 0; at+61 <= len(b) && b[at+16] == 2; at += int(int32(b[at+8])<<24|int32(b[at+9])<<16|int32(b[at+10])<<8|int32(b[at+11])) + 12 {
					for byte := range 22 {
						if len(remove) == 2 && byte/4 == 3 && i < len(logs)-1 {
							continue // nothing else states the epoch
						}
						masks := []uint8{1, 4}
						if testing.Short() {
							if masks = masks[:1]; (byte+off)%3 > 0 && byte/4 != 3 {
								continue
							}
						}
						for _, mask := range masks {
							fs := image.Fork(logtest.CrashKeepAll)
							if err := fs.Corrupt(name, int64(at+byte), mask); err != nil {
								t.Fatal(err)
							}
							most := 1
							if what == "without states" && byte/4 == 3 {
								most = 11 // an epoch that fits between its neighbours: the sum blames the segment
							}
							if err := f.check(fs, name, most); err != nil {
								t.Fatalf("record %d, byte %d: %v", off, byte, err)
							}
						}
					}
					off++
				}
			}
			if off != len(vals) {
				t.Errorf("got %d batches", off)
			}
		})
	}
}
