//go:build linux

package logpeers

// A Log is one peer, opened for appending.
type Log interface {
	// Append stores the records in order. When the log was opened with sync, they're durable when Append returns.
	Append(recs [][]byte) error

	// Flush hands everything still in user memory to the kernel. It need not be durable.
	Flush() error

	Close() error
}

// A Peer is one implementation under test.
type Peer struct {
	Name string

	// Open creates a log in an empty folder.
	Open func(dir string, sync bool) (Log, error)

	// Read opens the log afresh and hands every record to each, from the first to the last. A record is valid only during the call.
	Read func(dir string, each func([]byte)) error

	// Reopen opens the log until it's ready to append, and returns what closes it, so that only opening is timed.
	Reopen func(dir string) (func() error, error)

	// Crash, where it's set, removes what only a clean close leaves, so that a reopen afterwards costs what it would after a crash.
	Crash func(dir string) error

	// Concurrent says that Append may be called by many goroutines at once and that the peer itself groups their syncs.
	Concurrent bool

	// Buffered says that Append without sync may return while the bytes are still in the process: its crash loses them.
	Buffered bool
}

// Peers lists every implementation.
func Peers() []Peer {
	return []Peer{
		tidwallPeer, raftWALPeer, etcdPeer, natsStorePeer, natsServerPeer, pebbleRecordPeer, pebbleDBPeer, promPeer,
	}
}
