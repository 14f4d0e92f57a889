package replication

import (
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// The core decides; see the package comment. It is stepped by one goroutine at a
// time, and the effects that Step returns are valid until the next call.
//
// Rules for the driver:
//
//   - Everything that changes the log (a leader's write, an append of fetched
//     batches, truncation, reset) happens under one exclusive right per replica, the
//     write turn, and the event that reports it is stepped before the turn is given
//     back. evResponse and evNextFetch's answer are compared with the log's end
//     inside a turn, so that no stale instruction is carried out.
//   - evDurable carries what the log says at that moment, read in the same critical
//     section in which it is stepped.
//   - Effects may be carried out late and in any order, except the one that an
//     evResponse orders (effAppend, effTruncate, effReset): it is done in the same
//     turn, and its report ends it.

// config is what the core needs of Options.
type config struct {
	LagMax     time.Duration
	AckLatency time.Duration
	Retry      time.Duration // pause before a change of the ISR is tried again
}

// An edge is where the batch begins that the local start lies in: there a follower
// begins that has nothing, since batches stay whole. A log start may lie inside a batch.
type edge struct {
	localStart log.Offset // that it is the edge of
	base       log.Offset // at most localStart
}

// A core is the state machine of one replica.
type core struct {
	cfg  config
	self Member

	// What the log holds.
	start, localStart log.Offset // log start, local start
	end               log.Offset // log end
	durable           log.Offset // durable end; at most end
	chain             chain
	failed            bool // an error of the log that is final
	lossy             bool // lost records that it had reported durable
	damaged           bool // lossy, and the log takes no appends until it is reset
	// pardoned: lossy, and the leader has said since then that nobody counts on what
	// this replica holds: its removal from the in-sync set is committed, no proposal
	// names it, and everything it sent before is void. Only then may it cut.
	pardoned    bool
	quarantined bool

	// hw is the high watermark: everything below is committed. Invariant: it falls
	// only by an allowed cut below it, and localStart <= hw <= end.
	hw log.Offset
	// tier is what this node knows about the cold part; tiered if there is one.
	tier   TierView
	tiered bool

	assigned bool
	a        Assignment
	role     Role
	epoch    log.Epoch // leader epoch of the role

	lead   leaderState
	follow followerState

	effects []effect
}

// leaderState is meaningful while role is RoleLeader.
type leaderState struct {
	edge edge // as the last fetch brought it

	// leso is the offset of this epoch's epoch-start record, -1 until it is written.
	// Until then nothing is counted or served: a cut ordered by the leader before
	// may still be under way, and end and durable be too high.
	leso      log.Offset
	ready     bool // hw > leso
	followers map[NodeID]*follower

	// proposals are changes of the in-sync set that the controller may have made:
	// all that were sent for this partition epoch and not certainly refused. Their
	// members count for the high watermark from the moment they are sent (KIP-497).
	proposals []ISRChange
	inflight  bool      // the last of proposals awaits an answer
	tries     int       // attempts of it with an unknown outcome
	retryAt   time.Time // zero: the attempt is under way
	pauseTo   time.Time // no new proposal before
	pauses    int
}

// follower is what the leader knows of one follower. It is changed by one event at
// a time, so that decisions and the changes they produce see one snapshot.
type follower struct {
	epoch int64  // broker epoch of its last accepted fetch
	seq   uint64 // of its last accepted fetch
	// since is the fetch from which on its log has only grown: progress that it sent
	// before may speak of records that are cut since.
	since uint64
	// verified: its last fetch in this leader epoch did not diverge. Only then is
	// durable an acknowledgement, and progress accepted.
	verified bool
	pos      log.Offset // where it fetched last
	durable  log.Offset // below this, its disk holds what ours does
	// reported is the greatest durable end it has told in this leader epoch, by any
	// process life of it; lowered when we make it cut or reset. A fetch below means
	// that its disk has lost something.
	reported log.Offset
	lossy    bool // must leave the in-sync set

	// caughtUp is a moment at which it held durably all that the leader had
	// appended. mark/markAt: reaching mark proves it for markAt.
	caughtUp time.Time
	mark     log.Offset
	markAt   time.Time
}

// followerState is meaningful while role is RoleFollower.
type followerState struct {
	seq  uint64 // of the last fetch; rises over the process's life
	out  fetchRequest
	busy bool // an ordered append, cut or reset is under way
	// busyCut: it is a cut or reset, so that what the log reports durable until it
	// is done counts for nothing.
	busyCut bool
	// from the response that is being appended
	respHW, respStart log.Offset
	// rounds counts answers "diverging" in a row.
	rounds int
}

func newCore(cfg config, self Member) *core {
	return &core{cfg: cfg, self: self, a: Assignment{Leader: Member{ID: -1}, PartitionEpoch: -1}, epoch: noEpoch,
		lead: leaderState{leso: -1}}
}

// Events. Each carries the time where the core depends on it.
type (
	// evOpened is the first: what the log holds after recovery, and the high
	// watermark that was written down.
	evOpened struct {
		Start, LocalStart, End, Durable log.Offset
		Chain                           []log.EpochStart
		Hint                            log.Offset
		Lossy, Damaged, Tiered          bool
	}
	// evBounds: someone else (the tier) moved the starts.
	evBounds struct{ Start, LocalStart log.Offset }
	// evTier: what the node knows of the cold part.
	evTier struct{ View TierView }
	// evSelf: this process is registered under a new broker epoch.
	evSelf struct {
		Self Member
		Now  time.Time
	}
	// evAssign: an assignment from the cluster's metadata.
	evAssign struct {
		A   Assignment
		Now time.Time
	}
	// evEpochStarted: effLead was carried out. The log's facts are given whole,
	// since a cut of before may have ended only now.
	evEpochStarted struct {
		Epoch        log.Epoch
		Base         log.Offset
		End, Durable log.Offset
		Chain        []log.EpochStart
		Now          time.Time
	}
	// evWrote: a leader's append moved the end.
	evWrote struct {
		Epoch log.Epoch
		Base  log.Offset // first offset that is new
		End   log.Offset
		Now   time.Time
	}
	// evDurable: the durable end moved.
	evDurable struct {
		Off log.Offset
		Now time.Time
	}
	// evFetch: a follower asks. Answered by effAnswer.
	evFetch struct {
		From Member
		Req  fetchRequest
		Edge edge // of the local log
		Now  time.Time
	}
	// evProgress: a follower tells a durable end between fetches.
	evProgress struct {
		From Member
		P    progressEntry
		Now  time.Time
	}
	// evISRAnswer: outcome of effAlter.
	evISRAnswer struct {
		Change  ISRChange
		Outcome isrOutcome
		A       Assignment // when made
		Now     time.Time
	}
	// evTick: the time that Deadline told has come.
	evTick struct{ Now time.Time }
	// evNextFetch asks for the next request to the leader: effFetch or nothing.
	evNextFetch struct{}
	// evResponse: the leader's answer about this partition.
	evResponse struct {
		Ans fetchAnswer
		Now time.Time
	}
	// evReplicated: effAppend was carried out.
	evReplicated struct {
		End  log.Offset
		Runs []log.EpochStart // epochs of the new batches, with the offset of the first of each
	}
	// evRejected: effAppend, effTruncate or effReset was not carried out and nothing
	// changed; it is tried again after a pause.
	evRejected struct{}
	// evCut: effTruncate or effReset was carried out.
	evCut struct {
		Start, LocalStart, End, Durable log.Offset
		Chain                           []log.EpochStart
	}
	// evFailed: the log has failed for good.
	evFailed struct{ Now time.Time }
	// evLossy: damage was found below the durable end.
	evLossy struct {
		Damaged bool
		Now     time.Time
	}
)

type isrOutcome uint8

const (
	isrUnknown isrOutcome = iota
	isrRefused
	isrMade
)

// Effects.
type (
	effect interface{ isEffect() }
	// effCommit: the high watermark rose to HW: answer appends, wake readers.
	effCommit struct{ HW log.Offset }
	// effReadable: the durable end rose, so that readers may see more.
	effReadable struct{}
	// effWake: parked fetches of this partition may have an answer now.
	effWake struct{}
	// effLead: write the epoch-start record.
	effLead struct{ Epoch log.Epoch }
	// effReady: the epoch-start record is committed.
	effReady struct{ Epoch log.Epoch }
	// effLost: leadership of this epoch has ended; waiting appends are indeterminate.
	effLost struct{ Epoch log.Epoch }
	// effFollow: whom to fetch from may have changed; see fetchFrom.
	effFollow struct{}
	// effRefetch: ask the leader again, now or after a pause.
	effRefetch struct{ Pause bool }
	// effAlter: send the change to the controller.
	effAlter struct{ Change ISRChange }
	// effAnswer answers evFetch.
	effAnswer struct{ Ans fetchAnswer }
	// effFetch answers evNextFetch.
	effFetch struct{ Req fetchRequest }
	// effAppend: verify and append the payload of the answer at Pos.
	effAppend struct {
		Pos   log.Offset
		Last  log.Epoch // epochs start here
		Epoch log.Epoch // and end here
	}
	// effTruncate: cut the log at To. LowerHW: the written-down high watermark must
	// be lowered durably before.
	effTruncate struct {
		To      log.Offset
		LowerHW bool
	}
	// effReset: replace the log.
	effReset struct {
		Start     log.Offset
		LogStart  log.Offset
		Chain     []log.EpochStart
		Producers []byte
		LowerHW   bool
	}
	// effTrim: move the log start up.
	effTrim struct{ To log.Offset }
	// effProgress: tell the leader the durable end.
	effProgress struct{ P progressEntry }
	// effUnhealthy: tell the host.
	effUnhealthy struct{ Err error }
)

func (effCommit) isEffect()    {}
func (effReadable) isEffect()  {}
func (effWake) isEffect()      {}
func (effLead) isEffect()      {}
func (effReady) isEffect()     {}
func (effLost) isEffect()      {}
func (effFollow) isEffect()    {}
func (effRefetch) isEffect()   {}
func (effAlter) isEffect()     {}
func (effAnswer) isEffect()    {}
func (effFetch) isEffect()     {}
func (effAppend) isEffect()    {}
func (effTruncate) isEffect()  {}
func (effReset) isEffect()     {}
func (effTrim) isEffect()      {}
func (effProgress) isEffect()  {}
func (effUnhealthy) isEffect() {}

func (c *core) emit(e effect) { c.effects = append(c.effects, e) }

// Step takes one event.
func (c *core) Step(ev any) []effect {
	clear(c.effects)
	c.effects = c.effects[:0]
	switch ev := ev.(type) {
	case evOpened:
		c.opened(ev)
	case evBounds:
		c.bounds(ev.Start, ev.LocalStart)
	case evTier:
		c.tierView(ev.View)
	case evSelf:
		if ev.Self != c.self {
			c.self = ev.Self
			c.decide(ev.Now)
		}
	case evAssign:
		c.assign(ev.A, ev.Now)
	case evEpochStarted:
		c.epochStarted(ev)
	case evWrote:
		c.wrote(ev)
	case evDurable:
		c.durableTo(ev.Off, ev.Now)
	case evFetch:
		c.emit(effAnswer{c.fetch(ev.From, ev.Req, ev.Edge, ev.Now)})
	case evProgress:
		c.progress(ev.From, ev.P, ev.Now)
	case evISRAnswer:
		c.isrAnswer(ev)
	case evTick:
		c.tick(ev.Now)
	case evNextFetch:
		c.nextFetch()
	case evResponse:
		c.response(ev.Ans)
	case evReplicated:
		c.replicated(ev)
	case evRejected:
		c.follow.busy, c.follow.busyCut = false, false
		c.emit(effRefetch{Pause: true})
	case evCut:
		c.wasCut(ev)
	case evFailed:
		c.fail(ev.Now)
	case evLossy:
		c.foundLossy(ev.Damaged, ev.Now)
	default:
		panic("replication: unknown event")
	}
	return c.effects
}

func (c *core) opened(ev evOpened) {
	c.start, c.localStart, c.end, c.durable = ev.Start, ev.LocalStart, ev.End, ev.Durable
	c.chain = slices.Clone(ev.Chain)
	c.lossy, c.damaged, c.tiered = ev.Lossy, ev.Lossy && ev.Damaged, ev.Tiered
	// Local data is dropped or replaced only below a high watermark of before, so
	// the local start is as good a lower bound as what was written down.
	c.hw = min(max(ev.Hint, c.start, c.localStart), c.end)
}

func (c *core) bounds(start, localStart log.Offset) {
	if c.follow.busyCut {
		return
	}
	c.start, c.localStart = max(c.start, start), max(c.localStart, localStart)
	c.raise(c.localStart)
}

// raise lifts the high watermark to what is known committed from elsewhere.
func (c *core) raise(to log.Offset) {
	if to = min(to, c.end); to > c.hw {
		c.hw = to
		c.committed()
	}
}

// committed tells of a risen high watermark.
func (c *core) committed() {
	c.emit(effCommit{c.hw})
	if c.role == RoleLeader && c.lead.leso >= 0 {
		c.emit(effWake{})
		if !c.lead.ready && c.hw > c.lead.leso {
			c.lead.ready = true
			c.emit(effReady{c.epoch})
		}
	}
}

// tierView takes what the node knows of the cold part. What is there was committed,
// so the high watermark may rise to it, as far as it is the same log.
func (c *core) tierView(v TierView) {
	c.tier = v
	if !v.Known || v.TierEnd <= c.hw || c.follow.busyCut || c.role == RoleLeader && c.lead.leso < 0 {
		return
	}
	c.raise(min(v.TierEnd, c.chain.common(c.end, v.Lineage, v.TierEnd)))
}

// assign takes an assignment if it is not older than the one at hand. One of the
// same partition epoch completes fields that are not part of the record (KIP-497,
// KAFKA-13790).
func (c *core) assign(a Assignment, now time.Time) {
	if c.assigned && (a.PartitionEpoch < c.a.PartitionEpoch || a.LeaderEpoch < c.a.LeaderEpoch) {
		return
	}
	newer := !c.assigned || a.PartitionEpoch > c.a.PartitionEpoch
	if newer {
		// Every proposal was for an older state: made or refused, it is in a.
		c.lead.proposals, c.lead.inflight, c.lead.tries, c.lead.retryAt = nil, false, 0, time.Time{}
		c.lead.pauseTo, c.lead.pauses = time.Time{}, 0
	}
	c.assigned, c.a = true, a
	if c.lossy && c.pardoned && !c.damaged && !c.removed() {
		// A leader has seen it caught up again and the controller agreed: there is no
		// other way back.
		c.lossy, c.pardoned = false, false
	}
	if newer {
		for id, f := range c.lead.followers {
			if _, in := hasMember(a.ISR, id); !in {
				f.lossy = false // what it was accused of is settled
			}
		}
	}
	c.decide(now)
}

// removed: this node is neither in the committed in-sync set nor an eligible
// leader, so that what it holds counts for nobody.
func (c *core) removed() bool {
	_, in := hasMember(c.a.ISR, c.self.ID)
	return c.assigned && !in && !slices.Contains(c.a.ELR, c.self.ID)
}

// decide takes the role that assignment and self give.
func (c *core) decide(now time.Time) {
	role := RoleNone
	switch {
	case !c.assigned || !slices.Contains(c.a.Replicas, c.self.ID):
	case c.a.Leader == c.self:
		role = RoleLeader
	case c.a.Leader.ID >= 0 && c.a.Leader.ID != c.self.ID:
		role = RoleFollower
	}
	unfit := role == RoleLeader && (c.failed || c.lossy || c.quarantined)
	if unfit {
		role = RoleNone
	}
	if c.role == RoleLeader && role != RoleLeader {
		c.emit(effLost{c.epoch})
		c.emit(effWake{})
	}
	was, wasEpoch := c.role, c.epoch
	c.role, c.epoch = role, c.a.LeaderEpoch
	switch role {
	case RoleLeader:
		if was != RoleLeader || wasEpoch != c.epoch {
			c.becomeLeader(now)
		} else {
			c.expectMembers(now)
			c.review(now)
		}
	case RoleFollower:
		if was != RoleFollower || wasEpoch != c.epoch {
			c.follow.rounds = 0
			c.follow.out = fetchRequest{Pos: -1}
		}
	}
	if was != role || wasEpoch != c.epoch || role == RoleFollower {
		c.emit(effFollow{})
	}
	if role == RoleFollower && wasEpoch != c.epoch {
		c.emit(effRefetch{})
	}
	if unfit {
		c.resign(now)
	}
}

// fetchFrom tells whom to fetch from; ok is false when from nobody.
func (c *core) fetchFrom() (leader NodeID, inSync, ok bool) {
	if c.role != RoleFollower || c.failed || c.quarantined {
		return -1, false, false
	}
	m, in := hasMember(c.a.ISR, c.self.ID)
	return c.a.Leader.ID, in && m == c.self, true
}

// fail: the log takes nothing any more.
func (c *core) fail(now time.Time) {
	if c.failed {
		return
	}
	c.failed = true
	c.emit(effFollow{})
	c.decide(now)
}

// foundLossy: records that were durable are gone.
func (c *core) foundLossy(damaged bool, now time.Time) {
	if c.lossy && (c.damaged || !damaged) {
		return
	}
	c.lossy, c.damaged, c.pardoned = true, c.damaged || damaged, false
	c.emit(effUnhealthy{ErrLossy})
	c.emit(effFollow{})
	c.decide(now)
}

// Deadline returns when evTick is due; zero: never.
func (c *core) Deadline(now time.Time) time.Time {
	var at time.Time
	soonest := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if c.lead.inflight {
		soonest(c.lead.retryAt)
	}
	if c.role != RoleLeader {
		soonest(c.lead.pauseTo)
		return at
	}
	if c.lead.leso < 0 {
		return at
	}
	if !c.lead.inflight {
		soonest(c.lead.pauseTo)
	}
	for id, f := range c.lead.followers {
		if f.durable >= c.end && f.verified || f.caughtUp.IsZero() {
			continue
		}
		if t := f.caughtUp.Add(c.cfg.AckLatency + 1); t.After(now) {
			soonest(t) // leaves the joiners, or the in-sync set if that stays large enough
		}
		if _, in := hasMember(c.a.ISR, id); in {
			if t := f.caughtUp.Add(c.cfg.LagMax + 1); t.After(now) {
				soonest(t)
			}
		}
	}
	return at
}
