// Tierctl looks after the object store of a cluster that does not run.
//
//	tierctl audit   (-dir D | -store DIR | -s3 URL) [-depth names|tails|bytes] [-json]
//	tierctl sweep   -dir D [-dry-run] [-min-age 2h] [-force] [-json]
//	tierctl repair  -dir D [-dry-run] [-force] [-json]
//	tierctl restore (-dir D | -store DIR | -s3 URL) -out OUT [-from OFFSET] [-to OFFSET] [-partition P] [-as ID] [-force] [-json]
//	tierctl ls      (-dir D | -store DIR | -s3 URL) [-json]
//	tierctl cat     (-dir D | -store DIR | -s3 URL) [-n N] [-partition P] OFFSET
//
// -dir is the directory of a quickstart: nodes in D/node1, D/node2, … and D/host, as in
// any directory of D with a file called node; the store in D/store (or where -store or -s3
// says). -prefix tells with what the keys in the store begin, if it is neither cordwood nor
// nothing. The nodes must be stopped; a torn tail of
// their tier log is cut as at a start, and nothing else is changed in them. The tier log of
// the replica that would lead says what must be in the store, and audit compares:
// missing, cut, damaged and unknown objects, and the offsets that are lost by them.
// Without -dir there is the store alone: what its objects say of themselves. They don't
// say that the oldest or the newest is missing.
//
// repair is for partitions of which audit says that the manifest of their last checkpoint
// is not there (their cold reads, uploads and retention wait for it): it gives all nodes
// of D a state that one of them has kept, or one that it builds from an older manifest, the
// objects and the local log starts, and says which. See Repair of package tier for what
// may differ then. If there is no way to build one, restore has what the store has.
//
// restore writes one log directory for each partition below OUT from the store alone,
// up to an offset: batches stay whole, so the end, which is printed, may lie below it, as
// is what it was restored from: the objects, and the newest manifest that can be read, if the
// partition's state is so large that it has one. By that it names the objects that are missing,
// with -dir by the tier log. If one is missing within, what is above it is restored, and what
// is below it by the -to that the finding names, into another OUT. cat goes on behind a gap,
// and says so.
// What was deleted comes back too while its objects are kept, of a deleted topic by the
// partition's name in ls; -from leaves out what lies below, and -as gives the logs the
// id of a new topic.
// A partition that can't be restored, as one with a damaged object, is named with the offsets
// that keep it from that, nothing of it is left in OUT, and the others are restored.
// A log is built under a name that ends in .unfinished and gets its own when it is whole; what
// a restore leaves that was killed must be removed by hand. Without -dir it refuses while a
// cluster is at work on the store (it says so there each minute; ten minutes after the last
// time it counts as gone), unless -force.
//
// sweep deletes objects of known partitions that no tier log knows, and spares those
// younger than -min-age. With -store or -s3 it refuses while a cluster is at work, as
// restore does: D may be a copy.
//
// An s3 URL is s3://[KEY:SECRET@][HOST[:PORT]/]BUCKET[/PREFIX][?region=R&plaintext=1];
// without keys in it they are looked for where Amazon's tools do.
//
// Output, except that of cat, is a table, or with -json one object on one line. Exit
// status: 0 all is well, 1 something was found (or could not be deleted or restored whole),
// 2 nothing of it could be done.
package main
