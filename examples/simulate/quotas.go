package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

// The model. A tenant's quota is worth 100 MB/s. What its clients offer on a broker is its mean use times the broker's part of it (Zipf, in random
// order) times lognormal noise (sigma 0.5, correlated over 3 s, mean 1); every five minutes on average the hottest broker trades its part with
// another at once. Offers stand still for one period. A broker admits by a token bucket with a burst of 3 s; what it does not admit is lost to the
// clients, not queued. Brokers report at the end of each period, the coordinator has the reports half the delay later and divides, and its
// grants are in force another half later.
const (
	modelQuota   = 100e6 // bytes per second
	modelPeriod  = quota.DefaultPeriod
	modelDelay   = 100 * time.Millisecond // from the report to the grant in force
	noiseSigma   = 0.5
	noiseMemory  = 3 * time.Second
	shiftEvery   = 5 * time.Minute
	allTenants   = 10_000 // in each population
	warmUp       = 10 * time.Second
	windowLength = time.Minute
	windowCount  = 40 // that stand for each tenant's week
	week         = 7 * 24 * time.Hour
	sloMinutes   = 5.04 // of unfair throttling in a week: 0.05 % of the time
)

// population is a set of tenants that are simulated alike.
type population struct {
	name    string
	brokers int // that serve each tenant
	// draw returns a tenant's mean use as a part of its quota, and the exponent of its skew.
	draw func(rng *rand.Rand) (load, skew float64)
}

func fixed(load float64) func(*rand.Rand) (float64, float64) {
	return func(*rand.Rand) (float64, float64) { return load, 1 }
}

// The two loads are hard on purpose: every tenant is busy, on 24 brokers, and the hottest broker has a quarter of its traffic. The fleet is like
// one of a cloud: cells of six brokers, most tenants far below their quota. Its median use was chosen so that about 99 % of
// tenants meet the objective with the static split, as Kora reports; what the other policies make of it is a result.
var populations = []population{
	{"70", 24, fixed(0.7)},
	{"90", 24, fixed(0.9)},
	{"fleet", 6, func(rng *rand.Rand) (float64, float64) {
		return min(0.9, fleetMedian*math.Exp(0.8*rng.NormFloat64())), rng.Float64()
	}},
}

const fleetMedian = 0.04

// policy is one way to share the quota.
type policy struct {
	name          string
	dynamic, lazy bool
}

var policies = []policy{{"static", false, false}, {"dynamic", true, false}, {"lazy", true, true}}

func ruleOf(p policy) quota.Rule {
	r := quota.Rule{Period: modelPeriod, LazyFactor: 1}
	if p.lazy {
		r.LazyFactor = quota.DefaultLazyFactor
	}
	return r
}

// bucket is what a broker has of one tenant's quota.
type bucket struct {
	limit  float64 // in force
	next   float64 // in force after the delay
	tokens float64
}

// world is one tenant under one policy.
type world struct {
	policy
	rule    quota.Rule
	group   *quota.Group
	seq     uint64
	buckets []bucket
	lazyOn  bool // in force
	lazyTo  bool // in force after the delay

	unfair, delayed, offered, over float64
	seconds                        float64
	admitted                       []float64 // by the whole cluster, in each period since the start
}

func newWorld(p policy, brokers int) *world {
	return &world{policy: p, rule: ruleOf(p), buckets: make([]bucket, brokers)}
}

func (w *world) reset() {
	n := len(w.buckets)
	if w.dynamic {
		w.group, _ = quota.NewGroup(w.rule, n, modelQuota)
	}
	w.seq, w.lazyOn, w.lazyTo = 0, false, false
	for i := range w.buckets {
		even := modelQuota / float64(n)
		w.buckets[i] = bucket{even, even, even * quota.DefaultBurst.Seconds()}
	}
	w.admitted = w.admitted[:0]
}

// run passes what is offered for dt seconds at a rate and returns what was admitted and how long the broker throttled.
func (b *bucket) run(offered, rate, dt float64) (admitted, throttled float64) {
	want := offered * dt
	left := b.tokens + rate*dt - want
	if left >= 0 {
		b.tokens = min(left, rate*burstSeconds)
		return want, 0
	}
	// The tokens last until the bucket is empty; from then on the broker admits its rate.
	b.tokens = 0
	return want + left, min(dt, -left/(offered-rate))
}

// atMost is min for what seldom is above: a branch is faster then.
func atMost(v, most float64) float64 {
	if v > most {
		return most
	}
	return v
}

// In constants of the model the compiler multiplies and divides for us.
const (
	burstSeconds  = float64(quota.DefaultBurst) / float64(time.Second)
	periodSeconds = float64(modelPeriod) / float64(time.Second)
	delaySeconds  = float64(modelDelay) / float64(time.Second)
)

// step runs one period with what the brokers are offered per second. Results count if measure is set.
func (w *world) step(offers []float64, measure bool) {
	total, longest, offered := 0.0, 0.0, 0.0
	if w.dynamic {
		total, longest, offered = w.share(offers)
	} else {
		for i, o := range offers {
			b := &w.buckets[i]
			offered += o
			a, t := b.run(o, b.limit, periodSeconds)
			total += a
			if t > longest {
				longest = t
			}
		}
	}
	w.admitted = append(w.admitted, total)
	if measure {
		w.seconds += periodSeconds
		if total < quota.BelowQuota*modelQuota*periodSeconds {
			w.unfair += longest
		}
		w.offered += offered * periodSeconds
		w.delayed += offered*periodSeconds - total
		w.over += max(0, total-modelQuota*periodSeconds)
	}
}

// share runs one period in which the brokers get new limits after the delay, and lets the group divide at its end.
func (w *world) share(offers []float64) (total, longest, offered float64) {
	before, after := 1.0, 1.0
	if w.lazyOn {
		before = w.rule.LazyFactor
	}
	if w.lazyTo {
		after = w.rule.LazyFactor
	}
	buckets := w.buckets[:len(offers)]
	for i, o := range offers {
		b := &buckets[i]
		a1, t1 := b.run(o, atMost(b.limit*before, modelQuota), delaySeconds)
		a2, t2 := b.run(o, atMost(b.next*after, modelQuota), periodSeconds-delaySeconds)
		b.limit = b.next
		a, t := a1+a2, t1+t2
		w.group.Report(i, a/periodSeconds, t > 0, w.seq)
		offered += o
		total += a
		if t > longest {
			longest = t
		}
	}
	w.lazyOn = w.lazyTo
	w.seq++
	w.group.Step(modelQuota, w.seq, false)
	for i := range buckets {
		buckets[i].next, _ = w.group.Limit(i)
	}
	w.lazyTo = w.group.Lazy()
	return total, longest, offered
}

// worst returns the most that the cluster admitted in any window of length T above the quota times T.
func (w *world) worst(window time.Duration) float64 {
	n := int(window / modelPeriod)
	sum, most := 0.0, math.Inf(-1)
	for i, a := range w.admitted {
		sum += a
		if i >= n {
			sum -= w.admitted[i-n]
		}
		if i >= n-1 {
			most = max(most, sum)
		}
	}
	return most - modelQuota*window.Seconds()
}

// offers makes what a tenant's clients offer to each broker, as parts of the tenant's mean use.
type offers struct {
	source *rand.PCG
	rng    *rand.Rand // of source
	share  []float64
	noise  []float64
	out    []float64
	shift  float64 // seconds until the next one
}

func newOffers(source *rand.PCG, brokers int, load, skew float64) *offers {
	rng := rand.New(source)
	o := &offers{source: source, rng: rng, share: make([]float64, brokers), noise: make([]float64, brokers), out: make([]float64, brokers)}
	sum := 0.0
	for i := range o.share {
		o.share[i] = math.Pow(float64(i+1), -skew)
		sum += o.share[i]
	}
	for i := range o.share {
		o.share[i] *= load * modelQuota / sum
		o.noise[i] = rng.NormFloat64()
	}
	rng.Shuffle(brokers, func(i, j int) { o.share[i], o.share[j] = o.share[j], o.share[i] })
	o.shift = rng.ExpFloat64() * shiftEvery.Seconds()
	return o
}

var (
	noiseKeep = math.Exp(-modelPeriod.Seconds() / noiseMemory.Seconds())
	noiseNew  = math.Sqrt(1 - noiseKeep*noiseKeep)
)

// curve is a function on [-8, 8] by linear interpolation, to within a millionth here: math.Exp took a sixth of the whole time.
type curve [16*curveSteps + 2]float64

const curveSteps = 256 // per unit

func newCurve(f func(float64) float64) *curve {
	var c curve
	for i := range c {
		c[i] = f(float64(i)/curveSteps - 8)
	}
	return &c
}

func (c *curve) at(x float64) float64 {
	p := (x + 8) * curveSteps
	i := int(p)
	if uint(i) >= uint(len(c)-1) {
		p = min(max(p, 0), 16*curveSteps)
		i = int(p)
	}
	return c[i] + (c[i+1]-c[i])*(p-float64(i))
}

var lognormal = newCurve(func(x float64) float64 { return math.Exp(noiseSigma*x - noiseSigma*noiseSigma/2) })

// quantiles has the normal distribution's quantiles at multiples of 1/2048. Between them normal interpolates, but for the two ends.
var quantiles = func() (q [1<<11 + 1]float64) {
	for i := range q {
		q[i] = quantile(float64(i) / (1 << 11))
	}
	return q
}()

func quantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

// normal makes a normal number of 32 random bits: in half the time of rand.NormFloat64, which is a third of what the offers take.
func normal(bits uint32) float64 {
	i := bits >> 21
	if i-1 >= 1<<11-2 {
		return quantile((float64(bits) + 0.5) / (1 << 32))
	}
	return quantiles[i] + (quantiles[i+1]-quantiles[i])*(float64(bits&(1<<21-1))*(1.0/(1<<21)))
}

func (o *offers) next() []float64 {
	if o.shift -= periodSeconds; o.shift <= 0 {
		o.shift = o.rng.ExpFloat64() * shiftEvery.Seconds()
		hot := 0
		for i := range o.share {
			if o.share[i] > o.share[hot] {
				hot = i
			}
		}
		other := o.rng.IntN(len(o.share))
		o.share[hot], o.share[other] = o.share[other], o.share[hot]
	}
	noise, share, bits := o.noise[:len(o.out)], o.share[:len(o.out)], uint64(0)
	for i := range o.out {
		if i&1 == 0 {
			bits = o.source.Uint64()
		}
		x := noiseKeep*noise[i] + noiseNew*normal(uint32(bits))
		bits >>= 32
		noise[i] = x
		o.out[i] = share[i] * lognormal.at(x)
	}
	return o.out
}

// result is what one tenant met in its week.
type result struct {
	unfair, delayed, over float64 // parts of time, of what was offered, of the quota
	worst                 [3]float64
}

var worstWindows = [3]time.Duration{time.Second, 10 * time.Second, time.Minute}

// simulate runs one tenant's week under every policy on the same offers.
func (p population) simulate(seed uint64, id int, windows int, length time.Duration) []result {
	worlds := make([]*world, len(policies))
	results := make([]result, len(worlds))
	for i := range worlds {
		worlds[i] = newWorld(policies[i], p.brokers)
		for k := range results[i].worst {
			results[i].worst[k] = math.Inf(-1)
		}
	}
	load, skew := p.draw(rand.New(rand.NewPCG(seed, uint64(id)<<16|1<<15)))
	warm, steps := int(warmUp/modelPeriod), int((warmUp+length)/modelPeriod)
	for window := range windows {
		o := newOffers(rand.NewPCG(seed, uint64(id)<<16|uint64(window)), p.brokers, load, skew)
		for _, w := range worlds {
			w.reset()
		}
		for step := range steps {
			out := o.next()
			for _, w := range worlds {
				w.step(out, step >= warm)
			}
		}
		for i, w := range worlds {
			for k, length := range worstWindows {
				results[i].worst[k] = max(results[i].worst[k], w.worst(length))
			}
		}
	}
	for i, w := range worlds {
		results[i].unfair, results[i].delayed = w.unfair/w.seconds, w.delayed/w.offered
		results[i].over = w.over / (modelQuota * w.seconds)
	}
	return results
}

// tenants returns how many each population has.
func (r Run) tenants() int {
	if r.Tenants > 0 {
		return r.Tenants
	}
	return allTenants
}

// run simulates all tenants and returns their results by policy and tenant. Each tenant has random numbers of its own and a place of its own for
// its results, so they don't depend on who simulates it when.
func (p population) run(r Run) [][]result {
	windows, length := windowCount, windowLength
	if r.Full {
		windows, length = 1, week
	}
	all := make([][]result, len(policies))
	for i := range all {
		all[i] = make([]result, r.tenants())
	}
	var wg sync.WaitGroup
	jobs := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for id := range jobs {
				for i, res := range p.simulate(r.Seed, id, windows, length) {
					all[i][id] = res
				}
			}
		})
	}
	for id := range r.tenants() {
		jobs <- id
	}
	close(jobs)
	wg.Wait()
	return all
}

// summary is what all tenants of a population met under one policy.
type summary struct {
	unfair, delayed, over float64
	unfairError           float64 // standard error of unfair
	slo, sloError         float64
	worst                 [3]float64
	minutes               []float64 // of unfair throttling in the week, by tenant
}

func summarize(results []result) summary {
	n := float64(len(results))
	var s summary
	squares, met := 0.0, 0.0
	for k := range s.worst {
		s.worst[k] = math.Inf(-1)
	}
	for _, t := range results {
		s.unfair += t.unfair / n
		s.delayed += t.delayed / n
		s.over += t.over / n
		squares += t.unfair * t.unfair / n
		minutes := t.unfair * week.Minutes()
		s.minutes = append(s.minutes, minutes)
		if minutes <= sloMinutes {
			met++
		}
		for k := range s.worst {
			s.worst[k] = max(s.worst[k], t.worst[k])
		}
	}
	s.unfairError = math.Sqrt(max(0, squares-s.unfair*s.unfair) / n)
	s.slo = met / n
	s.sloError = math.Sqrt(s.slo * (1 - s.slo) / n)
	return s
}

// moment is one point of the trace of a change.
type moment struct {
	second float64
	limits [2]float64 // of the two brokers that matter, as parts of the quota
}

// change runs 24 brokers of a tenant through a change of what is offered, which comes right after a report, and returns the trace and when
// broker 1 had 95 % of its fair part for good.
func change(before, after map[int]float64, fair float64) ([]moment, float64) {
	const brokers, settle, watch = 24, 40, 24
	w := newWorld(policies[len(policies)-1], brokers)
	w.reset()
	var trace []moment
	reached := math.Inf(1)
	note := func(at float64) {
		trace = append(trace, moment{at, [2]float64{w.buckets[0].limit / modelQuota, w.buckets[1].limit / modelQuota}})
		if at < 0 {
			return
		}
		if w.buckets[1].limit < 0.95*fair*modelQuota {
			reached = math.Inf(1)
		} else if math.IsInf(reached, 1) {
			reached = at
		}
	}
	for step := range settle + watch {
		offers := make([]float64, brokers)
		which := before
		if step >= settle {
			which = after
		}
		for b, part := range which {
			offers[b] = part * modelQuota
		}
		at := float64(step-settle) * modelPeriod.Seconds()
		if step >= settle-4 {
			note(at)
		}
		w.step(offers, false)
		if step >= settle-4 {
			note(at + modelDelay.Seconds())
		}
	}
	return trace, reached
}

func quotas(r Run) (map[string]any, error) {
	started := time.Now()
	fmt.Fprintln(r.Log, method(r))
	figures := map[string]any{}
	over := [3]float64{}
	table := tabwriter.NewWriter(r.Log, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "tenants\tpolicy\tunfair %\t±\tdelayed %\tmeet objective %\t±\tover quota %\tworst 1 s\t10 s\t60 s (quota-seconds above quota)")
	summaries := map[string][]summary{}
	for _, p := range populations {
		all := p.run(r)
		for i, pol := range policies {
			s := summarize(all[i])
			summaries[p.name] = append(summaries[p.name], s)
			fmt.Fprintf(table, "%s\t%s\t%.4f\t%.4f\t%.4f\t%.2f\t%.2f\t%.4f\t%.3f\t%.3f\t%.3f\n", p.name, pol.name, 100*s.unfair, 100*s.unfairError,
				100*s.delayed, 100*s.slo, 100*s.sloError, 100*s.over, s.worst[0]/modelQuota, s.worst[1]/modelQuota, s.worst[2]/modelQuota)
			for k := range over {
				over[k] = max(over[k], s.worst[k]-declaredBurst(pol)*modelQuota)
			}
			if p.name == "fleet" {
				figures["slo_pct_"+pol.name] = round(100 * s.slo)
				continue
			}
			figures["unfair_pct_"+pol.name+"_"+p.name] = round(100 * s.unfair)
			if pol.lazy {
				figures["over_mean_pct_"+p.name] = round(100 * s.over)
			}
		}
		fmt.Fprintf(r.Log, "%s: %v\n", p.name, time.Since(started).Round(time.Second))
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	for k, window := range worstWindows {
		figures[fmt.Sprintf("over_max_%ds", int(window.Seconds()))] = math.Round(over[k])
	}
	shift, converge := change(map[int]float64{0: 1}, map[int]float64{1: 1}, 1)
	_, newcomer := change(map[int]float64{0: 2}, map[int]float64{0: 2, 1: 2}, 0.5)
	figures["converge_s"], figures["newcomer_s"] = round(converge), round(newcomer)
	fmt.Fprintf(r.Log, "95 %% of the fair part after a full shift: %.2f s; of a newcomer beside a saturated broker: %.2f s\n", converge, newcomer)
	fmt.Fprintf(r.Log, "took %v\n", time.Since(started).Round(time.Millisecond))
	if r.SVG != "" {
		return figures, plotQuotas(r.SVG, summaries, shift)
	}
	return figures, nil
}

// declaredBurst is what a policy may admit above quota*time, in seconds of the quota: what the buckets hold.
func declaredBurst(p policy) float64 { return quota.DefaultBurst.Seconds() * ruleOf(p).LazyFactor }

func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

func method(r Run) string {
	if r.Full {
		return "method: every tenant's whole week is simulated in periods of 250 ms."
	}
	return fmt.Sprintf("method: each tenant's week is represented by %d seeded windows of %v after %v of warm-up, in periods of 250 ms.\n"+
		"± is the standard error over tenants. One tenant's minutes per week come from %v of it, so a tenant near the limit may be counted on "+
		"either side;\nover many tenants that evens out only in part.", windowCount, windowLength, warmUp, windowCount*windowLength)
}
