// Package tier is the cold half of a log: it moves sealed ranges of a
// [log.Log] into an object store, drops the local copies, and reads them back.
package tier
