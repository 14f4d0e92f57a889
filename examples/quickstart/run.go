package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

const (
	topicName    = "lines"
	segmentBytes = 1 << 20

	batchBytes   = 128 << 10 // a batch is closed at this size
	batchRecords = 2000      // or at this many records

	// killInFlight is how many records must be under way when the leader is
	// killed, if the input and the pipeline allow it.
	killInFlight = 1000

	// stuckAfter ends the run when nothing was acknowledged for so long.
	stuckAfter = 30 * time.Second
	// fullAfter ends it when the disks have been full for so long.
	fullAfter = 3 * time.Second
	// syncPatience is how long the restarted node may make no progress.
	syncPatience = 30 * time.Second
)

// A session is one run of the program.
type session struct {
	o      options
	stderr io.Writer
	dir    string
	in     *input
	fleet  *fleet
	host   *cordwood.Node
	topic  *cordwood.Topic
	ledger *ledger
	store  *lateStore
	bar    *bar

	before  storeCounts
	ranges  int64 // finished before this run
	r       report
	killed  *process
	killAt  time.Time
	acked   int   // records of the ledger that are acknowledged
	sent    int64 // bytes of the input that were sent
	ackedAt time.Time
}

// run does everything. The report is nil when the run did not come to its end.
func run(ctx context.Context, o options, stdin io.Reader, stderr io.Writer) (_ *report, err error) {
	begin := time.Now()
	debug.SetMemoryLimit(2 * nodeMemory)
	s := &session{o: o, stderr: stderr, dir: o.dir}
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "cordwood-quickstart-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	} else if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	if s.in, err = openInput(ctx, o.in, stdin, s.dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.in.close()) }()
	// A line that can't be a record is found before anything is started.
	if err := s.in.lines(func([]byte, int) error { return ctx.Err() }); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	if err := s.recall(ctx); err != nil {
		return nil, err
	}
	appendBegin := time.Now()
	if err := s.append(ctx); err != nil {
		return nil, err
	}
	s.r.AppendMBPerS = float64(s.in.bytes) / 1e6 / time.Since(appendBegin).Seconds()
	cold := s.age(ctx)
	if cold != nil && ctx.Err() != nil {
		return nil, cold
	}
	if err := s.verify(ctx); err != nil {
		return nil, err
	}
	if cold == nil {
		s.count(ctx)
	}
	s.r.Seconds = time.Since(begin).Seconds()
	if err := s.stop(); err != nil {
		return nil, err
	}
	s.r.PeakRSSBytes = s.fleet.peak() + ownPeakRSS()
	if !s.r.ok() {
		return &s.r, fmt.Errorf("the topic is not what was appended: %d lost, %d changed, %d duplicated", s.r.Lost, s.r.Changed, s.r.Duplicated)
	}
	return &s.r, cold
}

func (s *session) say(format string, args ...any) {
	s.bar.pause()
	fmt.Fprintf(s.stderr, format+"\n", args...)
}

// start brings the cluster, the host's node and the topic up.
func (s *session) start(ctx context.Context) (err error) {
	s.host, err = cordwood.Open(ctx, cordwood.Options{
		ID: 100, Dir: filepath.ToSlash(filepath.Join(s.dir, "host")), NoReplicas: true,
	})
	if errors.Is(err, cordwood.ErrDirectoryInUse) {
		return fmt.Errorf("directory %s is in use by another run", s.dir)
	}
	if err != nil {
		return err
	}
	if s.ledger, err = openLedger(filepath.Join(s.dir, "ledger")); err != nil {
		return err
	}
	s.acked = len(s.ledger.hashes)
	s.store = &lateStore{dir: filepath.Join(s.dir, "store"), url: s.o.s3}
	if err := s.store.settle(ctx, s.dir); err != nil {
		return err
	}
	s.before = readCounts(ctx, s.store)
	if s.fleet, err = startFleet(ctx, s.dir, s.o.s3); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.host.Join(short, s.fleet.addrs()...); err != nil {
		return err
	}
	if err := s.host.Ready(short); err != nil {
		return fmt.Errorf("the cluster does not get ready: %w", err)
	}
	for _, p := range s.fleet.processes {
		if _, err := p.ask(short, nodeRequest{Op: "ready", Seconds: 30}); err != nil {
			return err
		}
	}
	tenant := s.host.Tenant("")
	s.topic = tenant.Topic(topicName)
	err = tenant.CreateTopic(short, topicName, cordwood.TopicConfig{Replication: 3, MinISR: 2, SegmentBytes: segmentBytes})
	if err != nil && !errors.Is(err, cordwood.ErrTopicExists) {
		return err
	}
	_, err = s.topic.Offsets(short, 0)
	return err
}

// recall verifies what earlier runs left, and takes into the ledger what an
// interrupted one had appended and not noted: all of it, if that was the first.
func (s *session) recall(ctx context.Context) error {
	if n := len(s.ledger.hashes); n > 0 {
		s.say("verifying %d records of earlier runs", n)
	}
	v, err := s.readAll(ctx, sha256.New().Write)
	if err != nil {
		return err
	}
	if lost := v.lost(); lost+v.changed+v.duplicated > 0 {
		return fmt.Errorf("records of earlier runs: %d lost, %d changed, %d duplicated", lost, v.changed, v.duplicated)
	}
	if len(v.extra) > 0 {
		s.say("%d records of an interrupted run were appended and not noted", len(v.extra))
		s.ledger.hashes = append(s.ledger.hashes, v.extra...)
		s.acked = len(s.ledger.hashes)
	}
	// A leader that has served what is cold knows the tier's state.
	for _, p := range s.fleet.processes {
		if a, err := p.ask(ctx, nodeRequest{Op: "status", Topic: topicName}); err == nil {
			s.ranges = max(s.ranges, a.Ranges)
		}
	}
	return s.ledger.save(s.acked)
}

// A sending is a batch under way.
type sending struct {
	pending *cordwood.Pending
	count   int
	took    int64
}

// append sends the input through one ordered producer and kills the leader
// half-way.
func (s *session) append(ctx context.Context) error {
	p := s.topic.Producer(0)
	defer p.Close()
	s.bar = newBar(s.stderr, "appending", s.in.bytes)
	defer s.bar.done()
	var queue []sending
	first := s.acked
	s.ackedAt = time.Now()
	inFlight := func() (n int) {
		for _, q := range queue {
			n += q.count
		}
		return n
	}
	// settle waits until at most left batches are under way.
	settle := func(left int) error {
		for len(queue) > left {
			if err := s.await(ctx, p, queue[0]); err != nil {
				return err
			}
			queue = queue[1:]
		}
		return nil
	}
	var b record.Builder
	var took int64
	flush := func() error {
		if b.Len() == 0 {
			return nil
		}
		batch, err := b.Build()
		if err != nil {
			return err
		}
		q := sending{count: b.Len(), took: took}
		b, took = record.Builder{}, 0 // the batch keeps the builder's memory
		if err := settle(cordwood.MaxInFlight - 1); err != nil {
			return err
		}
		if q.pending, err = p.Send(ctx, batch); err != nil {
			return err
		}
		queue = append(queue, q)
		s.sent += q.took
		enough := inFlight() >= killInFlight || len(queue) == cordwood.MaxInFlight
		if s.killed == nil && s.sent >= s.in.bytes/2 && enough {
			if err := s.kill(ctx, inFlight(), s.acked-first); err != nil {
				return err
			}
		}
		return nil
	}
	err := s.in.lines(func(line []byte, n int) error {
		key := binary.BigEndian.AppendUint64(nil, uint64(len(s.ledger.hashes)))
		if err := b.Append(record.Record{Key: key, Value: line, Timestamp: time.Now()}); err != nil {
			return err
		}
		s.ledger.hashes = append(s.ledger.hashes, hashOf(line))
		took += int64(n)
		full := b.Size() >= batchBytes || b.Len() >= batchRecords
		// A small input is cut so that something is in flight when its half is sent.
		half := s.killed == nil && s.sent < s.in.bytes/2 && s.sent+took >= s.in.bytes/2
		if full || half {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	if err == nil && s.killed == nil {
		err = s.kill(ctx, inFlight(), s.acked-first)
	}
	if err == nil {
		err = settle(0)
	}
	if err != nil {
		s.ledger.save(s.acked) // what it can't note the next run finds in the topic
		return err
	}
	if s.r.EpochAfter <= s.r.EpochBefore { // all was acknowledged by the old leader
		short, cancel := context.WithTimeout(ctx, stuckAfter)
		defer cancel()
		o, err := s.topic.Offsets(short, 0)
		if err != nil {
			return err
		}
		s.r.FailoverMs = float64(time.Since(s.killAt).Microseconds()) / 1e3
		s.r.LeaderAfter, s.r.EpochAfter = o.Leader, int32(o.LeaderEpoch)
	}
	return s.ledger.save(s.acked)
}

// await waits for one batch and notes it.
func (s *session) await(ctx context.Context, p *cordwood.Producer, q sending) error {
	for {
		short, cancel := context.WithTimeout(ctx, time.Second)
		a, err := q.pending.Wait(short)
		cancel()
		if err == nil {
			s.note(a, q)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		select {
		case <-q.pending.Done():
			if errors.Is(err, cordwood.ErrDuplicateUnknownOffset) {
				s.note(log.Appended{}, q)
				return nil
			}
			return err
		default:
		}
		cause := p.Err()
		switch stuck := time.Since(s.ackedAt); {
		case stuck > fullAfter && (errors.Is(cause, log.ErrDiskFull) || s.diskFull()):
			return fmt.Errorf("the disk of %s is full: %d records were acknowledged", s.dir, s.acked)
		case stuck > stuckAfter && cause != nil:
			return fmt.Errorf("no append was acknowledged for %v: %w", stuckAfter, cause)
		case stuck > stuckAfter:
			return fmt.Errorf("no append was acknowledged for %v", stuckAfter)
		}
	}
}

// diskFull reports whether the disk has no room for another segment of each node
// above what the nodes keep in reserve: a full one can stop followers before the
// leader meets it.
func (s *session) diskFull() bool {
	free, err := log.OSFS{}.FreeBytes(filepath.ToSlash(s.dir))
	return err == nil && free < cordwood.DefaultReserveBytes+4*segmentBytes
}

func (s *session) note(a log.Appended, q sending) {
	s.acked += q.count
	s.ackedAt = time.Now()
	s.bar.add(q.took)
	if s.killed != nil && s.r.EpochAfter == 0 && int32(a.Epoch) > s.r.EpochBefore {
		s.r.FailoverMs = float64(time.Since(s.killAt).Microseconds()) / 1e3
		s.r.EpochAfter = int32(a.Epoch)
		s.r.LeaderAfter = -1 // asked for at the end: the topic must not wait for it
	}
}

// kill kills the process that leads.
func (s *session) kill(ctx context.Context, inFlight, acked int) error {
	o, err := s.topic.Offsets(ctx, 0)
	if err != nil {
		return err
	}
	s.r.LeaderBefore, s.r.EpochBefore = o.Leader, int32(o.LeaderEpoch)
	s.r.AckedBeforeKill, s.r.InFlightAtKill = int64(acked), int64(inFlight)
	s.killed = s.fleet.byID(o.Leader)
	s.killAt = time.Now()
	if err := s.killed.kill(); err != nil {
		return fmt.Errorf("kill node %d: %w", o.Leader, err)
	}
	s.say("killed node %d, which led in epoch %d, with %d records in flight", o.Leader, o.LeaderEpoch, inFlight)
	return nil
}

// age starts the killed process again, seals the last segment and waits until
// the cold part is in the store and gone from local disk.
func (s *session) age(ctx context.Context) error {
	o, err := s.topic.Offsets(ctx, 0)
	if err != nil {
		return err
	}
	s.r.LeaderAfter, s.r.EpochAfter = o.Leader, int32(o.LeaderEpoch)
	s.say("starting node %d again", s.killed.id)
	if err := s.killed.start(ctx); err != nil {
		return err
	}
	if _, err := s.killed.ask(ctx, nodeRequest{Op: "ready", Seconds: 30}); err != nil {
		return err
	}
	if err := s.each(ctx, "waiting until all replicas are in sync", syncPatience, func(a nodeAnswer) bool { return a.InSync }); err != nil {
		return err
	}
	for _, p := range s.fleet.processes {
		if _, err := p.ask(ctx, nodeRequest{Op: "roll", Topic: topicName, Seconds: 30}); err != nil {
			return err
		}
	}
	// What is sealed on every replica now can leave every disk.
	var end int64 = -1
	for _, p := range s.fleet.processes {
		a, err := p.ask(ctx, nodeRequest{Op: "status", Topic: topicName})
		if err != nil {
			return err
		}
		if end < 0 || a.Sealed < end {
			end = a.Sealed
		}
	}
	err = s.each(ctx, "waiting until the cold part is in the store and gone from local disk", s.o.wait, func(a nodeAnswer) bool {
		return a.TierEnd >= end && a.LocalStart >= end
	})
	if err != nil && ctx.Err() == nil {
		var backlog int64
		for _, p := range s.fleet.processes {
			if a, err := p.ask(ctx, nodeRequest{Op: "status", Topic: topicName}); err == nil && a.Leads {
				backlog = a.Backlog
			}
		}
		where := s.store.dir
		if s.o.s3 != "" {
			where = "the bucket" // the URL may hold a secret
		}
		return fmt.Errorf("the store (%s) took nothing for %v: %.1f MB wait for it, all of it is on local disk", where, s.o.wait, float64(backlog)/1e6)
	}
	return err
}

// each waits until ok holds for all three nodes.
func (s *session) each(ctx context.Context, what string, patience time.Duration, ok func(nodeAnswer) bool) error {
	s.say("%s", what)
	begin := time.Now()
	last := int64(-1)
	for {
		all := true
		var progress int64
		for _, p := range s.fleet.processes {
			a, err := p.ask(ctx, nodeRequest{Op: "status", Topic: topicName})
			if err != nil {
				return err
			}
			all = all && ok(a)
			progress += a.TierEnd + a.LocalStart
		}
		if all {
			return nil
		}
		if progress != last {
			last, begin = progress, time.Now()
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("%s: gave up after %v", what, patience)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// verify reads everything back through the host's own node.
func (s *session) verify(ctx context.Context) error {
	before := s.host.Stats()
	sum := sha256.New()
	s.bar = newBar(s.stderr, "reading back", -1)
	defer s.bar.done()
	v, err := s.readAll(ctx, sum.Write)
	if err != nil {
		return err
	}
	after := s.host.Stats()
	s.r.Records, s.r.Bytes = v.records, v.bytes
	s.r.Lost, s.r.Changed, s.r.Duplicated = v.lost(), v.changed+int64(len(v.extra)), v.duplicated
	s.r.ColdBytes, s.r.HotBytes = after.ReadColdBytes-before.ReadColdBytes, after.ReadHotBytes-before.ReadHotBytes
	s.r.ContentSHA256 = hex.EncodeToString(sum.Sum(nil))
	return nil
}

// readAll reads the topic from offset 0 and passes values, each followed by a
// newline, to write.
func (s *session) readAll(ctx context.Context, write func([]byte) (int, error)) (*verifier, error) {
	v := newVerifier(s.ledger.hashes)
	newline := []byte{'\n'}
	for r, err := range s.topic.Records(ctx, 0, 0) {
		if err != nil {
			return nil, fmt.Errorf("read back: %w", err)
		}
		v.record(r.Key, r.Value)
		if _, err := write(r.Value); err != nil {
			return nil, err
		}
		if _, err := write(newline); err != nil {
			return nil, err
		}
		s.bar.add(int64(len(r.Value)) + 1)
	}
	return v, nil
}

// count fills in what the store and the disks hold.
func (s *session) count(ctx context.Context) {
	for _, p := range s.fleet.processes {
		a, err := p.ask(ctx, nodeRequest{Op: "status", Topic: topicName})
		if err != nil {
			continue
		}
		s.r.LocalBytes += a.Local
		s.r.SegmentsFinished = max(s.r.SegmentsFinished, a.Ranges-s.ranges)
	}
	c := readCounts(ctx, s.store)
	s.r.StorePuts, s.r.StoreDeletes = c.puts-s.before.puts, c.deletes-s.before.deletes
	s.r.StoreObjects = c.objects - s.before.objects
}

// stop ends host and nodes. It can be called again.
func (s *session) stop() error {
	s.bar.done()
	var errs []error
	if s.host != nil {
		errs = append(errs, s.host.Close())
		s.host = nil
	}
	if s.fleet != nil {
		s.fleet.stop()
	}
	if s.ledger != nil {
		errs = append(errs, s.ledger.close())
		s.ledger = nil
	}
	return errors.Join(errs...)
}
