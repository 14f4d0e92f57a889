package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A proposal is the one event that a leader has in flight. It is sent until it
// has been read back: any error of an append leaves open whether the event is in
// the tier log, and a second copy of it does nothing.
type proposal struct {
	epoch   log.Epoch
	seq     uint64 // 0: a barrier
	body    Body
	event   []byte
	done    chan struct{}      // closed when verdict and err are set
	cancel  context.CancelFunc // ends the append that is under way
	verdict Verdict
	err     error
}

// meets looks at an event that was just applied, and reports whether it decided
// the proposal. settled says that the state is that of the tier log, and not one that
// began anew and has not come to the end. Requires: ledger.mu.
//
// Invariant: whatever the tier log gives this node to read, a proposal is decided when
// a copy of it is read back, so that it is not sent for ever.
func (f *proposal) meets(s *State, e Event, v Verdict, raw []byte, settled bool) bool {
	mine := e.Epoch == f.epoch && e.Seq == f.seq
	switch {
	case s.Epoch() > f.epoch:
		f.err = ErrFenced
	case f.seq == 0:
		if s.Epoch() < f.epoch {
			return false
		}
		// The barrier stands.
	case mine && v.Taken():
		if f.verdict = v; !bytes.Equal(raw, f.event) {
			f.err = errStranger
		}
	case s.Epoch() == f.epoch && s.Seq() >= f.seq:
		// Its turn has passed unseen: reading began anew at a checkpoint behind it.
		if !s.shows(f.body) {
			f.err = errOverrun
		}
	case mine && settled && bytes.Equal(raw, f.event):
		// It was next when it was made, and is not any more: the tier log has lost what came
		// before it. It will never be taken.
		f.err = errOverrun
	default:
		return false
	}
	f.cancel()
	close(f.done)
	return true
}

// shows says whether an event with this body has taken effect, as far as the state tells:
// what it says no for may have been, and can be asked for again.
func (s *State) shows(b Body) bool {
	switch b := b.(type) {
	case CopyStarted:
		return s.knows(b.ID)
	case CopyFinished:
		_, held := s.held[b.ID]
		return held
	}
	return false
}

// errStranger: the sequence number went to an event that this leadership did not
// write. It may be one of an earlier leadership of this process in the same
// epoch, which was still under way.
var errStranger = fmt.Errorf("%w: another event has its place", ErrTwoWriters)

// errOverrun: it is open what became of the event, and its place will not come again.
// What is to be done is to be found out from the state as it is now.
var errOverrun = errors.New("tier: the tier log was read anew, and goes on elsewhere")

// propose appends one event as the leader and returns what every replica makes of
// it. The wait ends with the leadership only: until the event is read back no
// other may take its place.
func (p *Partition) propose(lead *leadership, body Body) (Verdict, error) {
	return p.proposeMade(lead, func() (Body, error) { return body, nil })
}

// proposeMade is propose with a body that is made when its turn has come: the state
// does not change from then until the event is decided, unless another becomes leader.
func (p *Partition) proposeMade(lead *leadership, made func() (Body, error)) (Verdict, error) {
	select {
	case <-lead.token:
	case <-lead.ctx.Done():
		return 0, context.Cause(lead.ctx)
	}
	defer func() { lead.token <- struct{}{} }()
	if err := p.leadErr(lead); err != nil {
		return 0, err
	}
	p.ledger.mu.RLock()
	at := p.ledger.state.Seq()
	p.ledger.mu.RUnlock()
	body, err := made()
	if err != nil {
		return 0, err
	}
	f := &proposal{epoch: lead.epoch, done: make(chan struct{})}
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(lead.ctx)
	defer f.cancel()

	_, barrier := body.(Barrier)
	l := p.ledger
	l.mu.Lock()
	switch {
	case l.state.Epoch() > lead.epoch:
		l.mu.Unlock()
		return 0, p.endLead(lead, ErrFenced)
	case !barrier && l.state.Epoch() < lead.epoch:
		// The barrier was read back once: it is lost, or was not read again yet.
		l.mu.Unlock()
		p.m.mu.Lock()
		lead.barrier = false
		p.m.enqueueLocked(taskControl, p)
		p.m.mu.Unlock()
		return 0, errOverrun
	case barrier && l.state.Epoch() == lead.epoch:
		l.mu.Unlock()
		return Applied, nil
	case !barrier && l.state.Seq() != at:
		// Another node writes in this epoch: what was made may be of an older state.
		l.mu.Unlock()
		return 0, p.stranger(lead)
	case !barrier:
		f.seq = l.state.Seq() + 1
	}
	event, err := EncodeEvent(Event{Partition: p.id, Epoch: f.epoch, Seq: f.seq, Body: body})
	if err != nil {
		l.mu.Unlock()
		return 0, err
	}
	f.body, f.event = body, event
	l.proposal = f
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		if l.proposal == f {
			l.proposal = nil
		}
		l.mu.Unlock()
	}()

	for failures := 0; ; failures++ {
		actx, cancel := context.WithTimeout(ctx, p.m.o.EventTimeout)
		err := p.m.o.Events.Append(actx, p.id, event)
		cancel()
		wait := p.m.o.EventTimeout
		if err != nil {
			wait = backoff(failures, &p.m.o, err)
		}
		t := time.NewTimer(wait)
		select {
		case <-f.done:
			t.Stop()
			switch f.err {
			case nil:
				return f.verdict, nil
			case errStranger:
				return 0, p.stranger(lead)
			case errOverrun:
				return 0, errOverrun
			}
			return 0, p.endLead(lead, f.err)
		case <-lead.ctx.Done():
			t.Stop()
			return 0, context.Cause(lead.ctx)
		case <-t.C:
			if err != nil && failures == 0 {
				p.m.logger(p).Warn("append to the tier log", "kind", fmt.Sprintf("%T", body), "error", err)
			}
		}
	}
}

func (p *Partition) leadErr(lead *leadership) error {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return lead.err
}

// endLead makes a leadership do nothing any more, and returns why.
func (p *Partition) endLead(lead *leadership, err error) error {
	p.m.mu.Lock()
	first := lead.err == nil
	if first {
		lead.err = err
	}
	err = lead.err
	for _, r := range lead.trims {
		r.done <- err
	}
	lead.trims = nil
	job := lead.job
	p.m.mu.Unlock()
	if job != nil {
		job.cancel(err)
	}
	if first {
		p.m.logger(p).Warn("leadership in the tier ended", "epoch", int(lead.epoch), "error", err)
	}
	return err
}

// stranger counts a foreign event of the leader's own epoch.
func (p *Partition) stranger(lead *leadership) error {
	p.m.mu.Lock()
	lead.strangers++
	n := lead.strangers
	p.m.mu.Unlock()
	if n > strangersAllowed && p.log != nil {
		return p.endLead(lead, ErrTwoWriters)
	}
	return errStranger
}
