package balance

// Heuristic returns options that never solve a tiny model by trying all.
func Heuristic(o PlanOptions) PlanOptions {
	o.heuristic = true
	return o
}

// HandOver joins utilisation and pressure.
func HandOver(utilization, pressure float64) Load { return handOver(utilization, pressure) }
