package tier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A stubStore answers with its functions.
type stubStore struct {
	put  func(context.Context, io.ReaderAt) error
	get  func(context.Context) ([]byte, error)
	list func(context.Context) iter.Seq2[ObjectInfo, error]
}

func (s *stubStore) Put(ctx context.Context, _ string, r io.ReaderAt, _ int64, _ PutOptions) error {
	return s.put(ctx, r)
}
func (s *stubStore) GetRange(ctx context.Context, _ string, _, _ int64) ([]byte, error) {
	return s.get(ctx)
}
func (s *stubStore) Head(ctx context.Context, _ string) (ObjectInfo, error) {
	_, err := s.get(ctx)
	return ObjectInfo{}, err
}
func (s *stubStore) List(ctx context.Context, _, _ string) iter.Seq2[ObjectInfo, error] {
	return s.list(ctx)
}
func (s *stubStore) Delete(ctx context.Context, keys []string) []DeleteResult {
	_, err := s.get(ctx)
	results := make([]DeleteResult, len(keys))
	for i, key := range keys {
		results[i] = DeleteResult{key, err}
	}
	return results
}
func (s *stubStore) Capabilities() Capabilities { return Capabilities{MaxPutBytes: 7} }

func newStub() (*guard, *stubStore) {
	s := &stubStore{}
	return newGuard(s, slog.New(slog.DiscardHandler)), s
}

// TestGuardLease: once Put has returned, by itself or because it was given up, the
// store can't read the source, and a read that is under way is waited for.
func TestGuardLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := newStub()
		hang := make(chan struct{})
		var reads atomic.Int32
		var late error
		s.put = func(_ context.Context, r io.ReaderAt) error {
			b := make([]byte, 1)
			if _, err := r.ReadAt(b, 0); err != nil {
				t.Error(err)
			}
			<-hang
			_, late = r.ReadAt(b, 0)
			return late
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := g.Put(ctx, "k", readerFunc(func() { reads.Add(1) }), 1, PutOptions{})
		if took := time.Since(began); took != time.Minute+storeGrace {
			t.Errorf("given up after %v", took)
		}
		if !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Put: %v", err)
		}
		if n := g.stats(); n.hung != 1 || n.abandoned != 1 {
			t.Errorf("%+v", n)
		}
		close(hang)
		synctest.Wait()
		if reads.Load() != 1 || late == nil {
			t.Errorf("%d reads of the source, the last: %v", reads.Load(), late)
		}
		if n := g.stats(); n.hung != 0 || n.abandoned != 1 || n.panics != 0 {
			t.Errorf("%+v", n)
		}
	})
}

type readerFunc func()

func (f readerFunc) ReadAt(p []byte, _ int64) (int, error) {
	f()
	return len(p), nil
}

// TestGuardLimit: of each kind only so many calls may hang; then the rest is refused
// at once, and the other kinds are not.
func TestGuardLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := newStub()
		hang := make(chan struct{})
		s.get = func(context.Context) ([]byte, error) { <-hang; return []byte("late"), nil }
		s.put = func(context.Context, io.ReaderAt) error { return nil }
		for i := range hungCalls {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			b, err := g.GetRange(ctx, "k", 0, 4)
			cancel()
			if b != nil || !errors.Is(err, ErrUnavailable) || !errors.Is(err, errHung) {
				t.Fatalf("call %d: %q, %v", i, b, err)
			}
		}
		began := time.Now()
		if _, err := g.GetRange(t.Context(), "k", 0, 4); !errors.Is(err, ErrUnavailable) || time.Since(began) > 0 {
			t.Errorf("one more: %v after %v", err, time.Since(began))
		}
		if err := g.Put(t.Context(), "k", strings.NewReader(""), 0, PutOptions{}); err != nil {
			t.Errorf("another kind: %v", err)
		}
		close(hang)
		synctest.Wait()
		if b, err := g.GetRange(t.Context(), "k", 0, 4); string(b) != "late" || err != nil {
			t.Errorf("when they have returned: %q, %v", b, err)
		}
	})
}

// TestGuardErrors: what a panic or an ended goroutine means to the caller.
func TestGuardErrors(t *testing.T) {
	g, s := newStub()
	s.get = func(context.Context) ([]byte, error) { panic("a bug") }
	s.put = func(context.Context, io.ReaderAt) error { panic(fmt.Errorf("a bug")) }
	if err := g.Put(t.Context(), "k", strings.NewReader(""), 0, PutOptions{}); !errors.Is(err, ErrUnknownOutcome) || !strings.Contains(err.Error(), "a bug") {
		t.Errorf("Put: %v", err)
	}
	if _, err := g.GetRange(t.Context(), "k", 0, 1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("GetRange: %v", err)
	}
	if _, err := g.Head(t.Context(), "k"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Head: %v", err)
	}
	results := g.Delete(t.Context(), []string{"a", "b"})
	for i, key := range []string{"a", "b"} {
		if len(results) != 2 || results[i].Key != key || !errors.Is(results[i].Err, ErrUnknownOutcome) {
			t.Errorf("Delete: %v", results)
		}
	}
	s.list = func(context.Context) iter.Seq2[ObjectInfo, error] {
		return func(yield func(ObjectInfo, error) bool) {
			yield(ObjectInfo{Key: "a"}, nil)
			panic("a bug")
		}
	}
	var keys []string
	var last error
	for info, err := range g.List(t.Context(), "", "") {
		keys, last = append(keys, info.Key), err
	}
	if len(keys) != 2 || !errors.Is(last, ErrUnavailable) {
		t.Errorf("List: %q, %v", keys, last)
	}
	if n := g.stats(); n.panics != 5 || n.hung != 0 {
		t.Errorf("%+v", n)
	}
}

// TestGuardList: a listing gives what the store gives, ends when the caller has
// enough, and when the store does not go on.
func TestGuardList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := newStub()
		cause := errors.New("no more")
		var ended atomic.Int32
		s.list = func(context.Context) iter.Seq2[ObjectInfo, error] {
			return func(yield func(ObjectInfo, error) bool) {
				defer ended.Add(1)
				for i := range 5 {
					if !yield(ObjectInfo{Size: int64(i)}, nil) {
						return
					}
				}
				yield(ObjectInfo{}, cause)
			}
		}
		seq := g.List(t.Context(), "", "")
		for range 2 {
			n := 0
			var last error
			for info, err := range seq {
				if last = err; err == nil && info.Size != int64(n) {
					t.Errorf("%d comes as number %d", info.Size, n)
				}
				n++
			}
			if n != 6 || last != cause {
				t.Errorf("%d items, %v", n, last)
			}
		}
		for range seq {
			break
		}
		if ended.Load() != 3 {
			t.Errorf("%d listings have ended", ended.Load())
		}
		hang := make(chan struct{})
		s.list = func(context.Context) iter.Seq2[ObjectInfo, error] {
			return func(yield func(ObjectInfo, error) bool) {
				if yield(ObjectInfo{}, nil) {
					<-hang
					yield(ObjectInfo{}, nil)
				}
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n := 0
		var last error
		for _, err := range g.List(ctx, "", "") {
			n, last = n+1, err
		}
		if n != 2 || !errors.Is(last, ErrUnavailable) || !errors.Is(last, context.DeadlineExceeded) {
			t.Errorf("%d items, %v", n, last)
		}
		close(hang)
		synctest.Wait()
		if g.stats().hung != 0 {
			t.Errorf("%+v", g.stats())
		}
	})
}
