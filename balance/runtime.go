package balance

import (
	"math"
	"runtime/metrics"
	"sync"
	"time"
)

// Runtime estimates the load of the whole process from the Go runtime's own figures, for hosts that
// account no [Pool]. The zero value is ready. Safe for concurrent use.
//
// It is a poor man's load. It sees waits for a processor only, not those for disk or network, and not the
// queues of the host. Pressure follows within the interval between two samples and is averaged
// over [Window]. Utilization lags further: the runtime computes the idle share of processors at the end of a
// garbage collection, which in a process that allocates little comes every two minutes only.
type Runtime struct {
	mu      sync.Mutex
	samples [3]metrics.Sample
	counts  []uint64 // of the latency histogram at the last sample
	wait    Average
	idle    float64 // processor seconds at the last change
	total   float64
	slice   float64 // mean nanoseconds that a goroutine runs before it is scheduled again
	events  float64 // schedulings since the last change of total
	busy    float64
	started bool
}

// Sample reads the runtime's figures and returns the load at now. Call it every second or so; the time between
// calls does not change the result otherwise. The first call returns zero.
func (r *Runtime) Sample(now time.Time) Load {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples[0].Name = "/sched/latencies:seconds"
	r.samples[1].Name = "/cpu/classes/idle:cpu-seconds"
	r.samples[2].Name = "/cpu/classes/total:cpu-seconds"
	metrics.Read(r.samples[:])
	if r.samples[0].Value.Kind() != metrics.KindFloat64Histogram || r.samples[1].Value.Kind() != metrics.KindFloat64 ||
		r.samples[2].Value.Kind() != metrics.KindFloat64 {
		return Load{} // a runtime that no longer has these figures
	}
	h := r.samples[0].Value.Float64Histogram()
	idle, total := r.samples[1].Value.Float64(), r.samples[2].Value.Float64()
	r.wait.advance(now)
	if r.started && len(r.counts) == len(h.Counts) {
		for i, c := range h.Counts {
			n := float64(c - r.counts[i])
			if n <= 0 {
				continue
			}
			lo, hi := h.Buckets[i], h.Buckets[i+1]
			switch {
			case math.IsInf(lo, -1):
				lo = max(hi, 0)
			case math.IsInf(hi, 1):
				hi = lo
			}
			r.wait.sum += n * (lo + hi) / 2 * 1e9
			r.wait.count += n
			r.events += n
		}
	}
	if total > r.total {
		if r.started {
			r.busy = clamp01(1 - (idle-r.idle)/(total-r.total))
			if r.events > 0 {
				r.slice = (total - r.total - (idle - r.idle)) * 1e9 / r.events
			}
		}
		r.idle, r.total, r.events = idle, total, 0
	}
	r.counts = append(r.counts[:0], h.Counts...)
	if !r.started {
		r.started = true
		return Load{}
	}
	trust := min(r.wait.count/MinSamples, 1)
	return handOver(r.busy, invert(r.wait.Mean(now), r.slice, 1)*trust)
}
