package tier_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// Each test here is for one guard in testdata/mutations.txt that nothing else notices.

// What is in the store under the key of an upload is not taken for the object, even if
// the store says that there is one already: the range goes up again, under another key.
func TestOtherContentUnderTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		var taken atomic.Pointer[string]
		d.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if _, ok := tier.ParseKey("", op.Key); !ok || op.Kind != "put" || !taken.CompareAndSwap(nil, &op.Key) {
				return tiertest.Fault{}
			}
			other := make([]byte, 1<<20)
			if err := d.mem.Put(t.Context(), op.Key, bytes.NewReader(other), int64(len(other)), tier.PutOptions{}); err != nil {
				t.Error(err)
			}
			return tiertest.Fault{Err: tier.ErrExists}
		})
		d.fill(100)
		time.Sleep(3 * time.Hour) // above the upload deadline, after which the other is deleted
		state, known := d.leader.part.State()
		if !known || len(state.Ranges()) == 0 {
			t.Fatalf("known %v, %d ranges", known, len(state.Ranges()))
		}
		for _, r := range state.Ranges() {
			s, err := d.leader.part.Read(t.Context(), r.Base, 1<<10)
			if err != nil {
				t.Errorf("range [%d, %d): %v", r.Base, r.End, err)
				continue
			}
			s.Release()
		}
		if _, err := d.mem.Head(t.Context(), *taken.Load()); !errors.Is(err, tier.ErrNotFound) {
			t.Errorf("the other object: %v", err)
		}
	})
}

// A store that says of each deletion that there is nothing has deleted all the same.
func TestDeletedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		d.fill(100)
		d.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "delete" {
				return tiertest.Fault{Err: tier.ErrNotFound, Done: true}
			}
			return tiertest.Fault{}
		})
		if err := d.leader.part.TrimTo(t.Context(), d.leader.part.View().TierEnd, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(tier.DefaultBackupWindow + time.Hour)
		state, _ := d.leader.part.State()
		if s := d.leader.manager.Stats(); s.PendingDeletions != 0 || s.Parked != 0 || len(state.Kept()) != 0 || s.Deletes == 0 {
			t.Errorf("%d deletions pending, %d parked, %d ranges kept, %d deleted", s.PendingDeletions, s.Parked, len(state.Kept()), s.Deletes)
		}
	})
}

// A leader that has read a higher barrier leads no more, though it has nothing to say.
func TestHigherBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuo(t, tier.MaxInlineState, false)
		d.fill(100)
		if leading, epoch, err := d.leader.part.Status(); !leading || epoch != 1 {
			t.Fatalf("leading %v in epoch %d: %v", leading, epoch, err)
		}
		b, err := tier.EncodeEvent(tier.Event{Partition: testPartition, Epoch: 2, Body: tier.Barrier{}})
		if err == nil {
			err = d.events.Append(t.Context(), testPartition, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if leading, _, err := d.leader.part.Status(); leading || !errors.Is(err, tier.ErrFenced) {
			t.Errorf("leading %v: %v", leading, err)
		}
	})
}
