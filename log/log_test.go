package log_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

func batch(t testing.TB, values ...string) []byte {
	t.Helper()
	var b record.Builder
	for _, v := range values {
		if err := b.Append(record.Record{Value: []byte(v)}); err != nil {
			t.Fatal(err)
		}
	}
	x, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte(nil), x.Bytes()...)
}

func open(t testing.TB, fs log.FS, o log.Options) *log.Log {
	t.Helper()
	o.FS = fs
	l, err := log.Open(context.Background(), "/data/p", o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func values(t testing.TB, l *log.Log, from log.Offset) []string {
	t.Helper()
	var out []string
	next := from
	for r, err := range l.Records(context.Background(), from) {
		if err != nil {
			t.Fatalf("records from %d: %v", from, err)
		}
		if r.Offset != next {
			t.Fatalf("got offset %d, want %d", r.Offset, next)
		}
		next++
		out = append(out, string(r.Value))
	}
	return out
}

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	fs := logtest.NewFS(1)
	l := open(t, fs, log.Options{SegmentBytes: 8 << 10})
	var want []string
	for i := range 1000 {
		v := fmt.Sprintf("value %d", i)
		want = append(want, v)
		a, err := l.Append(ctx, batch(t, v))
		if err != nil {
			t.Fatal(err)
		}
		if a.Base != log.Offset(i) {
			t.Fatal(a)
		}
	}
	check := func(l *log.Log) {
		t.Helper()
		got := values(t, l, l.LocalStart())
		if fmt.Sprint(got) != fmt.Sprint(want[l.LocalStart():]) {
			t.Fatalf("got %d, want %d", len(got), len(want))
		}
		for i := int(l.LocalStart()); i < len(want); i += 7 {
			s, err := l.Read(ctx, log.Offset(i), 100)
			if err != nil || s.Base() != log.Offset(i) {
				t.Fatal(i, err)
			}
			s.Release()
		}
	}
	check(l)
	t.Log(len(l.Segments()), l.Stats())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, fs, log.Options{SegmentBytes: 8 << 10})
	if r := l.Recovery(); !r.Clean || r.End != 1000 {
		t.Fatal(r)
	}
	check(l)
	if err := l.DropLocal(ctx, 300); err != nil {
		t.Fatal(err)
	}
	check(l)
	t.Log(l.Start(), l.LocalStart())
	if _, err := l.Read(ctx, 0, 100); !errors.Is(err, log.ErrBelowLocalStart) {
		t.Fatal(err)
	}
	if end, err := l.TruncateTo(ctx, 500); err != nil || end != 500 {
		t.Fatal(end, err)
	}
	want = want[:500]
	check(l)
	for i := range 20 {
		want = append(want, fmt.Sprint("new ", i))
		if _, err := l.Append(ctx, batch(t, want[len(want)-1])); err != nil {
			t.Fatal(err)
		}
	}
	check(l)
	fs = fs.Crash()
	l = open(t, fs, log.Options{SegmentBytes: 8 << 10})
	t.Logf("%+v", l.Recovery())
	check(l)
	if err := l.Reset(ctx, 5000, []log.EpochStart{{3, 10}}, nil); err != nil {
		t.Fatal(err)
	}
	if l.End() != 5000 || l.LocalStart() != 5000 || l.Start() != 0 || l.LastEpoch() != 3 {
		t.Fatal(l.Stats())
	}
	a, err := l.Append(ctx, batch(t, "x", "y"))
	if err != nil || a.Base != 5000 || a.End != 5002 || a.Epoch != 3 {
		t.Fatal(a, err)
	}
	fs = fs.Crash()
	l = open(t, fs, log.Options{SegmentBytes: 8 << 10})
	t.Logf("%+v", l.Recovery())
	if got := values(t, l, 5000); len(got) != 2 {
		t.Fatal(got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
