package cordwood

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/quota"
	"github.com/cordwood-io/cordwood/replication"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/transport"
)

// A Node is one member of a cluster inside the host's process: it wires log,
// tier, replication, metadata, quota, balance and transport together.
//
// Open makes one; Init (on one voter, once in the life of a cluster) or Join gives
// it a cluster, which it remembers; Tenant leads to the data. Close or Shutdown
// ends it. All methods are safe for concurrent use.
type Node struct {
	o       Options
	lock    io.Closer
	disk    *log.Disk
	net     *transport.Transport
	pool    balance.Pool
	limiter *quota.Limiter

	incarnation ID // of this process life
	sequences   sequences
	counters    counters

	// ctx ends with the node; every goroutine of the node is in tasks.
	ctx    context.Context
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup
	done   chan struct{} // closed when everything has ended

	cluster atomic.Pointer[cluster] // nil before Init or Join

	// joining is held while Init or Join gives the node a cluster, so that one of
	// them wins, and so that Close comes before it or after it.
	joining sync.Mutex

	// mu guards what follows. It is a leaf: nothing is called with it held.
	mu     sync.Mutex
	self   identity
	seeds  map[int32]string // addresses learnt before the metadata names them
	closed bool
	err    error // why the node ended by itself

	pausing sync.Mutex // held while a pause begins or ends
	paused  bool       // PauseTiering was called last, not ResumeTiering; guarded by pausing

	closeErr error // what Close found; it is set before done is closed, and not after
}

// A cluster is the part of a node that exists once it belongs to one.
type cluster struct {
	meta *metadata.Server
	repl *replication.Manager
	tier *tier.Manager // nil without Options.Store

	epoch atomic.Int64 // broker epoch; 0 before the registration

	mu        sync.Mutex
	local     metadata.Local                 // what the reconciler has done
	partition map[log.PartitionID]*partition // replicas open here
	applied   uint64                         // index of the image that the reconciler acted on
	stopping  bool                           // Shutdown has begun: heartbeats ask for it
	stopped   bool                           // the controller agrees that the process may end
	beat      chan struct{}                  // capacity 1: send a heartbeat soon
	untidy    bool                           // files of deleted topics may be left
}

// A partition is one replica on this node.
type partition struct {
	id   log.PartitionID
	log  *log.Log
	rep  *replication.Replica
	tier *tier.Partition // nil for internal topics and without a store
	err  error           // why it could not be opened; then the rest is nil
}

// Open opens the node in Options.Dir, which it creates if absent, and returns
// once its transport accepts connections. A directory that already belongs to a
// cluster takes part in it at once; else Init or Join must follow.
//
// It returns all mistakes in o at once; [ErrDirectoryInUse]; *[VersionError] for a
// directory of a newer version; *[log.CorruptionError] for a damaged identity; and
// errors of the disk. After an error nothing is left running, and o.Listener is
// closed. ctx bounds Open itself.
func Open(ctx context.Context, o Options) (_ *Node, err error) {
	listener := o.Listener
	defer func() {
		if err != nil && listener != nil {
			listener.Close()
		}
	}()
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	if err := makeDir(o.FS, path.Join(o.Dir, "partitions")); err != nil {
		return nil, fmt.Errorf("cordwood: make directory %s: %w", o.Dir, err)
	}
	lock, err := o.FS.Lock(path.Join(o.Dir, "lock"))
	if errors.Is(err, log.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrDirectoryInUse, o.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("cordwood: lock directory %s: %w", o.Dir, err)
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	self, fresh, err := loadIdentity(o.FS, o.Dir, o.ID)
	if err == nil && fresh {
		err = self.store(o.FS, o.Dir)
	}
	if err != nil {
		return nil, err
	}
	disk, err := log.NewDisk(log.DiskOptions{FS: o.FS, OpenFiles: o.OpenFiles, BlockingCalls: o.BlockingCalls, ReserveBytes: o.ReserveBytes, Dir: o.Dir})
	if err != nil {
		return nil, err
	}
	n := &Node{
		o: o, lock: lock, disk: disk, self: self,
		pool:  balance.Pool{Servers: o.RequestServers},
		seeds: make(map[int32]string),
		done:  make(chan struct{}),
	}
	// The first half is what transport and metadata both name the process by.
	rand.Read(n.incarnation[:8])
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.limiter, err = quota.NewLimiter(quota.Options{Settings: o.Quotas})
	if err == nil {
		n.net, err = transport.New(transport.Options{
			Self:      n.peer(self),
			Listener:  o.Listener,
			Dial:      o.Dial,
			Resolve:   n.resolve,
			Directory: n.directoryOf,
			Authorize: o.Authorize,
			Handle:    n.handle,
			Receive:   n.receive,
			Down:      n.down,
			KeepAlive: max(o.Session/3, o.Tick),

			MaxBodyBytes: max(transport.DefaultMaxBodyBytes, 2*MaxInFlight*o.MaxRecordBytes),
			Logger:       o.Logger,
		})
	}
	if err != nil {
		n.cancel(err)
		return nil, errors.Join(err, disk.Close())
	}
	if !self.cluster.IsZero() {
		if err = n.start(ctx, self); err != nil {
			listener = nil // the transport closes it
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// peer is what this node says of itself to others.
func (n *Node) peer(self identity) transport.Peer {
	return transport.Peer{
		Node: self.node, Cluster: transport.ID(self.cluster), Directory: transport.ID(self.directory),
		Incarnation: binary.BigEndian.Uint64(n.incarnation[:8]), Format: messageVersion, OldestFormat: messageVersion,
		Addr: n.o.Advertise,
	}
}

// Init founds a cluster of the given id with these voters (1, 3 or 5, this node
// among them) and makes the node its first member. The other voters and all other
// nodes Join. It is called once in the life of a cluster; repeating it with the
// same arguments, also on another voter, does nothing more, and with others it
// returns an error and changes nothing. It does not wait for the others: see
// [Node.Ready]. The membership is durable on return.
func (n *Node) Init(ctx context.Context, clusterID ID, voters []Voter) error {
	if clusterID.IsZero() {
		return errors.New("cordwood: Init needs a cluster id: see NewID")
	}
	if len(voters) != 1 && len(voters) != 3 && len(voters) != 5 {
		return fmt.Errorf("cordwood: %d voters: there must be 1, 3 or 5", len(voters))
	}
	for i, v := range voters {
		// A wrong list must not become durable: the directory could not be opened again.
		switch {
		case v.ID < 1:
			return fmt.Errorf("cordwood: voter id %d: it must be at least 1", v.ID)
		case v.Addr == "":
			return fmt.Errorf("cordwood: voter %d has no address", v.ID)
		case slices.ContainsFunc(voters[:i], func(w Voter) bool { return w.ID == v.ID }):
			return fmt.Errorf("cordwood: voter %d is named twice", v.ID)
		}
	}
	if !isVoter(voters, n.o.ID) {
		return fmt.Errorf("cordwood: Init on node %d, which is not among the voters: call Join", n.o.ID)
	}
	fresh, err := n.enter(ctx, clusterID, voters)
	if err != nil || !fresh {
		return err
	}
	n.cluster.Load().meta.Campaign()
	return nil
}

func isVoter(voters []Voter, id int32) bool {
	return slices.ContainsFunc(voters, func(v Voter) bool { return v.ID == id })
}

// Join makes the node a member of the cluster that one of the seeds belongs to.
// Seeds are addresses of members; they are asked in turn until one answers that
// has a cluster, or ctx ends. If that cluster names this node as a voter, it
// becomes one. A node that has a cluster already does nothing. The membership is
// durable on return.
func (n *Node) Join(ctx context.Context, seeds ...string) error {
	if err := n.closedErr(); err != nil {
		return err
	}
	if n.cluster.Load() != nil {
		return nil
	}
	if len(seeds) == 0 {
		return errors.New("cordwood: Join needs the address of a member")
	}
	ctx, cancel := n.bound(ctx)
	defer cancel()
	for pause := retryPauseMin; ; pause = min(2*pause, retryPauseMax) {
		var errs []error
		for _, seed := range seeds {
			err := n.joinAt(ctx, seed)
			if err == nil || errors.Is(err, errRefused) {
				return err
			}
			errs = append(errs, fmt.Errorf("%s: %w", seed, err))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("cordwood: join: %w: %w", context.Cause(ctx), errors.Join(errs...))
		}
	}
}

// errRefused marks what asking another seed can't mend.
var errRefused = errors.New("cordwood: refused")

func (n *Node) joinAt(ctx context.Context, seed string) error {
	ctx, cancel := context.WithTimeout(ctx, max(n.o.Session, 20*n.o.Tick))
	defer cancel()
	resp, err := n.net.CallAddr(ctx, seed, transport.Control, kindJoin, []byte{messageVersion})
	if err != nil {
		return err
	}
	answer, err := decodeJoinAnswer(resp.Body)
	if err != nil {
		return err
	}
	if answer.cluster.IsZero() {
		return ErrNotInitialized
	}
	n.mu.Lock()
	n.seeds[resp.From.Node] = seed
	n.mu.Unlock()
	if _, err := n.enter(ctx, answer.cluster, answer.voters); err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	if isVoter(answer.voters, n.o.ID) {
		// The founder may have campaigned before this voter was there to answer.
		n.net.CallAddr(ctx, seed, transport.Control, kindJoined, []byte{messageVersion})
	}
	return nil
}

// enter makes the node a member, durably, and starts it. fresh tells that it was
// none before.
func (n *Node) enter(ctx context.Context, clusterID ID, voters []Voter) (fresh bool, err error) {
	n.joining.Lock()
	defer n.joining.Unlock()
	if err := n.closedErr(); err != nil {
		return false, err
	}
	ctx, cancel := n.bound(ctx)
	defer cancel()
	n.mu.Lock()
	self := n.self
	n.mu.Unlock()
	if !self.cluster.IsZero() {
		if self.cluster != clusterID || !slices.Equal(sortedVoters(self.voters), sortedVoters(voters)) {
			return false, fmt.Errorf("cordwood: directory %s belongs to cluster %v with other voters or another id: use an empty directory for another cluster", n.o.Dir, self.cluster)
		}
		return false, nil
	}
	if n.o.Listener == nil && isVoter(voters, n.o.ID) {
		return false, fmt.Errorf("cordwood: node %d is a voter: it needs Options.Listener", n.o.ID)
	}
	self.cluster, self.voters = clusterID, sortedVoters(voters)
	if err := self.store(n.o.FS, n.o.Dir); err != nil {
		return false, err
	}
	if err := n.start(ctx, self); err != nil {
		return false, n.cause(ctx, err)
	}
	n.mu.Lock()
	n.self = self
	n.mu.Unlock()
	return true, nil
}

func sortedVoters(vs []Voter) []Voter {
	return slices.SortedFunc(slices.Values(vs), func(a, b Voter) int { return int(a.ID) - int(b.ID) })
}

// start makes the parts that need a cluster and the tasks that join them.
func (n *Node) start(ctx context.Context, self identity) (err error) {
	n.net.SetSelf(n.peer(self))
	c := &cluster{
		partition: make(map[log.PartitionID]*partition),
		beat:      make(chan struct{}, 1),
	}
	voters := make([]metadata.Voter, len(self.voters))
	n.mu.Lock()
	for i, v := range self.voters {
		voters[i] = metadata.Voter{ID: metadata.BrokerID(v.ID), Addr: v.Addr}
		if v.ID != self.node {
			n.seeds[v.ID] = v.Addr
		}
	}
	n.mu.Unlock()
	logger := n.o.Logger.With(slog.Int("node", int(self.node)))
	defer func() {
		if err == nil {
			return
		}
		if c.tier != nil {
			err = errors.Join(err, c.tier.Close())
		}
		if c.repl != nil {
			err = errors.Join(err, c.repl.Shutdown())
		}
		if c.meta != nil {
			err = errors.Join(err, c.meta.Close())
		}
	}()
	c.meta, err = metadata.Open(ctx, metadata.Options{
		FS: n.o.FS, Dir: path.Join(n.o.Dir, "metadata"), Cluster: self.cluster,
		Self: metadata.BrokerID(self.node), Directory: self.directory, Voters: voters,
		Network: metadataNetwork{n}, Tick: n.o.Tick, Session: n.o.Session,
		SystemReplication: n.o.SystemReplication, Logger: logger,
	})
	if err != nil {
		return err
	}
	c.repl, err = replication.NewManager(replication.Options{
		Self:       replication.Member{ID: replication.NodeID(self.node)},
		Controller: controller{c}, Network: replicationNetwork{n},
		LagMax: n.o.LagMax, FetchWait: n.o.FetchWait, FetchTimeout: 2 * n.o.Session,
		AckLatency: max(replication.DefaultAckLatency, n.o.Session/3),
		FetchBytes: n.o.FetchBytes, HintInterval: max(replication.DefaultHintInterval, 2*n.o.Session),
		Logger: logger,
		Hooks: replication.Hooks{
			HighWatermark: func(id log.PartitionID, _ log.Offset) { c.kick(id) },
			Unhealthy:     func(log.PartitionID, error) { c.beatSoon() },
		},
	})
	if err != nil {
		return err
	}
	if n.o.Store != nil && !n.o.NoReplicas {
		var cache string
		var cacheFS log.FS
		if n.o.StoreCacheBytes > 0 {
			cacheFS, cache = n.o.FS, path.Join(n.o.Dir, "tier-cache")
		}
		c.tier, err = tier.NewManager(tier.Options{
			Cluster: tier.ID(self.cluster), Store: n.o.Store, Prefix: n.o.StorePrefix, Events: tierEvents{n},
			CacheBytes: n.o.CacheBytes, CompressChunks: n.o.CompressStore,
			Uploads: n.o.Uploads, UploadBytesPerSecond: n.o.UploadBytesPerSecond,
			Interval: n.o.TierInterval, Logger: logger,
			BackupWindow: n.o.BackupWindow, ReaderGrace: n.o.ReaderGrace,
			Writer:  func() bool { return c.leadsTierLog(self) },
			Deleted: c.deletedTopic,
			StateFS: n.o.FS, StateDir: n.o.Dir,
			DiskCacheFS: cacheFS, DiskCacheDir: cache, DiskCacheBytes: n.o.StoreCacheBytes,
			DiskCacheReserveBytes: n.o.ReserveBytes + tier.DefaultDiskCacheReserveBytes,
		})
		if err != nil {
			return err
		}
	}
	n.pausing.Lock()
	n.cluster.Store(c)
	if c.tier != nil && n.paused {
		c.tier.Pause()
	}
	n.pausing.Unlock()
	n.goTask("metadata", func(ctx context.Context) {
		select {
		case <-c.meta.Done():
			if err := c.meta.Err(); err != nil {
				n.fail(fmt.Errorf("cordwood: metadata ended: %w", err))
			}
		case <-ctx.Done():
		}
	})
	n.goTask("broker", func(ctx context.Context) { n.runBroker(ctx, c, self) })
	if !n.o.NoReplicas {
		n.goTask("housekeeping", func(ctx context.Context) { n.runHousekeeping(ctx, c) })
	}
	return nil
}

// Ready waits until the node is registered with its cluster's controller and in
// contact, and the internal topics that it needs exist and have leaders: with
// Options.Store that takes Options.SystemReplication brokers. It returns
// [ErrNotInitialized] before Init or Join, [ErrClosed], or an error that says what
// is missing and wraps the context's cause.
func (n *Node) Ready(ctx context.Context) error {
	if err := n.closedErr(); err != nil {
		return err
	}
	c := n.cluster.Load()
	if c == nil {
		return ErrNotInitialized
	}
	var missing string
	_, err := n.waitImage(ctx, func(img *metadata.Image) bool {
		missing = n.missing(c, img)
		return missing == ""
	})
	if err != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("cordwood: node %d is not ready: %s: %w", n.o.ID, missing, err)
	}
	return err
}

// missing says what the node still needs before it is ready, "" for nothing.
func (n *Node) missing(c *cluster, img *metadata.Image) string {
	b, ok := img.Broker(metadata.BrokerID(n.o.ID))
	if !ok || b.Epoch != metadata.BrokerEpoch(c.epoch.Load()) {
		return "it has not registered with a controller"
	}
	if b.Fenced {
		return "the controller has not taken it back yet"
	}
	if n.o.Store == nil {
		if _, known := c.meta.Controller(); !known {
			return "no controller is known"
		}
		return ""
	}
	t, ok := img.TopicByName("", tierTopic)
	if !ok {
		brokers := 0
		for b := range img.Brokers() {
			if b.HostsReplicas {
				brokers++
			}
		}
		return fmt.Sprintf("topic %s does not exist: it takes %d brokers (Options.SystemReplication on voters), %d registered so far", tierTopic, n.o.SystemReplication, brokers)
	}
	if p, ok := img.Partition(log.PartitionID{Topic: t.ID}); !ok || p.Leader < 0 {
		return fmt.Sprintf("topic %s has no leader", tierTopic)
	}
	return ""
}

// Shutdown hands the node's leaderships over, waits until the cluster does
// without it, and closes it. When ctx ends first it closes the node all the same
// and returns the context's cause: give it a deadline, since a cluster that has
// lost its controller can't agree, which the last nodes to end meet.
func (n *Node) Shutdown(ctx context.Context) error {
	c := n.cluster.Load()
	if c == nil || c.epoch.Load() == 0 {
		return n.Close()
	}
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	c.beatSoon()
	err := func() error {
		for {
			c.mu.Lock()
			stopped := c.stopped
			c.mu.Unlock()
			if stopped {
				return nil
			}
			select {
			case <-time.After(n.o.Tick):
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-n.ctx.Done():
				return nil
			}
		}
	}()
	return errors.Join(err, n.Close())
}

// Close ends the node at once, like a crash of the process but for what it tidies
// up: leaderships are not handed over, appends that wait get *[IndeterminateError].
// It returns when all goroutines have ended and all files are closed, with what
// went wrong in that. Idempotent: later calls wait for the first and return the
// same.
func (n *Node) Close() error {
	n.mu.Lock()
	first := !n.closed
	n.closed = true
	n.mu.Unlock()
	if !first {
		<-n.done
		return n.closeErr
	}
	n.cancel(ErrClosed)
	n.joining.Lock() // an Init or Join under way is cut short; later ones see the end
	c := n.cluster.Load()
	n.joining.Unlock()
	errs := []error{n.net.Close()}
	n.tasks.Wait()
	if c != nil {
		for _, p := range c.all() {
			errs = append(errs, n.closePartition(c, p))
		}
		errs = append(errs, c.repl.Shutdown())
		if c.tier != nil {
			errs = append(errs, c.tier.Close())
		}
		errs = append(errs, c.meta.Close())
	}
	errs = append(errs, n.disk.Close(), n.lock.Close())
	n.closeErr = errors.Join(errs...)
	close(n.done)
	return n.closeErr
}

// Done is closed when the node has ended: after Close or Shutdown, or by itself,
// in which case Err says why.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err returns why the node ended by itself, nil while it runs and after a Close
// or Shutdown that was asked for.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// fail ends the node by itself.
func (n *Node) fail(err error) {
	n.mu.Lock()
	if n.closed || n.err != nil {
		n.mu.Unlock()
		return
	}
	n.err = err
	n.mu.Unlock()
	n.o.Logger.Error("node ends", "err", err)
	// Close waits for the task that called; it is itself waited for by done.
	go n.Close()
}

// closedErr returns ErrClosed once the node is ending, joined with the cause.
func (n *Node) closedErr() error {
	if n.ctx.Err() == nil {
		return nil
	}
	if err := n.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return ErrClosed
}

// stopping is closed when the node begins to end.
func (n *Node) stopping() <-chan struct{} { return n.ctx.Done() }

// goTask runs fn in a goroutine that Close waits for. It returns false, and does
// not run it, when the node is closed.
func (n *Node) goTask(name string, fn func(ctx context.Context)) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.tasks.Go(func() {
		pprof.Do(n.ctx, pprof.Labels("cordwood", name), fn)
	})
	return true
}

// bound returns ctx ended also by the end of the node.
func (n *Node) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(n.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// waitImage waits for an image for which ok holds.
func (n *Node) waitImage(ctx context.Context, ok func(*metadata.Image) bool) (*metadata.Image, error) {
	c := n.cluster.Load()
	if c == nil {
		return nil, ErrNotInitialized
	}
	if img := c.meta.Image(); ok(img) {
		return img, nil
	}
	ctx, cancel := n.bound(ctx)
	defer cancel()
	img, err := c.meta.WaitFor(ctx, ok)
	if err != nil {
		if closed := n.closedErr(); closed != nil {
			return nil, closed
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	return img, nil
}

// sleep waits for d and reports whether ctx has not ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
