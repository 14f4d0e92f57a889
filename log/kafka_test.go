package log_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
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

// A kafkaListing is what Kafka itself says of a partition: testdata/kafka/broker
// holds it beside each directory. TOPIC.txt is of Kafka's consumer (Client.java),
// TOPIC.dump of its dump tool.
type kafkaListing struct {
	start, end, stable log.Offset
	records            map[log.Offset]string // time, key, value, headers as the consumer shows them
	committed          []log.Offset
	times              [][2]int64 // time, offset
	batches            []map[string]string
	aborted            []log.AbortedTxn      // of its transaction indexes
	markers            map[log.Offset]string // type by offset of a control batch
	chain              []log.EpochStart
	topic              string
	bytes              int64
}

func (k *kafkaListing) offsets() (all []log.Offset) {
	for o := range k.records {
		all = append(all, o)
	}
	slices.Sort(all)
	return all
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func lines(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// readKafkaListing reads base.txt, base.dump, and the text files of a directory.
func readKafkaListing(t *testing.T, base, dir string) *kafkaListing {
	t.Helper()
	k := &kafkaListing{records: make(map[log.Offset]string), markers: make(map[log.Offset]string)}
	for _, line := range lines(t, base+".txt") {
		w := strings.Split(line, " ")
		o := log.Offset(number(t, w[1]))
		switch w[0] {
		case "start":
			k.start = o
		case "end":
			k.end = o
		case "stable":
			k.stable = o
		case "record":
			k.records[o] = strings.Join(w[2:], " ")
		case "committed":
			k.committed = append(k.committed, o)
		case "time":
			k.times = append(k.times, [2]int64{number(t, w[1]), number(t, w[2])})
		default:
			t.Fatalf("line %q", line)
		}
	}
	for _, line := range lines(t, base+".dump") {
		if !strings.HasPrefix(line, "baseOffset:") && !strings.HasPrefix(line, "|") && !strings.Contains(line, "lastStableOffset:") {
			continue
		}
		fields := make(map[string]string)
		w := strings.Fields(line)
		for i := 0; i+1 < len(w); i++ {
			if name, ok := strings.CutSuffix(w[i], ":"); ok {
				fields[name] = w[i+1]
			}
		}
		if m, ok := fields["endTxnMarker"]; ok {
			k.markers[log.Offset(number(t, fields["offset"]))] = strings.ToLower(m)
		}
		if _, ok := fields["LeaderChange"]; ok {
			k.markers[log.Offset(number(t, fields["offset"]))] = "leader change"
		}
		if s, ok := fields["lastStableOffset"]; ok {
			k.aborted = append(k.aborted, log.AbortedTxn{
				Producer: number(t, fields["producerId"]), First: log.Offset(number(t, fields["firstOffset"])),
				Last: log.Offset(number(t, fields["lastOffset"])), LastStable: log.Offset(number(t, s)),
			})
		}
		if _, ok := fields["baseOffset"]; ok {
			k.batches = append(k.batches, fields)
			k.bytes += number(t, fields["size"])
		}
	}
	epochs := lines(t, filepath.Join(dir, "leader-epoch-checkpoint"))
	for _, line := range epochs[2:] {
		e, o, _ := strings.Cut(line, " ")
		k.chain = append(k.chain, log.EpochStart{Epoch: log.Epoch(number(t, e)), Start: log.Offset(number(t, o))})
	}
	// A log start inside the first segment is not in the directory: what lies below it
	// counts for us.
	if len(k.batches) > 0 {
		first := log.EpochStart{Epoch: log.Epoch(number(t, k.batches[0]["partitionLeaderEpoch"])), Start: log.Offset(number(t, k.batches[0]["baseOffset"]))}
		if first.Start < k.start && k.chain[0].Epoch == first.Epoch {
			k.chain[0] = first
		} else if first.Start < k.start {
			k.chain = slices.Insert(k.chain, 0, first)
		}
	}
	_, k.topic, _ = strings.Cut(lines(t, filepath.Join(dir, "partition.metadata"))[1], ": ")
	return k
}

// endOffset is Kafka's answer for an epoch, after LeaderEpochFileCache.endOffsetFor.
func (k *kafkaListing) endOffset(e log.Epoch) (log.Epoch, log.Offset) {
	epoch, end := log.Epoch(-1), log.Offset(-1)
	if e < 0 {
		return epoch, end
	}
	for i, c := range k.chain {
		switch {
		case c.Epoch <= e:
			epoch, end = c.Epoch, k.end
			if i+1 < len(k.chain) {
				end = k.chain[i+1].Start
			}
		case epoch < 0:
			return e, c.Start
		}
	}
	return epoch, end
}

func shown(r log.Record, epoch log.Epoch) string {
	show := func(b []byte) string {
		if b == nil {
			return "null"
		}
		return "x" + hex.EncodeToString(b)
	}
	value := "null"
	if r.Value != nil {
		sum := sha256.Sum256(r.Value)
		value = "x" + hex.EncodeToString(sum[:8])
	}
	ms := record.NoTimestamp
	if !r.Timestamp.IsZero() {
		ms = r.Timestamp.UnixMilli()
	}
	w := []string{strconv.Itoa(int(epoch)), strconv.FormatInt(ms, 10), show(r.Key), value}
	for _, h := range r.Headers {
		w = append(w, show([]byte(h.Key))+"="+show(h.Value))
	}
	return strings.Join(w, " ")
}

// fieldsOf describes a batch as the dump tool does.
func fieldsOf(b record.Batch) map[string]string {
	codec := b.Compression().String()
	time := "CreateTime"
	if b.IsLogAppendTime() {
		time = "LogAppendTime"
	}
	horizon := "OptionalLong.empty"
	if b.Attributes()&(1<<6) != 0 {
		horizon = fmt.Sprintf("OptionalLong[%d]", b.BaseTimestamp())
	}
	crc := uint32(0)
	for _, c := range b.Bytes()[17:21] {
		crc = crc<<8 | uint32(c)
	}
	m := map[string]string{"compresscodec": codec, "deleteHorizonMs": horizon, "isvalid": strconv.FormatBool(b.Verify() == nil), "magic": "2"}
	for name, v := range map[string]any{
		"baseOffset": b.BaseOffset(), "lastOffset": b.LastOffset(), "count": b.Count(), "baseSequence": b.BaseSequence(),
		"lastSequence": b.LastSequence(), "producerId": b.ProducerID(), "producerEpoch": b.ProducerEpoch(),
		"partitionLeaderEpoch": b.LeaderEpoch(), "isTransactional": b.IsTransactional(), "isControl": b.IsControl(),
		time: b.MaxTimestamp(), "size": b.Size(), "crc": crc,
	} {
		m[name] = fmt.Sprint(v)
	}
	return m
}

// check compares all that a log tells with what Kafka says.
func (k *kafkaListing) check(t *testing.T, l *log.Log, stable log.Offset) {
	t.Helper()
	ctx := t.Context()
	if l.Start() > k.start || l.End() != k.end || l.DurableEnd() != k.end || l.LastStable() != stable {
		t.Errorf("log [%d, %d), durable end %d, stable %d; Kafka has [%d, %d), %d", l.Start(), l.End(), l.DurableEnd(), l.LastStable(), k.start, k.end, stable)
	}
	if r := l.Recovery(); r.Lossy || r.CutBytes != 0 || r.End != k.end {
		t.Errorf("recovery %+v", r)
	}

	// Batches, and the records in them.
	i := 0
	got := make(map[log.Offset]string)
	for at := l.Start(); at < l.End(); {
		s, err := l.Read(ctx, at, 300) // a few at a time
		if err != nil {
			t.Fatalf("read at %d: %v", at, err)
		}
		if s.Len() == 0 && s.End() <= at {
			t.Fatalf("nothing at %d, end is %d", at, l.End())
		}
		for b, err := range s.Batches() {
			if err != nil || i >= len(k.batches) {
				t.Fatalf("batch %d: %v", i, err)
			}
			want := k.batches[i]
			i++
			fields := fieldsOf(b)
			for name, v := range want {
				if name != "position" && fields[name] != v {
					t.Errorf("batch at %d has %s %q, Kafka says %q", b.BaseOffset(), name, fields[name], v)
				}
			}
			if c, err := b.ControlType(); b.IsControl() && (err != nil || c.String() != k.markers[b.BaseOffset()]) {
				t.Errorf("control batch at %d is %v (%v), Kafka says %s", b.BaseOffset(), c, err, k.markers[b.BaseOffset()])
			}
			for r, err := range b.Records() {
				if err != nil {
					t.Fatal(err)
				}
				if !b.IsControl() && r.Offset >= k.start {
					got[r.Offset] = shown(r, b.LeaderEpoch())
				}
			}
		}
		at = s.End()
		s.Release()
	}
	if i != len(k.batches) {
		t.Errorf("%d batches, Kafka has %d", i, len(k.batches))
	}
	for o, want := range k.records {
		if got[o] != want {
			t.Errorf("record %d is %q, Kafka's consumer has %q", o, got[o], want)
		}
	}
	if len(got) != len(k.records) {
		t.Errorf("%d records, Kafka's consumer has %d", len(got), len(k.records))
	}
	offsets := k.offsets()
	var all []log.Offset
	for r, err := range l.Records(ctx, k.start) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r.Offset)
	}
	if !slices.Equal(all, offsets) {
		t.Errorf("Records gives %v, want %v", all, offsets)
	}

	// A read anywhere begins with the batch there, or with the first one behind.
	for at := k.start; at < k.end; at++ {
		want := log.Offset(-1)
		for _, b := range k.batches {
			if log.Offset(number(t, b["lastOffset"])) >= at {
				want = log.Offset(number(t, b["baseOffset"]))
				break
			}
		}
		s, err := l.Read(ctx, at, 1)
		if err != nil || want >= 0 && (s.Base() != want || s.Len() == 0) || want < 0 && (s.Len() != 0 || s.End() != k.end) {
			t.Errorf("read at %d: [%d, %d), %d bytes, %v; want a batch at %d", at, s.Base(), s.End(), s.Len(), err, want)
		}
	}

	k.checkTransactions(t, l)

	// Kafka counts transaction markers in a search by time; we don't.
	for _, q := range k.times {
		want := log.Offset(q[1])
		if _, ok := k.markers[want]; ok {
			at := slices.IndexFunc(offsets, func(o log.Offset) bool {
				return o > want && number(t, strings.Split(k.records[o], " ")[1]) >= q[0]
			})
			want = -1
			if at >= 0 {
				want = offsets[at]
			}
		}
		o, ok, err := l.OffsetForTime(ctx, time.UnixMilli(q[0]))
		if err != nil || ok != (want >= 0) || ok && o != want && o >= k.start {
			t.Errorf("OffsetForTime(%d) = %d, %v, %v; Kafka says %d", q[0], o, ok, err, want)
		}
	}

	if v, err := l.Verify(ctx, log.VerifyOptions{}); err != nil || !v.OK() || int(v.Batches) != len(k.batches) {
		t.Errorf("verification %+v, %v", v, err)
	}

	for e := range log.Epoch(8) {
		e--
		epoch, end := l.EndOffset(e)
		wantEpoch, wantEnd := k.endOffset(e)
		if epoch != wantEpoch || end != wantEnd {
			t.Errorf("EndOffset(%d) = %d, %d; Kafka says %d, %d", e, epoch, end, wantEpoch, wantEnd)
		}
	}
	last := log.Epoch(-1)
	if n := len(k.chain); n > 0 {
		last = k.chain[n-1].Epoch
	}
	if l.LastEpoch() != last {
		t.Errorf("last epoch %d, Kafka says %d", l.LastEpoch(), last)
	}
	var bytes int64
	for i, s := range l.Segments() {
		bytes += s.Bytes
		if i > 0 && s.Base != l.Segments()[i-1].End {
			t.Errorf("segments %+v", l.Segments())
		}
	}
	if bytes != k.bytes {
		t.Errorf("segments have %d bytes, Kafka's %d", bytes, k.bytes)
	}
}

// checkTransactions compares what is aborted with Kafka's index, and what is left
// with what its consumer reads of committed records.
func (k *kafkaListing) checkTransactions(t *testing.T, l *log.Log) {
	t.Helper()
	ctx := t.Context()
	aborted, err := l.AbortedTransactions(ctx, l.LocalStart(), k.end)
	if err != nil {
		t.Fatal(err)
	}
	byMarker := slices.SortedFunc(slices.Values(aborted), func(a, b log.AbortedTxn) int { return int(a.Last - b.Last) })
	// Compaction removes aborted records, which then needn't be left out.
	if !slices.Equal(byMarker, k.aborted) && len(k.records) > 0 && !k.gaps() {
		t.Errorf("aborted %v, Kafka has %v", byMarker, k.aborted)
	}
	var got []log.Offset
	for at := k.start; at < k.stable; {
		s, err := l.Read(ctx, at, 1)
		if err != nil {
			t.Fatal(err)
		}
		aborted, err := l.AbortedTransactions(ctx, at, min(s.End(), k.stable))
		if err != nil {
			t.Fatal(err)
		}
		for b, err := range s.Batches() {
			if err != nil {
				t.Fatal(err)
			}
			void := slices.ContainsFunc(aborted, func(a log.AbortedTxn) bool {
				return a.Producer == b.ProducerID() && a.First <= b.BaseOffset() && b.BaseOffset() <= a.Last
			})
			if b.IsControl() || b.IsTransactional() && void {
				continue
			}
			for r, err := range b.Records() {
				if err != nil {
					t.Fatal(err)
				}
				if r.Offset >= k.start && r.Offset < k.stable {
					got = append(got, r.Offset)
				}
			}
		}
		at = s.End()
	}
	if !slices.Equal(got, k.committed) {
		t.Errorf("committed records %v, Kafka's consumer has %v", got, k.committed)
	}
}

// gaps reports whether offsets are missing between batches.
func (k *kafkaListing) gaps() bool {
	next := ""
	for _, b := range k.batches {
		if next != "" && b["baseOffset"] != next {
			return true
		}
		last, _ := strconv.Atoi(b["lastOffset"])
		next = strconv.Itoa(last + 1)
	}
	return false
}

// frozenFS fails the test when something would be changed.
type frozenFS struct {
	log.FS
	t *testing.T
}

func (f frozenFS) bad(op, name string) error {
	f.t.Errorf("%s %s", op, name)
	return errors.ErrUnsupported
}
func (f frozenFS) Create(n string) (log.File, error) { return nil, f.bad("create", n) }
func (f frozenFS) Remove(n string) error             { return f.bad("remove", n) }
func (f frozenFS) Rename(n, _ string) error          { return f.bad("rename", n) }
func (f frozenFS) Link(n, _ string) error            { return f.bad("link", n) }
func (f frozenFS) MkdirAll(n string) error           { return f.bad("make", n) }
func (f frozenFS) Lock(n string) (io.Closer, error)  { return nil, f.bad("lock", n) }
func (f frozenFS) Open(n string, write bool) (log.File, error) {
	if write {
		return nil, f.bad("open for writing", n)
	}
	return f.FS.Open(n, false)
}

// content returns the SHA-256 of every file in a folder.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		sum := sha256.Sum256(b)
		out[d.Name()] = hex.EncodeToString(sum[:])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refused checks that no change gets through.
func refused(t *testing.T, l *log.Log) {
	t.Helper()
	ctx := t.Context()
	_, appendErr := l.Append(ctx, batch(t, "x"))
	_, recordsErr := l.AppendRecords(ctx, log.Record{Value: []byte("x")})
	_, writeErr := l.Write(9, batch(t, "x"))
	_, controlErr := l.WriteControl(9, record.LeaderChange(9, 1, []int32{1}, time.UnixMilli(1)))
	b, _, err := record.Next(batch(t, "x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	b.SetBaseOffset(l.End())
	b.SetLeaderEpoch(9)
	_, replicatedErr := l.AppendReplicated(b.Bytes())
	_, truncateErr := l.TruncateTo(ctx, l.LocalStart())
	_, agedErr := l.RollAged(ctx)
	_, repairErr := l.Repair(ctx, 0, l.End(), nil)
	for i, err := range []error{
		appendErr, recordsErr, writeErr, controlErr, replicatedErr, truncateErr, agedErr,
		l.TrimTo(ctx, l.End()), l.DropLocal(ctx, l.End()), l.Reset(ctx, 5, nil, nil), l.Roll(ctx), repairErr,
	} {
		if !errors.Is(err, log.ErrOpenedReadOnly) {
			t.Errorf("change %d: %v", i, err)
		}
	}
	if end, err := l.Sync(ctx); err != nil || end != l.End() {
		t.Errorf("Sync = %d, %v", end, err)
	}
}

// lastLog returns the file of the active segment.
func lastLog(t *testing.T, dir string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return slices.Max(all)
}

// TestKafkaDirectories opens what a real broker (4.3.1) has written, after kill -9
// and after an orderly stop.
func TestKafkaDirectories(t *testing.T) {
	for _, variant := range []string{"killed", "clean"} {
		for _, topic := range kafkaTopics {
			t.Run(variant+"/"+topic, func(t *testing.T) {
				base := filepath.Join("testdata", "kafka", "broker", variant, topic)
				k := readKafkaListing(t, base, base+"-0")
				dir := filepath.Join(t.TempDir(), topic+"-0")
				if err := os.CopyFS(dir, os.DirFS(base+"-0")); err != nil {
					t.Fatal(err)
				}
				before := content(t, dir)
				ctx := context.Background()
				l, err := log.Open(ctx, dir, log.Options{ReadOnly: true, FS: frozenFS{log.OSFS{}, t}})
				if err != nil {
					t.Fatal(err)
				}
				k.check(t, l, k.stable)
				refused(t, l)
				if id, err := log.ParseTopicID(l.Partition().Topic.String()); err != nil || id.IsZero() {
					t.Errorf("partition %v, %v", l.Partition(), err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}

				l, err = log.Open(ctx, dir, log.Options{})
				if topic == "compact" {
					if gap, ok := errors.AsType[*log.GapError](err); !ok || gap.End <= gap.Offset || k.records[gap.Offset] != "" {
						t.Errorf("open for writing: %v", err)
					}
					if after := content(t, dir); fmt.Sprint(after) != fmt.Sprint(before) {
						t.Errorf("files were changed: %v, before %v", after, before)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				k.check(t, l, k.stable)
				a, err := l.Append(ctx, batch(t, "ours"))
				if err != nil || a.Base != k.end {
					t.Fatalf("append: %+v, %v", a, err)
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				id := l.Partition()
				if l, err = log.Open(ctx, dir, log.Options{Partition: id}); err != nil {
					t.Fatal(err)
				}
				k.records[a.Base] = ""
				var all []log.Offset
				for r, err := range l.Records(ctx, k.start) {
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, r.Offset)
				}
				if want := k.offsets(); !slices.Equal(all, want) {
					t.Errorf("records %v, want %v", all, want)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				// What we have made of the batches is what Kafka had made of them. In a restart
				// it forgets producers whose records are old.
				after := content(t, dir)
				for name, sum := range before {
					switch ext := filepath.Ext(name); {
					case name == filepath.Base(lastLog(t, dir)):
					case ext == ".log", ext == ".txnindex", ext == ".snapshot" && variant == "killed":
						if after[name] != sum {
							t.Errorf("%s is not Kafka's any more", name)
						}
					}
				}
				if got := lines(t, filepath.Join(dir, "partition.metadata"))[1]; got != "topic_id: "+k.topic {
					t.Errorf("partition.metadata has %q, want the id %s", got, k.topic)
				}
			})
		}
	}
}
