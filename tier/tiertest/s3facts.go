package tiertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/tier"
)

// What Amazon S3 promises, as far as a caller of the interface can tell, and package
// tier relies on.

// testVisibleAtOnce: what a write has done, every later call sees.
func testVisibleAtOnce(t *testing.T, s tier.ObjectStore) {
	for i := range 20 {
		key := fmt.Sprintf("now/%02d", i%3)
		data := noise(100+i, uint64(i))
		put(t, s, key, data, tier.PutOptions{})
		if got := get(t, s, key, len(data)); !bytes.Equal(got, data) {
			t.Fatalf("round %d: GetRange gives other bytes than the last Put", i)
		}
		if info, err := s.Head(t.Context(), key); err != nil || info.Size != int64(len(data)) {
			t.Fatalf("round %d: Head after Put: %+v, %v", i, info, err)
		}
		if !slices.Contains(keysOf(t, s, "now/", ""), key) {
			t.Fatalf("round %d: List after Put lacks %s", i, key)
		}
		if i%2 == 0 {
			continue
		}
		if r := s.Delete(t.Context(), []string{key}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		if _, err := s.GetRange(t.Context(), key, 0, 1); !errors.Is(err, tier.ErrNotFound) {
			t.Fatalf("round %d: GetRange after Delete: %v", i, err)
		}
		if slices.Contains(keysOf(t, s, "now/", ""), key) {
			t.Fatalf("round %d: List after Delete has %s", i, key)
		}
	}
}

// testOneWriterWins: of unconditional writers of one key one is the last, and nobody
// ever sees a mixture, or nothing.
func testOneWriterWins(t *testing.T, s tier.ObjectStore) {
	const size = 40_000
	content := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, size) }
	whole := func(b []byte) bool { return b[0] >= 1 && b[0] <= 9 && bytes.Count(b, b[:1]) == len(b) }
	put(t, s, "k", content(8), tier.PutOptions{})
	var writers, readers sync.WaitGroup
	var done atomic.Bool
	for i := range 8 {
		writers.Go(func() {
			for range 3 {
				err := s.Put(t.Context(), "k", bytes.NewReader(content(i)), size, tier.PutOptions{})
				if err != nil && !errors.Is(err, tier.ErrConflict) {
					t.Errorf("Put: %v", err)
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			for !done.Load() {
				if b, err := s.GetRange(t.Context(), "k", 0, size); err != nil || !whole(b) {
					t.Errorf("GetRange beside writers: %v, or a mixture", err)
					return
				}
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	if b := get(t, s, "k", size); !whole(b) {
		t.Error("the object is a mixture of its writers'")
	}
}

// testListUnderChange: while others come and go, what was there all the time is listed
// once, in order.
func testListUnderChange(t *testing.T, s tier.ObjectStore) {
	var stay []string
	for i := range 60 {
		stay = append(stay, fmt.Sprintf("stay/%03d", i))
		put(t, s, stay[i], []byte{1}, tier.PutOptions{})
	}
	var wg sync.WaitGroup
	var done atomic.Bool
	for w := range 2 {
		wg.Go(func() {
			for i := 0; !done.Load(); i++ {
				key := fmt.Sprintf("stay/%03d-%d", (i*7+w)%60, w)
				if err := s.Put(t.Context(), key, strings.NewReader("x"), 1, tier.PutOptions{}); err != nil {
					t.Errorf("Put: %v", err)
					return
				}
				if r := s.Delete(t.Context(), []string{key}); r[0].Err != nil {
					t.Errorf("Delete: %v", r[0].Err)
					return
				}
			}
		})
	}
	for range 5 {
		keys := keysOf(t, s, "stay/", "")
		if !slices.IsSorted(keys) || len(slices.Compact(slices.Clone(keys))) != len(keys) {
			t.Errorf("List beside writers is out of order, or has a key twice: %q", keys)
		}
		keys = slices.DeleteFunc(keys, func(k string) bool { return len(k) > len(stay[0]) })
		if !slices.Equal(keys, stay) {
			t.Errorf("List beside writers: %d of %d keys that stay", len(keys), len(stay))
		}
	}
	done.Store(true)
	wg.Wait()
}

// testListPageEdges: exactly as many keys as a page of S3 has, one less, one more.
func testListPageEdges(t *testing.T, s tier.ObjectStore) {
	var keys []string
	var wg sync.WaitGroup
	n := 1001
	if testing.Short() {
		n = 15 // for stores that were made with small pages
	}
	for i := range n {
		keys = append(keys, fmt.Sprintf("page/%04d", i))
	}
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < len(keys); i += 8 {
				if err := s.Put(t.Context(), keys[i], strings.NewReader("x"), 1, tier.PutOptions{}); err != nil {
					t.Errorf("Put: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for _, after := range []string{"", "page/0000", "page/0001", "page/0999", "page/1000"} {
		want := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k <= after })
		if got := keysOf(t, s, "page/", after); !slices.Equal(got, want) {
			t.Errorf("List after %q: %d keys, want %d", after, len(got), len(want))
		}
	}
	results := s.Delete(t.Context(), keys) // more than a request of S3 takes
	for i, r := range results {
		if r.Key != keys[i] || r.Err != nil {
			t.Fatalf("Delete: result %d is of %q: %v", i, r.Key, r.Err)
		}
	}
	if left := keysOf(t, s, "page/", ""); len(results) != len(keys) || len(left) > 0 {
		t.Errorf("Delete of %d keys: %d results, %d are left", len(keys), len(results), len(left))
	}
}

// testListAgreesWithHead: both tell the same of an object.
func testListAgreesWithHead(t *testing.T, s tier.ObjectStore) {
	fill(t, s)
	for info, err := range s.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		head, err := s.Head(t.Context(), info.Key)
		if err != nil || head.Key != info.Key || head.Size != info.Size {
			t.Errorf("List says %+v, Head %+v, %v", info, head, err)
		}
		// A header of HTTP has whole seconds.
		if d := head.LastModified.Sub(info.LastModified); d < -time.Second || d > time.Second {
			t.Errorf("%s: List says that it was written at %v, Head at %v", info.Key, info.LastModified, head.LastModified)
		}
	}
}

// testDeleteVerdicts: each key has its own result, in the order of the keys, also
// next to one that can't be, and when it is named twice.
func testDeleteVerdicts(t *testing.T, s tier.ObjectStore) {
	for _, key := range []string{"v/a", "v/b", "v/c"} {
		put(t, s, key, []byte("x"), tier.PutOptions{})
	}
	keys := []string{"v/c", "not a key", "v/a", "v/none", "v/a"}
	results := s.Delete(t.Context(), keys)
	if len(results) != len(keys) {
		t.Fatalf("Delete of %d keys gave %d results", len(keys), len(results))
	}
	for i, r := range results {
		if r.Key != keys[i] || (r.Err == nil) == (i == 1) || i == 1 && !errors.Is(r.Err, tier.ErrInvalidKey) {
			t.Errorf("Delete: result %d is of %q: %v", i, r.Key, r.Err)
		}
	}
	if got := keysOf(t, s, "v/", ""); !slices.Equal(got, []string{"v/b"}) {
		t.Errorf("after Delete: %q", got)
	}
	for range 2 { // what is gone can be deleted again
		if r := s.Delete(t.Context(), []string{"v/b"}); r[0].Err != nil {
			t.Errorf("Delete: %v", r[0].Err)
		}
	}
}

// testRefusedLeavesNothing: a Put that was refused has taken nothing, not even the key,
// and changed nothing.
func testRefusedLeavesNothing(t *testing.T, s tier.ObjectStore) {
	data := noise(5000, 3)
	sum := crc32.Checksum(data, castagnoli)
	if s.Capabilities().CRC32C {
		err := s.Put(t.Context(), "r/k", bytes.NewReader(data), 5000, tier.PutOptions{CRC32C: sum + 1, HasCRC32C: true})
		if !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("Put with a wrong checksum: %v", err)
		}
	}
	if err := s.Put(t.Context(), "r/k", bytes.NewReader(data[:100]), 5000, tier.PutOptions{CRC32C: sum, HasCRC32C: true}); err == nil {
		t.Error("Put of a source that is too short succeeded")
	}
	if keys := keysOf(t, s, "", ""); len(keys) > 0 {
		t.Errorf("refused writes left %q", keys)
	}
	put(t, s, "r/k", data, tier.PutOptions{IfAbsent: s.Capabilities().IfAbsent, CRC32C: sum, HasCRC32C: true})
	if err := s.Put(t.Context(), "r/k", bytes.NewReader(data[:100]), 5000, tier.PutOptions{CRC32C: sum, HasCRC32C: true}); err == nil {
		t.Error("Put of a source that is too short succeeded")
	}
	if got := get(t, s, "r/k", 5000); !bytes.Equal(got, data) {
		t.Error("a refused Put changed the object")
	}
}

// A gate is a source that reports its first read beyond a point and holds it until
// ctx ends.
type gate struct {
	data   []byte
	at     int64
	ctx    context.Context
	began  func()
	over   atomic.Bool // Put has returned
	misuse atomic.Bool
}

func (g *gate) ReadAt(p []byte, off int64) (int, error) {
	if g.over.Load() {
		g.misuse.Store(true)
	}
	if off+int64(len(p)) > g.at {
		g.began()
		<-g.ctx.Done()
	}
	return bytes.NewReader(g.data).ReadAt(p, off)
}

// testCancelledPut: one that is cut off in the middle returns, says that the context
// ended or that it does not know, reads its source no more, and leaves the whole
// object or none.
func testCancelledPut(t *testing.T, s tier.ObjectStore) {
	data := noise(1<<20, 4)
	for i, at := range []int64{0, 500_000, 1<<20 - 1} {
		key := fmt.Sprintf("cut/%d", i)
		ctx, cancel := context.WithCancel(t.Context())
		g := &gate{data: data, at: at, ctx: ctx, began: sync.OnceFunc(cancel)}
		err := s.Put(ctx, key, g, int64(len(data)), tier.PutOptions{CRC32C: crc32.Checksum(data, castagnoli), HasCRC32C: true})
		g.over.Store(true)
		cancel()
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, tier.ErrUnknownOutcome) {
			t.Errorf("Put that was cut off at byte %d: %v", at, err)
		}
		info, herr := s.Head(t.Context(), key)
		switch {
		case herr == nil && info.Size == int64(len(data)) && bytes.Equal(get(t, s, key, len(data)), data):
		case errors.Is(herr, tier.ErrNotFound) && err != nil:
		default:
			t.Errorf("Put that was cut off at byte %d: %v, then Head: %+v, %v", at, err, info, herr)
		}
		if g.misuse.Load() {
			t.Errorf("Put that was cut off at byte %d read its source after it had returned", at)
		}
	}
}

// testEmptyObject: no range lies inside it.
func testEmptyObject(t *testing.T, s tier.ObjectStore) {
	put(t, s, "empty", nil, tier.PutOptions{HasCRC32C: true})
	for _, off := range []int64{0, 1} {
		if b, err := s.GetRange(t.Context(), "empty", off, 1); !errors.Is(err, tier.ErrRange) {
			t.Errorf("GetRange at %d of an empty object: %d bytes, %v, want ErrRange", off, len(b), err)
		}
	}
	if keys := keysOf(t, s, "", ""); !slices.Equal(keys, []string{"empty"}) {
		t.Errorf("List: %q", keys)
	}
}

// testLongKeys: each key that [tier.CheckKey] takes is a key.
func testLongKeys(t *testing.T, s tier.ObjectStore) {
	part := strings.Repeat("p", 199)
	long := strings.Join([]string{part, part, part, part}, "/") // 799 bytes
	keys := []string{
		"-_.=/=._-", "..a/...", "0", "a.b-c_d=e", long + "/" + strings.Repeat("k", tier.MaxKeyBytes-len(long)-1),
	}
	slices.Sort(keys)
	for i, key := range keys {
		put(t, s, key, []byte{byte(i)}, tier.PutOptions{IfAbsent: s.Capabilities().IfAbsent})
	}
	for i, key := range keys {
		if got := get(t, s, key, 1); got[0] != byte(i) {
			t.Errorf("%.20s of %d bytes: the object of another key", key, len(key))
		}
	}
	if got := keysOf(t, s, "", ""); !slices.Equal(got, keys) {
		t.Errorf("List: %.300q", got)
	}
	for _, r := range s.Delete(t.Context(), keys) {
		if r.Err != nil {
			t.Errorf("Delete: %v", r.Err)
		}
	}
	if left := keysOf(t, s, "", ""); len(left) > 0 {
		t.Errorf("after Delete: %.300q", left)
	}
}

// testRangesAtOnce: many readers of one object get each their own range.
func testRangesAtOnce(t *testing.T, s tier.ObjectStore) {
	data := noise(1<<20, 5)
	put(t, s, "k", data, tier.PutOptions{})
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			off, n := int64(i)*31_001, int64(1+i*500)
			b, err := s.GetRange(t.Context(), "k", off, n)
			if err != nil || !bytes.Equal(b, data[off:off+n]) {
				t.Errorf("GetRange(%d, %d) beside others: %d bytes, %v", off, n, len(b), err)
			}
		})
	}
	wg.Wait()
}

// testReplaceIsNewer: the time of an object is that of its last write, by a clock
// that does not go backwards.
func testReplaceIsNewer(t *testing.T, s tier.ObjectStore) {
	put(t, s, "k", []byte("first"), tier.PutOptions{})
	first, err := s.Head(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "k", []byte("longer"), tier.PutOptions{})
	second, err := s.Head(t.Context(), "k")
	if err != nil || second.Size != 6 || second.LastModified.Before(first.LastModified) {
		t.Errorf("Head %+v, after the replacement %+v, %v", first, second, err)
	}
	if first.HasCRC32C && second.HasCRC32C && first.CRC32C == second.CRC32C {
		t.Error("the replacement has the checksum of what it replaced")
	}
}
