package balancetest

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/cordwood-io/cordwood/balance"
)

// Dist draws positive numbers with mean 1.
type Dist func(r *rand.Rand) float64

// Exponential has a squared coefficient of variation of 1.
func Exponential() Dist { return func(r *rand.Rand) float64 { return r.ExpFloat64() } }

// Constant has a squared coefficient of variation of 0.
func Constant() Dist { return func(*rand.Rand) float64 { return 1 } }

// Erlang is the sum of k exponential parts: a squared coefficient of variation of 1/k.
func Erlang(k int) Dist {
	return func(r *rand.Rand) float64 {
		x := 0.0
		for range k {
			x += r.ExpFloat64()
		}
		return x / float64(k)
	}
}

// Hyperexponential mixes two exponential distributions with balanced means so that the squared
// coefficient of variation is cv2, above 1.
func Hyperexponential(cv2 float64) Dist {
	p := (1 + math.Sqrt((cv2-1)/(cv2+1))) / 2
	return func(r *rand.Rand) float64 {
		if r.Float64() < p {
			return r.ExpFloat64() / (2 * p)
		}
		return r.ExpFloat64() / (2 * (1 - p))
	}
}

// Queue is a first-come-first-served queue with equal servers.
type Queue struct {
	// Servers is the number of servers; below 1 counts as 1.
	Servers int
	// Utilization is the offered load of each server: below 1 for a stable queue.
	Utilization float64
	// Service is the mean service time.
	Service time.Duration
	// Arrivals and Services are the distributions; nil means [Exponential].
	Arrivals, Services Dist
	// Rate, if set, multiplies the rate of arrivals at a time since the start: 1 is Utilization.
	Rate func(t time.Duration) float64
	// Stalled, if set, says until when the servers stand still at a time; a time not after t means that
	// they do not.
	Stalled func(t time.Duration) time.Duration
	// Seed makes the run.
	Seed uint64
}

// Run feeds the pool with the queue's requests from start on for a time, and calls observe every so
// often, in virtual time. It returns the mean wait of all requests that were served.
func (q Queue) Run(pool *balance.Pool, start time.Time, length, every time.Duration, observe func(now time.Time)) time.Duration {
	r := rand.New(rand.NewPCG(q.Seed, 1))
	arrivals, services := q.Arrivals, q.Services
	if arrivals == nil {
		arrivals = Exponential()
	}
	if services == nil {
		services = Exponential()
	}
	servers := max(q.Servers, 1)
	service := float64(q.Service)
	gap := service / (q.Utilization * float64(servers))
	rate := func(t float64) float64 {
		if q.Rate == nil {
			return 1
		}
		return q.Rate(time.Duration(t))
	}
	at := func(t float64) time.Time { return start.Add(time.Duration(t)) }

	type request struct {
		token   balance.Token
		arrived float64
	}
	var queue []request
	head := 0
	ends := make([]float64, servers) // end of service of each server, +Inf when free
	jobs := make([]request, servers)
	for i := range ends {
		ends[i] = math.Inf(1)
	}
	free := servers
	next := arrivals(r) * gap / rate(0)
	look := float64(every)
	waited, served := 0.0, 0
	begin := func(t float64) {
		for free > 0 && head < len(queue) {
			if q.Stalled != nil && q.Stalled(time.Duration(t)) > time.Duration(t) {
				return
			}
			j := queue[head]
			head++
			if head > 4096 && head*2 > len(queue) {
				queue = append(queue[:0], queue[head:]...)
				head = 0
			}
			for i := range ends {
				if math.IsInf(ends[i], 1) {
					j.token.Start(at(t))
					waited += t - j.arrived
					served++
					jobs[i] = j
					ends[i] = t + services(r)*service
					break
				}
			}
			free--
		}
	}
	for {
		first := 0
		for i, e := range ends {
			if e < ends[first] {
				first = i
			}
		}
		end := ends[first]
		if q.Stalled != nil && !math.IsInf(end, 1) {
			if until := q.Stalled(time.Duration(end)); until > time.Duration(end) {
				ends[first] = float64(until) + end - math.Floor(end) // the work resumes when the stall ends
				continue
			}
		}
		t := min(next, end, look)
		if t > float64(length) {
			break
		}
		switch t {
		case look:
			observe(at(t))
			look += float64(every)
		case end:
			jobs[first].token.Done(at(t))
			ends[first] = math.Inf(1)
			free++
			begin(t)
		default:
			queue = append(queue, request{pool.Enqueue(at(t)), t})
			next = t + arrivals(r)*gap/rate(t)
			begin(t)
		}
	}
	if served == 0 {
		return 0
	}
	return time.Duration(waited / float64(served))
}
