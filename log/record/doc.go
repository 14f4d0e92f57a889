// Package record encodes and decodes Kafka's record batch, version 2: the unit in
// which records are written, replicated, stored and read. The bytes are those of
// Kafka's clients and brokers, so that a batch is never encoded anew on its way.
//
// A [Batch] is a view over the bytes of one whole batch. [Next] cuts batches off a
// buffer, [Batch.Verify] checks one, [Batch.Records] iterates over its records, and
// a [Builder] makes new ones. [LeaderChange] and [EndTxn] make control batches,
// which take an offset like any other but are not for consumers.
//
// # Guarantees
//
//   - No bytes make a function panic. No length or count in them is believed: what
//     is allocated follows what is really there, and a batch's records decompress
//     to a bound at most.
//   - Next, Verify, VerifyRecords of an uncompressed batch, and building without
//     compression into a Builder that was used before, allocate nothing. Records
//     of an uncompressed batch are not copied.
//   - A batch that was built passes [Batch.VerifyNew] (given a sound producer), and
//     gives back the records that it was built of, times cut to milliseconds.
//
// # Limits
//
//   - The checksum covers neither base offset nor length nor leader epoch nor
//     magic, so that leaders can stamp batches. Who stores batches must check these
//     by other means.
//   - Versions 0 and 1 of the format are not read.
//   - Compression levels are the libraries' defaults.
//
// # Concurrency
//
// Reading a Batch is safe for any number of goroutines. Its Set methods change the
// bytes that all copies share, and a Builder belongs to one goroutine. Codecs are
// pooled in the package; they hold no goroutine.
//
// # Sources
//
// Kafka's protocol guide (record batch), KIP-98 (producer fields, transaction
// markers), KIP-110 (zstd), KIP-595 (leader change), the lz4 frame format,
// RFC 1952, RFC 8878, and snappy-java for its framing. See
// docs/format/record-batch.md.
package record
