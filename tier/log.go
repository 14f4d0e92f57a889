package tier

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// A Log is a log over hot and cold on one machine: appends go to the local log,
// sealed segments into the object store, and readers never notice the seam. Make
// one with [Open]. It is safe for concurrent use.
type Log struct {
	hot     *log.Log
	manager *Manager
	part    *Partition
}

// Open makes a tiered log of a local one. o needs Store and Events; with
// [LocalEvents] it needs no Cluster. It waits for the tier log to be read, which is
// quick on one machine, but not for the object store, which may be down.
//
// The local log, the store and the events stay the caller's: close the Log first,
// then those. Nobody else may append to, trim or truncate the local log meanwhile.
//
// A local log whose start was moved before it was tiered is taken as it is; one
// whose records are missing between tier end and local start is an error of
// [Partition.Status], since reads of what is there are still right.
//
// Errors: those of the options; ctx's; [ErrClosed] and a [*VersionError] of the
// tier log.
func Open(ctx context.Context, l *log.Log, o Options) (*Log, error) {
	if e, ok := o.Events.(interface{ Cluster() ID }); ok && o.Cluster == (ID{}) {
		o.Cluster = e.Cluster()
	}
	if e, ok := o.Events.(interface{ stateDir() (log.FS, string) }); ok && o.StateFS == nil {
		o.StateFS, o.StateDir = e.stateDir()
	}
	po := o.Partition
	po.Tiered = true
	po.HighWatermark = l.DurableEnd
	m, err := NewManager(o)
	if err != nil {
		return nil, err
	}
	t := &Log{hot: l, manager: m}
	if err := t.start(ctx, po); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return t, nil
}

// start leads the partition in the epoch after the last one. The barrier that
// claims it is durable before anything else happens in it, and the tier log has
// one owner: so no epoch is ever used by two lives of the process.
func (l *Log) start(ctx context.Context, o PartitionOptions) error {
	p, err := l.manager.Open(l.hot.Partition(), l.hot, o)
	if err != nil {
		return err
	}
	l.part = p
	if err := p.WaitKnown(ctx); err != nil {
		return fmt.Errorf("tier: read the tier log: %w", err)
	}
	v := p.View()
	p.Lead(v.Epoch + 1)
	if start := l.hot.Start(); v.Epoch < 0 && start > 0 {
		// Nothing is in the tier yet, so this log start is from before.
		if err := p.trimTo(ctx, start, Cause{Kind: CauseAdopted}); err != nil {
			return fmt.Errorf("tier: adopt the log start %d: %w", start, err)
		}
	}
	return nil
}

// Append appends one batch as [log.Log.Append] does, with its errors, and returns
// when it is durable on the local disk.
func (l *Log) Append(ctx context.Context, batch []byte) (log.Appended, error) {
	a, err := l.hot.Append(ctx, batch)
	l.part.Kick()
	return a, err
}

// AppendRecords appends records as [log.Log.AppendRecords] does.
func (l *Log) AppendRecords(ctx context.Context, records ...record.Record) (log.Appended, error) {
	a, err := l.hot.AppendRecords(ctx, records...)
	l.part.Kick()
	return a, err
}

// AppendControl appends the end of a transaction as [log.Log.WriteControl] does, with
// its errors, and returns when it is durable on the local disk. With an error of ctx
// or a [*log.FailedError] it may be in the log.
func (l *Log) AppendControl(ctx context.Context, batch record.Batch) (log.Appended, error) {
	a, err := l.hot.WriteControl(max(l.hot.LastEpoch(), 0), batch)
	if err != nil {
		return log.Appended{}, err
	}
	if _, err := l.hot.Sync(ctx); err != nil {
		return log.Appended{}, err
	}
	l.part.Kick()
	return a, nil
}

// Roll seals the active segment, so that it can age into the store.
func (l *Log) Roll(ctx context.Context) error {
	err := l.hot.Roll(ctx)
	l.part.Kick()
	return err
}

// Start returns the log start. It is that of the state, which the local log
// follows.
func (l *Log) Start() log.Offset { return max(l.part.View().LogStart, l.hot.Start()) }

// End returns the end of what is durable, the offset that the next reader waits
// for.
func (l *Log) End() log.Offset { return l.hot.DurableEnd() }

// Partition returns the cold half, for its view, backlog and status.
func (l *Log) Partition() *Partition { return l.part }

// Manager returns the manager, for its counters.
func (l *Log) Manager() *Manager { return l.manager }

// Read returns whole batches from the one that holds offset from on, up to
// maxBytes but at least one, from the local disk or the object store. Only durable
// records are served. At the end the Slice is empty.
//
// Errors: log.ErrOffsetOutOfRange below Start or above End; those of
// [Partition.Read] but ErrNotTiered, and those of [log.Log.Read].
func (l *Log) Read(ctx context.Context, from log.Offset, maxBytes int) (*Slice, error) {
	for {
		if v := l.part.View(); v.Known && from < v.LogStart {
			return nil, belowStart(from, v.LogStart)
		}
		end := l.hot.DurableEnd()
		if from > end {
			return nil, fmt.Errorf("tier: offset %d is above the end %d: %w", from, end, log.ErrOffsetOutOfRange)
		}
		s, err := l.hot.ReadBelow(ctx, from, end, maxBytes)
		if err == nil {
			return hotSlice(s), nil
		}
		if !errors.Is(err, log.ErrBelowLocalStart) {
			return nil, err
		}
		// It is cold now if it was hot a moment ago: the local start only moves to
		// what the state has finished.
		c, err := l.part.Read(ctx, from, maxBytes)
		if !errors.Is(err, ErrNotTiered) {
			return c, err
		}
		if from < l.hot.LocalStart() {
			return nil, fmt.Errorf("tier: offset %d: %w", from, errGap{l.part.View().TierEnd, l.hot.LocalStart()})
		}
	}
}

// iterBytes is how much Records reads at a time.
const iterBytes = 1 << 20

// Records returns an iterator over the durable records from offset from on, cold
// and hot; it ends at what is the end when it gets there. Control batches are left
// out. An error comes once and last. A Record's slices stay valid. The iterator
// can be used again, and starts at from each time.
func (l *Log) Records(ctx context.Context, from log.Offset) iter.Seq2[log.Record, error] {
	return func(yield func(log.Record, error) bool) {
		for at := from; ; {
			s, err := l.Read(ctx, at, iterBytes)
			if err != nil {
				yield(log.Record{}, err)
				return
			}
			if s.Len() == 0 {
				return
			}
			// The Slice is not released: records share its bytes.
			for b, err := range s.Batches() {
				if err != nil {
					yield(log.Record{}, fmt.Errorf("tier: batch at offset %d: %w", at, err))
					return
				}
				at = b.NextOffset()
				if b.IsControl() {
					continue
				}
				for r, err := range b.Records() {
					if err != nil {
						yield(log.Record{}, fmt.Errorf("tier: records at offset %d: %w", b.BaseOffset(), err))
						return
					}
					if r.Offset >= from && !yield(r, nil) {
						return
					}
				}
			}
		}
	}
}

// Wait returns nil once End is above off. Errors: [log.ErrClosed], a
// [*log.FailedError], or ctx's.
func (l *Log) Wait(ctx context.Context, off log.Offset) error { return l.hot.WaitDurable(ctx, off) }

// OffsetForTime returns the offset of the first record whose time is t or later,
// in the order of offsets, wherever it is; false if there is none.
func (l *Log) OffsetForTime(ctx context.Context, t time.Time) (log.Offset, bool, error) {
	for {
		local, start := l.hot.LocalStart(), l.part.View().LogStart
		if start < local {
			off, ok, err := l.part.offsetForTime(ctx, t, local)
			if ok || err != nil {
				return off, ok, err
			}
		}
		off, ok, err := l.hot.OffsetForTimeFrom(ctx, start, t) // the local log may not have followed yet
		if err != nil || l.hot.LocalStart() == local {
			if off >= l.hot.DurableEnd() {
				ok = false
			}
			return off, ok, err
		}
		// Records turned cold between the two looks.
	}
}

// LastStable returns the last stable offset below End: the first record of the
// oldest transaction whose marker is not durable, or End. What lies below is as
// readers of committed records see it. Errors: those of [log.Log.LastStableBelow].
func (l *Log) LastStable(ctx context.Context) (log.Offset, error) {
	return l.hot.LastStableBelow(ctx, l.hot.DurableEnd())
}

// AbortedTransactions returns the aborted transactions that overlap [from, to): see
// [Partition.AbortedTransactions]. to is at most what LastStable returned.
func (l *Log) AbortedTransactions(ctx context.Context, from, to log.Offset) ([]log.AbortedTxn, error) {
	return l.part.AbortedTransactions(ctx, from, to)
}

// TrimTo moves the log start up to start: readers below it get
// log.ErrOffsetOutOfRange, local files and objects go in the background. It returns
// once the move is durable. Errors: as [Partition.TrimTo].
func (l *Log) TrimTo(ctx context.Context, start log.Offset) error {
	return l.part.TrimTo(ctx, start, "")
}

// Close stops uploads and everything else in the background, and waits for it.
// The local log, the store and the events stay open. It can be called again.
func (l *Log) Close() error {
	l.part.Close()
	return l.manager.Close()
}
