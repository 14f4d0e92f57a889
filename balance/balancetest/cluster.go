package balancetest

import (
	"math"
	"math/rand/v2"

	"github.com/cordwood-io/cordwood/balance"
)

// ClusterSpec describes a cluster to make.
type ClusterSpec struct {
	// Brokers with numbers from 0 on, spread over Zones zones in turn.
	Brokers, Zones int
	// Cells, if above 1, cuts brokers and partitions into that many cells, numbered from 1.
	Cells int
	// Partitions, each with Replication copies in different zones where there are zones enough.
	Partitions, Replication int
	// Alpha and Cap give the heavy tail of loads: a Pareto law with exponent Alpha, from 1 to Cap. Alpha 0
	// makes all loads equal.
	Alpha, Cap float64
	// Spread is the standard deviation of the logarithm of a partition's bytes for its load; 0 makes
	// bytes proportional to load.
	Spread float64
	// Skew puts more on some brokers: a broker draws (1 + Skew * u) times as many replicas as the
	// least, u uniform in [0, 1).
	Skew float64
	// Unit is the load of the lightest partition, in bytes a second; 0 means 10 000. Its disk is a
	// thousand times that.
	Unit float64
	Seed uint64
}

// Topic returns the n-th topic.
func Topic(n int) (t balance.TopicID) {
	t[0], t[1], t[2], t[3] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	return t
}

// Pareto draws from a Pareto law from 1 to limit.
func Pareto(r *rand.Rand, alpha, limit float64) float64 {
	if alpha <= 0 {
		return 1
	}
	return min(math.Pow(1-r.Float64(), -1/alpha), limit)
}

// Cluster makes the cluster. Replicas of a partition are the same size; the leader serves all egress,
// twice the ingress, and costs more work.
func Cluster(spec ClusterSpec) balance.Cluster {
	r := rand.New(rand.NewPCG(spec.Seed, 2))
	zones := max(spec.Zones, 1)
	cells := max(spec.Cells, 1)
	unit := spec.Unit
	if unit == 0 {
		unit = 10_000
	}
	c := balance.Cluster{Brokers: make([]balance.Broker, spec.Brokers), Partitions: make([]balance.Partition, spec.Partitions)}
	byCell := make([][][]balance.BrokerID, cells)
	weight := make([]float64, spec.Brokers)
	for i := range byCell {
		byCell[i] = make([][]balance.BrokerID, zones)
	}
	for i := range c.Brokers {
		z := i % zones
		cell := i / zones % cells
		c.Brokers[i] = balance.Broker{ID: balance.BrokerID(i), Zone: string(rune('a' + z)), MaxReplicas: 1 << 20}
		if spec.Cells > 1 {
			c.Brokers[i].Cell = balance.CellID(cell + 1)
		}
		byCell[cell][z] = append(byCell[cell][z], balance.BrokerID(i))
		weight[i] = 1 + spec.Skew*r.Float64()
	}
	pick := func(list []balance.BrokerID) balance.BrokerID {
		for {
			b := list[r.IntN(len(list))]
			if spec.Skew == 0 || r.Float64()*(1+spec.Skew) < weight[b] {
				return b
			}
		}
	}
	for i := range c.Partitions {
		cell := i % cells
		p := &c.Partitions[i]
		p.ID = balance.PartitionID{Topic: Topic(i / 100), Index: int32(i % 100)}
		if spec.Cells > 1 {
			p.Cell = balance.CellID(cell + 1)
		}
		x := unit * Pareto(r, spec.Alpha, spec.Cap)
		bytes := x * 1000
		if spec.Spread > 0 {
			bytes *= math.Exp(spec.Spread*r.NormFloat64() - spec.Spread*spec.Spread/2)
		}
		first := r.IntN(zones)
		p.Replicas = make([]balance.Replica, 0, spec.Replication)
		for k := range spec.Replication {
			list := byCell[cell][(first+k)%zones]
			b := pick(list)
			for used(p, b) {
				b = list[r.IntN(len(list))]
			}
			p.Replicas = append(p.Replicas, balance.Replica{Broker: b, Load: balance.Loads{int64(x), 0, int64(bytes), int64(x / 5)}})
		}
		p.Leader = p.Replicas[0].Broker
		p.Leadership = balance.Loads{0, int64(2 * x), 0, int64(x / 2)}
	}
	return c
}

func used(p *balance.Partition, b balance.BrokerID) bool {
	for _, r := range p.Replicas {
		if r.Broker == b {
			return true
		}
	}
	return false
}

// Imbalance returns the largest ratio of a broker's amount of a resource to the mean, of brokers that are
// active or joining.
func Imbalance(c balance.Cluster, res balance.Resource) float64 {
	sums := map[balance.BrokerID]float64{}
	total := 0.0
	for i := range c.Partitions {
		p := &c.Partitions[i]
		for j := range p.Replicas {
			x := p.Replicas[j].Load[res]
			if p.Replicas[j].Broker == p.Leader {
				x += p.Leadership[res]
			}
			sums[p.Replicas[j].Broker] += float64(x)
			total += float64(x)
		}
	}
	n, worst := 0, 0.0
	for _, b := range c.Brokers {
		if b.State == balance.Active || b.State == balance.Joining {
			n++
			worst = max(worst, sums[b.ID])
		}
	}
	if total == 0 {
		return 1
	}
	return worst * float64(n) / total
}
