package replication_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/replication"
)

var chaosSeeds = flag.Int("chaos.seeds", 4, "number of seeds of TestChaos")

// The driver itself under crashes, cuts and moved leaderships: what producers were
// told is there once, in their order, on every replica. Unlike the simulation of the
// core it can't be replayed exactly, since goroutines are scheduled at random.
func TestChaos(t *testing.T) {
	for seed := range uint64(*chaosSeeds) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

func chaos(t *testing.T, rng *rand.Rand) {
	c := newCluster(t, 3, replication.Options{LagMax: 300 * time.Millisecond, AckLatency: 50 * time.Millisecond, FetchTimeout: 200 * time.Millisecond,
		FetchWait: 100 * time.Millisecond, FetchBytes: 2 << 10, ReplyBytes: 8 << 10, RetryBackoff: 5 * time.Millisecond, HintInterval: 50 * time.Millisecond})
	defer c.close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	acked := make([]int, 4)
	for id := range acked {
		wg.Go(func() {
			for seq := 0; ; seq++ {
				for {
					select {
					case <-stop:
						return
					default:
					}
					r := c.replica(max(c.assignment(partition).Leader.ID, 1))
					if r == nil {
						time.Sleep(time.Millisecond)
						continue
					}
					_, err := r.Append(t.Context(), produced(t, int64(id), int32(seq), fmt.Sprintf("%d-%d", id, seq)), replication.AcksAll)
					if err == nil {
						acked[id] = seq + 1
						time.Sleep(5 * time.Millisecond)
						break
					}
					if errors.Is(err, log.ErrInvalidBatch) || errors.Is(err, log.ErrDuplicateUnknownOffset) {
						t.Errorf("producer %d, batch %d: %v", id, seq, err)
						return
					}
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	inSync := func(id replication.NodeID) bool { _, in := inISR(c, id); return in }
	for range 60 {
		time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		id := replication.NodeID(1 + rng.IntN(3))
		n := len(c.assignment(partition).ISR)
		switch rng.IntN(4) {
		case 0: // loses power
			if n < 2 && inSync(id) {
				continue
			}
			c.stop(id, true)
			c.without(id)
			time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
			c.start(id)
		case 1: // cut off; the controller fences it, or not
			c.mu.Lock()
			c.cut[id] = true
			c.mu.Unlock()
			if n >= 2 && inSync(id) && (rng.IntN(2) == 0 || c.assignment(partition).Leader.ID == id) {
				c.without(id)
			}
			time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
			c.mu.Lock()
			delete(c.cut, id)
			c.mu.Unlock()
			c.tell()
		case 2: // hand-over
			if inSync(id) {
				c.lead(partition, id)
			}
		case 3: // the process is registered again
			if n < 2 && inSync(id) {
				continue
			}
			c.without(id)
			c.mu.Lock()
			c.epoch++
			c.nodes[id].self.Epoch = c.epoch
			self, m := c.nodes[id].self, c.nodes[id].m
			c.mu.Unlock()
			m.SetSelf(self)
			c.tell()
		}
	}
	time.Sleep(time.Second)
	close(stop)
	wg.Wait()
	time.Sleep(100 * time.Millisecond)
	if a := c.assignment(partition); len(a.ISR) != 3 {
		t.Errorf("in sync: %v; %+v", a.ISR, c.replica(a.Leader.ID).Status())
	}
	var first string
	for id := range c.nodes {
		got := values(t, c.replica(id))
		next := make([]int, len(acked))
		for _, v := range got {
			var p, s int
			fmt.Sscanf(v, "%d-%d", &p, &s)
			if s != next[p] {
				t.Fatalf("node %d: producer %d: batch %d after %d", id, p, s, next[p]-1)
			}
			next[p]++
		}
		for p, n := range acked {
			if next[p] < n {
				t.Errorf("node %d: producer %d has %d of %d acknowledged", id, p, next[p], n)
			}
		}
		if first == "" {
			first = fmt.Sprint(got)
		} else if first != fmt.Sprint(got) {
			t.Errorf("node %d differs", id)
		}
	}
	sum := 0
	for _, n := range acked {
		sum += n
	}
	if sum < 300 {
		t.Errorf("only %d appends were acknowledged", sum)
	}
}
