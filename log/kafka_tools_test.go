package log_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// Tests that need Kafka's own programs run only with -kafka.jars; .ci/run gets
// them with Maven.
var (
	kafkaJars    = flag.String("kafka.jars", "", "folder with the jars of Kafka's broker, tools and client")
	kafkaMake    = flag.Bool("kafka.make", false, "have a broker write testdata/kafka/broker anew")
	kafkaRewrite = flag.Bool("kafka.rewrite", false, "write testdata/kafka/tools anew")
)

// java returns a command that runs a Java program with Kafka's jars.
func java(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if *kafkaJars == "" {
		t.Skip("no -kafka.jars")
	}
	jars, err := filepath.Abs(*kafkaJars)
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(jars, "*")}, args...)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, "java", args...)
}

func run(t *testing.T, c *exec.Cmd) string {
	t.Helper()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %v\n%s%s", c.Args[len(c.Args)-1], err, tail(out.String()), tail(errs.String()))
	}
	return out.String()
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

// A broker is one real Kafka broker that is its own controller, on the loopback
// interface.
type broker struct {
	t       *testing.T
	dir     string // of the partitions
	address string
	cmd     *exec.Cmd
	out     *bytes.Buffer
}

// newBroker formats a broker's folder.
func newBroker(t *testing.T) *broker {
	t.Helper()
	root := t.TempDir()
	b := &broker{t: t, dir: filepath.Join(root, "data")}
	ports := make([]string, 2)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = l.Addr().String()
	}
	b.address = ports[0]
	properties := fmt.Sprintf(`process.roles=broker,controller
node.id=1
controller.quorum.voters=1@%[2]s
listeners=PLAINTEXT://%[1]s,CONTROLLER://%[2]s
advertised.listeners=PLAINTEXT://%[1]s
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=%[3]s
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.threads=1
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=500
log.retention.check.interval.ms=500
log.flush.offset.checkpoint.interval.ms=500
log.flush.start.offset.checkpoint.interval.ms=500
num.network.threads=1
num.io.threads=2
controlled.shutdown.enable=true
`, ports[0], ports[1], filepath.ToSlash(b.dir))
	if err := os.WriteFile(filepath.Join(root, "server.properties"), []byte(properties), 0o666); err != nil {
		t.Fatal(err)
	}
	run(t, java(t, "kafka.tools.StorageTool", "format", "-t", "Q29yZHdvb2RDb3Jkd29vZA", "-c", filepath.Join(root, "server.properties")))
	return b
}

func (b *broker) start() {
	b.t.Helper()
	b.cmd = java(b.t, "kafka.Kafka", filepath.Join(filepath.Dir(b.dir), "server.properties"))
	b.out = new(bytes.Buffer)
	b.cmd.Stdout, b.cmd.Stderr = b.out, b.out
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.stop(os.Kill) })
	deadline := time.Now().Add(time.Minute)
	for {
		c, err := net.DialTimeout("tcp", b.address, time.Second)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			b.stop(os.Kill)
			b.t.Fatalf("the broker does not listen: %v\n%s", err, tail(b.out.String()))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// stop ends the broker with a signal: SIGTERM stops it in order.
func (b *broker) stop(s os.Signal) {
	if b.cmd == nil {
		return
	}
	b.cmd.Process.Signal(s) //nolint:errcheck // it may be gone
	done := make(chan error, 1)
	cmd := b.cmd
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		b.t.Errorf("the broker does not stop\n%s", tail(b.out.String()))
		cmd.Process.Kill() //nolint:errcheck // it may be gone
		<-done
	}
	b.cmd = nil
}

// client runs testdata/kafka/Client.java.
func (b *broker) client(args ...string) {
	b.t.Helper()
	c := java(b.t, append([]string{filepath.Join("testdata", "kafka", "Client.java"), b.address}, args...)...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		b.t.Fatalf("client %v: %v\n%s\nbroker:\n%s", args, err, tail(out.String()), tail(b.out.String()))
	}
}

// dump runs Kafka's dump tool over files of a folder, and returns what it says
// without the folder's name.
func dump(t *testing.T, dir string, files []string, options ...string) string {
	t.Helper()
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = filepath.Join(dir, filepath.FromSlash(f))
	}
	args := append([]string{"org.apache.kafka.tools.DumpLogSegments", "--files", strings.Join(paths, ",")}, options...)
	text := strings.ReplaceAll(run(t, java(t, args...)), dir+string(filepath.Separator), "")
	return strings.ReplaceAll(text, "\r\n", "\n")
}

// filesOf returns the names of a folder's files with one of the suffixes, sorted,
// with slashes.
func filesOf(t *testing.T, dir string, suffixes ...string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) }) {
			name, err = filepath.Rel(dir, name)
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var kafkaTopics = []string{"codecs", "txn", "logtime", "epochs", "empty", "trimmed", "emptied", "compact"}

// TestKafkaMake has a broker write the directories that TestKafkaDirectories opens:
// killed holds them after kill -9, clean after more was added and the broker had
// been stopped in order.
func TestKafkaMake(t *testing.T) {
	if !*kafkaMake {
		t.Skip("no -kafka.make")
	}
	b := newBroker(t)
	to := filepath.Join("testdata", "kafka", "broker")
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	save := func(variant string) {
		for _, topic := range kafkaTopics {
			from := filepath.Join(b.dir, topic+"-0")
			if err := os.CopyFS(filepath.Join(to, variant, topic+"-0"), os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
			// The tool fails on indexes that a broker has preallocated.
			text := dump(t, from, filesOf(t, from, ".log", ".snapshot", ".txnindex"), "--deep-iteration")
			if err := os.WriteFile(filepath.Join(to, variant, topic+".dump"), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(variant string) {
		if err := os.MkdirAll(filepath.Join(to, variant), 0o777); err != nil {
			t.Fatal(err)
		}
		b.client(append([]string{"list", filepath.Join(to, variant)}, kafkaTopics...)...)
	}
	b.start()
	b.client("fill")
	list("killed")
	b.stop(syscall.SIGKILL)
	save("killed")
	b.start()
	b.client("again", "1")
	b.stop(syscall.SIGTERM)
	b.start()
	b.client("again", "2")
	list("clean")
	b.stop(syscall.SIGTERM)
	save("clean")
}

const kafkaTime = 1700000000000 // of the first record of our logs

// A kafkaWriter makes a log for Kafka's tools: its bytes are the same in every run.
type kafkaWriter struct {
	t *testing.T
	l *log.Log
	n int // batches so far
}

func (w *kafkaWriter) write(epoch log.Epoch, b record.Batch) {
	w.t.Helper()
	if _, err := w.l.Write(epoch, b.Bytes()); err != nil {
		w.t.Fatal(err)
	}
	w.n++
}

func (w *kafkaWriter) control(epoch log.Epoch, b record.Batch) {
	w.t.Helper()
	if _, err := w.l.WriteControl(epoch, b); err != nil {
		w.t.Fatal(err)
	}
	w.n++
}

// batch makes a batch of records of all kinds. Every seventh is older than the one
// before.
func (w *kafkaWriter) batch(records int) *record.Builder {
	w.t.Helper()
	b := new(record.Builder)
	for i := range records {
		at := kafkaTime + int64(w.n*1000+i)
		if w.n%7 == 3 {
			at -= 5000
		}
		r := record.Record{Timestamp: time.UnixMilli(at), Value: bytes.Repeat([]byte{byte('a' + w.n%26)}, 1+w.n*37%900)}
		switch (w.n + i) % 4 {
		case 0:
			r.Key = fmt.Appendf(nil, "key %d", w.n)
		case 1:
			r.Headers = []record.Header{{Key: "h", Value: []byte("x")}, {Key: "null"}}
		case 2:
			r.Key, r.Value = []byte{}, nil
		}
		if err := b.Append(r); err != nil {
			w.t.Fatal(err)
		}
	}
	return b
}

func (w *kafkaWriter) build(b *record.Builder) record.Batch {
	w.t.Helper()
	x, err := b.Build()
	if err != nil {
		w.t.Fatal(err)
	}
	return x
}

// plain writes two epochs.
func (w *kafkaWriter) plain() {
	for epoch := range log.Epoch(2) {
		w.control(epoch, record.LeaderChange(epoch, 1, []int32{1, 2, 300}, time.UnixMilli(kafkaTime+int64(w.n*1000))))
		for i := range 60 {
			w.write(epoch, w.build(w.batch(1+i%3)))
		}
	}
}

// transactions writes two producers with transactions at a time, and an idempotent
// one: aborted ones over the ends of segments, and one that stays open.
func (w *kafkaWriter) transactions() {
	type producer struct {
		id    int64
		epoch int16
		next  int32
	}
	send := func(p *producer, records int, transactional bool) {
		b := w.batch(records)
		b.SetProducer(p.id, p.epoch, p.next)
		if transactional {
			b.SetTransactional()
		}
		w.write(0, w.build(b))
		p.next += int32(records)
	}
	end := func(p *producer, commit bool) {
		w.control(0, record.EndTxn(commit, p.id, p.epoch, 7, time.UnixMilli(kafkaTime+int64(w.n*1000))))
	}
	one, two, idle := &producer{id: 1001}, &producer{id: 1002, epoch: 4}, &producer{id: 5}
	for i := range 40 {
		send(idle, 1, false)
		send(one, 1+i%3, true)
		if i%3 > 0 {
			send(two, 2, true)
		}
		if i%4 == 3 {
			end(one, i%8 == 3)
		}
		if i%5 == 4 {
			end(two, i%2 == 0)
			if i%10 == 9 {
				two.epoch, two.next = two.epoch+1, 0
			}
		}
	}
	end(one, false)
	send(one, 3, true)
}

// compressed writes the batches of record/testdata, which Kafka's client has
// compressed: what our compressors make may change with their versions.
func (w *kafkaWriter) compressed() {
	next := int32(0)
	for _, line := range lines(w.t, filepath.Join("record", "testdata", "kafka-clients-4.3.1.txt")) {
		name, digits, _ := strings.Cut(line, " ")
		if !slices.Contains([]string{"none", "gzip", "snappy", "lz4", "zstd"}, name) {
			continue
		}
		raw, err := hex.DecodeString(digits)
		if err != nil {
			w.t.Fatal(err)
		}
		b, _, err := record.Next(raw, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		b.SetProducer(77, 0, next)
		next += int32(b.Count())
		w.write(1, b)
	}
	w.control(1, record.EndTxn(true, 77, 0, 0, time.UnixMilli(kafkaTime)))
}

// kafkaLogs are the logs that Kafka's tools look at. All are closed in order.
var kafkaLogs = []struct {
	name   string
	o      log.Options
	fill   func(w *kafkaWriter)
	remake bool // without the files beside the segments, from the batches
}{
	{"plain", log.Options{SegmentBytes: 16 << 10}, (*kafkaWriter).plain, false},
	{"transactions", log.Options{SegmentBytes: 16 << 10}, (*kafkaWriter).transactions, false},
	{"compressed", log.Options{}, (*kafkaWriter).compressed, false},
	{"appendtime", log.Options{SegmentBytes: 16 << 10, LogAppendTime: true}, (*kafkaWriter).plain, false},
	{"empty", log.Options{}, func(*kafkaWriter) {}, false},
	{"rolled", log.Options{SegmentBytes: 16 << 10}, func(w *kafkaWriter) {
		w.plain()
		if err := w.l.Roll(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}, false},
	{"trimmed", log.Options{SegmentBytes: 16 << 10}, func(w *kafkaWriter) {
		w.transactions()
		if err := w.l.TrimTo(w.t.Context(), 100); err != nil {
			w.t.Fatal(err)
		}
	}, false},
	{"truncated", log.Options{SegmentBytes: 16 << 10}, func(w *kafkaWriter) {
		w.plain()
		if _, err := w.l.TruncateTo(w.t.Context(), 100); err != nil {
			w.t.Fatal(err)
		}
		for range 20 {
			w.write(1, w.build(w.batch(2)))
		}
	}, false},
	{"remade", log.Options{SegmentBytes: 16 << 10}, (*kafkaWriter).transactions, true},
}

// writeKafkaLogs makes the logs in a folder. Times of ours are those of a bubble.
func writeKafkaLogs(t *testing.T, dir string, topic func(name string) log.TopicID) {
	t.Helper()
	for _, c := range kafkaLogs {
		at := filepath.Join(dir, c.name+"-0")
		synctest.Test(t, func(t *testing.T) {
			o := c.o
			o.Partition = log.PartitionID{Topic: topic(c.name)}
			o.ProducerExpiry = -1
			open := func() *log.Log {
				l, err := log.Open(t.Context(), at, o)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			l := open()
			c.fill(&kafkaWriter{t: t, l: l})
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if !c.remake {
				return
			}
			for _, f := range filesOf(t, at, "index", ".snapshot", ".seal", ".state", "cordwood.clean", "checkpoint") {
				if err := os.Remove(filepath.Join(at, f)); err != nil {
					t.Fatal(err)
				}
			}
			if err := open().Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// kafkaSuffixes are of the files that Kafka knows.
var kafkaSuffixes = []string{".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "partition.metadata"}

// TestKafkaFiles holds that our files are, byte for byte, those that Kafka's tools
// have looked at: testdata/kafka/tools has their hashes beside what the tools say.
// With -kafka.jars the tools look again.
func TestKafkaFiles(t *testing.T) {
	dir := t.TempDir()
	writeKafkaLogs(t, dir, func(name string) log.TopicID {
		return log.TopicID([]byte(name + "................")[:16])
	})
	files := filesOf(t, dir, kafkaSuffixes...)
	var sums strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(f)))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b), f)
	}
	same(t, "SHA256SUMS", sums.String())
	if *kafkaJars == "" {
		return
	}
	indexes := filesOf(t, dir, ".index", ".timeindex")
	for name, text := range map[string]string{
		"batches.txt":    dump(t, dir, filesOf(t, dir, ".log"), "--deep-iteration"),
		"indexes.txt":    dump(t, dir, indexes),
		"verify.txt":     dump(t, dir, indexes, "--verify-index-only"),
		"sanity.txt":     dump(t, dir, indexes, "--index-sanity-check"),
		"producers.txt":  dump(t, dir, filesOf(t, dir, ".snapshot", ".txnindex")),
		"text-files.txt": strings.ReplaceAll(run(t, java(t, filepath.Join("testdata", "kafka", "Client.java"), "-", "files", dir)), "\r\n", "\n"),
	} {
		for line := range strings.Lines(text) {
			for _, bad := range []string{"ismatch", "out of order", "isvalid: false", "non-consecutive", "Could not", "corrupt", "differs", "rror", "xception"} {
				if strings.Contains(line, bad) {
					t.Errorf("%s: %s", name, line)
				}
			}
		}
		same(t, name, text)
	}
}

// same compares a text with a file of testdata/kafka/tools.
func same(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "kafka", "tools", name)
	if *kafkaRewrite {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := lines(t, path)
	for i, line := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
		if i >= len(want) || line != want[i] {
			t.Errorf("%s, line %d: %q, want %q: if that is meant, have Kafka's tools look again, with -kafka.jars FOLDER -kafka.rewrite", name, i+1, line, append(want, "")[min(i, len(want))])
			return
		}
	}
	if n := strings.Count(got, "\n"); n != len(want) {
		t.Errorf("%s has %d lines, want %d", name, n, len(want))
	}
}

// TestKafkaServes puts our directories into the place of a real broker's, which
// serves them to its consumer as they are; then it has the broker make all files
// beside the segments anew, which are ours to the byte.
func TestKafkaServes(t *testing.T) {
	b := newBroker(t)
	b.start()
	var names []string
	for _, c := range kafkaLogs {
		names = append(names, c.name)
	}
	b.client(append([]string{"create"}, names...)...)
	b.stop(syscall.SIGTERM)

	ours := t.TempDir()
	writeKafkaLogs(t, ours, func(name string) log.TopicID {
		line := lines(t, filepath.Join(b.dir, name+"-0", "partition.metadata"))[1]
		id, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(line, "topic_id: "))
		if err != nil || len(id) != 16 {
			t.Fatalf("%q: %v", line, err)
		}
		return log.TopicID(id)
	})
	remake := filesOf(t, ours, ".index", ".timeindex", ".txnindex", ".snapshot")
	// Kafka recovers without what was known of producers at the start of a log: a
	// transaction that goes over it begins there.
	remake = slices.DeleteFunc(remake, func(f string) bool {
		return strings.HasPrefix(f, "trimmed-0/") && !strings.HasSuffix(f, ".index") && !strings.HasSuffix(f, ".timeindex")
	})
	for _, name := range names {
		to := filepath.Join(b.dir, name+"-0")
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(to, os.DirFS(filepath.Join(ours, name+"-0"))); err != nil {
			t.Fatal(err)
		}
	}
	out := t.TempDir()
	b.start()
	b.client(append([]string{"list", out}, names...)...)
	b.stop(syscall.SIGKILL)
	dumped := make(map[string]string)
	name := ""
	for line := range strings.Lines(dump(t, ours, filesOf(t, ours, ".log", ".snapshot", ".txnindex"), "--deep-iteration")) {
		if file, ok := strings.CutPrefix(line, "Dumping "); ok {
			name, _, _ = strings.Cut(file, "-0"+string(filepath.Separator))
		}
		dumped[name] += line
	}
	for _, c := range kafkaLogs {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(ours, c.name+"-0")
			if err := os.WriteFile(filepath.Join(out, c.name+".dump"), []byte(dumped[c.name]), 0o666); err != nil {
				t.Fatal(err)
			}
			k := readKafkaListing(t, filepath.Join(out, c.name), dir)
			o := c.o
			o.ReadOnly = true
			l, err := log.Open(t.Context(), dir, o)
			if err != nil {
				t.Fatal(err)
			}
			k.check(t, l, k.stable)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}

	// Only without its checkpoint does a broker that was killed read old segments.
	for _, f := range append(remake, filesOf(t, b.dir, "recovery-point-offset-checkpoint")...) {
		if err := os.Remove(filepath.Join(b.dir, filepath.FromSlash(f))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	b.start()
	b.client("list", t.TempDir(), names[0]) // all logs are recovered before the first is served
	b.stop(syscall.SIGTERM)
	for _, f := range remake {
		want, err := os.ReadFile(filepath.Join(ours, filepath.FromSlash(f)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(b.dir, filepath.FromSlash(f)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the broker's %d bytes %x, ours %x (%v)", f, len(got), got[:min(len(got), 200)], want[:min(len(want), 200)], err)
		}
	}
}
