package dirstore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/dirstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

func open(t *testing.T, dir string, o dirstore.Options) *dirstore.Store {
	t.Helper()
	s, err := dirstore.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lazy is the real file system without its syncs: what they are for is tested on
// the disk in memory, and thousands of them take minutes.
type lazy struct{ log.OSFS }

type lazyFile struct{ log.File }

func (lazyFile) Sync() error { return nil }

func (l lazy) Create(name string) (log.File, error) {
	f, err := l.OSFS.Create(name)
	return lazyFile{f}, err
}

func (lazy) SyncDir(string) error { return nil }

func TestStoreOnDisk(t *testing.T) {
	tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore {
		return open(t, path.Join(t.TempDir(), "a/store"), dirstore.Options{FS: lazy{}})
	})
}

func TestDefaultFS(t *testing.T) {
	dir := path.Join(t.TempDir(), "a/store")
	s := open(t, dir, dirstore.Options{})
	if err := s.Put(t.Context(), "a/b/c", strings.NewReader("x"), 1, tier.PutOptions{IfAbsent: true}); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir, dirstore.Options{})
	if b, err := again.GetRange(t.Context(), "a/b/c", 0, 1); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestStoreInMemory(t *testing.T) {
	tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore {
		return open(t, "store", dirstore.Options{FS: logtest.NewFS(1)})
	})
}

// linkless is a file system without hard links.
type linkless struct {
	log.FS
	err error
}

func (l linkless) Link(oldName, newName string) error { return l.err }

func TestStoreWithoutLinks(t *testing.T) {
	tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore {
		return open(t, path.Join(t.TempDir(), "store"), dirstore.Options{FS: linkless{lazy{}, syscall.EPERM}})
	})
}

func TestHardLinks(t *testing.T) {
	s := open(t, "store", dirstore.Options{FS: linkless{logtest.NewFS(1), syscall.ENOTSUP}})
	if !s.HardLinks() {
		t.Error("HardLinks is false before it was tried")
	}
	if err := s.Put(t.Context(), "k", strings.NewReader("x"), 1, tier.PutOptions{IfAbsent: true}); err != nil {
		t.Fatal(err)
	}
	if s.HardLinks() {
		t.Error("HardLinks is true after a link was refused")
	}
}

func TestHooks(t *testing.T) {
	var puts, deletes atomic.Int32
	refuse := errors.New("refused")
	var fail error
	s := open(t, "store", dirstore.Options{FS: logtest.NewFS(1), Hooks: dirstore.Hooks{
		BeforeLink:   func(key string) error { puts.Add(1); return fail },
		BeforeDelete: func(key string) error { deletes.Add(1); return fail },
	}})
	put := func(key string) error {
		return s.Put(t.Context(), key, strings.NewReader("x"), 1, tier.PutOptions{IfAbsent: true})
	}
	if err := put("a/k"); err != nil {
		t.Fatal(err)
	}
	s.Delete(t.Context(), []string{"a/none", "b/none"})
	if puts.Load() != 1 || deletes.Load() != 0 {
		t.Errorf("%d puts, %d deletes, want 1, 0", puts.Load(), deletes.Load())
	}
	fail = refuse
	if err := put("a/k2"); !errors.Is(err, refuse) {
		t.Errorf("Put: %v, want the hook's error", err)
	}
	if r := s.Delete(t.Context(), []string{"a/k"}); !errors.Is(r[0].Err, refuse) {
		t.Errorf("Delete: %v, want the hook's error", r[0].Err)
	}
	if _, err := s.Head(t.Context(), "a/k2"); !errors.Is(err, tier.ErrNotFound) {
		t.Errorf("a refused object is there: %v", err)
	}
	if _, err := s.Head(t.Context(), "a/k"); err != nil {
		t.Errorf("an object whose deletion was refused is gone: %v", err)
	}
}

func TestOwnKeysRefused(t *testing.T) {
	s := open(t, "store", dirstore.Options{FS: logtest.NewFS(1)})
	for _, key := range []string{".tmp/x", ".tmp", ".lock"} {
		if err := s.Put(t.Context(), key, strings.NewReader("x"), 1, tier.PutOptions{}); !errors.Is(err, tier.ErrInvalidKey) {
			t.Errorf("Put(%s): %v", key, err)
		}
	}
}

// TestCrash crashes the disk at each of its writes and finds each object whole or
// absent, and there if Put had returned nil.
func TestCrash(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 2000)
	puts := []string{"a/b/one", "a/b/two", "a/c/three"}
	logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
		done := map[string]bool{}
		gone := false
		if s, err := dirstore.Open("data/store", dirstore.Options{FS: fs}); err == nil {
			for _, key := range puts {
				done[key] = s.Put(t.Context(), key, bytes.NewReader(data), int64(len(data)), tier.PutOptions{IfAbsent: true}) == nil
			}
			gone = s.Delete(t.Context(), puts[:1])[0].Err == nil
		}
		return func(after *logtest.FS) {
			s := open(t, "data/store", dirstore.Options{FS: after})
			for _, key := range puts {
				b, err := s.GetRange(t.Context(), key, 0, int64(len(data)))
				switch {
				case err == nil && !bytes.Equal(b, data):
					t.Fatalf("%s has other bytes", key)
				case err == nil && key == puts[0] && gone:
					t.Fatalf("%s is back after its deletion", key)
				case err != nil && !errors.Is(err, tier.ErrNotFound):
					t.Fatalf("%s: %v", key, err)
				case err != nil && done[key] && key != puts[0]:
					t.Fatalf("%s is lost", key)
				}
			}
		}
	})
}

func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	s, err := dirstore.Open(dir, dirstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "a/k", strings.NewReader("data"), 4, tier.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	ro, err := dirstore.Open(dir, dirstore.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := ro.GetRange(t.Context(), "a/k", 0, 4); err != nil || string(b) != "data" {
		t.Errorf("read: %q, %v", b, err)
	}
	if err := ro.Put(t.Context(), "a/k2", strings.NewReader("data"), 4, tier.PutOptions{}); !errors.Is(err, tier.ErrDenied) {
		t.Errorf("Put: %v, want ErrDenied", err)
	}
	if r := ro.Delete(t.Context(), []string{"a/k"}); !errors.Is(r[0].Err, tier.ErrDenied) {
		t.Errorf("Delete: %v, want ErrDenied", r[0].Err)
	}
	none := filepath.Join(dir, "none")
	if _, err := dirstore.Open(none, dirstore.Options{ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	if _, err := os.Stat(none); err == nil {
		t.Error("a look made it")
	}
}
