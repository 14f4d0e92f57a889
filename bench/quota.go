package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/cordwood-io/cordwood/quota"
)

// benchQuota measures what a charge costs beside x/time/rate, what a party costs in memory, and what the coordinator costs in a period.
func benchQuota() ([]Row, error) {
	charges, err := quotaCharges()
	if err != nil {
		return nil, err
	}
	memory, err := quotaMemory()
	if err != nil {
		return nil, err
	}
	division, err := quotaDivision()
	if err != nil {
		return nil, err
	}
	return append(append(charges, memory...), division...), nil
}

func quotaSettings(entities ...quota.Entity) (all []quota.Setting) {
	for _, e := range entities {
		all = append(all, quota.Setting{Entity: e, Kind: quota.Ingress, Quota: quota.Quota{Rate: 1e9}})
	}
	return all
}

// quotaCharges takes samples of ours and of x/time/rate in turn, in processor time. Ours finds its bucket by the key,
// x/time/rate's is at hand. Both are given the time, so that reading a clock is no part of it; the rows with
// clock=true read it.
func quotaCharges() ([]Row, error) {
	tenant := quota.Entity{Tenant: quota.ByDefault()}
	principal := quota.Entity{Tenant: quota.ByDefault(), Principal: quota.ByDefault()}
	client := quota.Entity{Tenant: quota.ByDefault(), Principal: quota.ByDefault(), Client: quota.ByDefault()}
	one, err := quota.NewLimiter(quota.Options{Settings: quotaSettings(tenant)})
	if err != nil {
		return nil, err
	}
	three, err := quota.NewLimiter(quota.Options{Settings: quotaSettings(tenant, principal, client)})
	if err != nil {
		return nil, err
	}
	keys := make([]quota.Key, 1000)
	for i := range keys {
		keys[i] = quota.Key{Tenant: "lkc-" + strconv.Itoa(i), Principal: "alice", Client: "producer-1"}
		one.Charge(keys[i], quota.Ingress, 1, 0)
		three.Charge(keys[i], quota.Ingress, 1, 0)
	}
	peer := rate.NewLimiter(1e9, 1e9)
	peers := make([]*rate.Limiter, 3)
	for i := range peers {
		peers[i] = rate.NewLimiter(1e9, 1e9)
	}
	bucket := quota.NewBucket(1e9, 1e9, 1e9, 0)
	start := time.Now()
	now := quota.Instant(0)

	charge := func(l *quota.Limiter, keys []quota.Key) func(int) {
		return func(n int) {
			k := 0
			for range n {
				now += 100
				l.Charge(keys[k], quota.Ingress, 100, now)
				if k++; k == len(keys) {
					k = 0
				}
			}
		}
	}
	figures := []struct {
		name            string
		ours, peer, raw func(n int)
	}{
		{"charge/levels=1", charge(one, keys[7:8]), func(n int) {
			at := start
			for range n {
				at = at.Add(100)
				peer.ReserveN(at, 100)
			}
		}, func(n int) {
			for range n {
				now += 100
				bucket.Charge(100, now)
			}
		}},
		{"charge/levels=3", charge(three, keys[7:8]), func(n int) {
			at := start
			for range n {
				at = at.Add(100)
				for _, p := range peers {
					p.ReserveN(at, 100)
				}
			}
		}, nil},
		{"charge/levels=1/tenants=1000", charge(one, keys), nil, nil},
		{"charge/levels=3/tenants=1000", charge(three, keys), nil, nil},
		{"charge/levels=1/clock=true", func(n int) {
			for range n {
				one.Charge(keys[7], quota.Ingress, 100, one.Now())
			}
		}, func(n int) {
			for range n {
				peer.AllowN(time.Now(), 100)
			}
		}, nil},
		{"charge/levels=1/goroutines=8/tenants=1", parallel(func() func() {
			at := quota.Instant(0)
			return func() { at += 100; one.Charge(keys[7], quota.Ingress, 100, at) }
		}), parallel(func() func() {
			at := start
			return func() { at = at.Add(100); peer.ReserveN(at, 100) }
		}), nil},
	}
	var rows []Row
	for _, f := range figures {
		var ours, theirs, raw, elapsed []float64
		for range 11 {
			processor, wall, err := sample(f.ours)
			if err != nil {
				return nil, err
			}
			ours, elapsed = append(ours, processor), append(elapsed, wall)
			if f.peer != nil {
				if processor, _, err = sample(f.peer); err != nil {
					return nil, err
				}
				theirs = append(theirs, processor)
			}
			if f.raw != nil {
				if processor, _, err = sample(f.raw); err != nil {
					return nil, err
				}
				raw = append(raw, processor)
			}
		}
		row := Row{Figure: f.name, Unit: "ns/op"}
		row.Ours, row.Spread = median(ours)
		if theirs != nil {
			mid, _ := median(theirs)
			row.Peers = map[string]float64{"x/time/rate": mid}
			row.Ratio = row.Ours / mid
		}
		if raw != nil {
			row.Raw, _ = median(raw)
		}
		clock := Row{Figure: f.name + "/elapsed", Unit: "ns/op"}
		clock.Ours, clock.Spread = median(elapsed)
		rows = append(rows, row, clock)
	}
	for name, l := range map[string]*quota.Limiter{"charge/levels=1": one, "charge/levels=3": three} {
		allocs := testing.AllocsPerRun(1000, func() { now += 100; l.Charge(keys[7], quota.Ingress, 100, now) })
		rows = append(rows, Row{Figure: name + "/allocations", Unit: "allocs/op", Ours: allocs})
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.Figure, b.Figure) })
	return rows, nil
}

// sample returns the nanoseconds of processor and of elapsed time of one operation. On a quiet machine they are the same for one goroutine; on a
// shared one the elapsed time says more about the neighbours.
func sample(run func(n int)) (processor, elapsed float64, err error) {
	const n = 1_000_000
	busy, err := processorTime()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	run(n)
	took := time.Since(began)
	now, err := processorTime()
	return float64(now-busy) / n, float64(took) / n, err
}

// parallel runs an operation on eight goroutines.
func parallel(make func() func()) func(int) {
	return func(n int) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				op := make()
				for range n / 8 {
					op()
				}
			})
		}
		wg.Wait()
	}
}

// quotaMemory fills a limiter with 100 000 tenants, all of them in debt on four kinds.
func quotaMemory() ([]Row, error) {
	const tenants = 100_000
	kinds := []quota.Kind{quota.Ingress, quota.Egress, quota.RequestTime, quota.ConnectionRate}
	var settings []quota.Setting
	for _, kind := range kinds {
		settings = append(settings, quota.Setting{Entity: quota.Entity{Tenant: quota.ByDefault()}, Kind: kind, Quota: quota.Quota{Rate: 1000}})
	}
	l, err := quota.NewLimiter(quota.Options{Settings: settings})
	if err != nil {
		return nil, err
	}
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	for i := range tenants {
		key := quota.Key{Tenant: "lkc-" + strconv.Itoa(i)}
		for _, kind := range kinds {
			l.Charge(key, kind, 10_000, 0)
		}
	}
	bytes := heap() - before
	if n := l.Stats(0).Tenants; n != tenants {
		return nil, fmt.Errorf("%d tenants kept, want %d", n, tenants)
	}
	began := time.Now()
	removed := l.Expire(quota.Instant(time.Hour))
	took := time.Since(began)
	if removed != tenants {
		return nil, fmt.Errorf("%d tenants forgotten, want %d", removed, tenants)
	}
	runtime.KeepAlive(l)
	return []Row{
		{Figure: "memory/tenants=100000/kinds=4", Unit: "MiB", Ours: bytes / (1 << 20)},
		{Figure: "expire/tenants=100000", Unit: "ms", Ours: took.Seconds() * 1e3},
	}, nil
}

// quotaDivision lets a coordinator take the reports of 100 brokers on 1000 tenants and divide, period after period, in processor time, the
// collector's included.
func quotaDivision() ([]Row, error) {
	const tenants, brokers = 1000, 100
	c, err := quota.NewCoordinator(0, quota.Rule{}, func(string, quota.Kind) quota.Rate { return 1e8 })
	if err != nil {
		return nil, err
	}
	members := quota.Members{Term: 1, Coordinators: []quota.BrokerID{0}}
	for b := range quota.BrokerID(brokers) {
		members.Brokers = append(members.Brokers, b)
	}
	c.SetMembers(members, 0)
	names := make([]string, tenants)
	for i := range names {
		names[i] = "lkc-" + strconv.Itoa(i)
	}
	var steps, reports []float64
	applied := uint64(0)
	for period := range 20 {
		now := quota.Instant(period) * quota.Instant(quota.DefaultPeriod)
		var all []quota.Report
		for b := range quota.BrokerID(brokers) {
			r := quota.Report{From: b, Term: 1, Seq: uint64(period + 1), At: now, Applied: applied, Full: applied == 0}
			for i, name := range names {
				load := float64((i*7+int(b)*13+period*5)%100+1) * 2e4 // some tenants above their quota
				r.Uses = append(r.Uses, quota.Use{Tenant: name, Kind: quota.Ingress, Rate: load, Throttled: (i+int(b)+period)%10 == 0, Limit: 1e6})
			}
			all = append(all, r)
		}
		began, err := processorTime()
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			c.Report(r, now)
		}
		middle, err := processorTime()
		if err != nil {
			return nil, err
		}
		grants := c.Step(now)
		end, err := processorTime()
		if err != nil {
			return nil, err
		}
		if period >= 3 { // past the first reports
			reports = append(reports, (middle-began).Seconds()*1e3)
			steps = append(steps, (end-middle).Seconds()*1e3)
		}
		applied = grants[0].Seq
	}
	step := Row{Figure: "divide/tenants=1000/brokers=100", Unit: "ms"}
	step.Ours, step.Spread = median(steps)
	report := Row{Figure: "reports/tenants=1000/brokers=100", Unit: "ms"}
	report.Ours, report.Spread = median(reports)
	return []Row{step, report}, nil
}
