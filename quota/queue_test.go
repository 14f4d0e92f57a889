package quota_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cordwood-io/cordwood/quota"
)

// TestFairQueueVector replays the exact trace of the reference, section 1.8.
func TestFairQueueVector(t *testing.T) {
	q := quota.NewFairQueue[string, int64](func(string) int64 { return 500 })
	for _, f := range []struct {
		id    string
		costs []int64
	}{{"A", []int64{200, 750, 20}}, {"B", []int64{500, 500}}, {"C", []int64{100, 600, 200}}} {
		for _, c := range f.costs {
			q.Push(f.id, c, c)
		}
	}
	var trace []string
	sent := map[string]int64{}
	for {
		id, cost, ok := q.Pop()
		if !ok {
			break
		}
		trace = append(trace, fmt.Sprintf("%s%d", id, cost))
		sent[id] += cost
		if len(trace) == 3 && (sent["A"] != 200 || sent["B"] != 500 || sent["C"] != 100) {
			t.Errorf("after round 1: %v, want 200, 500, 100", sent)
		}
	}
	if got, want := strings.Join(trace, " "), "A200 B500 C100 A750 A20 B500 C600 C200"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if sent["A"] != 970 || sent["B"] != 1000 || sent["C"] != 900 {
		t.Errorf("in all %v, want 970, 1000, 900", sent)
	}
}

// TestFairQueueBound checks the bound of the reference on flows that always have something waiting.
func TestFairQueueBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flows := rapid.IntRange(2, 6).Draw(t, "flows")
		quanta := rapid.SliceOfN(rapid.Int64Range(100, 1000), flows, flows).Draw(t, "quanta")
		costs := rapid.SliceOfN(rapid.Int64Range(1, 700), 20, 20).Draw(t, "costs")
		postPaid := rapid.Bool().Draw(t, "postPaid")
		q := quota.NewFairQueue[int, int64](func(i int) int64 { return quanta[i] })
		push := func(i, n int) {
			cost := costs[(n*7+i)%len(costs)]
			if postPaid {
				q.Push(i, cost, 0)
			} else {
				q.Push(i, cost, cost)
			}
		}
		pushed, sent := make([]int, flows), make([]int64, flows)
		for i := range flows {
			for range 3 {
				push(i, pushed[i])
				pushed[i]++
			}
		}
		largest := float64(slices.Max(costs))
		for range 500 {
			i, cost, ok := q.Pop()
			if !ok {
				t.Fatal("empty")
			}
			if postPaid {
				q.Debit(i, cost)
			}
			sent[i] += cost
			push(i, pushed[i])
			pushed[i]++
			for a := range flows {
				for b := range flows {
					qa, qb := float64(quanta[a]), float64(quanta[b])
					if d := float64(sent[a])/qa - float64(sent[b])/qb; d > 1+largest/qa+largest/qb {
						t.Fatalf("flow %d is %.2f rounds ahead of %d", a, d, b)
					}
				}
			}
		}
		if n := q.Len(); n != 3*flows {
			t.Fatalf("%d items wait, want %d", n, 3*flows)
		}
	})
}

// TestFairQueueDebt gives two flows debts that a billion rounds pay.
func TestFairQueueDebt(t *testing.T) {
	q := quota.NewFairQueue[int, string](func(i int) int64 { return int64(i) })
	q.Debit(1, 1e12)
	q.Debit(2, 1e12)
	q.Push(1, "one", 0)
	q.Push(2, "two", 0)
	if id, _, _ := q.Pop(); id != 2 {
		t.Errorf("flow %d first, want the one that pays its debt first", id)
	}
	if id, _, _ := q.Pop(); id != 1 {
		t.Errorf("flow %d second, want 1", id)
	}
	if _, _, ok := q.Pop(); ok {
		t.Error("a third item")
	}
}
