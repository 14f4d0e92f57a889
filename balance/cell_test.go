package balance_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

func zoned(n, zones int) []balance.Broker {
	var out []balance.Broker
	for i := range n {
		out = append(out, balance.Broker{ID: balance.BrokerID(i), Zone: fmt.Sprint("z", i%zones)})
	}
	return out
}

func TestBuildCells(t *testing.T) {
	cells, rest, err := balance.BuildCells(zoned(26, 3), 6)
	if err != nil || len(cells) != 4 || !reflect.DeepEqual(rest, []balance.BrokerID{24, 25}) {
		t.Fatalf("got %v, rest %v, %v", cells, rest, err)
	}
	for i, c := range cells {
		if c.ID != balance.CellID(i+1) || len(c.Brokers) != 6 || !slices.IsSorted(c.Brokers) {
			t.Errorf("cell %+v", c)
		}
		zones := map[balance.BrokerID]int{}
		for _, b := range c.Brokers {
			zones[b%3]++
		}
		if zones[0] != 2 || zones[1] != 2 || zones[2] != 2 {
			t.Errorf("cell %d over zones: %v", c.ID, zones)
		}
	}
	// More brokers add a cell and change none.
	brokers := zoned(30, 3)
	for _, c := range cells {
		for _, b := range c.Brokers {
			brokers[b].Cell = c.ID
		}
	}
	more, rest, err := balance.BuildCells(brokers, 6)
	if err != nil || len(more) != 5 || len(rest) != 0 || !reflect.DeepEqual(more[:4], cells) {
		t.Errorf("got %v, rest %v, %v", more, rest, err)
	}
	for _, size := range []int{0, -3, 4} {
		if _, _, err := balance.BuildCells(zoned(12, 3), size); !errors.Is(err, balance.ErrCells) {
			t.Errorf("size %d: %v", size, err)
		}
	}
	brokers[0].Cell = 9
	if _, _, err := balance.BuildCells(brokers, 6); !errors.Is(err, balance.ErrCells) {
		t.Errorf("lopsided cell: %v", err)
	}
	if _, _, err := balance.BuildCells(nil, 3); !errors.Is(err, balance.ErrCells) {
		t.Errorf("no brokers: %v", err)
	}
}

// TestPlacementLaw: the k-th lightest of n cells is drawn with probability 2(n-k)/(n(n-1)), by chi-square.
func TestPlacementLaw(t *testing.T) {
	laws := map[int][]float64{6: {1. / 3, 4. / 15, 1. / 5, 2. / 15, 1. / 15, 0}, 4: {1. / 2, 1. / 3, 1. / 6, 0}}
	for _, k := range []int{4, 6, -4, -6} { // negative: the fullest cell has the first number
		n, want := max(k, -k), laws[max(k, -k)]
		r := rand.New(rand.NewPCG(1, uint64(n)))
		var cells []balance.CellState
		for i := range n {
			rank := i
			if k < 0 {
				rank = n - 1 - i
			}
			cells = append(cells, balance.CellState{ID: balance.CellID(i + 1), Load: float64(rank) / 100})
		}
		var p balance.Placement
		got := make([]float64, n)
		const draws = 30_000
		for range draws {
			id, err := p.Place(r, cells, "t", 0, epoch)
			if err != nil {
				t.Fatal(err)
			}
			got[int(math.Round(100*cells[id-1].Load))]++
		}
		chi := 0.0
		for k := range n - 1 {
			chi += (got[k] - draws*want[k]) * (got[k] - draws*want[k]) / (draws * want[k])
		}
		if chi > 20.5 || got[n-1] != 0 { // .001 at 5 degrees of freedom
			t.Errorf("n = %d: chi-square %.1f, drawn %v", n, chi, got)
		}
	}
}

// place puts unit tenants into n cells and returns the largest load over the mean, and over it. Reports are refreshed
// every so many placements.
func place(r *rand.Rand, n, tenants, refresh int, expected float64) (ratio, gap float64) {
	var p balance.Placement
	p.Full = math.Inf(1)
	cells := make([]balance.CellState, n)
	loads := make([]float64, n)
	for i := range cells {
		cells[i].ID = balance.CellID(i + 1)
	}
	for k := range tenants {
		now := epoch.Add(time.Duration(k) * time.Second)
		if k%refresh == 0 {
			for i := range cells {
				cells[i].Load, cells[i].Reported = loads[i], now
			}
		}
		id, err := p.Place(r, cells, balance.TenantID(fmt.Sprint(k)), expected, now)
		if err != nil {
			panic(err)
		}
		loads[id-1]++
	}
	top, sum := slices.Max(loads), float64(tenants)
	return top * float64(n) / sum, top - sum/float64(n)
}

// TestPlacementBalance: the figures of the reference for two choices, fresh and stale, within 2 %, and what the
// provisional load adds.
func TestPlacementBalance(t *testing.T) {
	mean := func(n, tenants, refresh int, expected float64) (ratio, gap float64) {
		r := rand.New(rand.NewPCG(7, uint64(n*1000+refresh)))
		const trials = 120
		for range trials {
			x, g := place(r, n, tenants, refresh, expected)
			ratio += x / trials
			gap += g / trials
		}
		return ratio, gap
	}
	for n, want := range map[int]float64{4: .67, 6: .92, 24: 1.33} {
		if _, gap := mean(n, 100*n, 1, 0); math.Abs(gap-want) > .15 {
			t.Errorf("n = %d: the fullest has %.3f more than the mean, want %v", n, gap, want)
		}
	}
	for refresh, want := range map[int]float64{6: 1.014, 30: 1.038, 60: 1.067, 150: 1.174} {
		ratio, _ := mean(6, 600, refresh, 0)
		if math.Abs(ratio/want-1) > .02 {
			t.Errorf("refreshed every %d: %.4f, want %v", refresh, ratio, want)
		}
		// With the right provisional load, stale is as good as fresh.
		if provisional, _ := mean(6, 600, refresh, 1); provisional > 1.02 {
			t.Errorf("refreshed every %d with provisional load: %.4f", refresh, provisional)
		}
	}
}

func TestPlacementRoom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var p balance.Placement
	cells := []balance.CellState{{ID: 1, Load: .7}, {ID: 2, Load: .1, Closed: true}, {ID: 3, Quarantine: true}}
	if id, err := p.Place(r, cells, "a", .05, epoch); err != nil || id != 1 {
		t.Errorf("got %v, %v", id, err)
	}
	if _, err := p.Place(r, cells, "b", .1, epoch); !errors.Is(err, balance.ErrNoCell) {
		t.Errorf("no room: got %v", err)
	}
	near(t, "expected", p.Expected(cells[0]), .75, 1e-12)
	p.Cancel("a")
	near(t, "cancelled", p.Expected(cells[0]), .7, 1e-12)
	p.Reserve("c", 1, .2, epoch)
	cells[0].Reported = epoch.Add(time.Second)
	near(t, "reported", p.Expected(cells[0]), .7, 1e-12)
	if _, err := p.Place(r, nil, "d", 0, epoch); !errors.Is(err, balance.ErrNoCell) {
		t.Errorf("no cells: got %v", err)
	}
	// A tenant counts in one cell.
	var moved balance.Placement
	moved.Reserve("t", 1, 0.3, epoch)
	moved.Reserve("t", 2, 0.3, epoch)
	for id, want := range map[balance.CellID]float64{1: 0.1, 2: 0.4} {
		near(t, "expected load", moved.Expected(balance.CellState{ID: id, Load: 0.1, Reported: epoch}), want, 1e-9)
	}
}

func TestPlanGrowth(t *testing.T) {
	cells := []balance.CellState{{ID: 1, Load: .95}, {ID: 2, Load: .5}, {ID: 3, Load: .2, Closed: true}, {ID: 4, Load: .1, Quarantine: true}}
	tenants := []balance.TenantLoad{
		{Tenant: "big", Cell: 1, Load: .5, Bytes: 900}, {Tenant: "fits", Cell: 1, Load: .2, Bytes: 100},
		{Tenant: "dear", Cell: 1, Load: .2, Bytes: 500}, {Tenant: "small", Cell: 1, Load: .05, Bytes: 1}, {Tenant: "other", Cell: 2, Load: .5},
	}
	got := balance.PlanGrowth(cells, tenants, 0)
	if len(got) != 1 || got[0].Kind != balance.GrowMove || got[0].Tenant != "fits" || got[0].To != 2 {
		t.Errorf("got %+v", got)
	}
	tenants[3].Noisy, tenants[3].Load = true, .2
	if got := balance.PlanGrowth(cells, tenants, 0); len(got) != 1 || got[0].Kind != balance.GrowQuarantine || got[0].Tenant != "small" || got[0].To != 4 {
		t.Errorf("noisy: got %+v", got)
	}
	cells[1].Load, cells[3].Closed = .79, true
	got = balance.PlanGrowth(cells, tenants, 0)
	if len(got) == 0 || got[len(got)-1].Kind != balance.GrowExpand {
		t.Errorf("no room: got %+v", got)
	}
	if got := balance.PlanGrowth(cells[1:2], tenants, 0); len(got) != 0 {
		t.Errorf("nothing full: got %+v", got)
	}
}

// tenantWorld is a cluster of two cells with one tenant, and executes steps.
type tenantWorld struct {
	c        balance.Cluster
	progress balance.TenantProgress
	created  balance.CellID // where new topics go
}

func newTenantWorld() (*tenantWorld, []balance.PartitionID) {
	w := &tenantWorld{c: balancetest.Cluster(balancetest.ClusterSpec{Brokers: 12, Zones: 3, Cells: 2, Partitions: 12, Replication: 3, Alpha: 1.5, Cap: 20, Seed: 1}), created: 1}
	var ids []balance.PartitionID
	for _, p := range w.c.Partitions {
		if p.Cell == 1 {
			ids = append(ids, p.ID)
		}
	}
	return w, ids
}

func (w *tenantWorld) do(t fataler, s balance.TenantStep) {
	var p *balance.Partition
	for i := range w.c.Partitions {
		if w.c.Partitions[i].ID == s.Partition {
			p = &w.c.Partitions[i]
		}
	}
	switch s.Kind {
	case balance.StepReserve:
		w.progress.Reserved = true
	case balance.StepRelease:
		w.progress.Released = true
	case balance.StepRedirect:
		w.progress.Redirected, w.created = true, 2
	case balance.StepUnredirect:
		w.progress.Redirected, w.created = false, 1
	case balance.StepCommit:
		w.progress.Committed = true
	case balance.StepCopy:
		for _, b := range s.Brokers {
			if !slices.ContainsFunc(p.Replicas, func(r balance.Replica) bool { return r.Broker == b }) {
				p.Replicas = append(p.Replicas, balance.Replica{Broker: b, Load: p.Replicas[0].Load})
			}
		}
	case balance.StepLead:
		i := slices.IndexFunc(p.Replicas, func(r balance.Replica) bool { return r.Broker == s.Brokers[0] })
		if i < 0 || p.Replicas[i].Lagging {
			t.Fatalf("%v: leadership goes to a broker without a copy in sync", s)
		}
		p.Leader = s.Brokers[0]
	case balance.StepDrop, balance.StepUncopy:
		for _, b := range s.Brokers {
			if b == p.Leader {
				t.Fatalf("%v drops the leader", s)
			}
			p.Replicas = slices.DeleteFunc(p.Replicas, func(r balance.Replica) bool { return r.Broker == b })
		}
	}
	if p != nil && len(p.Replicas) < 3 {
		t.Fatalf("%v leaves %d copies", s, len(p.Replicas))
	}
}

// TestTenantMove executes moves with a crash after every step, each step possibly done twice, and ends either in the
// target or, rolled back, exactly where it began.
func TestTenantMove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, ids := newTenantWorld()
		before := w.c.Clone()
		m, err := balance.PlanTenantMove(w.c, "t", ids, 2)
		if err != nil {
			t.Fatal(err)
		}
		stop := rapid.IntRange(0, len(m.Steps)).Draw(t, "steps before the crash")
		back := rapid.Bool().Draw(t, "roll back")
		for k := range stop {
			left := m.Remaining(w.c, w.progress) // planned anew after each crash
			if len(left) != len(m.Steps)-k {
				t.Fatalf("%d steps left after %d of %d", len(left), k, len(m.Steps))
			}
			w.do(t, left[0])
			if rapid.IntRange(0, 3).Draw(t, "twice") == 0 {
				w.do(t, left[0])
			}
		}
		if back && !w.progress.Committed {
			for range 1000 {
				left := m.Rollback(w.c, w.progress)
				if len(left) == 0 {
					break
				}
				w.do(t, left[0])
				if left[0].Kind == balance.StepRelease {
					break
				}
			}
			for i, p := range w.c.Partitions {
				q := before.Partitions[i]
				sortReplicas(p.Replicas)
				sortReplicas(q.Replicas)
				if !reflect.DeepEqual(brokersOf(p), brokersOf(q)) || p.Cell == 1 && p.Leader != q.Leader && !slices.Contains(brokersOf(q), p.Leader) || w.created != 1 {
					t.Errorf("partition %v: %v led by %d, was %v led by %d", p.ID, brokersOf(p), p.Leader, brokersOf(q), q.Leader)
				}
			}
			return
		}
		for range 1000 {
			left := m.Remaining(w.c, w.progress)
			if len(left) == 0 {
				break
			}
			w.do(t, left[0])
		}
		if w.progress != (balance.TenantProgress{Reserved: true, Redirected: true, Committed: true, Released: true}) || w.created != 2 {
			t.Errorf("ended with %+v, new topics in cell %d", w.progress, w.created)
		}
		if m.Rollback(w.c, w.progress) != nil {
			t.Error("a committed move is rolled back")
		}
		for _, p := range w.c.Partitions {
			zones := map[string]bool{}
			for _, r := range p.Replicas {
				b := w.c.Brokers[r.Broker]
				if b.Cell != 2 {
					t.Errorf("partition %v has a copy on broker %d of cell %d", p.ID, b.ID, b.Cell)
				}
				zones[b.Zone] = true
			}
			if len(p.Replicas) != 3 || len(zones) != 3 {
				t.Errorf("partition %v: %d copies in %d zones", p.ID, len(p.Replicas), len(zones))
			}
		}
	})
}

func sortReplicas(r []balance.Replica) {
	slices.SortFunc(r, func(a, b balance.Replica) int { return int(a.Broker - b.Broker) })
}

func brokersOf(p balance.Partition) (ids []balance.BrokerID) {
	for _, r := range p.Replicas {
		ids = append(ids, r.Broker)
	}
	return ids
}

// TestTenantMoveZones: copies go to all zones, also when one zone has much more room.
func TestTenantMoveZones(t *testing.T) {
	w, ids := newTenantWorld()
	for i := range w.c.Brokers {
		if w.c.Brokers[i].Capacity[balance.Disk] = 1 << 50; w.c.Brokers[i].Zone == w.c.Brokers[0].Zone {
			w.c.Brokers[i].Capacity[balance.Disk] = 1 << 58
		}
	}
	m, err := balance.PlanTenantMove(w.c, "t", ids, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range m.Steps {
		zones := map[string]bool{}
		for _, b := range s.Brokers {
			zones[w.c.Brokers[b].Zone] = true
		}
		if s.Kind == balance.StepCopy && len(zones) != 3 {
			t.Errorf("partition %v goes to %v", s.Partition, s.Brokers)
		}
	}
}

// TestTenantMoveLagging: a copy that is not in sync is none, neither on the way to the new cell nor on the way back.
func TestTenantMoveLagging(t *testing.T) {
	w, ids := newTenantWorld()
	m, err := balance.PlanTenantMove(w.c, "t", ids, 2)
	if err != nil {
		t.Fatal(err)
	}
	lag := func(id balance.PartitionID, b balance.BrokerID, lagging bool) {
		for i := range w.c.Partitions {
			for j := range w.c.Partitions[i].Replicas {
				if r := &w.c.Partitions[i].Replicas[j]; w.c.Partitions[i].ID == id && r.Broker == b {
					r.Lagging = lagging
				}
			}
		}
	}
	old := map[balance.PartitionID]balance.BrokerID{}
	for _, p := range w.c.Partitions {
		old[p.ID] = p.Replicas[0].Broker
	}
	copied := 0
	for {
		next := m.Remaining(w.c, w.progress)[0]
		if next.Kind == balance.StepDrop {
			break
		}
		w.do(t, next)
		if next.Kind != balance.StepCopy {
			continue
		}
		copied++
		lag(next.Partition, next.Brokers[1], true)
		if again := m.Remaining(w.c, w.progress)[0]; again.Kind != balance.StepCopy || again.Partition != next.Partition {
			t.Errorf("after a copy that lags: %+v", again)
		}
		lag(next.Partition, next.Brokers[1], false)
	}
	if copied != len(ids) {
		t.Fatalf("%d of %d copied", copied, len(ids))
	}
	if back := m.Rollback(w.c, w.progress); back[0].Kind != balance.StepLead {
		t.Errorf("back: %+v", back[0])
	}
	lag(ids[0], old[ids[0]], true)
	found := false
	for _, s := range m.Rollback(w.c, w.progress) {
		found = found || s.Kind == balance.StepCopy && s.Partition == ids[0] && slices.Equal(s.Brokers, []balance.BrokerID{old[ids[0]]})
	}
	if !found {
		t.Error("back to a copy that lags")
	}
}

func TestTenantMoveRefused(t *testing.T) {
	w, ids := newTenantWorld()
	for name, f := range map[string]func() (balance.TenantMove, error){
		"unknown": func() (balance.TenantMove, error) {
			return balance.PlanTenantMove(w.c, "t", []balance.PartitionID{{Index: 77}}, 2)
		},
		"same cell": func() (balance.TenantMove, error) { return balance.PlanTenantMove(w.c, "t", ids, 1) },
		"no cell":   func() (balance.TenantMove, error) { return balance.PlanTenantMove(w.c, "t", ids, 3) },
		"no room": func() (balance.TenantMove, error) {
			c := w.c.Clone()
			for i := range c.Brokers {
				c.Brokers[i].Capacity[balance.Disk] = 1
			}
			return balance.PlanTenantMove(c, "t", ids, 2)
		},
	} {
		if m, err := f(); !errors.Is(err, balance.ErrTenantMove) || len(m.Steps) != 0 {
			t.Errorf("%s: got %v, %d steps", name, err, len(m.Steps))
		}
	}
	a, _ := balance.PlanTenantMove(w.c, "t", ids, 2)
	slices.Reverse(ids)
	slices.Reverse(w.c.Partitions)
	if b, _ := balance.PlanTenantMove(w.c, "t", ids, 2); !reflect.DeepEqual(a.Steps, b.Steps) {
		t.Error("the order of the input matters")
	}
}
