// Package replication keeps the copies of a partition's log equal: a leader and
// its followers, an in-sync set, a high watermark.
//
// It is Kafka's leader/follower protocol with its later repairs, made durable: an
// append is answered when every member of the in-sync set has it on disk and the
// committed set has at least MinISR members. Who leads and who is in sync is
// decided elsewhere (package metadata in a Cordwood node): a [Manager] is told by
// [Replica.Apply] and proposes changes of the in-sync set through the small
// interface [Controller].
//
// # Use
//
//	m, err := replication.NewManager(replication.Options{
//		Self: replication.Member{ID: 1, Epoch: brokerEpoch}, Controller: c, Network: n,
//	})
//	r, err := m.Open(ctx, l, fs, dir, replication.ReplicaOptions{})
//	r.Apply(assignment)                      // from the cluster's metadata, again on each change
//	app, err := r.Append(ctx, batch, replication.AcksAll)
//	s, err := r.Read(ctx, from, 1<<20)       // committed bytes only
//
// The host passes requests of other nodes to [Manager.Handle] and one-way messages
// to [Manager.HandleProgress].
//
// # Guarantees
//
//   - A record whose append returned nil with [AcksAll] is on the disks of at least
//     min(MinISR, number of replicas) replicas, stays in the log of every later
//     leader that was elected from the in-sync set, and never changes its offset.
//   - A reader sees only records below the high watermark, so that what was read
//     once is never taken back by a clean election.
//   - The answer to an append is exact: nil (committed), an error that says nothing
//     was appended, or [*IndeterminateError], after which the record may or may not
//     become part of the log. A retry with the same producer id and sequence is
//     answered with the offsets of the original once that is committed.
//   - A leader is a pair of node and broker epoch: a restarted process neither leads
//     nor acknowledges anything for the assignment of its earlier life.
//
// Not promised: that a leader which has been replaced and does not know it yet
// refuses reads (they return committed records, perhaps not the newest), and
// anything about a partition after an unclean election except that the replicas
// become equal.
//
// # Structure
//
// The core is a state machine over offsets and epochs: Step(event) gives effects.
// It has no goroutine, clock, file or socket, and the bytes of the log never pass
// through it. The driver around it (Manager, Replica, sessions of the leader,
// fetchers of the follower) does what the effects say. One fetch session per pair
// of nodes and class (live, catch-up) carries all partitions that one node
// replicates from the other: the follower sends only what changed, the leader
// parks the request until it has something to say. So an idle partition costs no
// goroutine, timer or message.
//
// # Concurrency
//
// All methods are safe for concurrent use. Hooks are called without locks held and
// must not block.
//
// # Sources
//
// KIP-101 and KIP-279 (truncation by epoch), KIP-595 (divergence inside the fetch),
// KIP-497 and KIP-841 (changes of the in-sync set by compare-and-set), KIP-903
// (replica epochs), KIP-966 (eligible replicas, MinISR gate), KIP-405 (start from
// the tier), KIP-1166 (high watermark in the request), Vanlightly's description of
// the protocol, and the Kora paper for what is tiered. Durable ends instead of
// fetch positions, sessions that stay silent for idle partitions and per-partition
// sequence numbers are our own.
package replication
