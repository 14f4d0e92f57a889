package tier_test

import (
	"context"
	"errors"
	"io"
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
)

// A sink is a store that reads what it is given in small pieces and keeps only the
// owner object. It notes the most memory in use.
type sink struct {
	*memstore.Store
	mu   sync.Mutex
	peak uint64
}

func (s *sink) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	if strings.HasSuffix(key, "owner") {
		return s.Store.Put(ctx, key, r, size, o)
	}
	buf := make([]byte, 64<<10)
	for at := int64(0); at < size; at += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), size-at)]
		if _, err := r.ReadAt(b, at); err != nil {
			return err
		}
	}
	var m runtime.MemStats
	runtime.GC() // what is in use, not what waits for a collection
	runtime.ReadMemStats(&m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peak = max(s.peak, m.HeapAlloc)
	return nil
}

// TestUploadMemory: uploads stream. What is in memory is bounded by chunks under
// way, not by what is uploaded.
func TestUploadMemory(t *testing.T) {
	const total, segment = 48 << 20, 1 << 20
	dir := t.TempDir()
	hot, err := log.Open(t.Context(), path.Join(dir, "log"), log.Options{Partition: testPartition, SegmentBytes: segment})
	if err != nil {
		t.Fatal(err)
	}
	events, err := tier.OpenLocalEvents(t.Context(), path.Join(dir, "events"), tier.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	store := &sink{Store: memstore.New()}
	uploaded := make(chan tier.UploadedInfo, total/segment+1)
	tl, err := tier.Open(t.Context(), hot, tier.Options{Store: store, Events: events, Hooks: tier.Hooks{
		Uploaded: func(i tier.UploadedInfo) { uploaded <- i },
	}})
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	v := make([]byte, 128<<10)
	for at := 0; at < total; at += len(v) {
		if _, err := tl.AppendRecords(t.Context(), log.Record{Value: v}); err != nil {
			t.Fatal(err)
		}
	}
	for end := log.Offset(0); end < hot.End()*9/10; {
		end = (<-uploaded).End
	}
	store.mu.Lock()
	peak := store.peak
	store.mu.Unlock()
	t.Logf("peak of %d KiB over %d KiB", peak>>10, before.HeapAlloc>>10)
	if peak > before.HeapAlloc+24<<20 {
		t.Errorf("%d KiB in use during uploads, %d KiB before", peak>>10, before.HeapAlloc>>10)
	}
	if err := errors.Join(tl.Close(), events.Close(), hot.Close()); err != nil {
		t.Error(err)
	}
}
