package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// slowAnswers is how many answers in a row that did not reach the leader's end move
// a partition that is not in sync to the catch-up class.
const slowAnswers = 8

// A fetcher is the follower's side of a session: one goroutine that fetches all
// partitions which one node leads, in one class. It exists while there are any.
type fetcher struct {
	m    *Manager
	peer peer
	kick chan struct{} // capacity 1: something is due
	wake alarm         // ends the parked call

	mu    sync.Mutex
	parts map[log.PartitionID]*fetchPart
	due   []*fetchPart
	left  []log.PartitionID // to be named in the next request

	fresh   bool   // the next request begins a session
	session uint64 // id of the present one
	n       uint32 // number of the next request in it
	calling bool
	woken   bool // the leader was asked to answer the present call at once
	stop    context.CancelFunc
}

// fetchPart is one partition of a fetcher. Fields are guarded by fetcher.mu.
type fetchPart struct {
	r      *Replica
	due    bool // goes into the next request
	asked  bool // is part of the session
	gone   bool
	paused bool
	pause  alarm
	tries  int
}

// fetchVia makes p the peer that r fetches from, or nobody. Requires: r.mu is held.
func (m *Manager) fetchVia(r *Replica, p peer, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var want *fetcher
	if ok && !m.closed {
		want = m.fetchers[p]
		if want == nil {
			want = &fetcher{m: m, peer: p, kick: make(chan struct{}, 1), parts: make(map[log.PartitionID]*fetchPart), fresh: true}
			want.wake.fn = want.sendWake
			m.fetchers[p] = want
			m.run("replication-fetch", want.run)
		}
	}
	if r.fetcher == want {
		return
	}
	if r.fetcher != nil {
		r.fetcher.remove(r)
	}
	r.fetcher = want
	if want != nil {
		want.add(r)
	}
}

func (f *fetcher) add(r *Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &fetchPart{r: r}
	p.pause.fn = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		p.paused = false
		f.dueLocked(p, true)
	}
	f.parts[r.id] = p
	f.dueLocked(p, true)
}

func (f *fetcher) remove(r *Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.parts[r.id]
	if p == nil {
		return
	}
	p.gone = true
	f.m.clock.stop(&p.pause)
	delete(f.parts, r.id)
	if p.asked {
		f.left = append(f.left, r.id)
	}
	if len(f.parts) == 0 {
		if f.stop != nil {
			f.stop()
		}
		f.kickLocked()
	}
}

func (f *fetcher) kickLocked() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// dueLocked puts p into the next request; now: which should come soon.
func (f *fetcher) dueLocked(p *fetchPart, now bool) {
	if p.gone {
		return
	}
	if !p.due {
		p.due = true
		f.due = append(f.due, p)
	}
	if !now {
		return
	}
	if f.calling && !f.woken {
		// The parked call knows nothing of p. It is the clock that sends the message,
		// since locks are held here.
		f.woken = true
		f.m.clock.before(&f.wake, time.Now())
	}
	f.kickLocked()
}

// again has the partition asked about again: now, or after a pause that grows.
func (f *fetcher) again(r *Replica, pause bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.parts[r.id]
	if p == nil {
		return
	}
	if pause {
		if !p.paused {
			p.paused = true
			f.m.clock.before(&p.pause, time.Now().Add(f.m.backoff(p.tries)))
			p.tries++
		}
		return
	}
	p.tries = 0
	if p.paused {
		p.paused = false
		f.m.clock.stop(&p.pause)
	}
	f.dueLocked(p, true)
}

// soon has the partition asked about in the next request, whenever that comes.
func (f *fetcher) soon(r *Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.parts[r.id]; p != nil && !p.paused {
		f.dueLocked(p, false)
	}
}

func (f *fetcher) sendWake() {
	f.mu.Lock()
	msg := progressMessage{CatchUp: f.peer.catchUp, Wake: true, Session: f.session, N: f.n - 1}
	send := f.calling
	f.mu.Unlock()
	if !send {
		return
	}
	f.m.mu.Lock()
	msg.Epoch = f.m.self.Epoch
	f.m.mu.Unlock()
	f.m.opt.Network.Progress(f.peer.node, msg.encode(nil))
}

// exit ends the fetcher if it has nothing to fetch.
func (f *fetcher) exit() bool {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.parts) > 0 && !f.m.closed {
		return false
	}
	if f.m.fetchers[f.peer] == f {
		delete(f.m.fetchers, f.peer)
	}
	return true
}

func (f *fetcher) run(ctx context.Context) {
	defer f.m.clock.stop(&f.wake)
	fails := 0
	for !f.exit() {
		req := f.next(ctx)
		if req == nil {
			select {
			case <-f.kick:
			case <-ctx.Done():
			}
			continue
		}
		err := f.call(ctx, req)
		if err == nil {
			fails = 0
			continue
		}
		f.mu.Lock()
		f.fresh = true
		f.mu.Unlock()
		if ctx.Err() == nil && !errors.Is(err, errNewSession) {
			f.m.opt.Logger.Debug("fetch failed", slog.Int("node", int(f.peer.node)), slog.Any("err", err))
		}
		if errors.Is(err, errNewSession) && fails == 0 {
			fails++
			continue
		}
		f.pause(ctx, f.m.backoff(fails))
		fails++
	}
}

// pause waits, but not longer than there is something to fetch.
func (f *fetcher) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return
		case <-ctx.Done():
			return
		case <-f.kick:
			f.mu.Lock()
			n := len(f.parts)
			f.mu.Unlock()
			if n == 0 {
				return
			}
		}
	}
}

var errNewSession = errors.New("leader wants a new session")

// next builds the next request; nil if there is nothing to ask or to wait for.
func (f *fetcher) next(ctx context.Context) *requestMessage {
	f.m.mu.Lock()
	f.m.lastID++
	id := f.m.lastID
	self := f.m.self
	f.m.mu.Unlock()
	o := &f.m.opt
	f.mu.Lock()
	fresh := f.fresh
	if fresh {
		f.due = f.due[:0]
		for _, p := range f.parts {
			p.asked = false
			if p.due = !p.paused; p.due {
				f.due = append(f.due, p)
			}
		}
		f.left = nil
		f.session, f.n = id, 0
	}
	n := min(len(f.due), maxPartitions)
	todo := make([]*fetchPart, 0, n)
	for _, p := range f.due[:n] {
		p.due = false
		if !p.gone {
			todo = append(todo, p)
		}
	}
	f.due = append(f.due[:0], f.due[n:]...)
	req := &requestMessage{CatchUp: f.peer.catchUp, Full: fresh, Epoch: self.Epoch, Session: f.session, N: f.n,
		WaitMS: uint32(min(o.FetchWait.Milliseconds(), math.MaxInt32)), MaxBytes: uint32(min(o.ReplyBytes, math.MaxInt32)),
		Left: f.left}
	f.left = nil
	f.mu.Unlock()
	req.Parts = make([]fetchRequest, 0, len(todo))
	asked := make([]*fetchPart, 0, len(todo))
	for _, p := range todo {
		if q, ok := p.r.nextFetch(ctx, f); ok {
			q.MaxBytes = int32(min(o.FetchBytes, math.MaxInt32))
			req.Parts = append(req.Parts, q)
			asked = append(asked, p)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range asked {
		p.asked = true
		if p.gone {
			f.left = append(f.left, p.r.id)
		}
	}
	any := false
	for _, p := range f.parts {
		if p.asked {
			any = true
			break
		}
	}
	if !any && len(req.Parts) == 0 {
		f.fresh = true
		return nil
	}
	f.fresh = false
	f.n++
	return req
}

// call sends one request and takes the answer.
func (f *fetcher) call(ctx context.Context, req *requestMessage) error {
	o := &f.m.opt
	cctx, cancel := context.WithTimeoutCause(ctx, o.FetchWait+o.FetchTimeout, errors.New("no answer in time"))
	defer cancel()
	f.mu.Lock()
	f.calling, f.woken, f.stop = true, false, cancel
	if len(f.due) > 0 {
		f.woken = true
		f.m.clock.before(&f.wake, time.Now())
	}
	if len(f.parts) == 0 {
		cancel()
	}
	f.mu.Unlock()
	header, payload, err := o.Network.Fetch(cctx, f.peer.node, f.peer.catchUp, req.encode(nil))
	f.mu.Lock()
	f.calling, f.stop = false, nil
	f.mu.Unlock()
	if err != nil {
		return err
	}
	a, err := decodeAnswer(header)
	if err != nil {
		return err
	}
	if a.Session != req.Session || a.N != req.N {
		return fmt.Errorf("%w: answer to another request", ErrMessage)
	}
	if a.NewSession {
		return errNewSession
	}
	for i := range a.Parts {
		p := &a.Parts[i]
		n := int(p.PayloadBytes)
		if n > len(payload) {
			return fmt.Errorf("%w: payload is short", ErrMessage)
		}
		bytes := payload[:n:n]
		payload = payload[n:]
		f.mu.Lock()
		part := f.parts[p.Partition]
		ok := part != nil && part.asked
		f.mu.Unlock()
		if ok {
			part.r.takeAnswer(ctx, f, p, bytes)
		}
	}
	return nil
}

// nextFetch returns what to ask the leader for.
func (r *Replica) nextFetch(ctx context.Context, f *fetcher) (fetchRequest, bool) {
	if r.use() != nil {
		return fetchRequest{}, false
	}
	defer r.unuse()
	r.mu.Lock()
	mine, damaged := r.fetcher == f, r.core.damaged && r.core.pardoned
	r.mu.Unlock()
	if !mine {
		return fetchRequest{}, false
	}
	if damaged {
		// The log is replaced first, which is a change of the log.
		if r.take(ctx) != nil {
			return fetchRequest{}, false
		}
		defer r.give()
	}
	o := r.step(evNextFetch{})
	if o.action != nil {
		r.act(o, nil)
		return fetchRequest{}, false
	}
	return o.fetch, o.hasFetch
}

// takeAnswer is the follower's side of one partition's answer. The payload is not
// kept.
func (r *Replica) takeAnswer(ctx context.Context, f *fetcher, a *fetchAnswer, payload []byte) {
	if r.use() != nil {
		return
	}
	defer r.unuse()
	if r.take(ctx) != nil {
		return
	}
	defer r.give()
	if a.Status == statusDiverging || a.Status == statusTierStart {
		r.observe()
	}
	r.mu.Lock()
	if r.fetcher != f {
		r.mu.Unlock()
		return
	}
	o := r.stepLocked(evResponse{*a, time.Now()})
	r.mu.Unlock()
	r.after(o)
	r.trim(o)
	if o.action != nil {
		r.act(o, payload)
	}
	if a.Status != statusOK {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.catchUp
	switch {
	case r.core.end >= a.End:
		r.catchUp, r.full = false, 0
	default:
		if r.full++; r.full > slowAnswers {
			r.catchUp = true // undone at once if it is in sync
		}
	}
	if r.catchUp != was && !r.closed {
		r.refetchFromLocked()
	}
}

// trim moves the log start to where the leader's is. Requires: the turn.
func (r *Replica) trim(o outcome) {
	if o.trim < 0 {
		return
	}
	if err := r.l.TrimTo(r.ctx, o.trim); err != nil {
		r.logError("log start not moved", err)
		return
	}
	r.observe()
}

func (r *Replica) logError(what string, err error) {
	r.m.opt.Logger.Warn(what, slog.String("partition", r.id.String()), slog.Any("err", err))
	if r.l.Err() != nil {
		r.fail(err)
		return
	}
	r.damagedBy(err)
}

// act changes the log as the core has ordered and reports. Requires: the turn, in
// which the order was given.
func (r *Replica) act(o outcome, payload []byte) {
	switch e := o.action.(type) {
	case effAppend:
		runs, err := checkBatches(payload, e)
		var app log.Appended
		if err == nil {
			app, err = r.l.AppendReplicated(payload)
		}
		if err != nil {
			r.logError("fetched batches not appended", err)
			if errors.Is(err, log.ErrReadOnly) {
				r.step(evLossy{Damaged: true, Now: time.Now()})
			}
			r.step(evRejected{})
			return
		}
		r.trim(r.step(evReplicated{End: app.End, Runs: runs}))
		r.syncLater()
	case effTruncate:
		var err error
		if e.LowerHW {
			err = r.lowerHint(r.ctx, e.To)
		}
		if err == nil {
			_, err = r.l.TruncateTo(r.ctx, e.To)
		}
		r.wasCut("log not cut", err)
	case effReset:
		var err error
		if e.LowerHW {
			err = r.lowerHint(r.ctx, e.Start)
		}
		if err == nil {
			err = r.l.Reset(r.ctx, e.Start, e.Chain, e.Producers)
		}
		if err == nil && e.LogStart > r.l.Start() {
			err = r.l.TrimTo(r.ctx, e.LogStart)
		}
		r.wasCut("log not replaced", err)
	}
}

func (r *Replica) wasCut(what string, err error) {
	if err != nil {
		r.logError(what, err)
		r.step(evRejected{})
		return
	}
	r.mu.Lock()
	r.edge = edge{localStart: -1}
	r.mu.Unlock()
	r.step(evCut{Start: r.l.Start(), LocalStart: r.l.LocalStart(), End: r.l.End(), Durable: r.l.DurableEnd(), Chain: r.l.EpochChain()})
}

// checkBatches checks what the log does not: that epochs lie between the log's last
// and the leader's own (KAFKA-18723). It returns where each epoch begins.
func checkBatches(b []byte, e effAppend) (runs []log.EpochStart, err error) {
	pos, last := e.Pos, e.Last
	for len(b) > 0 {
		var batch record.Batch
		if batch, b, err = record.Next(b, math.MaxInt32); err != nil {
			return nil, fmt.Errorf("fetched batch at offset %d: %w", pos, err)
		}
		if batch.BaseOffset() != pos || batch.NextOffset() <= pos {
			return nil, fmt.Errorf("fetched batch of offsets [%d, %d) at offset %d: %w", batch.BaseOffset(), batch.NextOffset(), pos, log.ErrNotContiguous)
		}
		epoch := batch.LeaderEpoch()
		if epoch < last || epoch > e.Epoch {
			return nil, fmt.Errorf("fetched batch of epoch %d at offset %d, between %d and %d: %w", epoch, pos, last, e.Epoch, log.ErrInvalidBatch)
		}
		if epoch != last {
			runs = append(runs, log.EpochStart{Epoch: epoch, Start: pos})
		}
		pos, last = batch.NextOffset(), epoch
	}
	return runs, nil
}
