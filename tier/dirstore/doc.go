// Package dirstore keeps objects as files of one directory tree: the key is the
// path. It serves one machine, or several processes that share a file system.
//
//	store, err := dirstore.Open("/var/lib/app/store", dirstore.Options{})
//
// # Durability
//
// A Put writes a temporary file in the folder ".tmp", syncs it, gives it its name
// in one step and syncs the folder, and the folders above where they are new.
// When it returns nil, the object survives power loss; before, there is no object
// or the whole one. A Delete removes the name and syncs the folder.
//
// # Create if absent
//
// The name is given by a hard link, which fails if the name is taken: so the
// condition holds against every process on the same file system. Where the file
// system has no hard links the store takes a lock file for the moment between
// looking for the name and renaming. That holds against all processes that use
// this package on one machine, and on network file systems as far as their locks
// do; [Store.HardLinks] says which of the two is in force.
//
// # Limits
//
// A key can't be a folder of another key ("a" and "a/b"). On file systems that do
// not tell upper from lower case, two keys that differ only in that are one. Keys
// that begin with ".tmp/" or ".lock" are refused. Empty folders are left behind by
// Delete: to remove one races with a Put that needs it. Temporary files of writers
// that died are removed by Open when they are a day old.
package dirstore
