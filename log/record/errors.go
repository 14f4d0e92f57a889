package record

import "errors"

// Errors of this package.
var (
	// ErrShort: the bytes end before the batch does.
	ErrShort = errors.New("record: more bytes needed")
	// ErrInvalid: the bytes are no batch.
	ErrInvalid = errors.New("record: invalid batch")
	// ErrChecksum: the checksum of the batch is wrong.
	ErrChecksum = errors.New("record: wrong checksum")
	// ErrTooLarge: a batch or its decompressed records exceed the bound.
	ErrTooLarge = errors.New("record: too large")
)
