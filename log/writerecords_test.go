package log_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/log/record"
)

// TestWriteRecords: what WriteRecords and AppendRecords write is what Write and Append
// do with the same records in a batch.
func TestWriteRecords(t *testing.T) {
	at := time.UnixMilli(1234567)
	records := []record.Record{
		{Timestamp: at, Key: []byte("k"), Value: []byte("v"), Headers: []record.Header{{Key: "h", Value: []byte("x")}}},
		{Timestamp: at.Add(time.Second)},
	}
	read := func(write func(l *log.Log, batch []byte) (log.Appended, error)) []byte {
		t.Helper()
		var b record.Builder
		for _, r := range records {
			if err := b.Append(r); err != nil {
				t.Fatal(err)
			}
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		l, err := log.Open(t.Context(), "/p", log.Options{FS: logtest.NewFS(1)})
		if err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, l)
		for range 2 {
			a, err := write(l, batch.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if a.End-a.Base != 2 || a.End != l.End() {
				t.Errorf("got %+v, end %d", a, l.End())
			}
		}
		s, err := l.Read(t.Context(), 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Release()
		return bytes.Clone(s.Bytes())
	}
	want := read(func(l *log.Log, b []byte) (log.Appended, error) { return l.Write(0, b) })
	for name, write := range map[string]func(l *log.Log, batch []byte) (log.Appended, error){
		"Append":        func(l *log.Log, b []byte) (log.Appended, error) { return l.Append(t.Context(), b) },
		"WriteRecords":  func(l *log.Log, _ []byte) (log.Appended, error) { return l.WriteRecords(0, records...) },
		"AppendRecords": func(l *log.Log, _ []byte) (log.Appended, error) { return l.AppendRecords(t.Context(), records...) },
	} {
		if got := read(write); !bytes.Equal(got, want) {
			t.Errorf("%s: got %x, want %x", name, got, want)
		}
	}
}

// TestWriteRecordsRefuses: no records, and too many bytes, are refused with nothing
// written, and the memory that was used for them serves other calls.
func TestWriteRecordsRefuses(t *testing.T) {
	l, err := log.Open(t.Context(), "/p", log.Options{FS: logtest.NewFS(1), MaxBatchBytes: 1000, Epoch: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, l)
	large := record.Record{Value: make([]byte, 1000)}
	for range 3 {
		for _, write := range []func(...record.Record) (log.Appended, error){
			func(r ...record.Record) (log.Appended, error) { return l.AppendRecords(t.Context(), r...) },
			func(r ...record.Record) (log.Appended, error) { return l.WriteRecords(3, r...) },
		} {
			if _, err := write(); !errors.Is(err, log.ErrInvalidBatch) {
				t.Errorf("no records: %v", err)
			}
			if _, err := write(large); !errors.Is(err, log.ErrTooLarge) {
				t.Errorf("too many bytes: %v", err)
			}
		}
		if l.End() != 0 {
			t.Fatalf("end is %d", l.End())
		}
	}
	if _, err := l.WriteRecords(3, record.Record{Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.WriteRecords(2, record.Record{Value: []byte("x")}); !errors.Is(err, log.ErrFenced) {
		t.Errorf("got %v", err)
	}
}

// TestAppendRecordsTogether: calls at once don't get each other's bytes.
func TestAppendRecordsTogether(t *testing.T) {
	l, err := log.Open(t.Context(), "/p", log.Options{FS: logtest.NewFS(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, l)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				v := fmt.Sprintf("%d-%d-%s", w, i, bytes.Repeat([]byte{byte('a' + w)}, 10*i))
				a, err := l.AppendRecords(t.Context(), record.Record{Value: []byte(v)})
				if err != nil {
					t.Error(err)
					return
				}
				s, err := l.Read(t.Context(), a.Base, 1)
				if err != nil {
					t.Error(err)
					return
				}
				for b, err := range s.Batches() {
					if err != nil {
						t.Error(err)
						break
					}
					for r, err := range b.Records() {
						if err != nil || string(r.Value) != v {
							t.Errorf("at %d: %q, %v, want %q", a.Base, r.Value, err, v)
						}
					}
				}
				s.Release()
			}
		})
	}
	wg.Wait()
}
