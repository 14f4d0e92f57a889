package replication

import (
	"fmt"
	"slices"
	"time"
)

// Status describes the replica: its role, how far it is, and why its high watermark
// does not move.
func (r *Replica) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.core.status(time.Now())
	s.Partition, s.Err = r.id, r.err
	if r.closed && s.Err == nil {
		s.Err = ErrClosed
	}
	return s
}

func (c *core) status(now time.Time) Status {
	s := Status{Role: c.role, Leader: c.a.Leader, LeaderEpoch: c.a.LeaderEpoch, PartitionEpoch: c.a.PartitionEpoch,
		ISR: slices.Clone(c.a.ISR), MinISR: c.a.minISR(), Ready: c.role == RoleLeader && c.lead.ready,
		LogStart: c.start, LocalStart: c.localStart, HighWatermark: c.hw, DurableEnd: c.durable, End: c.end,
		Lossy: c.lossy, Quarantined: c.quarantined}
	if c.hw < c.end {
		s.Waiting = c.waiting(now)
	}
	if c.role != RoleLeader {
		return s
	}
	for _, id := range c.a.Replicas {
		if id == c.self.ID {
			continue
		}
		f := c.lead.followers[id]
		if f == nil {
			s.Followers = append(s.Followers, FollowerStatus{Member: Member{id, -1}, End: -1, DurableEnd: -1, Outside: "has not fetched in this epoch"})
			continue
		}
		fs := FollowerStatus{Member: Member{id, f.epoch}, End: f.pos, DurableEnd: f.durable}
		m, in := hasMember(c.a.ISR, id)
		fs.InSync = in && m.Epoch == f.epoch
		if !fs.InSync {
			fs.Outside = c.outside(id, f, now)
		}
		s.Followers = append(s.Followers, fs)
	}
	return s
}

func (c *core) outside(id NodeID, f *follower, now time.Time) string {
	switch m, live := hasMember(c.a.Live, id); {
	case f.lossy:
		return "has lost records that it had reported durable"
	case !f.verified:
		return "its log is not yet verified in this epoch"
	case !live:
		return "is fenced or stopping"
	case m.Epoch != f.epoch:
		return "is an earlier life of its process"
	case f.durable < c.hw || f.durable <= c.lead.leso:
		return "is catching up"
	case c.lead.inflight:
		return "the controller has not answered yet"
	case c.lag(f, now) > c.cfg.LagMax:
		return "is catching up"
	}
	return "is about to join"
}

func (c *core) waiting(now time.Time) string {
	switch {
	case c.failed:
		return "the log has failed"
	case c.quarantined:
		return "quarantined: told to cut below the high watermark"
	case c.role == RoleNone:
		return "no leader"
	case c.role == RoleFollower:
		return "the leader has not told yet"
	case c.lead.leso < 0:
		return "the epoch-start record is not written yet"
	case len(c.a.ISR) < c.a.minISR():
		return fmt.Sprintf("%d in-sync replicas, MinISR is %d", len(c.a.ISR), c.a.minISR())
	case c.durable <= c.hw:
		return "the own disk has not synced yet"
	}
	for m := range c.maximal {
		switch f := c.lead.followers[m.ID]; {
		case f == nil || f.epoch != m.Epoch || !f.verified:
			return fmt.Sprintf("node %d, in sync, has not fetched in this epoch", m.ID)
		case f.durable <= c.hw:
			return fmt.Sprintf("node %d, in sync, has not reported more durable", m.ID)
		}
	}
	for id, f := range c.lead.followers {
		if f.durable <= c.hw && c.eligible(id, f) && c.lag(f, now) <= c.cfg.AckLatency {
			return fmt.Sprintf("node %d, about to join, has not reported more durable", id)
		}
	}
	return "about to move"
}
