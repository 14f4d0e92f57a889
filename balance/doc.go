// Package balance measures the load of brokers, plans small changes that even it out, places
// tenants in cells, and finds sick brokers. It decides and explains; it never acts. It imports
// nothing but the standard library.
//
// # Load
//
// A host accounts each of its bounded queues with a [Pool]:
//
//	var requests = balance.Pool{Servers: 8}
//
//	t := requests.Enqueue(time.Now()) // the request is in the queue
//	t.Start(time.Now())               // a handler took it
//	t.Done(time.Now())                // the handler is free again
//
//	load := requests.Stats(time.Now()).Load
//
// [Load] holds three numbers. Utilization is the share of time that the servers were busy.
// Pressure is the utilisation that would explain the time that requests waited: the
// queueing formula turned round. Overall is the larger one, and is what the planner balances.
// [Combine] joins the pools of one broker, [ClusterLoad] the brokers of one cluster, [CellLoad]
// the brokers of one cell. A process without pools uses [Runtime].
//
// # Plans
//
// A [Cluster] is a model in plain values: brokers, replicas, loads as integers. [Planner.Plan]
// returns a [Plan]: an ordered list of moves, what each goal was before and will be after,
// what it costs, and what could not be done and why. The same model gives the same plan,
// however it is ordered. A [Ledger] keeps moves that are in flight, cool-downs and the
// freshness of reports between rounds.
//
// # Cells
//
// [BuildCells] cuts brokers into cells that span the zones evenly, [Placement] puts a tenant in
// one by two random choices, [PlanTenantMove] gives the steps that take a tenant to another one.
//
// # Health
//
// [Monitor] takes one [Observation] for each broker and round and returns [Decision] values:
// demote, fence, leave the in-sync set, release, page. It never needs an answer from the
// broker that it judges.
//
// # Probes
//
// [ProbeMinute], [ClusterMinute] and [WeeklySLO] are the arithmetic of client-side latency
// objectives.
//
// # What is not promised
//
// The package does not collect samples, does not talk to brokers and does not move replicas. An
// estimate of load is an estimate: the error over the queues that were tried stands in the
// report of examples/simulate -experiment load. A plan is a heuristic: it is optimal on tiny
// instances that the tests enumerate, not in general (the problem is NP-hard).
//
// # Concurrency
//
// [Pool] and [Runtime] are safe for concurrent use. Everything else is plain values and pure
// functions: the caller serialises access to one [Ledger], [Placement] or [Monitor]. Nothing starts a
// goroutine, reads a clock or draws a random number that was not passed in.
//
// # Sources
//
// Povzner et al., "Kora: A Cloud-Native Event Streaming Platform For Kafka", VLDB 2023, for
// the shape of load, balancing, cells and degradation handling; Kingman 1961, Kraemer and
// Langenbach-Belz 1976, Sakasegawa 1977 and Daley 1977 for the queueing formulas; Azar et al. and
// Mitzenmacher for the two choices; the goal order and the band of LinkedIn's Cruise
// Control. The constants that Kora does not publish are our own and are justified where they
// stand.
package balance
