package record

import "time"

// A Builder makes batches. The zero value is ready to use.
type Builder struct {
	// Compression is the codec of the batches to come.
	Compression Compression
}

// Append adds a record.
func (b *Builder) Append(r Record) error { return ErrInvalid }

// Len returns the number of records appended.
func (b *Builder) Len() int { return 0 }

// Size returns the size in bytes that the batch would have without compression.
func (b *Builder) Size() int { return 0 }

// Reset forgets the records.
func (b *Builder) Reset() {}

// Build returns the batch.
func (b *Builder) Build() (Batch, error) { return Batch{}, ErrInvalid }

// LeaderChange returns the control batch that opens a leader's epoch.
func LeaderChange(epoch Epoch, leader int32, voters []int32, now time.Time) Batch { return Batch{} }

// EndTxn returns the control batch that ends a transaction.
func EndTxn(commit bool, producerID int64, producerEpoch int16, coordinatorEpoch int32, now time.Time) Batch {
	return Batch{}
}
