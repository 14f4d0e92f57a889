package balance

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
