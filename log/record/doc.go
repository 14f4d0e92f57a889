// Package record encodes and decodes Kafka's record batch, version 2: the unit in
// which records are written, replicated, stored and read.
//
// A [Batch] is a view over the bytes of one whole batch. [Next] cuts batches off a
// buffer, [Batch.Verify] checks one, [Batch.Records] iterates over its records,
// and a [Builder] makes new ones.
package record
