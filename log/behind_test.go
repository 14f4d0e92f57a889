package log_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// TestBehindFile: but for when bytes reach the file below, a file that holds back writes is like any other, also after writes have failed.
func TestBehindFile(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		fs := logtest.NewFS(1)
		room := int64(rapid.SampledFrom([]int{-1, 4 << 10, 16 << 10, 1 << 20}).Draw(t, "room"))
		d, err := log.NewDisk(log.DiskOptions{FS: fs, HeldBytes: room})
		if err != nil {
			t.Fatal(err)
		}
		inner, err := fs.Create("/f")
		if err != nil {
			t.Fatal(err)
		}
		f := log.NewBehindFile(d, inner)
		var want []byte // of the file
		end := 0        // of the data: from there on come appends
		broken := false
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind == logtest.OpWrite && broken {
				return logtest.Short(op.Len/2, errors.New("broken"))
			}
			return nil
		})
		put := func(at int, b []byte) {
			if n := at + len(b); n > len(want) {
				want = append(want, make([]byte, n-len(want))...)
			}
			copy(want[at:], b)
		}
		next := byte(0)
		some := func(n int) []byte {
			next++
			return bytes.Repeat([]byte{next | 1}, n)
		}
		size := rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(0, 9000), rapid.IntRange(0, 40000))
		t.Repeat(map[string]func(*rapid.T){
			"hold": func(t *rapid.T) {
				b := some(1 + size.Draw(t, "bytes"))
				if f.Hold(b, int64(end)) {
					put(end, b)
					end += len(b)
				}
				if held := d.Stats().HeldBytes; held < 0 || held > max(0, room) {
					t.Fatalf("%d bytes are held", held)
				}
			},
			"append": func(t *rapid.T) {
				b := some(1 + size.Draw(t, "bytes"))
				if n, err := f.WriteAt(b, int64(end)); err == nil && n == len(b) {
					put(end, b)
					end += len(b)
				} else if !broken {
					t.Fatalf("got %d, %v", n, err)
				} else if err := f.Truncate(int64(end)); err != nil { // as a log does
					t.Fatal(err)
				} else {
					want = want[:end]
				}
			},
			"write anywhere": func(t *rapid.T) {
				if broken {
					return // where it fails nothing is known of the bytes
				}
				at := rapid.IntRange(0, end+5000).Draw(t, "at")
				b := some(1 + size.Draw(t, "bytes"))
				if n, err := f.WriteAt(b, int64(at)); err != nil || n != len(b) {
					t.Fatalf("got %d, %v", n, err)
				}
				put(at, b)
			},
			"truncate": func(t *rapid.T) {
				end = rapid.IntRange(max(0, end-5000), end).Draw(t, "to")
				if err := f.Truncate(int64(end)); err != nil {
					t.Fatal(err)
				}
				want = append(want, make([]byte, max(0, end-len(want)))...)[:end]
			},
			"sync": func(t *rapid.T) {
				if err := f.Sync(); err != nil {
					if !broken {
						t.Fatal(err)
					}
					return
				}
				if got := readAll(outer, fs, "/f"); !bytes.Equal(got, want) {
					t.Fatalf("after a sync the file has %d bytes, want %d", len(got), len(want))
				}
			},
			"break": func(t *rapid.T) { broken = !broken },
			"": func(t *rapid.T) {
				if got, err := f.Size(); err != nil || got != int64(len(want)) {
					t.Fatalf("size %d, %v; want %d", got, err, len(want))
				}
				at := rapid.IntRange(0, len(want)).Draw(t, "from")
				b := make([]byte, rapid.IntRange(0, len(want)-at+10).Draw(t, "to"))
				n, err := f.ReadAt(b, int64(at))
				if err != nil && !errors.Is(err, io.EOF) || (n < len(b)) != errors.Is(err, io.EOF) {
					t.Fatalf("read of %d at %d: %d, %v", len(b), at, n, err)
				}
				if !bytes.Equal(b[:n], want[at:min(at+len(b), len(want))]) {
					t.Fatalf("read of %d bytes at %d of %d is wrong", len(b), at, len(want))
				}
			},
		})
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if held := d.Stats().HeldBytes; held != 0 {
			t.Fatalf("%d bytes are held by a file that is closed", held)
		}
	})
}

// TestHeldClosed: what is closed holds nothing any more, so that who writes to it is told.
func TestHeldClosed(t *testing.T) {
	fs := logtest.NewFS(1)
	d, err := log.NewDisk(log.DiskOptions{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := fs.Create("/f")
	if err != nil {
		t.Fatal(err)
	}
	f := log.NewBehindFile(d, inner)
	if !f.Hold([]byte("held"), 0) {
		t.Error("nothing is held")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if f.Hold([]byte("lost"), 0) || d.Stats().HeldBytes != 0 {
		t.Errorf("a closed file holds %d bytes", d.Stats().HeldBytes)
	}
}
