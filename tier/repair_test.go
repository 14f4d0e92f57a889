package tier_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
)

// manifests lists the manifests in the store.
func (d *duo) manifests() (keys []string) {
	d.t.Helper()
	for info, err := range d.mem.List(d.t.Context(), "", "") {
		if err != nil {
			d.t.Fatal(err)
		}
		if strings.Contains(info.Key, "/manifest-") {
			keys = append(keys, info.Key)
		}
	}
	return keys
}

func (d *duo) repair(o tier.RepairOptions) *tier.RepairReport {
	d.t.Helper()
	o.Store, o.Events = d.mem, tier.ReadToEnd(d.t.Context(), d.events)
	for _, n := range []*duoNode{d.leader, d.other} {
		o.Nodes = append(o.Nodes, tier.StateDir{FS: n.fs, Dir: "data"})
	}
	r, err := tier.Repair(d.t.Context(), o)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

// TestRepair: when the files of states and the manifest of the last checkpoint are lost
// while the tier log has been trimmed below it, nobody takes the partition for empty,
// and all say what is missing. Repair finds a state, by which the partition goes on.
func TestRepair(t *testing.T) {
	const inline = 100 // bytes, so that states are in manifests
	remove := func(d *duo, key string) {
		if r := d.mem.Delete(d.t.Context(), []string{key}); r[0].Err != nil {
			d.t.Error(r[0].Err)
		}
	}
	loseFile := func(d *duo, n *duoNode) {
		if err := n.fs.Remove("data/tier-state"); err != nil {
			d.t.Error(err)
		}
	}
	for _, c := range []struct {
		name  string
		lose  func(d *duo, key string, old map[string][]byte)
		from  string // what the state is made of
		exact bool   // it is the state that was lost
	}{
		{name: "manifest gone", lose: func(d *duo, key string, _ map[string][]byte) {
			remove(d, key)
			loseFile(d, d.leader)
			loseFile(d, d.other)
		}, from: "objects"},
		{name: "manifest damaged", lose: func(d *duo, key string, _ map[string][]byte) {
			d.mem.Corrupt(key, 30)
			loseFile(d, d.leader)
			loseFile(d, d.other)
		}, from: "objects"},
		{name: "an older manifest is left", lose: func(d *duo, key string, old map[string][]byte) {
			remove(d, key)
			for key, b := range old {
				if err := d.mem.Put(d.t.Context(), key, strings.NewReader(string(b)), int64(len(b)), tier.PutOptions{}); err != nil {
					d.t.Error(err)
				}
			}
			loseFile(d, d.leader)
			loseFile(d, d.other)
		}, from: "manifest"},
		{name: "a node has kept it", lose: func(d *duo, key string, _ map[string][]byte) {
			remove(d, key)
			loseFile(d, d.leader)
		}, from: "kept", exact: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDuo(t, inline, true)
				d.fill(100)
				d.fill(100)
				old := map[string][]byte{}
				for _, key := range d.manifests() {
					info, err := d.mem.Head(t.Context(), key)
					if err != nil {
						t.Fatal(err)
					}
					if old[key], err = d.mem.GetRange(t.Context(), key, 0, info.Size); err != nil {
						t.Fatal(err)
					}
				}
				for range 4 {
					d.fill(100)
				}
				if err := d.leader.part.TrimTo(t.Context(), 42, ""); err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Minute) // a checkpoint of all
				synctest.Wait()
				d.same("before")
				want, _ := d.leader.part.State()
				if want.LogStart() != 42 || d.start() == 0 || want.Len() < 10 {
					t.Fatalf("%+v, the tier log starts at %d", d.leader.part.View(), d.start())
				}
				keys := d.manifests()
				if len(keys) != 1 || old[keys[0]] != nil {
					t.Fatalf("manifests %v", keys)
				}
				d.close(d.leader)
				d.close(d.other)
				if r := d.repair(tier.RepairOptions{}); len(r.Partitions) != 0 || r.Written != 0 {
					t.Errorf("nothing is lost: %+v", r)
				}
				c.lose(d, keys[0], old)

				d.open(d.leader, inline, true)
				d.leader.part.Lead(2)
				time.Sleep(20 * time.Minute)
				synctest.Wait()
				v := d.leader.part.View()
				if v.Known || v.Presence() != tier.Unknown {
					t.Errorf("known without its manifest: %+v", v)
				}
				leading, _, blocked := d.leader.part.Status()
				if leading || !errors.Is(blocked, tier.ErrUnknown) || !strings.Contains(blocked.Error(), keys[0]) {
					t.Errorf("leading %v, blocked %v", leading, blocked)
				}
				if _, err := d.leader.part.Read(t.Context(), 50, 1); !errors.Is(err, tier.ErrUnknown) || errors.Is(err, tier.ErrNotFound) || !strings.Contains(err.Error(), keys[0]) {
					t.Errorf("cold read: %v", err)
				}
				if s := d.leader.manager.Stats(); s.StatesMissing != 1 {
					t.Errorf("%d states are missing", s.StatesMissing)
				}
				audit, err := tier.Audit(t.Context(), tier.AuditOptions{Store: d.mem, Events: tier.ReadToEnd(t.Context(), d.events)})
				if err != nil || len(audit.Findings) != 1 || audit.Findings[0].Kind != tier.FindingManifest || audit.Findings[0].Key != keys[0] {
					t.Errorf("audit: %v, %+v", err, audit)
				}
				d.close(d.leader)

				local := func(log.PartitionID) (log.Offset, bool, error) { return 42, true, nil }
				if r := d.repair(tier.RepairOptions{LogStart: local, DryRun: true}); len(r.Partitions) != 1 || r.Written != 0 {
					t.Errorf("dry run: %+v", r)
				}
				r := d.repair(tier.RepairOptions{LogStart: local})
				if len(r.Partitions) != 1 || r.Written != 2 {
					t.Fatalf("repair: %+v", r)
				}
				p := r.Partitions[0]
				from := "objects"
				if p.Kept {
					from = "kept"
				} else if old[p.Manifest] != nil {
					from = "manifest"
				}
				if p.Err != nil || p.Partition != testPartition || p.Missing != keys[0] || p.Reason == nil || from != c.from || len(p.Findings) != 0 ||
					p.LogStart != want.LogStart() || p.TierEnd != want.TierEnd() {
					t.Errorf("from %s: %+v, want [%d, %d)", from, p, want.LogStart(), want.TierEnd())
				}

				d.open(d.leader, inline, true)
				d.open(d.other, inline, true)
				time.Sleep(time.Minute)
				synctest.Wait()
				d.same("after")
				got, _ := d.leader.part.State()
				if c.exact && !slices.Equal(got.Ranges(), want.Ranges()) {
					t.Error("the kept state is another")
				}
				for key := range old {
					remove(d, key)
				}
				d.leader.part.Lead(3)
				d.fill(100)
				d.same("later")
				if now := d.manifests(); len(now) != 1 || now[0] == keys[0] {
					t.Errorf("manifests %v", now)
				}
				at := log.Offset(42)
				for at < d.leader.part.View().TierEnd {
					s, err := d.other.part.Read(t.Context(), at, 1<<20)
					if err != nil {
						t.Fatal(err)
					}
					for b, err := range s.Batches() {
						if err != nil {
							t.Fatal(err)
						}
						for rec, err := range b.Records() {
							if err != nil || string(rec.Value) != string(value(int(rec.Offset)%100)) {
								t.Fatalf("record %d: %.20q, %v", rec.Offset, rec.Value, err)
							}
						}
						at = b.NextOffset()
					}
					s.Release()
				}
				// It also checks the objects' checksums, which come from their parts.
				audit, err = tier.Audit(t.Context(), tier.AuditOptions{Store: d.mem, Events: tier.ReadToEnd(t.Context(), d.events), Depth: tier.AuditBytes})
				if err != nil || !audit.Clean() || audit.Ranges < want.Len() {
					t.Errorf("audit: %v, %+v", err, audit)
				}
			})
		})
	}
}

// TestRepairAfterCheckpoint: what the tier log says after the lost checkpoint counts, and
// what the store lacks is told.
func TestRepairAfterCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const inline = 100
		d := newDuo(t, inline, true)
		for range 4 {
			d.fill(100)
		}
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		d.fill(30)
		if err := d.leader.part.TrimTo(t.Context(), 100, ""); err != nil {
			t.Fatal(err)
		}
		d.store.SetDown(true)
		d.fill(30) // announces an upload that does not finish
		want, _ := d.leader.part.State()
		d.close(d.leader)
		d.close(d.other)
		d.store.SetDown(false)
		keys := d.manifests()
		if len(keys) != 1 || d.start() == 0 || want.LogStart() != 100 || len(want.Pending()) == 0 {
			t.Fatalf("manifests %v, the tier log starts at %d, state %+v", keys, d.start(), want.Pending())
		}
		lose := []string{keys[0]}
		for _, n := range []*duoNode{d.leader, d.other} {
			if err := n.fs.Remove("data/tier-state"); err != nil {
				t.Fatal(err)
			}
		}
		d.mem.Delete(t.Context(), lose)

		r := d.repair(tier.RepairOptions{DryRun: true})
		if p := r.Partitions[0]; len(r.Partitions) != 1 || p.Err != nil || p.LogStart != 100 || p.TierEnd != want.TierEnd() || len(p.Findings) != 0 || p.Objects < want.Len() {
			t.Errorf("%+v", r)
		}
		gone := want.Ranges()[5]
		d.mem.Delete(t.Context(), []string{tier.Key{Partition: testPartition, Base: gone.Base, End: gone.End, Epoch: gone.Epoch, ID: gone.ID}.Path("")})
		r = d.repair(tier.RepairOptions{LogStart: func(log.PartitionID) (log.Offset, bool, error) { return 90, true, nil }})
		p := r.Partitions[0]
		if p.Err != nil || p.LogStart != 100 || p.TierEnd != want.TierEnd() || len(p.Findings) != 1 || p.Findings[0].Kind != tier.FindingGap ||
			p.Findings[0].Base != 100 || p.Findings[0].End != gone.End {
			t.Errorf("%+v", p)
		}
		d.open(d.leader, inline, true)
		d.open(d.other, inline, true)
		d.leader.part.Lead(2)
		time.Sleep(time.Hour * 2)
		synctest.Wait()
		d.same("after")
		got, _ := d.leader.part.State()
		if len(got.Pending()) != 0 || got.TierEnd() <= want.TierEnd() {
			t.Errorf("pending %v, tier end %d, was %d", got.Pending(), got.TierEnd(), want.TierEnd())
		}
		if _, err := d.leader.part.Read(t.Context(), 110, 1); !errors.Is(err, tier.ErrNotFound) {
			t.Errorf("read of what is lost: %v", err)
		}
		// Of nothing no state is made: that would be to say that there is nothing.
		d.close(d.leader)
		d.close(d.other)
		for info, err := range d.mem.List(t.Context(), "", "") {
			if err != nil {
				t.Fatal(err)
			}
			if info.Key != tier.OwnerKey("") {
				d.mem.Delete(t.Context(), []string{info.Key})
			}
		}
		for _, n := range []*duoNode{d.leader, d.other} {
			if err := n.fs.Remove("data/tier-state"); err != nil {
				t.Fatal(err)
			}
		}
		if r := d.repair(tier.RepairOptions{}); len(r.Partitions) != 1 || r.Partitions[0].Err == nil || r.Written != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// TestCatalogManifest: a catalog says by which manifest it knows what there must be, and
// names the objects that are lost: those that are gone while older ones are there.
func TestCatalogManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, 100, false)
		for range 4 {
			d.fill(100)
		}
		if err := d.leader.part.TrimTo(t.Context(), 30, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		state, _ := d.leader.part.State()
		keys := d.manifests()
		catalog := func() *tier.Chain {
			t.Helper()
			chains, err := tier.Catalog(t.Context(), tier.CatalogOptions{Store: d.mem})
			if err != nil || len(chains) != 1 {
				t.Fatalf("%v, %d chains", err, len(chains))
			}
			return chains[0]
		}
		c := catalog()
		if len(c.Broken) != 0 || c.Manifest != keys[0] || c.Recorded.LogStart() != 30 || c.End() != state.TierEnd() {
			t.Errorf("%+v", c)
		}
		ranges := state.Ranges()
		remove := func(r tier.Range) (key string) {
			key = tier.Key{Partition: testPartition, Base: r.Base, End: r.End, Epoch: r.Epoch, ID: r.ID}.Path("")
			d.mem.Delete(t.Context(), []string{key})
			return key
		}
		remove(ranges[0]) // as retention does
		if c := catalog(); len(c.Broken) != 0 || c.Start() != ranges[1].Base {
			t.Errorf("without the oldest: [%d, %d), %v", c.Start(), c.End(), c.Broken)
		}
		lost := remove(ranges[4])
		c = catalog()
		if len(c.Broken) != 1 || c.Broken[0].Kind != tier.FindingMissing || c.Broken[0].Key != lost || c.Broken[0].Base != ranges[4].Base || c.Broken[0].End != ranges[4].End || c.Start() != ranges[5].Base {
			t.Errorf("without one in the middle: [%d, %d), %v", c.Start(), c.End(), c.Broken)
		}
		// What lies below the gap is another chain, and of it nothing is missing.
		at := c.Broken[0].Base
		below, err := tier.Catalog(t.Context(), tier.CatalogOptions{Store: d.mem, Below: at})
		if err != nil || len(below) != 1 || len(below[0].Broken)+len(below[0].Spare) != 0 || below[0].Start() != ranges[1].Base || below[0].End() != at {
			t.Errorf("below the gap at %d: %+v, %v", at, below[0], err)
		}
		// Below an offset in the gap the object is missing, and so it is below one that
		// another object holds, whose chain it cuts.
		for _, at := range []log.Offset{at + 1, ranges[5].Base, ranges[5].End} {
			below, err := tier.Catalog(t.Context(), tier.CatalogOptions{Store: d.mem, Below: at})
			end := ranges[3].End
			if at > ranges[5].Base {
				end = ranges[5].End
			}
			if err != nil || len(below[0].Broken) != 1 || below[0].Broken[0].Key != lost || below[0].End() != end {
				t.Errorf("below %d: %+v, %v", at, below[0], err)
			}
		}
		lost = remove(ranges[len(ranges)-1])
		if c = catalog(); len(c.Broken) != 2 || c.Broken[1].Key != lost {
			t.Errorf("without the newest: [%d, %d), %v", c.Start(), c.End(), c.Broken)
		}
		d.mem.Corrupt(keys[0], 20)
		if c = catalog(); c.Manifest != "" || c.Recorded != nil || !slices.ContainsFunc(c.Broken, func(f tier.Finding) bool { return f.Kind == tier.FindingManifest && f.Key == keys[0] }) {
			t.Errorf("with a damaged manifest: %q, %v", c.Manifest, c.Broken)
		}
	})
}
