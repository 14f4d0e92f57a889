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
// where delaying is not enough, [Limiter.Listener] limits connections, and [Mute] keeps the deadline until which a connection is not read.
//
// In a cluster, [NewSharing] lets brokers share each tenant's quota: the host carries [Report] and [Grant] between them. Without it a node
// has all of every quota.
//
// # Buckets
//
// Every limit is a post-paid token bucket ([Bucket]): the cost is charged after the fact and may exceed the burst, the debt is paid by
// waiting. golang.org/x/time/rate is not used because it refuses a cost above the burst, mints tokens when readings of the clock overtake
// each other, keeps whole tokens and does not re-time those who sleep when the rate changes.
//
// # Levels
//
// A [Setting] belongs to an [Entity]: a tenant, its principals, its client ids, each by name or by default. For each kind and level one setting
// applies, the first that exists in this order (t, p and c are the names in the key, * the default, - absent):
//
//	tenant     t; *
//	principal  t p; t *; * p; * *
//	client     t p c; t p *; t * c; t * *; t - c; t - *; * p c; * p *; * * c; * * *; * - c; * - *
//
// All levels that apply are charged, from the tenant down, in one step, and the largest of their delays counts. Where a client's setting
// has no principal, the client ids of all principals of the tenant share one bucket.
//
// # Sharing
//
// Every period (250 ms) each broker's [Agent] reports what tenants used, and the tenant's [Coordinator] divides the quota ([Group]): in
// proportion to use while all demands fit, by weighted max-min when they don't; a throttled broker's demand grows by 2, 8, 64, ... until it
// is met. While a tenant is below its quota cluster-wide, its brokers may use twice their share (lazy throttling), bounded by what the
// cluster saved.
//
// A limit is raised only after the cuts that make room for it are confirmed, and every share is leased, so that the limits in force add up to no more than
// the quota, whatever messages are lost, late or repeated. Without a coordinator the brokers go back to the static split, never to no limit. What all
// brokers together admit in any time T is at most quota*T + [LazyOverrun]*quota, and one request in flight on each.
//
// Not covered by that: for one exchange after a broker joins or starts anew, it has the static split beside what the others have; a broker that is
// told of a new [Members] more than four leases later than the others; and brokers whose leases of a lost coordinator end more than a
// lease apart because their clocks run at different rates.
//
// # Guarantees
//
//   - In any window T a bucket admits at most Rate*(T+Burst), and what was charged by the request that took it into debt.
//   - A change of rate or burst settles the time before it at the old values. Sleepers are re-timed.
//   - Debt survives idling, capping of delays, and a smaller burst.
//   - Rate 0 blocks; a party without any quota is neither limited nor counted; [Unlimited] counts only.
//   - State is forgotten only when the bucket is full, when a new one would be the same. So names that clients make up cost bounded
//     memory; one under a blocked rate that was charged all the same is kept.
//   - A tenant in 100 000 costs about half a kilobyte with four kinds in use; what a node knows of shares comes to it, for the tenants
//     that are active anywhere.
//
// Only monotonic time is used, and all arithmetic takes the present time as a parameter. Exported types say whether they are safe for
// concurrent use; the pure ones ([Bucket], [Group], [Coordinator], [FairQueue]) are not.
//
// # Sources
//
// Kora (Povzner et al., VLDB 2023) sections 5.1 and 5.2 for tenants, dynamic quotas, lazy throttling and backpressure; KIP-13, 219, 257, 546, 599 and 612
// for kinds, levels, delays and their administration. The rule of division, its safe order and the way without a coordinator are our own.
package quota
