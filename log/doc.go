// Package log is one partition's append-only log of record batches in segment
// files: the part of a broker that must not lose anything.
//
//	l, err := log.Open(ctx, "data/orders-0", log.Options{})
//	...
//	a, err := l.AppendRecords(ctx, log.Record{Key: key, Value: value}) // durable when it returns
//	for r, err := range l.Records(ctx, a.Base) { ... }
//	err = l.Close()
//
// It also owns the identifiers that the packages above share ([TopicID],
// [PartitionID], [Offset], [Epoch]) and the door to the disk ([FS]).
//
// # Two ways in
//
// [Log.Append] is for a log on one machine: offsets are given, the batch is
// durable when it returns, and concurrent calls share one sync.
// A replicated log splits that: the leader's [Log.Write] and a follower's
// [Log.AppendReplicated] only write, and [Log.Sync] or [Log.SyncLater] make
// durable, so that all replicas sync at the same time. What is written can be read
// at once, below [Log.End]; what survives a crash ends at [Log.DurableEnd].
// [Log.Records] and [Log.WaitDurable] keep to the latter.
//
// # Guarantees
//
//  1. A record below the durable end is there after any crash, or the log says
//     that it is damaged. It is never cut off, replaced or served changed.
//  2. A record above it is there whole or not at all, and if it is there, so is
//     every record before it.
//  3. Offsets are contiguous and never used twice, except above the cut of a
//     TruncateTo or Reset that the host asked for. Epochs do not fall.
//  4. TruncateTo, TrimTo, DropLocal, Reset and Repair of a segment have happened wholly or not at all,
//     whenever the machine dies, and are durable when they return.
//  5. After a failed write or sync, a log takes no more changes, and each later
//     error holds the first cause. A full disk is no failure: the append is taken
//     back and can be tried again.
//  6. A batch of an idempotent producer is in the log once, however often it is
//     retried.
//
// Not promised: that a record whose Append was not yet acknowledged is gone after
// a crash (it may be there); that bytes which the disk changes by itself are
// noticed before they are read, or [Open] reads them.
//
// # Transactions
//
// A batch that [record.Batch.IsTransactional] belongs to its producer's open transaction, which
// the first of them opens and a marker ends ([record.EndTxn], by [Log.WriteControl]). Who
// decides about transactions is the host: the log keeps what follows from the
// batches. [Log.LastStable] is the offset below which every transaction has ended, and
// [Log.AbortedTransactions] says which of them were aborted. Reads, [Log.Records] among
// them, give the records of all transactions, open and aborted ones too: a reader of
// committed records goes by Read up to the last stable offset, and leaves out
// transactional batches of a producer that lie in one of its aborted transactions.
//
// # Files
//
// The directory has Apache Kafka's layout. NNN is a segment's base offset in 20
// digits. Formats stand in docs/format of the repository and above their codecs.
//
//   - NNN.log: record batches v2, as sent by the producer except for base offset,
//     leader epoch and, if so configured, log-append time.
//   - NNN.index, NNN.timeindex: Kafka's sparse indexes. They are caches: checked
//     against their checksums in NNN.seal, and built again if these disagree.
//   - NNN.txnindex: Kafka's index of aborted transactions, a cache like the others.
//   - leader-epoch-checkpoint, partition.metadata, NNN.snapshot: Kafka's, for its
//     tools. The last one holds producers as of an offset, with one batch each, and is
//     read in directories that Kafka wrote.
//   - NNN.seal: what is known of a sealed segment; NNN.state: epoch chain and
//     producers as of an offset, with five batches for each producer.
//   - cordwood.meta: identity, log start, local start, and the change under way;
//     cordwood.clean: the marker of a clean close; cordwood.lock.
//   - cordwood.journal, in the Dir of a [Disk]: the journal of the logs below it.
//   - cordwood.spare-N: a file for a later segment, see below.
//   - NNN.POSITION.cut: a copy of a torn tail, or of damage that was repaired. The
//     four newest are kept.
//
// The active segment is preallocated, and slots behind its batches state how far the
// log was known durable: see docs/format/log-slots.md. So recovery can tell a torn
// tail, which it cuts, from damage, which it reports. [Open] lists the steps.
//
// Appends that the journal makes durable may be held in memory for a while, so that
// the segment's file gets them by larger writes ([DiskOptions].HeldBytes). Readers get
// them from there, and after the process has died Open takes them from the journal.
// What returns before it is durable, as [Log.Write] does, is in the file then; but what
// is not durable may be lost also when only the process dies.
//
// Files of segments that TrimTo and DropLocal free become later segments of the same
// log, within [DiskOptions].RecycledBytes, once nobody reads them any more: appends
// that write over blocks written before are cheaper to sync. If none is at hand, the
// next file is made in advance when the active one is half full, so that a roll is a
// rename. A segment is sealed in the background; it is durable before anything in
// its successor is acknowledged.
//
// # Recovery
//
// A log that was closed in order opens without reading its segments. After a
// crash the active segment is read whole, and so are segments whose seal or state
// did not reach the disk. What is above the known durable end and not whole is
// copied aside and cut. What is below it and not whole makes the log read-only:
// see [Recovery], [CorruptionError] and [ErrReadOnly]. [Log.Repair] takes what is
// damaged from a replica or the tier; so does TruncateTo at the damage, or Reset, and
// fetching the rest.
//
// # Concurrency
//
// All methods are safe for concurrent use. Readers wait for nobody. Writes are one
// at a time, and no sync is made while others wait to write, with these exceptions:
// the first change after Open, a roll when the next file is not ready or the segment
// before the full one is not durable yet, a change of the start, a truncation, and a
// file that grows past its slots faster than it is synced. A call that does a file
// operation itself looks at its ctx only before and after it.
//
// Goroutines run only while SyncLater callbacks wait, a segment is being sealed, a
// file readied for a later one, or the journal needs a file, or segments synced; they
// belong to the [Disk] and are joined by Close.
//
// # Limits
//
// The entries of a journal that is lost can't be had back: a log that may have had
// some there, and was not closed in order, opens read-only ([Recovery].Lossy) until
// TruncateTo accepts its end or Reset replaces it. Copy or move the folders of logs that
// are not closed only together with that of the journal.
// Damage is found when it is read, by recovery, a Read or [Log.Verify].
//
// # Kafka's directories
//
// Open takes over the directory of a partition that a Kafka broker has closed or
// left in a crash, if its offsets have no gaps. With Options.ReadOnly it opens any,
// those of compacted topics too, and changes no file. The first Open reads all
// segments, one with ReadOnly always.
//
// The log starts where its first segment does: the start that a broker has moved into
// that segment is in no file of the directory, but in log-start-offset-checkpoint
// above it. [Log.TrimTo] of that offset keeps what was deleted from being read again.
//
// Source: the log layer of Apache Kafka, KIP-98, KIP-101, KIP-279, KIP-320; the
// durable end beside the data is our own, after the idea in Pebble's log.
package log
