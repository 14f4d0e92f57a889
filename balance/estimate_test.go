package balance_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

// estimate runs a queue for a time and returns bias, root of the mean squared error against rho, and
// standard deviation of pressure and of overall load, sampled every five seconds after three minutes.
func estimate(q balancetest.Queue, pool *balance.Pool, length time.Duration) (pressure, overall stats) {
	start := epoch
	q.Run(pool, start, length, 5*time.Second, func(now time.Time) {
		if now.Sub(start) < 3*time.Minute {
			return
		}
		l := pool.Stats(now).Load
		pressure.add(l.Pressure - q.Utilization)
		overall.add(l.Overall - q.Utilization)
	})
	return pressure, overall
}

type stats struct{ n, sum, squares float64 }

func (s *stats) add(x float64) { s.n++; s.sum += x; s.squares += x * x }
func (s stats) mean() float64  { return s.sum / s.n }
func (s stats) rmse() float64  { return math.Sqrt(s.squares / s.n) }

// TestLoadError: the mean error after three minutes over the queues of the reference: at most .02 for
// M/G/1, .05 for M/M/c from .6 on, .10 elsewhere. The pool measures service time and variation itself.
func TestLoadError(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates hours")
	}
	const ms = time.Millisecond
	for _, test := range []struct {
		name  string
		q     balancetest.Queue
		limit func(rho float64) float64
	}{
		{"M/M/1", balancetest.Queue{Service: 2 * ms}, constant(.02)},
		{"M/D/1", balancetest.Queue{Service: 2 * ms, Services: balancetest.Constant()}, constant(.02)},
		{"M/H2/1", balancetest.Queue{Service: 2 * ms, Services: balancetest.Hyperexponential(4)}, constant(.02)},
		{"D/M/1", balancetest.Queue{Service: 2 * ms, Arrivals: balancetest.Constant()}, constant(.10)},
		{"H2/M/1", balancetest.Queue{Service: 2 * ms, Arrivals: balancetest.Hyperexponential(4)}, constant(.10)},
		{"M/M/8", balancetest.Queue{Service: 8 * ms, Servers: 8}, func(rho float64) float64 {
			if rho >= .6 {
				return .05
			}
			return .10
		}},
	} {
		for _, rho := range []float64{.3, .5, .7, .9, .95} {
			q := test.q
			q.Utilization, q.Seed = rho, 7
			_, overall := estimate(q, &balance.Pool{Servers: max(q.Servers, 1)}, 16*time.Minute)
			if limit := test.limit(rho); math.Abs(overall.mean()) > limit {
				t.Errorf("%s at %v: mean error %.4f, allowed %v", test.name, rho, overall.mean(), limit)
			}
		}
	}
}

func constant(x float64) func(float64) float64 { return func(float64) float64 { return x } }

// TestLoadNoise: with a known constant the spread of the estimate is that of the closed form, within 1.3 times.
func TestLoadNoise(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates hours")
	}
	for _, rho := range []float64{.3, .5, .7, .9} {
		const tau = 10 * time.Millisecond
		p, _ := estimate(balancetest.Queue{Service: tau, Utilization: rho, Seed: 3},
			&balance.Pool{Servers: 1, Model: balance.Model{Scale: tau, Exponent: 1}}, 4*time.Hour)
		want := math.Sqrt((2 + 5*rho - 4*rho*rho + rho*rho*rho) * tau.Seconds() / 120)
		if p.rmse() > 1.3*want || p.rmse() < want/1.6 {
			t.Errorf("rho %v: root mean squared error %.4f, closed form %.4f", rho, p.rmse(), want)
		}
	}
}

// TestStall: the closed form of the reference for a total stall, and the time until the load shows it.
func TestStall(t *testing.T) {
	// Arrivals every 1/300 s, one server with a service time of 1 ms and a steady wait of w0, then nothing
	// starts any more.
	const w0 = 3.0 / 7000
	for _, test := range []struct{ after, wait, rho float64 }{
		{.5, 2.508e-3, .715}, {1, 8.754e-3, .898}, {2, 33.729e-3, .971}, {5, 208.0e-3, .995}, {10, 822.9e-3, .999},
	} {
		p := &balance.Pool{Servers: 1, Model: balance.Model{Scale: time.Millisecond, Exponent: 1}}
		const gap = 1.0 / 1000
		// Another rate with the same waits: the rate cancels in the closed form.
		for s := -600.0; s < 0; s += gap {
			tok := p.Enqueue(at(s - w0))
			tok.Start(at(s))
			tok.Done(at(s + 1e-4))
		}
		for s := gap; s < test.after; s += gap {
			p.Enqueue(at(s))
		}
		st := p.Stats(at(test.after))
		e := math.Exp(-test.after / 60)
		closed := (60*w0*e + test.after*test.after/2) / (60*e + test.after)
		near(t, "closed form", closed, test.wait, 2e-3*test.wait)
		near(t, "wait", st.Wait.Seconds(), test.wait, 0.01*test.wait)
		near(t, "pressure", st.Load.Pressure, test.rho, 2e-3)
	}
}

// TestStallShowsInTwoSeconds does so with pools that measure everything themselves.
func TestStallShowsInTwoSeconds(t *testing.T) {
	for _, servers := range []int{1, 8} {
		for _, rho := range []float64{.3, .6} {
			pool := &balance.Pool{Servers: servers}
			shown := time.Duration(0)
			const when = 200 * time.Second
			balancetest.Queue{Servers: servers, Utilization: rho, Service: time.Millisecond, Seed: 1,
				Stalled: func(d time.Duration) time.Duration {
					if d > when {
						return d + time.Hour
					}
					return 0
				}}.Run(pool, epoch, when+4*time.Second, 10*time.Millisecond, func(now time.Time) {
				if d := now.Sub(epoch) - when; d > 0 && shown == 0 && pool.Stats(now).Load.Overall > .95 {
					shown = d
				}
			})
			if shown == 0 || shown > 2*time.Second {
				t.Errorf("%d servers at %v: a stall shows after %v", servers, rho, shown)
			}
		}
	}
}

// TestLoadOfBursts: half of the time at .2, half at .95. Utilisation says what is used, pressure what it feels
// like: the reference expects .575 and some .94.
func TestLoadOfBursts(t *testing.T) {
	pool := &balance.Pool{Servers: 1}
	var u, p stats
	balancetest.Queue{Utilization: .95, Service: time.Millisecond, Seed: 5, Rate: func(d time.Duration) float64 {
		if d/(2*time.Second)%2 == 0 {
			return .2 / .95
		}
		return 1
	}}.Run(pool, epoch, 20*time.Minute, time.Second, func(now time.Time) {
		if now.Sub(epoch) > 3*time.Minute {
			l := pool.Stats(now).Load
			u.add(l.Utilization)
			p.add(l.Pressure)
		}
	})
	near(t, "utilisation", u.mean(), .575, .02)
	if p.mean() < .75 {
		t.Errorf("pressure %v", p.mean())
	}
}

// TestMeanIsInverted: averaging utilisations of w = 0 and w = 2V would give .333 instead of .5.
func TestMeanIsInverted(t *testing.T) {
	p := &balance.Pool{Servers: 1, Model: balance.Model{Scale: time.Millisecond, Exponent: 1}}
	for range 100 {
		a, b := p.Enqueue(at(0)), p.Enqueue(at(0))
		a.Start(at(0))
		b.Start(at(.002))
		a.Done(at(.002))
		b.Done(at(.002))
	}
	near(t, "pressure", p.Stats(at(.002)).Load.Pressure, .5, 1e-3)
}

// TestHandOver: continuous and monotone in both estimates.
func TestHandOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.Float64Range(-.1, 1.1)
		u, p, d := f.Draw(t, "u"), f.Draw(t, "p"), rapid.Float64Range(0, .01).Draw(t, "d")
		l := balance.HandOver(u, p).Overall
		for _, m := range []float64{balance.HandOver(u+d, p).Overall, balance.HandOver(u, p+d).Overall} {
			if m < l || m > l+d+1e-12 {
				t.Errorf("%v, %v and %v more: %v after %v", u, p, d, m, l)
			}
		}
	})
	for _, both := range [][2]float64{{.6, .2}, {.2, .6}, {1.5, 0}} {
		near(t, "the larger of both", balance.HandOver(both[0], both[1]).Overall, min(max(both[0], both[1]), 1), 0)
	}
	if l := balance.HandOver(math.NaN(), math.NaN()).Overall; l != 0 {
		t.Errorf("NaN gives %v", l)
	}
}

// TestAfterStall: the one long service of a stall must not pass for the nature of the work, or the load would
// fall at the moment when the queue that the stall left is worked off.
func TestAfterStall(t *testing.T) {
	const when, long = 200 * time.Second, 2 * time.Second
	for seed := range uint64(6) { // in some of them a request is in service when the stall begins
		pool := &balance.Pool{Servers: 1}
		balancetest.Queue{Utilization: .5, Service: time.Millisecond, Seed: seed, Stalled: func(d time.Duration) time.Duration {
			if d > when && d < when+long {
				return when + long
			}
			return 0
		}}.Run(pool, epoch, when+30*time.Second, time.Second, func(now time.Time) {
			if d := now.Sub(epoch) - when; d > 3*time.Second {
				if p := pool.Stats(now).Load.Pressure; p < .8 {
					t.Errorf("seed %d, %v after the stall began: pressure %.3f", seed, d, p)
				}
			}
		})
	}
}
