package main

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

// This file says again what world says with the library's Group, in loops over plain numbers: the weeks of 30 000 tenants are 2e10 steps of a
// bucket. TestWeek holds the two together to the last bit. It is faster because
//
//   - what the policies have in common is reckoned once, which is all but the buckets and the limits while no broker throttles, and tenants that
//     differ only in their mean use share their random numbers;
//   - a policy passes over its brokers once a period;
//   - in a window in which nothing throttles under the dynamic policy nothing can under the lazy one, as its limits are the same and its rates no lower.

// A period has two parts: the limits change between them.
const (
	firstPart  = delaySeconds
	secondPart = periodSeconds - delaySeconds
)

// traffic is what some periods bring to all policies alike. The slices offers and targets have a row of all brokers for each period.
type traffic struct {
	brokers, periods int
	offers           []float64 // per second
	targets          []float64 // what the rule makes of the offers where nothing throttles
	offered          []float64 // sums of the rows of offers
	passed           []float64 // what is admitted of those where nothing throttles
	scratch          []float64
	floor            float64
}

func newTraffic(brokers, periods int) *traffic {
	return &traffic{
		brokers: brokers, offers: make([]float64, brokers*periods), targets: make([]float64, brokers*periods), offered: make([]float64, periods),
		passed: make([]float64, periods), scratch: make([]float64, brokers), floor: quota.DefaultFloor * modelQuota / float64(brokers),
	}
}

// row returns the offers and targets of a period.
func (t *traffic) row(period int) (offers, targets []float64) {
	lo, hi := period*t.brokers, (period+1)*t.brokers
	return t.offers[lo:hi], t.targets[lo:hi]
}

// set makes a row of the brokers' shares and their noise, and derives what depends on the offers alone.
func (t *traffic) set(period int, shares, noise []float64) {
	offers, targets := t.row(period)
	shares, targets, noise = shares[:len(offers)], targets[:len(offers)], noise[:len(offers)]
	floor := t.floor
	offered, missing := 0.0, false
	for i := range offers {
		o := shares[i] * noise[i]
		offers[i], targets[i] = o, o
		offered += o
		missing = missing || o < floor
	}
	t.offered[period], t.passed[period] = offered, offered*periodSeconds
	// What a broker passes is what it reports, and its demand is that or the floor.
	wanted := offered
	if missing {
		wanted = 0
		for i, o := range targets {
			targets[i] = max(o, floor)
			wanted += targets[i]
		}
	}
	divide(targets, wanted, t.scratch)
}

// divide replaces demands whose sum is wanted by shares of the quota.
func divide(parts []float64, wanted float64, scratch []float64) {
	if wanted <= modelQuota {
		more := modelQuota / wanted
		for i := range parts {
			parts[i] *= more
		}
		return
	}
	// As quota.MaxMin: who wants less than the fair level is satisfied, which raises the level for the others.
	rest := scratch[:copy(scratch, parts)]
	left, sharers := modelQuota, float64(len(parts))
	for range 6 {
		level, n := max(left, 0)/sharers, 0
		for _, d := range rest {
			if d <= level {
				left -= d
				sharers--
			} else {
				rest[n] = d
				n++
			}
		}
		if n == len(rest) {
			for i, d := range parts {
				parts[i] = min(d, level)
			}
			return
		}
		rest = rest[:n]
	}
	copy(parts, quota.MaxMin(modelQuota, parts, nil))
}

// runner is a tenant's brokers under one policy.
type runner interface {
	reset()
	// run passes the traffic and puts into admitted what all brokers together let through in each period, and into longest how long one
	// throttled. It returns whether any did.
	run(t *traffic, admitted, longest []float64) bool
}

func newRunner(p policy, brokers int) runner {
	s := func() []float64 { return make([]float64, brokers) }
	even := modelQuota / float64(brokers)
	if !p.dynamic {
		return &staticRunner{even: even, tokens: s()}
	}
	return &sharedRunner{lazyFactor: ruleOf(p).LazyFactor, even: even, tokens: s(), rates: s(), limits: s(), cut: s(), gap: s(), passed: s(),
		targets: s(), scratch: s(), throttled: make([]uint8, brokers), hits: make([]hit, brokers)}
}

// staticRunner has the static split.
type staticRunner struct {
	even   float64 // each broker's rate
	tokens []float64
}

func (r *staticRunner) reset() {
	for i := range r.tokens {
		r.tokens[i] = r.even * burstSeconds
	}
}

func (r *staticRunner) run(t *traffic, admitted, longest []float64) (throttles bool) {
	rate, full := r.even, r.even*burstSeconds
	for period := range t.periods {
		offers, _ := t.row(period)
		tokens := r.tokens[:len(offers)]
		total, most := 0.0, 0.0
		for i, o := range offers {
			passes := o * periodSeconds
			left := tokens[i] + (rate-o)*periodSeconds
			if left < 0 {
				passes += left
				if most < periodSeconds {
					most = max(most, min(periodSeconds, -left/(o-rate)))
				}
				left = 0
			}
			if left > full {
				left = full
			}
			tokens[i] = left
			total += passes
		}
		admitted[period], longest[period] = total, most
		throttles = throttles || most > 0
	}
	return throttles
}

// sharedRunner has limits by the rule of quota.Group. Here every broker reports in every period, some use, and that it has in force what the last
// division said, so what the rule counts as held is what was granted.
type sharedRunner struct {
	lazyFactor float64
	even       float64 // the static split
	tokens     []float64
	rates      []float64 // in force, with laziness

	// What the last division said, in force from the second part of a period on: the limit is cut + part*gap.
	cut    []float64
	gap    []float64 // to the target
	part   float64   // of the gaps that there is room for
	factor float64   // of laziness
	saved  float64   // what the cluster may use above the quota

	// Of one period.
	limits []float64 // without laziness
	hits   []hit     // room for all
	nhits  int
	passed []float64

	throttled []uint8 // periods in a row
	targets   []float64
	scratch   []float64
}

// hit is a broker that throttles, and its rate in the first part of the period.
type hit struct {
	broker int
	old    float64
}

func (r *sharedRunner) reset() {
	for i := range r.tokens {
		r.tokens[i], r.rates[i], r.cut[i], r.gap[i] = r.even*burstSeconds, r.even, r.even, 0
	}
	r.part, r.factor, r.saved = 0, 1, modelQuota*burstSeconds
	clear(r.throttled)
	r.nhits = 0
}

func (r *sharedRunner) run(t *traffic, admitted, longest []float64) (throttles bool) {
	for period := range t.periods {
		offers, targets := t.row(period)
		before := r.nhits > 0
		var held, room float64
		limits := r.rates
		if r.factor == 1 {
			held, room = r.pass(offers, targets)
		} else {
			held, room = r.passLazy(offers, targets)
			limits = r.limits
		}
		admitted[period], longest[period] = t.passed[period], 0
		if r.nhits > 0 {
			throttles = true
			longest[period] = r.throttle(offers)
			admitted[period], room = r.redivide(limits, t.floor)
		} else if before {
			clear(r.throttled)
		}
		r.part = 0
		if free := modelQuota - held; free >= -1e-9*modelQuota && room > 0 {
			r.part = min(1, max(0, free)/room)
		}
		use := admitted[period] / periodSeconds
		r.saved = min(r.saved+(modelQuota-use)*periodSeconds, modelQuota*burstSeconds)
		r.factor = 1
		if below := float64(quota.DefaultLazyBelow); use < below*modelQuota && r.saved > 0 {
			r.factor = r.lazyFactor
		}
	}
	return throttles
}

// pass runs the buckets through a period, notes which throttle, and prepares the next division as if none did. It returns the sum of
// the limits and of the gaps. It is for periods that end without laziness: no limit is above the quota, since every broker has a part.
func (r *sharedRunner) pass(offers, targets []float64) (held, room float64) {
	n := len(offers)
	targets = targets[:n]
	tokens, rates, cut, gap := r.tokens[:n], r.rates[:n], r.cut[:n], r.gap[:n]
	part := r.part
	hits, nhits := r.hits, 0
	for i, o := range offers {
		limit := cut[i] + gap[i]*part
		old := rates[i]
		rates[i] = limit
		lower := min(limit, targets[i])
		more := targets[i] - lower
		cut[i], gap[i] = lower, more
		held += limit
		room += more
		middle := tokens[i] + (old-o)*firstPart
		left := min(middle, old*burstSeconds) + (limit-o)*secondPart
		if middle < 0 || left < 0 {
			hits[nhits] = hit{i, old}
			nhits++
			continue
		}
		tokens[i] = min(left, limit*burstSeconds)
	}
	r.nhits = nhits
	return held, room
}

// passLazy is pass for periods that end with laziness.
func (r *sharedRunner) passLazy(offers, targets []float64) (held, room float64) {
	n := len(offers)
	targets = targets[:n]
	tokens, rates, limits, cut, gap := r.tokens[:n], r.rates[:n], r.limits[:n], r.cut[:n], r.gap[:n]
	part, factor := r.part, r.factor
	hits, nhits := r.hits, 0
	for i, o := range offers {
		limit := cut[i] + gap[i]*part
		old, rate := rates[i], atMost(limit*factor, modelQuota)
		limits[i], rates[i] = limit, rate
		lower := min(limit, targets[i])
		more := targets[i] - lower
		cut[i], gap[i] = lower, more
		held += limit
		room += more
		middle := tokens[i] + (old-o)*firstPart
		left := min(middle, old*burstSeconds) + (rate-o)*secondPart
		if middle < 0 || left < 0 {
			hits[nhits] = hit{i, old}
			nhits++
			continue
		}
		tokens[i] = min(left, rate*burstSeconds)
	}
	r.nhits = nhits
	return held, room
}

// throttle runs the brokers whose tokens don't last, and returns how long one throttles.
func (r *sharedRunner) throttle(offers []float64) (longest float64) {
	for i, o := range offers {
		r.passed[i] = o * periodSeconds
	}
	for _, h := range r.hits[:r.nhits] {
		i := h.broker
		b := bucket{tokens: r.tokens[i]}
		first, t1 := b.run(offers[i], h.old, firstPart)
		second, t2 := b.run(offers[i], r.rates[i], secondPart)
		r.tokens[i], r.passed[i] = b.tokens, first+second
		longest = max(longest, t1+t2)
		r.throttled[i] |= throttlesNow
	}
	return longest
}

// throttlesNow marks a broker in throttled until redivide counts.
const throttlesNow = 1 << 7

// redivide ends a period in which some brokers throttle, and so report other demands. It returns what all admitted and the sum of the gaps.
func (r *sharedRunner) redivide(limits []float64, floor float64) (total, room float64) {
	n := len(r.passed)
	targets, limits, throttled := r.targets[:n], limits[:n], r.throttled[:n]
	wanted := 0.0
	for i, a := range r.passed {
		total += a
		d := a / periodSeconds
		if throttled[i]&throttlesNow == 0 {
			throttled[i] = 0
		} else {
			k := min(throttled[i]&^throttlesNow+1, uint8(len(escalation)-1))
			throttled[i] = k
			d = min(modelQuota, max(d, limits[i]/2)*escalation[k])
		}
		if d < floor {
			d = floor
		}
		targets[i] = d
		wanted += d
	}
	divide(targets, wanted, r.scratch)
	cut, gap := r.cut[:n], r.gap[:n]
	for i, target := range targets {
		cut[i] = min(limits[i], target)
		gap[i] = target - cut[i]
		room += gap[i]
	}
	return total, room
}

// escalation is by how much a broker that throttled in so many periods in a row wants more than it used.
var escalation = [8]float64{1, 1 << 1, 1 << 3, 1 << 6, 1 << 10, 1 << 15, 1 << 21, 1 << 28}

// tally is what a tenant met under one policy.
type tally struct {
	unfair, delayed, offered, over, seconds float64
}

// count takes measured periods in.
func (t *tally) count(offered, admitted, longest []float64) {
	for i, total := range admitted {
		if total < quota.BelowQuota*modelQuota*periodSeconds {
			t.unfair += longest[i]
		}
		t.offered += offered[i] * periodSeconds
		t.delayed += offered[i]*periodSeconds - total
		t.over += max(0, total-modelQuota*periodSeconds)
	}
	t.seconds += float64(len(admitted)) * periodSeconds
}

// result gives what was met in relation to time, offers and the quota.
func (t *tally) result(worst [3]float64) result {
	return result{t.unfair / t.seconds, t.delayed / t.offered, t.over / (modelQuota * t.seconds), worst}
}

// worst returns the most that the cluster admitted above the quota in any window of each length, by what it admitted in the periods.
func worst(admitted []float64) (most [3]float64) {
	sums := make([]float64, len(admitted)+1)
	for i, a := range admitted {
		sums[i+1] = sums[i] + a
	}
	for k, window := range worstWindows {
		most[k] = math.Inf(-1)
		lo, hi := sums, sums[int(window/modelPeriod):]
		lo = lo[:len(hi)]
		for i, sum := range hi {
			if sum-lo[i] > most[k] {
				most[k] = sum - lo[i]
			}
		}
		most[k] -= modelQuota * window.Seconds()
	}
	return most
}

// blockPeriods is how many periods are run at once: all of a window with its warm-up. Offers and targets then stay in the processor's cache.
const blockPeriods = int((warmUp + windowLength) / modelPeriod)

// simulate runs one tenant's week under every policy on the same offers, and returns its results by load and policy.
func (p population) simulate(seed uint64, id int, windows int, length time.Duration) [][]result {
	loads, skew := p.draw(rand.New(rand.NewPCG(seed, uint64(id)<<16|1<<15)))
	runners := make([][]runner, len(loads))
	tallies := make([][]tally, len(loads))
	results := make([][]result, len(loads))
	traffics := make([]*traffic, len(loads))
	for l := range loads {
		tallies[l], results[l] = make([]tally, len(policies)), make([]result, len(policies))
		traffics[l] = newTraffic(p.brokers, blockPeriods)
		for k, pol := range policies {
			runners[l] = append(runners[l], newRunner(pol, p.brokers))
			results[l][k].worst = [3]float64{math.Inf(-1), math.Inf(-1), math.Inf(-1)}
		}
	}
	warm, periods := int(warmUp/modelPeriod), int((warmUp+length)/modelPeriod)
	admitted := make([][][]float64, len(loads))
	for l := range admitted {
		admitted[l] = make([][]float64, len(policies))
		for k := range admitted[l] {
			admitted[l][k] = make([]float64, periods)
		}
	}
	longest := make([]float64, blockPeriods)
	for window := range windows {
		o := newOffers(rand.NewPCG(seed, uint64(id)<<16|uint64(window)), p.brokers, loads, skew)
		for l := range loads {
			for _, r := range runners[l] {
				r.reset()
			}
		}
		for done := 0; done < periods; done += blockPeriods {
			n := min(blockPeriods, periods-done)
			o.fill(traffics, n)
			skip := min(n, max(0, warm-done))
			for l, t := range traffics {
				throttles := true
				for k, r := range runners[l] {
					a := admitted[l][k][done : done+n]
					if policies[k].lazy && !throttles && n == periods {
						copy(a, admitted[l][k-1])
						clear(longest)
					} else {
						throttles = r.run(t, a, longest)
					}
					tallies[l][k].count(t.offered[skip:n], a[skip:], longest[skip:n])
				}
			}
		}
		for l := range loads {
			for k := range policies {
				for i, w := range worst(admitted[l][k]) {
					results[l][k].worst[i] = max(results[l][k].worst[i], w)
				}
			}
		}
	}
	for l := range loads {
		for k := range policies {
			results[l][k] = tallies[l][k].result(results[l][k].worst)
		}
	}
	return results
}
