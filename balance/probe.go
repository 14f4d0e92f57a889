package balance

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// ProbesPerMinute is how many produce probes, and as many consume probes, each broker gets in a
// minute, on partitions that stay with it ([Partition.Pinned]).
//
// Source: Kora, section 4.4.2.
const ProbesPerMinute = 100

// Probe is the outcome of one probe from outside, over the same path as clients.
type Probe struct {
	OK      bool
	Latency time.Duration // of a successful one
}

// ProbeResult is one minute of one broker.
type ProbeResult struct {
	Broker BrokerID
	// Attempted and Succeeded count probes.
	Attempted, Succeeded int
	// P99 is the 99th percentile of the latencies of successful probes; 0 without any.
	P99 time.Duration
}

// Availability returns the share of probes that succeeded; 1 when none was attempted, since
// nothing is known to have failed.
func (r ProbeResult) Availability() float64 {
	if r.Attempted == 0 {
		return 1
	}
	return float64(r.Succeeded) / float64(r.Attempted)
}

// ProbeMinute sums up the probes of one broker in one minute.
func ProbeMinute(broker BrokerID, probes []Probe) ProbeResult {
	r := ProbeResult{Broker: broker, Attempted: len(probes)}
	var ok []time.Duration
	for _, p := range probes {
		if p.OK {
			ok = append(ok, p.Latency)
		}
	}
	r.Succeeded = len(ok)
	r.P99 = Percentile(ok, 0.99)
	return r
}

// Minute is one minute of a cluster.
type Minute struct {
	// P99 is that of the worst broker, which Worst names. A broker without a successful probe has no
	// latency; it shows in Availability.
	P99   time.Duration
	Worst BrokerID
	// Availability is the smallest of all brokers.
	Availability float64
}

// ClusterMinute sums up the brokers of a cluster in one minute: the worst broker counts.
func ClusterMinute(brokers []ProbeResult) Minute {
	m := Minute{Worst: NoBroker, Availability: 1}
	for _, r := range brokers {
		if r.Succeeded > 0 && (m.Worst == NoBroker || r.P99 > m.P99) {
			m.P99, m.Worst = r.P99, r.Broker
		}
		m.Availability = min(m.Availability, r.Availability())
	}
	return m
}

// SLO is what [WeeklySLO] found.
type SLO struct {
	// P99 is the 99th percentile of the minutes' values: with 10 080 minutes, 100 may be worse.
	P99 time.Duration
	// Availability is the mean of the minutes' availability.
	Availability float64
	// BadMinutes counts minutes whose availability was below 1.
	BadMinutes int
	// Met says that P99 and Availability reach the objectives.
	Met bool
}

// WeeklySLO sums up the minutes of a week, or of any other time, against objectives.
func WeeklySLO(minutes []Minute, p99 time.Duration, availability float64) SLO {
	s := SLO{Availability: 1}
	if len(minutes) == 0 {
		s.Met = true
		return s
	}
	values := make([]time.Duration, len(minutes))
	sum := 0.0
	for i, m := range minutes {
		values[i] = m.P99
		sum += m.Availability
		if m.Availability < 1 {
			s.BadMinutes++
		}
	}
	s.P99 = Percentile(values, 0.99)
	s.Availability = sum / float64(len(minutes))
	s.Met = s.P99 <= p99 && s.Availability >= availability
	return s
}

// FleetLatency returns the median, the 90th and the 99th percentile of the clusters' weekly P99.
func FleetLatency(clusters []time.Duration) (p50, p90, p99 time.Duration) {
	return Percentile(clusters, 0.5), Percentile(clusters, 0.9), Percentile(clusters, 0.99)
}

// AllowedDowntime returns how much of a time an availability objective leaves: 99.95 % of a week is 5.04
// minutes.
func AllowedDowntime(availability float64, period time.Duration) time.Duration {
	return time.Duration(math.Round((1 - clamp01(availability)) * float64(period)))
}

// Percentile returns the smallest value that at least a share q of the values does not exceed
// (nearest rank), and the zero value if there is none. It does not change values.
func Percentile[T cmp.Ordered](values []T, q float64) T {
	var zero T
	if len(values) == 0 {
		return zero
	}
	s := slices.Sorted(slices.Values(values))
	i := int(math.Ceil(clamp01(q)*float64(len(s))-1e-9)) - 1
	return s[min(max(i, 0), len(s)-1)]
}
