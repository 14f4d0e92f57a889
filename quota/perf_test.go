package quota_test

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/cordwood-io/cordwood/quota"
)

// TestChargeAllocates pins the hot paths at no allocation.
func TestChargeAllocates(t *testing.T) {
	l := newLimiter(t, ingress(tenantDefault, 1e9, 0), ingress(entity("*", "*", ""), 1e9, 0), ingress(entity("*", "*", "*"), 1e9, 0))
	key := quota.Key{Tenant: "t", Principal: "p", Client: "c"}
	ticket := l.Admit(t.Context(), key)
	defer ticket.Done()
	var now quota.Instant
	for name, f := range map[string]func(){
		"Charge":        func() { l.Charge(key, quota.Ingress, 100, now) },
		"Delay":         func() { l.Delay(key, quota.Ingress, now) },
		"Reserve":       func() { l.Reserve(key, quota.Ingress, 1, now) },
		"Ticket.Charge": func() { ticket.Charge(quota.Ingress, 1) },
	} {
		if n := testing.AllocsPerRun(1000, func() { now += 1000; f() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestMemory bounds what 100 000 tenants with four kinds in use cost.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("fills 60 MiB")
	}
	kinds := []quota.Kind{quota.Ingress, quota.Egress, quota.RequestTime, quota.ConnectionRate}
	var settings []quota.Setting
	for _, k := range kinds {
		settings = append(settings, quota.Setting{Entity: tenantDefault, Kind: k, Quota: quota.Quota{Rate: 1000}})
	}
	l := newLimiter(t, settings...)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const tenants = 100_000
	for i := range tenants {
		for _, k := range kinds {
			l.Charge(quota.Key{Tenant: "lkc-" + strconv.Itoa(i)}, k, 1e6, 0)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := l.Stats(0).Tenants; n != tenants {
		t.Errorf("%d tenants, want %d", n, tenants)
	}
	if mib := float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / (1 << 20); mib > 64 {
		t.Errorf("%.1f MiB, want at most 64", mib)
	} else {
		t.Logf("%.1f MiB", mib)
	}
}

func BenchmarkCharge(b *testing.B) {
	for levels, settings := range map[string][]quota.Setting{
		"1": {ingress(tenantDefault, 1e9, 0)},
		"3": {ingress(tenantDefault, 1e9, 0), ingress(entity("*", "*", ""), 1e9, 0), ingress(entity("*", "*", "*"), 1e9, 0)},
	} {
		b.Run("levels="+levels, func(b *testing.B) {
			l := newLimiter(b, settings...)
			key := quota.Key{Tenant: "lkc-1", Principal: "alice", Client: "producer-1"}
			var now quota.Instant
			b.ReportAllocs()
			for b.Loop() {
				now += 100
				l.Charge(key, quota.Ingress, 100, now)
			}
		})
	}
}
