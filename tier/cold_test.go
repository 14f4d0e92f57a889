package tier_test

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
)

// TestCompressedChunks: reads, time lookups, audit and restore do not notice whether
// chunks are compressed, and both kinds stand side by side.
func TestCompressedChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, tier.Options{})
		var times []time.Time
		second := func(n int) {
			for range n {
				times = append(times, time.Now())
				r.fill(1)
				time.Sleep(time.Second)
			}
			settle()
		}
		second(100)
		r.close()
		plain := r.mem.Len()
		r.open(tier.Options{CompressChunks: true, ChunkBytes: 64 << 10})
		second(200)
		r.check(0)
		state, _ := r.tier.Partition().State()
		for i, x := range state.Ranges() {
			if compressed := x.ObjectBytes < x.BatchBytes; compressed != (i+1 >= plain) {
				t.Errorf("range %d has %d bytes of batches in an object of %d", i, x.BatchBytes, x.ObjectBytes)
			}
		}
		for _, i := range []int{0, 50, 120, 199, 250} {
			off, ok, err := r.tier.OffsetForTime(t.Context(), times[i])
			if off != log.Offset(i) || !ok || err != nil {
				t.Errorf("time of record %d: offset %d, %v, %v", i, off, ok, err)
			}
		}
		if a := r.audit(tier.AuditBytes); !a.Clean() {
			t.Errorf("audit: %+v", a.Findings)
		}
		chains, err := tier.Catalog(t.Context(), tier.CatalogOptions{Store: r.mem})
		if err != nil || len(chains) != 1 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		restored, err := log.Open(t.Context(), "restored", log.Options{FS: logtest.NewFS(2), Partition: testPartition})
		if err != nil {
			t.Fatal(err)
		}
		if end, err := chains[0].Restore(t.Context(), restored, tier.RestoreOptions{Store: r.mem}); err != nil || end != r.tier.Partition().View().TierEnd {
			t.Errorf("restored up to %d: %v", end, err)
		}
		at := log.Offset(0)
		for rec, err := range restored.Records(t.Context(), 0) {
			if err != nil || rec.Offset != at || !bytes.Equal(rec.Value, value(int(at))) {
				t.Fatalf("restored offset %d: %d, %v", at, rec.Offset, err)
			}
			at++
		}
		if err := restored.Close(); err != nil {
			t.Error(err)
		}

		// A flipped byte anywhere in a compressed object is noticed by whoever reads it.
		last := state.Ranges()[len(state.Ranges())-1]
		key := tier.Key{Partition: testPartition, Base: last.Base, End: last.End, Epoch: last.Epoch, ID: last.ID}.Path("")
		r.close()
		r.mem.Corrupt(key, 500)
		r.open(tier.Options{})
		if _, err := r.tier.Read(t.Context(), last.Base, 1); !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("read of a damaged object: %v", err)
		}
		if a := r.audit(tier.AuditBytes); len(a.Findings) != 1 || a.Findings[0].Kind != tier.FindingCorrupt {
			t.Errorf("audit of a damaged object: %+v", a.Findings)
		}
		_ = errors.Join(r.tier.Close(), r.events.Close(), r.hot.Close())
	})
}
