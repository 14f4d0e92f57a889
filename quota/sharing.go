package quota

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"sync"
	"time"
)

// Carrier takes reports and grants to other brokers. Both are best effort: a lost, late, repeated or overtaken message does no harm. Calls must not
// block. Messages to the broker itself are not carried.
type Carrier interface {
	// Report takes what a broker has used to a coordinator.
	Report(to BrokerID, r Report)
	// Grant takes a coordinator's shares to a broker.
	Grant(to BrokerID, g Grant)
}

// SharingOptions configure [NewSharing].
type SharingOptions struct {
	Self    BrokerID // of this broker, in the set that shares the quotas
	Limiter *Limiter // new; see [NewAgent]
	Carrier Carrier
	Rule    Rule
	// Backpressure, if set, is stepped each period with what Load returns.
	Backpressure *Backpressure
	Load         func() Load
	Logger       *slog.Logger // nil discards
	// Pressed, if set, is called when the broker begins to press back, when it asks for a rebalance, and when the pressure ends.
	Pressed func(Pressure)
}

// Sharing runs one broker's part in sharing quotas: the [Agent] of its tenants, the [Coordinator] of those that hash to it, and its [Backpressure]. The
// host calls Run, and HandleReport and HandleGrant with what the [Carrier]s of other brokers bring. Safe for concurrent use.
type Sharing struct {
	o     SharingOptions
	agent *Agent

	mu          sync.Mutex // guards coordinator
	coordinator *Coordinator
}

// NewSharing returns the broker's part. Until [Sharing.SetMembers] the broker has all of each quota.
func NewSharing(o SharingOptions) (*Sharing, error) {
	if o.Limiter == nil || o.Carrier == nil || (o.Backpressure != nil) != (o.Load != nil) {
		return nil, fmt.Errorf("%w: sharing needs a Limiter and a Carrier, and Load together with Backpressure", ErrInvalid)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := NewCoordinator(o.Self, o.Rule, o.Limiter.TenantRate)
	if err != nil {
		return nil, err
	}
	a, err := NewAgent(o.Self, o.Limiter, o.Rule)
	if err != nil {
		return nil, err
	}
	return &Sharing{o: o, agent: a, coordinator: c}, nil
}

// SetMembers says what the cluster consists of. An older term than the last is ignored.
func (s *Sharing) SetMembers(m Members) {
	now := s.o.Limiter.Now()
	s.mu.Lock()
	s.coordinator.SetMembers(m, now)
	s.mu.Unlock()
	s.agent.SetMembers(m, now)
}

// HandleReport takes in what another broker's Carrier was given for this one.
func (s *Sharing) HandleReport(r Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coordinator.Report(r, s.o.Limiter.Now())
}

// HandleGrant takes in what another broker's Carrier was given for this one.
func (s *Sharing) HandleGrant(g Grant) { s.agent.Apply(g, s.o.Limiter.Now()) }

// Run reports and divides every [Rule.Period] until ctx ends, and returns nil. Call it once.
func (s *Sharing) Run(ctx context.Context) error {
	pprof.Do(ctx, pprof.Labels("cordwood", "quota-sharing"), s.run)
	return nil
}

func (s *Sharing) run(ctx context.Context) {
	ticker := time.NewTicker(s.agent.rule.Period)
	defer ticker.Stop()
	var last Pressure
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.tick()
		if s.o.Backpressure == nil {
			continue
		}
		p := s.o.Backpressure.Step(s.o.Load(), s.o.Limiter.Now())
		if p.Active != last.Active || p.Rebalance != last.Rebalance {
			s.o.Logger.Warn("quota pressure", "active", p.Active, "rebalance", p.Rebalance, "queue", p.Queue)
			if s.o.Pressed != nil {
				s.o.Pressed(p)
			}
		}
		last = p
	}
}

func (s *Sharing) tick() {
	l := s.o.Limiter
	s.agent.Tick(l.Now())
	for _, r := range s.agent.Reports(l.Now()) {
		if r.To == s.o.Self {
			s.HandleReport(r)
		} else {
			s.o.Carrier.Report(r.To, r)
		}
	}
	s.mu.Lock()
	grants := s.coordinator.Step(l.Now())
	s.mu.Unlock()
	for _, g := range grants {
		if g.To == s.o.Self {
			s.HandleGrant(g)
		} else {
			s.o.Carrier.Grant(g.To, g)
		}
	}
}
