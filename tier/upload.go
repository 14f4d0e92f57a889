package tier

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// An uploadJob is the one object that a leadership has under way, from the plan
// to the committed CopyFinished. Retries are of the same object under the same
// key: so a write whose reply was lost is found by the next one.
type uploadJob struct {
	plan      *objectPlan
	from, end log.Offset // what it adds to the tier
	key       string
	deadline  time.Time
	began     time.Time
	started   bool // CopyStarted is committed
	unsure    bool // an attempt may still land
	stored    bool // the store has it
	ctx       context.Context
	cancel    context.CancelCauseFunc
}

var (
	errObsolete = errors.New("tier: the log start has passed the range")
	errDeadline = errors.New("tier: upload deadline has passed")
)

// errGap says why a leader can't go on from the tier end.
type errGap struct{ tierEnd, local log.Offset }

func (e errGap) Error() string {
	return fmt.Sprintf("tier: the tier ends at %d and the local log begins at %d: the records between are in neither", e.tierEnd, e.local)
}

// newID returns a fresh random UUID (version 4).
func newID() ID {
	var id ID
	rand.Read(id[:])
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// candidate returns the next range to upload: from the tier end to the end of a
// sealed segment, all of it committed and outside of open transactions. ok is
// false if there is none.
func (p *Partition) candidate() (from log.Offset, seg log.Segment, ok bool, err error) {
	return p.candidateAt(p.View())
}

// candidateAt is candidate for a view.
func (p *Partition) candidateAt(v View) (from log.Offset, seg log.Segment, ok bool, err error) {
	o := p.options()
	if !v.Known || !o.Tiered || o.Paused {
		return 0, seg, false, nil
	}
	limit, err := p.uploadLimit()
	if err != nil {
		return 0, seg, false, err
	}
	segments := p.log.Segments()
	i := sort.Search(len(segments), func(i int) bool { return segments[i].End > v.TierEnd })
	if i == len(segments) || !segments[i].Sealed || segments[i].End > limit {
		return 0, seg, false, nil
	}
	if start := p.log.LocalStart(); start > v.TierEnd || segments[i].Base > v.TierEnd {
		return 0, seg, false, errGap{v.TierEnd, max(start, segments[i].Base)}
	}
	return v.TierEnd, segments[i], true, nil
}

// uploadLimit returns the last stable offset below the high watermark: what lies
// below it is committed, and it is known of each of its transactions whether it was
// aborted.
func (p *Partition) uploadLimit() (log.Offset, error) {
	limit, err := p.log.LastStableBelow(p.ctx, p.options().HighWatermark())
	if errors.Is(err, log.ErrOffsetOutOfRange) {
		return 0, nil // the high watermark is not known yet
	}
	return limit, err
}

// lineageOf returns the part of a leader-epoch chain that covers [base, end).
func lineageOf(chain []log.EpochStart, base, end log.Offset) []log.EpochStart {
	n := sort.Search(len(chain), func(i int) bool { return chain[i].Start >= end })
	chain = chain[:n]
	i := 0
	for i+1 < len(chain) && chain[i+1].Start <= base {
		i++
	}
	return chain[i:]
}

// lineageAt returns the leader-epoch chain of the log below end, and the part of it
// that covers [from, end).
func (p *Partition) lineageAt(from, end log.Offset) (chain, lineage []log.EpochStart) {
	chain = p.log.EpochChain()
	n := sort.Search(len(chain), func(i int) bool { return chain[i].Start >= end })
	return chain[:n], lineageOf(chain, from, end)
}

// plan lays out the object for a candidate. ahead is what was planned ahead, or nil.
func (p *Partition) plan(ctx context.Context, lead *leadership, from log.Offset, seg log.Segment, ahead *objectPlan) (*objectPlan, error) {
	chain, lineage := p.lineageAt(from, seg.End)
	p.ledger.mu.RLock()
	tiered := p.ledger.state.lineage
	var below ID
	if r := p.ledger.state.ranges; len(r) > 0 {
		below = r[len(r)-1].ID
	}
	p.ledger.mu.RUnlock()
	if !continues(tiered, lineage) {
		last := tiered[len(tiered)-1]
		return nil, fmt.Errorf("tier: the local log has epoch %d at offset %d, the tier ends in epoch %d from %d on: they are not one log",
			lineage[0].Epoch, from, last.Epoch, last.Start)
	}
	if ahead != nil && ahead.fits(from, seg.End, below, lineage) {
		return ahead, nil
	}
	return p.layOut(ctx, lead, from, seg, chain, lineage, below)
}

// fits says whether what was planned ahead is what would be planned now.
func (p *objectPlan) fits(from, end log.Offset, below ID, lineage []log.EpochStart) bool {
	return p.from == from && p.info.End == end && p.info.Predecessor == below && slices.Equal(p.info.Lineage, lineage)
}

// layOut reads a candidate that is to follow the range below.
func (p *Partition) layOut(ctx context.Context, lead *leadership, from log.Offset, seg log.Segment, chain, lineage []log.EpochStart, below ID) (*objectPlan, error) {
	producers, err := p.log.ProducerSnapshot(ctx, seg.End)
	if err != nil {
		return nil, fmt.Errorf("producers at offset %d: %w", seg.End, err)
	}
	aborted, err := p.log.AbortedTransactions(ctx, from, seg.End)
	if err != nil {
		return nil, fmt.Errorf("aborted transactions in [%d, %d): %w", from, seg.End, err)
	}
	return planObject(ctx, p.m.read.batches(p.read), from, objectHeader{
		Cluster: p.m.o.Cluster, Partition: p.id, Epoch: lead.epoch, ID: newID(),
		Base: from, End: seg.End, SealedMs: millis(seg.SealedAt), Predecessor: below, Lineage: lineage,
	}, chain, aborted, producers, p.m.o.ChunkBytes, p.m.o.CompressChunks)
}

// planAhead plans the object behind that of a job, while that is on its way. Nothing of
// it is announced or sent: the next attempt uses it if it is then what that would plan.
// With other partitions waiting nothing is done, since they would leave it lying in
// memory. end returns when nothing is read any more; without keep it ends that and
// drops what there is.
func (p *Partition) planAhead(lead *leadership, j *uploadJob) (end func(keep bool)) {
	m := p.m
	m.mu.Lock()
	others := len(m.queues[taskUpload].list) > 0
	m.mu.Unlock()
	if others {
		return func(bool) {}
	}
	ctx, cancel := context.WithCancel(lead.ctx)
	var wg sync.WaitGroup
	var plan *objectPlan
	wg.Go(func() {
		v := p.View()
		v.TierEnd = max(v.TierEnd, j.end)
		from, seg, ok, err := p.candidateAt(v)
		if err != nil || !ok {
			return // the next attempt sees it, too
		}
		chain, lineage := p.lineageAt(from, seg.End)
		if next, err := p.layOut(ctx, lead, from, seg, chain, lineage, j.plan.info.ID); err == nil {
			plan = next
		}
	})
	return func(keep bool) {
		if !keep {
			cancel()
		}
		wg.Wait()
		cancel()
		if keep {
			lead.ahead = plan
		}
	}
}

// millis returns Unix milliseconds that an event can carry.
func millis(t time.Time) int64 { return max(0, min(t.UnixMilli(), maxTimeMillis)) }

// upload takes one attempt to get one range into the store and commit it.
func (p *Partition) upload(lead *leadership) {
	m := p.m
	m.mu.Lock()
	ready := lead.barrier && lead.err == nil && lead.ctx.Err() == nil && m.owner == ownerOurs && !lead.uploadAt.After(time.Now())
	job := lead.job
	m.mu.Unlock()
	if !ready {
		return
	}
	err := p.attempt(lead, &job)
	if lead.ctx.Err() != nil || p.leadErr(lead) != nil {
		// Whoever leads next finds the CopyStarted and deletes the object.
		p.dropJob(lead, job)
		return
	}
	giveUp := job != nil && (err == nil || abandons(err) || !time.Now().Before(job.deadline))
	if giveUp {
		p.dropJob(lead, job)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p.blocked = err
	if err == nil {
		lead.failures, lead.uploadAt = 0, time.Time{}
		if job != nil {
			m.enqueueLocked(taskUpload, p) // there may be more
			m.enqueueLocked(taskControl, p)
		}
		return
	}
	if job != nil {
		m.stats.UploadFailures++
	}
	if lead.failures == 0 {
		m.logger(p).Warn("upload", "error", err)
	}
	lead.uploadAt = time.Now().Add(backoff(lead.failures, &m.o, err))
	lead.failures++
	m.atLocked(p, lead.uploadAt)
	if giveUp {
		m.enqueueLocked(taskControl, p)
	}
}

// abandons says whether an error ends the attempts with this object. A store that
// is down, slow or ambiguous does not: see [uploadJob].
func abandons(err error) bool {
	return errors.Is(err, errObsolete) || errors.Is(err, errDeadline) || errors.Is(err, ErrCorrupt) ||
		errors.Is(err, errRefused) || errors.Is(err, log.ErrOffsetOutOfRange)
}

var errRefused = errors.New("tier: the upload was refused by the state")

func (p *Partition) dropJob(lead *leadership, job *uploadJob) {
	if job == nil {
		return
	}
	job.cancel(context.Canceled)
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if lead.job == job {
		lead.job = nil
	}
}

// attempt goes as far with the job as it can. It makes one if there is none; *job
// stays nil if there is nothing to do.
func (p *Partition) attempt(lead *leadership, job **uploadJob) (err error) {
	m := p.m
	if *job == nil {
		ahead := lead.ahead
		lead.ahead = nil // an id is used once
		if !p.mayStart(lead) {
			return nil
		}
		from, seg, ok, err := p.candidate()
		if err != nil || !ok {
			return err
		}
		plan, err := p.plan(lead.ctx, lead, from, seg, ahead)
		if err != nil {
			return fmt.Errorf("plan the range [%d, %d): %w", from, seg.End, err)
		}
		j := &uploadJob{plan: plan, from: from, end: seg.End, began: time.Now()}
		j.deadline = time.UnixMilli(j.began.Add(m.o.uploadTime(plan.size)).UnixMilli())
		j.key = p.key(plan.info.ID, plan.info.Base, plan.info.End, plan.info.Epoch)
		j.ctx, j.cancel = context.WithCancelCause(lead.ctx)
		m.mu.Lock()
		lead.job = j
		m.mu.Unlock()
		*job = j
	}
	j := *job
	if !j.started {
		v, err := p.propose(lead, CopyStarted{ID: j.plan.info.ID, Base: j.plan.info.Base, End: j.plan.info.End, Deadline: j.deadline})
		if err != nil {
			return fmt.Errorf("copy started: %w", err)
		}
		if v != Applied {
			return fmt.Errorf("copy started: %w: %v", errRefused, v)
		}
		j.started = true
	}
	if p.View().LogStart >= j.end {
		return errObsolete
	}
	if !j.stored {
		end := p.planAhead(lead, j)
		defer func() { end(err == nil) }()
		if err := p.put(j); err != nil {
			return fmt.Errorf("put %s: %w", j.key, err)
		}
		j.stored = true
	}
	v, err := p.propose(lead, CopyFinished{
		ID: j.plan.info.ID, BatchBytes: j.plan.batchBytes, ObjectBytes: j.plan.size, TailBytes: int64(len(j.plan.tail)),
		MaxTimestamp: j.plan.maxTime(), Sealed: time.UnixMilli(j.plan.info.SealedMs), Lineage: j.plan.info.Lineage, CRC32C: j.plan.sum, Unsure: j.unsure,
	})
	if err != nil {
		return fmt.Errorf("copy finished: %w", err)
	}
	if v != Applied {
		return fmt.Errorf("copy finished: %w: %v", errRefused, v)
	}
	m.mu.Lock()
	m.stats.Uploads++
	m.stats.UploadBytes += j.plan.size
	m.mu.Unlock()
	if m.o.Hooks.Uploaded != nil {
		m.o.Hooks.Uploaded(UploadedInfo{
			Partition: p.id, Key: j.key, Base: j.plan.info.Base, End: j.end, Bytes: j.plan.size, Took: time.Since(j.began),
		})
	}
	return nil
}

// uploadTime returns how long an object of n bytes may take. The limit of the rate may
// hold it up once for itself and the others at once, and once more for a retry.
func (o *Options) uploadTime(n int64) time.Duration {
	if o.UploadBytesPerSecond == 0 {
		return o.UploadDeadline
	}
	return o.UploadDeadline + min(time.Duration(2*min(o.Uploads, 1000))*paceTime(n, o.UploadBytesPerSecond), 24*time.Hour)
}

// mayStart says whether a new object may come into being: not while one that was
// given up has not been deleted once, or refused to be time and again. So a store that is down for days gathers one
// unfinished upload per leader, not one per try.
func (p *Partition) mayStart(lead *leadership) bool {
	p.ledger.mu.RLock()
	pending := p.ledger.state.Pending()
	p.ledger.mu.RUnlock()
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	for _, c := range pending {
		if !c.Finished && lead.deleted[c.ID].IsZero() && !lead.refused[c.ID].parked() {
			return false
		}
	}
	return true
}

// put writes the object, or finds that an earlier attempt has.
func (p *Partition) put(j *uploadJob) error {
	m := p.m
	if !time.Now().Before(j.deadline) {
		return errDeadline
	}
	ctx, cancel := context.WithDeadlineCause(j.ctx, j.deadline, errDeadline)
	defer cancel()
	source := newObjectSource(ctx, p.read, j.plan)
	defer source.close()
	err := m.o.Store.Put(ctx, j.key, m.sent.reader(ctx, source), j.plan.size, PutOptions{
		IfAbsent: m.o.Store.Capabilities().IfAbsent, CRC32C: j.plan.sum, HasCRC32C: true,
	})
	if err == nil {
		return nil
	}
	j.unsure = j.unsure || !certain(err)
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	if !errors.Is(err, ErrExists) {
		return err
	}
	// The key holds an id that nobody else has: it can only be our own object, of
	// an attempt whose reply was lost. The tail tells, with its checksums.
	gctx, cancelGet := context.WithTimeout(ctx, m.o.StoreTimeout)
	defer cancelGet()
	tail, gerr := m.o.Store.GetRange(gctx, j.key, j.plan.size-int64(len(j.plan.tail)), int64(len(j.plan.tail)))
	switch {
	case gerr == nil && bytes.Equal(tail, j.plan.tail):
		return nil
	case gerr == nil, errors.Is(gerr, ErrRange):
		return fmt.Errorf("%w: another object has the key %s", ErrCorrupt, j.key)
	}
	return fmt.Errorf("read back: %w", gerr)
}

// certain says whether an error of a Put means that nothing was written and
// nothing will be.
func certain(err error) bool {
	if errors.Is(err, ErrUnknownOutcome) {
		return false
	}
	for _, e := range []error{ErrExists, ErrConflict, ErrDenied, ErrUnavailable, ErrCorrupt, ErrInvalidKey} {
		if errors.Is(err, e) {
			return true
		}
	}
	_, throttled := errors.AsType[*ThrottledError](err)
	return throttled
}
