package tier

import (
	"context"
	"iter"

	"github.com/cordwood-io/cordwood/log"
)

// Events is the tier log as a [Manager] needs it: one totally ordered, durable
// list of events, shared by all nodes that hold replicas. [LocalEvents] is one
// for a single machine; a cluster uses an internal topic.
//
// All methods are safe for concurrent use.
type Events interface {
	// Append adds one event of partition p. nil means that the event is committed:
	// every reader will see it. Any error means that it may or may not be, now or
	// later. It must return soon after ctx ends. The bytes are not changed or kept.
	Append(ctx context.Context, p log.PartitionID, event []byte) error

	// Read iterates over the committed events from offset from on, in order, of all
	// partitions. Below Start it yields an error that wraps [log.ErrOffsetOutOfRange]. At
	// the end it waits for more, until ctx ends: see [ReadToEnd] for an iterator that
	// ends. An error is yielded once and last. The bytes of an event become the caller's.
	Read(ctx context.Context, from log.Offset) iter.Seq2[Committed, error]

	// End returns an offset at or above that of every event whose Append returned
	// nil before the call, plus one; nothing uncommitted lies below it. Read gets
	// there: it yields an event for every offset below, except where offsets are
	// not events, and Committed.Offset tells where it stands.
	End(ctx context.Context) (log.Offset, error)

	// Start returns the first offset that Read can begin at here, 0 if nothing was ever
	// trimmed. It may be behind what the leader has.
	Start(ctx context.Context) (log.Offset, error)

	// Trim gives up the entries below to, if this node is the one that may: in a
	// cluster the leader of the tier log, which never trims above what is committed.
	// Elsewhere it does nothing and returns nil.
	Trim(ctx context.Context, to log.Offset) error
}

// Committed is one committed entry of the tier log.
type Committed struct {
	Offset log.Offset // of this entry

	// Event is the bytes of the event, nil when this entry only tells how far the
	// reader has come (control batches are no events).
	Event []byte
}

// ReadToEnd iterates over the committed events of e from its start to what is its end
// at the first pull, and then ends: what [AuditOptions].Events takes. An error is yielded
// once and last: those of e, and ctx's. It can be used again.
func ReadToEnd(ctx context.Context, e Events) iter.Seq2[Committed, error] {
	return func(yield func(Committed, error) bool) {
		start, err := e.Start(ctx)
		var end log.Offset
		if err == nil {
			end, err = e.End(ctx)
		}
		if err != nil {
			yield(Committed{}, err)
			return
		}
		if end <= start {
			return
		}
		for c, err := range e.Read(ctx, start) {
			if err == nil && c.Offset >= end || !yield(c, err) || err != nil || c.Offset+1 >= end {
				return
			}
		}
	}
}
