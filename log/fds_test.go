package log_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// A countingFS counts the files that are open, by what they are.
type countingFS struct {
	log.FS
	mu   sync.Mutex
	open map[string]int
	most map[string]int
}

func (c *countingFS) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range []string{what, "all"} {
		c.open[w] += n
		c.most[w] = max(c.most[w], c.open[w])
	}
}

func (c *countingFS) count(name string, f log.File, err error) (log.File, error) {
	if err != nil {
		return f, err
	}
	what := "beside"
	switch kindOf(name) {
	case ".log", "cordwood.spare-": // a spare file becomes a segment
		what = "segments"
	case ".journal":
		what = "journal"
	}
	c.add(what, 1)
	return &countedFile{File: f, c: c, what: what}, nil
}

func (c *countingFS) Create(name string) (log.File, error) {
	f, err := c.FS.Create(name)
	return c.count(name, f, err)
}

func (c *countingFS) Open(name string, write bool) (log.File, error) {
	f, err := c.FS.Open(name, write)
	return c.count(name, f, err)
}

type countedFile struct {
	log.File
	c    *countingFS
	what string
	once sync.Once
}

func (f *countedFile) Close() error {
	f.once.Do(func() { f.c.add(f.what, -1) })
	return f.File.Close()
}

// manyLogs opens logs on a disk whose journal takes everything.
func manyLogs(t *testing.T, fs log.FS, openFiles, n int) (*log.Disk, []*log.Log) {
	t.Helper()
	d, err := log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", OpenFiles: openFiles, JournalBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	log.JournalAll(d)
	var logs []*log.Log
	for i := range n {
		l, err := log.Open(t.Context(), fmt.Sprintf("/data/p%d", i), log.Options{Disk: d, SegmentBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, l)
	}
	return d, logs
}

// TestDescriptors counts the files that are open while many logs append, roll and read at once: what DiskOptions.OpenFiles says.
func TestDescriptors(t *testing.T) {
	const logs, callers, openFiles, background = 120, 6, 16, 8
	c := &countingFS{FS: logtest.NewFS(1), open: map[string]int{}, most: map[string]int{}}
	d, all := manyLogs(t, c, openFiles, logs)
	var wg sync.WaitGroup
	for k := range callers {
		wg.Go(func() {
			for round := range 12 {
				for i := k; i < logs; i += callers {
					if _, err := all[i].Append(t.Context(), plain(big(fmt.Sprint(round), 700))); err != nil {
						t.Error(err)
						return
					}
					if round%4 == 3 {
						s, err := all[i].Read(t.Context(), 0, 1)
						if err != nil {
							t.Error(err)
							return
						}
						s.Release()
					}
				}
			}
		})
	}
	wg.Wait()
	for _, l := range all {
		rest(l)
	}
	if n := d.Stats().OpenFiles; n > openFiles+openFiles { // at rest: idle ones, and those that the journal needs
		t.Errorf("%d segments are open at rest", n)
	}
	for _, l := range all {
		mustClose(t, l)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	t.Log(c.most)
	if n := c.open["all"]; n != 0 {
		t.Errorf("%d files stay open", n)
	}
	for what, most := range map[string]int{"segments": openFiles + 3*callers + background, "journal": 64, "beside": callers + background} {
		if c.most[what] == 0 || c.most[what] > most {
			t.Errorf("%s: %d files were open at once, want at most %d", what, c.most[what], most)
		}
	}
}

// TestDescriptorsSlowSync: while no segment's sync comes to its end, the journal makes durable what logs append, but not that of more logs
// than may keep their segments open for it.
func TestDescriptorsSlowSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const openFiles = 16
		fs := logtest.NewFS(1)
		c := &countingFS{FS: fs, open: map[string]int{}, most: map[string]int{}}
		d, all := manyLogs(t, c, openFiles, 60)
		release := fs.Stall(func(op logtest.Op) bool { return op.Kind == logtest.OpSync && kindOf(op.Path) == ".log" })
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, l := range all {
				if _, err := l.Append(t.Context(), plain("x")); err != nil {
					t.Error(err)
				}
			}
		}()
		synctest.Wait()
		durable := 0
		for _, l := range all {
			durable += int(l.DurableEnd())
		}
		if durable != openFiles || log.JournalPinned(d) != openFiles {
			t.Errorf("%d logs were made durable by the journal, %d are pinned", durable, log.JournalPinned(d))
		}
		release()
		<-done
		for _, l := range all {
			mustClose(t, l)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if n := c.most["segments"]; n > openFiles+3+8 {
			t.Errorf("%d segments were open at once", n)
		}
	})
}
