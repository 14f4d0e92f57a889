package cordwood

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"path"
	"slices"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata"
	"github.com/cordwood-io/cordwood/tier"
)

// StoppedOptions configure [OpenStopped].
type StoppedOptions struct {
	// FS is the file system; nil means [log.OSFS].
	FS log.FS

	// Logger is given to what is opened. Nil discards.
	Logger *slog.Logger
}

// A Stopped is what the directories of stopped nodes of one cluster hold: for tools
// that look at a cluster which does not run. It holds the directories' locks, so no
// node can start on them meanwhile. Make one with [OpenStopped]. It is safe for
// concurrent use, Close and RepairTier apart.
type Stopped struct {
	cluster ID
	image   *metadata.Image
	o       StoppedOptions
	dirs    []string
	disks   map[string]*log.Disk // by directory
	closers []io.Closer          // in the order of opening
	logs    []*log.Log           // of the tier log, the best first
	want    int                  // replicas of the tier log
}

// OpenStopped opens the directories of stopped nodes. Logs are recovered as at a
// start of the node, which may cut torn tails; nothing else is changed. At least one
// of the nodes must be a voter, since the names of topics are in the metadata; the
// newest image of all counts.
//
// Errors: [ErrDirectoryInUse] if a node runs, [*VersionError], [*log.CorruptionError],
// fs.ErrNotExist for a directory that is no node's, an error if the nodes are of
// different clusters, and those of the disk. ctx bounds the call.
func OpenStopped(ctx context.Context, dirs []string, o StoppedOptions) (_ *Stopped, err error) {
	if o.FS == nil {
		o.FS = log.OSFS{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if len(dirs) == 0 {
		return nil, errors.New("cordwood: no directories of nodes")
	}
	s := &Stopped{o: o, dirs: slices.Clone(dirs), disks: map[string]*log.Disk{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, dir := range dirs {
		if err := s.openNode(dir, o); err != nil {
			return nil, fmt.Errorf("open %s: %w", dir, err)
		}
	}
	if s.image == nil {
		return nil, errors.New("cordwood: none of the nodes is a voter, so nothing tells which topics there are")
	}
	topic, ok := s.image.TopicByName("", tierTopic)
	if !ok {
		return s, nil
	}
	id := log.PartitionID{Topic: topic.ID}
	if p, ok := s.image.Partition(id); ok {
		s.want = len(p.Replicas)
	}
	for _, dir := range dirs {
		if err := s.openTierLog(ctx, dir, id); err != nil {
			return nil, fmt.Errorf("open %s: %w", dir, err)
		}
	}
	// As voters and in-sync sets do: the newer epoch, then the longer log.
	slices.SortStableFunc(s.logs, func(x, y *log.Log) int {
		return cmp.Or(cmp.Compare(y.LastEpoch(), x.LastEpoch()), cmp.Compare(y.End(), x.End()))
	})
	return s, nil
}

// openNode locks a directory and reads identity and image.
func (s *Stopped) openNode(dir string, o StoppedOptions) error {
	b, err := readSmall(o.FS, path.Join(dir, identityFile))
	if err != nil {
		return err
	}
	lock, err := o.FS.Lock(path.Join(dir, "lock"))
	if errors.Is(err, log.ErrLocked) {
		return ErrDirectoryInUse
	}
	if err != nil {
		return err
	}
	s.closers = append(s.closers, lock)
	self, err := decodeIdentity(path.Join(dir, identityFile), b)
	if err != nil {
		return err
	}
	switch {
	case self.cluster == ID{}:
		return errors.New("cordwood: the node has not joined a cluster")
	case s.cluster != ID{} && s.cluster != self.cluster:
		return fmt.Errorf("cordwood: the node is of cluster %v, not of %v", self.cluster, s.cluster)
	}
	s.cluster = self.cluster
	var voters []metadata.Voter
	for _, v := range self.voters {
		voters = append(voters, metadata.Voter{ID: metadata.BrokerID(v.ID), Addr: v.Addr})
	}
	if !slices.ContainsFunc(self.voters, func(v Voter) bool { return v.ID == self.node }) {
		return nil
	}
	im, err := metadata.ReadImage(metadata.Options{
		FS: o.FS, Dir: path.Join(dir, "metadata"), Cluster: self.cluster,
		Self: metadata.BrokerID(self.node), Directory: self.directory, Voters: voters, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	if s.image == nil || im.Index() > s.image.Index() {
		s.image = im
	}
	return nil
}

func (s *Stopped) openTierLog(ctx context.Context, dir string, id log.PartitionID) error {
	l, err := s.openLog(ctx, dir, id)
	if err != nil || l == nil {
		return err
	}
	s.closers = append(s.closers, l)
	s.logs = append(s.logs, l)
	return nil
}

// openLog opens a replica's log, nil if there is none in the directory.
func (s *Stopped) openLog(ctx context.Context, dir string, id log.PartitionID) (*log.Log, error) {
	name := path.Join(dir, "partitions", id.String())
	if _, err := s.o.FS.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	disk := s.disks[dir]
	if disk == nil {
		var err error
		if disk, err = log.NewDisk(log.DiskOptions{FS: s.o.FS, Dir: dir}); err != nil {
			return nil, err
		}
		s.disks[dir] = disk
		s.closers = append(s.closers, closer(disk.Close))
	}
	return log.Open(ctx, name, log.Options{Disk: disk, Partition: id, UseReserve: true, Logger: s.o.Logger})
}

type closer func() error

func (c closer) Close() error { return c() }

// Close gives the directories back. It can be called again.
func (s *Stopped) Close() error {
	var errs []error
	for _, c := range slices.Backward(s.closers) {
		errs = append(errs, c.Close())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// Cluster is the cluster that the nodes are of.
func (s *Stopped) Cluster() ID { return s.cluster }

// TopicName returns the tenant and the name of a topic; false if the metadata does not
// know it.
func (s *Stopped) TopicName(id log.TopicID) (tenant, name string, ok bool) {
	t, ok := s.image.Topic(id)
	return t.Tenant, t.Name, ok
}

// TopicDeleted says whether a topic was deleted: see [tier.AuditOptions].Deleted.
func (s *Stopped) TopicDeleted(id log.TopicID) bool {
	_, ok := s.image.DeletedTopic(id)
	return ok
}

// TierReplicas returns how many replicas of the tier log are here, and how many
// there are.
func (s *Stopped) TierReplicas() (here, all int) { return len(s.logs), s.want }

// TierEvents iterates over the tier log of the replica that would lead: the one with
// the newest epoch, and of these the longest. What it holds above the high watermark is
// included: a start of the cluster would commit it. It ends at the log's end, and gives
// nothing if no replica is here. An error is yielded once and last: those of
// [log.Log.Read], and ctx's. It can be used again.
func (s *Stopped) TierEvents(ctx context.Context) iter.Seq2[tier.Committed, error] {
	if len(s.logs) == 0 {
		return func(yield func(tier.Committed, error) bool) {}
	}
	return stoppedEvents(ctx, s.logs[0])
}

func stoppedEvents(ctx context.Context, l *log.Log) iter.Seq2[tier.Committed, error] {
	return func(yield func(tier.Committed, error) bool) {
		for at := l.Start(); at < l.End(); {
			b, err := l.Read(ctx, at, defaultReadBytes)
			if err != nil {
				yield(tier.Committed{}, err)
				return
			}
			next, ok := (tierEvents{}).yield(b.Bytes(), at, yield)
			b.Release()
			if !ok {
				return
			}
			at = next
		}
	}
}

// TierKnows returns a function that says whether a replica's tier log other than that
// of [Stopped.TierEvents] names an object which that one never does: what an audit
// can't know; see [tier.SweepStopped]. Of manifests it knows all that any replica names,
// since another one may lead next, and go back to an earlier checkpoint.
// It reads all of them; errors are those of [Stopped.TierEvents] and [tier.DecodeEvent].
// The function is safe for concurrent use.
func (s *Stopped) TierKnows(ctx context.Context) (func(log.PartitionID, tier.ID) bool, error) {
	type name struct {
		p  log.PartitionID
		id tier.ID
	}
	first, others := map[name]bool{}, map[name]bool{}
	for i, l := range s.logs {
		for c, err := range stoppedEvents(ctx, l) {
			if err != nil {
				return nil, err
			}
			if c.Event == nil {
				continue
			}
			e, err := tier.DecodeEvent(c.Event)
			if err != nil {
				return nil, err
			}
			switch b := e.Body.(type) {
			case tier.CopyStarted:
				n := name{e.Partition, b.ID}
				switch {
				case i == 0:
					first[n] = true
				case !first[n]:
					others[n] = true
				}
			case tier.Checkpoint:
				if b.Manifest != (tier.ID{}) {
					others[name{e.Partition, b.Manifest}] = true
				}
			}
		}
	}
	return func(p log.PartitionID, id tier.ID) bool { return others[name{p, id}] }, nil
}

// Nodes returns how many nodes' directories are here, and how many nodes the cluster has.
func (s *Stopped) Nodes() (here, all int) {
	for range s.image.Brokers() {
		all++
	}
	return len(s.dirs), all
}

// RepairTier is [tier.Repair] with the nodes' directories, their tier log and the log
// starts of their replicas, which are opened for it as at a start of the node. The
// directories should be those of all nodes, see there.
//
// Errors are those of [tier.Repair] and [log.Open].
func (s *Stopped) RepairTier(ctx context.Context, store tier.ObjectStore, prefix string, dryRun bool) (*tier.RepairReport, error) {
	var nodes []tier.StateDir
	for _, dir := range s.dirs {
		nodes = append(nodes, tier.StateDir{FS: s.o.FS, Dir: dir})
	}
	return tier.Repair(ctx, tier.RepairOptions{
		Store: store, Prefix: prefix, Cluster: tier.ID(s.cluster), Events: s.TierEvents(ctx), Nodes: nodes, DryRun: dryRun,
		LogStart: func(id log.PartitionID) (log.Offset, bool, error) { return s.localStart(ctx, id) },
	})
}

// localStart returns the highest log start of the replicas that are here. Of a deleted
// topic nothing is to be read, so there it is known without them.
func (s *Stopped) localStart(ctx context.Context, id log.PartitionID) (start log.Offset, ok bool, err error) {
	ok = s.TopicDeleted(id.Topic)
	for _, dir := range s.dirs {
		l, err := s.openLog(ctx, dir, id)
		if err != nil {
			return 0, false, fmt.Errorf("%s: %w", dir, err)
		}
		if l == nil {
			continue
		}
		start, ok = max(start, l.Start()), true
		if err := l.Close(); err != nil {
			return 0, false, fmt.Errorf("%s: %w", dir, err)
		}
	}
	return start, ok, nil
}
