package balance

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// MinSamples is the number of waits in the last minute from which [Load.Pressure] has its full say. Below,
// it fades out linearly, since the mean of a few waits says nothing.
const MinSamples = 30

// idleAfter is the pause in arrivals after which an empty pool counts as idle. A mean of waits does not
// fade while nothing arrives; the share of idle time makes the pressure fade instead.
const idleAfter = 5 * time.Second

// The measured variation is kept in these bounds. A single stall of seconds among services of
// milliseconds would else make the squared variation of service so large that it explained every
// wait, and the load would fall when the stall ends.
const (
	minVariation = 0.25
	maxVariation = 4
)

// Pool accounts one bounded queue and its servers: a request pool with its handlers, a network pool with
// its threads. Only Servers needs to be set:
//
//	p := &balance.Pool{Servers: 8}
//
// Each request is a [Token] that goes Enqueue, Start, Done. Requests still queued count with
// their present age, so that a stalled pool does not fall silent: with one millisecond of service and 30 %
// load, two seconds of standstill show as a load of .97.
//
// An event takes tens of nanoseconds and no allocation. A Pool must not be copied after first use. Safe
// for concurrent use. A nil *Pool accounts nothing.
//
// Source: wait in all queues, averaged over one minute and inverted by Kingman's formula, is Kora,
// section 4.1.1; present age, measured variation and the fading are our own.
type Pool struct {
	// Servers is the number of requests that can be in service at once. Below 1 counts as 1.
	Servers int
	// Model converts waits to pressure. Its zero value takes Sakasegawa's formula with the service time
	// and the variation that the pool measures itself; see [Calibrate] for a fitted one.
	Model Model
	// Window is the time constant of the averages; 0 means [Window].
	Window time.Duration

	origin  atomic.Pointer[time.Time]
	arrived atomic.Int64 // time of the last Enqueue, in nanoseconds after origin
	shards  [poolShards]poolShard
}

// Events of one request go to one shard, chosen by its time of arrival (not at random: the same
// events give the same numbers). Sums over shards are exact, since decayed sums add up.
const poolShards = 8

// poolShard is padded to three cache lines of 64 bytes.
type poolShard struct {
	mu   sync.Mutex
	last int64 // the time to which the sums below are decayed

	waits, waited     float64 // decayed number and sum (ns) of ended waits
	served            float64 // decayed number of ended services
	service, serviceQ float64 // decayed sum (ns) and sum of squares of ended services
	gaps, gap, gapQ   float64 // decayed number, sum (ns) and sum of squares of times between arrivals
	busy              float64 // decayed integral of active over time, ns
	idle              float64 // decayed idle time, ns

	queued, active              int64
	enqueuedAt                  int64 // sum of the arrival times of queued requests; see queuedAge
	enqueued, started, finished uint64
	_                           [48]byte
}

// Token is one request in a [Pool]. It is a value: keep it with the request. Its methods may be
// called from any goroutine, one at a time; a second call of the same method does nothing. Do not
// go on with two copies of one Token: both would count. The zero Token does nothing.
type Token struct {
	pool     *Pool
	at       int64 // of Enqueue, and from Start on of Start
	shard    uint8
	started  bool
	finished bool
}

// Enqueue accounts a request that enters the queue at now. Call it when the request is complete:
// waiting for the client is not load.
func (p *Pool) Enqueue(now time.Time) Token {
	if p == nil {
		return Token{}
	}
	at := p.since(now)
	gap := int64(-1)
	if last := p.arrived.Load(); at >= last {
		// Racing arrivals may both measure from the same last one: the error is one gap.
		p.arrived.Store(at)
		gap = at - last
	}
	i := shardOf(at)
	s := &p.shards[i]
	idle := gap > int64(idleAfter) && p.empty()

	s.mu.Lock()
	w := float64(window(p.Window))
	s.advance(at, w)
	if gap >= 0 && at > 0 { // the first arrival has nothing before it
		g := float64(gap)
		if idle {
			// An idle hour is not the variation of a busy minute.
			s.idle += w * (1 - decay(gap-int64(idleAfter), w))
		} else {
			s.gaps++
			s.gap += g
			s.gapQ += g * g
		}
	}
	s.queued++
	s.enqueued++
	s.enqueuedAt += at
	s.mu.Unlock()
	return Token{pool: p, at: at, shard: i}
}

// Start accounts that a server took the request at now.
func (t *Token) Start(now time.Time) {
	if t.pool == nil || t.started || t.finished {
		return
	}
	at := t.pool.since(now)
	s := &t.pool.shards[t.shard]
	s.mu.Lock()
	s.advance(at, float64(window(t.pool.Window)))
	s.leave(t.at, at)
	s.active++
	s.started++
	s.mu.Unlock()
	t.started = true
	t.at = at
}

// Done accounts that the request left: that its server is free again, or, before Start, that it was
// given up in the queue. Its wait counts either way: requests that time out in the queue are the
// worst of load. Call it before waiting for replication or for the client.
func (t *Token) Done(now time.Time) {
	if t.pool == nil || t.finished {
		return
	}
	at := t.pool.since(now)
	s := &t.pool.shards[t.shard]
	s.mu.Lock()
	s.advance(at, float64(window(t.pool.Window)))
	if t.started {
		d := float64(max(at-t.at, 0))
		s.active--
		s.served++
		s.service += d
		s.serviceQ += d * d
	} else {
		s.leave(t.at, at)
	}
	s.finished++
	s.mu.Unlock()
	t.finished = true
}

// PoolStats is what a [Pool] knows at one moment. Means are over the last [Window], exponentially
// weighted.
type PoolStats struct {
	// Servers as in [Pool]; Queued requests wait now, Active ones are in service now.
	Servers, Queued, Active int
	// Enqueued, Started and Finished count all requests since the pool was made. Requests given up in
	// the queue are finished and not started.
	Enqueued, Started, Finished uint64
	// Wait is the mean time in the queue, requests still queued counted at their present age.
	Wait time.Duration
	// Service is the mean time from Start to Done.
	Service time.Duration
	// Samples is the weight of the waits behind Wait, in requests.
	Samples float64
	// ArrivalVariation and ServiceVariation are the measured squared coefficients of variation; 1
	// while fewer than [MinSamples] were seen.
	ArrivalVariation, ServiceVariation float64
	// Model is the one that gave the pressure.
	Model Model
	// Load is the estimate.
	Load Load
}

// Stats returns the state and the load estimate at now. It takes each of a few locks for
// nanoseconds, so it can be called as often as wanted. Before the first request everything is 0.
func (p *Pool) Stats(now time.Time) PoolStats {
	if p == nil {
		return PoolStats{}
	}
	st := PoolStats{Servers: max(p.Servers, 1), ArrivalVariation: 1, ServiceVariation: 1}
	origin := p.origin.Load()
	if origin == nil {
		return st
	}
	w := float64(window(p.Window))
	at := int64(now.Sub(*origin))
	var sum poolShard
	var age float64
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.advance(at, w)
		sum.waits += s.waits
		sum.waited += s.waited
		sum.served += s.served
		sum.service += s.service
		sum.serviceQ += s.serviceQ
		sum.gaps += s.gaps
		sum.gap += s.gap
		sum.gapQ += s.gapQ
		sum.busy += s.busy
		sum.idle += s.idle
		sum.queued += s.queued
		sum.active += s.active
		sum.enqueued += s.enqueued
		sum.started += s.started
		sum.finished += s.finished
		age += float64(s.queuedAge(at))
		s.mu.Unlock()
	}
	st.Queued, st.Active = int(sum.queued), int(sum.active)
	st.Enqueued, st.Started, st.Finished = sum.enqueued, sum.started, sum.finished

	// A wait enters the sums only when it ends, so nothing counts twice.
	st.Samples = sum.waits + float64(sum.queued)
	wait := ratio(sum.waited+age, st.Samples)
	st.Wait = time.Duration(wait)
	service := ratio(sum.service, sum.served)
	if sum.served < 1 && service == 0 {
		service = sum.busy // nothing ended yet: as if all that was done were one request
	}
	st.Service = time.Duration(service)
	if sum.gaps >= MinSamples {
		st.ArrivalVariation = variation(sum.gap, sum.gapQ, sum.gaps)
	}
	if sum.served >= MinSamples {
		st.ServiceVariation = variation(sum.service, sum.serviceQ, sum.served)
	}
	st.Model = p.Model
	if st.Model.Exponent <= 0 {
		st.Model.Exponent = SakasegawaExponent(st.Servers)
	}
	scale := float64(st.Model.Scale)
	if scale <= 0 {
		v := (st.ArrivalVariation + st.ServiceVariation) / 2
		scale = min(max(v, minVariation), maxVariation) * service / float64(st.Servers)
		st.Model.Scale = time.Duration(scale)
	}

	observed := w * (1 - decay(max(at, 0), w))
	if !(observed > 0) {
		return st
	}
	if pause := at - p.arrived.Load() - int64(idleAfter); pause > 0 && sum.queued+sum.active == 0 {
		sum.idle += w * (1 - decay(pause, w))
	}
	covered := 1 - min(sum.idle/observed, 1)
	trust := min(st.Samples/MinSamples, 1)
	st.Load = handOver(
		clamp01(sum.busy/observed/float64(st.Servers)),
		invert(wait, scale, st.Model.Exponent)*covered*trust,
	)
	return st
}

// since returns now as nanoseconds after the pool's first event. It uses the monotonic reading
// where now has one.
func (p *Pool) since(now time.Time) int64 {
	origin := p.origin.Load()
	if origin == nil {
		origin = p.begin(now)
	}
	return int64(now.Sub(*origin))
}

// begin makes now the origin unless another event was first. It is a function of its own so that only the
// first event allocates.
func (p *Pool) begin(now time.Time) *time.Time {
	p.origin.CompareAndSwap(nil, &now)
	return p.origin.Load()
}

// empty reports whether nothing is queued or served.
func (p *Pool) empty() bool {
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		n := s.queued + s.active
		s.mu.Unlock()
		if n != 0 {
			return false
		}
	}
	return true
}

// shardOf spreads times over shards by multiplicative hashing.
func shardOf(at int64) uint8 {
	return uint8(uint64(at) * 0x9e3779b97f4a7c15 >> 61)
}

// advance decays the sums to at. Time that goes backwards, as between racing goroutines, counts as no
// time. Requires: mu held.
func (s *poolShard) advance(at int64, w float64) {
	dt := at - s.last
	if dt <= 0 {
		return
	}
	s.last = at
	f := decay(dt, w)
	s.waits *= f
	s.waited *= f
	s.served *= f
	s.service *= f
	s.serviceQ *= f
	s.gaps *= f
	s.gap *= f
	s.gapQ *= f
	s.busy = s.busy*f + float64(s.active)*w*(1-f)
	s.idle *= f
}

// leave ends the wait of a request. Requires: mu held.
func (s *poolShard) leave(enqueued, at int64) {
	s.queued--
	s.enqueuedAt -= enqueued
	s.waits++
	s.waited += float64(max(at-enqueued, 0))
}

// queuedAge returns the sum of the ages of all queued requests. Both terms may wrap around in a
// process that lives for months; their difference is right as long as the sum of ages fits, since
// Go defines wrapping. Requires: mu held.
func (s *poolShard) queuedAge(at int64) int64 {
	return max(s.queued*at-s.enqueuedAt, 0)
}

// variation returns the squared coefficient of variation.
func variation(sum, squares, n float64) float64 {
	mean := ratio(sum, n)
	if !(mean > 0) {
		return 1
	}
	return max(squares/n/(mean*mean)-1, 0)
}

func clamp01(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return min(max(x, 0), 1)
}
