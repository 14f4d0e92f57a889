// Package tier is the cold half of a log: it moves sealed ranges of a [log.Log]
// into an object store, drops the local copies, reads them back, and deletes what
// is past retention.
//
// On one machine:
//
//	hot, err := log.Open(ctx, "data/log", log.Options{})
//	events, err := tier.OpenLocalEvents(ctx, "data/events", tier.LocalOptions{})
//	store, err := dirstore.Open("data/store", dirstore.Options{})
//	t, err := tier.Open(ctx, hot, tier.Options{Store: store, Events: events})
//	t.AppendRecords(ctx, record.Record{Value: []byte("hello")})
//	for r, err := range t.Records(ctx, t.Start()) { ... }
//
// In a cluster each node has one [Manager], and a [Partition] for each replica that
// it holds. Who elects leaders calls [Partition.Lead] and [Partition.Follow].
//
// # Parts
//
//   - [ObjectStore] keeps whole objects. It is trusted with bytes and with nothing
//     else: what an object means is decided by the tier log.
//   - [Events] is the tier log: a totally ordered, durable list of facts. It is the
//     only point of commitment.
//   - [State] is what the facts of one partition add up to. [State.Apply] is a pure
//     function; every replica applies the same events and has the same state.
//   - [Manager] derives all that it does from applied states, so that it can be cut
//     off between any two steps and taken up by the next leader.
//
// # Life of a range
//
//  1. The leader lays the object out: one object holds the offsets from the tier end
//     to the end of a sealed segment, all below the high watermark and outside of
//     open transactions. It gets a fresh id, which is in its key.
//  2. CopyStarted is committed, with a deadline. Only then the first byte leaves. So
//     each object that may exist is known without listing the store.
//  3. One Put, conditional where the store can. A lost reply is settled by the next
//     attempt with the same bytes and key.
//  4. CopyFinished is committed. From here on the range counts: for reads, for sizes,
//     for the tier end.
//  5. Each replica that applies it may drop its local copy, up to the tier end it has
//     applied and its own high watermark, as local retention allows.
//  6. Retention or a request commits a LogStart with its cause. Each replica trims its
//     local log as it applies it; readers below get log.ErrOffsetOutOfRange.
//  7. The objects of what lies below the log start are kept for [Options].BackupWindow,
//     at least for ReaderGrace: the event that deletes carries the time.
//  8. DeleteStarted is committed, then objects are deleted, then DeleteFinished. An
//     object whose upload may still be under way is deleted again after its deadline.
//
// # Guarantees
//
//   - Each offset from the log start to the committed end is readable at any moment
//     from the local log or from a finished range, with the bytes that were appended;
//     chunks and tails have checksums and are checked on every read.
//   - An event takes effect at most once and only while its writer leads: a barrier
//     opens each leader's epoch, and within it events have dense sequence numbers. One
//     event is in flight per partition; it is sent until it has been read back, so an
//     append whose outcome is unknown does no harm.
//   - A leader uploads and deletes nothing before it has read its own barrier back,
//     and with it everything that earlier leaders committed.
//   - While a node does not know a state ([View].Known), it uploads, drops, trims and
//     serves nothing cold. It never takes "unknown" for "empty".
//   - Keys are never used twice, objects never overwritten.
//   - The object store may be down for any time: appends and hot reads do not notice,
//     [Partition.Backlog] grows, nothing is lost. Uploads resume by themselves.
//
// What is not promised: that a deleted object is gone at once; that readers of a slow
// store are served in bounded time (their ctx is for that); that two processes which
// were granted the same epoch do not disturb each other (they are noticed:
// [ErrTwoWriters]).
//
// # Limits
//
// Each node keeps the states of all partitions of the tier log in memory, about 110
// bytes a range. A call of a store that ignores ctx is given up ten seconds after its
// ctx has ended; its goroutine stays until it returns, also after Close.
//
// # Keeping the tier log short
//
// The leader of a partition writes a [Checkpoint] now and then: its whole state, in the
// event itself or, where it is large, in a manifest object. Nothing before it is needed
// any more, so [Events].Trim is called up to the oldest that a partition needs;
// [Stats] says which one that is. A node keeps the states that it has read in a file;
// one that was away for longer than the tier log goes back knows nothing until it has
// read on from the checkpoints to the end.
//
// # Lost states
//
// If a manifest is lost or damaged that the last checkpoint of a partition names, a node
// without its file of states does not know the partition: it never takes that for empty.
// [Partition.Status], reads and [Stats].StatesMissing say so, [Audit] finds it, and
// appends and hot reads go on. Ways back, the first that can be gone:
//
//  1. A node that still knows the state leads the partition: its next checkpoint tells the
//     others.
//  2. [Repair], while the nodes are stopped, gives them a state that one of them has kept,
//     or builds one from an older manifest, the objects, the events since, and the local log
//     starts; it says which, and what the store lacks.
//  3. [Chain.Restore] writes what the store has into a log of another topic id.
//
// # Deleted topics
//
// [Options].Deleted says which topics were deleted, and names an epoch above all that
// their partitions were led in. In it the node that speaks for the cluster clears away
// what is left: it ends the epoch of the last leader by a barrier, commits a [Deleted],
// deletes the objects when their time has come, and at last lists the partition's
// prefix. Until that finds nothing the state stays, as the word that there may be
// objects; then a [Forgotten] ends it. The node also writes the checkpoint of a
// partition that holds up the tier log while nobody leads it.
//
// What was deleted can be had back while its objects are kept: [Chain.Restore] writes
// them into a log of another topic id, from any offset on.
//
// An object that the store refuses to delete time and again is parked: it is tried again
// now and then, holds up no other, and counts in [Stats].Parked.
//
// # Looking after the store
//
// [Audit] compares the tier log, as [ReadToEnd] gives it, with the store and names what is
// missing, damaged or nobody's; [Partition.Sweep] deletes what is nobody's, behind a
// fence, and [Manager.SweepDeleted] what came late of a deleted topic. [Catalog] reads a
// store without a tier log, and [Chain.Restore] builds a log from it, since each object
// says what it is and what lies below it; where there is a manifest, it tells which
// objects there must be. While a cluster is at work, [LastWriter] says so, and on one
// machine if [Options].Writer does. examples/tierctl is a command over these calls, for the
// directories of a Node's cluster.
//
// # Concurrency
//
// All types are safe for concurrent use but [State], [Slice] and iterators in use.
// A manager has three to five goroutines, and a bounded number of others while there is work;
// none of them is a partition's. Everything runs on package time, so that a
// testing/synctest bubble makes it virtual.
//
// # Sources
//
// Apache Kafka's KIP-405 (segment states), Kora (Povzner et al., VLDB 2023, sections
// 3.4 and 4.6); the fence by barrier and sequence, the self-describing object and the
// rule for late uploads are our own.
package tier
