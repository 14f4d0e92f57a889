package replication

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// longestWait bounds how long a request may ask to be parked.
const longestWait = 10 * time.Minute

// A session is the leader's side of what one node fetches from this one in one
// class: the last request of each partition. A partition that was asked about stays
// asked about until it is answered, so a request carries only what was answered or
// changed since the one before, and a partition that nothing happens to costs
// nothing. Requests of one session follow each other; a follower that has lost an
// answer begins a new session.
type session struct {
	m    *Manager
	from Member
	id   uint64
	next uint32        // number of the next request; guarded by Manager.mu
	wake chan struct{} // capacity 1: queue is not empty, or hurry
	stop chan struct{} // closed when another session takes its place

	mu     sync.Mutex
	closed bool
	parts  map[log.PartitionID]*sessionPart
	// queue holds partitions that may have something to send, first come first
	// served: one with much data goes to the end after each portion.
	queue []*sessionPart
}

// sessionPart is one partition of a session. Fields are guarded by session.mu.
type sessionPart struct {
	r       *Replica
	req     fetchRequest
	pending bool // asked about and not answered
	judged  bool // its follower state is recorded; only what to send is open
	queued  bool
}

// Handle answers one fetch request of another node. It returns at once if there is
// something to say about any partition, else when there is, or with an empty answer
// when the time that the request allows is over. The payload, if not nil, must be
// released. from is who the transport says has sent it.
//
// Errors wrap [ErrMessage] or are [ErrClosed] or ctx's; the follower then begins a
// new session.
func (m *Manager) Handle(ctx context.Context, from NodeID, request []byte) (header []byte, bulk Payload, err error) {
	msg, err := decodeRequest(request)
	if err != nil {
		return nil, nil, err
	}
	key := peer{from, msg.CatchUp}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, nil, ErrClosed
	}
	// A handler counts as a goroutine of the manager: Shutdown waits for it.
	m.wg.Add(1)
	defer m.wg.Done()
	s := m.sessions[key]
	var old *session
	switch {
	case msg.Full && (s == nil || msg.Epoch > s.from.Epoch || msg.Epoch == s.from.Epoch && msg.Session > s.id):
		old = s
		s = &session{m: m, from: Member{from, msg.Epoch}, id: msg.Session, next: msg.N,
			wake: make(chan struct{}, 1), stop: make(chan struct{}), parts: make(map[log.PartitionID]*sessionPart)}
		m.sessions[key] = s
	case msg.Full || s == nil || s.from.Epoch != msg.Epoch || s.id != msg.Session || s.next != msg.N:
		m.mu.Unlock()
		a := answerMessage{NewSession: true, Session: msg.Session, N: msg.N}
		return a.encode(nil), nil, nil
	}
	s.next = msg.N + 1
	m.mu.Unlock()
	if old != nil {
		old.close()
	}
	a := answerMessage{Session: msg.Session, N: msg.N}
	var p payload
	err = s.answer(ctx, &msg, &a, &p)
	if err != nil {
		p.Release()
		return nil, nil, err
	}
	if p.n == 0 {
		p.Release()
		return a.encode(nil), nil, nil
	}
	return a.encode(nil), &p, nil
}

// hurryUp tells whether the follower has asked for an answer to this request at once.
func (s *session) hurryUp(n uint32, catchUp bool) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	h, ok := s.m.hurry[peer{s.from.ID, catchUp}]
	return ok && h.session == s.id && h.n == n
}

// HandleProgress takes a one-way message of another node: durable ends, or the wish
// for an answer to a parked fetch. What can't be read is ignored.
func (m *Manager) HandleProgress(from NodeID, message []byte) {
	msg, err := decodeProgress(message)
	if err != nil {
		m.opt.Logger.Warn("progress ignored", "from", from, "err", err)
		return
	}
	for _, p := range msg.Parts {
		if r := m.Get(p.Partition); r != nil {
			r.step(evProgress{Member{from, msg.Epoch}, p, time.Now()})
		}
	}
	if !msg.Wake {
		return
	}
	key := peer{from, msg.CatchUp}
	m.mu.Lock()
	// The wish may overtake the request.
	m.hurry[key] = requestID{msg.Session, msg.N}
	s := m.sessions[key]
	m.mu.Unlock()
	if s != nil {
		s.poke()
	}
}

func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ready notes that a partition may have something to send.
func (s *session) ready(id log.PartitionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.parts[id]; p != nil && p.pending && !p.queued {
		p.queued = true
		s.queue = append(s.queue, p)
		s.poke()
	}
}

func (s *session) close() {
	s.mu.Lock()
	s.closed = true
	parts := s.parts
	s.parts = nil
	s.queue = nil
	close(s.stop)
	s.mu.Unlock()
	for _, p := range parts {
		if p.r != nil {
			p.r.unpark(s)
		}
	}
}

// parkAt parks s at r, unless s has been closed: who closed it may have been there before.
func (s *session) parkAt(r *Replica) {
	r.park(s)
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		r.unpark(s)
	}
}

// park has the replica tell s of changes.
func (r *Replica) park(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.parked[s] = struct{}{}
	}
}

func (r *Replica) unpark(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.parked, s)
}

// answer fills a and p for one request.
func (s *session) answer(ctx context.Context, msg *requestMessage, a *answerMessage, out *payload) error {
	for _, id := range msg.Left {
		s.mu.Lock()
		p := s.parts[id]
		delete(s.parts, id)
		if p != nil {
			p.pending = false
		}
		s.mu.Unlock()
		if p != nil && p.r != nil {
			p.r.unpark(s)
		}
	}
	// Judge all first, so that acknowledgements count at once.
	for i := range msg.Parts {
		q := &msg.Parts[i]
		r := s.m.Get(q.Partition)
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			break
		}
		p := s.parts[q.Partition]
		if p == nil {
			if len(s.parts) >= maxPartitions {
				s.mu.Unlock()
				a.Parts = append(a.Parts, fetchAnswer{Partition: q.Partition, Seq: q.Seq, Status: statusLimit, Leader: -1})
				continue
			}
			p = &sessionPart{}
			s.parts[q.Partition] = p
		}
		p.r, p.req, p.pending, p.judged = r, *q, true, false
		s.mu.Unlock()
		if r != nil {
			s.parkAt(r)
		}
		ans, done := s.judge(ctx, p)
		if done {
			a.Parts = append(a.Parts, ans)
		}
	}
	budget := s.m.opt.ReplyBytes
	if n := int(min(msg.MaxBytes, 1<<30)); n > 0 {
		budget = min(budget, n)
	}
	var timer *time.Timer
	for {
		for out.n < budget {
			p := s.pop()
			if p == nil {
				break
			}
			ans, slice, done := s.serve(ctx, p, min(s.m.opt.FetchBytes, budget-out.n))
			if done {
				a.Parts = append(a.Parts, ans)
			}
			if slice != nil {
				out.add(slice)
			}
		}
		if len(a.Parts) > 0 || s.hurryUp(msg.N, msg.CatchUp) {
			return nil
		}
		if timer == nil {
			timer = time.NewTimer(min(time.Duration(msg.WaitMS)*time.Millisecond, longestWait))
			defer timer.Stop()
		}
		select {
		case <-s.wake:
		case <-timer.C:
			return nil
		case <-s.stop:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.m.ctx.Done():
			return ErrClosed
		}
	}
}

func (s *session) pop() *sessionPart {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		p := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		p.queued = false
		if p.pending {
			return p
		}
	}
	s.queue = nil
	return nil
}

// judge records the follower's state; done says that ans is the answer.
func (s *session) judge(ctx context.Context, p *sessionPart) (ans fetchAnswer, done bool) {
	s.mu.Lock()
	r, q := p.r, p.req
	s.mu.Unlock()
	if r == nil || r.use() != nil {
		ans = fetchAnswer{Partition: q.Partition, Seq: q.Seq, Status: statusUnknownPartition, Leader: -1}
	} else {
		ans = r.judge(ctx, s.from, q)
		r.unuse()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch ans.Status {
	case statusOK:
		p.judged = true
		if !p.queued {
			p.queued = true
			s.queue = append(s.queue, p)
		}
		return ans, false
	case statusStarting:
		return ans, false // woken when the epoch-start record is written
	}
	p.pending = false
	return ans, true
}

// serve sends what there is for a partition; done says that ans is the answer.
func (s *session) serve(ctx context.Context, p *sessionPart, maxBytes int) (ans fetchAnswer, slice *log.Slice, done bool) {
	s.mu.Lock()
	r, q, judged := p.r, p.req, p.judged
	s.mu.Unlock()
	if !judged {
		ans, done = s.judge(ctx, p)
		return ans, nil, done
	}
	if r == nil || r.use() != nil {
		ans, done = s.judge(ctx, p)
		return ans, nil, done
	}
	defer r.unuse()
	if q.MaxBytes > 0 {
		maxBytes = min(maxBytes, int(q.MaxBytes))
	}
	ans, slice, done = r.serve(ctx, s.from, q, maxBytes)
	if !done {
		return ans, nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ans.Status == statusOK || ans.Status == statusRetry || ans.Status == statusStale {
		p.pending = false
		return ans, slice, true
	}
	// Something has changed: judge it again in its turn.
	p.judged = false
	if !p.queued {
		p.queued = true
		s.queue = append(s.queue, p)
	}
	return ans, nil, false
}

// judge is the leader's side of a fetch, without data.
func (r *Replica) judge(ctx context.Context, from Member, q fetchRequest) fetchAnswer {
	r.mu.Lock()
	stale := r.core.start != r.l.Start() || r.core.localStart != r.l.LocalStart()
	edge := r.edge
	r.mu.Unlock()
	if stale || q.LastEpoch == noEpoch || q.Pos < r.l.LocalStart() {
		r.observe()
	}
	if at := r.l.LocalStart(); edge.localStart != at {
		var err error
		if edge, err = edgeOf(ctx, r.l, at); err == nil {
			r.mu.Lock()
			r.edge = edge
			r.mu.Unlock()
		}
	}
	a := r.step(evFetch{from, q, edge, time.Now()}).answer
	if a.Status == statusTierStart {
		producers, err := r.l.ProducerSnapshot(ctx, a.Start)
		if err != nil || len(producers) > maxProducerBytes || len(a.Chain) > maxChain {
			r.damagedBy(err)
			r.m.opt.Logger.Warn("start from the tier not answered", "partition", r.id.String(), "offset", int64(a.Start), "err", err)
			return fetchAnswer{Partition: a.Partition, Seq: a.Seq, Status: statusRetry, Leader: a.Leader, LeaderEpoch: a.LeaderEpoch}
		}
		a.Producers = producers
	}
	return a
}

// edgeOf looks where the batch begins that at lies in. With an error the edge is at
// itself: a follower may begin there, as if a batch did, and be refused its records.
func edgeOf(ctx context.Context, l *log.Log, at log.Offset) (edge, error) {
	if at == l.End() {
		return edge{at, at}, nil
	}
	s, err := l.Read(ctx, at, 1)
	if err != nil {
		return edge{at, at}, err
	}
	defer s.Release()
	if s.Len() == 0 {
		return edge{at, at}, nil
	}
	return edge{at, s.Base()}, nil
}

// serve reads what there is for a fetch that was judged good.
func (r *Replica) serve(ctx context.Context, from Member, q fetchRequest, maxBytes int) (a fetchAnswer, slice *log.Slice, done bool) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return fetchAnswer{Partition: q.Partition, Seq: q.Seq, Status: statusUnknownPartition, Leader: -1}, nil, true
	}
	a, data, moved := r.core.serve(from, q)
	r.mu.Unlock()
	if a.Status != statusOK {
		return a, nil, true
	}
	if !data {
		return a, nil, moved
	}
	// Of the batch that the local start lies in, only what is above can be asked for; it
	// comes whole.
	slice, err := r.l.Read(ctx, max(q.Pos, r.l.LocalStart()), maxBytes)
	if err == nil && (slice.Len() == 0 || slice.Base() != q.Pos) {
		slice.Release()
		err = log.ErrOffsetOutOfRange
	}
	if err != nil {
		// The log has changed under us, or is damaged: the follower asks again.
		r.damagedBy(err)
		a.Status = statusRetry
		return a, nil, true
	}
	a.PayloadBytes = int32(slice.Len())
	return a, slice, true
}

// payload is the payload of one answer.
type payload struct {
	parts []*log.Slice
	n     int
}

func (p *payload) add(s *log.Slice) { p.parts = append(p.parts, s); p.n += s.Len() }

// Len implements [Payload].
func (p *payload) Len() int { return p.n }

// WriteTo implements [Payload].
func (p *payload) WriteTo(w io.Writer) (n int64, err error) {
	for _, s := range p.parts {
		k, err := s.WriteTo(w)
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Release implements [Payload].
func (p *payload) Release() {
	for _, s := range p.parts {
		s.Release()
	}
	p.parts, p.n = nil, 0
}
