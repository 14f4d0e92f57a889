package replication

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// Defaults of [Options].
const (
	DefaultLagMax       = 10 * time.Second
	DefaultAckLatency   = 500 * time.Millisecond
	DefaultFetchWait    = 500 * time.Millisecond
	DefaultFetchTimeout = 10 * time.Second
	DefaultFetchBytes   = 1 << 20
	DefaultReplyBytes   = 8 << 20
	DefaultRetryBackoff = 50 * time.Millisecond
	DefaultHintInterval = 5 * time.Second
	DefaultEpochStarts  = 16
)

// Options configure a [Manager]. Zero values give the defaults.
type Options struct {
	// Self is this process's life; Epoch may be set later by [Manager.SetSelf].
	Self Member
	// Controller decides about in-sync sets. Required.
	Controller Controller
	// Network reaches the other nodes. Required.
	Network Network

	// LagMax is how long a follower may be behind the leader before it is taken out
	// of the in-sync set. Default [DefaultLagMax].
	LagMax time.Duration
	// AckLatency is how long a follower may hold back acknowledgements before it is
	// taken out, if MinISR members remain. Default [DefaultAckLatency].
	AckLatency time.Duration
	// FetchWait is how long a leader parks a fetch that it can't answer. Default
	// [DefaultFetchWait].
	FetchWait time.Duration
	// FetchTimeout is how long a follower waits for an answer beyond FetchWait
	// before it asks again. Default [DefaultFetchTimeout].
	FetchTimeout time.Duration
	// FetchBytes bounds what one answer carries of one partition, except that it
	// always carries one whole batch. Default [DefaultFetchBytes].
	FetchBytes int
	// ReplyBytes bounds one answer over all partitions in the same way. Default
	// [DefaultReplyBytes].
	ReplyBytes int
	// RetryBackoff is the first pause after an error; it doubles up to 32 times
	// this, with jitter. Default [DefaultRetryBackoff].
	RetryBackoff time.Duration
	// HintInterval is how long a moved high watermark may stay unwritten. Default
	// [DefaultHintInterval].
	HintInterval time.Duration
	// EpochStarts bounds how many new leaders write their epoch-start record at
	// once; one with a waiting append does not queue. Default
	// [DefaultEpochStarts].
	EpochStarts int

	// Logger gets rare events. nil discards.
	Logger *slog.Logger
	// Hooks are told of events.
	Hooks Hooks
}

// Hooks are called without locks held and must not block. Any may be nil.
type Hooks struct {
	// HighWatermark tells that the high watermark of a partition rose.
	HighWatermark func(log.PartitionID, log.Offset)
	// Led tells that this node leads in this epoch and is ready: its epoch-start
	// record is committed.
	Led func(log.PartitionID, log.Epoch)
	// Lost tells that this node led in this epoch and does no longer.
	Lost func(log.PartitionID, log.Epoch)
	// Unhealthy tells that a replica became lossy, was quarantined, or that its log
	// failed.
	Unhealthy func(log.PartitionID, error)
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	if o.Controller == nil {
		errs = append(errs, errors.New("replication: Options.Controller is required"))
	}
	if o.Network == nil {
		errs = append(errs, errors.New("replication: Options.Network is required"))
	}
	dur := func(name string, d *time.Duration, def time.Duration) {
		if *d < 0 {
			errs = append(errs, fmt.Errorf("replication: Options.%s is negative", name))
		}
		if *d == 0 {
			*d = def
		}
	}
	num := func(name string, n *int, def int) {
		if *n < 0 {
			errs = append(errs, fmt.Errorf("replication: Options.%s is negative", name))
		}
		if *n == 0 {
			*n = def
		}
	}
	dur("LagMax", &o.LagMax, DefaultLagMax)
	dur("AckLatency", &o.AckLatency, DefaultAckLatency)
	dur("FetchWait", &o.FetchWait, DefaultFetchWait)
	dur("FetchTimeout", &o.FetchTimeout, DefaultFetchTimeout)
	dur("RetryBackoff", &o.RetryBackoff, DefaultRetryBackoff)
	dur("HintInterval", &o.HintInterval, DefaultHintInterval)
	num("FetchBytes", &o.FetchBytes, DefaultFetchBytes)
	num("ReplyBytes", &o.ReplyBytes, DefaultReplyBytes)
	num("EpochStarts", &o.EpochStarts, DefaultEpochStarts)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

// ReplicaOptions configure one [Replica].
type ReplicaOptions struct {
	// Tier tells what this node knows of the cold part; nil for a partition that is
	// not tiered. It must not block.
	Tier func() TierView
}
