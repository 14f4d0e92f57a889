package log

import (
	"context"
	"fmt"
	"time"
)

// DefaultRetentionGrace is the default of [Retention].Grace.
const DefaultRetentionGrace = 24 * time.Hour

// Retention says what of a log is kept. Whole sealed segments go, oldest first, when
// one of its rules says so. The zero value keeps everything.
//
// Source: Kafka's retention.bytes and retention.ms. Kafka knows record time only: one
// record stamped in the future keeps its segment and all later ones (KAFKA-18929),
// and one stamped in the past is deleted as soon as its segment is sealed.
type Retention struct {
	// Bytes keeps the newest Bytes of batches: a segment goes when what follows it has
	// as many. 0 means no bound.
	Bytes int64

	// Age lets a segment go this long after it was sealed, by the clock of the machine
	// that sealed it. 0 means never.
	Age time.Duration

	// RecordAge lets a segment go when its newest record is this old by the record's
	// own time. Time in the future of the seal counts as the seal's. 0 means never.
	RecordAge time.Duration

	// Grace is how long RecordAge keeps a segment after it was sealed, whatever its
	// records say; RecordAge itself if that is shorter. 0 means DefaultRetentionGrace,
	// negative none.
	Grace time.Duration
}

// A RetentionCause is the rule by which a segment goes.
type RetentionCause uint8

// The rules of [Retention].
const (
	RetentionNone RetentionCause = iota
	RetentionBytes
	RetentionAge
	RetentionRecordAge
)

// String returns the cause in one or two words.
func (c RetentionCause) String() string {
	switch c {
	case RetentionNone:
		return "none"
	case RetentionBytes:
		return "bytes"
	case RetentionAge:
		return "age"
	case RetentionRecordAge:
		return "record age"
	}
	return fmt.Sprintf("cause(%d)", uint8(c))
}

// Expires judges the oldest segment s, when it and all that follows have total
// bytes of batches. RetentionNone means that it stays; then next is when its age
// will let it go, zero if never. A segment that is not sealed stays.
func (r Retention) Expires(s Segment, total int64, now time.Time) (cause RetentionCause, next time.Time) {
	if !s.Sealed {
		return RetentionNone, time.Time{}
	}
	if r.Bytes > 0 && total-s.Bytes >= r.Bytes {
		return RetentionBytes, time.Time{}
	}
	due := func(c RetentionCause, at time.Time) {
		if !now.Before(at) {
			cause = c
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if r.RecordAge > 0 {
		newest := s.MaxTimestamp
		if newest.IsZero() || newest.After(s.SealedAt) {
			newest = s.SealedAt
		}
		grace := r.Grace
		if grace == 0 {
			grace = DefaultRetentionGrace
		}
		at, held := newest.Add(r.RecordAge), s.SealedAt.Add(min(grace, r.RecordAge))
		if grace > 0 && held.After(at) {
			at = held
		}
		due(RetentionRecordAge, at)
	}
	if r.Age > 0 {
		due(RetentionAge, s.SealedAt.Add(r.Age))
	}
	if cause != RetentionNone {
		next = time.Time{}
	}
	return cause, next
}

// TrimPoint returns the log start that r asks for: the end of the newest of the
// segments that go, or start when none does, and the rule by which that one goes.
// Segments are those of [Log.Segments]; none goes that ends above below, the high
// watermark of a replicated log. next is when time alone will let more go, zero if
// never.
func (r Retention) TrimPoint(segments []Segment, start, below Offset, now time.Time) (to Offset, cause RetentionCause, next time.Time) {
	total := int64(0)
	for _, s := range segments {
		if s.End > start {
			total += s.Bytes
		}
	}
	to = start
	for _, s := range segments {
		if s.End <= start {
			continue
		}
		if s.End > below {
			break
		}
		c, at := r.Expires(s, total, now)
		if c == RetentionNone {
			next = at
			break
		}
		total -= s.Bytes
		to, cause = s.End, c
	}
	return to, cause, next
}

// Retain trims the log to where r says, at most to below (the high watermark; End where
// there are no replicas) and to the durable end, and returns the new start and the rule; RetentionNone if nothing goes. It is TrimTo of what TrimPoint returns
// by the local clock, with its errors. A log that grows slowly seals no segment by
// itself: call RollAged before.
func (l *Log) Retain(ctx context.Context, r Retention, below Offset) (Offset, RetentionCause, error) {
	to, cause, _ := r.TrimPoint(l.Segments(), l.Start(), min(below, l.DurableEnd()), time.Now())
	if cause == RetentionNone {
		return l.Start(), cause, nil
	}
	if err := l.TrimTo(ctx, to); err != nil {
		return l.Start(), RetentionNone, err
	}
	return to, cause, nil
}
