package log_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Tests that need Kafka's own programs run only with -kafka.jars; .ci/run gets
// them with Maven.
var (
	kafkaJars = flag.String("kafka.jars", "", "folder with the jars of Kafka's broker, tools and client")
	kafkaMake = flag.Bool("kafka.make", false, "have a broker write testdata/kafka/broker anew")
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
	return exec.CommandContext(t.Context(), "java", args...)
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
	ctx, cancel := context.WithTimeout(b.t.Context(), 3*time.Minute)
	defer cancel()
	c := java(b.t, append([]string{"testdata/kafka/Client.java", b.address}, args...)...)
	c = exec.CommandContext(ctx, c.Path, c.Args[1:]...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		b.t.Fatalf("client %v: %v\n%s\nbroker:\n%s", args, err, tail(out.String()), tail(b.out.String()))
	}
}

var kafkaTopics = []string{"codecs", "txn", "logtime", "epochs", "empty", "trimmed", "emptied", "compact"}

// TestKafkaMake has a broker write the directories that TestKafkaDirectories opens:
// killed holds them after kill -9, clean after more was added and the broker had
// been stopped in order.
func TestKafkaMake(t *testing.T) {
	if !*kafkaMake {
		t.Skip("no -kafka.make")
	}
	if runtime.GOOS == "windows" {
		t.Skip("no signals")
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
			var files []string
			names, err := filepath.Glob(filepath.Join(from, "*.*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range names {
				switch filepath.Ext(n) {
				case ".log", ".snapshot", ".txnindex":
					files = append(files, n)
				}
			}
			text := run(t, java(t, "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", strings.Join(files, ",")))
			text = strings.ReplaceAll(text, from+string(filepath.Separator), "")
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
