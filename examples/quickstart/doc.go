// Quickstart appends text to a replicated, tiered log, kills the leader half-way,
// and reads everything back.
//
//	go run ./examples/quickstart [-in PATH] [-dir D] [-json] [-wait 30s] [-s3 URL]
//
// It starts three node processes of itself on loopback TCP and real files, with
// an object store in a directory, and joins them as a host whose own node holds no
// replica. Each line of the input is a record of one partition. Half-way it kills
// the leader's process with SIGKILL while records are in flight, goes on, starts
// the process again, waits until the cold part is in the store and gone from local
// disk, and reads everything back from offset 0.
//
// PATH is a file, a directory (every text file in it, .git aside) or - for
// standard input; the default is the current directory. -dir keeps nodes and store
// in D/node1, D/node2, D/node3 and D/store; a second run on it recovers, verifies
// what is there and appends. -json prints one object on one line of standard
// output, a table stands there else. -s3 keeps the objects in a bucket of Amazon S3 or of a
// server that speaks its protocol, instead of in a directory; a later run on the same
// -dir needs the same bucket.
//
// The exit status is 0 only if no record was lost, changed or duplicated.
package main
