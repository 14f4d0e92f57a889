package logtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"path"
	"runtime"
	"slices"
	"testing"

	"github.com/cordwood-io/cordwood/log"
)

// TestFS checks that an implementation of [log.FS] does what its comments say, as
// far as that can be seen without a crash. It works in new folders below dir, which
// must exist and be writable.
func TestFS(t *testing.T, fs log.FS, dir string) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, fs log.FS, dir string)
	}{
		{"create", testCreate},
		{"read and write", testReadWrite},
		{"truncate", testTruncate},
		{"preallocate", testPreallocate},
		{"sync", testSync},
		{"close", testClose},
		{"remove", testRemove},
		{"rename", testRename},
		{"link", testLink},
		{"folders", testFolders},
		{"lock", testLock},
		{"concurrent", testConcurrent},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := path.Join(dir, fmt.Sprintf("fs-%x", c.name))
			noError(t, fs.MkdirAll(sub))
			c.test(t, fs, sub)
		})
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func makeFile(t testing.TB, fs log.FS, name, content string) {
	t.Helper()
	f, err := fs.Create(name)
	noError(t, err)
	if content != "" {
		_, err = f.WriteAt([]byte(content), 0)
		noError(t, err)
	}
	noError(t, f.Close())
}

func readAll(t testing.TB, f log.File) string {
	t.Helper()
	size, err := f.Size()
	noError(t, err)
	b := make([]byte, size+1)
	n, err := f.ReadAt(b, 0)
	if err != io.EOF || int64(n) != size {
		t.Errorf("ReadAt of one byte more than there is = %d, %v, want %d, EOF", n, err, size)
	}
	return string(b[:n])
}

func wantFile(t testing.TB, fs log.FS, name, want string) {
	t.Helper()
	f, err := fs.Open(name, false)
	noError(t, err)
	if got := readAll(t, f); got != want {
		t.Errorf("%s = %.50q, want %.50q", name, got, want)
	}
	noError(t, f.Close())
}

func testCreate(t *testing.T, fs log.FS, dir string) {
	name := path.Join(dir, "a")
	f, err := fs.Create(name)
	noError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("read and write"), 0)
	noError(t, err)
	if got := readAll(t, f); got != "read and write" {
		t.Errorf("content = %q", got)
	}
	_, err = fs.Create(name)
	wantError(t, "create again", err, iofs.ErrExist)
	_, err = fs.Create(dir)
	wantError(t, "create over a folder", err, iofs.ErrExist)
	_, err = fs.Create(path.Join(dir, "missing", "a"))
	wantError(t, "create in a folder that is missing", err, iofs.ErrNotExist)
	_, err = fs.Open(path.Join(dir, "b"), true)
	wantError(t, "open what is missing", err, iofs.ErrNotExist)
	if _, err = fs.Create(path.Join(name, "b")); err == nil {
		t.Error("create below a file: no error")
	}
	if got := readAll(t, f); got != "read and write" {
		t.Errorf("content = %q", got)
	}
}

func testReadWrite(t *testing.T, fs log.FS, dir string) {
	name := path.Join(dir, "a")
	f, err := fs.Create(name)
	noError(t, err)
	defer f.Close()
	b := make([]byte, 4)
	if n, err := f.ReadAt(b, 0); n != 0 || err != io.EOF {
		t.Errorf("ReadAt of an empty file = %d, %v", n, err)
	}
	want := make([]byte, 3*SectorBytes+10)
	write := func(off int, p []byte) {
		t.Helper()
		if n, err := f.WriteAt(p, int64(off)); n != len(p) || err != nil {
			t.Fatalf("WriteAt = %d, %v", n, err)
		}
		copy(want[off:], p)
	}
	write(3*SectorBytes, []byte("after a hole"[:10]))
	write(SectorBytes-3, []byte("across"))
	write(5, bytes.Repeat([]byte("x"), 2*SectorBytes))
	write(SectorBytes, []byte("again"))
	if got := readAll(t, f); got != string(want) {
		t.Errorf("content differs at %d", mismatch(got, string(want)))
	}
	for _, off := range []int{0, 1, SectorBytes - 1, SectorBytes, 2*SectorBytes + 1} {
		b := make([]byte, SectorBytes)
		if n, err := f.ReadAt(b, int64(off)); n != len(b) || err != nil || !bytes.Equal(b, want[off:off+len(b)]) {
			t.Errorf("ReadAt %d = %d, %v", off, n, err)
		}
	}
	if n, err := f.ReadAt(b, int64(len(want)-2)); n != 2 || err != io.EOF || !bytes.Equal(b[:2], want[len(want)-2:]) {
		t.Errorf("ReadAt across the end = %d, %v", n, err)
	}
	if n, err := f.ReadAt(b, int64(len(want)+100)); n != 0 || err != io.EOF {
		t.Errorf("ReadAt behind the end = %d, %v", n, err)
	}
	if _, err := f.ReadAt(b, -1); err == nil || err == io.EOF {
		t.Errorf("ReadAt before the start: %v", err)
	}
	if _, err := f.WriteAt(b, -1); err == nil {
		t.Error("WriteAt before the start: no error")
	}
	r, err := fs.Open(name, false)
	noError(t, err)
	defer r.Close()
	if n, err := r.WriteAt(b, 0); n != 0 || err == nil {
		t.Errorf("WriteAt by a reader = %d, %v", n, err)
	}
	if err := r.Truncate(0); err == nil {
		t.Error("Truncate by a reader: no error")
	}
	write(0, []byte("seen by other handles"))
	if got := readAll(t, r); got != string(want) {
		t.Errorf("other handle: content differs at %d", mismatch(got, string(want)))
	}
	w, err := fs.Open(name, true)
	noError(t, err)
	defer w.Close()
	_, err = w.WriteAt([]byte("both"), 0)
	noError(t, err)
	copy(want, "both")
	if got := readAll(t, f); got != string(want) {
		t.Errorf("first handle: content differs at %d", mismatch(got, string(want)))
	}
}

func mismatch(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func testTruncate(t *testing.T, fs log.FS, dir string) {
	name := path.Join(dir, "a")
	makeFile(t, fs, name, "0123456789")
	f, err := fs.Open(name, true)
	noError(t, err)
	defer f.Close()
	noError(t, f.Truncate(4))
	wantFile(t, fs, name, "0123")
	noError(t, f.Truncate(6))
	wantFile(t, fs, name, "0123\x00\x00")
	noError(t, f.Truncate(6))
	noError(t, f.Truncate(2*SectorBytes+1))
	noError(t, f.Truncate(SectorBytes))
	noError(t, f.Truncate(0))
	wantFile(t, fs, name, "")
	_, err = f.WriteAt([]byte("x"), 2)
	noError(t, err)
	wantFile(t, fs, name, "\x00\x00x")
	if err := f.Truncate(-1); err == nil {
		t.Error("Truncate to less than nothing: no error")
	}
}

func testPreallocate(t *testing.T, fs log.FS, dir string) {
	name := path.Join(dir, "a")
	makeFile(t, fs, name, "content")
	f, err := fs.Open(name, true)
	noError(t, err)
	defer f.Close()
	noError(t, f.Preallocate(0, 3))
	wantFile(t, fs, name, "content")
	noError(t, f.Preallocate(0, 3*SectorBytes))
	wantFile(t, fs, name, "content"+string(make([]byte, 3*SectorBytes-7)))
	noError(t, f.Preallocate(3*SectorBytes+5, 10))
	wantFile(t, fs, name, "content"+string(make([]byte, 3*SectorBytes-7+15)))
	_, err = f.WriteAt([]byte("over"), 10)
	noError(t, err)
	wantFile(t, fs, name, "content\x00\x00\x00over"+string(make([]byte, 3*SectorBytes-14+15)))
	if err := f.Preallocate(-1, 5); err == nil {
		t.Error("Preallocate before the start: no error")
	}
}

func testSync(t *testing.T, fs log.FS, dir string) {
	name := path.Join(dir, "a")
	f, err := fs.Create(name)
	noError(t, err)
	defer f.Close()
	noError(t, f.Sync())
	_, err = f.WriteAt([]byte("x"), 0)
	noError(t, err)
	noError(t, f.Sync())
	noError(t, f.Sync())
	noError(t, fs.SyncDir(dir))
	noError(t, fs.SyncDir(dir))
	wantFile(t, fs, name, "x")
	if runtime.GOOS != "windows" {
		wantError(t, "sync a folder that is missing", fs.SyncDir(path.Join(dir, "missing")), iofs.ErrNotExist)
	}
}

func testClose(t *testing.T, fs log.FS, dir string) {
	name := path.Join(dir, "a")
	f, err := fs.Create(name)
	noError(t, err)
	noError(t, f.Close())
	wantError(t, "close again", f.Close(), iofs.ErrClosed)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, 0)
	wantError(t, "read when closed", err, iofs.ErrClosed)
	_, err = f.WriteAt(b, 0)
	wantError(t, "write when closed", err, iofs.ErrClosed)
	wantError(t, "truncate when closed", f.Truncate(0), iofs.ErrClosed)
	_, err = f.Size()
	wantError(t, "size when closed", err, iofs.ErrClosed)
	if err := f.Sync(); err == nil {
		t.Error("sync when closed: no error")
	}
	if err := f.Preallocate(0, 1); err == nil {
		t.Error("preallocate when closed: no error")
	}
	wantFile(t, fs, name, "")
}

func testRemove(t *testing.T, fs log.FS, dir string) {
	name := path.Join(dir, "a")
	makeFile(t, fs, name, "content")
	wantError(t, "remove what is missing", fs.Remove(path.Join(dir, "b")), iofs.ErrNotExist)
	if err := fs.Remove(dir); err == nil {
		t.Error("remove a folder that is not empty: no error")
	}
	if runtime.GOOS == "windows" {
		noError(t, fs.Remove(name))
		return
	}
	f, err := fs.Open(name, true)
	noError(t, err)
	defer f.Close()
	noError(t, fs.Remove(name))
	_, err = fs.Stat(name)
	wantError(t, "stat what was removed", err, iofs.ErrNotExist)
	if got := readAll(t, f); got != "content" {
		t.Errorf("removed but open: %q", got)
	}
	_, err = f.WriteAt([]byte("C"), 0)
	noError(t, err)
	makeFile(t, fs, name, "another")
	if got := readAll(t, f); got != "Content" {
		t.Errorf("removed but open: %q", got)
	}
	wantFile(t, fs, name, "another")
	noError(t, fs.Remove(name))
	noError(t, fs.Remove(dir))
	_, err = fs.Stat(dir)
	wantError(t, "stat the removed folder", err, iofs.ErrNotExist)
}

func testRename(t *testing.T, fs log.FS, dir string) {
	a, b, sub := path.Join(dir, "a"), path.Join(dir, "b"), path.Join(dir, "sub")
	makeFile(t, fs, a, "A")
	makeFile(t, fs, b, "B")
	wantError(t, "rename what is missing", fs.Rename(path.Join(dir, "c"), b), iofs.ErrNotExist)
	wantError(t, "rename into a folder that is missing", fs.Rename(a, path.Join(sub, "a")), iofs.ErrNotExist)
	noError(t, fs.Rename(a, a))
	noError(t, fs.Rename(a, b))
	wantFile(t, fs, b, "A")
	_, err := fs.Stat(a)
	wantError(t, "stat the old name", err, iofs.ErrNotExist)
	noError(t, fs.MkdirAll(sub))
	noError(t, fs.Rename(b, path.Join(sub, "c")))
	wantFile(t, fs, path.Join(sub, "c"), "A")
	noError(t, fs.Rename(sub, path.Join(dir, "renamed")))
	wantFile(t, fs, path.Join(dir, "renamed", "c"), "A")
	if runtime.GOOS != "windows" {
		f, err := fs.Open(path.Join(dir, "renamed", "c"), true)
		noError(t, err)
		defer f.Close()
		noError(t, fs.Rename(path.Join(dir, "renamed", "c"), a))
		_, err = f.WriteAt([]byte("follows"), 0)
		noError(t, err)
		wantFile(t, fs, a, "follows")
	}
}

func testLink(t *testing.T, fs log.FS, dir string) {
	a, b := path.Join(dir, "a"), path.Join(dir, "b")
	makeFile(t, fs, a, "A")
	noError(t, fs.Link(a, b))
	wantError(t, "link again", fs.Link(a, b), iofs.ErrExist)
	wantError(t, "link what is missing", fs.Link(path.Join(dir, "c"), path.Join(dir, "d")), iofs.ErrNotExist)
	f, err := fs.Open(a, true)
	noError(t, err)
	_, err = f.WriteAt([]byte("both"), 0)
	noError(t, err)
	noError(t, f.Close())
	wantFile(t, fs, b, "both")
	if runtime.GOOS != "windows" { // POSIX: two names of one file stay as they are
		noError(t, fs.Rename(a, b))
		wantFile(t, fs, a, "both")
	}
	noError(t, fs.Remove(a))
	wantFile(t, fs, b, "both")
}

func testFolders(t *testing.T, fs log.FS, dir string) {
	deep := path.Join(dir, "x", "y", "z")
	noError(t, fs.MkdirAll(deep))
	noError(t, fs.MkdirAll(deep))
	makeFile(t, fs, path.Join(dir, "file"), "12345")
	if err := fs.MkdirAll(path.Join(dir, "file", "x")); err == nil {
		t.Error("a folder below a file: no error")
	}
	makeFile(t, fs, path.Join(dir, "10"), "")
	makeFile(t, fs, path.Join(dir, "9"), "")
	names, err := fs.List(dir)
	if want := []string{"10", "9", "file", "x"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("List = %q, %v, want %q", names, err, want)
	}
	if names, err := fs.List(deep); err != nil || len(names) != 0 {
		t.Errorf("List of an empty folder = %q, %v", names, err)
	}
	_, err = fs.List(path.Join(dir, "missing"))
	wantError(t, "list what is missing", err, iofs.ErrNotExist)
	if _, err = fs.List(path.Join(dir, "file")); err == nil {
		t.Error("list a file: no error")
	}
	info, err := fs.Stat(path.Join(dir, "file"))
	if err != nil || info.Size != 5 || info.IsDir || info.ModTime.IsZero() {
		t.Errorf("Stat of a file = %+v, %v", info, err)
	}
	info, err = fs.Stat(deep)
	if err != nil || info.Size != 0 || !info.IsDir {
		t.Errorf("Stat of a folder = %+v, %v", info, err)
	}
	_, err = fs.Stat(path.Join(dir, "missing"))
	wantError(t, "stat what is missing", err, iofs.ErrNotExist)
	if free, err := fs.FreeBytes(dir); err != nil || free <= 0 {
		t.Errorf("FreeBytes = %d, %v", free, err)
	}
}

func testLock(t *testing.T, fs log.FS, dir string) {
	name := path.Join(dir, "lock")
	l, err := fs.Lock(name)
	noError(t, err)
	_, err = fs.Lock(name)
	wantError(t, "lock again", err, log.ErrLocked)
	other, err := fs.Lock(path.Join(dir, "other"))
	noError(t, err)
	noError(t, other.Close())
	noError(t, l.Close())
	l2, err := fs.Lock(name)
	noError(t, err)
	l.Close() // may fail, but must not release what l2 holds
	_, err = fs.Lock(name)
	wantError(t, "lock after the first holder closed twice", err, log.ErrLocked)
	noError(t, l2.Close())
	_, err = fs.Lock(path.Join(dir, "missing", "lock"))
	wantError(t, "lock in a folder that is missing", err, iofs.ErrNotExist)
}

func testConcurrent(t *testing.T, fs log.FS, dir string) {
	const writers, blocks, size = 4, 32, 1000 // blocks share sectors
	name := path.Join(dir, "a")
	f, err := fs.Create(name)
	noError(t, err)
	defer f.Close()
	done := make(chan error)
	for w := range writers {
		go func() {
			for b := range blocks {
				off := int64(b*writers+w) * size
				if _, err := f.WriteAt(bytes.Repeat([]byte{byte(1 + w)}, size), off); err != nil {
					done <- err
					return
				}
				p := make([]byte, size)
				if _, err := f.ReadAt(p, off); err != nil && err != io.EOF {
					done <- err
					return
				}
				if p[0] != byte(1+w) || p[size-1] != byte(1+w) {
					done <- fmt.Errorf("writer %d does not read what it wrote", w)
					return
				}
			}
			done <- f.Sync()
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	got := readAll(t, f)
	for i := range writers * blocks {
		if part := got[i*size : (i+1)*size]; part[0] != byte(1+i%writers) || part[size-1] != byte(1+i%writers) {
			t.Errorf("block %d is not whole", i)
		}
	}
}
