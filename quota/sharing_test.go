package quota_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

// cluster drives real limiters, agents and coordinators in virtual time over a network that the test can spoil.
type cluster struct {
	t       testing.TB
	rng     *rand.Rand
	now     time.Duration
	term    uint64
	nodes   []*node
	queue   []message
	sent    int
	deliver func(from, to int) (delays []time.Duration) // none: lost; several: repeated

	quota   float64
	checked int
	// exact checks the sum of limits at every step.
	exact bool
}

type node struct {
	limiter     *quota.Limiter
	agent       *quota.Agent
	coordinator *quota.Coordinator
	skew        quota.Instant
	dead        bool // does nothing at all
	mute        bool // its coordinator does nothing
	offered     float64
	admitted    float64 // in the last period
	total       float64
}

type message struct {
	at  time.Duration
	n   int
	run func()
}

const step = 50 * time.Millisecond

func newCluster(t testing.TB, seed uint64, n int, rate float64, rule quota.Rule) *cluster {
	c := &cluster{t: t, rng: rand.New(rand.NewPCG(seed, 0)), quota: rate, exact: true}
	c.deliver = func(from, to int) []time.Duration { return []time.Duration{50 * time.Millisecond} }
	for i := range n {
		l := newLimiter(t, quota.Setting{Entity: tenantDefault, Kind: quota.Ingress, Quota: quota.Quota{Rate: quota.Rate(rate)}})
		nd := &node{limiter: l, skew: quota.Instant(c.rng.Int64N(int64(time.Hour)))}
		var err error
		if nd.agent, err = quota.NewAgent(quota.BrokerID(i), l, rule); err != nil {
			t.Fatal(err)
		}
		if nd.coordinator, err = quota.NewCoordinator(quota.BrokerID(i), rule, l.TenantRate); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, nd)
	}
	c.newTerm(0)
	return c
}

// newTerm tells all nodes of the members, each at some time up to spread from now.
func (c *cluster) newTerm(spread time.Duration) {
	c.term++
	m := quota.Members{Term: c.term}
	for i := range c.nodes {
		m.Brokers = append(m.Brokers, quota.BrokerID(i))
	}
	for _, nd := range c.nodes {
		tell := func() {
			nd.coordinator.SetMembers(m, c.at(nd))
			nd.agent.SetMembers(m, c.at(nd))
		}
		if spread == 0 {
			tell()
		} else {
			c.after(time.Duration(c.rng.Int64N(int64(spread))), tell)
		}
	}
}

func (c *cluster) at(n *node) quota.Instant { return quota.Instant(c.now) + n.skew }

func (c *cluster) after(d time.Duration, run func()) {
	c.sent++
	c.queue = append(c.queue, message{c.now + d, c.sent, run})
}

func (c *cluster) send(from, to int, run func()) {
	if from == to {
		run()
		return
	}
	for _, d := range c.deliver(from, to) {
		c.after(d, func() {
			if !c.nodes[to].dead {
				run()
			}
		})
	}
}

// run lets time pass. Nodes tick every 250 ms, each at its own phase.
func (c *cluster) run(d time.Duration, each func()) {
	for end := c.now + d; c.now < end; {
		c.now += step
		slices.SortFunc(c.queue, func(a, b message) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
		for len(c.queue) > 0 && c.queue[0].at <= c.now {
			m := c.queue[0]
			c.queue = c.queue[1:]
			m.run()
			c.check()
		}
		for i, nd := range c.nodes {
			if !nd.dead && (int(c.now/step)+i)%5 == 0 {
				c.tick(i, nd)
			}
		}
		for _, nd := range c.nodes {
			c.traffic(nd)
		}
		c.check()
		if each != nil {
			each()
		}
	}
}

func (c *cluster) tick(i int, nd *node) {
	nd.agent.Tick(c.at(nd))
	for _, r := range nd.agent.Reports(c.at(nd)) {
		to := c.nodes[r.To]
		c.send(i, int(r.To), func() { to.coordinator.Report(r, c.at(to)) })
	}
	if nd.mute {
		return
	}
	for _, g := range nd.coordinator.Step(c.at(nd)) {
		to := c.nodes[g.To]
		c.send(i, int(g.To), func() { to.agent.Apply(g, c.at(to)) })
	}
	nd.admitted = 0
}

// traffic lets clients of the tenant send what they have in pieces, while they are not delayed.
func (c *cluster) traffic(nd *node) {
	if nd.dead {
		return
	}
	piece := nd.offered * step.Seconds() / 10
	for range 10 {
		if piece >= 1 && nd.limiter.Delay(keyA, quota.Ingress, c.at(nd)) == 0 {
			nd.limiter.Charge(keyA, quota.Ingress, int64(piece), c.at(nd))
			nd.admitted += piece
			nd.total += piece
		}
	}
}

func (c *cluster) limit(i int) float64 {
	limit, _, ok := c.nodes[i].agent.Limit("a", quota.Ingress, c.at(c.nodes[i]))
	if !ok {
		c.t.Fatal("no quota")
	}
	return limit
}

func (c *cluster) check() {
	if !c.exact {
		return
	}
	c.checked++
	sum := 0.0
	limits := make([]float64, len(c.nodes))
	for i := range c.nodes {
		limits[i] = c.limit(i)
		sum += limits[i]
	}
	if sum > c.quota*(1+1e-9) {
		c.t.Fatalf("at %v the limits in force add up to %.4f of the quota: %.0f", c.now, sum/c.quota, limits)
	}
}

// reach runs until the condition has held for 2 s, and returns when that began.
func (c *cluster) reach(limit time.Duration, ok func() bool) time.Duration {
	start, since := c.now, time.Duration(-1)
	for c.now < start+limit {
		c.run(step, nil)
		switch {
		case !ok():
			since = -1
		case since < 0:
			since = c.now
		case c.now-since > 2*time.Second:
			return since - start
		}
	}
	c.t.Fatalf("not reached within %v", limit)
	return 0
}

const million = 1e6

// TestConvergence moves all traffic from one broker of 24 to another, and lets a newcomer join a saturated broker.
func TestConvergence(t *testing.T) {
	t.Run("shift", func(t *testing.T) {
		c := newCluster(t, 1, 24, 240*million, quota.Rule{})
		c.nodes[0].offered = 240 * million
		c.run(20*time.Second, nil)
		c.nodes[0].offered, c.nodes[1].offered = 0, 240*million
		if d := c.reach(30*time.Second, func() bool { return c.limit(1) >= 0.95*c.quota }); d > 1500*time.Millisecond {
			t.Errorf("95 %% of the quota after %v, want at most 1.5 s", d)
		}
	})
	t.Run("newcomer", func(t *testing.T) {
		c := newCluster(t, 2, 24, 240*million, quota.Rule{})
		c.nodes[0].offered = 500 * million
		c.run(20*time.Second, nil)
		c.nodes[1].offered = 500 * million
		if d := c.reach(30*time.Second, func() bool { return c.limit(1) >= 0.95*c.quota/2 }); d > 2*time.Second {
			t.Errorf("95 %% of the fair part after %v, want at most 2 s", d)
		}
	})
}

// TestSafety keeps the sum of all limits in force within the quota while messages are lost, late, repeated and overtaken, nodes are cut off, and
// coordinators start anew.
func TestSafety(t *testing.T) {
	seeds := 30
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			c := newCluster(t, uint64(seed), 3+seed%6, 100*million, quota.Rule{})
			deaf, dumb := make([]bool, len(c.nodes)), make([]bool, len(c.nodes))
			loss := c.rng.Float64() * 0.5
			c.deliver = func(from, to int) (delays []time.Duration) {
				if dumb[from] || deaf[to] {
					return nil
				}
				for range 1 + c.rng.IntN(2) {
					if c.rng.Float64() > loss {
						delays = append(delays, time.Duration(c.rng.Int64N(int64(400*time.Millisecond))))
					}
				}
				return delays
			}
			moved := 0
			before := make([]float64, len(c.nodes))
			for range 120 {
				switch i := c.rng.IntN(len(c.nodes)); c.rng.IntN(8) {
				case 0:
					deaf[i], dumb[i] = c.rng.IntN(3) == 0, c.rng.IntN(3) == 0
				case 1:
					c.nodes[i].mute = c.rng.IntN(3) == 0
				case 2:
					if c.rng.IntN(4) == 0 {
						// A coordinator in a new life: all learn of it, but not at once.
						nd := c.nodes[i]
						nd.coordinator, _ = quota.NewCoordinator(quota.BrokerID(i), quota.Rule{}, nd.limiter.TenantRate)
						c.newTerm(time.Second)
					}
				default:
					c.nodes[i].offered = []float64{0, 10, 50, 100, 300}[c.rng.IntN(5)] * million
				}
				c.run(time.Duration(c.rng.Int64N(int64(2*time.Second))), nil)
				for i := range before {
					if l := c.limit(i); l != before[i] {
						moved++
						before[i] = l
					}
				}
			}
			if moved < 10 {
				t.Errorf("limits moved only %d times: the run shows nothing", moved)
			}
		})
	}
}

// TestCoordinatorLost checks what becomes of shares when nobody renews them: the static split, and at no time more than the quota.
func TestCoordinatorLost(t *testing.T) {
	c := newCluster(t, 3, 4, 100*million, quota.Rule{})
	c.nodes[0].offered = 300 * million
	c.run(10*time.Second, nil)
	if got := c.limit(0); got < 0.9*c.quota {
		t.Fatalf("limit %.0f before the loss, want nearly all", got)
	}
	for _, nd := range c.nodes {
		nd.mute = true
	}
	c.run(quota.DefaultLease/2, nil)
	if got := c.limit(0); got < 0.9*c.quota {
		t.Errorf("limit %.0f within the lease, want it kept", got)
	}
	total := c.nodes[0].total
	c.run(4*quota.DefaultLease, nil)
	if got := c.nodes[0].total - total; got > c.quota*(4*quota.DefaultLease+quota.DefaultBurst*2).Seconds() {
		t.Errorf("%.0f admitted after the loss: more than the quota", got)
	}
	for i := range c.nodes {
		if got := c.limit(i); math.Abs(got-c.quota/4) > 1 {
			t.Errorf("limit of broker %d is %.0f at last, want the static split", i, got)
		}
	}
	for _, nd := range c.nodes {
		nd.mute = false
	}
	c.reach(10*time.Second, func() bool { return c.limit(0) > 0.9*c.quota })
}

// TestOverAdmission lets a tenant at its quota move its traffic about as it likes, to gain from lazy throttling, and checks the declared bound.
func TestOverAdmission(t *testing.T) {
	for seed := range 4 {
		c := newCluster(t, uint64(seed), 6, 100*million, quota.Rule{})
		c.exact = false
		var sums []float64 // by step since the start
		for range 60 {
			for _, nd := range c.nodes {
				nd.offered = []float64{0, 0, 5, 30, 200}[c.rng.IntN(5)] * million
			}
			c.run(time.Duration(c.rng.Int64N(int64(3*time.Second))), func() {
				sum := 0.0
				for _, nd := range c.nodes {
					sum += nd.total
				}
				sums = append(sums, sum)
			})
		}
		declared := (quota.LazyOverrun(quota.Rule{}, quota.DefaultBurst, len(c.nodes), 100*time.Millisecond)).Seconds() * c.quota
		worst := math.Inf(-1)
		for n := 20; n < len(sums); n *= 2 {
			for i := n; i < len(sums); i++ {
				worst = max(worst, sums[i]-sums[i-n]-float64(n)*step.Seconds()*c.quota)
			}
		}
		t.Logf("seed %d: at most %.2f s of the quota above it, declared %.2f s", seed, worst/c.quota, declared/c.quota)
		if worst > declared {
			t.Errorf("seed %d: %.0f above the quota, more than the declared %.0f", seed, worst, declared)
		}
	}
}
