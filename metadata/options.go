package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// Defaults of [Options].
const (
	DefaultTick              = 50 * time.Millisecond
	DefaultElectionTicks     = 10
	DefaultHeartbeatTicks    = 2
	DefaultSession           = 1500 * time.Millisecond
	DefaultSystemReplication = 3
	DefaultLogBytes          = 4 << 20
	DefaultProducerBlock     = 1000
)

// A Network carries messages to the other nodes. Its methods are safe for
// concurrent use. The bytes given are not changed afterwards by either side.
type Network interface {
	// Send hands over one message for [Server.Step] of that node. It must not
	// block; a message may be lost, repeated and overtaken, but not changed. An
	// error is a hint that the node can't be reached at present.
	Send(to BrokerID, msg []byte) error

	// Call hands over one request for [Server.Handle] of that node and returns its
	// answer. Any error means that the outcome is unknown. It ends when ctx does.
	Call(ctx context.Context, to BrokerID, req []byte) ([]byte, error)
}

// Options configure [Open]. All servers of a cluster must have the same Cluster,
// Voters and timers.
type Options struct {
	// FS is the disk. Voters need it; an observer keeps nothing on disk.
	FS log.FS
	// Dir is the folder that the server has for itself below FS. It is created.
	Dir string
	// Cluster is the identifier of the cluster. Messages of other clusters are
	// refused.
	Cluster ID
	// Self is the broker id of this node, Directory the identifier of its data
	// directory: a voter with a new directory and an old id would break the
	// promises that the old one made, so the others refuse it.
	Self      BrokerID
	Directory ID
	// Voters is the quorum, the same on all servers: 1, 3 or 5 of them. A server
	// that is not among them is an observer.
	Voters []Voter
	// Network reaches the other nodes.
	Network Network

	// Tick is the unit of Raft's clock; default [DefaultTick]. A leader sends
	// heartbeats every HeartbeatTicks (default [DefaultHeartbeatTicks]); followers
	// that hear nothing for ElectionTicks to twice as much (default
	// [DefaultElectionTicks], more than HeartbeatTicks) elect another.
	Tick           time.Duration
	ElectionTicks  int
	HeartbeatTicks int
	// Session is how long a broker may be silent before it is fenced; default
	// [DefaultSession]. [Options.HeartbeatInterval] follows from it.
	Session time.Duration

	// SystemReplication is the replication factor of the internal topic "__tier",
	// which the controller creates once so many brokers are live; default
	// [DefaultSystemReplication]. Negative: it is not created.
	SystemReplication int
	// ReturnLeadership gives a leadership back to the first of a partition's
	// replicas when that one is in sync again. By default it stays where it is.
	ReturnLeadership bool
	// LogBytes is about how many bytes of applied entries are kept for voters and
	// observers that lag; the others get a snapshot. Default [DefaultLogBytes].
	LogBytes int64
	// ProducerBlock is how many producer ids one allocation hands out; default
	// [DefaultProducerBlock].
	ProducerBlock int

	// Logger gets what an operator should know; nil discards.
	Logger *slog.Logger
}

// HeartbeatInterval is how often a broker should call [Server.Heartbeat]: a sixth
// of the session.
func (o Options) HeartbeatInterval() time.Duration {
	if o.Session <= 0 {
		o.Session = DefaultSession
	}
	return max(o.Session/6, time.Millisecond)
}

func (o Options) voter() bool {
	for _, v := range o.Voters {
		if v.ID == o.Self {
			return true
		}
	}
	return false
}

// withDefaults returns a completed copy and all that is wrong at once.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	def := func(d *time.Duration, v time.Duration, name string) {
		if *d == 0 {
			*d = v
		}
		if *d < 0 {
			bad("Options.%s is negative", name)
		}
	}
	def(&o.Tick, DefaultTick, "Tick")
	def(&o.Session, DefaultSession, "Session")
	if o.ElectionTicks == 0 {
		o.ElectionTicks = DefaultElectionTicks
	}
	if o.HeartbeatTicks == 0 {
		o.HeartbeatTicks = DefaultHeartbeatTicks
	}
	if o.HeartbeatTicks < 1 || o.ElectionTicks <= o.HeartbeatTicks {
		bad("Options.ElectionTicks %d must exceed HeartbeatTicks %d, which must be positive", o.ElectionTicks, o.HeartbeatTicks)
	}
	if o.SystemReplication == 0 {
		o.SystemReplication = DefaultSystemReplication
	}
	if o.LogBytes == 0 {
		o.LogBytes = DefaultLogBytes
	}
	if o.LogBytes < 0 {
		bad("Options.LogBytes is negative")
	}
	if o.ProducerBlock == 0 {
		o.ProducerBlock = DefaultProducerBlock
	}
	if o.ProducerBlock < 0 {
		bad("Options.ProducerBlock is negative")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Self < 0 {
		bad("Options.Self is negative")
	}
	if o.Cluster.IsZero() {
		bad("Options.Cluster is not set")
	}
	if o.Network == nil {
		bad("Options.Network is nil")
	}
	if len(o.Voters) == 0 {
		bad("Options.Voters is empty")
	}
	seen := map[BrokerID]bool{}
	for _, v := range o.Voters {
		if v.ID < 0 || seen[v.ID] {
			bad("Options.Voters names broker %d twice, or it is negative", v.ID)
		}
		seen[v.ID] = true
	}
	if o.voter() {
		if o.FS == nil {
			bad("Options.FS is nil on a voter")
		}
		if o.Directory.IsZero() {
			bad("Options.Directory is not set on a voter")
		}
	}
	if len(errs) > 0 {
		return o, fmt.Errorf("metadata: %w", errors.Join(errs...))
	}
	return o, nil
}
