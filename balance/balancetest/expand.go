package balancetest

import (
	"math/rand/v2"
	"slices"

	"github.com/cordwood-io/cordwood/balance"
)

// Order is the order in which [Expand] takes the replicas of a broker.
type Order int

// The orders.
const (
	RandomOrder Order = iota
	LightestFirst
	HeaviestFirst
)

// Expand is the plain rule that expansions are compared with, on disk load and without copies: take the most loaded old
// broker, and of its replicas the first in the order that keeps the giver above low and the receiver below high times the
// mean and brings the two closer; give it to the least loaded new broker; until all are in that range or nothing
// fits. Joining brokers are the new ones. It returns the number of moves, the bytes moved and the loads at the end.
func Expand(c balance.Cluster, order Order, low, high float64, seed uint64) (moves int, bytes int64, loads map[balance.BrokerID]int64) {
	r := rand.New(rand.NewPCG(seed, 4))
	lists := map[balance.BrokerID][]int64{}
	loads = map[balance.BrokerID]int64{}
	total := int64(0)
	for _, p := range c.Partitions {
		for _, rep := range p.Replicas {
			x := rep.Load[balance.Disk]
			lists[rep.Broker] = append(lists[rep.Broker], x)
			loads[rep.Broker] += x
			total += x
		}
	}
	var old, fresh []balance.BrokerID
	for _, b := range c.Brokers {
		l := lists[b.ID]
		switch order {
		case RandomOrder:
			r.Shuffle(len(l), func(i, j int) { l[i], l[j] = l[j], l[i] })
		default:
			slices.Sort(l)
			if order == HeaviestFirst {
				slices.Reverse(l)
			}
		}
		if b.State == balance.Joining {
			fresh = append(fresh, b.ID)
		} else {
			old = append(old, b.ID)
		}
	}
	mean := float64(total) / float64(len(c.Brokers))
	stuck := map[balance.BrokerID]bool{}
	for {
		to := fresh[0]
		for _, b := range fresh {
			if loads[b] < loads[to] {
				to = b
			}
		}
		from := balance.NoBroker
		for _, b := range old {
			if !stuck[b] && (from == balance.NoBroker || loads[b] > loads[from]) {
				from = b
			}
		}
		if from == balance.NoBroker || float64(loads[to]) >= low*mean && float64(loads[from]) <= high*mean {
			return moves, bytes, loads
		}
		i := slices.IndexFunc(lists[from], func(x int64) bool {
			return float64(loads[from]-x) >= low*mean && float64(loads[to]+x) <= high*mean && x < loads[from]-loads[to]
		})
		if i < 0 {
			stuck[from] = true
			continue
		}
		x := lists[from][i]
		lists[from] = slices.Delete(lists[from], i, i+1)
		loads[from] -= x
		loads[to] += x
		moves++
		bytes += x
	}
}

// BytesBound returns the fewest bytes that any plan must move to bring every broker to at most high times the mean of a
// resource: the densest replicas of each broker above it first, the last one in part. Leadership moves would
// cost nothing, so it is a bound only where the resource does not follow leadership.
func BytesBound(c balance.Cluster, res balance.Resource, high float64) int64 {
	type item struct{ x, bytes int64 }
	lists := map[balance.BrokerID][]item{}
	loads := map[balance.BrokerID]float64{}
	total := 0.0
	for _, p := range c.Partitions {
		for _, r := range p.Replicas {
			lists[r.Broker] = append(lists[r.Broker], item{r.Load[res], r.Load[balance.Disk]})
			loads[r.Broker] += float64(r.Load[res])
			total += float64(r.Load[res])
		}
	}
	limit := high * total / float64(len(c.Brokers))
	bound := 0.0
	for b, list := range lists {
		slices.SortFunc(list, func(a, b item) int {
			switch x, y := float64(a.x)*float64(b.bytes), float64(b.x)*float64(a.bytes); {
			case x > y:
				return -1
			case x < y:
				return 1
			}
			return 0
		})
		excess := loads[b] - limit
		for _, it := range list {
			if excess <= 0 || it.x == 0 {
				break
			}
			part := min(1, excess/float64(it.x))
			bound += part * float64(it.bytes)
			excess -= part * float64(it.x)
		}
	}
	return int64(bound)
}
