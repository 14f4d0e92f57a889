package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// fileKinds are the kinds of files that the package knows, by the constant that their names are made of. Of those that are not flipped
// it says why.
var fileKinds = map[string]string{
	".log":                    isFlipped,
	".index":                  isFlipped,
	".timeindex":              isFlipped,
	".txnindex":               isFlipped,
	".seal":                   isFlipped,
	".state":                  isFlipped,
	".snapshot":               isFlipped,
	".cut":                    isFlipped,
	".journal":                isFlipped,
	"journal.id":              isFlipped,
	"cordwood.meta":           isFlipped,
	"cordwood.clean":          isFlipped,
	"cordwood.spare-":         isFlipped,
	"leader-epoch-checkpoint": isFlipped,
	"partition.metadata":      isFlipped,
	"cordwood.lock":           "it is empty",
	"cordwood.journal":        "a folder",
	".tmp":                    "nobody reads it: it takes another name once it is whole, or Open removes it",
	".next":                   "earlier versions made it: Open removes it",
	".swap":                   "Kafka makes it: Open says what is in its way",
}

const isFlipped = "" // by TestFlipKinds

// kindOf returns the kind of a file of the package; "" for others.
func kindOf(name string) string {
	base := path.Base(name)
	if strings.HasPrefix(base, "cordwood.spare-") {
		return "cordwood.spare-"
	}
	if _, ok := fileKinds[base]; ok {
		return base
	}
	ext := path.Ext(base)
	if _, ok := fileKinds[ext]; ok && ext != base {
		return ext
	}
	return ""
}

// TestFileKinds: the list above has what the sources name, and nothing else.
func TestFileKinds(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				s := s.(*ast.ValueSpec)
				for i, n := range s.Names {
					if i >= len(s.Values) || !strings.HasSuffix(n.Name, "Suffix") && !strings.HasSuffix(n.Name, "Name") && !strings.HasSuffix(n.Name, "Prefix") {
						continue
					}
					if v, ok := s.Values[i].(*ast.BasicLit); ok && v.Kind == token.STRING {
						text, err := strconv.Unquote(v.Value)
						if err != nil {
							t.Fatal(err)
						}
						named[text] = true
					}
				}
			}
		}
	}
	got, want := slices.Sorted(maps.Keys(named)), slices.Sorted(maps.Keys(fileKinds))
	if !slices.Equal(got, want) {
		t.Errorf("the sources name %q,\nthe list has    %q", got, want)
	}
}

// A zoo is a disk with a log that has a file of each kind, and what is in it.
type zoo struct {
	image   *logtest.FS
	batches map[log.Offset][]byte
	end     log.Offset
	stable  log.Offset
	aborted []log.AbortedTxn
	last    log.Offset // the batch that the last group of the journal brought
}

const zooDir = "/data/p"

func zooOptions(d *log.Disk) log.Options {
	return log.Options{Disk: d, SegmentBytes: 10 << 10, ProducerExpiry: -1, Partition: log.PartitionID{Topic: log.TopicID{1, 2, 3}}}
}

func zooDisk(fs *logtest.FS) (*log.Disk, error) {
	return log.NewDisk(log.DiskOptions{FS: fs, Dir: "/data", JournalBytes: 256 << 10})
}

// newZoo makes the log; closed in order, or left with entries in the journal.
func newZoo(t *testing.T, closed bool) *zoo {
	t.Helper()
	ctx := t.Context()
	fs := logtest.NewFS(1)
	begin := func() (*log.Disk, *log.Log) {
		d, err := zooDisk(fs)
		if err != nil {
			t.Fatal(err)
		}
		log.JournalAll(d)
		l, err := log.Open(ctx, zooDir, zooOptions(d))
		if err != nil {
			t.Fatal(err)
		}
		return d, l
	}
	d, l := begin()
	n := int32(0)
	fill := func(segments int) {
		for first := len(l.Segments()); len(l.Segments()) < first+segments; n++ {
			if _, err := l.Write(log.Epoch(n/5), sequenced(3, 0, n, big(fmt.Sprint(n), 1500))); err != nil {
				t.Fatal(err)
			}
			txn := txnBatch{id: 7, first: n, end: 1, kind: kindTxn}
			if _, err := l.Write(log.Epoch(n/5), txn.bytes().Bytes()); err != nil {
				t.Fatal(err)
			}
			if n%3 == 2 {
				if _, err := l.WriteControl(log.Epoch(n/5), txnBatch{id: 7, kind: kindAbort, end: 1}.bytes()); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := l.Sync(ctx); err != nil {
				t.Fatal(err)
			}
			rest(l)
		}
	}
	fill(2)
	mustClose(t, l)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	// A torn tail is cut, and kept aside.
	name := activeName(fs)
	remove(t, fs, "cordwood.clean")
	resize(t, fs, path.Base(name), 1)
	if err := fs.Corrupt(name, fileSize(t, fs, path.Base(name))-1, 0xff); err != nil {
		t.Fatal(err)
	}
	d, l = begin()
	if l.Recovery().CutPath == "" {
		t.Fatalf("got %+v", l.Recovery())
	}
	fill(3)
	segs := l.Segments()
	if err := l.TrimTo(ctx, segs[1].Base); err != nil { // its file is kept
		t.Fatal(err)
	}
	rest(l)
	log.FlushLog(l)
	for i := range int32(3) {
		if _, err := l.Append(ctx, sequenced(5, 0, i, fmt.Sprint("in the journal ", i))); err != nil {
			t.Fatal(err)
		}
	}
	z := &zoo{batches: map[log.Offset][]byte{}, end: l.End(), stable: l.LastStable(), last: l.End() - 1}
	for off := l.Start(); off < z.end; {
		s, err := l.Read(ctx, off, 1)
		if err != nil {
			t.Fatal(err)
		}
		z.batches[off] = bytes.Clone(s.Bytes())
		off = s.End()
		s.Release()
	}
	var err error
	if z.aborted, err = l.AbortedTransactions(ctx, l.Start(), z.end); err != nil || len(z.aborted) == 0 {
		t.Fatalf("got %v, %v", z.aborted, err)
	}
	if closed {
		mustClose(t, l)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		z.image = fs.Crash(logtest.CrashKeepAll)
		return z
	}
	z.image = fs.Crash(logtest.CrashLoseAll)
	mustCloseDead(l)
	d.Close() //nolint:errcheck // it is dead
	return z
}

// look opens what is left and says what is wrong with it, after a flip in a file of that kind.
func (z *zoo) look(fs *logtest.FS, kind string) error {
	ctx := context.Background()
	before := sizes(fs)
	d, err := zooDisk(fs)
	if _, ok := errors.AsType[*log.CorruptionError](err); ok && kind == "journal.id" {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // of a damaged log something stays in the journal
	l, err := log.Open(ctx, zooDir, zooOptions(d))
	if err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // a damaged log
	r := l.Recovery()
	holds := kind == ".log" || kind == ".journal" // records
	if (r.Lossy || r.End != z.end) && !holds {
		return fmt.Errorf("recovery: %+v, %v", r, r.Corruption)
	}
	lost := 0
	for off, want := range z.batches {
		s, err := l.Read(ctx, off, 1)
		if err != nil {
			c, ok := errors.AsType[*log.CorruptionError](err)
			torn := errors.Is(err, log.ErrOffsetOutOfRange) && off == z.last && r.End == off
			if !holds || !torn && (!ok || c.Offset > off) && !(r.Lossy && off >= r.End) {
				return fmt.Errorf("read %d: %w (recovery %+v)", off, err, r)
			}
			lost++
			continue
		}
		if s.Len() == 0 && off == z.last && r.End == off {
			lost++
		} else if !bytes.Equal(s.Bytes(), want) {
			return fmt.Errorf("read %d: got %d bytes, want %d (recovery %+v)", off, s.Len(), len(want), r)
		}
		s.Release()
	}
	if lost > 0 && !r.Lossy && r.End == z.end {
		if v, err := l.Verify(ctx, log.VerifyOptions{}); err != nil || len(v.Damage) == 0 {
			return fmt.Errorf("verify: got %+v, %w with %d batches lost", v, err, lost)
		}
	}
	if kind == ".log" && lost > 1 {
		return fmt.Errorf("one bit took %d batches (recovery %+v, %v)", lost, r, r.Corruption)
	}
	if lost == 0 && !r.Lossy {
		if got, err := l.AbortedTransactions(ctx, l.Start(), z.end); err != nil || !slices.Equal(got, z.aborted) || l.LastStable() != z.stable {
			return fmt.Errorf("got aborted %v, %w, last stable offset %d, want %v, %d", got, err, l.LastStable(), z.aborted, z.stable)
		}
	}
	for n, size := range before {
		k := kindOf(n)
		if k != ".log" && k != ".cut" {
			continue
		}
		fi, err := fs.Stat(n)
		if err != nil {
			return fmt.Errorf("gone: %w", err)
		}
		if fi.Size < size && r.Lossy {
			return fmt.Errorf("%s was cut from %d to %d bytes", n, size, fi.Size)
		}
	}
	return nil
}

// TestFlipKinds flips bytes of every kind of file: all of the small ones, of the others some.
func TestFlipKinds(t *testing.T) {
	done := map[string]int{}
	for _, closed := range []bool{true, false} {
		z := newZoo(t, closed)
		if err := z.look(z.image.Fork(logtest.CrashKeepAll), ""); err != nil {
			t.Fatalf("closed %v, without a flip: %v", closed, err)
		}
		for _, name := range z.image.Names() {
			if strings.HasSuffix(name, "/") {
				continue
			}
			kind := kindOf(name)
			if kind == "" {
				t.Errorf("%s is of no kind", name)
				continue
			}
			b := readAll(t, z.image, name)
			step := 97
			switch kind {
			case ".index", ".timeindex", ".txnindex", ".cut", "journal.id", "partition.metadata", "leader-epoch-checkpoint":
				step = 1
			case ".seal", ".state", ".snapshot":
				step = 23
			}
			if testing.Short() {
				step *= 17
			}
			left := 0 // until the next flip
			for at, c := range b {
				if left--; left > 0 || c == 0 && at%(31*step) != 0 {
					continue
				}
				left = step
				fs := z.image.Fork(logtest.CrashKeepAll)
				if err := fs.Corrupt(name, int64(at), 1<<(at%8)); err != nil {
					t.Fatal(err)
				}
				done[kind]++
				if err := z.look(fs, kind); err != nil {
					t.Fatalf("closed %v: %s byte %d: %v", closed, path.Base(name), at, err)
				}
			}
		}
	}
	for kind, why := range fileKinds {
		if (done[kind] > 0) != (why == isFlipped) {
			t.Errorf("%s was flipped %d times; why not at all: %q", kind, done[kind], why)
		}
	}
	t.Log(done)
}

// operation names an operation that changes the disk by the kinds of its files; "" for those that are no change of a file of ours.
func operation(op logtest.Op) string {
	if !op.Kind.Changes() || op.Kind == logtest.OpMkdir || op.Kind == logtest.OpLock {
		return ""
	}
	kind := func(name string) string {
		if k := kindOf(name); k != "" {
			return k
		}
		return "folder"
	}
	if op.NewPath == "" {
		return op.Kind.String() + ":" + kind(op.Path)
	}
	return op.Kind.String() + ":" + kind(op.Path) + ":" + kind(op.NewPath)
}

// A tally is the operations that were asked of a disk.
type tally struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (c *tally) note(op logtest.Op) {
	if o := operation(op); o != "" {
		c.mu.Lock()
		c.seen[o] = true
		c.mu.Unlock()
	}
}

// eachCrashOf runs a workload on copies of an image, lets the machine die at each of its changes, notes which these were, and has a look
// at what is left. The workload says whether it got to its end.
func (c *tally) eachCrashOf(t *testing.T, image *logtest.FS, workload func(fs *logtest.FS) error, look func(fs *logtest.FS) error) {
	t.Helper()
	for at := int64(1); ; at++ {
		fs := image.Fork(logtest.CrashKeepAll)
		from := fs.Changes()
		fs.OnOp(func(op logtest.Op) error {
			if op.Kind.Changes() && op.Changed-from >= at {
				if op.Changed-from == at {
					c.note(op)
				}
				fs.PowerOff()
			}
			return nil
		})
		err := workload(fs)
		if !fs.Crashed() && err != nil {
			t.Fatal(err)
		}
		done := !fs.Crashed()
		fs.PowerOff()
		for seed := range uint64(3) {
			mode := logtest.CrashLoseSome(10*uint64(at) + seed)
			if seed == 0 {
				mode = logtest.CrashLoseAll
			}
			if err := look(fs.Fork(mode)); err != nil {
				t.Fatalf("change %d, %v: %v", at, mode, err)
			}
		}
		if done {
			return
		}
	}
}

// crashPoints are the operations on kinds of files at which the machine is let die somewhere: in the workloads of TestCrashEverywhere,
// TestCrashRecycled, TestJournalCrashSteps and TestRepairCrash, and here.
var crashPoints = strings.Fields(`
	create:.cut create:.index create:.journal create:.log create:.seal create:.snapshot create:.state create:.timeindex create:.tmp create:.txnindex create:cordwood.spare- create:partition.metadata
	preallocate:.journal preallocate:.log preallocate:.tmp preallocate:cordwood.spare-
	remove:.cut remove:.index remove:.journal remove:.log remove:.next remove:.seal remove:.snapshot remove:.state remove:.timeindex remove:.tmp remove:.txnindex remove:cordwood.clean remove:cordwood.spare- remove:partition.metadata
	rename:.log:cordwood.spare- rename:.tmp:.log rename:.tmp:.state rename:.tmp:cordwood.clean rename:.tmp:cordwood.meta rename:.tmp:journal.id rename:.tmp:leader-epoch-checkpoint rename:cordwood.spare-:.log
	sync:.cut sync:.index sync:.journal sync:.log sync:.seal sync:.state sync:.timeindex sync:.tmp sync:.txnindex sync:cordwood.spare- sync:partition.metadata
	syncdir:cordwood.journal syncdir:folder
	truncate:.log truncate:cordwood.spare-
	write:.cut write:.index write:.journal write:.log write:.seal write:.snapshot write:.state write:.timeindex write:.tmp write:.txnindex write:cordwood.spare- write:partition.metadata
`)

func TestCrashKinds(t *testing.T) {
	c := &tally{seen: map[string]bool{}}
	for _, run := range []func(fs *logtest.FS){
		func(fs *logtest.FS) { script(t, fs, 1) },
		func(fs *logtest.FS) { recycling(t, fs, 1).finish(new(int64)) },
		func(fs *logtest.FS) {
			f := newFleet(t, fs, 3, 1)
			f.steps()
			f.closeDisk()
		},
	} {
		fs := logtest.NewFS(1)
		fs.OnOp(func(op logtest.Op) error {
			c.note(op)
			return nil
		})
		run(fs)
	}
	r := rotten(t, false)
	fs := r.image.Fork(logtest.CrashKeepAll)
	damages["many"](t, r, fs)
	l := open(t, fs, log.Options{SegmentBytes: 5000})
	fs.OnOp(func(op logtest.Op) error {
		c.note(op)
		return nil
	})
	if _, err := l.Repair(t.Context(), 0, 45, from(r.replica)); err != nil {
		t.Fatal(err)
	}
	fs.OnOp(nil)
	mustClose(t, l)

	ctx := context.Background()
	// A broker's directory with a torn tail, and what is left of earlier lives.
	files := map[string][]byte{
		segmentFile(0):      concat(stamped(t, 0, 0, "0", "1"), stamped(t, 2, 0, "2")),
		segmentFile(3):      concat(stamped(t, 3, 1, "3"), stamped(t, 4, 1, "4"), stamped(t, 5, 1, "5")[:50]),
		sideName(9, "next"): nil,
	}
	for i := range 4 {
		files[fmt.Sprintf("%020d.%d.cut", 0, i)] = []byte("cut before")
	}
	o := log.Options{Partition: log.PartitionID{Topic: log.TopicID{1}}}
	use := func(fs *logtest.FS) error {
		o := o
		o.FS = fs
		l, err := log.Open(ctx, importDir, o)
		if err != nil {
			return err
		}
		_, err = l.Append(ctx, plain("5"))
		return errors.Join(err, l.Close())
	}
	c.eachCrashOf(t, importFS(t, files), use, func(fs *logtest.FS) error {
		o := o
		o.FS = fs
		l, err := log.Open(ctx, importDir, o)
		if err != nil {
			return err
		}
		if r := l.Recovery(); r.Lossy || r.End < 5 || r.End > 6 {
			err = fmt.Errorf("got %+v, %v", r, r.Corruption)
		}
		for off := log.Offset(0); off < l.End() && err == nil; off++ {
			var s *log.Slice
			if s, err = l.Read(ctx, off, 1); err == nil {
				s.Release()
			}
		}
		return errors.Join(err, l.Close())
	})
	// The states are lost, and the segments that they could be made of are to go.
	image, bases := earlyProducer(t)
	removeStates(t, image)
	image.SyncAll()
	o = log.Options{SegmentBytes: 1 << 10, ProducerExpiry: -1}
	drop := func(fs *logtest.FS) error {
		o := o
		o.FS = fs
		l, err := log.Open(ctx, "/data/p", o)
		if err != nil {
			return err
		}
		return errors.Join(l.DropLocal(ctx, bases[2]), l.Close())
	}
	c.eachCrashOf(t, image, drop, func(fs *logtest.FS) error {
		o := o
		o.FS = fs
		l, err := log.Open(ctx, "/data/p", o)
		if err != nil {
			return err
		}
		if r := l.Recovery(); r.Lossy || r.End != 9 || l.LocalStart() != 0 && l.LocalStart() != bases[2] {
			err = fmt.Errorf("got local start %d, %+v, %v", l.LocalStart(), r, r.Corruption)
		}
		if a, werr := l.Write(0, earlyBatch()); werr != nil || !a.Duplicate || a.Base != 0 {
			err = errors.Join(err, fmt.Errorf("retry of the early batch: %+v, %w", a, werr))
		}
		return errors.Join(err, l.Close())
	})
	// An epoch without a record is truncated.
	chain := []log.EpochStart{{Epoch: 1, Start: 5}, {Epoch: 3, Start: 20}}
	image = logtest.NewFS(1)
	l = open(t, image, log.Options{})
	mustAppend(t, l, "0", "1", "2")
	mustClose(t, l)
	image.SyncAll()
	c.eachCrashOf(t, image, func(fs *logtest.FS) error {
		l, err := log.Open(ctx, "/data/p", log.Options{FS: fs})
		if err != nil {
			return err
		}
		if err = l.Reset(ctx, 20, chain, nil); err == nil {
			_, err = l.TruncateTo(ctx, 20)
		}
		return errors.Join(err, l.Close())
	}, func(fs *logtest.FS) error {
		l, err := log.Open(ctx, "/data/p", log.Options{FS: fs})
		if err != nil {
			return err
		}
		switch got := fmt.Sprint(l.End(), l.EpochChain(), l.Recovery().Lossy); got {
		case "3 [{0 0}] false", "20 [{1 5} {3 20}] false", "20 [{1 5}] false":
		default:
			err = fmt.Errorf("got %s", got)
		}
		return errors.Join(err, l.Close())
	})
	got := slices.Sorted(maps.Keys(c.seen))
	if want := slices.Sorted(slices.Values(crashPoints)); !slices.Equal(got, want) {
		t.Errorf("the machine died at\n%s\nand is to die at\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for kind, why := range fileKinds {
		made := slices.ContainsFunc(crashPoints, func(p string) bool {
			return p == "create:"+kind || strings.HasPrefix(p, "rename:") && strings.HasSuffix(p, ":"+kind)
		})
		if why == isFlipped && !made {
			t.Errorf("the machine never dies when %s is made", kind)
		}
	}
}
