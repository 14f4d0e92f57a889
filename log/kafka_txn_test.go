package log_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// snapshotEntries cuts a snapshot into its producers, whose order is that of a hash
// map in Kafka.
func snapshotEntries(t *testing.T, b []byte) (producers []string) {
	t.Helper()
	if len(b) < 10 || len(b) != 10+46*int(binary.BigEndian.Uint32(b[6:])) || binary.BigEndian.Uint16(b) != 1 {
		t.Fatalf("snapshot %x", b)
	}
	for p := b[10:]; len(p) > 0; p = p[46:] {
		producers = append(producers, string(p[:46]))
	}
	slices.Sort(producers)
	return producers
}

// TestKafkaProducerFiles: the snapshots and transaction indexes that we write for a
// real broker's batches are the broker's own, byte for byte.
func TestKafkaProducerFiles(t *testing.T) {
	snapshots, indexes, entries := 0, 0, 0
	for _, variant := range []string{"killed", "clean"} {
		for _, topic := range kafkaTopics {
			if topic == "compact" { // opens to be read only
				continue
			}
			t.Run(variant+"/"+topic, func(t *testing.T) {
				theirs := filepath.Join("testdata", "kafka", "broker", variant, topic+"-0")
				dir := filepath.Join(t.TempDir(), topic+"-0")
				if err := os.CopyFS(dir, os.DirFS(theirs)); err != nil {
					t.Fatal(err)
				}
				names, err := filepath.Glob(filepath.Join(theirs, "*.*"))
				if err != nil {
					t.Fatal(err)
				}
				var first string // the snapshot that ours must begin from
				for _, n := range names {
					if strings.HasSuffix(n, ".log") {
						first = strings.TrimSuffix(filepath.Base(n), ".log") + ".snapshot"
						break
					}
				}
				for _, n := range names {
					// Ours must come from the batches.
					if ext := filepath.Ext(n); ext == ".txnindex" || ext == ".snapshot" && filepath.Base(n) != first {
						if err := os.Remove(filepath.Join(dir, filepath.Base(n))); err != nil {
							t.Fatal(err)
						}
					}
				}
				l, err := log.Open(context.Background(), dir, log.Options{})
				if err != nil {
					t.Fatal(err)
				}
				last := l.Segments()[len(l.Segments())-1]
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				for _, n := range names {
					ext := filepath.Ext(n)
					if ext != ".txnindex" && ext != ".snapshot" {
						continue
					}
					want, err := os.ReadFile(n)
					if err != nil {
						t.Fatal(err)
					}
					got, err := os.ReadFile(filepath.Join(dir, filepath.Base(n)))
					if ext == ".txnindex" {
						// Kafka makes the file when it may need it.
						if len(want) == 0 && errors.Is(err, fs.ErrNotExist) {
							continue
						}
						indexes++
						entries += len(want) / 34
						if err != nil || !bytes.Equal(got, want) {
							t.Errorf("%s: %x, %v, want %x", filepath.Base(n), got, err, want)
						}
						continue
					}
					if errors.Is(err, fs.ErrNotExist) && !isBase(dir, n) && !strings.HasPrefix(filepath.Base(n), number20(last.End)) {
						continue // of a stop before
					}
					snapshots++
					if err != nil {
						t.Error(err)
						continue
					}
					gotAll := snapshotEntries(t, got)
					wantAll := snapshotEntries(t, want)
					// The broker was started again: it then forgets producers whose record
					// times, which the test set to a past year, are more than a day old.
					gotAll = slices.DeleteFunc(gotAll, func(p string) bool {
						at := time.UnixMilli(int64(binary.BigEndian.Uint64([]byte(p[26:34]))))
						return at.Year() < 2026 && !slices.Contains(wantAll, p)
					})
					if !slices.Equal(gotAll, wantAll) {
						t.Errorf("%s: %x, want %x", filepath.Base(n), got, want)
					}
				}
			})
		}
	}
	if snapshots < 5 || indexes < 2 || entries < 2 {
		t.Errorf("compared %d snapshots, %d transaction indexes with %d entries", snapshots, indexes, entries)
	}
}

func number20(off log.Offset) string {
	const digits = "00000000000000000000"
	s := strconv.FormatInt(int64(off), 10)
	return digits[:20-len(s)] + s
}

func isBase(dir, snapshot string) bool {
	_, err := os.Stat(filepath.Join(dir, strings.TrimSuffix(filepath.Base(snapshot), ".snapshot")+".log"))
	return err == nil
}

// TestKafkaSnapshotIsRead: where there is no state file, as in a directory of
// Kafka's, the snapshot at the first segment says what producers did before: the
// last batch of each, open transactions, epochs. A damaged one says nothing.
func TestKafkaSnapshotIsRead(t *testing.T) {
	ctx := context.Background()
	make := func(t *testing.T) string {
		dir := t.TempDir()
		l, err := log.Open(ctx, dir, log.Options{SegmentBytes: 1 << 10})
		if err != nil {
			t.Fatal(err)
		}
		write := func(b []byte) {
			t.Helper()
			if _, err := l.Append(ctx, b); err != nil {
				t.Fatal(err)
			}
		}
		write(sequenced(4, 2, 0, "a", "b"))
		write(sequenced(4, 2, 2, "c", "d", "e"))
		write((txnBatch{base: 5, end: 7, id: 9, epoch: 1, kind: kindTxn}).bytes().Bytes())
		if err := l.Roll(ctx); err != nil {
			t.Fatal(err)
		}
		write(sequenced(5, 0, 0, "f"))
		if _, err := l.WriteControl(0, record.EndTxn(false, 9, 1, 6, time.UnixMilli(7))); err != nil {
			t.Fatal(err)
		}
		if err := l.TrimTo(ctx, 7); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		// What Kafka leaves behind:
		names, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if ext := filepath.Ext(n.Name()); ext == ".state" || ext == ".seal" || strings.HasPrefix(n.Name(), "cordwood.") {
				if err := os.Remove(filepath.Join(dir, n.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
		return dir
	}
	t.Run("whole", func(t *testing.T) {
		dir := make(t)
		for _, life := range []string{"first", "second"} {
			// The batches have no time, by which Kafka tells age.
			l, err := log.Open(ctx, dir, log.Options{ProducerExpiry: -1})
			if err != nil {
				t.Fatal(err)
			}
			if l.Start() != 7 || l.End() != 9 || l.LastStable() != 9 {
				t.Errorf("%s: got [%d, %d), last stable offset %d", life, l.Start(), l.End(), l.LastStable())
			}
			want := []log.AbortedTxn{{Producer: 9, First: 5, Last: 8, LastStable: 9}}
			if got, err := l.AbortedTransactions(ctx, 7, 9); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: got aborted %v, %v", life, got, err)
			}
			if low, err := l.LastStableBelow(ctx, 8); err != nil || low != 5 {
				t.Errorf("%s: got last stable offset %d, %v below the marker", life, low, err)
			}
			if a, err := l.Write(0, sequenced(4, 2, 2, "c", "d", "e")); err != nil || !a.Duplicate || a.Base != 2 || a.End != 5 {
				t.Errorf("%s: last batch again: %+v, %v", life, a, err)
			}
			if _, err := l.Write(0, sequenced(4, 2, 0, "a", "b")); !errors.Is(err, log.ErrDuplicateUnknownOffset) {
				t.Errorf("%s: batch before: %v", life, err)
			}
			if _, err := l.Write(0, sequenced(4, 1, 0, "x")); !errors.Is(err, log.ErrProducerFenced) {
				t.Errorf("%s: old epoch: %v", life, err)
			}
			if _, err := l.WriteControl(0, record.EndTxn(true, 9, 1, 5, time.UnixMilli(7))); !errors.Is(err, log.ErrCoordinatorFenced) {
				t.Errorf("%s: old coordinator: %v", life, err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
	for name, change := range map[string]func(b []byte) []byte{
		"flipped": func(b []byte) []byte { b[20] ^= 1; return b },
		"cut":     func(b []byte) []byte { return b[:30] },
		"empty":   func(b []byte) []byte { return nil },
		"version": func(b []byte) []byte { b[1] = 2; return b },
		"count":   func(b []byte) []byte { binary.BigEndian.PutUint32(b[6:], 1<<31-1); return b },
	} {
		t.Run(name, func(t *testing.T) {
			dir := make(t)
			file := filepath.Join(dir, number20(7)+".snapshot")
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, change(b), 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := log.Open(ctx, dir, log.Options{ProducerExpiry: -1})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Write(0, sequenced(4, 2, 5, "f")); !errors.Is(err, log.ErrUnknownProducer) {
				t.Errorf("got %v", err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
