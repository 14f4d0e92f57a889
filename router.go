package cordwood

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/replication"
	"github.com/cordwood-io/cordwood/transport"
)

// The router takes a request to the leader of its partition, wherever that is,
// and follows it over failovers. Whether an attempt may be repeated is for the
// caller to say: an append of a producer may always be, since its sequence
// numbers tell a repetition, and so may reads.

// Pauses between attempts, doubled each time and jittered by half. A change of
// the partition's record ends a pause early.
const (
	retryPauseMin = 5 * time.Millisecond
	retryPauseMax = 500 * time.Millisecond
)

// retriable reports whether an attempt that ended in err may succeed when it is
// repeated in the same way.
func retriable(err error) bool {
	var notLeader *replication.NotLeaderError
	var indeterminate *replication.IndeterminateError
	return errors.As(err, &notLeader) || errors.As(err, &indeterminate) ||
		errors.Is(err, errRetry) || passing(err) ||
		errors.Is(err, ErrUnknownPartition) ||
		errors.Is(err, replication.ErrNotEnoughReplicas) ||
		errors.Is(err, log.ErrDiskFull) ||
		errors.Is(err, transport.ErrUnreachable) ||
		errors.Is(err, transport.ErrUnknownOutcome) ||
		errors.Is(err, transport.ErrOverloaded)
}

// mayHaveHappened reports whether an attempt that ended in err may have changed
// the partition, or still may.
func mayHaveHappened(err error) bool {
	var indeterminate *replication.IndeterminateError
	return errors.As(err, &indeterminate) || errors.Is(err, transport.ErrUnknownOutcome)
}

// A route is a sequence of attempts at one partition.
type route struct {
	n     *Node
	id    log.PartitionID
	pause time.Duration
	seen  metadata.Partition // the record that the last attempt used
}

// leader returns where the next attempt goes: at once if the record names a
// leader, else when it does. Errors: ErrTopicDeleted, ErrClosed, the context's cause.
func (r *route) leader(ctx context.Context) (int32, error) {
	img, err := r.n.waitImage(ctx, func(img *metadata.Image) bool {
		p, ok := img.Partition(r.id)
		return !ok || p.Leader >= 0
	})
	if err != nil {
		return 0, err
	}
	p, ok := img.Partition(r.id)
	if !ok {
		return 0, fmt.Errorf("%w: %w", ErrUnknownTopic, ErrTopicDeleted)
	}
	r.seen = p
	return int32(p.Leader), nil
}

// wait pauses after a failed attempt, until the partition's record differs from
// the one that the attempt used or the pause is over.
func (r *route) wait(ctx context.Context) error {
	r.pause = min(max(2*r.pause, retryPauseMin), retryPauseMax)
	d := r.pause/2 + rand.N(r.pause/2+1)
	short, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	r.n.waitImage(short, func(img *metadata.Image) bool {
		p, ok := img.Partition(r.id)
		return !ok || p.LeaderEpoch != r.seen.LeaderEpoch
	})
	if err := r.n.closedErr(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// tryAppend makes one attempt to append batches in order at a node. The results
// stop at the first batch that was not appended. An error concerns all batches.
func (n *Node) tryAppend(ctx context.Context, at int32, m appendRequest) ([]appendResult, error) {
	if at == n.o.ID {
		return n.serveAppend(ctx, m), nil
	}
	r, err := n.net.Call(ctx, at, transport.Live, kindAppend, m.encode())
	if err != nil {
		return nil, n.callError(ctx, err)
	}
	rs, err := decodeAppendResults(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrUnknownOutcome, err)
	}
	return rs, nil
}

// A readResult is what one read gave.
type readResult struct {
	batches []byte // whole batches, the caller's; the first holds the offset asked for
	cold    bool   // they come from the object store
	start   log.Offset
	high    log.Offset
}

// tryRead makes one attempt to read at a node.
func (n *Node) tryRead(ctx context.Context, at int32, m readRequest) (readResult, error) {
	if at == n.o.ID {
		h, payload := n.serveRead(ctx, m)
		if payload != nil {
			defer payload.Release()
		}
		if h.err != nil {
			return readResult{}, h.err
		}
		r := readResult{cold: h.cold, start: h.start, high: h.high}
		if payload != nil {
			r.batches = payload.bytes()
		}
		return r, nil
	}
	class := transport.Live
	if m.wait == 0 {
		class = transport.CatchUp
	}
	resp, err := n.net.Call(ctx, at, class, kindRead, m.encode())
	if err != nil {
		return readResult{}, n.callError(ctx, err)
	}
	h, err := decodeReadHeader(resp.Body)
	if err != nil {
		return readResult{}, err
	}
	if h.err != nil {
		return readResult{}, h.err
	}
	return readResult{batches: resp.Payload, cold: h.cold, start: h.start, high: h.high}, nil
}

// read reads from the leader until it gets an answer.
func (n *Node) read(ctx context.Context, m readRequest) (readResult, error) {
	r := route{n: n, id: m.partition}
	for {
		at, err := r.leader(ctx)
		if err != nil {
			return readResult{}, err
		}
		res, err := n.tryRead(ctx, at, m)
		if err == nil || !retriable(err) {
			return res, err
		}
		if err := r.wait(ctx); err != nil {
			return readResult{}, err
		}
	}
}

// offsets asks the leader for the partition's offsets until it gets an answer.
func (n *Node) offsets(ctx context.Context, id log.PartitionID) (Offsets, error) {
	r := route{n: n, id: id}
	for {
		at, err := r.leader(ctx)
		if err != nil {
			return Offsets{}, err
		}
		var o Offsets
		if at == n.o.ID {
			o, err = n.serveOffsets(id)
		} else {
			var resp *transport.Response
			resp, err = n.net.Call(ctx, at, transport.Control, kindOffsets, encodePartition(id))
			if err != nil {
				err = n.callError(ctx, err)
			} else {
				var remote error
				o, remote, err = decodeOffsets(resp.Body)
				if err == nil {
					err = remote
				}
			}
		}
		if err == nil || !retriable(err) {
			return o, err
		}
		if err := r.wait(ctx); err != nil {
			return Offsets{}, err
		}
	}
}

// callError turns the end of this node or of the caller's context into that, and
// leaves other errors of a call as they are.
func (n *Node) callError(ctx context.Context, err error) error {
	if closed := n.closedErr(); closed != nil && !errors.Is(err, transport.ErrUnknownOutcome) {
		return closed
	}
	if ctx.Err() != nil && !errors.Is(err, transport.ErrUnknownOutcome) {
		return context.Cause(ctx)
	}
	return err
}
