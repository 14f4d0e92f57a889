package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

// benchBalance measures the load estimator, the planner, the detector and the placement.
func benchBalance() ([]Row, error) {
	var rows []Row
	for _, f := range []func() ([]Row, error){balanceEvents, balanceLoad, balancePlans, balanceBytes, balanceExpansion, balanceStationary, balanceHealth, balancePlacement} {
		r, err := f()
		if err != nil {
			return nil, err
		}
		rows = append(rows, r...)
	}
	return rows, nil
}

var balanceEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// balanceEvents measures the cost of one event of a pool in processor time, and beside it in elapsed time, the inverse of the rate of all
// goroutines: on a shared machine that says more about the neighbours. Raw is two atomic additions: the least that any account of a queue
// costs.
func balanceEvents() ([]Row, error) {
	var rows []Row
	for _, cores := range []int{1, runtime.GOMAXPROCS(0)} {
		var ours, raw, elapsed []float64
		for range 15 {
			p := &balance.Pool{Servers: 8}
			const n = 300_000
			processor, wall, err := perEvent(cores, 3*n, func() {
				now := time.Now()
				for range n {
					now = now.Add(time.Microsecond)
					t := p.Enqueue(now)
					t.Start(now)
					t.Done(now)
				}
			})
			if err != nil {
				return nil, err
			}
			ours, elapsed = append(ours, processor), append(elapsed, wall)
			var count, sum atomic.Int64
			if processor, _, err = perEvent(cores, 3*n, func() {
				for i := range 3 * n {
					count.Add(1)
					sum.Add(int64(i))
				}
			}); err != nil {
				return nil, err
			}
			raw = append(raw, processor)
		}
		mid, spread := median(ours)
		bare, _ := median(raw)
		rows = append(rows, Row{Figure: fmt.Sprintf("pool event cores=%d", cores), Unit: "ns", Ours: mid, Raw: bare, Ratio: mid / bare, Spread: spread})
		mid, spread = median(elapsed)
		rows = append(rows, Row{Figure: fmt.Sprintf("pool event cores=%d/elapsed", cores), Unit: "ns", Ours: mid, Spread: spread})
	}
	p := &balance.Pool{Servers: 8}
	now := time.Now()
	var before, after runtime.MemStats
	p.Enqueue(now)
	runtime.ReadMemStats(&before)
	const n = 100_000
	for range n {
		now = now.Add(time.Microsecond)
		t := p.Enqueue(now)
		t.Start(now)
		t.Done(now)
	}
	runtime.ReadMemStats(&after)
	allocs := math.Floor(float64(after.Mallocs-before.Mallocs) / (3 * n) * 1000)
	return append(rows, Row{Figure: "pool event", Unit: "allocations/1000", Ours: allocs}), nil
}

// processSeconds returns the processor time that the process has used: what a plan takes on a quiet machine.
func processSeconds() (float64, error) {
	d, err := processorTime()
	return d.Seconds(), err
}

// perEvent runs f on cores goroutines, each with n events, and returns nanoseconds an event: of processor time, and of elapsed time over all
// goroutines.
func perEvent(cores, n int, f func()) (processor, elapsed float64, err error) {
	busy, err := processorTime()
	if err != nil {
		return 0, 0, err
	}
	var wg sync.WaitGroup
	start := time.Now()
	for range cores {
		wg.Go(f)
	}
	wg.Wait()
	took := time.Since(start)
	end, err := processorTime()
	events := float64(n * cores)
	return float64((end - busy).Nanoseconds()) / events, float64(took.Nanoseconds()) / events, err
}

// balanceLoad measures the error of the load estimate over simulated queues, in virtual time.
func balanceLoad() ([]Row, error) {
	const ms = time.Millisecond
	exp, con, hyp := balancetest.Exponential(), balancetest.Constant(), balancetest.Hyperexponential(4)
	type queue struct {
		name string
		q    balancetest.Queue
	}
	groups := []struct {
		name   string
		least  float64
		queues []queue
	}{
		{"load error M/G/1", 0, []queue{{"M/M/1", balancetest.Queue{Services: exp}}, {"M/D/1", balancetest.Queue{Services: con}}, {"M/H2/1", balancetest.Queue{Services: hyp}}}},
		{"load error M/M/c rho>=.6", .6, []queue{{"M/M/4", balancetest.Queue{Servers: 4}}, {"M/M/8", balancetest.Queue{Servers: 8}}, {"M/M/16", balancetest.Queue{Servers: 16}}}},
		{"load error elsewhere", 0, []queue{{"D/M/1", balancetest.Queue{Arrivals: con}}, {"H2/M/1", balancetest.Queue{Arrivals: hyp}},
			{"H2/H2/8", balancetest.Queue{Servers: 8, Arrivals: hyp, Services: hyp}}, {"M/M/8 low", balancetest.Queue{Servers: 8}}}},
	}
	var rows []Row
	for _, g := range groups {
		worst, worstRMS := 0.0, 0.0
		for _, k := range g.queues {
			for _, rho := range []float64{.1, .3, .5, .6, .7, .8, .9, .95} {
				if rho < g.least {
					continue
				}
				q := k.q
				q.Service = 2 * ms * time.Duration(max(q.Servers, 1))
				q.Utilization, q.Seed = rho, 11
				pool := &balance.Pool{Servers: max(q.Servers, 1)}
				var n, sum, squares float64
				q.Run(pool, balanceEpoch, 20*time.Minute, 5*time.Second, func(now time.Time) {
					if now.Sub(balanceEpoch) < 3*time.Minute {
						return
					}
					d := pool.Stats(now).Load.Overall - rho
					n, sum, squares = n+1, sum+d, squares+d*d
				})
				worst = max(worst, math.Abs(sum/n))
				worstRMS = max(worstRMS, math.Sqrt(squares/n))
			}
		}
		rows = append(rows, Row{Figure: g.name + " (worst mean)", Unit: "utilisation", Ours: worst}, Row{Figure: g.name + " (worst rms of samples)", Unit: "utilisation", Ours: worstRMS})
	}
	worst := 0.0
	for _, servers := range []int{1, 8} {
		for seed := range uint64(10) {
			pool := &balance.Pool{Servers: servers}
			shown := math.Inf(1)
			const when = 200 * time.Second
			balancetest.Queue{Servers: servers, Utilization: .3, Service: ms, Seed: seed, Stalled: func(d time.Duration) time.Duration {
				if d > when {
					return d + time.Hour
				}
				return 0
			}}.Run(pool, balanceEpoch, when+10*time.Second, 10*ms, func(now time.Time) {
				if d := now.Sub(balanceEpoch) - when; d > 0 && math.IsInf(shown, 1) && pool.Stats(now).Load.Overall > .95 {
					shown = d.Seconds()
				}
			})
			worst = max(worst, shown)
		}
	}
	return append(rows, Row{Figure: "full stall until load > .95 (worst of 20)", Unit: "s", Ours: worst}), nil
}

// balancePlans measures the time and the memory of plans with all goals on. The peers' figures are published ones on other
// hardware: Cruise Control issue 1592, 215 brokers with 2.8 M replicas and 16 goals, in its normal and its fast mode.
func balancePlans() ([]Row, error) {
	var rows []Row
	for _, size := range []struct {
		name                string
		brokers, partitions int
		samples             int
		peers               map[string]float64
	}{
		{"plan replicas=100K brokers=30", 30, 33_334, 5, nil},
		{"plan replicas=1M brokers=90", 90, 333_334, 3, nil},
		{"plan replicas=2.8M brokers=216", 216, 933_334, 3, map[string]float64{"Cruise Control (published)": 5700, "Cruise Control fast (published)": 1092}},
	} {
		c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: size.brokers, Zones: 3, Partitions: size.partitions, Replication: 3, Alpha: 1.5, Cap: 1000, Spread: .5, Skew: 1, Seed: 1})
		r := rand.New(rand.NewPCG(1, 5))
		r.Shuffle(len(c.Partitions), func(i, j int) { c.Partitions[i], c.Partitions[j] = c.Partitions[j], c.Partitions[i] })
		planner, err := balance.NewPlanner(balance.PlanOptions{})
		if err != nil {
			return nil, err
		}
		var times, cpu []float64
		var plan balance.Plan
		peak := 0.0
		for range size.samples {
			runtime.GC()
			debug.FreeOSMemory()
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				var m runtime.MemStats
				for {
					runtime.ReadMemStats(&m)
					peak = max(peak, float64(m.HeapInuse)/(1<<20))
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
			}()
			busy, err := processSeconds()
			if err != nil {
				return nil, err
			}
			start := time.Now()
			plan, err = planner.Plan(c, nil, balanceEpoch)
			end, failed := processSeconds()
			times = append(times, time.Since(start).Seconds())
			cpu = append(cpu, end-busy)
			close(stop)
			<-done
			if err := errors.Join(err, failed); err != nil {
				return nil, err
			}
		}
		if plan.Exhausted == "work" || plan.ReplicaMoves == 0 {
			return nil, errors.New("the plan is not complete")
		}
		mid, spread := median(times)
		cpuMid, cpuSpread := median(cpu)
		rows = append(rows, Row{Figure: size.name, Unit: "s", Ours: mid, Spread: spread, Peers: size.peers},
			Row{Figure: size.name + " processor time, collector included", Unit: "s", Ours: cpuMid, Spread: cpuSpread},
			Row{Figure: size.name + " heap in use with the model", Unit: "MiB", Ours: peak})
		fmt.Fprintf(os.Stderr, "%s: %d replica moves, %d leadership moves\n", size.name, plan.ReplicaMoves, plan.LeaderMoves)
		for _, g := range plan.Goals {
			if !g.Goal.Hard() {
				fmt.Fprintf(os.Stderr, "  %-9v %.3f -> %.3f\n", g.Goal, g.Before, g.After)
			}
		}
		start := time.Now()
		if err := c.Apply(plan.Moves); err != nil {
			return nil, err
		}
		again, err := planner.Plan(c, nil, balanceEpoch)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "  again: %d moves, %v\n", len(again.Moves), time.Since(start))
		if len(again.Triggers) > 0 {
			fmt.Fprintf(os.Stderr, "  again triggers %v\n", again.Triggers)
		}
	}
	return rows, nil
}

// balanceBytes compares the bytes of a plan for one resource with the bound that no plan can pass.
func balanceBytes() ([]Row, error) {
	var rows []Row
	for _, spread := range []float64{0, .5, 1} {
		var ratios []float64
		worst := 0.0
		for seed := range uint64(5) {
			c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 24, Zones: 1, Partitions: 24_000, Replication: 1, Alpha: 1.5, Cap: 100, Spread: spread, Skew: 1, Seed: seed})
			planner, err := balance.NewPlanner(balance.PlanOptions{Goals: []balance.SoftGoal{{Goal: balance.GoalIngress, Trigger: true}}})
			if err != nil {
				return nil, err
			}
			plan, err := planner.Plan(c, nil, balanceEpoch)
			if err != nil {
				return nil, err
			}
			bound := balancetest.BytesBound(c, balance.Ingress, balance.DefaultTarget)
			ratios = append(ratios, float64(plan.Bytes)/float64(bound))
			if err := c.Apply(plan.Moves); err != nil {
				return nil, err
			}
			worst = max(worst, balancetest.Imbalance(c, balance.Ingress))
		}
		mid, sp := median(ratios)
		rows = append(rows, Row{Figure: fmt.Sprintf("bytes over bound, ends at %.3f of the mean, sigma of bytes=%g", worst, spread), Unit: "ratio", Ours: mid, Spread: sp})
	}
	return rows, nil
}

// balanceExpansion compares the planner's moves when 24 brokers become 30 with those of the same rule that takes replicas in random
// order.
func balanceExpansion() ([]Row, error) {
	var rows []Row
	for _, alpha := range []float64{1.1, 1.5, 3} {
		var ours, random []float64
		for seed := range uint64(5) {
			c := expansionCluster(alpha, seed)
			planner, err := balance.NewPlanner(balance.PlanOptions{Goals: []balance.SoftGoal{{Goal: balance.GoalDisk, Trigger: true}}})
			if err != nil {
				return nil, err
			}
			plan, err := planner.Plan(c, nil, balanceEpoch)
			if err != nil {
				return nil, err
			}
			n, _, _ := balancetest.Expand(c, balancetest.RandomOrder, .91, 1.09, seed)
			ours = append(ours, float64(plan.ReplicaMoves))
			random = append(random, float64(n))
		}
		mid, spread := median(ours)
		base, _ := median(random)
		rows = append(rows, Row{Figure: fmt.Sprintf("expansion 24 to 30, Pareto %g", alpha), Unit: "moves", Ours: mid, Ratio: mid / base, Spread: spread, Peers: map[string]float64{"random order": base}})
	}
	return rows, nil
}

func expansionCluster(alpha float64, seed uint64) balance.Cluster {
	c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 24, Zones: 1, Partitions: 24_000, Replication: 1, Alpha: alpha, Cap: 1e4, Seed: seed})
	for i := range 6 {
		c.Brokers = append(c.Brokers, balance.Broker{ID: balance.BrokerID(24 + i), Zone: "a", MaxReplicas: 1 << 20, State: balance.Joining})
	}
	return c
}

// balanceStationary counts moves under loads that stand still but are noisy: 5 % on each replica, 120 rounds in an hour.
func balanceStationary() ([]Row, error) {
	c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: 24, Zones: 3, Partitions: 4000, Replication: 3, Alpha: 1.5, Cap: 100, Spread: .5, Skew: 1, Seed: 2})
	planner, err := balance.NewPlanner(balance.PlanOptions{})
	if err != nil {
		return nil, err
	}
	plan, err := planner.Plan(c, nil, balanceEpoch)
	if err != nil {
		return nil, err
	}
	if err := c.Apply(plan.Moves); err != nil {
		return nil, err
	}
	var ledger balance.Ledger
	r := rand.New(rand.NewPCG(3, 3))
	moves := 0
	for round := range 120 {
		d := c.Clone()
		for i := range d.Partitions {
			f := math.Exp(.05 * r.NormFloat64())
			scale := func(l *balance.Loads) {
				for k := range l {
					l[k] = int64(float64(l[k]) * f)
				}
			}
			scale(&d.Partitions[i].Leadership)
			for j := range d.Partitions[i].Replicas {
				scale(&d.Partitions[i].Replicas[j].Load)
			}
		}
		plan, err := planner.Plan(d, &ledger, balanceEpoch.Add(time.Duration(round)*30*time.Second))
		if err != nil {
			return nil, err
		}
		moves += len(plan.Moves)
	}
	return []Row{{Figure: "moves under stationary load", Unit: "moves/h", Ours: float64(moves)}}, nil
}

// balanceHealth measures false alarms and delays of the detector on lognormal noise of sigma .5 that is correlated over rounds of 10 s.
func balanceHealth() ([]Row, error) {
	var rows []Row
	const day = 8640
	for _, phi := range []float64{.5, .8} {
		alarms, days := 0, 0
		for _, n := range []int{5, 12, 24} {
			for seed := range uint64(2) {
				rounds := 1000 * day / n
				ds, _ := balancetest.HealthTrial{Brokers: n, Zones: 3, Sigma: .5, Correlation: phi, Load: .5, Seed: 100 + seed}.Run(balance.NewMonitor(balance.HealthOptions{}), rounds)
				for _, d := range ds {
					if d.Action == balance.LeaveISR && d.Suppressed == "" {
						alarms++
					}
				}
				days += rounds * n / day
			}
		}
		rows = append(rows, Row{Figure: fmt.Sprintf("false alarms, sigma=.5 correlation=%g, %d broker-days", phi, days), Unit: "per 1000 broker-days", Ours: 1000 * float64(alarms) / float64(days)})
	}
	for _, noise := range [][2]float64{{.3, .5}, {.5, .5}} {
		for _, factor := range []float64{2, 5, 10} {
			var delays []float64
			in := 0
			const trials = 300
			limit := 60.0
			if factor == 2 {
				limit = 300
			}
			for k := range trials {
				ds, at := balancetest.HealthTrial{Brokers: []int{5, 12, 24}[k%3], Zones: 3, Sigma: noise[0], Correlation: noise[1], Load: []float64{.3, .5, .7}[k/3%3], SlowFrom: 100, Factor: factor, Seed: uint64(k)}.
					Run(balance.NewMonitor(balance.HealthOptions{}), 250)
				delay := math.Inf(1)
				for i, d := range ds {
					if d.Broker == 0 && d.Action == balance.LeaveISR && d.Suppressed == "" && at[i] >= 100 {
						delay = float64(at[i]-99) * balancetest.Round.Seconds()
						break
					}
				}
				delays = append(delays, delay)
				if delay <= limit {
					in++
				}
			}
			slices.Sort(delays)
			name := fmt.Sprintf("broker %gx as slow, sigma=%g correlation=%g", factor, noise[0], noise[1])
			rows = append(rows, Row{Figure: name + ": decided after (median)", Unit: "s", Ours: delays[trials/2]},
				Row{Figure: fmt.Sprintf("%s: share within %g s", name, limit), Unit: "share", Ours: float64(in) / trials})
		}
	}
	return rows, nil
}

// balancePlacement compares two-choice placement of unit tenants with the law of the reference, fresh and stale.
func balancePlacement() ([]Row, error) {
	const n, tenants, trials = 6, 600, 400
	var rows []Row
	for _, law := range []struct {
		refresh int
		want    float64
	}{{1, 1.0092}, {6, 1.014}, {30, 1.038}, {60, 1.067}, {150, 1.174}} {
		got := [2]float64{}
		for k, expected := range []float64{0, 1} {
			r := rand.New(rand.NewPCG(9, uint64(law.refresh)))
			for range trials {
				loads := make([]float64, n)
				cells := make([]balance.CellState, n)
				p := balance.Placement{Full: math.Inf(1)}
				for i := range cells {
					cells[i].ID = balance.CellID(i + 1)
				}
				for t := range tenants {
					now := balanceEpoch.Add(time.Duration(t) * time.Second)
					if t%law.refresh == 0 {
						for i := range cells {
							cells[i].Load, cells[i].Reported = loads[i], now
						}
					}
					id, err := p.Place(r, cells, balance.TenantID(fmt.Sprint(t)), expected, now)
					if err != nil {
						return nil, err
					}
					loads[id-1]++
				}
				got[k] += slices.Max(loads) * n / tenants / trials
			}
		}
		rows = append(rows, Row{Figure: fmt.Sprintf("placement max/mean, reports every %d placements", law.refresh), Unit: "ratio", Ours: got[0], Raw: law.want, Ratio: got[0] / law.want,
			Peers: map[string]float64{"ours with provisional load": got[1]}})
	}
	return rows, nil
}
