package metadata

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A request waits for the controller's answer.
type request struct {
	ask     any
	arrived time.Time
	done    chan answer // buffered
}

type answer struct {
	result any
	err    error
}

// A proposal is the one entry of the controller that is under way.
type proposal struct {
	term, sequence uint64
	done           chan settled // buffered
}

type settled struct {
	index    uint64
	rejected error
}

// maxPlanBytes bounds what one entry gathers from several requests.
const maxPlanBytes = 1 << 20

// submit hands a request to this server's controller. If it is not the active
// one, the answer is [ErrNotController].
func (s *Server) submit(ctx context.Context, ask any) (any, error) {
	if s.member == nil {
		return nil, ErrNotController
	}
	r := &request{ask: ask, arrived: time.Now(), done: make(chan answer, 1)}
	select {
	case s.work <- r:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errUnknownOutcome, context.Cause(ctx))
	case <-s.ctx.Done():
		return nil, s.ended()
	}
	select {
	case a := <-r.done:
		return a.result, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errUnknownOutcome, context.Cause(ctx))
	case <-s.ctx.Done():
		return nil, s.ended()
	}
}

// leadLoop waits for this voter to become the controller, and is it then. It is
// active once it has applied an entry of its own term: before, it may not know
// what earlier controllers have decided.
func (s *Server) leadLoop(ctx context.Context) error {
	// After a round that failed the next term of office waits a tick: what it
	// would propose of its own accord might be refused again at once.
	var rest <-chan time.Time
	for ctx.Err() == nil {
		st, moved := s.leaderNow()
		im, published := s.imageNow()
		if st.leads && im.term == st.term && rest == nil {
			s.lead(ctx, st.term)
			s.setActive(0)
			rest = time.After(s.opt.Tick)
			continue
		}
		select {
		case <-ctx.Done():
		case <-rest:
			rest = nil
		case <-moved:
		case <-published:
		case r := <-s.work:
			r.done <- answer{err: ErrNotController}
		}
	}
	return nil
}

func (s *Server) setActive(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = term
}

// stillLeads returns whether this voter leads in a term, and a channel that is
// closed when that may have changed.
func (s *Server) stillLeads(term uint64) (bool, <-chan struct{}) {
	st, moved := s.leaderNow()
	return st.leads && st.term == term, moved
}

// lead is the controller of one term. It answers requests in rounds: decides all
// that wait, proposes the records as one entry, and waits until that is applied
// before the next round. It returns when the term is over, and when a round has
// failed: what the round has left in the soft state may be wrong then, and a new
// term of office begins with a fresh one.
func (s *Server) lead(ctx context.Context, term uint64) {
	c := newController(s.opt, newTopicID)
	c.activate(s.Image(), time.Now())
	s.setActive(term)
	timer := time.NewTimer(0) // the first round looks what there is to maintain
	defer timer.Stop()
	var waiting []*request // of a round before, which was full
	var sequence uint64
	for {
		leads, moved := s.stillLeads(term)
		if !leads {
			refuse(waiting, ErrNotController)
			return
		}
		if len(waiting) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-moved:
				continue
			case <-timer.C:
			case r := <-s.work:
				waiting = append(waiting, r)
			}
		}
		waiting = s.moreWork(waiting)

		p := newPlan(s.Image())
		var round []*request
		var decisions []decision
		proof := false // a verdict without an entry needs proof of leadership
		for len(waiting) > 0 && p.bytes < maxPlanBytes {
			r := waiting[0]
			waiting = waiting[1:]
			d := c.decide(p, r.arrived, r.ask)
			_, beat := d.result.(HeartbeatReply)
			proof = proof || !beat && !errors.Is(d.err, ErrNotController)
			round, decisions = append(round, r), append(decisions, d)
		}
		if len(waiting) == 0 {
			// All heartbeats that have arrived count, however long they had to wait
			// (KAFKA-15019).
			c.expire(p, time.Now())
			c.maintain(p)
		}

		index := p.base
		var err error
		switch {
		case len(p.records) > 0:
			sequence++
			index, err = s.proposeAndWait(ctx, term, sequence, p.records)
		case proof:
			err = s.proveLeadership(ctx, term)
		}
		if err != nil {
			refuse(round, err)
			refuse(waiting, ErrNotController)
			return
		}
		for i, r := range round {
			if after := decisions[i].after; after != nil {
				after(index)
			}
			r.done <- answer{result: decisions[i].result, err: decisions[i].err}
		}
		timer.Stop()
		if next, ok := c.nextDeadline(); ok {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

func refuse(rs []*request, err error) {
	for _, r := range rs {
		r.done <- answer{err: err}
	}
}

// moreWork adds all requests that wait.
func (s *Server) moreWork(rs []*request) []*request {
	for {
		select {
		case r := <-s.work:
			rs = append(rs, r)
		default:
			return rs
		}
	}
}

// proposeAndWait appends one entry and waits until it is applied here. Any error
// leaves the outcome open, unless it is [ErrNotController].
func (s *Server) proposeAndWait(ctx context.Context, term, sequence uint64, records []record) (uint64, error) {
	data, err := encodeEntry(term, sequence, records)
	if err != nil {
		return 0, err
	}
	p := &proposal{term: term, sequence: sequence, done: make(chan settled, 1)}
	s.mu.Lock()
	s.pending = p
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.pending = nil
		s.mu.Unlock()
	}()
	refused := make(chan error, 1)
	s.member.steps.push(func() { s.member.propose(term, data, refused) })
	for {
		leads, moved := s.stillLeads(term)
		if !leads {
			return 0, fmt.Errorf("%w: leadership lost", errUnknownOutcome)
		}
		select {
		case <-ctx.Done():
			return 0, s.ended()
		case err := <-refused:
			return 0, err
		case <-moved:
		case d := <-p.done:
			if d.rejected != nil {
				// Only a bug in the controller can cause this.
				s.opt.Logger.Error("metadata: own entry rejected", "index", d.index, "error", d.rejected)
				return 0, fmt.Errorf("%w: %w", ErrNotController, d.rejected)
			}
			return d.index, nil
		}
	}
}

// settle tells the controller what became of its entry.
func (s *Server) settle(index uint64, outcomes []applied) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range outcomes {
		if p := s.pending; p != nil && a.term == p.term && a.sequence == p.sequence {
			p.done <- settled{index: index, rejected: a.rejected}
			s.pending = nil
		}
	}
}

// proveLeadership returns nil once a quorum has confirmed, after the call began,
// that this voter leads in the term: what it has decided before is then not
// outdated.
func (s *Server) proveLeadership(ctx context.Context, term uint64) error {
	proof := make(chan struct{}, 1)
	s.member.steps.push(func() { s.member.confirm(term, proof) })
	// A question may get lost; its askers come again.
	limit := time.NewTimer(time.Duration(s.opt.ElectionTicks) * s.opt.Tick)
	defer limit.Stop()
	for {
		leads, moved := s.stillLeads(term)
		if !leads {
			return ErrNotController
		}
		select {
		case <-ctx.Done():
			return s.ended()
		case <-limit.C:
			return ErrNotController
		case <-moved:
		case <-proof:
			return nil
		}
	}
}
