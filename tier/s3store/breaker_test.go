package s3store

import (
	"testing"
	"time"
)

func TestBreakerSteps(t *testing.T) {
	now := time.Unix(1000, 0)
	var b breaker
	call := func(o outcome) {
		t.Helper()
		ok, trial, _ := b.allow(now)
		if !ok {
			t.Fatal("refused")
		}
		b.done(o, trial, now, 0)
	}
	refused := func() {
		t.Helper()
		if ok, _, wait := b.allow(now); ok || wait <= 0 {
			t.Fatalf("allowed, wait %v", wait)
		}
	}
	for range 100 { // a success between resets the count; a neutral one does not
		for range breakerFailures - 1 {
			call(sick)
			call(neutral)
		}
		call(healthy)
	}
	for range breakerFailures {
		call(sick)
	}
	refused()
	hold := breakerMinHold
	for range 10 {
		now = now.Add(hold/2 - 1)
		refused()
		now = now.Add(1)
		ok, trial, _ := b.allow(now)
		if !ok || !trial {
			t.Fatal("no trial when it is due")
		}
		refused() // one at a time
		b.done(sick, true, now, 0)
		refused()
		hold = min(2*hold, breakerMaxHold)
	}
	now = now.Add(hold)
	_, trial, _ := b.allow(now)
	b.done(neutral, trial, now, 0) // its caller gave up: the next may try
	_, trial, _ = b.allow(now)
	if !trial {
		t.Fatal("a trial that said nothing blocks the next")
	}
	if !b.done(healthy, trial, now, 0) {
		t.Error("a success does not close")
	}
	call(sick)
}

func TestBreakerLateFailures(t *testing.T) {
	now := time.Unix(1000, 0)
	var b breaker
	for range breakerFailures + 5 { // all went out before it opened
		b.allow(now)
	}
	for range breakerFailures + 5 {
		b.done(sick, false, now, 0)
	}
	if b.hold != breakerMinHold {
		t.Errorf("hold %v after failures that were under way", b.hold)
	}
}

func TestBudget(t *testing.T) {
	b := budget{tenths: budgetMax}
	n := 0
	for b.spend() {
		n++
	}
	if n != 10 {
		t.Errorf("%d retries at once", n)
	}
	for range 99 {
		b.earn()
	}
	for n = 0; b.spend(); n++ {
	}
	if n != 9 {
		t.Errorf("%d retries for 99 successes", n)
	}
}

func TestBackoff(t *testing.T) {
	for attempt := 1; attempt < 70; attempt++ {
		lo, hi := backoff(attempt, 0, 0), backoff(attempt, 0, .999999)
		if lo <= 0 || hi < lo || hi > 5*time.Second || hi > 2*lo {
			t.Errorf("attempt %d: %v to %v", attempt, lo, hi)
		}
	}
	if d := backoff(1, time.Minute, .5); d != time.Minute {
		t.Errorf("asked for a minute: %v", d)
	}
}
