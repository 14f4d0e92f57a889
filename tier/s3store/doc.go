// Package s3store keeps objects in a bucket of Amazon S3 or of a server that
// speaks its protocol, by minio-go.
//
//	o, err := s3store.ParseURL("s3://bucket/prefix?region=eu-central-1")
//	...
//	store, err := s3store.Open(ctx, o)
//	...
//	defer store.Close()
//
// # What Open does
//
// It writes, reads and deletes a few small objects below ".cordwood-probe/" to
// find out what the server can promise ([Store.Capabilities]): servers that claim
// the protocol differ in conditional writes and in checksums. [Options].ReadOnly
// only asks whether the bucket exists.
//
// # One object, one request
//
// A Put is one request of known size, also for large objects, up to
// [Options].MaxPutBytes; only above it does the store use a multipart upload, and
// then by the low-level calls, since minio-go's convenient one drops the condition
// of a write without saying so. A multipart upload that does not complete is
// aborted with a context of its own; what a killed process leaves behind is
// invisible but billed, so give the bucket a lifecycle rule that aborts incomplete
// uploads.
//
// A write is sent again only while it is certain that the server did not take it
// (no connection, or a 503 SlowDown). Everything else that is not a clear answer
// is [tier.ErrUnknownOutcome]: a lost reply may belong to a write that happened,
// or that happens later.
//
// # Being a good client
//
// All calls share one circuit breaker and one budget of retries, so that an outage
// is not met with a storm: while the breaker is open, calls fail at once with
// [tier.ErrUnavailable]. Uploads, reads and control requests have connections and
// limits of their own, so that slow reads never keep a deletion waiting. Each
// request ends when its bytes stop flowing for [Options].StallTimeout; the time that
// the source of an upload takes does not count.
//
// # Integrity
//
// Put compares the bytes that it sends with the checksum of its options, and sends
// the checksum along; a server that checks it too refuses what the network
// changed. The checksum is kept beside the object, so that Head knows it.
// Without TLS, payloads are not signed: who can change packets can change objects,
// within their checksums.
//
// Source: the Amazon S3 API reference; breaker, retry budget and the rules for
// unclear outcomes are our own.
package s3store
