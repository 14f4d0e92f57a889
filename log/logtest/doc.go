// Package logtest holds a disk in memory that crashes, tears, fills up, stalls and
// fails on demand, for tests of package log and of programs that use it.
//
// An [FS] stands for the one disk of a node. What a program writes is seen by
// itself at once, as through a page cache, but outlives [FS.Crash] only if it was
// synced:
//
//   - Content: by the file's Sync. An unsynced sector of [SectorBytes] survives or
//     not by itself, so that a write may be torn anywhere between sectors and later
//     writes may survive without earlier ones. A sector is never torn.
//   - Size: by the file's Sync. An unsynced size survives or not independently of
//     the content. A size without its content reads as zeros; where a file was cut
//     and grew again, the bytes from before the cut, zeros and the new ones are all
//     possible.
//   - Names: by SyncDir of their folder, also for a file that was synced itself. Of
//     the unsynced changes of a folder the first few survive, in order.
//
// [CrashMode] chooses between losing everything unsynced, keeping it, and a subset
// that a seed decides. [FS.Kill] is the death of the process alone, which loses
// nothing yet.
//
// Faults come from a hook before every operation, [FS.OnOp]: an error is an
// operation not done, [DoneButFailed] one that is done but reported as failed,
// [Short] a torn write. When a hook fails a Sync, the file's unsynced content is
// given up as on Linux: readers still see it, no later Sync writes it, and a crash
// loses it, unless it is written again. [FS.Stall] holds operations back,
// [FS.SetCapacity] fills the disk, [FS.Corrupt] flips bits. [EachCrash] runs a
// workload with a crash at each of its writes.
//
// [EachFault] does the same with each of them failing, and [TestFS] checks another
// implementation of [log.FS].
//
// Operations block only in [FS.Stall] and in hooks, never with a lock held, so an
// FS can be used inside a testing/synctest bubble; a stall belongs to the bubble
// that asked for it. Times are those of package time. Nothing here starts a
// goroutine, but the tests of [TestFS].
//
// # Limits
//
// A synced sector never rots by itself, only by [FS.Corrupt]. Names survive in the
// order of their folder's changes, as on journalling file systems, where POSIX
// promises less. Space is counted in sectors of files alone, and is free as soon as
// a file has neither name nor handle.
package logtest
