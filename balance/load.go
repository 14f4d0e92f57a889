package balance

import "math"

// Load is an estimate of how much of a broker is used, in [0, 1].
type Load struct {
	// Utilization is the share of time that the servers were busy: the number for capacity planning.
	Utilization float64
	// Pressure is the utilisation that would explain the waits of requests. It exceeds Utilization when
	// traffic comes in bursts or when something other than the servers is short, and approaches 1
	// within seconds when a pool stalls.
	Pressure float64
	// Overall is the larger of the two: the number to balance by.
	Overall float64
}

// handOver joins both estimates. The maximum is continuous and monotone in either, needs no
// threshold that a trigger could flap at, and lets a stall show at once. A blend by busy share
// would not: the busy share needs a minute to see a stall.
func handOver(utilization, pressure float64) Load {
	utilization, pressure = clamp01(utilization), clamp01(pressure)
	return Load{Utilization: utilization, Pressure: pressure, Overall: max(utilization, pressure)}
}

// Combine returns the load of a broker from those of its pools: each number is the largest of the
// pools, since the fullest pool is what requests wait for.
func Combine(loads ...Load) Load {
	var all Load
	for _, l := range loads {
		all.Utilization = max(all.Utilization, clamp01(l.Utilization))
		all.Pressure = max(all.Pressure, clamp01(l.Pressure))
	}
	all.Overall = max(all.Utilization, all.Pressure)
	return all
}

// BrokerLoad is the load of one broker.
type BrokerLoad struct {
	Broker BrokerID
	Load   Load
}

// ClusterLoad returns the most loaded broker: its load is that of the cluster, since the slowest broker is
// what clients feel. Of equal ones it is the one with the smallest id. Without brokers it
// returns [NoBroker].
//
// Source: Kora, section 4.1.
func ClusterLoad(brokers []BrokerLoad) BrokerLoad {
	worst := BrokerLoad{Broker: NoBroker}
	for _, b := range brokers {
		if worst.Broker == NoBroker || b.Load.Overall > worst.Load.Overall ||
			b.Load.Overall == worst.Load.Overall && b.Broker < worst.Broker {
			worst = b
		}
	}
	return worst
}

// CellUsage is what [CellLoad] is computed from: sums over the brokers of a cell.
type CellUsage struct {
	// Brokers are the loads of the brokers.
	Brokers []Load
	// Replicas of MaxReplicas are in use; a maximum of 0 is not counted.
	Replicas, MaxReplicas int64
	// Ingress and Egress are bytes per second, each with its capacity; 0 is not counted.
	Ingress, MaxIngress int64
	Egress, MaxEgress   int64
}

// CellLoad returns the load of a cell: the largest of the mean load of its brokers, the share of replicas
// and the share of bandwidth in use. It may exceed 1.
//
// Source: Kora, section 5.3.
func CellLoad(u CellUsage) float64 {
	sum := 0.0
	for _, l := range u.Brokers {
		sum += clamp01(l.Overall)
	}
	load := 0.0
	if n := len(u.Brokers); n > 0 {
		load = sum / float64(n)
	}
	return max(load, share(u.Replicas, u.MaxReplicas), share(u.Ingress, u.MaxIngress), share(u.Egress, u.MaxEgress))
}

func share(used, limit int64) float64 {
	if limit <= 0 {
		return 0
	}
	return float64(max(used, 0)) / float64(limit)
}

// Dimension is one that capacity units are declared in.
type Dimension uint8

// The dimensions of a capacity unit. They index [Dimensions].
const (
	IngressBytesPerSecond Dimension = iota
	EgressBytesPerSecond
	RequestsPerSecond
	Connections
	ConnectionsPerSecond
	Partitions

	numDimensions = 6
)

// String returns the name of the dimension.
func (d Dimension) String() string {
	names := [...]string{"ingress bytes/s", "egress bytes/s", "requests/s", "connections", "connections/s", "partitions"}
	if int(d) < len(names) {
		return names[d]
	}
	return "load"
}

// LoadDimension stands for the measured load in [Headroom.Limiting].
const LoadDimension Dimension = numDimensions

// Dimensions holds an amount of each [Dimension]: what one capacity unit declares as its maximum
// (0: not declared), or what is in use.
type Dimensions [numDimensions]int64

// Headroom says how much of a number of capacity units is in use.
type Headroom struct {
	// Shares is the use of each dimension over its maximum.
	Shares [numDimensions]float64
	// Limiting is the fullest dimension; [LoadDimension] when it is the cluster's load.
	Limiting Dimension
	// Used is its share. Maxima cannot all be reached at once: that is what the load is for.
	Used float64
	// Free is 1-Used, not below 0.
	Free float64
	// UnitsNeeded is the number of units at which every share, and the load scaled to them, is at most the
	// target.
	UnitsNeeded int
}

// UnitHeadroom returns the headroom of units capacity units of a kind, given what is used and the
// cluster's load. target, in (0, 1], is the share to stay below when asking for units needed; 0 means .8,
// the value that Confluent's guidance for its cluster load names. units below 1 counts as 1.
func UnitHeadroom(unit Dimensions, units int, used Dimensions, load Load, target float64) Headroom {
	if !(target > 0 && target <= 1) {
		target = 0.8
	}
	n := float64(max(units, 1))
	h := Headroom{Limiting: LoadDimension, Used: clamp01(load.Overall)}
	for d, limit := range unit {
		if limit <= 0 {
			continue
		}
		h.Shares[d] = float64(max(used[d], 0)) / (float64(limit) * n)
		if h.Shares[d] > h.Used {
			h.Limiting, h.Used = Dimension(d), h.Shares[d]
		}
	}
	h.Free = max(1-h.Used, 0)
	h.UnitsNeeded = max(1, int(math.Ceil(h.Used*n/target-1e-9)))
	return h
}
