package balance

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Defaults of [PlanOptions]. The band is that of Cruise Control at its threshold of 1.10; the others are
// ours.
const (
	DefaultHigh          = 1.20
	DefaultTarget        = 1.09
	DefaultChecks        = 3
	DefaultMaxReplicas   = 10_000
	DefaultCoolDown      = 15 * time.Minute
	DefaultSettle        = 3 * Window
	DefaultMaxReportAge  = 2 * Window
	DefaultMinGain       = 0.02
	DefaultWork          = 2_000_000_000
	DefaultDiskShare     = 0.8
	DefaultTransferShare = 0.8
	DefaultWorkShare     = 0.7
)

// Goal is something that a plan pursues.
type Goal uint8

// The goals. The first group is hard: no move breaks one, and a violation starts a round. The second
// is soft, in the order of [DefaultGoals].
const (
	// GoalEvacuate wants nothing on dead and draining brokers, and nothing led by demoted ones.
	GoalEvacuate Goal = iota
	// GoalCell wants all replicas in the partition's cell.
	GoalCell
	// GoalZones wants the replicas of a partition spread evenly over the zones of its cell: one in a
	// zone as long as there are zones enough.
	GoalZones
	// GoalReplicaCapacity wants at most [Broker.MaxReplicas] replicas on a broker.
	GoalReplicaCapacity
	// GoalDiskCapacity and its kin want the load within a share of [Broker.Capacity].
	GoalDiskCapacity
	GoalIngressCapacity
	GoalEgressCapacity
	GoalWorkCapacity

	// GoalDisk and the others below want each broker within the band around the mean.
	GoalDisk
	GoalIngress
	GoalEgress
	GoalWork
	GoalReplicas
	GoalLeaders

	// GoalFill wants joining brokers to have their share. It is no goal to list: it starts a round.
	GoalFill
)

var goalNames = [...]string{
	"evacuate", "cell", "zones", "replica capacity", "disk capacity", "ingress capacity", "egress capacity", "work capacity",
	"disk", "ingress", "egress", "work", "replicas", "leaders", "fill",
}

// String returns the name of the goal.
func (g Goal) String() string {
	if int(g) < len(goalNames) {
		return goalNames[g]
	}
	return fmt.Sprintf("Goal(%d)", uint8(g))
}

// Hard reports whether no move may break the goal.
func (g Goal) Hard() bool { return g < GoalDisk }

// SoftGoal is one soft goal of a planner.
type SoftGoal struct {
	Goal Goal
	// Trigger says that a violation starts a round. Without, the goal is pursued best effort inside
	// rounds that others started; it then never worsens a goal that triggers.
	Trigger bool
}

// DefaultGoals returns the soft goals in their order: disk, ingress, egress and work start rounds, the
// numbers of replicas and leaders are pursued inside them.
func DefaultGoals() []SoftGoal {
	return []SoftGoal{
		{GoalDisk, true}, {GoalIngress, true}, {GoalEgress, true}, {GoalWork, true},
		{GoalReplicas, false}, {GoalLeaders, false},
	}
}

// PlanOptions configure a [Planner]. The zero value is safe: default goals, no limit on moves.
type PlanOptions struct {
	// Goals are the soft goals in order; nil means [DefaultGoals]. Hard goals are always on.
	Goals []SoftGoal
	// High is the ratio of a broker to the mean above which a goal triggers; 0 means [DefaultHigh].
	High float64
	// Target is the ratio that a round aims at: brokers shall end between 2-Target and Target times the
	// mean. Above 1 and at most High; 0 means [DefaultTarget]. The gap to High is the hysteresis.
	Target float64
	// Checks is how many plans in a row must find a soft goal violated before it triggers; 0 means
	// [DefaultChecks]. It counts only with a [Ledger].
	Checks int
	// DiskShare, TransferShare (ingress and egress) and WorkShare are the shares of capacity that
	// the capacity goals allow; 0 means the defaults .8, .8 and .7.
	DiskShare, TransferShare, WorkShare float64

	// IdleBelow is the mean amount a broker below which a resource is not balanced: the ratio of two
	// brokers that do next to nothing means nothing. 0 is no such bound.
	IdleBelow Loads

	// MaxReplicaMoves, MaxLeaderMoves and MaxBytes limit one plan; 0 is no limit.
	MaxReplicaMoves, MaxLeaderMoves int
	MaxBytes                        int64
	// MoveCostBytes is what one replica move costs besides its bytes (a metadata change, clients that
	// refresh), in bytes. Candidates are ordered by gain per cost: with a large one the plan has few
	// moves, with a small one few bytes. 0 means a sixteenth of the mean size of a replica: where bytes and loads
	// go together that is heaviest first; where they do not, bytes are within a few per cent of the least.
	MoveCostBytes int64
	// MinGain is the least gain per byte of a move for a soft goal, relative to the mean of the cluster: a
	// replica that carries a share x of the resource in a share y of the bytes has x/y. 0 means
	// [DefaultMinGain], negative none.
	MinGain float64
	// CoolDown is how long a moved partition is left alone by soft goals; 0 means [DefaultCoolDown],
	// negative none. It needs a [Ledger].
	CoolDown time.Duration
	// Settle is how long the loads of a partition whose leader changed are not believed; 0 means
	// [DefaultSettle], negative none. It needs a [Ledger].
	Settle time.Duration
	// MaxReportAge is the age at which a broker's loads are refused; 0 means [DefaultMaxReportAge],
	// negative none. A broker with refused loads takes no part in soft goals; that one does not answer
	// never stops the others or the hard goals.
	MaxReportAge time.Duration
	// Work limits the steps of search, so that a plan depends on the model and not on the speed of
	// the machine; 0 means [DefaultWork], which is some ten seconds.
	Work int64
	// Force starts a round although nothing triggers: an operator's wish.
	Force bool

	heuristic bool // for tests: never try all
}

func (o PlanOptions) withDefaults() (PlanOptions, error) {
	var errs []error
	ratio := func(name string, v *float64, def, lo, hi float64) {
		if *v == 0 {
			*v = def
		}
		if !(*v >= lo && *v <= hi) {
			errs = append(errs, fmt.Errorf("balance: %s is %v, not in [%v, %v]", name, *v, lo, hi))
		}
	}
	if o.Goals == nil {
		o.Goals = DefaultGoals()
	}
	seen := map[Goal]bool{}
	for _, g := range o.Goals {
		if g.Goal < GoalDisk || g.Goal > GoalLeaders || seen[g.Goal] {
			errs = append(errs, fmt.Errorf("balance: goal %v is not soft or listed twice", g.Goal))
		}
		seen[g.Goal] = true
	}
	ratio("Target", &o.Target, DefaultTarget, 1.0001, 2)
	ratio("High", &o.High, max(DefaultHigh, o.Target), o.Target, 1000)
	ratio("DiskShare", &o.DiskShare, DefaultDiskShare, 0.01, 1)
	ratio("TransferShare", &o.TransferShare, DefaultTransferShare, 0.01, 1)
	ratio("WorkShare", &o.WorkShare, DefaultWorkShare, 0.01, 1)
	if o.Checks == 0 {
		o.Checks = DefaultChecks
	}
	if o.MinGain == 0 {
		o.MinGain = DefaultMinGain
	}
	duration := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	duration(&o.CoolDown, DefaultCoolDown)
	duration(&o.Settle, DefaultSettle)
	duration(&o.MaxReportAge, DefaultMaxReportAge)
	if o.Work == 0 {
		o.Work = DefaultWork
	}
	if o.Checks < 0 || o.MaxReplicaMoves < 0 || o.MaxLeaderMoves < 0 || o.MaxBytes < 0 || o.MoveCostBytes < 0 || o.Work < 0 {
		errs = append(errs, errors.New("balance: a negative limit"))
	}
	return o, errors.Join(errs...)
}

// MoveKind tells the moves apart.
type MoveKind uint8

// The kinds of moves.
const (
	// MoveLeadership hands leadership to a replica that exists: no data moves.
	MoveLeadership MoveKind = iota + 1
	// MoveReplica moves a copy, and leadership with it if it led.
	MoveReplica
)

// String returns the name of the kind.
func (k MoveKind) String() string {
	switch k {
	case MoveLeadership:
		return "leadership"
	case MoveReplica:
		return "replica"
	}
	return fmt.Sprintf("MoveKind(%d)", uint8(k))
}

// Move is one step of a [Plan].
type Move struct {
	Kind      MoveKind
	Partition PartitionID
	From, To  BrokerID
	// Bytes is what has to be copied: 0 for leadership.
	Bytes int64
	// Load is what leaves From and arrives at To.
	Load Loads
	// Goal is what the move is for.
	Goal Goal
	// Swap, when not 0, is shared by the moves of one swap: one alone makes things worse.
	Swap int
	// Estimated is copied from [Partition.Estimated].
	Estimated bool
}

// String describes the move in one line.
func (m Move) String() string {
	s := fmt.Sprintf("%s of %v from %d to %d for %v", m.Kind, m.Partition, m.From, m.To, m.Goal)
	if m.Kind == MoveReplica {
		s += fmt.Sprintf(", %d bytes", m.Bytes)
	}
	if m.Swap != 0 {
		s += fmt.Sprintf(", swap %d", m.Swap)
	}
	return s
}

// Trigger is a reason why a round started.
type Trigger struct {
	Goal Goal
	// Broker is where the goal is violated most; [NoBroker] when it is not about one broker.
	Broker BrokerID
	// Value is what was found and Limit what is allowed: ratios to the mean for soft goals, counts
	// of replicas or leaders for hard ones, loads for capacity.
	Value, Limit float64
}

// GoalReport says what a plan does for one goal.
type GoalReport struct {
	Goal    Goal
	Trigger bool
	// Before and After are the largest ratio of a broker to the mean for soft goals, the number of
	// violations for hard ones.
	Before, After float64
	// Met says that the goal holds after the plan: all brokers in the band, or no violation left.
	Met bool
}

// Unfixable is something that the plan could not do. It does not keep the plan from doing the rest.
type Unfixable struct {
	Goal Goal
	// Broker and Partition say where; [NoBroker] and the zero partition when it is about all.
	Broker    BrokerID
	Partition PartitionID
	// Reason is for people.
	Reason string
}

// Plan is the result of [Planner.Plan].
type Plan struct {
	// Triggers is why there is a round; empty means that there is none, and no moves.
	Triggers []Trigger
	// Moves are to be carried out in this order; see [Plan.Batches].
	Moves []Move
	// Goals reports all goals, hard ones first.
	Goals []GoalReport
	// Bytes, ReplicaMoves and LeaderMoves are the cost. A leadership that goes along with its
	// replica counts as a replica move only.
	Bytes                     int64
	ReplicaMoves, LeaderMoves int
	// Unfixable lists what could not be done, at most one entry for a broker, partition and goal.
	Unfixable []Unfixable
	// Stale lists brokers whose loads were refused.
	Stale []BrokerID
	// Removable lists draining brokers that hold nothing any more.
	Removable []BrokerID
	// Frozen counts partitions that soft goals left alone: in flight, cooling down, settling, pinned.
	Frozen int
	// Exhausted names the limit that ended the plan early: "moves", "leader moves", "bytes",
	// "work", or "best effort": goals that do not trigger get at most as many moves as the others needed.
	Exhausted string
}

// Explain writes what the plan fixes, what it costs and what it cannot do, for people.
func (p Plan) Explain(w io.Writer) error {
	var b strings.Builder
	if len(p.Triggers) == 0 {
		b.WriteString("no round: nothing triggers\n")
	}
	for _, t := range p.Triggers {
		fmt.Fprintf(&b, "round because of %v", t.Goal)
		if t.Broker != NoBroker {
			fmt.Fprintf(&b, " on broker %d", t.Broker)
		}
		fmt.Fprintf(&b, ": %.4g, allowed %.4g\n", t.Value, t.Limit)
	}
	fmt.Fprintf(&b, "%d replica moves of %d bytes, %d leadership moves\n", p.ReplicaMoves, p.Bytes, p.LeaderMoves)
	for _, g := range p.Goals {
		state := "met"
		if !g.Met {
			state = "not met"
		}
		fmt.Fprintf(&b, "%-17v %8.4g -> %-8.4g %s\n", g.Goal, g.Before, g.After, state)
	}
	for _, u := range p.Unfixable {
		fmt.Fprintf(&b, "cannot: %v", u.Goal)
		if u.Broker != NoBroker {
			fmt.Fprintf(&b, " on broker %d", u.Broker)
		}
		if u.Partition != (PartitionID{}) {
			fmt.Fprintf(&b, " for %v", u.Partition)
		}
		fmt.Fprintf(&b, ": %s\n", u.Reason)
	}
	if len(p.Stale) > 0 {
		fmt.Fprintf(&b, "reports too old: brokers %v\n", p.Stale)
	}
	if len(p.Removable) > 0 {
		fmt.Fprintf(&b, "empty, may be removed: brokers %v\n", p.Removable)
	}
	if p.Frozen > 0 {
		fmt.Fprintf(&b, "%d partitions left alone\n", p.Frozen)
	}
	if p.Exhausted != "" {
		fmt.Fprintf(&b, "ended early: limit of %s\n", p.Exhausted)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Batches cuts the moves into waves, in order: inside a wave no broker takes part in more than
// perBroker replica moves, there are at most total of them, and each partition moves once. Leadership
// moves cost nothing and only wait for earlier moves of their partition. Limits below 1 count as 1.
func (p Plan) Batches(perBroker, total int) [][]Move {
	perBroker, total = max(perBroker, 1), max(total, 1)
	var waves [][]Move
	var moving []int // replica moves of each wave
	busy := map[[2]int]int{}
	after := map[PartitionID]int{} // first wave that a partition may use
	first := 0                     // waves before it are full
	for _, m := range p.Moves {
		w := after[m.Partition]
		if m.Kind == MoveReplica {
			w = max(w, first)
			for w < len(waves) && (moving[w] >= total || busy[[2]int{w, int(m.From)}] >= perBroker || busy[[2]int{w, int(m.To)}] >= perBroker) {
				w++
			}
		}
		for w >= len(waves) {
			waves = append(waves, nil)
			moving = append(moving, 0)
		}
		waves[w] = append(waves[w], m)
		after[m.Partition] = w + 1
		if m.Kind == MoveReplica {
			moving[w]++
			busy[[2]int{w, int(m.From)}]++
			busy[[2]int{w, int(m.To)}]++
			for first < len(waves) && moving[first] >= total {
				first++
			}
		}
	}
	return waves
}

// Planner makes plans. It has no state: what lasts between rounds is in a [Ledger]. Safe for
// concurrent use with different ledgers.
type Planner struct {
	options PlanOptions
}

// NewPlanner checks the options and returns a planner. All mistakes are reported at once.
func NewPlanner(options PlanOptions) (*Planner, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	o.Goals = append([]SoftGoal(nil), o.Goals...)
	return &Planner{options: o}, nil
}

// Plan returns the moves that the model calls for at now: none if nothing triggers. The same model,
// ledger and time give the same plan, in whatever order the model lists things, and planning again
// after the moves were applied gives none, unless a limit ended the first plan.
//
// Hard goals come first and are never broken by a later move. Soft goals follow in order, each by
// leadership moves, then by replica moves in the order of gain per cost, then by swaps; no move pushes a
// broker out of the band of an earlier goal or of one that triggers. A replica that is too heavy
// for any broker is reported as unfixable, and the others are balanced around it. In clusters of at most nine
// replicas without copies and four brokers, where the hard goals hold, the plan is found by trying all, so that it
// has the fewest moves, then the fewest bytes.
//
// ledger may be nil: nothing is in flight then and triggers act at once. Otherwise Plan counts
// the triggers seen in it. The error wraps [ErrModel]; there is no plan then. Memory is some 80 bytes a
// replica beside the model.
//
// Source: ordered goals, triggers and best effort are Kora, section 4.3.1, after Cruise Control.
func (p *Planner) Plan(c Cluster, ledger *Ledger, now time.Time) (Plan, error) {
	s, err := newSolver(&p.options, &c, ledger, now)
	if err != nil {
		return Plan{}, err
	}
	return s.run(), nil
}
