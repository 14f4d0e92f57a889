package quota_test

import (
	"bufio"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

const hundredMB = 100e6

// cases are peers' bugs by the id of their source; testdata/cases.txt says what went wrong and what is right.
var cases = map[string]func(*testing.T){
	"KAFKA-9677": func(t *testing.T) {
		// A fetch of ten times what the quota gives in its burst, again and again: the consumer gets its rate.
		l := newLimiter(t, ingress(tenantA, 1000, time.Second))
		now, got := quota.Instant(0), int64(0)
		for now < quota.Instant(100*time.Second) {
			now += quota.Instant(l.Charge(keyA, quota.Ingress, 10_000, now))
			got += 10_000
		}
		if got < 100_000 || got > 100_000+1000+10_000 {
			t.Errorf("%d bytes in 100 s at 1000/s", got)
		}
	},
	"LINKEDIN-KAFKA-514": func(t *testing.T) {
		// The delay is known before anything is read, and asking for it costs the tenant nothing.
		l := newLimiter(t, ingress(tenantA, 1000, time.Second))
		l.Charge(keyA, quota.Ingress, 2000, 0)
		for range 3 {
			if d := l.Delay(keyA, quota.Ingress, 0); d != time.Second {
				t.Errorf("delay %v, want 1s", d)
			}
		}
		reads := 0
		ticket := l.Admit(t.Context(), keyA)
		defer ticket.Done()
		if _, ok := ticket.Reserve(quota.Ingress, 1); ok {
			reads++
		}
		if reads != 0 {
			t.Error("read for nothing")
		}
	},
	"KAFKA-19282": func(t *testing.T) {
		// While a quota on client ids exists, a key has an account for its client id; when the last is removed, it has none again.
		client := quota.Entity{Tenant: quota.ByDefault(), Principal: quota.ByDefault(), Client: quota.ByDefault()}
		l := newLimiter(t, ingress(tenantDefault, 1000, time.Second))
		q := quota.Quota{Rate: 10}
		for range 2 {
			alter(t, l, 0, quota.Alteration{Entity: client, Kind: quota.Ingress, Quota: &q}, quota.Alteration{Entity: client, Kind: quota.Egress, Quota: &q})
			alter(t, l, 0, quota.Alteration{Entity: client, Kind: quota.Ingress})
			if l.Levels() != 3 {
				t.Errorf("%d levels with a quota on client ids, want 3", l.Levels())
			}
			alter(t, l, 0, quota.Alteration{Entity: client, Kind: quota.Egress})
			if l.Levels() != 1 {
				t.Errorf("%d levels after its removal, want 1", l.Levels())
			}
		}
	},
	"KAFKA-13911": func(t *testing.T) {
		b := quota.NewBucket(1000, 500, 500, 5)
		for range 3 {
			if d := b.Charge(0, 5); d != 0 {
				t.Errorf("delay %v", d)
			}
		}
		if got := b.Tokens(5); got != 500 {
			t.Errorf("tokens %v, want 500", got)
		}
		c := newCluster(t, 1, 2, hundredMB, quota.Rule{})
		c.nodes[0].limiter.Charge(keyA, quota.Ingress, 1, c.at(c.nodes[0]))
		for range 3 { // periods of no length
			for _, r := range c.nodes[0].agent.Reports(c.at(c.nodes[0])) {
				for _, u := range r.Uses {
					if math.IsNaN(u.Rate) || math.IsInf(u.Rate, 0) {
						t.Errorf("rate %v", u.Rate)
					}
				}
			}
		}
	},
	"PR-15889": func(t *testing.T) {
		// A tenant that sends exactly its rate, in pieces and with any phase, is never delayed once its first piece fits the burst.
		for phase := range 20 {
			b := quota.NewBucket(1000, 1000, 1000, 0)
			for i := range 2000 {
				now := quota.Instant(time.Duration(i)*50*time.Millisecond + time.Duration(phase)*7*time.Millisecond)
				if d := b.Charge(50, now); d != 0 {
					t.Fatalf("phase %d: delayed by %v at piece %d", phase, d, i)
				}
			}
		}
	},
	"KAFKA-10162": func(t *testing.T) {
		b := quota.NewBucket(5, 500, 500, 0)
		if d := b.Charge(560, 0); d != 12*time.Second {
			t.Errorf("delay %v, want 12s", d)
		}
	},
	"KAFKA-6937": func(t *testing.T) {
		system := quota.Entity{Tenant: quota.Named("replication")}
		l := newLimiter(t, ingress(tenantDefault, 1000, time.Second),
			quota.Setting{Entity: system, Kind: quota.Ingress, Quota: quota.Quota{Rate: quota.Unlimited}})
		key := quota.Key{Tenant: "replication"}
		if d := l.Charge(key, quota.Ingress, 1<<40, 0); d != 0 {
			t.Errorf("delay %v, want none", d)
		}
		if u, ok := l.Usage(key, quota.Ingress, 0); !ok || u.Used != 1<<40 {
			t.Errorf("usage %+v, want it counted", u)
		}
	},
	"QUOTA-BALANCE-11": func(t *testing.T) {
		l := newLimiter(t, ingress(tenantA, 1000, time.Second))
		if d := l.Charge(keyA, quota.Ingress, 1000, 0); d != 0 {
			t.Errorf("first use at clock 0 is delayed by %v: it started empty", d)
		}
		l.Charge(keyA, quota.Ingress, 1000, 0)
		alter(t, l, 500*ms, quota.Alteration{Entity: tenantA, Kind: quota.Ingress, Quota: &quota.Quota{Rate: 2000, Burst: time.Second}})
		if d := l.Delay(keyA, quota.Ingress, 500*ms); d != 250*time.Millisecond {
			t.Errorf("remaining %v, want 250ms", d)
		}
	},
	"LIBRDKAFKA-5592": func(t *testing.T) {
		// A client that sends its next request at once whatever the delay was: the server's reads are what paces it.
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, ingress(tenantA, 1000, time.Second))
			var mute quota.Mute
			start, got := time.Now(), 0
			for time.Since(start) < 60*time.Second {
				if err := mute.Wait(t.Context(), l.Now); err != nil {
					t.Fatal(err)
				}
				got += 500 // read a request and answer it at once
				mute.Extend(l.Charge(keyA, quota.Ingress, 500, l.Now()), l.Now())
			}
			if got > 60*1000+1000+500 {
				t.Errorf("%d bytes in 60 s at 1000/s", got)
			}
		})
	},
	"REDPANDA-18098": func(t *testing.T) {
		// Many goroutines at once, as shards of a server are: one bucket for all.
		l := newLimiter(t, ingress(tenantA, 1000, time.Second))
		var wg sync.WaitGroup
		var mu sync.Mutex
		admitted := 0
		for range 8 {
			wg.Go(func() {
				for range 1000 {
					if _, ok := l.Reserve(keyA, quota.Ingress, 10, 0); ok {
						mu.Lock()
						admitted += 10
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		if admitted < 1000 || admitted > 1010 {
			t.Errorf("%d admitted of a burst of 1000, want one request over at most", admitted)
		}
	},
	"REDPANDA-8392": func(t *testing.T) {
		c := newCluster(t, 5, 3, hundredMB, quota.Rule{})
		c.nodes[0].offered = 3 * hundredMB
		c.run(10*time.Second, nil)
		for _, nd := range c.nodes {
			nd.mute = true // no coordination from now on
		}
		late := quota.Grant{From: 0, To: 0, Term: 1, Seq: 1, ReportAt: c.at(c.nodes[0]), Lease: time.Hour,
			Shares: []quota.Share{{Tenant: "a", Kind: quota.Ingress, Limit: hundredMB}}}
		for _, nd := range c.nodes {
			for from := range c.nodes {
				late.From = quota.BrokerID(from)
				nd.agent.Apply(late, c.at(nd)) // overtaken long ago
			}
		}
		c.run(30*time.Second, nil)
		for i := range c.nodes {
			if got := c.limit(i); math.Abs(got-hundredMB/3) > 1 {
				t.Errorf("broker %d has %.0f, want the static split", i, got)
			}
		}
	},
	"PULSAR-15292": func(t *testing.T) {
		// From one unit to a million times as much, and by half a percent: both show in the next report.
		c := newCluster(t, 6, 2, 1e12, quota.Rule{})
		nd, now := c.nodes[0], c.at(c.nodes[0])
		rate := func(n int64) float64 {
			nd.limiter.Charge(keyA, quota.Ingress, n, now)
			now += quota.Instant(250 * time.Millisecond)
			for _, r := range nd.agent.Reports(now) {
				for _, u := range r.Uses {
					return u.Rate
				}
			}
			return 0
		}
		nd.agent.Reports(now)
		for _, n := range []int64{1, 1_000_000, 1_005_000, 10} {
			if got := rate(n); !near(got, float64(n)*4) {
				t.Errorf("reported %v, want %v", got, n*4)
			}
		}
	},
	"PULSAR-24001": func(t *testing.T) {
		// Eager clients over 10 s: never more than rate*t + burst + one request, and no pause longer than one request's worth. The limiter
		// knows no wall clock at all.
		b := quota.NewBucket(1000, 1000, 0, 0)
		admitted, last := int64(0), quota.Instant(0)
		for now := quota.Instant(0); now < 10_000*ms; now += ms {
			if b.Delay(now) > 0 {
				continue
			}
			b.Charge(100, now)
			admitted += 100
			if gap := now - last; gap > 101*ms {
				t.Errorf("paused for %v", time.Duration(gap))
			}
			last = now
			if float64(admitted) > 1000*time.Duration(now).Seconds()+100 {
				t.Fatalf("%d admitted after %v", admitted, time.Duration(now))
			}
		}
	},
	"GUBERNATOR-216": func(t *testing.T) {
		// Half of all messages are lost, others late or repeated; when that ends, so do its effects.
		c := newCluster(t, 7, 4, hundredMB, quota.Rule{})
		rng := rand.New(rand.NewPCG(7, 7))
		good := c.deliver
		c.deliver = func(from, to int) (d []time.Duration) {
			for range rng.IntN(3) {
				d = append(d, time.Duration(rng.Int64N(int64(time.Second))))
			}
			return d
		}
		for i := range 20 {
			for _, nd := range c.nodes {
				nd.offered = 0
			}
			c.nodes[i%4].offered = 3 * hundredMB
			c.run(time.Second, nil)
		}
		c.deliver = good
		last := (20 - 1) % 4
		c.reach(5*time.Second, func() bool { return c.limit(last) > 0.9*hundredMB })
		total := c.nodes[last].total
		c.run(10*time.Second, nil)
		if got := c.nodes[last].total - total; got < 9.5*hundredMB {
			t.Errorf("%.0f admitted in 10 s, want its quota", got)
		}
	},
	"WSO2-API-PLATFORM-2187": func(t *testing.T) {
		// All brokers saturated: what is admitted together is the quota and the burst, not more.
		c := newCluster(t, 8, 6, hundredMB, quota.Rule{LazyFactor: 1})
		for _, nd := range c.nodes {
			nd.offered = hundredMB
		}
		c.run(60*time.Second, nil)
		sum := 0.0
		for _, nd := range c.nodes {
			sum += nd.total
		}
		piece := hundredMB * step.Seconds() / 10
		if limit := hundredMB*60 + hundredMB*quota.DefaultBurst.Seconds() + 6*piece; sum > limit || sum < 0.99*60*hundredMB {
			t.Errorf("%.0f admitted in 60 s, want the quota of %.0f and at most the burst more", sum, 60*hundredMB)
		}
	},
	"GOLANG-GO-56287": func(t *testing.T) {
		b := quota.NewBucket(10, 2, 2, 0)
		for i := range quota.Instant(2000) {
			b.Charge(1, i*ms/10)
			b.Charge(0, 0)
		}
		want := 2 - 2000 + 10*0.1999
		if got := b.Tokens(2000 * ms / 10); math.Abs(got-want) > 0.01 {
			t.Errorf("tokens %v, want %v: none minted", got, want)
		}
	},
}

func ingress(e quota.Entity, rate quota.Rate, burst time.Duration) quota.Setting {
	return quota.Setting{Entity: e, Kind: quota.Ingress, Quota: quota.Quota{Rate: rate, Burst: burst}}
}

func alter(t testing.TB, l *quota.Limiter, now quota.Instant, alterations ...quota.Alteration) {
	t.Helper()
	if err := l.Alter(alterations, false, now); err != nil {
		t.Fatal(err)
	}
}

func TestCase(t *testing.T) {
	for id, run := range cases {
		t.Run(id, run)
	}
}

// caseRows are the rows of the reference's section 3.
var caseRows = []string{"1", "2", "4", "6", "7", "8", "10", "11", "12", "14", "15", "17", "18", "19", "20", "21", "23", "25", "26", "27", "28", "30",
	"31", "32", "34", "36", "37", "38", "41"}

// TestCaseManifest checks that testdata/cases.txt lists every row, and that each that is this package's has a test and no test is unlisted. Package
// balance checks its own against the same file.
func TestCaseManifest(t *testing.T) {
	f, err := os.Open("testdata/cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	listed := map[string]bool{}
	var rows []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, " | ", 4)
		if len(fields) != 4 || fields[3] == "" {
			t.Errorf("malformed line %q", line)
			continue
		}
		rows = append(rows, fields[2])
		switch fields[1] {
		case "quota":
			listed[fields[0]] = true
			if cases[fields[0]] == nil {
				t.Errorf("%s has no test", fields[0])
			}
		case "balance", "-":
		default:
			t.Errorf("%s: unknown package %q", fields[0], fields[1])
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rows, caseRows) {
		t.Errorf("rows %v, want %v", rows, caseRows)
	}
	for id := range cases {
		if !listed[id] {
			t.Errorf("%s is not listed", id)
		}
	}
}
