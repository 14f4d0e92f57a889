package record

import (
	"errors"
	"fmt"
)

var (
	// ErrShort says that bytes end before the batch that they begin: with more
	// bytes it may be one.
	ErrShort = errors.New("record: more bytes needed")

	// ErrInvalid is what every [*InvalidError] is.
	ErrInvalid = errors.New("record: invalid batch")

	// ErrChecksum says that the bytes under the checksum are not those that were
	// written. It comes inside an [*InvalidError].
	ErrChecksum = errors.New("wrong checksum")

	// ErrTooLarge says that a batch, or what its records decompress to, is above
	// the caller's bound. From a decoder it comes inside an [*InvalidError].
	ErrTooLarge = errors.New("too large")

	// ErrEmpty is returned by [Builder.Build] when no record was appended.
	ErrEmpty = errors.New("record: batch without records")

	// ErrCompression is returned by [Builder.Build] for a codec that does not
	// exist. From a decoder it comes inside an [*InvalidError].
	ErrCompression = errors.New("unknown compression")
)

// An InvalidError says why bytes are no valid batch: they never will be one,
// however many more come. errors.Is finds [ErrInvalid] and the cause in it.
type InvalidError struct {
	Offset Offset // base offset that the batch states; of use only if its header is sound
	Err    error
}

// Error states offset and cause.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("record: invalid batch at offset %d: %v", e.Offset, e.Err)
}

// Is reports whether target is [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }

func invalid(at Offset, format string, args ...any) error {
	return &InvalidError{Offset: at, Err: fmt.Errorf(format, args...)}
}
