package quota_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/cordwood-io/cordwood/quota"
)

// A server answers "too many requests" to tenants in debt, and paces the bodies of the others.
func ExampleLimiter_http() {
	limiter, err := quota.NewLimiter(quota.Options{Settings: []quota.Setting{{
		Entity: quota.Entity{Tenant: quota.ByDefault()},
		Kind:   quota.Egress,
		Quota:  quota.Quota{Rate: 100, Burst: time.Second}, // bytes per second
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ticket := limiter.Admit(r.Context(), quota.Key{Tenant: r.Header.Get("Tenant")})
		defer ticket.Done()
		if after := ticket.RetryAfter(); after > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		if _, err := io.Copy(io.Discard, ticket.Reader(r.Body)); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		size, err := strconv.Atoi(r.URL.Query().Get("bytes"))
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		// Pieces of up to quota.Quantum go out whole; what they owe is waited for before the next piece, or told to the next request.
		if _, err := io.WriteString(ticket.Writer(w), strings.Repeat("x", size)); err != nil {
			return // the client has gone, or the request's context ended a wait
		}
	})

	get := func(tenant string, bytes int) {
		r := httptest.NewRequest("GET", "/?bytes="+strconv.Itoa(bytes), nil)
		r.Header.Set("Tenant", tenant)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%s: %d, %d bytes, retry after %q s\n", tenant, w.Code, w.Body.Len(), w.Header().Get("Retry-After"))
	}
	get("lkc-1", 36_099) // above the burst: it passes, and must be paid
	get("lkc-1", 1)
	get("lkc-2", 50) // another tenant
	// Output:
	// lkc-1: 200, 36099 bytes, retry after "" s
	// lkc-1: 429, 0 bytes, retry after "360" s
	// lkc-2: 200, 50 bytes, retry after "" s
}

// A broker's loop over one connection: it answers at once with the delay in the answer, and reads the next request when the delay is over.
func ExampleLimiter_broker() {
	limiter, err := quota.NewLimiter(quota.Options{
		Settings: []quota.Setting{{
			Entity: quota.Entity{Tenant: quota.ByDefault(), Principal: quota.ByDefault()},
			Kind:   quota.Ingress,
			Quota:  quota.Quota{Rate: 100, Burst: time.Second},
		}},
		MaxDelay: 50 * time.Millisecond, // below what clients wait for an answer; debt is kept
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	serve := func(ctx context.Context, conn net.Conn, key quota.Key) error {
		defer conn.Close()
		var mute quota.Mute
		requests := bufio.NewReader(conn)
		for {
			if err := mute.Wait(ctx, limiter.Now); err != nil {
				return err
			}
			request, err := requests.ReadString('\n')
			if err != nil {
				return err
			}
			ticket := limiter.Admit(ctx, key)
			ticket.Charge(quota.Ingress, int64(len(request)))
			delay := ticket.Done()
			mute.Extend(delay, limiter.Now())
			if _, err := fmt.Fprintf(conn, "throttled=%v\n", delay > 0); err != nil {
				return err
			}
		}
	}

	client, server := net.Pipe()
	done := make(chan error)
	go func() { done <- serve(context.Background(), server, quota.Key{Tenant: "lkc-1", Principal: "alice"}) }()
	answers := bufio.NewReader(client)
	start := time.Now()
	for _, size := range []int{10, 3600, 10} {
		// The third is written while the server is not reading: it waits, whatever the client thinks of the delay.
		fmt.Fprintln(client, strings.Repeat("x", size-1))
		answer, err := answers.ReadString('\n')
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(size, " bytes: ", answer)
	}
	fmt.Println("waited:", time.Since(start) >= 50*time.Millisecond)
	client.Close()
	fmt.Println(<-done)
	// Output:
	// 10 bytes: throttled=false
	// 3600 bytes: throttled=true
	// 10 bytes: throttled=true
	// waited: true
	// EOF
}

// The defaults, as programs see them.
func ExampleRule() {
	fmt.Println("burst", quota.DefaultBurst)
	fmt.Println("period", quota.DefaultPeriod)
	fmt.Println("lease", quota.DefaultLease)
	fmt.Println("floor", quota.DefaultFloor)
	fmt.Println("lazy factor", quota.DefaultLazyFactor, "below", quota.DefaultLazyBelow)
	fmt.Println("declared overrun", quota.LazyOverrun(quota.Rule{}, 0, 24, 100*time.Millisecond), "of the quota")
	// Output:
	// burst 3s
	// period 250ms
	// lease 2s
	// floor 0.02
	// lazy factor 2 below 0.98
	// declared overrun 9.6s of the quota
}

// A quota may be set for one party, for all that have none of their own, and on three levels; all levels that apply are charged.
func ExampleLimiter_Alter() {
	limiter, err := quota.NewLimiter(quota.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	tenant, client := quota.Entity{Tenant: quota.Named("lkc-1")}, quota.Entity{Tenant: quota.ByDefault(), Client: quota.ByDefault()}
	err = limiter.Alter([]quota.Alteration{
		{Entity: tenant, Kind: quota.Egress, Quota: &quota.Quota{Rate: 100 << 20}},
		{Entity: client, Kind: quota.Egress, Quota: &quota.Quota{Rate: 10 << 20, Burst: time.Second}},
	}, false, limiter.Now())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range limiter.Describe(quota.Filter{}) {
		fmt.Println(s.Entity, s.Kind, s.Quota.Rate, s.Quota.Burst)
	}
	// Output:
	// tenant="lkc-1" egress 1.048576e+08 0s
	// tenant=<default> client=<default> egress 1.048576e+07 1s
}
