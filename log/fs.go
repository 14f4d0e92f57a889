package log

import (
	"io"
	"time"
)

// An FS is the only door to a disk. One FS stands for one device that loses its
// unsynced data as a whole when the machine dies, so a node uses one FS for all
// it keeps. [OSFS] is the operating system's; package logtest has one in memory
// that crashes on demand.
//
// Names are slash-separated paths. Methods are safe for concurrent use. An error
// wraps fs.ErrNotExist or fs.ErrExist where one of these is the cause, and
// syscall.ENOSPC when the device is full.
//
// Source: the interface is our own; the list of calls is what a durable log and
// a storage engine need between them.
type FS interface {
	// Create makes a new file, open for reading and writing. The file must not
	// exist (fs.ErrExist). Its name is durable only after SyncDir of its folder.
	Create(name string) (File, error)

	// Open opens an existing file: for reading only if write is false.
	Open(name string, write bool) (File, error)

	// Remove deletes a file or an empty folder; durable after SyncDir.
	Remove(name string) error

	// Rename replaces newName by oldName in one step; durable after SyncDir of
	// the folders of both. Open handles follow the file, not the name.
	Rename(oldName, newName string) error

	// Link gives a file a second name and fails with fs.ErrExist if that name is
	// taken; durable after SyncDir.
	Link(oldName, newName string) error

	// MkdirAll makes a folder and its parents. Each new folder is durable after
	// SyncDir of its parent.
	MkdirAll(name string) error

	// List returns the names in a folder, sorted, without the path.
	List(dir string) ([]string, error)

	// Stat describes a file or folder.
	Stat(name string) (FileInfo, error)

	// SyncDir makes the names in a folder durable.
	SyncDir(dir string) error

	// Lock takes an exclusive lock named by a file, which it creates, until the
	// closer is closed or the process dies. It does not block: a lock that is
	// held elsewhere gives [ErrLocked].
	Lock(name string) (io.Closer, error)

	// FreeBytes returns what an unprivileged writer can still store on the device
	// of this folder.
	FreeBytes(dir string) (int64, error)
}

// A File is one open file of an [FS]. ReadAt and WriteAt are safe for concurrent
// use on ranges that do not overlap; a short write returns an error.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer

	// Truncate cuts or extends (with zeros) the file; durable after Sync.
	Truncate(size int64) error

	// Sync makes content and size durable (fdatasync). After an error the content
	// of the file on disk is unknown, and Sync must not be tried again.
	Sync() error

	// Size returns the present length in bytes.
	Size() (int64, error)

	// Preallocate reserves space for [off, off+n) and extends the size to cover
	// it; the range reads as zeros. A file system that can't reserve may just
	// extend the file.
	Preallocate(off, n int64) error
}

// A Reserver is an [FS] that can promise that its files' Preallocate reserves: no later
// write to the range, the first one or a repeated one, fails for want of room, also
// after the file was renamed. On a disk of any other FS, or where it says no, nothing
// is held back from segment files: see [DiskOptions].HeldBytes. A promise that is not
// kept costs no record, but the log fails ([FailedError]) where its append would have
// got [ErrDiskFull].
//
// An FS that wraps another one passes Reserves on itself; one that embeds [OSFS] has
// its promise, and must take it back if its files do not reserve.
type Reserver interface {
	// Reserves tells that of files below a folder, which exists. [NewDisk] asks once,
	// of DiskOptions.Dir, and takes the answer for all logs of the disk: one FS stands
	// for one device.
	Reserves(dir string) bool
}

// FileInfo is what [FS].Stat tells of a name.
type FileInfo struct {
	Size    int64     // bytes; 0 for a folder
	ModTime time.Time // last change of the content
	IsDir   bool
}
