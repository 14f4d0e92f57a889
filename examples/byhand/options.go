package byhand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/quota"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/transport"
)

// Defaults of [Options].
const (
	DefaultTick              = 50 * time.Millisecond
	DefaultSession           = 1500 * time.Millisecond
	DefaultLagMax            = 10 * time.Second
	DefaultSystemReplication = 3
	DefaultMaxRecordBytes    = 1 << 20
	DefaultSegmentBytes      = 64 << 20
	DefaultCacheBytes        = 64 << 20
	DefaultFetchBytes        = 1 << 20
	DefaultReserveBytes      = 16 << 20
	DefaultUploads           = 2
	DefaultRequestServers    = 16
)

// Options configure a [Node]. Dir, ID and a way to reach other nodes (Listener
// and Dial) are required; everything else has a safe default. The node never
// changes the struct.
type Options struct {
	// Dir is the node's own directory: identity, metadata and partitions. It is
	// created if absent. One process at a time may have it open.
	Dir string

	// FS is the disk below Dir; nil is the operating system's, [log.OSFS].
	FS log.FS

	// ID is the node's number, at least 1 and unique in the cluster. A directory
	// keeps the number that it was made with.
	ID int32

	// Zone names the failure domain of the node; replicas of a partition are
	// spread over zones. Empty is a zone as well.
	Zone string

	// NoReplicas keeps partitions away from this node: it holds no data, and its
	// handles route to the brokers that do. For hosts of producers and consumers.
	NoReplicas bool

	// Listener takes connections of other nodes; it becomes the node's, which
	// closes it. Nil, for nodes with NoReplicas that are no voters only, means that
	// nobody connects to this node.
	Listener net.Listener

	// Advertise is the address at which other nodes reach Listener; the default is
	// Listener.Addr().String(). A Listener on a wildcard address needs it.
	Advertise string

	// Dial connects to another node's Advertise address; nil dials TCP. A host
	// that wants TLS wraps both ends.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// Authorize is asked before any frame but the handshake is taken from a
	// connection; an error closes it. Nil lets every node of the cluster in.
	Authorize func(ctx context.Context, conn net.Conn, peer transport.Peer) error

	// Store keeps aged segments; nil means that nothing ages. All nodes of a
	// cluster use the same store and StorePrefix.
	Store tier.ObjectStore

	// StorePrefix comes before all keys in Store.
	StorePrefix string

	// SystemReplication is how many brokers keep the internal topic that says
	// what the store holds. It is created once that many are registered. 1 to 7,
	// default [DefaultSystemReplication]; less than 3 risks the data in the store
	// with the loss of one broker. It counts on voters; give all the same.
	SystemReplication int

	// MaxRecordBytes is the size of the largest record that is taken for sure. What
	// is bounded is the batch as it is sent, by 64 KiB more. Up to
	// [log.MaxBatchBytes] less these 64 KiB, default [DefaultMaxRecordBytes]. All
	// nodes use the same.
	MaxRecordBytes int

	// AdmitUnknownProducers is for hosts that serve Kafka's clients through
	// [Node.Replica]: a producer whose state has expired goes on from any sequence
	// number, as with Kafka since 2.5 ([log.Options].AdmitUnknownProducers). The price
	// is that of Kafka: a batch whose outcome stays open for longer than
	// [log.DefaultProducerExpiry] may be appended twice when it is tried again, also
	// through the handles of a tenant. By default such a batch is refused. All nodes
	// use the same.
	AdmitUnknownProducers bool

	// Tick is the unit of the metadata quorum's timers: a heartbeat takes 2 ticks,
	// an election 10 to 20. Default [DefaultTick]. All nodes use the same.
	Tick time.Duration

	// Session is how long a silent broker keeps its leaderships; at least 3 ticks.
	// A broker that dies with its process is noticed at once whatever the session.
	// Default [DefaultSession]. All nodes use the same.
	Session time.Duration

	// FetchWait is how long a replication fetch or a read at the end is parked
	// when there is nothing to send. Default a third of Session.
	FetchWait time.Duration

	// LagMax is how long a replica may be behind before it leaves the in-sync
	// set. Default [DefaultLagMax], or 6 sessions if that is more.
	LagMax time.Duration

	// TierInterval is how often retention, age and failed uploads are looked at; a
	// freshly sealed segment is uploaded at once. Default 2 sessions.
	TierInterval time.Duration

	// BackupWindow is how long the objects of deleted records stay in Store, so that a
	// restore can bring them back; default [tier.DefaultBackupWindow], negative means
	// not at all. ReaderGrace is how long they stay at least, for readers that have not
	// heard of it yet; default [tier.DefaultReaderGrace], negative means not at all.
	BackupWindow time.Duration
	ReaderGrace  time.Duration

	// CacheBytes bounds the memory for chunks read back from the store; default
	// [DefaultCacheBytes].
	CacheBytes int64

	// StoreCacheBytes bounds what of the chunks read back from the store is kept on
	// disk as well, in the folder "tier-cache" of Dir, which survives a restart. It
	// shrinks when the disk gets full, well before ReserveBytes. Default 0: none.
	StoreCacheBytes int64

	// CompressStore has uploads compress what producers did not: see
	// [tier.Options].CompressChunks. Default false.
	CompressStore bool

	// FetchBytes bounds what one replication fetch carries per partition; default
	// [DefaultFetchBytes]. A batch that is larger travels alone.
	FetchBytes int

	// Uploads bounds uploads at once; default [DefaultUploads].
	Uploads int

	// UploadBytesPerSecond bounds what the uploads of this node together give to the
	// store, see [tier.Options]; 0 means no limit.
	UploadBytesPerSecond int64

	// OpenFiles bounds descriptors for segments; 0 is the default of [log.DiskOptions].
	OpenFiles int

	// BlockingCalls bounds file calls at once; 0 is the default of [log.DiskOptions].
	BlockingCalls int

	// ReserveBytes is space on the disk that appends to data partitions leave free,
	// so that the metadata and the internal topic can still commit what frees
	// space. Default [DefaultReserveBytes].
	ReserveBytes int64

	// Quotas limit what tenants may do through this node's handles, from the start;
	// [Node.Limiter] changes them later. Kinds [quota.Ingress] (bytes of batches
	// appended), [quota.Egress] (bytes of batches read) and
	// [quota.PartitionMutations] (partitions created) are charged. None by default.
	Quotas []quota.Setting

	// RequestServers is how many requests of other nodes and handles this node
	// works on at once before they queue, for the measure of load; default
	// [DefaultRequestServers].
	RequestServers int

	// Logger gets what a person who runs the node wants to know; nil discards.
	Logger *slog.Logger
}

// withDefaults returns a copy with defaults filled in, or all mistakes at once.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("cordwood: "+format, args...))
		}
	}
	check(o.Dir != "", "Options.Dir is missing")
	check(o.ID >= 1, "Options.ID is %d: it must be at least 1", o.ID)
	check(o.Listener != nil || o.NoReplicas, "Options.Listener is missing: only a node with NoReplicas can do without")
	check(o.SystemReplication >= 0 && o.SystemReplication <= 7, "Options.SystemReplication is %d: it must be 1 to 7", o.SystemReplication)
	check(o.MaxRecordBytes >= 0, "Options.MaxRecordBytes is negative")
	check(o.MaxRecordBytes <= log.MaxBatchBytes-batchOverhead, "Options.MaxRecordBytes is %d: it must be at most %d", o.MaxRecordBytes, log.MaxBatchBytes-batchOverhead)
	check(o.Tick >= 0 && o.Session >= 0 && o.FetchWait >= 0 && o.LagMax >= 0 && o.TierInterval >= 0, "a duration in Options is negative")
	check(o.UploadBytesPerSecond == 0 || o.UploadBytesPerSecond >= 1<<10, "Options.UploadBytesPerSecond is %d: it must be 0 or at least 1 KiB", o.UploadBytesPerSecond)
	check(o.CacheBytes >= 0 && o.StoreCacheBytes >= 0 && o.FetchBytes >= 0 && o.ReserveBytes >= 0, "a size in Options is negative")
	check(o.Uploads >= 0 && o.OpenFiles >= 0 && o.BlockingCalls >= 0 && o.RequestServers >= 0, "a bound in Options is negative")
	if o.FS == nil {
		o.FS = log.OSFS{}
	}
	if o.Advertise == "" && o.Listener != nil {
		o.Advertise = o.Listener.Addr().String()
		at, err := netip.ParseAddrPort(o.Advertise)
		check(err != nil || !at.Addr().IsUnspecified(), "Options.Advertise is missing: other nodes can't reach %s", o.Advertise)
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	setDefault(&o.SystemReplication, DefaultSystemReplication)
	setDefault(&o.MaxRecordBytes, DefaultMaxRecordBytes)
	setDefault(&o.Tick, DefaultTick)
	setDefault(&o.Session, DefaultSession)
	check(o.Session >= 3*o.Tick, "Options.Session is %v: it must be at least 3 ticks of %v", o.Session, o.Tick)
	setDefault(&o.FetchWait, o.Session/3)
	setDefault(&o.LagMax, max(DefaultLagMax, 6*o.Session))
	setDefault(&o.TierInterval, 2*o.Session)
	setDefault(&o.CacheBytes, DefaultCacheBytes)
	setDefault(&o.FetchBytes, DefaultFetchBytes)
	setDefault(&o.ReserveBytes, DefaultReserveBytes)
	setDefault(&o.Uploads, DefaultUploads)
	setDefault(&o.RequestServers, DefaultRequestServers)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

func setDefault[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}
