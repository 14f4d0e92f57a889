package logtest

import (
	"errors"
	"fmt"
)

// A Kind is a kind of operation on an [FS] or a file of it.
type Kind uint8

// The kinds of operations.
const (
	OpCreate Kind = iota
	OpOpen
	OpRemove
	OpRename
	OpLink
	OpMkdir
	OpList
	OpStat
	OpSyncDir
	OpLock
	OpFreeBytes
	OpRead
	OpWrite
	OpTruncate
	OpSync
	OpPreallocate
	OpClose
	kinds
)

var kindNames = [kinds]string{
	"create", "open", "remove", "rename", "link", "mkdir", "list", "stat", "syncdir", "lock", "freebytes",
	"read", "write", "truncate", "sync", "preallocate", "close",
}

// String returns the kind in one word.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Changes reports whether operations of the kind change the disk or what of it is
// durable.
func (k Kind) Changes() bool {
	switch k {
	case OpOpen, OpList, OpStat, OpFreeBytes, OpRead, OpClose:
		return false
	}
	return true
}

// An Op describes one operation to a hook.
type Op struct {
	N       int64  // number of the operation on this FS, from 1
	Changed int64  // how many operations that change (see [Kind.Changes]) came up to here, this one included
	Kind    Kind   // what is asked for
	Path    string // the name, cleaned and absolute; for a file the one it was opened by
	NewPath string // the second name of a rename or link
	Offset  int64  // of a read, write or preallocation; the size of a truncation
	Len     int    // bytes of a read, write or preallocation
}

// String returns the operation on one line.
func (o Op) String() string {
	switch o.Kind {
	case OpRename, OpLink:
		return fmt.Sprintf("%d %s %s -> %s", o.N, o.Kind, o.Path, o.NewPath)
	case OpRead, OpWrite, OpPreallocate:
		return fmt.Sprintf("%d %s %s [%d,+%d)", o.N, o.Kind, o.Path, o.Offset, o.Len)
	case OpTruncate:
		return fmt.Sprintf("%d %s %s to %d", o.N, o.Kind, o.Path, o.Offset)
	default:
		return fmt.Sprintf("%d %s %s", o.N, o.Kind, o.Path)
	}
}

// ErrCrashed is what every operation on an [FS] returns after its crash.
var ErrCrashed = errors.New("logtest: the machine has crashed")

// DoneButFailed makes a hook's error one that is reported after the operation was
// done: the caller can't know.
func DoneButFailed(err error) error { return &doneError{err} }

type doneError struct{ err error }

func (e *doneError) Error() string { return e.err.Error() }
func (e *doneError) Unwrap() error { return e.err }

// Short makes a hook's error one that stops a write or read after its first n
// bytes: a torn write. Other operations are not done at all.
func Short(n int, err error) error { return &shortError{n, err} }

type shortError struct {
	n   int
	err error
}

func (e *shortError) Error() string { return e.err.Error() }
func (e *shortError) Unwrap() error { return e.err }
