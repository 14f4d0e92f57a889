package balance_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/balance"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s: got %v, want %v ± %v", what, got, want, tolerance)
	}
}

func TestPoolCountsRequests(t *testing.T) {
	p := &balance.Pool{Servers: 2}
	if st := p.Stats(at(0)); st.Load != (balance.Load{}) || st.Servers != 2 {
		t.Errorf("before the first request: got %+v", st)
	}
	a, b, c := p.Enqueue(at(0)), p.Enqueue(at(1)), p.Enqueue(at(2))
	a.Start(at(1))
	b.Start(at(3))
	b.Start(at(30)) // a second call does nothing
	st := p.Stats(at(3))
	if st.Queued != 1 || st.Active != 2 || st.Enqueued != 3 || st.Started != 2 || st.Finished != 0 {
		t.Errorf("got %+v", st)
	}
	// Waits of 1 s (two seconds ago) and 2 s ended, one is 1 s old. The tolerance is that of decay.
	near(t, "mean wait", st.Wait.Seconds(), 4.0/3, 0.02)

	a.Done(at(4))
	a.Done(at(5))
	b.Done(at(5))
	c.Done(at(6)) // given up in the queue
	c.Start(at(7))
	st = p.Stats(at(7))
	if st.Queued != 0 || st.Active != 0 || st.Started != 2 || st.Finished != 3 {
		t.Errorf("got %+v", st)
	}
	near(t, "mean service", st.Service.Seconds(), 2.5, 0.02)
	// The one that was given up waited four seconds.
	near(t, "mean wait with the one given up", st.Wait.Seconds(), 2.376, 0.01)
}

func TestPoolNil(t *testing.T) {
	var p *balance.Pool
	tok := p.Enqueue(at(0))
	tok.Start(at(1))
	tok.Done(at(2))
	var zero balance.Token
	zero.Start(at(0))
	zero.Done(at(0))
	if st := p.Stats(at(3)); st != (balance.PoolStats{}) {
		t.Errorf("got %+v", st)
	}
}

// TestPoolIdle holds the ghost load that the rounding of the Unix load average left behind against us, and
// the gap of hours that gives 0/0.
func TestPoolIdle(t *testing.T) {
	p := &balance.Pool{Servers: 1}
	now := 0.0
	for range 60_000 { // 1 ms each, back to back, with a queue of one: full load
		tok := p.Enqueue(at(max(now-0.001, 0)))
		tok.Start(at(now))
		now += 0.001
		tok.Done(at(now))
	}
	busy := p.Stats(at(now)).Load
	if busy.Utilization < 1-1e-9 {
		t.Errorf("full load: got %+v", busy)
	}
	last := busy.Overall
	for _, s := range []float64{1, 10, 60, 120, 240} {
		l := p.Stats(at(now + s)).Load
		if l.Overall > last {
			t.Errorf("load grows %v s after the last request: %v after %v", s, l.Overall, last)
		}
		last = l.Overall
		if s == 240 && l.Overall > 0.05 {
			t.Errorf("after four idle minutes: got %+v", l)
		}
	}
	for _, s := range []float64{1500, 36_000, 1e8} {
		if l := p.Stats(at(now + s)).Load; !(l.Overall < 1e-9) {
			t.Errorf("after %v idle seconds: got %+v", s, l)
		}
	}
	tok := p.Enqueue(at(now + 1e8))
	tok.Start(at(now + 1e8 + 1))
	if st := p.Stats(at(now + 1e8 + 1)); math.IsNaN(st.Load.Overall) || st.Wait != time.Second {
		t.Errorf("first request after years: got %+v", st)
	}
}

// TestPoolUtilization: three of four servers are busy all the time.
func TestPoolUtilization(t *testing.T) {
	p := &balance.Pool{Servers: 4}
	for range 3 {
		tok := p.Enqueue(at(0))
		tok.Start(at(0))
	}
	for _, s := range []float64{1, 60, 600} {
		near(t, "utilization", p.Stats(at(s)).Load.Utilization, 0.75, 1e-9)
	}
}

// TestPoolIdleIsNoVariation: arrivals that come like clockwork still do so after an idle time.
func TestPoolIdleIsNoVariation(t *testing.T) {
	p := &balance.Pool{Servers: 1}
	now := 0.0
	for _, pause := range []float64{0, 20} {
		now += pause
		for range 300 {
			now += 0.01
			tok := p.Enqueue(at(now))
			tok.Start(at(now))
			tok.Done(at(now + 0.001))
		}
		near(t, "variation of arrivals", p.Stats(at(now)).ArrivalVariation, 0, 1e-3)
	}
}

// TestPoolFewSamples: one request that waited long says little.
func TestPoolFewSamples(t *testing.T) {
	p := &balance.Pool{Servers: 1}
	tok := p.Enqueue(at(0))
	tok.Start(at(1))
	tok.Done(at(1.001))
	if l := p.Stats(at(1.001)).Load; l.Pressure > 1.0/balance.MinSamples {
		t.Errorf("got %+v", l)
	}
}

// TestPoolTimeBackwards: racing goroutines hand over times that are out of order.
func TestPoolTimeBackwards(t *testing.T) {
	p := &balance.Pool{Servers: 1}
	p.Enqueue(at(0))
	p.Enqueue(at(10))
	for i := range 50 { // times of two clocks, a quarter of an hour apart, in turn
		late := p.Enqueue(at(1000 + float64(i)/100))
		early := p.Enqueue(at(float64(i) / 100))
		late.Done(at(1000 + float64(i)/100))
		early.Done(at(float64(i) / 100))
	}
	if st := p.Stats(at(1001)); st.Samples > 102 || st.Queued != 2 {
		t.Errorf("got %+v", st)
	}
	p = &balance.Pool{Servers: 1}
	p.Enqueue(at(10))
	tok := p.Enqueue(at(5))
	tok.Start(at(4))
	tok.Done(at(3))
	st := p.Stats(at(2))
	if st.Samples > 2 || st.Wait < 0 || st.Service < 0 || math.IsNaN(st.Load.Overall) || st.Load.Overall < 0 || st.Load.Overall > 1 {
		t.Errorf("got %+v", st)
	}
}

func TestPoolConcurrent(t *testing.T) {
	p := &balance.Pool{Servers: 8}
	var wg sync.WaitGroup
	const n, each = 8, 2000
	for range n {
		wg.Go(func() {
			for i := range each {
				tok := p.Enqueue(time.Now())
				if i%10 != 0 {
					tok.Start(time.Now())
				}
				tok.Done(time.Now())
				p.Stats(time.Now())
			}
		})
	}
	wg.Wait()
	st := p.Stats(time.Now())
	if st.Enqueued != n*each || st.Finished != n*each || st.Started != n*each*9/10 || st.Queued != 0 || st.Active != 0 {
		t.Errorf("got %+v", st)
	}
}

func TestPoolAllocations(t *testing.T) {
	p := &balance.Pool{Servers: 8}
	now := at(0)
	p.Enqueue(now)
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Microsecond)
		tok := p.Enqueue(now)
		tok.Start(now)
		tok.Done(now)
	}); n != 0 {
		t.Errorf("a request allocates %v times", n)
	}
}

func BenchmarkPool(b *testing.B) {
	p := &balance.Pool{Servers: 8}
	now := at(0)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Microsecond)
		tok := p.Enqueue(now)
		tok.Start(now)
		tok.Done(now)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/3, "ns/event")
}

func BenchmarkPoolParallel(b *testing.B) {
	p := &balance.Pool{Servers: 8}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := time.Now()
		for pb.Next() {
			now = now.Add(time.Microsecond)
			tok := p.Enqueue(now)
			tok.Start(now)
			tok.Done(now)
		}
	})
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/3, "ns/event")
}
