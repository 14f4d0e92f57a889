package metadata

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cordwood-io/cordwood/metadata/internal/metapb"
)

// observe keeps an observer's image up to date: it asks a voter for what follows,
// the voter answers when there is something, and another one is asked when the
// first fails, lags, or has lost sight of the leader.
func (s *Server) observe(ctx context.Context) error {
	wait := s.opt.Session / 2
	pause := s.opt.Tick / 4
	failed := 0
	for at := int(s.opt.Self) % len(s.opt.Voters); ctx.Err() == nil; {
		good, err := s.pullOnce(ctx, s.opt.Voters[at].ID, wait)
		if err != nil {
			return err
		}
		if good {
			failed, pause = 0, s.opt.Tick/4
			continue
		}
		at = (at + 1) % len(s.opt.Voters)
		if failed++; failed < len(s.opt.Voters) {
			continue
		}
		failed = 0
		timer := time.NewTimer(max(pause, time.Millisecond))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		pause = min(2*max(pause, time.Millisecond), max(s.opt.Session/6, s.opt.Tick))
	}
	return nil
}

// pullOnce reports whether the voter is worth asking again. An error ends the
// server.
func (s *Server) pullOnce(ctx context.Context, from BrokerID, wait time.Duration) (good bool, err error) {
	cctx, cancel := context.WithTimeout(ctx, wait+s.opt.Session)
	defer cancel()
	im := s.Image()
	reply, err := s.ask(cctx, from, &metapb.Request{Ask: &metapb.Request_Pull{Pull: &metapb.Pull{Index: im.index, WaitNs: int64(wait)}}})
	if err != nil || reply.Code != 0 || reply.Pulled == nil {
		if st, _ := s.leaderNow(); st.leader == from {
			s.setLeader(leaderState{leader: NoBroker}, true)
		}
		return false, nil
	}
	p := reply.Pulled
	st, _ := s.leaderNow()
	if leader := BrokerID(p.Leader) - 1; leader != NoBroker && leader != st.leader {
		s.setLeader(leaderState{leader: leader}, true)
	}
	if p.Snapshot != nil {
		sn, err := snapshotFromProto(p.Snapshot, s.opt.Cluster)
		if err != nil {
			return false, err
		}
		if sn.index > im.index {
			s.publish(sn.image, nil, true)
		}
		return true, nil
	}
	if len(p.Entries) == 0 {
		return p.Leader != 0 && p.Applied >= im.index, nil
	}
	next := im.clone()
	touched := changes{}
	for _, e := range p.Entries {
		if e.Index != next.index+1 {
			return false, fmt.Errorf("metadata: voter %d sent entry %d after %d", from, e.Index, next.index)
		}
		a, err := applyEntry(next, e.Index, e.Term, raftpb.EntryType(e.Type), e.Data)
		if err != nil {
			return false, err
		}
		for _, r := range a.records {
			touched.add(r)
		}
	}
	s.publish(next, touched, false)
	return true, nil
}
