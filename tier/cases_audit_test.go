package tier_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

func init() { maps.Copy(cases, auditCases) }

// auditCases are those of sweeps and audits.
var auditCases = map[string]func(*testing.T){
	// A sweep meets objects that are stored and not finished yet.
	"SLATEDB-604": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(100)
		settle()
		r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
			if op.Kind == "put" && isSegment(op) {
				return tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: true}
			}
			if op.Kind == "get" && isSegment(op) {
				return tiertest.Fault{Err: tier.ErrUnavailable} // so it can't be found out
			}
			return tiertest.Fault{}
		})
		r.fill(100)
		time.Sleep(10 * time.Minute)
		settle()
		p := r.tier.Partition()
		s, _ := p.State()
		if len(s.Pending()) != 1 || len(r.keys()) != s.Len()+1 {
			t.Fatalf("%d pending, %d objects for %d ranges", len(s.Pending()), len(r.keys()), s.Len())
		}
		report, err := p.Sweep(t.Context(), tier.SweepOptions{MinAge: -1})
		if err != nil || report.Listed != s.Len()+1 || len(report.Orphans)+report.Deleted > 0 {
			t.Errorf("sweep: %+v, %v", report, err)
		}
		r.store.SetFault(nil)
		time.Sleep(10 * time.Minute)
		settle()
		if s, _ := p.State(); len(s.Pending()) > 0 {
			t.Errorf("%d pending", len(s.Pending()))
		}
		r.check(0)
		r.close()
	},
	// The age of an object is that of its last write, and an old id makes none old.
	"THANOS-1577": func(t *testing.T) {
		r := newRig(t, tier.Options{})
		r.fill(100)
		settle()
		k, _ := tier.ParseKey("", r.keys()[0])
		k.ID, k.Epoch = tier.ID{1}, 0
		time.Sleep(24 * time.Hour)
		for range 3 { // an upload that lasts for hours is written again
			r.put(k.Path(""), []byte("stray"))
			time.Sleep(90 * time.Minute)
			s, err := r.tier.Partition().Sweep(t.Context(), tier.SweepOptions{MinAge: 2 * time.Hour})
			if err != nil || s.Young != 1 || s.Deleted != 0 {
				t.Errorf("written 90 minutes ago: %+v, %v", s, err)
			}
		}
		time.Sleep(time.Hour)
		s, err := r.tier.Partition().Sweep(t.Context(), tier.SweepOptions{MinAge: 2 * time.Hour})
		if err != nil || s.Young != 0 || s.Deleted != 1 {
			t.Errorf("written 150 minutes ago: %+v, %v", s, err)
		}
		r.close()
	},
	// An upload that is under way is no damage, with and without its object.
	"MILVUS-53117": func(t *testing.T) {
		for _, done := range []bool{false, true} {
			r := newRig(t, tier.Options{})
			r.fill(100)
			settle()
			r.store.SetFault(func(op tiertest.Op) tiertest.Fault {
				if op.Kind == "put" && isSegment(op) {
					return tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: done}
				}
				if op.Kind == "get" && isSegment(op) {
					return tiertest.Fault{Err: tier.ErrUnavailable}
				}
				return tiertest.Fault{}
			})
			r.fill(100)
			settle()
			if s, _ := r.tier.Partition().State(); len(s.Pending()) != 1 {
				t.Fatalf("%d pending", len(s.Pending()))
			}
			if a := r.audit(tier.AuditBytes); len(a.Findings) > 0 {
				t.Errorf("stored %v: %v", done, a.Findings)
			}
			r.store.SetFault(nil)
			settle()
			r.close()
		}
	},
	// What a reader asks about aborted transactions costs the tails of the objects that
	// it reads from, however many others there are.
	"KAFKA-16780": func(t *testing.T) {
		plain, err := log.Open(t.Context(), "plain", log.Options{FS: logtest.NewFS(2)})
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close() //nolint:errcheck // thrown away
		w := &txnWriter{rig: newRig(t, tier.Options{CacheBytes: 1}), plain: plain, next: map[int64]int32{}}
		for i := range 600 {
			w.produce(1, 1)
			w.end(1, i%10 > 0)
		}
		settle()
		p := w.tier.Partition()
		if v := p.View(); v.Ranges < 10 {
			t.Fatalf("%d ranges", v.Ranges)
		}
		s, _ := p.State()
		synctest.Wait()
		for _, r := range s.Ranges() {
			before := w.store.Counts().Get
			got, err := p.AbortedTransactions(t.Context(), r.Base, r.End)
			if err != nil || len(got) == 0 {
				t.Errorf("[%d, %d): %v, %v", r.Base, r.End, got, err)
			}
			if n := w.store.Counts().Get - before; n > 1 {
				t.Errorf("[%d, %d) costs %d requests", r.Base, r.End, n)
			}
		}
		w.close()
	},
}
