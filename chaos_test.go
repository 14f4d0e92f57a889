package cordwood_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/cordwoodtest"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
	"github.com/cordwood-io/cordwood/replication"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// chaosSeedsEnv names how many seeds the chaos test runs, and from which on:
// "count" or "count,first".
const chaosSeedsEnv = "CORDWOOD_CHAOS_SEEDS"

// A chaos is one run of a cluster under faults, and what its clients were told.
type chaos struct {
	t    *testing.T
	c    *cordwoodtest.Cluster
	rng  *rand.Rand // of the faults
	opt  chaosShape
	stop chan struct{} // closed when the clients begin nothing new

	mu    sync.Mutex
	sent  map[string]chaosFate    // by record
	at    []map[log.Offset]string // by partition: what readers have seen
	story []string
	begin time.Time
}

// A chaosShape is what differs between runs from the start.
type chaosShape struct {
	nodes, partitions int
	replication       int
	minISR            int
	segment           int64
	noStore           bool
}

type chaosFate struct {
	outcome string // acked, refused, open
	at      log.Offset
}

func (h *chaos) tell(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.story = append(h.story, fmt.Sprintf("%9.3fs ", time.Since(h.begin).Seconds())+fmt.Sprintf(format, args...))
}

func (h *chaos) errorf(format string, args ...any) {
	h.tell("ERROR "+format, args...)
	h.t.Errorf(format, args...)
}

// batch builds a batch of the records first, first+1, … of a client.
func (h *chaos) batch(client string, first, n int) (record.Batch, []string) {
	var rs []cordwood.Record
	var names []string
	for i := range n {
		name := fmt.Sprintf("%s:%06d", client, first+i)
		names = append(names, name)
		rs = append(rs, cordwood.Record{Value: []byte(name)})
	}
	b, err := cordwood.NewBatch(rs...)
	if err != nil {
		h.t.Error(err)
	}
	return b, names
}

// settle notes what a client was told of records.
func (h *chaos) settle(names []string, a log.Appended, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var indeterminate *cordwood.IndeterminateError
	for i, name := range names {
		f := chaosFate{outcome: "acked", at: a.Base + log.Offset(i)}
		switch {
		case err == nil:
			if a.End-a.Base != log.Offset(len(names)) {
				h.t.Errorf("%s: appended at [%d, %d), want %d records", name, a.Base, a.End, len(names))
			}
		case errors.Is(err, cordwood.ErrDuplicateUnknownOffset):
			f = chaosFate{"acked", -1}
		case errors.As(err, &indeterminate):
			f = chaosFate{"open", -1}
		default:
			f = chaosFate{"refused", -1}
		}
		h.sent[name] = f
	}
}

func (h *chaos) running() bool {
	select {
	case <-h.stop:
		return false
	default:
		return true
	}
}

// produce sends through an ordered pipeline, which overcomes everything.
func (h *chaos) produce(topic *cordwood.Topic, client string, partition int32, rng *rand.Rand) {
	p := topic.Producer(partition)
	defer p.Close()
	var waits sync.WaitGroup
	defer waits.Wait()
	for next := 0; h.running(); {
		n := 1 + rng.IntN(3)
		b, names := h.batch(client, next, n)
		next += n
		w, err := p.Send(context.Background(), b)
		if err != nil {
			h.errorf("%s: send: %v", client, err)
			return
		}
		waits.Go(func() {
			a, err := w.Wait(context.Background())
			h.settle(names, a, err)
			if err != nil {
				h.errorf("producer %s: batch %s failed: %v", client, names[0], err)
			}
		})
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
	}
}

// appendSome appends with deadlines that are often too short.
func (h *chaos) appendSome(topic *cordwood.Topic, client string, partition int32, rng *rand.Rand) {
	for next := 0; h.running(); {
		n := 1 + rng.IntN(3)
		b, names := h.batch(client, next, n)
		next += n
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(400))*time.Millisecond)
		a, err := topic.Append(ctx, partition, b)
		cancel()
		h.settle(names, a, err)
		var indeterminate *cordwood.IndeterminateError
		if err != nil && !errors.As(err, &indeterminate) && !errors.Is(err, context.DeadlineExceeded) {
			h.errorf("appender %s: %v", client, err)
		}
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
	}
}

// saw checks one record that a reader got against what others got.
func (h *chaos) saw(who string, partition int32, r log.Record, last *log.Offset) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := string(r.Value)
	if r.Offset <= *last {
		h.t.Errorf("%s: offset %d after %d", who, r.Offset, *last)
	}
	*last = r.Offset
	if w, ok := h.at[partition][r.Offset]; ok && w != v {
		h.t.Errorf("%s: partition %d offset %d is %q, was %q", who, partition, r.Offset, v, w)
	}
	h.at[partition][r.Offset] = v
	if _, ok := h.sent[v]; ok && h.sent[v].outcome == "refused" {
		h.t.Errorf("%s: partition %d offset %d is %q, which was not appended as its sender was told", who, partition, r.Offset, v)
	}
}

// tail reads a partition from its start, and again when it gets an error.
func (h *chaos) tail(ctx context.Context, topic *cordwood.Topic, who string, partition int32) {
	last := log.Offset(-1)
	for ctx.Err() == nil {
		for r, err := range topic.Tail(ctx, partition, last+1) {
			if err != nil {
				if ctx.Err() == nil {
					h.errorf("%s: tail from %d: %v", who, last+1, err)
					time.Sleep(100 * time.Millisecond)
				}
				break
			}
			h.saw(who, partition, r, &last)
		}
	}
}

// watchOffsets checks that what one node says of a partition's ends never goes back.
func (h *chaos) watchOffsets(ctx context.Context, topic *cordwood.Topic, who string, partition int32) {
	var was cordwood.Offsets
	for ctx.Err() == nil {
		o, err := topic.Offsets(ctx, partition)
		if err != nil {
			if ctx.Err() == nil {
				h.errorf("%s: offsets: %v", who, err)
			}
		} else {
			if o.Start < was.Start || o.HighWatermark < was.HighWatermark || o.LeaderEpoch < was.LeaderEpoch ||
				o.HighWatermark > o.End || o.TierEnd > o.HighWatermark || o.LocalStart > o.TierEnd {
				h.errorf("%s: partition %d offsets went from %+v to %+v", who, partition, was, o)
			}
			was = o
		}
		select {
		case <-time.After(37 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// Faults that one step of the run brings.
func (h *chaos) step() {
	c, rng := h.c, h.rng
	var up []int
	for i := 1; i <= c.Nodes(); i++ {
		if c.Running(i) {
			up = append(up, i)
		}
	}
	if len(up) == 0 {
		return
	}
	node := up[rng.IntN(len(up))]
	name := fmt.Sprint("node", node)
	other := fmt.Sprint("node", 1+rng.IntN(c.Nodes()))
	if rng.IntN(4) == 0 {
		other = "host100"
	}
	mode := func() logtest.CrashMode {
		switch rng.IntN(4) {
		case 0:
			return logtest.CrashLoseAll
		case 1:
			return logtest.CrashKeepAll
		}
		return logtest.CrashLoseSome(rng.Uint64())
	}
	switch k := rng.IntN(15); k {
	case 0:
		h.tell("kill %d", node)
		c.Kill(node)
	case 1, 2:
		m := mode()
		h.tell("power off %d %v", node, m)
		c.PowerOff(node, m)
	case 3:
		if rng.IntN(2) == 0 {
			return
		}
		h.tell("power off all")
		c.Network().Heal()
		for _, i := range up {
			c.PowerOff(i, mode())
		}
		h.restart(true)
	case 4:
		h.tell("close %d", node)
		c.Disk(node).SetCapacity(-1) // Close would tell that it could not tidy up
		c.Close(node)
	case 5:
		h.tell("shutdown %d", node)
		c.Disk(node).SetCapacity(-1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := c.Node(node).Shutdown(ctx)
		cancel()
		h.tell("shutdown %d: %v", node, err)
		c.Close(node)
	case 6:
		h.tell("isolate %d", node)
		c.Network().Isolate(name)
	case 7:
		if other != name {
			h.tell("partition %s %s", name, other)
			c.Network().Partition(name, other)
		}
	case 8:
		if other != name {
			h.tell("block %s to %s", name, other)
			c.Network().Block(name, other)
		}
	case 9:
		h.tell("reset %d", node)
		c.Network().Reset(name)
	case 10:
		folder := []string{"/partitions/", "/metadata/", "/"}[rng.IntN(3)]
		d := time.Duration(rng.IntN(800)) * time.Millisecond
		h.tell("stall %d %s %v", node, folder, d)
		release := c.Disk(node).Stall(func(op logtest.Op) bool { return op.Kind.Changes() && strings.Contains(op.Path, folder) })
		time.AfterFunc(d, release)
	case 11:
		folder := []string{"/partitions/", "/metadata/"}[rng.IntN(2)]
		odds, done := 1+rng.IntN(30), rng.IntN(2) == 0
		h.tell("disk of %d fails in %s, %d %v", node, folder, odds, done)
		seen := 0
		var mu sync.Mutex
		c.Disk(node).OnOp(func(op logtest.Op) error {
			if !op.Kind.Changes() || !strings.Contains(op.Path, folder) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if seen++; seen%odds == 0 {
				if done {
					return logtest.DoneButFailed(syscall.EIO)
				}
				return syscall.EIO
			}
			return nil
		})
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
		m := mode()
		h.tell("power off %d %v", node, m)
		c.PowerOff(node, m)
	case 12:
		room := int64(rng.IntN(200 << 10))
		h.tell("disk of %d fills, %d left", node, room)
		disk := c.Disk(node)
		disk.SetCapacity(disk.UsedBytes() + room)
		time.AfterFunc(time.Duration(rng.IntN(1500))*time.Millisecond, func() { disk.SetCapacity(-1) })
	case 13:
		if c.Store() == nil {
			return
		}
		seed := rng.Uint64()
		h.tell("store faults")
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(seed, 1))
		c.Store().SetFault(func(op tiertest.Op) tiertest.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch r.IntN(10) {
			case 0:
				return tiertest.Fault{Err: tier.ErrUnavailable}
			case 1:
				return tiertest.Fault{Err: tier.ErrUnknownOutcome, Done: true}
			case 2:
				return tiertest.Fault{Delay: time.Duration(r.IntN(300)) * time.Millisecond}
			case 3:
				return tiertest.Fault{Err: tier.ErrUnavailable, Done: true}
			}
			return tiertest.Fault{}
		})
	case 14:
		if c.Store() == nil {
			return
		}
		down := rng.IntN(2) == 0
		h.tell("store down: %v", down)
		c.Store().SetDown(down)
	}
}

// restart starts nodes that are down, all or one of them.
func (h *chaos) restart(all bool) {
	var starts sync.WaitGroup
	for i := 1; i <= h.c.Nodes(); i++ {
		if h.c.Running(i) {
			select {
			case <-h.c.Node(i).Done():
				h.tell("node %d had ended: %v", i, h.c.Node(i).Err())
				h.c.PowerOff(i, logtest.CrashLoseSome(h.rng.Uint64()))
			default:
				continue
			}
		}
		h.c.Disk(i).OnOp(nil)
		h.c.Disk(i).SetCapacity(-1)
		h.tell("restart %d", i)
		starts.Go(func() { h.c.Restart(i) })
		if !all {
			break
		}
	}
	starts.Wait()
}

func (h *chaos) heal() {
	h.tell("heal")
	h.c.Network().Heal()
	if h.c.Store() != nil {
		h.c.Store().SetDown(false)
		h.c.Store().SetFault(nil)
	}
}

func runChaos(t *testing.T, seed uint64, length time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 7))
	opt := chaosShape{
		nodes:       []int{3, 3, 3, 5}[rng.IntN(4)],
		partitions:  1 + rng.IntN(3),
		replication: 3,
		minISR:      []int{2, 2, 2, 3, 1}[rng.IntN(5)],
		segment:     []int64{1 << 10, 2 << 10, 16 << 10, 1 << 20}[rng.IntN(4)],
		noStore:     rng.IntN(5) == 0,
	}
	c := cordwoodtest.Start(t, cordwoodtest.Options{Nodes: opt.nodes, Seed: seed, NoStore: opt.noStore})
	h := &chaos{t: t, c: c, rng: rng, opt: opt, stop: make(chan struct{}), sent: make(map[string]chaosFate), begin: time.Now()}
	h.tell("seed %d: %+v", seed, opt)
	defer func() {
		if t.Failed() {
			t.Logf("what happened:\n%s", strings.Join(h.story, "\n"))
		}
	}()
	c.CreateTopic("t", cordwood.TopicConfig{
		Partitions: opt.partitions, Replication: opt.replication, MinISR: opt.minISR, SegmentBytes: opt.segment,
	})
	host := c.Host().Tenant("").Topic("t")
	reading, stopReading := context.WithCancel(context.Background())
	defer stopReading()
	var writers, readers sync.WaitGroup
	for p := range int32(opt.partitions) {
		h.at = append(h.at, make(map[log.Offset]string))
		for k := range 2 {
			prng := rand.New(rand.NewPCG(seed, uint64(100+10*p)+uint64(k)))
			client := fmt.Sprintf("p%d.%d", p, k)
			if k == 0 {
				writers.Go(func() { h.produce(host, client, p, prng) })
			} else {
				writers.Go(func() { h.appendSome(host, "a"+client, p, prng) })
			}
		}
		readers.Go(func() { h.tail(reading, host, fmt.Sprint("tail", p), p) })
		readers.Go(func() { h.watchOffsets(reading, host, "host", p) })
	}
	for time.Since(h.begin) < length {
		time.Sleep(time.Duration(rng.IntN(600)) * time.Millisecond)
		h.step()
		if rng.IntN(3) == 0 {
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
			h.heal()
			voters := 0
			for i := 1; i <= 3; i++ {
				if c.Running(i) {
					voters++
				}
			}
			h.restart(rng.IntN(2) == 0 || voters < 2) // a lone voter would never be ready
		}
	}
	h.heal()
	for i := 1; i <= c.Nodes(); i++ {
		c.Disk(i).SetCapacity(-1)
	}
	h.restart(true)
	h.tell("calm")
	time.Sleep(2 * time.Second)
	close(h.stop)
	within(t, h, "writers", &writers, time.Minute)
	// All replicas that can be are in sync again, in bounded time.
	for p := range opt.partitions {
		h.waitInSync(int32(p))
	}
	stopReading()
	within(t, h, "readers", &readers, time.Minute)
	for p := range int32(opt.partitions) {
		h.check(p)
	}
}

// within waits for what must end once the faults have.
func within(t *testing.T, h *chaos, what string, wg *sync.WaitGroup, d time.Duration) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(d):
		h.errorf("%s do not end", what)
		for i := 1; i <= h.c.Nodes(); i++ {
			if h.c.Running(i) {
				t.Logf("node %d: %+v", i, h.c.Node(i).Status())
			}
		}
		t.FailNow()
	}
}

func (h *chaos) waitInSync(p int32) {
	var st cordwood.ReplicaStatus
	for range 600 {
		for i := 1; i <= h.c.Nodes(); i++ {
			if r, err := h.c.Node(i).Replica("t", p); err == nil {
				if s, err := r.Status(); err == nil && s.Role == replication.RoleLeader {
					st = s
					if len(s.ISR) == h.opt.replication {
						return
					}
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	h.errorf("partition %d: not in sync: %+v", p, st)
	h.t.FailNow()
}

// check reads a partition whole, through several nodes, and compares with what
// clients were told.
func (h *chaos) check(p int32) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all []string
	for i := 1; i <= h.c.Nodes(); i++ {
		last := log.Offset(-1)
		var got []string
		where := make(map[string]log.Offset)
		for r, err := range h.c.Node(i).Tenant("").Topic("t").Records(ctx, p, 0) {
			if err != nil {
				h.errorf("final read at node %d from %d: %v", i, last+1, err)
				break
			}
			h.saw(fmt.Sprint("final ", i), p, r, &last)
			v := string(r.Value)
			if w, ok := where[v]; ok {
				h.errorf("partition %d: %s is at %d and %d", p, v, w, r.Offset)
			}
			where[v] = r.Offset
			got = append(got, v)
		}
		if i == 1 {
			all = got
		} else if len(got) != len(all) {
			h.errorf("partition %d: node %d reads %d records, node 1 %d", p, i, len(got), len(all))
		}
		if i > 1 {
			continue
		}
		order := make(map[string]int)
		for _, v := range got {
			client, number, _ := strings.Cut(v, ":")
			n, _ := strconv.Atoi(number)
			if last, ok := order[client]; ok && n != last+1 && strings.HasPrefix(client, "p") {
				h.errorf("partition %d: %s comes after %s:%06d", p, v, client, last)
			}
			order[client] = n
		}
		h.mu.Lock()
		acked := 0
		for v, f := range h.sent {
			if !strings.HasPrefix(v, fmt.Sprintf("p%d.", p)) && !strings.HasPrefix(v, fmt.Sprintf("ap%d.", p)) {
				continue
			}
			at, ok := where[v]
			switch {
			case f.outcome == "acked" && !ok:
				h.t.Errorf("partition %d: %s was acknowledged at %d and is gone", p, v, f.at)
			case f.outcome == "acked" && f.at >= 0 && at != f.at:
				h.t.Errorf("partition %d: %s was acknowledged at %d and is at %d", p, v, f.at, at)
			case f.outcome == "refused" && ok:
				h.t.Errorf("partition %d: %s was refused and is at %d", p, v, at)
			}
			if f.outcome == "acked" {
				acked++
			}
		}
		for off, v := range h.at[p] {
			if at, ok := where[v]; !ok || at != off {
				h.t.Errorf("partition %d: %s was read at %d and is gone", p, v, off)
			}
		}
		h.mu.Unlock()
		h.tell("partition %d: %d records, %d acknowledged", p, len(got), acked)
	}
}

// Clients of a cluster that loses nodes, power, messages, disks and its store are
// told the truth: what was acknowledged is there, once, in order and where they
// were told; what was refused is not; and once the faults end, so do their calls.
func TestChaos(t *testing.T) {
	count, first := 8, 21
	if testing.Short() {
		count = 2
	}
	if s := os.Getenv(chaosSeedsEnv); s != "" {
		n, f, _ := strings.Cut(s, ",")
		count, _ = strconv.Atoi(n)
		if f != "" {
			first, _ = strconv.Atoi(f)
		}
	}
	for i := range count {
		seed := uint64(first + i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runChaos(t, seed, 15*time.Second) })
		})
	}
}
