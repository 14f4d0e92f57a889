package tier_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/dirstore"
)

// A machine is a tiered log whose log, tier log and object store are all on one
// disk.
type machine struct {
	disk   *log.Disk
	hot    *log.Log
	events *tier.LocalEvents
	store  *dirstore.Store
	tier   *tier.Log
}

func openMachine(ctx context.Context, fs log.FS) (m *machine, err error) {
	m = &machine{}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.store, err = dirstore.Open("store", dirstore.Options{FS: fs}); err != nil {
		return m, err
	}
	if m.disk, err = log.NewDisk(log.DiskOptions{FS: fs}); err != nil {
		return m, err
	}
	if m.hot, err = log.Open(ctx, "data", log.Options{Disk: m.disk, Partition: testPartition, SegmentBytes: 1 << 10}); err != nil {
		return m, err
	}
	if m.events, err = tier.OpenLocalEvents(ctx, "events", tier.LocalOptions{Disk: m.disk}); err != nil {
		return m, err
	}
	m.tier, err = tier.Open(ctx, m.hot, tier.Options{Store: m.store, Events: m.events, ChunkBytes: 4 << 10, UploadDeadline: 10 * time.Minute, BackupWindow: -1, ReaderGrace: -1})
	return m, err
}

func (m *machine) close() {
	if m.tier != nil {
		_ = m.tier.Close()
	}
	if m.events != nil {
		_ = m.events.Close()
	}
	if m.hot != nil {
		_ = m.hot.Close()
	}
	if m.disk != nil {
		_ = m.disk.Close()
	}
}

// TestCrash takes the power away at each write of a life with appends, uploads,
// local deletion, a moved log start and deletions, and finds every acknowledged
// record afterwards, and in the end no object that nothing speaks of.
func TestCrash(t *testing.T) {
	logtest.EachCrash(t, func(fs *logtest.FS) func(*logtest.FS) {
		var acked int        // records [0, acked) were acknowledged
		var start, maybe int // the log start that was acknowledged, and that was asked for
		var cluster tier.ID
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			m, err := openMachine(ctx, fs)
			if err != nil {
				return
			}
			defer m.close()
			cluster = m.events.Cluster()
			fill := func(n int) {
				for range n {
					if _, err := m.tier.AppendRecords(ctx, log.Record{Value: value(acked)}); err != nil {
						return
					}
					acked++
				}
				time.Sleep(time.Second)
			}
			fill(20)
			fill(8)
			maybe = 9
			tctx, cancelTrim := context.WithTimeout(ctx, time.Minute)
			defer cancelTrim()
			if acked == 28 && m.tier.TrimTo(tctx, 9) == nil {
				start = 9
			}
			fill(6)
		})
		return func(after *logtest.FS) {
			synctest.Test(t, func(t *testing.T) {
				m, err := openMachine(t.Context(), after)
				if err != nil {
					t.Fatalf("open after the crash: %v", err)
				}
				defer m.close()
				if cluster != (tier.ID{}) && m.events.Cluster() != cluster {
					t.Errorf("the cluster id changed")
				}
				if m.hot.Recovery().Lossy {
					t.Fatalf("the log lost durable records: %+v", m.hot.Recovery())
				}
				check := func() {
					t.Helper()
					at := int(m.tier.Start())
					if at < start || at > max(start, maybe) {
						t.Fatalf("log start %d, want %d or %d", at, start, maybe)
					}
					for r, err := range m.tier.Records(t.Context(), log.Offset(at)) {
						if err != nil {
							t.Fatalf("read at offset %d: %v", at, err)
						}
						if int(r.Offset) != at || !bytes.Equal(r.Value, value(at)) {
							t.Fatalf("offset %d: got %d, %.30q", at, r.Offset, r.Value)
						}
						at++
					}
					if at < acked {
						t.Fatalf("read up to offset %d, %d were acknowledged", at, acked)
					}
				}
				check()
				if _, err := m.tier.AppendRecords(t.Context(), log.Record{Value: value(int(m.hot.End()))}); err != nil {
					t.Fatalf("append after the crash: %v", err)
				}
				time.Sleep(30 * time.Minute)
				synctest.Wait()
				check()
				state, _ := m.tier.Partition().State()
				if len(state.Pending()) > 0 {
					t.Fatalf("pending %+v", state.Pending())
				}
				if leading, _, err := m.tier.Partition().Status(); !leading || err != nil {
					t.Fatalf("status: leading %v, %v", leading, err)
				}
				keys := map[string]bool{"owner": true}
				for _, r := range state.Ranges() {
					keys[tier.Key{Partition: testPartition, Base: r.Base, End: r.End, Epoch: r.Epoch, ID: r.ID}.Path("")] = true
				}
				for o, err := range m.store.List(t.Context(), "", "") {
					if err != nil {
						t.Fatal(err)
					}
					if !keys[o.Key] {
						t.Fatalf("orphan %s", o.Key)
					}
					delete(keys, o.Key)
				}
				if len(keys) > 0 {
					t.Fatalf("missing %v", keys)
				}
			})
		}
	})
}

// TestEventsOfADamagedTierLog: a tier log that lost durable events is not opened,
// since the states it gives would be wrong.
func TestEventsOfADamagedTierLog(t *testing.T) {
	fs := logtest.NewFS(1)
	e, err := tier.OpenLocalEvents(t.Context(), "events", tier.LocalOptions{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if err := e.Append(t.Context(), testPartition, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	cluster := e.Cluster()
	after := fs.Crash()
	_ = e.Close()
	if err := after.Corrupt("events/00000000000000000000.log", 400, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := tier.OpenLocalEvents(t.Context(), "events", tier.LocalOptions{FS: after}); !errors.Is(err, tier.ErrCorrupt) {
		t.Errorf("open of a damaged tier log: %v", err)
	}

	fs = logtest.NewFS(1)
	e, err = tier.OpenLocalEvents(t.Context(), "events", tier.LocalOptions{FS: fs, Cluster: cluster})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tier.OpenLocalEvents(t.Context(), "events", tier.LocalOptions{FS: fs}); !errors.Is(err, log.ErrLocked) {
		t.Errorf("second open: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := tier.OpenLocalEvents(t.Context(), "events", tier.LocalOptions{FS: fs, Cluster: tier.ID{1}}); !errors.Is(err, tier.ErrForeignStore) {
		t.Errorf("open with another cluster id: %v", err)
	}
	e, err = tier.OpenLocalEvents(t.Context(), "events", tier.LocalOptions{FS: fs})
	if err != nil || e.Cluster() != cluster {
		t.Fatalf("open again: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
