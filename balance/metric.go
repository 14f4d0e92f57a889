package balance

// metric is what a goal counts on a broker: the resources, and two numbers.
type metric uint8

const (
	metricReplicas metric = numResources
	metricLeaders  metric = numResources + 1
	numMetrics            = numResources + 2
)

// amounts holds one number for each metric.
type amounts [numMetrics]int64

// metric returns what a capacity or soft goal counts.
func (g Goal) metric() metric {
	switch g {
	case GoalIngressCapacity, GoalIngress:
		return metric(Ingress)
	case GoalEgressCapacity, GoalEgress:
		return metric(Egress)
	case GoalDiskCapacity, GoalDisk:
		return metric(Disk)
	case GoalWorkCapacity, GoalWork:
		return metric(Work)
	case GoalReplicaCapacity, GoalReplicas:
		return metricReplicas
	case GoalLeaders:
		return metricLeaders
	}
	panic("balance: goal without metric")
}

func (l Loads) sub(m Loads) Loads {
	for i := range l {
		l[i] -= m[i]
	}
	return l
}

func (a amounts) loads() (l Loads) {
	copy(l[:], a[:numResources])
	return l
}
