package tiertest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// TestStore: the wrapper without faults is a sound store, also with small pages.
func TestStore(t *testing.T) {
	for _, page := range []int{0, 7} {
		t.Run(fmt.Sprintf("page=%d", page), func(t *testing.T) {
			tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore {
				s := tiertest.NewFaulty(memstore.New())
				s.SetPageKeys(page)
				return s
			})
		})
	}
}

// A broken store has one fault, for the suite to find.
type broken struct {
	*memstore.Store
	fault string
	last  atomic.Pointer[string] // key
}

func (b *broken) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	defer b.last.Store(&key)
	switch b.fault {
	case "condition is ignored":
		o.IfAbsent = false
	case "checksum is ignored":
		o.HasCRC32C = false
	case "replacement is a mixture":
		old, err := b.GetRange(ctx, key, 0, size)
		data := make([]byte, size)
		if _, rerr := r.ReadAt(data, 0); rerr == nil && err == nil {
			copy(data[size/2:], old[size/2:])
			return b.Store.Put(ctx, key, bytes.NewReader(data), size, tier.PutOptions{})
		}
	case "half of a cut object stays":
		data := make([]byte, size)
		if _, err := r.ReadAt(data, 0); err == nil && ctx.Err() != nil {
			_ = b.Store.Put(context.WithoutCancel(ctx), key, bytes.NewReader(data), size/2, tier.PutOptions{})
		}
	case "long keys are cut":
		key = key[:min(len(key), 255)]
	}
	return b.Store.Put(ctx, key, r, size, o)
}

func (b *broken) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	info, err := b.Store.Head(ctx, key)
	switch {
	case err != nil:
	case b.fault == "ranges are clipped" && off >= 0 && n > 0 && off < info.Size:
		n = min(n, info.Size-off)
	case b.fault == "nothing is a range" && info.Size == 0:
		return nil, nil
	}
	return b.Store.GetRange(ctx, key, off, n)
}

func (b *broken) Head(ctx context.Context, key string) (tier.ObjectInfo, error) {
	info, err := b.Store.Head(ctx, key)
	switch b.fault {
	case "sizes differ":
		info.Size++
	case "clock goes backwards":
		info.LastModified = time.Unix(2_000_000_000-info.Size, 0)
	}
	return info, err
}

func (b *broken) List(ctx context.Context, prefix, after string) iter.Seq2[tier.ObjectInfo, error] {
	return func(yield func(tier.ObjectInfo, error) bool) {
		n := 0
		for info, err := range b.Store.List(ctx, prefix, after) {
			last := b.last.Load()
			if n++; b.fault == "listing is late" && last != nil && info.Key == *last || b.fault == "page ends are lost" && n%15 == 0 {
				continue
			}
			if !yield(info, err) {
				return
			}
		}
	}
}

func (b *broken) Delete(ctx context.Context, keys []string) []tier.DeleteResult {
	switch b.fault {
	case "deletion is a lie":
		results := make([]tier.DeleteResult, len(keys))
		for i, key := range keys {
			results[i].Key = key
		}
		return results
	case "verdicts are shuffled":
		results := b.Store.Delete(ctx, keys)
		slices.Reverse(results)
		return results
	case "one bad key spoils all":
		for _, key := range keys {
			if err := tier.CheckKey(key); err != nil {
				results := make([]tier.DeleteResult, len(keys))
				for i, k := range keys {
					results[i] = tier.DeleteResult{Key: k, Err: err}
				}
				return results
			}
		}
	}
	return b.Store.Delete(ctx, keys)
}

// faults says which test of the suite finds which fault.
var faults = map[string]string{
	"condition is ignored":       "if-absent",
	"checksum is ignored":        "refused-leaves-nothing",
	"replacement is a mixture":   "one-writer-wins",
	"half of a cut object stays": "cancelled-put",
	"long keys are cut":          "long-keys",
	"ranges are clipped":         "range-exact",
	"nothing is a range":         "empty-object",
	"sizes differ":               "list-agrees-with-head",
	"clock goes backwards":       "replace-is-newer",
	"listing is late":            "visible-at-once",
	"page ends are lost":         "list-page-edges",
	"deletion is a lie":          "visible-at-once",
	"verdicts are shuffled":      "delete-verdicts",
	"one bad key spoils all":     "delete-verdicts",
}

// faultVariable says which fault TestBroken has.
const faultVariable = "CORDWOOD_BROKEN_STORE"

// TestSuiteNotices: the suite fails for each broken store, in a process of its own.
func TestSuiteNotices(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for fault, test := range faults {
		t.Run(strings.ReplaceAll(fault, " ", "-"), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), exe, "-test.short", "-test.run", "^TestBroken$/^"+test+"$")
			cmd.Env = append(os.Environ(), faultVariable+"="+fault)
			out, err := cmd.CombinedOutput()
			if _, failed := errors.AsType[*exec.ExitError](err); !failed || !bytes.Contains(out, []byte("--- FAIL: TestBroken/"+test)) {
				t.Errorf("%v, and the test %s says: %s", err, test, out)
			}
		})
	}
}

// TestBroken is what TestSuiteNotices runs.
func TestBroken(t *testing.T) {
	fault := os.Getenv(faultVariable)
	if fault == "" {
		return
	}
	tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore { return &broken{Store: memstore.New(), fault: fault} })
}

// TestFaults holds what each fault of the wrapper does.
func TestFaults(t *testing.T) {
	data := bytes.Repeat([]byte("x"), 1000)
	put := func(ctx context.Context, s tier.ObjectStore, key string) error {
		return s.Put(ctx, key, bytes.NewReader(data), int64(len(data)), tier.PutOptions{IfAbsent: true})
	}
	once := func(kind string, f tiertest.Fault) func(tiertest.Op) tiertest.Fault {
		return func(op tiertest.Op) tiertest.Fault {
			if op.Kind == kind && op.N == 0 {
				return f
			}
			return tiertest.Fault{}
		}
	}
	hang := make(chan struct{}) // of each test its own, below
	tests := []struct {
		name   string
		fault  tiertest.Fault
		want   error
		stored bool
		took   time.Duration // of a second
	}{
		{name: "slow", fault: tiertest.Fault{BytesPerSecond: 2000}, stored: true, took: 500 * time.Millisecond},
		{name: "too slow", fault: tiertest.Fault{BytesPerSecond: 10}, want: context.DeadlineExceeded, took: time.Second},
		{name: "stalled in the middle", fault: tiertest.Fault{After: 300, Stall: make(chan struct{})}, want: context.DeadlineExceeded, took: time.Second},
		{name: "fails in the middle", fault: tiertest.Fault{After: 300, Err: tier.ErrUnavailable}, want: tier.ErrUnavailable},
		{name: "hangs", fault: tiertest.Fault{Hang: hang}, want: context.DeadlineExceeded, took: time.Minute},
		{name: "hangs in the middle", fault: tiertest.Fault{After: 300, Hang: hang}, want: context.DeadlineExceeded, took: time.Minute},
		{name: "reply lost", fault: tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: true}, want: tier.ErrUnknownOutcome, stored: true},
		{name: "409", fault: tiertest.Fault{Err: tier.ErrConflict}, want: tier.ErrConflict},
		{name: "412 for its own", fault: tiertest.Fault{Err: tier.ErrExists, Done: true}, want: tier.ErrExists, stored: true},
	}
	for _, test := range tests {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memstore.New()
				s := tiertest.NewFaulty(mem)
				f := test.fault
				if f.Hang != nil {
					hang := make(chan struct{})
					f.Hang = hang
					time.AfterFunc(time.Minute, func() { close(hang) })
				}
				if f.Stall != nil {
					f.Stall = make(chan struct{})
				}
				s.SetFault(once("put", f))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				err := put(ctx, s, "k")
				if took := time.Since(began); !errors.Is(err, test.want) || mem.Len() == 1 != test.stored || took != test.took {
					t.Errorf("%v after %v, %d objects; want %v after %v", err, took, mem.Len(), test.want, test.took)
				}
				if n := s.Active(); n != 0 {
					t.Errorf("%d operations are under way", n)
				}
			})
		})
	}
	t.Run("states", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := tiertest.NewFaulty(memstore.New())
			s.SetFull(true)
			if err := put(t.Context(), s, "k"); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("full: %v", err)
			}
			s.SetFull(false)
			s.SetThrottled(time.Minute)
			err := put(t.Context(), s, "k")
			if _, ok := errors.AsType[*tier.ThrottledError](err); !ok {
				t.Errorf("throttled: %v", err)
			}
			time.Sleep(time.Minute)
			for _, key := range []string{"a", "b", "c", "d", "e"} {
				if err := put(t.Context(), s, key); err != nil {
					t.Errorf("a minute later: %v", err)
				}
			}
			if _, err := s.GetRange(t.Context(), "a", 0, 10); err != nil {
				t.Error(err)
			}
			if put, got := s.Bytes(); put != 5000 || got != 10 {
				t.Errorf("%d and %d bytes", put, got)
			}
			s.SetPageKeys(2)
			n := 0
			for range s.List(t.Context(), "", "") {
				n++
			}
			if c := s.Counts(); n != 5 || c.List != 3 {
				t.Errorf("%d keys, %+v", n, c)
			}
			s.SetFault(func(op tiertest.Op) tiertest.Fault {
				if op.Kind == "delete" && op.Key == "b" || op.Kind == "list" && op.N == 4 {
					return tiertest.Fault{Err: tier.ErrDenied}
				}
				return tiertest.Fault{}
			})
			for _, r := range s.Delete(t.Context(), []string{"a", "b", "c"}) {
				if errors.Is(r.Err, tier.ErrDenied) != (r.Key == "b") {
					t.Errorf("delete %s: %v", r.Key, r.Err)
				}
			}
			n = 0
			var last error
			for _, err := range s.List(t.Context(), "", "") { // b, d; e fails
				n, last = n+1, err
			}
			if n != 3 || !errors.Is(last, tier.ErrDenied) {
				t.Errorf("%d results of a list whose second page fails: %v", n, last)
			}
		})
	})
	t.Run("panic", func(t *testing.T) {
		s := tiertest.NewFaulty(memstore.New())
		for _, after := range []int64{0, 300} {
			s.SetFault(func(tiertest.Op) tiertest.Fault { return tiertest.Fault{Panic: "a bug", After: after} })
			func() {
				defer func() {
					if recover() != "a bug" {
						t.Error("no panic")
					}
				}()
				_ = put(t.Context(), s, "k")
			}()
		}
		if n := s.Active(); n != 0 {
			t.Errorf("%d operations are under way", n)
		}
	})
}
