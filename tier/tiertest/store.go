package tiertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cordwood-io/cordwood/tier"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// TestStore checks that a store keeps the contract of [tier.ObjectStore]. newStore
// is called once per subtest and must return an empty store. What a store's
// Capabilities do not claim is not asked of it.
func TestStore(t *testing.T, newStore func(t *testing.T) tier.ObjectStore) {
	t.Helper()
	for _, test := range storeTests {
		t.Run(test.name, func(t *testing.T) { test.run(t, newStore(t)) })
	}
}

var storeTests = []struct {
	name string
	run  func(*testing.T, tier.ObjectStore)
}{
	{"put-get", testPutGet},
	{"sizes", testSizes},
	{"range-exact", testRangeExact},
	{"range-owned", testRangeOwned},
	{"not-found", testNotFound},
	{"overwrite", testOverwrite},
	{"if-absent", testIfAbsent},
	{"if-absent-race", testIfAbsentRace},
	{"if-absent-after-delete", testIfAbsentAfterDelete},
	{"wrong-checksum", testWrongChecksum},
	{"short-source", testShortSource},
	{"failing-source", testFailingSource},
	{"source-not-used-after-return", testSourceAfterReturn},
	{"head", testHead},
	{"list-sorted", testListSorted},
	{"list-prefix", testListPrefix},
	{"list-after", testListAfter},
	{"many-keys", testManyKeys},
	{"list-stops", testListStops},
	{"delete", testDelete},
	{"invalid-keys", testInvalidKeys},
	{"cancelled", testCancelled},
	{"concurrent", testConcurrent},
	{"visible-at-once", testVisibleAtOnce},
	{"one-writer-wins", testOneWriterWins},
	{"list-under-change", testListUnderChange},
	{"list-page-edges", testListPageEdges},
	{"list-agrees-with-head", testListAgreesWithHead},
	{"delete-verdicts", testDeleteVerdicts},
	{"refused-leaves-nothing", testRefusedLeavesNothing},
	{"cancelled-put", testCancelledPut},
	{"empty-object", testEmptyObject},
	{"long-keys", testLongKeys},
	{"ranges-at-once", testRangesAtOnce},
	{"replace-is-newer", testReplaceIsNewer},
}

func put(t *testing.T, s tier.ObjectStore, key string, data []byte, o tier.PutOptions) {
	t.Helper()
	if err := s.Put(t.Context(), key, bytes.NewReader(data), int64(len(data)), o); err != nil {
		t.Fatalf("Put(%s): %v", key, err)
	}
}

func get(t *testing.T, s tier.ObjectStore, key string, n int) []byte {
	t.Helper()
	b, err := s.GetRange(t.Context(), key, 0, int64(n))
	if err != nil {
		t.Fatalf("GetRange(%s): %v", key, err)
	}
	return b
}

func noise(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func testPutGet(t *testing.T, s tier.ObjectStore) {
	data := noise(1000, 1)
	put(t, s, "a/b/c", data, tier.PutOptions{CRC32C: crc32.Checksum(data, castagnoli), HasCRC32C: true})
	if got := get(t, s, "a/b/c", len(data)); !bytes.Equal(got, data) {
		t.Error("read other bytes than were written")
	}
}

func testSizes(t *testing.T, s tier.ObjectStore) {
	for _, n := range []int{1, 4095, 4096, 4097, 256<<10 - 1, 256 << 10, 256<<10 + 1, 5<<20 + 3} {
		key := fmt.Sprintf("size/%d", n)
		data := noise(n, uint64(n))
		put(t, s, key, data, tier.PutOptions{IfAbsent: s.Capabilities().IfAbsent, CRC32C: crc32.Checksum(data, castagnoli), HasCRC32C: true})
		if got := get(t, s, key, n); !bytes.Equal(got, data) {
			t.Errorf("size %d: read other bytes than were written", n)
		}
		if info, err := s.Head(t.Context(), key); err != nil || info.Size != int64(n) {
			t.Errorf("Head of %d bytes: %+v, %v", n, info, err)
		}
	}
	if err := s.Put(t.Context(), "size/0", bytes.NewReader(nil), 0, tier.PutOptions{}); err != nil {
		t.Errorf("Put of an empty object: %v", err)
	}
	if info, err := s.Head(t.Context(), "size/0"); err != nil || info.Size != 0 {
		t.Errorf("Head of an empty object: %+v, %v", info, err)
	}
}

func testRangeExact(t *testing.T, s tier.ObjectStore) {
	data := noise(10000, 2)
	put(t, s, "k", data, tier.PutOptions{})
	for _, r := range [][2]int64{{0, 1}, {0, 10000}, {1, 9999}, {9999, 1}, {4096, 4096}, {17, 3}} {
		b, err := s.GetRange(t.Context(), "k", r[0], r[1])
		if err != nil || !bytes.Equal(b, data[r[0]:r[0]+r[1]]) {
			t.Errorf("GetRange(%d, %d): %d bytes, %v", r[0], r[1], len(b), err)
		}
	}
	for _, r := range [][2]int64{{0, 10001}, {9999, 2}, {10000, 1}, {20000, 1}, {-1, 1}, {0, 0}, {0, -1}, {1, 1<<63 - 1}, {1<<63 - 1, 1}} {
		if b, err := s.GetRange(t.Context(), "k", r[0], r[1]); !errors.Is(err, tier.ErrRange) {
			t.Errorf("GetRange(%d, %d): %d bytes, %v, want ErrRange", r[0], r[1], len(b), err)
		}
	}
}

func testRangeOwned(t *testing.T, s tier.ObjectStore) {
	data := noise(100, 3)
	source := bytes.Clone(data)
	put(t, s, "k", source, tier.PutOptions{})
	clear(source)
	b := get(t, s, "k", 100)
	clear(b)
	if !bytes.Equal(get(t, s, "k", 100), data) {
		t.Error("the object shares memory with its writer or reader")
	}
}

func testNotFound(t *testing.T, s tier.ObjectStore) {
	put(t, s, "dir/object", []byte("x"), tier.PutOptions{})
	for _, key := range []string{"none", "dir/none", "dir/object2", "dir"} {
		if _, err := s.GetRange(t.Context(), key, 0, 1); !errors.Is(err, tier.ErrNotFound) {
			t.Errorf("GetRange(%s): %v, want ErrNotFound", key, err)
		}
		if _, err := s.Head(t.Context(), key); !errors.Is(err, tier.ErrNotFound) {
			t.Errorf("Head(%s): %v, want ErrNotFound", key, err)
		}
	}
}

func testOverwrite(t *testing.T, s tier.ObjectStore) {
	put(t, s, "k", []byte("first"), tier.PutOptions{})
	put(t, s, "k", []byte("second"), tier.PutOptions{})
	if got := get(t, s, "k", 6); string(got) != "second" {
		t.Errorf("after an unconditional Put: %q", got)
	}
}

func needIfAbsent(t *testing.T, s tier.ObjectStore) {
	if !s.Capabilities().IfAbsent {
		t.Skip("the store does not claim conditional writes")
	}
}

func testIfAbsent(t *testing.T, s tier.ObjectStore) {
	needIfAbsent(t, s)
	put(t, s, "a/k", []byte("first"), tier.PutOptions{IfAbsent: true})
	for _, data := range []string{"again", "first"} {
		err := s.Put(t.Context(), "a/k", strings.NewReader(data), int64(len(data)), tier.PutOptions{IfAbsent: true})
		if !errors.Is(err, tier.ErrExists) {
			t.Errorf("second conditional Put: %v, want ErrExists", err)
		}
	}
	if got := get(t, s, "a/k", 5); string(got) != "first" {
		t.Errorf("after a refused Put: %q", got)
	}
}

func testIfAbsentRace(t *testing.T, s tier.ObjectStore) {
	needIfAbsent(t, s)
	for round := range 3 {
		key := fmt.Sprintf("race/%d", round)
		var wg sync.WaitGroup
		var winner atomic.Int32
		var wins atomic.Int32
		for i := range 16 {
			wg.Go(func() {
				data := bytes.Repeat([]byte{byte(i)}, 5000)
				for {
					err := s.Put(t.Context(), key, bytes.NewReader(data), int64(len(data)), tier.PutOptions{IfAbsent: true})
					switch {
					case err == nil:
						winner.Store(int32(i))
						wins.Add(1)
						return
					case errors.Is(err, tier.ErrExists):
						return
					case errors.Is(err, tier.ErrConflict):
						continue
					}
					t.Errorf("Put: %v", err)
					return
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 {
			t.Fatalf("%d conditional writers of one key won", wins.Load())
		}
		if got := get(t, s, key, 5000); !bytes.Equal(got, bytes.Repeat([]byte{byte(winner.Load())}, 5000)) {
			t.Error("the object is not that of the writer who was told that it won")
		}
	}
}

func testIfAbsentAfterDelete(t *testing.T, s tier.ObjectStore) {
	needIfAbsent(t, s)
	put(t, s, "k", []byte("same"), tier.PutOptions{IfAbsent: true})
	if r := s.Delete(t.Context(), []string{"k"}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	put(t, s, "k", []byte("same"), tier.PutOptions{IfAbsent: true})
}

func testWrongChecksum(t *testing.T, s tier.ObjectStore) {
	if !s.Capabilities().CRC32C {
		t.Skip("the store does not claim to check checksums")
	}
	err := s.Put(t.Context(), "k", strings.NewReader("data"), 4, tier.PutOptions{CRC32C: 1, HasCRC32C: true})
	if !errors.Is(err, tier.ErrCorrupt) {
		t.Errorf("Put with a wrong checksum: %v, want ErrCorrupt", err)
	}
	if _, err := s.Head(t.Context(), "k"); !errors.Is(err, tier.ErrNotFound) {
		t.Errorf("the refused object is there: %v", err)
	}
}

func testShortSource(t *testing.T, s tier.ObjectStore) {
	err := s.Put(t.Context(), "k", strings.NewReader("data"), 5, tier.PutOptions{})
	if err == nil {
		t.Error("Put of a source that is shorter than announced succeeded")
	}
	if _, err := s.Head(t.Context(), "k"); !errors.Is(err, tier.ErrNotFound) {
		t.Errorf("an object of a short source is there: %v", err)
	}
	put(t, s, "long", []byte("more than announced")[:4], tier.PutOptions{})
	if err := s.Put(t.Context(), "bounded", strings.NewReader("more than announced"), 4, tier.PutOptions{}); err != nil {
		t.Errorf("Put of the first bytes of a longer source: %v", err)
	} else if got := get(t, s, "bounded", 4); string(got) != "more" {
		t.Errorf("bounded source: %q", got)
	}
}

type failing struct{ err error }

func (f failing) ReadAt(b []byte, off int64) (int, error) { return 0, f.err }

func testFailingSource(t *testing.T, s tier.ObjectStore) {
	cause := errors.New("source broke")
	err := s.Put(t.Context(), "k", failing{cause}, 10, tier.PutOptions{})
	if !errors.Is(err, cause) {
		t.Errorf("Put of a failing source: %v, want its error", err)
	}
	if _, err := s.Head(t.Context(), "k"); !errors.Is(err, tier.ErrNotFound) {
		t.Errorf("an object of a failing source is there: %v", err)
	}
}

type watched struct {
	r    io.ReaderAt
	done atomic.Bool
	late atomic.Bool
}

func (w *watched) ReadAt(b []byte, off int64) (int, error) {
	if w.done.Load() {
		w.late.Store(true)
	}
	return w.r.ReadAt(b, off)
}

func testSourceAfterReturn(t *testing.T, s tier.ObjectStore) {
	data := noise(1<<20, 9)
	w := &watched{r: bytes.NewReader(data)}
	if err := s.Put(t.Context(), "k", w, int64(len(data)), tier.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	w.done.Store(true)
	get(t, s, "k", len(data))
	if w.late.Load() {
		t.Error("the store read the source after Put had returned")
	}
}

func testHead(t *testing.T, s tier.ObjectStore) {
	data := noise(77, 4)
	put(t, s, "x/y", data, tier.PutOptions{})
	info, err := s.Head(t.Context(), "x/y")
	if err != nil || info.Key != "x/y" || info.Size != 77 || info.LastModified.IsZero() {
		t.Errorf("Head: %+v, %v", info, err)
	}
	if info.HasCRC32C && info.CRC32C != crc32.Checksum(data, castagnoli) {
		t.Errorf("Head: checksum %08x", info.CRC32C)
	}
}

func keysOf(t *testing.T, s tier.ObjectStore, prefix, after string) []string {
	t.Helper()
	var keys []string
	for info, err := range s.List(t.Context(), prefix, after) {
		if err != nil {
			t.Fatalf("List(%q, %q): %v", prefix, after, err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

var listed = []string{
	"a", "a-b", "a.c", "a0/x", "b/0", "b/1", "b/10", "b/2/x", "b/2/y", "b/2-3", "b0", "c/d/e/f", "z",
}

func fill(t *testing.T, s tier.ObjectStore) []string {
	t.Helper()
	for i, key := range listed {
		put(t, s, key, noise(i+1, uint64(i)), tier.PutOptions{})
	}
	sorted := slices.Clone(listed)
	slices.Sort(sorted)
	return sorted
}

func testListSorted(t *testing.T, s tier.ObjectStore) {
	if keys := keysOf(t, s, "", ""); len(keys) != 0 {
		t.Errorf("List of an empty store: %q", keys)
	}
	want := fill(t, s)
	if got := keysOf(t, s, "", ""); !slices.Equal(got, want) {
		t.Errorf("List: %q, want %q", got, want)
	}
	for info, err := range s.List(t.Context(), "", "") {
		if i := slices.Index(listed, info.Key); err != nil || info.Size != int64(i+1) || info.LastModified.IsZero() {
			t.Errorf("List: %+v, %v", info, err)
		}
	}
}

func testListPrefix(t *testing.T, s tier.ObjectStore) {
	all := fill(t, s)
	for _, prefix := range []string{"a", "a-", "b", "b/", "b/1", "b/2", "b/2/", "c/d/e/f", "c/d/", "none", "zz", "b/2/x/"} {
		var want []string
		for _, key := range all {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		if got := keysOf(t, s, prefix, ""); !slices.Equal(got, want) {
			t.Errorf("List(%q): %q, want %q", prefix, got, want)
		}
	}
}

func testListAfter(t *testing.T, s tier.ObjectStore) {
	all := fill(t, s)
	for _, prefix := range []string{"", "b", "b/2"} {
		for _, after := range append([]string{"0", "b/2/", "b/2/xx", "zzz", "c/d"}, all...) {
			var want []string
			for _, key := range all {
				if strings.HasPrefix(key, prefix) && key > after {
					want = append(want, key)
				}
			}
			if got := keysOf(t, s, prefix, after); !slices.Equal(got, want) {
				t.Errorf("List(%q, %q): %q, want %q", prefix, after, got, want)
			}
		}
	}
}

func testManyKeys(t *testing.T, s tier.ObjectStore) {
	const n = 1100 // more than a page and a batch of S3
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("p/%d/%05d", i%3, i))
		put(t, s, want[i], []byte{1}, tier.PutOptions{})
	}
	slices.Sort(want)
	if got := keysOf(t, s, "p/", ""); !slices.Equal(got, want) {
		t.Errorf("List: %d keys of %d, sorted: %v", len(got), n, slices.IsSorted(got))
	}
	for _, r := range s.Delete(t.Context(), want) {
		if r.Err != nil {
			t.Fatalf("Delete(%s): %v", r.Key, r.Err)
		}
	}
	if left := keysOf(t, s, "p/", ""); len(left) != 0 {
		t.Errorf("after Delete: %d keys", len(left))
	}
}

func testListStops(t *testing.T, s tier.ObjectStore) {
	fill(t, s)
	seq := s.List(t.Context(), "", "")
	for range 2 { // an iterator can be used again
		n := 0
		for range seq {
			if n++; n == 3 {
				break
			}
		}
	}
}

func testDelete(t *testing.T, s tier.ObjectStore) {
	put(t, s, "d/a", []byte("x"), tier.PutOptions{})
	put(t, s, "d/b", []byte("x"), tier.PutOptions{})
	keys := []string{"d/a", "d/none", "never/was"}
	results := s.Delete(t.Context(), keys)
	if len(results) != len(keys) {
		t.Fatalf("Delete of %d keys gave %d results", len(keys), len(results))
	}
	for i, r := range results {
		if r.Key != keys[i] || r.Err != nil {
			t.Errorf("Delete(%s): %q, %v", keys[i], r.Key, r.Err)
		}
	}
	if got := keysOf(t, s, "d/", ""); !slices.Equal(got, []string{"d/b"}) {
		t.Errorf("after Delete: %q", got)
	}
	if _, err := s.Head(t.Context(), "d/a"); !errors.Is(err, tier.ErrNotFound) {
		t.Errorf("Head of a deleted object: %v", err)
	}
	if r := s.Delete(t.Context(), nil); len(r) != 0 {
		t.Errorf("Delete of nothing: %v", r)
	}
}

func testInvalidKeys(t *testing.T, s tier.ObjectStore) {
	put(t, s, "safe", []byte("x"), tier.PutOptions{})
	for _, key := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/.", "a b", "a\\b", "a\x00b", "ä", "a:b", strings.Repeat("k", tier.MaxKeyBytes+1)} {
		if err := s.Put(t.Context(), key, strings.NewReader("x"), 1, tier.PutOptions{}); !errors.Is(err, tier.ErrInvalidKey) {
			t.Errorf("Put(%q): %v, want ErrInvalidKey", key, err)
		}
		if _, err := s.GetRange(t.Context(), key, 0, 1); !errors.Is(err, tier.ErrInvalidKey) {
			t.Errorf("GetRange(%q): %v, want ErrInvalidKey", key, err)
		}
		if _, err := s.Head(t.Context(), key); !errors.Is(err, tier.ErrInvalidKey) {
			t.Errorf("Head(%q): %v, want ErrInvalidKey", key, err)
		}
		if r := s.Delete(t.Context(), []string{key}); !errors.Is(r[0].Err, tier.ErrInvalidKey) {
			t.Errorf("Delete(%q): %v, want ErrInvalidKey", key, r[0].Err)
		}
	}
}

func testCancelled(t *testing.T, s tier.ObjectStore) {
	put(t, s, "k", []byte("x"), tier.PutOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Put(ctx, "new", strings.NewReader("x"), 1, tier.PutOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Put: %v, want the context's error", err)
	}
	if _, err := s.GetRange(ctx, "k", 0, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("GetRange: %v, want the context's error", err)
	}
	if _, err := s.Head(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("Head: %v, want the context's error", err)
	}
	if r := s.Delete(ctx, []string{"k"}); !errors.Is(r[0].Err, context.Canceled) {
		t.Errorf("Delete: %v, want the context's error", r[0].Err)
	}
	for _, err := range s.List(ctx, "", "") {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("List: %v, want the context's error", err)
		}
	}
	if got := get(t, s, "k", 1); string(got) != "x" {
		t.Errorf("after cancelled calls: %q", got)
	}
}

func testConcurrent(t *testing.T, s tier.ObjectStore) {
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 20 {
				key := fmt.Sprintf("w%d/%d", w%4, w*100+i)
				data := noise(3000+i, uint64(w*100+i))
				if err := s.Put(t.Context(), key, bytes.NewReader(data), int64(len(data)), tier.PutOptions{}); err != nil {
					t.Errorf("Put: %v", err)
					return
				}
				b, err := s.GetRange(t.Context(), key, 100, 1000)
				if err != nil || !bytes.Equal(b, data[100:1100]) {
					t.Errorf("GetRange after Put: %v", err)
				}
				if i%3 == 0 {
					if r := s.Delete(t.Context(), []string{key}); r[0].Err != nil {
						t.Errorf("Delete: %v", r[0].Err)
					}
				}
			}
		})
	}
	wg.Wait()
	if got := len(keysOf(t, s, "", "")); got != 8*13 {
		t.Errorf("%d objects at the end, want %d", got, 8*13)
	}
}
