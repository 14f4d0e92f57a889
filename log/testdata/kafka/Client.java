import java.io.File;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.PartitionMetadata;
import org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

/**
 * Drives a broker with Kafka's own client: fills topics, and lists what they hold.
 *
 *   java -cp 'JARS/*' Client.java BOOTSTRAP fill|again PHASE|create TOPIC...|list FOLDER TOPIC...|files FOLDER
 *
 * All times of producers are fixed. Where a segment is to end they step by an hour:
 * with segment.ms below that, the broker rolls by record time. Transaction markers
 * have the broker's time, so that topics with them roll by size.
 */
public class Client {
    static final long T = 1700000000000L, HOUR = 3600_000L;
    static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        switch (args[1]) {
            case "fill" -> fill();
            case "again" -> again(Integer.parseInt(args[2]));
            case "create" -> {
                try (Admin a = admin()) {
                    for (int i = 2; i < args.length; i++) create(a, args[i], "segment.ms", "604800000", "segment.index.bytes", "1048576", "index.interval.bytes", "4096");
                }
            }
            case "files" -> files(new File(args[2]));
            case "list" -> list(new File(args[2]), Arrays.copyOfRange(args, 3, args.length));
            default -> throw new IllegalArgumentException(args[1]);
        }
        System.out.println("done");
        System.exit(0);
    }

    static Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", "60000"));
    }

    static void create(Admin a, String name, String... more) throws Exception {
        Map<String, String> c = new HashMap<>(Map.of(
            "segment.ms", "1800000", "segment.index.bytes", "4096", "index.interval.bytes", "1024",
            "retention.ms", "-1", "file.delete.delay.ms", "100"));
        for (int i = 0; i < more.length; i += 2) c.put(more[i], more[i + 1]);
        a.createTopics(List.of(new NewTopic(name, 1, (short) 1).configs(c))).all().get(60, TimeUnit.SECONDS);
    }

    static KafkaProducer<byte[], byte[]> producer(String... more) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("key.serializer", ByteArraySerializer.class.getName());
        p.put("value.serializer", ByteArraySerializer.class.getName());
        p.put("enable.idempotence", "false");
        p.put("linger.ms", "5000"); // batches end with flush
        p.put("partitioner.ignore.keys", "true");
        for (int i = 0; i < more.length; i += 2) p.put(more[i], more[i + 1]);
        return new KafkaProducer<>(p);
    }

    static byte[] b(String s) { return s == null ? null : s.getBytes(StandardCharsets.UTF_8); }

    static void send(KafkaProducer<byte[], byte[]> p, String topic, long time, String key, String value, Header... headers) {
        p.send(new ProducerRecord<>(topic, 0, time, b(key), b(value), List.of(headers)));
    }

    static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};

    static void fill() throws Exception {
        try (Admin a = admin()) {
            create(a, "codecs");
            create(a, "txn", "segment.ms", "604800000", "internal.segment.bytes", "700");
            create(a, "logtime", "message.timestamp.type", "LogAppendTime");
            create(a, "epochs");
            create(a, "empty");
            create(a, "trimmed");
            create(a, "emptied");
            create(a, "compact", "segment.ms", "604800000", "internal.segment.bytes", "800", "cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.0001", "delete.retention.ms", "86400000");
            for (int c = 0; c < CODECS.length; c++) {
                try (var p = producer("compression.type", CODECS[c])) {
                    for (int batch = 0; batch < 3; batch++) {
                        long t = T + c * HOUR + batch * 1000;
                        send(p, "codecs", t, CODECS[c] + batch, "value of " + CODECS[c]);
                        send(p, "codecs", t + 500, null, "null key", new RecordHeader("h", b("x")), new RecordHeader("h", null), new RecordHeader("", new byte[0]));
                        send(p, "codecs", t - 250, "null value", null); // out of order
                        send(p, "codecs", t + 700, "", "");
                        send(p, "codecs", t + 600, "long", "0123456789abcdef".repeat(90 + batch));
                        p.flush();
                    }
                }
            }
            transactions();
            for (String codec : new String[] {"none", "lz4"}) {
                try (var p = producer("compression.type", codec)) {
                    for (int i = 0; i < 6; i++) {
                        send(p, "logtime", T + i, "k" + i, codec + i);
                        if (i % 3 == 2) p.flush();
                    }
                }
            }
            epochs(0);
            for (String topic : new String[] {"trimmed", "emptied"}) {
                try (var p = producer("enable.idempotence", "true", "acks", "all")) {
                    for (int i = 0; i < 12; i++) {
                        send(p, topic, T + i / 3 * HOUR + i, "k" + i, "v" + i);
                        if (i % 3 == 2) p.flush();
                    }
                }
            }
            TopicPartition trimmed = new TopicPartition("trimmed", 0), emptied = new TopicPartition("emptied", 0);
            a.deleteRecords(Map.of(trimmed, RecordsToDelete.beforeOffset(7), emptied, RecordsToDelete.beforeOffset(-1))).all().get();
            compacted();
        }
    }

    /** Idempotent and transactional producers, two transactions at a time, one over a segment's end, one left open. */
    static void transactions() throws Exception {
        var plain = producer("enable.idempotence", "true", "acks", "all");
        var one = producer("enable.idempotence", "true", "transactional.id", "one");
        var two = producer("enable.idempotence", "true", "transactional.id", "two", "compression.type", "zstd");
        var open = producer("enable.idempotence", "true", "transactional.id", "open", "transaction.timeout.ms", "900000");
        one.initTransactions();
        two.initTransactions();
        open.initTransactions();
        for (int i = 0; i < 3; i++) {
            send(plain, "txn", T + i, "plain" + i, "v");
            plain.flush();
        }
        one.beginTransaction();
        send(one, "txn", T + 10, "one", "committed");
        send(one, "txn", T + 11, "one", "committed");
        one.flush();
        two.beginTransaction();
        send(two, "txn", T + 12, "two", "aborted");
        two.flush();
        send(one, "txn", T + 13, "one", "committed");
        one.commitTransaction();
        send(plain, "txn", T + HOUR, "plain", "in the next segment");
        plain.flush();
        send(two, "txn", T + HOUR + 1, "two", "aborted");
        two.flush();
        one.beginTransaction();
        send(one, "txn", T + HOUR + 2, "one", "aborted");
        one.flush();
        one.abortTransaction();
        two.abortTransaction();
        for (int i = 0; i < 4; i++) {
            two.beginTransaction();
            for (int j = 0; j < 3; j++) send(two, "txn", T + (2 + i / 2) * HOUR + i * 10 + j, "two", i % 2 == 0 ? "aborted" : "committed");
            two.flush();
            if (i % 2 == 0) two.abortTransaction(); else two.commitTransaction();
        }
        open.beginTransaction();
        send(open, "txn", T + 3 * HOUR + 100, "open", "open");
        send(open, "txn", T + 3 * HOUR + 101, "open", "open");
        open.flush();
        send(plain, "txn", T + 3 * HOUR + 102, "plain", "last");
        plain.close();
        one.close();
        two.close();
        open.close(Duration.ZERO); // does not end the transaction
    }

    static void epochs(int phase) {
        try (var p = producer()) {
            for (int i = 0; i < 4; i++) {
                send(p, "epochs", T + phase * HOUR + i, "phase" + phase, "v" + i);
                if (i % 2 == 1) p.flush();
            }
        }
    }

    /** Ten keys over six segments; most records of the first five go, some segments lose all, some batches all. */
    static void compacted() throws Exception {
        int n = 0;
        try (var p = producer("enable.idempotence", "true", "acks", "all", "compression.type", "snappy");
             var tx = producer("enable.idempotence", "true", "transactional.id", "compact")) {
            tx.initTransactions();
            for (int s = 0; s < 6; s++) {
                long t = T + s * HOUR;
                for (int i = 0; i < 10; i++) {
                    // Key 9 stands once, at the end of the first segment; the second segment is wholly replaced.
                    if (i == 9 && s > 0) continue;
                    send(p, "compact", t + i, "k" + i, i == 5 && s == 4 ? null : "segment " + s);
                    if (i % 3 == 2) p.flush();
                }
                p.flush();
                if (s == 1) {
                    // All records of a producer go: its last batch stays, without any.
                    try (var q = producer("enable.idempotence", "true", "acks", "all")) {
                        send(q, "compact", t + 50, "k3", "replaced");
                        send(q, "compact", t + 51, "k4", "replaced");
                    }
                }
                if (s % 2 == 0) {
                    tx.beginTransaction();
                    send(tx, "compact", t + 100, "tx" + s, "kept if committed");
                    send(tx, "compact", t + 101, "k1", "in a transaction");
                    tx.flush();
                    if (s == 2) tx.abortTransaction(); else tx.commitTransaction();
                }
            }
            send(p, "compact", T + 7 * HOUR, "last", "active segment");
            send(p, "compact", T + 7 * HOUR, "last", "active segment");
        }
        // Cleaned: fewer records than were sent.
        TopicPartition tp = new TopicPartition("compact", 0);
        for (int tries = 0; ; tries++) {
            try (var c = consumer("read_uncommitted")) {
                c.assign(List.of(tp));
                c.seekToBeginning(List.of(tp));
                long end = c.endOffsets(List.of(tp)).get(tp);
                n = 0;
                while (c.position(tp) < end) n += c.poll(Duration.ofMillis(500)).count();
                if (n < 30) return;
            }
            if (tries > 20) throw new IllegalStateException(n + " records are left, nothing was compacted");
            Thread.sleep(500);
        }
    }

    /** What is added after the broker was restarted. */
    static void again(int phase) throws Exception {
        epochs(phase);
        try (var p = producer("enable.idempotence", "true", "transactional.id", "open")) {
            p.initTransactions(); // aborts what was left open
            p.beginTransaction();
            send(p, "txn", T + 4 * HOUR, "open", "committed after a restart");
            p.commitTransaction();
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(String isolation) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("key.deserializer", ByteArrayDeserializer.class.getName());
        p.put("value.deserializer", ByteArrayDeserializer.class.getName());
        p.put("isolation.level", isolation);
        p.put("auto.offset.reset", "earliest");
        p.put("default.api.timeout.ms", "60000");
        return new KafkaConsumer<>(p);
    }

    /** Reads and writes the text files of each directory with the broker's own code. */
    static void files(File folder) throws Exception {
        File[] dirs = folder.listFiles();
        Arrays.sort(dirs);
        for (File dir : dirs) {
            LogDirFailureChannel failures = new LogDirFailureChannel(1);
            File epochs = new File(dir, "leader-epoch-checkpoint"), again = File.createTempFile("epochs", "");
            List<EpochEntry> entries = new LeaderEpochCheckpointFile(epochs, failures).read();
            new LeaderEpochCheckpointFile(again, failures).write(entries);
            System.out.printf("%s/%s: %s, written again it is %s\n", dir.getName(), epochs.getName(), entries, compare(epochs, again));
            File metadata = new File(dir, "partition.metadata");
            PartitionMetadata m = new PartitionMetadataFile(metadata, failures).read();
            again.delete();
            PartitionMetadataFile f = new PartitionMetadataFile(again, failures);
            f.record(m.topicId());
            f.maybeFlush();
            System.out.printf("%s/%s: version %d, topic %s, written again it is %s\n", dir.getName(), metadata.getName(), m.version(), m.topicId(), compare(metadata, again));
            again.delete();
        }
    }

    static String compare(File a, File b) throws Exception {
        return Arrays.equals(Files.readAllBytes(a.toPath()), Files.readAllBytes(b.toPath())) ? "the same" : "DIFFERENT: it differs";
    }

    static String hex(byte[] v) { return v == null ? "null" : "x" + HexFormat.of().formatHex(v); }

    static String digest(byte[] v) throws Exception {
        return v == null ? "null" : "x" + HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(v)).substring(0, 16);
    }

    /**
     * Writes one file per topic, lines of words:
     *   start OFFSET / end OFFSET / stable OFFSET
     *   record OFFSET EPOCH TIME KEY SHA256-OF-VALUE HEADER=VALUE...   what a consumer reads
     *   committed OFFSET                                              what it reads of committed ones
     *   time MS OFFSET                                                its answer to offsetsForTimes
     */
    static void list(File folder, String[] topics) throws Exception {
        for (String topic : topics) {
            TopicPartition tp = new TopicPartition(topic, 0);
            try (var out = new PrintWriter(new File(folder, topic + ".txt"), StandardCharsets.UTF_8);
                 var c = consumer("read_uncommitted"); var committed = consumer("read_committed")) {
                c.assign(List.of(tp));
                long end = c.endOffsets(List.of(tp)).get(tp), stable = committed.endOffsets(List.of(tp)).get(tp);
                out.printf("start %d\nend %d\nstable %d\n", c.beginningOffsets(List.of(tp)).get(tp), end, stable);
                c.seekToBeginning(List.of(tp));
                TreeSet<Long> times = new TreeSet<>();
                while (c.position(tp) < end) {
                    for (ConsumerRecord<byte[], byte[]> r : c.poll(Duration.ofMillis(200))) {
                        out.printf("record %d %d %d %s %s", r.offset(), r.leaderEpoch().orElse(-1), r.timestamp(), hex(r.key()), digest(r.value()));
                        for (Header h : r.headers()) out.printf(" %s=%s", hex(b(h.key())), hex(h.value()));
                        out.print("\n");
                        times.add(r.timestamp());
                        times.add(r.timestamp() + 1);
                    }
                }
                committed.assign(List.of(tp));
                committed.seekToBeginning(List.of(tp));
                while (committed.position(tp) < stable) {
                    for (ConsumerRecord<byte[], byte[]> r : committed.poll(Duration.ofMillis(200))) out.printf("committed %d\n", r.offset());
                }
                int n = 0, step = 1 + times.size() / 100;
                for (long t : times.tailSet(0L)) {
                    if (n++ % step != 0) continue;
                    OffsetAndTimestamp o = c.offsetsForTimes(Map.of(tp, t)).get(tp);
                    out.printf("time %d %d\n", t, o == null ? -1 : o.offset());
                }
            }
        }
    }
}
