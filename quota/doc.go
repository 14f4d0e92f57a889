// Package quota keeps every tenant of a shared cluster to what it was promised, and gives it that.
//
// # Use
//
// A [Limiter] holds the settings of a node. A host charges what a request has cost and gets a delay: it answers at once, and reads nothing
// more from that client until the delay is over.
//
//	limiter, err := quota.NewLimiter(quota.Options{Settings: []quota.Setting{{
//		Entity: quota.Entity{Tenant: quota.ByDefault()},
//		Kind:   quota.Ingress,
//		Quota:  quota.Quota{Rate: 10 << 20},
//	}}})
//	…
//	delay := limiter.Charge(quota.Key{Tenant: "lkc-1"}, quota.Ingress, int64(len(request)), limiter.Now())
//
// [Limiter.Admit] gives a [Ticket] that does the same for one request of a server, [Limiter.Wait] sleeps the delay, [Limiter.Reserve] refuses
// where delaying is not enough, and [Limiter.Listener] limits connections.
//
// # Buckets
//
// Every limit is a post-paid token bucket ([Bucket]): the cost is charged after the fact and may exceed the burst, the debt is paid by
// waiting. golang.org/x/time/rate is not used because it refuses a cost above the burst, mints tokens when readings of the clock overtake
// each other, keeps whole tokens and does not re-time those who sleep when the rate changes.
//
// # Guarantees
//
//   - In any window T a bucket admits at most Rate*(T+Burst), and what was charged by the request that took it into debt.
//   - A change of rate or burst settles the time before it at the old values. Sleepers are re-timed.
//   - Debt survives idling, capping of delays, and a smaller burst.
//   - Rate 0 blocks; a party without any quota is neither limited nor counted; [Unlimited] counts only.
//   - State is forgotten only when the bucket is full, when a new one would be the same.
//   - All levels that apply (tenant, principal, client id) are charged in one step.
//
// Only monotonic time is used, and all arithmetic takes the present time as a parameter.
package quota
