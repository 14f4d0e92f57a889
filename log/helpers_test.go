package log_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cordwood-io/cordwood/log"
)

func mustAppend(t testing.TB, l *log.Log, values ...string) {
	t.Helper()
	if _, err := l.Append(context.Background(), plain(values...)); err != nil {
		t.Fatal(err)
	}
}

func mustWrite(t testing.TB, l *log.Log, values ...string) {
	t.Helper()
	if _, err := l.Write(max(0, l.LastEpoch()), plain(values...)); err != nil {
		t.Fatal(err)
	}
}

func mustClose(t testing.TB, l *log.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// mustCloseAll closes logs and then their disk.
func mustCloseAll(t testing.TB, d *log.Disk, logs ...*log.Log) {
	t.Helper()
	for _, l := range logs {
		mustClose(t, l)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func big(s string, n int) string { return s + strings.Repeat("~", n) }

func readAll(t testing.TB, fs log.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return b
}
