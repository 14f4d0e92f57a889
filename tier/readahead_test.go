package tier_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// newLarge makes a rig with ranges of several chunks.
func newLarge(t *testing.T, o tier.Options) *rig {
	t.Helper()
	mem := memstore.New()
	r := &rig{t: t, fs: logtest.NewFS(1), mem: mem, store: tiertest.NewFaulty(mem), segmentBytes: 24 << 10}
	r.open(o)
	return r
}

// parts counts the chunks and tails of what is in the store.
func (r *rig) parts() (chunks, tails int) {
	state, _ := r.tier.Partition().State()
	for _, x := range state.Ranges() {
		// A chunk ends before the batch that would make it too large.
		chunks += int((x.BatchBytes + (4<<10 - 200) - 1) / (4<<10 - 200))
		tails++
	}
	return chunks, tails
}

// walk reads the tiered part from an offset on, as a cold reader does.
func (r *rig) walk(ctx context.Context, from, end log.Offset) error {
	for at := from; at < end; {
		s, err := r.tier.Partition().Read(ctx, at, 1<<20)
		if err != nil {
			return err
		}
		at = s.End()
		s.Release()
	}
	return nil
}

// readWindow: a reader that goes on has several requests under way, also over the
// bounds of ranges, within the budgets; one that jumps has one.
func readWindow(t *testing.T) {
	const delay = 100 * time.Millisecond
	r := newLarge(t, tier.Options{Reads: 8})
	r.fill(2000)
	settle()
	end := r.tier.Partition().View().TierEnd
	chunks, tails := r.parts()
	var peak atomic.Int32
	r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
		for n := int32(r.store.Active()); op.Kind == "get"; {
			old := peak.Load()
			if n <= old || peak.CompareAndSwap(old, n) {
				break
			}
		}
		return tiertest.Fault{}
	})
	r.store.SetDelay(delay)
	before, began := r.store.Counts().Get, time.Now()
	if err := r.walk(t.Context(), 0, end); err != nil {
		t.Fatal(err)
	}
	took, gets := time.Since(began), r.store.Counts().Get-before
	if alone := time.Duration(chunks+tails) * delay; took > alone/2 {
		t.Errorf("%d chunks in %d ranges took %v, one by one they take %v", chunks, tails, took, alone)
	}
	if gets > chunks+tails || peak.Load() > 8 || peak.Load() < 3 {
		t.Errorf("%d requests for %d chunks and %d tails, %d at once", gets, chunks, tails, peak.Load())
	}
	r.close()

	r.open(tier.Options{Reads: 8})
	settle()
	before = r.store.Counts().Get
	rng := rand.New(rand.NewPCG(1, 2))
	const jumps = 20
	for range jumps {
		s, err := r.tier.Partition().Read(t.Context(), log.Offset(rng.IntN(int(end))), 1)
		if err != nil {
			t.Fatal(err)
		}
		s.Release()
	}
	time.Sleep(time.Second)
	if gets := r.store.Counts().Get - before; gets > 2*jumps || r.stats().ReadAhead > 2 {
		t.Errorf("%d requests for %d jumps, %d of them ahead", gets, jumps, r.stats().ReadAhead)
	}
	r.close()
}

// TestManyReadersOfManyChunks: m readers of the same ranges take one request a chunk
// and at most one more each, and leave no budget taken.
func TestManyReadersOfManyChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers = 32
		r := newLarge(t, tier.Options{})
		r.fill(600)
		settle()
		r.store.SetDelay(50 * time.Millisecond)
		end := r.tier.Partition().View().TierEnd
		chunks, tails := r.parts()
		before := r.store.Counts().Get
		var wg sync.WaitGroup
		var failed atomic.Int32
		for i := range readers {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				if r.walk(t.Context(), 0, end) != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		settle()
		if got := r.store.Counts().Get - before; tails < 2 || got > chunks+tails || failed.Load() > 0 {
			t.Errorf("%d readers took %d requests for %d chunks in %d ranges, %d failed", readers, got, chunks, tails, failed.Load())
		}
		if requests, bytes := r.tier.Manager().BudgetsUsed(); requests != 0 || bytes != 0 {
			t.Errorf("%d requests and %d bytes are held at idle", requests, bytes)
		}
		r.close()
	})
}

// TestReadaheadFitsTheCache: what is fetched ahead is not evicted before it is read,
// although many readers share a cache that has no room for their windows.
func TestReadaheadFitsTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers = 8
		r := newLarge(t, tier.Options{CacheBytes: 64 << 10})
		r.fill(2000)
		settle()
		r.store.SetDelay(20 * time.Millisecond)
		end := r.tier.Partition().View().TierEnd
		before := r.store.Counts().Get
		var wg sync.WaitGroup
		var failed atomic.Int32
		for i := range readers { // each has a part of its own
			wg.Go(func() {
				if r.walk(t.Context(), end*log.Offset(i)/readers, end*log.Offset(i+1)/readers) != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		settle()
		chunks, tails := r.parts()
		// Where two parts meet, both readers may take the chunk and its tail, and the
		// first of them has a window ahead in the other's.
		if got := r.store.Counts().Get - before; got > chunks+tails+readers*8 || failed.Load() > 0 {
			t.Errorf("%d requests for %d chunks in %d ranges, %d readers failed", got, chunks, tails, failed.Load())
		}
		if s := r.stats(); s.CachedBytes > 64<<10 || s.ReadAhead == 0 {
			t.Errorf("%d bytes are cached, %d fetched ahead", s.CachedBytes, s.ReadAhead)
		}
		r.close()
	})
}

// TestReadersInPieces: readers that have no room for a chunk each in the cache read
// pieces of chunks, not whole chunks again and again.
func TestReadersInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers = 16
		mem := memstore.New()
		r := &rig{t: t, fs: logtest.NewFS(1), mem: mem, store: tiertest.NewFaulty(mem), segmentBytes: 256 << 10}
		r.open(tier.Options{ChunkBytes: 64 << 10, CacheBytes: 384 << 10})
		r.fill(6000)
		settle()
		end := r.tier.Partition().View().TierEnd
		state, _ := r.tier.Partition().State()
		var size int64
		for _, x := range state.Ranges() {
			size += x.BatchBytes
		}
		_, before := r.store.Bytes()
		var wg sync.WaitGroup
		var failed atomic.Int32
		for i := range readers { // each has a part of its own, and reads a little at a time
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond) // one after the other
				for at, end := end*log.Offset(i)/readers, end*log.Offset(i+1)/readers; at < end; {
					s, err := r.tier.Partition().Read(t.Context(), at, 600)
					if err != nil || s.Base() != at {
						failed.Add(1)
						return
					}
					at = s.End()
					s.Release()
					time.Sleep(time.Second)
				}
			})
		}
		wg.Wait()
		_, after := r.store.Bytes()
		if got := after - before; got > 4*size || failed.Load() > 0 {
			t.Errorf("%d bytes were read of the store for %d, %d readers failed", got, size, failed.Load())
		}
		r.close()
	})
}
