package metadata

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cordwood-io/cordwood/metadata/internal/metapb"
)

// call carries a request to the controller, wherever it is, until there is a
// verdict or ctx ends. All requests may be repeated: an attempt whose outcome is
// unknown is followed by another one.
func (s *Server) call(ctx context.Context, what string, attempt time.Duration, req any) (any, error) {
	if !s.enter() {
		return nil, s.ended()
	}
	defer s.tasks.Done()
	attempt = max(attempt, s.opt.Tick)
	pause := max(s.opt.Tick/4, time.Millisecond)
	var last error
	next := BrokerID(0) // voter to ask when nobody knows the controller
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("metadata: %s: outcome unknown: %w", what, errors.Join(context.Cause(ctx), last))
		}
		if s.ctx.Err() != nil {
			return nil, s.ended()
		}
		st, moved := s.leaderNow()
		to := st.leader
		if to == NoBroker && s.member == nil {
			to = s.opt.Voters[int(next)%len(s.opt.Voters)].ID
			next++
		}
		err := ErrNotController
		var res any
		if to != NoBroker {
			res, err = s.attempt(ctx, attempt, to, req)
		}
		if definite(err) {
			return res, err
		}
		last = err
		timer := time.NewTimer(pause)
		select {
		case <-moved:
		case <-timer.C:
			pause = min(2*pause, max(s.opt.Session/6, s.opt.Tick))
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
		timer.Stop()
	}
}

// attempt is one try.
func (s *Server) attempt(ctx context.Context, limit time.Duration, to BrokerID, req any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if to == s.opt.Self {
		return s.submit(ctx, req)
	}
	reply, err := s.ask(ctx, to, requestToProto(req))
	if err != nil {
		return nil, err
	}
	if err := replyToError(reply); err != nil {
		if hint := BrokerID(reply.Leader) - 1; s.member == nil && errors.Is(err, ErrNotController) {
			st, _ := s.leaderNow()
			if st.leader != hint {
				s.setLeader(leaderState{leader: hint}, true)
			}
		}
		return nil, err
	}
	return resultFromProto(req, reply)
}

// ask sends one request to one server.
func (s *Server) ask(ctx context.Context, to BrokerID, r *metapb.Request) (*metapb.Reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	b, err := s.opt.Network.Call(ctx, to, s.seal(messageRequest, marshalMessage(r)))
	if err != nil {
		return nil, fmt.Errorf("%w: broker %d: %w", errUnknownOutcome, to, err)
	}
	m, err := openMessage(b, to, s.opt.Cluster)
	if err != nil {
		return nil, err
	}
	var reply metapb.Reply
	if m.kind != messageReply {
		return nil, &FormatError{What: "reply", Err: fmt.Errorf("unexpected kind %d", m.kind)}
	}
	if err := proto.Unmarshal(m.body, &reply); err != nil {
		return nil, &FormatError{What: "reply", Err: err}
	}
	return &reply, nil
}
