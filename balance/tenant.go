package balance

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// StepKind is a kind of [TenantStep].
type StepKind uint8

// The steps of a tenant's move, in their order. Each may be repeated after a crash without harm.
const (
	// StepReserve notes the expected load in the target cell, so that nothing else takes the room.
	StepReserve StepKind = iota + 1
	// StepRedirect makes new topics and partitions of the tenant go to the target cell.
	StepRedirect
	// StepCopy adds replicas in the target cell and waits until they are in sync. Data is written to
	// both cells from here on; nothing has to stop.
	StepCopy
	// StepLead moves leadership to the target cell: clients follow.
	StepLead
	// StepDrop removes the replicas in the old cell. It is the point of no cheap return: rolling back later
	// copies the data again.
	StepDrop
	// StepCommit records the target as the tenant's cell.
	StepCommit
	// StepRelease gives up the reservation: the load shows in reports by now.
	StepRelease

	// StepUncopy removes the replicas in the target cell, and StepUnredirect makes new topics go to
	// the old cell again. They occur in a rollback only.
	StepUncopy
	StepUnredirect
)

var stepNames = [...]string{"", "reserve", "redirect", "copy", "lead", "drop", "commit", "release", "uncopy", "unredirect"}

// String returns the name of the kind.
func (k StepKind) String() string {
	if int(k) < len(stepNames) && k > 0 {
		return stepNames[k]
	}
	return fmt.Sprintf("StepKind(%d)", uint8(k))
}

// TenantStep is one step of a [TenantMove].
type TenantStep struct {
	Kind StepKind
	// Partition is set in steps about one.
	Partition PartitionID
	// Brokers are those that get or lose a replica, or the one that leads.
	Brokers []BrokerID
	// Bytes is what the step copies.
	Bytes int64
}

// TenantMove is the plan to move a tenant from one cell to another.
type TenantMove struct {
	Tenant   TenantID
	From, To CellID
	Steps    []TenantStep
	// Bytes is what is copied in all.
	Bytes int64

	targets map[PartitionID][]BrokerID
	origins map[PartitionID]origin
}

type origin struct {
	replicas []BrokerID
	leader   BrokerID
}

// TenantProgress is what a host records durably while it moves a tenant; partitions speak for
// themselves, in the model.
type TenantProgress struct {
	Reserved, Redirected, Committed, Released bool
}

// ErrTenantMove says that a tenant cannot move as asked.
var ErrTenantMove = errors.New("balance: tenant cannot move")

// PlanTenantMove plans the move of the partitions of a tenant to another cell. Small partitions go
// first: what is wrong shows while little is at stake. Each keeps its number of replicas and one in a
// zone, on the brokers of the target that are least full in proportion to their capacity. It
// returns [ErrTenantMove] if a partition is unknown, lies in more than one cell, has as many replicas
// as the target cell cannot hold, or would not fit; then nothing is planned.
//
// Source: Kora names tenant moves (section 5.3) without a procedure: the order is our own.
func PlanTenantMove(c Cluster, tenant TenantID, partitions []PartitionID, to CellID) (TenantMove, error) {
	m := TenantMove{Tenant: tenant, To: to, targets: map[PartitionID][]BrokerID{}, origins: map[PartitionID]origin{}}
	type target struct {
		b     *Broker
		load  Loads
		count int
	}
	var targets []*target
	for i := range c.Brokers {
		if b := &c.Brokers[i]; b.Cell == to && (b.State == Active || b.State == Joining) {
			targets = append(targets, &target{b: b})
		}
	}
	slices.SortFunc(targets, func(a, b *target) int { return cmp.Compare(a.b.ID, b.b.ID) })
	zones := map[string]bool{}
	byID := map[BrokerID]*target{}
	for _, t := range targets {
		zones[t.b.Zone] = true
		byID[t.b.ID] = t
	}
	moving := map[PartitionID]*Partition{}
	for _, id := range partitions {
		moving[id] = nil
	}
	var list []*Partition
	for i := range c.Partitions {
		p := &c.Partitions[i]
		if _, ok := moving[p.ID]; ok {
			moving[p.ID] = p
			list = append(list, p)
			continue
		}
		for _, r := range p.Replicas {
			if t := byID[r.Broker]; t != nil {
				t.load = t.load.add(r.Load)
				t.count++
				if r.Broker == p.Leader {
					t.load = t.load.add(p.Leadership)
				}
			}
		}
	}
	for id, p := range moving {
		if p == nil {
			return TenantMove{}, fmt.Errorf("%w: partition %v is unknown", ErrTenantMove, id)
		}
	}
	size := func(p *Partition) int64 {
		n := int64(0)
		for _, r := range p.Replicas {
			n = max(n, r.Load[Disk])
		}
		return n
	}
	slices.SortFunc(list, func(a, b *Partition) int {
		if d := cmp.Compare(size(a), size(b)); d != 0 {
			return d
		}
		return a.ID.Compare(b.ID)
	})
	m.Steps = append(m.Steps, TenantStep{Kind: StepReserve}, TenantStep{Kind: StepRedirect})
	for i, p := range list {
		if i == 0 {
			m.From = p.Cell
		}
		if p.Cell != m.From || p.Cell == to {
			return TenantMove{}, fmt.Errorf("%w: partition %v is in cell %d, others in %d, the target is %d", ErrTenantMove, p.ID, p.Cell, m.From, to)
		}
		if len(p.Replicas) > len(targets) {
			return TenantMove{}, fmt.Errorf("%w: partition %v has %d replicas, cell %d has %d brokers", ErrTenantMove, p.ID, len(p.Replicas), to, len(targets))
		}
		limit := (len(p.Replicas) + max(len(zones), 1) - 1) / max(len(zones), 1)
		used := map[string]int{}
		var chosen []BrokerID
		for k := range p.Replicas {
			load := p.Replicas[k].Load
			if k == 0 {
				load = load.add(p.Leadership) // the first one is to lead
			}
			var best *target
			fullest := func(t *target) float64 {
				f := 0.0
				for r := range load {
					if cp := t.b.Capacity[r]; cp > 0 {
						f = max(f, float64(t.load[r]+load[r])/float64(cp))
					}
				}
				return f
			}
			for _, t := range targets {
				if used[t.b.Zone] >= limit || slices.Contains(chosen, t.b.ID) || fullest(t) > 1 {
					continue
				}
				if best == nil {
					best = t
					continue
				}
				fa, fb := fullest(t), fullest(best)
				if fa < fb || fa == fb && (t.load[Work] < best.load[Work] || t.load[Work] == best.load[Work] && t.count < best.count) {
					best = t
				}
			}
			if best == nil {
				return TenantMove{}, fmt.Errorf("%w: cell %d has no room for partition %v", ErrTenantMove, to, p.ID)
			}
			best.load = best.load.add(load)
			best.count++
			used[best.b.Zone]++
			chosen = append(chosen, best.b.ID)
		}
		o := origin{leader: p.Leader}
		bytes := int64(0)
		for _, r := range p.Replicas {
			o.replicas = append(o.replicas, r.Broker)
			bytes += r.Load[Disk]
		}
		slices.Sort(o.replicas)
		m.targets[p.ID], m.origins[p.ID] = chosen, o
		m.Bytes += bytes
		m.Steps = append(m.Steps,
			TenantStep{Kind: StepCopy, Partition: p.ID, Brokers: chosen, Bytes: bytes},
			TenantStep{Kind: StepLead, Partition: p.ID, Brokers: chosen[:1]})
	}
	for _, p := range list {
		m.Steps = append(m.Steps, TenantStep{Kind: StepDrop, Partition: p.ID, Brokers: m.origins[p.ID].replicas})
	}
	m.Steps = append(m.Steps, TenantStep{Kind: StepCommit}, TenantStep{Kind: StepRelease})
	return m, nil
}

// Remaining returns the steps that are not done yet, in order, going by the cluster as it is: after a
// crash at any point it says how to go on. Partitions that no longer exist need nothing.
func (m TenantMove) Remaining(c Cluster, done TenantProgress) []TenantStep {
	state := m.index(c)
	var out []TenantStep
	for _, s := range m.Steps {
		if !m.finished(s, state, done) {
			out = append(out, s)
		}
	}
	return out
}

// Rollback returns the steps that undo what was done so far, in order: leadership back to the old cell,
// replicas out of the target, new topics to the old cell. Partitions whose old replicas were dropped
// already are copied back first. After [TenantProgress.Committed] it returns nothing: the way back is then
// a move of its own.
func (m TenantMove) Rollback(c Cluster, done TenantProgress) []TenantStep {
	if done.Committed {
		return nil
	}
	state := m.index(c)
	var out, last []TenantStep
	for _, s := range m.Steps {
		if s.Kind != StepCopy {
			continue
		}
		p := state[s.Partition]
		if p == nil {
			continue
		}
		o := m.origins[s.Partition]
		var missing []BrokerID
		for _, b := range o.replicas {
			if r := findReplica(p, b); r == nil || r.Lagging {
				missing = append(missing, b)
			}
		}
		if len(missing) > 0 {
			out = append(out, TenantStep{Kind: StepCopy, Partition: s.Partition, Brokers: missing, Bytes: s.Bytes / int64(len(o.replicas)) * int64(len(missing))})
		}
		if !slices.Contains(o.replicas, p.Leader) {
			to := o.leader
			if to == NoBroker && len(o.replicas) > 0 {
				to = o.replicas[0]
			}
			out = append(out, TenantStep{Kind: StepLead, Partition: s.Partition, Brokers: []BrokerID{to}})
		}
		var extra []BrokerID
		for _, b := range m.targets[s.Partition] {
			if findReplica(p, b) != nil {
				extra = append(extra, b)
			}
		}
		if len(extra) > 0 {
			last = append(last, TenantStep{Kind: StepUncopy, Partition: s.Partition, Brokers: extra})
		}
	}
	out = append(out, last...)
	if done.Redirected {
		out = append(out, TenantStep{Kind: StepUnredirect})
	}
	if done.Reserved && !done.Released {
		out = append(out, TenantStep{Kind: StepRelease})
	}
	return out
}

func (m TenantMove) index(c Cluster) map[PartitionID]*Partition {
	state := make(map[PartitionID]*Partition, len(m.targets))
	for i := range c.Partitions {
		if p := &c.Partitions[i]; m.targets[p.ID] != nil {
			state[p.ID] = p
		}
	}
	return state
}

func (m TenantMove) finished(s TenantStep, state map[PartitionID]*Partition, done TenantProgress) bool {
	switch s.Kind {
	case StepReserve:
		return done.Reserved || done.Released
	case StepRedirect:
		return done.Redirected
	case StepCommit:
		return done.Committed
	case StepRelease:
		return done.Released
	}
	p := state[s.Partition]
	if p == nil {
		return true
	}
	switch s.Kind {
	case StepCopy:
		for _, b := range s.Brokers {
			if r := findReplica(p, b); r == nil || r.Lagging {
				return false
			}
		}
	case StepLead:
		// Any leader in the target cell will do: an election may have chosen another one.
		return slices.Contains(m.targets[s.Partition], p.Leader)
	case StepDrop:
		for _, b := range s.Brokers {
			if findReplica(p, b) != nil {
				return false
			}
		}
	}
	return true
}

func findReplica(p *Partition, b BrokerID) *Replica {
	for i := range p.Replicas {
		if p.Replicas[i].Broker == b {
			return &p.Replicas[i]
		}
	}
	return nil
}
