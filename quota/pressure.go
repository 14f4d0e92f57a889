package quota

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// SafeLimits is what a broker can bear. A field that is 0 is not watched.
type SafeLimits struct {
	Ingress        float64 // bytes per second
	Egress         float64 // bytes per second
	RequestTime    float64 // nanoseconds per second: 1e9 times the threads
	ConnectionRate float64 // per second
	// QueueWait is the longest wait of requests for a thread that is still healthy: when even the shortest wait of a while is longer, requests
	// only queue. QueueLength is the same for the shortest queue.
	QueueWait   time.Duration
	QueueLength int
}

const (
	pressureAt    = 0.9 // of a safe limit: where pressing back begins, and where it keeps the broker
	queueCut      = 0.8
	queueRecovery = 0.02 // per second
	// PressureForRebalance is how long a broker presses back before it asks for tenants to be moved away.
	PressureForRebalance = time.Minute
)

// Load is what a broker measured over one period.
type Load struct {
	// Wait is the shortest time that a request which left the queue in the period had waited, and Queue the shortest length that the queue had.
	Wait  time.Duration
	Queue int
}

// Pressure is the state of a broker's pressing back, for those who plan where load goes.
type Pressure struct {
	// Factor is what the tenants' rates of a kind are multiplied by, in (0, 1]; 1 where there is no pressure and for other kinds.
	Factor map[Kind]float64
	// Queue is the factor that the queue alone asks for.
	Queue float64
	// Since is when a factor first was below 1 without a pause; meaningless without pressure.
	Since Instant
	// Active says that some factor is below 1, and Rebalance that this has lasted for [PressureForRebalance].
	Active    bool
	Rebalance bool
}

// pressed is the limiter's part of the state: the factors that are in force.
type pressed struct {
	factors [kinds + 1]atomic.Uint64 // float bits, complemented so that zero is 1
}

func (p *pressed) factor(kind Kind) float64 {
	return math.Float64frombits(p.factors[kind].Load() ^ oneBits)
}

func (p *pressed) set(kind Kind, f float64) { p.factors[kind].Store(math.Float64bits(f) ^ oneBits) }

const oneBits = 0x3ff0000000000000

// Backpressure presses back on all tenants of a broker when it nears its safe limits: it lowers their rates by one factor, so in
// proportion to what each has there, and to the level at which the demands fit. A tenant that uses less than its lowered rate notices nothing. Only
// tenants with a quota can be pressed; give all one by default. The quotas themselves, and what tenants have on other brokers, stay. Safe for
// concurrent use.
//
// Source: Kora section 5.2.1 for pressing through quotas; the level is weighted max-min with the limits as weights; the queue's part is
// additive increase and multiplicative decrease on the shortest wait, as in CoDel.
type Backpressure struct {
	l     *Limiter
	safe  SafeLimits
	mu    sync.Mutex
	last  Instant
	begun bool
	used  map[groupID]meterUse // of all tenants, when last looked at
	queue float64              // factor by the queue
	cutAt Instant
	pie   [kinds + 1]float64 // what the queue's factor is of: the use within the limits when it first was cut
	state Pressure
}

type meterUse struct {
	used      float64
	throttled time.Duration
}

// NewBackpressure returns the backpressure of the broker whose tenants are in l. Only one may press a limiter.
func NewBackpressure(l *Limiter, safe SafeLimits) (*Backpressure, error) {
	for _, v := range []float64{safe.Ingress, safe.Egress, safe.RequestTime, safe.ConnectionRate, float64(safe.QueueWait), float64(safe.QueueLength)} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%w: safe limits %+v", ErrInvalid, safe)
		}
	}
	b := &Backpressure{l: l, safe: safe, queue: 1, used: make(map[groupID]meterUse)}
	b.state = Pressure{Factor: make(map[Kind]float64), Queue: 1}
	return b, nil
}

// State returns the present state. The map is the caller's.
func (b *Backpressure) State() Pressure {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.state
	p.Factor = make(map[Kind]float64, len(b.state.Factor))
	maps.Copy(p.Factor, b.state.Factor)
	return p
}

// Level returns the factor f in (0, 1] by which limits must be multiplied so that the sum of min(demand, f*limit) is total; 1 if the demands fit
// anyway.
func Level(total float64, demands, limits []float64) float64 {
	sum := 0.0
	for i, d := range demands {
		sum += min(d, limits[i])
	}
	if sum <= total {
		return 1
	}
	order := make([]int32, len(demands))
	for i := range order {
		order[i] = int32(i)
	}
	ratio := func(i int32) float64 { return demands[i] / limits[i] }
	order = slices.DeleteFunc(order, func(i int32) bool { return limits[i] <= 0 })
	slices.SortFunc(order, func(i, j int32) int {
		switch a, b := ratio(i), ratio(j); {
		case a < b:
			return -1
		case a > b:
			return 1
		}
		return 0
	})
	weights := 0.0
	for _, i := range order {
		weights += limits[i]
	}
	remaining := total
	for _, i := range order {
		if f := remaining / weights; ratio(i) > f {
			return min(1, max(f, minFactor))
		}
		remaining -= demands[i]
		weights -= limits[i]
	}
	return 1
}

// minFactor keeps a broker from blocking everybody, from which no use could show that it has recovered.
const minFactor = 0.01

// pressedKinds are the kinds that have a safe limit.
var pressedKinds = [...]Kind{Ingress, Egress, RequestTime, ConnectionRate}

func (s SafeLimits) of(kind Kind) float64 {
	return [...]float64{Ingress: s.Ingress, Egress: s.Egress, RequestTime: s.RequestTime, ConnectionRate: s.ConnectionRate}[kind]
}

// Step looks at what the tenants used since the last Step and at the queue, and puts new factors in force. Call it about every
// [DefaultPeriod].
func (b *Backpressure) Step(load Load, now Instant) Pressure {
	b.mu.Lock()
	period := now - b.last
	if !b.begun || period <= 0 {
		b.begun, b.last = true, now
		b.measure(0, now)
		b.mu.Unlock()
		return b.State()
	}
	b.last = now
	b.stepQueue(load, period, now)
	demands := b.measure(period, now)
	active := false
	for _, kind := range pressedKinds {
		total, f := math.Inf(1), 1.0
		if safe := b.safe.of(kind); safe > 0 {
			total = pressureAt * safe
		}
		if b.queue < 1 && kind != ConnectionRate {
			if b.pie[kind] == 0 {
				b.pie[kind] = demands[kind].sustained
			}
			total = min(total, b.queue*b.pie[kind])
		} else {
			b.pie[kind] = 0
		}
		if !math.IsInf(total, 1) && total > 0 {
			f = Level(total, demands[kind].demands, demands[kind].limits)
		}
		b.state.Factor[kind] = f
		active = active || f < 1
		b.l.pressure.set(kind, f)
	}
	active = active || b.queue < 1
	if active && !b.state.Active {
		b.state.Since = now
	}
	b.state.Active, b.state.Queue = active, b.queue
	b.state.Rebalance = active && now-b.state.Since >= Instant(PressureForRebalance)
	b.mu.Unlock()
	b.l.reapplyAll(now)
	return b.State()
}

// stepQueue moves the queue's factor: down at once, but once in 100 ms only, and up by 0.02 per second.
func (b *Backpressure) stepQueue(load Load, period Instant, now Instant) {
	long := b.safe.QueueWait > 0 && load.Wait > b.safe.QueueWait || b.safe.QueueLength > 0 && load.Queue > b.safe.QueueLength
	switch {
	case !long:
		b.queue = min(1, b.queue+queueRecovery*time.Duration(period).Seconds())
	case b.cutAt == 0 || now-b.cutAt >= Instant(100*time.Millisecond):
		b.queue = max(minFactor, b.queue*queueCut)
		b.cutAt = now
	}
}

type kindDemand struct {
	demands, limits []float64
	sustained       float64 // used within the limits: without bursts, which no factor of the limits holds back
}

// measure returns the tenants' use, demands and unpressed limits by kind: a tenant that was throttled in the period wants all of its limit, and at
// least what it used.
func (b *Backpressure) measure(period Instant, now Instant) (all [kinds + 1]kindDemand) {
	next := make(map[groupID]meterUse, len(b.used))
	for i := range b.l.shards {
		s := &b.l.shards[i]
		s.mu.Lock()
		for _, a := range s.tenants {
			for _, kind := range pressedKinds {
				m := a.meters[kind]
				if m == nil || m.quota == nil || m.quota.Rate <= 0 {
					continue
				}
				m.settle(now)
				id := groupID{a.key.Tenant, kind}
				was := b.used[id]
				next[id] = meterUse{m.used, m.throttled}
				if period <= 0 {
					continue
				}
				limit := m.rate / b.l.pressure.factor(kind)
				used := max(0, m.used-was.used) * 1e9 / float64(period)
				demand := used
				if m.throttled != was.throttled {
					demand = max(used, limit)
				}
				d := &all[kind]
				d.demands, d.limits = append(d.demands, demand), append(d.limits, limit)
				d.sustained += min(used, limit)
			}
		}
		s.mu.Unlock()
	}
	b.used = next
	return all
}
