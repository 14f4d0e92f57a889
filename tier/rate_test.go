package tier

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// TestPacer: whoever asks how much, and when, no more than rate*t and a burst pass in
// any time t, and nobody waits longer than that takes.
func TestPacer(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, rate := range []int64{1 << 10, 1 << 20, 1 << 30, 1 << 40} {
		p := pacer{rate: rate}
		now := time.Unix(1_800_000_000, 0)
		type grant struct {
			at time.Time
			n  int64
		}
		var grants []grant
		var total int64
		for range 200 {
			if r.IntN(10) == 0 {
				now = now.Add(time.Duration(r.Int64N(int64(time.Second))))
			}
			n := 1 + r.Int64N(paceBytes)
			wait := p.take(n, now)
			if wait > paceTime(total, rate)+time.Microsecond {
				t.Fatalf("rate %d: a wait of %v after %d bytes", rate, wait, total)
			}
			grants = append(grants, grant{now.Add(wait), n})
			total += n
		}
		for i := range grants {
			var sum int64
			for j := i; j < len(grants); j++ {
				if grants[j].at.Before(grants[i].at) {
					t.Fatalf("rate %d: grant %d goes before grant %d", rate, j, i)
				}
				// The last piece has only begun.
				if span := grants[j].at.Sub(grants[i].at); sum > int64(float64(rate)*(span+paceBurst).Seconds())+int64(j-i)+1 {
					t.Fatalf("rate %d: %d bytes in %v", rate, sum, span)
				}
				sum += grants[j].n
			}
		}
	}
}

// TestPacerKeepsTheRate: asked all the time, it lets the whole rate through.
func TestPacerKeepsTheRate(t *testing.T) {
	const rate = 10 << 20
	p := pacer{rate: rate}
	now := time.Unix(1_800_000_000, 0)
	begin := now
	for range 10 * rate / paceBytes {
		now = now.Add(p.take(paceBytes, now))
	}
	if took := now.Sub(begin); took < 10*time.Second-paceBurst-10*time.Millisecond || took > 10*time.Second {
		t.Errorf("ten seconds' bytes took %v", took)
	}
}

func TestPaceTime(t *testing.T) {
	if d := paceTime(1<<62, 1); d != 24*time.Hour {
		t.Errorf("%v", d)
	}
	o := Options{UploadDeadline: time.Hour, Uploads: 2}
	if d := o.uploadTime(1 << 40); d != time.Hour {
		t.Errorf("without a limit: %v", d)
	}
	o.UploadBytesPerSecond = 1 << 20
	if d := o.uploadTime(100 << 20); d != time.Hour+400*time.Second {
		t.Errorf("100 MiB at 1 MiB/s, two at once: %v", d)
	}
	o.Uploads = 1 << 30
	if d := o.uploadTime(1 << 40); d != 25*time.Hour {
		t.Errorf("an object that never gets through: %v", d)
	}
}

// TestPhase: the moments of many partitions are spread over the interval, and do not
// change.
func TestPhase(t *testing.T) {
	const n, slots = 4096, 16
	var count [slots]int
	for topic := range byte(8) {
		for i := range int32(n / 8) {
			id := log.PartitionID{Topic: log.TopicID{15: topic}, Index: i}
			d := phase(id, time.Minute)
			if d < 0 || d >= time.Minute || d != phase(id, time.Minute) {
				t.Fatalf("phase of %v: %v", id, d)
			}
			count[d*slots/time.Minute]++
		}
	}
	for i, c := range count {
		if c < n/slots/2 || c > n/slots*2 {
			t.Errorf("slot %d has %d of %d: %v", i, c, n, count)
		}
	}
}
