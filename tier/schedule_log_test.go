package tier_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

// TestLogSchedules lets readers and searches go on while a tiered log grows, ages into a
// slow store and loses its begin: seeded lives of one log on one machine. At any moment a
// read gives the right bytes from the offset on, or says that it lies below the log start;
// a search by time gives what was right at some moment of it; no object is missed that was
// not taken away, and one that was is an alarm soon.
//
// CORDWOOD_SEEDS=from-to runs other seeds than the default ones.
func TestLogSchedules(t *testing.T) {
	const lives = 200
	from, to := seeds(t, 1, lives)
	total := map[string]int{}
	for seed := from; seed <= to; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newLife(t, seed).run(total) })
		})
	}
	for _, k := range []string{"hot read", "cold read", "read below the log start", "search", "search for more than there is", "alarm"} {
		t.Logf("%-30s %8d", k, total[k])
		if to-from+1 >= lives && total[k] < 100 {
			t.Errorf("%q happened %d times only", k, total[k])
		}
	}
}

// A life is one schedule.
type life struct {
	*rig
	r *rand.Rand

	beside sync.WaitGroup // reads and searches that go on

	mu     sync.Mutex
	delays *rand.Rand
	times  []time.Time // of the records, by offset
	alarms int
	counts map[string]int
}

func newLife(t *testing.T, seed uint64) *life {
	l := &life{r: rand.New(rand.NewPCG(seed, 51)), delays: rand.New(rand.NewPCG(seed, 52)), counts: map[string]int{}}
	l.rig = newRig(t, tier.Options{CacheBytes: 8 << 10, Interval: 10 * time.Second, Hooks: tier.Hooks{Missing: func(*tier.MissingError) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.alarms++
	}}})
	l.store.SetFault(func(op tiertest.Op) tiertest.Fault {
		l.mu.Lock()
		defer l.mu.Unlock()
		d := time.Millisecond // never at once, or what asks for ever would not let time pass
		if op.Kind == "get" && l.delays.IntN(2) == 0 {
			d = time.Duration(l.delays.IntN(20_000)) * time.Millisecond
		}
		return tiertest.Fault{Delay: d}
	})
	return l
}

func (l *life) run(total map[string]int) {
	paused := false
	for range 80 {
		switch n := l.r.IntN(100); {
		case n < 35:
			l.append()
		case n < 45:
			if err := l.tier.Roll(l.t.Context()); err != nil {
				l.t.Fatal(err)
			}
		case n < 50:
			paused = !paused
			o := tier.PartitionOptions{Tiered: true, HighWatermark: l.hot.DurableEnd, Paused: paused}
			if err := l.tier.Partition().SetOptions(o); err != nil {
				l.t.Fatal(err)
			}
		case n < 58:
			start, end := l.tier.Start(), l.tier.End()
			if err := l.tier.TrimTo(l.t.Context(), start+log.Offset(l.r.Int64N(int64(end-start)/3+1))); err != nil {
				l.t.Fatal(err)
			}
		case n < 75:
			from := l.offset()
			l.beside.Go(func() { l.read(from) })
		case n < 90:
			when := time.Now().Add(2 * time.Hour)
			if at := l.offset(); at < l.tier.End() && l.r.IntN(5) > 0 {
				when = l.time(at)
			}
			l.beside.Go(func() { l.search(when) })
		case n < 92:
			l.take()
		default:
			time.Sleep(time.Duration(l.r.IntN(20_000)) * time.Millisecond)
		}
	}
	l.beside.Wait()
	if err := l.tier.Partition().SetOptions(tier.PartitionOptions{Tiered: true, HighWatermark: l.hot.DurableEnd}); err != nil {
		l.t.Fatal(err)
	}
	time.Sleep(10 * time.Minute)
	for at := l.tier.Start(); at < l.tier.End(); {
		at = l.read(at)
	}
	if a := l.audit(tier.AuditBytes); !a.Clean() {
		l.t.Errorf("findings %v", a.Findings)
	}
	l.close()
	if l.alarms != l.counts["alarm"] {
		l.t.Errorf("%d alarms for %d objects that were taken away", l.alarms, l.counts["alarm"])
	}
	for k, n := range l.counts {
		total[k] += n
	}
}

func (l *life) count(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[kind]++
}

// offset returns one from the log start up to the end.
func (l *life) offset() log.Offset {
	start, end := l.tier.Start(), l.tier.End()
	return start + log.Offset(l.r.Int64N(int64(end-start)+1))
}

func (l *life) time(at log.Offset) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times[at]
}

// append appends some batches; at times a record is of much later than those after it.
func (l *life) append() {
	for range 1 + l.r.IntN(12) {
		var recs []log.Record
		for range 1 + l.r.IntN(4) {
			at := time.Now().Truncate(time.Millisecond)
			if l.r.IntN(20) == 0 {
				at = at.Add(time.Duration(l.r.IntN(3600)) * time.Second)
			}
			recs = append(recs, log.Record{Value: value(l.next), Timestamp: at})
			l.next++
			l.mu.Lock()
			l.times = append(l.times, at)
			l.mu.Unlock()
		}
		if _, err := l.tier.AppendRecords(l.t.Context(), recs...); err != nil {
			l.t.Fatal(err)
		}
		time.Sleep(time.Duration(l.r.IntN(500)) * time.Millisecond)
	}
}

// read reads once and returns where that ends; from after an error that is right.
func (l *life) read(from log.Offset) log.Offset {
	s, err := l.tier.Read(l.t.Context(), from, 2<<10)
	switch {
	case errors.Is(err, log.ErrOffsetOutOfRange) && from < l.tier.Start():
		l.count("read below the log start")
		return from
	case err != nil:
		l.t.Errorf("read of %d, log start %d, local start %d: %v", from, l.tier.Start(), l.hot.LocalStart(), err)
		return l.tier.End()
	}
	defer s.Release()
	if s.Cold() {
		l.count("cold read")
	} else {
		l.count("hot read")
	}
	at := from
	for b, err := range s.Batches() {
		if err != nil {
			l.t.Errorf("read of %d: %v", from, err)
			return l.tier.End()
		}
		if b.BaseOffset() > at {
			l.t.Errorf("read of %d: batch at %d, want %d", from, b.BaseOffset(), at)
		}
		for r, err := range b.Records() {
			if err != nil || string(r.Value) != string(value(int(r.Offset))) {
				l.t.Errorf("read of %d: offset %d is %.20q, %v", from, r.Offset, r.Value, err)
			}
		}
		at = b.NextOffset()
	}
	return at
}

// search looks for the first record of t or later. The log start and the end may move
// meanwhile.
func (l *life) search(t time.Time) {
	before, end := l.tier.Start(), l.tier.End()
	off, ok, err := l.tier.OffsetForTime(l.t.Context(), t)
	after := l.tier.Start()
	if err != nil || ok && (off < before || l.time(off).Before(t)) {
		l.t.Errorf("search for %v in [%d, %d): offset %d, %v, %v", t, before, end, off, ok, err)
		return
	}
	if !ok {
		l.count("search for more than there is")
		off = end
	}
	l.count("search")
	for at := after; at < off; at++ {
		if !l.time(at).Before(t) {
			l.t.Errorf("search for %v in [%d, %d), then from %d: offset %d, %v, but that of %d is %v", t, before, end, after, off, ok, at, l.time(at))
			return
		}
	}
}

// take takes an object away while nobody else reads, and puts it back: who reads it has
// the alarm once, or reads from a cache.
func (l *life) take() {
	l.beside.Wait()
	time.Sleep(time.Minute) // readahead
	start, local := l.tier.Start(), l.hot.LocalStart()
	for _, key := range l.keys() {
		k, _ := tier.ParseKey("", key)
		if k.Base < start || k.End > local {
			continue
		}
		info, err := l.mem.Head(l.t.Context(), key)
		if err != nil {
			l.t.Fatal(err)
		}
		b, err := l.mem.GetRange(l.t.Context(), key, 0, info.Size)
		if err != nil {
			l.t.Fatal(err)
		}
		l.remove(key)
		ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Minute)
		defer cancel()
		var lost *tier.MissingError
		s, err := l.tier.Read(ctx, k.Base, 2<<10)
		switch {
		case err == nil:
			s.Release()
		case !errors.As(err, &lost) || lost.Key != key:
			l.t.Errorf("read of a lost object: %v", err)
		default:
			l.count("alarm")
		}
		l.put(key, b)
		return
	}
}

// seeds returns which seeds run: those of the environment, or the default ones.
func seeds(t *testing.T, from, to uint64) (uint64, uint64) {
	t.Helper()
	s := os.Getenv("CORDWOOD_SEEDS")
	if s == "" {
		return from, to
	}
	a, b, _ := strings.Cut(s, "-")
	var err1, err2 error
	from, err1 = strconv.ParseUint(a, 10, 64)
	to, err2 = strconv.ParseUint(b, 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatalf("CORDWOOD_SEEDS=%s: want from-to", s)
	}
	return from, to
}
