package tier

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

const testCacheBytes, testCacheFiles = 1000, 6

func testCache(t testing.TB, fsys log.FS) (*diskCache, error) {
	t.Helper()
	o, err := Options{
		Store: struct{ ObjectStore }{}, Events: struct{ Events }{}, Cluster: ID{1},
		DiskCacheFS: fsys, DiskCacheDir: "cache", DiskCacheBytes: testCacheBytes, DiskCacheFiles: testCacheFiles,
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return openDiskCache(&o)
}

func testEntry(i int) (partKey, []byte) {
	return chunkKey(ID{byte(i)}, i%3-1), bytes.Repeat([]byte{byte('a' + i)}, 60+i*20)
}

// lookAtEntry looks at entry i: got is false if it is not there, and what is there is right.
func lookAtEntry(t testing.TB, d *diskCache, i int) (got bool) {
	t.Helper()
	k, want := testEntry(i)
	b, ok := d.get(k)
	if ok && !bytes.Equal(b, want) {
		t.Fatalf("entry %d holds %.20q", i, b)
	}
	return ok
}

// cacheFiles lists the folder and adds up its files.
func cacheFiles(t testing.TB, fsys log.FS) (names []string, sum int64) {
	t.Helper()
	all, err := fsys.List("cache")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if name == cacheLock {
			continue
		}
		info, err := fsys.Stat(path.Join("cache", name))
		if err != nil {
			t.Fatal(err)
		}
		names, sum = append(names, name), sum+info.Size
	}
	return names, sum
}

// cacheLife writes, reads and evicts.
func cacheLife(t testing.TB, fsys *logtest.FS) func(*logtest.FS) {
	d, err := testCache(t, fsys)
	if err == nil {
		d.load(t.Context())
		for i := range 12 {
			k, content := testEntry(i)
			d.put(k, content)
			d.work(t.Context())
			lookAtEntry(t, d, i)
			lookAtEntry(t, d, i/2)
			if d.used > testCacheBytes || len(d.entries) > testCacheFiles {
				t.Fatalf("%d bytes in %d entries", d.used, len(d.entries))
			}
			if names, sum := cacheFiles(t, fsysAlive{fsys}); sum > testCacheBytes+300 || len(names) > testCacheFiles+1 {
				t.Fatalf("%d bytes in %q", sum, names) // one may be left that could not be removed
			}
		}
		_ = d.close()
	}
	return func(after *logtest.FS) {
		d, err := testCache(t, after)
		if err != nil {
			t.Fatalf("open after the crash: %v", err)
		}
		d.load(t.Context())
		d.work(t.Context())
		for i := range 12 {
			lookAtEntry(t, d, i)
		}
		d.work(t.Context())
		names, sum := cacheFiles(t, after)
		if sum > testCacheBytes || len(names) > testCacheFiles || sum != d.used || len(names) != len(d.entries) {
			t.Fatalf("%d bytes in %q, %d in %d entries", sum, names, d.used, len(d.entries))
		}
		for _, name := range names {
			if strings.HasPrefix(name, cacheTemp) {
				t.Fatalf("%s is left over", name)
			}
		}
		for i := range 12 {
			k, content := testEntry(i)
			d.put(k, content)
			d.work(t.Context())
			if d.entries[k] != nil && !lookAtEntry(t, d, i) {
				t.Fatalf("entry %d can't be read after it was written", i)
			}
		}
		if d.stats.writes == 0 {
			t.Fatal("nothing was written after the crash")
		}
		if err := d.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// fsysAlive lists also where the disk is gone: as empty.
type fsysAlive struct{ *logtest.FS }

func (f fsysAlive) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	if errors.Is(err, logtest.ErrCrashed) {
		return nil, nil
	}
	return names, err
}

// TestDiskCacheCrash takes the power away at each write of the cache: afterwards each
// entry is right or not there, and the bounds hold.
func TestDiskCacheCrash(t *testing.T) {
	logtest.EachCrash(t, func(fsys *logtest.FS) func(*logtest.FS) { return cacheLife(t, fsys) })
}

// TestDiskCacheFaults fails each write of the cache.
func TestDiskCacheFaults(t *testing.T) {
	logtest.EachFault(t, func(fsys *logtest.FS) func(*logtest.FS) { return cacheLife(t, fsys) })
}

// TestDiskCacheDamage: no changed byte passes, nor a file of another length or name;
// what fails is removed and can be written again.
func TestDiskCacheDamage(t *testing.T) {
	fsys := logtest.NewFS(1)
	d, err := testCache(t, fsys)
	if err != nil {
		t.Fatal(err)
	}
	d.load(t.Context())
	k, content := testEntry(1)
	name := path.Join("cache", entryName(k))
	damaged := int64(0)
	spoilt := func(what string) {
		t.Helper()
		damaged++
		if lookAtEntry(t, d, 1) || d.stats.damaged != damaged {
			t.Fatalf("%s: not noticed, %d damaged", what, d.stats.damaged)
		}
		d.work(t.Context())
		if _, err := fsys.Stat(name); !errors.Is(err, fs.ErrNotExist) || len(d.entries) != 0 || d.used != 0 {
			t.Fatalf("%s: still there: %v, %d bytes", what, err, d.used)
		}
	}
	write := func() {
		t.Helper()
		d.put(k, content)
		d.work(t.Context())
		if !lookAtEntry(t, d, 1) {
			t.Fatal("not there after it was written")
		}
	}
	change := func(f func(log.File) error) {
		t.Helper()
		file, err := fsys.Open(name, true)
		if err == nil {
			err = errors.Join(f(file), file.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for at := range int64(entryHeaderBytes + len(content)) {
		write()
		if err := fsys.Corrupt(name, at, 0x20); err != nil {
			t.Fatal(err)
		}
		spoilt("a changed byte")
	}
	for _, size := range []int64{0, entryHeaderBytes, entryHeaderBytes + int64(len(content)) - 1} {
		write()
		change(func(f log.File) error { return f.Truncate(size) })
		spoilt("a file cut off")
	}
	write()
	if err := fsys.Remove(name); err != nil {
		t.Fatal(err)
	}
	spoilt("a file that is gone")

	// What lies there at the start: half written files and other lengths go, an entry
	// under the name of another is noticed, and what is not ours stays.
	write()
	other, _ := testEntry(2)
	put := func(name string, n int64) {
		t.Helper()
		f, err := fsys.Create(path.Join("cache", name))
		if err == nil {
			err = errors.Join(f.Truncate(n), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(fsys.Link(name, path.Join("cache", entryName(other))), d.close()); err != nil {
		t.Fatal(err)
	}
	third, _ := testEntry(3)
	put(cacheTemp+"7", 50)
	put(entryName(third), entryHeaderBytes) // without content
	put("README", 10)
	if d, err = testCache(t, fsys); err != nil {
		t.Fatal(err)
	}
	d.load(t.Context())
	d.work(t.Context())
	if names, _ := cacheFiles(t, fsys); len(names) != 3 || len(d.entries) != 2 {
		t.Errorf("at the start: %q, %d entries", names, len(d.entries))
	}
	if lookAtEntry(t, d, 2) || lookAtEntry(t, d, 3) || !lookAtEntry(t, d, 1) {
		t.Error("at the start: what was found is not what was written")
	}
	if _, err := testCache(t, fsys); !errors.Is(err, log.ErrLocked) {
		t.Errorf("a second process: %v", err)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}

// TestDiskCacheReserve: a device without room to spare gets nothing more, and what is
// there goes while others need it.
func TestDiskCacheReserve(t *testing.T) {
	fsys := logtest.NewFS(1)
	fsys.SetCapacity(1 << 20)
	d, err := testCache(t, fsys)
	if err != nil {
		t.Fatal(err)
	}
	d.reserve = 512 << 10
	d.load(t.Context())
	for i := range 3 {
		k, content := testEntry(i)
		d.put(k, content)
		d.work(t.Context())
	}
	if len(d.entries) != 3 {
		t.Fatalf("%d entries", len(d.entries))
	}
	f, err := fsys.Create("appends")
	if err == nil {
		err = errors.Join(f.Preallocate(0, 700<<10), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	d.work(t.Context()) // notices
	d.work(t.Context()) // removes
	k, content := testEntry(5)
	d.put(k, content)
	d.work(t.Context())
	if names, _ := cacheFiles(t, fsys); len(names) != 0 || len(d.entries) != 0 {
		t.Errorf("%q are there, %d entries", names, len(d.entries))
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}

// TestDiskCacheRefs: an entry in use keeps its file, and nobody else gets its name.
func TestDiskCacheRefs(t *testing.T) {
	fsys := logtest.NewFS(1)
	d, err := testCache(t, fsys)
	if err != nil {
		t.Fatal(err)
	}
	d.load(t.Context())
	k, content := testEntry(1)
	d.put(k, content)
	d.work(t.Context())
	name := path.Join("cache", entryName(k))
	looked := false
	fsys.OnOp(func(op logtest.Op) error {
		if op.Kind != logtest.OpOpen || looked {
			return nil
		}
		looked = true
		// Between the look into the index and the file.
		d.mu.Lock()
		d.doomLocked(d.entries[k])
		d.mu.Unlock()
		d.work(context.Background())
		d.put(k, []byte("another"))
		d.work(context.Background())
		if _, err := fsys.Stat(name); err != nil {
			t.Errorf("the file was removed under its reader: %v", err)
		}
		return nil
	})
	if !lookAtEntry(t, d, 1) || !looked {
		t.Error("the reader did not get its entry")
	}
	d.work(t.Context())
	if _, err := fsys.Stat(name); !errors.Is(err, fs.ErrNotExist) || len(d.entries) != 0 || d.used != 0 {
		t.Errorf("after the reader: %v, %d entries, %d bytes", err, len(d.entries), d.used)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}

// TestDiskCacheBurst: what comes faster than it is written is left out, not queued
// without end, and never over the bounds.
func TestDiskCacheBurst(t *testing.T) {
	d, err := testCache(t, logtest.NewFS(1))
	if err != nil {
		t.Fatal(err)
	}
	d.load(t.Context())
	for range 3 {
		for i := range 12 {
			k, content := testEntry(i)
			d.put(k, content)
			if d.used > testCacheBytes || len(d.entries) > testCacheFiles {
				t.Fatalf("%d bytes in %d entries", d.used, len(d.entries))
			}
		}
		d.work(t.Context())
	}
	if len(d.entries) == 0 || d.waiting != 0 {
		t.Errorf("%d entries, %d bytes are waiting", len(d.entries), d.waiting)
	}
	// What was written is not kept in memory until others take its place in the queue.
	d.queue = make([]cacheWrite, 0, 1)
	array := d.queue[:1]
	d.put(chunkKey(ID{99}, 0), make([]byte, 20))
	d.work(t.Context())
	if len(d.queue) != 0 || array[0].content != nil {
		t.Errorf("%d writes wait, %d bytes of the last one are kept", len(d.queue), len(array[0].content))
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}

// TestDiskCacheLength: a file of another length than its part goes without being read.
func TestDiskCacheLength(t *testing.T) {
	fsys := logtest.NewFS(1)
	d, err := testCache(t, fsys)
	if err != nil {
		t.Fatal(err)
	}
	k, content := testEntry(1)
	name := path.Join("cache", entryName(k))
	f, err := fsys.Create(name)
	if err == nil {
		err = errors.Join(f.Truncate(testCacheBytes/2), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	d.load(t.Context())
	fsys.OnOp(func(op logtest.Op) error {
		if op.Kind == logtest.OpOpen {
			t.Error("a file is opened: " + op.Path)
		}
		return nil
	})
	c := &coldReader{disk: d, bytes: newBudget(testCacheBytes)}
	n := int64(len(content))
	use := func(b []byte) (*part, error) { return &part{batches: b}, nil }
	if p := c.fromDisk(t.Context(), k, n, 0, use); p != nil || d.stats.damaged != 1 || c.bytes.used != 0 {
		t.Fatalf("got %v, %d damaged, %d bytes of the budget are taken", p, d.stats.damaged, c.bytes.used)
	}
	fsys.OnOp(nil)
	d.work(t.Context())
	if _, err := fsys.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	d.put(k, content)
	d.work(t.Context())
	if p := c.fromDisk(t.Context(), k, n, 0, use); p == nil || !bytes.Equal(p.batches, content) {
		t.Error("what was written in its place is not there")
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}
