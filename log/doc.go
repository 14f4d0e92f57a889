// Package log is one partition's append-only log of record batches.
package log
