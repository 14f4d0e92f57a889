package log_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

func TestRetention(t *testing.T) {
	const day = 24 * time.Hour
	now := time.Date(2030, 5, 1, 0, 0, 0, 0, time.UTC)
	// Ten records a segment, 100 bytes each; sealed 9, 8, … days ago; the last one is
	// active.
	var plainSegs []log.Segment
	for i := range 10 {
		sealed := now.Add(-time.Duration(9-i) * day)
		plainSegs = append(plainSegs, log.Segment{Base: log.Offset(10 * i), End: log.Offset(10*i + 10), Bytes: 1000, Sealed: true, SealedAt: sealed, MaxTimestamp: sealed.Add(-time.Minute)})
	}
	plainSegs[9].Sealed, plainSegs[9].SealedAt = false, time.Time{}
	stamped := func(i int, at time.Time) []log.Segment {
		s := append([]log.Segment(nil), plainSegs...)
		s[i].MaxTimestamp = at
		return s
	}
	for _, c := range []struct {
		name  string
		r     log.Retention
		segs  []log.Segment
		start log.Offset
		below log.Offset
		to    log.Offset
		cause log.RetentionCause
		next  time.Duration // from now, 0 for never
	}{
		{"everything stays", log.Retention{}, plainSegs, 0, 100, 0, log.RetentionNone, 0},
		{"bytes", log.Retention{Bytes: 3000}, plainSegs, 0, 100, 70, log.RetentionBytes, 0},
		{"bytes between", log.Retention{Bytes: 3001}, plainSegs, 0, 100, 60, log.RetentionBytes, 0},
		{"the active one stays", log.Retention{Bytes: 1}, plainSegs, 0, 100, 90, log.RetentionBytes, 0},
		{"never above the watermark", log.Retention{Bytes: 1}, plainSegs, 0, 35, 30, log.RetentionBytes, 0},
		{"what is below the start does not count", log.Retention{Bytes: 5000}, plainSegs, 50, 100, 50, log.RetentionNone, 0},
		{"age", log.Retention{Age: 4 * day}, plainSegs, 0, 100, 60, log.RetentionAge, day},
		{"age and watermark", log.Retention{Age: 4 * day}, plainSegs, 0, 20, 20, log.RetentionAge, 0},
		{"record age", log.Retention{RecordAge: 4 * day}, plainSegs, 0, 100, 60, log.RetentionRecordAge, day - time.Minute},
		{"short record age", log.Retention{RecordAge: time.Hour}, plainSegs, 0, 100, 90, log.RetentionRecordAge, 0},
		{"the first rule of any", log.Retention{RecordAge: 4 * day, Age: 2 * day}, plainSegs, 0, 100, 80, log.RetentionAge, day},
		{"stamped in the future", log.Retention{RecordAge: 4 * day}, stamped(2, now.Add(9000*day)), 0, 100, 60, log.RetentionRecordAge, day - time.Minute},
		{"stamped in the past", log.Retention{RecordAge: 4 * day}, stamped(6, now.Add(-9000*day)), 0, 100, 70, log.RetentionRecordAge, 2*day - time.Minute},
		{"stamped in the past, sealed now", log.Retention{RecordAge: 4 * day}, []log.Segment{
			{Base: 0, End: 10, Bytes: 10, Sealed: true, SealedAt: now, MaxTimestamp: now.Add(-9000 * day)}, {Base: 10, End: 20, Bytes: 10},
		}, 0, 100, 0, log.RetentionNone, day},
		{"the same without grace", log.Retention{RecordAge: 4 * day, Grace: -1}, []log.Segment{
			{Base: 0, End: 10, Bytes: 10, Sealed: true, SealedAt: now, MaxTimestamp: now.Add(-9000 * day)}, {Base: 10, End: 20, Bytes: 10},
		}, 0, 100, 10, log.RetentionRecordAge, 0},
		{"no record time", log.Retention{RecordAge: day}, []log.Segment{
			{Base: 0, End: 10, Bytes: 10, Sealed: true, SealedAt: now.Add(-day)}, {Base: 10, End: 20, Bytes: 10},
		}, 0, 100, 10, log.RetentionRecordAge, 0},
		{"nothing", log.Retention{Bytes: 1, Age: 1, RecordAge: 1}, nil, 5, 100, 5, log.RetentionNone, 0},
	} {
		to, cause, next := c.r.TrimPoint(c.segs, c.start, c.below, now)
		want := time.Time{}
		if c.next != 0 {
			want = now.Add(c.next)
		}
		if to != c.to || cause != c.cause || !next.Equal(want) {
			t.Errorf("%s: got %d, %v, %v, want %d, %v, %v", c.name, to, cause, next, c.to, c.cause, want)
		}
		// A second pass finds nothing (KAFKA-12177).
		if again, cause, _ := c.r.TrimPoint(c.segs, to, c.below, now); again != to || cause != log.RetentionNone {
			t.Errorf("%s: a second pass: got %d, %v", c.name, again, cause)
		}
	}
	if got := fmt.Sprint(log.RetentionNone, log.RetentionBytes, log.RetentionAge, log.RetentionRecordAge, log.RetentionCause(9)); got != "none bytes age record age cause(9)" {
		t.Errorf("got %s", got)
	}
}

// TestRetain keeps a log of one segment an hour short.
func TestRetain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := logtest.NewFS(1)
		o := log.Options{SegmentAge: time.Hour}
		l := open(t, fs, o)
		future := time.Now().AddDate(50, 0, 0)
		r := log.Retention{RecordAge: 3 * time.Hour, Grace: time.Hour}
		for i := range 10 {
			if _, err := l.AppendRecords(t.Context(), log.Record{Timestamp: future, Value: []byte("v")}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if rolled, err := l.RollAged(t.Context()); err != nil || !rolled {
				t.Fatal(rolled, err)
			}
			high := log.Offset(8)
			to, cause, err := l.Retain(t.Context(), r, high)
			// The segment of hour i was sealed at its end.
			want := min(max(0, log.Offset(i)-2), high)
			if err != nil || to != want || l.Start() != want || cause != log.RetentionNone != (want > max(0, log.Offset(i)-3)) {
				t.Errorf("hour %d: got %d, %v, %v, want %d", i, to, cause, err, want)
			}
			if i == 5 { // seal times are on disk
				mustClose(t, l)
				l = open(t, fs, o)
			}
		}
		time.Sleep(100 * time.Hour)
		if to, cause, err := l.Retain(t.Context(), r, 8); err != nil || to != 8 || cause != log.RetentionRecordAge {
			t.Errorf("got %d, %v, %v", to, cause, err)
		}
		mustWrite(t, l, "not durable")
		if to, _, err := l.Retain(t.Context(), log.Retention{Bytes: 1}, 1000); err != nil || to != 10 {
			t.Errorf("got %d, %v", to, err)
		}
		mustClose(t, l)
		if _, _, err := l.Retain(t.Context(), log.Retention{}, 8); err != nil {
			t.Errorf("got %v", err)
		}
	})
}
