package quota_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

func name(s string) quota.Name {
	switch s {
	case "":
		return quota.Name{}
	case "*":
		return quota.ByDefault()
	}
	return quota.Named(s)
}

func entity(tenant, principal, client string) quota.Entity {
	return quota.Entity{Tenant: name(tenant), Principal: name(principal), Client: name(client)}
}

// TestResolutionOrder sets a quota for every entity that can apply to a client, and takes them away in the documented order: each time the next
// one must decide.
func TestResolutionOrder(t *testing.T) {
	key := quota.Key{Tenant: "t", Principal: "p", Client: "c"}
	levels := [][]quota.Entity{
		{entity("t", "", ""), entity("*", "", "")},
		{entity("t", "p", ""), entity("t", "*", ""), entity("*", "p", ""), entity("*", "*", "")},
		{entity("t", "p", "c"), entity("t", "p", "*"), entity("t", "*", "c"), entity("t", "*", "*"), entity("t", "", "c"), entity("t", "", "*"),
			entity("*", "p", "c"), entity("*", "p", "*"), entity("*", "*", "c"), entity("*", "*", "*"), entity("*", "", "c"), entity("*", "", "*")},
	}
	for level, order := range levels {
		var settings []quota.Setting
		for i, e := range order {
			settings = append(settings, ingress(e, quota.Rate(1000+i), time.Second))
		}
		l := newLimiter(t, settings...)
		at := key
		if level < 2 {
			at.Client = ""
		}
		if level < 1 {
			at.Principal = ""
		}
		for i, e := range order {
			l.Charge(key, quota.Ingress, 1, 0)
			u, ok := l.Usage(at, quota.Ingress, 0)
			if !ok || u.Rate != quota.Rate(1000+i) {
				t.Errorf("level %d, step %d: rate %v, want that of %v", level, i, u.Rate, e)
			}
			alter(t, l, 0, quota.Alteration{Entity: e, Kind: quota.Ingress})
		}
		if u, ok := l.Usage(at, quota.Ingress, 0); ok {
			t.Errorf("level %d: %+v with no setting left", level, u)
		}
		if d := l.Charge(key, quota.Ingress, 1<<40, 0); d != 0 {
			t.Errorf("level %d: delay %v with no setting left", level, d)
		}
	}
}

// TestAllLevelsCharged checks that a cap over principals holds although each of them is within its own.
func TestAllLevelsCharged(t *testing.T) {
	l := newLimiter(t, ingress(entity("t", "", ""), 1000, time.Second), ingress(entity("*", "*", ""), 900, time.Second),
		ingress(entity("*", "*", "*"), 800, time.Second), ingress(entity("t", "", "shared"), 100, time.Second))
	key := func(p, c string) quota.Key { return quota.Key{Tenant: "t", Principal: p, Client: c} }
	if d := l.Charge(key("p1", "c"), quota.Ingress, 800, 0); d != 0 {
		t.Errorf("first: delay %v", d)
	}
	if d := l.Charge(key("p2", "c"), quota.Ingress, 700, 0); d != 500*time.Millisecond {
		t.Errorf("second principal: delay %v, want the tenant's 500ms", d)
	}
	if d := l.Charge(key("p1", "d"), quota.Ingress, 500, 0); d != time.Second {
		t.Errorf("delay %v, want 1s: tenant owes 1000, principal 400 of 900", d)
	}
	// A client id that is limited whatever the principal has one bucket.
	l = newLimiter(t, ingress(entity("t", "", "shared"), 100, time.Second))
	l.Charge(key("p1", "shared"), quota.Ingress, 100, 0)
	if d := l.Charge(key("p2", "shared"), quota.Ingress, 50, 0); d != 500*time.Millisecond {
		t.Errorf("shared client: delay %v, want 500ms", d)
	}
	if d := l.Charge(quota.Key{Tenant: "t", Client: "shared"}, quota.Ingress, 50, 0); d != time.Second {
		t.Errorf("shared client without principal: delay %v, want 1s", d)
	}
	// An own quota takes the place of the shared one, and its removal gives it back with its debt.
	own := entity("t", "p1", "shared")
	alter(t, l, 0, quota.Alteration{Entity: own, Kind: quota.Ingress, Quota: &quota.Quota{Rate: 1e6, Burst: time.Second}})
	if d := l.Charge(key("p1", "shared"), quota.Ingress, 50, 0); d != 0 {
		t.Errorf("own quota: delay %v, want 0", d)
	}
	alter(t, l, 0, quota.Alteration{Entity: own, Kind: quota.Ingress})
	if d := l.Charge(key("p1", "shared"), quota.Ingress, 0, 0); d != time.Second {
		t.Errorf("shared again: delay %v, want 1s", d)
	}
}

// TestEachEntitySettable sets and removes every entity type, named and default (KAFKA-9980).
func TestEachEntitySettable(t *testing.T) {
	for _, tenant := range []string{"t", "*"} {
		for _, principal := range []string{"", "p", "*"} {
			for _, client := range []string{"", "c", "*"} {
				for kind := quota.Ingress; kind <= quota.Connections; kind++ {
					e := entity(tenant, principal, client)
					t.Run(fmt.Sprintf("%v/%v", e, kind), func(t *testing.T) {
						l := newLimiter(t)
						q := quota.Quota{Rate: 7, Burst: time.Minute}
						alter(t, l, 0, quota.Alteration{Entity: e, Kind: kind, Quota: &q})
						q.Rate = 8 // the caller's
						want := []quota.Setting{{Entity: e, Kind: kind, Quota: quota.Quota{Rate: 7, Burst: time.Minute}}}
						if got := l.Describe(quota.Filter{}); !slices.Equal(got, want) {
							t.Errorf("got %v, want %v", got, want)
						}
						f := quota.Filter{Tenant: quota.Exactly(e.Tenant), Principal: quota.Exactly(e.Principal), Client: quota.Exactly(e.Client)}
						if got := l.Describe(f); !slices.Equal(got, want) {
							t.Errorf("exactly: got %v, want %v", got, want)
						}
						if got := l.Describe(quota.Filter{Principal: quota.Any()}); (len(got) == 1) != (principal != "") {
							t.Errorf("any principal: got %v", got)
						}
						alter(t, l, 0, quota.Alteration{Entity: e, Kind: kind})
						if got := l.Describe(quota.Filter{}); len(got) != 0 {
							t.Errorf("after removal: %v", got)
						}
					})
				}
			}
		}
	}
}

// TestAlterAtomic checks that a set with any mistake changes nothing, and that all mistakes are named.
func TestAlterAtomic(t *testing.T) {
	l := newLimiter(t)
	good := quota.Alteration{Entity: tenantA, Kind: quota.Ingress, Quota: &quota.Quota{Rate: 5}}
	for name, bad := range map[string]quota.Alteration{
		"no tenant":      {Entity: entity("", "p", ""), Kind: quota.Ingress},
		"empty name":     {Entity: quota.Entity{Tenant: quota.Named("")}, Kind: quota.Ingress},
		"no kind":        {Entity: tenantA},
		"unknown kind":   {Entity: tenantA, Kind: 99},
		"negative rate":  {Entity: tenantDefault, Kind: quota.Ingress, Quota: &quota.Quota{Rate: -2}},
		"NaN":            {Entity: tenantDefault, Kind: quota.Ingress, Quota: &quota.Quota{Rate: quota.Rate(math.NaN())}},
		"infinity":       {Entity: tenantDefault, Kind: quota.Ingress, Quota: &quota.Quota{Rate: quota.Rate(math.Inf(1))}},
		"negative burst": {Entity: tenantDefault, Kind: quota.Ingress, Quota: &quota.Quota{Rate: 1, Burst: -1}},
		"twice":          good,
	} {
		err := l.Alter([]quota.Alteration{good, bad}, false, 0)
		if !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
		if got := l.Describe(quota.Filter{}); len(got) != 0 {
			t.Fatalf("%s: half of the set was applied: %v", name, got)
		}
	}
	if err := l.Alter([]quota.Alteration{good}, true, 0); err != nil || len(l.Describe(quota.Filter{})) != 0 {
		t.Errorf("validate only: %v, %v", err, l.Describe(quota.Filter{}))
	}
	if _, err := quota.NewLimiter(quota.Options{Settings: []quota.Setting{{}}, MaxDelay: -1}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("NewLimiter: %v, want ErrInvalid", err)
	}
	if err := l.Alter([]quota.Alteration{{Entity: tenantA, Kind: quota.Egress}}, false, 0); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}

func TestBlocked(t *testing.T) {
	l := newLimiter(t, quota.Setting{Entity: tenantA, Kind: quota.Ingress}) // a quota that nobody filled in
	if d := l.Delay(keyA, quota.Ingress, 0); d != quota.Forever {
		t.Errorf("delay %v, want Forever", d)
	}
	if _, ok := l.Reserve(keyA, quota.Ingress, 1, quota.Instant(24*time.Hour)); ok {
		t.Error("admitted")
	}
	alter(t, l, 0, quota.Alteration{Entity: tenantA, Kind: quota.Ingress, Quota: &quota.Quota{Rate: quota.Unlimited}})
	if d := l.Charge(keyA, quota.Ingress, 1<<50, 0); d != 0 {
		t.Errorf("unlimited: delay %v", d)
	}
}

func TestParseKind(t *testing.T) {
	for k := quota.Ingress; k <= quota.Connections; k++ {
		if got, err := quota.ParseKind(k.String()); err != nil || got != k {
			t.Errorf("%v: %v, %v", k, got, err)
		}
	}
	for _, s := range []string{"", "none", "kind(9)"} {
		if _, err := quota.ParseKind(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
	if got := quota.Kind(200).String(); got != "kind(200)" {
		t.Errorf("got %q", got)
	}
}

// TestExpiry checks that state goes when, and only when, nothing would be forgiven by that.
func TestExpiry(t *testing.T) {
	l := newLimiter(t, ingress(tenantDefault, 1000, time.Second), ingress(entity("*", "*", "*"), 500, time.Second), ingress(entity("*", "", "s"), 500, time.Second))
	key := quota.Key{Tenant: "t", Principal: "p", Client: "c"}
	l.Charge(key, quota.Ingress, 3000, 0)
	for _, at := range []quota.Instant{0, 1000 * ms, 5999 * ms} {
		l.Expire(at)
		if d := l.Delay(key, quota.Ingress, at); at < 5000*ms && d != time.Duration(5000*ms-at) {
			t.Errorf("at %v: delay %v, want %v: idling is no payment", time.Duration(at), d, time.Duration(5000*ms-at))
		}
	}
	if s := l.Stats(6000 * ms); s.Tenants != 1 || s.Throttled != 2*time.Second {
		t.Errorf("stats %+v, want one tenant, throttled for 2s", s)
	}
	if n := l.Expire(6000 * ms); n != 3 {
		t.Errorf("forgot %d, want 3 when all buckets are full", n)
	}
	if s := l.Stats(6000 * ms); s.Tenants != 0 || s.Below != 0 || s.Throttled != 2*time.Second {
		t.Errorf("stats %+v, want no party and the sum kept", s)
	}
	// Client ids that nobody ever sees again cost bounded memory by themselves.
	for i := range 100_000 {
		l.Charge(quota.Key{Tenant: "t", Principal: "p", Client: fmt.Sprint(i)}, quota.Ingress, 1, 6000*ms+quota.Instant(i)*10*ms)
	}
	if s := l.Stats(0); s.Below > 1000 {
		t.Errorf("%d parties kept of 100 000 idle ones", s.Below)
	}
}

// TestStrictStart checks that a restart gives no second burst of partitions.
func TestStrictStart(t *testing.T) {
	l := newLimiter(t, of(quota.PartitionMutations, tenantA, 5, 100*time.Second))
	if _, ok := l.Reserve(keyA, quota.PartitionMutations, 10, 0); !ok {
		t.Error("refused with nothing owed")
	}
	if d, ok := l.Reserve(keyA, quota.PartitionMutations, 10, quota.Instant(time.Second)); ok || d != time.Second {
		t.Errorf("got %v, %v; want 1s, refused", d, ok)
	}
	// A tenant first seen after a minute has what it would have saved since the start.
	b := quota.Key{Tenant: "b"}
	alter(t, l, 0, quota.Alteration{Entity: entity("b", "", ""), Kind: quota.PartitionMutations, Quota: &quota.Quota{Rate: 5, Burst: 100 * time.Second}})
	l.Reserve(b, quota.PartitionMutations, 0, quota.Instant(time.Minute))
	if u, _ := l.Usage(b, quota.PartitionMutations, quota.Instant(time.Minute)); u.Tokens != 300 {
		t.Errorf("tokens %v, want 300", u.Tokens)
	}
}
