package main

import (
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

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
	left := b.tokens + (rate-offered)*dt
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
		a, t := o*periodSeconds, t1+t2
		if t > 0 {
			a = a1 + a2
		}
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
