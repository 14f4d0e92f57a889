// Package cordwood is an embeddable, tiered, Raft-replicated log. A program that
// imports it gets, inside its own process, what a cloud streaming engine is made
// of: partitions that replicate, keep only a warm tail on local disk, age into an
// object store, fail over by themselves, and are shared fairly by many tenants.
//
// This package wires the parts together; each is of use alone.
//
//	             host application: broker, server, service, test
//	                                   |
//	quota (admission per tenant)  cordwood.Node  balance (load, plans, cells, health)
//	                                   |
//	       metadata (Raft quorum, controller, image)    replication (leader, followers)
//	                                   |                       |
//	                               transport      log <--------+------> tier ----> object store
//
// The packages:
//
//   - [github.com/cordwood-io/cordwood/log]: one partition's log of record batches
//     in segment files, in Apache Kafka's format; log/record is the batch codec.
//   - [github.com/cordwood-io/cordwood/tier]: its cold half in an object store.
//   - [github.com/cordwood-io/cordwood/replication]: leader and followers of it.
//   - [github.com/cordwood-io/cordwood/metadata]: what the cluster is, agreed by Raft.
//   - [github.com/cordwood-io/cordwood/transport]: frames between nodes.
//   - [github.com/cordwood-io/cordwood/quota] and
//     [github.com/cordwood-io/cordwood/balance]: who may use how much, and how much is used.
//   - [github.com/cordwood-io/cordwood/cordwoodtest]: a cluster inside a test.
//
// # Use
//
//	n, err := cordwood.Open(ctx, cordwood.Options{ID: 1, Dir: dir, Listener: l, Store: store})
//	err = n.Init(ctx, clusterID, voters)   // on one voter, with a NewID that is kept; n.Join(ctx, seed) on the others
//	err = n.Ready(ctx)
//	err = n.Tenant("").CreateTopic(ctx, "orders", cordwood.TopicConfig{})
//	orders := n.Tenant("").Topic("orders")
//	a, err := orders.AppendRecords(ctx, 0, cordwood.Record{Value: []byte("hello")})
//	for r, err := range orders.Records(ctx, 0, 0) { … }
//
// Handles work on every node: they find the leader and follow it.
//
// # Life of a record
//
//  1. The host hands a record batch to [Topic.Append] or a [Producer]. The tenant's
//     quota is charged; over the limit the call waits.
//  2. The batch gets a producer id and sequence, so that a retry is recognised, and
//     goes to the partition's leader, wherever that is.
//  3. The leader checks it, stamps offset and leader epoch, neither of which is under
//     the batch's checksum, and writes it to its log. Followers fetch up to the
//     leader's log end, check and write the same bytes, so that all disks sync at
//     the same time.
//  4. The high watermark is the smallest durable end over the in-sync replicas, and
//     moves only while at least MinISR of them are. When it passes the batch, the
//     append returns and readers see the records.
//  5. A segment that is full or old is sealed. The leader's archiver puts it into the
//     object store as one object, and commits that fact to the internal topic
//     "__tier". Each replica sees it there and may drop its local copy.
//  6. A reader gets local bytes where they are local, and cold ones through a cache
//     where they are not, and never notices the seam.
//  7. Retention moves the log start: first as a committed fact, then by deleting
//     objects, after [Options].BackupWindow. [Tenant.DeleteTopic] does the same to a
//     whole topic. What a store took too late for that is for [Node.SweepStore], which
//     the host calls now and then.
//
// # Guarantees
//
//   - An append that returned without error is on the disks of the whole in-sync set,
//     of at least MinISR replicas, fsynced, and survives the loss of all others.
//   - A record that was read once is never taken back or changed.
//   - A batch is appended at most once, whatever is retried, and its outcome is told
//     exactly: appended, not appended, or [*IndeterminateError] when the answer was
//     not waited for.
//   - A [Producer] keeps the order of its batches over failovers.
//
// Transactions are the host's to decide: who speaks to clients appends their batches
// and the markers by [Replica.Append] and [Replica.EndTransaction], and serves readers of committed
// transactions by [Replica.LastStable] and [Replica.AbortedTransactions]. Handles neither
// begin transactions nor leave out what was aborted.
//
// Not promised: order between producers or partitions; and that a topic with
// Replication 1 survives its disk.
//
// # In the host's process
//
// A node never exits the process, installs a signal handler, prints, sets a global,
// or listens where the host did not say. When it can't go on it ends: [Node.Done]
// is closed and [Node.Err] says why. Every goroutine is joined by [Node.Close] and
// carries the pprof label "cordwood".
//
// [OpenStopped] looks into the directories of nodes that do not run.
//
// Source: the tiered log, tenants and load follow Povzner et al., "Kora: A
// Cloud-Native Event Streaming Platform for Kafka", VLDB 2023; the replication
// protocol is Apache Kafka's with its later repairs (KIP-101 to KIP-966).
package cordwood
